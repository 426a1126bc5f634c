# The interface of region_log_move.pyx.
from pywan._core.c_base cimport *
from pywan._core.region.region_state cimport region_log

cdef wan_status region_log_write_behind(region_log *log) noexcept nogil
cdef wan_status region_log_shorten(region_log *log) noexcept nogil
cdef wan_status region_log_sweep(region_log *log) noexcept nogil
cdef bint region_log_may_shrink(region_log *log) noexcept nogil
cdef bint region_log_gains(const region_log *log) noexcept nogil
cdef bint region_log_wants_sweep(region_log *log) noexcept nogil
cdef void region_log_end_moving(region_log *log) noexcept nogil
