# The interface of call_buckets.pyx.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_keys cimport KeyCalls
from pywan._core.region.region_state cimport region_core

cdef class BucketCalls(KeyCalls):
    cdef wan_buffer keys            # Keys of a bucket during a clear.

    cdef wan_answer *do_count(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_scan(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_clear(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *clear_shared(self, region_core *region, const wan_call *call) noexcept nogil


cdef inline uint64_t local_fence_of(const region_core *region, const wan_call *call) noexcept nogil:
    """The local fence of the call's bucket. 0: the region has no change logs."""
    return wan_read(&region.changelog.buckets[call.bucket].local_fence) if region.changelog != NULL else 0
