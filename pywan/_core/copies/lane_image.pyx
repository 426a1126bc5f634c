# Owns what a lane sends of an image: the events that the bucket has in queues, then the content of its shards, one run
# after the other. A run is of one moment in the stream. The stream is sent up to that moment, then the run, and then
# the stream goes on. A learner that holds the queued events alone gets no shards.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_lane cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_tables cimport wan_record
from pywan._core.c_store cimport *
from pywan._core.queue.queue cimport gateway_queue, queue_can_read
from pywan._core.region.region_state cimport region_core


cdef enum:
    RUN_BYTES = 128 << 10       # No other shard or event is added to a run that has so many bytes.


cdef wan_tail_copy *copy_of(wan_tail_bucket *at, uint32_t lane) noexcept nogil:
    """The bucket's copy on this lane, if this member is the one that sends. NULL: there is none. Under the bucket's
    lock."""
    cdef uint32_t n
    if at.role == WAN_TAIL_PRIMARY or at.role == WAN_TAIL_TAKING_OVER:
        for n in range(at.copy_count):
            if at.copies[n].lane == lane:
                return &at.copies[n]
    return NULL


cdef wan_tail_copy *learner_of(const lane_image *image, wan_tail_bucket *at, uint32_t lane) noexcept nogil:
    """The copy that gets this image. NULL: it does not any more. Under the bucket's lock."""
    cdef wan_tail_copy *copy = copy_of(at, lane)
    if (copy == NULL or copy.state != WAN_COPY_LEARNING or copy.refused or not copy.confirmed
            or copy.transfer != image.transfer or at.life != image.life or at.epoch != image.epoch):
        return NULL
    return copy


cdef bint image_begin(lane_image *image, wan_tail_bucket *at, uint32_t lane) noexcept nogil:
    """Begins the image of a bucket. False: its copy on this lane learns nothing."""
    cdef wan_tail_copy *copy
    image.queue_only = 0
    wan_lock_take(&at.lock)
    copy = copy_of(at, lane)
    if copy != NULL:
        image.queue_only = copy.queue_only
        image.life, image.epoch, image.transfer = at.life, at.epoch, copy.transfer
        copy = learner_of(image, at, lane)
    wan_lock_release(&at.lock)
    image.next_shard = image.next_feed = 0
    image.next_event = image.has_events = 0
    image.feeds = NULL
    image.is_copied = image.is_whole = 0
    return copy != NULL


cdef bint image_stays(const lane_image *image, wan_tail_bucket *at, uint32_t lane) noexcept nogil:
    """Whether the copy still gets this image."""
    cdef bint stays
    wan_lock_take(&at.lock)
    stays = learner_of(image, at, lane) != NULL
    wan_lock_release(&at.lock)
    return stays


cdef bint image_is_next(const lane_image *image, wan_tail_bucket *at, uint32_t lane) noexcept nogil:
    """Whether the stream was sent up to the run that was copied."""
    cdef wan_tail_copy *copy
    cdef bint is_next
    wan_lock_take(&at.lock)
    copy = learner_of(image, at, lane)
    is_next = copy != NULL and copy.sent >= image.through
    wan_lock_release(&at.lock)
    return is_next


cdef bint copy_entry(lane_image *image, const region_core *core, const wan_entry *entry,
                     uint64_t now_ms) noexcept nogil:
    """Adds one entry of the table. False: no memory."""
    cdef wan_tail_entry head
    cdef wan_record record
    cdef uint64_t length, age_ms = 0, made_ms = 0
    cdef const uint8_t *value = entry.bytes + entry.key_length
    cdef uint8_t *to
    memset(&head, 0, sizeof(head))
    memset(&record, 0, sizeof(record))
    record.stamp, record.stamp_site, record.origin_site = entry.stamp, entry.stamp_site, core.site
    record.key_length, record.key_form, record.callback_form = entry.key_length, entry.key_form, WAN_FORM_NONE
    record.region, record.operation = core.number, WAN_CREATE
    head.outcome = WAN_CREATED
    if entry.state == WAN_ENTRY_LIVE:
        record.value_length, record.value_form = entry.value_length, entry.value_form
    elif entry.state == WAN_ENTRY_INVALID:
        head.outcome = WAN_MISSING
    else:
        record.operation, head.outcome = WAN_DESTROY, WAN_DESTROYED
        memcpy(&made_ms, value, sizeof(made_ms))
        age_ms = now_ms - made_ms if now_ms > made_ms else 0
        head.found_length = sizeof(age_ms)
    length = wan_record_size(record.key_length, record.value_length, 0, 0)
    head.length = <uint32_t>(sizeof(head) + length + head.found_length)
    if wan_buffer_reserve(&image.entries, head.length) != WAN_OK:
        return False
    to = image.entries.bytes + image.entries.used
    memcpy(to, &head, sizeof(head))
    wan_record_write(to + sizeof(head), length, record, entry.bytes, value, value, value)
    if head.found_length:
        memcpy(to + sizeof(head) + length, &age_ms, sizeof(age_ms))
    image.entries.used += head.length
    image.largest = max(image.largest, <uint64_t>head.length)
    return True


cdef bint copy_shard(lane_image *image, const region_core *core, const wan_shard *shard) noexcept nogil:
    """Adds all of a shard. False: no memory. Under the entry lock."""
    cdef uint64_t at, now_ms = wan_now_ms()
    cdef const wan_entry *entry
    for at in range(wan_shard_slots(shard)):
        entry = wan_shard_entry(shard, at)
        if entry != NULL and not copy_entry(image, core, entry, now_ms):
            return False
    return shard.shrunk == NULL or wan_buffer_add(&image.shrunk, &shard.shrunk.items[0],
                                                  shard.shrunk.count * sizeof(wan_shrunk)) == WAN_OK


cdef bint copy_event(lane_image *image, uint64_t sender, uint64_t sequence, const wan_record *record,
                     bint is_begin=False) noexcept nogil:
    """Adds one event of a queue; NULL: that all through `sequence` have left it, or that none of these was ever in it
    (`is_begin`). False: no memory."""
    cdef wan_image_event head
    memset(&head, 0, sizeof(head))
    head.sender, head.sequence, head.is_begin = sender, sequence, is_begin
    head.length = wan_record_length(record) if record != NULL else 0
    if wan_buffer_reserve(&image.events, sizeof(head) + head.length) != WAN_OK:
        return False
    wan_buffer_put(&image.events, &head, sizeof(head))
    if record != NULL:
        wan_buffer_put(&image.events, record, head.length)
    image.largest = max(image.largest, sizeof(head) + head.length)
    return True


cdef bint copy_queue(lane_image *image, gateway_queue *gateway, uint32_t number) noexcept nogil:
    """Adds the next events of one partition of a queue, until the run is long enough or there are no more. False: no
    memory, or a file cannot be read. Under the queue's lock."""
    cdef const wan_partition *partition = &gateway.queue.partitions[number]
    cdef uint64_t sequence, begun
    if image.next_event == 0:
        begun = max(partition.begun, min(partition.lacks, image.through))
        if begun and not copy_event(image, gateway.sender, begun, NULL, True):
            return False
        if not copy_event(image, gateway.sender, partition.removed, NULL):
            return False
    image.next_event = max(image.next_event, partition.removed + 1)
    while image.events.used < RUN_BYTES:
        sequence = 0
        if image.next_event <= partition.appended:
            sequence = wan_queue_next_live(partition, image.next_event, partition.appended)
        if sequence == 0:
            image.next_feed += 1
            image.next_event = 0
            return True
        if not queue_can_read(gateway, number, sequence):
            return False
        if not copy_event(image, gateway.sender, sequence,
                          wan_queue_at(&gateway.queue, partition, sequence)):
            return False
        image.next_event = sequence + 1
    return True


cdef int copy_events(lane_image *image, wan_tail *tail, uint32_t lane) noexcept nogil:
    """Copies the next run of queued events, as `image_copy` does it for shards."""
    cdef wan_tail_bucket *at = &tail.buckets[image.where.bucket]
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef int done = 1
    wan_lock_take(&at.lock)
    feeds = wan_tail_feeds(tail)
    if feeds != image.feeds:            # Other queues are fed since: a learner skips what it has.
        image.feeds, image.next_feed, image.next_event = feeds, 0, 0
    if learner_of(image, at, lane) == NULL:
        done = 0
    image.through = at.last
    while done > 0 and feeds != NULL and image.next_feed < feeds.count and image.events.used < RUN_BYTES:
        gateway = <gateway_queue *>feeds.items[image.next_feed].owner
        wan_lock_take(&gateway.lock)
        if not copy_queue(image, gateway, feeds.items[image.next_feed].first + image.where.bucket):
            done = -1
        wan_lock_release(&gateway.lock)
    image.has_events = feeds == NULL or image.next_feed >= feeds.count
    wan_lock_release(&at.lock)
    if done > 0:
        image.is_copied = 1
    return done


cdef int end_without_shards(lane_image *image, wan_tail_bucket *at, uint32_t shard_count,
                            uint32_t lane) noexcept nogil:
    """The image of a learner without entries is whole, as `image_copy` says it."""
    cdef wan_tail_copy *copy
    cdef int done = 0
    wan_lock_take(&at.lock)
    copy = learner_of(image, at, lane)
    if copy != NULL:
        image.through, image.next_shard, copy.image_shard = at.last, shard_count, WAN_IMAGE_DONE
        image.is_copied = image.is_whole = done = 1
    wan_lock_release(&at.lock)
    return done


cdef int image_copy(lane_image *image, region_core *core, uint32_t lane) noexcept nogil:
    """Copies the next run of shards. 1: it waits to be laid out. 0: the copy does not learn any more. -1: no memory.
    Each entry lock is held while one shard is copied."""
    cdef const wan_bucket *bucket = &core.table.buckets[image.where.bucket]
    cdef wan_tail_bucket *at = &core.tail.buckets[image.where.bucket]
    cdef wan_tail_copy *copy
    cdef wan_shard *shard
    cdef uint64_t entries, shrunk
    cdef uint32_t run = 0
    cdef int done = 1
    cdef bint is_same = True
    image.largest = 0
    if not image.has_events and wan_tail_feeds(core.tail) != NULL:
        return copy_events(image, core.tail, lane)
    image.has_events = 1
    if image.queue_only:
        return end_without_shards(image, at, bucket.shard_count, lane)
    while done > 0 and is_same and image.next_shard < bucket.shard_count and image.entries.used < RUN_BYTES:
        shard = &core.table.shards[bucket.first_shard + image.next_shard]
        entries, shrunk = image.entries.used, image.shrunk.used
        wan_lock_take(&shard.lock)
        done = 1 if copy_shard(image, core, shard) else -1
        wan_lock_take(&at.lock)
        copy = learner_of(image, at, lane)
        if copy == NULL:
            done = 0
        elif done > 0:
            if run == 0:
                image.through = at.last
            is_same = at.last == image.through
            if is_same:
                if image.next_shard + 1 == bucket.shard_count:
                    wan_buffer_empty(&image.answers)
                    if wan_answers_pack(&at.answers, &image.answers, &image.largest) != WAN_OK:
                        done = -1
                image.next_shard += 1
                run += 1
                copy.image_shard = image.next_shard if image.next_shard < bucket.shard_count else WAN_IMAGE_DONE
        wan_lock_release(&at.lock)
        wan_lock_release(&shard.lock)
        if not is_same:                     # The shard is of a later moment. It begins the next run.
            image.entries.used, image.shrunk.used = entries, shrunk
    if done > 0:
        image.is_copied, image.is_whole = 1, image.next_shard == bucket.shard_count
    return done


cdef uint64_t image_lay(lane_image *image, wan_buffer *out, uint64_t id, uint32_t answered,
                        uint64_t most) noexcept nogil:
    """Lays out a piece of the run, of about `most` bytes. `is_copied` is 0 when it was the last one. Returns the bytes
    of its frame; 0: nothing was left of a run that does not end the image. There is room in `out`."""
    cdef wan_buffer *part = &image.entries
    cdef wan_frame *frame = <wan_frame *>(out.bytes + out.used)
    cdef wan_lane_image *head = <wan_lane_image *>(frame + 1)
    cdef uint64_t bytes = 0
    cdef uint32_t count = 0
    memset(frame, 0, sizeof(wan_frame) + sizeof(wan_lane_image))
    if image.events.start < image.events.used:
        part, head.part = &image.events, WAN_IMAGE_EVENTS
        while part.start + bytes < part.used and bytes < most:
            bytes += (sizeof(wan_image_event)
                      + (<wan_image_event *>(part.bytes + part.start + bytes)).length)
            count += 1
    elif part.start < part.used:
        while part.start + bytes < part.used and bytes < most:
            bytes += (<wan_tail_entry *>(part.bytes + part.start + bytes)).length
            count += 1
    elif image.shrunk.start < image.shrunk.used:
        part, head.part = &image.shrunk, WAN_IMAGE_SHRUNK
        bytes = min(part.used - part.start, most // sizeof(wan_shrunk) * sizeof(wan_shrunk))
        count = <uint32_t>(bytes // sizeof(wan_shrunk))
    elif image.answers.start < image.answers.used:
        part, head.part = &image.answers, WAN_IMAGE_ANSWERS
        while part.start + bytes < part.used and bytes < most:
            bytes += wan_answer_item_size(<const wan_answer_item *>(part.bytes + part.start + bytes))
            count += 1
    if bytes:
        memcpy(head + 1, part.bytes + part.start, bytes)
        part.start += bytes
    if (image.events.start == image.events.used and image.entries.start == image.entries.used
            and image.shrunk.start == image.shrunk.used
            and image.answers.start == image.answers.used):
        wan_buffer_empty(&image.events)
        wan_buffer_empty(&image.entries)
        wan_buffer_empty(&image.shrunk)
        wan_buffer_empty(&image.answers)
        image.is_copied = 0
        head.is_last = image.is_whole
        if bytes == 0 and not image.is_whole:
            return 0
    head.region, head.bucket = image.where.region, image.where.bucket
    head.life, head.epoch, head.transfer, head.through = image.life, image.epoch, image.transfer, image.through
    head.count, head.bytes, head.shard = count, <uint32_t>bytes, image.next_shard
    frame.magic, frame.type, frame.id = WAN_FRAME_MAGIC, WAN_FRAME_LANE_IMAGE, id
    frame.count = answered
    frame.length = frame.raw_length = <uint32_t>(sizeof(wan_lane_image) + bytes)
    frame.crc = wan_frame_crc(frame, head, frame.length)
    out.used += sizeof(wan_frame) + frame.length
    return sizeof(wan_frame) + frame.length
