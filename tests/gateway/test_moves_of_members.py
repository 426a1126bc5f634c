"""Buckets and their primaries move from member to member while all members put and gateways send: nothing is lost."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pywan.errors import IllegalStateError
from pywan.testing.waiting import eventually
from support.wan_site import WanMember, WanSite

MOVES_S = 6.0
KEYS = 300
SENDER = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": True}
REGIONS = [
    {"name": "data", "type": "PARTITION", "total_num_buckets": 7, "redundant_copies": 1},
    {"name": "more", "type": "PARTITION", "total_num_buckets": 7, "redundant_copies": 1, "colocated_with": "data"},
]


@contextlib.contextmanager
def sites(folder: Path, members: str, **sender: object) -> Iterator[tuple[WanSite, WanMember]]:
    """A site of these members with two colocated regions, and the member that receives at the other one."""
    fed = [{**each, "gateway_sender_ids": ["ln"]} for each in REGIONS]
    with WanSite(folder / "ln", 2, regions=REGIONS) as ln, WanSite(folder / "ny", 1, remotes=[ln], regions=fed) as ny:
        remote = ln.start_member("l", receiver={})
        for name in members:
            ny.start_member(name, senders=[{**SENDER, **sender}])
        for region in REGIONS:
            ny.wait_shared(region["name"], 7, 2)
        yield ny, remote


def wait_for_peace(ny: WanSite, remote: WanMember) -> None:
    """Returns when both sites have the same, no queue has an event, and nothing was lost or set aside."""
    members = list(ny.living().values())

    def is_empty() -> bool:
        return all(each.ask("statistics", "ln")["event_queue_bytes"] == 0 for each in members)

    def is_equal(region: str) -> bool:
        return bool(remote.ask("content", region) == members[0].ask("content", region))

    eventually(is_empty, what="empty queues at all members")
    for region in REGIONS:
        eventually(lambda region=region: is_equal(region["name"]), what=f"equal content of {region['name']}")
    for each in members:
        assert each.ask("ledger", "ln")["balanced"] and each.sender("ln", "parked_count") == 0
        assert [each.sender("ln", what) for what in ("queue_size", "secondary_queue_size")] == [0, 0]


def move_something(ny: WanSite, rng: random.Random) -> str:
    """Moves a replica or a primary of any bucket to any other member, and returns what was moved."""
    region, number = rng.choice(REGIONS)["name"], rng.randrange(7)
    primary, replicas = ny.locator.ask("layout", region)[number]
    what = rng.choice(["copy", "primary"])
    others = [each for each in ny.members if (each in replicas) == (what == "primary") and each != primary]
    try:
        ny.move(region, number, what, rng.choice(others), rng.choice(replicas) if what == "copy" else "")
    except IllegalStateError as error:  # The layout was another one a moment later.
        assert "already" in str(error) or "has no" in str(error), error
        return "refused"
    return what


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.timeout(240)
def test_C_077_no_event_is_lost_when_colocated_buckets_move_while_all_members_put_with_conflation(tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng, moved = random.Random(seed), Counter[str]()
    with sites(tmp_path, "abcd", enable_batch_conflation=True) as (ny, remote):
        for name, each in ny.living().items():
            each.begin("put_for", ["data", "more"], MOVES_S, KEYS, name)
        ends = time.monotonic() + MOVES_S
        while time.monotonic() < ends:
            moved[move_something(ny, rng)] += 1
        puts = [each.finish() for each in ny.living().values()]
        print(f"{moved}, {sum(puts)} puts to each region")
        assert moved["copy"] > 3 and moved["primary"] > 3
        for number in range(7):
            data, more = (ny.locator.ask("layout", each["name"])[number] for each in REGIONS)
            assert data == more and len(data[1]) == 2
        wait_for_peace(ny, remote)
        assert sum(each.ask("statistics", "ln")["events_not_queued_conflated"] for each in ny.living().values()) > 0


@pytest.mark.whole
@pytest.mark.nightly
def test_a_bucket_takes_the_events_that_wait_along(tmp_path):
    """No member sends while the bucket moves twice. The members that had it first send none of its events."""
    with sites(tmp_path, "abcd") as (ny, remote):
        members = ny.living()
        for each in members.values():
            each.sender("ln", "pause")
        members["a"].ask("put_many", "data", 0, 700)
        _, replicas = ny.locator.ask("layout", "data")[0]
        for source, to in zip(replicas, sorted(members.keys() - replicas), strict=True):
            ny.move("data", 0, "copy", to, source)
        sizes = [each.sender("ln", "local_queue_size") for each in members.values()]
        assert sum(sizes) == 700
        assert sum(each.sender("ln", "secondary_queue_size") for each in members.values()) == 700
        for each in members.values():
            each.sender("ln", "resume")
        wait_for_peace(ny, remote)
        assert remote.ask("size", "data") == 700
