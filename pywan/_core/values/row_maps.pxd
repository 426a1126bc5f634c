# The interface of row_maps.pyx.
from libc.stdint cimport int64_t
from pywan._core.values.arrow_values cimport ArrowValues
from pywan._core.values.column_views cimport ColumnRows

cdef class RowMaps:
    cdef ArrowValues fields

    cdef int lay_out(self, ColumnRows *rows) except -1
