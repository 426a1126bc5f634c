/* Owns the memory that one table takes for its entries and slots. Entries are multiples of 16 bytes, cut from pieces of
 * 32 KB, without a header of their own. Pieces, and larger arrays of slots, are cut from blocks of 2 MB. When there are
 * several blocks, the slab asks the system for huge pages.
 *
 * Memory that is given back stays mapped until the whole slab is closed. So a reader without a lock may look at an
 * array that was just replaced: it finds old bytes, but no fault. The pages of a block go back to the system when
 * nothing in the block is in use. */
#ifndef WAN_SLAB_H
#define WAN_SLAB_H
#include "base/wan_base.h"
#include "base/wan_limit.h"
#include "base/wan_lock.h"

#define WAN_SLAB_SMALL_BYTES_MAX 1024u /* Larger requests are cut from a block, or mapped on their own. */
#define WAN_SLAB_STEP_BYTES      16u
#define WAN_SLAB_CLASSES         (WAN_SLAB_SMALL_BYTES_MAX / WAN_SLAB_STEP_BYTES)
/* Threads that take small pieces at the same time rarely use the same stripe. */
#define WAN_SLAB_STRIPES 8u
#define WAN_SLAB_ORDERS  10u /* Pieces of a block have 2 KB << order bytes, at most half a block. */

typedef struct wan_slab_piece wan_slab_piece;
typedef struct wan_slab_block wan_slab_block;
typedef struct wan_slab_free wan_slab_free;

typedef struct {
    wan_slab_piece *open[WAN_SLAB_CLASSES]; /* Pieces with room, by the size that they are cut into. */
    wan_lock lock;
} wan_slab_stripe;

typedef struct {
    wan_slab_stripe *stripes;             /* WAN_SLAB_STRIPES of them. */
    wan_slab_free *free[WAN_SLAB_ORDERS]; /* Free pieces of blocks, by their order. */
    wan_slab_block *blocks;               /* All blocks. */
    /* Blocks of which nothing is in use. They take no memory but their first page. */
    wan_slab_block *idle;
    /* One block of which nothing is in use, and which keeps its memory. NULL: there is none. */
    wan_slab_block *spare;
    /* Arrays that are larger than the pieces of a block. They stay mapped until the end, in use or not. */
    struct mapped_array *mapped;
    uint32_t block_count; /* Blocks that have memory. */
    wan_lock lock;        /* Guards everything but the stripes. A thread takes it after a stripe's lock. */
    wan_limit *limit;     /* Of the member, which counts what the slab takes. NULL: there is none. */
    uint64_t large_bytes; /* Bytes of entries beside the slab, which are too large for it. Atomic. */
} wan_slab;

/* WAN_NO_MEMORY: there is nothing to close. */
wan_status wan_slab_init(wan_slab *slab);
void wan_slab_close(wan_slab *slab); /* Frees everything, also what is still in use. */

/* Takes `bytes` bytes, at most WAN_SLAB_SMALL_BYTES_MAX, rounded up to a multiple of 16. If `bytes` is a power of two
 * from 64 on, the address is a multiple of 64. NULL: there is no memory. */
void *wan_slab_take(wan_slab *slab, uint32_t stripe, uint32_t bytes);
/* Give back what was taken. `bytes` is what the caller asked for. */
void wan_slab_give(wan_slab *slab, void *at, uint32_t bytes);

/* Takes an array of `bytes` bytes, a power of two from 64 on. It begins at a multiple of 64 and holds zeros. NULL:
 * there is no memory. */
void *wan_slab_take_array(wan_slab *slab, uint32_t stripe, uint64_t bytes);
void wan_slab_give_array(wan_slab *slab, void *at, uint64_t bytes);

/* Gives the memory of the spare block back too, because little is needed from now on. */
void wan_slab_drop_spare(wan_slab *slab);

/* Counts what the slab takes for this limit from now on. Nothing was taken yet. */
void wan_slab_set_limit(wan_slab *slab, wan_limit *limit);
/* Counts an entry beside the slab, which came or went. */
static inline void wan_slab_note_large(wan_slab *slab, uint64_t bytes, int came)
{
    if (!slab->limit) return;
    __atomic_fetch_add(&slab->large_bytes, came ? bytes : -bytes, __ATOMIC_RELAXED);
    if (came) wan_limit_charge(slab->limit, bytes);
    else wan_limit_release(slab->limit, bytes);
}
/* Whether wan_slab_take would need no more memory from the system. */
int wan_slab_has_room(wan_slab *slab, uint32_t stripe, uint32_t bytes);

/* The most memory that the system may have given for the slab: blocks in use, and arrays of their own. */
uint64_t wan_slab_bytes(wan_slab *slab);

#endif
