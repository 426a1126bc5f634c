# Owns the opening and the end of a queue's log: what recovery takes out of it, and what memory it has.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.stdio cimport snprintf
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_log cimport *
from pywan._core.c_tables cimport *
from pywan._core.disk_log cimport keep_damage
from pywan._core.log_stage cimport stage_close
from pywan._core.names cimport region_number
from pywan._core.queue cimport (
    durable_log, gateway_queue, queue_note_copy, queue_refresh_pending, removed_sum)
from pywan._core.queue_checkpoint cimport count_hole
from pywan._core.status cimport corrupt, report_unraisable


cdef enum:
    EVENTS_OF_SEGMENT_MAX = 8 << 20 >> 4    # Four times what a segment has room for. One that claims to be further ahead is damage.


cdef durable_log *durable_log_new(const gateway_queue *g) except NULL:
    """For a queue that has its partitions."""
    cdef durable_log *d = <durable_log *>calloc(1, sizeof(durable_log))
    cdef uint32_t partitions = g.queue.partition_count
    if d == NULL:
        raise MemoryError()
    d.log_numbers = <uint16_t *>calloc(65536, 2)
    d.process_numbers = <uint16_t *>calloc(65536, 2)
    d.appended = <uint64_t *>calloc(partitions, 8)
    d.removed = <uint64_t *>calloc(partitions, 8)
    d.state_appended = <uint64_t *>calloc(partitions, 8)
    if d.log_numbers == NULL or d.process_numbers == NULL or d.appended == NULL or d.removed == NULL or d.state_appended == NULL:
        durable_log_close(d)
        raise MemoryError()
    return d


cdef void durable_log_close(durable_log *d) noexcept nogil:
    """Nobody writes it any more, or it could not be opened."""
    wan_log_close(&d.committer.log)
    stage_close(&d.records)
    stage_close(&d.places)
    stage_close(&d.holes)
    stage_close(&d.names)
    stage_close(&d.superseded)
    wan_buffer_close(&d.joined[0])
    wan_buffer_close(&d.joined[1])
    wan_buffer_close(&d.dictionary)
    wan_buffer_close(&d.state)
    wan_buffer_close(&d.fresh_state)
    wan_buffer_close(&d.moved)
    wan_buffer_close(&d.moved_places)
    wan_item_set_empty(&d.of_moved)
    wan_buffer_close(&d.damages)
    free(d.log_numbers)
    free(d.process_numbers)
    free(d.appended)
    free(d.removed)
    free(d.state_appended)
    free(d)


cdef wan_status recover_names(durable_log *d, const uint8_t *data, uint64_t length) noexcept nogil:
    cdef uint64_t at = 0
    cdef uint16_t number, name_length
    cdef wan_status status
    while at + 8 <= length:
        number, name_length = (<const uint16_t *>(data + at))[0], (<const uint16_t *>(data + at))[1]
        if number == 0 or name_length > 1024 or at + 8 + wan_align8(name_length) > length:
            return corrupt("a region's name in the log is damaged")
        if d.process_numbers[number] == 0:
            if not adopt_name(d, number, data + at + 8, name_length):
                return corrupt("a region's name in the log cannot be used")
            status = wan_buffer_add(&d.dictionary, data + at, 8 + wan_align8(name_length))
            if status != WAN_OK:
                return status
        at += 8 + wan_align8(name_length)
    return WAN_OK


cdef int adopt_name(durable_log *d, uint16_t number, const uint8_t *text, uint16_t length) noexcept with gil:
    try:
        own = region_number((<const char *>text)[:length].decode(), number)
        d.process_numbers[number] = own
        d.log_numbers[own] = number
        return 1
    except BaseException as error:
        report_unraisable("a region's name in a log", error)
        return 0


cdef bint adopt_unknown(durable_log *d, uint16_t number) noexcept nogil:
    """In salvage: the region's name was lost, its events need not be."""
    cdef uint8_t text[32]
    cdef int length = snprintf(<char *>text, sizeof(text), "salvaged-%u", <unsigned int>number)
    return number != 0 and adopt_name(d, number, text, <uint16_t>length) != 0


cdef void note_damaged(void *owner, const wan_damage *damage) noexcept nogil:
    keep_damage(&(<gateway_queue *>owner).durable.damages, damage)


cdef uint64_t ever_written(uint64_t segment) noexcept nogil:
    """No partition had more events when this segment was full."""
    return segment * EVENTS_OF_SEGMENT_MAX if segment < NEVER // EVENTS_OF_SEGMENT_MAX else NEVER


cdef uint64_t newest_possible(const gateway_queue *g, uint32_t partition, uint64_t segment) noexcept nogil:
    """The highest sequence that what is read now can speak of: events are logged one behind the other, without gaps; but in salvage any
    number of them may be lost."""
    if g.durable.salvage:
        return ever_written(segment)
    return max(g.queue.partitions[partition].appended, g.durable.state_appended[partition]) + EVENTS_OF_SEGMENT_MAX


cdef wan_status impossible(const char *what, uint64_t sequence, uint32_t partition, uint64_t most) noexcept nogil:
    wan_tell(WAN_CORRUPT, "%s %llu in partition %u, where there were not even %llu so far", what, <unsigned long long>sequence, <unsigned int>partition,
               <unsigned long long>most)
    return WAN_CORRUPT


cdef wan_status recover_state(void *owner, const uint8_t *data, uint64_t length) noexcept nogil:
    """Out of the manifest."""
    return take_recovered_state(<gateway_queue *>owner, data, length, NEVER)


cdef wan_status take_recovered_state(gateway_queue *g, const uint8_t *data, uint64_t length, uint64_t segment) noexcept nogil:
    """`segment`: the number of the one that it was found in; NEVER: the manifest, which comes before all of them."""
    cdef durable_log *d = g.durable
    cdef const wan_queue_state *head = <const wan_queue_state *>data
    cdef const uint64_t *pairs
    cdef wan_queue_counts counts
    cdef wan_status status
    cdef uint64_t newest_stamp = g.counts.newest_stamp, repairs = g.counts.clock_repairs, most
    cdef uint32_t p
    if length == 0:
        return WAN_OK
    if (length < sizeof(wan_queue_state) or head.partitions != g.queue.partition_count or head.counters > length // sizeof(wan_counter)
            or length != sizeof(wan_queue_state) + head.counters * sizeof(wan_counter) + head.partitions * 16ULL + head.names_bytes):
        return corrupt("the queue's state in the log does not fit its length")
    status = wan_queue_counts_load(&counts, <const wan_counter *>(head + 1), head.counters)
    if status != WAN_OK:
        return status
    if d.state.used and head.commit <= d.state_commit:      # Of the same commit: the manifest's was taken later, when the log was full.
        return WAN_OK
    pairs = <const uint64_t *>(data + sizeof(wan_queue_state) + head.counters * sizeof(wan_counter))
    for p in range(head.partitions):
        if pairs[2 * p] > pairs[2 * p + 1]:
            return corrupt("a partition's positions in the log contradict each other")
        most = ever_written(d.committer.log.next_number) if segment == NEVER else newest_possible(g, p, segment)
        if pairs[2 * p + 1] > most:
            return impossible("a state says that the newest event is", pairs[2 * p + 1], p, most)
    wan_buffer_empty(&d.state)               # The next manifest says it again: blocks before it may be gone.
    if wan_buffer_add(&d.state, data, length) != WAN_OK:
        return WAN_NO_MEMORY
    d.state_commit = head.commit
    g.counts = counts
    if g.counts.clock_repairs > repairs:
        d.repaired_commit = head.commit
    else:
        g.counts.newest_stamp = max(g.counts.newest_stamp, newest_stamp)
    g.queue.conflated = head.conflated
    for p in range(head.partitions):
        d.removed[p] = pairs[2 * p]
        d.state_appended[p] = pairs[2 * p + 1]
        if g.queue.partitions[p].appended == 0:
            if wan_queue_restore_positions(&g.queue, p, pairs[2 * p], pairs[2 * p]) != WAN_OK:
                return WAN_NO_MEMORY
    return recover_names(d, <const uint8_t *>(pairs + 2 * head.partitions), head.names_bytes)


cdef wan_status recover_part(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
    cdef gateway_queue *g = <gateway_queue *>owner
    cdef durable_log *d = g.durable
    cdef const wan_record *record
    cdef wan_record *copy
    cdef uint16_t own
    cdef const wan_hole *hole
    cdef wan_place_walk walk
    cdef uint32_t number, length
    cdef uint64_t sequence
    cdef uint64_t at = 0, newest = g.counts.newest_stamp
    cdef uint64_t *highest = d.committer.log.segments[index].highest
    cdef wan_partition *partition
    cdef wan_status status, found = WAN_OK
    if head.kind == WAN_PART_NAMES:
        return recover_names(d, data, head.length)
    if head.kind == WAN_PART_STATE:
        return take_recovered_state(g, data, head.length, d.committer.log.segments[index].number)
    if head.kind == WAN_PART_HOLES:
        while at + sizeof(wan_hole) <= head.length:
            hole = <const wan_hole *>(data + at)
            if hole.partition < g.queue.partition_count:
                if g.queue.partitions[hole.partition].removed < hole.sequence <= g.queue.partitions[hole.partition].appended:
                    wan_queue_punch(&g.queue, hole.partition, hole.sequence, hole.reason)
                # What a state knows it has counted: its own and older blocks, and sequences that it says are removed.
                if commit > d.state_commit and hole.sequence > d.removed[hole.partition]:
                    count_hole(&g.queue.conflated, &g.counts, hole.reason, 1)
            at += sizeof(wan_hole)
        return WAN_OK
    status = wan_places_begin(&walk, data, head.length, head.count)
    if status != WAN_OK:
        return status
    while wan_places_next(&walk, &number, &sequence):
        record = <const wan_record *>walk.at
        if wan_record_check(walk.at, walk.left) != WAN_OK:
            found = WAN_CORRUPT
            if not wan_record_has_end(record, walk.left):
                return found
            wan_places_pass(&walk, wan_record_length(record))       # Salvage takes what is behind it.
            continue
        length = wan_record_length(record)
        wan_prefetch(walk.at + 8 * length)                  # Most are about as long as this one.
        if number >= g.queue.partition_count:
            return corrupt("a record in the log names a partition that is not there")
        partition = &g.queue.partitions[number]
        if (sequence > partition.appended + EVENTS_OF_SEGMENT_MAX
                and sequence > newest_possible(g, number, d.committer.log.segments[index].number)):
            return impossible("a record has the sequence", sequence, number, newest_possible(g, number, d.committer.log.segments[index].number))
        if d.process_numbers[record.region] == 0 and not (d.salvage and adopt_unknown(d, record.region)):
            return corrupt("a record in the log names a region that is not there")
        if sequence > highest[number]:
            highest[number] = sequence
        if record.stamp > newest and commit > d.repaired_commit:
            newest = g.counts.newest_stamp = record.stamp
        if sequence > partition.removed:
            queue_note_copy(g, record)
        own = d.process_numbers[record.region]
        if d.adopting and own == record.region:
            status = wan_queue_restore_here(&g.queue, d.adopting, number, sequence, record)
        elif own == record.region:
            status = wan_queue_restore(&g.queue, number, sequence, record)
        else:
            wan_buffer_empty(&d.moved)
            status = wan_buffer_add(&d.moved, record, length)
            if status == WAN_OK:
                copy = <wan_record *>d.moved.bytes
                copy.region = own
                status = wan_queue_restore(&g.queue, number, sequence, copy)
        if status != WAN_OK:
            return status
        d.recovered_records += 1
        wan_places_pass(&walk, length)
    if found == WAN_OK and walk.left:
        return corrupt("there is more in the log than the places say")
    return found


cdef int adopt_segment(void *owner, uint32_t index, const char *path, const uint8_t *base, uint64_t length) noexcept nogil:
    """The log's segment is mapped: the queue's records may lie there as they are."""
    cdef gateway_queue *g = <gateway_queue *>owner
    if wan_store_adopt(g.queue.store, path, base, length, &g.durable.adopting) != WAN_OK:
        g.durable.adopting = 0
    return g.durable.adopting != 0


cdef void segment_adopted(void *owner, uint32_t index) noexcept nogil:
    cdef gateway_queue *g = <gateway_queue *>owner
    if g.durable.adopting:
        wan_store_adopted(g.queue.store, g.durable.adopting)
    g.durable.adopting = 0


cdef wan_status durable_recover(gateway_queue *g) noexcept nogil:
    """After the log was read: positions, counters and what may be a duplicate."""
    cdef durable_log *d = g.durable
    cdef uint32_t p
    cdef wan_partition *partition
    cdef wan_status status
    cdef uint64_t fresh = 0
    for p in range(g.queue.partition_count):
        partition = &g.queue.partitions[p]
        status = wan_queue_restore_positions(&g.queue, p, d.removed[p], d.state_appended[p])
        if status != WAN_OK:
            return status
        fresh += partition.appended - d.state_appended[p]
        d.appended[p] = partition.taken = partition.appended
        wan_queue_made_durable(&g.queue, p, partition.appended)
        partition.duplicate_through = partition.appended
    wan_queue_compact(&g.queue)
    g.counts.queued += fresh
    g.counts.received += fresh
    d.removed_at_checkpoint = removed_sum(g)
    d.checkpoint_us = wan_monotonic_us()
    for p in range(g.dispatchers):
        queue_refresh_pending(g, p)
    return WAN_OK
