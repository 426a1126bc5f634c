"""Every operation on a synchronous persistent region: what is acknowledged is there when the power goes at that very
moment.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable

import numpy
import pytest

from pywan import _core
from pywan.callbacks import CacheListener, GatewayConflictResolver
from pywan.config.attributes import RegionAttributes
from pywan.errors import RegionNotFoundError
from pywan.region.member_region import MemberRegion
from pywan.region.region import Region, core_of
from simulator.disk import Disk
from support.records import CREATE, DESTROY, FRAME_ACK, UPDATE, read_ack, split_frames

KEYS = ["text", "none", "invalid", "gone", "old", 7, b"bytes", "new", "a", "b"]


class Member:
    """A persistent region on a simulated disk, with its committer; the power can go."""

    def __init__(self) -> None:
        self.disk = Disk(random.Random(1))
        self.clock = _core.Clock()
        self.open()

    def open(self) -> None:
        self.core = MemberRegion(
            "acknowledged",
            self.clock,
            site=1,
            member=7,
            stores=True,
            forwards=True,
            buckets=0,
            attributes=RegionAttributes.make("acknowledged", type="REPLICATE_PERSISTENT"),
        )
        self.region = self.core.face
        self.core.make_persistent(
            "/region",
            log_id=6,
            synchronous=True,
            flush_ms=1,
            environment=self.disk.environment,
            start_writer=self.start_writer,
        )

    def start_writer(self, name: str, write: Callable[[], None]) -> None:
        self.writer = threading.Thread(target=write, name=name, daemon=True)
        self.writer.start()

    def close(self) -> None:
        self.core.close()
        self.writer.join()

    def fill(self) -> None:
        for key, value in (
            ("text", "v"),
            ("none", None),
            ("invalid", "v"),
            ("gone", "v"),
            ("old", {"a": [1]}),
            (7, 7),
            (b"bytes", b"v" * 5000),
        ):
            self.region.put(key, value)
        self.region.invalidate("invalid")
        self.region.destroy("gone")

    def contents(self) -> dict:
        # An invalidated key has none, not None.
        return {key: (self.core.lookup(key), self.region.get(key, "no value")) for key in KEYS}

    def lose_power(self) -> None:
        self.close()
        self.disk.crash()
        self.disk.raise_error()
        self.open()


@pytest.fixture
def member():
    made = Member()
    made.fill()
    yield made
    made.close()


@contextlib.contextmanager
def until_this_moment(disk: Disk):
    """The block's changes may be on the disk at its end, and nothing later: no other thread runs in between."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        yield
        disk.is_off = True
    finally:
        sys.setswitchinterval(interval)


class Listener(CacheListener):
    pass


class TakesTheLonger(GatewayConflictResolver):
    def on_event(self, event, helper):
        helper.change_event_value("resolved")


def listened(operate):
    def with_a_listener(region):
        region.add_listener(Listener())
        operate(region)

    return with_a_listener


def receive(region: Region, *changes: tuple) -> None:
    """(operation, key, value) as they come from another site, up to their acknowledgement."""
    queue = _core.EventQueue("to us", remote_site=1)
    queue.running = True
    clock = _core.Clock()
    clock.see(clock.take() + (60_000 << 16))  # Later than all that is here.
    there = _core.RegionCore("acknowledged", clock, site=9)
    there.attach([queue])
    for operation, key, value in changes:
        there.change(operation, key, value, version=(clock.take(), 9), origin_=(9, b"", (1, 1, 1)))
    dispatcher = _core.DispatcherSession(queue, 0, _core.EventQueue("parked", partitions=8))
    dispatcher.configure(100, -1)
    dispatcher.connected(1000, 1 << 20, 1)
    receiver = _core.ReceiverSession(
        _core.SourceMemory(1),
        _core.ReceiverCounts(),
        lambda name: core_of(region),
        lambda core, record, place: core.callbacks.apply_record(record, place),
        credit_bytes=1 << 20,
    )
    receiver.receive_data(b"".join(iter(lambda: dispatcher.data_to_send(1), b"")))
    (acknowledgement,) = split_frames(receiver.data_to_send())
    assert acknowledgement.type == FRAME_ACK and read_ack(acknowledgement.payload)[2] == []
    assert region.applied == len(changes)


def resolve(region: Region) -> None:
    core_of(region).set_resolver(TakesTheLonger())
    receive(region, (UPDATE, "text", "theirs"))
    assert region["text"] == "resolved"


def stage_rows(region: Region) -> None:
    """A client's rows, up to the commit that is answered."""
    sender, stage = _core.RowSender(), _core.RowStage(None)
    sender.put_columns(["a", "b", "text"], ["1", "2", "3"])
    sender.commit()
    assert not stage.receive_data(sender.data_to_send())
    assert stage.apply(core_of(region))


def take_out_and_bring_back(region: Region) -> None:
    stamp, site = core_of(region).lookup("text")[1:3]
    region.local_destroy("text")
    assert (
        core_of(region).change(CREATE, "text", "v", version=(stamp, site), origin_=(site, b"", (1, 1, 1))) == "created"
    )
    region.wait_durable()


def repeat_what_was_invalidated(region: Region) -> None:
    stamp, site = core_of(region).lookup("invalid")[1:3]
    assert (
        core_of(region).change(UPDATE, "invalid", "v", version=(stamp, site), origin_=(site, b"", (1, 1, 1))) == "same"
    )
    assert region["invalid"] is None


OPERATIONS = {
    "put of a new key": lambda region: region.put("new", "v"),
    "put over a value": lambda region: region.put("text", "other"),
    "put of nothing": lambda region: region.put("text", None),
    "put with a callback argument": lambda region: region.put("text", "other", {"why": 1}),
    "put over a destroyed key": lambda region: region.put("gone", "v"),
    "put over an invalidated key": lambda region: region.put("invalid", "again"),
    "assignment": lambda region: region.__setitem__("new", [1, 2]),
    "put_all": lambda region: region.put_all({"new": 1, "text": 2, "gone": 3}),
    "update": lambda region: region.update({"new": 1}, a=2),
    "setdefault of a new key": lambda region: region.setdefault("new", "v"),
    "setdefault of one that is there": lambda region: region.setdefault("text", "w"),
    "destroy": lambda region: region.destroy("text"),
    "destroy of an invalidated key": lambda region: region.destroy("invalid"),
    "deletion": lambda region: region.__delitem__(7),
    "remove_all": lambda region: region.remove_all(["text", "absent", b"bytes"]),
    "put_columns": lambda region: region.put_columns(["a", "b", "text"], ["1", "2", "3"]),
    "put_columns that destroy": lambda region: region.put_columns(
        ["a", "text"], ["1", None], operations=["create", "destroy"]
    ),
    "put_columns with timestamps": lambda region: region.put_columns(
        ["a", "text"], ["1", "2"], timestamps=numpy.array([10, 20])
    ),
    "local_destroy": lambda region: region.local_destroy("text"),
    "local_destroy of an invalidated key": lambda region: region.local_destroy("invalid"),
    "local_destroy, and the same event again": take_out_and_bring_back,
    "local_destroy, and a put": lambda region: (region.local_destroy("text"), region.put("text", "again")),
    "invalidate": lambda region: region.invalidate("text"),
    "invalidate of a large value": lambda region: region.invalidate(b"bytes"),
    "invalidate of nothing as a value": lambda region: region.invalidate("none"),
    "invalidate of an invalidated key": lambda region: region.invalidate("invalid"),
    "invalidate, and a put": lambda region: (region.invalidate("text"), region.put("text", "again")),
    "invalidate, and its event again": repeat_what_was_invalidated,
    "clear": lambda region: region.clear(),
    "clear, and a put": lambda region: (region.clear(), region.put("text", "again")),
    "put_if_absent": lambda region: (region.put_if_absent("text", "other"), region.put_if_absent("new", "v")),
    "setdefault": lambda region: (
        region.setdefault("text", "other"),
        region.setdefault("new", "v"),
        region.setdefault("invalid", "v"),
    ),
    "replace": lambda region: (region.replace("text", "other"), region.replace("new", "v")),
    "replace of an expected value": lambda region: region.replace("text", region["text"], "other"),
    "remove": lambda region: (region.remove("text", region["text"]), region.remove("none", 1)),
    "pop": lambda region: (region.pop("text"), region.pop("new", None)),
    "popitem": lambda region: region.popitem(),
    "change_if, with a listener": listened(lambda region: region.put_if_absent("new", "v")),
    "put, with a listener": listened(lambda region: region.put("new", "v")),
    "destroy, with a listener": listened(lambda region: region.destroy("text")),
    "put_columns, with a listener": listened(
        lambda region: region.put_columns(["a", "text"], ["1", None], operations=["create", "destroy"])
    ),
    "changes of another site": lambda region: receive(
        region, (CREATE, "new", "theirs"), (UPDATE, "text", "theirs"), (DESTROY, "old", None), (DESTROY, "a", None)
    ),
    "changes of another site, with a listener": listened(
        lambda region: receive(region, (CREATE, "new", "theirs"), (DESTROY, "old", None))
    ),
    "a change that a resolver decided": resolve,
    "rows of a client": stage_rows,
    "rows of a client, with a listener": listened(stage_rows),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_acknowledged_is_there_when_the_power_goes(member, name):
    with until_this_moment(member.disk):
        OPERATIONS[name](member.region)
    acknowledged = member.contents()
    member.lose_power()
    assert member.contents() == acknowledged


def test_the_table_has_every_operation_that_changes_a_region():
    reads = {"get", "get_all", "keys", "values", "items"}
    of_itself = {"alter", "add_listener", "wait_durable"}
    tested = {word.strip(",") for name in OPERATIONS for word in name.split()}
    for name in dir(Region):
        if not name.startswith("_") and callable(getattr(Region, name)) and name not in reads | of_itself:
            assert name in tested, f"{name} is not in the table of operations"


@pytest.mark.parametrize("name", ["put over a value", "destroy", "put_columns", "local_destroy", "invalidate", "clear"])
def test_a_region_that_was_closed_says_so_at_once(member, name):
    """Nobody writes its log any more."""
    before = member.contents()
    member.close()
    with pytest.raises(RegionNotFoundError):
        OPERATIONS[name](member.region)
    member.lose_power()
    assert member.contents() == before


def test_a_tombstone_that_expired_brings_nothing_back(member):
    """At worst it is there again and lives once more."""
    with until_this_moment(member.disk):
        assert member.core.expire_tombstones(1 << 60) == (1, 0)
    member.lose_power()
    assert "gone" not in member.region and member.region.get("gone") is None


def test_it_is_there_after_the_log_was_shortened_too(member):
    """The same operations on one region over several lives; the segments that they were written to are gone by the end
    of each.
    """
    source = random.Random(5)
    for life in range(4):
        for name in source.sample([*OPERATIONS], 12):
            if "listener" in name or "resolver" in name or "another site" in name or "event again" in name:
                continue
            with contextlib.suppress(KeyError):
                OPERATIONS[name](member.region)
        written_to = {file for file in member.disk.files if file.endswith(".seg")}
        keys, n = [f"other {n}" for n in range(100)], 0
        while written_to & member.disk.files:
            n += 1
            assert n < 100, "600 MB, and the old segments are there still"
            member.region.put_columns(keys, [b"%02d" % n * 30_000] * len(keys))
        acknowledged = member.contents()
        member.disk.is_off = True
        member.lose_power()
        assert member.contents() == acknowledged, f"life {life}"
