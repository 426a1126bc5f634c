"""Destroyed keys stay destroyed: a tombstone goes only when no site can send anything older any more, as their senders'
floors say; and where tombstones are too many, an older event is parked, neither applied nor lost."""

from __future__ import annotations

import json
import os
import struct

import pytest

import pywan
import pywan.member.cache
from pywan import _core
from pywan.errors import ConfigurationError, NotFoundError, ProtocolError
from pywan.gateway.floors import NONE_COMES, Floor, QueueFloors, SourceFloors, decode_floors, encode_floors
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from support.records import BATCH, FORCED, GIVEN, PING, PONG, REGION, make_batch, make_record, read_record, split_frames
from support.sites import QUICK, Site

NY, LN, TK, HK = 1, 2, 3, 4
FORGOTTEN = 6


def coming(stamp, **others):
    return {
        NY: Floor(stamp, frozenset({LN})),
        **{{"tk": TK}[name]: Floor(at, frozenset({LN})) for name, at in others.items()},
    }


# The floor that a queue can promise


def test_a_queue_promises_what_could_come_when_all_before_had_left():
    floors = QueueFloors(NY, 10)
    assert floors.look([(0, 0, 5)], {}, {}, coming(20))[NY].stamp == 10  # Five events from before the first look.
    assert floors.look([(4, 5, 9)], {}, {}, coming(30))[NY].stamp == 10
    # Those events have left, but not the ones that came before the second look.
    assert floors.look([(5, 9, 9)], {}, {}, coming(40))[NY].stamp == 20
    assert floors.look([(9, 9, 9)], {}, {}, coming(50))[NY].stamp == 50


def test_every_partition_has_to_have_left():
    floors = QueueFloors(NY, 10)
    floors.look([(0, 0, 1), (0, 0, 1)], {}, {}, coming(20))
    assert floors.look([(1, 1, 1), (0, 1, 1)], {}, {}, coming(30))[NY].stamp == 10
    assert floors.look([(1, 1, 1), (1, 1, 1)], {}, {}, coming(40))[NY].stamp == 40


def test_a_stream_that_comes_later_or_begins_anew_holds_no_floor_down_for_what_is_gone():
    floors = QueueFloors(NY, 10)
    floors.look([(0, 0, 1)], {}, {}, coming(20))
    assert floors.look([(1, 1, 1), (0, 0, 7)], {}, {}, coming(30))[NY].stamp == 20
    assert floors.look([(1, 1, 1), (0, 0, 3)], {}, {}, coming(40))[NY].stamp == 30  # Its bucket has begun anew.
    assert floors.look([(1, 1, 1), (3, 3, 3)], {}, {}, coming(50))[NY].stamp == 50


def test_parked_replayed_and_recovered_events_hold_a_floor_down_until_they_are_gone():
    floors = QueueFloors(NY, 10)
    assert floors.look([(0, 0, 3)], {}, {NY: 4}, coming(20))[NY].stamp == 4  # Recovered.
    assert floors.look([(3, 3, 3)], {NY: 5}, {}, coming(30))[NY].stamp == 5  # One was parked,
    assert floors.look([(3, 3, 4)], {}, {NY: 5}, coming(40))[NY].stamp == 5  # and comes back.
    assert floors.look([(4, 4, 4)], {}, {}, coming(50))[NY].stamp == 50


def test_a_long_outage_takes_no_more_memory_and_its_floor_rises_all_the_same():
    floors = QueueFloors(NY, 1)
    for n in range(1000):
        floors.look([(0, 0, n)], {}, {}, coming(100 + n))
    assert len(floors._checkpoints) <= 33
    assert 100 < floors.look([(500, 999, 999)], {}, {}, coming(2000))[NY].stamp <= 600
    assert floors.look([(999, 999, 999)], {}, {}, coming(2001))[NY].stamp == 2001


def test_floors_travel_as_documented():
    data = encode_floors({3: Floor(7, frozenset({0, 9, 255})), 1: Floor(NONE_COMES, frozenset())})
    assert data == struct.pack("<QB7x32s", NONE_COMES, 1, b"") + struct.pack(
        "<QB7x32s", 7, 3, b"\x01\x02" + bytes(29) + b"\x80"
    )
    assert decode_floors(data) == {3: Floor(7, frozenset({0, 9, 255})), 1: Floor(NONE_COMES, frozenset())}
    with pytest.raises(ProtocolError, match="47 bytes"):
        decode_floors(data[:47])


# The floors that a member knows of the sites that feed it


class Model:
    """Sites that tell each other floors along `links`, round by round, with nothing in their queues."""

    def __init__(self, links):
        self.links = links
        self.sites = sorted({site for link in links for site in link})
        self.known = {site: SourceFloors(site, None) for site in self.sites}
        self.queues = {link: QueueFloors(link[0], 1) for link in links}
        self.held = {}  # link -> positions of its queue
        for source, target in links:
            self.known[target].opened(source, f"server{source}", "sender", 7)

    def round(self, now):
        for site in self.sites:
            self.known[site].begin_look()
            reached = frozenset(to for source, to in self.links if source == site)
            for link in [link for link in self.links if link[0] == site]:
                found = {**self.known[site].forwarded(link[1], reached), site: Floor(now, reached)}
                told = self.queues[link].look(self.held.get(link, [(0, 0, 0)]), {}, {}, found)
                self.known[link[1]].receive(site, f"server{site}", "sender", encode_floors(told))

    def lowest(self, site):
        return self.known[site].lowest()[0]


@pytest.mark.parametrize(
    "links",
    [
        pytest.param([(a, b) for a in range(1, 5) for b in range(1, 5) if a != b], id="mesh"),
        pytest.param([(1, 2), (2, 3), (3, 4), (4, 1)], id="ring"),
        pytest.param([(1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3)], id="chain"),
        pytest.param([(1, n) for n in (2, 3, 4)] + [(n, 1) for n in (2, 3, 4)], id="star"),
    ],
)
def test_where_nothing_is_held_every_site_receives_the_time_whatever_the_topology(links):
    model = Model(links)
    for now in range(100, 130):
        model.round(now)
    assert all(model.lowest(site) >= 115 for site in model.sites)


def test_what_a_site_holds_is_known_behind_every_relay_until_it_is_gone():
    model = Model([(1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3)])
    for now in range(100, 130):
        model.round(now)
    model.held[1, 2] = [(0, 0, 5)]  # Queued after round 129.
    for now in range(130, 160):
        model.round(now)
    assert all(model.lowest(site) <= 130 for site in (2, 3, 4)) and model.lowest(1) > 140
    model.held[1, 2] = [(5, 5, 5)]
    for now in range(160, 190):
        model.round(now)
    assert all(model.lowest(site) > 170 for site in model.sites)


def test_a_relay_that_restarts_promises_nothing_for_a_site_it_does_not_know_yet():
    model = Model([(1, 2), (2, 3), (3, 2)])
    for now in range(100, 130):
        model.round(now)
    model.held[1, 2] = [(0, 0, 5)]
    for now in range(130, 140):
        model.round(now)
    model.known[2], model.queues[2, 3] = SourceFloors(2, None), QueueFloors(2, 140)
    model.known[2].opened(3, "server3", "sender", 7)
    model.links.remove((1, 2))  # Site 1 is away.
    for now in range(140, 160):
        model.round(now)
    assert model.lowest(3) <= 130


def test_a_relay_promises_nothing_above_what_a_new_source_sent_between_two_looks():
    """The source has nothing left when it is seen first. What it sent before is still in the relay's queue."""
    known, queue = SourceFloors(LN, None), QueueFloors(LN, 1)

    def look(now, positions):
        known.begin_look()
        found = {**known.forwarded(TK, frozenset({TK})), LN: Floor(now, frozenset({TK}))}
        return queue.look([positions], {}, {}, found)

    look(100, (0, 0, 0))
    known.opened(NY, "server", "ln", 7)
    sent = 105
    known.receive(NY, "server", "ln", encode_floors({NY: Floor(110, frozenset({LN}))}))
    assert look(120, (0, 0, 1))[NY].stamp <= sent
    assert look(130, (0, 1, 1))[NY].stamp <= sent
    assert look(140, (1, 1, 1))[NY].stamp == 110


def test_sources_are_remembered_over_restarts_and_forgotten_when_somebody_says_so(tmp_path):
    sources = SourceFloors(LN, tmp_path / "sources.json")
    assert sources.lowest() == (NONE_COMES, "")
    sources.opened(NY, "server", "ln", 5)
    assert sources.lowest() == (0, "sender ln of server (site 1)")
    sources.receive(
        NY,
        "server",
        "ln",
        encode_floors({NY: Floor(50, frozenset()), TK: Floor(40, frozenset()), LN: Floor(3, frozenset())}),
    )
    assert sources.lowest()[0] == 40
    assert SourceFloors(LN, tmp_path / "sources.json").lowest()[0] in (0, 40)  # Never more than was told.
    sources.save()
    again = SourceFloors(LN, tmp_path / "sources.json")
    assert again.lowest()[0] == 40
    again.opened(NY, "server", "ln", 6)  # Another numbering of the same sender takes its place.
    assert len(again.view()) == 1
    again.opened(NY, "renamed", "ln", 6)  # Its queue was opened by another member.
    assert [each["member"] for each in again.view()] == ["renamed"]
    assert again.forget(TK) == [] and again.lowest()[0] == 50
    assert again.forget(NY) == ["sender ln of renamed (site 1)"] and again.lowest()[0] == NONE_COMES
    with pytest.raises(NotFoundError, match="site 1"):
        again.forget(NY)
    # Forgotten while it is connected: it counts again when it comes back.
    again.receive(NY, "renamed", "ln", encode_floors({NY: Floor(9, frozenset())}))
    assert again.lowest()[0] == NONE_COMES


# On the way


def receiver_of(region, memory=None, on_floors=None):
    return _core.ReceiverSession(
        memory or _core.SourceMemory(1),
        _core.ReceiverCounts(),
        {region.name: region}.get,
        lambda *args: pytest.fail("no Python here"),
        on_floors=on_floors,
    )


def test_a_floor_above_the_time_is_believed_up_to_the_time(tmp_path):
    """The clock that it is of may be ahead, and put right later: what its site sends then has earlier stamps."""
    now = [1000]
    sources = SourceFloors(LN, tmp_path / "sources.json", lambda: now[0])
    sources.opened(NY, "server", "ln", 1)
    sources.receive(NY, "server", "ln", encode_floors({NY: Floor(5000 << 16, frozenset())}))
    assert sources.lowest()[0] == (1000 << 16) + 0xFFFF and sources.clocks() == [5000 << 16]
    now[0] = 2000
    assert sources.lowest()[0] == (1000 << 16) + 0xFFFF
    assert SourceFloors(LN, tmp_path / "sources.json", lambda: 500).lowest()[0] <= (500 << 16) + 0xFFFF
    sources.receive(NY, "server", "ln", encode_floors({NY: Floor(1500 << 16, frozenset())}))
    assert sources.lowest()[0] == 1500 << 16 and sources.clocks() == [1500 << 16]
    sources.receive(NY, "server", "ln", encode_floors({NY: Floor(NONE_COMES, frozenset())}))
    assert sources.lowest()[0] == NONE_COMES


def test_floors_come_with_a_ping_at_once_and_again_on_the_next_connection():
    received = []
    queue = _core.EventQueue("ln", remote_site=LN)
    dispatcher = _core.DispatcherSession(queue, 0, _core.EventQueue("parked", partitions=8))
    receiver = receiver_of(_core.RegionCore("floors", _core.Clock(), site=LN), on_floors=received.append)
    dispatcher.connected(1000, 1 << 20, 1)
    data = encode_floors({NY: Floor(5, frozenset({LN}))})
    dispatcher.tell_floors(data)
    for _ in range(2):
        receiver.receive_data(dispatcher.data_to_send(2))
        assert [frame.type for frame in split_frames(receiver.data_to_send())] == [PONG]
        assert dispatcher.data_to_send(3) == b""
        dispatcher.disconnected()
        dispatcher.connected(1000, 1 << 20, 4)
    assert received == [data, data]


@pytest.mark.parametrize(
    "payload",
    [
        b"x",
        bytes(47),
        encode_floors({2: Floor(1, frozenset())}) * 2,
        encode_floors({2: Floor(1, frozenset())}) + encode_floors({1: Floor(1, frozenset())}),
        bytes(48) * 257,
    ],
)
def test_floors_that_make_no_sense_end_the_connection(payload):
    receiver = receiver_of(
        _core.RegionCore("floors", _core.Clock(), site=LN), on_floors=lambda data: pytest.fail("taken")
    )
    with pytest.raises(ProtocolError, match="floors"):
        receiver.receive_data(_core.pack_frame(PING, payload))


def test_a_put_that_waited_with_an_old_stamp_takes_a_new_one():
    """It was told meanwhile that nothing so old comes any more."""
    clock, queue = _core.Clock(), _core.EventQueue("ln", remote_site=LN, memory_limit=0)
    region = _core.RegionCore("floors", clock, site=NY, stores=False)
    queue.running = True
    region.attach([queue])
    low = clock.raise_low()
    region.put_columns([b"given"], [b"v"], timestamps=[5])  # A stamp that a caller gave stays.
    region.put(b"k", b"v")
    given, own = [read_record(record) for record in queue.peek(0, 2)]
    assert given.stamp == 5 << 16 and given.flags == GIVEN
    assert own.stamp > low and not own.flags


# Too many tombstones


def destroyed(count, limit, tmp_path=None):
    region = _core.RegionCore("floors", _core.Clock(), site=LN)
    if tmp_path is not None:
        region.open_log(str(tmp_path), log_id=5, synchronous=False, log_budget=_core.LogBudget(4 << 20))
    region.put_columns([b"k%d" % n for n in range(count)], [b"v"] * count)
    for n in range(count):
        region.destroy(b"k%d" % n)
    region.keep_tombstones(0, 0, limit)
    return region


def send(region, *records, memory=None):
    """Failures by key."""
    receiver = receiver_of(region, memory)
    payload, count = make_batch((0, 1, len(records), 0, list(records)))
    receiver.receive_data(_core.pack_frame(REGION, region.name.encode(), 1))
    receiver.receive_data(_core.pack_frame(BATCH, payload, 0, count))
    [ack] = split_frames(receiver.data_to_send())
    return {
        read_record(records[sequence - 1]).key: reason
        for _, reason, sequence in struct.iter_unpack("<IIQ", ack.payload[16:])
    }


def test_with_too_many_of_them_tombstones_shrink_to_sixteen_bytes_and_older_events_are_parked():
    region = destroyed(1000, limit=20_000)
    state = region.tombstone_state
    assert (
        state["tombstones"] == 0
        and state["shrunk_tombstones"] == 1000
        and state["tombstone_bytes"] == 16_000
        and state["forgotten_through"] == 0
    )
    old = 5 << 16
    assert send(region, make_record(b"k1", b"old", stamp=old), make_record(b"zz", b"new key", stamp=old)) == {
        b"k1": FORGOTTEN
    }
    assert b"k1" not in region and region.get(b"zz") == b"new key"
    region.put(b"k1", b"again")
    assert region.get(b"k1") == b"again"


def test_beyond_that_the_older_half_is_forgotten_and_an_older_event_for_an_absent_key_is_parked():
    region = destroyed(1000, limit=8_000)
    state = region.tombstone_state
    assert (
        200 < state["shrunk_tombstones"] < 300 and state["tombstone_bytes"] <= 8_000 and state["forgotten_through"] > 0
    )
    mark = state["forgotten_through"]
    region.put(b"pp", b"present")
    assert send(
        region,
        make_record(b"k1", b"old", stamp=5),
        make_record(b"zz", b"?", stamp=mark),
        make_record(b"yy", b"newer", stamp=mark + 1),
        make_record(b"pp", b"older", stamp=5),
    ) == {b"k1": FORGOTTEN, b"zz": FORGOTTEN}
    assert region.get(b"yy") == b"newer" and region.get(b"pp") == b"present"
    assert send(region, make_record(b"k1", b"forced", stamp=5, flags=FORCED)) == {}
    assert region.get(b"k1") == b"forced"
    assert send(region, make_record(b"xx", b"given", stamp=5, flags=GIVEN)) == {b"xx": FORGOTTEN}
    region.keep_tombstones(mark + 1, 0, 8_000)  # Nothing so old can come any more, from those who were waited for.
    assert region.tombstone_state["forgotten_through"] == 0
    assert send(region, make_record(b"zz", b"?", stamp=mark), make_record(b"xx", b"given", stamp=5, flags=GIVEN)) == {
        b"zz": FORGOTTEN
    }


# Sites that were not waited for


def let_go(region, count=3):
    """Destroys keys, and drops their tombstones: nothing older can come. The highest stamp of them."""
    for n in range(count):
        region.put(b"k%d" % n, b"v")
        region.destroy(b"k%d" % n)
    stamps = [region.lookup(b"k%d" % n)[1] for n in range(count)]
    region.keep_tombstones(NONE_COMES, 1 << 60, 1 << 20)
    return max(stamps)


def test_an_event_older_than_tombstones_that_were_let_go_is_parked_where_its_key_is_absent():
    region = _core.RegionCore("floors", _core.Clock(), site=LN)
    assert send(region, make_record(b"aa", b"old", stamp=5)) == {}  # Nothing was let go yet.
    region.put(b"pp", b"present")
    through = let_go(region)
    assert region.tombstone_state == {
        "tombstones": 0,
        "shrunk_tombstones": 0,
        "tombstone_bytes": 0,
        "forgotten_through": 0,
        "let_go_through": through,
    }
    assert send(
        region,
        make_record(b"k1", b"old", stamp=5),
        make_record(b"yy", b"as old", stamp=through),
        make_record(b"zz", b"newer", stamp=through + 1),
        make_record(b"pp", b"old", stamp=5),
    ) == {b"k1": FORGOTTEN, b"yy": FORGOTTEN}
    assert b"k1" not in region and region.get(b"pp") == b"present" and region.get(b"zz") == b"newer"
    assert (
        send(
            region,
            make_record(b"k1", b"forced", stamp=5, flags=FORCED),
            make_record(b"yy", b"given", stamp=6, flags=GIVEN),
        )
        == {}
    )
    assert region.get(b"k1") == b"forced" and region.get(b"yy") == b"given"
    region.keep_tombstones(NONE_COMES, 1 << 60, 1 << 20)
    assert region.tombstone_state["let_go_through"] == through


def test_what_holds_no_tombstone_lets_none_go():
    region = _core.RegionCore("floors", _core.Clock(), site=LN)
    region.put(b"k", b"v")
    region.keep_tombstones(NONE_COMES, 1 << 60, 1 << 20)
    assert region.tombstone_state["let_go_through"] == 0


def test_what_was_let_go_is_known_after_a_restart(tmp_path):
    """While its log is shortened, too; and no tombstone goes before the disk knows."""

    def opened():
        region = _core.RegionCore("floors", _core.Clock(), site=LN)
        region.open_log(str(tmp_path), log_id=5, synchronous=False, log_budget=_core.LogBudget(4 << 20))
        return region

    region = opened()
    through = let_go(region)
    assert region.tombstone_state["tombstones"] == 3
    assert region.commit_once()
    region.keep_tombstones(NONE_COMES, 1 << 60, 1 << 20)
    assert region.tombstone_state["tombstones"] == 0
    for n in range(900):
        region.put(b"other-%d" % (n % 7), b"x" * 20_000)
        if n % 5 == 0:
            assert region.commit_once()
    region.stop_log()
    region.commit_loop()
    del region
    again = opened()
    assert again.tombstone_state == {
        "tombstones": 0,
        "shrunk_tombstones": 0,
        "tombstone_bytes": 0,
        "forgotten_through": 0,
        "let_go_through": through,
    }
    assert send(again, make_record(b"k1", b"old", stamp=5)) == {b"k1": FORGOTTEN}
    copy = _core.RegionCore("floors", _core.Clock(), site=LN)
    assert again.copy_into(copy) is None and copy.tombstone_state["let_go_through"] == through


def test_what_was_forgotten_is_known_after_a_restart_and_so_is_what_is_remembered(tmp_path):
    """While the log is shortened, too."""
    region = destroyed(1000, 8_000, tmp_path)
    mark = region.tombstone_state["forgotten_through"]
    assert region.tombstone_state["shrunk_tombstones"] == 1000  # They go when the mark is on the disk.
    assert region.commit_once()
    region.keep_tombstones(0, 0, 8_000)
    kept = region.tombstone_state["shrunk_tombstones"]
    assert kept < 300
    for n in range(900):
        region.put(b"other-%d" % (n % 7), b"x" * 20_000)
        if n % 5 == 0:
            assert region.commit_once()
    region.stop_log()
    region.commit_loop()
    del region
    again = _core.RegionCore("floors", _core.Clock(), site=LN)
    again.open_log(str(tmp_path), log_id=5, synchronous=False)
    assert again.tombstone_state["forgotten_through"] == mark and again.tombstone_state["tombstones"] >= kept
    assert send(again, make_record(b"k1", b"old", stamp=5), make_record(b"k9", b"old", stamp=5)) == {
        b"k1": FORGOTTEN,
        b"k9": FORGOTTEN,
    }
    # Remembered as such: it lost.
    assert b"k999" not in again and send(again, make_record(b"k999", b"old", stamp=5)) == {}
    assert b"k999" not in again


# Whole sites


@pytest.fixture
def attentive(monkeypatch):
    """Members that look at their tombstones all the time, and keep none for its age."""
    monkeypatch.setattr(pywan.member.housekeeper, "HOUSEKEEPING_S", 0.01)
    monkeypatch.setattr(pywan.member.tombstones, "TOMBSTONE_AGE_MS", -1000)


def tombstones(site):
    return core_of(site.data).tombstone_state["tombstones"]


def looks(site, count=5):
    """The member has looked that often from now on."""
    stamps = []

    def has_looked():
        low = site.cache._core.state.clock.raise_low()
        stamps.append(low)
        return len(stamps) > count * 10

    eventually(has_looked)


def until_told(network, *sites):
    """Every member (or those of `sites`) has heard floors from all that feed it."""
    for site in sites or network.sites.values():
        eventually(
            lambda site=site: 0 < site.cache._core.tombstones.sources.lowest()[0] < NONE_COMES, what=f"floors at {site}"
        )


def test_an_older_update_that_was_held_up_does_not_bring_a_destroyed_key_back(network, attentive):
    ny, ln, tk = network.mesh("ny ln tk")
    ny.data["k"] = "first"
    network.settle()
    until_told(network)
    for sender in tk.cache.gateway_senders().values():
        sender.pause()
    tk.data["k"] = "held up"
    ln.data["other"] = 1  # Later than that.
    network_settles_but(network, tk)
    ny.data["k"] = "newer"
    del ny.data["k"]
    network_settles_but(network, tk)
    looks(ny), looks(ln)
    assert tombstones(ny) == tombstones(ln) == 1
    assert "sender ny of server_tk" in ny.cache._core.tombstones.held_by()
    for sender in tk.cache.gateway_senders().values():
        sender.resume()
    network.settle()
    assert all("k" not in site.data for site in (ny, ln, tk))
    for site in (ny, ln, tk):
        eventually(lambda site=site: tombstones(site) == 0, what=f"no tombstone at {site}")


def network_settles_but(network, away):
    eventually(
        lambda: (
            not any(
                len(sender._core.queue)
                for site in network.sites.values()
                if site is not away
                for sender in site.cache.gateway_senders().values()
            )
        )
    )


def test_an_older_update_that_was_held_up_behind_a_relay_does_not_either(network, attentive):
    ny, ln, tk = network.chain("ny ln tk")
    ny.data["k"] = "first"
    network.settle()
    until_told(network)
    ny.sender(ln).pause()
    ny.data["k"] = "held up"
    tk.data["k"] = "newer"
    del tk.data["k"]
    network_settles_but(network, ny)
    looks(ln), looks(tk)
    assert tombstones(tk) == tombstones(ln) == 1
    ny.sender(ln).resume()
    network.settle()
    assert all("k" not in site.data for site in (ny, ln, tk))
    for site in (ny, ln, tk):
        eventually(lambda site=site: tombstones(site) == 0, what=f"no tombstone at {site}")


def test_a_parked_event_that_is_replayed_does_not_either(network, attentive):
    ny, ln = network.add("ny ln")
    ln.receive()
    ny.send_to(ln)
    ny.region()
    ny.data["k"] = "parked"
    eventually(lambda: ny.sender(ln).parked_count == 1)
    ln.region(senders=())
    del ny.data["k"]
    network.settle()
    until_source(ln)
    looks(ln)
    assert tombstones(ln) == 1
    assert ny.sender(ln).replay_parked() == 1
    network.settle()
    assert "k" not in ln.data
    eventually(lambda: tombstones(ln) == 0)


def until_source(site):
    eventually(lambda: 0 < site.cache._core.tombstones.sources.lowest()[0] < NONE_COMES)


def test_a_site_that_never_comes_back_can_be_forgotten(network, attentive):
    ny, ln = network.mesh("ny ln")
    until_told(network)
    ny.cache.close()
    ln.data["k"] = 1
    del ln.data["k"]
    looks(ln)
    assert tombstones(ln) == 1
    assert ln.cache._core.management.handle({"op": "describe region", "name": "data"})["stats"][
        "tombstones_held_by"
    ].startswith("sender ln of server_ny (site 1), which may send")
    assert ln.cache._core.management.handle({"op": "forget site", "distributed_system_id": "1"})["forgotten"] == [
        "sender ln of server_ny (site 1)"
    ]
    eventually(lambda: tombstones(ln) == 0)


def introduce(site, *others):
    """A site that knew of no other one gets a locator that does."""
    port = site.locator.port
    site.locator.stop()
    site.locator = pywan.Locator(
        f"locator_{site.name}",
        distributed_system_id=site.id,
        port=port,
        timings=QUICK,
        remote_locators=",".join(str(other.locator.address) for other in others),
    ).start()


def parked_reasons(sender):
    return {event["key"]: event["reason"] for event in sender.parked()}


def test_a_site_that_nobody_knows_does_not_bring_destroyed_keys_back(network, attentive):
    """Its first events are older than tombstones that nobody waited for it with."""
    ny, ln = network.mesh("ny ln")
    tk = network.sites["tk"] = Site(network, "tk", ())
    tk.send_to(ny)
    tk.send_to(ln)
    tk.region()
    tk.data["k"] = "old"
    tk.data["never heard of"] = "old too"
    until_told(network, ny, ln)
    ny.data["present"] = ny.data["k"] = "newer"
    eventually(lambda: "k" in ln.data)
    del ny.data["k"]
    for site in (ny, ln):
        eventually(
            lambda site=site: core_of(site.data).tombstone_state["let_go_through"] and tombstones(site) == 0,
            what=f"no tombstone at {site}",
        )
    tk.data["present"] = tk.data["new"] = "after that"
    introduce(tk, ny, ln)
    for site in (ny, ln):
        eventually(
            lambda site=site: tk.sender(site).parked_count == 2 and not len(tk.sender(site)._core.queue),
            what=f"what tk parks for {site}",
        )
        reasons = parked_reasons(tk.sender(site))
        assert set(reasons) == {"k", "never heard of"} and all(
            "its key may have been one of them" in reason for reason in reasons.values()
        )
        assert dict(site.data) == {"present": "after that", "new": "after that"}
        assert tk.sender(site).ledger()["balanced"]
    # A site that knows of the destroy drops the parked event. An event that was not parked is sent once more.
    del tk.data["k"]
    network.settle()
    assert tk.sender(ny).drop_parked() == 2 and tk.sender(ln).replay_parked(force=True) == 2
    network.settle()
    assert "k" not in ln.data and ln.data["never heard of"] == "old too" and "never heard of" not in ny.data
    until_told(network, ny, ln)
    ny.data["later"] = 1
    del ny.data["later"]
    for site in (ny, ln):  # It is waited for now, and tells.
        eventually(lambda site=site: tombstones(site) == 0, what=f"no tombstone at {site}")


def test_a_forgotten_site_that_comes_back_does_not_either(network, attentive):
    ny, ln, tk = network.mesh("ny ln tk")
    until_told(network)
    tk.sender(ln).pause()
    tk.data["k"] = "held up"
    eventually(lambda: "k" in ny.data)
    ny.sender(ln).wait_until_flushed()
    ln.data["k"] = "newer"
    del ln.data["k"]
    looks(ln)
    assert tombstones(ln) == 1
    ln.cache.forget_site(3)
    eventually(lambda: tombstones(ln) == 0)
    tk.sender(ln).resume()
    eventually(lambda: tk.sender(ln).parked_count == 1)
    assert "k" not in ln.data


def test_an_old_load_with_timestamps_of_its_own_is_not_held_up_by_what_was_let_go(network, attentive):
    ny, ln = network.mesh("ny ln")
    until_told(network)
    ln.data["k"] = 1
    del ln.data["k"]
    eventually(lambda: core_of(ln.data).tombstone_state["let_go_through"])
    ny.data.put_columns(["a", "b"], ["1990", "1991"], timestamps=[1, 2])
    network.settle()
    assert ln.data["a"] == "1990" and ny.sender(ln).parked_count == 0


def test_too_many_tombstones_are_looked_at_when_there_are_and_not_some_time_later(network, monkeypatch, tmp_path):
    monkeypatch.setattr(pywan.member.housekeeper, "HOUSEKEEPING_S", 3600.0)
    ny, ln = network.add("ny ln")
    ny.cache.close()
    ny.start_member(maximum_tombstone_memory=1, dir=tmp_path)
    ny.receive()
    ln.send_to(ny)
    eventually(lambda: ny.receiver.connected_senders)  # It tells no floor for an hour.
    for type in ("REPLICATE", "REPLICATE_PERSISTENT"):
        region = ny.cache.create_region(type.lower(), type)
        keys = [b"key %d" % n for n in range(100_000)]  # 8 MB of tombstones.
        for at in range(0, len(keys), 1000):
            region.put_columns(keys[at : at + 1000], keys[at : at + 1000])
            region.put_columns(keys[at : at + 1000], None, operations=["destroy"] * 1000)
        eventually(
            lambda region=region: core_of(region).tombstone_state["tombstone_bytes"] <= 1 << 20,
            what="tombstones within their bound",
        )
        assert core_of(region).tombstone_state["forgotten_through"] > 0


def test_a_sender_that_is_destroyed_is_not_waited_for(network, attentive, monkeypatch, tmp_path):
    monkeypatch.setattr("pywan.gateway.telling.GOODBYE_S", 30.0)
    ny, ln, _tk = network.add("ny ln tk")
    ln.cache.close()
    ln.start_member(dir=tmp_path)
    network.connect([("ny", "ln"), ("tk", "ln")])
    until_told(network, ln)
    ny.sender(ln).pause()
    ny.data["k"] = "held up"
    ln.data["k"] = 1
    del ln.data["k"]
    looks(ln)
    eventually(lambda: "sender ln of server_ny" in ln.cache._core.tombstones.held_by())
    assert tombstones(ln) == 1
    ny.data.alter(gateway_sender_ids=())
    ny.sender(ln).destroy()
    assert all(
        source["site"] == 3
        for source in json.loads((tmp_path / "gateway-sources-server_ln.json").read_text())["sources"]
    )
    eventually(lambda: tombstones(ln) == 0)
    ny.send_to(ln)  # Another one of that name is waited for.
    ny.data.alter(gateway_sender_ids=("ln",))
    eventually(
        lambda: any(source["site"] == 1 and source["floor"] for source in ln.cache._core.tombstones.sources.view())
    )
    ny.sender(ln).pause()
    ny.data["k"] = "held up"
    ln.data["k"] = 2
    del ln.data["k"]
    looks(ln)
    assert tombstones(ln) == 1
    ny.sender(ln).resume()
    network.settle()
    assert "k" not in ln.data
    eventually(lambda: tombstones(ln) == 0)


def test_a_sender_that_cannot_say_goodbye_is_destroyed_all_the_same(network, monkeypatch, caplog):
    monkeypatch.setattr("pywan.gateway.telling.GOODBYE_S", 0.2)
    ny, ln = network.add("ny ln")
    ln.receive(through_proxy=True)
    sender = ny.send_to(ln)
    eventually(lambda: sender.is_connected)
    ln.proxy.hang()
    sender.destroy()
    assert any("its receiver did not answer" in record.message for record in caplog.records)


def test_where_nobody_feeds_a_region_its_tombstones_go(network, attentive):
    [ny] = network.add("ny")
    ny.region()
    ny.data["k"] = 1
    del ny.data["k"]
    eventually(lambda: tombstones(ny) == 0)


def test_a_member_that_restarts_waits_for_those_that_fed_it(network, attentive, tmp_path):
    ny, ln = network.add("ny ln")
    ln.cache.close()
    ln.start_member(dir=tmp_path / "ln")
    ln.receive()
    ny.send_to(ln)
    ny.region()
    ln.region(type="REPLICATE_PERSISTENT", senders=())
    ny.data["k"] = "old"
    network.settle()
    until_source(ln)
    ny.sender(ln).pause()
    ny.data["k"] = "held up"
    # The destroy is later, also where both come in one tick of the clock.
    ln.cache._core.state.clock.see(core_of(ny.data).lookup("k")[1])
    del ln.data["k"]
    looks(ln)
    assert tombstones(ln) == 1
    ln.cache.close()
    [kept] = json.loads((tmp_path / "ln" / "gateway-sources-server_ln.json").read_text())["sources"]
    assert (kept["site"], kept["sender"]) == (1, "ln")
    ln.start_member(dir=tmp_path / "ln")
    ln.region(type="REPLICATE_PERSISTENT", senders=())
    looks(ln)
    assert tombstones(ln) == 1
    ln.receive()
    ny.sender(ln).resume()
    network.settle()
    assert "k" not in ln.data
    eventually(lambda: tombstones(ln) == 0)


@pytest.mark.parametrize(
    "kind, words",
    [
        ("link", "is a symbolic link"),
        ("dangling", "is a symbolic link"),
        ("fifo", "is not a regular file"),
        ("large", "has more than 200000 bytes"),
        ("deep", "does not hold what this member wrote"),
    ],
)
def test_a_file_of_sources_that_is_not_its_own_is_refused_by_name(tmp_path, monkeypatch, kind, words):
    path = tmp_path / "sources.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("link", "dangling"):
        if kind == "link":
            (tmp_path / "elsewhere").write_text('{"sources": []}')
        path.symlink_to(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr("pywan.gateway.floors.FILE_BYTES_MAX", 200_000)
        path.write_text("[" * 100_000 if kind == "deep" else " " * 200_001)
    with pytest.raises(ConfigurationError, match=rf"sources\.json {words}"):
        SourceFloors(LN, path)
