# Owns what Python sees of a record in wire form.
from libc.stdint cimport uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport WAN_RECORD_FORMAT
from pywan._core.c_record cimport *
from pywan._core.status cimport raise_for

RECORD_FORMAT = <int>WAN_RECORD_FORMAT


def record_fields(bytes record):
    """All fields of a record's head by their names, and what stands behind the head.

    Key, value and callback argument are (form, bytes), the recipients bytes. `event_id` is (member, thread, sequence), `length` that of the whole record. SerializationError: it is no record."""
    cdef const wan_record *r = <const wan_record *>PyBytes_AS_STRING(record)
    raise_for(wan_record_check(<const uint8_t *>r, PyBytes_GET_SIZE(record)), "")
    cdef dict fields = r[0]
    fields["event_id"] = (r.event_member, r.event_thread, r.event_sequence)
    fields["length"] = wan_record_length(r)
    fields["key"] = (r.key_form, <bytes>wan_record_key(r)[:r.key_length])
    fields["value"] = (r.value_form, <bytes>wan_record_value(r)[:r.value_length])
    fields["callback"] = (r.callback_form, <bytes>wan_record_callback(r)[:r.callback_length])
    fields["recipients"] = wan_record_recipients(r)[:r.recipients_count]
    return fields
