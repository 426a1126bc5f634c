# Owns what a copy of a bucket does with the changes that its primary sends: they take effect whatever is stored,
# because inside a site the sequence decides. It runs for each change.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from pywan._core.c_base cimport *
from pywan._core.c_copies cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.put cimport change_from_record, region_hear, region_note_tombstone
from pywan._core.region_state cimport region_core


cdef inline wan_outcome region_store_version(region_core *region, wan_shard *shard, const wan_tail_entry *entry,
                                             uint64_t hash) noexcept nogil:
    """Stores the version of an entry, whatever is there. Under the entry lock."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef wan_change change
    cdef wan_outcome outcome
    change_from_record(&change, record, hash)
    change.ask, change.flags = WAN_ASK_DECIDED, WAN_FLAG_FORCED
    if entry.outcome == WAN_MISSING:
        outcome = wan_table_invalidate(shard, &change)
    else:
        outcome = wan_table_apply(shard, &change)
    if outcome == WAN_DESTROYED and region.bell != NULL:
        region_note_tombstone(region, shard, change.tombstone_bytes)
    return outcome


cdef inline wan_status region_follow_change(region_core *region, uint32_t bucket, uint64_t life, uint64_t epoch,
                                            uint64_t sequence, const wan_tail_entry *entry) noexcept nogil:
    """The part of `region_follow` for an entry with a record."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef uint64_t hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form)
    cdef wan_shard *shard = wan_table_shard(&region.table, hash)
    cdef wan_tail_reservation room
    cdef wan_heard *heard = wan_tail_heard(region.tail)
    cdef wan_status status
    if wan_table_bucket(&region.table, hash).number != bucket:
        return WAN_CORRUPT
    wan_lock_take(&shard.lock)
    status = wan_tail_follow(region.tail, bucket, life, epoch, sequence, entry, &room)
    if status == WAN_OK and heard != NULL:
        status = region_hear(heard, shard, hash, wan_record_key(record), record.key_length, record.key_form,
                             entry.length)
        if status != WAN_OK:
            wan_tail_cancel(&room)
    if status == WAN_OK:
        if region_store_version(region, shard, entry, hash) == WAN_OUT_OF_MEMORY:
            if heard != NULL:
                wan_heard_cancel(heard)
            wan_tail_cancel(&room)
            status = WAN_NO_MEMORY
        else:
            if heard != NULL:
                wan_heard_add(heard, entry)
            wan_tail_followed(region.tail, &room, entry, <uint32_t>(shard - region.table.shards))
    wan_lock_release(&shard.lock)
    if status == WAN_OK:
        wan_clock_see(region.clock, record.stamp)
    return status


cdef inline wan_status region_follow(region_core *region, uint32_t bucket, uint64_t life, uint64_t epoch,
                                     uint64_t sequence, const wan_tail_entry *entry) noexcept nogil:
    """Applies the entry to which a primary gave `sequence`, and keeps it in the copy's tail. The entry was checked.
    Statuses as `wan_tail_follow`; WAN_CORRUPT: the key belongs to another bucket."""
    cdef wan_tail_reservation room
    cdef wan_status status
    if entry.kind == WAN_ENTRY_CHANGE:
        return region_follow_change(region, bucket, life, epoch, sequence, entry)
    if entry.kind == WAN_ENTRY_CLEAR:
        wan_table_bucket_take(&region.table, &region.table.buckets[bucket])
        status = wan_clear_follow(&region.table, region.tail, bucket, region.site, life, epoch, sequence, entry)
        wan_table_bucket_release(&region.table, &region.table.buckets[bucket])
        return status
    status = wan_tail_follow(region.tail, bucket, life, epoch, sequence, entry, &room)
    if status == WAN_OK:
        wan_tail_followed(region.tail, &room, entry, WAN_NO_SHARD)
    return status


cdef inline wan_status region_learn(region_core *region, uint32_t bucket, const wan_tail_entry *entry) noexcept nogil:
    """Stores an entry of an image. A destroy that found 8 bytes is a tombstone of that age in milliseconds; an entry
    with the outcome WAN_MISSING has lost its value. WAN_CORRUPT: the key belongs to another bucket. WAN_NO_MEMORY."""
    cdef const wan_record *record = wan_tail_entry_record(entry)
    cdef uint64_t hash = wan_key_hash(wan_record_key(record), record.key_length, record.key_form), made_ms
    cdef wan_shard *shard = wan_table_shard(&region.table, hash)
    cdef wan_entry *stored
    cdef wan_outcome outcome
    if wan_table_bucket(&region.table, hash).number != bucket:
        return WAN_CORRUPT
    wan_lock_take(&shard.lock)
    outcome = region_store_version(region, shard, entry, hash)
    if outcome == WAN_DESTROYED and entry.found_length == 8:
        memcpy(&made_ms, wan_tail_entry_found(entry), 8)
        made_ms = wan_clock_now_ms(region.clock) - made_ms
        stored = wan_table_find(shard, hash, wan_record_key(record), record.key_length, record.key_form)
        if stored != NULL:
            memcpy(stored.bytes + stored.key_length, &made_ms, 8)
    wan_lock_release(&shard.lock)
    if outcome == WAN_OUT_OF_MEMORY:
        return WAN_NO_MEMORY
    wan_clock_see(region.clock, record.stamp)
    return WAN_OK
