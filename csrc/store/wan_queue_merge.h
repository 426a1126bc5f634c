/* Owns what a dispatcher takes next of several stream partitions that keep arrivals: the event that reached the queue
 * first, whichever partition it is in. So events that one thread put one after the other leave in that order. The merge
 * holds the next event of each partition in a heap, from wan_merge_begin on, as long as the queue's lock is held. */
#ifndef WAN_QUEUE_MERGE_H
#define WAN_QUEUE_MERGE_H
#include "store/wan_queue.h"

typedef struct {
    uint64_t arrival; /* Of the next event of the partition. */
    uint32_t partition;
} wan_merge_head;

typedef struct {
    wan_merge_head *heads; /* A heap: no head arrived before the one at place (n - 1) / 2. */
    uint32_t count, capacity;
} wan_merge;

/* What one call took: a run of one partition. */
typedef struct {
    uint32_t partition;
    uint32_t count; /* Its records. */
    uint64_t first; /* The sequence behind the last one that was peeked before. */
    uint64_t bytes; /* Of its records. */
} wan_merged_run;

/* Makes room for the heads of a queue with so many partitions. Needs no lock. WAN_NO_MEMORY: nothing changed. */
wan_status wan_merge_make_room(wan_merge *merge, uint32_t partitions);
void wan_merge_close(wan_merge *merge);
/* Takes up the next event of each stream partition that this member sends. There is room for all partitions. */
void wan_merge_begin(wan_merge *merge, const wan_queue *queue);
/* Peeks, as wan_queue_peek does, the run of events of one partition that arrived before all others. Returns 0 if
 * nothing was taken: there is no event, none that fits, or the one that arrived first does not count yet. *waits says
 * the last one. The thread that put that event may have put the others after it, so they wait, too. */
uint32_t wan_merge_peek(wan_merge *merge, wan_queue *queue, uint32_t count, uint64_t bytes, int at_least_one,
                        wan_record **records, uint64_t *sequences, wan_merged_run *run, int *waits);

#endif
