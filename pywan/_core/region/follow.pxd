# Owns how a replica of a bucket follows the changes of its primary. A change takes effect against any stored version,
# because inside a site the sequence decides, and the event enters the queues that the primary chose. The code runs for
# each change.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_store cimport *
from pywan._core.region.enqueue cimport ENQUEUE_ENTERS
from pywan._core.region.entry_locks cimport (
    CHANGE_BYTES_PER_HOLD, CHANGES_PER_HOLD, entry_locks, entry_locks_release, entry_locks_take, queue_locks_release,
    queue_locks_take)
from pywan._core.region.put cimport change_from_record, region_begin_notification, region_note_tombstone
from pywan._core.queue.queue cimport gateway_queue, queue_commit, queue_note_copy, queue_reserve
from pywan._core.region.region_state cimport MAX_ATTACHED, attachment, region_core


cdef struct followed_entries:
    # Entries of a bucket's stream on their way into a replica, back to back in memory. All entries were checked.
    const wan_changelog_entry *entry     # The next one,
    uint64_t sequence               # its sequence,
    uint32_t done                   # Entries before the next entry.
    uint32_t count                  # All entries together.
    const wan_changelog_entry *ahead     # The next entry whose key is fetched into the processor's cache.
    wan_fetch fetch


cdef struct followed_group:
    # Entries that are followed under one hold, with the entry locks that are held for the entries.
    uint32_t count
    uint64_t hashes[CHANGES_PER_HOLD]
    uint64_t ahead_ms[CHANGES_PER_HOLD]    # As `look_at_stamp`.
    entry_locks locks


cdef struct followed_events:
    # The local queues that an event enters, with reserved room, in the order of the locks.
    uint32_t count
    gateway_queue *queues[MAX_ATTACHED]
    const wan_verdict *verdicts[MAX_ATTACHED]
    wan_reservation reservations[MAX_ATTACHED]


cdef inline void followed_begin(followed_entries *entries, const wan_changelog_entry *first, uint64_t sequence,
                                uint32_t count) noexcept nogil:
    entries.entry = entries.ahead = first
    entries.sequence, entries.done, entries.count = sequence, 0, count
    entries.fetch.noted = 0


cdef inline void followed_advance(followed_entries *entries) noexcept nogil:
    """Goes on to the next entry."""
    entries.entry = <const wan_changelog_entry *>(<const uint8_t *>entries.entry + entries.entry.length)
    entries.sequence += 1
    entries.done += 1


cdef inline void followed_fetch(const wan_table *table, followed_entries *entries) noexcept nogil:
    """Fetches keys ahead, before the next entry is followed. `wan_fetch_hash` then has the hashes of the next
    CHANGES_PER_HOLD entries, as far as the entries have records."""
    cdef wan_fetch *fetch = &entries.fetch
    cdef const wan_record *record
    while fetch.noted < min(entries.done + 2 * <uint32_t>WAN_FETCH_STEP, entries.count + <uint32_t>WAN_FETCH_STEP):
        if fetch.noted < entries.count and entries.ahead.kind == WAN_ENTRY_CHANGE:
            record = wan_changelog_entry_record(entries.ahead)
            wan_fetch_next(table, fetch, wan_key_hash(wan_record_key(record), record.key_length, record.key_form),
                           record.key_length + record.value_length, 1)
        else:               # An entry without a key counts as a row of some key.
            wan_fetch_next(table, fetch, 0, 0, fetch.noted < entries.count)
        if fetch.noted <= entries.count:
            entries.ahead = <const wan_changelog_entry *>(<const uint8_t *>entries.ahead + entries.ahead.length)


cdef inline const wan_verdict *verdict_of(const wan_changelog_entry *entry, uint64_t sender) noexcept nogil:
    """The primary's verdict for a sender. NULL: the sender has no part in the change at the primary."""
    cdef const wan_verdict *verdict = wan_changelog_entry_verdicts(entry)
    cdef const uint8_t *end = <const uint8_t *>verdict + entry.verdict_length
    while <const uint8_t *>verdict < end:
        if verdict.sender == sender:
            return verdict
        verdict = wan_verdict_next(verdict)
    return NULL


cdef inline wan_status follow_reserve(attachment *attached, uint32_t bucket, uint64_t sequence,
                                      const wan_changelog_entry *entry, followed_events *events) noexcept nogil:
    """Reserves room for the event in each local queue that the event enters. A sender that does not exist at this
    member is left out: the region may be on more members than the sender. WAN_FULL, WAN_IO: a queue has no room. Under
    the entry lock, the bucket's lock and the locks of the queues."""
    cdef const wan_record *record = wan_changelog_entry_record(entry)
    cdef const wan_verdict *verdict
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
        status = queue_reserve(gateway, attached.firsts[n] + bucket, sequence,
                               wan_record_size(record.key_length, value_length, record.callback_length,
                                               record.recipients_count), &events.reservations[events.count])
        if status != WAN_OK:
            follow_cancel(events)
            return status
        events.queues[events.count], events.verdicts[events.count] = gateway, verdict
        events.count += 1
    return WAN_OK


cdef inline void follow_cancel(followed_events *events) noexcept nogil:
    cdef uint32_t n
    for n in range(events.count):
        wan_queue_cancel(&events.queues[n].queue, &events.reservations[n])


cdef inline void follow_commit(const region_core *region, const wan_changelog_entry *entry,
                               followed_events *events) noexcept nogil:
    """Writes the event into these queues. The event is not ready before the primary announces the event as replicated.
    The primary and this member have different numbers for the region."""
    cdef const wan_record *record = wan_changelog_entry_record(entry)
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


cdef inline wan_outcome region_store_version(region_core *region, wan_shard *shard, const wan_changelog_entry *entry,
                                             uint64_t hash) noexcept nogil:
    """Stores the version of an entry, in place of any stored version. Under the entry lock."""
    cdef const wan_record *record = wan_changelog_entry_record(entry)
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
    """By how much the stamp is further ahead of the time than this member's clock follows; 0: not further. WAN_CORRUPT:
    the stamp is further ahead than any clock can be."""
    ahead_ms[0] = wan_clock_ahead_ms(region.clock, stamp)
    return WAN_OK if ahead_ms[0] <= WAN_CLOCK_WRONG_MS else note_impossible(ahead_ms[0])


cdef inline wan_status follow_held(region_core *region, attachment *attached, wan_shard *shard, uint32_t bucket,
                                   uint64_t hash, const wan_changelog_entry *entry,
                                   const wan_changelog_reservation *room, followed_events *events,
                                   wan_notifications *notifications) noexcept nogil:
    """Takes the change into the table, the queues and the pending notifications of listeners, or into none of them.
    Under the entry lock, the bucket's lock and the locks of the attached queues."""
    cdef const wan_record *record = wan_changelog_entry_record(entry)
    cdef wan_status status
    events.count = 0
    if entry.verdict_length:
        status = follow_reserve(attached, bucket, room.sequence, entry, events)
        if status != WAN_OK:
            return status
    if notifications != NULL:
        status = region_begin_notification(notifications, bucket, room.sequence, shard, hash, wan_record_key(record),
                                           record.key_length,
                                           record.key_form, entry.length)
        if status != WAN_OK:
            follow_cancel(events)
            return status
    if (not wan_changelog_is_queue_only(region.changelog, bucket)
            and region_store_version(region, shard, entry, hash) == WAN_OUT_OF_MEMORY):
        follow_cancel(events)
        wan_note(WAN_NO_MEMORY, "no memory for the changes of bucket %u", bucket)
        return WAN_NO_MEMORY
    if notifications != NULL:
        wan_notifications_add(notifications, bucket, entry)
    follow_commit(region, entry, events)
    return WAN_OK


cdef inline wan_status follow_look(region_core *region, uint32_t bucket, const followed_entries *entries,
                                   followed_group *group) noexcept nogil:
    """Looks at the next entries up to an entry without a record, and finds how many entries form one group. Either all
    entries of a group have events, or none has. WAN_CORRUPT: the first entry is impossible."""
    cdef const wan_changelog_entry *entry = entries.entry
    cdef const wan_record *record
    cdef uint64_t hash, bytes = 0
    cdef uint32_t n
    cdef wan_status status
    group.count = 0
    for n in range(min(entries.count - entries.done, <uint32_t>CHANGES_PER_HOLD)):
        bytes += entry.length
        if n and (entry.kind != WAN_ENTRY_CHANGE or bytes > CHANGE_BYTES_PER_HOLD
                  or (entry.verdict_length == 0) != (entries.entry.verdict_length == 0)):
            break
        record = wan_changelog_entry_record(entry)
        hash = wan_fetch_hash(&entries.fetch, entries.done + n)
        status = look_at_stamp(region, record.stamp, &group.ahead_ms[n])
        if status == WAN_OK and wan_table_bucket(&region.table, hash).number != bucket:
            status = note_bad_key(bucket)
        if status != WAN_OK:        # The entries before are followed.
            return status if n == 0 else WAN_OK
        group.hashes[n], group.locks.shards[n] = hash, wan_table_shard(&region.table, hash)
        group.count = n + 1
        entry = <const wan_changelog_entry *>(<const uint8_t *>entry + entry.length)
    return WAN_OK


cdef inline wan_status region_follow_changes(region_core *region, uint32_t bucket, uint64_t timeline, uint64_t epoch,
                                             followed_entries *entries, uint64_t *most_ahead_ms) noexcept nogil:
    """The part of `region_follow` for entries with records. Several entries share one hold of all locks: each lock is
    free for longer between two holds than between two entries, so waiting threads do not sleep. The fetches go on under
    the locks, because an atomic operation would wait for the fetches."""
    cdef followed_group group
    cdef followed_events events
    cdef wan_changelog_reservation room
    cdef const wan_changelog_entry *entry
    cdef attachment *attached
    cdef wan_notifications *notifications = wan_changelog_notifications(region.changelog)
    cdef uint64_t highest = 0
    cdef uint32_t n = 0
    cdef bint has_events = entries.entry.verdict_length != 0
    cdef wan_status status
    followed_fetch(&region.table, entries)
    status = follow_look(region, bucket, entries, &group)
    if status != WAN_OK:
        return status
    if wan_changelog_is_queue_only(region.changelog, bucket):
        notifications = NULL            # Listeners are notified where the entries are.
    group.count = entry_locks_take(&group.locks, group.count)
    attached = region.attached if has_events else NULL      # The same queues until the entry locks are free.
    status = wan_changelog_follow(region.changelog, bucket, timeline, epoch, entries.sequence, entries.entry, &room)
    if status == WAN_OK:
        queue_locks_take(attached)
        while status == WAN_OK:
            followed_fetch(&region.table, entries)
            entry = entries.entry
            status = follow_held(region, attached, group.locks.shards[n], bucket, group.hashes[n], entry, &room,
                                 &events, notifications)
            if status != WAN_OK:
                break
            wan_changelog_followed(region.changelog, &room, entry,
                                   <uint32_t>(group.locks.shards[n] - region.table.shards))
            if group.ahead_ms[n] == 0:
                highest = max(highest, wan_changelog_entry_record(entry).stamp)
            else:                   # The sequence decides here, so the change is valid as sent.
                most_ahead_ms[0] = max(most_ahead_ms[0], group.ahead_ms[n])
            followed_advance(entries)
            n += 1
            if n == group.count:
                break
            status = wan_changelog_reserve_next(&room, entries.entry.length)
        queue_locks_release(attached)
        wan_changelog_follow_end(region.changelog, &room)
    elif status == WAN_EMPTY:
        followed_advance(entries)
    entry_locks_release(&group.locks)
    wan_clock_see(region.clock, highest)
    return status


cdef inline wan_status region_follow(region_core *region, uint32_t bucket, uint64_t timeline, uint64_t epoch,
                                     followed_entries *entries, uint64_t *most_ahead_ms) noexcept nogil:
    """Applies entries to which a primary gave their sequences, and keeps the entries in the replica's change log: the
    next entry, and perhaps some entries behind it. After WAN_OK, and after WAN_EMPTY for an entry that the replica has
    already, `entries` is behind the entry. Statuses as `wan_changelog_follow` and `follow_reserve`; WAN_CORRUPT: the
    key belongs to a different bucket, or the stamp is impossible. The detail says why. `most_ahead_ms` is raised to the
    distance of a stamp from the time, if this member's clock does not follow the stamp."""
    cdef const wan_changelog_entry *entry = entries.entry
    cdef wan_changelog_reservation room
    cdef wan_status status
    if entry.kind == WAN_ENTRY_CHANGE:
        return region_follow_changes(region, bucket, timeline, epoch, entries, most_ahead_ms)
    if entry.kind == WAN_ENTRY_CLEAR:
        wan_table_bucket_take(&region.table, &region.table.buckets[bucket])
        status = wan_clear_follow(&region.table, region.changelog, bucket, region.site, timeline, epoch,
                                  entries.sequence, entry)
        wan_table_bucket_release(&region.table, &region.table.buckets[bucket])
    else:
        status = wan_changelog_follow(region.changelog, bucket, timeline, epoch, entries.sequence, entry, &room)
        if status == WAN_OK:
            wan_changelog_followed(region.changelog, &room, entry, WAN_NO_SHARD)
            wan_changelog_follow_end(region.changelog, &room)
    if status == WAN_OK or status == WAN_EMPTY:
        followed_fetch(&region.table, entries)      # The entries behind this entry rely on the fetch.
        followed_advance(entries)
    return status


cdef inline wan_status region_learn(region_core *region, uint32_t bucket,
                                    const wan_changelog_entry *entry) noexcept nogil:
    """Stores an entry of a snapshot. A destroy with 8 bytes as its found value is a tombstone of that age in
    milliseconds; an entry with the outcome WAN_MISSING has lost its value. WAN_CORRUPT: the key belongs to a different
    bucket, or the stamp is impossible. WAN_NO_MEMORY."""
    cdef const wan_record *record = wan_changelog_entry_record(entry)
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
        memcpy(&age_ms, wan_changelog_entry_found(entry), 8)
        now_ms = wan_clock_now_ms(region.clock)
        made_ms = now_ms - min(age_ms, now_ms)
        stored = wan_table_find(shard, hash, wan_record_key(record), record.key_length, record.key_form)
        if stored != NULL:
            memcpy(stored.bytes + stored.key_length, &made_ms, 8)
    wan_lock_release(&shard.lock)
    if outcome == WAN_OUT_OF_MEMORY:
        wan_note(WAN_NO_MEMORY, "no memory for the changes of bucket %u", bucket)
        return WAN_NO_MEMORY
    if ahead_ms == 0:               # Stamps further ahead have an unknown origin: the primary may only pass them on.
        wan_clock_see(region.clock, record.stamp)
    return WAN_OK


cdef inline gateway_queue *queue_of(const region_core *region, uint64_t sender, uint32_t *first) noexcept nogil:
    """The attached queue of a sender, and the first partition of the region's run. NULL: no attached queue. Under an
    entry lock."""
    cdef const attachment *attached = region.attached
    cdef uint32_t n
    for n in range(attached.count if attached != NULL else 0):
        if attached.queues[n].sender == sender:
            first[0] = attached.firsts[n]
            return attached.queues[n]
    return NULL


cdef inline wan_status learn_event(region_core *region, uint32_t bucket, wan_snapshot_event *event) noexcept nogil:
    cdef wan_record *record = <wan_record *>(event + 1)
    cdef uint32_t first
    cdef gateway_queue *gateway = queue_of(region, event.sender, &first)
    cdef uint64_t before, ahead_ms
    cdef wan_partition *partition
    cdef wan_status status = WAN_OK
    if gateway == NULL:                     # This member does not have the sender.
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
        partition.begun = max(partition.begun, event.sequence)      # Further replicas may have more.
        wan_queue_lack(&gateway.queue, first + bucket, max(partition.lacks, event.sequence))
    if event.length == 0:
        status = wan_queue_remove_through(&gateway.queue, first + bucket, event.sequence)
    else:
        status = wan_queue_restore(&gateway.queue, first + bucket, event.sequence, record)
        if gateway.queue.events + gateway.queue.conflated > before:     # The event is new, and may replace one.
            queue_note_copy(gateway, record)
            gateway.counts.queued += 1
            gateway.counts.received += 1
    wan_lock_release(&gateway.lock)
    return status


cdef inline wan_status region_learn_events(region_core *region, uint32_t bucket, wan_snapshot_event *event,
                                           uint32_t count) noexcept nogil:
    """Takes the queued events of a snapshot, for the senders that this member has. Known events stay. The records get
    this member's number of the region."""
    cdef wan_shard *shard = &region.table.shards[region.table.buckets[bucket].first_shard]
    cdef wan_status status = WAN_OK
    cdef uint32_t _n
    wan_lock_take(&shard.lock)      # Any entry lock keeps the attachment alive.
    for _n in range(count):
        status = learn_event(region, bucket, event)
        if status != WAN_OK:
            break
        event = <wan_snapshot_event *>(<uint8_t *>(event + 1) + event.length)
    wan_lock_release(&shard.lock)
    return status
