# Owns nothing but names: the C of csrc/record as Cython sees it.
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from pywan._core.c_base cimport *
from pywan._core.c_tables cimport wan_record       # Its fields are a table.

cdef extern from "record/wan_form.h" nogil:
    enum: WAN_FORM_BYTES, WAN_FORM_TEXT, WAN_FORM_TAGGED, WAN_FORM_NONE, WAN_FORM_INT, WAN_FORM_FLOAT, WAN_FORM_USER
    enum: WAN_FORM_COUNT
    enum: WAN_TAG_INSTANT, WAN_TAG_BIG_INT, WAN_TAG_TUPLE, WAN_TAG_DATE, WAN_TAG_NAIVE, WAN_TAG_FROZENSET, WAN_TAG_SET
    enum: WAN_TAG_DURATION, WAN_TAG_ENUM, WAN_TAG_USER
    enum: WAN_TAG_TIME, WAN_TAG_DECIMAL
    enum: WAN_TAGGED_DEPTH_MAX, WAN_TAGGED_CONTAINERS_MAX
    bint wan_is_ascii(const uint8_t *at, size_t length)
    wan_status wan_key_check(const uint8_t *key, size_t length, uint8_t form)
    const char *wan_key_fault(const uint8_t *key, size_t length, uint8_t form)

cdef extern from "record/wan_decimal.h" nogil:
    enum: WAN_DECIMAL_BYTES_MAX, WAN_DECIMAL_TEXT_MAX
    unsigned wan_decimal_write(char *to, const uint8_t *number, unsigned length, int32_t scale)

cdef extern from "record/wan_record.h" nogil:
    enum: WAN_KEY_BYTES_MAX, WAN_CALLBACK_BYTES_MAX, WAN_VALUE_BYTES_MAX
    enum: WAN_CREATE, WAN_UPDATE, WAN_DESTROY
    enum: WAN_FLAG_GIVEN, WAN_FLAG_FORCED, WAN_FLAG_REPEATED
    uint64_t wan_record_size(uint32_t key_length, uint32_t value_length, uint32_t callback_length, uint32_t recipients)
    uint32_t wan_record_length(const wan_record *record)
    const wan_record wan_no_head
    wan_record *wan_record_begin(uint8_t *to, uint64_t length, const wan_record *head)
    void wan_record_fill(uint8_t *to, const uint8_t *key, const uint8_t *value, const uint8_t *callback,
                         const uint8_t *recipients)
    void wan_record_write(uint8_t *to, uint64_t length, wan_record head, const uint8_t *key, const uint8_t *value,
                          const uint8_t *callback, const uint8_t *recipients)
    uint8_t *wan_record_key(const wan_record *record)
    uint8_t *wan_record_value(const wan_record *record)
    uint8_t *wan_record_callback(const wan_record *record)
    uint8_t *wan_record_recipients(const wan_record *record)
    int wan_version_order(uint64_t stamp, uint8_t site, uint64_t other_stamp, uint8_t other_site)
    int wan_record_order(const wan_record *a, const wan_record *b)
    void wan_copy_small(uint8_t *to, const uint8_t *source, size_t length)
    wan_status wan_record_check(const uint8_t *at, uint64_t length)
    int wan_record_has_end(const wan_record *record, uint64_t length)

cdef extern from "record/wan_position.h" nogil:
    ctypedef struct wan_position:
        uint32_t partition
        uint32_t count
        uint64_t first
    uint32_t wan_positions_join(wan_position *to, const wan_position *places, uint32_t count)
    ctypedef struct wan_position_walk:
        const uint8_t *at
        uint64_t left
    wan_status wan_positions_begin(wan_position_walk *walk, const uint8_t *part, uint64_t length, uint32_t items)
    int wan_positions_next(wan_position_walk *walk, uint32_t *partition, uint64_t *sequence)
    void wan_positions_pass(wan_position_walk *walk, uint64_t length)

cdef extern from "record/wan_item_set.h" nogil:
    ctypedef struct wan_item_key:
        uint16_t length
    ctypedef struct wan_item_set:
        uint64_t count
        wan_item_key (*key_of)(const uint8_t *item) noexcept nogil

    wan_status wan_item_set_find(wan_item_set *chosen, const wan_buffer *stage, const void *item, uint64_t **slot)
    void wan_item_set_choose(wan_item_set *chosen, uint64_t *slot, uint64_t at)
    void wan_item_set_empty(wan_item_set *chosen)

cdef extern from "record/wan_frame.h" nogil:
    enum: WAN_FRAME_MAGIC, WAN_FRAME_BYTES_MAX, WAN_FRAME_LZ4
    enum: WAN_FRAME_HELLO, WAN_FRAME_WELCOME, WAN_FRAME_REGION, WAN_FRAME_BATCH, WAN_FRAME_ACK, WAN_FRAME_REWIND
    enum: WAN_FRAME_PING, WAN_FRAME_PONG, WAN_FRAME_BYE, WAN_FRAME_ERROR, WAN_FRAME_COMMIT, WAN_FRAME_COMMITTED
    enum: WAN_FRAME_KNOWN, WAN_FRAME_PROGRESS, WAN_FRAME_STREAM, WAN_WIRE_PARTITIONS, WAN_SECTIONS_MAX
    ctypedef struct wan_frame:
        uint32_t magic
        uint8_t type
        uint8_t flags
        uint16_t reserved
        uint32_t length
        uint32_t crc
        uint32_t raw_length
        uint32_t count
        uint64_t id
    ctypedef struct wan_section:
        uint32_t partition
        uint32_t count
        uint64_t first
        uint64_t through
        uint64_t acknowledged
        uint32_t bytes
        uint32_t not_durable
        uint32_t duplicates
        uint32_t reserved
    uint64_t wan_section_durable(const wan_section *section)
    bint wan_section_has_holes(const wan_section *section)
    uint64_t wan_section_head_bytes(const wan_section *section)
    uint64_t wan_section_sequence(const wan_section *section, const uint8_t *at, uint32_t n)
    ctypedef struct wan_batch_head:
        uint32_t sections
        uint32_t reserved
    ctypedef struct wan_ack:
        uint32_t credit_events
        uint32_t failures
        uint64_t credit_bytes
    ctypedef struct wan_floor:
        uint64_t stamp
        uint8_t origin
    ctypedef struct wan_failure:
        uint32_t partition
        uint32_t reason
        uint64_t sequence
    ctypedef struct wan_rewind:
        uint32_t partition
        uint32_t reserved
        uint64_t expected
    ctypedef struct wan_stream:
        uint16_t region
        uint16_t bucket
        uint16_t buckets
        uint16_t reserved
        uint64_t timeline
    uint32_t wan_frame_crc(const wan_frame *frame, const void *payload, size_t length)
    wan_status wan_frame_check(const wan_frame *frame)
    wan_status wan_stream_check(const wan_frame *frame, uint32_t own_partitions)
    wan_status wan_batch_check(const uint8_t *payload, uint64_t length, uint32_t count)

cdef extern from "record/wan_names.h" nogil:
    enum: WAN_REGION_NAMES, WAN_REGION_NAME_BYTES_MAX
    ctypedef struct wan_region_name:
        char *text
        uint16_t length
    wan_region_name *wan_region_names
    wan_status wan_region_name_give(uint16_t number, const char *text, uint16_t length)

cdef extern from "record/wan_event_name.h" nogil:
    ctypedef struct wan_event_name:
        uint32_t key_length
        uint16_t region
        uint8_t operation, key_form
        uint8_t *key
    void wan_name_event(wan_event_name *name, const wan_record *record)
