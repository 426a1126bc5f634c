/* Owns the calls to the real file system. */
#include "base/wan_env.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Older headers do not have it. */
#ifndef MADV_POPULATE_READ
#    define MADV_POPULATE_READ 22
#endif
#define PIECES_AT_ONCE 1024u /* The most pieces that the kernel takes in one call. */

static int open_nameless(const char *directory)
{
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
    /* This file system has no O_TMPFILE. The file gets a name, and the name is removed at once. */
    char path[4096];
    if (snprintf(path, sizeof path, "%s/overflow-XXXXXX", directory) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0) unlink(path);
    return file;
}

static wan_status map_overflow(const wan_env *env, const char *directory, uint64_t bytes, uint8_t **base)
{
    int file = open_nameless(directory);
    if (file < 0) {
        int reason = errno;
        return WAN_FAIL(reason == ENOSPC || reason == EDQUOT ? WAN_FULL : WAN_IO,
                        "cannot create an overflow file in %s: %s", directory, strerror(reason));
    }
    /* The room is reserved before the file is mapped. So a full disk is an error here, and never a SIGBUS at the first
     * write. */
    int reason = posix_fallocate(file, 0, (off_t)bytes);
    if (reason != 0) {
        close(file);
        return WAN_FAIL(reason == ENOSPC || reason == EDQUOT || reason == EFBIG ? WAN_FULL : WAN_IO,
                        "cannot reserve %" PRIu64 " bytes for overflow in %s: %s", bytes, directory, strerror(reason));
    }
    void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    reason = errno;
    close(file); /* The mapping keeps the file alive. */
    if (mapping == MAP_FAILED)
        return WAN_FAIL(WAN_IO, "cannot map an overflow file of %" PRIu64 " bytes in %s: %s", bytes, directory,
                        strerror(reason));
    *base = mapping;
    return WAN_OK;
}

static void unmap(const wan_env *env, uint8_t *base, uint64_t bytes) { munmap(base, bytes); }

static wan_status map_file(const wan_env *env, int file, uint64_t bytes, uint8_t **base)
{
    void *mapping = bytes ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    if (mapping == MAP_FAILED)
        return WAN_FAIL(WAN_IO, "cannot map a file of %" PRIu64 " bytes: %s", bytes, strerror(errno));
    /* This call reports what cannot be read, where a touch of the page would be a SIGBUS. Linux before 5.14 does not
     * have it. */
    if (madvise(mapping, bytes, MADV_POPULATE_READ) == 0) {
        *base = mapping;
        return WAN_OK;
    }
    munmap(mapping, bytes);
    return WAN_FAIL(WAN_IO, "cannot fetch a file of %" PRIu64 " bytes into memory", bytes);
}

/* Checks that the file is not shorter than its mapping. Without this check the rest of the file's last page would read
 * as zeros, without a fault. A file that is not there was removed by its log, and nobody can cut it by its name. */
static wan_status look_whether_cut(const char *path, uint64_t mapped)
{
    struct stat now;
    if (stat(path, &now) < 0 || (uint64_t)now.st_size >= mapped) return WAN_OK;
    return WAN_FAIL(WAN_IO, "%.300s was cut off: it has %" PRIu64 " bytes, and had %" PRIu64, path,
                    (uint64_t)now.st_size, mapped);
}

static wan_status unreadable(const char *path)
{
    return WAN_FAIL(WAN_IO, "%.300s cannot be read any more: it was cut off, or its disk fails", path);
}

static wan_status populate(const char *path, const uint8_t *from, uint64_t bytes)
{
    uint64_t before = (uintptr_t)from & 4095;
    while (madvise((void *)(from - before), bytes + before, MADV_POPULATE_READ) < 0)
        if (errno == EFAULT || errno == EHWPOISON) return unreadable(path);
        else if (errno != EINTR && errno != EAGAIN) return WAN_OK; /* The system did not look. */
    return WAN_OK;
}

static wan_status fetch_mapped(const wan_env *env, const char *path, const uint8_t *base, uint64_t mapped, uint64_t at,
                               uint64_t bytes)
{
    wan_status status = look_whether_cut(path, mapped);
    return status == WAN_OK ? populate(path, base + at, bytes) : status;
}

/* The kernel makes the copy. Where a page cannot be had the kernel returns an error, and a copy of our own would end in
 * a SIGBUS. */
static wan_status copy_mapped(const wan_env *env, const char *path, uint64_t mapped, const struct iovec *pieces,
                              uint32_t count, uint8_t *to)
{
    while (count) {
        uint32_t some = count < PIECES_AT_ONCE ? count : PIECES_AT_ONCE;
        struct iovec into = {to, 0};
        for (uint32_t n = 0; n < some; n++) into.iov_len += pieces[n].iov_len;
        ssize_t done = process_vm_readv(getpid(), &into, 1, pieces, some, 0);
        /* The system does not allow that call. We check each piece and copy it at once. */
        if (done < 0 && (errno == ENOSYS || errno == EPERM)) {
            for (uint32_t n = 0; n < some; n++) {
                wan_status status = populate(path, pieces[n].iov_base, pieces[n].iov_len);
                if (status != WAN_OK) return status;
                memcpy(to, pieces[n].iov_base, pieces[n].iov_len);
                to += pieces[n].iov_len;
            }
        } else if (done != (ssize_t)into.iov_len) {
            wan_status status = look_whether_cut(path, mapped);
            return status == WAN_OK ? unreadable(path) : status;
        } else {
            to += done;
        }
        pieces += some;
        count -= some;
    }
    /* This look comes after the copy, so that no zeros of a cut file are in the copy. */
    return look_whether_cut(path, mapped);
}

static wan_status failed(int reason, const char *what, const char *path)
{
    return WAN_FAIL(reason == ENOSPC || reason == EDQUOT ? WAN_FULL : WAN_IO, "cannot %s %s: %s", what, path,
                    strerror(reason));
}

static wan_status create_file(const wan_env *env, const char *path, uint64_t bytes, int *file)
{
    int made = open(path, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (made < 0) return failed(errno, "create", path);
    int reason = posix_fallocate(made, 0, (off_t)bytes);
    if (reason != 0) {
        close(made);
        unlink(path);
        return failed(reason, "reserve room for", path);
    }
    *file = made;
    return WAN_OK;
}

static wan_status open_file(const wan_env *env, const char *path, int writable, int *file, uint64_t *bytes)
{
    /* A symbolic link could lead out of the store, and opening a pipe would wait for its other end. */
    int opened = open(path, (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (opened < 0 && errno == ELOOP)
        return WAN_FAIL(WAN_IO, "cannot open %s: it is a symbolic link, and a log has none", path);
    if (opened < 0) {
        int reason = errno;
        failed(reason, "open", path);
        return reason == ENOENT ? WAN_EMPTY : WAN_IO;
    }
    struct stat kind;
    if (fstat(opened, &kind) < 0) {
        int reason = errno;
        close(opened);
        return failed(reason, "look at", path);
    }
    if (!S_ISREG(kind.st_mode)) {
        close(opened);
        return WAN_FAIL(WAN_IO, "cannot open %s: it is not a regular file, and a log has only regular files", path);
    }
    off_t end = lseek(opened, 0, SEEK_END);
    if (end < 0) {
        int reason = errno;
        close(opened);
        return failed(reason, "measure", path);
    }
    *file = opened;
    *bytes = (uint64_t)end;
    return WAN_OK;
}

static wan_status write_file(const wan_env *env, int file, const char *path, uint64_t at, const void *data,
                             uint64_t bytes)
{
    const uint8_t *from = data;
    while (bytes) {
        ssize_t done = pwrite(file, from, bytes, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return failed(done ? errno : ENOSPC, "write", path);
        from += done;
        at += (uint64_t)done;
        bytes -= (uint64_t)done;
    }
    return WAN_OK;
}

static wan_status read_file(const wan_env *env, int file, const char *path, uint64_t at, void *to, uint64_t bytes)
{
    uint8_t *next = to;
    while (bytes) {
        ssize_t done = pread(file, next, bytes, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return failed(errno, "read", path);
        if (done == 0) { /* The file was cut. Its missing bytes read as zeros. */
            memset(next, 0, bytes);
            return WAN_OK;
        }
        next += done;
        at += (uint64_t)done;
        bytes -= (uint64_t)done;
    }
    return WAN_OK;
}

static wan_status sync_file(const wan_env *env, int file, const char *path)
{
    while (fdatasync(file) < 0)
        if (errno != EINTR) return failed(errno, "sync", path);
    struct stat now;
    /* The file was written and synced, but it will be gone when the process is. */
    if (fstat(file, &now) == 0 && now.st_nlink == 0)
        return WAN_FAIL(WAN_IO, "%s was removed while it was in use; restore its folder and start the member again",
                        path);
    return WAN_OK;
}

static wan_status replace_file(const wan_env *env, const char *from, const char *to, const char *directory)
{
    if (rename(from, to) < 0) return failed(errno, "rename to", to);
    int folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return failed(errno, "open", directory);
    int reason = fsync(folder) < 0 ? errno : 0;
    close(folder);
    return reason ? failed(reason, "sync", directory) : WAN_OK;
}

static wan_status remove_file(const wan_env *env, const char *path)
{
    return unlink(path) < 0 && errno != ENOENT ? failed(errno, "remove", path) : WAN_OK;
}

static void close_file(const wan_env *env, int file) { close(file); }

static wan_status list_files(const wan_env *env, const char *directory,
                             wan_status (*found)(void *owner, const char *name), void *owner)
{
    DIR *folder = opendir(directory);
    if (!folder) return failed(errno, "list", directory);
    wan_status status = WAN_OK;
    struct dirent *entry;
    while (status == WAN_OK && (errno = 0, entry = readdir(folder))) status = found(owner, entry->d_name);
    if (status == WAN_OK && errno) status = failed(errno, "list", directory);
    closedir(folder);
    return status;
}

const wan_env wan_env_posix = {
    .map_overflow = map_overflow,
    .unmap = unmap,
    .map_file = map_file,
    .fetch = fetch_mapped,
    .copy = copy_mapped,
    .create = create_file,
    .open = open_file,
    .write = write_file,
    .read = read_file,
    .sync = sync_file,
    .replace = replace_file,
    .remove = remove_file,
    .close = close_file,
    .list = list_files,
};
