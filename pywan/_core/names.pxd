# The interface of names.pyx.

cdef int region_number(str name) except -1
