# Owns the fields of a record in wire form, as Python sees them.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from pywan._core.c_base cimport WAN_RECORD_FORMAT
from pywan._core.c_record cimport *
from pywan._core.values.names cimport region_number
from pywan._core.base.status cimport raise_for

RECORD_FORMAT = <int>WAN_RECORD_FORMAT


def record_fields(bytes record):
    """All fields of a record's head by their names, and the fields behind the head.

    Key, value and callback argument are (form, bytes). The recipients are bytes. `event_id` is (member, thread,
    sequence), and `length` is the length of the whole record. SerializationError: the bytes are no record."""
    cdef const wan_record *head = <const wan_record *>PyBytes_AS_STRING(record)
    raise_for(wan_record_check(<const uint8_t *>head, PyBytes_GET_SIZE(record)), "")
    cdef dict fields = head[0]
    fields["event_id"] = (head.event_member, head.event_thread, head.event_sequence)
    fields["length"] = wan_record_length(head)
    fields["key"] = (head.key_form, <bytes>wan_record_key(head)[:head.key_length])
    fields["value"] = (head.value_form, <bytes>wan_record_value(head)[:head.value_length])
    fields["callback"] = (head.callback_form, <bytes>wan_record_callback(head)[:head.callback_length])
    fields["recipients"] = wan_record_recipients(head)[:head.recipients_count]
    return fields


def make_record(str region, int operation, key, value, callback, version, int origin_site, bytes recipients, event_id,
                uint8_t flags=0):
    """Returns the record of one event of that region in wire form: what `record_fields` reads.

    Key, value and callback argument are (form, bytes). `version` is (stamp, site)."""
    cdef wan_record head
    cdef uint64_t length
    cdef bytes key_bytes = key[1], value_bytes = value[1], callback_bytes = callback[1], made
    memset(&head, 0, sizeof(head))
    head.region, head.operation, head.origin_site, head.flags = region_number(region), operation, origin_site, flags
    head.key_form, head.key_length = key[0], len(key_bytes)
    head.value_form, head.value_length = value[0], len(value_bytes)
    head.callback_form, head.callback_length = callback[0], len(callback_bytes)
    head.stamp, head.stamp_site = version
    head.event_member, head.event_thread, head.event_sequence = event_id
    head.recipients_count = len(recipients)
    length = wan_record_length(&head)
    made = PyBytes_FromStringAndSize(NULL, length)
    wan_record_write(<uint8_t *>PyBytes_AS_STRING(made), length, head, <const uint8_t *>PyBytes_AS_STRING(key_bytes),
                     <const uint8_t *>PyBytes_AS_STRING(value_bytes),
                     <const uint8_t *>PyBytes_AS_STRING(callback_bytes), <const uint8_t *>PyBytes_AS_STRING(recipients))
    raise_for(wan_record_check(<const uint8_t *>PyBytes_AS_STRING(made), length), f"region {region!r}")
    return made
