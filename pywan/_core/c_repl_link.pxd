# Owns nothing but names: the frames of a replication link (csrc/replication/wan_repl_link.h) as Cython sees them.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport *

cdef extern from "replication/wan_repl_link.h" nogil:
    enum: WAN_FRAME_REPL_REGIONS, WAN_FRAME_REPL_CHANGES, WAN_FRAME_REPL_SNAPSHOT, WAN_FRAME_REPL_ANSWER
    enum: WAN_FRAME_REPL_REMOVAL
    enum: WAN_REPL_SHORT
    enum: WAN_READ_LEASE_US, WAN_READ_LEASE_KEPT_US
    enum: WAN_REPL_REGIONS_MAX, WAN_REPL_SECTIONS_MAX, WAN_REPL_NAME_BYTES_MAX
    enum: WAN_SNAPSHOT_ENTRIES, WAN_SNAPSHOT_SHRUNK, WAN_SNAPSHOT_ANSWERS, WAN_SNAPSHOT_EVENTS
    enum: WAN_ANSWER_APPLIED, WAN_ANSWER_REFUSED, WAN_ANSWER_LATER, WAN_ANSWER_SNAPSHOT
    ctypedef struct wan_repl_region:
        uint32_t number, buckets, name_length
    ctypedef struct wan_repl_head:
        uint32_t count
    ctypedef struct wan_repl_section:
        uint32_t region, bucket
        uint64_t timeline, epoch, transfer, first, high_watermark, notified
        uint32_t count, bytes
    ctypedef struct wan_repl_snapshot:
        uint32_t region, bucket
        uint64_t timeline, epoch, transfer, through
        uint32_t count, bytes, shard
        uint8_t part, is_last
    ctypedef struct wan_snapshot_event:
        uint64_t sender, sequence
        uint32_t length, is_begin
    ctypedef struct wan_repl_answer:
        uint32_t region, bucket
        uint64_t timeline, epoch, sequence
        uint8_t kind
    ctypedef struct wan_repl_removal:
        uint64_t sender, timeline, after, through, explained
        uint32_t region, bucket, exceptions
        uint8_t leads
    int wan_epoch_order(uint64_t timeline, uint64_t epoch, uint64_t other_timeline, uint64_t other_epoch)
    void wan_repl_link_set_asleep(wan_repl_link_state *state, uint32_t value)
    bint wan_repl_link_change(wan_repl_link_state *state, uint32_t before, uint32_t now)
    void wan_repl_link_set_connected(wan_repl_link_state *state, uint32_t value)
    uint32_t wan_repl_link_take_wish(wan_repl_link_state *state)
    uint32_t wan_repl_link_has_removals(const wan_repl_link_state *state)
    void wan_repl_link_take_removals(wan_repl_link_state *state)
    void wan_repl_link_note_removals(wan_repl_link_state *state)
    uint64_t wan_repl_link_bits(const uint64_t *word)
    void wan_repl_link_set_bit(uint64_t *words, uint32_t bucket)
    void wan_repl_link_clear_bit(uint64_t *words, uint32_t bucket)
    uint32_t wan_lowest_bit(uint64_t bits)
    wan_status wan_repl_check(uint8_t type, const uint8_t *payload, uint64_t length)
