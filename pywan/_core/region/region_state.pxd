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
    PATH_STRAIGHT = 0       # Fast path: from the caller into the table and the queues.
    # Slow path, through the user's Python (filters, listeners, a resolver). The core takes a change only from there.
    PATH_CALLBACKS = 1
    PATH_CLOSED = 2         # The region takes no change any more.

cdef struct attachment:
    # The senders that are attached to a region, and the path of its changes. An attachment does not change once
    # published in region_core.attached: a new attachment replaces the old attachment as a whole. The replacing thread
    # takes every entry lock once and then frees the old attachment, so a thread that holds any entry lock may use the
    # attachment that it read. When the replacement is done, no change uses the old attachment. The path and the queues
    # change together, for every row.
    uint8_t path                        # PATH_*
    uint32_t count
    uint32_t recipient_count
    uint8_t recipients[256]             # Remote sites of the attached running senders: an event will reach the sites.
    gateway_queue *queues[MAX_ATTACHED]  # In the order of their places: several locks are taken in this order.
    # For each queue, in a region that several members hold: the first partition of the region's run. Set before the
    # region has a change log.
    uint32_t firsts[MAX_ATTACHED]
    # For each queue: the sender has filters that decide before an event enters. Only with PATH_CALLBACKS.
    uint8_t asks[MAX_ATTACHED]

cdef struct region_core:
    wan_table table
    attachment *attached
    wan_clock *clock
    uint32_t member
    uint16_t number
    uint8_t site
    uint32_t buckets        # Buckets of a partitioned region. 0: not partitioned.
    uint8_t stores          # 0: a proxy, which holds no entries and only forwards.
    uint8_t forwards        # 0: a LOCAL or NORMAL region, whose changes enter no queue.
    int closed              # Once set, every published attachment has PATH_CLOSED.
    # An attached queue, or the region's own log, is synchronous: a change is done when it is on the disk.
    int durable
    # The region, or an attached queue, has a log. A change is acknowledged to a remote site only when the logs have the
    # change.
    int logged
    region_log *log         # NULL: the region is not persistent.
    wan_changelog *changelog          # NULL: this member alone has the region.
    uint8_t reads_replicas    # If the region has a change log: in-sync replicas answer reads too, not only the primary.
    # Destroys with stamps up to `mark` may have been forgotten while senders existed that can send older events. 0: no
    # destroy was forgotten.
    uint64_t mark
    # Destroys with stamps up to `let_go` may have been forgotten, for any reason. The stamp never falls. Both stamps
    # are raised before the destroys are forgotten.
    uint64_t let_go
    int64_t tombstone_room  # Bytes that tombstones may still take before the bell rings. Atomic.
    uint32_t *bell          # The housekeeper's bell. NULL: nobody listens.
    uint64_t conflicts      # Changes that lost against a later version.
    uint64_t applied        # Remote changes that took effect.

cdef enum:
    IF_ABSENT = 1   # The key has no value: the key is absent, or was invalidated.
    IF_VALUE = 2    # The key has a value.
    IF_EQUAL = 3    # The key has this value: the same form and the same bytes.
    IF_THERE = 4    # The key is present, with or without a value.

cdef struct condition:
    # The condition of a conditional change, and the state found in the table.
    uint8_t kind            # IF_*
    uint8_t form            # Form of the value for IF_EQUAL; the next two are of this value, too.
    uint32_t length
    const uint8_t *value
    uint8_t holds
    uint8_t found_value     # The key had a value. It is copied into `found`, but not for IF_EQUAL.
    uint8_t found_form
    wan_buffer found

cdef struct origin:
    # The origin of a change. A local change has no recipients, and the event id of this thread.
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
    uint8_t alone           # Refused in a shared region, because its listeners are notified in a different way.
    # The place of a remote site's event in the stream of its arrival. Queues recognise taken events by the place. NULL:
    # the change is no event of a remote site, or the stream is unknown.
    const wan_source_place *place
    # In a region that several members hold: the call of the change. The bucket keeps the call with its reply.
    wan_attempt attempt
    condition *asked        # The condition of a conditional change: the found value is a part of the reply.

cdef struct decision:
    # The state of an event at one attached sender before the sender's queue takes or refuses the event.
    uint8_t asked           # The user's filters were asked. The event may pass, if the next two are 0.
    uint8_t filtered
    uint8_t withheld        # The substitution filter failed, so nothing may be sent.
    uint8_t substituted     # A filter gave the value below in place of the change's own value.
    uint8_t value_form
    uint32_t value_length
    const uint8_t *value

cdef enum:
    UNWRITTEN_BITS = 20

cdef struct log_moving:
    # How far a region's log is being shortened (region_log_move). Only the holder of the committer's role touches the
    # struct.
    uint32_t segments           # Number of the oldest segments that are leaving the log. 0: none.
    wan_buffer records          # The live records of these segments, in the order of writing, without duplicates.
    wan_item_set of_records     # Finds the copies that a failed move left: all copies live, and one is moved on.
    # Bytes of `records` that are in the log again. The segments may go when all of `records` are in the log, and the
    # pending records are written too. If `alone` is set, the segments do not wait for the pending records.
    uint64_t written
    bint has_moved              # Some segments were read since the log was opened.
    # The store is near its limit, so the segments have to go before the pending records can be written. `superseded`
    # are the records in the segments that are not current. Their replacements may not be on the disk.
    bint alone
    wan_buffer superseded
    # A sweep moves live records out of the segments up to this segment. 0: no sweep runs.
    uint64_t sweep_end
    # `written_count` of the log when the last sweep began. If no more records were written since, a new sweep finds
    # nothing. NO_SWEEP: no sweep has begun in this process.
    uint64_t sweep_written
    uint64_t bytes_after_sweep  # Bytes of the log when the last sweep ended. Later records may be history.
    uint64_t live_after_sweep   # About how many of these bytes were live.
    uint64_t swept_us           # When that was.

cdef struct log_unwritten:
    # The versions that a crash would bring back while records are pending (region_log_superseded). Only the holder of
    # the committer's role touches the struct.

    # A bit is set for each key, by its hash, that has a pending record; several keys may share the bit.
    uint64_t keys[1 << (UNWRITTEN_BITS - 6)]
    # The same for each key with a record, pending or in the log, that replaced a later version. Threads that change the
    # region set these bits too, under the lock.
    uint64_t restamped[1 << (UNWRITTEN_BITS - 6)]
    # The newest record on the disk of each key that had a pending record at the last look through the log: head and
    # key. A crash would bring back the newest record, so no older record has to be kept.
    wan_buffer newest
    wan_item_set of_newest
    # How many records had ever been pending at the last look. 0: no look since the last sweep began.
    uint64_t looked
    uint64_t looked_written     # `written_count` of the log at the last look.

cdef struct passed_record:
    uint64_t number
    uint64_t hash       # Of its key.

cdef struct region_log:
    # Guards the pending records, and everything that the committer's comments call "under the owner's lock". The lock
    # is taken after entry locks and queue locks.
    wan_lock lock
    log_committer committer
    log_pending records         # Changes, each a wan_logged.
    # Bytes of the taken records that are in the log already. Only the holder of the committer's role touches the field.
    uint64_t written
    uint64_t written_count      # Number of records written so far. Only the holder of the role touches the field.
    # The keys of the records that later records passed, by their numbers: a `passed_record` each. Only keys that still
    # have a record waiting for room are listed. Only the holder of the role touches the field.
    wan_buffer passed
    # A repair of the clock is replacing a later version with this change now; `replaced` is the stamp of that version.
    # NULL: no replacement. Guarded by the entry lock of the key and by the lock; one change at a time.
    const wan_change *restamping
    uint64_t replaced
    # When this number of records is on the disk, so is the last record that set the highest stamp back. Under the lock.
    uint64_t reset_given
    region_core *region
    log_moving moving
    log_unwritten unwritten
    # The findings of recovery (region_recovery).
    uint64_t highest            # The highest stamp.
    uint64_t recovered, cut_bytes
    wan_buffer damages          # Each a wan_damage. Only for salvage.
