/* What writing and reading a log share: the manifest's layout, names of files. */
#ifndef WAN_LOG_INNER_H
#define WAN_LOG_INNER_H
#include <stdio.h>

#include "base/wan_crc32c.h"
#include "base/wan_siphash.h"
#include "log/wan_log.h"

#define BLOCK_MAGIC       0x4b425750u                       /* "PWBK" */
#define SEGMENT_BYTES_MAX ((1ull << 32) + 4 * WAN_LOG_PAGE) /* Around the longest block there can be. */
static const char SEGMENT_MAGIC[8] = "PWANSEG";
static const char MANIFEST_MAGIC[8] = "PWANMAN";

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t kind;
    uint64_t log_id;
    uint64_t next_number;
    uint64_t commit;       /* Of the newest block when it was written: all up to it is to be found. */
    uint64_t first_commit; /* Of the oldest block that counts: the one found first carries it. */
    uint32_t segments; /* That many {number, bytes} pairs follow, then the owner's identity, then its state. The file
                          may be longer. */
    uint32_t owner_slots;
    uint64_t state_bytes;
    uint32_t identity_bytes;
    uint32_t crc; /* CRC32C of the bytes before, continued over all that follows. */
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

/* The seal of a head that stands at `at` of its file. */
static inline uint64_t head_seal(const uint64_t secret[2], uint64_t at, const wan_block_head *head)
{
    uint8_t sealed[8 + offsetof(wan_block_head, seal)];
    memcpy(sealed, &at, 8);
    memcpy(sealed + 8, head, sizeof sealed - 8);
    return wan_siphash(secret, sealed, sizeof sealed);
}

/* wan_log.c: room for `wanted` segments in the list of them; no trace of an attempt that failed behind a segment's last
 * block. */
wan_status wan_log_grow_segments(wan_log *log, uint32_t wanted);
wan_status wan_log_clean_end(wan_log *log, wan_log_segment *segment);

#endif
