# The interface of region_walk.pyx.
from libc.stdint cimport uint8_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.region.region_state cimport attachment, region_core, tombstone_counts

cdef void sum_shards(const wan_table *table, uint64_t *used, uint64_t *tombstones,
                     uint64_t *memory_bytes) noexcept nogil
cdef wan_status region_change_here(region_core *region, wan_change *change, uint8_t flag, bint *found) noexcept nogil
cdef void pass_entry_locks(const wan_table *table) noexcept nogil
cdef wan_status region_copy(const region_core *region, region_core *to, uint64_t *scan_position) noexcept nogil
cdef wan_status region_scan(const wan_table *table, uint64_t *scan_position, uint64_t end, uint64_t limit,
                            wan_buffer *packed) noexcept nogil
cdef bytes region_packed(const wan_table *table, uint64_t *scan_position, uint64_t end, uint64_t limit, str region)
cdef wan_status region_raise_mark(region_core *region, uint64_t mark, uint8_t flag) noexcept nogil
cdef uint64_t region_newest_to_expire(const wan_table *table, uint64_t before_ms, uint64_t below) noexcept nogil
cdef wan_status region_sample_stamps(const wan_table *table, wan_buffer *stamps) noexcept nogil
cdef void region_tombstones(const wan_table *table, tombstone_counts *found) noexcept nogil
cdef void attachment_publish(region_core *region, attachment *fresh) noexcept nogil
cdef uint64_t region_lower_tombstones(const wan_table *table, uint64_t above, uint64_t to) noexcept nogil
