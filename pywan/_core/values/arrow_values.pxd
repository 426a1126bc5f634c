# The interface of arrow_values.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from pywan._core.c_arrow cimport *
from pywan._core.c_base cimport *
from pywan._core.values.column_views cimport ColumnRows, ColumnView

cdef enum arrow_kind:
    ARROW_NULL, ARROW_BOOL, ARROW_INT, ARROW_FLOAT, ARROW_BYTES, ARROW_VIEW, ARROW_FIXED_BYTES, ARROW_DECIMAL,
    ARROW_DATE, ARROW_MOMENT, ARROW_TIME, ARROW_LIST, ARROW_FIXED_LIST, ARROW_STRUCT, ARROW_MAP, ARROW_DICTIONARY
    ARROW_COLUMN        # No array: a column that is laid out already.

cdef enum:
    ARROW_NO_MEMORY = -1
    ARROW_WHOLE = 0
    ARROW_OUTSIDE = 1       # Offsets, an index or a view point outside their buffer.
    ARROW_NO_DAY = 2
    ARROW_NO_TIME = 3
    ARROW_CONTAINERS = 4
    ARROW_TOO_LARGE = 5

cdef struct arrow_node:
    # One array in the tree of a type. It is borrowed from an ArrowArray, or a Column, which has to live longer.
    uint8_t kind
    uint8_t width               # Bytes of a number, an index, or an offset.
    uint8_t is_signed
    uint8_t form                # The form of texts and bytes.
    uint8_t tag                 # The extension of moments.
    # Of a decimal: digits behind the point. Of a moment or time: ticks in a second. Of a date: ticks in a day. Of a
    # list of a fixed size: elements. Of bytes of a fixed size: bytes of a row.
    int64_t scale
    int64_t length, offset
    const uint8_t *validity     # NULL if no row is null.
    const uint8_t *data
    const uint8_t *offsets      # The offsets of lists, maps, texts and bytes.
    int64_t data_size           # The last offset.
    const uint8_t **buffers     # Long views point into these.
    const int64_t *buffer_sizes
    int64_t buffer_count
    const ColumnView *column
    # The fields of a struct, the elements of a list, the entries of a map, the values of a dictionary.
    arrow_node *children
    int64_t child_count
    # The name of a struct's field, in msgpack. The head of the struct's map stands before the first name.
    const uint8_t *name
    uint32_t name_size

cdef object column_error(str message)
cdef object column_too_large(str message)
cdef object unreadable_arrow(str name, bytes format)
cdef ArrowSchema *take_arrow(object obj, str name, ArrowArray *array, list held) except NULL
cdef int check_arrow(object obj, str name) except -1
cdef bint arrow_is_value(const char *format) noexcept
cdef int arrow_put(const arrow_node *node, int64_t row, wan_buffer *out, uint32_t *containers) noexcept nogil
cdef int arrow_put_rows(const arrow_node *node, ColumnRows *rows, int64_t *bad_row) noexcept nogil
cdef str arrow_problem(int status)

cdef class ArrowValues:
    cdef arrow_node root
    cdef ArrowArray array       # We release it, once, unless its release is NULL.
    cdef list held              # Keeps the memory of names and columns alive.

    cdef int read(self, const ArrowSchema *schema, const ArrowArray *array, str name, int depth) except -1
    cdef int add_fields(self, list names, list columns) except -1
