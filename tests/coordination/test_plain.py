"""The vocabulary of checks: what a field may hold stands beside it, and nothing else is taken."""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgpack
import pytest

from pywan.coordination import plain
from pywan.coordination.plain import Host, Most, Name, Range, Since, Text
from pywan.errors import ProtocolError


class Point(NamedTuple):
    x: Annotated[int, Range(0, 9)]
    y: Annotated[int, Range(-1, 9)]


@dataclass(frozen=True)
class Shape:
    name: Annotated[str, Name()]
    about: Annotated[str, Text(5)]
    host: Annotated[str, Host()]
    points: Annotated[tuple[Point, ...], Most(2, each_once=True)]
    is_closed: bool
    centre: Point | None = None

    def problem(self) -> str:
        return "its centre is one of its points" if self.centre in self.points else ""


GOOD = ["s", "about", "127.0.0.1", [[1, 2], [3, -1]], True, None]


def test_a_record_is_read_from_the_list_of_its_fields():
    assert plain.reader(Shape)(GOOD) == Shape("s", "about", "127.0.0.1", (Point(1, 2), Point(3, -1)), True)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (0, "", "name of shape is a name"),
        (0, b"s", "name of shape"),
        (1, "sixsix", "about of shape is a text of at most 5"),
        (1, "\x1b", "about of shape"),
        (2, "a b", "host of shape is a host"),
        (3, [[1, 2], [1, 2]], "points of shape: .* is there twice"),
        (3, [[1, 2], [1, 3], [1, 4]], "points of shape is a list of at most 2"),
        (3, {}, "points of shape"),
        (3, [[1, 10]], "y of point is a whole number from -1 to 9, and not 10"),
        (3, [[True, 1]], "x of point"),
        (3, [[1.0, 1]], "x of point"),
        (3, [[float("inf"), 1]], "x of point"),
        (3, [[float("nan"), 1]], "x of point"),
        (3, [[1]], "a point has 2 parts"),
        (3, [[1, 2, 3]], "a point has 2 parts"),
        (4, 1, "is_closed of shape is true or false"),
        (5, [1, 2], "a shape: its centre is one of its points"),
    ],
)
def test_what_is_out_of_its_range_is_refused_in_words_that_name_the_field(field, value, words):
    told = list(GOOD)
    told[field] = value
    with pytest.raises(ProtocolError, match=words):
        plain.reader(Shape)(told)


@pytest.mark.parametrize("value", [None, {}, "abcdef", GOOD[:-1], [], tuple(GOOD)])
def test_a_record_has_all_its_fields(value):
    with pytest.raises(ProtocolError, match="a shape has at least 6 parts"):
        plain.reader(Shape)(value)


@dataclass(frozen=True)
class LaterShape(Shape):
    """As a later version has it."""

    weight: Annotated[int, Range(1, 9), Since(2)] = 3
    is_round: Annotated[bool, Since(2)] = False


def test_versions_read_each_others_records_whatever_the_later_one_has_added():
    assert plain.reader(Shape)([*GOOD, 5, True]) == plain.reader(Shape)(GOOD)
    assert plain.reader(LaterShape)(GOOD).weight == 3
    assert plain.reader(LaterShape)([*GOOD, 5, True, "of a still later one"]).is_round
    with pytest.raises(ProtocolError, match="weight of later shape is a whole number"):
        plain.reader(LaterShape)([*GOOD, 10])
    with pytest.raises(ProtocolError, match="is_round of later shape is true or false"):
        plain.reader(LaterShape)([*GOOD, 5, 1])


def test_a_field_that_says_no_range_is_our_own_mistake():
    class Careless(NamedTuple):
        x: int

    with pytest.raises(TypeError, match="says no range"):
        plain.reader(Annotated[tuple[int, ...], Most(2)], "careless")


def test_parts_that_were_packed_come_back_one_at_a_time():
    parts = [[1, "a"], [], [[None]]]
    assert list(plain.unpack(plain.pack(parts))) == parts


def test_a_short_message_does_not_become_a_large_one():
    bomb = zlib.compress(b"\xdd\x03\x00\x00\x00" + b"\x90" * (48 << 20), 9)
    assert len(bomb) < 64 << 10
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="a part of packed values has more than"):
        list(plain.unpack(bomb))
    assert tracemalloc.get_traced_memory()[1] < 8 * plain.PART_MAX_BYTES
    tracemalloc.stop()


def test_a_part_has_a_limited_number_of_values():
    count = plain.PART_MAX_VALUES + 1
    with pytest.raises(ProtocolError, match="a part of packed values has more than"):
        list(plain.unpack(zlib.compress(b"\xdd" + count.to_bytes(4) + b"\x90" * count)))


def test_parts_of_all_lengths_come_back_wherever_the_bytes_between_them_are_cut():
    around = plain.CHUNK_BYTES
    parts = [["x" * length, n] for n, length in enumerate((0, 1, around - 9, around, 2 * around, 7, 1 << 20, 3))]
    assert list(plain.unpack(plain.pack(parts * 3))) == parts * 3


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        b"",
        b"\x00",
        zlib.compress(msgpack.packb([1]))[:-3],
        zlib.compress(b"\xc1"),
        zlib.compress(b"\x92\x01"),
        zlib.compress(b"\x91" * 5000 + b"\x90"),
        zlib.compress((b"\xc6\x00\x10\x00\x00" + bytes(1 << 20)) * ((plain.PACKED_MAX_BYTES >> 20) + 1), 1),
    ],
)
def test_packed_values_that_cannot_be_read_are_refused(data):
    with pytest.raises(ProtocolError, match="packed values"):
        list(plain.unpack(data))
