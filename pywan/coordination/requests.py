"""Owns how a coordinator reads the requests of members: each one has a name and plain fields (`coordination-ask`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from pywan.base.names import quoted
from pywan.config.attributes import MAX_BUCKETS
from pywan.coordination import plain
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.messages import Refused
from pywan.coordination.plain import Most
from pywan.coordination.tables import (
    BucketKey,
    Epoch,
    Incarnation,
    Learner,
    Number,
    RegionAttributes,
    RegionName,
    Weight,
)
from pywan.errors import ProtocolError

Take = Callable[[Coordinator, Incarnation, int], None]  # It hands over one request of a member, at that time.

# Each of them costs the coordinator a look at all buckets of the region, or of the member.
_ABOUT_A_REGION = ("host", "unhost", "destroy-region")
_ABOUT_THE_MEMBER = ("leave", "stay", "left")


def read_requests(requests: Sequence[object]) -> list[tuple[int, Take]]:
    """Reads the requests of one message. Returns each with its place, in their order, for `take_requests`.

    Of several that say the same of the same region, or of the member, the last one counts. A coordinator may drop any
    request, and a member asks each of them once in a message. So a message costs as much as there is, however often it
    asks for that.

    ProtocolError: there is no such request, or it has other fields. Then none of them may be taken.
    """
    takes = [_read(each) for each in requests]
    last = {_subject(each, index): index for index, each in enumerate(requests)}
    return [(index, takes[index]) for index in sorted(last.values())]


def take_requests(
    core: Coordinator, me: Incarnation, requests: Iterable[tuple[int, Take]], now_us: int
) -> list[tuple[int, Refused]]:
    """Hands the requests of one message to the coordinator, in their order. What it decides is to be stored before the
    message is answered. Returns those that it refuses, each with its place in the message."""
    refused: list[tuple[int, Refused]] = []
    for index, take in requests:
        take(core, me, now_us)
        refused += [(index, refusal) for refusal in core.take_refusals(me)]
    return refused


def take_request(core: Coordinator, me: Incarnation, request: object, now_us: int) -> None:
    """Hands a member's request to the coordinator. ProtocolError: there is no such one, or it has other fields."""
    _read(request)(core, me, now_us)


def _subject(request: Any, index: int) -> tuple[object, ...]:
    """What a request that was read is about, if an earlier one about the same need not be taken."""
    name = request[0]
    return (name, request[1]) if name in _ABOUT_A_REGION else (name,) if name in _ABOUT_THE_MEMBER else (index,)


def _read(request: object) -> Take:
    if type(request) is not list or not request or type(request[0]) is not str or request[0] not in _REQUESTS:
        raise ProtocolError(f"coordination-ask: there is no request {quoted(request)}")
    try:
        return _REQUESTS[request[0]](request[1:])
    except ProtocolError as error:
        raise ProtocolError(f"coordination-ask: {error}") from None


_fields_of_host = plain.reader(tuple[RegionName, RegionAttributes, Weight], "host")
_fields_of_unhost = plain.reader(tuple[RegionName], "unhost")
_fields_of_destroy_region = plain.reader(tuple[RegionName], "destroy-region")
_fields_of_caught_up = plain.reader(tuple[BucketKey, Epoch, Incarnation, Number], "caught-up")
_fields_of_suspect = plain.reader(tuple[Incarnation], "suspect")
_copy_of_unreachable = plain.reader(tuple[Incarnation], "unreachable")
_pairs_of_unreachable = plain.reader(
    Annotated[tuple[tuple[BucketKey, Epoch], ...], Most(MAX_BUCKETS)], "buckets of unreachable"
)
_fields_of_ready = plain.reader(Annotated[tuple[BucketKey, ...], Most(MAX_BUCKETS)], "buckets of ready")


def _host(fields: list[Any]) -> Take:
    region, attributes, weight = _fields_of_host(fields)
    return lambda core, me, now_us: core.host(me, region, attributes, weight, now_us)


def _unhost(fields: list[Any]) -> Take:
    (region,) = _fields_of_unhost(fields)
    return lambda core, me, now_us: core.unhost(me, region, now_us)


def _destroy_region(fields: list[Any]) -> Take:
    (region,) = _fields_of_destroy_region(fields)
    return lambda core, me, now_us: core.destroy_region(me, region)


def _caught_up(fields: list[Any]) -> Take:
    key, epoch, member, transfer = _fields_of_caught_up(fields)
    return lambda core, me, now_us: core.caught_up(me, key, epoch, Learner(member, transfer), now_us)


def _unreachable(fields: list[Any]) -> Take:
    (copy,) = _copy_of_unreachable(fields[:1])
    epochs: dict[BucketKey, Epoch] = dict(_pairs_of_unreachable(fields[1:]))
    return lambda core, me, now_us: core.unreachable(me, epochs, copy, now_us)


def _suspect(fields: list[Any]) -> Take:
    (member,) = _fields_of_suspect(fields)
    return lambda core, me, now_us: core.suspect(me, member, now_us)


def _ready(fields: list[Any]) -> Take:
    keys = _fields_of_ready(fields)
    return lambda core, me, now_us: core.ready(me, keys, now_us)


def _left(core: Coordinator, me: Incarnation, now_us: int) -> None:
    if me in core.site.members:  # Nobody can prove to be another one: that one joins again before it leaves.
        core.left(me, now_us)


def _alone(name: str, take: Take) -> Callable[[list[Any]], Take]:
    """A request without fields."""
    read = plain.reader(tuple[()], name)

    def read_none(fields: list[Any]) -> Take:
        read(fields)
        return take

    return read_none


_REQUESTS: dict[str, Callable[[list[Any]], Take]] = {
    "host": _host,
    "unhost": _unhost,
    "destroy-region": _destroy_region,
    "caught-up": _caught_up,
    "unreachable": _unreachable,
    "suspect": _suspect,
    "ready": _ready,
    "leave": _alone("leave", lambda core, me, now_us: core.leave(me, now_us)),
    "stay": _alone("stay", lambda core, me, now_us: core.stay(me, now_us)),
    "left": _alone("left", _left),
}
