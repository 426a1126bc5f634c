"""Owns the salvage of a damaged disk store: it reads each log past its damage, and writes what is whole to another
folder.

The damaged store is only read.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pywan import _core
from pywan.base.files import make_folder, write_whole
from pywan.base.threads import start_thread
from pywan.disk.store import DESTROYED, OWNER_NAME, holds_log, locked, read_owner
from pywan.errors import ConfigurationError, DiskError, PywanError, QueueFullError


def salvage_store(store: str | Path, to: str | Path) -> list[dict[str, Any]]:
    """Reads every log below `store`, and writes what is whole below `to`.

    A saved queue is a new one (another numbering). The remote site may get events again that it has applied, and
    knows them by their version. If a log cannot be read at all, its entry says so, and the other logs are saved.

    Args:
        store: The folder of a disk store (`disk-store-NAME`) that no member has open.
        to: An empty folder, or one that does not exist.

    Returns:
        One entry for each log: "log" (its name), "kind" ("queue", "parked" or "region"), "saved" (the number of events
            or entries) and "damage" ("" if there is none).

    Raises:
        ConfigurationError: `store` holds no log, or `to` cannot be used.
        IllegalStateError: A member has the store open.
        DiskError: `to` cannot be written.
    """
    store, to = Path(store), Path(to)
    folders = sorted(
        path
        for path in store.glob("*/")
        if not path.name.startswith(DESTROYED) and ((path / OWNER_NAME).exists() or holds_log(path))
    )
    if not folders:
        raise ConfigurationError(
            f"{store} holds no log of a queue or region; name the folder of a disk store (disk-store-NAME below a"
            " member's folder)"
        )
    if store.resolve() in to.resolve().parents:
        raise ConfigurationError(f"{to} is inside of {store}; name a folder elsewhere")
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise ConfigurationError(f"{to} is not empty, or no folder; name a folder that is new")
    with locked(store):
        try:
            make_folder(to, 0o700)
            return [_salvage(folder, to / folder.name) for folder in folders]
        except DiskError:
            raise
        except OSError as error:
            raise DiskError(
                f"{to} cannot be written: {error}; free space, or name another folder, and begin again"
            ) from error


def _salvage(folder: Path, to: Path) -> dict[str, Any]:
    """Salvages one log. Returns its entry."""
    entry = {"log": folder.name, "kind": "unknown", "saved": 0, "damage": ""}
    try:
        owner = read_owner(folder)
        entry["kind"] = owner["kind"]
        old, damages = _open(folder, owner, salvage=True)
    except (ValueError, KeyError, TypeError, OSError):
        return {
            **entry,
            "damage": f"{folder / OWNER_NAME} is gone or damaged, so nothing of {folder} was saved; start the member:"
            " its error says what to write into it; then begin again",
        }
    except (PywanError, MemoryError) as error:
        return {**entry, "damage": f"nothing was saved: {error}"}
    make_folder(to, 0o700)
    new, _ = _open(to, owner, salvage=False)
    with _RunningCommitter(new) as write:
        if entry["kind"] == "region":
            scan_position = old.copy_into(new)
            while scan_position is not None:  # This loop is faster than the disk.
                new.wait_durable()
                scan_position = old.copy_into(new, scan_position)
        else:
            for partition, _, record in old.records(1 << 62):
                write(new.append_record, record, partition)
    write_whole(to / OWNER_NAME, (folder / OWNER_NAME).read_bytes())
    return {**entry, "saved": len(new), "damage": _describe(damages)}


def _describe(damages: list[dict[str, Any]]) -> str:
    """Returns the damages in words."""
    if not damages:
        return ""
    first = damages[0]
    more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
    return f"{first['file']}, offset {first['offset']}: {first['reason']}{more}"


def _open(folder: Path, owner: dict[str, Any], *, salvage: bool) -> tuple[Any, list[dict[str, Any]]]:
    """Opens the queue or region in `folder`. Returns it with its damages.

    With `salvage` the log is only read. Otherwise it is a new log, with a numbering that no receiver knows.
    """
    log_id = secrets.randbits(63) | 1
    if owner["kind"] == "region":
        region = _core.RegionCore(owner["region"], _core.Clock(), site=owner["site"], member=0)
        return region, region.open_log(str(folder), log_id=log_id, salvage=salvage)["damages"]
    queue = _core.EventQueue(
        owner["sender"],
        partitions=owner["partitions"],
        directory=str(folder.parent),
        log_directory=str(folder),
        log_id=log_id,
        salvage=salvage,
    )
    return queue, queue.recovery()["damages"]


class _RunningCommitter:
    """Runs the committer of a queue or region in a thread. It ends when all is on the disk.

    The context gives a function `write(call, ...)`, which calls `call` and waits for the disk if the log has no room.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __enter__(self) -> Callable[..., None]:
        self._committer = start_thread("nobody writes what was saved", "salvage-log", self._owner.commit_loop)
        return self._write

    def _write(self, call: Callable[..., object], *args: Any, **more: Any) -> None:
        try:
            call(*args, **more)
        except QueueFullError:  # The caller is faster than the disk.
            self._owner.wait_durable()
            call(*args, **more)

    def __exit__(self, *exc: object) -> None:
        self._owner.stop_log()
        self._committer.join()
        failing = self._owner.log_state()["failing"]
        if failing:
            raise DiskError(
                f"what was saved could not be written: {failing}; put that right (on a full disk free space) and"
                " begin again with an empty folder"
            )
