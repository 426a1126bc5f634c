/* Owns the numbered items of a log, and the check of what comes back. */
#include "log_owner.h"

static uint8_t pattern(uint64_t number, uint64_t at) { return (uint8_t)(number * 31 + at * 7 + (at >> 8)); }

uint64_t owner_item_length(uint64_t number, uint64_t length) { return wan_align8(16 + length); }

static wan_status take_state(void *context, const uint8_t *bytes, uint64_t length)
{
    log_owner *owner = context;
    if (length == 8) memcpy(&owner->state, bytes, 8);
    else if (length) owner->wrong++;
    return WAN_OK;
}

static wan_status take_part(void *context, uint32_t index, uint64_t commit, const wan_part_head *head,
                            const uint8_t *bytes)
{
    log_owner *owner = context;
    uint64_t number, length;
    if (head->kind == WAN_PART_STATE) return take_state(owner, bytes, head->length);
    if (head->kind != WAN_PART_RECORDS || head->length < 16) {
        owner->wrong++;
        return WAN_OK;
    }
    memcpy(&number, bytes, 8);
    memcpy(&length, bytes + 8, 8);
    if (number == 0 || number >= OWNER_ITEMS || owner_item_length(number, length) != head->length) {
        owner->wrong++;
        return WAN_OK;
    }
    for (uint64_t n = 0; n < length; n++)
        if (bytes[16 + n] != pattern(number, n)) {
            owner->wrong++;
            break;
        }
    owner->found[number]++;
    if (!owner->first || number < owner->first) owner->first = number;
    if (number > owner->last) owner->last = number;
    if (number > owner->log.segments[index].highest[0]) owner->log.segments[index].highest[0] = number;
    return WAN_OK;
}

/* Reads a mapping and does not keep it. */
static int leave_mapping(void *context, uint32_t index, const char *path, const uint8_t *base, uint64_t bytes)
{
    return 0;
}

static void note_damage(void *context, const wan_damage *damage) { ((log_owner *)context)->damages++; }

void owner_init(log_owner *owner, memory_disk *disk)
{
    memset(owner, 0, sizeof *owner);
    owner->disk = disk;
    owner->limit = OWNER_LIMIT;
}

wan_status owner_open(log_owner *owner)
{
    memset(owner->found, 0, sizeof owner->found);
    owner->first = owner->last = owner->state = owner->damages = 0;
    owner->wrong = 0;
    wan_log_reader reader = {.owner = owner,
                             .part = take_part,
                             .state = take_state,
                             .salvage = owner->salvage,
                             .damaged = note_damage,
                             .adopt = owner->maps ? leave_mapping : NULL};
    wan_status status = wan_log_open(&owner->log, &owner->disk->env, "log", WAN_LOG_QUEUE, 77, 1, &reader,
                                     &owner->damage, &owner->cut_bytes);
    if (status != WAN_OK || !owner->limit) return status;
    owner->budget = (wan_log_budget){.limit = owner->limit};
    wan_log_share(&owner->log, &owner->budget, 0, 0);
    return WAN_OK;
}

void owner_close(log_owner *owner) { wan_log_close(&owner->log); }

wan_status owner_write(log_owner *owner, uint64_t length)
{
    uint64_t number = owner->accepted + 1, bytes = owner_item_length(number, length);
    uint8_t *item = calloc(1, bytes);
    memcpy(item, &number, 8);
    memcpy(item + 8, &length, 8);
    for (uint64_t n = 0; n < length; n++) item[16 + n] = pattern(number, n);
    wan_part part = {.head = {WAN_PART_RECORDS, 1, bytes}, .bytes = item};
    uint32_t segment;
    wan_status status = wan_log_make_room(&owner->log, wan_parts_length(&part, 1), (const uint8_t *)&owner->state, 8);
    if (status == WAN_OK) {
        owner->attempted = number;
        status = owner->writes ? wan_log_write(&owner->log, &part, 1, &segment)
                               : wan_log_commit(&owner->log, &part, 1, &segment);
    }
    owner->synced = owner->log.synced_commit;
    if (status == WAN_OK) {
        owner->log.segments[segment].highest[0] = number;
        owner->accepted = owner->durable = number;
    }
    free(item);
    return status;
}

wan_status owner_sync(log_owner *owner)
{
    wan_status status = wan_log_sync(&owner->log);
    owner->synced = owner->log.synced_commit;
    return status;
}

void owner_lose_power(log_owner *owner)
{
    if (owner->durable > owner->synced) owner->durable = owner->synced;
}

wan_status owner_drop(log_owner *owner, uint64_t through)
{
    uint32_t drop = 0;
    while (drop < owner->log.writing && owner->log.segments[drop].highest[0] <= through) drop++;
    if (!drop) return WAN_OK;
    /* This holds also if dropping fails, because a new manifest may be found. */
    owner->dropped = through;
    wan_status status = wan_log_drop_first(&owner->log, drop, (const uint8_t *)&through, 8);
    owner->synced = owner->log.synced_commit;
    if (status == WAN_OK) owner->state = through;
    return status;
}

int owner_is_whole(const log_owner *owner)
{
    if (owner->wrong) {
        printf("    %d items came back wrong\n", owner->wrong);
        return 0;
    }
    uint64_t from = owner->first && owner->first <= owner->dropped + 1 ? owner->first : owner->dropped + 1;
    uint64_t to = owner->last > owner->durable ? owner->last : owner->durable;
    for (uint64_t n = from; n <= to; n++)
        if (owner->found[n] != 1) {
            printf("    item %" PRIu64 " was found %u times (found %" PRIu64 "..%" PRIu64 ", durable %" PRIu64
                   ", dropped %" PRIu64 ")\n",
                   n, owner->found[n], owner->first, owner->last, owner->durable, owner->dropped);
            return 0;
        }
    if (owner->last > owner->accepted && owner->last > owner->attempted) {
        printf("    item %" PRIu64 " was never written\n", owner->last);
        return 0;
    }
    return 1;
}

wan_status owner_read_segment(log_owner *owner, uint32_t index)
{
    wan_log_reader reader = {.owner = owner, .part = take_part, .state = take_state};
    return wan_log_read_segment(&owner->log, index, &reader);
}
