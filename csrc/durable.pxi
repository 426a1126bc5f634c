# Owns the durable half of a queue: what is staged for the log, the committer that writes it (one thread a queue: group
# commit), checkpoints of the removal positions, and recovery. Staging is under the queue's lock; the log itself
# belongs to the committer alone.

cdef extern from *:
    uint32_t __atomic_load_n(uint32_t *at, int order) nogil
    enum: __ATOMIC_ACQUIRE

cdef extern from "<string.h>" nogil:
    char *strncpy(char *to, const char *source, size_t length)

cdef extern from "<stdio.h>" nogil:
    int snprintf(char *to, size_t room, const char *format, ...)

cdef extern from *:
    """
    #define set_full(...) ((void)WAN_FAIL(WAN_FULL, __VA_ARGS__))
    #define set_too_large(...) ((void)WAN_FAIL(WAN_TOO_LARGE, __VA_ARGS__))
    #define set_closed(...) ((void)WAN_FAIL(WAN_CLOSED, __VA_ARGS__))
    #define set_failing(status, ...) ((void)WAN_FAIL((status), __VA_ARGS__))
    """
    void set_full(const char *format, ...) nogil
    void set_too_large(const char *format, ...) nogil
    void set_closed(const char *format, ...) nogil
    void set_failing(wan_status status, const char *format, ...) nogil

cdef enum:
    STAGED_BYTES_MAX = 64 << 20             # More than this waiting for the disk: enqueues are refused (queue full) until it caught up.
    STAGED_PART_OF_LIMIT = 8                # Less where the log may not be large: what waits has to fit into it.
    DISK_PATIENCE_US = 5000000              # Who waits for a disk that takes nothing is told after so long.
    CHECKPOINT_EVENTS = 10000
    CHECKPOINT_US = 1000000
    LOG_SEGMENTS_KEPT = 4                   # Below this many, nothing is moved to shorten the log.
    MOVED_BYTES_MAX = 16 << 20              # Moved in one go, a segment more or less; out of
    MOVED_SEGMENTS_MAX = 32                 # so many segments at most.
    DAMAGES_MAX = 10000                     # Pieces of damage that salvage tells one by one.
    MOUNT_BYTES_KEPT = 64 << 10             # A queue remembers so many bytes of mounts, and two mounts at least.
    WAIT_SLICE_US = 100000                  # After so long a caller that waits looks at the process's signals.
    EVENTS_OF_SEGMENT_MAX = 8 << 20 >> 4    # Four times what a segment has room for. One that claims to be further ahead is damage.

cdef struct log_view:                       # A log as others may see it, while it belongs to its committer: as of the last round. Under the owner's lock.
    uint64_t bytes, commits
    uint32_t segments
    int failing                             # wan_status of the last round; enqueues are refused while it is not WAN_OK.
    uint64_t failing_since_us               # Since when no round was WAN_OK.
    char reason[512]

cdef struct durable_log:
    wan_log log
    wan_stage records, holes, names, superseded             # Staged. Under the queue's lock.
    wan_stage taken_records, taken_holes, taken_names, taken_superseded, fresh_state, moved    # The committer's.
    wan_stage_use records_use, holes_use, superseded_use    # Of what is staged and what is taken, which take turns.
    wan_record_set of_moved                 # As long as `moved` is filled.
    uint64_t written                        # Bytes of `taken_records` that are in the log already, in blocks before the one that ends the commit.
    uint32_t written_count
    uint64_t staged_max                     # Bytes of records that may be staged.
    wan_stage state                         # The newest durable one: what a manifest may say. The committer's.
    wan_stage dictionary                    # All names in the log so far, as items of a names part. The committer's.
    uint16_t *log_numbers                   # Region number of this process -> number in the log; 0: not named yet.
    uint16_t next_log_number
    uint64_t staged, durable                # Records staged, and of those on the disk; waiters compare them.
    uint32_t epoch                          # Changes with every commit (or failure): what waiters sleep on.
    uint32_t work                           # Changes when something is staged: what the committer sleeps on.
    int waiting                             # The committer sleeps.
    int replaying                           # Parked events come back: they make room where they were.
    int stop                                # Nothing is staged any more. Set under the queue's lock.
    int ended                               # The committer has returned: what is staged stays where it is.
    uint8_t synchronous
    uint32_t flush_ms                       # Without synchronous: how long a record may wait for its commit.
    uint64_t removed_at_checkpoint          # Sum over the partitions.
    uint64_t checkpoint_us
    uint64_t shortened_commit               # The newest when the log was last shortened: without a new one there is no more to be had,
    uint64_t shorten_again_us               # but from then on, where another log made way, or there was no room; 0: nothing was left to do.
    uint64_t *appended                      # Per partition, when the stages were taken.
    uint64_t *removed                       # Per partition, as of the last durable state.
    log_view view
    uint64_t incarnation                    # Of the queue, as other sites know it: the log's id, until it had to take another one.
    uint64_t mount                          # Identifies this opening of the log.
    uint64_t wanted_incarnation             # The committer is to take this one; 0: none.
    # Recovery
    uint64_t state_commit, recovered_records, cut_bytes
    uint64_t repaired_commit                # Stamps of records up to this commit are no reason for `newest_stamp`: it was set back behind them.
    int salvage
    wan_stage damages                       # wan_damage, in salvage.
    uint64_t *state_appended
    uint32_t adopting                       # The queue's segment that the log's one becomes while it is handed out; 0: it is copied.
    uint16_t *process_numbers               # Number in the log -> region number of this process.


cdef struct queue_identity:                 # What the identity in the manifest begins with.
    # The mounts under this incarnation follow, oldest first, as far as they are remembered: each its id, then for each partition the newest
    # sequence that was there when it began.
    uint64_t incarnation
    uint32_t mounts
    uint32_t partitions


cdef struct log_state:                      # What a state part begins with; positions and names follow.
    uint64_t commit
    uint32_t partitions
    uint32_t counters                       # Number of 64-bit counters of queue_counts that follow.
    uint64_t conflated
    uint64_t names_bytes


cdef void show_log(log_view *view, const wan_log *log, wan_status status) noexcept nogil:
    """Under the owner's lock; `status` with its detail, if it is not WAN_OK."""
    view.bytes, view.commits, view.segments = log.bytes, log.commit, log.count
    view.failing = <int>status
    if status == WAN_OK:
        view.failing_since_us = 0
    elif view.failing_since_us == 0:
        view.failing_since_us = wan_monotonic_us()
    if status == WAN_NO_MEMORY:     # Some say no more than that.
        strncpy(view.reason, b"out of memory while the log was written", sizeof(view.reason) - 1)
    elif status != WAN_OK:
        strncpy(view.reason, wan_detail, sizeof(view.reason) - 1)


cdef object log_failure(const log_view *view):
    """Why the disk takes nothing; None: it does."""
    return (<bytes>view.reason).decode("utf-8", "replace") if view.failing else None


cdef wan_status not_written(const log_view *view) noexcept nogil:
    """What a change gets whose log is failing. It may be taken later, whatever the reason: the detail says which."""
    set_failing(<wan_status>view.failing if view.failing == WAN_FULL or view.failing == WAN_NO_MEMORY else WAN_IO,
                "the log is not written now: %s", view.reason)
    return WAN_FULL


cdef inline uint64_t removed_sum(const gateway_queue *g) noexcept nogil:
    cdef uint64_t total = 0
    for p in range(g.queue.partition_count):
        total += g.queue.partitions[p].removed
    return total


cdef inline bint durable_is_behind(const gateway_queue *g, uint64_t length) noexcept nogil:
    """Under the queue's lock: so much more has to wait until the disk has taken some of what is staged, which it does."""
    cdef durable_log *d = g.durable
    return d != NULL and not d.view.failing and d.records.used != 0 and d.records.used + length > d.staged_max


cdef wan_status durable_reserve(gateway_queue *g, uint64_t length) noexcept nogil:
    """Under the queue's lock, before a record is committed to the queue: it can be staged afterwards."""
    cdef durable_log *d = g.durable
    if wan_flag_read(&d.stop):
        set_closed("the log is closed")
        return WAN_CLOSED
    if d.view.failing:
        return not_written(&d.view)
    if length > wan_log_record_bytes(&d.log):
        set_too_large("an event of %llu bytes is over the %llu that a disk store of this size takes; give the disk store more room",
                      <unsigned long long>length, <unsigned long long>wan_log_record_bytes(&d.log))
        return WAN_TOO_LARGE
    if durable_is_behind(g, length):
        set_full("the disk is slower than the events come; %llu bytes wait for it", <unsigned long long>d.records.used)
        return WAN_FULL
    if wan_stage_reserve(&d.records, length) != WAN_OK:
        return WAN_NO_MEMORY
    return wan_stage_reserve(&d.names, 8 + 1024 + 8)


cdef void durable_stage(gateway_queue *g, const wan_record *record) noexcept nogil:
    """Under the queue's lock, after the record became the newest of its partition."""
    cdef durable_log *d = g.durable
    cdef uint16_t number = d.log_numbers[record.region]
    cdef uint8_t item[1040]
    cdef uint16_t length
    cdef wan_record *staged
    if number == 0:
        d.next_log_number += 1
        number = d.log_numbers[record.region] = d.next_log_number
        length = region_name_table[record.region].length
        memset(item, 0, 8 + length + 8)
        (<uint16_t *>item)[0], (<uint16_t *>item)[1] = number, length
        memcpy(item + 8, region_name_table[record.region].text, length)
        wan_stage_put(&d.names, item, 8 + wan_align8(length))
    staged = <wan_record *>wan_stage_put(&d.records, record, record.length)
    staged.region = number
    d.staged += 1
    if wan_flag_read(&d.waiting):
        wan_signal_change(&d.work)


cdef wan_status take_state(gateway_queue *g, uint64_t commit) noexcept nogil:
    """Lays the queue's state out in `fresh_state`. Under the queue's lock."""
    cdef durable_log *d = g.durable
    cdef log_state head
    cdef uint64_t pair[2]
    cdef uint32_t p
    cdef wan_status status
    head.commit = commit
    head.partitions = g.queue.partition_count
    head.counters = sizeof(queue_counts) // 8
    if g.counts.restamped == 0 and g.counts.clock_repairs == 0:     # The last two, which versions before did not know.
        head.counters -= 2
    head.conflated = g.queue.conflated
    head.names_bytes = d.dictionary.used
    wan_stage_empty(&d.fresh_state)
    status = wan_stage_reserve(&d.fresh_state, sizeof(head) + sizeof(queue_counts) + head.partitions * 16ULL + head.names_bytes)
    if status != WAN_OK:
        return status
    wan_stage_put(&d.fresh_state, &head, sizeof(head))
    if g.clock != NULL:
        g.counts.newest_stamp = max(g.counts.newest_stamp, wan_clock_last(g.clock))
    wan_stage_put(&d.fresh_state, &g.counts, head.counters * 8ULL)
    for p in range(head.partitions):
        pair[0], pair[1] = g.queue.partitions[p].removed, g.queue.partitions[p].appended
        wan_stage_put(&d.fresh_state, pair, 16)
    if head.names_bytes:
        wan_stage_put(&d.fresh_state, d.dictionary.bytes, head.names_bytes)
    return WAN_OK


cdef inline void swap_stages(wan_stage *a, wan_stage *b) noexcept nogil:
    cdef wan_stage kept = a[0]
    a[0] = b[0]
    b[0] = kept


cdef wan_status write_block(durable_log *d, const wan_part *parts, uint32_t count, uint32_t *segment) noexcept nogil:
    cdef wan_status status = wan_log_make_room(&d.log, wan_parts_length(parts, count), d.state.bytes, d.state.used)
    return wan_log_commit(&d.log, parts, count, segment) if status == WAN_OK else status


cdef uint32_t add_records(wan_part *parts, uint32_t count, uint32_t kind, const wan_stage *stage, uint64_t start, uint64_t most) noexcept nogil:
    """A part of the records from `start` on: whole ones, up to `most` bytes, at least one if there is any."""
    cdef wan_part *part = &parts[count]
    cdef uint64_t length
    if start == 0 and stage.used <= most:
        return add_part(parts, count, kind, stage)
    part.head.kind, part.head.count, part.head.length = kind, 0, 0
    part.bytes = stage.bytes + start
    while start + part.head.length < stage.used:
        length = (<const wan_record *>(part.bytes + part.head.length)).length
        if part.head.count and part.head.length + length > most:
            break
        part.head.length += length
        part.head.count += 1
    return count + 1


cdef void raise_highest(wan_log_segment *segment, const wan_part *part) noexcept nogil:
    cdef uint64_t at = 0
    cdef const wan_record *record
    while at < part.head.length:
        record = <const wan_record *>(part.bytes + at)
        if record.sequence > segment.highest[record.partition]:
            segment.highest[record.partition] = record.sequence
        at += record.length


cdef wan_status write_ahead(gateway_queue *g, const wan_stage *moved, uint64_t *moved_written, uint64_t *names_written, uint32_t *names_count) noexcept nogil:
    """Of more than fits into an ordinary block: the first records, in blocks of their own. Holes and the state stay for the one that ends the
    commit, and nothing counts as durable before that or its failure. A crash in between leaves events as they were before what is behind them
    happened."""
    cdef durable_log *d = g.durable
    cdef wan_part parts[2]
    cdef uint32_t count, segment
    cdef uint64_t most = wan_log_block_bytes(&d.log), moved_used = moved.used if moved != NULL else 0
    cdef wan_status status
    while moved_used - moved_written[0] + d.taken_records.used - d.written > most:
        count = 0
        if moved_written[0] < moved_used:
            count = add_records(parts, count, WAN_PART_MOVED, moved, moved_written[0], most)
        else:
            if d.taken_names.used:
                count = add_part(parts, count, WAN_PART_NAMES, &d.taken_names)
            count = add_records(parts, count, WAN_PART_RECORDS, &d.taken_records, d.written, most)
        status = write_block(d, parts, count, &segment)
        if status != WAN_OK:
            return status
        raise_highest(&d.log.segments[segment], &parts[count - 1])
        if parts[count - 1].head.kind == WAN_PART_MOVED:
            moved_written[0] += parts[0].head.length
            continue
        d.written += parts[count - 1].head.length
        d.written_count += parts[count - 1].head.count
        if d.taken_names.used:
            wan_stage_empty(&d.taken_names)
            names_written[0], names_count[0] = d.dictionary.used, d.dictionary.count
    return WAN_OK


cdef wan_status durable_commit(gateway_queue *g, bint checkpoint, wan_stage *moved) noexcept nogil:
    """Writes what is staged, and before it the records `moved` out of old segments (unless NULL), makes it durable, tells everybody: one
    block, behind others where there is much. The committer's."""
    cdef durable_log *d = g.durable
    cdef wan_part parts[5]
    cdef uint32_t count = 0, p, segment
    cdef uint64_t staged, moved_written = 0, known_names = d.dictionary.used
    cdef uint32_t known_count = d.dictionary.count
    cdef wan_status status = WAN_OK
    # What an earlier attempt took and could not write comes first: new stages wait behind it.
    wan_lock_take(&g.lock)
    if d.taken_records.used == 0 and d.taken_holes.used == 0 and d.taken_superseded.used == 0:
        swap_stages(&d.records, &d.taken_records)
        swap_stages(&d.holes, &d.taken_holes)
        swap_stages(&d.names, &d.taken_names)
        swap_stages(&d.superseded, &d.taken_superseded)
        for p in range(g.queue.partition_count):
            d.appended[p] = g.queue.partitions[p].taken = g.queue.partitions[p].appended
    staged = d.staged - d.records.count
    if d.taken_names.used:
        status = wan_stage_add(&d.dictionary, d.taken_names.bytes, d.taken_names.used)
    # A state says what the queue is once everything taken is applied; with records still staged behind it that would be another queue.
    checkpoint = checkpoint and d.records.used == 0 and d.holes.used == 0
    if status == WAN_OK and checkpoint:
        status = take_state(g, d.log.commit + 1)
    wan_lock_release(&g.lock)
    if status == WAN_OK:
        status = write_ahead(g, moved, &moved_written, &known_names, &known_count)
    if status == WAN_OK and checkpoint:
        (<log_state *>d.fresh_state.bytes).commit = d.log.commit + 1        # Of the block that it is part of.
    if d.taken_names.used:
        count = add_part(parts, count, WAN_PART_NAMES, &d.taken_names)
    if moved != NULL and moved_written < moved.used:        # Before the holes: some of them may be among these.
        count = add_records(parts, count, WAN_PART_MOVED, moved, moved_written, NEVER)
    if d.written < d.taken_records.used:
        count = add_records(parts, count, WAN_PART_RECORDS, &d.taken_records, d.written, NEVER)
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
    wan_stage_empty(&d.taken_records)
    wan_stage_rest(&d.taken_records, &d.records_use, used, now)
    d.written = d.written_count = 0
    wan_stage_empty(&d.taken_holes)
    wan_stage_rest(&d.taken_holes, &d.holes_use, used_by_holes, now)
    wan_stage_empty(&d.taken_names)
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
    wan_stage_empty(&d.taken_superseded)
    wan_stage_rest(&d.taken_superseded, &d.superseded_use, used, now)
    wan_signal_change(&d.epoch)
    return WAN_OK


cdef void durable_rest(gateway_queue *g) noexcept nogil:
    """The committer's, while nothing is staged: what the stages took goes back."""
    cdef durable_log *d = g.durable
    cdef uint64_t now = wan_monotonic_us()
    wan_stage_rest(&d.taken_records, &d.records_use, 0, now)
    wan_stage_rest(&d.taken_holes, &d.holes_use, 0, now)
    wan_stage_rest(&d.taken_superseded, &d.superseded_use, 0, now)
    rest_under_lock(&d.records, &d.records_use, &g.lock, now)
    rest_under_lock(&d.holes, &d.holes_use, &g.lock, now)
    rest_under_lock(&d.superseded, &d.superseded_use, &g.lock, now)


cdef void wake_dispatchers(gateway_queue *g) noexcept nogil:
    """Under the queue's lock: more is durable."""
    cdef uint32_t n
    for n in range(g.dispatchers):
        queue_refresh_pending(g, n)
        if g.signals[n].pending >= g.signals[n].wake_at:
            g.signals[n].wake_at = NEVER
            eventfd_write(g.signals[n].file, 1)


cdef void tell_written(gateway_queue *g, uint64_t staged) noexcept nogil:
    """Of a commit that broke off, what was written ahead is on the disk and may be sent: where the store is full, only what leaves makes room
    for the rest. Up to the first event that is a hole by now: what took its place may be in the rest, and lost with it, so nobody is to be
    told that it is durable or settled. `staged`: as it will be durable with all of it."""
    cdef durable_log *d = g.durable
    cdef wan_partition *partition
    cdef const wan_record *record
    cdef uint64_t at = 0
    cdef uint32_t told = 0
    wan_lock_take(&g.lock)
    while at < d.written:
        record = <const wan_record *>(d.taken_records.bytes + at)
        partition = &g.queue.partitions[record.partition]
        if record.sequence > partition.durable:
            if wan_queue_at(&g.queue, partition, record.sequence) == NULL:
                break
            wan_queue_made_durable(&g.queue, record.partition, record.sequence)
        told += 1
        at += record.length
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


cdef inline uint64_t repairs_of(const wan_stage *state) noexcept nogil:
    """How often the clock had been repaired when this state was taken; by a version that did not know of that: never."""
    cdef const log_state *head = <const log_state *>state.bytes
    if state.used == 0 or head.counters * 8ULL < sizeof(queue_counts):
        return 0
    return (<const queue_counts *>(head + 1)).clock_repairs


cdef inline uint64_t *state_positions(const wan_stage *state) noexcept nogil:
    return <uint64_t *>(state.bytes + sizeof(log_state) + (<log_state *>state.bytes).counters * 8ULL)


cdef inline uint32_t add_part(wan_part *parts, uint32_t count, uint32_t kind, const wan_stage *stage) noexcept nogil:
    parts[count].head.kind = kind
    parts[count].head.count = stage.count
    parts[count].head.length = stage.used
    parts[count].bytes = stage.bytes
    return count + 1


cdef uint32_t segments_done(const gateway_queue *g, const wan_stage *state) noexcept nogil:
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
    wan_stage_close(&d.moved)
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
    wan_stage_empty(&d.moved)
    # Several at once, so that more goes than comes in the block that is written meanwhile.
    while (status == WAN_OK and count < d.log.writing and count < MOVED_SEGMENTS_MAX and d.moved.used < most
           and d.log.segments[count].number < last):
        status = wan_log_read_segment(&d.log, count, &reader)
        count += 1
    wan_record_set_empty(&d.of_moved)
    if status != WAN_OK:
        return status
    wan_lock_take(&g.lock)
    staged = d.records.used + d.taken_records.used - d.written
    wan_lock_release(&g.lock)
    if wan_log_way(&d.log) < d.moved.used + staged + 2 * wan_log_segment_bytes(&d.log):     # Written in part, it would only be there twice.
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
    cdef queue_counts *counts
    cdef log_state *head
    cdef wan_partition *partition
    cdef wan_status status
    cdef uint64_t not_durable = 0
    cdef uint32_t p, done
    wan_lock_take(&g.lock)
    status = take_state(g, d.log.commit)
    if status == WAN_OK:
        head = <log_state *>d.fresh_state.bytes
        counts = <queue_counts *>(head + 1)
        for p in range(g.queue.partition_count):
            partition = &g.queue.partitions[p]
            not_durable += partition.appended - partition.durable
            state_positions(&d.fresh_state)[2 * p + 1] = partition.durable
        counts.queued -= not_durable
        counts.received -= min(not_durable, counts.received)
        forget_holes(g, head, counts, &d.holes)
        forget_holes(g, head, counts, &d.taken_holes)
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


cdef void forget_holes(gateway_queue *g, log_state *head, queue_counts *counts, const wan_stage *holes) noexcept nogil:
    """Takes out of a state what holes that are not durable yet stand for; those of removed sequences are part of it."""
    cdef const wan_hole *hole = <const wan_hole *>holes.bytes
    cdef uint32_t n
    for n in range(holes.count):
        if hole[n].sequence > g.queue.partitions[hole[n].partition].removed:
            count_hole(&head.conflated, counts, hole[n].reason, -1)


cdef inline void count_hole(uint64_t *conflated, queue_counts *counts, uint32_t reason, int64_t by) noexcept nogil:
    if reason == WAN_HOLE_CONFLATED:
        conflated[0] += by
    elif reason == WAN_HOLE_FILTERED:
        counts.filtered_transmit += by
    elif reason == WAN_HOLE_PARKED:
        counts.parked += by
    elif reason == WAN_HOLE_DROPPED:
        counts.dropped_oldest += by
    elif reason == WAN_HOLE_RESTAMPED:
        counts.restamped += by
    else:
        counts.conflated_batch += by


cdef wan_status stage_once(wan_stage *stage, wan_record_set *staged, const wan_record *record) noexcept nogil:
    """Unless the set says that one like it is there: where moving failed, or a crash ended it, the log has copies."""
    cdef uint64_t *slot
    cdef uint64_t at = stage.used
    cdef wan_status status = wan_record_set_find(staged, stage, record, &slot)
    if status == WAN_OK and slot[0] == 0:
        status = wan_stage_add(stage, record, record.length)
        if status == WAN_OK:
            wan_record_set_choose(staged, slot, at)
    return status


cdef wan_status move_part(void *owner, uint32_t index, uint64_t commit, const wan_part_head *head, const uint8_t *data) noexcept nogil:
    cdef gateway_queue *g = <gateway_queue *>owner
    cdef durable_log *d = g.durable
    cdef const wan_record *record
    cdef wan_partition *partition
    cdef uint64_t at = 0
    cdef wan_status status = WAN_OK
    if head.kind != WAN_PART_RECORDS and head.kind != WAN_PART_MOVED:
        return WAN_OK
    wan_lock_take(&g.lock)
    while at < head.length and status == WAN_OK:
        record = <const wan_record *>(data + at)
        partition = &g.queue.partitions[record.partition]
        if partition.removed < record.sequence <= partition.appended and wan_queue_at(&g.queue, partition, record.sequence) != NULL:
            status = stage_once(&d.moved, &d.of_moved, record)
        at += record.length
    wan_lock_release(&g.lock)
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
        elif lost_patience(1, &failing_since, wan_monotonic_us()) and stopping:
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


cdef inline bint lost_patience(int failing, uint64_t *failing_since, uint64_t now) noexcept nogil:
    """Whether the disk has taken nothing for longer than somebody who waits for it should."""
    if not failing:
        failing_since[0] = 0
    elif failing_since[0] == 0:
        failing_since[0] = now
    return failing_since[0] != 0 and now - failing_since[0] >= DISK_PATIENCE_US


cdef enum:
    FOR_EVENTS = 0, FOR_REMOVALS = 1, FOR_IDENTITY = 2, FOR_REPAIR = 3      # What somebody waits for.
    WAIT_DONE = 1, WAIT_IN_VAIN = 0, WAIT_GOES_ON = -1

cdef struct disk_wait:      # One caller's wait for a log, in slices.
    int what                # FOR_*, of a queue's log.
    uint64_t wanted
    uint64_t deadline_us
    uint64_t failing_since_us


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
        if now >= wait.deadline_us or wan_flag_read(&d.ended) or lost_patience(failing, &wait.failing_since_us, now):
            return WAIT_IN_VAIN
        if now >= slice_end:
            return WAIT_GOES_ON
        wan_wait_change(&d.epoch, seen, <uint32_t>(WAIT_SLICE_US // 1000))


# Mounts: each opening of a log is one. What a receiver has applied of a mount that is not in the past of this one, or beyond where the next one began,
# was sent by another copy of the log.

cdef inline uint64_t mount_bytes(const gateway_queue *g) noexcept nogil:
    return 8 + 8 * <uint64_t>g.queue.partition_count


cdef inline uint64_t *mount_at(const gateway_queue *g, uint32_t n) noexcept nogil:
    return <uint64_t *>(g.durable.log.identity.bytes + sizeof(queue_identity) + n * mount_bytes(g))


cdef wan_status check_identity(const gateway_queue *g) noexcept nogil:
    """Checks the identity that the manifest holds. A new log holds none."""
    cdef const wan_stage *found = &g.durable.log.identity
    cdef const queue_identity *head = <const queue_identity *>found.bytes
    if found.used == 0:
        return WAN_OK
    if (found.used < sizeof(queue_identity) or head.partitions != g.queue.partition_count
            or (found.used - sizeof(queue_identity)) % mount_bytes(g) or (found.used - sizeof(queue_identity)) // mount_bytes(g) != head.mounts):
        return corrupt("the queue's identity in the manifest does not fit its length")
    return WAN_OK


cdef wan_status add_mount(gateway_queue *g, wan_stage *identity, uint64_t incarnation, uint32_t skipped) noexcept nogil:
    """Lays out the identity with this mount as the newest: behind those that are known, without the `skipped` oldest."""
    cdef queue_identity head
    cdef uint32_t known = 0, p
    cdef uint64_t length = mount_bytes(g)
    cdef wan_stage *now = &g.durable.log.identity
    cdef wan_status status
    if now.used:
        known = (<queue_identity *>now.bytes).mounts - skipped
    head.incarnation, head.mounts, head.partitions = incarnation, known + 1, g.queue.partition_count
    memset(identity, 0, sizeof(wan_stage))
    status = wan_stage_reserve(identity, sizeof(head) + (known + 1) * length)
    if status != WAN_OK:
        return status
    wan_stage_put(identity, &head, sizeof(head))
    if known:
        wan_stage_put(identity, mount_at(g, skipped), known * length)
    wan_stage_put(identity, &g.durable.mount, 8)
    for p in range(g.queue.partition_count):
        wan_stage_put(identity, &g.queue.partitions[p].appended, 8)
    return WAN_OK


cdef wan_status durable_mount(gateway_queue *g) noexcept nogil:
    """After recovery: this opening is a mount, which the manifest knows before a new event is on the disk, and so before one is sent."""
    cdef durable_log *d = g.durable
    cdef wan_stage fresh
    cdef uint32_t kept, known = 0
    cdef wan_status status = check_identity(g)
    if status != WAN_OK:
        return status
    d.incarnation = d.log.id
    if d.log.identity.used:
        d.incarnation = (<queue_identity *>d.log.identity.bytes).incarnation
        known = (<queue_identity *>d.log.identity.bytes).mounts
    kept = <uint32_t>max(<uint64_t>1, MOUNT_BYTES_KEPT // mount_bytes(g))
    status = add_mount(g, &fresh, d.incarnation, known - min(known, kept))
    if status != WAN_OK:
        return status
    swap_stages(&d.log.identity, &fresh)
    wan_stage_close(&fresh)
    # Now, so that the mounts told to receivers are all there after a crash. Where the disk does not take it, the first block's manifest has it.
    if d.log.named:
        wan_log_write_identity(&d.log, d.state.bytes, d.state.used)
    return WAN_OK


cdef bint is_of_this_past(const gateway_queue *g, uint64_t mount, uint32_t partition, uint64_t last) noexcept nogil:
    """Under the queue's lock: whether what was sent in `mount`, up to `last`, is what this queue has or had under these sequences."""
    cdef const queue_identity *head = <const queue_identity *>g.durable.log.identity.bytes
    cdef uint32_t n
    if mount == g.durable.mount:
        return True
    for n in range(head.mounts):
        if mount_at(g, n)[0] == mount:
            return n + 1 < head.mounts and last <= mount_at(g, n + 1)[1 + partition]
    return False


cdef wan_status durable_renew(gateway_queue *g) noexcept nogil:
    """The committer's: takes the incarnation that is wanted, if one is. What is queued keeps its sequences, and may be known under the old one."""
    cdef durable_log *d = g.durable
    cdef wan_stage fresh
    cdef wan_status status
    cdef uint64_t wanted
    cdef uint32_t p
    wan_lock_take(&g.lock)
    wanted = d.wanted_incarnation
    status = add_mount(g, &fresh, wanted, (<queue_identity *>d.log.identity.bytes).mounts) if wanted else WAN_OK
    if wanted and status == WAN_OK:
        swap_stages(&d.log.identity, &fresh)
    wan_lock_release(&g.lock)
    if wanted == 0 or status != WAN_OK:
        return status
    status = wan_log_write_identity(&d.log, d.state.bytes, d.state.used)
    wan_lock_take(&g.lock)
    if status != WAN_OK:
        swap_stages(&d.log.identity, &fresh)
    else:
        d.incarnation, d.wanted_incarnation = wanted, 0
        for p in range(g.queue.partition_count):
            g.queue.partitions[p].duplicate_through = g.queue.partitions[p].appended
    wan_lock_release(&g.lock)
    wan_stage_close(&fresh)
    wan_signal_change(&d.epoch)
    return status


# Recovery

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
            status = wan_stage_add(&d.dictionary, data + at, 8 + wan_align8(name_length))
            if status != WAN_OK:
                return status
            if number > d.next_log_number:
                d.next_log_number = number
        at += 8 + wan_align8(name_length)
    return WAN_OK


cdef inline wan_status corrupt(const char *what) noexcept nogil:
    set_detail("%s", what)
    return WAN_CORRUPT


cdef int adopt_name(durable_log *d, uint16_t number, const uint8_t *text, uint16_t length) noexcept with gil:
    try:
        own = region_number((<const char *>text)[:length].decode())
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


cdef inline void keep_damage(wan_stage *damages, const wan_damage *damage) noexcept nogil:
    if damages.count < DAMAGES_MAX:
        wan_stage_add(damages, damage, sizeof(wan_damage))


cdef list damage_list(const wan_stage *damages):
    cdef const wan_damage *damage = <const wan_damage *>damages.bytes
    return [{"file": (<bytes>damage[n].file).decode("utf-8", "surrogateescape"), "offset": damage[n].offset,
             "reason": (<bytes>damage[n].reason).decode("utf-8", "replace")} for n in range(damages.count)]


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
    set_detail("%s %llu in partition %u, where there were not even %llu so far", what, <unsigned long long>sequence, <unsigned int>partition,
               <unsigned long long>most)
    return WAN_CORRUPT


cdef wan_status recover_state(void *owner, const uint8_t *data, uint64_t length) noexcept nogil:
    """Out of the manifest."""
    return take_recovered_state(<gateway_queue *>owner, data, length, NEVER)


cdef wan_status take_recovered_state(gateway_queue *g, const uint8_t *data, uint64_t length, uint64_t segment) noexcept nogil:
    """`segment`: the number of the one that it was found in; NEVER: the manifest, which comes before all of them."""
    cdef durable_log *d = g.durable
    cdef const log_state *head = <const log_state *>data
    cdef const uint64_t *pairs
    cdef uint64_t newest_stamp = g.counts.newest_stamp, repairs = g.counts.clock_repairs, most
    cdef uint32_t p
    if length == 0:
        return WAN_OK
    if (length < sizeof(log_state) or head.partitions != g.queue.partition_count or head.counters > length // 8
            or length != sizeof(log_state) + head.counters * 8ULL + head.partitions * 16ULL + head.names_bytes):
        return corrupt("the queue's state in the log does not fit its length")
    if head.counters > sizeof(queue_counts) // 8:
        return corrupt("the queue's state in the log has counters that this version does not know; upgrade before opening it")
    if d.state.used and head.commit <= d.state_commit:      # Of the same commit: the manifest's was taken later, when the log was full.
        return WAN_OK
    pairs = <const uint64_t *>(data + sizeof(log_state) + head.counters * 8ULL)
    for p in range(head.partitions):
        if pairs[2 * p] > pairs[2 * p + 1]:
            return corrupt("a partition's positions in the log contradict each other")
        most = ever_written(d.log.next_number) if segment == NEVER else newest_possible(g, p, segment)
        if pairs[2 * p + 1] > most:
            return impossible("a state says that the newest event is", pairs[2 * p + 1], p, most)
    wan_stage_empty(&d.state)               # The next manifest says it again: blocks before it may be gone.
    if wan_stage_add(&d.state, data, length) != WAN_OK:
        return WAN_NO_MEMORY
    d.state_commit = head.commit
    memset(&g.counts, 0, sizeof(queue_counts))      # Counters are only ever added, at the end.
    memcpy(&g.counts, data + sizeof(log_state), head.counters * 8ULL)
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
    cdef uint64_t at = 0, newest = g.counts.newest_stamp
    cdef uint64_t *highest = d.log.segments[index].highest
    cdef wan_partition *partition
    cdef wan_status status, found = WAN_OK
    if head.kind == WAN_PART_NAMES:
        return recover_names(d, data, head.length)
    if head.kind == WAN_PART_STATE:
        return take_recovered_state(g, data, head.length, d.log.segments[index].number)
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
    while at < head.length:
        record = <const wan_record *>(data + at)
        if wan_record_check(<const uint8_t *>record, head.length - at) != WAN_OK:
            found = WAN_CORRUPT
            if not wan_record_has_end(record, head.length - at):
                break
            at += record.length         # Salvage takes what is behind it.
            continue
        wan_prefetch(data + at + 8 * record.length)         # Most are about as long as this one.
        if record.partition >= g.queue.partition_count or record.sequence == 0:
            return corrupt("a record in the log names a partition that is not there")
        partition = &g.queue.partitions[record.partition]
        if (record.sequence > partition.appended + EVENTS_OF_SEGMENT_MAX
                and record.sequence > newest_possible(g, record.partition, d.log.segments[index].number)):
            return impossible("a record has the sequence", record.sequence, record.partition, newest_possible(g, record.partition, d.log.segments[index].number))
        if d.process_numbers[record.region] == 0 and not (d.salvage and adopt_unknown(d, record.region)):
            return corrupt("a record in the log names a region that is not there")
        if record.sequence > highest[record.partition]:
            highest[record.partition] = record.sequence
        if record.stamp > newest and commit > d.repaired_commit:
            newest = g.counts.newest_stamp = record.stamp
        if record.sequence > partition.removed:
            queue_note_copy(g, record)
        own = d.process_numbers[record.region]
        if d.adopting and own == record.region:
            status = wan_queue_restore_here(&g.queue, d.adopting, record)
        else:
            wan_stage_empty(&d.moved)
            status = wan_stage_add(&d.moved, record, record.length)
            if status == WAN_OK:
                copy = <wan_record *>d.moved.bytes
                copy.region = own
                status = wan_queue_restore(&g.queue, copy)
        if status != WAN_OK:
            return status
        d.recovered_records += 1
        at += record.length
    return found


cdef int adopt_segment(void *owner, uint32_t index, const char *path, const uint8_t *base, uint64_t length) noexcept nogil:
    """The log's segment is mapped: the queue's records may lie there as they are."""
    cdef gateway_queue *g = <gateway_queue *>owner
    if wan_store_adopt(&g.queue.store, path, base, length, &g.durable.adopting) != WAN_OK:
        g.durable.adopting = 0
    return g.durable.adopting != 0


cdef void segment_adopted(void *owner, uint32_t index) noexcept nogil:
    cdef gateway_queue *g = <gateway_queue *>owner
    if g.durable.adopting:
        wan_store_adopted(&g.queue.store, g.durable.adopting)
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
