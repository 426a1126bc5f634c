"""A site of one member sends events to a site of several members, in processes of their own, which share regions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pywan
from pywan.site.locator import Locator
from pywan.testing.site_processes import MemberProcess
from pywan.testing.waiting import LIMIT_S, eventually
from site_crash.world import Site

BUCKETS = 7  # Fewer than the sending site has, which has 113.
REGIONS = [
    {"name": "data", "type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1, "recovery_delay": 0},
    {"name": "copied", "type": "REPLICATE"},
]
SENDERS = [("serial", False), ("parallel", True)]


class Source:
    """The sending site: region "data" goes by a parallel sender, and region "copied" by a serial one."""

    def __init__(self, remote_port: int) -> None:
        self.locator = Locator(
            "locator_ny", distributed_system_id=2, port=0, remote_locators=f"127.0.0.1[{remote_port}]"
        ).start()
        self.cache = pywan.Cache("ny", locators=str(self.locator.address))
        self.senders = [
            self.cache.create_gateway_sender(
                name,
                remote_distributed_system_id=1,
                parallel=parallel,
                batch_time_interval=10,
                retry_interval_ms=50,
                batch_size=1000,
            )
            for name, parallel in SENDERS
        ]
        self.data = self.cache.create_region("data", type="PARTITION", gateway_sender_ids=["parallel"])
        self.copied = self.cache.create_region("copied", type="REPLICATE", gateway_sender_ids=["serial"])

    def settle(self) -> None:
        for sender in self.senders:
            assert sender.wait_until_flushed(timeout=LIMIT_S), sender.lag()
            assert sender.parked_count == 0, sender.parked(5)

    @property
    def waiting(self) -> int:
        return sum(sender.queue_size for sender in self.senders)

    @property
    def sent_again(self) -> int:
        return sum(sender.stats["possible_duplicates_sent"] for sender in self.senders)

    def close(self) -> None:
        self.cache.close()
        self.locator.stop()


@pytest.fixture
def ln(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, regions=REGIONS, member_timeout_ms=2000) as site:
        yield site


def start(site: Site, *names: str, receivers: int | None = None) -> list[MemberProcess]:
    """Members with replicas of all buckets; the first `receivers` of them have a receiver, or all."""
    members = [site.start(name) for name in names]
    replicas = min(2, len(members))
    for region, buckets, wanted in (("data", BUCKETS, replicas), ("copied", 113, len(members))):
        eventually(
            lambda region=region, buckets=buckets, wanted=wanted: (
                sum(
                    each.get(what, 0)
                    for each in site.counts(region).values()
                    for what in ("primary", "copies", "taking_over")
                )
                == buckets * wanted
            ),
            what=f"replicas of {region}",
        )
    for member in members[:receivers]:
        member.ask("receive")
    return members


@contextlib.contextmanager
def sending_to(site: Site) -> Iterator[Source]:
    source = Source(site.port)
    try:
        yield source
    finally:
        source.close()


def assert_equal(source: Source, members: list[MemberProcess]) -> None:
    for name, region in (("data", source.data), ("copied", source.copied)):
        wanted = dict(region.items())
        for member in members:
            assert member.ask("content", name) == wanted, (name, member.name)


@pytest.mark.whole
@pytest.mark.parametrize("count", [2, 3])
def test_all_members_have_what_another_site_sends_to_one_of_them(ln: Site, count: int) -> None:
    members = start(ln, *["one", "two", "three"][:count], receivers=1)
    with sending_to(ln) as source:
        keys = [f"k{n}" for n in range(10_000)]
        for region in (source.data, source.copied):
            region.put_columns(keys, [f"value {n}" for n in range(10_000)])
            for n in range(0, 10_000, 10):
                region.destroy(f"k{n}")
            for n in range(1, 1000, 10):
                region[f"k{n}"] = n
        source.settle()
        assert_equal(source, members)
        counts = members[0].ask("received")
        assert counts["events_received"] == 2 * (10_000 + 1000 + 100)
        # Buckets may move meanwhile, and then a batch may come twice.
        assert counts["conflicts_lost"] <= source.sent_again and counts["exceptions_occurred"] == 0


@pytest.mark.nightly
@pytest.mark.whole
@pytest.mark.parametrize("victim", ["receiver", "other"])
def test_a_member_that_is_killed_while_events_come_costs_none(ln: Site, victim: str) -> None:
    members = start(ln, "one", "two", "three")
    with sending_to(ln) as source:
        stop = threading.Event()
        numbers = [0]

        def put() -> None:
            while not stop.is_set():
                n = numbers[0]
                keys = [f"k{k % 3000}" for k in range(n, n + 100)]
                for region in (source.data, source.copied):
                    region.put_columns(keys, [str(k) for k in range(n, n + 100)])
                numbers[0] = n + 100
                stop.wait(0.002)

        putting = threading.Thread(target=put)
        putting.start()
        try:
            eventually(lambda: sum(each.ask("received")["events_received"] for each in members) > 2000)
            connected = [each for each in members if each.ask("received")["connections"]]
            chosen = connected if victim == "receiver" else [each for each in members if each not in connected]
            killed = (chosen or members)[0]
            killed.kill()
            at = numbers[0]
            left = [each for each in members if each is not killed]
            eventually(lambda: numbers[0] > at + 3000)
        finally:
            stop.set()
            putting.join()
        source.settle()
        assert_equal(source, left)


@pytest.mark.nightly
@pytest.mark.whole
def test_a_replica_that_stands_still_holds_the_acknowledgement_back(ln: Site) -> None:
    one, two = start(ln, "one", "two", receivers=1)
    with sending_to(ln) as source:
        source.data["before"] = source.copied["before"] = 0
        source.settle()
        two.stop()
        source.copied.put_all((f"k{n}", n) for n in range(100))
        eventually(lambda: any(each["log_end"] > each["high_watermark"] for each in one.ask("buckets", "copied")))
        assert source.waiting == 100
        two.go_on()
        source.settle()
        assert_equal(source, [one, two])


def test_events_of_a_region_that_the_site_does_not_have_are_parked(ln: Site) -> None:
    (one, _) = start(ln, "one", "two", receivers=1)
    with sending_to(ln) as source:
        missing: Any = source.cache.create_region("missing", type="REPLICATE", gateway_sender_ids=["serial"])
        missing["k"] = source.copied["k"] = 1
        sender = source.senders[0]
        eventually(lambda: sender.parked_count == 1)
        eventually(lambda: one.ask("content", "copied") == {"k": 1})
        assert sender.parked(1)[0]["region"] == "missing"
