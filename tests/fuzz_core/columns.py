"""Fuzzes columns: Arrow arrays, numpy arrays and pairs of buffers whose lengths, offsets, nulls and indices are wrong.

Whatever comes: a column is made, of as many rows as were said, or refused with a SerializationError. Under the
sanitizers no byte is read that is not the array's.
"""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import numpy
import pyarrow as pa

from pywan import _core
from pywan.errors import EventTooLargeError, SerializationError

from .grammar import odd_number

FIXED = (
    pa.int8(),
    pa.uint16(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.binary(5),
    pa.timestamp("us"),
    pa.date32(),
    pa.decimal128(9, 2),
    pa.decimal256(40, -3),
    pa.duration("ns"),
    pa.time64("us"),
)
VARIABLE = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def offsets_of(source: Random, rows: int, size: int, bits: int) -> list[int]:
    """Offsets of rows that lie one behind the other in `size` bytes. Perhaps one of them is wrong."""
    offsets = sorted(source.randint(0, size) for _ in range(rows + 1))
    if source.random() < 0.5:
        kind, at = source.randrange(4), source.randrange(rows + 1)
        if kind == 0:
            offsets[at] = odd_number(source, offsets[at], bits - 1) - (source.random() < 0.3) * (1 << (bits - 1))
        elif kind == 1:
            offsets.reverse()
        elif kind == 2:
            source.shuffle(offsets)
        else:
            offsets[at] = size + source.choice((1, 8, 1000))
    return offsets


def validity_of(source: Random, rows: int) -> Any:
    if source.random() < 0.5:
        return None
    return pa.py_buffer(source.randbytes(source.choice(((rows + 7) // 8, 0, (rows + 7) // 8 + 3))))


def arrow_array(source: Random) -> Any:
    rows = source.choice((0, 1, 3, 17, 100))
    size = source.choice((0, 1, 40, 2000))
    said = source.choice((rows, rows, rows, rows + 1, max(0, rows - 1), rows + 1000))
    offset = source.choice((0, 0, 0, 1, 5))
    nulls = source.choice((-1, 0, 1, rows))
    validity = validity_of(source, rows)
    if source.random() < 0.6:
        kind = source.choice(VARIABLE)
        bits = 64 if kind in (pa.large_binary(), pa.large_string()) else 32
        offsets = numpy.array(offsets_of(source, rows, size, bits), dtype=f"i{bits // 8}").tobytes()
        return pa.Array.from_buffers(
            kind, said, [validity, pa.py_buffer(offsets), pa.py_buffer(b"d" * size)], nulls, offset
        )
    kind = source.choice(FIXED)
    width = (kind.bit_width + 7) // 8
    return pa.Array.from_buffers(kind, said, [validity, pa.py_buffer(source.randbytes(rows * width))], nulls, offset)


def dictionary_array(source: Random) -> Any:
    values = arrow_array(source) if source.random() < 0.3 else pa.array(["a", "bb", None])
    indices = pa.array(
        [source.choice((0, 1, 2, None, 3, -1, 1000)) for _ in range(source.choice((0, 1, 10)))], pa.int32()
    )
    return pa.DictionaryArray.from_arrays(indices, values, safe=False)


def view_array(source: Random) -> Any:
    rows = source.choice((1, 3, 10))
    views = b""
    for _ in range(rows):
        length = source.choice((0, 5, 12, 13, 40, odd_number(source, 40, 32)))
        views += length.to_bytes(4, "little") + (
            b"abcd"
            + source.choice((0, 0, 1, 1000)).to_bytes(4, "little")
            + source.choice((0, 5, 60, 1 << 31)).to_bytes(4, "little")
            if length > 12
            else b"x" * 12
        )
    return pa.Array.from_buffers(
        pa.binary_view(),
        source.choice((rows, rows, rows + 1)),
        [validity_of(source, rows), pa.py_buffer(views), pa.py_buffer(b"d" * 64)],
    )


def nested_array(source: Random) -> Any:
    """Lists, structs or maps of arrays of which one may be wrong already."""
    inner = source.choice((arrow_array, dictionary_array, nested_array))(source)
    kind, rows = source.randrange(5), source.choice((0, 1, 3, 17))
    said = source.choice((rows, rows, rows + 1, rows + 1000))
    validity = validity_of(source, rows)
    if kind == 0:
        return pa.Array.from_buffers(
            pa.struct([("a", inner.type), ("b", inner.type)]),
            said,
            [validity],
            -1,
            source.choice((0, 0, 1, 5)),
            [inner, inner],
        )
    if kind == 1:
        return pa.Array.from_buffers(
            pa.list_(inner.type, source.choice((0, 1, 3, 1000))), said, [validity], -1, 0, [inner]
        )
    wide = kind == 2
    offsets = pa.py_buffer(
        numpy.array(offsets_of(source, rows, len(inner), 64 if wide else 32), dtype="i8" if wide else "i4")
    )
    if kind == 3:
        keys = pa.array(range(len(inner)), pa.int64())  # Arrow ends the process where one of them is null.
        entries = pa.StructArray.from_arrays(
            [keys, inner], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", inner.type)]
        )
        return pa.Array.from_buffers(pa.map_(keys.type, inner.type), said, [validity, offsets], -1, 0, [entries])
    return pa.Array.from_buffers(
        pa.large_list(inner.type) if wide else pa.list_(inner.type),
        said,
        [validity, offsets],
        -1,
        source.choice((0, 0, 1)),
        [inner],
    )


def pair(source: Random) -> Any:
    rows, size = source.choice((0, 1, 17)), source.choice((0, 40, 1000))
    bits = source.choice((32, 64))
    return numpy.array(offsets_of(source, rows, size, bits), dtype=f"i{bits // 8}"), b"d" * size


def numpy_array(source: Random) -> Any:
    array = numpy.frombuffer(
        source.randbytes(240), source.choice(("i1", ">i4", "u8", "f4", "S5", "V3", "M8[s]", "?", "u1"))
    )
    if source.random() < 0.3:
        array = array[:: source.choice((2, -1, -3))]
    if array.dtype == "u1" and source.random() < 0.5:
        array = array[: len(array) // 4 * 4].reshape(-1, 4)
    return array


def made(source: Random) -> Any:
    kind = source.choice(
        (
            arrow_array,
            arrow_array,
            arrow_array,
            nested_array,
            nested_array,
            dictionary_array,
            view_array,
            pair,
            numpy_array,
        )
    )
    obj = kind(source)
    if isinstance(obj, pa.Array) and source.random() < 0.2:
        obj = obj.slice(source.randrange(len(obj) + 1))
    if isinstance(obj, pa.Array) and source.random() < 0.2:
        obj = pa.chunked_array([obj, obj])
    return obj


def run(source: Random) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            obj = made(source)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError, IndexError):
            return  # Arrow itself refuses it.
        rows = len(obj[0]) - 1 if isinstance(obj, tuple) else len(obj)
        try:
            if not isinstance(obj, tuple):
                assert len(_core.encode_rows(["a"], [obj])) == rows
            column = _core.Column(obj, "fuzzed")
            found = _core._column_rows(column)
            encoded = _core.encode_rows(["a", "b"], [column, column])
        except (SerializationError, EventTooLargeError):
            return
    assert len(found) == len(column) == len(encoded) == rows, (len(found), len(column), rows)
