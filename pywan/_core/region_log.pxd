# The interface of region_log.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.disk_log cimport disk_wait
from pywan._core.region_state cimport region_log

cdef disk_wait region_log_begin_wait(region_log *log, uint64_t limit_us) noexcept nogil
cdef int region_log_wait(region_log *log, disk_wait *wait) noexcept nogil
cdef wan_status region_log_recover(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil
cdef void region_log_note_damaged(void *owner, const wan_damage *damage) noexcept nogil
cdef void region_log_loop(region_log *log) noexcept nogil
cdef wan_status region_log_step(region_log *log) noexcept nogil
