"""Owns the texts and plain values that several commands of a member share in their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pywan.base.amounts import duration_text, size_text
from pywan.base.names import quoted
from pywan.config.options import Answer, Option
from pywan.errors import DataLossError, NotFoundError

if TYPE_CHECKING:
    from pywan.gateway.sender import GatewaySender
    from pywan.member.core import MemberCore

MAX_PARKED_SHOWN = 10_000
SHOWN_VALUE_CHARACTERS = 200  # Limit for a key or value in a list of parked events.
# Depth of nested containers. A control message allows 32, including the containers around the value.
PLAIN_DEPTH = 24

GATEWAYS, QUEUES = "Gateways", "Asynchronous event queues"
IF_EXISTS = Option("if-exists", "no error if it is not there", flag=True)
IF_NOT_EXISTS = Option("if-not-exists", "no error if it is there", flag=True)
SENDER_ID = Option("id", "the sender's id", required=True)


def ledger_fault(answer: Answer) -> str:
    ledger = answer["ledger"]
    if ledger["balanced"]:
        return ""
    return f"{ledger['unexplained']:,} events are unaccounted for (DataLossError); --json shows the ledger"


def lag_text(answer: Answer) -> str:
    events, cause = answer["lag"].get("events") or 0, answer["lag"].get("cause")
    if not events:
        return cause or "none"  # A stopped sender has no cause either, and drops new events.
    cause = f", {cause}" if cause else ""
    size, age = answer["lag"].get("bytes") or 0, answer["lag"].get("seconds") or 0
    return f"{events:,} event{'s' if events != 1 else ''}, {size_text(size)}, {duration_text(age)}{cause}"


def receivers_text(answer: Answer) -> list[str]:
    """Returns one text for each connected receiver of a sender: address, member, and the numbers of the dispatchers
    with this receiver."""
    at: dict[str, list[str]] = {}
    for each in answer["receivers"]:
        if each["receiver"] is not None:
            at.setdefault(f"{each['receiver']} ({each['member']})", []).append(str(each["dispatcher"]))
    return [f"{receiver}: {', '.join(numbers)}" for receiver, numbers in at.items()]


def to_plain_value(value: Any, depth: int = PLAIN_DEPTH) -> Any:
    """Returns `value` if `value` consists of plain values in containers at most `depth` deep, and its text otherwise.

    A control message has no values that name code.
    """
    if value is None or isinstance(value, (str, bytes, bool, float)):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else _text(value)
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain_value(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return {
            key if isinstance(key, str) else _text(key): to_plain_value(item, depth - 1) for key, item in value.items()
        }
    return _text(value)


def _text(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # A user's class that fails, or a number with more digits than Python writes.
        return quoted(value)


def shown_value(value: Any) -> Any:
    """Returns the form of a value in long lists: a long value is cut to its beginning."""
    if (
        value is None
        or isinstance(value, (bool, float))
        or (isinstance(value, (str, bytes)) and len(value) <= SHOWN_VALUE_CHARACTERS)
    ):
        return value
    text = quoted(value, SHOWN_VALUE_CHARACTERS + 1)
    return to_plain_value(value) if len(text) <= SHOWN_VALUE_CHARACTERS else f"{text[:SHOWN_VALUE_CHARACTERS]}..."


def plain_map(value: Any) -> dict[str, Any]:
    """Returns a mapping or a named tuple, for example statistics, as a map of plain values."""
    plain: dict[str, Any] = to_plain_value(value._asdict() if hasattr(value, "_asdict") else dict(value))
    return plain


def ledger_of(sender: Any) -> dict[str, Any]:
    """Returns the ledger, balanced or not. The entry `balanced` tells the difference."""
    try:
        entry: dict[str, Any] = sender.ledger()
        return entry
    except DataLossError as error:
        return error.ledger


def sender_of(member: MemberCore, id: Any) -> GatewaySender:
    """Returns the member's gateway sender with this id. NotFoundError, in Geode's words: the id is unknown."""
    senders = member.senders.by_id()
    if id not in senders:
        raise NotFoundError(
            f"GatewaySender {id} is not available on member {member.name}; senders there:"
            f" {', '.join(sorted(senders)) or 'none'}"
        )
    return senders[id]
