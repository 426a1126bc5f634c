# Owns the user's callbacks of one dispatcher: the calls while a connection has to be kept alive, and the measured time.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.wire.session cimport Session
from pywan._core.base.status cimport end_if_strayed, report_unraisable
from pywan._core.values.names cimport region_name
from pywan._core.values.tagged cimport Encoded

cdef tuple OPERATIONS = ("create", "update", "destroy")


cdef class SenderCallbacks:
    """The callbacks `transmit_filter(records, one by one) -> list of bool` and `acknowledged(records, one by one)`. A
    record is a result of `record_for_callback`."""

    def __cinit__(self, transmit_filter, acknowledged, on_failure):
        self.transmit_filter, self.acknowledged, self.on_failure = transmit_filter, acknowledged, on_failure
        self.born = wan_forks

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

    cdef list ask_filter(self, Session session, list records):
        """Asks the filter whether each record is sent. If the session was told to stop meanwhile, the filter returns
        fewer answers than records."""
        try:
            return [bool(verdict) for verdict in self.transmit_filter(self._until_stopped(session, records))]
        finally:
            end_if_strayed(self.born, "a dispatcher")

    cdef int tell_acknowledged(self, Session session, list records) except -1:
        try:
            self.acknowledged(self._one_by_one(session, records))
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

    def _one_by_one(self, Session session, list records):
        """Keeps the connection alive before each record, so that all records together cause no time-out at the
        receiver."""
        for record in records:
            end_if_strayed(self.born, "a dispatcher")
            with nogil:
                session.keep_alive()
            yield record

    def _until_stopped(self, Session session, list records):
        for record in self._one_by_one(session, records):
            if wan_flag_read(&session.stop_flag):
                return
            yield record
