# The interface of disk_log.pyx.
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *

cdef class LogBudget:
    cdef wan_log_budget budget

cdef enum:
    LOG_SEGMENTS_KEPT = 4                   # Below this many, nothing is moved to shorten the log.
    MOVED_SEGMENTS_MAX = 32                 # Out of so many segments at most, what lives is moved in one go.
    DAMAGES_MAX = 10000                     # Pieces of damage that salvage tells one by one.


cdef inline void keep_damage(wan_buffer *damages, const wan_damage *damage) noexcept nogil:
    if damages.count < DAMAGES_MAX:
        wan_buffer_add(damages, damage, sizeof(wan_damage))


cdef list damage_list(const wan_buffer *damages)
