"""A member whose stamps ran ahead of the time: one command stamps with the time what is ahead, in regions and queues,
and sends it again."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading

import numpy
import pytest

import pywan.member.cache
from pywan import _core
from pywan.callbacks import GatewayEventFilter, GatewayEventSubstitutionFilter
from pywan.demo.compare import read_contents
from pywan.errors import IllegalStateError, RegionNotFoundError
from pywan.member import process
from pywan.region.clock_repair import ClockRepair
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually
from support.clocks import HOUR, Machine, now_ms, run_ahead
from support.durable import DurableQueue
from support.log_format import (
    FORGET,
    HOLES,
    INVALID,
    MARK,
    RESTAMPED,
    changes,
    holes,
    read_blocks,
    read_manifest,
    read_state,
    segment_file,
)
from support.records import check_ledger
from support.sites import keep_doing

DRIFT = 300_000


def ahead_of(region):
    """Keys whose entries have stamps that other sites park."""
    return {key for key in region if (core_of(region).lookup(key)[1] >> 16) - now_ms() > DRIFT}


KINDS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"type": "PARTITION", "parallel": True}, id="parallel"),
        pytest.param({"type": "REPLICATE", "parallel": False}, id="serial"),
        pytest.param({"type": "PARTITION", "parallel": True, "enable_batch_conflation": True}, id="conflating"),
    ],
)


def test_what_a_substitution_filter_withheld_does_not_leave_by_a_repair(network):
    class Failing(GatewayEventSubstitutionFilter):
        fails = True

        def get_substitute_value(self, event):
            if self.fails:
                raise ValueError("no key")
            return "masked"

    masking = Failing()
    ny, ln = network.add("ny ln")
    ln.receive()
    sender = ny.send_to(ln, gateway_event_substitution_filter=masking, parallel=True)
    ny.region(), ln.region()
    run_ahead(ny.cache)
    ny.data["k"] = "secret"
    assert sender.parked_count == 1
    found = ny.cache.repair_clock()
    assert found["senders"]["ln"] == {"queued": 0, "parked": 1} and found["left"] == 0
    network.settle()
    assert len(ln.data) == 0 and [event["value"] for event in sender.parked()] == ["secret"]
    masking.fails = False
    assert sender.replay_parked() == 1
    network.settle()
    assert dict(ln.data) == {"k": "masked"}


@KINDS
def test_what_was_parked_arrives_and_newer_writes_of_others_win(network, kind):
    ny, ln = network.mesh("ny ln", **kind)
    ln.data["both"] = "ln before"
    ny.data["gone"] = 1
    network.settle()
    run_ahead(ny.cache)
    for n in range(500):
        ny.data[n] = n
    ny.data["both"] = "ny"
    del ny.data["gone"]
    sender = ny.sender(ln)
    eventually(lambda: sender.parked_count == 502, what="parked events")
    ln.data["both"] = "ln, lost"
    network.settle()
    assert ny.data["both"] == "ny" and len(ln.data) == 2 and sender.lag()["cause"].startswith("clock: stamps are")
    found = ny.cache.repair_clock()
    assert found["regions"]["data"] == {"entries": 501, "tombstones": 1} and found["left"] == 0
    assert found["senders"]["ln"] == {"queued": 0, "parked": 502}
    network.settle()
    network.assert_equal()
    assert len(ln.data) == 501 and ln.data["both"] == "ny" and "gone" not in ln.data
    assert (
        sender.parked_count == 0
        and sender.ledger()["restamped"] == 502
        and sender.lag()["cause"] == "none"
        and not ahead_of(ny.data)
    )
    ln.data["both"], ln.data["gone"] = "ln, newer", 2
    ny.data[0] = "ny, newer"
    network.settle()
    network.assert_equal()
    assert ny.data["both"] == "ln, newer" and ny.data["gone"] == 2 and ln.data[0] == "ny, newer"
    again = ny.cache.repair_clock()
    assert again["total"] == 0 and again["ahead_ms"] == 0
    assert sender.parked_count == 0


def test_events_that_wait_are_stamped_anew_too(network):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln"), ("ln", "ny")], parallel=False, dispatcher_threads=1)
    sender = ny.sender(ln)
    sender.pause()
    ny.data["old"] = 0
    run_ahead(ny.cache)
    for n in range(2000):
        ny.data[n % 700] = n
    assert ny.cache.repair_clock(dry_run=True)["senders"]["ln"] == {"queued": 2000, "parked": 0}
    assert len(ahead_of(ny.data)) == 700 and len(sender._core.queue) == 2001
    found = ny.cache.repair_clock()
    assert found["senders"]["ln"] == {"queued": 2000, "parked": 0} and found["regions"]["data"]["entries"] == 700
    assert len(sender._core.queue) == 701 and sender.ledger()["balanced"]
    sender.resume()
    network.settle()
    network.assert_equal()
    assert ln.receiver.stats["exceptions_occurred"] == 0


def test_changes_go_on_while_it_runs(network):
    ny, ln = network.mesh("ny ln")
    run_ahead(ny.cache)
    for n in range(3000):
        ny.data[n % 1000] = n
    with (
        keep_doing(lambda n: ny.data.put(n % 1000, -n)) as mine,
        keep_doing(lambda n: ln.data.put(n % 1000, f"ln {n}")) as others,
    ):
        eventually(lambda: len(mine) > 200 and len(others) > 200, what="changes")
        found = ny.cache.repair_clock()
        at = len(mine), len(others)
        eventually(lambda: len(mine) > at[0] + 200 and len(others) > at[1] + 200, what="changes behind it")
    assert found["left"] == 0
    network.settle()
    network.assert_equal()
    assert ny.sender(ln).parked_count == 0 and not ahead_of(ny.data) and ny.cache._core.state.clock.ahead_ms < 1000


def test_it_ends_however_much_is_changed_between_its_steps(network):
    """A put over an entry that is still ahead comes first, each time. It moves the clock no more, so the puts behind it
    are not ahead."""
    ny = network.add("ny")[0]
    first, second = ny.region("first"), ny.region("second")
    run_ahead(ny.cache)
    for region in (first, second):
        region.put_all(dict.fromkeys(range(20), "ahead"))
    for steps, report in enumerate(ny.cache._core.repairs.steps((), dry_run=False, timeout=0)):
        assert steps < 50, report.to_dict()
        for region in (first, second) if steps % 2 else (second, first):
            region[0] = steps
        for region in (first, second):
            region[1] = steps
            region.put_all(dict.fromkeys(range(2, 10), steps))
            region.put_columns(numpy.arange(10, 20), numpy.full(10, steps))
    assert report.rounds <= 4 and report.left == 0
    assert not ahead_of(first) and not ahead_of(second) and ny.cache._core.state.clock.ahead_ms == 0


def test_what_sites_believe_by_now_is_no_work_for_a_repair_that_began_before():
    clock = _core.Clock()
    region = _core.RegionCore("r", clock=clock)
    repair = _core.ClockRepair(clock, [region], site=1)
    repair.begin()
    later = now_ms() + 10_000
    clock.set_time(later)
    region.change(_core.UPDATE, "k", b"v", version=(later + DRIFT - 1000 << 16, 2))
    assert repair.count_entries(region) == (1, 0)
    assert not repair.begin() and repair.count_entries(region) == (0, 0)


def test_three_sites_in_a_chain_are_equal_afterwards(network):
    ny, ln, tk = network.chain()
    for site in (ny, ln, tk):
        site.data["both"] = site.name
    network.settle()
    run_ahead(ny.cache)
    ny.data["a"] = ny.data["both"] = "ahead"
    eventually(lambda: ny.sender(ln).parked_count == 2, what="parked events")
    ny.cache.repair_clock()
    network.settle()
    network.assert_equal()
    assert tk.data["a"] == tk.data["both"] == "ahead"
    tk.data["both"] = "newer"
    network.settle()
    network.assert_equal()
    assert ny.data["both"] == "newer"


def test_a_site_that_took_over_stamps_of_the_future_is_repaired_too_and_all_are_equal(network):
    """Both clocks were ahead, so that ln applied what ny had stamped. In whatever order."""
    ny, ln, tk = network.mesh()
    for site in (ny, ln):
        site.cache._core.state.clock.set_time(now_ms() + HOUR)
    receiving = ln.cache._core.state.clock
    receiving.set_time(now_ms() + HOUR, 10 * HOUR)  # It is checked, so that its receiver believes it.
    ny.data["a"], ny.data["b"] = "ny", "ny"
    eventually(lambda: ln.data.get("b") == "ny", what="an event of the future at ln")
    del ny.data["b"]
    eventually(lambda: "b" not in ln.data, what="its destroy")
    for site in (ny, ln):
        site.cache._core.state.clock.set_time(0)
    tk.data["a"] = "tk, newer"
    eventually(lambda: not any(len(s._core.queue) for s in network.senders()), what="empty queues")
    assert ny.data["a"] == ln.data["a"] == "ny" and tk.data["a"] == "tk, newer"
    ny.cache.repair_clock()
    assert ahead_of(ln.data) == {"a"}
    found = ln.cache.repair_clock()
    assert found["regions"]["data"] == {"entries": 1, "tombstones": 1}
    network.settle()
    network.assert_equal()
    tk.data["a"], tk.data["b"] = "tk, newest", "again"
    network.settle()
    network.assert_equal()
    assert ny.data["a"] == ln.data["a"] == "tk, newest" and ln.data["b"] == "again"


def test_events_of_keys_that_are_not_here_are_sent_with_one_new_version_to_all(network):
    """A proxy holds no entries; what was taken out on this member only is with the others all the same; of what was
    invalidated only the events have the value."""
    ny, ln, tk = network.add("ny ln tk")
    network.connect([(a, b) for a, b in itertools.permutations(("ny", "ln", "tk"), 2) if a == "ny"], parallel=False)
    for site in (ny, ln, tk):
        site.region("proxied", type="REPLICATE_PROXY" if site is ny else "REPLICATE")
    ny.sender(tk).pause()
    run_ahead(ny.cache)
    proxied = ny.cache.region("proxied")
    for n in range(100):
        proxied[n % 40] = n
    ny.data["taken out"], ny.data["invalidated"], ny.data["there"] = 1, 1, 1
    ny.data["invalidated"] = 2
    ny.data.local_destroy("taken out")
    ny.data.invalidate("invalidated")
    eventually(lambda: ny.sender(ln).parked_count == 104, what="parked events")
    found = ny.cache.repair_clock()
    assert found["senders"] == {"ln": {"queued": 0, "parked": 104}, "tk": {"queued": 104, "parked": 0}}
    ny.sender(tk).resume()
    network.settle()
    for name in ("data", "proxied"):
        for key in ln.cache.region(name):
            assert core_of(ln.cache.region(name)).lookup(key) == core_of(tk.cache.region(name)).lookup(key)
    assert {n: ln.cache.region("proxied")[n] for n in range(40)} == {n: 80 + n if n < 20 else 40 + n for n in range(40)}
    assert ln.data["taken out"] == 1 and ln.data["invalidated"] == 2 and "taken out" not in ny.data
    assert (
        core_of(ny.data).lookup("invalidated")[1] == core_of(ln.data).lookup("invalidated")[1]
        and core_of(ny.data).lookup("invalidated")[0] is None
    )


class Asked(GatewayEventFilter):
    """Refuses keys that begin with x, and notes what it was asked."""

    def __init__(self):
        self.asked = []

    def before_enqueue(self, event):
        self.asked.append((event.operation, event.key, event.value))
        return not str(event.key).startswith("x")


def test_filters_are_asked_and_listeners_are_not_told(network):
    ny, ln = network.add("ny ln")
    ln.receive()
    asked = Asked()
    ny.send_to(ln, gateway_event_filters=[asked])
    for site in (ny, ln):
        site.region()
    ny.data["x"] = ny.data["a"] = ny.data["d"] = "before"
    history = ny.keep_history()
    network.settle()
    run_ahead(ny.cache)
    ny.data["x"] = ny.data["a"] = "ahead"
    del ny.data["d"]
    eventually(lambda: ny.sender(ln).parked_count == 2, what="parked events")
    told = len(history.events)
    del asked.asked[:]
    found = ny.cache.repair_clock()
    assert found["regions"]["data"] == {"entries": 2, "tombstones": 1}
    assert sorted(asked.asked, key=repr) == [("destroy", "d", None), ("update", "a", "ahead"), ("update", "x", "ahead")]
    network.settle()
    assert len(history.events) == told and dict(ln.data) == {"a": "ahead"} and not ahead_of(ny.data)


def test_a_stopped_senders_queue_gets_what_the_entries_are_now(network):
    ny, ln = network.mesh("ny ln")
    sender = ny.sender(ln)
    sender.pause()
    run_ahead(ny.cache)
    ny.data["a"], ny.data["b"] = 1, 1
    del ny.data["b"]
    sender.stop()
    found = ny.cache.repair_clock()
    assert found["senders"]["ln"] == {"queued": 3, "parked": 0} and sender.ledger()["balanced"]
    sender.start()
    network.settle()
    network.assert_equal()
    assert ln.data["a"] == 1 and "b" not in ln.data and sender.parked_count == 0


def test_of_some_regions_only(network):
    ny, ln = network.mesh("ny ln", parallel=False)
    for site in (ny, ln):
        site.region("more")
    more = ny.cache.region("more")
    run_ahead(ny.cache)
    ny.data["a"], more["a"] = 1, 1
    eventually(lambda: ny.sender(ln).parked_count == 2, what="parked events")
    found = ny.cache.repair_clock(["data"])
    assert found["regions"] == {"data": {"entries": 1, "tombstones": 0}} and found["senders"]["ln"]["parked"] == 1
    network.settle()
    assert (
        ln.data["a"] == 1 and "a" not in ln.cache.region("more") and ny.sender(ln).parked_count == 1 and ahead_of(more)
    )
    ny.cache.repair_clock()
    network.settle()
    assert ln.cache.region("more")["a"] == 1 and ny.sender(ln).parked_count == 0
    with pytest.raises(RegionNotFoundError):
        ny.cache.repair_clock(["none"])


def test_one_at_a_time_and_not_while_the_clock_is_held(network, monkeypatch):
    ny, _ln = network.mesh("ny ln")
    began, may_go_on = threading.Event(), threading.Event()
    real = ClockRepair.run

    def slow(self):
        began.set()
        assert may_go_on.wait(LIMIT_S)
        yield from real(self)

    monkeypatch.setattr(ClockRepair, "run", slow)
    running = threading.Thread(target=ny.cache.repair_clock)
    running.start()
    assert began.wait(LIMIT_S)
    with pytest.raises(IllegalStateError, match="is being repaired already"):
        ny.cache.repair_clock()
    may_go_on.set()
    running.join(LIMIT_S)
    assert ny.cache.repair_clock()["total"] == 0
    machine = Machine(ny.cache._core.state.clock, now_ms())
    machine.stamp_ahead()
    machine.jump(HOUR)
    with pytest.raises(IllegalStateError, match="jumped ahead"):
        ny.cache.repair_clock()
    machine.jump(-HOUR)
    assert ny.cache.repair_clock()["total"] == 0


def test_a_floor_that_was_told_while_the_clock_was_ahead_is_taken_back(network, monkeypatch):
    """Destroys of another site, made after the repair, are remembered for what it sends."""
    monkeypatch.setattr(pywan.member.housekeeper, "HOUSEKEEPING_S", 0.02)
    ny, ln = network.mesh("ny ln")
    run_ahead(ny.cache)
    ny.data["a"] = 1

    def told():
        return (
            next(
                (
                    source.clock
                    for source in ln.cache._core.tombstones.sources._sources.values()
                    if source.site == ny.id
                ),
                0,
            )
            >> 16
        )

    eventually(lambda: told() > now_ms() + HOUR // 2, what="a floor of the future")
    ny.cache.repair_clock()
    eventually(lambda: told() < now_ms() + 1000, what="a floor of now")
    at = told()
    eventually(lambda: told() > at, what="a floor that rises again")


def test_a_floor_of_the_future_is_not_believed(network, monkeypatch):
    """A site destroys keys while the other one is away, and is repaired before it sends them. The destroys are
    remembered."""
    monkeypatch.setattr(pywan.member.housekeeper, "HOUSEKEEPING_S", 0.02)
    monkeypatch.setattr(pywan.member.tombstones, "TOMBSTONE_AGE_MS", 0)
    ny, ln = network.mesh("ny ln")
    ln.data["a"] = "ln"
    ln.data["gone"] = 1
    network.settle()
    run_ahead(ny.cache)
    ny.data["a"] = "ny"
    eventually(lambda: ny.sender(ln).parked_count == 1, what="a parked event")

    def clock_of_ny():
        return max((source.clock for source in ln.cache._core.tombstones.sources._sources.values()), default=0) >> 16

    eventually(lambda: clock_of_ny() > now_ms() + HOUR // 2, what="a floor of the future")
    ln.receiver.stop()
    ny.cache.repair_clock()
    eventually(lambda: ln.cache._core.state.clock.now_ms > core_of(ny.data).lookup("a")[1] >> 16, what="a later time")
    del ln.data["gone"], ln.data["a"]
    looks = []
    monkeypatch.setattr(ln.cache._core.housekeeper, "_watch_clock", lambda: looks.append(1))
    eventually(lambda: len(looks) > 3, what="looks at the tombstones")
    ln.receiver.start()
    network.settle()
    network.assert_equal()
    assert "a" not in ln.data and "gone" not in ny.data


# Persistent

PERSISTENT = pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"type": "PARTITION_PERSISTENT", "parallel": True}, id="parallel"),
        pytest.param({"type": "REPLICATE_PERSISTENT", "parallel": False}, id="serial"),
    ],
)


def make_member(site, folder, kind):
    """The only member of ny, on a folder that stays."""
    site.cache.close()
    site.start_member(dir=folder)
    site.send_to("ln", parallel=kind["parallel"], enable_persistence=True)
    site.region(type=kind["type"])
    return site.cache


@PERSISTENT
def test_a_restart_keeps_what_was_repaired(network, tmp_path, kind):
    ny, ln = network.add("ny ln")
    ln.receive()
    ln.region(type="REPLICATE")
    make_member(ny, tmp_path, kind)
    run_ahead(ny.cache)
    for n in range(300):
        ny.data[n % 200] = n
    del ny.data[0]
    ny.data.invalidate(1)
    ny.data.local_destroy(2)
    eventually(lambda: ny.sender(ln).parked_count == 301, what="parked events")
    ny.sender(ln).pause()
    for n in range(100, 150):
        ny.data[n] = "queued"
    make_member(ny, tmp_path, kind)
    assert ny.cache._core.state.clock.ahead_ms > HOUR // 2 and ny.sender(ln).parked_count >= 301
    found = ny.cache.repair_clock()
    assert found["regions"]["data"] == {"entries": 198, "tombstones": 1}
    for _ in range(2):
        network.settle()
        make_member(ny, tmp_path, kind)
        assert ny.cache._core.state.clock.ahead_ms == 0 and not ahead_of(ny.data) and ny.sender(ln).parked_count == 0
        assert ny.cache.repair_clock()["total"] == 0
    ny.data["new"] = 1
    network.settle()
    assert {key: ln.data[key] for key in ln.data if key not in (1, 2)} == {
        key: ny.data[key] for key in ny.data if key != 1
    }
    assert ln.data[1] == 201 and ln.data[2] == 202  # NY invalidated these, and took them out, on its own.
    assert 0 not in ln.data and ln.data[120] == "queued" and ln.data["new"] == 1


PROCESS = (
    '<cache>\n<gateway-sender id="ln" remote-distributed-system-id="2" parallel="{parallel}" '
    'enable-persistence="true" batch-time-interval="10"/>\n'
    '<region name="data" refid="{type}">\n<region-attributes gateway-sender-ids="ln"/>\n</region>\n</cache>\n'
)


class ServerProcess:
    """A member of ny as a process of its own, on a folder that stays."""

    def __init__(self, site, directory, kind):
        self.site, self.directory = site, directory
        self.xml = directory / "ny.xml"
        self.xml.write_text(PROCESS.format(type=kind["type"], parallel=str(kind["parallel"]).lower()))
        self.files = process.MemberFiles.of(directory, "process_ny")
        self.start()

    def start(self):
        process.start(
            "server",
            "process_ny",
            {"locators": str(self.site.locator.address), "cache_xml_file": str(self.xml)},
            directory=self.directory,
        )

    def kill(self):
        member = process.recorded(self.files)
        os.kill(member.pid, signal.SIGKILL)
        assert process.wait_until_gone(member, 10.0)

    def command(self, *words, **options):
        return subprocess.Popen(
            [sys.executable, "-m", "pywan.cli.main", f"--locator={self.site.locator.address}", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def run(self, *words):
        asked = self.command(*words)
        told = asked.communicate(timeout=120)[0]
        return asked.returncode, told


@PERSISTENT
def test_killed_in_the_middle_it_is_run_again_and_all_is_right(network, tmp_path, kind):
    """The command of the shell, at real processes; the log was written by one whose clock was an hour ahead."""
    ny, ln = network.add("ny ln")
    ny.cache.close()
    with pywan.Cache("process_ny", locators=str(ny.locator.address), dir=tmp_path / "process_ny") as cache:
        cache.create_gateway_sender(
            "ln", remote_distributed_system_id=2, parallel=kind["parallel"], enable_persistence=True
        )
        data = cache.create_region("data", type=kind["type"], gateway_sender_ids=["ln"])
        data["before"] = 1
        run_ahead(cache)
        keys = [f"k{n}" for n in range(30_000)]
        data.put_columns(keys, [b"%d" % n for n in range(30_000)])
        data.put_columns(keys[:5000], [b"new%d" % n for n in range(5000)])
        data.remove_all(keys[20_000:25_000])
        queued = len(cache.gateway_sender("ln")._core.queue)
    ln.receive()
    ln.region(type="REPLICATE")
    server = ServerProcess(ny, tmp_path, kind)
    try:
        status, told = server.run("repair", "clock", "--dry-run")
        assert status == 0 and "would be stamped anew" in told and "region data" in told and "25000" in told, told
        interrupted = []
        for share in (0, 0.5):
            at = len(ln.data)
            asked = server.command("repair", "clock")
            eventually(
                lambda at=at, share=share: len(ln.data) > at + share * (25_000 - at), 60, "some of what is sent again"
            )
            server.kill()
            interrupted.append(asked.wait(LIMIT_S) != 0)
            asked.stdout.close()
            server.start()
        assert any(interrupted)  # Sending may be behind it.
        status, told = server.run("repair", "clock")
        assert status == 0 and "were stamped anew" in told, told
        status, told = server.run("repair", "clock", "--dry-run", "--region=data")
        assert status == 0 and "process_ny: 0 would be" in told and "its stamps were 0 s ahead" in told, told
    finally:
        if process.recorded(server.files) is not None:
            process.stop("server", "process_ny", directory=tmp_path)
    assert queued == 40_001
    with pywan.Cache("process_ny", locators=str(ny.locator.address), dir=tmp_path / "process_ny") as cache:
        sender = cache.create_gateway_sender(
            "ln", remote_distributed_system_id=2, parallel=kind["parallel"], enable_persistence=True
        )
        data = cache.create_region("data", type=kind["type"], gateway_sender_ids=["ln"])
        assert cache._core.state.clock.ahead_ms == 0 and sender.parked_count == 0 and sender.ledger()["balanced"]
        eventually(lambda: not len(sender._core.queue), what="an empty queue")
        expected = {
            "before": 1,
            **{key: b"%d" % n for n, key in enumerate(keys)},
            **{key: b"new%d" % n for n, key in enumerate(keys[:5000])},
        }
        for key in keys[20_000:25_000]:
            del expected[key]
        assert dict(data.items()) == expected
        assert read_contents(core_of(data).scan) == read_contents(core_of(ln.data).scan)


# The regions' and queues' logs

DESTROYED = 2


def open_region(folder, size=64 << 20):
    folder.mkdir(parents=True, exist_ok=True)
    clock = _core.Clock()
    region = _core.RegionCore("data", clock, site=1, member=7)
    region.open_log(str(folder), log_id=5, synchronous=False, log_budget=_core.LogBudget(size))
    return region, clock


def ahead(clock):
    clock.set_time(now_ms() + HOUR)
    clock.take()
    clock.set_time(0)


def images(folder, to):
    """The log as a crash leaves it behind each of its blocks."""
    blocks = read_blocks(folder)
    for n, block in enumerate(blocks):
        image = to / str(n)
        shutil.copytree(folder, image)
        with open(segment_file(image, 1), "r+b") as file:
            file.truncate(block.end)
            file.truncate(segment_file(folder, 1).stat().st_size)
        yield block.commit, image


def test_the_log_of_a_region_holds_each_entry_whenever_a_crash_comes(tmp_path):
    region, clock = open_region(tmp_path / "log")
    ahead(clock)
    values = {f"k{n}": b"v%d" % n for n in range(5)}
    for key, value in values.items():
        region.put(key, value)
    region.destroy("k0")
    region.invalidate("k1")
    old = {key: region.lookup(key)[1] for key in values}
    region.commit_once()
    repair = _core.ClockRepair(clock, [region], site=1)
    assert repair.begin() and repair.count_entries(region) == (4, 1)
    assert repair.restamp_invalid(region) == 1
    region.commit_once()
    for key in ("k0", "k2", "k3", "k4"):
        assert repair.restamp_key(region, key)
        region.commit_once()
    assert (
        not repair.restamp_key(region, "k1")
        and not repair.restamp_key(region, "none")
        and repair.count_entries(region) == (0, 0)
    )
    repair.finish_region(region)
    region.put("after", b"v")
    region.commit_once()
    new = {key: region.lookup(key)[1] for key in values}

    written = [
        change for block in read_blocks(tmp_path / "log") for _, _, part in block.parts for change in changes(part)
    ]
    *_, reset, after = written
    assert [(c.kinds, c.key.decode(), c.other_stamp, c.stamp) for c in written[7:12]] == [
        (INVALID | RESTAMPED, "k1", old["k1"], new["k1"]),
        *((RESTAMPED, key, old[key], new[key]) for key in ("k0", "k2", "k3", "k4")),
    ]
    assert [c.operation == DESTROYED for c in written[7:12]] == [False, True, False, False, False]
    assert (reset.kinds, reset.other_stamp, reset.operation, reset.key) == (MARK | FORGET, 0, DESTROYED, b"")
    assert max(new.values()) <= reset.stamp < after.stamp and not after.kinds

    for commit, image in images(tmp_path / "log", tmp_path):
        if commit == 1:
            continue
        recovered, clock = open_region(image)
        assert (
            {key: recovered.get(key) for key in values} == {**values, "k0": None, "k1": None}
            and "k0" not in recovered
            and "k1" in recovered
        )
        is_whole = "after" in recovered
        assert (clock.ahead_ms > HOUR // 2) == (not is_whole)
        repair = _core.ClockRepair(clock, [recovered], site=1)
        assert is_whole == (not repair.begin())
        assert sum(repair.count_entries(recovered)) == max(0, 6 - commit) and repair.log_is_ahead(recovered) != is_whole
        repair.restamp_invalid(recovered)
        repair.restamp_entries(recovered)
        assert repair.count_entries(recovered) == (0, 0)
        del recovered


def test_near_the_limit_of_its_store_nothing_of_the_future_comes_back(tmp_path):
    """Its log goes around all the time; a crash is looked at after each commit."""
    size, source = 2 << 20, random.Random(7)
    region, clock = open_region(tmp_path / "log", size)
    ahead(clock)
    keys = [f"k{n}" for n in range(300)]
    durable, staged = {}, {}
    for key in keys:
        region.put(key, staged.setdefault(key, b"first" + b"v" * 1500))
        assert region.commit_once()
    durable |= staged
    repair = _core.ClockRepair(clock, [region], site=1)
    assert repair.begin()
    for n in range(150):
        for key in source.sample(keys, 20):
            if source.random() < 0.5:
                repair.restamp_key(region, key)
            else:
                staged[key] = b"%d " % n + b"v" * source.randrange(3000)
                region.put(key, staged[key])
        if n == 100:
            while repair.restamp_entries(region)[2] is not None:
                pass
            assert region.commit_once()
            repair.finish_region(region)
        if n % 2:
            image = tmp_path / "image"
            shutil.rmtree(image, ignore_errors=True)
            shutil.copytree(tmp_path / "log", image)
            recovered, _ = open_region(image, size)
            found = {key: recovered.get(key) for key in keys}
            assert all(found[key] in (durable[key], staged[key]) for key in keys), n
            del recovered
        assert region.commit_once(), region.log_state()["failing"]
        durable |= staged
    del region
    region, clock = open_region(tmp_path / "log", size)
    assert clock.ahead_ms == 0 and {key: region.get(key) for key in keys} == staged
    assert _core.ClockRepair(clock, [region], site=1).count_entries(region) == (0, 0)


def test_what_is_remembered_of_destroyed_keys_is_not_of_the_future(tmp_path):
    """Tombstones of which only hash and stamp are left, and the stamp up to which others have been forgotten."""
    region, clock = open_region(tmp_path / "log")
    ahead(clock)
    for n in range(1000):
        region.put(f"k{n}", b"v")
        region.destroy(f"k{n}")
    region.keep_tombstones(0, 0, 8_000)
    region.commit_once()
    region.keep_tombstones(0, 0, 8_000)
    state = region.tombstone_state
    assert state["shrunk_tombstones"] < 500 and state["forgotten_through"] >> 16 > now_ms() + HOUR // 2
    repair = _core.ClockRepair(clock, [region], site=1)
    repair.begin()
    assert repair.count_entries(region) == (0, state["shrunk_tombstones"])
    repair.finish_region(region)
    region.commit_once()
    assert repair.count_entries(region) == (0, 0)
    assert all(region.tombstone_state[name] >> 16 <= now_ms() for name in ("forgotten_through", "let_go_through"))
    now = clock.take()
    for _ in range(2):
        for n in range(1000):
            assert region.decide(1, f"k{n}", (now - (1 << 26), 2)) in ("forgotten", "lost")
            assert region.decide(1, f"k{n}", (now + (1 << 26), 2)) == "created"
        del region
        region, clock = open_region(tmp_path / "log")
        assert clock.ahead_ms == 0 and _core.ClockRepair(clock, [region], site=1).count_entries(region) == (0, 0)
        assert 0 < region.tombstone_state["forgotten_through"] <= region.tombstone_state["let_go_through"] <= now


def test_a_queue_says_on_the_disk_that_later_stamps_are_history(tmp_path):
    queue = DurableQueue(tmp_path, background=True, partitions=3)
    queue.region.put("before", b"v")
    ahead(queue.clock)
    for n in range(100):
        queue.region.put(f"k{n}", b"v")
    queue.commit()
    queue.clock = _core.Clock()
    queue.reopen()
    assert queue.clock.ahead_ms > HOUR // 2
    queue.region.put("k0", b"later")

    def repaired():
        """Repairs all but the last step, and returns how many events were ahead."""
        repair = _core.ClockRepair(queue.clock, [queue.region], site=1)
        assert repair.begin() and repair.lower_newest(queue.queue)
        found = repair.count_events(queue.queue)
        repair.give_stamps()
        assert repair.restamp_entries(queue.region)[2:] == (None, False)
        assert repair.restamp_events(queue.queue, queue.queue, [queue.region]) == (found, [])
        assert repair.count_events(queue.queue) == 0
        check_ledger(queue.queue.counts())
        return repair, found

    assert repaired()[1] == 101
    queue.commit()
    queue.clock = _core.Clock()
    queue.crash()
    assert queue.clock.ahead_ms > HOUR // 2  # It had not said so yet.
    repair, again = repaired()
    repair.finish_queue(queue.queue)
    for end in (queue.crash, queue.reopen):
        queue.clock = _core.Clock()
        end()
        # The disk did not know that these were taken out.
        assert queue.clock.ahead_ms == 0 and len(queue.queue) == 101 + again
        counts = queue.queue.counts()
        check_ledger(counts)
        assert counts["restamped"] == 101
    stamps = [event.stamp for event in queue.events()]
    assert max(stamps) < repair.limit and queue.latest() == {
        "before": b"v",
        **{f"k{n}": b"v" for n in range(100)},
        "k0": b"later",
    }
    queue.close()
    state = read_state(read_manifest(tmp_path / "log").state)
    counters = state.counters
    assert counters["clock_repairs"] == 1 and counters["restamped"] == 101
    assert max(stamps) <= counters["newest_stamp"] < repair.limit
    reasons = [
        reason
        for block in read_blocks(tmp_path / "log")
        for kind, _, part in block.parts
        if kind == HOLES
        for _, reason, _ in holes(part)
    ]
    assert set(reasons) == {6}
