# Owns nothing but names: the C of csrc/replication as Cython sees it.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport wan_table
from pywan._core.c_store cimport wan_queue
from pywan._core.c_tables cimport wan_record

cdef extern from "replication/wan_answers.h" nogil:
    enum: WAN_ANSWERS_BYTES_MAX
    ctypedef struct wan_call_identity:
        uint64_t caller, number
        uint16_t slot
    ctypedef struct wan_answers:
        uint32_t count, refused_count
        uint64_t found_bytes
    ctypedef struct wan_answer_item:
        pass
    uint64_t wan_answer_item_size(const wan_answer_item *item)
    wan_status wan_answers_callers(const wan_answers *answers, wan_buffer *to)
    wan_status wan_answers_pack(const wan_answers *answers, wan_buffer *to, uint64_t *largest)
    wan_status wan_answers_unpack(wan_answers *answers, const wan_answer_item *item, uint32_t count)

cdef extern from "replication/wan_slots.h" nogil:
    ctypedef struct wan_slots:
        uint64_t caller
        uint32_t count
    void wan_slots_init(wan_slots *slots, uint64_t caller)
    void wan_slots_close(wan_slots *slots)
    wan_status wan_slots_take(wan_slots *slots, wan_call_identity *call)
    void wan_slots_give(wan_slots *slots, wan_call_identity call)
    uint64_t wan_slots_rename(wan_slots *slots, uint64_t old, uint64_t fresh)

cdef extern from "replication/wan_changelog.h" nogil:
    enum: WAN_REPL_LINKS_MAX, WAN_SNAPSHOT_DONE, WAN_NO_SHARD
    enum: WAN_REPLICA_ABSENT, WAN_REPLICA_LEARNER, WAN_REPLICA_IN_SYNC, WAN_REPLICA_TAKING_OVER, WAN_REPLICA_PRIMARY
    enum: WAN_ENTRY_CHANGE, WAN_ENTRY_FORGET, WAN_ENTRY_CLEAR
    enum: WAN_CHANGELOG_REMEMBERED, WAN_CHANGELOG_FOUND, WAN_CHANGELOG_ROW, WAN_CHANGELOG_LEFT_OUT
    enum: WAN_FOLLOWER_LEARNING, WAN_FOLLOWER_WAITED
    ctypedef struct wan_changelog_entry:
        uint32_t length, verdict_length, found_length, row
        uint8_t outcome, found_form, flags, kind
    ctypedef struct wan_verdict:
        uint64_t sender
        uint32_t value_length
        uint8_t verdict, is_substituted, value_form
    const wan_verdict *wan_verdict_next(const wan_verdict *verdict)
    const wan_verdict *wan_changelog_entry_verdicts(const wan_changelog_entry *entry)
    wan_call_identity *wan_changelog_entry_call(const wan_changelog_entry *entry)
    wan_record *wan_changelog_entry_record(const wan_changelog_entry *entry)
    uint32_t wan_changelog_entry_found_length(const wan_changelog_entry *entry)
    uint8_t *wan_changelog_entry_found(const wan_changelog_entry *entry)
    enum: WAN_REPL_LINK_RUNS, WAN_REPL_LINK_WAITS, WAN_REPL_LINK_RESTS
    ctypedef struct wan_changelog
    ctypedef struct wan_repl_link_wait:
        wan_changelog *changelog
        uint32_t bucket
        int other_file
        uint64_t local_fence, sequence, until_us
    ctypedef struct wan_repl_link_state:
        uint32_t asleep
        int wake_file, rest_file
        uint64_t read_lease_until_us
        uint32_t is_connected, wants_read_lease
        uint64_t answered_us
        uint32_t is_short
        char *other
        void (*run)(void *runner, const wan_repl_link_wait *wait) noexcept nogil
        void *runner
    ctypedef struct wan_changelog_replica:
        uint32_t repl_link
        uint8_t state
        uint64_t transfer, sent, acked, told, notified
        uint32_t snapshot_shard
        uint8_t snapshot_acked, caught_up, confirmed, asked, refused, queued, queue_only
        uint64_t place_sequence, place, retry_us
    ctypedef struct wan_waker:
        uint32_t asleep
        int wake_file
        uint32_t users
        wan_pending_call *ready
    const uint64_t WAN_PENDING_UNTIL_ROLE
    ctypedef struct wan_pending_call:
        wan_pending_call *before
        wan_pending_call *behind
        wan_waker *owner
        uint64_t local_fence, sequence
        uint32_t is_waiting
    ctypedef struct wan_changelog_bucket:
        wan_lock lock
        uint8_t role, queue_only
        uint32_t changed, waiters
        uint64_t local_fence, timeline, epoch, log_end, high_watermark, first
        wan_buffer changes
        uint32_t leader, holder_count
        uint32_t *holders
        uint64_t dropped_bytes, transfer, learned
        wan_changelog_replica *replicas
        uint32_t replica_count
        wan_answers answers
    ctypedef struct wan_attempt:
        wan_call_identity call
        uint64_t since
        uint32_t row
        uint8_t is_row, waits
    ctypedef struct wan_recalled:
        uint64_t local_fence, sequence
        uint32_t applied
        uint8_t outcome, found_form, has_found
    ctypedef struct wan_notifications_of_bucket:
        wan_buffer items
    ctypedef struct wan_notifications:
        uint64_t bytes, dropped, forgotten
        wan_notifications_of_bucket *kept
    ctypedef struct wan_feed:
        wan_queue *queue
        wan_lock *lock
        void *owner
        uint32_t first
    ctypedef struct wan_feeds:
        uint32_t count
        wan_feed *items
    ctypedef struct wan_changelog:
        wan_budget *budget
        wan_notifications *notifications
        wan_feeds *feeds
        wan_changelog_bucket *buckets
        uint32_t bucket_count, shard_count, min_isr
        uint64_t *shard_last
        wan_repl_link_state *repl_links[WAN_REPL_LINKS_MAX]
        uint64_t *to_send[WAN_REPL_LINKS_MAX]
        uint64_t *removals[WAN_REPL_LINKS_MAX]
        uint64_t lease_until_us, notification_limit_us
    ctypedef struct wan_changelog_reservation:
        wan_changelog_bucket *bucket
        uint8_t *at
        uint64_t length, sequence
        wan_recalled recalled
    wan_status wan_changelog_init(wan_changelog *changelog, uint32_t buckets, uint32_t shards, uint32_t min_isr)
    void wan_changelog_close(wan_changelog *changelog)
    uint8_t wan_changelog_role(const wan_changelog *changelog, uint32_t bucket)
    const wan_repl_link_state *wan_changelog_short_replica(const wan_changelog *changelog,
                                                           const wan_changelog_bucket *bucket)
    bint wan_changelog_lease_runs(const wan_changelog *changelog)
    wan_status wan_changelog_entry_check(const uint8_t *at, uint64_t bytes, bint is_snapshot)
    void wan_changelog_set_lease(wan_changelog *changelog, uint64_t until_us)
    int wan_changelog_set_primary_until(wan_changelog *changelog, uint64_t until_us)
    wan_status wan_changelog_add_repl_link(wan_changelog *changelog, uint32_t repl_link, wan_repl_link_state *state)
    void wan_changelog_remove_repl_link(wan_changelog *changelog, uint32_t repl_link)
    wan_feeds *wan_changelog_feeds(const wan_changelog *changelog)
    void wan_changelog_begin_at(wan_changelog *changelog, uint32_t bucket, uint64_t sequence)
    wan_status wan_changelog_set_feeds(wan_changelog *changelog, const wan_feed *feeds, uint32_t count)
    void wan_changelog_has_fed(wan_changelog *changelog, const wan_queue *queue)
    wan_status wan_changelog_reserve(wan_changelog *changelog, uint32_t bucket, uint64_t length,
                                     const wan_attempt *attempt,
                                     wan_changelog_reservation *room)
    uint64_t wan_changelog_commit(wan_changelog *changelog, wan_changelog_reservation *room, uint32_t shard)
    void wan_changelog_cancel(wan_changelog_reservation *room)
    wan_status wan_changelog_reserve_next(wan_changelog_reservation *room, uint64_t length)
    uint64_t wan_changelog_commit_next(wan_changelog *changelog, wan_changelog_reservation *room, uint32_t shard)
    uint64_t wan_changelog_commit_end(wan_changelog *changelog, wan_changelog_reservation *room, uint64_t before)
    void wan_changelog_run_repl_link(const wan_repl_link_wait *wait)
    void wan_repl_link_wake(wan_repl_link_state *state)
    wan_status wan_changelog_cached_reply(wan_changelog *changelog, uint32_t bucket, const wan_attempt *attempt,
                                          wan_recalled *recalled,
                                          wan_buffer *found)
    wan_status wan_changelog_forget(wan_changelog *changelog, uint32_t bucket, uint64_t caller)
    wan_status wan_changelog_wait(wan_changelog *changelog, uint32_t bucket, uint64_t local_fence, uint64_t sequence,
                                  uint32_t timeout_ms)
    uint32_t wan_changelog_made_with(wan_changelog *changelog, uint32_t bucket, uint64_t sequence, bint is_repeat)
    wan_status wan_changelog_add_pending(wan_changelog *changelog, uint32_t bucket, wan_pending_call *pending)
    int wan_changelog_remove_pending(wan_changelog *changelog, uint32_t bucket, wan_pending_call *pending)
    wan_pending_call *wan_waker_take(wan_waker *waker)
    bint wan_waker_has_ready(const wan_waker *waker)
    void wan_waker_set_asleep(wan_waker *waker, uint32_t value)
    void wan_waker_end(wan_waker *waker)
    void wan_changelog_set_leader(wan_changelog *changelog, uint32_t bucket, uint32_t leader, int queue_only)
    void wan_changelog_set_holders(wan_changelog *changelog, uint32_t bucket, uint32_t *holders, uint32_t count)
    bint wan_changelog_is_holder(const wan_changelog_bucket *bucket, uint32_t member)
    void wan_changelog_end_replica(wan_changelog_bucket *bucket)
    bint wan_changelog_is_queue_only(const wan_changelog *changelog, uint32_t bucket)
    void wan_changelog_set_role(wan_changelog *changelog, uint32_t bucket, uint8_t role, uint64_t timeline,
                                uint64_t epoch,
                                uint64_t transfer)
    wan_status wan_changelog_set_replicas(wan_changelog *changelog, uint32_t bucket,
                                          const wan_changelog_replica *replicas, uint32_t count)
    int wan_changelog_may_read(wan_changelog *changelog, uint32_t bucket, uint64_t now_us)
    wan_status wan_changelog_follow(wan_changelog *changelog, uint32_t bucket, uint64_t timeline, uint64_t epoch,
                                    uint64_t sequence,
                                    const wan_changelog_entry *entry, wan_changelog_reservation *room)
    void wan_changelog_followed(wan_changelog *changelog, wan_changelog_reservation *room,
                                const wan_changelog_entry *entry, uint32_t shard)
    void wan_changelog_follow_end(wan_changelog *changelog, wan_changelog_reservation *room)
    void wan_changelog_told(wan_changelog *changelog, uint32_t bucket, uint64_t timeline, uint64_t epoch,
                            uint64_t high_watermark,
                            uint64_t notified, uint64_t contact)
    bint wan_changelog_replica_may_answer(const wan_changelog *changelog, uint32_t bucket)
    int wan_changelog_acknowledged(wan_changelog *changelog, uint32_t bucket, uint32_t repl_link, uint64_t timeline,
                                   uint64_t epoch,
                                   uint64_t sequence)
    enum: WAN_CHANGELOG_GREW, WAN_CHANGELOG_CAUGHT_UP
    int wan_changelog_snapshot_acked(wan_changelog *changelog, uint32_t bucket, uint32_t repl_link, uint64_t timeline,
                                     uint64_t epoch,
                                     uint64_t transfer)
    bint wan_changelog_holds_back(wan_changelog *changelog, uint32_t bucket, uint64_t now_us)
    bint wan_changelog_has_learner(const wan_changelog *changelog, uint32_t bucket)
    void wan_changelog_charge(wan_changelog *changelog, wan_changelog_bucket *bucket)
    uint64_t wan_changelog_behind(wan_changelog *changelog, uint32_t repl_link)
    void wan_changelog_tell_again(wan_changelog *changelog, uint32_t bucket)
    bint wan_changelog_take_again(wan_changelog *changelog, uint32_t repl_link, uint32_t bucket)
    void wan_changelog_rewind(wan_changelog *changelog, uint32_t repl_link)

cdef extern from "replication/wan_contact.h" nogil:
    uint64_t wan_contact_begin()
    void wan_contact_received(uint64_t contact, uint64_t after_us)
    void wan_contact_end(uint64_t contact)

cdef extern from "replication/wan_clear.h" nogil:
    wan_status wan_clear_make(wan_table *table, wan_changelog *changelog, uint32_t bucket, uint8_t site,
                              const wan_attempt *attempt, wan_recalled *made, uint64_t *entries)
    wan_status wan_clear_follow(wan_table *table, wan_changelog *changelog, uint32_t bucket, uint8_t site,
                                uint64_t timeline,
                                uint64_t epoch, uint64_t sequence, const wan_changelog_entry *entry)

cdef extern from "replication/wan_notifications.h" nogil:
    enum: WAN_NOTIFICATIONS_BYTES_MAX
    ctypedef struct wan_notification:
        uint64_t length, sequence
        uint32_t old_length
        uint8_t has_old, old_form, may_repeat
    ctypedef struct wan_notifications_state:
        uint64_t bytes, dropped, forgotten, standing_us, stood_us
    ctypedef enum wan_notify:
        WAN_NOTIFY_REPLICAS, WAN_NOTIFY_LED, WAN_NOTIFY_AND_SAY
    wan_notifications *wan_changelog_notifications(const wan_changelog *changelog)
    wan_status wan_changelog_keep_notifications(wan_changelog *changelog, wan_notify which)
    bint wan_notifications_are_full(const wan_notifications *notifications)
    bint wan_notifications_refuse(const wan_notifications *notifications)
    bint wan_notifications_are_waited_for(const wan_notifications *notifications)
    void wan_notifications_relieve(wan_changelog *changelog)
    wan_status wan_notifications_begin(wan_notifications *notifications, uint32_t bucket, uint64_t sequence,
                                       const uint8_t *old,
                                       uint32_t old_length, uint8_t old_form, uint64_t entry_length)
    void wan_notifications_add(wan_notifications *notifications, uint32_t bucket, const wan_changelog_entry *entry)
    uint64_t wan_notifications_through(const wan_notifications *notifications, uint32_t bucket, uint64_t high_watermark)
    bint wan_notifications_next(wan_changelog *changelog, wan_buffer *to, uint32_t timeout_ms)
    uint64_t wan_notifications_end(wan_changelog *changelog)
    void wan_notifications_look(const wan_notifications *notifications, wan_notifications_state *state)
