# Owns changes of many keys in a call: rows are divided by bucket, and go to the primaries of all buckets at once.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.c_replication cimport wan_call_identity
from pywan._core.c_session cimport *
from pywan._core.calls.call_route cimport CallPart, CallRoute, begin, identify
from pywan._core.region.call_slots cimport CallSlots
from pywan._core.values.codec cimport encode, encode_key, encoded
from pywan._core.values.tagged cimport pack_closed
from pywan._core.values.column_views cimport ColumnView, column_row
from pywan._core.values.columns cimport Column
from pywan._core.values.operations import operation_codes
from pywan._core.region.bulk cimport BulkEntries
from pywan._core.region.told_changes cimport encode_callback
from pywan._core.region.put_rows cimport failure_text, key_fault
from pywan._core.region.region_state cimport region_core

cdef enum:
    BYTES_TOGETHER = 16 << 20       # So many bytes of rows are divided and sent together.
    FAILURES_LISTED = 1000

cdef struct section:
    # The rows for a bucket that are not made yet.
    wan_buffer records
    wan_buffer rows                 # For each record the number of the row: int64_t.


@cython.auto_pickle(False)
cdef class RowCalls(BulkEntries):
    """The rows of a bulk call. Rows of a bucket keep their order."""
    cdef CallRoute route
    cdef uint8_t operation          # The operation of all entries.
    cdef object callback_argument   # The same.
    cdef readonly list refused      # (row, reason) of the entries that cannot be encoded.
    cdef section *sections          # By bucket.
    cdef uint32_t bucket_count
    cdef uint64_t bytes             # Bytes of all waiting records.
    cdef readonly int64_t applied   # Rows that took effect.
    cdef readonly int64_t failed    # Refused rows, and rows that may not have been made.
    cdef readonly list failures     # (row, reason), the first thousand.
    cdef readonly object error      # The first error of a whole bucket, preferably in doubt.
    # When the present part of the call began. After a part that took too long, the time stays: the rest of the call
    # gets no time of its own.
    cdef uint64_t began
    cdef bint is_late

    def __cinit__(self, CallRoute route not None):
        self.route, self.state, self.bucket_count = route, route.state, route.state.region.table.bucket_count
        self.sections = <section *>calloc(self.bucket_count, sizeof(section))
        if self.sections == NULL:
            raise MemoryError(f"region {route.state.name!r}: no memory to divide rows; nothing was changed")
        self.failures, self.refused = [], []

    def __dealloc__(self):
        if self.sections != NULL:
            for n in range(self.bucket_count):
                wan_buffer_close(&self.sections[n].records)
                wan_buffer_close(&self.sections[n].rows)
        free(self.sections)

    def add_pairs(self, entries, callback_argument=None):
        """Adds a put for each entry of a mapping, or of pairs. If many bytes are waiting, the waiting rows are sent
        first. A row that cannot be encoded is refused. The last rows leave with `send`, or when `entries` fail."""
        self.operation, self.callback_argument = WAN_UPDATE, callback_argument
        self.take_pairs(entries)

    def add_keys(self, keys, callback_argument=None):
        """As `add_pairs`, with a destroy for each key."""
        self.operation, self.callback_argument = WAN_DESTROY, callback_argument
        self.take_keys(keys)

    cdef int take(self, key, value) except -1:
        """Adds the next row, or refuses the row."""
        cdef encoded encoded_key, encoded_value, argument
        cdef int64_t row = self.row
        try:
            _key_holder = encode_key(key, &encoded_key)
            if pack_closed(&self.packed, value):
                encoded_value.data, encoded_value.length = self.packed.data, <uint32_t>self.packed.used
                encoded_value.form = WAN_FORM_TAGGED
            else:
                _value_holder = encode(value, &encoded_value)
            _argument_holder = encode_callback(self.callback_argument, &argument)
            if self.bytes + encoded_value.length + encoded_key.length > BYTES_TOGETHER:
                self.send()
            if not self.put(row, self.operation, &encoded_key, &encoded_value, &argument, 0):
                raise MemoryError(f"region {self.route.state.name!r}: no memory for row {row}")
        except (TypeError, ValueError) as error:        # The key or value cannot be encoded.
            self.refused.append((row, str(error).removesuffix(" (nothing was stored)")))
        return 0

    cdef int flush(self) except -1:
        """Makes all waiting rows, because the caller's entries have failed."""
        self.send()
        return 0

    def add_columns(self, Column keys not None, Column values, operations=None, timestamps=None, int64_t row=0):
        """Adds the rows of columns from `row` on, and sends the rows. The last rows leave with `send`."""
        cdef const uint8_t[::1] codes = None
        cdef const int64_t[::1] stamps = None
        cdef const ColumnView *value_view = &values.view if values is not None else NULL
        cdef int64_t length = keys.view.length
        cdef int problem = 0
        if operations is not None:
            codes = operation_codes(operations, length)
        if timestamps is not None:
            import numpy
            stamps = numpy.ascontiguousarray(timestamps, dtype=numpy.int64)
        if (value_view != NULL and value_view.length != length) or (stamps is not None and stamps.shape[0] != length):
            raise ValueError(f"region {self.route.state.name!r}: columns of different lengths; nothing was stored")
        while row < length:
            with nogil:
                row = self.divide(&keys.view, value_view, codes, stamps, row, &problem)
            if problem < 0:
                raise MemoryError(f"region {self.route.state.name!r}: no memory to divide rows from row {row} on")
            if problem:
                self.refuse(row, failure_text(problem))
                row += 1
            elif row < length:
                self.send()

    @cython.boundscheck(False)
    cdef int64_t divide(self, const ColumnView *keys, const ColumnView *values, const uint8_t[::1] codes,
                        const int64_t[::1] stamps, int64_t row, int *problem) noexcept nogil:
        """Adds rows until enough bytes are waiting, or until a row cannot be added. Returns the next row. `problem`:
        the reason why the next row cannot be added, for `failure_text`; -1: no memory."""
        cdef encoded key, value, none
        cdef uint8_t operation
        none.data, none.length, none.form = keys.data, 0, WAN_FORM_NONE
        problem[0] = 0
        while row < keys.length and self.bytes < BYTES_TOGETHER:
            column_row(keys, row, &key.data, &key.length, &key.form)
            operation = codes[row] if codes is not None else <uint8_t>WAN_UPDATE
            problem[0] = key_fault(key.data, key.length, key.form, False)
            value = none
            if values != NULL and operation != WAN_DESTROY:
                column_row(values, row, &value.data, &value.length, &value.form)
                if value.length > WAN_VALUE_BYTES_MAX and not problem[0]:
                    problem[0] = 3
            if problem[0]:
                break
            if self.bytes and self.bytes + value.length > BYTES_TOGETHER:
                break
            if not self.put(row, operation, &key, &value, &none, stamps[row] if stamps is not None else 0):
                problem[0] = -1
                break
            row += 1
        return row

    cdef bint put(self, int64_t row, uint8_t operation, const encoded *key, const encoded *value,
                  const encoded *argument, int64_t timestamp_ms) noexcept nogil:
        """Adds a record. False: no memory."""
        cdef region_core *region = &self.route.state.region
        cdef section *to = &self.sections[wan_table_bucket(&region.table,
                                                           wan_key_hash(key.data, key.length, key.form)).number]
        cdef wan_thread *maker = wan_thread_self()
        cdef wan_record *record
        cdef uint64_t length = wan_record_size(key.length, value.length, argument.length, 0)
        if (wan_buffer_reserve(&to.records, length) != WAN_OK
                or wan_buffer_add(&to.rows, &row, sizeof(int64_t)) != WAN_OK):
            return False
        record = wan_record_begin(to.records.bytes + to.records.used, length, &wan_no_head)
        record.value_length, record.key_length = value.length, <uint16_t>key.length
        record.callback_length = <uint16_t>argument.length
        maker.events += 1
        record.event_member, record.event_thread = region.member, maker.number
        record.event_sequence = maker.events
        record.operation, record.key_form = operation, key.form
        record.value_form, record.callback_form = value.form, argument.form
        record.origin_site = record.stamp_site = region.site
        if timestamp_ms > 0:
            record.stamp, record.flags = <uint64_t>timestamp_ms << 16, WAN_FLAG_GIVEN
        wan_record_fill(<uint8_t *>record, key.data, value.data, argument.data, NULL)
        to.records.used += length
        self.bytes += length
        return True

    def send(self):
        """Makes all waiting rows at the primaries of their buckets. Returns when each row is made or refused. The rows
        sent together are a single call, with the same identity in all buckets, and a common deadline."""
        cdef CallPart part
        cdef list parts
        cdef CallSlots slots = self.route.slots
        cdef wan_call_identity call
        if not self.is_late:
            self.began = wan_monotonic_us()
        while self.bytes:
            slots.take(&call)
            parts = self.parts(&call)
            try:
                self.route.exchange_all(parts, self.began)
            except BaseException:
                self.drop()         # Ctrl-C: no caller waits for the answers.
                raise
            finally:
                slots.give(call)
            for part in parts:
                self.take_answer(part)
        self.is_late = self.is_late or wan_monotonic_us() >= wan_deadline_of(self.began, self.route.limit_us)

    cdef list parts(self, const wan_call_identity *call):
        cdef CallPart part
        cdef section *from_
        cdef uint32_t bucket
        parts = []
        for bucket in range(self.bucket_count):
            from_ = &self.sections[bucket]
            if from_.records.start == from_.records.used:
                continue
            part = CallPart()
            begin(&part.head, WAN_CALL_ROWS, self.route.state, 0)
            identify(&part.head, call)
            part.head.bucket = bucket
            part.head.count = <uint32_t>((from_.rows.used - from_.rows.start) // sizeof(int64_t))
            part.data = from_.records.bytes + from_.records.start
            part.length = from_.records.used - from_.records.start
            parts.append(part)
        return parts

    cdef int take_answer(self, CallPart part) except -1:
        """Notes the results of a bucket's rows. Rows that were not tried stay."""
        cdef section *from_ = &self.sections[part.head.bucket]
        cdef uint64_t done = 0
        error = part.error
        if error is None:
            if part.got.status != WAN_ANSWER_NOT_PRIMARY:
                error = self.error_of_count(part)
                self.applied += <int64_t>part.got.number if error is None else 0
            done = min(part.got.done, <uint64_t>part.head.count)
            if part.got.status == WAN_ANSWER_IN_DOUBT or part.got.status == WAN_ANSWER_FAILED:
                error = self.route.failure(part.payload, part.got.status == WAN_ANSWER_IN_DOUBT)
            if part.got.status == WAN_ANSWER_IN_DOUBT or error is not None and error.in_doubt:
                done = 0
            if part.got.status == WAN_ANSWER_GIVEN_UP:
                self.route.rename(&part.head)       # The remaining rows go again, with a new client.
        self.cut(from_, done)
        if error is not None:
            if self.error is None or (error.in_doubt and not self.error.in_doubt):
                self.error = error
            self.refuse_section(from_, str(error))
        return 0

    cdef object error_of_count(self, CallPart part):
        """The error for an answer that reports more effective rows than the call had. None: the answer is right."""
        try:
            self.route.number_of(part, 0, part.head.count)
        except Exception as error:
            error.in_doubt = True
            return error
        return None

    cdef void cut(self, section *from_, uint64_t rows) noexcept:
        """Removes the first rows of a section."""
        cdef uint64_t length
        if rows * sizeof(int64_t) == from_.rows.used - from_.rows.start:
            self.bytes -= from_.records.used - from_.records.start
            from_.records.start, from_.rows.start, rows = from_.records.used, from_.rows.used, 0
        while rows:
            length = wan_record_length(<const wan_record *>(from_.records.bytes + from_.records.start))
            from_.records.start += length
            from_.rows.start += sizeof(int64_t)
            self.bytes -= length
            rows -= 1
        if from_.records.start == from_.records.used:
            wan_buffer_trim(&from_.records, WAN_BUFFER_KEPT_BYTES)
            wan_buffer_trim(&from_.rows, WAN_BUFFER_KEPT_BYTES)

    cdef int refuse_section(self, section *from_, str reason) except -1:
        while from_.rows.start < from_.rows.used:
            self.refuse((<int64_t *>(from_.rows.bytes + from_.rows.start))[0], reason)
            self.cut(from_, 1)
        return 0

    cdef int refuse(self, int64_t row, str reason) except -1:
        self.failed += 1
        if len(self.failures) < FAILURES_LISTED:
            self.failures.append((row, reason))
        return 0

    cdef void drop(self) noexcept:
        cdef uint32_t bucket
        for bucket in range(self.bucket_count):
            wan_buffer_close(&self.sections[bucket].records)
            wan_buffer_close(&self.sections[bucket].rows)
        self.bytes = 0
