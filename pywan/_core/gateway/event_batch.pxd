# The interface of event_batch.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_record cimport wan_frame, wan_record

cdef class BatchMemory:
    cdef uint8_t *bytes             # The payload of a batch frame: unpacked, laid out by this process.
    cdef const wan_record **records
    cdef uint64_t *sequences        # The event's sequence in its queue partition.
    cdef uint32_t *partitions
    cdef uint8_t *repeated          # 1 if the listener may have received the event before.
    cdef uint32_t count

cdef class EventBatch:
    cdef BatchMemory memory
    cdef uint32_t first, count      # The part of the memory's events in this batch.
    cdef readonly str queue         # The id of the queue.
    cdef readonly uint64_t numbering        # The identity of the queue's sequences.

cdef EventBatch batch_of_frame(const wan_frame *frame, str queue, uint64_t numbering)
