# The interface of tail.pyx.
from pywan._core.c_copies cimport wan_lane_state, wan_tail

cdef class LaneState:
    cdef wan_lane_state state   # What tails know of the lane.

cdef class Tail:
    cdef wan_tail tail
    cdef dict lanes             # Keeps the lanes alive that the tail names.
    cdef int check(self, bucket) except -1
