# Owns the group form of the step: changes of one bucket that come together, in a region that several members hold. The
# changes are rows of a call, or events of remote sites. The group step takes the locks of the bucket and of its queues
# once for several changes. Each change is reserved, applied and written separately. So a change for which there is no
# room ends the group, and all earlier changes are made. The change then takes the single step (put.pxd): only the
# single step refuses a change. The code is compiled into each unit that has groups of changes.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport eventfd_write
from pywan._core.queue.queue cimport queue_commit, queue_count, queue_reserve
from pywan._core.region.enqueue cimport ENQUEUE_ENTERS, count_not_entered, decide_enqueue
from pywan._core.region.entry_locks cimport (
    CHANGE_BYTES_PER_HOLD, CHANGES_PER_HOLD, entry_locks, entry_locks_release, entry_locks_take, queue_locks_release,
    queue_locks_take)
from pywan._core.region.put cimport (
    change_begin, put_step, region_apply, region_relieve, remembered_attempt, step_begin_notification,
    step_entry_length, step_write_entry, union_recipients)
from pywan._core.region.region_state cimport PATH_STRAIGHT, attachment, origin, region_core


cdef struct records_ahead:
    # The records of a call, in the order of their changes. The keys are fetched while earlier changes are made.
    wan_fetch fetch
    const uint8_t *at           # The next record that is not noted.
    uint32_t done, count        # Records that are made or being made, and all records.


cdef struct change_group:
    # Unconditional changes of one bucket: rows of one call, or changes that no client repeats.
    uint32_t first, count       # Changes before `first` are done. The caller moves `first`.
    wan_change changes[CHANGES_PER_HOLD]
    origin origins[CHANGES_PER_HOLD]
    wan_outcome outcomes[CHANGES_PER_HOLD]      # For the finished changes, as in `region_change`.
    # All remaining changes take the single step: the single step was necessary for one change, and most likely is for
    # the rest.
    bint is_alone
    entry_locks locks


cdef inline void group_begin(change_group *group, uint32_t count) noexcept nogil:
    """Begins a group. The caller has filled the first `count` changes."""
    group.first, group.count, group.is_alone = 0, count, False


cdef inline void records_begin(records_ahead *ahead, const void *first, uint32_t count) noexcept nogil:
    ahead.at = <const uint8_t *>first
    ahead.done, ahead.count, ahead.fetch.noted = 0, count, 0


cdef inline void records_fetch(const region_core *region, records_ahead *ahead) noexcept nogil:
    """Fetches keys ahead, before the next record is made. `wan_fetch_hash` then has the hashes of the next records, of
    at most CHANGES_PER_HOLD records."""
    cdef const wan_record *record
    while ahead.fetch.noted < min(ahead.done + 2 * <uint32_t>WAN_FETCH_STEP, ahead.count + <uint32_t>WAN_FETCH_STEP):
        if ahead.fetch.noted < ahead.count:
            record = <const wan_record *>ahead.at
            wan_fetch_next(&region.table, &ahead.fetch,
                           wan_key_hash(wan_record_key(record), record.key_length, record.key_form),
                           record.key_length + record.value_length, 1)
            ahead.at += wan_record_length(record)
        else:
            wan_fetch_next(&region.table, &ahead.fetch, 0, 0, 0)


cdef inline uint32_t region_change_group(region_core *region, uint32_t bucket, change_group *group,
                                         records_ahead *ahead) noexcept nogil:
    """Does the work of `region_change` for some changes of a group, from `first` on, and returns the number of finished
    changes. Each finished change has the status WAN_OK. 0: the next change has to take the single step. `ahead`: the
    records of the call that the changes belong to; `done` of the records goes on with each change. NULL: nothing is
    fetched meanwhile."""
    cdef attachment *attached
    cdef uint32_t n, count = group.count - group.first, done = 0
    if (region.changelog == NULL or region.log != NULL or group.is_alone or count < 2
            or wan_table_is_short(&region.table)):
        return 0
    region_relieve(region)
    for n in range(count):
        group.locks.shards[n] = wan_table_shard(&region.table, group.changes[group.first + n].hash)
    count = entry_locks_take(&group.locks, count)
    attached = region.attached
    if region.changelog != NULL and (attached == NULL or attached.path == PATH_STRAIGHT):
        done = group_step(region, attached, bucket, group, count, ahead)
    entry_locks_release(&group.locks)
    group.is_alone = done == 0
    return done


cdef inline uint32_t group_step(region_core *region, attachment *attached, uint32_t bucket, change_group *group,
                                uint32_t count, records_ahead *ahead) noexcept nogil:
    """The part of `region_change_group` for `count` changes, under the entry locks, which keep the attachment, its
    queues and their files. The fetches go on under the locks, because an atomic operation would wait for the
    fetches."""
    cdef put_step step
    cdef wan_change *change
    cdef const origin *from_
    cdef wan_status status = WAN_OK
    cdef uint64_t length, bytes = 0, before = 0
    cdef uint32_t n, done = 0
    cdef int wake
    if attached != NULL and (attached.count == 0 or not region.forwards):
        attached = NULL
    step.taken = step.recipient_count = 0
    # A region with a change log never loses the change log.
    step.changelog, step.notifications = region.changelog, wan_changelog_notifications(region.changelog)
    while done < count:
        change, from_ = &group.changes[group.first + done], &group.origins[group.first + done]
        change_begin(region, change)
        if attached != NULL:
            step.recipients = union_recipients(from_, attached, step.space, &step.recipient_count)
            decide_enqueue(attached, from_, region.site, NULL, &step.decided)
        length = step_entry_length(region, change, from_, attached, NULL, &step)
        bytes += length
        if done == 0:
            status = wan_changelog_reserve(region.changelog, bucket, length, remembered_attempt(from_), &step.room)
            if status != WAN_OK:
                return 0
            before = step.room.sequence - 1
            queue_locks_take(attached)
            if wan_changelog_short_replica(region.changelog, step.room.bucket) != NULL:
                break
        elif bytes > CHANGE_BYTES_PER_HOLD:
            break
        elif wan_changelog_reserve_next(&step.room, length) != WAN_OK:
            break
        if ahead != NULL:
            records_fetch(region, ahead)
        if not group_make(region, bucket, group.locks.shards[done], change, from_, &group.outcomes[group.first + done],
                          attached, &step):
            break
        if ahead != NULL:
            ahead.done += 1
        done += 1
    queue_locks_release(attached)
    if wan_changelog_commit_end(region.changelog, &step.room, before) > before and step.taken:
        for n in range(attached.count):         # Replicated events may be sent at once.
            wake = queue_count(attached.queues[n], attached.firsts[n] + bucket)
            if wake >= 0:
                eventfd_write(wake, 1)
    return done


cdef inline bint group_make(region_core *region, uint32_t bucket, wan_shard *shard, wan_change *change,
                            const origin *from_, wan_outcome *outcome, attachment *attached,
                            put_step *step) noexcept nogil:
    """Makes a change with reserved room in the change log, or finds that the change has no effect. False: the change
    cannot be made now, and nothing was changed. Under all locks."""
    cdef uint32_t at = <uint32_t>(shard - region.table.shards)
    cdef bint is_made = False
    if not group_reserve(bucket, change, from_, attached, step):
        return False
    if step_begin_notification(region, shard, change, step) == WAN_OK and region_apply(region, shard, change,
                                                                                       outcome) == WAN_OK:
        is_made = outcome[0] <= WAN_DESTROYED
    else:
        outcome[0] = WAN_OUT_OF_MEMORY
    if not is_made:
        group_cancel(attached, step)
        # The change without an effect has seen the newest change of the shard, as a read does.
        change.local_fence, change.waits = step.room.bucket.local_fence, 1
        change.sequence = wan_read(&region.changelog.shard_last[at])
        return outcome[0] != WAN_OUT_OF_MEMORY
    step_write_entry(region, change, from_, attached, NULL, step, outcome[0])
    if attached != NULL:
        group_commit(attached, step)
    change.local_fence, change.waits = step.room.bucket.local_fence, 1
    change.sequence = wan_changelog_commit_next(region.changelog, &step.room, at)
    return True


cdef inline bint group_reserve(uint32_t bucket, const wan_change *change, const origin *from_, attachment *attached,
                               put_step *step) noexcept nogil:
    """Reserves room in each queue that the event enters. False: a queue has no room, and nothing is reserved."""
    cdef uint32_t n, value_length = 0 if change.operation == WAN_DESTROY else change.value_length
    step.asked = 0
    for n in range(attached.count if attached != NULL else 0):
        if (step.decided.verdicts[n] == ENQUEUE_ENTERS
                and queue_reserve(attached.queues[n], attached.firsts[n] + bucket, step.room.sequence,
                                  wan_record_size(change.key_length, value_length, from_.callback_length,
                                                  step.recipient_count), &step.reservations[n]) != WAN_OK):
            group_cancel(attached, step)
            return False
        step.asked = n + 1
    return True


cdef inline void group_cancel(attachment *attached, put_step *step) noexcept nogil:
    """Gives back the reserved room of the queues."""
    cdef uint32_t n
    for n in range(step.asked):
        if step.decided.verdicts[n] == ENQUEUE_ENTERS:
            wan_queue_cancel(&attached.queues[n].queue, &step.reservations[n])


cdef inline void group_commit(attachment *attached, put_step *step) noexcept nogil:
    """Copies the record of the entry into the queues that the event enters, and counts the event at the remaining
    queues."""
    cdef const wan_record *record = wan_changelog_entry_record(<const wan_changelog_entry *>step.room.at)
    cdef uint32_t n
    for n in range(attached.count):
        if step.decided.verdicts[n] != ENQUEUE_ENTERS:
            count_not_entered(attached.queues[n], step.decided.verdicts[n])
            continue
        memcpy(step.reservations[n].at, record, step.reservations[n].length)
        queue_commit(attached.queues[n], &step.reservations[n])     # Ready when the change is replicated.
        step.taken += 1
        attached.queues[n].counts.received += 1
        attached.queues[n].counts.queued += 1
