# The interface of queue_committer.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.log.committer cimport disk_wait
from pywan._core.queue.queue cimport gateway_queue

cdef enum:                      # What a caller waits for, beside FOR_EVENTS.
    FOR_REMOVALS = 1            # The removals so far are on the disk, by the checkpoint that comes within a second.
    FOR_IDENTITY = 2            # The queue has taken the numbering that is wanted.
    FOR_REPAIR = 3              # A state on the disk has the last repair of the clock.

cdef void queue_committer_init(gateway_queue *gateway, uint8_t synchronous, uint32_t flush_ms) noexcept nogil
cdef disk_wait queue_begin_wait(gateway_queue *gateway, int what, uint64_t limit_us) noexcept nogil
