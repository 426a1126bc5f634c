/* Owns a disk in memory that misbehaves on purpose: its n-th call fails, it stops for good, it fills up; and after a
 * crash it holds what was synced, and of the rest as much as is asked. */
#ifndef MEMORY_DISK_H
#define MEMORY_DISK_H
#include "harness.h"

#define MEMORY_FILES  64
#define MEMORY_SECTOR 512u
#define MEMORY_PAGE   4096u

typedef struct {
    char name[64];           /* "": free. Everything lies in one directory, whatever it is called. */
    uint8_t *bytes, *synced; /* As read now; as after a crash. */
    uint8_t *dirty; /* Of the first `dirty_sectors`: the next sync writes it. One that failed takes all for written, and
                       the disk may not have it. */
    uint64_t size, synced_size, reserved, dirty_sectors;
    int named;            /* The name is on the disk too: the directory was synced. */
    int open, gone;       /* Handles; removed while open. */
    char synced_name[64]; /* What a crash gives it back. */
} memory_file;

enum {
    LOSE_UNSYNCED,
    KEEP_UNSYNCED,
    TEAR_UNSYNCED,
    TEAR_PAGES
}; /* Of a crash: none of it, all, random sectors, or random pages. */

typedef struct {
    wan_env env;
    memory_file files[MEMORY_FILES];
    uint64_t capacity; /* Of all files together; 0: none. */
    uint64_t calls;    /* That can fail, so far. */
    uint64_t fail_at;  /* The number of the call that fails; 0: none. */
    wan_status fail_with;
    int short_writes; /* A write that fails has written half of it; 2: all of it. */
    int stopped;      /* From the failing call on nothing works: the machine is down. */
    const char *failed_what;
} memory_disk;

void memory_disk_init(memory_disk *disk);
void memory_disk_close(memory_disk *disk);
/* The machine goes down and comes up again. */
void memory_disk_crash(memory_disk *disk, int what, random_source *source);
/* An independent copy, of which nothing is synced yet. */
void memory_disk_copy(memory_disk *to, const memory_disk *from);
memory_file *memory_disk_find(memory_disk *disk, const char *name);

#endif
