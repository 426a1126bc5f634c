# The interface of call_regions.pyx.
from libc.stdint cimport uint16_t
from pywan._core.c_base cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.pending_calls cimport PendingCalls
from pywan._core.region.region_state cimport region_core

cdef class CallRegions(PendingCalls):
    cdef object find_region
    cdef dict names, states         # By number: the client's names, and the CompiledRegion of the name.
    cdef wan_pages regions          # region_core *, by number. NULL: not looked up, or not at this member.
    cdef list former                # States of closed regions that pending calls may name.

    cdef region_core *known(self, uint16_t number) noexcept nogil
    cdef int set_known(self, uint16_t number, region_core *region) except -1
    cdef bint name_region(self, const wan_call *call) noexcept nogil
    cdef region_core *region_of(self, uint16_t number) noexcept nogil
    cdef int look_up(self, uint16_t number) except? -1
    cdef bint no_region(self, const wan_call *call) noexcept nogil
    cdef object not_there(self, uint16_t number)
    cdef wan_answer *say_not_primary(self, const wan_call *call, region_core *region) noexcept nogil
    cdef bytes known_primary(self, const wan_call *call)
