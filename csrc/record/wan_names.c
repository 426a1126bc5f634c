/* Owns the names behind the numbers of regions. */
#include "record/wan_names.h"

#include <stdlib.h>
#include <string.h>

wan_region_name wan_region_names[WAN_REGION_NAMES];

wan_status wan_region_name_give(uint16_t number, const char *text, uint16_t length)
{
    if (number == 0 || wan_region_names[number].text != NULL || length > WAN_REGION_NAME_BYTES_MAX)
        return WAN_FAIL(WAN_INVALID, "region number %u is in use, or its name of %u bytes is too long", number, length);
    char *copy = malloc((size_t)length + 1);
    if (!copy) return WAN_FAIL(WAN_NO_MEMORY, "no memory for the name of a region");
    memcpy(copy, text, length);
    copy[length] = 0;
    wan_region_names[number].length = length;
    wan_region_names[number].text = copy;
    return WAN_OK;
}
