"""Owns the parts of a Parquet file that is not whole yet, on the disk: how one is added, and how they become the
file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pywan.base.files import make_folder, replacing
from pywan.sinks.marks import Mark, Place

MARKS = b"pywan.marks"  # In the metadata of a part: the marks that it brings about.


def write_synced(path: Path, write: Callable[[Any], object]) -> None:
    """Writes a file that is there whole, with its name, or not at all. Others may read it."""
    with replacing(path, 0o666, ".tmp") as file:
        write(file)


def marks_as_json(marks: dict[Place, Mark]) -> bytes:
    """Returns marks as `marks_of_json` reads them."""
    return json.dumps([[*place, mark.sequence, sorted(mark.refused)] for place, mark in marks.items()]).encode()


def marks_of_json(data: bytes) -> dict[Place, Mark]:
    """Returns the marks of `marks_as_json`."""
    return {
        Place(str(queue), str(region), int(life), int(partition)): Mark(int(sequence), map(int, refused))
        for queue, region, life, partition, sequence, refused in json.loads(data)
    }


class Parts:
    """The parts of one file: a folder of small Parquet files, which are read in the order of their names.

    Attributes:
        schema: The schema of the rows, as far as it is known: a column in which all is null so far has the type null.
        rows: How many rows the parts have.
        bytes: How many bytes they have as Arrow.
        marks: The marks that the last parts brought about.
        due_s: When the file is to be finished, by the clock of the caller.
    """

    def __init__(self, arrow: Any, folder: Path, due_s: float) -> None:
        self._arrow, self.folder, self.due_s = arrow, folder, due_s
        self.schema: Any = None
        self.rows = self.bytes = self.count = 0
        self.marks: dict[Place, Mark] = {}

    def takes(self, schema: Any) -> bool:
        """Whether rows of that schema can be in the same file."""
        return self.schema is None or self._together(schema) is not None

    def _together(self, schema: Any) -> Any:
        try:
            return self._arrow.unify_schemas([self.schema.remove_metadata(), schema.remove_metadata()])
        except (self._arrow.ArrowInvalid, self._arrow.ArrowTypeError):
            return None

    def add(self, table: Any, marks: dict[Place, Mark]) -> None:
        """Adds rows. When it returns, the disk has them, and with them the marks. If it raises, it has neither."""
        make_folder(self.folder)
        part = table.replace_schema_metadata({MARKS: marks_as_json(marks)})
        path = self.folder / f"{self.count:08}.parquet"
        write_synced(path, lambda file: _parquet().write_table(part, file))
        self._note(table, marks)

    def _note(self, table: Any, marks: dict[Place, Mark]) -> None:
        self.schema = table.schema if self.schema is None else self._together(table.schema)
        self.rows, self.bytes, self.count = self.rows + table.num_rows, self.bytes + table.nbytes, self.count + 1
        self.marks.update(marks)

    def recover(self) -> None:
        """Finds the parts that an earlier process left."""
        for path in self.folder.glob("*.tmp"):
            path.unlink()
        for path in sorted(self.folder.glob("*.parquet")):
            table = _parquet().read_table(path)
            self._note(table, marks_of_json(table.schema.metadata[MARKS]))

    def write(self, path: Path, **options: Any) -> None:
        """Writes all rows into one file. Afterwards the disk has it."""
        if self.count:
            tables = [_parquet().read_table(part) for part in sorted(self.folder.glob("*.parquet"))]
            whole = self._arrow.concat_tables(tables, promote_options="default").replace_schema_metadata(None)
            write_synced(path, lambda file: _parquet().write_table(whole, file, **options))

    def remove(self) -> None:
        """Removes the parts. The file that has them, is there."""
        shutil.rmtree(self.folder)


def _parquet() -> Any:
    import pyarrow.parquet

    return pyarrow.parquet
