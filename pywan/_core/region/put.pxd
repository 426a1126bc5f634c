# Owns the put path: the effect of one change on the region's table, on the region's log and on the queues of the
# attached senders, under one entry lock. The code runs for each event. So the code is compiled into each unit that
# makes changes: for single changes, columns, a receiver's events and a client's rows.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_log cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.log.committer cimport committer_note_pending, committer_reserve, committer_reserve_smaller
from pywan._core.region.enqueue cimport (
    ENQUEUE_ENTERS, ENQUEUE_KNOWN, ENQUEUE_NO_ROOM, decide_enqueue, enqueue_decision, enters_straight, note_not_entered)
from pywan._core.queue.queue cimport (
    FULL_DROP_NEWEST, durable_is_behind, gateway_queue, queue_commit, queue_count, queue_has, queue_is_waited_for,
    queue_note_not_queued, queue_note_place, queue_partition, queue_reserve, queue_reserve_place, queue_takes_place)
from pywan._core.region.region_state cimport (
    IF_ABSENT, IF_THERE, IF_VALUE, MAX_ATTACHED, PATH_CLOSED, PATH_STRAIGHT, UNWRITTEN_BITS, attachment, condition,
    decision, origin, region_core, region_log)


cdef inline wan_status check_path(const attachment *attached, bint by_callbacks) noexcept nogil:
    """WAN_OK if the change may go on. `by_callbacks`: the change has come through the user's callbacks. WAN_SLOW: the
    change has to go through the callbacks first. WAN_CLOSED: the region is closed. Under an entry lock."""
    if attached == NULL or attached.path == PATH_STRAIGHT:
        return WAN_OK
    if attached.path == PATH_CLOSED:
        return WAN_CLOSED
    return WAN_OK if by_callbacks else WAN_SLOW


cdef inline const uint8_t *union_recipients(const origin *from_, const attachment *attached, uint8_t *space,
                                            uint32_t *count) noexcept nogil:
    """Returns the sites that the event has reached or will reach. `space` has room for the largest possible number of
    sites."""
    cdef uint32_t n, k, found = from_.recipient_count
    cdef uint8_t site
    count[0] = attached.recipient_count if attached.recipient_count < 255 else 255
    if found == 0:
        return attached.recipients
    memcpy(space, from_.recipients, found)
    for n in range(attached.recipient_count):
        site = attached.recipients[n]
        for k in range(found):
            if space[k] == site:
                break
        else:
            space[found] = site
            found += 1
    count[0] = found if found < 255 else 255
    return space


cdef inline void write_record(uint8_t *at, uint64_t length, const region_core *region, const wan_change *change,
                              uint32_t operation, const origin *from_, const uint8_t *recipients,
                              uint32_t recipient_count, const uint8_t *value, uint32_t value_length,
                              uint32_t value_form) noexcept nogil:
    """Writes the record of a change into the reserved room of a queue."""
    cdef wan_record *record = wan_record_begin(at, length, &wan_no_head)
    record.value_length, record.key_length = value_length, change.key_length
    record.callback_length = from_.callback_length
    record.stamp, record.event_sequence = change.stamp, from_.event_sequence
    record.event_member, record.event_thread = from_.event_member, from_.event_thread
    record.region, record.flags = region.number, change.flags & (WAN_FLAG_GIVEN | WAN_FLAG_FORCED)
    if from_.possible_duplicate:
        record.flags |= WAN_FLAG_REPEATED
    record.recipients_count = <uint8_t>recipient_count
    record.stamp_site, record.origin_site = change.stamp_site, from_.site
    record.operation, record.key_form = <uint8_t>operation, change.key_form
    record.value_form, record.callback_form = <uint8_t>value_form, from_.callback_form
    wan_record_fill(at, change.key, value, from_.callback, recipients)


cdef inline uint32_t operation_of(wan_outcome outcome) noexcept nogil:
    """The operation of an event whose change had this outcome."""
    return WAN_CREATE if outcome == WAN_CREATED else (WAN_UPDATE if outcome == WAN_UPDATED else WAN_DESTROY)


cdef inline uint64_t absent_below(const region_core *region, uint8_t flags) noexcept nogil:
    """Returns the bound for forgotten destroys: a destroy without a tombstone has a lower stamp. Under an entry lock.

    For events, the bound is `let_go`. No sender that was known when tombstones were dropped can send an event that is
    older than the dropped tombstones. So an older event comes from a sender that was unknown then, or a sender passes
    the event on for a third site. For changes with stamps from callers, the bound is `mark`, because no member waited
    for these changes."""
    cdef uint64_t mark = wan_read(&region.mark if flags & WAN_FLAG_GIVEN else &region.let_go)
    return mark + 1 if mark else 0


cdef inline wan_status region_change(region_core *region, wan_change *change, const origin *from_, decision *decisions,
                                     wan_outcome *outcome) noexcept nogil:
    """Applies one change and enqueues the event. No second change of the key comes in between. If the status is WAN_OK,
    *outcome says what the change did. After every other status (a full queue, WAN_SLOW, WAN_CLOSED) nothing was
    changed. WAN_SLOW: callbacks or filters have to be asked first; or the change is for a region that this member alone
    had (`from_.alone`), and members share the region since. `decisions`: MAX_ATTACHED decisions, for a change that
    comes through the user's callbacks. NULL: the change takes the fast path, directly from the caller."""
    cdef wan_shard *shard = wan_table_shard(&region.table, change.hash)
    region_relieve(region)
    wan_lock_take(&shard.lock)
    cdef wan_status status = region_change_held(region, shard, change, from_, decisions, outcome)
    wan_lock_release(&shard.lock)
    return status

cdef inline wan_status region_change_if(region_core *region, wan_change *change, const origin *from_,
                                        decision *decisions, condition *wanted, wan_outcome *outcome) noexcept nogil:
    """Does the work of `region_change` for a local change, if the key meets the condition `wanted`. Otherwise *outcome
    is WAN_UNMET. No second change of the key comes in between. `wanted` gets a copy of the key's value."""
    cdef wan_shard *shard = wan_table_shard(&region.table, change.hash)
    cdef wan_status status
    change.waits, change.logged = 0, 0
    region_relieve(region)
    wan_lock_take(&shard.lock)
    if region.changelog != NULL and from_.attempt.call.caller:
        status = region_recall(region, change, from_, outcome)
        if status != WAN_EMPTY:
            wan_lock_release(&shard.lock)
            return status
    status = check_path(region.attached, decisions != NULL)
    if status == WAN_OK:
        status = condition_look(
            wanted, wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form))
    if status == WAN_OK:
        outcome[0] = WAN_UNMET
        if wanted.holds:
            status = region_change_held(region, shard, change, from_, decisions, outcome)
        elif region.changelog != NULL:
            status = region_note_read(region, shard, change)
    wan_lock_release(&shard.lock)
    return status

cdef inline wan_status condition_look(condition *wanted, const wan_entry *entry) noexcept nogil:
    """Checks whether the condition holds, and copies the value. WAN_NO_MEMORY: there is no memory for the copy. Under
    the entry lock."""
    cdef bint is_there = entry != NULL and entry.state != WAN_ENTRY_TOMBSTONE
    cdef bint has_value = is_there and entry.state == WAN_ENTRY_LIVE
    wan_buffer_empty(&wanted.found)
    wanted.found_value = has_value
    if wanted.kind == IF_ABSENT:
        wanted.holds = not has_value
    elif wanted.kind == IF_VALUE:
        wanted.holds = has_value
    elif wanted.kind == IF_THERE:
        wanted.holds = is_there
    else:
        wanted.holds = (has_value and entry.value_form == wanted.form and entry.value_length == wanted.length
                        and (wanted.length == 0 or memcmp(wan_entry_value(entry), wanted.value, wanted.length) == 0))
        return WAN_OK
    if not has_value:
        return WAN_OK
    wanted.found_form = entry.value_form
    return wan_buffer_add(&wanted.found, wan_entry_value(entry), entry.value_length) if entry.value_length else WAN_OK


cdef inline void change_begin(const region_core *region, wan_change *change) noexcept nogil:
    """Sets the bound for forgotten destroys, and renews the stamp of the change if the stamp is too old by now. Under
    the entry lock."""
    change.waits, change.logged = 0, 0
    if not change.local:
        change.absent_below = absent_below(region, change.flags)
    else:
        change.absent_below = 0
        if change.stamp < wan_clock_low(region.clock) and not change.flags & WAN_FLAG_GIVEN:
            # The change took its stamp and then waited. Since then, remote sites were told a higher tombstone
            # watermark.
            change.stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), 1)


cdef inline wan_status region_change_held(region_core *region, wan_shard *shard, wan_change *change,
                                          const origin *from_, decision *decisions,
                                          wan_outcome *outcome) noexcept nogil:
    """As `region_change`, for a caller that holds the entry lock."""
    # Attachment and change log are read once. The region may get new ones while the change is made, as this thread has
    # one entry lock of many.
    cdef attachment *attached = region.attached
    cdef wan_changelog *changelog = region.changelog
    cdef wan_status status
    change_begin(region, change)
    status = check_path(attached, decisions != NULL)
    if status == WAN_OK and from_.alone and changelog != NULL:
        status = WAN_SLOW
    if status == WAN_OK and changelog == NULL and wan_table_is_short(&region.table):
        status = region_check_memory(region, shard, change, NULL)
    if status != WAN_OK:
        return status
    if attached != NULL and attached.count and region.forwards:
        if attached.count == 1 and decisions == NULL and changelog == NULL:
            return region_enqueue_one(region, shard, change, from_, attached, outcome)
        return region_step(region, shard, change, from_, attached, changelog, decisions, outcome)
    if changelog != NULL:
        return region_step(region, shard, change, from_, attached, changelog, decisions, outcome)
    status = region_apply(region, shard, change, outcome)
    if attached != NULL and status == WAN_OK and outcome[0] <= WAN_DESTROYED:
        for n in range(attached.count):
            queue_note_not_queued(attached.queues[n])
    return status


cdef inline wan_status region_check_memory(region_core *region, wan_shard *shard, const wan_change *change,
                                           const wan_changelog_bucket *bucket) noexcept nogil:
    """WAN_OK if there is memory for the change: the change needs no memory, or neither this member nor a member with an
    in-sync replica of the bucket is above its limit. Otherwise WAN_FULL. `bucket`: the bucket of a region that several
    members hold; its lock is held. Under the entry lock."""
    cdef const wan_repl_link_state *short_replica = wan_changelog_short_replica(region.changelog,
                                                                                bucket) if bucket != NULL else NULL
    if not region.stores or (short_replica == NULL and not wan_table_is_short(&region.table)):
        return WAN_OK
    # A replica's table may be filled in a different way, so free memory of this table says nothing about the replica.
    if not wan_table_grows(shard, change, short_replica == NULL):
        return WAN_OK
    if short_replica == NULL:
        return wan_limit_refuse(region.table.slab.limit)
    if region.table.slab.limit != NULL:
        wan_add_shared(&region.table.slab.limit.refused, 1)
    wan_note(WAN_LOW_MEMORY, "the memory of member %s, which has a replica, is at its limit, and the bucket takes only"
                             " changes that need no memory; %s", short_replica.other, WAN_LIMIT_REMEDY)
    return WAN_FULL


cdef inline void region_take_recalled(wan_change *change, const origin *from_, const wan_recalled *recalled,
                                      wan_outcome *outcome) noexcept nogil:
    """Takes the result of an earlier attempt as the result of the present attempt."""
    change.local_fence, change.sequence, change.waits = recalled.local_fence, recalled.sequence, 1
    change.recalled = recalled.applied
    outcome[0] = <wan_outcome>recalled.outcome
    if from_.asked != NULL:
        from_.asked.holds, from_.asked.found_value = True, recalled.has_found
        from_.asked.found_form = recalled.found_form


cdef inline wan_status region_recall(region_core *region, wan_change *change, const origin *from_,
                                     wan_outcome *outcome) noexcept nogil:
    """Looks up the cached reply for the call of a change. Statuses as `wan_changelog_cached_reply`. WAN_OK: an earlier
    attempt took effect; *outcome and the condition get the result of the earlier attempt. Under the entry lock."""
    cdef wan_recalled recalled
    cdef wan_status status = wan_changelog_cached_reply(region.changelog, wan_table_bucket(&region.table,
                                                        change.hash).number,
                                                        &from_.attempt, &recalled,
                                                        &from_.asked.found if from_.asked != NULL else NULL)
    if status != WAN_MADE_BEFORE:
        return status
    region_take_recalled(change, from_, &recalled, outcome)
    return WAN_OK


cdef inline void region_relieve(region_core *region) noexcept nogil:
    """Drops pending notifications of a listener that stands still, if callers wait for the memory: as
    `wan_notifications_relieve`. The caller holds no lock."""
    if (region.changelog != NULL and wan_changelog_notifications(region.changelog) != NULL
            and wan_notifications_are_waited_for(wan_changelog_notifications(region.changelog))):
        wan_notifications_relieve(region.changelog)


cdef inline bint region_is_full(const region_core *region) noexcept nogil:
    """Whether callers that change a shared region have to wait: the member's budget is full, or the pending
    notifications of the region's listeners have reached the limit of a region."""
    cdef const wan_notifications *notifications = wan_changelog_notifications(region.changelog)
    return (wan_budget_is_full(region.changelog.budget)
            or (notifications != NULL and wan_notifications_are_full(notifications)))


cdef inline wan_status region_begin_notification(wan_notifications *notifications, uint32_t bucket, uint64_t sequence,
                                                 wan_shard *shard, uint64_t hash, const uint8_t *key,
                                                 uint16_t key_length, uint8_t key_form,
                                                 uint64_t entry_length) noexcept nogil:
    """Reserves room for the notification of a change, with the value that the key has now. Under the entry lock and the
    bucket's lock, as `wan_notifications_begin`."""
    cdef const wan_entry *old = wan_table_find(shard, hash, key, key_length, key_form)
    if old == NULL or old.state != WAN_ENTRY_LIVE:
        return wan_notifications_begin(notifications, bucket, sequence, NULL, 0, 0, entry_length)
    return wan_notifications_begin(notifications, bucket, sequence, wan_entry_value(old), old.value_length,
                                   old.value_form,
                                   entry_length)


cdef inline wan_status region_note_read(region_core *region, wan_shard *shard, wan_change *change) noexcept nogil:
    """Notes the newest change of the key's shard: the reply to an operation without an effect depends on this change,
    as a read does. WAN_NOT_PRIMARY: this member is not primary. Under the entry lock."""
    cdef uint32_t bucket = wan_table_bucket(&region.table, change.hash).number
    change.local_fence, change.waits = wan_read(&region.changelog.buckets[bucket].local_fence), 1
    change.sequence = wan_read(&region.changelog.shard_last[shard - region.table.shards])
    return WAN_OK if wan_changelog_role(region.changelog, bucket) == WAN_REPLICA_PRIMARY else WAN_NOT_PRIMARY


cdef inline wan_status region_enqueue_one(region_core *region, wan_shard *shard, wan_change *change,
                                          const origin *from_, attachment *attached,
                                          wan_outcome *outcome) noexcept nogil:
    """As `region_step`, for the usual case of one sender and a region of one member. If the event cannot enter the
    queue at once, `region_step` takes the change."""
    cdef gateway_queue *gateway = attached.queues[0]
    cdef wan_status status
    cdef wan_reservation reservation
    cdef uint8_t space[512]
    cdef const uint8_t *recipients
    cdef uint32_t recipient_count, operation, partition
    cdef uint64_t length
    cdef int wake = -1
    if not enters_straight(gateway, from_, region.site):
        return region_step(region, shard, change, from_, attached, NULL, NULL, outcome)
    recipients = union_recipients(from_, attached, space, &recipient_count)
    wan_lock_take(&gateway.lock)
    if from_.place != NULL and not queue_takes_place(gateway, from_.place):
        wan_lock_release(&gateway.lock)
        return region_step(region, shard, change, from_, attached, NULL, NULL, outcome)
    length = wan_record_size(change.key_length, change.value_length, from_.callback_length, recipient_count)
    partition = queue_partition(gateway, region.buckets, change.hash, from_.event_member, from_.event_thread)
    status = queue_reserve(gateway, partition, 0, length, &reservation)
    if status != WAN_OK:
        wan_lock_release(&gateway.lock)
        return region_step(region, shard, change, from_, attached, NULL, NULL, outcome)
    status = region_apply(region, shard, change, outcome)
    if status == WAN_OK and (outcome[0] <= WAN_DESTROYED or (outcome[0] == WAN_SAME and from_.possible_duplicate)):
        operation = change.operation if outcome[0] == WAN_SAME else operation_of(outcome[0])
        write_record(reservation.at, reservation.length, region, change, operation, from_, recipients, recipient_count,
                     change.value, change.value_length, change.value_form)
        wake = queue_commit(gateway, &reservation)
        if from_.place != NULL:
            queue_note_place(gateway, from_.place)
        gateway.counts.received += 1
        gateway.counts.queued += 1
        change.waits = queue_is_waited_for(gateway)
    else:
        wan_queue_cancel(&gateway.queue, &reservation)
    wan_lock_release(&gateway.lock)
    # The wake-up is under the entry lock. After the release, the attachment and a queue with its files may be gone.
    if wake >= 0:
        eventfd_write(wake, 1)
    return status


cdef struct put_step:
    # The reservations and locks of one change between reservation and commit, in the order of the locks: room in the
    # bucket's change log, then room in each queue that the event enters. The bucket's lock also guards the place among
    # the pending notifications.
    enqueue_decision decided
    wan_changelog *changelog          # The region's, when the step began. NULL: this member alone had the region.
    wan_changelog_reservation room
    wan_reservation reservations[MAX_ATTACHED]
    int wake_files[MAX_ATTACHED]
    uint32_t asked          # Number of the attached queues that were asked for room.
    uint32_t taken          # Number of the queues with reserved room; their locks are held.
    const uint8_t *recipients
    uint32_t recipient_count
    wan_notifications *notifications        # NULL: there is no listener.
    uint64_t verdict_bytes, found_bytes
    uint8_t space[512]      # For the recipients.


cdef inline wan_status region_step(region_core *region, wan_shard *shard, wan_change *change, const origin *from_,
                                   attachment *attached, wan_changelog *changelog, decision *decisions,
                                   wan_outcome *outcome) noexcept nogil:
    """The part of `region_change` for a change that goes further than the table: into the queues of `attached`, and to
    the replicas at remote members if `changelog` is not NULL. The step reserves all room, applies the change, writes
    the entry and the events, and commits. WAN_NOT_PRIMARY: this member does not lead the bucket. WAN_IN_DOUBT,
    WAN_GIVEN_UP: as `wan_changelog_cached_reply`. In a region that several members hold, the change then has its
    sequence in the bucket, from now or from an earlier attempt, and the caller waits until the change is replicated."""
    cdef put_step step
    cdef wan_status status = WAN_OK
    cdef bint is_made, forwards = attached != NULL and attached.count != 0 and region.forwards
    step.asked = step.taken = step.recipient_count = 0
    step.notifications, step.changelog = NULL, changelog
    if forwards:
        step.recipients = union_recipients(from_, attached, step.space, &step.recipient_count)
        if not decide_enqueue(attached, from_, region.site, decisions, &step.decided):
            return WAN_SLOW
    if changelog != NULL:
        status = step_take_place(region, change, from_, attached if forwards else NULL, decisions, &step)
        if status == WAN_MADE_BEFORE:
            region_take_recalled(change, from_, &step.room.recalled, outcome)
            return WAN_OK
        if status != WAN_OK:
            return status
        status = region_check_memory(region, shard, change, step.room.bucket)
    if status == WAN_OK and forwards:
        status = step_reserve(region, change, from_, attached, decisions, &step)
    if status == WAN_OK and changelog != NULL:
        status = step_begin_notification(region, shard, change, &step)
    if status == WAN_OK:
        status = region_apply(region, shard, change, outcome)
    # WAN_SAME: the change was applied before. The event comes again because the sender does not know how far the event
    # came. So the event may not have reached our queues the first time.
    is_made = status == WAN_OK and (outcome[0] <= WAN_DESTROYED
                                    or (outcome[0] == WAN_SAME and from_.possible_duplicate and changelog == NULL))
    if not is_made:
        step_cancel(attached, &step)
        return region_note_read(region, shard, change) if status == WAN_OK and changelog != NULL else status
    if changelog != NULL:
        step_write_entry(region, change, from_, attached if forwards else NULL, decisions, &step, outcome[0])
    if forwards:
        step_commit_queues(region, change, from_, attached, decisions, &step, outcome[0])
    if changelog != NULL:
        step_commit_entry(region, shard, change, attached, &step)
    if forwards:
        step_tell(attached, &step)
    return WAN_OK


cdef inline wan_status step_take_place(region_core *region, wan_change *change, const origin *from_,
                                       const attachment *attached, const decision *decisions,
                                       put_step *step) noexcept nogil:
    """Reserves the change's place in the change log of the bucket. The bucket's lock is held if the status is WAN_OK.
    Statuses as `wan_changelog_reserve`."""
    cdef uint64_t length = step_entry_length(region, change, from_, attached, decisions, step)
    step.notifications = wan_changelog_notifications(step.changelog)
    return wan_changelog_reserve(step.changelog, wan_table_bucket(&region.table, change.hash).number, length,
                                 remembered_attempt(from_), &step.room)


cdef inline const wan_attempt *remembered_attempt(const origin *from_) noexcept nogil:
    """The call that asks for a change, if the deduplication table keeps the call. Otherwise NULL."""
    return &from_.attempt if from_.attempt.call.caller else NULL


cdef inline uint64_t step_entry_length(const region_core *region, wan_change *change, const origin *from_,
                                       const attachment *attached, const decision *decisions,
                                       put_step *step) noexcept nogil:
    """The length of the change's entry in the change log, as far as known before the queues are asked for room."""
    cdef uint32_t value_length = 0 if change.operation == WAN_DESTROY else change.value_length, n
    cdef uint64_t length = sizeof(wan_changelog_entry) + wan_record_size(change.key_length, value_length,
                                                                         from_.callback_length, step.recipient_count)
    change.recalled = 0
    step.verdict_bytes = step.found_bytes = 0
    if from_.attempt.call.caller:
        length += sizeof(wan_call_identity)
        if (from_.asked != NULL and from_.asked.found_value
                and from_.asked.found.used <= WAN_ANSWERS_BYTES_MAX and wan_budget_remembers(step.changelog.budget)):
            step.found_bytes = from_.asked.found.used
    if attached != NULL:
        for n in range(attached.count):
            step.verdict_bytes += sizeof(wan_verdict)
            if is_substituted(decisions, &step.decided, n):
                step.verdict_bytes += wan_align8(decisions[n].value_length)
    return length + step.verdict_bytes + wan_align8(step.found_bytes)


cdef inline bint is_substituted(const decision *decisions, const enqueue_decision *decided, uint32_t n) noexcept nogil:
    """Whether attached queue `n` gets the event with a substituted value."""
    return decisions != NULL and decisions[n].substituted and decided.verdicts[n] == ENQUEUE_ENTERS


cdef inline wan_status step_reserve(region_core *region, const wan_change *change, const origin *from_,
                                    attachment *attached, const decision *decisions, put_step *step) noexcept nogil:
    """Reserves room in each queue that the event enters. The lock of each such queue is held from then on, with any
    status."""
    cdef gateway_queue *gateway
    cdef wan_status status = WAN_OK
    cdef uint32_t n, partition, value_length
    cdef uint64_t length, sequence
    for n in range(attached.count):
        gateway = attached.queues[n]
        step.asked = n + 1
        if step.decided.verdicts[n] != ENQUEUE_ENTERS:
            continue
        value_length = change.value_length
        if decisions != NULL and decisions[n].substituted:
            value_length = decisions[n].value_length
        length = wan_record_size(change.key_length, value_length, from_.callback_length, step.recipient_count)
        if step.changelog != NULL:
            partition, sequence = attached.firsts[n] + step_bucket(step), step.room.sequence
        else:
            partition, sequence = queue_partition(gateway, region.buckets, change.hash, from_.event_member,
                                                  from_.event_thread), 0
        wan_lock_take(&gateway.lock)
        if from_.place != NULL and step.changelog == NULL:
            if queue_has(gateway, from_.place):
                wan_lock_release(&gateway.lock)
                step.decided.verdicts[n] = ENQUEUE_KNOWN
                continue
            status = queue_reserve_place(gateway)
        if status == WAN_OK:
            status = queue_reserve(gateway, partition, sequence, length, &step.reservations[n])
        if status == WAN_OK:
            step.taken += 1
            continue
        if (status == WAN_FULL and gateway.full_policy == FULL_DROP_NEWEST
                and not durable_is_behind(gateway, length)):
            status = WAN_OK
        step.decided.verdicts[n] = ENQUEUE_NO_ROOM
        wan_lock_release(&gateway.lock)
        if status != WAN_OK:
            return status
    return WAN_OK


cdef inline wan_status step_begin_notification(region_core *region, wan_shard *shard, wan_change *change,
                                               put_step *step) noexcept nogil:
    """Reserves room among the pending notifications, if there are listeners."""
    cdef wan_notifications *notifications = step.notifications
    if notifications == NULL:
        return WAN_OK
    if wan_notifications_refuse(notifications):
        wan_note(WAN_FULL, "listeners are %llu bytes of changes behind",
                 <unsigned long long>wan_read(&notifications.bytes))
        return WAN_FULL
    return region_begin_notification(notifications, step_bucket(step), step.room.sequence, shard, change.hash,
                                     change.key,
                                     change.key_length, change.key_form, step.room.length)


cdef inline uint32_t step_bucket(const put_step *step) noexcept nogil:
    """The number of the bucket with the reserved place."""
    return <uint32_t>(step.room.bucket - step.changelog.buckets)


cdef inline void step_cancel(attachment *attached, put_step *step) noexcept nogil:
    """Gives back all reserved room: the change is not made."""
    cdef uint32_t n
    for n in range(step.asked):
        if step.decided.verdicts[n] == ENQUEUE_ENTERS:
            wan_queue_cancel(&attached.queues[n].queue, &step.reservations[n])
            wan_lock_release(&attached.queues[n].lock)
    if step.changelog != NULL:
        wan_changelog_cancel(&step.room)


cdef inline void step_write_entry(region_core *region, const wan_change *change, const origin *from_,
                                  const attachment *attached, const decision *decisions, put_step *step,
                                  wan_outcome outcome) noexcept nogil:
    """Writes the entry of the change log: the call, the record, the verdict for each sender, and the found value."""
    cdef wan_changelog_entry *entry = <wan_changelog_entry *>step.room.at
    cdef wan_verdict *verdict
    cdef uint8_t *at
    cdef uint32_t n, value_length = 0 if change.operation == WAN_DESTROY else change.value_length
    cdef uint64_t length = wan_record_size(change.key_length, value_length, from_.callback_length,
                                           step.recipient_count)
    memset(entry, 0, sizeof(wan_changelog_entry))
    entry.length, entry.outcome = <uint32_t>step.room.length, <uint8_t>outcome
    entry.verdict_length = <uint32_t>step.verdict_bytes
    if from_.attempt.call.caller:
        entry.flags = WAN_CHANGELOG_REMEMBERED
        wan_changelog_entry_call(entry)[0] = from_.attempt.call
        if from_.attempt.is_row:
            entry.flags, entry.row = WAN_CHANGELOG_REMEMBERED | WAN_CHANGELOG_ROW, from_.attempt.row
    at = <uint8_t *>wan_changelog_entry_record(entry)
    write_record(at, length, region, change, operation_of(outcome), from_, step.recipients, step.recipient_count,
                 change.value, value_length, change.value_form)
    at += length
    for n in range(attached.count if attached != NULL else 0):
        verdict = <wan_verdict *>at
        memset(verdict, 0, sizeof(wan_verdict))
        verdict.sender, verdict.verdict = attached.queues[n].sender, step.decided.verdicts[n]
        at += sizeof(wan_verdict)
        if is_substituted(decisions, &step.decided, n):
            verdict.is_substituted, verdict.value_form = 1, decisions[n].value_form
            verdict.value_length = decisions[n].value_length
            at += write_padded(at, decisions[n].value, decisions[n].value_length)
    if from_.attempt.call.caller and from_.asked != NULL and from_.asked.found_value:
        entry.flags |= WAN_CHANGELOG_FOUND
        entry.found_length, entry.found_form = <uint32_t>step.found_bytes, from_.asked.found_form
        if step.found_bytes:
            at += write_padded(at, from_.asked.found.bytes, step.found_bytes)
        elif from_.asked.found.used:
            entry.flags |= WAN_CHANGELOG_LEFT_OUT
    # A queue that had no room in the end gets no substituted value, so the entry may be shorter than its place.
    step.room.length = at - step.room.at
    entry.length = <uint32_t>step.room.length
    entry.verdict_length = <uint32_t>(step.room.length - (<uint8_t *>wan_changelog_entry_record(entry) - step.room.at)
                                      - length - wan_align8(step.found_bytes))
    if step.notifications != NULL:
        wan_notifications_add(step.notifications, step_bucket(step), entry)


cdef inline uint64_t write_padded(uint8_t *at, const uint8_t *bytes, uint64_t length) noexcept nogil:
    """Writes bytes, and zeros up to a multiple of 8. Returns the padded length."""
    cdef uint64_t whole = wan_align8(length)
    if whole:
        memset(at + whole - 8, 0, 8)
        memcpy(at, bytes, length)
    return whole


cdef inline void step_commit_queues(region_core *region, wan_change *change, const origin *from_, attachment *attached,
                                    const decision *decisions, put_step *step, wan_outcome outcome) noexcept nogil:
    """Writes the event into the queues that the event enters, and releases the locks of the queues."""
    cdef gateway_queue *gateway
    # The operation is not a byte: the processor would write a byte to the stack, read two bytes back, and wait for the
    # write.
    cdef uint32_t operation = change.operation if outcome == WAN_SAME else operation_of(outcome), n
    cdef const uint8_t *value
    cdef uint32_t value_length
    cdef uint8_t value_form
    for n in range(attached.count):
        step.wake_files[n] = -1
        if step.decided.verdicts[n] != ENQUEUE_ENTERS:
            continue
        gateway = attached.queues[n]
        value, value_length, value_form = change.value, change.value_length, change.value_form
        if decisions != NULL and decisions[n].substituted:
            value, value_length, value_form = decisions[n].value, decisions[n].value_length, decisions[n].value_form
        write_record(step.reservations[n].at, step.reservations[n].length, region, change, operation, from_,
                     step.recipients, step.recipient_count, value, value_length, value_form)
        step.wake_files[n] = queue_commit(gateway, &step.reservations[n])
        if from_.place != NULL and step.changelog == NULL:
            queue_note_place(gateway, from_.place)
        gateway.counts.received += 1
        gateway.counts.queued += 1
        if queue_is_waited_for(gateway):
            change.waits = 1
        wan_lock_release(&gateway.lock)


cdef inline void step_commit_entry(region_core *region, wan_shard *shard, wan_change *change, attachment *attached,
                                   put_step *step) noexcept nogil:
    """Makes the entry the newest change of the bucket, and releases the bucket's lock. If the change is replicated at
    once, the events may be sent at once."""
    cdef uint32_t bucket = wan_table_bucket(&region.table, change.hash).number, n
    cdef wan_changelog_bucket *at = step.room.bucket
    change.local_fence, change.waits = at.local_fence, 1
    change.sequence = wan_changelog_commit(step.changelog, &step.room, <uint32_t>(shard - region.table.shards))
    if step.taken and wan_read(&at.high_watermark) >= change.sequence:
        for n in range(attached.count):
            if step.decided.verdicts[n] == ENQUEUE_ENTERS:
                step.wake_files[n] = queue_count(attached.queues[n], attached.firsts[n] + bucket)


cdef inline void step_tell(attachment *attached, put_step *step) noexcept nogil:
    """Wakes dispatchers, and counts the event at the queues that do not take the event. The second part waits until no
    lock of a queue is held, as the queue may stand earlier in the order of the locks than a locked queue. Under the
    entry lock, which keeps the attachment and the queues with their files."""
    cdef uint32_t n
    for n in range(attached.count):
        if step.decided.verdicts[n] == ENQUEUE_KNOWN:      # The queue counted the event before.
            continue
        if step.decided.verdicts[n] != ENQUEUE_ENTERS:
            note_not_entered(attached.queues[n], step.decided.verdicts[n])
        elif step.wake_files[n] >= 0:
            eventfd_write(step.wake_files[n], 1)


cdef inline wan_status region_apply(region_core *region, wan_shard *shard, wan_change *change,
                                    wan_outcome *outcome) noexcept nogil:
    """Applies the change to the table and, if the region is persistent, adds the change to the log: both or neither.
    Under the entry lock."""
    cdef uint64_t proposed = change.stamp
    cdef wan_status status
    if not region.stores:
        outcome[0] = (WAN_DESTROYED if change.operation == WAN_DESTROY else
                      WAN_CREATED if change.operation == WAN_CREATE else WAN_UPDATED)
        return WAN_OK
    if region.log == NULL:
        outcome[0] = wan_table_apply(shard, change)
    else:
        status = region_apply_logged(region.log, shard, change, outcome)
        if status != WAN_OK:
            return status
    region_note_applied(region, shard, change, proposed, outcome[0])
    return WAN_OK


cdef inline void region_note_applied(region_core *region, wan_shard *shard, const wan_change *change,
                                     uint64_t proposed, wan_outcome outcome) noexcept nogil:
    """Notes the consequences of an applied change: its tombstone, and a stamp that is later than the `proposed` stamp.
    Under the entry lock.

    The stamp of the entry may be ahead of the time: the stamp comes from a member with a wrong clock
    (docs/decisions/0084), or from this member before the repair of its clock (0026). The stamp of a later change is
    above the entry's stamp, and the clock does not follow."""
    if outcome == WAN_DESTROYED and region.bell != NULL:
        region_note_tombstone(region, shard, change.tombstone_bytes)
    if change.stamp != proposed:
        wan_clock_see_raised(region.clock, change.stamp)


cdef inline wan_status region_apply_logged(region_log *log, wan_shard *shard, wan_change *change,
                                           wan_outcome *outcome) noexcept nogil:
    """The part of `region_apply` for a persistent region. A separate function, so that the compiler inlines
    `region_apply`."""
    cdef uint64_t replaced
    wan_lock_take(&log.lock)
    cdef wan_status status = region_log_reserve(log, change)
    if status != WAN_OK and makes_smaller(shard, change):
        status = region_log_reserve_smaller(log, change)
    if status == WAN_OK:
        replaced = region_log_replaced(log, shard, change)
        outcome[0] = wan_table_apply(shard, change)
        if outcome[0] <= WAN_DESTROYED:
            region_log_add(log, change, WAN_LOGGED_SMALLER if change.value_length < change.replaced_length else 0,
                           replaced)
    wan_lock_release(&log.lock)
    return status


cdef inline void region_note_tombstone(region_core *region, wan_shard *shard, int64_t bytes) noexcept nogil:
    """Adds `bytes` to the memory of tombstones. If tombstones take too much memory, or the member has no memory, the
    thread that destroys a key shrinks the older tombstones of the shard. So a bulk destroy cannot be faster than the
    housekeeper. Under the entry lock."""
    cdef uint64_t before
    if wan_falls_short(&region.tombstone_room, bytes):
        wan_signal_change(region.bell)
    if ((<int64_t>wan_read(<uint64_t *>&region.tombstone_room) < 0 or wan_table_is_short(&region.table))
            and wan_table_is_worth_shrinking(shard)):
        before = shard.tombstone_bytes + wan_shard_shrunk_count(shard) * sizeof(wan_shrunk)
        if wan_table_shrink(shard) == WAN_OK:       # If there is no memory now, the housekeeper tries later.
            wan_add_shared(<uint64_t *>&region.tombstone_room,
                           before - wan_shard_shrunk_count(shard) * sizeof(wan_shrunk))


cdef inline void origin_local(origin *from_, const region_core *region, wan_thread *maker) noexcept nogil:
    memset(from_, 0, sizeof(origin))
    from_.site = region.site
    from_.event_member = region.member
    maker.events += 1
    from_.event_thread, from_.event_sequence = maker.number, maker.events
    from_.callback_form = WAN_FORM_NONE


cdef inline void origin_of_row(origin *from_, const region_core *region, uint32_t producer, uint32_t task,
                               uint64_t row) noexcept nogil:
    """The origin of a client's row: the event is made at this member, with the identity that the row has at the
    client."""
    memset(from_, 0, sizeof(origin))
    from_.site = region.site
    from_.event_member, from_.event_thread, from_.event_sequence = producer, task, row
    from_.callback_form = WAN_FORM_NONE


cdef inline void change_from_record(wan_change *change, const wan_record *record, uint64_t hash) noexcept nogil:
    change.key = wan_record_key(record)
    change.value = wan_record_value(record)
    change.value_length = record.value_length
    change.key_length = record.key_length
    change.key_form = record.key_form
    change.value_form = record.value_form
    change.operation = record.operation
    change.stamp_site = record.stamp_site
    change.hash = hash
    change.stamp = record.stamp
    change.absent_below = 0
    change.flags = record.flags
    change.local = 0
    change.ask = WAN_ASK_NOBODY
    change.fault = 0


cdef inline void origin_from_record(origin *from_, const wan_record *record, bint possible_duplicate) noexcept nogil:
    from_.site = record.origin_site
    from_.recipient_count = record.recipients_count
    from_.recipients = wan_record_recipients(record)
    from_.event_member = record.event_member
    from_.event_thread = record.event_thread
    from_.event_sequence = record.event_sequence
    from_.callback = wan_record_callback(record)
    from_.callback_length = record.callback_length
    from_.callback_form = record.callback_form
    from_.possible_duplicate = possible_duplicate
    from_.alone = False
    from_.asked = NULL
    from_.place = NULL
    memset(&from_.attempt, 0, sizeof(wan_attempt))


cdef inline wan_status region_log_reserve(region_log *log, const wan_change *change) noexcept nogil:
    """Reserves room in the log, so that the change can be added afterwards. Under the log's lock."""
    return committer_reserve(&log.committer, &log.records, wan_logged_size(change.key_length, change.value_length))


cdef inline wan_status region_log_reserve_smaller(region_log *log, const wan_change *change) noexcept nogil:
    """The same for a change that makes the log shorter, where a full store has no room for longer changes."""
    return committer_reserve_smaller(&log.committer, &log.records,
                                     wan_logged_size(change.key_length, change.value_length))


cdef inline bint makes_smaller(const wan_shard *shard, const wan_change *change) noexcept nogil:
    """Whether the change replaces an entry by a shorter value, or removes the entry. Under the entry lock."""
    cdef const wan_entry *entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
    if change.operation == WAN_DESTROY:
        return entry != NULL or change.local        # A local destroy of an absent key adds nothing.
    return entry != NULL and entry.state == WAN_ENTRY_LIVE and change.value_length < entry.value_length


cdef inline uint64_t region_log_replaced(const region_log *log, const wan_shard *shard,
                                         const wan_change *change) noexcept nogil:
    """The stamp of the later version that the change replaces. 0: no later version. Call the function before the change
    is applied, under the entry lock and the log's lock."""
    cdef const wan_entry *entry
    if log.restamping == change:
        return log.replaced
    if change.local or change.ask != WAN_ASK_DECIDED:
        return 0
    entry = wan_table_find(shard, change.hash, change.key, change.key_length, change.key_form)
    if entry == NULL or wan_version_order(change.stamp, change.stamp_site, entry.stamp, entry.stamp_site) > 0:
        return 0
    return entry.stamp


cdef inline void region_log_add(region_log *log, wan_change *change, uint8_t kinds,
                                uint64_t other) noexcept nogil:
    """Adds a record of the change to the log, in the reserved room. `kinds`: WAN_LOGGED_*. `other`: the result of
    `region_log_replaced`; for a mark, the mark's second stamp. Under the log's lock."""
    cdef wan_logged head
    cdef uint32_t value_length = 0 if change.operation == WAN_DESTROY else change.value_length
    cdef uint64_t length = wan_logged_size(change.key_length, value_length)
    memset(&head, 0, sizeof(head))
    head.value_length, head.key_length, head.kinds = value_length, change.key_length, kinds
    head.stamp, head.stamp_site, head.other_stamp = change.stamp, change.stamp_site, other
    head.operation, head.key_form, head.value_form = change.operation, change.key_form, change.value_form
    if other and not kinds & WAN_LOGGED_MARK:
        head.kinds |= WAN_LOGGED_RESTAMPED
        set_bit(log.unwritten.restamped, change.hash >> (64 - UNWRITTEN_BITS))
    wan_logged_write(log.records.pending.bytes + log.records.pending.used, length, head, change.key, change.value)
    log.records.pending.used += length
    log.records.pending.count += 1
    committer_note_pending(&log.committer, 1)
    change.logged = log.committer.given


cdef inline void set_bit(uint64_t *bits, uint64_t bit) noexcept nogil:
    bits[bit >> 6] |= <uint64_t>1 << (bit & 63)
