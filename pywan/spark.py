"""Owns the way from Spark into a region: a DataFrame's Arrow batches, or an RDD's pairs, to a site's members.

Executors import this module too: what it imports at the top must stay light.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pywan import errors
from pywan.errors import ConfigurationError

_PAIRS_A_CALL = 1_000
_COUNTS_SCHEMA = "partition int, rows bigint, bytes bigint, duplicate boolean"

# The classes of Spark's types that have a Python value of their own. Arrays, structs and maps hold them. The caller
# has to cast any other type to one of these.
_KEY_TYPES = frozenset(
    {
        "StringType",
        "CharType",
        "VarcharType",
        "BinaryType",
        "ByteType",
        "ShortType",
        "IntegerType",
        "LongType",
        "BooleanType",
        "DecimalType",
        "DateType",
        "TimestampType",
        "TimestampNTZType",
    }
)
_VALUE_TYPES = _KEY_TYPES | {"FloatType", "DoubleType", "NullType", "TimeType", "DayTimeIntervalType"}
_OPERATION_TYPES = frozenset({"StringType", "CharType", "VarcharType"})
_DEPTH_MAX = 60  # The deepest nesting of arrays, structs and maps. A value has 64 levels, with the dict of the row.


@dataclass(frozen=True)
class EnqueueSummary:
    """What one `enqueue` did. All `rows` were applied at the site when this was made."""

    rows: int
    bytes: int  # Keys and values, as laid out for the wire.
    seconds: float  # From the call to the last task's end, Spark's own work included.
    partitions: int
    repeated_partitions: int = 0  # An earlier attempt of their tasks had applied the rows. They count once.


def enqueue(
    data: Any,
    *,
    locators: str,
    region: str,
    key: str = "key",
    value: str | Sequence[str] | None = None,
    operation: str | None = None,
    timeout: float = 60.0,
    ssl: Mapping[str, Any] | None = None,
    security: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> EnqueueSummary:
    """Put every row of a DataFrame, or every pair of an RDD, into `region` of the site behind `locators`.

    A DataFrame row's key is the column `key`. Its value is the column `value`; or, when `value` is a list of names, a
    dict of those columns; or, when it is not given, all columns but the key (that one column itself if only one is
    left). `operation` names a column that holds create, update or destroy; without it every row is a put. An RDD's
    elements are (key, value).

    Returns when every row is applied at the site. A task's rows are staged at a member and applied when the task
    ends, in the order of its rows and once, however often Spark runs the task. If the job fails, partitions that had
    ended stay applied and the others are not; calling again puts all rows again.

    `timeout` is how long a task waits, in seconds, for a locator, a member, or a word of progress with its rows.

    `ssl` says how connections are encrypted, by the names in docs/configuration.md; its files are those of the
    executors. Without it they are not. `security` says who the executors are, likewise.
    """
    for name in unknown:
        close = difflib.get_close_matches(
            name, ["locators", "region", "key", "value", "operation", "timeout", "ssl", "security"], 1
        )
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(f"enqueue has no option {name!r}{hint}")
    from pywan.base.addresses import parse_locators

    if not parse_locators(locators):
        raise ConfigurationError("enqueue needs at least one locator, such as locators='127.0.0.1[10334]'")
    if not isinstance(region, str) or not region.strip("/"):
        raise ConfigurationError(f"region={region!r} is not the name of a region")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ConfigurationError(f"timeout={timeout!r} must be a number of seconds above 0")
    given = [dict(each) if each is not None else None for each in (ssl, security)]
    target = _Target(locators, region, uuid.uuid4().bytes, float(timeout), *given)
    started = time.monotonic()
    if hasattr(data, "mapInArrow"):
        counts = _enqueue_frame(data, target, key, value, operation)
    elif hasattr(data, "mapPartitionsWithIndex"):
        if operation is not None or value is not None or key != "key":
            raise ConfigurationError(
                "key, value and operation name columns of a DataFrame; an RDD's elements are (key, value)"
            )
        with _errors_of_tasks():
            counts = data.mapPartitionsWithIndex(_WritePairs(target)).collect()
    else:
        raise ConfigurationError(
            f"enqueue takes a Spark DataFrame or an RDD of pairs, not {type(data).__module__}.{type(data).__qualname__}"
        )
    return EnqueueSummary(
        rows=sum(rows for _, rows, _, _ in counts),
        bytes=sum(size for _, _, size, _ in counts),
        seconds=time.monotonic() - started,
        partitions=len(counts),
        repeated_partitions=sum(bool(duplicate) for *_, duplicate in counts),
    )


@dataclass(frozen=True)
class _Target:
    """Where rows go. It is plain data, because Spark sends it to the executors."""

    locators: str
    region: str
    run_id: bytes  # Names one call of enqueue. With the number of the task it names rows that may be applied once.
    timeout: float
    ssl: dict[str, Any] | None = None
    security: dict[str, Any] | None = None

    def connect(self, task: int) -> Any:
        from pywan.client import DataConnection

        return DataConnection.open(
            self.locators,
            region=self.region,
            run_id=self.run_id,
            task=task,
            timeout=self.timeout,
            ssl=self.ssl,
            security=self.security,
        )


def _enqueue_frame(
    frame: Any, target: _Target, key: str, value: str | Sequence[str] | None, operation: str | None
) -> list[tuple[Any, ...]]:
    if frame.isStreaming:
        raise ConfigurationError("enqueue takes a batch DataFrame; for a stream call it inside foreachBatch")
    columns = frame.columns
    if value is None:
        names = [name for name in columns if name not in (key, operation)]
        is_dict = len(names) != 1
    else:
        names = [value] if isinstance(value, str) else list(value)
        is_dict = not isinstance(value, str)
    if not names:
        raise ConfigurationError(f"no column is left for the value: the DataFrame has {', '.join(columns)}")
    _check_columns(frame.schema, key, names, operation)
    chosen = [key, *([operation] if operation is not None else []), *names]
    # A selection costs Spark a copy of each row. mapInArrow looks its columns up by name and stumbles over dots.
    if sorted(chosen) != sorted(columns) or not all(name.isidentifier() for name in columns):
        frame = frame.selectExpr(*[f"{_quoted(name)} as c{n}" for n, name in enumerate(chosen)])
        columns = chosen
    write = _WriteBatches(
        target, tuple(columns.index(name) for name in chosen), tuple(names) if is_dict else None, operation is not None
    )
    with _errors_of_tasks():
        return [tuple(row) for row in frame.mapInArrow(write, _COUNTS_SCHEMA).collect()]


def _check_columns(schema: Any, key: str, values: list[str], operation: str | None) -> None:
    columns = schema.names
    for role, name in [
        ("key", key),
        *([("operation", operation)] if operation is not None else []),
        *(("value", v) for v in values),
    ]:
        if columns.count(name) != 1:
            what = "more than one column" if name in columns else "no column"
            raise ConfigurationError(
                f"{role}={name!r}: the DataFrame has {what} of that name (columns: {', '.join(columns)})"
            )
        kind = schema[name].dataType
        if role == "value":
            _check_value_type(name, kind, name, kind, 0)
        elif type(kind).__name__ not in (_KEY_TYPES if role == "key" else _OPERATION_TYPES):
            raise ConfigurationError(
                f"{role} column {name!r} is {kind.simpleString()}, which cannot be carried as a {role}:"
                " cast it to string"
            )


def _check_value_type(column: str, whole: Any, path: str, kind: Any, depth: int) -> None:
    """ConfigurationError names the column, the part of it that has no form, and what to do instead."""

    def refuse(what: str, remedy: str) -> None:
        part = "" if path == column else f" (its part {path})"
        raise ConfigurationError(
            f"value column {column!r} is {whole.simpleString():.200}{part}: {what} cannot be carried as a value:"
            f" {remedy}"
        )

    name = type(kind).__name__
    if depth > _DEPTH_MAX:
        refuse(f"what is nested deeper than {_DEPTH_MAX}", "flatten it, or use to_json")
    elif name == "ArrayType":
        _check_value_type(column, whole, f"{path}[]", kind.elementType, depth + 1)
    elif name == "MapType":
        if type(kind.keyType).__name__ in ("ArrayType", "StructType", "MapType"):
            refuse(f"a map whose keys are {kind.keyType.simpleString()}", "use map_entries, or cast the keys to string")
        _check_value_type(column, whole, f"{path}.key", kind.keyType, depth + 1)
        _check_value_type(column, whole, f"{path}.value", kind.valueType, depth + 1)
    elif name == "StructType":
        for field in kind.fields:
            if kind.names.count(field.name) > 1:
                refuse(f"a struct with two fields {field.name!r}", "rename one of them")
            _check_value_type(column, whole, f"{path}.{field.name}", field.dataType, depth + 1)
    elif name not in _VALUE_TYPES:
        refuse(kind.simpleString(), "cast it to string, or use to_json")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class _WriteBatches:
    """The function that mapInArrow runs in a task: it sends the task's batches, and gives one row of counts."""

    target: _Target
    columns: tuple[int, ...]  # Numbers of a batch's columns: the key, the operation if there is one, the values.
    dict_names: tuple[str, ...] | None  # The names under which the value columns are encoded as one dict.
    has_operation: bool

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None, "this runs in a task"
        partition = task.partitionId()
        counts = _staged(self.target, partition, batches, self._put)
        fields = [
            ("partition", pyarrow.int32()),
            ("rows", pyarrow.int64()),
            ("bytes", pyarrow.int64()),
            ("duplicate", pyarrow.bool_()),
        ]
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array([count], kind) for count, (_, kind) in zip(counts, fields, strict=True)],
            names=[name for name, _ in fields],
        )

    def _put(self, connection: Any, batch: Any) -> None:
        if batch.num_rows == 0:
            return
        key, *values = (batch.column(number) for number in self.columns)
        operations = values.pop(0) if self.has_operation else None
        if self.dict_names is None:
            connection.put_columns(key, values[0], operations)
        else:
            connection.put_rows(key, self.dict_names, values, operations)


@dataclass(frozen=True)
class _WritePairs:
    """The function that mapPartitionsWithIndex runs in a task: it sends the task's pairs, and gives their counts."""

    target: _Target

    def __call__(self, partition: int, pairs: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        pairs = iter(pairs)
        chunks = iter(lambda: list(itertools.islice(pairs, _PAIRS_A_CALL)), [])
        yield _staged(self.target, partition, chunks, lambda connection, chunk: connection.put_pairs(chunk))


def _staged(target: _Target, partition: int, chunks: Iterable[Any], put: Any) -> tuple[int, int, int, bool]:
    """Sends all chunks, then has the member apply them together. Returns the partition, its rows, their bytes, and
    whether an earlier attempt of the task had done it."""
    chunks = iter(chunks)
    first = next(chunks, None)
    if first is None:  # An empty partition needs no connection.
        return partition, 0, 0, False
    with target.connect(partition) as connection:
        put(connection, first)
        for chunk in chunks:
            put(connection, chunk)
        result = connection.commit()
    return partition, result["rows"], result["bytes"], result["duplicate"]


class _errors_of_tasks:  # noqa: N801 - It is used as a function, in `with`.
    """Turns Spark's report of a failed task into the pywan error that the task raised, keeping Spark's as its cause."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None or not isinstance(error, Exception):
            return
        if re.search(r"^ModuleNotFoundError: No module named 'pywan", str(error), re.MULTILINE):
            raise errors.ConfigurationError(
                "the Python of Spark's workers has no pywan: install it there, or name another Python by"
                " PYSPARK_PYTHON or spark.pyspark.python before the session is made; nothing was sent"
            ) from error
        found = re.search(r"^(?:\S*: )*pywan\.errors\.(\w+): (.*)$", str(error), re.MULTILINE)
        cls = getattr(errors, found[1], None) if found else None
        if found is not None and isinstance(cls, type) and issubclass(cls, errors.PywanError):
            raise cls(f"{found[2]} (partitions that had ended stay applied, the others are not)") from error
