# The interface of repl_snapshot.pyx.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport wan_feeds, wan_changelog_bucket, wan_changelog_replica
from pywan._core.region.region_state cimport region_core

cdef struct repl_bucket:
    uint32_t region, bucket

cdef struct repl_snapshot:
    # The snapshot that a replication link is sending, only one at any moment. The queued events come first, then the
    # shards. `events`, or `entries`, `shrunk` and `answers`, have copied content that was not laid out yet. The stream
    # through `through` is sent before the copied content.
    repl_bucket where
    uint64_t timeline, epoch, transfer
    uint64_t through
    wan_buffer events               # wan_snapshot_event items with their records.
    wan_buffer entries              # wan_changelog_entry items with their records.
    wan_buffer shrunk               # wan_shrunk.
    wan_buffer answers              # wan_answer_item. Sent with the last run.
    uint64_t largest                # Bytes of the largest copied item.
    const wan_feeds *feeds          # The feeds when the first event was copied. Only compared.
    uint32_t next_feed              # The queue from which events are copied.
    uint64_t next_event             # The next sequence to copy. 0: the first sequence of the queue.
    uint8_t has_events              # All queued events were copied.
    uint32_t next_shard             # Of the bucket's shards, from 0.
    uint8_t queue_only              # The learner gets only the queued events.
    uint8_t is_active
    uint8_t is_copied               # The content of some shards waits to be laid out. The content may be empty.
    uint8_t is_whole                # All shards were copied.

cdef wan_changelog_replica *replica_of(wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil
cdef bint snapshot_begin(repl_snapshot *snapshot, wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil
cdef int snapshot_copy(repl_snapshot *snapshot, region_core *core, uint32_t repl_link) noexcept nogil
cdef bint snapshot_stays(const repl_snapshot *snapshot, wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil
cdef bint snapshot_is_next(const repl_snapshot *snapshot, wan_changelog_bucket *at, uint32_t repl_link) noexcept nogil
cdef uint64_t snapshot_lay(repl_snapshot *snapshot, wan_buffer *out, uint64_t id, uint32_t answered,
                           uint64_t most) noexcept nogil
