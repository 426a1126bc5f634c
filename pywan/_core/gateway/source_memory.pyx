# Owns the memory of what has been applied of every source (`SourceMemory`), and the counters of a receiver.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from pywan._core.c_base cimport *
from pywan._core.c_tables cimport *
from pywan._core.gateway.applied_slot cimport applied_slot, forget_applied
from pywan._core.gateway.stream_memory cimport StreamMemory, source_digest


cdef class SourceMemory:
    """What has been applied of one queue numbering of one sender: the last contiguous sequence of each partition.
    `streams`: the same of the streams of that sender, which its queues at other members share; None: its own ones.
    `name`: what tells the numbering from any other, over restarts; "": queues here do not recognise its events."""

    def __cinit__(self, uint32_t partitions, StreamMemory streams=None, str name=""):
        self.streams = StreamMemory() if streams is None else streams
        source_digest(name, self.source)
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
                forget_applied(&self.slots[n])
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
                forget_applied(slot)
        return found

    def mount_of(self, uint32_t partition):
        """The mount that the newest event of a partition came from."""
        return wan_read(&self.slots[partition].mount) if partition < self.partitions else 0


cdef class ReceiverCounts:
    """The counters of one receiver, over all its connections."""

    def counts(self):
        cdef const uint64_t *shared = <const uint64_t *>&self.counters
        return {wan_receiver_counter_rows[n].field.decode(): wan_read(&shared[n])
                for n in range(<int>WAN_RECEIVER_COUNTERS_COUNT)}
