# Owns the state of a region as compiled code sees it: table, attachment, log; and what describes a change.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_record cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.committer cimport log_committer
from pywan._core.log_pending cimport log_pending
from pywan._core.queue cimport gateway_queue

cdef enum:
    MAX_ATTACHED = 128
    STAMPS_SAMPLED = 10000

cdef struct tombstone_counts:
    uint64_t whole, shrunk, bytes

cdef enum:
    WAY_STRAIGHT = 0    # From the caller into table and queues.
    WAY_CALLBACKS = 1   # Through the user's Python (filters, listeners, a resolver): only changes that come from there are taken.
    WAY_CLOSED = 2      # No change is taken any more.

cdef struct attachment:
    # Immutable once published in region_core.attached; replaced as a whole and freed after every entry lock has
    # been held once by the replacer, so a holder of any entry lock may use what it read. When the replacer is done no change goes by the
    # old one any more: the way changes together with the queues, for every row.
    uint8_t way                         # WAY_*
    uint32_t count
    uint32_t recipient_count
    uint8_t recipients[256]             # Remote sites of the attached senders that run: whom an event will reach.
    gateway_queue *queues[MAX_ATTACHED] # In the order of their places: several locks are taken in this order.
    uint8_t asks[MAX_ATTACHED]          # Of each: its sender has filters that are asked before an event enters. Only with WAY_CALLBACKS.

cdef struct region_core:
    wan_table table
    attachment *attached
    wan_clock *clock
    uint32_t member
    uint16_t number
    uint8_t site
    uint32_t buckets        # Of a partitioned region; 0: it has none.
    uint8_t stores          # 0: a proxy, which holds no entries and only forwards.
    uint8_t forwards        # 0: LOCAL or NORMAL, never queued.
    int closed              # Once set, every attachment that is published has WAY_CLOSED.
    int durable             # An attached queue, or the region's own log, is synchronous: a change is done when it is on the disk.
    region_log *log         # NULL unless the region is persistent.
    uint64_t mark           # Destroys with stamps up to here may have been forgotten, with senders that can send older events; 0: none was.
    uint64_t let_go         # Destroys with stamps up to here may not be remembered, for whatever reason; never falls. Both are raised before.
    int64_t tombstone_room  # Bytes that tombstones may still take before the bell rings. Atomic.
    uint32_t *bell          # Of the housekeeper; NULL: nobody wants to know.
    uint64_t conflicts      # Changes that lost against a later version.
    uint64_t applied        # Remote changes that took effect.

cdef struct origin:
    # Where a change comes from. Local: recipients empty, event ids of this thread.
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

cdef enum:
    IF_ABSENT = 1   # The key has no value: it is not there, or was invalidated.
    IF_VALUE = 2    # It has one;
    IF_EQUAL = 3    # of this form, these bytes.
    IF_THERE = 4    # It is there, with a value or without.

cdef struct condition:
    # What a change asks for, and what was there.
    uint8_t kind            # IF_*
    uint8_t form            # IF_EQUAL.
    uint32_t length
    const uint8_t *value
    uint8_t holds
    uint8_t found_value     # There was a value. Unless IF_EQUAL, it is copied:
    uint8_t found_form
    wan_buffer found

cdef struct decision:
    # What is known about one attached sender's copy before the decision, and afterwards what was decided.
    uint8_t asked           # The user's Python was: it did not refuse, unless
    uint8_t filtered
    uint8_t given           # Another member has decided: `verdict`, whatever is so here.
    uint8_t verdict         # ENQUEUE_*. Set once the event is enqueued;
    uint8_t is_decided      # then this is, too.
    uint8_t substituted     # By this value.
    uint8_t value_form
    uint32_t value_length
    const uint8_t *value

cdef enum:
    UNWRITTEN_BITS = 20

cdef struct log_moving:
    # How far a region's log is being shortened (region_log_move). Who has the committer's role touches it.
    uint32_t segments           # So many of the oldest segments are on their way out of the log; 0: none are.
    wan_buffer records          # What lives in them, in the order in which it was written, each record once.
    wan_item_set of_records     # A move that failed left copies: they all live, and one goes on.
    uint64_t written            # Bytes of `records` that are in the log again. With all of them there the segments may go, if also what is
                                # staged is written, or `alone`.
    bint has_moved              # Some segments were read since the log was opened.
    # The store is near its limit, and the segments have to go before what is staged can be written. `superseded` are their records that are
    # no longer current; what took their place may not be on the disk.
    bint alone
    wan_buffer superseded
    uint64_t sweep_end           # Near the limit the log is gone around up to this segment; 0: that has not begun, or is done.
    uint64_t sweep_durable     # Records on the disk when the last time around began. Without others another one finds nothing. NO_SWEEP: none
                                # has begun in this process.
    uint64_t bytes_after_sweep          # Bytes of the log when the last time around was done: what came since may be history.

cdef struct log_unwritten:
    # What a crash would bring back while records are staged (region_log_superseded). Who has the committer's role touches it.
    uint64_t keys[1 << (UNWRITTEN_BITS - 6)]        # A bit is set for each key that is staged and not written, by its hash; perhaps for others.
    # The same for keys of which a record, staged or in the log, takes the place of a later version. It is set under the lock, by stagers too.
    uint64_t restamped[1 << (UNWRITTEN_BITS - 6)]
    # The newest record on the disk of each key that was staged and not written at the last look through the log: its head and key. A crash
    # would bring that one back, so no other has to be kept.
    wan_buffer newest
    wan_item_set of_newest
    uint64_t looked             # What had been staged at the last look; 0: nobody has looked since the last time around began.
    uint64_t looked_durable     # What had been written by then.

cdef struct region_log:
    wan_lock lock               # Guards what is staged, and of the committer what is under its owner's lock. Taken after entry and queue locks.
    log_committer committer
    log_pending records           # Changes, each a wan_logged.
    uint64_t written            # Bytes of the records taken that are in the log already. Who has the committer's role touches it.
    # The change with which a repair of the clock replaces a later version now, whose stamp was `replaced`; NULL: none.
    # Under the entry lock of its key and the lock; one at a time.
    const wan_change *restamping
    uint64_t replaced
    uint64_t reset_staged       # The last record that set the highest stamp back is on the disk once so many are. Under the lock.
    region_core *region
    log_moving moving
    log_unwritten unwritten
    # What recovery found (region_recovery).
    uint64_t highest            # The highest stamp.
    uint64_t recovered, cut_bytes
    wan_buffer damages          # wan_damage, in salvage.
