#include "replication/wan_clear.h"

#include <string.h>

/* Bytes of the notification of a destroy, for an entry. */
static uint64_t notification_length(const wan_entry *entry)
{
    return sizeof(wan_changelog_entry) + wan_record_size(entry->key_length, 0, 0, 0);
}

/* Adds the pending notifications of a clear: a destroy of each entry. WAN_FULL, WAN_NO_MEMORY: none was added. */
static wan_status tell_listeners(wan_notifications *notifications, const wan_table *table, const wan_bucket *bucket,
                                 uint8_t site, uint64_t sequence, wan_call_identity call, int may_refuse)
{
    uint64_t bytes = 0;
    for (uint32_t n = 0; n < bucket->shard_count; n++) {
        const wan_shard *shard = &table->shards[bucket->first_shard + n];
        for (uint64_t at = 0; at < wan_shard_slots(shard); at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            if (!entry || entry->state == WAN_ENTRY_TOMBSTONE) continue;
            bytes += wan_notification_size(entry->state == WAN_ENTRY_LIVE ? entry->value_length : 0,
                                           notification_length(entry));
        }
    }
    if (!bytes) return WAN_OK;
    if (may_refuse && wan_notifications_refuse(notifications))
        return WAN_FAIL(WAN_FULL, "listeners are %" PRIu64 " bytes of changes behind",
                        __atomic_load_n(&notifications->bytes, __ATOMIC_RELAXED));
    wan_status status = wan_notifications_begin_many(notifications, bucket->number, bytes);
    if (status != WAN_OK) return status;
    for (uint32_t n = 0; n < bucket->shard_count; n++) {
        const wan_shard *shard = &table->shards[bucket->first_shard + n];
        for (uint64_t at = 0; at < wan_shard_slots(shard); at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            if (!entry || entry->state == WAN_ENTRY_TOMBSTONE) continue;
            const uint64_t length = notification_length(entry);
            const int is_live = entry->state == WAN_ENTRY_LIVE;
            uint8_t *to = wan_notifications_place(notifications, bucket->number, sequence,
                                                  is_live ? wan_entry_value(entry) : NULL, entry->value_length,
                                                  entry->value_form, length);
            const wan_record record = {
                .key_length = entry->key_length,
                .stamp = entry->stamp,
                .stamp_site = entry->stamp_site,
                .event_member = (uint32_t)(call.caller >> 32),
                .event_thread = (uint32_t)call.caller,
                .event_sequence = (uint64_t)call.slot << 48 | call.number,
                .origin_site = site,
                .operation = WAN_DESTROY,
                .key_form = entry->key_form,
                .value_form = WAN_FORM_NONE,
                .callback_form = WAN_FORM_NONE,
            };
            *(wan_changelog_entry *)to = (wan_changelog_entry){.length = (uint32_t)length, .outcome = WAN_DESTROYED};
            wan_record_write(to + sizeof(wan_changelog_entry), length - sizeof(wan_changelog_entry), record,
                             entry->bytes, entry->bytes, entry->bytes, entry->bytes);
        }
    }
    return WAN_OK;
}

static uint64_t take_out_all(wan_table *table, const wan_bucket *bucket)
{
    uint64_t entries = 0;
    for (uint32_t n = 0; n < bucket->shard_count; n++)
        entries += wan_table_clear(&table->shards[bucket->first_shard + n]);
    return entries;
}

/* Returns the cached reply to a call that was made before. The caller holds the entry locks: no later call replaces the
 * reply. */
static wan_status recall_cleared(wan_changelog *changelog, uint32_t number, const wan_attempt *attempt,
                                 wan_recalled *made, uint64_t *entries)
{
    wan_buffer found = {0};
    wan_status status = wan_changelog_cached_reply(changelog, number, attempt, made, &found);
    if (status == WAN_MADE_BEFORE && found.used == sizeof *entries) {
        memcpy(entries, found.bytes, sizeof *entries);
        status = WAN_OK;
    } else if (status == WAN_MADE_BEFORE) {
        status = WAN_FAIL(WAN_IN_DOUBT, "an earlier call of the same identity was no clear");
    }
    wan_buffer_close(&found);
    return status;
}

wan_status wan_clear_make(wan_table *table, wan_changelog *changelog, uint32_t number, uint8_t site,
                          const wan_attempt *attempt, wan_recalled *made, uint64_t *entries)
{
    const wan_bucket *bucket = &table->buckets[number];
    wan_notifications *notifications = wan_changelog_notifications(changelog);
    wan_changelog_reservation room;
    *entries = 0;
    wan_status status = wan_changelog_reserve(changelog, number, WAN_CHANGELOG_CLEAR_BYTES, attempt, &room);
    if (status == WAN_MADE_BEFORE) return recall_cleared(changelog, number, attempt, made, entries);
    if (status != WAN_OK) return status;
    if (notifications
        && (status = tell_listeners(notifications, table, bucket, site, room.sequence, attempt->call, 1)) != WAN_OK) {
        wan_changelog_cancel(&room);
        return status;
    }
    *entries = take_out_all(table, bucket);
    wan_changelog_entry *entry = (wan_changelog_entry *)room.at;
    *entry = (wan_changelog_entry){.length = WAN_CHANGELOG_CLEAR_BYTES,
                                   .outcome = WAN_DESTROYED,
                                   .flags = WAN_CHANGELOG_REMEMBERED,
                                   .kind = WAN_ENTRY_CLEAR};
    *wan_changelog_entry_call(entry) = attempt->call;
    *wan_changelog_entry_cleared(entry) = *entries;
    *made = (wan_recalled){.local_fence = room.bucket->local_fence, .outcome = WAN_DESTROYED};
    made->sequence = wan_changelog_commit(changelog, &room, WAN_ALL_SHARDS);
    return WAN_OK;
}

wan_status wan_clear_follow(wan_table *table, wan_changelog *changelog, uint32_t number, uint8_t site,
                            uint64_t timeline, uint64_t epoch, uint64_t sequence, const wan_changelog_entry *entry)
{
    const wan_bucket *bucket = &table->buckets[number];
    wan_notifications *notifications = wan_changelog_notifications(changelog);
    wan_changelog_reservation room;
    wan_status status = wan_changelog_follow(changelog, number, timeline, epoch, sequence, entry, &room);
    if (status != WAN_OK) return status;
    if (notifications
        && (status = tell_listeners(notifications, table, bucket, site, sequence, *wan_changelog_entry_call(entry), 0))
               != WAN_OK) {
        wan_changelog_cancel(&room);
        return status;
    }
    take_out_all(table, bucket);
    wan_changelog_followed(changelog, &room, entry, WAN_ALL_SHARDS);
    wan_changelog_follow_end(changelog, &room);
    return WAN_OK;
}
