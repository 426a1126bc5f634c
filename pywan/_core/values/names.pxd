# The interface of names.pyx.

cdef int region_number(str name, int wanted=*) except -1
cdef int known_region_number(str name) except -1
cpdef region_name(int number)
