# Owns the calls of the user's filters of one gateway sender, in their order, from compiled code.
from pywan._core.values.queue_event cimport GatewayQueueEvent, event_of_bytes
from pywan._core.region.enqueue import WITHHELD


cdef class EventFilters:
    """Calls the methods of a sender's filters. A derived class says what happens to the error of a method: `failed`."""

    def __init__(self, *, before_enqueue=(), before_transmit=(), after_acknowledgement=(), substitute=None,
                 bint withholds=True):
        """`withholds`: an event whose substitution filter fails does not leave. Otherwise its own value is sent."""
        self.before_enqueue, self.before_transmit = tuple(before_enqueue), tuple(before_transmit)
        self.after_acknowledgement, self.substitute = tuple(after_acknowledgement), substitute
        self.withheld = WITHHELD if withholds else None

    def failed(self, str name, method, event, error):
        """Called if the `method` of a filter raised `error` for `event`. The event is treated as if the method had
        returned True, or as `withholds` says. An error that `failed` raises ends the work on the section."""
        raise error

    @property
    def decides_enqueue(self):
        """Whether a filter must see an event before it is queued."""
        return bool(self.before_enqueue) or self.substitute is not None

    @property
    def decides_transmit(self):
        """Whether a filter must see an event before it is sent."""
        return bool(self.before_transmit)

    @property
    def wants_acknowledgements(self):
        """Whether a filter wants to hear of acknowledged events."""
        return bool(self.after_acknowledgement)

    def substitute_for(self, GatewayQueueEvent event not None):
        """Returns the (form, bytes) that the substitution filter gives. None: there is no filter for this event."""
        return substitute_for(self, event)

    def decide_enqueue(self, GatewayQueueEvent event not None):
        """Returns None (enqueue the event), False (it is filtered), (form, bytes) of a value to send instead of its
        own, or WITHHELD (it must not leave, since the substitution filter failed)."""
        return answer_about(self, event)

    def tell_acknowledged(self, records):
        """Tells the filters that these events were acknowledged. Each one is (record, (partition, sequence, whether it
        may have been applied before))."""
        cdef bytes record
        for record, (_, _, possible_duplicate) in records:
            after_acknowledgement(self, event_of_bytes(record, possible_duplicate))
