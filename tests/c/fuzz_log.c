/* Fuzzes the opening of a log. A run writes a store as a log writes it, damages it, and opens it. There are three kinds
 * of runs:
 *
 * - Damage as disks and people cause it: bits, ranges, lengths, files and blocks in each other's place, an older
 *   manifest. The opening gives back everything that was durable, or it refuses and changes nothing. It may miss only
 *   what leaves no trace: no head says that it was synced, and the manifest does not know it. Then the store is what a
 *   crash before those blocks could have left. Salvage gives back every block whose bytes are unchanged.
 * - A power cut. The log opens, with everything that was synced, and without an item behind a gap.
 * - Damage behind checksums that hold. Nothing that is read leads outside the bytes, and what opens can be written and
 *   opened again. */
#include "fuzz.h"
#include "log_owner.h"
#include "base/wan_crc32c.h"
#include "base/wan_siphash.h"

const char *const fuzz_name = "fuzz_log";

enum { BLOCKS = 512, OLD_MANIFESTS = 4, MANIFEST_HEAD = 72 };
typedef struct {
    char file[64];
    uint64_t at, end, commit;
} block_range;

static struct {
    memory_disk disk;
    log_owner owner;
    block_range blocks[BLOCKS]; /* All live blocks, in order. */
    uint32_t count;
    uint8_t *manifests[OLD_MANIFESTS];
    uint64_t manifest_bytes[OLD_MANIFESTS];
} store;

static uint64_t field64(const uint8_t *bytes, size_t at)
{
    uint64_t value;
    memcpy(&value, bytes + at, 8);
    return value;
}
static uint32_t field32(const uint8_t *bytes, size_t at)
{
    uint32_t value;
    memcpy(&value, bytes + at, 4);
    return value;
}

static uint32_t block_crc(const wan_block_head *head)
{
    return wan_crc32c(wan_crc32c(0, &head->length, offsetof(wan_block_head, seal) - 8), head + 1, head->length);
}

/* The seal of the head that stands at `at`, with the secret that the file has now. */
static uint64_t block_seal(const memory_file *file, uint64_t at)
{
    uint8_t sealed[8 + offsetof(wan_block_head, seal)];
    uint64_t secret[2];
    memcpy(secret, ((const wan_segment_head *)file->bytes)->secret, sizeof secret);
    memcpy(sealed, &at, 8);
    memcpy(sealed + 8, file->bytes + at, sizeof sealed - 8);
    return wan_siphash(secret, sealed, sizeof sealed);
}

static int is_segment(const memory_file *file)
{
    return file->name[0] && !file->gone && strlen(file->name) > 4
           && strcmp(file->name + strlen(file->name) - 4, ".seg") == 0;
}

static void segment_name(char name[64], uint64_t number) { snprintf(name, 64, "%012" PRIu64 ".seg", number); }

/* The store. */

static void keep_manifest(random_source *source)
{
    const memory_file *manifest = memory_disk_find(&store.disk, "MANIFEST");
    uint32_t n = random_below(source, OLD_MANIFESTS);
    if (!manifest) return;
    free(store.manifests[n]);
    store.manifests[n] = fuzz_exact(manifest->bytes, manifest->size);
    store.manifest_bytes[n] = manifest->size;
}

/* Finds where every block lies. It reads the files by the description of the format. */
static void find_blocks(void)
{
    const memory_file *manifest = memory_disk_find(&store.disk, "MANIFEST");
    store.count = 0;
    if (!manifest) return;
    for (uint32_t n = 0; n < field32(manifest->bytes, 48); n++) {
        uint64_t number = field64(manifest->bytes, MANIFEST_HEAD + 16 * n), at = WAN_LOG_PAGE;
        char name[64];
        segment_name(name, number);
        const memory_file *file = memory_disk_find(&store.disk, name);
        FUZZ_CHECK(file && file->size == field64(manifest->bytes, MANIFEST_HEAD + 16 * n + 8));
        while (at + sizeof(wan_block_head) <= file->size) {
            const wan_block_head *head = (const wan_block_head *)(file->bytes + at);
            if (memcmp(head, "PWBK", 4) != 0) break;
            FUZZ_CHECK(head->segment == number && head->crc == block_crc(head) && head->seal == block_seal(file, at)
                       && store.count < BLOCKS);
            block_range *block = &store.blocks[store.count++];
            *block = (block_range){.at = at, .end = at + sizeof *head + head->length, .commit = head->commit};
            memcpy(block->file, name, sizeof name);
            at = block->end;
        }
    }
    for (uint32_t n = 1; n < store.count; n++) FUZZ_CHECK(store.blocks[n].commit == store.blocks[n - 1].commit + 1);
    FUZZ_CHECK(store.count == 0 || store.blocks[store.count - 1].commit == store.owner.durable);
}

static void make_store(random_source *source)
{
    static const uint32_t lengths[] = {1, 100, 3000, 60000, 60000, 300000};
    log_owner *owner = &store.owner;
    memory_disk_init(&store.disk);
    owner_init(owner, &store.disk);
    owner->limit = (random_below(source, 2) ? 8u : 32u) << 20;
    FUZZ_CHECK(owner_open(owner) == WAN_OK);
    const uint32_t writes = random_below(source, 3); /* No, all or some items are synced later. */
    for (uint32_t step = 1 + random_below(source, 60); step; step--) {
        owner->writes = writes == 2 ? random_below(source, 2) : writes;
        if (writes && !random_below(source, 6)) FUZZ_CHECK(owner_sync(owner) == WAN_OK);
        uint32_t what = random_below(source, 20);
        if (what == 0 && owner->durable) {
            wan_status status = owner_drop(owner, 1 + random_below(source, (uint32_t)owner->durable));
            FUZZ_CHECK(status == WAN_OK);
        } else if (what == 1) {
            owner_close(owner);
            FUZZ_CHECK(owner_open(owner) == WAN_OK && owner_is_whole(owner));
        } else if (owner_write(owner, random_below(source, lengths[random_below(source, 6)])) == WAN_FULL) {
            FUZZ_CHECK(owner_drop(owner, owner->durable) == WAN_OK);
        }
        if (!random_below(source, 4)) keep_manifest(source);
    }
    find_blocks();
    /* The last attempt to write fails somewhere. */
    if (!random_below(source, 4)) {
        store.disk.fail_at = store.disk.calls + 1 + random_below(source, 5);
        store.disk.short_writes = (int)random_below(source, 3);
        owner_write(owner, random_below(source, 5000));
        store.disk.fail_at = 0;
    }
    if (!random_below(source, 3) && !owner->log.manifest_unsure)
        FUZZ_CHECK(wan_log_seal(&owner->log, (const uint8_t *)&owner->state, 8) == WAN_OK);
    owner->synced = owner->log.synced_commit;
    owner_close(owner);
}

static void drop_store(void)
{
    memory_disk_close(&store.disk);
    for (int n = 0; n < OLD_MANIFESTS; n++) {
        free(store.manifests[n]);
        store.manifests[n] = NULL;
    }
}

/* Damage. */

static memory_file *some_file(random_source *source, memory_disk *disk, int segments_only)
{
    memory_file *there[MEMORY_FILES];
    uint32_t count = 0;
    for (int n = 0; n < MEMORY_FILES; n++)
        if (segments_only ? is_segment(&disk->files[n]) : disk->files[n].name[0] && !disk->files[n].gone)
            there[count++] = &disk->files[n];
    return count ? there[random_below(source, count)] : NULL;
}

/* An offset in a file, mostly where something was written. */
static uint64_t some_offset(random_source *source, const memory_file *file)
{
    if (!file->size) return 0;
    uint32_t how = random_below(source, 4);
    if (how == 0) return random_below(source, (uint32_t)file->size);
    if (how == 1 && store.count) {
        const block_range *block = &store.blocks[random_below(source, store.count)];
        uint64_t at = (random_below(source, 2) ? block->end : block->at) + random_below(source, 64) - 32;
        if (strcmp(block->file, file->name) == 0 && at < file->size) return at;
    }
    if (how == 2 && store.count) {
        const block_range *last = &store.blocks[store.count - 1];
        if (strcmp(last->file, file->name) == 0 && last->end <= file->size)
            return random_below(source, (uint32_t)last->end);
    }
    return random_below(source, file->size < 300 ? (uint32_t)file->size : 300);
}

static void overwrite(memory_file *file, uint64_t at, const uint8_t *bytes, uint64_t length)
{
    if (at >= file->size) return;
    memcpy(file->bytes + at, bytes, length < file->size - at ? length : file->size - at);
}

static void splice_block(random_source *source, memory_disk *disk)
{
    if (!store.count) return;
    const block_range *from = &store.blocks[random_below(source, store.count)],
                      *to = &store.blocks[random_below(source, store.count)];
    const memory_file *file = memory_disk_find(disk, from->file);
    memory_file *into = memory_disk_find(disk, to->file);
    if (!file || !into || from->end > file->size) return;
    uint64_t length = from->end - from->at;
    uint8_t *copy = fuzz_exact(file->bytes + from->at, length);
    uint32_t how = random_below(source, 4);
    if (how == 0 && to->end <= into->size)
        memmove(into->bytes + to->at, into->bytes + to->end, into->size - to->end); /* The block is taken out. */
    else overwrite(into, how == 1 ? to->at : how == 2 ? to->end : some_offset(source, into) & ~7ull, copy, length);
    free(copy);
}

static void damage(random_source *source, memory_disk *disk)
{
    memory_file *file = some_file(source, disk, random_below(source, 4) != 0), *second = some_file(source, disk, 1);
    if (!file || !second) return;
    uint64_t at = some_offset(source, file), left = file->size - at;
    switch (random_below(source, 12)) {
    case 0:
    case 1:
        if (left) file->bytes[at] ^= (uint8_t)(1u << random_below(source, 8));
        break;
    case 2: file->size = at; break;
    case 3:
        if (left) memset(file->bytes + at, 0, 1 + random_below(source, (uint32_t)left));
        break;
    case 4:
        if (left) memset(file->bytes + at, 0, 1 + random_below(source, left < 4096 ? (uint32_t)left : 4096));
        break;
    case 5:
        for (uint64_t n = random_below(source, 600); n && left; n--, left--)
            file->bytes[at++] = (uint8_t)random_next(source);
        break;
    case 6:
        if (left) fuzz_mutate(source, file->bytes + at, left < 200 ? left : 200);
        break;
    case 7: { /* Two files change places. */
        uint8_t *bytes = file->bytes;
        uint64_t size = file->size;
        file->bytes = second->bytes;
        file->size = second->size;
        second->bytes = bytes;
        second->size = size;
        break;
    }
    /* A copy of a segment takes another one's place, or is one more. */
    case 8:
        if (random_below(source, 2)) {
            overwrite(file, 0, second->bytes, second->size);
            break;
        }
        for (int n = 0; n < MEMORY_FILES; n++) {
            memory_file *copy = &disk->files[n];
            if (copy->name[0]) continue;
            char name[sizeof copy->name];
            segment_name(name, 1 + random_below(source, 40));
            if (memory_disk_find(disk, name)) break;
            memcpy(copy->name, name, sizeof name);
            copy->bytes = fuzz_exact(file->bytes, file->size);
            copy->size = copy->reserved = file->size;
            break;
        }
        break;
    case 9: splice_block(source, disk); break;
    case 10: {
        uint32_t n = random_below(source, OLD_MANIFESTS);
        memory_file *manifest = memory_disk_find(disk, "MANIFEST");
        if (!manifest || !store.manifests[n]) break;
        free(manifest->bytes);
        manifest->bytes = fuzz_exact(store.manifests[n], store.manifest_bytes[n]);
        manifest->size = store.manifest_bytes[n];
        break;
    }
    default: file->gone = 1;
    }
}

/* The results of an opening. */

static int is_same_disk(const memory_disk *a, const memory_disk *b)
{
    for (int n = 0; n < MEMORY_FILES; n++) {
        const memory_file *was = &a->files[n], *is = &b->files[n];
        int there = was->name[0] && !was->gone;
        if (there != (is->name[0] && !is->gone)) return 0;
        if (there
            && (strcmp(was->name, is->name) != 0 || was->size != is->size
                || (was->size && memcmp(was->bytes, is->bytes, was->size) != 0)))
            return 0;
    }
    return 1;
}

/* Whether anything is left that only blocks behind number `last` can have left. */
static int has_trace_of_later(const memory_disk *disk, uint64_t last)
{
    for (int n = 0; n < MEMORY_FILES; n++) {
        const memory_file *file = &disk->files[n];
        if (!is_segment(file)) continue;
        uint64_t number = strtoull(file->name, NULL, 10);
        for (uint64_t at = WAN_LOG_PAGE; at + sizeof(wan_block_head) <= file->size; at += 8) {
            const wan_block_head *head = (const wan_block_head *)(file->bytes + at);
            if (memcmp(head, "PWBK", 4) != 0 || head->segment != number || head->commit <= last
                || head->seal != block_seal(file, at))
                continue;
            if (head->synced > last) return 1;
            if (head->commit == last + 1 && head->length <= file->size - at - sizeof *head
                && head->crc == block_crc(head))
                return 1;
        }
    }
    return 0;
}

static int is_left(const memory_disk *disk, const char *name)
{
    for (int n = 0; n < MEMORY_FILES; n++)
        if (disk->files[n].name[0] && !disk->files[n].gone
            && (name ? strcmp(disk->files[n].name, name) == 0 : is_segment(&disk->files[n])))
            return 1;
    return 0;
}

static void check_opened(log_owner *owner, const memory_disk *damaged)
{
    FUZZ_CHECK(owner->wrong == 0);
    /* A directory with nothing in it is a new log. */
    if (!is_left(damaged, "MANIFEST") && !is_left(damaged, NULL)) {
        FUZZ_CHECK(owner->last == 0);
    } else {
        uint64_t last = owner->last ? owner->last : owner->log.commit;
        if (store.count && owner->last) FUZZ_CHECK(owner->first == store.blocks[0].commit);
        for (uint64_t n = owner->first; n && n <= owner->last; n++) FUZZ_CHECK(owner->found[n] == 1);
        FUZZ_CHECK(last <= store.owner.attempted);
        if (last < store.owner.durable)
            FUZZ_CHECK(!has_trace_of_later(damaged, last)
                       && last >= field64(memory_disk_find((memory_disk *)damaged, "MANIFEST")->bytes, 32));
    }
    for (uint32_t n = owner->log.writing; n < owner->log.count; n++) {
        char name[64];
        segment_name(name, owner->log.segments[n].number);
        const memory_file *file = memory_disk_find(owner->disk, name);
        for (uint64_t at = owner->log.segments[n].used; at < file->size; at++) FUZZ_CHECK(file->bytes[at] == 0);
    }
    /* An item that is written now is found. */
    owner->accepted = owner->durable = owner->log.commit;
    owner->dropped = owner->first ? owner->first - 1 : owner->durable;
    wan_status status = owner_write(owner, 300);
    FUZZ_CHECK(status == WAN_OK || status == WAN_FULL);
    owner_close(owner);
    FUZZ_CHECK(owner_open(owner) == WAN_OK && owner_is_whole(owner));
}

static void check_salvaged(const log_owner *owner, const memory_disk *damaged)
{
    for (uint32_t n = 0; n < store.count; n++) {
        const block_range *block = &store.blocks[n];
        const memory_file *was = memory_disk_find(&store.disk, block->file),
                          *is = memory_disk_find((memory_disk *)damaged, block->file);
        if (is && is->size >= block->end
            && memcmp(was->bytes + block->at, is->bytes + block->at, block->end - block->at) == 0)
            FUZZ_CHECK(owner->found[block->commit] >= 1);
    }
    FUZZ_CHECK(owner->wrong == 0);
}

static void open_damaged(random_source *source)
{
    static memory_disk damaged, tried;
    static log_owner owner;
    memory_disk_copy(&damaged, &store.disk);
    for (uint32_t n = 1 + random_below(source, 3); n; n--) damage(source, &damaged);
    for (int salvage = 0; salvage < 2; salvage++) {
        memory_disk_copy(&tried, &damaged);
        owner = store.owner;
        memset(&owner.log, 0, sizeof owner.log);
        owner.disk = &tried;
        owner.salvage = salvage;
        owner.maps = (int)random_below(source, 2);
        wan_status status = owner_open(&owner);
        if (salvage) {
            FUZZ_CHECK(status == WAN_OK);
            check_salvaged(&owner, &damaged);
        } else if (status == WAN_OK) {
            check_opened(&owner, &damaged);
        } else {
            FUZZ_CHECK(status == WAN_CORRUPT || status == WAN_INVALID);
            FUZZ_CHECK(status == WAN_INVALID ? strstr(wan_detail, "newer version") != NULL
                                             : owner.damage.file[0] && owner.damage.reason[0]);
        }
        if (salvage || status != WAN_OK) FUZZ_CHECK(is_same_disk(&tried, &damaged));
        owner_close(&owner);
        memory_disk_close(&tried);
    }
    memory_disk_close(&damaged);
}

/* Opens the store after a power cut. The disk has some of the bytes that were not synced. The store cannot be used
 * afterwards. */
static void open_after_power_cut(random_source *source)
{
    static log_owner owner;
    owner = store.owner;
    owner.maps = (int)random_below(source, 2);
    const int what = (int)random_below(source, 4);
    memory_disk_crash(&store.disk, what, source);
    if (what != KEEP_UNSYNCED) owner_lose_power(&owner);
    FUZZ_CHECK(owner_open(&owner) == WAN_OK && owner_is_whole(&owner));
    FUZZ_CHECK(owner.log.commit >= owner.durable && owner.log.commit <= owner.attempted);
    owner.accepted = owner.durable = owner.log.commit;
    wan_status status = owner_write(&owner, 300);
    FUZZ_CHECK(status == WAN_OK || status == WAN_FULL);
    owner_close(&owner);
    memory_disk_crash(&store.disk, KEEP_UNSYNCED, source);
    FUZZ_CHECK(owner_open(&owner) == WAN_OK && owner_is_whole(&owner));
    owner_close(&owner);
}

/* Damage behind checksums that hold. */

static void seal_manifest(memory_file *file)
{
    uint64_t length = MANIFEST_HEAD + field32(file->bytes, 48) * 16ull + field64(file->bytes, 56);
    if (length > file->size || length < MANIFEST_HEAD) return;
    uint32_t crc =
        wan_crc32c(wan_crc32c(0, file->bytes, MANIFEST_HEAD - 4), file->bytes + MANIFEST_HEAD, length - MANIFEST_HEAD);
    memcpy(file->bytes + MANIFEST_HEAD - 4, &crc, 4);
}

static void lie_in_manifest(random_source *source, memory_file *file)
{
    if (file->size < MANIFEST_HEAD) return;
    if (random_below(source, 4))
        fuzz_mutate(source, file->bytes + 24, (random_below(source, 2) && file->size > 120 ? 120 : MANIFEST_HEAD) - 24);
    else
        for (size_t at = 24; at < file->size && at < 200; at++)
            if (!random_below(source, 3)) file->bytes[at] = (uint8_t)random_next(source);
    /* The lengths are changed so that their sums fit. */
    if (random_below(source, 2)) {
        uint32_t segments = random_below(source, (uint32_t)((file->size - MANIFEST_HEAD) / 16 + 1));
        uint64_t state = random_below(source, (uint32_t)(file->size - MANIFEST_HEAD - 16 * segments) + 1);
        memcpy(file->bytes + 48, &segments, 4);
        memcpy(file->bytes + 52, (uint32_t[]){1}, 4);
        memcpy(file->bytes + 56, &state, 8);
    }
    seal_manifest(file);
}

static void lie_in_block(random_source *source, memory_file *file, uint64_t at)
{
    if (at + sizeof(wan_block_head) + 64 > file->size) return;
    wan_block_head *head = (wan_block_head *)(file->bytes + at);
    uint64_t number = head->segment;
    switch (random_below(source, 4)) {
    case 0: fuzz_mutate(source, (uint8_t *)&head->length, sizeof *head - 8); break;
    case 1: fuzz_mutate(source, (uint8_t *)(head + 1), sizeof(wan_part_head)); break;
    case 2: fuzz_mutate(source, (uint8_t *)&head->length, 64); break;
    default: { /* A block of random parts. */
        uint64_t end = 8 * random_below(source, 40), filled = 0;
        head->magic = 0x4b425750;
        head->length = (uint32_t)end;
        head->commit += random_below(source, 3) - 1;
        for (head->parts = 0; filled + sizeof(wan_part_head) <= end && end <= file->size - at - sizeof *head;
             head->parts++) {
            wan_part_head *part = (wan_part_head *)((uint8_t *)(head + 1) + filled);
            filled += sizeof *part;
            *part = (wan_part_head){1 + random_below(source, WAN_PART_KIND_COUNT - 1), random_below(source, 5),
                                    8 * random_below(source, (uint32_t)(end - filled) / 8 + 1)};
            filled += part->length;
        }
        if (random_below(source, 8)) head->length = (uint32_t)filled;
    }
    }
    if (random_below(source, 8)) head->segment = number;
    if (random_below(source, 4)) head->length &= ~7u;
    if (head->length <= file->size - at - sizeof *head) head->crc = block_crc(head);
    if (random_below(source, 8)) head->seal = block_seal(file, at);
}

static void lie(random_source *source, memory_disk *disk)
{
    memory_file *file = some_file(source, disk, 1), *manifest = memory_disk_find(disk, "MANIFEST");
    if (!file || !manifest) return;
    switch (random_below(source, 5)) {
    case 0:
    case 1: lie_in_manifest(source, manifest); break;
    case 2: {
        if (file->size < WAN_LOG_PAGE) break;
        wan_segment_head *head = (wan_segment_head *)file->bytes;
        fuzz_mutate(source, file->bytes, sizeof *head);
        head->crc = wan_crc32c(0, head, sizeof *head - 4);
        break;
    }
    default: {
        if (!store.count) break;
        const block_range *block =
            &store.blocks[random_below(source, 3) ? random_below(source, store.count) : store.count - 1];
        memory_file *in = memory_disk_find(disk, block->file);
        if (in) lie_in_block(source, in, random_below(source, 4) ? block->at : block->end);
    }
    }
}

typedef struct {
    log_owner owner;
    uint64_t commit, blocks;
    int salvage;
    uint8_t *kept[MEMORY_FILES];
    uint32_t kept_count;
} believing_owner;

/* Keeps every second mapping, as a queue keeps its records where they lie. */
static int keep_mapping(void *context, uint32_t index, const char *path, const uint8_t *base, uint64_t bytes)
{
    believing_owner *believer = context;
    if (index % 2 || believer->kept_count == MEMORY_FILES) return 0;
    believer->kept[believer->kept_count++] = (uint8_t *)base;
    return 1;
}

static void close_believed(believing_owner *believer)
{
    wan_log_close(&believer->owner.log);
    while (believer->kept_count) free(believer->kept[--believer->kept_count]);
}

static wan_status read_part(void *context, uint32_t index, uint64_t commit, const wan_part_head *head,
                            const uint8_t *bytes)
{
    believing_owner *believer = context;
    FUZZ_CHECK(index < believer->owner.log.count && head->kind > 0 && head->kind < WAN_PART_KIND_COUNT
               && head->length % 8 == 0);
    /* The reader does not hear of a block without parts. */
    FUZZ_CHECK(believer->salvage || commit >= believer->commit);
    believer->blocks += commit != believer->commit;
    believer->commit = commit;
    fuzz_touch(bytes, head->length);
    return WAN_OK;
}

static wan_status read_state(void *context, const uint8_t *bytes, uint64_t length)
{
    fuzz_touch(bytes, length);
    return WAN_OK;
}

static wan_status open_believing(believing_owner *believer, memory_disk *disk, int salvage, int maps)
{
    memset(believer, 0, sizeof *believer);
    believer->owner.disk = disk;
    believer->salvage = salvage;
    wan_log_reader reader = {.owner = believer,
                             .part = read_part,
                             .state = read_state,
                             .salvage = salvage,
                             .adopt = maps ? keep_mapping : NULL};
    return wan_log_open(&believer->owner.log, &disk->env, "log", WAN_LOG_QUEUE, 77, 1, &reader, &believer->owner.damage,
                        &believer->owner.cut_bytes);
}

static void open_lies(random_source *source)
{
    static memory_disk lying, tried;
    static believing_owner believer;
    memory_disk_copy(&lying, &store.disk);
    for (uint32_t n = 1 + random_below(source, 2); n; n--) lie(source, &lying);
    if (!random_below(source, 4)) damage(source, &lying);
    for (int salvage = 0; salvage < 2; salvage++) {
        memory_disk_copy(&tried, &lying);
        int maps = (int)random_below(source, 2);
        wan_status status = open_believing(&believer, &tried, salvage, maps);
        FUZZ_CHECK(status == WAN_OK || status == WAN_CORRUPT || status == WAN_INVALID);
        if (status == WAN_CORRUPT) FUZZ_CHECK(believer.owner.damage.file[0] && believer.owner.damage.reason[0]);
        if (salvage || status != WAN_OK) FUZZ_CHECK(is_same_disk(&tried, &lying));
        if (status == WAN_OK && !salvage) {
            static uint8_t item[16];
            wan_part part = {.head = {WAN_PART_RECORDS, 1, sizeof item}, .bytes = item};
            uint32_t segment;
            uint64_t blocks = believer.blocks, commit = believer.owner.log.commit;
            status = wan_log_make_room(&believer.owner.log, wan_parts_length(&part, 1), NULL, 0);
            if (status == WAN_OK) status = wan_log_commit(&believer.owner.log, &part, 1, &segment);
            FUZZ_CHECK(status == WAN_OK || status == WAN_FULL);
            commit += status == WAN_OK;
            blocks += status == WAN_OK;
            close_believed(&believer);
            FUZZ_CHECK(open_believing(&believer, &tried, 0, !maps) == WAN_OK);
            FUZZ_CHECK(believer.blocks == blocks && believer.owner.log.commit == commit);
        }
        close_believed(&believer);
        memory_disk_close(&tried);
    }
    memory_disk_close(&lying);
}

void fuzz_once(random_source *source)
{
    make_store(source);
    for (uint32_t n = 8; n; n--) {
        if (random_below(source, 3)) open_damaged(source);
        else open_lies(source);
    }
    open_after_power_cut(source);
    drop_store();
}
