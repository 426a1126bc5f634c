/* Owns nothing. These are the structs of the Arrow C data interface and C stream interface, as the specification gives
 * them. They are an ABI. The guards are those of the specification, so that another copy of the structs in the same
 * translation unit does no harm. */
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

/* The type of an array. After its release, `release` is NULL. */
struct ArrowSchema {
    const char *format;   /* The type's code, for instance "u" for a string. */
    const char *name;     /* May be NULL. */
    const char *metadata; /* May be NULL. Binary data, not a C string. */
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    /* The type of the values, if the array is dictionary-encoded. Otherwise NULL. */
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

/* The buffers of an array. The holder of the struct calls `release` once. To move the struct, the holder copies its
 * bytes and sets the source's `release` to NULL. */
struct ArrowArray {
    int64_t length;
    int64_t null_count; /* -1: not counted. */
    int64_t offset;     /* Rows to skip in every buffer, also in the validity bitmap. */
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers; /* The first is the validity bitmap. It is NULL if no row is null. */
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif /* ARROW_C_DATA_INTERFACE */

#ifndef ARROW_C_STREAM_INTERFACE
#    define ARROW_C_STREAM_INTERFACE

/* A stream of arrays of one type. The functions return 0 or an errno. */
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    /* After the last array it sets out->release to NULL. */
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    /* NULL, or a text that is valid until the next call. */
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif /* ARROW_C_STREAM_INTERFACE */
#endif
