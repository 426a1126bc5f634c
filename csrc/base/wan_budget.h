/* Owns the count of a member's memory that other members decide about: changes that copies have yet to acknowledge,
 * calls that wait for that, changes that listeners have yet to be told, and what is remembered of calls. A member has
 * one budget. While it is full the member takes no more changes from its callers.
 *
 * Nothing is refused here. Whoever takes a change from a caller looks first whether the budget is full, and lets the
 * caller wait. What comes from a primary is taken in any case: it is what a full member waits for, or what another full
 * member waits for. So the budget is exceeded by what is taken between the look and the charge, which is one change, or
 * one group of rows, for each caller at most.
 *
 * Any thread may call it, under any lock. */
#ifndef WAN_BUDGET_H
#define WAN_BUDGET_H
#include "base/wan_base.h"

/* What a budget counts. */
enum {
    WAN_BUDGET_CHANGES = 0,   /* Changes in change logs: some copy has not acknowledged them. */
    WAN_BUDGET_CALLS,         /* Calls that wait until something counts, with their answers. */
    WAN_BUDGET_NOTIFICATIONS, /* Changes that listeners are still to be told. */
    WAN_BUDGET_REMEMBERED,    /* Identities and first answers of calls. They stay as long as their callers. */
    WAN_BUDGET_KINDS
};

/* A holder charges and releases in steps of so many bytes. So a change that is acknowledged soon costs no atomic
 * operation. A holder that shrinks keeps at most two steps. */
#define WAN_BUDGET_STEP 4096u

typedef struct {
    uint64_t limit;
    /* Bytes of all kinds but the last one. They become less without any caller. Atomic, as all below. */
    uint64_t passing;
    uint64_t used[WAN_BUDGET_KINDS];
    uint32_t changed; /* A futex: changes when the budget was full and has room again, while somebody waits for it. */
    uint32_t waiters;
    uint64_t waits; /* How often a caller, or a connection of callers, had to wait. */
} wan_budget;

void wan_budget_init(wan_budget *budget, uint64_t limit);

void wan_budget_charge(wan_budget *budget, int kind, uint64_t bytes);
void wan_budget_release(wan_budget *budget, int kind, uint64_t bytes);

/* The part of wan_budget_hold that charges or releases. */
void wan_budget_adjust(wan_budget *budget, int kind, uint64_t *held, uint64_t bytes);

/* A holder has `bytes` bytes now. *held is what it has charged: `bytes` or up to two steps more. The holder's lock is
 * held. */
static inline void wan_budget_hold(wan_budget *budget, int kind, uint64_t *held, uint64_t bytes)
{
    if (WAN_LIKELY(bytes <= *held && *held - bytes <= 2 * (uint64_t)WAN_BUDGET_STEP)) return;
    wan_budget_adjust(budget, kind, held, bytes);
}

/* The holder has nothing, and keeps nothing charged. */
static inline void wan_budget_let_go(wan_budget *budget, int kind, uint64_t *held)
{
    if (*held) wan_budget_adjust(budget, kind, held, 0);
}

/* Whether callers have to wait. What is remembered takes at most half of the limit: it never goes by itself, so a
 * member could not work any more. NULL: there is no limit. */
static inline int wan_budget_is_full(const wan_budget *budget)
{
    if (!budget) return 0;
    const uint64_t passing = __atomic_load_n(&budget->passing, __ATOMIC_RELAXED), half = budget->limit / 2;
    if (WAN_LIKELY(passing <= half)) return 0;
    const uint64_t remembered = __atomic_load_n(&budget->used[WAN_BUDGET_REMEMBERED], __ATOMIC_RELAXED);
    return passing + (remembered < half ? remembered : half) > budget->limit;
}

/* Whether values that changes found may still be remembered. NULL: there is no limit. */
static inline int wan_budget_remembers(const wan_budget *budget)
{
    return !budget || __atomic_load_n(&budget->used[WAN_BUDGET_REMEMBERED], __ATOMIC_RELAXED) < budget->limit / 2;
}

/* Notes that a caller, or a connection of callers, has to wait. */
static inline void wan_budget_note_wait(wan_budget *budget) { __atomic_fetch_add(&budget->waits, 1, __ATOMIC_RELAXED); }

/* Waits until the budget has room. WAN_EMPTY: it has none after `timeout_ms`. */
wan_status wan_budget_wait(wan_budget *budget, uint32_t timeout_ms);

#endif
