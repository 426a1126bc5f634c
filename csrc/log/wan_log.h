/* Owns a log on disk: numbered segment files, each a header page and blocks behind it; and the manifest, which says
 * which segments live and is replaced as a whole by rename. docs/segment_format.md shows all of it byte by byte.
 *
 * What is staged (in memory, by many) is written as blocks by one writer: group commit. A block is durable when
 * `wan_log_commit` returns. One that `wan_log_write` wrote survives the end of the process, and is durable after the
 * next sync. Staging is guarded by the owner's lock; writing belongs to one thread at a time.
 *
 * Invariants: a block counts only if its checksum holds and its head is sealed with the secret of its segment, for the
 * place where it stands: no bytes that a value holds are ever taken for a block, be they copied from the disk; each
 * head says up to which block all was synced when it was begun, so a block up to there that is not whole is damage, and
 * never the lost end of the log; blocks that are not synced are in one segment only, and a manifest is written when
 * there are none; the commits of the blocks count up by one from the manifest's first, and reach its newest: what is
 * missing between is loss, never a lost end; the segments' numbers only grow and are never used twice; what a manifest
 * does not name does not exist; a segment is there only beside a manifest. */
#ifndef WAN_LOG_H
#define WAN_LOG_H
#include "base/wan_base.h"
#include "base/wan_env.h"
#include "base/wan_buffer.h"

#define WAN_LOG_PAGE 4096u /* The header of a segment. */
#define WAN_LOG_SEGMENT_BYTES                                                                                          \
    (8u << 20) /* That part of the budget where that is less: several logs have some each.                             \
                */
#define WAN_LOG_SEGMENT_PART      128u
#define WAN_LOG_SEGMENT_BYTES_MIN (64u << 10)
#define WAN_LOG_AHEAD             2u /* Segments made and named in the manifest before they are needed, */
#define WAN_LOG_AHEAD_ROOM        8u /* while there is room for so many. */
#define WAN_LOG_STATE_BYTES_MAX                                                                                        \
    (72u << 20) /* Of the owner's state in the manifest and in checkpoints: 65,535 partitions, and as many names of    \
                   1,024 bytes. */
#define WAN_LOG_IDENTITY_BYTES_MAX (2u << 20) /* Of what the owner says of itself in the manifest. */

enum { WAN_LOG_QUEUE = 1, WAN_LOG_REGION = 2 }; /* Whose log it is. */
enum { WAN_PART_RECORDS = 1, WAN_PART_HOLES, WAN_PART_STATE, WAN_PART_MOVED, WAN_PART_NAMES, WAN_PART_KIND_COUNT };

typedef struct {
    char magic[8]; /* "PWANSEG\0" */
    uint32_t version;
    uint32_t kind;   /* WAN_LOG_QUEUE, ... */
    uint64_t log_id; /* Of the log this segment belongs to. */
    uint64_t number;
    uint64_t secret[2]; /* Drawn when the segment is made: what the heads of its blocks are sealed with. */
    uint32_t reserved;
    uint32_t crc; /* CRC32C of the bytes before. */
} wan_segment_head;

typedef struct {     /* One commit: all that was staged when it was taken, in parts. */
    uint32_t magic;  /* "PWBK" */
    uint32_t crc;    /* CRC32C of the header behind this field, up to the seal, continued over the payload. */
    uint32_t length; /* Payload bytes, a multiple of 8: the parts. */
    uint32_t parts;
    uint64_t commit;  /* Counts up by one from block to block, over segments and restarts. */
    uint64_t segment; /* Number of the segment. */
    uint64_t synced;  /* All blocks up to this commit were on the disk when this one was begun; below `commit`. */
    uint64_t seal;    /* SipHash-2-4, by the segment's secret, of where in the file the block begins (8 bytes) and of
                       * the header before this field. */
} wan_block_head;

typedef struct {    /* Followed by `length` bytes, a multiple of 8. */
    uint32_t kind;  /* WAN_PART_* */
    uint32_t count; /* Items in it. */
    uint64_t length;
} wan_part_head;

/* Its bytes are `first_length` at `first`, then the rest of head.length at `bytes`. */
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
    uint64_t secret[2];    /* As its head says. */
    uint64_t bytes;        /* Of the file. */
    uint64_t used;         /* Up to where blocks were written. */
    uint64_t first_commit; /* Of its oldest block; 0: it has none. */
    uint64_t
        synced_before;     /* When the log was opened: the blocks before this place were synced, as a later one says. */
    uint32_t unsynced_crc; /* Of what was read from there to `used`. */
    uint8_t zeros_behind;  /* When the log was opened: nothing but zeros was behind `used`. */
    uint8_t torn;          /* Behind `used` may lie what an attempt that failed left. */
    int file;              /* -1: not open. Only the segment in writing and those ahead are. */
    uint64_t *highest;     /* Owner's: per partition the highest sequence in this segment (`owner_slots` of them). */
} wan_log_segment;

/* What the logs of a disk store may take in one of its directories, all together. What must hold (decision 0014): a log
 * that is mostly history can always be shortened, whoever took the rest, so a store is never full of what nobody needs.
 */
typedef struct {
    uint64_t limit;          /* Bytes of their segment files, of which a part is kept. */
    uint64_t used;           /* Also by logs that are not open. Atomic. */
    uint32_t reserve_in_use; /* A log is making way: the kept part serves one of them at a time. Atomic. */
} wan_log_budget;
/* So many parts of WAN_LOG_PARTS are kept for what lets others leave, and takes about as much as goes afterwards: of
 * these all but one for events that failed and are to leave their queue, and all for what lives and is moved out of old
 * segments, or was parked and goes back. */
#define WAN_LOG_RESERVE_PARTS 3u
#define WAN_LOG_PARTS         16u /* A record takes one of them at most. */

typedef struct {
    const wan_env *env;
    char *directory;
    uint32_t kind;
    uint64_t id;
    uint32_t owner_slots;
    wan_log_budget *budget;    /* Shared with others; NULL: no limit but the disk's. */
    uint8_t may_use_reserve;   /* All but one part, always. */
    uint8_t uses_reserve;      /* All, now: between wan_log_take_reserve and wan_log_give_back_reserve. */
    wan_log_segment *segments; /* Live, ascending; [writing] takes blocks, those behind it are empty. */
    uint32_t count, capacity, writing;
    uint64_t next_number;
    uint64_t commit;        /* Of the newest block. */
    uint64_t synced_commit; /* Of the newest block that is certainly on the disk. */
    wan_buffer unsynced;    /* The blocks behind that one, which end at `used` of the segment in writing. */
    wan_buffer_use unsynced_use;
    uint64_t known_commit; /* The newest that the manifest knows of. */
    uint64_t first_commit; /* Of the oldest block that counts. */
    uint64_t bytes;        /* Of all segment files. */
    wan_buffer identity;   /* What the owner says of itself, in every manifest as it is here: as it was found, until the
                              owner changes it. */
    uint8_t has_manifest;  /* There is a manifest. */
    const wan_breakage
        *broken; /* Where a check of our own failed first; NULL: none did. Nothing is written from then on. */
    uint8_t manifest_unsure; /* Which manifest the disk holds is not known: one is written before anything else. */
    uint8_t sync_failed; /* A sync failed: nobody knows what the disk holds of `unsynced`, and no later sync tells. All
                     of it is written again. */
    uint8_t for_reading; /* Opened for salvage: nothing is written. */
} wan_log;

typedef struct { /* Where damage was found, for the report. */
    char file[4096];
    uint64_t offset;
    char reason[200];
} wan_damage;

typedef struct {
    void *owner;
    /* One part of a whole block: called in the order of writing. Returning anything but WAN_OK ends the opening. */
    wan_status (*part)(void *owner, uint32_t segment_index, uint64_t commit, const wan_part_head *head,
                       const uint8_t *bytes);
    /* Owner's state out of the manifest, before any block. NULL, 0 for a new log. */
    wan_status (*state)(void *owner, const uint8_t *bytes, uint64_t length);
    /* Takes whatever is whole instead of refusing, with or without a manifest, and changes nothing on the disk: the log
     * is then for reading. `damaged` (may be NULL) hears of each piece of damage. */
    int salvage;
    /* Optional: called before the parts of a segment that is mapped, which need not be copied: true if the owner takes
     * the mapping over, and unmaps it some day. */
    int (*adopt)(void *owner, uint32_t segment_index, const char *path, const uint8_t *base, uint64_t bytes);
    /* All of that segment has been handed out that will be. Called for every one. */
    void (*adopted)(void *owner, uint32_t segment_index);
    int read_ahead; /* One segment may be fetched by another thread while the one before it is handed out. */
    void (*damaged)(void *owner, const wan_damage *damage);
} wan_log_reader;

/* Opens the log in `directory`, which exists; makes a new one with `id` if it is empty. Cuts a lost end. WAN_CORRUPT
 * with *damage for damage in the middle; WAN_INVALID for a log of another kind or version; WAN_IO, WAN_FULL: the system
 * refused. Whatever it returns but WAN_OK, nothing that counts was changed. */
wan_status wan_log_open(wan_log *log, const wan_env *env, const char *directory, uint32_t kind, uint64_t id,
                        uint32_t owner_slots, const wan_log_reader *reader, wan_damage *damage, uint64_t *cut_bytes);
void wan_log_close(wan_log *log);
/* From now on the log takes its room out of a budget, which outlives it and counts `known` bytes of it already. */
void wan_log_share(wan_log *log, wan_log_budget *budget, uint64_t known, int may_use_reserve);

/* What is written from now on may take the part of the budget that is kept. False: another log does so, try again
 * later. */
int wan_log_take_reserve(wan_log *log);
void wan_log_give_back_reserve(wan_log *log);
uint64_t wan_log_reserve_room(const wan_log *log); /* How much that would be now, with all else there is room for. */
/* The longest record that the log takes: it fits, in a segment of its own, into what the budget keeps. */
uint64_t wan_log_record_bytes(const wan_log *log);

/* Writes the parts as one block and makes it durable: it is, when this returns WAN_OK. Otherwise nothing of it counts.
 * *segment: index of the segment written to, whose `highest` is the caller's to raise. The caller has made room. */
wan_status wan_log_commit(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *segment);
/* The same without the sync: the block survives the end of this process, but no power cut before the next sync. A power
 * cut takes away this block or not, and with it all blocks behind it. Syncs only what is in an earlier segment, where
 * the block begins a new one. WAN_NO_MEMORY: there is none for the copy that a failing sync would need. */
wan_status wan_log_write(wan_log *log, const wan_part *parts, uint32_t count, uint32_t *segment);
/* Whether a block of `length` can be written with one write to one file, without anything else before. */
int wan_log_takes(const wan_log *log, uint64_t length);
/* All that was written is durable when this returns WAN_OK. */
wan_status wan_log_sync(wan_log *log);

/* The same in three steps, so that others write blocks while the disk syncs: only the middle one takes its time, and
 * touches nothing of the log that changes. The segment stays open meanwhile: between the first step and the last
 * nothing but `wan_log_write` of a block that the log takes is called. */
typedef struct {
    uint64_t commit, number, bytes;
    int file;
} wan_log_syncing; /* Up to which commit; of which segment; how much of `unsynced`. */
wan_status wan_log_begin_sync(wan_log *log, wan_log_syncing *sync); /* WAN_EMPTY: all is synced. */
wan_status wan_log_run_sync(const wan_log *log, const wan_log_syncing *sync);
wan_status wan_log_end_sync(wan_log *log, const wan_log_syncing *sync, wan_status ran);
uint64_t wan_parts_length(const wan_part *parts, uint32_t count);
/* The normal size of a segment; smaller where the logs may not be large, so that each can be shortened. */
uint64_t wan_log_segment_bytes(const wan_log *log);
/* How far the logs that share its budget are from what they may take, but for the kept parts. WAN_NO_LIMIT: there is no
 * limit. */
uint64_t wan_log_room(const wan_log *log);
/* What a block should not be longer than, unless one item is: two fit into a segment, so segments stay of one size and
 * can go one by one. */
uint64_t wan_log_block_bytes(const wan_log *log);
/* Makes sure that a block of `length` fits without a new manifest in between; may write one (with `state`, which has to
 * be durable). */
wan_status wan_log_make_room(wan_log *log, uint64_t length, const uint8_t *state, uint64_t state_bytes);
/* Drops the `drop` oldest segments: a new manifest with `state`, which is durable with it, then their files. Also where
 * the log is full, or the disk: room for the manifest is kept. */
wan_status wan_log_drop_first(wan_log *log, uint32_t drop, const uint8_t *state, uint64_t state_bytes);
/* Writes a manifest now: the identity is durable when this returns WAN_OK. `state` as above. */
wan_status wan_log_write_identity(wan_log *log, const uint8_t *state, uint64_t state_bytes);
/* At a regular end: the manifest comes to know the newest block, so that not even the last ones can go missing
 * unnoticed. `state` as above. */
wan_status wan_log_seal(wan_log *log, const uint8_t *state, uint64_t state_bytes);
/* Calls `reader->part` for every part of one segment again: for moving what lives out of it. */
wan_status wan_log_read_segment(wan_log *log, uint32_t index, const wan_log_reader *reader);

#endif
