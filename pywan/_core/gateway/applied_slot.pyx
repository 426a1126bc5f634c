# Owns what has been applied of one partition or stream (`applied_slot`): through which sequence, and which of its
# events failed.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove
from pywan._core.c_base cimport *


cdef uint64_t failures_kept = 0     # Failures that this process remembers, over all sources. Atomic.


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


cdef void forget_failures(applied_slot *slot, uint64_t settled, bint is_stream) noexcept nogil:
    """Forgets failures of which the sender has heard. If that member of its site dies before the others hear of them,
    another one sends these events again. So of a stream the newest are kept, while there is room."""
    cdef uint32_t n = first_failure(slot, settled + 1)
    if is_stream and n and wan_read(&failures_kept) < FAILURES_KEPT_ALL // 2:
        n = n - FAILURES_KEPT_HEARD if n >= 2 * FAILURES_KEPT_HEARD else 0
    if n:
        memmove(slot.failures, slot.failures + n, (slot.failure_count - n) * sizeof(wan_failure))
        slot.failure_count -= n
        wan_add_shared(&failures_kept, -<uint64_t>n)
        if slot.failure_count == 0:
            free(slot.failures)
            slot.failures, slot.failure_capacity = NULL, 0


cdef void forget_applied(applied_slot *slot) noexcept nogil:
    """Makes a slot as if nothing had come. Nobody uses it meanwhile, or the caller has its lock."""
    wan_add_shared(&failures_kept, -<uint64_t>slot.failure_count)
    free(slot.failures)
    slot.failures, slot.failure_count, slot.failure_capacity = NULL, 0, 0
    slot.mount = slot.settled = slot.passed_over = 0
    wan_set(&slot.last, 0)


def remembered_failures():
    """How many failed events this process remembers, over all sources, until their senders have heard of them."""
    return wan_read(&failures_kept)
