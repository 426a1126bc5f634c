# The interface of call_session.pyx.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport wan_shelved, wan_tail, wan_waker
from pywan._core.c_session cimport *
from pywan._core.c_tables cimport wan_record
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_changes cimport Condition
from pywan._core.region.step_group cimport change_group
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.session cimport Session

cdef struct call_wait:
    # What has to count before an answer leaves.
    wan_tail *tail
    uint64_t era, sequence
    uint64_t at                 # Where the answer lies, counted from the first byte that waits to leave.
    uint32_t bucket
    bint is_change, is_repeat
    bint says_thin              # Its caller is told if too few copies had the change.

cdef struct shelved_call:
    # A call that is done, whose answer must not leave yet; or one that is held, of which nothing was done. The answer,
    # or the call, lies behind it, `length` bytes.
    wan_shelved shelved           # The first field: what is ready comes as a wan_shelved. `behind` links `reads`, too.
    shelved_call *before         # In one of the session's lists, by the time when they are given up.
    shelved_call *behind
    call_wait wait              # Of a call that is held, only the tail and the bucket.
    bint is_held
    uint64_t until_us           # When its wait ends.
    uint64_t given_up_us        # Of a call that is held: until when its caller waits.
    uint64_t length

cdef struct call_list:
    shelved_call *first
    shelved_call *last

cdef tuple OUTCOMES        # The names of outcomes, by their numbers.

cdef class CallSession(Session):
    cdef object find_region
    cdef dict names, states         # By number: the names that the caller told, and the CompiledRegion of that name.
    cdef wan_pages regions          # region_core *, by number. NULL: it was not looked up, or is not there.
    cdef int socket_file            # Of the connection. -1: the session has none.
    cdef wan_buffer waits           # call_wait after call_wait.
    cdef wan_buffer found           # The value that a condition found.
    cdef wan_buffer keys            # Keys of a bucket that is being cleared.
    cdef wan_buffer failed          # wan_call_failure after wan_call_failure, of EVENTS.
    cdef bint has_more              # Whole calls wait in `into`.
    # Calls that wait. Only the session's thread uses them; through the tails of buckets, other threads move what
    # counts, and what is held no longer, to `waker.ready`.
    cdef wan_waker waker
    cdef call_list done             # Their answers wait.
    cdef call_list held             # They wait until this member is primary.
    cdef shelved_call *reads         # Of `done`: they count, and wait until no other member can be primary.
    cdef uint64_t shelved_bytes      # The bytes of all answers and calls that wait.
    cdef readonly uint32_t shelved   # How many calls wait.
    # When the call that is being done is given up, because its caller waits no longer. As the driver tells the time;
    # of calls of this member itself, as the monotonic clock does.
    cdef uint64_t until_us
    cdef MemoryBudget owner_of_budget
    cdef wan_budget *budget         # The member's. NULL: nobody counts.
    cdef uint64_t held_bytes        # What is charged to it for the calls that wait.
    # Since when the session has read nothing because of memory, or of a learner. 0: it reads. What it reads next may
    # have come at any time since.
    cdef uint64_t stopped_us
    cdef uint64_t came_us           # When the calls in `into` came, or earlier.
    # The next call waits for a learner, or for listeners, until then, and has waited since then. 0: it does not.
    cdef uint64_t held_back_until_us, held_back_since_us
    cdef list former                # States of regions that are gone, and that shelved calls may name.
    cdef readonly uint32_t depth
    cdef uint32_t callback_depth    # Of the calls that callbacks make.
    cdef readonly uint64_t served   # Calls that were answered.
    cdef readonly uint64_t rounds   # How often a group of answers was sent.

    cdef const wan_answer *serve_here(self, CompiledRegion state, wan_call *head, const void *payload,
                                      uint64_t length, uint64_t until_us) except NULL
    cdef void begin_here(self, uint64_t until_us) noexcept
    cdef int settle_here(self) except -1
    cdef uint64_t do_here(self, CompiledRegion state, wan_call *head, const void *payload,
                          uint64_t length) except? NO_LIMIT
    cdef const wan_answer *answer_here(self, uint64_t at) noexcept
    cdef int take_calls(self) noexcept nogil
    cdef int do_call(self, const wan_call *call, uint64_t held_until_us, uint64_t until_us) noexcept nogil
    cdef int take_call(self, const wan_call *call, uint64_t held_until_us) noexcept nogil
    cdef int hold(self, region_core *region, const wan_call *call, uint64_t until_us) noexcept nogil
    cdef shelved_call *keep(self, call_list *among, const void *data, uint64_t length, uint64_t until_us) noexcept nogil
    cdef int go_on_with_held(self, shelved_call *call, uint64_t held_until_us) noexcept nogil
    cdef bint name_region(self, const wan_call *call) noexcept nogil
    cdef region_core *known(self, uint16_t number) noexcept nogil
    cdef int set_known(self, uint16_t number, region_core *region) except -1
    cdef region_core *region_of(self, uint16_t number) noexcept nogil
    cdef int look_up(self, uint16_t number) except? -1
    cdef bint no_region(self, const wan_call *call) noexcept nogil
    cdef object not_there(self, uint16_t number)
    cdef wan_answer *answer(self, const wan_call *call, uint8_t status, uint64_t length) noexcept nogil
    cdef wan_answer *fail(self, const wan_call *call, uint8_t status, const char *kind, const char *words,
                          uint64_t done) noexcept nogil
    cdef wan_answer *fail_with(self, const wan_call *call, object error, uint64_t done) noexcept
    cdef wan_answer *fail_status(self, const wan_call *call, region_core *region, wan_status status,
                                 uint64_t done) noexcept nogil
    cdef wan_answer *say_elsewhere(self, const wan_call *call, region_core *region) noexcept nogil
    cdef bytes known_primary(self, const wan_call *call)
    cdef bint wait_for(self, region_core *region, const wan_call *call, uint64_t era, uint64_t sequence, uint64_t at,
                       bint is_change) noexcept nogil
    cdef bint wait_for_bucket(self, region_core *region, const wan_call *call, uint64_t era, uint64_t at) noexcept nogil
    cdef uint64_t last_answer(self) noexcept nogil
    cdef void settle(self, uint64_t *at) noexcept nogil
    cdef bint shelve(self, uint64_t begin) noexcept nogil
    cdef bint is_alone(self, const wan_call *call) noexcept nogil
    cdef void run_lane(self, const call_wait *wait) noexcept nogil
    cdef bint has_place(self) noexcept nogil
    cdef bint is_full(self) noexcept nogil
    cdef bint waits_for_memory(self) noexcept nogil
    cdef bint may_begin(self) noexcept nogil
    cdef bint is_late(self, const wan_call *call) noexcept nogil
    cdef bint waits_for_room(self, const wan_call *call) noexcept nogil
    cdef bint say_full(self, const wan_call *call) noexcept nogil
    cdef object full(self, const wan_call *call)
    cdef bint is_held_back(self, const wan_call *call) noexcept nogil
    cdef void charge(self) noexcept nogil
    cdef bint collect(self, uint64_t now_us) noexcept nogil
    cdef bint look_at_reads(self, uint64_t now_us) noexcept nogil
    cdef bint go_on_with(self, shelved_call *call, uint64_t now_us) noexcept nogil
    cdef bint finish(self, shelved_call *call, bint is_lost) noexcept nogil
    cdef void drop(self, shelved_call *call) noexcept nogil
    cdef void unshelve_all(self, shelved_call *call) noexcept nogil
    cdef void drop_shelved(self) noexcept nogil
    cdef wan_status counts(self, const call_wait *wait, uint64_t until_us) noexcept nogil
    cdef void seal(self, uint64_t begin) noexcept nogil
    cdef wan_answer *do_get(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_change(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_rows(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_status change_row(self, region_core *region, change_group *group) noexcept nogil
    cdef wan_answer *do_events(self, region_core *region, const wan_call *call) noexcept nogil
    cdef bint note_failed(self, uint32_t number, uint32_t reason) noexcept nogil
    cdef wan_answer *say_applied(self, const wan_call *call, uint64_t applied, uint32_t conflicts) noexcept nogil
    cdef wan_answer *do_count(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_scan(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *do_clear(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *clear_shared(self, region_core *region, const wan_call *call) noexcept nogil
    cdef wan_answer *change_by_callbacks(self, const wan_call *call, region_core *region,
                                         const wan_record *record) noexcept nogil
    cdef wan_answer *change_in_python(self, const wan_call *call, region_core *region,
                                      const wan_record *record) noexcept
    cdef int event_in_python(self, const wan_call *call, const wan_record *record, bint possible_duplicate,
                             wan_answer **answer) noexcept with gil
    cdef wan_answer *say_not_made(self, const wan_call *call, region_core *region, str outcome,
                                  uint64_t done) noexcept
    cdef wan_answer *row_by_callbacks(self, const wan_call *call, region_core *region, const wan_record *record,
                                      uint64_t done, int *happened) noexcept nogil
    cdef wan_answer *row_in_python(self, const wan_call *call, region_core *region, const wan_record *record,
                                   uint64_t done, int *happened) noexcept
    cdef uint64_t deadline(self) noexcept
    cdef object ask_callbacks(self, const wan_call *call, const wan_record *record, Condition condition_, row)
