# The interface of queue_recovery.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.queue.queue cimport durable_log, gateway_queue

cdef void note_damaged(void *owner, const wan_damage *damage) noexcept nogil
cdef wan_status recover_state(void *owner, const uint8_t *data, uint64_t length) noexcept nogil
cdef wan_status recover_part(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                             const uint8_t *data) noexcept nogil
cdef int adopt_segment(void *owner, uint32_t index, const char *path, const uint8_t *base,
                       uint64_t length) noexcept nogil
cdef void segment_adopted(void *owner, uint32_t index) noexcept nogil
cdef wan_status durable_recover(gateway_queue *gateway) noexcept nogil
cdef durable_log *durable_log_new(const gateway_queue *gateway) except NULL
cdef void durable_log_close(durable_log *durable) noexcept nogil
