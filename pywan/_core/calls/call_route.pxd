# The interface of call_route.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from pywan._core.c_replication cimport wan_call_identity
from pywan._core.c_session cimport wan_answer, wan_call
from pywan._core.calls.call_line cimport CallLine, call_slot
from pywan._core.calls.own_calls cimport OwnCalls
from pywan._core.region.call_slots cimport CallSlots
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_changes cimport Condition

cdef str NOT_STABLE, MOVED          # Reasons for a further attempt.

cdef class CallRoute:
    cdef CompiledRegion state
    cdef readonly uint64_t limit_us     # The time limit of a call. `set_limit` changes the limit.
    cdef readonly list targets          # By bucket: (CallLine, epoch word) for immediate use; or None.
    cdef public CallSlots slots         # Gives the calls their identities. A subclass sets it.

    cdef object change_as(self, const wan_call_identity *call, int operation, key, value, callback_argument, event_id,
                          Condition condition_, int64_t timestamp_ms, uint64_t began_us, uint64_t since)
    cdef object cleared(self, CallPart part)
    cdef object number_of(self, CallPart part, uint64_t least, uint64_t most)
    cdef int exchange_all(self, list parts, uint64_t began_us) except -1
    cdef int exchange_parts(self, list parts, uint64_t began_us, OwnCalls here, set slow) except -1
    cdef int send(self, CallPart part, uint64_t until, list lines, set slow) except -1
    cdef int finish(self, CallPart part, uint64_t began_us, OwnCalls here) except -1
    cdef bytes exchange(self, wan_call *head, const void *first, uint64_t first_length, const void *second,
                        uint64_t second_length, uint64_t began_us, uint64_t *since, key, wan_answer *got,
                        object trouble, OwnCalls here)
    cdef bytes begin_change(self, wan_call *head, const wan_call_identity *call, int operation, key, value,
                            callback_argument, event_id, Condition condition_, int64_t timestamp_ms)
    cdef str outcome_of(self, const wan_answer *got, bytes payload, Condition condition_)
    cdef bint has_moved(self, const wan_call *head) except *
    cdef object judge(self, wan_call *head, int state, const wan_answer *got, bytes payload, CallLine line,
                      uint64_t before, uint64_t *since, key)
    cdef object rename(self, wan_call *head)
    cdef bint is_final(self, const wan_call *head, const wan_answer *got, bytes payload, key) except *

cdef class CallPart:
    cdef wan_call head
    cdef const void *data               # The payload, kept by the owner of the part.
    cdef uint64_t length
    cdef CallLine line                  # While the part is under way.
    cdef call_slot *slot
    cdef int state
    # The epoch that was known at the first attempt that may have made the change. 0: no attempt may have.
    cdef uint64_t since
    cdef bint is_here                   # This member itself is primary.
    cdef uint64_t answer_at             # Then: the start of the answer, for `OwnCalls.answer_here`.
    cdef object trouble                 # The result of the first attempt, as `aim` expects.
    cdef wan_answer got
    cdef bytes payload                  # The payload of the answer. None: no answer yet.
    cdef object error                   # The reason for a missing answer.

    cdef int take(self, const wan_answer *answer) except -1
    cdef bint wait(self, uint64_t until_us) except *
    cdef int let_go(self) except -1

cdef class CallSteps:
    cdef readonly CallRoute route
    cdef wan_call head
    cdef bytes packed                   # The payload, except the value that a condition expects.
    cdef Condition condition_
    cdef object key                     # For errors.
    cdef readonly bint is_read
    cdef readonly uint64_t began_us
    # The epoch that was known at the first attempt that may have made the change; 0: no attempt may have. `before`: the
    # same without the last attempt.
    cdef uint64_t since, before
    cdef wan_call_identity call         # A change under way. `caller` is 0: the change has ended.
    cdef CallLine line                  # The connection of the attempt under way.
    cdef call_slot *slot
    cdef wan_answer got
    cdef readonly object trouble        # The result of the last attempt, as `aim` expects.
    # The result of `read` or `change`, after the call has ended.
    cdef readonly object result

    cdef int let_go(self) except -1
    cdef int end(self) except -1

cdef void begin(wan_call *head, int kind, CompiledRegion state, uint64_t hash) noexcept
cdef void identify(wan_call *head, const wan_call_identity *call) noexcept
