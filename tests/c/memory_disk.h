/* Owns a disk in memory that misbehaves on purpose. Its n-th call fails, or it stops for good, or it is full. After a
 * crash it holds what was synced, and as much of the rest as a test asks for. */
#ifndef MEMORY_DISK_H
#define MEMORY_DISK_H
#include "harness.h"

#define MEMORY_FILES  64
#define MEMORY_SECTOR 512u
#define MEMORY_PAGE   4096u

typedef struct {
    /* "": the slot is free. All files lie in one directory, whatever its name is. */
    char name[64];
    /* The content as it is read now, and as a crash would leave it. */
    uint8_t *bytes, *synced;
    /* One flag for each of the first `dirty_sectors` sectors: the next sync writes it. After a sync that failed no
     * sector is dirty, although the disk may not have it. */
    uint8_t *dirty;
    uint64_t size, synced_size, reserved, dirty_sectors;
    int named;            /* The name is on the disk too, because the directory was synced. */
    int open, gone;       /* Open handles; whether it was removed. */
    char synced_name[64]; /* The name that a crash gives back to it. */
} memory_file;

enum {
    LOSE_UNSYNCED,
    KEEP_UNSYNCED,
    TEAR_UNSYNCED,
    /* The unsynced bytes that a crash keeps: none, all, random sectors, or random pages. */
    TEAR_PAGES
};

typedef struct {
    wan_env env;
    memory_file files[MEMORY_FILES];
    uint64_t capacity; /* The most bytes of all files together. 0: no limit. */
    uint64_t calls;    /* Calls so far that could fail. */
    uint64_t fail_at;  /* The number of the call that fails. 0: none. */
    wan_status fail_with;
    int short_writes; /* 1: a write that fails has written half of its bytes. 2: it has written all of them. */
    /* If set, every call fails from the failing one on: the machine is down. */
    int stopped;
    int forgets; /* After a sync that fails, the system's memory has what the disk has, and not what was written. */
    const char *failed_what;
} memory_disk;

void memory_disk_init(memory_disk *disk);
void memory_disk_close(memory_disk *disk);
/* The machine goes down and comes up again. `what` is LOSE_UNSYNCED, ... */
void memory_disk_crash(memory_disk *disk, int what, random_source *source);
/* Makes an independent replica, of which nothing is synced yet. */
void memory_disk_copy(memory_disk *to, const memory_disk *from);
memory_file *memory_disk_find(memory_disk *disk, const char *name);

#endif
