# The interface of column_views.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_arrow cimport *
from pywan._core.values.msgpack cimport _column_put_be32, _column_put_be64

# The form of a row says how to read its bytes. Each number is part of the wire format.
cdef enum:
    COLUMN_BYTES = 0
    COLUMN_STR = 1       # utf-8
    COLUMN_TAGGED = 2    # one msgpack object
    COLUMN_NONE = 3      # no bytes
    COLUMN_INT64 = 4     # 8 bytes, little-endian
    COLUMN_FLOAT64 = 5   # 8 bytes, little-endian

cdef enum:
    MOMENT_BYTES_MAX = 15

cdef enum:
    COLUMN_OPERATION_CREATE = 0
    COLUMN_OPERATION_UPDATE = 1
    COLUMN_OPERATION_DESTROY = 2
    _COLUMN_OPERATION_UNKNOWN = 255

cdef struct ColumnView:
    # A column as bytes for each row. It is borrowed from a Column, and any thread may read it while that Column lives.
    # With offsets (of one kind at most), row r is data[offsets[r]:offsets[r + 1]]. Without, row r has `width` bytes
    # from r * width on.
    const uint8_t *data          # Never NULL.
    const int32_t *offsets32
    const int64_t *offsets64
    int64_t width
    const uint8_t *validity      # One bit per row, 0 = null; NULL if no row is null.
    int64_t validity_offset      # The bit of row 0.
    int64_t length
    uint8_t form                 # Of every row that is not null.
    uint8_t is_bool              # Form 2, one byte per row: 0xc2 or 0xc3.


cdef inline bint column_is_null(const ColumnView *view, int64_t row) noexcept nogil:
    cdef int64_t bit
    if view.validity == NULL:
        return view.form == COLUMN_NONE
    bit = view.validity_offset + row
    return not (view.validity[bit >> 3] >> (bit & 7)) & 1


cdef inline void column_row(const ColumnView *view, int64_t row, const uint8_t **start, uint32_t *length,
                            uint8_t *form) noexcept nogil:
    """The bytes of `row`, which must be below `view.length`. A null has form 3 and length 0."""
    cdef int64_t offset
    if column_is_null(view, row):
        start[0] = view.data
        length[0] = 0
        form[0] = COLUMN_NONE
        return
    if view.offsets32 != NULL:
        offset = view.offsets32[row]
        length[0] = <uint32_t>(view.offsets32[row + 1] - offset)
    elif view.offsets64 != NULL:
        offset = view.offsets64[row]
        length[0] = <uint32_t>(view.offsets64[row + 1] - offset)
    else:
        offset = row * view.width
        length[0] = <uint32_t>view.width
    start[0] = view.data + offset
    form[0] = view.form


cdef void column_rows(const ColumnView *view, int64_t row, uint32_t count, const uint8_t **starts, uint32_t *lengths,
                      uint8_t *forms) noexcept nogil

cdef struct ColumnRows:
    # Rows that were appended one by one to our own memory. All are `width` bytes wide; if `width` is -1, each has its
    # own width.
    wan_buffer bytes
    int64_t *offsets             # rows + 1 of them. NULL: the width is fixed.
    uint8_t *validity            # NULL until the first null.
    int64_t length               # Rows that were appended so far.
    int64_t rows                 # Rows that there is room for.
    int64_t width

cdef int _rows_start(ColumnRows *rows, int64_t count, int64_t width, int64_t expected_bytes) noexcept nogil
cdef int _rows_restart(ColumnRows *rows, int64_t count) noexcept nogil
cdef int _rows_append(ColumnRows *rows, const uint8_t *start, int64_t length) noexcept nogil


cdef inline void _rows_end_row(ColumnRows *rows) noexcept nogil:
    """Ends a row, whose bytes have been appended."""
    rows.length += 1
    if rows.offsets != NULL:
        rows.offsets[rows.length] = <int64_t>rows.bytes.used


cdef int _rows_append_null(ColumnRows *rows) noexcept nogil


cdef inline int _rows_append_from(ColumnRows *rows, const ColumnView *view, int64_t row) noexcept nogil:
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    column_row(view, row, &start, &length, &form)
    return _rows_append_null(rows) if form == COLUMN_NONE else _rows_append(rows, start, length)


cdef void _rows_free(ColumnRows *rows) noexcept nogil
cdef void _bools_from_bits(const uint8_t *bits, int64_t first, uint8_t *out, int64_t length) noexcept nogil
cdef void _bools_from_bytes(const uint8_t *source, uint8_t *out, int64_t length) noexcept nogil
cdef int64_t _first_bad_offset(const ColumnView *view, int64_t data_size) noexcept nogil
cdef int64_t _first_over_uint32(const ColumnView *view) noexcept nogil
cdef int _rows_append_views(ColumnRows *rows, const ColumnView *views, const uint8_t **buffers, const int64_t *sizes,
                            int64_t buffer_count, int64_t *bad_row) noexcept nogil
cdef int _rows_append_dictionary(ColumnRows *rows, const ColumnView *indices, const ColumnView *values,
                                 int64_t *bad_row) noexcept nogil


cdef inline int put_moment(uint8_t *out, uint8_t tag, int64_t seconds, uint32_t nanoseconds) noexcept nogil:
    """Writes a msgpack extension that holds seconds and nanoseconds, in the shortest of its three sizes. Returns how
    many bytes it took."""
    if <uint64_t>seconds >> 34:
        out[0], out[1], out[2] = 0xc7, 12, tag
        _column_put_be32(out + 3, nanoseconds)
        _column_put_be64(out + 7, <uint64_t>seconds)
        return 15
    if nanoseconds or <uint64_t>seconds > _COLUMN_UINT32_MAX:
        out[0], out[1] = 0xd7, tag
        _column_put_be64(out + 2, (<uint64_t>nanoseconds << 34) | <uint64_t>seconds)
        return 10
    out[0], out[1] = 0xd6, tag
    _column_put_be32(out + 2, <uint32_t>seconds)
    return 6


cdef int _rows_append_timestamps(ColumnRows *rows, const ColumnView *ticks, uint8_t tag, int64_t ticks_per_second,
                                 bint min_is_null) noexcept nogil
cdef int _rows_append_dates(ColumnRows *rows, const ColumnView *ticks, int64_t ticks_per_day, bint min_is_null,
                            int64_t *bad_row) noexcept nogil
cdef int64_t _first_over_int64(const ColumnView *view) noexcept nogil
