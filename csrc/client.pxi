# Owns the client's bulk way in: rows laid out once at the client (RowSender), staged at the member and applied only when the client
# says that its task is whole (RowStage), so a task that is tried again is applied once, whatever order its rows come in.

cdef enum:
    ROWS_PER_FRAME = 10000
    FRAME_BYTES = 1 << 20


cdef class RowSender:
    """Lays rows out as records and sends them over a connected blocking socket, frame by frame, without the GIL."""
    cdef int file
    cdef byte_buffer out
    cdef uint64_t next_id, sequence
    cdef readonly uint64_t rows, bytes
    cdef uint32_t frame_rows
    cdef bint compress
    cdef byte_buffer pack
    cdef uint64_t timeout_us        # For the member to take something.
    cdef object interruption        # What a signal's handler raised while it was waited for.

    def __cinit__(self, int file, *, bint compress=False, double timeout_s=60.0):
        self.file, self.compress = file, compress
        self.timeout_us = <uint64_t>(timeout_s * 1e6)
        if compress:
            lz4_load()

    def __dealloc__(self):
        buffer_close(&self.out)
        buffer_close(&self.pack)

    cdef int open_frame(self) noexcept nogil:
        if not buffer_reserve(&self.out, sizeof(wan_frame) + sizeof(wan_batch_head) + sizeof(wan_section)):
            return STREAM_MEMORY
        memset(self.out.data + self.out.end, 0, sizeof(wan_frame) + sizeof(wan_batch_head) + sizeof(wan_section))
        self.out.end += sizeof(wan_frame) + sizeof(wan_batch_head) + sizeof(wan_section)
        self.frame_rows = 0
        return STREAM_OK

    cdef int send_frame(self) noexcept nogil:
        cdef uint64_t until_us = 0
        cdef size_t taken
        cdef wan_frame *frame
        cdef wan_batch_head *head
        cdef wan_section *section
        cdef pollfd waiting
        cdef int state
        if self.frame_rows:
            frame = <wan_frame *>(self.out.data + self.out.start)
            head = <wan_batch_head *>(frame + 1)
            section = <wan_section *>(head + 1)
            head.sections = 1
            section.count = self.frame_rows
            section.through = self.sequence
            section.first = self.sequence - self.frame_rows + 1
            section.settled = 0
            section.bytes = self.out.end - self.out.start - sizeof(wan_frame) - sizeof(wan_batch_head) - sizeof(wan_section)
            frame.magic = WAN_FRAME_MAGIC
            frame.type = WAN_FRAME_BATCH
            frame.id = self.next_id
            frame.count = self.frame_rows
            frame.length = frame.raw_length = <uint32_t>(self.out.end - self.out.start - sizeof(wan_frame))
            frame.crc = wan_frame_crc(frame, head, frame.length)
            self.next_id += 1
            self.bytes += self.out.end - self.out.start
        else:
            self.out.start = self.out.end = 0
            return STREAM_OK
        self.frame_rows = 0
        while True:
            taken = self.out.start
            state = stream_send(self.file, &self.out)
            if state != STREAM_WAIT:
                return state
            if self.out.start != taken or until_us == 0:
                until_us = wan_monotonic_us() + self.timeout_us
            waiting.fd = self.file
            waiting.events = POLLOUT | POLLIN       # The member speaks only to say what is wrong (or at the end).
            waiting.revents = 0
            poll(&waiting, 1, 100)
            if waiting.revents & POLLIN or wan_monotonic_us() >= until_us or not self.may_wait():
                return STREAM_BROKEN

    cdef bint may_wait(self) noexcept with gil:
        try:
            PyErr_CheckSignals()        # Ctrl-C ends the wait: what was sent is dropped with the connection.
            return True
        except BaseException as error:
            self.interruption = error
            return False

    cdef int add_row(self, uint8_t operation, const uint8_t *key, uint32_t key_length, uint8_t key_form,
                     const uint8_t *value, uint32_t value_length, uint8_t value_form) noexcept nogil:
        cdef uint64_t length = wan_record_size(key_length, value_length, 0, 0)
        cdef wan_record *record
        cdef uint8_t *to
        cdef int state
        if self.out.end == 0:
            state = self.open_frame()
            if state != STREAM_OK:
                return state
        if not buffer_reserve(&self.out, length):
            return STREAM_MEMORY
        record = <wan_record *>(self.out.data + self.out.end)
        memset(record, 0, sizeof(wan_record))
        self.sequence += 1
        record.length = <uint32_t>length
        record.value_length = value_length
        record.sequence = self.sequence
        record.key_length = <uint16_t>key_length
        record.operation = operation
        record.key_form, record.value_form, record.callback_form = key_form, value_form, WAN_FORM_NONE
        to = <uint8_t *>(record + 1)
        if length > sizeof(wan_record):
            (<uint64_t *>(<uint8_t *>record + length - 8))[0] = 0
        wan_copy_small(to, key, key_length)
        wan_copy_small(to + key_length, value, value_length)
        self.out.end += length
        self.frame_rows += 1
        self.rows += 1
        return STREAM_OK

    cdef inline bint frame_is_full(self) noexcept nogil:
        return self.frame_rows >= ROWS_PER_FRAME or self.out.end >= FRAME_BYTES

    cdef object broken(self, int state):
        if state == STREAM_MEMORY:
            return MemoryError("no memory for a frame of rows")
        if self.interruption is not None:
            return self.interruption
        from pywan.errors import ConnectivityError
        return ConnectivityError("the member closed the connection or stopped reading in the middle of the rows; nothing of this task was applied")

    def put_columns(self, keys, values, operations=None):
        """Adds one row per key. Raises BatchError-like errors before anything of this call is laid out."""
        cdef Column k = keys if isinstance(keys, Column) else Column(keys, "keys")
        cdef Column v = None
        if values is not None:
            v = values if isinstance(values, Column) else Column(values, "values")
        cdef int64_t rows = k.view.length, row
        cdef const uint8_t[::1] codes = None
        cdef const uint8_t *codes_ = NULL
        cdef const uint8_t *key
        cdef const uint8_t *value = b""
        cdef uint32_t key_length, value_length = 0
        cdef uint8_t key_form, value_form = WAN_FORM_NONE, operation
        cdef int state = STREAM_OK, wrong = 0
        cdef ColumnView *kv = &k.view
        cdef ColumnView *vv = NULL
        if v is not None:
            vv = &v.view
            if v.view.length != rows:
                from pywan.errors import ConfigurationError
                raise ConfigurationError(f"{rows} keys and {v.view.length} values")
        if operations is not None:
            codes = operation_codes(operations, rows)
            if rows:
                codes_ = &codes[0]
        with nogil:
            for row in range(rows):
                column_row(kv, row, &key, &key_length, &key_form)
                wrong = key_fault(key, key_length, key_form, False)
                if wrong:
                    break
                if vv != NULL:
                    column_row(vv, row, &value, &value_length, &value_form)
                    if value_length > WAN_VALUE_BYTES_MAX:
                        wrong = 3
                        break
            if not wrong:
                for row in range(rows):
                    operation = codes_[row] if codes_ != NULL else WAN_UPDATE
                    column_row(kv, row, &key, &key_length, &key_form)
                    if vv != NULL and operation != WAN_DESTROY:
                        column_row(vv, row, &value, &value_length, &value_form)
                    else:
                        value_length, value_form = 0, WAN_FORM_NONE
                    state = self.add_row(operation, key, key_length, key_form, value, value_length, value_form)
                    if state == STREAM_OK and self.frame_is_full():
                        state = self.send_frame()
                    if state != STREAM_OK:
                        break
        if wrong:
            from pywan.errors import SerializationError
            raise SerializationError(f"row {self.rows + row} of this task: {failure_text(wrong)}; nothing of this task was applied")
        if state != STREAM_OK:
            raise self.broken(state)

    def put_pairs(self, pairs):
        """Adds (key, value) pairs of Python objects."""
        cdef encoded k, v
        cdef int state
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:       # A text of two letters is no pair either.
                from pywan.errors import ConfigurationError
                raise ConfigurationError(f"row {self.rows} of the task is no pair (key, value) but {type(pair).__name__} {described(pair)}; map each element to a tuple of two")
            key, value = pair
            key_holder = encode_key(key, &k)
            value_holder = encode(value, &v)
            state = self.add_row(WAN_UPDATE, k.data, k.length, k.form, v.data, v.length, v.form)
            if state == STREAM_OK and self.frame_is_full():
                with nogil:     # It may wait for a member, which may be in this very process.
                    state = self.send_frame()
            if state != STREAM_OK:
                raise self.broken(state)

    def flush(self):
        """Sends what is laid out."""
        cdef int state
        with nogil:
            state = self.send_frame()
        if state != STREAM_OK:
            raise self.broken(state)


cdef class StageBudget:
    """Limits the rows of all tasks that are staged at a member, in memory and on disk together."""
    cdef readonly uint64_t limit
    cdef uint64_t taken             # Atomic.

    def __cinit__(self, uint64_t limit):
        self.limit = limit

    @property
    def used(self):
        """Bytes of rows that are staged now."""
        return wan_read(&self.taken)

    cdef bint take(self, uint64_t size) noexcept nogil:
        wan_count(&self.taken, size)
        if wan_read(&self.taken) <= self.limit:
            return True
        wan_count(&self.taken, -size)
        set_detail("the rows that are staged at this member would take more than its limit of %llu MB; commit fewer at once, or make tasks smaller; "
                   "nothing of this task was applied", <unsigned long long>(self.limit >> 20))
        return False


cdef class RowStage:
    """One task's rows at the member, until it is whole: kept in an own queue with overflow, then applied in order."""
    cdef EventQueue queue
    cdef byte_buffer into
    cdef readonly uint64_t rows, bytes
    cdef readonly uint64_t applied, missing
    cdef readonly object refusal    # Why the newest `apply` returned False: an exception.
    cdef StageBudget budget
    cdef uint64_t charged           # To the budget, until its memory and files are given back with it.
    cdef int stop_flag

    def __cinit__(self, directory, uint64_t memory_limit=16 << 20, StageBudget budget=None):
        self.budget = budget
        self.queue = EventQueue("staged rows", memory_limit=memory_limit, directory=directory)

    def __dealloc__(self):
        if self.charged and self.budget is not None:
            wan_count(&self.budget.taken, -self.charged)
        buffer_close(&self.into)

    def stop(self):
        wan_flag_set(&self.stop_flag, 1)

    cdef int take_batch(self, const wan_frame *frame) noexcept nogil:
        cdef const wan_section *section
        cdef const wan_record *record
        cdef const uint8_t *at
        cdef uint32_t n
        cdef wan_reservation reservation
        cdef gateway_queue *g = self.queue.g
        if frame.flags or wan_batch_check(<const uint8_t *>(frame + 1), frame.length, frame.count) != WAN_OK:
            return 0
        if (<const wan_batch_head *>(frame + 1)).sections != 1:
            set_detail("rows in %u sections; a client's are in one", (<const wan_batch_head *>(frame + 1)).sections)
            return 0
        section = <const wan_section *>(<const uint8_t *>(frame + 1) + sizeof(wan_batch_head))
        if section.partition or section.first != self.rows + 1 or section.through != self.rows + section.count:
            set_detail("rows %llu to %llu after %llu", <unsigned long long>section.first, <unsigned long long>section.through,
                       <unsigned long long>self.rows)
            return 0
        if self.budget is not None:
            if not self.budget.take(section.bytes):
                return 0
            self.charged += section.bytes
        at = <const uint8_t *>(section + 1)
        for n in range(section.count):
            record = <const wan_record *>at
            if wan_queue_reserve(&g.queue, 0, record.length, &reservation) != WAN_OK:
                return 0
            memcpy(reservation.at, record, record.length)
            wan_queue_commit(&g.queue, &reservation)
            at += record.length
        self.rows += section.count
        self.bytes += frame.length
        return 1

    def receive(self, int file, int silence_ms):
        """Takes rows from a connected socket. Returns "commit" when the client says it is whole, "closed" when it went
        away, "stopped", or why the rows cannot be taken."""
        cdef int ended
        with nogil:
            ended = self.loop(file, silence_ms)
        return ("closed", "commit", None, "stopped")[ended] or detail_text()

    cdef int loop(self, int file, int silence_ms) noexcept nogil:
        cdef wan_frame *frame
        cdef size_t missing = sizeof(wan_frame)
        cdef int state
        cdef pollfd waiting
        cdef uint64_t last_heard = wan_monotonic_us()
        while True:
            if wan_flag_read(&self.stop_flag):
                return 3
            state = stream_next_frame(&self.into, &frame, &missing)
            if state == STREAM_OK:
                if frame.type == WAN_FRAME_BATCH:
                    if not self.take_batch(frame):
                        return 2
                elif frame.type == WAN_FRAME_COMMIT:
                    if frame.id != self.rows:
                        set_detail("the client counts %llu rows, %llu arrived", <unsigned long long>frame.id, <unsigned long long>self.rows)
                        return 2
                    stream_take(&self.into, frame)
                    return 1
                elif frame.type != WAN_FRAME_PING:
                    set_detail("frame of type %u from a client", frame.type)
                    return 2
                stream_take(&self.into, frame)
                continue
            if state != STREAM_WAIT:
                return 2
            state = stream_receive(file, &self.into, missing)
            if state == STREAM_OK:
                last_heard = wan_monotonic_us()
                continue
            if state == STREAM_CLOSED:
                return 0
            if state == STREAM_MEMORY:
                return 2
            if wan_monotonic_us() - last_heard > <uint64_t>silence_ms * 1000:
                set_detail("the client was silent for more than %d ms", silence_ms)
                return 2
            waiting.fd = file
            waiting.events = POLLIN
            poll(&waiting, 1, 250)

    def apply(self, RegionCore region not None, double within_s=1e9):
        """Applies staged rows in order as changes made at this member, from where it stopped before. Returns True when all
        are applied; False after `within_s` (at least one row was), or if a queue had no room, or a log takes nothing: call again later, `refusal` says why. Any
        other reason is raised. Whatever ends it, the row that it met and those behind it stay staged, for the next call."""
        cdef bint whole
        cdef wan_status status
        cdef uint64_t until_us = wan_monotonic_us() + <uint64_t>(within_s * 1e6)
        region.check_open()
        self.refusal = None
        with nogil:
            status = self.apply_rows(&region.r, until_us)
        whole = status == WAN_OK
        if status == WAN_SLOW:
            with OneWait(region):
                whole = self.apply_slow(region, until_us)
        elif status != WAN_OK and status != WAN_FULL and status != WAN_EMPTY:
            if status == WAN_CLOSED:
                region.check_open()
            raise_for(status, f"region {region.name!r}, row {self.applied + self.missing + 1} of the task")
        elif status == WAN_FULL:
            self.refusal = full_error(detail_text())
        if whole and wan_flag_read(&region.r.durable):
            region.wait_written()
        return whole

    cdef wan_status apply_rows(self, region_core *r, uint64_t until_us) noexcept nogil:
        """As far as rows go straight into the region. WAN_OK: all of them are applied; WAN_EMPTY: the time is over; else why the next one is not."""
        cdef wan_record *records[256]
        cdef wan_change changes[256]
        cdef uint32_t taken, n
        cdef uint64_t size, stamp, hash
        cdef origin from_
        cdef wan_outcome outcome
        cdef gateway_queue *g = self.queue.g
        cdef wan_partition *partition = &g.queue.partitions[0]
        cdef uint64_t through
        cdef wan_status status
        cdef wan_thread *maker = wan_thread_self()
        while True:
            taken = wan_queue_peek(&g.queue, 0, 256, NEVER, 1, records, &size)
            if taken == 0:
                return WAN_OK
            stamp = wan_clock_take(r.clock, wan_clock_now_ms(r.clock), taken)
            for n in range(taken):
                change_from_record(&changes[n], records[n], wan_key_hash(wan_record_key(records[n]), records[n].key_length, records[n].key_form))
                changes[n].local = 1
                changes[n].flags = 0        # Not as the client says.
                changes[n].stamp = stamp + n
                changes[n].stamp_site = r.site
                if r.stores:
                    wan_table_prefetch_slot(&r.table, changes[n].hash)
            for n in range(taken):
                if r.stores:
                    wan_prefetch_entry(&r.table, changes[n].hash)
            through = partition.removed
            for n in range(taken):
                origin_local(&from_, r, maker)
                status = region_change(r, &changes[n], &from_, NULL, &outcome)
                if status == WAN_OK and outcome == WAN_OUT_OF_MEMORY:
                    status = WAN_NO_MEMORY
                if status != WAN_OK:
                    wan_queue_remove(&g.queue, 0, through)
                    wan_queue_rewind(&g.queue, 0)
                    return status
                if outcome == WAN_MISSING:
                    self.missing += 1
                else:
                    self.applied += 1
                through = records[n].sequence
            wan_queue_remove(&g.queue, 0, through)
            if wan_monotonic_us() >= until_us:
                return WAN_EMPTY

    cdef bint apply_slow(self, RegionCore region, uint64_t until_us) except -1:
        cdef wan_record *record
        cdef uint64_t size
        while wan_queue_peek(&self.queue.g.queue, 0, 1, NEVER, 1, &record, &size):
            from pywan.errors import QueueFullError
            try:
                key = Encoded(record.key_form, <bytes>wan_record_key(record)[:record.key_length])
                value = Encoded(record.value_form, <bytes>wan_record_value(record)[:record.value_length])
                outcome = region.slow_change(record.operation, key, value, None)
            except BaseException as error:
                wan_queue_rewind(&self.queue.g.queue, 0)        # Not applied: it is the next one's first.
                if isinstance(error, QueueFullError):
                    self.refusal = error
                    return False
                raise
            if outcome == "missing":
                self.missing += 1
            else:
                self.applied += 1
            wan_queue_remove(&self.queue.g.queue, 0, record.sequence)
            if wan_monotonic_us() >= until_us:
                return False
        return True
