# Owns the state of a region as compiled code sees it: its table, attachment and log. Also owns the structs that
# describe one change.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_store cimport wan_source_place
from pywan._core.c_replication cimport wan_attempt, wan_changelog
from pywan._core.c_region cimport *
from pywan._core.log.committer cimport log_committer
from pywan._core.log.log_pending cimport log_pending
from pywan._core.queue.queue cimport gateway_queue

cdef enum:
    MAX_ATTACHED = 128
    STAMPS_SAMPLED = 10000

cdef struct tombstone_counts:
    uint64_t whole, shrunk, bytes

# The path that a change takes.
cdef enum:
    PATH_STRAIGHT = 0       # From the caller into the table and the queues.
    # Through the user's Python (filters, listeners, a resolver). The core takes a change only if it comes from there.
    PATH_CALLBACKS = 1
    PATH_CLOSED = 2         # The region takes no change any more.

cdef struct attachment:
    # The senders that are attached to a region, and the path of its changes. An attachment does not change once it is
    # published in region_core.attached: it is replaced as a whole. The thread that replaces it takes every entry lock
    # once and then frees the old one, so a thread that holds any entry lock may use the attachment that it read. When
    # the replacement is done, no change uses the old one. The path and the queues change together, for every row.
    uint8_t path                        # PATH_*
    uint32_t count
    uint32_t recipient_count
    uint8_t recipients[256]             # Remote sites of the attached senders that run: an event will reach them.
    gateway_queue *queues[MAX_ATTACHED]  # In the order of their places: several locks are taken in this order.
    # For each queue, in a region that several members hold: the first partition of the region's run. It is set before
    # the region has a change log.
    uint32_t firsts[MAX_ATTACHED]
    # For each queue: its sender has filters that are asked before an event enters. Only with PATH_CALLBACKS.
    uint8_t asks[MAX_ATTACHED]

cdef struct region_core:
    wan_table table
    attachment *attached
    wan_clock *clock
    uint32_t member
    uint16_t number
    uint8_t site
    uint32_t buckets        # Of a partitioned region. 0: the region is not partitioned.
    uint8_t stores          # 0: a proxy, which holds no entries and only forwards.
    uint8_t forwards        # 0: a LOCAL or NORMAL region, whose changes enter no queue.
    int closed              # Once this is set, every attachment that is published has PATH_CLOSED.
    # An attached queue, or the region's own log, is synchronous: a change is done when it is on the disk.
    int durable
    # The region, or an attached queue, has a log. What a log does not have yet is not acknowledged to another site.
    int logged
    region_log *log         # NULL: the region is not persistent.
    wan_changelog *changelog          # NULL: this member alone has the region.
    uint8_t reads_replicas    # With a change log: an in-sync replica answers reads too, not only the primary.
    # Destroys with stamps up to `mark` may have been forgotten while there were senders that can send older events.
    # 0: no destroy was.
    uint64_t mark
    # Destroys with stamps up to `let_go` may have been forgotten, for any reason. It never falls. Both are raised
    # before the destroys are forgotten.
    uint64_t let_go
    int64_t tombstone_room  # Bytes that tombstones may still take before the bell rings. Atomic.
    uint32_t *bell          # The housekeeper's bell. NULL: nobody listens.
    uint64_t conflicts      # Changes that lost against a later version.
    uint64_t applied        # Remote changes that took effect.

cdef enum:
    IF_ABSENT = 1   # The key has no value: it is not there, or was invalidated.
    IF_VALUE = 2    # The key has a value.
    IF_EQUAL = 3    # The key has this value: the same form and the same bytes.
    IF_THERE = 4    # The key is there, with a value or without.

cdef struct condition:
    # What a conditional change asks for, and what the table had.
    uint8_t kind            # IF_*
    uint8_t form            # Of the value that IF_EQUAL asks for; so are the next two.
    uint32_t length
    const uint8_t *value
    uint8_t holds
    uint8_t found_value     # There was a value. It is copied into `found`, but not for IF_EQUAL.
    uint8_t found_form
    wan_buffer found

cdef struct origin:
    # Where a change comes from. For a local change there are no recipients, and the event id is this thread's.
    uint8_t site
    uint8_t recipient_count
    const uint8_t *recipients
    uint32_t event_member
    uint32_t event_thread
    uint64_t event_sequence
    const uint8_t *callback
    uint16_t callback_length
    uint8_t callback_form
    uint8_t possible_duplicate
    uint8_t alone           # The change is refused if members share the region: its listeners are told otherwise there.
    # The place of an event of another site in the stream that it came by. Queues recognise by it what they have taken.
    # NULL: the change is no such event, or nothing is known of its stream.
    const wan_source_place *place
    # In a region that several members hold: the call that asks for the change. Its bucket remembers it with its answer.
    wan_attempt attempt
    condition *asked        # What a conditional change asked for: the value that it found is a part of the answer.

cdef struct decision:
    # What is known about an event at one attached sender before it is decided whether the sender's queue takes it.
    uint8_t asked           # The user's filters were asked. They let the event through, if the next two are 0.
    uint8_t filtered
    uint8_t withheld        # The substitution filter failed, and nothing may be sent without it.
    uint8_t substituted     # A filter gave the value below instead of the change's own.
    uint8_t value_form
    uint32_t value_length
    const uint8_t *value

cdef enum:
    UNWRITTEN_BITS = 20

cdef struct log_moving:
    # How far a region's log is being shortened (region_log_move). Only the holder of the committer's role touches it.
    uint32_t segments           # So many of the oldest segments are leaving the log. 0: none is.
    wan_buffer records          # The records that live in them, in the order in which they were written, each once.
    wan_item_set of_records     # Finds the copies that a failed move left: all of them live, and one is moved on.
    # Bytes of `records` that are in the log again. The segments may go when all of `records` are there, and the pending
    # records are written too. With `alone`, the pending records are not waited for.
    uint64_t written
    bint has_moved              # Some segments were read since the log was opened.
    # The store is near its limit, so the segments have to go before the pending records can be written. `superseded`
    # are the records in them that are not current. The records that took their place may not be on the disk.
    bint alone
    wan_buffer superseded
    # A sweep moves what lives out of the segments up to this one. 0: no sweep runs.
    uint64_t sweep_end
    # What `written_count` of the log was when the last sweep began. If there are no more now, another sweep finds
    # nothing. NO_SWEEP: no sweep has begun in this process.
    uint64_t sweep_written
    uint64_t bytes_after_sweep  # Bytes of the log when the last sweep ended. What was written since may be history.
    uint64_t live_after_sweep   # About how many of these lived.
    uint64_t swept_us           # When that was.

cdef struct log_unwritten:
    # What a crash would bring back while records are pending (region_log_superseded). Only the holder of the
    # committer's role touches it.

    # A bit is set for each key, by its hash, that has a pending record; other keys may share the bit.
    uint64_t keys[1 << (UNWRITTEN_BITS - 6)]
    # The same for each key that has a record, pending or in the log, which took the place of a later version. Threads
    # that change the region set these bits too, under the lock.
    uint64_t restamped[1 << (UNWRITTEN_BITS - 6)]
    # The newest record on the disk of each key that had a pending record at the last look through the log: its head and
    # its key. A crash would bring back that record, so no other one has to be kept.
    wan_buffer newest
    wan_item_set of_newest
    # How many records had ever been pending at the last look. 0: nobody has looked since the last sweep began.
    uint64_t looked
    uint64_t looked_written     # What `written_count` of the log was at the last look.

cdef struct passed_record:
    uint64_t number
    uint64_t hash       # Of its key.

cdef struct region_log:
    # Guards the pending records, and what the committer's comments call "under the owner's lock". It is taken after
    # entry locks and queue locks.
    wan_lock lock
    log_committer committer
    log_pending records         # Changes, each a wan_logged.
    # Bytes of the records taken that are in the log already. Only the holder of the committer's role touches it.
    uint64_t written
    uint64_t written_count      # How many records were written so far. Only the holder of the role touches it.
    # The keys of the records that later ones passed, by their numbers: a `passed_record` each. Those whose key still
    # has a record that waits for room. Only the holder of the role touches it.
    wan_buffer passed
    # A repair of the clock is replacing a later version with this change now; `replaced` is the stamp of that version.
    # NULL: it is not. Guarded by the entry lock of the key and by the lock; one change at a time.
    const wan_change *restamping
    uint64_t replaced
    # When so many records are on the disk, the last record that set the highest stamp back is. Under the lock.
    uint64_t reset_given
    region_core *region
    log_moving moving
    log_unwritten unwritten
    # What recovery found (region_recovery).
    uint64_t highest            # The highest stamp.
    uint64_t recovered, cut_bytes
    wan_buffer damages          # Each a wan_damage. Only for salvage.
