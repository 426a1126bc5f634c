/* Owns a plain owner of a log for tests. It writes numbered items, knows which of them must be there, and checks what a
 * log gives back. */
#ifndef LOG_OWNER_H
#define LOG_OWNER_H
#include "memory_disk.h"
#include "log/wan_log.h"

#define OWNER_ITEMS 4096
/* With this limit segments have 1 MB. */
#define OWNER_LIMIT (128u << 20)

typedef struct {
    memory_disk *disk;
    wan_log log;
    wan_damage damage;
    uint64_t cut_bytes;
    uint64_t limit; /* The limit of the log's own budget. 0: there is no budget. */
    wan_log_budget budget;
    /* Fields about what was written: */
    uint64_t accepted; /* Items 1 to `accepted` were given to the log. */
    /* The newest item that it tried to write. The log may have it. */
    uint64_t attempted;
    uint64_t durable; /* Items up to here were acknowledged. */
    /* Items up to here are certainly on the disk. The number of an item is the commit of its block. */
    uint64_t synced;
    uint64_t dropped; /* Items up to here may be gone, because a durable state says so. */
    /* Fields about what the last opening found: */
    uint8_t found[OWNER_ITEMS];
    uint64_t first, last, state, damages;
    int wrong; /* Something came back differently from what was written. */
    int salvage;
    int writes; /* Items are acknowledged when they are written, and synced later. */
    int maps;   /* Segments are mapped for reading. */
} log_owner;

void owner_init(log_owner *owner, memory_disk *disk);
wan_status owner_open(log_owner *owner);
void owner_close(log_owner *owner);
/* Writes one more item of about `length` bytes, in a block of its own. */
wan_status owner_write(log_owner *owner, uint64_t length);
/* Syncs what was written. */
wan_status owner_sync(log_owner *owner);
/* The power fails: what was acknowledged and not synced may be gone. */
void owner_lose_power(log_owner *owner);
/* Drops all segments at the front whose items are all <= `through`. */
wan_status owner_drop(log_owner *owner, uint64_t through);
/* Whether everything that was acknowledged and not dropped is there, without gaps, as it was written. */
int owner_is_whole(const log_owner *owner);
/* Reads one segment again, as an opening does. */
wan_status owner_read_segment(log_owner *owner, uint32_t index);
/* The length of an item in the log. Tests compute offsets from it. */
uint64_t owner_item_length(uint64_t number, uint64_t length);

#endif
