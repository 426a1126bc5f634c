"""Owns the disk stores of a member."""

from __future__ import annotations

import logging

from pywan.base.names import near_name
from pywan.config.attributes import DEFAULT_STORE, DiskStoreAttributes
from pywan.disk.disk_store import DiskStore
from pywan.disk.store import StoreCore, holds_log
from pywan.errors import ConfigurationError, DiskError, IllegalStateError, NotFoundError
from pywan.member.state import MemberFolder, MemberState

log = logging.getLogger("pywan.cache")


class DiskStores:
    """The open disk stores by name. They change under the member's lock. DEFAULT is created on first use."""

    def __init__(self, state: MemberState, folder: MemberFolder) -> None:
        self._state, self._folder = state, folder
        self._open: dict[str, StoreCore] = {}
        self._faces: dict[str, DiskStore] = {}  # The facades of the open stores.

    def all(self) -> dict[str, StoreCore]:
        return dict(self._open)

    def faces(self) -> dict[str, DiskStore]:
        """Returns the facades of the open stores, by name."""
        return dict(self._faces)

    def create(self, made: DiskStoreAttributes) -> DiskStore:
        """Creates or opens a store. See `Cache.create_disk_store` for the errors."""
        name, member = made.name, self._state.name
        with self._state.lock:
            self._state.check_open()
            if name in self._open:
                raise IllegalStateError(f"disk store {name!r} exists already on member {member!r}")
            if not made.directories and self._folder.is_temporary:
                raise ConfigurationError(
                    f"disk store {name!r}: member {member!r} has no folder that stays: give the"
                    " store directories, or the cache dir"
                )
            self._make(made)
            return self._faces[name]

    def destroy(self, name: str) -> None:
        """Removes a store that holds no log. See `Cache.destroy_disk_store` for the errors."""
        with self._state.lock:
            self._state.check_open()
            if name not in self._open:
                raise NotFoundError(
                    f"disk store {name!r} is not on member {self._state.name!r}; there are {self._names()}"
                )
            self._open[name].destroy()
            self._forget(name)

    def check_there(self, name: str | None, what: str) -> None:
        """Raises IllegalStateError if no store has this name. DEFAULT always passes."""
        if name not in (None, DEFAULT_STORE) and name not in self._open:
            raise IllegalStateError(
                f"{what}: Disk store {name!r} not found{near_name(name, self._open)}; create it first"
                f" (there are {self._names()})"
            )

    def needed(self, name: str | None) -> StoreCore:
        """Returns the store with this name. None: DEFAULT, created now if missing."""
        name = DEFAULT_STORE if name is None else name
        self.check_there(name, f"member {self._state.name!r}")
        if name not in self._open:
            if self._folder.is_temporary:
                raise ConfigurationError(
                    f"member {self._state.name!r}: persistence needs a folder that stays: give"
                    " dir, or create a disk store with directories"
                )
            self._make(DiskStoreAttributes(name))
        return self._open[name]

    def warn_of_log(self, what: str, owner: str) -> None:
        """Warns about an owner without persistence whose old log is still in a disk store. The member keeps the log and
        does not use it."""
        folders = [folder for store in self._open.values() for folder in store.directories]
        if DEFAULT_STORE not in self._open:
            folders.append(self._folder.path / f"disk-store-{DEFAULT_STORE}")
        for folder in folders:
            if holds_log(folder / owner):
                log.warning(
                    "%s is not persistent now, but its old log is still in %s. The log is kept and not used. It will"
                    " be used again, however old it is, when the owner is persistent again; move the folder away if"
                    " that is not wanted",
                    what,
                    folder / owner,
                )

    def close(self) -> None:
        """Closes all stores. DiskError names the stores whose logs did not end in time. Those stores stay open, for
        another try."""
        failures = []
        for name, store in list(self._open.items()):
            try:
                store.close()
                self._forget(name)
            except DiskError as error:
                log.error("%s", error)
                failures.append(str(error))
        if failures:
            raise DiskError(f"cache {self._state.name!r}: {'; '.join(failures)}")

    def _make(self, attributes: DiskStoreAttributes) -> None:
        core = StoreCore(attributes, self._folder.path)
        self._open[attributes.name], self._faces[attributes.name] = core, DiskStore(core)

    def _forget(self, name: str) -> None:
        del self._open[name], self._faces[name]

    def _names(self) -> str:
        return ", ".join(sorted(self._open)) or "none"
