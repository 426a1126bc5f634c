"""Owns the opening of a data connection: what a sender or a client says first, and what it is answered.

Bytes come in, and bytes and values go out. docs/wire_format.md describes the same, byte by byte.
"""

from __future__ import annotations

import re
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgpack

from pywan import _core, errors
from pywan.base.names import check_name, printable, quoted
from pywan.errors import ProtocolError
from pywan.protocol.control import describe

VERSION = _core.RECORD_FORMAT  # The format of records is a part of the protocol, and changes with it.
HEADER_BYTES = 32
MAGIC = b"PWD1"
HELLO_BYTES_MAX = 65536  # An opening holds names and numbers only. A longer one is of another protocol.


@dataclass(frozen=True)
class SenderHello:
    """The first message of a gateway sender's dispatcher."""

    kind: ClassVar[str] = "gateway"
    site: int
    remote_site: int  # The site that the sender is configured for.
    member: str
    sender: str
    dispatcher: int
    # The queue's numbering. A queue that is created anew has another one, so that its sequences are not taken for
    # older ones.
    numbering: int
    mount: int  # One opening of the queue's disk store. Without a disk store: one process.
    partitions: int
    # The id of the member whose receiver is wanted. Another one welcomes the sender only to say who it is, and closes.
    # None: any receiver is wanted.
    wanted_member: int | None = None
    user: str | None = None  # Who the sender is. None: it does not say.
    password: str | None = field(default=None, repr=False)
    asks: bool | None = None  # Whether the receiver is to say who it is. None: it is not.
    version: int = VERSION


@dataclass(frozen=True)
class ClientHello:
    """The first message of a client that sends the rows of one task."""

    kind: ClassVar[str] = "rows"
    region: str
    run_id: bytes  # With `task` it names what may be applied once.
    task: int
    user: str | None = None  # Who the client is. None: it does not say.
    password: str | None = field(default=None, repr=False)
    version: int = VERSION


@dataclass(frozen=True)
class Welcome:
    """The answer to an opening that is accepted."""

    kind: ClassVar[str] = "welcome"
    site: int
    member: str
    credit_events: int
    credit_bytes: int
    maximum_time_between_pings: int = 60000  # In ms. A sender that is silent for longer is disconnected.
    # The number of partitions of which it has events from other mounts of the queue's disk store. Their `Known` follow.
    known: int = 0
    # The id of the member, by which a sender tells receivers apart. None: it is the answer to a client.
    member_id: int | None = None
    user: str | None = None  # Who the receiver is, if the sender asks. None: it does not say.
    password: str | None = field(default=None, repr=False)
    version: int = VERSION


@dataclass(frozen=True)
class Committed:
    """The answer when a task's rows are applied."""

    kind: ClassVar[str] = "committed"
    rows: int
    applied: int  # The rows that had an effect now. 0 if `duplicate`.
    missing: int  # The rows that destroy a key that was not there.
    duplicate: bool  # Whether an earlier attempt of the same task had been applied.


class Known(NamedTuple):
    """What a receiver knows of one partition.

    Attributes:
        partition: The partition's number.
        last: The last sequence that the receiver has.
        mount: The mount that the newest of these events came from.
        settled: The sequence up to which the sender's disk knew all events to be settled.
    """

    partition: int
    last: int
    mount: int
    acknowledged: int = 0


# The partition, how much of `last` is not settled plus 1 (0: unknown), `last`, and the mount.
_KNOWN = struct.Struct("<IIQQ")
KNOWN_OF_FRAME = HELLO_BYTES_MAX // _KNOWN.size
_INT_LIMITS = {
    "known": 65536,
    "site": 256,
    "remote_site": 256,
    "dispatcher": 65536,
    "partitions": 65536,
    "wanted_member": 1 << 32,
    "member_id": 1 << 32,
    "credit_events": 1 << 32,
}
_SECRETS = frozenset({"user", "password"})  # Their values are in no error.
_NAMES = frozenset({"member", "sender", "region"})
_KINDS: dict[str, type[Message]] = {cls.kind: cls for cls in (SenderHello, ClientHello, Welcome, Committed)}
Message = SenderHello | ClientHello | Welcome | Committed
M = TypeVar("M", SenderHello, ClientHello, Welcome, Committed)


def encode(message: Any, frame_type: int) -> bytes:
    """Returns the whole frame of one message. It does not say fields that are None."""
    fields = {name: value for name, value in asdict(message).items() if value is not None}
    return _core.pack_frame(frame_type, msgpack.packb({"kind": message.kind, **fields}))


def encode_known(known: list[Known]) -> bytes:
    """Returns frames with each of these. They follow the welcome that told their number."""

    def packed(each: Known) -> bytes:
        unacknowledged = each.last - each.acknowledged + 1 if each.acknowledged else 0
        return _KNOWN.pack(each.partition, unacknowledged if unacknowledged < 1 << 32 else 0, each.last, each.mount)

    return b"".join(
        _core.pack_frame(_core.FRAME_KNOWN, b"".join(map(packed, known[at : at + KNOWN_OF_FRAME])))
        for at in range(0, len(known), KNOWN_OF_FRAME)
    )


def decode_known(frame: bytes) -> list[Known]:
    """Returns what one such frame holds."""
    frame_type, _, _, payload = _core.check_frame(frame)
    if frame_type == _core.FRAME_ERROR:
        raise error_of(payload)
    if frame_type != _core.FRAME_KNOWN or len(payload) % _KNOWN.size or not payload:
        raise ProtocolError(
            f"a frame of type {frame_type} with {len(payload)} bytes where positions of partitions should come"
        )
    return [
        Known(partition, last, mount, max(0, last + 1 - unacknowledged) if unacknowledged else 0)
        for partition, unacknowledged, last, mount in _KNOWN.iter_unpack(payload)
    ]


def encode_error(error: Exception) -> bytes:
    """Returns the payload of an error frame: the kind of a pywan error in brackets, then its text."""
    kind = type(error).__name__ if isinstance(error, errors.PywanError) else "ProtocolError"
    return _core.pack_frame(_core.FRAME_ERROR, f"[{kind}] {error}".encode(errors="replace")[:1000])


def error_of(payload: bytes) -> errors.PywanError:
    """Returns the error in an error frame's payload. It is a ProtocolError if no kind of ours is named."""
    text = payload.rstrip(b"\0").decode("utf-8", "replace")
    text = printable(text)
    named = re.match(r"\[(\w+)\] ", text)
    cls = getattr(errors, named[1], None) if named else None
    if named and isinstance(cls, type) and issubclass(cls, errors.PywanError):
        return cls(text[named.end() :])
    return errors.ProtocolError(text)


def check_magic(first: bytes) -> None:
    """Raises ProtocolError unless a frame of ours can begin with these bytes."""
    if first[: len(MAGIC)] != MAGIC:
        raise ProtocolError(f"what came is not of this protocol: {describe(first)}")


def header(data: bytes) -> tuple[int, int]:
    """Returns (frame type, bytes that follow) of a header. ProtocolError for another protocol, or for an opening that
    is too long."""
    frame_type, padded, _ = _core.check_frame_header(data)
    if padded > HELLO_BYTES_MAX:
        raise ProtocolError(f"an opening of {padded} bytes; at most {HELLO_BYTES_MAX} are possible")
    return frame_type, padded


def decode(frame: bytes, *expected: type[M]) -> M:
    """Returns the message in a whole frame, which is of one of the `expected` kinds. An error frame raises
    its error."""
    frame_type, _, _, payload = _core.check_frame(frame)
    if frame_type == _core.FRAME_ERROR:
        raise error_of(payload)
    try:
        fields = msgpack.unpackb(payload)
        cls = _KINDS[fields.pop("kind")]
        message = cls(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise ProtocolError(
            f"a frame of type {frame_type} does not hold an opening message: {quoted(str(error))}"
        ) from None
    if not isinstance(message, expected):
        raise ProtocolError(f"{message.kind!r} where {' or '.join(cls.kind for cls in expected)} should come")
    for name, kind in cls.__annotations__.items():
        if kind.endswith(" | None"):
            if name not in fields:
                continue
            kind = kind.removesuffix(" | None")
        wanted = {"int": int, "str": str, "bytes": bytes, "bool": bool}.get(kind)
        value = getattr(message, name)
        if wanted is not None and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
            found = "of another type" if name in _SECRETS else quoted(getattr(message, name))
            raise ProtocolError(f"{message.kind}: {name} is {found}, not {kind}")
        if name in _NAMES:
            check_name(getattr(message, name), f"{message.kind}: {name}", ProtocolError)
        if wanted is int and not 0 <= getattr(message, name) < _INT_LIMITS.get(name, 1 << 63):
            raise ProtocolError(f"{message.kind}: {name} {quoted(getattr(message, name))} is out of range")
    version = getattr(message, "version", VERSION)
    if version != VERSION:
        raise ProtocolError(
            f"protocol version {version}, with record format {version}; this side speaks version {VERSION}, with"
            f" record format {VERSION}: upgrade the older one"
        )
    return message
