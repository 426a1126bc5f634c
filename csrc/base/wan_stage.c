/* Growing of staged bytes. */
#include "base/wan_stage.h"

#include <stdlib.h>

#include "base/wan_memory.h"

wan_status wan_stage_reserve(wan_stage *stage, uint64_t length)
{
    if (stage->capacity - stage->used >= length) return WAN_OK;
    uint64_t capacity = stage->capacity ? stage->capacity : 65536;
    while (capacity - stage->used < length) capacity *= 2;
    uint8_t *grown = realloc(stage->bytes, capacity);
    if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory to stage %" PRIu64 " bytes for the disk", capacity);
    stage->bytes = grown;
    stage->capacity = capacity;
    return WAN_OK;
}

void wan_stage_rest(wan_stage *stage, wan_stage_use *use, uint64_t used, uint64_t now_us)
{
    if (now_us - use->began_us >= WAN_STAGE_LATE_US) {
        use->before = now_us - use->began_us < 2 * WAN_STAGE_LATE_US ? use->now : 0;
        use->began_us = now_us;
        use->now = 0;
    }
    if (used > use->now) use->now = used;
    uint64_t most = WAN_STAGE_KEPT_TIMES * (use->now > use->before ? use->now : use->before);
    if (stage->used == 0 && stage->capacity > WAN_STAGE_KEPT_BYTES && stage->capacity > most) wan_stage_close(stage);
}

void wan_stage_close(wan_stage *stage)
{
    wan_memory_note_freed(stage->capacity);
    free(stage->bytes);
    memset(stage, 0, sizeof *stage);
}
