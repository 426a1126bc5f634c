"""Owns what users see of a disk store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pywan.base.faces import Face
from pywan.config.attributes import DiskStoreAttributes
from pywan.disk.store import StoreCore


class DiskStore(Face):
    """Where queues and regions of a member are kept. Made by `Cache.create_disk_store`, closed with the cache."""

    def __init__(self, core: StoreCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def attributes(self) -> DiskStoreAttributes:
        return self._core.attributes

    @property
    def directories(self) -> list[Path]:
        """The folders that it made, one in each of the directories that it was given."""
        return self._core.directories

    def contents(self) -> list[dict[str, Any]]:
        """For each directory: its path, what it may take in MB (None: no limit), the logs in it and their bytes."""
        return self._core.contents()

    def __repr__(self) -> str:
        return f"<DiskStore {self._core.name}>"
