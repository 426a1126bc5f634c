/* Owns the change log of each bucket of a shared region: the changes that some replica may lack. The primary appends
 * each change with its sequence, and waits until all in-sync replicas have the change. The change is then replicated. A
 * replica appends the changes from its primary, so that a new primary finds the entries that the remaining replicas
 * lack.
 *
 * The change log feeds queues too: an event has the sequence of its change, and is replicated together with the change.
 *
 * Order of locks: the entry lock of the key (wan_shard), then the lock of the bucket's change log, then the locks of
 * the queues fed by the change log, then the lock of the pending notifications. */
#ifndef WAN_CHANGELOG_H
#define WAN_CHANGELOG_H
#include "base/wan_budget.h"
#include "base/wan_buffer.h"
#include "base/wan_clock.h"
#include "base/wan_lock.h"
#include "replication/wan_answers.h"
#include "record/wan_record.h"
#include "store/wan_queue.h"

#define WAN_REPL_LINKS_MAX 256u       /* Members to which one member has replication links. */
#define WAN_SNAPSHOT_DONE  UINT32_MAX /* All shards of the snapshot were sent. */
/* If more bytes than this limit wait to be sent to a learner, callers that change its bucket wait. A part of a snapshot
 * waits for the stream before that part, so a snapshot becomes whole only if the stream is short. */
#define WAN_LEARNER_BYTES_MAX (128u << 10)
#define WAN_LEARNER_AWAY_US   1000000u /* A learner without an answer for this time slows no caller. */

enum {
    WAN_REPLICA_ABSENT = 0,  /* This member has no replica of the bucket. */
    WAN_REPLICA_LEARNER,     /* A replica in the making: applies the stream and the snapshot, and answers no read. */
    WAN_REPLICA_IN_SYNC,     /* An in-sync replica: applies the changes that the primary sends. */
    WAN_REPLICA_TAKING_OVER, /* Primary of a new epoch, not yet accepting changes, or no longer. */
    WAN_REPLICA_PRIMARY,     /* Accepts changes, gives each change its sequence, and sends the changes to the
                                replicas. */
};

/* One entry of a change log, also on a replication link. The entry is followed by the identity of its call
 * (WAN_CHANGELOG_REMEMBERED), the record, the verdicts of senders (wan_verdict), and the value found by the change. The
 * last three are padded with zeros to a multiple of 8. `kind` names the entries with another layout. */
typedef struct {
    uint32_t length;         /* Of all parts: a multiple of 8. */
    uint32_t verdict_length; /* Bytes of the verdicts of all senders: a multiple of 8. 0: no sender. */
    union {
        uint32_t found_length; /* Bytes of the value that a conditional change found and returned. */
        uint32_t row;          /* WAN_CHANGELOG_ROW: the number of the row in its call. A row finds nothing. */
    };
    uint8_t outcome; /* wan_outcome: the effect of the change. */
    uint8_t found_form;
    uint8_t flags; /* WAN_CHANGELOG_* */
    uint8_t kind;  /* WAN_ENTRY_* */
} wan_changelog_entry;
_Static_assert(sizeof(wan_changelog_entry) == 16, "an entry of a change log is a format");
enum {
    WAN_ENTRY_CHANGE = 0,
    WAN_ENTRY_FORGET, /* The client whose identity follows has ended: its calls are forgotten, and refused from now
                         on. */
    /* All entries were taken out of the bucket. How many, as a uint64_t, follows the identity of the call. */
    WAN_ENTRY_CLEAR,
    WAN_ENTRY_KINDS
};
enum {
    WAN_CHANGELOG_REMEMBERED = 1, /* The change belongs to a call that may be repeated: the reply is cached. */
    WAN_CHANGELOG_FOUND = 2,      /* The change found a value, which is a part of the reply. */
    WAN_CHANGELOG_ROW = 4,        /* The call has many rows. */
    WAN_CHANGELOG_LEFT_OUT = 8,   /* The found value was too large for the cache, and is not in the entry. */
    WAN_CHANGELOG_FLAGS = 15
};

/* The verdict on the event of a change for one sender. The verdict is followed by the value that replaces the record's
 * value in the sender's queue, padded with zeros to a multiple of 8. */
typedef struct {
    uint64_t sender; /* The hash of the sender's id, the same at each member. */
    uint32_t value_length;
    uint8_t verdict; /* 0: the event enters the queue. Other numbers say why not. */
    uint8_t is_substituted, value_form;
    uint8_t reserved; /* 0 */
} wan_verdict;
_Static_assert(sizeof(wan_verdict) == 16, "a verdict is a format");
#define WAN_VERDICTS_MAX 5u /* The highest verdict. */
/* The next verdict. */
static inline const wan_verdict *wan_verdict_next(const wan_verdict *verdict)
{
    return (const wan_verdict *)((const uint8_t *)(verdict + 1) + wan_align8(verdict->value_length));
}

static inline int wan_changelog_entry_has_call(const wan_changelog_entry *entry)
{
    return entry->kind == WAN_ENTRY_FORGET || entry->flags & WAN_CHANGELOG_REMEMBERED;
}
/* The identity of the entry's call. Only for an entry that has a call. */
static inline wan_call_identity *wan_changelog_entry_call(const wan_changelog_entry *entry)
{
    return (wan_call_identity *)(entry + 1);
}
/* Bytes in front of the record. */
static inline uint64_t wan_changelog_entry_head(const wan_changelog_entry *entry)
{
    return sizeof *entry + (wan_changelog_entry_has_call(entry) ? sizeof(wan_call_identity) : 0);
}
#define WAN_CHANGELOG_CLEAR_BYTES                                                                                      \
    ((uint32_t)(sizeof(wan_changelog_entry) + sizeof(wan_call_identity) + sizeof(uint64_t)))
/* How many entries a WAN_ENTRY_CLEAR took out: the cached reply to its call. */
static inline uint64_t *wan_changelog_entry_cleared(const wan_changelog_entry *entry)
{
    return (uint64_t *)((uint8_t *)entry + sizeof *entry + sizeof(wan_call_identity));
}
/* The record of a WAN_ENTRY_CHANGE. */
static inline wan_record *wan_changelog_entry_record(const wan_changelog_entry *entry)
{
    return (wan_record *)((uint8_t *)entry + wan_changelog_entry_head(entry));
}
static inline uint32_t wan_changelog_entry_found_length(const wan_changelog_entry *entry)
{
    return entry->flags & WAN_CHANGELOG_ROW ? 0 : entry->found_length;
}
/* The first verdict; all verdicts have `verdict_length` bytes. */
static inline const wan_verdict *wan_changelog_entry_verdicts(const wan_changelog_entry *entry)
{
    const wan_record *record = wan_changelog_entry_record(entry);
    return (const wan_verdict *)((const uint8_t *)record + wan_record_length(record));
}
/* The value found by the change. */
static inline uint8_t *wan_changelog_entry_found(const wan_changelog_entry *entry)
{
    return (uint8_t *)entry + entry->length - wan_align8(wan_changelog_entry_found_length(entry));
}

typedef struct wan_notifications wan_notifications;

/* A queue fed by the buckets of a change log: the events of bucket n are in partition `first` + n of the queue. */
typedef struct {
    wan_queue *queue;
    wan_lock *lock; /* The queue's. */
    void *owner;    /* The object to notify when events are ready. */
    uint32_t first; /* The first partition of a run of the queue (wan_queue_add_run). A queue that stays keeps its
                       run. */
} wan_feed;
typedef struct {
    uint32_t count;
    wan_feed items[];
} wan_feeds;

/* The wait of a thread that runs a replication link itself. */
typedef struct {
    struct wan_changelog *changelog;
    uint32_t bucket;
    int other_file; /* The thread stops running the replication link as soon as this file is readable. -1: no file. */
    uint64_t local_fence, sequence, until_us;
} wan_repl_link_wait;

/* Which thread runs a replication link, that is, sends frames and handles received frames. Only one thread does so at a
 * time: the replication link's own thread, or a thread that waits for its change (docs/decisions/0080). */
enum {
    WAN_REPL_LINK_RUNS = 0,  /* A thread is at work. The thread looks for more work before it waits. */
    WAN_REPL_LINK_WAITS = 1, /* The thread waits on wake_file. A thread that adds work sets WAN_REPL_LINK_RUNS and
                                writes to wake_file. */
    /* No question is on its way. The replication link's thread rests on rest_file. A thread that sets
     * WAN_REPL_LINK_RUNS then either runs the replication link, or writes to rest_file. In the second case the
     * replication link's thread runs it. */
    WAN_REPL_LINK_RESTS = 2,
};

/* The state of the replication link to one other member, as the change logs of all regions see the link. The owner (a
 * ReplSender) keeps the state alive as long as a change log names the link. All fields but `run` and `runner` are
 * atomic. */
typedef struct {
    uint32_t asleep;          /* WAN_REPL_LINK_* */
    int wake_file, rest_file; /* Both are eventfds. */
    uint64_t
        read_lease_until_us; /* Until then (wan_monotonic_us) the member adopts no later epoch without saying so. */
    uint32_t is_connected;
    uint32_t wants_read_lease; /* A read waits for a read lease: the replication link asks at once. The thread that sets
                                  the field wakes the replication link. */
    uint64_t answered_us; /* When the last answer came, or the replication link began (wan_monotonic_us). 0: neither
                             happened yet. */
    /* Runs the replication link for a thread that has set WAN_REPL_LINK_RUNS. Returns when the change of that thread is
     * replicated, or depends on other members only, or at `until_us`. Another thread then runs the replication link, or
     * the link rests. Set before the link rests. */
    void (*run)(void *runner, const wan_repl_link_wait *wait);
    void *runner;
    uint32_t has_removals; /* Some change log has a bit in `removals` for this replication link. The thread that sets
                              the field wakes the replication link. Atomic. */
    uint32_t is_short;     /* The last answer said that the member is above its limit of memory. */
    char other[64]; /* The name of the member, perhaps cut. Set before any change log names the replication link. */
} wan_repl_link_state;

enum {
    WAN_FOLLOWER_LEARNING = 0,
    WAN_FOLLOWER_WAITED = 1
}; /* Waited: a change is replicated only when this replica has it too. */

/* One replica of a bucket, as the primary of the bucket sees the replica. */
typedef struct {
    uint32_t repl_link;   /* The number of the replication link. */
    uint8_t state;        /* WAN_REPLICA_* */
    uint8_t queue_only;   /* The replica holds only queued events. The primary waits for the replica, but the replica
                             can never lead. */
    uint64_t transfer;    /* Only for a learner: names its snapshot. */
    uint64_t sent, acked; /* Sequences through which changes left on the present connection, and were acknowledged. */
    uint64_t told, notified; /* The last values sent to the replica: `high_watermark`, and the sequence through which
                                listeners were notified. */
    /* The next shard of the snapshot, relative to the bucket's first; WAN_SNAPSHOT_DONE. The replication link's thread
     * only. */
    uint32_t snapshot_shard;
    uint8_t snapshot_acked; /* The learner has the whole snapshot, and the stream up to its end. Since then the primary
                               waits for the learner. */
    uint8_t caught_up;      /* After that the learner also had all replicated changes. The primary has reported this
                               fact. */
    /* The replica acknowledged a section of the present epoch on the present connection. */
    uint8_t confirmed;
    /* The remaining fields belong to the replication link's thread. `place`: where the entry after `place_sequence`
     * begins, counted in bytes that were ever in `changes`. */
    uint8_t asked;   /* A section for an unconfirmed replica is on its way. */
    uint8_t refused; /* The replica knows a later epoch: the primary sends no more changes to the replica. */
    uint8_t queued;  /* The replica is in the replication link's list of snapshots to be sent. */
    uint64_t place_sequence, place;
    uint64_t retry_us;  /* No section is sent before this time. */
    uint64_t behind_us; /* Since when the learner has too many changes to catch up with. 0: the learner keeps up. */
} wan_changelog_replica;

/* A thread that serves many callers parks each wait as a pending call, and goes on. All fields are atomic. */
typedef struct {
    uint32_t asleep; /* The thread waits on wake_file: a thread that makes a call ready writes to this file. */
    int wake_file;   /* An eventfd. -1: nobody wakes the thread; the thread polls. */
    uint32_t users;  /* Threads that are making calls ready now. The owner stays until the number is 0. */
    struct wan_pending_call *ready; /* Calls that wait no more, linked by `behind`, the newest first. */
} wan_waker;

/* One wait for a sequence of a bucket. The owner keeps the memory in place until the call is taken from `ready`, or is
 * removed (wan_changelog_remove_pending). */
typedef struct wan_pending_call {
    struct wan_pending_call *before, *behind; /* In the bucket's list, or in `ready`. */
    wan_waker *owner;
    uint64_t local_fence, sequence; /* As for wan_changelog_wait. */
    uint32_t is_waiting;            /* The call is in the bucket's list. Guarded by the bucket's lock. */
} wan_pending_call;
#define WAN_PENDING_UNTIL_ROLE                                                                                         \
    UINT64_MAX /* Instead of a sequence: waits until the member's role for the bucket changes. */

/* Replicated changes that had fewer in-sync replicas than `min_isr` at that moment. */
typedef struct {
    uint64_t first, last; /* Sequences of the first and the last change. */
    uint32_t replicas;    /* How many were in sync, the primary included. */
} wan_under_replicated;
#define WAN_UNDER_REPLICATED_MAX                                                                                       \
    8u /* A bucket remembers this number of runs of under-replicated changes, the newest                               \
          runs. */

typedef struct {
    wan_lock lock; /* Guards all fields below. `role`, `epoch`, `timeline`, `log_end`, `high_watermark` may also be read
                      without the lock, atomically. */
    uint8_t role;  /* WAN_REPLICA_* */
    /* This member holds only the queued events of the bucket: a replica or learner that stores no entry. Atomic. */
    uint8_t queue_only;
    uint32_t changed; /* A futex: changes when `high_watermark` grows while a thread waits, and when role or timeline
                         change. */
    uint32_t waiters;
    wan_pending_call *first_pending,
        *last_pending; /* Waits of one local fence, by their sequences, each above `high_watermark`. */
    /* Changes when the member loses track of its own changes: with a new timeline, when the member stops being primary,
     * and when its replica is dropped. A wait for a sequence names the local fence in which the sequence was seen. */
    uint64_t local_fence;
    uint64_t high_watermark_before; /* The final high watermark of the local fence before, if this member led in that
                                       fence. Otherwise 0. */
    uint64_t timeline,
        epoch;        /* The newest adopted timeline, and the newest epoch in that timeline. Older ones are refused. */
    uint64_t log_end; /* The sequence of the newest change in this log. first <= log_end + 1. */
    /* Primary: all waited replicas have the changes through this sequence. Replica: the value last received from the
     * primary. high_watermark <= log_end. */
    uint64_t high_watermark;
    uint64_t first;         /* The sequence of the first change in `changes`. All changes below `first` are replicated,
                               as far as is known. */
    wan_buffer changes;     /* wan_changelog_entry after wan_changelog_entry. */
    uint64_t dropped_bytes; /* Bytes that were ever dropped from the front of `changes`. */
    uint32_t leader;        /* The number of the primary's incarnation. 0: unknown, or the bucket has no primary. */
    /* The numbers of the incarnations that the cluster metadata name as in-sync or leaving holders of the bucket. Only
     * these members can report that queued events have left. */
    uint32_t *holders;
    uint32_t holder_count;
    uint64_t transfer; /* Only for a learner: the snapshot that is being received. 0: none. */
    /* The connection on which the present primary sent a section of the present epoch (wan_contact). 0: none yet.
     * Atomic. */
    uint64_t contact;
    uint64_t learned; /* Only for a learner: the last transfer whose snapshot became whole. */
    wan_changelog_replica *replicas;
    uint32_t replica_count;
    uint32_t learners; /* Only for a primary: how many replicas are learners. Readable without the lock, atomically. */
    wan_under_replicated *under_replicated; /* An array of WAN_UNDER_REPLICATED_MAX. NULL: no such change yet. */
    uint32_t under_replicated_count;        /* How many runs were ever added. Run number n is in place n modulo
                                               WAN_UNDER_REPLICATED_MAX. */
    wan_answers
        answers; /* Cached replies to the calls that changed the bucket, the same at its primary and its replicas. */
    uint64_t held_changes, held_answers; /* Bytes that the bucket has charged to the budget (wan_budget_hold). */
} wan_changelog_bucket;

/* One attempt of a call, or of one row of a call. */
typedef struct {
    wan_call_identity call; /* `caller` is 0: the call is never repeated, and no reply is cached. */
    /* The epoch known to the client at the first attempt that may have made the change. 0: the present attempt is the
     * first. */
    uint64_t since;
    uint32_t row; /* Only for a call of many rows. */
    uint8_t is_row;
    /* The thread that makes the change waits for the change at once, and calls wan_changelog_run_repl_link. So
     * wan_changelog_commit does not wake a resting replication link. */
    uint8_t waits;
} wan_attempt;

/* A cached reply. The reply is valid when `sequence` is replicated, in the same local fence. */
typedef struct {
    uint64_t local_fence, sequence;
    uint32_t applied; /* Only for a call of many rows: how many rows changed something. */
    uint8_t outcome, found_form, has_found;
} wan_recalled;

typedef struct wan_changelog {
    wan_budget *budget; /* The budget of the member. NULL: no accounting. Set before the change log is used. */
    wan_changelog_bucket *buckets;
    uint32_t bucket_count, shard_count;
    uint32_t min_isr; /* A bucket with fewer in-sync replicas, the primary included, takes no change. */
    /* For each shard of the table, the sequence of its newest change. Written under the entry lock and the bucket's
     * lock. A read compares the sequence with `high_watermark`. */
    uint64_t *shard_last;
    wan_repl_link_state *repl_links[WAN_REPL_LINKS_MAX]; /* NULL: no replication link has this number. Published
                                                            atomically. */
    /* For each replication link: a bit for each bucket with something to send on the link. Allocated together with the
     * replication link. */
    uint64_t *to_send[WAN_REPL_LINKS_MAX];
    /* For each replication link: a bit for each bucket whose queues removed more events than the link has announced.
     * The same number of words follows, with the bits of buckets whose removals the link has to announce again from the
     * start. */
    uint64_t *removals[WAN_REPL_LINKS_MAX];
    uint32_t repl_link_limit; /* Above the number of every replication link. Atomic; only grows. */
    /* Keeps the replication links of this log alive for wan_changelog_note_removal. No lock is taken under this
     * lock. */
    wan_lock repl_links_lock;
    uint64_t lease_until_us; /* The coordinator's lease, by wan_monotonic_us. Atomic. */
    /* Until this time a primary takes changes, raises the high watermark and answers reads, even if the coordinator is
     * unreachable. The limit applies to every primary, also to a primary without in-sync replicas. WAN_NEVER: no limit.
     * Atomic. */
    uint64_t primary_until_us;
    uint32_t holds_back; /* A change may be held back because `primary_until_us` has passed. Atomic. */
    /* The queues fed by the buckets. NULL: none. Read under any bucket's lock, and replaced as a whole. */
    wan_feeds *feeds;
    wan_notifications *notifications; /* Changes that wait for listeners. NULL: no listeners. Atomic; set once. */
    /* How long a listener may stand still before changes that wait for the listener are dropped. Atomic. */
    uint64_t notification_limit_us;
} wan_changelog;

/* Returns the replication link of a waited replica whose member is above its limit of memory. NULL: no such replica.
 * Under the bucket's lock. */
static inline const wan_repl_link_state *wan_changelog_short_replica(const wan_changelog *changelog,
                                                                     const wan_changelog_bucket *bucket)
{
    for (uint32_t n = 0; n < bucket->replica_count; n++) {
        const wan_changelog_replica *replica = &bucket->replicas[n];
        const wan_repl_link_state *state =
            __atomic_load_n(&changelog->repl_links[replica->repl_link], __ATOMIC_ACQUIRE);
        if (replica->state == WAN_FOLLOWER_WAITED && state && __atomic_load_n(&state->is_short, __ATOMIC_RELAXED))
            return state;
    }
    return NULL;
}

/* Room for a change at the end of a bucket's change log. The bucket's lock is held. */
typedef struct {
    wan_changelog_bucket *bucket;
    uint8_t *at; /* The place for the wan_changelog_entry. */
    uint64_t length;
    uint64_t sequence;     /* The sequence of the change, if the change is made. */
    uint8_t is_waited_for; /* As `waits` of the attempt. */
    wan_recalled recalled; /* WAN_MADE_BEFORE: the effect of an earlier attempt. */
} wan_changelog_reservation;
/* Instead of the shard that an entry changes: */
#define WAN_NO_SHARD   UINT32_MAX       /* The entry changes no shard. */
#define WAN_ALL_SHARDS (UINT32_MAX - 1) /* The entry changes all shards of its bucket. */

/* Checks that a whole and valid entry begins at `at`, within `bytes` bytes. WAN_CORRUPT otherwise. The outcome of a
 * change is at most WAN_DESTROYED, so the code that notifies listeners needs no check of its own. `is_snapshot`: an
 * entry of a table, which no call made, and which may have lost its value (WAN_MISSING). */
wan_status wan_changelog_entry_check(const uint8_t *at, uint64_t bytes, int is_snapshot);

wan_status wan_changelog_init(wan_changelog *changelog, uint32_t buckets, uint32_t shards, uint32_t min_isr);
void wan_changelog_close(wan_changelog *changelog); /* No thread waits in the change log, or uses the log afterwards. */

/* Returns the present role of this member for a bucket: WAN_REPLICA_*. */
static inline uint8_t wan_changelog_role(const wan_changelog *changelog, uint32_t bucket)
{
    return __atomic_load_n(&changelog->buckets[bucket].role, __ATOMIC_ACQUIRE);
}

/* The replica or learner takes no more changes: wan_changelog_set_role follows. Under the bucket's lock. */
static inline void wan_changelog_end_replica(wan_changelog_bucket *bucket)
{
    if (bucket->role == WAN_REPLICA_IN_SYNC || bucket->role == WAN_REPLICA_LEARNER)
        __atomic_store_n(&bucket->role, WAN_REPLICA_ABSENT, __ATOMIC_RELEASE);
}

/* Whether this member holds only the queued events of a bucket, and no entries. */
static inline int wan_changelog_is_queue_only(const wan_changelog *changelog, uint32_t bucket)
{
    return __atomic_load_n(&changelog->buckets[bucket].queue_only, __ATOMIC_RELAXED);
}

/* Returns the changes of the region that wait for listeners. NULL: no listeners. */
static inline wan_notifications *wan_changelog_notifications(const wan_changelog *changelog)
{
    return __atomic_load_n(&changelog->notifications, __ATOMIC_ACQUIRE);
}

/* Returns the queues fed by the buckets, under any bucket's lock. NULL: none. */
static inline wan_feeds *wan_changelog_feeds(const wan_changelog *changelog)
{
    return __atomic_load_n(&changelog->feeds, __ATOMIC_ACQUIRE);
}

/* Sets until when the coordinator's lease runs, by wan_monotonic_us. */
static inline void wan_changelog_set_lease(wan_changelog *changelog, uint64_t until_us)
{
    __atomic_store_n(&changelog->lease_until_us, until_us, __ATOMIC_RELEASE);
}

/* Sets until when the member works as a primary. Changes that were held back become stable, if the time is not over.
 * Returns whether the high watermark of any bucket rose. */
int wan_changelog_set_primary_until(wan_changelog *changelog, uint64_t until_us);

/* Whether the coordinator's lease runs now. */
static inline int wan_changelog_lease_runs(const wan_changelog *changelog)
{
    uint64_t until_us = __atomic_load_n(&changelog->lease_until_us, __ATOMIC_ACQUIRE);
    return until_us == WAN_NEVER || wan_monotonic_us() < until_us;
}

/* Replication links. */
wan_status wan_changelog_add_repl_link(wan_changelog *changelog, uint32_t repl_link, wan_repl_link_state *state);
void wan_changelog_remove_repl_link(wan_changelog *changelog, uint32_t repl_link); /* No bucket names the link any
                                                                                      more. */

/* Sets the queues that the buckets feed from now on. Each queue has a run with a partition for each bucket. The run is
 * free, or was fed by this change log before. The caller makes sure that no change is under way. WAN_NO_MEMORY,
 * WAN_BROKEN: nothing was changed. */
wan_status wan_changelog_set_feeds(wan_changelog *changelog, const wan_feed *feeds, uint32_t count);
/* From now on each change is added to this queue, which was not fed before. Events of earlier changes of the buckets
 * may be queued only at other members (wan_queue_lack). */
void wan_changelog_has_fed(wan_changelog *changelog, const wan_queue *queue);

/* The primary's changes. Reserve takes the bucket's lock, and keeps the lock on WAN_OK. `attempt`: the call of the
 * change; NULL: the change is never repeated. WAN_NOT_PRIMARY: the member is not primary of the bucket, or the
 * coordinator was unreachable for too long. WAN_MADE_BEFORE, WAN_IN_DOUBT, WAN_GIVEN_UP: as for
 * wan_changelog_cached_reply, and room->recalled. WAN_TOO_FEW: fewer replicas than `min_isr` are in sync.
 * WAN_NO_MEMORY: no room. A full budget refuses nothing. The caller holds the entry lock. */
wan_status wan_changelog_reserve(wan_changelog *changelog, uint32_t bucket, uint64_t length, const wan_attempt *attempt,
                                 wan_changelog_reservation *room);
/* Commits an entry that was written: gives the entry its sequence, marks the bucket for the replication links of its
 * replicas, wakes sleeping replication links, and releases the lock. A change without replicas is replicated at once,
 * and is not kept, unless `primary_until_us` has passed. Returns the sequence. `shard`: the shard of the key,
 * WAN_NO_SHARD or WAN_ALL_SHARDS. */
uint64_t wan_changelog_commit(wan_changelog *changelog, wan_changelog_reservation *room, uint32_t shard);
void wan_changelog_cancel(wan_changelog_reservation *room);
/* Several changes of one bucket under one hold of its lock: rows of one call, or changes that are never repeated.
 * `wan_changelog_reserve` begins with the first change. If the first row of a call was not made before, no later row
 * was made before. For each change, `commit_next` commits the written entry as the newest. If the change was not made,
 * no function is called. `reserve_next` makes room for one more change; WAN_NO_MEMORY changes nothing, and the hold
 * goes on. `commit_end` does once, for all changes, the remaining work of wan_changelog_commit after the sequence.
 * `before`: the sequence of the newest change when the hold began. Returns the high watermark. */
wan_status wan_changelog_reserve_next(wan_changelog_reservation *room, uint64_t length);
uint64_t wan_changelog_commit_next(wan_changelog *changelog, wan_changelog_reservation *room, uint32_t shard);
uint64_t wan_changelog_commit_end(wan_changelog *changelog, wan_changelog_reservation *room, uint64_t before);
/* Runs a resting replication link on which a change leaves, as `wan_repl_link_state.run`. Other resting replication
 * links of the bucket are woken. The caller holds no lock. */
void wan_changelog_run_repl_link(const wan_repl_link_wait *wait);
/* Gives work to the replication link's thread, if no thread runs the replication link. */
void wan_repl_link_wake(wan_repl_link_state *state);
/* Looks up an earlier attempt of a call, or of one row of a call. WAN_MADE_BEFORE: the attempt took effect, and
 * *recalled has the cached reply; `found` (may be NULL) gets the value that the attempt found. WAN_EMPTY: no attempt
 * took effect. WAN_IN_DOUBT, in three cases: a later call of the same client and slot was made, so the client has given
 * this call up; or the reply is lost; or an attempt was made in an earlier timeline of the bucket, and the present
 * timeline has no replies from that time. WAN_GIVEN_UP: the client is refused. WAN_NOT_PRIMARY: the member is not
 * primary. WAN_NO_MEMORY. The detail gives the reason. The caller holds the entry lock of the key: no other attempt of
 * the same call comes between the lookup and the change. */
wan_status wan_changelog_cached_reply(wan_changelog *changelog, uint32_t bucket, const wan_attempt *attempt,
                                      wan_recalled *recalled, wan_buffer *found);
/* Forgets a client that has ended, by an entry of the stream. Statuses as for wan_changelog_reserve. */
wan_status wan_changelog_forget(wan_changelog *changelog, uint32_t bucket, uint64_t caller);
/* Waits until the change is replicated. WAN_OK: the change is replicated. WAN_NOT_PRIMARY: the local fence is another,
 * and the change was not replicated when the member lost the lead: this member cannot know the outcome. WAN_EMPTY: the
 * time is over. A time of 0 checks without waiting. */
wan_status wan_changelog_wait(wan_changelog *changelog, uint32_t bucket, uint64_t local_fence, uint64_t sequence,
                              uint32_t timeout_ms);
/* Returns the number of in-sync replicas with which a replicated change was made, if that number was below `min_isr`.
 * 0: the number was not below. For a repeat, the present number of in-sync replicas counts too, because the number
 * under an earlier primary is unknown. */
uint32_t wan_changelog_made_with(wan_changelog *changelog, uint32_t bucket, uint64_t sequence, int is_repeat);
/* Adds `pending`, whose owner, local fence and sequence are set, to the waits of the bucket. WAN_EMPTY: the call waits,
 * and moves to its owner's `ready` when the sequence is replicated or the local fence changes. WAN_OK, WAN_NOT_PRIMARY:
 * as for wan_changelog_wait; the call does not wait. A call with WAN_PENDING_UNTIL_ROLE is ready at the next
 * wan_changelog_set_role, for any role. */
wan_status wan_changelog_add_pending(wan_changelog *changelog, uint32_t bucket, wan_pending_call *pending);
/* Ends a wait that wan_changelog_add_pending began. Returns 1 if the call waited. 0: the call is in its owner's
 * `ready`, or was taken from `ready`. */
int wan_changelog_remove_pending(wan_changelog *changelog, uint32_t bucket, wan_pending_call *pending);
/* Takes all ready calls, linked by `behind`. Called by the owner's thread. */
wan_pending_call *wan_waker_take(wan_waker *waker);
/* Returns whether any call is ready. The owner asks after setting `asleep`. */
static inline int wan_waker_has_ready(const wan_waker *waker)
{
    return __atomic_load_n(&waker->ready, __ATOMIC_SEQ_CST) != NULL;
}
/* Sets whether the owner's thread is about to wait on its file. */
static inline void wan_waker_set_asleep(wan_waker *waker, uint32_t value)
{
    __atomic_exchange_n(&waker->asleep, value, __ATOMIC_SEQ_CST);
}
/* Returns when no thread makes a call ready any more. The owner has no pending call: all were removed. */
void wan_waker_end(wan_waker *waker);

/* Starts a bucket without a role with queued events under the sequences through `sequence`, all replicated. */
void wan_changelog_begin_at(wan_changelog *changelog, uint32_t bucket, uint64_t sequence);
/* Adopts the member's role from the cluster metadata. A role other than PRIMARY and TAKING_OVER forgets the replicas;
 * LEARNER and ABSENT forget the changes too. `transfer`: names a learner's snapshot. */
void wan_changelog_set_role(wan_changelog *changelog, uint32_t bucket, uint8_t role, uint64_t timeline, uint64_t epoch,
                            uint64_t transfer);
/* Adopts from the cluster metadata the primary (the number of its incarnation), and whether this member holds only the
 * queued events. Called before the role under the primary's epoch is set. */
void wan_changelog_set_leader(wan_changelog *changelog, uint32_t bucket, uint32_t leader, int queue_only);
/* Adopts from the cluster metadata the in-sync holders of the bucket and of its queued events. The change log takes
 * ownership of `holders`, allocated by malloc. */
void wan_changelog_set_holders(wan_changelog *changelog, uint32_t bucket, uint32_t *holders, uint32_t count);
/* Whether the cluster metadata name this incarnation as a holder. Under the bucket's lock. */
static inline int wan_changelog_is_holder(const wan_changelog_bucket *bucket, uint32_t member)
{
    for (uint32_t n = 0; n < bucket->holder_count; n++)
        if (bucket->holders[n] == member) return 1;
    return 0;
}
/* Sets the replicas of a bucket that this member leads. Only replication link, state, transfer, acked and queue_only of
 * `replicas` are used. A replica that stays keeps its known state; a waited replica stays waited. A new learner gets
 * the stream from `high_watermark` on. WAN_NO_MEMORY: nothing changed. */
wan_status wan_changelog_set_replicas(wan_changelog *changelog, uint32_t bucket, const wan_changelog_replica *replicas,
                                      uint32_t count);
/* Whether a primary may answer a read without asking: every waited replica has confirmed the present epoch, and its
 * read lease is valid; see `primary_until_us` too. A replica may answer while the lease runs. The function is called
 * after the read, in the local fence of the read. Wakes the replication links whose read lease is needed. */
int wan_changelog_may_read(wan_changelog *changelog, uint32_t bucket, uint64_t now_us);

/* Changes at a replica. `follow` takes the lock of the bucket, and keeps the lock on WAN_OK: the entry with the
 * primary's `sequence` is the next one. WAN_EMPTY: the log already has the entry. WAN_INVALID: entries before
 * `sequence` are missing. WAN_NOT_PRIMARY: this member has no replica of this timeline and epoch. `followed` copies the
 * entry. `shard`: as for wan_changelog_commit. `wan_changelog_reserve_next` makes room for the next entry under the
 * same hold. `follow_end` releases the lock. */
wan_status wan_changelog_follow(wan_changelog *changelog, uint32_t bucket, uint64_t timeline, uint64_t epoch,
                                uint64_t sequence, const wan_changelog_entry *entry, wan_changelog_reservation *room);
void wan_changelog_followed(wan_changelog *changelog, wan_changelog_reservation *room, const wan_changelog_entry *entry,
                            uint32_t shard);
void wan_changelog_follow_end(wan_changelog *changelog, wan_changelog_reservation *room);
/* Adopts the primary's high watermark, received on the connection `contact`: drops the replicated changes from the
 * change log, and wakes waiting reads. `notified`: the sequence through which listeners were notified at the primary's
 * member. */
void wan_changelog_told(wan_changelog *changelog, uint32_t bucket, uint64_t timeline, uint64_t epoch,
                        uint64_t high_watermark, uint64_t notified, uint64_t contact);
/* Propagates to the replicas of a bucket that listeners were notified of more changes. `wakes`: a replication link at
 * work sends the new sequence soon; otherwise the sequence leaves with the next changes, or with the next PING. Under
 * the bucket's lock. */
void wan_changelog_say_notified(wan_changelog *changelog, uint32_t bucket, int wakes);
/* Whether this member, as an in-sync replica, may answer a read alone: while the coordinator's lease runs, and while
 * the primary was in contact a moment ago. Called before and after the read. */
int wan_changelog_replica_may_answer(const wan_changelog *changelog, uint32_t bucket);

/* Answers that a replication link received. `acknowledged`: the replica has everything through `sequence`; raises
 * `high_watermark`, drops entries that no replica needs, wakes waiters. Returns flags WAN_CHANGELOG_* for the
 * effect. */
enum {
    WAN_CHANGELOG_GREW = 1,
    WAN_CHANGELOG_CAUGHT_UP = 2
}; /* `high_watermark` grew; a learner has all replicated changes, for the first time. */
int wan_changelog_acknowledged(wan_changelog *changelog, uint32_t bucket, uint32_t repl_link, uint64_t timeline,
                               uint64_t epoch, uint64_t sequence);
/* The learner of `transfer` has its whole snapshot: the primary waits for the learner from now on. So the high
 * watermark grows no faster than the learner's log, and the learner catches up. Returns 1, or 0 if this was known
 * already. */
int wan_changelog_snapshot_acked(wan_changelog *changelog, uint32_t bucket, uint32_t repl_link, uint64_t timeline,
                                 uint64_t epoch, uint64_t transfer);
/* Whether a caller that is about to change a bucket has to wait for a learner: its replication link works, but is
 * slower than the changes. So callers are as fast as the replication link, which also carries the snapshot. */
int wan_changelog_holds_back(wan_changelog *changelog, uint32_t bucket, uint64_t now_us);
/* Whether the call of wan_changelog_holds_back is needed. */
static inline int wan_changelog_has_learner(const wan_changelog *changelog, uint32_t bucket)
{
    return __atomic_load_n(&changelog->buckets[bucket].learners, __ATOMIC_RELAXED) != 0;
}
/* Charges the bytes of the bucket to the budget, after another file changed the cached replies. Under the bucket's
 * lock. */
void wan_changelog_charge(wan_changelog *changelog, wan_changelog_bucket *bucket);
/* Returns how many bytes of changes the replica at the end of a replication link has yet to acknowledge, over all
 * buckets that this member leads. For a bucket with several replicas, the bytes are those that any replica lacks. */
uint64_t wan_changelog_behind(wan_changelog *changelog, uint32_t repl_link);
/* Events of a bucket were removed from a queue fed by the bucket: the replication links announce the removal to the
 * other members. Any lock may be held. */
void wan_changelog_note_removal(wan_changelog *changelog, uint32_t bucket);
/* As wan_changelog_note_removal; also, the replication links announce again all known reasons of removals. No bucket's
 * lock is held. */
void wan_changelog_tell_again(wan_changelog *changelog, uint32_t bucket);
/* Whether a replication link has to announce all removals of a bucket again. The call clears the mark. Only the link's
 * thread calls the function. */
int wan_changelog_take_again(wan_changelog *changelog, uint32_t repl_link, uint32_t bucket);
/* The connection is new: all changes after `acked` are sent again, snapshots begin anew, and removals are announced
 * again. */
void wan_changelog_rewind(wan_changelog *changelog, uint32_t repl_link);

#endif
