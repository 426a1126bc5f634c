"""Reads values from their plain form, and refuses values out of range. The range of a field is declared beside the
field.

A class with values from another process, or from a disk, declares in its annotations the range of each field:

    port: Annotated[int, Range(1, 65535)]
    before: Annotated[tuple[MemberId, ...], Most(16, each_once=True)]

`reader(MemberProfile)` makes a reading function from these annotations. The function takes a list with the plain values
of the fields in order, and returns a profile, or raises ProtocolError with the name of the field. So no other code
meets a value of a wrong type or out of range. A method `problem` of the class checks rules over several fields: the
method returns the error in words, or "".

A record of more than two fields may be longer than this version knows, or lack fields declared `Since` a version later
than the writer's version (pywan.base.versions).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgpack

from pywan._core import measure_message
from pywan.base.names import MAX_NAME_CHARACTERS, is_host, is_name, is_printable, quoted
from pywan.errors import ProtocolError

Read = Callable[[Any], Any]
T = TypeVar("T")

PACKED_MAX_BYTES = 64 << 20  # The limit for packed parts, unpacked.
CHUNK_BYTES = 64 << 10  # The largest piece that is unpacked at a time.
PART_MAX_BYTES = 2 << 20  # The limit for a part: the profile of a member with 4,096 regions of long names has half.
PART_MAX_VALUES = 1 << 15  # The limit for the values of a part: a member with 4,096 regions has half.
PART_MAX_DEPTH = 8
NAMES_KEPT = 1 << 12


@dataclass(frozen=True, slots=True)
class Range:
    """A whole number from `lowest` to `highest`, and neither a bool nor a float."""

    lowest: int
    highest: int

    def reader(self, what: str) -> Read:
        lowest, highest = self.lowest, self.highest

        def read(value: Any) -> int:
            if type(value) is int and lowest <= value <= highest:
                return value
            raise ProtocolError(f"{what} is a whole number from {lowest} to {highest}, and not {quoted(value)}")

        return read


@dataclass(frozen=True, slots=True)
class Text:
    """At most `most` printable characters, without control characters for a terminal."""

    most: int

    def reader(self, what: str) -> Read:
        most = self.most

        def read(value: Any) -> str:
            if type(value) is str and len(value) <= most and is_printable(value):
                return value
            raise ProtocolError(f"{what} is a text of at most {most} printable characters, and not {quoted(value)}")

        return read


@dataclass(frozen=True, slots=True)
class Name:
    """A name by the only rule for names (pywan.base.names). `or_none`: the name may be empty."""

    or_none: bool = False

    def reader(self, what: str) -> Read:
        or_none = self.or_none

        def read(value: Any) -> str:
            if type(value) is str and (value in _names or _is_new_name(value) or (or_none and not value)):
                return value
            raise ProtocolError(
                f"{what} is a name (letters, digits, _ . and -, not first -, at most {MAX_NAME_CHARACTERS}), and not"
                f" {quoted(value)}"
            )

        return read


_names: set[str] = set()  # Checked valid names: the same few names come in every message.


def _is_new_name(value: str) -> bool:
    if not is_name(value):
        return False
    if len(_names) >= NAMES_KEPT:
        _names.clear()
    _names.add(value)
    return True


@dataclass(frozen=True, slots=True)
class Host:
    """A host's name or address, as other processes connect to the host."""

    def reader(self, what: str) -> Read:
        def read(value: Any) -> str:
            if is_host(value):
                return value
            raise ProtocolError(f"{what} is a host, and not {quoted(value)}")

        return read


@dataclass(frozen=True, slots=True)
class Mark:
    """A digest of `count` bytes, or no bytes."""

    count: int

    def reader(self, what: str) -> Read:
        count = self.count

        def read(value: Any) -> bytes:
            if type(value) is bytes and len(value) in (0, count):
                return value
            raise ProtocolError(f"{what} has {count} bytes or none, and is not {quoted(value)}")

        return read


@dataclass(frozen=True, slots=True)
class Most:
    """At most `count` values. `each_once`: no two values are equal."""

    count: int
    each_once: bool = False


@dataclass(frozen=True, slots=True)
class Since:
    """The field came with this version of the protocol. The field has a default, and stands behind all earlier
    fields."""

    version: int


def reader(form: Any, what: str = "") -> Read:
    """Returns the function that reads the plain form of `form`: a class, or an annotation. Errors name the value by
    `what`. TypeError: the annotation declares no range."""
    origin, parts = get_origin(form), get_args(form)
    if origin is Annotated:
        rule = next((each for each in parts[1:] if not isinstance(each, Since)), None)
        if rule is None:
            return reader(parts[0], what)
        return _many(get_args(parts[0])[0], rule, what) if isinstance(rule, Most) else rule.reader(what)
    if origin is tuple and Ellipsis not in parts:
        return _all([reader(each, what) for each in parts], what)
    if origin in (Union, types.UnionType) and len(parts) == 2 and parts[1] is type(None):
        return _or_none(reader(parts[0], what))
    if form is bool:
        return _flag(what)
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return _member_of(form, what)
    if isinstance(form, type) and (dataclasses.is_dataclass(form) or hasattr(form, "_fields")):
        return record(form)
    raise TypeError(f"{what}: {form} says no range")


@functools.cache
def _hints(form: type) -> dict[str, Any]:
    return get_type_hints(form, include_extras=True)


def field_reader(form: type, field: str) -> Read:
    """Returns the reader of a single field of a class."""
    return reader(_hints(form)[field], f"{field} of {_in_words(form)}")


def record(form: type[T]) -> Callable[[Any], T]:
    """Returns the reader of a NamedTuple or a dataclass: a list of the fields, in order."""
    return cast("Callable[[Any], T]", _record(cast("Any", form)))


@functools.cache
def _record(form: Any) -> Read:
    names = getattr(form, "_fields", None) or [each.name for each in dataclasses.fields(form)]
    readers, what = [field_reader(form, name) for name in names], f"a {_in_words(form)}"
    if len(readers) == 2 and hasattr(form, "_fields") and not hasattr(form, "problem"):
        return _all(readers, what, functools.partial(tuple.__new__, form))
    hints = _hints(form)
    later = sum(any(isinstance(part, Since) for part in get_args(hints[name])) for name in names)
    read_all = _all(readers, what) if len(readers) == 2 else _first_of(readers, len(readers) - later, what)
    if not hasattr(form, "problem"):
        return lambda value: form(*read_all(value))

    def read(value: Any) -> Any:
        made = form(*read_all(value))
        problem = made.problem()
        if problem:
            raise ProtocolError(f"a {_in_words(form)}: {problem}")
        return made

    return read


def _in_words(form: type) -> str:
    """Returns the class name in words: a MemberProfile is a member profile."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", form.__name__).lower()


def _all(readers: list[Read], what: str, make: Callable[[tuple[Any, ...]], Any] = tuple) -> Read:
    """Returns the reader of a list with a value for each of `readers`. `make` converts the tuple of values to the
    result."""
    count = len(readers)
    if count == 2:  # The most frequent case: incarnations, epochs, keys.
        first, second = readers

        def read_two(value: Any) -> Any:
            if type(value) is list and len(value) == 2:
                return make((first(value[0]), second(value[1])))
            raise ProtocolError(f"{what} has 2 parts, and is not {quoted(value)}")

        return read_two

    if count == 4:  # A caught-up learner: a member reports thousands at a time.
        one, two, three, four = readers

        def read_four(value: Any) -> Any:
            if type(value) is list and len(value) == 4:
                return make((one(value[0]), two(value[1]), three(value[2]), four(value[3])))
            raise ProtocolError(f"{what} has 4 parts, and is not {quoted(value)}")

        return read_four

    def read(value: Any) -> Any:
        if type(value) is list and len(value) == count:
            return make(tuple([read_one(each) for read_one, each in zip(readers, value, strict=True)]))
        raise ProtocolError(f"{what} has {count} parts, and is not {quoted(value)}")

    return read


def _first_of(readers: list[Read], least: int, what: str) -> Read:
    """Returns the reader of at least `least` of the fields. Parts behind the known fields belong to a later version."""

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is list and len(value) >= least:
            return tuple([read_one(each) for read_one, each in zip(readers, value, strict=False)])
        raise ProtocolError(f"{what} has at least {least} parts, and is not {quoted(value)}")

    return read


def _many(form: Any, rule: Most, what: str) -> Read:
    read_one, most, each_once = reader(form, f"one of the {what}"), rule.count, rule.each_once

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise ProtocolError(f"{what} is a list of at most {most}, and not {quoted(value)}")
        if not value:
            return ()
        made = tuple([read_one(each) for each in value])
        if each_once and len(made) > 1:
            check_each_once(made, what)
        return made

    return read


def _or_none(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _flag(what: str) -> Read:
    def read(value: Any) -> bool:
        if type(value) is bool:
            return value
        raise ProtocolError(f"{what} is true or false, and not {quoted(value)}")

    return read


def _member_of(form: type[enum.Enum], what: str) -> Read:
    by_value = {each.value: each for each in form}

    def read(value: Any) -> enum.Enum:
        if type(value) is str and value in by_value:
            return by_value[value]
        raise ProtocolError(f"{what} is one of {', '.join(by_value)}, and not {quoted(value)}")

    return read


def check_each_once(values: Iterable[Hashable], what: str) -> None:
    """ProtocolError if two of the values are equal."""
    listed, seen = list(values), set[Hashable]()
    if len(set(listed)) == len(listed):
        return
    for each in listed:
        if each in seen:
            raise ProtocolError(f"{what}: {quoted(str(each))} is there twice")
        seen.add(each)


def list_of(value: Any, most: int, what: str) -> list[Any]:
    """Returns the list; the caller reads its values. ProtocolError if the value is no list, or has more than `most`
    values."""
    if type(value) is not list or len(value) > most:
        raise ProtocolError(f"{what} is a list of at most {most}, and not {quoted(value)}")
    return value


def map_of(value: Any, most: int, what: str) -> dict[str, Any]:
    """Returns the map; the caller reads its keys and values. ProtocolError if the value is no map, or has more than
    `most` entries."""
    if type(value) is not dict or len(value) > most:
        raise ProtocolError(f"{what} is a map of at most {most}, and not {quoted(value)}")
    return value


# --- packed parts ---


def pack(parts: Iterable[Any]) -> bytes:
    """Returns the bytes of many values, joined and compressed: the values of a whole site are too many for a
    message."""
    return zlib.compress(b"".join(map(msgpack.packb, parts)), 1)


def unpack(data: Any) -> Iterator[Any]:
    """Yields the parts one at a time, as plain values. Each part is unpacked when the caller asks for the part, so a
    message that unpacks to an unexpected size costs only the memory of a single part.

    ProtocolError, during reading: the data are cut, or a part is over a limit.
    """
    if type(data) is not bytes:
        raise ProtocolError(f"packed values are bytes, and not {quoted(data)}")
    return _parts_of(_inflated(data))


def _inflated(data: bytes) -> Iterator[bytes]:
    """Yields the unpacked bytes, at most CHUNK_BYTES at a time."""
    inflate, left = zlib.decompressobj(), PACKED_MAX_BYTES
    while not inflate.eof:
        try:
            chunk = inflate.decompress(data, CHUNK_BYTES)
        except zlib.error as error:
            raise ProtocolError(f"packed values cannot be read: {error}") from None
        data, left = inflate.unconsumed_tail, left - len(chunk)
        if left < 0 or (not chunk and not inflate.eof):
            raise ProtocolError(f"packed values are cut, or take more than {PACKED_MAX_BYTES} bytes")
        yield chunk


def _parts_of(chunks: Iterable[bytes]) -> Iterator[Any]:
    unpacker, begun, at = msgpack.Unpacker(max_buffer_size=PART_MAX_BYTES + CHUNK_BYTES), bytearray(), 0
    for chunk in chunks:  # `begun` has the bytes behind the last part. The last part ends at `at`.
        begun += chunk
        try:
            unpacker.feed(chunk)
            while True:
                unpacker.skip()  # `skip` makes no objects, and `tell` then gives the end of the part.
                length = unpacker.tell() - at
                yield _part_of(bytes(begun[:length]))
                del begun[:length]
                at += length
        except msgpack.OutOfData:
            if len(begun) > PART_MAX_BYTES:
                raise ProtocolError(f"a part of packed values has more than {PART_MAX_BYTES} bytes") from None
        except ProtocolError:
            raise
        except Exception as error:  # msgpack raises half a dozen kinds, all with the same meaning here.
            raise ProtocolError(f"packed values cannot be read: {str(error) or type(error).__name__}") from None
    if begun:
        raise ProtocolError("packed values are cut: the last part is not whole")


def _part_of(data: bytes) -> Any:
    # A value takes at least a byte, so most parts need not be measured.
    if len(data) > PART_MAX_VALUES and measure_message(data, PART_MAX_VALUES, PART_MAX_DEPTH)[1]:
        raise ProtocolError(
            f"a part of packed values has more than {PART_MAX_VALUES} values, or {PART_MAX_DEPTH} lists in each other"
        )
    return msgpack.unpackb(data, strict_map_key=False)
