"""Keys and values: the tables of docs/types.md row by row, anything that can be made of them, and hostile bytes."""

from __future__ import annotations

import datetime as dt
import enum
import re
import socket
import struct
import threading
from collections import namedtuple
from datetime import date, datetime, time, timedelta, timezone  # noqa: F401
from decimal import Decimal  # noqa: F401 - the tables of docs/types.md use such names.
from uuid import UUID  # noqa: F401
from zoneinfo import ZoneInfo

import msgpack
import numpy
import pyarrow
import pytest
from hypothesis import given, settings, strategies as st

import pywan
from pywan import CacheListener, _core
from pywan._core import Column, _column_rows
from pywan.disk.salvage import salvage_store
from pywan.errors import BatchError, DiskError, SerializationError
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from support.log_format import BLOCK, LOGGED, seal_block
from support.records import make_batch, make_record
from support.tree import ROOT

BYTES, TEXT, TAGGED, NONE, INT, FLOAT, USER = range(7)
DEPTH = 64
KEY_FORM_AT = 24  # In a change of a region's log, in the high half of the byte.
PAGE = (ROOT / "docs" / "types.md").read_text()


class Level(enum.IntEnum):
    HIGH = 2


class Side(enum.Enum):
    BUY = "b"


class Word(str):
    pass


Point = namedtuple("Point", "x y")


class Trade:
    def __init__(self, price):
        self.price = price

    def __eq__(self, other):
        return type(other) is Trade and self.price == other.price

    def __hash__(self):
        return hash(self.price)


@pytest.fixture(autouse=True)
def serializers():
    pywan.register_serializer(
        Trade, lambda trade: str(trade.price).encode(), lambda data: Trade(int(data)), name="trade"
    )


def table(heading):
    """The cells of the rows below a heading of the page."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line.startswith("|")
    ]
    return [[cell.strip("| ") for cell in row] for row in rows[2:]]


def code(cell):
    import pandas  # noqa: F401 - The tables name it. Its import takes long, so only these tests have it.

    found = re.fullmatch(r"`(.*)`", cell)
    return eval(found[1]) if found else None


def same(one, other):
    return type(one) is type(other) and (one == other or one != one)  # noqa: PLR0124 - A NaN.


@pytest.mark.parametrize("row", table("What can be put"), ids=lambda row: row[1].strip("`")[:40])
def test_the_table_of_types(row):
    _, example, arrives, as_key = row
    obj = code(example)
    for is_key, promise, encode in ((False, arrives, _core.encode_object), (True, as_key, _core.encode_key_object)):
        if promise == "refused":
            with pytest.raises(SerializationError):
                encode(obj)
            continue
        expected = obj if promise.startswith("the same") else code(promise)
        form, data = encode(obj)
        found = _core.decode_object(form, data)
        assert same(found, expected), (is_key, found)
        assert encode(found) == encode(expected) == (form, data)
        if not is_key:  # The same within a container, where everything is tagged.
            (inner,) = _core.decode_object(*_core.encode_object([obj]))
            assert same(inner, expected)
    if arrives == "refused":
        with pytest.raises(SerializationError):
            _core.encode_object({"in": [obj]})


@pytest.mark.parametrize("row", table("Columns"), ids=lambda row: row[0].strip("`")[:40])
def test_the_table_of_columns(row):
    column, expected = map(code, row)
    (found,) = _column_rows(Column(column))
    assert found == _core.encode_object(expected)
    if expected is not None and not isinstance(expected, (list, dict)):
        assert found == _core.encode_key_object(expected)


def test_a_row_of_a_column_is_the_entry_of_a_single_put():
    region = _core.RegionCore("columns", _core.Clock(), site=1, member=1)
    nanoseconds = [1_700_000_000_000_000_000 + n for n in range(10)]
    region.put_columns(numpy.array(nanoseconds, "M8[ns]"), numpy.arange(10))
    for n, each in enumerate(nanoseconds):
        assert region.get(numpy.datetime64(each, "ns")) == n
        region.put(numpy.datetime64(each, "ns"), -n)
    assert len(region) == 10 and set(region.scan_keys()) == {
        numpy.datetime64(each, "ns") for each in nanoseconds[1:]
    } | {dt.datetime(2023, 11, 14, 22, 13, 20)}


# Anything

ZONES = st.sampled_from(
    [dt.UTC, timezone(timedelta(hours=-3, minutes=-30)), ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns")]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=300),
    st.datetimes(),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from(Side),
    st.builds(Trade, st.integers()),
    st.integers(-(2**63) + 1, 2**63 - 1).filter(lambda n: n % 1000).map(lambda n: numpy.datetime64(n, "ns")),
)
KEYS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=4), st.just(())),
    max_leaves=8,
)
VALUES = st.recursive(
    SCALARS | KEYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(KEYS, inner, max_size=4),
        st.tuples(inner),
        st.sets(SCALARS, max_size=4),
    ),
    max_leaves=20,
)


def identical(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            identical(a, b) and identical(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, datetime):
        return one == other and one.tzinfo == other.tzinfo and one.utcoffset() == other.utcoffset()
    return one == other


@settings(max_examples=400, deadline=None, print_blob=True)
@given(VALUES)
def test_what_is_accepted_comes_back_equal_and_of_the_same_type(value):
    form, data = _core.encode_object(value)
    found = _core.decode_object(form, data)
    assert identical(found, value), found
    assert _core.encode_object(found) == (form, data)


def in_utc(key):
    """A key as it comes back."""
    if isinstance(key, datetime) and key.tzinfo is not None:
        try:
            return key.astimezone(dt.UTC)
        except OverflowError:  # Before the year 1, or behind 9999, in UTC: an instant all the same.
            return None
    return type(key)(map(in_utc, key)) if isinstance(key, (tuple, frozenset)) else key


@settings(max_examples=400, deadline=None, print_blob=True)
@given(KEYS.filter(lambda key: key is not None), KEYS.filter(lambda key: key is not None))
def test_keys_are_the_same_if_and_only_if_their_bytes_are(one, other):
    try:
        encoded, others = _core.encode_key_object(one), _core.encode_key_object(other)
    except SerializationError:  # An infinite decimal somewhere.
        return
    found = _core.decode_object(*encoded)
    assert _core.encode_key_object(found) == encoded
    wanted = in_utc(one)
    assert wanted is None or "None" in repr(wanted) or identical(found, wanted)
    if encoded == others:
        assert one == other
    region = _core.RegionCore("keys", _core.Clock(), site=1, member=1)
    region.put(one, 1)
    region.put(other, 2)
    assert len(region) == (1 if encoded == others else 2) and region.get(other) == 2
    for key in region.scan_keys():
        assert key in region


def test_a_time_that_the_zone_leaves_out_and_one_that_it_has_twice_come_back():
    berlin = ZoneInfo("Europe/Berlin")
    for moment in (
        datetime(2024, 3, 31, 2, 30, tzinfo=berlin),
        datetime(2024, 10, 27, 2, 30, tzinfo=berlin),
        datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=1),
    ):
        found = _core.decode_object(*_core.encode_object(moment))
        assert (found, found.utcoffset(), found.fold) == (moment, moment.utcoffset(), moment.fold)


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
        datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
    ],
    ids=str,
)
def test_a_time_whose_instant_is_outside_the_calendar_comes_back(moment):
    arrived = _core.decode_object(*_core.encode_object(moment))
    assert arrived.replace(tzinfo=None) == moment.replace(tzinfo=None) and arrived.utcoffset() == moment.utcoffset()


def test_a_pytz_zone_arrives_by_its_name():
    import pandas

    moment = pandas.Timestamp("2024-07-01T12:00", tz="Europe/Berlin").to_pydatetime()
    found = _core.decode_object(*_core.encode_object(moment))
    assert found == moment and found.tzinfo is ZoneInfo("Europe/Berlin")


# Depth and size


def nested(depth, make):
    value = None
    for _ in range(depth):
        value = make(value)
    return value


CONTAINERS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "frozenset": lambda inner: frozenset({inner}),
    "dict": lambda inner: {"k": inner},
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_what_is_nested_deeper_than_the_limit_is_refused_at_the_put(make):
    region = _core.RegionCore("deep", _core.Clock(), site=1, member=1)
    region.put("k", nested(DEPTH, make))
    assert region.get("k") == nested(DEPTH, make)
    for depth in (DEPTH + 1, 200, 5_000):
        with pytest.raises(SerializationError, match="nested deeper than 64 containers"):
            region.put("k", nested(depth, make))
    with pytest.raises(SerializationError, match="holds itself"):
        endless = []
        endless.append(endless)
        region.put("k", endless)
    assert region.get("k") == nested(DEPTH, make)


def test_a_value_of_too_many_containers_is_refused_both_ways():
    with pytest.raises(SerializationError, match="more than 1048576 containers"):
        _core.encode_object([[]] * (1 << 20))
    with pytest.raises(pywan.EventTooLargeError):
        shared = []
        for _ in range(60):
            shared = [shared, "x" * 2_000_000] * 2
        _core.encode_object(shared)
    with pytest.raises(SerializationError, match="more than 1048576 containers"):
        _core.decode_object(TAGGED, b"\xdd" + struct.pack(">I", 2_000_000) + b"\x90" * 2_000_000)
    assert len(_core.decode_object(*_core.encode_object([[]] * 1_000_000))) == 1_000_000


def tagged(code, content):
    return msgpack.packb(msgpack.ExtType(code, content))


def deep_bytes(depth, code):
    """Tuples (2), frozensets (5) or sets (9) in one another, or lists (0) or maps (1), in msgpack."""
    data = b"\xc0"
    for _ in range(depth):
        data = b"\x91" + data if code == 0 else b"\x81\xa1k" + data if code == 1 else tagged(code, b"\x91" + data)
    return data


@pytest.mark.parametrize("code", [0, 1, 2, 5, 9], ids=["lists", "maps", "tuples", "frozensets", "sets"])
def test_bytes_that_are_nested_deeper_than_the_limit_are_not_decoded(code):
    """Also where a thread has little stack."""
    outcomes = []

    def look():
        for depth in (DEPTH + 1, 200, 3_000):
            outcomes.append(_core.show_object(TAGGED, deep_bytes(depth, code)))

    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(outcomes) == 3 and all(
        isinstance(each, pywan.Undecodable) and "nested deeper" in each.reason for each in outcomes
    )


# Hostile bytes


def mutations(data, draw):
    data = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(
                st.sampled_from([0, 1, 0x7F, 0x80, 0x90, 0xC1, 0xC7, 0xC9, 0xD9, 0xDD, 0xDF, 0xFF])
            )
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@settings(max_examples=800, deadline=None, print_blob=True)
@given(st.data())
def test_no_bytes_of_any_form_break_the_reading(data):
    form = data.draw(st.integers(0, 9))
    content = (
        data.draw(st.binary(max_size=60))
        if data.draw(st.booleans())
        else mutations(_core.encode_object(data.draw(VALUES))[1], data.draw)
    )
    shown = _core.show_object(form, content)
    assert isinstance(hash(shown) if isinstance(shown, pywan.Undecodable) else 0, int)
    assert _core.encode_object(pywan.Undecodable(form, content, ""))[1] == content
    if isinstance(shown, pywan.Undecodable):
        with pytest.raises(SerializationError):
            _core.decode_object(form, content)
    elif form == TAGGED:
        again = _core.show_object(*_core.encode_object(shown))
        assert type(again) is type(shown)
    try:
        key = _core.encode_key_object(pywan.Undecodable(form, content, ""))
    except SerializationError:
        return
    shown = _core.show_object(*key)
    assert hash(shown) is not None and _core.encode_key_object(shown) == key


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x02",
        b"\x91" * 100,
        tagged(2, b"\xdd\xff\xff\xff\xff"),
        tagged(13, b"\xdd\xff\xff\xff\xff"),
        tagged(5, b"\x91\x90"),
        b"\x81\x90\x01",
        b"",
        b"\xc1",
        b"\x01\x02",
    ],
)
def test_lengths_that_lie_take_no_memory(data):
    shown = _core.show_object(TAGGED, data)
    assert isinstance(shown, pywan.Undecodable) and shown.reason and (shown.form, shown.data) == (TAGGED, data)


@pytest.mark.parametrize(
    "data",
    [
        tagged(3, b"\xff"),
        tagged(4, b"123"),
        tagged(4, b"\xff" * 8),
        tagged(8, b""),
        tagged(8, struct.pack(">Iqi", 0, 2**62, 0)),
        tagged(10, b"no number"),
        tagged(8, struct.pack(">Iqi", 0, 0, 0) + b"../../etc/passwd"),
        tagged(8, struct.pack(">Iqi", 0, 0, 0) + b"No/Where"),
        tagged(8, struct.pack(">Iqi", 0, 0, 10**6)),
        tagged(11, b"short"),
        tagged(12, msgpack.packb(["absent_module:Side", "BUY"])),
        tagged(12, msgpack.packb(["os:system", "x"])),
        tagged(12, b"\x90"),
        tagged(12, msgpack.packb([1, 2])),
        tagged(13, msgpack.packb(["unknown", b""])),
        tagged(13, msgpack.packb([[], b""])),
        tagged(7, b"\xff" * 8),
        tagged(99, b"x"),
        b"\xa1\xff",
    ],
)
def test_what_is_whole_and_no_object_here_is_shown_in_its_place(data):
    """And goes on as it is, alone and within what it came in."""
    whole = b"\x93\x01" + data + b"\xa1z"
    one, part, last = _core.decode_object(TAGGED, whole)
    assert (
        (one, last) == (1, "z")
        and isinstance(part, pywan.Undecodable)
        and (part.form, part.data) == (TAGGED, data)
        and part.reason
    )
    assert _core.encode_object([1, part, "z"]) == (TAGGED, whole)
    assert _core.encode_object(part) == (TAGGED, data)


def test_a_name_from_outside_imports_nothing_and_runs_nothing():
    import sys

    for path in (
        "antigravity:Side",
        "this:Side",
        "enum:Enum.__class__",
        "os:environ",
        f"{__name__}:Word.upper",
        f"{__name__}:PAGE",
        "",
        ":",
        "a:b:c",
    ):
        assert isinstance(_core.show_object(TAGGED, tagged(12, msgpack.packb([path, "BUY"]))), pywan.Undecodable)
    assert "antigravity" not in sys.modules and "this" not in sys.modules
    assert _core.show_object(TAGGED, tagged(12, msgpack.packb([f"{__name__}:Side", "BUY"]))) is Side.BUY


class Unknown:
    """Nobody can carry its instances."""


@pytest.mark.parametrize(
    "value, part",
    [
        ({"items": [1, {}, (3, {"price": Unknown()})]}, "value['items'][2][1]['price']: "),
        ([{7: Unknown()}], "value[0][7]: "),
        ({Unknown(): 1}, "a key of value: "),
        ({"by": {(1, Unknown()): 1}}, "[1] in a key of value['by']: "),
        ({"in": {frozenset([Unknown()])}}, "an element of an element of value['in']: "),
        (["x" * 9, "\ud800"], "value[1]: the text "),
        ([[[[[[[[[[Unknown()]]]]]]]]]], "value[0][0][0][0][...][0][0][0][0]: "),
        (Unknown(), f"a {__name__}.Unknown cannot be carried"),
    ],
)
def test_an_error_says_which_part_of_a_value_cannot_be_carried(value, part):
    region = _core.RegionCore("parts", _core.Clock(), site=1, member=1)
    with pytest.raises(SerializationError) as raised:
        region.put("k", value)
    assert str(raised.value).startswith(part) and str(raised.value).endswith("(nothing was stored)")
    assert len(region) == 0


def test_an_error_says_which_part_of_a_key_cannot_be_carried():
    region = _core.RegionCore("keys", _core.Clock(), site=1, member=1)
    with pytest.raises(SerializationError, match=r"^key\[1\]\[0\]: a "):
        region.put((1, (Unknown(),)), 1)


@pytest.mark.parametrize(
    "key, words",
    [
        ([1, 2], "[1, 2] of type list cannot be a key: a list or dict cannot be a key or a part of one; use a tuple"),
        (
            (1, {2: 3}),
            "(1, {2: 3}) of type tuple cannot be a key: a list or dict cannot be a key or a part of one; use",
        ),
        ({1}, "{1} of type set cannot be a key: a set cannot be a key or a part of one; use a frozenset"),
        (None, "None cannot be a key; use bytes, str, int or another value"),
    ],
)
def test_an_error_says_what_was_given_as_a_key_and_what_can_be_one(key, words):
    region = _core.RegionCore("keys", _core.Clock(), site=1, member=1)
    with pytest.raises(SerializationError, match=f"^{re.escape(words)}"):
        region.put(key, 1)


# User's serializers


def test_an_exception_of_a_serializer_names_it_and_is_the_cause():
    class Failing:
        pass

    pywan.register_serializer(Failing, lambda obj: 1 // 0, lambda data: None, name="failing")
    region = _core.RegionCore("serializers", _core.Clock(), site=1, member=1)
    for value in (Failing(), [Failing()], {"k": (Failing(),)}):
        with pytest.raises(
            SerializationError, match="the serializer 'failing' failed in dumps: ZeroDivisionError"
        ) as raised:
            region.put("k", value)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
    pywan.register_serializer(Failing, lambda obj: "text", lambda data: None, name="failing")
    with pytest.raises(SerializationError, match="'failing' gave a str, not bytes"):
        region.put(Failing(), 1)
    with pytest.raises(pywan.ConfigurationError, match="carried without"):
        pywan.register_serializer(dict, str, eval)
    assert len(region) == 0


# Through user code


class Seen(CacheListener):
    def __init__(self):
        self.events = []

    def after_create(self, event):
        self.events.append(event)

    after_update = after_create


FAR = msgpack.packb(msgpack.Timestamp(569_000_000_000, 0))  # The year 20000.


@pytest.mark.parametrize("where", ["nowhere", "here", "there", "both"])
def test_keys_pass_user_code_as_the_bytes_that_they_are(network, where):
    """Nanoseconds that `datetime` cuts, an instant that it does not hold, a decimal and a class that is not registered
    anywhere.
    """
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    for site, name in ((ny, "here"), (ln, "there")):
        if where in (name, "both"):
            site.data.add_listener(Seen())
    moments = numpy.array([1_700_000_000_000_000_000 + n for n in range(10)], "M8[ns]")
    unknown = pywan.Undecodable(USER, msgpack.packb(["nobody's", b"x"]), "")
    far = pywan.Undecodable(TAGGED, FAR, "")
    ny.data.put_columns(moments, numpy.arange(10))
    ny.data.put_columns(pyarrow.array([569_000_000_000], pyarrow.timestamp("s", "UTC")), [b"far"])
    ny.data[unknown] = far
    network.settle()
    assert len(ny.data) == len(ln.data) == 12
    for site in (ny, ln):
        assert (
            {site.data[each] for each in moments} == set(range(10))
            and site.data[far] == b"far"
            and site.data[unknown] == msgpack.Timestamp(569_000_000_000, 0)
        )
        assert len(list(site.data)) == len(list(site.data.items())) == len(dict(site.data)) == 12
        assert all(key in site.data for key in site.data)
    network.assert_equal()


@pytest.mark.parametrize("with_listener", [False, True])
def test_text_that_is_not_utf8_is_no_key_anywhere_and_passes_as_a_value(network, with_listener):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    seen = Seen()
    if with_listener:
        ny.data.add_listener(seen)
    broken = pyarrow.Array.from_buffers(
        pyarrow.string(), 2, [None, pyarrow.py_buffer(struct.pack("<iii", 0, 2, 4)), pyarrow.py_buffer(b"ok\xff\xfe")]
    )
    with pytest.raises(BatchError) as raised:
        ny.data.put_columns(broken, [b"1", b"2"])
    assert [(row, "not UTF-8" in why) for row, why in raised.value.failures] == [(1, True)]
    ny.data.put_columns(["a", "b"], broken)
    network.settle()
    for site in (ny, ln):
        assert sorted(site.data) == ["a", "b", "ok"]
        with pytest.raises(SerializationError, match="not UTF-8"):
            site.data["b"]
        value = dict(site.data.items())["b"]
        assert isinstance(value, pywan.Undecodable) and value.data == b"\xff\xfe"
        core_of(site.data).show("b")
    ny.data["c"] = dict(ny.data.items())["b"]
    network.settle()
    assert core_of(ln.data).show("c").data == b"\xff\xfe"
    assert not with_listener or [type(event.new_value) for event in seen.events] == [
        bytes,
        str,
        pywan.Undecodable,
        pywan.Undecodable,
    ]


@pytest.mark.parametrize("with_listener", [False, True])
def test_what_takes_a_value_out_gives_it_even_if_it_cannot_be_shown(network, with_listener):
    """The entry is gone then: an error would be all that is left of it."""
    data = network.site("ny").region()
    if with_listener:
        data.add_listener(Seen())
    unknown = pywan.Undecodable(USER, msgpack.packb(["nobody's", b"x"]), "")
    data["k"] = unknown
    assert data.replace("k", unknown, unknown) and data.pop("k") == unknown and "k" not in data
    data[unknown] = unknown
    assert data.popitem() == (unknown, unknown) and len(data) == 0


def test_a_deep_value_from_the_network_reaches_a_listener_as_what_cannot_be_shown(network):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    seen = Seen()
    ln.data.add_listener(seen)
    deep = pywan.Undecodable(TAGGED, deep_bytes(1_000, 2), "")
    ny.data.put("k", deep, callback_argument=deep)
    network.settle()
    (event,) = seen.events
    assert event.new_value == event.callback_argument == deep and core_of(ln.data).show("k") == deep
    with pytest.raises(SerializationError, match="nested deeper"):
        ln.data["k"]


# Keys that are none, where bytes come in

POISON = {
    "text that is not UTF-8": (TEXT, b"\xff"),
    "a number of three bytes": (INT, b"abc"),
    "nothing of no object": (TAGGED, b"\xc1"),
    "none": (NONE, b""),
    "a list": (TAGGED, b"\x90"),
    "a tuple in another way": (TAGGED, b"\xc7\x01\x02\x90"),
    "a user's without a name": (USER, b"\x01"),
    "tuples in tuples": (TAGGED, deep_bytes(200, 2)),
}
poisons = pytest.mark.parametrize(("form", "key"), POISON.values(), ids=POISON)


def receiver(region):
    return _core.ReceiverSession(_core.SourceMemory(1), _core.ReceiverCounts(), {region.name: region}.get, lambda *_: 0)


@poisons
def test_a_receiver_refuses_a_record_whose_key_is_none(form, key):
    region = _core.RegionCore("poisoned", _core.Clock(), site=2, member=1)
    good = make_record(b"good")
    session = receiver(region)
    bad = make_record(key, key_form=form)
    payload, count = make_batch((0, 1, 2, 0, [good, bad]))
    with pytest.raises(pywan.PywanError):
        session.receive_data(
            _core.pack_frame(3, region.name.encode(), 1) + _core.pack_frame(_core.FRAME_BATCH, payload, 0, count)
        )
    assert list(region.scan_keys()) == []
    with pytest.raises(pywan.PywanError, match=r"key of .* bytes, written as .*, is refused: "):
        _core.EventQueue("poisoned").append_record(bad)


@poisons
def test_a_clients_rows_are_refused_with_a_key_that_is_none(form, key):
    payload, count = make_batch((0, 1, 1, 0, [make_record(key, key_form=form)]))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(
            _core.pack_frame(_core.FRAME_BATCH, payload, 0, count) + _core.pack_frame(_core.FRAME_COMMIT, b"", 1)
        )
        assert ", is refused: " in _core.RowStage(None).run(ours, 5_000)


@poisons
def test_no_call_takes_a_key_that_is_none(form, key):
    region = _core.RegionCore("calls", _core.Clock(), site=2, member=1)
    for call in (lambda bad: region.put(bad, 1), lambda bad: region.get(bad), lambda bad: bad in region):
        with pytest.raises(SerializationError):
            call(pywan.Undecodable(form, key, ""))
    assert len(region) == 0


@poisons
def test_a_stored_key_that_is_none_is_damage_and_salvage_saves_what_is_around_it(tmp_path, network, form, key):
    """Written by the core's own log, with the key put in behind its back: the checksums fit."""
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path)
    data = ny.region(type="PARTITION_PERSISTENT")
    stand_in = b"#" * len(key)
    data.put_columns([b"before", stand_in or b"#", b"behind"], [b"1", b"2", b"3"])
    ny.cache.close()
    store = tmp_path / "disk-store-DEFAULT"
    forge(store / "region-data", stand_in or b"#", form, key)
    ny.start_member(dir=tmp_path)
    with pytest.raises(DiskError, match=r"key of .* bytes, written as .*, is refused: "):
        ny.region(type="PARTITION_PERSISTENT")
    ny.cache.close()
    found = {each["log"]: each for each in salvage_store(store, tmp_path / "saved" / "disk-store-DEFAULT")}[
        "region-data"
    ]
    assert found["saved"] == 2 and ", is refused: " in found["damage"]
    ny.start_member(dir=tmp_path / "saved")
    assert sorted(ny.region(type="PARTITION_PERSISTENT").keys()) == [b"before", b"behind"]


def forge(folder, stand_in, form, key):
    """Another key in the place of one that was stored with the value b"2", and the checksum of the block around it made
    to hold.
    """
    for file in folder.glob("*.seg"):
        data = bytearray(file.read_bytes())
        first = data.find(b"PWBK")  # The head of the segment has random bytes.
        at = data.find(stand_in + b"2", first + BLOCK.size) if first >= 0 else -1
        if at < 0:
            continue
        data[at : at + len(key)] = key
        data[at - LOGGED.size + KEY_FORM_AT] = data[at - LOGGED.size + KEY_FORM_AT] & 15 | form << 4
        block = data.rfind(b"PWBK", 0, at)
        seal_block(data, block)
        file.write_bytes(data)
        return
    raise AssertionError("it is not there")


# One event, one id


class Ids(pywan.GatewayEventFilter):
    def __init__(self):
        self.seen = {"before_enqueue": [], "before_transmit": [], "after_acknowledgement": []}

    def before_enqueue(self, event):
        self.seen["before_enqueue"].append((event.key, event.event_id))
        return True

    def before_transmit(self, event):
        self.seen["before_transmit"].append((event.key, event.event_id))
        return True

    def after_acknowledgement(self, event):
        self.seen["after_acknowledgement"].append((event.key, event.event_id))


def test_an_event_has_one_id_at_every_place_where_a_filter_sees_it(network):
    ny, _ln = network.add("ny ln")
    ids = Ids()
    network.connect([("ny", "ln")], gateway_event_filters=(ids,))
    ny.data.put_all({n: n for n in range(10)})
    ny.data["single"] = 1
    ny.data.put_columns(["a", "b"], [b"1", b"2"])
    del ny.data["single"]
    network.settle()
    eventually(lambda: len(ids.seen["after_acknowledgement"]) == 14)
    assert (
        sorted(ids.seen["before_enqueue"], key=str)
        == sorted(ids.seen["before_transmit"], key=str)
        == sorted(ids.seen["after_acknowledgement"], key=str)
    )
    assert len({each for _, each in ids.seen["before_enqueue"]}) == 14
