/* Owns the plain owner of a log for tests: it writes numbered items, knows which of them must be there, and checks what
 * a log gives back. */
#ifndef LOG_OWNER_H
#define LOG_OWNER_H
#include "memory_disk.h"
#include "log/wan_log.h"

#define OWNER_ITEMS 4096
#define OWNER_LIMIT (128u << 20) /* Makes segments of 1 MB. */

typedef struct {
    memory_disk *disk;
    wan_log log;
    wan_damage damage;
    uint64_t cut_bytes;
    uint64_t limit; /* Of a budget of its own; 0: none. */
    wan_log_budget budget;
    /* Written */
    uint64_t staged;    /* Items 1..staged were given to the log. */
    uint64_t attempted; /* The newest one that writing was tried of: it may be found. */
    uint64_t durable;   /* Of these, acknowledged. */
    uint64_t synced;    /* Of these, certainly on the disk. The number of an item is that of its block. */
    uint64_t dropped;   /* Items up to here may be gone: a durable state says so. */
    /* Found by the last opening */
    uint8_t found[OWNER_ITEMS];
    uint64_t first, last, state, damages;
    int wrong; /* Something came back that was not written so. */
    int salvage;
    int writes; /* Items are acknowledged when they are written, and synced later. */
    int maps;   /* Reads segments where they are mapped. */
} log_owner;

void owner_init(log_owner *owner, memory_disk *disk);
wan_status owner_open(log_owner *owner);
void owner_close(log_owner *owner);
/* One more item of about `length` bytes, in a block of its own. */
wan_status owner_write(log_owner *owner, uint64_t length);
/* Makes durable what was written. */
wan_status owner_sync(log_owner *owner);
/* The power went: what was acknowledged and not synced may be gone. */
void owner_lose_power(log_owner *owner);
/* Drops what it can of the segments whose items are all <= `through`. */
wan_status owner_drop(log_owner *owner, uint64_t through);
/* Everything acknowledged and not dropped is there, without gaps, as it was written. */
int owner_is_whole(const log_owner *owner);
/* Reads one segment again, as the opening does. */
wan_status owner_read_segment(log_owner *owner, uint32_t index);
/* Item lengths used by the scenario, so that cuts can be told from offsets. */
uint64_t owner_item_length(uint64_t number, uint64_t length);

#endif
