/* Two processes, end to end, that store at both ends, without a queue and without an order. The sender puts rows with
 * keys in random order into its hash table, writes them into a ring, makes frames of runs of them with a CRC32C, and
 * sends them over loopback. The receiver checks them, stores them in its own table (the later version wins), and
 * acknowledges each batch. Both fetch the entries of a small group while they store the group before.
 *
 *   bare_stored EVENTS BATCH KEYS     runs once for every line on stdin. It prints events per second, and the
 *                                     processor time of the sender and of the receiver in nanoseconds for one event */
#include "bare.h"
#include "bare_link.h"

#define EVENT_BYTES 152 /* 36 bytes of head, the key, the value. The records of the core also name recipients. */

typedef struct {
    uint64_t stamp, event_sequence;
    uint32_t event_member, event_thread, value_length;
    uint16_t key_length, region;
} event_head;
_Static_assert(sizeof(event_head) + 4 + KEY_BYTES + VALUE_BYTES == EVENT_BYTES, "no padding");

static void store(bare_table *table, const uint8_t *keys, uint64_t key_step, const uint8_t *values, uint64_t value_step,
                  uint32_t count, const uint8_t *stamps, uint64_t stamp_step)
{
    uint64_t hashes[2 * GROUP];
    for (uint32_t begin = 0; begin < count + GROUP; begin += GROUP) {
        for (uint32_t row = begin; row < begin + GROUP && row < count; row++) {
            hashes[row % (2 * GROUP)] = wan_key_hash(keys + row * key_step, KEY_BYTES, WAN_FORM_BYTES);
            bare_prefetch(table, hashes[row % (2 * GROUP)]);
        }
        for (uint32_t row = begin - GROUP; begin && row < begin && row < count; row++) {
            uint64_t stamp;
            memcpy(&stamp, stamps + row * stamp_step, sizeof stamp);
            bare_upsert(table, hashes[row % (2 * GROUP)], keys + row * key_step, values + row * value_step, stamp);
        }
    }
}

static void receive(int file, uint64_t keys)
{
    bare_table table;
    if (!bare_table_init(&table, keys)) stop("table");
    uint64_t capacity = 1 << 20;
    uint8_t *payload = malloc(capacity);
    for (;;) {
        wan_frame frame;
        read_all(file, &frame, sizeof frame);
        if (frame.length > capacity) {
            capacity = frame.length;
            payload = realloc(payload, capacity);
        }
        read_all(file, payload, frame.length);
        if (wan_frame_crc(&frame, payload, frame.length) != frame.crc) refuse("bad checksum");
        if (frame.length != frame.count * EVENT_BYTES) refuse("bad frame");
        const uint8_t *key = payload + sizeof(event_head) + 4;
        store(&table, key, EVENT_BYTES, key + KEY_BYTES, EVENT_BYTES, frame.count, payload, EVENT_BYTES);
        send_acknowledgement(file, frame.id, own_cpu_ns());
    }
}

int main(int count, char **words)
{
    if (count != 4) {
        fputs("bare_stored EVENTS BATCH KEYS\n", stderr);
        return 2;
    }
    uint64_t events = strtoull(words[1], NULL, 10), batch = strtoull(words[2], NULL, 10);
    uint64_t keys = strtoull(words[3], NULL, 10);
    pid_t child;
    int file = open_link(&child);
    if (child == 0) receive(file, keys);

    uint8_t *key_column = bare_take(keys * KEY_BYTES), *value_column = bare_take(keys * VALUE_BYTES);
    fill_columns(key_column, value_column, keys);
    shuffle_keys(key_column, keys);
    bare_table table;
    if (!bare_table_init(&table, keys)) stop("table");
    uint64_t ring_batches = RING_BYTES / (batch * EVENT_BYTES), *stamps = malloc(batch * sizeof *stamps);
    if (ring_batches < 2) ring_batches = 2;
    uint8_t *ring = bare_take(ring_batches * batch * EVENT_BYTES);
    if (!key_column || !value_column || !ring || !stamps) stop("memory");
    memset(ring, 0, ring_batches * batch * EVENT_BYTES);

    char line[64];
    uint64_t id = 0, acked = 0, stamp = 0;
    while (fgets(line, sizeof line, stdin)) {
        double started = now_s();
        uint64_t own_before = own_cpu_ns(), their_before = last_used_ns;
        for (uint64_t sent = 0; sent < events; sent += batch, id++) {
            while (id - acked >= ring_batches) acked += acknowledged(file, 0);
            uint8_t *at = ring + id % ring_batches * batch * EVENT_BYTES;
            uint64_t first = sent % keys; /* `keys` is a multiple of `batch`. */
            const uint8_t *key = key_column + first * KEY_BYTES, *value = value_column + first * VALUE_BYTES;
            for (uint64_t n = 0; n < batch; n++) stamps[n] = ++stamp;
            store(&table, key, KEY_BYTES, value, VALUE_BYTES, (uint32_t)batch, (const uint8_t *)stamps, sizeof *stamps);
            for (uint64_t n = 0; n < batch; n++, at += EVENT_BYTES) {
                *(event_head *)at = (event_head){.stamp = stamps[n],
                                                 .event_sequence = stamps[n],
                                                 .event_member = 1,
                                                 .event_thread = 1,
                                                 .value_length = VALUE_BYTES,
                                                 .key_length = KEY_BYTES,
                                                 .region = 1};
                memcpy(at + sizeof(event_head) + 4, key + n * KEY_BYTES, KEY_BYTES);
                memcpy(at + sizeof(event_head) + 4 + KEY_BYTES, value + n * VALUE_BYTES, VALUE_BYTES);
            }
            at -= batch * EVENT_BYTES;
            send_batch(file, id, at, (uint32_t)batch, (uint32_t)(batch * EVENT_BYTES));
            acked += acknowledged(file, MSG_DONTWAIT);
        }
        while (acked < id) acked += acknowledged(file, 0);
        printf("%.0f %.1f %.1f\n", (double)events / (now_s() - started),
               (double)(own_cpu_ns() - own_before) / (double)events,
               (double)(last_used_ns - their_before) / (double)events);
        fflush(stdout);
    }
    close(file);
    waitpid(child, NULL, 0);
    return 0;
}
