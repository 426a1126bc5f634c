# The interface of repl_removals.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport wan_changelog, wan_repl_removal
from pywan._core.region.region_state cimport region_core

cdef enum:
    REMOVALS_WAIT = 1, REMOVALS_FULL = 2, REMOVALS_NO_MEMORY = 4

cdef enum:      # The results of `removal_receive`.
    REMOVAL_TAKEN, REMOVAL_NOT_BELIEVED, REMOVAL_WAITS

cdef int removals_collect(wan_changelog *changelog, uint32_t repl_link, uint32_t region,
                          wan_buffer *items) noexcept nogil
cdef int removal_receive(region_core *core, const wan_repl_removal *item, uint32_t member) noexcept nogil
cdef void removals_apply(region_core *core, uint32_t bucket) noexcept nogil
