/* Owns a run of bytes that grows. It holds what is pending for a log until a commit takes it, or the bytes that came
 * over a connection, or that leave by one. The content lies from `start` to `used`. Who takes from the front raises
 * `start`. The lock of the buffer's owner guards it. */
#ifndef WAN_BUFFER_H
#define WAN_BUFFER_H
#include <string.h>

#include "base/wan_base.h"

typedef struct {
    uint8_t *bytes;       /* Aligned to 16. */
    uint64_t start, used; /* start <= used <= capacity. */
    uint64_t capacity;
    uint32_t count; /* Items that were put in. Only wan_buffer_put and wan_buffer_add count them. */
} wan_buffer;

/* Doubles the memory until `length` more bytes fit behind `used`. WAN_NO_MEMORY: nothing changed. */
wan_status wan_buffer_grow(wan_buffer *buffer, uint64_t length);

/* Takes memory for exactly `length` bytes, for a buffer that has none. It is for an owner that knows how many bytes
 * will come. WAN_NO_MEMORY: nothing changed. */
wan_status wan_buffer_begin(wan_buffer *buffer, uint64_t length);

/* Makes sure that `length` more bytes fit behind `used`. It does not move the content to the front. WAN_NO_MEMORY:
 * nothing changed. */
static inline wan_status wan_buffer_reserve(wan_buffer *buffer, uint64_t length)
{
    return WAN_LIKELY(buffer->capacity - buffer->used >= length) ? WAN_OK : wan_buffer_grow(buffer, length);
}

/* Makes room for `length` more bytes in a buffer from whose front somebody takes. It moves the content to the front
 * first where that is needed, and where enough was taken that a byte is moved a few times at most. The buffer never
 * holds more than `most` bytes. WAN_TOO_LARGE, WAN_NO_MEMORY: nothing else changed. */
wan_status wan_buffer_make_room(wan_buffer *buffer, uint64_t length, uint64_t most);

/* Copies an item behind the others. The caller has reserved the room. Returns where the item lies. */
static inline uint8_t *wan_buffer_put(wan_buffer *buffer, const void *bytes, uint64_t length)
{
    WAN_DEBUG_CHECK(buffer->capacity - buffer->used >= length);
    uint8_t *to = buffer->bytes + buffer->used;
    /* `bytes` may be NULL where `length` is 0, and memcpy does not allow that. */
    if (length) memcpy(to, bytes, length);
    buffer->used += length;
    buffer->count++;
    return to;
}

/* Reserves room for an item and copies it behind the others. WAN_NO_MEMORY: nothing changed. */
static inline wan_status wan_buffer_add(wan_buffer *buffer, const void *bytes, uint64_t length)
{
    wan_status status = wan_buffer_reserve(buffer, length);
    if (status == WAN_OK) wan_buffer_put(buffer, bytes, length);
    return status;
}

/* Drops the content and keeps the memory. */
static inline void wan_buffer_empty(wan_buffer *buffer)
{
    buffer->start = buffer->used = 0;
    buffer->count = 0;
}
/* Drops the content and gives the memory back. The buffer can be used again. */
void wan_buffer_close(wan_buffer *buffer);

/* Empties a buffer whose content was used. The buffer gives its memory back if it has more than `kept` bytes. */
static inline void wan_buffer_trim(wan_buffer *buffer, uint64_t kept)
{
    wan_buffer_empty(buffer);
    if (WAN_UNLIKELY(buffer->capacity > kept)) wan_buffer_close(buffer);
}

/* The part of wan_buffer_shrink that moves the content to smaller memory. */
void wan_buffer_shrink_to(wan_buffer *buffer, uint64_t capacity);

/* Gives memory back if a buffer has more than `kept` bytes, and eight times what its content needs. A long content is
 * copied a few times at most while it becomes short. Without memory for that it stays as it is. */
static inline void wan_buffer_shrink(wan_buffer *buffer, uint64_t kept)
{
    const uint64_t here = buffer->used - buffer->start;
    if (WAN_UNLIKELY(buffer->capacity > kept && buffer->capacity / 8 > here))
        wan_buffer_shrink_to(buffer, here * 2 > kept ? here * 2 : kept);
}

/* A buffer that is empty and not in use keeps up to this many bytes in any case. It keeps more only up to a multiple of
 * what was in use lately. "Lately" means in this period and in the one before. */
#define WAN_BUFFER_KEPT_BYTES (1u << 20)
#define WAN_BUFFER_KEPT_TIMES 4u         /* That multiple. */
#define WAN_BUFFER_LATE_US    1000000ull /* The length of a period. */

/* The most bytes of a buffer that were in use in one moment of the period before (`before`), and so far of this period
 * (`now`). */
typedef struct {
    uint64_t began_us, before, now;
} wan_buffer_use;

/* Notes that `used` bytes were in use. If the buffer is empty now, it gives back the memory that it need not keep. */
void wan_buffer_rest(wan_buffer *buffer, wan_buffer_use *use, uint64_t used, uint64_t now_us);

#endif
