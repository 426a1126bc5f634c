# The interface of receiver_report.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_session cimport *
from pywan._core.calls.call_events cimport failed_event
from pywan._core.gateway.source_memory cimport ReceiverCounts
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.session cimport Session

cdef enum:
    # The receiver reads the clock after at most so many records, and after each record with user callbacks in Python.
    PROGRESS_RECORDS = 256

cdef class ReceiverReport(Session):
    cdef ReceiverCounts counts
    # (region, operation, key, reason) -> None, for the log: called for the first events that are not applied, and for
    # some of the later ones.
    cdef object on_failure
    cdef uint64_t failed_events     # Number of unapplied events of this connection.
    cdef uint64_t credit_bytes
    # Failures of the unacknowledged batches: at most as many as the batches have records.
    cdef failed_event *failures
    cdef size_t failure_count, failure_capacity
    # Records handled on this connection, plus received pieces of unfinished frames. PROGRESS tells the sender.
    cdef uint64_t steps
    cdef uint64_t told_us           # Time of the last report to the sender.
    cdef uint32_t untold            # Records since the last reading of the clock.
    cdef uint32_t born              # `wan_forks` of the process that made this session.
    cdef wan_receiver_counts own    # Counts not yet added to `counts`, the sum of all connections.
    # The region of the last event with an effect in this section, and the number of events missing in the region's
    # count.
    cdef region_core *applied_in
    cdef uint64_t applied
    # A queue of ours was full, so the connection ends without an acknowledgement.
    cdef int refused_code

    cdef int tell_progress(self) noexcept nogil
    cdef int note_failure(self, uint64_t number, uint32_t partition, uint64_t sequence,
                          uint32_t reason) noexcept nogil
    cdef int acknowledge(self, uint64_t id, uint64_t number, uint32_t worked_us) noexcept nogil
    cdef void refuse(self, object error)
    cdef int give_up(self, error)
    cdef void add_applied(self) noexcept nogil
    cdef void add_counts(self, const wan_receiver_counts *counts) noexcept nogil
    cdef void tell_counts(self) noexcept nogil


cdef inline void note_applied(ReceiverReport session, region_core *core) noexcept nogil:
    """Counts an event that took effect."""
    if core != session.applied_in:
        session.add_applied()
        session.applied_in = core
    session.applied += 1
