# The interface of receiver_regions.pyx.
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from pywan._core.base.clock cimport Clock
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_tables cimport WAN_FAILED_NOT_PERMITTED, WAN_FAILED_REGION_NOT_FOUND, wan_record
from pywan._core.calls.call_events cimport shared_out
from pywan._core.gateway.receiver_report cimport ReceiverReport
from pywan._core.gateway.source_memory cimport SourceMemory
from pywan._core.region.apply_event cimport is_event_ahead
from pywan._core.region.region_state cimport region_core

cdef struct region_slot:
    region_core *core           # NULL: it was not found at the last look.
    uint64_t looked_batch       # The batch of this connection in which it was last looked up.
    bint is_forbidden           # It has no core, since the sender's user may not write it.
    shared_out *shared[2]       # What is shared out of it, by round. NULL: nothing was, since it was looked up.

cdef class ReceiverRegions(ReceiverReport):
    cdef SourceMemory memory        # What was applied of the sender's queue.
    cdef object find_region
    cdef object may_write           # name -> bool: whether the sender's user may. None: all regions.
    cdef int look_flag              # What the sender's user may write is to be looked at again.
    cdef dict names, cores
    # Regions that were replaced when batch `replaced_batch` looked them up anew. They are kept alive until the next
    # such batch.
    cdef list replaced
    cdef uint64_t replaced_batch
    cdef wan_pages regions          # A region_slot for each region, by the sender's number.
    cdef uint64_t batch             # The number of the batch in work, from 1. It says when a region was looked up.
    cdef wan_clock *clock           # The clock of the regions of this member. NULL: no region was looked up yet.
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
    """NULL: neither the region with this number nor one near to it was named."""
    return <region_slot *>wan_pages_find(&session.regions, number)


cdef inline region_core *region_of(ReceiverRegions session, uint16_t number) noexcept nogil:
    """The region with the sender's number. NULL: it is not here, or was not named."""
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
    """Why no event of the region with the sender's number is applied, which `region_of` has not found."""
    cdef region_slot *slot = slot_of(session, number)
    if slot != NULL and slot.is_forbidden:
        return WAN_FAILED_NOT_PERMITTED
    return WAN_FAILED_REGION_NOT_FOUND


cdef inline bint is_ahead(ReceiverRegions session, const wan_record *record) noexcept nogil:
    """Whether the record's stamp is too far in the future. Its region was looked up before."""
    return is_event_ahead(session.clock, record, &session.now_ms, session.max_drift_ms)
