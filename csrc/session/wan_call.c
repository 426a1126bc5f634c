/* Owns the checks of calls and answers that come from a socket. */
#include "session/wan_call.h"

#include <ctype.h>
#include <string.h>

#include "record/wan_form.h"
#include "record/wan_names.h"
#include "record/wan_record.h"

#define CONDITION_COUNT 5u /* IF_*, and none. */

static wan_status check_magic(const uint8_t *first)
{
    uint32_t magic;
    memcpy(&magic, first, sizeof magic);
    if (magic == WAN_CALL_MAGIC) return WAN_OK;
    char text[8] = "";
    for (int n = 0; n < 4; n++) text[n] = isprint(first[n]) ? (char)first[n] : '.';
    return WAN_FAIL(WAN_CORRUPT, "not a call between members: it begins with %02x %02x %02x %02x (\"%s\")", first[0],
                    first[1], first[2], first[3], text);
}

static wan_status check_length(uint32_t length)
{
    if (length <= WAN_CALL_BYTES_MAX) return WAN_OK;
    return WAN_FAIL(WAN_CORRUPT, "a call with %" PRIu32 " bytes; at most %u are possible", length, WAN_CALL_BYTES_MAX);
}

static wan_status check_head(const wan_call *call)
{
    wan_status status = check_magic((const uint8_t *)call);
    if (status == WAN_OK) status = check_length(call->length);
    if (status != WAN_OK) return status;
    if (call->kind == 0 || call->kind >= WAN_CALL_ANSWER)
        return WAN_FAIL(WAN_CORRUPT, "a call of kind %u is unknown", call->kind);
    if (call->flags > (WAN_CALL_REPEAT | WAN_CALL_VALUES | WAN_CALL_MARKS) || call->condition >= CONDITION_COUNT
        || (call->flags & WAN_CALL_MARKS && call->kind != WAN_CALL_EVENTS))
        return WAN_FAIL(WAN_CORRUPT, "a call with flags %u and condition %u", call->flags, call->condition);
    if ((call->kind == WAN_CALL_REGION) != (call->within == 0))
        return WAN_FAIL(WAN_CORRUPT, "a call of kind %u whose caller waits for %u0 ms", call->kind, call->within);
    if (call->flags & WAN_CALL_REPEAT && (!wan_call_changes(call->kind) || !call->since))
        return WAN_FAIL(WAN_CORRUPT, "a call of kind %u that is the repeat of one under epoch %" PRIx64, call->kind,
                        call->since);
    if (wan_call_changes(call->kind) ? !call->caller || !call->number : call->caller || call->number || call->slot)
        return WAN_FAIL(WAN_CORRUPT, "a call of kind %u of caller %" PRIx64 ", with the number %" PRIu64, call->kind,
                        call->caller, (uint64_t)call->number);
    return WAN_OK;
}

/* Checks that `count` records fill the first bytes of the payload, and gives the length of the records. Only events of
 * remote sites have recipients: all other changes begin at this site. */
static wan_status check_records(const uint8_t *payload, uint64_t length, uint32_t count, int are_events, uint64_t *used)
{
    uint64_t at = 0;
    for (uint32_t n = 0; n < count; n++) {
        wan_status status = wan_record_check(payload + at, length - at);
        if (status != WAN_OK) return status;
        const wan_record *record = (const wan_record *)(payload + at);
        if (record->recipients_count && !are_events)
            return WAN_FAIL(WAN_CORRUPT, "record %" PRIu32 " of a call has %u recipients", n, record->recipients_count);
        at += wan_record_length(record);
    }
    *used = at;
    return WAN_OK;
}

/* Checks the marks at the end of the payload of EVENTS. */
static wan_status check_marks(const wan_call *call, uint64_t used)
{
    const uint8_t *payload = (const uint8_t *)(call + 1);
    uint64_t marks = call->flags & WAN_CALL_MARKS ? wan_call_marks_bytes(call->count) : 0, last;
    if (used + marks != call->length)
        return WAN_FAIL(WAN_CORRUPT,
                        "%" PRIu32 " events with %" PRIu64 " bytes of marks take %" PRIu64 " bytes, not %" PRIu32,
                        call->count, marks, used + marks, call->length);
    if (marks == 0 || call->count % 64 == 0) return WAN_OK;
    memcpy(&last, payload + call->length - sizeof last, sizeof last);
    if (last >> call->count % 64)
        return WAN_FAIL(WAN_CORRUPT, "a mark behind those of %" PRIu32 " events", call->count);
    return WAN_OK;
}

static wan_status check_payload(const wan_call *call)
{
    const uint8_t *payload = (const uint8_t *)(call + 1);
    uint64_t used = 0;
    wan_status status = WAN_OK;
    switch (call->kind) {
    case WAN_CALL_REGION:
        if (call->length == 0 || call->length > WAN_REGION_NAME_BYTES_MAX)
            return WAN_FAIL(WAN_CORRUPT, "a region's name of %" PRIu32 " bytes", call->length);
        return WAN_OK;
    case WAN_CALL_GET:
        if (call->length > WAN_KEY_BYTES_MAX)
            return WAN_FAIL(WAN_CORRUPT, "a key of %" PRIu32 " bytes; at most %u are possible", call->length,
                            WAN_KEY_BYTES_MAX);
        return wan_key_check(payload, call->length, call->form);
    case WAN_CALL_CHANGE:
        status = check_records(payload, call->length, 1, 0, &used);
        if (status == WAN_OK && call->form >= WAN_FORM_COUNT)
            return WAN_FAIL(WAN_CORRUPT, "a change that expects a value of form %u", call->form);
        return status;
    case WAN_CALL_ROWS:
        if (call->count == 0) return WAN_FAIL(WAN_CORRUPT, "a call of no rows");
        status = check_records(payload, call->length, call->count, 0, &used);
        if (status == WAN_OK && used != call->length)
            return WAN_FAIL(WAN_CORRUPT, "%" PRIu32 " rows take %" PRIu64 " bytes, not %" PRIu32, call->count, used,
                            call->length);
        return status;
    case WAN_CALL_EVENTS:
        if (call->count == 0) return WAN_FAIL(WAN_CORRUPT, "a call of no events");
        status = check_records(payload, call->length, call->count, 1, &used);
        return status == WAN_OK ? check_marks(call, used) : status;
    default:
        if (call->length)
            return WAN_FAIL(WAN_CORRUPT, "a call of kind %u with %" PRIu32 " bytes; it has none", call->kind,
                            call->length);
        return WAN_OK;
    }
}

wan_status wan_call_next(const uint8_t *bytes, uint64_t there, uint64_t *length)
{
    const wan_call *call = (const wan_call *)bytes;
    if (there < sizeof *call) {
        *length = sizeof *call - there;
        return WAN_EMPTY;
    }
    wan_status status = check_head(call);
    if (status != WAN_OK) return status;
    uint64_t whole = sizeof *call + wan_align8(call->length);
    if (there < whole) {
        *length = whole - there;
        return WAN_EMPTY;
    }
    if (wan_call_crc(call) != call->crc)
        return WAN_FAIL(WAN_CORRUPT, "a call of kind %u with %" PRIu32 " bytes has a wrong checksum", call->kind,
                        call->length);
    *length = whole;
    return check_payload(call);
}

wan_status wan_answer_next(const uint8_t *bytes, uint64_t there, uint64_t *length)
{
    const wan_answer *answer = (const wan_answer *)bytes;
    if (there < sizeof *answer) {
        *length = sizeof *answer - there;
        return WAN_EMPTY;
    }
    wan_status status = check_magic(bytes);
    if (status == WAN_OK) status = check_length(answer->length);
    if (status != WAN_OK) return status;
    if (answer->kind != WAN_CALL_ANSWER || answer->status >= WAN_ANSWER_STATUS_COUNT)
        return WAN_FAIL(WAN_CORRUPT, "kind %u with status %u where an answer should come", answer->kind,
                        answer->status);
    uint64_t whole = sizeof *answer + wan_align8(answer->length);
    if (there < whole) {
        *length = whole - there;
        return WAN_EMPTY;
    }
    if (wan_answer_crc(answer) != answer->crc)
        return WAN_FAIL(WAN_CORRUPT, "an answer with %" PRIu32 " bytes has a wrong checksum", answer->length);
    *length = whole;
    return WAN_OK;
}

wan_status wan_call_items_check(const uint8_t *payload, uint64_t length)
{
    for (uint64_t at = 0; at < length;) {
        const wan_call_item *item = (const wan_call_item *)(payload + at);
        if (length - at < sizeof *item || length - at < wan_call_item_size(item))
            return WAN_FAIL(WAN_CORRUPT, "an item of a scan goes beyond its answer of %" PRIu64 " bytes", length);
        if (item->value_form >= WAN_CALL_VALUE_NONE ? item->value_length != 0 : item->value_form >= WAN_FORM_COUNT)
            return WAN_FAIL(WAN_CORRUPT, "an item of a scan has a value of form %u with %" PRIu32 " bytes",
                            item->value_form, item->value_length);
        wan_status status = wan_key_check(payload + at + sizeof *item, item->key_length, item->key_form);
        if (status != WAN_OK) return status;
        at += wan_call_item_size(item);
    }
    return WAN_OK;
}

wan_status wan_call_applied_check(const uint8_t *payload, uint64_t length, uint64_t applied, uint32_t count)
{
    const wan_call_applied *became = (const wan_call_applied *)payload;
    const wan_call_failure *failures = (const wan_call_failure *)(became + 1);
    if (length < sizeof *became || length != sizeof *became + (uint64_t)became->failures * sizeof *failures)
        return WAN_FAIL(WAN_CORRUPT, "what became of %" PRIu32 " events in %" PRIu64 " bytes", count, length);
    if (applied > count || (uint64_t)became->conflicts + became->failures > count - applied)
        return WAN_FAIL(WAN_CORRUPT,
                        "of %" PRIu32 " events %" PRIu64 " were applied, %" PRIu32 " lost and %" PRIu32 " failed",
                        count, applied, became->conflicts, became->failures);
    for (uint32_t n = 0; n < became->failures; n++) {
        if (failures[n].record >= count || (n && failures[n].record <= failures[n - 1].record))
            return WAN_FAIL(WAN_CORRUPT, "event %" PRIu32 " of %" PRIu32 " failed, which is not the next one",
                            failures[n].record, count);
        if (failures[n].reason == 0 || failures[n].reason >= WAN_PARK_PARTITIONS)
            return WAN_FAIL(WAN_CORRUPT, "event %" PRIu32 " failed for the unknown reason %" PRIu32, failures[n].record,
                            failures[n].reason);
    }
    return WAN_OK;
}
