#include "copies/wan_clear.h"

#include <string.h>

/* Of the destroy that listeners hear for an entry. */
static uint64_t heard_length(const wan_entry *entry)
{
    return sizeof(wan_tail_entry) + wan_record_size(entry->key_length, 0, 0, 0);
}

/* Makes the changes that listeners hear: a destroy of each entry. WAN_FULL, WAN_NO_MEMORY: there are none. */
static wan_status tell_listeners(wan_heard *heard, const wan_table *table, const wan_bucket *bucket, uint8_t site,
                                 uint64_t sequence, wan_call_identity call, int may_refuse)
{
    uint64_t bytes = 0;
    for (uint32_t n = 0; n < bucket->shard_count; n++) {
        const wan_shard *shard = &table->shards[bucket->first_shard + n];
        for (uint64_t at = 0; at < wan_shard_slots(shard); at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            if (!entry || entry->state == WAN_ENTRY_TOMBSTONE) continue;
            bytes += wan_heard_size(entry->state == WAN_ENTRY_LIVE ? entry->value_length : 0, heard_length(entry));
        }
    }
    if (!bytes) return WAN_OK;
    if (may_refuse && wan_heard_refuses(heard))
        return WAN_FAIL(WAN_FULL, "listeners are %" PRIu64 " bytes of changes behind",
                        __atomic_load_n(&heard->bytes, __ATOMIC_RELAXED));
    wan_status status = wan_heard_begin_many(heard, bucket->number, bytes);
    if (status != WAN_OK) return status;
    for (uint32_t n = 0; n < bucket->shard_count; n++) {
        const wan_shard *shard = &table->shards[bucket->first_shard + n];
        for (uint64_t at = 0; at < wan_shard_slots(shard); at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            if (!entry || entry->state == WAN_ENTRY_TOMBSTONE) continue;
            const uint64_t length = heard_length(entry);
            const int is_live = entry->state == WAN_ENTRY_LIVE;
            uint8_t *to = wan_heard_place(heard, bucket->number, sequence, is_live ? wan_entry_value(entry) : NULL,
                                          entry->value_length, entry->value_form, length);
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
            *(wan_tail_entry *)to = (wan_tail_entry){.length = (uint32_t)length, .outcome = WAN_DESTROYED};
            wan_record_write(to + sizeof(wan_tail_entry), length - sizeof(wan_tail_entry), record, entry->bytes,
                             entry->bytes, entry->bytes, entry->bytes);
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

/* The first answer to a call that was made before. The caller holds the entry locks: no later call replaces it. */
static wan_status recall_cleared(wan_tail *tail, uint32_t number, const wan_attempt *attempt, wan_recalled *made,
                                 uint64_t *entries)
{
    wan_buffer found = {0};
    wan_status status = wan_tail_recall(tail, number, attempt, made, &found);
    if (status == WAN_MADE_BEFORE && found.used == sizeof *entries) {
        memcpy(entries, found.bytes, sizeof *entries);
        status = WAN_OK;
    } else if (status == WAN_MADE_BEFORE) {
        status = WAN_FAIL(WAN_IN_DOUBT, "an earlier call of the same identity was no clear");
    }
    wan_buffer_close(&found);
    return status;
}

wan_status wan_clear_make(wan_table *table, wan_tail *tail, uint32_t number, uint8_t site, const wan_attempt *attempt,
                          wan_recalled *made, uint64_t *entries)
{
    const wan_bucket *bucket = &table->buckets[number];
    wan_heard *heard = wan_tail_heard(tail);
    wan_tail_reservation room;
    *entries = 0;
    wan_status status = wan_tail_reserve(tail, number, WAN_TAIL_CLEAR_BYTES, attempt, &room);
    if (status == WAN_MADE_BEFORE) return recall_cleared(tail, number, attempt, made, entries);
    if (status != WAN_OK) return status;
    if (heard && (status = tell_listeners(heard, table, bucket, site, room.sequence, attempt->call, 1)) != WAN_OK) {
        wan_tail_cancel(&room);
        return status;
    }
    *entries = take_out_all(table, bucket);
    wan_tail_entry *entry = (wan_tail_entry *)room.at;
    *entry = (wan_tail_entry){.length = WAN_TAIL_CLEAR_BYTES,
                              .outcome = WAN_DESTROYED,
                              .flags = WAN_TAIL_REMEMBERED,
                              .kind = WAN_ENTRY_CLEAR};
    *wan_tail_entry_call(entry) = attempt->call;
    *wan_tail_entry_cleared(entry) = *entries;
    *made = (wan_recalled){.era = room.bucket->era, .outcome = WAN_DESTROYED};
    made->sequence = wan_tail_commit(tail, &room, WAN_TAIL_ALL_SHARDS);
    return WAN_OK;
}

wan_status wan_clear_follow(wan_table *table, wan_tail *tail, uint32_t number, uint8_t site, uint64_t life,
                            uint64_t epoch, uint64_t sequence, const wan_tail_entry *entry)
{
    const wan_bucket *bucket = &table->buckets[number];
    wan_heard *heard = wan_tail_heard(tail);
    wan_tail_reservation room;
    wan_status status = wan_tail_follow(tail, number, life, epoch, sequence, entry, &room);
    if (status != WAN_OK) return status;
    if (heard
        && (status = tell_listeners(heard, table, bucket, site, sequence, *wan_tail_entry_call(entry), 0)) != WAN_OK) {
        wan_tail_cancel(&room);
        return status;
    }
    take_out_all(table, bucket);
    wan_tail_followed(tail, &room, entry, WAN_TAIL_ALL_SHARDS);
    wan_tail_follow_end(tail, &room);
    return WAN_OK;
}
