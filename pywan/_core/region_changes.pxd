# The interface of region_changes.pyx.
from pywan._core.compiled_region cimport CompiledRegion
from pywan._core.region_state cimport condition

cdef class Condition:
    cdef condition wanted
    cdef object holder      # Of the expected value.

    cdef object found(self)

cdef class RegionCalls:
    cdef CompiledRegion state

cdef class RegionChanges(RegionCalls):
    pass
