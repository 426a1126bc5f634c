/* Owns what stands for the offsets and the bytes of a column that has none, and the bound of its length. */
#ifndef WAN_COLUMN_H
#define WAN_COLUMN_H
#include <stdint.h>

static const int64_t wan_column_no_offsets[2] = {0, 0};
static const uint8_t wan_column_no_bytes[16] = {0};
#define WAN_COLUMN_ROWS_MAX                                                                                            \
    ((int64_t)1 << 40) /* A column is longer only if its length is wrong: so no size of it overflows. */

#endif
