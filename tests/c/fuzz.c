/* Owns the driver of a fuzzer: fuzz_x [seconds] [runs] [seed]. It ends at either limit (0: no limit). It prints the
 * seed first. If a run fails, it prints the seed that repeats that run alone. If it is built for libFuzzer
 * (FUZZ_LIBFUZZER), libFuzzer drives instead: it makes the bytes that a run takes its random numbers from, and keeps
 * the bytes that reach new code. */
#include "fuzz.h"

#include <inttypes.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

void fuzz_mutate(random_source *source, uint8_t *bytes, size_t length)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     7,
                                     8,
                                     9,
                                     55,
                                     56,
                                     57,
                                     63,
                                     64,
                                     127,
                                     128,
                                     255,
                                     256,
                                     65535,
                                     65536,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     0xfffffff8,
                                     0x7fffffffffffffff,
                                     UINT64_MAX - 7,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};
    if (!length) return;
    for (uint32_t change = 1 + random_below(source, 5); change; change--) {
        size_t at = random_below(source, (uint32_t)length), left = length - at;
        uint64_t number = edges[random_below(source, sizeof edges / sizeof *edges)];
        size_t width = (size_t)1 << random_below(source, 4);
        switch (random_below(source, 6)) {
        case 0: bytes[at] ^= (uint8_t)(1u << random_below(source, 8)); break;
        case 1: bytes[at] = (uint8_t)random_next(source); break;
        case 2: /* Changes a field, mostly where fields begin. */
            at -= at % width;
            memcpy(bytes + at, &number, width < length - at ? width : length - at);
            break;
        case 3: /* Makes a field a little larger or smaller. */
            at -= at % width;
            if (length - at < width) break;
            number = 0;
            memcpy(&number, bytes + at, width);
            number += (uint64_t)random_below(source, 33) - 16;
            memcpy(bytes + at, &number, width);
            break;
        case 4: memset(bytes + at, 0, random_below(source, (uint32_t)left) % 16); break;
        default: {
            size_t from = random_below(source, (uint32_t)length), run = random_below(source, 32);
            if (run > left) run = left;
            if (run > length - from) run = length - from;
            memmove(bytes + at, bytes + from, run);
        }
        }
    }
}

uint8_t *fuzz_exact(const uint8_t *bytes, size_t length)
{
    uint8_t *copy = malloc(length ? length : 1);
    FUZZ_CHECK(copy);
    memcpy(copy, bytes, length);
    return copy;
}

uint64_t fuzz_touch(const uint8_t *bytes, size_t length)
{
    static volatile uint64_t sink;
    uint64_t sum = 0;
    for (size_t n = 0; n < length; n++) sum += bytes[n];
    sink = sum;
    return sink;
}

void fuzz_touch_record(const uint8_t *at, uint64_t bytes)
{
    const wan_record *record = (const wan_record *)at;
    const uint32_t length = wan_record_length(record);
    FUZZ_CHECK(length >= sizeof *record && length <= bytes && length % 8 == 0);
    const uint8_t *end = at + length;
    FUZZ_CHECK(wan_record_recipients(record) + record->recipients_count <= end);
    FUZZ_CHECK(record->operation < WAN_OPERATION_COUNT && record->key_form < WAN_FORM_COUNT);
    fuzz_touch(wan_record_key(record), record->key_length);
    fuzz_touch(wan_record_value(record), record->value_length);
    fuzz_touch(wan_record_callback(record), record->callback_length);
    fuzz_touch(wan_record_recipients(record), record->recipients_count);
    /* A queue copies a record in the same way. */
    uint8_t *copy = malloc(length);
    FUZZ_CHECK(copy);
    wan_copy_small(copy, at, length);
    free(copy);
}

/* Writes one object that a tagged key may hold, of at most 20 bytes or `room` bytes. Returns its end. */
static uint8_t *fuzz_key_object(random_source *source, uint8_t *to, size_t room, unsigned depth)
{
    static const uint8_t extension_of[] = {1, 2, 4, 8, 16};
    uint32_t kind = random_below(source, room < 20 ? 3 : 9);
    switch (kind) {
    case 0: *to++ = (uint8_t)random_below(source, 128); return to;
    case 1:
        *to++ = 0xa1;
        *to++ = (uint8_t)random_below(source, 128);
        return to;
    case 2: *to++ = 0xc2 + (uint8_t)random_below(source, 2); return to;
    case 3:
        *to++ = 0xcf;
        *to++ = 0x80;
        for (int n = 0; n < 7; n++) *to++ = (uint8_t)random_next(source);
        return to;
    case 4:
        *to++ = 0xd6;
        *to++ = random_below(source, 2) ? 0x03 : 0x04;
        for (int n = 0; n < 4; n++) *to++ = (uint8_t)random_next(source);
        return to;
    case 5:
        *to++ = 0xd8;
        *to++ = 0x0b;
        for (int n = 0; n < 16; n++) *to++ = (uint8_t)random_next(source);
        return to;
    case 6: memcpy(to, "\xd7\x0a-1234E-5", 10); return to + 10;
    case 7: memcpy(to, "\xc7\x0a\x0d\x92\xa5trade\xc4\x01\x07", 13); return to + 13;
    }
    /* A tuple. All its members but one are one byte long. So few bytes need only the short kind of head. */
    uint8_t inner[64], *end = inner;
    *end++ = 0x92;
    end = fuzz_key_object(source, end, depth ? (room - 8 < 40 ? room - 8 : 40) : 0, depth - (depth > 0));
    *end++ = 7;
    size_t length = (size_t)(end - inner);
    int fixed = -1;
    for (int n = 0; n < 5; n++)
        if (extension_of[n] == length) fixed = n;
    if (fixed >= 0) *to++ = (uint8_t)(0xd4 + fixed);
    else *to++ = 0xc7, *to++ = (uint8_t)length;
    *to++ = WAN_TAG_TUPLE;
    memcpy(to, inner, length);
    return to + length;
}

static int has_own_form(uint8_t code) { return code < 0x80 || (code >= 0xa0 && code < 0xc0); }

uint16_t fuzz_key(random_source *source, uint8_t *to, uint8_t form)
{
    uint16_t length = (uint16_t)random_below(source, 40);
    switch (form) {
    case WAN_FORM_TEXT:
        for (int n = 0; n < length; n++) to[n] = (uint8_t)random_below(source, 128);
        return length;
    case WAN_FORM_INT:
    case WAN_FORM_FLOAT: length = 8; break;
    case WAN_FORM_TAGGED:
        do length = (uint16_t)(fuzz_key_object(source, to, 60, 5) - to);
        while (has_own_form(to[0]));
        return length;
    case WAN_FORM_USER: memcpy(to, "\x92\xa5trade\xc4\x02xy", 11); return 11;
    }
    for (int n = 0; n < length; n++) to[n] = (uint8_t)random_next(source);
    return length;
}

uint64_t fuzz_record(random_source *source, uint8_t *to)
{
    static const uint8_t key_forms[] = {WAN_FORM_BYTES, WAN_FORM_TEXT,  WAN_FORM_TAGGED,
                                        WAN_FORM_INT,   WAN_FORM_FLOAT, WAN_FORM_USER};
    uint8_t key[FUZZ_KEY_MAX], parts[FUZZ_RECORD_MAX];
    wan_record head = {.key_form = key_forms[random_below(source, sizeof key_forms)]};
    memset(to, 0, FUZZ_RECORD_MAX);
    head.key_length = fuzz_key(source, key, head.key_form);
    head.value_length = random_below(source, 300);
    head.callback_length = random_below(source, 4) ? 0 : (uint16_t)random_below(source, 50);
    head.recipients_count = (uint8_t)random_below(source, 5);
    head.operation = random_below(source, WAN_OPERATION_COUNT) & 3;
    head.value_form = random_below(source, WAN_FORM_COUNT) & 7;
    head.callback_form = random_below(source, WAN_FORM_COUNT) & 7;
    head.flags = (uint8_t)random_below(source, WAN_FLAGS + 1);
    head.stamp = random_next(source);
    const uint32_t length = wan_record_length(&head);
    for (uint32_t n = 0; n < sizeof parts; n++) parts[n] = (uint8_t)random_next(source);
    wan_record_write(to, length, head, key, parts, parts + 300, parts + 400);
    return length;
}

#ifdef FUZZ_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    random_source source = {.state = 1, .bytes = bytes, .left = length};
    fuzz_once(&source);
    return 0;
}
#else
static uint64_t current_seed;

static void say_seed(void)
{
    char text[160];
    int length = snprintf(text, sizeof text, "\n%s failed; repeat with FUZZ_SEED=%" PRIu64 " FUZZ_RUNS=1\n", fuzz_name,
                          current_seed);
    if (write(STDERR_FILENO, text, (size_t)length) < 0) _exit(70);
}

static void on_abort(int number)
{
    say_seed();
    signal(number, SIG_DFL);
    raise(number);
}

int main(int count, char **arguments)
{
    uint64_t seconds = count > 1 ? strtoull(arguments[1], NULL, 10) : 5,
             limit = count > 2 ? strtoull(arguments[2], NULL, 10) : 0;
    uint64_t seed = count > 3 ? strtoull(arguments[3], NULL, 10) : 0, runs = 0;
    if (!seed) seed = (uint64_t)time(NULL) * 1000003 % 1000000007;
    if (!seconds && !limit) seconds = 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGABRT, on_abort);
    __sanitizer_set_death_callback(say_seed);
    time_t end = time(NULL) + (time_t)seconds;
    printf("%s: seed %" PRIu64 "\n", fuzz_name, seed);
    for (; (!limit || runs < limit) && (!seconds || runs % 64 || time(NULL) < end); runs++) {
        current_seed = seed + runs;
        random_source source = {.state = current_seed};
        fuzz_once(&source);
    }
    printf("%s: %" PRIu64 " runs\n", fuzz_name, runs);
    return 0;
}
#endif
