/* Owns how a whole file is mapped or read, by the caller or by a thread of its own. */
#include "base/wan_file_read.h"

#include <stdlib.h>
#include <string.h>

/* Zeros behind the end of what was read. A reader may look there for a header that a cut file lacks. */
#define ZEROS 4096u

static wan_status own_room(wan_file_read *read)
{
    if (read->own_room >= read->length + ZEROS) return WAN_OK;
    free(read->own);
    read->own_room = (read->length + ZEROS + 63) & ~(uint64_t)63;
    read->own = aligned_alloc(64, read->own_room);
    if (read->own) return WAN_OK;
    read->own_room = 0;
    return WAN_FAIL(WAN_NO_MEMORY, "no memory to read %.300s", read->path);
}

static wan_status fetch(wan_file_read *read)
{
    int file;
    uint8_t *mapping;
    wan_status status = read->env->open(read->env, read->path, 0, &file, &read->length);
    if (status != WAN_OK) return status;
    if (read->map && read->env->map_file && read->length == read->expected
        && read->env->map_file(read->env, file, read->length, &mapping) == WAN_OK) {
        read->bytes = mapping;
        read->mapped = 1;
    } else {
        /* The file has another length, or cannot be mapped. Reading it gives the reason, or succeeds. */
        status = own_room(read);
        if (status == WAN_OK) status = read->env->read(read->env, file, read->path, 0, read->own, read->length);
        if (status == WAN_OK) memset(read->own + read->length, 0, ZEROS);
        read->bytes = read->own;
    }
    read->env->close(read->env, file);
    return status;
}

static void *fetch_in_thread(void *argument)
{
    wan_file_read *read = argument;
    read->status = fetch(read);
    /* The detail belongs to this thread, and the caller may be another one. */
    if (read->status != WAN_OK) memcpy(read->detail, wan_detail, sizeof read->detail);
    return NULL;
}

void wan_file_read_begin(wan_file_read *read, const wan_env *env, uint64_t expected, int map, int in_thread)
{
    read->env = env;
    read->expected = expected;
    read->map = map;
    read->threaded = in_thread && pthread_create(&read->thread, NULL, fetch_in_thread, read) == 0;
    if (!read->threaded) fetch_in_thread(read);
}

wan_status wan_file_read_end(wan_file_read *read)
{
    if (read->threaded) pthread_join(read->thread, NULL);
    read->threaded = 0;
    if (read->status != WAN_OK) memcpy(wan_detail, read->detail, sizeof read->detail);
    return read->status;
}

void wan_file_read_done(wan_file_read *read)
{
    if (read->mapped) read->env->unmap(read->env, (uint8_t *)read->bytes, read->length);
    read->mapped = 0;
    read->bytes = NULL;
}

void wan_file_read_close(wan_file_read *read)
{
    free(read->own);
    read->own = NULL;
    read->own_room = 0;
}
