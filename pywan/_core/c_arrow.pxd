# Owns nothing but names: the Arrow C data and stream interfaces, and the bounds of a column.
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from "record/arrow_abi.h" nogil:
    struct ArrowSchema:
        const char *format
        const char *name
        int64_t n_children
        ArrowSchema **children
        ArrowSchema *dictionary
        void (*release)(ArrowSchema *) noexcept

    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void **buffers
        ArrowArray **children
        ArrowArray *dictionary
        void (*release)(ArrowArray *) noexcept

    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream *, ArrowSchema *) noexcept
        int (*get_next)(ArrowArrayStream *, ArrowArray *) noexcept
        const char *(*get_last_error)(ArrowArrayStream *) noexcept

cdef extern from "<stdint.h>" nogil:
    int64_t _COLUMN_INT64_MIN "INT64_MIN"
    uint64_t _COLUMN_INT64_MAX "INT64_MAX"
    uint64_t _COLUMN_UINT32_MAX "UINT32_MAX"
    int64_t _COLUMN_INT32_MIN "INT32_MIN"
