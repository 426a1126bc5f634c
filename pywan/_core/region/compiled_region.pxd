# The interface of compiled_region.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport wan_changelog
from pywan._core.c_region cimport *
from pywan._core.region.call_slots cimport CallSlots
from pywan._core.base.clock cimport Clock
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.log.disk_log cimport LogBudget
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.region.changelog cimport Changelog
from pywan._core.region.region_state cimport condition, decision, origin, region_core, region_log

cdef class CompiledRegion:
    cdef region_core region
    cdef Clock clock
    cdef str name
    cdef uint32_t born              # `wan_forks` of the process that made the region. No other process may use it.
    cdef tuple asking               # The attached queues whose senders have filters that are asked.
    cdef tuple attached_queues      # Keeps the attached EventQueue objects alive, in the attachment's order.
    cdef uint64_t full_timeout_us   # The longest time that an attached queue lets an enqueue wait for room.
    # Takes a change through the user's Python: (operation, key, value, callback) -> outcome. The function stays set
    # when the path is the fast path again, because a caller may have been sent through Python just before.
    cdef object change_by_callbacks
    # Whether the path was through the callbacks a moment ago. A caller reads this flag first, to save work. The path in
    # the attachment is the valid path.
    cdef bint seems_by_callbacks
    # Of the log:
    cdef object environment         # Keeps the capsule alive.
    cdef LogBudget budget           # Keeps the budget alive.
    cdef MemoryLimit memory         # Keeps the limit alive that the table counts for. None: no limit.
    cdef object log_wait            # Called instead of waiting for the committer. None: we wait for the committer.
    # For a region that several members hold. `changelog` keeps the region's change log alive. `route` makes the changes
    # and reads of buckets whose primary is another member. `slots` gives changes their identities.
    cdef object changelog
    cdef object route
    cdef CallSlots slots

    cdef int check_process(self) except -1
    cdef int check_open(self) except -1
    cdef int fail(self, wan_status status, str what) except -1
    cdef int attach(self, queues, callback_change, asking) except -1
    cdef int add_log_to(self, queues) except -1
    cdef int remove_log_from(self, queues) except -1
    cdef int choose_durable(self, queues) except -1
    cdef int keep_log(self, region_log *log, environment, LogBudget budget, log_wait) except -1
    cdef int close(self) except -1
    cdef int limit_memory(self, MemoryLimit memory) except -1
    cdef int share(self, Changelog changelog, route, bint reads_replicas, bint content) except -1
    cdef bint end_feeds(self, bint now) except -1
    cdef bint has_unstable(self, EventQueue queue) except -1
    cdef int feed(self, queues) except -1
    cdef int feed_from(self, Changelog changelog, queues) except -1
    cdef bint is_led_by_another(self, uint64_t hash) noexcept
    cdef uint64_t deadline(self, uint64_t began) except? 0
    cdef int wait_for_memory(self, what, uint64_t until, bint goes_to_another) except -1
    cdef str why_full(self)
    cdef int wait_for_learner(self, uint32_t bucket, uint64_t until) except -1
    cdef wan_status wait_stable(self, uint32_t bucket, uint64_t local_fence, uint64_t sequence, uint64_t began) except *
    cdef uint64_t epoch_of(self, uint32_t bucket) noexcept
    cdef int wait_for_role(self, key, uint64_t began, bint may_be_made) except -1
    cdef wan_status wait_readable(self, uint32_t bucket, uint64_t local_fence, uint64_t began) except *
    cdef wan_status wait_for_room(self, wan_change *change, const origin *from_, decision *decided, condition *wanted,
                                  wan_outcome *outcome) except *
    cdef bint may_wait(self, uint64_t began_us) except *
    cdef int wait_written(self, bint is_queued, uint64_t first=*, uint64_t last=*) except -1
    cdef uint64_t logged_before(self) noexcept
    cdef int wait_log(self, int what, uint64_t first, uint64_t last) except -1
    cdef int wait_durable(self) except -1

cdef class OneWait:
    cdef CompiledRegion state
    cdef const void *outer
    cdef int outer_waits
    cdef uint64_t logged_before

cdef class OneDeadline:
    cdef CompiledRegion state
    cdef uint64_t outer

cdef bint changelog_holds_back(wan_changelog *changelog, uint32_t bucket, uint64_t now_us) noexcept nogil
cdef bint changelog_may_read(wan_changelog *changelog, uint32_t bucket, uint64_t now_us) noexcept nogil
cdef uint64_t enter_call(CompiledRegion self) except? 0
cdef void leave_call(uint64_t outer) noexcept
