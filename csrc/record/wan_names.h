/* Owns what the numbers of regions stand for in this process: records carry the numbers, connections and logs tell the
 * names. */
#ifndef WAN_NAMES_H
#define WAN_NAMES_H
#include "base/wan_base.h"

#define WAN_REGION_NAMES          65536
#define WAN_REGION_NAME_BYTES_MAX 1024

typedef struct {
    char *
        text; /* NULL: no region has this number. Never freed: a record may name it for as long as the process lives. */
    uint16_t length;
} wan_region_name;

/* A number is given once, under the GIL, before any record carries it; so it is read without a lock. */
extern wan_region_name wan_region_names[WAN_REGION_NAMES];

/* Gives a number, that nobody has, to a name of up to WAN_REGION_NAME_BYTES_MAX bytes. */
wan_status wan_region_name_give(uint16_t number, const char *text, uint16_t length);

#endif
