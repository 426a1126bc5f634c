# Owns reading and laying out a column's rows: views of foreign memory, rows in our own memory, and the loops over them.
# None of this needs the GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_arrow cimport *
from pywan._core.values.msgpack cimport _column_put_be32


cdef void column_rows(const ColumnView *view, int64_t row, uint32_t count, const uint8_t **starts, uint32_t *lengths,
                      uint8_t *forms) noexcept nogil:
    """As `column_row` for `count` rows from `row` on. That is much less work than one call for each row."""
    cdef const uint8_t *data = view.data
    cdef const int32_t *narrow = view.offsets32 + row
    cdef const int64_t *wide = view.offsets64 + row
    cdef int64_t width = view.width
    cdef uint32_t n
    if view.validity != NULL or view.form == COLUMN_NONE:
        for n in range(count):
            column_row(view, row + n, &starts[n], &lengths[n], &forms[n])
        return
    memset(forms, view.form, count)
    if view.offsets32 != NULL:
        for n in range(count):
            starts[n] = data + narrow[n]
            lengths[n] = <uint32_t>(narrow[n + 1] - narrow[n])
    elif view.offsets64 != NULL:
        for n in range(count):
            starts[n] = data + wide[n]
            lengths[n] = <uint32_t>(wide[n + 1] - wide[n])
    else:
        data += row * width
        for n in range(count):
            starts[n] = data
            lengths[n] = <uint32_t>width
            data += width


# Rows that we lay out ourselves

cdef int _rows_start(ColumnRows *rows, int64_t count, int64_t width, int64_t expected_bytes) noexcept nogil:
    """Makes room for `count` rows in a zeroed `rows`. Returns 0, or -1 if there is no memory. In both cases the caller
    frees it with _rows_free."""
    rows.rows = count
    rows.width = width
    if width < 0:
        rows.offsets = <int64_t *>malloc(<size_t>(count + 1) * sizeof(int64_t))
        if rows.offsets == NULL:
            return -1
        rows.offsets[0] = 0
    cdef uint64_t size = <uint64_t>(count * width if width >= 0 else expected_bytes) + 16
    return 0 if wan_buffer_begin(&rows.bytes, size) == WAN_OK else -1


cdef int _rows_restart(ColumnRows *rows, int64_t count) noexcept nogil:
    """Makes room for `count` other rows of any width, in the memory of the rows before. Returns 0, or -1 if there is no
    memory."""
    if rows.offsets == NULL or rows.rows < count:
        _rows_free(rows)
        return _rows_start(rows, count, -1, count * 32)
    wan_buffer_empty(&rows.bytes)
    rows.length = 0
    return 0


cdef int _rows_append(ColumnRows *rows, const uint8_t *start, int64_t length) noexcept nogil:
    """Appends one row. Returns 0, or -1 if there is no memory."""
    if wan_buffer_add(&rows.bytes, start, <uint64_t>length) != WAN_OK:
        return -1
    _rows_end_row(rows)
    return 0


cdef int _rows_append_null(ColumnRows *rows) noexcept nogil:
    """Appends a null. Returns 0, or -1 if there is no memory."""
    cdef int64_t row = rows.length
    if rows.validity == NULL:
        rows.validity = <uint8_t *>malloc(<size_t>(rows.rows + 7) // 8)
        if rows.validity == NULL:
            return -1
        memset(rows.validity, 0xff, <size_t>(rows.rows + 7) // 8)
    rows.validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
    if rows.offsets == NULL:
        memset(rows.bytes.bytes + rows.bytes.used, 0, <size_t>rows.width)
        rows.bytes.used += <uint64_t>rows.width
    _rows_end_row(rows)
    return 0


cdef void _rows_free(ColumnRows *rows) noexcept nogil:
    """Frees the memory of the rows."""
    wan_buffer_close(&rows.bytes)
    free(rows.offsets)
    free(rows.validity)
    memset(rows, 0, sizeof(ColumnRows))


# Loops over whole columns; none needs the GIL

cdef void _bools_from_bits(const uint8_t *bits, int64_t first, uint8_t *out, int64_t length) noexcept nogil:
    """Writes `length` bits, from the bit `first` on, as booleans of msgpack."""
    cdef int64_t row
    for row in range(length):
        out[row] = 0xc2 | ((bits[(first + row) >> 3] >> ((first + row) & 7)) & 1)


cdef void _bools_from_bytes(const uint8_t *source, uint8_t *out, int64_t length) noexcept nogil:
    """Writes `length` bytes as booleans of msgpack."""
    cdef int64_t row
    for row in range(length):
        out[row] = 0xc3 if source[row] else 0xc2


cdef int64_t _first_over_int64(const ColumnView *view) noexcept nogil:
    """The first row of unsigned 64 bit numbers that int64 cannot hold, or -1."""
    cdef const uint64_t *numbers = <const uint64_t *>view.data
    cdef int64_t row
    for row in range(view.length):
        if numbers[row] > _COLUMN_INT64_MAX and not column_is_null(view, row):
            return row
    return -1


cdef bint _offsets_ascend(const ColumnView *view) noexcept nogil:
    """Whether no offset is negative and none is below the one before it. There is no branch per row: we collect the
    sign bits of all offsets and of all differences. The difference of two numbers that are not negative does not
    overflow."""
    cdef const uint32_t *narrow = <const uint32_t *>view.offsets32
    cdef const uint64_t *wide = <const uint64_t *>view.offsets64
    cdef uint32_t narrow_signs = 0
    cdef uint64_t wide_signs = 0
    cdef int64_t row
    if narrow != NULL:
        for row in range(view.length):
            narrow_signs |= narrow[row] | (narrow[row + 1] - narrow[row])
        return not (narrow_signs | narrow[view.length]) >> 31
    for row in range(view.length):
        wide_signs |= wide[row] | (wide[row + 1] - wide[row])
    return not (wide_signs | wide[view.length]) >> 63


cdef int64_t _first_bad_offset(const ColumnView *view, int64_t data_size) noexcept nogil:
    """The first row whose offsets go backwards or leave the data, or -1."""
    cdef int64_t row, start, end
    end = view.offsets32[view.length] if view.offsets32 != NULL else view.offsets64[view.length]
    if end <= data_size and _offsets_ascend(view):
        return -1
    for row in range(view.length):
        if view.offsets32 != NULL:
            start, end = view.offsets32[row], view.offsets32[row + 1]
        else:
            start, end = view.offsets64[row], view.offsets64[row + 1]
        if start < 0 or end < start or end > data_size:
            return row
    return -1


cdef int64_t _first_over_uint32(const ColumnView *view) noexcept nogil:
    """The first row with more bytes than a 32 bit length can hold, or -1."""
    cdef int64_t row
    if view.length == 0:
        return -1
    if view.offsets64 == NULL:
        return 0 if view.offsets32 == NULL and view.width > <int64_t>_COLUMN_UINT32_MAX else -1
    if view.offsets64[view.length] - view.offsets64[0] <= <int64_t>_COLUMN_UINT32_MAX:
        return -1
    for row in range(view.length):
        if view.offsets64[row + 1] - view.offsets64[row] > <int64_t>_COLUMN_UINT32_MAX:
            return row
    return -1


cdef int _rows_append_views(ColumnRows *rows, const ColumnView *views, const uint8_t **buffers, const int64_t *sizes,
                            int64_t buffer_count, int64_t *bad_row) noexcept nogil:
    """Copies the rows of an Arrow binary view. Returns 0, -1 (no memory), or 1 (`bad_row` points outside its
    buffer)."""
    cdef int64_t row
    cdef const uint8_t *view
    cdef int32_t length, buffer, offset
    for row in range(views.length):
        if column_is_null(views, row):
            if _rows_append_null(rows) < 0:
                return -1
            continue
        view = views.data + row * 16
        memcpy(&length, view, 4)
        bad_row[0] = row
        if length < 0:
            return 1
        if length <= 12:
            if _rows_append(rows, view + 4, length) < 0:
                return -1
            continue
        memcpy(&buffer, view + 8, 4)
        memcpy(&offset, view + 12, 4)
        if buffer < 0 or buffer >= buffer_count or offset < 0 or sizes[buffer] - length < offset:
            return 1
        if _rows_append(rows, buffers[buffer] + offset, length) < 0:
            return -1
    return 0


cdef int _rows_append_dictionary(ColumnRows *rows, const ColumnView *indices, const ColumnView *values,
                                 int64_t *bad_row) noexcept nogil:
    """Copies, for each of `indices`, the row of `values` that it names. Returns 0, -1 (no memory), or 1 (`bad_row`
    names no row)."""
    cdef int64_t row, index
    for row in range(indices.length):
        if column_is_null(indices, row):
            if _rows_append_null(rows) < 0:
                return -1
            continue
        index = (<const int64_t *>indices.data)[row]
        if index < 0 or index >= values.length:
            bad_row[0] = row
            return 1
        if _rows_append_from(rows, values, index) < 0:
            return -1
    return 0


cdef int _rows_append_timestamps(ColumnRows *rows, const ColumnView *ticks, uint8_t tag, int64_t ticks_per_second,
                                 bint min_is_null) noexcept nogil:
    """Lays out ticks since 1970 as moments. Returns 0, or -1 (no memory)."""
    cdef int64_t row, tick, seconds, nanoseconds
    cdef uint8_t out[MOMENT_BYTES_MAX]
    for row in range(ticks.length):
        tick = (<const int64_t *>ticks.data)[row]
        if column_is_null(ticks, row) or (min_is_null and tick == _COLUMN_INT64_MIN):
            if _rows_append_null(rows) < 0:
                return -1
            continue
        seconds = tick // ticks_per_second
        if tick < 0 and seconds * ticks_per_second != tick:
            seconds -= 1   # C rounds towards zero. A time before 1970 belongs to the second before it.
        nanoseconds = <int64_t>(<uint64_t>tick - <uint64_t>seconds * <uint64_t>ticks_per_second)
        nanoseconds *= 1000000000 // ticks_per_second
        if _rows_append(rows, out, put_moment(out, tag, seconds, <uint32_t>nanoseconds)) < 0:
            return -1
    return 0


cdef int _rows_append_dates(ColumnRows *rows, const ColumnView *ticks, int64_t ticks_per_day, bint min_is_null,
                            int64_t *bad_row) noexcept nogil:
    """Lays out ticks since 1970 as dates. Returns 0, -1 (no memory), or 1 (`bad_row` is no whole day, or a day that 32
    bits cannot hold)."""
    cdef int64_t row, tick
    cdef uint8_t out[6]
    out[0], out[1] = 0xd6, WAN_TAG_DATE
    for row in range(ticks.length):
        tick = (<const int64_t *>ticks.data)[row]
        if column_is_null(ticks, row) or (min_is_null and tick == _COLUMN_INT64_MIN):
            if _rows_append_null(rows) < 0:
                return -1
            continue
        if tick % ticks_per_day or tick // ticks_per_day != <int32_t>(tick // ticks_per_day):
            bad_row[0] = row
            return 1
        _column_put_be32(out + 2, <uint32_t>(tick // ticks_per_day))
        if _rows_append(rows, out, 6) < 0:
            return -1
    return 0
