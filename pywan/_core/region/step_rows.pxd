# Owns the bulk form of the step: rows that go into a region's table and into the queue of its single sender together.
# The bulk step reserves the room for all rows at once, applies and writes the rows, and commits all rows at once. In a
# region with several senders, with a log, or on several members, each row takes the single step (put.pxd). The code is
# compiled into each unit that has rows: columns, and a client's tasks.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_region cimport *
from pywan._core.c_system cimport *
from pywan._core.region.enqueue cimport only_queue
from pywan._core.region.entry_locks cimport (
    CHANGE_BYTES_PER_HOLD, CHANGES_PER_HOLD, entry_locks, entry_locks_release, entry_locks_take)
from pywan._core.region.put cimport operation_of, region_note_applied
from pywan._core.queue.queue cimport (
    durable_add, durable_reserve, gateway_queue, queue_is_waited_for, queue_note_rows, queue_partition)
from pywan._core.region.region_state cimport attachment, origin, region_core

cdef enum:
    # Limits for the rows that are enqueued under one hold of the queue's lock, and for the bytes of their records. A
    # hold takes five microseconds or so. If the limits were half as high, the maker would meet the dispatcher at the
    # lock more often, and would take a fifth longer.
    ROWS_PER_HOLD = 256
    BYTES_PER_HOLD = 65536
    # Number of rows whose entries are fetched together: the entries have about a dozen cache lines. A processor fetches
    # some two dozen lines at once, and an instruction that asks for one more line waits.
    FETCHED_TOGETHER = 4


cdef struct decoded_rows:
    # Decoded rows on their way from the columns to a step: the fields of each row's change. The fields are arrays, and
    # not a wan_change for each row: a proxy reads each field once.
    const uint8_t *keys[ROWS_PER_HOLD]
    const uint8_t *values[ROWS_PER_HOLD]
    uint32_t key_lengths[ROWS_PER_HOLD]
    uint32_t value_lengths[ROWS_PER_HOLD]
    uint8_t key_forms[ROWS_PER_HOLD]
    uint8_t value_forms[ROWS_PER_HOLD]
    uint8_t operations[ROWS_PER_HOLD]
    uint8_t flags[ROWS_PER_HOLD]
    uint8_t faults[ROWS_PER_HOLD]       # Reasons why a row is refused. 0: not refused.
    bint has_faults                     # A row that was decoded since the last reset has a fault.
    bint are_given                      # Some stamps are the caller's. Otherwise stamps ascend.
    uint64_t stamps[ROWS_PER_HOLD]
    uint64_t hashes[ROWS_PER_HOLD]      # If the region stores. A proxy finds hashes when needed.


cdef struct fetch_ahead:
    # The rows whose entries are fetched next, while earlier rows are stored.
    int64_t next
    int64_t left


cdef struct rows_step:
    # The reservations and locks of a group of rows between reservation and commit, in the order of the locks.
    entry_locks locks                           # For each row its shard, if the region stores.
    const attachment *attached
    gateway_queue *gateway
    bint has_partitions                         # The queue has several. Otherwise `partitions` is empty.
    uint16_t partitions[ROWS_PER_HOLD]          # Of each row; later of each row that has an event.
    uint32_t lengths[ROWS_PER_HOLD]             # The same for the lengths of the records.
    uint64_t bytes                              # Of all records.
    wan_run run
    uint32_t written                            # Rows that took effect. Each has an event.


cdef struct rows_did:
    # The result of a step of rows.
    uint32_t applied        # Rows that took effect. The rest are destroys of absent keys.
    bint waits              # As in wan_change, for any of the rows.


cdef inline void fetch_some(const region_core *region, const decoded_rows *rows, fetch_ahead *ahead) noexcept nogil:
    """Fetches the entries of the next FETCHED_TOGETHER rows, or of all remaining rows."""
    cdef int64_t n, count = min(ahead.left, <int64_t>FETCHED_TOGETHER)
    for n in range(ahead.next, ahead.next + count):
        wan_table_prefetch_entry(&region.table, rows.hashes[n], rows.key_lengths[n] + rows.value_lengths[n])
    ahead.next += count
    ahead.left -= count


cdef inline uint64_t hash_of_row(const decoded_rows *rows, int64_t n) noexcept nogil:
    return wan_key_hash(rows.keys[n], rows.key_lengths[n], rows.key_forms[n])


cdef inline void begin_change(wan_change *change, const region_core *region) noexcept nogil:
    """Sets the fields that are the same in the changes of all rows."""
    memset(change, 0, sizeof(wan_change))
    change.stamp_site, change.local, change.ask = region.site, 1, WAN_ASK_NOBODY


cdef inline void take_row(wan_change *change, const decoded_rows *rows, int64_t n) noexcept nogil:
    """Sets the change to the change of row `n`."""
    change.key, change.key_length, change.key_form = rows.keys[n], <uint16_t>rows.key_lengths[n], rows.key_forms[n]
    change.value, change.value_length, change.value_form = rows.values[n], rows.value_lengths[n], rows.value_forms[n]
    change.operation, change.flags = rows.operations[n], rows.flags[n]
    change.hash, change.stamp = rows.hashes[n], rows.stamps[n]


cdef inline void take_row_alone(wan_change *change, const region_core *region, decoded_rows *rows,
                                int64_t n) noexcept nogil:
    """As `take_row`, for a row that takes the single step."""
    if not region.stores:
        rows.hashes[n] = hash_of_row(rows, n)
    begin_change(change, region)
    take_row(change, rows, n)


cdef inline bint steps_alone(const region_core *region) noexcept nogil:
    """Whether each row of the region takes the single step, with any attached senders."""
    return region.log != NULL or region.changelog != NULL or not region.forwards


cdef inline bint can_step_rows(const region_core *region) noexcept nogil:
    """Whether `region_step_rows` can do anything now. The caller asks once for some groups: otherwise locks would be
    taken in vain."""
    cdef wan_shard *shard = &region.table.shards[0]
    cdef bint can
    if steps_alone(region):
        return False
    wan_lock_take(&shard.lock)      # Any entry lock keeps the attachment alive.
    can = only_queue(region.attached, region.site) != NULL
    wan_lock_release(&shard.lock)
    return can


cdef inline int64_t region_step_rows(region_core *region, decoded_rows *rows, int64_t first, int64_t count,
                                     const origin *from_, fetch_ahead *ahead, rows_did *did) noexcept nogil:
    """Does the work of `region_change` for some of `count` rows that are changed here, from row `first` on, under one
    hold of the queue's lock. If the lock were taken for each change, the lock would never be free long enough for a
    waiting dispatcher. `from_`: the origin of row `first`; the event of each later row has the next sequence. `ahead`:
    rows whose entries are fetched meanwhile.

    Returns how many rows were done. 0: the first row has to take the single step, which finds the reason. A row with a
    fault is never done."""
    cdef rows_step step
    cdef int64_t done = 0
    cdef int wake = -1
    if steps_alone(region) or wan_table_is_short(&region.table):
        return 0
    count = rows_take_locks(region, rows, first, count, &step)
    step.attached = region.attached
    step.gateway = only_queue(step.attached, region.site)
    if step.gateway != NULL and region.changelog == NULL:
        count = rows_measure(region, rows, first, count, from_, &step)
        if count > 1:
            wan_lock_take(&step.gateway.lock)
            if rows_reserve(&step, count) == WAN_OK:
                done = rows_write(region, rows, first, count, from_, ahead, &step)
                wake = rows_commit(&step)
                did.applied, did.waits = step.written, queue_is_waited_for(step.gateway)
            wan_lock_release(&step.gateway.lock)
            if wake >= 0:           # Still under the entry locks, which keep the queue and its files.
                eventfd_write(wake, 1)
    entry_locks_release(&step.locks)
    return done


cdef inline int64_t rows_take_locks(region_core *region, const decoded_rows *rows, int64_t first, int64_t count,
                                    rows_step *step) noexcept nogil:
    """Takes the entry locks of these rows, from the first row on, and returns the number of locked rows. The function
    stops before a row with a fault. A proxy has no entries, and needs a single lock: any entry lock keeps the
    attachment alive."""
    cdef int64_t n
    if rows.has_faults:
        count = rows_without_fault(rows, first, count)
    if not region.stores:
        step.locks.shards[0] = &region.table.shards[0]
        entry_locks_take(&step.locks, 1)
        return count
    count = min(count, <int64_t>CHANGES_PER_HOLD)
    for n in range(count):
        step.locks.shards[n] = wan_table_shard(&region.table, rows.hashes[first + n])
    return entry_locks_take(&step.locks, <uint32_t>count)


cdef inline int64_t rows_without_fault(const decoded_rows *rows, int64_t first, int64_t count) noexcept nogil:
    cdef int64_t n
    for n in range(count):
        if rows.faults[first + n]:
            return n
    return count


cdef inline int64_t rows_measure(const region_core *region, const decoded_rows *rows, int64_t first, int64_t count,
                                 const origin *from_, rows_step *step) noexcept nogil:
    """Finds the lengths and partitions of the records, and returns how many rows fit into one hold."""
    cdef const gateway_queue *gateway = step.gateway
    cdef uint32_t recipients = step.attached.recipient_count
    cdef int64_t n
    cdef uint64_t bytes = 0, hash
    for n in range(count):
        step.lengths[n] = <uint32_t>wan_record_size(rows.key_lengths[first + n], rows.value_lengths[first + n], 0,
                                                    recipients)
    for n in range(count):
        bytes += step.lengths[n]
    while bytes > <uint64_t>(CHANGE_BYTES_PER_HOLD if region.stores else BYTES_PER_HOLD):
        count -= 1
        bytes -= step.lengths[count]
    step.bytes = bytes
    step.has_partitions = gateway.queue.own_count > 1
    if step.has_partitions:
        for n in range(count):
            hash = rows.hashes[first + n] if region.stores else hash_of_row(rows, first + n)
            step.partitions[n] = <uint16_t>queue_partition(gateway, region.buckets, hash, from_.event_member,
                                                           from_.event_thread)
    return count


cdef inline wan_status rows_reserve(rows_step *step, int64_t count) noexcept nogil:
    """Reserves all room whose reservation could fail. Under the queue's lock."""
    cdef gateway_queue *gateway = step.gateway
    cdef int64_t n
    cdef wan_status status = WAN_OK
    if gateway.durable != NULL:
        status = durable_reserve(gateway, step.bytes, <uint32_t>count)
    if status == WAN_OK:
        status = wan_queue_open_run(&gateway.queue, step.bytes, &step.run)
    if status != WAN_OK:
        return status
    for n in range(count if step.has_partitions else 1):
        status = wan_queue_entries_room(&gateway.queue, step.partitions[n] if step.has_partitions else 0,
                                        <uint32_t>count)
        if status != WAN_OK:
            wan_queue_append_run(&gateway.queue, &step.run, NULL, NULL, 0, NULL)
            return status
    return WAN_OK


cdef inline int64_t rows_write(region_core *region, decoded_rows *rows, int64_t first, int64_t count,
                               const origin *from_, fetch_ahead *ahead, rows_step *step) noexcept nogil:
    """Applies the changes, if the region stores, and writes the records of the effective changes one behind the other.
    Returns how many rows were done."""
    cdef uint64_t low = wan_clock_low(region.clock)
    cdef int64_t n
    for n in range(first, first + count if rows.are_given or rows.stamps[first] < low else first):
        if rows.stamps[n] < low and not rows.flags[n] & WAN_FLAG_GIVEN:
            # As in region_change_held.
            rows.stamps[n] = wan_clock_take(region.clock, wan_clock_now_ms(region.clock), 1)
    if region.stores:
        return rows_apply(region, rows, first, count, from_, ahead, step)
    rows_forward(region, rows, first, count, from_, step)
    return count


cdef inline wan_record head_of_rows(const region_core *region, const origin *from_,
                                    const rows_step *step) noexcept nogil:
    """The common fields of all these records, as `write_record` sets the fields."""
    cdef wan_record head
    memset(&head, 0, sizeof(head))
    head.region = region.number
    head.stamp_site, head.origin_site = region.site, from_.site
    head.event_member, head.event_thread = from_.event_member, from_.event_thread
    head.recipients_count = <uint8_t>step.attached.recipient_count
    head.callback_form = WAN_FORM_NONE
    return head


cdef inline void rows_forward(const region_core *region, const decoded_rows *rows, int64_t first, int64_t count,
                              const origin *from_, rows_step *step) noexcept nogil:
    """The part of `rows_write` for a proxy."""
    cdef wan_record head = head_of_rows(region, from_, step)    # The compiler keeps `head` in registers.
    cdef const uint8_t *recipients = &step.attached.recipients[0]
    cdef uint64_t sequence = from_.event_sequence - first
    cdef const uint32_t *lengths = step.lengths - first
    cdef uint8_t *to = step.run.at
    cdef int64_t n
    for n in range(first, first + count):
        write_row(to, lengths[n], &head, rows, n, rows.stamps[n], rows.operations[n], sequence + n, recipients)
        to += lengths[n]
    step.written = <uint32_t>count


cdef inline int64_t rows_apply(region_core *region, const decoded_rows *rows, int64_t first, int64_t count,
                               const origin *from_, fetch_ahead *ahead, rows_step *step) noexcept nogil:
    """The part of `rows_write` for a region that stores. The function stops before a row for which there is no memory.
    All locks are taken by now. So the fetches of `ahead` go on while rows are stored: an atomic operation would wait
    for the fetches."""
    cdef wan_record head = head_of_rows(region, from_, step)
    cdef wan_change change
    cdef wan_outcome outcome
    cdef uint8_t *to = step.run.at
    cdef uint32_t length, written = 0
    cdef int64_t n
    begin_change(&change, region)
    for n in range(count):
        if n % FETCHED_TOGETHER == 0:
            fetch_some(region, rows, ahead)
        take_row(&change, rows, first + n)
        outcome = wan_table_apply(step.locks.shards[n], &change)
        region_note_applied(region, step.locks.shards[n], &change, rows.stamps[first + n], outcome)
        if outcome == WAN_OUT_OF_MEMORY:
            count = n
            break
        if outcome > WAN_DESTROYED:
            continue
        length = step.lengths[n]
        write_row(to, length, &head, rows, first + n, change.stamp, <uint8_t>operation_of(outcome),
                  from_.event_sequence + n, step.attached.recipients)
        to += length
        step.lengths[written] = length
        if step.has_partitions:
            step.partitions[written] = step.partitions[n]
        written += 1
    step.written = written
    return count


cdef inline void write_row(uint8_t *to, uint32_t length, const wan_record *head, const decoded_rows *rows, int64_t n,
                           uint64_t stamp, uint8_t operation, uint64_t sequence,
                           const uint8_t *recipients) noexcept nogil:
    cdef wan_record *record = wan_record_begin(to, length, head)
    record.value_length, record.key_length = rows.value_lengths[n], <uint16_t>rows.key_lengths[n]
    record.stamp, record.event_sequence = stamp, sequence
    record.flags, record.operation = rows.flags[n], operation
    record.key_form, record.value_form = rows.key_forms[n], rows.value_forms[n]
    wan_record_fill(to, rows.keys[n], rows.values[n], NULL, recipients)


cdef inline int rows_commit(rows_step *step) noexcept nogil:
    """Makes the records the newest records of their partitions. Under the queue's lock. Returns the file to write to
    afterwards, or -1."""
    cdef gateway_queue *gateway = step.gateway
    cdef uint64_t sequences[ROWS_PER_HOLD]
    cdef const uint16_t *partitions = step.partitions if step.has_partitions else NULL
    cdef const uint8_t *record = step.run.at
    cdef uint32_t n, written = step.written
    wan_queue_append_run(&gateway.queue, &step.run, step.lengths, partitions, written,
                         sequences if gateway.durable != NULL else NULL)
    gateway.counts.received += written
    gateway.counts.queued += written
    if gateway.durable == NULL:
        return queue_note_rows(gateway, partitions, written)
    for n in range(written):        # The committer wakes the dispatchers when the events are on the disk.
        durable_add(gateway, partitions[n] if partitions != NULL else 0, sequences[n], <const wan_record *>record)
        record += step.lengths[n]
    return -1
