# The interface of columns.pyx.
from libc.stdint cimport int64_t, uint8_t
from pywan._core.c_arrow cimport *
from pywan._core.values.column_views cimport ColumnRows, ColumnView

cdef class Column:
    cdef ColumnView view
    cdef readonly str name
    cdef int64_t first_row            # The number of our row 0 in errors. Not 0 in a later chunk of a chunked column.
    cdef object owner                 # Keeps borrowed memory alive.
    cdef ArrowArray array             # We release it, once, unless its release is NULL.
    cdef Py_buffer buffers[2]
    cdef int buffer_count
    cdef ColumnRows owned
    cdef void *realigned              # Our copy of a buffer whose numbers are not aligned. NULL: there is none.

    cdef int _check_row_sizes(self) except -1
    cdef int _start_rows(self, int64_t count, int64_t width, int64_t expected_bytes) except -1
    cdef int _view_owned(self, uint8_t form) except -1
    cdef int _check_appended(self, int status, int64_t row, str problem) except -1
    cdef int _widen(self, const void *source, int64_t length, bytes format) except -1
    cdef int _check_unsigned(self) except -1
    cdef int _lay_out_timestamps(self, Column ticks, bint has_zone, int64_t ticks_per_second,
                                 bint min_is_null) except -1
    cdef int _lay_out_dates(self, Column ticks, int64_t ticks_per_day, bint min_is_null) except -1
    cdef int _read_column(self, Column other) except -1
    cdef int _join(self, list chunks) except -1
    cdef int _read_arrow_capsules(self, obj) except -1
    cdef int _read_arrow(self, ArrowSchema *schema, ArrowArray *array) except -1
    cdef Column _sibling(self)
    cdef int _lay_out_values(self, ArrowSchema *schema, ArrowArray *array) except -1
    cdef int _read_arrow_layout(self, bytes format, ArrowArray *array) except -1
    cdef const uint8_t *_realign(self, const uint8_t *data, bytes format, int64_t count) except NULL
    cdef int _view_bools(self) except -1
    cdef int _read_arrow_timestamps(self, bytes format, ArrowArray *array) except -1
    cdef int _read_arrow_views(self, const uint8_t *data, ArrowArray *array) except -1
    cdef int _read_sequence(self, obj) except -1
    cdef int _borrow(self, obj) except -1
    cdef int _read_pair(self, offsets, data) except -1
    cdef int _read_numpy(self, obj) except -1
    cdef int _read_numpy_dates(self, array) except -1
