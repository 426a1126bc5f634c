# The interface of batch_builder.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport WAN_DETAIL_BYTES, wan_buffer
from pywan._core.c_record cimport wan_record, wan_section, wan_stream
from pywan._core.c_store cimport wan_merge, wan_store_span
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.gateway.in_flight cimport InFlight
from pywan._core.gateway.log_gate cimport log_gate
from pywan._core.queue.queue cimport gateway_queue
from pywan._core.gateway.sender_callbacks cimport SenderCallbacks
from pywan._core.wire.session cimport Session

cdef struct batch_options:
    uint32_t events_max
    uint64_t bytes_max              # Limit of a batch.
    int64_t interval_us             # Time for a batch to fill. Negative: no wait.
    bint conflation
    bint compress

cdef class BatchBuilder:
    cdef EventQueue queue           # Kept alive by the builder.
    cdef gateway_queue *gateway
    cdef uint32_t index             # The dispatcher's number in the queue.
    cdef SenderCallbacks callbacks
    cdef bint asks                  # The filters are asked about the batch in work.
    cdef batch_options options
    cdef int pause_flag, flush_flag
    # The dispatcher's first partition for the next batch. Partitions take turns. All merged streams together have one
    # turn.
    cdef uint32_t next_turn
    cdef wan_merge merge            # First dispatcher only: next events of streams that keep arrivals.
    cdef uint64_t waiting_since_us  # When the first event of a batch that is not full was seen; 0: no event.
    cdef uint8_t announced[8192]    # A bit per region number: the name was sent on this connection.
    # By partition: the timeline of the stream as named on this connection; 0: no timeline was named.
    cdef uint64_t *named_timelines
    cdef uint32_t named_capacity
    # The reason why a log file with queued events cannot be read. Empty: all files are readable. Under the queue's
    # lock.
    cdef char unreadable[WAN_DETAIL_BYTES]
    cdef uint32_t unreadable_partition
    # No batch is built before this time: no peeked event was readable, or the next event is not replicated yet.
    cdef uint64_t again_us
    cdef log_gate gate              # Positions through which logs let events leave.
    # Scratch memory of the batch in work.
    cdef wan_record **records
    cdef uint64_t *sequences        # The sequence of each record.
    cdef uint32_t *lengths          # The length of each record, if requested.
    cdef uint32_t records_capacity
    cdef uint32_t sections_capacity
    cdef wan_section *sections
    cdef wan_store_span *spans      # The span of each section.
    # The stream of each section. `timeline` is 0 for an own partition, `buckets` is 0 for a stream named before.
    cdef wan_stream *streams
    cdef wan_buffer copied          # Copies of records in files.
    cdef wan_buffer pack

    cdef int configure(self, batch_options options) except -1
    cdef void begin(self) noexcept nogil
    cdef void rewind(self, uint64_t batches) noexcept nogil
    cdef bint is_due(self, uint64_t now_us) noexcept nogil
    cdef bint may_build(self, uint64_t now_us) noexcept nogil
    cdef int build(self, Session session, InFlight flights, uint64_t now_us) noexcept nogil
    cdef uint64_t fills_until(self, uint64_t until_us) noexcept nogil
    cdef uint64_t due_us(self, uint64_t now_us, uint64_t until_us) noexcept nogil
    cdef int wait_for_events(self, uint64_t now_us, bint may_leave) noexcept nogil
    cdef void stop_waiting(self) noexcept nogil
    cdef object unreadable_reason(self)
