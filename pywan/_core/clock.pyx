# Owns `Clock`, which the regions of a member share, and `Bell`.
from libc.stdint cimport uint32_t, uint64_t
from pywan._core.c_base cimport *


cdef class Clock:
    """The hybrid logical clock that all regions of a member share."""

    def take(self, now_ms=None):
        """The next stamp: milliseconds << 16 | counter."""
        return wan_clock_take(&self.clock, wan_clock_now_ms(&self.clock) if now_ms is None else now_ms, 1)

    def see(self, uint64_t stamp):
        """Makes every later stamp of this clock greater than `stamp`."""
        wan_clock_see(&self.clock, stamp)

    def hear(self, uint64_t stamp):
        """The clock of another site gave this stamp less than a minute ago. If it agrees with our wall clock, that one is believed again."""
        wan_clock_hear(&self.clock, stamp)

    def lower(self):
        """Sets a clock whose stamps are so far ahead of the time that other sites park them back to the time, and says whether it did. For `ClockRepair`: what is
        ahead has to be stamped anew, and floors that were told have to be taken back."""
        return bool(wan_clock_lower(&self.clock, AHEAD_MS))

    @property
    def now_ms(self):
        """The time, as far as the wall clock is believed: milliseconds since 1970."""
        return wan_clock_now_ms(&self.clock)

    @property
    def held_ms(self):
        """By how much the wall clock is ahead of what is believed of it; 0: it is believed."""
        now_ms = wan_clock_now_ms(&self.clock)
        return max(0, wan_clock_wall_ms(&self.clock) - now_ms)

    @property
    def ahead_ms(self):
        """By how much the highest stamp handed out or seen is ahead of the time; 0: it is not."""
        now_ms = wan_clock_now_ms(&self.clock)
        return max(0, wan_stamp_ms(wan_clock_last(&self.clock)) - now_ms)

    def set_time(self, uint64_t now_ms, uint64_t boot_ms=0):
        """From now on it is `now_ms` for this clock, until that is set again; 0: the system's time. `boot_ms`: the same of the clock that only runs
        forward, by which the other one is judged; 0: it is believed whatever it says. For simulations."""
        if (boot_ms == 0) != (self.clock.set_boot_ms == 0):     # Another clock, from which nothing is known of the first.
            self.clock.base_ms = self.clock.good_until_ms = 0
        self.clock.set_ms, self.clock.set_boot_ms = now_ms, boot_ms

    def raise_low(self):
        """A stamp that no local change falls below from now on, but for stamps that callers give. It holds for what a region has handed to its
        queues once that has settled (`RegionCore.fix_stamps`)."""
        return wan_clock_raise_low(&self.clock)


cdef class Bell:
    """Something asks a thread, which sleeps meanwhile, to look before its time."""

    def ring(self):
        wan_signal_change(&self.word)

    def wait(self, double seconds):
        """Until it rings, or for so long. Whether it rang since the last call. One caller at a time."""
        cdef uint64_t now = wan_monotonic_us(), until = now + <uint64_t>(max(0.0, seconds) * 1e6)
        cdef uint32_t seen
        with nogil:
            seen = __atomic_load_n(&self.word, __ATOMIC_ACQUIRE)
            while seen == self.heard and now < until:
                wan_wait_change(&self.word, seen, <uint32_t>((until - now) // 1000 + 1))
                seen = __atomic_load_n(&self.word, __ATOMIC_ACQUIRE)
                now = wan_monotonic_us()
        rang = seen != self.heard
        self.heard = seen
        return rang
