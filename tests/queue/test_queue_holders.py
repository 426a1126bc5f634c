"""A serial sender's queued events of a region without redundant copies are held by every member that runs it, and leave
when the only replica of their bucket is gone (docs/decisions/0095)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pywan.testing.waiting import eventually
from support.wan_site import WanMember, WanSite
from wan_crash.campaign import CrashSite, acknowledged

BUCKETS = 7
SENDER = {"id": "ln", "remote_distributed_system_id": 2, "batch_time_interval": 20, "parallel": False}
REGION = {"name": "data", "type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 0}
FED = {**REGION, "gateway_sender_ids": ["ln"]}
ACCESSOR = {**FED, "local_max_memory": 0}


def counts(each: WanMember) -> dict[str, int]:
    return each.ask("sharing", "data")


def wait_held(ny: WanSite) -> None:
    """Returns when each bucket has one replica, and every other member holds its queued events."""

    def is_held() -> bool:
        told = [counts(each) for each in ny.living().values()]
        led, held = (sum(each.get(what, 0) for each in told) for what in ("primary", "queues"))
        others = sum(each.get(what, 0) for each in told for what in ("copies", "learning", "taking_over"))
        return led == BUCKETS and held == BUCKETS * (len(told) - 1) and not others

    eventually(is_held, what="each bucket's queued events at all members")


@contextlib.contextmanager
def sites(folder: Path, *members: str, accessors: tuple[str, ...] = ()) -> Iterator[tuple[WanSite, WanSite]]:
    with (
        CrashSite(folder / "ln", 2, regions=[REGION]) as ln,
        CrashSite(folder / "ny", 1, remotes=[ln], regions=[FED]) as ny,
    ):
        ln.start_member("l", receiver={})
        for name in members:
            ny.start_member(name, senders=[SENDER], regions=[ACCESSOR if name in accessors else FED])
        wait_held(ny)
        yield ny, ln


def finish(ny: WanSite, ln: WanSite, content: dict[str, Any]) -> None:
    """All that was acknowledged comes to the remote site, and no queue keeps any of it."""
    eventually(lambda: content.items() <= ln.living()["l"].ask("content", "data").items(), what="all acknowledged puts")
    eventually(
        lambda: all(
            each.sender("ln", "local_queue_size") == each.sender("ln", "secondary_queue_size") == 0
            and each.ask("statistics", "ln")["event_queue_bytes"] == 0
            for each in ny.living().values()
        ),
        what="empty queues at all members",
    )
    for each in ny.living().values():
        assert each.ask("ledger", "ln")["balanced"]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("members", "accessors"),
    [
        pytest.param(("a", "b"), (), marks=pytest.mark.nightly),
        pytest.param(("a", "b", "c"), (), marks=pytest.mark.nightly),
        (("a", "b"), ("b",)),
    ],
    ids=["2", "3", "accessor"],
)
def test_queued_events_of_the_only_replica_leave_when_its_member_is_killed_amid_puts(tmp_path, members, accessors):
    with sites(tmp_path, *members, accessors=accessors) as (ny, ln):
        ln.living()["l"].kill()
        files = {name: tmp_path / f"{name}.written" for name in members}
        for name, each in ny.living().items():
            each.ask("write", "data", name, str(files[name]), 0.002)
        victim = ny.living()["a"]
        eventually(lambda: victim.ask("pending") > 200, what="many events that wait")
        victim.kill()
        for each in ny.living().values():
            each.ask("halt")
        ln.start_member("l", receiver={})
        content = {f"{name} {n}": n for name, file in files.items() for n in acknowledged(file)}
        assert len(content) > 100
        finish(ny, ln, content)
