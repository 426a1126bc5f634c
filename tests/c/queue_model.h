/* Owns the plain model of a queue: arrays and loops, without blocks and without an index. After every operation a test
 * compares the real queue with it. */
#ifndef QUEUE_MODEL_H
#define QUEUE_MODEL_H
#include "harness.h"
#include "store/wan_queue.h"

#define MODEL_PARTITIONS 3
#define MODEL_KEYS       24
/* For each partition and run. A test appends no more. */
#define MODEL_EVENTS 6000

typedef struct {
    uint64_t stamp, length;
    uint32_t value_length, key;
    uint8_t operation, alive;
} model_event;

typedef struct {
    model_event events[MODEL_EVENTS]; /* By sequence - 1. */
    uint64_t removed, peeked, appended;
    uint64_t high_watermark;    /* Of the bucket that feeds the partition, as long as the queue is fed. */
    uint64_t index[MODEL_KEYS]; /* For each key the update that a newer one may replace. 0: none. */
    uint64_t duplicate_through;
    int waits_for_leader; /* Another member sends the events. */
} model_partition;

typedef struct {
    wan_queue queue;
    failing_disk disk;
    model_partition partitions[MODEL_PARTITIONS];
    uint64_t conflated, stamp;
    int conflate, fed;
} queue_model;

/* Runs `steps` random operations. Returns the number of differences; 0: the queue did what the model says. */
uint64_t queue_model_run(queue_model *model, random_source *source, uint32_t steps, int conflate);

#endif
