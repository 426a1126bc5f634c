/* Owns nothing: what the store asks of the operating system's files, as a table, so that tests can make the n-th
 * call fail, the disk fill up or unsynced bytes vanish. */
#ifndef WAN_ENV_H
#define WAN_ENV_H
#include "base/wan_base.h"

struct iovec;

typedef struct wan_env {
    /* Opens a nameless file in `directory` (gone when the process is) with `bytes` reserved on the disk, and maps
     * it. WAN_FULL when the disk has no room: then nothing is left behind. */
    wan_status (*map_overflow)(const struct wan_env *env, const char *directory, uint64_t bytes, uint8_t **base);
    void (*unmap)(const struct wan_env *env, uint8_t *base, uint64_t bytes);
    /* Maps all `bytes` of an open file for reading, present and without errors now. Anything but WAN_OK: read it
     * instead. NULL: never. */
    wan_status (*map_file)(const struct wan_env *env, int file, uint64_t bytes, uint8_t **base);
    /* Files of logs. All return WAN_OK, WAN_FULL (no room on the disk) or WAN_IO with the file and the reason. */
    wan_status (*create)(const struct wan_env *env, const char *path, uint64_t bytes,
                         int *file); /* New, `bytes` reserved. */
    wan_status (*open)(const struct wan_env *env, const char *path, int writable, int *file,
                       uint64_t *bytes); /* WAN_EMPTY: there is none. */
    wan_status (*write)(const struct wan_env *env, int file, const char *path, uint64_t at, const void *data,
                        uint64_t bytes);
    wan_status (*read)(const struct wan_env *env, int file, const char *path, uint64_t at, void *to, uint64_t bytes);
    wan_status (*sync)(const struct wan_env *env, int file,
                       const char *path); /* Data is on the disk when it returns. */
    wan_status (*replace)(const struct wan_env *env, const char *from, const char *to,
                          const char *directory); /* Durably. */
    wan_status (*remove)(const struct wan_env *env, const char *path);
    void (*close)(const struct wan_env *env, int file);
    /* Calls `found` with the name of everything in `directory`, in no order, until it returns anything but WAN_OK. */
    wan_status (*list)(const struct wan_env *env, const char *directory,
                       wan_status (*found)(void *owner, const char *name), void *owner);
    /* Says whether `bytes` at `at` of a mapping of `path`, of `mapped` bytes, can be touched now, and fetches them.
     * WAN_IO with the file and the reason: touching them would end the process, or find zeros. NULL: they always can.
     */
    wan_status (*fetch)(const struct wan_env *env, const char *path, const uint8_t *base, uint64_t mapped, uint64_t at,
                        uint64_t bytes);
    /* Copies `count` pieces of a mapping of `path`, of `mapped` bytes, to `to`, one behind the other. WAN_IO with the
     * file and the reason, as above, but also for what happens to the file meanwhile. NULL: they can be touched where
     * they are. */
    wan_status (*copy)(const struct wan_env *env, const char *path, uint64_t mapped, const struct iovec *pieces,
                       uint32_t count, uint8_t *to);
    void *state; /* A test's own. */
} wan_env;

extern const wan_env wan_env_posix;

#endif
