"""Owns the sink that writes the events of a queue to Parquet files, each event into one file."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from pywan.base.files import given_path, make_folder, sync_folder
from pywan.base.threads import start_thread
from pywan.errors import ConfigurationError, IllegalStateError
from pywan.sinks.marks import Attempts, Mark, Place
from pywan.sinks.parts import Parts, marks_as_json, marks_of_json, write_synced

log = logging.getLogger("pywan.sinks")

PARTS_MAX = 1000  # A file is finished when it has so many parts. Each is one batch.
OPEN_MAX = 8  # So many files are in the making at once: one for each form of the columns, and for each queue.
RETRY_S = 1.0  # The pause before a file that could not be finished is tried again.


class ParquetSink:
    """Writes events to Parquet files in a folder. A file is there whole or not at all, and each event is in one file.

    A batch becomes a part of a file that is not whole yet: a small file in the folder `_parts`, which programs that
    read Parquet leave out. The batch is acknowledged when the disk has that part, so nothing is lost with the process
    or the machine. When the parts have enough rows or bytes, or are old enough, they are written as one file, which
    then gets its name. The names are made of the queue, its life, and the place of the first event: the same events get
    the same name.

    A part also has the marks: how far each partition of the queue is written. Thus events that come again are
    recognized, in a later process as well, as long as `_parts` is kept.

    A part costs two syncs of the disk. So give the queue large batches: `batch_size=10_000, batch_time_interval=1000`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_rows: int = 1_000_000,
        max_bytes: int = 128 << 20,
        max_seconds: float = 60.0,
        columns: Sequence[str] | Callable[[Any], Any] | None = None,
        compression: str = "zstd",
    ) -> None:
        """Makes the folder if it is missing, and finishes the files that an earlier process left in parts.

        Args:
            directory: The folder.
            max_rows: A file with so many rows is finished.
            max_bytes: A file whose rows take so many bytes as Arrow is finished. On the disk it is smaller.
            max_seconds: A file whose first event came so many seconds ago is finished.
            columns: The names of the columns to write, or a function that gets a `pyarrow.RecordBatch` and returns the
                one to write, or a table. None: all columns. If keys or values of several kinds are in one batch, their
                column has a struct with a field for each kind.
            compression: The compression of the files.

        Raises:
            ConfigurationError: An argument cannot be used, or pyarrow is not installed.
            IllegalStateError: Another sink writes to the folder.
            OSError: The folder cannot be used.
        """
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ConfigurationError(
                "a ParquetSink needs pyarrow, which is not installed: pip install pywan[arrow]"
            ) from None
        for name, limit in (("max_rows", max_rows), ("max_bytes", max_bytes), ("max_seconds", max_seconds)):
            if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
                raise ConfigurationError(f"{name} has to be a number over 0, and is {limit!r}")
        try:
            is_known = pyarrow.Codec.is_available(compression)
        except (ValueError, TypeError):
            is_known = False
        if not is_known:
            raise ConfigurationError(f"compression {compression!r} is not known to this pyarrow")
        self._arrow, self._columns, self._compression = pyarrow, columns, compression
        self._max_rows, self._max_bytes, self._max_seconds = max_rows, max_bytes, float(max_seconds)
        self.directory = given_path(directory)
        self._parts = self.directory / "_parts"
        make_folder(self._parts)
        self._lock_file = self._take_folder()
        self._changed = threading.Condition()  # Guards all below.
        self._open: dict[tuple[str, int], list[Parts]] = {}  # By queue and life, the oldest first.
        self._marks: dict[Place, Mark] = {}
        self._attempts = Attempts()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        try:
            self._recover()
        except BaseException:
            os.close(self._lock_file)
            raise

    def process_arrow(self, batch: Any) -> bool:
        """Writes a batch that a queue hands over. When it returns, the disk has it. If it raises, nothing was
        written."""
        metadata = batch.schema.metadata or {}
        if b"pywan.queue" not in metadata:
            raise TypeError("a sink takes the batches of a queue as they are, and this one does not say its queue")
        queue, life = metadata[b"pywan.queue"].decode(), int(metadata[b"pywan.life"])
        with self._changed:
            if self._is_closed:
                raise IllegalStateError(f"the sink of {self.directory} is closed")
            to_do, marks, first = self._plan(batch, queue, life)
            if marks:
                try:
                    rows = batch if to_do.all() else batch.filter(self._arrow.array(to_do))
                    self._write(rows, queue, life, first, marks)
                except BaseException:
                    if batch.num_rows == 1:
                        self._attempts.fail(next(iter(marks)), batch["sequence"][0].as_py())
                    raise
                for place, mark in marks.items():
                    self._marks[place] = mark
                    self._attempts.settle(place, mark)
            self._finish_what_is_due()
        return True

    def close(self) -> None:
        """Finishes all files."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._finish_what_is_due(all_of_them=True)
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        os.close(self._lock_file)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}:{type(self).__qualname__} into {self.directory}>"

    # What is to be written

    def _plan(self, batch: Any, queue: str, life: int) -> tuple[Any, dict[Place, Mark], str]:
        """Returns which rows are to be written, the marks afterwards, and the place of the first of those rows."""
        partitions, sequences = batch["partition"].to_numpy(), batch["sequence"].to_numpy()
        repeated = batch["possible_duplicate"].to_numpy(zero_copy_only=False)
        to_do = numpy.ones(batch.num_rows, bool)
        marks = {}
        for partition in numpy.unique(partitions).tolist():
            place = Place(queue, "", life, partition)
            mark = self._marks.get(place, Mark())
            rows = numpy.flatnonzero(partitions == partition)
            for row in rows[sequences[rows] <= mark.sequence].tolist():
                sequence = int(sequences[row])
                if mark.has(sequence):
                    self._attempts.check(place, mark, sequence, bool(repeated[row]), str(self._parts))
                    to_do[row] = False
            done = sequences[rows[to_do[rows]]].tolist()
            if done:
                marks[place] = mark.beyond(done, self._attempts.left_out(place))
                self._attempts.begin(place, done[-1])
        first = int(to_do.argmax())
        return to_do, marks, f"{partitions[first]}-{sequences[first]}"

    def _write(self, batch: Any, queue: str, life: int, first: str, marks: dict[Place, Mark]) -> None:
        rows = self._rows(batch)
        opened = self._open.setdefault((queue, life), [])
        parts = next((each for each in opened if each.takes(rows.schema)), None)
        if parts is None:
            name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', queue)}-{life:016x}-{first}"
            parts = Parts(self._arrow, self._parts / name, time.monotonic() + self._max_seconds)
            parts.add(rows, marks)
            opened.append(parts)
            self._begin_thread()
            self._changed.notify_all()
        else:
            parts.add(rows, marks)

    def _rows(self, batch: Any) -> Any:
        """Returns a table of the columns to write."""
        arrow = self._arrow
        if callable(self._columns):
            batch = self._columns(batch)
        elif self._columns is not None:
            batch = batch.select(list(self._columns))
        names = batch.schema.names
        table = arrow.table([_without_unions(arrow, batch.column(n)) for n in range(len(names))], names=names)
        return table.unify_dictionaries()

    # Files

    def _finish_what_is_due(self, all_of_them: bool = False) -> None:
        """Finishes files. What cannot be finished stays in parts, for another try."""
        now_s = time.monotonic()
        open_count = sum(map(len, self._open.values()))
        for key, opened in list(self._open.items()):
            for parts in list(opened):
                is_full = parts.rows >= self._max_rows or parts.bytes >= self._max_bytes or parts.count >= PARTS_MAX
                if all_of_them or is_full or parts.due_s <= now_s or open_count > OPEN_MAX:
                    try:
                        self._finish(parts)
                    except Exception:
                        log.exception("%r: a file could not be finished; its parts stay in %s", self, parts.folder)
                        parts.due_s = now_s + RETRY_S
                        continue
                    opened.remove(parts)
                    open_count -= 1
            if not opened:
                del self._open[key]

    def _finish(self, parts: Parts) -> None:
        """Makes a file of its parts. At each moment the disk has the events in the one or in the other, and the
        marks."""
        path = self.directory / f"{parts.folder.name}.parquet"
        unnamed = self._parts / f"{parts.folder.name}.whole"
        parts.write(unnamed, compression=self._compression)
        write_synced(self._parts / "marks.json", lambda file: file.write(marks_as_json(self._marks)))
        if parts.count:
            os.replace(unnamed, path)
            sync_folder(self.directory)
        parts.remove()

    def _recover(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._marks = marks_of_json((self._parts / "marks.json").read_bytes())
        for left in (*self._parts.glob("*.tmp"), *self._parts.glob("*.whole")):
            left.unlink()
        found = [Parts(self._arrow, folder, 0.0) for folder in self._parts.iterdir() if folder.is_dir()]
        for parts in found:
            parts.recover()
            for place, mark in parts.marks.items():
                if place not in self._marks or mark.is_later_than(self._marks[place]):
                    self._marks[place] = mark
        for parts in found:
            if (self.directory / f"{parts.folder.name}.parquet").exists():
                parts.remove()  # The process ended after it had finished the file.
            else:
                self._finish(parts)

    def _take_folder(self) -> int:
        descriptor = os.open(self._parts / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise IllegalStateError(
                f"another sink writes to {self.directory}: give each one a folder of its own"
            ) from error
        return descriptor

    # Time

    def _begin_thread(self) -> None:
        if self._thread is None:
            self._thread = start_thread(f"the sink of {self.directory}", "parquet-sink", self._finish_in_time)

    def _finish_in_time(self) -> None:
        with self._changed:
            while not self._is_closed:
                due_s = min((each.due_s for opened in self._open.values() for each in opened), default=None)
                wait_s = None if due_s is None else due_s - time.monotonic()
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                else:
                    self._finish_what_is_due()


def _without_unions(arrow: Any, column: Any) -> Any:
    """Parquet has no unions: such a column becomes a struct, in whose rows one field is not null."""
    if not arrow.types.is_union(column.type):
        return column
    import pyarrow.compute

    fields = []
    for code in range(column.type.num_fields):
        is_this = pyarrow.compute.equal(column.type_codes, code)
        places = pyarrow.compute.if_else(is_this, column.offsets, None)
        fields.append(column.field(code).take(places))
    return arrow.StructArray.from_arrays(fields, names=[column.type.field(n).name for n in range(len(fields))])
