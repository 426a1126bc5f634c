# The interface of applied_slot.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *

cdef enum:
    # Failed events that are remembered until the sender knows the failures: limit of a partition or stream ...
    FAILURES_KEPT = 100000
    FAILURES_KEPT_ALL = 4000000     # ... and limit over all sources (64 MB).
    FAILURES_KEPT_RECEIVED = 4096      # A stream keeps at least so many failures known to the sender.

cdef struct applied_slot:
    # Held while a run of the partition or stream is applied: connections with the same partition or stream take turns.
    wan_lock lock
    uint64_t last               # Through this sequence all were applied, or failed. Only grows.
    uint64_t mount              # Mount of the sender's log for the newest sequence. Not used for streams.
    uint64_t acknowledged            # Through this sequence all are acknowledged, as the sender's disk knows.
    # End of the holes, and of acknowledged events that did not come to this member. The sender's disk may not know some
    # of these, and this member does not know their results. The value is above `last` if a section was not applied to
    # its end.
    uint64_t passed_over
    wan_failure *failures       # Failures above `acknowledged`, ascending; for streams also some before.
    uint32_t failure_count, failure_capacity

cdef inline uint32_t first_failure(const applied_slot *slot, uint64_t sequence) noexcept nogil:
    """Returns the index of the first remembered failure at `sequence` or later."""
    cdef uint32_t low = 0, high = slot.failure_count, middle
    while low < high:
        middle = low + (high - low) // 2
        if slot.failures[middle].sequence < sequence:
            low = middle + 1
        else:
            high = middle
    return low

cdef int remember_failure(applied_slot *slot, const wan_failure *failure) noexcept nogil
cdef void forget_failures(applied_slot *slot, uint64_t acknowledged, bint is_stream) noexcept nogil
cdef void forget_applied(applied_slot *slot) noexcept nogil
