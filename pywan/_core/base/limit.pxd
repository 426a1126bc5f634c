# The interface of limit.pyx.
from pywan._core.c_base cimport wan_limit

cdef class MemoryLimit:
    cdef wan_limit limit
