# Owns the user's callbacks of one dispatcher: the calls while a connection has to be kept alive, and the measured time.
from libc.stdint cimport uint32_t, uint64_t
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport wan_event_name, wan_record
from pywan._core.queue.queue_acknowledged cimport taken_event
from pywan._core.region.event_filters cimport EventFilters, after_acknowledgement
from pywan._core.values.queue_event cimport event_of
from pywan._core.wire.session cimport Session
from pywan._core.base.status cimport end_if_strayed, report_unraisable
from pywan._core.values.names cimport region_name
from pywan._core.values.tagged cimport Encoded

cdef tuple OPERATIONS = ("create", "update", "destroy")


cdef class SenderCallbacks:
    """The filters of a dispatcher's sender, and the function that hears of failed events."""

    def __cinit__(self, EventFilters filters, on_failure):
        self.on_failure, self.born = on_failure, wan_forks
        self.set_filters(filters)

    cdef int set_filters(self, EventFilters filters) except -1:
        self.filters = filters
        wan_flag_set(&self.asks_transmit, filters is not None and filters.decides_transmit)
        wan_flag_set(&self.tells_acknowledged, filters is not None and filters.wants_acknowledgements)
        return 0

    cdef void begin(self, Session session) noexcept nogil:
        """Notes the start of a call of the user's Python. `time_us` includes a long call while the call still runs."""
        wan_set(&self.since_us, session.work_us())

    cdef void end(self, Session session) noexcept nogil:
        cdef uint64_t since = self.since_us
        wan_set(&self.since_us, 0)
        wan_add_shared(&self.spent_us, session.work_us() - since)

    cdef object time_us(self, uint64_t now_us):
        """Returns the microseconds spent in the callbacks so far, at `now_us`. Any thread may call."""
        cdef uint64_t since = wan_read(&self.since_us)
        running = now_us - since if since and now_us > since else 0      # A running callback is included.
        return wan_read(&self.spent_us) + running

    cdef int tell_acknowledged(self, Session session, const wan_buffer *events) except -1:
        """Tells the filters that these events (taken_event) were acknowledged."""
        cdef EventFilters filters = self.filters
        cdef const taken_event *head
        cdef uint64_t at = 0
        if filters is None:
            return 0
        try:
            while at < events.used:
                head = <const taken_event *>(events.bytes + at)
                between_events(self, session)
                after_acknowledgement(filters, event_of(<const wan_record *>(head + 1), head.possible_duplicate))
                at += sizeof(taken_event) + head.length
        finally:
            end_if_strayed(self.born, "a dispatcher")
        return 0

    cdef void tell_failure(self, uint32_t partition, uint64_t sequence, uint32_t reason,
                           const wan_event_name *name) noexcept with gil:
        try:
            if self.on_failure is not None:
                self.on_failure(partition, sequence, reason, (
                    region_name(name.region) or "?", OPERATIONS[name.operation],
                    Encoded(name.key_form, PyBytes_FromStringAndSize(<const char *>name.key, name.key_length))))
        except BaseException as error:
            report_unraisable("on_failure", error)
