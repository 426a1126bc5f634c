# The interface of disk_log.pyx.
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *

cdef class LogBudget:
    cdef wan_log_budget budget

cdef enum:
    LOG_SEGMENTS_KEPT = 4                   # A log with fewer segments than this is not shortened by moving records.
    MOVED_SEGMENTS_MAX = 32                 # Records that live are moved out of at most so many segments at once.
    DAMAGES_MAX = 10000                     # Salvage lists at most so many pieces of damage.


cdef inline void keep_damage(wan_buffer *damages, const wan_damage *damage) noexcept nogil:
    if damages.count < DAMAGES_MAX:
        wan_buffer_add(damages, damage, sizeof(wan_damage))


cdef list damage_list(const wan_buffer *damages)
