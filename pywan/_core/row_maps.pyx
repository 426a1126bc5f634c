# Owns the values of rows of several columns: a msgpack map each.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_arrow cimport *
from pywan._core.codec cimport encoded
from pywan._core.column_views cimport (
    COLUMN_BYTES, COLUMN_FLOAT64, COLUMN_INT64, COLUMN_STR, COLUMN_TAGGED, ColumnView, column_row)
from pywan._core.columns cimport Column, _column_error, _column_too_large
from pywan._core.msgpack cimport (
    _column_put_be16, _column_put_be32, _column_put_be64, _column_put_bytes, _column_put_msgpack_head,
    _column_put_msgpack_int, _msgpack_head_size, _msgpack_int_size)


cdef void _add_value_sizes(const ColumnView *view, int64_t *sizes) noexcept nogil:
    """Adds to `sizes` what each row of `view` takes in msgpack."""
    cdef int64_t row
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    if view.form == COLUMN_INT64 and view.validity == NULL:
        for row in range(view.length):
            sizes[row] += _msgpack_int_size((<const int64_t *>view.data)[row])
        return
    for row in range(view.length):
        column_row(view, row, &start, &length, &form)
        if form == COLUMN_BYTES or form == COLUMN_STR:
            sizes[row] += _msgpack_head_size(form, length) + <int64_t>length
        elif form == COLUMN_INT64:
            sizes[row] += _msgpack_int_size((<const int64_t *>start)[0])
        elif form == COLUMN_FLOAT64:
            sizes[row] += 9
        elif form == COLUMN_TAGGED:
            sizes[row] += length
        else:
            sizes[row] += 1


cdef inline uint8_t *_column_put_value(uint8_t *out, const ColumnView *view, int64_t row) noexcept nogil:
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    cdef uint64_t bits
    column_row(view, row, &start, &length, &form)
    if form == COLUMN_BYTES or form == COLUMN_STR:
        return _column_put_bytes(_column_put_msgpack_head(out, form, length), start, length)
    if form == COLUMN_INT64:
        memcpy(&bits, start, 8)
        return _column_put_msgpack_int(out, <int64_t>bits)
    if form == COLUMN_FLOAT64:
        memcpy(&bits, start, 8)
        out[0] = 0xcb
        _column_put_be64(out + 1, bits)
        return out + 9
    if form == COLUMN_TAGGED:
        return _column_put_bytes(out, start, length)
    out[0] = 0xc0
    return out + 1


cdef struct _EncodedColumn:
    ColumnView view
    const uint8_t *name          # Its msgpack; the map's head stands before the first one.
    uint32_t name_size


cdef int64_t _column_measure_maps(const _EncodedColumn *columns, int64_t column_count, int64_t rows,
                                   int64_t *offsets) noexcept nogil:
    """Fills `offsets` (rows + 1) with where each row's map will start. -1, or the first row that is too large."""
    cdef int64_t names = 0, column, row
    for column in range(column_count):
        names += columns[column].name_size
    offsets[0] = 0
    for row in range(rows):
        offsets[row + 1] = names
    for column in range(column_count):
        _add_value_sizes(&columns[column].view, offsets + 1)
    for row in range(rows):
        if offsets[row + 1] > <int64_t>_COLUMN_UINT32_MAX:
            return row
        offsets[row + 1] += offsets[row]
    return -1


cdef uint8_t *_column_fill_maps(const _EncodedColumn *columns, int64_t column_count, int64_t rows,
                               uint8_t *out) noexcept nogil:
    """Writes the maps of all rows from `out` on and gives the end."""
    cdef int64_t column, row
    for row in range(rows):
        for column in range(column_count):
            out = _column_put_bytes(out, columns[column].name, columns[column].name_size)
            out = _column_put_value(out, &columns[column].view, row)
    return out


def encode_rows(names, columns):
    """One column of msgpack maps {name: value}, row by row, of several columns (anything that `Column` takes).

    Bytes become bin, str becomes str, null nil, integers their shortest form, floats float64.
    """
    cdef list sources = []
    cdef list heads = []
    cdef Column column, result
    cdef int64_t rows = 0, i, too_large = -1
    cdef uint8_t head[8]
    cdef bytes encoded
    cdef _EncodedColumn *plan
    cdef uint8_t *end = NULL
    names = list(names)
    columns = list(columns)
    if len(names) != len(columns) or not names:
        raise _column_error(f"{len(names)} names for {len(columns)} columns; give each column its name, and at "
                            f"least one column")
    if len(set(names)) != len(names):
        raise _column_error(f"columns {names} have a name twice; rename one of them")
    for name, source in zip(names, columns):
        if not isinstance(name, str):
            raise _column_error(f"column name {name!r} is {type(name).__name__}; names are str")
        column = source if isinstance(source, Column) else Column(source, name)
        if not sources:
            rows = column.view.length
        elif column.view.length != rows:
            raise _column_error(f"column {name!r} has {column.view.length} rows, column {names[0]!r} has {rows}; "
                                f"columns that are encoded together have the same length")
        sources.append(column)
        try:
            encoded = (<str>name).encode()
        except UnicodeEncodeError:
            raise _column_error(f"column name {name!r} is not valid Unicode; rename it") from None
        end = _column_put_msgpack_head(head, COLUMN_STR, <uint32_t>len(encoded))
        heads.append(PyBytes_FromStringAndSize(<const char *>head, end - head) + encoded)
    if len(names) < 16:
        head[0], end = <uint8_t>(0x80 | len(names)), head + 1
    elif len(names) < 65536:
        head[0], end = 0xde, head + 3
        _column_put_be16(head + 1, <uint16_t>len(names))
    else:
        head[0], end = 0xdf, head + 5
        _column_put_be32(head + 1, <uint32_t>len(names))
    heads[0] = PyBytes_FromStringAndSize(<const char *>head, end - head) + heads[0]

    result = Column.__new__(Column)
    result.name = "rows"
    plan = <_EncodedColumn *>calloc(len(names), sizeof(_EncodedColumn))
    try:
        if plan == NULL:
            raise MemoryError("no memory to encode rows")
        for i in range(len(names)):
            column = sources[i]
            encoded = heads[i]
            plan[i].view = column.view
            plan[i].name = <const uint8_t *>PyBytes_AS_STRING(encoded)
            plan[i].name_size = <uint32_t>PyBytes_GET_SIZE(encoded)
        i = len(names)
        result.owned.offsets = <int64_t *>malloc(<size_t>(rows + 1) * sizeof(int64_t))
        if result.owned.offsets == NULL:
            raise MemoryError(f"no memory to encode {rows} rows")
        with nogil:
            too_large = _column_measure_maps(plan, i, rows, result.owned.offsets)
        if too_large >= 0:
            raise _column_too_large(f"row {too_large}: its columns together are more than {_COLUMN_UINT32_MAX} bytes; "
                                   f"split the row")
        result.owned.size = result.owned.capacity = result.owned.offsets[rows]
        result.owned.data = <uint8_t *>malloc(<size_t>result.owned.size + 16)
        if result.owned.data == NULL:
            raise MemoryError(f"no memory for {result.owned.size} bytes of {rows} encoded rows")
        with nogil:
            end = _column_fill_maps(plan, i, rows, result.owned.data)
        if end - result.owned.data != result.owned.size:
            from pywan.errors import InternalError
            raise InternalError(f"encoded rows took {end - result.owned.data} bytes, {result.owned.size} were counted; "
                                f"was a column written to meanwhile?")
    finally:
        free(plan)
    result.owned.length = result.owned.rows = rows
    result._view_owned(COLUMN_TAGGED)
    return result
