# Owns a client's bulk way out: rows laid out once, and sent frame by frame.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.codec cimport described, encode, encode_key, encoded
from pywan._core.column_views cimport COLUMN_TAGGED, ColumnRows, ColumnView, _rows_free, _rows_restart, column_row
from pywan._core.columns cimport Column
from pywan._core.lz4 cimport lz4_load
from pywan._core.row_maps cimport RowMaps
from pywan._core.put_rows cimport failure_text, key_fault
from pywan._core.session cimport ENDED_CLOSED, ENDED_DONE, GOES_ON, READY_TO_READ, Session, SocketStream, session_loop
from pywan._core.stream cimport STREAM_BROKEN, STREAM_MEMORY, STREAM_OK, buffer_reserve
from pywan._core.operations import operation_codes


cdef enum:
    ROWS_PER_FRAME = 10000
    FRAME_BYTES = 1 << 20
    SIGNALS_US = 100000         # So often it looks at the process's signals while it waits.


cdef class RowSender(Session):
    """Lays rows out as records and sends them over a connected blocking socket, frame by frame, without the GIL."""
    cdef uint64_t next_id, sequence
    cdef readonly uint64_t rows, bytes
    cdef uint32_t frame_rows
    cdef bint compress
    cdef ColumnRows maps            # The values of the rows of one call, in the memory of the call before.
    cdef uint64_t timeout_us        # For the member to take something.
    cdef uint64_t moved_us          # When it last did.
    cdef object interruption        # What a signal's handler raised while it was waited for.

    def __cinit__(self, int file, *, bint compress=False, double timeout_s=60.0):
        self.stream, self.compress, self.reads = SocketStream(file), compress, False
        self.timeout_us = <uint64_t>(timeout_s * 1e6)
        if compress:
            lz4_load()

    def __dealloc__(self):
        _rows_free(&self.maps)

    cdef int open_frame(self) noexcept nogil:
        if not buffer_reserve(&self.out, sizeof(wan_frame) + sizeof(wan_batch_head) + sizeof(wan_section)):
            return STREAM_MEMORY
        memset(self.out.bytes + self.out.used, 0, sizeof(wan_frame) + sizeof(wan_batch_head) + sizeof(wan_section))
        self.out.used += sizeof(wan_frame) + sizeof(wan_batch_head) + sizeof(wan_section)
        self.frame_rows = 0
        return STREAM_OK

    cdef int send_frame(self) noexcept nogil:
        cdef wan_frame *frame
        cdef wan_batch_head *head
        cdef wan_section *section
        if self.frame_rows:
            frame = <wan_frame *>(self.out.bytes + self.out.start)
            head = <wan_batch_head *>(frame + 1)
            section = <wan_section *>(head + 1)
            head.sections = 1
            section.count = self.frame_rows
            section.through = self.sequence
            section.first = self.sequence - self.frame_rows + 1
            section.settled = 0
            section.bytes = self.out.used - self.out.start - sizeof(wan_frame) - sizeof(wan_batch_head) - sizeof(wan_section)
            frame.magic = WAN_FRAME_MAGIC
            frame.type = WAN_FRAME_BATCH
            frame.id = self.next_id
            frame.count = self.frame_rows
            frame.length = frame.raw_length = <uint32_t>(self.out.used - self.out.start - sizeof(wan_frame))
            frame.crc = wan_frame_crc(frame, head, frame.length)
            self.next_id += 1
            self.bytes += self.out.used - self.out.start
        else:
            self.out.start = self.out.used = 0
            return STREAM_OK
        self.frame_rows = 0
        self.moved_us = 0
        return STREAM_OK if session_loop(self, self.stream) == ENDED_DONE else STREAM_BROKEN

    cdef int step(self, uint64_t now_us, uint64_t *until_us) noexcept nogil:
        if self.out.start == self.out.used:
            return ENDED_DONE
        if self.moved_us == 0:
            self.moved_us = now_us
        if now_us > self.moved_us + self.timeout_us or not self.may_wait():
            return ENDED_CLOSED
        until_us[0] = min(until_us[0], now_us + SIGNALS_US)
        return GOES_ON

    cdef void sent(self, uint64_t now_us) noexcept nogil:
        self.moved_us = now_us

    cdef void woken(self, uint64_t since_us, int ready) noexcept nogil:
        if ready & READY_TO_READ:       # The member speaks only to say what is wrong (or at the end).
            wan_flag_set(&self.stop_flag, 1)

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
        cdef wan_record head
        cdef int state
        if self.out.used == 0:
            state = self.open_frame()
            if state != STREAM_OK:
                return state
        if not buffer_reserve(&self.out, length):
            return STREAM_MEMORY
        memset(&head, 0, sizeof(head))
        head.value_length, head.key_length, head.operation = value_length, <uint16_t>key_length, operation
        head.key_form, head.value_form, head.callback_form = key_form, value_form, WAN_FORM_NONE
        wan_record_write(self.out.bytes + self.out.used, length, head, key, value, NULL, NULL)
        self.sequence += 1
        self.out.used += length
        self.frame_rows += 1
        self.rows += 1
        return STREAM_OK

    cdef inline bint frame_is_full(self) noexcept nogil:
        return self.frame_rows >= ROWS_PER_FRAME or self.out.used >= FRAME_BYTES

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
        self.put_views(&k.view, &v.view if v is not None else NULL, operations)

    def put_rows(self, keys, names, columns, operations=None):
        """Adds one row per key, whose value is a dict of the columns under `names`. Raises as `put_columns` does."""
        cdef Column k = keys if isinstance(keys, Column) else Column(keys, "keys")
        cdef RowMaps maps = RowMaps(names, columns)
        cdef ColumnView view
        if _rows_restart(&self.maps, len(maps)) < 0:
            raise MemoryError(f"no memory for {len(maps)} rows")
        maps.lay_out(&self.maps)
        memset(&view, 0, sizeof(view))
        view.data, view.offsets64, view.length, view.form = self.maps.bytes.bytes, self.maps.offsets, self.maps.length, COLUMN_TAGGED
        self.put_views(&k.view, &view, operations)

    cdef int put_views(self, const ColumnView *kv, const ColumnView *vv, object operations) except -1:
        cdef int64_t rows = kv.length, row
        cdef const uint8_t[::1] codes = None
        cdef const uint8_t *codes_ = NULL
        cdef const uint8_t *key
        cdef const uint8_t *value = b""
        cdef uint32_t key_length, value_length = 0
        cdef uint8_t key_form, value_form = WAN_FORM_NONE, operation
        cdef int state = STREAM_OK, wrong = 0
        if vv != NULL and vv.length != rows:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"{rows} keys and {vv.length} values")
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
        return 0

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
