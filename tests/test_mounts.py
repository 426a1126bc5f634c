"""Disk stores that are put back from a copy, or copied while they are in use: no new event is taken for one that the other site knows."""
from __future__ import annotations

import shutil

import pytest
from test_persistent_senders import Member, contents, receive

import pywan
from pywan.testing.waiting import eventually

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
def test_events_of_a_restored_store_are_not_taken_for_those_that_were_sent_after_the_copy(network, sites, tmp_path, parallel, caplog):
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", parallel, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "before")
    network.settle()
    stop_and_copy(member, tmp_path / "copy")
    put(member, "lost by the restore")
    network.settle()
    old = member.sender.incarnation
    restore(member, tmp_path / "copy")
    put(member, "after")
    network.settle()
    assert contents(ln.data) == expected("before", "lost by the restore", "after")
    assert member.sender.incarnation != old
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
    renewed = member.sender.incarnation
    for n in range(3):
        member.restart()
        put(member, f"again {n}")
        network.settle()
    assert member.sender.incarnation == renewed and member.sender.stats["identities_renewed"] == 0
    assert contents(ln.data) == expected("before", "lost by the restore", "after", "again 0", "again 1", "again 2")


@KINDS
def test_restarts_keep_the_identity_whether_the_other_site_saw_each_or_not(network, sites, tmp_path, parallel):
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", parallel, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "first")
    network.settle()
    known = member.sender.incarnation
    for n in range(4):
        member.restart(manual_start=True)       # Opened, and closed before it connects.
        member.restart()
        put(member, f"restart {n}")
        network.settle()
    assert member.sender.incarnation == known
    assert ln.receiver.stats["duplicate_events_skipped"] == 0
    assert contents(ln.data) == expected("first", *(f"restart {n}" for n in range(4)))


def test_a_restored_store_is_recognised_by_a_receiver_that_it_reaches_only_after_another_restart(network, sites, tmp_path):
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
    put(member, "more than was lost", count=200)    # So that the next mount begins beyond what the receiver knows.
    member.restart()
    ln.receiver.start()
    network.settle()
    assert contents(ln.data) == expected("before", "lost by the restore", "after") | expected("more than was lost", count=200)


def test_two_members_on_copies_of_one_store_lose_nothing(network, sites, tmp_path):
    """Both run at once. Only one is connected, until the other has found that it needs another identity."""
    ny, ln = sites
    member = Member(ny, tmp_path / "ny", False, "PARTITION_PERSISTENT")
    receive(ln)
    put(member, "both")
    network.settle()
    stop_and_copy(member, tmp_path / "clone")
    eventually(lambda: member.sender.is_connected, 10)
    with pywan.Cache("clone", locators=str(ny.locator.address), dir=tmp_path / "clone") as clone:
        sender = clone.create_gateway_sender("ln", remote_distributed_system_id=2, enable_persistence=True, retry_interval_ms=30, batch_time_interval=10,
                                             dispatcher_threads=2)
        data = clone.create_region("data", "PARTITION_PERSISTENT", gateway_sender_ids=["ln"])
        for n in range(50):
            data[f"clone {n}"] = "clone"
        put(member, "first")
        eventually(lambda: len(member.sender.queue) == 0, 10)
        assert sender.lag()["events"] == 50 and not sender.is_connected     # Refused while the first is there.
        member.sender.stop()
        eventually(lambda: len(sender.queue) == 0, 10)
        member.sender.start()
        put(member, "second")
        eventually(lambda: len(member.sender.queue) == 0, 10)
        assert contents(ln.data) == expected("both", "clone", "first", "second")
        assert sender.incarnation != member.sender.incarnation
