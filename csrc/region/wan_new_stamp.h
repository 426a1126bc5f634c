/* Owns the order of the stamps that a repair of the clock gives: one new one for each old one. */
#ifndef WAN_NEW_STAMP_H
#define WAN_NEW_STAMP_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t old, fresh;
} wan_new_stamp; /* fresh 0: it has none yet. */

/* Ascending by `old`; of those with the same one, what is known comes first. */
void wan_new_stamps_sort(wan_new_stamp *stamps, size_t count);

#endif
