/* A message of 200 bytes to another process over loopback and back, with nothing of a region.
 *
 *   bare_ping TOGETHER ROUNDS      runs once for every line on stdin, and prints round trips per second
 *
 * TOGETHER messages are on their way at the same time: they are sent as one, and echoed as they come. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 200u

static void stop(const char *what)
{
    perror(what);
    exit(1);
}

static void read_all(int file, uint8_t *to, size_t bytes)
{
    while (bytes) {
        ssize_t got = recv(file, to, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) stop("recv");
        to += got;
        bytes -= (size_t)got;
    }
}

static void write_all(int file, const uint8_t *from, size_t bytes)
{
    while (bytes) {
        ssize_t went = send(file, from, bytes, MSG_NOSIGNAL);
        if (went < 0 && errno == EINTR) continue;
        if (went <= 0) exit(0);
        from += went;
        bytes -= (size_t)went;
    }
}

static void echo(int file)
{
    uint8_t bytes[65536];
    for (;;) {
        ssize_t got = recv(file, bytes, sizeof bytes, 0);
        if (got <= 0) exit(0);
        write_all(file, bytes, (size_t)got);
    }
}

static int connected(int *other)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), file = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || file < 0 || bind(listener, (struct sockaddr *)&at, length) || listen(listener, 1)
        || getsockname(listener, (struct sockaddr *)&at, &length) || connect(file, (struct sockaddr *)&at, length))
        stop("connect");
    *other = accept(listener, NULL, NULL);
    close(listener);
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(*other, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return file;
}

int main(int count, char **words)
{
    if (count != 3) {
        fputs("bare_ping TOGETHER ROUNDS\n", stderr);
        return 2;
    }
    uint64_t together = strtoull(words[1], NULL, 10), rounds = strtoull(words[2], NULL, 10);
    uint8_t *bytes = calloc(together, MESSAGE_BYTES);
    int other, file = connected(&other);
    if (!bytes) stop("calloc");
    if (fork() == 0) {
        close(file);
        echo(other);
    }
    close(other);
    for (char line[64]; fgets(line, sizeof line, stdin);) {
        struct timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (uint64_t n = 0; n < rounds; n++) {
            write_all(file, bytes, together * MESSAGE_BYTES);
            read_all(file, bytes, together * MESSAGE_BYTES);
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        double seconds = (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9;
        printf("%f\n", (double)(rounds * together) / seconds);
        fflush(stdout);
    }
    return 0;
}
