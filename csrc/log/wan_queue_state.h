/* Owns what a queue's log says beside its records: which queue it belongs to, and how far the queue was.
 * docs/segment_format.md shows both byte by byte. */
#ifndef WAN_QUEUE_STATE_H
#define WAN_QUEUE_STATE_H
#include <stdint.h>

/* The head of the identity in the manifest. Behind it come the mounts of this numbering, oldest first, as far as they
 * are remembered. A mount is its id, and for each partition the newest sequence when the mount began. */
typedef struct {
    uint64_t numbering;
    uint32_t mounts;
    uint32_t partitions;
} wan_queue_identity;

/* The head of a state part. Counters, positions, names and the places of streams follow it. */
typedef struct {
    uint64_t commit;
    uint32_t partitions;
    uint32_t counters; /* This many wan_counter follow. */
    uint64_t conflated;
    uint64_t names_bytes;
    uint64_t places_bytes;
} wan_queue_state;

_Static_assert(sizeof(wan_queue_identity) == 16 && sizeof(wan_queue_state) == 40,
               "what a queue's log says of the queue is a format");

#endif
