/* Owns a table of small items by number, whose numbers somebody else chooses. An item takes memory when it is put, and
 * not for the numbers below it: the highest number alone costs a page of items and the list of pages. */
#ifndef WAN_PAGES_H
#define WAN_PAGES_H
#include "base/wan_base.h"

#define WAN_PAGE_ITEMS 64u

typedef struct {
    uint8_t **pages;     /* NULL: no item of the page was put. */
    uint32_t page_count; /* Of the list. */
    uint32_t item_bytes; /* The owner sets it before it puts. */
} wan_pages;

/* The item with this number. NULL: no item near it was put. An item that was not put, and is near one that was, is all
 * zeros. It stays where it is until the table is closed. */
static inline void *wan_pages_find(const wan_pages *table, uint32_t number)
{
    const uint32_t page = number / WAN_PAGE_ITEMS;
    if (page >= table->page_count || !table->pages[page]) return NULL;
    return table->pages[page] + (uint64_t)(number % WAN_PAGE_ITEMS) * table->item_bytes;
}

/* The same, and makes room for the item. NULL: there is no memory. The owner bounds `number`. */
void *wan_pages_put(wan_pages *table, uint32_t number);

void wan_pages_close(wan_pages *table);

#endif
