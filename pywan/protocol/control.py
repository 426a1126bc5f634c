"""Owns the bytes of a control message: how a request or reply is framed, bounded, checked and refused.

A frame is 16 bytes (all little-endian: magic `PWC1`, u32 payload length, u32 CRC32C of the payload, u32 request id)
and then one msgpack map with string keys. It holds only plain values, so nothing in it can name code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

from pywan import errors
from pywan._core import crc32c, measure_message
from pywan.base.names import SHOWN_CHARACTERS, printable, quoted
from pywan.errors import ProtocolError, PywanError, RemoteError, SerializationError

MAGIC = b"PWC1"
HEADER = struct.Struct("<4sIII")
AUTHENTICATE = "authenticate"  # The request that says who asks. It comes first, if at all.
# The two requests by which members and locators of a site prove its secret to each other (security/members_secret.py).
PROVE = "prove-member"
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32  # The limit for the depth of maps and lists in each other.
# The limit for one message, keys included. Once decoded, a value takes up to a hundred times its bytes.
MAX_VALUES = 1 << 19
MAX_ERROR_CHARACTERS = 4000  # The limit for the text of an error in a reply: it may quote what was asked for.

_PLAIN = (str, bytes, bytearray, memoryview, int, float, bool, type(None))


class Message(NamedTuple):
    """One decoded frame.

    Attributes:
        request_id: The number of the request. The reply carries the same number.
        body: The map.
    """

    request_id: int
    body: dict[str, Any]


def encode(request_id: int, body: dict[str, Any]) -> bytes:
    """Returns the frame for `body`. SerializationError if it holds a value that is not plain, or is over the limit."""
    if not isinstance(body, dict):
        raise SerializationError(f"a control message is a map, not {type(body).__name__}")
    _check_plain(body, 0, "message", SerializationError)
    try:
        payload: bytes = msgpack.packb(body, use_bin_type=True)
    except (ValueError, OverflowError, TypeError, UnicodeError) as error:
        raise SerializationError(f"control message {body.get('op', '')!s:.80} cannot be encoded: {error}") from None
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise SerializationError(
            f"control message {body.get('op', 'reply')!s:.80} is {len(payload)} bytes; the limit is"
            f" {MAX_PAYLOAD_BYTES}: ask for less at a time"
        )
    values, refused = measure_message(payload, MAX_VALUES, MAX_DEPTH)
    if refused is not None:
        raise SerializationError(
            f"control message {body.get('op', 'reply')!s:.80} has more than {values - 1} values; the limit is"
            f" {MAX_VALUES}: ask for less at a time"
        )
    return HEADER.pack(MAGIC, len(payload), crc32c(payload), request_id) + payload


class Decoder:
    """Takes bytes as they arrive, and returns whole messages. After a ProtocolError the stream is useless, and must be
    closed."""

    def __init__(
        self,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        *,
        on_long: Callable[[int], None] | None = None,
        on_values: Callable[[int, int], None] | None = None,
    ) -> None:
        """Makes a decoder for one connection.

        Args:
            max_payload_bytes: The limit for a message. It may be set between two messages.
            on_long: Called with the request's number before a longer message is refused. It may set the limit.
            on_values: Called with bytes and number of values of a message before it is unpacked.
        """
        self._buffer = bytearray()
        self.max_payload_bytes = max_payload_bytes
        self._on_long, self._on_values = on_long, on_values

    @property
    def buffered(self) -> int:
        """The number of bytes of a frame that is not whole yet. 0 between messages."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Returns the messages that `data` completes, in order."""
        self.add(data)
        messages: list[Message] = []
        while (message := self.next()) is not None:
            messages.append(message)
        return messages

    def add(self, data: bytes) -> None:
        """Takes bytes. `next` returns the messages that they complete."""
        self._buffer += data

    def next(self) -> Message | None:
        """Returns the next message. None: it is not whole yet."""
        # A wrong magic is reported at its first bytes: another protocol may never send sixteen.
        if bytes(self._buffer[:4]) != MAGIC[: len(self._buffer)]:
            raise ProtocolError(f"not a control message: {describe(bytes(self._buffer[:64]))}")
        if len(self._buffer) < HEADER.size:
            return None
        _, length, checksum, request_id = HEADER.unpack_from(self._buffer)
        if length > self.max_payload_bytes and self._on_long is not None:
            self._on_long(request_id)
        if length > self.max_payload_bytes:
            raise ProtocolError(f"control message of {length} bytes announced; the limit is {self.max_payload_bytes}")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        actual = crc32c(payload)
        if actual != checksum:
            raise ProtocolError(
                f"control message {request_id} of {length} bytes is damaged: checksum {checksum:#010x}, computed"
                f" {actual:#010x}"
            )
        return Message(request_id, _decode_payload(payload, self._on_values))


_REFUSED = {
    "too many": f"has more than {MAX_VALUES} values",
    "too deep": f"has more than {MAX_DEPTH} maps and lists in each other",
    "cut": "is not msgpack: it announces more than it holds",
    "unknown code": "is not msgpack: it holds the byte c1",
}


def _decode_payload(payload: bytes, on_values: Callable[[int, int], None] | None) -> dict[str, Any]:
    """Returns the map of a message. ProtocolError if it is over a limit, or is no map of plain values."""
    # This comes before any object is made: 16 MiB of empty lists would become a gigabyte of objects.
    values, refused = measure_message(payload, MAX_VALUES, MAX_DEPTH)
    if refused is not None:
        raise ProtocolError(f"control message {_REFUSED[refused]}")
    if on_values is not None:
        on_values(len(payload), values)
    try:
        body = msgpack.unpackb(payload, raw=False, strict_map_key=True, ext_hook=_refuse_extension)
    except ProtocolError:
        raise
    except Exception as error:  # msgpack raises half a dozen kinds, some of them its own. All mean the same here.
        raise ProtocolError(f"control message is not msgpack: {str(error) or type(error).__name__}") from None
    if not isinstance(body, dict):
        raise ProtocolError(f"control message is a {type(body).__name__}, not a map")
    _check_plain(body, 0, "message", ProtocolError)
    return body


def _refuse_extension(code: int, data: bytes) -> None:
    raise ProtocolError(f"control message holds msgpack extension type {code}; only plain values are accepted")


def _check_plain(value: Any, depth: int, where: str, error: type[PywanError]) -> None:
    """Raises `error` if a value is not plain, or too deep. `where` is the key that it belongs to."""
    if isinstance(value, _PLAIN):
        return
    if depth >= MAX_DEPTH:
        raise error(f"{printable(where[:SHOWN_CHARACTERS])}: more than {MAX_DEPTH} maps and lists in each other")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise error(f"{printable(where[:SHOWN_CHARACTERS])}: the key {quoted(key)} is not a string")
            _check_plain(item, depth + 1, key, error)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if not isinstance(item, _PLAIN):
                _check_plain(item, depth + 1, where, error)
    else:
        raise error(
            f"{printable(where[:SHOWN_CHARACTERS])}: a {type(value).__name__} cannot travel in a control message;"
            " only plain values can"
        )


def error_reply(error: BaseException) -> dict[str, Any]:
    """Returns what a server answers when the handling of a request raised `error`."""
    if isinstance(error, PywanError):
        kind = next((c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c), "RemoteError")
        return {"ok": False, "kind": kind, "error": cut(str(error))}
    if isinstance(error, MemoryError):
        return {"ok": False, "kind": "OutOfMemoryError", "error": cut(out_of_memory(error))}
    return {"ok": False, "kind": "InternalError", "error": cut(f"internal error: {type(error).__name__}: {error}")}


def out_of_memory(error: MemoryError) -> str:
    """Returns words for a MemoryError, which mostly has none."""
    return f"out of memory: {error or 'the process has none left for this'}; part of what was asked may have been done"


def cut(text: str) -> str:
    """Returns the text of an error at a length that can be logged and answered. It may quote megabytes of what was
    asked for."""
    return (
        text
        if len(text) <= MAX_ERROR_CHARACTERS
        else f"{text[:MAX_ERROR_CHARACTERS]} ... ({len(text)} characters in all)"
    )


def error_of(reply: dict[str, Any]) -> PywanError | None:
    """Returns the error that a reply holds, of the class that the server named (RemoteError if there is no such class
    here)."""
    if reply.get("ok") is True:
        return None
    kind = reply.get("kind")
    cls = getattr(errors, kind, None) if isinstance(kind, str) else None
    if not (isinstance(cls, type) and issubclass(cls, PywanError)):
        cls = RemoteError
    return cls(printable(cut(str(reply.get("error", "the other side refused the request and gave no reason")))))


_LOOKS: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), name)
    for pattern, name in (
        (rb"(GET|PUT|POST|HEAD|DELETE|OPTIONS|PATCH|CONNECT|TRACE|PRI) [^\r\n]*", "an HTTP request"),
        (rb"HTTP/\d", "an HTTP answer"),
        (rb"\x16\x03[\x00-\x04]", "a TLS hello; this port does not speak TLS"),
        (rb"\x15\x03[\x00-\x04]", "a TLS alert"),
        (rb"\*\d+\r\n\$", "a Redis command"),
        (rb"(\+(PONG|OK)|-(ERR|NOAUTH|DENIED))\b", "a Redis answer"),
        (rb"PING\r\n|INFO \{", "a Redis or NATS peer"),
        (rb"SSH-\d", "an SSH peer"),
        (rb"220[ -]", "a mail or FTP server"),
        (rb"AMQP", "an AMQP client"),
        (rb"\x10.{1,4}\x00[\x04\x06]MQ", "an MQTT client"),
        (rb"\x00+$", "zeros"),
        (rb"\x00\x00\x00.\x00\x03\x00\x00|\x00\x00\x00\x08\x04\xd2\x16\x2f", "a PostgreSQL client"),
        (rb"\x00\x00.{2}\x00[\x00-\x60]\x00[\x00-\x14]", "a Kafka request"),
        (rb".\x00\x00\x00\x0a\d+\.\d+", "a MySQL server"),
        (rb"\xac\xed\x00\x05", "Java serialization"),
        (rb"\x1f\x8b", "gzip data"),
        (rb"PWD1", "a pywan data connection; it belongs on a member's port"),
        (rb"PWC.", "a pywan control message of another version"),
    )
)


def describe(first_bytes: bytes) -> str:
    """Returns what a stream with these first bytes seems to be, in words for a log line."""
    if not first_bytes:
        return "nothing was sent"
    for pattern, name in _LOOKS:
        if pattern.match(first_bytes):
            return f"the first bytes {first_bytes[:16]!r} look like {name}"
    return f"the first bytes are {first_bytes[:16]!r}"
