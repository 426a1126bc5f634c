# The interface of region.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.clock cimport Bell, Clock
from pywan._core.codec cimport encoded
from pywan._core.columns cimport Column
from pywan._core.disk_log cimport LogBudget
from pywan._core.region_state cimport condition, decision, origin, region_core

cdef class Condition:
    cdef condition c
    cdef object holder      # Of the expected value.

    cdef object found(self)

cdef class OneWait:
    cdef RegionCore region
    cdef const void *outer
    cdef int outer_waits

cdef decision *make_decisions(decisions, str region, key) except NULL

cdef class RegionCore:
    cdef region_core r
    cdef Clock clock
    cdef readonly str name
    cdef object attached_queues     # Keeps the attached EventQueue objects alive, in the attachment's order.
    cdef uint64_t full_timeout_us   # The longest that one of the attached queues lets an enqueue wait for room.
    cdef object environment         # Of the log: keeps the capsule alive.
    cdef LogBudget budget           # Of the log: keeps it alive.
    cdef Bell bell                  # Kept alive.
    cdef uint64_t forgetting        # Tombstones up to this stamp go when the mark that says so is on the disk; 0: none are about to.
    cdef uint64_t forgetting_staged     # When that is: once so many records are.
    # The same of those that are let go. With a log they go at the look after the one that chose them.
    cdef uint64_t letting_go, letting_go_staged
    cdef uint64_t let_go            # The disk knows that those up to this stamp may be gone.
    cdef uint32_t born              # `wan_forks` of the process that made it, the only one in which it works.
    # How a change goes through the user's Python: (operation, key, value, callback) -> outcome. It stays when the way is straight again: a
    # caller that has just been told to go by it does.
    cdef object slow_change
    cdef bint releases_entries      # It is closed, and its entries go when nobody writes its log any more.
    cdef bint seems_slow            # The way as of late, for those who save work by asking before; the attachment says it.

    cdef int check_process(self) except -1
    cdef int check_open(self) except -1
    cdef int free_entries(self) except -1
    cdef int fail(self, wan_status status, str what) except -1
    cdef wan_status wait_for_room(self, wan_change *c, const origin *from_, const decision *decided, condition *wanted, wan_outcome *outcome) except *
    cdef bint may_wait(self, uint64_t began_us) except *
    cpdef wait_written(self, bint is_queued=*)
    cdef int choose_durable(self, queues) except -1
    cdef int wait_log(self) except -1
    cdef bytes find_bytes(self, key, uint8_t *form, bint *live)
    cdef int change_here(self, key, uint8_t flag) except -1
    cdef int change_key_here(self, const encoded *k, uint8_t flag) except -1
    cdef int drop_needless(self, uint64_t below, uint64_t before_ms) except -1
    cdef int begin_forgetting(self, uint64_t held, uint64_t limit) except -1
    cdef uint64_t staged_now(self)
    cdef bint is_on_disk(self, uint64_t staged)
    cdef int64_t put_rows_slow(self, Column k, Column v, const uint8_t *codes, const int64_t *stamps, int64_t row, list failures) except -1
    cdef wan_bucket *bucket_at(self, uint32_t number) except NULL
    cdef int check_memory_only(self) except -1
