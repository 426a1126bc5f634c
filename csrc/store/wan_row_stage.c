/* Owns the blocks of rows of a row stage, in memory and in files. */
#include "store/wan_row_stage.h"

#include <stdlib.h>
#include <string.h>

void wan_row_stage_pool_init(wan_row_stage_pool *pool, const wan_env *env, uint64_t memory_limit, wan_limit *limit)
{
    memset(pool, 0, sizeof *pool);
    pool->env = env;
    pool->memory_limit = memory_limit;
    pool->limit = limit;
}

wan_status wan_row_stage_open(wan_row_stage *stage, wan_row_stage_pool *pool, const char *directory)
{
    memset(stage, 0, sizeof *stage);
    if (directory && !(stage->directory = strdup(directory)))
        return WAN_FAIL(WAN_NO_MEMORY, "no memory for the rows of a task");
    stage->pool = pool;
    wan_lock_take(&pool->lock);
    pool->stages++;
    wan_lock_release(&pool->lock);
    return WAN_OK;
}

/* Whether the member has half of its memory left. Staged rows must not take the memory that they need when they are
 * applied: then none of them could be. */
static int has_ample_memory(const wan_limit *limit)
{
    return !limit || (!wan_limit_is_short(limit) && wan_limit_used(limit) < limit->limit / 2);
}

/* Memory for a block, perhaps that of an earlier block. NULL: there is none, the pool's limit is reached, or there is a
 * directory and the member has little memory. */
static uint8_t *take_memory(wan_row_stage_pool *pool, uint64_t size, int has_files)
{
    uint8_t *bytes = NULL;
    wan_lock_take(&pool->lock);
    const int may = pool->memory + size <= pool->memory_limit && (!has_files || has_ample_memory(pool->limit));
    if (may) pool->memory += size;
    if (may && size == WAN_ROW_STAGE_BLOCK_BYTES && pool->kept_count) bytes = pool->kept[--pool->kept_count];
    wan_lock_release(&pool->lock);
    if (!may || bytes) return bytes;
    bytes = malloc(size);
    if (bytes) {
        wan_limit_charge(pool->limit, size);
        return bytes;
    }
    wan_lock_take(&pool->lock);
    pool->memory -= size;
    wan_lock_release(&pool->lock);
    return NULL;
}

static void free_memory(wan_row_stage_pool *pool, uint8_t *bytes, uint64_t size)
{
    wan_limit_release(pool->limit, size);
    free(bytes);
}

static void give_memory(wan_row_stage_pool *pool, uint8_t *bytes, uint64_t size)
{
    wan_lock_take(&pool->lock);
    pool->memory -= size;
    const int is_kept = size == WAN_ROW_STAGE_BLOCK_BYTES && pool->kept_count < WAN_ROW_STAGE_BLOCKS_KEPT
                        && has_ample_memory(pool->limit);
    if (is_kept) pool->kept[pool->kept_count++] = bytes;
    wan_lock_release(&pool->lock);
    if (!is_kept) free_memory(pool, bytes, size);
}

static wan_status add_block(wan_row_stage *stage, uint64_t least)
{
    wan_row_stage_pool *pool = stage->pool;
    wan_status status = WAN_OK;
    wan_row_stage_block *block = calloc(1, sizeof *block);
    if (!block) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the rows of a task");
    block->size = least > WAN_ROW_STAGE_BLOCK_BYTES ? least : WAN_ROW_STAGE_BLOCK_BYTES;
    block->bytes = take_memory(pool, block->size, stage->directory != NULL);
    if (!block->bytes) {
        block->is_file = 1;
        block->size = least > WAN_ROW_STAGE_FILE_BYTES ? least : WAN_ROW_STAGE_FILE_BYTES;
        status = stage->directory ? pool->env->map_overflow(pool->env, stage->directory, block->size, &block->bytes)
                                  : WAN_FAIL(WAN_FULL,
                                             "the rows of tasks take all of their %" PRIu64
                                             " bytes, and there is no directory for more",
                                             pool->memory_limit);
    }
    if (status != WAN_OK) {
        free(block);
        return status;
    }
    if (stage->last) stage->last->next = block;
    else stage->first = block;
    stage->last = block;
    return WAN_OK;
}

static void remove_block(wan_row_stage *stage)
{
    wan_row_stage_block *block = stage->first;
    stage->first = block->next;
    if (!stage->first) stage->last = NULL;
    if (block->is_file) stage->pool->env->unmap(stage->pool->env, block->bytes, block->size);
    else give_memory(stage->pool, block->bytes, block->size);
    free(block);
}

void wan_row_stage_close(wan_row_stage *stage)
{
    wan_row_stage_pool *pool = stage->pool;
    if (!pool) return;
    while (stage->first) remove_block(stage);
    free(stage->directory);
    wan_lock_take(&pool->lock);
    if (--pool->stages == 0)
        while (pool->kept_count) free_memory(pool, pool->kept[--pool->kept_count], WAN_ROW_STAGE_BLOCK_BYTES);
    wan_lock_release(&pool->lock);
    memset(stage, 0, sizeof *stage);
}

/* The most bytes of whole records that fit into `room`. */
static uint64_t whole_records(const uint8_t *records, uint64_t bytes, uint64_t room)
{
    uint64_t whole = 0;
    if (bytes <= room) return bytes;
    for (;;) {
        const uint64_t next = whole + wan_record_length((const wan_record *)(records + whole));
        if (next > room) return whole;
        whole = next;
    }
}

wan_status wan_row_stage_add(wan_row_stage *stage, const uint8_t *records, uint64_t bytes)
{
    while (bytes) {
        wan_row_stage_block *block = stage->last;
        const uint64_t some = block ? whole_records(records, bytes, block->size - block->used) : 0;
        if (some == 0) {
            wan_status status = add_block(stage, wan_record_length((const wan_record *)records));
            if (status != WAN_OK) return status;
            continue;
        }
        memcpy(block->bytes + block->used, records, some);
        block->used += some;
        records += some;
        bytes -= some;
    }
    return WAN_OK;
}

uint32_t wan_row_stage_peek(const wan_row_stage *stage, uint32_t most, const wan_record **records)
{
    const wan_row_stage_block *block = stage->first;
    uint32_t count = 0;
    if (!block) return 0;
    for (uint64_t at = block->read; count < most && at < block->used; count++) {
        records[count] = (const wan_record *)(block->bytes + at);
        at += wan_record_length(records[count]);
    }
    return count;
}

void wan_row_stage_drop(wan_row_stage *stage)
{
    wan_row_stage_block *block = stage->first;
    block->read += wan_record_length((const wan_record *)(block->bytes + block->read));
    WAN_DEBUG_CHECK(block->read <= block->used);
    if (block->read == block->used) remove_block(stage);
}
