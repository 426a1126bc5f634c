# The interface of sender_callbacks.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport wan_buffer
from pywan._core.base.status cimport end_if_strayed
from pywan._core.c_record cimport wan_event_name
from pywan._core.region.event_filters cimport EventFilters
from pywan._core.wire.session cimport Session

cdef enum:
    KEEP_ALIVE_US = 20000           # Between two looks whether the connection has to be kept alive.

cdef class SenderCallbacks:
    cdef EventFilters filters       # None: no filters.
    # Whether the filters have before_transmit, and after_acknowledgement. They may be read without the GIL.
    cdef int asks_transmit, tells_acknowledged
    cdef object on_failure          # (partition, sequence, reason, (region, operation, key)) -> None, for the log.
    cdef uint64_t spent_us          # Time spent in callbacks that have returned.
    cdef uint64_t since_us          # Start of the running callback; 0: no callback runs.
    cdef uint64_t kept_us           # The last call of `keep_alive`.
    cdef uint32_t born              # `wan_forks` of the process that made this object.

    cdef void begin(self, Session session) noexcept nogil
    cdef void end(self, Session session) noexcept nogil
    cdef int set_filters(self, EventFilters filters) except -1
    cdef int tell_acknowledged(self, Session session, const wan_buffer *events) except -1
    cdef void tell_failure(self, uint32_t partition, uint64_t sequence, uint32_t reason,
                           const wan_event_name *name) noexcept with gil
    cdef object time_us(self, uint64_t now_us)


cdef inline int between_events(SenderCallbacks self, Session session) except -1:
    """Called before the user's Python gets the next event. It keeps the connection alive, so that all events together
    cause no time-out at the receiver. The GIL goes only for that."""
    cdef uint64_t now_us = session.work_us()
    end_if_strayed(self.born, "a dispatcher")
    if now_us >= self.kept_us + KEEP_ALIVE_US:
        self.kept_us = now_us
        with nogil:
            session.keep_alive()
    return 0
