"""Workers: threads that do what is submitted, at most so many at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pywan.base import threads
from pywan.base.threads import Workers
from pywan.testing.waiting import LIMIT_S, eventually


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(3, name="test-worker")
    yield workers
    workers.stop()
    assert not [each for each in threading.enumerate() if each.name.startswith("test-worker")]


def test_everything_is_done_in_order_of_its_begin_and_by_no_more_threads_than_allowed(workers: Workers) -> None:
    gate, begun, done = threading.Event(), [], []

    def work(number: int) -> None:
        begun.append(number)
        assert gate.wait(LIMIT_S)
        done.append(threading.current_thread().name)

    for number in range(10):
        workers.submit(work, number)
    eventually(lambda: len(begun) == 3)
    gate.set()
    eventually(lambda: len(done) == 10)
    assert sorted(begun) == list(range(10)) and len(set(done)) <= 3


def test_a_thread_that_is_free_does_the_next_work(workers: Workers) -> None:
    for _ in range(5):
        done = threading.Event()
        workers.submit(done.set)
        assert done.wait(LIMIT_S)
        eventually(lambda: workers._free == 1)
    assert len(workers._threads) == 1


def test_work_that_fails_is_logged_and_costs_no_thread(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    workers.submit(lambda: 1 / 0)
    done = threading.Event()
    workers.submit(done.set)
    assert done.wait(LIMIT_S)
    eventually(lambda: "division by zero" in caplog.text)


def test_nobody_waits_for_a_thread_that_does_not_begin(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEGIN_TIMEOUT_S", 0.1)
    begin = threading.Thread._bootstrap  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "_bootstrap", lambda thread: None)
        with pytest.raises(RuntimeError, match="did not begin"):
            workers.submit(lambda: None)
    assert begin is threading.Thread._bootstrap  # type: ignore[attr-defined]
    done = threading.Event()
    workers.submit(done.set)
    assert done.wait(LIMIT_S)


def test_what_has_not_begun_is_forgotten_by_a_stop(workers: Workers) -> None:
    gate, done = threading.Event(), []
    for number in range(5):
        workers.submit(lambda number=number: (gate.wait(LIMIT_S), done.append(number)))
    eventually(lambda: len(workers._waiting) == 2)
    workers.stop(wait=False)
    gate.set()
    workers.stop()
    assert sorted(done) == [0, 1, 2]
    with pytest.raises(RuntimeError, match="being stopped"):
        workers.submit(lambda: None)
