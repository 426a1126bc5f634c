# Owns columns: rows of bytes read from Arrow arrays, numpy arrays and (offsets, data) pairs without the GIL.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc as _column_calloc, free as _column_free
from libc.stdlib cimport malloc as _column_malloc, realloc as _column_realloc
from libc.string cimport memcpy as _column_memcpy, memset as _column_memset, memcmp as _column_memcmp
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer

cdef extern from "arrow_abi.h" nogil:
    struct ArrowSchema:
        const char *format
        ArrowSchema *dictionary
        void (*release)(ArrowSchema *) noexcept

    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        const void **buffers
        ArrowArray *dictionary
        void (*release)(ArrowArray *) noexcept

    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *) noexcept
        int (*get_next)(ArrowArrayStream *, ArrowArray *) noexcept
        const char *(*get_last_error)(ArrowArrayStream *) noexcept

cdef extern from *:
    """
    static const int64_t wan_column_no_offsets[2] = {0, 0};
    static const uint8_t wan_column_no_bytes[16] = {0};
    """
    const int64_t *wan_column_no_offsets
    const uint8_t *wan_column_no_bytes
    int64_t _COLUMN_INT64_MIN "INT64_MIN"
    uint64_t _COLUMN_INT64_MAX "INT64_MAX"
    uint64_t _COLUMN_UINT32_MAX "UINT32_MAX"
    int64_t _COLUMN_INT32_MIN "INT32_MIN"

ctypedef fused _column_narrow_int:
    int8_t
    int16_t
    int32_t
    uint8_t
    uint16_t
    uint32_t

# How a row's bytes are to be read. Each number is part of the wire format.
cdef enum:
    COLUMN_BYTES = 0
    COLUMN_STR = 1       # utf-8
    COLUMN_TAGGED = 2    # one msgpack object
    COLUMN_NONE = 3      # no bytes
    COLUMN_INT64 = 4     # 8 bytes, little-endian
    COLUMN_FLOAT64 = 5   # 8 bytes, little-endian

cdef enum:
    COLUMN_OPERATION_CREATE = 0
    COLUMN_OPERATION_UPDATE = 1
    COLUMN_OPERATION_DESTROY = 2
    _COLUMN_OPERATION_UNKNOWN = 255


cdef struct ColumnView:
    # A column as bytes per row; borrowed from a Column, readable from any thread while that Column lives.
    # Row r is data[offsets[r]:offsets[r + 1]] if there are offsets (at most one kind), else `width` bytes at r * width.
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


# --- Rows that we lay out ourselves ---

cdef struct ColumnRows:
    # Rows appended one by one into memory of ours: all `width` bytes wide, or of any width if `width` is -1.
    uint8_t *data
    int64_t *offsets             # rows + 1 of them; NULL if the width is fixed.
    uint8_t *validity            # NULL until the first null.
    int64_t size                 # Bytes used of `capacity`.
    int64_t capacity
    int64_t length               # Rows appended of `rows`.
    int64_t rows
    int64_t width


cdef int _rows_start(ColumnRows *rows, int64_t count, int64_t width, int64_t expected_bytes) noexcept nogil:
    """Makes room for `count` rows in a zeroed `rows`. 0, or -1 if there is no memory; free with _rows_free either way."""
    rows.rows = count
    rows.width = width
    rows.capacity = count * width if width >= 0 else expected_bytes
    rows.data = <uint8_t *>_column_malloc(<size_t>rows.capacity + 16)
    if width < 0:
        rows.offsets = <int64_t *>_column_malloc(<size_t>(count + 1) * sizeof(int64_t))
        if rows.offsets == NULL:
            return -1
        rows.offsets[0] = 0
    return 0 if rows.data != NULL else -1


cdef int _rows_append(ColumnRows *rows, const uint8_t *start, int64_t length) noexcept nogil:
    cdef int64_t capacity
    cdef uint8_t *data
    if length > rows.capacity - rows.size:
        capacity = rows.capacity * 2 if rows.capacity > length else rows.capacity + 2 * length
        data = <uint8_t *>_column_realloc(rows.data, <size_t>capacity + 16)
        if data == NULL:
            return -1
        rows.data = data
        rows.capacity = capacity
    _column_memcpy(rows.data + rows.size, start, <size_t>length)
    rows.size += length
    rows.length += 1
    if rows.offsets != NULL:
        rows.offsets[rows.length] = rows.size
    return 0


cdef int _rows_append_null(ColumnRows *rows) noexcept nogil:
    cdef int64_t row = rows.length
    if rows.validity == NULL:
        rows.validity = <uint8_t *>_column_malloc(<size_t>(rows.rows + 7) // 8)
        if rows.validity == NULL:
            return -1
        _column_memset(rows.validity, 0xff, <size_t>(rows.rows + 7) // 8)
    rows.validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
    if rows.offsets == NULL:
        _column_memset(rows.data + rows.size, 0, <size_t>rows.width)
        rows.size += rows.width
    rows.length += 1
    if rows.offsets != NULL:
        rows.offsets[rows.length] = rows.size
    return 0


cdef inline int _rows_append_from(ColumnRows *rows, const ColumnView *view, int64_t row) noexcept nogil:
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    column_row(view, row, &start, &length, &form)
    return _rows_append_null(rows) if form == COLUMN_NONE else _rows_append(rows, start, length)


cdef void _rows_free(ColumnRows *rows) noexcept nogil:
    _column_free(rows.data)
    _column_free(rows.offsets)
    _column_free(rows.validity)
    _column_memset(rows, 0, sizeof(ColumnRows))


# --- Loops over whole columns; none needs the GIL ---

cdef void _widen_to_int64(const _column_narrow_int *source, int64_t *out, int64_t length) noexcept nogil:
    cdef int64_t row
    for row in range(length):
        out[row] = source[row]


cdef void _widen_to_float64(const float *source, double *out, int64_t length) noexcept nogil:
    cdef int64_t row
    for row in range(length):
        out[row] = source[row]


cdef void _bools_from_bits(const uint8_t *bits, int64_t first, uint8_t *out, int64_t length) noexcept nogil:
    cdef int64_t row
    for row in range(length):
        out[row] = 0xc2 | ((bits[(first + row) >> 3] >> ((first + row) & 7)) & 1)


cdef void _bools_from_bytes(const uint8_t *source, uint8_t *out, int64_t length) noexcept nogil:
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


cdef int64_t _first_bad_offset(const ColumnView *view, int64_t data_size) noexcept nogil:
    """The first row whose offsets go backwards or leave the data, or -1."""
    cdef int64_t row, start, end
    for row in range(view.length):
        if view.offsets32 != NULL:
            start, end = view.offsets32[row], view.offsets32[row + 1]
        else:
            start, end = view.offsets64[row], view.offsets64[row + 1]
        if start < 0 or end < start or end > data_size:
            return row
    return -1


cdef int64_t _first_over_uint32(const ColumnView *view) noexcept nogil:
    """The first row with more bytes than a 32 bit length can tell, or -1."""
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
    """Copies the rows of an Arrow binary view: 0, -1 (no memory), or 1: `bad_row` points outside its buffer."""
    cdef int64_t row
    cdef const uint8_t *view
    cdef int32_t length, buffer, offset
    for row in range(views.length):
        if column_is_null(views, row):
            if _rows_append_null(rows) < 0:
                return -1
            continue
        view = views.data + row * 16
        _column_memcpy(&length, view, 4)
        bad_row[0] = row
        if length < 0:
            return 1
        if length <= 12:
            if _rows_append(rows, view + 4, length) < 0:
                return -1
            continue
        _column_memcpy(&buffer, view + 8, 4)
        _column_memcpy(&offset, view + 12, 4)
        if buffer < 0 or buffer >= buffer_count or offset < 0 or sizes[buffer] - length < offset:
            return 1
        if _rows_append(rows, buffers[buffer] + offset, length) < 0:
            return -1
    return 0


cdef int _rows_append_dictionary(ColumnRows *rows, const ColumnView *indices, const ColumnView *values,
                                 int64_t *bad_row) noexcept nogil:
    """Copies the row of `values` that each of `indices` names: 0, -1 (no memory), or 1: `bad_row` names none."""
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


cdef int _rows_append_timestamps(ColumnRows *rows, const ColumnView *ticks, int64_t ticks_per_second,
                                 int64_t seconds_per_tick, bint min_is_null) noexcept nogil:
    """Lays out ticks since 1970 as msgpack's timestamp, in the shortest of its three sizes. 0, or -1 (no memory)."""
    cdef int64_t row, tick, seconds, nanoseconds
    cdef uint8_t out[15]
    cdef int length
    for row in range(ticks.length):
        tick = (<const int64_t *>ticks.data)[row]
        if column_is_null(ticks, row) or (min_is_null and tick == _COLUMN_INT64_MIN):
            if _rows_append_null(rows) < 0:
                return -1
            continue
        seconds = tick // ticks_per_second
        if tick < 0 and seconds * ticks_per_second != tick:
            seconds -= 1   # C rounds towards zero, time towards the past.
        nanoseconds = <int64_t>(<uint64_t>tick - <uint64_t>seconds * <uint64_t>ticks_per_second)
        nanoseconds *= 1000000000 // ticks_per_second
        seconds *= seconds_per_tick
        if <uint64_t>seconds >> 34:
            out[0], out[1], out[2] = 0xc7, 12, 0xff
            _column_put_be32(out + 3, <uint32_t>nanoseconds)
            _column_put_be64(out + 7, <uint64_t>seconds)
            length = 15
        elif nanoseconds or <uint64_t>seconds > _COLUMN_UINT32_MAX:
            out[0], out[1] = 0xd7, 0xff
            _column_put_be64(out + 2, (<uint64_t>nanoseconds << 34) | <uint64_t>seconds)
            length = 10
        else:
            out[0], out[1] = 0xd6, 0xff
            _column_put_be32(out + 2, <uint32_t>seconds)
            length = 6
        if _rows_append(rows, out, length) < 0:
            return -1
    return 0


# --- The column ---

cdef _column_error(str message):
    from pywan.errors import SerializationError
    return SerializationError(message)


cdef _column_too_large(str message):
    from pywan.errors import EventTooLargeError
    return EventTooLargeError(message)


cdef class Column:
    """A column of keys, values or operations as bytes per row.

    `obj` is anything with `__arrow_c_array__` or `__arrow_c_stream__`, a numpy array (numbers, bool, datetime64, S, V, U,
    or uint8 of rows x width), a pair (offsets, data) of buffers, or a list or tuple of bytes or str (None is null).
    `name` is how errors call it.

    Nothing is copied where the memory already holds the rows as `view` tells them. The column then keeps that memory
    alive; who gave it must not write to it meanwhile. Nothing changes after construction, so any thread may read `view`
    without the GIL as long as it holds a reference to the column.
    """
    cdef ColumnView view
    cdef readonly str name
    cdef int64_t first_row            # The row that errors call our row 0: not 0 in a later chunk of a chunked column.
    cdef object owner                 # Keeps borrowed memory alive.
    cdef ArrowArray array             # Ours to release, once, unless its release is NULL.
    cdef Py_buffer buffers[2]
    cdef int buffer_count
    cdef ColumnRows owned
    cdef void *realigned              # Ours: a copy of a buffer that does not start where its numbers may.

    def __cinit__(self, *args, **kwargs):
        self.view.data = wan_column_no_bytes
        self.view.form = COLUMN_NONE
        self.name = ""

    def __init__(self, obj, str name="column"):
        if self.owner is not None or self.array.release != NULL or self.buffer_count or self.owned.data != NULL:
            raise _column_error(f"column {self.name!r} is already made; make another Column")
        self.name = name
        if isinstance(obj, Column):
            self._read_column(obj)
        elif hasattr(obj, "__arrow_c_array__"):
            self._read_arrow_capsules(obj)
        elif hasattr(obj, "__arrow_c_stream__"):
            self._join(_column_chunks(obj, name))
        elif isinstance(obj, (list, tuple)):
            if isinstance(obj, tuple) and len(obj) == 2 and not isinstance(obj[0], (bytes, str)) \
                    and obj[0] is not None and (PyObject_CheckBuffer(obj[0]) or hasattr(obj[0], "__array__")):
                self._read_pair(obj[0], obj[1])
            else:
                self._read_sequence(obj)
        elif hasattr(obj, "__array__"):
            self._read_numpy(obj)
        else:
            raise _column_error(
                f"column {name!r}: {type(obj).__name__} is not a column; pass an Arrow array, a numpy array, a pair "
                f"(offsets, data) of buffers, or a list of bytes or str")
        self._check_row_sizes()

    def __dealloc__(self):
        cdef int i
        for i in range(self.buffer_count):
            PyBuffer_Release(&self.buffers[i])
        if self.array.release != NULL:
            self.array.release(&self.array)
        _rows_free(&self.owned)
        _column_free(self.realigned)

    def __len__(self):
        return self.view.length

    @property
    def form(self):
        """The form of every row that is not null."""
        return self.view.form

    cdef int _check_row_sizes(self) except -1:
        cdef int64_t row
        with nogil:
            row = _first_over_uint32(&self.view)
        if row >= 0:
            raise _column_too_large(
                f"column {self.name!r}, row {self.first_row + row}: more than {_COLUMN_UINT32_MAX} bytes; split the value")
        return 0

    # What makes the view from memory of ours.

    cdef int _start_rows(self, int64_t count, int64_t width, int64_t expected_bytes) except -1:
        if _rows_start(&self.owned, count, width, expected_bytes) < 0:
            raise MemoryError(f"column {self.name!r}: no memory for {count} rows")
        return 0

    cdef int _view_owned(self, uint8_t form) except -1:
        self.view.data = self.owned.data
        self.view.offsets32 = NULL
        self.view.offsets64 = self.owned.offsets
        self.view.width = self.owned.width if self.owned.offsets == NULL else 0
        self.view.validity = self.owned.validity
        self.view.validity_offset = 0
        self.view.length = self.owned.length
        self.view.form = form
        return 0

    cdef int _check_appended(self, int status, int64_t row, str problem) except -1:
        if status < 0:
            raise MemoryError(f"column {self.name!r}: no memory for {self.owned.rows} rows")
        if status > 0:
            raise _column_error(f"column {self.name!r}, row {self.first_row + row}: {problem}")
        return 0

    cdef int _widen(self, const void *source, int64_t length, bytes format) except -1:
        """Puts numbers of less than 64 bits into memory of ours and points the view there."""
        cdef char code = format[0]
        self._start_rows(length, 8, 0)
        cdef int64_t *out = <int64_t *>self.owned.data
        with nogil:
            if code == b"c":
                _widen_to_int64(<const int8_t *>source, out, length)
            elif code == b"C":
                _widen_to_int64(<const uint8_t *>source, out, length)
            elif code == b"s":
                _widen_to_int64(<const int16_t *>source, out, length)
            elif code == b"S":
                _widen_to_int64(<const uint16_t *>source, out, length)
            elif code == b"i":
                _widen_to_int64(<const int32_t *>source, out, length)
            elif code == b"I":
                _widen_to_int64(<const uint32_t *>source, out, length)
            else:
                _widen_to_float64(<const float *>source, <double *>out, length)
        self.view.data = self.owned.data
        self.view.width = 8
        self.view.form = COLUMN_FLOAT64 if code == b"f" else COLUMN_INT64
        return 0

    cdef int _check_unsigned(self) except -1:
        cdef int64_t row
        with nogil:
            row = _first_over_int64(&self.view)
        if row >= 0:
            raise _column_error(
                f"column {self.name!r}, row {self.first_row + row}: {(<const uint64_t *>self.view.data)[row]} is over "
                f"{_COLUMN_INT64_MAX}, the largest integer; cast the column to string or float64")
        return 0

    cdef int _lay_out_timestamps(self, Column ticks, int64_t ticks_per_second, int64_t seconds_per_tick,
                                 bint min_is_null) except -1:
        cdef int status
        self._start_rows(ticks.view.length, -1, ticks.view.length * 10)
        with nogil:
            status = _rows_append_timestamps(&self.owned, &ticks.view, ticks_per_second, seconds_per_tick, min_is_null)
        self._check_appended(status, 0, "")
        return self._view_owned(COLUMN_TAGGED)

    # Other columns.

    cdef int _read_column(self, Column other) except -1:
        self.owner = other
        self.view = other.view
        self.first_row = other.first_row
        return 0

    cdef int _join(self, list chunks) except -1:
        """Becomes the rows of all `chunks` (columns of one type), in memory of ours unless there is only one."""
        cdef Column chunk
        cdef int64_t count = 0, size = 0, row
        cdef int status = 0
        if len(chunks) == 1:
            return self._read_column(chunks[0])
        for chunk in chunks:
            count += chunk.view.length
            size += _column_view_size(&chunk.view)
        chunk = chunks[0]
        self._start_rows(count, chunk.view.width if _column_is_fixed(&chunk.view) else -1, size)
        for chunk in chunks:
            with nogil:
                for row in range(chunk.view.length):
                    status = _rows_append_from(&self.owned, &chunk.view, row)
                    if status < 0:
                        break
            self._check_appended(status, 0, "")
        chunk = chunks[0]
        self.view.is_bool = chunk.view.is_bool
        return self._view_owned(chunk.view.form)

    # Arrow.

    cdef int _read_arrow_capsules(self, obj) except -1:
        schema_capsule, array_capsule = obj.__arrow_c_array__()
        cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
        cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(array_capsule, "arrow_array")
        if schema.release == NULL or array.release == NULL:
            raise _column_error(f"column {self.name!r}: its Arrow data was already consumed; export it again")
        self.array = array[0]
        array.release = NULL   # Moved: ours to release now. The capsule releases the schema.
        return self._read_arrow(schema, &self.array)

    cdef int _read_arrow(self, ArrowSchema *schema, ArrowArray *array) except -1:
        """Points the view at `array`, which outlives it: what has to be copied is. Owns nothing of either struct."""
        cdef Column indices, values
        cdef int64_t bad_row = 0
        cdef int status
        if schema.dictionary == NULL:
            return self._read_arrow_layout(schema.format, array)
        if array.dictionary == NULL:
            raise _column_error(f"column {self.name!r}: a dictionary-encoded array without its dictionary")
        indices, values = self._sibling(), self._sibling()
        indices._read_arrow_layout(schema.format, array)
        values._read_arrow(schema.dictionary, array.dictionary)
        if indices.view.form != COLUMN_INT64:
            raise self._unreadable(schema.format)
        self._start_rows(indices.view.length, values.view.width if _column_is_fixed(&values.view) else -1,
                         indices.view.length * 16)
        with nogil:
            status = _rows_append_dictionary(&self.owned, &indices.view, &values.view, &bad_row)
        self._check_appended(status, bad_row, "its index is outside the dictionary; the array is damaged")
        self.view.is_bool = values.view.is_bool
        return self._view_owned(values.view.form)

    cdef Column _sibling(self):
        """An empty column that errors call by our name."""
        cdef Column column = Column.__new__(Column)
        column.name = self.name
        column.first_row = self.first_row
        return column

    cdef _unreadable(self, bytes format):
        kind = {
            b"e": "16 bit floats: cast to float32", b"d": "decimals: cast to string or float64",
            b"tt": "times of day: cast to int64 or string", b"tD": "durations: cast to int64",
            b"ti": "intervals: cast to string", b"+s": "structs (or a table): pass one of its columns",
            b"+": "nested values: encode them as bytes first",
        }
        for start in (format, format[:2], format[:1]):
            if start in kind:
                return _column_error(f"column {self.name!r}: Arrow type {format.decode()!r} holds {kind[start]}")
        return _column_error(f"column {self.name!r}: Arrow type {format.decode()!r} is not known; cast to binary, "
                             f"string, int64 or float64")

    cdef int _read_arrow_layout(self, bytes format, ArrowArray *array) except -1:
        cdef ColumnView *view = &self.view
        cdef const uint8_t *data = NULL
        cdef int64_t needed
        if array.length < 0 or array.offset < 0:
            raise _column_error(f"column {self.name!r}: an Arrow array of length {array.length} at offset "
                                f"{array.offset} is damaged")
        view.length = array.length
        if format == b"n":
            view.form = COLUMN_NONE
            return 0
        needed = 3 if format in (b"z", b"u", b"Z", b"U", b"vz", b"vu") else 2
        if array.n_buffers < needed:
            if format[:1] == b"+":
                raise self._unreadable(format)
            raise _column_error(f"column {self.name!r}: Arrow type {format.decode()!r} with {array.n_buffers} "
                                f"buffers, expected {needed}; the array is damaged")
        if array.null_count != 0:
            view.validity = <const uint8_t *>array.buffers[0]
            view.validity_offset = array.offset
        if array.length == 0:
            data = wan_column_no_bytes   # Buffers of nothing may be NULL, the offsets too.
        elif array.buffers[1] != NULL:
            data = <const uint8_t *>array.buffers[1]
        elif format != b"w:0":
            raise _column_error(f"column {self.name!r}: an Arrow array of {array.length} rows without data is damaged")

        if array.length:
            data = self._realign(data, format, array.offset + array.length)

        if format in (b"z", b"u", b"Z", b"U"):
            view.form = COLUMN_STR if format in (b"u", b"U") else COLUMN_BYTES
            if array.length == 0:
                view.offsets64 = wan_column_no_offsets
            elif format in (b"z", b"u"):
                view.offsets32 = <const int32_t *>data + array.offset
            else:
                view.offsets64 = <const int64_t *>data + array.offset
            if array.length and array.buffers[2] != NULL:
                view.data = <const uint8_t *>array.buffers[2]
        elif format in (b"vz", b"vu"):
            self._read_arrow_views(data, array)
            self._view_owned(COLUMN_STR if format == b"vu" else COLUMN_BYTES)
        elif format[:2] == b"w:":
            view.form = COLUMN_BYTES
            view.width = int(format[2:])
            if view.width < 0:
                raise self._unreadable(format)
            if view.width and array.length:
                view.data = data + array.offset * view.width
        elif format in (b"l", b"L", b"g"):
            view.form = COLUMN_FLOAT64 if format == b"g" else COLUMN_INT64
            view.width = 8
            view.data = data + array.offset * 8 if array.length else data
            if format == b"L":
                self._check_unsigned()
        elif format in (b"c", b"C"):
            self._widen(data + array.offset if array.length else data, array.length, format)
        elif format in (b"s", b"S"):
            self._widen(data + array.offset * 2 if array.length else data, array.length, format)
        elif format in (b"i", b"I", b"f"):
            self._widen(data + array.offset * 4 if array.length else data, array.length, format)
        elif format == b"b":
            self._start_rows(array.length, 1, 0)
            with nogil:
                _bools_from_bits(data, array.offset, self.owned.data, array.length)
            self._view_bools()
        elif format[:2] == b"ts" or format in (b"tdD", b"tdm"):
            self._read_arrow_timestamps(format, array)
        else:
            raise self._unreadable(format)
        return 0

    cdef const uint8_t *_realign(self, const uint8_t *data, bytes format, int64_t count) except NULL:
        """`data`, or a copy of it if its numbers lie across the places where the processor wants them."""
        cdef size_t element
        if format in (b"s", b"S"):
            element = 2
        elif format in (b"i", b"I", b"f", b"z", b"u"):
            element = 4
        elif format in (b"l", b"L", b"g", b"Z", b"U"):
            element = 8
        else:
            return data if data != NULL else wan_column_no_bytes
        if <size_t>data % element == 0:
            return data
        if format in (b"z", b"u", b"Z", b"U"):
            count += 1
        self.realigned = _column_malloc(<size_t>count * element)
        if self.realigned == NULL:
            raise MemoryError(f"column {self.name!r}: no memory for {count} rows")
        _column_memcpy(self.realigned, data, <size_t>count * element)
        return <const uint8_t *>self.realigned

    cdef int _view_bools(self) except -1:
        self.view.data = self.owned.data
        self.view.width = 1
        self.view.form = COLUMN_TAGGED
        self.view.is_bool = 1
        return 0

    cdef int _read_arrow_timestamps(self, bytes format, ArrowArray *array) except -1:
        cdef Column ticks = self._sibling()
        cdef int64_t ticks_per_second = 1, seconds_per_tick = 1
        ticks._read_arrow_layout(b"i" if format == b"tdD" else b"l", array)
        if format == b"tdD":
            seconds_per_tick = 86400
        elif format == b"tdm":
            ticks_per_second = 1000
        else:
            ticks_per_second = {b"tss": 1, b"tsm": 1000, b"tsu": 1000000, b"tsn": 1000000000}.get(format[:3], 0)
            if not ticks_per_second:
                raise self._unreadable(format)
        return self._lay_out_timestamps(ticks, ticks_per_second, seconds_per_tick, False)

    cdef int _read_arrow_views(self, const uint8_t *data, ArrowArray *array) except -1:
        cdef ColumnView views = self.view
        cdef int64_t buffer_count = array.n_buffers - 3   # Between them the validity, the views, and last the sizes.
        cdef int64_t bad_row = 0, size = 0, i
        cdef const uint8_t **buffers = <const uint8_t **>array.buffers + 2
        cdef const int64_t *sizes = <const int64_t *>array.buffers[array.n_buffers - 1]
        cdef int status
        views.form = COLUMN_BYTES
        views.data = data + array.offset * 16 if array.length else data
        if sizes == NULL:
            buffer_count = 0
        self._start_rows(array.length, -1, array.length * 16)
        with nogil:
            status = _rows_append_views(&self.owned, &views, buffers, sizes, buffer_count, &bad_row)
        return self._check_appended(status, bad_row, "its view points outside its buffer; the array is damaged")

    # Python's own.

    cdef int _read_sequence(self, obj) except -1:
        cdef int64_t row = 0
        cdef int status
        cdef type kind = None
        cdef bytes encoded
        self._start_rows(len(obj), -1, len(obj) * 16)
        for item in obj:
            if row == self.owned.rows:
                break   # Somebody appends to the list while we read it.
            if item is None:
                self._check_appended(_rows_append_null(&self.owned), row, "")
                row += 1
                continue
            if kind is None:
                kind = str if isinstance(item, str) else bytes
            if not isinstance(item, kind):
                if isinstance(item, (bytes, str)):
                    raise _column_error(f"column {self.name!r}, row {row}: {type(item).__name__} after rows of "
                                        f"{kind.__name__}; make all rows the same type")
                raise _column_error(
                    f"column {self.name!r}, row {row}: {type(item).__name__}; a list holds bytes or str only: pass numbers "
                    f"as a numpy or Arrow array, other values as bytes")
            if kind is str:
                try:
                    encoded = (<str>item).encode()
                except UnicodeEncodeError as error:
                    raise _column_error(f"column {self.name!r}, row {row}: not valid Unicode ({error.reason} at "
                                        f"{error.start}); pass bytes instead") from None
            else:
                encoded = item if type(item) is bytes else bytes(item)
            status = _rows_append(&self.owned, <const uint8_t *>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
            self._check_appended(status, row, "")
            row += 1
        return self._view_owned(COLUMN_STR if kind is str else COLUMN_BYTES)

    cdef int _borrow(self, obj) except -1:
        """Holds the buffer of `obj` and says its place in `self.buffers`; it cannot be resized or freed meanwhile."""
        PyObject_GetBuffer(obj, &self.buffers[self.buffer_count], PyBUF_SIMPLE)
        self.buffer_count += 1
        return self.buffer_count - 1

    cdef int _read_pair(self, offsets, data) except -1:
        """Rows that lie one after the other in `data`, cut by `offsets`, of which there is one more than rows."""
        import numpy
        cdef int64_t row, size
        cdef int place
        offsets = numpy.asarray(offsets)
        if offsets.ndim != 1 or offsets.dtype.kind != "i" or offsets.dtype.itemsize not in (4, 8):
            raise _column_error(
                f"column {self.name!r}: offsets of {offsets.dtype} with {offsets.ndim} dimension(s); pass int32 or int64 "
                f"offsets, for raw bytes numpy.frombuffer(offsets, 'int32')")
        offsets = numpy.require(offsets, offsets.dtype.newbyteorder("="), ("C", "A"))
        if len(offsets) == 0:
            raise _column_error(f"column {self.name!r}: no offsets; there is one more than rows, and the first is 0")
        try:
            place = self._borrow(data)
        except (TypeError, ValueError, BufferError) as error:
            raise _column_error(f"column {self.name!r}: its data cannot be read as bytes ({error}); pass one "
                                f"contiguous buffer") from None
        self.view.data = <const uint8_t *>self.buffers[place].buf if self.buffers[place].len else wan_column_no_bytes
        size = self.buffers[place].len
        place = self._borrow(offsets)
        if offsets.dtype.itemsize == 4:
            self.view.offsets32 = <const int32_t *>self.buffers[place].buf
        else:
            self.view.offsets64 = <const int64_t *>self.buffers[place].buf
        self.view.length = len(offsets) - 1
        self.view.form = COLUMN_BYTES
        with nogil:
            row = _first_bad_offset(&self.view, size)
        if row >= 0:
            start, end = int(offsets[row]), int(offsets[row + 1])
            raise _column_error(f"column {self.name!r}, row {row}: offsets {start} to {end} do not lie in order "
                                f"within the {size} bytes of data; correct the offsets")
        return 0

    cdef int _read_numpy(self, obj) except -1:
        import numpy
        cdef Column ticks
        cdef int place
        if isinstance(obj, numpy.ma.MaskedArray):
            raise _column_error(f"column {self.name!r}: a masked array; pass pyarrow.array(values, mask=mask), "
                                f"whose nulls are kept")
        array = numpy.asarray(obj)
        kind = array.dtype.kind
        if array.ndim == 2 and array.dtype == numpy.uint8:
            width = array.shape[1]
        elif array.ndim != 1:
            raise _column_error(f"column {self.name!r}: a numpy array of {array.dtype} with {array.ndim} "
                                f"dimension(s); pass one dimension, or uint8 of rows x width")
        elif kind == "O":
            raise _column_error(f"column {self.name!r}: numpy objects have no fixed layout; pass a list of bytes or "
                                f"str, pyarrow.array(values), or an array with a dtype such as 'int64' or 'S16'")
        elif kind in "UT":
            return self._read_sequence(array.tolist())
        elif kind == "V" and array.dtype.fields is not None:
            raise _column_error(f"column {self.name!r}: a structured array; pass one of its fields, or "
                                f"array.view('V{array.dtype.itemsize}') for its rows as bytes")
        elif kind not in "SVbiufM" or (kind == "f" and array.dtype.itemsize > 8):
            raise _column_error(f"column {self.name!r}: numpy dtype {array.dtype} has no form; cast to int64, "
                                f"float64 or bytes")
        else:
            width = array.dtype.itemsize

        if kind == "M":
            return self._read_numpy_dates(array)
        if kind == "f":
            array = array.astype("=f8", copy=False)
        elif kind == "i" or (kind == "u" and array.ndim == 1 and width < 8):
            array = array.astype("=i8", copy=False)
        elif kind == "u" and array.ndim == 1:
            array = array.astype("=u8", copy=False)
        array = numpy.require(array, requirements=("C", "A"))
        place = self._borrow(array)
        if self.buffers[place].len:
            self.view.data = <const uint8_t *>self.buffers[place].buf
        self.view.length = array.shape[0]
        self.view.width = 8 if kind in "fiu" and array.ndim == 1 else width
        if kind == "b":
            self._start_rows(self.view.length, 1, 0)
            with nogil:
                _bools_from_bytes(self.view.data, self.owned.data, self.view.length)
            return self._view_bools()
        if kind == "f":
            self.view.form = COLUMN_FLOAT64
        elif kind in "iu" and array.ndim == 1:
            self.view.form = COLUMN_INT64
            if kind == "u":
                self._check_unsigned()
        else:
            self.view.form = COLUMN_BYTES
        return 0

    cdef int _read_numpy_dates(self, array) except -1:
        import numpy
        per_second = {"s": 1, "ms": 1000, "us": 1000000, "ns": 1000000000}
        unit, count = numpy.datetime_data(array.dtype)
        if unit not in per_second or count != 1:
            array, unit = array.astype("=M8[s]"), "s"
        array = array.astype(array.dtype.newbyteorder("="), copy=False).view("i8")
        cdef Column ticks = Column(array, self.name)
        return self._lay_out_timestamps(ticks, per_second[unit], 1, True)


cdef inline bint _column_is_fixed(const ColumnView *view) noexcept nogil:
    return view.offsets32 == NULL and view.offsets64 == NULL


cdef int64_t _column_view_size(const ColumnView *view) noexcept nogil:
    """The bytes between the first and the last row."""
    if view.length == 0:
        return 0
    if view.offsets32 != NULL:
        return <int64_t>view.offsets32[view.length] - view.offsets32[0]
    if view.offsets64 != NULL:
        return view.offsets64[view.length] - view.offsets64[0]
    return view.length * view.width


cdef list _column_chunks(obj, str name):
    """The arrays of an Arrow stream, one column each, of one type; one empty column if the stream has none."""
    capsule = obj.__arrow_c_stream__()
    cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef ArrowSchema schema
    cdef ArrowArray empty
    cdef Column chunk
    cdef int64_t first_row = 0
    cdef const void *no_buffers[4]
    cdef list chunks = []
    _column_memset(&schema, 0, sizeof(schema))
    _column_memset(&empty, 0, sizeof(empty))
    _column_memset(no_buffers, 0, sizeof(no_buffers))
    if stream.get_schema(stream, &schema) != 0:
        raise _column_stream_error(stream, name)
    try:
        while True:
            chunk = Column.__new__(Column)
            chunk.name = name
            chunk.first_row = first_row
            if stream.get_next(stream, &chunk.array) != 0:
                chunk.array.release = NULL   # After an error the struct means nothing.
                raise _column_stream_error(stream, name)
            if chunk.array.release == NULL:
                break
            chunk._read_arrow(&schema, &chunk.array)
            chunk._check_row_sizes()
            first_row += chunk.view.length
            chunks.append(chunk)
        if not chunks:
            empty.n_buffers = 4
            empty.buffers = no_buffers
            chunk = Column.__new__(Column)
            chunk.name = name
            if schema.dictionary != NULL:
                chunk._read_arrow_layout(schema.dictionary.format, &empty)
            else:
                chunk._read_arrow_layout(schema.format, &empty)
            chunks.append(chunk)
    finally:
        if schema.release != NULL:
            schema.release(&schema)
    return chunks


cdef _column_stream_error(ArrowArrayStream *stream, str name):
    cdef const char *text = stream.get_last_error(stream)
    reason = (<bytes>text).decode("utf-8", "replace") if text != NULL else "no reason given"
    return _column_error(f"column {name!r}: its Arrow stream failed: {reason}")


def as_columns(obj, str name="column"):
    """`obj` as a list of columns, one after the other: the chunks of a chunked one, which are not copied together."""
    if isinstance(obj, Column) or hasattr(obj, "__arrow_c_array__") or not hasattr(obj, "__arrow_c_stream__"):
        return [Column(obj, name)]
    return _column_chunks(obj, name)


def _column_rows(Column column not None):
    """Every row as (form, bytes). For tests."""
    cdef int64_t row
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    cdef list rows = []
    for row in range(column.view.length):
        column_row(&column.view, row, &start, &length, &form)
        rows.append((form, PyBytes_FromStringAndSize(<const char *>start, length)))
    return rows
