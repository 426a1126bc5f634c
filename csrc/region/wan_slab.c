/* Owns pieces of equal size, and the blocks that are halved to get them. */
#include "region/wan_slab.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#    include <sanitizer/asan_interface.h>
#    define FORBID(at, bytes) ASAN_POISON_MEMORY_REGION((at), (bytes))
#    define ALLOW(at, bytes)  ASAN_UNPOISON_MEMORY_REGION((at), (bytes))
#else
#    define FORBID(at, bytes) ((void)0)
#    define ALLOW(at, bytes)  ((void)0)
#endif

/* A block is divided into units. A piece is a run of units whose number is a power of two: 1 << its order. */
#define BLOCK_BYTES ((uint64_t)2 << 20)
#define UNIT_BYTES  ((uint64_t)2 << 10)
#define UNITS       (BLOCK_BYTES / UNIT_BYTES)
#define PIECE_ORDER 4u /* 32 KB. */
#define PIECE_BYTES (UNIT_BYTES << PIECE_ORDER)
/* Huge pages are asked for from this number of blocks on. A table of few entries touches only few pages of a block, and
 * should not take more. */
#define HUGE_FROM_BLOCKS 4u
#define IS_FREE          0x80u
#define INNER            0xffu /* A unit at which no piece begins. */

/* The head of a free piece of a block. */
struct wan_slab_free {
    wan_slab_free *next, **to_this; /* The list of free pieces of its order. */
};

/* The description of a block. It lies in the block's first unit. */
struct wan_slab_block {
    wan_slab_block *next;      /* The next one in the list of all blocks. */
    wan_slab_block *next_idle; /* The next one in the list of blocks without memory. */
    uint32_t used_units;       /* Units in use, without the first one. */
    /* For each unit: the order of the piece that begins there, with IS_FREE if it is free. Otherwise INNER. */
    uint8_t begins[UNITS];
};
_Static_assert(sizeof(wan_slab_block) <= UNIT_BYTES, "a block's first unit describes it");

/* The head of a piece that is cut into small ones. It lies at the beginning of the piece. */
struct wan_slab_piece {
    wan_slab_piece *next, **to_this; /* The list of pieces of its stripe and size that have room. */
    void *free;            /* The small pieces that were given back. Each holds the address of the next one. */
    uint32_t used, cut;    /* Small pieces that are in use, and that were ever taken from it. */
    uint32_t count, bytes; /* Small pieces that fit into it, and the bytes of each. */
    uint32_t stripe;       /* The stripe that it belongs to. */
    _Alignas(64) uint8_t first[];
};
_Static_assert(offsetof(wan_slab_piece, first) == 64, "what is cut from a piece keeps to cache lines");

/* An array that is mapped on its own. */
typedef struct mapped_array {
    struct mapped_array *next;
    void *mapping;
    uint64_t bytes;
    int in_use;
} mapped_array;

wan_status wan_slab_init(wan_slab *slab)
{
    memset(slab, 0, sizeof *slab);
    slab->stripes = calloc(WAN_SLAB_STRIPES, sizeof *slab->stripes);
    return slab->stripes ? WAN_OK : WAN_FAIL(WAN_NO_MEMORY, "no memory for a region's table");
}

void wan_slab_set_limit(wan_slab *slab, wan_limit *limit)
{
    WAN_DEBUG_CHECK(!slab->blocks && !slab->mapped && !slab->large_bytes);
    slab->limit = limit;
}

void wan_slab_close(wan_slab *slab)
{
    wan_limit_release(slab->limit, wan_slab_bytes(slab));
    for (wan_slab_block *block = slab->blocks, *next; block; block = next) {
        next = block->next;
        ALLOW(block, BLOCK_BYTES);
        munmap(block, BLOCK_BYTES);
    }
    for (mapped_array *array = slab->mapped, *next; array; array = next) {
        next = array->next;
        munmap(array->mapping, array->bytes);
        free(array);
    }
    free(slab->stripes);
    memset(slab, 0, sizeof *slab);
}

/* Maps address space that begins at a multiple of BLOCK_BYTES. */
static void *map_blocks(uint64_t bytes)
{
    uint8_t *at = mmap(NULL, bytes + BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    uint8_t *aligned = (uint8_t *)(((uintptr_t)at + BLOCK_BYTES - 1) & ~(uintptr_t)(BLOCK_BYTES - 1));
    if (aligned > at) munmap(at, (size_t)(aligned - at));
    uint64_t behind = (uint64_t)(at + bytes + BLOCK_BYTES - (aligned + bytes));
    if (behind) munmap(aligned + bytes, behind);
    return aligned;
}

static inline wan_slab_block *block_of(void *at)
{
    return (wan_slab_block *)((uintptr_t)at & ~(uintptr_t)(BLOCK_BYTES - 1));
}
static inline uint64_t unit_of(const void *at) { return ((uintptr_t)at & (BLOCK_BYTES - 1)) / UNIT_BYTES; }

static void add_free(wan_slab *slab, void *at, uint32_t order)
{
    wan_slab_free *piece = at;
    ALLOW(piece, sizeof *piece);
    piece->next = slab->free[order];
    piece->to_this = &slab->free[order];
    if (piece->next) piece->next->to_this = &piece->next;
    slab->free[order] = piece;
    block_of(at)->begins[unit_of(at)] = (uint8_t)(order | IS_FREE);
}

static void remove_free(wan_slab_free *piece)
{
    *piece->to_this = piece->next;
    if (piece->next) piece->next->to_this = piece->to_this;
}

/* Makes a whole block free, except its first unit: one piece of each order. */
static void free_whole(wan_slab *slab, wan_slab_block *block)
{
    memset(block->begins, INNER, sizeof block->begins);
    block->used_units = 0;
    for (uint32_t order = 0; order < WAN_SLAB_ORDERS; order++)
        add_free(slab, (uint8_t *)block + (UNIT_BYTES << order), order);
}

static int add_block(wan_slab *slab)
{
    wan_slab_block *block = slab->idle ? slab->idle : map_blocks(BLOCK_BYTES);
    if (!block) return 0;
    /* This comes before the first write: the system gives a huge page only where it gave no small one. */
    if (++slab->block_count > HUGE_FROM_BLOCKS) madvise(block, BLOCK_BYTES, MADV_HUGEPAGE);
    if (block == slab->idle) {
        slab->idle = block->next_idle;
    } else {
        block->next = slab->blocks;
        slab->blocks = block;
    }
    free_whole(slab, block);
    wan_limit_charge(slab->limit, BLOCK_BYTES);
    return 1;
}

/* Gives the pages of a block back when nothing of it is in use. The block stays mapped, because a reader without a lock
 * may still look there. */
static void idle(wan_slab *slab, wan_slab_block *block)
{
    for (uint32_t order = 0; order < WAN_SLAB_ORDERS; order++)
        remove_free((wan_slab_free *)((uint8_t *)block + (UNIT_BYTES << order)));
    madvise(block, BLOCK_BYTES, MADV_NOHUGEPAGE);
    madvise((uint8_t *)block + 4096, BLOCK_BYTES - 4096, MADV_DONTNEED);
    block->next_idle = slab->idle;
    slab->idle = block;
    slab->block_count--;
    wan_limit_release(slab->limit, BLOCK_BYTES);
}

/* The caller holds the slab's lock. */
static void *take_piece(wan_slab *slab, uint32_t order)
{
    WAN_DEBUG_CHECK(order < WAN_SLAB_ORDERS);
    uint32_t from = order;
    while (from < WAN_SLAB_ORDERS && !slab->free[from]) from++;
    if (from == WAN_SLAB_ORDERS) {
        if (!add_block(slab)) return NULL;
        from = order; /* A new block begins with a free piece of each order. */
    }
    wan_slab_free *piece = slab->free[from];
    remove_free(piece);
    wan_slab_block *block = block_of(piece);
    if (block == slab->spare) slab->spare = NULL;
    /* Its upper half becomes free. */
    for (; from > order; from--) add_free(slab, (uint8_t *)piece + (UNIT_BYTES << (from - 1)), from - 1);
    block->begins[unit_of(piece)] = (uint8_t)order;
    block->used_units += 1u << order;
    return piece;
}

static void give_piece(wan_slab *slab, void *at, uint32_t order)
{
    wan_slab_block *block = block_of(at);
    WAN_DEBUG_CHECK(block->begins[unit_of(at)] == order);
    block->used_units -= 1u << order;
    uint64_t unit = unit_of(at);
    for (; order < WAN_SLAB_ORDERS - 1; order++) {
        uint64_t buddy = unit ^ (uint64_t)1 << order;
        if (block->begins[buddy] != (order | IS_FREE)) break;
        remove_free((wan_slab_free *)((uint8_t *)block + buddy * UNIT_BYTES));
        block->begins[unit > buddy ? unit : buddy] = INNER;
        if (buddy < unit) unit = buddy;
    }
    add_free(slab, (uint8_t *)block + unit * UNIT_BYTES, order);
    if (block->used_units) return;
    if (slab->spare) idle(slab, block);
    else slab->spare = block;
}

void wan_slab_drop_spare(wan_slab *slab)
{
    wan_lock_take(&slab->lock);
    if (slab->spare) idle(slab, slab->spare);
    slab->spare = NULL;
    wan_lock_release(&slab->lock);
}

static inline uint32_t class_of(uint32_t bytes) { return (bytes + WAN_SLAB_STEP_BYTES - 1) / WAN_SLAB_STEP_BYTES - 1; }

static void open_piece(wan_slab_stripe *stripe, wan_slab_piece *piece)
{
    wan_slab_piece **first = &stripe->open[class_of(piece->bytes)];
    piece->next = *first;
    piece->to_this = first;
    if (piece->next) piece->next->to_this = &piece->next;
    *first = piece;
}

static void shut_piece(wan_slab_piece *piece)
{
    *piece->to_this = piece->next;
    if (piece->next) piece->next->to_this = piece->to_this;
}

static wan_slab_piece *cut_piece(wan_slab *slab, uint32_t number, uint32_t bytes)
{
    wan_lock_take(&slab->lock);
    wan_slab_piece *piece = take_piece(slab, PIECE_ORDER);
    wan_lock_release(&slab->lock);
    if (!piece) return NULL;
    ALLOW(piece, sizeof *piece);
    piece->free = NULL;
    piece->used = piece->cut = 0;
    piece->bytes = bytes;
    piece->count = (uint32_t)(PIECE_BYTES - sizeof *piece) / bytes;
    piece->stripe = number;
    FORBID(piece->first, PIECE_BYTES - sizeof *piece);
    return piece;
}

int wan_slab_has_room(wan_slab *slab, uint32_t number, uint32_t bytes)
{
    wan_slab_stripe *stripe = &slab->stripes[number % WAN_SLAB_STRIPES];
    wan_lock_take(&stripe->lock);
    int has = stripe->open[class_of(bytes)] != NULL;
    wan_lock_release(&stripe->lock);
    if (has) return 1;
    wan_lock_take(&slab->lock);
    for (uint32_t order = PIECE_ORDER; order < WAN_SLAB_ORDERS && !has; order++) has = slab->free[order] != NULL;
    wan_lock_release(&slab->lock);
    return has;
}

void *wan_slab_take(wan_slab *slab, uint32_t number, uint32_t bytes)
{
    wan_slab_stripe *stripe = &slab->stripes[number % WAN_SLAB_STRIPES];
    uint32_t class = class_of(bytes);
    bytes = (class + 1) * WAN_SLAB_STEP_BYTES;
    wan_lock_take(&stripe->lock);
    wan_slab_piece *piece = stripe->open[class];
    if (WAN_UNLIKELY(!piece)) {
        piece = cut_piece(slab, number % WAN_SLAB_STRIPES, bytes);
        if (!piece) {
            wan_lock_release(&stripe->lock);
            return NULL;
        }
        open_piece(stripe, piece);
    }
    void *at = piece->free;
    if (at) {
        ALLOW(at, bytes);
        piece->free = *(void **)at;
    } else {
        at = piece->first + (uint64_t)piece->cut++ * bytes;
        ALLOW(at, bytes);
    }
    if (++piece->used == piece->count) shut_piece(piece);
    wan_lock_release(&stripe->lock);
    return at;
}

void wan_slab_give(wan_slab *slab, void *at, uint32_t bytes)
{
    wan_slab_piece *piece = (wan_slab_piece *)((uintptr_t)at & ~(uintptr_t)(PIECE_BYTES - 1));
    wan_slab_stripe *stripe = &slab->stripes[piece->stripe];
    wan_lock_take(&stripe->lock);
    WAN_DEBUG_CHECK(class_of(bytes) == class_of(piece->bytes) && piece->used);
    *(void **)at = piece->free;
    piece->free = at;
    FORBID(at, piece->bytes);
    if (piece->used-- == piece->count) open_piece(stripe, piece);
    if (!piece->used) {
        shut_piece(piece);
        ALLOW(piece, PIECE_BYTES);
        wan_lock_take(&slab->lock);
        give_piece(slab, piece, PIECE_ORDER);
        wan_lock_release(&slab->lock);
    }
    wan_lock_release(&stripe->lock);
}

/* Takes a mapped array that is free, or maps a new one. */
static void *take_mapped(wan_slab *slab, uint64_t bytes)
{
    wan_lock_take(&slab->lock);
    mapped_array *array = slab->mapped;
    while (array && (array->in_use || array->bytes != bytes)) array = array->next;
    if (!array) {
        array = calloc(1, sizeof *array);
        if (array) array->mapping = map_blocks(bytes);
        if (!array || !array->mapping) {
            free(array);
            wan_lock_release(&slab->lock);
            return NULL;
        }
        array->bytes = bytes;
        array->next = slab->mapped;
        slab->mapped = array;
        madvise(array->mapping, bytes, MADV_HUGEPAGE);
    }
    array->in_use = 1;
    wan_limit_charge(slab->limit, bytes);
    wan_lock_release(&slab->lock);
    return array->mapping;
}

static void give_mapped(wan_slab *slab, void *at)
{
    wan_lock_take(&slab->lock);
    mapped_array *array = slab->mapped;
    while (array->mapping != at) array = array->next;
    /* The pages read as zeros afterwards, and the next user of the array needs zeros. */
    madvise(at, array->bytes, MADV_DONTNEED);
    array->in_use = 0;
    wan_limit_release(slab->limit, array->bytes);
    wan_lock_release(&slab->lock);
}

static inline uint32_t order_of(uint64_t bytes) { return (uint32_t)__builtin_ctzll(bytes / UNIT_BYTES); }

void *wan_slab_take_array(wan_slab *slab, uint32_t stripe, uint64_t bytes)
{
    if (bytes > UNIT_BYTES << (WAN_SLAB_ORDERS - 1)) return take_mapped(slab, bytes);
    void *at;
    if (bytes <= WAN_SLAB_SMALL_BYTES_MAX) {
        at = wan_slab_take(slab, stripe, (uint32_t)bytes);
    } else {
        wan_lock_take(&slab->lock);
        at = take_piece(slab, order_of(bytes));
        wan_lock_release(&slab->lock);
        if (at) ALLOW(at, bytes);
    }
    if (at) memset(at, 0, bytes);
    return at;
}

void wan_slab_give_array(wan_slab *slab, void *at, uint64_t bytes)
{
    if (bytes > UNIT_BYTES << (WAN_SLAB_ORDERS - 1)) {
        give_mapped(slab, at);
        return;
    }
    if (bytes <= WAN_SLAB_SMALL_BYTES_MAX) {
        wan_slab_give(slab, at, (uint32_t)bytes);
        return;
    }
    wan_lock_take(&slab->lock);
    give_piece(slab, at, order_of(bytes));
    wan_lock_release(&slab->lock);
}

uint64_t wan_slab_bytes(wan_slab *slab)
{
    wan_lock_take(&slab->lock);
    uint64_t bytes = slab->block_count * BLOCK_BYTES;
    for (const mapped_array *array = slab->mapped; array; array = array->next)
        if (array->in_use) bytes += array->bytes;
    wan_lock_release(&slab->lock);
    return bytes;
}
