"""What a site of two members tells of events: filters hear of what the remote site acknowledged and of nothing else,
listeners hear which site made a change, and logs name the events that failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pywan import CacheListener, GatewayEventFilter
from pywan.events import EntryEvent
from pywan.member.cache import Cache
from pywan.testing.local_site import LocalSite
from pywan.testing.waiting import eventually

KEYS = 100
PROBES = {f"probe {n} {'long' * 100}": n for n in range(2000)}  # In each bucket of a region there are some.
REGIONS = {
    "serial": {"type": "REPLICATE"},
    "parallel": {"type": "PARTITION", "total_num_buckets": 7, "redundant_copies": 1},
}
pytestmark = pytest.mark.whole


class Two:
    """Two sites. The first has two members, which hold the region and send, and a filter at each of them."""

    def __init__(self) -> None:
        self.ln = LocalSite("ln", 2)
        self.ny = LocalSite("ny", 1, [self.ln])
        eventually(lambda: 2 in self.ny.locator.known_sites(), what="the remote site")
        self.members: list[Cache] = []

    def receive(self, *regions: str, kind: str = "serial", **more) -> None:
        cache = self.ln.start_member()
        for name in regions:
            cache.create_region(name, **REGIONS[kind], **more)
        cache.create_gateway_receiver(start_port=0, end_port=0)

    def send(self, kind: str, filters: list[GatewayEventFilter], **more) -> None:
        for n, each in enumerate(filters):
            member = Cache(f"member_{n}", locators=str(self.ny.locator.address))
            self.members.append(member)
            member.create_gateway_sender(
                "ln",
                remote_distributed_system_id=2,
                parallel=kind == "parallel",
                batch_time_interval=20,
                gateway_event_filters=[each],
                **more,
            )
            member.create_region("data", gateway_sender_ids=["ln"], **REGIONS[kind])
        eventually(self._hold_all, what="replicas at both members")

    def _hold_all(self) -> bool:
        """Whether both members get events of all buckets."""
        before = [each["received"] for each in self.ledgers()]
        self.members[0].region("data").put_all(PROBES)
        return [each["received"] for each in self.ledgers()] == [count + len(PROBES) for count in before]

    def ledgers(self) -> list[dict]:
        return [member.gateway_sender("ln").ledger() for member in self.members]

    def is_empty(self) -> bool:
        return not any(each["in_queue"] for each in self.ledgers())

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.ny.close()
        self.ln.close()


@pytest.fixture
def two() -> Iterator[Two]:
    sites = Two()
    yield sites
    sites.close()


class WantsAcknowledgements(GatewayEventFilter):
    """Lets no event leave whose key is an odd number, and remembers what was acknowledged."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses, self.keys = refuses, []

    def before_transmit(self, event) -> bool:
        return not (self.refuses and isinstance(event.key, int) and event.key % 2)

    def after_acknowledgement(self, event) -> None:
        if event.key not in PROBES:
            self.keys.append(event.key)


@pytest.mark.parametrize("kind", REGIONS)
def test_each_holder_is_told_of_what_was_acknowledged_and_not_of_what_a_filter_refused(two, kind):
    received = [WantsAcknowledgements(refuses=True), WantsAcknowledgements(refuses=True)]
    two.receive("data", kind=kind)
    two.send(kind, received)
    for n in range(KEYS):
        two.members[0].region("data")[n] = n
    eventually(two.is_empty, what="empty queues")
    eventually(lambda: all(len(each.keys) >= KEYS // 2 for each in received), what="acknowledgements at both members")
    assert [sorted(set(each.keys)) for each in received] == [list(range(0, KEYS, 2))] * 2
    assert set(two.ln.cache.region("data")) == {*PROBES, *range(0, KEYS, 2)}
    ledgers = two.ledgers()
    assert all(each["balanced"] for each in ledgers)
    assert sum(each["filtered_before_transmit"] for each in ledgers) == KEYS // 2  # The member that sends counts them.


@pytest.mark.parametrize("kind", REGIONS)
def test_no_holder_is_told_of_what_the_remote_site_refused_and_both_logs_name_it(two, kind, caplog):
    received = [WantsAcknowledgements(), WantsAcknowledgements()]
    two.receive("another", kind=kind)
    two.send(kind, received)
    for n in range(KEYS):
        two.members[0].region("data")[n] = n
    eventually(two.is_empty, what="empty queues")
    assert [each.keys for each in received] == [[], []]
    ledgers = two.ledgers()
    assert all(each["balanced"] and each["distributed"] == 0 for each in ledgers)
    assert sum(each["parked"] for each in ledgers) >= KEYS
    for log in ("pywan.sender", "pywan.receiver"):
        lines = [each.getMessage() for each in caplog.records if each.name == log and "longlong" in each.getMessage()]
        assert lines and all("of region 'data'" in each and len(each) < 400 for each in lines)
        assert all("the region does not exist at the remote site" in each for each in lines)
        assert any("the create of key 'probe " in each for each in lines)


class Telling(CacheListener):
    def __init__(self) -> None:
        self.events: list[EntryEvent] = []

    def after_create(self, event: EntryEvent) -> None:
        self.events.append(event)

    after_update = after_destroy = after_create


def shown(event: EntryEvent) -> tuple:
    """What a listener is told, apart from the region."""
    change = (event.operation, event.key, event.old_value, event.new_value, event.callback_argument)
    return (*change, event.is_origin_remote, event.origin_site, event.possible_duplicate)


def both_receive(region, *told: Telling) -> bool:
    """Whether these listeners are told of changes in all buckets. They have forgotten these changes then."""
    for each in told:
        each.events.clear()
    region.put_all(PROBES)
    eventually(lambda: len(told[0].events) == len(PROBES))
    try:
        eventually(lambda: len(told[1].events) == len(PROBES), timeout=2.0)
    except AssertionError:
        return False
    for each in told:
        each.events.clear()
    return True


def test_listeners_of_a_shared_region_are_told_what_those_of_a_region_of_one_member_are(two):
    """Single changes and many at once, of this site and of another one; on the member that leads and on a replica."""
    told = {name: Telling() for name in ("alone", "led", "copied")}
    first = two.ln.start_member()
    first.create_region("alone", type="REPLICATE", cache_listeners=[told["alone"]])
    first.create_region("shared", type="REPLICATE", cache_listeners=[told["led"]])
    second = Cache("second", locators=str(two.ln.locator.address))
    far = two.ny.start_member()
    try:
        second.create_region("shared", type="REPLICATE", cache_listeners=[told["copied"]])
        first.create_gateway_receiver(start_port=0, end_port=0)
        far.create_gateway_sender("ln", remote_distributed_system_id=2, batch_time_interval=20)
        names = {"alone": first.region("alone"), "shared": first.region("shared")}
        eventually(lambda: both_receive(names["shared"], told["led"], told["copied"]), what="replicas at both members")
        for name in names:
            far.create_region(name, type="REPLICATE", gateway_sender_ids=["ln"])

        def change(at: Cache, site: str) -> None:
            for name in names:
                region = at.region(name)
                region.put(f"{site} one", 1, callback_argument="why")
                region.put(f"{site} one", 2)
                region.destroy(f"{site} one", callback_argument="gone")
                region.put_all({f"{site} {n}": n for n in range(50)})

        change(far, "far")
        eventually(lambda: all(len(each.events) == 53 for each in told.values()), what="the far changes")
        change(first, "here")
        eventually(lambda: all(len(each.events) == 106 for each in told.values()), what="the changes made here")
        expected = sorted(map(repr, map(shown, told["alone"].events)))
        for name in ("led", "copied"):
            assert sorted(map(repr, map(shown, told[name].events))) == expected, name
        for each in told.values():
            assert {(e.is_origin_remote, e.origin_site) for e in each.events if e.key.startswith("far")} == {(True, 1)}
            assert {(e.is_origin_remote, e.origin_site) for e in each.events if e.key.startswith("here")} == {
                (False, 2)
            }

        first.close()  # The other member leads now.
        told["copied"].events.clear()
        second.create_gateway_receiver(start_port=0, end_port=0)
        far.region("shared")["after"] = 1
        eventually(
            lambda: (
                [(e.key, e.is_origin_remote, e.origin_site) for e in told["copied"].events][-1:] == [("after", True, 1)]
            ),
            what="a far change after the takeover",
        )
    finally:
        second.close()
