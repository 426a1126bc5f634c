"""Disk stores that are put back from a copy, or copied while they are in use: no new event is taken for one that the
other site knows.
"""

from __future__ import annotations

import shutil
import socket
import struct

import pytest

import pywan
from pywan import _core
from pywan.callbacks import CacheListener, GatewayEventFilter
from pywan.errors import QueueFullError
from pywan.protocol.gateway import SenderHello, Welcome, encode
from pywan.testing.doors import door_to
from pywan.testing.waiting import eventually
from pywan.transport import data
from support.persistent_member import Member, contents, receive
from support.records import BATCH, REGION, make_batch, make_record, split_frames
from support.sites import QUICK

KINDS = pytest.mark.parametrize("parallel", [False, True])


@pytest.fixture
def sites(network):
    return network.add("ny ln")


def put(member, label, count=50):
    for n in range(count):
        member.data[f"{label} {n}"] = label


def restore(member, copy):
    """The member starts on the folder as it was when it was copied."""
    member.site.cache.close()
    shutil.rmtree(member.folder)
    shutil.copytree(copy, member.folder)
    member.begin()


def stop_and_copy(member, to):
    member.site.cache.close()
    shutil.copytree(member.folder, to)
    member.begin()


def expected(*labels, count=50):
    return {f"{label} {n}": label for label in labels for n in range(count)}


@KINDS
def test_events_of_a_restored_store_are_not_taken_for_those_that_were_sent_after_the_copy(
    network, sites, tmp_path, parallel, caplog
):
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", parallel, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "before")
    network.settle()
    stop_and_copy(member, tmp_path / "copy")
    put(member, "lost by the restore")
    network.settle()
    old = member.sender._core.outgoing.numbering
    restore(member, tmp_path / "copy")
    put(member, "after")
    network.settle()
    assert contents(ln.data) == expected("before", "lost by the restore", "after")
    assert member.sender._core.outgoing.numbering != old
    assert member.sender.stats["identities_renewed"] == 1
    assert any("restored from a copy" in record.message for record in caplog.records)
    entry = member.sender.ledger()
    assert entry["balanced"] and entry["distributed"] == entry["queued"]


def test_the_new_identity_of_a_restored_store_is_kept_over_restarts(network, sites, tmp_path):
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", False, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "before")
    network.settle()
    stop_and_copy(member, tmp_path / "copy")
    put(member, "lost by the restore")
    network.settle()
    restore(member, tmp_path / "copy")
    put(member, "after")
    network.settle()
    renewed = member.sender._core.outgoing.numbering
    for n in range(3):
        member.restart()
        put(member, f"again {n}")
        network.settle()
    assert member.sender._core.outgoing.numbering == renewed and member.sender.stats["identities_renewed"] == 0
    assert contents(ln.data) == expected("before", "lost by the restore", "after", "again 0", "again 1", "again 2")


@KINDS
def test_restarts_keep_the_identity_whether_the_other_site_saw_each_or_not(network, sites, tmp_path, parallel):
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", parallel, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "first")
    network.settle()
    known = member.sender._core.outgoing.numbering
    for n in range(4):
        member.restart(manual_start=True)  # Opened, and closed before it connects.
        member.restart()
        put(member, f"restart {n}")
        network.settle()
    assert member.sender._core.outgoing.numbering == known
    assert ln.receiver.stats["duplicate_events_skipped"] == 0
    assert contents(ln.data) == expected("first", *(f"restart {n}" for n in range(4)))


def test_a_restored_store_is_recognised_by_a_receiver_that_it_reaches_only_after_another_restart(
    network, sites, tmp_path
):
    """The receiver is away when the store is restored, and hears of neither that mount nor the next."""
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", False, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "before")
    network.settle()
    stop_and_copy(member, tmp_path / "copy")
    put(member, "lost by the restore")
    network.settle()
    ln.receiver.stop()
    restore(member, tmp_path / "copy")
    put(member, "after")
    put(member, "more than was lost", count=200)  # So that the next mount begins beyond what the receiver knows.
    member.restart()
    ln.receiver.start()
    network.settle()
    assert contents(ln.data) == expected("before", "lost by the restore", "after") | expected(
        "more than was lost", count=200
    )


class PausesAfterABatch(GatewayEventFilter):
    """The queued events leave one batch at a time."""

    sender = None

    def before_transmit(self, event):
        if self.sender is not None:
            self.sender.pause()
        return True


def one_batch_more(member):
    before = member.sender.stats["batches_distributed"]
    member.sender.resume()
    eventually(lambda: member.sender.stats["batches_distributed"] > before and member.sender.is_paused)


def test_an_event_that_the_lost_store_had_parked_is_parked_again_by_the_restored_one(network, sites, tmp_path):
    """The lost one sent nothing that is not in the copy, and said of the event that it was settled."""
    ny, ln = sites
    pauses = PausesAfterABatch()
    member = Member(
        ny,
        tmp_path / "ny",
        False,
        "REPLICATE_PERSISTENT",
        gateway_event_filters=[pauses],
        dispatcher_threads=1,
        batch_size=10,
    )
    away = ny.region("away", senders=["ln"])  # The other site has no such region.
    receive(ln)
    put(member, "first", 1)
    network.settle()
    pauses.sender = member.sender
    member.sender.pause()
    for n in range(10):
        away[n] = "fails"
    put(member, "applied", 10)
    shutil.copytree(member.folder, tmp_path / "copy")
    one_batch_more(member)
    assert member.sender.parked_count == 10
    member.sender._core.queue.wait_removed()
    one_batch_more(member)
    assert (
        contents(ln.data) == expected("first", count=1) | expected("applied", count=10)
        and len(member.sender._core.queue) == 0
    )
    pauses.sender = None
    restore(member, tmp_path / "copy")
    network.settle()
    assert member.sender.parked_count == 10 and member.sender.stats["identities_renewed"] == 1
    ln.region("away", "REPLICATE", senders=())
    assert member.sender.replay_parked() == 10
    network.settle()
    assert contents(ln.cache.region("away")) == dict.fromkeys(range(10), "fails")


def conflate_behind_a_copy(member, pauses, network, copy):
    """Leaves the sender paused: the copy of its store holds an update of `k` between `a` and `b`, and in the store
    itself a later one has taken its place."""
    member.data["k"] = "first"
    network.settle()
    pauses.sender = member.sender
    member.sender.pause()
    member.data["a"] = "a"
    member.data["k"] = "in the copy"
    member.data["b"] = "b"
    shutil.copytree(member.folder, copy)
    member.data["k"] = "lost"
    eventually(lambda: member.sender.ledger()["conflated"] == 1)


def test_an_update_that_the_lost_store_had_conflated_is_applied_from_the_restored_one(network, sites, tmp_path):
    """The event that was to replace it was only in the lost copy, and had not been sent."""
    ny, ln = sites
    pauses = PausesAfterABatch()
    member = Member(
        ny,
        tmp_path / "ny",
        False,
        "REPLICATE_PERSISTENT",
        gateway_event_filters=[pauses],
        dispatcher_threads=1,
        batch_size=2,
        enable_batch_conflation=True,
    )
    receive(ln)
    conflate_behind_a_copy(member, pauses, network, tmp_path / "copy")
    one_batch_more(member)
    assert contents(ln.data) == {"k": "first", "a": "a", "b": "b"}
    pauses.sender = None
    restore(member, tmp_path / "copy")
    network.settle()
    assert contents(ln.data) == {"k": "in the copy", "a": "a", "b": "b"}


class StopsReceiver(CacheListener):
    """When a key arrives, in the middle of its batch."""

    def __init__(self, cache, key):
        self.cache, self.key = cache, key

    def after_create(self, event):
        if event.key == self.key:
            self.cache.gateway_receiver.stop()


def test_an_update_that_the_lost_store_had_conflated_is_applied_also_where_its_batch_ended_half_way(
    network, sites, tmp_path
):
    """The other site had what comes behind the update that was replaced, and what replaced it did not come to
    its turn.
    """
    ny, ln = sites
    pauses = PausesAfterABatch()
    member = Member(
        ny,
        tmp_path / "ny",
        False,
        "REPLICATE_PERSISTENT",
        gateway_event_filters=[pauses],
        dispatcher_threads=1,
        batch_size=3,
        enable_batch_conflation=True,
    )
    receive(ln)
    ln.data.add_listener(StopsReceiver(ln.cache, "b"))
    conflate_behind_a_copy(member, pauses, network, tmp_path / "copy")
    member.sender.resume()
    eventually(lambda: not ln.receiver.is_running and not member.sender.is_connected)
    assert contents(ln.data) == {"k": "first", "a": "a", "b": "b"}
    pauses.sender = None
    restore(member, tmp_path / "copy")
    ln.receiver.start()
    network.settle()
    assert contents(ln.data) == {"k": "in the copy", "a": "a", "b": "b"}


def test_a_hole_counts_as_passed_over_also_where_a_record_behind_it_is_refused():
    memory, region = _core.SourceMemory(1), _core.RegionCore("there", _core.Clock(), site=2)
    region.set_callback_path(lambda *change: None)
    session = _core.ReceiverSession(
        memory, _core.ReceiverCounts(), {"there": region}.get, lambda core, record, place: -1 if place[1] == 4 else 0
    )
    payload, count = make_batch((0, 1, 4, 0, [(n, make_record(b"key", b"value", stamp=5)) for n in (1, 3, 4)]))
    session.receive_data(_core.pack_frame(REGION, b"there", 1))
    with pytest.raises(QueueFullError):
        session.receive_data(_core.pack_frame(BATCH, payload, 0, count))
    assert memory.last() == [3]
    assert memory.forget_passed_over() == [0] and memory.last() == [0]


@pytest.mark.parametrize("unsure", [0, 1])
def test_a_receiver_remembers_what_failed_until_the_senders_disk_knows(unsure):
    memory, region = _core.SourceMemory(1), _core.RegionCore("there", _core.Clock(), site=2)

    def send(sequence, name, acknowledged, unsure=0):
        """Failures, as a new connection hears of them."""
        session = _core.ReceiverSession(memory, _core.ReceiverCounts(), {"there": region}.get, lambda *args: None)
        record = make_record(b"key", b"value", stamp=5)
        payload, count = make_batch((0, sequence, sequence, acknowledged, [record]), unsure=unsure)
        session.receive_data(_core.pack_frame(REGION, name.encode(), 1))
        session.receive_data(_core.pack_frame(BATCH, payload, 0, count))
        [ack] = split_frames(session.data_to_send())
        return [failed for _, _, failed in struct.iter_unpack("<IIQ", ack.payload[16:])]

    assert send(1, "absent", 0) == [1]
    assert send(2, "there", 1, unsure) == []
    assert send(1, "there", 0) == ([1] if unsure else [])
    assert memory.known(7) == [(0, 2, 0, 0 if unsure else 1)]
    assert send(3, "there", 2) == [] and memory.failures == 0
    assert memory.known(7) == [(0, 3, 0, 2)]


def test_a_member_that_comes_back_does_not_wait_long_for_a_connection_that_a_power_failure_left_behind(
    network, sites, tmp_path
):
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", False, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "before")
    network.settle()
    sender = member.sender
    hello = SenderHello(
        site=1,
        remote_site=2,
        member="server_ny",
        sender="ln",
        dispatcher=0,
        numbering=sender._core.outgoing.numbering,
        mount=sender._core.queue.mount,
        partitions=sender._core.queue.partitions,
    )
    ny.cache.close()
    with socket.create_connection(("127.0.0.1", ln.receiver.port)) as left_behind:
        left_behind.sendall(encode(hello, _core.FRAME_HELLO))
        data.receive_message(left_behind, Welcome)
        member.begin()
        put(member, "after")
        eventually(lambda: "another opening of its disk store" in member.sender.lag()["cause"])
        eventually(lambda: len(member.sender._core.queue) == 0)
        assert (
            contents(ln.data) == expected("before", "after")
            and member.sender._core.outgoing.numbering == hello.numbering
        )
        while left_behind.recv(4096):
            pass


def test_two_members_on_copies_of_one_store_lose_nothing(network, sites, tmp_path):
    """Both run at once. Only one is connected, until the other has found that it needs another identity."""
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", False, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "both")
    network.settle()
    stop_and_copy(member, tmp_path / "clone")
    eventually(lambda: member.sender.is_connected)
    # A site of its own: two members of one site cannot both have a persistent region.
    with (
        door_to(ln.locator, timings=QUICK) as door,
        pywan.Locator("locator_clone", distributed_system_id=1, port=0, remote_locators=door, timings=QUICK) as locator,
        pywan.Cache("clone", locators=str(locator.address), dir=tmp_path / "clone") as clone,
    ):
        sender = clone.create_gateway_sender(
            "ln",
            remote_distributed_system_id=2,
            enable_persistence=True,
            retry_interval_ms=30,
            batch_time_interval=10,
            dispatcher_threads=2,
        )
        data = clone.create_region("data", "PARTITION_PERSISTENT", gateway_sender_ids=["ln"])
        for n in range(50):
            data[f"clone {n}"] = "clone"
        put(member, "first")
        eventually(lambda: len(member.sender._core.queue) == 0)
        assert sender.lag()["events"] == 50 and not sender.is_connected  # Refused while the first is there.
        member.sender.stop()
        eventually(lambda: len(sender._core.queue) == 0)
        member.sender.start()
        put(member, "second")
        eventually(lambda: len(member.sender._core.queue) == 0)
        assert contents(ln.data) == expected("both", "clone", "first", "second")
        assert sender._core.outgoing.numbering != member.sender._core.outgoing.numbering
