# Owns nothing but names: the C of csrc/region as Cython sees it.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *

cdef extern from "region/wan_logged.h" nogil:
    enum:
        WAN_LOGGED_FORGET, WAN_LOGGED_INVALID, WAN_LOGGED_MARK, WAN_LOGGED_LET_GO, WAN_LOGGED_RESTAMPED
        WAN_LOGGED_SMALLER
    ctypedef struct wan_logged:
        uint32_t value_length
        uint16_t key_length
        uint8_t kinds
        uint8_t stamp_site
        uint64_t stamp
        uint64_t other_stamp
        uint8_t operation
        uint8_t key_form
        uint8_t value_form
    uint64_t wan_logged_size(uint32_t key_length, uint32_t value_length)
    uint32_t wan_logged_length(const wan_logged *logged)
    uint8_t *wan_logged_key(const wan_logged *logged)
    uint8_t *wan_logged_value(const wan_logged *logged)
    void wan_logged_write(uint8_t *to, uint64_t length, wan_logged head, const uint8_t *key, const uint8_t *value)
    wan_status wan_logged_check(const uint8_t *at, uint64_t length)
    int wan_logged_has_end(const wan_logged *logged, uint64_t length)
    int wan_logged_order(const wan_logged *a, const wan_logged *b)
    wan_item_key wan_logged_item_key(const uint8_t *item)

cdef extern from "region/wan_table.h" nogil:
    enum: WAN_BUCKETS_DEFAULT
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
    ctypedef struct wan_shrunk:
        uint64_t hash, stamp
    ctypedef struct wan_shrunk_list:
        uint64_t count
        wan_shrunk *items
    ctypedef struct wan_shard:
        wan_lock lock
        uint32_t used
        uint32_t tombstones
        uint64_t bytes, tombstone_bytes
        wan_shrunk_list *shrunk
        uint32_t oldest_s
    enum: WAN_BUCKET_PRIMARY
    ctypedef struct wan_bucket:
        uint32_t number, first_shard, shard_count
        uint8_t role
    ctypedef struct wan_slab:
        wan_limit *limit
    ctypedef struct wan_table:
        wan_slab slab
        wan_shard *shards
        wan_bucket *buckets
        uint32_t shard_count, bucket_count
    ctypedef enum wan_outcome:
        WAN_CREATED, WAN_UPDATED, WAN_DESTROYED, WAN_MISSING, WAN_LOST, WAN_ASK, WAN_OUT_OF_MEMORY, WAN_UNMET
        WAN_SAME, WAN_FORGOTTEN
    enum: WAN_ASK_NOBODY, WAN_ASK_RESOLVER, WAN_ASK_DECIDED
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
        uint8_t fault
        uint8_t waits
        int64_t tombstone_bytes
        uint32_t replaced_length
        uint64_t logged
        uint64_t local_fence, sequence
        uint32_t recalled
    wan_status wan_table_init(wan_table *table, uint32_t buckets)
    void wan_table_close(wan_table *table)
    wan_shard *wan_table_shard(const wan_table *table, uint64_t hash)
    wan_outcome wan_table_apply(wan_shard *shard, wan_change *change)
    wan_outcome wan_table_invalidate(wan_shard *shard, wan_change *change)
    wan_outcome wan_table_decide(wan_shard *shard, wan_change *change)
    wan_entry *wan_table_find(const wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length,
                              uint8_t key_form)
    int wan_table_made_by(const wan_entry *entry, const wan_change *change)
    int wan_table_forget(wan_shard *shard, uint64_t hash, const uint8_t *key, uint16_t key_length, uint8_t key_form)
    uint64_t wan_table_expire(wan_shard *shard, uint64_t before_ms, uint64_t below)
    uint64_t wan_table_newest_to_expire(const wan_shard *shard, uint64_t before_ms, uint64_t below)
    wan_status wan_table_shrink(wan_shard *shard)
    wan_status wan_table_learn_shrunk(wan_shard *shard, const wan_shrunk *items, uint64_t count)
    uint64_t wan_table_shrunk_log_bytes(const wan_shard *shard)
    int wan_table_is_worth_shrinking(const wan_shard *shard)
    uint64_t wan_table_shrunk_stamp(const wan_shard *shard, uint64_t hash)
    ctypedef struct wan_shard_content:
        uint64_t layout
    wan_shard_content wan_table_take_all(wan_shard *shard)
    void wan_table_free(wan_shard_content content)
    const uint8_t *wan_entry_value(const wan_entry *entry)
    void wan_table_drop_spare(wan_table *table)
    void wan_table_set_limit(wan_table *table, wan_limit *limit)
    bint wan_table_is_short(const wan_table *table)
    bint wan_table_grows(wan_shard *shard, const wan_change *change, bint counts_free)
    uint64_t wan_table_free_bytes(wan_table *table)
    uint64_t wan_entry_hash(const wan_entry *entry)
    uint64_t wan_shard_slots(const wan_shard *shard)
    wan_entry *wan_shard_entry(const wan_shard *shard, uint64_t at)
    uint64_t wan_shard_shrunk_count(const wan_shard *shard)
    uint64_t wan_shard_slot_bytes(const wan_shard *shard)
    ctypedef struct wan_bucket_counts:
        uint64_t entries, tombstones, shrunk, bytes
    wan_bucket *wan_table_bucket(const wan_table *table, uint64_t hash)
    wan_bucket_counts wan_table_bucket_count(wan_table *table, const wan_bucket *bucket)
    uint64_t wan_table_bucket_digest(wan_table *table, const wan_bucket *bucket)
    wan_status wan_table_bucket_copy(wan_table *table, const wan_bucket *bucket, wan_table *to)
    uint64_t wan_table_bucket_drop(wan_table *table, const wan_bucket *bucket)
    void wan_table_bucket_take(wan_table *table, const wan_bucket *bucket)
    void wan_table_bucket_release(wan_table *table, const wan_bucket *bucket)
    void wan_table_prefetch_slot(const wan_table *table, uint64_t hash)
    void wan_table_prefetch_entry(const wan_table *table, uint64_t hash, uint64_t bytes)
    enum: WAN_FETCH_STEP, WAN_FETCH_KEPT
    ctypedef struct wan_fetch:
        uint32_t noted
    void wan_fetch_next(const wan_table *table, wan_fetch *fetch, uint64_t hash, uint64_t bytes, int is_row)
    uint64_t wan_fetch_hash(const wan_fetch *fetch, uint32_t row)

cdef extern from "region/wan_deadline.h" nogil:
    uint64_t wan_deadline_us
    uint32_t wan_call_depth
    uint64_t wan_deadline_of(uint64_t began_us, uint64_t limit_us)

cdef extern from "region/wan_bulk.h" nogil:
    enum: WAN_BULK_CHANGED, WAN_BULK_QUEUED
    const void *wan_bulk_region
    int wan_bulk_waits

cdef extern from "region/wan_new_stamp.h" nogil:
    ctypedef struct wan_new_stamp:
        uint64_t old, fresh
    void wan_new_stamps_sort(wan_new_stamp *stamps, size_t count)
