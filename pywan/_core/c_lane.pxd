# Owns nothing but names: the frames of a lane (csrc/copies/wan_lane.h) as Cython sees them.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *

cdef extern from "copies/wan_lane.h" nogil:
    enum: WAN_FRAME_LANE_REGIONS, WAN_FRAME_LANE_CHANGES, WAN_FRAME_LANE_IMAGE, WAN_FRAME_LANE_ANSWER
    enum: WAN_FRAME_LANE_SETTLED
    enum: WAN_LANE_SHORT
    enum: WAN_PROMISE_US, WAN_PROMISE_KEPT_US, WAN_LANE_REGIONS_MAX, WAN_LANE_SECTIONS_MAX, WAN_LANE_NAME_BYTES_MAX
    enum: WAN_IMAGE_ENTRIES, WAN_IMAGE_SHRUNK, WAN_IMAGE_ANSWERS, WAN_IMAGE_EVENTS
    enum: WAN_ANSWER_APPLIED, WAN_ANSWER_REFUSED, WAN_ANSWER_LATER, WAN_ANSWER_IMAGE
    ctypedef struct wan_lane_region:
        uint32_t number, buckets, name_length
    ctypedef struct wan_lane_head:
        uint32_t count
    ctypedef struct wan_lane_section:
        uint32_t region, bucket
        uint64_t life, epoch, transfer, first, counted, heard
        uint32_t count, bytes
    ctypedef struct wan_lane_image:
        uint32_t region, bucket
        uint64_t life, epoch, transfer, through
        uint32_t count, bytes, shard
        uint8_t part, is_last
    ctypedef struct wan_image_event:
        uint64_t sender, sequence
        uint32_t length, is_begin
    ctypedef struct wan_lane_answer:
        uint32_t region, bucket
        uint64_t life, epoch, sequence
        uint8_t kind
    ctypedef struct wan_lane_settled:
        uint64_t sender, life, after, through, explained
        uint32_t region, bucket, exceptions
        uint8_t leads
    int wan_epoch_order(uint64_t life, uint64_t epoch, uint64_t other_life, uint64_t other_epoch)
    void wan_lane_set_asleep(wan_lane_state *state, uint32_t value)
    bint wan_lane_change(wan_lane_state *state, uint32_t before, uint32_t now)
    void wan_lane_set_connected(wan_lane_state *state, uint32_t value)
    uint32_t wan_lane_take_wish(wan_lane_state *state)
    uint32_t wan_lane_has_settled(const wan_lane_state *state)
    void wan_lane_take_settled(wan_lane_state *state)
    void wan_lane_note_settled(wan_lane_state *state)
    uint64_t wan_lane_bits(const uint64_t *word)
    void wan_lane_set_bit(uint64_t *words, uint32_t bucket)
    void wan_lane_clear_bit(uint64_t *words, uint32_t bucket)
    uint32_t wan_lowest_bit(uint64_t bits)
    wan_status wan_lane_check(uint8_t type, const uint8_t *payload, uint64_t length)
