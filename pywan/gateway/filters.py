"""Owns the user's filters of one gateway sender, and decides about an event whose filter fails: a filter that masks
values closes the way when it fails, and one that chooses events opens it."""

from __future__ import annotations

import logging
from typing import Any

from pywan import _core
from pywan.base.lines import Lines
from pywan.config.attributes import CALLBACK_METHODS, QueueAttributes
from pywan.config.classes import let_through, make_instance, overrides
from pywan.events import GatewayQueueEvent

log = logging.getLogger("pywan.sender")

_WITHHELD = {
    "park": "the event is parked",
    "drop": "the event is dropped",
    "send": "the original value is sent",
}
# The treatment of an event whose filter failed.
_TREATED = {
    "before_enqueue": "; the event is queued",
    "before_transmit": "; the event is sent",
    "after_acknowledgement": "",
}


class SenderFilters(_core.EventFilters):
    """The filters that a sender's attributes name. A sender that is altered gets a new object."""

    def __init__(self, attributes: QueueAttributes) -> None:
        a = attributes
        what = a.what
        methods = CALLBACK_METHODS["gateway_event_filters"]
        self._label = a.label
        filters = tuple(make_instance(f, f"{what}: gateway_event_filter", methods) for f in a.gateway_event_filters)
        substitution = a.gateway_event_substitution_filter
        if substitution is not None:
            substitution = make_instance(
                substitution,
                f"{what}: gateway_event_substitution_filter",
                CALLBACK_METHODS["gateway_event_substitution_filter"],
            ).get_substitute_value
        self._on_error = a.substitution_on_error
        self._lines = Lines(log)
        # A filter without a method of its own need not be asked.
        super().__init__(
            **{method: [getattr(f, method) for f in filters if overrides(f, method)] for method in methods},
            substitute=substitution,
            withholds=self._on_error != "send",
        )

    @property
    def parks_withheld(self) -> bool:
        """Whether an event that is withheld, because the substitution filter failed, is to be parked."""
        return self._on_error == "park"

    def failed(self, name: str, method: Any, event: GatewayQueueEvent, error: BaseException) -> None:
        """Logs that a filter's method failed."""
        if name == "get_substitute_value":
            self._log(error, f"the substitution filter failed for %r; {_WITHHELD[self._on_error]}", event)
        else:
            self._log(error, f"{name} of %r failed for %r{_TREATED[name]}", getattr(method, "__self__", method), event)

    def mask_again(self, record: bytes) -> bytes | None:
        """Asks the substitution filter about an event that was withheld. Returns the record with the value to send.
        None: the filter fails still."""
        event = _core.event_of_record(record)
        try:
            value = self.substitute_for(event)
        except BaseException as error:
            self._log(error, "the substitution filter failed again for %r; the event stays parked", event)
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

    def _log(self, error: BaseException, text: str, *items: object) -> None:
        """Logs the failure of a filter. A filter that fails does so for every event."""
        let_through(error)
        self._lines.exception(f"%s: {text}", self._label, *items, error=error)
