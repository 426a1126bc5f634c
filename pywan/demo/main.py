"""Owns the course of the demo: start, load, settle, check, faults under writes, settle, compare, report. It leaves no
process and no file behind."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pywan.cli.output import Output
from pywan.demo import compare, faults, feeds, spark_session, topology
from pywan.demo.members import Members
from pywan.demo.progress import Progress
from pywan.demo.report import Report
from pywan.errors import PywanError

FEED_SITE = "ny"
WRITE_SITES = ("ny", "tk")
WRITE_KEYS = 1_000
STANDSTILL_LIMIT_S = 60.0
_POLL_S = 0.2
INTERRUPTED = 130


@dataclass(frozen=True)
class Options:
    """What a person may choose."""

    events: int = 1_000_000
    input: str | None = None
    key: str | None = None
    operation: str | None = None
    topology: str = "star"
    seed: int = 1
    cut_seconds: float = 4.0
    faults: bool = True
    persistent: bool = False
    tls: bool = False
    json: bool = False
    quiet: bool = False
    dir: str = "demo-work"
    keep: bool = False


class Demo:
    """One run. `run` gives the report; `close` ends every process and thread and may be called at any time."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.topology = topology.build(options.topology)
        self.directory = Path(options.dir).resolve() / f"run-{os.getpid()}"
        self.report = Report(options.topology)
        self._cleanup = ExitStack()
        self._spark: Future[Any] | None = None
        self._written: dict[str, int] = {}  # By the writers of each site.
        self._ssl: dict[str, str] | None = None
        self.members: Members
        self.link: faults.Link
        self.progress: Progress

    def run(self) -> Report:
        started = time.monotonic()
        options = self.options
        self._start()
        feed = self._read_feed()
        self._load(feed)
        expected = self._check_feed(feed)
        if options.faults:
            self._faults(feed, expected)
        self._compare(expected)
        self.report.seconds = time.monotonic() - started
        return self.report

    def close(self) -> None:
        self._cleanup.close()

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        files = topology.write_configuration(self.topology, self.directory, persistent=self.options.persistent)
        ssl = topology.write_certificates(self.topology, self.directory) if self.options.tls else None
        self._ssl = ssl
        self.members = Members(self.topology, self.directory, files, ssl)
        self.progress = Progress(self.members.look, list(self.topology.sites), quiet=self.options.quiet)
        self.link = faults.Link(self.topology.sites[self.topology.cut_site])
        pool = ThreadPoolExecutor(1, thread_name_prefix="demo-spark")
        self._cleanup.callback(self._stop_spark)
        self._cleanup.callback(self.members.stop_all)
        self._cleanup.callback(self.link.stop)
        self._cleanup.callback(self.progress.stop)
        started = time.monotonic()
        say = self.progress.say
        say(f"{len(self.topology.sites)} sites in a {self.topology.name}; files in {self.directory}")
        self.progress.start()
        say("starting Spark's Java process, while the sites start")
        self._spark = pool.submit(spark_session.start, self.directory / "spark")
        pool.shutdown(wait=False)
        self.link.start()
        self.members.start_all(say)
        self.progress.watch()
        if not self._spark.done():
            say("waiting for Spark's Java process")
        session = self._spark.result()
        self.progress.activity = lambda: spark_session.activity(session)
        self.report.add_step("start", time.monotonic() - started)

    def _stop_spark(self) -> None:
        if self._spark is not None and not self._spark.cancel():
            try:
                session = self._spark.result(120)
            except Exception:
                return
            spark_session.stop(session)

    def _read_feed(self) -> feeds.Feed:
        started = time.monotonic()
        assert self._spark is not None
        spark, options = self._spark.result(), self.options
        rows = f"generates {options.events:,} events of market data" if options.input is None else "reads the feed"
        self.progress.say(f"Spark {rows}, sorts them by key and counts them")
        if options.input is not None:
            feed = feeds.from_file(spark, options.input, options.key or "key", options.operation)
        else:
            feed = feeds.market_data(spark, options.events, options.seed)
        self.report.feed = {"source": feed.source, "events": feed.rows, "idle_destroys": feed.idle_destroys}
        self.report.add_step("read the feed", time.monotonic() - started, feed.rows)
        return feed

    def _load(self, feed: feeds.Feed) -> None:
        from pywan.spark import enqueue

        site = self.topology.sites[FEED_SITE]
        self.progress.say(f"Spark sends {feed.rows:,} rows to {site.name.upper()}, whose senders take them on")
        started = time.monotonic()
        summary = enqueue(
            feed.frame,
            locators=f"{site.address}[{site.locator_port}]",
            region=topology.REGION,
            key=feed.key,
            value=list(feed.values),
            operation=feed.operation,
            ssl=self._ssl,
        )
        self.report.add_step(
            "load through Spark", summary.seconds, summary.rows, bytes=summary.bytes, partitions=summary.partitions
        )
        if summary.rows != feed.rows:
            self.report.problems.append(f"Spark enqueued {summary.rows:,} rows of {feed.rows:,}")
        self.progress.say("Spark is done; the sites catch up")
        self._settle()
        self.report.check_feed(FEED_SITE, self.members.look(FEED_SITE).events)
        self.report.add_step("load, until every site has it", time.monotonic() - started, summary.rows)

    def _check_feed(self, feed: feeds.Feed) -> Any:
        """Every site against what the feed must leave behind, computed by Spark alone. Returns those rows (Arrow)."""
        started = time.monotonic()
        self.progress.say("every site is compared with what the feed must leave behind")
        live = feed.live.toArrow()
        feed.release()
        contents = {"the feed": compare.contents_of(live, feed.key, feed.values), **self._contents()}
        for difference in compare.compare(contents, stamps=False):
            if difference:
                self.report.problems.append(f"after the load, {difference}")
        self.report.feed["live_keys"] = live.num_rows
        self.report.add_step(
            "compare with the feed", time.monotonic() - started, live.num_rows * len(self.topology.sites)
        )
        return live

    def _faults(self, feed: feeds.Feed, expected: Any) -> None:
        cut = self.topology.sites[self.topology.cut_site]
        tk = self.topology.sites["tk"]
        keys = expected.column(feed.key).slice(0, WRITE_KEYS).to_pylist() or ["a key"]
        writers = faults.Writers(
            [self.topology.sites[name] for name in WRITE_SITES], keys, self.members, self.options.seed
        )
        say, started = self.progress.say, time.monotonic()
        say(f"{' and '.join(name.upper() for name in WRITE_SITES)} update the same {len(keys):,} keys at once")
        with writers:
            writers.go_on_for(1.0)
            say(f"the link to {cut.name.upper()} is cut for {self.options.cut_seconds:g} s")
            self.link.cut()
            writers.go_on_for(self.options.cut_seconds)
            self.link.restore()
            say(f"the link to {cut.name.upper()} is restored")
            writers.go_on_for(1.5)
            old, new = faults.move_receiver(self.members, cut)
            say(f"{cut.name.upper()}'s receiver was stopped and started: port {old}, now {new}")
            writers.go_on_for(1.5)
            say(f"{tk.name.upper()}'s locator is killed")
            faults.restart_locator(self.members, tk, lambda: writers.go_on_for(1.5))
            say(f"{tk.name.upper()}'s locator was started again")
            writers.go_on_for(1.0)
            if self.options.persistent:
                say(f"{cut.name.upper()}'s server is killed with everything it had in memory")
                faults.restart_server(self.members, cut, lambda: writers.go_on_for(1.5))
                say(f"{cut.name.upper()}'s server was started again, from its disk store")
                writers.go_on_for(1.5)
        self._written = writers.written
        written = sum(self._written.values())
        say("the writers have stopped; the sites catch up")
        self.report.add_step("faults under writes", time.monotonic() - started, written)
        started = time.monotonic()
        self._settle()
        self.report.add_step("settle", time.monotonic() - started)

    def _compare(self, expected: Any) -> None:
        started = time.monotonic()
        self.progress.say("the sites are compared key by key")
        contents = self._contents()
        differences = {difference.site: difference for difference in compare.compare(contents)}
        for site, held in contents.items():
            stats = self.members.receiver_stats(site)
            difference = differences.get(site)
            self.report.sites[site] = {
                "live_keys": len(held),
                "events": self.members.look(site).events,
                "written": self._written.get(site, 0),
                "received": stats["events_received"],
                "repeated": stats["duplicate_events_skipped"],
                "conflicts_lost": stats["conflicts_lost"],
                "fastest_events_per_second": round(self.progress.fastest[site]),
                "contents": "reference" if difference is None else str(difference).partition(": ")[2],
            }
            if difference:
                self.report.problems.append(f"at the end, {difference}")
            if len(held) != expected.num_rows:
                self.report.problems.append(
                    f"at the end, {site} has {len(held):,} live keys, not {expected.num_rows:,}"
                )
            for name, ledger in self.members.ledgers(site).items():
                self.report.add_sender(site, name, ledger)
                if ledger.get("parked"):
                    self.report.problems.append(f"{site}'s sender {name} has parked {ledger['parked']:,} events")
        if not (self.options.persistent and self.options.faults):  # A killed server's receiver counts from 0 again.
            self.report.check_flow({site: site for site in self.topology.sites})
            self.report.check_sums(FEED_SITE)
        self.report.add_step("compare key by key", time.monotonic() - started, sum(map(len, contents.values())))

    def _contents(self) -> dict[str, compare.Contents]:
        return {site: compare.read_contents(functools.partial(self.members.scan, site)) for site in self.topology.sites}

    def _settle(self) -> None:
        """Returns when every queue is empty and nothing changes any more; PywanError if a queue stands still."""
        last: Any = None
        moved_at = time.monotonic()
        pause = threading.Event()
        while True:
            views = {site: self.members.look(site) for site in self.topology.sites}
            state = {site: (view.events, dict(view.queued)) for site, view in views.items()}
            if state == last and not any(size for view in views.values() for size in view.queued.values()):
                return
            if state != last:
                last, moved_at = state, time.monotonic()
            elif time.monotonic() - moved_at > STANDSTILL_LIMIT_S:
                stuck = [
                    f"{site} to {sender}: {size:,} ({', '.join(view.lag_causes) or 'no cause given'})"
                    for site, view in views.items()
                    for sender, size in view.queued.items()
                    if size
                ]
                raise PywanError(f"queues stand still for {STANDSTILL_LIMIT_S:.0f} s: {'; '.join(stuck)}")
            pause.wait(_POLL_S)


class _Signals:
    """While it is open, SIGTERM and SIGHUP interrupt as Ctrl-C does. After `deaf` no signal disturbs the clean-up."""

    def __init__(self) -> None:
        self.interrupted = False

    def __enter__(self) -> _Signals:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for number in self._before:
            signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deaf(self) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: Any) -> None:
        self.interrupted = True
        logging.disable(logging.CRITICAL)  # The calls that are cut off now would log long tracebacks.
        raise KeyboardInterrupt


def run(options: Options = Options()) -> int:
    """Runs the demo. Returns 0 only if every site is equal and every event explained. It leaves no process behind."""
    if options.operation is not None and options.input is None:
        raise click.UsageError("--operation names a column of --input")
    console = Console(highlight=False, width=Output(out=sys.stdout).width)
    demo = report = None
    status = 1
    with _Signals() as signals:
        try:
            if options.input is not None:
                feeds.check_file(options.input)
            spark_session.check()
            demo = Demo(options)
            report = demo.run()
            status = 0 if report.ok else 1
        except (KeyboardInterrupt, Exception) as error:
            if signals.interrupted:  # Whatever came of it, such as Spark's complaint about the call that was cut off.
                status = INTERRUPTED
                click.echo("interrupted: ending all processes", err=True)
            elif isinstance(error, PywanError):
                click.echo(f"error: {error}", err=True)
            else:
                raise
        finally:
            signals.deaf()
            if demo is not None:
                demo.close()
                if status != 1 and not options.keep:
                    shutil.rmtree(demo.directory, ignore_errors=True)
                    with contextlib.suppress(OSError):  # The folder has files of another run.
                        demo.directory.parent.rmdir()
    if report is None:
        return status
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        report.print(console)
    return status


@click.command(name="demo")
@click.option(
    "--events",
    type=click.IntRange(1),
    default=Options.events,
    show_default=True,
    help="How many events of generated market data.",
)
@click.option("--input", type=str, help="A CSV, gzip CSV, Parquet or JSON-lines file to feed instead.")
@click.option("--key", help="The column of --input that holds the key.  [default: key]")
@click.option("--operation", help="The column of --input that holds create, update or destroy.")
@click.option(
    "--topology", default=Options.topology, show_default=True, help=f"One of {', '.join(topology.TOPOLOGIES)}."
)
@click.option("--seed", default=Options.seed, show_default=True, help="Of everything random.")
@click.option(
    "--cut-seconds",
    type=click.FloatRange(0, 3600),
    default=Options.cut_seconds,
    show_default=True,
    help="How long the link to LN is cut.",
)
@click.option("--no-faults", "faults", flag_value=False, default=True, help="Only load and compare.")
@click.option(
    "--persistent", is_flag=True, help="Queues and regions on disk; LN's server is then killed and started again too."
)
@click.option("--tls", is_flag=True, help="Encrypt every connection, with certificates that are made for the run.")
@click.option("--json", is_flag=True, help="Print the report as JSON; progress goes to standard error.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option(
    "--dir",
    default=Options.dir,
    show_default=True,
    help="Where the processes keep their files; removed if all went well.",
)
@click.option("--keep", is_flag=True, help="Keep the files.")
def command(**chosen: Any) -> None:
    """Three sites on this machine, fed by Spark, through faults, compared key by key."""
    sys.exit(run(Options(**chosen)))


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: the exit status is 0 only if all sites are equal; an error of the options is two lines."""
    try:
        command.main(args=arguments, prog_name="pywan demo", standalone_mode=False)
    except click.UsageError as error:
        click.echo(f"error: {error.format_message()}\nhelp:  pywan demo --help", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
