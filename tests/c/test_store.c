/* Owns the tests of segments: what goes to memory, what goes to the disk, what comes back, and what a failing disk
 * leaves behind. */
#include "harness.h"
#include "store/wan_store.h"

/* The smallest limit: one memory segment of each kind. */
#define MEMORY_LIMIT (WAN_SEGMENT_BYTES + WAN_BLOCK_SEGMENT_BYTES)
#define HALF         (WAN_SEGMENT_BYTES / 2)

static failing_disk disk;
static wan_store *store;
static wan_lease lease;

static void open_store(void)
{
    failing_disk_init(&disk);
    memset(&lease, 0, sizeof lease);
    EXPECT_EQUAL(wan_store_new(&disk.env, "nowhere", MEMORY_LIMIT, &store), WAN_OK);
}

static void close_store(void)
{
    wan_store_release(store);
    EXPECT_EQUAL(disk.live, 0);
}

static uint32_t take(uint64_t bytes)
{
    uint8_t *at;
    uint32_t segment = 0;
    wan_status status = wan_store_take(store, &lease, bytes, &at, &segment);
    if (status != WAN_OK) return 0;
    memset(at, 0x77, bytes); /* All these bytes can be written. */
    return segment;
}

static void memory_comes_first_and_what_is_over_the_limit_goes_to_files(void)
{
    open_store();
    EXPECT(!wan_store_segment(store, take(HALF))->is_file);
    EXPECT(!wan_store_segment(store, take(HALF))->is_file);
    EXPECT_EQUAL(disk.calls, 0);
    EXPECT(wan_store_segment(store, take(8))->is_file);
    EXPECT_EQUAL(disk.live_bytes, WAN_FILE_SEGMENT_BYTES);
    EXPECT_EQUAL(store->file_bytes, WAN_FILE_SEGMENT_BYTES);
    EXPECT(store->memory_bytes <= MEMORY_LIMIT);
    close_store();
}

static void while_the_member_is_short_of_memory_new_segments_are_files_where_there_may_be_some(void)
{
    wan_limit limit;
    for (int may_overflow = 1; may_overflow >= 0; may_overflow--) {
        wan_limit_init(&limit, "one", 100 << 20, 90 << 20, 80 << 20);
        failing_disk_init(&disk);
        memset(&lease, 0, sizeof lease);
        EXPECT_EQUAL(wan_store_new(&disk.env, may_overflow ? "nowhere" : NULL, 16 * WAN_SEGMENT_BYTES, &store), WAN_OK);
        wan_store_set_limit(store, &limit);
        EXPECT(!wan_store_segment(store, take(HALF))->is_file);
        EXPECT_EQUAL(limit.counted, WAN_SEGMENT_BYTES);
        wan_limit_note(&limit, 95 << 20, 0, WAN_NO_LIMIT);
        EXPECT(wan_limit_is_short(&limit));
        EXPECT_EQUAL(wan_store_segment(store, take(WAN_SEGMENT_BYTES))->is_file, may_overflow);
        EXPECT_EQUAL(limit.counted, may_overflow ? WAN_SEGMENT_BYTES : 2 * WAN_SEGMENT_BYTES);
        wan_limit_note(&limit, 0, 0, WAN_NO_LIMIT);
        wan_store_end_lease(store, &lease);
        EXPECT(!wan_store_segment(store, take(WAN_SEGMENT_BYTES))->is_file);
        wan_store_release(store);
        EXPECT_EQUAL(limit.counted, 0);
        EXPECT_EQUAL(disk.live, 0);
    }
}

static void after_a_drained_backlog_memory_is_used_again_and_no_file_is_left(void)
{
    open_store();
    uint32_t held[24];
    for (int n = 0; n < 24; n++) held[n] = take(HALF);
    EXPECT(disk.live >= 1);
    for (int n = 0; n < 24; n++) wan_store_give(store, &lease, held[n], HALF);
    EXPECT_EQUAL(disk.live, 0);
    EXPECT_EQUAL(store->file_bytes, 0);
    EXPECT(!wan_store_segment(store, take(64))->is_file);
    close_store();
}

static void the_newest_go_to_disk_while_the_oldest_stay_in_memory(void)
{
    open_store();
    uint32_t oldest = take(HALF), next = take(HALF), newest = take(HALF);
    EXPECT(!wan_store_segment(store, oldest)->is_file && !wan_store_segment(store, next)->is_file
           && wan_store_segment(store, newest)->is_file);
    close_store();
}

static void freed_segments_are_handed_out_again(void)
{
    open_store();
    for (int round = 0; round < 50; round++) {
        uint32_t held[3];
        for (int n = 0; n < 3; n++) held[n] = take(HALF);
        for (int n = 0; n < 3; n++) wan_store_give(store, &lease, held[n], HALF);
    }
    EXPECT(store->segment_count < 10); /* Ids are used again too. */
    EXPECT_EQUAL(store->file_bytes, 0);
    close_store();
}

static void the_current_memory_segment_is_written_again_once_it_is_empty(void)
{
    open_store();
    for (int n = 0; n < 100000; n++) wan_store_give(store, &lease, take(256), 256);
    EXPECT_EQUAL(store->memory_bytes, WAN_SEGMENT_BYTES);
    EXPECT_EQUAL(disk.calls, 0);
    close_store();
}

static void a_huge_record_stands_alone_and_leaves_the_current_segment_as_it_is(void)
{
    open_store();
    uint32_t small = take(64), huge = take(20u << 20), after = take(64);
    EXPECT(wan_store_segment(store, huge)->is_file && huge != small);
    EXPECT_EQUAL(wan_store_segment(store, huge)->bytes, 20u << 20);
    EXPECT_EQUAL(after, small);
    wan_store_give(store, &lease, huge, 20u << 20);
    EXPECT_EQUAL(disk.live, 0);
    close_store();
}

static void without_a_directory_the_memory_limit_is_final(void)
{
    memset(&lease, 0, sizeof lease);
    EXPECT_EQUAL(wan_store_new(&wan_env_posix, NULL, MEMORY_LIMIT, &store), WAN_OK);
    uint8_t *at;
    uint32_t first = take(HALF), segment;
    take(HALF);
    EXPECT_EQUAL(wan_store_take(store, &lease, HALF, &at, &segment), WAN_FULL);
    wan_store_give(store, &lease, first, HALF);
    /* The other record of the segment lives. */
    EXPECT_EQUAL(wan_store_take(store, &lease, HALF, &at, &segment), WAN_FULL);
    wan_store_give(store, &lease, first, HALF);
    EXPECT_EQUAL(wan_store_take(store, &lease, HALF, &at, &segment), WAN_OK);
    wan_store_release(store);
}

static void a_disk_that_is_full_or_broken_changes_nothing_and_works_again_later(void)
{
    static const wan_status reasons[] = {WAN_FULL, WAN_IO, WAN_NO_MEMORY};
    for (int reason = 0; reason < 3; reason++) {
        open_store();
        take(HALF);
        take(HALF);
        disk.fail_at = 1;
        disk.status = reasons[reason];
        uint64_t memory = store->memory_bytes;
        uint32_t current = lease.segment, segment = 0;
        uint8_t *at = NULL;
        EXPECT_EQUAL(wan_store_take(store, &lease, 64, &at, &segment), reasons[reason]);
        EXPECT(store->memory_bytes == memory && store->file_bytes == 0 && lease.segment == current
               && store->files_made == 0);
        EXPECT_EQUAL(disk.live, 0);
        EXPECT(take(64) != 0);
        close_store();
    }
}

static void every_single_mapping_may_fail_and_the_rest_goes_on(void)
{
    for (uint32_t fail = 1; fail <= 6; fail++) {
        open_store();
        disk.fail_at = fail;
        uint32_t held[100], count = 0, refused = 0;
        for (int n = 0; n < 100; n++) {
            uint32_t segment = take(HALF);
            if (segment) held[count++] = segment;
            else refused++;
        }
        EXPECT_EQUAL(refused, 1);
        for (uint32_t n = 0; n < count; n++) wan_store_give(store, &lease, held[n], HALF);
        EXPECT_EQUAL(disk.live, 0);
        close_store();
    }
}

static void a_reservation_that_is_taken_back_leaves_room_for_the_next(void)
{
    open_store();
    uint32_t segment = take(HALF);
    for (int n = 0; n < 1000; n++) {
        EXPECT_EQUAL(take(HALF), segment);
        wan_store_untake(store, &lease, segment, HALF);
    }
    EXPECT_EQUAL(lease.used, HALF);
    close_store();
}

static void segments_stay_where_they_are_however_many_there_get(void)
{
    open_store();
    static uint32_t ids[3000];
    static wan_segment *at[3000];
    for (int n = 0; n < 3000; n++) {
        ids[n] = take(HALF);
        at[n] = wan_store_segment(store, ids[n]);
        /* Only a part is given back, so no segment goes. */
        if (n) wan_store_give(store, &lease, ids[n - 1], 8);
    }
    for (int n = 0; n < 3000; n++) EXPECT(wan_store_segment(store, ids[n]) == at[n] && at[n]->base);
    close_store();
}

/* Two leases, like those of two queues. */
static void a_segment_goes_when_no_queue_refers_to_it_any_more(void)
{
    wan_lease mine = {0}, yours = {0};
    uint8_t *at;
    uint32_t segment;
    for (int order = 0; order < 4; order++) {
        open_store();
        memset(&mine, 0, sizeof mine);
        EXPECT_EQUAL(wan_store_take(store, &mine, HALF, &at, &segment), WAN_OK);
        memset(at, 0x5a, HALF);
        wan_store_refer(store, &yours, segment, HALF);
        EXPECT_EQUAL(wan_store_segment(store, segment)->live, WAN_SEGMENT_BYTES + HALF);
        if (order & 1) wan_store_end_lease(store, &mine);
        wan_store_give(store, order & 2 ? &mine : &yours, segment, HALF);
        EXPECT(store->memory_bytes == WAN_SEGMENT_BYTES && at[0] == 0x5a && at[HALF - 1] == 0x5a);
        /* A new record of `mine` does not lie where `yours` still looks. */
        if (order == 2) {
            uint8_t *next;
            EXPECT_EQUAL(wan_store_take(store, &mine, 64, &next, &segment), WAN_OK);
            EXPECT(next >= at + HALF);
            wan_store_give(store, &mine, segment, 64);
        }
        wan_store_give(store, order & 2 ? &yours : &mine, segment, HALF);
        wan_store_end_lease(store, &mine);
        EXPECT_EQUAL(store->memory_bytes, 0);
        close_store();
    }
}

static void a_store_lives_as_long_as_one_who_uses_it(void)
{
    open_store();
    uint32_t segment = take(64);
    wan_store_hold(store);
    EXPECT(!wan_store_is_own(store));
    wan_store_release(store);
    EXPECT(wan_store_is_own(store) && wan_store_segment(store, segment)->base[63] == 0x77);
    close_store();
}

static void the_real_disk_gives_zeroed_room_and_names_a_missing_directory(void)
{
    uint8_t *base = NULL;
    const char *directory = getenv("TMPDIR");
    EXPECT_EQUAL(wan_env_posix.map_overflow(&wan_env_posix, directory ? directory : ".", 1 << 16, &base), WAN_OK);
    if (!base) return;
    EXPECT(base[0] == 0 && base[(1 << 16) - 1] == 0);
    memset(base, 1, 1 << 16);
    wan_env_posix.unmap(&wan_env_posix, base, 1 << 16);
    EXPECT_EQUAL(wan_env_posix.map_overflow(&wan_env_posix, "no/such/directory", 1 << 16, &base), WAN_IO);
    EXPECT(strstr(wan_detail, "no/such/directory") != NULL);
}

const test_case store_tests[] = {
    {"memory comes first and what is over the limit goes to files",
     memory_comes_first_and_what_is_over_the_limit_goes_to_files},
    {"while the member is short of memory new segments are files where there may be some",
     while_the_member_is_short_of_memory_new_segments_are_files_where_there_may_be_some},
    {"after a drained backlog memory is used again and no file is left",
     after_a_drained_backlog_memory_is_used_again_and_no_file_is_left},
    {"the newest go to disk while the oldest stay in memory", the_newest_go_to_disk_while_the_oldest_stay_in_memory},
    {"freed segments are handed out again", freed_segments_are_handed_out_again},
    {"the current memory segment is written again once it is empty",
     the_current_memory_segment_is_written_again_once_it_is_empty},
    {"a huge record stands alone and leaves the current segment as it is",
     a_huge_record_stands_alone_and_leaves_the_current_segment_as_it_is},
    {"without a directory the memory limit is final", without_a_directory_the_memory_limit_is_final},
    {"a disk that is full or broken changes nothing and works again later",
     a_disk_that_is_full_or_broken_changes_nothing_and_works_again_later},
    {"every single mapping may fail and the rest goes on", every_single_mapping_may_fail_and_the_rest_goes_on},
    {"a reservation that is taken back leaves room for the next",
     a_reservation_that_is_taken_back_leaves_room_for_the_next},
    {"the real disk gives zeroed room and names a missing directory",
     the_real_disk_gives_zeroed_room_and_names_a_missing_directory},
    {"segments stay where they are however many there get", segments_stay_where_they_are_however_many_there_get},
    {"a segment goes when no queue refers to it any more", a_segment_goes_when_no_queue_refers_to_it_any_more},
    {"a store lives as long as one who uses it", a_store_lives_as_long_as_one_who_uses_it},
    {0},
};
