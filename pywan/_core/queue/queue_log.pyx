# Owns the blocks of a queue's log: what a round takes of the pending items, how they lie in blocks, and what is durable
# then.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.log.committer cimport committer_made_durable, committer_wake_waiters, committer_write
from pywan._core.log.log_pending cimport pending_written, pending_take
from pywan._core.queue.queue cimport durable_log, gateway_queue, logged_places, wake_dispatchers
from pywan._core.queue.queue_checkpoint cimport note_newest_stamp, state_is_durable, take_state


cdef wan_status write_block(durable_log *durable, const wan_part *parts, uint32_t count, bint syncs,
                            uint32_t *segment) noexcept nogil:
    cdef wan_status status = wan_log_make_room(&durable.committer.log, wan_parts_length(parts, count),
                                               durable.state.bytes, durable.state.used)
    return committer_write(&durable.committer, parts, count, syncs, segment) if status == WAN_OK else status


cdef inline uint32_t add_part(wan_part *parts, uint32_t count, uint32_t kind, const wan_buffer *items) noexcept nogil:
    parts[count].head.kind = kind
    parts[count].head.count = items.count
    parts[count].head.length = items.used
    parts[count].bytes = items.bytes
    parts[count].first, parts[count].first_length = NULL, 0
    return count + 1


cdef wan_status add_records(wan_part *parts, uint32_t *count, uint32_t kind, const wan_buffer *records,
                            const wan_buffer *positions, wan_buffer *joined,
                            uint64_t start, uint32_t first, uint64_t most, uint32_t *taken) noexcept nogil:
    """Adds a part with the records from the byte `start` on, and their positions. The first one is number `first`. The
    part holds whole records, up to `most` bytes, and at least one. *taken: how many."""
    cdef wan_part *part = &parts[count[0]]
    cdef uint64_t length = 0, next_length
    cdef uint32_t n = first
    if start == 0 and records.used + positions.used <= most:
        length, n = records.used, records.count
    while start + length < records.used:
        next_length = wan_record_length(<const wan_record *>(records.bytes + start + length))
        if n > first and length + next_length + (n + 1 - first) * sizeof(wan_position) > most:
            break
        length += next_length
        n += 1
    taken[0] = n - first
    wan_buffer_empty(joined)
    if wan_buffer_reserve(joined, taken[0] * sizeof(wan_position)) != WAN_OK:
        return WAN_NO_MEMORY
    part.head.kind = kind
    part.head.count = wan_positions_join(<wan_position *>joined.bytes, (<const wan_position *>positions.bytes) + first,
                                         taken[0])
    part.first, part.first_length = joined.bytes, part.head.count * sizeof(wan_position)
    part.bytes = records.bytes + start
    part.head.length = part.first_length + length
    count[0] += 1
    return WAN_OK


cdef void raise_highest(wan_log_segment *segment, const wan_part *part) noexcept nogil:
    cdef const wan_position *position = <const wan_position *>part.first
    cdef uint32_t n
    for n in range(part.head.count):
        segment.highest[position[n].partition] = max(segment.highest[position[n].partition],
                                                     position[n].first + position[n].count - 1)


cdef wan_status add_places(durable_log *durable, wan_part *parts, uint32_t *count, uint64_t through,
                           uint64_t *written) noexcept nogil:
    """Adds a part with the places of the records up to number `through` that are in no part yet. *written: the bytes of
    the places taken that are in the log when the block is.

    A run of records may end in a later block. Then the place is the one of the last record in this block."""
    cdef logged_places *run
    cdef wan_source_place place
    cdef wan_source_place *last = NULL
    cdef wan_status status
    wan_buffer_empty(&durable.block_places)
    written[0] = durable.places_written
    while written[0] < durable.places.taken.used:
        run = <logged_places *>(durable.places.taken.bytes + written[0])
        if run.record > through:
            break
        place = run.first
        place.through += min(run.count - 1, through - run.record)
        if (last != NULL and last.source[0] == place.source[0] and last.source[1] == place.source[1]
                and last.partition == place.partition):
            last[0] = place
        else:
            status = wan_buffer_add(&durable.block_places, &place, sizeof(place))
            if status != WAN_OK:
                return status
            last = <wan_source_place *>(durable.block_places.bytes + durable.block_places.used - sizeof(place))
        if run.record + run.count - 1 > through:
            break
        written[0] += sizeof(logged_places)
    if durable.block_places.used:
        count[0] = add_part(parts, count[0], WAN_PART_PLACES, &durable.block_places)
    return WAN_OK


cdef void places_are_written(durable_log *durable, uint64_t written) noexcept nogil:
    """The block with `block_places` is in the log. Without memory a later state lacks them, and a crash after that
    makes the queue take some events again."""
    durable.places_written = written
    wan_sources_load(&durable.logged, durable.block_places.bytes, durable.block_places.used)


cdef wan_status write_ahead(gateway_queue *gateway, const wan_buffer *moved, uint64_t *moved_written,
                            uint32_t *moved_count, uint64_t *names_written,
                            uint32_t *names_count, uint64_t first) noexcept nogil:
    """Writes the first records in blocks of their own, if there are more than fit into an ordinary block. `first`: the
    number of the first record taken.

    Holes and the state stay for the block that ends the commit. Nothing counts as durable before that block, or its
    failure. A crash in between leaves the events as they were before the changes behind them happened."""
    cdef durable_log *durable = gateway.durable
    cdef wan_part parts[3]
    cdef wan_part *last
    cdef uint32_t count, segment, taken = 0
    cdef uint64_t most = wan_log_block_bytes(&durable.committer.log), positions, places_written
    cdef uint64_t moved_used = moved.used if moved != NULL else 0, left
    cdef wan_status status
    while True:
        positions = durable.records.taken.count - durable.written_count
        if moved != NULL:
            positions += moved.count - moved_count[0]
        left = moved_used - moved_written[0] + durable.records.taken.used - durable.written
        if left + positions * sizeof(wan_position) <= most:
            return WAN_OK
        count = 0
        if moved_written[0] < moved_used:
            status = add_records(parts, &count, WAN_PART_MOVED, moved, &durable.moved_positions, &durable.joined[0],
                                 moved_written[0], moved_count[0], most, &taken)
        else:
            if durable.names.taken.used:
                count = add_part(parts, count, WAN_PART_NAMES, &durable.names.taken)
            status = add_records(parts, &count, WAN_PART_RECORDS, &durable.records.taken, &durable.positions.taken,
                                 &durable.joined[1], durable.written, durable.written_count, most, &taken)
        last = &parts[count - 1]
        if status == WAN_OK and last.head.kind == WAN_PART_RECORDS:
            status = add_places(durable, parts, &count, first + durable.written_count + taken - 1, &places_written)
        if status == WAN_OK:
            status = write_block(durable, parts, count, False, &segment)
        if status != WAN_OK:
            return status
        raise_highest(&durable.committer.log.segments[segment], last)
        if last.head.kind == WAN_PART_MOVED:
            moved_written[0] += last.head.length - last.first_length
            moved_count[0] += taken
            continue
        durable.written += last.head.length - last.first_length
        durable.written_count += taken
        places_are_written(durable, places_written)
        if durable.names.taken.used:
            wan_buffer_empty(&durable.names.taken)
            names_written[0], names_count[0] = durable.dictionary.used, durable.dictionary.count


cdef void report_written_ahead(gateway_queue *gateway, uint64_t given) noexcept nogil:
    """Makes durable what a commit wrote ahead before it broke off. It is on the disk and may be sent: if the store is
    full, only events that leave make room for the rest.

    This stops at the first event that is a hole by now. What took its place may be in the rest, and be lost with it, so
    it must not be reported as durable or settled. `given`: as many records as are durable with all of the rest."""
    cdef durable_log *durable = gateway.durable
    cdef wan_partition *partition
    cdef const wan_position *position = <const wan_position *>durable.positions.taken.bytes
    cdef uint32_t reported = 0
    wan_lock_take(&gateway.lock)
    while reported < durable.written_count:
        partition = &gateway.queue.partitions[position.partition]
        if position.first > partition.durable:
            if wan_queue_at(&gateway.queue, partition, position.first) == NULL:
                break
            wan_queue_made_durable(&gateway.queue, position.partition, position.first)
        reported += 1
        position += 1
    durable.committer.durable = given - (durable.records.taken.count - reported)
    wake_dispatchers(gateway)
    wan_lock_release(&gateway.lock)


cdef void finish_commit(gateway_queue *gateway, uint64_t given, bint checkpoint) noexcept nogil:
    """Reports that all that was taken is on the disk, and empties it."""
    cdef durable_log *durable = gateway.durable
    cdef uint64_t used = durable.positions.taken.used, now = wan_monotonic_us()
    cdef uint32_t p
    pending_written(&durable.records, now)
    pending_written(&durable.positions, now)
    pending_written(&durable.holes, now)
    pending_written(&durable.names, now)
    pending_written(&durable.places, now)
    durable.places_written = 0
    wan_buffer_empty(&durable.joined[1])
    wan_buffer_rest(&durable.joined[1], &durable.positions.use, used, now)
    durable.written = durable.written_count = 0
    wan_lock_take(&gateway.lock)
    for p in range(gateway.queue.partition_count):
        if durable.appended[p] > gateway.queue.partitions[p].durable:
            wan_queue_made_durable(&gateway.queue, p, durable.appended[p])
    wan_queue_remove_superseded(&gateway.queue, &durable.superseded.taken)
    if checkpoint:
        state_is_durable(gateway)
    committer_made_durable(&durable.committer, given)
    wake_dispatchers(gateway)
    wan_lock_release(&gateway.lock)
    pending_written(&durable.superseded, now)
    committer_wake_waiters(&durable.committer)


cdef wan_status durable_commit(gateway_queue *gateway, bint checkpoint, wan_buffer *moved) noexcept nogil:
    """Writes what is pending, makes it durable, and reports it. The records `moved` out of old segments (unless NULL)
    come before it. All this is one block; if there is much, other blocks come before that. The caller has the
    committer's role."""
    return commit(gateway, checkpoint, moved, False)


cdef wan_status durable_write_block(gateway_queue *gateway) noexcept nogil:
    """The same for a caller that has the role, if one write behind the last one is enough. WAN_SLOW: it is not, and
    nothing was done."""
    return commit(gateway, False, NULL, True)


cdef bint is_one_write(const durable_log *durable) noexcept nogil:
    """Whether what is pending is one block, and the log takes the block as it is. Most of the positions are joined in
    the block, so it is no longer than this says. Under the queue's lock."""
    cdef uint64_t length = durable.records.pending.used + durable.positions.pending.used
    if (has_taken(durable) or wan_read(&durable.wanted_numbering)
            or length > wan_log_block_bytes(&durable.committer.log)):
        return False
    return wan_log_takes(&durable.committer.log,
                         length + durable.holes.pending.used + durable.names.pending.used
                         + durable.places.pending.used + 4 * sizeof(wan_part_head))


cdef wan_status commit(gateway_queue *gateway, bint checkpoint, wan_buffer *moved, bint in_one_write) noexcept nogil:
    cdef durable_log *durable = gateway.durable
    cdef wan_part parts[6]
    cdef uint32_t count = 0, p, segment
    cdef uint64_t given, moved_written = 0, known_names = durable.dictionary.used, places_written = 0
    cdef uint32_t known_count = durable.dictionary.count, moved_count = 0, taken = 0
    cdef wan_status status = WAN_OK
    # If an earlier attempt took items and could not write them, they come first. What is pending waits behind them.
    wan_lock_take(&gateway.lock)
    if in_one_write and not is_one_write(durable):
        wan_lock_release(&gateway.lock)
        return WAN_SLOW
    if not has_taken(durable):
        pending_take(&durable.records)
        pending_take(&durable.positions)
        pending_take(&durable.holes)
        pending_take(&durable.names)
        pending_take(&durable.superseded)
        pending_take(&durable.places)
        for p in range(gateway.queue.partition_count):
            durable.appended[p] = gateway.queue.partitions[p].taken = gateway.queue.partitions[p].appended
    given = durable.committer.given - durable.records.pending.count
    if durable.names.taken.used:
        status = wan_buffer_add(&durable.dictionary, durable.names.taken.bytes, durable.names.taken.used)
    # A state says what the queue is once everything taken is applied. With records pending behind it that would be
    # another queue.
    checkpoint = checkpoint and durable.records.pending.used == 0 and durable.holes.pending.used == 0
    if status == WAN_OK and checkpoint:
        note_newest_stamp(gateway)
        status = take_state(gateway, durable.committer.log.commit + 1, &gateway.counts, gateway.queue.conflated,
                            &durable.places.taken)
    wan_lock_release(&gateway.lock)
    if status == WAN_OK:
        status = write_ahead(gateway, moved, &moved_written, &moved_count, &known_names, &known_count,
                             given - durable.records.taken.count + 1)
    if status == WAN_OK and checkpoint:
        # The commit of the block that the state is part of.
        (<wan_queue_state *>durable.fresh_state.bytes).commit = durable.committer.log.commit + 1
    if durable.names.taken.used:
        count = add_part(parts, count, WAN_PART_NAMES, &durable.names.taken)
    # The moved records come before the holes: some of the holes may be among them.
    if status == WAN_OK and moved != NULL and moved_written < moved.used:
        status = add_records(parts, &count, WAN_PART_MOVED, moved, &durable.moved_positions, &durable.joined[0],
                             moved_written, moved_count, NO_LIMIT, &taken)
    if status == WAN_OK and durable.written < durable.records.taken.used:
        status = add_records(parts, &count, WAN_PART_RECORDS, &durable.records.taken, &durable.positions.taken,
                             &durable.joined[1], durable.written, durable.written_count, NO_LIMIT, &taken)
    if status == WAN_OK:
        status = add_places(durable, parts, &count, given, &places_written)
    if durable.holes.taken.used:
        count = add_part(parts, count, WAN_PART_HOLES, &durable.holes.taken)
    if checkpoint:
        count = add_part(parts, count, WAN_PART_STATE, &durable.fresh_state)
    if status == WAN_OK and count:
        # A block with a state is synced: others are told that the disk has what the state says.
        status = write_block(durable, parts, count, checkpoint, &segment)
    if status != WAN_OK:
        # The names are not in the log, so they are not in the dictionary either.
        durable.dictionary.used, durable.dictionary.count = known_names, known_count
        if durable.written:
            report_written_ahead(gateway, given)
        return status
    if count:
        places_are_written(durable, places_written)
        for p in range(gateway.queue.partition_count):
            if durable.appended[p] > durable.committer.log.segments[segment].highest[p]:
                durable.committer.log.segments[segment].highest[p] = durable.appended[p]
    finish_commit(gateway, given, checkpoint)
    return WAN_OK
