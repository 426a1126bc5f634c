"""Checks that the operations on one key can be put into one order that explains every answer.

The algorithm is Wing and Gong's search ("Testing and verifying concurrent objects", 1993) with Lowe's memory of the
configurations that were seen ("Testing for linearizability", 2017). An operation takes effect at one moment between its
call and its return. The search tries the operations that may be next, and steps back where an answer does not fit. A
configuration (which operations took effect, and the value after them) that failed once is not tried again.

An operation whose outcome is unknown (its caller got an error or nothing) may take effect at any moment after its call,
or never. Its process makes no further calls under the same number: a later call would not be ordered behind it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

STEPS_MAX = 2_000_000  # Steps of one search; beyond this the answer is "gave up", which is no proof of anything.
ABSENT = None  # The value of a key that is not there.


class Verdict(enum.Enum):
    LINEARIZABLE = "linearizable"
    VIOLATION = "violation"
    GAVE_UP = "gave up"


@dataclass(frozen=True)
class Operation:
    """One call. Values are unique in a history, so that an answer names the change that it saw.

    `returned` is math.inf, and `answer` is ignored, where the outcome is unknown.
    """

    process: int
    name: str  # A name of OPERATIONS.
    arguments: tuple[Hashable, ...]
    answer: Hashable
    called: float
    returned: float = math.inf

    @property
    def is_unknown(self) -> bool:
        return self.returned == math.inf


class Effect(NamedTuple):
    value: Hashable  # The value of the key after the operation.
    answer: Hashable


def apply(name: str, arguments: tuple[Hashable, ...], value: Hashable) -> Effect:
    """Applies the operation to a key with this value. This is the plain model of a register with compare and set."""
    match name, arguments:
        case "get", ():
            return Effect(value, value)
        case "put", (new,):
            return Effect(new, None)
        case "destroy", ():
            return Effect(ABSENT, value is not ABSENT)
        case "put_if_absent", (new,):
            return Effect(new if value is ABSENT else value, value)
        case "replace", (new,):
            return Effect(ABSENT if value is ABSENT else new, value)
        case "replace", (old, new):
            return Effect(new, True) if value == old and value is not ABSENT else Effect(value, False)
        case "remove", (old,):
            return Effect(ABSENT, True) if value == old and value is not ABSENT else Effect(value, False)
    raise ValueError(f"{name}{arguments} is no operation of the model")


class _Event:
    """The call or the return of an operation, in a list of all events by time."""

    __slots__ = ("before", "behind", "end", "number", "operation")

    def __init__(self, operation: Operation, number: int) -> None:
        self.operation = operation
        self.number = number
        self.end: _Event | None = None  # The return of a call.
        self.before: _Event | None = None
        self.behind: _Event | None = None


def check(history: Iterable[Operation], *, initial: Hashable = ABSENT, steps_max: int = STEPS_MAX) -> Verdict:
    """Searches an order of the operations on one key that explains every known answer."""
    operations = list(history)
    head = _events_of(operations)
    known = sum(not each.is_unknown for each in operations)
    seen: set[tuple[int, Hashable]] = set()
    taken: list[tuple[_Event, Hashable]] = []  # Calls that took effect, each with the value before it.
    done, value, steps = 0, initial, 0
    event = head.behind
    while known:
        steps += 1
        if steps > steps_max:
            return Verdict.GAVE_UP
        if event is not None and event.end is not None:  # A call: it may be the next that takes effect.
            operation = event.operation
            effect = apply(operation.name, operation.arguments, value)
            configuration = (done | 1 << event.number, effect.value)
            if (operation.is_unknown or effect.answer == operation.answer) and configuration not in seen:
                seen.add(configuration)
                taken.append((event, value))
                done, value = configuration
                known -= not operation.is_unknown
                _take_out(event)
                event = head.behind
            else:
                event = event.behind
        else:  # The return of an operation that has not taken effect: one that did is to be taken back.
            if not taken:
                return Verdict.VIOLATION
            event, value = taken.pop()
            done &= ~(1 << event.number)
            known += not event.operation.is_unknown
            _put_back(event)
            event = event.behind
    return Verdict.LINEARIZABLE


def _events_of(operations: list[Operation]) -> _Event:
    """The head of the list of events. A return comes behind the calls of the same moment: such operations overlap."""
    timed: list[tuple[float, int, int, _Event]] = []
    for number, operation in enumerate(operations):
        call = _Event(operation, number)
        call.end = _Event(operation, number)
        timed.append((operation.called, 0, number, call))
        timed.append((operation.returned, 1, number, call.end))
    head = last = _Event(Operation(-1, "", (), None, -math.inf), -1)
    for *_, event in sorted(timed, key=lambda each: each[:3]):
        last.behind, event.before = event, last
        last = event
    return head


def _take_out(call: _Event) -> None:
    for event in (call, call.end):
        assert event is not None and event.before is not None
        event.before.behind = event.behind
        if event.behind is not None:
            event.behind.before = event.before


def _put_back(call: _Event) -> None:
    for event in (call.end, call):
        assert event is not None and event.before is not None
        event.before.behind = event
        if event.behind is not None:
            event.behind.before = event
