/* Fuzzes the check of a lane's frames. If a payload passes, an end of the lane can walk all its sections, entries and
 * items without leaving the payload. */
#include "copies/wan_lane.h"
#include "fuzz.h"
#include "record/wan_failure.h"
#include "region/wan_table.h"

const char *const fuzz_name = "fuzz_lane";

enum { SECTIONS = 4, ENTRIES = 3, FOUND_MAX = 64, ENTRY_MAX = FUZZ_RECORD_MAX + 32 + FOUND_MAX };

static uint8_t bytes[SECTIONS * (sizeof(wan_lane_section) + ENTRIES * ENTRY_MAX) + 64] __attribute__((aligned(8)));

static uint32_t write_verdicts(random_source *source, uint8_t *to)
{
    uint32_t length = 0;
    for (uint32_t n = random_below(source, 3); n; n--) {
        wan_verdict *verdict = (wan_verdict *)(to + length);
        *verdict = (wan_verdict){.sender = n, .verdict = (uint8_t)random_below(source, WAN_VERDICTS_MAX + 1)};
        if (random_below(source, 2)) verdict->is_substituted = 1, verdict->value_length = random_below(source, 20);
        length = (uint32_t)((uint8_t *)wan_verdict_next(verdict) - to);
    }
    return length;
}

static uint64_t write_events(random_source *source, uint8_t *to, uint32_t count)
{
    uint64_t at = 0;
    for (uint32_t n = 0; n < count; n++) {
        wan_image_event *event = (wan_image_event *)(to + at);
        *event = (wan_image_event){.sender = random_below(source, 3), .sequence = n};
        if (!n) event->is_begin = random_below(source, 2);
        if (n) event->length = (uint32_t)fuzz_record(source, (uint8_t *)(event + 1));
        at += sizeof *event + event->length;
    }
    return at;
}

static uint64_t write_entry(random_source *source, uint8_t *to, int is_image)
{
    wan_tail_entry *entry = (wan_tail_entry *)to;
    const uint32_t what = is_image ? 0 : random_below(source, 7);
    *entry = (wan_tail_entry){.kind = what == 5 ? WAN_ENTRY_FORGET : what == 6 ? WAN_ENTRY_CLEAR : WAN_ENTRY_CHANGE};
    if (what >= 2 && what != 5) entry->flags = WAN_TAIL_REMEMBERED;
    if (wan_tail_entry_has_call(entry))
        *wan_tail_entry_call(entry) = (wan_call_identity){.caller = 1 + random_below(source, 3),
                                                          .slot = what == 5 ? 0 : (uint16_t)random_below(source, 9),
                                                          .number = what != 5};
    entry->length = (uint32_t)wan_tail_entry_head(entry);
    if (what == 5) return entry->length;
    if (what == 6) {
        entry->length = WAN_TAIL_CLEAR_BYTES;
        *wan_tail_entry_cleared(entry) = random_below(source, 9);
        return entry->length;
    }
    entry->outcome = (uint8_t)random_below(source, (is_image ? WAN_MISSING : WAN_DESTROYED) + 1);
    if (what == 3) entry->flags |= WAN_TAIL_ROW, entry->row = random_below(source, 9);
    if (what == 4) entry->flags |= WAN_TAIL_FOUND;
    if (what == 4 || is_image) entry->found_length = random_below(source, FOUND_MAX);
    entry->length += (uint32_t)fuzz_record(source, to + entry->length);
    if (!is_image) entry->verdict_length = write_verdicts(source, to + entry->length);
    entry->length += entry->verdict_length;
    entry->length += (uint32_t)wan_align8(wan_tail_entry_found_length(entry));
    return entry->length;
}

static uint64_t write_entries(random_source *source, uint8_t *to, uint32_t count, int is_image)
{
    uint64_t at = 0;
    for (uint32_t n = 0; n < count; n++) at += write_entry(source, to + at, is_image);
    return at;
}

static uint64_t write_answers(random_source *source, uint8_t *to, uint32_t count)
{
    uint64_t at = 0;
    for (uint32_t n = 0; n < count; n++) {
        wan_answer_item *item = (wan_answer_item *)(to + at);
        *item = (wan_answer_item){.kind = n ? (uint8_t)(1 + random_below(source, 2)) : WAN_ITEM_BEGIN};
        if (n) item->call.caller = 1 + random_below(source, 3);
        if (item->kind == WAN_ITEM_ANSWER) {
            item->call.slot = (uint16_t)random_below(source, 9), item->call.number = n, item->sequence = n;
            item->found = (uint8_t)random_below(source, 4);
            if (item->found == WAN_ITEM_FOUND) item->found_length = random_below(source, 100);
            else item->rows = random_below(source, 5), item->applied = random_below(source, item->rows + 1);
        }
        at += wan_answer_item_size(item);
    }
    return at;
}

static uint64_t build(random_source *source, uint8_t type)
{
    const uint32_t count = 1 + random_below(source, SECTIONS);
    uint8_t *at = bytes;
    memset(bytes, 0, sizeof bytes);
    if (type == WAN_FRAME_LANE_CHANGES || type == WAN_FRAME_LANE_ANSWER || type == WAN_FRAME_LANE_SETTLED) {
        *(wan_lane_head *)at = (wan_lane_head){.count = count};
        at += sizeof(wan_lane_head);
    }
    for (uint32_t n = 0; n < count; n++) {
        if (type == WAN_FRAME_LANE_CHANGES) {
            wan_lane_section *section = (wan_lane_section *)at;
            *section = (wan_lane_section){.first = 1 + random_next(source) / 4, .count = random_below(source, ENTRIES)};
            section->counted = random_next(source) / 4;
            section->heard = random_next(source) % (section->counted + 1);
            section->bytes = (uint32_t)write_entries(source, (uint8_t *)(section + 1), section->count, 0);
            at += sizeof *section + section->bytes;
        } else if (type == WAN_FRAME_LANE_ANSWER) {
            *(wan_lane_answer *)at = (wan_lane_answer){.kind = (uint8_t)random_below(source, WAN_ANSWER_KINDS)};
            at += sizeof(wan_lane_answer);
        } else if (type == WAN_FRAME_LANE_SETTLED) {
            wan_lane_settled *settled = (wan_lane_settled *)at;
            *settled = (wan_lane_settled){
                .sender = n, .life = 1, .after = random_below(source, 9), .through = 99 + random_next(source) / 4};
            settled->explained = settled->after + random_below(source, 9);
            settled->exceptions = random_below(source, 4), settled->leads = (uint8_t)random_below(source, 2);
            wan_exception *each = (wan_exception *)(settled + 1);
            for (uint32_t k = 0; k < settled->exceptions; k++, each++)
                *each = (wan_exception){20 + 20 * k, 1 + random_below(source, 20),
                                        random_below(source, 2) ? WAN_HOLE_PARKED_FOR(random_below(source, 8))
                                                                : 1 + random_below(source, 6)};
            at = (uint8_t *)each;
        } else if (type == WAN_FRAME_LANE_REGIONS) {
            wan_lane_region *region = (wan_lane_region *)at;
            *region = (wan_lane_region){random_below(source, WAN_LANE_REGIONS_MAX), 1, 1 + random_below(source, 40), 0};
            at += sizeof *region + wan_align8(region->name_length);
        }
    }
    if (type == WAN_FRAME_LANE_IMAGE) {
        wan_lane_image *image = (wan_lane_image *)at;
        *image =
            (wan_lane_image){.transfer = 1, .part = (uint8_t)random_below(source, WAN_IMAGE_PARTS), .count = count};
        image->through = SECTIONS + random_below(source, 9); /* Nothing in it is newer. */
        if (image->part == WAN_IMAGE_SHRUNK) image->bytes = count * (uint32_t)sizeof(wan_shrunk);
        else if (image->part == WAN_IMAGE_ANSWERS)
            image->bytes = (uint32_t)write_answers(source, at + sizeof *image, count);
        else if (image->part == WAN_IMAGE_EVENTS)
            image->bytes = (uint32_t)write_events(source, at + sizeof *image, count);
        else image->bytes = (uint32_t)write_entries(source, at + sizeof *image, count, 1);
        at += sizeof *image + image->bytes;
    }
    return (uint64_t)(at - bytes);
}

static const uint8_t *touch_entries(const uint8_t *at, uint32_t count, int is_image)
{
    for (uint32_t n = 0; n < count; n++) {
        const wan_tail_entry *entry = (const wan_tail_entry *)at;
        FUZZ_CHECK(entry->length % 8 == 0 && entry->outcome <= (is_image ? WAN_MISSING : WAN_DESTROYED));
        if (wan_tail_entry_has_call(entry)) FUZZ_CHECK(wan_tail_entry_call(entry)->caller != 0);
        if (entry->kind == WAN_ENTRY_CHANGE) {
            const uint8_t *record = (const uint8_t *)wan_tail_entry_record(entry);
            fuzz_touch_record(record, entry->length - wan_tail_entry_head(entry));
            const wan_verdict *verdict = wan_tail_entry_verdicts(entry);
            const uint8_t *behind = (const uint8_t *)verdict + entry->verdict_length;
            for (; (const uint8_t *)verdict < behind; verdict = wan_verdict_next(verdict))
                fuzz_touch((const uint8_t *)(verdict + 1), verdict->value_length);
            FUZZ_CHECK((const uint8_t *)verdict == behind);
            fuzz_touch(wan_tail_entry_found(entry), wan_tail_entry_found_length(entry));
            FUZZ_CHECK(wan_tail_entry_found(entry)
                       == record + wan_record_length(wan_tail_entry_record(entry)) + entry->verdict_length);
        } else if (entry->kind == WAN_ENTRY_CLEAR) {
            FUZZ_CHECK(!is_image && entry->length == WAN_TAIL_CLEAR_BYTES);
            fuzz_touch((const uint8_t *)wan_tail_entry_cleared(entry), sizeof(uint64_t));
        }
        at += entry->length;
    }
    return at;
}

static void touch(uint8_t type, const uint8_t *payload, uint64_t length)
{
    const uint8_t *at = payload, *end = payload + length;
    if (type == WAN_FRAME_LANE_CHANGES) {
        const uint32_t count = ((const wan_lane_head *)payload)->count;
        at += sizeof(wan_lane_head);
        for (uint32_t n = 0; n < count; n++) {
            const wan_lane_section *section = (const wan_lane_section *)at;
            FUZZ_CHECK(section->first != 0 && section->heard <= section->counted);
            at = touch_entries((const uint8_t *)(section + 1), section->count, 0);
        }
    } else if (type == WAN_FRAME_LANE_IMAGE) {
        const wan_lane_image *image = (const wan_lane_image *)payload;
        if (image->part == WAN_IMAGE_ENTRIES) at = touch_entries((const uint8_t *)(image + 1), image->count, 1);
        else if (image->part == WAN_IMAGE_ANSWERS) {
            wan_answers answers = {0};
            FUZZ_CHECK(wan_answers_unpack(&answers, (const wan_answer_item *)(image + 1), image->count) == WAN_OK);
            FUZZ_CHECK(answers.count + answers.refused_count <= image->count);
            for (uint32_t n = 0; n < answers.capacity; n++) FUZZ_CHECK(answers.items[n].sequence <= image->through);
            wan_answers_close(&answers);
            at += length;
        } else if (image->part == WAN_IMAGE_EVENTS) {
            at += sizeof *image;
            for (uint32_t n = 0; n < image->count; n++) {
                const wan_image_event *event = (const wan_image_event *)at;
                at += sizeof *event;
                FUZZ_CHECK(event->sequence <= image->through);
                if (event->length) fuzz_touch_record(at, event->length);
                at += event->length;
            }
        } else at += sizeof *image + image->count * sizeof(wan_shrunk);
    } else if (type == WAN_FRAME_LANE_ANSWER) {
        at += sizeof(wan_lane_head) + ((const wan_lane_head *)payload)->count * sizeof(wan_lane_answer);
    } else if (type == WAN_FRAME_LANE_SETTLED) {
        const uint32_t count = ((const wan_lane_head *)payload)->count;
        at += sizeof(wan_lane_head);
        for (uint32_t n = 0; n < count; n++) {
            const wan_lane_settled *settled = (const wan_lane_settled *)at;
            FUZZ_CHECK(settled->after < settled->through && settled->after <= settled->explained);
            uint64_t last = settled->explained;
            const wan_exception *each = (const wan_exception *)(settled + 1);
            for (uint32_t k = 0; k < settled->exceptions; k++, each++) {
                FUZZ_CHECK(each->first > last && each->count && WAN_HOLE_KIND(each->reason) < WAN_HOLE_REASONS);
                FUZZ_CHECK(WAN_HOLE_FAILURE(each->reason) < WAN_PARK_PARTITIONS);
                FUZZ_CHECK(WAN_HOLE_KIND(each->reason) == WAN_HOLE_PARKED || !WAN_HOLE_FAILURE(each->reason));
                last = each->first + each->count - 1;
                FUZZ_CHECK(last <= settled->through);
            }
            at = (const uint8_t *)each;
        }
    } else if (type == WAN_FRAME_LANE_REGIONS) {
        while (at < end) {
            const wan_lane_region *region = (const wan_lane_region *)at;
            FUZZ_CHECK(region->number < WAN_LANE_REGIONS_MAX);
            fuzz_touch((const uint8_t *)(region + 1), region->name_length);
            at += sizeof *region + wan_align8(region->name_length);
        }
    }
    FUZZ_CHECK(at == end);
}

void fuzz_once(random_source *source)
{
    const uint8_t type = (uint8_t)(WAN_FRAME_LANE_REGIONS + random_below(source, 5));
    uint64_t length = build(source, type);
    FUZZ_CHECK(wan_lane_check(type, bytes, length) == WAN_OK);
    fuzz_mutate(source, bytes, random_below(source, 2) && length > 100 ? 100 : (size_t)length);
    if (!random_below(source, 6)) length = random_below(source, (uint32_t)length + 1);
    uint8_t *exact = fuzz_exact(bytes, length);
    if (wan_lane_check(type, exact, length) == WAN_OK) touch(type, exact, length);
    free(exact);
}
