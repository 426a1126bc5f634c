# The interface of sender_callbacks.pyx.
from libc.stdint cimport uint32_t, uint64_t
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_record cimport WAN_FLAG_REPEATED, wan_event_name, wan_record, wan_record_length
from pywan._core.queue.queue cimport gateway_queue
from pywan._core.wire.session cimport Session

cdef class SenderCallbacks:
    cdef object transmit_filter     # The three callbacks may be None: no callback.
    cdef object acknowledged
    cdef object on_failure          # (partition, sequence, reason, (region, operation, key)) -> None, for the log.
    cdef uint64_t spent_us          # Time spent in callbacks that have returned.
    cdef uint64_t since_us          # Start of the running callback; 0: no callback runs.
    cdef uint32_t born              # `wan_forks` of the process that made this object.

    cdef void begin(self, Session session) noexcept nogil
    cdef void end(self, Session session) noexcept nogil
    cdef list ask_filter(self, Session session, list records)
    cdef int tell_acknowledged(self, Session session, list records) except -1
    cdef void tell_failure(self, uint32_t partition, uint64_t sequence, uint32_t reason,
                           const wan_event_name *name) noexcept with gil
    cdef object time_us(self, uint64_t now_us)


cdef inline tuple record_for_callback(const gateway_queue *gateway, const wan_record *record, uint32_t partition,
                                      uint64_t sequence):
    """Returns the record in wire form, and its position: partition, sequence, and whether the event may have been
    applied before."""
    return (PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record)),
            (partition, sequence, sequence <= gateway.queue.partitions[partition].duplicate_through
             or record.flags & WAN_FLAG_REPEATED != 0))
