# Owns the new stamps of a repair of the clock: the stamps that are ahead, and the new stamp for each.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.base.clock cimport AHEAD_MS, Clock


cdef class RepairStamps:
    """New stamps for events and for invalidated entries: a new stamp for each old stamp, in the order of the old
    stamps. An old stamp gets the same new stamp in all queues."""

    def __cinit__(self, Clock clock not None, *args, int site=0, **kwargs):
        self.clock, self.site = clock, <uint8_t>site
        self.raise_limit()

    def __dealloc__(self):
        wan_buffer_close(&self.stamps)

    cdef void raise_limit(self) noexcept nogil:
        self.limit = max(self.limit, (wan_clock_now_ms(&self.clock.clock) + AHEAD_MS << 16) | 0xffff)

    def begin(self):
        """Sets the clock back if the clock is ahead, and returns whether it was. A round begins with the call of
        `begin`: all stamps from now on are above `began`, and "ahead" is measured against the present time. Receivers
        do the same. A stamp that arrives during the repair and is believed is no work for the repair."""
        was_ahead = bool(wan_clock_lower(&self.clock.clock, AHEAD_MS))
        self.raise_limit()
        if self.began == 0:
            self.began = wan_clock_take(&self.clock.clock, wan_clock_now_ms(&self.clock.clock), 1)
        return was_ahead

    def give_stamps(self):
        """Gives a new stamp to all noted stamps without a new stamp."""
        with nogil:
            assign(self)


cdef void assign(RepairStamps self) noexcept nogil:
    """Sorts the noted stamps, drops duplicates, and gives new stamps to old stamps without a new stamp."""
    cdef wan_new_stamp *stamps = <wan_new_stamp *>self.stamps.bytes
    cdef uint64_t n, kept = 0, fresh, wanted = 0
    if self.stamps.used == 0:
        return
    wan_new_stamps_sort(stamps, self.stamps.used // sizeof(wan_new_stamp))
    for n in range(self.stamps.used // sizeof(wan_new_stamp)):
        if kept and stamps[kept - 1].old == stamps[n].old:
            continue
        stamps[kept] = stamps[n]
        wanted += stamps[n].fresh == 0
        kept += 1
    self.stamps.used, self.stamps.count = kept * sizeof(wan_new_stamp), <uint32_t>kept
    self.stamp_count = kept
    if wanted == 0:
        return
    wan_clock_lower(&self.clock.clock, AHEAD_MS)
    fresh = wan_clock_take(&self.clock.clock, wan_clock_now_ms(&self.clock.clock), wanted)
    for n in range(kept):
        if stamps[n].fresh == 0:
            stamps[n].fresh = fresh
            fresh += 1
