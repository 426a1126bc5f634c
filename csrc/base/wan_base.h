/* Owns the vocabulary of all C parts: status values, the error detail of this thread, and checks of our own arithmetic.
 */
#ifndef WAN_BASE_H
#define WAN_BASE_H
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#    error "records and frames are little-endian and used in place; a big-endian build needs conversion first"
#endif

#define WAN_RECORD_FORMAT 3u /* Of records, batches and logs: it changes with any of them. */

typedef enum {
    WAN_OK = 0,
    WAN_EMPTY,     /* Nothing there to take: a result, not an error. */
    WAN_FULL,      /* No room within the limits, or on the disk; nothing was changed. */
    WAN_TOO_LARGE, /* A key, value or record over its limit; nothing was changed. */
    WAN_CORRUPT,   /* Bytes that are not what they should be. */
    WAN_IO,        /* The operating system refused; the detail names the file and the reason. */
    WAN_NO_MEMORY,
    WAN_INVALID, /* The caller's argument. */
    WAN_SLOW,    /* The change has to go through the user's Python; nothing was changed. */
    WAN_CLOSED,  /* What it is for was closed; nothing was changed. */
    WAN_BROKEN,  /* A check of our own failed on this handle, now or earlier: it is not used any more. The detail says
                    where. */
} wan_status;

#define WAN_DETAIL_BYTES 512
extern _Thread_local char wan_detail[WAN_DETAIL_BYTES];
extern _Thread_local wan_status wan_detail_status; /* What the detail is about: of a change that finds no room
                                                      (WAN_FULL) because a log fails, that failure. */

/* Notes why, for whoever turns the status into an error; returns `status`. */
wan_status wan_fail(wan_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define WAN_FAIL(status, ...) wan_fail((status), __VA_ARGS__)
/* The same for who returns something else, or nothing. */
#define wan_note(status, ...) ((void)wan_fail((status), __VA_ARGS__))

/* Our own arithmetic: a failure is a bug, and going on with this handle would spoil data. The handle (a queue, a log)
 * keeps in `broken` where it failed first, and refuses every later call; the process goes on with its other handles.
 * Debug and sanitizer builds stop at once. */
typedef struct {
    const char *condition, *file;
    int line;
} wan_breakage;

#ifdef WAN_DEBUG
extern int wan_stops_at_breakage; /* 1; a test of what becomes of a broken handle sets it to 0. */
#endif
/* Notes the first breakage of a handle and tells it on stderr; returns WAN_BROKEN. Under the lock that guards the
 * handle. */
wan_status wan_break(const wan_breakage **broken, const wan_breakage *at);
/* The first breakage of a handle, or NULL; also without its lock. */
static inline const wan_breakage *wan_breakage_of(const wan_breakage *const *broken)
{
    return __atomic_load_n(broken, __ATOMIC_ACQUIRE);
}
/* The refusal of a later call: WAN_BROKEN with the words of the first breakage. */
wan_status wan_refuse_broken(const wan_breakage *broken);

/* Leaves the function with the value that follows (none in a void one), before anything is changed. */
#define WAN_CHECK(handle, holds, ...)                                                                                  \
    do {                                                                                                               \
        if (__builtin_expect(!(holds), 0)) {                                                                           \
            static const wan_breakage at_ = {#holds, __FILE__, __LINE__};                                              \
            wan_break(&(handle)->broken, &at_);                                                                        \
            return __VA_ARGS__;                                                                                        \
        }                                                                                                              \
    } while (0)

/* Where it costs too much to stay on, and where memory is damaged if it does not hold: in debug and sanitizer builds,
 * which stop. */
#ifdef WAN_DEBUG
_Noreturn void wan_check_failed(const char *condition, const char *file, int line);
#    define WAN_DEBUG_CHECK(condition)                                                                                 \
        do {                                                                                                           \
            if (__builtin_expect(!(condition), 0)) wan_check_failed(#condition, __FILE__, __LINE__);                   \
        } while (0)
#else
#    define WAN_DEBUG_CHECK(condition) ((void)0)
#endif

/* The largest number stands for "none", under the name of what it is none of. */
#define WAN_NEVER       UINT64_MAX /* A time that does not come. */
#define WAN_NO_LIMIT    UINT64_MAX /* A number of bytes or items that is not limited. */
#define WAN_NO_STAMP    UINT64_MAX /* Instead of a stamp: there is none. */
#define WAN_NO_SEQUENCE UINT64_MAX /* Instead of a sequence: there is none. */

#define wan_prefetch(at) __builtin_prefetch(at)
#define WAN_LIKELY(x)    __builtin_expect(!!(x), 1)
#define WAN_UNLIKELY(x)  __builtin_expect(!!(x), 0)

static inline uint64_t wan_align8(uint64_t bytes) { return (bytes + 7) & ~(uint64_t)7; }

#endif
