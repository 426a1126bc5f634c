# The interface of queue_event.pyx.
from libc.stdint cimport uint8_t
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_record cimport wan_record, wan_record_length

cdef class GatewayQueueEvent:
    cdef bytes record           # The event's own copy of its record, in wire form.
    # The key, value and callback argument that were read before: `seen` has a bit for each.
    cdef object key_seen, value_seen, argument_seen
    cdef uint8_t seen
    cdef bint repeated          # The remote site may have applied the event before.


cdef inline GatewayQueueEvent event_of_bytes(bytes record, bint repeated):
    """Returns the event of a whole, checked record."""
    cdef GatewayQueueEvent made = GatewayQueueEvent.__new__(GatewayQueueEvent)
    made.record, made.repeated = record, repeated
    return made


cdef inline GatewayQueueEvent event_of(const wan_record *record, bint repeated):
    """Returns the event of a whole, checked record. The event has a copy of the record."""
    return event_of_bytes(PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record)), repeated)
