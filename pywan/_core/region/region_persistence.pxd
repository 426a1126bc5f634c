# The interface of region_persistence.pyx.
from pywan._core.region.region_tombstones cimport RegionTombstones

cdef class PersistentRegion(RegionTombstones):
    cdef bint releases_entries      # The region is closed. Its entries are freed when the log has no writer any more.

    cdef int free_entries(self) except -1
