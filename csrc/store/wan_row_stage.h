/* Owns the records of a task until they are applied: runs of them, copied as they came into blocks, and read once in
 * their order; and the memory that all tasks of a member have for that together. Blocks beyond it lie in nameless
 * files. */
#ifndef WAN_ROW_STAGE_H
#define WAN_ROW_STAGE_H
#include "base/wan_env.h"
#include "base/wan_lock.h"
#include "record/wan_record.h"

#define WAN_ROW_STAGE_BLOCK_BYTES (2u << 20)
#define WAN_ROW_STAGE_FILE_BYTES  (32u << 20)
#define WAN_ROW_STAGE_BLOCKS_KEPT 128u /* Empty blocks that the next task takes, as long as there is another task. */

typedef struct {
    const wan_env *env;
    uint64_t memory_limit;
    wan_lock lock;   /* Guards what follows. */
    uint64_t memory; /* Of blocks in use; at most the limit. */
    uint32_t stages; /* That are open. */
    uint32_t kept_count;
    uint8_t *kept[WAN_ROW_STAGE_BLOCKS_KEPT];
} wan_row_stage_pool;

void wan_row_stage_pool_init(wan_row_stage_pool *pool, const wan_env *env, uint64_t memory_limit);

typedef struct wan_row_stage_block {
    struct wan_row_stage_block *next;
    uint8_t *bytes;
    uint64_t size, used, read; /* read <= used <= size. */
    int is_file;
} wan_row_stage_block;

/* One thread at a time. */
typedef struct {
    wan_row_stage_pool *pool;
    char *directory; /* NULL: no files. */
    wan_row_stage_block *first, *last;
} wan_row_stage;

/* WAN_NO_MEMORY: nothing is to be closed. `directory` is copied. */
wan_status wan_row_stage_open(wan_row_stage *stage, wan_row_stage_pool *pool, const char *directory);
void wan_row_stage_close(wan_row_stage *stage);

/* Copies whole records behind one another, `bytes` in all. WAN_FULL (no room on the disk, or no directory),
 * WAN_NO_MEMORY, WAN_IO: some of them may be there; the task has failed. */
wan_status wan_row_stage_add(wan_row_stage *stage, const uint8_t *records, uint64_t bytes);

/* The next records, up to `most`, in their order; 0: there are no more. They stay until they are dropped. */
uint32_t wan_row_stage_peek(const wan_row_stage *stage, uint32_t most, const wan_record **records);

/* Drops the first record. */
void wan_row_stage_drop(wan_row_stage *stage);

#endif
