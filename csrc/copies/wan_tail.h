/* Owns, for each bucket of a region that several members hold, the changes that not all copies are known to have: the
 * bucket's tail. The primary appends each change with its sequence, and waits until all copies in sync have it: then
 * the change counts. A copy appends what it gets, so that a new primary finds there what other copies lack.
 *
 * The tail feeds queues too: an event has the sequence of its change, and counts when that does.
 *
 * Order of locks: the entry lock of the key (wan_shard), then the lock of the bucket's tail, then the locks of queues
 * that it feeds, then that of the changes which listeners are still to be told. */
#ifndef WAN_TAIL_H
#define WAN_TAIL_H
#include "base/wan_budget.h"
#include "base/wan_buffer.h"
#include "base/wan_clock.h"
#include "base/wan_lock.h"
#include "copies/wan_answers.h"
#include "record/wan_record.h"
#include "store/wan_queue.h"

#define WAN_TAIL_LANES_MAX 256u       /* Members to which one member has lanes. */
#define WAN_IMAGE_DONE     UINT32_MAX /* All shards of the image were sent. */
/* With more bytes than this that were not sent to a learner yet, callers of its bucket wait. A part of an image waits
 * for the stream before it, so an image becomes whole only if that is short. */
#define WAN_LEARNER_BYTES_MAX (128u << 10)
#define WAN_LEARNER_AWAY_US   1000000u /* A learner that answers nothing for so long slows nobody. */

enum {
    WAN_TAIL_ABSENT = 0,  /* This member has no copy of the bucket. */
    WAN_TAIL_LEARNER,     /* The copy is being made. It takes the stream and the image, and answers no read. */
    WAN_TAIL_COPY,        /* A copy in sync. It applies what the primary sends. */
    WAN_TAIL_TAKING_OVER, /* Primary of a new epoch that does not accept changes yet, or does not any more. */
    WAN_TAIL_PRIMARY,     /* It accepts changes, gives them their sequence and sends them to the copies. */
};

/* One entry of a tail, on a lane too. Behind it come the identity of its call (WAN_TAIL_REMEMBERED), the record, the
 * verdicts of senders (wan_verdict), and the value that the change found; each of the last three with zeros up to a
 * multiple of 8.
 * `kind` says of which entries that is not so. */
typedef struct {
    uint32_t length;         /* Of all parts: a multiple of 8. */
    uint32_t verdict_length; /* Bytes of what was decided for each sender: a multiple of 8. 0: there are no senders. */
    union {
        uint32_t found_length; /* Bytes of the value that a conditional change found and returned. */
        uint32_t row;          /* WAN_TAIL_ROW: the number of the row in its call. A row finds nothing. */
    };
    uint8_t outcome; /* wan_outcome: what the change did. */
    uint8_t found_form;
    uint8_t flags; /* WAN_TAIL_* */
    uint8_t kind;  /* WAN_ENTRY_* */
} wan_tail_entry;
_Static_assert(sizeof(wan_tail_entry) == 16, "an entry of a tail is a format");
enum {
    WAN_ENTRY_CHANGE = 0,
    WAN_ENTRY_FORGET, /* The caller whose identity follows is gone: its calls are forgotten, and refused from now on. */
    /* All entries were taken out of the bucket. How many, as a uint64_t, follows the identity of the call. */
    WAN_ENTRY_CLEAR,
    WAN_ENTRY_KINDS
};
enum {
    WAN_TAIL_REMEMBERED = 1, /* A call asked for the change, and may be repeated: its answer is remembered. */
    WAN_TAIL_FOUND = 2,      /* The change had found a value, which is a part of the answer. */
    WAN_TAIL_ROW = 4,        /* The call has many rows. */
    WAN_TAIL_LEFT_OUT = 8,   /* That value was too large to be remembered, and is not here. */
    WAN_TAIL_FLAGS = 15
};

/* What was decided about the event of a change for one sender. Behind it comes the value that the sender's queue gets
 * instead of the record's, with zeros up to a multiple of 8. */
typedef struct {
    uint64_t sender; /* The hash of its id, the same at each member. */
    uint32_t value_length;
    uint8_t verdict; /* 0: it enters the queue. Others say why not. */
    uint8_t is_substituted, value_form;
    uint8_t reserved; /* 0 */
} wan_verdict;
_Static_assert(sizeof(wan_verdict) == 16, "a verdict is a format");
#define WAN_VERDICTS_MAX 5u /* No verdict is above it. */
/* The next verdict. */
static inline const wan_verdict *wan_verdict_next(const wan_verdict *verdict)
{
    return (const wan_verdict *)((const uint8_t *)(verdict + 1) + wan_align8(verdict->value_length));
}

static inline int wan_tail_entry_has_call(const wan_tail_entry *entry)
{
    return entry->kind == WAN_ENTRY_FORGET || entry->flags & WAN_TAIL_REMEMBERED;
}
/* The identity of the entry's call, if it has one. */
static inline wan_call_identity *wan_tail_entry_call(const wan_tail_entry *entry)
{
    return (wan_call_identity *)(entry + 1);
}
/* Bytes in front of the record. */
static inline uint64_t wan_tail_entry_head(const wan_tail_entry *entry)
{
    return sizeof *entry + (wan_tail_entry_has_call(entry) ? sizeof(wan_call_identity) : 0);
}
#define WAN_TAIL_CLEAR_BYTES ((uint32_t)(sizeof(wan_tail_entry) + sizeof(wan_call_identity) + sizeof(uint64_t)))
/* How many entries a WAN_ENTRY_CLEAR took out: the first answer to its call. */
static inline uint64_t *wan_tail_entry_cleared(const wan_tail_entry *entry)
{
    return (uint64_t *)((uint8_t *)entry + sizeof *entry + sizeof(wan_call_identity));
}
/* The record of a WAN_ENTRY_CHANGE. */
static inline wan_record *wan_tail_entry_record(const wan_tail_entry *entry)
{
    return (wan_record *)((uint8_t *)entry + wan_tail_entry_head(entry));
}
static inline uint32_t wan_tail_entry_found_length(const wan_tail_entry *entry)
{
    return entry->flags & WAN_TAIL_ROW ? 0 : entry->found_length;
}
/* The first verdict; `verdict_length` bytes are there. */
static inline const wan_verdict *wan_tail_entry_verdicts(const wan_tail_entry *entry)
{
    const wan_record *record = wan_tail_entry_record(entry);
    return (const wan_verdict *)((const uint8_t *)record + wan_record_length(record));
}
/* The value that the change found. */
static inline uint8_t *wan_tail_entry_found(const wan_tail_entry *entry)
{
    return (uint8_t *)entry + entry->length - wan_align8(wan_tail_entry_found_length(entry));
}

typedef struct wan_heard wan_heard;

/* A queue that the buckets of a tail feed: the events of bucket n are in its partition `first` + n. */
typedef struct {
    wan_queue *queue;
    wan_lock *lock; /* The queue's. */
    void *owner;    /* Whoever is to hear that events are ready. */
    uint32_t first; /* Of a run of the queue (wan_queue_add_run). A queue that stays keeps its run. */
} wan_feed;
typedef struct {
    uint32_t count;
    wan_feed items[];
} wan_feeds;

/* What a thread waits for that runs a lane itself. */
typedef struct {
    struct wan_tail *tail;
    uint32_t bucket;
    int other_file; /* The thread stops running the lane as soon as this file can be read. -1: there is none. */
    uint64_t era, sequence, until_us;
} wan_lane_wait;

/* Who runs a lane: sends on it, and takes what comes. One thread does at a time, the lane's own or one that waits for
 * its change (docs/decisions/0080). */
enum {
    WAN_LANE_RUNS = 0, /* A thread is at work. Before it waits it looks for more. */
    WAN_LANE_WAITS =
        1, /* It waits on wake_file: whoever gives the lane work makes this WAN_LANE_RUNS and writes there. */
    /* Nothing is on its way. The lane's thread rests on rest_file. Whoever makes this WAN_LANE_RUNS runs the lane, or
     * writes there: then the lane's thread does. */
    WAN_LANE_RESTS = 2,
};

/* What the tails of all regions know of the lane to one other member. Its owner (a LaneSender) keeps it alive as long
 * as a tail names it. All fields but `run` and `runner` are atomic. */
typedef struct {
    uint32_t asleep;            /* WAN_LANE_* */
    int wake_file, rest_file;   /* Each an eventfd. */
    uint64_t promised_until_us; /* Until then (wan_monotonic_us) the member adopts no later epoch without saying so. */
    uint32_t is_connected;
    uint32_t wants_promise; /* A read waits for a promise: the lane asks at once. Whoever sets it wakes the lane. */
    uint64_t answered_us;   /* When the last answer came, or the lane began (wan_monotonic_us). 0: neither did. */
    /* Runs the lane for a thread that has made it WAN_LANE_RUNS, until what that waits for counts, or can come only
     * from elsewhere, or it is `until_us`. Then somebody else runs it, or it rests. Set before it rests. */
    void (*run)(void *runner, const wan_lane_wait *wait);
    void *runner;
    uint32_t has_settled; /* Some tail has a bit in `settled` for this lane. Whoever sets it wakes the lane. Atomic. */
    uint32_t is_short;    /* The member said with its last answer that it is above its limit of memory. */
    char other[64];       /* The name of the member, perhaps cut. Set before any tail names the lane. */
} wan_lane_state;

enum { WAN_COPY_LEARNING = 0, WAN_COPY_WAITED = 1 }; /* Waited: a change counts only when this copy has it too. */

/* One copy of a bucket, as its primary knows it. */
typedef struct {
    uint32_t lane;        /* The number of the lane. */
    uint8_t state;        /* WAN_COPY_* */
    uint8_t queue_only;   /* It holds the queued events alone. It is waited for, and is no copy that could lead. */
    uint64_t transfer;    /* Of a learner: names its image. */
    uint64_t sent, acked; /* Sequences through which changes left on the present connection, and were acknowledged. */
    uint64_t told, heard; /* What the copy was last told: `counted`, and through what listeners were told. */
    /* The next shard of the image, relative to the bucket's first; WAN_IMAGE_DONE. The lane's thread only. */
    uint32_t image_shard;
    uint8_t
        image_acked;   /* The learner has all of the image, and the stream up to there. It is waited for since then. */
    uint8_t caught_up; /* Then it had everything that counted, too. That was told. */
    /* The copy acknowledged a section of the present epoch on the present connection. */
    uint8_t confirmed;
    /* The rest is the lane's thread's. `place`: where the entry behind `place_sequence` begins, in bytes that were ever
     * in `changes`. */
    uint8_t asked;   /* A section for a copy that is not confirmed is on its way. */
    uint8_t refused; /* The copy knows a later epoch: it gets nothing. */
    uint8_t queued;  /* It is in the lane's list of images to be sent. */
    uint64_t place_sequence, place;
    uint64_t retry_us;  /* Nothing is sent before this time. */
    uint64_t behind_us; /* Since when changes are too many for a learner that falls behind. 0: they are not. */
} wan_tail_copy;

/* A thread that serves many callers shelves what each of them waits for, and goes on. All fields are atomic. */
typedef struct {
    uint32_t asleep;           /* The thread waits on wake_file: whoever makes something ready writes there. */
    int wake_file;             /* An eventfd. -1: the thread is not woken, it looks. */
    uint32_t users;            /* Threads that are making something ready now. The owner stays until there are none. */
    struct wan_shelved *ready; /* These wait no more. `behind` links them, the newest first. */
} wan_waker;

/* One wait for a sequence of a bucket. Its owner keeps it in its place until it is taken from `ready`, or unshelveed.
 */
typedef struct wan_shelved {
    struct wan_shelved *before, *behind; /* In the bucket's list, or in `ready`. */
    wan_waker *owner;
    uint64_t era, sequence; /* As for wan_tail_wait. */
    uint32_t is_waiting;    /* It is in the bucket's list. The bucket's lock guards it. */
} wan_shelved;
#define WAN_TAIL_HELD UINT64_MAX /* Instead of a sequence: waits until the member's part in the bucket changes. */

/* Changes that count, and that fewer copies had then than `min_copies`. */
typedef struct {
    uint64_t first, last; /* Their sequences. */
    uint32_t copies;      /* How many were in sync, the primary included. */
} wan_tail_thin;
#define WAN_TAIL_THIN_MAX 8u /* A bucket remembers so many runs of them, the newest ones. */

typedef struct {
    wan_lock
        lock;     /* Guards all below. `role`, `epoch`, `life`, `last`, `counted` may be read without it, atomically. */
    uint8_t role; /* WAN_TAIL_* */
    /* This member holds the queued events of the bucket alone: as a copy or learner that stores no entry. Atomic. */
    uint8_t queue_only;
    uint32_t changed; /* A futex: changes when `counted` grows while somebody waits, and when role or life change. */
    uint32_t waiters;
    wan_shelved *first_shelved, *last_shelved; /* Waits of one era, by their sequences. Each one is above `counted`. */
    /* Changes when the member loses track of its own changes: with a new life, when it is primary no more, when its
     * copy is dropped. Whoever waits for a sequence names the era in which it saw it. */
    uint64_t era;
    uint64_t counted_before; /* If this member led in the era before: all through here counted when it ended. Or 0. */
    uint64_t life, epoch; /* The newest life, and in it the newest epoch, that were adopted. Older ones are refused. */
    uint64_t last;        /* The sequence of the newest change here. first <= last + 1. */
    /* Primary: all waited copies have the changes through here. Copy: what its primary told. counted <= last. */
    uint64_t counted;
    uint64_t first;         /* The sequence of the first change in `changes`. All below it count, as far as is known. */
    wan_buffer changes;     /* wan_tail_entry after wan_tail_entry. */
    uint64_t dropped_bytes; /* Bytes that ever left `changes` at its front. */
    uint32_t leader;        /* The number of the primary's incarnation. 0: it is not known, or there is none. */
    /* The numbers of the incarnations that the tables name as holders of the bucket in sync, or as about to leave. They
     * alone can say that queued events have left. */
    uint32_t *holders;
    uint32_t holder_count;
    uint64_t transfer; /* Of a learner: the image that it is getting. 0: none. */
    /* The connection on which the present primary sent a section of this epoch (wan_contact). 0: none yet. Atomic. */
    uint64_t contact;
    uint64_t learned; /* Of a learner: the last transfer whose image became whole. */
    wan_tail_copy *copies;
    uint32_t copy_count;
    uint32_t learners;   /* Of a primary: how many of them learn. It may be read without the lock, atomically. */
    wan_tail_thin *thin; /* WAN_TAIL_THIN_MAX of them. NULL: there were none. */
    uint32_t thin_count; /* How many there ever were. Run number n is in place n modulo WAN_TAIL_THIN_MAX. */
    wan_answers answers; /* First answers to the calls that changed the bucket, at its primary and its copies alike. */
    uint64_t held_changes, held_answers; /* What the bucket has charged to the budget (wan_budget_hold). */
} wan_tail_bucket;

/* One attempt of a call, or of one of its rows. */
typedef struct {
    wan_call_identity call; /* `caller` is 0: nobody repeats it, and nothing is remembered. */
    /* The epoch that its caller knew at the first attempt that may have made the change. 0: this is the first one. */
    uint64_t since;
    uint32_t row; /* Of a call of many rows. */
    uint8_t is_row;
    /* The thread that makes the change waits for it at once, and calls wan_tail_run_lane: a lane that rests is not
     * woken for it. */
    uint8_t waits;
} wan_attempt;

/* What is remembered. It holds when `sequence` counts, in this era. */
typedef struct {
    uint64_t era, sequence;
    uint32_t applied; /* Of a call of many rows: how many rows of it changed something. */
    uint8_t outcome, found_form, has_found;
} wan_recalled;

typedef struct wan_tail {
    wan_budget *budget; /* The member's. NULL: nobody counts. It is set before the tail is used. */
    wan_tail_bucket *buckets;
    uint32_t bucket_count, shard_count;
    uint32_t min_copies; /* A bucket with fewer copies in sync, the primary included, takes no change. */
    /* For each shard of the table, the sequence of its newest change. Written under the entry lock and the bucket's
     * lock. A read compares it with `counted`. */
    uint64_t *shard_last;
    wan_lane_state *lanes[WAN_TAIL_LANES_MAX]; /* NULL: there is none of this number. Published atomically. */
    /* For each lane: a bit for each bucket that has something to send on it. Allocated with the lane. */
    uint64_t *to_send[WAN_TAIL_LANES_MAX];
    /* The same for buckets of which more events have left queues here than the lane has told. As many words follow, for
     * those of which the lane has to tell all again. */
    uint64_t *settled[WAN_TAIL_LANES_MAX];
    uint32_t lane_limit; /* No lane has this number or a higher one. Atomic; it only grows. */
    /* Keeps the lanes that are named here alive for wan_tail_note_settled. No lock is taken under it. */
    wan_lock lanes_lock;
    uint64_t lease_until_us; /* The coordinator's lease, by wan_monotonic_us. Atomic. */
    /* So long a primary takes changes, counts them and answers reads, though the coordinator is silent. It holds for
     * every primary, with copies in sync or without. WAN_NEVER: for ever. Atomic. */
    uint64_t primary_until_us;
    uint32_t holds_back; /* A change may be held back because that time is over. Atomic. */
    /* The queues that the buckets feed. NULL: none. It is read under any bucket's lock, and replaced as a whole. */
    wan_feeds *feeds;
    wan_heard *heard; /* Where changes wait for listeners. NULL: nobody listens. Atomic; it is set once. */
    /* A listener may stand still for so long before changes that wait for it are dropped. Atomic. */
    uint64_t heard_limit_us;
} wan_tail;

/* A copy of the bucket that is waited for, and whose member is above its limit of memory: the lane there. NULL: there
 * is none. Under the bucket's lock. */
static inline const wan_lane_state *wan_tail_short_copy(const wan_tail *tail, const wan_tail_bucket *bucket)
{
    for (uint32_t n = 0; n < bucket->copy_count; n++) {
        const wan_tail_copy *copy = &bucket->copies[n];
        const wan_lane_state *state = __atomic_load_n(&tail->lanes[copy->lane], __ATOMIC_ACQUIRE);
        if (copy->state == WAN_COPY_WAITED && state && __atomic_load_n(&state->is_short, __ATOMIC_RELAXED))
            return state;
    }
    return NULL;
}

/* Room for a change at the end of a bucket's tail. The bucket's lock is held. */
typedef struct {
    wan_tail_bucket *bucket;
    uint8_t *at; /* Where the wan_tail_entry goes. */
    uint64_t length;
    uint64_t sequence;     /* Of the change, if it is made. */
    uint8_t is_waited_for; /* As `waits` of its attempt. */
    wan_recalled recalled; /* WAN_MADE_BEFORE: what an earlier attempt did. */
} wan_tail_reservation;
/* Instead of the shard that an entry changes: */
#define WAN_NO_SHARD        UINT32_MAX       /* It changes none. */
#define WAN_TAIL_ALL_SHARDS (UINT32_MAX - 1) /* It changes all shards of its bucket. */

/* Checks that a whole entry in order begins at `at`, within `bytes` bytes. WAN_CORRUPT otherwise. The outcome of a
 * change is at most WAN_DESTROYED, so whoever tells listeners of it needs no check of its own. `is_image`: it is an
 * entry of a table, which no call made, and which may have lost its value (WAN_MISSING). */
wan_status wan_tail_entry_check(const uint8_t *at, uint64_t bytes, int is_image);

wan_status wan_tail_init(wan_tail *tail, uint32_t buckets, uint32_t shards, uint32_t min_copies);
void wan_tail_close(wan_tail *tail); /* Nobody waits in the tail, or uses it afterwards. */

/* What this member is for a bucket now: WAN_TAIL_*. */
static inline uint8_t wan_tail_role(const wan_tail *tail, uint32_t bucket)
{
    return __atomic_load_n(&tail->buckets[bucket].role, __ATOMIC_ACQUIRE);
}

/* A copy or learner takes no change any more: wan_tail_set_role follows. Under the bucket's lock. */
static inline void wan_tail_end_copy(wan_tail_bucket *bucket)
{
    if (bucket->role == WAN_TAIL_COPY || bucket->role == WAN_TAIL_LEARNER)
        __atomic_store_n(&bucket->role, WAN_TAIL_ABSENT, __ATOMIC_RELEASE);
}

/* Whether this member holds the queued events of a bucket alone, and no entries. */
static inline int wan_tail_is_queue_only(const wan_tail *tail, uint32_t bucket)
{
    return __atomic_load_n(&tail->buckets[bucket].queue_only, __ATOMIC_RELAXED);
}

/* Where changes of the region wait for listeners. NULL: nobody listens. */
static inline wan_heard *wan_tail_heard(const wan_tail *tail)
{
    return __atomic_load_n(&tail->heard, __ATOMIC_ACQUIRE);
}

/* The queues that buckets feed, under any bucket's lock. NULL: there are none. */
static inline wan_feeds *wan_tail_feeds(const wan_tail *tail)
{
    return __atomic_load_n(&tail->feeds, __ATOMIC_ACQUIRE);
}

/* Sets until when the coordinator's lease runs, by wan_monotonic_us. */
static inline void wan_tail_set_lease(wan_tail *tail, uint64_t until_us)
{
    __atomic_store_n(&tail->lease_until_us, until_us, __ATOMIC_RELEASE);
}

/* Sets until when the member works as a primary. Changes that were held back count, if it is not over. Returns whether
 * more counts in any bucket. */
int wan_tail_set_primary_until(wan_tail *tail, uint64_t until_us);

/* Whether the coordinator's lease runs now. */
static inline int wan_tail_lease_runs(const wan_tail *tail)
{
    uint64_t until_us = __atomic_load_n(&tail->lease_until_us, __ATOMIC_ACQUIRE);
    return until_us == WAN_NEVER || wan_monotonic_us() < until_us;
}

/* Lanes. */
wan_status wan_tail_add_lane(wan_tail *tail, uint32_t lane, wan_lane_state *state);
void wan_tail_remove_lane(wan_tail *tail, uint32_t lane); /* No bucket names it any more. */

/* Says which queues the buckets feed from now on. A queue has a run with a partition for each bucket, which is free, or
 * was fed by this tail before. The caller makes sure that no change is under way. WAN_NO_MEMORY, WAN_BROKEN: nothing
 * was changed. */
wan_status wan_tail_set_feeds(wan_tail *tail, const wan_feed *feeds, uint32_t count);
/* From now on each change finds this queue, which was not fed before. What the buckets have so far may be queued at
 * other members alone (wan_queue_lack). */
void wan_tail_has_fed(wan_tail *tail, const wan_queue *queue);

/* The primary's changes. Reserve takes the bucket's lock and keeps it when it returns WAN_OK. `attempt`: the call that
 * asks for the change; NULL: it is never repeated. WAN_ELSEWHERE: the member is not primary of the bucket, or the
 * coordinator was silent for too long. WAN_MADE_BEFORE, WAN_IN_DOUBT, WAN_GIVEN_UP: as for
 * wan_tail_recall, and room->recalled. WAN_TOO_FEW: fewer copies than `min_copies` are in sync.
 * WAN_NO_MEMORY: there is no room. A full budget refuses nothing. The caller holds the entry lock. */
wan_status wan_tail_reserve(wan_tail *tail, uint32_t bucket, uint64_t length, const wan_attempt *attempt,
                            wan_tail_reservation *room);
/* The entry is written: gives it its sequence, marks the bucket for the lanes of its copies, wakes lanes that sleep,
 * and releases the lock. Without copies the change counts at once, and nothing is kept, unless `primary_until_us` is
 * over by now. Returns the sequence. `shard`:
 * of the key, WAN_NO_SHARD or WAN_TAIL_ALL_SHARDS. */
uint64_t wan_tail_commit(wan_tail *tail, wan_tail_reservation *room, uint32_t shard);
void wan_tail_cancel(wan_tail_reservation *room);
/* Changes of one bucket under one hold of its lock: rows of one call, or changes that nobody repeats.
 * `wan_tail_reserve` begins with the first one. If that was not made before, the later rows of its call were not,
 * either. For each change, `commit_next` says that its entry is written and makes it the newest, or nothing is called
 * if it was not made. `reserve_next` makes room for another one; WAN_NO_MEMORY changes nothing, and the hold goes on.
 * `commit_end` does for all of them what wan_tail_commit does behind its sequence, once. `before`: the sequence of the
 * newest change when the hold began. Returns through which sequence changes count. */
wan_status wan_tail_reserve_next(wan_tail_reservation *room, uint64_t length);
uint64_t wan_tail_commit_next(wan_tail *tail, wan_tail_reservation *room, uint32_t shard);
uint64_t wan_tail_commit_end(wan_tail *tail, wan_tail_reservation *room, uint64_t before);
/* Runs a lane on which a change leaves, if one rests, as `wan_lane_state.run`. Other lanes of the bucket that rest are
 * woken. The caller holds no lock. */
void wan_tail_run_lane(const wan_lane_wait *wait);
/* Gives the lane's thread something to do, if nobody runs the lane. */
void wan_lane_wake(wan_lane_state *state);
/* What became of a call, or of one of its rows, before. WAN_MADE_BEFORE: it took effect, and *recalled says how;
 * `found` (NULL: nobody wants it) gets the value that it found. WAN_EMPTY: it has not happened. WAN_IN_DOUBT: a later
 * call of its caller and slot was made here, so its caller has given it up; or its answer is lost; or an attempt was
 * made in an earlier life of the bucket, of which this one remembers nothing. WAN_GIVEN_UP: its caller is refused.
 * WAN_ELSEWHERE: the member is not primary. WAN_NO_MEMORY. The detail says why. The caller holds the entry lock of the
 * key: no other attempt of the same call comes between the question and the change. */
wan_status wan_tail_recall(wan_tail *tail, uint32_t bucket, const wan_attempt *attempt, wan_recalled *recalled,
                           wan_buffer *found);
/* Forgets a caller that is gone: an entry of the stream says so. Statuses as for wan_tail_reserve. */
wan_status wan_tail_forget(wan_tail *tail, uint32_t bucket, uint64_t caller);
/* Waits until the change counts. WAN_OK: it does. WAN_ELSEWHERE: it is another era, and the change did not count when
 * the member lost the lead: nobody knows here whether it will. WAN_EMPTY: the time is over. With a time of 0 it looks,
 * and does not wait. */
wan_status wan_tail_wait(wan_tail *tail, uint32_t bucket, uint64_t era, uint64_t sequence, uint32_t timeout_ms);
/* With how many copies in sync a change was made that counts, if that was fewer than `min_copies`. 0: it was not. Of a
 * repeat, also with how many the bucket has it now, as nobody knows with how many an earlier primary counted it. */
uint32_t wan_tail_made_with(wan_tail *tail, uint32_t bucket, uint64_t sequence, int is_repeat);
/* Lets `shelved`, whose owner, era and sequence are set, wait. WAN_EMPTY: it waits, and will be in its owner's `ready`
 * when the sequence counts or the era is another one. WAN_OK, WAN_ELSEWHERE: as for wan_tail_wait; it does not wait.
 * One for WAN_TAIL_HELD is ready at the next wan_tail_set_role, whatever that says. */
wan_status wan_tail_shelve(wan_tail *tail, uint32_t bucket, wan_shelved *shelved);
/* Ends a wait that wan_tail_shelve began. Returns 1 if it waited. 0: it is in its owner's `ready`, or was taken there.
 */
int wan_tail_unshelve(wan_tail *tail, uint32_t bucket, wan_shelved *shelved);
/* Takes all that is ready, linked by `behind`. The owner's thread calls it. */
wan_shelved *wan_waker_take(wan_waker *waker);
/* Returns whether anything is ready. The owner asks after it has set `asleep`. */
static inline int wan_waker_has_ready(const wan_waker *waker)
{
    return __atomic_load_n(&waker->ready, __ATOMIC_SEQ_CST) != NULL;
}
/* Says whether the owner's thread is about to wait on its file. */
static inline void wan_waker_set_asleep(wan_waker *waker, uint32_t value)
{
    __atomic_exchange_n(&waker->asleep, value, __ATOMIC_SEQ_CST);
}
/* Returns when no thread makes anything ready any more. Nothing of the owner waits: everything was unshelveed. */
void wan_waker_end(wan_waker *waker);

/* A bucket that has no role yet begins with queued events under the sequences through `sequence`, which count. */
void wan_tail_begin_at(wan_tail *tail, uint32_t bucket, uint64_t sequence);
/* What the coordinator's tables say of this member's part. A role other than PRIMARY and TAKING_OVER forgets the
 * copies; LEARNER and ABSENT forget the changes too. `transfer`: names a learner's image. */
void wan_tail_set_role(wan_tail *tail, uint32_t bucket, uint8_t role, uint64_t life, uint64_t epoch, uint64_t transfer);
/* What the tables say of the primary, the number of its incarnation, and of this member, whether it holds the queued
 * events alone. It comes before the role under the primary's epoch. */
void wan_tail_set_leader(wan_tail *tail, uint32_t bucket, uint32_t leader, int queue_only);
/* What the tables say of who holds the bucket, and its queued events, in sync. The tail takes `holders`, which malloc
 * gave, for its own. */
void wan_tail_set_holders(wan_tail *tail, uint32_t bucket, uint32_t *holders, uint32_t count);
/* Whether the tables name this incarnation among them. Under the bucket's lock. */
static inline int wan_tail_is_holder(const wan_tail_bucket *bucket, uint32_t member)
{
    for (uint32_t n = 0; n < bucket->holder_count; n++)
        if (bucket->holders[n] == member) return 1;
    return 0;
}
/* Of a bucket that is led: whom it is sent to. Of `copies` only lane, state, transfer, acked and queue_only count. What
 * is known of a copy that stays is kept; one that is waited for stays so. A new learner takes the stream from `counted`
 * on. WAN_NO_MEMORY: nothing changed. */
wan_status wan_tail_set_copies(wan_tail *tail, uint32_t bucket, const wan_tail_copy *copies, uint32_t count);
/* Whether a primary may answer a read without asking: every copy that it waits for has confirmed this epoch and
 * promises to adopt no other; and see `primary_until_us`. A copy may while the lease runs.
 * It is asked after the read, in the era of the read. Wakes lanes whose promise is needed. */
int wan_tail_may_read(wan_tail *tail, uint32_t bucket, uint64_t now_us);

/* A copy's changes. `follow` takes the lock of the bucket and keeps it when it returns WAN_OK: the entry that the
 * primary gave `sequence` is the next one. WAN_EMPTY: it is here already. WAN_INVALID: there is a gap before it.
 * WAN_ELSEWHERE: this member has no copy of this life and epoch. `followed` copies the entry. `shard`: as for
 * wan_tail_commit. `wan_tail_reserve_next` makes room for the entry behind it under the same hold.
 * `follow_end` releases the lock. */
wan_status wan_tail_follow(wan_tail *tail, uint32_t bucket, uint64_t life, uint64_t epoch, uint64_t sequence,
                           const wan_tail_entry *entry, wan_tail_reservation *room);
void wan_tail_followed(wan_tail *tail, wan_tail_reservation *room, const wan_tail_entry *entry, uint32_t shard);
void wan_tail_follow_end(wan_tail *tail, wan_tail_reservation *room);
/* The primary told, on the connection `contact`, through which sequence changes count: drops them from the tail, wakes
 * reads that wait. `heard`: through which sequence listeners were told at the primary's member. */
void wan_tail_told(wan_tail *tail, uint32_t bucket, uint64_t life, uint64_t epoch, uint64_t counted, uint64_t heard,
                   uint64_t contact);
/* Listeners were told of more changes of a bucket: has its copies hear of that. `wakes`: a lane that is
 * at work says it soon; otherwise it is said with the next changes, or when the lane asks for signs of life. Under the
 * bucket's lock. */
void wan_tail_say_heard(wan_tail *tail, uint32_t bucket, int wakes);
/* Whether this member, as a copy in sync, may answer a read alone: while the coordinator's lease runs, and while the
 * primary was heard a moment ago. It is asked before and after the read. */
int wan_tail_copy_may_answer(const wan_tail *tail, uint32_t bucket);

/* What a lane sends and hears. `acknowledged`: the copy has everything through `sequence`; raises `counted`, drops what
 * nobody needs, wakes waiters. Returns WAN_TAIL_*: what became of it. */
enum {
    WAN_TAIL_GREW = 1,
    WAN_TAIL_CAUGHT_UP = 2
}; /* `counted` grew; a learner has all that counts, for the first time. */
int wan_tail_acknowledged(wan_tail *tail, uint32_t bucket, uint32_t lane, uint64_t life, uint64_t epoch,
                          uint64_t sequence);
/* The learner of `transfer` has its whole image: the primary waits for it from now on. So what counts grows no faster
 * than what the learner has, and it catches up. Returns 1, or 0 if that is no news. */
int wan_tail_image_acked(wan_tail *tail, uint32_t bucket, uint32_t lane, uint64_t life, uint64_t epoch,
                         uint64_t transfer);
/* Whether a caller that is about to change a bucket has to wait for a learner: its lane works, and does not keep up
 * with the changes. So callers are as fast as the lane is, beside the image. */
int wan_tail_holds_back(wan_tail *tail, uint32_t bucket, uint64_t now_us);
/* Whether it is worth asking that. */
static inline int wan_tail_has_learner(const wan_tail *tail, uint32_t bucket)
{
    return __atomic_load_n(&tail->buckets[bucket].learners, __ATOMIC_RELAXED) != 0;
}
/* Charges to the budget what the bucket has, after its memory of calls was changed by others than this file. Under the
 * bucket's lock. */
void wan_tail_charge(wan_tail *tail, wan_tail_bucket *bucket);
/* How many bytes of changes the copy at the end of a lane has yet to acknowledge, over all buckets that are led. Of a
 * bucket with several copies that is what any of them lacks. */
uint64_t wan_tail_behind(wan_tail *tail, uint32_t lane);
/* Events of a bucket have left a queue that it feeds: the lanes tell the other members. Any lock may be held. */
void wan_tail_note_settled(wan_tail *tail, uint32_t bucket);
/* The same, and the lanes tell once more all that is known of why events left. No bucket's lock is held. */
void wan_tail_tell_again(wan_tail *tail, uint32_t bucket);
/* Whether a lane has to tell all again of a bucket. It will have then. Only its thread calls this. */
int wan_tail_take_again(wan_tail *tail, uint32_t lane, uint32_t bucket);
/* The connection is new: everything behind `acked` is sent again, images begin anew, and what is settled is told again.
 */
void wan_tail_rewind(wan_tail *tail, uint32_t lane);

#endif
