# Owns the snapshots that a replication link sends: the queued events of the bucket, then the content of its shards, one
# run after the other. A run is the content at one moment of the stream. The stream is sent up to the moment, then the
# run, and then the rest of the stream. A learner that holds only queued events gets no shards.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_store cimport *
from pywan._core.queue.queue cimport gateway_queue, queue_can_read
from pywan._core.region.region_state cimport region_core


cdef enum:
    RUN_BYTES = 128 << 10       # A run with this many bytes gets no more shards or events.


cdef wan_changelog_replica *replica_of(wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil:
    """Returns the bucket's replica on this replication link, if this member is the primary. NULL: none. Under the
    bucket's lock."""
    cdef uint32_t n
    if at.role == WAN_REPLICA_PRIMARY or at.role == WAN_REPLICA_TAKING_OVER:
        for n in range(at.replica_count):
            if at.replicas[n].repl_link == repl_link:
                return &at.replicas[n]
    return NULL


cdef wan_changelog_replica *learner_of(const repl_snapshot *snapshot, wan_changelog_bucket *at,
                                       uint32_t repl_link) noexcept nogil:
    """Returns the replica that gets this snapshot. NULL: the replica no longer gets the snapshot. Under the bucket's
    lock."""
    cdef wan_changelog_replica *replica = replica_of(at, repl_link)
    if (replica == NULL or replica.state != WAN_FOLLOWER_LEARNING or replica.refused or not replica.confirmed
            or replica.transfer != snapshot.transfer or at.timeline != snapshot.timeline or at.epoch != snapshot.epoch):
        return NULL
    return replica


cdef bint snapshot_begin(repl_snapshot *snapshot, wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil:
    """Begins the snapshot of a bucket. False: its replica on this replication link is no learner."""
    cdef wan_changelog_replica *replica
    snapshot.queue_only = 0
    wan_lock_take(&at.lock)
    replica = replica_of(at, repl_link)
    if replica != NULL:
        snapshot.queue_only = replica.queue_only
        snapshot.timeline, snapshot.epoch, snapshot.transfer = at.timeline, at.epoch, replica.transfer
        replica = learner_of(snapshot, at, repl_link)
    wan_lock_release(&at.lock)
    snapshot.next_shard = snapshot.next_feed = 0
    snapshot.next_event = snapshot.has_events = 0
    snapshot.feeds = NULL
    snapshot.is_copied = snapshot.is_whole = 0
    return replica != NULL


cdef bint snapshot_stays(const repl_snapshot *snapshot, wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil:
    """Whether the replica still gets the snapshot."""
    cdef bint stays
    wan_lock_take(&at.lock)
    stays = learner_of(snapshot, at, repl_link) != NULL
    wan_lock_release(&at.lock)
    return stays


cdef bint snapshot_is_next(const repl_snapshot *snapshot, wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil:
    """Whether the stream was sent up to the copied run."""
    cdef wan_changelog_replica *replica
    cdef bint is_next
    wan_lock_take(&at.lock)
    replica = learner_of(snapshot, at, repl_link)
    is_next = replica != NULL and replica.sent >= snapshot.through
    wan_lock_release(&at.lock)
    return is_next


cdef bint copy_entry(repl_snapshot *snapshot, const region_core *core, const wan_entry *entry,
                     uint64_t now_ms) noexcept nogil:
    """Adds one entry of the table. False: no memory."""
    cdef wan_changelog_entry head
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
    if wan_buffer_reserve(&snapshot.entries, head.length) != WAN_OK:
        return False
    to = snapshot.entries.bytes + snapshot.entries.used
    memcpy(to, &head, sizeof(head))
    wan_record_write(to + sizeof(head), length, record, entry.bytes, value, value, value)
    if head.found_length:
        memcpy(to + sizeof(head) + length, &age_ms, sizeof(age_ms))
    snapshot.entries.used += head.length
    snapshot.largest = max(snapshot.largest, <uint64_t>head.length)
    return True


cdef bint copy_shard(repl_snapshot *snapshot, const region_core *core, const wan_shard *shard) noexcept nogil:
    """Adds all of a shard. False: no memory. Under the entry lock."""
    cdef uint64_t at, now_ms = wan_now_ms()
    cdef const wan_entry *entry
    for at in range(wan_shard_slots(shard)):
        entry = wan_shard_entry(shard, at)
        if entry != NULL and not copy_entry(snapshot, core, entry, now_ms):
            return False
    return shard.shrunk == NULL or wan_buffer_add(&snapshot.shrunk, &shard.shrunk.items[0],
                                                  shard.shrunk.count * sizeof(wan_shrunk)) == WAN_OK


cdef bint copy_event(repl_snapshot *snapshot, uint64_t sender, uint64_t sequence, const wan_record *record,
                     bint is_begin=False) noexcept nogil:
    """Adds one event of a queue. NULL: adds a mark that all events through `sequence` were removed, or that no event
    through `sequence` was ever in the queue (`is_begin`). False: no memory."""
    cdef wan_snapshot_event head
    memset(&head, 0, sizeof(head))
    head.sender, head.sequence, head.is_begin = sender, sequence, is_begin
    head.length = wan_record_length(record) if record != NULL else 0
    if wan_buffer_reserve(&snapshot.events, sizeof(head) + head.length) != WAN_OK:
        return False
    wan_buffer_put(&snapshot.events, &head, sizeof(head))
    if record != NULL:
        wan_buffer_put(&snapshot.events, record, head.length)
    snapshot.largest = max(snapshot.largest, sizeof(head) + head.length)
    return True


cdef bint copy_queue(repl_snapshot *snapshot, gateway_queue *gateway, uint32_t number) noexcept nogil:
    """Adds the next events of one partition of a queue, until the run is long enough or all events were added. False:
    no memory, or an unreadable file. Under the queue's lock."""
    cdef const wan_partition *partition = &gateway.queue.partitions[number]
    cdef uint64_t sequence, begun
    if snapshot.next_event == 0:
        begun = max(partition.begun, min(partition.lacks, snapshot.through))
        if begun and not copy_event(snapshot, gateway.sender, begun, NULL, True):
            return False
        if not copy_event(snapshot, gateway.sender, partition.removed, NULL):
            return False
    snapshot.next_event = max(snapshot.next_event, partition.removed + 1)
    while snapshot.events.used < RUN_BYTES:
        sequence = 0
        if snapshot.next_event <= partition.appended:
            sequence = wan_queue_next_live(partition, snapshot.next_event, partition.appended)
        if sequence == 0:
            snapshot.next_feed += 1
            snapshot.next_event = 0
            return True
        if not queue_can_read(gateway, number, sequence):
            return False
        if not copy_event(snapshot, gateway.sender, sequence,
                          wan_queue_at(&gateway.queue, partition, sequence)):
            return False
        snapshot.next_event = sequence + 1
    return True


cdef int copy_events(repl_snapshot *snapshot, wan_changelog *changelog, uint32_t repl_link) noexcept nogil:
    """Copies the next run of queued events, as `snapshot_copy` copies shards."""
    cdef wan_changelog_bucket *at = &changelog.buckets[snapshot.where.bucket]
    cdef const wan_feeds *feeds
    cdef gateway_queue *gateway
    cdef int done = 1
    wan_lock_take(&at.lock)
    feeds = wan_changelog_feeds(changelog)
    if feeds != snapshot.feeds:            # The feeds have changed: a learner skips known events.
        snapshot.feeds, snapshot.next_feed, snapshot.next_event = feeds, 0, 0
    if learner_of(snapshot, at, repl_link) == NULL:
        done = 0
    snapshot.through = at.log_end
    while done > 0 and feeds != NULL and snapshot.next_feed < feeds.count and snapshot.events.used < RUN_BYTES:
        gateway = <gateway_queue *>feeds.items[snapshot.next_feed].owner
        wan_lock_take(&gateway.lock)
        if not copy_queue(snapshot, gateway, feeds.items[snapshot.next_feed].first + snapshot.where.bucket):
            done = -1
        wan_lock_release(&gateway.lock)
    snapshot.has_events = feeds == NULL or snapshot.next_feed >= feeds.count
    wan_lock_release(&at.lock)
    if done > 0:
        snapshot.is_copied = 1
    return done


cdef int end_without_shards(repl_snapshot *snapshot, wan_changelog_bucket *at, uint32_t shard_count,
                            uint32_t repl_link) noexcept nogil:
    """Marks the snapshot of a learner without entries as whole, as `snapshot_copy` does."""
    cdef wan_changelog_replica *replica
    cdef int done = 0
    wan_lock_take(&at.lock)
    replica = learner_of(snapshot, at, repl_link)
    if replica != NULL:
        snapshot.through, snapshot.next_shard, replica.snapshot_shard = at.log_end, shard_count, WAN_SNAPSHOT_DONE
        snapshot.is_copied = snapshot.is_whole = done = 1
    wan_lock_release(&at.lock)
    return done


cdef int snapshot_copy(repl_snapshot *snapshot, region_core *core, uint32_t repl_link) noexcept nogil:
    """Copies the next run of shards. 1: the run waits to be laid out. 0: the replica is no learner any more. -1: no
    memory. Each entry lock is held while one shard is copied."""
    cdef const wan_bucket *bucket = &core.table.buckets[snapshot.where.bucket]
    cdef wan_changelog_bucket *at = &core.changelog.buckets[snapshot.where.bucket]
    cdef wan_changelog_replica *replica
    cdef wan_shard *shard
    cdef uint64_t entries, shrunk
    cdef uint32_t run = 0
    cdef int done = 1
    cdef bint is_same = True
    snapshot.largest = 0
    if not snapshot.has_events and wan_changelog_feeds(core.changelog) != NULL:
        return copy_events(snapshot, core.changelog, repl_link)
    snapshot.has_events = 1
    if snapshot.queue_only:
        return end_without_shards(snapshot, at, bucket.shard_count, repl_link)
    while done > 0 and is_same and snapshot.next_shard < bucket.shard_count and snapshot.entries.used < RUN_BYTES:
        shard = &core.table.shards[bucket.first_shard + snapshot.next_shard]
        entries, shrunk = snapshot.entries.used, snapshot.shrunk.used
        wan_lock_take(&shard.lock)
        done = 1 if copy_shard(snapshot, core, shard) else -1
        wan_lock_take(&at.lock)
        replica = learner_of(snapshot, at, repl_link)
        if replica == NULL:
            done = 0
        elif done > 0:
            if run == 0:
                snapshot.through = at.log_end
            is_same = at.log_end == snapshot.through
            if is_same:
                if snapshot.next_shard + 1 == bucket.shard_count:
                    wan_buffer_empty(&snapshot.answers)
                    if wan_answers_pack(&at.answers, &snapshot.answers, &snapshot.largest) != WAN_OK:
                        done = -1
                snapshot.next_shard += 1
                run += 1
                replica.snapshot_shard = (snapshot.next_shard if snapshot.next_shard < bucket.shard_count
                                          else WAN_SNAPSHOT_DONE)
        wan_lock_release(&at.lock)
        wan_lock_release(&shard.lock)
        if not is_same:                     # The shard is of a later moment, and begins the next run.
            snapshot.entries.used, snapshot.shrunk.used = entries, shrunk
    if done > 0:
        snapshot.is_copied, snapshot.is_whole = 1, snapshot.next_shard == bucket.shard_count
    return done


cdef uint64_t snapshot_lay(repl_snapshot *snapshot, wan_buffer *out, uint64_t id, uint32_t answered,
                           uint64_t most) noexcept nogil:
    """Lays out a piece of the run, of about `most` bytes. `is_copied` is 0 after the last piece. Returns the bytes of
    the piece's frame; 0: nothing was left of a run that does not end the snapshot. The caller made room in `out`."""
    cdef wan_buffer *part = &snapshot.entries
    cdef wan_frame *frame = <wan_frame *>(out.bytes + out.used)
    cdef wan_repl_snapshot *head = <wan_repl_snapshot *>(frame + 1)
    cdef uint64_t bytes = 0
    cdef uint32_t count = 0
    memset(frame, 0, sizeof(wan_frame) + sizeof(wan_repl_snapshot))
    if snapshot.events.start < snapshot.events.used:
        part, head.part = &snapshot.events, WAN_SNAPSHOT_EVENTS
        while part.start + bytes < part.used and bytes < most:
            bytes += (sizeof(wan_snapshot_event)
                      + (<wan_snapshot_event *>(part.bytes + part.start + bytes)).length)
            count += 1
    elif part.start < part.used:
        while part.start + bytes < part.used and bytes < most:
            bytes += (<wan_changelog_entry *>(part.bytes + part.start + bytes)).length
            count += 1
    elif snapshot.shrunk.start < snapshot.shrunk.used:
        part, head.part = &snapshot.shrunk, WAN_SNAPSHOT_SHRUNK
        bytes = min(part.used - part.start, most // sizeof(wan_shrunk) * sizeof(wan_shrunk))
        count = <uint32_t>(bytes // sizeof(wan_shrunk))
    elif snapshot.answers.start < snapshot.answers.used:
        part, head.part = &snapshot.answers, WAN_SNAPSHOT_ANSWERS
        while part.start + bytes < part.used and bytes < most:
            bytes += wan_answer_item_size(<const wan_answer_item *>(part.bytes + part.start + bytes))
            count += 1
    if bytes:
        memcpy(head + 1, part.bytes + part.start, bytes)
        part.start += bytes
    if (snapshot.events.start == snapshot.events.used and snapshot.entries.start == snapshot.entries.used
            and snapshot.shrunk.start == snapshot.shrunk.used
            and snapshot.answers.start == snapshot.answers.used):
        wan_buffer_empty(&snapshot.events)
        wan_buffer_empty(&snapshot.entries)
        wan_buffer_empty(&snapshot.shrunk)
        wan_buffer_empty(&snapshot.answers)
        snapshot.is_copied = 0
        head.is_last = snapshot.is_whole
        if bytes == 0 and not snapshot.is_whole:
            return 0
    head.region, head.bucket = snapshot.where.region, snapshot.where.bucket
    head.timeline, head.epoch = snapshot.timeline, snapshot.epoch
    head.transfer, head.through = snapshot.transfer, snapshot.through
    head.count, head.bytes, head.shard = count, <uint32_t>bytes, snapshot.next_shard
    frame.magic, frame.type, frame.id = WAN_FRAME_MAGIC, WAN_FRAME_REPL_SNAPSHOT, id
    frame.count = answered
    frame.length = frame.raw_length = <uint32_t>(sizeof(wan_repl_snapshot) + bytes)
    frame.crc = wan_frame_crc(frame, head, frame.length)
    out.used += sizeof(wan_frame) + frame.length
    return sizeof(wan_frame) + frame.length
