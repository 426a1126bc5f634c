# Owns the memory of applied events of every source (`SourceMemory`), and the counters of a receiver.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from pywan._core.c_base cimport *
from pywan._core.c_session cimport *
from pywan._core.gateway.applied_slot cimport applied_slot, forget_applied
from pywan._core.gateway.stream_memory cimport StreamMemory, source_digest


cdef class SourceMemory:
    """The applied events of one queue numbering of one sender: the last contiguous sequence of each partition.
    `streams`: the applied events of the sender's streams, shared by the sender's queues at other members; None: own
    streams. `name`: identifies the numbering, over restarts; "": queues of this member do not recognise the events."""

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
        """The number of failed events that are remembered until the sender knows the failures."""
        cdef uint64_t count = 0
        cdef uint32_t n
        with nogil:             # A thread with a slot's lock may wait for the GIL.
            for n in range(self.partitions):
                wan_lock_take(&self.slots[n].lock)
                count += self.slots[n].failure_count
                wan_lock_release(&self.slots[n].lock)
        return count

    def last(self):
        """Returns the last contiguous applied sequence of every partition."""
        return [wan_read(&self.slots[n].last) for n in range(self.partitions)]

    def known(self, uint64_t mount):
        """Returns the partitions with events from another mount than `mount`. By partition: (partition, last sequence,
        mount of the event, sequence through which the sender's disk knew all events as acknowledged). No session may
        use the memory during the call."""
        return [(n, wan_read(&self.slots[n].last), wan_read(&self.slots[n].mount), self.slots[n].acknowledged)
                for n in range(self.partitions)
                if wan_read(&self.slots[n].last) and wan_read(&self.slots[n].mount) != mount]

    def forget_passed_over(self):
        """Forgets the partitions with events passed over in this member, so that new events of the partitions are
        applied. Returns the forgotten partitions. The caller calls the method when a new mount connects, while no
        session uses the memory. The new mount may belong to an older copy of the log that still has the events. Only
        another copy knows the results of the events."""
        cdef applied_slot *slot
        found = []
        for n in range(self.partitions):
            slot = &self.slots[n]
            if slot.passed_over > slot.acknowledged:
                found.append(n)
                forget_applied(slot)
        return found

    def mount_of(self, uint32_t partition):
        """Returns the mount of the newest event of a partition."""
        return wan_read(&self.slots[partition].mount) if partition < self.partitions else 0


cdef class ReceiverCounts:
    """The counters of one receiver, over all its connections."""

    def counts(self):
        cdef const uint64_t *shared = <const uint64_t *>&self.counters
        return {wan_receiver_counter_rows[n].field.decode(): wan_read(&shared[n])
                for n in range(<int>WAN_RECEIVER_COUNTERS_COUNT)}
