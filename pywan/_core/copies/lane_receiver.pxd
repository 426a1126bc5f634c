# The interface of lane_receiver.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.c_copies cimport wan_tail_bucket, wan_tail_entry
from pywan._core.c_lane cimport wan_lane_answer, wan_lane_image, wan_lane_section, wan_lane_settled
from pywan._core.c_record cimport wan_frame
from pywan._core.copies.lane_news cimport News
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.session cimport Session

cdef enum:
    ANSWERS_KEPT = 1024     # As many as questions may be open at the same time.
    KEPT_BYTES = 1 << 20    # Of what is told as settled, and is believed when the tables say more.

cdef class Promise:
    cdef uint64_t until_us              # By wan_monotonic_us. Atomic.

cdef struct received_region:
    region_core *core                   # NULL: it was not found at the last look, or has no tail.
    uint64_t looked_us
    uint32_t buckets                    # As the sender has them. 0: it never named this number.

cdef class LaneReceiverSession(Session):
    cdef readonly Promise promise
    cdef MemoryLimit memory             # The member's. None: it has none.
    cdef object find_region
    cdef News news
    cdef dict names, cores              # By number.
    cdef wan_pages regions              # received_region, by number.
    # What is refused before the next promise: wan_lane_answer. The lock guards it, and the raising of the promise.
    cdef wan_lock lock
    cdef wan_buffer denied
    cdef uint64_t silence_us
    # How far the stamps of changes are ahead of what this member's clock follows, at most. Atomic.
    cdef uint64_t ahead_ms
    cdef uint32_t member                # The number of the other member's incarnation. 0: it may lead any bucket.
    cdef uint64_t contact               # Of the present connection.
    # wan_lane_settled with their exceptions, in the order in which they came: the tables here do not say yet that the
    # other member may say them. `settled_seen`: when they were looked at last (settled_news).
    cdef wan_buffer kept
    cdef uint64_t settled_seen
    cdef bint has_lost_settled          # There was no room for more of them.
    cdef uint64_t answered_us[ANSWERS_KEPT]     # When each of the last questions was answered, by its number.

    cdef int learn_regions(self, const wan_frame *frame) noexcept nogil
    cdef int learn_region(self, uint32_t number, uint32_t buckets, const uint8_t *name,
                          uint32_t length) noexcept with gil
    cdef region_core *region_of(self, uint32_t number) noexcept nogil
    cdef region_core *look_up(self, received_region *region, uint32_t number) noexcept with gil
    cdef int apply_changes(self, const wan_frame *frame) noexcept nogil
    cdef int apply_section(self, const wan_lane_section *section, wan_lane_answer *answer) noexcept nogil
    cdef int apply_image(self, const wan_frame *frame) noexcept nogil
    cdef wan_status apply_piece(self, region_core *core, const wan_lane_image *image,
                                wan_lane_answer *answer) noexcept nogil
    cdef int take_settled(self, const wan_frame *frame) noexcept nogil
    cdef int keep_settled(self, const wan_lane_settled *item) noexcept nogil
    cdef int look_at_settled(self) noexcept nogil
    cdef int refuse_denied(self) noexcept nogil
    cdef int give_promise(self) noexcept nogil
    cdef void note_contact(self, const wan_frame *frame) noexcept nogil
    cdef int end_at_gap(self, uint32_t bucket, uint64_t first, uint64_t last) noexcept nogil
    cdef uint64_t alive_until(self) noexcept nogil
    cdef bint deny(self, uint32_t number, uint32_t bucket, uint64_t life, uint64_t epoch) noexcept nogil
    cdef void wake(self) noexcept nogil
    cdef uint32_t shortness(self) noexcept nogil
    cdef bint waits_for_memory(self, const wan_tail_bucket *at) noexcept nogil
