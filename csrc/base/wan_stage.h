/* Owns a run of bytes that grows: what is staged for the disk until a commit takes it. Guarded by its owner's lock. */
#ifndef WAN_STAGE_H
#define WAN_STAGE_H
#include <string.h>

#include "base/wan_base.h"

typedef struct { uint8_t *bytes; uint64_t used, capacity; uint32_t count; } wan_stage;

/* Makes sure that `length` more bytes fit. WAN_NO_MEMORY: nothing changed. */
wan_status wan_stage_reserve(wan_stage *stage, uint64_t length);

/* Copies an item behind the others; it has been reserved for. Returns where it went. */
static inline uint8_t *wan_stage_put(wan_stage *stage, const void *bytes, uint64_t length)
{
    WAN_DEBUG_CHECK(stage->capacity - stage->used >= length);
    uint8_t *to = stage->bytes + stage->used;
    if (length) memcpy(to, bytes, length);      /* Nothing may come from, and go to, nowhere. */
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

#define WAN_STAGE_KEPT_BYTES (1u << 20)     /* An empty stage keeps so much in any case; */
#define WAN_STAGE_KEPT_TIMES 4u             /* more only up to so many times what was in use of late, */
#define WAN_STAGE_LATE_US 1000000u          /* in so long or twice that. */

/* How much of a stage was in use of late: in the time before this one, and so far in this one. */
typedef struct { uint64_t began_us, before, now; } wan_stage_use;

/* Notes that `used` bytes were, and gives back what an empty stage has beyond what it keeps. */
void wan_stage_rest(wan_stage *stage, wan_stage_use *use, uint64_t used, uint64_t now_us);

#endif
