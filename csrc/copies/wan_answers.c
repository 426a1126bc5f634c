#include "copies/wan_answers.h"

#include <stdlib.h>
#include <string.h>

#include "base/wan_clock.h"

#define FIRST_CAPACITY 64u

static uint32_t hash_of(const wan_answers *answers, wan_call_identity call)
{
    uint64_t hash = call.number ^ (uint64_t)call.thread << 40 ^ (uint64_t)call.member << 20;
    hash *= 0x9e3779b97f4a7c15ull;
    return (uint32_t)(hash >> 32) & (answers->capacity - 1);
}

static int is_same(wan_call_identity one, wan_call_identity other)
{
    return one.number == other.number && one.thread == other.thread && one.member == other.member;
}

void wan_answers_close(wan_answers *answers)
{
    for (uint32_t n = 0; n < answers->count; n++)
        free(answers->items[(answers->begin + n) & (answers->capacity - 1)].found);
    free(answers->items);
    free(answers->heads);
    memset(answers, 0, sizeof *answers);
}

void wan_answers_forget(wan_answers *answers, uint64_t now_us)
{
    wan_answers_close(answers);
    answers->forgotten_us = now_us;
}

static wan_first_answer *find(const wan_answers *answers, wan_call_identity call)
{
    if (!answers->count) return NULL;
    uint32_t place = answers->heads[hash_of(answers, call)];
    while (place && !is_same(answers->items[place - 1].call, call)) place = answers->items[place - 1].next;
    return place ? &answers->items[place - 1] : NULL;
}

const wan_first_answer *wan_answers_find(const wan_answers *answers, wan_call_identity call)
{
    return find(answers, call);
}

static void forget_oldest(wan_answers *answers)
{
    wan_first_answer *oldest = &answers->items[answers->begin];
    uint32_t *from = &answers->heads[hash_of(answers, oldest->call)];
    while (*from != answers->begin + 1) from = &answers->items[*from - 1].next;
    *from = oldest->next;
    if (oldest->known_us > answers->forgotten_us) answers->forgotten_us = oldest->known_us;
    answers->found_bytes -= oldest->found_length;
    free(oldest->found);
    answers->begin = (answers->begin + 1) & (answers->capacity - 1);
    answers->count--;
}

/* Makes the ring twice as large. 0: there is no memory, and nothing changed. */
static int grow(wan_answers *answers)
{
    wan_answers larger = *answers;
    larger.capacity = answers->capacity ? 2 * answers->capacity : FIRST_CAPACITY;
    larger.items = calloc(larger.capacity, sizeof *larger.items);
    larger.heads = calloc(larger.capacity, sizeof *larger.heads);
    if (!larger.items || !larger.heads) {
        free(larger.items);
        free(larger.heads);
        return 0;
    }
    larger.begin = 0;
    for (uint32_t n = 0; n < answers->count; n++) {
        wan_first_answer *item = &larger.items[n];
        *item = answers->items[(answers->begin + n) & (answers->capacity - 1)];
        uint32_t *head = &larger.heads[hash_of(&larger, item->call)];
        item->next = *head;
        *head = n + 1;
    }
    free(answers->items);
    free(answers->heads);
    *answers = larger;
    return 1;
}

/* Adds an item with a copy of its found value. */
static void keep(wan_answers *answers, const wan_first_answer *fresh, uint64_t now_us)
{
    while (answers->count
           && (answers->items[answers->begin].known_us + WAN_ANSWERS_KEPT_US < now_us
               || answers->found_bytes + fresh->found_length > WAN_ANSWERS_BYTES_MAX))
        forget_oldest(answers);
    if (answers->count == WAN_ANSWERS_MAX || (answers->count == answers->capacity && !grow(answers) && answers->count))
        forget_oldest(answers);
    uint8_t *found = NULL;
    if (fresh->found_length && fresh->found_length <= WAN_ANSWERS_BYTES_MAX) found = malloc(fresh->found_length);
    if (answers->count == answers->capacity || (fresh->found_length && !found)) { /* No memory, or too large. */
        free(found);
        answers->forgotten_us = now_us;
        return;
    }
    const uint32_t place = (answers->begin + answers->count++) & (answers->capacity - 1);
    wan_first_answer *item = &answers->items[place];
    *item = *fresh;
    if (found) memcpy(found, fresh->found, fresh->found_length);
    item->found = found;
    uint32_t *head = &answers->heads[hash_of(answers, item->call)];
    item->next = *head;
    *head = place + 1;
    answers->found_bytes += item->found_length;
}

void wan_answers_add(wan_answers *answers, const wan_first_answer *fresh)
{
    /* The rows of a call come one behind the other, mostly. */
    wan_first_answer *item = NULL;
    if (fresh->rows && answers->count) {
        item = &answers->items[(answers->begin + answers->count - 1) & (answers->capacity - 1)];
        if (!is_same(item->call, fresh->call)) item = find(answers, fresh->call);
    }
    if (item) {
        item->sequence = fresh->sequence;
        item->rows = fresh->rows;
        item->applied++;
        return;
    }
    wan_first_answer kept = *fresh;
    kept.known_us = wan_monotonic_us();
    kept.applied = 1;
    keep(answers, &kept, kept.known_us);
}

wan_status wan_answers_pack(const wan_answers *answers, wan_buffer *to, uint64_t *largest)
{
    const uint64_t now_us = wan_monotonic_us();
    uint64_t bytes =
        (answers->count + 1) * sizeof(wan_answer_item) + answers->count * (uint64_t)8 + answers->found_bytes;
    wan_status status = wan_buffer_reserve(to, bytes);
    if (status != WAN_OK) return status;
    wan_answer_item head = {.age_us = answers->forgotten_us ? now_us - answers->forgotten_us : WAN_NEVER,
                            .is_first = 1};
    wan_buffer_put(to, &head, sizeof head);
    for (uint32_t n = 0; n < answers->count; n++) {
        const wan_first_answer *from = &answers->items[(answers->begin + n) & (answers->capacity - 1)];
        wan_answer_item item = {
            from->call,         from->sequence, now_us - from->known_us, from->rows,      from->applied,
            from->found_length, from->outcome,  from->found_form,        from->has_found, 0};
        static const uint8_t zeros[8];
        const uint64_t size = wan_answer_item_size(&item);
        wan_buffer_put(to, &item, sizeof item);
        if (from->found_length) wan_buffer_put(to, from->found, from->found_length);
        wan_buffer_put(to, zeros, size - sizeof item - from->found_length);
        if (size > *largest) *largest = size;
    }
    return WAN_OK;
}

void wan_answers_unpack(wan_answers *answers, const wan_answer_item *item, uint32_t count)
{
    const uint64_t now_us = wan_monotonic_us();
    for (uint32_t n = 0; n < count; n++) {
        /* Its time here is later than it was: what is forgotten because of it covers less. */
        const uint64_t known_us = item->age_us < now_us ? now_us - item->age_us : 1;
        if (item->is_first) {
            wan_answers_forget(answers, item->age_us == WAN_NEVER ? 0 : known_us);
        } else {
            const wan_first_answer fresh = {.call = item->call,
                                            .sequence = item->sequence,
                                            .known_us = known_us,
                                            .found = (uint8_t *)(item + 1),
                                            .found_length = item->found_length,
                                            .rows = item->rows,
                                            .applied = item->applied,
                                            .outcome = item->outcome,
                                            .found_form = item->found_form,
                                            .has_found = item->has_found};
            keep(answers, &fresh, now_us);
        }
        item = (const wan_answer_item *)((const uint8_t *)item + wan_answer_item_size(item));
    }
}

int wan_answers_cover(const wan_answers *answers, uint64_t first_us)
{
    return !answers->forgotten_us || answers->forgotten_us + WAN_ANSWERS_MARGIN_US < first_us;
}
