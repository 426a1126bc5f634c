/* Growing of staged bytes. */
#include "wan_stage.h"

#include <stdlib.h>

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

void wan_stage_close(wan_stage *stage)
{
    free(stage->bytes);
    memset(stage, 0, sizeof *stage);
}
