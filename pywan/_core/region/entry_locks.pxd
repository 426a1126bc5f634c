# Owns how a thread takes the entry locks of some changes that are made under one hold.
from libc.stdint cimport uint32_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *

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
