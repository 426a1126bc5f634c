# The interface of clock.pyx.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport *

cdef class Clock:
    cdef wan_clock clock

cdef class Bell:
    cdef uint32_t word, last_seen

cdef enum:
    # Other sites park events with stamps that are further ahead of the time (`max_drift_ms` of a receiver).
    AHEAD_MS = 300000
