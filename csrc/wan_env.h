/* Owns nothing: what the store asks of the operating system's files, as a table, so that tests can make the n-th
 * call fail, the disk fill up or unsynced bytes vanish. */
#ifndef WAN_ENV_H
#define WAN_ENV_H
#include "wan_base.h"

typedef struct wan_env {
    /* Opens a nameless file in `directory` (gone when the process is) with `bytes` reserved on the disk, and maps
     * it. WAN_FULL when the disk has no room: then nothing is left behind. */
    wan_status (*map_overflow)(const struct wan_env *env, const char *directory, uint64_t bytes, uint8_t **base);
    void (*unmap)(const struct wan_env *env, uint8_t *base, uint64_t bytes);
    void *state;    /* A test's own. */
} wan_env;

extern const wan_env wan_env_posix;

#endif
