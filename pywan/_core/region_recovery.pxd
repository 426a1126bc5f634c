# The interface of region_recovery.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.region_state cimport region_core, region_log

cdef inline void change_from_logged(wan_change *c, const wan_logged *record, uint64_t hash) noexcept nogil:
    c.key, c.value = wan_logged_key(record), wan_logged_value(record)
    c.value_length, c.key_length = record.value_length, record.key_length
    c.key_form, c.value_form, c.operation = record.key_form, record.value_form, record.operation
    c.stamp_site, c.hash, c.stamp, c.absent_below = record.stamp_site, hash, record.stamp, 0
    c.flags = c.local = c.ask = c.keep = 0


cdef wan_status region_log_recover(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil
cdef void region_log_note_damaged(void *owner, const wan_damage *damage) noexcept nogil
cdef region_log *region_log_new(region_core *r) except NULL
cdef void region_log_close(region_log *log) noexcept nogil
