/* Owns the checks of a replication link's frames. */
#include "replication/wan_repl_link.h"

#include <inttypes.h>

#include "record/wan_failure.h"
#include "region/wan_table.h"

#define SEQUENCE_MAX (UINT64_MAX / 2) /* A bucket never has so many changes, and a sum with a count stays a number. */

/* `is_snapshot`: the entries are from a table, and no call made the entries. */
static wan_status check_entries(const uint8_t *at, uint64_t bytes, uint32_t count, int is_snapshot)
{
    for (uint32_t n = 0; n < count; n++) {
        wan_status status = wan_changelog_entry_check(at, bytes, is_snapshot);
        if (status != WAN_OK) return status;
        const wan_changelog_entry *entry = (const wan_changelog_entry *)at;
        at += entry->length, bytes -= entry->length;
    }
    return bytes ? WAN_FAIL(WAN_CORRUPT, "a section of a replication link has %" PRIu64 " bytes too many", bytes)
                 : WAN_OK;
}

static wan_status check_regions(const uint8_t *at, uint64_t left)
{
    while (left) {
        const wan_repl_region *region = (const wan_repl_region *)at;
        if (left < sizeof *region)
            return WAN_FAIL(WAN_CORRUPT, "a region of a replication link is cut off: %" PRIu64 " bytes are left", left);
        if (region->number >= WAN_REPL_REGIONS_MAX || region->reserved || region->name_length == 0
            || region->name_length > WAN_REPL_NAME_BYTES_MAX || region->buckets == 0)
            return WAN_FAIL(WAN_CORRUPT,
                            "region number %" PRIu32 " of a replication link has a name of %" PRIu32
                            " bytes and %" PRIu32 " buckets",
                            region->number, region->name_length, region->buckets);
        const uint64_t length = sizeof *region + wan_align8(region->name_length);
        if (length > left)
            return WAN_FAIL(WAN_CORRUPT, "the name of region number %" PRIu32 " of a replication link is cut off",
                            region->number);
        at += length, left -= length;
    }
    return WAN_OK;
}

static wan_status check_head(const uint8_t *payload, uint64_t length, uint64_t item_bytes, uint64_t *behind)
{
    const wan_repl_head *head = (const wan_repl_head *)payload;
    if (length < sizeof *head)
        return WAN_FAIL(WAN_CORRUPT, "a frame of a replication link has %" PRIu64 " bytes", length);
    *behind = sizeof *head + head->count * item_bytes;
    if (head->count == 0 || head->count > WAN_REPL_SECTIONS_MAX || head->reserved || *behind > length)
        return WAN_FAIL(WAN_CORRUPT,
                        "a frame of a replication link of %" PRIu64 " bytes says that it has %" PRIu32 " parts", length,
                        head->count);
    return WAN_OK;
}

static wan_status check_changes(const uint8_t *payload, uint64_t length)
{
    uint64_t least = 0;
    wan_status status = check_head(payload, length, sizeof(wan_repl_section), &least);
    if (status != WAN_OK) return status;
    const uint32_t count = ((const wan_repl_head *)payload)->count;
    uint64_t at = sizeof(wan_repl_head);
    for (uint32_t n = 0; n < count; n++) {
        const wan_repl_section *section = (const wan_repl_section *)(payload + at);
        if (length - at < sizeof *section)
            return WAN_FAIL(WAN_CORRUPT,
                            "section %" PRIu32 " of a replication link is cut off: %" PRIu64 " bytes are left", n,
                            length - at);
        at += sizeof *section;
        if (section->first == 0 || section->first > SEQUENCE_MAX)
            return WAN_FAIL(WAN_CORRUPT, "section %" PRIu32 " of a replication link begins with sequence %" PRIu64, n,
                            section->first);
        if (section->notified > section->high_watermark)
            return WAN_FAIL(WAN_CORRUPT,
                            "section %" PRIu32 " of a replication link says that listeners were notified through"
                            " sequence %" PRIu64 ", and the high watermark %" PRIu64 " is lower",
                            n, section->notified, section->high_watermark);
        if (section->bytes > length - at || section->bytes % 8)
            return WAN_FAIL(WAN_CORRUPT,
                            "section %" PRIu32 " of a replication link has %" PRIu32 " bytes where %" PRIu64
                            " are left",
                            n, section->bytes, length - at);
        if ((status = check_entries(payload + at, section->bytes, section->count, 0)) != WAN_OK) return status;
        at += section->bytes;
    }
    return at == length
               ? WAN_OK
               : WAN_FAIL(WAN_CORRUPT, "a frame of a replication link has %" PRIu64 " bytes behind its sections",
                          length - at);
}

/* `through`: the stream through this sequence was sent before, and the snapshot has nothing newer. */
static wan_status check_answers(const uint8_t *at, uint64_t bytes, uint32_t count, uint64_t through)
{
    for (uint32_t n = 0; n < count; n++) {
        const wan_answer_item *item = (const wan_answer_item *)at;
        if (bytes < sizeof *item || item->found_length > WAN_ANSWERS_BYTES_MAX || wan_answer_item_size(item) > bytes)
            return WAN_FAIL(WAN_CORRUPT, "a remembered call of a snapshot is cut off: %" PRIu64 " bytes are left",
                            bytes);
        const int is_answer = item->kind == WAN_ITEM_ANSWER;
        if (item->kind >= WAN_ITEM_KINDS || item->outcome > WAN_FORGOTTEN || item->found_form >= WAN_FORM_COUNT
            || item->found > (WAN_ITEM_FOUND | WAN_ITEM_LOST) || item->rows == UINT32_MAX || item->sequence > through
            || item->applied > (item->rows ? item->rows : 1) || (item->found_length && item->found != WAN_ITEM_FOUND)
            || (!is_answer && item->found_length) || !is_answer != !item->call.number
            || (item->kind == WAN_ITEM_BEGIN) != !item->call.caller)
            return WAN_FAIL(WAN_CORRUPT,
                            "a remembered call of a snapshot is of kind %u and has the outcome %u, the form %u and "
                            "the sequence %" PRIu64,
                            item->kind, item->outcome, item->found_form, item->sequence);
        const uint64_t size = wan_answer_item_size(item);
        at += size, bytes -= size;
    }
    return bytes ? WAN_FAIL(WAN_CORRUPT, "a snapshot has %" PRIu64 " bytes behind its remembered calls", bytes)
                 : WAN_OK;
}

static wan_status check_events(const uint8_t *at, uint64_t left, uint32_t count, uint64_t through)
{
    for (uint32_t n = 0; n < count; n++) {
        const wan_snapshot_event *event = (const wan_snapshot_event *)at;
        if (left < sizeof *event || event->length > left - sizeof *event)
            return WAN_FAIL(WAN_CORRUPT, "a queued event of a snapshot is cut off: %" PRIu64 " bytes are left", left);
        if (event->is_begin > !event->length || event->sequence > through || (event->length && !event->sequence))
            return WAN_FAIL(WAN_CORRUPT,
                            "a queued event of a snapshot has sequence %" PRIu64
                            ", and the snapshot goes through %" PRIu64,
                            event->sequence, through);
        if (event->length) {
            const uint8_t *record = (const uint8_t *)(event + 1);
            wan_status status = wan_record_check(record, event->length);
            if (status != WAN_OK) return status;
            if (wan_record_length((const wan_record *)record) != event->length)
                return WAN_FAIL(WAN_CORRUPT, "a queued event of a snapshot has %" PRIu32 " bytes", event->length);
        }
        at += sizeof *event + event->length;
        left -= sizeof *event + event->length;
    }
    return left ? WAN_FAIL(WAN_CORRUPT, "a snapshot has %" PRIu64 " bytes behind its queued events", left) : WAN_OK;
}

static wan_status check_snapshot(const uint8_t *payload, uint64_t length)
{
    const wan_repl_snapshot *snapshot = (const wan_repl_snapshot *)payload;
    if (length < sizeof *snapshot || snapshot->bytes != length - sizeof *snapshot)
        return WAN_FAIL(WAN_CORRUPT, "a piece of a snapshot has %" PRIu64 " bytes", length);
    if (snapshot->part >= WAN_SNAPSHOT_PARTS || snapshot->is_last > 1 || snapshot->reserved[0] || snapshot->reserved[1]
        || snapshot->transfer == 0 || snapshot->through > SEQUENCE_MAX)
        return WAN_FAIL(WAN_CORRUPT,
                        "a piece of a snapshot is of part %u (%u), of transfer %" PRIu64 " and through %" PRIu64,
                        snapshot->part, snapshot->is_last, snapshot->transfer, snapshot->through);
    if (snapshot->part == WAN_SNAPSHOT_ENTRIES)
        return check_entries((const uint8_t *)(snapshot + 1), snapshot->bytes, snapshot->count, 1);
    if (snapshot->part == WAN_SNAPSHOT_ANSWERS)
        return check_answers((const uint8_t *)(snapshot + 1), snapshot->bytes, snapshot->count, snapshot->through);
    if (snapshot->part == WAN_SNAPSHOT_EVENTS)
        return check_events((const uint8_t *)(snapshot + 1), snapshot->bytes, snapshot->count, snapshot->through);
    if (snapshot->bytes != (uint64_t)snapshot->count * sizeof(wan_shrunk))
        return WAN_FAIL(WAN_CORRUPT, "%" PRIu32 " shrunk tombstones of a snapshot in %" PRIu32 " bytes",
                        snapshot->count, snapshot->bytes);
    return WAN_OK;
}

static wan_status check_answer(const uint8_t *payload, uint64_t length)
{
    uint64_t behind = 0;
    wan_status status = check_head(payload, length, sizeof(wan_repl_answer), &behind);
    if (status != WAN_OK) return status;
    if (behind != length)
        return WAN_FAIL(WAN_CORRUPT, "an answer of a replication link has %" PRIu64 " bytes too many", length - behind);
    const wan_repl_answer *answer = (const wan_repl_answer *)(payload + sizeof(wan_repl_head));
    for (uint32_t n = 0; n < ((const wan_repl_head *)payload)->count; n++)
        if (answer[n].kind >= WAN_ANSWER_KINDS)
            return WAN_FAIL(WAN_CORRUPT, "an answer of a replication link is of kind %u", answer[n].kind);
    return WAN_OK;
}

static int is_reason(uint32_t reason)
{
    const uint32_t kind = WAN_HOLE_KIND(reason);
    if (kind == 0 || kind == WAN_HOLE_MOVED || kind >= WAN_HOLE_REASONS) return 0;
    return reason == kind || (kind == WAN_HOLE_PARKED && WAN_HOLE_FAILURE(reason) < WAN_PARK_PARTITIONS);
}

static wan_status check_exceptions(const wan_repl_removal *removal, const wan_exception *each)
{
    uint64_t last = removal->explained;
    for (uint32_t n = 0; n < removal->exceptions; n++, each++) {
        if (each->first <= last || each->first > removal->through || each->count == 0
            || each->count - 1 > removal->through - each->first || !is_reason(each->reason))
            return WAN_FAIL(WAN_CORRUPT,
                            "a replication link tells that %" PRIu32 " events of bucket %" PRIu32
                            " from sequence %" PRIu64 " on left for reason %" PRIu32,
                            each->count, removal->bucket, each->first, each->reason);
        last = each->first + each->count - 1;
    }
    return WAN_OK;
}

static wan_status check_removals(const uint8_t *payload, uint64_t length)
{
    uint64_t least = 0;
    wan_status status = check_head(payload, length, sizeof(wan_repl_removal), &least);
    const uint8_t *at = payload + sizeof(wan_repl_head), *end = payload + length;
    for (uint32_t n = 0; status == WAN_OK && n < ((const wan_repl_head *)payload)->count; n++) {
        const wan_repl_removal *removal = (const wan_repl_removal *)at;
        if ((uint64_t)(end - at) < sizeof *removal)
            return WAN_FAIL(WAN_CORRUPT, "the list of removals of a replication link is cut off in item %" PRIu32, n);
        at = (const uint8_t *)(removal + 1);
        if (removal->through <= removal->after || removal->through > SEQUENCE_MAX || removal->explained < removal->after
            || removal->explained > removal->through || removal->leads > 1 || removal->reserved[0]
            || removal->reserved[1] || removal->reserved[2])
            return WAN_FAIL(WAN_CORRUPT,
                            "a replication link reports removals of bucket %" PRIu32 " through sequence %" PRIu64
                            ", with reasons from %" PRIu64 " on",
                            removal->bucket, removal->through, removal->explained);
        const uint64_t bytes = removal->exceptions * (uint64_t)sizeof(wan_exception);
        if (removal->exceptions > WAN_EXCEPTIONS_MAX || bytes > (uint64_t)(end - at))
            return WAN_FAIL(WAN_CORRUPT, "a replication link reports %" PRIu32 " exceptions of bucket %" PRIu32,
                            removal->exceptions, removal->bucket);
        status = check_exceptions(removal, (const wan_exception *)at);
        at += bytes;
    }
    if (status == WAN_OK && at != end)
        return WAN_FAIL(WAN_CORRUPT, "the list of removals of a replication link has %" PRIu64 " bytes too many",
                        (uint64_t)(end - at));
    return status;
}

wan_status wan_repl_check(uint8_t type, const uint8_t *payload, uint64_t length)
{
    if (type == WAN_FRAME_REPL_CHANGES) return check_changes(payload, length);
    if (type == WAN_FRAME_REPL_SNAPSHOT) return check_snapshot(payload, length);
    if (type == WAN_FRAME_REPL_ANSWER) return check_answer(payload, length);
    if (type == WAN_FRAME_REPL_REGIONS) return check_regions(payload, length);
    if (type == WAN_FRAME_REPL_REMOVAL) return check_removals(payload, length);
    return length ? WAN_FAIL(WAN_CORRUPT, "a ping of a replication link has %" PRIu64 " bytes", length) : WAN_OK;
}
