/* Owns a run of bytes that grows: what is staged for the disk until a commit takes it. Guarded by its owner's lock. */
#ifndef WAN_STAGE_H
#define WAN_STAGE_H
#include <string.h>

#include "wan_base.h"

typedef struct { uint8_t *bytes; uint64_t used, capacity; uint32_t count; } wan_stage;

/* Makes sure that `length` more bytes fit. WAN_NO_MEMORY: nothing changed. */
wan_status wan_stage_reserve(wan_stage *stage, uint64_t length);

/* Copies an item behind the others; it has been reserved for. Returns where it went. */
static inline uint8_t *wan_stage_put(wan_stage *stage, const void *bytes, uint64_t length)
{
    WAN_DEBUG_CHECK(stage->capacity - stage->used >= length);
    uint8_t *to = stage->bytes + stage->used;
    memcpy(to, bytes, length);
    stage->used += length;
    stage->count++;
    return to;
}

static inline wan_status wan_stage_add(wan_stage *stage, const void *bytes, uint64_t length)
{
    wan_status status = stage->capacity - stage->used >= length ? WAN_OK : wan_stage_reserve(stage, length);
    if (status == WAN_OK) wan_stage_put(stage, bytes, length);
    return status;
}

static inline void wan_stage_empty(wan_stage *stage) { stage->used = 0; stage->count = 0; }
void wan_stage_close(wan_stage *stage);

#endif
