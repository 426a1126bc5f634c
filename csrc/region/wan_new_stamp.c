/* Owns the sorting of new stamps. */
#include "region/wan_new_stamp.h"

#include <stdlib.h>

static int new_stamp_order(const void *a, const void *b)
{
    const wan_new_stamp *one = a, *other = b;
    if (one->old != other->old) return one->old < other->old ? -1 : 1;
    return (one->fresh == 0) - (other->fresh == 0);
}

void wan_new_stamps_sort(wan_new_stamp *stamps, size_t count)
{
    qsort(stamps, count, sizeof(wan_new_stamp), new_stamp_order);
}
