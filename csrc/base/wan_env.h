/* Owns nothing. It is the table of all calls that stores and logs make to the operating system's files. A test puts its
 * own functions there, and can make the n-th call fail, let the disk fill up, or lose unsynced bytes. */
#ifndef WAN_ENV_H
#define WAN_ENV_H
#include "base/wan_base.h"

struct iovec;

typedef struct wan_env {
    /* Makes a file without a name in `directory`, with `bytes` reserved on the disk, and maps it. The file is gone when
     * the process is. WAN_FULL: the disk has no room, and nothing is left behind. */
    wan_status (*map_overflow)(const struct wan_env *env, const char *directory, uint64_t bytes, uint8_t **base);
    /* Ends a mapping of map_overflow or map_file. */
    void (*unmap)(const struct wan_env *env, uint8_t *base, uint64_t bytes);
    /* Maps all `bytes` of an open file for reading. All pages are in memory and without errors when it returns. If it
     * does not return WAN_OK, the caller reads the file instead. NULL: this environment maps no files. */
    wan_status (*map_file)(const struct wan_env *env, int file, uint64_t bytes, uint8_t **base);
    /* The calls for the files of logs follow. They return WAN_OK, WAN_FULL (the disk has no room), or WAN_IO with the
     * file and the reason in the detail. */
    /* Makes a new file, with `bytes` reserved. */
    wan_status (*create)(const struct wan_env *env, const char *path, uint64_t bytes, int *file);
    /* WAN_EMPTY: there is no such file. */
    wan_status (*open)(const struct wan_env *env, const char *path, int writable, int *file, uint64_t *bytes);
    /* Writes `bytes` bytes at offset `at`. The file grows if it has to. */
    wan_status (*write)(const struct wan_env *env, int file, const char *path, uint64_t at, const void *data,
                        uint64_t bytes);
    /* Reads `bytes` bytes at offset `at`. Bytes behind the end of the file read as zeros. */
    wan_status (*read)(const struct wan_env *env, int file, const char *path, uint64_t at, void *to, uint64_t bytes);
    /* The file's data is on the disk when it returns. */
    wan_status (*sync)(const struct wan_env *env, int file, const char *path);
    /* Renames `from` to `to`; the renaming is on the disk when it returns. */
    wan_status (*replace)(const struct wan_env *env, const char *from, const char *to, const char *directory);
    /* Removes a file. It is no failure if there is none. */
    wan_status (*remove)(const struct wan_env *env, const char *path);
    /* Closes a file of `create` or `open`. */
    void (*close)(const struct wan_env *env, int file);
    /* Calls `found` with the name of each entry of `directory`, in no order, until `found` does not return WAN_OK. */
    wan_status (*list)(const struct wan_env *env, const char *directory,
                       wan_status (*found)(void *owner, const char *name), void *owner);
    /* Checks that `bytes` at offset `at` of a mapping of `path` can be touched now, and brings them into memory. The
     * mapping is `mapped` bytes long. WAN_IO with the file and the reason: touching them would end the process, or find
     * zeros. NULL: they can always be touched. */
    wan_status (*fetch)(const struct wan_env *env, const char *path, const uint8_t *base, uint64_t mapped, uint64_t at,
                        uint64_t bytes);
    /* Copies `count` pieces of a mapping of `path` to `to`, one behind the other. The mapping is `mapped` bytes long.
     * WAN_IO with the file and the reason, also for what happens to the file during the copy. NULL: the pieces can be
     * touched where they are. */
    wan_status (*copy)(const struct wan_env *env, const char *path, uint64_t mapped, const struct iovec *pieces,
                       uint32_t count, uint8_t *to);
    void *state; /* For a test's own use. */
} wan_env;

/* The real file system. */
extern const wan_env wan_env_posix;

#endif
