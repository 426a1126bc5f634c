/* Owns what the writing and the reading of a log share: the layout of the manifest, and the names of files. */
#ifndef WAN_LOG_INNER_H
#define WAN_LOG_INNER_H
#include <stdio.h>

#include "base/wan_crc32c.h"
#include "base/wan_siphash.h"
#include "log/wan_log.h"

#define BLOCK_MAGIC 0x4b425750u /* "PWBK" */
/* More than the longest possible block needs. */
#define SEGMENT_BYTES_MAX ((1ull << 32) + 4 * WAN_LOG_PAGE)
static const char SEGMENT_MAGIC[8] = "PWANSEG";
static const char MANIFEST_MAGIC[8] = "PWANMAN";

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t kind;
    uint64_t log_id;
    uint64_t next_number;
    /* The commit of the newest block when the manifest was written. All blocks up to it must be there. */
    uint64_t commit;
    uint64_t first_commit; /* The commit of the oldest block that counts. */
    /* This many pairs {number, bytes} follow the head, then the owner's identity, then its state. The file may be
     * longer than that. */
    uint32_t segments;
    uint32_t owner_slots;
    uint64_t state_bytes;
    uint32_t identity_bytes;
    uint32_t crc; /* CRC32C of the bytes before this field, continued over everything that follows. */
} manifest_head;
_Static_assert(sizeof(manifest_head) == 72, "the manifest's header is a format");

static inline void path_of(const wan_log *log, const char *name, char *path, size_t room)
{
    snprintf(path, room, "%s/%s", log->directory, name);
}

static inline void segment_path(const wan_log *log, uint64_t number, char *path, size_t room)
{
    snprintf(path, room, "%s/%012" PRIu64 ".seg", log->directory, number);
}

static inline uint32_t head_crc(const wan_block_head *head)
{
    return wan_crc32c(0, &head->length, offsetof(wan_block_head, seal) - offsetof(wan_block_head, length));
}

/* The seal of a head that stands at offset `at` of its file. */
static inline uint64_t head_seal(const uint64_t secret[2], uint64_t at, const wan_block_head *head)
{
    uint8_t sealed[8 + offsetof(wan_block_head, seal)];
    memcpy(sealed, &at, 8);
    memcpy(sealed + 8, head, sizeof sealed - 8);
    return wan_siphash(secret, sealed, sizeof sealed);
}

/* Both are in wan_log.c. The first makes room for `wanted` segments in the list of segments. The second removes the
 * bytes that an attempt that failed left behind a segment's last block. */
wan_status wan_log_grow_segments(wan_log *log, uint32_t wanted);
wan_status wan_log_clean_end(wan_log *log, wan_log_segment *segment);

#endif
