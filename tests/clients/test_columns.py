"""Columns: rows as bytes out of Arrow, numpy, buffers and lists; maps of several columns; operation codes."""

import array as arrays
import ctypes
import datetime
import decimal
import gc
import itertools
import mmap
import struct
import sys
import weakref
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from pywan import _core
from pywan._core import Column, _column_rows, as_columns, decode_object, encode_rows, operation_codes
from pywan.errors import EventTooLargeError, SerializationError

BYTES, STR, TAGGED, NONE, INT64, FLOAT64 = range(6)
UTC = datetime.UTC


def decode(row):
    """The value that a reader of the row sees."""
    form, content = row
    if form == BYTES:
        return content
    if form == STR:
        return content.decode()
    if form == TAGGED:
        return decode_object(form, content)
    if form == NONE:
        assert content == b""
        return None
    return struct.unpack("<q" if form == INT64 else "<d", content)[0]


def values(obj, name="values"):
    column = obj if isinstance(obj, Column) else Column(obj, name)
    rows = _column_rows(column)
    assert len(rows) == len(column)
    return [decode(row) for row in rows]


BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
STRING_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
INT_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
SAMPLES: dict[pa.DataType, list[Any]] = {
    **{
        kind: [b"a", None, b"", b"a longer value than fits into a view", b"\x00\xff", b"exactly 12 b"]
        for kind in BINARY_TYPES
    },
    **{kind: ["a", None, "", "a longer value than fits into a view", "grüße €", "zwölf"] for kind in STRING_TYPES},
    **{kind: [0, None, 1, 127, 5, 9] for kind in INT_TYPES},
    pa.float32(): [0.5, None, -1.25, float("inf"), 0.0, 3.0],
    pa.float64(): [0.1, None, -1e300, float("inf"), 0.0, 3.0],
    pa.bool_(): [True, None, False, True, True, False, False, True, True, None],
    pa.binary(5): [b"12345", None, b"abcde", b"\0\0\0\0\0", b"54321", b"zzzzz"],
    pa.null(): [None] * 6,
    **{
        pa.timestamp(unit, tz="UTC"): [
            datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
            None,
            datetime.datetime(1969, 12, 31, 23, 59, 58, tzinfo=UTC),
            datetime.datetime(1970, 1, 1, tzinfo=UTC),
            datetime.datetime(2200, 1, 1, tzinfo=UTC),
        ]
        for unit in ("s", "ms", "us", "ns")
    },
}
sample_types = pytest.mark.parametrize("kind", SAMPLES, ids=str)


@sample_types
def test_an_arrow_array_reads_back_as_its_rows(kind):
    assert values(pa.array(SAMPLES[kind], kind)) == SAMPLES[kind]


@sample_types
@pytest.mark.parametrize("start, length", [(0, 0), (0, 1), (1, 3), (3, 2), (2, 0)])
def test_a_slice_reads_only_its_own_rows(kind, start, length):
    sliced = pa.array(SAMPLES[kind] * 3, kind).slice(len(SAMPLES[kind]) + start, length)
    assert values(sliced) == (SAMPLES[kind] * 3)[len(SAMPLES[kind]) + start :][:length]


@sample_types
def test_an_empty_array_has_no_rows(kind):
    assert values(pa.array([], kind)) == []
    assert values(pa.chunked_array([], kind)) == []


@sample_types
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_chunked_array_reads_as_one_column_and_as_its_chunks(kind, chunks):
    pieces = [pa.array(SAMPLES[kind][i:], kind) for i in range(chunks)]
    if chunks > 1:
        pieces.insert(1, pa.array([], kind))
    chunked = pa.chunked_array(pieces, kind)
    expected = [value for i in range(chunks) for value in SAMPLES[kind][i:]]
    assert values(chunked) == expected
    columns = as_columns(chunked, "values")
    assert [len(column) for column in columns] == [len(piece) for piece in pieces]
    assert [value for column in columns for value in values(column)] == expected


@pytest.mark.parametrize(
    "kind", [kind for kind in SAMPLES if not pa.types.is_null(kind)], ids=str
)  # An empty array has no dictionary.
@pytest.mark.parametrize("index", [pa.int8(), pa.int64(), pa.uint16()], ids=str)
def test_a_dictionary_encoded_array_reads_as_its_values(kind, index):
    dictionary = pa.array(SAMPLES[kind], kind)
    indices = pa.array([2, 0, None, 1, 4, 3, 0], index)
    encoded = pa.DictionaryArray.from_arrays(indices, dictionary)
    expected = [None if i is None else SAMPLES[kind][i] for i in indices.to_pylist()]
    assert values(encoded) == expected
    assert values(encoded.slice(2, 3)) == expected[2:5]
    assert values(pa.chunked_array([encoded, encoded.slice(3)])) == expected + expected[3:]
    assert values(pa.chunked_array([], encoded.type)) == []


def test_every_form_is_told():
    for kind, form in [
        (pa.binary(), BYTES),
        (pa.string_view(), STR),
        (pa.bool_(), TAGGED),
        (pa.null(), NONE),
        (pa.uint16(), INT64),
        (pa.float32(), FLOAT64),
        (pa.binary(3), BYTES),
        (pa.date32(), TAGGED),
    ]:
        assert Column(pa.array([], kind), "values").form == form


def test_bools_are_single_msgpack_bytes():
    expected = [(TAGGED, b"\xc3"), (TAGGED, b"\xc2")]
    assert _column_rows(Column(pa.array([True, False]))) == expected
    assert _column_rows(Column(np.array([True, False]))) == expected


@pytest.mark.parametrize("kind", INT_TYPES, ids=str)
def test_the_ends_of_every_integer_type_survive(kind):
    info = np.iinfo(kind.to_pandas_dtype())
    ends = [int(info.min), min(int(info.max), 2**63 - 1)]
    assert values(pa.array(ends, kind)) == ends
    assert values(np.array(ends, info.dtype)) == ends
    assert values(np.array(ends, info.dtype.newbyteorder(">"))) == ends


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: pa.array(rows, pa.uint64()),
        lambda rows: np.array(rows, np.uint64),
        lambda rows: pa.chunked_array([rows[:1], rows[1:]], pa.uint64()),
    ],
)
def test_an_integer_over_63_bits_is_refused_by_row_and_value(make):
    with pytest.raises(SerializationError, match=r"'price', row 2: 9223372036854775808 .*cast"):
        Column(make([1, 2, 2**63]), "price")


def test_what_lies_under_a_null_does_not_matter():
    column = pa.Array.from_buffers(
        pa.uint64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(b"\xff" * 8 + b"\x07" + b"\0" * 7)]
    )
    assert values(column) == [None, 7]


def moment(code, nanoseconds):
    """The extension in which seconds and nanoseconds are told; -1 is msgpack's own timestamp."""
    return (
        msgpack.packb(msgpack.ExtType(code, msgpack.Timestamp(*divmod(nanoseconds, 10**9)).to_bytes()))
        if code >= 0
        else msgpack.packb(msgpack.Timestamp(*divmod(nanoseconds, 10**9)))
    )


INSTANT, DATE, NAIVE = -1, 3, 4


def test_timestamps_are_instants_where_their_column_has_a_zone_and_else_times_without_one():
    moments = [0, 1, 2**32 * 10**9 - 1, 2**32 * 10**9, 2**33 * 10**9, -1, -(10**9), 2**62]
    for column, code in (
        (pa.array(moments, pa.timestamp("ns")), NAIVE),
        (np.array(moments, "M8[ns]"), NAIVE),
        (pa.array(moments, pa.timestamp("ns", "UTC")), INSTANT),
        (pa.array(moments, pa.timestamp("ns", "Europe/Berlin")), INSTANT),
    ):
        assert [content for _, content in _column_rows(Column(column))] == [moment(code, each) for each in moments]
    far = -(2**63) + 1
    ((_, content),) = _column_rows(Column(pa.array([far], pa.timestamp("us", "UTC"))))
    assert msgpack.unpackb(content) == msgpack.Timestamp(*divmod(far * 1000, 10**9))


def test_dates_are_dates():
    days = [datetime.date(2024, 2, 29), None, datetime.date(1901, 1, 1)]
    for column in (
        pa.array(days, pa.date32()),
        pa.array(days, pa.date64()),
        np.array([str(day) if day else "NaT" for day in days], "M8[D]"),
    ):
        assert values(column) == days
    assert _column_rows(Column(pa.array([-1], pa.date32()))) == [(TAGGED, b"\xd6\x03\xff\xff\xff\xff")]
    assert values(np.array(["2024-02", "1970-01"], "M8[M]")) == [datetime.date(2024, 2, 1), datetime.date(1970, 1, 1)]
    with pytest.raises(SerializationError, match="row 1: a date that is no whole day"):
        Column(pa.Array.from_buffers(pa.date64(), 2, [None, pa.py_buffer(struct.pack("<qq", 0, 5))]))
    with pytest.raises(SerializationError, match=r"row 0: .*too far away"):
        Column(np.array([2**31], "M8[D]"))


def test_no_unit_of_numpy_loses_anything():
    assert values(np.array(["2024-01-01T00:00:00.010", "NaT"], "M8[10ms]")) == [
        datetime.datetime(2024, 1, 1, 0, 0, 0, 10_000),
        None,
    ]
    assert values(np.array(["2024-01-01T05"], "M8[h]")) == [datetime.datetime(2024, 1, 1, 5)]
    assert _column_rows(Column(np.array(["1970-01-01T00:00:00.000000001000"], "M8[ps]"))) == [
        (TAGGED, moment(NAIVE, 1))
    ]
    with pytest.raises(
        SerializationError, match=r"row 1: 1970-01-01T00:00:00.000000000001 cannot be told in ns; round it"
    ):
        Column(np.array([0, 1], "M8[ps]"))


@pytest.mark.parametrize(
    "kind, word",
    [
        (pa.float16(), "16 bit"),
        (pa.month_day_nano_interval(), "intervals"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "runs"),
        (pa.list_view(pa.int8()), "views of lists"),
    ],
    ids=str,
)
def test_an_arrow_type_without_a_form_is_refused_with_a_remedy(kind, word):
    for obj in (pa.array([], kind), pa.chunked_array([], kind), pa.chunked_array([pa.array([None], kind)] * 2)):
        with pytest.raises(SerializationError, match=f"'price'.*{word}"):
            Column(obj, "price")


@pytest.mark.parametrize(
    "kind, words",
    [
        (pa.list_(pa.float16()), r"'price\[\]'.*16 bit"),
        (pa.struct([("a", pa.list_(pa.float16()))]), r"'price\.a\[\]'.*16 bit"),
        (pa.map_(pa.list_(pa.int8()), pa.int8()), "'price'.*no keys of a dict"),
        (pa.map_(pa.string(), pa.month_day_nano_interval()), "'price.value'.*intervals"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "'price'.*twice"),
    ],
    ids=str,
)
def test_a_part_of_a_type_without_a_form_is_named(kind, words):
    for obj in (pa.array([], kind), pa.chunked_array([], kind)):
        with pytest.raises(SerializationError, match=words):
            Column(obj, "price")
        with pytest.raises(SerializationError, match=words):
            encode_rows(["price"], [obj])


def test_types_that_are_nested_too_deep_are_refused():
    kind, value = pa.int8(), 7
    for _ in range(63):
        kind, value = pa.list_(kind), [value]
    assert _column_rows(Column(pa.array([value], kind))) == [_core.encode_object(value)]
    with pytest.raises(SerializationError, match="nested deeper"):
        encode_rows(["a"], [pa.array([value], kind)])
    with pytest.raises(SerializationError, match="nested deeper"):
        Column(pa.array([], pa.list_(kind)), "deep")


def test_a_value_with_too_many_containers_is_refused_by_row():
    count = (1 << 20) + 1
    offsets = pa.array(np.zeros(count + 1, np.int32))
    inner = pa.ListArray.from_arrays(offsets, pa.array([], pa.int8()))
    with pytest.raises(SerializationError, match="'many', row 1: more than 1048576 lists"):
        Column(pa.ListArray.from_arrays(pa.array([0, 0, count], pa.int32()), inner), "many")


def test_a_table_is_a_column_of_dicts():
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    for rows in (table, table.to_batches()[0], pa.chunked_array([table.to_struct_array().combine_chunks()])):
        assert values(rows) == table.to_pylist()


def damaged_list(offsets, length):
    return pa.Array.from_buffers(
        pa.list_(pa.int32()),
        length,
        [None, pa.py_buffer(np.array(offsets, np.int32))],
        children=[pa.array([1, 2, 3], pa.int32())],
    )


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, -1, 2], [0, 9, 3]])
def test_offsets_of_lists_that_leave_their_elements_are_refused_by_row(offsets):
    with pytest.raises(SerializationError, match="damaged"):
        Column(ThroughTheInterface(damaged_list(offsets, 2)), "lists")
    with pytest.raises(SerializationError, match="damaged"):
        encode_rows(["lists"], [ThroughTheInterface(damaged_list(offsets, 2))])


def test_a_part_that_is_shorter_than_its_whole_is_refused():
    whole = pa.array([{"a": 1}] * 3)
    schema, array = whole.__arrow_c_array__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_int64.from_address(pointer(array, b"arrow_array")).value = 5  # Its length.

    class Longer:
        def __arrow_c_array__(self, requested_schema=None):
            return schema, array

    with pytest.raises(SerializationError, match=r"'s\.a'.*3 rows, expected 5; it is damaged"):
        Column(Longer(), "s")


def test_buffers_that_do_not_start_where_numbers_may_are_read_all_the_same():
    def shifted(content):
        return pa.py_buffer(b"\x55" + content)[1:]

    whole = [
        pa.Array.from_buffers(kind, 3, [None, shifted(np.array([7, 8, 9], kind.to_pandas_dtype()).tobytes())])
        for kind in (pa.int64(), pa.int32(), pa.int16(), pa.float32(), pa.float64())
    ]
    whole += [
        pa.Array.from_buffers(kind, 3, [None, shifted(np.array([0, 1, 3, 6], offset).tobytes()), shifted(b"abbccc")])
        for kind, offset in ((pa.binary(), "i4"), (pa.large_string(), "i8"))
    ]
    for column in whole:
        assert values(column) == column.to_pylist()
        assert values(column[1:]) == column[1:].to_pylist()


# numpy


def test_fixed_width_bytes_keep_their_full_width():
    keys = np.array([b"a", b"bcd", b""], "S3")
    assert values(keys) == [b"a\0\0", b"bcd", b"\0\0\0"]
    assert values(keys.view("V3")) == [b"a\0\0", b"bcd", b"\0\0\0"]
    assert values(np.frombuffer(keys.tobytes(), np.uint8).reshape(3, 3)) == [b"a\0\0", b"bcd", b"\0\0\0"]


def test_a_strided_array_reads_its_own_rows():
    numbers = np.arange(20, dtype=np.int64)
    assert values(numbers[::3]) == list(range(0, 20, 3))
    assert values(numbers[::-1].astype("i2")) == list(range(19, -1, -1))
    table = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert values(table[:, 1:3]) == [bytes([1, 2]), bytes([5, 6]), bytes([9, 10])]
    assert values(np.array([b"ab", b"cd", b"ef"])[::2]) == [b"ab", b"ef"]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8"])
def test_floats_of_any_width_are_widened(dtype):
    assert values(np.array([0.5, -2.0, 1024.0], dtype)) == [0.5, -2.0, 1024.0]


@pytest.mark.parametrize("dtype", ["S4", "V4", "i4", "u8", "f8", "?", "U3", "M8[us]"])
def test_an_empty_numpy_array_has_no_rows(dtype):
    assert values(np.array([], dtype)) == []


def test_numpy_text_and_dates():
    assert values(np.array(["a", "grüße", ""])) == ["a", "grüße", ""]
    dates = np.array(["2024-01-02T03:04:05", "NaT", "1960-01-01"], "M8[s]")
    expected = [datetime.datetime(2024, 1, 2, 3, 4, 5), None, datetime.datetime(1960, 1, 1)]
    assert values(dates) == expected
    assert values(dates.astype(">M8[ms]")) == expected


@pytest.mark.parametrize(
    "obj, remedy",
    [
        (np.array([1, "a"], object), "dtype"),
        (np.zeros((2, 2)), "one dimension"),
        (np.zeros((2, 2, 2), np.uint8), "one dimension"),
        (np.array(1), "one dimension"),
        (np.zeros(2, "c16"), "cast"),
        (np.zeros(2, np.longdouble), "cast"),
        (np.zeros(2, "m8[s]"), "cast"),
        (np.zeros(2, [("a", "i4"), ("b", "i8")]), "fields"),
        (np.ma.array([1, 2], mask=[0, 1]), "mask"),
        ("text", "pass an Arrow array"),
        (b"bytes", "pass an Arrow array"),
        (7, "pass an Arrow array"),
        pytest.param((i for i in "ab"), "pass an Arrow array", id="a generator"),
        ([1, 2], "numpy"),
        ([b"a", "b"], "same type"),
        (["a", b"b"], "same type"),
        (["a", 1.5], "numpy"),
        (["\ud800"], "bytes"),
    ],
    ids=str,
)
def test_what_is_no_column_is_refused_by_name_with_a_remedy(obj, remedy):
    with pytest.raises(SerializationError, match=f"'price'.*{remedy}"):
        Column(obj, "price")


# Lists and pairs


def test_a_list_with_other_values_is_refused_by_their_type():
    with pytest.raises(TypeError, match="column 'keys', row 1: a value of type int; a list holds bytes or str, and"):
        _core.Column(["a", 1], "keys")
    with pytest.raises(TypeError, match="column 'keys', row 1: a value of type bytes after rows of str; make all rows"):
        _core.Column(["a", b"b"], "keys")


def test_a_list_of_bytes_or_str_may_hold_none():
    assert values([b"a", None, b"", b"bcd"]) == [b"a", None, b"", b"bcd"]
    assert values(("a", None, "grüße")) == ["a", None, "grüße"]
    assert values((b"a", b"b")) == [b"a", b"b"]
    assert values([None, None]) == [None, None]
    assert values([np.bytes_(b"a"), np.bytes_(b"b")]) == [b"a", b"b"]
    assert values([]) == values(()) == []


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "wrap", [bytes, bytearray, memoryview, pa.py_buffer, lambda data: np.frombuffer(data, np.uint8)]
)
def test_a_pair_of_offsets_and_data_is_cut_into_rows(dtype, wrap):
    assert values((np.array([1, 1, 3, 6], dtype), wrap(b"xabcdef"))) == [b"", b"ab", b"cde"]


def test_offsets_may_be_any_buffer_that_tells_its_type():
    assert values((arrays.array("i", [0, 2, 3]), b"abc")) == [b"ab", b"c"]
    assert values((np.array([0, 9, 2, 9, 3], np.int32)[::2], b"abc")) == [b"ab", b"c"]
    assert values((np.array([0], np.int32), b"")) == []
    assert values((np.array([0, 0], np.int64), b"")) == [b""]
    assert values((np.array([0, 2], ">i4"), b"ab")) == [b"ab"]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "offsets, row",
    [
        ([0, 2, 1], 1),
        ([-1, 2], 0),
        ([0, 4], 0),
        ([0, 1, 2**31 - 1], 1),
        ([4, 4], 0),
        ([3, 2, 3], 0),
        ([0, -(2**31)], 0),
    ],
)
def test_offsets_that_leave_the_data_or_go_backwards_are_refused_by_row(dtype, offsets, row):
    with pytest.raises(SerializationError, match=f"'k', row {row}: offsets .* 3 bytes"):
        Column((np.array(offsets, dtype), b"abc"), "k")


@pytest.mark.parametrize(
    "offsets",
    [
        np.array([0.0, 1.0]),
        np.array([0, 1], np.uint32),
        np.zeros((2, 2), np.int32),
        b"\0" * 8,
        np.array([], np.int32),
        memoryview(b"\0" * 8),
    ],
)
def test_offsets_of_another_type_are_refused(offsets):
    with pytest.raises(SerializationError):
        Column((offsets, memoryview(b"abc")), "k")


@pytest.mark.parametrize("data", ["abc", 7, None, memoryview(b"abcdef")[::2], object()])
def test_data_that_is_no_buffer_is_refused(data):
    with pytest.raises(SerializationError, match=r"'k'.*contiguous"):
        Column((np.array([0, 1], np.int32), data), "k")


# Ownership


class Exporter:
    """Passes an array on through the Arrow protocol and counts how often it is asked."""

    def __init__(self, array):
        self.array = array
        self.asked = 0

    def __arrow_c_array__(self, requested_schema=None):
        self.asked += 1
        return self.array.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pa.array(["x" * 1000] * 1000),
        lambda: pa.array(["x" * 1000] * 1000, pa.string_view()),
        lambda: pa.array([1] * 100_000, pa.int16()),
        lambda: pa.array(["x" * 1000, "y"] * 100).dictionary_encode(),
        lambda: pa.chunked_array([["x" * 1000] * 500, ["y" * 1000] * 500]),
        lambda: pa.array([[1, 2]] * 10_000, pa.list_(pa.float16())),
        lambda: pa.array([2**63] * 10_000, pa.uint64()),
    ],
    ids=["string", "view", "widened", "dictionary", "chunked", "refused type", "refused value"],
)
def test_arrow_memory_is_held_by_the_column_and_given_back_with_it(make):
    gc.collect()
    before = pa.total_allocated_bytes()
    obj = make()
    column = None
    try:
        column = Column(obj, "values")
        expected = obj.to_pylist()
    except SerializationError:
        pass
    del obj
    gc.collect()
    if column is not None:
        assert values(column) == expected
        copy = Column(column, "the same")
        del column
        gc.collect()
        assert values(copy) == expected
        del copy
    gc.collect()
    assert pa.total_allocated_bytes() == before


def test_foreign_memory_is_let_go_exactly_once():
    class Memory(bytearray):
        pass

    memory = Memory(b"abcdef")
    gone = weakref.ref(memory)
    array = pa.Array.from_buffers(pa.binary(2), 3, [None, pa.py_buffer(memory)])
    del memory
    column = Column(array, "values")
    del array
    gc.collect()
    assert gone() is not None and values(column) == [b"ab", b"cd", b"ef"]
    del column
    gc.collect()
    assert gone() is None


def test_an_array_that_was_exported_once_is_not_consumed_twice():
    class Once:
        def __init__(self, array):
            self.capsules = array.__arrow_c_array__()

        def __arrow_c_array__(self, requested_schema=None):
            return self.capsules

    once = Once(pa.array([1, 2]))
    first = Column(once, "values")
    with pytest.raises(SerializationError, match="already consumed"):
        Column(once, "values")
    assert values(first) == [1, 2]
    exporter = Exporter(pa.array([1, 2]))
    assert values(exporter) == [1, 2] and exporter.asked == 1


def test_capsules_of_something_else_are_refused():
    class Swapped:
        def __arrow_c_array__(self, requested_schema=None):
            return pa.array([1]).__arrow_c_array__()[::-1]

    with pytest.raises(ValueError):
        Column(Swapped(), "values")


def test_a_stream_that_fails_is_told():
    def batches():
        yield pa.record_batch({"a": [1]})
        raise RuntimeError("the file ended early")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    with pytest.raises(SerializationError, match="ended early"):
        Column(reader, "rows")


def test_numpy_memory_and_buffers_are_held_until_the_column_goes():
    keys = np.arange(1000, dtype=np.int64)
    references = sys.getrefcount(keys)
    column = Column(keys, "keys")
    assert sys.getrefcount(keys) == references + 1
    del column
    assert sys.getrefcount(keys) == references

    data = bytearray(b"abc")
    column = Column((np.array([0, 1, 3], np.int32), data), "keys")
    with pytest.raises(BufferError):
        data.extend(b"more")
    del column
    data.extend(b"more")


def test_a_column_is_made_only_once():
    column = Column([b"a"], "keys")
    with pytest.raises(SerializationError, match="already made"):
        column.__init__([b"b"], "keys")
    assert values(column) == [b"a"] and column.name == "keys"


def zeros(size):
    """Memory that takes none as long as nobody reads it."""
    return mmap.mmap(-1, size, prot=mmap.PROT_READ)


def test_a_row_that_a_32_bit_length_cannot_tell_is_refused():
    offsets, data = np.array([0, 1, 5 << 30], np.int64), zeros(5 << 30)
    with pytest.raises(EventTooLargeError, match=r"'values', row 1: .*split"):
        Column((offsets, data), "values")
    arrow = pa.Array.from_buffers(pa.large_binary(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    with pytest.raises(EventTooLargeError, match=r"'values', row 1: .*split"):
        Column(arrow, "values")
    assert len(Column((np.array([0, 3 << 30, 5 << 30]), data), "values")) == 2


# Maps of several columns


def unpacked(column):
    rows = _column_rows(column)
    assert all(form == TAGGED for form, _ in rows)
    return [msgpack.unpackb(content, timestamp=3) for _, content in rows]


def test_rows_are_maps_of_all_columns():
    table = pa.table(
        {
            "symbol": ["VOD", None, "BÄR"],
            "price": [1.5, None, -2.0],
            "size": pa.array([1, None, -70000], pa.int32()),
            "raw": [b"\0", None, b""],
            "open": [True, False, None],
            "nothing": pa.nulls(3),
            "at": pa.array([0, None, 1_700_000_000_123_456], pa.timestamp("us", "UTC")),
            "kind": pa.array(["a", "b", None]).dictionary_encode(),
        }
    )
    assert unpacked(encode_rows(table.column_names, table.columns)) == table.to_pylist()
    nested = encode_rows(["key", "row"], [[b"a", b"b", b"c"], encode_rows(table.column_names, table.columns)])
    assert unpacked(nested) == [
        {"key": key, "row": row} for key, row in zip([b"a", b"b", b"c"], table.to_pylist(), strict=True)
    ]


EDGES = sorted(
    {
        sign * (1 << bits) + delta
        for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62)
        for sign in (1, -1)
        for delta in (-1, 0, 1)
    }
    | {2**63 - 1, -(2**63)}
)


def test_the_bytes_are_those_of_msgpack():
    lengths = [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 65535, 65536]
    assert [row[1] for row in _column_rows(encode_rows(["n"], [np.array(EDGES)]))] == [
        msgpack.packb({"n": n}) for n in EDGES
    ]
    for kind in ("x", b"x"):
        column = encode_rows(
            ["a rather long name of a column", "v"], [np.arange(len(lengths)), [kind * n for n in lengths]]
        )
        assert [row[1] for row in _column_rows(column)] == [
            msgpack.packb({"a rather long name of a column": i, "v": kind * n}) for i, n in enumerate(lengths)
        ]


@pytest.mark.parametrize("count", [1, 15, 16, 300, 70_000])
def test_a_map_may_have_many_columns(count):
    names = [f"c{i}" for i in range(count)]
    column = Column(np.array([7]), "c")
    ((_, content),) = _column_rows(encode_rows(names, [column] * count))
    assert content == msgpack.packb(dict.fromkeys(names, 7))


def test_maps_of_no_rows():
    assert unpacked(encode_rows(["a", "b"], [[], pa.array([], pa.int64())])) == []


@pytest.mark.parametrize(
    "names, columns, words",
    [
        (["a", "b"], [[b"x"], [b"x", b"y"]], "'b' has 2 rows, column 'a' has 1"),
        (["a"], [], "1 names for 0 columns"),
        ([], [], "at least one column"),
        (["a", "a"], [[b"x"], [b"x"]], "twice"),
        ([1], [[b"x"]], "names are str"),
        (["\ud800"], [[b"x"]], "Unicode"),
        (["a"], [[1]], "'a', row 0"),
    ],
)
def test_columns_that_make_no_map_are_refused(names, columns, words):
    with pytest.raises(SerializationError, match=words):
        encode_rows(names, columns)


def test_a_map_over_the_limit_of_a_row_is_refused():
    large = Column((np.array([0, 3 << 30]), zeros(3 << 30)), "large")
    with pytest.raises(EventTooLargeError, match=r"row 0: .*split"):
        encode_rows(["a", "b"], [large, large])


# Anything at all


TYPED_VALUES = st.sampled_from(
    [
        (pa.binary(), st.binary(max_size=40)),
        (pa.large_binary(), st.binary(max_size=40)),
        (pa.binary_view(), st.binary(max_size=40)),
        (pa.string(), st.text(max_size=20)),
        (pa.large_string(), st.text(max_size=20)),
        (pa.string_view(), st.text(max_size=20)),
        (pa.int8(), st.integers(-128, 127)),
        (pa.uint16(), st.integers(0, 65535)),
        (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.uint64(), st.integers(0, 2**63 - 1)),
        (pa.bool_(), st.booleans()),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.float32(), st.floats(allow_nan=False, width=32)),
        (pa.binary(3), st.binary(min_size=3, max_size=3)),
        (
            pa.timestamp("us", "UTC"),
            st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2300, 1, 1), timezones=st.just(UTC)),
        ),
    ]
)


@st.composite
def arrow_columns(draw, rows):
    kind, values_of_kind = draw(TYPED_VALUES)
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 3))
    whole = draw(st.lists(st.none() | values_of_kind, min_size=before + rows + after, max_size=before + rows + after))
    column = pa.array(whole, kind)
    if draw(st.booleans()):
        column = column.dictionary_encode()
    column = column.slice(before, rows)
    if draw(st.booleans()):
        cut = draw(st.integers(0, rows))
        column = pa.chunked_array([column[:cut], column[cut:]])
    return column


@settings(max_examples=150, deadline=None, print_blob=True)
@given(st.data())
def test_any_columns_read_and_encode_as_arrow_and_msgpack_say(data):
    rows = data.draw(st.integers(0, 20))
    columns = data.draw(st.lists(arrow_columns(rows), min_size=1, max_size=4))
    lists = [column.to_pylist() for column in columns]
    assert [values(column) for column in columns] == lists
    names = data.draw(st.lists(st.text(max_size=20), min_size=len(columns), max_size=len(columns), unique=True))
    encoded = encode_rows(names, columns)
    assert unpacked(encoded) == [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
    assert [content for _, content in _column_rows(encoded)] == [
        msgpack.packb(dict(zip(names, row, strict=True)), datetime=True) for row in zip(*lists, strict=True)
    ]


@settings(max_examples=150, deadline=None, print_blob=True)
@given(st.lists(st.integers(-3, 30), min_size=1, max_size=8), st.binary(max_size=20), st.sampled_from(["i4", "i8"]))
def test_any_offsets_are_cut_as_slices_or_refused(offsets, data, dtype):
    pair = (np.array(offsets, dtype), data)
    inside = len(offsets) == 1 or (offsets[0] >= 0 and offsets == sorted(offsets) and offsets[-1] <= len(data))
    if inside:
        assert values(pair) == [data[start:end] for start, end in itertools.pairwise(offsets)]
    else:
        with pytest.raises(SerializationError, match="offsets"):
            Column(pair, "values")


# Operations

WORDS = [
    "create",
    "update",
    "put",
    "destroy",
    "delete",
    "remove",
    "CREATE",
    "Update",
    "pUT",
    "Destroy",
    "DELETE",
    "Remove",
]
CODES = bytes([0, 1, 1, 2, 2, 2] * 2)


@pytest.mark.parametrize(
    "words",
    [
        WORDS,
        tuple(WORDS),
        pa.array(WORDS),
        pa.array(WORDS, pa.large_string()),
        pa.array(WORDS, pa.string_view()),
        pa.array(WORDS).dictionary_encode(),
        pa.chunked_array([WORDS[:5], WORDS[5:]]),
        pa.array(["x", *WORDS])[1:],
        np.array(WORDS),
        np.array(WORDS, "S"),
        [word.encode() for word in WORDS],
        Column(WORDS, "operations"),
        np.frombuffer(CODES, np.uint8),
        CODES,
        bytearray(CODES),
        memoryview(CODES),
        np.repeat(np.frombuffer(CODES, np.uint8), 2)[::2],
    ],
    ids=lambda words: type(words).__name__,
)
def test_words_and_codes_become_codes(words):
    assert operation_codes(words, len(WORDS)) == CODES


def test_no_operations_are_updates():
    assert operation_codes(None, 3) == bytes([1, 1, 1])
    assert operation_codes(None, 0) == operation_codes([], 0) == operation_codes(pa.array([], pa.string()), 0) == b""


@pytest.mark.parametrize(
    "words, message",
    [
        (["put", "upsert"], "row 1: unknown operation 'upsert'"),
        (pa.array(["put", "updatE "]), "row 1: unknown operation 'updatE '"),
        (pa.array(["put", None]), "row 1: no operation"),
        (["put", ""], "row 1: unknown operation ''"),
        (["put", "\x10ut"], "row 1: unknown"),
        (["put", "x" * 100], "row 1: unknown operation 'x{40}' \\.\\.\\."),
        (np.array([0, 3], np.uint8), "row 1: code 3"),
        (["put"], "1 operations for 2 rows"),
        (np.array([0], np.uint8), "1 operations for 2 rows"),
        (np.array([0, 1]), "words or uint8"),
        (pa.array([True, False]), "words or uint8"),
        (["put", 1], "row 1"),
        ("put", "not a column"),
    ],
    ids=str,
)
def test_other_operations_are_refused_by_row_and_word(words, message):
    with pytest.raises(SerializationError, match=message):
        operation_codes(words, 2)


NESTED_LEAVES = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(allow_nan=False, width=32)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=40)),
    (pa.large_string(), st.text(max_size=40)),
    (pa.string_view(), st.text(max_size=40)),
    (pa.binary(), st.binary(max_size=40)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.null(), st.none()),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("s"), st.datetimes().map(lambda at: at.replace(microsecond=0))),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(days=-106_000_000), datetime.timedelta(days=106_000_000))),
    (pa.time64("us"), st.times()),
    (pa.time32("s"), st.times().map(lambda at: at.replace(microsecond=0))),
]
UNHASHABLE = (list, dict)


@st.composite
def decimal_types(draw):
    bits, most = draw(st.sampled_from([(pa.decimal128, 38), (pa.decimal256, 76)]))
    precision = draw(st.integers(1, most))
    scale = draw(st.integers(-5, precision))
    # Arrow multiplies a number out before it looks at the scale, so with a negative scale fewer digits fit.
    digits = min(precision, most + min(scale, 0))
    numbers = (
        st.integers(-(10**digits) + 1, 10**digits - 1)
        | st.integers(-9, 9)
        | st.integers(0, digits - 1).map(lambda n: 10**n)
    )
    return bits(precision, scale), numbers.map(lambda n: decimal.Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


NESTED = st.recursive(
    st.sampled_from(NESTED_LEAVES) | decimal_types(),
    lambda inner: st.one_of(
        inner.map(lambda of: (pa.list_(of[0]), st.lists(st.none() | of[1], max_size=4))),
        inner.map(lambda of: (pa.large_list(of[0]), st.lists(st.none() | of[1], max_size=20))),
        inner.map(lambda of: (pa.list_(of[0], 2), st.lists(st.none() | of[1], min_size=2, max_size=2))),
        st.lists(inner, max_size=3).map(
            lambda of: (
                pa.struct([(f"f{n}", kind) for n, (kind, _) in enumerate(of)]),
                st.fixed_dictionaries({f"f{n}": st.none() | each for n, (_, each) in enumerate(of)}),
            )
        ),
        st.tuples(st.sampled_from(NESTED_LEAVES[:-9]), inner).map(
            lambda of: (pa.map_(of[0][0], of[1][0]), st.dictionaries(of[0][1], st.none() | of[1][1], max_size=17))
        ),
    ),
    max_leaves=6,
)


def as_python(value, kind):
    """The value that pyarrow makes of a value, with dicts for maps."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {as_python(key, kind.key_type): as_python(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {field.name: as_python(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [as_python(each, kind.value_type) for each in value]
    # An instant of a column has no zone, as in a column of its own; pyarrow makes one with the name of its zone, or
    # not.
    return value.astimezone(UTC) if pa.types.is_timestamp(kind) and kind.tz else value


def as_arrow(value, kind):
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(as_arrow(key, kind.key_type), as_arrow(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_struct(kind):
        return {field.name: as_arrow(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [as_arrow(each, kind.value_type) for each in value]
    return value


@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.data())
def test_rows_of_any_nested_type_are_the_bytes_of_the_same_python_value(data):
    kind, elements = data.draw(NESTED)
    given_values = data.draw(st.lists(st.none() | elements, min_size=1, max_size=8))
    array = pa.array([as_arrow(value, kind) for value in given_values], kind)
    before, rows = data.draw(st.integers(0, len(array))), data.draw(st.integers(0, len(array)))
    column = array.slice(before, rows)
    python = [as_python(value, kind) for value in column.to_pylist()]
    assert python == given_values[before : before + rows]
    cut = data.draw(st.integers(0, len(column)))
    expected = [_core.encode_object(value) for value in python]
    if not pa.types.is_uint64(kind):  # As a column of its own it has no form for what is over 63 bits.
        assert _column_rows(Column(column, "c")) == expected
        assert _column_rows(Column(pa.chunked_array([column[:cut], column[cut:]]), "c")) == expected
    assert [_core.decode_object(*each) for each in expected] == python
    assert _column_rows(encode_rows(["number", "c"], [np.arange(len(column)), column])) == [
        _core.encode_object({"number": n, "c": value}) for n, value in enumerate(python)
    ]


def test_dictionaries_within_nested_types_are_looked_up():
    words = pa.array(["a", None, "b", "a"]).dictionary_encode()
    lists = pa.ListArray.from_arrays(pa.array([0, 3, 4], pa.int32()), words)
    assert values(lists) == [["a", None, "b"], ["a"]]
    outside = pa.DictionaryArray.from_buffers(
        words.type, 1, [None, pa.py_buffer(np.array([7], np.int32))], pa.array(["a"])
    )
    with pytest.raises(SerializationError, match="damaged"):
        encode_rows(["word"], [ThroughTheInterface(outside)])


# Damaged arrays


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("offsets", [[0, 5, 3, 10], [0, -5, 5, 10], [0, 1000, 5, 10], [10, 5, 3, 10]])
def test_arrow_offsets_that_do_not_ascend_are_refused(kind, offsets):
    number = "i8" if kind in (pa.large_binary(), pa.large_string()) else "i4"
    array = pa.Array.from_buffers(
        kind, 3, [None, pa.py_buffer(np.array(offsets, number).tobytes()), pa.py_buffer(b"d" * 10)]
    )
    with pytest.raises(SerializationError, match="damaged"):
        Column(array, "keys")
    with pytest.raises(SerializationError, match="damaged"):
        Column(pa.chunked_array([array, array]), "keys")
    with pytest.raises(SerializationError, match="damaged"):
        Column(ThroughTheInterface(array), "keys")


class ThroughTheInterface:
    """An array of another library than pyarrow, which we cannot ask whether it is whole."""

    def __init__(self, array):
        self.array = array

    def __arrow_c_array__(self, requested_schema=None):
        return self.array.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "array", [pa.array(np.zeros(1003, "i8")), pa.array([b"dd"] * 1003, pa.large_binary())], ids=["numbers", "offsets"]
)
def test_an_arrow_array_that_says_more_rows_than_its_buffers_hold_is_refused(array):
    """As a file that was made so brings it: pyarrow reads it and does not ask."""
    with pa.BufferOutputStream() as file:
        with pa.ipc.new_stream(file, pa.schema([("keys", array.type)])) as writer:
            writer.write_batch(pa.record_batch([array], ["keys"]))
        whole = file.getvalue().to_pybytes()
    right, wrong = (1003).to_bytes(8, "little"), (1 << 20).to_bytes(8, "little")
    assert whole.count(right) >= 2
    damaged = pa.ipc.open_stream(whole.replace(right, wrong)).read_all()["keys"]
    with pytest.raises(SerializationError, match="damaged"):
        Column(damaged, "keys")
    with pytest.raises(SerializationError, match="damaged"):
        Column(damaged.chunk(0), "keys")
