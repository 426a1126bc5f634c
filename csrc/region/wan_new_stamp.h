/* Owns the order of the stamps that a repair of the clock gives out: one new stamp for each old one. */
#ifndef WAN_NEW_STAMP_H
#define WAN_NEW_STAMP_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t old, fresh;
} wan_new_stamp; /* `fresh` is 0 if it has no new stamp yet. */

/* Sorts by `old`, ascending. If several have the same `old`, those with a new stamp come first. */
void wan_new_stamps_sort(wan_new_stamp *stamps, size_t count);

#endif
