# The interface of names.pyx.

cdef int region_number(str name, int wanted=*) except -1
cpdef region_name(int number)
