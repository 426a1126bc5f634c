/* Owns the tests of partitions: positions, holes, rewinding, conflation, very long records, the edges of entry
 * blocks. */
#include <sys/mman.h>

#include "queue_model.h"

static wan_queue queue;
static failing_disk disk;

static void open_queue(int conflate)
{
    failing_disk_init(&disk);
    EXPECT_EQUAL(wan_queue_init(&queue, &disk.env, "nowhere", 0, 2, conflate), WAN_OK);
}

static void close_queue(void)
{
    wan_queue_close(&queue);
    EXPECT_EQUAL(disk.live, 0);
}

static void append_plan(const record_plan *plan)
{
    wan_reservation reservation;
    wan_status status = wan_queue_reserve(&queue, 0, plan_length(plan), &reservation);
    EXPECT_EQUAL(status, WAN_OK);
    if (status != WAN_OK) return;
    write_plan(reservation.at, plan);
    wan_queue_commit(&queue, &reservation);
}

static uint64_t next_stamp;

static void append(const char *key, uint8_t operation, uint32_t value_length)
{
    static uint8_t value[4 << 20];
    record_plan plan = {
        .operation = operation, .key = key, .value = value, .value_length = value_length, .stamp = ++next_stamp};
    append_plan(&plan);
}

static uint64_t sequences[4096]; /* The sequences of the last peek. */

static uint32_t peek(uint32_t count, wan_record **records)
{
    uint64_t size;
    return wan_queue_peek(&queue, 0, count, WAN_NO_LIMIT, 1, records, sequences, &size);
}

static uint32_t peek_bytes(uint32_t count, uint64_t bytes, int at_least_one, wan_record **records, uint64_t *size)
{
    return wan_queue_peek(&queue, 0, count, bytes, at_least_one, records, sequences, size);
}

static uint64_t oldest(void) { return wan_queue_oldest(&queue, 0) ? queue.partitions[0].known_holes + 1 : 0; }

static wan_status append_at(uint64_t sequence)
{
    record_plan plan = {.operation = WAN_UPDATE, .key = "fed", .stamp = sequence};
    wan_reservation reservation;
    wan_status status = wan_queue_reserve_at(&queue, 0, sequence, plan_length(&plan), &reservation);
    if (status != WAN_OK) return status;
    write_plan(reservation.at, &plan);
    wan_queue_commit(&queue, &reservation);
    EXPECT_EQUAL(reservation.sequence, sequence);
    return WAN_OK;
}

static void a_bucket_gives_events_their_sequences_and_says_which_of_them_count(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 0;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    EXPECT_EQUAL(append_at(3), WAN_OK);
    EXPECT_EQUAL(append_at(5), WAN_OK);
    EXPECT_EQUAL(append_at(2000), WAN_OK); /* Blocks that have only holes take no memory. */
    EXPECT_EQUAL(queue.events, 3);
    high_watermark = 4;
    EXPECT_EQUAL(peek(8, records), 0); /* Nobody has looked what counts. */
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 1);
    EXPECT_EQUAL(peek(8, records), 1);
    EXPECT_EQUAL(sequences[0], 3);
    high_watermark = 9000; /* Later changes did not enter this queue. */
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 2);
    EXPECT_EQUAL(peek(8, records), 2);
    EXPECT(sequences[0] == 5 && sequences[1] == 2000);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2000), 3);
    EXPECT_EQUAL(append_at(9001), WAN_OK);
    high_watermark = 9001;
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, NULL, 1, 0), WAN_OK); /* Looks once more what is replicated. */
    EXPECT_EQUAL(peek(8, records), 1);
    close_queue();
}

static void a_bucket_that_feeds_no_more_leaves_no_event_behind_its_high_watermark(void)
{
    wan_record *records[8];
    for (int conflate = 0; conflate < 2; conflate++)
        for (uint64_t watermark = 1; watermark < 1600; watermark += 511) {
            uint64_t high_watermark = 0;
            open_queue(conflate);
            EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
            for (uint64_t n = 1; n <= 1600; n++) EXPECT_EQUAL(append_at(n), WAN_OK);
            EXPECT_EQUAL(append_at(5000), WAN_OK);
            high_watermark = watermark;
            EXPECT_EQUAL(wan_queue_feed(&queue, 0, NULL, 1, 0), WAN_OK);
            const uint64_t left = conflate ? 0 : watermark;
            EXPECT_EQUAL(queue.events, left);
            EXPECT_EQUAL(queue.forgotten + queue.conflated, 1601 - left);
            EXPECT_EQUAL(queue.partitions[0].appended, watermark);
            /* Another primary has given the sequences to other changes. */
            high_watermark = 0;
            EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, watermark), WAN_OK);
            for (uint64_t n = watermark + 1; n <= watermark + 700; n++) EXPECT_EQUAL(append_at(n), WAN_OK);
            high_watermark = watermark + 700;
            wan_queue_count(&queue, 0);
            EXPECT_EQUAL(queue.events, conflate ? 1 : left + 700);
            for (uint64_t next = conflate ? watermark + 700 : 1; next <= watermark + 700;) {
                const uint32_t count = peek(8, records);
                EXPECT(count);
                if (!count) break;
                for (uint32_t n = 0; n < count; n++) EXPECT_EQUAL(sequences[n], next++);
            }
            EXPECT_EQUAL(wan_queue_remove(&queue, 0, watermark + 700), conflate ? 1 : left + 700);
            close_queue();
        }
}

static void what_is_left_when_nothing_feeds_a_stream_is_sent_by_whoever_has_all_of_it(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 0;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    wan_queue_lead(&queue, 0, 0, 0);
    EXPECT_EQUAL(append_at(1), WAN_OK);
    EXPECT_EQUAL(append_at(2), WAN_OK);
    high_watermark = 2;
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, NULL, 1, 0), WAN_OK);
    EXPECT_EQUAL(peek(8, records), 0); /* Another member sends it. */
    wan_queue_send_rest(&queue, 0, 1);
    EXPECT_EQUAL(peek(8, records), 2);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2), 2);
    for (int is_whole = 0; is_whole < 2; is_whole++) { /* A learner; and a queue that has not asked the others yet. */
        EXPECT_EQUAL(wan_queue_begin_anew(&queue, 0, 1), 0);
        EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
        if (is_whole) wan_queue_lack(&queue, 0, 5);
        EXPECT_EQUAL(append_at(6), WAN_OK);
        high_watermark = 6;
        EXPECT_EQUAL(wan_queue_feed(&queue, 0, NULL, 1, 0), WAN_OK);
        wan_queue_send_rest(&queue, 0, is_whole);
        EXPECT_EQUAL(peek(8, records), 0);
        EXPECT_EQUAL(queue.events, 0);
        EXPECT_EQUAL(queue.forgotten, (uint64_t)is_whole + 1);
    }
    close_queue();
}

static void a_partition_begins_anew_with_its_bucket(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 0;
    open_queue(1);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    for (uint64_t n = 1; n <= 1500; n++) EXPECT_EQUAL(append_at(2 * n), WAN_OK);
    high_watermark = 3000;
    wan_queue_count(&queue, 0);
    EXPECT_EQUAL(wan_queue_begin_anew(&queue, 0, 2), queue.conflated ? 1 : 1500);
    EXPECT(queue.events == 0 && queue.bytes == 0);
    high_watermark = 0;
    EXPECT_EQUAL(append_at(7), WAN_OK); /* Sequences are given again. */
    EXPECT_EQUAL(append_at(8), WAN_OK); /* It replaces the one before, as the index was forgotten too. */
    EXPECT_EQUAL(queue.events, 1);
    EXPECT_EQUAL(peek(8, records), 0);
    high_watermark = 8;
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 1);
    EXPECT_EQUAL(peek(8, records), 1);
    EXPECT_EQUAL(sequences[0], 8);
    close_queue();
}

static uint32_t told;
static void note_told(void *teller, uint32_t bucket)
{
    EXPECT(teller == &told && bucket == queue.partitions[0].bucket);
    told++;
}

static void what_left_a_stream_may_be_told_when_it_and_all_that_replaced_it_is_replicated(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 0;
    int waits = 0;
    told = 0;
    open_queue(1);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    wan_queue_announce_removals(&queue, 0, note_told, &told);
    EXPECT_EQUAL(append_at(2), WAN_OK);
    high_watermark = 3;
    wan_queue_count(&queue, 0);
    EXPECT_EQUAL(wan_queue_removed_through(&queue, 0, &waits), 1); /* The hole. */
    EXPECT(!waits && told == 1);
    EXPECT_EQUAL(append_at(5), WAN_OK); /* It replaces 2. */
    EXPECT(queue.partitions[0].removed == 2 && told == 2);
    EXPECT(wan_queue_removed_through(&queue, 0, &waits) == 1 && waits);
    high_watermark = 6;
    EXPECT_EQUAL(append_at(8), WAN_OK); /* It replaces 5, and does not count. What 5 replaced may be told. */
    EXPECT(wan_queue_removed_through(&queue, 0, &waits) == 2 && !waits);
    wan_queue_count(&queue, 0);
    EXPECT(wan_queue_removed_through(&queue, 0, &waits) == 2 && waits);
    high_watermark = 8;
    wan_queue_count(&queue, 0);
    EXPECT_EQUAL(peek(8, records), 1);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 8), 1);
    EXPECT(wan_queue_removed_through(&queue, 0, &waits) == 8 && !waits);
    EXPECT_EQUAL(append_at(9), WAN_OK);
    uint64_t dropped = 0;
    EXPECT_EQUAL(wan_queue_clear(&queue, &dropped), WAN_OK); /* A lost change would give 9 to another one. */
    EXPECT(wan_queue_removed_through(&queue, 0, &waits) == 8 && waits);
    const uint32_t before = told;
    EXPECT_EQUAL(wan_queue_remove_through(&queue, 0, 20), WAN_OK); /* What another member told is not told again. */
    EXPECT_EQUAL(wan_queue_begin_anew(&queue, 0, 2), 0);
    EXPECT(wan_queue_removed_through(&queue, 0, &waits) == 0 && !waits && told == before);
    close_queue();
}

static void receive(uint64_t after, uint64_t through, int whole)
{
    wan_queue_receive_removal(&queue, 0, &(wan_removal){.after = after, .through = through, .leads = 1}, whole);
}

static void what_another_member_removed_goes_when_nothing_is_on_its_way(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 9;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    for (uint64_t n = 1; n <= 6; n++) EXPECT_EQUAL(append_at(n), WAN_OK);
    wan_queue_count(&queue, 0);
    EXPECT_EQUAL(peek(2, records), 2);
    receive(0, 4, 0);
    receive(0, 3, 0);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 0);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 1), 1);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 0);
    wan_queue_rewind(&queue, 0);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, 3), 2);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 1);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 0);
    receive(0, 7, 0); /* Of events that come later. */
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 2);
    EXPECT_EQUAL(append_at(7), WAN_OK);
    EXPECT_EQUAL(append_at(8), WAN_OK);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 1);
    EXPECT(queue.removed_by_primary == 6 && queue.events == 1 && queue.partitions[0].removed == 7);
    wan_queue_count(&queue, 0);
    EXPECT_EQUAL(peek(8, records), 1);
    wan_queue_rewind(&queue, 0);
    receive(0, 20, 0);
    wan_queue_set_timeline(&queue, 0, 2); /* In another timeline that means nothing. */
    receive(8, 20, 1);                    /* That member never had event 8, which is here still. */
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 0);
    close_queue();
}

static void note_nothing(void *teller, uint32_t bucket) { (void)teller, (void)bucket; }

/* Opens a queue whose only partition is fed by a bucket, has `count` events, and tells. */
static void open_telling(uint64_t count, const uint64_t *high_watermark)
{
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, high_watermark, 1, 0), WAN_OK);
    wan_queue_announce_removals(&queue, 0, note_nothing, NULL);
    for (uint64_t n = 1; n <= count; n++) EXPECT_EQUAL(append_at(n), WAN_OK);
    wan_queue_count(&queue, 0);
}

/* What a queue remembers of the events behind `after` through `through`. */
static uint32_t remembered(uint64_t after, uint64_t through, wan_exception *exceptions)
{
    return wan_queue_exceptions(&queue, 0, after, through, exceptions);
}

static void a_queue_remembers_what_left_it_otherwise_than_by_an_acknowledgement(void)
{
    static wan_exception each[WAN_EXCEPTIONS_MAX];
    wan_record *records[1200];
    uint64_t high_watermark = 1200, dropped = 0;
    open_telling(1200, &high_watermark);
    EXPECT_EQUAL(peek(1000, records), 1000);
    EXPECT_EQUAL(remembered(0, 1200, each), 0);
    wan_queue_make_hole(&queue, 0, 2, WAN_HOLE_FILTERED);
    wan_queue_make_hole(&queue, 0, 3, WAN_HOLE_FILTERED);
    wan_queue_make_hole(&queue, 0, 4, WAN_HOLE_PARKED);
    wan_queue_make_hole(&queue, 0, 6, WAN_HOLE_PARKED);
    for (uint64_t n = 513; n <= 600; n++) wan_queue_make_hole(&queue, 0, n, WAN_HOLE_CONFLATED);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 700), 700 - 4 - 88);
    EXPECT_EQUAL(remembered(0, 1200, each), 4);
    EXPECT(each[0].first == 2 && each[0].count == 2 && each[0].reason == WAN_HOLE_FILTERED);
    EXPECT(each[1].first == 4 && each[1].count == 1 && each[1].reason == WAN_HOLE_PARKED);
    EXPECT(each[2].first == 6 && each[2].count == 1 && each[2].reason == WAN_HOLE_PARKED);
    EXPECT(each[3].first == 513 && each[3].count == 88 && each[3].reason == WAN_HOLE_CONFLATED);
    EXPECT_EQUAL(remembered(2, 520, each), 4); /* A part of the first and of the last. */
    EXPECT(each[0].first == 3 && each[0].count == 1 && each[3].first == 513 && each[3].count == 8);
    EXPECT_EQUAL(remembered(600, 1200, each), 0);
    wan_queue_set_told(&queue, 0, 5, 700);
    EXPECT(wan_queue_explained(&queue, 0, 5) == 700 && wan_queue_explained(&queue, 0, 6) == 0);
    EXPECT_EQUAL(wan_queue_clear(&queue, &dropped), WAN_OK);
    EXPECT_EQUAL(remembered(700, 1200, each), 1);
    EXPECT(each[0].first == 701 && each[0].count == 500 && each[0].reason == WAN_HOLE_CLEARED);
    wan_queue_begin_anew(&queue, 0, 2);
    EXPECT(remembered(0, 1200, each) == 0 && wan_queue_explained(&queue, 0, 5) == 0);
    close_queue();
}

static void a_block_of_holes_that_gave_its_memory_back_keeps_its_reason(void)
{
    static wan_exception each[WAN_EXCEPTIONS_MAX];
    wan_record *records[2048];
    uint64_t high_watermark = 2048;
    open_telling(2048, &high_watermark);
    EXPECT_EQUAL(peek(2048, records), 2048);
    for (uint64_t n = 513; n <= 1024; n++) wan_queue_make_hole(&queue, 0, n, WAN_HOLE_CONFLATED);
    EXPECT(!queue.partitions[0].blocks[1].entries);
    for (uint64_t n = 1025; n <= 1536; n++)
        wan_queue_make_hole(&queue, 0, n, n % 2 ? WAN_HOLE_FILTERED : WAN_HOLE_PARKED);
    EXPECT(queue.partitions[0].blocks[2].entries); /* It has holes for two reasons. */
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 1030), 512);
    EXPECT_EQUAL(remembered(0, 1030, each), 7);
    EXPECT(each[0].first == 513 && each[0].count == 512 && each[0].reason == WAN_HOLE_CONFLATED);
    EXPECT(each[1].first == 1025 && each[1].reason == WAN_HOLE_FILTERED);
    EXPECT(each[6].first == 1030 && each[6].reason == WAN_HOLE_PARKED);
    close_queue();
}

static void it_remembers_the_newest_and_says_from_where_on(void)
{
    static wan_exception each[WAN_EXCEPTIONS_MAX];
    wan_record *records[512];
    uint64_t high_watermark = 10000;
    open_telling(10000, &high_watermark);
    for (uint64_t n = 0; n < 10000; n += 500) {
        EXPECT_EQUAL(peek(500, records), 500);
        for (uint64_t at = n + 2; at <= n + 500; at += 2) wan_queue_make_hole(&queue, 0, at, WAN_HOLE_FILTERED);
        wan_queue_remove(&queue, 0, n + 500);
    }
    const uint64_t explained = wan_queue_explained(&queue, 0, 0);
    EXPECT(explained >= 10000 - 2 * WAN_EXCEPTIONS_MAX && explained <= 10000 - WAN_EXCEPTIONS_MAX);
    EXPECT_EQUAL(remembered(explained, 10000, each), (10000 - explained) / 2);
    EXPECT(each[0].first == explained + 2);
    close_queue();
}

static uint64_t kept[8];
static uint32_t kept_count;

static void keep_parked(void *parker, uint32_t partition, uint64_t sequence, uint32_t failure)
{
    EXPECT(parker == &queue && partition == 0 && failure == 6 && kept_count < 8);
    EXPECT(wan_queue_at(&queue, &queue.partitions[0], sequence) != NULL); /* It is still there to be copied. */
    kept[kept_count++] = sequence;
}

static void what_another_member_did_not_send_leaves_at_once(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 20;
    open_telling(10, &high_watermark);
    wan_exception told[] = {{2, 3, WAN_HOLE_FILTERED}, {7, 1, WAN_HOLE_CONFLATED}, {9, 4, WAN_HOLE_PARKED_FOR(6)}};
    EXPECT_EQUAL(peek(3, records), 3); /* These are on their way from here. */
    queue.park = keep_parked;
    queue.parker = &queue;
    kept_count = 0;
    wan_queue_receive_removal(&queue, 0, &(wan_removal){.through = 12, .exceptions = told, .count = 3, .leads = 1}, 0);
    EXPECT(queue.events == 4 && queue.removed_by_primary == 6 && queue.conflated == 0);
    EXPECT(kept_count == 2 && kept[0] == 9 && kept[1] == 10); /* The others were not parked, or are not here. */
    wan_queue_rewind(&queue, 0);
    wan_queue_let_go(&queue, 0, 1);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 4); /* 1, 5, 6, 8 were acknowledged. */
    EXPECT_EQUAL(queue.removed_by_primary, 10);
    for (uint64_t n = 11; n <= 14; n++) EXPECT_EQUAL(append_at(n), WAN_OK);
    EXPECT(queue.partitions[0].unsure_through == 12); /* The reasons of 11 and 12 were told before they came. */
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 2);
    static wan_exception each[WAN_EXCEPTIONS_MAX];
    EXPECT_EQUAL(remembered(10, 14, each), 1); /* What this one tells others of them. */
    EXPECT(each[0].first == 11 && each[0].count == 2 && each[0].reason == WAN_HOLE_UNKNOWN);
    close_queue();
}

static void what_nobody_explains_counts_as_acknowledged_by_nobody(void)
{
    uint64_t high_watermark = 20;
    open_telling(10, &high_watermark);
    wan_removal said = {.through = 8, .explained = 5};
    wan_queue_receive_removal(&queue, 0, &said, 0); /* The member that leads may tell the reasons still. */
    EXPECT(queue.events == 10 && queue.partitions[0].removed_through == 0);
    said.leads = 1;
    wan_queue_receive_removal(&queue, 0, &said, 0);
    EXPECT(queue.events == 5 && queue.removed_by_primary == 5 && queue.partitions[0].removed_through == 8);
    EXPECT_EQUAL(wan_queue_next_live(&queue.partitions[0], 1, 8), 6);
    close_queue();
}

static void holes_are_not_waited_for_when_no_snapshot_fills_them(void)
{
    uint64_t high_watermark = 9;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    EXPECT_EQUAL(append_at(5), WAN_OK); /* 1 to 4 are holes. */
    receive(5, 9, 1);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 0);
    receive(4, 9, 0); /* A snapshot may bring them. */
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 0);
    receive(4, 9, 1);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, UINT64_MAX), 1);
    EXPECT(queue.events == 0 && queue.partitions[0].removed == 5);
    close_queue();
}

static void a_snapshot_fills_the_holes_before_what_the_stream_brought(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 0;
    uint8_t old[512];
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    EXPECT_EQUAL(append_at(1400), WAN_OK);
    record_plan plan = {.operation = WAN_UPDATE, .key = "fed", .stamp = 1};
    write_plan(old, &plan);
    EXPECT_EQUAL(wan_queue_restore(&queue, 0, 900, (const wan_record *)old), WAN_OK);
    EXPECT_EQUAL(wan_queue_restore(&queue, 0, 901, (const wan_record *)old), WAN_OK);
    EXPECT_EQUAL(wan_queue_restore(&queue, 0, 901, (const wan_record *)old), WAN_OK); /* It is known. */
    EXPECT_EQUAL(queue.events, 3);
    high_watermark = 1400;
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 3);
    EXPECT_EQUAL(peek(8, records), 3);
    EXPECT(sequences[0] == 900 && sequences[1] == 901 && sequences[2] == 1400);
    close_queue();
}

static void append_for(uint16_t region, const char *key)
{
    append_plan(&(record_plan){.operation = WAN_CREATE, .region = region, .key = key, .stamp = ++next_stamp});
}

static void the_events_of_a_region_move_into_its_streams_and_what_is_on_its_way_stays_readable(void)
{
    wan_record *records[8], *others[8];
    wan_queue_place place = {0};
    uint64_t size, lowest[256];
    memset(lowest, 0xff, sizeof lowest);
    open_queue(0);
    append_for(5, "a");
    append_for(6, "b");
    append_for(5, "c");
    append_for(5, "d");
    EXPECT_EQUAL(peek(2, records), 2);
    uint32_t first = 0;
    EXPECT_EQUAL(wan_queue_add_run(&queue, 5, 1, 4, NULL, &first), WAN_OK);
    EXPECT_EQUAL(first, 4);
    EXPECT_EQUAL(queue.partition_count, 5);
    const wan_partition *stream = &queue.partitions[first];
    EXPECT(stream->region == 5 && stream->bucket == 0 && !stream->leads);
    while (wan_queue_move_to_run(&queue, &queue.runs[0], &place, 1, lowest) == WAN_EMPTY) {}
    EXPECT_EQUAL(queue.events, 4);
    EXPECT_EQUAL(queue.partitions[0].events, 1);
    EXPECT(stream->events == 3 && stream->duplicate_through == 1);
    EXPECT_EQUAL(lowest[records[0]->origin_site], records[0]->stamp);
    EXPECT_EQUAL(wan_partition_ready(stream), 0);
    wan_queue_lead(&queue, first, 1, 1);
    EXPECT_EQUAL(wan_queue_peek(&queue, first, 8, WAN_NO_LIMIT, 1, others, NULL, &size), 3);
    EXPECT(others[0] == records[0]); /* A record is not copied. */
    EXPECT_EQUAL(wan_queue_remove(&queue, first, 3), 3);
    EXPECT_EQUAL(queue.pinned.count, 1);
    append_for(7, "z"); /* It does not lie where somebody reads. */
    EXPECT(records[0]->region == 5 && *wan_record_key(records[0]) == 'a');
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2), 1);
    wan_queue_let_go(&queue, 1, 2);
    EXPECT_EQUAL(queue.pinned.count, 1); /* Another dispatcher reads it. */
    wan_queue_let_go(&queue, 0, 2);
    EXPECT_EQUAL(queue.pinned.count, 0);
    EXPECT_EQUAL(queue.events, 1);
    close_queue();
}

static void the_events_of_a_lost_bucket_leave_from_an_own_partition_in_order_as_possible_duplicates(void)
{
    wan_record *records[8], *others[8];
    uint64_t size, moved = 0, lowest[256], high_watermark = 9;
    wan_queue_place place = {0};
    uint32_t first = 0;
    memset(lowest, 0xff, sizeof lowest);
    open_queue(0);
    for (uint32_t n = 0; n < 3; n++) append_for(5, (const char *[]){"a", "b", "c"}[n]);
    EXPECT_EQUAL(wan_queue_add_run(&queue, 5, 1, 4, NULL, &first), WAN_OK);
    EXPECT_EQUAL(wan_queue_move_to_run(&queue, &queue.runs[0], &place, 8, lowest), WAN_OK);
    EXPECT_EQUAL(wan_queue_feed(&queue, first, &high_watermark, 1, 0), WAN_OK);
    wan_queue_lead(&queue, first, 1, 1);
    EXPECT_EQUAL(wan_queue_peek(&queue, first, 1, WAN_NO_LIMIT, 1, records, NULL, &size), 1);
    wan_queue_lead(&queue, first, 0, 0);
    memset(lowest, 0xff, sizeof lowest);
    EXPECT_EQUAL(wan_queue_move_from_run(&queue, first, 2, lowest, &moved), WAN_EMPTY);
    EXPECT_EQUAL(wan_queue_move_from_run(&queue, first, 2, lowest, &moved), WAN_OK);
    EXPECT_EQUAL(moved, 3);
    EXPECT_EQUAL(lowest[records[0]->origin_site], records[0]->stamp);
    EXPECT_EQUAL(wan_queue_begin_anew(&queue, first, 2), 0);
    EXPECT_EQUAL(queue.forgotten, 0);
    EXPECT_EQUAL(queue.pinned.count, 1); /* The dispatcher may still read what it peeked. */
    EXPECT_EQUAL(queue.events, 3);
    EXPECT_EQUAL(queue.partitions[0].duplicate_through, queue.partitions[0].appended);
    EXPECT_EQUAL(wan_partition_ready(&queue.partitions[0]), 3); /* Nobody is asked whether they count. */
    EXPECT_EQUAL(wan_queue_peek(&queue, 0, 8, WAN_NO_LIMIT, 1, others, NULL, &size), 3);
    for (uint32_t n = 0; n < 3; n++) EXPECT_EQUAL(*wan_record_key(others[n]), 'a' + n);
    EXPECT(others[0] == records[0]); /* A record is not copied. */
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, queue.partitions[0].appended), 3);
    wan_queue_let_go(&queue, 0, 1);
    EXPECT_EQUAL(queue.bytes, 0);
    close_queue();
}

static void a_partition_that_begins_anew_keeps_what_somebody_reads(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 9;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    EXPECT_EQUAL(append_at(1), WAN_OK);
    EXPECT_EQUAL(append_at(2), WAN_OK);
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 2);
    EXPECT_EQUAL(peek(1, records), 1);
    queue.partitions[0].removed_through = 7;
    EXPECT_EQUAL(wan_queue_begin_anew(&queue, 0, 2), 2);
    EXPECT(queue.partitions[0].timeline == 2 && queue.partitions[0].removed_through == 0);
    EXPECT_EQUAL(queue.pinned.count, 1);
    wan_queue_unpeek(&queue, 0, 1); /* Its dispatcher did not use it after all. */
    EXPECT(queue.partitions[0].peeked == 0 && records[0]->stamp == 1);
    close_queue();
}

static void a_partition_that_is_fed_later_begins_behind_what_came_before(void)
{
    uint64_t high_watermark = 5000000;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 5000000), WAN_OK);
    EXPECT_EQUAL(append_at(5000002), WAN_OK);
    const wan_partition *partition = &queue.partitions[0];
    EXPECT(partition->removed == 5000000 && partition->appended == 5000002 && partition->block_count == 1);
    close_queue();
}

/* A stream partition that is fed since change `last`, and lacks what came before. */
static void open_lacking(const uint64_t *high_watermark, uint64_t last)
{
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, high_watermark, 1, last), WAN_OK);
    wan_queue_lack(&queue, 0, last);
}

static void put_back(uint64_t sequence)
{
    uint64_t bytes[64];
    record_plan plan = {.operation = WAN_UPDATE, .key = "fed", .stamp = sequence};
    write_plan((uint8_t *)bytes, &plan);
    EXPECT_EQUAL(wan_queue_restore(&queue, 0, sequence, (const wan_record *)bytes), WAN_OK);
}

static void a_partition_that_lacks_events_sends_none_and_heeds_nothing(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 12;
    open_lacking(&high_watermark, 10);
    EXPECT_EQUAL(append_at(11), WAN_OK);
    EXPECT_EQUAL(append_at(12), WAN_OK);
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 0);
    wan_queue_lead(&queue, 0, 1, 0);
    EXPECT(!queue.partitions[0].leads && wan_partition_ready(&queue.partitions[0]) == 0);
    receive(0, 11, 1);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, 12), 0);
    wan_queue_lack(&queue, 0, 0);
    wan_queue_lead(&queue, 0, 1, 0);
    EXPECT_EQUAL(peek(8, records), 2);
    EXPECT(sequences[0] == 11 && queue.partitions[0].begun == 10);
    close_queue();
}

static void a_partition_reaches_back_over_any_edge_of_a_block(void)
{
    static const uint64_t lasts[] = {1, 3, 511, 512, 513, 1024, 1500, 2048};
    static const uint64_t afters[] = {0, 1, 2, 510, 511, 512, 513, 1023, 1024, 1499};
    static wan_record *records[4096];
    for (uint32_t n = 0; n < sizeof lasts / sizeof *lasts; n++) {
        for (uint32_t k = 0; k < 2 * sizeof afters / sizeof *afters; k++) {
            const uint64_t last = lasts[n], after = afters[k / 2];
            const int has_newer = k & 1;
            uint64_t high_watermark = last + 2, expected = 0;
            if (after >= last) continue;
            open_lacking(&high_watermark, last);
            wan_partition *partition = &queue.partitions[0];
            if (has_newer) EXPECT_EQUAL(append_at(last + 1), WAN_OK);
            EXPECT_EQUAL(wan_queue_reach_back(&queue, 0, after), WAN_OK);
            EXPECT_EQUAL(wan_queue_reach_back(&queue, 0, after), WAN_OK);
            EXPECT(partition->removed == after && partition->begun == after);
            EXPECT_EQUAL(queue.events, (uint64_t)has_newer);
            EXPECT_EQUAL(wan_queue_next_live(partition, after + 1, last), 0);
            for (uint64_t sequence = last; sequence > after; sequence -= sequence > after + 2 ? 2 : 1, expected++)
                put_back(sequence);
            if (!has_newer) EXPECT_EQUAL(append_at(last + 1), WAN_OK);
            EXPECT_EQUAL(append_at(last + 2), WAN_OK);
            (void)wan_queue_count(&queue, 0);
            wan_queue_lack(&queue, 0, 0);
            wan_queue_lead(&queue, 0, 1, 0);
            EXPECT_EQUAL(peek(4096, records), expected + 2);
            for (uint64_t at = 0; at < expected + 2; at++) EXPECT_EQUAL(records[at]->stamp, sequences[at]);
            EXPECT_EQUAL(wan_queue_remove(&queue, 0, last + 2), expected + 2);
            EXPECT(queue.events == 0 && queue.bytes == 0);
            close_queue();
        }
    }
}

static void what_a_partition_gets_from_others_is_stable_when_its_change_is(void)
{
    wan_record *records[8];
    int waits;
    uint64_t high_watermark = 4;
    open_lacking(&high_watermark, 6);
    EXPECT_EQUAL(wan_queue_removed_through(&queue, 0, &waits), 4);
    EXPECT_EQUAL(wan_queue_reach_back(&queue, 0, 2), WAN_OK);
    for (uint64_t sequence = 3; sequence <= 6; sequence++) put_back(sequence);
    EXPECT_EQUAL(wan_queue_removed_through(&queue, 0, &waits), 2);
    wan_queue_lack(&queue, 0, 0);
    wan_queue_lead(&queue, 0, 1, 0);
    EXPECT_EQUAL(peek(8, records), 2);
    EXPECT_EQUAL(queue.partitions[0].duplicate_through, 6);
    EXPECT_EQUAL(wan_queue_reach_back(&queue, 0, 0), WAN_EMPTY); /* Something is on its way. */
    high_watermark = 6;
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 2);
    EXPECT_EQUAL(peek(8, records), 2);
    close_queue();
}

static void an_older_update_that_comes_from_another_member_is_not_taken_for_a_newer_one(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 9;
    open_queue(1);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 5), WAN_OK);
    wan_queue_lack(&queue, 0, 5);
    EXPECT_EQUAL(append_at(7), WAN_OK);
    EXPECT_EQUAL(wan_queue_reach_back(&queue, 0, 3), WAN_OK);
    put_back(4);
    EXPECT_EQUAL(append_at(8), WAN_OK);
    EXPECT_EQUAL(append_at(9), WAN_OK);
    (void)wan_queue_count(&queue, 0);
    wan_queue_lack(&queue, 0, 0);
    wan_queue_lead(&queue, 0, 1, 0);
    EXPECT_EQUAL(peek(8, records), 3); /* 9 replaces 8. What was there before is not looked for. */
    EXPECT(sequences[0] == 4 && sequences[1] == 7 && sequences[2] == 9);
    close_queue();
}

static void events_come_out_in_the_order_in_which_they_went_in(void)
{
    open_queue(0);
    wan_record *records[2000];
    for (int n = 0; n < 2000; n++) append("k", WAN_UPDATE, (uint32_t)n % 50);
    EXPECT_EQUAL(peek(2000, records), 2000);
    for (uint32_t n = 0; n < 2000; n++) EXPECT(sequences[n] == n + 1 && records[n]->value_length == n % 50);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2000), 2000);
    EXPECT(queue.events == 0 && queue.bytes == 0);
    close_queue();
}

static void a_hole_behind_the_last_event_leaves_with_that(void)
{
    wan_record *records[3];
    open_queue(0);
    for (uint32_t n = 0; n < 3; n++) append("key", WAN_UPDATE, 10);
    EXPECT_EQUAL(peek(3, records), 3);
    wan_queue_make_hole(&queue, 0, 3, WAN_HOLE_FILTERED); /* As a filter refuses it while others are on their way. */
    wan_queue_rewind(&queue, 0);
    EXPECT_EQUAL(peek(2, records), 2);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2), 2);
    EXPECT_EQUAL(queue.partitions[0].removed, 3); /* Other members hear so that the event has left. */
    close_queue();
}

static void what_was_peeked_and_not_removed_comes_again_after_a_rewind(void)
{
    open_queue(0);
    wan_record *records[10];
    for (int n = 0; n < 10; n++) append("k", WAN_UPDATE, 4);
    peek(6, records);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2), 2);
    wan_queue_rewind(&queue, 0);
    EXPECT_EQUAL(queue.partitions[0].duplicate_through, 6);
    EXPECT_EQUAL(peek(10, records), 8);
    EXPECT_EQUAL(sequences[0], 3);
    close_queue();
}

static void holes_are_skipped_counted_out_and_removed_with_the_rest(void)
{
    open_queue(0);
    wan_record *records[10];
    for (int n = 0; n < 6; n++) append("k", WAN_UPDATE, 4);
    wan_queue_make_hole(&queue, 0, 1, WAN_HOLE_FILTERED);
    /* It is in front and nothing is on its way, so it is gone at once. */
    EXPECT_EQUAL(queue.partitions[0].removed, 1);
    wan_queue_make_hole(&queue, 0, 4, WAN_HOLE_FILTERED);
    /* A second time changes nothing. */
    wan_queue_make_hole(&queue, 0, 4, WAN_HOLE_FILTERED);
    wan_queue_make_hole(&queue, 0, 6, WAN_HOLE_FILTERED);
    EXPECT_EQUAL(queue.events, 3);
    EXPECT_EQUAL(peek(10, records), 3);
    EXPECT(sequences[0] == 2 && sequences[1] == 3 && sequences[2] == 5);
    EXPECT_EQUAL(queue.partitions[0].peeked, 6);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 6), 3);
    close_queue();
}

static void a_byte_limit_closes_a_peek_but_never_before_one_record(void)
{
    open_queue(0);
    wan_record *records[10];
    uint64_t size;
    for (int n = 0; n < 3; n++) append("k", WAN_UPDATE, 1000);
    EXPECT_EQUAL(peek_bytes(10, 1, 1, records, &size), 1);
    EXPECT_EQUAL(size, wan_record_length(records[0]));
    EXPECT_EQUAL(peek_bytes(10, 2 * size, 1, records, &size), 2);
    close_queue();
}

static void a_peek_that_finds_no_room_moves_nothing_not_even_past_holes(void)
{
    open_queue(0);
    wan_record *records[10];
    uint64_t size;
    for (int n = 0; n < 3; n++) append("k", WAN_UPDATE, 1000);
    peek(1, records);
    wan_queue_make_hole(&queue, 0, 2, WAN_HOLE_FILTERED);
    EXPECT_EQUAL(peek_bytes(10, 100, 0, records, &size), 0);
    EXPECT_EQUAL(queue.partitions[0].peeked, 1);
    EXPECT_EQUAL(peek_bytes(10, 100, 1, records, &size), 1);
    EXPECT_EQUAL(sequences[0], 3);
    close_queue();
}

static void every_edge_of_an_entry_block_keeps_its_events(void)
{
    static const uint64_t edges[] = {1, 511, 512, 513, 1023, 1024, 1025, 2048};
    for (int e = 0; e < 8; e++) {
        open_queue(0);
        wan_record *records[2100];
        uint64_t sequence = 0;
        for (int round = 0; round < 4; round++) {
            for (uint64_t n = 0; n < edges[e]; n++) append("k", WAN_UPDATE, 0);
            EXPECT_EQUAL(peek(2100, records), edges[e]);
            for (uint64_t n = 0; n < edges[e]; n++) EXPECT_EQUAL(sequences[n], sequence + n + 1);
            sequence += edges[e];
            EXPECT_EQUAL(wan_queue_remove(&queue, 0, sequence), edges[e]);
            EXPECT(queue.partitions[0].block_count <= 1);
        }
        close_queue();
    }
}

static void blocks_of_many_thousand_events_come_and_go_one_by_one(void)
{
    open_queue(0);
    wan_record *records[1];
    for (int n = 0; n < 20000; n++) append("k", WAN_UPDATE, 0);
    for (uint64_t n = 1; n <= 20000; n++) {
        peek(1, records);
        EXPECT_EQUAL(sequences[0], n);
        wan_queue_remove(&queue, 0, n);
        if (n % 3 == 0) append("k", WAN_UPDATE, 0);
    }
    EXPECT_EQUAL(queue.events, 20000 / 3);
    close_queue();
}

static void records_longer_than_a_reference_can_say_keep_their_length(void)
{
    open_queue(0);
    wan_record *records[3];
    append("k", WAN_UPDATE, (2u << 20) - 64);
    append("k", WAN_UPDATE, 2u << 20);
    append("k", WAN_UPDATE, 4u << 20);
    EXPECT_EQUAL(peek(3, records), 3);
    EXPECT(records[0]->value_length == (2u << 20) - 64 && records[1]->value_length == 2u << 20
           && records[2]->value_length == 4u << 20);
    EXPECT_EQUAL(queue.bytes,
                 wan_record_length(records[0]) + wan_record_length(records[1]) + wan_record_length(records[2]));
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 3), 3);
    EXPECT_EQUAL(queue.bytes, 0);
    EXPECT_EQUAL(disk.live, 0);
    close_queue();
}

static void of_several_updates_of_a_key_only_the_newest_stays(void)
{
    open_queue(1);
    wan_record *records[10];
    for (int n = 0; n < 1000; n++) append(n % 2 ? "a" : "b", WAN_UPDATE, 4);
    EXPECT_EQUAL(queue.events, 2);
    EXPECT_EQUAL(queue.conflated, 998);
    EXPECT_EQUAL(peek(10, records), 2);
    EXPECT(sequences[0] == 999 && sequences[1] == 1000);
    close_queue();
}

static void creates_and_destroys_always_travel(void)
{
    open_queue(1);
    append("k", WAN_CREATE, 4);
    append("k", WAN_UPDATE, 4);
    append("k", WAN_DESTROY, 0);
    append("k", WAN_CREATE, 4);
    EXPECT_EQUAL(queue.events, 4);
    append("k", WAN_UPDATE, 4);
    EXPECT_EQUAL(queue.events, 4); /* Only one of the two updates counts. */
    close_queue();
}

static void a_queue_with_a_failed_check_refuses_every_change(void)
{
    open_queue(1);
    wan_record *records[10];
    uint64_t size;
    wan_reservation reservation;
    append("k", WAN_UPDATE, 4);
    append("l", WAN_UPDATE, 4);
    peek(1, records);
    wan_stops_at_breakage = 0;
    /* Up to an event that was not peeked. */
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2), 0);
    wan_stops_at_breakage = 1;
    EXPECT(queue.broken && queue.broken->line && strstr(queue.broken->condition, "peeked"));
    EXPECT_EQUAL(queue.events, 2);
    EXPECT_EQUAL(wan_queue_reserve(&queue, 0, 128, &reservation), WAN_BROKEN);
    EXPECT(strstr(wan_detail, "wan_queue.c") && strstr(wan_detail, "through <= partition->peeked"));
    EXPECT_EQUAL(peek_bytes(10, WAN_NO_LIMIT, 1, records, &size), 0);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 1), 0);
    wan_queue_make_hole(&queue, 0, 2, WAN_HOLE_FILTERED);
    wan_queue_rewind(&queue, 0);
    EXPECT_EQUAL(queue.events, 2);
    wan_queue_unpeek(&queue, 0, 0);
    wan_queue_made_durable(&queue, 0, 2);
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 0);
    EXPECT_EQUAL(wan_queue_begin_anew(&queue, 0, 2), 0);
    wan_buffer superseded = {0};
    EXPECT_EQUAL(wan_buffer_add(&superseded, &(wan_hole){0, WAN_HOLE_CONFLATED, 2}, sizeof(wan_hole)), WAN_OK);
    wan_queue_remove_superseded(&queue, &superseded);
    wan_buffer_close(&superseded);
    wan_queue_compact(&queue);
    uint64_t dropped = 7;
    EXPECT_EQUAL(wan_queue_clear(&queue, &dropped), WAN_BROKEN);
    EXPECT_EQUAL(dropped, 7);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &dropped, 1, 0), WAN_BROKEN);
    EXPECT_EQUAL(wan_queue_restore(&queue, 0, 3, records[0]), WAN_BROKEN);
    EXPECT_EQUAL(wan_queue_restore_positions(&queue, 0, 1, 9), WAN_BROKEN);
    EXPECT_EQUAL(wan_queue_start_conflating(&queue), WAN_BROKEN);
    EXPECT_EQUAL(wan_queue_reserve_reference(&queue, 0, &reservation), WAN_BROKEN);
    EXPECT_EQUAL(wan_queue_commit_reference(&queue, &reservation, &queue, 0, 1), WAN_BROKEN);
    wan_run run;
    EXPECT_EQUAL(wan_queue_open_run(&queue, 128, &run), WAN_BROKEN);
    EXPECT_EQUAL(wan_queue_room_for_entries(&queue, 0, 1), WAN_BROKEN);
    EXPECT_EQUAL(queue.events, 2);
    EXPECT_EQUAL(queue.conflated, 0);
    const wan_partition *partition = &queue.partitions[0];
    EXPECT(partition->removed == 0 && partition->peeked == 1 && partition->appended == 2 && partition->unpeeked == 1);
    EXPECT(partition->durable == 0 && partition->stream == NULL && partition->stable == 0);
    /* A broken queue may still be looked at. */
    EXPECT(wan_queue_oldest(&queue, 0) == records[0]);
    close_queue();
}

static void what_was_peeked_is_not_conflated(void)
{
    open_queue(1);
    wan_record *records[10];
    append("k", WAN_UPDATE, 4);
    peek(1, records);
    append("k", WAN_UPDATE, 4);
    EXPECT_EQUAL(queue.events, 2);
    append("k", WAN_UPDATE, 4);
    EXPECT_EQUAL(queue.events, 2);
    close_queue();
}

static void an_older_update_that_comes_late_does_not_take_out_a_newer_one(void)
{
    open_queue(1);
    record_plan newer = {.operation = WAN_UPDATE, .key = "k", .stamp = 20},
                older = {.operation = WAN_UPDATE, .key = "k", .stamp = 10};
    append_plan(&newer);
    append_plan(&older); /* This record was parked and replayed. */
    wan_record *records[2];
    EXPECT_EQUAL(peek(2, records), 2);
    EXPECT_EQUAL(records[0]->stamp, 20);
    close_queue();
}

static void conflation_keeps_keys_of_different_form_and_region_apart(void)
{
    open_queue(1);
    record_plan here = {.operation = WAN_UPDATE, .key = "k", .region = 1},
                there = {.operation = WAN_UPDATE, .key = "k", .region = 2};
    append_plan(&here);
    append_plan(&there);
    EXPECT_EQUAL(queue.events, 2);
    close_queue();
}

static void the_index_of_conflation_survives_many_keys_that_come_and_go(void)
{
    open_queue(1);
    char key[16];
    wan_record *records[64];
    for (int n = 0; n < 30000; n++) {
        /* Each key comes twice. One of the two is conflated, unless the first was peeked before the second came. */
        snprintf(key, sizeof key, "%d", n / 2);
        append(key, WAN_UPDATE, 0);
        if (n % 64 == 63) {
            peek(64, records);
            wan_queue_remove(&queue, 0, queue.partitions[0].peeked);
        }
    }
    EXPECT_EQUAL(queue.conflated, 15000);
    EXPECT(queue.partitions[0].index_mask < 1024);
    close_queue();
}

/* A block of holes gave its memory back. A search for a live entry behind it looks at the block only, not at its
 * entries. */
/* The caller that commits may still read the record, for instance to add it to what is pending for the log. */
static void a_committed_record_stays_where_it_was_written_until_the_next_is_reserved(void)
{
    static const uint8_t value[2800];
    failing_disk_init(&disk);
    EXPECT_EQUAL(wan_queue_init(&queue, &disk.env, "nowhere", 1 << 30, 1, 1), WAN_OK);
    random_source source = {.state = 1};
    uint64_t moved = 0;
    for (uint32_t n = 0; n < 60000; n++) {
        char key[16];
        /* Mostly the same few keys. */
        snprintf(key, sizeof key, "%u", random_below(&source, 17) ? random_below(&source, 35) : 100 + n);
        record_plan plan = {
            .operation = WAN_UPDATE, .key = key, .value = value, .value_length = sizeof value, .stamp = ++next_stamp};
        wan_reservation reservation;
        EXPECT_EQUAL(wan_queue_reserve(&queue, 0, plan_length(&plan), &reservation), WAN_OK);
        write_plan(reservation.at, &plan);
        wan_queue_commit(&queue, &reservation);
        moved += (uint8_t *)wan_queue_at(&queue, &queue.partitions[0], queue.partitions[0].appended) != reservation.at;
    }
    EXPECT_EQUAL(moved, 0);
    EXPECT(queue.store->memory_bytes < 2 * queue.bytes + 6 * WAN_SEGMENT_BYTES);
    close_queue();
}

static void the_oldest_event_is_found_behind_millions_of_holes(void)
{
    open_queue(1);
    wan_record *records[1];
    append("first", WAN_CREATE, 0);
    /* It is on its way, so what is behind it stays in the middle. */
    peek(1, records);
    for (uint32_t n = 0; n < 1000000; n++) append("key", WAN_UPDATE, 0);
    wan_partition *partition = &queue.partitions[0];
    EXPECT_EQUAL(oldest(), 1);
    wan_queue_make_hole(&queue, 0, 1, WAN_HOLE_PARKED);
    EXPECT_EQUAL(wan_queue_next_live(partition, partition->removed + 1, partition->appended), 1000001);
    EXPECT_EQUAL(wan_queue_next_live(partition, partition->removed + 1, partition->appended - 1), 0);
    EXPECT_EQUAL(oldest(), 1000001);
    EXPECT_EQUAL(partition->known_holes, 1000000);
    append("other", WAN_CREATE, 0);
    EXPECT_EQUAL(oldest(), 1000001);
    peek(1, records);
    wan_queue_remove(&queue, 0, 1000001);
    EXPECT_EQUAL(oldest(), 1000002);
    close_queue();
}

static void a_reservation_given_up_leaves_no_trace(void)
{
    open_queue(0);
    wan_reservation reservation;
    for (int n = 0; n < 3000; n++) {
        EXPECT_EQUAL(wan_queue_reserve(&queue, 0, 65536, &reservation), WAN_OK);
        wan_queue_cancel(&queue, &reservation);
    }
    EXPECT(queue.events == 0 && queue.partitions[0].appended == 0 && disk.calls == 0);
    EXPECT_EQUAL(wan_queue_reserve(&queue, 0, 40u << 20, &reservation), WAN_OK);
    wan_queue_cancel(&queue, &reservation);
    EXPECT_EQUAL(disk.live, 0);
    close_queue();
}

static void a_reservation_beyond_the_limit_passes_it_by_a_segment_and_leaves_no_trace_when_given_up(void)
{
    static uint8_t value[1u << 20];
    const record_plan small = {.operation = WAN_UPDATE, .key = "k", .value = value, .value_length = 4000};
    const record_plan large = {
        .operation = WAN_UPDATE, .key = "large", .value = value, .value_length = (1u << 20) - 100};
    wan_reservation reservation;
    open_queue(0);
    disk.fail_at = 1;
    disk.fail_count = UINT32_MAX;
    while (wan_queue_reserve(&queue, 0, plan_length(&small), &reservation) == WAN_OK) {
        write_plan(reservation.at, &small);
        wan_queue_commit(&queue, &reservation);
    }
    const uint64_t before = queue.store->memory_bytes, limit = queue.store->memory_limit, appended = queue.events;
    EXPECT(appended > 500 && before <= limit);
    for (int n = 0; n < 100; n++) {
        EXPECT_EQUAL(wan_queue_reserve_beyond(&queue, 1, 0, plan_length(&small), &reservation), WAN_OK);
        EXPECT(reservation.beyond && queue.store->memory_bytes > limit
               && queue.store->memory_bytes <= limit + WAN_SEGMENT_BYTES);
        wan_queue_cancel(&queue, &reservation);
        EXPECT_EQUAL(queue.store->memory_bytes, before);
        EXPECT_EQUAL(queue.events, appended);
        EXPECT_EQUAL(wan_queue_reserve(&queue, 0, plan_length(&small), &reservation), WAN_FULL);
    }
    /* The record alone is too large. */
    EXPECT_EQUAL(wan_queue_reserve_beyond(&queue, 0, 0, limit + 8, &reservation), WAN_FULL);

    /* After the limit was passed once, it is not passed again until older events have gone. */
    EXPECT_EQUAL(wan_queue_reserve_beyond(&queue, 0, 0, plan_length(&large), &reservation), WAN_OK);
    write_plan(reservation.at, &large);
    wan_queue_commit(&queue, &reservation);
    EXPECT_EQUAL(wan_queue_reserve_beyond(&queue, 1, 0, WAN_SEGMENT_BYTES, &reservation), WAN_FULL);
    for (uint64_t sequence = 1; sequence <= appended; sequence++)
        wan_queue_make_hole(&queue, 0, sequence, WAN_HOLE_DROPPED);
    EXPECT_EQUAL(queue.store->memory_bytes, before);
    EXPECT_EQUAL(queue.events, 1);
    EXPECT_EQUAL(wan_queue_oldest(&queue, 0)->value_length, large.value_length);
    EXPECT_EQUAL(wan_queue_reserve_beyond(&queue, 1, 0, WAN_SEGMENT_BYTES, &reservation), WAN_OK);
    wan_queue_cancel(&queue, &reservation);
    close_queue();
}

static void a_queue_that_is_drained_holds_no_file_even_where_a_reservation_was_given_up(void)
{
    open_queue(0);
    wan_reservation reservation;
    wan_record *records[1];
    uint64_t size, appended = 0;
    while (!disk.live || appended < 40000) { /* Until records and entry blocks overflow into files. */
        append("k", WAN_UPDATE, 256);
        appended++;
    }
    EXPECT_EQUAL(wan_queue_reserve(&queue, 1, 64, &reservation), WAN_OK);
    /* The change lost against a later one, and partition 1 stays empty. */
    wan_queue_cancel(&queue, &reservation);
    while (peek_bytes(1, WAN_NO_LIMIT, 1, records, &size)) wan_queue_remove(&queue, 0, sequences[0]);
    EXPECT_EQUAL(queue.events, 0);
    EXPECT_EQUAL(disk.live, 0);
    close_queue();
}

static void a_full_disk_refuses_and_changes_nothing(void)
{
    open_queue(0);
    wan_reservation reservation;
    wan_record *records[1];
    uint64_t size, appended = 0, refused = 0;
    disk.fail_at = 1;
    disk.fail_count = UINT32_MAX;
    for (; appended < 100000; appended++) {
        record_plan plan = {.operation = WAN_UPDATE, .key = "k", .value = "v", .value_length = 1};
        if (wan_queue_reserve(&queue, 0, plan_length(&plan), &reservation) != WAN_OK) break;
        write_plan(reservation.at, &plan);
        wan_queue_commit(&queue, &reservation);
    }
    for (int n = 0; n < 10; n++) refused += wan_queue_reserve(&queue, 1, 4096, &reservation) == WAN_FULL;
    EXPECT_EQUAL(refused, 10);
    EXPECT(appended > 0 && queue.events == appended && queue.partitions[0].appended == appended);
    EXPECT_EQUAL(disk.live, 0);
    EXPECT_EQUAL(peek_bytes(1, WAN_NO_LIMIT, 1, records, &size), 1);
    disk.fail_at = 0;
    EXPECT_EQUAL(wan_queue_reserve(&queue, 1, 4096, &reservation), WAN_OK);
    wan_queue_cancel(&queue, &reservation);
    close_queue();
}

static void a_queue_needs_a_sensible_number_of_partitions(void)
{
    EXPECT_EQUAL(wan_queue_init(&queue, &wan_env_posix, NULL, 0, 0, 0), WAN_INVALID);
    EXPECT_EQUAL(wan_queue_init(&queue, &wan_env_posix, NULL, 0, 65536, 0), WAN_INVALID);
}

static void many_empty_partitions_cost_kilobytes(void)
{
    EXPECT_EQUAL(wan_queue_init(&queue, &wan_env_posix, NULL, 0, 113, 0), WAN_OK);
    EXPECT_EQUAL(queue.store->memory_bytes, 0);
    EXPECT(113 * sizeof *queue.partitions < 32768);
    wan_queue_close(&queue);
}

/* Makes the file of a log: records with other bytes between them. It is mapped for reading, so a write would end the
 * test. */
static uint8_t *make_adopted(uint64_t bytes, uint32_t events, uint32_t *segment)
{
    uint8_t *base;
    EXPECT_EQUAL(disk.env.map_overflow(&disk.env, "nowhere", bytes, &base), WAN_OK);
    memset(base, 0xee, bytes);
    uint64_t at[4096], next = 4096;
    static uint8_t value[1000];
    for (uint32_t n = 0; n < events; n++) {
        record_plan plan = {
            .operation = WAN_UPDATE, .key = "k", .value = value, .value_length = n % 1000, .stamp = n + 1};
        at[n] = next;
        next += write_plan(base + next, &plan) + (n % 5 ? 0 : 16);
    }
    EXPECT(next <= bytes);
    mprotect(base, bytes, PROT_READ);
    EXPECT_EQUAL(wan_store_adopt(queue.store, "log", base, bytes, segment), WAN_OK);
    for (uint32_t n = 0; n < events; n++)
        EXPECT_EQUAL(wan_queue_restore_here(&queue, *segment, 0, n + 1, (const wan_record *)(base + at[n])), WAN_OK);
    wan_store_adopted(queue.store, *segment);
    return base;
}

static void records_of_a_mapped_log_stay_where_they_lie_until_the_last_has_left(void)
{
    open_queue(0);
    uint32_t segment;
    const uint8_t *base = make_adopted(2 << 20, 3000, &segment);
    wan_record *records[4000];
    append("new", WAN_UPDATE, 7);
    /* It takes no records beyond the file. */
    EXPECT_EQUAL(peek(4000, records), 3000);
    wan_store_span span = wan_queue_span(&queue, 0, 1, 3000);
    EXPECT(span.base == base && span.from == 4096
           && span.base + span.to == (const uint8_t *)records[2999] + wan_record_length(records[2999]));
    EXPECT(wan_queue_span(&queue, 0, 3001, 3001).file == NULL);
    wan_queue_unpeek(&queue, 0, 1000);
    EXPECT_EQUAL(queue.partitions[0].unpeeked, 2001);
    wan_queue_unpeek(&queue, 0, 0);
    EXPECT_EQUAL(peek(4000, records), 3000);
    for (uint32_t n = 0; n < 3000; n++) {
        EXPECT(sequences[n] == n + 1 && records[n]->value_length == n % 1000);
        EXPECT((const uint8_t *)records[n] > base && (const uint8_t *)records[n] < base + (2 << 20));
    }
    EXPECT_EQUAL(peek(4000, records), 1);
    EXPECT_EQUAL(disk.live, 1);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 2999), 2999);
    EXPECT_EQUAL(disk.live, 1);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 3000), 1);
    EXPECT_EQUAL(disk.live, 0);
    EXPECT_EQUAL(queue.store->adopted_bytes, 0);
    close_queue();
}

static void what_lives_in_a_mapped_log_that_is_mostly_dead_moves_out_of_it(void)
{
    open_queue(0);
    uint32_t segment;
    make_adopted(24 << 20, 4000, &segment);
    wan_record *records[4000];
    for (uint64_t sequence = 2; sequence <= 4000; sequence++)
        if (sequence % 10) wan_queue_make_hole(&queue, 0, sequence, WAN_HOLE_CONFLATED);
    wan_queue_compact(&queue);
    EXPECT_EQUAL(disk.live, 0);
    EXPECT_EQUAL(peek(4000, records), 401);
    for (uint32_t n = 1; n < 401; n++)
        EXPECT(sequences[n] == n * 10 && records[n]->stamp == n * 10
               && records[n]->value_length == (n * 10 - 1) % 1000);
    close_queue();
}

static void a_mapped_log_of_which_nothing_lives_is_let_go_at_once(void)
{
    open_queue(0);
    EXPECT_EQUAL(wan_queue_restore_positions(&queue, 0, 100, 100), WAN_OK);
    uint32_t segment;
    make_adopted(1 << 20, 100, &segment);
    EXPECT_EQUAL(disk.live, 0);
    EXPECT_EQUAL(queue.events, 0);
    close_queue();
}

/* A queue that conflates for weeks has one old event and the newest one, and almost nothing between them. */
static void holes_without_number_take_hardly_any_memory_and_are_filled_by_what_was_moved(void)
{
    open_queue(0);
    const uint64_t placed[] = {70, 300000000, 5000, 299999744, 300000001, 1, 299999743};
    uint8_t bytes[128];
    for (uint32_t n = 0; n < 7; n++) {
        record_plan plan = {.operation = WAN_UPDATE, .key = "k", .stamp = n + 1};
        write_plan(bytes, &plan);
        EXPECT_EQUAL(wan_queue_restore(&queue, 0, placed[n], (const wan_record *)bytes), WAN_OK);
        /* The record is there already. */
        EXPECT_EQUAL(wan_queue_restore(&queue, 0, placed[n], (const wan_record *)bytes), WAN_OK);
    }
    EXPECT(queue.store->memory_bytes < 2 * (WAN_SEGMENT_BYTES + WAN_SEGMENT_BYTES));
    append("new", WAN_UPDATE, 9);
    static const uint64_t in_order[] = {1, 70, 5000, 299999743, 299999744, 300000000, 300000001, 300000002};
    wan_record *records[16];
    EXPECT_EQUAL(peek(16, records), 8);
    for (uint32_t n = 0; n < 8; n++) EXPECT_EQUAL(sequences[n], in_order[n]);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, 300000002), 8);
    append("next", WAN_UPDATE, 10);
    EXPECT_EQUAL(queue.partitions[0].appended, 300000003);
    close_queue();
}

/* Two queues in one store. */

static wan_store *shared;
static wan_queue first, second;

static void open_two(int conflate)
{
    failing_disk_init(&disk);
    EXPECT_EQUAL(wan_store_new(&disk.env, "nowhere", 0, &shared), WAN_OK);
    EXPECT_EQUAL(wan_queue_init_in(&first, shared, 1, conflate), WAN_OK);
    EXPECT_EQUAL(wan_queue_init_in(&second, shared, 2, conflate), WAN_OK);
    wan_store_release(shared);
}

static void close_two(void)
{
    wan_queue_close(&first);
    wan_queue_close(&second);
    EXPECT_EQUAL(disk.live, 0);
}

/* Appends one event to both queues. Its record is written once. */
static void append_both(const char *key, uint32_t value_length)
{
    static const uint8_t value[300000];
    record_plan plan = {
        .operation = WAN_UPDATE, .key = key, .value = value, .value_length = value_length, .stamp = ++next_stamp};
    wan_reservation record, reference;
    EXPECT_EQUAL(wan_queue_reserve(&first, 0, plan_length(&plan), &record), WAN_OK);
    EXPECT_EQUAL(wan_queue_reserve_reference(&second, 1, &reference), WAN_OK);
    write_plan(record.at, &plan);
    wan_queue_commit(&first, &record);
    EXPECT_EQUAL(wan_queue_commit_reference(&second, &reference, &first, 0, record.sequence), WAN_OK);
}

static wan_record *take_one(wan_queue *from, uint32_t partition)
{
    wan_record *record = NULL;
    uint64_t size;
    EXPECT_EQUAL(wan_queue_peek(from, partition, 1, WAN_NO_LIMIT, 1, &record, NULL, &size), 1);
    return record;
}

static void a_reference_to_what_is_not_there_is_not_committed(void)
{
    open_two(0);
    append_both("k", 100);
    wan_reservation reference;
    EXPECT_EQUAL(wan_queue_reserve_reference(&second, 0, &reference), WAN_OK);
    wan_stops_at_breakage = 0;
    EXPECT_EQUAL(wan_queue_commit_reference(&second, &reference, &first, 0, 2), WAN_BROKEN);
    wan_stops_at_breakage = 1;
    wan_queue_cancel(&second, &reference);
    EXPECT(strstr(second.broken->condition, "sequence <= partition->appended") && !first.broken);
    EXPECT(second.events == 1 && second.partitions[0].appended == 0 && first.events == 1);
    close_two();
}

static void one_record_stands_in_two_queues_until_both_have_removed_it(void)
{
    open_two(0);
    append_both("k", 100);
    EXPECT(first.events == 1 && second.events == 1 && first.bytes == second.bytes);
    wan_record *here = take_one(&first, 0), *there = take_one(&second, 1);
    EXPECT(here == there);
    EXPECT_EQUAL(wan_queue_remove(&first, 0, 1), 1);
    /* The next record of the first queue does not lie there. */
    record_plan plan = {.operation = WAN_UPDATE, .key = "other", .stamp = 1};
    wan_reservation reservation;
    EXPECT_EQUAL(wan_queue_reserve(&first, 0, plan_length(&plan), &reservation), WAN_OK);
    EXPECT(reservation.at != (uint8_t *)there);
    write_plan(reservation.at, &plan);
    wan_queue_commit(&first, &reservation);
    EXPECT(there->value_length == 100 && memcmp(wan_record_key(there), "k", 1) == 0);
    EXPECT_EQUAL(wan_queue_remove(&second, 1, 1), 1);
    close_two();
}

static void the_last_queue_that_refers_to_a_record_frees_it(void)
{
    for (int order = 0; order < 3; order++) {
        open_two(0);
        /* These need many segments, in memory and in files. */
        for (int n = 0; n < 300; n++) append_both("k", 30000);
        EXPECT(disk.live > 0);
        wan_queue *one = order ? &second : &first, *other = order ? &first : &second;
        if (order == 2) wan_queue_close(one);
        else {
            uint64_t dropped;
            EXPECT_EQUAL(wan_queue_clear(one, &dropped), WAN_OK);
            EXPECT_EQUAL(dropped, 300);
            EXPECT_EQUAL(one->events, 0);
        }
        EXPECT(disk.live > 0);
        uint64_t value_lengths = 0;
        for (int n = 0; n < 300; n++) {
            wan_record *record = take_one(other, other == &second);
            value_lengths += record->value_length;
            EXPECT_EQUAL(wan_queue_remove(other, other == &second, (uint64_t)n + 1), 1);
        }
        EXPECT_EQUAL(value_lengths, 300 * 30000);
        EXPECT_EQUAL(disk.live, 0);
        if (order == 2) EXPECT_EQUAL(wan_queue_init_in(one, other->store, 2, 0), WAN_OK);
        close_two();
    }
}

static void a_reference_that_is_given_up_leaves_no_trace(void)
{
    open_two(0);
    wan_reservation reservation;
    for (int n = 0; n < 2000; n++) {
        EXPECT_EQUAL(wan_queue_reserve_reference(&second, 0, &reservation), WAN_OK);
        wan_queue_cancel(&second, &reservation);
    }
    EXPECT(second.events == 0 && second.partitions[0].appended == 0 && shared->memory_bytes <= WAN_BLOCK_SEGMENT_BYTES);
    close_two();
}

/* One queue conflates or drops what the other one keeps. It moves its records out of sparse segments, and the other
 * queue's records stay. */
static void moving_out_of_sparse_segments_leaves_what_another_queue_refers_to(void)
{
    enum { EVENTS = 6000 };
    open_two(0);
    char key[16];
    for (int n = 0; n < EVENTS; n++) {
        snprintf(key, sizeof key, "%d", n);
        append_both(key, 3000);
    }
    for (uint64_t sequence = 1; sequence <= EVENTS; sequence++) {
        if (sequence % 16) wan_queue_make_hole(&first, 0, sequence, WAN_HOLE_CONFLATED);
        /* So a few records of each segment live, some of them for both queues. */
        if (sequence % 8) wan_queue_make_hole(&second, 1, sequence, WAN_HOLE_FILTERED);
    }
    wan_queue_compact(&first);
    wan_queue_compact(&second);
    EXPECT(shared->memory_bytes + shared->file_bytes
           < 2 * (first.bytes + second.bytes) + 8 * (uint64_t)WAN_FILE_SEGMENT_BYTES);
    for (int which = 0; which < 2; which++) {
        wan_queue *from = which ? &second : &first;
        const uint64_t step = which ? 8 : 16;
        for (uint64_t sequence = step; sequence <= EVENTS; sequence += step) {
            wan_record *record = wan_queue_at(from, &from->partitions[which], sequence);
            snprintf(key, sizeof key, "%" PRIu64, sequence - 1);
            EXPECT(record && record->value_length == 3000 && record->key_length == strlen(key)
                   && memcmp(wan_record_key(record), key, strlen(key)) == 0);
        }
        uint64_t dropped;
        EXPECT_EQUAL(wan_queue_clear(from, &dropped), WAN_OK);
    }
    EXPECT_EQUAL(disk.live, 0);
    close_two();
}

#define FAR ((uint64_t)1 << 40)

static void a_gap_between_sequences_takes_no_memory_and_no_time(void)
{
    wan_record *records[8];
    uint64_t high_watermark = 2 * FAR;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    wan_partition *partition = &queue.partitions[0];
    partition->leads = 0;
    EXPECT_EQUAL(append_at(FAR), WAN_OK); /* The stream of a learner begins anywhere. */
    put_back(7);                          /* Its snapshot brings what is older. */
    put_back(FAR / 2);
    EXPECT_EQUAL(append_at(FAR + FAR / 2), WAN_OK);
    EXPECT(partition->block_count == 4 && partition->block_capacity <= 8);
    EXPECT_EQUAL(wan_queue_count(&queue, 0), 0);
    wan_queue_lead(&queue, 0, 1, 1);
    EXPECT_EQUAL(peek(8, records), 4);
    EXPECT(sequences[0] == 7 && sequences[1] == FAR / 2 && sequences[2] == FAR && sequences[3] == FAR + FAR / 2);
    wan_queue_rewind(&queue, 0);
    EXPECT_EQUAL(peek(2, records), 2);
    EXPECT_EQUAL(wan_queue_remove(&queue, 0, FAR / 2), 2);
    EXPECT_EQUAL(wan_queue_remove_through(&queue, 0, FAR), WAN_OK);
    EXPECT(queue.events == 1 && partition->block_count == 1);
    EXPECT_EQUAL(wan_queue_remove_through(&queue, 0, 2 * FAR), WAN_OK);
    EXPECT(queue.events == 0 && !partition->has_gaps && partition->appended == 2 * FAR);
    EXPECT_EQUAL(append_at(2 * FAR + 1), WAN_OK);
    close_queue();
}

/* What a stream partition with gaps must have: its sequences, in order. */
static struct {
    uint64_t alive[600];
    uint32_t count;
} sparse;

static void sparse_add(uint64_t sequence)
{
    uint32_t at = sparse.count++;
    for (; at && sparse.alive[at - 1] > sequence; at--) sparse.alive[at] = sparse.alive[at - 1];
    sparse.alive[at] = sequence;
}

static void sparse_remove(uint32_t at)
{
    sparse.count--;
    memmove(&sparse.alive[at], &sparse.alive[at + 1], (sparse.count - at) * sizeof *sparse.alive);
}

static void sparse_is_same(void)
{
    const wan_partition *partition = &queue.partitions[0];
    uint64_t sequence = partition->removed, peeked = 0, counts = 0;
    for (uint32_t n = 0; n < sparse.count; n++) {
        sequence = wan_queue_next_live(partition, sequence + 1, partition->appended);
        EXPECT_EQUAL(sequence, sparse.alive[n]);
        EXPECT_EQUAL(wan_queue_at(&queue, partition, sequence)->stamp, sequence);
        peeked += sequence <= partition->peeked;
        counts += sequence > partition->stable;
    }
    if (sequence < partition->appended)
        EXPECT_EQUAL(wan_queue_next_live(partition, sequence + 1, partition->appended), 0);
    EXPECT(partition->events == sparse.count && partition->unpeeked == sparse.count - peeked);
    EXPECT(partition->unstable_events == counts);
    EXPECT(partition->block_count <= sparse.count + 2 + queue.hole_bytes / 64);
}

static void sparse_step(random_source *source, uint64_t *high_watermark)
{
    static const uint64_t gaps[] = {1, 1, 1, 2, 3, 510, 511, 512, 513, 1024, 5000, FAR};
    wan_partition *partition = &queue.partitions[0];
    wan_record *records[16];
    const uint32_t what = random_below(source, 8);
    if (what < 3 && sparse.count < 500) {
        const uint64_t sequence = partition->appended + gaps[random_below(source, sizeof gaps / sizeof *gaps)];
        EXPECT_EQUAL(append_at(sequence), WAN_OK);
        sparse_add(sequence);
    } else if (what == 3 && sparse.count < 500 && partition->peeked == partition->removed) {
        const uint64_t room = partition->appended - partition->removed;
        uint64_t sequence = room ? partition->removed + 1 + random_next(source) % room : 0;
        for (uint32_t n = 0; sequence && n < sparse.count; n++)
            if (sparse.alive[n] == sequence) sequence = 0;
        if (!sequence) return;
        put_back(sequence);
        sparse_add(sequence);
    } else if (what == 4 && sparse.count) {
        const uint32_t at = random_below(source, sparse.count);
        wan_queue_make_hole(&queue, 0, sparse.alive[at], WAN_HOLE_FILTERED);
        sparse_remove(at);
    } else if (what == 5) {
        *high_watermark = partition->appended - random_next(source) % (partition->appended - partition->stable + 1);
        (void)wan_queue_count(&queue, 0);
        const uint32_t taken = peek(random_below(source, 16), records);
        for (uint32_t n = 0; n < taken; n++) EXPECT_EQUAL(records[n]->stamp, sequences[n]);
    } else if (what == 6) {
        (void)wan_queue_remove(&queue, 0, partition->peeked);
        while (sparse.count && sparse.alive[0] <= partition->removed) sparse_remove(0);
    } else if (random_below(source, 3)) {
        wan_queue_rewind(&queue, 0);
    } else if (partition->peeked == partition->removed && partition->appended > partition->removed) {
        const uint64_t through =
            partition->removed + 1 + random_next(source) % (partition->appended - partition->removed);
        EXPECT_EQUAL(wan_queue_remove_through(&queue, 0, through), WAN_OK);
        while (sparse.count && sparse.alive[0] <= through) sparse_remove(0);
    }
}

static void a_partition_with_gaps_does_what_a_plain_list_says(void)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        random_source source = {.state = seed};
        uint64_t high_watermark = 0;
        open_queue(0);
        sparse.count = 0;
        EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
        for (uint32_t n = 0; n < 1000; n++) {
            sparse_step(&source, &high_watermark);
            sparse_is_same();
        }
        close_queue();
    }
}

static void what_was_said_beyond_the_newest_change_removes_nothing_that_comes(void)
{
    uint64_t high_watermark = 9;
    open_queue(0);
    EXPECT_EQUAL(wan_queue_feed(&queue, 0, &high_watermark, 1, 0), WAN_OK);
    EXPECT_EQUAL(append_at(1), WAN_OK);
    queue.partitions[0].leads = 0;
    receive(0, FAR, 1);
    wan_queue_bound_removal(&queue, 0, 1);
    EXPECT_EQUAL(append_at(2), WAN_OK);
    EXPECT_EQUAL(wan_queue_apply_removal(&queue, 0, 2), 1);
    EXPECT_EQUAL(queue.events, 1);
    close_queue();
}

static void two_queues_that_conflate_each_keep_their_newest(void)
{
    open_two(1);
    for (int n = 0; n < 5000; n++) {
        append_both(n % 3 ? "a" : "b", 2000);
        if (n == 2500)
            EXPECT_EQUAL(
                wan_queue_remove(&first, 0, (take_one(&first, 0), take_one(&first, 0), first.partitions[0].peeked)), 2);
    }
    EXPECT(first.events == 2 && second.events == 2);
    EXPECT(take_one(&first, 0)->stamp == take_one(&second, 1)->stamp);
    EXPECT(shared->memory_bytes <= 6 * WAN_SEGMENT_BYTES);
    close_two();
}

static void random_operations_do_what_a_plain_model_says(void)
{
    queue_model *model = malloc(sizeof *model);
    for (uint64_t seed = 1; seed <= 12; seed++) {
        random_source source = {.state = seed};
        uint64_t differences = queue_model_run(model, &source, 1500, seed % 2);
        EXPECT_EQUAL(differences, 0);
        if (differences) printf("    seed %" PRIu64 "\n", seed);
    }
    free(model);
}

const test_case queue_tests[] = {
    {"a bucket gives events their sequences, and says which of them count",
     a_bucket_gives_events_their_sequences_and_says_which_of_them_count},
    {"a bucket that feeds no more leaves no event behind its high watermark",
     a_bucket_that_feeds_no_more_leaves_no_event_behind_its_high_watermark},
    {"what is left when nothing feeds a stream is sent by whoever has all of it",
     what_is_left_when_nothing_feeds_a_stream_is_sent_by_whoever_has_all_of_it},
    {"a partition begins anew with its bucket", a_partition_begins_anew_with_its_bucket},
    {"what left a stream may be told when it, and all that replaced it, is replicated",
     what_left_a_stream_may_be_told_when_it_and_all_that_replaced_it_is_replicated},
    {"what another member removed goes when nothing is on its way",
     what_another_member_removed_goes_when_nothing_is_on_its_way},
    {"a queue remembers what left it otherwise than by an acknowledgement",
     a_queue_remembers_what_left_it_otherwise_than_by_an_acknowledgement},
    {"a block of holes that gave its memory back keeps its reason",
     a_block_of_holes_that_gave_its_memory_back_keeps_its_reason},
    {"it remembers the newest and says from where on", it_remembers_the_newest_and_says_from_where_on},
    {"what another member did not send leaves at once", what_another_member_did_not_send_leaves_at_once},
    {"what nobody explains counts as acknowledged by nobody", what_nobody_explains_counts_as_acknowledged_by_nobody},
    {"holes are not waited for when no snapshot fills them", holes_are_not_waited_for_when_no_snapshot_fills_them},
    {"a snapshot fills the holes before what the stream brought",
     a_snapshot_fills_the_holes_before_what_the_stream_brought},
    {"the events of a region move into its streams, and what is on its way stays readable",
     the_events_of_a_region_move_into_its_streams_and_what_is_on_its_way_stays_readable},
    {"the events of a lost bucket leave from an own partition in order, as possible duplicates",
     the_events_of_a_lost_bucket_leave_from_an_own_partition_in_order_as_possible_duplicates},
    {"a partition that begins anew keeps what somebody reads", a_partition_that_begins_anew_keeps_what_somebody_reads},
    {"a partition that is fed later begins behind what came before",
     a_partition_that_is_fed_later_begins_behind_what_came_before},
    {"a partition that lacks events sends none and heeds nothing",
     a_partition_that_lacks_events_sends_none_and_heeds_nothing},
    {"a gap between sequences takes no memory and no time", a_gap_between_sequences_takes_no_memory_and_no_time},
    {"a partition with gaps does what a plain list says", a_partition_with_gaps_does_what_a_plain_list_says},
    {"what was said beyond the newest change removes nothing that comes",
     what_was_said_beyond_the_newest_change_removes_nothing_that_comes},
    {"a partition reaches back over any edge of a block", a_partition_reaches_back_over_any_edge_of_a_block},
    {"what a partition gets from others is stable when its change is",
     what_a_partition_gets_from_others_is_stable_when_its_change_is},
    {"an older update that comes from another member is not taken for a newer one",
     an_older_update_that_comes_from_another_member_is_not_taken_for_a_newer_one},
    {"events come out in the order in which they went in", events_come_out_in_the_order_in_which_they_went_in},
    {"a hole behind the last event leaves with that", a_hole_behind_the_last_event_leaves_with_that},
    {"what was peeked and not removed comes again after a rewind",
     what_was_peeked_and_not_removed_comes_again_after_a_rewind},
    {"holes are skipped, counted out and removed with the rest",
     holes_are_skipped_counted_out_and_removed_with_the_rest},
    {"a byte limit closes a peek but never before one record", a_byte_limit_closes_a_peek_but_never_before_one_record},
    {"a peek that finds no room moves nothing, not even past holes",
     a_peek_that_finds_no_room_moves_nothing_not_even_past_holes},
    {"every edge of an entry block keeps its events", every_edge_of_an_entry_block_keeps_its_events},
    {"blocks of many thousand events come and go one by one", blocks_of_many_thousand_events_come_and_go_one_by_one},
    {"records longer than a reference can say keep their length",
     records_longer_than_a_reference_can_say_keep_their_length},
    {"of several updates of a key only the newest stays", of_several_updates_of_a_key_only_the_newest_stays},
    {"creates and destroys always travel", creates_and_destroys_always_travel},
    {"a queue with a failed check refuses every change", a_queue_with_a_failed_check_refuses_every_change},
    {"a reference to what is not there is not committed", a_reference_to_what_is_not_there_is_not_committed},
    {"what was peeked is not conflated", what_was_peeked_is_not_conflated},
    {"an older update that comes late does not take out a newer one",
     an_older_update_that_comes_late_does_not_take_out_a_newer_one},
    {"conflation keeps keys of different form and region apart",
     conflation_keeps_keys_of_different_form_and_region_apart},
    {"the index of conflation survives many keys that come and go",
     the_index_of_conflation_survives_many_keys_that_come_and_go},
    {"a committed record stays where it was written until the next is reserved",
     a_committed_record_stays_where_it_was_written_until_the_next_is_reserved},
    {"the oldest event is found behind millions of holes", the_oldest_event_is_found_behind_millions_of_holes},
    {"a reservation given up leaves no trace", a_reservation_given_up_leaves_no_trace},
    {"a reservation beyond the limit passes it by a segment and leaves no trace when given up",
     a_reservation_beyond_the_limit_passes_it_by_a_segment_and_leaves_no_trace_when_given_up},
    {"a queue that is drained holds no file even where a reservation was given up",
     a_queue_that_is_drained_holds_no_file_even_where_a_reservation_was_given_up},
    {"a full disk refuses and changes nothing", a_full_disk_refuses_and_changes_nothing},
    {"a queue needs a sensible number of partitions", a_queue_needs_a_sensible_number_of_partitions},
    {"many empty partitions cost kilobytes", many_empty_partitions_cost_kilobytes},
    {"records of a mapped log stay where they lie until the last has left",
     records_of_a_mapped_log_stay_where_they_lie_until_the_last_has_left},
    {"what lives in a mapped log that is mostly dead moves out of it",
     what_lives_in_a_mapped_log_that_is_mostly_dead_moves_out_of_it},
    {"a mapped log of which nothing lives is let go at once", a_mapped_log_of_which_nothing_lives_is_let_go_at_once},
    {"holes without number take hardly any memory and are filled by what was moved",
     holes_without_number_take_hardly_any_memory_and_are_filled_by_what_was_moved},
    {"one record stands in two queues until both have removed it",
     one_record_stands_in_two_queues_until_both_have_removed_it},
    {"the last queue that refers to a record frees it", the_last_queue_that_refers_to_a_record_frees_it},
    {"a reference that is given up leaves no trace", a_reference_that_is_given_up_leaves_no_trace},
    {"moving out of sparse segments leaves what another queue refers to",
     moving_out_of_sparse_segments_leaves_what_another_queue_refers_to},
    {"two queues that conflate each keep their newest", two_queues_that_conflate_each_keep_their_newest},
    {"random operations do what a plain model says", random_operations_do_what_a_plain_model_says},
    {0},
};
