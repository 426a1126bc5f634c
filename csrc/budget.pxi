# Owns what the logs of a disk store may take in one of its directories. Its counter is atomic: each log takes and gives on its own.

cdef class LogBudget:
    """What several logs may take together: those in one directory of a disk store. `used` bytes there are at the beginning."""
    cdef wan_log_budget b

    def __cinit__(self, uint64_t limit, uint64_t used=0):
        self.b.limit, self.b.used = limit, used

    @property
    def limit(self):
        return self.b.limit

    @property
    def used(self):
        """Bytes of all logs, open or not."""
        return wan_read(&self.b.used)

    def give(self, uint64_t count):
        """Of a log that was removed as a whole."""
        wan_count(&self.b.used, -count)
