# Owns what Python sees of the tables and enums in C: counters (csrc/session/wan_counts.h), reasons of failure
# (csrc/record/wan_failure.h), fields of a record and its operation (csrc/record/wan_record.h), and what a change asks
# for when it meets another version (csrc/region/wan_table.h).
from pywan._core.c_record cimport (
    WAN_CREATE, WAN_DESTROY, WAN_FAILED_FORGOTTEN, WAN_FAILED_LISTENER, WAN_FAILED_NO_MEMORY, WAN_FAILED_OTHER,
    WAN_FAILED_REGION_NOT_FOUND, WAN_FAILED_WITHHELD, wan_failure_rows, WAN_FAILURES_COUNT, WAN_PARK_PARTITIONS,
    wan_parked_reason, wan_record_fields, WAN_RECORD_FIELDS_COUNT, WAN_UPDATE)
from pywan._core.c_region cimport WAN_ASK_DECIDED, WAN_ASK_NOBODY, WAN_ASK_RESOLVER
from pywan._core.c_session cimport (
    wan_counter_row, wan_queue_counter_rows, WAN_QUEUE_COUNTERS_COUNT, wan_receiver_counter_rows,
    WAN_RECEIVER_COUNTERS_COUNT)

PARK_PARTITIONS = <int>WAN_PARK_PARTITIONS
CREATE, UPDATE, DESTROY = <int>WAN_CREATE, <int>WAN_UPDATE, <int>WAN_DESTROY
ASK_NOBODY, ASK_RESOLVER, ASK_DECIDED = <int>WAN_ASK_NOBODY, <int>WAN_ASK_RESOLVER, <int>WAN_ASK_DECIDED
FAILED_REGION_NOT_FOUND, FAILED_NO_MEMORY = <int>WAN_FAILED_REGION_NOT_FOUND, <int>WAN_FAILED_NO_MEMORY
FAILED_OTHER, FAILED_FORGOTTEN = <int>WAN_FAILED_OTHER, <int>WAN_FAILED_FORGOTTEN
FAILED_WITHHELD, FAILED_LISTENER = <int>WAN_FAILED_WITHHELD, <int>WAN_FAILED_LISTENER


cdef list rows_of(const wan_counter_row *rows, int count):
    return [(rows[n].number, rows[n].field.decode(), rows[n].statistic.decode(), rows[n].entry.decode(),
             rows[n].part_of.decode(), rows[n].about.decode()) for n in range(count)]


def queue_counter_rows():
    """(number, field, statistic, entry of the ledger, the entry that it is a part of, what it counts) for each counter
    of a queue."""
    return rows_of(wan_queue_counter_rows, WAN_QUEUE_COUNTERS_COUNT)


def receiver_counter_rows():
    """The same for each counter of a receiver. Number, entry and part have no meaning there."""
    return rows_of(wan_receiver_counter_rows, WAN_RECEIVER_COUNTERS_COUNT)


def failure_rows():
    """(number, words) for each reason why a receiver does not apply an event."""
    return [(wan_failure_rows[n].number, wan_failure_rows[n].text.decode()) for n in range(WAN_FAILURES_COUNT)]


def record_field_rows():
    """(bits, name, about) for each field of a record's head, in their order and without gaps."""
    return [(wan_record_fields[n].bits, wan_record_fields[n].name.decode(), wan_record_fields[n].about.decode())
            for n in range(WAN_RECORD_FIELDS_COUNT)]


def failure_text(unsigned int reason):
    """The words for a reason of failure. A reason that this version does not know has the words of "other"."""
    found = dict(failure_rows())
    return found.get(reason, found[<int>WAN_FAILED_OTHER])


def parked_reason(unsigned int partition):
    """The reason for which events are in a partition of a queue of parked events."""
    return wan_parked_reason(partition)
