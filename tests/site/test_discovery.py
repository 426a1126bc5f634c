"""Discovery without a network: every locator ends with every site's full set, and the table of members."""

import itertools
import random

import pytest

from pywan.base.addresses import Address
from pywan.config.cluster import ClusterConfiguration
from pywan.errors import ConfigurationError, IncompatibleSystemError, ProtocolError
from pywan.protocol import discovery
from pywan.protocol.discovery import (
    CANDIDATES_AT_ONCE,
    MAX_CANDIDATES,
    MAX_LOCATORS_PER_SITE,
    LocatorProfile,
    LocatorState,
    Timings,
)
from pywan.protocol.members import MAX_MEMBERS, ON_THE_WAY_MAX, ON_THE_WAY_MS, MemberTable, ReceiverWish


class World:
    """Locators in one process, a clock, and messages that arrive in an order the seed decides, or not at all."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.now = 0
        self.locators: dict[Address, LocatorState] = {}
        self.configurations: dict[Address, ClusterConfiguration] = {}
        self.messages = 0
        self.unreachable: set[Address] = set()
        self.conflicts = []

    def start(self, site, port, *, locators=(), remotes=(), host="h"):
        me = LocatorProfile(site, host, port, f"locator{port}")
        config = ClusterConfiguration()
        state = LocatorState(
            me,
            f"uid{port}-{self.now}",
            [Address(host, p) for p in locators],
            [Address(host, p) for p in remotes],
            extra=config.entries,
            extra_digest=config.digest,
            merge_extra=config.merge,
        )
        self.configurations[me.address] = config
        self.locators[me.address] = state
        return state

    def stop(self, port):
        del self.locators[Address("h", port)]

    def run(self, ms):
        end = self.now + ms
        while self.now <= end:
            work = [(state, contact) for state in self.locators.values() for contact in state.due(self.now)]
            self.random.shuffle(work)
            for state, contact in work:
                self.deliver(state, contact)
            if not work:
                self.now = min(
                    [
                        end + 1,
                        *(d for s in self.locators.values() if (d := s.next_due_ms()) is not None and d > self.now),
                    ]
                )

    def deliver(self, state, contact):
        self.messages += 1
        there = self.locators.get(contact.address)
        if there is None or contact.address in self.unreachable:
            state.failed(contact.address, "refused", self.now)
            return
        try:
            reply = (
                there.on_ping(contact.request)
                if contact.request["op"] == "ping"
                else there.on_join(contact.request, self.now)
            )
            state.received(contact.address, contact.request, reply, self.now)
        except IncompatibleSystemError as error:
            self.conflicts.append(str(error))
            state.failed(contact.address, str(error), self.now, conflict=True)
        except ProtocolError as error:
            state.failed(contact.address, str(error), self.now)

    def assert_all_know_all(self):
        expected = {}
        for address, state in self.locators.items():
            expected.setdefault(state.me.distributed_system_id, set()).add(address)
        for state in self.locators.values():
            assert {site: set(found) for site, found in state.known_sites().items()} == expected, state.me


LN, NY, TK, HK = 1, 2, 3, 4


@pytest.mark.parametrize("order", list(itertools.permutations((LN, TK, HK))))
@pytest.mark.parametrize("gap_ms", [0, 700, 20_000])
def test_two_sites_that_know_only_a_third_find_each_other(order, gap_ms):
    world = World()
    for site in order:
        world.start(site, site, remotes=[] if site == LN else [LN])
        world.run(gap_ms)
    world.run(25_000)
    world.assert_all_know_all()


@pytest.mark.parametrize("seed", range(5))
def test_a_ring_of_four_sites_becomes_complete(seed):
    world = World(seed)
    ring = [LN, NY, TK, HK]
    for at, site in enumerate(ring):
        world.start(site, site, remotes=[ring[(at + 1) % 4]])
        world.run(world.random.choice([0, 100, 3000]))
    world.run(15_000)
    world.assert_all_know_all()


@pytest.mark.parametrize("seed", range(5))
def test_three_sites_of_three_locators_started_at_once(seed):
    world = World(seed)
    ports = {site: [site * 10 + i for i in range(3)] for site in (LN, NY, TK)}
    for site, own in ports.items():
        others = [p[0] for s, p in ports.items() if s != site]
        for port in own:
            world.start(site, port, locators=own, remotes=others)
    world.run(10_000)
    world.assert_all_know_all()


def test_traffic_in_a_settled_net_is_small_pings_only():
    world = World()
    for port in range(1, 13):
        world.start(port % 4, port, remotes=[1] if port % 4 != 1 else [2])
    world.run(20_000)
    world.assert_all_know_all()
    settled, world.messages = world.messages, 0
    assert settled < 12 * 12 * 6
    ops = []
    original = world.deliver
    world.deliver = lambda state, contact: (ops.append(contact.request["op"]), original(state, contact))
    world.run(20_000)
    assert set(ops) == {"ping"} and len(ops) <= 12 * 12 * 5


def test_a_restarted_locator_that_knows_nobody_is_told_again():
    world = World()
    world.start(LN, 1)
    world.start(TK, 3, remotes=[1])
    world.run(10_000)
    world.stop(1)
    world.run(30_000)
    assert Address("h", 1) in world.locators[Address("h", 3)].locators_of(LN)  # Not forgotten while it is away.
    world.start(LN, 1)
    world.run(20_000)
    world.assert_all_know_all()


def test_an_address_that_changes_its_site_is_learned_everywhere():
    world = World()
    for site in (LN, NY, TK):
        world.start(site, site, remotes=[LN] if site != LN else [])
    world.run(10_000)
    world.stop(TK)
    world.run(3_000)
    world.start(HK, TK, remotes=[LN])  # Site 4 where site 3 was.
    world.run(20_000)
    world.assert_all_know_all()


def test_two_locators_of_one_site_must_agree_about_its_id():
    world = World()
    world.start(1, 1)
    second = world.start(2, 2, locators=[1, 2])
    world.run(100)
    assert "must agree" in second.conflicts()[0]
    assert world.locators[Address("h", 1)].known_sites() == {1: [Address("h", 1)]}


def test_a_remote_site_with_our_own_id_is_refused():
    world = World()
    world.start(1, 1)
    second = world.start(1, 2, remotes=[1])
    third = world.start(3, 3, remotes=[3])
    world.run(100)
    assert "same distributed-system-id 1" in second.conflicts()[0]
    assert "this locator itself" in third.conflicts()[0]


def test_an_own_entry_under_another_name_is_recognised():
    world = World()
    state = world.start(1, 1, locators=[9])
    world.locators[Address("h", 9)] = state
    world.run(10_000)
    assert state.known_sites() == {1: [Address("h", 1)]} and not state.problems() and world.messages <= 1


def test_one_that_cannot_be_reached_is_retried_ever_more_slowly_and_joined_when_it_comes():
    world = World()
    state = world.start(1, 1, remotes=[2])
    world.run(60_000)
    assert 6 <= world.messages <= 16 and state.first_round_done()
    world.start(2, 2)
    world.run(state.timings.retry_max_ms + 100)
    world.assert_all_know_all()


def test_a_locator_known_by_two_names_is_contacted_by_one():
    world = World()
    inner = world.start(2, 2, host="inner")
    world.locators[Address("h", 2)] = inner
    world.start(1, 1, remotes=[2])
    world.run(10_000)
    world.messages = 0
    world.run(10_000)
    assert world.messages <= 6


def test_configuration_entries_reach_the_sites_other_locators_only():
    world = World()
    first = world.start(1, 1, locators=[1, 2])
    second = world.start(1, 2, locators=[1, 2])
    other = world.start(3, 3, remotes=[1])
    world.run(5_000)
    of_first, of_second, of_other = (world.configurations[state.me.address] for state in (first, second, other))
    of_first.put("region", "a", {}, "x1")
    first.extra_changed(world.now)
    of_second.put("region", "b", {}, "x2")
    second.extra_changed(world.now)
    world.run(2_000)
    assert of_first.things() == of_second.things() and len(of_first.things()) == 2
    assert of_other.things() == []


@pytest.mark.parametrize(
    "bad",
    [
        None,
        {},
        {"host": "h"},
        *(
            {"distributed_system_id": 1, "host": "h", "port": 1, "name": "n", **change}
            for change in (
                {"port": 0},
                {"port": "1"},
                {"distributed_system_id": 256},
                {"distributed_system_id": True},
                {"host": ""},
                {"host": "x" * 300},
                {"host": "a\nb"},
                {"host": ["h"]},
                {"name": 3},
                {"name": "\x1b[2J"},
                {"name": ".."},
            )
        ),
    ],
)
def test_a_profile_from_the_network_is_checked(bad):
    world = World()
    state = world.start(1, 1, remotes=[2])
    with pytest.raises(ProtocolError):
        state.on_join({"uid": "x", "from": bad, "role": "remote"}, 0)
    [contact] = state.due(0)
    for answer in ({"from": bad, "sites": []}, {"from": LocatorProfile(2, "h", 2, "n").to_map(), "sites": [bad]}):
        with pytest.raises(ProtocolError):
            state.received(contact.address, contact.request, {"uid": "x", **answer}, 0)
    assert state.known_sites() == {1: [Address("h", 1)]}


def joined_by(world, state, peer, **more):
    return state.on_join(
        {"uid": "evil", "from": peer.to_map(), "role": "learned", "digest": "d", "digest_in_site": "d", **more},
        world.now,
    )


class Liar:
    """Answers as a locator, and tells of others whatever it wants."""

    def __init__(self, me, sites):
        self.me, self.sites = me, sites

    def on_join(self, request, now):
        return {
            "from": self.me.to_map(),
            "uid": "liar",
            "digest": "x",
            "digest_in_site": "x",
            "sites": [p.to_map() for p in self.sites],
        }

    def on_ping(self, request):
        return {"uid": "liar", "digest": f"{random.random()}", "digest_in_site": "x"}

    def due(self, now):
        return []

    def next_due_ms(self):
        return None


def test_addresses_that_a_stranger_tells_are_neither_believed_nor_passed_on():
    world = World()
    state = world.start(1, 1)
    joined_by(
        world,
        state,
        LocatorProfile(2, "invented", 2, "n"),
        sites=[LocatorProfile(n % 256, f"h{n}", 1, "n").to_map() for n in range(16_448)],
    )
    world.run(5_000)
    assert state.known_sites() == {1: [Address("h", 1)]} and len(state.peers()) == 1
    assert [p["port"] for p in joined_by(world, state, LocatorProfile(3, "other", 2, "n"))["sites"]] == [1]


def test_what_a_locator_tells_of_others_is_asked_for_there_and_forgotten_if_nobody_answers(monkeypatch):
    monkeypatch.setattr(discovery, "CANDIDATE_MS", 60_000)
    world = World()
    state, neighbour = world.start(1, 1, remotes=[9]), world.start(2, 2, remotes=[1])
    lies = [LocatorProfile(3, f"h{n}", 1, "n") for n in range(MAX_CANDIDATES + 50)]
    liar = Liar(LocatorProfile(9, "h", 9, "liar"), lies)
    world.locators[Address("h", 9)] = liar
    world.run(20_000)
    assert state.known_sites() == {1: [Address("h", 1)], 2: [Address("h", 2)], 9: [Address("h", 9)]}
    assert neighbour.known_sites() == state.known_sites()  # It asks the liar too, and passes on no lie.
    assert len(state.peers()) <= MAX_CANDIDATES + 3
    honest = world.start(3, 3, remotes=[1])  # Between all those that do not answer it finds its place.
    world.run(30_000)
    assert Address("h", 3) in state.locators_of(3) and set(honest.known_sites()) == {1, 2, 3, 9}
    liar.sites = []
    world.run(90_000)
    assert len(state.peers()) <= 4


def test_few_invented_addresses_are_asked_at_a_time():
    world = World()
    state = world.start(1, 1, remotes=[9])
    world.locators[Address("h", 9)] = Liar(
        LocatorProfile(9, "h", 9, "liar"), [LocatorProfile(3, f"h{n}", 1, "n") for n in range(60)]
    )
    [contact] = state.due(0)
    world.deliver(state, contact)
    assert len([c for c in state.due(10_000) if c.address.host != "h"]) == CANDIDATES_AT_ONCE
    assert state.due(10_000) == []
    assert state.next_due_ms() is None or state.next_due_ms() > 10_000  # It does not spin while they are under way.


def test_nobody_can_speak_for_an_address_that_answers_itself():
    world = World()
    state, _honest = world.start(1, 1, remotes=[2, 9]), world.start(2, 2)
    world.run(1_000)
    world.locators[Address("h", 9)] = Liar(
        LocatorProfile(7, "h", 2, "taken-over"), [LocatorProfile(7, "h", 2, "taken-over")]
    )
    joined_by(world, state, LocatorProfile(7, "h", 2, "taken-over"))
    world.run(30_000)
    assert state.locators_of(2) == [Address("h", 2)] and state.locators_of(7) == []
    world.locators[Address("h", 9)] = Liar(LocatorProfile(9, "h", 1, "our-own"), [])
    world.run(30_000)
    assert state.locators_of(1) == [Address("h", 1)] and "own address" in " ".join(state.problems())


def test_requests_of_others_do_not_make_a_locator_send_as_many():
    world = World()
    state = world.start(1, 1)
    world.start(2, 2, remotes=[1])
    world.run(10_000)
    world.messages = 0
    for n in range(1_000):
        state.on_join(
            {
                "uid": f"{n}",
                "from": LocatorProfile(2, "h", 2, "locator2").to_map(),
                "role": "learned",
                "digest": f"{n}",
                "digest_in_site": "",
            },
            world.now,
        )
        world.run(1)
    assert world.messages <= 10


def test_locators_that_reach_different_ones_do_not_exchange_everything_again_and_again():
    world = World()
    for port in (1, 2, 3):
        world.start(port, port, remotes=[2] if port != 2 else [])
    deliver = world.deliver
    world.deliver = lambda state, contact: (
        state.failed(contact.address, "no way", world.now)
        if {state.me.port, contact.address.port} == {1, 3}
        else deliver(state, contact)
    )
    world.run(30_000)
    ops = []
    counted, world.deliver = (
        world.deliver,
        lambda state, contact: (ops.append(contact.request["op"]), counted(state, contact)),
    )
    world.run(120_000)
    assert world.locators[Address("h", 1)].known_sites().keys() == {1, 2}
    assert len([op for op in ops if op == "ping"]) > 60 and len([op for op in ops if op != "ping"]) < 50


def test_locators_kept_are_bounded():
    world = World()
    state = world.start(1, 1, remotes=[1000])
    told = [LocatorProfile(2, "h", port, f"locator{port}") for port in range(2, 2 + 2 * MAX_LOCATORS_PER_SITE)]
    for profile in told:
        world.locators[profile.address] = Liar(profile, [])
    world.locators[Address("h", 1000)] = Liar(LocatorProfile(3, "h", 1000, "n"), told)
    world.run(60_000)
    assert len(state.locators_of(2)) == MAX_LOCATORS_PER_SITE


# --- members -----------------------------------------------------------------------------------------------------


def profile(name, member_id, *, load=0, receivers=1, **more):
    return {
        "name": name,
        "member_id": member_id,
        "host": "h",
        "port": 7000,
        "pid": 1,
        "load": load,
        "receivers": [{"host": "same", "port": 5000 + i} for i in range(receivers)],
        **more,
    }


NONCE = b"n" * 16
ANY = ReceiverWish()


def test_senders_that_ask_at_once_are_spread_by_load_and_turn():
    table = MemberTable(lease_ms=5000)
    for i, load in enumerate((0, 0, 3)):
        table.join(profile(f"m{i}", i, load=load), NONCE, 0)
    given = [table.hand_out(ANY, 0)["member"] for _ in range(9)]
    assert sorted(given) == ["m0"] * 4 + ["m1"] * 4 + ["m2"]
    table.heartbeat({"nonce": NONCE, "name": "m0", "member_id": 0, "load": 3}, 10)
    assert table.hand_out(ANY, 11)["member"] == "m2"  # Three of the four have arrived: as many are there as before.
    # The others do not come any more, and nor do those of the other members.
    assert [each["load"] for each in table.receivers(10 + ON_THE_WAY_MS + 1)] == [3, 0, 3]
    assert [table.hand_out(ANY, 10 + ON_THE_WAY_MS + 1)["member"] for _ in range(3)] == ["m1"] * 3


def told(table, name, member_id, load, now_ms, dispatchers=None):
    more = {}
    if dispatchers is not None:
        there = list(dispatchers) if isinstance(dispatchers, range) else dispatchers
        more = {"receivers": [{"host": "same", "port": 5000, "dispatchers": there}]}
    assert table.heartbeat({"nonce": NONCE, "name": name, "member_id": member_id, "load": load, **more}, now_ms)


def test_a_receiver_counts_those_who_come_until_its_load_shows_them():
    """A heartbeat that was on its way before they arrived must not make them forgotten."""
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)
    given = [table.hand_out(ANY, 0)["member"]]
    for n in range(1, 5):
        told(table, "a", 1, 0, n)
        told(table, "b", 2, 0, n)
        given.append(table.hand_out(ANY, n)["member"])
    assert sorted([given.count("a"), given.count("b")]) == [2, 3]
    assert sorted(each["load"] for each in table.receivers(5)) == [2, 3]


def test_dispatchers_that_come_again_before_the_loads_show_it_are_counted_once():
    """A sender is made anew a moment after it has begun to connect, and another one begins."""
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)

    def ask(dispatcher, **wish):
        at[dispatcher] = table.hand_out(ReceiverWish(dispatchers=(dispatcher,), **wish), 1)["member"]

    at: dict[int, str] = {}
    for first in range(4):
        ask(first)
    there = [each for each in range(4) if at[each] == "a"]
    told(table, "a", 1, 2, 1, there)  # Both have come there; at the other receiver nobody has yet.
    for again in range(4):
        ask(again)
    for other in range(4, 8):
        ask(other)
    assert sorted(at.values()) == ["a"] * 4 + ["b"] * 4
    assert [each["load"] for each in table.receivers(1)] == [4, 4]
    told(table, "a", 1, 4, 2, [each for each in at if at[each] == "a"])
    told(table, "b", 2, 4, 2, [each for each in at if at[each] == "b"])
    assert [each["load"] for each in table.receivers(2)] == [4, 4]


def test_a_dispatcher_that_came_elsewhere_than_it_was_sent_is_counted_there():
    """Several receivers are behind one address."""
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)
    assert table.hand_out(ReceiverWish(dispatchers=(7,)), 0)["member"] == "a"
    told(table, "b", 2, 1, 1, [7])
    assert [each["load"] for each in table.receivers(1)] == [0, 1]


def test_dispatchers_that_move_are_counted_where_they_go():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)
    told(table, "a", 1, 5, 0, range(5))
    moves = [table.hand_out(ReceiverWish(instead_of=1, dispatchers=(each,)), 1) for each in range(4)]
    assert [move and move["member"] for move in moves] == ["b", "b", None, None]
    assert [each["load"] for each in table.receivers(1)] == [3, 2]
    told(table, "a", 1, 4, 2, range(1, 5))
    told(table, "b", 2, 1, 2, [0])
    assert [each["load"] for each in table.receivers(2)] == [3, 2]


def test_what_a_receiver_says_of_dispatchers_is_checked():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    for wrong in (7, ["a"], [-1], [2**32], [True], [0] * 1025):
        with pytest.raises(ProtocolError, match="dispatchers"):
            told(table, "a", 1, 1, 0, wrong)


def test_a_sender_that_comes_back_keeps_its_receiver_while_that_is_there():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1, load=9), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)
    assert table.hand_out(ReceiverWish(keep=1), 0)["member"] == "a"
    assert table.hand_out(ReceiverWish(keep=1, exclude=frozenset({1})), 0)["member"] == "b"
    assert table.hand_out(ReceiverWish(keep=7), 0)["member"] == "b"
    table.heartbeat({"nonce": NONCE, "name": "a", "member_id": 1, "receivers": []}, 1)
    assert table.hand_out(ReceiverWish(keep=1), 1)["member"] == "b"


def test_only_as_many_connections_move_as_even_the_loads_out():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1, load=5), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)
    moves = [table.hand_out(ReceiverWish(instead_of=1), 0) for _ in range(4)]
    assert [move and move["member"] for move in moves] == ["b", "b", None, None]
    told(table, "b", 2, 1, 1)
    told(table, "a", 1, 4, 1)
    assert [each["load"] for each in table.receivers(1)] == [3, 2]
    assert table.hand_out(ReceiverWish(instead_of=1), 1) is None
    assert table.hand_out(ReceiverWish(instead_of=7), 1) is None  # Nobody knows how many are there.


def test_connections_that_move_together_move_only_if_that_is_better():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1, load=5), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)
    assert table.hand_out(ReceiverWish(instead_of=1, connections=5), 0) is None
    told(table, "a", 1, 6, 1)
    assert table.hand_out(ReceiverWish(instead_of=1, connections=5), 1)["member"] == "b"
    assert [each["load"] for each in table.receivers(1)] == [1, 5]


@pytest.mark.parametrize(
    "request_",
    [
        {"exclude": 1},
        {"exclude": ["a"]},
        {"exclude": [True]},
        {"exclude": [-1]},
        {"exclude": [2**32]},
        {"exclude": list(range(MAX_MEMBERS + 1))},
        {"keep": "a"},
        {"keep": 2**32},
        {"instead_of": -1},
        {"instead_of": 1.5},
        {"connections": 0},
        {"connections": None},
        {"connections": 65_537},
        {"dispatchers": 1},
        {"dispatchers": ["a"]},
        {"dispatchers": [2**32]},
        {"dispatchers": [1, 2]},
    ],
)
def test_a_wish_for_a_receiver_is_checked(request_):
    with pytest.raises(ConfigurationError, match="receiver: "):
        ReceiverWish.of(request_)


def test_expected_connections_are_bounded():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    for _ in range(1000):
        table.hand_out(ReceiverWish(connections=65_536), 0)
    assert [each["load"] for each in table.receivers(0)] == [ON_THE_WAY_MAX]


def test_receivers_behind_one_address_are_told_apart_by_member():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    table.join(profile("b", 2), NONCE, 0)
    assert {table.hand_out(ANY, 0)["member_id"], table.hand_out(ANY, 0)["member_id"]} == {1, 2}
    assert table.hand_out(ReceiverWish(frozenset({1})), 0)["member_id"] == 2
    assert table.hand_out(ReceiverWish(frozenset({1, 2})), 0) is None


def test_an_unresponsive_member_is_dropped_and_a_late_goodbye_does_not_hit_its_successor():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    assert table.heartbeat({"nonce": NONCE, "name": "a", "member_id": 1, "load": 2}, 4000)
    assert table.expire(9000) == [] and table.next_expiry_ms() == 9001
    assert [m.name for m in table.expire(9001)] == ["a"] and table.hand_out(ANY, 9001) is None
    assert not table.heartbeat({"nonce": NONCE, "name": "a", "member_id": 1}, 9002)
    table.join(profile("a", 2), NONCE, 9003)
    assert not table.leave({"name": "a", "member_id": 1, "nonce": NONCE}) and table.leave(
        {"name": "a", "member_id": 2, "nonce": NONCE}
    )


def test_what_a_locator_keeps_of_a_member_lets_nobody_speak_for_it():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1), NONCE, 0)
    kept = [each for each in vars(table.get("a")).values() if isinstance(each, bytes)]
    assert kept
    assert not any(table.leave({"name": "a", "member_id": 1, "nonce": each}) for each in kept)


def test_a_client_is_never_given_a_receiver():
    table = MemberTable(lease_ms=5000)
    table.join(profile("a", 1, receivers=2), NONCE, 0)
    assert "receivers" not in table.servers()[0] and table.servers()[0]["port"] == 7000


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": 5},
        {"member_id": -1},
        {"member_id": 2**32},
        {"port": 70000},
        {"host": None},
        {"load": -1},
        {"receivers": "x"},
        {"receivers": [1]},
        {"receivers": [{"host": "h", "port": 0}]},
        {"distributed_system_id": 999},
    ],
)
def test_a_members_profile_is_checked(change):
    with pytest.raises(ProtocolError):
        MemberTable(lease_ms=5000).join({**profile("a", 1), **change}, NONCE, 0)


def test_members_are_bounded():
    table = MemberTable(lease_ms=5000)
    for i in range(MAX_MEMBERS):
        table.join(profile(f"m{i}", i), NONCE, 0)
    with pytest.raises(ConfigurationError, match="1024"):
        table.join(profile("one-more", 5), NONCE, 0)


def test_timings_have_the_documented_defaults():
    assert Timings() == Timings(5_000, 500, 10_000, 30, 60_000)


def test_where_people_are_asked_only_the_own_site_names_its_locators():
    """An answer is believed no further than the same request would be."""
    me = LocatorProfile(1, "h", 1, "me")
    taken = []
    state = LocatorState(
        me, "u", [Address("h", 2)], [Address("h", 9)], extra=lambda: "ours", merge_extra=taken.append, asks_who=True
    )
    contacts = {each.address.port: each for each in state.due(0)}
    assert {port: each.is_own for port, each in contacts.items()} == {2: True, 9: False}
    assert contacts[2].request["extra"] == "ours" and contacts[9].request["extra"] is None

    def reply(port, site, sites=()):
        return {
            "from": LocatorProfile(site, "h", port, f"l{port}").to_map(),
            "uid": f"u{port}",
            "sites": [LocatorProfile(of, "h", p, f"l{p}").to_map() for p, of in sites],
            "extra": f"of {port}",
        }

    # One of another site names one of this site, and it is another one's word.
    state.received(Address("h", 9), contacts[9].request, reply(9, 2, [(3, 1), (8, 2)]), 0)
    state.received(Address("h", 2), contacts[2].request, reply(2, 1, [(4, 1), (7, 2)]), 0)
    candidates = {each.address.port: each for each in state.due(100) if each.address.port != 9}
    assert {port: each.is_own for port, each in candidates.items()} == {3: False, 8: False, 4: True, 7: False}
    assert candidates[4].request["extra"] == "ours" and candidates[3].request["extra"] is None
    with pytest.raises(ProtocolError, match="says that it is locator l3 of this site, which no locator of this site"):
        state.received(Address("h", 3), candidates[3].request, reply(3, 1), 100)
    state.received(Address("h", 4), candidates[4].request, reply(4, 1), 100)
    assert state.locators_of(1) == [Address("h", 1), Address("h", 2), Address("h", 4)]
    assert taken == ["of 2", "of 4"]
    # Once somebody of this site names it, it is one.
    state.failed(Address("h", 3), "no", 100)
    me_too = LocatorProfile(1, "h", 3, "l3").to_map()
    state.on_join({"uid": "u3", "from": me_too, "role": "local", "extra": None}, 200)
    again = {each.address.port: each for each in state.due(20_000)}
    assert again[3].is_own
    state.received(Address("h", 3), again[3].request, reply(3, 1), 20_000)
    assert Address("h", 3) in state.locators_of(1)
