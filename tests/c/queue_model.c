/* Owns the random operations on a queue and on its model, and the comparison of both. */
#include "queue_model.h"

static uint64_t differences;

#define SAME(got, wanted)                                                                                              \
    do {                                                                                                               \
        uint64_t got_ = (uint64_t)(got), wanted_ = (uint64_t)(wanted);                                                 \
        if (got_ != wanted_ && differences++ < 5)                                                                      \
            printf("    %s:%d: %s is %" PRIu64 ", the model says %" PRIu64 "\n", __FILE__, __LINE__, #got, got_,       \
                   wanted_);                                                                                           \
    } while (0)

static const uint32_t LENGTHS[] = {0, 0, 1, 9, 40, 200, 1000, 30000, 300000};

/* The last event that counts: it may be peeked, or be gone. */
static uint64_t model_counts(const queue_model *m, const model_partition *p)
{
    return m->copied ? p->replicated : p->appended;
}

/* Removes the holes in front if nothing is on its way. */
static void drop_front_holes(const queue_model *m, model_partition *p)
{
    if (p->peeked != p->removed) return;
    while (p->removed < model_counts(m, p) && !p->events[p->removed].alive) p->peeked = ++p->removed;
}

static void make_hole(const queue_model *m, model_partition *p, uint64_t sequence)
{
    if (!p->events[sequence - 1].alive) return;
    p->events[sequence - 1].alive = 0;
    if (sequence == p->removed + 1) drop_front_holes(m, p);
}

static void model_append(queue_model *m, model_partition *p, const model_event *event)
{
    p->events[p->appended++] = *event;
    if (!m->conflate || event->operation != WAN_UPDATE) return;
    uint64_t old = p->index[event->key]; /* This event may have left the queue, or may be a hole. */
    if (old > p->peeked && p->events[old - 1].alive) {
        /* If that event is later, it stays, and it is the one that a later update replaces. Values differ in length
         * only. */
        const model_event *there = &p->events[old - 1];
        if (there->stamp > event->stamp || (there->stamp == event->stamp && there->value_length > event->value_length))
            return;
        make_hole(m, p, old);
        m->conflated++;
    }
    p->index[event->key] = p->appended;
}

static record_plan draw_plan(queue_model *m, random_source *source, char key[16], uint32_t *key_number)
{
    static uint8_t value[300000];
    *key_number = random_below(source, MODEL_KEYS);
    snprintf(key, 16, "key-%u", *key_number);
    record_plan plan = {.operation = random_below(source, 5) ? WAN_UPDATE : (uint8_t)random_below(source, 3),
                        .key = key,
                        .value = value,
                        .value_length = LENGTHS[random_below(source, 9)],
                        .stamp = ++m->stamp};
    /* This record comes late, like an event that was parked. */
    if (!random_below(source, 20)) plan.stamp /= 2;
    return plan;
}

static void append(queue_model *m, random_source *source, uint32_t number)
{
    model_partition *p = &m->partitions[number];
    if (p->appended == MODEL_EVENTS) return;
    char key[16];
    uint32_t key_number;
    record_plan plan = draw_plan(m, source, key, &key_number);
    uint64_t length = plan_length(&plan);
    wan_reservation reservation;
    uint64_t events = m->queue.events, bytes = m->queue.bytes;
    if (!random_below(source, 30)) {
        m->disk.fail_at = m->disk.calls + 1;
        m->disk.fail_count = 1;
    }
    wan_status status = wan_queue_reserve(&m->queue, number, length, &reservation);
    m->disk.fail_at = 0;
    if (status != WAN_OK) {
        SAME(status, WAN_FULL);
        SAME(m->queue.events, events);
        SAME(m->queue.bytes, bytes);
        return;
    }
    if (!random_below(source, 10)) {
        wan_queue_cancel(&m->queue, &reservation);
        return;
    }
    write_plan(reservation.at, &plan);
    wan_queue_commit(&m->queue, &reservation);
    model_event event = {plan.stamp, length, plan.value_length, key_number, plan.operation, 1};
    model_append(m, p, &event);
}

/* Appends several records in one run. */
static void append_run(queue_model *m, random_source *source)
{
    enum { RUN = 200 };
    uint32_t lengths[RUN], count = random_below(source, RUN + 1), written = 0;
    uint16_t partitions[RUN];
    uint64_t sequences[RUN];
    uint64_t used = 0;
    model_event events[RUN];
    int one_partition = random_below(source, 2) != 0;
    wan_run run = {0};
    for (uint32_t n = 0; n < MODEL_PARTITIONS; n++)
        if (m->partitions[n].appended + RUN > MODEL_EVENTS) return;
    if (!random_below(source, 10)) {
        m->disk.fail_at = m->disk.calls + 1 + random_below(source, 2);
        m->disk.fail_count = 1;
    }
    for (; written < count; written++) {
        char key[16];
        uint32_t key_number;
        record_plan plan = draw_plan(m, source, key, &key_number);
        if (plan_length(&plan) > WAN_RUN_RECORD_BYTES_MAX) plan.value_length = 5;
        uint64_t length = plan_length(&plan);
        if (written == 0 && wan_queue_open_run(&m->queue, length, &run) != WAN_OK) break;
        if (used + length > run.room) break;
        write_plan(run.at + used, &plan);
        used += length;
        lengths[written] = (uint32_t)length;
        partitions[written] = one_partition ? 0 : (uint16_t)random_below(source, MODEL_PARTITIONS);
        events[written] = (model_event){plan.stamp, length, plan.value_length, key_number, plan.operation, 1};
    }
    uint32_t done = 0;
    int is_used = random_below(source, 10) != 0, has_room = 0;
    /* After a caller made room for entries, all records of the run find room, whatever the disk does. */
    if (run.at && written && random_below(source, 2)) {
        has_room = 1;
        for (uint32_t n = 0; n < written && has_room; n++)
            has_room = wan_queue_room_for_entries(&m->queue, partitions[n], written) == WAN_OK;
        if (has_room) m->disk.fail_at = m->disk.calls + 1;
    }
    if (run.at)
        done = wan_queue_append_run(&m->queue, &run, lengths, one_partition ? NULL : partitions, is_used ? written : 0,
                                    sequences);
    if (has_room && is_used) SAME(done, written);
    m->disk.fail_at = 0;
    for (uint32_t n = 0; n < done; n++) {
        model_append(m, &m->partitions[partitions[n]], &events[n]);
        SAME(sequences[n], m->partitions[partitions[n]].appended);
    }
}

static void peek(queue_model *m, random_source *source, uint32_t number)
{
    model_partition *p = &m->partitions[number];
    wan_record *records[700];
    uint64_t sequences[700];
    uint64_t size, limit = random_below(source, 4) ? WAN_NO_LIMIT : random_below(source, 100000), total = 0;
    uint32_t count = random_below(source, 700), expected = 0;
    int at_least_one = random_below(source, 3) != 0;
    uint64_t first = p->peeked;
    while (expected < count && p->peeked < model_counts(m, p)) {
        const model_event *event = &p->events[p->peeked];
        if (event->alive) {
            if ((expected || !at_least_one) && total + event->length > limit) {
                /* Nothing was taken, so `peeked` moves past nothing, also not past holes. */
                if (!expected) p->peeked = first;
                break;
            }
            total += event->length;
            expected++;
        }
        p->peeked++;
    }
    uint32_t taken = wan_queue_peek(&m->queue, number, count, limit, at_least_one, records, sequences, &size);
    SAME(taken, expected);
    SAME(size, total);
    uint32_t n = 0;
    for (uint64_t sequence = first + 1; sequence <= p->peeked && n < taken; sequence++) {
        if (!p->events[sequence - 1].alive) continue;
        SAME(sequences[n], sequence);
        SAME(records[n]->stamp, p->events[sequence - 1].stamp);
        SAME(wan_record_length(records[n]), p->events[sequence - 1].length);
        n++;
    }
}

static uint64_t model_remove(model_partition *p, uint64_t through)
{
    uint64_t dropped = 0;
    for (; p->removed < through; p->removed++) {
        dropped += p->events[p->removed].alive;
        p->events[p->removed].alive = 0;
    }
    return dropped;
}

static void set_copied(queue_model *m, int copied)
{
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++)
        if (!m->copied) m->partitions[number].replicated = m->partitions[number].appended;
    m->copied = copied;
    SAME(wan_queue_set_copied(&m->queue, copied), WAN_OK);
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) drop_front_holes(m, &m->partitions[number]);
}

static void compare(queue_model *m)
{
    uint64_t all_events = 0, all_bytes = 0;
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) {
        const model_partition *p = &m->partitions[number];
        const wan_partition *q = &m->queue.partitions[number];
        uint64_t events = 0, bytes = 0, unpeeked = 0, ready = 0, oldest = 0;
        for (uint64_t sequence = p->removed + 1; sequence <= p->appended; sequence++) {
            const model_event *event = &p->events[sequence - 1];
            if (event->alive && !oldest) oldest = sequence;
            events += event->alive;
            bytes += event->alive ? event->length : 0;
            unpeeked += event->alive && sequence > p->peeked;
            ready += event->alive && sequence > p->peeked && sequence <= model_counts(m, p);
        }
        SAME(q->removed, p->removed);
        SAME(q->peeked, p->peeked);
        SAME(q->appended, p->appended);
        SAME(q->events, events);
        SAME(q->bytes, bytes);
        SAME(q->unpeeked, unpeeked);
        SAME(wan_partition_ready(q), ready);
        const wan_record *first = wan_queue_oldest(&m->queue, number);
        SAME(first ? q->known_holes + 1 : 0, oldest);
        all_events += events;
        all_bytes += bytes;
    }
    SAME(m->queue.events, all_events);
    SAME(m->queue.bytes, all_bytes);
    SAME(m->queue.conflated, m->conflated);
    SAME(m->queue.store->file_bytes > 0, m->disk.live_bytes > 0);
}

static void compare_contents(queue_model *m)
{
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) {
        const model_partition *p = &m->partitions[number];
        for (uint64_t sequence = p->removed + 1; sequence <= p->appended; sequence++) {
            const wan_record *record = wan_queue_at(&m->queue, &m->queue.partitions[number], sequence);
            SAME(record != NULL, p->events[sequence - 1].alive);
            if (!record) continue;
            SAME(wan_record_check((const uint8_t *)record, p->events[sequence - 1].length), WAN_OK);
            SAME(record->stamp, p->events[sequence - 1].stamp);
            SAME(wan_record_length(record), p->events[sequence - 1].length);
        }
    }
}

uint64_t queue_model_run(queue_model *m, random_source *source, uint32_t steps, int conflate)
{
    memset(m, 0, sizeof *m);
    differences = 0;
    failing_disk_init(&m->disk);
    m->conflate = conflate;
    if (wan_queue_init(&m->queue, &m->disk.env, "nowhere", 0, MODEL_PARTITIONS, conflate) != WAN_OK) return 1;
    uint32_t growing = 1;
    for (uint32_t step = 0; step < steps && differences == 0; step++) {
        uint32_t number = random_below(source, MODEL_PARTITIONS);
        model_partition *p = &m->partitions[number];
        if (!random_below(source, 200)) growing = !growing;
        uint32_t choice = random_below(source, 100);
        if (choice < (growing ? 85u : 40u)) {
            if (random_below(source, 30)) append(m, source, number);
            else append_run(m, source);
        } else if (choice < 92) peek(m, source, number);
        else if (choice < 97) {
            uint64_t through =
                p->removed
                + (p->peeked > p->removed ? random_below(source, (uint32_t)(p->peeked - p->removed) + 1) : 0);
            if (!growing) through = p->peeked;
            uint64_t wanted = model_remove(p, through);
            SAME(wan_queue_remove(&m->queue, number, through), wanted);
        } else if (choice == 97) {
            wan_queue_rewind(&m->queue, number);
            p->peeked = p->removed;
            drop_front_holes(m, p);
        } else if (!random_below(source, 20)) set_copied(m, !m->copied);
        else if (m->copied && random_below(source, 2)) {
            uint64_t through = p->replicated + random_below(source, (uint32_t)(p->appended - p->replicated) + 1);
            wan_queue_made_replicated(&m->queue, number, through);
            p->replicated = through;
            drop_front_holes(m, p);
        } else if (p->appended > p->removed) {
            uint64_t sequence = p->removed + 1 + random_below(source, (uint32_t)(p->appended - p->removed));
            wan_queue_make_hole(&m->queue, number, sequence, WAN_HOLE_FILTERED);
            make_hole(m, p, sequence);
        }
        compare(m);
        if (step % 64 == 0) compare_contents(m);
    }
    compare_contents(m);
    if (m->copied && random_below(source, 2)) set_copied(m, 0);
    /* A drained queue holds no file. */
    uint64_t left = m->queue.events;
    if (random_below(source, 2)) {
        uint64_t dropped = 0;
        SAME(wan_queue_clear(&m->queue, &dropped), WAN_OK);
        SAME(dropped, left);
    } else
        for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) {
            wan_record *records[8];
            uint64_t size;
            if (m->copied) wan_queue_made_replicated(&m->queue, number, m->queue.partitions[number].appended);
            while (m->queue.partitions[number].peeked < m->queue.partitions[number].appended)
                wan_queue_peek(&m->queue, number, 8, WAN_NO_LIMIT, 1, records, NULL, &size);
            wan_queue_remove(&m->queue, number, m->queue.partitions[number].peeked);
        }
    SAME(m->queue.events, 0);
    SAME(m->queue.bytes, 0);
    SAME(m->queue.store->file_bytes, 0);
    SAME(m->disk.live, 0);
    wan_queue_close(&m->queue);
    SAME(m->disk.live, 0);
    return differences;
}
