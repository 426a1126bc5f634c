"""Persistent senders over restarts of their member, through the public names: what was queued arrives, in whatever
order things are made again.
"""

from __future__ import annotations

import threading

import pytest

from pywan.errors import GatewaySenderError, QueueFullError
from pywan.testing.waiting import eventually
from support.persistent_member import Member, contents, receive

KINDS = pytest.mark.parametrize(
    "parallel, type",
    [(False, "REPLICATE"), (True, "PARTITION"), (False, "REPLICATE_PERSISTENT"), (True, "PARTITION_PERSISTENT")],
)


@pytest.fixture
def sites(network):
    return network.add("ny ln")


@KINDS
@pytest.mark.parametrize("region_first", [False, True])
def test_what_was_queued_arrives_after_a_restart(network, sites, tmp_path, parallel, type, region_first):
    """C-086, C-088, C-091."""
    ny, ln = sites
    member = Member(ny, tmp_path, parallel, type)
    for n in range(1000):
        member.data[n] = f"v{n}"
    assert len(member.sender._core.queue) == 1000
    member.restart(region_first=region_first)
    assert len(member.sender._core.queue) == 1000
    assert len(member.data) == (1000 if "PERSISTENT" in type else 0)
    receive(ln)
    network.settle()
    assert contents(ln.data) == {n: f"v{n}" for n in range(1000)}
    assert ln.receiver.stats["duplicate_batches_received"] == 0


@KINDS
def test_changes_go_on_while_the_recovered_queue_drains(network, sites, tmp_path, parallel, type):
    """C-089."""
    ny, ln = sites
    member = Member(ny, tmp_path, parallel, type)
    for n in range(1000):
        member.data[n] = "before"
    member.restart()

    def change():
        for n in range(500, 1500):
            member.data[n] = "after"

    writer = threading.Thread(target=change)
    writer.start()
    receive(ln)
    writer.join()
    network.settle()
    assert contents(ln.data) == {n: "before" if n < 500 else "after" for n in range(1500)}


@KINDS
def test_a_start_with_clean_queues_sends_nothing_of_before(network, sites, tmp_path, parallel, type):
    """C-085. Nor does the disk bring it back at the next restart."""
    ny, ln = sites
    member = Member(ny, tmp_path, parallel, type)
    for n in range(100):
        member.data[n] = n
    with pytest.raises(GatewaySenderError, match="stop it first"):
        member.sender.start(clean_queues=True)
    member.restart(manual_start=True)
    assert len(member.sender._core.queue) == 100
    member.sender.start(clean_queues=True)
    assert member.sender.queue_size == 0
    assert member.sender.ledger()["dropped_from_queue"]["cleared"] == 100
    member.restart()
    assert len(member.sender._core.queue) == 0
    receive(ln)
    for n in range(200, 250):
        member.data[n] = n
    network.settle()
    assert contents(ln.data) == {n: n for n in range(200, 250)}


@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
def test_a_stop_and_a_start_change_nothing_and_what_was_on_its_way_may_be_a_duplicate(
    network, sites, tmp_path, parallel
):
    """C-092."""
    ny, ln = sites
    member = Member(
        ny, tmp_path, parallel, "PARTITION" if parallel else "REPLICATE", batch_size=50, dispatcher_threads=2
    )
    receive(ln, through_proxy=True)
    eventually(lambda: member.sender.is_connected)
    ln.proxy.hang()
    for n in range(1000):
        member.data[n] = n
    eventually(lambda: member.sender.stats["events_in_flight_batches"] >= 2)
    for _ in range(2):
        member.sender.stop()
        assert len(member.sender._core.queue) == 1000
        member.sender.start()
    member.restart()
    assert len(member.sender._core.queue) == 1000
    ln.proxy.cut()
    ln.proxy.restore()
    network.settle()
    assert contents(ln.data) == {n: n for n in range(1000)}
    assert member.sender._core.queue.counts()["possible_duplicates"] >= 100


def test_sizes_and_memory_hold_after_recovery_with_overflow_and_after_draining(network, sites, tmp_path):
    """C-095."""
    ny, ln = sites
    member = Member(ny, tmp_path, False, "REPLICATE", maximum_queue_memory=4)
    value = "v" * 10_000
    for n in range(2000):
        member.data[n] = value
    before = member.sender._core.queue.counts()
    member.restart()
    after = member.sender._core.queue.counts()
    assert (after["events"], after["bytes"]) == (before["events"], before["bytes"]) == (2000, before["bytes"])
    assert after["memory_bytes"] <= 6 << 20, after
    receive(ln)
    network.settle()
    drained = member.sender._core.queue.counts()
    assert (drained["events"], drained["bytes"], drained["overflow_bytes"]) == (0, 0, 0)
    assert len(ln.data) == 2000


@KINDS
def test_a_conflating_queue_keeps_each_keys_last_update_over_restarts(network, sites, tmp_path, parallel, type):
    """C-097."""
    ny, ln = sites
    member = Member(ny, tmp_path, parallel, type, enable_batch_conflation=True)
    for round_ in range(5):
        for n in range(100):
            member.data[n] = (round_, n)
        member.restart()
        # Creates stay, and of the updates one each.
        assert len(member.sender._core.queue) <= (200 if "PERSISTENT" in type else 100 * (round_ + 1))
    receive(ln)
    network.settle()
    assert contents(ln.data) == {n: (4, n) for n in range(100)}


def test_a_remote_site_that_is_shut_down_in_the_middle_and_comes_back_has_everything(network, sites, tmp_path):
    """C-098."""
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", True, "PARTITION_PERSISTENT")

    def begin():
        ln.start_member(dir=tmp_path / "ln")
        ln.region(type="REPLICATE_PERSISTENT")
        ln.receive()

    ln.cache.close()
    begin()
    done = threading.Event()

    def change():
        n = 0
        while not done.is_set() or n < 3000:
            member.data[n] = n
            n += 1
        counts.append(n)

    counts: list[int] = []
    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(3):
            eventually(lambda: len(ln.data) > 100)
            ln.cache.close()
            begin()
    finally:
        done.set()
        writer.join()
    network.settle()
    assert contents(ln.data) == {n: n for n in range(counts[0])}


def test_a_member_that_ends_with_a_full_store_says_how_many_events_are_not_on_the_disk(network, tmp_path, caplog):
    ny, ln = network.add("ny ln")
    ny.cache.create_disk_store("small", directories=((str(tmp_path / "store"), 2),))
    sender = ny.send_to(
        ln, enable_persistence=True, disk_store_name="small", disk_synchronous=False, maximum_queue_memory=4
    )
    data = ny.region(type="REPLICATE")
    count = 0
    with pytest.raises(QueueFullError):
        while True:
            data.put(count, b"v" * 3000)
            count += 1
    unwritten = sender._core.queue.log_state()["pending"]
    assert 0 < unwritten < count
    ny.cache.close()
    assert f"the newest events, {unwritten} of them, could not be written: the logs of the disk store" in caplog.text
