# The interface of receiver_streams.pyx.
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport wan_source_place
from pywan._core.calls.call_events cimport failed_event
from pywan._core.gateway.applied_slot cimport applied_slot
from pywan._core.gateway.receiver_regions cimport ReceiverRegions
from pywan._core.gateway.stream_memory cimport stream_run

cdef struct connection_partition:
    applied_slot *slot          # The applied events. NULL: no stream was named.
    # The place of the event in hand, for the queues of this member. Zeros as the source: the sender has no name (in
    # tests).
    wan_source_place place
    uint64_t through            # End of the last section on this connection. 0: no section yet.
    # The stream. NULL: an own partition of the queue; then the rest has no meaning.
    stream_run *run
    uint64_t timeline
    uint16_t bucket
    uint16_t region             # As in the records on this connection.
    # By round. Not 0: all events through this sequence were handled, and `slot` is updated at the end of the round.
    uint64_t handled[2]

cdef class ReceiverStreams(ReceiverRegions):
    cdef wan_pages partitions

    cdef connection_partition *make_partition(self, uint32_t number) except NULL
    cdef int learn_stream(self, const wan_frame *frame) noexcept with gil
    cdef int remember(self, applied_slot *slot, const failed_event *failed) noexcept nogil


cdef inline bint is_of_its_timeline(const connection_partition *partition) noexcept nogil:
    """Returns whether the slot of a partition has the timeline of the partition's sections. Under the slot's lock."""
    return partition.run == NULL or partition.run.slots[partition.bucket].timeline == partition.timeline

cdef inline connection_partition *partition_at(ReceiverStreams session, uint32_t number) noexcept nogil:
    """Returns NULL if neither this partition nor a partition near to it was named."""
    return <connection_partition *>wan_pages_find(&session.partitions, number)
