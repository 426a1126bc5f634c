# Owns nothing but names: the C of csrc/base as Cython sees it.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "base/wan_base.h" nogil:
    enum: WAN_RECORD_FORMAT
    ctypedef enum wan_status:
        WAN_OK, WAN_EMPTY, WAN_FULL, WAN_TOO_LARGE, WAN_CORRUPT, WAN_IO, WAN_NO_MEMORY, WAN_INVALID, WAN_SLOW,
        WAN_CLOSED, WAN_BROKEN, WAN_NOT_PRIMARY, WAN_TOO_FEW, WAN_IN_DOUBT, WAN_MADE_BEFORE, WAN_GIVEN_UP,
        WAN_LOW_MEMORY
    ctypedef struct wan_breakage:
        pass
    wan_status wan_refuse_broken(const wan_breakage *broken)
    const wan_breakage *wan_breakage_of(const wan_breakage **broken)
    enum: WAN_DETAIL_BYTES
    const char *wan_detail
    wan_status wan_detail_status
    uint64_t wan_align8(uint64_t length)

cdef extern from *:
    """
    #ifdef WAN_DEBUG
    #define WAN_CHECKS_STOP 1
    #else
    #define WAN_CHECKS_STOP 0
    #endif
    """
    enum: WAN_CHECKS_STOP

cdef extern from "base/wan_lock.h" nogil:
    ctypedef struct wan_lock:
        pass
    void wan_lock_take(wan_lock *lock)
    bint wan_lock_try(wan_lock *lock)
    bint wan_lock_spin(wan_lock *lock)
    ctypedef struct wan_lock_sleeper:
        void *(*let_go)() noexcept nogil
        void *gone
    wan_lock_sleeper wan_lock_sleeper_own
    void wan_lock_prepare()
    void wan_lock_release(wan_lock *lock)
    void wan_wait_change(uint32_t *word, uint32_t seen, uint32_t timeout_ms)
    void wan_signal_change(uint32_t *word)

cdef extern from "base/wan_role.h" nogil:
    ctypedef struct wan_role:
        pass
    bint wan_role_take(wan_role *role)
    void wan_role_release(wan_role *role, uint32_t *word)

cdef extern from "base/wan_clock.h" nogil:
    ctypedef struct wan_clock:
        uint64_t set_ms, set_boot_ms, base_ms, good_until_ms
    uint64_t wan_simulated_us
    uint64_t wan_now_ms()
    uint64_t wan_monotonic_us()
    uint64_t wan_clock_now_ms(wan_clock *clock)
    uint64_t wan_clock_wall_ms(wan_clock *clock)
    uint64_t wan_clock_receiving_ms(wan_clock *clock)
    void wan_clock_receive(wan_clock *clock, uint64_t stamp)
    uint64_t wan_stamp_ms(uint64_t stamp)
    uint64_t wan_clock_take(wan_clock *clock, uint64_t now_ms, uint64_t count)
    void wan_clock_see(wan_clock *clock, uint64_t stamp)
    void wan_clock_see_raised(wan_clock *clock, uint64_t stamp)
    uint64_t wan_clock_last(wan_clock *clock)
    uint64_t wan_clock_low(wan_clock *clock)
    uint64_t wan_clock_raise_low(wan_clock *clock)
    uint64_t wan_clock_ahead_ms(wan_clock *clock, uint64_t stamp)
    enum:
        WAN_CLOCK_AHEAD_MS, WAN_CLOCK_WRONG_MS
    int wan_clock_lower(wan_clock *clock, uint64_t most_ms)

cdef extern from "base/wan_thread.h" nogil:
    ctypedef struct wan_thread:
        uint64_t events
        uint32_t number
    wan_thread *wan_thread_self()
    uint32_t wan_thread_number()
    uint64_t wan_thread_next_event()
    void wan_add_shared(uint64_t *counter, uint64_t by)
    void wan_add_guarded(uint64_t *counter, uint64_t by)
    void wan_set(uint64_t *counter, uint64_t value)
    uint64_t wan_read(const uint64_t *counter)
    int wan_falls_short(int64_t *number, int64_t by)
    int wan_flag_read(const int *flag)
    void wan_flag_set(int *flag, int value)

cdef extern from "base/wan_fork.h" nogil:
    uint32_t wan_forks
    int wan_forks_count()

cdef extern from "base/wan_hash.h" nogil:
    uint64_t wan_hash(const void *data, size_t length, uint64_t seed)
    uint64_t wan_secret_hash(const void *data, size_t length, uint64_t form)
    uint64_t wan_key_hash(const void *key, size_t length, uint8_t form)
    uint32_t wan_hash_bucket(uint64_t hash, uint32_t count)

cdef extern from "base/wan_env.h" nogil:
    ctypedef struct wan_env:
        pass
    const wan_env wan_env_posix

cdef extern from "base/wan_buffer.h" nogil:
    ctypedef struct wan_buffer:
        uint8_t *bytes
        uint64_t start, used
        uint64_t capacity
        uint32_t count
    wan_status wan_buffer_begin(wan_buffer *buffer, uint64_t length)
    wan_status wan_buffer_reserve(wan_buffer *buffer, uint64_t length)
    wan_status wan_buffer_make_room(wan_buffer *buffer, uint64_t length, uint64_t most)
    void wan_buffer_trim(wan_buffer *buffer, uint64_t kept)
    uint8_t *wan_buffer_put(wan_buffer *buffer, const void *data, uint64_t length)
    wan_status wan_buffer_add(wan_buffer *buffer, const void *data, uint64_t length)
    void wan_buffer_empty(wan_buffer *buffer)
    void wan_buffer_close(wan_buffer *buffer)
    enum: WAN_BUFFER_KEPT_BYTES
    ctypedef struct wan_buffer_use:
        uint64_t began_us
    void wan_buffer_rest(wan_buffer *buffer, wan_buffer_use *use, uint64_t used, uint64_t now_us)

cdef extern from "base/wan_pages.h" nogil:
    enum: WAN_PAGE_ITEMS
    ctypedef struct wan_pages:
        uint32_t page_count
        uint32_t item_bytes
    void *wan_pages_find(const wan_pages *table, uint32_t number)
    void *wan_pages_put(wan_pages *table, uint32_t number)
    void wan_pages_close(wan_pages *table)

cdef extern from "base/wan_budget.h" nogil:
    enum: WAN_BUDGET_CHANGES, WAN_BUDGET_CALLS, WAN_BUDGET_NOTIFICATIONS, WAN_BUDGET_REMEMBERED
    ctypedef struct wan_budget:
        uint64_t limit, passing, waits
        uint64_t *used
    void wan_budget_init(wan_budget *budget, uint64_t limit)
    void wan_budget_hold(wan_budget *budget, int kind, uint64_t *held, uint64_t bytes)
    void wan_budget_let_go(wan_budget *budget, int kind, uint64_t *held)
    bint wan_budget_is_full(const wan_budget *budget)
    bint wan_budget_remembers(const wan_budget *budget)
    void wan_budget_note_wait(wan_budget *budget)
    wan_status wan_budget_wait(wan_budget *budget, uint32_t timeout_ms)

cdef extern from "base/wan_limit.h" nogil:
    ctypedef struct wan_limit:
        uint32_t is_short, shorts
        uint64_t limit, critical, calm, counted, free, left, refused
    const char *WAN_LIMIT_REMEDY
    void wan_limit_init(wan_limit *limit, const char *name, uint64_t bytes, uint64_t critical, uint64_t calm)
    void wan_limit_note(wan_limit *limit, int64_t other, uint64_t free, uint64_t left)
    uint64_t wan_limit_used(const wan_limit *limit)
    bint wan_limit_is_short(const wan_limit *limit)
    wan_status wan_limit_refuse(wan_limit *limit)

cdef extern from "base/wan_memory.h" nogil:
    bint wan_memory_trim(uint64_t least)

cdef extern from "base/wan_base.h" nogil:
    const uint64_t NEVER "WAN_NEVER"             # A time that does not come.
    const uint64_t NO_LIMIT "WAN_NO_LIMIT"       # A number of bytes or items that is not limited.
    const uint64_t NO_STAMP "WAN_NO_STAMP"       # Instead of a stamp: there is none.
    const uint64_t NO_SEQUENCE "WAN_NO_SEQUENCE"  # Instead of a sequence: none is expected.
    # Names of the same number for what the C does not know.
    const uint64_t DO_NOT_WAKE "WAN_NO_LIMIT"    # Instead of a number of events that wakes a dispatcher: none does.
    const uint64_t NO_SEGMENT "WAN_NO_LIMIT"     # Instead of the number of a segment: there is none.
    # Instead of a number of records at which a sweep began: there was none.
    const uint64_t NO_SWEEP "WAN_NO_LIMIT"
    void wan_note(wan_status status, const char *format, ...)
    void wan_prefetch(const void *at)

cdef extern from "base/wan_crc32c.h" nogil:
    uint32_t wan_crc32c(uint32_t crc, const void *data, size_t length)
    uint32_t wan_crc32c_portable(uint32_t crc, const void *data, size_t length)

cdef extern from *:
    uint32_t __atomic_load_n(uint32_t *at, int order) nogil
    enum: __ATOMIC_ACQUIRE
