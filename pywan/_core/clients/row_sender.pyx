# Owns a client's bulk way out: rows are laid out once, and sent frame by frame, until the member answers.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.values.codec cimport encode, encode_key, encoded
from pywan._core.values.column_views cimport (
    COLUMN_TAGGED, ColumnRows, ColumnView, _rows_free, _rows_restart)
from pywan._core.values.columns cimport Column
from pywan._core.values.row_maps cimport RowMaps
from pywan._core.region.put_rows cimport decode_rows, failure_text
from pywan._core.region.step_rows cimport ROWS_PER_HOLD, decoded_rows
from pywan._core.wire.byte_stream cimport ByteStream
from pywan._core.wire.session cimport (
    ENDED_CLOSED, ENDED_DONE, ENDED_TOLD, GOES_AGAIN, GOES_ON, Session, session_loop)
from pywan._core.base.status cimport detail_text
from pywan._core.wire.stream cimport STREAM_BROKEN, STREAM_MEMORY, STREAM_OK, buffer_frame, buffer_reserve
from pywan._core.wire.tls_stream cimport stream_of
from pywan._core.values.operations import operation_codes
from pywan._core.values.tagged cimport described


cdef enum:
    ROWS_PER_FRAME = 10000
    # So small that the frame stays in the processor's cache while it is written, summed and copied.
    FRAME_BYTES = 256 << 10
    SIGNALS_US = 100000         # A session that waits looks at the process's signals so often.
    PING_US = 60000000          # It sends a ping so long after its last byte, if its driver calls it then.
    HEAD_BYTES = sizeof(wan_frame) + sizeof(wan_batch_head) + sizeof(wan_section)


cdef class RowSender(Session):
    """Lays rows out as records, frame by frame, without the GIL. Over the connected socket `sock` each frame leaves as
    soon as it is whole, and the call waits for that. Without a socket the frames wait for `data_to_send`."""
    cdef uint64_t next_id, sequence
    cdef readonly uint64_t rows, bytes
    cdef readonly object answer     # The frame with which the member ended the task: COMMITTED or ERROR. None: not yet.
    cdef uint32_t frame_rows
    cdef wan_record head            # What all rows have in common: all but the key and the value.
    cdef wan_buffer laid            # The frame that is being filled.
    cdef ColumnRows maps            # The values of the rows of one call. The memory is kept for the next call.
    cdef ByteStream stream
    cdef uint64_t timeout_us        # The member has so long to take something, or to tell progress.
    cdef uint64_t moved_us          # When it last did.
    cdef uint64_t steps             # The highest count that it told of its work.
    cdef bint is_whole              # The member was told that the task is whole. Only its answer is missing.
    cdef object interruption        # What a signal's handler raised while the session waited.

    def __cinit__(self, sock=None, *, double timeout_s=60.0):
        self.stream = stream_of(sock) if sock is not None else None
        self.driver, self.reads_while_writing = self.stream, True
        self.timeout_us = <uint64_t>(timeout_s * 1e6)
        self.head.callback_form = WAN_FORM_NONE

    def __dealloc__(self):
        wan_buffer_close(&self.laid)
        _rows_free(&self.maps)

    cdef int open_frame(self) noexcept nogil:
        if not buffer_reserve(&self.laid, HEAD_BYTES):
            return STREAM_MEMORY
        memset(self.laid.bytes, 0, HEAD_BYTES)
        self.laid.used = HEAD_BYTES
        self.frame_rows = 0
        return STREAM_OK

    cdef int close_frame(self) noexcept nogil:
        """Closes the frame that is being filled, and lays it out to be sent."""
        cdef wan_frame *frame = <wan_frame *>self.laid.bytes
        cdef wan_batch_head *head = <wan_batch_head *>(frame + 1)
        cdef wan_section *section = <wan_section *>(head + 1)
        cdef wan_buffer held
        if self.frame_rows == 0:
            self.laid.used = 0
            return STREAM_OK
        if self.out.start < self.out.used and not buffer_reserve(&self.out, self.laid.used):
            return STREAM_MEMORY
        head.sections = 1
        section.count = self.frame_rows
        section.through = self.sequence
        section.first = self.sequence - self.frame_rows + 1
        section.bytes = <uint32_t>(self.laid.used - HEAD_BYTES)
        frame.magic = WAN_FRAME_MAGIC
        frame.type = WAN_FRAME_BATCH
        frame.id = self.next_id
        frame.count = self.frame_rows
        frame.length = frame.raw_length = <uint32_t>(self.laid.used - sizeof(wan_frame))
        frame.crc = wan_frame_crc(frame, head, frame.length)
        self.next_id += 1
        self.bytes += self.laid.used
        if self.out.start < self.out.used:
            memcpy(self.out.bytes + self.out.used, self.laid.bytes, self.laid.used)
            self.out.used += self.laid.used
        else:
            held = self.out
            self.out, self.laid = self.laid, held
        self.laid.start = self.laid.used = 0
        self.frame_rows = 0
        return STREAM_OK

    cdef int send_frame(self) noexcept nogil:
        cdef int state = self.close_frame()
        if state != STREAM_OK or self.stream is None:
            return state
        return STREAM_OK if session_loop(self, self.stream) == ENDED_DONE and self.answer is None else STREAM_BROKEN

    # The connection.

    cdef int step(self, uint64_t now_us) noexcept nogil:
        if self.answer is not None:
            return ENDED_DONE
        if self.is_idle():
            if self.stream is not None:
                return ENDED_DONE           # All that was to be sent is on its way.
            if now_us > self.moved_us + PING_US:
                return GOES_AGAIN if buffer_frame(&self.out, WAN_FRAME_PING, 0, 0, NULL, 0) else ENDED_TOLD
        elif now_us > self.member_until():
            wan_note(WAN_CORRUPT, "no answer, and no progress by the member for %.1f s" if self.is_whole else
                     "the member took nothing for %.1f s", self.timeout_us / 1e6)
            return ENDED_CLOSED
        elif self.stream is not None and not self.may_wait():
            return ENDED_CLOSED
        return GOES_ON

    cdef uint64_t due_us(self, uint64_t now_us) noexcept nogil:
        cdef uint64_t due = (self.moved_us + PING_US if self.is_idle() else self.member_until()) + 1
        return min(due, now_us + SIGNALS_US) if self.stream is not None else due

    cdef bint is_idle(self) noexcept nogil:
        """Whether the member has nothing to do."""
        return self.all_left() and not self.is_whole

    cdef uint64_t member_until(self) noexcept nogil:
        """When the member must have done something."""
        return max(self.moved_us, self.waiting_us) + self.timeout_us

    cdef void begin(self, uint64_t now_us) noexcept nogil:
        Session.begin(self, now_us)
        self.moved_us = now_us

    cdef void sent(self, uint64_t now_us) noexcept nogil:
        self.moved_us = now_us

    cdef int take_frame(self, wan_frame *frame) noexcept nogil:
        if frame.type != WAN_FRAME_PROGRESS:
            return self.take_answer(frame)
        if frame.id > self.steps:
            self.steps, self.moved_us = frame.id, self.now_us
        return GOES_ON

    cdef int take_answer(self, const wan_frame *frame) noexcept with gil:
        try:
            self.answer = PyBytes_FromStringAndSize(<const char *>frame, sizeof(wan_frame) + frame.length)
            return ENDED_DONE
        except BaseException:
            wan_note(WAN_NO_MEMORY, "no memory for the member's answer")
            return ENDED_TOLD

    cdef int closed(self, bint while_reading) noexcept nogil:
        wan_note(WAN_CORRUPT, "the member closed the connection")
        while not while_reading and self.stream.read(&self.into, self.wanted) == STREAM_OK:
            if self.receive(self.now_us) != GOES_ON:       # The member said why, before it closed the connection.
                return ENDED_DONE
        return ENDED_CLOSED

    cdef bint may_wait(self) noexcept with gil:
        try:
            PyErr_CheckSignals()        # Ctrl-C ends the wait. What was sent is dropped with the connection.
            return True
        except BaseException as error:
            self.interruption = error
            return False

    cdef int add_row(self, const decoded_rows *rows, int64_t n) noexcept nogil:
        cdef uint64_t length = wan_record_size(rows.key_lengths[n], rows.value_lengths[n], 0, 0)
        cdef wan_record *record
        cdef uint8_t *to
        cdef int state
        if self.laid.used == 0:
            state = self.open_frame()
            if state != STREAM_OK:
                return state
        if not buffer_reserve(&self.laid, length):
            return STREAM_MEMORY
        to = self.laid.bytes + self.laid.used
        record = wan_record_begin(to, length, &self.head)
        record.value_length, record.key_length = rows.value_lengths[n], <uint16_t>rows.key_lengths[n]
        record.key_form, record.value_form = rows.key_forms[n], rows.value_forms[n]
        record.operation = rows.operations[n]
        wan_record_fill(to, rows.keys[n], rows.values[n], NULL, NULL)
        self.sequence += 1
        self.laid.used += length
        self.frame_rows += 1
        self.rows += 1
        return STREAM_OK

    cdef inline bint frame_is_full(self) noexcept nogil:
        return self.frame_rows >= ROWS_PER_FRAME or self.laid.used >= FRAME_BYTES

    cdef object broken(self, int state):
        if state == STREAM_MEMORY:
            return MemoryError("no memory for a frame of rows")
        if self.interruption is not None:
            return self.interruption
        from pywan.errors import ConnectivityError
        if self.is_whole:
            return ConnectivityError(detail_text())
        return ConnectivityError("the member closed the connection or stopped reading in the middle of the rows; "
                                 "nothing of this task was applied")

    def put_columns(self, keys, values, operations=None):
        """Adds one row per key. An error is raised before any row of this call is laid out."""
        cdef Column k = keys if isinstance(keys, Column) else Column(keys, "keys")
        cdef Column v = None
        if values is not None:
            v = values if isinstance(values, Column) else Column(values, "values")
        self.put_views(&k.view, &v.view if v is not None else NULL, operations)

    def put_rows(self, keys, names, columns, operations=None):
        """Adds one row per key, whose value is a dict of the columns under `names`. Errors are raised as in
        `put_columns`."""
        cdef Column k = keys if isinstance(keys, Column) else Column(keys, "keys")
        cdef RowMaps maps = RowMaps(names, columns)
        cdef ColumnView view
        if _rows_restart(&self.maps, len(maps)) < 0:
            raise MemoryError(f"no memory for {len(maps)} rows")
        maps.lay_out(&self.maps)
        memset(&view, 0, sizeof(view))
        view.data, view.offsets64 = self.maps.bytes.bytes, self.maps.offsets
        view.length, view.form = self.maps.length, COLUMN_TAGGED
        self.put_views(&k.view, &view, operations)

    cdef int put_views(self, const ColumnView *kv, const ColumnView *vv, object operations) except -1:
        cdef int64_t rows = kv.length, base = 0
        cdef const uint8_t[::1] codes = None
        cdef const uint8_t *codes_ = NULL
        cdef decoded_rows decoded
        cdef int64_t count, n = 0
        cdef int state = STREAM_OK, wrong = 0
        if vv != NULL and vv.length != rows:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"{rows} keys and {vv.length} values")
        if operations is not None:
            codes = operation_codes(operations, rows)
            if rows:
                codes_ = &codes[0]
        decoded.has_faults = False
        with nogil:
            while base < rows and not wrong:        # All rows are checked before any is laid out.
                count = min(rows - base, <int64_t>ROWS_PER_HOLD)
                decode_rows(kv, vv, codes_, base, &decoded, 0, count)
                for n in range(count if decoded.has_faults else 0):
                    wrong = decoded.faults[n]
                    if wrong:
                        break
                else:
                    base += count
            if not wrong:
                base = 0
            while base < rows and not wrong and state == STREAM_OK:
                count = min(rows - base, <int64_t>ROWS_PER_HOLD)
                decode_rows(kv, vv, codes_, base, &decoded, 0, count)
                for n in range(count):
                    state = self.add_row(&decoded, n)
                    if state == STREAM_OK and self.frame_is_full():
                        state = self.send_frame()
                    if state != STREAM_OK:
                        break
                base += count
        if wrong:
            from pywan.errors import SerializationError
            raise SerializationError(f"row {self.rows + base + n} of this task: {failure_text(wrong)}; nothing of "
                                     "this task was applied")
        if state != STREAM_OK:
            raise self.broken(state)
        return 0

    def put_pairs(self, pairs):
        """Adds (key, value) pairs of Python objects."""
        cdef encoded k, v
        cdef decoded_rows row
        cdef int state
        row.operations[0] = WAN_UPDATE
        for pair in pairs:
            # A text of two letters has two items too, and is no pair.
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                from pywan.errors import ConfigurationError
                raise ConfigurationError(f"row {self.rows} of the task is no pair (key, value) but "
                                         f"{type(pair).__name__} {described(pair)}; map each element to a tuple of two")
            key, value = pair
            _key_holder = encode_key(key, &k)
            _value_holder = encode(value, &v)
            row.keys[0], row.key_lengths[0], row.key_forms[0] = k.data, k.length, k.form
            row.values[0], row.value_lengths[0], row.value_forms[0] = v.data, v.length, v.form
            state = self.add_row(&row, 0)
            if state == STREAM_OK and self.frame_is_full():
                with nogil:     # This may wait for a member, which may be in this very process.
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

    def commit(self):
        """Tells the member that the task is whole. Over a socket it returns when the member has answered."""
        cdef int state
        with nogil:
            state = self.close_frame()
            if state == STREAM_OK:
                state = STREAM_OK if buffer_frame(&self.out, WAN_FRAME_COMMIT, self.rows, 0, NULL, 0) else STREAM_MEMORY
            self.is_whole = state == STREAM_OK
            if self.is_whole and self.stream is not None and (session_loop(self, self.stream) != ENDED_DONE
                                                              or self.answer is None):
                state = STREAM_BROKEN
        if state != STREAM_OK:
            raise self.broken(state)
