/* Owns the offsets and the bytes that stand for those of an empty column, and the limit of a column's length. */
#ifndef WAN_COLUMN_H
#define WAN_COLUMN_H
#include <stdint.h>

static const int64_t wan_column_no_offsets[2] = {0, 0};
static const uint8_t wan_column_no_bytes[16] = {0};
/* A column is longer only if its length is wrong. With this limit no size of a column overflows. */
#define WAN_COLUMN_ROWS_MAX ((int64_t)1 << 40)

#endif
