"""A receiver, its link or its site does something wrong. Nothing is lost, nothing is applied twice, and all is
explained.
"""

import contextlib
import logging

import pytest

import pywan
from pywan import CacheListener, _core
from pywan.errors import ProtocolError
from pywan.gateway.applied import AppliedMemory
from pywan.protocol.gateway import SenderHello
from pywan.testing.fault_proxy import TO_CLIENT, TO_TARGET
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from support.receivers import Slow, applied_once, through_a_proxy, with_a_listener
from support.records import make_batch, make_record
from support.sites import keep_doing

kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=1), id="serial"),
        pytest.param(dict(type="PARTITION", parallel=False, dispatcher_threads=5), id="serial-5"),
        pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=1), id="parallel"),
        pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=5), id="parallel-5"),
    ],
)


# Lost acknowledgements, broken links


@kinds
def test_a_lost_ack_neither_loses_nor_repeats_an_update(network, kind):
    ny, ln, sender = through_a_proxy(network, batch_size=10, **kind)
    ny.data["warm"] = 0
    network.settle()
    history = ln.keep_history()
    ln.proxy.cut_after_bytes(TO_CLIENT, 0)
    for n in range(100):
        ny.data["k"] = n
    network.settle()
    assert [value for _, value in history.of("k")] == list(range(100))
    applied_once(ln, 101)
    assert sender.stats["batches_redistributed"] >= 1 and sender.stats["possible_duplicates_sent"] >= 1
    assert ln.receiver.stats["duplicate_events_skipped"] >= 1 and ln.receiver.stats["duplicate_batches_received"] >= 1


@kinds
@pytest.mark.parametrize("after", [1, 40, 1000, 20_000])
def test_a_link_that_breaks_in_the_middle_of_a_batch(network, kind, after):
    ny, ln, _sender = through_a_proxy(network, **kind)
    ln.proxy.cut_after_bytes(TO_TARGET, after)
    for n in range(1000):
        ny.data[n] = b"v" * 50
    network.settle()
    assert len(ln.data) == 1000
    applied_once(ln, 1000)


@kinds
def test_a_link_that_is_cut_and_restored_under_load(network, kind):
    ny, ln, sender = through_a_proxy(network, **kind)
    with keep_doing(lambda n: ny.data.put(n, n)) as done:
        for _ in range(3):
            at = len(done)
            eventually(lambda at=at: len(done) > at + 200)
            ln.proxy.cut()
            eventually(lambda: not sender.is_connected and sender.queue_size > 100)
            assert sender.lag()["cause"].startswith("link down") and sender.lag()["seconds"] >= 0
            ln.proxy.restore()
            eventually(lambda: sender.is_connected)
    network.settle()
    applied_once(ln, len(done))
    network.assert_equal()


def test_a_damaged_frame_costs_a_connection_and_nothing_else(network, caplog):
    ny, ln, _sender = through_a_proxy(network, parallel=True)
    for n in range(5):
        ln.proxy.corrupt_next(TO_TARGET)
        ny.data.put_all((f"{n}-{k}", b"v" * 500) for k in range(200))
        network.settle()
    assert len(ln.data) == 1000
    applied_once(ln, 1000)
    assert "checksum" in caplog.text or "frame" in caplog.text


def test_a_damaged_acknowledgement_too(network):
    ny, ln, sender = through_a_proxy(network, parallel=False)
    for n in range(5):
        ny.data.put_all((f"{n}-{k}", k) for k in range(200))
        ln.proxy.corrupt_next(TO_CLIENT)
        network.settle()
        eventually(lambda: sender.is_connected)
    applied_once(ln, 1000)


def test_a_link_that_hangs_delays_and_loses_nothing(network):
    ny, ln, sender = through_a_proxy(network, parallel=True)
    ln.proxy.hang()
    for n in range(500):
        ny.data[n] = n
    eventually(lambda: sender.stats["events_in_flight_batches"] > 0)
    assert (
        len(ln.data) == 0
        and sender.queue_size == 500
        and sender.lag()["cause"] in ("in flight", "receiver slow", "link slow")
    )
    ln.proxy.restore()
    network.settle()
    applied_once(ln, 500)
    assert sender.stats["batches_redistributed"] == 0


def test_a_far_away_site_is_not_slower_for_many_batches(network):
    """Batches do not wait for each other's acknowledgements: 100 of them take about one round trip, not 100."""
    import time

    ny, ln, sender = through_a_proxy(network, parallel=False, dispatcher_threads=1, batch_size=10)
    ln.proxy.set_latency_ms(400)
    began = time.monotonic()
    for n in range(1000):
        ny.data[n] = n
    network.settle()
    assert time.monotonic() - began < SOON_S  # One after the other, they would take 80 s.
    assert sender.stats["batches_distributed"] >= 100


def test_a_sender_silent_for_longer_than_allowed_is_disconnected_and_a_client_is_not(network, caplog):
    """C-115."""
    from pywan.client import DataConnection

    ny, ln, _sender = through_a_proxy(
        network, parallel=False, dispatcher_threads=1, receiver={"maximum_time_between_pings": 400}
    )
    with DataConnection.open(str(ln.locator.address), region="data", run_id=b"1" * 16, task=1) as client:
        ln.proxy.hang()
        eventually(lambda: ln.receiver.connection_count == 0)
        assert "silent for more than maximum-time-between-pings" in caplog.text
        ln.proxy.restore()
        ny.data["k"] = 1
        client.put_pairs([("c", 2)])
        assert client.commit()["rows"] == 1
    network.settle()
    assert dict(ln.data) == {"k": 1, "c": 2}


# The receiver stops and starts


@kinds
def test_a_receiver_started_on_another_port_under_load(network, kind):
    """An event that it has applied is not applied again, though it was not acknowledged before the stop."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], **kind)
    with keep_doing(lambda n: ny.data.put(n, n)) as done:
        for _ in range(3):
            at, port = len(done), ln.receiver.port
            eventually(lambda at=at: len(done) > at + 200 and len(ln.data) > at)
            ln.receiver.stop()
            assert ln.receiver.port == 0 and not ln.receiver.is_running and ln.receiver.connection_count == 0
            ln.receiver.start()
            assert ln.receiver.port not in (0, port)
    network.settle()
    applied_once(ln, len(done))
    network.assert_equal()


def test_two_receivers_share_the_load(network):
    """C-032-like of pains 32: a sender's connections are spread over the site's members by load."""
    import pywan

    ny, ln = network.add("ny ln")
    ln.receive()
    with pywan.Cache("server_ln2", locators=str(ln.locator.address)) as second:
        other = second.create_gateway_receiver(start_port=0, end_port=0)
        for cache in (ln.cache, second):
            cache.create_region("data")
        eventually(lambda: sum(bool(m["receivers"]) for m in ln.locator.members()) == 2)
        for n in range(4):
            ny.send_to(ln, id=f"s{n}", parallel=False, dispatcher_threads=1)
            eventually(lambda n=n: ny.cache.gateway_sender(f"s{n}").is_connected)
            eventually(lambda n=n: sum(m["load"] for m in ln.locator.members()) == n + 1)
        assert ln.receiver.connection_count == other.connection_count == 2


# Events that cannot be applied


def test_failed_events_are_parked_listed_replayed_and_dropped(network):
    """C-127, C-128: the batch goes on without them; each is kept with its reason until it is replayed or dropped."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], batch_size=10)
    sender = ny.sender(ln)
    ny.region("missing", colocated_with="data")
    sender.pause()
    for n in range(100):
        ny.data[n] = n
        ny.cache.region("missing").put(f"m{n}", {"n": n}, callback_argument=None)
    del ny.cache.region("missing")["m99"]
    sender.resume()
    network.settle()
    assert len(ln.data) == 100 and sender.parked_count == 101
    shown = sender.parked(1000)
    assert len(shown) == 101 and len(sender.parked(5)) == 5
    assert {(e["operation"], e["key"]) for e in shown} == {("create", f"m{n}") for n in range(100)} | {
        ("destroy", "m99")
    }
    assert all(e["region"] == "missing" and "does not exist" in e["reason"] for e in shown)
    assert next(e for e in shown if e["key"] == "m7")["value"] == {"n": 7}

    ln.region("missing", senders=(), colocated_with="data")
    assert sender.replay_parked() == 101 and sender.parked_count == 0
    network.settle()
    assert len(ln.cache.region("missing")) == 99 and "m99" not in ln.cache.region("missing")
    assert sender.ledger()["parked"] == 0 and sender.ledger()["distributed"] == 201

    ln.cache.destroy_region("missing")
    ny.cache.region("missing")["again"] = 1
    network.settle()
    assert sender.parked_count == 1 and sender.drop_parked() == 1 and sender.parked() == []
    assert sender.ledger()["parked"] == 1
    network.check_ledgers()


def park_all(network, count):
    """NY's sender to a site that lacks the region, with so many events that failed there."""
    ny, ln = network.add("ny ln")
    ln.receive()
    sender = ny.send_to(ln)
    ny.region(type="REPLICATE")
    for n in range(count):
        ny.data[n] = n
    network.settle()
    assert sender.parked_count == count
    return sender


def test_replayed_while_the_region_is_still_missing_they_are_parked_again(network):
    sender = park_all(network, 50)
    assert sender.replay_parked() >= 50
    network.settle()
    assert sender.parked_count == 50 and sender.ledger()["parked"] == 50


def test_exceptions_are_logged_but_not_each_of_thousands(network, caplog):
    """C-128."""
    park_all(network, 3000)
    told = [r for r in caplog.records if "is parked" in r.getMessage()]
    assert 1 <= len(told) <= 20


def test_an_unacknowledged_failure_is_told_again(network):
    """The batch with the failed event was applied, its acknowledgement was lost: the failure is not."""
    ny, ln, sender = through_a_proxy(network, parallel=False, dispatcher_threads=1)
    missing = ny.region("missing")
    ny.data["warm"] = 1
    network.settle()
    ln.proxy.cut_after_bytes(TO_CLIENT, 0)
    missing["m"] = 1
    ny.data["k"] = 1
    network.settle()
    assert sender.parked_count == 1 and sender.parked()[0]["key"] == "m" and ln.data["k"] == 1
    assert ln.receiver.stats["exceptions_occurred"] == 1


class Odd:
    pass


@pytest.mark.parametrize("with_listener", [False, True])
def test_a_serializer_that_fails_at_the_receiver_holds_nothing_up(network, with_listener):
    """Keys and values go on as bytes, so nothing depends on whether somebody looks at them."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")])
    seen = []
    if with_listener:
        ln.data.add_listener(
            type(
                "Seen",
                (CacheListener,),
                {"after_create": lambda self, event: seen.append((event.key, event.new_value))},
            )()
        )
    pywan.register_serializer(Odd, lambda odd: b"", lambda data: 1 // 0, name="odd")
    ny.data[Odd()] = 1
    ny.data["k"] = Odd()
    network.settle()
    assert len(ln.data) == 2 and ny.sender(ln).parked_count == 0
    (odd,) = (key for key in ln.data if key != "k")
    assert (
        isinstance(odd, pywan.Undecodable)
        and "'odd' failed in loads: ZeroDivisionError" in odd.reason
        and ln.data[odd] == 1
    )
    with pytest.raises(pywan.SerializationError, match="the serializer 'odd' failed in loads") as raised:
        ln.data["k"]
    assert isinstance(raised.value.__cause__.__cause__, ZeroDivisionError)
    assert {type(value) for value in ln.data.values()} == {int, pywan.Undecodable}
    if with_listener:
        assert {(type(key), type(value)) for key, value in seen} == {(pywan.Undecodable, int), (str, pywan.Undecodable)}


# Pressure


def test_a_slow_receiver_holds_back_a_sender_by_its_credit(network, monkeypatch):
    """With a credit of one byte only one batch is on its way at a time; nothing is lost for it."""
    monkeypatch.setattr("pywan.gateway.receiver.CREDIT_BYTES", 1)
    slow = Slow()
    ny, ln, sender = with_a_listener(network, slow, batch_size=10)
    for n in range(100):
        ny.data[n] = n
    eventually(lambda: len(ln.data) >= 1)
    assert sender.stats["events_in_flight_batches"] == 1 and sender.queue_size == 100
    for _ in range(100):
        slow.gate.release()
        assert sender.stats["events_in_flight_batches"] <= 1
    network.settle()
    applied_once(ln, 100)


def test_a_wide_window_when_the_receiver_allows_it(network):
    slow = Slow()
    ny, ln, sender = with_a_listener(network, slow, batch_size=10)
    for n in range(500):
        ny.data[n] = n
    eventually(lambda: sender.stats["events_in_flight_batches"] == 50)
    eventually(lambda: sender.lag()["cause"] == "receiver slow")
    for _ in range(500):
        slow.gate.release()
    network.settle()
    applied_once(ln, 500)


def _hello(sender, partitions=1, numbering=1):
    return SenderHello(
        site=1,
        remote_site=2,
        member="m",
        sender=sender,
        dispatcher=0,
        numbering=numbering,
        mount=1,
        partitions=partitions,
    )


def test_what_is_remembered_of_senders_is_bounded_and_who_is_connected_is_not_forgotten(monkeypatch):
    """4 million partitions of 32 bytes, whatever a peer says it has."""
    monkeypatch.setattr(AppliedMemory, "PARTITIONS_LIMIT", 100)
    memory = AppliedMemory()
    with memory.connected(_hello("a", 60)) as (of_a, _):
        with memory.connected(_hello("b", 40)) as (of_b, _):
            with pytest.raises(ProtocolError, match="2 queues with 100 partitions are connected already"):
                memory.connected(_hello("c", 1)).__enter__()
            with memory.connected(_hello("a", 60)) as (again, _):
                assert again is of_a
        # In the room of b, which nobody needs now.
        with memory.connected(_hello("c", 40)), pytest.raises(ProtocolError, match="are connected already"):
            memory.connected(_hello("b", 40)).__enter__()
        with memory.connected(_hello("b", 40)) as (anew, _):
            assert anew is not of_b
    with pytest.raises(ProtocolError, match="has 59 partitions, and had 60"):
        memory.connected(_hello("a", 59)).__enter__()


def test_failures_of_senders_that_never_came_back_make_room_for_others(monkeypatch):
    memory = AppliedMemory()

    def fails_once(sender):
        with memory.connected(_hello(sender)) as (source, _):
            session = _core.ReceiverSession(source, _core.ReceiverCounts(), lambda name: None, None)
            payload, count = make_batch((0, 1, 1, 0, [make_record(b"k")]))
            session.receive_data(_core.pack_frame(_core.FRAME_BATCH, payload, 0, count))

    with memory.connected(_hello("connected")) as (connected, _):
        fails_once("connected"), fails_once("gone")
        assert connected.failures == 1
        monkeypatch.setattr(AppliedMemory, "FAILURES_LIMIT", _core.remembered_failures() - 1)
        with memory.connected(_hello("gone")) as (gone, _):  # It comes back, so it is not the one to be forgotten.
            assert gone.failures == 1
        with memory.connected(_hello("other")), memory.connected(_hello("gone")) as (gone, _):
            assert gone.failures == 0 and connected.failures == 1


def test_a_dispatcher_that_comes_again_while_its_earlier_connections_hang_is_told_why():
    """Otherwise a callback that never returns costs a thread and a socket every half minute, until none is left."""
    memory = AppliedMemory()
    with contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(memory.connected(_hello("a")))
        with pytest.raises(
            ProtocolError, match=r"4 connections of it are not done.*a callback of a region here may hang"
        ):
            memory.connected(_hello("a")).__enter__()
        with memory.connected(_hello("b")):
            pass
    with memory.connected(_hello("a")):
        pass


def test_a_receiver_whose_callback_hangs_keeps_few_connections(network):
    slow = Slow()
    ny, ln, sender = with_a_listener(network, slow, type="REPLICATE", batch_size=1)
    ny.data["k"] = 1
    eventually(lambda: sender.stats["events_in_flight_batches"] == 1 and "k" in ln.data)
    ny.data["k"] = 2

    def give_up():  # As a sender does that waits no longer.
        for end in [each.end_open for each in sender._core.dispatchers if each.end_open is not None]:
            end.shut()
        return "a callback of a region here may hang" in (sender.lag()["cause"])

    eventually(give_up)
    assert ln.receiver.connection_count <= 4
    for _ in range(10):
        slow.gate.release()
    network.settle()
    assert ln.data["k"] == 2


def test_the_queue_that_was_silent_for_longest_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(AppliedMemory, "LIMIT", 2)
    memory, found = AppliedMemory(), {}
    for name in ("a", "b", "a", "c", "a", "b"):  # c takes the room of b, and b that of c.
        with memory.connected(_hello(name)) as (source, _):
            found.setdefault(name, []).append(source)
    assert found["a"][0] is found["a"][1] is found["a"][2] and found["b"][0] is not found["b"][1]


def test_a_sender_with_more_partitions_than_there_is_room_for_is_told_so(network, monkeypatch):
    monkeypatch.setattr(AppliedMemory, "PARTITIONS_LIMIT", 2)
    ny, ln = network.add("ny ln")
    ln.receive()
    sender = ny.send_to(ln, parallel=True)
    ny.region(type="PARTITION", senders=[sender.id])
    ny.data["k"] = 1
    eventually(lambda: "at most 10000 with 2 can be; use fewer" in sender.lag()["cause"])
    small = ny.send_to(ln, id="small", parallel=False, dispatcher_threads=2)
    eventually(lambda: small.is_connected)


def test_the_receiver_of_another_site_is_refused(network, caplog):
    """A sender that is told the wrong locators does not deliver to the wrong site."""
    ny, ln, tk = network.add("ny ln tk")
    receiver = ln.receive()
    sender = ny.send_to(tk, parallel=False, dispatcher_threads=1)
    ny.region(type="REPLICATE"), ln.region(type="REPLICATE")
    tk.cache._core.state.membership.update(receivers=[{"host": "127.0.0.1", "port": receiver.port}], timeout=LIMIT_S)
    ny.data["k"] = 1
    eventually(lambda: "site 3" in sender.lag()["cause"] and "site 2" in sender.lag()["cause"])
    assert len(ln.data) == 0 and sender.queue_size == 1
    assert "wants site 3; this is site 2" in caplog.text


def test_a_site_does_not_send_to_itself(network, caplog):
    """Two sites that were given the same id by mistake: the receiver refuses, the events wait."""
    ny, ln = network.add("ny ln")
    ny.receive()
    sender = ny.send_to(ln, parallel=False, dispatcher_threads=1)
    ny.region(type="REPLICATE")
    ln.cache._core.state.membership.update(receivers=[{"host": "127.0.0.1", "port": ny.receiver.port}], timeout=LIMIT_S)
    ny.data["k"] = 1
    eventually(lambda: "this very site 1" in sender.lag()["cause"])
    assert sender.queue_size == 1 and not sender.is_connected


def test_trouble_is_logged_when_it_changes_and_not_each_time(network, caplog):
    ny = network.site("ny")
    with caplog.at_level(logging.WARNING):
        sender = ny.send_to("ln", retry_interval_ms=1, dispatcher_threads=1)
        ny.region(type="REPLICATE")
        ny.data[0] = 0
        eventually(lambda: "site 2 is not known" in sender.lag()["cause"])
        for n in range(1000):
            ny.data[n] = n
        eventually(lambda: sender.queue_size == 1001)
    assert len([r for r in caplog.records if "site 2 is not known" in r.getMessage()]) == 1
