"""Owns the report of the demo: what each site holds, where its events come from, ledgers, rates. Tables or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from pywan.base.amounts import duration_text
from pywan.cli.layout import Table, layout

_RECEIVED = ("queued", "not_queued", "filtered_before_enqueue", "withheld")
_QUEUED = ("distributed", "conflated", "filtered_before_transmit", "parked", "in_queue")


def unexplained(ledger: Mapping[str, Any]) -> list[str]:
    """What does not add up in a sender's ledger, in words; empty if every event is accounted for."""
    problems = []
    dropped = ledger.get("dropped") or {}
    dropped_total = sum(dropped.values()) if isinstance(dropped, Mapping) else int(dropped)
    taken_out = sum((ledger.get("dropped_from_queue") or {}).values())
    for total, parts, more in (("received", _RECEIVED, dropped_total), ("queued", _QUEUED, taken_out)):
        explained = sum(int(ledger.get(part, 0)) for part in parts) + more
        if int(ledger.get(total, 0)) != explained:
            problems.append(f"{total} {int(ledger.get(total, 0)):,}, explained {explained:,}")
    return problems


def _amount(entry: Any) -> int:
    """A number of a ledger. One that is told by reason is their sum."""
    return sum(entry.values()) if isinstance(entry, Mapping) else int(entry or 0)


def _without_zeros(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Table:
    """A table without the columns that are 0 in each row, which the title then says."""
    shown = [n for n in range(len(columns)) if not rows or any(row[n] != 0 for row in rows)]
    cells = [[f"{row[n]:,}" if isinstance(row[n], int) else row[n] for n in shown] for row in rows]
    left_out = [columns[n].lower() for n in range(len(columns)) if n not in shown]
    return Table(
        [columns[n] for n in shown], cells, f"{title} (0 everywhere: {', '.join(left_out)})" if left_out else title
    )


@dataclass
class Report:
    """Everything that the demo found out. `problems` is empty if all is well."""

    topology: str
    feed: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    senders: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problems

    def add_step(self, name: str, seconds: float, events: int | None = None, **more: Any) -> None:
        step: dict[str, Any] = {"step": name, "seconds": round(seconds, 3)}
        if events is not None:
            step |= {"events": events, "events_per_second": round(events / seconds) if seconds else None}
        self.steps.append(step | more)

    def add_sender(self, site: str, name: str, ledger: Mapping[str, Any]) -> None:
        problems = unexplained(ledger)
        self.senders.append({"site": site, "sender": name, "ledger": dict(ledger), "balanced": not problems})
        self.problems += [f"the ledger of {site}'s sender {name} does not balance: {problem}" for problem in problems]

    def check_flow(self, ids: Mapping[str, str]) -> None:
        """Every event that senders count as distributed to a site was received there once. `ids`: the site behind a
        sender's id."""
        for site, found in self.sites.items():
            sent = sum(
                int(sender["ledger"]["distributed"]) + int(sender["ledger"]["parked"])
                for sender in self.senders
                if ids[sender["sender"]] == site
            )
            if sent != found["received"]:
                self.problems.append(
                    f"{site} received {found['received']:,} events, but {sent:,} were distributed to it"
                )

    def check_feed(self, site: str, events: int) -> None:
        """The changes of the feed are the events of the site that was fed, after the load."""
        expected = self.feed["events"] - self.feed["idle_destroys"]
        self.feed["changes"] = events
        if events != expected:
            self.problems.append(
                f"after the load, {site} has {events:,} events, but the feed's {self.feed['events']:,} rows less"
                f" {self.feed['idle_destroys']:,} destroys of keys that were not there are {expected:,}"
            )

    def check_sums(self, fed: str) -> None:
        """Every event of every site comes from the feed, from a writer here, or from another site and won."""
        for name, site in self.sites.items():
            site["fed"] = self.feed["changes"] if name == fed else 0
            expected = site["fed"] + site["written"] + site["received"] - site["repeated"] - site["conflicts_lost"]
            if site["events"] != expected:
                self.problems.append(f"{name} has {site['events']:,} events, and {expected:,} are explained")

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "topology": self.topology,
            "feed": self.feed,
            "sites": self.sites,
            "senders": self.senders,
            "steps": self.steps,
            "problems": self.problems,
            "seconds": round(self.seconds, 3),
        }

    def print(self, console: Console) -> None:
        if "changes" in self.feed:
            rows, idle, changes = (self.feed[name] for name in ("events", "idle_destroys", "changes"))
            console.print(
                f"The feed ({self.feed['source']}): {rows:,} rows = {changes:,} events + {idle:,} destroys of keys that"
                " were not there, which change nothing.\n"
            )
        for table in self._tables():
            for line in layout(table, console.width):
                console.print(line, soft_wrap=True, markup=False)
            console.print()
        for problem in self.problems:
            console.print(f"[red]{problem}[/]", soft_wrap=True)
        if self.ok:
            keys = next(iter(self.sites.values()), {}).get("live_keys", 0)
            console.print(
                f"[green]All {len(self.sites)} sites hold the same {keys:,} keys and every event is explained[/] "
                f"({self.topology}, {duration_text(self.seconds)})."
            )
        else:
            problems = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
            console.print(f"[red]{problems}; the sites' files were kept.[/]")

    def _tables(self) -> Iterator[Table]:
        yield self._table_of_sites()
        if all("fed" in site for site in self.sites.values()):
            yield self._table_of_events()
        yield self._table_of_ledgers()
        yield self._table_of_steps()

    def _table_of_sites(self) -> Table:
        return Table(
            ("Site", "Live keys", "Contents", "Fastest events/s"),
            [
                (
                    name.upper(),
                    f"{site['live_keys']:,}",
                    site["contents"],
                    f"{site['fastest_events_per_second']:,.0f}",
                )
                for name, site in self.sites.items()
            ],
            "Sites",
        )

    def _table_of_events(self) -> Table:
        parts = ("fed", "written", "received", "conflicts_lost", "repeated")
        return _without_zeros(
            "Events: fed + written here + received - lost a conflict - known already = events",
            ("Site", "Fed", "Written here", "Received", "Lost a conflict", "Known already", "Events"),
            [
                (name.upper(), *(site.get(part, 0) for part in parts), site["events"])
                for name, site in self.sites.items()
            ],
        )

    def _table_of_ledgers(self) -> Table:
        columns = ("received", "queued", "not_queued", "dropped", "distributed", "conflated", "parked", "in_queue")
        return _without_zeros(
            "Ledgers of the senders: received = queued + not queued + dropped; queued = distributed + conflated"
            " + parked + in queue. Not queued: the other site has these events already, or gets them from another",
            ("Sender", *(column.replace("_", " ").capitalize() for column in columns), "Balance"),
            [
                (
                    f"{sender['site'].upper()} to {sender['sender'].upper()}",
                    *(_amount(sender["ledger"].get(column, 0)) for column in columns),
                    "yes" if sender["balanced"] else "NO",
                )
                for sender in self.senders
            ],
        )

    def _table_of_steps(self) -> Table:
        return Table(
            ("Step", "Seconds", "Events", "Events/s"),
            [
                (
                    step["step"],
                    f"{step['seconds']:.1f}",
                    f"{step['events']:,}" if "events" in step else "",
                    f"{step['events_per_second']:,}" if step.get("events_per_second") is not None else "",
                )
                for step in self.steps
            ],
            "Steps",
        )
