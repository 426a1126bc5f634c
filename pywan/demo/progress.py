"""Owns what people see while the demo runs: a live table on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
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
    """Looks at every site twice a second, in its own thread, and shows it. `say` puts a line above the table."""

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
        self._phase = ""
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look: the sites are there."""
        if self.console.is_terminal and not self._quiet:
            self._live = Live(self._table(), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        self._thread = threading.Thread(target=self._run, name="demo-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(10)
            self._thread = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        self._phase = text
        self.console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/]  {text}")

    def _run(self) -> None:
        next_line = time.monotonic() + LINE_EVERY_S
        while not self._stopped.wait(POLL_S):
            for site in self._sites:
                try:
                    view = self._look(site)
                except Exception:  # The site is away for now; that is shown, and its absence is judged elsewhere.
                    old = self._views.get(site)
                    if old is not None:
                        self._views[site] = SiteView(
                            old.keys, old.events, old.queued, old.lag_seconds, old.lag_causes, running=False
                        )
                    continue
                self._views[site] = view
                self._note_rate(site, view.events)
            if self._live is not None:
                self._live.update(self._table())
            elif time.monotonic() >= next_line:
                next_line = time.monotonic() + LINE_EVERY_S
                self.console.print(self._line(), soft_wrap=True)

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

    def _line(self) -> str:
        parts = []
        for site, view in self._views.items():
            queue = sum(view.queued.values())
            parts.append(
                f"{site.upper()} {view.events:,} events, {self._rate(site):,.0f}/s, queue {queue:,}"
                + (f" ({', '.join(view.lag_causes)})" if queue and view.lag_causes else "")
                + ("" if view.running else ", away")
            )
        return f"[dim]{time.monotonic() - self._started:6.1f} s    {' | '.join(parts)}[/]"

    def _table(self) -> Table:
        table = Table(title=self._phase, title_justify="left", title_style="bold")
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
