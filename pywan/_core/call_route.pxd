# The interface of call_route.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_session cimport wan_answer, wan_call
from pywan._core.call_line cimport CallLine, call_slot
from pywan._core.call_session cimport CallSession
from pywan._core.compiled_region cimport CompiledRegion

cdef class CallRoute:
    cdef CompiledRegion state
    cdef readonly uint64_t limit_us     # A call is given up after so long.
    cdef readonly list targets          # By bucket: (CallLine, epoch word) that a call may take at once; or None.

    cdef int exchange_all(self, list parts, uint64_t began_us) except -1
    cdef int exchange_parts(self, list parts, uint64_t began_us, CallSession here) except -1
    cdef int send(self, CallPart part, uint64_t began_us, list lines) except -1
    cdef int finish(self, CallPart part, uint64_t began_us, CallSession here) except -1
    cdef bytes exchange(self, wan_call *head, const void *first, uint64_t first_length, const void *second,
                        uint64_t second_length, uint64_t began_us, uint64_t *sent_us, key, wan_answer *got,
                        object trouble, CallSession here)
    cdef bint is_final(self, const wan_call *head, const wan_answer *got, bytes payload) except *

cdef class CallPart:
    cdef wan_call head
    cdef const void *data               # The payload, which the owner of the part keeps.
    cdef uint64_t length
    cdef CallLine line                  # While it is on its way.
    cdef call_slot *slot
    cdef int state
    cdef uint64_t sent_us
    cdef bint is_here                   # This member is primary itself.
    cdef uint64_t answer_at             # Then: where its answer begins, for `CallSession.answer_here`.
    cdef object trouble                 # What became of the first attempt, as `aim` wants it.
    cdef wan_answer got
    cdef bytes payload                  # Of the answer. None: there is none yet.
    cdef object error                   # Why there is no answer.

    cdef bint is_change(self)
    cdef int take(self, const wan_answer *answer) except -1
    cdef bint wait(self, uint64_t until_us) except *
    cdef int let_go(self) except -1

cdef void begin(wan_call *head, int kind, CompiledRegion state, uint64_t hash) noexcept
