/* Owns the calls of the disk in memory. */
#include "memory_disk.h"

#include <stdlib.h>
#include <string.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

memory_file *memory_disk_find(memory_disk *disk, const char *name)
{
    for (int n = 0; n < MEMORY_FILES; n++)
        if (disk->files[n].name[0] && !disk->files[n].gone && strcmp(disk->files[n].name, name) == 0)
            return &disk->files[n];
    return NULL;
}

/* Counts a call. Its status is not WAN_OK if this call is the one that fails. */
static wan_status may_fail(memory_disk *disk, const char *what, const char *path)
{
    disk->calls++;
    if (!disk->fail_at || (disk->calls != disk->fail_at && !(disk->stopped && disk->calls > disk->fail_at)))
        return WAN_OK;
    disk->failed_what = what;
    return WAN_FAIL(disk->fail_with, "call %" PRIu64 ", %s %s, fails on purpose", disk->calls, what, base_name(path));
}

static uint64_t bytes_in_use(const memory_disk *disk)
{
    uint64_t total = 0;
    for (int n = 0; n < MEMORY_FILES; n++)
        if (disk->files[n].name[0] && !disk->files[n].gone) total += disk->files[n].reserved;
    return total;
}

static uint64_t sectors(uint64_t bytes) { return (bytes + MEMORY_SECTOR - 1) / MEMORY_SECTOR; }

static void make_dirty(memory_file *file, uint64_t at, uint64_t bytes)
{
    const uint64_t first = at / MEMORY_SECTOR, end = sectors(at + bytes);
    if (end > file->dirty_sectors) {
        file->dirty = realloc(file->dirty, end);
        memset(file->dirty + file->dirty_sectors, 0, end - file->dirty_sectors);
        file->dirty_sectors = end;
    }
    if (end > first) memset(file->dirty + first, 1, end - first);
}

static void make_clean(memory_file *file)
{
    free(file->dirty);
    file->dirty = NULL;
    file->dirty_sectors = 0;
}

static void resize(memory_file *file, uint64_t size)
{
    if (size <= file->size) return;
    file->bytes = realloc(file->bytes, size);
    memset(file->bytes + file->size, 0, size - file->size);
    file->size = size;
    if (size > file->reserved) file->reserved = size;
}

static void forget(memory_file *file)
{
    free(file->bytes);
    free(file->synced);
    free(file->dirty);
    memset(file, 0, sizeof *file);
}

static wan_status disk_create(const wan_env *env, const char *path, uint64_t bytes, int *handle)
{
    memory_disk *disk = env->state;
    wan_status status = may_fail(disk, "create", path);
    if (status != WAN_OK) return status;
    if (memory_disk_find(disk, base_name(path))) return WAN_FAIL(WAN_IO, "%s is there already", base_name(path));
    if (disk->capacity && bytes_in_use(disk) + bytes > disk->capacity)
        return WAN_FAIL(WAN_FULL, "the disk is full: no room for %s", base_name(path));
    for (int n = 0; n < MEMORY_FILES; n++) {
        memory_file *file = &disk->files[n];
        if (file->name[0]) continue;
        snprintf(file->name, sizeof file->name, "%s", base_name(path));
        resize(file, bytes);
        file->open = 1;
        *handle = n;
        return WAN_OK;
    }
    return WAN_FAIL(WAN_IO, "the test's disk has no file left");
}

static wan_status disk_open(const wan_env *env, const char *path, int writable, int *handle, uint64_t *bytes)
{
    memory_disk *disk = env->state;
    wan_status status = may_fail(disk, "open", path);
    if (status != WAN_OK) return status;
    memory_file *file = memory_disk_find(disk, base_name(path));
    if (!file) return WAN_FAIL(WAN_EMPTY, "there is no %s", base_name(path));
    file->open++;
    *handle = (int)(file - disk->files);
    *bytes = file->size;
    return WAN_OK;
}

static wan_status disk_write(const wan_env *env, int handle, const char *path, uint64_t at, const void *data,
                             uint64_t bytes)
{
    memory_disk *disk = env->state;
    memory_file *file = &disk->files[handle];
    wan_status status = may_fail(disk, "write", path);
    if (status != WAN_OK)
        bytes = disk->short_writes && !(disk->stopped && disk->calls > disk->fail_at)
                    ? bytes * (unsigned)disk->short_writes / 2
                    : 0;
    if (bytes) {
        resize(file, at + bytes);
        memcpy(file->bytes + at, data, bytes);
        make_dirty(file, at, bytes);
    }
    return status;
}

static wan_status disk_read(const wan_env *env, int handle, const char *path, uint64_t at, void *to, uint64_t bytes)
{
    memory_disk *disk = env->state;
    memory_file *file = &disk->files[handle];
    wan_status status = may_fail(disk, "read", path);
    if (status != WAN_OK) return status;
    uint64_t there = at >= file->size ? 0 : file->size - at < bytes ? file->size - at : bytes;
    if (there) memcpy(to, file->bytes + at, there);
    memset((uint8_t *)to + there, 0, bytes - there);
    return WAN_OK;
}

/* The mapping is as long as the file and not a byte longer. The sanitizer stops a read behind it. */
static wan_status disk_map_file(const wan_env *env, int handle, uint64_t bytes, uint8_t **base)
{
    memory_disk *disk = env->state;
    memory_file *file = &disk->files[handle];
    wan_status status = may_fail(disk, "map", file->name);
    if (status != WAN_OK) return status;
    *base = malloc(bytes ? bytes : 1);
    if (bytes) memcpy(*base, file->bytes, bytes);
    return WAN_OK;
}

static void disk_unmap(const wan_env *env, uint8_t *base, uint64_t bytes) { free(base); }

/* What was written since the last sync is read as the disk has it. */
static void forget_dirty(memory_file *file)
{
    for (uint64_t at = 0; at < file->size && at / MEMORY_SECTOR < file->dirty_sectors; at++)
        if (file->dirty[at / MEMORY_SECTOR]) file->bytes[at] = at < file->synced_size ? file->synced[at] : 0;
}

static wan_status disk_sync(const wan_env *env, int handle, const char *path)
{
    memory_disk *disk = env->state;
    memory_file *file = &disk->files[handle];
    wan_status status = may_fail(disk, "sync", path);
    if (status == WAN_OK) {
        file->synced = realloc(file->synced, file->size ? file->size : 1);
        if (file->size > file->synced_size) memset(file->synced + file->synced_size, 0, file->size - file->synced_size);
        for (uint64_t n = 0, at = 0; at < file->size && n < file->dirty_sectors; n++, at += MEMORY_SECTOR)
            if (file->dirty[n])
                memcpy(file->synced + at, file->bytes + at,
                       file->size - at < MEMORY_SECTOR ? file->size - at : MEMORY_SECTOR);
        file->synced_size = file->size;
    } else if (disk->forgets) {
        forget_dirty(file);
    }
    make_clean(file);
    return status;
}

static wan_status disk_replace(const wan_env *env, const char *from, const char *to, const char *directory)
{
    memory_disk *disk = env->state;
    wan_status status = may_fail(disk, "rename", from);
    if (status != WAN_OK) return status;
    memory_file *file = memory_disk_find(disk, base_name(from)), *old = memory_disk_find(disk, base_name(to));
    if (!file) return WAN_FAIL(WAN_IO, "there is no %s", base_name(from));
    if (old) old->gone = 1;
    snprintf(file->name, sizeof file->name, "%s", base_name(to));
    status = may_fail(disk, "sync directory", directory);
    if (status != WAN_OK) return status;
    for (int n = 0; n < MEMORY_FILES; n++) {
        memory_file *each = &disk->files[n];
        if (!each->name[0]) continue;
        if (each->gone) {
            if (!each->open) forget(each);
            else each->synced_name[0] = 0;
            continue;
        }
        each->named = 1;
        memcpy(each->synced_name, each->name, sizeof each->name);
    }
    return WAN_OK;
}

static wan_status disk_remove(const wan_env *env, const char *path)
{
    memory_disk *disk = env->state;
    wan_status status = may_fail(disk, "remove", path);
    if (status != WAN_OK) return status;
    memory_file *file = memory_disk_find(disk, base_name(path));
    /* A crash can bring it back until the directory is synced. */
    if (file) file->gone = 1;
    return WAN_OK;
}

static void disk_close(const wan_env *env, int handle) { ((memory_disk *)env->state)->files[handle].open--; }

static wan_status disk_list(const wan_env *env, const char *directory,
                            wan_status (*found)(void *owner, const char *name), void *owner)
{
    memory_disk *disk = env->state;
    wan_status status = may_fail(disk, "list", directory);
    for (int n = MEMORY_FILES; n-- && status == WAN_OK;)
        if (disk->files[n].name[0] && !disk->files[n].gone) status = found(owner, disk->files[n].name);
    return status;
}

void memory_disk_init(memory_disk *disk)
{
    memset(disk, 0, sizeof *disk);
    disk->fail_with = WAN_IO;
    disk->env = (wan_env){.map_file = disk_map_file,
                          .unmap = disk_unmap,
                          .create = disk_create,
                          .open = disk_open,
                          .write = disk_write,
                          .read = disk_read,
                          .sync = disk_sync,
                          .replace = disk_replace,
                          .remove = disk_remove,
                          .close = disk_close,
                          .list = disk_list,
                          .state = disk};
}

void memory_disk_close(memory_disk *disk)
{
    for (int n = 0; n < MEMORY_FILES; n++) forget(&disk->files[n]);
}

void memory_disk_crash(memory_disk *disk, int what, random_source *source)
{
    disk->fail_at = 0;
    disk->stopped = 0;
    for (int n = 0; n < MEMORY_FILES; n++) {
        memory_file *file = &disk->files[n];
        if (!file->name[0]) continue;
        file->open = 0;
        if (what == KEEP_UNSYNCED ? file->gone : !file->named || !file->synced_name[0]) {
            forget(file);
            continue;
        }
        if (what != KEEP_UNSYNCED) {
            file->gone = 0;
            memcpy(file->name, file->synced_name, sizeof file->name);
            if (what == LOSE_UNSYNCED) {
                file->size = 0;
                file->bytes = realloc(file->bytes, file->synced_size + 1);
            }
            if (file->size < file->synced_size) {
                file->size = 0;
                resize(file, file->synced_size);
            }
            const uint64_t unit = what == TEAR_PAGES ? MEMORY_PAGE : MEMORY_SECTOR;
            for (uint64_t at = 0; at < file->size; at += unit) {
                uint64_t length = file->size - at < unit ? file->size - at : unit;
                if (what != LOSE_UNSYNCED && random_below(source, 2)) continue;
                for (uint64_t k = at; k < at + length; k++)
                    file->bytes[k] = k < file->synced_size ? file->synced[k] : 0;
            }
        }
        file->synced = realloc(file->synced, file->size ? file->size : 1);
        if (file->size) memcpy(file->synced, file->bytes, file->size);
        file->synced_size = file->size;
        make_clean(file);
        file->named = 1;
        memcpy(file->synced_name, file->name, sizeof file->name);
    }
}

void memory_disk_copy(memory_disk *to, const memory_disk *from)
{
    memory_disk_init(to);
    for (int n = 0; n < MEMORY_FILES; n++) {
        const memory_file *file = &from->files[n];
        memory_file *copy = &to->files[n];
        if (!file->name[0] || file->gone) continue;
        *copy = *file;
        copy->open = 0;
        copy->bytes = malloc(file->size ? file->size : 1);
        if (file->size) memcpy(copy->bytes, file->bytes, file->size);
        copy->dirty = NULL;
        copy->dirty_sectors = 0;
        make_dirty(copy, 0, file->size);
        copy->synced = NULL;
        copy->synced_size = 0;
        copy->named = 1;
        memcpy(copy->synced_name, copy->name, sizeof copy->name);
    }
}
