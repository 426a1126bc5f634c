"""Owns a site in this process: its locator, and its member."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

from pywan.member.cache import Cache
from pywan.site.locator import Locator
from pywan.testing.waiting import eventually


class LocalSite:
    """A site on loopback addresses and free ports. Its locator runs from the beginning.

    Attributes:
        name: The name of the site.
        id: The distributed-system-id of the site.
        locator: The site's locator.
        cache: The site's member, once `start_member` has started it.
    """

    locator: Locator
    cache: Cache

    def __init__(self, name: str, id: int, remotes: Iterable[LocalSite] = (), **locator: Any) -> None:
        """Starts the locator. It knows those of `remotes`. `locator`: more attributes of it."""
        self.name = name
        self.id = id
        known = ",".join(str(remote.locator.address) for remote in remotes)
        self.locator = Locator(
            f"locator_{name}", distributed_system_id=id, remote_locators=known, **{"port": 0, **locator}
        ).start()

    def start_member(self, dir: str | PathLike[str] | None = None, **more: Any) -> Cache:
        """Starts the site's member, or starts it anew. It takes the arguments of `Cache`."""
        self.cache = Cache(f"server_{self.name}", locators=str(self.locator.address), dir=dir, **more)
        return self.cache

    def close(self) -> None:
        """Closes the member and stops the locator."""
        try:
            if hasattr(self, "cache"):
                self.cache.close()
        finally:
            self.locator.stop()


def wait_until_known(sites: Iterable[LocalSite]) -> None:
    """Returns when the locator of each site knows every site."""
    sites = list(sites)
    ids = {site.id for site in sites}
    eventually(
        lambda: all(set(site.locator.known_sites()) == ids for site in sites),
        what="that each site's locator knows every site",
    )
