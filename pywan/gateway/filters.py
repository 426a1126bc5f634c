"""Owns the user's filters of one gateway sender, and decides about an event whose filter fails: a filter that masks
values closes the way when it fails, and one that chooses events opens it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from pywan import _core
from pywan.base.lines import Lines
from pywan.config.attributes import CALLBACK_METHODS, QueueAttributes
from pywan.config.classes import let_through, make_instance, overrides
from pywan.events import OPERATIONS, GatewayQueueEvent, event_of_record

log = logging.getLogger("pywan.sender")

_WITHHELD = {
    "park": "the event is parked",
    "drop": "the event is dropped",
    "send": "the original value is sent",
}


class SenderFilters:
    """The filters that a sender's attributes name. A sender that is altered gets a new object.

    `position` of a record is (partition, sequence, whether the event may have been applied before).
    """

    def __init__(self, attributes: QueueAttributes) -> None:
        a = attributes
        what = a.what
        methods = CALLBACK_METHODS["gateway_event_filters"]
        self._label = a.label
        self._filters = tuple(
            make_instance(f, f"{what}: gateway_event_filter", methods) for f in a.gateway_event_filters
        )
        substitution = a.gateway_event_substitution_filter
        self._substitution = (
            None
            if substitution is None
            else make_instance(
                substitution,
                f"{what}: gateway_event_substitution_filter",
                CALLBACK_METHODS["gateway_event_substitution_filter"],
            )
        )
        self._on_error = a.substitution_on_error
        self._before_enqueue = self._overriding("before_enqueue")
        self._before_transmit = self._overriding("before_transmit")
        self._after_acknowledgement = self._overriding("after_acknowledgement")
        self._lines = Lines(log)

    @property
    def decides_enqueue(self) -> bool:
        """Whether a filter must see an event before it is queued."""
        return bool(self._before_enqueue) or self._substitution is not None

    @property
    def decides_transmit(self) -> bool:
        """Whether a filter must see an event before it is sent."""
        return bool(self._before_transmit)

    @property
    def wants_acknowledgements(self) -> bool:
        """Whether a filter wants to hear of acknowledged events."""
        return bool(self._after_acknowledgement)

    @property
    def parks_withheld(self) -> bool:
        """Whether an event that is withheld, because the substitution filter failed, is to be parked."""
        return self._on_error == "park"

    def decide_enqueue(self, event: GatewayQueueEvent) -> Any:
        """Returns None (enqueue the event), False (it is filtered), (form, bytes) of a value to send instead of its
        own, or WITHHELD (it must not leave, since the substitution filter failed)."""
        substitute: Any = None
        try:
            substitute = self._substitute(event)
        except BaseException as error:
            self._failed(
                error,
                f"the substitution filter failed for key {event.key!r:.80} of region {event.region!r};"
                f" {_WITHHELD[self._on_error]}",
            )
            if self._on_error != "send":
                substitute = _core.WITHHELD
        for each in self._before_enqueue:
            try:
                if not each.before_enqueue(event):
                    return False
            except BaseException as error:
                self._failed(error, f"before_enqueue of {each!r} failed; the event is queued")
        return substitute

    def mask_again(self, record: bytes) -> bytes | None:
        """Asks the substitution filter about an event that was withheld. Returns the record with the value to send.
        None: the filter fails still."""
        event = event_of_record(record)
        try:
            value = self._substitute(event)
        except BaseException as error:
            self._failed(
                error,
                f"the substitution filter failed again for key {event.key!r:.80} of region {event.region!r}; the event"
                " stays parked",
            )
            return None
        f = _core.record_fields(record)
        return _core.make_record(
            event.region,
            f["operation"],
            f["key"],
            f["value"] if value is None else value,
            f["callback"],
            (f["stamp"], f["stamp_site"]),
            f["origin_site"],
            f["recipients"],
            f["event_id"],
            f["flags"],
        )

    def _substitute(self, event: GatewayQueueEvent) -> tuple[int, bytes] | None:
        """Returns the (form, bytes) that the substitution filter gives. None: there is no filter for this event."""
        if self._substitution is None or event.operation == OPERATIONS[_core.DESTROY]:
            return None
        return _core.encode_object(self._substitution.get_substitute_value(event))

    def choose(self, records: Iterable[tuple[bytes, tuple[int, int, bool]]]) -> list[bool]:
        """Returns for each record whether it is sent. Each record comes with its position."""
        verdicts = []
        for record, (_, _, possible_duplicate) in records:
            event = event_of_record(record, possible_duplicate)
            is_sent = True
            for each in self._before_transmit:
                try:
                    if not each.before_transmit(event):
                        is_sent = False
                        break
                except BaseException as error:
                    self._failed(error, f"before_transmit of {each!r} failed; the event is sent")
            verdicts.append(is_sent)
        return verdicts

    def tell_acknowledged(self, records: Iterable[tuple[bytes, tuple[int, int, bool]]]) -> None:
        """Tells the filters that these events, each with its position, were acknowledged."""
        for record, (_, _, possible_duplicate) in records:
            event = event_of_record(record, possible_duplicate)
            for each in self._after_acknowledgement:
                try:
                    each.after_acknowledgement(event)
                except BaseException as error:
                    self._failed(error, f"after_acknowledgement of {each!r} failed")

    def _overriding(self, method: str) -> tuple[Any, ...]:
        """Returns the filters that have a `method` of their own.

        The others need not be asked, so the core need not take the GIL for them.
        """
        return tuple(f for f in self._filters if overrides(f, method))

    def _failed(self, error: BaseException, text: str) -> None:
        """Logs the failure of a filter. A filter that fails does so for every event."""
        let_through(error)
        self._lines.exception("%s: %s", self._label, text)
