/* Messages of 200 bytes to another process over loopback and back, with nothing of a region.
 *
 *   bare_ping THREADS ROUNDS      runs once for every line on stdin, and prints round trips per second
 *
 * Each thread has a connection of its own, and a thread of the other process that echoes. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 200u
#define THREADS_MAX   64u

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

static int files[2][THREADS_MAX];
static uint64_t rounds;

static void *echo(void *which)
{
    int file = *(int *)which;
    uint8_t bytes[4096];
    for (;;) {
        ssize_t got = recv(file, bytes, sizeof bytes, 0);
        if (got <= 0) exit(0);
        write_all(file, bytes, (size_t)got);
    }
}

static void *ping(void *which)
{
    int file = *(int *)which;
    uint8_t bytes[MESSAGE_BYTES] = {0};
    for (uint64_t n = 0; n < rounds; n++) {
        write_all(file, bytes, MESSAGE_BYTES);
        read_all(file, bytes, MESSAGE_BYTES);
    }
    return NULL;
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
    pthread_t running[THREADS_MAX];
    uint64_t threads = count == 3 ? strtoull(words[1], NULL, 10) : 0;
    if (threads == 0 || threads > THREADS_MAX) {
        fprintf(stderr, "bare_ping THREADS ROUNDS, with 1 to %u threads\n", THREADS_MAX);
        return 2;
    }
    rounds = strtoull(words[2], NULL, 10);
    for (uint64_t n = 0; n < threads; n++) files[0][n] = connected(&files[1][n]);
    int is_child = fork() == 0;
    for (uint64_t n = 0; n < threads; n++) close(files[!is_child][n]);
    if (is_child) {
        for (uint64_t n = 0; n < threads; n++)
            if (pthread_create(&running[n], NULL, echo, &files[1][n])) stop("pthread_create");
        for (uint64_t n = 0; n < threads; n++) pthread_join(running[n], NULL);
        return 0;
    }
    for (char line[64]; fgets(line, sizeof line, stdin);) {
        struct timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (uint64_t n = 0; n < threads; n++)
            if (pthread_create(&running[n], NULL, ping, &files[0][n])) stop("pthread_create");
        for (uint64_t n = 0; n < threads; n++) pthread_join(running[n], NULL);
        clock_gettime(CLOCK_MONOTONIC, &ended);
        double seconds = (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9;
        printf("%f\n", (double)(rounds * threads) / seconds);
        fflush(stdout);
    }
    return 0;
}
