/* Owns the clear of a bucket that several members hold: one change, with one place in the order of the bucket, that
 * takes all entries out at the primary and at each copy. Tombstones stay.
 *
 * The caller holds all entry locks of the bucket (wan_table_bucket_take). */
#ifndef WAN_CLEAR_H
#define WAN_CLEAR_H
#include "copies/wan_heard.h"
#include "copies/wan_tail.h"
#include "region/wan_table.h"

/* Clears a bucket at its primary. `attempt` has the identity of the call. WAN_OK also if an earlier attempt did it: its
 * first answer is given again. `made`: what the answer depends on. `entries`: how many the call took out. `site`: of
 * the events that listeners hear. Otherwise statuses as wan_tail_reserve; nothing was changed then. */
wan_status wan_clear_make(wan_table *table, wan_tail *tail, uint32_t bucket, uint8_t site, const wan_attempt *attempt,
                          wan_recalled *made, uint64_t *entries);
/* Clears a bucket at a copy, as the entry says that its primary gave `sequence`. Statuses as wan_tail_follow. */
wan_status wan_clear_follow(wan_table *table, wan_tail *tail, uint32_t bucket, uint8_t site, uint64_t life,
                            uint64_t epoch, uint64_t sequence, const wan_tail_entry *entry);

#endif
