# The interface of source_memory.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_tables cimport *

cdef enum:
    FAILURES_KEPT = 100000      # Failed events remembered per source partition until the sender has heard of them; over all sources
    FAILURES_KEPT_ALL = 4000000 # so many: 64 MB.

cdef struct applied_slot:
    wan_lock lock               # Held while a run of this partition is applied: an old connection and its successor take turns.
    uint64_t last               # All sequences up to here were applied (or failed, below). Only ever grows.
    uint64_t mount              # Of the sender's log, that the newest of them came from.
    uint64_t settled            # All up to here is settled, as the sender's disk knows.
    uint64_t passed_over        # Up to here there were holes, or settled events that did not come here: what became of those that the sender's disk may
                                # not know of is not known here. Above `last` where a section was not applied to its end.
    wan_failure *failures       # Of sequences above `settled`, ascending.
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

cdef class SourceMemory:
    cdef applied_slot *slots
    cdef readonly uint32_t partitions
    cdef int must_wait          # Something was applied that has to be on the disk before it is acknowledged. Stays: no connection can
                                # tell for the others that nothing is left to wait for.
    cdef set cores              # Regions that were applied to, over all connections.

cdef class ReceiverCounts:
    cdef wan_receiver_counts c

cdef int remember_failure(applied_slot *slot, const wan_failure *failure) noexcept nogil
cdef void forget_failures(applied_slot *slot, uint64_t settled) noexcept nogil
