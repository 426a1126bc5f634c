/* Owns what the bare pairs share: the connection of two processes over loopback, with frames in one direction and
 * acknowledgements in the other. */
#ifndef BARE_LINK_H
#define BARE_LINK_H
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/wan_crc32c.h"
#include "record/wan_frame.h"

#define RING_BYTES (8u << 20)

static void stop(const char *what)
{
    perror(what);
    exit(1);
}
static void refuse(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static inline uint64_t own_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void read_all(int file, void *to, size_t bytes)
{
    for (uint8_t *at = to; bytes;) {
        ssize_t got = recv(file, at, bytes, 0);
        if (got == 0) exit(0);
        if (got < 0) {
            if (errno == EINTR) continue;
            stop("recv");
        }
        at += got;
        bytes -= (size_t)got;
    }
}

/* Forks the receiver. *child is 0 in the receiver. Returns this process's end of the connection. */
static int open_link(pid_t *child)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, file;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct sockaddr *at = (struct sockaddr *)&address;
    if (bind(listener, at, length) || listen(listener, 1) || getsockname(listener, at, &length)) stop("listen");
    *child = fork();
    if (*child < 0) stop("fork");
    if (*child == 0) file = accept(listener, NULL, NULL);
    else if (connect(file = socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&address, length)) stop("connect");
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
    return file;
}

/* `used_ns` is the processor time that the receiver has used so far. */
static void send_acknowledgement(int file, uint64_t id, uint64_t used_ns)
{
    struct {
        wan_frame frame;
        wan_ack ack;
    } answer = {.frame = {.magic = WAN_FRAME_MAGIC, .type = WAN_FRAME_ACK, .length = sizeof(wan_ack), .id = id},
                .ack.credit_bytes = used_ns};
    answer.frame.crc = wan_frame_crc(&answer.frame, &answer.ack, sizeof answer.ack);
    if (send(file, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) stop("send");
}

static uint64_t last_used_ns;

/* Returns how many batches were acknowledged. With MSG_DONTWAIT it may be none. */
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
        if (wan_frame_crc(frame, frame + 1, frame->length) != frame->crc) refuse("bad acknowledgement");
        last_used_ns = ((const wan_ack *)(frame + 1))->credit_bytes;
    }
    left = have - at;
    memmove(bytes, bytes + at, left);
    return count;
}

static void send_batch(int file, uint64_t id, uint8_t *payload, uint32_t count, uint32_t bytes)
{
    wan_frame frame = {.magic = WAN_FRAME_MAGIC,
                       .type = WAN_FRAME_BATCH,
                       .count = count,
                       .id = id,
                       .length = bytes,
                       .raw_length = bytes};
    frame.crc = wan_frame_crc(&frame, payload, bytes);
    struct iovec parts[2] = {{&frame, sizeof frame}, {payload, bytes}};
    for (size_t want = sizeof frame + bytes; want;) {
        ssize_t done = writev(file, parts, 2);
        if (done < 0) {
            if (errno == EINTR) continue;
            stop("writev");
        }
        want -= (size_t)done;
        for (int n = 0; n < 2; n++) {
            size_t part = (size_t)done < parts[n].iov_len ? (size_t)done : parts[n].iov_len;
            parts[n].iov_base = (uint8_t *)parts[n].iov_base + part;
            parts[n].iov_len -= part;
            done -= (ssize_t)part;
        }
    }
}

/* A key is %016d of its row; values are letters. */
static inline void fill_columns(uint8_t *keys, uint8_t *values, uint64_t rows)
{
    for (uint64_t n = 0; n < rows; n++) {
        uint64_t rest = n;
        for (int digit = KEY_BYTES - 1; digit >= 0; digit--, rest /= 10)
            keys[n * KEY_BYTES + (uint64_t)digit] = (uint8_t)('0' + rest % 10);
        memset(values + n * VALUE_BYTES, 'a' + (int)(n % 26), VALUE_BYTES);
    }
}

static inline void shuffle_keys(uint8_t *keys, uint64_t rows)
{
    uint64_t random = 7;
    for (uint64_t n = rows - 1; n > 0; n--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint8_t *a = keys + n * KEY_BYTES, *b = keys + (random >> 33) % (n + 1) * KEY_BYTES, held[KEY_BYTES];
        memcpy(held, a, KEY_BYTES);
        memcpy(a, b, KEY_BYTES);
        memcpy(b, held, KEY_BYTES);
    }
}

#endif
