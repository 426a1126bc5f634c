"""Owns two sites of several members in processes of their own, and the regions and senders that tests give them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pywan.testing.waiting import eventually
from support.wan_site import WanMember, WanSite

BUCKETS = 7
PARTITION = {"name": "data", "type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1}
REPLICATE = {"name": "data", "type": "REPLICATE"}
WAYS = [
    pytest.param(True, PARTITION, id="parallel"),
    pytest.param(False, REPLICATE, id="serial"),
    pytest.param(False, PARTITION, id="serial-partitioned"),
]
# A promise about one way holds for the others by the same code; the first promises are tried with all of them.
SELDOM = [WAYS[0], *(pytest.param(*way.values, id=way.id, marks=pytest.mark.nightly) for way in WAYS[1:])]


class Sites:
    """Site ny of several members, and site ln, whose members receive: "l" alone, unless a test wants more."""

    def __init__(self, ny: WanSite, ln: WanSite) -> None:
        self.ny, self.ln = ny, ln

    @property
    def remote(self) -> WanMember:
        return self.ln.living()["l"]

    def received(self, name: str) -> int:
        """Returns how many events the receiver of a remote member took."""
        return int(self.ln.living()[name].ask("received"))

    def remote_size(self) -> int:
        return int(self.remote.ask("size", "data"))

    def wait_remote(self, size: int) -> None:
        eventually(lambda: self.remote_size() == size, what=f"{size} entries at the remote site")

    def wait_empty(self) -> None:
        """Returns when no member holds an event, primaries and replicas alike."""

        def is_empty() -> bool:
            return all(each.ask("statistics", "ln")["event_queue_bytes"] == 0 for each in self.ny.living().values())

        eventually(is_empty, what="empty queues at all members")

    def sizes(self) -> dict[str, tuple[int, int, int]]:
        return {
            name: tuple(each.sender("ln", what) for what in ("queue_size", "local_queue_size", "secondary_queue_size"))
            for name, each in self.ny.living().items()
        }

    def sizes_of_queues(self) -> dict[str, int]:
        """Returns how many events each member has in its queue, those that it holds for others too."""
        return {name: each.ask("ledger", "ln")["in_queue"] for name, each in self.ny.living().items()}

    def primaries(self) -> set[str]:
        return {name for name, each in self.ny.living().items() if each.sender("ln", "is_primary")}

    def wait_primary(self) -> str:
        """Returns which member is primary of a serial sender, as soon as one is."""
        eventually(lambda: len(self.primaries()) == 1, what="one primary")
        (name,) = self.primaries()
        return name

    def balance(self) -> None:
        for each in self.ny.living().values():
            assert each.ask("ledger", "ln")["balanced"]


@contextlib.contextmanager
def sites(
    folder: Path,
    region: dict[str, Any],
    *,
    members: tuple[str, ...] = ("a", "b"),
    receivers: tuple[str, ...] = ("l",),
    remote: dict[str, Any] | None = None,
    **sender: Any,
) -> Iterator[Sites]:
    attributes = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, **sender}
    fed = {**region, "gateway_sender_ids": ["ln"]}
    with (
        WanSite(folder / "ln", 2, regions=[remote or region]) as ln,
        WanSite(folder / "ny", 1, remotes=[ln], regions=[fed]) as ny,
    ):
        for name in receivers:
            ln.start_member(name, receiver={})
        for name in members:
            ny.start_member(name, senders=[attributes])
        wait_replicas(ny, region)
        wait_replicas(ln, remote or region)
        yield Sites(ny, ln)


def wait_replicas(site: WanSite, region: dict[str, Any]) -> None:
    """Returns when each bucket of the region has all replicas that the members of a site can have."""
    members = len(site.living())
    replicas = members if region["type"] == "REPLICATE" else min(members, 1 + region["redundant_copies"])
    if members > 1:
        site.wait_shared("data", 113 if region["type"] == "REPLICATE" else region["total_num_buckets"], replicas)
