# The interface of region_recovery.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.region.region_state cimport region_core, region_log

cdef inline void change_from_logged(wan_change *change, const wan_logged *record, uint64_t hash) noexcept nogil:
    change.key, change.value = wan_logged_key(record), wan_logged_value(record)
    change.value_length, change.key_length = record.value_length, record.key_length
    change.key_form, change.value_form, change.operation = record.key_form, record.value_form, record.operation
    change.stamp_site, change.hash, change.stamp, change.absent_below = record.stamp_site, hash, record.stamp, 0
    change.flags = change.local = change.ask = change.fault = 0


cdef wan_status region_log_recover(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                                   const uint8_t *data) noexcept nogil
cdef void region_log_note_damaged(void *owner, const wan_damage *damage) noexcept nogil
cdef region_log *region_log_new(region_core *region) except NULL
cdef void region_log_close(region_log *log) noexcept nogil
