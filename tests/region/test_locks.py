"""Every operation of a region meets every command, again and again: no process stands still (docs/decisions/0099)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pywan.testing.processes import python_environment
from support.lock_stress import COMMANDS, OPERATIONS
from support.tree import TESTS

LIMIT_S = 280
PAIRS = [(kind, command) for kind in ("local", "shared") for command in COMMANDS]


def meet(kind: str, command: str, rounds: int, *operations: str) -> None:
    program = TESTS / "support" / "lock_stress.py"
    done = subprocess.run(
        [sys.executable, program, kind, command, str(rounds), *operations],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=python_environment(),
    )
    assert done.returncode == 0 and done.stdout.endswith("held\n"), f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("kind", "command"), [("local", "alter_senders"), *PAIRS[len(COMMANDS) :]])
def test_operations_meet_a_command_and_go_on(kind, command):
    """Those of one entry, of many rows, and of all entries; by night all of them."""
    meet(kind, command, 1, "put", "put_columns", "clear")


@pytest.mark.nightly
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("kind", "command"), PAIRS)
def test_an_operation_meets_a_command_fifty_times_and_goes_on(kind, command, operation):
    meet(kind, command, 50, operation)
