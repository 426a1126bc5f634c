"""A thread of a member or a locator that fails is begun again, in one line of the log, and the work goes on. A member
one of whose threads cannot go on ends in words."""

from __future__ import annotations

import itertools
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from pywan.base import threads
from pywan.base.threads import EssentialThread, Restarts, Thread, Workers, restarts, start_essential
from pywan.replication.member_replicas import MemberReplicas
from pywan.replication.peer import Peer
from pywan.testing.waiting import LIMIT_S, eventually
from support.member_pair import Pair
from support.tree import ROOT

_names = itertools.count()


class Fault:
    """Fails once when `function` of `owner` is called, and then never again."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: object, function: str) -> None:
        self.met = threading.Event()
        real = getattr(owner, function)

        def call(*args: object, **more: object) -> object:
            if not self.met.is_set():
                self.met.set()
                raise ZeroDivisionError("a fault of this test")
            return real(*args, **more)

        patch.setattr(owner, function, call)


def lines_about(caplog: pytest.LogCaptureFixture, thread: str) -> list[logging.LogRecord]:
    return [
        each for each in caplog.records if each.name == "pywan.threads" and f"thread {thread} " in each.getMessage()
    ]


# One thread


def test_a_thread_that_fails_is_begun_again_until_its_work_returns(caplog):
    name, left = f"test-{next(_names)}", [3]

    def work() -> None:
        if left[0]:
            left[0] -= 1
            raise KeyError("a fault of this test")

    start_essential("nothing", name, work).join(LIMIT_S)
    assert left == [0]
    (line,) = lines_about(caplog, name)
    assert re.search(
        r"begun again: KeyError: 'a fault of this test' \(test_essential_threads.py:\d+\)", line.getMessage()
    )
    assert not line.exc_info
    assert restarts()[name].times == 3 and restarts()[name].reason.startswith("KeyError: 'a fault of this test'")


def test_pauses_grow_to_a_limit_and_the_log_has_a_line_a_minute(monkeypatch, caplog):
    name, now, slept = f"test-{next(_names)}", [1000.0], []
    monkeypatch.setattr(threads.time, "sleep", lambda s: (slept.append(s), now.__setitem__(0, now[0] + s)))
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    reasons: list[str] = []

    def work() -> None:
        raise SystemExit("a fault of this test")

    thread = EssentialThread(work, name=name, gives_up=reasons.append)
    thread.run()
    assert slept[:3] == [0.01, 0.02, 0.04] and max(slept) == 1.0
    (reason,) = reasons
    assert reason.startswith(f"its thread {name} has failed for 6") and "SystemExit: a fault of this test" in reason
    assert len(lines_about(caplog, name)) <= 2


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("an error of a user that cannot be shown")


@pytest.mark.parametrize("fault", [None, MemoryError], ids=["an error that cannot be shown", "no memory for the line"])
def test_a_thread_is_begun_again_and_given_up_with_a_reason_whatever_failed(monkeypatch, fault):
    name, now, runs = f"test-{next(_names)}", [1000.0], [0]
    monkeypatch.setattr(threads.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    if fault is not None:

        def no_memory(error: BaseException) -> str:
            raise fault

        monkeypatch.setattr(threads, "told_error", no_memory)
    reasons: list[str] = []

    def work() -> None:
        runs[0] += 1
        raise Silent

    EssentialThread(work, name=name, gives_up=reasons.append).run()
    assert runs[0] > 60 and len(reasons) == 1 and "Silent" in reasons[0]


def test_a_thread_that_worked_in_between_is_not_given_up(monkeypatch):
    name, now, runs = f"test-{next(_names)}", [1000.0], [0]
    monkeypatch.setattr(threads.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])

    def work() -> None:
        runs[0] += 1
        now[0] += 30.0
        if runs[0] < 10:
            raise KeyError("a fault of this test")

    EssentialThread(work, name=name, gives_up=lambda why: pytest.fail(why)).run()
    assert runs == [10]


def test_any_other_thread_that_fails_says_so_in_one_line(caplog):
    name = f"test-{next(_names)}"

    def work() -> None:
        raise KeyError("a fault of this test")

    thread = Thread(work, name=name)
    thread.start()
    thread.join(LIMIT_S)
    (line,) = lines_about(caplog, name)
    assert "ended by an error: KeyError: 'a fault of this test' (test_essential_threads.py:" in line.getMessage()
    assert not line.exc_info


def test_workers_go_on_after_work_that_fails_and_say_so_in_limited_lines(caplog):
    workers, done = Workers(2, name="test-workers"), threading.Event()

    def work() -> None:
        raise KeyError("a fault of this test")

    for _ in range(200):
        workers.submit(work)
    workers.submit(done.set)
    assert done.wait(LIMIT_S)
    workers.stop()
    lines = [each for each in caplog.records if "work failed" in each.getMessage()]
    assert 0 < len(lines) <= 20 and not any(each.exc_info for each in lines)


def sources() -> dict[str, str]:
    """The product's files that start threads of members and locators, by their names."""
    files = (ROOT / "pywan").rglob("*.py")
    found = {str(file.relative_to(ROOT / "pywan")): file.read_text() for file in files}
    return {name: text for name, text in found.items() if not name.startswith(("demo/", "testing/", "base/threads"))}


def test_one_module_starts_all_threads():
    raw = [name for name, text in sources().items() if re.search(r"\bthreading\.Thread\(", text)]
    assert raw == []


# Where threads start that are begun again, and how the table in docs/architecture.md names them.
BEGUN_AGAIN = {
    "replication/member_replicas.py": ["`replicas`"],
    "replication/peer.py": ["`replication link to MEMBER`", "`questions to MEMBER`"],
    "gateway/dispatchers.py": ["`sender-ID-N`"],
    "gateway/remote_site.py": ["`remote site N`"],
    "gateway/unresponsive_receivers.py": ["`receiver watch`"],
    "member/housekeeper.py": ["`NAME-housekeeping`"],
    "member/memory.py": ["`NAME-memory`"],
    "member/parked_events.py": ["`parked events`"],
    "member/process.py": ["`signals`"],
    "member/sharing.py": ["`older SENDER`"],
    "region/listening.py": ["`pywan-listeners-REGION`"],
    "gateway/dispatched_by_others.py": ["`sender-ID-elsewhere`"],
    "security/guard.py": ["`member NAME-guard`"],
    "site/agent.py": ["`NAME-agent`", "`NAME-agent-asks`"],
    "site/coordinator_driver.py": ["`locator NAME-coordinator`"],
    "site/locator.py": ["`locator NAME-gossip`"],
    "site/locator_claims.py": ["`-coordinators`"],
    "site/mirror.py": ["`-mirror`"],
    "site/membership.py": ["`NAME-locator-ADDRESS`"],
    "transport/openings.py": ["`member NAME-accept`", "`receiver-accept`"],
}


def test_the_table_of_threads_says_which_are_begun_again():
    starts = {name for name, text in sources().items() if re.search(r"(start_essential|EssentialThread)\(", text)}
    assert starts == BEGUN_AGAIN.keys()
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Threads")[2].partition("## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("|") and "begun again" in row]
    names = set(itertools.chain.from_iterable(BEGUN_AGAIN.values()))
    assert not {name for name in names if not any(name in row for row in rows)}
    assert not [row for row in rows if not any(name in row for name in names)]


# Those of members and locators


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def calls_go_on(pair: Pair) -> None:
    """A put of either member counts, and is told to the listener. Returns when nobody waits for a decision."""
    key = f"after{next(_names)}"
    pair.first.put(key, 1)
    pair.second.put(f"{key}-too", 1)
    eventually(lambda: {key, f"{key}-too"} <= set(pair.received.keys), what="the listener has heard both")
    eventually(lambda: pair.is_whole, what="two replicas of each bucket")


def nothing(pair: Pair) -> None:
    pass


def replicas(pair: Pair) -> MemberReplicas:
    return pair.two._core.sharing._replicas


def peer(pair: Pair) -> Peer:
    return next(iter(replicas(pair)._peers.values()))


def link(pair: Pair) -> object:
    return next(iter(pair.two._core.state.membership._links.values()))


def break_repl_link(pair: Pair) -> None:
    peer(pair)._sock.shutdown(socket.SHUT_RDWR)


def ask(pair: Pair) -> None:
    with replicas(pair)._lock:
        peer(pair).session.ask("data", [])
        peer(pair).look()


def connect(pair: Pair) -> None:
    socket.create_connection(("127.0.0.1", pair.two.port)).close()


# What fails, how that is brought about, and the thread that calls it.
FAULTS: dict[str, tuple[Callable[[Pair], object], str, Callable[[Pair], object], str]] = {
    "copies": (lambda pair: replicas(pair)._session, "take_reports", nothing, "replicas"),
    "replicas that wait": (replicas, "_wait", nothing, "replicas"),
    "a report": (lambda pair: pair.two._core.agent, "suspect", break_repl_link, "replicas"),
    "listeners": (
        lambda pair: pair.two._core.regions.find("data").callbacks,
        "notify_listeners",
        lambda pair: pair.first.put("told", 1),
        "pywan-listeners-data",
    ),
    "agent": (lambda pair: pair.two._core.agent, "_claims", nothing, "two-agent"),
    "a lease": (lambda pair: pair.two._core.agent, "_on_lease", nothing, "two-agent"),
    "requests": (lambda pair: pair.two._core.agent._session, "next_request_us", ask, "two-agent-asks"),
    "housekeeper": (lambda pair: pair.two._core.housekeeper, "_watch_clock", nothing, "two-housekeeping"),
    "port": (lambda pair: pair.two._core._server._acceptor, "_make_place", connect, "member two-accept"),
    "lane": (peer, "_suspect", break_repl_link, "replication link to one"),
    "questions": (lambda pair: peer(pair).session, "next_request", ask, "questions to one"),
    "heartbeats": (lambda pair: pair.two._core.state.membership, "_take_sites", nothing, ""),
    "exchange of locators": (lambda pair: pair.locator, "_expire", nothing, "locator locator-gossip"),
    "coordinator": (lambda pair: pair.locator._coordination._driver, "_work", nothing, ""),
    "claims": (
        lambda pair: pair.locator._coordination._claims,
        "_ask_peers",
        nothing,
        "locator locator-coordinators",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_the_work_of_a_thread_that_fails_goes_on(pair, monkeypatch, caplog, what):
    owner, function, bring_about, thread = FAULTS[what]
    before = restarts().get(thread, Restarts(0, "")).times
    fault = Fault(monkeypatch, owner(pair), function)
    bring_about(pair)
    assert fault.met.wait(LIMIT_S), f"nobody has called {function}"
    if thread:
        eventually(lambda: lines_about(caplog, thread), what="a line about the thread")
        (line,) = lines_about(caplog, thread)
        assert "ZeroDivisionError: a fault of this test" in line.getMessage() and not line.exc_info
        assert restarts()[thread].times == before + 1
        assert "ZeroDivisionError" in pair.two._core.status()["restarted_threads"][thread]
    calls_go_on(pair)


def test_a_member_with_a_thread_that_cannot_go_on_ends_and_says_why(pair, monkeypatch, caplog):
    monkeypatch.setattr(threads, "GIVE_UP_S", 0.2)

    def fail() -> None:
        raise ZeroDivisionError("a fault of this test")

    monkeypatch.setattr(replicas(pair), "_work", fail)
    eventually(lambda: pair.two.is_closed, what="the member has ended")
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.CRITICAL]
    assert line.startswith("member two ends: its thread replicas has failed for") and "ZeroDivisionError" in line
    pair.first.put("k", 1)
    assert pair.first.get("k") == 1
