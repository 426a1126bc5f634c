/* Owns a log on the disk. A log has numbered segment files and a manifest. A segment file is a header page with blocks
 * behind it. The manifest says which segments live, and a rename replaces it as a whole. docs/segment_format.md shows
 * all of it byte by byte.
 *
 * Many threads give the log what is pending, in memory. One writer writes all of it as one block (group commit). A
 * block is durable when `wan_log_commit` returns. A block that `wan_log_write` wrote survives the end of the process,
 * and is durable after the next sync. The lock of the log's owner guards what is pending. One thread at a time writes.
 *
 * Invariants:
 *
 * - A block counts only if its checksum holds, and if its head is sealed with the secret of its segment for the place
 *   where it stands. So the bytes of a value are never taken for a block, not even if they are copied from the disk.
 * - Each head says up to which block everything was synced when its block was begun. A block up to there that is not
 *   whole is damage, and never the lost end of the log.
 * - Blocks that are not synced lie in one segment only. A manifest is written when there are none of them.
 * - The commits of the blocks count up by one from the manifest's first commit, and reach at least its newest commit. A
 *   block that is missing between the two is loss, and never a lost end.
 * - The numbers of segments only grow, and no number is used twice.
 * - A segment that the manifest does not name does not count. A segment exists only beside a manifest. */
#ifndef WAN_LOG_H
#define WAN_LOG_H
#include "base/wan_base.h"
#include "base/wan_env.h"
#include "base/wan_buffer.h"

#define WAN_LOG_PAGE 4096ull /* Bytes of a segment's header. */
/* The normal size of a segment. It is this part of the budget where that is less, because several logs have several
 * segments each. */
#define WAN_LOG_SEGMENT_BYTES     (8u << 20)
#define WAN_LOG_SEGMENT_PART      128u
#define WAN_LOG_SEGMENT_BYTES_MIN (64u << 10)
/* Segments that are made, and named in the manifest, before they are needed. */
#define WAN_LOG_AHEAD 2u
/* Segments are made ahead only while the budget has room for this many. */
#define WAN_LOG_AHEAD_ROOM 8u
/* The last segment of a log is kept for records that make the log shorter. It is not kept where the budget has room for
 * fewer segments than this: then the reserve of the budget serves. */
#define WAN_LOG_KEPT_ROOM 32u
/* The most bytes of the owner's state, in the manifest and in checkpoints: 65,535 partitions, and as many names of
 * 1,024 bytes. */
#define WAN_LOG_STATE_BYTES_MAX (72u << 20)
/* The most bytes of the owner's identity, which is in the manifest. */
#define WAN_LOG_IDENTITY_BYTES_MAX (2u << 20)

enum { WAN_LOG_QUEUE = 1, WAN_LOG_REGION = 2 }; /* The kind of the log's owner. */
/* The kinds of parts of a block: new records, holes, the owner's state, records moved out of old segments, and names of
 * regions. */
enum {
    WAN_PART_RECORDS = 1,
    WAN_PART_HOLES,
    WAN_PART_STATE,
    WAN_PART_MOVED,
    WAN_PART_NAMES,
    WAN_PART_PLACES,
    WAN_PART_KIND_COUNT
};

typedef struct {
    char magic[8];    /* "PWANSEG\0" */
    uint32_t version; /* WAN_RECORD_FORMAT when it was written. */
    uint32_t kind;    /* WAN_LOG_QUEUE, ... */
    uint64_t log_id;  /* The id of the log that this segment belongs to. */
    uint64_t number;
    /* Drawn at random when the segment is made. The heads of its blocks are sealed with it. */
    uint64_t secret[2];
    uint32_t reserved;
    uint32_t crc; /* CRC32C of the bytes before this field. */
} wan_segment_head;

/* The head of a block. A block is one commit: everything that was pending when the commit took it, in parts. */
typedef struct {
    uint32_t magic; /* "PWBK" */
    /* CRC32C of the header behind this field and before the seal, continued over the payload. */
    uint32_t crc;
    uint32_t length; /* Bytes of the payload, which is the parts. A multiple of 8. */
    uint32_t parts;
    uint64_t commit;  /* Counts up by one from block to block, over segments and restarts. */
    uint64_t segment; /* The number of the segment. */
    /* All blocks up to this commit were on the disk when this block was begun. Less than `commit`. */
    uint64_t synced;
    /* SipHash-2-4 with the segment's secret, over the offset of the block in its file (8 bytes) and the header before
     * this field. */
    uint64_t seal;
} wan_block_head;

/* The head of a part. `length` bytes follow it, a multiple of 8. */
typedef struct {
    uint32_t kind;  /* WAN_PART_* */
    uint32_t count; /* Items in the part. */
    uint64_t length;
} wan_part_head;

/* A part for writing. Its bytes are `first_length` bytes at `first`, then the rest of head.length at `bytes`. */
typedef struct {
    wan_part_head head;
    const uint8_t *bytes;
    const uint8_t *first;
    uint64_t first_length;
} wan_part;

_Static_assert(sizeof(wan_segment_head) == 56 && sizeof(wan_block_head) == 48 && sizeof(wan_part_head) == 16,
               "what heads segments, blocks and parts is a format");

typedef struct {
    uint64_t number;
    uint64_t secret[2];    /* The secret in the segment's header. */
    uint64_t bytes;        /* Bytes of the file. */
    uint64_t used;         /* Blocks were written up to this offset. */
    uint64_t first_commit; /* The commit of its oldest block. 0: it has no block. */
    /* When the log was opened, the blocks before this offset were synced, as a later block says. */
    uint64_t synced_before;
    /* The CRC32C of what was read from `synced_before` to `used`. */
    uint32_t unsynced_crc;
    uint8_t zeros_behind; /* When the log was opened, only zeros were behind `used`. */
    uint8_t torn;         /* Behind `used` may be bytes of an attempt that failed. */
    /* -1: not open. Only the segment in writing and those made ahead are open. */
    int file;
    /* For each partition the highest sequence in this segment (`owner_slots` numbers). The owner raises it. */
    uint64_t *highest;
} wan_log_segment;

/* The bytes that the logs of a disk store may take in one of its directories, all logs together. This must hold
 * (decision 0014): a log that is mostly history can always be shortened, whatever the other logs took. So a store is
 * never full of bytes that nobody needs. */
typedef struct {
    uint64_t limit;          /* The most bytes of all segment files. A part of them is the reserve. */
    uint64_t used;           /* Bytes that the logs take, also logs that are not open. Atomic. */
    uint32_t reserve_in_use; /* 1: a log uses all of the reserve. Only one log at a time may do so. Atomic. */
} wan_log_budget;
/* The reserve: this many of the WAN_LOG_PARTS parts of the budget. It is kept for work that needs about as much room as
 * it gives back afterwards. Two of these parts serve failed events that are to leave their queue, and changes of a
 * region that make its log shorter (`may_use_reserve`). All of them serve one log that moves what lives out of its old
 * segments, or that takes back parked events
 * (`uses_reserve`). */
#define WAN_LOG_RESERVE_PARTS 3u
#define WAN_LOG_PARTS         16u /* A record takes at most one part. */

typedef struct {
    const wan_env *env;
    char *directory;
    uint32_t kind;
    uint64_t id;
    /* Numbers that the owner keeps for each segment (`highest`): one for each partition of a queue. */
    uint32_t owner_slots;
    wan_log_budget *budget;  /* Shared with other logs. NULL: only the disk limits the log. */
    uint8_t may_use_reserve; /* The log may always use the reserve but for one part. */
    /* The log may use all of the reserve now. Set between wan_log_take_reserve and wan_log_give_back_reserve. */
    uint8_t uses_reserve;
    uint8_t disk_is_full; /* The disk had no room for the segment that was to be made last. */
    /* The live segments, in ascending order. The one at index `writing` takes blocks, and those behind it are empty. */
    wan_log_segment *segments;
    uint32_t count, capacity, writing;
    uint64_t next_number;   /* The number of the next segment. */
    uint64_t commit;        /* The commit of the newest block. */
    uint64_t synced_commit; /* The commit of the newest block that is certainly on the disk. */
    /* A copy of the blocks behind `synced_commit`. They end at `used` of the segment in writing. */
    wan_buffer unsynced;
    wan_buffer_use unsynced_use; /* How much of `unsynced` was in use lately. */
    uint64_t known_commit;       /* The newest commit that the manifest knows of. */
    uint64_t first_commit;       /* The commit of the oldest block that counts. */
    uint64_t bytes;              /* Bytes of all segment files. */
    /* The owner's identity, which goes into every manifest. It is as it was found, until the owner changes it. */
    wan_buffer identity;
    uint8_t has_manifest; /* There is a manifest on the disk. */
    /* The first check of our own that failed, or NULL. The log writes nothing from then on. */
    const wan_breakage *broken;
    /* It is not known which manifest the disk holds. The log writes a manifest before anything else. */
    uint8_t manifest_unsure;
    /* A sync failed. Nobody knows what the disk holds of `unsynced`, and no later sync tells. All of it is written
     * again. */
    uint8_t sync_failed;
    uint8_t for_reading; /* The log was opened for salvage, and nothing is written. */
} wan_log;

/* A piece of damage, for the report. */
typedef struct {
    char file[4096];
    uint64_t offset;
    char reason[200];
} wan_damage;

typedef struct {
    void *owner; /* The first argument of all calls below. */
    /* Takes one part of a whole block. The parts come in the order in which they were written. Any status but WAN_OK
     * ends the opening; in salvage WAN_CORRUPT does not. */
    wan_status (*part)(void *owner, uint32_t segment_index, uint64_t commit, const wan_part_head *head,
                       const uint8_t *bytes);
    /* Takes the owner's state from the manifest, before any block. A new log has none: NULL and 0. */
    wan_status (*state)(void *owner, const uint8_t *bytes, uint64_t length);
    /* If set, the opening takes whatever is whole instead of refusing damage, with or without a manifest. It changes
     * nothing on the disk, and the log is then for reading only. `damaged` (may be NULL) gets each piece of damage. */
    int salvage;
    /* Optional. Called before the parts of a segment that is mapped, so that they need not be copied. The owner returns
     * 1 if it takes the mapping over, and unmaps it later. */
    int (*adopt)(void *owner, uint32_t segment_index, const char *path, const uint8_t *base, uint64_t bytes);
    /* Optional. Called once for every segment, after the last part of it that was handed out. */
    void (*adopted)(void *owner, uint32_t segment_index);
    int read_ahead; /* Another thread may fetch the next segment while the parts of one are handed out. */
    void (*damaged)(void *owner, const wan_damage *damage);
} wan_log_reader;

/* Opens the log in `directory`, which exists. Makes a new log with `id` if the directory has none. Cuts a lost end off.
 * *cut_bytes is then how many bytes of it were not zero. WAN_CORRUPT with *damage: there is damage in the middle.
 * WAN_INVALID: the log is of another kind or version. WAN_IO, WAN_FULL: the system refused. If the result is not
 * WAN_OK, nothing that counts was changed. */
wan_status wan_log_open(wan_log *log, const wan_env *env, const char *directory, uint32_t kind, uint64_t id,
                        uint32_t owner_slots, const wan_log_reader *reader, wan_damage *damage, uint64_t *cut_bytes);
/* Frees the memory and closes the files. It writes nothing. */
void wan_log_close(wan_log *log);
/* From now on the log takes its room from `budget`. The budget lives longer than the log, and counts `known` bytes of
 * the log already. */
void wan_log_share(wan_log *log, wan_log_budget *budget, uint64_t known, int may_use_reserve);

/* Lets the log use all of the reserve of its budget until it gives the reserve back. Returns 0 if another log uses it;
 * the caller tries again later. */
int wan_log_take_reserve(wan_log *log);
/* Ends that use. What was written stays. */
void wan_log_give_back_reserve(wan_log *log);
/* From here on the log may use the reserve but for one part, or may not any more. */
static inline void wan_log_allow_reserve(wan_log *log, int may) { log->may_use_reserve = may != 0; }
/* The bytes that the log could take while it uses the reserve: all free room of the budget. */
uint64_t wan_log_reserve_room(const wan_log *log);
/* The longest record that the log takes. It fits, in a segment of its own, into the reserve of the budget. */
uint64_t wan_log_record_bytes(const wan_log *log);

/* Writes the parts as one block, and syncs it. When this returns WAN_OK the block is durable. Otherwise nothing of it
 * counts. *segment is the index of the segment that took the block; the caller raises its `highest`. The caller has
 * made room (wan_log_make_room). */
wan_status wan_log_commit(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *segment);
/* The same without the sync. The block survives the end of this process, but not a power cut before the next sync. A
 * power cut may take away this block, and then also all blocks behind it. If the block begins a new segment, this call
 * syncs the blocks of the earlier segment first. WAN_NO_MEMORY: there is no memory for the copy that is needed if a
 * later sync fails. */
wan_status wan_log_write(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *segment);
/* Whether a block of `length` bytes needs only one write to one file, and nothing else before it. */
int wan_log_takes(const wan_log *log, uint64_t length);
/* Syncs. When this returns WAN_OK, everything that was written is durable. */
wan_status wan_log_sync(wan_log *log);

/* The same in three steps, so that other threads can write blocks while the disk syncs. Only the middle step takes
 * long, and it reads nothing of the log that changes. The segment stays open meanwhile. Between the first and the last
 * step only `wan_log_write` may be called, with a block for which `wan_log_takes` is true. */
typedef struct {
    uint64_t commit; /* The sync covers all blocks up to this one. */
    uint64_t number; /* The number of their segment. */
    uint64_t bytes;  /* Their bytes in `unsynced`. */
    int file;        /* The handle of their segment. */
} wan_log_syncing;
/* WAN_EMPTY: everything is synced already. */
wan_status wan_log_begin_sync(wan_log *log, wan_log_syncing *sync);
/* The middle step: lets the disk sync. */
wan_status wan_log_run_sync(const wan_log *log, const wan_log_syncing *sync);
/* The last step: notes what is synced now. `ran` is the result of the middle step, and this returns it. */
wan_status wan_log_end_sync(wan_log *log, const wan_log_syncing *sync, wan_status ran);
/* The payload of a block with these parts, in bytes. */
uint64_t wan_parts_length(const wan_part *parts, uint32_t count);
/* The normal size of a segment. It is smaller where the budget is small, so that each log has several segments and can
 * be shortened. */
uint64_t wan_log_segment_bytes(const wan_log *log);
/* The bytes that the logs of the budget may still take without the reserve. WAN_NO_LIMIT: there is no limit. */
uint64_t wan_log_room(const wan_log *log);
/* The most bytes that a block should have, unless one item is longer. Two such blocks fit into a segment. So segments
 * keep one size, and can be dropped one by one. */
uint64_t wan_log_block_bytes(const wan_log *log);
/* Makes sure that a block of `length` bytes fits without another manifest. It may write a manifest, with `state`; what
 * the state says must be durable. */
wan_status wan_log_make_room(wan_log *log, uint64_t length, const uint8_t *state, uint64_t state_bytes);
/* Drops the `drop` oldest segments. It writes a manifest with `state`, which is durable then, and removes their files.
 * This also works where the log or the disk is full, because room for the manifest is kept. */
wan_status wan_log_drop_first(wan_log *log, uint32_t drop, const uint8_t *state, uint64_t state_bytes);
/* Writes a manifest now. When this returns WAN_OK, the identity is durable. `state` as above. */
wan_status wan_log_write_identity(wan_log *log, const uint8_t *state, uint64_t state_bytes);
/* Writes a manifest at a regular end. The manifest then knows the newest block, so that even a loss of the last blocks
 * is noticed. `state` as above. */
wan_status wan_log_seal(wan_log *log, const uint8_t *state, uint64_t state_bytes);
/* Calls `reader->part` again for every part of one segment. The caller moves what lives out of it. */
wan_status wan_log_read_segment(wan_log *log, uint32_t index, const wan_log_reader *reader);

#endif
