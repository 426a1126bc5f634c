"""Owns how a coordinator reads the requests of members: each one has a name and plain fields (`coordination-ask`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pywan.base.names import check_name, quoted
from pywan.coordination import encoding
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.messages import Refused
from pywan.coordination.tables import BucketKey, Epoch, Incarnation, Learner
from pywan.errors import ProtocolError


def take_requests(
    core: Coordinator, me: Incarnation, requests: Sequence[object], now_us: int
) -> list[tuple[int, Refused]]:
    """Hands the requests of one message to the coordinator, in their order. What it decides is to be stored before the
    message is answered. Returns those that it refuses, each with its place in the message.

    ProtocolError: there is no such request, or it has other fields. Those before it have been taken.
    """
    refused: list[tuple[int, Refused]] = []
    for index, each in enumerate(requests):
        take_request(core, me, each, now_us)
        refused += [(index, refusal) for refusal in core.take_refusals(me)]
    return refused


def take_request(core: Coordinator, me: Incarnation, request: object, now_us: int) -> None:
    """Hands a member's request to the coordinator. ProtocolError: there is no such one, or it has other fields."""
    if not isinstance(request, list) or not request or not isinstance(request[0], str) or request[0] not in _REQUESTS:
        raise ProtocolError(f"coordination-ask: there is no request {quoted(request)}")
    name, *fields = request
    try:
        _REQUESTS[name](core, me, fields, now_us)
    except (ValueError, IndexError, TypeError):
        raise ProtocolError(f"coordination-ask: {name} has not the fields {quoted(fields)}") from None


def _region(value: Any) -> str:
    return check_name(value, "a region's name", ProtocolError)


def _host(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    region, attributes, weight = fields
    core.host(me, _region(region), encoding.attributes_of(attributes), encoding.number_of(weight), now_us)


def _unhost(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    core.unhost(me, _region(fields[0]), now_us)


def _destroy_region(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    core.destroy_region(me, _region(fields[0]))


def _caught_up(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    key, epoch, member, transfer = fields
    learner = Learner(encoding.incarnation_of(member), encoding.number_of(transfer))
    core.caught_up(me, encoding.key_of(key), encoding.epoch_of(epoch), learner, now_us)


def _unreachable(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    copy, *pairs = fields
    epochs: dict[BucketKey, Epoch] = {encoding.key_of(key): encoding.epoch_of(epoch) for key, epoch in pairs}
    core.unreachable(me, epochs, encoding.incarnation_of(copy), now_us)


def _suspect(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    core.suspect(me, encoding.incarnation_of(fields[0]), now_us)


def _ready(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    core.ready(me, [encoding.key_of(each) for each in fields], now_us)


def _leave(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    core.leave(me, now_us)


def _stay(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    core.stay(me, now_us)


def _left(core: Coordinator, me: Incarnation, fields: list[Any], now_us: int) -> None:
    core.left(me, now_us)


_REQUESTS: dict[str, Callable[[Coordinator, Incarnation, list[Any], int], None]] = {
    "host": _host,
    "unhost": _unhost,
    "destroy-region": _destroy_region,
    "caught-up": _caught_up,
    "unreachable": _unreachable,
    "suspect": _suspect,
    "ready": _ready,
    "leave": _leave,
    "stay": _stay,
    "left": _left,
}
