# The interface of pending_calls.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport wan_pending_call, wan_changelog, wan_waker
from pywan._core.c_session cimport *
from pywan._core.calls.call_answers cimport CallAnswers
from pywan._core.region.region_state cimport region_core

cdef enum:
    SLICE_MS = 100              # A wait looks so often whether the session is to stop.

cdef struct call_wait:
    # What has to count before an answer leaves.
    wan_changelog *changelog
    uint64_t local_fence, sequence
    uint64_t at                 # Where the answer lies, counted from the first byte that waits to leave.
    uint32_t bucket
    bint is_change, is_repeat
    bint says_under_replicated              # Its caller is told if too few replicas had the change.

cdef struct pending_call:
    # A call that is done, whose answer must not leave yet; or one that is held, of which nothing was done. The answer,
    # or the call, lies behind it, `length` bytes.
    # The first field: what is ready comes as a wan_pending_call. `behind` links `reads`, too.
    wan_pending_call pending
    pending_call *before         # In one of the session's lists, by the time when they are given up.
    pending_call *behind
    call_wait wait              # Of a call that is held, only the change log and the bucket.
    bint is_held
    uint64_t until_us           # When its wait ends.
    uint64_t given_up_us        # Of a call that is held: until when its caller waits.
    uint64_t length

cdef struct call_list:
    pending_call *first
    pending_call *last

cdef class PendingCalls(CallAnswers):
    cdef int socket_file            # Of the connection. -1: the session has none.
    cdef wan_buffer waits           # call_wait after call_wait.
    # Calls that wait. Only the session's thread uses them; through the tails of buckets, other threads move what
    # counts, and what is held no longer, to `waker.ready`.
    cdef wan_waker waker
    cdef call_list done             # Their answers wait.
    cdef call_list held             # They wait until this member is primary.
    cdef pending_call *reads        # Of `done`: they count, and wait until no other member can be primary.
    cdef uint64_t pending_bytes     # The bytes of all answers and calls that wait.
    cdef readonly uint32_t pending  # How many calls wait.
    # When the call that is being done is given up, because its caller waits no longer. As the driver tells the time;
    # of calls of this member itself, as the monotonic clock does.
    cdef uint64_t until_us
    cdef MemoryBudget owner_of_budget
    cdef wan_budget *budget         # The member's. NULL: nobody counts.
    cdef uint64_t held_bytes        # What is charged to it for the calls that wait.

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
