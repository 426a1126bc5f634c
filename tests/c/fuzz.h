/* Owns what fuzzers share. A fuzzer says its name, and what one run does with a source of random numbers. The driver
 * counts runs and limits their time. Run n of seed s is run 0 of seed s + n, so a run that fails can be repeated
 * alone. */
#ifndef FUZZ_H
#define FUZZ_H
#include "harness.h"

extern const char *const fuzz_name;
void fuzz_once(random_source *source);

/* Stops the run and prints its seed: the code under test gave an answer that cannot be true. */
#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Changes a few of `length` bytes: it changes bits and bytes, writes numbers near a limit, and copies or clears
 * runs. */
void fuzz_mutate(random_source *source, uint8_t *bytes, size_t length);

/* A copy in memory of exactly this size, aligned to 8. The sanitizer stops a read of the first byte behind it. */
uint8_t *fuzz_exact(const uint8_t *bytes, size_t length);

/* Reads every byte, so that the sanitizer checks each of them. */
uint64_t fuzz_touch(const uint8_t *bytes, size_t length);

/* Reads every part of a record that passed its check, and checks that the parts lie inside `bytes`. */
void fuzz_touch_record(const uint8_t *at, uint64_t bytes);

/* Writes a key of this form (any but WAN_FORM_NONE) to `to`, which has room for FUZZ_KEY_MAX bytes. Returns its
 * length. */
#define FUZZ_KEY_MAX 128
uint16_t fuzz_key(random_source *source, uint8_t *to, uint8_t form);

/* Writes a well-formed record of random sizes and fields to `to`, which has room for FUZZ_RECORD_MAX bytes. Returns its
 * length. */
#define FUZZ_RECORD_MAX 1024
uint64_t fuzz_record(random_source *source, uint8_t *to);

#endif
