/* Owns how buffers grow, and how they give memory back. */
#include "base/wan_buffer.h"

#include <stdlib.h>

#include "base/wan_memory.h"

wan_status wan_buffer_begin(wan_buffer *buffer, uint64_t length)
{
    buffer->bytes = malloc(length ? length : 1);
    if (!buffer->bytes) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a buffer of %" PRIu64 " bytes", length);
    buffer->capacity = length;
    return WAN_OK;
}

wan_status wan_buffer_grow(wan_buffer *buffer, uint64_t length)
{
    uint64_t capacity = buffer->capacity ? buffer->capacity : 65536;
    while (capacity - buffer->used < length) capacity *= 2;
    uint8_t *grown = realloc(buffer->bytes, capacity);
    if (!grown) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a buffer of %" PRIu64 " bytes", capacity);
    buffer->bytes = grown;
    buffer->capacity = capacity;
    return WAN_OK;
}

wan_status wan_buffer_make_room(wan_buffer *buffer, uint64_t length, uint64_t most)
{
    if (buffer->capacity - buffer->used >= length) return WAN_OK;
    const uint64_t here = buffer->used - buffer->start;
    if (length > most - here) return WAN_FAIL(WAN_TOO_LARGE, "a buffer of more than %" PRIu64 " bytes", most);
    if (buffer->start && (buffer->start >= here / 4 || buffer->capacity > most / 2)) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, here);
        buffer->start = 0;
        buffer->used = here;
    }
    return wan_buffer_reserve(buffer, length);
}

void wan_buffer_shrink_to(wan_buffer *buffer, uint64_t capacity)
{
    const uint64_t here = buffer->used - buffer->start;
    uint8_t *fresh = malloc(capacity);
    if (!fresh) return;
    memcpy(fresh, buffer->bytes + buffer->start, here);
    wan_memory_note_freed(buffer->capacity);
    free(buffer->bytes);
    buffer->bytes = fresh;
    buffer->start = 0;
    buffer->used = here;
    buffer->capacity = capacity;
}

void wan_buffer_rest(wan_buffer *buffer, wan_buffer_use *use, uint64_t used, uint64_t now_us)
{
    if (now_us - use->began_us >= WAN_BUFFER_LATE_US) {
        use->before = now_us - use->began_us < 2 * WAN_BUFFER_LATE_US ? use->now : 0;
        use->began_us = now_us;
        use->now = 0;
    }
    if (used > use->now) use->now = used;
    uint64_t most = WAN_BUFFER_KEPT_TIMES * (use->now > use->before ? use->now : use->before);
    if (buffer->used == 0 && buffer->capacity > WAN_BUFFER_KEPT_BYTES && buffer->capacity > most)
        wan_buffer_close(buffer);
}

void wan_buffer_close(wan_buffer *buffer)
{
    wan_memory_note_freed(buffer->capacity);
    free(buffer->bytes);
    memset(buffer, 0, sizeof *buffer);
}
