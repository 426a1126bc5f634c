/* Owns how segments are taken, used again, and given back to the system. */
#include "store/wan_store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096u

wan_status wan_store_new(const wan_env *env, const char *directory, uint64_t memory_limit, wan_store **made)
{
    wan_store *store = calloc(1, sizeof *store);
    if (!store) return WAN_FAIL(WAN_NO_MEMORY, "no memory for a store");
    store->env = env;
    const uint64_t least = WAN_SEGMENT_BYTES + WAN_BLOCK_SEGMENT_BYTES;
    store->memory_limit = memory_limit > least ? memory_limit : least;
    store->users = 1;
    store->segment_count = 1; /* Id 0 stands for "none" and has no bytes. */
    store->pages[0] = calloc(WAN_FIRST_SEGMENTS, sizeof *store->pages[0]);
    store->directory = directory ? strdup(directory) : NULL;
    if (!store->pages[0] || (directory && !store->directory)) {
        wan_store_release(store);
        return WAN_FAIL(WAN_NO_MEMORY, "no memory for a store's segments");
    }
    *made = store;
    return WAN_OK;
}

void wan_store_set_limit(wan_store *store, wan_limit *limit)
{
    wan_lock_take(&store->lock);
    store->limit = limit;
    wan_limit_charge(limit, store->memory_bytes);
    wan_lock_release(&store->lock);
}

void wan_store_hold(wan_store *store)
{
    wan_lock_take(&store->lock);
    store->users++;
    wan_lock_release(&store->lock);
}

int wan_store_is_own(wan_store *store)
{
    wan_lock_take(&store->lock);
    int own = store->users == 1;
    wan_lock_release(&store->lock);
    return own;
}

static void release_mapping(wan_store *store, uint8_t *base, uint64_t bytes, int is_file)
{
    if (is_file) store->env->unmap(store->env, base, bytes);
    else munmap(base, bytes);
}

void wan_store_release(wan_store *store)
{
    wan_lock_take(&store->lock);
    uint32_t left = --store->users;
    wan_lock_release(&store->lock);
    if (left) return;
    wan_limit_release(store->limit, store->memory_bytes);
    for (uint32_t id = 1; id < store->segment_count; id++) {
        wan_segment *segment = wan_store_segment(store, id);
        free(segment->runs);
        free(segment->file);
        if (segment->base)
            release_mapping(store, segment->base, segment->bytes, segment->is_file || segment->is_adopted);
    }
    for (uint32_t n = 0; n < store->spare_memory_count; n++) munmap(store->spare_memory[n], WAN_SEGMENT_BYTES);
    for (uint32_t n = 0; n < store->spare_file_count; n++)
        store->env->unmap(store->env, store->spare_files[n], WAN_FILE_SEGMENT_BYTES);
    for (uint32_t n = 0; n < WAN_SEGMENT_PAGES; n++) free(store->pages[n]);
    free(store->free_ids);
    free(store->directory);
    free(store);
}

/* Gives a new id. The list of free ids has room for giving it back. The caller holds the lock, as for all functions
 * below without "wan_". */
static wan_status new_id(wan_store *store, uint32_t *id)
{
    if (store->free_id_count) {
        *id = store->free_ids[--store->free_id_count];
        return WAN_OK;
    }
    if (store->segment_count >= WAN_SEGMENT_IDS)
        return WAN_FAIL(WAN_FULL, "a store holds at most %u segments", WAN_SEGMENT_IDS);
    if (store->segment_count >= store->free_id_capacity) {
        uint32_t capacity = store->free_id_capacity ? store->free_id_capacity * 2 : WAN_FIRST_SEGMENTS;
        uint32_t *free_ids = realloc(store->free_ids, capacity * sizeof *free_ids);
        if (!free_ids) return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " segments", capacity);
        store->free_ids = free_ids;
        store->free_id_capacity = capacity;
    }
    const uint32_t at = store->segment_count + WAN_FIRST_SEGMENTS, page = 31u - (uint32_t)__builtin_clz(at) - 4;
    if (!store->pages[page]) {
        store->pages[page] = calloc(WAN_FIRST_SEGMENTS << page, sizeof *store->pages[page]);
        if (!store->pages[page])
            return WAN_FAIL(WAN_NO_MEMORY, "no memory for %" PRIu32 " segments", WAN_FIRST_SEGMENTS << page);
    }
    *id = store->segment_count++;
    return WAN_OK;
}

static void drop_id(wan_store *store, uint32_t id)
{
    memset(wan_store_segment(store, id), 0, sizeof(wan_segment));
    store->free_ids[store->free_id_count++] = id;
}

static wan_status map_memory(wan_store *store, uint64_t bytes, uint8_t **base)
{
    if (bytes == WAN_SEGMENT_BYTES && store->spare_memory_count) {
        *base = store->spare_memory[--store->spare_memory_count];
        return WAN_OK;
    }
    /* One page fault is enough for a huge page, instead of 512. For that the memory must be aligned to the page's
     * size. */
    const uint64_t page = WAN_SEGMENT_BYTES;
    int huge = bytes >= page;
    uint64_t mapped = huge ? bytes + page : bytes;
    uint8_t *mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return WAN_FAIL(WAN_NO_MEMORY, "no memory for a segment of %" PRIu64 " bytes: %s", bytes, strerror(errno));
    if (huge) {
        uint64_t before = -(uintptr_t)mapping & (page - 1);
        if (before) munmap(mapping, before);
        if (page - before) munmap(mapping + before + bytes, page - before);
        mapping += before;
        madvise(mapping, bytes, MADV_HUGEPAGE);
    }
    *base = mapping;
    return WAN_OK;
}

static wan_status map_file(wan_store *store, uint64_t bytes, uint8_t **base)
{
    if (bytes == WAN_FILE_SEGMENT_BYTES && store->spare_file_count) {
        *base = store->spare_files[--store->spare_file_count];
        return WAN_OK;
    }
    if (!store->directory)
        return WAN_FAIL(WAN_FULL,
                        "the queue's memory limit of %" PRIu64 " bytes is reached and it has no overflow directory",
                        store->memory_limit);
    wan_status status = store->env->map_overflow(store->env, store->directory, bytes, base);
    if (status == WAN_OK) wan_add_guarded(&store->files_made, 1);
    return status;
}

static void free_segment(wan_store *store, uint32_t id);

static void end_lease(wan_store *store, wan_lease *lease)
{
    if (!lease->segment) return;
    wan_segment *segment = wan_store_segment(store, lease->segment);
    segment->is_lent = 0;
    segment->used = lease->used;
    /* The file has the bytes, so the process need not keep them. The pages of a long backlog must not fill memory. */
    if (segment->is_file) madvise(segment->base, segment->bytes, MADV_DONTNEED);
    if (__atomic_sub_fetch(&segment->live, lease->bytes - lease->live, __ATOMIC_ACQ_REL) == 0)
        free_segment(store, lease->segment);
    lease->base = NULL;
    lease->segment = lease->bytes = lease->used = lease->live = 0;
}

void wan_store_end_lease(wan_store *store, wan_lease *lease)
{
    wan_lock_take(&store->lock);
    end_lease(store, lease);
    wan_lock_release(&store->lock);
}

void wan_store_lease_emptied(wan_store *store, wan_lease *lease)
{
    const wan_segment *segment = wan_store_segment(store, lease->segment);
    if (segment->is_file || wan_store_is_over(store)) wan_store_end_lease(store, lease);
    /* The queue writes it again while it is in the cache, unless another queue refers to something in it. */
    else if (__atomic_load_n(&segment->live, __ATOMIC_ACQUIRE) == lease->bytes) lease->used = 0;
}

static wan_status take_new(wan_store *store, wan_lease *lease, uint64_t bytes, uint8_t **at, uint32_t *segment_id)
{
    int is_block = lease->holds_blocks;
    uint64_t size = is_block ? WAN_BLOCK_SEGMENT_BYTES : WAN_SEGMENT_BYTES;
    uint64_t file_size = is_block ? WAN_FILE_BLOCK_BYTES : WAN_FILE_SEGMENT_BYTES;
    if (bytes > size) size = (bytes + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
    const uint64_t memory_size = size;
    int is_file = store->memory_bytes + size > store->memory_limit;
    if (store->directory && wan_limit_is_short(store->limit)) is_file = 1;
    if (is_file && size < file_size) size = file_size;

    uint32_t id = 0;
    wan_status status = new_id(store, &id);
    if (status != WAN_OK) return status;
    uint8_t *base;
    status = is_file ? map_file(store, size, &base) : map_memory(store, size, &base);
    if (status == WAN_FULL && lease->may_pass_limit) {
        is_file = 0;
        size = memory_size;
        status = map_memory(store, size, &base);
    }
    if (status != WAN_OK) {
        drop_id(store, id);
        return status;
    }

    wan_segment *segment = wan_store_segment(store, id);
    segment->base = base;
    segment->bytes = (uint32_t)size;
    segment->used = (uint32_t)bytes;
    segment->live = bytes;
    segment->is_file = (uint8_t)is_file;
    segment->holds_blocks = (uint8_t)is_block;
    wan_add_guarded(is_file ? &store->file_bytes : &store->memory_bytes, size);
    if (!is_file) wan_limit_charge(store->limit, size);
    *at = base;
    *segment_id = id;
    /* There is room for more of the kind, so the segment is lent. A very long record stands alone. */
    if (size - bytes >= bytes) {
        end_lease(store, lease);
        segment->is_lent = 1;
        segment->live = size;
        lease->base = base;
        lease->segment = id;
        lease->bytes = (uint32_t)size;
        lease->used = lease->live = (uint32_t)bytes;
    }
    return WAN_OK;
}

wan_status wan_store_take_new(wan_store *store, wan_lease *lease, uint64_t bytes, uint8_t **at, uint32_t *segment_id)
{
    wan_lock_take(&store->lock);
    wan_status status = take_new(store, lease, bytes, at, segment_id);
    wan_lock_release(&store->lock);
    return status;
}

wan_status wan_store_check(const wan_store *store, const wan_store_span *span)
{
    if (!span->file || !store->env->fetch) return WAN_OK;
    uint64_t from = span->to - span->from > WAN_SPAN_FETCHED_BYTES ? span->to - 1 : span->from;
    return store->env->fetch(store->env, span->file, span->base, span->mapped, from, span->to - from);
}

wan_status wan_store_adopt(wan_store *store, const char *file, const uint8_t *base, uint64_t bytes,
                           uint32_t *segment_id)
{
    if (bytes > WAN_ADOPTED_BYTES_MAX)
        return WAN_FAIL(WAN_FULL,
                        "a file of %" PRIu64 " bytes is too large: the entries of a queue cannot point into it", bytes);
    char *path = strdup(file);
    if (!path) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the name of a file");
    wan_lock_take(&store->lock);
    wan_status status = new_id(store, segment_id);
    if (status == WAN_OK) {
        wan_segment *segment = wan_store_segment(store, *segment_id);
        segment->file = path;
        segment->base = (uint8_t *)base;
        segment->bytes = (uint32_t)bytes;
        /* So nothing unmaps it before all that lives was counted. */
        segment->live = 1;
        segment->is_adopted = 1;
        wan_add_guarded(&store->adopted_bytes, bytes);
    }
    wan_lock_release(&store->lock);
    if (status != WAN_OK) free(path);
    return status;
}

wan_status wan_store_begin_run(wan_segment *segment, uint64_t offset, uint64_t bytes)
{
    if (segment->run_count == segment->run_capacity) {
        uint32_t capacity = segment->run_capacity ? segment->run_capacity * 2 : 8;
        wan_store_run *runs = realloc(segment->runs, capacity * sizeof *runs);
        if (!runs) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the list of records in a file");
        segment->runs = runs;
        segment->run_capacity = capacity;
    }
    segment->used += (uint32_t)bytes;
    wan_add_guarded(&segment->live, bytes);
    segment->runs[segment->run_count++] = (wan_store_run){(uint32_t)offset, (uint32_t)bytes};
    return WAN_OK;
}

void wan_store_adopted(wan_store *store, uint32_t segment_id)
{
    wan_segment *segment = wan_store_segment(store, segment_id);
    /* The file has the bytes. If the store is beyond its limit, the pages come back one by one when they are sent. */
    if (wan_read(&segment->live) > 1
        && wan_read(&store->memory_bytes) + wan_read(&store->adopted_bytes) > store->memory_limit)
        madvise(segment->base, segment->bytes, MADV_DONTNEED);
    if (__atomic_sub_fetch(&segment->live, 1, __ATOMIC_ACQ_REL) == 0) wan_store_emptied(store, segment_id);
}

static void free_segment(wan_store *store, uint32_t id)
{
    wan_segment *segment = wan_store_segment(store, id);
    WAN_DEBUG_CHECK(segment->base && segment->live == 0 && !segment->is_lent);
    uint8_t *base = segment->base;
    uint64_t bytes = segment->bytes;
    int is_file = segment->is_file;
    if (segment->is_adopted) {
        free(segment->runs);
        free(segment->file);
        wan_add_guarded(&store->adopted_bytes, -bytes);
        drop_id(store, id);
        store->env->unmap(store->env, base, bytes);
        return;
    }
    wan_add_guarded(is_file ? &store->file_bytes : &store->memory_bytes, -bytes);
    if (!is_file) wan_limit_release(store->limit, bytes);
    drop_id(store, id);
    if (!is_file && bytes == WAN_SEGMENT_BYTES && store->spare_memory_count < WAN_SPARE_SEGMENTS) {
        store->spare_memory[store->spare_memory_count++] = base;
        return;
    }
    if (is_file && bytes == WAN_FILE_SEGMENT_BYTES && store->file_bytes
        && store->spare_file_count < WAN_SPARE_SEGMENTS) {
        store->spare_files[store->spare_file_count++] = base;
        return;
    }
    release_mapping(store, base, bytes, is_file);
    /* The backlog is gone, and its files go too. */
    if (is_file && !store->file_bytes)
        while (store->spare_file_count)
            store->env->unmap(store->env, store->spare_files[--store->spare_file_count], WAN_FILE_SEGMENT_BYTES);
}

void wan_store_emptied(wan_store *store, uint32_t segment_id)
{
    wan_lock_take(&store->lock);
    free_segment(store, segment_id);
    wan_lock_release(&store->lock);
}
