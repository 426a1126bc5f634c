# Owns what the log of a queue and the log of a region have in common: the budget of the logs of a disk store, and the
# list of damage that salvage reports.
from libc.stdint cimport uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *


cdef class LogBudget:
    """The bytes that several logs may take together: those in one directory of a disk store. `used` bytes are taken at
    the beginning."""

    def __cinit__(self, uint64_t limit, uint64_t used=0):
        self.budget.limit, self.budget.used = limit, used

    @property
    def limit(self):
        return self.budget.limit

    @property
    def used(self):
        """Bytes of all logs, open or not."""
        return wan_read(&self.budget.used)

    def give(self, uint64_t count):
        """Gives back the bytes of a log that was removed as a whole."""
        wan_add_shared(&self.budget.used, -count)


cdef list damage_list(const wan_buffer *damages):
    cdef const wan_damage *damage = <const wan_damage *>damages.bytes
    return [{"file": (<bytes>damage[n].file).decode("utf-8", "surrogateescape"), "offset": damage[n].offset,
             "reason": (<bytes>damage[n].reason).decode("utf-8", "replace")} for n in range(damages.count)]
