/* Owns the checks of a lane's frames. */
#include "copies/wan_lane.h"

#include <inttypes.h>

#include "record/wan_failure.h"
#include "region/wan_table.h"

#define SEQUENCE_MAX (UINT64_MAX / 2) /* Nobody makes so many changes, and a sum with a count stays a number. */

/* `is_image`: the entries are those of a table, which no call made. */
static wan_status check_entries(const uint8_t *at, uint64_t bytes, uint32_t count, int is_image)
{
    for (uint32_t n = 0; n < count; n++) {
        wan_status status = wan_tail_entry_check(at, bytes, is_image);
        if (status != WAN_OK) return status;
        const wan_tail_entry *entry = (const wan_tail_entry *)at;
        at += entry->length, bytes -= entry->length;
    }
    return bytes ? WAN_FAIL(WAN_CORRUPT, "a section of a lane has %" PRIu64 " bytes too many", bytes) : WAN_OK;
}

static wan_status check_regions(const uint8_t *at, uint64_t left)
{
    while (left) {
        const wan_lane_region *region = (const wan_lane_region *)at;
        if (left < sizeof *region)
            return WAN_FAIL(WAN_CORRUPT, "a region of a lane is cut off: %" PRIu64 " bytes are left", left);
        if (region->number >= WAN_LANE_REGIONS_MAX || region->reserved || region->name_length == 0
            || region->name_length > WAN_LANE_NAME_BYTES_MAX || region->buckets == 0)
            return WAN_FAIL(WAN_CORRUPT,
                            "region number %" PRIu32 " of a lane has a name of %" PRIu32 " bytes and %" PRIu32
                            " buckets",
                            region->number, region->name_length, region->buckets);
        const uint64_t length = sizeof *region + wan_align8(region->name_length);
        if (length > left)
            return WAN_FAIL(WAN_CORRUPT, "the name of region number %" PRIu32 " of a lane is cut off", region->number);
        at += length, left -= length;
    }
    return WAN_OK;
}

static wan_status check_head(const uint8_t *payload, uint64_t length, uint64_t item_bytes, uint64_t *behind)
{
    const wan_lane_head *head = (const wan_lane_head *)payload;
    if (length < sizeof *head) return WAN_FAIL(WAN_CORRUPT, "a frame of a lane has %" PRIu64 " bytes", length);
    *behind = sizeof *head + head->count * item_bytes;
    if (head->count == 0 || head->count > WAN_LANE_SECTIONS_MAX || head->reserved || *behind > length)
        return WAN_FAIL(WAN_CORRUPT, "a frame of a lane of %" PRIu64 " bytes says that it has %" PRIu32 " parts",
                        length, head->count);
    return WAN_OK;
}

static wan_status check_changes(const uint8_t *payload, uint64_t length)
{
    uint64_t least = 0;
    wan_status status = check_head(payload, length, sizeof(wan_lane_section), &least);
    if (status != WAN_OK) return status;
    const uint32_t count = ((const wan_lane_head *)payload)->count;
    uint64_t at = sizeof(wan_lane_head);
    for (uint32_t n = 0; n < count; n++) {
        const wan_lane_section *section = (const wan_lane_section *)(payload + at);
        if (length - at < sizeof *section)
            return WAN_FAIL(WAN_CORRUPT, "section %" PRIu32 " of a lane is cut off: %" PRIu64 " bytes are left", n,
                            length - at);
        at += sizeof *section;
        if (section->first == 0 || section->first > SEQUENCE_MAX)
            return WAN_FAIL(WAN_CORRUPT, "section %" PRIu32 " of a lane begins with sequence %" PRIu64, n,
                            section->first);
        if (section->heard > section->counted)
            return WAN_FAIL(WAN_CORRUPT,
                            "section %" PRIu32 " of a lane says that listeners heard sequence %" PRIu64
                            ", and that %" PRIu64 " counts",
                            n, section->heard, section->counted);
        if (section->bytes > length - at || section->bytes % 8)
            return WAN_FAIL(WAN_CORRUPT,
                            "section %" PRIu32 " of a lane has %" PRIu32 " bytes where %" PRIu64 " are left", n,
                            section->bytes, length - at);
        if ((status = check_entries(payload + at, section->bytes, section->count, 0)) != WAN_OK) return status;
        at += section->bytes;
    }
    return at == length
               ? WAN_OK
               : WAN_FAIL(WAN_CORRUPT, "a frame of a lane has %" PRIu64 " bytes behind its sections", length - at);
}

/* `through`: the stream was sent up to there, and nothing in the image is newer. */
static wan_status check_answers(const uint8_t *at, uint64_t bytes, uint32_t count, uint64_t through)
{
    for (uint32_t n = 0; n < count; n++) {
        const wan_answer_item *item = (const wan_answer_item *)at;
        if (bytes < sizeof *item || item->found_length > WAN_ANSWERS_BYTES_MAX || wan_answer_item_size(item) > bytes)
            return WAN_FAIL(WAN_CORRUPT, "a remembered call of an image is cut off: %" PRIu64 " bytes are left", bytes);
        const int is_answer = item->kind == WAN_ITEM_ANSWER;
        if (item->kind >= WAN_ITEM_KINDS || item->outcome > WAN_FORGOTTEN || item->found_form >= WAN_FORM_COUNT
            || item->found > (WAN_ITEM_FOUND | WAN_ITEM_LOST) || item->rows == UINT32_MAX || item->sequence > through
            || item->applied > (item->rows ? item->rows : 1) || (item->found_length && item->found != WAN_ITEM_FOUND)
            || (!is_answer && item->found_length) || !is_answer != !item->call.number
            || (item->kind == WAN_ITEM_BEGIN) != !item->call.caller)
            return WAN_FAIL(WAN_CORRUPT,
                            "a remembered call of an image is of kind %u and has the outcome %u, the form %u and "
                            "the sequence %" PRIu64,
                            item->kind, item->outcome, item->found_form, item->sequence);
        const uint64_t size = wan_answer_item_size(item);
        at += size, bytes -= size;
    }
    return bytes ? WAN_FAIL(WAN_CORRUPT, "an image has %" PRIu64 " bytes behind its remembered calls", bytes) : WAN_OK;
}

static wan_status check_events(const uint8_t *at, uint64_t left, uint32_t count, uint64_t through)
{
    for (uint32_t n = 0; n < count; n++) {
        const wan_image_event *event = (const wan_image_event *)at;
        if (left < sizeof *event || event->length > left - sizeof *event)
            return WAN_FAIL(WAN_CORRUPT, "a queued event of an image is cut off: %" PRIu64 " bytes are left", left);
        if (event->is_begin > !event->length || event->sequence > through || (event->length && !event->sequence))
            return WAN_FAIL(WAN_CORRUPT,
                            "a queued event of an image has sequence %" PRIu64 ", and the image goes through %" PRIu64,
                            event->sequence, through);
        if (event->length) {
            const uint8_t *record = (const uint8_t *)(event + 1);
            wan_status status = wan_record_check(record, event->length);
            if (status != WAN_OK) return status;
            if (wan_record_length((const wan_record *)record) != event->length)
                return WAN_FAIL(WAN_CORRUPT, "a queued event of an image has %" PRIu32 " bytes", event->length);
        }
        at += sizeof *event + event->length;
        left -= sizeof *event + event->length;
    }
    return left ? WAN_FAIL(WAN_CORRUPT, "an image has %" PRIu64 " bytes behind its queued events", left) : WAN_OK;
}

static wan_status check_image(const uint8_t *payload, uint64_t length)
{
    const wan_lane_image *image = (const wan_lane_image *)payload;
    if (length < sizeof *image || image->bytes != length - sizeof *image)
        return WAN_FAIL(WAN_CORRUPT, "a piece of an image has %" PRIu64 " bytes", length);
    if (image->part >= WAN_IMAGE_PARTS || image->is_last > 1 || image->reserved[0] || image->reserved[1]
        || image->transfer == 0 || image->through > SEQUENCE_MAX)
        return WAN_FAIL(WAN_CORRUPT,
                        "a piece of an image is of part %u (%u), of transfer %" PRIu64 " and through %" PRIu64,
                        image->part, image->is_last, image->transfer, image->through);
    if (image->part == WAN_IMAGE_ENTRIES)
        return check_entries((const uint8_t *)(image + 1), image->bytes, image->count, 1);
    if (image->part == WAN_IMAGE_ANSWERS)
        return check_answers((const uint8_t *)(image + 1), image->bytes, image->count, image->through);
    if (image->part == WAN_IMAGE_EVENTS)
        return check_events((const uint8_t *)(image + 1), image->bytes, image->count, image->through);
    if (image->bytes != (uint64_t)image->count * sizeof(wan_shrunk))
        return WAN_FAIL(WAN_CORRUPT, "%" PRIu32 " shrunk tombstones of an image in %" PRIu32 " bytes", image->count,
                        image->bytes);
    return WAN_OK;
}

static wan_status check_answer(const uint8_t *payload, uint64_t length)
{
    uint64_t behind = 0;
    wan_status status = check_head(payload, length, sizeof(wan_lane_answer), &behind);
    if (status != WAN_OK) return status;
    if (behind != length)
        return WAN_FAIL(WAN_CORRUPT, "an answer of a lane has %" PRIu64 " bytes too many", length - behind);
    const wan_lane_answer *answer = (const wan_lane_answer *)(payload + sizeof(wan_lane_head));
    for (uint32_t n = 0; n < ((const wan_lane_head *)payload)->count; n++)
        if (answer[n].kind >= WAN_ANSWER_KINDS)
            return WAN_FAIL(WAN_CORRUPT, "an answer of a lane is of kind %u", answer[n].kind);
    return WAN_OK;
}

static int is_reason(uint32_t reason)
{
    const uint32_t kind = WAN_HOLE_KIND(reason);
    if (kind == 0 || kind == WAN_HOLE_MOVED || kind >= WAN_HOLE_REASONS) return 0;
    return reason == kind || (kind == WAN_HOLE_PARKED && WAN_HOLE_FAILURE(reason) < WAN_PARK_PARTITIONS);
}

static wan_status check_exceptions(const wan_lane_settled *settled, const wan_exception *each)
{
    uint64_t last = settled->explained;
    for (uint32_t n = 0; n < settled->exceptions; n++, each++) {
        if (each->first <= last || each->first > settled->through || each->count == 0
            || each->count - 1 > settled->through - each->first || !is_reason(each->reason))
            return WAN_FAIL(WAN_CORRUPT,
                            "a lane tells that %" PRIu32 " events of bucket %" PRIu32 " from sequence %" PRIu64
                            " on left for reason %" PRIu32,
                            each->count, settled->bucket, each->first, each->reason);
        last = each->first + each->count - 1;
    }
    return WAN_OK;
}

static wan_status check_settled(const uint8_t *payload, uint64_t length)
{
    uint64_t least = 0;
    wan_status status = check_head(payload, length, sizeof(wan_lane_settled), &least);
    const uint8_t *at = payload + sizeof(wan_lane_head), *end = payload + length;
    for (uint32_t n = 0; status == WAN_OK && n < ((const wan_lane_head *)payload)->count; n++) {
        const wan_lane_settled *settled = (const wan_lane_settled *)at;
        if ((uint64_t)(end - at) < sizeof *settled)
            return WAN_FAIL(WAN_CORRUPT, "what a lane tells as settled is cut off in item %" PRIu32, n);
        at = (const uint8_t *)(settled + 1);
        if (settled->through <= settled->after || settled->through > SEQUENCE_MAX || settled->explained < settled->after
            || settled->explained > settled->through || settled->leads > 1 || settled->reserved[0]
            || settled->reserved[1] || settled->reserved[2])
            return WAN_FAIL(WAN_CORRUPT,
                            "a lane tells that bucket %" PRIu32 " is settled through sequence %" PRIu64
                            ", and why from %" PRIu64 " on",
                            settled->bucket, settled->through, settled->explained);
        const uint64_t bytes = settled->exceptions * (uint64_t)sizeof(wan_exception);
        if (settled->exceptions > WAN_EXCEPTIONS_MAX || bytes > (uint64_t)(end - at))
            return WAN_FAIL(WAN_CORRUPT, "a lane tells %" PRIu32 " exceptions of bucket %" PRIu32, settled->exceptions,
                            settled->bucket);
        status = check_exceptions(settled, (const wan_exception *)at);
        at += bytes;
    }
    if (status == WAN_OK && at != end)
        return WAN_FAIL(WAN_CORRUPT, "what a lane tells as settled has %" PRIu64 " bytes too many",
                        (uint64_t)(end - at));
    return status;
}

wan_status wan_lane_check(uint8_t type, const uint8_t *payload, uint64_t length)
{
    if (type == WAN_FRAME_LANE_CHANGES) return check_changes(payload, length);
    if (type == WAN_FRAME_LANE_IMAGE) return check_image(payload, length);
    if (type == WAN_FRAME_LANE_ANSWER) return check_answer(payload, length);
    if (type == WAN_FRAME_LANE_REGIONS) return check_regions(payload, length);
    if (type == WAN_FRAME_LANE_SETTLED) return check_settled(payload, length);
    return length ? WAN_FAIL(WAN_CORRUPT, "a ping of a lane has %" PRIu64 " bytes", length) : WAN_OK;
}
