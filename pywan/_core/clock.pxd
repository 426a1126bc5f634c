# The interface of clock.pyx.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport *

cdef class Clock:
    cdef wan_clock clock

cdef class Bell:
    cdef uint32_t word, heard

cdef enum:
    AHEAD_MS = 300000               # Other sites park what is further ahead (`max_drift_ms` of a receiver).
