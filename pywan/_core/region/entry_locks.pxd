# Owns how a thread takes the locks of some changes under one hold: the locks of the entries, and of the queues. The
# thread releases exactly the noted locks, and never computes the locks again.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.region.region_state cimport attachment

cdef enum:
    # The most changes under one hold, and the most bytes of their records, in a region that stores entries, where every
    # change has an entry lock. A hold takes a microsecond or two.
    CHANGES_PER_HOLD = 16
    CHANGE_BYTES_PER_HOLD = 16384


cdef struct entry_locks:
    wan_shard *shards[CHANGES_PER_HOLD]     # The shard of each change, set by the caller.
    wan_shard *held[CHANGES_PER_HOLD]       # The shards whose locks are held.
    uint32_t count                          # The number of held locks.


cdef inline uint32_t entry_locks_take(entry_locks *locks, uint32_t count) noexcept nogil:
    """Takes the entry locks of `count` changes, from the first change on, and returns the number of changes whose locks
    are held. The function waits for the first lock and only tries the rest, because a thread that holds an entry lock
    never waits for a second entry lock. The first lock of a different thread ends the loop."""
    cdef wan_shard *shard
    cdef uint32_t n, k
    locks.count = 0
    for n in range(count):
        shard = locks.shards[n]
        if n == 0:
            wan_lock_take(&shard.lock)
        elif not wan_lock_try(&shard.lock):
            for k in range(locks.count):
                if locks.held[k] == shard:
                    break
            else:
                return n
            continue
        locks.held[locks.count] = shard
        locks.count += 1
    return count


cdef inline void entry_locks_release(entry_locks *locks) noexcept nogil:
    cdef uint32_t n
    for n in range(locks.count):
        wan_lock_release(&locks.held[n].lock)


cdef inline void queue_locks_take(const attachment *attached) noexcept nogil:
    """Takes the locks of all queues of an attachment, in order. NULL: no queues. Under an entry lock, which keeps the
    attachment. The region may have a newer attachment before the locks are released."""
    cdef uint32_t n
    for n in range(attached.count if attached != NULL else 0):
        wan_lock_take(&attached.queues[n].lock)


cdef inline void queue_locks_release(const attachment *attached) noexcept nogil:
    """Releases the locks that `queue_locks_take` took for the attachment."""
    cdef uint32_t n
    for n in range(attached.count if attached != NULL else 0):
        wan_lock_release(&attached.queues[n].lock)
