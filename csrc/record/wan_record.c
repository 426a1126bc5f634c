/* Owns the check of records that come from a socket or a disk. */
#include "record/wan_record.h"

wan_status wan_record_check_unusual(const uint8_t *at, uint64_t bytes)
{
    const wan_record *record = (const wan_record *)at;
    if (bytes < sizeof(wan_record))
        return WAN_FAIL(WAN_CORRUPT, "record header cut off: %" PRIu64 " bytes left of %zu", bytes, sizeof(wan_record));
    if (record->value_length > WAN_VALUE_BYTES_MAX)
        return WAN_FAIL(WAN_CORRUPT, "value of %" PRIu32 " bytes is over the limit %u", record->value_length,
                        WAN_VALUE_BYTES_MAX);
    if (wan_record_length(record) > bytes)
        return WAN_FAIL(WAN_CORRUPT, "record of %" PRIu32 " bytes where %" PRIu64 " are left",
                        wan_record_length(record), bytes);
    if (record->operation >= WAN_OPERATION_COUNT)
        return WAN_FAIL(WAN_CORRUPT, "operation %u is unknown", record->operation);
    if (record->flags > WAN_FLAGS) return WAN_FAIL(WAN_CORRUPT, "flags %u are unknown", record->flags);
    if (record->key_form >= WAN_FORM_COUNT || record->value_form >= WAN_FORM_COUNT
        || record->callback_form >= WAN_FORM_COUNT)
        return WAN_FAIL(WAN_CORRUPT, "form %u/%u/%u is unknown", record->key_form, record->value_form,
                        record->callback_form);
    return wan_key_check(wan_record_key(record), record->key_length, record->key_form);
}
