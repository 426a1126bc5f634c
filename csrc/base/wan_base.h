/* Owns the vocabulary that all C parts share: status values, the error detail of each thread, and the checks of our own
 * arithmetic. */
#ifndef WAN_BASE_H
#define WAN_BASE_H
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#    error "records and frames are little-endian and used in place; a big-endian build needs conversion first"
#endif

/* The version of the formats of records, batches and logs. It changes when any of them changes. */
#define WAN_RECORD_FORMAT 4u

typedef enum {
    WAN_OK = 0,    /* The call did what it should. */
    WAN_EMPTY,     /* There is nothing to take. This is a result, not an error. */
    WAN_FULL,      /* There is no room within the limits, or on the disk. Nothing was changed. */
    WAN_TOO_LARGE, /* A key, value or record is over its limit. Nothing was changed. */
    WAN_CORRUPT,   /* The bytes are not what they should be. */
    WAN_IO,        /* The operating system refused. The detail names the file and the reason. */
    WAN_NO_MEMORY, /* There is no memory. */
    WAN_INVALID,   /* An argument of the caller is wrong. */
    WAN_SLOW,      /* The short way is not enough, for instance because the user's Python has to be asked. Nothing was
                      changed. */
    WAN_CLOSED,    /* The object of the call was closed. Nothing was changed. */
    /* A check of our own failed on this handle, now or earlier. The handle is not used any more. The detail says
     * where. */
    WAN_BROKEN,
    WAN_NOT_PRIMARY, /* Another member is primary of the change's bucket, or will be. Nothing was changed. */
    WAN_TOO_FEW,     /* The bucket has fewer in-sync replicas than a change needs. Nothing was changed. */
    WAN_IN_DOUBT, /* The change may have happened before: its caller has given the call up, or the answer is not known
                     any more. Nothing was changed now. */
    WAN_MADE_BEFORE, /* An earlier attempt of the call made the change. Nothing was changed now. */
    WAN_GIVEN_UP,    /* The site has given the caller up. Nothing was changed now. */
    WAN_LOW_MEMORY,  /* Only of a detail: this member, or one that has a copy, is above its limit of memory. */
} wan_status;

#define WAN_DETAIL_BYTES 512
extern _Thread_local char wan_detail[WAN_DETAIL_BYTES];
/* The status that the detail explains. It can differ from the status of the call: when a change finds no room
 * (WAN_FULL) because a log fails, the detail explains the log's failure. */
extern _Thread_local wan_status wan_detail_status;

/* Notes the reason of a failure in the thread's detail, for the caller that turns the status into an error. */
void wan_note(wan_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Notes the reason, and is `status`: the compiler sees which one the function returns. */
#define WAN_FAIL(status, ...) (wan_note((status), __VA_ARGS__), (status))

/* The place of a check of our own arithmetic. A check that fails is a bug of ours, and going on with its handle would
 * spoil data. The handle (a queue, a log) keeps the first failure in `broken` and refuses every later call. The process
 * goes on with its other handles. Debug and sanitizer builds stop at once. */
typedef struct {
    const char *condition, *file; /* The text of the check, and the source file that holds it. */
    int line;
} wan_breakage;

#ifdef WAN_DEBUG
/* 1 by default. A test that uses a broken handle sets it to 0. */
extern int wan_stops_at_breakage;
#endif
/* Notes the first breakage of a handle, and prints it on stderr. Returns WAN_BROKEN. The caller holds the lock that
 * guards the handle. */
wan_status wan_break(const wan_breakage **broken, const wan_breakage *at);
/* The first breakage of a handle, or NULL. The caller need not hold the handle's lock. */
static inline const wan_breakage *wan_breakage_of(const wan_breakage *const *broken)
{
    return __atomic_load_n(broken, __ATOMIC_ACQUIRE);
}
/* Refuses a later call on a broken handle: returns WAN_BROKEN, and the detail repeats the first breakage. */
wan_status wan_refuse_broken(const wan_breakage *broken);

/* Leaves the function when `holds` is false, and returns the value that follows (no value in a void function). It
 * stands before anything is changed. */
#define WAN_CHECK(handle, holds, ...)                                                                                  \
    do {                                                                                                               \
        if (__builtin_expect(!(holds), 0)) {                                                                           \
            static const wan_breakage at_ = {#holds, __FILE__, __LINE__};                                              \
            wan_break(&(handle)->broken, &at_);                                                                        \
            return __VA_ARGS__;                                                                                        \
        }                                                                                                              \
    } while (0)

/* A check that only debug and sanitizer builds make; it stops them. It is for checks that cost too much for every
 * build, and for conditions without which memory is already damaged. */
#ifdef WAN_DEBUG
_Noreturn void wan_check_failed(const char *condition, const char *file, int line);
#    define WAN_DEBUG_CHECK(condition)                                                                                 \
        do {                                                                                                           \
            if (__builtin_expect(!(condition), 0)) wan_check_failed(#condition, __FILE__, __LINE__);                   \
        } while (0)
#else
#    define WAN_DEBUG_CHECK(condition) ((void)0)
#endif

/* The largest number means "none". It has a name for each thing that can be missing. */
#define WAN_NEVER       UINT64_MAX /* A time that does not come. */
#define WAN_NO_LIMIT    UINT64_MAX /* A number of bytes or items without a limit. */
#define WAN_NO_STAMP    UINT64_MAX /* Stands for a stamp where there is none. */
#define WAN_NO_SEQUENCE UINT64_MAX /* Stands for a sequence where there is none. */

/* Asks the processor to fetch a cache line that is read soon. */
#define wan_prefetch(at) __builtin_prefetch(at)
/* Tell the compiler which way a condition usually goes. */
#define WAN_LIKELY(x)   __builtin_expect(!!(x), 1)
#define WAN_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* The next multiple of 8. */
static inline uint64_t wan_align8(uint64_t bytes) { return (bytes + 7) & ~(uint64_t)7; }

#endif
