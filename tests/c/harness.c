/* Owns what the C tests share: a disk that fails on purpose, and records that are made to a plan. */
#include "harness.h"

#include <sys/mman.h>

int expectations_failed;

static wan_status failing_map(const wan_env *env, const char *directory, uint64_t bytes, uint8_t **base)
{
    failing_disk *disk = env->state;
    disk->calls++;
    if (disk->fail_at && disk->calls >= disk->fail_at && disk->calls - disk->fail_at < disk->fail_count)
        return WAN_FAIL(disk->status, "call %u for %" PRIu64 " bytes in %s fails on purpose", disk->calls, bytes,
                        directory);
    /* It is shared memory, like a file's mapping: when the store lets go of its pages, they keep their bytes. */
    *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (*base == MAP_FAILED) return WAN_FAIL(WAN_NO_MEMORY, "the test has no memory");
    disk->live++;
    disk->live_bytes += bytes;
    return WAN_OK;
}

static void failing_unmap(const wan_env *env, uint8_t *base, uint64_t bytes)
{
    failing_disk *disk = env->state;
    disk->live--;
    disk->live_bytes -= bytes;
    munmap(base, bytes);
}

void failing_disk_init(failing_disk *disk)
{
    memset(disk, 0, sizeof *disk);
    disk->env = (wan_env){.map_overflow = failing_map, .unmap = failing_unmap, .state = disk};
    disk->status = WAN_FULL;
    disk->fail_count = 1;
}

uint64_t write_plan(uint8_t *to, const record_plan *plan)
{
    const uint64_t length = plan_length(plan);
    const wan_record head = {.value_length = plan->value_length,
                             .key_length = (uint16_t)strlen(plan->key),
                             .key_form = WAN_FORM_TEXT,
                             .operation = plan->operation,
                             .flags = plan->flags,
                             .region = plan->region ? plan->region : 1,
                             .stamp = plan->stamp,
                             .stamp_site = plan->stamp_site,
                             .origin_site = plan->origin_site};
    wan_record_write(to, length, head, (const uint8_t *)plan->key, plan->value, NULL, NULL);
    return length;
}
