"""Conflation, in the queue and in the batch: only updates, never what is on its way, and where every key ends is the
same.
"""

import pytest

from pywan.testing.waiting import eventually
from support.receivers import through_a_proxy

both = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=1), id="serial"),
        pytest.param(dict(type="PARTITION", parallel=False, dispatcher_threads=5), id="serial-5"),
        pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=1), id="parallel"),
        pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=5), id="parallel-5"),
    ],
)


def paused(network, conflation=True, **kind):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], enable_batch_conflation=conflation, **kind)
    sender = ny.sender(ln)
    eventually(lambda: sender.is_connected)
    sender.pause()
    return ny, ln, sender


@both
def test_creates_and_the_last_of_their_updates_wait(network, kind):
    """C-100, C-182: N creates, N/2 of them updated twice: N + N/2 wait."""
    ny, ln, sender = paused(network, **kind)
    for n in range(1000):
        ny.data[n] = "created"
    for round in ("updated", "updated again"):
        for n in range(500):
            ny.data[n] = round
    assert sender.queue_size == 1500 and sender.stats["events_not_queued_conflated"] == 500
    sender.resume()
    network.settle()
    assert len(ln.data) == 1000 and ln.data[0] == "updated again" and ln.data[999] == "created"
    network.assert_equal()


@both
def test_a_hundred_puts_of_one_entry_leave_two(network, kind):
    """C-104."""
    ny, ln, sender = paused(network, **kind)
    for n in range(100):
        ny.data["k"] = n
    assert sender.queue_size == 2
    history = ln.keep_history()
    sender.resume()
    network.settle()
    assert history.of("k") == [("create", 0), ("update", 99)]
    assert sender.stats["events_not_queued_conflated"] == 98 and sender.ledger()["conflated"] == 98


@both
def test_the_mixed_case_of_creates_and_updates(network, kind):
    """C-104: 200 queued, 150 distributed, 50 conflated."""
    ny, _ln, sender = paused(network, **kind)
    for n in range(100):
        ny.data[n] = 0
    for round in (1, 2):
        for n in range(50):
            ny.data[n] = round
    sender.resume()
    network.settle()
    ledger = sender.ledger()
    assert (sender.stats["events_queued"], ledger["distributed"], ledger["conflated"]) == (200, 150, 50)


@both
def test_without_conflation_everything_travels(network, kind):
    ny, ln, sender = paused(network, conflation=False, **kind)
    history = ln.keep_history()
    for n in range(100):
        ny.data["k"] = n
    assert sender.queue_size == 100
    sender.resume()
    network.settle()
    assert [value for _, value in history.of("k")] == list(range(100)) and sender.ledger()["conflated"] == 0


@both
def test_creates_and_destroys_always_travel(network, kind):
    ny, ln, sender = paused(network, **kind)
    for n in range(10):
        ny.data["k"] = n
        ny.data["k"] = -n
        ny.data["k"] = n * 10
        del ny.data["k"]
    history = ln.keep_history()
    sender.resume()
    network.settle()
    told = history.of("k")
    assert told.count(("destroy", None)) == 10 and [v for o, v in told if o == "create"] == list(range(10))
    assert "k" not in ln.data
    network.assert_equal()


@both
def test_regions_and_forms_of_keys_are_not_mixed_up(network, kind):
    ny, ln, sender = paused(network, **kind)
    extra = {"colocated_with": "data"} if kind["type"] == "PARTITION" else {}
    ny.region("other", kind["type"], **extra), ln.region("other", kind["type"], **extra)
    keys = ["1", b"1", 1, 1.0]
    for round in range(3):
        for region in (ny.data, ny.cache.region("other")):
            for key in keys:
                region[key] = round
    assert sender.queue_size == 16
    sender.resume()
    network.settle()
    for name in ("data", "other"):
        network.assert_equal(name)
        assert len(ln.cache.region(name)) == 4


def created_behind_a_link_that_hangs(network, kind, **more):
    ny, ln, sender = through_a_proxy(network, enable_batch_conflation=True, **kind, **more)
    history = ln.keep_history()
    ny.data["k"] = "created"
    network.settle()
    ln.proxy.hang()
    return ny, ln, sender, history


@both
def test_what_is_on_its_way_is_left_alone(network, kind):
    """Updates made while a batch is unacknowledged are conflated among themselves only."""
    ny, ln, sender, history = created_behind_a_link_that_hangs(network, kind)
    ny.data["k"] = "on its way"
    eventually(lambda: sender.stats["events_in_flight_batches"] == 1)
    sender.pause()
    for n in range(50):
        ny.data["k"] = n
    assert sender.queue_size == 2
    sender.resume()
    ln.proxy.restore()
    network.settle()
    assert history.of("k") == [("create", "created"), ("update", "on its way"), ("update", 49)]


@both
def test_conflation_within_a_batch_after_the_link_broke(network, kind):
    """C-103-like: what had been on its way is conflated no more in the queue, but in the batch that repeats it."""
    ny, ln, sender, _ = created_behind_a_link_that_hangs(network, kind, batch_size=100)
    for n in range(5):
        ny.data["k"] = n
        eventually(lambda n=n: sender.stats["events_in_flight_batches"] == n + 1)
    ln.proxy.cut()
    ln.proxy.restore()
    network.settle()
    assert ln.data["k"] == 4
    assert sender.stats["events_conflated_from_batches"] == sender.ledger()["conflated"] == 4
    assert ln.receiver.stats["events_received"] == 2


@both
def test_conflation_over_a_long_absence_keeps_the_queue_small(network, kind):
    ny, _ln, sender = paused(network, **kind)
    for n in range(100):
        ny.data[n] = b"x" * 1000
    for _round in range(100):
        ny.data.put_columns(list(map(str, range(20))), [b"y" * 1000] * 20)
    assert sender.queue_size == 100 + 40
    assert sender.lag()["bytes"] < 200_000
    sender.resume()
    network.settle()
    network.assert_equal()


def test_conflation_with_filters_and_two_senders(network):
    """Only the sender that conflates does; a filter that refuses an update does not bring an older one back."""
    from pywan import GatewayEventFilter

    class NoOddValues(GatewayEventFilter):
        def before_transmit(self, event):
            return event.operation != "update" or event.value % 2 == 0

    ny, ln, tk = network.add("ny ln tk")
    ln.receive(), tk.receive()
    a = ny.send_to(ln, enable_batch_conflation=True, gateway_event_filters=[NoOddValues()])
    b = ny.send_to(tk)
    for site in (ny, ln, tk):
        site.region(type="REPLICATE")
    for sender in (a, b):
        sender.pause()
    for n in range(10):
        ny.data["k"] = n
    assert (a.queue_size, b.queue_size) == (2, 10)
    for sender in (a, b):
        sender.resume()
    network.settle()
    assert (ln.data["k"], tk.data["k"]) == (0, 9)
