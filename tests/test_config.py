"""What configuration accepts, refuses and says."""
from __future__ import annotations

import dataclasses
import logging

import pytest

from pywan.config import attributes as config
from pywan.config.attributes import (
    ClassReference, altered_sender_attributes, import_class, make_instance, make_receiver_attributes, make_region_attributes,
    make_sender_attributes, validate_attachment, validate_colocation,
)
from pywan.errors import ConfigurationError, GatewaySenderConfigurationError, IllegalStateError


def test_a_sender_has_geodes_defaults():
    sender = make_sender_attributes("ln", remote_distributed_system_id=2)
    assert (sender.batch_size, sender.batch_time_interval, sender.maximum_queue_memory) == (100, 1000, 100)
    assert (sender.dispatcher_threads, sender.order_policy, sender.socket_buffer_size) == (5, "key", 524288)
    assert sender.parallel is False and sender.disk_synchronous is True and sender.retry_interval_ms == 1000


def test_text_becomes_the_attributes_type():
    sender = make_sender_attributes("ln", remote_distributed_system_id="2", parallel="True", batch_size="7", order_policy="KEY")
    assert (sender.remote_distributed_system_id, sender.parallel, sender.batch_size, sender.order_policy) == (2, True, 7, "key")


@pytest.mark.parametrize("attributes, words", [
    ({"remote_distributed_system_id": -1}, ["remote_distributed_system_id", "-1", "0 to 255"]),
    ({"remote_distributed_system_id": 1}, ["remote_distributed_system_id 1", "own"]),
    ({"remote_distributed_system_id": 2, "dispatcher_threads": 0}, ["dispatcher_threads", "0", "from 1"]),
    ({"remote_distributed_system_id": 2, "batch_size": 0}, ["batch_size 0", "-1"]),
    ({"remote_distributed_system_id": 2, "batch_time_interval": -2}, ["batch_time_interval", "-2"]),
    ({"remote_distributed_system_id": 2, "parallel": "maybe"}, ["parallel", "'maybe'", "true, false"]),
    ({"remote_distributed_system_id": 2, "batch_size": "10x"}, ["batch_size", "'10x'", "whole number"]),
    ({"remote_distributed_system_id": 2, "order_policy": "none"}, ["order_policy", "key, thread, partition"]),
    ({"remote_distributed_system_id": 2, "parallel": True, "order_policy": "thread"}, ["thread", "parallel"]),
    ({"remote_distributed_system_id": 2, "group_transaction_events": True}, ["group_transaction_events has no effect in this version"]),
    ({"remote_distributed_system_id": 2, "group_transaction_events": True, "enable_batch_conflation": True}, ["group_transaction_events has no effect in this version"]),
    ({"remote_distributed_system_id": 2, "compression": "zip"}, ["compression", "lz4"]),
    ({"remote_distributed_system_id": 2, "colour": "red"}, ["colour", "batch_size"]),
    ({}, ["remote_distributed_system_id", "required"]),
])
def test_a_wrong_sender_is_refused_with_attribute_value_and_range(attributes, words):
    with pytest.raises(GatewaySenderConfigurationError) as caught:
        make_sender_attributes("ln", own_distributed_system_id=1, **attributes)
    for word in ["'ln'", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("bad", ["", "a b", "../x", "AsyncEventQueue_q", "-x", None, 7])
def test_a_senders_id_is_a_name_and_not_a_reserved_one(bad):
    with pytest.raises(GatewaySenderConfigurationError):
        make_sender_attributes(bad, remote_distributed_system_id=2)


def test_a_too_short_read_timeout_is_raised_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert make_sender_attributes("ln", remote_distributed_system_id=2, socket_read_timeout=5).socket_read_timeout == 30000
    assert "socket_read_timeout 5 ms" in caplog.text


def test_only_some_attributes_of_a_running_sender_can_be_altered():
    sender = make_sender_attributes("ln", remote_distributed_system_id=2, gateway_event_filters="a.b:C")
    altered = altered_sender_attributes(sender, batch_size="5", gateway_event_filters="CLEAR")
    assert (altered.batch_size, altered.gateway_event_filters, sender.batch_size) == (5, (), 100)
    for changes in ({}, {"parallel": True}, {"batch_size": 0}, {"batch_size": -1}, {"group_transaction_events": True}):
        with pytest.raises(GatewaySenderConfigurationError):
            altered_sender_attributes(sender, **changes)


def test_a_receiver_has_geodes_defaults_and_a_range_that_goes_up():
    receiver = make_receiver_attributes()
    assert (receiver.start_port, receiver.end_port, receiver.maximum_time_between_pings) == (5000, 5500, 60000)
    assert make_receiver_attributes(start_port="7000", end_port=7000).end_port == 7000
    with pytest.raises(ConfigurationError, match="start_port 7001 is above end_port 7000"):
        make_receiver_attributes(start_port=7001, end_port=7000)
    with pytest.raises(ConfigurationError, match="65535"):
        make_receiver_attributes(end_port=70000)


def test_regions_take_shortcuts_and_ids():
    region = make_region_attributes("/data", type="partition_redundant", gateway_sender_ids="ln, tk")
    assert (region.name, region.type, region.redundant_copies) == ("data", "PARTITION_REDUNDANT", 1)
    assert region.gateway_sender_ids == ("ln", "tk") and region.is_partitioned and region.feeds_gateways
    assert not make_region_attributes("n", type="NORMAL").feeds_gateways
    for attributes in ({"type": "SHARDED"}, {"gateway_sender_ids": "ln,ln"}, {"type": "REPLICATE", "redundant_copies": 1}, {"total_num_buckets": 0}):
        with pytest.raises(ConfigurationError):
            make_region_attributes("data", **attributes)


def test_a_parallel_sender_needs_a_partitioned_region_and_persistence_where_the_region_has_it():
    parallel = make_sender_attributes("ln", remote_distributed_system_id=2, parallel=True)
    validate_attachment(make_region_attributes("data"), parallel)
    with pytest.raises(GatewaySenderConfigurationError, match="parallel.*REPLICATE"):
        validate_attachment(make_region_attributes("data", type="REPLICATE"), parallel)
    with pytest.raises(GatewaySenderConfigurationError, match="not persistent"):
        validate_attachment(make_region_attributes("data", type="PARTITION_PERSISTENT"), parallel)


def test_regions_share_a_parallel_sender_only_when_colocated():
    senders = {"ln": make_sender_attributes("ln", remote_distributed_system_id=2, parallel=True)}
    orders = make_region_attributes("orders", gateway_sender_ids=["ln"])
    validate_colocation(make_region_attributes("lines", gateway_sender_ids=["ln"], colocated_with="/orders"), [orders], senders)
    with pytest.raises(IllegalStateError, match="cannot share the parallel gateway sender 'ln'"):
        validate_colocation(make_region_attributes("other", gateway_sender_ids=["ln"]), [orders], senders)
    with pytest.raises(IllegalStateError, match="no region 'missing'"):
        validate_colocation(make_region_attributes("other", colocated_with="missing"), [orders], senders)


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
    with pytest.raises(ConfigurationError, match="cannot be created.*colour"):
        make_instance(ClassReference(f"{__name__}:Filter", {"colour": "x"}), "filter")


@pytest.mark.parametrize("name, words", [
    ("no.such.module:X", ["'no.such.module:X'", "ModuleNotFoundError", "--classpath"]),
    ("pywan.errors:Nope", ["'Nope'", "pywan.errors"]),
    ("pywan.errors:__name__", ["has no class"]),
    ("pywan.errors.PywanError", ["package.module:Class"]),
    ("", ["package.module:Class"]),
])
def test_a_class_that_cannot_be_imported_says_why(name, words):
    with pytest.raises(ConfigurationError) as caught:
        import_class(name, "gateway-event-filter")
    for word in ["gateway-event-filter", *words]:
        assert word in str(caught.value)


def test_attributes_become_plain_values():
    plain = config.to_plain(make_sender_attributes("ln", remote_distributed_system_id=2, gateway_event_filters=[Filter()]))
    assert plain["id"] == "ln" and plain["gateway_event_filters"] == [f"{__name__}:Filter"]


@pytest.mark.parametrize("cls, make", [
    (config.SenderAttributes, lambda **a: make_sender_attributes("ln", **{"remote_distributed_system_id": 2, **a})),
    (config.ReceiverAttributes, make_receiver_attributes),
    (config.RegionAttributes, lambda **a: make_region_attributes("data", **a)),
    (config.DiskStoreAttributes, lambda **a: config.make_disk_store_attributes("kept", **a)),
])
def test_every_number_has_bounds_and_is_refused_by_name_beyond_them(cls, make):
    """Also one that is added later."""
    for field in dataclasses.fields(cls):
        if field.type != "int":
            continue
        assert (cls, field.name) in config._INT_RANGES, f"{cls.__name__}.{field.name} has no bounds"
        lowest, highest = config._INT_RANGES[cls, field.name]
        for value in (-2**31, lowest - 1 if lowest > 0 and field.name != "socket_buffer_size" else -2, highest + 1, 2**80, 1.5, True, "many", None if field.default is not dataclasses.MISSING else "x"):
            if value is None and cls is config.RegionAttributes:
                continue        # Not given.
            with pytest.raises(ConfigurationError, match=field.name):
                make(**{field.name: value})


@pytest.mark.parametrize("make, lowest", [
    (lambda size: make_sender_attributes("ln", remote_distributed_system_id=2, socket_buffer_size=size), 1_000),
    (lambda size: make_receiver_attributes(socket_buffer_size=size), 16_384),
])
def test_a_socket_buffer_that_would_ruin_its_connection_is_refused(make, lowest):
    for size in (1, lowest - 1, "1"):
        with pytest.raises(ConfigurationError, match=f"socket_buffer_size: {size} .* from {lowest}"):
            make(size)
    for size in (0, lowest, 2**31 - 1):
        assert make(size).socket_buffer_size == size


def test_a_time_between_pings_that_no_sender_keeps_is_refused():
    with pytest.raises(ConfigurationError, match="maximum_time_between_pings: 1 .* from 100"):
        make_receiver_attributes(maximum_time_between_pings=1)


def test_any_free_port_is_no_beginning_of_a_range():
    with pytest.raises(ConfigurationError, match="start_port 0 .* end_port 0 only, not 5500"):
        make_receiver_attributes(start_port=0)
