/* Two processes, end to end, with nothing of a queue. The sender writes records into a ring, makes frames of runs of
 * them with a CRC32C, and sends them over loopback. The receiver checks them, applies them to a hash table (the later
 * version wins), and acknowledges each batch.
 *
 *   bare_pair EVENTS BATCH KEYS       runs once for every line on stdin, and prints events per second */
#include "bare.h"
#include "bare_link.h"

static void apply(bare_table *table, const uint8_t *payload, uint32_t count)
{
    uint64_t hashes[2 * GROUP];
    for (uint32_t begin = 0; begin < count + GROUP; begin += GROUP) {
        for (uint32_t row = begin; row < begin + GROUP && row < count; row++) {
            const wan_record *record = (const wan_record *)(payload + (uint64_t)row * RECORD_BYTES);
            if (wan_record_length(record) != RECORD_BYTES || record->key_length != KEY_BYTES
                || record->value_length != VALUE_BYTES)
                refuse("bad record");
            hashes[row % (2 * GROUP)] = wan_key_hash(wan_record_key(record), KEY_BYTES, WAN_FORM_BYTES);
            bare_prefetch(table, hashes[row % (2 * GROUP)]);
        }
        for (uint32_t row = begin - GROUP; begin && row < begin && row < count; row++) {
            const wan_record *record = (const wan_record *)(payload + (uint64_t)row * RECORD_BYTES);
            bare_upsert(table, hashes[row % (2 * GROUP)], wan_record_key(record), wan_record_value(record),
                        record->stamp);
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
        apply(&table, payload, frame.count);
        send_acknowledgement(file, frame.id, 0);
    }
}

int main(int count, char **words)
{
    if (count != 4) {
        fputs("bare_pair EVENTS BATCH KEYS\n", stderr);
        return 2;
    }
    uint64_t events = strtoull(words[1], NULL, 10), batch = strtoull(words[2], NULL, 10);
    uint64_t keys = strtoull(words[3], NULL, 10);
    pid_t child;
    int file = open_link(&child);
    if (child == 0) receive(file, keys);

    uint8_t *key_column = bare_take(keys * KEY_BYTES), *value_column = bare_take(keys * VALUE_BYTES);
    fill_columns(key_column, value_column, keys);
    uint64_t ring_batches = RING_BYTES / (batch * RECORD_BYTES);
    if (ring_batches < 2) ring_batches = 2;
    uint8_t *ring = bare_take(ring_batches * batch * RECORD_BYTES);
    if (!key_column || !value_column || !ring) stop("memory");
    memset(ring, 0, ring_batches * batch * RECORD_BYTES);

    char line[64];
    uint64_t id = 0, acked = 0, stamp = 0;
    while (fgets(line, sizeof line, stdin)) {
        double started = now_s();
        for (uint64_t sent = 0; sent < events; sent += batch, id++) {
            while (id - acked >= ring_batches) acked += acknowledged(file, 0);
            uint8_t *at = ring + id % ring_batches * batch * RECORD_BYTES;
            uint64_t first = sent % keys;
            for (uint64_t n = 0; n < batch; n++) {
                uint64_t row = first + n < keys ? first + n : first + n - keys;
                stamp++;
                lay_out(at + n * RECORD_BYTES, key_column + row * KEY_BYTES, value_column + row * VALUE_BYTES, stamp,
                        stamp);
            }
            send_batch(file, id, at, (uint32_t)batch, (uint32_t)(batch * RECORD_BYTES));
            acked += acknowledged(file, MSG_DONTWAIT);
        }
        while (acked < id) acked += acknowledged(file, 0);
        printf("%.0f\n", (double)events / (now_s() - started));
        fflush(stdout);
    }
    close(file);
    waitpid(child, NULL, 0);
    return 0;
}
