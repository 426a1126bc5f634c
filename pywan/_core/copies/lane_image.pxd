# The interface of lane_image.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport wan_feeds, wan_tail_bucket, wan_tail_copy
from pywan._core.region.region_state cimport region_core

cdef struct lane_bucket:
    uint32_t region, bucket

cdef struct lane_image:
    # The image that a lane is sending. Only one is at any moment. First come the events that are queued, then the
    # shards. `events`, or `entries`, `shrunk` and `answers`, are what was copied of some of them and was not laid out
    # yet. The stream goes through `through` before it.
    lane_bucket where
    uint64_t life, epoch, transfer
    uint64_t through
    wan_buffer events               # wan_image_event with their records.
    wan_buffer entries              # wan_tail_entry with their records.
    wan_buffer shrunk               # wan_shrunk.
    wan_buffer answers              # wan_answer_item. They leave with the last run.
    uint64_t largest                # Bytes of the largest item of these.
    const wan_feeds *feeds          # Those that were fed when the first event was copied. Only compared.
    uint32_t next_feed              # The queue from which events are copied.
    uint64_t next_event             # The sequence from which on. 0: its first.
    uint8_t has_events              # All queued events were copied.
    uint32_t next_shard             # Of the bucket's shards, from 0.
    uint8_t queue_only              # The learner gets the queued events alone.
    uint8_t is_active
    uint8_t is_copied               # The content of some shards waits to be laid out. There may be nothing in them.
    uint8_t is_whole                # All shards were copied.

cdef wan_tail_copy *copy_of(wan_tail_bucket *at, uint32_t lane) noexcept nogil
cdef bint image_begin(lane_image *image, wan_tail_bucket *at, uint32_t lane) noexcept nogil
cdef int image_copy(lane_image *image, region_core *core, uint32_t lane) noexcept nogil
cdef bint image_stays(const lane_image *image, wan_tail_bucket *at, uint32_t lane) noexcept nogil
cdef bint image_is_next(const lane_image *image, wan_tail_bucket *at, uint32_t lane) noexcept nogil
cdef uint64_t image_lay(lane_image *image, wan_buffer *out, uint64_t id, uint32_t answered,
                        uint64_t most) noexcept nogil
