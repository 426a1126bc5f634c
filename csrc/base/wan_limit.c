#include "base/wan_limit.h"

#include <stdio.h>
#include <string.h>

void wan_limit_init(wan_limit *limit, const char *name, uint64_t bytes, uint64_t critical, uint64_t calm)
{
    memset(limit, 0, sizeof *limit);
    snprintf(limit->name, sizeof limit->name, "%s", name);
    limit->limit = bytes;
    limit->critical = critical;
    limit->calm = calm;
    limit->left = WAN_NO_LIMIT;
}

/* Two threads may do this at once, and the flag be that of the earlier look. The next charge or note puts it right. */
static void look(wan_limit *limit)
{
    const uint64_t used = wan_limit_used(limit), free = __atomic_load_n(&limit->free, __ATOMIC_RELAXED);
    const uint64_t full = used > free ? used - free : 0;
    const int is_left = __atomic_load_n(&limit->left, __ATOMIC_RELAXED) == WAN_NO_LIMIT;
    if (full >= limit->critical || used >= limit->limit || !is_left) {
        if (!__atomic_exchange_n(&limit->is_short, 1, __ATOMIC_RELAXED))
            __atomic_fetch_add(&limit->shorts, 1, __ATOMIC_RELAXED);
    } else if (full < limit->calm && __atomic_load_n(&limit->is_short, __ATOMIC_RELAXED)) {
        __atomic_store_n(&limit->is_short, 0, __ATOMIC_RELAXED);
    }
}

void wan_limit_charge(wan_limit *limit, uint64_t bytes)
{
    if (!limit) return;
    __atomic_fetch_add(&limit->counted, bytes, __ATOMIC_RELAXED);
    look(limit);
}

void wan_limit_release(wan_limit *limit, uint64_t bytes)
{
    if (!limit) return;
    __atomic_fetch_sub(&limit->counted, bytes, __ATOMIC_RELAXED);
    if (wan_limit_is_short(limit)) look(limit);
}

void wan_limit_note(wan_limit *limit, int64_t other, uint64_t free, uint64_t left)
{
    __atomic_store_n(&limit->other, other, __ATOMIC_RELAXED);
    __atomic_store_n(&limit->free, free, __ATOMIC_RELAXED);
    __atomic_store_n(&limit->left, left, __ATOMIC_RELAXED);
    look(limit);
}

wan_status wan_limit_refuse(wan_limit *limit)
{
    const uint64_t used = wan_limit_used(limit), free = __atomic_load_n(&limit->free, __ATOMIC_RELAXED);
    const uint64_t left = __atomic_load_n(&limit->left, __ATOMIC_RELAXED);
    __atomic_fetch_add(&limit->refused, 1, __ATOMIC_RELAXED);
    if (left != WAN_NO_LIMIT) {
        wan_note(WAN_LOW_MEMORY,
                 "the machine of member %s, or its cgroup, has only %" PRIu64
                 " MB of memory left; the process has %" PRIu64 " MB; end other processes, or " WAN_LIMIT_REMEDY,
                 limit->name, left >> 20, used >> 20);
        return WAN_FULL;
    }
    wan_note(WAN_LOW_MEMORY,
             "the memory of member %s is at its limit: the process has %" PRIu64 " MB, of which %" PRIu64
             " MB are free for entries of the same sizes, and changes that need memory are refused from %" PRIu64
             " MB on (maximum-memory is %" PRIu64 " MB); " WAN_LIMIT_REMEDY,
             limit->name, used >> 20, (free < used ? free : used) >> 20, limit->critical >> 20, limit->limit >> 20);
    return WAN_FULL;
}
