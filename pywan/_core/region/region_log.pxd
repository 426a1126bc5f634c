# The interface of region_log.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.region.region_state cimport region_log

cdef wan_status region_log_write(region_log *log, bint in_one_write) noexcept nogil
cdef wan_status region_log_write_blocks(region_log *log, uint32_t kind, const wan_buffer *records,
                                        uint64_t *written) noexcept nogil
