"""Owns two sites in one process, for the tests of programs that use pywan."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from pywan.gateway.sender import GatewaySender
from pywan.region.region import Region
from pywan.testing.local_site import LocalSite, wait_until_known

_SHOWN = 5  # An error names so many keys.


class TestSite(LocalSite):
    """One site: its locator, its only member, and the sender to the other site.

    Attributes:
        name: "ny" or "ln".
        id: The distributed-system-id: 1 or 2.
        locator: The site's locator.
        cache: The site's member.
        sender: The gateway sender to the other site.
    """

    __test__ = False  # pytest would take it for a class of tests, because of its name.

    sender: GatewaySender

    def __init__(self, name: str, id: int, remotes: Iterable[LocalSite]) -> None:
        super().__init__(name, id, remotes)
        self._dropped: dict[str, int] = {}  # The dropped events that were told, by the reason.

    def create_region(self, name: str, **attributes: Any) -> Region[Any, Any]:
        """Creates a region whose changes go to the other site.

        Args:
            name: The region's name.
            **attributes: The attributes of `Cache.create_region`. By default it is a PARTITION region.

        Returns:
            The region.
        """
        return self.cache.create_region(
            name, **{"type": "PARTITION", "gateway_sender_ids": [self.sender.id], **attributes}
        )

    def region(self, name: str) -> Region[Any, Any]:
        """Returns the region of that name.

        Raises:
            RegionNotFoundError: The site has no such region. The error names those that it has.
        """
        return self.cache.region(name)

    def _lost(self, other: TestSite) -> list[str]:
        """Returns a line for each thing that became of events which the other site does not get. Events that were
        dropped are told once."""
        sender, ledger = self.sender, self.sender.ledger()
        what = f"site {self.name!r}, sender {sender.id!r}"
        lines = [
            f"{what}: the {event['operation']} of key {event['key']!r:.80} of region {event['region']!r} is parked:"
            f" {event['reason']}"
            for event in sender.parked(_SHOWN)
        ]
        if sender.parked_count > len(lines):
            lines.append(f"{what}: {sender.parked_count - len(lines)} more events are parked; see sender.parked()")
        dropped = {**ledger["dropped"], **ledger["dropped_from_queue"]}
        if sender.attributes.substitution_on_error == "drop":
            dropped["the substitution filter failed"] = ledger["withheld"]
        for reason, count in dropped.items():
            fresh = count - self._dropped.get(reason, 0)
            if fresh > 0:
                lines.append(
                    f"{what}: {fresh} events were dropped: {reason}; keys that differ: {self._differing(other)}"
                )
        self._dropped = dropped
        return lines

    def _differing(self, other: TestSite) -> str:
        """Returns the first keys of each region whose values are not the same at the other site."""
        found = []
        theirs = other.cache.regions()
        for name, region in self.cache.regions().items():
            if self.sender.id in region.gateway_sender_ids:
                here, there = dict(region.items()), dict(theirs[name].items()) if name in theirs else {}
                keys = [
                    key for key in {**here, **there} if (key in here, here.get(key)) != (key in there, there.get(key))
                ]
                found += [f"{key!r:.80} of region {name!r}" for key in keys[:_SHOWN]]
        return ", ".join(found) or "none"

    def __repr__(self) -> str:
        return f"<site {self.name}>"


class TwoSites:
    """Two sites with one member each, connected both ways. `two_sites` makes them.

    They run until `close`. The object is a context manager, which closes them at the end of the block.

    Attributes:
        ny: The site with the id 1.
        ln: The site with the id 2.
    """

    __test__ = False

    def __init__(self, ny: TestSite, ln: TestSite, ending: contextlib.ExitStack) -> None:
        """`ending`: ends the sites when it is closed."""
        self.ny = ny
        self.ln = ln
        self._ending = ending
        self._is_closed = False

    def close(self) -> None:
        """Ends both sites. Calling it again is no error."""
        self._is_closed = True
        self._ending.close()

    def __enter__(self) -> TwoSites:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The threads of the sites keep them alive: only `close`, or the end of the interpreter, ends them.
        if not getattr(self, "_is_closed", True):
            warnings.warn(
                f"{self!r} was never closed, and its sites still run: call close(), or use it in `with`",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def create_region(self, name: str, **attributes: Any) -> tuple[Region[Any, Any], Region[Any, Any]]:
        """Creates the region in both sites. It takes the arguments of `TestSite.create_region`.

        Returns:
            The region in ny, and the region in ln.
        """
        return self.ny.create_region(name, **attributes), self.ln.create_region(name, **attributes)

    def settle(self, timeout: float = 10.0) -> None:
        """Returns when each change of either site has been applied at the other site.

        Args:
            timeout: How many seconds to wait at most, for each direction.

        Raises:
            TimeoutError: Some changes were not applied in time.
            AssertionError: Some changes will not be applied: they are parked, or were dropped since the last call. The
                error names the site, the sender, the reason, and parked keys.
        """
        for site in self:
            if not site.sender.wait_until_flushed(timeout=timeout):
                lag = site.sender.lag()
                state = f"after {timeout:g} s" if site.sender.is_running else "in a sender that is stopped"
                raise TimeoutError(f"{lag['events']} events of {site!r} still wait {state}: {lag}")
        lost = [line for site, other in ((self.ny, self.ln), (self.ln, self.ny)) for line in site._lost(other)]
        if lost:
            raise AssertionError("not every change was applied at the other site:\n  " + "\n  ".join(lost))

    def __iter__(self) -> Iterator[TestSite]:
        return iter((self.ny, self.ln))

    def __repr__(self) -> str:
        return f"<two sites, {self.ny.name} and {self.ln.name}>"


def two_sites(*regions: str, dir: str | PathLike[str] | None = None, **sender: Any) -> TwoSites:
    """Makes two sites in this process, on loopback addresses and free ports. They run when it returns, and end with
    `close`, or with a `with` block.

    Use it in a notebook:

        sites = two_sites("orders")
        sites.ny.region("orders")["o-1"] = {"qty": 3}
        sites.settle()
        sites.close()

    Use it as a pytest fixture:

        @pytest.fixture
        def sites(tmp_path):
            with two_sites("orders", dir=tmp_path) as sites:
                yield sites

    Args:
        *regions: The names of regions that are created in both sites.
        dir: The folder for disk stores. None: there can be none without directories of their own.
        **sender: Attributes of both gateway senders, as `Cache.create_gateway_sender` takes them.

    Returns:
        Both sites.

    Raises:
        ConfigurationError: An attribute of the senders cannot be used. Nothing was left running.
    """
    attributes: dict[str, Any] = {"batch_time_interval": 10, **sender}
    with contextlib.ExitStack() as stack:
        sites: dict[str, TestSite] = {}
        for name, id in (("ny", 1), ("ln", 2)):
            sites[name] = TestSite(name, id, sites.values())
            stack.callback(sites[name].close)
        wait_until_known(sites.values())
        for name, site in sites.items():
            cache = site.start_member(None if dir is None else Path(dir, f"server_{name}"))
            cache.create_gateway_receiver(start_port=0, end_port=0)
        for name, other in (("ny", "ln"), ("ln", "ny")):
            remote = sites[other].id
            made = sites[name].cache.create_gateway_sender(other, remote_distributed_system_id=remote, **attributes)
            # The sender stops before either receiver, so that neither sender logs a broken connection.
            stack.callback(made.stop)
            sites[name].sender = made
        for region in regions:
            for site in sites.values():
                site.create_region(region)
        return TwoSites(**sites, ending=stack.pop_all())
