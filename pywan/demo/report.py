"""Owns the demo's last word: what each site holds, each sender's ledger, the rates; as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

_RECEIVED = ("queued", "not_queued", "filtered_before_enqueue")
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
        """Every event that senders count as distributed to a site was received there once. `ids`: the site behind a sender's id."""
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
        sites = Table(title="Sites", title_justify="left")
        for name in (
            "Site",
            "Live keys",
            "Events",
            "Received from others",
            "Of these lost a conflict",
            "Fastest events/s",
            "Contents",
        ):
            sites.add_column(name, justify="left" if name in ("Site", "Contents") else "right")
        for name, site in self.sites.items():
            sites.add_row(
                name.upper(),
                f"{site['live_keys']:,}",
                f"{site['events']:,}",
                f"{site['received']:,}",
                f"{site['conflicts_lost']:,}",
                f"{site['fastest_events_per_second']:,.0f}",
                site["contents"],
            )
        console.print(sites)

        senders = Table(
            title="Ledgers: received = queued + not queued + filtered + dropped; "
            "queued = distributed + conflated + filtered + parked + in queue",
            title_justify="left",
        )
        columns = ("received", "queued", "not_queued", "dropped", "distributed", "conflated", "parked", "in_queue")
        for name in ("Sender", *(column.replace("_", " ").capitalize() for column in columns), "Balance"):
            senders.add_column(name, justify="left" if name in ("Sender", "Balance") else "right")
        for sender in self.senders:
            ledger = sender["ledger"]
            cells = []
            for column in columns:
                amount = ledger.get(column, 0)
                cells.append(f"{sum(amount.values()) if isinstance(amount, Mapping) else int(amount or 0):,}")
            senders.add_row(
                f"{sender['site'].upper()} to {sender['sender'].upper()}",
                *cells,
                "yes" if sender["balanced"] else "[red]NO[/]",
            )
        console.print(senders)

        steps = Table(title="Steps", title_justify="left")
        for name in ("Step", "Seconds", "Events", "Events/s"):
            steps.add_column(name, justify="left" if name == "Step" else "right")
        for step in self.steps:
            rate = step.get("events_per_second")
            steps.add_row(
                step["step"],
                f"{step['seconds']:.1f}",
                f"{step['events']:,}" if "events" in step else "",
                f"{rate:,}" if rate is not None else "",
            )
        console.print(steps)
        for problem in self.problems:
            console.print(f"[red]{problem}[/]", soft_wrap=True)
        if self.ok:
            keys = next(iter(self.sites.values()), {}).get("live_keys", 0)
            console.print(
                f"[green]All {len(self.sites)} sites hold the same {keys:,} keys and every event is explained[/] "
                f"({self.topology}, {self.seconds:.0f} s)."
            )
        else:
            console.print(
                f"[red]{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}; the sites' files were kept.[/]"
            )
