# The interface of call_keys.pyx, and the making of changes from calls.
from libc.stdint cimport uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport wan_record
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport wan_attempt
from pywan._core.c_session cimport *
from pywan._core.calls.call_callbacks cimport CallCallbacks
from pywan._core.region.put cimport change_from_record, origin_from_record
from pywan._core.region.region_state cimport origin, region_core

cdef class KeyCalls(CallCallbacks):
    cdef wan_buffer found           # The value that a condition found.

    cdef wan_answer *do_get(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_change(self, region_core *region, const wan_call *call) noexcept nogil


cdef inline void attempt_of(const wan_call *call, wan_attempt *attempt) noexcept nogil:
    """Records the identity of the call that asks for a change."""
    memset(attempt, 0, sizeof(wan_attempt))
    attempt.call.caller, attempt.call.slot, attempt.call.number = call.caller, call.slot, call.number
    attempt.since = call.since if call.flags & WAN_CALL_REPEAT else 0


cdef inline void prepare(region_core *region, const wan_record *record, uint64_t hash, uint64_t stamp,
                         wan_change *change, origin *from_) noexcept nogil:
    """Makes a change of this site from a record. The event of the change keeps the identity from the client."""
    change_from_record(change, record, hash)
    change.local = 1
    change.flags = 0
    change.stamp_site = region.site
    change.stamp = stamp
    change.local_fence = change.sequence = change.recalled = 0
    if record.flags & WAN_FLAG_GIVEN and record.stamp and record.stamp < change.stamp:
        change.stamp, change.flags = record.stamp, WAN_FLAG_GIVEN
    origin_from_record(from_, record, False)
    from_.site = region.site
    from_.recipient_count = 0
