/* Owns the lower bound of a put: a loop that makes the core do what `Put` of bench/pieces.py does, without Python. Keys
 * and values are bytes that lie ready, so nothing is encoded and no arguments are parsed. It is compiled with all
 * sources of the core (bench/bench_put.py does that).
 *
 *   put_without_python     runs once for every line on stdin. It prints nanoseconds of processor time an event: hash,
 *                          clock and two locks alone, then with the table, with the queue and with both. Each is the
 *                          median of some rounds */
#include "base/wan_clock.h"
#include "base/wan_env.h"
#include "region/wan_table.h"
#include "store/wan_queue_append.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { KEYS = 10000, TURNS = 2, ROUNDS = 5, KEY_BYTES = 16, VALUE_BYTES = 100, RECORD_BYTES = 160 };
enum { WITH_TABLE = 1, WITH_QUEUE = 2 };

static char keys[KEYS][64], value[VALUE_BYTES];
static wan_table table;
static wan_queue queue;
static wan_lock queue_lock;
static wan_clock stamps;

static double thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void write_record(uint8_t *to, const wan_change *change, uint64_t number)
{
    const uint8_t recipient = 2;
    wan_record *record = wan_record_begin(to, RECORD_BYTES, &wan_no_head);
    record->value_length = VALUE_BYTES;
    record->key_length = KEY_BYTES;
    record->stamp = change->stamp;
    record->event_sequence = number;
    record->recipients_count = 1;
    record->operation = WAN_UPDATE;
    record->key_form = record->value_form = WAN_FORM_BYTES;
    wan_record_fill(to, change->key, change->value, NULL, &recipient);
}

static void put(uint64_t number, int with)
{
    wan_reservation reservation;
    wan_change change = {0};
    change.key = (const uint8_t *)keys[number % KEYS];
    change.key_length = KEY_BYTES;
    change.value = (const uint8_t *)value;
    change.value_length = VALUE_BYTES;
    change.key_form = change.value_form = WAN_FORM_BYTES;
    change.operation = WAN_UPDATE;
    change.local = change.stamp_site = 1;
    change.hash = wan_key_hash(change.key, KEY_BYTES, WAN_FORM_BYTES);
    wan_table_prefetch_slot(&table, change.hash);
    change.stamp = wan_clock_take(&stamps, wan_clock_now_ms(&stamps), 1);
    wan_shard *shard = wan_table_shard(&table, change.hash);
    wan_lock_take(&shard->lock);
    wan_lock_take(&queue_lock);
    if (with & WITH_QUEUE && wan_queue_reserve_inline(&queue, 0, RECORD_BYTES, &reservation) != WAN_OK) abort();
    if (with & WITH_TABLE && wan_table_apply(shard, &change) > WAN_UPDATED) abort();
    if (with & WITH_QUEUE) {
        write_record(reservation.at, &change, number);
        wan_queue_commit_inline(&queue, &reservation);
    }
    wan_lock_release(&queue_lock);
    wan_lock_release(&shard->lock);
}

static int in_order(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

int main(void)
{
    double took[ROUNDS];
    memset(value, 'v', sizeof value);
    for (int n = 0; n < KEYS; n++) snprintf(keys[n], sizeof keys[n], "%016d", n);
    if (wan_table_init(&table, WAN_BUCKETS_DEFAULT) != WAN_OK) return 1;
    if (wan_queue_init(&queue, &wan_env_posix, NULL, 1u << 30, 1, 0) != WAN_OK) return 1;
    char line[64];
    for (int with = 0; fgets(line, sizeof line, stdin); with = 0) {
        for (; with <= (WITH_TABLE | WITH_QUEUE); with++) {
            for (int round = 0; round < ROUNDS; round++) {
                uint64_t dropped;
                if (wan_queue_clear(&queue, &dropped) != WAN_OK) return 1;
                double began = thread_ns();
                for (uint64_t n = 0; n < (uint64_t)KEYS * TURNS; n++) put(n, with);
                took[round] = (thread_ns() - began) / (KEYS * TURNS);
            }
            qsort(took, ROUNDS, sizeof *took, in_order);
            printf("%.1f%c", took[ROUNDS / 2], with == (WITH_TABLE | WITH_QUEUE) ? '\n' : ' ');
        }
        fflush(stdout);
    }
    wan_queue_close(&queue);
    wan_table_close(&table);
    return 0;
}
