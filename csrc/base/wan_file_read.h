/* Owns all bytes of one file. It maps the file where the system can do that without an error at a later touch.
 * Otherwise it reads the file into memory that also serves the next file. Another thread can do this, so that the next
 * file comes from the disk while the caller looks at this one. */
#ifndef WAN_FILE_READ_H
#define WAN_FILE_READ_H
#include <pthread.h>

#include "base/wan_env.h"

typedef struct {
    const wan_env *env;
    char path[4096]; /* The caller writes it before wan_file_read_begin. */
    /* Valid after wan_file_read_end: `length` bytes. A page of zeros lies behind bytes that were read and not
     * mapped. */
    const uint8_t *bytes;
    uint64_t length;   /* Bytes of the file. */
    uint64_t expected; /* The file is mapped only if it has this length. */
    int map;           /* Whether the caller wants a mapping. */
    int mapped;        /* `bytes` are a mapping. A caller that keeps the mapping sets this to 0, and unmaps it later. */
    uint8_t *own;      /* Memory that files are read into, of `own_room` bytes. */
    uint64_t own_room;
    pthread_t thread;
    int threaded;      /* `thread` fetches the file. */
    wan_status status; /* The result of fetching, and its detail. */
    char detail[WAN_DETAIL_BYTES];
} wan_file_read;

/* Begins to map or read the file at read->path, in another thread if `in_thread` is set and a thread can be started.
 * The result comes with wan_file_read_end. */
void wan_file_read_begin(wan_file_read *read, const wan_env *env, uint64_t expected, int map, int in_thread);
/* Waits until the file is there. WAN_EMPTY: there is no such file. WAN_IO, WAN_NO_MEMORY: it could not be read. */
wan_status wan_file_read_end(wan_file_read *read);
/* Ends the use of `bytes`. A mapping is unmapped unless the caller kept it. Memory that the file was read into serves
 * the next file. */
void wan_file_read_done(wan_file_read *read);
/* Gives the memory for reading back. */
void wan_file_read_close(wan_file_read *read);

#endif
