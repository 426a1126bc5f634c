# The interface of call_callbacks.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_record cimport wan_record
from pywan._core.c_session cimport *
from pywan._core.calls.call_room cimport CallRoom
from pywan._core.region.region_changes cimport Condition
from pywan._core.region.region_state cimport region_core

cdef tuple OUTCOMES        # The names of outcomes, by number.

cdef struct outer_call:
    # The depth and the deadline of the thread's own calls, while callbacks make calls in the thread.
    uint32_t depth
    uint64_t deadline_us

cdef class CallCallbacks(CallRoom):
    cdef uint32_t callback_depth    # The depth of the calls from callbacks.

    cdef uint64_t deadline(self) noexcept
    cdef wan_answer *change_by_callbacks(self, const wan_call *call, region_core *region,
                                         const wan_record *record) noexcept nogil
    cdef wan_answer *change_in_python(self, const wan_call *call, region_core *region,
                                      const wan_record *record) noexcept
    cdef int event_in_python(self, const wan_call *call, const wan_record *record, bint possible_duplicate,
                             wan_answer **answer) noexcept with gil
    cdef outer_call begin_callbacks(self) noexcept
    cdef wan_answer *say_not_made(self, const wan_call *call, region_core *region, str outcome,
                                  uint64_t done) noexcept
    cdef wan_answer *row_by_callbacks(self, const wan_call *call, region_core *region, const wan_record *record,
                                      uint64_t done, int *happened) noexcept nogil
    cdef wan_answer *row_in_python(self, const wan_call *call, region_core *region, const wan_record *record,
                                   uint64_t done, int *happened) noexcept
    cdef object ask_callbacks(self, const wan_call *call, const wan_record *record, Condition condition_, row)
