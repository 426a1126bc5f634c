/* Owns the opening of a log, how its lost end and its damage are found, and the second reading of a segment. */
#include "log/wan_log_inner.h"

#include <stdlib.h>
#include <string.h>

#include "base/wan_file_read.h"

static void note_damage(const wan_log_reader *reader, wan_damage *damage, const char *file, uint64_t offset,
                        const char *reason)
{
    wan_damage noted = {.offset = offset};
    snprintf(noted.file, sizeof noted.file, "%s", file);
    snprintf(noted.reason, sizeof noted.reason, "%s", reason);
    *damage = noted;
    if (reader->damaged) reader->damaged(reader->owner, damage);
}

/* Notes a piece of damage, and refuses it unless salvage skips it. */
static wan_status refuse(const wan_log_reader *reader, wan_damage *damage, const char *file, uint64_t offset,
                         const char *reason)
{
    note_damage(reader, damage, file, offset, reason);
    return reader->salvage
               ? WAN_OK
               : WAN_FAIL(WAN_CORRUPT, "%.300s, offset %" PRIu64 ": %s", damage->file, offset, damage->reason);
}

/* Adds a segment that is on the disk to the list. */
static wan_status know_segment(wan_log *log, uint64_t number, uint64_t bytes)
{
    wan_status status = wan_log_grow_segments(log, log->count + 1);
    if (status != WAN_OK) return status;
    wan_log_segment *segment = &log->segments[log->count];
    *segment = (wan_log_segment){.number = number, .bytes = bytes, .used = WAN_LOG_PAGE, .file = -1};
    segment->highest = calloc(log->owner_slots ? log->owner_slots : 1, sizeof *segment->highest);
    if (!segment->highest) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a segment");
    log->count++;
    log->bytes += bytes;
    return WAN_OK;
}

/* A checksum that holds does not make the numbers true. This looks for numbers that would lead the arithmetic astray.
 * NULL: there are none. */
static const char *contradiction(const manifest_head *head)
{
    const uint64_t *pair = (const uint64_t *)(head + 1);
    if (head->first_commit == 0 || head->commit >> 62 || head->first_commit > head->commit + 1
        || head->next_number >> 56)
        return "the manifest's numbers contradict each other";
    for (uint32_t n = 0; n < head->segments; n++, pair += 2) {
        if (pair[0] <= (n ? pair[-2] : 0) || pair[0] >= head->next_number)
            return "the manifest's segment numbers do not ascend";
        if (pair[1] < WAN_LOG_PAGE || pair[1] > SEGMENT_BYTES_MAX)
            return "the manifest has an impossible size for a segment";
    }
    return NULL;
}

/* No code reads older formats any more. The version that wrote the log has to empty it. */
static wan_status older_format(const char *path, uint32_t version)
{
    return WAN_FAIL(WAN_INVALID,
                    "%.300s is in record format %" PRIu32
                    ", and this version reads format %u only: drain it with the version that wrote it, or move "
                    "its disk store away and begin another one",
                    path, version, WAN_RECORD_FORMAT);
}

/* Reads the manifest if there is one (log->has_manifest says so then). In salvage a damaged manifest counts as none. */
static wan_status read_manifest(wan_log *log, const wan_log_reader *reader, wan_damage *damage, uint64_t *commit)
{
    char path[4096];
    path_of(log, "MANIFEST", path, sizeof path);
    int file;
    uint64_t bytes;
    wan_status status = log->env->open(log->env, path, 0, &file, &bytes);
    if (status == WAN_EMPTY) return WAN_OK; /* The caller checks whether there are segments. */
    if (status != WAN_OK) return status;
    uint8_t *all = NULL;
    const char *wrong = NULL;
    if (bytes < sizeof(manifest_head)
        || bytes > 4 * (sizeof(manifest_head) + WAN_LOG_STATE_BYTES_MAX + WAN_LOG_IDENTITY_BYTES_MAX + (64ull << 20)))
        wrong = "the manifest has an impossible size";
    else if (!(all = malloc(bytes))) status = WAN_FAIL(WAN_NO_MEMORY, "no memory to read %.300s", path);
    else status = log->env->read(log->env, file, path, 0, all, bytes);
    log->env->close(log->env, file);
    if (status != WAN_OK) {
        free(all);
        return status;
    }

    manifest_head *head = (manifest_head *)all;
    uint64_t length = 0;
    if (!wrong) {
        length = sizeof *head + head->segments * 16ull + head->identity_bytes + head->state_bytes;
        if (memcmp(head->magic, MANIFEST_MAGIC, 8) != 0) wrong = "this is no manifest of a log";
        else if (head->version > WAN_RECORD_FORMAT) {
            status = WAN_FAIL(WAN_INVALID,
                              "%.300s was written by a newer version (format %" PRIu32
                              ", this one reads up to %u); upgrade before opening it",
                              path, head->version, WAN_RECORD_FORMAT);
            if (reader->salvage) wrong = "the manifest says that it is of a newer version";
        } else if (head->version == 0 || head->segments > bytes / 16 || head->state_bytes > WAN_LOG_STATE_BYTES_MAX
                   || head->identity_bytes > WAN_LOG_IDENTITY_BYTES_MAX || head->identity_bytes % 8 || length > bytes
                   || head->crc
                          != wan_crc32c(wan_crc32c(0, head, offsetof(manifest_head, crc)), head + 1,
                                        length - sizeof *head))
            wrong = "the manifest's checksum does not hold";
        else if (head->version < WAN_RECORD_FORMAT) status = older_format(path, head->version);
        else if ((wrong = contradiction(head))) {
        } else if (head->kind != log->kind)
            status = WAN_FAIL(WAN_INVALID, "%.300s belongs to a log of kind %" PRIu32 ", not %" PRIu32, path,
                              head->kind, log->kind);
        else if (head->owner_slots != log->owner_slots)
            status = WAN_FAIL(WAN_INVALID,
                              "%.300s was written with %" PRIu32 " partitions, and %" PRIu32
                              " are configured; use the same number, or another directory",
                              path, head->owner_slots, log->owner_slots);
    }
    if (wrong) status = refuse(reader, damage, path, 0, wrong);
    if (wrong || status != WAN_OK) {
        free(all);
        return status;
    }

    log->has_manifest = 1;
    log->id = head->log_id;
    log->next_number = head->next_number;
    log->first_commit = head->first_commit;
    *commit = log->known_commit = head->commit;
    const uint64_t *pair = (const uint64_t *)(head + 1);
    for (uint32_t n = 0; n < head->segments && status == WAN_OK; n++, pair += 2)
        status = know_segment(log, pair[0], pair[1]);
    const uint8_t *behind = (const uint8_t *)(head + 1) + head->segments * 16ull;
    if (status == WAN_OK) status = wan_buffer_add(&log->identity, behind, head->identity_bytes);
    if (status == WAN_OK && reader->state)
        status = reader->state(reader->owner, behind + head->identity_bytes, head->state_bytes);
    if (status == WAN_CORRUPT) {
        char reason[200];
        snprintf(reason, sizeof reason, "%.190s", wan_detail);
        status = refuse(reader, damage, path, sizeof *head + head->segments * 16ull + head->identity_bytes, reason);
    }
    free(all);
    return status;
}

/* The reading of blocks. */

/* Whether the head of a block that this log wrote stands here. `has_secret`: the segment's secret is known, and the
 * seal is checked. In salvage the secret may be lost. */
static int head_is_ours(const wan_log_segment *segment, const uint8_t *all, uint64_t at, uint64_t bytes, int has_secret)
{
    const wan_block_head *head = (const wan_block_head *)(all + at);
    return at + sizeof *head <= bytes && head->magic == BLOCK_MAGIC && head->segment == segment->number
           && (!has_secret || head->seal == head_seal(segment->secret, at, head));
}

static int block_is_whole(const wan_log_segment *segment, const uint8_t *all, uint64_t begin, uint64_t bytes,
                          int has_secret)
{
    const wan_block_head *head = (const wan_block_head *)(all + begin);
    if (!head_is_ours(segment, all, begin, bytes, has_secret) || head->length > bytes - begin - sizeof *head
        || head->length % 8 || head->synced >= head->commit)
        return 0;
    if (wan_crc32c(head_crc(head), head + 1, head->length) != head->crc) return 0;
    uint64_t at = 0;
    for (uint32_t n = 0; n < head->parts; n++) {
        if (head->length - at < sizeof(wan_part_head)) return 0;
        const wan_part_head *part = (const wan_part_head *)((const uint8_t *)(head + 1) + at);
        at += sizeof *part;
        if (part->kind == 0 || part->kind >= WAN_PART_KIND_COUNT || part->length > head->length - at
            || part->length % 8)
            return 0;
        at += part->length;
    }
    return at == head->length;
}

static wan_status read_block(uint32_t index, const wan_log_reader *reader, const wan_block_head *head)
{
    const uint8_t *at = (const uint8_t *)(head + 1);
    wan_status worst = WAN_OK;
    for (uint32_t n = 0; n < head->parts; n++) {
        const wan_part_head *part = (const wan_part_head *)at;
        wan_status status = reader->part(reader->owner, index, head->commit, part, at + sizeof *part);
        if (status == WAN_CORRUPT) worst = status;
        if (status != WAN_OK && !(status == WAN_CORRUPT && reader->salvage)) return status;
        at += sizeof *part + part->length;
    }
    return worst;
}

static void begin_segment(wan_log *log, uint32_t index, const wan_log_reader *reader, wan_file_read *file)
{
    wan_log_segment *segment = &log->segments[index];
    segment_path(log, segment->number, file->path, sizeof file->path);
    wan_file_read_begin(file, log->env, segment->bytes, reader->adopt && !reader->salvage, reader->read_ahead);
}

/* The next offset from `at` on where bytes that are not zero may be. Segments that were made ahead are megabytes of
 * zeros. */
static uint64_t behind_zeros(const uint8_t *all, uint64_t at, uint64_t bytes)
{
    for (; at + 64 <= bytes; at += 64) {
        uint64_t words[8];
        memcpy(words, all + at, sizeof words);
        if (words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]) break;
    }
    return at;
}

/* Whether only zeros lie from `at` on. The caller begins where `behind_zeros` stopped, so this reads only a few
 * bytes. */
static int is_zeros(const uint8_t *all, uint64_t at, uint64_t bytes)
{
    while (at < bytes && !all[at]) at++;
    return at == bytes;
}

/* The bytes behind a block that is not whole. */
typedef struct {
    /* The offset of the next whole block, or of the head that proves the damage. The file's length if there is none. */
    uint64_t next;
    /* A head further behind says that the block was on the disk. */
    int was_synced;
} rest_of_segment;

/* Looks behind a block at `at` that is not whole. The block should have number `commit` + 1. Only a later head that
 * says that the block was synced proves that it was whole once: a power cut keeps some pages of unsynced blocks and
 * loses others. `to_whole`: the function goes on to the next whole block, whatever that one says. */
static rest_of_segment look_behind(const wan_log_segment *segment, const uint8_t *all, uint64_t at, uint64_t bytes,
                                   uint64_t commit, int has_secret, int to_whole)
{
    rest_of_segment rest = {.next = bytes};
    for (uint64_t ahead = at; (ahead = behind_zeros(all, ahead, bytes)) + sizeof(wan_block_head) <= bytes; ahead += 8) {
        if (!head_is_ours(segment, all, ahead, bytes, has_secret)) continue;
        rest.was_synced |= ((const wan_block_head *)(all + ahead))->synced > commit;
        if (to_whole ? !block_is_whole(segment, all, ahead, bytes, has_secret) : !rest.was_synced) continue;
        rest.next = ahead;
        break;
    }
    return rest;
}

/* Hands out the blocks of one segment, in order. *commit is the commit of the block before, and afterwards of the
 * segment's last block. */
static wan_status scan_segment(wan_log *log, uint32_t index, const wan_log_reader *reader, wan_damage *damage,
                               wan_file_read *file, uint64_t *commit)
{
    wan_log_segment *segment = &log->segments[index];
    char reason[200];
    const char *path = file->path;
    segment->used = segment->synced_before = WAN_LOG_PAGE;
    segment->unsynced_crc = 0;
    wan_status status = wan_file_read_end(file);
    if (status == WAN_EMPTY)
        return refuse(reader, damage, path, 0, "the manifest names this segment, and the file is gone");
    if (status == WAN_IO && reader->salvage) return refuse(reader, damage, path, 0, wan_detail);
    if (status != WAN_OK) return status;
    const uint8_t *all = file->bytes;
    uint64_t bytes = file->length;
    if (bytes > segment->bytes) {
        log->bytes += bytes - segment->bytes;
        segment->bytes = bytes;
    }
    if (file->mapped && reader->adopt(reader->owner, index, path, all, bytes)) file->mapped = 0;
    const wan_segment_head *head = (const wan_segment_head *)all;
    int has_secret = 0;
    if (bytes >= WAN_LOG_PAGE && memcmp(head->magic, SEGMENT_MAGIC, 8) == 0 && head->version
        && head->version < WAN_RECORD_FORMAT && head->crc == wan_crc32c(0, head, offsetof(wan_segment_head, crc)))
        return older_format(path, head->version);
    if (bytes < WAN_LOG_PAGE || memcmp(head->magic, SEGMENT_MAGIC, 8) != 0
        || head->crc != wan_crc32c(0, head, offsetof(wan_segment_head, crc)) || head->kind != log->kind
        || head->log_id != log->id || head->number != segment->number) {
        status = refuse(reader, damage, path, 0, "the segment's header is damaged, or it is another log's");
    } else if (head->version > WAN_RECORD_FORMAT) {
        status = WAN_FAIL(WAN_INVALID,
                          "%.300s was written by a newer version (format %" PRIu32
                          ", this one reads up to %u); upgrade before opening it",
                          path, head->version, WAN_RECORD_FORMAT);
    } else {
        memcpy(segment->secret, head->secret, sizeof segment->secret);
        has_secret = 1;
    }
    /* The whole file was reserved before the manifest named it, so no crash leaves a shorter file. */
    if (status == WAN_OK && has_secret && bytes < segment->bytes) {
        snprintf(reason, sizeof reason, "the file ends here, and had %" PRIu64 " bytes", segment->bytes);
        status = refuse(reader, damage, path, bytes, reason);
    }
    for (uint64_t at = WAN_LOG_PAGE; status == WAN_OK && at + sizeof(wan_block_head) <= bytes;) {
        if (!block_is_whole(segment, all, at, bytes, has_secret)) {
            /* This is the lost end or damage. The bytes behind it tell which. */
            const uint64_t zeros_end = behind_zeros(all, at, bytes);
            const rest_of_segment rest =
                look_behind(segment, all, zeros_end, bytes, *commit, has_secret, reader->salvage);
            if (!rest.was_synced && (!reader->salvage || rest.next == bytes)) {
                segment->zeros_behind = bytes == segment->bytes && is_zeros(all, zeros_end, bytes);
                break;
            }
            status = refuse(reader, damage, path, at,
                            rest.was_synced ? "a damaged block: a later block says that it was synced"
                                            : "a block that is not whole, with whole blocks behind it");
            segment->synced_before = at = rest.next;
            continue;
        }
        const wan_block_head *block = (const wan_block_head *)(all + at);
        /* Without a manifest the first block is whatever block is left. */
        if (block->commit != *commit + 1 && (log->has_manifest || *commit)) {
            snprintf(reason, sizeof reason,
                     "blocks are missing before this one: it is number %" PRIu64 ", and number %" PRIu64
                     " should be here",
                     block->commit, *commit + 1);
            status = refuse(reader, damage, path, at, reason);
            if (status != WAN_OK) break;
        }
        status = read_block(index, reader, block);
        if (status == WAN_CORRUPT) {
            snprintf(reason, sizeof reason, "%.190s", wan_detail);
            status = refuse(reader, damage, path, at, reason);
        }
        if (!segment->first_commit) segment->first_commit = block->commit;
        *commit = block->commit;
        at += sizeof *block + block->length;
        segment->used = at;
        while (segment->synced_before < at) {
            const wan_block_head *older = (const wan_block_head *)(all + segment->synced_before);
            if (older->commit > block->synced) break;
            segment->synced_before += sizeof *older + older->length;
        }
    }
    if (segment->synced_before < segment->used)
        segment->unsynced_crc = wan_crc32c(0, all + segment->synced_before, segment->used - segment->synced_before);
    return status;
}

wan_status wan_log_read_segment(wan_log *log, uint32_t index, const wan_log_reader *reader)
{
    wan_damage damage;
    wan_log_segment *segment = &log->segments[index];
    wan_status status = segment->torn && !log->for_reading ? wan_log_clean_end(log, segment) : WAN_OK;
    if (status != WAN_OK) return status;
    wan_file_read *file = calloc(1, sizeof *file);
    if (!file) return WAN_FAIL(WAN_NO_MEMORY, "no memory to read a segment");
    uint64_t used = segment->used, commit = segment->first_commit ? segment->first_commit - 1 : log->commit;
    begin_segment(log, index, reader, file);
    status = scan_segment(log, index, reader, &damage, file, &commit);
    if (status == WAN_OK && segment->used != used)
        status = WAN_FAIL(WAN_CORRUPT,
                          "segment %" PRIu64 " in %.300s was written up to %" PRIu64 ", and reads up to %" PRIu64,
                          segment->number, log->directory, used, segment->used);
    segment->used = used;
    wan_file_read_done(file);
    wan_file_read_close(file);
    free(file);
    return status;
}

/* Writes zeros behind the last whole block, so that new bytes can never join half of an old block. */
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
    return WAN_OK;
}

/* Writes the blocks again that no later block calls synced. We may have read them from the system's memory only: the
 * process that wrote them ended before its sync, or its sync failed. After a sync that failed no later sync writes
 * them. What we take for durable now has to be on the disk. */
static wan_status write_unsynced_again(wan_log *log, const wan_log_segment *segment, const char *path)
{
    uint8_t bytes[65536];
    uint32_t crc = 0;
    for (uint64_t at = segment->synced_before; at < segment->used;) {
        uint64_t length = segment->used - at < sizeof bytes ? segment->used - at : sizeof bytes;
        wan_status status = log->env->read(log->env, segment->file, path, at, bytes, length);
        if (status == WAN_OK) status = log->env->write(log->env, segment->file, path, at, bytes, length);
        if (status != WAN_OK) return status;
        crc = wan_crc32c(crc, bytes, length);
        at += length;
    }
    if (crc != segment->unsynced_crc)
        return WAN_FAIL(WAN_IO, "%.300s: reading it twice gave different bytes behind %" PRIu64, path,
                        segment->synced_before);
    return WAN_OK;
}

typedef struct {
    wan_log *log;
    const wan_log_reader *reader;
    wan_damage *damage;
} file_survey;

/* The segment number of a file in the log's folder. 0: the file is no segment. */
static uint64_t segment_number(const char *name)
{
    uint64_t number = 0;
    int n = 0;
    for (; name[n] >= '0' && name[n] <= '9' && n < 18; n++) number = number * 10 + (uint64_t)(name[n] - '0');
    return n >= 12 && strcmp(name + n, ".seg") == 0 ? number : 0;
}

/* The number of the segment with this file name, if the log does not know it, and its path. 0: it is no segment, or the
 * log knows it. */
static uint64_t unknown_segment(const wan_log *log, const char *name, char *path, size_t room)
{
    uint64_t number = segment_number(name);
    for (uint32_t n = 0; n < log->count; n++)
        if (log->segments[n].number == number) return 0;
    if (number) path_of(log, name, path, room);
    return number;
}

/* Looks at a segment file that the manifest does not name. It was dropped or made ahead when a crash came, unless its
 * number is still to come and it holds bytes. Then a newer manifest than the one here was written with it. */
static wan_status survey_file(void *owner, const char *name)
{
    const file_survey *survey = owner;
    wan_log *log = survey->log;
    char path[4096];
    uint8_t found[65536];
    uint64_t number = unknown_segment(log, name, path, sizeof path), bytes, at = WAN_LOG_PAGE;
    int file, written = 0;
    if (!number) return WAN_OK;
    if (!log->has_manifest)
        return refuse(survey->reader, survey->damage, path, 0, "there is a segment, and no manifest that names it");
    if (number < log->next_number) return WAN_OK;
    wan_status status = log->env->open(log->env, path, 0, &file, &bytes);
    if (status != WAN_OK) return status == WAN_EMPTY ? WAN_OK : status;
    for (; at < bytes && !written && status == WAN_OK; at += sizeof found) {
        status = log->env->read(log->env, file, path, at, found, sizeof found);
        written = status == WAN_OK && (found[0] != 0 || memcmp(found, found + 1, sizeof found - 1) != 0);
    }
    log->env->close(log->env, file);
    if (status != WAN_OK || !written) return status;
    status = refuse(survey->reader, survey->damage, path, WAN_LOG_PAGE, "the manifest is older than this segment");
    return status == WAN_OK ? know_segment(log, number, bytes) : status;
}

/* Removes a segment file that the manifest does not name. Called only after everything that is named was found whole,
 * so that a manifest from elsewhere cannot cost a file. */
static wan_status clear_file(void *owner, const char *name)
{
    wan_log *log = owner;
    char path[4096];
    if (unknown_segment(log, name, path, sizeof path)) log->env->remove(log->env, path);
    return WAN_OK;
}

/* Salvage without a manifest takes every segment file that is there. */
static wan_status adopt_file(void *owner, const char *name)
{
    wan_log *log = ((file_survey *)owner)->log;
    uint64_t number = segment_number(name), bytes;
    char path[4096];
    int file;
    if (!number) return WAN_OK;
    path_of(log, name, path, sizeof path);
    wan_status status = log->env->open(log->env, path, 0, &file, &bytes);
    if (status != WAN_OK) return status == WAN_NO_MEMORY ? status : WAN_OK;
    wan_segment_head head;
    status = log->env->read(log->env, file, path, 0, &head, sizeof head);
    log->env->close(log->env, file);
    if (status == WAN_OK && memcmp(head.magic, SEGMENT_MAGIC, 8) == 0
        && head.crc == wan_crc32c(0, &head, offsetof(wan_segment_head, crc)))
        log->id = head.log_id;
    return know_segment(log, number, bytes);
}

static int by_number(const void *a, const void *b)
{
    uint64_t left = ((const wan_log_segment *)a)->number, right = ((const wan_log_segment *)b)->number;
    return left < right ? -1 : left > right;
}

/* Reads all segments. If the reader allows it, one segment is read while the parts of the one before are handed out. */
static wan_status read_segments(wan_log *log, const wan_log_reader *reader, wan_damage *damage)
{
    wan_file_read *files = calloc(2, sizeof *files);
    if (!files) return WAN_FAIL(WAN_NO_MEMORY, "no memory to read segments");
    wan_status status = WAN_OK;
    uint32_t begun = 0, n;
    for (n = 0; n < log->count && status == WAN_OK; n++) {
        for (; begun < log->count && begun < n + (reader->read_ahead ? 2 : 1); begun++)
            begin_segment(log, begun, reader, &files[begun & 1]);
        status = scan_segment(log, n, reader, damage, &files[n & 1], &log->commit);
        if (log->segments[n].first_commit) log->writing = n;
        if (reader->adopted) reader->adopted(reader->owner, n);
        wan_file_read_done(&files[n & 1]);
    }
    /* The rest is not looked at. */
    for (; n < begun; n++) {
        char detail[WAN_DETAIL_BYTES];
        memcpy(detail, wan_detail, sizeof detail);
        (void)wan_file_read_end(&files[n & 1]);
        memcpy(wan_detail, detail, sizeof detail);
        wan_file_read_done(&files[n & 1]);
    }
    wan_file_read_close(&files[0]);
    wan_file_read_close(&files[1]);
    free(files);
    return status;
}

static wan_status read_all(wan_log *log, const wan_log_reader *reader, wan_damage *damage)
{
    uint64_t newest = 0;
    char path[4096], reason[200];
    file_survey survey = {log, reader, damage};
    wan_status status = read_manifest(log, reader, damage, &newest);
    if (status == WAN_OK && reader->salvage && !log->has_manifest) {
        status = log->env->list(log->env, log->directory, adopt_file, &survey);
    } else if (status == WAN_OK) {
        status = log->env->list(log->env, log->directory, survey_file, &survey);
    }
    if (status != WAN_OK) return status;
    if (!log->has_manifest && log->count && !damage->file[0]) {
        path_of(log, "MANIFEST", path, sizeof path);
        note_damage(reader, damage, path, 0, "the manifest is gone");
    }
    /* Salvage found them in no order. */
    if (log->count) qsort(log->segments, log->count, sizeof *log->segments, by_number);
    if (!log->has_manifest && reader->state) status = reader->state(reader->owner, NULL, 0);
    if (status == WAN_OK && log->has_manifest) log->commit = log->first_commit - 1;
    if (status == WAN_OK) status = read_segments(log, reader, damage);
    if (status == WAN_OK && log->commit < newest) {
        if (log->count) segment_path(log, log->segments[log->writing].number, path, sizeof path);
        else path_of(log, "MANIFEST", path, sizeof path);
        snprintf(reason, sizeof reason,
                 "blocks are missing from here on: they end with number %" PRIu64
                 ", and the manifest knows of %" PRIu64,
                 log->commit, newest);
        status = refuse(reader, damage, path, log->count ? log->segments[log->writing].used : 0, reason);
        log->commit = newest;
    }
    return status;
}

wan_status wan_log_open(wan_log *log, const wan_env *env, const char *directory, uint32_t kind, uint64_t id,
                        uint32_t owner_slots, const wan_log_reader *reader, wan_damage *damage, uint64_t *cut_bytes)
{
    memset(log, 0, sizeof *log);
    memset(damage, 0, sizeof *damage);
    *cut_bytes = 0;
    log->env = env;
    log->kind = kind;
    log->id = id;
    log->owner_slots = owner_slots;
    log->next_number = log->first_commit = 1;
    log->directory = strdup(directory);
    if (!log->directory) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a log");
    wan_status status = read_all(log, reader, damage);
    log->for_reading = reader->salvage != 0;
    if (status == WAN_OK && !reader->salvage) status = log->env->list(log->env, log->directory, clear_file, log);
    for (uint32_t n = log->writing; n < log->count && status == WAN_OK && !reader->salvage; n++) {
        wan_log_segment *segment = &log->segments[n];
        char path[4096];
        uint64_t bytes;
        segment_path(log, segment->number, path, sizeof path);
        status = log->env->open(log->env, path, 1, &segment->file, &bytes);
        if (status == WAN_EMPTY) status = WAN_IO;
        if (status == WAN_OK && !segment->zeros_behind) status = cut_tail(log, segment, path, cut_bytes);
        if (status == WAN_OK && n == log->writing) status = write_unsynced_again(log, segment, path);
        /* The sync is also needed where nothing was written. Another opening may have written the zeros and been
         * killed, so that they are in the system's memory only. */
        if (status == WAN_OK) status = log->env->sync(log->env, segment->file, path);
    }
    log->synced_commit = log->commit;
    /* It is not known either whether the manifest that was found is on the disk. */
    log->manifest_unsure = log->has_manifest;
    if (status != WAN_OK) wan_log_close(log);
    return status;
}
