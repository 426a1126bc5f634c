/* Owns a choice among records that lie in a stage: one of each key, or of each event. Open addressing over where they begin. */
#ifndef WAN_RECORD_SET_H
#define WAN_RECORD_SET_H
#include "record/wan_record.h"
#include "base/wan_stage.h"

typedef struct {
    uint64_t *slots;        /* Where a record begins, plus one; 0: free. */
    uint64_t capacity;      /* Of them: 0 or a power of two, and more than half are free. */
    uint64_t count;
    int of_events;          /* Alike are records of one partition and sequence; else those of one key. The owner's. */
} wan_record_set;

/* *slot: where the chosen record stands that is like `record`; it holds 0 if there is none yet, and is for the caller to fill, with where
 * in `stage` his record begins plus one, by wan_record_set_choose. Good until the next call. WAN_NO_MEMORY: nothing changed. */
wan_status wan_record_set_find(wan_record_set *set, const wan_stage *stage, const wan_record *record, uint64_t **slot);

static inline void wan_record_set_choose(wan_record_set *set, uint64_t *slot, uint64_t at)
{
    set->count += *slot == 0;
    *slot = at + 1;
}

void wan_record_set_empty(wan_record_set *set);     /* Gives its memory back. */

#endif
