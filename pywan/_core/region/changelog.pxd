# The interface of change log.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.c_base cimport wan_buffer
from pywan._core.c_replication cimport wan_repl_link_state, wan_changelog

cdef class ReplLinkState:
    cdef wan_repl_link_state state   # What change logs know of the replication link.

cdef class Changelog:
    cdef wan_changelog changelog
    cdef wan_buffer notifications       # The change that listeners are being told. The thread that tells owns it.
    cdef MemoryBudget budget    # None: nobody counts what the change log holds.
    cdef dict repl_links             # Keeps the replication links alive that the change log names.
    cdef tuple fed              # Keeps the queues alive that the change log feeds.
    cdef uint64_t contact       # Of a driver that has no replication links. 0: there is none.
    cdef int check(self, bucket) except -1

cdef void changelog_ready_events(wan_changelog *changelog, uint32_t bucket) noexcept nogil
