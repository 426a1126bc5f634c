/* The log: segments, blocks, manifest; opening with its torn tail and its damage. */
#include "wan_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wan_crc32c.h"

#define BLOCK_MAGIC 0x4b425750u     /* "PWBK" */
static const char SEGMENT_MAGIC[8] = "PWANSEG";
static const char MANIFEST_MAGIC[8] = "PWANMAN";

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t kind;
    uint64_t log_id;
    uint64_t next_number;
    uint64_t commit;                /* Of the newest block when it was written. */
    uint32_t segments;              /* That many {number, bytes} pairs follow, then the owner's state. */
    uint32_t owner_slots;
    uint64_t state_bytes;
    uint32_t reserved;
    uint32_t crc;                   /* CRC32C of the bytes before, continued over all that follows. */
} manifest_head;

static void path_of(const wan_log *log, const char *name, char *path, size_t room) { snprintf(path, room, "%s/%s", log->directory, name); }

static void segment_path(const wan_log *log, uint64_t number, char *path, size_t room)
{
    snprintf(path, room, "%s/%012" PRIu64 ".seg", log->directory, number);
}

static uint32_t head_crc(const wan_block_head *head)
{
    return wan_crc32c(0, &head->length, sizeof *head - offsetof(wan_block_head, length));
}

uint64_t wan_parts_length(const wan_part *parts, uint32_t count)
{
    uint64_t length = 0;
    for (uint32_t n = 0; n < count; n++) length += sizeof(wan_part_head) + parts[n].head.length;
    return length;
}

/* Manifest. */

static wan_status write_manifest(wan_log *log, const uint8_t *state, uint64_t state_bytes)
{
    uint64_t length = sizeof(manifest_head) + log->count * 16ull + state_bytes;
    uint8_t *bytes = calloc(1, length);
    if (!bytes) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a manifest of %" PRIu64 " bytes", length);
    manifest_head *head = (manifest_head *)bytes;
    memcpy(head->magic, MANIFEST_MAGIC, 8);
    head->version = WAN_LOG_VERSION;
    head->kind = log->kind;
    head->log_id = log->id;
    head->next_number = log->next_number;
    head->commit = log->commit;
    head->segments = log->count;
    head->owner_slots = log->owner_slots;
    head->state_bytes = state_bytes;
    uint64_t *pair = (uint64_t *)(head + 1);
    for (uint32_t n = 0; n < log->count; n++) { *pair++ = log->segments[n].number; *pair++ = log->segments[n].bytes; }
    if (state_bytes) memcpy(pair, state, state_bytes);
    head->crc = wan_crc32c(wan_crc32c(0, head, offsetof(manifest_head, crc)), head + 1, length - sizeof *head);

    char fresh[4096], path[4096];
    path_of(log, "MANIFEST.new", fresh, sizeof fresh);
    path_of(log, "MANIFEST", path, sizeof path);
    int file = -1;
    wan_status status = log->env->remove(log->env, fresh);
    if (status == WAN_OK) status = log->env->create(log->env, fresh, length, &file);
    if (status == WAN_OK) status = log->env->write(log->env, file, fresh, 0, bytes, length);
    if (status == WAN_OK) status = log->env->sync(log->env, file, fresh);
    if (file >= 0) log->env->close(log->env, file);
    if (status == WAN_OK) status = log->env->replace(log->env, fresh, path, log->directory);
    else log->env->remove(log->env, fresh);
    free(bytes);
    return status;
}

static void note_damage(wan_damage *damage, const char *file, uint64_t offset, const char *reason)
{
    if (file != damage->file) snprintf(damage->file, sizeof damage->file, "%s", file);
    damage->offset = offset;
    snprintf(damage->reason, sizeof damage->reason, "%s", reason);
}

static wan_status refuse(wan_damage *damage, const char *file, uint64_t offset, const char *reason)
{
    note_damage(damage, file, offset, reason);
    return WAN_FAIL(WAN_CORRUPT, "%s, offset %" PRIu64 ": %s", file, offset, reason);
}

/* *found 0: there is none. */
static wan_status read_manifest(wan_log *log, const wan_log_reader *reader, wan_damage *damage, int *found, uint64_t *commit)
{
    char path[4096];
    path_of(log, "MANIFEST", path, sizeof path);
    int file;
    uint64_t bytes;
    *found = 0;
    wan_status status = log->env->open(log->env, path, 0, &file, &bytes);
    if (status != WAN_OK) return WAN_OK;    /* Not there: the caller looks whether segments are. */
    uint8_t *all = NULL;
    if (bytes < sizeof(manifest_head) || bytes > sizeof(manifest_head) + WAN_LOG_STATE_BYTES_MAX + (64u << 20))
        status = refuse(damage, path, 0, "the manifest has an impossible size");
    else if (!(all = malloc(bytes))) status = WAN_FAIL(WAN_NO_MEMORY, "no memory to read %s", path);
    else status = log->env->read(log->env, file, path, 0, all, bytes);
    log->env->close(log->env, file);
    if (status != WAN_OK) { free(all); return status; }

    manifest_head *head = (manifest_head *)all;
    if (memcmp(head->magic, MANIFEST_MAGIC, 8) != 0) status = refuse(damage, path, 0, "this is no manifest of a log");
    else if (head->version > WAN_LOG_VERSION)
        status = WAN_FAIL(WAN_INVALID, "%s was written by a newer version (format %" PRIu32 ", this one reads up to %u); upgrade before opening it", path, head->version, WAN_LOG_VERSION);
    else if (head->segments > bytes / 16 || head->state_bytes > WAN_LOG_STATE_BYTES_MAX
             || bytes != sizeof *head + head->segments * 16ull + head->state_bytes
             || head->crc != wan_crc32c(wan_crc32c(0, head, offsetof(manifest_head, crc)), head + 1, bytes - sizeof *head))
        status = refuse(damage, path, 0, "the manifest's checksum does not hold");
    else if (head->kind != log->kind) status = WAN_FAIL(WAN_INVALID, "%s belongs to a log of kind %" PRIu32 ", not %" PRIu32, path, head->kind, log->kind);
    else if (head->owner_slots != log->owner_slots)
        status = WAN_FAIL(WAN_INVALID, "%s was written with %" PRIu32 " partitions, and %" PRIu32 " are configured; use the same number, or another directory", path, head->owner_slots, log->owner_slots);
    if (status != WAN_OK) { free(all); return status; }

    log->id = head->log_id;
    log->next_number = head->next_number;
    log->capacity = head->segments + 16;
    log->segments = calloc(log->capacity, sizeof *log->segments);
    if (!log->segments) {
        status = WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " segments", head->segments);
        free(all);
        return status;
    }
    const uint64_t *pair = (const uint64_t *)(head + 1);
    for (uint32_t n = 0; n < head->segments; n++) {
        log->segments[n].number = *pair++;
        log->segments[n].bytes = *pair++;
        log->segments[n].file = -1;
        log->count++;
        if (n && log->segments[n].number <= log->segments[n - 1].number) status = refuse(damage, path, 0, "segment numbers do not ascend");
    }
    if (status == WAN_OK && reader->state) status = reader->state(reader->owner, (const uint8_t *)pair, head->state_bytes);
    *commit = head->commit;
    free(all);
    *found = 1;
    return status;
}

/* Segments. */

static wan_status add_segment(wan_log *log, uint64_t bytes)
{
    if (log->size_limit && log->bytes + bytes > log->size_limit)
        return WAN_FAIL(WAN_FULL, "the log in %s has reached its limit of %" PRIu64 " bytes", log->directory, log->size_limit);
    if (log->count == log->capacity) {
        uint32_t capacity = log->capacity ? log->capacity * 2 : 16;
        wan_log_segment *grown = realloc(log->segments, capacity * sizeof *grown);
        if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " segments", capacity);
        log->segments = grown;
        log->capacity = capacity;
    }
    wan_log_segment *segment = &log->segments[log->count];
    memset(segment, 0, sizeof *segment);
    segment->number = log->next_number;
    segment->bytes = bytes;
    segment->used = WAN_LOG_PAGE;
    segment->highest = calloc(log->owner_slots ? log->owner_slots : 1, sizeof *segment->highest);
    if (!segment->highest) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a segment");

    char path[4096];
    segment_path(log, segment->number, path, sizeof path);
    wan_status status = log->env->remove(log->env, path);      /* A left-over that no manifest names. */
    if (status == WAN_OK) status = log->env->create(log->env, path, bytes, &segment->file);
    if (status != WAN_OK) { free(segment->highest); return status; }
    uint8_t page[WAN_LOG_PAGE] = {0};
    wan_segment_head *head = (wan_segment_head *)page;
    memcpy(head->magic, SEGMENT_MAGIC, 8);
    head->version = WAN_LOG_VERSION;
    head->kind = log->kind;
    head->log_id = log->id;
    head->number = segment->number;
    head->crc = wan_crc32c(0, head, offsetof(wan_segment_head, crc));
    status = log->env->write(log->env, segment->file, path, 0, page, sizeof page);
    if (status == WAN_OK) status = log->env->sync(log->env, segment->file, path);
    if (status != WAN_OK) {
        log->env->close(log->env, segment->file);
        log->env->remove(log->env, path);
        free(segment->highest);
        return status;
    }
    log->next_number++;
    log->count++;
    log->bytes += bytes;
    return WAN_OK;
}

static void forget_segment(wan_log *log, uint32_t index)
{
    wan_log_segment *segment = &log->segments[index];
    if (segment->file >= 0) log->env->close(log->env, segment->file);
    log->bytes -= segment->bytes;
    free(segment->highest);
}

static uint64_t room_left(const wan_log_segment *segment) { return segment->bytes - segment->used; }

wan_status wan_log_make_room(wan_log *log, uint64_t length, const uint8_t *state, uint64_t state_bytes)
{
    uint64_t need = length + sizeof(wan_block_head);
    if (log->failed) return WAN_FAIL(WAN_IO, "the log in %s failed to write before; close it and open it again", log->directory);
    for (uint32_t n = log->writing; n < log->count; n++)
        if (room_left(&log->segments[n]) >= need) return WAN_OK;
    /* A few segments at once, so that a manifest is not written for each. The first must succeed, the others may wait. */
    uint64_t bytes = WAN_LOG_SEGMENT_BYTES;
    if (need + WAN_LOG_PAGE > bytes) bytes = (need + 2 * WAN_LOG_PAGE - 1) & ~(uint64_t)(WAN_LOG_PAGE - 1);
    uint32_t before = log->count;
    wan_status status = add_segment(log, bytes);
    if (status != WAN_OK) return status;
    for (uint32_t n = 1; n < WAN_LOG_AHEAD && before; n++)
        if (add_segment(log, WAN_LOG_SEGMENT_BYTES) != WAN_OK) break;
    status = write_manifest(log, state, state_bytes);
    if (status == WAN_OK) return WAN_OK;
    while (log->count > before) {
        char path[4096];
        segment_path(log, log->segments[log->count - 1].number, path, sizeof path);
        forget_segment(log, --log->count);
        log->env->remove(log->env, path);
    }
    return status;
}

/* What the segments before `index` hold is durable; they are not written again. */
static void leave_segments(wan_log *log, uint32_t index)
{
    for (uint32_t n = log->writing; n < index; n++) {
        if (log->segments[n].file >= 0) log->env->close(log->env, log->segments[n].file);
        log->segments[n].file = -1;
    }
    log->writing = index;
}

wan_status wan_log_commit(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *index)
{
    uint64_t length = wan_parts_length(parts, count), need = length + sizeof(wan_block_head);
    WAN_CHECK(length % 8 == 0 && length <= UINT32_MAX);
    if (log->failed) return WAN_FAIL(WAN_IO, "the log in %s failed to write before; close it and open it again", log->directory);
    uint32_t n = log->writing;
    while (n < log->count && room_left(&log->segments[n]) < need) n++;
    WAN_CHECK(n < log->count);      /* The caller made room. */
    wan_log_segment *segment = &log->segments[n];
    wan_block_head head = {BLOCK_MAGIC, 0, (uint32_t)length, count, log->commit + 1, segment->number};
    head.crc = head_crc(&head);
    char path[4096];
    segment_path(log, segment->number, path, sizeof path);
    uint64_t at = segment->used + sizeof head;
    wan_status status = WAN_OK;
    for (uint32_t k = 0; k < count && status == WAN_OK; k++) {
        head.crc = wan_crc32c(wan_crc32c(head.crc, &parts[k].head, sizeof parts[k].head), parts[k].bytes, parts[k].head.length);
        status = log->env->write(log->env, segment->file, path, at, &parts[k].head, sizeof parts[k].head);
        if (status == WAN_OK && parts[k].head.length)
            status = log->env->write(log->env, segment->file, path, at + sizeof parts[k].head, parts[k].bytes, parts[k].head.length);
        at += sizeof parts[k].head + parts[k].head.length;
    }
    if (status == WAN_OK) status = log->env->write(log->env, segment->file, path, segment->used, &head, sizeof head);
    if (status != WAN_OK) return status;    /* Not counted as used: the next attempt writes over it. */
    status = log->env->sync(log->env, segment->file, path);
    if (status != WAN_OK) { log->failed = 1; return status; }   /* What the disk holds now is not known, and no later sync tells. */
    leave_segments(log, n);
    segment->used += need;
    log->commit++;
    *index = n;
    return WAN_OK;
}

wan_status wan_log_drop_first(wan_log *log, uint32_t drop, const uint8_t *state, uint64_t state_bytes)
{
    WAN_CHECK(drop <= log->writing);
    wan_log_segment *gone = malloc((drop ? drop : 1) * sizeof *gone);
    if (!gone) return WAN_FAIL(WAN_NO_MEMORY, "no memory to drop segments");
    memcpy(gone, log->segments, drop * sizeof *gone);
    memmove(log->segments, log->segments + drop, (log->count - drop) * sizeof *log->segments);
    log->count -= drop;
    wan_status status = write_manifest(log, state, state_bytes);
    if (status != WAN_OK) {     /* As before; the next attempt drops them. */
        memmove(log->segments + drop, log->segments, log->count * sizeof *log->segments);
        memcpy(log->segments, gone, drop * sizeof *gone);
        log->count += drop;
        free(gone);
        return status;
    }
    log->writing -= drop;
    for (uint32_t n = 0; n < drop; n++) {
        char path[4096];
        segment_path(log, gone[n].number, path, sizeof path);
        if (gone[n].file >= 0) log->env->close(log->env, gone[n].file);
        log->env->remove(log->env, path);
        log->bytes -= gone[n].bytes;
        free(gone[n].highest);
    }
    free(gone);
    return WAN_OK;
}

/* Reading. */

static int block_is_whole(const uint8_t *bytes, uint64_t left, uint64_t number)
{
    const wan_block_head *head = (const wan_block_head *)bytes;
    if (left < sizeof *head || head->magic != BLOCK_MAGIC || head->segment != number || head->length > left - sizeof *head || head->length % 8)
        return 0;
    if (wan_crc32c(head_crc(head), head + 1, head->length) != head->crc) return 0;
    uint64_t at = 0;
    for (uint32_t n = 0; n < head->parts; n++) {
        if (head->length - at < sizeof(wan_part_head)) return 0;
        const wan_part_head *part = (const wan_part_head *)((const uint8_t *)(head + 1) + at);
        at += sizeof *part;
        if (part->kind == 0 || part->kind >= WAN_PART_KIND_COUNT || part->length > head->length - at || part->length % 8) return 0;
        at += part->length;
    }
    return at == head->length;
}

static wan_status read_block(wan_log *log, uint32_t index, const wan_log_reader *reader, const wan_block_head *head)
{
    const uint8_t *at = (const uint8_t *)(head + 1);
    for (uint32_t n = 0; n < head->parts; n++) {
        const wan_part_head *part = (const wan_part_head *)at;
        wan_status status = reader->part(reader->owner, index, head->commit, part, at + sizeof *part);
        if (status != WAN_OK) return status;
        at += sizeof *part + part->length;
    }
    return WAN_OK;
}

static wan_status read_file(wan_log *log, uint64_t number, uint64_t expected_bytes, uint8_t **all, uint64_t *bytes, char *path, size_t room)
{
    segment_path(log, number, path, room);
    int file;
    wan_status status = log->env->open(log->env, path, 0, &file, bytes);
    if (status != WAN_OK) return status;
    uint64_t size = *bytes > expected_bytes ? *bytes : expected_bytes;
    *all = aligned_alloc(64, (size + WAN_LOG_PAGE + 63) & ~(uint64_t)63);
    if (!*all) status = WAN_FAIL(WAN_NO_MEMORY, "no memory to read %s", path);
    else status = log->env->read(log->env, file, path, 0, *all, size);
    log->env->close(log->env, file);
    if (status != WAN_OK) { free(*all); *all = NULL; }
    *bytes = size;
    return status;
}

/* Hands out the blocks of one segment. *end: behind the last whole block; *more: whole blocks follow damage. */
static wan_status scan_segment(wan_log *log, uint32_t index, const wan_log_reader *reader, wan_damage *damage, uint64_t *end, int *more)
{
    wan_log_segment *segment = &log->segments[index];
    uint8_t *all = NULL;
    uint64_t bytes;
    char path[4096];
    *end = WAN_LOG_PAGE;
    *more = 0;
    wan_status status = read_file(log, segment->number, segment->bytes, &all, &bytes, path, sizeof path);
    if (status != WAN_OK) {
        if (status != WAN_IO) return status;
        note_damage(damage, path, 0, "the segment cannot be read");
        *more = 1;
        return reader->salvage ? WAN_OK : WAN_FAIL(WAN_CORRUPT, "%s: the segment is named in the manifest and cannot be read (%.200s)", path, wan_detail);
    }
    const wan_segment_head *head = (const wan_segment_head *)all;
    if (memcmp(head->magic, SEGMENT_MAGIC, 8) != 0 || head->crc != wan_crc32c(0, head, offsetof(wan_segment_head, crc))
        || head->log_id != log->id || head->number != segment->number) {
        note_damage(damage, path, 0, "the segment's header is damaged, or it is another log's");
        if (!reader->salvage) { free(all); return refuse(damage, path, 0, "the segment's header is damaged, or it is another log's"); }
    }
    uint64_t at = WAN_LOG_PAGE;
    while (at + sizeof(wan_block_head) <= bytes) {
        if (block_is_whole(all + at, bytes - at, segment->number)) {
            const wan_block_head *block = (const wan_block_head *)(all + at);
            if (log->commit && block->commit != log->commit + 1 && !*more && !reader->salvage) {
                status = refuse(damage, path, at, "blocks are missing before this one");
                break;
            }
            status = read_block(log, index, reader, block);
            if (status != WAN_OK) break;
            log->commit = block->commit;
            at += sizeof *block + block->length;
            *end = at;
            continue;
        }
        /* Torn, or damaged: whole blocks behind it tell which. */
        uint64_t ahead = at + 8;
        while (ahead + sizeof(wan_block_head) <= bytes
               && (((const wan_block_head *)(all + ahead))->magic != BLOCK_MAGIC || !block_is_whole(all + ahead, bytes - ahead, segment->number)))
            ahead += 8;     /* By the magic alone for the megabytes of zeros in segments made ahead. */
        if (ahead + sizeof(wan_block_head) > bytes) break;
        note_damage(damage, path, at, "a damaged block with whole ones behind it");
        if (!reader->salvage) { status = refuse(damage, path, at, "a damaged block with whole ones behind it"); break; }
        at = ahead;
    }
    free(all);
    return status;
}

wan_status wan_log_read_segment(wan_log *log, uint32_t index, const wan_log_reader *reader)
{
    wan_damage damage;
    uint64_t end, commit = log->commit;
    int more;
    log->commit = 0;
    wan_status status = scan_segment(log, index, reader, &damage, &end, &more);
    log->commit = commit;
    return status;
}

/* Zeros behind the last whole block, so that half of an old block can never be joined by new bytes. */
static wan_status cut_tail(wan_log *log, wan_log_segment *segment, const char *path, uint64_t *cut)
{
    uint8_t zeros[65536] = {0};
    uint8_t found[65536];
    for (uint64_t at = segment->used; at < segment->bytes;) {
        uint64_t length = segment->bytes - at < sizeof zeros ? segment->bytes - at : sizeof zeros;
        wan_status status = log->env->read(log->env, segment->file, path, at, found, length);
        if (status != WAN_OK) return status;
        if (memcmp(found, zeros, length) != 0) {
            for (uint64_t n = 0; n < length; n++) *cut += found[n] != 0;
            status = log->env->write(log->env, segment->file, path, at, zeros, length);
            if (status != WAN_OK) return status;
        }
        at += length;
    }
    return *cut ? log->env->sync(log->env, segment->file, path) : WAN_OK;
}

wan_status wan_log_open(wan_log *log, const wan_env *env, const char *directory, uint32_t kind, uint64_t id, uint32_t owner_slots,
                        uint64_t size_limit, const wan_log_reader *reader, wan_damage *damage, uint64_t *cut_bytes)
{
    memset(log, 0, sizeof *log);
    memset(damage, 0, sizeof *damage);
    *cut_bytes = 0;
    log->env = env;
    log->kind = kind;
    log->id = id;
    log->owner_slots = owner_slots;
    log->size_limit = size_limit;
    log->next_number = 1;
    log->directory = strdup(directory);
    if (!log->directory) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a log");
    int found;
    uint64_t manifest_commit = 0;
    wan_status status = read_manifest(log, reader, damage, &found, &manifest_commit);
    if (status == WAN_OK && !found) {
        if (reader->state) status = reader->state(reader->owner, NULL, 0);
        if (status != WAN_OK) goto failed;
        return WAN_OK;      /* New: segments and manifest come with the first room that is made. */
    }
    if (status != WAN_OK) goto failed;

    char path[4096];
    for (uint32_t n = 0; n < log->count; n++) {
        wan_log_segment *segment = &log->segments[n];
        log->bytes += segment->bytes;
        segment->highest = calloc(owner_slots ? owner_slots : 1, sizeof *segment->highest);
        if (!segment->highest) { status = WAN_FAIL(WAN_NO_MEMORY, "no memory for a segment"); goto failed; }
        uint64_t end;
        int more;
        status = scan_segment(log, n, reader, damage, &end, &more);
        if (status != WAN_OK) goto failed;
        segment->used = end;
        /* A block too large for the segments that were ahead went into one of its own behind them: they stay empty. Blocks that
         * are gone show in the numbers of those that follow. */
        if (end > WAN_LOG_PAGE) log->writing = n;
    }
    if (log->commit < manifest_commit) log->commit = manifest_commit;
    for (uint32_t n = log->writing; n < log->count; n++) {
        wan_log_segment *segment = &log->segments[n];
        uint64_t bytes;
        segment_path(log, segment->number, path, sizeof path);
        status = log->env->open(log->env, path, 1, &segment->file, &bytes);
        if (status == WAN_OK) status = cut_tail(log, segment, path, cut_bytes);
        if (status != WAN_OK) goto failed;
    }
    return WAN_OK;

failed:
    wan_log_close(log);
    return status;
}

void wan_log_close(wan_log *log)
{
    for (uint32_t n = 0; n < log->count; n++) {
        if (log->segments[n].file >= 0) log->env->close(log->env, log->segments[n].file);
        free(log->segments[n].highest);
    }
    free(log->segments);
    free(log->directory);
    memset(log, 0, sizeof *log);
}
