/* Owns one whole file's bytes: mapped, where the system can do it without a surprise later, else read into memory that
 * serves again; at once, or by another thread, so that the next file comes from the disk while this one is looked at.
 */
#ifndef WAN_FILE_READ_H
#define WAN_FILE_READ_H
#include <pthread.h>

#include "base/wan_env.h"

typedef struct {
    const wan_env *env;
    char path[4096];      /* The caller's to write, before begin. */
    const uint8_t *bytes; /* After end: `length` of them; behind those that were not mapped a page of zeros. */
    uint64_t length;      /* Of the file. */
    uint64_t expected;    /* Only a file of this length is mapped. */
    int map;              /* Wanted. */
    int mapped;           /* `bytes` are a mapping. Who keeps it sets this to 0, and unmaps it some day. */
    uint8_t *own;
    uint64_t own_room;
    pthread_t thread;
    int threaded;
    wan_status status;
    char detail[WAN_DETAIL_BYTES];
} wan_file_read;

void wan_file_read_begin(wan_file_read *read, const wan_env *env, uint64_t expected, int map, int in_thread);
/* Waits for it. WAN_EMPTY: there is no such file. WAN_IO, WAN_NO_MEMORY. */
wan_status wan_file_read_end(wan_file_read *read);
/* Unmaps, unless the mapping was kept; what is its own serves the next file. */
void wan_file_read_done(wan_file_read *read);
void wan_file_read_close(wan_file_read *read);

#endif
