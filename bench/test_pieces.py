"""The pieces one by one, by pytest-benchmark. `make bench` runs them; so does this command.

    .venv/bin/pytest bench/test_pieces.py --benchmark-timer=time.thread_time

Each round handles some thousands of events; `ns_an_event` of the extra information is what one takes, `reference_ns`
what a bare copy of it in C took in turn with that."""

from __future__ import annotations

import pytest

from pieces import PIECES, piece


@pytest.mark.parametrize("name", PIECES)
def test_piece(name, measured):
    with piece(name) as one:
        measured(one)
