"""Owns what people see while the demo runs: a moving line and a table on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

POLL_S = 0.5
LINE_EVERY_S = 3.0  # Where there is no terminal.


@dataclass(frozen=True)
class SiteView:
    """One look at a site."""

    keys: int  # Live keys of the region.
    events: int  # Changes so far: the site's own and those of others.
    queued: Mapping[str, int]  # By sender.
    lag_seconds: float
    lag_causes: tuple[str, ...]
    running: bool = True


class Progress:
    """Shows the step that is under way, twice a second, in a thread of its own. After `watch` it looks at the sites.

    `say` begins a step. `activity` tells how far the step is, if it can.
    """

    def __init__(self, look: Callable[[str], SiteView], sites: list[str], *, quiet: bool = False) -> None:
        self._look = look
        self._sites = sites
        self._quiet = quiet
        self.console = Console(file=sys.stderr, highlight=False, quiet=quiet)
        self._live: Live | None = None
        self._views: dict[str, SiteView] = {}
        self._history: dict[str, list[tuple[float, int]]] = {site: [] for site in sites}
        self.fastest: dict[str, float] = dict.fromkeys(sites, 0.0)  # Events a second, over two looks or more.
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.activity: Callable[[], str] = lambda: ""
        self._watching = False
        self._how_far = ""
        self._started = self._step_started = time.monotonic()
        self._spinner = Spinner("dots")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to show steps."""
        if self.console.is_terminal and not self._quiet:
            self._live = Live(self._picture(), console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        self._thread = threading.Thread(target=self._run, name="demo-progress", daemon=True)
        self._thread.start()

    def watch(self) -> None:
        """Begin to look at the sites: they are there."""
        self._watching = True

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        self._step_started, self._how_far = time.monotonic(), ""
        self.console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/]  {text}", soft_wrap=True)

    def _run(self) -> None:
        next_line = time.monotonic() + LINE_EVERY_S
        while not self._stopped.wait(POLL_S):
            if self._watching:
                self._look_at_sites()
            with contextlib.suppress(Exception):  # Spark may be ending.
                self._how_far = self.activity()
            if self._live is not None:
                self._live.update(self._picture())
            elif time.monotonic() >= next_line:
                next_line = time.monotonic() + LINE_EVERY_S
                self.console.print(self._line(), soft_wrap=True)

    def _look_at_sites(self) -> None:
        for site in self._sites:
            try:
                view = self._look(site)
            except Exception:  # The site is away for now. The table shows that, and the demo judges it elsewhere.
                old = self._views.get(site)
                if old is not None:
                    self._views[site] = dataclasses.replace(old, running=False)
                continue
            self._views[site] = view
            self._note_rate(site, view.events)

    @property
    def _has_events(self) -> bool:
        return any(view.events for view in self._views.values())

    def _note_rate(self, site: str, events: int) -> None:
        history = self._history[site]
        history.append((time.monotonic(), events))
        del history[:-4]
        self.fastest[site] = max(self.fastest[site], self._rate(site))

    def _rate(self, site: str) -> float:
        history = self._history[site]
        if len(history) < 2:
            return 0.0
        (first_at, first), (last_at, last) = history[0], history[-1]
        return max(0.0, (last - first) / (last_at - first_at))

    def _how_long(self) -> str:
        """For how long the step goes on, and how far it is. The step itself stands in the line above."""
        seconds = f"for {time.monotonic() - self._step_started:.0f} s"
        return f"{seconds}: {self._how_far}" if self._how_far else seconds

    def _line(self) -> str:
        now = f"{time.monotonic() - self._started:6.1f} s"
        if not self._has_events:
            return f"[dim]{now}    ... {self._how_long()}[/]"
        parts = []
        for site, view in self._views.items():
            queue = sum(view.queued.values())
            parts.append(
                f"{site.upper()} {view.events:,} events, {self._rate(site):,.0f}/s, queue {queue:,}"
                + (f" ({', '.join(view.lag_causes)})" if queue and view.lag_causes else "")
                + ("" if view.running else ", away")
            )
        if self._how_far:
            parts.append(f"Spark: {self._how_far}")
        return f"[dim]{now}    {' | '.join(parts)}[/]"

    def _picture(self) -> Group:
        """A line that moves, and below it the sites as soon as they have events."""
        self._spinner.update(text=self._how_long())
        return Group(self._spinner, self._table()) if self._has_events else Group(self._spinner)

    def _table(self) -> Table:
        table = Table()
        for name in ("Site", "Keys", "Events", "Events/s", "Queue", "Lag"):
            table.add_column(name, justify="left" if name in ("Site", "Lag") else "right", min_width=9)
        for site in self._sites:
            view = self._views.get(site)
            if view is None:
                table.add_row(site.upper(), *["..."] * 4, "")
                continue
            queue = ", ".join(f"{sender} {size:,}" for sender, size in view.queued.items())
            lag = f"{view.lag_seconds:.1f} s {', '.join(view.lag_causes)}" if any(view.queued.values()) else ""
            table.add_row(
                site.upper() if view.running else f"{site.upper()} (away)",
                f"{view.keys:,}",
                f"{view.events:,}",
                f"{self._rate(site):,.0f}",
                queue,
                lag,
            )
        return table
