/* Owns the tests of the log on a disk that misbehaves: cut anywhere, any call failing, full, stopping at any moment. */
#include "log_owner.h"

#include "base/wan_crc32c.h"

static memory_disk disk, other;
static log_owner owner, again;

static void begin(void)
{
    memory_disk_init(&disk);
    owner_init(&owner, &disk);
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
}

static void end(void)
{
    owner_close(&owner);
    memory_disk_close(&disk);
}

static wan_status reopen(void)
{
    owner_close(&owner);
    return owner_open(&owner);
}

static void write_items(uint32_t count, uint64_t length)
{
    for (uint32_t n = 0; n < count; n++) EXPECT_EQUAL(owner_write(&owner, length + n % 57), WAN_OK);
}

static void expect_refusal(wan_status wanted, const char *words)
{
    owner_close(&owner);
    wan_status status = owner_open(&owner);
    EXPECT_EQUAL(status, wanted);
    EXPECT(strstr(wan_detail, words) != NULL);
    if (!strstr(wan_detail, words)) printf("    it says: %s\n", wan_detail);
}

static void a_log_with_a_failed_check_is_not_written_any_more(void)
{
    begin();
    write_items(10, 400);
    wan_stops_at_breakage = 0;
    EXPECT_EQUAL(wan_log_drop_first(&owner.log, owner.log.count + 1, NULL, 0), WAN_BROKEN);
    wan_stops_at_breakage = 1;
    EXPECT_EQUAL(owner_write(&owner, 400), WAN_BROKEN);
    EXPECT(strstr(wan_detail, "wan_log.c") && strstr(wan_detail, "drop <= log->writing"));
    EXPECT_EQUAL(wan_log_drop_first(&owner.log, 0, NULL, 0), WAN_BROKEN);
    EXPECT_EQUAL(wan_log_seal(&owner.log, NULL, 0), WAN_BROKEN);
    EXPECT_EQUAL(reopen(), WAN_OK); /* This is as after a crash. */
    EXPECT(owner_is_whole(&owner));
    EXPECT_EQUAL(owner.last, 10);
    end();
}

static void what_was_committed_is_found_again(void)
{
    begin();
    for (int round = 0; round < 5; round++) {
        write_items(40, round * 4000);
        EXPECT_EQUAL(reopen(), WAN_OK);
        EXPECT(owner_is_whole(&owner));
        EXPECT_EQUAL(owner.first, 1);
        EXPECT_EQUAL(owner.last, owner.durable);
        EXPECT_EQUAL(owner.cut_bytes, 0);
    }
    end();
}

static void a_block_longer_than_a_segment_gets_one_of_its_own(void)
{
    begin();
    owner.limit = 0;
    EXPECT_EQUAL(reopen(), WAN_OK);
    write_items(3, 3u << 20);  /* The third item needs the segments that are made ahead. */
    write_items(1, 20u << 20); /* This item is longer than any of them. */
    write_items(2, 100);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    EXPECT_EQUAL(owner.first, 1);
    write_items(3, 5u << 20);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    end();
}

static void dropped_segments_leave_no_file_and_the_rest_is_whole(void)
{
    begin();
    write_items(150, 20000);
    EXPECT(owner.log.writing >= 2);
    EXPECT_EQUAL(owner_drop(&owner, 120), WAN_OK);
    EXPECT(owner.log.bytes < OWNER_LIMIT);
    EXPECT(memory_disk_find(&disk, "000000000001.seg") == NULL);
    write_items(20, 20000);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    EXPECT_EQUAL(owner.state, 120);
    EXPECT(owner.first > 1);
    end();
}

static void files_that_no_manifest_names_are_cleared_away(void)
{
    begin();
    write_items(150, 20000);
    memory_file *old = memory_disk_find(&disk, "000000000001.seg");
    uint8_t *bytes = malloc(old->size);
    uint64_t size = old->size;
    memcpy(bytes, old->bytes, size);
    EXPECT_EQUAL(owner_drop(&owner, 100), WAN_OK);
    int file;
    /* This stands for a crash that came before the file was removed. */
    EXPECT_EQUAL(disk.env.create(&disk.env, "log/000000000001.seg", size, &file), WAN_OK);
    disk.env.write(&disk.env, file, "log/000000000001.seg", 0, bytes, size);
    disk.env.close(&disk.env, file);
    free(bytes);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    EXPECT(memory_disk_find(&disk, "000000000001.seg") == NULL);
    end();
}

/* The points at which the log is cut. */

enum { TRUNCATED, ZEROED, FLIPPED };

/* For each block of the newest segment: its end, and the number of the item in it. */
typedef struct {
    uint64_t end[OWNER_ITEMS], item[OWNER_ITEMS];
    uint32_t count;
} block_ends;

static void damage_file(memory_file *file, uint64_t at, int how)
{
    if (how == TRUNCATED) file->size = at;
    else if (how == ZEROED) memset(file->bytes + at, 0, file->size - at);
    else file->bytes[at] ^= (uint8_t)(1u << at % 8);
}

#define NEVER_OPENS UINT64_MAX

/* Opens a copy of the disk with one file damaged. If it opens at all, the items up to `whole_items` must be found. */
static int open_damaged(const char *name, uint64_t at, int how, uint64_t whole_items, int may_refuse)
{
    memory_disk_copy(&other, &disk);
    damage_file(memory_disk_find(&other, name), at, how);
    again = owner;
    memset(&again.log, 0, sizeof again.log);
    again.disk = &other;
    again.durable = whole_items;
    int good = 1;
    wan_status status = owner_open(&again);
    if (status == WAN_OK) {
        good = whole_items != NEVER_OPENS && owner_is_whole(&again);
        /* Nothing is left behind the cut. */
        for (uint32_t n = again.log.writing; good && n < again.log.count; n++) {
            char left[64];
            snprintf(left, sizeof left, "%012" PRIu64 ".seg", again.log.segments[n].number);
            const memory_file *file = memory_disk_find(&other, left);
            for (uint64_t k = again.log.segments[n].used; k < file->size && good; k++) good = file->bytes[k] == 0;
        }
        /* An item that is written there is found. */
        if (good) {
            again.accepted = again.durable = again.last;
            good = owner_write(&again, 300) == WAN_OK;
            owner_close(&again);
            good = good && owner_open(&again) == WAN_OK && owner_is_whole(&again);
        }
        owner_close(&again);
    } else {
        /* A flipped bit in the version may say that it is newer. */
        good = (may_refuse && status == WAN_CORRUPT && again.damage.file[0] && again.damage.reason[0])
               || (how == FLIPPED && status == WAN_INVALID);
        if (!good) printf("    opening says %d: %s\n", status, wan_detail);
    }
    if (!good)
        printf("    %s %s at %" PRIu64 "\n", name,
               how == TRUNCATED ? "cut"
               : how == ZEROED  ? "zeroed from"
                                : "with a bit flipped",
               at);
    memory_disk_close(&other);
    return good;
}

static void a_written_store_cut_anywhere_gives_all_before_the_cut_or_says_what_is_wrong(void)
{
    begin();
    /* These need two segments. */
    write_items(75, 20000);
    EXPECT_EQUAL(owner_drop(&owner, 60), WAN_OK);
    write_items(120, 1500);
    write_items(12, 40); /* Small blocks at the end of the segment. */
    char newest[64];
    snprintf(newest, sizeof newest, "%012" PRIu64 ".seg", owner.log.segments[owner.log.writing].number);
    static block_ends blocks;
    memset(&blocks, 0, sizeof blocks);
    const memory_file *file = memory_disk_find(&disk, newest);
    uint64_t item = owner.log.segments[owner.log.writing].first_commit,
             used = owner.log.segments[owner.log.writing].used;
    for (uint64_t at = WAN_LOG_PAGE; at < used; item++) {
        const wan_block_head *head = (const wan_block_head *)(file->bytes + at);
        at += sizeof *head + head->length;
        blocks.end[blocks.count] = at;
        blocks.item[blocks.count++] = item;
    }
    EXPECT(blocks.count > 12);
    EXPECT_EQUAL(blocks.item[blocks.count - 1], owner.durable);
    uint64_t known; /* The newest block that the manifest knows. */
    memcpy(&known, memory_disk_find(&disk, "MANIFEST")->bytes + 32, 8);
    EXPECT(known > blocks.item[0] && known < owner.durable - 100);
    uint64_t before = blocks.item[0] - 1, dense = blocks.end[blocks.count - 4];
    for (int how = TRUNCATED; how <= FLIPPED; how++) {
        for (uint64_t at = 0; at < used && expectations_failed < 5; at += at >= dense ? 1 : 1 + (at * 7919) % 6007) {
            uint64_t whole = before;
            for (uint32_t n = 0; n < blocks.count && blocks.end[n] <= at; n++) whole = blocks.item[n];
            /* Only the end is torn: no item that was synced before may be missed, and nothing is refused. With a
             * flipped bit only the last block can be taken for torn. What the manifest knows is never missed silently.
             * A file that is shorter than it was made is never a torn end. */
            if (how == FLIPPED) whole = at < blocks.end[blocks.count - 2] ? owner.durable : owner.durable - 1;
            EXPECT(open_damaged(newest, at, how,
                                how == TRUNCATED ? NEVER_OPENS
                                : whole > known  ? whole
                                                 : known,
                                how != ZEROED || at < WAN_LOG_PAGE || whole < known));
        }
    }
    /* The other files: older segments, those made ahead, the manifest. */
    for (int n = 0; n < MEMORY_FILES; n++) {
        const memory_file *each = &disk.files[n];
        if (!each->name[0] || each->gone || strcmp(each->name, newest) == 0 || strcmp(each->name, "MANIFEST.new") == 0)
            continue;
        for (int how = TRUNCATED; how <= FLIPPED; how++)
            for (uint64_t at = 0; at < each->size && expectations_failed < 5;
                 at += 1 + (at < 100 ? 0 : (at * 7919) % 70001))
                EXPECT(open_damaged(each->name, at, how, owner.durable, 1));
    }
    /* After a regular end the manifest knows the last block. Now nothing is taken for a torn end. */
    EXPECT_EQUAL(wan_log_seal(&owner.log, (const uint8_t *)&owner.state, 8), WAN_OK);
    for (int how = ZEROED; how <= FLIPPED; how++)
        for (uint64_t at = WAN_LOG_PAGE; at < used && expectations_failed < 5;
             at += at >= dense ? 1 : 1 + (at * 7919) % 6007)
            EXPECT(open_damaged(newest, at, how, owner.durable, 1));
    end();
}

/* Calls that fail. */

/* The work during which a call fails: commits of all sizes, drops, and syncs if items are only written. Returns the
 * status of the last call that failed. With `give_up` the work ends there. */
static wan_status work(log_owner *target, int give_up)
{
    static const uint64_t lengths[] = {15000, 300, 37000, 20, 22000, 60000, 1700};
    wan_status failed = WAN_OK, status;
    for (int n = 0; n < 30 && !(give_up && failed != WAN_OK); n++) {
        status = owner_write(target, lengths[n % 7]);
        if (status != WAN_OK) failed = status;
        if (target->writes && n % 7 == 5) {
            status = owner_sync(target);
            if (status != WAN_OK) failed = status;
        }
        if (n % 10 == 9 && target->durable > 8) {
            status = owner_drop(target, target->durable - 8);
            if (status != WAN_OK) failed = status;
        }
    }
    return failed;
}

static uint64_t calls_of_the_work(int writes)
{
    memory_disk_init(&disk);
    owner_init(&owner, &disk);
    owner.writes = writes;
    owner.limit = 32u << 20;
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT_EQUAL(work(&owner, 0), WAN_OK);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT_EQUAL(work(&owner, 0), WAN_OK);
    uint64_t calls = disk.calls;
    end();
    return calls;
}

static void fail_each_call(int writes)
{
    random_source source = {.state = 11};
    uint64_t calls = calls_of_the_work(writes);
    for (uint64_t fail_at = 1; fail_at <= calls && expectations_failed < 5; fail_at++)
        for (int kind = 0; kind < 6; kind++) {
            int give_up = kind == 3;
            memory_disk_init(&disk);
            disk.fail_at = fail_at;
            disk.fail_with = kind == 1 ? WAN_FULL : WAN_IO;
            disk.short_writes = kind == 2 ? 1 : kind >= 4 ? 2 : 0;
            owner_init(&owner, &disk);
            owner.writes = writes;
            owner.maps = kind % 2;
            owner.limit = 32u << 20;
            int before = expectations_failed;
            wan_status status = owner_open(&owner);
            if (status != WAN_OK) status = owner_open(&owner);
            EXPECT_EQUAL(status, WAN_OK);
            for (int part = 0; part < 2; part++) {
                uint64_t durable = owner.durable;
                status = work(&owner, give_up || kind == 5);
                /* The next item is longer, and then the log is closed. */
                if (kind == 5 && status != WAN_OK) EXPECT_EQUAL(owner_write(&owner, 100000), WAN_OK);
                /* The log goes on by itself. */
                else if (!give_up) EXPECT(owner.durable >= durable + 28);
                /* Whatever failed before: what the log says is synced is on the disk. */
                if (writes && part == 1) {
                    owner_close(&owner);
                    memory_disk_crash(&disk, kind % 2 ? LOSE_UNSYNCED : TEAR_PAGES, &source);
                    owner_lose_power(&owner);
                }
                status = reopen();
                if (status != WAN_OK) {
                    EXPECT(disk.calls >= fail_at);
                    status = owner_open(&owner);
                }
                EXPECT_EQUAL(status, WAN_OK);
                EXPECT(owner_is_whole(&owner));
                owner.accepted = owner.durable = owner.last;
            }
            if (expectations_failed > before)
                printf("    call %" PRIu64 " (%s) failing, kind %d\n", fail_at, disk.failed_what, kind);
            end();
        }
}

static void no_single_failing_call_loses_what_was_acknowledged(void) { fail_each_call(0); }
static void no_single_failing_call_loses_what_was_written(void) { fail_each_call(1); }

static void go_down_at_each_call(int writes)
{
    uint64_t calls = calls_of_the_work(writes);
    random_source source = {.state = 1};
    for (uint64_t fail_at = 1; fail_at <= calls && expectations_failed < 5; fail_at++)
        for (int what = LOSE_UNSYNCED; what <= TEAR_PAGES; what++) {
            memory_disk_init(&disk);
            disk.fail_at = fail_at;
            disk.stopped = 1;
            disk.short_writes = 1;
            owner_init(&owner, &disk);
            owner.writes = writes;
            owner.limit = 32u << 20;
            int before = expectations_failed;
            for (int part = 0; part < 2 && (part == 0 || disk.calls < fail_at); part++) {
                if (part) owner_close(&owner);
                if (owner_open(&owner) != WAN_OK) continue;
                work(&owner, 0);
            }
            owner_close(&owner);
            memory_disk_crash(&disk, what, &source);
            if (what != KEEP_UNSYNCED) owner_lose_power(&owner);
            EXPECT_EQUAL(owner_open(&owner), WAN_OK);
            EXPECT(owner_is_whole(&owner));
            owner.accepted = owner.durable = owner.last > owner.dropped ? owner.last : owner.dropped;
            EXPECT_EQUAL(work(&owner, 0), WAN_OK);
            EXPECT_EQUAL(reopen(), WAN_OK);
            EXPECT(owner_is_whole(&owner));
            if (expectations_failed > before)
                printf("    down at call %" PRIu64 " (%s), %s: %s\n", fail_at, disk.failed_what,
                       what == LOSE_UNSYNCED   ? "unsynced lost"
                       : what == KEEP_UNSYNCED ? "all kept"
                                               : "torn",
                       wan_detail);
            end();
        }
}

static void a_machine_that_goes_down_at_any_call_keeps_what_was_acknowledged(void) { go_down_at_each_call(0); }
static void a_machine_that_goes_down_at_any_call_keeps_what_was_synced(void) { go_down_at_each_call(1); }

static void a_crash_keeps_every_acknowledged_block_whatever_else_it_takes(void)
{
    random_source source = {.state = 7};
    memory_disk_init(&disk);
    owner_init(&owner, &disk);
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    for (int n = 0; n < 120 && !expectations_failed; n++) {
        EXPECT_EQUAL(owner_write(&owner, random_below(&source, 90000)), WAN_OK);
        if (n % 9 == 8) EXPECT_EQUAL(owner_drop(&owner, owner.durable - 4), WAN_OK);
        owner_close(&owner);
        memory_disk_crash(&disk, n % 3, &source);
        EXPECT_EQUAL(owner_open(&owner), WAN_OK);
        EXPECT(owner_is_whole(&owner));
    }
    end();
}

/* Items that are written now and synced later. */

static void a_kill_keeps_what_was_written_and_a_power_cut_what_was_synced(void)
{
    random_source source = {.state = 9};
    uint64_t lost = 0, cut = 0;
    memory_disk_init(&disk);
    owner_init(&owner, &disk);
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    for (int n = 0; n < 250 && !expectations_failed; n++) {
        for (uint32_t k = random_below(&source, 30); k; k--) {
            owner.writes = random_below(&source, 8) != 0; /* Some of them are synced at once. */
            EXPECT_EQUAL(owner_write(&owner, random_below(&source, random_below(&source, 4) ? 3000 : 90000)), WAN_OK);
            if (!random_below(&source, 10)) EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
        }
        if (n % 9 == 8 && owner.durable > 4) EXPECT_EQUAL(owner_drop(&owner, owner.durable - 4), WAN_OK);
        int what = (int)random_below(&source, 4);
        uint64_t written = owner.durable;
        owner_close(&owner);
        memory_disk_crash(&disk, what, &source);
        if (what != KEEP_UNSYNCED) owner_lose_power(&owner);
        EXPECT_EQUAL(owner_open(&owner), WAN_OK);
        EXPECT(owner_is_whole(&owner));
        EXPECT(owner.log.commit >= owner.durable && owner.log.commit <= written);
        lost += written - owner.log.commit;
        cut += owner.cut_bytes != 0;
        owner.accepted = owner.durable = owner.log.commit;
    }
    EXPECT(lost > 100 && cut > 20 && owner.last < OWNER_ITEMS);
    end();
}

static void whole_blocks_behind_one_that_was_never_synced_are_the_lost_end(void)
{
    begin();
    write_items(5, 300);
    owner.writes = 1;
    write_items(10, 300);
    memory_file *file = memory_disk_find(&disk, "000000000001.seg");
    const uint64_t end_of_5 = WAN_LOG_PAGE + 5 * (sizeof(wan_block_head) + sizeof(wan_part_head))
                              + owner_item_length(1, 300) + owner_item_length(2, 301) + owner_item_length(3, 302)
                              + owner_item_length(4, 303) + owner_item_length(5, 304);
    EXPECT_EQUAL(((const wan_block_head *)(file->bytes + end_of_5))->commit, 6);
    EXPECT_EQUAL(((const wan_block_head *)(file->bytes + end_of_5))->synced, 5);
    file->bytes[end_of_5 + 100] ^= 1; /* A byte of the sixth item. */
    owner.durable = 5;
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 5 && owner.cut_bytes > 1000);
    owner.accepted = owner.durable = 5;
    write_items(3, 200); /* They take its place. */
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 8 && owner.cut_bytes == 0);
    end();
}

static void a_damaged_block_that_a_later_one_says_to_be_synced_is_damage(void)
{
    begin();
    owner.writes = 1;
    write_items(5, 300);
    EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
    write_items(3, 300);
    /* No later block says that they are synced. */
    EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
    memory_file *file = memory_disk_find(&disk, "000000000001.seg");
    file->bytes[WAN_LOG_PAGE + 100] ^= 1;
    expect_refusal(WAN_CORRUPT, "a damaged block: a later block says that it was synced");
    file->bytes[WAN_LOG_PAGE + 100] ^= 1;
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 8);
    end();
}

static void a_manifest_knows_only_what_is_synced(void)
{
    begin();
    owner.writes = 1;
    for (int n = 0; n < 150; n++) { /* These need several segments. */
        uint64_t known;
        EXPECT_EQUAL(wan_log_make_room(&owner.log, 20100, (const uint8_t *)&owner.state, 8), WAN_OK);
        memcpy(&known, memory_disk_find(&disk, "MANIFEST")->bytes + 32, 8);
        EXPECT(known <= owner.log.synced_commit);
        write_items(1, 20000);
    }
    EXPECT(owner.log.writing >= 2 && owner.synced < owner.durable);
    EXPECT_EQUAL(owner_drop(&owner, 60), WAN_OK);
    EXPECT_EQUAL(owner.synced, owner.durable);
    write_items(3, 20000);
    owner_close(&owner);
    random_source source = {.state = 3};
    memory_disk_crash(&disk, LOSE_UNSYNCED, &source);
    owner_lose_power(&owner);
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 150);
    end();
}

static void blocks_are_written_while_the_disk_syncs(void)
{
    random_source source = {.state = 5};
    for (int fails = 0; fails < 2; fails++) {
        begin();
        owner.writes = 1;
        write_items(4, 5000);
        wan_log_syncing sync;
        EXPECT_EQUAL(wan_log_begin_sync(&owner.log, &sync), WAN_OK);
        EXPECT(wan_log_takes(&owner.log, 5000));
        write_items(2, 5000);
        if (fails) disk.fail_at = disk.calls + 1;
        wan_status ran = wan_log_run_sync(&owner.log, &sync);
        EXPECT_EQUAL(ran, fails ? WAN_IO : WAN_OK);
        EXPECT(wan_log_takes(&owner.log, 5000));
        write_items(2, 5000);
        EXPECT_EQUAL(wan_log_end_sync(&owner.log, &sync, ran), ran);
        EXPECT_EQUAL(owner.log.synced_commit, fails ? 0 : 4);
        EXPECT_EQUAL(wan_log_takes(&owner.log, 5000), !fails);
        /* The log writes it from its own memory, because the system's memory has nothing to write. */
        if (fails) EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
        else EXPECT_EQUAL(wan_log_begin_sync(&owner.log, &sync), WAN_OK);
        owner.synced = owner.log.synced_commit;
        EXPECT_EQUAL(owner.synced, fails ? 8 : 4);
        EXPECT(wan_log_takes(&owner.log, 5000));
        owner_close(&owner);
        memory_disk_crash(&disk, LOSE_UNSYNCED, &source);
        owner_lose_power(&owner);
        EXPECT_EQUAL(owner_open(&owner), WAN_OK);
        EXPECT(owner_is_whole(&owner) && owner.last >= owner.synced);
        end();
    }
}

static void any_sync_that_fails_is_followed_by_writing_again(void)
{
    random_source source = {.state = 6};
    begin();
    owner.writes = 1;
    write_items(5, 5000);
    EXPECT_EQUAL(wan_log_make_room(&owner.log, 1035000, (const uint8_t *)&owner.state, 8), WAN_OK);
    write_items(4, 5000);
    EXPECT(owner.synced < owner.durable);
    disk.fail_at = disk.calls + 1;
    disk.short_writes = 2;
    /* This leaves a block behind the last one. */
    EXPECT_EQUAL(owner_write(&owner, 100), WAN_IO);
    disk.fail_at = disk.calls + 2;
    /* A longer block goes to the next segment. First the log clears the left block away, by a write and a sync. */
    EXPECT_EQUAL(owner_write(&owner, 1030000), WAN_IO);
    EXPECT(strcmp(disk.failed_what, "sync") == 0);
    EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
    EXPECT_EQUAL(owner.synced, owner.durable);
    owner_close(&owner);
    memory_disk_crash(&disk, LOSE_UNSYNCED, &source);
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 9);
    end();
}

/* The next sync fails, and nothing that follows reaches the disk. */
static void fail_a_sync(void)
{
    disk.fail_at = disk.calls + 1;
    disk.stopped = 1;
    EXPECT_EQUAL(owner_sync(&owner), WAN_IO);
    disk.stopped = 0;
}

static void what_a_failed_sync_lost_is_written_again_whatever_comes_next(void)
{
    enum { A_SYNC, A_BLOCK_WITH_ITS_SYNC, A_BLOCK };
    random_source source = {.state = 12};
    for (int next = A_SYNC; next <= A_BLOCK; next++) {
        begin();
        owner.writes = 1;
        write_items(3, 5000);
        fail_a_sync();
        owner.writes = next == A_BLOCK;
        if (next != A_SYNC) write_items(1, 100);
        if (next != A_BLOCK_WITH_ITS_SYNC) EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
        EXPECT_EQUAL(owner.synced, owner.durable);
        owner_close(&owner);
        memory_disk_crash(&disk, LOSE_UNSYNCED, &source);
        EXPECT_EQUAL(owner_open(&owner), WAN_OK);
        EXPECT(owner_is_whole(&owner) && owner.last == (next == A_SYNC ? 3 : 4));
        end();
    }
}

static void the_failed_sync_of_a_block_is_one_of_those_before_it_too(void)
{
    random_source source = {.state = 13};
    begin();
    owner.writes = 1;
    write_items(3, 5000);
    owner.writes = 0;
    disk.fail_at = disk.calls + 2;
    EXPECT_EQUAL(owner_write(&owner, 100), WAN_IO);
    EXPECT(strcmp(disk.failed_what, "sync") == 0);
    EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
    EXPECT_EQUAL(owner.synced, 3);
    owner_close(&owner);
    memory_disk_crash(&disk, LOSE_UNSYNCED, &source);
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 3);
    end();
}

static void a_kill_behind_a_failed_sync_keeps_what_was_written(void)
{
    begin();
    disk.forgets = 1;
    owner.writes = 1;
    write_items(3, 5000);
    disk.fail_at = disk.calls + 1;
    EXPECT_EQUAL(owner_sync(&owner), WAN_IO);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 3);
    end();
}

/* After a sync that failed the system's memory counts as written, and the disk may lack it. */
static void what_an_opening_gives_back_is_on_the_disk_though_the_sync_before_it_failed(void)
{
    random_source source = {.state = 8};
    begin();
    owner.writes = 1;
    write_items(3, 5000);
    EXPECT_EQUAL(owner_sync(&owner), WAN_OK);
    write_items(3, 90000);
    fail_a_sync(); /* The process ends before the log has written anything again. */
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 6);
    EXPECT_EQUAL(owner.log.synced_commit, 6);
    owner_close(&owner);
    memory_disk_crash(&disk, LOSE_UNSYNCED, &source);
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.last == 6);
    end();
}

/* The system reads a page from the disk again, where it never was. */
static wan_status lose_a_page(void *context, uint32_t index, uint64_t commit, const wan_part_head *head,
                              const uint8_t *bytes)
{
    memory_file *file = memory_disk_find(context, "000000000001.seg");
    memset(file->bytes + WAN_LOG_PAGE + MEMORY_PAGE, 0, MEMORY_PAGE);
    return WAN_OK;
}

static void an_opening_whose_second_reading_gives_other_bytes_is_refused(void)
{
    begin();
    owner.writes = 1;
    write_items(3, 5000);
    owner_close(&owner);
    wan_log_reader reader = {.owner = &disk, .part = lose_a_page};
    uint64_t cut;
    EXPECT_EQUAL(wan_log_open(&owner.log, &disk.env, "log", WAN_LOG_QUEUE, 77, 1, &reader, &owner.damage, &cut),
                 WAN_IO);
    EXPECT(strstr(wan_detail, "reading it twice gave different bytes") != NULL);
    end();
}

static void only_what_needs_one_write_is_taken(void)
{
    begin();
    EXPECT(!wan_log_takes(&owner.log, 100)); /* There is no segment yet. */
    owner.writes = 1;
    write_items(1, 100);
    EXPECT(wan_log_takes(&owner.log, 100));
    /* This needs another segment. */
    EXPECT(!wan_log_takes(&owner.log, 1u << 20));
    disk.fail_at = disk.calls + 1;
    disk.short_writes = 2;
    /* The attempt that failed left bytes behind the last block. */
    EXPECT_EQUAL(owner_write(&owner, 100), WAN_IO);
    EXPECT(!wan_log_takes(&owner.log, 100));
    write_items(1, 50);
    EXPECT(wan_log_takes(&owner.log, 100));
    EXPECT_EQUAL(reopen(), WAN_OK);
    /* A manifest has to be written first. */
    EXPECT(!wan_log_takes(&owner.log, 100));
    EXPECT(owner_is_whole(&owner) && owner.last == 2);
    end();
}

/* No room. */

static void a_full_disk_refuses_and_goes_on_when_room_returns(void)
{
    begin();
    owner.limit = 0;
    EXPECT_EQUAL(reopen(), WAN_OK);
    disk.capacity = 28u << 20;
    wan_status status;
    while ((status = owner_write(&owner, 1u << 20)) == WAN_OK) {}
    EXPECT_EQUAL(status, WAN_FULL);
    uint64_t durable = owner.durable;
    EXPECT(durable >= 8);
    EXPECT_EQUAL(owner_write(&owner, 1u << 20), WAN_FULL);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    disk.capacity = 60u << 20;
    write_items(4, 1u << 20);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    EXPECT_EQUAL(owner.last, durable + 4);
    end();
}

static void a_log_on_a_disk_without_a_byte_left_can_be_shortened(void)
{
    begin();
    owner.limit = 0;
    EXPECT_EQUAL(reopen(), WAN_OK);
    disk.capacity = 25u << 20;
    while (owner_write(&owner, 1u << 20) == WAN_OK) {}
    disk.capacity = 1; /* Other files took all the rest. */
    EXPECT_EQUAL(owner_write(&owner, 1u << 20), WAN_FULL);
    uint32_t segments = owner.log.count;
    EXPECT_EQUAL(owner_drop(&owner, owner.durable), WAN_OK);
    EXPECT(owner.log.count < segments);
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    end();
}

/* A segment is kept for records that make the log shorter. It is there from the first block on. */
static void a_full_disk_takes_what_may_use_the_segment_that_is_kept(void)
{
    begin();
    owner.limit = 0;
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT_EQUAL(owner_write(&owner, 100), WAN_OK);
    disk.capacity = 1; /* Other files took all the rest. */
    while (owner_write(&owner, 1u << 20) == WAN_OK) {}
    for (int n = 0; n < 3; n++) {
        EXPECT_EQUAL(owner_write(&owner, 1u << 20), WAN_FULL);
        EXPECT(owner.log.disk_is_full);
        wan_log_allow_reserve(&owner.log, 1);
        EXPECT_EQUAL(owner_write(&owner, 1u << 20), WAN_OK);
        wan_log_allow_reserve(&owner.log, 0);
    }
    EXPECT_EQUAL(reopen(), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    EXPECT_EQUAL(owner_write(&owner, 100), WAN_FULL);
    disk.capacity = 60u << 20;
    write_items(9, 1u << 20);
    EXPECT(!owner.log.disk_is_full);
    EXPECT(owner.log.writing + 1 < owner.log.count);
    end();
}

static void the_limit_holds_and_is_named(void)
{
    begin();
    owner.limit = 4u << 20;
    EXPECT_EQUAL(reopen(), WAN_OK);
    wan_status status;
    while ((status = owner_write(&owner, 50000)) == WAN_OK) EXPECT(owner.log.bytes <= owner.limit);
    EXPECT_EQUAL(status, WAN_FULL);
    EXPECT(strstr(wan_detail, "limit of 4194304 bytes") != NULL);
    EXPECT(owner.durable >= 48);
    EXPECT_EQUAL(owner_drop(&owner, owner.durable), WAN_OK);
    write_items(10, 50000);
    end();
}

/* Files that belong to another log. */

static void a_log_without_its_manifest_is_not_taken_for_a_new_one(void)
{
    begin();
    write_items(10, 100);
    memory_disk_find(&disk, "MANIFEST")->gone = 1;
    expect_refusal(WAN_CORRUPT, "no manifest that names it");
    EXPECT(memory_disk_find(&disk, "000000000001.seg") != NULL);
    end();
}

static void a_manifest_that_cannot_be_opened_is_not_taken_for_none(void)
{
    begin();
    write_items(10, 100);
    disk.fail_at = disk.calls + 1;
    expect_refusal(WAN_IO, "open MANIFEST");
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    end();
}

static void an_older_manifest_put_back_is_noticed(void)
{
    begin();
    write_items(10, 100);
    memory_file *manifest = memory_disk_find(&disk, "MANIFEST");
    uint64_t size = manifest->size;
    uint8_t *old = malloc(size);
    memcpy(old, manifest->bytes, size);
    write_items(60, 50000);
    EXPECT_EQUAL(owner_drop(&owner, 2), WAN_OK);
    manifest = memory_disk_find(&disk, "MANIFEST");
    if (manifest->size < size) EXPECT(0);
    memcpy(manifest->bytes, old, size);
    free(old);
    expect_refusal(WAN_CORRUPT, "the manifest is older than this segment");
    end();
}

static void a_manifest_of_another_log_costs_no_file(void)
{
    begin();
    write_items(60, 50000);
    /* The files that are left have numbers as if the other log had dropped them. */
    EXPECT_EQUAL(owner_drop(&owner, owner.durable), WAN_OK);
    write_items(3, 100);
    memory_disk_init(&other);
    log_owner stranger;
    owner_init(&stranger, &other);
    EXPECT_EQUAL(owner_open(&stranger), WAN_OK);
    for (int n = 0; n < 160; n++) EXPECT_EQUAL(owner_write(&stranger, 50000), WAN_OK);
    EXPECT(stranger.log.next_number > owner.log.next_number);
    EXPECT_EQUAL(owner_drop(&stranger, stranger.durable), WAN_OK);
    memory_file *own = memory_disk_find(&disk, "MANIFEST"), *foreign = memory_disk_find(&other, "MANIFEST");
    uint8_t *bytes = own->bytes;
    uint64_t size = own->size;
    own->bytes = memcpy(malloc(foreign->size), foreign->bytes, foreign->size);
    own->size = foreign->size;
    owner_close(&stranger);
    memory_disk_close(&other);
    expect_refusal(WAN_CORRUPT, "the file is gone");
    free(own->bytes);
    own->bytes = bytes; /* The log's own bytes again. */
    own->size = size;
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner));
    end();
}

static void the_last_blocks_damaged_together_are_no_torn_end(void)
{
    begin();
    write_items(12, 300);
    memory_file *file = memory_disk_find(&disk, "000000000001.seg");
    uint64_t used = owner.log.segments[0].used;
    file->bytes[used - 500] ^= 1;
    file->bytes[used - 100] ^= 1;
    expect_refusal(WAN_CORRUPT, "a later block says that it was synced");
    /* The last block alone may be torn. */
    file->bytes[used - 500] ^= 1;
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT_EQUAL(owner.last, owner.durable - 1);
    end();
}

static void salvage_with_an_older_manifest_finds_also_what_came_later(void)
{
    begin();
    write_items(10, 100);
    memory_file *manifest = memory_disk_find(&disk, "MANIFEST");
    uint64_t size = manifest->size;
    uint8_t *old = memcpy(malloc(size), manifest->bytes, size);
    write_items(60, 50000);
    memcpy(memory_disk_find(&disk, "MANIFEST")->bytes, old, size);
    free(old);
    expect_refusal(WAN_CORRUPT, "the manifest is older than this segment");
    owner.salvage = 1;
    EXPECT_EQUAL(owner_open(&owner), WAN_OK);
    EXPECT(owner_is_whole(&owner) && owner.first == 1 && owner.last == owner.durable);
    end();
}

static void a_segment_that_lost_all_its_blocks_is_noticed(void)
{
    for (int dropped = 0; dropped < 2; dropped++) {
        begin();
        write_items(60, 50000);
        if (dropped) EXPECT_EQUAL(owner_drop(&owner, 30), WAN_OK);
        char name[64];
        snprintf(name, sizeof name, "%012" PRIu64 ".seg", owner.log.segments[0].number);
        memory_file *first = memory_disk_find(&disk, name);
        memset(first->bytes + WAN_LOG_PAGE, 0, first->size - WAN_LOG_PAGE);
        expect_refusal(WAN_CORRUPT, "blocks are missing before this one");
        end();
    }
}

static void a_missing_segment_is_named(void)
{
    begin();
    write_items(60, 50000);
    memory_disk_find(&disk, "000000000002.seg")->gone = 1;
    expect_refusal(WAN_CORRUPT, "000000000002.seg, offset 0: the manifest names this segment, and the file is gone");
    end();
}

static void a_newer_format_another_kind_and_another_count_of_partitions_are_refused(void)
{
    begin();
    write_items(3, 100);
    owner_close(&owner);
    wan_log_reader reader = {.owner = &owner};
    uint64_t cut;
    EXPECT_EQUAL(wan_log_open(&owner.log, &disk.env, "log", WAN_LOG_REGION, 1, 1, &reader, &owner.damage, &cut),
                 WAN_INVALID);
    EXPECT_EQUAL(wan_log_open(&owner.log, &disk.env, "log", WAN_LOG_QUEUE, 1, 2, &reader, &owner.damage, &cut),
                 WAN_INVALID);
    EXPECT(strstr(wan_detail, "written with 1 partitions, and 2 are configured") != NULL);
    memory_file *manifest = memory_disk_find(&disk, "MANIFEST");
    manifest->bytes[8] = WAN_RECORD_FORMAT + 1;
    expect_refusal(WAN_INVALID, "newer version");
    end();
}

/* A version that knew only this format wrote both files, so their checksums hold. */
static void an_older_format_is_refused_by_name(void)
{
    begin();
    write_items(3, 100);
    owner_close(&owner);
    memory_file *manifest = memory_disk_find(&disk, "MANIFEST"), *segment = memory_disk_find(&disk, "000000000001.seg");
    manifest->bytes[8] = 1;
    uint64_t state, length = 72;
    uint32_t segments, crc;
    memcpy(&segments, manifest->bytes + 48, 4);
    memcpy(&state, manifest->bytes + 56, 8);
    length += 16 * segments + state;
    crc = wan_crc32c(wan_crc32c(0, manifest->bytes, 68), manifest->bytes + 72, length - 72);
    memcpy(manifest->bytes + 68, &crc, 4);
    for (int salvage = 0; salvage < 2; salvage++) {
        owner.salvage = salvage;
        expect_refusal(WAN_INVALID, "MANIFEST is in record format 1, and this version reads format 4 only: drain it "
                                    "with the version that wrote it");
    }
    /* Salvage of a folder without a manifest. */
    manifest->gone = 1;
    segment->bytes[8] = 1;
    crc = wan_crc32c(0, segment->bytes, offsetof(wan_segment_head, crc));
    memcpy(segment->bytes + offsetof(wan_segment_head, crc), &crc, 4);
    expect_refusal(WAN_INVALID, "000000000001.seg is in record format 1, and this version reads format 4 only");
    end();
}

/* Values that contain blocks. */

/* Writes items whose bytes are copies of the segment in writing, as it is on the disk. */
static wan_status write_copies(log_owner *target, const memory_file *file, uint64_t from, uint64_t length,
                               uint32_t times)
{
    uint64_t number = target->accepted + 1, bytes = wan_align8(16 + length * times);
    uint8_t *item = calloc(1, bytes);
    memcpy(item, &number, 8);
    for (uint32_t n = 0; n < times; n++) memcpy(item + 16 + n * length, file->bytes + from, length);
    wan_part part = {.head = {WAN_PART_RECORDS, 1, bytes}, .bytes = item};
    uint32_t segment;
    wan_status status = wan_log_make_room(&target->log, wan_parts_length(&part, 1), (const uint8_t *)&target->state, 8);
    if (status == WAN_OK) status = wan_log_commit(&target->log, &part, 1, &segment);
    free(item);
    return status;
}

static wan_status take_any_part(void *context, uint32_t index, uint64_t commit, const wan_part_head *head,
                                const uint8_t *bytes)
{
    return WAN_OK;
}

/* Opens what is left when the newest block is torn at `at`. */
static wan_status open_torn(memory_disk *torn, uint64_t at, uint64_t *commit)
{
    static log_owner opened;
    memset(&opened, 0, sizeof opened);
    memory_file *file = memory_disk_find(torn, "000000000001.seg");
    memset(file->bytes + at, 0, 100);
    wan_log_reader reader = {.owner = &opened, .part = take_any_part};
    wan_status status =
        wan_log_open(&opened.log, &torn->env, "log", WAN_LOG_QUEUE, 77, 1, &reader, &opened.damage, &opened.cut_bytes);
    *commit = opened.log.commit;
    wan_log_close(&opened.log);
    return status;
}

static void no_value_is_taken_for_a_block(void)
{
    begin();
    write_items(5, 400);
    memory_file *file = memory_disk_find(&disk, "000000000001.seg");
    wan_log_segment *segment = &owner.log.segments[0];
    const uint64_t used = segment->used;
    /* The values hold what is on the disk: whole blocks with real heads. They also hold heads that say they are later
     * blocks, as somebody can make them who knows the format and no secret. */
    for (int kind = 0; kind < 3; kind++) {
        uint64_t begun = segment->used;
        static memory_file forged;
        forged = (memory_file){.bytes = malloc(used - WAN_LOG_PAGE)};
        memcpy(forged.bytes, file->bytes + WAN_LOG_PAGE, used - WAN_LOG_PAGE);
        if (kind)
            for (uint64_t at = 0; at < used - WAN_LOG_PAGE;) {
                wan_block_head *head = (wan_block_head *)(forged.bytes + at);
                at += sizeof *head + head->length;
                head->commit += 5 + (uint64_t)kind;
                head->crc = wan_crc32c(wan_crc32c(0, &head->length, offsetof(wan_block_head, seal) - 8), head + 1,
                                       head->length);
                if (kind == 2) head->seal = 0;
            }
        EXPECT_EQUAL(write_copies(&owner, &forged, 0, used - WAN_LOG_PAGE, 3), WAN_OK);
        free(forged.bytes);
        /* It is torn in its head or behind it. */
        for (uint64_t at = begun; at < begun + 200; at += 8) {
            uint64_t commit;
            memory_disk_copy(&other, &disk);
            EXPECT_EQUAL(open_torn(&other, at, &commit), WAN_OK);
            EXPECT_EQUAL(commit, 5 + (uint64_t)kind);
            memory_disk_close(&other);
        }
    }
    owner_close(&owner);
    memory_disk_close(&disk);
}

static void salvage_gives_what_is_whole_and_changes_nothing(void)
{
    begin();
    write_items(60, 50000);
    for (int with_manifest = 1; with_manifest >= 0; with_manifest--) {
        memory_disk_copy(&other, &disk);
        memory_file *first = memory_disk_find(&other, "000000000001.seg");
        memset(first->bytes + 200000, 0x55, 100);
        memory_file *second = memory_disk_find(&other, "000000000002.seg");
        memset(second->bytes, 0, 100);
        if (!with_manifest) memset(memory_disk_find(&other, "MANIFEST")->bytes, 0, 200);
        static memory_disk kept;
        memory_disk_copy(&kept, &other);
        again = owner;
        again.disk = &other;
        again.salvage = 1;
        EXPECT_EQUAL(owner_open(&again), WAN_OK);
        EXPECT_EQUAL(again.wrong, 0);
        EXPECT(again.damages >= 3 - (uint64_t)with_manifest);
        uint64_t missing = 0;
        for (uint64_t n = 1; n <= owner.durable; n++) missing += again.found[n] != 1;
        EXPECT_EQUAL(missing, 1);
        EXPECT_EQUAL(owner_write(&again, 10), WAN_IO);
        EXPECT(strstr(wan_detail, "opened for salvage") != NULL);
        for (int n = 0; n < MEMORY_FILES; n++) {
            const memory_file *was = &kept.files[n], *is = &other.files[n];
            EXPECT(strcmp(was->name, is->name) == 0 && was->size == is->size
                   && (!was->size || memcmp(was->bytes, is->bytes, was->size) == 0));
        }
        owner_close(&again);
        memory_disk_close(&kept);
        memory_disk_close(&other);
    }
    end();
}

static void a_segment_is_read_again_while_the_log_is_written(void)
{
    begin();
    write_items(60, 50000);
    memset(owner.found, 0, sizeof owner.found);
    EXPECT_EQUAL(owner_read_segment(&owner, 1), WAN_OK);
    uint64_t found = 0;
    for (int n = 0; n < OWNER_ITEMS; n++) found += owner.found[n];
    EXPECT(found > 5 && owner.wrong == 0);
    /* It is damaged after the log was opened. */
    memory_disk_find(&disk, "000000000002.seg")->bytes[300000] ^= 1;
    EXPECT(owner_read_segment(&owner, 1) == WAN_CORRUPT);
    write_items(3, 100);
    end();
}

static void a_segment_is_read_up_to_what_counts_behind_which_an_attempt_failed(void)
{
    /* A long block takes three writes and a sync. A short one is written by one call. */
    for (uint64_t call = 1; call <= 6; call++) {
        begin();
        write_items(3, 100);
        disk.fail_at = disk.calls + (call <= 4 ? call : call - 4);
        EXPECT_EQUAL(owner_write(&owner, call <= 4 ? 70000 : 100), WAN_IO);
        memset(owner.found, 0, sizeof owner.found);
        EXPECT_EQUAL(owner_read_segment(&owner, 0), WAN_OK);
        EXPECT(owner.found[1] && owner.found[3] && !owner.found[4]);
        EXPECT_EQUAL(owner_write(&owner, 100), WAN_OK);
        EXPECT_EQUAL(reopen(), WAN_OK);
        EXPECT(owner_is_whole(&owner));
        end();
    }
}

static void what_failed_in_a_later_segment_is_no_block_when_a_shorter_one_fits_before_it(void)
{
    for (uint64_t call = 1; call <= 4; call++) { /* Three writes and a sync. */
        begin();
        write_items(17, 50000);
        EXPECT_EQUAL(wan_log_make_room(&owner.log, 240000, (const uint8_t *)&owner.state, 8), WAN_OK);
        disk.fail_at = disk.calls + call;
        EXPECT_EQUAL(owner_write(&owner, 240000), WAN_IO);
        EXPECT(owner.log.writing == 0 && owner.log.segments[1].torn);
        write_items(3, 100);
        EXPECT(owner.log.writing == 0);
        EXPECT_EQUAL(reopen(), WAN_OK);
        EXPECT(owner_is_whole(&owner));
        end();
    }
}

const test_case log_tests[] = {
    {"a log with a failed check is not written any more", a_log_with_a_failed_check_is_not_written_any_more},
    {"what was committed is found again", what_was_committed_is_found_again},
    {"a block longer than a segment gets one of its own", a_block_longer_than_a_segment_gets_one_of_its_own},
    {"dropped segments leave no file and the rest is whole", dropped_segments_leave_no_file_and_the_rest_is_whole},
    {"files that no manifest names are cleared away", files_that_no_manifest_names_are_cleared_away},
    {"a written store cut anywhere gives all before the cut or says what is wrong",
     a_written_store_cut_anywhere_gives_all_before_the_cut_or_says_what_is_wrong},
    {"no single failing call loses what was acknowledged", no_single_failing_call_loses_what_was_acknowledged},
    {"a machine that goes down at any call keeps what was acknowledged",
     a_machine_that_goes_down_at_any_call_keeps_what_was_acknowledged},
    {"a crash keeps every acknowledged block whatever else it takes",
     a_crash_keeps_every_acknowledged_block_whatever_else_it_takes},
    {"no single failing call loses what was written", no_single_failing_call_loses_what_was_written},
    {"a machine that goes down at any call keeps what was synced",
     a_machine_that_goes_down_at_any_call_keeps_what_was_synced},
    {"a kill keeps what was written and a power cut what was synced",
     a_kill_keeps_what_was_written_and_a_power_cut_what_was_synced},
    {"whole blocks behind one that was never synced are the lost end",
     whole_blocks_behind_one_that_was_never_synced_are_the_lost_end},
    {"a damaged block that a later one says to be synced is damage",
     a_damaged_block_that_a_later_one_says_to_be_synced_is_damage},
    {"a manifest knows only what is synced", a_manifest_knows_only_what_is_synced},
    {"blocks are written while the disk syncs", blocks_are_written_while_the_disk_syncs},
    {"any sync that fails is followed by writing again", any_sync_that_fails_is_followed_by_writing_again},
    {"what a failed sync lost is written again whatever comes next",
     what_a_failed_sync_lost_is_written_again_whatever_comes_next},
    {"the failed sync of a block is one of those before it, too",
     the_failed_sync_of_a_block_is_one_of_those_before_it_too},
    {"a kill behind a failed sync keeps what was written", a_kill_behind_a_failed_sync_keeps_what_was_written},
    {"what an opening gives back is on the disk though the sync before it failed",
     what_an_opening_gives_back_is_on_the_disk_though_the_sync_before_it_failed},
    {"an opening whose second reading gives other bytes is refused",
     an_opening_whose_second_reading_gives_other_bytes_is_refused},
    {"only what needs one write is taken", only_what_needs_one_write_is_taken},
    {"a full disk refuses and goes on when room returns", a_full_disk_refuses_and_goes_on_when_room_returns},
    {"a log on a disk without a byte left can be shortened", a_log_on_a_disk_without_a_byte_left_can_be_shortened},
    {"a full disk takes what may use the segment that is kept",
     a_full_disk_takes_what_may_use_the_segment_that_is_kept},
    {"the limit holds and is named", the_limit_holds_and_is_named},
    {"a log without its manifest is not taken for a new one", a_log_without_its_manifest_is_not_taken_for_a_new_one},
    {"a manifest that cannot be opened is not taken for none", a_manifest_that_cannot_be_opened_is_not_taken_for_none},
    {"an older manifest put back is noticed", an_older_manifest_put_back_is_noticed},
    {"a manifest of another log costs no file", a_manifest_of_another_log_costs_no_file},
    {"the last blocks damaged together are no torn end", the_last_blocks_damaged_together_are_no_torn_end},
    {"salvage with an older manifest finds also what came later",
     salvage_with_an_older_manifest_finds_also_what_came_later},
    {"a segment that lost all its blocks is noticed", a_segment_that_lost_all_its_blocks_is_noticed},
    {"a missing segment is named", a_missing_segment_is_named},
    {"a newer format, another kind and another count of partitions are refused",
     a_newer_format_another_kind_and_another_count_of_partitions_are_refused},
    {"an older format is refused by name", an_older_format_is_refused_by_name},
    {"no value is taken for a block", no_value_is_taken_for_a_block},
    {"salvage gives what is whole and changes nothing", salvage_gives_what_is_whole_and_changes_nothing},
    {"a segment is read up to what counts behind which an attempt failed",
     a_segment_is_read_up_to_what_counts_behind_which_an_attempt_failed},
    {"what failed in a later segment is no block when a shorter one fits before it",
     what_failed_in_a_later_segment_is_no_block_when_a_shorter_one_fits_before_it},
    {"a segment is read again while the log is written", a_segment_is_read_again_while_the_log_is_written},
    {0}};
