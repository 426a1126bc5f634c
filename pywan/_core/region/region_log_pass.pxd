# The interface of region_log_pass.pyx.
from pywan._core.c_base cimport *
from pywan._core.region.region_state cimport region_log

cdef wan_status region_log_pass(region_log *log) noexcept nogil
