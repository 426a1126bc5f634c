# Owns nothing but names: the C of csrc/session as Cython sees it.
from libc.stdint cimport uint64_t

cdef extern from "session/wan_window.h" nogil:
    ctypedef struct wan_window:
        uint64_t bytes, limit, round_trip_us
    ctypedef struct wan_window_mark:
        uint64_t sent_us
    void wan_window_init(wan_window *window, uint64_t limit, uint64_t now_us)
    void wan_window_set_limit(wan_window *window, uint64_t limit)
    int wan_window_is_open(const wan_window *window, uint64_t flight)
    wan_window_mark wan_window_sent(const wan_window *window, uint64_t flight, uint64_t bytes, uint64_t now_us)
    void wan_window_acknowledged(wan_window *window, const wan_window_mark *mark, uint64_t now_us)
