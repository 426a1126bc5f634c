# Owns changes by rows. Rows for a region with entries are taken in groups, whose entries are fetched into the
# processor's cache ahead of time. Rows for a proxy are taken in runs, which go straight into its queue.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.values.column_views cimport (
    COLUMN_BYTES, COLUMN_FLOAT64, COLUMN_INT64, COLUMN_STR, ColumnView, column_rows)
from pywan._core.region.enqueue cimport only_queue
from pywan._core.region.put cimport operation_of, origin_local, region_change, region_note_tombstone
from pywan._core.queue.queue cimport durable_reserve, durable_add, gateway_queue, queue_note_rows, queue_partition
from pywan._core.region.region_state cimport attachment, origin, region_core


cdef object failure_text(int reason):
    return {1: "the key is empty or missing (null)", 2: f"the key is over the limit of {WAN_KEY_BYTES_MAX} bytes",
            3: f"the value is over the limit of {WAN_VALUE_BYTES_MAX} bytes", 4: "no memory", 5: "no room in a queue",
            6: "the key cannot be one: its text is not UTF-8, or it is or holds a list, a dict or a set; use a"
               " tuple"}[reason]


cdef bint keys_are_plain(const ColumnView *keys, int64_t row, int64_t count) noexcept nogil:
    """Whether all rows that are not null can be keys: because of the column's form, or because they are ASCII text. To
    check them together is much less work than one by one."""
    cdef int64_t begin = row * keys.width, end = (row + count) * keys.width
    if keys.form == COLUMN_BYTES:
        return True
    if keys.offsets32 != NULL:
        begin, end = keys.offsets32[row], keys.offsets32[row + count]
    elif keys.offsets64 != NULL:
        begin, end = keys.offsets64[row], keys.offsets64[row + count]
    elif keys.form == COLUMN_INT64 or keys.form == COLUMN_FLOAT64:
        return keys.width == 8
    return keys.form == COLUMN_STR and end - begin <= PLAIN_BYTES_MAX and wan_is_ascii(keys.data + begin, end - begin)


cdef inline void bulk_fail(bulk_result *result, int64_t row, uint8_t reason) noexcept nogil:
    result.failed += 1
    if result.rows == NULL:
        result.rows = <int64_t *>malloc(BULK_FAILURES_LISTED * sizeof(int64_t))
        result.reasons = <uint8_t *>malloc(BULK_FAILURES_LISTED)
    if result.rows != NULL and result.reasons != NULL and result.listed < BULK_FAILURES_LISTED:
        result.rows[result.listed] = row
        result.reasons[result.listed] = reason
        result.listed += 1


cdef enum:
    # Rows that are stored and enqueued under one hold of the queue's lock, at most. It takes a microsecond or two.
    STORED_ROWS_PER_HOLD = 16
    STORED_BYTES_PER_HOLD = 16384   # Bytes of their records, at most.
    # Room for the rows that were decoded and are not stored yet. There are three groups of STORED_ROWS_PER_HOLD.
    DECODED_ROWS = 4 * STORED_ROWS_PER_HOLD
    # Rows whose entries are fetched together: those have about a dozen lines. A processor fetches some two dozens at
    # once, and an instruction that asks for one more waits.
    FETCHED_TOGETHER = 4
    PROXY_ROWS_PER_HOLD = 512       # Rows of a proxy that are enqueued under one hold of the lock, at most.


cdef struct fetch_ahead:
    # The changes whose entries are fetched next, while the rows before them are stored.
    const wan_change *next
    uint32_t left


cdef inline void fetch_some(const region_core *region, fetch_ahead *ahead) noexcept nogil:
    """Fetches the entries of the next FETCHED_TOGETHER changes, if there are so many."""
    cdef uint32_t n, count = min(ahead.left, <uint32_t>FETCHED_TOGETHER)
    for n in range(count):
        wan_table_prefetch_entry(&region.table, ahead.next[n].hash,
                                 ahead.next[n].key_length + ahead.next[n].value_length)
    ahead.next += count
    ahead.left -= count


cdef void decode_rows(region_core *region, const ColumnView *keys, const ColumnView *values, const uint8_t *codes,
                      const int64_t *stamps, int64_t base, uint32_t count, wan_change *changes) noexcept nogil:
    """Makes changes of `count` rows from `base` on, at most STORED_ROWS_PER_HOLD, and fetches their slots."""
    cdef const uint8_t *key_starts[STORED_ROWS_PER_HOLD]
    cdef const uint8_t *value_starts[STORED_ROWS_PER_HOLD]
    cdef uint32_t key_lengths[STORED_ROWS_PER_HOLD]
    cdef uint32_t value_lengths[STORED_ROWS_PER_HOLD]
    cdef uint8_t key_forms[STORED_ROWS_PER_HOLD]
    cdef uint8_t value_forms[STORED_ROWS_PER_HOLD]
    cdef uint64_t first_stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), count)
    cdef bint is_plain = keys_are_plain(keys, base, count)
    cdef wan_change *change
    cdef uint32_t k
    column_rows(keys, base, count, key_starts, key_lengths, key_forms)
    if values != NULL:
        column_rows(values, base, count, value_starts, value_lengths, value_forms)
    for k in range(count):
        change = &changes[k]
        change.key, change.key_length, change.key_form = key_starts[k], <uint16_t>key_lengths[k], key_forms[k]
        change.fault = <uint8_t>key_fault(change.key, key_lengths[k], change.key_form, is_plain)
        change.operation = codes[base + k] if codes != NULL else WAN_UPDATE
        if values != NULL and change.operation != WAN_DESTROY:
            change.value, change.value_length, change.value_form = value_starts[k], value_lengths[k], value_forms[k]
            if change.value_length > WAN_VALUE_BYTES_MAX:
                change.fault = 3
        else:
            change.value, change.value_length, change.value_form = NULL, 0, WAN_FORM_NONE
        change.hash = wan_key_hash(change.key, change.key_length, change.key_form) if not change.fault else 0
        change.stamp = first_stamp + k
        change.flags = 0
        if stamps != NULL and stamps[base + k] > 0 and (<uint64_t>stamps[base + k]) << 16 < change.stamp:
            change.stamp, change.flags = (<uint64_t>stamps[base + k]) << 16, WAN_FLAG_GIVEN
        change.stamp_site = region.site
        change.local = 1
        change.ask = WAN_ASK_NOBODY
        change.sequence = 0
        if region.stores:
            wan_table_prefetch_slot(&region.table, change.hash)


cdef void region_put_rows(region_core *region, const ColumnView *keys, const ColumnView *values, const uint8_t *codes,
                          const int64_t *stamps, bulk_result *result) noexcept nogil:
    # Rows go through a ring in groups of STORED_ROWS_PER_HOLD. A group is decoded, and its slots are fetched, two steps
    # before it is stored. Its entries are fetched while the group before it is stored.
    cdef wan_change changes[DECODED_ROWS]
    cdef wan_change *change
    cdef fetch_ahead ahead
    cdef int64_t row = result.done, first, group, end, decoded
    cdef uint32_t n, done
    cdef bint changes_many = False, is_proxy = not region.stores and region.forwards
    cdef wan_thread *maker = wan_thread_self()
    while row < keys.length:
        end = keys.length
        if is_proxy:
            done = region_forward_rows(region, keys, values, codes, stamps, row)
            result.applied += done
            result.waits |= done != 0
            row += done
            if done:
                continue
            end = min(end, row + <int64_t>DECODED_ROWS)
        first = group = decoded = row
        while group < end:
            while decoded < min(end, group + <int64_t>(3 * STORED_ROWS_PER_HOLD)):
                n = <uint32_t>min(end - decoded, <int64_t>STORED_ROWS_PER_HOLD)
                decode_rows(region, keys, values, codes, stamps, decoded, n, &changes[(decoded - first) % DECODED_ROWS])
                decoded += n
            change = &changes[(group - first) % DECODED_ROWS]
            if group == first:          # No rows before these fetched their entries.
                ahead.next = change
                ahead.left = <uint32_t>min(end - group, <int64_t>STORED_ROWS_PER_HOLD) if region.stores else 0
                while ahead.left:
                    fetch_some(region, &ahead)
            if (group - first) % DECODED_ROWS == 0:
                changes_many = can_change_many(region, wan_table_shard(&region.table, change.hash))
            group = min(end, group + <int64_t>STORED_ROWS_PER_HOLD)
            ahead.next = &changes[(group - first) % DECODED_ROWS]
            ahead.left = <uint32_t>min(decoded - group, <int64_t>STORED_ROWS_PER_HOLD) if region.stores else 0
            row = put_group(region, change, row, group, changes_many, &ahead, maker, result)
            if result.stopped != WAN_OK:
                result.done = row
                return
    result.done = row


cdef int64_t put_group(region_core *region, wan_change *change, int64_t row, int64_t end, bint changes_many,
                       fetch_ahead *ahead, wan_thread *maker, bulk_result *result) noexcept nogil:
    """Takes the changes of the rows from `row` to `end`, and fetches the entries of `ahead` meanwhile. Returns the row
    behind the last one that was done or refused: `end`, unless `result` says why the call stopped."""
    cdef origin from_
    cdef wan_outcome outcome
    cdef wan_status status
    cdef uint32_t done
    while row < end:
        if change.fault:
            bulk_fail(result, row, change.fault)
            row += 1
            change += 1
            continue
        done = 0
        if changes_many:
            done = region_change_many(region, change, <uint32_t>(end - row), ahead, maker, result, row)
        row += done
        change += done
        if done:
            continue
        if (end - row) % FETCHED_TOGETHER == 0:
            fetch_some(region, ahead)
        origin_local(&from_, region, maker)
        status = region_change(region, change, &from_, NULL, &outcome)
        result.waits |= change.waits
        if status != WAN_OK:
            result.stopped = status
            return row
        if change.sequence:
            result.bucket = wan_table_bucket(&region.table, change.hash).number
            result.era, result.sequence = change.era, change.sequence
            result.stopped = WAN_ELSEWHERE
        if outcome <= WAN_DESTROYED:
            result.applied += 1
        elif outcome == WAN_OUT_OF_MEMORY:
            bulk_fail(result, row, 4)
        row += 1
        change += 1
        if result.stopped != WAN_OK:
            break
    return row


cdef uint32_t take_entry_locks(region_core *region, const wan_change *changes, uint32_t count, wan_shard **shards,
                               wan_shard **held, uint32_t *locks) noexcept nogil:
    """Takes the entry locks of these changes, from the first on, and returns for how many. It waits for the first lock
    and only tries the others, because a thread that holds an entry lock never waits for another one. It stops at a lock
    that is taken, or at a change with a `fault`. `shards`: the shard of each change. `held`: the shards that were
    locked, `locks` of them."""
    cdef uint32_t n, k, done = 0
    locks[0] = 0
    for n in range(count):
        if changes[n].fault:
            break
        shards[n] = wan_table_shard(&region.table, changes[n].hash)
        if n == 0:
            wan_lock_take(&shards[0].lock)
        elif not wan_lock_try(&shards[n].lock):
            for k in range(locks[0]):
                if held[k] == shards[n]:
                    break
            else:
                break
            done += 1
            continue
        held[locks[0]] = shards[n]
        locks[0] += 1
        done += 1
    return done


cdef bint can_change_many(const region_core *region, wan_shard *shard) noexcept nogil:
    """Whether `region_change_many` can do anything now. It is asked once for each group: otherwise locks would be taken
    in vain."""
    cdef const gateway_queue *gateway
    cdef bint can
    if region.log != NULL or not region.stores or not region.forwards:
        return False
    wan_lock_take(&shard.lock)      # Any entry lock keeps the attachment alive.
    gateway = only_queue(region.attached, region.site)
    can = gateway != NULL and gateway.durable == NULL
    wan_lock_release(&shard.lock)
    return can


cdef uint32_t region_change_many(region_core *region, wan_change *changes, uint32_t count, fetch_ahead *ahead,
                                 wan_thread *maker, bulk_result *result, int64_t row) noexcept nogil:
    """Does what `region_change` does for some of these local changes, from the first on, under one hold of the queue's
    lock. It does so only if there is one sender and no log. If the lock were taken for each change, it would never be
    free long enough for the dispatcher that waits for it. Returns how many were done. 0: the first one has to go
    alone."""
    cdef wan_shard *held[STORED_ROWS_PER_HOLD]
    cdef wan_shard *shards[STORED_ROWS_PER_HOLD]
    cdef uint32_t lengths[STORED_ROWS_PER_HOLD]
    cdef uint16_t partitions[STORED_ROWS_PER_HOLD]
    cdef attachment *attached
    cdef gateway_queue *gateway
    cdef uint32_t n, locks, taken, done = 0
    cdef uint64_t total = 0
    if region.log != NULL or not region.stores or not region.forwards:
        return 0
    taken = take_entry_locks(region, changes, min(count, <uint32_t>STORED_ROWS_PER_HOLD), shards, held, &locks)
    attached = region.attached
    gateway = only_queue(attached, region.site)
    if gateway != NULL and gateway.durable == NULL:
        for n in range(taken):
            lengths[n] = <uint32_t>wan_record_size(changes[n].key_length, changes[n].value_length, 0,
                                                   attached.recipient_count)
            if gateway.queue.partition_count > 1:
                partitions[n] = <uint16_t>queue_partition(gateway, region.buckets, changes[n].hash, region.member,
                                                          maker.number)
            total += lengths[n]
            if total > STORED_BYTES_PER_HOLD:
                taken = n
                total -= lengths[n]
                break
        if taken > 1:
            done = change_many_under_entry_locks(
                region, attached, changes, taken, shards, lengths,
                partitions if gateway.queue.partition_count > 1 else NULL, total, ahead, maker, result, row)
    for n in range(locks):
        wan_lock_release(&held[n].lock)
    return done


cdef uint32_t change_many_under_entry_locks(region_core *region, const attachment *attached, wan_change *changes,
                                            uint32_t count, wan_shard **shards, uint32_t *lengths,
                                            uint16_t *partitions, uint64_t total, fetch_ahead *ahead,
                                            wan_thread *maker, bulk_result *result, int64_t row) noexcept nogil:
    """The part of `region_change_many` under the entry locks. All room that could be refused is reserved before the
    first change is made. `partitions` NULL: the queue has one.

    All locks are taken by now. So the fetches of `ahead` go on while rows are stored: an atomic operation would wait
    for them."""
    cdef gateway_queue *gateway = attached.queues[0]
    cdef wan_change *change
    cdef wan_run run
    cdef wan_record head
    cdef wan_record *record
    cdef wan_outcome outcome
    cdef uint32_t n, written = 0
    cdef uint64_t low = wan_clock_low(region.clock), first_event = maker.events + 1, proposed
    cdef uint8_t *to
    cdef int wake
    wan_lock_take(&gateway.lock)
    if wan_queue_open_run(&gateway.queue, total, &run) != WAN_OK:
        wan_lock_release(&gateway.lock)
        return 0
    for n in range(count if partitions != NULL else 1):
        if wan_queue_room_for_entries(&gateway.queue, partitions[n] if partitions != NULL else 0, count) != WAN_OK:
            count = 0
            break
    # What all these records have in common, as `origin_local` and `write_record` write it.
    memset(&head, 0, sizeof(head))
    head.region = region.number
    head.stamp_site = head.origin_site = region.site
    head.event_member, head.event_thread = region.member, maker.number
    head.recipients_count = <uint8_t>attached.recipient_count
    head.callback_form = WAN_FORM_NONE
    to = run.at
    for n in range(count):
        if n % FETCHED_TOGETHER == 0:
            fetch_some(region, ahead)
        change = &changes[n]
        change.waits, change.absent_below = 0, 0
        if change.stamp < low and not change.flags & WAN_FLAG_GIVEN:
            # As in region_change_held.
            change.stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), 1)
        # From here to wan_clock_see as in region_apply, for a region without a log.
        proposed = change.stamp
        outcome = wan_table_apply(shards[n], change)
        if outcome > WAN_DESTROYED:
            if outcome == WAN_OUT_OF_MEMORY:
                bulk_fail(result, row + n, 4)
            continue
        if outcome == WAN_DESTROYED and region.bell != NULL:
            region_note_tombstone(region, shards[n], change.tombstone_bytes)
        if change.stamp != proposed:
            wan_clock_see(region.clock, change.stamp)
        record = wan_record_begin(to, lengths[n], &head)
        record.value_length, record.key_length = change.value_length, change.key_length
        record.stamp, record.event_sequence = change.stamp, first_event + n
        record.flags, record.operation = change.flags, <uint8_t>operation_of(outcome)
        record.key_form, record.value_form = change.key_form, change.value_form
        wan_record_fill(to, change.key, change.value, NULL, attached.recipients)
        to += lengths[n]
        lengths[written] = lengths[n]
        if partitions != NULL:
            partitions[written] = partitions[n]
        written += 1
    maker.events += count
    wan_queue_append_run(&gateway.queue, &run, lengths, partitions, written, NULL)
    gateway.counts.received += written
    gateway.counts.queued += written
    result.applied += written
    wake = queue_note_rows(gateway, partitions, written)
    wan_lock_release(&gateway.lock)
    if wake >= 0:                   # Still under the entry locks: without them the queue and its files may be gone.
        eventfd_write(wake, 1)
    return count


cdef uint32_t region_forward_rows(region_core *region, const ColumnView *key_column, const ColumnView *value_column,
                                  const uint8_t *codes, const int64_t *stamps, int64_t row) noexcept nogil:
    """Enqueues rows of a proxy that has one running sender. They are written one behind the other, up to the first row
    that cannot be stored or finds no room. Returns how many. The caller then takes the next row alone, and so finds out
    what is wrong with it."""
    cdef wan_shard *shard = &region.table.shards[0]
    cdef attachment *attached
    cdef gateway_queue *gateway
    cdef wan_run run
    cdef wan_record head
    cdef wan_record *record
    cdef const uint8_t *keys[PROXY_ROWS_PER_HOLD]
    cdef const uint8_t *values[PROXY_ROWS_PER_HOLD]
    cdef uint32_t key_lengths[PROXY_ROWS_PER_HOLD]
    cdef uint32_t value_lengths[PROXY_ROWS_PER_HOLD]
    cdef uint8_t key_forms[PROXY_ROWS_PER_HOLD]
    cdef uint8_t value_forms[PROXY_ROWS_PER_HOLD]
    cdef uint32_t lengths[PROXY_ROWS_PER_HOLD]
    cdef uint16_t partitions[PROXY_ROWS_PER_HOLD]
    cdef uint64_t sequences[PROXY_ROWS_PER_HOLD]
    cdef uint32_t n, count, key_length, value_length, done = 0
    cdef uint64_t length, used = 0, stamp, row_stamp, first_event, hash
    cdef uint8_t *to
    cdef uint8_t key_form, value_form, operation = WAN_UPDATE, flags
    cdef int wake = -1
    cdef bint many, is_plain
    cdef wan_thread *maker = wan_thread_self()
    wan_lock_take(&shard.lock)      # Any entry lock keeps the attachment alive.
    attached = region.attached
    gateway = only_queue(attached, region.site)
    if gateway == NULL or attached.recipient_count != 1:
        wan_lock_release(&shard.lock)
        return 0
    many = gateway.queue.partition_count > 1
    count = <uint32_t>min(<int64_t>PROXY_ROWS_PER_HOLD, key_column.length - row)
    memset(&head, 0, sizeof(head))
    head.region = region.number
    head.stamp_site = head.origin_site = region.site
    head.event_member, head.event_thread = region.member, maker.number
    head.recipients_count = 1
    head.callback_length = 0
    head.callback_form = WAN_FORM_NONE
    first_event = maker.events + 1
    stamp = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), count)
    is_plain = keys_are_plain(key_column, row, count)
    column_rows(key_column, row, count, keys, key_lengths, key_forms)
    if value_column != NULL:
        column_rows(value_column, row, count, values, value_lengths, value_forms)
    wan_lock_take(&gateway.lock)
    run.room = 0
    for n in range(count):
        key_length, key_form = key_lengths[n], key_forms[n]
        if key_fault(keys[n], key_length, key_form, is_plain):
            break
        if codes != NULL:
            operation = codes[row + n]
        value_length, value_form = 0, WAN_FORM_NONE
        if value_column != NULL and operation != WAN_DESTROY:
            value_length, value_form = value_lengths[n], value_forms[n]
        length = wan_record_size(key_length, value_length, 0, 1)
        if n == 0 and length <= WAN_RUN_RECORD_BYTES_MAX and wan_queue_open_run(&gateway.queue, length, &run) != WAN_OK:
            break
        if used + length > run.room:
            break
        row_stamp, flags = stamp + n, 0
        if stamps != NULL and stamps[row + n] > 0 and (<uint64_t>stamps[row + n]) << 16 < row_stamp:
            row_stamp, flags = (<uint64_t>stamps[row + n]) << 16, WAN_FLAG_GIVEN
        lengths[n] = <uint32_t>length
        if many:
            hash = wan_key_hash(keys[n], key_length, key_form)
            partitions[n] = <uint16_t>queue_partition(gateway, region.buckets, hash, head.event_member,
                                                      head.event_thread)
        to = run.at + used
        used += length
        record = wan_record_begin(to, length, &head)
        record.value_length, record.key_length = value_length, <uint16_t>key_length
        record.stamp, record.event_sequence = row_stamp, first_event + n
        record.flags, record.operation, record.key_form, record.value_form = flags, operation, key_form, value_form
        wan_record_fill(to, keys[n], values[n], NULL, attached.recipients)
        done += 1
    if gateway.durable != NULL and durable_reserve(gateway, used, done) != WAN_OK:
        done = 0
    if run.room:
        done = wan_queue_append_run(&gateway.queue, &run, lengths, partitions if many else NULL, done, sequences)
    maker.events += done
    gateway.counts.queued += done
    gateway.counts.received += done
    if gateway.durable != NULL:           # The committer wakes the dispatchers when the events are on the disk.
        for n in range(done):
            durable_add(gateway, partitions[n] if many else 0, sequences[n], <const wan_record *>run.at)
            run.at += lengths[n]
    else:
        wake = queue_note_rows(gateway, partitions if many else NULL, done)
    wan_lock_release(&gateway.lock)
    if wake >= 0:                   # Still under the entry lock: without it the queue and its files may be gone.
        eventfd_write(wake, 1)
    wan_lock_release(&shard.lock)
    return done
