/* Owns a run of bytes that grows: what is staged for the disk until a commit takes it, or what came over a connection,
 * or leaves by one. What is in it lies from `start` to `used`; whoever takes from its front raises `start`. Guarded by
 * its owner's lock. */
#ifndef WAN_BUFFER_H
#define WAN_BUFFER_H
#include <string.h>

#include "base/wan_base.h"

typedef struct {
    uint8_t *bytes;       /* 16-aligned. */
    uint64_t start, used; /* start <= used <= capacity. */
    uint64_t capacity;
    uint32_t count; /* Items that were put in, where they are counted. */
} wan_buffer;

wan_status wan_buffer_grow(wan_buffer *buffer, uint64_t length);

/* Takes memory for just `length` bytes, for a buffer that has none: its owner knows how many there will be.
 * WAN_NO_MEMORY: nothing changed. */
wan_status wan_buffer_begin(wan_buffer *buffer, uint64_t length);

/* Makes sure that `length` more bytes fit behind `used`; nothing moves to the front. WAN_NO_MEMORY: nothing changed. */
static inline wan_status wan_buffer_reserve(wan_buffer *buffer, uint64_t length)
{
    return WAN_LIKELY(buffer->capacity - buffer->used >= length) ? WAN_OK : wan_buffer_grow(buffer, length);
}

/* The same for what is taken from the front: what is there moves to it first, and there are never more than `most`
 * bytes. WAN_TOO_LARGE, WAN_NO_MEMORY: nothing changed but that. */
wan_status wan_buffer_make_room(wan_buffer *buffer, uint64_t length, uint64_t most);

/* Copies an item behind the others; it has been reserved for. Returns where it went. */
static inline uint8_t *wan_buffer_put(wan_buffer *buffer, const void *bytes, uint64_t length)
{
    WAN_DEBUG_CHECK(buffer->capacity - buffer->used >= length);
    uint8_t *to = buffer->bytes + buffer->used;
    if (length) memcpy(to, bytes, length); /* Nothing may come from, and go to, nowhere. */
    buffer->used += length;
    buffer->count++;
    return to;
}

static inline wan_status wan_buffer_add(wan_buffer *buffer, const void *bytes, uint64_t length)
{
    wan_status status = wan_buffer_reserve(buffer, length);
    if (status == WAN_OK) wan_buffer_put(buffer, bytes, length);
    return status;
}

static inline void wan_buffer_empty(wan_buffer *buffer)
{
    buffer->start = buffer->used = 0;
    buffer->count = 0;
}
void wan_buffer_close(wan_buffer *buffer);

/* Its content was used; it gives its memory back if that is more than `kept`. */
static inline void wan_buffer_trim(wan_buffer *buffer, uint64_t kept)
{
    wan_buffer_empty(buffer);
    if (WAN_UNLIKELY(buffer->capacity > kept)) wan_buffer_close(buffer);
}

#define WAN_BUFFER_KEPT_BYTES (1u << 20) /* An empty buffer that rests keeps so much in any case; */
#define WAN_BUFFER_KEPT_TIMES 4u         /* more only up to so many times what was in use of late, */
#define WAN_BUFFER_LATE_US    1000000u   /* in so long or twice that. */

/* How much of a buffer was in use of late: in the time before this one, and so far in this one. */
typedef struct {
    uint64_t began_us, before, now;
} wan_buffer_use;

/* Notes that `used` bytes were, and gives back what an empty buffer has beyond what it keeps. */
void wan_buffer_rest(wan_buffer *buffer, wan_buffer_use *use, uint64_t used, uint64_t now_us);

#endif
