# The interface of region_tombstones.pyx.
from libc.stdint cimport uint64_t
from pywan._core.base.clock cimport Bell
from pywan._core.region.region_scans cimport RegionScans

cdef class RegionTombstones(RegionScans):
    cdef Bell bell                  # Keeps the bell alive.
    # Tombstones up to the stamp are dropped when the mark of the stamp is on the disk. 0: no tombstones to drop.
    cdef uint64_t forgetting
    cdef uint64_t forgetting_given  # The mark is on the disk when so many records are.
    # The same for tombstones that no event needs. In a region with a log, the tombstones are dropped by the call of
    # `keep_tombstones` after the choosing call.
    cdef uint64_t letting_go, letting_go_given
    cdef uint64_t let_go            # The disk knows that tombstones up to this stamp may be gone.

    cdef int drop_needless(self, uint64_t below, uint64_t before_ms) except -1
    cdef int begin_forgetting(self, uint64_t held, uint64_t limit) except -1
    cdef int lower_marks(self, uint64_t stamp, uint64_t let_go) except -1
    cdef uint64_t given_now(self)
    cdef bint is_on_disk(self, uint64_t given)
