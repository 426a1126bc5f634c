/* Owns what fuzzers share: a fuzzer says its name and what one run does with a source of random numbers. The driver
 * counts and times runs; run n of seed s is run 0 of seed s + n, so a failing one is repeated alone. */
#ifndef FUZZ_H
#define FUZZ_H
#include "harness.h"

extern const char *const fuzz_name;
void fuzz_once(random_source *source);

/* Stops the run with its seed: what the code under test said cannot be true. */
#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Changes a few of `length` bytes: bits, bytes and numbers near a limit, runs copied or cleared. */
void fuzz_mutate(random_source *source, uint8_t *bytes, size_t length);

/* A copy in memory of exactly this size, 8-aligned: the first byte read behind it is the sanitizer's. */
uint8_t *fuzz_exact(const uint8_t *bytes, size_t length);

/* Reads every byte, so that the sanitizer sees each. */
uint64_t fuzz_touch(const uint8_t *bytes, size_t length);

/* Reads every part of a record that passed its check, and checks that they lie inside `bytes`. */
void fuzz_touch_record(const uint8_t *at, uint64_t bytes);

/* A key of this form, any but none, in `to` (at least FUZZ_KEY_MAX bytes). Returns its length. */
#define FUZZ_KEY_MAX 128
uint16_t fuzz_key(random_source *source, uint8_t *to, uint8_t form);

/* A well-formed record of random sizes and fields in `to` (at least FUZZ_RECORD_MAX bytes). Returns its length. */
#define FUZZ_RECORD_MAX 1024
uint64_t fuzz_record(random_source *source, uint8_t *to);

#endif
