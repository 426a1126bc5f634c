/* Two processes end to end with nothing of a queue: the sender lays records out in a ring, frames runs of them with a CRC32C and
 * sends them over loopback; the receiver verifies, applies to a hash table (later version wins) and acknowledges each batch.
 *
 *   bare_pair EVENTS BATCH KEYS       runs once for every line on stdin; prints events per second */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bare.h"
#include "base/wan_crc32c.h"
#include "record/wan_frame.h"

#define RING_BYTES (8u << 20)
#define GROUP 32

static void stop(const char *what) { perror(what); exit(1); }

static void read_all(int file, void *to, size_t bytes)
{
    for (uint8_t *at = to; bytes;) {
        ssize_t got = recv(file, at, bytes, 0);
        if (got == 0) exit(0);
        if (got < 0) { if (errno == EINTR) continue; stop("recv"); }
        at += got; bytes -= (size_t)got;
    }
}

static void apply(bare_table *table, const uint8_t *payload, uint32_t count)
{
    uint64_t hashes[GROUP];
    for (uint32_t at = 0; at < count; at += GROUP) {
        uint32_t n = count - at < GROUP ? count - at : GROUP;
        const uint8_t *first = payload + (uint64_t)at * RECORD_BYTES;
        for (uint32_t k = 0; k < n; k++) {
            const wan_record *record = (const wan_record *)(first + k * RECORD_BYTES);
            if (record->length != RECORD_BYTES || record->key_length != KEY_BYTES || record->value_length != VALUE_BYTES) { fputs("bad record\n", stderr); exit(1); }
            hashes[k] = wan_key_hash(wan_record_key(record), KEY_BYTES, WAN_FORM_BYTES);
            bare_prefetch(table, hashes[k]);
        }
        for (uint32_t k = 0; k < n; k++) {
            const wan_record *record = (const wan_record *)(first + k * RECORD_BYTES);
            bare_upsert(table, hashes[k], wan_record_key(record), wan_record_value(record), record->stamp);
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
        if (frame.length > capacity) { capacity = frame.length; payload = realloc(payload, capacity); }
        read_all(file, payload, frame.length);
        if (wan_frame_crc(&frame, payload, frame.length) != frame.crc) { fputs("bad checksum\n", stderr); exit(1); }
        apply(&table, payload, frame.count);
        struct { wan_frame frame; wan_ack ack; } answer = {.frame = {.magic = WAN_FRAME_MAGIC, .type = WAN_FRAME_ACK, .length = sizeof(wan_ack), .id = frame.id}};
        answer.frame.crc = wan_frame_crc(&answer.frame, &answer.ack, sizeof answer.ack);
        if (send(file, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) stop("send");
    }
}

static uint64_t acknowledged(int file, int flags)
{
    static uint8_t bytes[65536];
    static size_t left;
    ssize_t got = recv(file, bytes + left, sizeof bytes - left, flags);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) stop("recv");
    size_t have = left + (size_t)got, each = sizeof(wan_frame) + sizeof(wan_ack), at = 0;
    uint64_t count = 0;
    for (; have - at >= each; at += each, count++) {
        const wan_frame *frame = (const wan_frame *)(bytes + at);
        if (wan_frame_crc(frame, frame + 1, frame->length) != frame->crc) { fputs("bad acknowledgement\n", stderr); exit(1); }
    }
    left = have - at;
    memmove(bytes, bytes + at, left);
    return count;
}

int main(int count, char **words)
{
    if (count != 4) { fputs("bare_pair EVENTS BATCH KEYS\n", stderr); return 2; }
    uint64_t events = strtoull(words[1], NULL, 10), batch = strtoull(words[2], NULL, 10), keys = strtoull(words[3], NULL, 10);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&address, &length)) stop("listen");
    pid_t child = fork();
    if (child == 0) {
        int file = accept(listener, NULL, NULL);
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        receive(file, keys);
    }
    int file = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(file, (struct sockaddr *)&address, length)) stop("connect");
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);

    uint8_t *key_column = malloc(keys * KEY_BYTES), *value_column = malloc(keys * VALUE_BYTES);
    for (uint64_t n = 0; n < keys; n++) {
        uint64_t rest = n;
        for (int digit = KEY_BYTES - 1; digit >= 0; digit--, rest /= 10) key_column[n * KEY_BYTES + (uint64_t)digit] = (uint8_t)('0' + rest % 10);
        memset(value_column + n * VALUE_BYTES, 'a' + (int)(n % 26), VALUE_BYTES);
    }
    uint64_t ring_batches = RING_BYTES / (batch * RECORD_BYTES);
    if (ring_batches < 2) ring_batches = 2;
    uint8_t *ring = malloc(ring_batches * batch * RECORD_BYTES);
    memset(ring, 0, ring_batches * batch * RECORD_BYTES);

    char line[64];
    uint64_t id = 0, settled = 0, stamp = 0;
    while (fgets(line, sizeof line, stdin)) {
        double started = now_s();
        for (uint64_t sent = 0; sent < events; sent += batch, id++) {
            while (id - settled >= ring_batches) settled += acknowledged(file, 0);
            uint8_t *at = ring + id % ring_batches * batch * RECORD_BYTES;
            uint64_t first = sent % keys;
            for (uint64_t n = 0; n < batch; n++) {
                uint64_t row = first + n < keys ? first + n : first + n - keys;
                stamp++;
                lay_out(at + n * RECORD_BYTES, key_column + row * KEY_BYTES, value_column + row * VALUE_BYTES, stamp, stamp);
            }
            wan_frame frame = {.magic = WAN_FRAME_MAGIC, .type = WAN_FRAME_BATCH, .count = (uint32_t)batch, .id = id,
                               .length = (uint32_t)(batch * RECORD_BYTES), .raw_length = (uint32_t)(batch * RECORD_BYTES)};
            frame.crc = wan_frame_crc(&frame, at, frame.length);
            struct iovec parts[2] = {{&frame, sizeof frame}, {at, frame.length}};
            for (size_t want = sizeof frame + frame.length; want;) {
                ssize_t done = writev(file, parts, 2);
                if (done < 0) { if (errno == EINTR) continue; stop("writev"); }
                want -= (size_t)done;
                for (int n = 0; n < 2; n++) {
                    size_t part = (size_t)done < parts[n].iov_len ? (size_t)done : parts[n].iov_len;
                    parts[n].iov_base = (uint8_t *)parts[n].iov_base + part;
                    parts[n].iov_len -= part;
                    done -= (ssize_t)part;
                }
            }
            settled += acknowledged(file, MSG_DONTWAIT);
        }
        while (settled < id) settled += acknowledged(file, 0);
        printf("%.0f\n", (double)events / (now_s() - started));
        fflush(stdout);
    }
    close(file);
    waitpid(child, NULL, 0);
    return 0;
}
