/* Owns nothing: the structs of the Arrow C data and C stream interfaces, as the specification lays them down.
 * They are an ABI: the guards are the specification's, so that another copy in one translation unit does no harm. */
#ifndef WAN_ARROW_ABI_H
#define WAN_ARROW_ABI_H
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#    error "Columns are read in place as little-endian numbers; this machine is big-endian."
#endif

#ifndef ARROW_C_DATA_INTERFACE
#    define ARROW_C_DATA_INTERFACE

#    define ARROW_FLAG_DICTIONARY_ORDERED 1
#    define ARROW_FLAG_NULLABLE           2
#    define ARROW_FLAG_MAP_KEYS_SORTED    4

/* The type of an array. A released one has release == NULL. */
struct ArrowSchema {
    const char *format;   /* The type's code, for instance "u" for a string. */
    const char *name;     /* May be NULL. */
    const char *metadata; /* May be NULL; binary, not a C string. */
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary; /* The values' type of a dictionary-encoded array, else NULL. */
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

/* The buffers of an array. Whoever holds the struct calls release once; moving it is copying its bytes and setting
 * the source's release to NULL. */
struct ArrowArray {
    int64_t length;
    int64_t null_count; /* -1: not counted. */
    int64_t offset;     /* Rows to skip in every buffer, the validity bitmap too. */
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers; /* The first is the validity bitmap, NULL if no row is null. */
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif /* ARROW_C_DATA_INTERFACE */

#ifndef ARROW_C_STREAM_INTERFACE
#    define ARROW_C_STREAM_INTERFACE

/* Arrays of one type, one after the other. The functions return 0 or an errno. */
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out); /* At the end: out->release == NULL. */
    const char *(*get_last_error)(struct ArrowArrayStream *);           /* NULL, or valid until the next call. */
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif /* ARROW_C_STREAM_INTERFACE */
#endif
