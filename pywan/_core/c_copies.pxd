# Owns nothing but names: the C of csrc/copies as Cython sees it.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_region cimport wan_table
from pywan._core.c_store cimport wan_queue
from pywan._core.c_tables cimport wan_record

cdef extern from "copies/wan_answers.h" nogil:
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

cdef extern from "copies/wan_slots.h" nogil:
    ctypedef struct wan_slots:
        uint64_t caller
        uint32_t count
    void wan_slots_init(wan_slots *slots, uint64_t caller)
    void wan_slots_close(wan_slots *slots)
    wan_status wan_slots_take(wan_slots *slots, wan_call_identity *call)
    void wan_slots_give(wan_slots *slots, wan_call_identity call)
    uint64_t wan_slots_rename(wan_slots *slots, uint64_t old, uint64_t fresh)

cdef extern from "copies/wan_tail.h" nogil:
    enum: WAN_TAIL_LANES_MAX, WAN_IMAGE_DONE, WAN_NO_SHARD
    enum: WAN_TAIL_ABSENT, WAN_TAIL_LEARNER, WAN_TAIL_COPY, WAN_TAIL_TAKING_OVER, WAN_TAIL_PRIMARY
    enum: WAN_ENTRY_CHANGE, WAN_ENTRY_FORGET, WAN_ENTRY_CLEAR
    enum: WAN_TAIL_REMEMBERED, WAN_TAIL_FOUND, WAN_TAIL_ROW, WAN_TAIL_LEFT_OUT
    enum: WAN_COPY_LEARNING, WAN_COPY_WAITED
    ctypedef struct wan_tail_entry:
        uint32_t length, verdict_length, found_length, row
        uint8_t outcome, found_form, flags, kind
    ctypedef struct wan_verdict:
        uint64_t sender
        uint32_t value_length
        uint8_t verdict, is_substituted, value_form
    const wan_verdict *wan_verdict_next(const wan_verdict *verdict)
    const wan_verdict *wan_tail_entry_verdicts(const wan_tail_entry *entry)
    wan_call_identity *wan_tail_entry_call(const wan_tail_entry *entry)
    wan_record *wan_tail_entry_record(const wan_tail_entry *entry)
    uint32_t wan_tail_entry_found_length(const wan_tail_entry *entry)
    uint8_t *wan_tail_entry_found(const wan_tail_entry *entry)
    enum: WAN_LANE_RUNS, WAN_LANE_WAITS, WAN_LANE_RESTS
    ctypedef struct wan_tail
    ctypedef struct wan_lane_wait:
        wan_tail *tail
        uint32_t bucket
        int other_file
        uint64_t era, sequence, until_us
    ctypedef struct wan_lane_state:
        uint32_t asleep
        int wake_file, rest_file
        uint64_t promised_until_us
        uint32_t is_connected, wants_promise
        uint64_t answered_us
        uint32_t is_short
        char *other
        void (*run)(void *runner, const wan_lane_wait *wait) noexcept nogil
        void *runner
    ctypedef struct wan_tail_copy:
        uint32_t lane
        uint8_t state
        uint64_t transfer, sent, acked, told, heard
        uint32_t image_shard
        uint8_t image_acked, caught_up, confirmed, asked, refused, queued, queue_only
        uint64_t place_sequence, place, retry_us
    ctypedef struct wan_waker:
        uint32_t asleep
        int wake_file
        uint32_t users
        wan_shelved *ready
    const uint64_t WAN_TAIL_HELD
    ctypedef struct wan_shelved:
        wan_shelved *before
        wan_shelved *behind
        wan_waker *owner
        uint64_t era, sequence
        uint32_t is_waiting
    ctypedef struct wan_tail_bucket:
        wan_lock lock
        uint8_t role, queue_only
        uint32_t changed, waiters
        uint64_t era, life, epoch, last, counted, first
        wan_buffer changes
        uint32_t leader, holder_count
        uint32_t *holders
        uint64_t dropped_bytes, transfer, learned
        wan_tail_copy *copies
        uint32_t copy_count
        wan_answers answers
    ctypedef struct wan_attempt:
        wan_call_identity call
        uint64_t since
        uint32_t row
        uint8_t is_row, waits
    ctypedef struct wan_recalled:
        uint64_t era, sequence
        uint32_t applied
        uint8_t outcome, found_form, has_found
    ctypedef struct wan_heard_kept:
        wan_buffer items
    ctypedef struct wan_heard:
        uint64_t bytes, dropped, forgotten
        wan_heard_kept *kept
    ctypedef struct wan_feed:
        wan_queue *queue
        wan_lock *lock
        void *owner
        uint32_t first
    ctypedef struct wan_feeds:
        uint32_t count
        wan_feed *items
    ctypedef struct wan_tail:
        wan_budget *budget
        wan_heard *heard
        wan_feeds *feeds
        wan_tail_bucket *buckets
        uint32_t bucket_count, shard_count, min_copies
        uint64_t *shard_last
        wan_lane_state *lanes[WAN_TAIL_LANES_MAX]
        uint64_t *to_send[WAN_TAIL_LANES_MAX]
        uint64_t *settled[WAN_TAIL_LANES_MAX]
        uint64_t lease_until_us, heard_limit_us
    ctypedef struct wan_tail_reservation:
        wan_tail_bucket *bucket
        uint8_t *at
        uint64_t length, sequence
        wan_recalled recalled
    wan_status wan_tail_init(wan_tail *tail, uint32_t buckets, uint32_t shards, uint32_t min_copies)
    void wan_tail_close(wan_tail *tail)
    uint8_t wan_tail_role(const wan_tail *tail, uint32_t bucket)
    const wan_lane_state *wan_tail_short_copy(const wan_tail *tail, const wan_tail_bucket *bucket)
    bint wan_tail_lease_runs(const wan_tail *tail)
    wan_status wan_tail_entry_check(const uint8_t *at, uint64_t bytes, bint is_image)
    void wan_tail_set_lease(wan_tail *tail, uint64_t until_us)
    int wan_tail_set_primary_until(wan_tail *tail, uint64_t until_us)
    wan_status wan_tail_add_lane(wan_tail *tail, uint32_t lane, wan_lane_state *state)
    void wan_tail_remove_lane(wan_tail *tail, uint32_t lane)
    wan_feeds *wan_tail_feeds(const wan_tail *tail)
    void wan_tail_begin_at(wan_tail *tail, uint32_t bucket, uint64_t sequence)
    wan_status wan_tail_set_feeds(wan_tail *tail, const wan_feed *feeds, uint32_t count)
    void wan_tail_has_fed(wan_tail *tail, const wan_queue *queue)
    wan_status wan_tail_reserve(wan_tail *tail, uint32_t bucket, uint64_t length, const wan_attempt *attempt,
                                wan_tail_reservation *room)
    uint64_t wan_tail_commit(wan_tail *tail, wan_tail_reservation *room, uint32_t shard)
    void wan_tail_cancel(wan_tail_reservation *room)
    wan_status wan_tail_reserve_next(wan_tail_reservation *room, uint64_t length)
    uint64_t wan_tail_commit_next(wan_tail *tail, wan_tail_reservation *room, uint32_t shard)
    uint64_t wan_tail_commit_end(wan_tail *tail, wan_tail_reservation *room, uint64_t before)
    void wan_tail_run_lane(const wan_lane_wait *wait)
    void wan_lane_wake(wan_lane_state *state)
    wan_status wan_tail_recall(wan_tail *tail, uint32_t bucket, const wan_attempt *attempt, wan_recalled *recalled,
                               wan_buffer *found)
    wan_status wan_tail_forget(wan_tail *tail, uint32_t bucket, uint64_t caller)
    wan_status wan_tail_wait(wan_tail *tail, uint32_t bucket, uint64_t era, uint64_t sequence, uint32_t timeout_ms)
    uint32_t wan_tail_made_with(wan_tail *tail, uint32_t bucket, uint64_t sequence, bint is_repeat)
    wan_status wan_tail_shelve(wan_tail *tail, uint32_t bucket, wan_shelved *shelved)
    int wan_tail_unshelve(wan_tail *tail, uint32_t bucket, wan_shelved *shelved)
    wan_shelved *wan_waker_take(wan_waker *waker)
    bint wan_waker_has_ready(const wan_waker *waker)
    void wan_waker_set_asleep(wan_waker *waker, uint32_t value)
    void wan_waker_end(wan_waker *waker)
    void wan_tail_set_leader(wan_tail *tail, uint32_t bucket, uint32_t leader, int queue_only)
    void wan_tail_set_holders(wan_tail *tail, uint32_t bucket, uint32_t *holders, uint32_t count)
    bint wan_tail_is_holder(const wan_tail_bucket *bucket, uint32_t member)
    void wan_tail_end_copy(wan_tail_bucket *bucket)
    bint wan_tail_is_queue_only(const wan_tail *tail, uint32_t bucket)
    void wan_tail_set_role(wan_tail *tail, uint32_t bucket, uint8_t role, uint64_t life, uint64_t epoch,
                           uint64_t transfer)
    wan_status wan_tail_set_copies(wan_tail *tail, uint32_t bucket, const wan_tail_copy *copies, uint32_t count)
    int wan_tail_may_read(wan_tail *tail, uint32_t bucket, uint64_t now_us)
    wan_status wan_tail_follow(wan_tail *tail, uint32_t bucket, uint64_t life, uint64_t epoch, uint64_t sequence,
                               const wan_tail_entry *entry, wan_tail_reservation *room)
    void wan_tail_followed(wan_tail *tail, wan_tail_reservation *room, const wan_tail_entry *entry, uint32_t shard)
    void wan_tail_follow_end(wan_tail *tail, wan_tail_reservation *room)
    void wan_tail_told(wan_tail *tail, uint32_t bucket, uint64_t life, uint64_t epoch, uint64_t counted,
                       uint64_t heard, uint64_t contact)
    bint wan_tail_copy_may_answer(const wan_tail *tail, uint32_t bucket)
    int wan_tail_acknowledged(wan_tail *tail, uint32_t bucket, uint32_t lane, uint64_t life, uint64_t epoch,
                              uint64_t sequence)
    enum: WAN_TAIL_GREW, WAN_TAIL_CAUGHT_UP
    int wan_tail_image_acked(wan_tail *tail, uint32_t bucket, uint32_t lane, uint64_t life, uint64_t epoch,
                             uint64_t transfer)
    bint wan_tail_holds_back(wan_tail *tail, uint32_t bucket, uint64_t now_us)
    bint wan_tail_has_learner(const wan_tail *tail, uint32_t bucket)
    void wan_tail_charge(wan_tail *tail, wan_tail_bucket *bucket)
    uint64_t wan_tail_behind(wan_tail *tail, uint32_t lane)
    void wan_tail_tell_again(wan_tail *tail, uint32_t bucket)
    bint wan_tail_take_again(wan_tail *tail, uint32_t lane, uint32_t bucket)
    void wan_tail_rewind(wan_tail *tail, uint32_t lane)

cdef extern from "copies/wan_contact.h" nogil:
    uint64_t wan_contact_begin()
    void wan_contact_heard(uint64_t contact, uint64_t after_us)
    void wan_contact_end(uint64_t contact)

cdef extern from "copies/wan_clear.h" nogil:
    wan_status wan_clear_make(wan_table *table, wan_tail *tail, uint32_t bucket, uint8_t site,
                              const wan_attempt *attempt, wan_recalled *made, uint64_t *entries)
    wan_status wan_clear_follow(wan_table *table, wan_tail *tail, uint32_t bucket, uint8_t site, uint64_t life,
                                uint64_t epoch, uint64_t sequence, const wan_tail_entry *entry)

cdef extern from "copies/wan_heard.h" nogil:
    enum: WAN_HEARD_BYTES_MAX
    ctypedef struct wan_heard_item:
        uint64_t length, sequence
        uint32_t old_length
        uint8_t has_old, old_form, may_repeat
    ctypedef struct wan_heard_state:
        uint64_t bytes, dropped, forgotten, standing_us, stood_us
    ctypedef enum wan_hears:
        WAN_HEARS_COPIES, WAN_HEARS_LED, WAN_HEARS_AND_SAYS
    wan_heard *wan_tail_heard(const wan_tail *tail)
    wan_status wan_tail_hear(wan_tail *tail, wan_hears which)
    bint wan_heard_is_full(const wan_heard *heard)
    bint wan_heard_refuses(const wan_heard *heard)
    bint wan_heard_is_waited_for(const wan_heard *heard)
    void wan_heard_relieve(wan_tail *tail)
    wan_status wan_heard_begin(wan_heard *heard, uint32_t bucket, uint64_t sequence, const uint8_t *old,
                               uint32_t old_length, uint8_t old_form, uint64_t entry_length)
    void wan_heard_add(wan_heard *heard, uint32_t bucket, const wan_tail_entry *entry)
    uint64_t wan_heard_through(const wan_heard *heard, uint32_t bucket, uint64_t counted)
    bint wan_heard_next(wan_tail *tail, wan_buffer *to, uint32_t timeout_ms)
    uint64_t wan_heard_end(wan_tail *tail)
    void wan_heard_look(const wan_heard *heard, wan_heard_state *state)
