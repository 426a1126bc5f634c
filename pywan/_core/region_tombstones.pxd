# The interface of region_tombstones.pyx.
from libc.stdint cimport uint64_t
from pywan._core.clock cimport Bell
from pywan._core.region_scans cimport RegionScans

cdef class RegionTombstones(RegionScans):
    cdef Bell bell                  # Kept alive.
    # Tombstones up to this stamp go when the mark that says so is on the disk; 0: none are about to.
    cdef uint64_t forgetting
    cdef uint64_t forgetting_staged     # When that is: once so many records are.
    # The same of those that are let go. With a log they go at the look after the one that chose them.
    cdef uint64_t letting_go, letting_go_staged
    cdef uint64_t let_go            # The disk knows that those up to this stamp may be gone.

    cdef int drop_needless(self, uint64_t below, uint64_t before_ms) except -1
    cdef int begin_forgetting(self, uint64_t held, uint64_t limit) except -1
    cdef int lower_marks(self, uint64_t stamp, uint64_t let_go) except -1
    cdef uint64_t staged_now(self)
    cdef bint is_on_disk(self, uint64_t staged)
