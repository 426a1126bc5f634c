"""How much is on its way, and what a queue that does not drain is told to wait for: a long, a narrow or a broken link,
a receiver, a filter, a disk, an operator."""

import socket
import threading

import pytest

from pywan import CacheListener, GatewayEventFilter, _core
from pywan.testing.waiting import LIMIT_S, eventually
from support.receivers import applied_once, through_a_proxy, with_a_listener
from support.records import BATCH, REGION, make_batch, make_record
from support.sites import keep_doing

MB = 1_000_000
NARROW = 8 * MB  # Bytes a second of a link.


class Gate(CacheListener):
    """A receiver's callback that lets nothing pass until it is opened."""

    def __init__(self):
        self.open = threading.Event()

    def after_create(self, event):
        self.open.wait(LIMIT_S)

    after_update = after_create


# The window


@pytest.mark.parametrize("round_trip_ms", [0, 100, 300])
def test_bytes_on_their_way_follow_the_length_of_the_link(network, round_trip_ms):
    """Enough to fill it, and not many times as much."""
    ny, ln, sender = through_a_proxy(network, type="REPLICATE", parallel=False, dispatcher_threads=1, batch_size=10)
    ln.proxy.set_bandwidth(NARROW)
    ln.proxy.set_latency_ms(round_trip_ms / 2)
    carried = NARROW * max(round_trip_ms, 20) // 1000  # In one round trip.
    batch = 10 * 10_000

    def fits():
        stats = sender.stats
        # A busy machine makes it longer than the link does.
        measured = NARROW * max(stats["round_trip_us"], 20_000) // 1_000_000
        return (
            carried <= stats["window_bytes"] <= 5 * measured + 2 * batch
            and stats["bytes_in_flight"] <= stats["window_bytes"] + batch
        )

    def put_one(n):
        eventually(lambda: sender.queue_size < 2000)
        ny.data[n] = b"x" * 10_000

    with keep_doing(put_one) as done:
        eventually(lambda: sender.stats["events_distributed"] > 1000 and fits(), what=f"a window for {carried} bytes")
        eventually(lambda: sender.stats["bytes_in_flight"] > carried / 2)
    assert sender.stats["round_trip_us"] >= round_trip_ms * 1000
    ln.proxy.set_bandwidth(0)
    network.settle()
    applied_once(ln, len(done))


def test_a_receiver_that_stands_has_little_on_its_way_to_it(network):
    """Events that it cannot take wait in the sender's queue, where they may go to disk."""
    gate = Gate()
    ny, ln, sender = with_a_listener(network, gate, type="REPLICATE", batch_size=10)
    for n in range(3000):
        ny.data[n] = b"x" * 10_000
    eventually(lambda: sender.stats["bytes_in_flight"] > MB)
    eventually(lambda: sender.lag()["cause"] == "receiver slow")
    assert sender.stats["bytes_in_flight"] <= (2 << 20) + 200_000 and sender.queue_size == 3000
    gate.open.set()
    network.settle()
    applied_once(ln, 3000)


def test_a_receiver_whose_callback_stands_reads_no_more_than_a_frame_of_a_flood():
    """A sender that knows no window: what it sends lies in the kernel's buffers, which are bounded, and not in ours."""
    region = _core.RegionCore("flooded", _core.Clock(), site=2)
    region.set_callback_path(lambda *change: None)
    entered, gate, applied = threading.Event(), threading.Event(), []

    def apply(core, record, place):
        entered.set()
        gate.wait(LIMIT_S)
        applied.append(place[1])
        return 0

    batches = 300
    value = b"x" * (1 << 20)
    frames = [_core.pack_frame(BATCH, *_one(n, value)) for n in range(batches)]
    ours, theirs = socket.socketpair()
    receiver = _core.ReceiverSession(_core.SourceMemory(1), _core.ReceiverCounts(), {"flooded": region}.get, apply)
    thread = threading.Thread(target=receiver.run, args=(theirs, 0))
    before = _resident()
    with ours, theirs:
        ours.sendall(_core.pack_frame(REGION, b"flooded", 1))
        thread.start()
        ours.setblocking(False)
        sent = _push(ours, b"".join(frames[:100]), entered)
        assert sent < 4 << 20 and _resident() - before < 16 << 20
        gate.set()
        ours.setblocking(True)
        rest = threading.Thread(target=ours.sendall, args=(b"".join(frames)[sent:],))
        rest.start()
        acknowledged = b""
        while acknowledged.count(b"PWD1") < batches:
            acknowledged += ours.recv(65536)
        rest.join()
        receiver.stop()
        thread.join()
    assert applied == list(range(1, batches + 1))
    assert _resident() - before < 64 << 20  # Far from 300 MB, also after all of it has passed.


def _one(n, value):
    payload, count = make_batch((0, n + 1, n + 1, n, [make_record(b"k", value, stamp=n + 1)]))
    return payload, n, count


def _push(sock, data, entered):
    """How much a socket takes whose other end stands."""
    sent, refused = 0, 0
    while refused < 20:
        try:
            sent += sock.send(memoryview(data)[sent:])
            refused = 0
        except BlockingIOError:
            refused += 1
            entered.wait(0.05)  # A pause: the other end may have taken what is there, and want more.
    return sent


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


# Causes


def feed(ny, sender, count=2000):
    for n in range(count):
        ny.data[n] = b"x" * 10_000


def test_lag_names_a_narrow_link(network):
    ny, ln, sender = through_a_proxy(network, type="REPLICATE", parallel=False, dispatcher_threads=1, batch_size=10)
    ln.proxy.set_bandwidth(MB)
    feed(ny, sender)
    eventually(lambda: sender.lag()["cause"] == "link slow")
    ln.proxy.set_bandwidth(0)
    network.settle()


def test_lag_names_a_receiver_that_works_slowly_however_long_the_link(network):
    ny, ln, sender = through_a_proxy(network, type="REPLICATE", parallel=False, dispatcher_threads=1, batch_size=10)
    ln.proxy.set_latency_ms(50)
    gate = threading.Event()

    class Slow(CacheListener):
        def after_create(self, event):
            gate.wait(0.02)

    ln.data.add_listener(Slow())
    feed(ny, sender)
    eventually(lambda: sender.lag()["cause"] == "receiver slow")
    gate.set()
    network.settle()


def test_lag_names_a_slow_filter_also_where_the_link_is_long(network):
    gate = threading.Event()

    class Slow(GatewayEventFilter):
        def before_transmit(self, event):
            return gate.wait(0.02) or True

    ny, ln, sender = through_a_proxy(
        network, type="REPLICATE", parallel=False, dispatcher_threads=1, batch_size=10, gateway_event_filters=[Slow()]
    )
    ln.proxy.set_latency_ms(50)
    feed(ny, sender)
    eventually(lambda: sender.lag()["cause"] == "filter slow")
    gate.set()
    network.settle()


def test_lag_names_a_slow_disk_and_one_that_takes_nothing(network, monkeypatch, tmp_path):
    gate = threading.Event()

    class HeldUp(_core.EventQueue):
        """Its committer, and so its disk, stands until the gate is opened."""

        def commit_loop(self):
            gate.wait(LIMIT_S)
            super().commit_loop()

    monkeypatch.setattr("pywan.gateway.queue._core.EventQueue", HeldUp)
    ny, ln = network.add("ny ln")
    ny.cache.create_disk_store("small", directories=[(str(tmp_path), 1)])
    ln.receive()
    ny.region(type="REPLICATE", senders=["ln"]), ln.region(type="REPLICATE")
    sender = ny.send_to(
        ln,
        parallel=False,
        dispatcher_threads=1,
        batch_size=10,
        enable_persistence=True,
        disk_store_name="small",
        disk_synchronous=False,
        full_policy="refuse",
    )
    eventually(lambda: sender.is_connected)
    for n in range(20):
        ny.data[n] = b"x" * 1000
    eventually(lambda: sender.lag()["cause"] == "disk slow")
    gate.set()
    network.settle()
    assert sender.lag()["cause"] == "none"

    standing = Gate()
    ln.data.add_listener(standing)
    with pytest.raises(Exception, match="limit"):
        for n in range(1000):
            ny.data[n] = b"y" * 10_000
            eventually(
                lambda: sender._core.queue.log_state()["failing"] or not sender._core.queue.log_state()["pending"]
            )
    assert sender.lag()["cause"].startswith("disk: ") and "limit" in sender.lag()["cause"]
    standing.open.set()
    network.settle()


def test_lag_names_what_an_operator_did_and_a_link_that_is_not_there(network):
    ny, ln, sender = through_a_proxy(network, type="REPLICATE", parallel=False, dispatcher_threads=1, batch_size=10)
    assert sender.lag()["cause"] == "none"
    sender.pause()
    ny.data["k"] = 1
    assert sender.lag()["cause"] == "paused"
    ln.proxy.cut()
    sender.resume()
    eventually(lambda: sender.lag()["cause"].startswith("link down: ") and str(ln.proxy.port) in sender.lag()["cause"])
    sender.stop()
    assert sender.lag()["cause"] == "stopped"
    sender.start()
    ln.proxy.restore()
    network.settle()


def test_a_disk_that_takes_nothing_is_named_also_where_nothing_waits(network, monkeypatch, tmp_path):
    """The events are refused. An operator who asks why has to find the reason."""

    class Full(_core.EventQueue):
        def log_state(self):
            return {**super().log_state(), "failing": "no room for a checkpoint"}

    monkeypatch.setattr("pywan.gateway.queue._core.EventQueue", Full)
    ny = network.site("ny")
    ny.cache.create_disk_store("s", directories=tmp_path)
    assert (
        ny.send_to("ln", enable_persistence=True, disk_store_name="s").lag()["cause"]
        == "disk: no room for a checkpoint"
    )
