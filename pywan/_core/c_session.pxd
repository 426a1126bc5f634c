# Owns nothing but names: the C of csrc/session as Cython sees it.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *

cdef extern from "session/wan_window.h" nogil:
    ctypedef struct wan_window:
        uint64_t bytes, limit, round_trip_us
    ctypedef struct wan_window_sending:
        uint64_t sent_us
    void wan_window_init(wan_window *window, uint64_t limit, uint64_t now_us)
    void wan_window_set_limit(wan_window *window, uint64_t limit)
    int wan_window_is_open(const wan_window *window, uint64_t flight)
    wan_window_sending wan_window_sent(const wan_window *window, uint64_t flight, uint64_t bytes, uint64_t now_us)
    void wan_window_acknowledged(wan_window *window, const wan_window_sending *sending, uint64_t now_us)

cdef extern from "session/wan_call.h" nogil:
    enum: WAN_CALL_MAGIC, WAN_CALL_BYTES_MAX, WAN_CALL_SCAN_MAX, WAN_CALL_ITEMS_MAX, WAN_CALL_DEPTH_MAX
    enum: WAN_CALL_VALUE_LEFT_OUT, WAN_CALL_VALUE_NONE
    enum: WAN_CALL_REGION, WAN_CALL_GET, WAN_CALL_CHANGE, WAN_CALL_ROWS, WAN_CALL_COUNT, WAN_CALL_SCAN, WAN_CALL_CLEAR
    enum: WAN_CALL_EVENTS, WAN_CALL_ANSWER
    enum: WAN_CALL_REPEAT, WAN_CALL_VALUES, WAN_CALL_MARKS
    enum: WAN_ANSWER_DONE, WAN_ANSWER_NOT_PRIMARY, WAN_ANSWER_FAILED, WAN_ANSWER_IN_DOUBT, WAN_ANSWER_GIVEN_UP
    enum: WAN_ANSWER_LIVE, WAN_ANSWER_VALUE, WAN_ANSWER_HOLDS, WAN_ANSWER_UNDER_REPLICATED
    ctypedef struct wan_call:
        uint32_t magic
        uint8_t kind, flags, form, condition
        uint32_t length, crc, id
        uint16_t region, within
        uint32_t bucket, count
        uint64_t epoch, shard, since, caller, number
        uint16_t slot
    bint wan_call_changes(uint8_t kind)
    bint wan_call_writes(uint8_t kind)
    uint64_t wan_call_marks_bytes(uint32_t count)
    uint16_t wan_call_within(uint64_t left_us)
    uint64_t wan_call_work_us(const wan_call *call)
    ctypedef struct wan_answer:
        uint32_t magic
        uint8_t kind, status, outcome, form
        uint32_t length, crc, id
        uint8_t flags
        uint64_t number, done
    ctypedef struct wan_call_item:
        uint32_t value_length
        uint16_t key_length
        uint8_t key_form, value_form
    ctypedef struct wan_call_applied:
        uint32_t conflicts, failures
    ctypedef struct wan_call_failure:
        uint32_t record, reason
    uint32_t wan_call_crc(const wan_call *call)
    uint32_t wan_answer_crc(const wan_answer *answer)
    wan_status wan_call_next(const uint8_t *bytes, uint64_t there, uint64_t *length)
    wan_status wan_answer_next(const uint8_t *bytes, uint64_t there, uint64_t *length)
    wan_status wan_call_items_check(const uint8_t *payload, uint64_t length)
    wan_status wan_call_applied_check(const uint8_t *payload, uint64_t length, uint64_t applied, uint32_t count)
    uint64_t wan_call_item_size(const wan_call_item *item)
