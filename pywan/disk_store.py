"""Owns the folders of a disk store: who may open it (one process), and where each queue's and region's log lies in it."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Iterator, NamedTuple

from pywan import _core
from pywan.config import DiskStoreAttributes
from pywan.errors import ConfigurationError, DiskError, IllegalStateError

log = logging.getLogger("pywan.disk_store")

LOCK_NAME = "LOCK"
OWNER_NAME = "owner.json"
DESTROYED = ".destroyed-"       # What the folder of a log is called while it is removed.


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """The store in `path`, to be read, for this process alone. IllegalStateError while a member has it open."""
    descriptors = _lock_to_read(path)
    try:
        yield
    finally:
        _close(descriptors)


def _lock_to_read(path: Path) -> list[int]:
    """Also on a disk that is read-only, as one becomes that fails."""
    try:
        return _lock(path, str(path))
    except DiskError:
        descriptors = []
        for file, kind in ((path, os.O_DIRECTORY), (path / LOCK_NAME, 0)):
            with contextlib.suppress(OSError):
                descriptors.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC | kind))
        if not descriptors:
            raise
        return _taken(descriptors, path, str(path))


def _lock(path: Path, what: str) -> list[int]:
    descriptors = []
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptors.append(os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        descriptors.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        _close(descriptors)
        remedy = "take a shorter name" if error.errno == errno.ENAMETOOLONG else "make it writable, or name another"
        raise DiskError(f"{what}: the directory {path} cannot be used: {error.strerror}; {remedy}") from error
    _taken(descriptors, path, what)
    with contextlib.suppress(OSError):      # A full disk: who holds the lock is not told then, and it holds all the same.
        os.ftruncate(descriptors[0], 0)
        os.pwrite(descriptors[0], str(os.getpid()).encode(), 0)
    return descriptors


def _taken(descriptors: list[int], path: Path, what: str) -> list[int]:
    """With the locks on them: on the file, and on the directory, since somebody may take the file for one that was left behind, and remove it."""
    for descriptor in descriptors:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK and descriptor != descriptors[0]:
                continue        # A file system that locks no directories.
            _close(descriptors)
            holder = ""
            with contextlib.suppress(OSError, ValueError):
                holder = (path / LOCK_NAME).read_text().strip()
            raise IllegalStateError(
                f"{what}: {path} is open in {'process ' + holder if holder else 'another process'}; stop that one, or name another directory") from None
    return descriptors


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:      # Gives its lock up.
        os.close(descriptor)


def holds_log(folder: Path) -> bool:
    """Whether a log was written in `folder`, whatever is left of it."""
    return (folder / "MANIFEST").exists() or any(folder.glob("*.seg"))


def read_owner(folder: Path) -> dict[str, Any]:
    """What the log in `folder` was made for. ValueError if that cannot be read."""
    found = json.loads((folder / OWNER_NAME).read_text())
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    return found


class _Directory:
    """One of a store's directories: its path, and what the logs in it may take together (None: what the disk has)."""

    def __init__(self, path: Path, size_mb: int | None) -> None:
        self.path, self.size_mb = path, size_mb
        self.budget: _core.LogBudget | None = None

    def measure(self) -> None:
        if self.size_mb is not None:
            self.budget = _core.LogBudget(self.size_mb << 20, sum(_log_bytes(folder) for folder in self.path.iterdir() if folder.is_dir()))

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        free = status.f_bavail * status.f_frsize
        return free if self.budget is None else min(free, self.budget.limit - self.budget.used)


class LogPlace(NamedTuple):
    """Where a log lies, what it and others may take there (None: no limit), and how many bytes of it that counts already."""
    folder: str
    budget: _core.LogBudget | None
    known: int


def _log_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.seg"))


class DiskStore:
    """One disk store of a member: open from construction to `close`. Its directories are made if they are not there.

    DiskError names a directory that cannot be used; IllegalStateError if another process, or another store of this one, has it open.
    """

    def __init__(self, attributes: DiskStoreAttributes, default_directory: str | os.PathLike) -> None:
        self.attributes = attributes
        given = attributes.directories or ((str(default_directory), None),)
        self._directories = [_Directory(Path(path).absolute() / f"disk-store-{attributes.name}", size) for path, size in given]
        if len({each.path for each in self._directories}) != len(self._directories):
            raise ConfigurationError(f"disk store {self.name!r}: a directory is named twice; name each once")
        self._locks: list[int] = []
        try:
            for each in self._directories:
                self._locks += _lock(each.path, f"disk store {self.name!r}")
                self._check_size(each.path, each.size_mb)
                for gone in each.path.glob(f"{DESTROYED}*"):        # A process ended while it removed them.
                    shutil.rmtree(gone, ignore_errors=True)
                each.measure()
        except BaseException:
            self.close()
            raise

    def _check_size(self, path: Path, size: int | None) -> None:
        status = os.statvfs(path)
        disk = status.f_blocks * status.f_frsize >> 20
        if size is not None and size > disk:
            raise ConfigurationError(f"disk store {self.name!r}: {path} may take {size} MB, and its disk has {disk} MB in all; name a smaller size, or none for no limit")

    @property
    def name(self) -> str:
        return self.attributes.name

    @property
    def directories(self) -> list[Path]:
        return [each.path for each in self._directories]

    def log_place(self, owner: str, identity: dict[str, Any]) -> LogPlace:
        """Where the log of `owner` ("queue-ln", "region-data") lies, made if it is new. `identity` is what it was made for:
        ConfigurationError if the folder holds the log of something else. Not while that log is open."""
        folder = self._directories[0].path / owner
        try:
            found = [each for each in self._directories if (each.path / owner).is_dir()]
            if len(found) > 1:
                raise ConfigurationError(f"disk store {self.name!r}: a log lies in {found[0].path / owner} and another one in {found[1].path / owner}; "
                                         "move away the one that is out of date")
            place = found[0] if found else max(self._directories, key=_Directory.free_bytes)
            folder = place.path / owner
            folder.mkdir(mode=0o700, exist_ok=True)
            self._check_owner(folder, identity)
            return LogPlace(str(folder), place.budget, _log_bytes(folder))
        except DiskError:
            raise
        except OSError as error:
            remedy = "take a shorter name" if error.errno == errno.ENAMETOOLONG else "free space or repair its rights"
            raise DiskError(f"disk store {self.name!r}: {folder} cannot be used: {error.strerror}; {remedy}") from error

    def _check_owner(self, folder: Path, identity: dict[str, Any]) -> None:
        file = folder / OWNER_NAME
        should_say = f"it should say {json.dumps(identity, sort_keys=True)}: write that into it if this is whose log it is, or move the folder away"
        if not file.exists():
            if holds_log(folder):
                raise ConfigurationError(f"disk store {self.name!r}: {file} is gone, so it cannot be told whose log {folder} is; {should_say}")
            fresh = folder / (OWNER_NAME + ".new")
            fresh.write_text(json.dumps(identity, sort_keys=True))
            with open(fresh) as written:
                os.fsync(written.fileno())
            os.replace(fresh, file)
            return
        try:
            found = read_owner(folder)
            if not identity.keys() <= found.keys():
                raise ValueError("it lacks something")
        except ValueError:
            raise DiskError(f"disk store {self.name!r}: {file} is damaged; {should_say}") from None
        different = [key for key in identity if found.get(key) != identity[key]]
        if different:
            key = different[0]
            raise ConfigurationError(
                f"disk store {self.name!r}: {folder} was written with {key} {found.get(key)!r}, and is opened with {identity[key]!r}; "
                "configure it as it was, or take another directory (its events stay in the old one)")

    def forget(self, owner: str) -> None:
        """Removes the log of an owner that was destroyed: by its name at once, so that no half of it is left by a process that ends meanwhile."""
        for each in self._directories:
            folder = each.path / owner
            if not folder.is_dir():
                continue
            gone = each.path / f"{DESTROYED}{secrets.token_hex(8)}"
            try:
                freed = _log_bytes(folder)
                folder.rename(gone)
                shutil.rmtree(gone)
            except OSError as error:
                raise DiskError(f"disk store {self.name!r}: {owner} is destroyed, and its files cannot be removed: {error}; remove them by hand") from error
            if each.budget is not None:
                each.budget.give(freed)

    def close(self) -> None:
        _close(self._locks)
        self._locks = []
