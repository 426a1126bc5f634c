/* Owns a disk that hangs or fails, for a real process: the process loads it before the C library. It acts while the
 * file named by FAULTY_DISK is there. If that file is empty, every sync hangs. Otherwise the file names calls and the
 * error of each, such as "fdatasync 5 pwrite 28". It acts on the files of disk stores and overflow only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#    define MADV_POPULATE_READ 22
#endif

/* The error that `call` has to return. 0: none. -1: the call hangs. */
static int fault(const char *call)
{
    const char *file = getenv("FAULTY_DISK");
    FILE *orders = file ? fopen(file, "re") : NULL;
    if (!orders) return 0;
    char name[32];
    int error = 0, given, found = fscanf(orders, "%31s %d", name, &given);
    int hangs = found != 2;
    for (; found == 2 && !error; found = fscanf(orders, "%31s %d", name, &given))
        if (strcmp(name, call) == 0) error = given;
    fclose(orders);
    return hangs ? -1 : error;
}

static int is_ours(int file)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return strstr(path, ".seg") || strstr(path, "MANIFEST") || strstr(path, "overflow") || strstr(path, "(deleted)");
}

static int fails(const char *call, int file)
{
    int error = fault(call);
    return error > 0 && is_ours(file) ? error : 0;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_OR(call, file, ...)                                                                                       \
    do {                                                                                                               \
        int error = fails(call, file);                                                                                 \
        if (error) {                                                                                                   \
            errno = error;                                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
        return __VA_ARGS__;                                                                                            \
    } while (0)

int fdatasync(int file)
{
    while (fault("fdatasync") < 0) usleep(1000);
    FAIL_OR("fdatasync", file, NEXT(fdatasync)(file));
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t at)
{
    FAIL_OR("pwrite", file, NEXT(pwrite)(file, data, bytes, at));
}

ssize_t pread(int file, void *to, size_t bytes, off_t at) { FAIL_OR("pread", file, NEXT(pread)(file, to, bytes, at)); }

int posix_fallocate(int file, off_t at, off_t bytes)
{
    int error = fails("posix_fallocate", file);
    return error ? error : NEXT(posix_fallocate)(file, at, bytes);
}

int madvise(void *at, size_t bytes, int advice)
{
    int error = advice == MADV_POPULATE_READ ? fault("madvise") : 0;
    if (error > 0) {
        errno = error;
        return -1;
    }
    return NEXT(madvise)(at, bytes, advice);
}
