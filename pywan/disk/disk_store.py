"""Owns what users see of a disk store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pywan.base.faces import Described
from pywan.config.attributes import DiskStoreAttributes
from pywan.disk.store import StoreCore
from pywan.forks import is_inherited


class DiskStore(Described):
    """The folders in which queues and regions of a member are kept.

    A disk store is made by `Cache.create_disk_store`, and closed with the cache.
    """

    def __init__(self, core: StoreCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The store's name."""
        return self._core.name

    @property
    def attributes(self) -> DiskStoreAttributes:
        """The attributes that the store was created with."""
        return self._core.attributes

    @property
    def directories(self) -> list[Path]:
        """The folders that the store made, one in each directory that it was given."""
        return self._core.directories

    def contents(self) -> list[dict[str, Any]]:
        """Reads what the store holds on the disk.

        Returns:
            One map for each directory: "directory" (its path), "max_size" (its limit in MB, None: no limit), "bytes"
                (the size of all its logs) and "logs" (their names).
        """
        return self._core.contents()

    # How it shows itself

    def _line(self) -> str:
        core = self._core
        return f"{core.attributes.name}, {'of the parent process' if is_inherited(core) else core.state_text()}"

    def _facts(self) -> dict[str, object]:
        core = self._core
        if is_inherited(core):
            return {"name": core.attributes.name, "state": "of the parent process"}
        return {"name": core.attributes.name, "state": core.state_text(), **core.usage()}
