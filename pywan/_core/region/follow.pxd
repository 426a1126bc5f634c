# Owns what a copy of a bucket does with the changes that its primary sends: they take effect whatever is stored,
# because inside a site the sequence decides, and its event enters the queues that the primary decided on. It runs for
# each change.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_lane cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_store cimport *
from pywan._core.region.enqueue cimport ENQUEUE_ENTERS
from pywan._core.region.put cimport change_from_record, region_hear, region_note_tombstone
from pywan._core.queue.queue cimport gateway_queue, queue_commit, queue_note_copy, queue_reserve
from pywan._core.region.region_state cimport MAX_ATTACHED, attachment, region_core


cdef struct followed_events:
    # The queues that an event enters here, whose locks are held, with the room in them. In the order of the locks.
    uint32_t count
    gateway_queue *queues[MAX_ATTACHED]
    const wan_verdict *verdicts[MAX_ATTACHED]
    wan_reservation reservations[MAX_ATTACHED]


cdef inline const wan_verdict *verdict_of(const wan_tail_entry *entry, uint64_t sender) noexcept nogil:
    """What the primary decided for a sender. NULL: the sender has no part in the change there."""
    cdef const wan_verdict *verdict = wan_tail_entry_verdicts(entry)
    cdef const uint8_t *end = <const uint8_t *>verdict + entry.verdict_length
    while <const uint8_t *>verdict < end:
        if verdict.sender == sender:
            return verdict
        verdict = wan_verdict_next(verdict)
    return NULL


cdef inline wan_status follow_reserve(region_core *region, uint32_t bucket, uint64_t sequence,
                                      const wan_tail_entry *entry, followed_events *events) noexcept nogil:
    """Reserves room for the event in each queue here that it enters, whose lock is held with WAN_OK. A sender that this
    member has not is left out: the region may be on more members than the sender. WAN_FULL, WAN_IO: a queue has no
    room. Under the entry lock and the bucket's lock."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef const wan_verdict *verdict
    cdef attachment *attached = region.attached
    cdef gateway_queue *gateway
    cdef wan_status status
    cdef uint32_t n, value_length
    events.count = 0
    for n in range(attached.count if attached != NULL else 0):
        gateway = attached.queues[n]
        verdict = verdict_of(entry, gateway.sender)
        if verdict == NULL or verdict.verdict != ENQUEUE_ENTERS:
            continue
        value_length = verdict.value_length if verdict.is_substituted else record.value_length
        wan_lock_take(&gateway.lock)
        status = queue_reserve(gateway, attached.firsts[n] + bucket, sequence,
                               wan_record_size(record.key_length, value_length, record.callback_length,
                                               record.recipients_count), &events.reservations[events.count])
        if status != WAN_OK:
            wan_lock_release(&gateway.lock)
            follow_cancel(events)
            return status
        events.queues[events.count], events.verdicts[events.count] = gateway, verdict
        events.count += 1
    return WAN_OK


cdef inline void follow_cancel(followed_events *events) noexcept nogil:
    cdef uint32_t n
    for n in range(events.count):
        wan_queue_cancel(&events.queues[n].queue, &events.reservations[n])
        wan_lock_release(&events.queues[n].lock)


cdef inline void follow_commit(const region_core *region, const wan_tail_entry *entry,
                               followed_events *events) noexcept nogil:
    """Writes the event into these queues, and releases their locks. It is not ready before the primary tells that it
    counts. The primary's number of the region is another one than that of this member."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef const wan_verdict *verdict
    cdef gateway_queue *gateway
    cdef wan_record head
    cdef uint8_t *to
    cdef uint32_t n
    for n in range(events.count):
        gateway, verdict, to = events.queues[n], events.verdicts[n], events.reservations[n].at
        if verdict.is_substituted:
            head = record[0]
            head.value_length, head.value_form = verdict.value_length, verdict.value_form
            wan_record_write(to, events.reservations[n].length, head, wan_record_key(record),
                             <const uint8_t *>(verdict + 1), wan_record_callback(record),
                             wan_record_recipients(record))
        else:
            memcpy(to, record, wan_record_length(record))
        (<wan_record *>to).region = region.number
        queue_note_copy(gateway, <const wan_record *>to)
        queue_commit(gateway, &events.reservations[n])
        gateway.counts.received += 1
        gateway.counts.queued += 1
        wan_lock_release(&gateway.lock)


cdef inline wan_outcome region_store_version(region_core *region, wan_shard *shard, const wan_tail_entry *entry,
                                             uint64_t hash) noexcept nogil:
    """Stores the version of an entry, whatever is there. Under the entry lock."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef wan_change change
    cdef wan_outcome outcome
    change_from_record(&change, record, hash)
    change.ask, change.flags = WAN_ASK_DECIDED, WAN_FLAG_FORCED
    if entry.outcome == WAN_MISSING:
        outcome = wan_table_invalidate(shard, &change)
    else:
        outcome = wan_table_apply(shard, &change)
    if outcome == WAN_DESTROYED and region.bell != NULL:
        region_note_tombstone(region, shard, change.tombstone_bytes)
    return outcome


cdef inline wan_status note_bad_key(uint32_t bucket) noexcept nogil:
    wan_note(WAN_CORRUPT, "a key comes with bucket %u, and belongs to another one", bucket)
    return WAN_CORRUPT


cdef inline wan_status note_impossible(uint64_t ahead_ms) noexcept nogil:
    wan_note(WAN_CORRUPT, "a stamp is %llu s ahead of the time of this member: no clock is so wrong",
             <unsigned long long>(ahead_ms // 1000))
    return WAN_CORRUPT


cdef inline wan_status look_at_stamp(region_core *region, uint64_t stamp, uint64_t *ahead_ms) noexcept nogil:
    """By how much the stamp is further ahead of the time than this member's clock follows; 0: it is not. WAN_CORRUPT:
    it is further ahead than any clock can be."""
    ahead_ms[0] = wan_clock_ahead_ms(region.clock, stamp)
    return WAN_OK if ahead_ms[0] <= WAN_CLOCK_WRONG_MS else note_impossible(ahead_ms[0])


cdef inline wan_status follow_held(region_core *region, wan_shard *shard, uint32_t bucket, uint64_t hash,
                                   const wan_tail_entry *entry, const wan_tail_reservation *room,
                                   followed_events *events, wan_heard *heard) noexcept nogil:
    """Takes the change into the table, the queues and the changes that listeners are told, or into none of them. Under
    the entry lock and the bucket's lock."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef wan_status status
    events.count = 0
    if entry.verdict_length:
        status = follow_reserve(region, bucket, room.sequence, entry, events)
        if status != WAN_OK:
            return status
    if heard != NULL:
        status = region_hear(heard, bucket, room.sequence, shard, hash, wan_record_key(record), record.key_length,
                             record.key_form, entry.length)
        if status != WAN_OK:
            follow_cancel(events)
            return status
    if region_store_version(region, shard, entry, hash) == WAN_OUT_OF_MEMORY:
        follow_cancel(events)
        wan_note(WAN_NO_MEMORY, "no memory for the changes of bucket %u", bucket)
        return WAN_NO_MEMORY
    if heard != NULL:
        wan_heard_add(heard, bucket, entry)
    follow_commit(region, entry, events)
    return WAN_OK


cdef inline wan_status region_follow_change(region_core *region, uint32_t bucket, uint64_t life, uint64_t epoch,
                                            uint64_t sequence, const wan_tail_entry *entry,
                                            uint64_t *most_ahead_ms) noexcept nogil:
    """The part of `region_follow` for an entry with a record."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef uint64_t hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
    cdef wan_shard *shard = wan_table_shard(&region.table, hash)
    cdef wan_tail_reservation room
    cdef followed_events events
    cdef wan_heard *heard = wan_tail_heard(region.tail)
    cdef uint64_t ahead_ms
    cdef wan_status status = look_at_stamp(region, record.stamp, &ahead_ms)
    if status != WAN_OK:
        return status
    if wan_table_bucket(&region.table, hash).number != bucket:
        return note_bad_key(bucket)
    wan_lock_take(&shard.lock)
    status = wan_tail_follow(region.tail, bucket, life, epoch, sequence, entry, &room)
    if status == WAN_OK:
        status = follow_held(region, shard, bucket, hash, entry, &room, &events, heard)
        if status == WAN_OK:
            wan_tail_followed(region.tail, &room, entry, <uint32_t>(shard - region.table.shards))
        else:
            wan_tail_cancel(&room)
    wan_lock_release(&shard.lock)
    if status == WAN_OK and ahead_ms == 0:
        wan_clock_see(region.clock, record.stamp)
    elif status == WAN_OK:          # The sequence decides here, so the change counts as it is.
        most_ahead_ms[0] = max(most_ahead_ms[0], ahead_ms)
    return status


cdef inline wan_status region_follow(region_core *region, uint32_t bucket, uint64_t life, uint64_t epoch,
                                     uint64_t sequence, const wan_tail_entry *entry,
                                     uint64_t *most_ahead_ms) noexcept nogil:
    """Applies the entry to which a primary gave `sequence`, and keeps it in the copy's tail. The entry was checked.
    Statuses as `wan_tail_follow` and `follow_reserve`; WAN_CORRUPT: the key belongs to another bucket, or the stamp
    cannot be. The detail says why. `most_ahead_ms` is raised to how far the stamp is ahead, if this member's clock
    does not follow it."""
    cdef wan_tail_reservation room
    cdef wan_status status
    if entry.kind == WAN_ENTRY_CHANGE:
        return region_follow_change(region, bucket, life, epoch, sequence, entry, most_ahead_ms)
    if entry.kind == WAN_ENTRY_CLEAR:
        wan_table_bucket_take(&region.table, &region.table.buckets[bucket])
        status = wan_clear_follow(&region.table, region.tail, bucket, region.site, life, epoch, sequence, entry)
        wan_table_bucket_release(&region.table, &region.table.buckets[bucket])
        return status
    status = wan_tail_follow(region.tail, bucket, life, epoch, sequence, entry, &room)
    if status == WAN_OK:
        wan_tail_followed(region.tail, &room, entry, WAN_NO_SHARD)
    return status


cdef inline wan_status region_learn(region_core *region, uint32_t bucket, const wan_tail_entry *entry) noexcept nogil:
    """Stores an entry of an image. A destroy that found 8 bytes is a tombstone of that age in milliseconds; an entry
    with the outcome WAN_MISSING has lost its value. WAN_CORRUPT: the key belongs to another bucket, or the stamp cannot
    be. WAN_NO_MEMORY."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef uint64_t hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
    cdef uint64_t ahead_ms, now_ms, age_ms, made_ms
    cdef wan_shard *shard = wan_table_shard(&region.table, hash)
    cdef wan_entry *stored
    cdef wan_outcome outcome
    cdef wan_status status = look_at_stamp(region, record.stamp, &ahead_ms)
    if status != WAN_OK:
        return status
    if wan_table_bucket(&region.table, hash).number != bucket:
        return note_bad_key(bucket)
    wan_lock_take(&shard.lock)
    outcome = region_store_version(region, shard, entry, hash)
    if outcome == WAN_DESTROYED and entry.found_length == 8:
        memcpy(&age_ms, wan_tail_entry_found(entry), 8)
        now_ms = wan_clock_now_ms(region.clock)
        made_ms = now_ms - min(age_ms, now_ms)
        stored = wan_table_find(shard, hash, wan_record_key(record), record.key_length, record.key_form)
        if stored != NULL:
            memcpy(stored.bytes + stored.key_length, &made_ms, 8)
    wan_lock_release(&shard.lock)
    if outcome == WAN_OUT_OF_MEMORY:
        wan_note(WAN_NO_MEMORY, "no memory for the changes of bucket %u", bucket)
        return WAN_NO_MEMORY
    if ahead_ms == 0:               # Who made the others is not known: the primary may only hand them on.
        wan_clock_see(region.clock, record.stamp)
    return WAN_OK


cdef inline gateway_queue *queue_of(const region_core *region, uint64_t sender, uint32_t *first) noexcept nogil:
    """The attached queue of a sender, and the first partition of the region's run. NULL: there is none. Under an entry
    lock."""
    cdef uint32_t n
    for n in range(region.attached.count if region.attached != NULL else 0):
        if region.attached.queues[n].sender == sender:
            first[0] = region.attached.firsts[n]
            return region.attached.queues[n]
    return NULL


cdef inline wan_status learn_event(region_core *region, uint32_t bucket, wan_image_event *event) noexcept nogil:
    cdef wan_record *record = <wan_record *>(event + 1)
    cdef uint32_t first
    cdef gateway_queue *gateway = queue_of(region, event.sender, &first)
    cdef uint64_t before, ahead_ms
    cdef wan_partition *partition
    cdef wan_status status = WAN_OK
    if gateway == NULL:                     # This member has not the sender.
        return WAN_OK
    if event.length:
        status = look_at_stamp(region, record.stamp, &ahead_ms)
        if status != WAN_OK:
            return status
        record.region = region.number
    wan_lock_take(&gateway.lock)
    before = gateway.queue.events + gateway.queue.conflated
    partition = &gateway.queue.partitions[first + bucket]
    if event.is_begin:
        partition.begun = max(partition.begun, event.sequence)
    if event.length == 0:
        status = wan_queue_settle(&gateway.queue, first + bucket, event.sequence)
    else:
        status = wan_queue_restore(&gateway.queue, first + bucket, event.sequence, record)
        if gateway.queue.events + gateway.queue.conflated > before:     # It was not known, and may replace another one.
            queue_note_copy(gateway, record)
            gateway.counts.queued += 1
            gateway.counts.received += 1
    wan_lock_release(&gateway.lock)
    return status


cdef inline wan_status region_learn_events(region_core *region, uint32_t bucket, wan_image_event *event,
                                           uint32_t count) noexcept nogil:
    """Takes the queued events of an image, of the senders that this member has. What is known stays. The records get
    this member's number of the region."""
    cdef wan_shard *shard = &region.table.shards[region.table.buckets[bucket].first_shard]
    cdef wan_status status = WAN_OK
    cdef uint32_t _n
    wan_lock_take(&shard.lock)      # Any entry lock keeps the attachment alive.
    for _n in range(count):
        status = learn_event(region, bucket, event)
        if status != WAN_OK:
            break
        event = <wan_image_event *>(<uint8_t *>(event + 1) + event.length)
    wan_lock_release(&shard.lock)
    return status
