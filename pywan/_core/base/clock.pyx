# Owns `Clock`, the clock that the regions of a member share, and `Bell`, which wakes a thread.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *


cdef class Clock:
    """The hybrid logical clock that all regions of a member share."""

    def take(self, now_ms=None):
        """The next stamp: milliseconds << 16 | counter."""
        return wan_clock_take(&self.clock, wan_clock_now_ms(&self.clock) if now_ms is None else now_ms, 1)

    def see(self, uint64_t stamp):
        """Makes every later stamp of this clock greater than `stamp`."""
        wan_clock_see(&self.clock, stamp)

    def receive(self, uint64_t stamp):
        """Takes a stamp that the clock of another site gave less than a minute ago. If it agrees with our wall clock,
        the wall clock is believed again."""
        wan_clock_receive(&self.clock, stamp)

    def lower(self):
        """Sets the clock back to the time if its stamps are so far ahead that other sites park the events. Returns
        whether it did. Only for `ClockRepair`: entries and events that are ahead need new stamps, and floors that were
        sent to other sites have to be taken back."""
        return bool(wan_clock_lower(&self.clock, AHEAD_MS))

    @property
    def now_ms(self):
        """The time, as far as the wall clock is believed: milliseconds since 1970."""
        return wan_clock_now_ms(&self.clock)

    @property
    def held_ms(self):
        """By how many milliseconds the wall clock is ahead of the time that we believe. 0: the wall clock is
        believed."""
        now_ms = wan_clock_now_ms(&self.clock)
        return max(0, wan_clock_wall_ms(&self.clock) - now_ms)

    @property
    def ahead_ms(self):
        """By how many milliseconds the highest stamp given or seen is ahead of the time. 0: it is not ahead."""
        now_ms = wan_clock_now_ms(&self.clock)
        return max(0, wan_stamp_ms(wan_clock_last(&self.clock)) - now_ms)

    def set_time(self, uint64_t now_ms, uint64_t boot_ms=0):
        """Sets this clock's time to `now_ms` until the next call; 0: the system's time. `boot_ms`: the same for the
        clock that only runs forward, with which the wall clock is checked; 0: the wall clock is always believed. For
        simulations."""
        # This is another clock: forget what we know of the first.
        if (boot_ms == 0) != (self.clock.set_boot_ms == 0):
            self.clock.base_ms = self.clock.good_until_ms = 0
        self.clock.set_ms, self.clock.set_boot_ms = now_ms, boot_ms

    def raise_low(self):
        """Raises the lowest stamp that a local change can get, and returns it. Only changes with timestamps from
        callers can have lower ones. When `RegionCore.fix_stamps` has returned, this holds also for the events in the
        region's queues: every change with a lower stamp is there."""
        return wan_clock_raise_low(&self.clock)


cdef class Bell:
    """Wakes a thread that sleeps, so that it looks earlier than it would."""

    def ring(self):
        wan_signal_change(&self.word)

    def wait(self, double seconds):
        """Waits until the bell rings, or for so many seconds. Returns whether it rang since the last call. One caller
        at a time."""
        cdef uint64_t now = wan_monotonic_us(), until = now + <uint64_t>(max(0.0, seconds) * 1e6)
        cdef uint32_t seen
        with nogil:
            seen = __atomic_load_n(&self.word, __ATOMIC_ACQUIRE)
            while seen == self.last_seen and now < until:
                wan_wait_change(&self.word, seen, <uint32_t>((until - now) // 1000 + 1))
                seen = __atomic_load_n(&self.word, __ATOMIC_ACQUIRE)
                now = wan_monotonic_us()
        rang = seen != self.last_seen
        self.last_seen = seen
        return rang
