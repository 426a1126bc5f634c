# Owns what Python sees of the tables in C: counters (csrc/session/wan_counts.h), reasons of failure (csrc/record/wan_failure.h), fields of a record
# (csrc/record/wan_record.h).
from pywan._core.c_tables cimport (
    WAN_FAILED_OTHER, WAN_FAILURES_COUNT, WAN_PARK_PARTITIONS, WAN_QUEUE_COUNTERS_COUNT, WAN_RECEIVER_COUNTERS_COUNT,
    WAN_RECORD_FIELDS_COUNT, wan_counter_row, wan_failure_rows, wan_queue_counter_rows, wan_receiver_counter_rows, wan_record_fields)

PARK_PARTITIONS = <int>WAN_PARK_PARTITIONS


cdef list rows_of(const wan_counter_row *rows, int count):
    return [(rows[n].number, rows[n].field.decode(), rows[n].statistic.decode(), rows[n].entry.decode(),
             rows[n].part_of.decode(), rows[n].about.decode()) for n in range(count)]


def queue_counter_rows():
    """(number, field, statistic, entry of the ledger, what that is a part of, what it counts) of each counter of a queue."""
    return rows_of(wan_queue_counter_rows, WAN_QUEUE_COUNTERS_COUNT)


def receiver_counter_rows():
    """The same of a receiver; number, entry and part say nothing."""
    return rows_of(wan_receiver_counter_rows, WAN_RECEIVER_COUNTERS_COUNT)


def failure_rows():
    """(number, words) of each reason for which a receiver does not apply an event."""
    return [(wan_failure_rows[n].number, wan_failure_rows[n].text.decode()) for n in range(WAN_FAILURES_COUNT)]


def record_field_rows():
    """(bits, name, about) of each field of a record's head, in their order and without gaps."""
    return [(wan_record_fields[n].bits, wan_record_fields[n].name.decode(), wan_record_fields[n].about.decode())
            for n in range(WAN_RECORD_FIELDS_COUNT)]


def failure_text(unsigned int reason):
    """The words for a reason of failure; of one that this version does not know, those for "other"."""
    found = dict(failure_rows())
    return found.get(reason, found[<int>WAN_FAILED_OTHER])
