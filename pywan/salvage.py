"""Owns the saving of what is whole in a damaged disk store: each log is read past its damage and written anew elsewhere; the
damaged one is only read."""
from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from pywan import _core
from pywan.disk_store import LOCK_NAME, OWNER_NAME, locked
from pywan.errors import ConfigurationError, DiskError

log = logging.getLogger("pywan.salvage")


def salvage_store(store: str | Path, to: str | Path) -> list[dict[str, Any]]:
    """Reads every log below `store` (a `disk-store-NAME` folder, not open in a member) and writes what is whole below `to`, an
    empty folder or none. One entry a log: what it is of, events or entries saved, and the damage that was met ("" for none).

    A saved queue is a new one (another incarnation): the remote site may see events again that it has applied, and knows
    them by their version.
    """
    store, to = Path(store), Path(to)
    folders = sorted(file.parent for file in store.glob(f"*/{OWNER_NAME}"))
    if not folders:
        raise ConfigurationError(f"{store} holds no log of a queue or region; name the folder of a disk store (disk-store-NAME below a member's folder)")
    if to.exists() and any(to.iterdir()):
        raise ConfigurationError(f"{to} is not empty; name a folder that is new")
    with locked(store):
        to.mkdir(parents=True, exist_ok=True, mode=0o700)
        return [_salvage(folder, to / folder.name) for folder in folders]


def _salvage(folder: Path, to: Path) -> dict[str, Any]:
    try:
        owner = json.loads((folder / OWNER_NAME).read_text())
        kind = owner["kind"]
    except (ValueError, KeyError) as error:
        raise DiskError(f"{folder / OWNER_NAME} is damaged: {error!r}; write again what the log is of, as in another store of the member") from None
    damage = _damage(folder, owner)
    with tempfile.TemporaryDirectory(prefix="pywan-salvage-") as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(LOCK_NAME))     # Opening cuts torn tails: not in the original.
        to.mkdir(mode=0o700)
        saved = _rewrite_region(copy, to, owner) if kind == "region" else _rewrite_queue(copy, to, owner)
    shutil.copy(folder / OWNER_NAME, to / OWNER_NAME)
    return {"log": folder.name, "kind": kind, "saved": saved, "damage": damage}


def _damage(folder: Path, owner: dict[str, Any]) -> str:
    """What opening it says against it: file, offset, reason."""
    with tempfile.TemporaryDirectory(prefix="pywan-salvage-") as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy)
        try:
            _open(copy, owner, salvage=False)
        except (DiskError, ConfigurationError) as error:
            return str(error).replace(str(copy), str(folder))
    return ""


def _open(folder: Path, owner: dict[str, Any], *, salvage: bool) -> Any:
    if owner["kind"] == "region":
        region = _core.RegionCore(owner["region"], _core.Clock(), site=owner["site"], member=0)
        region.open_log(str(folder), log_id=1, salvage=salvage)
        return region
    return _core.EventQueue(owner["sender"], partitions=owner["partitions"], directory=str(folder.parent), log_directory=str(folder), log_id=1, salvage=salvage)


def _rewrite_queue(copy: Path, to: Path, owner: dict[str, Any]) -> int:
    old, new = _open(copy, owner, salvage=True), _open(to, owner, salvage=False)
    with _written(new):
        for partition, record in old.records(1 << 62):
            new.append_record(record, partition)
    return len(new)


def _rewrite_region(copy: Path, to: Path, owner: dict[str, Any]) -> int:
    old, new = _open(copy, owner, salvage=True), _open(to, owner, salvage=False)
    with _written(new):
        for key in old.scan_keys():
            value, stamp, site, _ = old.lookup(key)
            new.change(1, key, value, version=(stamp, site))
    return len(new)


class _written:
    """Runs the committer of a queue or region, and ends when all is on the disk."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._committer = threading.Thread(target=owner.commit_loop, name="salvage-log", daemon=True)

    def __enter__(self) -> None:
        self._committer.start()

    def __exit__(self, *exc: object) -> None:
        self._owner.stop_log()
        self._committer.join()
        failing = self._owner.log_state()["failing"]
        if failing:
            raise DiskError(f"what was saved could not be written: {failing}; free space and begin again with an empty folder")
