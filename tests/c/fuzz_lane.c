/* Fuzzes the check of a lane's frames. If a payload passes, an end of the lane can walk all its sections, entries and
 * items without leaving the payload. */
#include "copies/wan_lane.h"
#include "fuzz.h"
#include "region/wan_table.h"

const char *const fuzz_name = "fuzz_lane";

enum { SECTIONS = 4, ENTRIES = 3, FOUND_MAX = 64, ENTRY_MAX = FUZZ_RECORD_MAX + 16 + FOUND_MAX };

static uint8_t bytes[SECTIONS * (sizeof(wan_lane_section) + ENTRIES * ENTRY_MAX) + 64] __attribute__((aligned(8)));

static uint64_t write_entry(random_source *source, uint8_t *to, int is_image)
{
    wan_tail_entry *entry = (wan_tail_entry *)to;
    if (!is_image && random_below(source, 8) == 0) {
        *entry = (wan_tail_entry){
            .length = WAN_TAIL_CLEAR_BYTES, .outcome = 2, .flags = WAN_TAIL_REMEMBERED | WAN_TAIL_CLEAR};
        *(wan_tail_clear *)(entry + 1) = (wan_tail_clear){{1, 2, random_next(source)}, random_below(source, 9)};
        return entry->length;
    }
    const uint64_t record = fuzz_record(source, to + sizeof *entry);
    *entry = (wan_tail_entry){.found_length = random_below(source, 3) ? 0 : random_below(source, FOUND_MAX),
                              .outcome = (uint8_t)random_below(source, WAN_FORGOTTEN + 1),
                              .flags = (uint8_t)random_below(source, 4)};
    if (random_below(source, 4) == 0)
        entry->flags = WAN_TAIL_REMEMBERED | WAN_TAIL_ROW, entry->row = random_below(source, 9);
    entry->length = (uint32_t)(sizeof *entry + record + wan_align8(entry->found_length));
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
        *item = (wan_answer_item){.call = {1, 2, n}, .sequence = n, .age_us = random_next(source), .is_first = n == 0};
        if (random_below(source, 2)) item->has_found = 1, item->found_length = random_below(source, 100);
        else item->rows = random_below(source, 5), item->applied = item->rows;
        at += wan_answer_item_size(item);
    }
    return at;
}

static uint64_t build(random_source *source, uint8_t type)
{
    const uint32_t count = 1 + random_below(source, SECTIONS);
    uint8_t *at = bytes;
    memset(bytes, 0, sizeof bytes);
    if (type == WAN_FRAME_LANE_CHANGES || type == WAN_FRAME_LANE_ANSWER) {
        *(wan_lane_head *)at = (wan_lane_head){.count = count};
        at += sizeof(wan_lane_head);
    }
    for (uint32_t n = 0; n < count; n++) {
        if (type == WAN_FRAME_LANE_CHANGES) {
            wan_lane_section *section = (wan_lane_section *)at;
            *section = (wan_lane_section){.first = 1 + random_next(source) / 4, .count = random_below(source, ENTRIES)};
            section->bytes = (uint32_t)write_entries(source, (uint8_t *)(section + 1), section->count, 0);
            at += sizeof *section + section->bytes;
        } else if (type == WAN_FRAME_LANE_ANSWER) {
            *(wan_lane_answer *)at = (wan_lane_answer){.kind = (uint8_t)random_below(source, WAN_ANSWER_KINDS)};
            at += sizeof(wan_lane_answer);
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
        if (image->part == WAN_IMAGE_SHRUNK) image->bytes = count * (uint32_t)sizeof(wan_shrunk);
        else if (image->part == WAN_IMAGE_ANSWERS)
            image->bytes = (uint32_t)write_answers(source, at + sizeof *image, count);
        else image->bytes = (uint32_t)write_entries(source, at + sizeof *image, count, 1);
        at += sizeof *image + image->bytes;
    }
    return (uint64_t)(at - bytes);
}

static const uint8_t *touch_entries(const uint8_t *at, uint32_t count, int is_image)
{
    for (uint32_t n = 0; n < count; n++) {
        const wan_tail_entry *entry = (const wan_tail_entry *)at;
        FUZZ_CHECK(entry->length % 8 == 0 && entry->outcome <= WAN_FORGOTTEN);
        if (entry->flags & WAN_TAIL_CLEAR) {
            FUZZ_CHECK(!is_image && entry->length == WAN_TAIL_CLEAR_BYTES);
            fuzz_touch((const uint8_t *)(entry + 1), sizeof(wan_tail_clear));
            at += entry->length;
            continue;
        }
        fuzz_touch_record(at + sizeof *entry, entry->length - sizeof *entry);
        fuzz_touch(at + sizeof *entry + wan_record_length((const wan_record *)(entry + 1)), entry->found_length);
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
            FUZZ_CHECK(section->first != 0);
            at = touch_entries((const uint8_t *)(section + 1), section->count, 0);
        }
    } else if (type == WAN_FRAME_LANE_IMAGE) {
        const wan_lane_image *image = (const wan_lane_image *)payload;
        if (image->part == WAN_IMAGE_ENTRIES) at = touch_entries((const uint8_t *)(image + 1), image->count, 1);
        else if (image->part == WAN_IMAGE_ANSWERS) {
            wan_answers answers = {0};
            wan_answers_unpack(&answers, (const wan_answer_item *)(image + 1), image->count);
            FUZZ_CHECK(answers.count <= image->count && answers.count <= WAN_ANSWERS_MAX);
            wan_answers_close(&answers);
            at += length;
        } else at += sizeof *image + image->count * sizeof(wan_shrunk);
    } else if (type == WAN_FRAME_LANE_ANSWER) {
        at += sizeof(wan_lane_head) + ((const wan_lane_head *)payload)->count * sizeof(wan_lane_answer);
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
    const uint8_t type = (uint8_t)(WAN_FRAME_LANE_REGIONS + random_below(source, 4));
    uint64_t length = build(source, type);
    FUZZ_CHECK(wan_lane_check(type, bytes, length) == WAN_OK);
    fuzz_mutate(source, bytes, random_below(source, 2) && length > 100 ? 100 : (size_t)length);
    if (!random_below(source, 6)) length = random_below(source, (uint32_t)length + 1);
    uint8_t *exact = fuzz_exact(bytes, length);
    if (wan_lane_check(type, exact, length) == WAN_OK) touch(type, exact, length);
    free(exact);
}
