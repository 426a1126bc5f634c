/* The real file system. */
#include "wan_env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int open_nameless(const char *directory)
{
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
    char path[4096];    /* A file system without O_TMPFILE: a name for as long as it takes to remove it. */
    if (snprintf(path, sizeof path, "%s/overflow-XXXXXX", directory) >= (int)sizeof path) { errno = ENAMETOOLONG; return -1; }
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0) unlink(path);
    return file;
}

static wan_status map_overflow(const wan_env *env, const char *directory, uint64_t bytes, uint8_t **base)
{
    (void)env;
    int file = open_nameless(directory);
    if (file < 0) {
        int reason = errno;
        return WAN_FAIL(reason == ENOSPC || reason == EDQUOT ? WAN_FULL : WAN_IO, "cannot create an overflow file in %s: %s", directory, strerror(reason));
    }
    /* Reserved before it is mapped: a full disk is an error here, never a SIGBUS at the first write. */
    int reason = posix_fallocate(file, 0, (off_t)bytes);
    if (reason != 0) {
        close(file);
        return WAN_FAIL(reason == ENOSPC || reason == EDQUOT || reason == EFBIG ? WAN_FULL : WAN_IO, "cannot reserve %" PRIu64 " bytes for overflow in %s: %s", bytes, directory,
                        strerror(reason));
    }
    void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    reason = errno;
    close(file);    /* The mapping keeps the file. */
    if (mapping == MAP_FAILED)
        return WAN_FAIL(WAN_IO, "cannot map an overflow file of %" PRIu64 " bytes in %s: %s", bytes, directory, strerror(reason));
    *base = mapping;
    return WAN_OK;
}

static void unmap(const wan_env *env, uint8_t *base, uint64_t bytes)
{
    (void)env;
    munmap(base, bytes);
}

const wan_env wan_env_posix = {map_overflow, unmap, NULL};
