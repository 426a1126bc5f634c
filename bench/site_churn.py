"""A site of three members under full load while a fourth one joins and leaves, again and again: whether memory stays
flat, whether every call ends within its limit, and whether the replicas are equal in the end.

Each of the three puts as fast as it can, on keys of its own. Every member is to have a replica of every bucket. Every
minute the fourth one joins, gets all of them, and leaves in order. A line is printed for each minute. Then what was
acknowledged is read back, and the replicas of each bucket are compared. The exit status is 1 if a call was refused,
took longer than its limit, or was lost; if replicas differ; or if memory grew.

    .venv/bin/python bench/site_churn.py [--minutes 30] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import Options, add_forms
from site_processes import PywanSite, wait_until

MEMBERS = ("a", "b", "c")
GUEST = "guest"
BUCKETS = 113
KEYS = 100_000  # Of each member. The regions stop growing when all were put once.
THREADS = 4  # Of each member.
CALL_LIMIT_S = 10.0
GROWTH_MAX = 1.15  # The memory of the last quarter beside that of the second: noise of a heap, but no leak.
WHOLE_S = 60.0


def is_whole(site: PywanSite) -> bool:
    """Whether each bucket has its primary, and a replica on every other member, and nobody learns."""
    counts = list(site.counts("data").values())
    return (
        sum(each.get("primary", 0) for each in counts) == BUCKETS
        and sum(each.get("copies", 0) for each in counts) == BUCKETS * (len(counts) - 1)
        and not sum(each.get("learning", 0) for each in counts)
    )


def differing(site: PywanSite) -> list[int]:
    """The buckets whose replicas are not equal."""
    digests: dict[int, set[int]] = {}
    for name in MEMBERS:
        for number, digest in site.members[name].ask("digests"):
            digests.setdefault(number, set()).add(digest)
    return [number for number, each in digests.items() if len(each) != 1]


def minute(site: PywanSite, length_s: float) -> dict[str, Any]:
    """The guest comes, stays for a while, and leaves. Returns what the members did meanwhile."""
    began = time.monotonic()
    before = {name: site.members[name].ask("look") for name in MEMBERS}
    guest = site.start(GUEST)
    joined_s = wait_until(lambda: is_whole(site), WHOLE_S, "all replicas are whole with the guest")
    had = sum(guest.ask("sharing", "data").get(each, 0) for each in ("primary", "copies"))
    time.sleep(max(0.0, length_s / 2 - (time.monotonic() - began)))
    leaves = time.monotonic()
    guest.end(120)
    left_s = time.monotonic() - leaves
    del site.members[GUEST]
    wait_until(lambda: is_whole(site), WHOLE_S, "all replicas are whole without the guest")
    time.sleep(max(0.0, length_s - (time.monotonic() - began)))
    looks = {name: site.members[name].ask("look") for name in MEMBERS}
    took_s = time.monotonic() - began
    return {
        "puts": sum(looks[name]["done"] - before[name]["done"] for name in MEMBERS) / took_s,
        "longest_ms": max(each["longest_ms"] for each in looks.values()),
        "refused": sum(each["refused"] for each in looks.values()),
        "joined_s": joined_s,
        "left_s": left_s,
        "guest_had": had,
        "resident": [site.members[name].ask("state")["resident"] for name in MEMBERS],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--minutes", type=int, help="how often the guest comes (default 30)")
    parser.add_argument("--json", type=Path, help="the file that gets the figures")
    options, _ = parser.parse_known_args(namespace=Options())
    rounds, length_s = options.minutes or options.size(30, 3, 1), options.size(60.0, 60.0, 4.0)
    keys = options.size(KEYS, KEYS, 2_000)
    done: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="pywan-churn-") as folder,
        PywanSite(Path(folder), redundant_copies=len(MEMBERS)) as site,
    ):
        for name in MEMBERS:
            site.begin(name)
        for number, name in enumerate(MEMBERS):
            site.members[name].finish()
            site.members[name].ask("keys_of", number, keys)
        site.members["a"].ask("assign")
        wait_until(lambda: is_whole(site), WHOLE_S, "every bucket has its replica")
        for name in MEMBERS:
            site.members[name].ask("fill")
            site.members[name].ask("write", THREADS, 0)
        print("| minute | puts a second | longest put | guest: whole after, replicas, left in | memory of a, b, c |")
        print("|---|---|---|---|---|", flush=True)
        for number in range(rounds):
            told = minute(site, length_s)
            done.append(told)
            memory = ", ".join(f"{each / 1e6:.0f}" for each in told["resident"])
            print(
                f"| {number + 1} | {told['puts']:,.0f} | {told['longest_ms']:,.0f} ms | {told['joined_s']:.1f} s,"
                f" {told['guest_had']}, {told['left_s']:.1f} s | {memory} MB |",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps(done, indent=1) + "\n")
        ends = [site.members[name].ask("written") for name in MEMBERS]
        unequal = differing(site)
    problems = []
    longest_ms = max(each["longest_ms"] for each in done)
    if refused := sum(each["refused"] for each in ends):
        problems.append(f"{refused} calls were refused")
    if longest_ms > CALL_LIMIT_S * 1e3:
        problems.append(f"a call took {longest_ms:,.0f} ms, and may take {CALL_LIMIT_S * 1e3:,.0f}")
    if lost := sum(each["lost"] for each in ends):
        problems.append(f"{lost} acknowledged puts were lost")
    if unequal:
        problems.append(f"the replicas of {len(unequal)} buckets differ: {unequal[:10]}")
    quarter = max(len(done) // 4, 1)
    growth = [
        statistics.mean(each["resident"][n] for each in done[-quarter:])
        / statistics.mean(each["resident"][n] for each in done[quarter : 2 * quarter] or done[:quarter])
        for n in range(len(MEMBERS))
    ]
    if len(done) >= 8 and max(growth) > GROWTH_MAX:
        problems.append(f"memory grew to {max(growth):.0%}")
    print(
        f"{sum(each['done'] for each in ends):,} puts, longest {longest_ms:,.0f} ms; memory of the last quarter beside"
        f" the second: {', '.join(f'{each:.0%}' for each in growth)}; {'; '.join(problems) or 'all copies are equal'}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
