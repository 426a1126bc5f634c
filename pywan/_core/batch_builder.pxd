# The interface of batch_builder.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport wan_buffer
from pywan._core.c_record cimport wan_record, wan_section
from pywan._core.c_store cimport wan_store_span
from pywan._core.event_queue cimport EventQueue
from pywan._core.in_flight cimport InFlight
from pywan._core.queue cimport gateway_queue
from pywan._core.sender_callbacks cimport SenderCallbacks
from pywan._core.session cimport Session

cdef struct batch_options:
    uint32_t events_max
    uint64_t bytes_max              # A batch is closed before it gets longer.
    int64_t interval_us             # How long it waits to fill. Negative: not at all.
    bint conflation
    bint compress

cdef class BatchBuilder:
    cdef EventQueue queue           # Kept alive.
    cdef gateway_queue *gateway
    cdef uint32_t index             # Of the dispatcher among those of the queue.
    cdef SenderCallbacks callbacks
    cdef batch_options options
    cdef int pause_flag, flush_flag
    cdef uint32_t next_partition    # Round robin over this dispatcher's partitions.
    cdef uint64_t waiting_since_us  # When the first event of a batch that is not full was seen; 0: none.
    cdef uint8_t announced[8192]    # On this connection: a bit per region number whose name was sent.
    # Why events are not sent that lie in a file of the log: it cannot be read. Empty: it can. Under the queue's lock.
    cdef char unreadable[512]
    cdef uint32_t unreadable_partition
    cdef uint64_t read_again_us     # Nothing else is to be sent: until then it is not tried again. 0: it is.
    # Scratch, of the batch in work.
    cdef wan_record **records
    cdef uint64_t *sequences        # Of each of them.
    cdef uint32_t *lengths          # So too, once it is asked for.
    cdef uint32_t records_capacity
    cdef wan_section *sections
    cdef wan_store_span *spans      # Of each section.
    cdef wan_buffer copied          # Records that lie in files, out of them.
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
