# Owns how a thread takes the locks of some changes that are made under one hold: those of the entries, and of the
# queues. It releases the locks that it took, by what it remembers of them, and never asks again which they are.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.region.region_state cimport attachment

cdef enum:
    # Changes of a region that stores, each of which has an entry lock, that are made under one hold at most, and bytes
    # of their records. It takes a microsecond or two.
    CHANGES_PER_HOLD = 16
    CHANGE_BYTES_PER_HOLD = 16384


cdef struct entry_locks:
    wan_shard *shards[CHANGES_PER_HOLD]     # The shard of each change. Whoever takes the locks has set them.
    wan_shard *held[CHANGES_PER_HOLD]       # The shards whose locks are held.
    uint32_t count                          # So many of them.


cdef inline uint32_t entry_locks_take(entry_locks *locks, uint32_t count) noexcept nogil:
    """Takes the entry locks of `count` changes, from the first on, and returns for how many. It waits for the first
    lock and only tries the others, because a thread that holds an entry lock never waits for another one. It stops at a
    lock that is taken."""
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
    """Takes the locks of all queues of an attachment, in their order. NULL: there are none. Under an entry lock, which
    keeps the attachment. The region may have another attachment before the locks are released."""
    cdef uint32_t n
    for n in range(attached.count if attached != NULL else 0):
        wan_lock_take(&attached.queues[n].lock)


cdef inline void queue_locks_release(const attachment *attached) noexcept nogil:
    """Releases the locks that `queue_locks_take` took for this attachment."""
    cdef uint32_t n
    for n in range(attached.count if attached != NULL else 0):
        wan_lock_release(&attached.queues[n].lock)
