# The interface of region_log_superseded.pyx.
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.region.region_state cimport region_log

cdef wan_status region_log_keep_superseded(region_log *log, const wan_buffer *superseded,
                                           wan_buffer *kept) noexcept nogil
cdef bint is_restamped(region_log *log, const wan_logged *record) noexcept nogil
cdef bint region_log_may_keep_less(region_log *log) noexcept nogil
cdef void region_log_forget_look(region_log *log) noexcept nogil
cdef void region_log_end_look(region_log *log) noexcept nogil
