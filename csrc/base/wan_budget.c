#include "base/wan_budget.h"

#include <string.h>

#include "base/wan_lock.h"

void wan_budget_init(wan_budget *budget, uint64_t limit)
{
    memset(budget, 0, sizeof *budget);
    budget->limit = limit;
}

void wan_budget_charge(wan_budget *budget, int kind, uint64_t bytes)
{
    __atomic_fetch_add(&budget->used[kind], bytes, __ATOMIC_RELAXED);
    if (kind != WAN_BUDGET_REMEMBERED) __atomic_fetch_add(&budget->passing, bytes, __ATOMIC_RELAXED);
}

void wan_budget_release(wan_budget *budget, int kind, uint64_t bytes)
{
    __atomic_fetch_sub(&budget->used[kind], bytes, __ATOMIC_RELAXED);
    if (kind != WAN_BUDGET_REMEMBERED) __atomic_fetch_sub(&budget->passing, bytes, __ATOMIC_SEQ_CST);
    /* A thread that is about to wait says so, and then looks once more. So either it sees the room, or we see it. */
    if (__atomic_load_n(&budget->waiters, __ATOMIC_SEQ_CST) && !wan_budget_is_full(budget))
        wan_signal_change(&budget->changed);
}

void wan_budget_adjust(wan_budget *budget, int kind, uint64_t *held, uint64_t bytes)
{
    const uint64_t wanted = (bytes + WAN_BUDGET_STEP - 1) / WAN_BUDGET_STEP * WAN_BUDGET_STEP, before = *held;
    *held = wanted;
    if (wanted > before) wan_budget_charge(budget, kind, wanted - before);
    else if (wanted < before) wan_budget_release(budget, kind, before - wanted);
}

wan_status wan_budget_wait(wan_budget *budget, uint32_t timeout_ms)
{
    __atomic_fetch_add(&budget->waiters, 1, __ATOMIC_SEQ_CST);
    const uint32_t seen = __atomic_load_n(&budget->changed, __ATOMIC_ACQUIRE);
    if (wan_budget_is_full(budget)) wan_wait_change(&budget->changed, seen, timeout_ms);
    __atomic_fetch_sub(&budget->waiters, 1, __ATOMIC_SEQ_CST);
    return wan_budget_is_full(budget) ? WAN_EMPTY : WAN_OK;
}
