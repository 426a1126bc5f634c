"""The coordinator's metadata log on the disk: a SQLite database with a row for each entry of the tables, and a row for
each run of buckets with the same record.

A commit is durable before `append` returns (`synchronous=FULL`). A crash in the middle of a commit leaves the state
before the commit.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack

from pywan.base.files import make_private
from pywan.base.names import quoted
from pywan.coordination import encoding, plain
from pywan.coordination.actions import Store
from pywan.coordination.tables import Bucket, BucketKey
from pywan.errors import DiskAccessError, ProtocolError

_REMEDY = (
    "put a copy of it back, or move it away and use `start locator --recover-from-members`: the members then report"
    " what they know"
)
FORMAT = 4  # The version of the database, as SQLite's user_version.
_SCHEMA = """
CREATE TABLE site (
    id INTEGER PRIMARY KEY CHECK (id = 0), identity TEXT NOT NULL, newest BLOB NOT NULL, generation INTEGER NOT NULL,
    standby BLOB, term INTEGER NOT NULL
);
CREATE TABLE runs (run INTEGER PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE members (key BLOB PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE regions (key BLOB PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE buckets (
    region TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (region, first)
) WITHOUT ROWID;
"""


class Journal:
    """Opened by one process. Not thread-safe: the owner calls the methods under one lock, from any thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the database, or makes an empty one if the file does not exist. DiskAccessError names the unusable
        file, and the reason."""
        self.path = Path(path)
        with self._reasons("opened"):
            if not os.path.lexists(self.path):
                self._make()
            elif self.path.is_file() and self.path.stat().st_size == 0:
                # SQLite would take the file for a new database, and remove the files beside the database.
                raise DiskAccessError(f"{self.path} is empty, and had records; {_REMEDY}")
            make_private(self.path)  # SQLite gives its files beside the database the same mode.
            self._database = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                raise DiskAccessError(f"{self.path} is no database with a coordinator's records; {_REMEDY}")
            if version != FORMAT:
                raise DiskAccessError(f"{self.path} has format {version}, and this version of pywan reads {FORMAT}")

    def _make(self) -> None:
        """Makes an empty database. The file gets its name when the content is whole, so that no crash leaves a file
        without tables."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        beside = [Path(f"{name}{end}") for name in (self.path, fresh) for end in ("-wal", "-shm", "-journal")]
        for left in (fresh, *beside):  # Left by a crash, or the database file alone was removed.
            left.unlink(missing_ok=True)
        make_private(fresh)
        database = sqlite3.connect(fresh, isolation_level=None)
        try:
            database.executescript(f"PRAGMA synchronous=FULL; BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")
        finally:
            database.close()
        os.replace(fresh, self.path)  # SQLite syncs the folder before its first commit in the new database returns.

    def append(self, store: Store, *, is_whole: bool = False) -> None:
        """Writes metadata records. They are on the disk when `append` returns. `is_whole`: the records replace the
        whole content."""
        with self._reasons("written"):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                if is_whole:
                    for table in ("runs", "members", "regions", "buckets"):
                        self._database.execute(f"DELETE FROM {table}")
                self._write(store)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def read(self) -> list[Store]:
        """All stored records, as one `Store`; [] if nothing was stored."""
        with self._reasons("read"):
            site = self._database.execute("SELECT identity, newest, generation, standby, term FROM site").fetchone()
            if site is None:
                return []
            controller_epochs = self._database.execute("SELECT run, last FROM runs ORDER BY run")
            store = Store(
                encoding.decision_id_of(_unpack(site[1])),
                encoding.controller_epoch_of(site[2]),
                tuple(
                    (encoding.controller_epoch_of(epoch), encoding.decision_of(last))
                    for epoch, last in controller_epochs
                ),
                encoding.identity_of(site[0]),
                tuple(
                    (encoding.incarnation_of(_unpack(key)), encoding.profile_of(value))
                    for key, value in self._raw("members")
                ),
                tuple(
                    (encoding.region_of(_unpack(key)), encoding.attributes_of(value))
                    for key, value in self._raw("regions")
                ),
                tuple(self._buckets()),
                None if site[3] is None else encoding.standby_of(_unpack(site[3])),
                encoding.term_of(site[4]),
            )
            _check(store)
            return [store]

    def close(self) -> None:
        self._database.close()

    def _write(self, store: Store) -> None:
        execute = self._database.execute
        standby = None if store.standby is None else _pack(encoding.plain_standby(store.standby))
        execute(
            "INSERT OR REPLACE INTO site VALUES (0, ?, ?, ?, ?, ?)",
            (
                store.site_identity,
                _pack(encoding.plain_decision_id(store.newest)),
                store.recovery_epoch,
                standby,
                store.term,
            ),
        )
        self._database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?)", store.controller_epochs)
        self._put(
            "members", ((encoding.plain_incarnation(k), v and encoding.plain_profile(v)) for k, v in store.members)
        )
        self._put("regions", ((k, v and encoding.plain_attributes(v)) for k, v in store.regions))
        for first, count, bucket in encoding.runs(store.buckets):
            self._put_run(first, count, bucket)

    def _put(self, table: str, rows: Iterable[tuple[Any, Any]]) -> None:
        for key, value in rows:
            if value is None:
                self._database.execute(f"DELETE FROM {table} WHERE key = ?", (_pack(key),))
            else:
                self._database.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (_pack(key), _pack(value)))

    def _put_run(self, first: BucketKey, count: int, bucket: Bucket | None) -> None:
        """Writes a run in place of the stored rows for the run's buckets. A stored run that is cut keeps its remaining
        buckets."""
        execute, region, begin, end = self._database.execute, first.region, first.number, first.number + count
        # No two runs of the file overlap. Among the earlier runs, only the last can reach into the new run.
        (at,) = execute("SELECT max(first) FROM buckets WHERE region = ? AND first <= ?", (region, begin)).fetchone()
        overlapping = execute(
            "SELECT first, count, value FROM buckets"
            " WHERE region = ? AND first >= ? AND first < ? AND first + count > ?",
            (region, begin if at is None else at, end, begin),
        ).fetchall()
        rows = []
        for at, length, value in overlapping:
            execute("DELETE FROM buckets WHERE region = ? AND first = ?", (region, at))
            rows += [(at, begin - at, value)] if at < begin else []
            rows += [(end, at + length - end, value)] if at + length > end else []
        if bucket is not None:
            rows.append((begin, count, _pack(encoding.plain_bucket(bucket))))
        self._database.executemany(
            "INSERT INTO buckets VALUES (?, ?, ?, ?)", [(region, at, length, value) for at, length, value in rows]
        )

    def _raw(self, table: str) -> Iterable[tuple[bytes, Any]]:
        for key, value in self._database.execute(f"SELECT key, value FROM {table} ORDER BY key"):
            yield key, _unpack(value)

    def _buckets(self) -> Iterable[tuple[BucketKey, Bucket]]:
        rows = self._database.execute("SELECT region, first, count, value FROM buckets ORDER BY region, first")
        for region, number, count, value in rows:
            first, length = encoding.run_of_buckets([region, number, count])
            bucket = encoding.bucket_of(_unpack(value), first)
            yield from ((key, bucket) for key in encoding.keys_of(first, length))

    def _reasons(self, what: str) -> _Reasons:
        return _Reasons(self.path, what)


class _Reasons:
    """Turns an error of SQLite or of a damaged row into an error that names the file."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | ProtocolError | ValueError | OSError):
            raise DiskAccessError(
                f"the coordinator's file {self._path} cannot be {self._what}: {error}; {_REMEDY}"
            ) from error


def _pack(value: Any) -> bytes:
    return msgpack.packb(value)  # type: ignore[no-any-return]


def _unpack(data: object) -> Any:
    if type(data) is not bytes:
        raise ProtocolError(f"a row has no bytes, but {quoted(data)}")
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except Exception as error:  # msgpack raises half a dozen kinds. All mean the same in this place.
        raise ProtocolError(f"a row is damaged: {str(error) or type(error).__name__}") from None


def _check(store: Store) -> None:
    """ProtocolError if valid rows contradict each other: no coordinator has written such rows."""
    if not 1 <= store.recovery_epoch <= max((1, *(epoch for epoch, _ in store.controller_epochs))):
        raise ProtocolError(f"no controller epoch is that of the last metadata recovery, {store.recovery_epoch}")
    if store.newest.number < max((last for _, last in store.controller_epochs), default=0):
        raise ProtocolError(f"metadata record {store.newest} is not the newest")
    regions = dict(store.regions)
    for incarnation, profile in store.members:
        if profile is None or profile.incarnation != incarnation:
            raise ProtocolError(f"the row of member {incarnation} is another one's")
        for region, _ in profile.hosting:
            if region not in regions:
                raise ProtocolError(f"member {incarnation} has region {region}, which is not there")
    plain.check_each_once((key for key, _ in store.buckets), "the buckets")
    for key, _ in store.buckets:
        attributes = regions.get(key.region)
        if attributes is None or key.number >= attributes.total_num_buckets:
            raise ProtocolError(f"bucket {key} is of no region")
