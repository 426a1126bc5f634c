# Owns the shortening of a queue's log. Segments whose events are all removed go. Records that live are moved out of old
# segments. A full log makes room.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *
from pywan._core.c_store cimport *
from pywan._core.log.disk_log cimport LOG_SEGMENTS_KEPT, MOVED_SEGMENTS_MAX
from pywan._core.queue.queue cimport (
    FULL_DROP_OLDEST, durable_log, gateway_queue, queue_drop_oldest, queue_refresh_ready)
from pywan._core.queue.queue_checkpoint cimport (
    count_hole, note_newest_stamp, state_is_durable, state_is_newest, state_positions, take_state)
from pywan._core.queue.queue_log cimport durable_commit
from pywan._core.base.status cimport corrupt


cdef enum:
    MOVED_BYTES_MAX = 16 << 20      # At most so many bytes are moved at once, and up to a segment more.


cdef uint32_t segments_done(const gateway_queue *gateway, const wan_buffer *state) noexcept nogil:
    """How many of the oldest segments hold no event that a queue with this state has. The segment that is written now
    never counts."""
    cdef durable_log *durable = gateway.durable
    cdef uint32_t done = 0, p
    while done < durable.committer.log.writing:
        for p in range(gateway.queue.partition_count):
            if durable.committer.log.segments[done].highest[p] > state_positions(state)[2 * p]:
                return done
        done += 1
    return done


cdef bint log_is_long(gateway_queue *gateway) noexcept nogil:
    """Whether most of the log is history: conflation leaves few records in it that live. The limit is 2.4 times what
    lives, so that the log stays under three times with the segments that are made ahead."""
    cdef durable_log *durable = gateway.durable
    cdef uint64_t written = 0
    cdef uint32_t n
    if durable.committer.log.writing < LOG_SEGMENTS_KEPT:
        return False
    for n in range(durable.committer.log.writing + 1):
        written += durable.committer.log.segments[n].bytes
    return written * 5 > 12 * wan_read(&gateway.queue.bytes)


cdef wan_status durable_shorten(gateway_queue *gateway) noexcept nogil:
    """Drops the oldest segments whose events are all removed, as of the state that was just made durable. Then it moves
    the records that live out of the oldest segments, as long as the log is long. WAN_EMPTY: it is still long, and the
    caller has to try again."""
    cdef durable_log *durable = gateway.durable
    cdef uint32_t done = segments_done(gateway, &durable.state) if durable.state.used else 0
    cdef uint64_t last = durable.committer.log.segments[durable.committer.log.writing].number
    cdef wan_status status
    if done:
        status = wan_log_drop_first(&durable.committer.log, done, durable.state.bytes, durable.state.used)
        if status != WAN_OK:
            return status
    # At most up to the segment that was written when this began. Near the limit of the store this uses the reserve.
    if not log_is_long(gateway):
        return WAN_OK
    if not wan_log_take_reserve(&durable.committer.log):
        return WAN_EMPTY
    status = WAN_OK
    while status == WAN_OK and log_is_long(gateway) and durable.committer.log.segments[0].number < last:
        status = durable_move_oldest(gateway, last)
    wan_log_give_back_reserve(&durable.committer.log)
    wan_buffer_close(&durable.moved)
    wan_buffer_close(&durable.moved_positions)
    wan_buffer_close(&durable.joined[0])
    return status


cdef wan_status durable_move_oldest(gateway_queue *gateway, uint64_t last) noexcept nogil:
    """Moves the records that live out of some segments before the one numbered `last`: as many as the reserve of the
    store has room for. WAN_EMPTY: there is no room, or the segments have to stay for now."""
    cdef durable_log *durable = gateway.durable
    cdef wan_log_reader reader
    cdef uint64_t most = min(<uint64_t>MOVED_BYTES_MAX,
                             wan_log_record_bytes(&durable.committer.log) // 2), pending, need
    cdef wan_log_segment *segments
    cdef wan_log_segment *writing
    cdef uint32_t count = 0, p, n
    cdef wan_status status = WAN_OK
    memset(&reader, 0, sizeof(reader))
    reader.owner = gateway
    reader.part = move_part
    wan_buffer_empty(&durable.moved)
    wan_buffer_empty(&durable.moved_positions)
    # Several segments at once, so that more bytes go than come in the block that is written meanwhile.
    while (status == WAN_OK and count < durable.committer.log.writing and count < MOVED_SEGMENTS_MAX
            and durable.moved.used < most
           and durable.committer.log.segments[count].number < last):
        status = wan_log_read_segment(&durable.committer.log, count, &reader)
        count += 1
    wan_item_set_empty(&durable.of_moved)
    if status != WAN_OK:
        return status
    wan_lock_take(&gateway.lock)
    pending = durable.records.pending.used + durable.positions.pending.used
    pending += durable.records.taken.used + durable.positions.taken.used - durable.written
    wan_lock_release(&gateway.lock)
    # If only a part of it were written, that part would be there twice, and no segment could go.
    need = durable.moved.used + durable.moved_positions.used + pending
    if wan_log_reserve_room(&durable.committer.log) < need + 2 * wan_log_segment_bytes(&durable.committer.log):
        return WAN_EMPTY
    # Everything pending is written too: then what took an event's place meanwhile is on the disk before the segment of
    # the event is gone.
    status = durable_commit(gateway, True, &durable.moved)
    # More became pending behind what an earlier attempt had taken.
    if status == WAN_OK and not state_is_newest(durable):
        status = durable_commit(gateway, True, NULL)
    if status != WAN_OK:
        return status
    segments = durable.committer.log.segments
    writing = &segments[durable.committer.log.writing]
    for p in range(gateway.queue.partition_count):
        for n in range(count):
            if segments[n].highest[p] > writing.highest[p]:
                writing.highest[p] = segments[n].highest[p]
    # The holes of these segments would be in no state and in no block.
    if not state_is_newest(durable):
        return WAN_EMPTY
    return wan_log_drop_first(&durable.committer.log, count, durable.state.bytes, durable.state.used)


cdef wan_status move_part(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                          const uint8_t *data) noexcept nogil:
    cdef gateway_queue *gateway = <gateway_queue *>owner
    cdef wan_position_walk walk
    cdef wan_position position
    cdef wan_partition *partition
    cdef wan_status status
    if head.kind != WAN_PART_RECORDS and head.kind != WAN_PART_MOVED:
        return WAN_OK
    status = wan_positions_begin(&walk, data, head.length, head.count)
    position.count = 1
    wan_lock_take(&gateway.lock)
    while status == WAN_OK and wan_positions_next(&walk, &position.partition, &position.first):
        if position.partition >= gateway.queue.partition_count or wan_record_check(walk.at, walk.left) != WAN_OK:
            status = corrupt("a record that is to be moved is damaged")
            break
        partition = &gateway.queue.partitions[position.partition]
        if (partition.removed < position.first <= partition.appended
                and wan_queue_at(&gateway.queue, partition, position.first) != NULL):
            status = move_once(gateway.durable, &position, <const wan_record *>walk.at)
        wan_positions_pass(&walk, wan_record_length(<const wan_record *>walk.at))
    wan_lock_release(&gateway.lock)
    return status


cdef wan_status move_once(durable_log *durable, const wan_position *position, const wan_record *record) noexcept nogil:
    """Adds a record to the moved ones, unless it is there. The log has replicas if moving failed or a crash ended
    it."""
    cdef uint64_t *slot
    cdef uint64_t at = durable.moved_positions.used
    cdef wan_status status = wan_item_set_find(&durable.of_moved, &durable.moved_positions, position, &slot)
    if status == WAN_OK and slot[0] == 0:
        status = wan_buffer_reserve(&durable.moved_positions, sizeof(wan_position))
        if status == WAN_OK:
            status = wan_buffer_add(&durable.moved, record, wan_record_length(record))
        if status == WAN_OK:
            wan_buffer_put(&durable.moved_positions, position, sizeof(wan_position))
            wan_item_set_choose(&durable.of_moved, slot, at)
    return status


cdef wan_status durable_relieve(gateway_queue *gateway) noexcept nogil:
    """Makes room if the log or the disk is full, so that neither what is pending nor a checkpoint behind it can be
    written. The state of what is durable goes into the manifest. Then the segments go that this state needs no more.
    WAN_EMPTY: there are none."""
    cdef durable_log *durable = gateway.durable
    cdef wan_queue_counts counts
    cdef wan_status status
    cdef uint64_t not_durable = 0, conflated
    cdef uint32_t p, done
    wan_lock_take(&gateway.lock)
    note_newest_stamp(gateway)
    counts, conflated = gateway.counts, gateway.queue.conflated
    for p in range(gateway.queue.partition_count):
        not_durable += gateway.queue.partitions[p].appended - gateway.queue.partitions[p].durable
    counts.queued -= not_durable
    counts.received -= min(not_durable, counts.received)
    forget_holes(gateway, &conflated, &counts, &durable.holes.pending)
    forget_holes(gateway, &conflated, &counts, &durable.holes.taken)
    status = take_state(gateway, durable.committer.log.commit, &counts, conflated, NULL)
    if status == WAN_OK:
        for p in range(gateway.queue.partition_count):
            state_positions(&durable.fresh_state)[2 * p + 1] = gateway.queue.partitions[p].durable
    wan_lock_release(&gateway.lock)
    if status != WAN_OK:
        return status
    done = segments_done(gateway, &durable.fresh_state)
    if done == 0:
        return WAN_EMPTY
    status = wan_log_drop_first(&durable.committer.log, done, durable.fresh_state.bytes, durable.fresh_state.used)
    if status == WAN_OK:
        wan_lock_take(&gateway.lock)
        state_is_durable(gateway)
        wan_lock_release(&gateway.lock)
    return status


cdef void forget_holes(gateway_queue *gateway, uint64_t *conflated, wan_queue_counts *counts,
                       const wan_buffer *holes) noexcept nogil:
    """Takes the holes that are not durable yet out of the counts of a state. Holes of removed sequences stay
    counted."""
    cdef const wan_hole *hole = <const wan_hole *>holes.bytes
    cdef uint32_t n
    for n in range(holes.count):
        if hole[n].sequence > gateway.queue.partitions[hole[n].partition].removed:
            count_hole(conflated, counts, hole[n].reason, -1)


cdef bint durable_make_room(gateway_queue *gateway) noexcept nogil:
    """Makes room in a full log: segments that are not needed go. If there are none and the policy says so, the oldest
    events are dropped. False: the log stays full."""
    cdef wan_status status = durable_relieve(gateway)
    while status == WAN_EMPTY and gateway.full_policy == FULL_DROP_OLDEST and durable_drop_oldest(gateway):
        status = durable_relieve(gateway)
    return status == WAN_OK


cdef bint durable_drop_oldest(gateway_queue *gateway) noexcept nogil:
    """False: no segment would go with the oldest events. There is only one, or some events are on their way and it has
    to stay."""
    cdef bint dropped = gateway.durable.committer.log.writing != 0
    cdef uint32_t p
    wan_lock_take(&gateway.lock)
    for p in range(gateway.queue.partition_count):
        dropped = dropped and gateway.queue.partitions[p].peeked == gateway.queue.partitions[p].removed
    dropped = dropped and queue_drop_oldest(gateway, gateway.queue.partition_count) != 0
    for p in range(gateway.dispatchers):
        queue_refresh_ready(gateway, p)
    wan_lock_release(&gateway.lock)
    return dropped
