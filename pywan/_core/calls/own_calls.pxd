# The interface of own_calls.pyx.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_session cimport *
from pywan._core.calls.call_session cimport CallSession
from pywan._core.calls.pending_calls cimport call_wait
from pywan._core.region.compiled_region cimport CompiledRegion

cdef class OwnCalls(CallSession):
    cdef const wan_answer *serve_here(self, CompiledRegion state, wan_call *head, const void *payload, uint64_t length,
                                      uint64_t until_us) except NULL
    cdef void begin_here(self, uint64_t until_us) noexcept
    cdef uint64_t do_here(self, CompiledRegion state, wan_call *head, const void *payload,
                          uint64_t length) except? NO_LIMIT
    cdef int settle_here(self) except -1
    cdef const wan_answer *answer_here(self, uint64_t at) noexcept
    cdef void settle(self, uint64_t *at) noexcept nogil
    cdef wan_status wait_stable(self, const call_wait *wait, uint64_t until_us) noexcept nogil
