"""Reads the requests of members to a coordinator: each request has a name and plain fields (`coordination-ask`)."""

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

Take = Callable[[Coordinator, Incarnation, int], None]  # Hands a member's request to the coordinator at that time.

# Each of these requests costs the coordinator a look at all buckets of the region, or of the member.
_ABOUT_A_REGION = ("host", "unhost", "destroy-region")
_ABOUT_THE_MEMBER = ("leave", "stay", "left")


def read_requests(requests: Sequence[object]) -> list[tuple[int, Take]]:
    """Reads the requests of a message. Returns each request with its place, in order, for `take_requests`.

    If several requests say the same about a region, or about the member, only the last request is kept. This is safe:
    the coordinator may drop any request, and a member sends each request once in a message. So repeats in a message
    cost no further looks at the buckets.

    ProtocolError: the name of a request is unknown, or the fields do not fit. Then no request of the message may be
    taken.
    """
    takes = [_read(each) for each in requests]
    last = {_subject(each, index): index for index, each in enumerate(requests)}
    return [(index, takes[index]) for index in sorted(last.values())]


def take_requests(
    core: Coordinator, me: Incarnation, requests: Iterable[tuple[int, Take]], now_us: int
) -> list[tuple[int, Refused]]:
    """Hands the requests of a message to the coordinator, in order. The resulting records must be stored before the
    answer to the message. Returns the refusals, each with the place of its request in the message."""
    refused: list[tuple[int, Refused]] = []
    for index, take in requests:
        take(core, me, now_us)
        refused += [(index, refusal) for refusal in core.take_refusals(me)]
    return refused


def take_request(core: Coordinator, me: Incarnation, request: object, now_us: int) -> None:
    """Hands a member's request to the coordinator. ProtocolError: the name is unknown, or the fields do not fit."""
    _read(request)(core, me, now_us)


def _subject(request: Any, index: int) -> tuple[object, ...]:
    """Returns the subject of a request. An earlier request about the same subject need not be taken."""
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
_replica_of_unreachable = plain.reader(tuple[Incarnation], "unreachable")
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
    (replica,) = _replica_of_unreachable(fields[:1])
    epochs: dict[BucketKey, Epoch] = dict(_pairs_of_unreachable(fields[1:]))
    return lambda core, me, now_us: core.unreachable(me, epochs, replica, now_us)


def _suspect(fields: list[Any]) -> Take:
    (member,) = _fields_of_suspect(fields)
    return lambda core, me, now_us: core.suspect(me, member, now_us)


def _ready(fields: list[Any]) -> Take:
    keys = _fields_of_ready(fields)
    return lambda core, me, now_us: core.ready(me, keys, now_us)


def _left(core: Coordinator, me: Incarnation, now_us: int) -> None:
    if me in core.site.members:  # A sender proves only its own identity: an unknown member joins again first.
        core.left(me, now_us)


def _alone(name: str, take: Take) -> Callable[[list[Any]], Take]:
    """Returns the reader of a request without fields."""
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
