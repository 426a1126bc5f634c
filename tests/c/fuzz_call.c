/* Fuzzes the checks of calls between members, of answers, of the items of a scan, and of what became of events. What
 * passes can be read in all its parts without leaving the given bytes. Damage anywhere is found by a check or by the
 * checksum. */
#include "fuzz.h"
#include "session/wan_call.h"

const char *const fuzz_name = "fuzz_call";

#define ROWS_MAX 4u

static uint8_t bytes[sizeof(wan_call) + ROWS_MAX * FUZZ_RECORD_MAX + sizeof(uint64_t)] __attribute__((aligned(8)));

static int has_records(const wan_call *call)
{
    return call->kind == WAN_CALL_CHANGE || call->kind == WAN_CALL_ROWS || call->kind == WAN_CALL_EVENTS;
}

/* Writes the payload of a call that is in order, as far as its records have no recipients. */
static void fill(random_source *source, wan_call *call)
{
    uint8_t *payload = (uint8_t *)(call + 1);
    if (call->kind == WAN_CALL_GET) {
        call->form = (uint8_t[]){0, 1, 2, 4, 5}[random_below(source, 5)];
        call->length = fuzz_key(source, payload, call->form);
    } else if (call->kind == WAN_CALL_REGION) {
        call->length = 1 + random_below(source, 20);
        memset(payload, 'r', call->length);
    } else if (has_records(call)) {
        call->count = call->kind == WAN_CALL_CHANGE ? 1 : 1 + random_below(source, ROWS_MAX);
        for (uint32_t n = 0; n < call->count; n++)
            call->length += (uint32_t)fuzz_record(source, payload + call->length);
        if (call->kind == WAN_CALL_EVENTS && random_below(source, 2)) {
            call->flags = WAN_CALL_MARKS;
            payload[call->length] = (uint8_t)random_below(source, 1u << call->count);
            call->length += (uint32_t)wan_call_marks_bytes(call->count);
        }
    }
}

static void fuzz_a_call(random_source *source)
{
    uint64_t length = 0;
    memset(bytes, 0, sizeof bytes);
    wan_call *call = (wan_call *)bytes;
    call->magic = WAN_CALL_MAGIC;
    call->kind = (uint8_t)(1 + random_below(source, WAN_CALL_ANSWER - 1));
    call->id = 1 + random_below(source, 1000);
    if (call->kind != WAN_CALL_REGION) call->within = 1 + (uint16_t)random_below(source, UINT16_MAX);
    if (wan_call_changes(call->kind))
        call->caller = 7, call->slot = (uint16_t)random_below(source, 9), call->number = 1;
    fill(source, call);
    if (random_below(source, 3)) fuzz_mutate(source, bytes, sizeof(wan_call) + call->length % 4096);
    if (call->length <= sizeof bytes - sizeof *call) call->crc = wan_call_crc(call);
    uint64_t there = sizeof(wan_call) + random_below(source, (uint32_t)(sizeof bytes - sizeof(wan_call)) + 1);
    uint8_t *exact = fuzz_exact(bytes, there);
    if (wan_call_next(exact, there, &length) == WAN_OK) {
        const wan_call *got = (const wan_call *)exact;
        FUZZ_CHECK(length <= there && got->kind > 0 && got->kind < WAN_CALL_ANSWER);
        uint64_t at = sizeof *got;
        uint32_t records = got->kind == WAN_CALL_CHANGE ? 1 : has_records(got) ? got->count : 0;
        for (uint32_t n = 0; n < records; n++) {
            fuzz_touch_record(exact + at, there - at);
            at += wan_record_length((const wan_record *)(exact + at));
            FUZZ_CHECK(at <= sizeof *got + got->length);
        }
        if (got->kind == WAN_CALL_EVENTS && got->flags & WAN_CALL_MARKS)
            FUZZ_CHECK(at + wan_call_marks_bytes(got->count) == sizeof *got + got->length);
        fuzz_touch(exact, length);
    }
    free(exact);
}

/* What became of events: what passes names failures within the payload, and records of the call. */
static void fuzz_what_became(random_source *source)
{
    uint32_t count = 1 + random_below(source, 20), at = 0;
    memset(bytes, 0, sizeof bytes);
    wan_call_applied *became = (wan_call_applied *)bytes;
    wan_call_failure *failures = (wan_call_failure *)(became + 1);
    for (at = random_below(source, 4); at < count; at += 1 + random_below(source, 4))
        failures[became->failures++] = (wan_call_failure){at, 1 + random_below(source, WAN_PARK_PARTITIONS - 1)};
    uint64_t applied = random_below(source, count - became->failures + 1);
    became->conflicts = random_below(source, (uint32_t)(count - became->failures - applied) + 1);
    uint64_t length = sizeof *became + became->failures * sizeof *failures;
    FUZZ_CHECK(wan_call_applied_check(bytes, length, applied, count) == WAN_OK);
    fuzz_mutate(source, bytes, length);
    uint8_t *exact = fuzz_exact(bytes, length);
    if (wan_call_applied_check(exact, length, applied, count) == WAN_OK) {
        became = (wan_call_applied *)exact;
        failures = (wan_call_failure *)(became + 1);
        for (uint32_t n = 0; n < became->failures; n++)
            FUZZ_CHECK(failures[n].record < count && failures[n].reason < WAN_PARK_PARTITIONS);
    }
    free(exact);
}

static void fuzz_an_answer(random_source *source)
{
    uint64_t length = 0;
    memset(bytes, 0, sizeof bytes);
    wan_answer *answer = (wan_answer *)bytes;
    *answer = (wan_answer){.magic = WAN_CALL_MAGIC, .kind = WAN_CALL_ANSWER, .id = 1};
    uint8_t *payload = (uint8_t *)(answer + 1);
    for (uint32_t n = random_below(source, 5); n; n--) {
        wan_call_item *item = (wan_call_item *)(payload + answer->length);
        item->value_form = (uint8_t[]){0, WAN_CALL_VALUE_NONE, WAN_CALL_VALUE_LEFT_OUT}[random_below(source, 3)];
        item->key_form = (uint8_t)random_below(source, 2);
        item->key_length = fuzz_key(source, (uint8_t *)(item + 1), item->key_form);
        item->value_length = item->value_form ? 0 : random_below(source, 40);
        answer->length += (uint32_t)wan_call_item_size(item);
    }
    FUZZ_CHECK(wan_call_items_check(payload, answer->length) == WAN_OK);
    answer->crc = wan_answer_crc(answer);
    FUZZ_CHECK(wan_answer_next(bytes, sizeof *answer + answer->length, &length) == WAN_OK);
    if (random_below(source, 3)) fuzz_mutate(source, bytes, sizeof *answer + answer->length);
    uint64_t there = sizeof *answer + answer->length % 2048;
    uint8_t *exact = fuzz_exact(bytes, there);
    if (wan_answer_next(exact, there, &length) == WAN_OK) FUZZ_CHECK(length <= there);
    if (wan_call_items_check(exact + sizeof *answer, there - sizeof *answer) == WAN_OK)
        fuzz_touch(exact + sizeof *answer, there - sizeof *answer);
    free(exact);
}

void fuzz_once(random_source *source)
{
    fuzz_a_call(source);
    fuzz_an_answer(source);
    fuzz_what_became(source);
}
