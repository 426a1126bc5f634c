# The interface of repl_receiver.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport wan_frame
from pywan._core.c_replication cimport (
    wan_changelog_bucket, wan_changelog_entry, wan_repl_answer, wan_repl_removal, wan_repl_section,
    wan_repl_snapshot)
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.replication.repl_news cimport News
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.session cimport Session

cdef enum:
    ANSWERS_KEPT = 1024     # As many as questions may be open at the same time.
    KEPT_BYTES = 1 << 20    # Bytes of pending removals, kept until newer metadata arrive.

cdef class ReadLease:
    cdef uint64_t until_us              # By wan_monotonic_us. Atomic.

cdef struct received_region:
    region_core *core                   # NULL: not found at the last look, or without a change log.
    uint64_t looked_us
    uint32_t buckets                    # As the sender divides the region. 0: the number was never named.

cdef class ReplReceiverSession(Session):
    cdef readonly ReadLease read_lease
    cdef MemoryLimit memory             # The limit of the member. None: no limit.
    cdef object find_region
    cdef News news
    cdef dict names, cores              # By number.
    cdef wan_pages regions              # received_region, by number.
    # Refusals to be sent before the next read lease: wan_repl_answer. The lock guards the buffer, and each extension of
    # the read lease.
    cdef wan_lock lock
    cdef wan_buffer denied
    cdef uint64_t receive_timeout_us
    # How far the stamps of changes are ahead of the time that this member's clock follows, at most. Atomic.
    cdef uint64_t ahead_ms
    cdef uint32_t member                # The number of the other member's incarnation. 0: it may lead any bucket.
    cdef uint64_t contact               # The present connection.
    # wan_repl_removal items with their exceptions, in the order of arrival, that the local metadata do not confirm yet,
    # or that wait for the high watermark. `removals_seen`: the value of removal_news at the last look. `look_us`: the
    # time of the next look, because of the items that wait; NEVER: none does.
    cdef wan_buffer kept
    cdef uint64_t removals_seen, look_us
    cdef bint has_lost_removals          # Removals were dropped for lack of room.
    cdef uint64_t answered_us[ANSWERS_KEPT]     # By question number: when it was answered.

    cdef int learn_regions(self, const wan_frame *frame) noexcept nogil
    cdef int learn_region(self, uint32_t number, uint32_t buckets, const uint8_t *name,
                          uint32_t length) noexcept with gil
    cdef region_core *region_of(self, uint32_t number) noexcept nogil
    cdef region_core *look_up(self, received_region *region, uint32_t number) noexcept with gil
    cdef int apply_changes(self, const wan_frame *frame) noexcept nogil
    cdef int apply_section(self, const wan_repl_section *section, wan_repl_answer *answer) noexcept nogil
    cdef int apply_snapshot(self, const wan_frame *frame) noexcept nogil
    cdef wan_status apply_piece(self, region_core *core, const wan_repl_snapshot *snapshot,
                                wan_repl_answer *answer) noexcept nogil
    cdef int take_removals(self, const wan_frame *frame) noexcept nogil
    cdef bint take_removal(self, const wan_repl_removal *item) noexcept nogil
    cdef int keep_removal(self, const wan_repl_removal *item) noexcept nogil
    cdef int look_at_removals(self) noexcept nogil
    cdef int refuse_denied(self) noexcept nogil
    cdef int grant_read_lease(self) noexcept nogil
    cdef void note_contact(self, const wan_frame *frame) noexcept nogil
    cdef int end_at_gap(self, uint32_t bucket, uint64_t first, uint64_t last) noexcept nogil
    cdef uint64_t alive_until(self) noexcept nogil
    cdef bint deny(self, uint32_t number, uint32_t bucket, uint64_t timeline, uint64_t epoch) noexcept nogil
    cdef void wake(self) noexcept nogil
    cdef uint32_t shortness(self) noexcept nogil
    cdef bint waits_for_memory(self, const wan_changelog_bucket *at) noexcept nogil
