# Owns one dispatcher's side of a connection: what is in flight, what to send next, what an acknowledgement means.
# `DispatcherSession` knows no socket and no clock: bytes and `now` come in, bytes and the next deadline go out.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport bsearch, calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strncpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_tables cimport *
from pywan._core.c_store cimport *
from pywan._core.c_log cimport *
from pywan._core.c_session cimport *
from pywan._core.c_system cimport *
from pywan._core.event_queue cimport EventQueue
from pywan._core.lz4 cimport lz4_bound, lz4_load, lz4_pack
from pywan._core.queue cimport gateway_queue, queue_append_copy, queue_can_read, queue_refresh_pending, signal
from pywan._core.session cimport (
    ENDED_STOPPED, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session, SocketStream, run_session)
from pywan._core.status cimport detail_text, end_if_strayed, raise_for, report_unraisable
from pywan._core.stream cimport (
    STREAM_OK, STREAM_WAIT, buffer_frame, buffer_reserve, stream_next_frame, stream_take)


cdef enum:
    IN_FLIGHT_BATCHES = 64              # At first; power of two. Doubled as a longer link needs them, up to
    IN_FLIGHT_BATCHES_MAX = 16384       # 1.6 million events on their way in batches of 100.
    BATCH_EVENTS_MAX = 100000           # What batch-size -1 (only time closes a batch) means at most.
    AHEAD = 8                           # Records that are fetched from memory ahead of the one in hand.
    TOGETHER = 8                        # Records in a file are copied with what lies between them, up to so many times their bytes.
    READ_AGAIN_US = 1000000             # A file of the log that cannot be read is looked at again after so long.
    HEARTBEAT_US = 5000000
    SILENCE_US = 30000000               # No progress for so long with batches in flight, or no byte without: the receiver is given up. Unless the user says otherwise.


cdef struct flight:
    uint64_t id
    uint64_t events
    uint64_t bytes
    uint32_t sections
    uint32_t capacity
    wan_section *section
    wan_window_mark mark


cdef struct sender_options:
    uint32_t batch_size
    int64_t batch_time_interval_us      # Negative: never wait for more events.
    uint64_t batch_bytes_max            # A batch is closed before it gets longer.
    uint8_t batch_conflation
    uint8_t compress
    uint32_t alert_threshold_ms         # Events acknowledged at a greater age are counted; 0: nobody asks.
    uint64_t silence_us


cdef struct parked_copy:
    uint64_t partition, sequence        # In the queue, where the event still is.


cdef int copy_order(const void *a, const void *b) noexcept nogil:
    cdef const parked_copy *one = <const parked_copy *>a
    cdef const parked_copy *other = <const parked_copy *>b
    if one.partition != other.partition:
        return -1 if one.partition < other.partition else 1
    return -1 if one.sequence < other.sequence else one.sequence > other.sequence


cdef class DispatcherSession(Session):
    """Dispatcher `index` of a queue, over one connection after another.

    `transmit_filter(records, one by one) -> list of bool` and `acknowledged(records, one by one)` are the user's callbacks, None where
    there are none; a record is (its bytes, (partition, sequence, whether it may have been applied before)). `parked` takes failed events.
    """
    cdef EventQueue queue
    cdef EventQueue parked
    cdef gateway_queue *g
    cdef readonly uint32_t index
    cdef sender_options options
    cdef object transmit_filter
    cdef object acknowledged
    cdef object on_failure              # (partition, sequence, reason) -> None, for the log
    cdef wan_buffer copies               # parked_copy: of failed events, not known to be on the disk.
    cdef size_t copies_before           # The first of them, in order: of attempts before this one.
    cdef int pause_flag, flush_flag
    cdef char unreadable[512]           # Why events are not sent that lie in a file of the log: it cannot be read. Empty: it can. Under the queue's lock.
    cdef uint32_t unreadable_partition
    cdef uint64_t read_again_us         # Nothing else is to be sent: until then it is not tried again. 0: it is.
    cdef wan_buffer floors               # wan_floor, as last told by `tell_floors`. Under the queue's lock.
    cdef int floors_due                 # They were not sent on this connection.
    cdef uint64_t floors_told, floors_heard     # Which ones, and which the receiver has answered.
    cdef uint32_t born                          # `wan_forks` of the process that made it.

    # This connection's
    cdef flight *flights                        # Ring by batch id.
    cdef uint32_t flight_capacity               # Power of two.
    cdef uint64_t next_batch, oldest_batch      # In flight: oldest_batch..next_batch-1.
    cdef uint64_t flight_events, flight_bytes
    cdef uint64_t credit_events                 # As the receiver last said.
    cdef wan_window window                      # Bytes: within the receiver's credit, what the link carries.
    cdef uint64_t now_us                        # As last told.
    cdef uint64_t answered_us                   # When the last acknowledgement came, or the oldest batch in flight left.
    cdef uint64_t link_us                       # The shortest way there and back known, without the receiver's work; 0: none yet.
    cdef uint64_t receiver_us                   # Time that the receiver says it worked on what it acknowledged, ever.
    cdef uint8_t announced[8192]                # A bit per region number whose name was sent.
    cdef uint64_t waiting_since_us              # When the first event of a batch that is not full was seen; 0: none.
    cdef uint64_t last_sent_us, last_heard_us
    cdef uint64_t heartbeat_us                  # Silence after which a ping is sent: well within what the receiver bears.
    cdef uint64_t filter_us, blocked_us         # Time spent in the user's callbacks; with batches to send and no room for them on the way.
    cdef uint64_t callback_since_us             # One runs since then; 0: none.
    cdef uint64_t progress_us                   # When the receiver last showed that it works on what is in flight, or the oldest of that left.
    cdef uint64_t steps                         # The highest count that it told of its work.
    cdef int has_progressed_flag, is_given_up_flag, is_refused_flag
    cdef uint32_t next_partition                # Round robin over this dispatcher's partitions.

    # Scratch of batch building
    cdef wan_record **records
    cdef uint64_t *sequences                    # Of each of them.
    cdef uint32_t records_capacity
    cdef wan_section *sections
    cdef wan_store_span *spans                  # Of each section.
    cdef uint32_t *lengths                      # Of those of `records` that lie in files.
    cdef wan_buffer copied                       # These, out of the files.
    cdef wan_buffer pack
    cdef str why                                # Why the last run ended badly.

    def __cinit__(self, EventQueue queue not None, uint32_t index, EventQueue parked not None, *, transmit_filter=None,
                  acknowledged=None, on_failure=None):
        if parked.g.queue.partition_count < WAN_PARK_PARTITIONS:
            raise ValueError(f"queue {parked.name!r}: {parked.g.queue.partition_count} partitions; one for parked events has"
                             f" {<int>WAN_PARK_PARTITIONS}, one per reason of failure")
        self.queue, self.g, self.index, self.parked = queue, queue.g, index, parked
        self.born = wan_forks
        self.reads_while_writing, self.wake_file = True, queue.g.signals[index].file
        self.transmit_filter, self.acknowledged, self.on_failure = transmit_filter, acknowledged, on_failure
        self.records_capacity = 1024
        self.records = <wan_record **>malloc(self.records_capacity * sizeof(wan_record *))
        self.sequences = <uint64_t *>malloc(self.records_capacity * sizeof(uint64_t))
        self.sections = <wan_section *>malloc((queue.g.queue.partition_count + 1) * sizeof(wan_section))
        self.spans = <wan_store_span *>malloc((queue.g.queue.partition_count + 1) * sizeof(wan_store_span))
        self.lengths = <uint32_t *>malloc(self.records_capacity * sizeof(uint32_t))
        if self.records == NULL or self.sequences == NULL or self.lengths == NULL or self.sections == NULL or self.spans == NULL or not self.grow_flights(IN_FLIGHT_BATCHES):
            raise MemoryError()
        wan_window_init(&self.window, 0, 0)
        self.configure(100, 1000)

    def __dealloc__(self):
        for n in range(self.flight_capacity):
            free(self.flights[n].section)
        free(self.flights)
        free(self.records)
        free(self.sequences)
        free(self.sections)
        free(self.spans)
        free(self.lengths)
        wan_buffer_close(&self.copied)
        wan_buffer_close(&self.pack)
        wan_buffer_close(&self.copies)
        wan_buffer_close(&self.floors)

    def configure(self, int batch_size, double batch_time_interval_ms, *, bint batch_conflation=False, bint compress=False,
                  uint64_t batch_bytes_max=8 << 20, uint32_t alert_threshold_ms=0, uint64_t silence_ms=0):
        """Takes effect with the next batch. batch_size -1: only time closes a batch; interval -1: never wait. `silence_ms`: without
        progress for so long the connection is given up; 0: 30 s."""
        if compress:
            lz4_load()
        self.options.batch_size = BATCH_EVENTS_MAX if batch_size < 0 else min(batch_size, <int>BATCH_EVENTS_MAX)
        self.options.batch_time_interval_us = -1 if batch_time_interval_ms < 0 else <int64_t>(batch_time_interval_ms * 1000)
        self.options.batch_conflation = batch_conflation
        self.options.compress = compress
        self.options.alert_threshold_ms = alert_threshold_ms
        self.options.silence_us = silence_ms * 1000 if silence_ms else SILENCE_US
        self.options.batch_bytes_max = min(batch_bytes_max, <uint64_t>(32 << 20))

    def set_callbacks(self, transmit_filter, acknowledged):
        """Replaces the user's callbacks; takes effect with the next batch."""
        self.transmit_filter, self.acknowledged = transmit_filter, acknowledged

    def stop(self):
        """Makes `run` return soon."""
        wan_flag_set(&self.stop_flag, 1)
        eventfd_write(self.g.signals[self.index].file, 1)

    def tell_floors(self, bytes floors):
        """The receiver hears these (wan_floor) with a ping at once, and again on every connection to come."""
        cdef wan_status status
        wan_lock_take(&self.g.lock)
        wan_buffer_empty(&self.floors)
        status = wan_buffer_add(&self.floors, PyBytes_AS_STRING(floors), PyBytes_GET_SIZE(floors))
        wan_tally(&self.floors_told, 1)
        wan_lock_release(&self.g.lock)
        raise_for(status, f"queue {self.queue.name!r}: floors")
        wan_flag_set(&self.floors_due, 1)
        eventfd_write(self.g.signals[self.index].file, 1)

    cdef int ping(self) noexcept nogil:
        """With the floors, whose number comes back with the answer. 0: no memory."""
        cdef int done
        wan_flag_set(&self.floors_due, 0)
        wan_lock_take(&self.g.lock)
        done = buffer_frame(&self.out, WAN_FRAME_PING, self.floors_told, 0, self.floors.bytes, <uint32_t>self.floors.used)
        wan_lock_release(&self.g.lock)
        return done

    @property
    def floors_are_heard(self):
        """Whether a receiver has answered the ping with the floors that `tell_floors` was given last."""
        return wan_read(&self.floors_heard) == wan_read(&self.floors_told)

    def pause(self, bint value):
        """No new batch is built while paused; acknowledgements are still taken."""
        wan_flag_set(&self.pause_flag, value)
        eventfd_write(self.g.signals[self.index].file, 1)

    def times(self):
        """Microseconds so far in the user's callbacks ("filter"), waiting for the link or the receiver with events to send
        ("blocked"), and in which the receiver worked on what it acknowledged ("receiver"): what lag is made of."""
        cdef uint64_t since = wan_read(&self.callback_since_us), now = wan_monotonic_us()
        running = now - since if since and now > since else 0      # A callback that does not return is slow already.
        return {"filter": wan_read(&self.filter_us) + running, "blocked": wan_read(&self.blocked_us), "receiver": wan_read(&self.receiver_us)}

    def flow(self):
        """What is on its way: `window_bytes` that may be, `bytes_in_flight`, `events_in_flight`; the shortest `round_trip_us` known, and without
        the receiver's work `link_us` (0: none), and for how long batches in flight have had no answer (`unanswered_us`)."""
        cdef uint64_t now = wan_monotonic_us(), answered = wan_read(&self.answered_us)
        return {"window_bytes": wan_read(&self.window.bytes), "bytes_in_flight": wan_read(&self.flight_bytes), "events_in_flight": wan_read(&self.flight_events),
                "round_trip_us": wan_read(&self.window.round_trip_us), "link_us": wan_read(&self.link_us),
                "unanswered_us": now - answered if self.in_flight and now > answered else 0}

    @property
    def in_flight(self):
        """Batches sent and not acknowledged."""
        cdef uint64_t oldest = wan_read(&self.oldest_batch)        # First: the other one is never below it.
        return wan_read(&self.next_batch) - oldest

    @property
    def has_progressed(self):
        """Whether the receiver has acknowledged, or told of its work, on this connection or the last one."""
        return wan_flag_read(&self.has_progressed_flag) != 0

    @property
    def is_given_up(self):
        """Whether the last connection ended since its receiver showed no progress, or no life."""
        return wan_flag_read(&self.is_given_up_flag) != 0

    @property
    def is_refused(self):
        """Whether the receiver ended the last connection, and said why."""
        return wan_flag_read(&self.is_refused_flag) != 0

    # The state machine

    cdef void note_progress(self) noexcept nogil:
        self.progress_us = self.now_us
        wan_flag_set(&self.has_progressed_flag, 1)

    def connected(self, uint32_t credit_events, uint64_t credit_bytes, uint64_t now_us=0, uint64_t heartbeat_us=HEARTBEAT_US):
        """A new connection: batch ids start at 0, the receiver's credit is known, no region has been named on it."""
        wan_set(&self.next_batch, 0)
        wan_set(&self.oldest_batch, 0)
        wan_set(&self.flight_events, 0)
        wan_set(&self.flight_bytes, 0)
        self.credit_events = credit_events
        self.now_us = now_us if now_us else wan_monotonic_us()
        wan_window_init(&self.window, credit_bytes, self.now_us)
        wan_set(&self.link_us, 0)
        self.heartbeat_us = max(1000, min(heartbeat_us, <uint64_t>HEARTBEAT_US))
        self.out.start = self.out.used = self.into.start = self.into.used = 0
        memset(self.announced, 0, sizeof(self.announced))
        wan_flag_set(&self.floors_due, self.floors.used != 0)
        self.steps = 0
        self.last_sent_us = self.last_heard_us = self.progress_us = self.now_us
        wan_flag_set(&self.has_progressed_flag, 0)
        wan_flag_set(&self.is_given_up_flag, 0)
        wan_flag_set(&self.is_refused_flag, 0)
        wan_flag_set(&self.stop_flag, 0)

    def disconnected(self):
        """The connection is gone: everything in flight is to be sent again, marked possible duplicate."""
        cdef uint32_t p = self.index
        with nogil:
            wan_lock_take(&self.g.lock)
            self.g.counts.batches_redistributed += self.next_batch - self.oldest_batch
            while p < self.g.queue.partition_count:
                if self.g.queue.partitions[p].peeked > self.g.queue.partitions[p].removed:
                    wan_queue_rewind(&self.g.queue, p)
                p += self.g.dispatchers
            queue_refresh_pending(self.g, self.index)
            self.g.signals[self.index].wake_at = NEVER
            wan_lock_release(&self.g.lock)
        wan_set(&self.next_batch, 0)
        wan_set(&self.oldest_batch, 0)
        wan_set(&self.flight_events, 0)
        wan_set(&self.flight_bytes, 0)
        self.out.start = self.out.used = self.into.start = self.into.used = 0

    cdef bint batch_is_due(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t pending = wan_read(&self.g.signals[self.index].pending)
        if pending == 0:
            self.waiting_since_us = 0
            return False
        if pending >= self.options.batch_size or self.options.batch_time_interval_us < 0 or wan_flag_read(&self.flush_flag):
            return True
        if self.waiting_since_us == 0:
            self.waiting_since_us = now_us
        return now_us - self.waiting_since_us >= <uint64_t>self.options.batch_time_interval_us

    cdef bint window_is_open(self) noexcept nogil:
        return self.next_batch == self.oldest_batch or (
            self.next_batch - self.oldest_batch < IN_FLIGHT_BATCHES_MAX and self.flight_events < self.credit_events
            and wan_window_is_open(&self.window, self.flight_bytes))

    cdef bint grow_flights(self, uint32_t capacity) noexcept nogil:
        cdef flight *grown = <flight *>calloc(capacity, sizeof(flight))
        cdef uint32_t n
        if grown == NULL:
            return False
        for n in range(self.flight_capacity):       # All of them are in flight: the ring was full.
            grown[(self.oldest_batch + n) & (capacity - 1)] = self.flights[(self.oldest_batch + n) & (self.flight_capacity - 1)]
        free(self.flights)
        self.flights, self.flight_capacity = grown, capacity
        return True

    cdef int build_batch(self) noexcept nogil:
        """Peeks, filters, conflates and lays out one batch into `out`. 0: no memory (nothing was peeked)."""
        cdef uint32_t count = 0, sections = 0, n, p, taken, mine
        cdef uint64_t size, total = 0, before, room = 0
        cdef wan_partition *partition
        cdef wan_section *section
        cdef uint32_t wanted = self.options.batch_size
        cdef bint asked
        if self.records_capacity < wanted:
            p = <uint32_t>min(<uint64_t>wanted, wan_read(&self.g.signals[self.index].pending) + 1)
            if p > self.records_capacity:
                grown = realloc(self.records, p * sizeof(wan_record *))
                if grown == NULL:
                    return 0
                self.records = <wan_record **>grown
                grown = realloc(self.sequences, p * sizeof(uint64_t))
                if grown == NULL:
                    return 0
                self.sequences = <uint64_t *>grown
                grown = realloc(self.lengths, p * sizeof(uint32_t))
                if grown == NULL:
                    return 0
                self.lengths, self.records_capacity = <uint32_t *>grown, p
            wanted = min(wanted, self.records_capacity)
        if self.g.queue.partition_count <= self.index:
            return 1
        mine = (self.g.queue.partition_count - self.index + self.g.dispatchers - 1) // self.g.dispatchers
        wan_lock_take(&self.g.lock)
        for n in range(mine):
            if count >= wanted or total >= self.options.batch_bytes_max:
                break
            p = self.index + ((self.next_partition + n) % mine) * self.g.dispatchers
            partition = &self.g.queue.partitions[p]
            if wan_partition_ready(partition) == 0:
                continue
            before = partition.peeked
            taken = wan_queue_peek(&self.g.queue, p, wanted - count, self.options.batch_bytes_max - total, count == 0, self.records + count, self.sequences + count,
                                   &size)
            if taken == 0:
                continue
            section = &self.sections[sections]
            section.partition = p
            section.count = taken
            section.first = before + 1
            section.through = partition.peeked
            section.settled = partition.removed
            section.bytes = <uint32_t>size
            section.unsure = section.duplicates = section.reserved = 0
            if self.g.durable != NULL:
                section.unsure = <uint32_t>min(partition.removed - self.g.durable.removed[p], <uint64_t>0xffffffff)
            self.spans[sections] = wan_queue_span(&self.g.queue, p, section.first, section.through)
            if self.spans[sections].file != NULL:
                if self.lies_together(section, &self.spans[sections]):
                    room += self.spans[sections].end - self.spans[sections].first
                elif self.transmit_filter is not None:
                    wan_queue_lengths(&self.g.queue, p, section.first, section.through, self.lengths + count)
                    room += size
            sections += 1
            count += taken
            total += size
        self.next_partition = (self.next_partition + 1) % mine
        queue_refresh_pending(self.g, self.index)       # Counted anew: conflation takes events out without saying so here.
        wan_lock_release(&self.g.lock)
        self.waiting_since_us = 0
        if count == 0:
            return 1
        # From here on the records are ours: peeked, so neither changed nor moved by anybody.
        if room or self.copied.capacity or self.unreadable[0]:
            sections = self.read_files(sections, &count, room)
        if count == 0:
            return 1
        if self.transmit_filter is not None:
            wan_set(&self.callback_since_us, wan_monotonic_us())
            asked = self.filter_batch(sections)
            self.end_callback()
            if not asked:
                return 1
        if self.options.batch_conflation and count > 1:
            self.conflate_batch(sections, count)
        return self.lay_out_batch(sections)

    cdef uint32_t read_files(self, uint32_t sections, uint32_t *count, uint64_t room) noexcept nogil:
        """Of what was peeked, what lies in files that somebody cut off, or whose disk fails, stays queued: touching it would end the process. `room`: for
        all that is copied out of them. Returns how many sections are left, and *count of records."""
        cdef uint32_t s, taken, left = 0, at = 0, kept = 0
        cdef wan_section section
        cdef bint readable, has_room
        wan_buffer_empty(&self.copied)
        if room == 0:
            wan_buffer_close(&self.copied)       # It was the last of them.
        has_room = wan_buffer_reserve(&self.copied, room) == WAN_OK
        for s in range(sections):
            section = self.sections[s]
            taken = section.count
            readable = self.spans[s].file == NULL or (has_room and self.read_section(&section, &self.spans[s], at))
            if not readable or (self.unreadable[0] and self.unreadable_partition == section.partition):
                self.note_readable(&section, readable)
            if readable:
                if kept != at:
                    memmove(self.records + kept, self.records + at, taken * sizeof(wan_record *))
                    memmove(self.sequences + kept, self.sequences + at, taken * sizeof(uint64_t))
                kept += taken
                self.sections[left] = section
                left += 1
            at += taken
        self.read_again_us = self.now_us + READ_AGAIN_US if left == 0 else 0
        count[0] = kept
        return left

    cdef inline bint lies_together(self, const wan_section *section, const wan_store_span *span) noexcept nogil:
        return span.end - span.first <= TOGETHER * section.bytes

    cdef bint read_section(self, const wan_section *section, const wan_store_span *span, uint32_t at) noexcept nogil:
        """Copies the records from `at` on out of their file, so that nothing that happens to it from here on matters. Records that lie far from each other are
        only checked, since each would cost as much as sending it; but not where a filter's Python comes between the check and the sending."""
        cdef uint8_t *to = self.copied.bytes + self.copied.used
        cdef uint32_t n
        if not self.lies_together(section, span):
            if self.transmit_filter is None:
                return wan_store_check(self.g.queue.store, span) == WAN_OK
            self.copied.used += section.bytes
            return wan_queue_copy(&self.g.queue, span, self.records + at, self.lengths + at, section.count, to) == WAN_OK
        self.copied.used += span.end - span.first
        if wan_queue_copy_span(&self.g.queue, span, to) != WAN_OK:
            return False
        for n in range(at, at + section.count):
            if span.base <= <const uint8_t *>self.records[n] < span.base + span.mapped:     # Others are in memory.
                self.records[n] = <wan_record *>(to + (<const uint8_t *>self.records[n] - span.base - span.first))
        return True

    cdef void note_readable(self, const wan_section *section, bint readable) noexcept nogil:
        cdef bint was = self.unreadable[0] != 0
        wan_lock_take(&self.g.lock)
        if readable:
            self.unreadable[0] = 0
        else:
            wan_queue_unpeek(&self.g.queue, section.partition, section.first - 1)
            queue_refresh_pending(self.g, self.index)
            strncpy(self.unreadable, wan_detail, sizeof(self.unreadable) - 1)
            self.unreadable_partition = section.partition
        wan_lock_release(&self.g.lock)
        if not readable and not was:
            self.tell_unreadable()

    cdef void tell_unreadable(self) noexcept with gil:
        import logging
        logging.getLogger("pywan.sender").error(
            "gateway sender %s: events of dispatcher %d stay queued and are not sent: %s; stop the member, and restore the file or save what is whole with `pywan "
            "salvage disk-store --dir=STORE --to=NEW`", self.queue.name, self.index, self.unreadable_reason)

    @property
    def unreadable_reason(self):
        """Why events that lie in a file of the log are not sent; None: they are."""
        cdef char reason[512]
        wan_lock_take(&self.g.lock)
        memcpy(reason, self.unreadable, sizeof(reason))
        wan_lock_release(&self.g.lock)
        return (<bytes>reason).decode("utf-8", "replace") if reason[0] else None

    cdef bint may_build(self, uint64_t now_us) noexcept nogil:
        return not wan_flag_read(&self.pause_flag) and now_us >= self.read_again_us and self.window_is_open()

    cdef void end_callback(self) noexcept nogil:
        cdef uint64_t since = self.callback_since_us
        wan_set(&self.callback_since_us, 0)
        wan_count(&self.filter_us, wan_monotonic_us() - since)

    cdef void drop_from_batch(self, wan_section *section, uint32_t at, uint64_t *counter, uint32_t reason) noexcept nogil:
        # Under the queue's lock. The record becomes a hole in the queue and a NULL in the batch.
        section.bytes -= wan_record_length(self.records[at])
        wan_queue_punch(&self.g.queue, section.partition, self.sequences[at], reason)
        self.records[at] = NULL
        counter[0] += 1

    cdef tuple copy_of(self, const wan_record *record, uint32_t partition, uint64_t sequence):
        """The record as it travels, and where it stands: partition, sequence, whether it may have been applied before."""
        return (PyBytes_FromStringAndSize(<const char *>record, wan_record_length(record)),
                (partition, sequence, sequence <= self.g.queue.partitions[partition].duplicate_through))

    def _one_by_one(self, list records):
        """Records for the user's callbacks. Between two of them the receiver hears that we live: their time together is not its time-out."""
        for record in records:
            end_if_strayed(self.born, "a gateway sender")
            self.keep_alive()
            yield record

    cdef void keep_alive(self) noexcept nogil:
        cdef uint64_t now = wan_monotonic_us()
        if self.stream is None or now <= self.last_sent_us + self.heartbeat_us:
            return
        if self.out.start < self.out.used or self.ping():
            self.stream.write(&self.out)            # What it does not take, and whether it broke, is the loop's.
            self.last_sent_us = now

    def _until_stopped(self, list records):
        for record in self._one_by_one(records):
            if wan_flag_read(&self.stop_flag):
                return
            yield record

    cdef bint filter_batch(self, uint32_t sections) noexcept with gil:
        """False: the session was told to stop meanwhile. What was peeked is queued as before, and is asked about again."""
        cdef uint32_t at = 0, s, k, base
        try:
            raw = []
            for s in range(sections):
                for k in range(self.sections[s].count):
                    raw.append(self.copy_of(self.records[at], self.sections[s].partition, self.sequences[at]))
                    at += 1
            try:
                verdicts = [bool(verdict) for verdict in self.transmit_filter(self._until_stopped(raw))]    # All of the user's Python ends before the lock.
            finally:
                end_if_strayed(self.born, "a gateway sender")
            if len(verdicts) < len(raw) and wan_flag_read(&self.stop_flag):
                wan_lock_take(&self.g.lock)
                for s in range(sections):
                    wan_queue_unpeek(&self.g.queue, self.sections[s].partition, self.sections[s].first - 1)
                queue_refresh_pending(self.g, self.index)
                wan_lock_release(&self.g.lock)
                return False
            if len(verdicts) != len(raw):
                raise ValueError(f"{len(verdicts)} answers about {len(raw)} events")
            at = 0
            wan_lock_take(&self.g.lock)
            for s in range(sections):
                for k in range(self.sections[s].count):
                    if not verdicts[at]:
                        self.drop_from_batch(&self.sections[s], at, &self.g.counts.filtered_transmit, WAN_HOLE_FILTERED)
                    at += 1
            wan_lock_release(&self.g.lock)
        except BaseException as error:      # The caller guards the user's code; this is the last line: send all.
            report_unraisable("before_transmit", error)
        return True

    cdef void conflate_batch(self, uint32_t sections, uint32_t count) noexcept nogil:
        """Of several updates of one key only the newest stays. Walks from the newest to the oldest."""
        cdef uint32_t capacity = 16, at, s, k, base = 0, slot
        cdef uint32_t *newest
        cdef wan_record *record
        cdef wan_record *other
        cdef uint64_t hash
        while capacity < count * 2:
            capacity *= 2
        newest = <uint32_t *>malloc(capacity * sizeof(uint32_t))
        if newest == NULL:
            return                          # An optimisation only.
        memset(newest, 0, capacity * sizeof(uint32_t))
        wan_lock_take(&self.g.lock)
        for s in range(sections):
            for k in range(self.sections[s].count):
                at = base + self.sections[s].count - 1 - k
                record = self.records[at]
                if record == NULL or record.operation != WAN_UPDATE:
                    continue
                hash = wan_seat_hash(wan_record_key(record), record.key_length, record.key_form | <uint64_t>record.region << 8)
                slot = <uint32_t>hash & (capacity - 1)
                while True:
                    if newest[slot] == 0:
                        newest[slot] = at + 1
                        break
                    other = self.records[newest[slot] - 1]
                    if (other.region == record.region and other.key_length == record.key_length and other.key_form == record.key_form
                            and memcmp(wan_record_key(other), wan_record_key(record), record.key_length) == 0):
                        # Replayed after it was parked, an older version can lie behind a newer one: then both travel.
                        if wan_record_order(record, other) <= 0:
                            self.drop_from_batch(&self.sections[s], at, &self.g.counts.conflated_batch, WAN_HOLE_CONFLATED_IN_BATCH)
                        else:
                            newest[slot] = at + 1
                        break
                    slot = (slot + 1) & (capacity - 1)
            base += self.sections[s].count
        wan_lock_release(&self.g.lock)
        free(newest)

    cdef int lay_out_batch(self, uint32_t sections) noexcept nogil:
        cdef flight *f
        cdef uint64_t payload = sizeof(wan_batch_head) + sections * sizeof(wan_section), length
        cdef uint32_t s, k, at = 0, kept = 0, in_section, total_here, all_records = 0
        cdef bint has_holes
        cdef wan_record *record
        cdef wan_section *section
        cdef wan_frame *frame
        cdef wan_batch_head *head
        cdef uint8_t *to
        cdef uint64_t *sequence
        cdef uint64_t duplicates = 0, duplicate_through
        cdef const uint8_t *run
        cdef size_t run_bytes
        cdef int packed
        cdef bint compress
        cdef wan_section *held
        if self.next_batch - self.oldest_batch == self.flight_capacity and not self.grow_flights(self.flight_capacity * 2):
            return 0
        f = &self.flights[self.next_batch & (self.flight_capacity - 1)]
        if f.capacity < sections:
            held = <wan_section *>realloc(f.section, sections * sizeof(wan_section))
            if held == NULL:
                return 0
            f.section, f.capacity = held, sections
        for s in range(sections):
            all_records += self.sections[s].count
        at = 0
        for s in range(sections):
            section = &self.sections[s]
            in_section = 0
            for k in range(section.count):
                if at + AHEAD < all_records and self.records[at + AHEAD] != NULL:
                    wan_prefetch(self.records[at + AHEAD])
                    wan_prefetch(<uint8_t *>self.records[at + AHEAD] + 64)
                    wan_prefetch(<uint8_t *>self.records[at + AHEAD] + 128)
                record = self.records[at]
                if record != NULL:
                    in_section += 1
                    self.lengths[at] = wan_record_length(record)
                    if not region_is_announced(self.announced, record.region) and not self.announce(record.region):
                        return 0
                at += 1
            payload += section.bytes
            if section.through - section.first + 1 != in_section:      # Each says its sequence.
                payload += in_section * sizeof(uint64_t)
        # Laid out where it is sent from; to be packed, beside it, so that packing is the only copy into what is sent.
        compress = self.options.compress and payload > 256
        if not buffer_reserve(&self.out, sizeof(wan_frame) + (lz4_bound(<uint32_t>payload) + 8 if compress else payload)):
            return 0
        if compress and not buffer_reserve(&self.pack, payload):
            return 0
        frame = <wan_frame *>(self.out.bytes + self.out.used)
        memset(frame, 0, sizeof(wan_frame))
        head = <wan_batch_head *>self.pack.bytes if compress else <wan_batch_head *>(frame + 1)
        head.sections, head.reserved = sections, 0
        to = <uint8_t *>(head + 1) + sections * sizeof(wan_section)
        at = 0
        for s in range(sections):
            section = &self.sections[s]
            total_here = section.count
            duplicate_through = self.g.queue.partitions[section.partition].duplicate_through
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
            for k in range(total_here):
                record = self.records[at]
                at += 1
                if record == NULL:
                    continue
                if run + run_bytes != <uint8_t *>record:     # What lies behind one another is copied at once.
                    wan_copy_small(to, run, run_bytes)
                    to += run_bytes
                    run, run_bytes = <uint8_t *>record, 0
                run_bytes += self.lengths[at - 1]
                if has_holes:
                    sequence[0] = self.sequences[at - 1]
                    sequence += 1
                section.duplicates += self.sequences[at - 1] <= duplicate_through
            wan_copy_small(to, run, run_bytes)
            to += run_bytes
            duplicates += section.duplicates
            kept += in_section
        memcpy(head + 1, self.sections, sections * sizeof(wan_section))
        frame.magic = WAN_FRAME_MAGIC
        frame.type = WAN_FRAME_BATCH
        frame.id = self.next_batch
        frame.count = kept
        frame.length = frame.raw_length = <uint32_t>payload
        if compress:
            packed = lz4_pack(<uint8_t *>head, <uint32_t>payload, <uint8_t *>(frame + 1), lz4_bound(<uint32_t>payload))
            if packed > 0 and <uint64_t>packed < payload:
                memset(<uint8_t *>(frame + 1) + packed, 0, <size_t>(wan_align8(<uint64_t>packed) - <uint64_t>packed))
                frame.length = <uint32_t>packed
                frame.flags = WAN_FRAME_LZ4
            else:
                memcpy(frame + 1, head, payload)
        frame.crc = wan_frame_crc(frame, frame + 1, frame.length)
        self.out.used += sizeof(wan_frame) + wan_align8(frame.length)
        f.id = self.next_batch
        f.events = kept
        f.bytes = payload
        f.sections = sections
        memcpy(f.section, self.sections, sections * sizeof(wan_section))
        if self.next_batch == self.oldest_batch:
            wan_set(&self.answered_us, self.now_us)
            self.progress_us = self.now_us
        wan_tally(&self.next_batch, 1)
        wan_tally(&self.flight_events, kept)
        wan_tally(&self.flight_bytes, payload)
        f.mark = wan_window_sent(&self.window, self.flight_bytes, payload, self.now_us)
        wan_lock_take(&self.g.lock)
        self.g.counts.possible_duplicates += duplicates
        self.g.counts.wire_bytes += sizeof(wan_frame) + frame.length
        wan_lock_release(&self.g.lock)
        return 1

    cdef int announce(self, uint16_t region) noexcept nogil:
        self.announced[region >> 3] |= <uint8_t>(1 << (region & 7))
        return buffer_frame(&self.out, WAN_FRAME_REGION, region, 0, wan_region_names[region].text, wan_region_names[region].length)

    cdef int acknowledge(self, const wan_frame *frame) noexcept nogil:
        """Settles every batch up to the acknowledged one. 0: the acknowledgement makes no sense."""
        cdef const wan_ack *ack = <const wan_ack *>(frame + 1)
        cdef const wan_failure *failures
        cdef flight *f
        cdef uint32_t n, s, begin = 0
        cdef uint64_t link_us, batch, after
        if frame.length < sizeof(wan_ack) or frame.length != sizeof(wan_ack) + <uint64_t>ack.failures * sizeof(wan_failure):
            wan_tell(WAN_CORRUPT, "acknowledgement of %u bytes", frame.length)
            return 0
        if frame.id >= self.next_batch:
            wan_tell(WAN_CORRUPT, "acknowledgement of batch %llu, which was not sent", <unsigned long long>frame.id)
            return 0
        failures = <const wan_failure *>(ack + 1)
        n = 0
        for batch in range(self.oldest_batch, frame.id + 1 if ack.failures else 0):
            f = &self.flights[batch & (self.flight_capacity - 1)]
            s, after = 0, 0
            while n < ack.failures and is_next_of_flight(f, &failures[n], &s, &after):     # They come in the order of what was sent, each once.
                n += 1
        if n < ack.failures:
            wan_tell(WAN_CORRUPT, "acknowledgement with a failure of event %u/%llu, which is not next in its batches", failures[n].partition,
                       <unsigned long long>failures[n].sequence)
            return 0
        self.credit_events = ack.credit_events
        wan_window_set_limit(&self.window, ack.credit_bytes)
        wan_set(&self.answered_us, self.now_us)
        self.note_progress()
        wan_count(&self.receiver_us, frame.count)
        while self.oldest_batch <= frame.id:
            f = &self.flights[self.oldest_batch & (self.flight_capacity - 1)]
            n = begin
            while n < ack.failures and is_of_flight(f, &failures[n]):
                n += 1
            if not self.settle(f, failures + begin, n - begin):
                return 0
            begin = n
            wan_tally(&self.flight_events, -<uint64_t>f.events)
            wan_tally(&self.flight_bytes, -f.bytes)
            wan_tally(&self.oldest_batch, 1)
            wan_window_acknowledged(&self.window, &f.mark, self.now_us)
            link_us = max(self.now_us, f.mark.sent_us + frame.count + 1) - f.mark.sent_us - frame.count
            if self.link_us == 0 or link_us < self.link_us:
                wan_set(&self.link_us, link_us)
        return 1

    cdef bint settle(self, const flight *f, const wan_failure *failures, uint32_t failure_count) noexcept nogil:
        """False: a failed event could not be parked; nothing of the batch is removed, and it is sent again."""
        cdef uint32_t s
        cdef wan_section *section
        cdef wan_partition *partition
        cdef uint64_t removed = 0
        if failure_count and not self.park(f, failures, failure_count):
            return False
        if self.acknowledged is not None:
            wan_set(&self.callback_since_us, wan_monotonic_us())
            self.tell_acknowledged(f)
            self.end_callback()
        if self.options.alert_threshold_ms:
            self.note_late(f)
        wan_lock_take(&self.g.lock)
        for s in range(f.sections):
            section = &f.section[s]
            partition = &self.g.queue.partitions[section.partition]
            if section.through > partition.removed and section.through <= partition.peeked:
                removed += wan_queue_remove(&self.g.queue, section.partition, section.through)
        self.g.counts.distributed += removed
        self.g.counts.acknowledgements += 1
        self.g.counts.bytes_distributed += f.bytes
        if f.events:
            self.g.counts.batches_distributed += 1
        wan_lock_release(&self.g.lock)
        return True

    cdef void note_late(self, const flight *f) noexcept nogil:
        cdef uint64_t now_ms = wan_now_ms(), late = 0, sequence
        cdef wan_store_span span
        cdef uint32_t s
        cdef wan_partition *partition
        wan_lock_take(&self.g.lock)
        for s in range(f.sections):
            partition = &self.g.queue.partitions[f.section[s].partition]
            sequence = max(f.section[s].first, partition.removed + 1) - 1
            span = wan_queue_span(&self.g.queue, f.section[s].partition, sequence + 1, f.section[s].through)
            if wan_store_check(self.g.queue.store, &span) != WAN_OK:
                continue
            while True:
                sequence = wan_queue_next_live(partition, sequence + 1, f.section[s].through)
                if sequence == 0:
                    break
                if wan_stamp_ms(wan_queue_at(&self.g.queue, partition, sequence).stamp) + self.options.alert_threshold_ms < now_ms:
                    late += 1
        self.g.counts.exceeding_alert_threshold += late
        wan_lock_release(&self.g.lock)

    cdef wan_record *failed_record(self, const flight *f, const wan_failure *failure) noexcept nogil:
        # Under the queue's lock. NULL: not of this batch, or parked already by an earlier acknowledgement that broke off.
        cdef uint32_t s
        cdef wan_section *section
        cdef wan_partition *partition
        for s in range(f.sections):
            section = &f.section[s]
            if section.partition == failure.partition and section.first <= failure.sequence <= section.through:
                partition = &self.g.queue.partitions[section.partition]
                return wan_queue_at(&self.g.queue, partition, failure.sequence) if failure.sequence > partition.removed else NULL
        return NULL

    cdef bint park(self, const flight *f, const wan_failure *failures, uint32_t count) noexcept nogil:
        """Keeps what the receiver could not apply, and takes it out of the queue once it is kept; the rest goes on. Some at a time where they
        share a disk store with what they leave: each makes the room of the next."""
        cdef uint64_t most = wan_log_record_bytes(&self.parked.g.durable.log) // 2 if self.parked.g.durable != NULL else NEVER
        cdef uint32_t begin, n = 0
        self.copies_before = self.copies.count
        if self.copies_before:
            qsort(self.copies.bytes, self.copies_before, sizeof(parked_copy), copy_order)
        while n < count:
            begin = n
            if not self.park_copies(f, failures, count, &n, most):
                return False
            if self.parked.g.durable != NULL and not self.parked_are_durable():
                return False
            self.leave_parked(f, failures, begin, n)
        return True

    cdef bint park_copies(self, const flight *f, const wan_failure *failures, uint32_t count, uint32_t *n, uint64_t most) noexcept nogil:
        """Of up to `most` bytes, or one. *n: behind the last. False: there is no room for one."""
        cdef uint64_t copied = 0
        cdef uint32_t length
        cdef wan_record *record
        cdef parked_copy copy
        cdef bint readable
        while n[0] < count:
            wan_lock_take(&self.g.lock)
            record = self.failed_record(f, &failures[n[0]])
            readable = record == NULL or queue_can_read(self.g, failures[n[0]].partition, failures[n[0]].sequence)
            wan_lock_release(&self.g.lock)
            if not readable:        # The connection ends with the reason; what is sent again stops at this file.
                return False
            if record != NULL:
                length = wan_record_length(record)
                if copied and copied + length > most:
                    break
                if not self.is_copied(&failures[n[0]]):
                    copy.partition, copy.sequence = failures[n[0]].partition, failures[n[0]].sequence
                    if (wan_buffer_reserve(&self.copies, sizeof(copy)) != WAN_OK
                            or queue_append_copy(self.parked.g, park_reason(failures[n[0]].reason), record, False, 0) != WAN_OK):
                        self.tell_failure(failures[n[0]].partition, failures[n[0]].sequence, 0xffff)
                        return False
                    wan_buffer_put(&self.copies, &copy, sizeof(copy))
                copied += length
            n[0] += 1
        return True

    cdef bint is_copied(self, const wan_failure *failure) noexcept nogil:
        """By an attempt that waited for the disk in vain: repeated, it would fill that with copies. This one copies each once."""
        cdef parked_copy wanted
        wanted.partition, wanted.sequence = failure.partition, failure.sequence
        return self.copies_before and bsearch(&wanted, self.copies.bytes, self.copies_before, sizeof(parked_copy), copy_order) != NULL

    cdef void leave_parked(self, const flight *f, const wan_failure *failures, uint32_t begin, uint32_t end) noexcept nogil:
        """These are kept among the parked events. What is before the last of them leaves with them: it was applied, or parked."""
        cdef uint32_t n, last = end
        cdef wan_record *record
        wan_buffer_empty(&self.copies)
        self.copies_before = 0
        for n in range(begin, end):
            wan_lock_take(&self.g.lock)
            record = self.failed_record(f, &failures[n])
            if record != NULL:
                wan_queue_punch(&self.g.queue, failures[n].partition, failures[n].sequence, WAN_HOLE_PARKED)
                self.g.counts.parked += 1
                last = n
            wan_lock_release(&self.g.lock)
            if record != NULL:
                self.tell_failure(failures[n].partition, failures[n].sequence, failures[n].reason)
        if last < end and self.acknowledged is None:        # Else it is told of the whole batch at once.
            wan_lock_take(&self.g.lock)
            if failures[last].sequence <= self.g.queue.partitions[failures[last].partition].peeked:
                self.g.counts.distributed += wan_queue_remove(&self.g.queue, failures[last].partition, failures[last].sequence)
            wan_lock_release(&self.g.lock)

    cdef bint parked_are_durable(self) noexcept with gil:
        try:
            self.parked.wait_durable(10.0)
            return True
        except BaseException as error:
            reason = str(error).encode("utf-8", "replace")
            wan_tell(WAN_CORRUPT, "the parked events do not get onto the disk: %s", <const char *>reason)
            return False

    cdef void tell_failure(self, uint32_t partition, uint64_t sequence, uint32_t reason) noexcept with gil:
        try:
            if self.on_failure is not None:
                self.on_failure(partition, sequence, reason)
        except BaseException as error:
            report_unraisable("on_failure", error)

    cdef void tell_acknowledged(self, const flight *f) noexcept with gil:
        # What failed was parked, and is a hole by now.
        cdef uint64_t sequence
        cdef uint32_t s
        cdef bint readable
        cdef wan_partition *partition
        cdef wan_record *record
        try:
            raw = []
            for s in range(f.sections):
                partition = &self.g.queue.partitions[f.section[s].partition]
                sequence = f.section[s].first - 1
                while True:
                    wan_lock_take(&self.g.lock)
                    sequence = wan_queue_next_live(partition, max(sequence, partition.removed) + 1, f.section[s].through)
                    record = wan_queue_at(&self.g.queue, partition, sequence) if sequence else NULL
                    readable = record == NULL or queue_can_read(self.g, f.section[s].partition, sequence)
                    wan_lock_release(&self.g.lock)
                    if not readable:
                        from pywan.errors import DiskError
                        raise DiskError(f"not told of events from {f.section[s].partition}/{sequence} on: {detail_text()}")
                    if record == NULL:
                        break
                    raw.append(self.copy_of(record, f.section[s].partition, sequence))
            if raw:
                try:
                    self.acknowledged(self._one_by_one(raw))
                finally:
                    end_if_strayed(self.born, "a gateway sender")
        except BaseException as error:
            report_unraisable("after_acknowledgement", error)

    cdef int heard(self, uint64_t now_us) noexcept nogil:
        self.now_us = self.last_heard_us = now_us
        return GOES_ON if self.take_frames() else ENDED_TOLD

    cdef int take_frames(self) noexcept nogil:
        """Handles every whole frame in `into`. 0: the connection is to be given up; the detail says why."""
        cdef wan_frame *frame
        cdef int state
        while True:
            state = stream_next_frame(&self.into, &frame, &self.wanted)
            if state == STREAM_WAIT:
                return 1
            if state != STREAM_OK:
                return 0
            if frame.type == WAN_FRAME_ACK:
                if not self.acknowledge(frame):
                    return 0
            elif frame.type == WAN_FRAME_PROGRESS:
                if frame.id > self.steps:
                    self.steps = frame.id
                    self.note_progress()
            elif frame.type == WAN_FRAME_PONG:
                wan_set(&self.floors_heard, max(self.floors_heard, min(frame.id, wan_read(&self.floors_told))))
            elif frame.type == WAN_FRAME_REWIND and frame.length < sizeof(wan_rewind):
                wan_tell(WAN_CORRUPT, "rewind of %u bytes", frame.length)
                return 0
            elif frame.type == WAN_FRAME_REWIND:
                wan_tell(WAN_CORRUPT, "the receiver expects partition %u from sequence %llu", (<const wan_rewind *>(frame + 1)).partition,
                           <unsigned long long>(<const wan_rewind *>(frame + 1)).expected)
                return 0
            elif frame.type == WAN_FRAME_BYE:
                wan_tell(WAN_CORRUPT, "the receiver is stopping")
                return 0
            elif frame.type == WAN_FRAME_ERROR:
                wan_flag_set(&self.is_refused_flag, 1)
                wan_tell(WAN_CORRUPT, "the receiver says: %.*s", <int>min(frame.length, 400), <const char *>(frame + 1))
                return 0
            else:
                wan_tell(WAN_CORRUPT, "frame of type %u from a receiver", frame.type)
                return 0
            stream_take(&self.into, frame)

    # What is due, and when

    cdef int step(self, uint64_t now_us, uint64_t *until_us) noexcept nogil:
        cdef bint is_empty = self.out.start == self.out.used
        cdef uint64_t alive_until
        cdef const wan_breakage *broken = wan_breakage_of(&self.g.queue.broken)
        self.now_us = now_us
        if broken != NULL:
            wan_refuse_broken(broken)
            return ENDED_TOLD
        if is_empty and self.may_build(now_us) and self.batch_is_due(now_us):
            if not self.build_batch():
                wan_tell(WAN_NO_MEMORY, "no memory for a batch")
                return ENDED_TOLD
            return GOES_AGAIN
        if is_empty and (now_us > self.last_sent_us + self.heartbeat_us or wan_flag_read(&self.floors_due)):
            if not self.ping():
                return ENDED_TOLD
            self.last_sent_us = now_us
            return GOES_AGAIN
        # Only what the receiver itself does is life: its kernel takes bytes, pings too, when it hangs. With batches in flight
        # that is work on them.
        alive_until = (self.progress_us if self.next_batch != self.oldest_batch else self.last_heard_us) + self.options.silence_us
        if now_us > alive_until:
            wan_flag_set(&self.is_given_up_flag, 1)
            if self.next_batch != self.oldest_batch:
                wan_tell(WAN_CORRUPT, "no progress by the receiver for %.1f s, with %llu events on their way to it",
                         self.options.silence_us / 1e6, <unsigned long long>self.flight_events)
            else:
                wan_tell(WAN_CORRUPT, "no answer from the receiver for %.1f s", self.options.silence_us / 1e6)
            return ENDED_TOLD
        # From the last word on, however often something else woke it.
        until_us[0] = min(alive_until, self.last_sent_us + self.heartbeat_us if is_empty else now_us + self.heartbeat_us) + 1
        return self.announce_wait(now_us, until_us)

    cdef int announce_wait(self, uint64_t now_us, uint64_t *until_us) noexcept nogil:
        """For which events it is to be woken: said under the lock, so that none slips between. GOES_AGAIN: some came since we looked."""
        cdef signal *own = &self.g.signals[self.index]
        cdef uint64_t due_us
        cdef int how = GOES_ON
        wan_lock_take(&self.g.lock)
        if now_us < self.read_again_us:
            until_us[0] = min(until_us[0], self.read_again_us)
        if self.out.start == self.out.used and self.may_build(now_us):
            if own.pending == 0:
                own.wake_at = 1
            elif own.pending >= self.options.batch_size or not self.waiting_since_us:
                how = GOES_AGAIN
            else:
                own.wake_at = self.options.batch_size
                due_us = self.waiting_since_us + <uint64_t>max(self.options.batch_time_interval_us, <int64_t>0)
                until_us[0] = min(until_us[0], due_us)
                if due_us <= now_us:
                    how = GOES_AGAIN
        wan_lock_release(&self.g.lock)
        return how

    cdef void sent(self, uint64_t now_us) noexcept nogil:
        self.last_sent_us = now_us

    cdef void woken(self, uint64_t since_us, int ready) noexcept nogil:
        if self.out.start < self.out.used or not self.window_is_open():
            wan_count(&self.blocked_us, wan_monotonic_us() - since_us)
        wan_lock_take(&self.g.lock)
        self.g.signals[self.index].wake_at = NEVER
        wan_lock_release(&self.g.lock)

    cdef int closed(self, bint while_reading) noexcept nogil:
        wan_tell(WAN_CORRUPT, "the receiver closed the connection" if while_reading else "the connection to the receiver broke")
        return ENDED_TOLD

    # What a driver without a socket uses: a simulator, tests, another kind of loop

    def data_to_send(self, uint64_t now_us):
        """Bytes that should leave now: one more batch if one is due and the window is open, a ping where the receiver has to hear that we live.
        ProtocolError: the receiver shows no life; give the connection up (`disconnected`) and connect again."""
        cdef uint64_t until = 0
        cdef int how = GOES_AGAIN
        while how == GOES_AGAIN and self.out.start == self.out.used and not wan_flag_read(&self.stop_flag):
            how = self.step(now_us, &until)
        if how > GOES_AGAIN:
            raise_for(wan_detail_status, "")
        if self.out.start < self.out.used:
            self.last_sent_us = now_us
        return self.take_out()

    def next_us(self, uint64_t now_us):
        """When `data_to_send` is to be called again, though nothing comes in and no event is queued."""
        cdef uint64_t until = 0
        cdef int how = GOES_AGAIN
        if self.out.start == self.out.used and (self.may_build(now_us) and self.batch_is_due(now_us) or wan_flag_read(&self.floors_due)):
            return now_us
        until = min(self.last_sent_us + self.heartbeat_us,
                    (self.progress_us if self.next_batch != self.oldest_batch else self.last_heard_us) + self.options.silence_us) + 1
        if self.waiting_since_us and self.may_build(now_us):
            until = min(until, self.waiting_since_us + <uint64_t>max(self.options.batch_time_interval_us, <int64_t>0))
        return until

    def receive_data(self, const uint8_t[::1] data, uint64_t now_us=0):
        """Bytes that arrived at `now_us` (0: as last told). ProtocolError: give the connection up (`disconnected`) and connect again."""
        cdef const wan_breakage *broken = wan_breakage_of(&self.g.queue.broken)
        if data.shape[0] == 0:
            return
        if broken != NULL:
            raise_for(wan_refuse_broken(broken), "")
        if not self.add_bytes(&data[0], data.shape[0]):
            raise MemoryError()
        if self.heard(now_us if now_us else self.now_us) != GOES_ON:
            from pywan.errors import ProtocolError
            raise ProtocolError(detail_text())

    def flush(self, bint value):
        """While set, a batch leaves as soon as there is an event for it."""
        wan_flag_set(&self.flush_flag, value)
        eventfd_write(self.g.signals[self.index].file, 1)

    def run(self, int file):
        """Moves batches out and acknowledgements in over a connected socket until told to stop or the connection
        breaks. Returns "stopped" or why it ended. The GIL is free meanwhile."""
        cdef int ended = run_session(self, SocketStream(file))
        return "stopped" if ended == ENDED_STOPPED else detail_text()


cdef bint is_next_of_flight(const flight *f, const wan_failure *failure, uint32_t *s, uint64_t *after) noexcept nogil:
    """Whether it is of section *s or a later one, which *s is then, and there behind sequence *after, which is then its own."""
    while s[0] < f.sections and not (f.section[s[0]].partition == failure.partition and f.section[s[0]].first <= failure.sequence <= f.section[s[0]].through):
        s[0] += 1
        after[0] = 0
    if s[0] == f.sections or failure.sequence <= after[0]:
        return False
    after[0] = failure.sequence
    return True


cdef bint is_of_flight(const flight *f, const wan_failure *failure) noexcept nogil:
    cdef uint32_t s
    for s in range(f.sections):
        if f.section[s].partition == failure.partition and f.section[s].first <= failure.sequence <= f.section[s].through:
            return True
    return False


cdef inline uint32_t park_reason(uint32_t reason) noexcept nogil:
    return reason if reason < WAN_PARK_PARTITIONS else WAN_FAILED_OTHER


cdef inline bint region_is_announced(const uint8_t *announced, uint16_t region) noexcept nogil:
    return announced[region >> 3] >> (region & 7) & 1
