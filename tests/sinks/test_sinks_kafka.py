"""Topics behind a queue. Brokers are librdkafka's mock cluster, which speaks the real protocol over sockets in this
process; and a real one, if `make kafka-broker` has fetched it.
"""

from __future__ import annotations

import contextlib
import json
import time
import types

import pytest

from pywan.errors import ConfigurationError, ConnectivityError
from pywan.sinks.kafka import KafkaSink
from pywan.testing.local_site import LocalSite
from pywan.testing.waiting import LIMIT_S, eventually
from support.brokers import Broker, why_no_broker
from support.ports import free_port
from support.sink_batches import Batch, destroy, put

kafka = pytest.importorskip("confluent_kafka")


@pytest.fixture
def brokers():
    """The addresses of a cluster of two. It lives as long as the producer that made it."""
    cluster = kafka.Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "none"})
    found = cluster.list_topics(timeout=LIMIT_S).brokers.values()
    yield ",".join(f"{each.host}:{each.port}" for each in found)
    del cluster


@pytest.fixture
def sink(brokers):
    with contextlib.closing(KafkaSink({"bootstrap.servers": brokers})) as sink:
        yield sink


def messages(brokers, topic, count, is_least=False):
    """So many messages of a topic, in the order of each partition. With `is_least` all, if there are more."""
    consumer = kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": "test", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions
        consumer.assign([kafka.TopicPartition(topic, n, kafka.OFFSET_BEGINNING) for n in partitions])
        ends = [consumer.get_watermark_offsets(kafka.TopicPartition(topic, n), timeout=LIMIT_S)[1] for n in partitions]
        assert sum(ends) == count or (is_least and sum(ends) > count), "so many messages are in the topic"
        found, deadline = [], time.monotonic() + LIMIT_S
        while len(found) < sum(ends) and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
        return found
    finally:
        consumer.close()


def header(message, name):
    return dict(message.headers())[f"pywan-{name}"].decode()


def shown(brokers, count, topic="orders"):
    return sorted((each.key(), each.value()) for each in messages(brokers, topic, count))


@pytest.fixture(autouse=True)
def creation_timestamp(monkeypatch):
    monkeypatch.setattr("support.sink_batches.Event.creation_timestamp", 1_700_000_000_000, raising=False)


def test_the_events_of_each_key_are_in_the_topic_in_order(brokers):
    with contextlib.closing(LocalSite("ny", 1)) as site:
        cache = site.start_member()
        sink = KafkaSink({"bootstrap.servers": brokers})
        queue = cache.create_async_event_queue("to-topic", sink, batch_size=20, dispatcher_threads=2)
        orders = cache.create_region("orders", type="REPLICATE", async_event_queue_ids=["to-topic"])
        for n in range(200):
            orders[f"k{n % 10}"] = n
        del orders["k3"]
        assert queue.wait_until_flushed(LIMIT_S)
    found = messages(brokers, "orders", 201)
    for k in range(10):
        values = [each.value() for each in found if each.key() == f"k{k}".encode()]
        assert values == [str(n).encode() for n in range(k, 200, 10)] + [None] * (k == 3)
    assert {header(each, "operation") for each in found} == {"create", "update", "destroy"}
    assert {header(each, "queue") for each in found} == {"to-topic"}


def test_headers_identify_an_event_and_a_repeat_has_the_same(brokers, sink):
    batch = Batch(put("a", "1", partition=3, sequence=7))
    sink.process_events(batch)
    sink.process_events(batch.again())
    first, second = messages(brokers, "orders", 2)
    assert first.headers() == second.headers()
    assert {
        name: header(first, name) for name in ("queue", "life", "region", "operation", "partition", "sequence")
    } == {
        "queue": "to-table",
        "life": "0000000000000abc",
        "region": "orders",
        "operation": "update",
        "partition": "3",
        "sequence": "7",
    }
    assert first.timestamp() == (kafka.TIMESTAMP_CREATE_TIME, 1_700_000_000_000)


def test_bytes_and_text_are_sent_as_they_are_and_all_else_as_json(brokers, sink):
    sink.process_events(Batch(put("ä", "ö"), put(b"\xff", b"\0"), put(17, {"é": [1.5, None]}), destroy("gone")))
    assert shown(brokers, 4) == sorted(
        [("ä".encode(), "ö".encode()), (b"\xff", b"\0"), (b"17", '{"é":[1.5,null]}'.encode()), (b"gone", None)]
    )


def test_topic_key_and_value_can_be_made_by_functions(brokers):
    sink = KafkaSink(
        {"bootstrap.servers": brokers},
        topic=lambda event: f"t-{event.key[0]}",
        key=lambda event: event.key[1:],
        value=lambda event: json.dumps([event.value]),
    )
    sink.process_events(Batch(put("ax", 1), put("by", 2), destroy("az")))
    sink.close()
    assert shown(brokers, 2, "t-a") == [(b"x", b"[1]"), (b"z", None)]
    assert shown(brokers, 1, "t-b") == [(b"y", b"[2]")]


def test_a_batch_larger_than_the_producers_queue_is_sent_whole(brokers):
    sink = KafkaSink({"bootstrap.servers": brokers, "queue.buffering.max.messages": 10})
    sink.process_events(Batch(*(put(f"k{n}", "") for n in range(100))))
    sink.close()
    assert len(messages(brokers, "orders", 100)) == 100


# Failures


def test_brokers_that_are_away_get_the_batch_when_they_are_back(brokers):
    sink = KafkaSink({"bootstrap.servers": f"127.0.0.1:{free_port()}", "delivery.timeout.ms": 300, "linger.ms": 0})
    batch = Batch(put("a", "1"), put("b", "2"))
    with pytest.raises(ConnectivityError, match=r"2 messages of 2 failed: _MSG_TIMED_OUT.*topic orders"):
        sink.process_events(batch)
    sink._config.update({"bootstrap.servers": brokers, "delivery.timeout.ms": int(LIMIT_S * 1000)})
    sink.process_events(batch.again())
    sink.close()
    assert shown(brokers, 2) == [(b"a", b"1"), (b"b", b"2")]


def test_a_queue_whose_brokers_are_away_says_so_and_keeps_its_events():
    with contextlib.closing(LocalSite("ny", 1)) as site:
        cache = site.start_member()
        sink = KafkaSink({"bootstrap.servers": f"127.0.0.1:{free_port()}", "delivery.timeout.ms": 100, "linger.ms": 0})
        queue = cache.create_async_event_queue("to-topic", sink, park_after_tries=2, dispatcher_threads=1)
        orders = cache.create_region("orders", type="REPLICATE", async_event_queue_ids=["to-topic"])
        orders["a"] = "1"
        assert queue.wait_until_flushed(LIMIT_S)
        (parked,) = queue.parked()
        assert parked["key"] == "a" and "_MSG_TIMED_OUT" in parked["reason"]


def test_a_message_that_the_producer_refuses_fails_its_batch(brokers, sink):
    with pytest.raises(kafka.KafkaException, match="MSG_SIZE_TOO_LARGE"):
        sink.process_events(Batch(put("a", "1"), put("b", b"x" * 2_000_000)))
    sink.process_events(Batch(put("c", "3"), first=3))
    found = {each.key() for each in messages(brokers, "orders", 1)}
    assert b"c" in found and b"b" not in found


@pytest.mark.parametrize("more", [{"enable.idempotence": False}, {"message.timeout.ms": 60_000}, {"acks": "all"}])
def test_the_configuration_can_say_otherwise(brokers, more):
    sink = KafkaSink({"bootstrap.servers": brokers, **more})
    sink.process_events(Batch(put("a", "1")))
    sink.close()
    assert shown(brokers, 1) == [(b"a", b"1")]


# A real broker


@pytest.fixture(scope="module")
def broker():
    missing = why_no_broker()
    if missing:
        pytest.skip(missing)
    with Broker() as broker:
        yield broker


def test_a_real_broker_has_every_message_in_order(broker):
    sink = KafkaSink({"bootstrap.servers": broker.address}, topic="plain")
    for first in range(1, 200, 20):
        sink.process_events(Batch(*(put(f"k{n % 7}", n) for n in range(first, first + 20)), first=first))
    sink.close()
    found = messages(broker.address, "plain", 200)
    for k in range(7):
        numbers = [int(each.value()) for each in found if each.key() == f"k{k}".encode()]
        assert numbers == [n for n in range(1, 201) if n % 7 == k]


@pytest.mark.nightly
def test_over_kill_9_of_a_real_broker_a_consumer_that_heeds_the_headers_has_each_event_once_and_in_order(broker):
    with contextlib.closing(LocalSite("ny", 1)) as site:
        cache = site.start_member()
        sink = KafkaSink({"bootstrap.servers": broker.address, "delivery.timeout.ms": 1500}, topic="killed")
        queue = cache.create_async_event_queue("to-topic", sink, batch_size=50, dispatcher_threads=2)
        orders = cache.create_region("orders", type="REPLICATE", async_event_queue_ids=["to-topic"])
        for life in range(3):
            for n in range(500):
                orders[f"k{n % 10}"] = life * 500 + n
            if life < 2:
                broker.kill()
                eventually(lambda: queue.lag()["cause"].startswith("listener fails"), what="the cause of the lag")
                broker.start()
        assert queue.wait_until_flushed(2 * LIMIT_S)
    taken: dict[bytes, list[int]] = {}
    last: dict[tuple[object, ...], int] = {}
    for each in messages(broker.address, "killed", 1500, is_least=True):
        place = each.partition(), *(header(each, name) for name in ("queue", "life", "partition"))
        if last.get(place, 0) < int(header(each, "sequence")):
            last[place] = int(header(each, "sequence"))
            taken.setdefault(each.key(), []).append(int(each.value()))
    assert taken == {f"k{k}".encode(): list(range(k, 1500, 10)) for k in range(10)}


# What cannot be used


@pytest.mark.parametrize(
    ("config", "more", "words"),
    [
        ({}, {}, "has to be a map that has bootstrap.servers"),
        ("127.0.0.1:9092", {}, "has to be a map that has bootstrap.servers"),
        ({"bootstrap.servers": "x"}, {"topic": ""}, "topic has to be a name or a function"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_at_once(config, more, words):
    with pytest.raises(ConfigurationError, match=words):
        KafkaSink(config, **more)


def test_an_object_that_is_no_json_fails_its_batch(sink):
    with pytest.raises(TypeError, match="not JSON serializable"):
        sink.process_events(Batch(put("a", types.SimpleNamespace())))


def test_events_that_are_no_batch_of_a_queue_are_refused(sink):
    with pytest.raises(TypeError, match="the batches of a queue as they are, and no list"):
        sink.process_events([put("a", "1")])
