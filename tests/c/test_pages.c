/* Owns the tests of tables by number. */
#include "base/wan_pages.h"
#include "harness.h"

static void an_item_is_found_where_it_was_put_and_others_are_not_there(void)
{
    wan_pages table = {.item_bytes = sizeof(uint64_t)};
    EXPECT(wan_pages_find(&table, 0) == NULL && wan_pages_find(&table, UINT32_MAX) == NULL);
    uint64_t *high = wan_pages_put(&table, 65535);
    EXPECT(high != NULL && *high == 0);
    *high = 7;
    EXPECT(wan_pages_find(&table, 65535) == high && wan_pages_find(&table, 0) == NULL);
    EXPECT(*(uint64_t *)wan_pages_find(&table, 65534) == 0); /* Near one that was put. */
    EXPECT(wan_pages_find(&table, 65536) == NULL);
    for (uint64_t n = 0; n < 1000; n++) *(uint64_t *)wan_pages_put(&table, (uint32_t)n * 61) = n + 1;
    int same = 1;
    for (uint64_t n = 0; n < 1000; n++) same &= *(uint64_t *)wan_pages_find(&table, (uint32_t)n * 61) == n + 1;
    EXPECT(same && *high == 7 && wan_pages_find(&table, 65535) == high);
    wan_pages_close(&table);
    EXPECT(wan_pages_find(&table, 61) == NULL);
}

const test_case pages_tests[] = {
    {"an item is found where it was put and others are not there",
     an_item_is_found_where_it_was_put_and_others_are_not_there},
    {0},
};
