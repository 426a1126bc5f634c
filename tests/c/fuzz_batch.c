/* Fuzzes the check of a batch. If a batch passes, a receiver can walk its sections and records without leaving the
 * payload, and every sequence is above the one before. */
#include "fuzz.h"
#include "record/wan_frame.h"

const char *const fuzz_name = "fuzz_batch";

enum { SECTIONS = 4, RECORDS = 6 };

static uint64_t build(random_source *source, uint8_t *to, uint32_t *count)
{
    wan_batch_head *head = (wan_batch_head *)to;
    wan_section *section = (wan_section *)(head + 1);
    head->sections = 1 + random_below(source, SECTIONS);
    head->reserved = 0;
    uint8_t *at = (uint8_t *)(section + head->sections);
    *count = 0;
    for (uint32_t s = 0; s < head->sections; s++, section++) {
        uint64_t first = 1 + random_below(source, 2) * random_next(source) % (UINT64_MAX - 1000), next = first;
        *section = (wan_section){.partition = random_below(source, 8),
                                 .count = random_below(source, RECORDS),
                                 .first = first,
                                 .acknowledged = random_next(source) % first};
        /* A section with holes begins with its sequences. */
        int holes = section->count && random_below(source, 2);
        uint64_t *sequences = (uint64_t *)at;
        for (uint32_t n = 0; holes && n < section->count; n++) {
            next += random_below(source, 3);
            sequences[n] = next++;
        }
        if (holes) section->through = sequences[section->count - 1] + 1 + random_below(source, 2);
        else section->through = section->count ? first + section->count - 1 : first;
        at += wan_section_head_bytes(section);
        for (uint32_t n = 0; n < section->count; n++) at += fuzz_record(source, at);
        section->bytes = (uint32_t)(at - (uint8_t *)sequences);
        section->duplicates = random_below(source, section->count + 1);
        *count += section->count;
    }
    return (uint64_t)(at - to);
}

void fuzz_once(random_source *source)
{
    static uint8_t bytes[sizeof(wan_batch_head) + SECTIONS * sizeof(wan_section)
                         + (SECTIONS * RECORDS + 1) * (FUZZ_RECORD_MAX + 8)] __attribute__((aligned(8)));
    uint32_t count;
    uint64_t length = build(source, bytes, &count);
    FUZZ_CHECK(wan_batch_check(bytes, length, count) == WAN_OK);

    size_t heads = sizeof(wan_batch_head) + ((wan_batch_head *)bytes)->sections * sizeof(wan_section);
    fuzz_mutate(source, bytes, random_below(source, 2) ? heads : (size_t)length);
    if (!random_below(source, 6)) length = random_below(source, (uint32_t)length + 1);
    if (!random_below(source, 6)) count += random_below(source, 3) - 1;
    uint8_t *exact = fuzz_exact(bytes, length);
    if (wan_batch_check(exact, length, count) == WAN_OK) {
        const wan_batch_head *head = (const wan_batch_head *)exact;
        const wan_section *section = (const wan_section *)(head + 1);
        const uint8_t *at = (const uint8_t *)(section + head->sections), *end = exact + length;
        uint64_t records = 0;
        for (uint32_t s = 0; s < head->sections; s++, section++) {
            const uint8_t *section_end = at + section->bytes;
            uint64_t last = section->first - 1;
            const uint8_t *begin = at;
            FUZZ_CHECK(section->first > section->acknowledged && section_end <= end
                       && section->duplicates <= section->count);
            at += wan_section_head_bytes(section);
            FUZZ_CHECK(at <= section_end);
            for (uint32_t n = 0; n < section->count; n++) {
                fuzz_touch_record(at, (uint64_t)(section_end - at));
                const uint64_t sequence = wan_section_sequence(section, begin, n);
                FUZZ_CHECK(sequence > last && sequence <= section->through);
                last = sequence;
                at += wan_record_length((const wan_record *)at);
                records++;
            }
            FUZZ_CHECK(at == section_end);
        }
        FUZZ_CHECK(at == end && records == count);
    }
    free(exact);
}
