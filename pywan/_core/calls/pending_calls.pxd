# The interface of pending_calls.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport wan_pending_call, wan_changelog, wan_waker
from pywan._core.c_session cimport *
from pywan._core.calls.call_answers cimport CallAnswers
from pywan._core.region.region_state cimport region_core

cdef enum:
    SLICE_MS = 100              # A wait checks so often whether the session is to stop.

cdef struct call_wait:
    # The changes that have to be replicated before an answer leaves.
    wan_changelog *changelog
    uint64_t local_fence, sequence
    uint64_t at                 # Position of the answer, from the first byte that waits to leave.
    uint32_t bucket
    bint is_change, is_repeat
    bint says_under_replicated              # The client is told if too few replicas had the change.

cdef struct pending_call:
    # A finished call whose answer must not leave yet, or a held call, which was not started. The answer or the call
    # follows the struct, with `length` bytes.
    # The first field: a ready call comes as a wan_pending_call. `behind` also links `reads`.
    wan_pending_call pending
    pending_call *before         # In a list of the session, ordered by the end of the wait.
    pending_call *behind
    call_wait wait              # For a held call, only the change log and the bucket.
    bint is_held
    uint64_t until_us           # When the wait ends.
    uint64_t given_up_us        # For a held call: until when the client waits.
    uint64_t length

cdef struct call_list:
    pending_call *first
    pending_call *last

cdef class PendingCalls(CallAnswers):
    cdef int socket_file            # The socket of the connection. -1: the session has no socket.
    cdef wan_buffer waits           # call_wait after call_wait.
    # The pending calls. Only the session's thread uses the calls. Through the change logs of buckets, other threads
    # move calls that are replicated, or held no longer, to `waker.ready`.
    cdef wan_waker waker
    cdef call_list done             # Finished calls with a pending answer.
    cdef call_list held             # Calls that wait until this member is primary.
    cdef pending_call *reads        # Reads of replicated data in `done`, until no other member can be primary.
    cdef uint64_t pending_bytes     # The bytes of all pending answers and calls.
    cdef readonly uint32_t pending  # The number of pending calls.
    # When the present call is given up, because the client waits no longer: in the time of the driver, and for the
    # member's own calls on the monotonic clock.
    cdef uint64_t until_us
    cdef MemoryBudget owner_of_budget
    cdef wan_budget *budget         # The member's budget. NULL: no budget.
    cdef uint64_t held_bytes        # The bytes charged to the budget for the pending calls.

    cdef bint wait_for(self, region_core *region, const wan_call *call, uint64_t local_fence, uint64_t sequence,
                       uint64_t at,
                       bint is_change) noexcept nogil
    cdef bint wait_for_bucket(self, region_core *region, const wan_call *call, uint64_t local_fence,
                              uint64_t at) noexcept nogil
    cdef bint add_pending(self, uint64_t begin) noexcept nogil
    cdef bint is_alone(self, const wan_call *call) noexcept nogil
    cdef void run_repl_link(self, const call_wait *wait) noexcept nogil
    cdef pending_call *keep(self, call_list *among, const void *data, uint64_t length,
                            uint64_t until_us) noexcept nogil
    cdef bint has_place(self) noexcept nogil
    cdef void charge(self) noexcept nogil
    cdef uint64_t pending_due_us(self, uint64_t now_us) noexcept nogil
    cdef bint finish_late(self, uint64_t now_us) noexcept nogil
    cdef bint look_at_reads(self, uint64_t now_us) noexcept nogil
    cdef bint go_on_with(self, pending_call *call, uint64_t now_us) noexcept nogil
    cdef bint finish(self, pending_call *call, bint is_lost) noexcept nogil
    cdef void drop(self, pending_call *call) noexcept nogil
    cdef void remove_all_pending(self, pending_call *call) noexcept nogil
    cdef void drop_pending(self) noexcept nogil

cdef void lose(const call_wait *wait, wan_answer *answer) noexcept nogil
cdef void say_under_replicated(const call_wait *wait, wan_answer *answer) noexcept nogil
