# The interface of log_marks.pyx.
cdef dict log_marks(cores, bint hurry)
cdef int wait_log_marks(dict marks) except -1
