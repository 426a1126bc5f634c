"""Child processes that are asked by lines: `pywan.testing.processes`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pywan.testing.processes import ChildProcess, ProcessFailed
from pywan.testing.waiting import SOON_S, eventually

CHILD = """
import os, signal, sys
from pywan.testing.processes import serve, tell

class Handlers:
    def add(self, one, *, other):
        return one + other

    def fail(self, word):
        raise ValueError(word)

    def leave(self, status):
        print("these are my last words", file=sys.stderr, flush=True)
        os._exit(status)

    def wait(self):
        signal.pause()

tell("ready")
serve(Handlers())
sys.exit(int(sys.argv[1]))
"""


def child(status: int = 0, **more) -> ChildProcess:
    process = ChildProcess("child", [sys.executable, "-c", CHILD, status], **more)
    assert process.finish() == "ready"
    return process


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_child_answers_and_ends_with_the_block():
    with child() as process:
        assert process.ask("add", 1, other=2) == 3
        process.begin("add", "a", other="b")
        process.begin("add", [1], other=[2])
        assert (process.finish(), process.finish()) == ("ab", [1, 2])
    assert is_gone(process.pid)


def test_an_exception_of_the_child_has_its_name_its_text_and_its_place_and_the_child_goes_on():
    with child() as process:
        with pytest.raises(ProcessFailed, match=r"(?s)child: ValueError: a word.*in fail"):
            process.ask("fail", "a word")
        assert process.ask("add", 1, other=1) == 2


@pytest.mark.parametrize("folder", [True, False])
def test_a_child_that_ended_is_named_with_its_last_words(folder, tmp_path: Path):
    process = child(folder=tmp_path if folder else None)
    with pytest.raises(ProcessFailed, match=r"child ended by itself: these are my last words"):
        process.ask("leave", 3)
    with pytest.raises(ProcessFailed, match=r"child ended with 3: these are my last words"):
        process.end()
    with pytest.raises(ProcessFailed, match=r"(?s)child ended before it was asked .*last words"):
        process.ask("add", 1, other=2)


def test_a_child_that_does_not_answer_is_named_after_the_limit_and_killed_by_the_block():
    with pytest.raises(ProcessFailed, match=r"child does not answer within 0.1 s"), child() as process:
        process.ask("wait", timeout=0.1)
    assert is_gone(process.pid)


def test_a_child_that_does_not_end_is_killed():
    process = child()
    process.begin("wait")
    with pytest.raises(ProcessFailed, match=r"child does not end within 0.1 s"):
        process.end(timeout=0.1)
    assert is_gone(process.pid)


def test_a_stopped_child_answers_when_it_goes_on_and_ends():
    with child() as process:
        process.stop()
        process.begin("add", 1, other=2)
        with pytest.raises(ProcessFailed, match="does not answer"):
            process.finish(timeout=0.1)
        process.go_on()
        assert process.finish() == 3
        process.stop()
    assert not process.is_running


def test_a_child_that_ends_with_a_failure_makes_the_block_fail():
    with pytest.raises(ProcessFailed, match="child ended with 4"), child(4):
        pass


def test_a_killed_child_leaves_the_block_in_silence():
    with child() as process:
        process.kill()
        process.kill()
        assert not process.is_running
    eventually(lambda: is_gone(process.pid), SOON_S)
