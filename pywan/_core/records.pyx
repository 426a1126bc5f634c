# Owns the fields of a record in wire form, as Python sees them.
from libc.stdint cimport uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport WAN_RECORD_FORMAT
from pywan._core.c_record cimport *
from pywan._core.status cimport raise_for

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
