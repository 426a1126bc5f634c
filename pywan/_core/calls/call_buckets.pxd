# The interface of call_buckets.pyx.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_keys cimport KeyCalls
from pywan._core.region.region_state cimport region_core

cdef class BucketCalls(KeyCalls):
    cdef wan_buffer keys            # Keys of a bucket that is being cleared.

    cdef wan_answer *do_count(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_scan(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_clear(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *clear_shared(self, region_core *region, const wan_call *call) noexcept nogil


cdef inline uint64_t era_of(const region_core *region, const wan_call *call) noexcept nogil:
    """The era of the call's bucket. 0: the region has no tails."""
    return wan_read(&region.tail.buckets[call.bucket].era) if region.tail != NULL else 0
