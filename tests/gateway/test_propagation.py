"""A change at one site gets to the others: with senders of both kinds, regions of both kinds, and every operation."""

import datetime
import threading
import time

import numpy
import pyarrow
import pytest

import pywan
from pywan.errors import BatchError, EventTooLargeError
from pywan.testing.waiting import eventually
from support.sites import SENDER, at_once

KINDS = [
    pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=1), id="serial-replicate"),
    pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=5), id="serial-5-key-replicate"),
    pytest.param(
        dict(type="REPLICATE", parallel=False, dispatcher_threads=5, order_policy="thread"),
        id="serial-5-thread-replicate",
    ),
    pytest.param(
        dict(type="PARTITION", parallel=False, dispatcher_threads=5, order_policy="partition"),
        id="serial-5-partition-partition",
    ),
    pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=1), id="parallel-partition"),
    pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=5), id="parallel-5-partition"),
    pytest.param(
        dict(type="PARTITION_REDUNDANT", parallel=True, order_policy="partition", compression="lz4"),
        id="parallel-lz4-redundant",
    ),
]
kinds = pytest.mark.parametrize("kind", KINDS)


def fill(region, keys, value=b"v" * 100):
    region.put_all((key, value) for key in keys)


@kinds
def test_a_thousand_puts_arrive(network, kind):
    """C-001, C-026, C-019, C-071."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], **kind)
    fill(ny.data, range(1000))
    network.settle()
    assert len(ln.data) == 1000 and ln.data[7] == b"v" * 100
    assert ln.receiver.stats["events_received"] == ln.data.applied == 1000
    network.assert_equal()


@kinds
def test_a_remote_site_that_comes_later_gets_everything(network, kind):
    """C-002: the sender starts while no locator of the remote site was ever heard of."""
    ny = network.site("ny")
    region_type = kind["type"]
    sender = ny.send_to("ln", **{k: v for k, v in kind.items() if k != "type"})
    ny.region(type=region_type)
    fill(ny.data, range(1000))
    assert sender.is_running and not sender.is_connected and sender.queue_size == 1000
    eventually(lambda: "site 2 is not known" in sender.lag()["cause"])
    ln = network.site("ln")
    ln.region(type=region_type)
    ln.receive()
    network.settle()
    assert len(ln.data) == 1000


@kinds
def test_ten_thousand_wait_for_a_site_that_is_down_in_small_batches(network, kind):
    """C-004: a remote site without receiver, batches of 5; no stall when it comes."""
    ny, ln = network.add("ny ln")
    sender = ny.send_to(ln, batch_size=5, **{k: v for k, v in kind.items() if k != "type"})
    ny.region(type=kind["type"])
    ln.region(type=kind["type"])
    ny.data.put_columns(numpy.arange(10_000, dtype=">i8"), numpy.zeros(10_000, "S16"))
    assert sender.queue_size == 10_000
    ln.receive()
    network.settle()
    assert len(ln.data) == 10_000 and sender.stats["batches_distributed"] >= 2000


@kinds
def test_a_region_destroyed_at_the_remote_stops_only_its_own_events(network, kind):
    """C-007, C-109: the other region gets all of its events; what could not be applied is kept and named."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], **kind)
    extra = {"colocated_with": "data"} if kind["type"].startswith("PARTITION") else {}
    other, remote_other = ny.region("other", kind["type"], **extra), ln.region("other", kind["type"])
    sender = ny.sender(ln)
    sender.pause()
    for n in range(500):
        ny.data[n] = n
        other[n] = n
    ln.cache.destroy_region("data")
    sender.resume()
    network.settle()
    assert len(remote_other) == 500
    assert sender.parked_count == 500 and sender.ledger()["parked"] == 500 and sender.ledger()["distributed"] == 500
    assert all(p["region"] == "data" and "does not exist" in p["reason"] for p in sender.parked(1000))
    assert ln.receiver.stats["exceptions_occurred"] == 500


def test_two_regions_fed_by_two_threads_while_one_is_destroyed(network):
    """C-008."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], type="REPLICATE", parallel=False)
    other, remote_other = ny.region("other", "REPLICATE"), ln.region("other", "REPLICATE")
    sender = ny.sender(ln)

    def destroy():
        eventually(lambda: len(ln.data) > 100)
        ln.cache.destroy_region("data")

    at_once(lambda: fill(ny.data, range(3000)), lambda: fill(other, range(3000)), destroy)
    network.settle()
    assert len(remote_other) == 3000
    assert sender.parked_count == 6000 - sender.stats["events_distributed"]


def test_one_sender_of_each_kind_to_each_of_two_sites(network):
    """C-013, C-062, C-019: a replicated and a partitioned region, two remote sites."""
    ny, ln, tk = network.add("ny ln tk")
    for remote in (ln, tk):
        remote.receive()
        remote.region("replicated", "REPLICATE")
        remote.region("partitioned")
        ny.send_to(remote, id=f"serial_{remote}", parallel=False)
        ny.send_to(remote, id=f"parallel_{remote}", parallel=True)
    replicated = ny.region("replicated", "REPLICATE", senders="serial_ln,serial_tk")
    partitioned = ny.region("partitioned", senders="parallel_ln,parallel_tk")
    fill(replicated, range(1000))
    fill(partitioned, range(1000))
    network.settle()
    for remote in (ln, tk):
        assert len(remote.cache.region("replicated")) == len(remote.cache.region("partitioned")) == 1000


def test_a_serial_sender_takes_replicated_and_partitioned_regions_together(network):
    """C-019 (both kinds of regions on one serial sender)."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], type="REPLICATE", parallel=False)
    partitioned, remote = ny.region("partitioned"), ln.region("partitioned")
    fill(ny.data, range(500))
    fill(partitioned, range(700))
    network.settle()
    assert (len(ln.data), len(remote)) == (500, 700)


def test_events_of_a_normal_region_are_received_and_not_queued(network):
    """C-016."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], type="REPLICATE", parallel=False)
    normal = ny.region("normal", "NORMAL")
    remote = ln.region("normal", "NORMAL")
    fill(normal, range(1000))
    network.settle()
    stats = ny.sender(ln).stats
    assert (stats["events_received"], stats["events_queued"], stats["not_queued_event"], len(remote)) == (
        1000,
        0,
        1000,
        0,
    )


def test_a_remote_sender_that_never_started_hinders_nothing(network):
    """C-017."""
    ny, ln = network.add("ny ln")
    back = ln.send_to(ny, parallel=True, manual_start=True)
    network.connect([("ny", "ln")])
    fill(ny.data, range(100))
    network.settle()
    assert len(ln.data) == 100 and not back.is_running
    assert ln.receiver.stats["exceptions_occurred"] == 0 and back.stats["events_queued"] == 0


@pytest.mark.parametrize("parallel", [False, True])
def test_a_batch_closed_by_time_only_waits_for_its_time(network, parallel):
    """C-029: batch-size -1; nothing leaves before the interval is over, all of it after."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=parallel, batch_size=-1, batch_time_interval=900, dispatcher_threads=1)
    eventually(lambda: ny.sender(ln).is_connected)
    began = time.monotonic()
    fill(ny.data, range(250))
    eventually(lambda: len(ln.data) == 250)
    assert time.monotonic() - began >= 0.85
    network.settle()
    assert ny.sender(ln).stats["batches_distributed"] == 1


def test_statistics_of_a_thousand_events_in_batches_of_ten(network):
    """C-106, C-113."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], type="REPLICATE", parallel=False, dispatcher_threads=1, batch_size=10)
    sender = ny.sender(ln)
    eventually(lambda: sender.is_connected)
    sender.pause()
    fill(ny.data, range(1000))
    assert sender.queue_size == sender.stats["event_queue_size"] == 1000 and len(ln.data) == 0
    sender.resume()
    network.settle()
    stats = sender.stats
    assert (
        stats["events_received"],
        stats["events_queued"],
        stats["events_distributed"],
        stats["batches_distributed"],
    ) == (1000, 1000, 1000, 100)
    assert stats["event_queue_size"] == stats["batches_redistributed"] == 0
    received = ln.receiver.stats
    assert (received["events_received"], received["create_requests"], received["batches_received"]) == (1000, 1000, 100)


def test_a_parallel_queue_drains_to_nothing(network):
    """C-113, C-065."""
    ny, ln = network.add("ny ln")
    ny.send_to(ln, parallel=True)
    ny.region()
    fill(ny.data, range(1000))
    sender = ny.sender(ln)
    assert (
        sender.queue_size
        == sender.stats["event_queue_size"]
        == sender.ledger()["in_queue"]
        == sender.lag()["events"]
        == 1000
    )
    assert sender.lag()["bytes"] > 100_000
    ln.region()
    ln.receive()
    network.settle()
    assert sender.queue_size == sender.stats["event_queue_size"] == sender.stats["event_queue_bytes"] == 0
    assert sender.lag() == {"events": 0, "bytes": 0, "seconds": 0.0, "cause": "none"}


def test_events_over_the_alert_threshold_are_counted(network):
    """C-116: with delivery slower than the threshold they are, with a long threshold they are not."""
    ny, ln = network.add("ny ln")
    ny.send_to(ln, id="impatient", parallel=True, alert_threshold=50)
    ny.send_to(ln, id="patient", parallel=True, alert_threshold=60_000)
    ny.send_to(ln, id="careless", parallel=True)
    ny.region("a", senders="impatient"), ny.region("b", senders="patient"), ny.region("c", senders="careless")
    began = time.monotonic()
    for name in "abc":
        ln.region(name)
        fill(ny.cache.region(name), range(100))
    eventually(lambda: time.monotonic() - began > 0.2)
    ln.receive()
    network.settle()
    exceeding = {
        id: sender.stats["events_exceeding_alert_threshold"] for id, sender in ny.cache.gateway_senders().items()
    }
    assert exceeding == {"impatient": 100, "patient": 0, "careless": 0}


def test_queues_are_not_regions(two_sites):
    """C-058, C-053: neither a queue nor a receiver shows up among what users or clients are given."""
    ny, ln = two_sites
    assert list(ny.cache.regions()) == ["data"]
    servers = ln.cache._core.state.membership.servers()
    assert [server["name"] for server in servers] == ["server_ln"] and servers[0]["port"] != ln.receiver.port


@pytest.mark.parametrize("attached", ["all", "child only"])
def test_colocated_regions_share_a_parallel_sender(network, attached):
    """C-059, C-157."""
    ny, ln = network.add("ny ln")
    ln.receive()
    ny.send_to(ln, parallel=True)
    for site in (ny, ln):
        senders = ("ln",) if site is ny else ()
        site.region("customer", senders=senders if attached == "all" else ())
        site.region("order", senders=senders if attached == "all" else (), colocated_with="customer")
        site.region("shipment", senders=senders, colocated_with="order")
    for name in ("customer", "order", "shipment"):
        fill(ny.cache.region(name), range(200))
    network.settle()
    sizes = [len(ln.cache.region(name)) for name in ("customer", "order", "shipment")]
    assert sizes == ([200, 200, 200] if attached == "all" else [0, 0, 200])


def test_one_bucket_and_four_writers(network):
    """C-068."""
    ny, ln = network.add("ny ln")
    ln.receive()
    ny.send_to(ln, parallel=True)
    for site in (ny, ln):
        site.region(total_num_buckets=1)
    sender = ny.sender(ln)
    sender.pause()
    at_once(*(lambda count=count: fill(ny.data, range(count)) for count in (700, 1000, 800, 1000)))
    assert sender.queue_size == 3500
    sender.resume()
    network.settle()
    assert len(ln.data) == 1000
    network.assert_equal()


def test_a_region_destroyed_here_and_created_again_goes_on(two_sites, network):
    """C-073: drained first, everything is at the remote; the remote's own region is not touched."""
    ny, ln = two_sites
    fill(ny.data, range(10))
    network.settle()
    ny.cache.destroy_region("data")
    ny.region()
    assert len(ny.data) == 0
    fill(ny.data, range(10, 20))
    network.settle()
    assert sorted(ln.data) == list(range(20))


def test_a_region_destroyed_while_puts_run(two_sites, network):
    """C-074: writers are told that the region is gone, and nothing else; the new one works."""
    ny, ln = two_sites
    old = ny.data

    def write():
        with pytest.raises(pywan.RegionNotFoundError):
            for n in range(10_000_000):
                old.put(n, n)

    def destroy():
        eventually(lambda: len(old) > 10)
        ny.cache.destroy_region("data")

    at_once(write, write, destroy)
    ny.region()
    ny.data["new"] = 1
    network.settle()
    assert ln.data["new"] == 1


# Operations


def test_every_operation_that_travels_travels(two_sites, network):
    ny, ln = two_sites
    network.settle()
    history = ln.keep_history()
    ny.data.put("a", 1, callback_argument={"why": "test"})
    ny.data["a"] = 2
    ny.data.put_all({"b": 1, "c": 2})
    ny.data.update(d=4)
    ny.data.setdefault("e", 5)
    assert ny.data.pop("d") == 4
    del ny.data["b"]
    assert ny.data.remove_all(["c", "absent", "e"]) == 2
    network.settle()
    assert history.of("a") == [("create", 1), ("update", 2)]
    assert history.events[history.keys_in_order().index("a")].callback_argument == {"why": "test"}
    assert history.events[0].is_origin_remote and history.events[0].origin_site == ny.id
    for key, value in (("b", 1), ("c", 2), ("d", 4), ("e", 5)):
        assert history.of(key) == [("create", value), ("destroy", None)]
    assert dict(ln.data) == dict(ny.data) == {"a": 2}
    received = ln.receiver.stats
    assert (received["create_requests"], received["update_requests"], received["destroy_requests"]) == (5, 1, 4)


def test_what_is_local_stays_here(two_sites, network):
    """Reads, invalidates, local destroys and region operations are not sent."""
    ny, ln = two_sites
    fill(ny.data, range(10))
    network.settle()
    ny.data.invalidate(1)
    ny.data.local_destroy(2)
    assert ny.data.get(3) and ny.data[1] is None and 2 not in ny.data
    assert ny.data.clear(local=True) == 9
    assert ln.data[1] == ln.data[2] == b"v" * 100 and len(ln.data) == 10 and len(ny.data) == 0
    ledger = ny.sender(ln).ledger()
    assert ledger["queued"] == 10 and ledger["not_queued"] >= 2


def test_local_and_proxy_regions(network):
    """A local region sends nothing; a proxy holds nothing and sends all."""
    ny, ln = network.add("ny ln")
    ln.receive()
    ny.send_to(ln, parallel=False)
    local, proxy = ny.region("local", "LOCAL"), ny.region("proxy", "PARTITION_PROXY")
    for name in ("local", "proxy"):
        ln.region(name)
    fill(local, range(10))
    fill(proxy, range(10))
    network.settle()
    assert (len(local), len(proxy)) == (10, 0)
    assert (len(ln.cache.region("local")), len(ln.cache.region("proxy"))) == (0, 10)


def test_values_of_every_form_arrive_as_they_were(two_sites, network):
    ny, ln = two_sites
    values = {
        "bytes": b"\x00\xff",
        "text": "käse",
        "int": -(2**63),
        "big": 2**80,
        "float": 1.5,
        "true": True,
        "none": None,
        "empty": b"",
        "list": [1, "a", None],
        "dict": {"price": 101.5, 3: [b"x"]},
        "tuple": (1, 2),
        "set": frozenset({1, 2}),
        "date": datetime.date(2024, 2, 29),
        "time": datetime.datetime(2024, 1, 2, 3, 4, 5, 6, datetime.UTC),
        "large": b"x" * 3_000_000,
        5: "int key",
        5.5: "float key",
        b"k": "bytes key",
        (1, "a"): "tuple key",
        "k" * 60_000: "long key",
    }
    ny.data.put_all(values)
    network.settle()
    assert dict(ln.data) == values
    assert "none" in ln.data and ln.data["none"] is None and type(ln.data["true"]) is bool


class Trade:
    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return self.text == other.text


def test_a_registered_class_travels(two_sites, network):
    ny, ln = two_sites
    pywan.register_serializer(Trade, lambda trade: trade.text.encode(), lambda data: Trade(data.decode()), name="trade")
    ny.data["t"] = Trade("100 at 5")
    network.settle()
    assert ln.data["t"] == Trade("100 at 5")


@pytest.mark.parametrize("slow", [False, True], ids=["compiled", "with-a-listener"])
def test_columns_travel(two_sites, network, slow):
    """Arrow, numpy and buffers, with operations per row."""
    ny, ln = two_sites
    if slow:
        ny.keep_history()
    assert ny.data.put_columns(pyarrow.array(["a", "b", "c"]), pyarrow.array([b"1", b"2", b"3"])) == 3
    assert (
        ny.data.put_columns(
            pyarrow.array(["a", "b", "x"]),
            pyarrow.array([b"11", None, None]),
            operations=["update", "destroy", "destroy"],
        )
        == 2
    )
    ny.data.put_columns(numpy.array([b"n1", b"n2"], "S2"), numpy.arange(2, dtype="<i8"))
    offsets = numpy.array([0, 2, 5], "<i4")
    ny.data.put_columns((offsets, b"k1k22"), (offsets, b"v1v22"))
    network.settle()
    assert ln.data["a"] == b"11" and "b" not in ln.data and ln.data["c"] == b"3"
    assert ln.data[b"k1"] == b"v1" and ln.data[b"k22"] == b"v22" and b"n1" in ln.data
    network.assert_equal()
    received = ln.receiver.stats
    assert (received["create_requests"], received["update_requests"], received["destroy_requests"]) == (7, 1, 1)


def test_rows_of_one_key_keep_their_order_in_columns(two_sites, network):
    ny, ln = two_sites
    history = ln.keep_history()
    ny.data.put_columns(["k"] * 100, [b"%d" % n for n in range(100)])
    network.settle()
    assert [value for _, value in history.of("k")] == [b"%d" % n for n in range(100)]


@kinds
def test_each_key_is_applied_in_the_order_of_its_writes(network, kind):
    """C-028, C-070, C-194-like: writers of one key each; per key the order at the remote is the order here."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], batch_size=7, **kind)
    history = ln.keep_history()

    def write(key):
        for n in range(200):
            ny.data[key] = n

    at_once(*(lambda key=key: write(key) for key in "abcd"))
    network.settle()
    for key in "abcd":
        assert [value for _, value in history.of(key)] == list(range(200))


@pytest.mark.parametrize("dispatchers", [1, 5])
def test_one_threads_writes_keep_their_order_with_order_policy_thread(network, dispatchers):
    ny, ln = network.add("ny ln")
    network.connect(
        [("ny", "ln")],
        type="REPLICATE",
        parallel=False,
        dispatcher_threads=dispatchers,
        order_policy="thread",
        batch_size=3,
    )
    history = ln.keep_history()

    def write(name):
        for n in range(200):
            ny.data[f"{name}{n}"] = threading.get_ident()

    at_once(*(lambda name=name: write(name) for name in "abcd"))
    network.settle()
    for name in "abcd":
        assert [key for key in history.keys_in_order() if key[0] == name] == [f"{name}{n}" for n in range(200)]


def test_a_put_all_with_some_wrong_entries_does_the_others(two_sites, network):
    ny, ln = two_sites
    with pytest.raises(BatchError) as raised:
        ny.data.put_all([("a", 1), ("b", object()), ("k" * 70_000, 1), ("c", 3)])
    assert [row for row, _ in raised.value.failures] == [1, 2]
    network.settle()
    assert dict(ln.data) == {"a": 1, "c": 3}


def test_an_event_of_the_greatest_size_travels_and_a_greater_one_is_refused(two_sites, network):
    ny, ln = two_sites
    limit = 60 << 20
    ny.data["k" * 65_535] = b"x" * limit
    with pytest.raises(EventTooLargeError, match="over the limit"):
        ny.data["k"] = b"x" * (limit + 1)
    network.settle()
    assert len(ln.data["k" * 65_535]) == limit and len(ln.data) == 1


def test_a_sender_attached_later_takes_what_comes_from_then_on(network):
    ny, ln = network.add("ny ln")
    ln.receive()
    ln.region()
    ny.region(senders=())
    ny.data["before"] = 1
    ny.send_to(ln, parallel=True)
    ny.data.alter(gateway_sender_ids=["ln"])
    ny.data["after"] = 2
    network.settle()
    assert dict(ln.data) == {"after": 2}
    ny.data.alter(gateway_sender_ids="")
    ny.data["detached"] = 3
    network.settle()
    assert dict(ln.data) == {"after": 2} and ny.sender(ln).stats["events_received"] == 1


def test_a_sender_created_after_the_region_that_names_it(network):
    ny, ln = network.add("ny ln")
    ln.receive()
    ln.region()
    ny.region(senders=("ln",))
    ny.data["before"] = 1
    ny.send_to(ln, parallel=True)
    ny.data["after"] = 2
    network.settle()
    assert dict(ln.data) == {"after": 2}


@pytest.mark.parametrize("parallel", [False, True])
def test_a_member_closed_and_rebuilt_goes_on(network, parallel):
    """C-005: the sending member is closed and made again; what it sends then is applied, though its queues count from 1
    again.
    """
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=parallel)
    fill(ny.data, range(100))
    network.settle()
    ny.cache.close()
    ny.start_member()
    ny.send_to(ln, parallel=parallel)
    ny.region()
    fill(ny.data, range(100, 200))
    network.settle()
    assert sorted(ln.data) == list(range(200))


def test_a_receiving_member_closed_and_rebuilt_gets_what_waited(network):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    fill(ny.data, range(100))
    network.settle()
    ln.cache.close()
    fill(ny.data, range(100, 200))
    ln.start_member()
    ln.region()
    ln.receive()
    network.settle()
    assert sorted(ln.data) == list(range(100, 200))  # Without persistence its memory is gone.
    assert ln.receiver.stats["events_received"] == 100


def test_a_hundred_and_thirteen_empty_partitions_are_cheap(network):
    ny, ln = network.add("ny ln")
    for n in range(20):
        ny.send_to(ln, id=f"s{n}", parallel=True, **{**SENDER, "manual_start": True})
    assert sum(sender.stats["queue_memory_bytes"] for sender in ny.cache.gateway_senders().values()) == 0
