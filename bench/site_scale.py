"""How large a site may be: the coordinator's tables with 200 members and 1,000 regions of 113 buckets, what they take
in messages and memory, and how long all decisions take after the death of a member.

Every member hosts every region, with one redundant copy. The coordinator is the real one with its file on the disk. Its
members are played by this program: each of them asks for news as an agent does. So the messages are counted and not
sent. `--quick`: a tenth of the regions."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgpack

import results
from measure import Options, add_forms, resident_bytes
from pywan.base.nonces import NONCE_BYTES, mark_of
from pywan.coordination import encoding
from pywan.coordination.actions import Store, Tell
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.journal import Journal
from pywan.coordination.messages import Tables
from pywan.coordination.tables import (
    MEMBER_TIMEOUT_US,
    NO_DECISION,
    Bucket,
    DecisionId,
    Incarnation,
    Kind,
    MemberProfile,
    Reach,
    RegionAttributes,
)
from pywan.site.coordination_host import POLL_S

BUCKETS = 113
DEATHS = 5
NONCE = bytes(NONCE_BYTES)  # Of all members that are played.
REST_S = 10


def tables_bytes(tables: Tables) -> int:
    """As a member gets them."""
    return len(msgpack.packb(encoding.plain_tables(tables)))


class Site:
    """A coordinator, its file, and members that only listen."""

    def __init__(self, folder: str, members: int, regions: int) -> None:
        self.now_us = 0
        self.journal = Journal(Path(folder) / "decisions")
        self.stored: dict[Incarnation, DecisionId] = {}
        self.core = Coordinator("locator", [], draw_step=lambda: 1, now_us=0, site_identity="site")
        self.members = [Incarnation(f"server_{n}", n + 1) for n in range(members)]
        self.alive = set(self.members)
        attributes = RegionAttributes(Kind.PARTITION, BUCKETS, redundant_copies=1, recovery_delay_ms=0)
        every = {f"region_{n}": attributes for n in range(regions)}
        hosting = tuple((name, 100) for name in every)
        for n, member in enumerate(self.members):
            profile = MemberProfile(
                member, f"host-{n}.example.org", 40000 + n, 1, "site", hosting=hosting, mark=mark_of(NONCE)
            )
            self.core.join(profile, every if not n else {}, {}, NO_DECISION, 0)
        self.act()

    def act(self) -> dict[str, float]:
        """What the driver of a coordinator does with its actions. Returns what there was."""
        entries = told = told_bytes = 0
        started = time.perf_counter()
        actions = self.core.take_actions()
        deciding_s, storing_s = time.perf_counter() - started, 0.0
        for action in actions:
            match action:
                case Store():
                    started = time.perf_counter()
                    self.journal.append(action)
                    storing_s += time.perf_counter() - started
                    entries += len(action.buckets)
                case Tell(to, Tables() as tables):
                    told += 1
                    self.stored[to] = tables.newest
                    if told == 1:
                        told_bytes = tables_bytes(tables)
        return {"s": deciding_s, "store_s": storing_s, "buckets": entries, "told": told, "bytes": told_bytes}

    def primaries(self) -> Counter[Incarnation]:
        """How many buckets each member leads of which another one that lives has a replica."""
        led = Counter(dict.fromkeys(self.members, 0))
        for bucket in self.core.site.buckets.values():
            if bucket.primary in led and self.has_another(bucket, bucket.primary):
                led[bucket.primary] += 1
        return led

    def has_another(self, bucket: Bucket, member: Incarnation) -> bool:
        """Whether a member that lives has a replica beside this one. Those that died stay in the set until their lease
        is over: a refused connection proves no death."""
        return any(each != member and each in self.alive for each in bucket.isr)

    def die(self, member: Incarnation) -> dict[str, float]:
        """A member's machine says that nobody listens there any more: the coordinator replaces it everywhere. Buckets
        of which an earlier death left one replica wait for its lease."""
        held = [bucket for _, bucket in self.core.site.held_by(member)]
        partners = {each for bucket in held for each in bucket.isr} - {member}
        self.alive.discard(member)
        led = sum(bucket.primary == member and self.has_another(bucket, member) for bucket in held)
        waiting = sum(bucket.primary == member and not self.has_another(bucket, member) for bucket in held)
        started = time.perf_counter()
        self.core.probed(member, Reach.REFUSED, self.now_us)
        decided_s = time.perf_counter() - started
        did = self.act()
        left = sum(bucket.primary == member for _, bucket in self.core.site.held_by(member))
        assert led and left == waiting, (
            f"{left} buckets are still led by a dead member, and {waiting} have no other replica"
        )
        return {**did, "s": decided_s + did["s"], "led": led, "held": len(held), "partners": len(partners)}

    def rest(self, seconds: float) -> dict[str, float]:
        """Everybody asks for news as often as an agent does. Counts what the coordinator does."""
        asked = answers = 0
        started = time.process_time()
        for _ in range(round(seconds / POLL_S)):
            self.now_us += round(POLL_S * 1e6)
            for member in self.members:
                self.core.renew(member, self.stored.get(member, NO_DECISION), self.now_us)
                asked += 1
                answers += sum(isinstance(action, Tell) for action in self.core.take_actions())
            self.core.tick(self.now_us)
        return {"messages": (asked + answers) / seconds, "processor": (time.process_time() - started) / seconds}


def measured(members: int, regions: int, deaths: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        before = resident_bytes()
        started = time.perf_counter()
        site = Site(folder, members, regions)
        made_s = time.perf_counter() - started
        memory = resident_bytes() - before
        whole = tables_bytes(site.core.tables(0, MEMBER_TIMEOUT_US))
        renewal = tables_bytes(site.core.tables(site.core.site.number, MEMBER_TIMEOUT_US))
        assert len(site.core.site.buckets) == regions * BUCKETS
        rest = site.rest(REST_S)
        spread = sorted(site.primaries().values())
        died = []
        for _ in range(deaths):
            (most, _), *_ = site.primaries().most_common(1)
            site.members.remove(most)
            died.append(site.die(most))
        file_bytes = sum(each.stat().st_size for each in Path(folder).iterdir())
        site.journal.close()
    return {
        "members": members,
        "buckets": regions * BUCKETS,
        "make_s": made_s,
        "memory_bytes": memory,
        "tables_bytes": whole,
        "file_bytes": file_bytes,
        "renewal_bytes": renewal,
        "messages_a_second": rest["messages"],
        "processor_at_rest": rest["processor"],
        "most_primaries": spread[-1],
        "fewest_primaries": spread[0],
        **{f"death_{name}": statistics.median(each[name] for each in died) for name in died[0]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_forms(parser)
    parser.add_argument("--members", type=int)
    parser.add_argument("--regions", type=int)
    parser.add_argument("--json", type=Path, help="the file that gets the figures")
    options, _ = parser.parse_known_args(namespace=Options())
    members, regions = options.members or options.size(200, 200, 12), options.regions or options.size(1000, 100, 4)
    # Nobody makes the lost replicas again here: of few members, only few may die.
    deaths = min(DEATHS, max(members // 20, 1))
    sizes = [(max(members // part, 3), max(regions // part, 1), deaths if part == 1 else 1) for part in (4, 2, 1)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = [pool.submit(measured, *size).result() for size in sizes]  # Memory is seen in a fresh process.
    names = {
        "members": ("members", 1, "d"),
        "buckets": ("buckets", 1, ",d"),
        "make_s": ("all buckets made, s", 1, ".1f"),
        "tables_bytes": ("tables as a new member gets them, MB", 1e6, ".1f"),
        "file_bytes": ("file, MB", 1e6, ".1f"),
        "memory_bytes": ("memory of the coordinator, MB", 1e6, ".0f"),
        "messages_a_second": ("messages a second at rest", 1, ".0f"),
        "renewal_bytes": ("bytes of an answer at rest", 1, "d"),
        "processor_at_rest": ("processor time of the coordinator's core at rest, s a second", 1, ".3f"),
        "most_primaries": ("primaries of the member that has most", 1, "d"),
        "fewest_primaries": ("of the one that has fewest", 1, "d"),
        "death_held": ("death of a member that leads most: replicas that it had", 1, ".0f"),
        "death_led": ("of those, primaries", 1, ".0f"),
        "death_partners": ("members that have the other replicas", 1, ".0f"),
        "death_s": ("all decisions, ms", 1e-3, ".0f"),
        "death_store_s": ("on the disk, ms", 1e-3, ".0f"),
        "death_bytes": ("what each member is told, kB", 1e3, ".0f"),
    }
    print("| |" + " |" * len(rows) + "\n|---|" + "---|" * len(rows))
    for name, (title, scale, form) in names.items():
        print(
            f"| {title} | "
            + " | ".join(format(row[name] / scale if scale != 1 else row[name], form) for row in rows)
            + " |"
        )
    small, large = rows[0], rows[-1]
    linear = large["messages_a_second"] / small["messages_a_second"] / (large["members"] / small["members"])
    print(f"messages at rest, by member: {linear:.2f} times those of the small site (to reach: 1)")
    results.note("messages of a site at rest", [linear] * 3, more_is_better=False)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
