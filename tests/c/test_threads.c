/* Owns the tests with threads. They use the primitives as the layer above shares them between threads, each under the
 * lock that guards it. Each test runs for some seconds under ThreadSanitizer: test_threads [seconds].
 *
 * The sanitizer needs no annotations. wan_lock, wan_wait_change and wan_signal_change order memory by C11 atomics
 * (acquire, release), which the sanitizer follows; the futex only puts threads to sleep. Numbers that are written under
 * a lock and read without it go through wan_add_guarded and wan_read (relaxed). An old value is as good as a new one
 * there, but a torn one is not. */
#include <pthread.h>

#include "harness.h"
#include "memory_disk.h"
#include "base/wan_clock.h"
#include "base/wan_lock.h"
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
    for (uint32_t c = 0; c < crew_count; c++)
        for (uint32_t n = 0; n < crews[c].count; n++, count++) {
            workers[count] = (worker){shared, n};
            CHECK(pthread_create(&threads[count], NULL, crews[c].run, &workers[count]) == 0);
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
    worker *w = context;
    shared_queue *q = w->shared;
    random_source source = {.state = w->number};
    uint8_t value[2000] = {0};
    while (!is_over()) {
        char key[24];
        uint32_t k = random_below(&source, KEYS), partition = (w->number * KEYS + k) % PARTITIONS;
        snprintf(key, sizeof key, "%u-%u", w->number, k);
        record_plan plan = {
            .operation = WAN_UPDATE, .key = key, .value = value, .value_length = random_below(&source, sizeof value)};
        wan_reservation reservation;
        plan.stamp = wan_clock_take(&q->clock, wan_now_ms(), 1);
        wan_lock_take(&q->lock);
        if (wan_queue_reserve(&q->queue, partition, plan_length(&plan), &reservation) == WAN_OK) {
            write_plan(reservation.at, &plan);
            wan_queue_commit(&q->queue, &reservation);
            q->written[w->number][k] = plan.stamp;
        }
        wan_lock_release(&q->lock);
        if (!random_below(&source, 64)) wan_signal_change(&q->work);
        while (wan_read(&q->queue.bytes) > 8u << 20 && !is_over())
            wan_wait_change(&q->work, __atomic_load_n(&q->work, __ATOMIC_ACQUIRE), 1);
    }
    __atomic_fetch_sub(&q->writing, 1, __ATOMIC_ACQ_REL);
    wan_signal_change(&q->work);
    return NULL;
}

/* Reads records without the lock between peek and remove, as a dispatcher does when it packs a batch. */
static void *dispatch_queue(void *context)
{
    worker *w = context;
    shared_queue *q = w->shared;
    random_source source = {.state = 100 + w->number};
    wan_record *records[64];
    for (;;) {
        uint32_t seen = __atomic_load_n(&q->work, __ATOMIC_ACQUIRE);
        int writing = __atomic_load_n(&q->writing, __ATOMIC_ACQUIRE);
        uint64_t size, through;
        wan_lock_take(&q->lock);
        uint32_t count =
            wan_queue_peek(&q->queue, w->number, 1 + random_below(&source, 64), WAN_NO_LIMIT, 1, records, NULL, &size);
        through = q->queue.partitions[w->number].peeked;
        wan_lock_release(&q->lock);
        if (!count) {
            if (!writing) return NULL;
            wan_wait_change(&q->work, seen, 1);
            continue;
        }
        int arrives = random_below(&source, 10) != 0;
        for (uint32_t n = 0; n < count; n++) {
            uint32_t writer, key;
            char text[24] = "";
            CHECK(wan_record_check((const uint8_t *)records[n], wan_record_length(records[n])) == WAN_OK);
            memcpy(text, wan_record_key(records[n]), records[n]->key_length);
            CHECK(sscanf(text, "%u-%u", &writer, &key) == 2);
            CHECK(records[n]->stamp > q->applied[writer][key]);
            if (arrives) q->applied[writer][key] = records[n]->stamp;
        }
        wan_lock_take(&q->lock);
        if (arrives) {
            q->removed += wan_queue_remove(&q->queue, w->number, through);
            q->sent += count;
        } else wan_queue_rewind(&q->queue, w->number);
        wan_lock_release(&q->lock);
    }
}

static void *watch_queue(void *context)
{
    shared_queue *q = ((worker *)context)->shared;
    uint64_t highest = 0;
    while (__atomic_load_n(&q->writing, __ATOMIC_ACQUIRE)) {
        uint64_t events = wan_read(&q->queue.events), bytes = wan_read(&q->queue.bytes);
        if (events > highest) highest = events;
        CHECK(bytes < 1u << 30);
        wan_wait_change(&q->work, __atomic_load_n(&q->work, __ATOMIC_ACQUIRE), 1);
    }
    return NULL;
}

static void a_queue_gives_each_key_its_last_update_whoever_writes(void)
{
    static shared_queue q;
    memset(&q, 0, sizeof q);
    failing_disk_init(&q.disk);
    q.writing = WRITERS;
    CHECK(wan_queue_init(&q.queue, &q.disk.env, "nowhere", 4u << 20, PARTITIONS, 1) == WAN_OK);
    run_crews(&q, (crew[]){{write_queue, WRITERS}, {dispatch_queue, PARTITIONS}, {watch_queue, 1}}, 3);
    CHECK(q.sent > 100 && q.removed == q.sent && q.queue.events == 0);
    CHECK(memcmp(q.written, q.applied, sizeof q.written) == 0);
    printf("  queue: %" PRIu64 " sent, %" PRIu64 " conflated\n", q.sent, q.queue.conflated);
    wan_queue_close(&q.queue);
    CHECK(q.disk.live == 0);
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
    worker *w = context;
    shared_store *s = w->shared;
    random_source source = {.state = 7 + w->number};
    static const uint8_t value[3000];
    while (!is_over()) {
        record_plan plan = {.operation = WAN_UPDATE,
                            .key = "key",
                            .value = value,
                            .value_length = random_below(&source, sizeof value),
                            .stamp = 1};
        uint32_t which = random_below(&source, 3);
        wan_reservation record, reference;
        if (wan_read(&s->queues[0].bytes) + wan_read(&s->queues[1].bytes) > 16u << 20) {
            wan_wait_change(&(uint32_t){0}, 0, 1);
            continue;
        }
        if (which == 2) {
            wan_lock_take(&s->locks[0]);
            wan_lock_take(&s->locks[1]);
            if (wan_queue_reserve(&s->queues[0], 0, plan_length(&plan), &record) == WAN_OK) {
                if (wan_queue_reserve_reference(&s->queues[1], 0, &reference) == WAN_OK) {
                    write_plan(record.at, &plan);
                    wan_queue_commit(&s->queues[0], &record);
                    EXPECT_EQUAL(
                        wan_queue_commit_reference(&s->queues[1], &reference, &s->queues[0], 0, record.sequence),
                        WAN_OK);
                    s->put[0]++, s->put[1]++, s->both++;
                } else {
                    wan_queue_cancel(&s->queues[0], &record);
                }
            }
            wan_lock_release(&s->locks[1]);
            wan_lock_release(&s->locks[0]);
            continue;
        }
        wan_lock_take(&s->locks[which]);
        if (wan_queue_reserve(&s->queues[which], 0, plan_length(&plan), &record) == WAN_OK) {
            write_plan(record.at, &plan);
            wan_queue_commit(&s->queues[which], &record);
            s->put[which]++;
            /* As if a filter refused it. */
            if (random_below(&source, 4) == 0 && s->queues[which].partitions[0].unpeeked) {
                wan_queue_make_hole(&s->queues[which], 0, record.sequence, WAN_HOLE_FILTERED);
                s->put[which]--;
            }
        }
        wan_lock_release(&s->locks[which]);
    }
    __atomic_fetch_sub(&s->writing, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static void *drain_shared(void *context)
{
    worker *w = context;
    shared_store *s = w->shared;
    wan_queue *queue = &s->queues[w->number];
    wan_record *records[32];
    for (;;) {
        int writing = __atomic_load_n(&s->writing, __ATOMIC_ACQUIRE);
        uint64_t size, through;
        wan_lock_take(&s->locks[w->number]);
        uint32_t count = wan_queue_peek(queue, 0, 32, WAN_NO_LIMIT, 1, records, NULL, &size);
        through = queue->partitions[0].peeked;
        wan_lock_release(&s->locks[w->number]);
        if (!count && !writing) return NULL;
        for (uint32_t n = 0; n < count; n++)
            CHECK(wan_record_check((const uint8_t *)records[n], wan_record_length(records[n])) == WAN_OK
                  && records[n]->key_length == 3);
        wan_lock_take(&s->locks[w->number]);
        s->taken[w->number] += wan_queue_remove(queue, 0, through);
        wan_lock_release(&s->locks[w->number]);
    }
}

static void two_queues_in_one_store_keep_their_own(void)
{
    static shared_store s;
    wan_store *store;
    memset(&s, 0, sizeof s);
    failing_disk_init(&s.disk);
    s.writing = 2;
    CHECK(wan_store_new(&s.disk.env, "nowhere", 4u << 20, &store) == WAN_OK);
    for (int n = 0; n < 2; n++) CHECK(wan_queue_init_in(&s.queues[n], store, 1, 0) == WAN_OK);
    wan_store_release(store);
    run_crews(&s, (crew[]){{write_shared, 2}, {drain_shared, 2}}, 2);
    for (int n = 0; n < 2; n++) CHECK(s.taken[n] == s.put[n] && s.queues[n].events == 0);
    CHECK(s.both > 10);
    printf("  store: %" PRIu64 " in one queue, %" PRIu64 " in both\n", s.put[0] + s.put[1] - 2 * s.both, s.both);
    for (int n = 0; n < 2; n++) wan_queue_close(&s.queues[n]);
    CHECK(s.disk.live == 0);
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
    worker *w = context;
    shared_table *t = w->shared;
    random_source source = {.state = w->number};
    for (uint64_t n = 0; !is_over(); n++) {
        char key[24];
        /* A key that all threads write, or a key of this thread only. */
        int common = random_below(&source, 2) != 0;
        if (common) snprintf(key, sizeof key, "common-%u", random_below(&source, 1000));
        else snprintf(key, sizeof key, "%u-%" PRIu64, w->number, n);
        wan_change change = {.key = (const uint8_t *)key,
                             .key_length = (uint16_t)strlen(key),
                             .value = (const uint8_t *)key,
                             .value_length = random_below(&source, 8),
                             .operation = common && !random_below(&source, 8) ? WAN_DESTROY : WAN_UPDATE,
                             .local = 1,
                             .stamp_site = 1};
        change.hash = wan_key_hash(change.key, change.key_length, 0);
        change.stamp = wan_clock_take(&t->clock, wan_now_ms(), 1);
        wan_shard *shard = wan_table_shard(&t->table, change.hash);
        wan_table_prefetch_slot(&t->table, change.hash);
        wan_table_prefetch_entry(&t->table, change.hash, 32);
        wan_lock_take(&shard->lock);
        wan_outcome outcome = wan_table_apply(shard, &change);
        wan_clock_see(&t->clock, change.stamp);
        CHECK(outcome == WAN_CREATED || outcome == WAN_UPDATED || outcome == WAN_DESTROYED
              || (outcome == WAN_MISSING && common));
        const wan_entry *entry = wan_table_find(shard, change.hash, change.key, change.key_length, 0);
        CHECK(outcome == WAN_MISSING || (entry && entry->stamp == change.stamp));
        wan_lock_release(&shard->lock);
        t->made[w->number] += !common;
    }
    __atomic_fetch_sub(&t->writing, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static void *expire_table(void *context)
{
    shared_table *t = ((worker *)context)->shared;
    while (__atomic_load_n(&t->writing, __ATOMIC_ACQUIRE))
        for (uint32_t n = 0; n < t->table.shard_count; n++) {
            wan_lock_take(&t->table.shards[n].lock);
            wan_table_expire(&t->table.shards[n], wan_now_ms() + 1, WAN_NO_STAMP);
            wan_lock_release(&t->table.shards[n].lock);
        }
    return NULL;
}

static void a_table_keeps_every_key_while_it_grows(void)
{
    static shared_table t;
    memset(&t, 0, sizeof t);
    t.writing = 4;
    CHECK(wan_table_init(&t.table, 7) == WAN_OK);
    run_crews(&t, (crew[]){{write_table, 4}, {expire_table, 1}}, 2);
    uint64_t own = 0, found = 0;
    for (uint32_t n = 0; n < 4; n++) own += t.made[n];
    for (uint32_t n = 0; n < t.table.shard_count; n++) {
        const wan_shard *shard = &t.table.shards[n];
        for (uint64_t at = 0; at < wan_shard_slots(shard); at++) {
            const wan_entry *entry = wan_shard_entry(shard, at);
            found += entry && entry->bytes[0] != 'c';
        }
    }
    CHECK(own == found && own > 100);
    printf("  table: %" PRIu64 " keys\n", own);
    wan_table_close(&t.table);
}

/* Group commit: many threads add records, one writes them, and each waits until its own record is on the disk. */

typedef struct {
    wan_lock lock;
    wan_buffer records, taken;
    uint64_t accepted, durable;
    uint32_t work, epoch;
    int writing;
    memory_disk disk;
    wan_log log;
    uint64_t waited, blocks;
    uint8_t *found;
} shared_log;

static void *stage_log(void *context)
{
    worker *w = context;
    shared_log *l = w->shared;
    uint64_t item[8] = {w->number};
    while (!is_over()) {
        wan_lock_take(&l->lock);
        item[1] = ++l->accepted;
        CHECK(wan_buffer_add(&l->records, item, sizeof item) == WAN_OK);
        wan_lock_release(&l->lock);
        wan_signal_change(&l->work);
        for (;;) {
            uint32_t seen = __atomic_load_n(&l->epoch, __ATOMIC_ACQUIRE);
            wan_lock_take(&l->lock);
            int done = l->durable >= item[1];
            l->waited += done;
            wan_lock_release(&l->lock);
            if (done) break;
            wan_wait_change(&l->epoch, seen, 100);
        }
    }
    __atomic_fetch_sub(&l->writing, 1, __ATOMIC_ACQ_REL);
    wan_signal_change(&l->work);
    return NULL;
}

static void *commit_log(void *context)
{
    shared_log *l = ((worker *)context)->shared;
    for (;;) {
        uint32_t seen = __atomic_load_n(&l->work, __ATOMIC_ACQUIRE), segment;
        int writing = __atomic_load_n(&l->writing, __ATOMIC_ACQUIRE);
        wan_lock_take(&l->lock);
        wan_buffer kept = l->records;
        l->records = l->taken;
        l->taken = kept;
        uint64_t accepted = l->accepted;
        wan_lock_release(&l->lock);
        if (!l->taken.used) {
            if (!writing) return NULL;
            wan_wait_change(&l->work, seen, 10);
            continue;
        }
        wan_part part = {.head = {WAN_PART_RECORDS, l->taken.count, l->taken.used}, .bytes = l->taken.bytes};
        wan_status status = wan_log_make_room(&l->log, wan_parts_length(&part, 1), NULL, 0);
        if (status == WAN_OK) status = wan_log_commit(&l->log, &part, 1, &segment);
        CHECK(status == WAN_OK);
        wan_buffer_empty(&l->taken);
        l->blocks++;
        wan_lock_take(&l->lock);
        l->durable = accepted;
        wan_lock_release(&l->lock);
        wan_signal_change(&l->epoch);
    }
}

static wan_status find_item(void *context, uint32_t index, uint64_t commit, const wan_part_head *head,
                            const uint8_t *bytes)
{
    shared_log *l = context;
    for (uint64_t at = 0; at < head->length; at += 64) {
        uint64_t number;
        memcpy(&number, bytes + at + 8, 8);
        CHECK(number && number <= l->accepted);
        l->found[number - 1]++;
    }
    return WAN_OK;
}

static void what_group_commit_acknowledged_is_on_the_disk(void)
{
    static shared_log l;
    memset(&l, 0, sizeof l);
    memory_disk_init(&l.disk);
    l.writing = 4;
    wan_log_reader reader = {.owner = &l, .part = find_item};
    wan_damage damage;
    uint64_t cut;
    CHECK(wan_log_open(&l.log, &l.disk.env, "log", WAN_LOG_QUEUE, 1, 1, &reader, &damage, &cut) == WAN_OK);
    run_crews(&l, (crew[]){{stage_log, 4}, {commit_log, 1}}, 2);
    wan_log_close(&l.log);
    CHECK(l.waited == l.accepted && l.blocks <= l.accepted && l.accepted > 10);
    l.found = calloc(1, l.accepted);
    random_source source = {.state = 3};
    memory_disk_crash(&l.disk, LOSE_UNSYNCED, &source);
    CHECK(wan_log_open(&l.log, &l.disk.env, "log", WAN_LOG_QUEUE, 1, 1, &reader, &damage, &cut) == WAN_OK);
    for (uint64_t n = 0; n < l.accepted; n++) CHECK(l.found[n] == 1);
    printf("  log: %" PRIu64 " accepted in %" PRIu64 " commits\n", l.accepted, l.blocks);
    wan_log_close(&l.log);
    memory_disk_close(&l.disk);
    wan_buffer_close(&l.records);
    wan_buffer_close(&l.taken);
    free(l.found);
}

/* The clock, and the numbers of threads. */

typedef struct {
    wan_clock clock;
    uint64_t taken, sum;
    uint32_t numbers[6];
} shared_clock;

static void *take_stamps(void *context)
{
    worker *w = context;
    shared_clock *c = w->shared;
    uint64_t last = 0, taken = 0;
    while (!is_over())
        for (int n = 0; n < 100; n++) {
            uint64_t first = wan_clock_take(&c->clock, wan_now_ms() - (uint64_t)n % 3, 3);
            CHECK(first > last);
            last = first + 2;
            taken += 3;
            /* Like a stamp of another site. */
            if (n == 50) wan_clock_see(&c->clock, last += 5);
        }
    wan_add_shared(&c->taken, taken);
    wan_add_shared(&c->sum, 1);
    c->numbers[w->number] = wan_thread_number();
    CHECK(wan_thread_number() == c->numbers[w->number] && wan_thread_next_event() == 1);
    return NULL;
}

static void stamps_ascend_in_every_thread_and_threads_have_numbers_of_their_own(void)
{
    static shared_clock c;
    memset(&c, 0, sizeof c);
    run_crews(&c, (crew[]){{take_stamps, 6}}, 1);
    CHECK(wan_read(&c.sum) == 6);
    for (int a = 0; a < 6; a++)
        for (int b = 0; b < a; b++) CHECK(c.numbers[a] != c.numbers[b]);
    printf("  clock: %" PRIu64 " stamps\n", wan_read(&c.taken));
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
