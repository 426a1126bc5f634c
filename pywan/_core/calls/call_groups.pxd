# The interface of call_groups.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_buckets cimport BucketCalls
from pywan._core.region.region_state cimport region_core
from pywan._core.region.step_group cimport change_group

cdef class GroupCalls(BucketCalls):
    cdef wan_buffer failed          # wan_call_failure after wan_call_failure, of EVENTS.

    cdef wan_answer *do_rows(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_status change_row(self, region_core *region, change_group *group) noexcept nogil
    cdef wan_answer *do_events(self, region_core *region, const wan_call *call) noexcept nogil
    cdef bint note_failed(self, uint32_t number, uint32_t reason) noexcept nogil
    cdef wan_answer *say_applied(self, const wan_call *call, uint64_t applied, uint32_t conflicts) noexcept nogil
