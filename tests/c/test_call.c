/* Owns the tests of the checks of calls between members. */
#include "harness.h"
#include "record/wan_form.h"
#include "record/wan_record.h"
#include "session/wan_call.h"

static uint8_t bytes[sizeof(wan_call) + 256] __attribute__((aligned(8)));

/* A GET of the key "abc" with its zeros. Returns its length. */
static uint64_t lay_out_a_get(void)
{
    wan_call *call = (wan_call *)bytes;
    memset(bytes, 0, sizeof bytes);
    *call = (wan_call){
        .magic = WAN_CALL_MAGIC, .kind = WAN_CALL_GET, .length = 3, .id = 7, .form = WAN_FORM_TEXT, .within = 1000};
    memcpy(call + 1, "abc", 3);
    call->crc = wan_call_crc(call);
    return sizeof *call + 8;
}

static void a_call_that_is_not_whole_is_waited_for(void)
{
    uint64_t whole = lay_out_a_get(), length;
    for (uint64_t there = 0; there < whole; there++) {
        length = 0;
        EXPECT_EQUAL(wan_call_next(bytes, there, &length), WAN_EMPTY);
        EXPECT_EQUAL(length, there < sizeof(wan_call) ? sizeof(wan_call) - there : whole - there);
    }
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_OK);
    EXPECT_EQUAL(length, whole);
}

static void a_bit_that_changed_anywhere_in_a_call_is_found(void)
{
    uint64_t whole = lay_out_a_get(), length;
    for (uint64_t bit = 0; bit < (sizeof(wan_call) + 3) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        EXPECT(wan_call_next(bytes, whole, &length) != WAN_OK);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_OK);
}

static void another_protocol_is_named_by_its_first_bytes(void)
{
    uint64_t length;
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, "GET / HTTP/1.1", 14);
    EXPECT_EQUAL(wan_call_next(bytes, sizeof(wan_call), &length), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "\"GET \"") != NULL);
    EXPECT_EQUAL(wan_answer_next(bytes, sizeof(wan_answer), &length), WAN_CORRUPT);
}

static void a_length_beyond_the_limit_is_refused_before_its_bytes_come(void)
{
    uint64_t length;
    lay_out_a_get();
    ((wan_call *)bytes)->length = WAN_CALL_BYTES_MAX + 1;
    EXPECT_EQUAL(wan_call_next(bytes, sizeof(wan_call), &length), WAN_CORRUPT);
    wan_answer *answer = (wan_answer *)bytes;
    *answer = (wan_answer){.magic = WAN_CALL_MAGIC, .kind = WAN_CALL_ANSWER, .length = UINT32_MAX};
    EXPECT_EQUAL(wan_answer_next(bytes, sizeof *answer, &length), WAN_CORRUPT);
}

static void a_kind_that_carries_nothing_is_refused_with_a_payload(void)
{
    uint64_t whole = lay_out_a_get(), length;
    wan_call *call = (wan_call *)bytes;
    call->kind = WAN_CALL_COUNT;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    call->kind = WAN_CALL_ANSWER;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
}

static void a_change_names_its_caller_and_a_read_does_not(void)
{
    uint64_t whole = lay_out_a_get(), length;
    wan_call *call = (wan_call *)bytes;
    call->caller = 7, call->number = 1;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    call->kind = WAN_CALL_CLEAR;
    call->length = 0;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_OK);
    call->number = 0;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "a call of kind 7 of caller 7, with the number 0") != NULL);
}

static void a_repeat_says_since_when_it_is_one_and_a_read_is_none(void)
{
    uint64_t whole = lay_out_a_get(), length;
    wan_call *call = (wan_call *)bytes;
    call->flags = WAN_CALL_REPEAT, call->since = 7;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    call->kind = WAN_CALL_CLEAR, call->caller = 7, call->number = 1;
    call->length = 0;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_OK);
    call->since = 0;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "the repeat of one under epoch 0") != NULL);
}

static void a_call_says_how_long_its_caller_waits_and_a_name_does_not(void)
{
    uint64_t whole = lay_out_a_get(), length;
    wan_call *call = (wan_call *)bytes;
    call->within = 0;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    call->kind = WAN_CALL_REGION;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_OK);
    call->within = 1;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
}

static void a_member_stops_before_the_caller_does(void)
{
    static const uint64_t left_us[] = {0, 9999, 10000, 50000, 10000000, 655350000, UINT64_MAX};
    static const uint64_t work_us[] = {8000, 8000, 8000, 40000, 8000000, 524280000, 524280000};
    for (int n = 0; n < 7; n++) {
        wan_call call = {.within = wan_call_within(left_us[n])};
        EXPECT_EQUAL(wan_call_work_us(&call), work_us[n]);
    }
}

/* EVENTS of `count` records, each with two recipients, and marks if `marked`. Returns the length of the call. */
static uint64_t lay_out_events(uint32_t count, int marked)
{
    static const uint8_t recipients[] = {3, 4};
    wan_call *call = (wan_call *)bytes;
    uint8_t *to = (uint8_t *)(call + 1);
    memset(bytes, 0, sizeof bytes);
    *call = (wan_call){.magic = WAN_CALL_MAGIC,
                       .kind = WAN_CALL_EVENTS,
                       .count = count,
                       .id = 7,
                       .within = 1000,
                       .flags = marked ? WAN_CALL_MARKS : 0};
    wan_record head = {.key_length = 1, .recipients_count = 2, .operation = WAN_UPDATE, .callback_form = WAN_FORM_NONE};
    for (uint32_t n = 0; n < count; n++, to += wan_record_length(&head))
        wan_record_write(to, wan_record_length(&head), head, (const uint8_t *)"k", NULL, NULL, recipients);
    call->length = (uint32_t)(to - (uint8_t *)(call + 1)) + (marked ? (uint32_t)wan_call_marks_bytes(count) : 0);
    call->crc = wan_call_crc(call);
    return sizeof *call + call->length;
}

static void events_keep_their_recipients_and_have_no_identity(void)
{
    uint64_t whole = lay_out_events(3, 0), length;
    wan_call *call = (wan_call *)bytes;
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_OK);
    EXPECT_EQUAL(length, whole);
    EXPECT(wan_call_writes(call->kind) && !wan_call_changes(call->kind));
    call->kind = WAN_CALL_ROWS, call->caller = 7, call->number = 1;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "recipients") != NULL);
    lay_out_events(3, 0);
    call->count = 4;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    call->count = 0;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    lay_out_events(3, 0);
    call->caller = 7, call->number = 1;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
}

static void marks_are_those_of_the_events_of_a_call_and_of_nothing_else(void)
{
    uint64_t whole = lay_out_events(3, 1), length;
    wan_call *call = (wan_call *)bytes;
    uint8_t *marks = bytes + whole - wan_call_marks_bytes(3);
    marks[0] = 7;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_OK);
    marks[0] = 8;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    EXPECT(strstr(wan_detail, "a mark behind those of 3 events") != NULL);
    marks[0] = 0, call->flags = 0;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, whole, &length), WAN_CORRUPT);
    EXPECT_EQUAL(wan_call_marks_bytes(64), 8);
    EXPECT_EQUAL(wan_call_marks_bytes(65), 16);
    lay_out_a_get();
    call->flags = WAN_CALL_MARKS;
    call->crc = wan_call_crc(call);
    EXPECT_EQUAL(wan_call_next(bytes, sizeof *call + 8, &length), WAN_CORRUPT);
}

static void what_became_of_events_is_believed_only_if_it_can_be(void)
{
    struct {
        wan_call_applied became;
        wan_call_failure failures[2];
    } said = {{1, 2}, {{0, WAN_FAILED_FUTURE_STAMP}, {4, WAN_FAILED_FORGOTTEN}}};
    const uint8_t *payload = (const uint8_t *)&said;
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said, 2, 5), WAN_OK);
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said - 8, 2, 5), WAN_CORRUPT);
    EXPECT_EQUAL(wan_call_applied_check(payload, 4, 2, 5), WAN_CORRUPT);
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said, 3, 5), WAN_CORRUPT);
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said, 6, 5), WAN_CORRUPT);
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said, 0, 4), WAN_CORRUPT);
    said.failures[1].record = 0;
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said, 2, 5), WAN_CORRUPT);
    said.failures[1] = (wan_call_failure){4, WAN_PARK_PARTITIONS};
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said, 2, 5), WAN_CORRUPT);
    said.failures[1].reason = 0;
    EXPECT_EQUAL(wan_call_applied_check(payload, sizeof said, 2, 5), WAN_CORRUPT);
}

const test_case call_tests[] = {
    {"a call says how long its caller waits, and a name does not",
     a_call_says_how_long_its_caller_waits_and_a_name_does_not},
    {"a member stops before the caller does", a_member_stops_before_the_caller_does},
    {"a call that is not whole is waited for", a_call_that_is_not_whole_is_waited_for},
    {"a bit that changed anywhere in a call is found", a_bit_that_changed_anywhere_in_a_call_is_found},
    {"another protocol is named by its first bytes", another_protocol_is_named_by_its_first_bytes},
    {"a length beyond the limit is refused before its bytes come",
     a_length_beyond_the_limit_is_refused_before_its_bytes_come},
    {"a change names its caller, and a read does not", a_change_names_its_caller_and_a_read_does_not},
    {"a repeat says since when it is one, and a read is none", a_repeat_says_since_when_it_is_one_and_a_read_is_none},
    {"events keep their recipients, and have no identity", events_keep_their_recipients_and_have_no_identity},
    {"marks are those of the events of a call, and of nothing else",
     marks_are_those_of_the_events_of_a_call_and_of_nothing_else},
    {"what became of events is believed only if it can be", what_became_of_events_is_believed_only_if_it_can_be},
    {"a kind that carries nothing is refused with a payload", a_kind_that_carries_nothing_is_refused_with_a_payload},
    {0},
};
