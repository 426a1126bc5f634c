"""A setting of Geode's that would have no effect here is refused by its name, from a program, a file or a command."""

from __future__ import annotations

import pytest

import pywan
from pywan.config import cache_xml
from pywan.config.attributes import REGION_TYPES
from pywan.errors import CacheXmlError, ConfigurationError, GatewaySenderConfigurationError, IllegalStateError
from pywan.transport.control import call_once


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with (
        pywan.Locator("locator", distributed_system_id=1, port=0) as locator,
        pywan.Cache("server", locators=str(locator.address), dir=tmp_path_factory.mktemp("server")) as cache,
    ):
        yield cache


@pytest.fixture
def refuse(cache):
    """Gives `attempt(action, error, *words)`: the action must be refused, and change nothing."""
    before = set(cache.regions()), set(cache.gateway_senders()), set(cache.disk_stores())

    def attempt(action, error, *words):
        with pytest.raises(error) as caught:
            action()
        assert all(word in str(caught.value) for word in words), caught.value
        assert (set(cache.regions()), set(cache.gateway_senders()), set(cache.disk_stores())) == before

    return attempt


TYPES = [
    f"{kind}{suffix}"
    for kind in ("PARTITION", "PARTITION_REDUNDANT", "REPLICATE", "LOCAL")
    for suffix in ("_OVERFLOW", "_PERSISTENT_OVERFLOW", "_HEAP_LRU")
]


@pytest.mark.parametrize("type_", TYPES)
def test_a_region_that_would_go_to_disk_or_be_evicted(cache, refuse, type_):
    instead = type_.removesuffix("_OVERFLOW").removesuffix("_HEAP_LRU")
    assert instead in REGION_TYPES
    refuse(
        lambda: cache.create_region("r", type=type_),
        ConfigurationError,
        type_,
        "not in this version",
        f"take {instead}",
    )
    refuse(
        lambda: call_once((cache.host, cache.port), "create region", name="r", type=type_.lower()),
        ConfigurationError,
        type_,
        "not in this version",
    )
    refuse(
        lambda: cache_xml.parse_bytes(f"<cache>\n<region name='r' refid='{type_}'/></cache>".encode()),
        CacheXmlError,
        ":2:",
        type_,
        "not in this version",
    )


@pytest.mark.parametrize(
    "attribute",
    [
        "auto-compact",
        "compaction-threshold",
        "allow-force-compaction",
        "max-oplog-size",
        "queue-size",
        "write-buffer-size",
    ],
)
def test_what_a_disk_store_does_not_do(cache, refuse, tmp_path, attribute):
    name = attribute.replace("-", "_")
    refuse(
        lambda: cache.create_disk_store("s", directories=tmp_path, **{name: 1}),
        ConfigurationError,
        name,
        "no effect",
        "leave it out",
    )
    file = f'<cache>\n<disk-store name="s" {attribute}="1"/></cache>'.encode()
    refuse(lambda: cache_xml.parse_bytes(file), CacheXmlError, ":2:", name, "no effect")


@pytest.mark.parametrize(
    "attributes, words",
    [
        ('data-policy="preloaded"', ["preloaded", "take normal or replicate"]),
        ('refid="REPLICATE" scope="global"', ["global", "take distributed-ack"]),
        ('refid="REPLICATE" disk-store-name="s"', ["disk_store_name 's'", "no effect with type REPLICATE"]),
    ],
    ids=["preloaded", "global", "disk store"],
)
def test_a_region_of_a_file(attributes, words):
    file = (
        f'<cache>\n<disk-store name="s"/><region name="r"><region-attributes {attributes}/></region></cache>'.encode()
    )
    with pytest.raises(CacheXmlError) as caught:
        cache_xml.parse_bytes(file)
    assert all(word in str(caught.value) for word in [":2:", *words]), caught.value


def test_events_of_a_transaction_are_not_grouped(cache, refuse):
    grouped = {"group_transaction_events": True, "dispatcher_threads": 1}
    refuse(
        lambda: cache.create_gateway_sender("s", remote_distributed_system_id=2, **grouped),
        GatewaySenderConfigurationError,
        "no effect in this version",
    )
    with pytest.raises(CacheXmlError, match=r":2:.*no effect in this version"):
        cache_xml.parse_bytes(
            b'<cache>\n<gateway-sender id="s" remote-distributed-system-id="2" parallel="true" '
            b'group-transaction-events="true"/></cache>'
        )
    sender = cache.create_gateway_sender("s", remote_distributed_system_id=2, dispatcher_threads=1)
    for alter in (
        sender.alter,
        lambda **changes: call_once((cache.host, cache.port), "alter gateway-sender", id="s", **changes),
    ):
        with pytest.raises(GatewaySenderConfigurationError, match="no effect in this version"):
            alter(group_transaction_events="true")
        alter(group_transaction_events="false")
    sender.destroy()


def test_a_store_for_a_queue_that_is_not_persistent(cache, refuse, tmp_path):
    cache.create_disk_store("for-nothing", directories=tmp_path)
    with pytest.raises(
        GatewaySenderConfigurationError, match=r"no effect without enable_persistence.*overflow_directory"
    ):
        cache.create_gateway_sender("s", remote_distributed_system_id=2, disk_store_name="for-nothing")
    assert cache.gateway_senders() == {}


def test_a_region_is_colocated_only_with_one_that_has_the_same_buckets(cache):
    cache.create_region("copies", type="REPLICATE")
    cache.create_region("orders", total_num_buckets=7)
    with pytest.raises(IllegalStateError, match="colocated with 'copies', which is of type REPLICATE"):
        cache.create_region("lines", colocated_with="copies")
    with pytest.raises(IllegalStateError, match="113 differ from 7 of 'orders'"):
        cache.create_region("lines", colocated_with="orders")
    cache.create_region("lines", colocated_with="orders", total_num_buckets=7)["k"] = 1
    with pytest.raises(
        IllegalStateError, match="'orders' cannot be destroyed while others are colocated with it; destroy lines first"
    ):
        cache.destroy_region("orders")
    assert cache.region("orders") is not None and cache.region("lines")["k"] == 1
    for name in ("lines", "orders", "copies"):
        cache.destroy_region(name)
