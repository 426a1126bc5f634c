/* Owns the names behind the numbers of regions in this process. Records carry the numbers. Connections and logs say the
 * names. */
#ifndef WAN_NAMES_H
#define WAN_NAMES_H
#include "base/wan_base.h"

#define WAN_REGION_NAMES          65536
#define WAN_REGION_NAME_BYTES_MAX 1024

typedef struct {
    /* NULL: no region has this number. It is never freed, because a record may use the number as long as the process
     * lives. */
    char *text;
    uint16_t length;
} wan_region_name;

/* A number gets its name once, under the GIL, before any record carries the number. So it is read without a lock. */
extern wan_region_name wan_region_names[WAN_REGION_NAMES];

/* Gives a number that no region has to a name of up to WAN_REGION_NAME_BYTES_MAX bytes. */
wan_status wan_region_name_give(uint16_t number, const char *text, uint16_t length);

#endif
