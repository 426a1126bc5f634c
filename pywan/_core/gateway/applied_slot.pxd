# The interface of applied_slot.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *

cdef enum:
    # Failed events that are remembered until the sender has heard of them: per partition or stream ...
    FAILURES_KEPT = 100000
    FAILURES_KEPT_ALL = 4000000     # ... and over all sources, which is 64 MB.
    FAILURES_KEPT_HEARD = 4096      # A stream keeps so many at least of which the sender has heard.

cdef struct applied_slot:
    # Held while a run of this partition or stream is applied: several connections that have some of it take turns.
    wan_lock lock
    uint64_t last               # All sequences up to this one were applied (or failed, see below). It only grows.
    uint64_t mount              # The mount of the sender's log that the newest of them came from. Not used of a stream.
    uint64_t settled            # All sequences up to this one are settled, as the sender's disk knows.
    # Up to this sequence there were holes, or settled events that did not come here. Some of these the sender's disk
    # may not know of, and this member does not know what became of them. It is above `last` if a section was not
    # applied to its end.
    uint64_t passed_over
    wan_failure *failures       # Failures of sequences above `settled`, and of a stream some before, ascending.
    uint32_t failure_count, failure_capacity

cdef inline uint32_t first_failure(const applied_slot *slot, uint64_t sequence) noexcept nogil:
    """The first remembered failure of this or a later sequence."""
    cdef uint32_t low = 0, high = slot.failure_count, middle
    while low < high:
        middle = low + (high - low) // 2
        if slot.failures[middle].sequence < sequence:
            low = middle + 1
        else:
            high = middle
    return low

cdef int remember_failure(applied_slot *slot, const wan_failure *failure) noexcept nogil
cdef void forget_failures(applied_slot *slot, uint64_t settled, bint is_stream) noexcept nogil
cdef void forget_applied(applied_slot *slot) noexcept nogil
