# Owns the partitions of one connection: first the queue's own partitions, then partitions named for streams. The unit
# knows the memory of applied events of each partition, and the position of the connection in the partition.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.gateway.applied_slot cimport FAILURES_KEPT, FAILURES_KEPT_ALL, remember_failure
from pywan._core.gateway.stream_memory cimport release_run


cdef class ReceiverStreams(ReceiverRegions):
    """A session with knowledge of the sender's partitions."""

    def __cinit__(self):
        self.partitions.item_bytes = sizeof(connection_partition)

    def __dealloc__(self):
        cdef connection_partition *partition
        for n in range(self.partitions.page_count * WAN_PAGE_ITEMS):
            partition = partition_at(self, n)
            if partition != NULL and partition.run != NULL:
                release_run(partition.run)
        wan_pages_close(&self.partitions)

    cdef connection_partition *make_partition(self, uint32_t number) except NULL:
        """Returns the partition. The content is all zeros if the partition was not named before."""
        made = <connection_partition *>wan_pages_put(&self.partitions, number)
        if made == NULL:
            raise MemoryError()
        return made

    cdef int learn_stream(self, const wan_frame *frame) noexcept with gil:
        """Notes that the sections of a partition belong to a stream from now on. 0: the connection is to be given
        up."""
        cdef const wan_stream *stream = <const wan_stream *>(frame + 1)
        cdef connection_partition *partition
        cdef stream_run *run
        if wan_stream_check(frame, self.memory.partitions) != WAN_OK:
            return 0
        if stream.region not in self.names:
            wan_note(WAN_CORRUPT, "partition %llu: a stream of region number %u, which was not named",
                     <unsigned long long>frame.id, stream.region)
            return 0
        try:
            partition = self.make_partition(<uint32_t>frame.id)
            run = self.memory.streams.hold(self.names[stream.region], stream.buckets)
        except BaseException as error:
            text = str(error).encode("utf-8", "replace") or b"no memory for a stream"
            wan_note(WAN_CORRUPT, "%s", <const char *>text)
            return 0
        if partition.run == run and partition.bucket == stream.bucket and partition.timeline >= stream.timeline:
            release_run(run)
            wan_note(WAN_CORRUPT, "partition %llu: timeline %llu of its stream is named behind timeline %llu",
                     <unsigned long long>frame.id, <unsigned long long>stream.timeline,
                     <unsigned long long>partition.timeline)
            return 0
        if partition.run != NULL:
            release_run(partition.run)
        partition.run, partition.slot = run, &run.slots[stream.bucket].applied
        partition.timeline, partition.bucket, partition.region = stream.timeline, stream.bucket, stream.region
        partition.through = 0
        partition.place.source = run.source
        partition.place.partition, partition.place.timeline = stream.bucket, stream.timeline
        return 1

    cdef int remember(self, applied_slot *slot, const failed_event *failed) noexcept nogil:
        """Remembers a failure, unless another connection has remembered it. Under the slot's lock. 0: a lost
        acknowledgement would lose the failure, so the event stays unapplied and unacknowledged."""
        if failed.failure.sequence <= slot.last or remember_failure(slot, &failed.failure):
            return 1
        wan_note(WAN_CORRUPT, "more than %d failed events of a partition (%d of all) that their senders do not know "
                              "yet, or no memory for them", FAILURES_KEPT, FAILURES_KEPT_ALL)
        return 0
