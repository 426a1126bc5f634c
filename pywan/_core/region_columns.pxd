# The interface of region_columns.pyx.
from pywan._core.region_base cimport RegionBase

cdef object region_put_columns(RegionBase self, keys, values, operations, timestamps)
