# Owns the memory of what has been applied of every source (`SourceMemory`), and the counters of a receiver.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove
from pywan._core.c_base cimport *
from pywan._core.c_tables cimport *


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


cdef void forget_failures(applied_slot *slot, uint64_t settled) noexcept nogil:
    cdef uint32_t n = first_failure(slot, settled + 1)
    if n:
        memmove(slot.failures, slot.failures + n, (slot.failure_count - n) * sizeof(wan_failure))
        slot.failure_count -= n
        wan_add_shared(&failures_kept, -<uint64_t>n)
        if slot.failure_count == 0:
            free(slot.failures)
            slot.failures, slot.failure_capacity = NULL, 0


cdef class SourceMemory:
    """What has been applied of one queue numbering of one sender: the last contiguous sequence of each partition."""

    def __cinit__(self, uint32_t partitions):
        self.cores = set()
        if partitions == 0 or partitions > 65535:
            from pywan.errors import ProtocolError
            raise ProtocolError(f"a sender with {partitions} partitions; 1 to 65535 are possible")
        self.slots = <applied_slot *>calloc(partitions, sizeof(applied_slot))
        if self.slots == NULL:
            raise MemoryError()
        self.partitions = partitions

    def __dealloc__(self):
        if self.slots != NULL:
            for n in range(self.partitions):
                wan_add_shared(&failures_kept, -<uint64_t>self.slots[n].failure_count)
                free(self.slots[n].failures)
        free(self.slots)

    @property
    def failures(self):
        """How many failed events are remembered until the sender has heard of them."""
        cdef uint64_t count = 0
        cdef uint32_t n
        with nogil:             # A thread that has a slot's lock may wait for the GIL.
            for n in range(self.partitions):
                wan_lock_take(&self.slots[n].lock)
                count += self.slots[n].failure_count
                wan_lock_release(&self.slots[n].lock)
        return count

    def last(self):
        """The last contiguous sequence applied, for every partition."""
        return [wan_read(&self.slots[n].last) for n in range(self.partitions)]

    def known(self, uint64_t mount):
        """The partitions of which something came from another mount than this one. For each: (partition, last sequence,
        the mount that it came from, the sequence up to which the sender's disk knew all to be settled). Call this while
        no session uses the memory."""
        return [(n, wan_read(&self.slots[n].last), wan_read(&self.slots[n].mount), self.slots[n].settled)
                for n in range(self.partitions)
                if wan_read(&self.slots[n].last) and wan_read(&self.slots[n].mount) != mount]

    def forget_passed_over(self):
        """Forgets all about the partitions with events that were passed over here, so that what comes of them is
        applied. Returns these partitions. Call this when a new mount comes, while no session uses the memory. The new
        mount may be of an older copy of the log, which still has these events. Only another copy knows what became of
        them."""
        cdef applied_slot *slot
        found = []
        for n in range(self.partitions):
            slot = &self.slots[n]
            if slot.passed_over > slot.settled:
                found.append(n)
                wan_add_shared(&failures_kept, -<uint64_t>slot.failure_count)
                free(slot.failures)
                slot.failures, slot.failure_count, slot.failure_capacity = NULL, 0, 0
                slot.mount = slot.settled = slot.passed_over = 0
                wan_set(&slot.last, 0)
        return found

    def mount_of(self, uint32_t partition):
        """The mount that the newest event of a partition came from."""
        return wan_read(&self.slots[partition].mount) if partition < self.partitions else 0


def remembered_failures():
    """How many failed events this process remembers, over all sources, until their senders have heard of them."""
    return wan_read(&failures_kept)


cdef class ReceiverCounts:
    """The counters of one receiver, over all its connections."""

    def counts(self):
        cdef const uint64_t *shared = <const uint64_t *>&self.counters
        return {wan_receiver_counter_rows[n].field.decode(): wan_read(&shared[n])
                for n in range(<int>WAN_RECEIVER_COUNTERS_COUNT)}
