"""Rows that clients send in bulk: applied as a whole at commit, once for each task, however often it is tried."""

import os
import select
import signal
import socket
import threading
import time

import pyarrow
import pytest

import pywan
from pywan import CacheListener, GatewayEventFilter, _core
from pywan.client import DataConnection
from pywan.errors import (
    BatchError,
    ConnectivityError,
    EventTooLargeError,
    IllegalStateError,
    NoLocatorError,
    ProtocolError,
    PywanError,
    RegionNotFoundError,
)
from pywan.member import staging
from pywan.testing.fault_proxy import TO_CLIENT, TO_TARGET, FaultProxy
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from pywan.transport import data
from support.receivers import Slow
from support.sites import at_once
from support.tasks import RUN, send, task


@pytest.mark.parametrize("slow", [False, True], ids=["compiled", "with-a-listener"])
def test_rows_are_applied_at_commit_and_travel(two_sites, network, slow):
    ny, ln = two_sites
    if slow:
        history = ny.keep_history()
    with task(ny, 1) as connection:
        connection.put_pairs((n, n * 2) for n in range(1000))
        connection.put_columns(pyarrow.array(["a", "b"]), pyarrow.array([b"1", b"2"]))
        connection.put_columns(pyarrow.array(["a", "absent"]), None, pyarrow.array(["destroy", "destroy"]))
        connection.put_rows(pyarrow.array(["r"]), ["x", "y"], [pyarrow.array([1]), pyarrow.array(["one"])])
        assert len(ny.data) == 0
        done = connection.commit()
    assert (done["rows"], done["applied"], done["missing"], done["duplicate"]) == (1005, 1004, 1, False)
    network.settle()
    assert (
        len(ny.data) == len(ln.data) == 1002
        and ln.data[7] == 14
        and ln.data["r"] == {"x": 1, "y": "one"}
        and "a" not in ln.data
    )
    network.assert_equal()
    if slow:
        assert len(history.events) == 1004


def test_a_task_that_is_tried_again_is_applied_once(two_sites, network):
    ny, ln = two_sites
    rows = [(n, n) for n in range(100)]
    assert send(ny, 1, rows)["applied"] == 100
    ny.data[5] = "changed since"
    again = send(ny, 1, list(reversed(rows)))
    assert again["duplicate"] and again["applied"] == 0
    assert send(ny, 2, [("other task", 1)])["applied"] == 1
    assert send(ny, 1, [("other run", 1)], run=b"f" * 16)["applied"] == 1
    network.settle()
    assert ln.data[5] == "changed since" and len(ln.data) == 102
    assert ny.sender(ln).ledger()["queued"] == 103


def test_attempts_at_once_are_applied_once(two_sites, network):
    """Speculative execution: the same task runs in several places."""
    ny, ln = two_sites
    done = []
    at_once(*[lambda: done.append(send(ny, 1, [(n, n) for n in range(2000)]))] * 5)
    assert sorted(d["applied"] for d in done) == [0, 0, 0, 0, 2000] and all(d["rows"] == 2000 for d in done)
    network.settle()
    assert len(ln.data) == 2000 and ny.sender(ln).ledger()["queued"] == 2000


def test_rows_without_commit_are_dropped(two_sites, network):
    ny, ln = two_sites
    with task(ny, 1) as connection:
        connection.put_pairs((n, n) for n in range(50_000))
    assert send(ny, 1, [("k", 1)])["applied"] == 1
    network.settle()
    assert dict(ln.data) == dict(ny.data) == {"k": 1}


@pytest.mark.parametrize(("direction", "after"), [(TO_TARGET, 10_000), (TO_TARGET, 100), (TO_CLIENT, 0)])
def test_a_connection_that_breaks_is_an_error_and_the_next_attempt_completes(two_sites, network, direction, after):
    """In the middle of the rows, in the opening, or after everything was applied and before the client heard of it."""
    ny, ln = two_sites
    rows = [(n, b"v" * 100) for n in range(1000)]
    with FaultProxy(("127.0.0.1", ny.cache.port)) as proxy:
        locator_says = {
            "servers": [{"name": "server_ny", "member_id": 1, "host": proxy.address.host, "port": proxy.address.port}]
        }
        from pywan import client

        original = client.call_once
        client.call_once = lambda *args, **more: locator_says
        try:
            with pytest.raises((PywanError, OSError)), task(ny, 1, timeout=5.0) as connection:
                connection.put_pairs(rows)
                proxy.cut_after_bytes(direction, after)
                connection.put_pairs([])
                connection.commit()
            done = send(ny, 1, rows)
        finally:
            client.call_once = original
    assert done["rows"] == 1000
    network.settle()
    assert len(ny.data) == len(ln.data) == 1000
    assert ny.sender(ln).ledger()["queued"] == 1000


def test_a_client_finds_the_member_that_has_the_region(caplog):
    """By the locator's answer, and by asking if the locator cannot know: a LOCAL region is told to nobody."""
    with (
        pywan.Locator("locator", distributed_system_id=1, port=0) as locator,
        pywan.Cache("has", locators=str(locator.address)) as has,
        pywan.Cache("lacks", locators=str(locator.address)),
    ):
        has.create_region("told", type="PARTITION")
        has.create_region("own", type="LOCAL")
        for region in ("told", "own"):
            for number in range(10):
                run = f"{region:16}".encode()
                with DataConnection.open(
                    str(locator.address), region=region, run_id=run, task=number, timeout=LIMIT_S
                ) as connection:
                    connection.put_pairs([(number, number)])
                    assert connection.commit()["applied"] == 1
            assert len(has.region(region)) == 10
            asked = [each for each in caplog.records if "refused: region" in each.getMessage()]
            assert (region == "own") or not asked, "the locator knows who has the region that is told"
        with pytest.raises(RegionNotFoundError, match="'absent' is not on member has, lacks, and there are no others"):
            DataConnection.open(str(locator.address), region="absent", run_id=RUN, task=1, timeout=LIMIT_S)


def test_a_shared_region_refuses_rows_before_one_is_sent():
    with (
        pywan.Locator("locator", distributed_system_id=1, port=0) as locator,
        pywan.Cache("a", locators=str(locator.address)) as a,
        pywan.Cache("b", locators=str(locator.address)) as b,
    ):
        for member in (a, b):
            member.create_region("shared")
        eventually(lambda: a.region("shared").put("k", 1) is None)
        with pytest.raises(IllegalStateError, match=r"is on several members.*nothing was sent"):
            DataConnection.open(str(locator.address), region="shared", run_id=RUN, task=1, timeout=LIMIT_S)


def test_rows_of_which_none_is_applied_are_not_kept(two_sites, network, tmp_path):
    """They were refused, their region became one of several members, or the client went away."""
    ny, _ = two_sites

    def used():
        return ny.cache._core.stages._budget.used

    rows = [(n, b"v" * 1000) for n in range(3000)]
    with task(ny, 1) as connection:
        connection.put_pairs(rows)
        connection._sender.flush()
        eventually(lambda: used() > 2_000_000)
    eventually(lambda: used() == 0, what="that rows without a commit are given back")

    with task(ny, 2) as connection:
        connection.put_pairs(rows)
        ny.cache.destroy_region("data")
        with pytest.raises(PywanError, match="none of the task's 3000 rows is applied, and none is kept"):
            connection.commit()
    eventually(lambda: used() == 0, what="that rows of a region that is gone are given back")

    ny.region()
    region_in_a_small_store(ny, tmp_path, slow=False)
    with pytest.raises(EventTooLargeError, match=r"none of the task's 1 rows is applied"):
        send(ny, 3, [("too large", bytes(20 << 20))])
    eventually(lambda: used() == 0, what="that rows of which the first is refused are given back")
    assert send(ny, 3, [("a", 1)])["applied"] == 1


def test_rows_of_a_region_that_becomes_shared_are_not_kept():
    with (
        pywan.Locator("locator", distributed_system_id=1, port=0) as locator,
        pywan.Cache("a", locators=str(locator.address)) as a,
    ):
        a.create_region("data")
        with (
            DataConnection.open(str(locator.address), region="data", run_id=RUN, task=1, timeout=LIMIT_S) as connection,
            pywan.Cache("b", locators=str(locator.address)) as b,
        ):
            connection.put_pairs((n, b"v" * 1000) for n in range(3000))
            b.create_region("data")
            with pytest.raises(IllegalStateError, match=r"is on several members.*none is kept"):
                connection.commit()
        eventually(lambda: a._core.stages._budget.used == 0)


def test_rows_that_nobody_comes_for_are_dropped_in_the_end(two_sites, tmp_path):
    """A part of the task was applied, so the same task is refused then: its rows would be applied twice."""
    ny, _ = two_sites
    region_in_a_small_store(ny, tmp_path, slow=False)
    rows = [("a", 1), ("too large", bytes(20 << 20))]
    with pytest.raises(EventTooLargeError, match=r"1 of the task's 2 rows are applied. The rest is kept"):
        send(ny, 1, rows)
    stages = ny.cache._core.stages
    stages.drop_expired(time.monotonic())
    assert stages._budget.used > 20 << 20
    stages.drop_expired(time.monotonic() + staging.KEPT_S)
    eventually(lambda: stages._budget.used == 0)
    with pytest.raises(IllegalStateError, match=r"task 1 was applied in part, .* run the job anew"):
        send(ny, 1, rows)
    assert send(ny, 2, [("a", 2)])["applied"] == 1


def test_what_goes_wrong_is_said_to_the_client(two_sites, network):
    ny, _ln = two_sites
    for call, error, says in (
        (lambda: task(ny, 1, region="absent"), PywanError, "'absent' is not on member server_ny"),
        (lambda: task(ny, 1, run=b"short"), PywanError, "16 bytes"),
        (
            lambda: DataConnection.open("127.0.0.1[1]", region="data", run_id=RUN, task=1, timeout=1.0),
            NoLocatorError,
            "127.0.0.1",
        ),
        (lambda: send(ny, 1, [("k" * 70_000, 1)]), (EventTooLargeError, BatchError), "limit"),
        (lambda: send(ny, 1, [("k", object())]), pywan.PywanError, "object"),
    ):
        with pytest.raises(error, match=says):
            call()
    network.settle()
    assert len(ny.data) == 0
    assert send(ny, 1, [("k", 1)])["applied"] == 1


def test_no_member_in_the_site(network):
    ny = network.site("ny")
    ny.cache.close()
    with pytest.raises((NoLocatorError, ConnectivityError), match="no member"):
        task(ny, 1, timeout=1.0)


def test_a_region_destroyed_before_commit(two_sites, network):
    ny, _ln = two_sites
    with task(ny, 1) as connection:
        connection.put_pairs([("k", 1)])
        ny.cache.destroy_region("data")
        with pytest.raises(PywanError, match="data"):
            connection.commit()
    ny.region()
    assert send(ny, 1, [("k", 1)])["rows"] == 1


def test_a_member_that_stops_says_so(two_sites, network):
    ny, _ln = two_sites
    with task(ny, 1) as connection:
        connection.put_pairs([("k", 1)])
        ny.cache.close()
        with pytest.raises((ConnectivityError, ProtocolError)):
            connection.commit()


def test_rows_go_through_filters_and_listeners(network):
    ny, ln = network.add("ny ln")
    ln.receive()

    class Even(GatewayEventFilter):
        def before_enqueue(self, event):
            return event.key % 2 == 0

    class Broken(CacheListener):
        def after_create(self, event):
            raise ValueError("broken")

    ny.send_to(ln, gateway_event_filters=[Even()])
    ny.region(type="REPLICATE").add_listener(Broken())
    ln.region(type="REPLICATE")
    assert send(ny, 1, [(n, n) for n in range(100)])["applied"] == 100
    network.settle()
    assert len(ny.data) == 100 and sorted(ln.data) == list(range(0, 100, 2))


def test_many_tasks_at_once(two_sites, network):
    ny, ln = two_sites
    at_once(*(lambda number=number: send(ny, number, [((number, n), n) for n in range(1000)]) for number in range(8)))
    network.settle()
    assert len(ln.data) == 8000
    network.assert_equal()


def test_a_client_and_a_senders_receiver_are_not_taken_for_each_other(two_sites, network):
    """C-143: rows on the receiver's port, batches on the member's."""
    from pywan import _core
    from pywan.protocol.gateway import ClientHello, SenderHello, Welcome, encode
    from pywan.transport.sockets import connect

    ny, ln = two_sites
    for port, hello in (
        (ln.receiver.port, ClientHello(region="data", run_id=RUN, task=1)),
        (
            ln.cache.port,
            SenderHello(
                site=1, remote_site=2, member="m", sender="s", dispatcher=0, numbering=1, mount=1, partitions=1
            ),
        ),
    ):
        with connect(("127.0.0.1", port), 5.0) as sock:
            sock.sendall(encode(hello, _core.FRAME_HELLO))
            with pytest.raises(ProtocolError, match="where"):
                data.receive_message(sock, Welcome)
    eventually(lambda: ny.sender(ln).is_connected)


def test_rows_in_no_section_are_refused_with_no_word_of_what_lies_behind_them(two_sites):
    ny, _ = two_sites
    with task(ny, 1) as connection:
        secret = 7_301_234_567_890_123_456
        connection._sock.sendall(_core.pack_frame(_core.FRAME_BATCH, bytes(8)) + secret.to_bytes(8, "little") * 8)
        with pytest.raises(PywanError) as refused:
            connection.commit()
    assert "batch of 0 sections" in str(refused.value) and str(secret) not in str(refused.value)


def region_in_a_small_store(site, tmp_path, *, slow):
    """A persistent region whose log takes no change of 20 MB."""
    site.cache.destroy_region("data")
    site.cache.create_disk_store("small", directories=((str(tmp_path), 32),))
    region = site.region(type="PARTITION_PERSISTENT", senders=(), disk_store_name="small")
    if slow:
        site.keep_history()
    return region


@pytest.mark.parametrize("slow", [False, True], ids=["compiled", "with-a-listener"])
def test_a_row_that_cannot_be_applied_fails_its_task_at_once_and_no_row_is_dropped_by_the_next_attempt(
    two_sites, tmp_path, slow
):
    ny, _ = two_sites
    rows = [("a", 1), ("too large", bytes(20 << 20)), ("b", 2), ("c", 3)]
    region = region_in_a_small_store(ny, tmp_path, slow=slow)
    for _ in range(2):
        with pytest.raises(
            EventTooLargeError, match=r"1 of the task's 4 rows are applied. The rest is kept at member server_ny"
        ):
            send(ny, 1, rows)
    assert dict(region) == {"a": 1}
    ny.cache.destroy_region("data")
    region = ny.region(senders=())  # One that takes it.
    assert send(ny, 1, rows)["duplicate"]
    assert sorted(region) == ["b", "c", "too large"] and len(region["too large"]) == 20 << 20
    assert send(ny, 2, rows)["applied"] == 4


def test_staged_rows_of_all_tasks_have_a_limit_on_memory_and_disk(network, monkeypatch):
    monkeypatch.setattr(staging, "STAGED_ROWS_BYTES_MAX", 4 << 20)
    ny = network.site("ny")
    ny.region()
    rows = [(n, b"v" * 1000) for n in range(3000)]
    with task(ny, 1) as first:
        first.put_pairs(rows)
        first._sender.flush()
        eventually(lambda: ny.cache._core.stages._budget.used > 3_000_000)
        with pytest.raises(PywanError, match=r"more than its limit of 4 MB.*nothing of this task was applied"):
            send(ny, 2, rows)
        assert first.commit()["applied"] == 3000
    eventually(lambda: ny.cache._core.stages._budget.used == 0)
    assert send(ny, 2, rows)["applied"] == 3000


class Paced(CacheListener):
    """Each change takes that long."""

    def __init__(self, seconds):
        self.seconds, self.count = seconds, 0

    def after_create(self, event):
        self.count += 1
        done = time.monotonic() + self.seconds
        eventually(lambda: time.monotonic() > done)


def test_a_task_that_is_worked_on_is_waited_for_however_long_it_takes(two_sites, network, monkeypatch):
    """By the attempt whose rows are applied, and by one that comes meanwhile."""
    monkeypatch.setattr(staging, "PROGRESS_S", 0.1)
    ny, _ = two_sites
    paced = Paced(0.15)
    ny.data.add_listener(paced)
    rows = [(n, n) for n in range(25)]
    done = []
    first = threading.Thread(target=lambda: done.append(send(ny, 1, rows, timeout=2.5)))
    first.start()
    eventually(lambda: paced.count)
    done.append(send(ny, 1, rows, timeout=2.5))
    first.join(LIMIT_S)
    assert (
        sorted((each["rows"], each["duplicate"]) for each in done) == [(25, False), (25, True)]
        and paced.count == len(ny.data) == 25
    )


def test_a_task_that_hangs_is_given_up(two_sites, network, monkeypatch):
    monkeypatch.setattr(staging, "PROGRESS_S", 0.1)
    ny, _ = two_sites
    slow = Slow()
    ny.data.add_listener(slow)
    try:
        with pytest.raises(ConnectivityError, match=r"no progress by the member for 0.6 s"):
            send(ny, 1, [(n, n) for n in range(5)], timeout=0.6)
    finally:
        slow.gate.release(5)
    assert send(ny, 1, [(n, n) for n in range(5)])["duplicate"]


def test_the_kernels_at_both_ends_watch_a_task_that_computes(two_sites, monkeypatch):
    """A machine that is gone is found within three minutes, though neither program says anything."""
    watched = []
    watch = data.keep_alive

    def note(sock):
        watch(sock)
        watched.append(
            [
                sock.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            ]
        )
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    monkeypatch.setattr(data, "keep_alive", note)
    ny, _ = two_sites
    assert send(ny, 1, [("k", 1)])["applied"] == 1
    assert len(watched) == 2
    assert all(idle + every * times <= 180 for idle, every, times in watched)


def test_a_member_that_reads_nothing_is_waited_for_as_long_as_the_timeout():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        began = time.monotonic()
        with pytest.raises(
            ConnectivityError, match="stopped reading in the middle of the rows; nothing of this task was applied"
        ):
            DataConnection(ours, "member:1", "data", 0.3).put_pairs([("k", bytes(20 << 20))])
        assert time.monotonic() - began < SOON_S  # And not a minute.


def test_ctrl_c_ends_a_wait_for_a_member_that_reads_nothing():
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def interrupt():
            assert select.select([theirs], [], [], SOON_S)[0]  # All of the frame is laid out, and a part of it sent.
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            DataConnection(ours, "member:1", "data", 60.0).put_pairs([("k", bytes(20 << 20))])
        thread.join()
        assert time.monotonic() - began < SOON_S
