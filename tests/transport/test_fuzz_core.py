"""A short while of each fuzzer of the compiled core; `make fuzz-core FUZZ_SECONDS=600` runs them for longer, under the
sanitizers.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fuzz_core import FUZZERS
from support.tree import TESTS

SECONDS = os.environ.get("FUZZ_SECONDS", "2")


@pytest.mark.parametrize("fuzzer", FUZZERS)
def test_what_is_whole_in_form_and_wrong_in_its_numbers_is_refused_or_harmless(fuzzer):
    done = subprocess.run(
        [sys.executable, "-m", "fuzz_core", "--seconds", SECONDS, "--fuzzers", fuzzer],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=float(SECONDS) + 100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
