"""Owns the form of a batch as Arrow columns. The core lays them out, so there is no Python object for an event."""

from __future__ import annotations

import functools
from typing import Any

from pywan import _core
from pywan.errors import ConfigurationError

OPERATIONS = ("create", "update", "destroy")


def to_arrow(batch: _core.EventBatch) -> Any:
    """Returns a batch as `pyarrow.RecordBatch`.

    Its columns, with a row for each event, the oldest first:

    - `region`, `operation`: dictionaries of text.
    - `key`, `value`, `callback_argument`: `binary`, `string`, `int64` or `double`, if all of the batch are bytes, text,
      integers or floats; of other objects `binary`, which `pywan.decode_tagged` reads. If there are several of these,
      a dense union of them. The value of a destroy is null.
    - `timestamp`: of the event, by the clock of its site. `stamp`: its version, which grows with each change of a key.
    - `origin_site`, `event_member`, `event_thread`, `event_sequence`: where it was made, and its identity.
    - `partition`, `sequence`: its place in the queue. `possible_duplicate`: whether it may have come before.

    The metadata of its schema has the id of the queue (`pywan.queue`), and its numbering (`pywan.life`), which a
    persistent queue keeps over restarts: with these two, partition and sequence identify an event.
    """
    arrow, columns = _pyarrow(), _core.EventColumns(batch)
    count, numbers = len(batch), columns.numbers()
    regions, names = columns.regions()

    def plain(name: str, kind: Any) -> Any:
        return arrow.Array.from_buffers(kind, count, [None, arrow.py_buffer(numbers[name])])

    return arrow.RecordBatch.from_arrays(
        [
            arrow.DictionaryArray.from_arrays(
                arrow.Array.from_buffers(arrow.int32(), count, [None, arrow.py_buffer(regions)]),
                _words(tuple(names)),
                safe=False,
            ),
            arrow.DictionaryArray.from_arrays(plain("operation", arrow.int8()), _words(OPERATIONS), safe=False),
            _part(arrow, columns.part("key")),
            _part(arrow, columns.part("value")),
            _part(arrow, columns.part("callback")),
            plain("timestamp", _moments()),
            plain("stamp", arrow.uint64()),
            plain("origin_site", arrow.uint8()),
            plain("event_member", arrow.uint32()),
            plain("event_thread", arrow.uint32()),
            plain("event_sequence", arrow.uint64()),
            plain("partition", arrow.uint32()),
            plain("sequence", arrow.uint64()),
            plain("possible_duplicate", arrow.bool_()),
        ],
        names=_NAMES,
        metadata={"pywan.queue": batch.queue, "pywan.life": str(batch.numbering)},
    )


_NAMES = [
    "region",
    "operation",
    "key",
    "value",
    "callback_argument",
    "timestamp",
    "stamp",
    "origin_site",
    "event_member",
    "event_thread",
    "event_sequence",
    "partition",
    "sequence",
    "possible_duplicate",
]


def _part(arrow: Any, part: tuple[Any, ...]) -> Any:
    kind, count, validity, offsets, data, nulls = part
    if kind == "null":
        return arrow.nulls(count)
    if kind == "mixed":  # `validity` has the number of each event's column, `offsets` its place there.
        return arrow.UnionArray.from_dense(
            arrow.Array.from_buffers(arrow.int8(), count, [None, arrow.py_buffer(validity)]),
            arrow.Array.from_buffers(arrow.int32(), count, [None, arrow.py_buffer(offsets)]),
            [_part(arrow, each) for each in data],
            [each[0] for each in data],
        )
    buffers = [None if validity is None else arrow.py_buffer(validity)]
    if offsets is not None:
        buffers.append(arrow.py_buffer(offsets))
    return arrow.Array.from_buffers(_kinds()[kind], count, [*buffers, arrow.py_buffer(data)], null_count=nulls)


def check_there() -> None:
    """Raises ConfigurationError if there is no pyarrow."""
    _pyarrow()


@functools.cache
def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ConfigurationError(
            "a listener with process_arrow needs pyarrow, which is not installed: pip install pywan[arrow]"
        ) from None
    return pyarrow


@functools.cache
def _kinds() -> dict[str, Any]:
    arrow = _pyarrow()
    return {
        "bytes": arrow.binary(),
        "text": arrow.string(),
        "tagged": arrow.binary(),
        "int": arrow.int64(),
        "float": arrow.float64(),
    }


@functools.lru_cache(maxsize=64)
def _words(words: tuple[str | None, ...]) -> Any:
    return _pyarrow().array(words)


@functools.cache
def _moments() -> Any:
    return _pyarrow().timestamp("ms", "UTC")
