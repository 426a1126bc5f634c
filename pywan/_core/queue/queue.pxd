# The interface of queue.pyx: the structs of a gateway queue, and the functions that run for each event, inline. A
# producer appends an event with `queue_reserve` and `queue_commit`.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_session cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *
from pywan._core.log.committer cimport committer_is_behind, committer_note_pending, committer_reserve, log_committer
from pywan._core.log.log_pending cimport log_pending

cdef struct dispatcher_signal:
    # The signal of one dispatcher. A producer writes to `file`, once, when `ready` reaches `wake_at`. The dispatcher
    # sets `wake_at` to 1 when it is idle, to its batch size while it waits for a batch to fill, and to DO_NOT_WAKE
    # while it works.
    uint64_t ready      # Events of its partitions that may be sent and were not peeked. Others may wan_read it.
    uint64_t wake_at
    int file            # An eventfd.

cdef enum:
    FULL_BLOCK = 0, FULL_REFUSE = 1, FULL_DROP_OLDEST = 2, FULL_DROP_NEWEST = 3
    SLOW_DISK_US = 10000000     # A change waits so long for a log that is behind. Then it is refused.

cdef struct fed_log:
    # The log of a persistent region whose events enter the queue.
    log_committer *committer
    uint64_t number         # No other log that ever fed the queue has it.

cdef struct gateway_queue:
    # Guards the queue, the signals and the counts. A thread takes it after an entry lock, never before one.
    wan_lock lock
    uint64_t sender         # The hash of the sender's id, which is the same at each member.
    # A thread that locks several queues locks the one with the lowest number first. They are numbered as they are made.
    uint64_t lock_order
    wan_queue queue
    wan_queue_counts counts
    dispatcher_signal *signals
    uint32_t dispatchers
    uint8_t remote_site
    uint8_t stays_here      # The events go to a listener of this process, and reach no other site.
    uint8_t by_thread       # order-policy thread: the producing thread chooses the own partition.
    # Parallel, or order-policy partition: the bucket of the region chooses the partition, if the region has buckets.
    uint8_t by_bucket
    # By the number of a region: how many buckets it had when it was attached last. NULL without `by_bucket`. It is read
    # without the lock.
    uint16_t *buckets
    int running             # 0: an event that comes is counted as dropped. It is read without the lock.
    durable_log *durable    # NULL without persistence.
    wan_sources sources     # Which events of other sites it has taken.
    wan_buffer logs         # Each a fed_log. No event leaves before the log of its region has it.
    uint64_t logs_added
    wan_clock *clock        # The clock of the attached regions, with persistence. NULL: no region was attached yet.
    uint8_t full_policy     # FULL_*: what an enqueue does if it finds no room (disk full, or a limit).
    # Events that another member tells as settled stay until `acknowledged_take` takes them: the callbacks here are to
    # hear of them. `acknowledged_file`, an eventfd, is written when there are some; -1: nobody ever wanted that.
    bint keeps_acknowledged
    int acknowledged_file
    # The numbers of the incarnations on which the sender runs, as the tables say. They alone are believed that events
    # have left. `knows_runners`: somebody has said it.
    wan_buffer runners
    bint knows_runners
    gateway_queue *parked       # Takes events that another member has parked. NULL: nobody wants them.
    uint64_t parked_missed      # So many of these it did not take: others have them.
    uint64_t full_timeout_us    # An enqueue may wait so long for room. Then it is refused.
    uint64_t block_timeout_us   # The same if the disk takes nothing, rather than being slow: what the policy says.
    # By the site of origin: no event that was put here as a replica (recovered, parked, replayed) has a lower stamp
    # than this, except for stamps that callers gave. NO_STAMP: there was no replica.
    uint64_t lowest_copied[256]


cdef inline uint32_t queue_partition(const gateway_queue *gateway, uint32_t buckets, uint64_t hash, uint32_t member,
                                     uint32_t thread) noexcept nogil:
    # The own partition that an event enters. `buckets`: how many the region has; 0: it has none.
    if gateway.by_bucket and buckets:
        return wan_hash_bucket(hash, buckets) % gateway.queue.own_count
    if gateway.by_thread:
        return wan_hash_bucket((<uint64_t>member * 0x9e3779b97f4a7c15ULL) ^ (<uint64_t>thread * 0xd6e8feb86659fd93ULL),
                               gateway.queue.own_count)
    return wan_hash_bucket(hash, gateway.queue.own_count)


cdef inline uint32_t queue_partition_of(const gateway_queue *gateway, const wan_record *record,
                                        uint64_t hash) noexcept nogil:
    # The same for an event that comes back without its region.
    return queue_partition(gateway, gateway.buckets[record.region] if gateway.buckets != NULL else 0, hash,
                           record.event_member, record.event_thread)


cdef inline void queue_note_not_queued(gateway_queue *gateway) noexcept nogil:
    # Counts an event that is not for gateways (local, region operation, NORMAL region). Takes and releases the lock.
    wan_lock_take(&gateway.lock)
    gateway.counts.received += 1
    gateway.counts.not_queued += 1
    wan_lock_release(&gateway.lock)


cdef inline uint32_t queue_dispatcher(const gateway_queue *gateway, uint32_t partition) noexcept nogil:
    # The dispatcher that sends the events of a partition.
    return wan_queue_dispatcher(&gateway.queue, partition, gateway.dispatchers)


cdef inline uint32_t queue_next_of_dispatcher(const gateway_queue *gateway, uint32_t partition) noexcept nogil:
    # The next partition of the same dispatcher, or a number that no partition has.
    return wan_queue_next_of_dispatcher(&gateway.queue, partition, gateway.dispatchers)


cdef inline int queue_note_ready(gateway_queue *gateway, uint32_t partition, uint32_t count) noexcept nogil:
    # Counts the events of a commit as ready. Under the lock. Returns the file to write to without the lock, or -1.
    cdef dispatcher_signal *signal = &gateway.signals[queue_dispatcher(gateway, partition)]
    wan_add_guarded(&signal.ready, count)
    if signal.ready >= signal.wake_at:
        signal.wake_at = DO_NOT_WAKE
        return signal.file
    return -1


cdef inline int queue_note_rows(gateway_queue *gateway, const uint16_t *partitions, uint32_t count) noexcept nogil:
    # The same after a commit of one event to each of these partitions. NULL: all went to the first partition. This
    # wakes the dispatchers itself, except for the last one, whose file it returns.
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


cdef uint64_t removal_news() noexcept nogil
cdef void removal_news_came() noexcept nogil
cdef bint queue_is_runner(const gateway_queue *gateway, uint32_t member) noexcept nogil
cdef wan_status queue_add_log(gateway_queue *gateway, log_committer *committer) noexcept nogil
cdef void queue_remove_log(gateway_queue *gateway, const log_committer *committer) noexcept nogil
cdef void queue_refresh_ready(gateway_queue *gateway, uint32_t dispatcher) noexcept nogil
cdef uint64_t queue_drop_oldest(gateway_queue *gateway, uint32_t keeps) noexcept nogil


cdef inline wan_status queue_reserve(gateway_queue *gateway, uint32_t partition, uint64_t sequence, uint64_t length,
                                     wan_reservation *reservation) noexcept nogil:
    # Reserves room in the queue, and in the log if there is one. `sequence`: of the change, if a bucket that several
    # members hold feeds the queue; 0: none does. Under the lock.
    cdef wan_status status = durable_reserve(gateway, length, 1) if gateway.durable != NULL else WAN_OK
    if status != WAN_OK:
        return status
    if sequence:
        status = wan_queue_reserve_at(&gateway.queue, partition, sequence, length, reservation)
    else:
        status = wan_queue_reserve_inline(&gateway.queue, partition, length, reservation)
    # Nothing is dropped yet: another queue or the region may still refuse the change. The commit drops.
    if status == WAN_FULL and gateway.full_policy == FULL_DROP_OLDEST and queue_has_unpeeked(gateway):
        status = wan_queue_reserve_beyond(&gateway.queue, partition, sequence, length, reservation)
    return status


cdef bint queue_has_unpeeked(const gateway_queue *gateway) noexcept nogil
cdef void queue_make_room(gateway_queue *gateway, uint32_t partition) noexcept nogil


cdef inline int queue_commit(gateway_queue *gateway, wan_reservation *reservation) noexcept nogil:
    # Makes the record that was written the newest of its partition. Under the lock. Returns the file to write to
    # afterwards, or -1.
    cdef int wake = -1
    wan_queue_commit_inline(&gateway.queue, reservation)
    if gateway.durable != NULL:
        # Its dispatcher is woken when the record is on the disk.
        durable_add(gateway, reservation.partition, reservation.sequence, <const wan_record *>reservation.at)
    elif gateway.queue.partitions[reservation.partition].stream == NULL:   # Otherwise when the change counts.
        wake = queue_note_ready(gateway, reservation.partition, 1)
    if reservation.beyond:
        queue_make_room(gateway, reservation.partition)
    return wake


cdef void queue_remove_or_keep(gateway_queue *gateway, uint32_t partition) noexcept nogil


cdef inline void queue_apply_removal(gateway_queue *gateway, uint32_t partition) noexcept nogil:
    # Drops events that another member told as settled, if nothing of the partition is on its way. It is called when
    # more is told, when events came, and when nothing is on its way any more. Under the lock.
    cdef const wan_partition *at = &gateway.queue.partitions[partition]
    if at.removed_through > at.removed and at.peeked == at.removed:
        queue_remove_or_keep(gateway, partition)


cdef inline int queue_count(gateway_queue *gateway, uint32_t partition) noexcept nogil:
    # More changes of the bucket that feeds a partition may count now: their events are ready. Takes and releases the
    # lock. Returns the file to write to afterwards, or -1.
    cdef int wake = -1
    cdef uint64_t count
    wan_lock_take(&gateway.lock)
    count = wan_queue_count(&gateway.queue, partition)
    queue_apply_removal(gateway, partition)
    if count:
        wake = queue_note_ready(gateway, partition, <uint32_t>count)
    wan_lock_release(&gateway.lock)
    return wake


cdef inline void queue_note_copy(gateway_queue *gateway, const wan_record *record) noexcept nogil:
    # Remembers the lowest stamp of a replica. Under the lock.
    if not record.flags & WAN_FLAG_GIVEN and record.stamp < gateway.lowest_copied[record.origin_site]:
        gateway.lowest_copied[record.origin_site] = record.stamp


cdef inline wan_status queue_append_copy(gateway_queue *gateway, uint32_t partition, const wan_record *record,
                                         bint replayed, uint8_t flags) noexcept nogil:
    # Appends a whole record as it is. Takes and releases the lock. An event that was parked was counted as queued when
    # it first came. If a crash (or a wait for the disk in vain) left it in both queues, it is counted once more now.
    cdef wan_reservation reservation
    cdef int wake = -1
    cdef uint32_t length = wan_record_length(record)
    wan_lock_take(&gateway.lock)
    cdef wan_status status = queue_reserve(gateway, partition, 0, length, &reservation)
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
    # Whether the file of one event can be read. Under the lock. If not, the detail says why.
    cdef wan_store_span span = wan_queue_span(&gateway.queue, partition, sequence, sequence)
    return wan_store_check(gateway.queue.store, &span) == WAN_OK

cdef struct logged_places:
    # Some records that follow each other in the log, of events that follow each other in a stream.
    wan_source_place first
    uint64_t record         # The first of them: so many records had been given to the log with it.
    uint64_t count

cdef struct durable_log:
    log_committer committer
    # What is pending, and what a round took of it. `positions` has one wan_position for each of `records`. A record has
    # the same bytes as in the queue and on the wire.
    log_pending records, positions, holes, names, superseded
    log_pending places                      # Each a logged_places: those of the records that have one.
    wan_sources logged                      # What the log says of streams. Only the committer's role touches it.
    wan_buffer block_places                 # The places of the block that is being laid out.
    uint64_t places_written                 # Bytes of the places taken that are in the log already.
    # By the region's number in this process: its number in the log; 0: the log does not name it yet. The two are the
    # same where that is possible: then the bytes in the log are the bytes that are sent.
    uint16_t *log_numbers
    uint16_t *process_numbers               # By the number in the log: the region's number in this process.
    int replaying                           # Parked events come back to this queue. That frees room where they were.
    # Only the thread that has the committer's role uses the fields below. Those of the commits (queue_log):
    wan_buffer joined[2]                    # Positions as a part holds them: of the moved records, and of the new ones.
    wan_buffer dictionary                   # All names in the log so far, as items of a names part.
    # Bytes of the records taken that are in the log already, in blocks before the one that ends the commit.
    uint64_t written
    uint32_t written_count
    uint64_t *appended                      # Per partition, when the round took what was pending.
    # Those of checkpoints (queue_checkpoint). The fields of the newest one change under the queue's lock too.
    wan_buffer state                        # The newest durable state, which a manifest may hold.
    wan_buffer fresh_state                  # The next state.
    uint64_t removed_at_checkpoint          # Removed events as of the newest durable state, over all partitions.
    uint64_t checkpoint_us
    uint64_t *removed                       # Per partition, as of the newest durable state.
    # Those of shortening (queue_log_shorten).
    wan_buffer moved, moved_positions       # Records that live in old segments, and their positions.
    wan_item_set of_moved                   # Finds a position in `moved_positions`, while `moved` is filled.
    # The newest commit when the log was last shortened. Without a newer one, shortening again gains nothing before
    # `shorten_again_us`. Then another log may have given room back. 0: there was nothing left to do.
    uint64_t shortened_commit
    uint64_t shorten_again_us
    # Those of the identity (queue_mounts).
    # What other sites know the queue by: the id of the log, until the queue had to take another numbering.
    uint64_t numbering
    uint64_t mount                          # Identifies this opening of the log.
    uint64_t wanted_numbering             # The committer is to take this one. 0: none. Under the queue's lock.
    # Those of recovery (queue_recovery), before there is a committer.
    uint64_t state_commit, recovered_records, cut_bytes
    # The clock was repaired at this commit. The stamps of records up to it do not raise `newest_stamp`.
    uint64_t repaired_commit
    int salvage
    wan_buffer damages                      # In salvage: an array of wan_damage.
    uint64_t *state_appended
    # The segment of the queue that the log's segment becomes while the log hands it out. 0: its records are copied.
    uint32_t adopting

cdef inline uint64_t removed_sum(const gateway_queue *gateway) noexcept nogil:
    cdef uint64_t total = 0
    for p in range(gateway.queue.partition_count):
        total += gateway.queue.partitions[p].removed
    return total


cdef inline bint durable_is_behind(const gateway_queue *gateway, uint64_t length) noexcept nogil:
    """Whether `length` bytes more have to wait until the disk has taken some of what is pending. The disk takes
    something now. Under the queue's lock."""
    return gateway.durable != NULL and committer_is_behind(&gateway.durable.committer, &gateway.durable.records, length)


cdef inline wan_status durable_reserve(gateway_queue *gateway, uint64_t length, uint32_t count) noexcept nogil:
    """Makes sure that `count` records of one region, of `length` bytes together, can become pending. The caller does
    this under the queue's lock, before it commits them to the queue."""
    cdef durable_log *durable = gateway.durable
    cdef wan_status status = committer_reserve(&durable.committer, &durable.records, length)
    if status == WAN_OK:
        status = wan_buffer_reserve(&durable.positions.pending, count * sizeof(wan_position))
    return wan_buffer_reserve(&durable.names.pending, 8 + 1024 + 8) if status == WAN_OK else status

cdef inline uint16_t new_log_number(const durable_log *durable, uint16_t own) noexcept nogil:
    """A number in the log for a region that the log does not know: the region's own number, if it is free there."""
    cdef uint32_t number = own
    # A process has at most as many regions as there are numbers, and so has a log.
    while durable.process_numbers[number]:
        number = number + 1 if number < 65535 else 1
        if number == own:
            break
    return <uint16_t>number


cdef inline void durable_add(gateway_queue *gateway, uint32_t partition, uint64_t sequence,
                             const wan_record *record) noexcept nogil:
    """Makes a record pending. Under the queue's lock, after the record became the newest of its partition, at
    `sequence`."""
    cdef durable_log *durable = gateway.durable
    cdef uint16_t number = durable.log_numbers[record.region]
    cdef uint8_t item[1040]
    cdef uint16_t length
    cdef wan_record *copy
    cdef wan_position position
    if number == 0:
        number = durable.log_numbers[record.region] = new_log_number(durable, record.region)
        durable.process_numbers[number] = record.region
        length = wan_region_names[record.region].length
        memset(item, 0, 8 + length + 8)
        (<uint16_t *>item)[0], (<uint16_t *>item)[1] = number, length
        memcpy(item + 8, wan_region_names[record.region].text, length)
        wan_buffer_put(&durable.names.pending, item, 8 + wan_align8(length))
    copy = <wan_record *>wan_buffer_put(&durable.records.pending, record, wan_record_length(record))
    if number != record.region:
        copy.region = number
    position.partition, position.count, position.first = partition, 1, sequence
    wan_buffer_put(&durable.positions.pending, &position, sizeof(position))
    committer_note_pending(&durable.committer, 1)

cdef inline bint queue_has(gateway_queue *gateway, const wan_source_place *place) noexcept nogil:
    """Whether the queue took the event at this place before. Under the queue's lock."""
    return wan_sources_has(&gateway.sources, place) != 0


cdef inline wan_status queue_reserve_place(gateway_queue *gateway) noexcept nogil:
    """Makes sure that the place of an event can be noted. Under the queue's lock, before the event's commit."""
    cdef wan_status status = wan_sources_reserve(&gateway.sources)
    if status == WAN_OK and gateway.durable != NULL:
        status = wan_buffer_reserve(&gateway.durable.places.pending, sizeof(logged_places))
    return status


cdef inline bint queue_takes_place(gateway_queue *gateway, const wan_source_place *place) noexcept nogil:
    """Whether the queue does not have the event at this place yet, and can note the place."""
    return not queue_has(gateway, place) and queue_reserve_place(gateway) == WAN_OK


cdef inline void queue_note_place(gateway_queue *gateway, const wan_source_place *place) noexcept nogil:
    """Notes the place of the event that was committed last. Under the queue's lock."""
    cdef logged_places fresh
    cdef logged_places *last
    wan_sources_note(&gateway.sources, place)
    if gateway.durable == NULL:
        return
    fresh.first, fresh.record, fresh.count = place[0], gateway.durable.committer.given, 1
    if gateway.durable.places.pending.used:
        last = <logged_places *>(gateway.durable.places.pending.bytes + gateway.durable.places.pending.used
                                 - sizeof(logged_places))
        if (last.record + last.count == fresh.record and last.first.through + last.count == place.through
                and last.first.source[0] == place.source[0] and last.first.source[1] == place.source[1]
                and last.first.timeline == place.timeline and last.first.partition == place.partition):
            last.count += 1
            return
    wan_buffer_put(&gateway.durable.places.pending, &fresh, sizeof(fresh))


cdef inline bint queue_is_waited_for(const gateway_queue *gateway) noexcept nogil:
    """Whether an enqueue returns only when the disk has the event too."""
    return gateway.durable != NULL and gateway.durable.committer.synchronous


cdef void wake_dispatchers(gateway_queue *gateway) noexcept nogil
