/* Owns how tables by number grow. */
#include "base/wan_pages.h"

#include <stdlib.h>
#include <string.h>

void *wan_pages_put(wan_pages *table, uint32_t number)
{
    const uint32_t page = number / WAN_PAGE_ITEMS;
    if (page >= table->page_count) {
        uint8_t **grown = (uint8_t **)realloc((void *)table->pages, ((uint64_t)page + 1) * sizeof *grown);
        if (!grown) return NULL;
        memset((void *)(grown + table->page_count), 0, (page + 1 - table->page_count) * sizeof *grown);
        table->pages = grown;
        table->page_count = page + 1;
    }
    if (!table->pages[page]) table->pages[page] = calloc(WAN_PAGE_ITEMS, table->item_bytes);
    return wan_pages_find(table, number);
}

void wan_pages_close(wan_pages *table)
{
    for (uint32_t n = 0; n < table->page_count; n++) free(table->pages[n]);
    free((void *)table->pages);
    table->pages = NULL;
    table->page_count = 0;
}
