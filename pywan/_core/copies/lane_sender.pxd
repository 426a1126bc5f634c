# The interface of lane_sender.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport wan_lane_state, wan_lane_wait, wan_tail, wan_tail_bucket, wan_tail_copy
from pywan._core.c_lane cimport wan_lane_answer
from pywan._core.c_record cimport wan_frame
from pywan._core.copies.lane_image cimport lane_image
from pywan._core.copies.lane_news cimport News
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.byte_stream cimport ByteStream
from pywan._core.wire.session cimport Session

cdef enum:
    QUESTIONS_MAX = 1024        # A power of two.

cdef struct lane_region:
    region_core *core           # NULL: there is no region of this number.

# A question that was sent and has no answer yet.
cdef struct lane_question:
    uint64_t sent_us
    uint32_t bytes
    uint8_t of_image
    uint8_t of_changes

cdef class LaneSenderSession(Session):
    cdef uint32_t number                # Of the lane, in the tails.
    cdef wan_lane_state *state
    cdef News news
    # Guards the regions. The lane's thread holds it while it lays out a frame, or takes one.
    cdef wan_lock lock
    cdef lane_region *regions           # By number.
    cdef uint32_t region_count
    cdef wan_buffer names               # What the receiver is to be told of regions: wan_lane_region.
    cdef uint64_t names_told            # So many bytes of it were.
    cdef uint64_t silence_us            # The member time-out. Other threads set it.
    # Questions: ids from `oldest` to `next_id` - 1 are on their way.
    cdef lane_question questions[QUESTIONS_MAX]
    cdef uint64_t oldest, next_id
    cdef uint64_t bytes_on_way, image_bytes_on_way
    cdef uint64_t asked_us              # When the last question was sent.
    cdef uint64_t answered_us           # When the last answer came.
    cdef bint is_slow                   # The news of it was told.
    cdef bint image_turn                # A frame of changes was the last one.
    # Where the next frame begins.
    cdef uint32_t at_region, at_bucket
    # Buckets to be looked at again: copies that said "later", and copies that are to be told what counts.
    cdef wan_buffer later, to_tell
    cdef uint64_t later_us, tell_us
    cdef bint is_telling
    # What is settled. Nothing more of it is told before `settled_us`.
    cdef wan_buffer settled             # wan_lane_head and wan_lane_settled, while a frame is laid out.
    cdef uint64_t settled_us
    # Who runs the lane. Beside the lane's thread this can be a thread that waits for its change.
    cdef ByteStream stream              # Of the connection. None: there is none.
    cdef readonly uint64_t runs_beside  # How often such a thread did.
    cdef uint64_t rest_until_us         # The lane's thread looks again then. It is set before the lane rests.
    cdef int ended_beside               # How the connection ended while another thread ran the lane; GOES_ON.
    cdef char end_detail[WAN_DETAIL_BYTES]
    cdef wan_buffer learners            # Buckets whose images are to be sent: lane_bucket.
    cdef lane_image image
    # How fast an image goes. `image_window`: bytes of it that may be on their way. No piece leaves before
    # `image_next_us`, but for `image_owed` bytes. `has_changes`: changes were answered since the last piece was.
    cdef uint64_t image_window, image_next_us, image_owed
    cdef bint has_changes
    # The shortest time that an answer took in this period, which began at `period_us`, and in the one before.
    cdef uint64_t shortest_us, shortest_before_us, period_us

    cdef int add_region(self, uint32_t number, bytes name, region_core *core) except -1
    cdef void remove_region(self, uint32_t number) noexcept nogil
    cdef void wake(self) noexcept nogil
    cdef int rest(self, uint64_t until_us) noexcept nogil
    cdef void run_for(self, const wan_lane_wait *wait) noexcept nogil
    cdef void hand_back(self, int how) noexcept nogil
    cdef bint has_room(self) noexcept nogil
    cdef bint has_room_for_changes(self) noexcept nogil
    cdef uint64_t image_limit(self) noexcept nogil
    cdef bint may_image(self, uint64_t now_us) noexcept nogil
    cdef bint is_paced(self, uint64_t now_us) noexcept nogil
    cdef bint has_work(self) noexcept nogil
    cdef uint64_t alive_until(self) noexcept nogil
    cdef uint64_t slow_from(self) noexcept nogil
    cdef uint64_t ping_from(self) noexcept nogil
    cdef int lay_next(self, uint64_t now_us) noexcept nogil
    cdef int lay_settled(self, uint64_t now_us) noexcept nogil
    cdef int lay_changes(self, uint64_t now_us) noexcept nogil
    cdef int lay_bucket(self, uint32_t number, uint32_t bucket, uint64_t frame_at, uint32_t sections,
                        uint64_t now_us) noexcept nogil
    cdef uint32_t answered(self) noexcept nogil
    cdef void begin_question(self, uint32_t bytes, bint of_changes, bint of_image, uint64_t now_us) noexcept nogil
    cdef int take_answer(self, const wan_frame *frame) noexcept nogil
    cdef int take_one(self, const wan_lane_answer *answer) noexcept nogil
    cdef bint end_question(self, const wan_frame *frame) noexcept nogil
    cdef void put_off(self, wan_buffer *to, uint64_t *due_us, uint64_t at_us, uint32_t number,
                      uint32_t bucket) noexcept nogil
    cdef void look_again(self, wan_buffer *at) noexcept nogil
    cdef wan_tail *tail_of(self, uint32_t number) noexcept nogil
    cdef void set_bit(self, uint32_t number, uint32_t bucket) noexcept nogil
    cdef void rewind(self, uint32_t number) noexcept nogil
    cdef void queue_image(self, wan_tail_copy *copy, uint32_t number, uint32_t bucket) noexcept nogil
    cdef int copy_image(self) noexcept nogil
    cdef int lay_image(self, uint64_t now_us) noexcept nogil
    cdef void drop_image(self) noexcept nogil
    cdef void pace_image(self, const lane_question *question) noexcept nogil
