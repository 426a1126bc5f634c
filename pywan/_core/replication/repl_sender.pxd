# The interface of repl_sender.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport wan_frame
from pywan._core.c_replication cimport (
    wan_changelog, wan_changelog_bucket, wan_changelog_replica, wan_repl_answer, wan_repl_link_state,
    wan_repl_link_wait)
from pywan._core.replication.repl_snapshot cimport repl_snapshot
from pywan._core.replication.repl_news cimport News
from pywan._core.region.region_state cimport region_core
from pywan._core.wire.byte_stream cimport ByteStream
from pywan._core.wire.session cimport Session

cdef enum:
    QUESTIONS_MAX = 1024        # A power of two.

cdef struct repl_region:
    region_core *core           # NULL: no region has this number.

# A question that was sent and is not yet answered.
cdef struct repl_question:
    uint64_t sent_us
    uint32_t bytes
    uint8_t of_snapshot
    uint8_t of_changes

cdef class ReplSenderSession(Session):
    cdef uint32_t number                # The number of the replication link in the change logs.
    cdef wan_repl_link_state *state
    cdef News news
    # Guards the regions. The replication link's thread holds the lock while laying out a frame or handling a received
    # frame.
    cdef wan_lock lock
    cdef repl_region *regions           # By number.
    cdef uint32_t region_count
    cdef wan_buffer names               # Region names for the receiver: wan_repl_region.
    cdef uint64_t names_told            # Bytes of `names` that were sent.
    cdef uint64_t receive_timeout_us            # The member time-out. Set by other threads.
    # Questions: ids from `oldest` to `next_id` - 1 are on their way.
    cdef repl_question questions[QUESTIONS_MAX]
    cdef uint64_t oldest, next_id
    cdef uint64_t bytes_on_way, snapshot_bytes_on_way
    cdef uint64_t asked_us              # When the last question was sent.
    cdef uint64_t answered_us           # When the last answer came.
    cdef bint is_slow                   # The news about the slow question was sent.
    cdef bint snapshot_turn                # The last frame had changes.
    # Where the next frame begins.
    cdef uint32_t at_region, at_bucket
    # Buckets to be looked at again: replicas that answered "later", and replicas that need the high watermark.
    cdef wan_buffer later, to_tell
    cdef uint64_t later_us, tell_us
    cdef bint is_telling
    # Removals. No more removals are sent before `removals_us`.
    cdef wan_buffer removals             # wan_repl_head and wan_repl_removal, while a frame is laid out.
    cdef uint64_t removals_us
    # Which thread runs the replication link: the link's own thread, or a thread that waits for its change.
    cdef ByteStream stream              # The present connection. None: no connection.
    cdef readonly uint64_t runs_beside  # How often a waiting thread ran the link.
    # When the replication link's thread looks again. Set before the replication link rests.
    cdef uint64_t rest_until_us
    # How the connection ended while another thread ran the replication link; GOES_ON.
    cdef int ended_beside
    cdef char end_detail[WAN_DETAIL_BYTES]
    cdef wan_buffer learners            # Buckets whose snapshots are to be sent: repl_bucket.
    cdef repl_snapshot snapshot
    # The speed of a snapshot. `snapshot_window`: bytes of the snapshot that may be on their way. No piece leaves before
    # `snapshot_next_us`, except for `snapshot_owed` bytes. `has_changes`: changes were answered since the last piece
    # was answered.
    cdef uint64_t snapshot_window, snapshot_next_us, snapshot_owed
    cdef bint has_changes
    # The shortest time of an answer in the present period, which began at `period_us`, and in the period before.
    cdef uint64_t shortest_us, shortest_before_us, period_us

    cdef int add_region(self, uint32_t number, bytes name, region_core *core) except -1
    cdef void remove_region(self, uint32_t number) noexcept nogil
    cdef void wake(self) noexcept nogil
    cdef int rest(self, uint64_t until_us) noexcept nogil
    cdef void run_for(self, const wan_repl_link_wait *wait) noexcept nogil
    cdef void hand_back(self, int how) noexcept nogil
    cdef bint has_room(self) noexcept nogil
    cdef bint has_room_for_changes(self) noexcept nogil
    cdef uint64_t snapshot_limit(self) noexcept nogil
    cdef bint may_snapshot(self, uint64_t now_us) noexcept nogil
    cdef bint is_paced(self, uint64_t now_us) noexcept nogil
    cdef bint has_work(self) noexcept nogil
    cdef uint64_t alive_until(self) noexcept nogil
    cdef uint64_t slow_from(self) noexcept nogil
    cdef uint64_t ping_from(self) noexcept nogil
    cdef int lay_next(self, uint64_t now_us) noexcept nogil
    cdef int lay_removals(self, uint64_t now_us) noexcept nogil
    cdef int lay_changes(self, uint64_t now_us) noexcept nogil
    cdef int lay_bucket(self, uint32_t number, uint32_t bucket, uint64_t frame_at, uint32_t sections,
                        uint64_t now_us) noexcept nogil
    cdef uint32_t answered(self) noexcept nogil
    cdef void begin_question(self, uint32_t bytes, bint of_changes, bint of_snapshot, uint64_t now_us) noexcept nogil
    cdef int take_answer(self, const wan_frame *frame) noexcept nogil
    cdef int take_one(self, const wan_repl_answer *answer) noexcept nogil
    cdef bint end_question(self, const wan_frame *frame) noexcept nogil
    cdef void put_off(self, wan_buffer *to, uint64_t *due_us, uint64_t at_us, uint32_t number,
                      uint32_t bucket) noexcept nogil
    cdef void look_again(self, wan_buffer *at) noexcept nogil
    cdef wan_changelog *changelog_of(self, uint32_t number) noexcept nogil
    cdef void set_bit(self, uint32_t number, uint32_t bucket) noexcept nogil
    cdef void rewind(self, uint32_t number) noexcept nogil
    cdef void queue_snapshot(self, wan_changelog_replica *replica, uint32_t number, uint32_t bucket) noexcept nogil
    cdef int copy_snapshot(self) noexcept nogil
    cdef int lay_snapshot(self, uint64_t now_us) noexcept nogil
    cdef void drop_snapshot(self) noexcept nogil
    cdef void pace_snapshot(self, const repl_question *question) noexcept nogil
