"""A sender's life: start, pause, resume, stop, alter, destroy, and what becomes of events meanwhile."""

import logging
import os
import signal
import sys
import threading
import time
import traceback

import pytest

import pywan
from pywan import GatewayEventFilter
from pywan.errors import (
    ConfigurationError,
    GatewayReceiverError,
    GatewaySenderConfigurationError,
    GatewaySenderError,
    IllegalStateError,
    NotFoundError,
)
from pywan.gateway import dispatchers, receiver_ends
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from support.receivers import Slow
from support.sites import at_once, keep_doing

both = pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])


def fill(region, keys):
    region.put_all((key, b"v") for key in keys)


@pytest.fixture
def linked(network, request):
    parallel = request.node.callspec.params["parallel"]
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=parallel)
    eventually(lambda: ny.sender(ln).is_connected)
    return ny, ln, ny.sender(ln)


@both
def test_a_paused_sender_queues_and_sends_when_resumed(network, linked, parallel):
    """C-046, C-080."""
    ny, ln, sender = linked
    fill(ny.data, range(100))
    network.settle()
    sender.pause()
    assert sender.is_running and sender.is_paused and sender.status == "Paused"
    fill(ny.data, range(100, 300))
    assert sender.queue_size == 200 and len(ln.data) == 100 and sender.lag()["cause"] == "paused"
    assert not sender.wait_until_flushed(timeout=0.1)
    sender.resume()
    network.settle()
    assert len(ln.data) == 300 and not sender.is_paused


@both
def test_a_stopped_sender_keeps_what_was_queued_and_drops_what_comes(network, linked, parallel):
    """C-047, C-080: not running, size 0 for a serial one; resume does not start it; start delivers what was kept."""
    ny, ln, sender = linked
    sender.pause()
    fill(ny.data, range(20))
    assert sender.queue_size == sender.stats["event_queue_size"] == 20
    sender.stop()
    assert (
        not sender.is_running and not sender.is_connected and not sender.is_primary and sender.status == "Not running"
    )
    assert sender.stats["event_queue_size"] == (20 if parallel else 0)
    sender.resume()
    sender.pause()
    assert not sender.is_running and not sender.is_paused
    fill(ny.data, range(100, 150))
    assert sender.stats["events_dropped_due_to_primary_sender_not_running"] == 50
    assert sender.ledger()["dropped"]["sender not running"] == 50
    network.check_ledgers()
    sender.stop()
    sender.start()
    network.settle()
    assert sorted(ln.data) == list(range(20))
    sender.start()
    ny.data["more"] = 1
    network.settle()
    assert ln.data["more"] == 1


@both
def test_a_sender_that_was_not_started_drops_and_counts(network, parallel):
    """C-079, C-043-like."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=parallel, manual_start=True)
    sender = ny.sender(ln)
    fill(ny.data, range(100))
    assert not sender.is_running and len(ny.data) == 100 and len(ln.data) == 0
    assert (sender.stats["events_received"], sender.stats["events_queued"]) == (100, 0)
    sender.start()
    fill(ny.data, range(100, 200))
    network.settle()
    assert sorted(ln.data) == list(range(100, 200))


@both
def test_puts_while_it_starts_and_stops_are_queued_or_counted(network, linked, parallel):
    """C-040, C-041, C-082: no deadlock, also while sizes are read; every event is explained; queues drain after the
    last start.
    """
    ny, ln, sender = linked
    history = []

    def look(_):
        history.append((sender.queue_size, sender.stats["event_queue_size"], sender.lag()["cause"], sender.status))

    def cycle(_):
        sender.stop()
        sender.start()
        sender.pause()
        sender.resume()

    with (
        keep_doing(lambda n: ny.data.put(n, n)) as puts,
        keep_doing(lambda n: ny.data.put(-n, n)),
        keep_doing(look),
        keep_doing(cycle) as cycles,
    ):
        eventually(lambda: len(cycles) >= 10 and len(puts) > 100)
    sender.start()
    network.settle()
    ledger = sender.ledger()
    assert ledger["distributed"] == ln.receiver.stats["events_received"] and ledger["parked"] == 0
    assert ledger["received"] == ledger["distributed"] + ledger["dropped"]["sender not running"]
    assert sender.queue_size == 0


@both
def test_stop_is_quick_and_leaves_no_thread(network, linked, parallel, monkeypatch):
    monkeypatch.setattr(dispatchers, "JOIN_TIMEOUT_S", LIMIT_S)
    _ny, _ln, sender = linked
    before = threading.active_count()
    began = time.monotonic()
    at_once(*[sender.stop] * 4)
    assert time.monotonic() - began < SOON_S and threading.active_count() < before
    assert not [t for t in threading.enumerate() if t.name.startswith("sender-")]


@both
def test_stop_does_not_wait_for_a_receiver_that_says_nothing(network, parallel, monkeypatch):
    """The link hangs while the sender opens its connection."""
    monkeypatch.setattr(dispatchers, "JOIN_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(receiver_ends, "CONNECT_TIMEOUT_S", LIMIT_S)
    ny, ln = network.add("ny ln")
    ln.receive(through_proxy=True)
    ln.proxy.hang()
    sender = ny.send_to(ln, parallel=parallel)
    ny.region(), ln.region()
    eventually(lambda: ln.proxy.statistics()["accepted"] > 0)
    began = time.monotonic()
    sender.stop()
    assert time.monotonic() - began < SOON_S
    sender.start()
    ny.data["k"] = 1
    ln.proxy.restore()
    network.settle()
    assert ln.data["k"] == 1


@both
def test_attributes_altered_while_puts_run_and_events_wait(network, linked, parallel):
    """C-055: batch size, interval, filters, alert threshold; new values hold, also for what waits; nothing is lost."""
    ny, ln, sender = linked

    class Half(GatewayEventFilter):
        def before_transmit(self, event):
            return isinstance(event.key, str) or event.key % 2 == 0

    with keep_doing(lambda n: ny.data.put(f"k{n}", n)) as puts:
        eventually(lambda: len(puts) > 100)
        sender.alter(batch_size=7, batch_time_interval=3, alert_threshold=5)
        eventually(lambda: len(puts) > 200)
        sender.pause()
        sender.alter(batch_size=200, batch_time_interval=20)
        sender.resume()
    network.settle()
    assert len(ln.data) == len(puts)
    assert (sender.attributes.batch_size, sender.attributes.batch_time_interval, sender.attributes.alert_threshold) == (
        200,
        20,
        5,
    )
    sender.pause()
    fill(ny.data, range(100))
    eventually(lambda: sender.lag()["seconds"] > 0.01)
    before = sender.stats
    sender.alter(gateway_event_filters=[Half()], batch_size=4)  # With 200, each dispatcher would send one batch.
    sender.resume()
    network.settle()
    assert len([key for key in ln.data if isinstance(key, int)]) == 50
    changed = {name: count - before[name] for name, count in sender.stats.items()}
    assert changed["batches_distributed"] >= 50 / 4
    assert changed["events_exceeding_alert_threshold"] == 50
    sender.alter(gateway_event_filters=())
    ny.data[1] = 1
    network.settle()
    assert ln.data[1] == 1


@both
def test_an_altered_interval_holds_at_once_for_what_waits(network, parallel):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=parallel, batch_time_interval=600_000)
    sender = ny.sender(ln)
    eventually(lambda: sender.is_connected)
    ny.data["k"] = 1
    assert "k" not in ln.data
    sender.alter(batch_time_interval=1)
    eventually(lambda: "k" in ln.data)


@both
def test_what_cannot_be_altered_changes_nothing(linked, parallel):
    _ny, _ln, sender = linked
    before = sender.attributes, sender.status, sender.queue_size
    for changes in (
        dict(batch_size=0),
        dict(batch_size=-1),
        dict(batch_time_interval=-2),
        dict(alert_threshold=-1),
        dict(dispatcher_threads=3),
        dict(parallel=True),
        {},
        dict(batch_size=10, gateway_event_filters="nowhere:Filter"),
    ):
        with pytest.raises(
            GatewaySenderConfigurationError if "gateway_event_filters" not in changes else ConfigurationError
        ):
            sender.alter(**changes)
    assert (sender.attributes, sender.status, sender.queue_size) == before


@both
def test_an_attached_sender_cannot_be_destroyed(network, linked, parallel):
    """C-052, C-083: attached, it is refused and works on; detached, it is gone, and the other sender goes on."""
    ny, ln, sender = linked
    other = ny.send_to(ln, id="other", parallel=parallel)
    ny.data.alter(gateway_sender_ids=("ln", "other"))
    with pytest.raises(GatewaySenderError, match="attached to region data"):
        sender.destroy()
    assert sender.is_running
    ny.data["a"] = 1
    network.settle()
    ny.data.alter(gateway_sender_ids=("other",))
    sender.destroy()
    assert list(ny.cache.gateway_senders()) == ["other"] and not sender.is_running
    with pytest.raises(NotFoundError):
        ny.cache.gateway_sender("ln")
    for call in (sender.start, sender.pause, sender.resume, lambda: sender.alter(batch_size=5)):
        with pytest.raises(GatewaySenderError, match="destroyed"):
            call()
    ny.data["b"] = 2
    network.settle()
    assert dict(ln.data) == {"a": 1, "b": 2} and other.stats["events_distributed"] == 2
    again = ny.send_to(ln, parallel=parallel)
    ny.data.alter(gateway_sender_ids=("ln",))
    ny.data["c"] = 3
    network.settle()
    assert ln.data["c"] == 3 and again.stats["events_distributed"] == 1


def test_a_hundred_and_twenty_eight_senders_and_no_more(network):
    """C-056."""
    ny = network.site("ny")
    for n in range(128):
        ny.send_to("ln", id=f"s{n}", manual_start=True, dispatcher_threads=1)
    with pytest.raises(IllegalStateError, match="128"):
        ny.send_to("ln", id="s128", manual_start=True)
    ny.cache.gateway_sender("s0").destroy()
    ny.send_to("ln", id="s128", manual_start=True)
    ny.region("data", "REPLICATE")
    ny.data["k"] = 1
    assert all(sender.stats["events_received"] == 1 for sender in ny.cache.gateway_senders().values())


@both
def test_flushing_does_not_wait_for_a_batch_to_fill(network, parallel):
    """C-199."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=parallel, batch_time_interval=600_000)
    sender = ny.sender(ln)
    eventually(lambda: sender.is_connected)
    fill(ny.data, range(50))
    assert sender.queue_size == 50 and sender.lag()["cause"] == "waiting for a batch to fill"
    assert sender.wait_until_flushed(timeout=LIMIT_S)
    assert len(ln.data) == 50 and sender.wait_until_flushed(timeout=0)
    ln.receiver.stop()
    ny.data["k"] = 1
    began = time.monotonic()
    assert not sender.wait_until_flushed(timeout=0.2)
    assert 0.2 <= time.monotonic() - began < SOON_S
    began = time.monotonic()
    sender.stop()
    assert not sender.wait_until_flushed(timeout=LIMIT_S) and time.monotonic() - began < SOON_S


def test_who_gives_up_flushing_does_not_end_it_for_others(network):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=False, batch_time_interval=600_000)
    sender = ny.sender(ln)
    eventually(lambda: sender.is_connected)
    ln.receiver.stop()
    eventually(lambda: not sender.is_connected)
    fill(ny.data, range(50))
    outcomes = []
    waiting = threading.Thread(target=lambda: outcomes.append(sender.wait_until_flushed(timeout=LIMIT_S)))
    waiting.start()
    assert not sender.wait_until_flushed(timeout=0.05)
    ln.receiver.start()
    waiting.join(LIMIT_S)
    assert outcomes == [True] and len(ln.data) == 50


# Rules


def test_one_id_is_one_sender(network):
    """C-152, C-158: also where one is serial and the other parallel."""
    ny = network.site("ny")
    ny.send_to("ln", parallel=True, manual_start=True)
    for parallel in (True, False):
        with pytest.raises(IllegalStateError, match="already defined"):
            ny.send_to("ln", parallel=parallel)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        (dict(dispatcher_threads=0), "dispatcher_threads"),
        (dict(dispatcher_threads=-1), "dispatcher_threads"),
        (dict(order_policy="random"), "order_policy"),
        (dict(parallel=True, order_policy="thread"), "thread"),
        (dict(group_transaction_events=True, enable_batch_conflation=True), "group_transaction_events"),
        (dict(group_transaction_events=True, dispatcher_threads=2), "group_transaction_events"),
        (dict(batch_size=0), "batch_size"),
        (dict(maximum_queue_memory=0), "maximum_queue_memory"),
        (dict(gateway_event_filters=[None]), "None"),
        (dict(no_such_thing=1), "no_such_thing"),
        (dict(remote_distributed_system_id=-1), "-1"),
        (dict(batch_time_interval=-2), "batch_time_interval"),
    ],
)
def test_a_wrong_sender_is_refused_and_leaves_nothing(network, attributes, says):
    """C-152."""
    ny = network.site("ny")
    with pytest.raises(GatewaySenderConfigurationError, match=says):
        ny.send_to("ln", **attributes)
    assert ny.cache.gateway_senders() == {}


def test_an_unknown_disk_store_is_named(network):
    """C-152, C-118."""
    ny = network.site("ny")
    with pytest.raises(pywan.PywanError, match="nowhere"):
        ny.send_to("ln", enable_persistence=True, disk_store_name="nowhere")
    assert ny.cache.gateway_senders() == {}


@pytest.mark.parametrize("first", ["sender", "region"])
def test_a_parallel_sender_cannot_serve_a_replicated_region(network, first):
    """C-173, 1.1: whichever was there first."""
    ny = network.site("ny")
    if first == "sender":
        ny.send_to("ln", parallel=True)
        with pytest.raises(GatewaySenderConfigurationError, match="parallel"):
            ny.region(type="REPLICATE")
        assert ny.cache.regions() == {}
    else:
        ny.region(type="REPLICATE", senders="ln")
        with pytest.raises(GatewaySenderConfigurationError, match="parallel"):
            ny.send_to("ln", parallel=True)
        assert ny.cache.gateway_senders() == {}


@pytest.mark.parametrize("first", ["sender", "region"])
def test_regions_that_are_not_colocated_cannot_share_a_parallel_sender(network, first):
    """C-157: whichever was there first; a serial sender may serve both."""
    ny = network.site("ny")
    if first == "sender":
        ny.send_to("ln", parallel=True)
        ny.region("one")
        with pytest.raises(IllegalStateError, match="not colocated"):
            ny.region("two")
        assert list(ny.cache.regions()) == ["one"]
    else:
        ny.region("one", senders="ln")
        ny.region("two", senders="ln")
        with pytest.raises(IllegalStateError, match="not colocated"):
            ny.send_to("ln", parallel=True)
        assert ny.cache.gateway_senders() == {}
        ny.send_to("ln", parallel=False)


def test_colocated_regions_may_have_fewer_or_more_parallel_senders(network):
    """C-157: a subset, a superset, none."""
    ny = network.site("ny")
    for id in ("a", "b"):
        ny.send_to("ln", id=id, parallel=True)
    ny.region("root", senders="a")
    ny.region("more", senders="a,b", colocated_with="root")
    ny.region("none", senders=(), colocated_with="root")
    ny.region("child", senders="b", colocated_with="more")
    with pytest.raises(IllegalStateError, match="no region 'absent'"):
        ny.region("orphan", senders=(), colocated_with="absent")


def test_a_refused_alteration_of_a_region_changes_nothing(network):
    """C-173."""
    ny = network.site("ny")
    ny.send_to("ln", id="p", parallel=True)
    ny.send_to("ln", id="s", parallel=False)
    ny.region("one", senders="p")
    two, replicated = ny.region("two", senders="s"), ny.region("replicated", "REPLICATE", senders="s")
    with pytest.raises(IllegalStateError):
        two.alter(gateway_sender_ids="s,p")
    with pytest.raises(GatewaySenderConfigurationError):
        replicated.alter(gateway_sender_ids=["p"])
    with pytest.raises(ConfigurationError, match="twice"):
        two.alter(gateway_sender_ids="s,s")
    with pytest.raises(ConfigurationError):
        two.alter(total_num_buckets=5)
    assert two.gateway_sender_ids == replicated.gateway_sender_ids == ("s",)
    two["k"] = 1
    assert (
        ny.cache.gateway_sender("s").stats["events_queued"] == 1
        and ny.cache.gateway_sender("p").stats["events_queued"] == 0
    )


def test_a_persistent_region_refuses_a_parallel_sender_that_is_not(network):
    """C-160."""
    ny = network.site("ny")
    ny.send_to("ln", parallel=True)
    with pytest.raises(ConfigurationError, match="persisten"):
        ny.region(type="PARTITION_PERSISTENT")
    assert ny.cache.regions() == {}


# The receiver


def test_a_member_has_one_receiver(network):
    """C-155: a second one is refused; destroyed, it is gone from the locator and can be made again."""
    ln = network.site("ln")
    first = ln.receive()
    with pytest.raises(IllegalStateError, match="has a gateway receiver already"):
        ln.receive()
    with pytest.raises(GatewayReceiverError, match="stop it"):
        ln.cache.destroy_gateway_receiver()
    eventually(lambda: ln.locator.members()[0]["receivers"])
    first.stop()
    with pytest.raises(GatewayReceiverError, match="not running"):
        first.stop()
    eventually(lambda: not ln.locator.members()[0]["receivers"])
    ln.cache.destroy_gateway_receiver()
    assert ln.receiver is None
    second = ln.receive()
    eventually(lambda: [r["port"] for r in ln.locator.members()[0]["receivers"]] == [second.port])


def test_a_receiver_walks_its_range_and_names_it_when_it_is_full(network, caplog):
    """C-154."""
    ny, ln = network.add("ny ln")
    taken = ny.receive().port
    with pytest.raises(GatewayReceiverError, match=f"{taken} to {taken}.*in use"):
        ln.receive(start_port=taken, end_port=taken)
    assert ln.receiver is None
    with pytest.raises(ConfigurationError, match="above end_port"):
        ln.receive(start_port=taken + 1, end_port=taken)
    with pytest.raises(GatewayReceiverError, match=r"192.0.2.1"):
        ln.receive(bind_address="192.0.2.1")
    receiver = ln.receive(
        start_port=taken, end_port=min(taken + 50, 65535), manual_start=True, hostname_for_senders="localhost"
    )
    assert (receiver.port, receiver.is_running, receiver.host) == (0, False, "localhost")
    receiver.start()
    assert taken < receiver.port <= taken + 50
    with caplog.at_level(logging.WARNING):
        receiver.start()
    assert "started already" in caplog.text
    eventually(lambda: ln.locator.members()[0]["receivers"] == [{"host": "localhost", "port": receiver.port}])


def test_a_buffer_above_the_systems_maximum_is_warned_about(network, caplog):
    ny, ln = network.add("ny ln")
    with caplog.at_level(logging.WARNING):
        ny.send_to(ln, socket_buffer_size=2**30, parallel=True)
        ln.receive(socket_buffer_size=2**30)
    for name, limit in (("gateway sender 'ln'", "wmem_max"), ("gateway receiver", "rmem_max")):
        assert [
            r
            for r in caplog.records
            if name in r.getMessage() and limit in r.getMessage() and "1073741824" in r.getMessage()
        ]
    ny.region(), ln.region()
    ny.data["k"] = 1
    network.settle()
    assert ln.data["k"] == 1


def test_a_closed_cache_says_so(network):
    ny = network.site("ny")
    sender = ny.send_to("ln", manual_start=True)
    region = ny.region("data", "REPLICATE")
    ny.cache.close()
    ny.cache.close()
    for call in (
        lambda: ny.cache.create_region("r"),
        lambda: ny.cache.create_gateway_receiver(),
        lambda: ny.send_to("ln", id="x"),
    ):
        with pytest.raises(IllegalStateError, match="closed"):
            call()
    with pytest.raises(pywan.PywanError):
        region["k"] = 1
    with pytest.raises(GatewaySenderError):
        sender.start()


def test_a_cache_closes_although_a_filter_hangs(network, monkeypatch):
    """Another sender is not left running, and the cache's folder goes."""
    monkeypatch.setattr("pywan.gateway.dispatchers.JOIN_TIMEOUT_S", 0.2)
    released = threading.Event()

    class Hangs(GatewayEventFilter):
        def before_transmit(self, event):
            released.wait(LIMIT_S)
            return True

    ny, ln = network.add("ny ln")
    ny.send_to(ln, id="hangs", gateway_event_filters=[Hangs()])
    ny.send_to(ln, id="works")
    network.connect([], type="REPLICATE")
    ln.receive()
    ny.data["k"] = 1
    eventually(lambda: "k" in ln.data)
    folder = ny.cache.directory
    ny.cache.close()
    assert not folder.exists() and not ny.cache.gateway_sender("works").is_running
    assert not [t for t in threading.enumerate() if t.name.startswith("sender-works")]
    released.set()


def test_waiting_for_a_flush_without_limit_ends_with_the_queue_or_the_sender(network):
    ny, ln = network.add("ny ln")
    sender = ny.send_to("ln", batch_time_interval=600_000, batch_size=10_000)
    ny.region(type="REPLICATE")
    ny.data.put("k", b"v")
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(sender.wait_until_flushed(None)))
    waiting.start()
    ln.region(type="REPLICATE")  # An event that comes before its region is parked.
    ln.receive()
    waiting.join(LIMIT_S)
    assert waited == [True] and ln.data.get("k") == b"v"
    sender.pause()
    ny.data.put("k", b"w")
    stopped = threading.Thread(target=lambda: waited.append(sender.wait_until_flushed(timeout=None)))
    stopped.start()
    sender.stop()
    stopped.join(LIMIT_S)
    assert waited == [True, False]


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan"), []])
def test_a_flush_that_cannot_be_waited_for_so_long_says_so(two_sites, timeout):
    ny, _ = two_sites
    with pytest.raises(ConfigurationError, match=r"wait_until_flushed.*number of seconds of at least 0, or None"):
        ny.sender("ln").wait_until_flushed(timeout)


def test_ctrl_c_ends_a_stop_that_waits_for_callbacks_and_the_sender_runs_on(two_sites, network):
    ny, ln = two_sites
    sender, slow = ny.sender(ln), Slow()
    ny.data.add_listener(slow)
    main = threading.get_ident()

    def interrupt():
        eventually(
            lambda: (
                "attach_senders"
                in [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
            )
        )
        os.kill(os.getpid(), signal.SIGINT)

    changing, interrupting = threading.Thread(target=lambda: ny.data.put("k", 1)), threading.Thread(target=interrupt)
    changing.start()
    eventually(lambda: "k" in ny.data)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            sender.stop()
    finally:
        slow.gate.release(10)
        changing.join()
        interrupting.join()
    assert sender.is_running and sender._core.queue.reachable
    ny.data["later"] = 2
    network.settle()
    assert dict(ln.data) == {"k": 1, "later": 2}
