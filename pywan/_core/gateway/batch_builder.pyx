# Chooses the events that a dispatcher sends next: peeks events of the dispatcher's partitions in the queue, filters and
# conflates the events, and lays the rest out as one batch.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_store cimport *
from pywan._core.c_system cimport *
from pywan._core.queue.event_queue cimport EventQueue
from pywan._core.gateway.log_gate cimport gate_close, gate_grow, gate_look
from pywan._core.gateway.in_flight cimport InFlight, flight
from pywan._core.wire.lz4 cimport lz4_bound, lz4_load, lz4_is_direct, lz4_pack, lz4_pack_behind
from pywan._core.queue.queue cimport (
    dispatcher_signal, queue_apply_removal, queue_next_of_dispatcher, queue_refresh_ready)
from pywan._core.gateway.sender_callbacks cimport SenderCallbacks, between_events
from pywan._core.region.event_filters cimport EventFilters, is_sent
from pywan._core.values.queue_event cimport event_of
from pywan._core.wire.session cimport GOES_AGAIN, GOES_ON, Session
from pywan._core.base.status cimport end_if_strayed, report_unraisable
from pywan._core.wire.stream cimport buffer_frame, buffer_reserve


cdef enum:
    RECORDS_AHEAD = 8                   # Records fetched from memory ahead of the record in hand.
    # Records in a file are copied together with the bytes between them, if the total is at most this many times the
    # records' length.
    COPY_RATIO_MAX = 8
    READ_AGAIN_US = 1000000             # Pause before a log file is read again after a failure.
    # Pause before a new look at a first event that is not replicated yet, or is in no log yet.
    UNSTABLE_RETRY_US = 2000


cdef struct batch_in_work:
    # The content of a batch so far.
    uint32_t wanted                     # Limit of its events.
    uint32_t sections_max               # Limit of its sections.
    uint32_t count, sections
    uint64_t bytes                      # Total length of the records.
    uint64_t room                       # Space for copies of records in files.


cdef class BatchBuilder:
    """Builds the batches of dispatcher `index` of a queue, in the dispatcher's thread. Fields used by other threads are
    atomic, or under the queue's lock."""

    def __cinit__(self, EventQueue queue not None, uint32_t index, SenderCallbacks callbacks not None):
        self.queue, self.gateway, self.index, self.callbacks = queue, queue.gateway, index, callbacks
        self.records_capacity = 1024
        self.records = <wan_record **>malloc(self.records_capacity * sizeof(wan_record *))
        self.sequences = <uint64_t *>malloc(self.records_capacity * sizeof(uint64_t))
        self.lengths = <uint32_t *>malloc(self.records_capacity * sizeof(uint32_t))
        if self.records == NULL or self.sequences == NULL or self.lengths == NULL or not grow_sections(self, 1):
            raise MemoryError()

    def __dealloc__(self):
        free(self.records)
        free(self.sequences)
        free(self.lengths)
        free(self.sections)
        free(self.spans)
        free(self.streams)
        free(self.named_timelines)
        wan_merge_close(&self.merge)
        gate_close(&self.gate)
        wan_buffer_close(&self.copied)
        wan_buffer_close(&self.pack)

    cdef int configure(self, batch_options options) except -1:
        """Sets the options of the next batches."""
        if options.compress:
            lz4_load()
        self.options = options
        return 0

    cdef void begin(self) noexcept nogil:
        """Begins a new connection. No region and no stream has been named on the connection."""
        memset(self.announced, 0, sizeof(self.announced))
        if self.named_timelines != NULL:        # memset of no bytes may not begin at NULL either.
            memset(self.named_timelines, 0, self.named_capacity * sizeof(uint64_t))

    cdef void rewind(self, uint64_t batches) noexcept nogil:
        """Makes the events of the last `batches` batches, except removed events, be sent again as possible
        duplicates."""
        cdef uint32_t p = self.index
        wan_lock_take(&self.gateway.lock)
        self.gateway.counts.batches_redistributed += batches
        while p < self.gateway.queue.partition_count:
            if self.gateway.queue.partitions[p].peeked > self.gateway.queue.partitions[p].removed:
                wan_queue_rewind(&self.gateway.queue, p)
                queue_apply_removal(self.gateway, p)
            p = queue_next_of_dispatcher(self.gateway, p)
        queue_refresh_ready(self.gateway, self.index)
        self.gateway.signals[self.index].wake_at = DO_NOT_WAKE
        wan_lock_release(&self.gateway.lock)

    # Time of a batch

    cdef bint is_due(self, uint64_t now_us) noexcept nogil:
        """Returns whether there are events for a batch: enough events, or events that waited long enough."""
        cdef uint64_t ready = wan_read(&self.gateway.signals[self.index].ready)
        if ready == 0:
            self.waiting_since_us = 0
            return False
        if ready >= self.options.events_max or self.options.interval_us < 0 or wan_flag_read(&self.flush_flag):
            return True
        if self.waiting_since_us == 0:
            self.waiting_since_us = now_us
        return now_us - self.waiting_since_us >= <uint64_t>self.options.interval_us

    cdef bint may_build(self, uint64_t now_us) noexcept nogil:
        return not wan_flag_read(&self.pause_flag) and now_us >= self.again_us

    cdef uint64_t fills_until(self, uint64_t until_us) noexcept nogil:
        """Returns the time when the filling batch is due, `until_us` at the latest."""
        if not self.waiting_since_us:
            return until_us
        return min(until_us, self.waiting_since_us + <uint64_t>max(self.options.interval_us, <int64_t>0))

    cdef uint64_t due_us(self, uint64_t now_us, uint64_t until_us) noexcept nogil:
        """Returns the time when a batch is to be built, if a batch may leave, `until_us` at the latest."""
        if wan_flag_read(&self.pause_flag):
            return until_us
        if now_us < self.again_us:
            return min(until_us, self.again_us)
        return now_us if self.is_due(now_us) else self.fills_until(until_us)

    cdef int wait_for_events(self, uint64_t now_us, bint may_leave) noexcept nogil:
        """Sets the number of events that wakes the dispatcher, if a batch may leave now. The check is under the lock,
        so no event arrives unnoticed in between. GOES_AGAIN: events arrived since the last look."""
        cdef dispatcher_signal *own = &self.gateway.signals[self.index]
        cdef int how = GOES_ON
        wan_lock_take(&self.gateway.lock)
        if may_leave and self.may_build(now_us):
            if own.ready == 0:
                own.wake_at = 1
            elif own.ready >= self.options.events_max or not self.waiting_since_us:
                how = GOES_AGAIN
            else:
                own.wake_at = self.options.events_max
                if self.fills_until(NEVER) <= now_us:
                    how = GOES_AGAIN
        wan_lock_release(&self.gateway.lock)
        return how

    cdef void stop_waiting(self) noexcept nogil:
        wan_lock_take(&self.gateway.lock)
        self.gateway.signals[self.index].wake_at = DO_NOT_WAKE
        wan_lock_release(&self.gateway.lock)

    # Content of a batch

    cdef int build(self, Session session, InFlight flights, uint64_t now_us) noexcept nogil:
        """Peeks, filters, conflates and lays out one batch for `session` to send. From then on the batch is in flight.
        `session` is kept alive while the user's Python runs. 0: no memory, and no event was peeked."""
        cdef uint32_t n, turn, mine, partitions, turns, sections, count
        cdef batch_in_work work
        cdef bint asked, waits = False
        cdef bint merges = self.index == 0 and self.gateway.queue.keeps_arrivals
        memset(&work, 0, sizeof(work))
        self.asks = wan_flag_read(&self.callbacks.asks_transmit)
        work.wanted = self.options.events_max
        if self.records_capacity < work.wanted:
            if not grow_records(self, <uint32_t>min(<uint64_t>work.wanted,
                                                    wan_read(&self.gateway.signals[self.index].ready) + 1)):
                return 0
            work.wanted = min(work.wanted, self.records_capacity)
        partitions = wan_queue_partition_count(&self.gateway.queue)
        mine = self.gateway.queue.own_count if self.gateway.queue.keeps_arrivals else partitions
        if mine <= self.index:
            return 1
        mine = (mine - self.index + self.gateway.dispatchers - 1) // self.gateway.dispatchers
        turns = mine + merges
        work.sections_max = min(work.wanted, <uint32_t>WAN_SECTIONS_MAX)
        if not merges:
            work.sections_max = min(mine, work.sections_max)
        elif wan_merge_make_room(&self.merge, partitions) != WAN_OK:
            return 0
        if not grow_sections(self, work.sections_max) or not grow_names(self, partitions):
            return 0
        if not gate_grow(&self.gate, partitions):
            return 0
        wan_lock_take(&self.gateway.lock)
        if partitions != self.gateway.queue.partition_count:        # The allocated space may be too small now.
            wan_lock_release(&self.gateway.lock)
            return 1
        wan_queue_let_go(&self.gateway.queue, self.index, self.gateway.dispatchers)
        if self.gateway.logs.used:
            waits = gate_look(&self.gate, self.gateway, self.index)
        for n in range(turns):
            if (work.count >= work.wanted or work.bytes >= self.options.bytes_max
                    or work.sections == work.sections_max):
                break
            turn = (self.next_turn + n) % turns
            if turn < mine:
                take_of(self, &work, self.index + turn * self.gateway.dispatchers)
            else:
                waits |= take_merged(self, &work)
        self.next_turn = (self.next_turn + 1) % turns
        # Counted again: conflation removes events without a correction of the count.
        queue_refresh_ready(self.gateway, self.index)
        wan_lock_release(&self.gateway.lock)
        count, sections = work.count, work.sections
        if count == 0 and waits:
            self.again_us = now_us + UNSTABLE_RETRY_US
            return 1
        self.waiting_since_us = 0
        if count == 0:
            return 1
        # From here on only this thread uses the records: the records are peeked, so no other thread changes or moves
        # them.
        if work.room or self.copied.capacity or self.unreadable[0]:
            sections = read_files(self, now_us, sections, &count, work.room)
        if count == 0:
            return 1
        if self.asks:
            self.callbacks.begin(session)
            asked = filter_batch(self, session, sections, count)
            self.callbacks.end(session)
            if not asked:
                return 1
            now_us = session.now_us         # The batch leaves now, and the receiver's time begins.
        if self.options.conflation and count > 1:
            conflate_batch(self, sections, count)
        return lay_out_batch(self, session, flights, now_us, sections)

    cdef object unreadable_reason(self):
        """Returns the reason why events in a file of the log are not sent; None: all events can be sent. Any thread may
        call."""
        cdef char reason[WAN_DETAIL_BYTES]
        with nogil:
            wan_lock_take(&self.gateway.lock)
            memcpy(reason, self.unreadable, sizeof(reason))
            wan_lock_release(&self.gateway.lock)
        return (<bytes>reason).decode("utf-8", "replace") if reason[0] else None


cdef void take_of(BatchBuilder self, batch_in_work *work, uint32_t number) noexcept nogil:
    """Peeks events of one partition, as many as fit. Under the queue's lock."""
    cdef wan_partition *partition = &self.gateway.queue.partitions[number]
    cdef uint64_t size, first = partition.peeked + 1
    cdef uint32_t taken, wanted = work.wanted - work.count
    if wan_partition_ready(partition) == 0:
        return
    if self.gateway.logs.used:
        if self.gate.open[number] <= partition.peeked:
            return
        wanted = <uint32_t>min(<uint64_t>wanted, self.gate.open[number] - partition.peeked)
    taken = wan_queue_peek(&self.gateway.queue, number, wanted, self.options.bytes_max - work.bytes,
                           work.count == 0, self.records + work.count, self.sequences + work.count, &size)
    if taken:
        add_section(self, work, number, first, taken, size)


cdef bint take_merged(BatchBuilder self, batch_in_work *work) noexcept nogil:
    """Peeks events of the streams in the order of their arrivals, as many as fit: one section for each run of one
    stream. Under the queue's lock. True: the next event is not replicated yet."""
    cdef wan_merged_run run
    cdef int waits = 0
    wan_merge_begin(&self.merge, &self.gateway.queue)
    while (work.count < work.wanted and work.sections < work.sections_max and work.bytes < self.options.bytes_max
            and wan_merge_peek(&self.merge, &self.gateway.queue, work.wanted - work.count,
                               self.options.bytes_max - work.bytes, work.count == 0, self.records + work.count,
                               self.sequences + work.count, &run, &waits)):
        add_section(self, work, run.partition, run.first, run.count, run.bytes)
    return waits != 0


cdef inline void add_section(BatchBuilder self, batch_in_work *work, uint32_t number, uint64_t first, uint32_t taken,
                             uint64_t size) noexcept nogil:
    """Makes a section of peeked records of a partition, from sequence `first` on."""
    cdef wan_partition *partition = &self.gateway.queue.partitions[number]
    cdef wan_section *section = &self.sections[work.sections]
    cdef wan_store_span *span = &self.spans[work.sections]
    section.partition = number
    section.count = taken
    section.first = first
    section.through = partition.peeked
    section.acknowledged = partition.removed
    section.bytes = <uint32_t>size
    section.not_durable = section.duplicates = section.reserved = 0
    self.streams[work.sections] = stream_of(self, number, partition)
    if self.gateway.durable != NULL:
        section.not_durable = <uint32_t>min(partition.removed - self.gateway.durable.removed[number],
                                            <uint64_t>0xffffffff)
    span[0] = wan_queue_span(&self.gateway.queue, number, section.first, section.through)
    if span.file != NULL:
        if lies_together(section, span):
            work.room += span.to - span.from_
        elif self.asks:
            wan_queue_lengths(&self.gateway.queue, number, section.first, section.through, self.lengths + work.count)
            work.room += size
    work.sections += 1
    work.count += taken
    work.bytes += size


cdef bint grow_records(BatchBuilder self, uint32_t capacity) noexcept nogil:
    """Allocates at least `capacity` records. False: no memory."""
    if capacity <= self.records_capacity:
        return True
    grown = realloc(self.records, capacity * sizeof(wan_record *))
    if grown == NULL:
        return False
    self.records = <wan_record **>grown
    grown = realloc(self.sequences, capacity * sizeof(uint64_t))
    if grown == NULL:
        return False
    self.sequences = <uint64_t *>grown
    grown = realloc(self.lengths, capacity * sizeof(uint32_t))
    if grown == NULL:
        return False
    self.lengths, self.records_capacity = <uint32_t *>grown, capacity
    return True


cdef bint grow_sections(BatchBuilder self, uint32_t capacity) noexcept nogil:
    """Allocates at least `capacity` sections. False: no memory."""
    if capacity <= self.sections_capacity:
        return True
    grown = realloc(self.sections, capacity * sizeof(wan_section))
    if grown == NULL:
        return False
    self.sections = <wan_section *>grown
    grown = realloc(self.spans, capacity * sizeof(wan_store_span))
    if grown == NULL:
        return False
    self.spans = <wan_store_span *>grown
    grown = realloc(self.streams, capacity * sizeof(wan_stream))
    if grown == NULL:
        return False
    self.streams, self.sections_capacity = <wan_stream *>grown, capacity
    return True


cdef bint grow_names(BatchBuilder self, uint32_t capacity) noexcept nogil:
    """Allocates the timelines of at least `capacity` partitions. False: no memory."""
    if capacity <= self.named_capacity:
        return True
    grown = realloc(self.named_timelines, capacity * sizeof(uint64_t))
    if grown == NULL:
        return False
    self.named_timelines = <uint64_t *>grown
    memset(self.named_timelines + self.named_capacity, 0, (capacity - self.named_capacity) * sizeof(uint64_t))
    self.named_capacity = capacity
    return True


cdef wan_stream stream_of(BatchBuilder self, uint32_t number, const wan_partition *partition) noexcept nogil:
    """Returns the present stream of a partition. Under the queue's lock: the timeline may change as soon as the lock is
    free."""
    cdef wan_stream stream
    cdef uint32_t n
    cdef const wan_stream_run *run
    memset(&stream, 0, sizeof(stream))
    stream.timeline, stream.region, stream.bucket = partition.timeline, partition.region, <uint16_t>partition.bucket
    if partition.timeline != self.named_timelines[number]:
        for n in range(self.gateway.queue.run_count):
            run = &self.gateway.queue.runs[n]
            if run.first <= number < run.first + run.buckets:
                stream.buckets = <uint16_t>run.buckets
    return stream


cdef uint32_t read_files(BatchBuilder self, uint64_t now_us, uint32_t sections, uint32_t *count,
                         uint64_t room) noexcept nogil:
    """Copies peeked records out of files, in `room` bytes. Returns the number of remaining sections, and in *count the
    number of remaining records. A record stays queued if another process truncated the file, or if the disk fails:
    touching the record would end the process."""
    cdef uint32_t s, taken, left = 0, at = 0, kept = 0
    cdef wan_section section
    cdef bint readable, has_room
    wan_buffer_empty(&self.copied)
    if room == 0:
        wan_buffer_close(&self.copied)       # No more records are in files.
    has_room = wan_buffer_reserve(&self.copied, room) == WAN_OK
    for s in range(sections):
        section = self.sections[s]
        taken = section.count
        readable = self.spans[s].file == NULL or (has_room and read_section(self, &section, &self.spans[s], at))
        if not readable or (self.unreadable[0] and self.unreadable_partition == section.partition):
            note_readable(self, &section, readable)
        if readable:
            if kept != at:
                memmove(self.records + kept, self.records + at, taken * sizeof(wan_record *))
                memmove(self.sequences + kept, self.sequences + at, taken * sizeof(uint64_t))
            kept += taken
            self.sections[left], self.streams[left] = section, self.streams[s]
            left += 1
        at += taken
    self.again_us = now_us + READ_AGAIN_US if left == 0 else 0
    count[0] = kept
    return left


cdef inline bint lies_together(const wan_section *section, const wan_store_span *span) noexcept nogil:
    return span.to - span.from_ <= COPY_RATIO_MAX * section.bytes


cdef bint read_section(BatchBuilder self, const wan_section *section, const wan_store_span *span,
                       uint32_t at) noexcept nogil:
    """Copies the records from `at` on out of their file, so that later changes of the file have no effect. Records far
    from each other are only checked, since a copy of each record would cost as much as sending the record. If a
    filter's Python runs between the check and the sending, these records are copied too."""
    cdef uint8_t *to = self.copied.bytes + self.copied.used
    cdef uint32_t n
    if not lies_together(section, span):
        if not self.asks:
            return wan_store_check(self.gateway.queue.store, span) == WAN_OK
        self.copied.used += section.bytes
        return wan_queue_copy(&self.gateway.queue, span, self.records + at, self.lengths + at, section.count,
                              to) == WAN_OK
    self.copied.used += span.to - span.from_
    if wan_queue_copy_span(&self.gateway.queue, span, to) != WAN_OK:
        return False
    for n in range(at, at + section.count):
        # The remaining records are in memory.
        if span.base <= <const uint8_t *>self.records[n] < span.base + span.mapped:
            self.records[n] = <wan_record *>(to + (<const uint8_t *>self.records[n] - span.base - span.from_))
    return True


cdef void note_readable(BatchBuilder self, const wan_section *section, bint readable) noexcept nogil:
    cdef bint was = self.unreadable[0] != 0
    wan_lock_take(&self.gateway.lock)
    if readable:
        self.unreadable[0] = 0
    else:
        wan_queue_unpeek(&self.gateway.queue, section.partition, section.first - 1)
        queue_refresh_ready(self.gateway, self.index)
        memcpy(self.unreadable, wan_detail, sizeof(self.unreadable))
        self.unreadable_partition = section.partition
    wan_lock_release(&self.gateway.lock)
    if not readable and not was:
        tell_unreadable(self)


cdef void tell_unreadable(BatchBuilder self) noexcept with gil:
    import logging
    logging.getLogger("pywan.sender").error(
        "queue %s: events of dispatcher %d stay queued and are not sent: %s; stop the member, and restore "
        "the file or "
        "save what is whole with `pywan salvage disk-store --dir=STORE --to=NEW`",
        self.queue.name, self.index, self.unreadable_reason())


cdef inline void drop_from_batch(BatchBuilder self, wan_section *section, uint32_t at, uint64_t *counter,
                                 uint32_t reason) noexcept nogil:
    # Makes the record a hole in the queue and a NULL in the batch. Under the queue's lock. An event that left the queue
    # meanwhile, for a stream or with its bucket, is not counted.
    cdef const wan_partition *partition = &self.gateway.queue.partitions[section.partition]
    cdef uint64_t before = self.gateway.queue.events
    section.bytes -= wan_record_length(self.records[at])
    if partition.removed < self.sequences[at] <= partition.appended:
        wan_queue_make_hole(&self.gateway.queue, section.partition, self.sequences[at], reason)
    self.records[at] = NULL
    counter[0] += before - self.gateway.queue.events


cdef void count_duplicates(BatchBuilder self, uint32_t sections) noexcept nogil:
    """Counts the events in front of each section that may have been applied before."""
    cdef uint32_t s, at = 0
    cdef wan_section *section
    cdef uint64_t through
    wan_lock_take(&self.gateway.lock)
    for s in range(sections):
        section = &self.sections[s]
        through = self.gateway.queue.partitions[section.partition].duplicate_through
        section.duplicates = 0
        while section.duplicates < section.count and self.sequences[at + section.duplicates] <= through:
            section.duplicates += 1
        at += section.count
    wan_lock_release(&self.gateway.lock)


cdef bint ask_filters(BatchBuilder self, Session session, uint32_t sections, uint8_t *leaves) except -1:
    """Asks the filters about one event after the other, and clears the byte in `leaves` of each event that a filter
    refuses. False: the session was told to stop meanwhile."""
    cdef EventFilters filters = self.callbacks.filters
    cdef uint32_t at = 0, s, k
    cdef bint repeated
    if filters is None:
        return True
    try:
        for s in range(sections):
            for k in range(self.sections[s].count):
                between_events(self.callbacks, session)
                if wan_flag_read(&session.stop_flag):
                    return False
                repeated = k < self.sections[s].duplicates or self.records[at].flags & WAN_FLAG_REPEATED != 0
                leaves[at] = is_sent(filters, event_of(self.records[at], repeated))
                at += 1
    finally:
        end_if_strayed(self.callbacks.born, "a dispatcher")
    return True


cdef bint filter_batch(BatchBuilder self, Session session, uint32_t sections, uint32_t count) noexcept with gil:
    """Asks the user's filters. False: the session was told to stop meanwhile. Then the peeked events are queued as
    before, and the filters are asked again."""
    cdef uint32_t at = 0, s, _k
    cdef bint answered = True
    cdef bytes verdicts             # One byte for each record: 1 if the record is sent.
    cdef uint8_t *leaves
    try:
        verdicts = PyBytes_FromStringAndSize(NULL, count)
        leaves = <uint8_t *>PyBytes_AS_STRING(verdicts)
        memset(leaves, 1, count)
        with nogil:
            count_duplicates(self, sections)
        try:
            # The user's Python runs without a lock.
            answered = ask_filters(self, session, sections, leaves)
        except BaseException as error:      # The user's errors were handled before. All other events are sent.
            report_unraisable("before_transmit", error)
        with nogil:
            wan_lock_take(&self.gateway.lock)
            for s in range(sections):
                if not answered:
                    wan_queue_unpeek(&self.gateway.queue, self.sections[s].partition, self.sections[s].first - 1)
                    continue
                for _k in range(self.sections[s].count):
                    if not leaves[at]:
                        drop_from_batch(self, &self.sections[s], at, &self.gateway.counts.filtered_transmit,
                                        WAN_HOLE_FILTERED)
                    at += 1
            if not answered:
                queue_refresh_ready(self.gateway, self.index)
            wan_lock_release(&self.gateway.lock)
    except BaseException as error:          # No memory. All events are sent.
        report_unraisable("before_transmit", error)
    return answered


cdef void conflate_batch(BatchBuilder self, uint32_t sections, uint32_t count) noexcept nogil:
    """Keeps only the newest of several updates of one key. The loop goes from the newest update to the oldest."""
    cdef uint32_t capacity = 16, at, s, k, base = 0, slot
    cdef uint32_t *newest
    cdef wan_record *record
    cdef wan_record *other
    cdef uint64_t hash
    while capacity < count * 2:
        capacity *= 2
    newest = <uint32_t *>malloc(capacity * sizeof(uint32_t))
    if newest == NULL:
        return                          # The batch is sent without conflation.
    memset(newest, 0, capacity * sizeof(uint32_t))
    wan_lock_take(&self.gateway.lock)
    for s in range(sections):
        for k in range(self.sections[s].count):
            at = base + self.sections[s].count - 1 - k
            record = self.records[at]
            if record == NULL or record.operation != WAN_UPDATE:
                continue
            hash = wan_secret_hash(wan_record_key(record), record.key_length,
                                   record.key_form | <uint64_t>record.region << 8)
            slot = <uint32_t>hash & (capacity - 1)
            while True:
                if newest[slot] == 0:
                    newest[slot] = at + 1
                    break
                other = self.records[newest[slot] - 1]
                if (other.region == record.region and other.key_length == record.key_length
                        and other.key_form == record.key_form
                        and memcmp(wan_record_key(other), wan_record_key(record), record.key_length) == 0):
                    # An event that was parked and replayed can be behind a newer version: then both are sent.
                    if wan_record_order(record, other) <= 0:
                        drop_from_batch(self, &self.sections[s], at, &self.gateway.counts.conflated_batch,
                                        WAN_HOLE_CONFLATED_IN_BATCH)
                    else:
                        newest[slot] = at + 1
                    break
                slot = (slot + 1) & (capacity - 1)
        base += self.sections[s].count
    wan_lock_release(&self.gateway.lock)
    free(newest)


cdef int lay_out_batch(BatchBuilder self, Session session, InFlight flights, uint64_t now_us,
                       uint32_t sections) noexcept nogil:
    """Lays out the remaining records as one frame. 0: no memory."""
    cdef flight *batch = flights.next(sections)
    cdef wan_buffer *out = &session.out
    cdef uint64_t payload = sizeof(wan_batch_head) + sections * sizeof(wan_section)
    cdef uint32_t s, k, _k, at = 0, kept = 0, in_section, total_here, all_records = 0
    cdef bint has_holes
    cdef wan_record *record
    cdef wan_section *section
    cdef wan_frame *frame
    cdef wan_batch_head *head
    cdef uint8_t *to
    cdef uint64_t *sequence
    cdef uint64_t duplicates = 0, duplicate_through
    cdef const uint8_t *run = NULL
    cdef size_t run_bytes = 0, laid_out
    cdef int packed
    cdef bint compress
    # A single section with contiguous records in the queue is packed in place.
    cdef bint in_place = sections == 1
    if batch == NULL:
        return 0
    for s in range(sections):
        all_records += self.sections[s].count
    at = 0
    for s in range(sections):
        section = &self.sections[s]
        in_section = 0
        for _k in range(section.count):
            if at + RECORDS_AHEAD < all_records and self.records[at + RECORDS_AHEAD] != NULL:
                wan_prefetch(self.records[at + RECORDS_AHEAD])
                wan_prefetch(<uint8_t *>self.records[at + RECORDS_AHEAD] + 64)
                wan_prefetch(<uint8_t *>self.records[at + RECORDS_AHEAD] + 128)
            record = self.records[at]
            if record == NULL or (run != NULL and run != <uint8_t *>record):
                in_place = False
            if record != NULL:
                in_section += 1
                self.lengths[at] = wan_record_length(record)
                run = <uint8_t *>record + self.lengths[at]
                if not region_is_announced(self.announced, record.region) and not announce(self, out, record.region):
                    return 0
            at += 1
        # A stream may have several sections in the batch.
        if (self.streams[s].buckets and self.streams[s].timeline != self.named_timelines[section.partition]
                and not name_stream(self, out, section.partition, &self.streams[s])):
            return 0
        payload += section.bytes
        if section.through - section.first + 1 != in_section:      # If there are holes, each record has its sequence.
            payload += in_section * sizeof(uint64_t)
    # The payload is laid out in the buffer that is sent. If the payload is to be packed, the payload is laid out beside
    # the buffer, or only the head is, and the records are packed in place. So packing is the only copy into the sent
    # buffer.
    compress = self.options.compress and payload > 256
    in_place = in_place and compress and lz4_is_direct()
    if not buffer_reserve(out, sizeof(wan_frame) + (lz4_bound(<uint32_t>payload) + 8 if compress else payload)):
        return 0
    if compress and not buffer_reserve(&self.pack, payload):
        return 0
    frame = <wan_frame *>(out.bytes + out.used)
    memset(frame, 0, sizeof(wan_frame))
    head = <wan_batch_head *>self.pack.bytes if compress else <wan_batch_head *>(frame + 1)
    head.sections, head.reserved = sections, 0
    to = <uint8_t *>(head + 1) + sections * sizeof(wan_section)
    at = 0
    for s in range(sections):
        section = &self.sections[s]
        total_here = section.count
        duplicate_through = self.gateway.queue.partitions[section.partition].duplicate_through
        in_section = 0
        for k in range(total_here):
            in_section += self.records[at + k] != NULL
        sequence = <uint64_t *>to
        section.count = in_section
        has_holes = wan_section_has_holes(section)
        to += wan_section_head_bytes(section)
        section.bytes += <uint32_t>wan_section_head_bytes(section)
        section.duplicates = 0
        run, run_bytes = to, 0
        for _k in range(total_here):
            record = self.records[at]
            at += 1
            if record == NULL:
                continue
            if run + run_bytes != <uint8_t *>record:     # Contiguous records are copied at once.
                wan_copy_small(to, run, run_bytes)
                to += run_bytes
                run, run_bytes = <uint8_t *>record, 0
            run_bytes += self.lengths[at - 1]
            if has_holes:
                sequence[0] = self.sequences[at - 1]
                sequence += 1
            section.duplicates += self.sequences[at - 1] <= duplicate_through
        if not in_place:
            wan_copy_small(to, run, run_bytes)
            to += run_bytes
        duplicates += section.duplicates
        kept += in_section
    memcpy(head + 1, self.sections, sections * sizeof(wan_section))
    frame.magic = WAN_FRAME_MAGIC
    frame.type = WAN_FRAME_BATCH
    frame.id = batch.id
    frame.count = kept
    frame.length = frame.raw_length = <uint32_t>payload
    if compress:
        laid_out = to - <uint8_t *>head
        to = <uint8_t *>(frame + 1)
        if in_place:
            packed = lz4_pack_behind(<uint8_t *>head, <uint32_t>laid_out, run, <uint32_t>run_bytes, to,
                                     lz4_bound(<uint32_t>payload))
        else:
            packed = lz4_pack(<uint8_t *>head, <uint32_t>payload, to, lz4_bound(<uint32_t>payload))
        if packed > 0 and <uint64_t>packed < payload:
            memset(<uint8_t *>(frame + 1) + packed, 0, <size_t>(wan_align8(<uint64_t>packed) - <uint64_t>packed))
            frame.length = <uint32_t>packed
            frame.flags = WAN_FRAME_LZ4
        else:
            memcpy(to, head, laid_out)
            if in_place:
                memcpy(to + laid_out, run, run_bytes)
    frame.crc = wan_frame_crc(frame, frame + 1, frame.length)
    out.used += sizeof(wan_frame) + wan_align8(frame.length)
    batch.events = kept
    batch.bytes = payload
    memcpy(batch.section, self.sections, sections * sizeof(wan_section))
    for s in range(sections):
        batch.timelines[s] = self.streams[s].timeline
    flights.left(batch, now_us)
    wan_lock_take(&self.gateway.lock)
    self.gateway.counts.possible_duplicates += duplicates
    self.gateway.counts.wire_bytes += sizeof(wan_frame) + frame.length
    wan_lock_release(&self.gateway.lock)
    return 1


cdef int announce(BatchBuilder self, wan_buffer *out, uint16_t region) noexcept nogil:
    self.announced[region >> 3] |= <uint8_t>(1 << (region & 7))
    return buffer_frame(out, WAN_FRAME_REGION, region, 0, wan_region_names[region].text,
                        wan_region_names[region].length)


cdef int name_stream(BatchBuilder self, wan_buffer *out, uint32_t partition, const wan_stream *stream) noexcept nogil:
    """Names the stream that a partition is from now on. 0: no memory."""
    if not region_is_announced(self.announced, stream.region) and not announce(self, out, stream.region):
        return 0
    self.named_timelines[partition] = stream.timeline
    return buffer_frame(out, WAN_FRAME_STREAM, partition, 0, stream, sizeof(wan_stream))


cdef inline bint region_is_announced(const uint8_t *announced, uint16_t region) noexcept nogil:
    return announced[region >> 3] >> (region & 7) & 1
