"""Owns the registry of user serializers and the tagged form (msgpack) of what is not bytes, text or a number."""
from __future__ import annotations

import datetime
import threading
from typing import Any, Callable

import msgpack

from pywan import _core
from pywan.errors import ConfigurationError, SerializationError

_TAGGED, _USER = 2, 6
_EXT_BIG_INT, _EXT_TUPLE, _EXT_DATE, _EXT_NAIVE_DATETIME, _EXT_SET = 1, 2, 3, 4, 5

_lock = threading.Lock()
_by_type: dict[type, tuple[str, Callable[[Any], bytes]]] = {}
_by_name: dict[str, Callable[[bytes], Any]] = {}


def register_serializer(cls: type, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any], *, name: str | None = None) -> None:
    """Teach pywan to carry instances of `cls` (exactly this class) as keys or values.

    `dumps` gives bytes, `loads` takes them back; both sites must register the same `name` (default: module:qualname).
    """
    name = name or f"{cls.__module__}:{cls.__qualname__}"
    if not isinstance(cls, type) or not callable(dumps) or not callable(loads):
        raise ConfigurationError(f"register_serializer takes a class and two callables, not {cls!r}, {dumps!r}, {loads!r}")
    with _lock:
        _by_type[cls] = (name, dumps)
        _by_name[name] = loads


def _pack_ext(obj: Any) -> msgpack.ExtType:
    if isinstance(obj, int):
        return msgpack.ExtType(_EXT_BIG_INT, obj.to_bytes((obj.bit_length() + 8) // 8, "little", signed=True))
    if type(obj) is tuple:
        return msgpack.ExtType(_EXT_TUPLE, _pack(list(obj)))
    if type(obj) in (set, frozenset):
        return msgpack.ExtType(_EXT_SET, _pack(sorted(_pack(item) for item in obj)))
    if isinstance(obj, datetime.datetime):      # With a zone it is msgpack's own timestamp; here it has none.
        return msgpack.ExtType(_EXT_NAIVE_DATETIME, obj.isoformat().encode())
    if isinstance(obj, datetime.date):
        return msgpack.ExtType(_EXT_DATE, obj.isoformat().encode())
    raise SerializationError(
        f"a {type(obj).__module__}.{type(obj).__qualname__} cannot be carried; pass bytes, or pywan.register_serializer"
        " for its class (nothing was stored)"
    )


def _unpack_ext(code: int, data: bytes) -> Any:
    if code == _EXT_BIG_INT:
        return int.from_bytes(data, "little", signed=True)
    if code == _EXT_TUPLE:
        return tuple(_unpack(data))
    if code == _EXT_SET:
        return frozenset(_unpack(item) for item in _unpack(data))
    if code == _EXT_DATE:
        return datetime.date.fromisoformat(data.decode())
    if code == _EXT_NAIVE_DATETIME:
        return datetime.datetime.fromisoformat(data.decode())
    return msgpack.ExtType(code, data)


def _pack(obj: Any) -> bytes:
    return msgpack.packb(obj, default=_pack_ext, strict_types=True, datetime=True)


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_unpack_ext, strict_map_key=False, timestamp=3)


def encode_tagged(obj: Any) -> tuple[int, bytes]:
    """(form, bytes) of an object that has no plain form. SerializationError names the type and the remedy."""
    if isinstance(obj, (bytearray, memoryview)):
        return 0, bytes(obj)
    user = _by_type.get(type(obj))
    if user is not None:
        name, dumps = user
        data = dumps(obj)
        if not isinstance(data, bytes):
            raise SerializationError(f"the serializer {name!r} gave a {type(data).__name__}, not bytes")
        return _USER, msgpack.packb([name, data])
    try:
        return _TAGGED, _pack(obj)
    except SerializationError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise SerializationError(f"a {type(obj).__name__} cannot be carried: {error} (nothing was stored)") from error


def decode_tagged(form: int, data: bytes) -> Any:
    """The object behind a tagged or user form. SerializationError if the bytes are not that."""
    try:
        if form == _TAGGED:
            return _unpack(data)
        if form == _USER:
            name, payload = msgpack.unpackb(data)
        else:
            raise SerializationError(f"form {form} of {len(data)} bytes is not known to this version")
    except SerializationError:
        raise
    except Exception as error:
        raise SerializationError(f"{len(data)} bytes of form {form} cannot be read: {error}") from error
    loads = _by_name.get(name)
    if loads is None:
        raise SerializationError(f"no serializer named {name!r} here: call pywan.register_serializer as at the other site")
    return loads(payload)


_core.set_codec_hooks(encode_tagged, decode_tagged)
