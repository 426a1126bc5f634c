/* Owns the memory that one table takes for its entries and slots. Entries are cut to multiples of 16 bytes from pieces
 * of 32 KB without a header of their own; pieces, and larger arrays of slots, are cut from blocks of 2 MB, for which
 * the system is asked for huge pages once there are several. Memory that is given back stays mapped until the whole
 * slab is closed: a reader without a lock may look at an array that was replaced meanwhile, and finds what is no longer
 * of use, but no fault. What a block took goes back to the system when nothing of it is in use. */
#ifndef WAN_SLAB_H
#define WAN_SLAB_H
#include "base/wan_base.h"
#include "base/wan_lock.h"

#define WAN_SLAB_SMALL_BYTES_MAX 1024u /* What is larger is cut from a block, or mapped for itself. */
#define WAN_SLAB_STEP_BYTES      16u
#define WAN_SLAB_CLASSES         (WAN_SLAB_SMALL_BYTES_MAX / WAN_SLAB_STEP_BYTES)
#define WAN_SLAB_LANES           8u  /* Who takes small pieces at the same time rarely meets in one. */
#define WAN_SLAB_ORDERS          10u /* Pieces of a block: 2 KB << order, at most half of it. */

typedef struct wan_slab_piece wan_slab_piece;
typedef struct wan_slab_block wan_slab_block;
typedef struct wan_slab_free wan_slab_free;

typedef struct {
    wan_slab_piece *open[WAN_SLAB_CLASSES]; /* Pieces that have room, by the size that they are cut to. */
    wan_lock lock;
} wan_slab_lane;

typedef struct {
    wan_slab_lane *lanes;
    wan_slab_free *free[WAN_SLAB_ORDERS];
    wan_slab_block *blocks; /* All of them. */
    wan_slab_block *idle;   /* Nothing of them is in use, and they take no memory but their first page. */
    wan_slab_block *spare;  /* At most one of which nothing is in use keeps its memory. */
    /* Arrays that are larger than a block's pieces: in use or not, mapped until the end. */
    struct mapped_array *mapped;
    uint32_t block_count;
    wan_lock lock; /* Guards all but the lanes. Taken after a lane's. */
} wan_slab;

wan_status wan_slab_init(wan_slab *slab);
void wan_slab_close(wan_slab *slab); /* Whatever is still in use is gone too. */

/* `bytes`, at most WAN_SLAB_SMALL_BYTES_MAX, in a multiple of 16; of a power of two from 64 on, at a multiple of 64.
 * NULL: no memory. */
void *wan_slab_take(wan_slab *slab, uint32_t lane, uint32_t bytes);
void wan_slab_give(wan_slab *slab, void *at, uint32_t bytes);

/* An array of `bytes`, a power of two from 64 on, that begins at a multiple of 64 and holds zeros. */
void *wan_slab_take_array(wan_slab *slab, uint32_t lane, uint64_t bytes);
void wan_slab_give_array(wan_slab *slab, void *at, uint64_t bytes);

/* Gives the memory of the spare block back too: little is needed from now on. */
void wan_slab_rest(wan_slab *slab);

/* The memory that the system has given for it, at most: blocks in use and arrays of their own. */
uint64_t wan_slab_bytes(wan_slab *slab);

#endif
