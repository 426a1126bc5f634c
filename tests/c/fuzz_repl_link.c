/* Fuzzes the check of a replication link's frames. If a payload passes, an end of the replication link can walk all its
 * sections, entries and items without leaving the payload. */
#include "replication/wan_repl_link.h"
#include "fuzz.h"
#include "record/wan_failure.h"
#include "region/wan_table.h"

const char *const fuzz_name = "fuzz_repl_link";

enum { SECTIONS = 4, ENTRIES = 3, FOUND_MAX = 64, ENTRY_MAX = FUZZ_RECORD_MAX + 32 + FOUND_MAX };

static uint8_t bytes[SECTIONS * (sizeof(wan_repl_section) + ENTRIES * ENTRY_MAX) + 64] __attribute__((aligned(8)));

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
        wan_snapshot_event *event = (wan_snapshot_event *)(to + at);
        *event = (wan_snapshot_event){.sender = random_below(source, 3), .sequence = n};
        if (!n) event->is_begin = random_below(source, 2);
        if (n) event->length = (uint32_t)fuzz_record(source, (uint8_t *)(event + 1));
        at += sizeof *event + event->length;
    }
    return at;
}

static uint64_t write_entry(random_source *source, uint8_t *to, int is_snapshot)
{
    wan_changelog_entry *entry = (wan_changelog_entry *)to;
    const uint32_t what = is_snapshot ? 0 : random_below(source, 7);
    *entry = (wan_changelog_entry){.kind = what == 5   ? WAN_ENTRY_FORGET
                                           : what == 6 ? WAN_ENTRY_CLEAR
                                                       : WAN_ENTRY_CHANGE};
    if (what >= 2 && what != 5) entry->flags = WAN_CHANGELOG_REMEMBERED;
    if (wan_changelog_entry_has_call(entry))
        *wan_changelog_entry_call(entry) =
            (wan_call_identity){.caller = 1 + random_below(source, 3),
                                .slot = what == 5 ? 0 : (uint16_t)random_below(source, 9),
                                .number = what != 5};
    entry->length = (uint32_t)wan_changelog_entry_head(entry);
    if (what == 5) return entry->length;
    if (what == 6) {
        entry->length = WAN_CHANGELOG_CLEAR_BYTES;
        *wan_changelog_entry_cleared(entry) = random_below(source, 9);
        return entry->length;
    }
    entry->outcome = (uint8_t)random_below(source, (is_snapshot ? WAN_MISSING : WAN_DESTROYED) + 1);
    if (what == 3) entry->flags |= WAN_CHANGELOG_ROW, entry->row = random_below(source, 9);
    if (what == 4) entry->flags |= WAN_CHANGELOG_FOUND;
    if (what == 4 || is_snapshot) entry->found_length = random_below(source, FOUND_MAX);
    entry->length += (uint32_t)fuzz_record(source, to + entry->length);
    if (!is_snapshot) entry->verdict_length = write_verdicts(source, to + entry->length);
    entry->length += entry->verdict_length;
    entry->length += (uint32_t)wan_align8(wan_changelog_entry_found_length(entry));
    return entry->length;
}

static uint64_t write_entries(random_source *source, uint8_t *to, uint32_t count, int is_snapshot)
{
    uint64_t at = 0;
    for (uint32_t n = 0; n < count; n++) at += write_entry(source, to + at, is_snapshot);
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
    if (type == WAN_FRAME_REPL_CHANGES || type == WAN_FRAME_REPL_ANSWER || type == WAN_FRAME_REPL_REMOVAL) {
        *(wan_repl_head *)at = (wan_repl_head){.count = count};
        at += sizeof(wan_repl_head);
    }
    for (uint32_t n = 0; n < count; n++) {
        if (type == WAN_FRAME_REPL_CHANGES) {
            wan_repl_section *section = (wan_repl_section *)at;
            *section = (wan_repl_section){.first = 1 + random_next(source) / 4, .count = random_below(source, ENTRIES)};
            section->high_watermark = random_next(source) / 4;
            section->notified = random_next(source) % (section->high_watermark + 1);
            section->bytes = (uint32_t)write_entries(source, (uint8_t *)(section + 1), section->count, 0);
            at += sizeof *section + section->bytes;
        } else if (type == WAN_FRAME_REPL_ANSWER) {
            *(wan_repl_answer *)at = (wan_repl_answer){.kind = (uint8_t)random_below(source, WAN_ANSWER_KINDS)};
            at += sizeof(wan_repl_answer);
        } else if (type == WAN_FRAME_REPL_REMOVAL) {
            wan_repl_removal *removal = (wan_repl_removal *)at;
            *removal = (wan_repl_removal){
                .sender = n, .timeline = 1, .after = random_below(source, 9), .through = 99 + random_next(source) / 4};
            removal->explained = removal->after + random_below(source, 9);
            removal->exceptions = random_below(source, 4), removal->leads = (uint8_t)random_below(source, 2);
            wan_exception *each = (wan_exception *)(removal + 1);
            for (uint32_t k = 0; k < removal->exceptions; k++, each++)
                *each = (wan_exception){20 + 20 * k, 1 + random_below(source, 20),
                                        random_below(source, 2) ? WAN_HOLE_PARKED_FOR(random_below(source, 8))
                                                                : 1 + random_below(source, 6)};
            at = (uint8_t *)each;
        } else if (type == WAN_FRAME_REPL_REGIONS) {
            wan_repl_region *region = (wan_repl_region *)at;
            *region = (wan_repl_region){random_below(source, WAN_REPL_REGIONS_MAX), 1, 1 + random_below(source, 40), 0};
            at += sizeof *region + wan_align8(region->name_length);
        }
    }
    if (type == WAN_FRAME_REPL_SNAPSHOT) {
        wan_repl_snapshot *snapshot = (wan_repl_snapshot *)at;
        *snapshot = (wan_repl_snapshot){
            .transfer = 1, .part = (uint8_t)random_below(source, WAN_SNAPSHOT_PARTS), .count = count};
        snapshot->through = SECTIONS + random_below(source, 9); /* Nothing in it is newer. */
        if (snapshot->part == WAN_SNAPSHOT_SHRUNK) snapshot->bytes = count * (uint32_t)sizeof(wan_shrunk);
        else if (snapshot->part == WAN_SNAPSHOT_ANSWERS)
            snapshot->bytes = (uint32_t)write_answers(source, at + sizeof *snapshot, count);
        else if (snapshot->part == WAN_SNAPSHOT_EVENTS)
            snapshot->bytes = (uint32_t)write_events(source, at + sizeof *snapshot, count);
        else snapshot->bytes = (uint32_t)write_entries(source, at + sizeof *snapshot, count, 1);
        at += sizeof *snapshot + snapshot->bytes;
    }
    return (uint64_t)(at - bytes);
}

static const uint8_t *touch_entries(const uint8_t *at, uint32_t count, int is_snapshot)
{
    for (uint32_t n = 0; n < count; n++) {
        const wan_changelog_entry *entry = (const wan_changelog_entry *)at;
        FUZZ_CHECK(entry->length % 8 == 0 && entry->outcome <= (is_snapshot ? WAN_MISSING : WAN_DESTROYED));
        if (wan_changelog_entry_has_call(entry)) FUZZ_CHECK(wan_changelog_entry_call(entry)->caller != 0);
        if (entry->kind == WAN_ENTRY_CHANGE) {
            const uint8_t *record = (const uint8_t *)wan_changelog_entry_record(entry);
            fuzz_touch_record(record, entry->length - wan_changelog_entry_head(entry));
            const wan_verdict *verdict = wan_changelog_entry_verdicts(entry);
            const uint8_t *behind = (const uint8_t *)verdict + entry->verdict_length;
            for (; (const uint8_t *)verdict < behind; verdict = wan_verdict_next(verdict))
                fuzz_touch((const uint8_t *)(verdict + 1), verdict->value_length);
            FUZZ_CHECK((const uint8_t *)verdict == behind);
            fuzz_touch(wan_changelog_entry_found(entry), wan_changelog_entry_found_length(entry));
            FUZZ_CHECK(wan_changelog_entry_found(entry)
                       == record + wan_record_length(wan_changelog_entry_record(entry)) + entry->verdict_length);
        } else if (entry->kind == WAN_ENTRY_CLEAR) {
            FUZZ_CHECK(!is_snapshot && entry->length == WAN_CHANGELOG_CLEAR_BYTES);
            fuzz_touch((const uint8_t *)wan_changelog_entry_cleared(entry), sizeof(uint64_t));
        }
        at += entry->length;
    }
    return at;
}

static void touch(uint8_t type, const uint8_t *payload, uint64_t length)
{
    const uint8_t *at = payload, *end = payload + length;
    if (type == WAN_FRAME_REPL_CHANGES) {
        const uint32_t count = ((const wan_repl_head *)payload)->count;
        at += sizeof(wan_repl_head);
        for (uint32_t n = 0; n < count; n++) {
            const wan_repl_section *section = (const wan_repl_section *)at;
            FUZZ_CHECK(section->first != 0 && section->notified <= section->high_watermark);
            at = touch_entries((const uint8_t *)(section + 1), section->count, 0);
        }
    } else if (type == WAN_FRAME_REPL_SNAPSHOT) {
        const wan_repl_snapshot *snapshot = (const wan_repl_snapshot *)payload;
        if (snapshot->part == WAN_SNAPSHOT_ENTRIES)
            at = touch_entries((const uint8_t *)(snapshot + 1), snapshot->count, 1);
        else if (snapshot->part == WAN_SNAPSHOT_ANSWERS) {
            wan_answers answers = {0};
            FUZZ_CHECK(wan_answers_unpack(&answers, (const wan_answer_item *)(snapshot + 1), snapshot->count)
                       == WAN_OK);
            FUZZ_CHECK(answers.count + answers.refused_count <= snapshot->count);
            for (uint32_t n = 0; n < answers.capacity; n++) FUZZ_CHECK(answers.items[n].sequence <= snapshot->through);
            wan_answers_close(&answers);
            at += length;
        } else if (snapshot->part == WAN_SNAPSHOT_EVENTS) {
            at += sizeof *snapshot;
            for (uint32_t n = 0; n < snapshot->count; n++) {
                const wan_snapshot_event *event = (const wan_snapshot_event *)at;
                at += sizeof *event;
                FUZZ_CHECK(event->sequence <= snapshot->through);
                if (event->length) fuzz_touch_record(at, event->length);
                at += event->length;
            }
        } else at += sizeof *snapshot + snapshot->count * sizeof(wan_shrunk);
    } else if (type == WAN_FRAME_REPL_ANSWER) {
        at += sizeof(wan_repl_head) + ((const wan_repl_head *)payload)->count * sizeof(wan_repl_answer);
    } else if (type == WAN_FRAME_REPL_REMOVAL) {
        const uint32_t count = ((const wan_repl_head *)payload)->count;
        at += sizeof(wan_repl_head);
        for (uint32_t n = 0; n < count; n++) {
            const wan_repl_removal *removal = (const wan_repl_removal *)at;
            FUZZ_CHECK(removal->after < removal->through && removal->after <= removal->explained);
            uint64_t last = removal->explained;
            const wan_exception *each = (const wan_exception *)(removal + 1);
            for (uint32_t k = 0; k < removal->exceptions; k++, each++) {
                FUZZ_CHECK(each->first > last && each->count && WAN_HOLE_KIND(each->reason) < WAN_HOLE_REASONS);
                FUZZ_CHECK(WAN_HOLE_FAILURE(each->reason) < WAN_PARK_PARTITIONS);
                FUZZ_CHECK(WAN_HOLE_KIND(each->reason) == WAN_HOLE_PARKED || !WAN_HOLE_FAILURE(each->reason));
                last = each->first + each->count - 1;
                FUZZ_CHECK(last <= removal->through);
            }
            at = (const uint8_t *)each;
        }
    } else if (type == WAN_FRAME_REPL_REGIONS) {
        while (at < end) {
            const wan_repl_region *region = (const wan_repl_region *)at;
            FUZZ_CHECK(region->number < WAN_REPL_REGIONS_MAX);
            fuzz_touch((const uint8_t *)(region + 1), region->name_length);
            at += sizeof *region + wan_align8(region->name_length);
        }
    }
    FUZZ_CHECK(at == end);
}

void fuzz_once(random_source *source)
{
    const uint8_t type = (uint8_t)(WAN_FRAME_REPL_REGIONS + random_below(source, 5));
    uint64_t length = build(source, type);
    FUZZ_CHECK(wan_repl_check(type, bytes, length) == WAN_OK);
    fuzz_mutate(source, bytes, random_below(source, 2) && length > 100 ? 100 : (size_t)length);
    if (!random_below(source, 6)) length = random_below(source, (uint32_t)length + 1);
    uint8_t *exact = fuzz_exact(bytes, length);
    if (wan_repl_check(type, exact, length) == WAN_OK) touch(type, exact, length);
    free(exact);
}
