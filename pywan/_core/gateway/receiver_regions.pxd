# The interface of receiver_regions.pyx.
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from pywan._core.base.clock cimport Clock
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.calls.call_events cimport shared_out
from pywan._core.gateway.receiver_report cimport ReceiverReport
from pywan._core.gateway.source_memory cimport SourceMemory
from pywan._core.region.apply_event cimport is_event_ahead
from pywan._core.region.region_state cimport region_core

cdef struct region_slot:
    region_core *core           # NULL: the last look-up did not find the region.
    uint64_t looked_batch       # Number of the batch with the last look-up.
    bint is_forbidden           # True: no core, since the sender's user may not write the region.
    shared_out *shared[2]       # By round: events for other members. NULL: no such events since the look-up.

cdef class ReceiverRegions(ReceiverReport):
    cdef SourceMemory memory        # Memory of applied events of the sender's queue.
    cdef object find_region
    cdef object may_write           # name -> bool: whether the sender's user may write. None: all regions.
    cdef int look_flag              # The permissions of the sender's user must be checked again.
    cdef dict names, cores
    # Regions that batch `replaced_batch` replaced by a new look-up. The old regions are kept alive until the next batch
    # with a replacement.
    cdef list replaced
    cdef uint64_t replaced_batch
    cdef wan_pages regions          # A region_slot for each region, by the sender's number.
    cdef uint64_t batch             # The number of the batch in work, from 1. Identifies the time of a look-up.
    cdef wan_clock *clock           # The clock of the member's regions. NULL: no region was looked up yet.
    cdef Clock clock_holder         # Keeps the clock alive.
    cdef uint64_t now_ms            # The time at the start of the batch, or at a later look.
    cdef uint64_t max_drift_ms

    cdef void begin_batch(self) noexcept nogil
    cdef void look_at_permissions(self) noexcept with gil
    cdef bint is_permitted(self, uint16_t number) noexcept
    cdef void forbid(self, uint16_t number) noexcept
    cdef int learn_region(self, const wan_frame *frame) noexcept with gil
    cdef region_core *look_up(self, uint16_t number) noexcept with gil
    cdef void note_refused(self, const wan_record *record, uint32_t reason, const region_core *core) noexcept nogil
    cdef void tell_refused(self, const wan_record *record, uint32_t reason, const region_core *core) noexcept with gil
    cdef bint is_named(self, uint16_t number) noexcept with gil
    cdef dict mark_logs(self, bint hurry)


cdef inline region_slot *slot_of(ReceiverRegions session, uint16_t number) noexcept nogil:
    """Returns NULL if neither the region with this number nor a number near to it was named."""
    return <region_slot *>wan_pages_find(&session.regions, number)


cdef inline region_core *region_of(ReceiverRegions session, uint16_t number) noexcept nogil:
    """Returns the region with the sender's number. NULL: the region is missing, or was not named."""
    cdef region_slot *slot = slot_of(session, number)
    cdef region_core *core
    if slot == NULL:
        return NULL
    core = slot.core
    if core != NULL and not wan_flag_read(&core.closed):
        return core
    if slot.looked_batch == session.batch:
        return NULL
    if core == NULL and slot.looked_batch == 0 and not session.is_named(number):
        return NULL
    return session.look_up(number)


cdef inline int why_absent(ReceiverRegions session, uint16_t number) noexcept nogil:
    """Returns the reason why events of a region that `region_of` has not found are not applied."""
    cdef region_slot *slot = slot_of(session, number)
    if slot != NULL and slot.is_forbidden:
        return WAN_FAILED_NOT_PERMITTED
    return WAN_FAILED_REGION_NOT_FOUND


cdef inline bint is_ahead(ReceiverRegions session, const wan_record *record) noexcept nogil:
    """Returns whether the record's stamp is too far in the future. The region was looked up before."""
    return is_event_ahead(session.clock, record, &session.now_ms, session.max_drift_ms)
