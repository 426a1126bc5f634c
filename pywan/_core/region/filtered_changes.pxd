# The interface of filtered_changes.pyx.
from libc.stdint cimport int64_t, uint8_t
from pywan._core.c_region cimport wan_change, wan_outcome
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_callbacks cimport CallbackLock
from pywan._core.region.region_state cimport origin
from pywan._core.values.columns cimport Column

cdef class FilterPath:
    cdef object change          # Takes a change through all callbacks: as `CompiledRegion.change_by_callbacks`.
    cdef CallbackLock lock      # The region's callbacks run under the lock.
    cdef dict filters           # By attached queue: the EventFilters.
    cdef object park

cdef object apply_filtered(CompiledRegion self, bytes record, bint possible_duplicate, bytes place)
cdef str change_filtered(CompiledRegion self, int operation, key, value, callback_argument, int64_t timestamp_ms)
cdef int64_t put_rows_filtered(CompiledRegion self, Column keys, Column values, const uint8_t *codes,
                               const int64_t *stamps, int64_t row, list failures, int64_t *applied) except -1
