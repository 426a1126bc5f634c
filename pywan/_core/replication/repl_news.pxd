# Owns the news of a replication link: the messages of its thread to Python threads, sent without the GIL.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *

cdef enum:
    NEWS_REFUSED = 1, NEWS_LEARNED = 2, NEWS_SLOW = 3, NEWS_SNAPSHOT = 4, NEWS_BUCKETS = 5

cdef struct repl_news:
    uint32_t kind           # NEWS_*
    uint32_t region         # The region's number on the connection.
    uint64_t bucket, value

cdef class News:
    cdef wan_lock lock
    cdef wan_buffer items
    cdef readonly int file          # An eventfd, readable while news is waiting.
    cdef bint tell(self, uint32_t kind, uint32_t region, uint64_t bucket, uint64_t value) noexcept nogil
    cdef list take(self)
