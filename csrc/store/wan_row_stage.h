/* Owns the row stage: the records of a Spark task, until they are applied. The records are copied as they came, into
 * blocks, and read once in their order. All tasks of a member share a limit on the memory of these blocks. Blocks
 * beyond the limit lie in files without names, and so do new blocks while the member has more than half of its limit of
 * memory. */
#ifndef WAN_ROW_STAGE_H
#define WAN_ROW_STAGE_H
#include "base/wan_env.h"
#include "base/wan_limit.h"
#include "base/wan_lock.h"
#include "record/wan_record.h"

#define WAN_ROW_STAGE_BLOCK_BYTES (2u << 20)
#define WAN_ROW_STAGE_FILE_BYTES  (32u << 20)
/* Empty blocks that the pool keeps for the next task, as long as any task is open. */
#define WAN_ROW_STAGE_BLOCKS_KEPT 128u

typedef struct {
    const wan_env *env;
    uint64_t memory_limit; /* The most bytes of blocks in memory, of all tasks together. */
    wan_limit *limit;      /* Of the member, which counts the blocks in memory. NULL: there is none. */
    wan_lock lock;         /* Guards the fields below. */
    uint64_t memory;       /* Bytes of blocks in use. At most the limit. */
    uint32_t stages;       /* Open row stages. */
    uint32_t kept_count;
    uint8_t *kept[WAN_ROW_STAGE_BLOCKS_KEPT]; /* The empty blocks that the pool keeps. */
} wan_row_stage_pool;

/* Begins a pool without blocks. `limit` NULL: the member has no limit of memory. */
void wan_row_stage_pool_init(wan_row_stage_pool *pool, const wan_env *env, uint64_t memory_limit, wan_limit *limit);

typedef struct wan_row_stage_block {
    struct wan_row_stage_block *next;
    uint8_t *bytes;
    uint64_t size, used, read; /* read <= used <= size. */
    int is_file;               /* The block lies in a mapped file. */
} wan_row_stage_block;

/* The rows of one task. One thread at a time uses it. */
typedef struct {
    wan_row_stage_pool *pool;
    char *directory; /* The directory for files of blocks. NULL: there are no files. */
    wan_row_stage_block *first, *last;
} wan_row_stage;

/* Opens a row stage. It copies `directory`. WAN_NO_MEMORY: there is nothing to close. */
wan_status wan_row_stage_open(wan_row_stage *stage, wan_row_stage_pool *pool, const char *directory);
/* Drops all rows. A stage that could not be opened may be closed too. */
void wan_row_stage_close(wan_row_stage *stage);

/* Adds whole records, which lie one behind the other and have `bytes` bytes in all. WAN_FULL (no room on the disk, or
 * no directory), WAN_NO_MEMORY, WAN_IO: some of them may have been added, and the task has failed. */
wan_status wan_row_stage_add(wan_row_stage *stage, const uint8_t *records, uint64_t bytes);

/* Finds the next records in their order, up to `most` of them. Returns how many; 0: there are no more. They stay until
 * they are dropped. */
uint32_t wan_row_stage_peek(const wan_row_stage *stage, uint32_t most, const wan_record **records);

/* Drops the first record, so that the next peek begins behind it. */
void wan_row_stage_drop(wan_row_stage *stage);

#endif
