# Owns columns. An Arrow array, a numpy array, a sequence or an (offsets, data) pair becomes a column here, or is
# refused.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer
from pywan._core.c_record cimport *
from pywan._core.c_arrow cimport *
from pywan._core.values.arrow_values cimport (
    ArrowValues, arrow_is_value, arrow_problem, arrow_put_rows, check_arrow, column_error, column_too_large,
    take_arrow, unreadable_arrow)
from pywan._core.values.column_views cimport (
    COLUMN_BYTES, COLUMN_FLOAT64, COLUMN_INT64, COLUMN_NONE, COLUMN_STR, COLUMN_TAGGED, ColumnView, _bools_from_bits,
    _bools_from_bytes, _first_bad_offset, _first_over_int64, _first_over_uint32, _rows_append, _rows_append_dates,
    _rows_append_dictionary, _rows_append_from, _rows_append_null, _rows_append_timestamps, _rows_append_views,
    _rows_free, _rows_start, column_row)

ctypedef fused _column_narrow_int:
    int8_t
    int16_t
    int32_t
    uint8_t
    uint16_t
    uint32_t


cdef void _widen_to_int64(const _column_narrow_int *source, int64_t *out, int64_t length) noexcept nogil:
    cdef int64_t row
    for row in range(length):
        out[row] = source[row]


cdef void _widen_to_float64(const float *source, double *out, int64_t length) noexcept nogil:
    cdef int64_t row
    for row in range(length):
        out[row] = source[row]


cdef class Column:
    """A column of keys, values or operations as bytes for each row.

    `obj` is anything with `__arrow_c_array__` or `__arrow_c_stream__`, a numpy array (numbers, bool, datetime64, S, V,
    U, or uint8 of rows x width), a pair (offsets, data) of buffers, or a list or tuple of bytes or str (None is null).
    `name` is the column's name in errors.

    If the memory already holds the rows as `view` describes them, nothing is copied. The column then keeps that memory
    alive, and the caller must not write to it meanwhile. Nothing changes after construction, so any thread that holds a
    reference to the column may read `view` without the GIL.
    """

    def __cinit__(self, *args, **kwargs):
        self.view.data = wan_column_no_bytes
        self.view.form = COLUMN_NONE
        self.name = ""

    def __init__(self, obj, str name="column"):
        if self.owner is not None or self.array.release != NULL or self.buffer_count or self.owned.bytes.bytes != NULL:
            raise column_error(f"column {self.name!r} is already made; make another Column")
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
            raise column_error(
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
        free(self.realigned)

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
            raise column_too_large(
                f"column {self.name!r}, row {self.first_row + row}: more than {_COLUMN_UINT32_MAX} bytes; split the"
                " value")
        return 0

    # The view of rows in our own memory

    cdef int _start_rows(self, int64_t count, int64_t width, int64_t expected_bytes) except -1:
        if _rows_start(&self.owned, count, width, expected_bytes) < 0:
            raise MemoryError(f"column {self.name!r}: no memory for {count} rows")
        return 0

    cdef int _view_owned(self, uint8_t form) except -1:
        self.view.data = self.owned.bytes.bytes
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
            raise column_error(f"column {self.name!r}, row {self.first_row + row}: {problem}")
        return 0

    cdef int _widen(self, const void *source, int64_t length, bytes format) except -1:
        """Copies numbers of less than 64 bits as 64 bit numbers into our own memory, and points the view there."""
        cdef char code = format[0]
        self._start_rows(length, 8, 0)
        cdef int64_t *out = <int64_t *>self.owned.bytes.bytes
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
        self.view.data = self.owned.bytes.bytes
        self.view.width = 8
        self.view.form = COLUMN_FLOAT64 if code == b"f" else COLUMN_INT64
        return 0

    cdef int _check_unsigned(self) except -1:
        cdef int64_t row
        with nogil:
            row = _first_over_int64(&self.view)
        if row >= 0:
            raise column_error(
                f"column {self.name!r}, row {self.first_row + row}: {(<const uint64_t *>self.view.data)[row]} is over "
                f"{_COLUMN_INT64_MAX}, the largest integer; cast the column to string or float64")
        return 0

    cdef int _lay_out_timestamps(self, Column ticks, bint has_zone, int64_t ticks_per_second,
                                 bint min_is_null) except -1:
        cdef int status
        cdef uint8_t tag = <uint8_t>(WAN_TAG_INSTANT if has_zone else WAN_TAG_NAIVE)
        self._start_rows(ticks.view.length, -1, ticks.view.length * 10)
        with nogil:
            status = _rows_append_timestamps(&self.owned, &ticks.view, tag, ticks_per_second, min_is_null)
        self._check_appended(status, 0, "")
        return self._view_owned(COLUMN_TAGGED)

    cdef int _lay_out_dates(self, Column ticks, int64_t ticks_per_day, bint min_is_null) except -1:
        cdef int64_t bad_row = 0
        cdef int status
        self._start_rows(ticks.view.length, 6, 0)
        with nogil:
            status = _rows_append_dates(&self.owned, &ticks.view, ticks_per_day, min_is_null, &bad_row)
        self._check_appended(status, bad_row,
                             "a date that is no whole day, or too far away; cast the column to a timestamp")
        return self._view_owned(COLUMN_TAGGED)

    # Rows of other columns

    cdef int _read_column(self, Column other) except -1:
        self.owner = other
        self.view = other.view
        self.first_row = other.first_row
        return 0

    cdef int _join(self, list chunks) except -1:
        """Takes the rows of all `chunks`, which are columns of one type. They are copied, unless there is only one
        chunk."""
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

    # Rows of Arrow arrays

    cdef int _read_arrow_capsules(self, obj) except -1:
        cdef list held = []
        return self._read_arrow(take_arrow(obj, self.name, &self.array, held), &self.array)

    cdef int _read_arrow(self, ArrowSchema *schema, ArrowArray *array) except -1:
        """Points the view at `array`, which has to live longer than the view, or copies the rows if that is needed.
        Owns nothing of the two structs."""
        cdef Column indices, values
        cdef int64_t bad_row = 0
        cdef int status
        if schema.dictionary == NULL:
            if arrow_is_value(schema.format):
                return self._lay_out_values(schema, array)
            return self._read_arrow_layout(schema.format, array)
        if array.dictionary == NULL:
            raise column_error(f"column {self.name!r}: a dictionary-encoded array without its dictionary")
        indices, values = self._sibling(), self._sibling()
        indices._read_arrow_layout(schema.format, array)
        values._read_arrow(schema.dictionary, array.dictionary)
        if indices.view.form != COLUMN_INT64:
            raise unreadable_arrow(self.name, schema.format)
        self._start_rows(indices.view.length, values.view.width if _column_is_fixed(&values.view) else -1,
                         indices.view.length * 16)
        with nogil:
            status = _rows_append_dictionary(&self.owned, &indices.view, &values.view, &bad_row)
        self._check_appended(status, bad_row, "its index is outside the dictionary; the array is damaged")
        self.view.is_bool = values.view.is_bool
        return self._view_owned(values.view.form)

    cdef Column _sibling(self):
        """An empty column that has our name in errors."""
        cdef Column column = Column.__new__(Column)
        column.name = self.name
        column.first_row = self.first_row
        return column

    cdef int _lay_out_values(self, ArrowSchema *schema, ArrowArray *array) except -1:
        """Lays out rows that are stored as one object of the tagged form each: nested rows, decimals, times of day. If
        `array` is NULL, there are no rows."""
        cdef ArrowValues values = ArrowValues()
        cdef int64_t bad_row = 0
        cdef int status
        values.read(schema, array, self.name, 0)
        self._start_rows(values.root.length, -1, values.root.length * 16)
        with nogil:
            status = arrow_put_rows(&values.root, &self.owned, &bad_row)
        self._check_appended(status, bad_row, arrow_problem(status) if status > 0 else "")
        return self._view_owned(COLUMN_TAGGED)

    cdef int _read_arrow_layout(self, bytes format, ArrowArray *array) except -1:
        cdef ColumnView *view = &self.view
        cdef const uint8_t *data = NULL
        cdef int64_t needed
        cdef int64_t row
        if array.length < 0 or array.offset < 0 or array.length > WAN_COLUMN_ROWS_MAX - array.offset:
            raise column_error(f"column {self.name!r}: an Arrow array of length {array.length} at offset "
                               f"{array.offset} is damaged; at most {WAN_COLUMN_ROWS_MAX} rows are possible")
        view.length = array.length
        if format == b"n":
            view.form = COLUMN_NONE
            return 0
        needed = 3 if format in (b"z", b"u", b"Z", b"U", b"vz", b"vu") else 2
        if array.n_buffers < needed or array.buffers == NULL:
            raise column_error(f"column {self.name!r}: Arrow type {format.decode()!r} with {array.n_buffers} "
                               f"buffers, expected {needed}; the array is damaged")
        if array.null_count != 0:
            view.validity = <const uint8_t *>array.buffers[0]
            view.validity_offset = array.offset
        if array.length == 0:
            data = wan_column_no_bytes   # The buffers of an empty array may be NULL, the offsets too.
        elif array.buffers[1] != NULL:
            data = <const uint8_t *>array.buffers[1]
        elif format != b"w:0":
            raise column_error(f"column {self.name!r}: an Arrow array of {array.length} rows without data is damaged")

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
            if array.length:
                with nogil:
                    row = _first_bad_offset(view, _COLUMN_INT64_MAX)
                if row >= 0:
                    raise column_error(f"column {self.name!r}, row {self.first_row + row}: the offsets of the Arrow"
                                       " array do not ascend; it is damaged")
                if array.buffers[2] != NULL:
                    view.data = <const uint8_t *>array.buffers[2]
                elif _column_view_size(view):
                    raise column_error(f"column {self.name!r}: an Arrow array with offsets to"
                                       f" {_column_view_size(view)} bytes of data has no data; it is damaged")
        elif format in (b"vz", b"vu"):
            self._read_arrow_views(data, array)
            self._view_owned(COLUMN_STR if format == b"vu" else COLUMN_BYTES)
        elif format[:2] == b"w:":
            view.form = COLUMN_BYTES
            if not format[2:].isdigit() or len(format) > 12:
                raise unreadable_arrow(self.name, format)
            view.width = int(format[2:])
            if view.width > WAN_COLUMN_ROWS_MAX // max(array.offset + array.length, 1):
                raise column_error(f"column {self.name!r}: {array.length} rows of {view.width} bytes at offset"
                                   f" {array.offset} are too many; the array is damaged")
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
                _bools_from_bits(data, array.offset, self.owned.bytes.bytes, array.length)
            self._view_bools()
        elif format[:2] == b"ts" or format in (b"tdD", b"tdm"):
            self._read_arrow_timestamps(format, array)
        else:
            raise unreadable_arrow(self.name, format)
        return 0

    cdef const uint8_t *_realign(self, const uint8_t *data, bytes format, int64_t count) except NULL:
        """`data`, or a copy of it if its numbers are not aligned as the processor wants them."""
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
        self.realigned = malloc(<size_t>count * element)
        if self.realigned == NULL:
            raise MemoryError(f"column {self.name!r}: no memory for {count} rows")
        memcpy(self.realigned, data, <size_t>count * element)
        return <const uint8_t *>self.realigned

    cdef int _view_bools(self) except -1:
        self.view.data = self.owned.bytes.bytes
        self.view.width = 1
        self.view.form = COLUMN_TAGGED
        self.view.is_bool = 1
        return 0

    cdef int _read_arrow_timestamps(self, bytes format, ArrowArray *array) except -1:
        cdef Column ticks = self._sibling()
        ticks._read_arrow_layout(b"i" if format == b"tdD" else b"l", array)
        if format == b"tdD":
            return self._lay_out_dates(ticks, 1, False)
        if format == b"tdm":
            return self._lay_out_dates(ticks, 86400000, False)
        ticks_per_second = {b"tss:": 1, b"tsm:": 1000, b"tsu:": 1000000, b"tsn:": 1000000000}.get(format[:4])
        if ticks_per_second is None:
            raise unreadable_arrow(self.name, format)
        # If there is a zone, it stands behind the colon.
        return self._lay_out_timestamps(ticks, len(format) > 4, ticks_per_second, False)

    cdef int _read_arrow_views(self, const uint8_t *data, ArrowArray *array) except -1:
        cdef ColumnView views = self.view
        # The other three buffers are the first, with the validity, the second, with the views, and the last, with
        # sizes.
        cdef int64_t buffer_count = array.n_buffers - 3
        cdef int64_t bad_row = 0
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

    # Rows of Python sequences, buffers and numpy arrays

    cdef int _read_sequence(self, obj) except -1:
        cdef int64_t row = 0
        cdef int status
        cdef type kind = None
        cdef bytes content
        self._start_rows(len(obj), -1, len(obj) * 16)
        for item in obj:
            if row == self.owned.rows:
                break   # Another thread appends to the list while we read it.
            if item is None:
                self._check_appended(_rows_append_null(&self.owned), row, "")
                row += 1
                continue
            if kind is None:
                kind = str if isinstance(item, str) else bytes
            if not isinstance(item, kind):
                if isinstance(item, (bytes, str)):
                    raise column_error(f"column {self.name!r}, row {row}: a value of type {type(item).__name__} after"
                                       f" rows of {kind.__name__}; make all rows the same type")
                raise column_error(
                    f"column {self.name!r}, row {row}: a value of type {type(item).__name__}; a list holds bytes or"
                    " str, and None for a null: pass numbers as a numpy or Arrow array, other values as bytes")
            if kind is str:
                try:
                    content = (<str>item).encode()
                except UnicodeEncodeError as error:
                    raise column_error(f"column {self.name!r}, row {row}: not valid Unicode ({error.reason} at "
                                       f"{error.start}); pass bytes instead") from None
            else:
                content = item if type(item) is bytes else bytes(item)
            status = _rows_append(&self.owned, <const uint8_t *>PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
            self._check_appended(status, row, "")
            row += 1
        return self._view_owned(COLUMN_STR if kind is str else COLUMN_BYTES)

    cdef int _borrow(self, obj) except -1:
        """Holds the buffer of `obj`, and returns its index in `self.buffers`. While we hold it, it cannot be resized or
        freed."""
        PyObject_GetBuffer(obj, &self.buffers[self.buffer_count], PyBUF_SIMPLE)
        self.buffer_count += 1
        return self.buffer_count - 1

    cdef int _read_pair(self, offsets, data) except -1:
        """Reads rows that lie one after the other in `data`. `offsets` says where each begins, and where the last
        ends."""
        import numpy
        cdef int64_t row, size
        cdef int index
        offsets = numpy.asarray(offsets)
        if offsets.ndim != 1 or offsets.dtype.kind != "i" or offsets.dtype.itemsize not in (4, 8):
            raise column_error(
                f"column {self.name!r}: offsets of {offsets.dtype} with {offsets.ndim} dimension(s); pass int32 or"
                " int64 offsets, for raw bytes numpy.frombuffer(offsets, 'int32')")
        offsets = numpy.require(offsets, offsets.dtype.newbyteorder("="), ("C", "A"))
        if len(offsets) == 0:
            raise column_error(f"column {self.name!r}: no offsets; there is one more than rows, and the first is 0")
        try:
            index = self._borrow(data)
        except (TypeError, ValueError, BufferError) as error:
            raise column_error(f"column {self.name!r}: its data cannot be read as bytes ({error}); pass one "
                               f"contiguous buffer") from None
        self.view.data = <const uint8_t *>self.buffers[index].buf if self.buffers[index].len else wan_column_no_bytes
        size = self.buffers[index].len
        index = self._borrow(offsets)
        if offsets.dtype.itemsize == 4:
            self.view.offsets32 = <const int32_t *>self.buffers[index].buf
        else:
            self.view.offsets64 = <const int64_t *>self.buffers[index].buf
        self.view.length = len(offsets) - 1
        self.view.form = COLUMN_BYTES
        with nogil:
            row = _first_bad_offset(&self.view, size)
        if row >= 0:
            start, end = int(offsets[row]), int(offsets[row + 1])
            raise column_error(f"column {self.name!r}, row {row}: offsets {start} to {end} do not lie in order "
                               f"within the {size} bytes of data; correct the offsets")
        return 0

    cdef int _read_numpy(self, obj) except -1:
        import numpy
        cdef int index
        if isinstance(obj, numpy.ma.MaskedArray):
            raise column_error(f"column {self.name!r}: a masked array; pass pyarrow.array(values, mask=mask), "
                               f"whose nulls are kept")
        array = numpy.asarray(obj)
        kind = array.dtype.kind
        if array.ndim == 2 and array.dtype == numpy.uint8:
            width = array.shape[1]
        elif array.ndim != 1:
            raise column_error(f"column {self.name!r}: a numpy array of {array.dtype} with {array.ndim} "
                               f"dimension(s); pass one dimension, or uint8 of rows x width")
        elif kind == "O":
            raise column_error(f"column {self.name!r}: numpy objects have no fixed layout; pass a list of bytes or "
                               f"str, pyarrow.array(values), or an array with a dtype such as 'int64' or 'S16'")
        elif kind in "UT":
            return self._read_sequence(array.tolist())
        elif kind == "V" and array.dtype.fields is not None:
            raise column_error(f"column {self.name!r}: a structured array; pass one of its fields, or "
                               f"array.view('V{array.dtype.itemsize}') for its rows as bytes")
        elif kind not in "SVbiufM" or (kind == "f" and array.dtype.itemsize > 8):
            raise column_error(f"column {self.name!r}: numpy dtype {array.dtype} has no form; cast to int64, "
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
        index = self._borrow(array)
        if self.buffers[index].len:
            self.view.data = <const uint8_t *>self.buffers[index].buf
        self.view.length = array.shape[0]
        self.view.width = 8 if kind in "fiu" and array.ndim == 1 else width
        if kind == "b":
            self._start_rows(self.view.length, 1, 0)
            with nogil:
                _bools_from_bytes(self.view.data, self.owned.bytes.bytes, self.view.length)
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
        """Units of a day or longer become dates; shorter units become times without a zone. NaT becomes a null."""
        import numpy
        per_second = {"s": 1, "ms": 1000, "us": 1000000, "ns": 1000000000}
        unit, _count = numpy.datetime_data(array.dtype)
        given = array
        replacements = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s", "ps": "ns", "fs": "ns", "as": "ns",
                        "generic": "s"}
        unit = replacements.get(unit, unit)
        array = array.astype(f"=M8[{unit}]", copy=False)
        if array.dtype != given.dtype:
            differs = (array != given) & ~numpy.isnat(given)
            if differs.any():
                row = int(differs.argmax())
                raise column_error(f"column {self.name!r}, row {row}: {given[row]} cannot be told in {unit}; round it")
        cdef Column ticks = Column(array.view("i8"), self.name)
        if unit == "D":
            return self._lay_out_dates(ticks, 1, True)
        return self._lay_out_timestamps(ticks, False, per_second[unit], True)


cdef inline bint _column_is_fixed(const ColumnView *view) noexcept nogil:
    """Whether all rows have the same width."""
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
    """The arrays of an Arrow stream, one column for each; all have one type. If the stream has no array, the list has
    one empty column."""
    check_arrow(obj, name)
    capsule = obj.__arrow_c_stream__()
    cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef ArrowSchema schema
    cdef ArrowSchema *kind
    cdef ArrowArray empty
    cdef Column chunk
    cdef int64_t first_row = 0
    cdef const void *no_buffers[4]
    cdef list chunks = []
    memset(&schema, 0, sizeof(schema))
    memset(&empty, 0, sizeof(empty))
    memset(no_buffers, 0, sizeof(no_buffers))
    if stream.get_schema(stream, &schema) != 0:
        raise _stream_error(stream, name)
    try:
        while True:
            chunk = Column.__new__(Column)
            chunk.name = name
            chunk.first_row = first_row
            if stream.get_next(stream, &chunk.array) != 0:
                chunk.array.release = NULL   # After an error the struct's content has no meaning.
                raise _stream_error(stream, name)
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
            kind = schema.dictionary if schema.dictionary != NULL else &schema
            if arrow_is_value(kind.format):
                chunk._lay_out_values(kind, NULL)
            else:
                chunk._read_arrow_layout(kind.format, &empty)
            chunks.append(chunk)
    finally:
        if schema.release != NULL:
            schema.release(&schema)
    return chunks


cdef _stream_error(ArrowArrayStream *stream, str name):
    cdef const char *text = stream.get_last_error(stream)
    reason = (<bytes>text).decode("utf-8", "replace") if text != NULL else "no reason given"
    return column_error(f"column {name!r}: its Arrow stream failed: {reason}")


def as_columns(obj, str name="column"):
    """`obj` as a list of columns that follow one another. The chunks of a chunked column stay separate, so that they
    need not be copied."""
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
