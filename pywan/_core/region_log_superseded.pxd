# The interface of region_log_superseded.pyx.
from pywan._core.c_base cimport *
from pywan._core.region_state cimport region_log

cdef wan_status region_log_keep_superseded(region_log *log) noexcept nogil
