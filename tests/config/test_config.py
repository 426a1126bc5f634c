"""The configuration: values that it accepts, values that it refuses, and its errors."""

from __future__ import annotations

import dataclasses
import inspect
import logging

import pytest

import pywan
from pywan.config.attributes import (
    THINGS,
    AsyncEventQueueAttributes,
    DiskStoreAttributes,
    ReceiverAttributes,
    RegionAttributes,
    RegionChanges,
    SenderAttributes,
    SenderChanges,
    order_of,
)
from pywan.config.classes import ClassReference, import_class, make_instance
from pywan.config.rules import validate_attachment, validate_colocation
from pywan.config.table import table, to_plain
from pywan.errors import ConfigurationError, GatewaySenderConfigurationError, IllegalStateError


@pytest.mark.parametrize(
    ("attributes", "order"),
    [
        ({"dispatcher_threads": 1}, "thread"),
        ({"dispatcher_threads": 1, "order_policy": "key"}, "key"),
        ({"dispatcher_threads": 2}, "key"),
        ({"dispatcher_threads": 2, "order_policy": "thread"}, "thread"),
        ({"dispatcher_threads": 1, "parallel": True}, "key"),
    ],
)
def test_a_serial_queue_with_one_dispatcher_keeps_the_order_of_threads_unless_told_otherwise(attributes, order):
    assert order_of(SenderAttributes.make("ln", remote_distributed_system_id=2, **attributes)) == order
    assert order_of(AsyncEventQueueAttributes.make("ln", async_event_listener=print, **attributes)) == order


def test_a_sender_has_geodes_defaults():
    sender = SenderAttributes.make("ln", remote_distributed_system_id=2)
    assert (sender.batch_size, sender.batch_time_interval, sender.maximum_queue_memory) == (100, 1000, 100)
    assert (sender.dispatcher_threads, order_of(sender), sender.socket_buffer_size) == (5, "key", 524288)
    assert sender.parallel is False and sender.disk_synchronous is True and sender.retry_interval_ms == 1000


def test_text_becomes_the_attributes_type():
    sender = SenderAttributes.make(
        "ln", remote_distributed_system_id="2", parallel="True", batch_size="7", order_policy="KEY"
    )
    assert (sender.remote_distributed_system_id, sender.parallel) == (2, True)
    assert (sender.batch_size, sender.order_policy) == (7, "key")


@pytest.mark.parametrize(
    "attributes, words",
    [
        ({"remote_distributed_system_id": -1}, ["remote_distributed_system_id", "-1", "0 to 255"]),
        ({"remote_distributed_system_id": 1}, ["remote_distributed_system_id 1", "own"]),
        ({"remote_distributed_system_id": 2, "dispatcher_threads": 0}, ["dispatcher_threads", "0", "from 1"]),
        ({"remote_distributed_system_id": 2, "batch_size": 0}, ["batch_size: 0", "-1"]),
        ({"remote_distributed_system_id": 2, "batch_time_interval": -2}, ["batch_time_interval", "-2"]),
        ({"remote_distributed_system_id": 2, "parallel": "maybe"}, ["parallel", "'maybe'", "true, false"]),
        ({"remote_distributed_system_id": 2, "batch_size": "10x"}, ["batch_size", "'10x'", "whole number"]),
        ({"remote_distributed_system_id": 2, "order_policy": "random"}, ["order_policy", "key, thread, partition"]),
        ({"remote_distributed_system_id": 2, "parallel": True, "order_policy": "thread"}, ["thread", "parallel"]),
        (
            {"remote_distributed_system_id": 2, "group_transaction_events": True},
            ["group_transaction_events has no effect in this version"],
        ),
        (
            {"remote_distributed_system_id": 2, "group_transaction_events": True, "enable_batch_conflation": True},
            ["group_transaction_events has no effect in this version"],
        ),
        ({"remote_distributed_system_id": 2, "compression": "zip"}, ["compression", "lz4"]),
        ({"remote_distributed_system_id": 2, "colour": "red"}, ["colour", "batch_size"]),
        ({}, ["remote_distributed_system_id", "required"]),
    ],
)
def test_a_wrong_sender_is_refused_with_attribute_value_and_range(attributes, words):
    with pytest.raises(GatewaySenderConfigurationError) as caught:
        SenderAttributes.make("ln", **attributes).check_site(1)
    for word in ["'ln'", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("bad", ["", "a b", "../x", "AsyncEventQueue_q", "-x", None, 7])
def test_a_senders_id_is_a_name_and_not_a_reserved_one(bad):
    with pytest.raises(GatewaySenderConfigurationError):
        SenderAttributes.make(bad, remote_distributed_system_id=2)


def test_a_too_short_read_timeout_is_raised_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        made = SenderAttributes.make("ln", remote_distributed_system_id=2, socket_read_timeout=5)
    assert made.socket_read_timeout == 30000
    assert "socket_read_timeout 5 ms" in caplog.text


def test_only_some_attributes_of_a_running_sender_can_be_altered():
    sender = SenderAttributes.make("ln", remote_distributed_system_id=2, gateway_event_filters="a.b:C")
    altered = sender.altered(batch_size="5", gateway_event_filters="CLEAR")
    assert (altered.batch_size, altered.gateway_event_filters, sender.batch_size) == (5, (), 100)
    for changes in ({}, {"parallel": True}, {"batch_size": 0}, {"batch_size": -1}, {"group_transaction_events": True}):
        with pytest.raises(GatewaySenderConfigurationError):
            sender.altered(**changes)


def test_a_receiver_has_geodes_defaults_and_a_range_that_goes_up():
    receiver = ReceiverAttributes.make()
    assert (receiver.start_port, receiver.end_port, receiver.maximum_time_between_pings) == (5000, 5500, 60000)
    assert ReceiverAttributes.make(start_port="7000", end_port=7000).end_port == 7000
    with pytest.raises(ConfigurationError, match="start_port 7001 is above end_port 7000"):
        ReceiverAttributes.make(start_port=7001, end_port=7000)
    with pytest.raises(ConfigurationError, match="65535"):
        ReceiverAttributes.make(end_port=70000)


def test_regions_take_shortcuts_and_ids():
    region = RegionAttributes.make("/data", type="partition_redundant", gateway_sender_ids="ln, tk")
    assert (region.name, region.type, region.redundant_copies) == ("data", "PARTITION_REDUNDANT", 1)
    assert region.gateway_sender_ids == ("ln", "tk") and region.is_partitioned and region.feeds_gateways
    assert not RegionAttributes.make("n", type="NORMAL").feeds_gateways
    for attributes in (
        {"type": "SHARDED"},
        {"gateway_sender_ids": "ln,ln"},
        {"type": "REPLICATE", "redundant_copies": 1},
        {"total_num_buckets": 0},
    ):
        with pytest.raises(ConfigurationError):
            RegionAttributes.make("data", **attributes)


def test_a_parallel_sender_needs_a_partitioned_region_and_persistence_where_the_region_has_it():
    parallel = SenderAttributes.make("ln", remote_distributed_system_id=2, parallel=True)
    validate_attachment(RegionAttributes.make("data"), parallel)
    with pytest.raises(GatewaySenderConfigurationError, match=r"parallel.*REPLICATE"):
        validate_attachment(RegionAttributes.make("data", type="REPLICATE"), parallel)
    with pytest.raises(GatewaySenderConfigurationError, match="not persistent"):
        validate_attachment(RegionAttributes.make("data", type="PARTITION_PERSISTENT"), parallel)


def test_regions_share_a_parallel_sender_only_when_colocated():
    senders = {"ln": SenderAttributes.make("ln", remote_distributed_system_id=2, parallel=True)}
    orders = RegionAttributes.make("orders", gateway_sender_ids=["ln"])
    lines = RegionAttributes.make("lines", gateway_sender_ids=["ln"], colocated_with="/orders")
    validate_colocation(lines, [orders], senders)
    with pytest.raises(IllegalStateError, match="cannot share the parallel gateway sender 'ln'"):
        validate_colocation(RegionAttributes.make("other", gateway_sender_ids=["ln"]), [orders], senders)
    with pytest.raises(IllegalStateError, match="no region 'missing'"):
        validate_colocation(RegionAttributes.make("other", colocated_with="missing"), [orders], senders)


class Filter:
    def __init__(self, word="none"):
        self.word = word

    def before_enqueue(self, event):
        return True


def test_a_class_reference_becomes_an_instance_with_its_parameters():
    made = make_instance(ClassReference(f"{__name__}:Filter", {"word": "x"}), "filter", ["before_enqueue"])
    assert made.word == "x"
    assert make_instance(made, "filter") is made and make_instance(Filter, "filter").word == "none"
    with pytest.raises(ConfigurationError, match="no method before_transmit"):
        make_instance(made, "filter", ["before_transmit"])
    with pytest.raises(ConfigurationError, match=r"cannot be created.*colour"):
        make_instance(ClassReference(f"{__name__}:Filter", {"colour": "x"}), "filter")


@pytest.mark.parametrize(
    "name, words",
    [
        ("no.such.module:X", ["'no.such.module:X'", "ModuleNotFoundError", "--classpath"]),
        ("pywan.errors:Nope", ["'Nope'", "pywan.errors"]),
        ("pywan.errors:__name__", ["has no class"]),
        ("pywan.errors.PywanError", ["package.module:Class"]),
        ("", ["package.module:Class"]),
    ],
)
def test_a_class_that_cannot_be_imported_says_why(name, words):
    with pytest.raises(ConfigurationError) as caught:
        import_class(name, "gateway-event-filter")
    for word in ["gateway-event-filter", *words]:
        assert word in str(caught.value)


def test_attributes_become_plain_values():
    plain = to_plain(SenderAttributes.make("ln", remote_distributed_system_id=2, gateway_event_filters=[Filter()]))
    assert plain["id"] == "ln" and plain["gateway_event_filters"] == [f"{__name__}:Filter"]


NEEDED = {
    SenderAttributes: {"id": "ln", "remote_distributed_system_id": 2},
    AsyncEventQueueAttributes: {"id": "audit", "async_event_listener": "shop.listeners:Keep"},
    RegionAttributes: {"name": "data"},
    DiskStoreAttributes: {"name": "kept"},
    ReceiverAttributes: {},
}
NUMBERS = [(cls, row) for cls in THINGS.values() for row in table(cls) if row.type in (int, int | None)]


@pytest.mark.parametrize("cls, row", NUMBERS, ids=[f"{cls.kind} {row.name}" for cls, row in NUMBERS])
def test_every_number_has_bounds_and_is_refused_by_name_beyond_them(cls, row):
    """Also one that is added later."""
    lowest, highest = row.attribute.lowest, row.attribute.highest
    assert lowest is not None and highest is not None, f"{cls.__name__}.{row.name} has no bounds"
    wrong = [-(2**31), lowest - 1, highest + 1, 2**80, 1.5, True, "many", *([None] if row.type is int else [])]
    for value in wrong:
        if value not in row.attribute.also:
            with pytest.raises(ConfigurationError, match=row.name):
                cls.make(**{**NEEDED[cls], row.name: value})


@pytest.mark.parametrize("cls", THINGS.values(), ids=THINGS)
def test_a_row_says_what_it_does_in_a_few_words(cls):
    for row in table(cls):
        about, more = row.attribute.about, row.attribute.more
        assert about and len(about) <= 100 and not about.endswith("."), row.name
        assert not more.endswith("."), row.name


@pytest.mark.parametrize(
    "method, cls",
    [
        (pywan.Cache.create_gateway_sender, SenderAttributes),
        (pywan.Cache.create_gateway_receiver, ReceiverAttributes),
        (pywan.Cache.create_region, RegionAttributes),
        (pywan.Cache.create_disk_store, DiskStoreAttributes),
        (pywan.GatewaySender.alter, SenderChanges),
        (pywan.Region.alter, RegionChanges),
    ],
    ids=lambda value: value.__qualname__,
)
def test_a_method_takes_the_attributes_by_name(method, cls):
    """Editors and `help` see the arguments. test_typing shows that a type checker does too."""
    shown = list(inspect.signature(method).parameters.values())[1:]
    assert [parameter.name for parameter in shown] == [row.name for row in table(cls)]
    assert all(parameter.annotation is not parameter.empty for parameter in shown)


def test_an_attribute_that_is_none_is_refused_with_those_that_there_are():
    for cls in THINGS.values():
        with pytest.raises(ConfigurationError, match="no attribute 'colour'; there are .*" + table(cls)[-1].name):
            cls.make(**NEEDED[cls], colour="red")


def test_what_was_made_can_be_made_again_of_its_plain_form():
    """As members, locators and files tell it to each other: no row may lack its form."""
    for cls in THINGS.values():
        made = cls.make(**NEEDED[cls])
        assert cls.make(**to_plain(made)) == cls.make(**vars(made)) == made == dataclasses.replace(made)


@pytest.mark.parametrize(
    "make, lowest",
    [
        (lambda size: SenderAttributes.make("ln", remote_distributed_system_id=2, socket_buffer_size=size), 1_000),
        (lambda size: ReceiverAttributes.make(socket_buffer_size=size), 16_384),
    ],
)
def test_a_socket_buffer_that_would_ruin_its_connection_is_refused(make, lowest):
    for size in (1, lowest - 1, "1"):
        with pytest.raises(ConfigurationError, match=f"socket_buffer_size: {size} .* from {lowest}"):
            make(size)
    for size in (0, lowest, 2**31 - 1):
        assert make(size).socket_buffer_size == size


def test_a_time_between_pings_that_no_sender_keeps_is_refused():
    with pytest.raises(ConfigurationError, match=r"maximum_time_between_pings: 1 .* from 100"):
        ReceiverAttributes.make(maximum_time_between_pings=1)


def test_any_free_port_is_no_beginning_of_a_range():
    with pytest.raises(ConfigurationError, match=r"start_port 0 .* end_port 0 only, not 5500"):
        ReceiverAttributes.make(start_port=0)
