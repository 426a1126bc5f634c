# Owns the changes that a region takes as columns, in one call.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_FromStringAndSize
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.values.column_views cimport column_row
from pywan._core.values.columns cimport Column
from pywan._core.region.filtered_changes cimport put_rows_filtered
from pywan._core.region.put_rows cimport bulk_result, failure_text, key_fault, region_put_rows
from pywan._core.region.compiled_region cimport OneWait, CompiledRegion
from pywan._core.region.region_callbacks cimport EVENTS_TOGETHER
from pywan._core.region.told_changes cimport begin_list, change_through_path, end_list
from pywan._core.values.tagged cimport Encoded
from pywan._core.values.operations import operation_codes


cdef object region_put_columns(CompiledRegion self, keys, values, operations, timestamps):
    """As `RegionCalls.put_columns`."""
    self.check_open()
    cdef Column key_column = keys if isinstance(keys, Column) else Column(keys, "keys")
    cdef Column value_column = None
    if values is not None:
        value_column = values if isinstance(values, Column) else Column(values, "values")
    cdef int64_t rows = key_column.view.length
    cdef const uint8_t[::1] codes = None
    cdef const uint8_t *operation_codes_ = NULL
    cdef const int64_t[::1] stamps = None
    cdef const int64_t *stamps_ = NULL
    from pywan import errors
    if value_column is not None and value_column.view.length != rows:
        raise errors.ConfigurationError(f"region {self.name!r}: put_columns got {rows} keys and"
                                        f" {value_column.view.length} values; nothing was stored")
    if operations is not None:
        codes = operation_codes(operations, rows)
        if rows:
            operation_codes_ = &codes[0]
    elif value_column is None:
        raise errors.ConfigurationError(f"region {self.name!r}: put_columns without values needs operations")
    if timestamps is not None:
        import numpy
        stamps = numpy.ascontiguousarray(timestamps, dtype=numpy.int64)
        if stamps.shape[0] != rows:
            raise errors.ConfigurationError(f"region {self.name!r}: {rows} keys and {stamps.shape[0]} timestamps;"
                                            " nothing was stored")
        if rows:
            stamps_ = &stamps[0]
            worst = int(numpy.max(stamps))
            if worst >= 1 << 47:
                raise errors.ConfigurationError(f"region {self.name!r}: a timestamp of {worst} is no number of"
                                                " milliseconds since 1970; nothing was stored")
    if self.region.changelog != NULL:
        return self.route.put_columns(key_column, value_column, operations, timestamps)
    cdef bulk_result result
    cdef uint64_t began = 0
    cdef int64_t stopped_at = -1
    cdef uint32_t never = 0
    memset(&result, 0, sizeof(bulk_result))
    while True:
        with nogil:
            region_put_rows(&self.region, &key_column.view, &value_column.view if value_column is not None else NULL,
                            operation_codes_, stamps_, &result)
        if result.stopped != WAN_FULL:
            break
        if result.done != stopped_at:       # Each row may wait for the whole time.
            began, stopped_at = wan_monotonic_us(), result.done
        if not self.may_wait(began):
            break
        try:
            PyErr_CheckSignals()        # Ctrl-C ends the wait: the rows before were stored.
        except BaseException:
            free(result.rows)
            free(result.reasons)
            raise
        result.stopped = WAN_OK         # We go on from the row that found no room: no failure yet.
        with nogil:
            wan_wait_change(&never, 0, 5)
    refusal = None
    applied, failed = result.applied, result.failed
    try:
        failures = [(result.rows[n], failure_text(result.reasons[n])) for n in range(result.listed)]
        # The path goes through the callbacks, perhaps since a moment ago. The rest of the rows takes it.
        if result.stopped == WAN_SLOW:
            callback_failures = []
            with OneWait(self):
                applied += put_rows_by_callbacks(self, key_column, value_column, operation_codes_, stamps_,
                                                 result.done, callback_failures)
            failed += len(callback_failures)
            failures += callback_failures
        elif result.stopped == WAN_NOT_PRIMARY:
            applied += put_rows_shared(self, key_column, value_column, operations, timestamps, &result, failures)
            failed += len(failures) - result.listed
        elif result.stopped == WAN_CLOSED and result.done:
            raise errors.RegionNotFoundError(f"put_columns stopped at row {result.done} of {rows}: region"
                                             f" {self.name!r} was destroyed, or its cache closed (the rows before were"
                                             " stored)")
        elif result.stopped:
            self.fail(result.stopped, f"put_columns from row {result.done} of {rows} on (the rows before were stored)")
        if failed:
            refusal = errors.BatchError(
                f"region {self.name!r}: {failed} of {rows} rows were refused, the others were stored; first: row "
                f"{failures[0][0]}: {failures[0][1]}", failures, applied)
    except (errors.PywanError, MemoryError) as error:
        refusal = error
    finally:
        free(result.rows)
        free(result.reasons)
    if wan_flag_read(&self.region.durable):
        try:
            self.wait_written(result.waits)
        except errors.DiskError as error:
            if refusal is None:
                raise
            refusal.args = (f"{refusal}; of the rows that were stored: {error}", *refusal.args[1:])
    if refusal is not None:
        raise refusal
    return applied


cdef int64_t put_rows_shared(CompiledRegion self, Column key_column, Column value_column, operations, timestamps,
                             const bulk_result *result, list failures) except -1:
    """Puts the rest of the rows when further members came to hold the region during the call. Returns how many rows
    took effect."""
    from pywan.errors import BatchError, ConnectivityError
    if result.sequence and self.wait_stable(result.bucket, result.local_fence, result.sequence,
                                            wan_monotonic_us()) != WAN_OK:
        late = ConnectivityError(f"put_columns stopped at row {result.done}: not all replicas of the row before have"
                                 " it; it may count later, or be lost (the rows before that one were stored)")
        late.in_doubt = True
        raise late
    if result.done == key_column.view.length:
        return 0
    try:
        return self.route.put_columns(key_column, value_column, operations, timestamps, result.done)
    except BatchError as error:
        failures += error.failures
        return error.applied


cdef int64_t put_rows_by_callbacks(CompiledRegion self, Column key_column, Column value_column, const uint8_t *codes,
                                   const int64_t *stamps, int64_t row, list failures) except -1:
    """Puts the rows from `row` on, through the user's callbacks. Returns how many took effect."""
    cdef int64_t applied = 0, end, made
    while row < key_column.view.length:
        made = put_rows_filtered(self, key_column, value_column, codes, stamps, row, failures, &applied)
        if made > row:
            row = made
            continue
        end = min(key_column.view.length, row + EVENTS_TOGETHER)
        callbacks = begin_list(self)
        try:
            applied += put_some_by_callbacks(self, key_column, value_column, codes, stamps, &row, end, failures,
                                             callbacks is not None)
        finally:
            end_list(callbacks)
        PyErr_CheckSignals()        # Listeners may be compiled too.
        with nogil:
            pass
    return applied


cdef int64_t put_some_by_callbacks(CompiledRegion self, Column key_column, Column value_column, const uint8_t *codes,
                                   const int64_t *stamps, int64_t *row, int64_t end, list failures,
                                   bint has_list) except -1:
    """Puts the rows from *row up to `end`, as `put_rows_by_callbacks`. *row: the first row that was not made. Rows that
    wait for replicas are not put while a list is open."""
    cdef const uint8_t *data
    cdef const uint8_t *value_data = NULL
    cdef uint32_t length, value_length = 0
    cdef uint8_t form, value_form = WAN_FORM_NONE
    cdef int64_t applied = 0
    cdef int wrong
    from pywan.errors import DiskError, QueueFullError, RegionNotFoundError
    while row[0] < end and not (has_list and self.region.changelog != NULL):
        column_row(&key_column.view, row[0], &data, &length, &form)
        operation = codes[row[0]] if codes != NULL else WAN_UPDATE
        value = None
        wrong = key_fault(data, length, form, False)
        if operation != WAN_DESTROY and value_column is not None and not wrong:
            column_row(&value_column.view, row[0], &value_data, &value_length, &value_form)
            if value_length > WAN_VALUE_BYTES_MAX:
                wrong = 3
            else:
                value = Encoded(value_form, PyBytes_FromStringAndSize(<const char *>value_data, value_length))
        if wrong:
            failures.append((row[0], failure_text(wrong)))
            row[0] += 1
            continue
        try:
            key = Encoded(form, PyBytes_FromStringAndSize(<const char *>data, length))
            outcome = change_through_path(self, operation, key, value, None, stamps[row[0]] if stamps != NULL else 0,
                                          NULL, None)
        except (QueueFullError, DiskError, RegionNotFoundError) as error:
            raise type(error)(f"put_columns stopped at row {row[0]}: {error} (the rows before were stored)") from error
        applied += outcome in ("created", "updated", "destroyed")
        row[0] += 1
    return applied
