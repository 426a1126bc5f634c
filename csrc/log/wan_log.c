/* Owns the writing of a log: its segments, blocks and manifests. */
#include "log/wan_log_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/wan_clock.h"

uint64_t wan_parts_length(const wan_part *parts, uint32_t count)
{
    uint64_t length = 0;
    for (uint32_t n = 0; n < count; n++) length += sizeof(wan_part_head) + parts[n].head.length;
    return length;
}

/* The manifest. */

/* Opens the file of the next manifest. The last writing of a manifest reserved room for it, if it could. So a log on a
 * full disk can still be shortened, and that makes room. */
static wan_status create_fresh(wan_log *log, const char *path, uint64_t length, int *file)
{
    uint64_t kept;
    if (log->env->open(log->env, path, 1, file, &kept) == WAN_OK) {
        if (kept >= length && kept <= 4 * length + 4 * WAN_LOG_PAGE) return WAN_OK;
        log->env->close(log->env, *file);
        *file = -1;
    }
    wan_status status = log->env->remove(log->env, path);
    return status == WAN_OK ? log->env->create(log->env, path, length, file) : status;
}

/* Writes a manifest that names all segments, with the owner's identity and `state`, and makes it durable. */
static wan_status write_manifest(wan_log *log, const uint8_t *state, uint64_t state_bytes)
{
    uint64_t length = sizeof(manifest_head) + log->count * 16ull + log->identity.used + state_bytes;
    /* The manifest names the newest block, so all blocks must be on the disk first. */
    wan_status status = wan_log_sync(log);
    if (status != WAN_OK) return status;
    /* A longer one could not be read again. */
    if (state_bytes > WAN_LOG_STATE_BYTES_MAX || log->identity.used > WAN_LOG_IDENTITY_BYTES_MAX)
        return WAN_FAIL(WAN_TOO_LARGE,
                        "the log in %.300s has a state of %" PRIu64
                        " bytes, and at most %u can be kept; the log stays as it is",
                        log->directory, state_bytes, WAN_LOG_STATE_BYTES_MAX);
    uint8_t *bytes = calloc(1, length);
    if (!bytes) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a manifest of %" PRIu64 " bytes", length);
    manifest_head *head = (manifest_head *)bytes;
    memcpy(head->magic, MANIFEST_MAGIC, 8);
    head->version = WAN_RECORD_FORMAT;
    head->kind = log->kind;
    head->log_id = log->id;
    head->next_number = log->next_number;
    head->commit = log->commit;
    head->first_commit = log->first_commit;
    head->segments = log->count;
    head->owner_slots = log->owner_slots;
    head->state_bytes = state_bytes;
    head->identity_bytes = (uint32_t)log->identity.used;
    uint64_t *pair = (uint64_t *)(head + 1);
    for (uint32_t n = 0; n < log->count; n++) {
        *pair++ = log->segments[n].number;
        *pair++ = log->segments[n].bytes;
    }
    uint8_t *behind = (uint8_t *)pair;
    if (log->identity.used) memcpy(behind, log->identity.bytes, log->identity.used);
    if (state_bytes) memcpy(behind + log->identity.used, state, state_bytes);
    head->crc = wan_crc32c(wan_crc32c(0, head, offsetof(manifest_head, crc)), head + 1, length - sizeof *head);

    char fresh[4096], path[4096];
    path_of(log, "MANIFEST.new", fresh, sizeof fresh);
    path_of(log, "MANIFEST", path, sizeof path);
    int file = -1;
    status = create_fresh(log, fresh, length, &file);
    if (status == WAN_OK) status = log->env->write(log->env, file, fresh, 0, bytes, length);
    if (status == WAN_OK) status = log->env->sync(log->env, file, fresh);
    if (file >= 0) log->env->close(log->env, file);
    free(bytes);
    if (status != WAN_OK) return status;
    /* From here on a crash may leave the new manifest or the old one, because the rename may not be on the disk. */
    log->manifest_unsure = 1;
    status = log->env->replace(log->env, fresh, path, log->directory);
    if (status != WAN_OK) return status;
    log->manifest_unsure = 0;
    log->has_manifest = 1;
    log->known_commit = log->commit;
    if (log->env->create(log->env, fresh, (length * 2 + WAN_LOG_PAGE) & ~(uint64_t)(WAN_LOG_PAGE - 1), &file) == WAN_OK)
        log->env->close(log->env, file);
    return WAN_OK;
}

wan_status wan_log_grow_segments(wan_log *log, uint32_t wanted)
{
    if (wanted <= log->capacity) return WAN_OK;
    uint32_t capacity = wanted * 2 > 16 ? wanted * 2 : 16;
    wan_log_segment *grown = realloc(log->segments, capacity * sizeof *grown);
    if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " segments", capacity);
    log->segments = grown;
    log->capacity = capacity;
    return WAN_OK;
}

/* The segments. */

uint64_t wan_log_segment_bytes(const wan_log *log)
{
    uint64_t bytes =
        log->budget ? log->budget->limit / WAN_LOG_SEGMENT_PART & ~(uint64_t)(WAN_LOG_PAGE - 1) : WAN_LOG_SEGMENT_BYTES;
    if (bytes > WAN_LOG_SEGMENT_BYTES) return WAN_LOG_SEGMENT_BYTES;
    return bytes < WAN_LOG_SEGMENT_BYTES_MIN ? WAN_LOG_SEGMENT_BYTES_MIN : bytes;
}

uint64_t wan_log_block_bytes(const wan_log *log) { return wan_log_segment_bytes(log) / 2 - WAN_LOG_PAGE; }

/* The bytes of the budget that the log may use. */
static uint64_t budget_of(const wan_log *log, int uses_reserve)
{
    uint64_t parts_left = uses_reserve ? 0 : log->may_use_reserve ? 1 : WAN_LOG_RESERVE_PARTS;
    return log->budget->limit - log->budget->limit / WAN_LOG_PARTS * parts_left;
}

uint64_t wan_log_room(const wan_log *log)
{
    if (!log->budget) return WAN_NO_LIMIT;
    uint64_t used = __atomic_load_n(&log->budget->used, __ATOMIC_RELAXED), most = budget_of(log, 0);
    return most > used ? most - used : 0;
}

uint64_t wan_log_reserve_room(const wan_log *log)
{
    if (!log->budget) return WAN_NO_LIMIT;
    uint64_t used = __atomic_load_n(&log->budget->used, __ATOMIC_RELAXED);
    return log->budget->limit > used ? log->budget->limit - used : 0;
}

uint64_t wan_log_record_bytes(const wan_log *log)
{
    return log->budget ? log->budget->limit / WAN_LOG_PARTS - 2 * WAN_LOG_PAGE : WAN_NO_LIMIT;
}

int wan_log_take_reserve(wan_log *log)
{
    uint32_t nobody = 0;
    if (log->budget
        && !__atomic_compare_exchange_n(&log->budget->reserve_in_use, &nobody, 1, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
        return 0;
    log->uses_reserve = 1;
    return 1;
}

void wan_log_give_back_reserve(wan_log *log)
{
    log->uses_reserve = 0;
    if (log->budget) __atomic_store_n(&log->budget->reserve_in_use, 0, __ATOMIC_RELEASE);
}

/* Takes bytes of the budget for a segment file. WAN_FULL: the limit is reached, and nothing is taken. */
static wan_status take_room(wan_log *log, uint64_t bytes)
{
    if (!log->budget) return WAN_OK;
    uint64_t used = __atomic_add_fetch(&log->budget->used, bytes, __ATOMIC_RELAXED);
    if (used <= budget_of(log, log->uses_reserve)) return WAN_OK;
    __atomic_sub_fetch(&log->budget->used, bytes, __ATOMIC_RELAXED);
    return WAN_FAIL(WAN_FULL,
                    "the logs of the disk store have reached their limit of %" PRIu64
                    " bytes, of which %.300s has %" PRIu64 ": let events leave, or give the store a larger size",
                    log->budget->limit, log->directory, log->bytes);
}

static void give_room(wan_log *log, uint64_t bytes)
{
    if (log->budget) __atomic_sub_fetch(&log->budget->used, bytes, __ATOMIC_RELAXED);
}

void wan_log_share(wan_log *log, wan_log_budget *budget, uint64_t known, int may_use_reserve)
{
    log->budget = budget;
    log->may_use_reserve = may_use_reserve != 0;
    /* Wraps around where log->bytes is less than `known`. */
    __atomic_add_fetch(&budget->used, log->bytes - known, __ATOMIC_RELAXED);
}

static wan_status make_segment(wan_log *log, uint64_t bytes);

/* Makes a new segment file of `bytes` bytes behind the others. */
static wan_status add_segment(wan_log *log, uint64_t bytes)
{
    wan_status status = take_room(log, bytes);
    if (status != WAN_OK) return status;
    status = make_segment(log, bytes);
    if (status != WAN_OK) give_room(log, bytes);
    return status;
}

static wan_status make_segment(wan_log *log, uint64_t bytes)
{
    wan_status status = wan_log_grow_segments(log, log->count + 1);
    if (status != WAN_OK) return status;
    wan_log_segment *segment = &log->segments[log->count];
    memset(segment, 0, sizeof *segment);
    segment->number = log->next_number;
    segment->bytes = bytes;
    segment->used = WAN_LOG_PAGE;
    segment->highest = calloc(log->owner_slots ? log->owner_slots : 1, sizeof *segment->highest);
    if (!segment->highest) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a segment");

    char path[4096];
    segment_path(log, segment->number, path, sizeof path);
    status = log->env->remove(log->env, path); /* A left-over file that no manifest names. */
    if (status == WAN_OK) status = log->env->create(log->env, path, bytes, &segment->file);
    log->disk_is_full = status == WAN_FULL;
    if (status != WAN_OK) {
        free(segment->highest);
        return status;
    }
    uint8_t page[WAN_LOG_PAGE] = {0};
    wan_segment_head *head = (wan_segment_head *)page;
    memcpy(head->magic, SEGMENT_MAGIC, 8);
    head->version = WAN_RECORD_FORMAT;
    head->kind = log->kind;
    head->log_id = log->id;
    head->number = segment->number;
    if (getrandom(head->secret, sizeof head->secret, 0) != sizeof head->secret) {
        log->env->close(log->env, segment->file);
        log->env->remove(log->env, path);
        free(segment->highest);
        return WAN_FAIL(WAN_IO, "the system gives no random numbers for the secret of a segment: %s", strerror(errno));
    }
    memcpy(segment->secret, head->secret, sizeof segment->secret);
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
    give_room(log, segment->bytes);
    free(segment->highest);
}

static uint64_t room_left(const wan_log_segment *segment) { return segment->bytes - segment->used; }

/* The segments before this index take blocks now. The last one is kept for records that make the log shorter, where it
 * is not the only one. */
static uint32_t end_of_room(const wan_log *log)
{
    int keeps = log->count > 1 && !log->uses_reserve && !log->may_use_reserve
                && wan_log_room(log) >= wan_log_segment_bytes(log) * WAN_LOG_KEPT_ROOM;
    return keeps ? log->count - 1 : log->count;
}

static int takes_block(const wan_log *log, uint64_t need)
{
    for (uint32_t n = log->writing; n < end_of_room(log); n++)
        if (room_left(&log->segments[n]) >= need) return 1;
    return 0;
}

static wan_status only_for_reading(const wan_log *log)
{
    return WAN_FAIL(WAN_IO, "the log in %.300s was opened for salvage; nothing is written to it", log->directory);
}

wan_status wan_log_make_room(wan_log *log, uint64_t length, const uint8_t *state, uint64_t state_bytes)
{
    uint64_t need = length + sizeof(wan_block_head);
    wan_status status = WAN_OK;
    if (log->for_reading) return only_for_reading(log);
    if (log->broken) return wan_refuse_broken(log->broken);
    /* A segment may exist only beside a manifest. */
    if (log->manifest_unsure || !log->has_manifest) status = write_manifest(log, state, state_bytes);
    if (status != WAN_OK) return status;
    if (takes_block(log, need)) return WAN_OK;
    /* Makes a few segments at once, so that not each of them needs a manifest. Those that the block needs must succeed:
     * one for the block, and one that is kept. The others may wait. The first segment of a log may be without the one
     * that is kept. */
    uint64_t bytes = wan_log_segment_bytes(log);
    if (need + WAN_LOG_PAGE > bytes) bytes = (need + 2 * WAN_LOG_PAGE - 1) & ~(uint64_t)(WAN_LOG_PAGE - 1);
    uint32_t before = log->count, made = 0;
    for (; status == WAN_OK && !takes_block(log, need); made++) {
        status = add_segment(log, bytes);
        bytes = wan_log_segment_bytes(log);
    }
    for (; status == WAN_OK && made < WAN_LOG_AHEAD; made++) {
        uint32_t room_for = before ? WAN_LOG_AHEAD_ROOM : WAN_LOG_KEPT_ROOM;
        if (wan_log_room(log) < wan_log_segment_bytes(log) * room_for || (!before && log->may_use_reserve)
            || add_segment(log, wan_log_segment_bytes(log)) != WAN_OK)
            break;
    }
    if (status == WAN_OK) status = write_manifest(log, state, state_bytes);
    /* If it is unsure which manifest is on the disk, that manifest may name the new segments. So they stay. */
    if (status == WAN_OK || log->manifest_unsure) return status;
    while (log->count > before) {
        char path[4096];
        segment_path(log, log->segments[log->count - 1].number, path, sizeof path);
        forget_segment(log, --log->count);
        log->env->remove(log->env, path);
    }
    return status;
}

/* Closes the segments before `index`. They are synced, and nothing is written to them any more. */
static void leave_segments(wan_log *log, uint32_t index)
{
    for (uint32_t n = log->writing; n < index; n++) {
        if (log->segments[n].file >= 0) log->env->close(log->env, log->segments[n].file);
        log->segments[n].file = -1;
    }
    log->writing = index;
}

static void note_lost(wan_log *log);

/* An attempt that failed may have left a whole block behind the last one that counts. The commit of that block is now
 * used for another block. So this writes zeros over the head of the left block. */
wan_status wan_log_clean_end(wan_log *log, wan_log_segment *segment)
{
    static const uint8_t zeros[sizeof(wan_block_head)];
    char path[4096];
    segment_path(log, segment->number, path, sizeof path);
    if (room_left(segment) >= sizeof zeros) {
        wan_status status = log->env->write(log->env, segment->file, path, segment->used, zeros, sizeof zeros);
        if (status != WAN_OK) return status;
        status = log->env->sync(log->env, segment->file, path);
        if (status != WAN_OK) {
            note_lost(log);
            return status;
        }
    }
    segment->torn = 0;
    return WAN_OK;
}

static uint64_t gather(uint8_t *to, const void *bytes, uint64_t length)
{
    if (length) memcpy(to, bytes, length);
    return length;
}

/* Copies a whole block to `to`. Returns its length. */
static uint64_t gather_block(uint8_t *to, const wan_block_head *head, const wan_part *parts, uint32_t count)
{
    uint64_t filled = gather(to, head, sizeof *head);
    for (uint32_t k = 0; k < count; k++) {
        filled += gather(to + filled, &parts[k].head, sizeof parts[k].head);
        filled += gather(to + filled, parts[k].first, parts[k].first_length);
        filled += gather(to + filled, parts[k].bytes, parts[k].head.length - parts[k].first_length);
    }
    return filled;
}

#define GATHERED_BYTES (64u << 10) /* A block up to this size is written by one call. */

static wan_status write_block(wan_log *log, const wan_log_segment *segment, const char *path,
                              const wan_block_head *head, const wan_part *parts, uint32_t count)
{
    const wan_env *env = log->env;
    uint64_t at = segment->used + sizeof *head;
    wan_status status = WAN_OK;
    if (sizeof *head + head->length <= GATHERED_BYTES) {
        uint8_t all[GATHERED_BYTES];
        return env->write(env, segment->file, path, segment->used, all, gather_block(all, head, parts, count));
    }
    for (uint32_t k = 0; k < count && status == WAN_OK; k++) {
        const wan_part *part = &parts[k];
        const uint64_t rest = part->head.length - part->first_length;
        status = env->write(env, segment->file, path, at, &part->head, sizeof part->head);
        at += sizeof part->head;
        if (status == WAN_OK && part->first_length)
            status = env->write(env, segment->file, path, at, part->first, part->first_length);
        at += part->first_length;
        if (status == WAN_OK && rest) status = env->write(env, segment->file, path, at, part->bytes, rest);
        at += rest;
    }
    return status == WAN_OK ? env->write(env, segment->file, path, segment->used, head, sizeof *head) : status;
}

/* Syncing. */

/* Everything up to `commit` is on the disk. With it are the first `bytes` bytes of `unsynced`. */
static void note_synced(wan_log *log, uint64_t commit, uint64_t bytes)
{
    log->synced_commit = commit;
    log->unsynced.start += bytes;
    if (log->unsynced.start < log->unsynced.used) return;
    wan_buffer_empty(&log->unsynced);
    wan_buffer_rest(&log->unsynced, &log->unsynced_use, bytes, wan_monotonic_us());
}

/* After a sync that failed, writes all unsynced blocks again from our own copy. The disk may have lost them, and the
 * system's memory may have lost them too. */
static wan_status write_lost_again(wan_log *log)
{
    if (!log->sync_failed) return WAN_OK;
    const wan_log_segment *segment = &log->segments[log->writing];
    const uint64_t bytes = log->unsynced.used - log->unsynced.start;
    char path[4096];
    segment_path(log, segment->number, path, sizeof path);
    return log->env->write(log->env, segment->file, path, segment->used - bytes,
                           log->unsynced.bytes + log->unsynced.start, bytes);
}

/* Notes that a sync failed, and writes the unsynced blocks into the system's memory again at once, as far as the system
 * takes them. Without this the end of the process could lose them now. */
static void note_lost(wan_log *log)
{
    char detail[WAN_DETAIL_BYTES];
    if (log->synced_commit == log->commit) return;
    memcpy(detail, wan_detail, sizeof detail);
    log->sync_failed = 1;
    (void)write_lost_again(log);
    memcpy(wan_detail, detail, sizeof detail);
}

wan_status wan_log_begin_sync(wan_log *log, wan_log_syncing *sync)
{
    if (log->broken) return wan_refuse_broken(log->broken);
    if (log->synced_commit == log->commit || log->for_reading) return WAN_EMPTY;
    const wan_log_segment *segment = &log->segments[log->writing];
    *sync = (wan_log_syncing){.commit = log->commit,
                              .number = segment->number,
                              .bytes = log->unsynced.used - log->unsynced.start,
                              .file = segment->file};
    wan_status status = write_lost_again(log);
    return status;
}

wan_status wan_log_run_sync(const wan_log *log, const wan_log_syncing *sync)
{
    char path[4096];
    segment_path(log, sync->number, path, sizeof path);
    return log->env->sync(log->env, sync->file, path);
}

wan_status wan_log_end_sync(wan_log *log, const wan_log_syncing *sync, wan_status ran)
{
    WAN_CHECK(log, sync->commit > log->synced_commit, WAN_BROKEN);
    log->sync_failed = 0;
    if (ran == WAN_OK) note_synced(log, sync->commit, sync->bytes);
    else note_lost(log);
    return ran;
}

wan_status wan_log_sync(wan_log *log)
{
    wan_log_syncing sync = {0};
    wan_status status = wan_log_begin_sync(log, &sync);
    if (status == WAN_EMPTY) return WAN_OK;
    return status == WAN_OK ? wan_log_end_sync(log, &sync, wan_log_run_sync(log, &sync)) : status;
}

/* Blocks. */

int wan_log_takes(const wan_log *log, uint64_t length)
{
    if (log->broken || log->for_reading || log->manifest_unsure || !log->has_manifest || log->sync_failed
        || log->writing >= end_of_room(log))
        return 0;
    for (uint32_t n = log->writing; n < log->count; n++)
        if (log->segments[n].torn) return 0;
    return room_left(&log->segments[log->writing]) >= length + sizeof(wan_block_head);
}

/* Finds the segment for a block of `need` bytes. After this no other segment holds bytes of an attempt that failed, and
 * the segments before it are synced. */
static wan_status find_segment(wan_log *log, uint64_t need, uint32_t *index)
{
    uint32_t n = log->writing;
    for (; n < log->count && room_left(&log->segments[n]) < need; n++) {
        wan_status status = log->segments[n].torn ? wan_log_clean_end(log, &log->segments[n]) : WAN_OK;
        if (status != WAN_OK) return status;
    }
    /* The caller has made room. */
    WAN_CHECK(log, n < log->count, WAN_BROKEN);
    /* A longer block may have been tried there before. */
    for (uint32_t later = n + 1; later < log->count; later++) {
        wan_status status = log->segments[later].torn ? wan_log_clean_end(log, &log->segments[later]) : WAN_OK;
        if (status != WAN_OK) return status;
    }
    *index = n;
    return n == log->writing ? WAN_OK : wan_log_sync(log);
}

/* The sealed head of the next block, with the checksum of its parts. */
static wan_block_head make_head(const wan_log *log, const wan_log_segment *segment, const wan_part *parts,
                                uint32_t count, uint64_t length)
{
    wan_block_head head = {.magic = BLOCK_MAGIC,
                           .length = (uint32_t)length,
                           .parts = count,
                           .commit = log->commit + 1,
                           .segment = segment->number,
                           .synced = log->synced_commit};
    head.crc = head_crc(&head);
    for (uint32_t k = 0; k < count; k++) {
        const wan_part *part = &parts[k];
        WAN_DEBUG_CHECK(part->first_length <= part->head.length);
        head.crc = wan_crc32c(wan_crc32c(head.crc, &part->head, sizeof part->head), part->first, part->first_length);
        head.crc = wan_crc32c(head.crc, part->bytes, part->head.length - part->first_length);
    }
    head.seal = head_seal(segment->secret, segment->used, &head);
    return head;
}

/* Writes a block, and then either syncs it or keeps a copy of it in `unsynced`. */
static wan_status put_block(wan_log *log, const wan_part *parts, uint32_t count, int syncs, uint32_t *index)
{
    uint64_t length = wan_parts_length(parts, count), need = length + sizeof(wan_block_head);
    uint32_t n;
    if (log->broken) return wan_refuse_broken(log->broken);
    WAN_CHECK(log, length % 8 == 0 && length <= UINT32_MAX, WAN_BROKEN);
    if (log->for_reading) return only_for_reading(log);
    WAN_CHECK(log, !log->manifest_unsure, WAN_BROKEN);
    wan_status status = find_segment(log, need, &n);
    /* The blocks before this one may be lost. They must be on the disk before a block stands behind them. */
    if (status == WAN_OK && log->sync_failed) status = wan_log_sync(log);
    if (status != WAN_OK) return status;
    status = syncs ? WAN_OK : wan_buffer_make_room(&log->unsynced, need, WAN_NO_LIMIT);
    if (status != WAN_OK) return status;
    wan_log_segment *segment = &log->segments[n];
    const wan_block_head head = make_head(log, segment, parts, count, length);
    char path[4096];
    segment_path(log, segment->number, path, sizeof path);
    if (syncs) {
        status = write_block(log, segment, path, &head, parts, count);
    } else {
        uint8_t *copy = log->unsynced.bytes + log->unsynced.used;
        status = log->env->write(log->env, segment->file, path, segment->used, copy,
                                 gather_block(copy, &head, parts, count));
    }
    if (status != WAN_OK) { /* These bytes do not count as used, so the next attempt writes over them. */
        segment->torn = 1;
        return status;
    }
    if (syncs) {
        /* After a sync that failed nobody knows what the disk holds, and no later sync tells. All of it is written
         * again. */
        status = log->env->sync(log->env, segment->file, path);
        if (status != WAN_OK) {
            segment->torn = 1;
            note_lost(log);
            return status;
        }
    } else {
        log->unsynced.used += need;
    }
    leave_segments(log, n);
    segment->used += need;
    segment->torn = 0;
    log->commit++;
    if (syncs) note_synced(log, log->commit, log->unsynced.used - log->unsynced.start);
    if (!segment->first_commit) segment->first_commit = log->commit;
    *index = n;
    return WAN_OK;
}

wan_status wan_log_commit(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *index)
{
    return put_block(log, parts, count, 1, index);
}

wan_status wan_log_write(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *index)
{
    return put_block(log, parts, count, 0, index);
}

wan_status wan_log_drop_first(wan_log *log, uint32_t drop, const uint8_t *state, uint64_t state_bytes)
{
    if (log->broken) return wan_refuse_broken(log->broken);
    WAN_CHECK(log, drop <= log->writing, WAN_BROKEN);
    if (log->for_reading) return only_for_reading(log);
    wan_status status = wan_log_sync(log);
    if (status != WAN_OK) return status;
    wan_log_segment *gone = malloc((drop ? drop : 1) * sizeof *gone);
    if (!gone) return WAN_FAIL(WAN_NO_MEMORY, "no memory to drop segments");
    memcpy(gone, log->segments, drop * sizeof *gone);
    memmove(log->segments, log->segments + drop, (log->count - drop) * sizeof *log->segments);
    log->count -= drop;
    uint64_t first_commit = log->first_commit;
    log->first_commit = log->commit + 1;
    for (uint32_t n = log->count; n--;)
        if (log->segments[n].first_commit) log->first_commit = log->segments[n].first_commit;
    status = write_manifest(log, state, state_bytes);
    /* Everything is as before, and the next attempt drops them. */
    if (status != WAN_OK) {
        log->first_commit = first_commit;
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
        give_room(log, gone[n].bytes);
        free(gone[n].highest);
    }
    free(gone);
    return WAN_OK;
}

wan_status wan_log_write_identity(wan_log *log, const uint8_t *state, uint64_t state_bytes)
{
    if (log->for_reading) return only_for_reading(log);
    if (log->broken) return wan_refuse_broken(log->broken);
    return write_manifest(log, state, state_bytes);
}

wan_status wan_log_seal(wan_log *log, const uint8_t *state, uint64_t state_bytes)
{
    if (log->for_reading) return only_for_reading(log);
    if (log->broken) return wan_refuse_broken(log->broken);
    return log->has_manifest && log->known_commit != log->commit ? write_manifest(log, state, state_bytes) : WAN_OK;
}

void wan_log_close(wan_log *log)
{
    for (uint32_t n = 0; n < log->count; n++) {
        if (log->segments[n].file >= 0) log->env->close(log->env, log->segments[n].file);
        free(log->segments[n].highest);
    }
    wan_buffer_close(&log->identity);
    wan_buffer_close(&log->unsynced);
    free(log->segments);
    free(log->directory);
    memset(log, 0, sizeof *log);
}
