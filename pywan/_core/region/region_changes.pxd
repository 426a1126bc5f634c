# The interface of region_changes.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.values.codec cimport encoded
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_state cimport condition

cdef class Condition:
    cdef condition wanted
    cdef object holder      # Keeps the expected value alive.

    cdef object found(self)

cdef class ReplicaRead:
    cdef CompiledRegion state
    cdef uint32_t bucket
    cdef uint64_t local_fence
    cdef readonly uint64_t sequence
    cdef readonly bint begun, live
    cdef readonly uint8_t form
    cdef readonly bytes data

cdef class RegionCalls:
    cdef CompiledRegion state

cdef int put_one(CompiledRegion self, key, value, callback_argument) except -1
cdef bint destroy_one(CompiledRegion self, key, callback_argument) except -1
cdef object get_one(CompiledRegion self, key, default)
cdef object no_answer(CompiledRegion self, key, bint in_doubt, uint64_t began)
cdef int check_replicas(CompiledRegion self, key, uint32_t bucket, uint64_t sequence, bint is_repeat) except -1

cdef class RegionChanges(RegionCalls):
    pass
