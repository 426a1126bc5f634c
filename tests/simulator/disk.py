"""Owns a simulated disk: the files of one machine as its logs see them, what a crash leaves of them, and what goes
wrong: calls that fail, syncs that fail and leave nobody knows what, no room, a power cut at any call, reads that fail.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
import weakref
from collections.abc import Callable
from typing import Any

SECTOR = 512
OK, EMPTY, FULL, IO = 0, 1, 2, 5  # wan_status

_status, _env, _path, _u64, _int = ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int
_found = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, ctypes.c_char_p)
_CALLS = {
    "map_overflow": (_status, _env, _path, _u64, ctypes.POINTER(ctypes.c_void_p)),
    "unmap": (None, _env, ctypes.c_void_p, _u64),
    "map_file": (_status, _env, _int, _u64, ctypes.POINTER(ctypes.c_void_p)),
    "create": (_status, _env, _path, _u64, ctypes.POINTER(_int)),
    "open": (_status, _env, _path, _int, ctypes.POINTER(_int), ctypes.POINTER(_u64)),
    "write": (_status, _env, _int, _path, _u64, ctypes.c_void_p, _u64),
    "read": (_status, _env, _int, _path, _u64, ctypes.c_void_p, _u64),
    "sync": (_status, _env, _int, _path),
    "replace": (_status, _env, _path, _path, _path),
    "remove": (_status, _env, _path),
    "close": (None, _env, _int),
    "list": (_status, _env, _path, _found, ctypes.c_void_p),
}


class _Table(ctypes.Structure):
    """`wan_env` of csrc/base/wan_env.h."""

    _fields_ = [(name, ctypes.CFUNCTYPE(*kinds)) for name, kinds in _CALLS.items()] + [
        ("fetch", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
    ]


def _dispatcher(name: str, result: Any) -> Callable[..., int | None]:
    def call(env: int, *arguments: Any) -> int | None:
        disk = _DISKS.get(env)
        if disk is None:  # A queue that outlived its disk lets go of its files.
            return None if result is None else IO
        try:
            return getattr(disk, "_" + name)(*arguments)
        except BaseException as error:  # Nothing can be raised through the core: `raise_error` does it afterwards.
            disk.error = disk.error or error
            return None if result is None else IO

    return call


_CALLBACKS = {name: ctypes.CFUNCTYPE(*kinds)(_dispatcher(name, kinds[0])) for name, kinds in _CALLS.items()}
for _callback in _CALLBACKS.values():
    # A queue that is collected as the interpreter ends closes its files.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
_DISKS: weakref.WeakValueDictionary[int, Disk] = weakref.WeakValueDictionary()
_FREE: list[_Table] = []  # Tables are never given back to the system: a queue may call one to the very end.
_HANDLES = itertools.count(1)
_NAME = b"wan_env"
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _File:
    def __init__(self, size: int):
        self.now = bytearray(size)  # As read.
        self.kept = bytearray()  # As after a power cut, but for `pending`.
        # Writes since the last sync, in order: any of their sectors may be kept.
        self.pending: list[tuple[int, bytes]] = []

    def write(self, at: int, data: bytes) -> None:
        if at + len(data) > len(self.now):
            self.now.extend(bytes(at + len(data) - len(self.now)))
        self.now[at : at + len(data)] = data
        self.pending.append((at, data))

    def keep(self, count_of_sector: Callable[[int], int]) -> None:
        """The pending writes reach the disk, of each sector as many as `count_of_sector` says, in order."""
        self.kept.extend(bytes(len(self.now) - len(self.kept)))
        counts: dict[int, int] = {}
        for number, (at, data) in enumerate(self.pending):
            end = at + len(data)
            for sector in range(at // SECTOR, (end + SECTOR - 1) // SECTOR):
                if sector not in counts:
                    counts[sector] = count_of_sector(sector)
                if number < counts[sector]:
                    first, last = max(at, sector * SECTOR), min(end, (sector + 1) * SECTOR)
                    self.kept[first:last] = data[first - at : last - at]
        self.pending.clear()

    def sync(self) -> None:
        if len(self.kept) < len(self.now):
            self.kept.extend(bytes(len(self.now) - len(self.kept)))
        for at, data in self.pending:
            self.kept[at : at + len(data)] = data
        self.pending.clear()


def _rename(names: dict[str, _File], changes: dict[str, _File | None]) -> None:
    for name, file in changes.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


class Disk:
    """One machine's. `rng` decides everything, so a run repeats by its seed."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._names: dict[str, _File] = {}
        self._kept_names: dict[str, _File] = {}
        # (folder, what its names become; None: gone), in order.
        self._pending_names: list[tuple[str, dict[str, _File | None]]] = []
        self._handles: dict[int, _File] = {}
        self._mapped: dict[int, Any] = {}  # By address.
        self.error_rate = 0.0  # How often a call fails that changes something, or reads.
        self.capacity: int | None = None  # Bytes of all files; None: endless.
        self.off_in: int | None = None  # Calls until the power goes.
        self.is_off = False
        self.meanwhile: Callable[[], None] | None = None  # Called while a sync takes its time.
        self.error: BaseException | None = None
        self.failures = self.calls = 0
        self.has_failed_syncs = (
            False  # Since it was started: the system may have lost what was written, and not only with its power.
        )
        table = _FREE.pop() if _FREE else _Table(**_CALLBACKS)
        address = ctypes.addressof(table)
        _DISKS[address] = self
        weakref.finalize(self, _FREE.append, table)
        self.environment = _new_capsule(address, _NAME, None)

    def raise_error(self) -> None:
        """Raises an error that a callback met and could not raise."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    @property
    def files(self) -> set[str]:
        return set(self._names)

    @property
    def used(self) -> int:
        return sum(len(file.now) for file in self._names.values())

    def heal(self) -> None:
        self.error_rate, self.capacity, self.off_in = 0.0, None, None

    def crash(self, power: bool = True) -> str:
        """The process is gone, and with `power` the machine with it: then only what was synced is sure to be there, and
        of the rest nothing, all, a beginning, or any sectors. Says which."""
        how = self._rng.choice(("nothing", "all", "a beginning", "sectors", "sectors")) if power else "all"
        if power:
            count = len(self._pending_names)
            self._settle_names(None, {"nothing": 0, "all": count}.get(how, self._rng.randint(0, count)))
            self._names = dict(self._kept_names)
            for file in self._names.values():
                self._settle_file(file, how)
        self._pending_names.clear()
        self._kept_names = dict(self._names)
        self._handles.clear()
        self.is_off, self.off_in, self.has_failed_syncs = False, None, False
        return f"keeps {how} of what was not synced" if power else "kills the process"

    def copy(self) -> dict[str, bytes]:
        """Its files, as a copy of all of them has them that is taken at once."""
        return {name: bytes(file.now) for name, file in self._names.items()}

    def put_back(self, files: dict[str, bytes]) -> None:
        """While the machine is off, its disk is replaced by one with these files alone."""
        self.crash(power=False)
        self._names = {}
        for name, content in files.items():
            file = self._names[name] = _File(0)
            file.now, file.kept = bytearray(content), bytearray(content)
        self._kept_names = dict(self._names)

    def _settle_file(self, file: _File, how: str) -> None:
        total, rng = len(file.pending), self._rng
        never_synced = not file.kept
        if how == "nothing":
            file.pending.clear()
        elif how == "all":
            file.sync()
        elif how == "a beginning":
            end = rng.randint(0, total)
            file.keep(lambda sector: end)
        else:
            file.keep(lambda sector: rng.randint(0, total))
        if never_synced and how != "all" and rng.random() < 0.5:
            file.kept.clear()  # Not even its size.
        file.now = bytearray(file.kept)

    def _settle_names(self, folder: str | None, count: int) -> None:
        """The first `count` pending changes of names (of one folder, or of all) are on the disk."""
        left = []
        for number, (where, names) in enumerate(self._pending_names):
            if number >= count or (folder is not None and where != folder):
                left.append((where, names))
                continue
            _rename(self._kept_names, names)
        self._pending_names = left

    def _change_names(self, names: dict[str, _File | None]) -> None:
        """As one step."""
        _rename(self._names, names)
        self._pending_names.append((next(iter(names)).rpartition("/")[0], names))

    # Failures

    def _fails(self) -> bool:
        self.calls += 1
        if self.is_off:
            return True
        if self.off_in is not None:
            self.off_in -= 1
            if self.off_in <= 0:
                self.is_off = True
                return True
        if self.error_rate and self._rng.random() < self.error_rate:
            self.failures += 1
            return True
        return False

    def _part(self, data: bytes) -> bytes:
        """The part of the bytes that a failed write did write."""
        return data[: self._rng.choice((0, int(self._rng.random() * len(data)), len(data)))]

    # The calls of wan_env

    def _map_overflow(self, directory: bytes, size: int, base: Any) -> int:
        return FULL  # Queues of the simulation have no overflow.

    def _unmap(self, base: int, size: int) -> None:
        del self._mapped[base]

    def _map_file(self, handle: int, size: int, base: Any) -> int:
        if self._rng.random() < 0.3 or self._fails():
            return IO  # Then it is read.
        copy = mmap.mmap(-1, size)
        copy.write(self._handles[handle].now[:size])
        place = (ctypes.c_char * size).from_buffer(copy)
        base[0] = ctypes.addressof(place)
        self._mapped[base[0]] = place
        return OK

    def _create(self, path: bytes, size: int, handle: Any) -> int:
        name = path.decode()
        if self._fails() or name in self._names:
            return IO
        if self.capacity is not None and self.used + size > self.capacity:
            return FULL
        self._change_names({name: _File(size)})
        handle[0] = self._open_handle(name)
        return OK

    def _open_handle(self, name: str) -> int:
        number = next(_HANDLES)
        self._handles[number] = self._names[name]
        return number

    def _open(self, path: bytes, writable: int, handle: Any, size: Any) -> int:
        if self._fails():
            return IO
        name = path.decode()
        if name not in self._names:
            return EMPTY
        size[0], handle[0] = len(self._names[name].now), self._open_handle(name)
        return OK

    def _write(self, handle: int, path: bytes, at: int, data: int, size: int) -> int:
        was_off = self.is_off
        fails, file, written = self._fails(), self._handles[handle], ctypes.string_at(data, size)
        if fails and was_off:
            return IO
        file.write(at, self._part(written) if fails else written)
        return IO if fails else OK

    def _read(self, handle: int, path: bytes, at: int, to: int, size: int) -> int:
        if self._fails():
            return IO
        there = bytes(self._handles[handle].now[at : at + size])
        ctypes.memmove(to, there, len(there))
        if len(there) < size:
            ctypes.memset(to + len(there), 0, size - len(there))
        return OK

    def _sync(self, handle: int, path: bytes) -> int:
        file = self._handles[handle]
        if self.meanwhile is not None:
            self.meanwhile()
        was_off = self.is_off
        if not self._fails():
            file.sync()
            return OK
        if not self.is_off and not was_off:
            self.has_failed_syncs = True
            # Some of it may be on the disk; the system takes it for written, so no later sync writes it; it may be read
            # back or not.
            total = len(file.pending)
            file.keep(lambda sector: self._rng.randint(0, total))
            if self._rng.random() < 0.3:
                file.now = bytearray(file.kept)
        return IO

    def _replace(self, from_: bytes, to: bytes, directory: bytes) -> int:
        if self._fails():
            return IO
        source, target = from_.decode(), to.decode()
        self._change_names({target: self._names[source], source: None})
        if self._fails():  # The rename is done, and the folder is not synced.
            return IO
        self._settle_names(directory.decode(), len(self._pending_names))
        return OK

    def _remove(self, path: bytes) -> int:
        if self._fails():
            return IO
        if path.decode() in self._names:
            self._change_names({path.decode(): None})
        return OK

    def _close(self, handle: int) -> None:
        self._handles.pop(handle, None)

    def _list(self, directory: bytes, found: Any, owner: int) -> int:
        if self._fails():
            return IO
        prefix = directory.decode() + "/"
        for name in [name for name in self._names if name.startswith(prefix)]:
            status = found(owner, name[len(prefix) :].encode())
            if status != OK:
                return status
        return OK
