# Owns the committer of a queue's log (one thread a queue: group commit), and the checkpoints of the removal positions. Staging is under
# the queue's lock (queue.pxd); the log itself belongs to the committer alone.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_log cimport *
from pywan._core.c_tables cimport *
from pywan._core.disk_log cimport (
    CHECKPOINT_EVENTS, CHECKPOINT_US, FOR_IDENTITY, FOR_REMOVALS, FOR_REPAIR, LOG_SEGMENTS_KEPT, MOVED_BYTES_MAX,
    MOVED_SEGMENTS_MAX, WAIT_DONE, WAIT_GOES_ON, WAIT_IN_VAIN, WAIT_SLICE_US, disk_wait, lost_patience,
    rest_under_lock, show_log, swap_stages)
from pywan._core.status cimport corrupt
from pywan._core.queue cimport (
    FULL_DROP_OLDEST, durable_log, gateway_queue, log_state, queue_drop_oldest, queue_refresh_pending,
    removed_sum, wake_dispatchers)
from pywan._core.queue_mounts cimport durable_renew


cdef wan_status take_state(gateway_queue *g, uint64_t commit, const wan_queue_counts *counts, uint64_t conflated) noexcept nogil:
    """Lays the queue's state out in `fresh_state`, with these counters. Under the queue's lock."""
    cdef durable_log *d = g.durable
    cdef log_state head
    cdef wan_counter saved[WAN_QUEUE_COUNTERS_COUNT]
    cdef uint64_t pair[2]
    cdef uint32_t p
    cdef wan_status status
    head.commit = commit
    head.partitions = g.queue.partition_count
    head.counters = wan_queue_counts_save(counts, saved)
    head.conflated = conflated
    head.names_bytes = d.dictionary.used
    wan_buffer_empty(&d.fresh_state)
    status = wan_buffer_reserve(&d.fresh_state, sizeof(head) + sizeof(saved) + head.partitions * 16ULL + head.names_bytes)
    if status != WAN_OK:
        return status
    wan_buffer_put(&d.fresh_state, &head, sizeof(head))
    if head.counters:
        wan_buffer_put(&d.fresh_state, saved, head.counters * sizeof(wan_counter))
    for p in range(head.partitions):
        pair[0], pair[1] = g.queue.partitions[p].removed, g.queue.partitions[p].appended
        wan_buffer_put(&d.fresh_state, pair, 16)
    if head.names_bytes:
        wan_buffer_put(&d.fresh_state, d.dictionary.bytes, head.names_bytes)
    return WAN_OK


cdef inline void note_newest_stamp(gateway_queue *g) noexcept nogil:
    """Before a state is taken. Under the queue's lock."""
    if g.clock != NULL:
        g.counts.newest_stamp = max(g.counts.newest_stamp, wan_clock_last(g.clock))


cdef wan_status write_block(durable_log *d, const wan_part *parts, uint32_t count, uint32_t *segment) noexcept nogil:
    cdef wan_status status = wan_log_make_room(&d.log, wan_parts_length(parts, count), d.state.bytes, d.state.used)
    return wan_log_commit(&d.log, parts, count, segment) if status == WAN_OK else status


cdef wan_status add_records(wan_part *parts, uint32_t *count, uint32_t kind, const wan_buffer *records, const wan_buffer *places, wan_buffer *joined,
                            uint64_t start, uint32_t first, uint64_t most, uint32_t *taken) noexcept nogil:
    """A part of the records from `start` on, which is number `first`, with their places: whole ones, up to `most` bytes, at least one. *taken: how
    many."""
    cdef wan_part *part = &parts[count[0]]
    cdef uint64_t length = 0, next_length
    cdef uint32_t n = first
    if start == 0 and records.used + places.used <= most:
        length, n = records.used, records.count
    while start + length < records.used:
        next_length = wan_record_length(<const wan_record *>(records.bytes + start + length))
        if n > first and length + next_length + (n + 1 - first) * sizeof(wan_place) > most:
            break
        length += next_length
        n += 1
    taken[0] = n - first
    wan_buffer_empty(joined)
    if wan_buffer_reserve(joined, taken[0] * sizeof(wan_place)) != WAN_OK:
        return WAN_NO_MEMORY
    part.head.kind = kind
    part.head.count = wan_places_join(<wan_place *>joined.bytes, (<const wan_place *>places.bytes) + first, taken[0])
    part.first, part.first_length = joined.bytes, part.head.count * sizeof(wan_place)
    part.bytes = records.bytes + start
    part.head.length = part.first_length + length
    count[0] += 1
    return WAN_OK


cdef void raise_highest(wan_log_segment *segment, const wan_part *part) noexcept nogil:
    cdef const wan_place *place = <const wan_place *>part.first
    cdef uint32_t n
    for n in range(part.head.count):
        segment.highest[place[n].partition] = max(segment.highest[place[n].partition], place[n].first + place[n].count - 1)


cdef wan_status write_ahead(gateway_queue *g, const wan_buffer *moved, uint64_t *moved_written, uint32_t *moved_count, uint64_t *names_written,
                            uint32_t *names_count) noexcept nogil:
    """Of more than fits into an ordinary block: the first records, in blocks of their own. Holes and the state stay for the one that ends the
    commit, and nothing counts as durable before that or its failure. A crash in between leaves events as they were before what is behind them
    happened."""
    cdef durable_log *d = g.durable
    cdef wan_part parts[2]
    cdef wan_part *last
    cdef uint32_t count, segment, taken = 0
    cdef uint64_t most = wan_log_block_bytes(&d.log), moved_used = moved.used if moved != NULL else 0, places
    cdef wan_status status
    while True:
        places = d.taken_records.count - d.written_count
        if moved != NULL:
            places += moved.count - moved_count[0]
        if moved_used - moved_written[0] + d.taken_records.used - d.written + places * sizeof(wan_place) <= most:
            return WAN_OK
        count = 0
        if moved_written[0] < moved_used:
            status = add_records(parts, &count, WAN_PART_MOVED, moved, &d.moved_places, &d.joined[0], moved_written[0], moved_count[0], most, &taken)
        else:
            if d.taken_names.used:
                count = add_part(parts, count, WAN_PART_NAMES, &d.taken_names)
            status = add_records(parts, &count, WAN_PART_RECORDS, &d.taken_records, &d.taken_places, &d.joined[1], d.written, d.written_count, most, &taken)
        if status == WAN_OK:
            status = write_block(d, parts, count, &segment)
        if status != WAN_OK:
            return status
        last = &parts[count - 1]
        raise_highest(&d.log.segments[segment], last)
        if last.head.kind == WAN_PART_MOVED:
            moved_written[0] += last.head.length - last.first_length
            moved_count[0] += taken
            continue
        d.written += last.head.length - last.first_length
        d.written_count += taken
        if d.taken_names.used:
            wan_buffer_empty(&d.taken_names)
            names_written[0], names_count[0] = d.dictionary.used, d.dictionary.count


cdef wan_status durable_commit(gateway_queue *g, bint checkpoint, wan_buffer *moved) noexcept nogil:
    """Writes what is staged, and before it the records `moved` out of old segments (unless NULL), makes it durable, tells everybody: one
    block, behind others where there is much. The committer's."""
    cdef durable_log *d = g.durable
    cdef wan_part parts[5]
    cdef uint32_t count = 0, p, segment
    cdef uint64_t staged, moved_written = 0, known_names = d.dictionary.used
    cdef uint32_t known_count = d.dictionary.count, moved_count = 0, taken = 0
    cdef wan_status status = WAN_OK
    # What an earlier attempt took and could not write comes first: new stages wait behind it.
    wan_lock_take(&g.lock)
    if d.taken_records.used == 0 and d.taken_holes.used == 0 and d.taken_superseded.used == 0:
        swap_stages(&d.records, &d.taken_records)
        swap_stages(&d.places, &d.taken_places)
        swap_stages(&d.holes, &d.taken_holes)
        swap_stages(&d.names, &d.taken_names)
        swap_stages(&d.superseded, &d.taken_superseded)
        for p in range(g.queue.partition_count):
            d.appended[p] = g.queue.partitions[p].taken = g.queue.partitions[p].appended
    staged = d.staged - d.records.count
    if d.taken_names.used:
        status = wan_buffer_add(&d.dictionary, d.taken_names.bytes, d.taken_names.used)
    # A state says what the queue is once everything taken is applied; with records still staged behind it that would be another queue.
    checkpoint = checkpoint and d.records.used == 0 and d.holes.used == 0
    if status == WAN_OK and checkpoint:
        note_newest_stamp(g)
        status = take_state(g, d.log.commit + 1, &g.counts, g.queue.conflated)
    wan_lock_release(&g.lock)
    if status == WAN_OK:
        status = write_ahead(g, moved, &moved_written, &moved_count, &known_names, &known_count)
    if status == WAN_OK and checkpoint:
        (<log_state *>d.fresh_state.bytes).commit = d.log.commit + 1        # Of the block that it is part of.
    if d.taken_names.used:
        count = add_part(parts, count, WAN_PART_NAMES, &d.taken_names)
    if status == WAN_OK and moved != NULL and moved_written < moved.used:       # Before the holes: some of them may be among these.
        status = add_records(parts, &count, WAN_PART_MOVED, moved, &d.moved_places, &d.joined[0], moved_written, moved_count, NEVER, &taken)
    if status == WAN_OK and d.written < d.taken_records.used:
        status = add_records(parts, &count, WAN_PART_RECORDS, &d.taken_records, &d.taken_places, &d.joined[1], d.written, d.written_count, NEVER, &taken)
    if d.taken_holes.used:
        count = add_part(parts, count, WAN_PART_HOLES, &d.taken_holes)
    if checkpoint:
        count = add_part(parts, count, WAN_PART_STATE, &d.fresh_state)
    if status == WAN_OK and count:
        status = write_block(d, parts, count, &segment)
    if status != WAN_OK:
        d.dictionary.used, d.dictionary.count = known_names, known_count        # Not in the log, so not in the dictionary either.
        if d.written:
            tell_written(g, staged)
        return status
    if count:
        for p in range(g.queue.partition_count):
            if d.appended[p] > d.log.segments[segment].highest[p]:
                d.log.segments[segment].highest[p] = d.appended[p]
    cdef uint64_t used = d.taken_records.used, used_by_holes = d.taken_holes.used, now = wan_monotonic_us()
    wan_buffer_empty(&d.taken_records)
    wan_buffer_rest(&d.taken_records, &d.records_use, used, now)
    used = d.taken_places.used
    wan_buffer_empty(&d.taken_places)
    wan_buffer_rest(&d.taken_places, &d.places_use, used, now)
    wan_buffer_empty(&d.joined[1])
    wan_buffer_rest(&d.joined[1], &d.places_use, used, now)
    d.written = d.written_count = 0
    wan_buffer_empty(&d.taken_holes)
    wan_buffer_rest(&d.taken_holes, &d.holes_use, used_by_holes, now)
    wan_buffer_empty(&d.taken_names)
    wan_lock_take(&g.lock)
    for p in range(g.queue.partition_count):
        if d.appended[p] > g.queue.partitions[p].durable:
            wan_queue_made_durable(&g.queue, p, d.appended[p])
    wan_queue_settle_superseded(&g.queue, &d.taken_superseded)
    if checkpoint:
        state_is_durable(g)
    d.durable = staged
    show_log(&d.view, &d.log, WAN_OK)
    wake_dispatchers(g)
    wan_lock_release(&g.lock)
    used = d.taken_superseded.used
    wan_buffer_empty(&d.taken_superseded)
    wan_buffer_rest(&d.taken_superseded, &d.superseded_use, used, now)
    wan_signal_change(&d.epoch)
    return WAN_OK


cdef void durable_rest(gateway_queue *g) noexcept nogil:
    """The committer's, while nothing is staged: what the stages took goes back."""
    cdef durable_log *d = g.durable
    cdef uint64_t now = wan_monotonic_us()
    wan_buffer_rest(&d.taken_records, &d.records_use, 0, now)
    wan_buffer_rest(&d.taken_places, &d.places_use, 0, now)
    wan_buffer_rest(&d.joined[1], &d.places_use, 0, now)
    wan_buffer_rest(&d.taken_holes, &d.holes_use, 0, now)
    wan_buffer_rest(&d.taken_superseded, &d.superseded_use, 0, now)
    rest_under_lock(&d.records, &d.records_use, &g.lock, now)
    rest_under_lock(&d.places, &d.places_use, &g.lock, now)
    rest_under_lock(&d.holes, &d.holes_use, &g.lock, now)
    rest_under_lock(&d.superseded, &d.superseded_use, &g.lock, now)


cdef void tell_written(gateway_queue *g, uint64_t staged) noexcept nogil:
    """Of a commit that broke off, what was written ahead is on the disk and may be sent: where the store is full, only what leaves makes room
    for the rest. Up to the first event that is a hole by now: what took its place may be in the rest, and lost with it, so nobody is to be
    told that it is durable or settled. `staged`: as it will be durable with all of it."""
    cdef durable_log *d = g.durable
    cdef wan_partition *partition
    cdef const wan_place *place = <const wan_place *>d.taken_places.bytes
    cdef uint32_t told = 0
    wan_lock_take(&g.lock)
    while told < d.written_count:
        partition = &g.queue.partitions[place.partition]
        if place.first > partition.durable:
            if wan_queue_at(&g.queue, partition, place.first) == NULL:
                break
            wan_queue_made_durable(&g.queue, place.partition, place.first)
        told += 1
        place += 1
    d.durable = staged - (d.taken_records.count - told)
    wake_dispatchers(g)
    wan_lock_release(&g.lock)


cdef void state_is_durable(gateway_queue *g) noexcept nogil:
    """The fresh state is the newest one on the disk now."""
    cdef durable_log *d = g.durable
    cdef uint32_t p
    swap_stages(&d.state, &d.fresh_state)
    d.removed_at_checkpoint = 0
    for p in range(g.queue.partition_count):
        d.removed[p] = state_positions(&d.state)[2 * p]
        d.removed_at_checkpoint += d.removed[p]
    d.checkpoint_us = wan_monotonic_us()


cdef inline bint state_is_newest(const durable_log *d) noexcept nogil:
    return d.state.used != 0 and (<const log_state *>d.state.bytes).commit == d.log.commit


cdef inline uint64_t repairs_of(const wan_buffer *state) noexcept nogil:
    """How often the clock had been repaired when this state was taken."""
    cdef const log_state *head = <const log_state *>state.bytes
    cdef wan_queue_counts counts
    if state.used == 0 or wan_queue_counts_load(&counts, <const wan_counter *>(head + 1), head.counters) != WAN_OK:
        return 0
    return counts.clock_repairs


cdef inline uint64_t *state_positions(const wan_buffer *state) noexcept nogil:
    return <uint64_t *>(state.bytes + sizeof(log_state) + (<log_state *>state.bytes).counters * sizeof(wan_counter))


cdef inline uint32_t add_part(wan_part *parts, uint32_t count, uint32_t kind, const wan_buffer *stage) noexcept nogil:
    parts[count].head.kind = kind
    parts[count].head.count = stage.count
    parts[count].head.length = stage.used
    parts[count].bytes = stage.bytes
    parts[count].first, parts[count].first_length = NULL, 0
    return count + 1


cdef uint32_t segments_done(const gateway_queue *g, const wan_buffer *state) noexcept nogil:
    """How many of the oldest segments hold no event that a queue with this state has; the one in writing never counts."""
    cdef durable_log *d = g.durable
    cdef uint32_t done = 0, p
    while done < d.log.writing:
        for p in range(g.queue.partition_count):
            if d.log.segments[done].highest[p] > state_positions(state)[2 * p]:
                return done
        done += 1
    return done


cdef bint log_is_long(gateway_queue *g) noexcept nogil:
    """Whether most of the log is history: conflation leaves it mostly dead. At 2.4 times what lives, so that with the segments
    made ahead it stays under three times."""
    cdef durable_log *d = g.durable
    cdef uint64_t written = 0
    cdef uint32_t n
    if d.log.writing < LOG_SEGMENTS_KEPT:
        return False
    for n in range(d.log.writing + 1):
        written += d.log.segments[n].bytes
    return written * 5 > 12 * wan_read(&g.queue.bytes)


cdef wan_status durable_shorten(gateway_queue *g) noexcept nogil:
    """Drops the oldest segments whose events are all removed, as of the state just made durable; then moves what lives out of
    the oldest ones, as long as the log is long. WAN_EMPTY: it still is, and it has to be tried again."""
    cdef durable_log *d = g.durable
    cdef uint32_t done = segments_done(g, &d.state) if d.state.used else 0
    cdef uint64_t last = d.log.segments[d.log.writing].number
    cdef wan_status status
    if done:
        status = wan_log_drop_first(&d.log, done, d.state.bytes, d.state.used)
        if status != WAN_OK:
            return status
    # Up to where it was when this began: once around. Near the limit of the store with what that keeps.
    if not log_is_long(g):
        return WAN_OK
    if not wan_log_begin_way(&d.log):
        return WAN_EMPTY
    status = WAN_OK
    while status == WAN_OK and log_is_long(g) and d.log.segments[0].number < last:
        status = durable_move_oldest(g, last)
    wan_log_end_way(&d.log)
    wan_buffer_close(&d.moved)
    wan_buffer_close(&d.moved_places)
    wan_buffer_close(&d.joined[0])
    return status


cdef wan_status durable_move_oldest(gateway_queue *g, uint64_t last) noexcept nogil:
    """Out of some segments before the one numbered `last`: as much as what is kept of the store has room for. WAN_EMPTY: it has none, or they have to
    stay for now."""
    cdef durable_log *d = g.durable
    cdef wan_log_reader reader
    cdef uint64_t most = min(<uint64_t>MOVED_BYTES_MAX, wan_log_record_bytes(&d.log) // 2), staged
    cdef uint32_t count = 0, p, n
    cdef wan_status status = WAN_OK
    memset(&reader, 0, sizeof(reader))
    reader.owner = g
    reader.part = move_part
    wan_buffer_empty(&d.moved)
    wan_buffer_empty(&d.moved_places)
    # Several at once, so that more goes than comes in the block that is written meanwhile.
    while (status == WAN_OK and count < d.log.writing and count < MOVED_SEGMENTS_MAX and d.moved.used < most
           and d.log.segments[count].number < last):
        status = wan_log_read_segment(&d.log, count, &reader)
        count += 1
    wan_item_set_empty(&d.of_moved)
    if status != WAN_OK:
        return status
    wan_lock_take(&g.lock)
    staged = d.records.used + d.places.used + d.taken_records.used + d.taken_places.used - d.written
    wan_lock_release(&g.lock)
    if wan_log_way(&d.log) < d.moved.used + d.moved_places.used + staged + 2 * wan_log_segment_bytes(&d.log):     # Written in part, it would only be there twice.
        return WAN_EMPTY
    # With everything staged, so that what took an event's place meanwhile is on the disk before the event's segment is gone.
    status = durable_commit(g, True, &d.moved)
    if status == WAN_OK and not state_is_newest(d):       # More came behind what an earlier attempt had taken.
        status = durable_commit(g, True, NULL)
    if status != WAN_OK:
        return status
    for p in range(g.queue.partition_count):
        for n in range(count):
            if d.log.segments[n].highest[p] > d.log.segments[d.log.writing].highest[p]:
                d.log.segments[d.log.writing].highest[p] = d.log.segments[n].highest[p]
    if not state_is_newest(d):      # Its holes would be counted by no state and found in no block.
        return WAN_EMPTY
    return wan_log_drop_first(&d.log, count, d.state.bytes, d.state.used)


cdef wan_status durable_relieve(gateway_queue *g) noexcept nogil:
    """The log or the disk is full, so what is staged cannot be written, nor a checkpoint behind it: the state of what is durable goes into
    the manifest, and the segments that are done by it go. WAN_EMPTY: there are none."""
    cdef durable_log *d = g.durable
    cdef wan_queue_counts counts
    cdef wan_status status
    cdef uint64_t not_durable = 0, conflated
    cdef uint32_t p, done
    wan_lock_take(&g.lock)
    note_newest_stamp(g)
    counts, conflated = g.counts, g.queue.conflated
    for p in range(g.queue.partition_count):
        not_durable += g.queue.partitions[p].appended - g.queue.partitions[p].durable
    counts.queued -= not_durable
    counts.received -= min(not_durable, counts.received)
    forget_holes(g, &conflated, &counts, &d.holes)
    forget_holes(g, &conflated, &counts, &d.taken_holes)
    status = take_state(g, d.log.commit, &counts, conflated)
    if status == WAN_OK:
        for p in range(g.queue.partition_count):
            state_positions(&d.fresh_state)[2 * p + 1] = g.queue.partitions[p].durable
    wan_lock_release(&g.lock)
    if status != WAN_OK:
        return status
    done = segments_done(g, &d.fresh_state)
    if done == 0:
        return WAN_EMPTY
    status = wan_log_drop_first(&d.log, done, d.fresh_state.bytes, d.fresh_state.used)
    if status == WAN_OK:
        wan_lock_take(&g.lock)
        state_is_durable(g)
        wan_lock_release(&g.lock)
    return status


cdef bint durable_make_room(gateway_queue *g) noexcept nogil:
    """By what is done; else, if that is the policy, by giving up the oldest events. False: the log stays full."""
    cdef wan_status status = durable_relieve(g)
    while status == WAN_EMPTY and g.full_policy == FULL_DROP_OLDEST and durable_drop_oldest(g):
        status = durable_relieve(g)
    return status == WAN_OK


cdef bint durable_drop_oldest(gateway_queue *g) noexcept nogil:
    """False: no segment would go with them, since there is but one, or some are on their way and it has to stay."""
    cdef bint dropped = g.durable.log.writing != 0
    cdef uint32_t p
    wan_lock_take(&g.lock)
    for p in range(g.queue.partition_count):
        dropped = dropped and g.queue.partitions[p].peeked == g.queue.partitions[p].removed
    dropped = dropped and queue_drop_oldest(g, g.queue.partition_count) != 0
    for p in range(g.dispatchers):
        queue_refresh_pending(g, p)
    wan_lock_release(&g.lock)
    return dropped


cdef void forget_holes(gateway_queue *g, uint64_t *conflated, wan_queue_counts *counts, const wan_buffer *holes) noexcept nogil:
    """Takes out of a state what holes that are not durable yet stand for; those of removed sequences are part of it."""
    cdef const wan_hole *hole = <const wan_hole *>holes.bytes
    cdef uint32_t n
    for n in range(holes.count):
        if hole[n].sequence > g.queue.partitions[hole[n].partition].removed:
            count_hole(conflated, counts, hole[n].reason, -1)


cdef wan_status move_part(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
    cdef gateway_queue *g = <gateway_queue *>owner
    cdef wan_place_walk walk
    cdef wan_place place
    cdef wan_partition *partition
    cdef wan_status status
    if head.kind != WAN_PART_RECORDS and head.kind != WAN_PART_MOVED:
        return WAN_OK
    status = wan_places_begin(&walk, data, head.length, head.count)
    place.count = 1
    wan_lock_take(&g.lock)
    while status == WAN_OK and wan_places_next(&walk, &place.partition, &place.first):
        if place.partition >= g.queue.partition_count or wan_record_check(walk.at, walk.left) != WAN_OK:
            status = corrupt("a record that is to be moved is damaged")
            break
        partition = &g.queue.partitions[place.partition]
        if partition.removed < place.first <= partition.appended and wan_queue_at(&g.queue, partition, place.first) != NULL:
            status = move_once(g.durable, &place, <const wan_record *>walk.at)
        wan_places_pass(&walk, wan_record_length(<const wan_record *>walk.at))
    wan_lock_release(&g.lock)
    return status


cdef wan_status move_once(durable_log *d, const wan_place *place, const wan_record *record) noexcept nogil:
    """Unless it is there: where moving failed, or a crash ended it, the log has copies."""
    cdef uint64_t *slot
    cdef uint64_t at = d.moved_places.used
    cdef wan_status status = wan_item_set_find(&d.of_moved, &d.moved_places, place, &slot)
    if status == WAN_OK and slot[0] == 0:
        status = wan_buffer_reserve(&d.moved_places, sizeof(wan_place))
        if status == WAN_OK:
            status = wan_buffer_add(&d.moved, record, wan_record_length(record))
        if status == WAN_OK:
            wan_buffer_put(&d.moved_places, place, sizeof(wan_place))
            wan_item_set_choose(&d.of_moved, slot, at)
    return status


cdef void durable_loop(gateway_queue *g) noexcept nogil:
    """The committer: writes whenever something is staged (after `flush_ms` where nobody waits), and a checkpoint at least
    every second or 10,000 removed events. Returns when told to stop and nothing is left to write, or the disk has taken nothing for long."""
    cdef durable_log *d = g.durable
    cdef uint32_t seen
    cdef uint64_t staged, removed, now, failing_since = 0
    cdef bint stopping, checkpoint, repaired
    while True:
        seen = __atomic_load_n(&d.work, __ATOMIC_ACQUIRE)
        stopping = wan_flag_read(&d.stop) != 0
        wan_flag_set(&d.waiting, 1)         # Before the look: what is staged behind it is then signalled.
        wan_lock_take(&g.lock)
        staged = d.records.used + d.holes.used + d.superseded.used + d.taken_records.used + d.taken_holes.used + d.taken_superseded.used
        removed = removed_sum(g)
        repaired = g.counts.clock_repairs != repairs_of(&d.state)
        wan_lock_release(&g.lock)
        now = wan_monotonic_us()
        checkpoint = (removed != d.removed_at_checkpoint and (
            stopping or removed - d.removed_at_checkpoint >= CHECKPOINT_EVENTS or now - d.checkpoint_us >= CHECKPOINT_US)
            or repaired or log_is_long(g) and d.log.commit != d.shortened_commit)
        if staged == 0 and not checkpoint and wan_read(&d.wanted_incarnation) == 0 and not (d.shorten_again_us and now >= d.shorten_again_us and log_is_long(g)):
            if stopping:
                wan_log_seal(&d.log, d.state.bytes, d.state.used)      # Were it to fail, the log is as after a crash.
                return
            durable_rest(g)
            wan_wait_change(&d.work, seen, 100)
            wan_flag_set(&d.waiting, 0)
            if not d.synchronous and __atomic_load_n(&d.work, __ATOMIC_ACQUIRE) != seen and not wan_flag_read(&d.stop):
                # The first record of a group came: others have `flush_ms` to join it.
                wan_wait_change(&d.epoch, __atomic_load_n(&d.epoch, __ATOMIC_ACQUIRE), d.flush_ms)
            continue
        wan_flag_set(&d.waiting, 0)
        if durable_step(g, checkpoint) == WAN_OK:
            failing_since = 0
        elif stopping and (d.log.broken != NULL or lost_patience(1, &failing_since, wan_monotonic_us())):
            return
        else:
            wan_wait_change(&d.work, __atomic_load_n(&d.work, __ATOMIC_ACQUIRE), 100)      # Then it is tried again.


cdef wan_status durable_step(gateway_queue *g, bint checkpoint) noexcept nogil:
    """One round of the committer: what was staged when it began is on the disk, and with `checkpoint` what was removed. Not WAN_OK: the disk
    did not take it, and enqueues are refused until it does."""
    cdef durable_log *d = g.durable
    cdef bint late = d.taken_records.used != 0 or d.taken_holes.used != 0 or d.taken_superseded.used != 0
    # Not where much else is queued: what is kept would go to that.
    cdef bint makes_way = wan_flag_read(&d.replaying) and wan_read(&g.queue.bytes) <= wan_log_record_bytes(&d.log) and wan_log_begin_way(&d.log)
    cdef wan_status status = durable_renew(g)
    if status == WAN_OK:
        status = durable_write(g, checkpoint)
    if status == WAN_OK and late:       # An attempt that failed had taken that; what was staged since comes behind it.
        status = durable_write(g, checkpoint)
    if makes_way:
        wan_log_end_way(&d.log)
    if status == WAN_OK and (checkpoint or log_is_long(g)):
        # Where it failed it is tried again later; what is durable already is not less so.
        d.shorten_again_us = wan_monotonic_us() + CHECKPOINT_US if durable_shorten(g) == WAN_EMPTY else 0
        d.shortened_commit = d.log.commit
    wan_lock_take(&g.lock)
    show_log(&d.view, &d.log, status)
    wan_lock_release(&g.lock)
    if status != WAN_OK:
        wan_signal_change(&d.epoch)
    return status


cdef wan_status durable_write(gateway_queue *g, bint checkpoint) noexcept nogil:
    """A commit, for which room is made where there is none."""
    cdef wan_status status = durable_commit(g, checkpoint, NULL)
    if status == WAN_FULL and log_is_long(g) and durable_shorten(g) == WAN_OK:
        status = durable_commit(g, checkpoint, NULL)
    while status == WAN_FULL and durable_make_room(g):      # Each time by a segment at least.
        status = durable_commit(g, checkpoint, NULL)
    return status


cdef disk_wait durable_begin_wait(gateway_queue *g, int what, uint64_t limit_us) noexcept nogil:
    cdef disk_wait wait
    wait.what, wait.failing_since_us, wait.deadline_us = what, 0, wan_monotonic_us() + limit_us
    wan_lock_take(&g.lock)
    wait.wanted = removed_sum(g) if what == FOR_REMOVALS else g.durable.staged
    wan_lock_release(&g.lock)
    return wait


cdef int durable_wait(gateway_queue *g, disk_wait *wait) noexcept nogil:
    """Until all that was staged is on the disk; or what was removed is removed there too, by the checkpoint that the committer makes within a
    second; or the identity that is wanted is taken; or a state has the last repair of the clock. WAIT_IN_VAIN after the deadline, or when the disk has taken nothing for long."""
    cdef durable_log *d = g.durable
    cdef uint64_t now = wan_monotonic_us(), slice_end = now + WAIT_SLICE_US
    cdef int failing
    cdef uint32_t seen
    cdef bint done
    while True:
        seen = __atomic_load_n(&d.epoch, __ATOMIC_ACQUIRE)
        wan_lock_take(&g.lock)
        if wait.what == FOR_IDENTITY:
            done = d.wanted_incarnation == 0
        elif wait.what == FOR_REPAIR:
            done = repairs_of(&d.state) == g.counts.clock_repairs
        else:
            done = (d.removed_at_checkpoint if wait.what == FOR_REMOVALS else d.durable) >= wait.wanted
        failing = d.view.failing
        wan_lock_release(&g.lock)
        now = wan_monotonic_us()
        if done:
            return WAIT_DONE
        if (now >= wait.deadline_us or wan_flag_read(&d.ended) or failing == WAN_BROKEN
                or lost_patience(failing, &wait.failing_since_us, now)):
            return WAIT_IN_VAIN
        if now >= slice_end:
            return WAIT_GOES_ON
        wan_wait_change(&d.epoch, seen, <uint32_t>(WAIT_SLICE_US // 1000))
