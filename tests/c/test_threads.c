/* Owns the tests with threads. They use the primitives as the layer above shares them between threads, each under the
 * lock that guards it. Each test runs for some seconds under ThreadSanitizer: test_threads [seconds].
 *
 * The sanitizer needs no annotations. wan_lock, wan_wait_change and wan_signal_change order memory by C11 atomics
 * (acquire, release), which the sanitizer follows; the futex only puts threads to sleep. Numbers that are written under
 * a lock and read without it go through wan_add_guarded and wan_read (relaxed). An old value is as good as a new one
 * there, but a torn one is not. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "harness.h"
#include "memory_disk.h"
#include "base/wan_clock.h"
#include "base/wan_limit.h"
#include "base/wan_lock.h"
#include "replication/wan_notifications.h"
#include "replication/wan_repl_link.h"
#include "replication/wan_changelog.h"
#include "log/wan_log.h"
#include "store/wan_queue.h"
#include "region/wan_table.h"
#include "base/wan_thread.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static uint64_t end_us;
static int is_over(void) { return wan_monotonic_us() >= end_us; }

/* Starts `count` threads of each function, and waits for all of them. */
typedef struct {
    void *(*run)(void *);
    uint32_t count;
} crew;
typedef struct {
    void *shared;
    uint32_t number;
} worker;
static void run_crews(void *shared, const crew *crews, uint32_t crew_count)
{
    pthread_t threads[32];
    worker workers[32];
    uint32_t count = 0;
    for (uint32_t which = 0; which < crew_count; which++)
        for (uint32_t n = 0; n < crews[which].count; n++, count++) {
            workers[count] = (worker){shared, n};
            CHECK(pthread_create(&threads[count], NULL, crews[which].run, &workers[count]) == 0);
        }
    for (uint32_t n = 0; n < count; n++) pthread_join(threads[n], NULL);
}

/* A queue that conflates, with writers, one dispatcher for each partition, and a thread that only looks. */

enum { WRITERS = 3, PARTITIONS = 4, KEYS = 40 };
typedef struct {
    wan_lock lock;
    wan_queue queue;
    failing_disk disk;
    wan_clock clock;
    int writing;   /* Writers that are not done. */
    uint32_t work; /* The word that an idle dispatcher sleeps on. */
    /* The newest stamp of each writer's key. Only the writer uses it until all threads have ended. */
    uint64_t written[WRITERS][KEYS];
    /* The newest stamp that the receiver has. Only the dispatcher of the key's partition uses it. */
    uint64_t applied[WRITERS][KEYS];
    uint64_t sent, removed;
} shared_queue;

static void *write_queue(void *context)
{
    worker *self = context;
    shared_queue *shared = self->shared;
    random_source source = {.state = self->number};
    uint8_t value[2000] = {0};
    while (!is_over()) {
        char key[24];
        uint32_t k = random_below(&source, KEYS), partition = (self->number * KEYS + k) % PARTITIONS;
        snprintf(key, sizeof key, "%u-%u", self->number, k);
        record_plan plan = {
            .operation = WAN_UPDATE, .key = key, .value = value, .value_length = random_below(&source, sizeof value)};
        wan_reservation reservation;
        plan.stamp = wan_clock_take(&shared->clock, wan_now_ms(), 1);
        wan_lock_take(&shared->lock);
        if (wan_queue_reserve(&shared->queue, partition, plan_length(&plan), &reservation) == WAN_OK) {
            write_plan(reservation.at, &plan);
            wan_queue_commit(&shared->queue, &reservation);
            shared->written[self->number][k] = plan.stamp;
        }
        wan_lock_release(&shared->lock);
        if (!random_below(&source, 64)) wan_signal_change(&shared->work);
        while (wan_read(&shared->queue.bytes) > 8u << 20 && !is_over())
            wan_wait_change(&shared->work, __atomic_load_n(&shared->work, __ATOMIC_ACQUIRE), 1);
    }
    __atomic_fetch_sub(&shared->writing, 1, __ATOMIC_ACQ_REL);
    wan_signal_change(&shared->work);
    return NULL;
}

/* Reads records without the lock between peek and remove, as a dispatcher does when it packs a batch. */
static void *dispatch_queue(void *context)
{
    worker *self = context;
    shared_queue *shared = self->shared;
    random_source source = {.state = 100 + self->number};
    wan_record *records[64];
    for (;;) {
        uint32_t seen = __atomic_load_n(&shared->work, __ATOMIC_ACQUIRE);
        int writing = __atomic_load_n(&shared->writing, __ATOMIC_ACQUIRE);
        uint64_t size, through;
        wan_lock_take(&shared->lock);
        uint32_t count = wan_queue_peek(&shared->queue, self->number, 1 + random_below(&source, 64), WAN_NO_LIMIT, 1,
                                        records, NULL, &size);
        through = shared->queue.partitions[self->number].peeked;
        wan_lock_release(&shared->lock);
        if (!count) {
            if (!writing) return NULL;
            wan_wait_change(&shared->work, seen, 1);
            continue;
        }
        int arrives = random_below(&source, 10) != 0;
        for (uint32_t n = 0; n < count; n++) {
            uint32_t writer, key;
            char text[24] = "";
            CHECK(wan_record_check((const uint8_t *)records[n], wan_record_length(records[n])) == WAN_OK);
            memcpy(text, wan_record_key(records[n]), records[n]->key_length);
            CHECK(sscanf(text, "%u-%u", &writer, &key) == 2);
            CHECK(records[n]->stamp > shared->applied[writer][key]);
            if (arrives) shared->applied[writer][key] = records[n]->stamp;
        }
        wan_lock_take(&shared->lock);
        if (arrives) {
            shared->removed += wan_queue_remove(&shared->queue, self->number, through);
            shared->sent += count;
        } else wan_queue_rewind(&shared->queue, self->number);
        wan_lock_release(&shared->lock);
    }
}

static void *watch_queue(void *context)
{
    shared_queue *shared = ((worker *)context)->shared;
    uint64_t highest = 0;
    while (__atomic_load_n(&shared->writing, __ATOMIC_ACQUIRE)) {
        uint64_t events = wan_read(&shared->queue.events), bytes = wan_read(&shared->queue.bytes);
        if (events > highest) highest = events;
        CHECK(bytes < 1u << 30);
        wan_wait_change(&shared->work, __atomic_load_n(&shared->work, __ATOMIC_ACQUIRE), 1);
    }
    return NULL;
}

static void a_queue_gives_each_key_its_last_update_whoever_writes(void)
{
    static shared_queue shared;
    memset(&shared, 0, sizeof shared);
    failing_disk_init(&shared.disk);
    shared.writing = WRITERS;
    CHECK(wan_queue_init(&shared.queue, &shared.disk.env, "nowhere", 4u << 20, PARTITIONS, 1) == WAN_OK);
    run_crews(&shared, (crew[]){{write_queue, WRITERS}, {dispatch_queue, PARTITIONS}, {watch_queue, 1}}, 3);
    CHECK(shared.sent > 100 && shared.removed == shared.sent && shared.queue.events == 0);
    CHECK(memcmp(shared.written, shared.applied, sizeof shared.written) == 0);
    printf("  queue: %" PRIu64 " sent, %" PRIu64 " conflated\n", shared.sent, shared.queue.conflated);
    wan_queue_close(&shared.queue);
    CHECK(shared.disk.live == 0);
}

/* Two queues in one store, each with its own lock. Some events stand in both, and some in one. */

typedef struct {
    wan_lock locks[2];
    wan_queue queues[2];
    failing_disk disk;
    int writing;
    uint64_t put[2], taken[2], both;
} shared_store;

static void *write_shared(void *context)
{
    worker *self = context;
    shared_store *shared = self->shared;
    random_source source = {.state = 7 + self->number};
    static const uint8_t value[3000];
    while (!is_over()) {
        record_plan plan = {.operation = WAN_UPDATE,
                            .key = "key",
                            .value = value,
                            .value_length = random_below(&source, sizeof value),
                            .stamp = 1};
        uint32_t which = random_below(&source, 3);
        wan_reservation record, reference;
        if (wan_read(&shared->queues[0].bytes) + wan_read(&shared->queues[1].bytes) > 16u << 20) {
            wan_wait_change(&(uint32_t){0}, 0, 1);
            continue;
        }
        if (which == 2) {
            wan_lock_take(&shared->locks[0]);
            wan_lock_take(&shared->locks[1]);
            if (wan_queue_reserve(&shared->queues[0], 0, plan_length(&plan), &record) == WAN_OK) {
                if (wan_queue_reserve_reference(&shared->queues[1], 0, &reference) == WAN_OK) {
                    write_plan(record.at, &plan);
                    wan_queue_commit(&shared->queues[0], &record);
                    EXPECT_EQUAL(wan_queue_commit_reference(&shared->queues[1], &reference, &shared->queues[0], 0,
                                                            record.sequence),
                                 WAN_OK);
                    shared->put[0]++, shared->put[1]++, shared->both++;
                } else {
                    wan_queue_cancel(&shared->queues[0], &record);
                }
            }
            wan_lock_release(&shared->locks[1]);
            wan_lock_release(&shared->locks[0]);
            continue;
        }
        wan_lock_take(&shared->locks[which]);
        if (wan_queue_reserve(&shared->queues[which], 0, plan_length(&plan), &record) == WAN_OK) {
            write_plan(record.at, &plan);
            wan_queue_commit(&shared->queues[which], &record);
            shared->put[which]++;
            /* This stands for a filter that refuses the event. */
            if (random_below(&source, 4) == 0 && shared->queues[which].partitions[0].unpeeked) {
                wan_queue_make_hole(&shared->queues[which], 0, record.sequence, WAN_HOLE_FILTERED);
                shared->put[which]--;
            }
        }
        wan_lock_release(&shared->locks[which]);
    }
    __atomic_fetch_sub(&shared->writing, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static void *drain_shared(void *context)
{
    worker *self = context;
    shared_store *shared = self->shared;
    wan_queue *queue = &shared->queues[self->number];
    wan_record *records[32];
    for (;;) {
        int writing = __atomic_load_n(&shared->writing, __ATOMIC_ACQUIRE);
        uint64_t size, through;
        wan_lock_take(&shared->locks[self->number]);
        uint32_t count = wan_queue_peek(queue, 0, 32, WAN_NO_LIMIT, 1, records, NULL, &size);
        through = queue->partitions[0].peeked;
        wan_lock_release(&shared->locks[self->number]);
        if (!count && !writing) return NULL;
        for (uint32_t n = 0; n < count; n++)
            CHECK(wan_record_check((const uint8_t *)records[n], wan_record_length(records[n])) == WAN_OK
                  && records[n]->key_length == 3);
        wan_lock_take(&shared->locks[self->number]);
        shared->taken[self->number] += wan_queue_remove(queue, 0, through);
        wan_lock_release(&shared->locks[self->number]);
    }
}

static void two_queues_in_one_store_keep_their_own(void)
{
    static shared_store shared;
    wan_store *store;
    memset(&shared, 0, sizeof shared);
    failing_disk_init(&shared.disk);
    shared.writing = 2;
    CHECK(wan_store_new(&shared.disk.env, "nowhere", 4u << 20, &store) == WAN_OK);
    for (int n = 0; n < 2; n++) CHECK(wan_queue_init_in(&shared.queues[n], store, 1, 0) == WAN_OK);
    wan_store_release(store);
    run_crews(&shared, (crew[]){{write_shared, 2}, {drain_shared, 2}}, 2);
    for (int n = 0; n < 2; n++) CHECK(shared.taken[n] == shared.put[n] && shared.queues[n].events == 0);
    CHECK(shared.both > 10);
    printf("  store: %" PRIu64 " in one queue, %" PRIu64 " in both\n", shared.put[0] + shared.put[1] - 2 * shared.both,
           shared.both);
    for (int n = 0; n < 2; n++) wan_queue_close(&shared.queues[n]);
    CHECK(shared.disk.live == 0);
}

/* A table that grows. */

typedef struct {
    wan_table table;
    wan_clock clock;
    int writing;
    uint64_t made[4];
} shared_table;

static void *write_table(void *context)
{
    worker *self = context;
    shared_table *shared = self->shared;
    random_source source = {.state = self->number};
    for (uint64_t n = 0; !is_over(); n++) {
        char key[24];
        /* A key that all threads write, or a key of this thread only. */
        int common = random_below(&source, 2) != 0;
        if (common) snprintf(key, sizeof key, "common-%u", random_below(&source, 1000));
        else snprintf(key, sizeof key, "%u-%" PRIu64, self->number, n);
        wan_change change = {.key = (const uint8_t *)key,
                             .key_length = (uint16_t)strlen(key),
                             .value = (const uint8_t *)key,
                             .value_length = random_below(&source, 8),
                             .operation = common && !random_below(&source, 8) ? WAN_DESTROY : WAN_UPDATE,
                             .local = 1,
                             .stamp_site = 1};
        change.hash = wan_key_hash(change.key, change.key_length, 0);
        change.stamp = wan_clock_take(&shared->clock, wan_now_ms(), 1);
        wan_shard *shard = wan_table_shard(&shared->table, change.hash);
        wan_table_prefetch_slot(&shared->table, change.hash);
        wan_table_prefetch_entry(&shared->table, change.hash, 32);
        wan_lock_take(&shard->lock);
        wan_outcome outcome = wan_table_apply(shard, &change);
        wan_clock_see(&shared->clock, change.stamp);
        CHECK(outcome == WAN_CREATED || outcome == WAN_UPDATED || outcome == WAN_DESTROYED
              || (outcome == WAN_MISSING && common));
        const wan_entry *entry = wan_table_find(shard, change.hash, change.key, change.key_length, 0);
        CHECK(outcome == WAN_MISSING || (entry && entry->stamp == change.stamp));
        wan_lock_release(&shard->lock);
        shared->made[self->number] += !common;
    }
    __atomic_fetch_sub(&shared->writing, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static void *expire_table(void *context)
{
    shared_table *shared = ((worker *)context)->shared;
    while (__atomic_load_n(&shared->writing, __ATOMIC_ACQUIRE))
        for (uint32_t n = 0; n < shared->table.shard_count; n++) {
            wan_lock_take(&shared->table.shards[n].lock);
            wan_table_expire(&shared->table.shards[n], wan_now_ms() + 1, WAN_NO_STAMP);
            wan_lock_release(&shared->table.shards[n].lock);
        }
    return NULL;
}

static void a_table_keeps_every_key_while_it_grows(void)
{
    static shared_table shared;
    memset(&shared, 0, sizeof shared);
    shared.writing = 4;
    CHECK(wan_table_init(&shared.table, 7) == WAN_OK);
    run_crews(&shared, (crew[]){{write_table, 4}, {expire_table, 1}}, 2);
    uint64_t own = 0, found = 0;
    for (uint32_t n = 0; n < 4; n++) own += shared.made[n];
    for (uint32_t n = 0; n < shared.table.shard_count; n++) {
        const wan_shard *shard = &shared.table.shards[n];
        for (uint64_t at = 0; at < wan_shard_slots(shard); at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            found += entry && entry->bytes[0] != 'c';
        }
    }
    CHECK(own == found && own > 100);
    printf("  table: %" PRIu64 " keys\n", own);
    wan_table_close(&shared.table);
}

/* Group commit: many threads add records, one writes them, and each waits until its own record is on the disk. */

typedef struct {
    wan_lock lock;
    wan_buffer records, taken;
    uint64_t accepted, durable;
    uint32_t work, changed;
    int writing;
    memory_disk disk;
    wan_log log;
    uint64_t waited, blocks;
    uint8_t *found;
} shared_log;

static void *add_records(void *context)
{
    worker *self = context;
    shared_log *shared = self->shared;
    uint64_t item[8] = {self->number};
    while (!is_over()) {
        wan_lock_take(&shared->lock);
        item[1] = ++shared->accepted;
        CHECK(wan_buffer_add(&shared->records, item, sizeof item) == WAN_OK);
        wan_lock_release(&shared->lock);
        wan_signal_change(&shared->work);
        for (;;) {
            uint32_t seen = __atomic_load_n(&shared->changed, __ATOMIC_ACQUIRE);
            wan_lock_take(&shared->lock);
            int done = shared->durable >= item[1];
            shared->waited += done;
            wan_lock_release(&shared->lock);
            if (done) break;
            wan_wait_change(&shared->changed, seen, 100);
        }
    }
    __atomic_fetch_sub(&shared->writing, 1, __ATOMIC_ACQ_REL);
    wan_signal_change(&shared->work);
    return NULL;
}

static void *commit_log(void *context)
{
    shared_log *shared = ((worker *)context)->shared;
    for (;;) {
        uint32_t seen = __atomic_load_n(&shared->work, __ATOMIC_ACQUIRE), segment;
        int writing = __atomic_load_n(&shared->writing, __ATOMIC_ACQUIRE);
        wan_lock_take(&shared->lock);
        wan_buffer kept = shared->records;
        shared->records = shared->taken;
        shared->taken = kept;
        uint64_t accepted = shared->accepted;
        wan_lock_release(&shared->lock);
        if (!shared->taken.used) {
            if (!writing) return NULL;
            wan_wait_change(&shared->work, seen, 10);
            continue;
        }
        wan_part part = {.head = {WAN_PART_RECORDS, shared->taken.count, shared->taken.used},
                         .bytes = shared->taken.bytes};
        wan_status status = wan_log_make_room(&shared->log, wan_parts_length(&part, 1), NULL, 0);
        if (status == WAN_OK) status = wan_log_commit(&shared->log, &part, 1, &segment);
        CHECK(status == WAN_OK);
        wan_buffer_empty(&shared->taken);
        shared->blocks++;
        wan_lock_take(&shared->lock);
        shared->durable = accepted;
        wan_lock_release(&shared->lock);
        wan_signal_change(&shared->changed);
    }
}

static wan_status find_item(void *context, uint32_t index, uint64_t commit, const wan_part_head *head,
                            const uint8_t *bytes)
{
    shared_log *shared = context;
    for (uint64_t at = 0; at < head->length; at += 64) {
        uint64_t number;
        memcpy(&number, bytes + at + 8, 8);
        CHECK(number && number <= shared->accepted);
        shared->found[number - 1]++;
    }
    return WAN_OK;
}

static void what_group_commit_acknowledged_is_on_the_disk(void)
{
    static shared_log shared;
    memset(&shared, 0, sizeof shared);
    memory_disk_init(&shared.disk);
    shared.writing = 4;
    wan_log_reader reader = {.owner = &shared, .part = find_item};
    wan_damage damage;
    uint64_t cut;
    CHECK(wan_log_open(&shared.log, &shared.disk.env, "log", WAN_LOG_QUEUE, 1, 1, &reader, &damage, &cut) == WAN_OK);
    run_crews(&shared, (crew[]){{add_records, 4}, {commit_log, 1}}, 2);
    wan_log_close(&shared.log);
    CHECK(shared.waited == shared.accepted && shared.blocks <= shared.accepted && shared.accepted > 10);
    shared.found = calloc(1, shared.accepted);
    random_source source = {.state = 3};
    memory_disk_crash(&shared.disk, LOSE_UNSYNCED, &source);
    CHECK(wan_log_open(&shared.log, &shared.disk.env, "log", WAN_LOG_QUEUE, 1, 1, &reader, &damage, &cut) == WAN_OK);
    for (uint64_t n = 0; n < shared.accepted; n++) CHECK(shared.found[n] == 1);
    printf("  log: %" PRIu64 " accepted in %" PRIu64 " commits\n", shared.accepted, shared.blocks);
    wan_log_close(&shared.log);
    memory_disk_close(&shared.disk);
    wan_buffer_close(&shared.records);
    wan_buffer_close(&shared.taken);
    free(shared.found);
}

/* The clock, and the numbers of threads. */

typedef struct {
    wan_clock clock;
    uint64_t taken, sum;
    uint32_t numbers[6];
} shared_clock;

static void *take_stamps(void *context)
{
    worker *self = context;
    shared_clock *shared = self->shared;
    uint64_t last = 0, taken = 0;
    while (!is_over())
        for (int n = 0; n < 100; n++) {
            uint64_t first = wan_clock_take(&shared->clock, wan_now_ms() - (uint64_t)n % 3, 3);
            CHECK(first > last);
            last = first + 2;
            taken += 3;
            /* Like a stamp of another site. */
            if (n == 50) wan_clock_see(&shared->clock, last += 5);
        }
    wan_add_shared(&shared->taken, taken);
    wan_add_shared(&shared->sum, 1);
    shared->numbers[self->number] = wan_thread_number();
    CHECK(wan_thread_number() == shared->numbers[self->number] && wan_thread_next_event() == 1);
    return NULL;
}

static void stamps_ascend_in_every_thread_and_threads_have_numbers_of_their_own(void)
{
    static shared_clock shared;
    memset(&shared, 0, sizeof shared);
    run_crews(&shared, (crew[]){{take_stamps, 6}}, 1);
    CHECK(wan_read(&shared.sum) == 6);
    for (int a = 0; a < 6; a++)
        for (int b = 0; b < a; b++) CHECK(shared.numbers[a] != shared.numbers[b]);
    printf("  clock: %" PRIu64 " stamps\n", wan_read(&shared.taken));
}

/* The tail of a bucket with a primary's threads, a replication link's thread that sleeps when there is nothing to send,
 * a thread that tells listeners what counts, and one that takes a second replica into the set and out of it. */

enum { CHANGELOG_BUCKETS = 2, CHANGELOG_MAKERS = 4 };
typedef struct {
    wan_changelog changelog;
    wan_repl_link_state repl_link;
    uint64_t received[CHANGELOG_BUCKETS]; /* What the replica has: the replication link's thread publishes it before it
                                             acknowledges. */
    uint64_t made, acknowledgements, naps, beside;
    uint64_t told[CHANGELOG_BUCKETS]; /* Through here listeners were told. */
    int making;
} shared_changelog;

/* Makes the change for which there is room, and keeps it for listeners. Returns its sequence. */
static uint64_t make_change(shared_changelog *shared, uint32_t number, wan_changelog_reservation *room)
{
    wan_notifications *notifications = wan_changelog_notifications(&shared->changelog);
    *(wan_changelog_entry *)room->at = (wan_changelog_entry){.length = 64, .row = number};
    CHECK(wan_notifications_begin(notifications, number, room->sequence, NULL, 0, 0, 64) == WAN_OK);
    wan_notifications_add(notifications, number, (const wan_changelog_entry *)room->at);
    return wan_changelog_commit(&shared->changelog, room, number);
}

static void *tell_changes(void *context)
{
    shared_changelog *shared = ((worker *)context)->shared;
    wan_buffer taken = {0};
    for (;;) {
        const int ends = !__atomic_load_n(&shared->making, __ATOMIC_SEQ_CST);
        /* While changes are made, this wait ends by one that counts. */
        if (!wan_notifications_next(&shared->changelog, &taken, ends ? 0 : 200)) {
            if (ends) break;
            continue;
        }
        const wan_notification *item = (const wan_notification *)taken.bytes;
        const uint32_t number = ((const wan_changelog_entry *)(item + 1))->row;
        CHECK(item->sequence == shared->told[number] + 1);
        CHECK(__atomic_load_n(&shared->received[number], __ATOMIC_ACQUIRE) >= item->sequence);
        shared->told[number] = item->sequence;
    }
    wan_buffer_close(&taken);
    return NULL;
}

static void *make_changes(void *context)
{
    worker *self = context;
    shared_changelog *shared = self->shared;
    const uint32_t number = self->number % CHANGELOG_BUCKETS;
    const uint64_t local_fence = wan_read(&shared->changelog.buckets[number].local_fence);
    for (uint64_t made = 0; !is_over(); made++) {
        wan_changelog_reservation room;
        const wan_attempt attempt = {.since = 1, .waits = 1};
        CHECK(wan_changelog_reserve(&shared->changelog, number, 64, made % 4 ? &attempt : NULL, &room) == WAN_OK);
        const uint64_t sequence = make_change(shared, number, &room);
        if (made % 4) /* It runs the replication link if that rests. */
            wan_changelog_run_repl_link(
                &(wan_repl_link_wait){.changelog = &shared->changelog, .bucket = number, .sequence = sequence});
        /* If a wake-up is lost, on either side, nobody comes and this wait ends. */
        CHECK(wan_changelog_wait(&shared->changelog, number, local_fence, sequence, 20000) == WAN_OK);
        CHECK(__atomic_load_n(&shared->received[number], __ATOMIC_ACQUIRE) >= sequence);
        wan_add_shared(&shared->made, 1);
    }
    __atomic_fetch_sub(&shared->making, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* As make_changes, but each change is shelved, several at a time, and the thread sleeps until some are ready. It comes
 * and goes: each life has a waker of its own, with changes that still wait when it ends. */
static void *add_pending_changes(void *context)
{
    enum { PENDING = 8 };
    worker *self = context;
    shared_changelog *shared = self->shared;
    const uint32_t number = self->number % CHANGELOG_BUCKETS;
    const uint64_t local_fence = wan_read(&shared->changelog.buckets[number].local_fence);
    while (!is_over()) {
        wan_pending_call pending[PENDING];
        wan_waker *owner = calloc(1, sizeof *owner);
        uint32_t free_places = (1u << PENDING) - 1;
        owner->wake_file = eventfd(0, EFD_NONBLOCK);
        for (int round = 0; round < 100 && !is_over(); round++) {
            for (uint32_t n = 0; n < PENDING; n++) {
                if (!(free_places >> n & 1)) continue;
                wan_changelog_reservation room;
                CHECK(wan_changelog_reserve(&shared->changelog, number, 64, NULL, &room) == WAN_OK);
                const uint64_t sequence = make_change(shared, number, &room);
                pending[n] = (wan_pending_call){.owner = owner, .local_fence = local_fence, .sequence = sequence};
                if (wan_changelog_add_pending(&shared->changelog, number, &pending[n]) == WAN_EMPTY)
                    free_places &= ~(1u << n);
                wan_add_shared(&shared->made, 1);
            }
            wan_waker_set_asleep(owner, 1);
            if (!wan_waker_has_ready(owner)) {
                /* If a wake-up is lost, nobody comes and this wait ends. */
                struct pollfd wake = {owner->wake_file, POLLIN, 0};
                if (free_places != (1u << PENDING) - 1) CHECK(poll(&wake, 1, 20000) == 1);
                uint64_t count;
                if (read(owner->wake_file, &count, sizeof count) < 0) CHECK(errno == EAGAIN);
            }
            wan_waker_set_asleep(owner, 0);
            for (wan_pending_call *next, *ready = wan_waker_take(owner); ready; ready = next) {
                next = ready->behind;
                CHECK(__atomic_load_n(&shared->received[number], __ATOMIC_ACQUIRE) >= ready->sequence);
                free_places |= 1u << (ready - pending);
            }
        }
        for (uint32_t n = 0; n < PENDING; n++)
            if (!(free_places >> n & 1)) wan_changelog_remove_pending(&shared->changelog, number, &pending[n]);
        wan_waker_end(owner);
        close(owner->wake_file);
        free(owner);
    }
    __atomic_fetch_sub(&shared->making, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* What the replication link does in one turn. Only the thread that runs the replication link calls it. */
static void send_all(shared_changelog *shared)
{
    uint64_t bits = __atomic_exchange_n(shared->changelog.to_send[0], 0, __ATOMIC_SEQ_CST);
    for (uint32_t n = 0; n < CHANGELOG_BUCKETS; n++) {
        if (!(bits >> n & 1)) continue;
        wan_changelog_bucket *bucket = &shared->changelog.buckets[n];
        wan_lock_take(&bucket->lock);
        CHECK(bucket->first <= bucket->high_watermark + 1 && bucket->high_watermark <= bucket->log_end);
        CHECK(bucket->changes.used - bucket->changes.start == 64 * (bucket->log_end + 1 - bucket->first));
        uint64_t last = bucket->log_end;
        wan_lock_release(&bucket->lock);
        __atomic_store_n(&shared->received[n], last, __ATOMIC_RELEASE);
        shared->acknowledgements += (uint64_t)wan_changelog_acknowledged(&shared->changelog, n, 0, 1, 1, last);
    }
}

/* Another thread runs the replication link, as a ReplSender does: it leaves it at rest, or wakes the replication link's
 * thread. */
static void run_beside(void *runner, const wan_repl_link_wait *wait)
{
    shared_changelog *shared = runner;
    (void)wait;
    send_all(shared);
    wan_repl_link_set_asleep(&shared->repl_link, WAN_REPL_LINK_WAITS);
    shared->beside++;
    if (!__atomic_load_n(shared->changelog.to_send[0], __ATOMIC_SEQ_CST) && shared->beside % 8
        && wan_repl_link_change(&shared->repl_link, WAN_REPL_LINK_WAITS, WAN_REPL_LINK_RESTS))
        return;
    wan_repl_link_set_asleep(&shared->repl_link, WAN_REPL_LINK_RUNS);
    const uint64_t one = 1;
    CHECK(write(shared->repl_link.rest_file, &one, sizeof one) == sizeof one);
}

static int nap(int file, int timeout_ms)
{
    struct pollfd wake = {file, POLLIN, 0};
    CHECK(poll(&wake, 1, timeout_ms) >= 0);
    uint64_t count;
    if (read(file, &count, sizeof count) == sizeof count) return 1;
    CHECK(errno == EAGAIN);
    return 0;
}

static void *run_repl_link(void *context)
{
    shared_changelog *shared = ((worker *)context)->shared;
    wan_repl_link_state *repl_link = &shared->repl_link;
    for (uint32_t round = 0; __atomic_load_n(&shared->making, __ATOMIC_SEQ_CST); round++) {
        wan_repl_link_set_asleep(repl_link, WAN_REPL_LINK_WAITS);
        if (!__atomic_load_n(shared->changelog.to_send[0], __ATOMIC_SEQ_CST)) {
            shared->naps++;
            if (round % 16 == 0 || !wan_repl_link_change(repl_link, WAN_REPL_LINK_WAITS, WAN_REPL_LINK_RESTS))
                nap(repl_link->wake_file, 20);
            else /* It is written exactly when this thread is to run the replication link. */
                while (!nap(repl_link->rest_file, 20)
                       && !wan_repl_link_change(repl_link, WAN_REPL_LINK_RESTS, WAN_REPL_LINK_RUNS))
                    continue;
        }
        wan_repl_link_set_asleep(repl_link, WAN_REPL_LINK_RUNS);
        send_all(shared);
    }
    return NULL;
}

static void *change_replicas(void *context)
{
    shared_changelog *shared = ((worker *)context)->shared;
    const wan_changelog_replica replicas[] = {{.repl_link = 0, .state = WAN_FOLLOWER_WAITED},
                                              {.repl_link = 1, .state = WAN_FOLLOWER_LEARNING, .transfer = 1}};
    for (uint32_t n = 0; !is_over(); n++) {
        CHECK(wan_changelog_set_replicas(&shared->changelog, n % CHANGELOG_BUCKETS, replicas,
                                         1 + n / CHANGELOG_BUCKETS % 2)
              == WAN_OK);
        wan_changelog_may_read(&shared->changelog, n % CHANGELOG_BUCKETS, wan_monotonic_us());
        sched_yield();
    }
    for (uint32_t n = 0; n < CHANGELOG_BUCKETS; n++)
        CHECK(wan_changelog_set_replicas(&shared->changelog, n, replicas, 1) == WAN_OK);
    return NULL;
}

static void a_change_that_is_replicated_is_at_the_replica_and_nobody_waits_for_a_lost_wake_up(void)
{
    static shared_changelog shared;
    memset(&shared, 0, sizeof shared);
    CHECK(wan_changelog_init(&shared.changelog, CHANGELOG_BUCKETS, CHANGELOG_BUCKETS, 1) == WAN_OK);
    shared.repl_link.wake_file = eventfd(0, EFD_NONBLOCK);
    shared.repl_link.rest_file = eventfd(0, EFD_NONBLOCK);
    shared.repl_link.run = run_beside;
    shared.repl_link.runner = &shared;
    CHECK(wan_changelog_add_repl_link(&shared.changelog, 0, &shared.repl_link) == WAN_OK);
    CHECK(wan_changelog_keep_notifications(&shared.changelog, WAN_NOTIFY_LED) == WAN_OK);
    const wan_changelog_replica replica = {.repl_link = 0, .state = WAN_FOLLOWER_WAITED};
    for (uint32_t n = 0; n < CHANGELOG_BUCKETS; n++) {
        wan_changelog_set_role(&shared.changelog, n, WAN_REPLICA_PRIMARY, 1, 1, 0);
        CHECK(wan_changelog_set_replicas(&shared.changelog, n, &replica, 1) == WAN_OK);
    }
    shared.making = 2 * CHANGELOG_MAKERS;
    run_crews(&shared,
              (crew[]){{make_changes, CHANGELOG_MAKERS},
                       {add_pending_changes, CHANGELOG_MAKERS},
                       {run_repl_link, 1},
                       {change_replicas, 1},
                       {tell_changes, 1}},
              5);
    uint64_t last = 0;
    for (uint32_t n = 0; n < CHANGELOG_BUCKETS; n++) {
        last += shared.changelog.buckets[n].log_end;
        CHECK(shared.told[n] == shared.changelog.buckets[n].high_watermark);
    }
    CHECK(last == shared.made && shared.made > 100);
    printf("  change log: %" PRIu64 " changes in %" PRIu64 " acknowledgements, %" PRIu64
           " times beside the replication link's thread\n",
           shared.made, shared.acknowledgements, shared.beside);
    close(shared.repl_link.wake_file);
    close(shared.repl_link.rest_file);
    wan_changelog_close(&shared.changelog);
}

/* A slab and a limit. Threads take and give pieces and arrays, others measure and ask. */

typedef struct {
    wan_limit limit;
    wan_slab slab;
    int working; /* Threads that are not done. */
} limited_slab;

static void *take_and_give(void *context)
{
    worker *self = context;
    limited_slab *shared = self->shared;
    void *pieces[256] = {0};
    while (!is_over()) {
        for (uint32_t n = 0; n < 256; n++) CHECK((pieces[n] = wan_slab_take(&shared->slab, self->number, 1000)));
        void *array = wan_slab_take_array(&shared->slab, self->number, 4 << 20);
        CHECK(array);
        wan_slab_note_large(&shared->slab, 5000, 1);
        if (wan_limit_is_short(&shared->limit)) CHECK(wan_limit_refuse(&shared->limit) == WAN_FULL);
        wan_slab_note_large(&shared->slab, 5000, 0);
        wan_slab_give_array(&shared->slab, array, 4 << 20);
        for (uint32_t n = 0; n < 256; n++) wan_slab_give(&shared->slab, pieces[n], 1000);
        wan_slab_drop_spare(&shared->slab);
    }
    __atomic_sub_fetch(&shared->working, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static void *measure(void *context)
{
    limited_slab *shared = ((worker *)context)->shared;
    while (__atomic_load_n(&shared->working, __ATOMIC_ACQUIRE)) {
        wan_limit_note(&shared->limit, 1 << 20, wan_slab_bytes(&shared->slab) / 8, WAN_NO_LIMIT);
        CHECK(wan_limit_used(&shared->limit) < (uint64_t)1 << 40);
        sched_yield();
    }
    return NULL;
}

static void a_limit_counts_what_threads_take_and_give_back(void)
{
    static limited_slab shared;
    wan_limit_init(&shared.limit, "one", 20 << 20, 4 << 20, 2 << 20); /* One array is too much. */
    CHECK(wan_slab_init(&shared.slab) == WAN_OK);
    wan_slab_set_limit(&shared.slab, &shared.limit);
    shared.working = 3;
    run_crews(&shared, (crew[]){{take_and_give, 3}, {measure, 1}}, 2);
    CHECK(wan_read(&shared.limit.counted) == wan_slab_bytes(&shared.slab));
    wan_slab_close(&shared.slab);
    CHECK(wan_read(&shared.limit.counted) == 0 && shared.limit.shorts > 0);
}

int main(int count, char **arguments)
{
    static const test_case tests[] = {
        {"a queue gives each key its last update, whoever writes",
         a_queue_gives_each_key_its_last_update_whoever_writes},
        {"two queues in one store keep their own", two_queues_in_one_store_keep_their_own},
        {"a table keeps every key while it grows", a_table_keeps_every_key_while_it_grows},
        {"what group commit acknowledged is on the disk", what_group_commit_acknowledged_is_on_the_disk},
        {"stamps ascend in every thread, and threads have numbers of their own",
         stamps_ascend_in_every_thread_and_threads_have_numbers_of_their_own},
        {"a change that is replicated is at the replica, and nobody waits for a lost wake-up",
         a_change_that_is_replicated_is_at_the_replica_and_nobody_waits_for_a_lost_wake_up},
        {"a limit counts what threads take and give back", a_limit_counts_what_threads_take_and_give_back},
        {0}};
    uint64_t seconds = count > 1 ? strtoull(arguments[1], NULL, 10) : 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const test_case *test = tests; test->promise; test++) {
        printf("%s\n", test->promise);
        end_us = wan_monotonic_us() + seconds * 1000000;
        test->run();
    }
    return 0;
}
