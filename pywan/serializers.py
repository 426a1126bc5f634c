"""Owns the registry of user serializers, and how other objects than containers, text, numbers and bytes are tagged.

docs/types.md is the table for users. docs/wire_format.md describes the bytes.
"""

from __future__ import annotations

import datetime
import enum
import math
import struct
import sys
import threading
import uuid
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack
import numpy

from pywan import _core
from pywan._core import Undecodable as Undecodable
from pywan.errors import ConfigurationError, SerializationError

_INSTANT, _DATE, _NAIVE, _DURATION, _TIME, _ZONED, _DECIMAL, _UUID, _ENUM, _USER = -1, 3, 4, 6, 7, 8, 10, 11, 12, 13
_DAYS_TO_1970 = datetime.date(1970, 1, 1).toordinal()
_NAIVE_1970 = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)
_BILLION = 10**9
# Nanoseconds, seconds since 1970, seconds east of UTC. The zone's name follows.
_ZONED_HEAD = struct.Struct(">Iqi")

# These are carried without a serializer, so a serializer for one of them would never be called.
_PLAIN = frozenset(
    {
        bytes,
        str,
        int,
        float,
        bool,
        type(None),
        list,
        dict,
        tuple,
        set,
        frozenset,
        datetime.datetime,
        datetime.date,
        _core.Undecodable,
        _core.Encoded,
    }
)

_TAGGED = 2  # The form of objects that are no bytes, text, number or None (csrc/record/wan_form.h).
_lock = threading.Lock()
_by_type: dict[type, tuple[str, Callable[[Any], bytes]]] = {}
_by_name: dict[str, Callable[[bytes], Any]] = {}


def register_serializer(
    cls: type, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any], *, name: str | None = None
) -> None:
    """Makes pywan carry instances of `cls` (of exactly this class) as keys, as values, and within containers.

    Both sites must register the same name.

    Args:
        cls: The class.
        dumps: Turns an instance into bytes.
        loads: Turns these bytes back into an instance.
        name: The name that travels with the bytes. By default it is `module:qualname` of the class.

    Raises:
        ConfigurationError: An argument is of the wrong kind, or pywan carries instances of `cls` already.
    """
    if not isinstance(cls, type) or not callable(dumps) or not callable(loads):
        raise ConfigurationError(
            f"register_serializer takes a class and two callables, not {cls!r}, {dumps!r}, {loads!r}"
        )
    if cls in _PLAIN:
        raise ConfigurationError(
            f"register_serializer: every {cls.__qualname__} is carried without; use a class of your own"
        )
    name = name or f"{cls.__module__}:{cls.__qualname__}"
    with _lock:
        _by_type[cls] = (name, dumps)
        _by_name[name] = loads


def decode_tagged(data: bytes) -> Any:
    """Returns the object that the bytes of a tagged form hold, as columns of keys and values have them that
    `process_arrow` gets.

    Args:
        data: Those bytes.

    Returns:
        The object. An `Undecodable` with the reason, if there is none in this process.

    Raises:
        TypeError: `data` is not bytes.
    """
    return _core.show_object(_TAGGED, data)


# Writing. An object that equals a plain object is written as the plain one, so that both are the same key.


def _tag(obj: Any, is_key: bool) -> tuple[int | None, Any]:
    """Returns the tag and the content for an object, or None and a plain object that equals it."""
    user = _by_type.get(type(obj))
    if user is not None:
        return _USER, [user[0], _dumped(obj, *user)]
    for base, plain in _PLAIN_OF:
        if isinstance(obj, base):
            return None, plain(obj)
    for base, tag in _TAG_OF:
        if isinstance(obj, base):
            return tag(obj, is_key)
    raise _cannot(obj, "pass bytes, or pywan.register_serializer for its class")


def _cannot(obj: Any, remedy: str) -> SerializationError:
    return SerializationError(
        f"a {type(obj).__module__}.{type(obj).__qualname__} cannot be carried; {remedy} (nothing was stored)"
    )


def _dumped(obj: Any, name: str, dumps: Callable[[Any], bytes]) -> bytes:
    """Returns the bytes that a user's serializer makes of an object."""
    try:
        data = dumps(obj)
    except Exception as error:
        raise SerializationError(
            f"the serializer {name!r} failed in dumps: {type(error).__name__}: {error} (nothing was stored)"
        ) from error
    if not isinstance(data, bytes):
        raise SerializationError(
            f"the serializer {name!r} gave a {type(data).__name__}, not bytes (nothing was stored)"
        )
    return bytes(data)


def _float_of(number: Any) -> float:
    """Returns a numpy float as a float. SerializationError if it has more digits."""
    plain = float(number)
    if plain != number and not math.isnan(plain):
        raise _cannot(number, f"it has more digits than a float, as {number!r} does; pass str or Decimal")
    return plain


_PLAIN_OF: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, lambda data: bytes.__getitem__(data, slice(None))),
    ((bytearray, memoryview), bytes),
    (numpy.bool_, bool),
    (numpy.floating, _float_of),
)


def _tag_datetime(moment: datetime.datetime, is_key: bool) -> tuple[int, Any]:
    if moment != moment:  # noqa: PLR0124 - So is NaT, and nothing else.
        raise _cannot(moment, "NaT is no time; pass None as a value")
    wall = datetime.datetime(
        moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second, moment.microsecond
    )
    seconds, rest = divmod(wall - _NAIVE_1970, _SECOND)
    nanoseconds = rest.microseconds * 1000 + getattr(moment, "nanosecond", 0)  # pandas' times have nanoseconds.
    offset = moment.utcoffset()
    if offset is None:
        return _NAIVE, (seconds, nanoseconds)
    east, fraction = divmod(offset, _SECOND)
    if fraction:
        raise SerializationError(
            f"{moment!r} is a fraction of a second away from UTC, which cannot be carried; use whole seconds"
            " (nothing was stored)"
        )
    if is_key or nanoseconds % 1000 or (isinstance(moment.tzinfo, datetime.timezone) and not east):
        return _INSTANT, (seconds - east, nanoseconds)
    return _ZONED, _ZONED_HEAD.pack(nanoseconds, seconds - east, east) + _zone_name(moment).encode()


def _zone_name(moment: datetime.datetime) -> str:
    """Returns the name by which other processes find the zone. "": the zone's distance from UTC must do."""
    zone = moment.tzinfo
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # The attribute of zoneinfo, or of pytz.
    if not isinstance(name, str):
        return ""
    try:
        zone_by_name = zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # There is no such zone, the name is broken, or its file is no zone.
        return ""
    if isinstance(zone, zoneinfo.ZoneInfo) or moment.replace(tzinfo=zone_by_name).utcoffset() == moment.utcoffset():
        return name
    return ""


def _tag_date(day: datetime.date, is_key: bool) -> tuple[int, Any]:
    return _DATE, struct.pack(">i", day.toordinal() - _DAYS_TO_1970)


def _tag_timedelta(duration: datetime.timedelta, is_key: bool) -> tuple[int, Any]:
    return _DURATION, (
        duration.days * 86400 + duration.seconds,
        duration.microseconds * 1000 + getattr(duration, "nanoseconds", 0),
    )


def _tag_time(time: datetime.time, is_key: bool) -> tuple[int, Any]:
    if time.tzinfo is not None:
        raise _cannot(
            time,
            "a time of day with a zone means nothing without a date; pass a datetime, or the time without its zone",
        )
    return _TIME, struct.pack(
        ">Q", (time.hour * 3600 + time.minute * 60 + time.second) * _BILLION + time.microsecond * 1000
    )


def _tag_decimal(number: Decimal, is_key: bool) -> tuple[int, Any]:
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):  # The number is infinite, or not a number.
        return _DECIMAL, str(number).encode()
    return _DECIMAL, f"{'-' * sign}{''.join(map(str, digits))}E{exponent}".encode()


def _tag_enum(member: enum.Enum, is_key: bool) -> tuple[int, Any]:
    cls = type(member)
    path = f"{cls.__module__}:{cls.__qualname__}"
    if member.name is None or cls.__members__.get(member.name) is not member:
        raise _cannot(member, f"{member!r} has no name of its own; pass its value")
    if _imported(path) is not cls:
        raise _cannot(
            member,
            "its class is not found by that name, so no other process could; define it at the top of a module, or"
            " pass its value",
        )
    return _ENUM, [path, member.name]


def _tag_numpy_time(moment: Any, is_key: bool) -> tuple[int | None, Any]:
    is_duration = isinstance(moment, numpy.timedelta64)
    unit, count = numpy.datetime_data(moment.dtype)
    if numpy.isnat(moment):
        raise _cannot(moment, "NaT is no time; pass None as a value")
    if is_duration and unit in ("Y", "M", "generic"):
        raise _cannot(moment, f"{moment!r} is no number of seconds; cast it to a unit of days or less")
    if not is_duration and unit in ("Y", "M", "W", "D"):
        return _DATE, struct.pack(">i", _days(moment))
    ticks = int(moment.view("i8")) * count
    a_second = {"W": 604800, "D": 86400, "h": 3600, "m": 60, "s": 1}.get(unit)
    if a_second:
        parts = ticks * a_second, 0
    else:
        per_second = {"ms": 10**3, "us": 10**6, "ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}[unit]
        seconds, rest = divmod(ticks, per_second)
        nanoseconds, finer = divmod(rest * _BILLION, per_second)
        if finer:
            raise _cannot(moment, f"{moment!r} is finer than nanoseconds; round it")
        parts = seconds, nanoseconds
    return (_DURATION if is_duration else _NAIVE), parts


def _days(moment: Any) -> int:
    days = int(moment.astype("M8[D]").view("i8"))
    if not -(1 << 31) <= days < 1 << 31:
        raise _cannot(moment, f"{moment!r} is too far away; pass str")
    return days


_TAG_OF: tuple[tuple[Any, Callable[[Any, bool], tuple[int | None, Any]]], ...] = (
    ((numpy.datetime64, numpy.timedelta64), _tag_numpy_time),
    (numpy.integer, lambda number, is_key: (None, int(number))),
    (datetime.datetime, _tag_datetime),
    (datetime.date, _tag_date),
    (datetime.timedelta, _tag_timedelta),
    (datetime.time, _tag_time),
    (Decimal, _tag_decimal),
    (uuid.UUID, lambda identity, is_key: (_UUID, identity.bytes)),
    (enum.Enum, _tag_enum),
    (msgpack.Timestamp, lambda instant, is_key: (_INSTANT, (instant.seconds, instant.nanoseconds))),
)


# Reading. If one of these raises an exception, the core makes an Undecodable of the object.


def _untag(tag: int, content: Any) -> Any:
    """Returns the object for a tag and its content. The core calls it."""
    read = _READ.get(tag)
    if read is None:
        raise SerializationError(f"extension {tag} of the tagged form is not known to this version")
    return read(content)


def _load(content: list[Any]) -> Any:
    """Returns the object that a user's serializer makes of its bytes."""
    name, data = content
    loads = _by_name.get(name) if isinstance(name, str) else None
    if loads is None:
        raise SerializationError(
            f"no serializer named {name!r} here: call pywan.register_serializer as at the other site"
        )
    try:
        return loads(data)
    except Exception as error:
        raise SerializationError(f"the serializer {name!r} failed in loads: {type(error).__name__}: {error}") from error


def _imported(path: str) -> Any:
    """Returns the class of that module:qualname, if its module is imported already.

    It runs no code of anybody: it imports nothing, and calls no user's attribute access.
    """
    module, _, names = path.partition(":")
    named: Any = sys.modules.get(module)
    for name in names.split("."):
        named = vars(named).get(name) if isinstance(named, (type, type(sys))) else None
    return named


def _enum_member(content: list[Any]) -> enum.Enum:
    path, name = content
    cls = _imported(path)
    if not isinstance(cls, enum.EnumMeta):
        raise SerializationError(f"no Enum {path!r} is imported in this process; import its module")
    member = type.__getattribute__(cls, "_member_map_").get(name)
    if not isinstance(member, enum.Enum):
        raise SerializationError(f"the Enum {path!r} has no member {name!r} here")
    return member


def _zoned(content: bytes) -> datetime.datetime:
    nanoseconds, seconds, east = _ZONED_HEAD.unpack_from(content)
    if nanoseconds % 1000 or nanoseconds >= _BILLION:
        raise ValueError(f"{nanoseconds} nanoseconds")
    name = content[_ZONED_HEAD.size :].decode()
    offset = datetime.timedelta(seconds=east)
    # The local time is computed directly: the instant itself may be outside the years 1 to 9999.
    wall = _NAIVE_1970 + datetime.timedelta(seconds=seconds + east, microseconds=nanoseconds // 1000)
    if not name:
        return wall.replace(tzinfo=datetime.timezone(offset))
    try:
        zone = zoneinfo.ZoneInfo(name)
    except Exception as error:
        raise SerializationError(f"the zone {name!r} is not known here; install the package tzdata") from error
    for fold in (0, 1):
        moment = wall.replace(tzinfo=zone, fold=fold)
        if moment.utcoffset() == offset:
            return moment
    # The zone's rules have changed since. The instant stays the same.
    return (wall - offset).replace(tzinfo=datetime.UTC).astimezone(zone)


def _time(content: bytes) -> datetime.time:
    microseconds, finer = divmod(struct.unpack(">Q", content)[0], 1000)
    seconds, microseconds = divmod(microseconds, 10**6)
    if finer:
        raise ValueError("a time of day with nanoseconds")
    return datetime.time(seconds // 3600, seconds // 60 % 60, seconds % 60, microseconds)


def _far_moment(kind: str) -> Callable[[tuple[int, int]], Any]:
    """Returns a reader for times that Python's own class cannot hold. It gives numpy's, in nanoseconds or in
    seconds."""

    def read(content: tuple[int, int]) -> Any:
        seconds, nanoseconds = content
        whole = seconds * _BILLION + nanoseconds
        if -(1 << 63) < whole < 1 << 63:
            return numpy.array(whole, "i8").view(f"{kind}[ns]")[()]
        if nanoseconds or seconds == -(1 << 63):
            raise ValueError(f"{seconds} seconds and {nanoseconds} nanoseconds are too far away for numpy")
        return numpy.array(seconds, "i8").view(f"{kind}[s]")[()]

    return read


_READ: dict[int, Callable[[Any], Any]] = {
    _INSTANT: lambda content: msgpack.Timestamp(*content),
    _NAIVE: _far_moment("M8"),
    _DURATION: _far_moment("m8"),
    _DATE: lambda days: numpy.datetime64(days, "D"),
    _TIME: _time,
    _ZONED: _zoned,
    _DECIMAL: lambda content: Decimal(content.decode("ascii")),
    _UUID: lambda content: uuid.UUID(bytes=content),
    _ENUM: _enum_member,
    _USER: _load,
}


_core.set_codec_hooks(_tag, _untag)
