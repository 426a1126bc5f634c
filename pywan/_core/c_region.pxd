# Owns nothing but names: the C of csrc/region as Cython sees it.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *

cdef extern from "region/wan_table.h" nogil:
    enum: WAN_TABLE_SHARDS
    enum: WAN_ENTRY_LIVE, WAN_ENTRY_INVALID, WAN_ENTRY_TOMBSTONE
    ctypedef struct wan_entry:
        uint64_t stamp
        uint32_t value_length
        uint16_t key_length
        uint8_t stamp_site
        uint8_t key_form
        uint8_t value_form
        uint8_t state
        uint8_t *bytes
    ctypedef struct wan_slot:
        uint64_t hash
        wan_entry *entry
    ctypedef struct wan_shrunk:
        uint64_t hash, stamp
    ctypedef struct wan_shard:
        wan_lock lock
        uint32_t used
        uint32_t tombstones
        uint32_t mask
        wan_slot *slots
        uint64_t bytes, tombstone_bytes
        wan_shrunk *shrunk
        uint32_t shrunk_count
        uint32_t oldest_s
    ctypedef struct wan_table:
        wan_shard *shards
    ctypedef enum wan_outcome:
        WAN_CREATED, WAN_UPDATED, WAN_DESTROYED, WAN_MISSING, WAN_LOST, WAN_ASK, WAN_OUT_OF_MEMORY, WAN_UNMET, WAN_SAME, WAN_FORGOTTEN
    enum: WAN_ASK_DECIDED
    ctypedef struct wan_change:
        const uint8_t *key
        const uint8_t *value
        uint32_t value_length
        uint16_t key_length
        uint8_t key_form
        uint8_t value_form
        uint8_t operation
        uint8_t stamp_site
        uint64_t hash
        uint64_t stamp
        uint64_t absent_below
        uint8_t flags
        uint8_t local
        uint8_t ask
        uint8_t keep
        uint8_t waits
        int64_t tombstone_bytes
    wan_status wan_table_init(wan_table *table)
    void wan_table_close(wan_table *table)
    wan_shard *wan_table_shard(const wan_table *table, uint64_t hash)
    wan_outcome wan_table_apply(wan_shard *shard, wan_change *change)
    wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change)
    wan_outcome wan_table_judge(wan_shard *shard, wan_change *change)
    wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
    int wan_table_made_by(const wan_entry *entry, const wan_change *change)
    int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
    uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below)
    uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below)
    wan_status wan_table_shrink(wan_shard *shard)
    uint64_t wan_table_shrunk_log_bytes(const wan_shard *shard)
    int wan_table_is_worth_shrinking(const wan_shard *shard)
    uint64_t wan_table_shrunk_stamp(const wan_shard *shard, uint64_t hash)
    ctypedef struct wan_shard_content:
        wan_slot *slots
    wan_shard_content wan_table_take_all(wan_shard *shard)
    void wan_table_free(wan_shard_content content)
    const uint8_t *wan_entry_value(const wan_entry *entry)
    void wan_table_prefetch_slot(const wan_table *table, uint64_t hash)

cdef extern from "region/wan_table.h" nogil:
    void wan_prefetch_entry(const wan_table *table, uint64_t hash)

cdef extern from "region/wan_bulk.h" nogil:
    enum: WAN_BULK_CHANGED, WAN_BULK_QUEUED
    const void *wan_bulk_region
    int wan_bulk_waits

cdef extern from "region/wan_new_stamp.h" nogil:
    ctypedef struct wan_new_stamp:
        uint64_t old, fresh
    void wan_new_stamps_sort(wan_new_stamp *stamps, size_t count)
