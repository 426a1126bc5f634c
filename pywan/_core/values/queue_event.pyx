# Owns the event that the filters of a sender get: its own copy of a record, whose parts are decoded when they are read.
cimport cython
from libc.stdint cimport uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_record cimport *
from pywan._core.base.status cimport raise_for
from pywan._core.values.names cimport region_name
from pywan._core.values.tagged cimport show
from pywan._core.values.codec import encode_key_object, encode_object
from pywan._core.values.records import make_record

OPERATIONS = ("create", "update", "destroy")

cdef tuple _operations = OPERATIONS
cdef object _sequence_id = None     # EventSequenceID, once an event's identity was read.

cdef enum:
    SEEN_KEY = 1, SEEN_VALUE = 2, SEEN_ARGUMENT = 4


cdef object sequence_id_type():
    global _sequence_id
    if _sequence_id is None:
        from pywan.events import EventSequenceID
        _sequence_id = EventSequenceID
    return _sequence_id


@cython.final
@cython.freelist(64)
@cython.auto_pickle(False)
cdef class GatewayQueueEvent:
    """An event on its way through a gateway sender's queue. Filters get it. Key, value and callback argument are
    decoded when they are read first. The event does not change, and may be kept, when the queue goes on."""

    def __init__(self, str region not None, str operation not None, key, value, callback_argument, *,
                 creation_timestamp, origin_site, possible_duplicate=False, event_id=(0, 0, 0)):
        record = make_record(
            region, _operations.index(operation), encode_key_object(key), encode_object(value),
            encode_object(callback_argument), (creation_timestamp << 16, origin_site), origin_site, b"", event_id)
        if self.record is not None:         # Another thread may be reading it.
            raise TypeError("an event does not change")
        self.record = record
        self.repeated, self.seen = possible_duplicate, 0

    @property
    def region(self):
        """The region's name."""
        return region_name(head_of(self).region) or "?"

    @property
    def operation(self):
        """"create", "update" or "destroy"."""
        return _operations[head_of(self).operation]

    @property
    def key(self):
        """The key."""
        cdef const wan_record *head = head_of(self)
        if not self.seen & SEEN_KEY:
            self.key_seen = show(head.key_form, wan_record_key(head), head.key_length)
            self.seen |= SEEN_KEY
        return self.key_seen

    @property
    def value(self):
        """The new value. None for a destroy."""
        cdef const wan_record *head = head_of(self)
        if not self.seen & SEEN_VALUE:
            if head.operation != WAN_DESTROY:
                self.value_seen = show(head.value_form, wan_record_value(head), head.value_length)
            self.seen |= SEEN_VALUE
        return self.value_seen

    @property
    def callback_argument(self):
        """The object that the caller gave with the change. None: it gave none."""
        cdef const wan_record *head = head_of(self)
        if not self.seen & SEEN_ARGUMENT:
            self.argument_seen = show(head.callback_form, wan_record_callback(head), head.callback_length)
            self.seen |= SEEN_ARGUMENT
        return self.argument_seen

    @property
    def creation_timestamp(self):
        """Milliseconds since 1970, by the clock of the site that made the event."""
        return head_of(self).stamp >> 16

    @property
    def origin_site(self):
        """The id of the site that made the event."""
        return head_of(self).origin_site

    @property
    def possible_duplicate(self):
        """Whether the remote site may have applied the event before."""
        return self.repeated

    @property
    def event_id(self):
        """The event's identity, an `EventSequenceID`, the same at every site."""
        cdef const wan_record *head = head_of(self)
        return sequence_id_type()(head.event_member, head.event_thread, head.event_sequence)

    def __repr__(self):
        return f"<{self.operation} of {self.key!r:.80} in {self.region}>"


cdef inline const wan_record *head_of(GatewayQueueEvent event) except NULL:
    if event.record is None:
        raise TypeError("the event was not initialised")
    return <const wan_record *>PyBytes_AS_STRING(event.record)


def event_of_record(bytes record not None, bint possible_duplicate=False):
    """Returns the event that a record in wire form holds. SerializationError: the bytes are no record."""
    raise_for(wan_record_check(<const uint8_t *>PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record)), "")
    return event_of_bytes(record, possible_duplicate)
