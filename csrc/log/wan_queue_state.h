/* Owns what a queue's log says beside its records: whose queue it is, and how far it was. docs/segment_format.md shows
 * both byte by byte. */
#ifndef WAN_QUEUE_STATE_H
#define WAN_QUEUE_STATE_H
#include <stdint.h>

/* The identity in the manifest begins with it. The mounts under this incarnation follow, oldest first, as far as they
 * are remembered: each its id, then for each partition the newest sequence that was there when it began. */
typedef struct {
    uint64_t incarnation;
    uint32_t mounts;
    uint32_t partitions;
} wan_queue_identity;

/* A state part begins with it. Counters, positions and names follow. */
typedef struct {
    uint64_t commit;
    uint32_t partitions;
    uint32_t counters; /* How many wan_counter follow. */
    uint64_t conflated;
    uint64_t names_bytes;
} wan_queue_state;

_Static_assert(sizeof(wan_queue_identity) == 16 && sizeof(wan_queue_state) == 32,
               "what a queue's log says of the queue is a format");

#endif
