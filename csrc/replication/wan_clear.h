/* Owns the clear of a bucket of a shared region: one change, with one place in the order of the bucket, takes all
 * entries out at the primary and at each replica. Tombstones stay.
 *
 * The caller holds all entry locks of the bucket (wan_table_bucket_take). */
#ifndef WAN_CLEAR_H
#define WAN_CLEAR_H
#include "replication/wan_notifications.h"
#include "replication/wan_changelog.h"
#include "region/wan_table.h"

/* Clears a bucket at its primary. `attempt` has the identity of the call. WAN_OK also if an earlier attempt made the
 * change: the call gets the cached reply. `made`: the state on which the reply depends. `entries`: how many entries the
 * call took out. `site`: the site in the events for listeners. Otherwise statuses as wan_changelog_reserve; nothing was
 * changed then. */
wan_status wan_clear_make(wan_table *table, wan_changelog *changelog, uint32_t bucket, uint8_t site,
                          const wan_attempt *attempt, wan_recalled *made, uint64_t *entries);
/* Clears a bucket at a replica, under the primary's `sequence` of the entry. Statuses as wan_changelog_follow. */
wan_status wan_clear_follow(wan_table *table, wan_changelog *changelog, uint32_t bucket, uint8_t site,
                            uint64_t timeline, uint64_t epoch, uint64_t sequence, const wan_changelog_entry *entry);

#endif
