# Owns the applied state of one partition or stream (`applied_slot`): the last sequence, and the failed events.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove
from pywan._core.c_base cimport *


cdef uint64_t failures_kept = 0     # Remembered failures of the process, over all sources. Atomic.


cdef int remember_failure(applied_slot *slot, const wan_failure *failure) noexcept nogil:
    cdef uint32_t capacity
    if slot.failure_count >= FAILURES_KEPT or wan_read(&failures_kept) >= FAILURES_KEPT_ALL:
        return 0
    if slot.failure_count == slot.failure_capacity:
        capacity = slot.failure_capacity * 2 if slot.failure_capacity else 16
        grown = realloc(slot.failures, capacity * sizeof(wan_failure))
        if grown == NULL:
            return 0
        slot.failures, slot.failure_capacity = <wan_failure *>grown, capacity
    slot.failures[slot.failure_count] = failure[0]
    slot.failure_count += 1
    wan_add_shared(&failures_kept, 1)
    return 1


cdef void forget_failures(applied_slot *slot, uint64_t acknowledged, bint is_stream) noexcept nogil:
    """Forgets failures known to the sender. If the sending member dies before the site's remaining members know the
    failures, another member sends the events again. So the newest failures of a stream are kept, while the limit
    allows."""
    cdef uint32_t n = first_failure(slot, acknowledged + 1)
    if is_stream and n and wan_read(&failures_kept) < FAILURES_KEPT_ALL // 2:
        n = n - FAILURES_KEPT_RECEIVED if n >= 2 * FAILURES_KEPT_RECEIVED else 0
    if n:
        memmove(slot.failures, slot.failures + n, (slot.failure_count - n) * sizeof(wan_failure))
        slot.failure_count -= n
        wan_add_shared(&failures_kept, -<uint64_t>n)
        if slot.failure_count == 0:
            free(slot.failures)
            slot.failures, slot.failure_capacity = NULL, 0


cdef void forget_applied(applied_slot *slot) noexcept nogil:
    """Clears a slot. No other thread uses the slot meanwhile, or the caller has the lock."""
    wan_add_shared(&failures_kept, -<uint64_t>slot.failure_count)
    free(slot.failures)
    slot.failures, slot.failure_count, slot.failure_capacity = NULL, 0, 0
    slot.mount = slot.acknowledged = slot.passed_over = 0
    wan_set(&slot.last, 0)


def remembered_failures():
    """Returns the number of failed events remembered in this process, over all sources, until the senders know the
    failures."""
    return wan_read(&failures_kept)
