# The interface of region_columns.pyx.
from pywan._core.region.compiled_region cimport CompiledRegion

cdef object region_put_columns(CompiledRegion self, keys, values, operations, timestamps)
