"""A site of several members, each a process over loopback with a locator in another: what sharing a region costs, and
how long a member that dies, stands still or joins is felt.

columns    Columns of 10,000 rows into a partitioned region with one redundant copy, by the primary and by an accessor;
           beside two sites in two processes that store at both ends. Random keys of a million.
events     Events of another site to the receiver of one of two members, beside a site of one member.
single     One synchronous `put` with a replica elsewhere, beside 200 bytes to a process in C and back; 64 threads
beside
           one.
listeners  Puts by 32 threads at each of two members into two regions whose listeners write into each other's region,
           beside the same without listeners, in turn: the time that 99.9% of puts keep within. A round begins when
           the listeners have heard all of the one before.
kill       kill -9 of the primary of every bucket at a quarter of full load: how long no put into them returns, and
           whether an acknowledged put was lost.
stop       SIGSTOP instead, for 20 s.
join       A member joins two with a million entries: how long its snapshot takes, what puts do meanwhile, its memory.
far        The same with fewer entries and 0.1 s each way between the member that joins and the others.
before     One member, beside the tree that `--before` names: put, get, columns, change_if (see compare.py).

16-byte keys, 100-byte values. `--quick` for a short run; `--only NAME ...`; `--json FILE` keeps all figures; `--first`
(root) gives the measured processes the cores before others that use this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy

import pywan
import results
from bench_stored import random_order
from measure import HERE, Options, Rates, add_forms, c_program, in_turn, numbered_keys, value_column
from pywan.testing.processes import ChildProcess, go_first
from site_processes import PywanSite, free_port, wait_until
from two_sites import PROXY, PROXY_HOST, Child, TwoSites, two_sites

BUCKETS = 113
MEMBER_TIMEOUT_S = 5.0
STOPPED_S = 20.0
WRITERS = 16
FAR_MS = 100.0  # One way.
LEARN_S = 60.0  # How long a member that joins is waited for.


class Report:
    """Prints a table as it goes, and keeps all figures."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.rows: list[dict[str, Any]] = []
        print("| point | measured | reference | ratio | to reach |\n|---|---|---|---|---|", flush=True)

    def row(
        self,
        point: str,
        shown: str,
        reference: str = "",
        ratio: float | None = None,
        goal: str = "",
        *,
        ratios: list[float] | None = None,
        more_is_better: bool = True,
        **figures: Any,
    ) -> None:
        text = "" if ratio is None else f"{ratio:.0%}" if ratio < 2 else f"{ratio:.1f} times"
        print(f"| {point} | {shown} | {reference} | {text} | {goal} |", flush=True)
        row = {"point": point, "shown": shown, "reference": reference, "ratio": ratio, "goal": goal, **figures}
        self.rows.append({**row, "load": os.getloadavg()[0]})
        if ratios:
            results.note(f"site: {point}", ratios, more_is_better=more_is_better, shown=shown)
        if self.file:
            self.file.write_text(json.dumps(self.rows, indent=1) + "\n")

    def rates(self, point: str, subject: Rates, reference: Rates, what: str, goal: str) -> None:
        ratios = [one / other for one, other in zip(subject.rounds, reference.rounds, strict=True)]
        shown = [f"{rate / 1e6:.2f} M/s" if rate > 1e6 else f"{rate / 1e3:.1f} k/s" for rate in (subject, reference)]
        self.row(
            point,
            shown[0],
            f"{shown[1]} ({what})",
            statistics.median(ratios),
            goal,
            ratios=ratios,
            subject=subject.rounds,
            others=reference.rounds,
        )


@contextlib.contextmanager
def site_of(options: Options, **attributes: Any) -> Iterator[tuple[PywanSite, list[ChildProcess]]]:
    """A locator, and two members with all buckets and their replicas. Each is primary of half of them, or of one
    more."""
    with (
        tempfile.TemporaryDirectory() as folder,
        PywanSite(Path(folder), goes_first=options.first, **attributes) as site,
    ):
        members = [site.begin(name) for name in "ab"]
        for member in members:
            member.finish()
        members[0].ask("assign")
        wait_until(lambda: redundancy(members) == (1, 0), 60, "every bucket has its replica")
        wait_until(lambda: max(led(members)) - min(led(members)) < 2, 60, "primaries are spread")
        yield site, [member for _, member in sorted(zip(led(members), members, strict=True), key=lambda each: -each[0])]


def led(members: Sequence[ChildProcess]) -> list[int]:
    """How many buckets each member leads."""
    return [member.ask("state")["primaries"] for member in members]


def redundancy(members: Sequence[ChildProcess]) -> tuple[int, int]:
    """(the fewest in-sync replicas that any bucket has beside its primary, how many replicas are being made)."""
    states = [member.ask("state") for member in members]
    if sum(state["primaries"] for state in states) < BUCKETS:
        return -1, 0
    return min(state["fewest"] for state in states if state["primaries"]), sum(state["learning"] for state in states)


def columns(options: Options, report: Report) -> None:
    seconds, events = options.size((2.0, 3_000_000), (0.5, 500_000), (0.1, 40_000))
    values = value_column(options.keys)
    with site_of(options) as (site, (a, _)), two_sites(stores=True) as sites:
        keys = random_order(sites, options.keys)
        sender = sites.sender("ln", batch_size=1_000, batch_time_interval=5)
        sites.use(sender)

        def reference() -> float:
            return sites.send_all(sender, keys, values, events)

        a.ask("keys", options.keys, 1)
        own = a.ask("own")["keys"]
        a.ask("fill")
        what = "two sites in two processes, stored"
        rates = in_turn(options.rounds, lambda: a.ask("bulk", seconds)["rate"], reference)
        report.rates(f"columns by the primary, a replica; {own:,} keys, 2 processes", *rates, what, "50%")
        rates = in_turn(options.rounds, lambda: a.ask("bulk", seconds, 2)["rate"], reference)
        report.rates("the same by 2 threads", *rates, what, "")
        c = site.start("c", site.accessor)
        c.ask("keys", options.keys, 2)
        rates = in_turn(options.rounds, lambda: c.ask("bulk", seconds)["rate"], reference)
        report.rates("columns by an accessor, a replica; 3 processes", *rates, what, "30%")
        rates = in_turn(options.rounds, lambda: c.ask("bulk", seconds, 2)["rate"], reference)
        report.rates("the same by 2 threads", *rates, what, "")


@contextlib.contextmanager
def sending_to(site: PywanSite) -> Iterator[tuple[TwoSites, Any]]:
    """A site of one member in this process, which stores, and its sender to another site."""
    with (
        pywan.Locator(
            "locator_ny", distributed_system_id=2, port=0, remote_locators=f"127.0.0.1[{site.port}]"
        ) as locator,
        pywan.Cache("ny", locators=f"127.0.0.1[{locator.port}]") as cache,
    ):
        sites = TwoSites(cache, None, None, stores=True)
        sender = sites.sender("ln", remote_distributed_system_id=1, batch_size=1_000, batch_time_interval=5)
        sites.use(sender)
        yield sites, sender


def events(options: Options, report: Report) -> None:
    count, values = options.size(3_000_000, 500_000, 20_000), value_column(options.keys)
    with (
        site_of(options) as (site, (a, _)),
        tempfile.TemporaryDirectory() as folder,
        PywanSite(Path(folder), goes_first=options.first) as alone,
    ):
        for member in (a, alone.start("alone")):
            member.ask("receive")
        with sending_to(site) as (sites, sender), sending_to(alone) as (other_sites, other_sender):
            in_order = numbered_keys(numpy.arange(options.keys))
            for each, its_sender in ((sites, sender), (other_sites, other_sender)):
                each.send_all(its_sender, in_order, values, options.keys)
            keys = numbered_keys(numpy.random.default_rng(7).permutation(options.keys))
            rates = in_turn(
                options.rounds,
                lambda: sites.send_all(sender, keys, values, count),
                lambda: other_sites.send_all(other_sender, keys, values, count),
            )
            what = "a site of one member"
            report.rates("events of another site, two members, a replica; 3 processes", *rates, what, "40%")


def single(options: Options, report: Report) -> None:
    seconds = options.size(2.0, 0.5, 0.1)
    ping = Child(c_program("bare_ping"), "1", str(options.size(20_000, 2_000, 200)))
    try:
        with site_of(options) as (_, (a, _)):
            a.ask("keys", options.keys, 1)
            a.ask("own")
            medians: list[float] = []

            def one() -> float:
                figures = a.ask("put", 1, seconds)
                medians.append(figures["median_us"])
                return figures["rate"]

            if options.first:
                go_first(ping.pid)
            puts, pings = in_turn(options.rounds, one, lambda: float(ping.ask()))
            times = [ping / put for put, ping in zip(puts.rounds, pings.rounds, strict=True)]
            report.row(
                "one put by the primary, a replica",
                f"{1e6 / puts:.0f} us (median put {statistics.median(medians[1:]):.0f} us)",
                f"{1e6 / pings:.0f} us (200 bytes to a C process and back)",
                statistics.median(times),
                "3 times",
                ratios=times,
                more_is_better=False,
            )
            rates = in_turn(options.rounds, lambda: a.ask("put", 64, seconds)["rate"], one)
            report.rates("puts by 64 threads", *rates, "one thread", "4 times")
    finally:
        ping.end()


def listeners(options: Options, report: Report) -> None:
    seconds = options.size(2.0, 1.0, 0.3)
    policies = {"none": "", "led": "cache-content", "all": "all"}  # What each pair of regions has for its listeners.
    with site_of(options) as (_, members), ThreadPoolExecutor(len(members)) as pool:
        for name, policy in policies.items():
            for member in members:
                member.ask("create_pair", name, policy)
        for member in members:  # The first puts make the buckets.
            for name in policies:
                member.ask("put_pair", name, 4, 0.2)

        def is_whole(region: str) -> bool:
            states = [member.ask("sharing", region) for member in members]
            led = [state["primary"] for state in states]
            are_whole = all(state["primary"] + state["copies"] == BUCKETS for state in states)
            return are_whole and max(led) - min(led) < 2

        def is_told() -> bool:
            return not any(member.ask("waiting") for member in members)

        for name in policies:
            for region in (f"{name}-here", f"{name}-there"):
                wait_until(lambda region=region: is_whole(region), 60, f"{region} is whole, and its primaries spread")

        def one_round(name: str) -> dict[str, float]:
            before, began = sum(member.ask("received") for member in members), time.monotonic()
            asked = [pool.submit(member.ask, "put_pair", name, 32, seconds) for member in members]
            found = [each.result() for each in asked]
            ended = time.monotonic()
            wait_until(is_told, 120, "the listeners were told of all changes")
            received = sum(member.ask("received") for member in members) - before
            return {
                "p999_us": max(each["p999_us"] for each in found),
                "rate": sum(each["rate"] for each in found),
                "received_rate": received / (time.monotonic() - began),
                "behind_s": time.monotonic() - ended,
            }

        for name in policies:  # To warm up.
            one_round(name)
        rounds = [{name: one_round(name) for name in policies} for _ in range(options.rounds)]

    def median(name: str, figure: str) -> float:
        return statistics.median(each[name][figure] for each in rounds)

    for name, words in (("led", "listeners that write across"), ("all", "the same, interest policy all")):
        ratios = [each[name]["p999_us"] / each["none"]["p999_us"] for each in rounds]
        report.row(
            f"99.9% of puts by 64 threads, {words}",
            f"{median(name, 'p999_us') / 1e3:.1f} ms ({median(name, 'rate') / 1e3:.1f} k/s;"
            f" told of {median(name, 'received_rate') / 1e3:.1f} k/s, {median(name, 'behind_s'):.1f} s behind)",
            f"{median('none', 'p999_us') / 1e3:.1f} ms ({median('none', 'rate') / 1e3:.1f} k/s, no listeners)",
            statistics.median(ratios),
            ratios=ratios,
            more_is_better=False,
            rounds=rounds,
        )


def felt(
    options: Options, report: Report, name: str, goal: str, rounds: int, fail: Callable[[ChildProcess], float]
) -> None:
    """Rounds in which the primary of most buckets fails. `fail` returns for how many seconds puts go on then."""
    with site_of(options) as (site, members):
        running = {member.name: member for member in members}
        c = site.start("c", site.accessor)
        c.ask("keys", min(options.keys, 100_000), 3)
        c.begin("write", WRITERS, 0)
        c.finish()
        seconds = options.size(2.0, 2.0, 0.5)
        time.sleep(seconds)
        full = c.ask("written")["done"] / seconds
        gaps, lost, refused = [], 0, 0
        for _ in range(rounds):
            states = {name: process.ask("state") for name, process in running.items()}
            most = max(states, key=lambda each: states[each]["primaries"])
            c.ask("write", WRITERS, full / 4, *states[most]["led"])
            time.sleep(1.0)
            failed = running.pop(most)
            time.sleep(fail(failed))
            written = c.ask("written")
            failed.kill()
            gaps.append(written["gap_ms"])
            lost += written["lost"]
            refused += written["refused"]
            site.start(most)
            running[most] = site.members[most]
            wait_until(lambda: redundancy([*running.values()]) == (1, 0), 60, "every bucket has its replica again")
        gaps.sort()
        report.row(
            f"{name}: no put into its buckets returned",
            f"median {statistics.median(gaps):.0f} ms, p95 {gaps[min(len(gaps) - 1, int(len(gaps) * 0.95))]:.0f} ms, "
            f"longest {gaps[-1]:.0f} ms",
            f"{rounds} rounds, {full / 4:,.0f} puts a second",
            goal=goal,
            gaps_ms=gaps,
        )
        report.row(f"{name}: acknowledged puts lost", str(lost), f"{refused} puts refused", goal="0", lost=lost)
        assert not lost, f"{lost} acknowledged puts were lost"


def kill(options: Options, report: Report) -> None:
    def fail(process: ChildProcess) -> float:
        process.kill()
        return 2.5

    felt(options, report, "kill -9 of a primary", "p95 1 s", options.size(20, 3, 1), fail)


def stop(options: Options, report: Report) -> None:
    def fail(process: ChildProcess) -> float:
        process.stop()
        time.sleep(stopped_s)
        process.go_on()
        return 2.0

    stopped_s = options.size(STOPPED_S, STOPPED_S, MEMBER_TIMEOUT_S + 2.0)
    goal = f"{MEMBER_TIMEOUT_S + 1:.0f} s"
    felt(options, report, f"SIGSTOP of a primary for {stopped_s:.0f} s", goal, options.size(3, 1, 1), fail)


def join(options: Options, report: Report) -> None:
    learn(options, report, options.size(options.keys, options.keys // 10, options.keys), 0.0)


def far(options: Options, report: Report) -> None:
    learn(options, report, options.size(100_000, 100_000, 5_000), FAR_MS)


@contextlib.contextmanager
def place_behind(delay_ms: float) -> Iterator[dict[str, Any]]:
    """Where a member joins so that all that others send to it, and its answers, take so long each way."""
    if not delay_ms:
        yield {}
        return
    port = free_port()
    proxy = Child(sys.executable, "-c", PROXY, port, PROXY_HOST)
    try:
        proxy.finish()
        proxy.ask(delay_ms, 0)
        yield {"port": port, "hostname_for_clients": PROXY_HOST}
    finally:
        proxy.end()


def learn(options: Options, report: Report, count: int, delay_ms: float) -> None:
    """A member joins two under four threads that write as fast as they can: single puts, and far away columns."""
    rest_s = options.size(3.0, 3.0, 0.5)
    where = f", {delay_ms:.0f} ms away" if delay_ms else ""
    with site_of(options, redundant_copies=2) as (site, (a, b)), place_behind(delay_ms) as place:
        a.ask("keys", count, 1)
        resident = {member: member.ask("state")["resident"] for member in (a, b)}
        a.ask("fill")
        took = [member.ask("state")["resident"] - before for member, before in resident.items()]
        if delay_ms:  # What does not wait for each row fills a long replication link.
            a.ask("write_columns", 4)
        else:
            a.ask("write", 4, 0)
        time.sleep(rest_s / 3)
        before, began = a.ask("look"), time.monotonic()
        time.sleep(rest_s)
        rested = a.ask("look")
        rate_before = (rested["done"] - before["done"]) / (time.monotonic() - began)
        c = site.begin("c", **place)
        c.finish()
        empty = resident[b]
        wait_until(lambda: redundancy([a, b, c])[1] > 0 or redundancy([a, b, c])[0] == 2, 30, "the snapshot begins")
        first, began = a.ask("look"), time.monotonic()
        is_whole = True
        try:
            image_s = wait_until(lambda: redundancy([a, b, c]) == (2, 0), LEARN_S, "the member has every bucket")
        except AssertionError:
            image_s, is_whole = LEARN_S, False
        last = a.ask("look")
        rate_meanwhile = (last["done"] - first["done"]) / (time.monotonic() - began)
        time.sleep(rest_s)
        after = a.ask("look")
        rate_after = (after["done"] - last["done"]) / rest_s
        missing = redundancy([a, b, c])[1]
        shown = (
            f"{image_s:.1f} s" if is_whole else f"{missing} of {BUCKETS} buckets are not whole after {LEARN_S:.0f} s"
        )
        report.row(f"snapshot of {count:,} entries{where}", shown, goal="5 s", image_s=image_s, is_whole=is_whole)
        report.row(
            f"{'rows' if delay_ms else 'puts'} by 4 threads meanwhile{where}",
            f"{rate_meanwhile:,.0f} a second",
            f"{rate_before:,.0f} before, {rate_after:,.0f} after",
            rate_meanwhile / rate_before,
            "50%",
        )
        longest = max(first["longest_ms"], last["longest_ms"])
        goal = f"{100 + 4 * delay_ms:.0f} ms"
        report.row(
            f"longest {'call' if delay_ms else 'put'} meanwhile{where}",
            f"{longest:.0f} ms",
            f"{rested['longest_ms']:.0f} ms before",
            goal=goal,
        )
        if delay_ms:
            return
        a.ask("written")
        replica = c.ask("state")
        assert replica["entries"] >= count, f"the replica has {replica['entries']} entries of {count}"
        report.row(
            "memory of the replica",
            f"{(replica['resident'] - empty) / 1e6:.0f} MB",
            f"{took[0] / 1e6:.0f} MB at the member that put, {took[1] / 1e6:.0f} MB at the other",
            (replica["resident"] - empty) / max(statistics.mean(took), 1),
            "110%",
        )


def before(options: Options, report: Report) -> None:
    """The table is that of compare.py."""
    if options.before is None:
        print("one member beside an earlier tree: not measured; give --before DIRECTORY, a tree that is built")
        return
    how = options.size(["--rounds", "6", "--lives", "3"], ["--rounds", "3", "--lives", "1"], ["--smallest"])
    command = [sys.executable, str(HERE / "compare.py"), str(options.before), *how]
    only = ["put", "get", "change if", "columns", "stored columns", "apply"]
    done = subprocess.run([*command, "--only", *only], check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines()[2:]:
        point, figure, earlier, now, ratio, spread = (each.strip() for each in line.strip("|").split("|"))
        goal = "105%" if figure == "ns" else ""
        report.row(f"{point}, one member", f"{now} {figure}", earlier, float(ratio.rstrip("%")) / 100, goal)
        report.rows[-1]["quartiles"] = spread


SECTIONS: dict[str, Callable[[Options, Report], None]] = {
    "columns": columns,
    "events": events,
    "single": single,
    "listeners": listeners,
    "kill": kill,
    "stop": stop,
    "join": join,
    "far": far,
    "before": before,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_forms(parser)
    parser.add_argument("--rounds", type=int, help="rounds that count (one more warms up)")
    parser.add_argument("--only", nargs="*", choices=[*SECTIONS], default=[*SECTIONS], metavar="NAME")
    parser.add_argument("--before", type=Path, metavar="DIRECTORY")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--json", type=Path)
    options, _ = parser.parse_known_args(namespace=Options())
    options.rounds = options.rounds or options.size(5, 3, 1)
    if options.first:
        with contextlib.suppress(PermissionError):  # It leads its group already.
            os.setsid()
        go_first(os.getpid())
    report = Report(options.json)
    for name in options.only:
        SECTIONS[name](options, report)


if __name__ == "__main__":
    main()
