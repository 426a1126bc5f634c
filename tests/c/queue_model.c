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
static uint64_t model_counts(const queue_model *model, const model_partition *partition)
{
    return model->fed ? partition->high_watermark : partition->appended;
}

/* Removes the holes in front if nothing is on its way. */
static void drop_front_holes(const queue_model *model, model_partition *partition)
{
    if (partition->peeked != partition->removed || partition->waits_for_leader) return;
    while (partition->removed < model_counts(model, partition) && !partition->events[partition->removed].alive)
        partition->peeked = ++partition->removed;
}

static void make_hole(const queue_model *model, model_partition *partition, uint64_t sequence)
{
    if (!partition->events[sequence - 1].alive) return;
    partition->events[sequence - 1].alive = 0;
    if (sequence == partition->removed + 1) drop_front_holes(model, partition);
}

static void model_append(queue_model *model, model_partition *partition, const model_event *event)
{
    partition->events[partition->appended++] = *event;
    if (!model->conflate || event->operation != WAN_UPDATE) return;
    uint64_t old = partition->index[event->key]; /* This event may have left the queue, or may be a hole. */
    if (old > partition->peeked && partition->events[old - 1].alive) {
        /* If that event is later, it stays, and it is the one that a later update replaces. Values differ in length
         * only. */
        const model_event *there = &partition->events[old - 1];
        if (there->stamp > event->stamp || (there->stamp == event->stamp && there->value_length > event->value_length))
            return;
        make_hole(model, partition, old);
        model->conflated++;
    }
    partition->index[event->key] = partition->appended;
}

static record_plan draw_plan(queue_model *model, random_source *source, char key[16], uint32_t *key_number)
{
    static uint8_t value[300000];
    *key_number = random_below(source, MODEL_KEYS);
    snprintf(key, 16, "key-%u", *key_number);
    record_plan plan = {.operation = random_below(source, 5) ? WAN_UPDATE : (uint8_t)random_below(source, 3),
                        .key = key,
                        .value = value,
                        .value_length = LENGTHS[random_below(source, 9)],
                        .stamp = ++model->stamp};
    /* This record comes late, like an event that was parked. */
    if (!random_below(source, 20)) plan.stamp /= 2;
    return plan;
}

static void append(queue_model *model, random_source *source, uint32_t number)
{
    model_partition *partition = &model->partitions[number];
    if (partition->appended == MODEL_EVENTS) return;
    char key[16];
    uint32_t key_number;
    record_plan plan = draw_plan(model, source, key, &key_number);
    uint64_t length = plan_length(&plan);
    wan_reservation reservation;
    uint64_t events = model->queue.events, bytes = model->queue.bytes;
    if (!random_below(source, 30)) {
        model->disk.fail_at = model->disk.calls + 1;
        model->disk.fail_count = 1;
    }
    wan_status status = wan_queue_reserve(&model->queue, number, length, &reservation);
    model->disk.fail_at = 0;
    if (status != WAN_OK) {
        SAME(status, WAN_FULL);
        SAME(model->queue.events, events);
        SAME(model->queue.bytes, bytes);
        return;
    }
    if (!random_below(source, 10)) {
        wan_queue_cancel(&model->queue, &reservation);
        return;
    }
    write_plan(reservation.at, &plan);
    wan_queue_commit(&model->queue, &reservation);
    model_event event = {plan.stamp, length, plan.value_length, key_number, plan.operation, 1};
    model_append(model, partition, &event);
}

/* Appends several records in one run. */
static void append_run(queue_model *model, random_source *source)
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
        if (model->partitions[n].appended + RUN > MODEL_EVENTS) return;
    if (!random_below(source, 10)) {
        model->disk.fail_at = model->disk.calls + 1 + random_below(source, 2);
        model->disk.fail_count = 1;
    }
    for (; written < count; written++) {
        char key[16];
        uint32_t key_number;
        record_plan plan = draw_plan(model, source, key, &key_number);
        if (plan_length(&plan) > WAN_RUN_RECORD_BYTES_MAX) plan.value_length = 5;
        uint64_t length = plan_length(&plan);
        if (written == 0 && wan_queue_open_run(&model->queue, length, &run) != WAN_OK) break;
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
            has_room = wan_queue_room_for_entries(&model->queue, partitions[n], written) == WAN_OK;
        if (has_room) model->disk.fail_at = model->disk.calls + 1;
    }
    if (run.at)
        done = wan_queue_append_run(&model->queue, &run, lengths, one_partition ? NULL : partitions,
                                    is_used ? written : 0, sequences);
    if (has_room && is_used) SAME(done, written);
    model->disk.fail_at = 0;
    for (uint32_t n = 0; n < done; n++) {
        model_append(model, &model->partitions[partitions[n]], &events[n]);
        SAME(sequences[n], model->partitions[partitions[n]].appended);
    }
}

static void peek(queue_model *model, random_source *source, uint32_t number)
{
    model_partition *partition = &model->partitions[number];
    wan_record *records[700];
    uint64_t sequences[700];
    uint64_t size, limit = random_below(source, 4) ? WAN_NO_LIMIT : random_below(source, 100000), total = 0;
    uint32_t count = random_below(source, 700), expected = 0;
    int at_least_one = random_below(source, 3) != 0;
    uint64_t first = partition->peeked;
    while (expected < count && partition->peeked < model_counts(model, partition) && !partition->waits_for_leader) {
        const model_event *event = &partition->events[partition->peeked];
        if (event->alive) {
            if ((expected || !at_least_one) && total + event->length > limit) {
                /* Nothing was taken, so `peeked` moves past nothing, also not past holes. */
                if (!expected) partition->peeked = first;
                break;
            }
            total += event->length;
            expected++;
        }
        partition->peeked++;
    }
    uint32_t taken = wan_queue_peek(&model->queue, number, count, limit, at_least_one, records, sequences, &size);
    SAME(taken, expected);
    SAME(size, total);
    uint32_t n = 0;
    for (uint64_t sequence = first + 1; sequence <= partition->peeked && n < taken; sequence++) {
        if (!partition->events[sequence - 1].alive) continue;
        SAME(sequences[n], sequence);
        SAME(records[n]->stamp, partition->events[sequence - 1].stamp);
        SAME(wan_record_length(records[n]), partition->events[sequence - 1].length);
        n++;
    }
}

static uint64_t model_remove(model_partition *partition, uint64_t through)
{
    uint64_t dropped = 0;
    for (; partition->removed < through; partition->removed++) {
        dropped += partition->events[partition->removed].alive;
        partition->events[partition->removed].alive = 0;
    }
    return dropped;
}

static void model_forget_unstable(const queue_model *model, model_partition *partition)
{
    const uint64_t end = model_counts(model, partition);
    for (uint64_t sequence = end + 1; sequence <= partition->appended; sequence++)
        partition->events[sequence - 1].alive = 0;
    if (partition->appended > end) { /* Sequences are given again, so the index is forgotten. */
        partition->appended = end;
        memset(partition->index, 0, sizeof partition->index);
    }
    if (partition->duplicate_through > partition->appended) partition->duplicate_through = partition->appended;
}

static void set_fed(queue_model *model, int fed)
{
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) {
        model_partition *partition = &model->partitions[number];
        if (!model->fed) partition->high_watermark = partition->appended;
        SAME(wan_queue_feed(&model->queue, number, fed ? &partition->high_watermark : NULL, 1, 0), WAN_OK);
        if (model->fed && !fed) model_forget_unstable(model, partition);
        wan_queue_lack(&model->queue, number, 0); /* There is no other member to ask for a replaced event. */
    }
    model->fed = fed;
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) drop_front_holes(model, &model->partitions[number]);
}

/* This member begins to send the events of a partition, or ends to. */
static void turn_leader(queue_model *model, random_source *source, uint32_t number)
{
    model_partition *partition = &model->partitions[number];
    const int in_order = random_below(source, 2) != 0;
    wan_queue_lead(&model->queue, number, partition->waits_for_leader, in_order);
    partition->waits_for_leader = !partition->waits_for_leader;
    if (partition->waits_for_leader) return;
    if (!in_order && partition->duplicate_through < partition->appended)
        partition->duplicate_through = partition->appended;
    drop_front_holes(model, partition);
}

static void compare(queue_model *model)
{
    uint64_t all_events = 0, all_bytes = 0;
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) {
        const model_partition *partition = &model->partitions[number];
        const wan_partition *real = &model->queue.partitions[number];
        uint64_t events = 0, bytes = 0, unpeeked = 0, ready = 0, oldest = 0;
        for (uint64_t sequence = partition->removed + 1; sequence <= partition->appended; sequence++) {
            const model_event *event = &partition->events[sequence - 1];
            if (event->alive && !oldest) oldest = sequence;
            events += event->alive;
            bytes += event->alive ? event->length : 0;
            unpeeked += event->alive && sequence > partition->peeked;
            ready += event->alive && sequence > partition->peeked && sequence <= model_counts(model, partition)
                     && !partition->waits_for_leader;
        }
        SAME(real->removed, partition->removed);
        SAME(real->peeked, partition->peeked);
        SAME(real->appended, partition->appended);
        SAME(real->events, events);
        SAME(real->bytes, bytes);
        SAME(real->unpeeked, unpeeked);
        SAME(real->duplicate_through, partition->duplicate_through);
        SAME(wan_partition_ready(real), ready);
        const wan_record *first = wan_queue_oldest(&model->queue, number);
        SAME(first ? real->known_holes + 1 : 0, oldest);
        all_events += events;
        all_bytes += bytes;
    }
    SAME(model->queue.events, all_events);
    SAME(model->queue.bytes, all_bytes);
    SAME(model->queue.conflated, model->conflated);
    SAME(model->queue.store->file_bytes > 0, model->disk.live_bytes > 0);
}

static void compare_contents(queue_model *model)
{
    for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) {
        const model_partition *partition = &model->partitions[number];
        for (uint64_t sequence = partition->removed + 1; sequence <= partition->appended; sequence++) {
            const wan_record *record = wan_queue_at(&model->queue, &model->queue.partitions[number], sequence);
            SAME(record != NULL, partition->events[sequence - 1].alive);
            if (!record) continue;
            SAME(wan_record_check((const uint8_t *)record, partition->events[sequence - 1].length), WAN_OK);
            SAME(record->stamp, partition->events[sequence - 1].stamp);
            SAME(wan_record_length(record), partition->events[sequence - 1].length);
        }
    }
}

uint64_t queue_model_run(queue_model *model, random_source *source, uint32_t steps, int conflate)
{
    memset(model, 0, sizeof *model);
    differences = 0;
    failing_disk_init(&model->disk);
    model->conflate = conflate;
    if (wan_queue_init(&model->queue, &model->disk.env, "nowhere", 0, MODEL_PARTITIONS, conflate) != WAN_OK) return 1;
    uint32_t growing = 1;
    for (uint32_t step = 0; step < steps && differences == 0; step++) {
        uint32_t number = random_below(source, MODEL_PARTITIONS);
        model_partition *partition = &model->partitions[number];
        if (!random_below(source, 200)) growing = !growing;
        uint32_t choice = random_below(source, 100);
        if (choice < (growing ? 85u : 40u)) {
            if (random_below(source, 30)) append(model, source, number);
            else append_run(model, source);
        } else if (choice < 92) peek(model, source, number);
        else if (choice < 97) {
            uint64_t through = partition->removed
                               + (partition->peeked > partition->removed
                                      ? random_below(source, (uint32_t)(partition->peeked - partition->removed) + 1)
                                      : 0);
            if (!growing) through = partition->peeked;
            uint64_t wanted = model_remove(partition, through);
            SAME(wan_queue_remove(&model->queue, number, through), wanted);
            drop_front_holes(model, partition);
        } else if (choice == 97) {
            wan_queue_rewind(&model->queue, number);
            if (partition->peeked > partition->duplicate_through) partition->duplicate_through = partition->peeked;
            partition->peeked = partition->removed;
            drop_front_holes(model, partition);
        } else if (!random_below(source, 20)) set_fed(model, !model->fed);
        else if (!random_below(source, 20)) turn_leader(model, source, number);
        else if (model->fed && random_below(source, 2)) {
            uint64_t through = partition->high_watermark
                               + random_below(source, (uint32_t)(partition->appended - partition->high_watermark) + 1);
            partition->high_watermark = through;
            wan_queue_count(&model->queue, number);
            drop_front_holes(model, partition);
        } else if (partition->appended > partition->removed) {
            uint64_t sequence =
                partition->removed + 1 + random_below(source, (uint32_t)(partition->appended - partition->removed));
            wan_queue_make_hole(&model->queue, number, sequence, WAN_HOLE_FILTERED);
            make_hole(model, partition, sequence);
        }
        compare(model);
        if (step % 64 == 0) compare_contents(model);
    }
    compare_contents(model);
    if (model->fed && random_below(source, 2)) set_fed(model, 0);
    /* A drained queue holds no file. */
    uint64_t left = model->queue.events;
    if (random_below(source, 2)) {
        uint64_t dropped = 0;
        SAME(wan_queue_clear(&model->queue, &dropped), WAN_OK);
        SAME(dropped, left);
    } else
        for (uint32_t number = 0; number < MODEL_PARTITIONS; number++) {
            wan_record *records[8];
            uint64_t size;
            model->partitions[number].high_watermark = model->queue.partitions[number].appended;
            wan_queue_count(&model->queue, number);
            wan_queue_lead(&model->queue, number, 1, 1);
            while (model->queue.partitions[number].peeked < model->queue.partitions[number].appended)
                wan_queue_peek(&model->queue, number, 8, WAN_NO_LIMIT, 1, records, NULL, &size);
            wan_queue_remove(&model->queue, number, model->queue.partitions[number].peeked);
        }
    SAME(model->queue.events, 0);
    SAME(model->queue.bytes, 0);
    SAME(model->queue.store->file_bytes, 0);
    SAME(model->disk.live, 0);
    wan_queue_close(&model->queue);
    SAME(model->disk.live, 0);
    return differences;
}
