# The interface of region_committer.pyx.
from libc.stdint cimport uint8_t, uint32_t
from pywan._core.region.region_state cimport region_log

cdef void region_committer_init(region_log *log, uint8_t synchronous, uint32_t flush_ms) noexcept nogil
