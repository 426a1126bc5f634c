"""A replication link between two members is cut for long, and both are healthy: nobody is given up, however many
buckets they share."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pywan.base.addresses import Address
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.site_processes import MemberProcess
from pywan.testing.waiting import eventually
from site_crash.world import Site

REGIONS: list[dict[str, Any]] = [
    {"name": f"data{n}", "type": "PARTITION", "redundant_copies": 1, "recovery_delay": 0} for n in range(10)
]
BUCKETS = 1130
MEMBER_TIMEOUT_MS = 2000
CUT_S = 5 * MEMBER_TIMEOUT_MS / 1000  # Far longer than a lease.
LIMIT_S = 120


def members(site: Site) -> dict[str, dict[str, Any]]:
    return {each["incarnation"]: each for each in site.locator.ask("coordination")["members"]}


def is_whole(site: Site) -> bool:
    shown = site.locator.ask("coordination")
    return shown["buckets"] == BUCKETS and not shown["incomplete_regions"]


@contextlib.contextmanager
def putting(member: MemberProcess) -> Iterator[list[float]]:
    """The member puts into all regions meanwhile. An error of a put fails the test. Yields how long each took, in
    seconds."""
    took: list[float] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def put() -> None:
        try:
            for n in itertools.count():
                if stop.wait(0.002):  # The members need the cores, too.
                    return
                began = time.monotonic()
                member.do(f"data{n % len(REGIONS)}", "put", f"k{n % 5000}", n)
                took.append(time.monotonic() - began)
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=put)
    writer.start()
    try:
        yield took
    finally:
        stop.set()
        writer.join()
    assert not errors, errors


@pytest.mark.whole
def test_a_cut_replication_link_gives_up_nobody_who_is_healthy(tmp_path: Path):
    """The way to the second member is cut, for the first member and for the locator's probes. Its own way to both is
    whole: so it renews its lease, and reaches the first member."""
    with (
        Site(tmp_path, regions=REGIONS, member_timeout_ms=MEMBER_TIMEOUT_MS) as site,
        FaultProxy("127.0.0.1[1]", "127.0.1.77") as proxy,
    ):
        proxy.target = Address("127.0.0.1", proxy.port)
        site.start("one")
        two = site.start("two", port=proxy.port, hostname_for_clients=proxy.listen_host)
        eventually(lambda: is_whole(site), LIMIT_S, what="two replicas of each bucket")
        before = members(site).keys()
        with putting(two) as took:
            eventually(lambda: len(took) > 200)
            proxy.cut()
            began, shortest_us, puts = time.monotonic(), MEMBER_TIMEOUT_MS * 1000, len(took)
            while time.monotonic() < began + CUT_S:  # It is looked at a hundred times in a second.
                threading.Event().wait(0.01)
                seen = members(site)
                assert seen.keys() == before and all(each["state"] != "lost" for each in seen.values())
                shortest_us = min(shortest_us, *(each["lease_us"] for each in seen.values()))
            assert shortest_us > 0
            eventually(lambda: len(took) > puts + 200, what="puts while the replication link is cut")
            proxy.restore()
            eventually(lambda: is_whole(site), LIMIT_S, what="two replicas of each bucket again")
        print(f"{len(took):,} puts, the longest {max(took):.1f} s; the shortest lease {shortest_us / 1e6:.1f} s")
        assert members(site).keys() == before
