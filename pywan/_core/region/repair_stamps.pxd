# The interface of repair_stamps.pyx.
from libc.stdint cimport uint8_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport wan_new_stamp
from pywan._core.base.clock cimport Clock

cdef class RepairStamps:
    cdef Clock clock
    cdef uint8_t site
    cdef readonly uint64_t limit        # Stamps above are ahead. The limit grows with the time, from round to round.
    cdef readonly uint64_t began        # The repair gives this stamp or later ones.
    # Each item is a wan_new_stamp, ascending by `old`: the new stamp for each old stamp. An event gets the same new
    # stamp in every queue.
    cdef wan_buffer stamps
    cdef uint64_t stamp_count

    cdef void raise_limit(self) noexcept nogil


cdef inline wan_status note_stamp(RepairStamps self, uint64_t old) noexcept nogil:
    """Notes that the stamp `old` gets a new stamp with the next `give_stamps`."""
    cdef wan_new_stamp stamp
    stamp.old, stamp.fresh = old, 0
    return wan_buffer_add(&self.stamps, &stamp, sizeof(stamp))


cdef inline uint64_t stamp_for(RepairStamps self, uint64_t old) noexcept nogil:
    """The new stamp for `old`. 0: no new stamp yet, because the event came meanwhile and waits for the next round."""
    cdef const wan_new_stamp *stamps = <const wan_new_stamp *>self.stamps.bytes
    cdef uint64_t low = 0, high = self.stamp_count, middle
    while low < high:
        middle = (low + high) // 2
        if stamps[middle].old < old:
            low = middle + 1
        else:
            high = middle
    return stamps[low].fresh if low < self.stamp_count and stamps[low].old == old else 0
