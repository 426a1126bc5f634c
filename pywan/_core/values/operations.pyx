# Owns reading a column of operations, which holds words or codes, as codes.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from pywan._core.values.column_views cimport (
    COLUMN_BYTES, COLUMN_NONE, COLUMN_OPERATION_CREATE, COLUMN_OPERATION_DESTROY, COLUMN_OPERATION_UPDATE,
    COLUMN_STR, ColumnView, _COLUMN_OPERATION_UNKNOWN, column_row)
from pywan._core.values.arrow_values cimport column_error
from pywan._core.values.columns cimport Column


cdef uint8_t _column_operation_code(const uint8_t *word, uint32_t length) noexcept nogil:
    """The code of a word, in upper or lower case."""
    cdef uint8_t lower[8]
    cdef uint32_t i
    if length < 3 or length > 7:
        return _COLUMN_OPERATION_UNKNOWN
    for i in range(length):
        # This makes an upper case letter a lower case one. No other byte becomes a letter by it.
        lower[i] = word[i] | 0x20
    if length == 6:
        if memcmp(lower, b"update", 6) == 0:
            return COLUMN_OPERATION_UPDATE
        if memcmp(lower, b"create", 6) == 0:
            return COLUMN_OPERATION_CREATE
        if memcmp(lower, b"delete", 6) == 0 or memcmp(lower, b"remove", 6) == 0:
            return COLUMN_OPERATION_DESTROY
    elif length == 7 and memcmp(lower, b"destroy", 7) == 0:
        return COLUMN_OPERATION_DESTROY
    elif length == 3 and memcmp(lower, b"put", 3) == 0:
        return COLUMN_OPERATION_UPDATE
    return _COLUMN_OPERATION_UNKNOWN


cdef int64_t _column_operation_codes(const ColumnView *view, uint8_t *out) noexcept nogil:
    """Fills `out` with the code of each row's word. Returns -1, or the first row whose word has no code."""
    cdef int64_t row
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    for row in range(view.length):
        column_row(view, row, &start, &length, &form)
        if view.width:
            while length and start[length - 1] == 0:
                length -= 1   # numpy pads a word that is shorter than the width.
        out[row] = _column_operation_code(start, length)
        if out[row] == _COLUMN_OPERATION_UNKNOWN:
            return row
    return -1


cdef int64_t _first_bad_code(const uint8_t *codes, int64_t length) noexcept nogil:
    """The first row whose code is none, or -1."""
    cdef int64_t row
    for row in range(length):
        if codes[row] > COLUMN_OPERATION_DESTROY:
            return row
    return -1


def operation_codes(obj, int64_t n):
    """One code per row for `n` rows: 0 create, 1 update, 2 destroy.

    `obj` is None (all rows update, as put does), codes as numpy uint8 or bytes, or a column of words. The words, in
    upper or lower case, are create; update, put; destroy, delete, remove.
    """
    import numpy
    cdef Column column
    cdef int64_t row
    cdef bytes codes
    cdef uint8_t *out
    if n < 0:
        raise column_error(f"operations for {n} rows; the number of rows cannot be negative")
    if obj is None:
        return b"\x01" * n
    if isinstance(obj, (bytes, bytearray, memoryview)) or getattr(obj, "dtype", None) == "uint8":
        codes = numpy.asarray(obj).tobytes() if hasattr(obj, "dtype") else bytes(obj)
        _check_operation_count(len(codes), n)
        out = <uint8_t *>PyBytes_AS_STRING(codes)
        with nogil:
            row = _first_bad_code(out, n)
        if row >= 0:
            raise column_error(f"operations, row {row}: code {out[row]}; use 0 create, 1 update, 2 destroy")
        return codes
    column = obj if isinstance(obj, Column) else Column(obj, "operations")
    _check_operation_count(column.view.length, n)
    if column.view.form not in (COLUMN_BYTES, COLUMN_STR, COLUMN_NONE):
        raise column_error(f"operations are words or uint8 codes, not {type(obj).__name__} of numbers; use create, "
                           f"update or destroy")
    codes = PyBytes_FromStringAndSize(NULL, n)
    out = <uint8_t *>PyBytes_AS_STRING(codes)
    with nogil:
        row = _column_operation_codes(&column.view, out)
    if row >= 0:
        raise column_error(f"operations, row {row}: {_operation_word(column, row)}; use create, update (or put), "
                           f"destroy (or delete, remove)")
    return codes


cdef int _check_operation_count(int64_t count, int64_t n) except -1:
    if count != n:
        raise column_error(f"{count} operations for {n} rows; give one per row")
    return 0


cdef str _operation_word(Column column, int64_t row):
    cdef const uint8_t *start
    cdef uint32_t length
    cdef uint8_t form
    column_row(&column.view, row, &start, &length, &form)
    if form == COLUMN_NONE:
        return "no operation (null)"
    word = PyBytes_FromStringAndSize(<const char *>start, min(length, 40)).decode("utf-8", "replace")
    return f"unknown operation {word!r}" + (" ..." if length > 40 else "")
