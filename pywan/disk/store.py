"""Owns the folders of a disk store: one process may open it, and each log of a queue or region has its folder in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pywan import _core
from pywan.base.amounts import size_text
from pywan.base.faces import counted
from pywan.base.files import FileError, make_folder, open_own, parse_json, read_regular, sync_folder, write_whole
from pywan.base.threads import start_thread
from pywan.config.attributes import DiskStoreAttributes
from pywan.errors import ConfigurationError, DiskError, IllegalStateError
from pywan.forks import in_child, of_one_process

log = logging.getLogger("pywan.disk_store")

LOCK_NAME = "LOCK"
OWNER_NAME = "owner.json"
OWNER_BYTES_MAX = 65536
DESTROYED = ".destroyed-"  # A log's folder is renamed to this, with a number, before it is removed.
CLOSE_LIMIT_S = 60.0  # A store that is closed waits so long for its logs to be written to their ends.
CLOSE_SAYS_S = 5.0  # After so long it logs the names of the logs that it waits for.


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the store in `path` for this process alone, to be read. IllegalStateError if a member has it open."""
    descriptors = _lock_to_read(path)
    try:
        yield
    finally:
        _close(descriptors)


def _lock_to_read(path: Path) -> list[int]:
    """Locks the store also on a read-only disk: a disk that fails can become read-only."""
    try:
        return _lock(path, str(path))
    except DiskError:
        descriptors = []
        for file, kind in ((path, os.O_DIRECTORY), (path / LOCK_NAME, os.O_NOFOLLOW | os.O_NONBLOCK)):
            with contextlib.suppress(OSError):
                descriptors.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC | kind))
        if not descriptors:
            raise
        return _taken(descriptors, path, str(path))


def _lock(path: Path, what: str) -> list[int]:
    """Creates the store's folder if need be, and takes its locks. Returns the descriptors that hold them."""
    descriptors = []
    try:
        make_folder(path, 0o700)
        descriptors.append(open_own(path / LOCK_NAME, os.O_RDWR | os.O_CREAT))
        descriptors.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        _close(descriptors)
        raise DiskError(
            f"{what}: the directory {path} cannot be used: {error.strerror};"
            f" {_remedy(error, 'make it writable, or name another')}"
        ) from error
    _taken(descriptors, path, what)
    with contextlib.suppress(OSError):  # On a full disk the number is not written. The lock holds all the same.
        os.ftruncate(descriptors[0], 0)
        os.pwrite(descriptors[0], str(os.getpid()).encode(), 0)
    return descriptors


def _remedy(error: OSError, otherwise: str) -> str:
    return {
        errno.ENAMETOOLONG: "take a shorter name",
        errno.ENOSPC: "free disk space",
        errno.EDQUOT: "free disk space, or raise the quota",
        errno.ELOOP: "put what it leads to in its place",
        errno.EROFS: "mount it writable, or name another",
        errno.EIO: "the disk fails: look at it and its mount",
    }.get(error.errno or 0, otherwise)


def _taken(descriptors: list[int], path: Path, what: str) -> list[int]:
    """Takes the locks: on the lock file, and on the directory. Returns the descriptors.

    The directory is locked too, because somebody may think that the lock file was left behind, and remove it.
    """
    for descriptor in descriptors:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK and descriptor != descriptors[0]:
                continue  # This file system does not lock directories.
            holder = _holder(path)
            _close(descriptors)
            raise IllegalStateError(
                f"{what}: {path} is open in {'process ' + holder if holder else 'another process'}; stop that one,"
                " or name another directory"
            ) from None
    return descriptors


def _holder(path: Path) -> str:
    """Returns the number of the process that has the store open, as the lock file tells. "": it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = open_own(path / LOCK_NAME, os.O_RDONLY)
        try:
            return str(int(os.read(descriptor, 20)))
        finally:
            os.close(descriptor)
    return ""


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:  # Closing a descriptor gives up its lock.
        os.close(descriptor)


def holds_log(folder: Path) -> bool:
    """Returns whether a log was written in `folder`, even if only a part of it is left."""
    return (folder / "MANIFEST").exists() or any(folder.glob("*.seg"))


def read_owner(folder: Path) -> dict[str, Any]:
    """Returns the identity of the log in `folder`: what it was made for.

    ValueError if it cannot be read. The error's text continues a sentence that begins with the file's name.
    """
    if (folder / OWNER_NAME).is_symlink():
        raise ValueError("is a symbolic link, which is not followed")
    try:
        owner = parse_json(read_regular(folder / OWNER_NAME, OWNER_BYTES_MAX, follow=False).data)
    except FileError as error:
        raise ValueError(str(error)) from None
    except ValueError:
        raise ValueError("is damaged") from None
    if not isinstance(owner, dict):
        raise ValueError("is damaged")
    return owner


def is_own_folder(path: Path) -> bool:
    """Returns whether there is a folder, and not a link to one: a log is in its store, and nowhere else."""
    return path.is_dir() and not path.is_symlink()


class _Directory:
    """One directory of a store. `size_mb` is the limit for all logs in it together. None: the disk is the
    only limit."""

    def __init__(self, path: Path, size_mb: int | None) -> None:
        self.path, self.size_mb = path, size_mb
        self.budget: _core.LogBudget | None = None

    def measure(self) -> None:
        """Makes the budget of the directory from its limit and from what its logs take now."""
        if self.size_mb is not None:
            self.budget = _core.LogBudget(
                self.size_mb << 20, sum(_log_bytes(folder) for folder in self.path.iterdir() if is_own_folder(folder))
            )

    def free_bytes(self) -> int:
        """Returns how many more bytes logs may take here."""
        status = os.statvfs(self.path)
        free = status.f_bavail * status.f_frsize
        return free if self.budget is None else min(free, self.budget.limit - self.budget.used)


class LogPlace(NamedTuple):
    """Where a log is.

    Attributes:
        folder: Its folder.
        budget: The bytes that it and other logs may take there. None: no limit.
        known: The bytes of this log that the budget counts already.
    """

    folder: str
    budget: _core.LogBudget | None
    known: int


def _log_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.seg"))


@of_one_process(lambda store: f"disk store {store.attributes.name!r}", nothing_in_child=("close",))
class StoreCore:
    """One disk store of a member. It is open from its construction to `close`, and makes the directories that do not
    exist.

    DiskError names a directory that cannot be used. IllegalStateError: another process, or another store of this
    process, has it open.
    """

    def __init__(self, attributes: DiskStoreAttributes, default_directory: str | os.PathLike[str]) -> None:
        self.attributes = attributes
        given = attributes.places() or [(Path(default_directory), None)]
        self._directories = [
            _Directory(path.absolute() / f"disk-store-{attributes.name}", size) for path, size in given
        ]
        if len({each.path for each in self._directories}) != len(self._directories):
            raise ConfigurationError(f"disk store {self.name!r}: a directory is named twice; name each once")
        self._locks: list[int] = []
        self._guard = threading.Condition()  # Guards the fields below.
        # For each owner of a log: the thread that writes it. The locks are held while there is such a thread.
        self._writers: dict[str, threading.Thread] = {}
        self._is_closing = False  # If set, the last thread that ends gives up the locks.
        # A lock lasts until every copy of its descriptor is closed, also in a child.
        in_child(self, StoreCore._give_up)
        try:
            for each in self._directories:
                self._locks += _lock(each.path, f"disk store {self.name!r}")
                self._check_size(each.path, each.size_mb)
                for gone in each.path.glob(f"{DESTROYED}*"):  # A process ended while it was removing them.
                    shutil.rmtree(gone, ignore_errors=True)
                each.measure()
        except BaseException:
            self.close()
            raise

    def _check_size(self, path: Path, size: int | None) -> None:
        status = os.statvfs(path)
        disk = status.f_blocks * status.f_frsize >> 20
        if size is not None and size > disk:
            raise ConfigurationError(
                f"disk store {self.name!r}: {path} may take {size} MB, and its disk has {disk} MB in all; name a"
                " smaller size, or none for no limit"
            )

    @property
    def name(self) -> str:
        return self.attributes.name

    @property
    def directories(self) -> list[Path]:
        return [each.path for each in self._directories]

    def log_place(self, owner: str, identity: dict[str, Any]) -> LogPlace:
        """Returns where the log of `owner` ("queue-ln", "region-data") is. Its folder is made if it is new.

        `identity` is what the log was made for. ConfigurationError if the folder holds the log of something else.
        IllegalStateError while that log is still being written.
        """
        folder = self._directories[0].path / owner
        with self._guard:
            if owner in self._writers:
                raise IllegalStateError(
                    f"disk store {self.name!r}: the log {owner} is still being written by this process; wait until"
                    " the disk has taken what it has"
                )
        try:
            for each in self._directories:
                if (each.path / owner).is_symlink():
                    raise DiskError(
                        f"disk store {self.name!r}: {each.path / owner} is a symbolic link, and a log lies in its"
                        " store alone; put the folder itself there, or give the disk store another directory"
                    )
            with_log = [each for each in self._directories if is_own_folder(each.path / owner)]
            if len(with_log) > 1:
                raise ConfigurationError(
                    f"disk store {self.name!r}: a log lies in {with_log[0].path / owner} and another one in"
                    f" {with_log[1].path / owner}; move away the one that is out of date"
                )
            place = with_log[0] if with_log else max(self._directories, key=_Directory.free_bytes)
            folder = place.path / owner
            make_folder(folder, 0o700)
            self._check_owner(folder, identity)
            return LogPlace(str(folder), place.budget, _log_bytes(folder))
        except DiskError:
            raise
        except OSError as error:
            raise DiskError(
                f"disk store {self.name!r}: {folder} cannot be used: {error.strerror};"
                f" {_remedy(error, 'repair its rights')}"
            ) from error

    def made_for(self, owner: str) -> dict[str, Any]:
        """Returns the identity of the log of `owner`. It is empty if there is no log, or if it cannot be read;
        `log_place` raises the reason."""
        for each in self._directories:
            if is_own_folder(each.path / owner):
                with contextlib.suppress(ValueError, OSError):
                    return read_owner(each.path / owner)
        return {}

    def _check_owner(self, folder: Path, identity: dict[str, Any]) -> None:
        """Checks that the log in `folder` has this identity. A new log gets it."""
        file = folder / OWNER_NAME
        should_say = (
            f"it should say {json.dumps(identity, sort_keys=True)}: write that into it if this is whose log"
            " it is, or move the folder away"
        )
        if not os.path.lexists(file):
            if holds_log(folder):
                raise ConfigurationError(
                    f"disk store {self.name!r}: {file} is gone, so it cannot be told whose log {folder} is;"
                    f" {should_say}"
                )
            write_whole(file, json.dumps(identity, sort_keys=True).encode())
            return
        try:
            recorded = read_owner(folder)
            if not identity.keys() <= recorded.keys():
                raise ValueError("is damaged")
        except ValueError as error:
            raise DiskError(f"disk store {self.name!r}: {file} {error}; {should_say}") from None
        different = [key for key in identity if recorded.get(key) != identity[key]]
        if different:
            key = different[0]
            raise ConfigurationError(
                f"disk store {self.name!r}: {folder} was written with {key} {recorded.get(key)!r}, and is opened"
                f" with {identity[key]!r}; configure it as it was, or take another directory (its events stay in"
                " the old one)"
            )

    def forget(self, owner: str) -> None:
        """Removes the log of an owner that was destroyed. Its writer was told to end before.

        The folder is renamed first. So a process that ends meanwhile leaves no half of a log behind.
        """
        if self._wait_for_writers({owner}):
            raise DiskError(
                f"disk store {self.name!r}: {owner} is destroyed, and its log is still being written after"
                f" {CLOSE_LIMIT_S:.0f} s, since the disk does not answer; its"
                " files stay, remove them by hand when this member has ended"
            )
        for each in self._directories:
            folder = each.path / owner
            if not is_own_folder(folder):
                continue
            gone = each.path / f"{DESTROYED}{os.urandom(8).hex()}"
            try:
                freed = _log_bytes(folder)
                folder.rename(gone)
                sync_folder(each.path)  # From here on the log does not come back.
                shutil.rmtree(gone)
            except OSError as error:
                raise DiskError(
                    f"disk store {self.name!r}: {owner} is destroyed, and its files cannot be removed: {error};"
                    " remove them by hand"
                ) from error
            if each.budget is not None:
                each.budget.give(freed)

    def contents(self) -> list[dict[str, Any]]:
        """Returns for each directory its path, its limit in MB (None: no limit), the logs in it, and their bytes."""
        listed = []
        for each in self._directories:
            logs = sorted(
                folder
                for folder in each.path.iterdir()
                if is_own_folder(folder) and not folder.name.startswith(DESTROYED)
            )
            listed.append(
                {
                    "directory": str(each.path),
                    "max_size": each.size_mb,
                    "bytes": sum(map(_log_bytes, logs)),
                    "logs": [folder.name for folder in logs],
                }
            )
        return listed

    # These two say how the store is shown. They neither wait for a lock nor read a disk.

    def state_text(self) -> str:
        """Returns the state of the store in words: whether it is open, and how many logs are being written in it."""
        return f"open, {counted(len(self._writers), 'log')} being written" if self._locks else "closed"

    def usage(self) -> dict[str, object]:
        """Returns for each directory the bytes of its logs and their limit. Without a limit they are not counted."""
        return {
            str(each.path): "no limit"
            if each.budget is None
            else f"{size_text(each.budget.used)} of {size_text(each.budget.limit)}"
            for each in self._directories
        }

    def destroy(self) -> None:
        """Gives the store up and removes its folders. IllegalStateError while a log is in it."""
        logs = [log for each in self.contents() for log in each["logs"]]
        if logs:
            raise IllegalStateError(
                f"disk store {self.name!r} holds {', '.join(logs)}; destroy first what they belong to, and move the"
                " folder of a log away whose owner is gone"
            )
        for each in self._directories:
            (each.path / LOCK_NAME).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # Files that are not the store's stay.
                each.path.rmdir()
        self.close()

    def start_writer(self, owner: str, thread_name: str, write: Callable[[], None]) -> None:
        """Runs `write` in a thread. It writes the log of `owner` until the log is told to end.

        Until then no other process can open the store.
        """
        with self._guard:  # The thread removes itself under the same lock.
            self._writers[owner] = start_thread(
                f"disk store {self.name!r}: nobody writes {owner}", thread_name, self._write, owner, write
            )

    def _write(self, owner: str, write: Callable[[], None]) -> None:
        try:
            write()
        finally:
            with self._guard:
                del self._writers[owner]
                self._guard.notify_all()
                if self._is_closing and not self._writers:
                    self._give_up()

    def _wait_for_writers(self, owners: set[str] | None = None) -> list[str]:
        """Waits until the writers of these logs (None: of all) have ended, CLOSE_LIMIT_S at most. Returns those that
        have not."""
        began, said = time.monotonic(), False

        def left() -> list[str]:
            return sorted(self._writers if owners is None else owners & self._writers.keys())

        with self._guard:
            while left() and (waited := time.monotonic() - began) < CLOSE_LIMIT_S:
                if waited >= CLOSE_SAYS_S and not said:
                    said = True
                    log.warning(
                        "disk store %s: waiting for the disk to take what %s still has, for %.0f s at most",
                        self.name,
                        ", ".join(left()),
                        CLOSE_LIMIT_S,
                    )
                self._guard.wait(CLOSE_LIMIT_S - waited if said else min(CLOSE_SAYS_S, CLOSE_LIMIT_S) - waited)
            return left()

    def close(self) -> None:
        """Gives the store up when all writers of its logs have ended. The caller has told the logs to end.

        DiskError if one does not end within CLOSE_LIMIT_S. The store stays locked then, until that writer or the
        process ends.
        """
        left = self._wait_for_writers()
        with self._guard:
            self._is_closing = True
            if not self._writers:
                self._give_up()
                return
        raise DiskError(
            f"disk store {self.name!r}: {', '.join(left)} did not end within {CLOSE_LIMIT_S:.0f} s, since the disk"
            " does not answer; the store stays locked until"
            " it has, or this process has ended. What was acknowledged is on the disk"
        )

    def _give_up(self) -> None:
        locks, self._locks = self._locks, []
        _close(locks)
