# The interface of queue.pyx: what runs for each event, inline, and the structs that it works on. Producers append through `queue_reserve` and
# `queue_commit`.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_log cimport *
from pywan._core.c_system cimport *
from pywan._core.c_tables cimport *
from pywan._core.committer cimport committer_is_behind, committer_reserve, committer_note_pending, log_committer
from pywan._core.log_pending cimport log_pending

cdef struct dispatcher_signal:
    # One dispatcher's. A producer writes the eventfd when `ready` reaches `wake_at`, once: the dispatcher sets
    # it to 1 when idle, to its batch size while it waits for a batch to fill, and to DO_NOT_WAKE while it works.
    uint64_t ready          # Events of its partitions that may be sent and were not peeked. May be read without the lock: wan_read.
    uint64_t wake_at
    int file

cdef enum:
    FULL_BLOCK = 0, FULL_REFUSE = 1, FULL_DROP_OLDEST = 2, FULL_DROP_NEWEST = 3
    SLOW_DISK_US = 10000000     # How long a change waits for a log that is behind, before it is refused.

cdef struct gateway_queue:
    wan_lock lock           # Guards queue, signals and counts; taken after an entry lock, never before one.
    uint64_t sender         # A number of its sender's id: the same at each member.
    uint64_t place          # Of several queues the one with the lowest place is locked first: they have them in the order in which they were made.
    wan_queue queue
    wan_queue_counts counts
    dispatcher_signal *signals
    uint32_t dispatchers
    uint8_t remote_site
    uint8_t by_thread       # order-policy thread: partition by the producing thread.
    uint8_t by_bucket       # Parallel, or order-policy partition: by the bucket of the region, where it has buckets.
    uint16_t *buckets       # With that: by number of region, how many the one has that was attached last. Read without the lock. Else NULL.
    int running             # 0: what comes is counted as dropped. Read without the lock.
    durable_log *durable    # NULL without persistence.
    uint32_t copies_epoch   # Changes when copies got more, or are no more: what waits for them sleeps on it.
    wan_clock *clock        # Of the regions that are attached, with persistence; NULL: none yet.
    uint8_t full_policy     # FULL_*: what an enqueue does that finds no room (disk full, or a limit).
    uint64_t full_timeout_us    # How long it may wait for room, before it is refused;
    uint64_t lowest_copied[256] # Of each site of origin: no event that was put here as a copy (recovered, parked, replayed) has a lower stamp, but one
                                # that a caller gave. NO_STAMP: there was none.
    uint64_t block_timeout_us   # and where a disk takes nothing, rather than being slow: what the policy says.


cdef inline uint32_t queue_partition(const gateway_queue *gateway, uint32_t buckets, uint64_t hash, uint32_t member, uint32_t thread) noexcept nogil:
    # `buckets`: of the region; 0 for one that has none.
    if gateway.by_bucket and buckets:
        return wan_hash_bucket(hash, buckets) % gateway.queue.partition_count
    if gateway.by_thread:
        return wan_hash_bucket((<uint64_t>member * 0x9e3779b97f4a7c15ULL) ^ (<uint64_t>thread * 0xd6e8feb86659fd93ULL), gateway.queue.partition_count)
    return wan_hash_bucket(hash, gateway.queue.partition_count)


cdef inline uint32_t queue_partition_of(const gateway_queue *gateway, const wan_record *record, uint64_t hash) noexcept nogil:
    # The same of an event that comes back without its region.
    return queue_partition(gateway, gateway.buckets[record.region] if gateway.buckets != NULL else 0, hash, record.event_member, record.event_thread)


cdef inline void queue_note_not_queued(gateway_queue *gateway) noexcept nogil:
    # An event that is not for gateways (local, region operation, NORMAL region). Takes and releases the lock.
    wan_lock_take(&gateway.lock)
    gateway.counts.received += 1
    gateway.counts.not_queued += 1
    wan_lock_release(&gateway.lock)


cdef inline int queue_note_ready(gateway_queue *gateway, uint32_t partition, uint32_t count) noexcept nogil:
    # Under the lock, after a commit of so many. The file to write to once the lock is released, or -1.
    cdef dispatcher_signal *signal = &gateway.signals[0 if gateway.dispatchers == 1 else partition % gateway.dispatchers]
    wan_add_guarded(&signal.ready, count)
    if signal.ready >= signal.wake_at:
        signal.wake_at = DO_NOT_WAKE
        return signal.file
    return -1


cdef inline int queue_note_rows(gateway_queue *gateway, const uint16_t *partitions, uint32_t count) noexcept nogil:
    # The same after a commit of one to each of these partitions; NULL: of all to the first. Dispatchers are woken here, but for
    # the last.
    cdef int wake = -1, file
    if partitions == NULL:
        return queue_note_ready(gateway, 0, count) if count else -1
    for n in range(count):
        file = queue_note_ready(gateway, partitions[n], 1)
        if file >= 0:
            if wake >= 0:
                eventfd_write(wake, 1)
            wake = file
    return wake


cdef void queue_refresh_ready(gateway_queue *gateway, uint32_t dispatcher) noexcept nogil
cdef uint64_t queue_drop_oldest(gateway_queue *gateway, uint32_t keeps) noexcept nogil


cdef inline wan_status queue_reserve(gateway_queue *gateway, uint32_t partition, uint64_t length, wan_reservation *reservation) noexcept nogil:
    # Room in the queue, and for the log where there is one. Under the lock.
    cdef wan_status status = durable_reserve(gateway, length, 1) if gateway.durable != NULL else WAN_OK
    if status != WAN_OK:
        return status
    status = wan_queue_reserve(&gateway.queue, partition, length, reservation)
    # Nothing is dropped for a change that may still be refused, by another queue or by the region: that comes with the commit.
    if status == WAN_FULL and gateway.full_policy == FULL_DROP_OLDEST and queue_has_unpeeked(gateway):
        status = wan_queue_reserve_beyond(&gateway.queue, partition, length, reservation)
    return status


cdef bint queue_has_unpeeked(const gateway_queue *gateway) noexcept nogil
cdef void queue_make_room(gateway_queue *gateway, uint32_t partition) noexcept nogil


cdef inline int queue_commit(gateway_queue *gateway, wan_reservation *reservation) noexcept nogil:
    # The record is written: it becomes the newest. Under the lock. The file to write to afterwards, or -1.
    cdef int wake = -1
    wan_queue_commit(&gateway.queue, reservation)
    if gateway.durable != NULL:
        durable_add(gateway, reservation.partition, reservation.sequence, <const wan_record *>reservation.at)    # Its dispatcher hears of it when it is on the disk.
    else:
        wake = queue_note_ready(gateway, reservation.partition, 1)
    if reservation.beyond:
        queue_make_room(gateway, reservation.partition)
    return wake


cdef inline void queue_note_copy(gateway_queue *gateway, const wan_record *record) noexcept nogil:
    # Under the lock.
    if not record.flags & WAN_FLAG_GIVEN and record.stamp < gateway.lowest_copied[record.origin_site]:
        gateway.lowest_copied[record.origin_site] = record.stamp


cdef inline wan_status queue_append_copy(gateway_queue *gateway, uint32_t partition, const wan_record *record, bint replayed, uint8_t flags) noexcept nogil:
    # Appends a whole record as it is. Takes and releases the lock. One that was parked was counted as queued when it first came;
    # but for one that a crash (or a wait for the disk in vain) left in both queues, which is one more now.
    cdef wan_reservation reservation
    cdef int wake = -1
    cdef uint32_t length = wan_record_length(record)
    wan_lock_take(&gateway.lock)
    cdef wan_status status = queue_reserve(gateway, partition, length, &reservation)
    if status == WAN_OK:
        memcpy(reservation.at, record, length)
        (<wan_record *>reservation.at).flags |= flags
        queue_note_copy(gateway, record)
        wake = queue_commit(gateway, &reservation)
        if replayed and gateway.counts.parked:
            gateway.counts.parked -= 1
        else:
            gateway.counts.queued += 1
            gateway.counts.received += replayed
    wan_lock_release(&gateway.lock)
    if wake >= 0:
        eventfd_write(wake, 1)
    return status

cdef inline bint queue_can_read(const gateway_queue *gateway, uint32_t partition, uint64_t sequence) noexcept nogil:
    # Under the lock. False: one event lies in a file that cannot be read; the detail says why.
    cdef wan_store_span span = wan_queue_span(&gateway.queue, partition, sequence, sequence)
    return wan_store_check(gateway.queue.store, &span) == WAN_OK

cdef struct durable_log:
    log_committer committer
    # What is staged, and what a round took of it. `positions`: a wan_position for each of `records`, which are as they are in the queue and on the wire.
    log_pending records, positions, holes, names, superseded
    # Region number of this process -> number in the log; 0: not named yet. The same where that can be: then what lies in the log is what is sent.
    uint16_t *log_numbers
    uint16_t *process_numbers               # Number in the log -> region number of this process.
    int replaying                           # Parked events come back: they make room where they were.
    # All that follows is of who has the committer's role. What commits know (queue_log):
    wan_buffer joined[2]                    # Places as a part has them: of what was moved, and of what is new.
    wan_buffer dictionary                   # All names in the log so far, as items of a names part.
    uint64_t written                        # Bytes of the records taken that are in the log already, in blocks before the one that ends the commit.
    uint32_t written_count
    uint64_t *appended                      # Per partition, when the stages were taken.
    # Checkpoints (queue_checkpoint). What is said of the newest one changes under the queue's lock too.
    wan_buffer state                        # The newest durable one: what a manifest may say.
    wan_buffer fresh_state                  # The next one.
    uint64_t removed_at_checkpoint          # Sum over the partitions.
    uint64_t checkpoint_us
    uint64_t *removed                       # Per partition, as of the last durable state.
    # Shortening (queue_log_shorten).
    wan_buffer moved, moved_positions          # What lives in old segments.
    wan_item_set of_moved                   # Of `moved_positions`, as long as `moved` is filled.
    uint64_t shortened_commit               # The newest when the log was last shortened: without a new one there is no more to be had,
    uint64_t shorten_again_us               # but from then on, where another log made way, or there was no room; 0: nothing was left to do.
    # Identity (queue_mounts).
    uint64_t incarnation                    # Of the queue, as other sites know it: the log's id, until it had to take another one.
    uint64_t mount                          # Identifies this opening of the log.
    uint64_t wanted_incarnation             # The committer is to take this one; 0: none. Under the queue's lock.
    # Recovery (queue_recovery), before there is a committer.
    uint64_t state_commit, recovered_records, cut_bytes
    uint64_t repaired_commit                # Stamps of records up to this commit are no reason for `newest_stamp`: it was set back behind them.
    int salvage
    wan_buffer damages                      # wan_damage, in salvage.
    uint64_t *state_appended
    uint32_t adopting                       # The queue's segment that the log's one becomes while it is handed out; 0: it is copied.

cdef inline uint64_t removed_sum(const gateway_queue *gateway) noexcept nogil:
    cdef uint64_t total = 0
    for p in range(gateway.queue.partition_count):
        total += gateway.queue.partitions[p].removed
    return total


cdef inline bint durable_is_behind(const gateway_queue *gateway, uint64_t length) noexcept nogil:
    """Under the queue's lock: so much more has to wait until the disk has taken some of what is staged, which it does."""
    return gateway.durable != NULL and committer_is_behind(&gateway.durable.committer, &gateway.durable.records, length)


cdef inline wan_status durable_reserve(gateway_queue *gateway, uint64_t length, uint32_t count) noexcept nogil:
    """Under the queue's lock, before `count` records of one region, of `length` bytes, are committed to the queue: they can be staged afterwards."""
    cdef durable_log *durable = gateway.durable
    cdef wan_status status = committer_reserve(&durable.committer, &durable.records, length)
    if status == WAN_OK:
        status = wan_buffer_reserve(&durable.positions.pending, count * sizeof(wan_position))
    return wan_buffer_reserve(&durable.names.pending, 8 + 1024 + 8) if status == WAN_OK else status

cdef inline uint16_t new_log_number(const durable_log *durable, uint16_t own) noexcept nogil:
    """For a region of this process that the log does not know: its own number, if that is free there."""
    cdef uint32_t number = own
    while durable.process_numbers[number]:        # There are no more regions in a process than numbers, nor in a log.
        number = number + 1 if number < 65535 else 1
        if number == own:
            break
    return <uint16_t>number


cdef inline void durable_add(gateway_queue *gateway, uint32_t partition, uint64_t sequence, const wan_record *record) noexcept nogil:
    """Under the queue's lock, after the record became the newest of its partition, at this sequence."""
    cdef durable_log *durable = gateway.durable
    cdef uint16_t number = durable.log_numbers[record.region]
    cdef uint8_t item[1040]
    cdef uint16_t length
    cdef wan_record *staged
    cdef wan_position position
    if number == 0:
        number = durable.log_numbers[record.region] = new_log_number(durable, record.region)
        durable.process_numbers[number] = record.region
        length = wan_region_names[record.region].length
        memset(item, 0, 8 + length + 8)
        (<uint16_t *>item)[0], (<uint16_t *>item)[1] = number, length
        memcpy(item + 8, wan_region_names[record.region].text, length)
        wan_buffer_put(&durable.names.pending, item, 8 + wan_align8(length))
    staged = <wan_record *>wan_buffer_put(&durable.records.pending, record, wan_record_length(record))
    if number != record.region:
        staged.region = number
    position.partition, position.count, position.first = partition, 1, sequence
    wan_buffer_put(&durable.positions.pending, &position, sizeof(position))
    committer_note_pending(&durable.committer, 1)

cdef inline bint queue_is_waited_for(const gateway_queue *gateway) noexcept nogil:
    """Whether who enqueues is answered only when others have the event too: the disk, or the copies at other members."""
    return gateway.queue.copied or (gateway.durable != NULL and gateway.durable.committer.synchronous)


cdef void wake_dispatchers(gateway_queue *gateway) noexcept nogil
