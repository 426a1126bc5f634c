# The interface of changelog.pyx.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.base.budget cimport MemoryBudget
from pywan._core.c_base cimport wan_buffer
from pywan._core.c_replication cimport wan_repl_link_state, wan_changelog

cdef class ReplLinkState:
    cdef wan_repl_link_state state   # The link's state for all change logs.

cdef class Changelog:
    cdef wan_changelog changelog
    cdef wan_buffer notifications       # The change at the listeners. The notifying thread owns the buffer.
    cdef MemoryBudget budget    # None: the bytes of the change log are not counted.
    cdef dict repl_links             # Keeps the named replication links alive.
    cdef tuple fed              # Keeps the fed queues alive.
    cdef uint64_t contact       # For a driver without replication links. 0: no contact.
    cdef int check(self, bucket) except -1

cdef void changelog_ready_events(wan_changelog *changelog, uint32_t bucket) noexcept nogil
