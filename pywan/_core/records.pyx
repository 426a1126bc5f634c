# Owns what Python sees of a record in wire form.
from libc.stdint cimport uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_record cimport *
from pywan._core.status cimport raise_for


def record_fields(bytes record):
    """A record's fields as a dict; key, value and callback decoded lazily by `events`."""
    cdef const wan_record *r = <const wan_record *>PyBytes_AS_STRING(record)
    raise_for(wan_record_check(<const uint8_t *>r, PyBytes_GET_SIZE(record)), "")
    return {
        "operation": r.operation, "stamp": r.stamp, "stamp_site": r.stamp_site,
        "origin_site": r.origin_site, "recipients": wan_record_recipients(r)[:r.recipients_count],
        "event_id": (r.event_member, r.event_thread, r.event_sequence), "region_number": r.region,
        "length": wan_record_length(r),
        "key": (r.key_form, <bytes>wan_record_key(r)[:r.key_length]),
        "value": (r.value_form, <bytes>wan_record_value(r)[:r.value_length]),
        "callback": (r.callback_form, <bytes>wan_record_callback(r)[:r.callback_length]),
    }


def record_flags(bytes record):
    """The flags of a whole record: 1 a caller gave the stamp, 2 an operator forces it."""
    raise_for(wan_record_check(<const uint8_t *>PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record)), "")
    return (<const wan_record *>PyBytes_AS_STRING(record)).flags
