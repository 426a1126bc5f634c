# Owns the partitions of one connection: first the queue's own ones, then those that streams were named for. It knows
# which memory each one has of what was applied, and how far the connection is in it.
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.gateway.applied_slot cimport FAILURES_KEPT, FAILURES_KEPT_ALL, remember_failure
from pywan._core.gateway.stream_memory cimport release_run


cdef class ReceiverStreams(ReceiverRegions):
    """A session that knows what its sender's partitions are."""

    def __dealloc__(self):
        for n in range(self.partition_capacity):
            if self.partitions[n].run != NULL:
                release_run(self.partitions[n].run)
        free(self.partitions)

    cdef int grow_partitions(self, uint32_t capacity) except -1:
        grown = realloc(self.partitions, capacity * sizeof(connection_partition))
        if grown == NULL:
            raise MemoryError()
        self.partitions = <connection_partition *>grown
        memset(self.partitions + self.partition_capacity, 0,
               (capacity - self.partition_capacity) * sizeof(connection_partition))
        self.partition_capacity = capacity
        return 0

    cdef int learn_stream(self, const wan_frame *frame) noexcept with gil:
        """Notes that the sections of a partition are of a stream from now on. 0: the connection is to be given up."""
        cdef const wan_stream *stream = <const wan_stream *>(frame + 1)
        cdef connection_partition *partition
        cdef uint32_t capacity = self.partition_capacity
        cdef stream_run *run
        if wan_stream_check(frame, self.memory.partitions) != WAN_OK:
            return 0
        if stream.region not in self.names:
            wan_note(WAN_CORRUPT, "partition %llu: a stream of region number %u, which was not named",
                     <unsigned long long>frame.id, stream.region)
            return 0
        try:
            if frame.id >= capacity:
                while capacity <= frame.id:
                    capacity *= 2
                self.grow_partitions(min(capacity, <uint32_t>WAN_WIRE_PARTITIONS))
            run = self.memory.streams.hold(self.names[stream.region], stream.buckets)
        except BaseException as error:
            text = str(error).encode("utf-8", "replace") or b"no memory for a stream"
            wan_note(WAN_CORRUPT, "%s", <const char *>text)
            return 0
        partition = &self.partitions[frame.id]
        if partition.run == run and partition.bucket == stream.bucket and partition.life >= stream.life:
            release_run(run)
            wan_note(WAN_CORRUPT, "partition %llu: life %llu of its stream is named behind life %llu",
                     <unsigned long long>frame.id, <unsigned long long>stream.life, <unsigned long long>partition.life)
            return 0
        if partition.run != NULL:
            release_run(partition.run)
        partition.run, partition.slot = run, &run.slots[stream.bucket].applied
        partition.life, partition.bucket, partition.region = stream.life, stream.bucket, stream.region
        partition.through = 0
        partition.place.source = run.source
        partition.place.partition, partition.place.era = stream.bucket, stream.life
        return 1

    cdef int remember(self, applied_slot *slot, const failed_event *failed) noexcept nogil:
        """Remembers a failure, unless another connection has done so. Under the slot's lock. 0: if the acknowledgement
        were lost, no one would know that the event failed. So it stays unapplied and unacknowledged."""
        if failed.failure.sequence <= slot.last or remember_failure(slot, &failed.failure):
            return 1
        wan_note(WAN_CORRUPT, "more than %d failed events of a partition (%d of all) that their senders have not heard "
                              "of, or no memory for them", FAILURES_KEPT, FAILURES_KEPT_ALL)
        return 0
