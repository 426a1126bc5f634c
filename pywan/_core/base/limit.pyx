# Owns `MemoryLimit`, the count of what a member's regions and queues take of the process's memory, as Python sees it.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *


cdef class MemoryLimit:
    """The memory of the process of member `name`, at most `limit` bytes. From `critical` bytes on, changes that need
    memory are refused, until there are less than `calm`. All regions, queues and replication links of the member have
    it."""

    def __cinit__(self, str name, uint64_t limit, uint64_t critical, uint64_t calm):
        cdef bytes told = name.encode("utf-8", "replace")
        wan_limit_init(&self.limit, told, limit, critical, calm)

    def note(self, int64_t other, uint64_t free, left=None):
        """Tells what was measured: how many bytes the process has beside the counted ones, how many of the counted ones
        are free for new entries, and how many the machine has left, if these are too few."""
        cdef uint64_t bytes = NO_LIMIT if left is None else left
        with nogil:
            wan_limit_note(&self.limit, other, free, bytes)

    @property
    def is_short(self):
        """Whether changes that need memory are refused."""
        return bool(wan_limit_is_short(&self.limit))

    @property
    def limit(self):
        return self.limit.limit

    @property
    def critical(self):
        return self.limit.critical

    @property
    def counted(self):
        """The bytes that regions and queues have from the system."""
        return wan_read(&self.limit.counted)

    @property
    def used(self):
        """The bytes of the process, as far as is known: what was measured, and what was counted since."""
        return wan_limit_used(&self.limit)

    @property
    def free(self):
        """How many of the counted bytes were free for new entries, when they were looked at last."""
        return wan_read(&self.limit.free)

    @property
    def refused(self):
        """How many changes were refused, each attempt once."""
        return wan_read(&self.limit.refused)

    @property
    def shorts(self):
        """How often the memory has become short."""
        return <uint32_t>wan_flag_read(<const int *>&self.limit.shorts)
