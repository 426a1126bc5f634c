# Owns the opening and the end of a queue's log: what recovery takes out of the log, and the memory of the log.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.stdio cimport snprintf
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *
from pywan._core.c_store cimport *
from pywan._core.log.disk_log cimport keep_damage
from pywan._core.log.log_pending cimport pending_close
from pywan._core.values.names cimport region_number
from pywan._core.queue.queue cimport (
    durable_log, gateway_queue, queue_note_copy, queue_refresh_ready, removed_sum)
from pywan._core.queue.queue_checkpoint cimport count_hole
from pywan._core.base.status cimport corrupt, report_unraisable


cdef enum:
    # Four times as many events as fit into a segment. A record or state that claims to be further ahead is damaged.
    EVENTS_OF_SEGMENT_MAX = 8 << 20 >> 4


cdef durable_log *durable_log_new(const gateway_queue *gateway) except NULL:
    """Makes the log's memory, for a queue that has its partitions."""
    cdef durable_log *durable = <durable_log *>calloc(1, sizeof(durable_log))
    cdef uint32_t partitions = gateway.queue.partition_count
    if durable == NULL:
        raise MemoryError()
    durable.log_numbers = <uint16_t *>calloc(65536, 2)
    durable.process_numbers = <uint16_t *>calloc(65536, 2)
    durable.appended = <uint64_t *>calloc(partitions, 8)
    durable.removed = <uint64_t *>calloc(partitions, 8)
    durable.state_appended = <uint64_t *>calloc(partitions, 8)
    if (durable.log_numbers == NULL or durable.process_numbers == NULL or durable.appended == NULL
            or durable.removed == NULL or durable.state_appended == NULL):
        durable_log_close(durable)
        raise MemoryError()
    return durable


cdef void durable_log_close(durable_log *durable) noexcept nogil:
    """Frees the memory of a log that no thread writes any more, or that could not be opened."""
    wan_log_close(&durable.committer.log)
    pending_close(&durable.records)
    pending_close(&durable.positions)
    pending_close(&durable.holes)
    pending_close(&durable.names)
    pending_close(&durable.superseded)
    pending_close(&durable.places)
    wan_sources_close(&durable.logged)
    wan_buffer_close(&durable.block_places)
    wan_buffer_close(&durable.joined[0])
    wan_buffer_close(&durable.joined[1])
    wan_buffer_close(&durable.dictionary)
    wan_buffer_close(&durable.state)
    wan_buffer_close(&durable.fresh_state)
    wan_buffer_close(&durable.moved)
    wan_buffer_close(&durable.moved_positions)
    wan_item_set_empty(&durable.of_moved)
    wan_buffer_close(&durable.damages)
    free(durable.log_numbers)
    free(durable.process_numbers)
    free(durable.appended)
    free(durable.removed)
    free(durable.state_appended)
    free(durable)


cdef wan_status recover_names(durable_log *durable, const uint8_t *data, uint64_t length) noexcept nogil:
    cdef uint64_t at = 0
    cdef uint16_t number, name_length
    cdef wan_status status
    while at + 8 <= length:
        number, name_length = (<const uint16_t *>(data + at))[0], (<const uint16_t *>(data + at))[1]
        if number == 0 or name_length > 1024 or at + 8 + wan_align8(name_length) > length:
            return corrupt("a region's name in the log is damaged")
        if durable.process_numbers[number] == 0:
            if not adopt_name(durable, number, data + at + 8, name_length):
                return corrupt("a region's name in the log cannot be used")
            status = wan_buffer_add(&durable.dictionary, data + at, 8 + wan_align8(name_length))
            if status != WAN_OK:
                return status
        at += 8 + wan_align8(name_length)
    return WAN_OK


cdef int adopt_name(durable_log *durable, uint16_t number, const uint8_t *text, uint16_t length) noexcept with gil:
    try:
        own = region_number((<const char *>text)[:length].decode(), number)
        durable.process_numbers[number] = own
        durable.log_numbers[own] = number
        return 1
    except BaseException as error:
        report_unraisable("a region's name in a log", error)
        return 0


cdef bint adopt_unknown(durable_log *durable, uint16_t number) noexcept nogil:
    """Makes up a name for a region whose name was lost. In salvage its events are kept."""
    cdef uint8_t text[32]
    cdef int length = snprintf(<char *>text, sizeof(text), "salvaged-%u", <unsigned int>number)
    return number != 0 and adopt_name(durable, number, text, <uint16_t>length) != 0


cdef void note_damaged(void *owner, const wan_damage *damage) noexcept nogil:
    keep_damage(&(<gateway_queue *>owner).durable.damages, damage)


cdef uint64_t ever_written(uint64_t segment) noexcept nogil:
    """A limit: no partition had more events than this when segment number `segment` was full."""
    return segment * EVENTS_OF_SEGMENT_MAX if segment < NO_LIMIT // EVENTS_OF_SEGMENT_MAX else NO_LIMIT


cdef uint64_t newest_possible(const gateway_queue *gateway, uint32_t partition, uint64_t segment) noexcept nogil:
    """The highest sequence that the part read now can hold. Events are logged one behind the other, without gaps. In
    salvage any number of them may be lost."""
    if gateway.durable.salvage:
        return ever_written(segment)
    return max(gateway.queue.partitions[partition].appended,
               gateway.durable.state_appended[partition]) + EVENTS_OF_SEGMENT_MAX


cdef wan_status impossible(const char *what, uint64_t sequence, uint32_t partition, uint64_t most) noexcept nogil:
    wan_note(WAN_CORRUPT, "%s %llu in partition %u, where there were not even %llu so far", what,
             <unsigned long long>sequence, <unsigned int>partition, <unsigned long long>most)
    return WAN_CORRUPT


cdef wan_status recover_state(void *owner, const uint8_t *data, uint64_t length) noexcept nogil:
    """Takes the state out of the manifest."""
    return take_recovered_state(<gateway_queue *>owner, data, length, NO_SEGMENT)


cdef wan_status take_recovered_state(gateway_queue *gateway, const uint8_t *data, uint64_t length,
                                     uint64_t segment) noexcept nogil:
    """Takes a state. `segment`: the number of the segment that held it. NO_SEGMENT: the manifest, which comes before
    all segments."""
    cdef durable_log *durable = gateway.durable
    cdef const wan_queue_state *head = <const wan_queue_state *>data
    cdef const uint64_t *pairs
    cdef wan_queue_counts counts
    cdef wan_status status
    cdef uint64_t newest_stamp = gateway.counts.newest_stamp, repairs = gateway.counts.clock_repairs, most
    cdef uint32_t p
    if length == 0:
        return WAN_OK
    if (length < sizeof(wan_queue_state) or head.partitions != gateway.queue.partition_count
            or head.counters > length // sizeof(wan_counter)
            or length != (sizeof(wan_queue_state) + head.counters * sizeof(wan_counter) + head.partitions * 16ULL
                          + head.names_bytes + head.places_bytes) or head.names_bytes > length):
        return corrupt("the queue's state in the log does not fit its length")
    status = wan_queue_counts_load(&counts, <const wan_counter *>(head + 1), head.counters)
    if status != WAN_OK:
        return status
    # If both are of the same commit, the manifest's state was taken later, when the log was full.
    if durable.state.used and head.commit <= durable.state_commit:
        return WAN_OK
    pairs = <const uint64_t *>(data + sizeof(wan_queue_state) + head.counters * sizeof(wan_counter))
    for p in range(head.partitions):
        if pairs[2 * p] > pairs[2 * p + 1]:
            return corrupt("a partition's positions in the log contradict each other")
        most = ever_written(durable.committer.log.next_number) if segment == NO_SEGMENT else newest_possible(gateway, p,
                                                                                                             segment)
        if pairs[2 * p + 1] > most:
            return impossible("a state says that the newest event is", pairs[2 * p + 1], p, most)
    # The next manifest says the state again: the block that it came in may be gone then.
    wan_buffer_empty(&durable.state)
    if wan_buffer_add(&durable.state, data, length) != WAN_OK:
        return WAN_NO_MEMORY
    durable.state_commit = head.commit
    gateway.counts = counts
    if gateway.counts.clock_repairs > repairs:
        durable.repaired_commit = head.commit
    else:
        gateway.counts.newest_stamp = max(gateway.counts.newest_stamp, newest_stamp)
    gateway.queue.conflated = head.conflated
    for p in range(head.partitions):
        durable.removed[p] = pairs[2 * p]
        durable.state_appended[p] = pairs[2 * p + 1]
        if gateway.queue.partitions[p].appended == 0:
            if wan_queue_restore_positions(&gateway.queue, p, pairs[2 * p], pairs[2 * p]) != WAN_OK:
                return WAN_NO_MEMORY
    wan_sources_close(&durable.logged)
    status = wan_sources_load(&durable.logged, data + length - head.places_bytes, head.places_bytes)
    if status != WAN_OK:
        return status
    return recover_names(durable, <const uint8_t *>(pairs + 2 * head.partitions), head.names_bytes)


cdef wan_status recover_part(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head,
                             const uint8_t *data) noexcept nogil:
    cdef gateway_queue *gateway = <gateway_queue *>owner
    cdef durable_log *durable = gateway.durable
    cdef const wan_record *record
    cdef wan_record *copy
    cdef uint16_t own
    cdef const wan_hole *hole
    cdef wan_position_walk walk
    cdef uint32_t number, length
    cdef uint64_t sequence
    cdef uint64_t at = 0, newest = gateway.counts.newest_stamp
    cdef uint64_t *highest = durable.committer.log.segments[index].highest
    cdef wan_partition *partition
    cdef wan_status status, found = WAN_OK
    if head.kind == WAN_PART_NAMES:
        return recover_names(durable, data, head.length)
    if head.kind == WAN_PART_STATE:
        return take_recovered_state(gateway, data, head.length, durable.committer.log.segments[index].number)
    if head.kind == WAN_PART_PLACES:    # A state says the places of its own and of older blocks.
        return wan_sources_load(&durable.logged, data, head.length) if commit > durable.state_commit else WAN_OK
    if head.kind == WAN_PART_HOLES:
        while at + sizeof(wan_hole) <= head.length:
            hole = <const wan_hole *>(data + at)
            if hole.partition < gateway.queue.partition_count:
                partition = &gateway.queue.partitions[hole.partition]
                if partition.removed < hole.sequence <= partition.appended:
                    wan_queue_make_hole(&gateway.queue, hole.partition, hole.sequence, hole.reason)
                # A state has already counted the holes of its own and of older blocks, and of sequences that it says
                # are removed.
                if commit > durable.state_commit and hole.sequence > durable.removed[hole.partition]:
                    count_hole(&gateway.queue.conflated, &gateway.counts, hole.reason, 1)
            at += sizeof(wan_hole)
        return WAN_OK
    status = wan_positions_begin(&walk, data, head.length, head.count)
    if status != WAN_OK:
        return status
    while wan_positions_next(&walk, &number, &sequence):
        record = <const wan_record *>walk.at
        if wan_record_check(walk.at, walk.left) != WAN_OK:
            found = WAN_CORRUPT
            if not wan_record_has_end(record, walk.left):
                return found
            wan_positions_pass(&walk, wan_record_length(record))       # Salvage takes the records behind it.
            continue
        length = wan_record_length(record)
        wan_prefetch(walk.at + 8 * length)                  # Most records are about as long as this one.
        if number >= gateway.queue.partition_count:
            return corrupt("a record in the log names a partition that is not there")
        partition = &gateway.queue.partitions[number]
        if (sequence > partition.appended + EVENTS_OF_SEGMENT_MAX
                and sequence > newest_possible(gateway, number, durable.committer.log.segments[index].number)):
            return impossible("a record has the sequence", sequence, number,
                              newest_possible(gateway, number, durable.committer.log.segments[index].number))
        if durable.process_numbers[record.region] == 0 and not (durable.salvage
                                                                and adopt_unknown(durable, record.region)):
            return corrupt("a record in the log names a region that is not there")
        if sequence > highest[number]:
            highest[number] = sequence
        if record.stamp > newest and commit > durable.repaired_commit:
            newest = gateway.counts.newest_stamp = record.stamp
        if sequence > partition.removed:
            queue_note_copy(gateway, record)
        own = durable.process_numbers[record.region]
        if durable.adopting and own == record.region:
            status = wan_queue_restore_here(&gateway.queue, durable.adopting, number, sequence, record)
        elif own == record.region:
            status = wan_queue_restore(&gateway.queue, number, sequence, record)
        else:
            wan_buffer_empty(&durable.moved)
            status = wan_buffer_add(&durable.moved, record, length)
            if status == WAN_OK:
                copy = <wan_record *>durable.moved.bytes
                copy.region = own
                status = wan_queue_restore(&gateway.queue, number, sequence, copy)
        if status != WAN_OK:
            return status
        durable.recovered_records += 1
        wan_positions_pass(&walk, length)
    if found == WAN_OK and walk.left:
        return corrupt("there is more in the log than the positions say")
    return found


cdef int adopt_segment(void *owner, uint32_t index, const char *path, const uint8_t *base,
                       uint64_t length) noexcept nogil:
    """Takes over a mapped segment of the log, so that the queue's records may lie there as they are."""
    cdef gateway_queue *gateway = <gateway_queue *>owner
    if wan_store_adopt(gateway.queue.store, path, base, length, &gateway.durable.adopting) != WAN_OK:
        gateway.durable.adopting = 0
    return gateway.durable.adopting != 0


cdef void segment_adopted(void *owner, uint32_t index) noexcept nogil:
    cdef gateway_queue *gateway = <gateway_queue *>owner
    if gateway.durable.adopting:
        wan_store_adopted(gateway.queue.store, gateway.durable.adopting)
    gateway.durable.adopting = 0


cdef wan_status durable_recover(gateway_queue *gateway) noexcept nogil:
    """Restores positions and counters, after the log was read, and marks what may be a duplicate."""
    cdef durable_log *durable = gateway.durable
    cdef uint32_t p
    cdef wan_partition *partition
    cdef wan_status status
    cdef uint64_t fresh = 0
    for p in range(gateway.queue.partition_count):
        partition = &gateway.queue.partitions[p]
        status = wan_queue_restore_positions(&gateway.queue, p, durable.removed[p], durable.state_appended[p])
        if status != WAN_OK:
            return status
        fresh += partition.appended - durable.state_appended[p]
        durable.appended[p] = partition.taken = partition.appended
        wan_queue_made_durable(&gateway.queue, p, partition.appended)
        partition.duplicate_through = partition.appended
    status = wan_sources_load(&gateway.sources, durable.logged.places.bytes, durable.logged.places.used)
    if status != WAN_OK:
        return status
    wan_queue_compact(&gateway.queue)
    gateway.counts.queued += fresh
    gateway.counts.received += fresh
    durable.removed_at_checkpoint = removed_sum(gateway)
    durable.checkpoint_us = wan_monotonic_us()
    for p in range(gateway.dispatchers):
        queue_refresh_ready(gateway, p)
    return WAN_OK
