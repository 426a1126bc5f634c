"""Children that fork made of a process with members: they are told so at once, and nothing of the parent's changes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import pywan
from pywan import forks
from pywan.client import DataConnection
from pywan.errors import PywanError
from pywan.member import process
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlClient
from support.sites import QUICK


class Child:
    """A forked child that does `action` and tells what it returned, or what was raised. It lives until `end`, unless
    `action` ends it.
    """

    def __init__(self, action: Callable[[], Any]) -> None:
        from_child, to_parent = os.pipe()
        self._until, until = os.pipe()[::-1]
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._until)
                try:
                    said = ("returned", action())
                except BaseException as error:
                    said = (type(error).__name__, str(error))
                os.write(to_parent, pickle.dumps(said))
                os.close(to_parent)
                os.read(until, 1)
                status = 0
            finally:
                os._exit(status)
        os.close(to_parent)
        os.close(until)
        self._from_child = from_child

    def says(self) -> tuple[str, Any]:
        """Returns what became of the action. A child that says nothing in time is killed."""
        said = b""
        while True:
            if not select.select([self._from_child], [], [], LIMIT_S)[0]:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError("the child hangs")
            part = os.read(self._from_child, 65536)
            if not part:
                break
            said += part
        os.close(self._from_child)
        return pickle.loads(said) if said else ("nothing", None)

    def end(self) -> int:
        os.close(self._until)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def child_says(action: Callable[[], Any]) -> tuple[str, Any]:
    child = Child(action)
    try:
        return child.says()
    finally:
        child.end()


def works(ny: Any, ln: Any, key: str) -> None:
    ny.data.put(key, b"after")
    eventually(lambda: ln.data.get(key) == b"after", what=f"{key} at the other site")


CALLS: dict[str, Callable[[Any], Any]] = {
    "put": lambda ny: ny.data.put("k", b"v"),
    "get": lambda ny: ny.data.get("k"),
    "[]": lambda ny: ny.data["k"],
    "in": lambda ny: "k" in ny.data,
    "len": lambda ny: len(ny.data),
    "iteration": lambda ny: list(ny.data),
    "scan": lambda ny: core_of(ny.data).scan(),
    "destroy": lambda ny: ny.data.destroy("k"),
    "local_destroy": lambda ny: ny.data.local_destroy("k"),
    "invalidate": lambda ny: ny.data.invalidate("k"),
    "put_columns": lambda ny: ny.data.put_columns([b"k"], [b"v"]),
    "put_all": lambda ny: ny.data.put_all({"k": b"v"}),
    "remove_all": lambda ny: ny.data.remove_all(["k"]),
    "alter": lambda ny: ny.data.alter(gateway_sender_ids=()),
    "add_listener": lambda ny: ny.data.add_listener(pywan.CacheListener()),
    "set_resolver": lambda ny: core_of(ny.data).set_resolver(None),
    "put_if_absent": lambda ny: ny.data.put_if_absent("k", b"v"),
    "clear": lambda ny: ny.data.clear(local=True),
    "wait_durable": lambda ny: ny.data.wait_durable(),
    "conflicts": lambda ny: ny.data.conflicts,
    "applied": lambda ny: ny.data.applied,
    "memory_bytes": lambda ny: ny.data.memory_bytes,
    "cache.region": lambda ny: ny.cache.region("data"),
    "cache.status": lambda ny: ny.cache.status(),
    "cache.create_region": lambda ny: ny.cache.create_region("more"),
    "cache.destroy_region": lambda ny: ny.cache.destroy_region("data"),
    "with cache": lambda ny: ny.cache.__enter__(),
    "sender.stop": lambda ny: ny.ln.stop(),
    "sender.start": lambda ny: ny.ln.start(),
    "sender.pause": lambda ny: ny.ln.pause(),
    "sender.destroy": lambda ny: ny.ln.destroy(),
    "sender.stats": lambda ny: ny.ln.stats,
    "sender.ledger": lambda ny: ny.ln.ledger(),
    "sender.lag": lambda ny: ny.ln.lag(),
    "sender.wait_until_flushed": lambda ny: ny.ln.wait_until_flushed(1.0),
    "sender.parked": lambda ny: ny.ln.parked(),
    "queue.stop": lambda ny: ny.queue.stop(),
    "queue.ledger": lambda ny: ny.queue.ledger(),
    "queue.attributes": lambda ny: ny.queue.attributes,
    "queue.alter": lambda ny: ny.queue.alter(batch_size=5),
    "queue.async_event_listener": lambda ny: ny.queue.async_event_listener,
    "cache.async_event_queue": lambda ny: ny.cache.async_event_queue("audit"),
    "receiver.stop": lambda ny: ny.ln_receiver.stop(),
    "receiver.stats": lambda ny: ny.ln_receiver.stats,
    "locator.status": lambda ny: ny.locator.status(),
    "locator.start": lambda ny: ny.locator.start(),
    "store.directories": lambda ny: ny.store.directories,
}


def test_every_call_in_a_child_says_that_the_object_is_its_parents(two_sites, tmp_path):
    ny, ln = two_sites
    # A lookup in the child would raise first.
    here = SimpleNamespace(
        cache=ny.cache, locator=ny.locator, data=ny.data, ln=ny.sender("ln"), ln_receiver=ln.receiver
    )
    here.queue = ny.cache.create_async_event_queue("audit", lambda events: True)
    here.store = ny.cache.create_disk_store("kept", directories=[(str(tmp_path), None)])
    ny.data.put("k", b"v")
    said = {}

    def try_all() -> dict[str, Any]:
        for name, call in CALLS.items():
            try:
                said[name] = ("returned", repr(call(here)))
            except Exception as error:
                said[name] = (type(error).__name__, str(error))
        return said

    what, outcomes = child_says(try_all)
    assert what == "returned"
    wrong = {
        name: outcome
        for name, outcome in outcomes.items()
        if outcome[0] != "IllegalStateError" or "forked" not in outcome[1]
    }
    assert not wrong
    works(ny, ln, "parent")
    assert ny.data.get("k") == b"v"


def test_a_child_that_closes_everything_and_collects_it_changes_nothing_for_its_parent(two_sites):
    ny, ln = two_sites
    works(ny, ln, "before")
    connection = DataConnection.open(str(ny.locator.address), region="data", run_id=bytes(16), task=1)
    connection.put_pairs([("row", b"1")])

    def close_all() -> None:
        ny.cache.__exit__(None, None, None)
        ny.cache.close()
        ny.cache.close()
        ln.cache.close()
        ny.locator.__exit__(None, None, None)
        ny.locator.stop()
        core_of(ny.data_region).close()
        connection.close()
        ny.__dict__.clear()
        ln.__dict__.clear()
        gc.collect()

    ny.data_region = ny.data
    assert child_says(close_all) == ("returned", None)
    works(ny, ln, "parent")
    assert connection.commit()["rows"] == 1
    connection.close()
    eventually(lambda: ln.data.get("row") == b"1", what="the rows of the connection")
    assert not ny.cache.is_closed and ny.locator.is_running
    assert [member["name"] for member in ny.locator.members()] == ["server_ny"]


def test_a_connection_is_refused_to_a_child(two_sites):
    ny, _ln = two_sites
    with DataConnection.open(str(ny.locator.address), region="data", run_id=bytes(16), task=1) as connection:
        what, text = child_says(lambda: connection.put_pairs([("row", b"child")]))
        assert what == "IllegalStateError" and "forked" in text
        assert child_says(connection.commit)[0] == "IllegalStateError"
        connection.put_pairs([("row", b"parent")])
        assert connection.commit()["rows"] == 1
    assert ny.data.get("row") == b"parent"


def _put_in_child(region: Any, told: Any) -> None:
    try:
        region.put("k", b"child")
    except PywanError as error:
        told.send((type(error).__name__, str(error)))


def test_a_child_of_multiprocessing_is_told_and_its_end_disturbs_nobody(two_sites):
    ny, ln = two_sites
    context = multiprocessing.get_context("fork")
    receives, told = context.Pipe(duplex=False)
    child = context.Process(target=_put_in_child, args=(ny.data, told))
    child.start()
    assert receives.poll(LIMIT_S), "the child hangs"
    assert receives.recv()[0] == "IllegalStateError"
    child.join(LIMIT_S)
    assert child.exitcode == 0
    works(ny, ln, "parent")
    assert "k" not in ny.data


def test_a_child_waits_for_no_lock_that_a_thread_of_its_parent_holds(two_sites):
    """The thread that has the lock is not there in the child."""
    ny, ln = two_sites
    inside, go_on = threading.Event(), threading.Event()

    class Slow(pywan.CacheListener):
        def after_create(self, event: Any) -> None:
            inside.set()
            assert go_on.wait(LIMIT_S)

    ny.data.add_listener(Slow())
    putter = threading.Thread(target=ny.data.put, args=("slow", b"v"))
    putter.start()
    try:
        assert inside.wait(LIMIT_S)
        for call in (
            lambda: ny.data.put("k", b"v"),
            lambda: ny.data.add_listener(Slow()),
            ny.cache.status,
            lambda: ny.sender("ln").stop(),
        ):
            assert child_says(call)[0] == "IllegalStateError"
    finally:
        go_on.set()
        putter.join(LIMIT_S)
    works(ny, ln, "parent")


def test_a_child_that_outlives_a_closed_member_keeps_neither_its_port_nor_its_store(tmp_path, no_thread_left):
    with pywan.Locator("l", distributed_system_id=1, port=0, timings=QUICK) as locator:
        first = pywan.Cache("first", locators=str(locator.address), dir=tmp_path)
        region = first.create_region("kept", type="REPLICATE_PERSISTENT")
        region.put("k", b"v")
        receiver_port = first.create_gateway_receiver(start_port=0, end_port=0).port
        port = first.port
        child = Child(lambda: "lives")
        try:
            assert child.says() == ("returned", "lives")
            first.close()
            with pywan.Cache("second", locators=str(locator.address), dir=tmp_path, port=port) as second:
                assert second.create_region("kept", type="REPLICATE_PERSISTENT").get("k") == b"v"
                assert (
                    second.create_gateway_receiver(start_port=receiver_port, end_port=receiver_port).port
                    == receiver_port
                )
        finally:
            assert child.end() == 0


def test_a_child_may_have_a_member_of_its_own(two_sites):
    ny, ln = two_sites
    locators = str(ny.locator.address)

    def own() -> bytes:
        with pywan.Cache("of_child", locators=locators) as cache:
            region = cache.create_region("own")
            region.put("k", b"own")
            return region.get("k")

    assert child_says(own) == ("returned", b"own")
    works(ny, ln, "parent")


def test_a_child_that_ends_as_a_program_does_disturbs_nobody(two_sites):
    """With atexit handlers, by leaving a `with` block."""
    _ny, _ln = two_sites
    program = """
import os, sys, pywan
from pywan.protocol.discovery import Timings
with pywan.Locator("l", distributed_system_id=5, port=0) as locator:
    with pywan.Cache("c", locators=str(locator.address)) as cache:
        region = cache.create_region("data")
        pid = os.fork()
        if pid == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        region.put("k", b"v")
        assert region.get("k") == b"v" and not cache.is_closed
        assert [m["name"] for m in locator.members()] == ["c"]
print("good")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "good\n", done.stderr


def test_a_signal_to_a_child_ends_the_child_and_not_the_member(tmp_path):
    """The `terminate` of multiprocessing sends it."""
    with pywan.Locator("l", distributed_system_id=1, port=0, timings=QUICK) as locator:
        ready, ended = threading.Event(), []
        told: dict[str, Any] = {}

        def note(found: dict[str, Any]) -> None:
            told.update(found)
            ready.set()

        def fork_and_terminate() -> None:
            """From a thread of the member's process, as a callback would."""
            assert ready.wait(LIMIT_S)
            child = Child(lambda: "lives")
            assert child.says() == ("returned", "lives")
            os.kill(child.pid, signal.SIGTERM)
            ended.append(child.end())
            with call_client(told) as client:
                ended.append(client.call("status member")["name"])
                client.call("stop member")

        threads = threading.Thread(target=fork_and_terminate)
        threads.start()
        process.run_server("s", {"locators": str(locator.address)}, directory=tmp_path, ready=note)
        threads.join(LIMIT_S)
        assert ended == [-signal.SIGTERM, "s"]


def call_client(found: dict[str, Any]) -> ControlClient:
    return ControlClient((found["host"], found["port"]))


@pytest.mark.parametrize("side", ["filter", "listener"])
def test_a_child_that_comes_back_out_of_a_callback_ends_there(two_sites, side):
    """It would go on as the parent's dispatcher or receiver, on the parent's connection."""
    ny, ln = two_sites
    statuses: list[int] = []

    def fork_and_return() -> None:
        pid = os.fork()
        if pid:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    class Forks(pywan.GatewayEventFilter):
        def before_transmit(self, event: Any) -> bool:
            if event.key == "fork":
                fork_and_return()
            return True

    class ForksThere(pywan.CacheListener):
        def after_create(self, event: Any) -> None:
            if event.key == "fork":
                fork_and_return()

    if side == "filter":
        ny.sender("ln").alter(gateway_event_filters=[Forks()])
    else:
        ln.data.add_listener(ForksThere())
    works(ny, ln, "fork")
    works(ny, ln, "parent")
    assert statuses == [forks.STRAYED]
