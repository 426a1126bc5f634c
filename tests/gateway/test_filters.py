"""Changes go through the user's Python: event filters, substitution, listeners, and the events that they see."""

import gc
import threading
import time

import pytest

import pywan
from pywan import CacheListener, GatewayConflictResolver, GatewayEventFilter, GatewayEventSubstitutionFilter
from pywan.errors import ConfigurationError, IllegalStateError
from pywan.gateway import dispatchers
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually

ROWS = 300_000
both = pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])


class Recorder(GatewayEventFilter):
    """Notes what it is asked, and lets all pass."""

    def __init__(self):
        self.enqueued, self.transmitted, self.acknowledged = [], [], []

    def before_enqueue(self, event):
        self.enqueued.append(event)
        return True

    def before_transmit(self, event):
        self.transmitted.append(event)
        return True

    def after_acknowledgement(self, event):
        self.acknowledged.append(event)


class Refuse(GatewayEventFilter):
    def __init__(self, enqueue=(), transmit=()):
        self.enqueue, self.transmit = enqueue, transmit

    def before_enqueue(self, event):
        return event.key not in self.enqueue

    def before_transmit(self, event):
        return event.key not in self.transmit


def link(network, parallel, **attributes):
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=parallel, **attributes)
    eventually(lambda: ny.sender(ln).is_connected)
    return ny, ln, ny.sender(ln)


@both
@pytest.mark.parametrize("dispatchers", [1, 5])
def test_events_refused_at_both_places_are_counted(network, parallel, dispatchers):
    """C-110: of 1000, 100 at enqueue and 100 at transmit: queued 900, sent 800, filtered 200; with one queue 80 batches
    of 10.
    """
    ny, ln, sender = link(
        network,
        parallel,
        batch_size=10,
        dispatcher_threads=dispatchers,
        gateway_event_filters=[Refuse(enqueue=range(500, 600), transmit=range(700, 800))],
    )
    sender.pause()
    for n in range(1000):
        ny.data[n] = n
    sender.resume()
    network.settle()
    stats, ledger = sender.stats, sender.ledger()
    assert (
        stats["events_received"],
        stats["events_queued"],
        stats["events_distributed"],
        stats["events_filtered"],
    ) == (1000, 900, 800, 200)
    assert (ledger["filtered_before_enqueue"], ledger["filtered_before_transmit"]) == (100, 100)
    assert sorted(ln.data) == [n for n in range(1000) if not (500 <= n < 600 or 700 <= n < 800)]
    assert len(ny.data) == 1000
    if not parallel and dispatchers == 1:
        assert stats["batches_distributed"] == 80


@both
def test_every_acknowledged_event_is_told_once(network, parallel):
    """C-064, C-025: 1000 puts, 1000 calls on a site of one member; refused events are not told."""
    recorder = Recorder()
    ny, _ln, _sender = link(
        network, parallel, dispatcher_threads=5, gateway_event_filters=[Refuse(transmit=range(100)), recorder]
    )
    for n in range(1000):
        ny.data[n] = n
    network.settle()
    assert sorted(event.key for event in recorder.acknowledged) == list(range(100, 1000))
    assert sorted(event.key for event in recorder.transmitted) == list(range(100, 1000))
    assert [event.key for event in recorder.enqueued] == list(range(1000))


@both
def test_what_a_filter_sees(network, parallel):
    recorder = Recorder()
    ny, _ln, _sender = link(network, parallel, dispatcher_threads=1, gateway_event_filters=[recorder])
    ny.data.put("k", {"price": 1}, callback_argument="why")
    ny.data["k"] = [2]
    del ny.data["k"]
    network.settle()
    for seen in (recorder.enqueued, recorder.transmitted, recorder.acknowledged):
        assert [
            (e.operation, e.key, e.value, e.callback_argument, e.region, e.origin_site, e.possible_duplicate)
            for e in seen
        ] == [
            ("create", "k", {"price": 1}, "why", "data", 1, False),
            ("update", "k", [2], None, "data", 1, False),
            ("destroy", "k", None, None, "data", 1, False),
        ]
        assert all(event.creation_timestamp > 1_600_000_000_000 for event in seen)
    ids = [event.event_id for event in recorder.transmitted]
    assert len({(i.member_id, i.thread_id) for i in ids}) == 1 and [i.sequence_id for i in ids] == sorted(
        {i.sequence_id for i in ids}
    )


def test_what_is_sent_again_is_marked(network):
    """Events that may have been applied before are counted as such, and filtered again."""
    recorder = Recorder()
    ny, ln = network.add("ny ln")
    ln.receive(through_proxy=True)
    sender = ny.send_to(ln, parallel=True, dispatcher_threads=1, gateway_event_filters=[recorder])
    ny.region(), ln.region()
    eventually(lambda: sender.is_connected)
    ln.proxy.hang()
    ny.data["k"] = 1
    eventually(lambda: recorder.transmitted)
    ln.proxy.cut()
    ln.proxy.restore()
    network.settle()
    assert [event.key for event in recorder.transmitted] == ["k", "k"]
    assert sender.stats["possible_duplicates_sent"] == 1 and sender.stats["batches_redistributed"] == 1
    assert dict(ln.data) == {"k": 1} and ln.receiver.stats["events_received"] == 1


@both
def test_filters_are_asked_in_their_order_until_one_refuses(network, parallel):
    asked = []

    def make(name, verdict):
        class Each(GatewayEventFilter):
            def before_enqueue(self, event):
                asked.append(name)
                return verdict

            def before_transmit(self, event):
                asked.append(name + "'")
                return True

        return Each()

    ny, ln, sender = link(network, parallel, gateway_event_filters=[make("a", True), make("b", False), make("c", True)])
    ny.data["k"] = 1
    network.settle()
    assert asked == ["a", "b"] and len(ln.data) == 0
    sender.alter(gateway_event_filters=[make("x", True), make("y", True)])
    asked.clear()
    ny.data["k"] = 2
    network.settle()
    assert asked == ["x", "y", "x'", "y'"] and ln.data["k"] == 2


@both
def test_a_filter_that_raises_loses_nothing(network, parallel, caplog):
    class Broken(GatewayEventFilter):
        def before_enqueue(self, event):
            raise ValueError("broken at enqueue")

        def before_transmit(self, event):
            raise ValueError("broken at transmit")

        def after_acknowledgement(self, event):
            raise ValueError("broken at acknowledgement")

    ny, ln, _sender = link(network, parallel, gateway_event_filters=[Broken()])
    for n in range(100):
        ny.data[n] = n
    network.settle()
    assert len(ln.data) == 100
    assert "broken at enqueue" in caplog.text and len(caplog.records) < 30


@both
@pytest.mark.parametrize("method", ["before_enqueue", "before_transmit", "after_acknowledgement"])
def test_a_filter_that_raises_for_one_event_of_a_batch_names_it_and_is_asked_about_the_others(
    network, parallel, method, caplog
):
    asked = []

    class Sometimes(GatewayEventFilter):
        pass

    def sometimes(self, event):
        asked.append(event.key)
        if event.key == 5:
            raise ValueError("no answer about this one")
        return event.key != 7

    setattr(Sometimes, method, sometimes)
    ny, ln, sender = link(
        network, parallel, batch_size=100, dispatcher_threads=1, gateway_event_filters=[Sometimes(), Recorder()]
    )
    sender.pause()
    ny.data.put_columns(list(map(str, range(10))), list(map(str, range(10))))  # Of another form than the keys below.
    for n in range(10):
        ny.data[n] = n
    sender.resume()
    network.settle()
    assert sorted(key for key in asked if isinstance(key, int)) == list(range(10)) and len(asked) == 20
    refused = set() if method == "after_acknowledgement" else {7}
    assert {key for key in ln.data if isinstance(key, int)} == {*range(10)} - refused
    (line,) = [record for record in caplog.records if method in record.getMessage()]
    assert "<create of 5 in data>" in line.getMessage() and "no answer about this one" in str(line.exc_info[1])
    assert sender.ledger()["balanced"]


def test_all_filters_hear_of_an_acknowledgement_in_their_order(network):
    told = []

    class Each(GatewayEventFilter):
        def __init__(self, name):
            self.name = name

        def before_transmit(self, event):
            told.append((self.name, event.key))
            return event.key != self.name

        def after_acknowledgement(self, event):
            told.append((self.name, event.key, "there"))

    ny, _ln, sender = link(network, False, dispatcher_threads=1, gateway_event_filters=[Each("a"), Each("b")])
    sender.pause()
    ny.data.put_all({"a": 1, "b": 2, "c": 3})
    sender.resume()
    network.settle()
    assert told[:5] == [("a", "a"), ("a", "b"), ("b", "b"), ("a", "c"), ("b", "c")]
    assert told[5:] == [("a", "c", "there"), ("b", "c", "there")]


class Weighed:
    """A value that notes when it is decoded."""

    decoded = 0

    def __init__(self, weight):
        self.weight = weight

    @classmethod
    def read(cls, data):
        cls.decoded += 1
        return cls(int(data))


def test_an_event_that_is_kept_decodes_its_parts_when_they_are_read_first(network):
    pywan.register_serializer(Weighed, lambda it: b"%d" % it.weight, Weighed.read, name="weighed")
    recorder = Recorder()
    ny, _ln, sender = link(network, False, dispatcher_threads=1, gateway_event_filters=[recorder])
    for n in range(300):
        ny.data.put(n, Weighed(n), callback_argument=["why", n])
    ny.data.put_columns([b"%d" % n for n in range(300)], [b"v%d" % n for n in range(300)])
    network.settle()
    sender.stop()
    Weighed.decoded = 0
    for n in range(300):  # What the queue had is written over.
        ny.data[n] = bytes(1000)
    gc.collect()
    for seen in (recorder.enqueued[:600], recorder.transmitted[:600], recorder.acknowledged[:600]):
        before = Weighed.decoded
        assert [event.key for event in seen] == [*range(300), *(b"%d" % n for n in range(300))]
        assert [event.callback_argument for event in seen[:300]] == [["why", n] for n in range(300)]
        assert Weighed.decoded == before
        assert [event.value.weight for event in seen[:300]] == list(range(300))
        assert [event.value for event in seen[300:]] == [b"v%d" % n for n in range(300)]
        assert seen[0].value is seen[0].value and Weighed.decoded == before + 300


@both
def test_filters_see_the_same_with_a_listener_beside_them_and_without(network, parallel):
    """With a listener, changes go another way through the member."""

    class Nested(Recorder):
        """It refuses some keys, fails for some, and changes the region for one."""

        def before_enqueue(self, event):
            super().before_enqueue(event)
            if event.key == "nested":
                regions[-1]["by the filter"] = event.value
            if event.key == "fails":
                raise ValueError("no answer")
            return not event.key.startswith("no")

    class Upper(GatewayEventSubstitutionFilter):
        def get_substitute_value(self, event):
            return event.value.upper() if event.key != "masked" else 1 / 0

    seen, ends, regions = [], [], []
    for names, with_listener in (("ny", "ln"), False), (("tk", "hk"), True):
        recorder = Nested()
        ny, ln = network.add(" ".join(names))
        network.connect(
            [names],
            parallel=parallel,
            gateway_event_filters=[recorder],
            gateway_event_substitution_filter=Upper(),
        )
        regions.append(ny.data)
        if with_listener:
            ny.data.add_listener(CacheListener())
        ny.data.put("a", "one", callback_argument=["why"])
        ny.data.put_all({"no": "two", "nested": "three", "fails": "four", "masked": "five"})
        ny.data.put_columns(
            ["a", "b", "absent", "no", "b", "masked"],
            ["six", "seven", "", "eight", "", "nine"],
            operations=["update", "create", "destroy", "update", "destroy", "update"],
            timestamps=[0, 0, 0, 1000, 0, 0],
        )
        del ny.data["a"]
        ny.data.pop("absent", None)
        assert ny.data.setdefault("c", "ten") == "ten" and ny.data.replace("c", "ten", "eleven")
        network.settle()
        seen.append(
            [
                (
                    e.operation,
                    e.key,
                    e.value,
                    e.callback_argument,
                    e.possible_duplicate,
                    e.creation_timestamp > 1_600_000,
                )
                for e in recorder.enqueued
            ]
        )
        sender = ny.sender(ln)
        ledger = sender.ledger()
        assert ledger["balanced"] and ledger["withheld"] == 2 == sender.parked_count
        parked = [(event["operation"], event["key"], event["value"]) for event in sender.parked()]
        ends.append((dict(ny.data), dict(ln.data), parked, {name: ledger[name] for name in ("received", "queued")}))
    assert len(seen[0]) > 10 and seen[0] == seen[1] and ends[0] == ends[1]


class Shout(GatewayEventSubstitutionFilter):
    def get_substitute_value(self, event):
        return event.value.upper()


@both
def test_a_substitute_travels_and_the_region_keeps_its_own(network, parallel):
    recorder = Recorder()
    ny, ln, _sender = link(network, parallel, gateway_event_substitution_filter=Shout, gateway_event_filters=[recorder])
    ny.data["k"] = "quiet"
    del ny.data["k"]
    ny.data["k"] = "words"
    network.settle()
    assert ny.data["k"] == "words" and ln.data["k"] == "WORDS"
    assert [event.value for event in recorder.transmitted if event.key == "k"] == ["QUIET", None, "WORDS"]


class Masking(GatewayEventSubstitutionFilter):
    """Sends a text without its last word, until it is told to fail."""

    fails = True

    def get_substitute_value(self, event):
        if self.fails:
            raise ValueError("the key server does not answer")
        return event.value.rpartition(" ")[0]


@both
def test_a_value_that_cannot_be_masked_is_parked_and_a_replay_asks_the_filter_again(network, parallel, caplog):
    masking, recorder = Masking(), Recorder()
    ny, ln, sender = link(
        network, parallel, gateway_event_substitution_filter=masking, gateway_event_filters=[recorder]
    )
    ny.data.put("a", "Alice 4711", callback_argument="why")
    ny.data.put_all({"b": "Bob 4712"})
    del ny.data["b"]  # There is nothing to mask.
    network.settle()
    assert dict(ny.data) == {"a": "Alice 4711"} and dict(ln.data) == {} and "the key server" in caplog.text
    shown = [(event["operation"], event["key"], event["value"]) for event in sender.parked()]
    assert shown == [("create", "a", "Alice 4711"), ("create", "b", "Bob 4712")]
    assert all("substitution filter" in event["reason"] for event in sender.parked())
    assert sender.ledger()["withheld"] == sender.stats["events_withheld"] == 2
    assert sender.replay_parked() == 0 and sender.parked_count == 2  # It fails still.
    masking.fails = False
    assert sender.replay_parked() == 2 and sender.parked_count == 0
    network.settle()
    assert dict(ln.data) == {"a": "Alice"}, "the destroy of b is later than the event that waited"
    assert ny.data["a"] == "Alice 4711" and ln.data.applied == 2
    told = {(event.key, event.value, event.callback_argument) for event in recorder.transmitted}
    assert told == {("a", "Alice", "why"), ("b", None, None), ("b", "Bob", None)}


def test_a_change_of_a_masked_value_at_the_other_site_comes_home_and_overwrites_the_original(network):
    """What docs/python.md warns of."""
    ny, ln = network.add("ny ln")
    ny.receive(), ln.receive()
    masking = Masking()
    masking.fails = False
    ny.send_to(ln, gateway_event_substitution_filter=masking), ln.send_to(ny)
    ny.region(), ln.region()
    ny.data["k"] = "Alice 4711"
    network.settle()
    assert ny.data["k"] == "Alice 4711" and ln.data["k"] == "Alice"
    ln.data["k"] += ", paid"
    network.settle()
    assert ny.data["k"] == "Alice, paid"


@pytest.mark.parametrize(("on_error", "arrives"), [("drop", {}), ("send", {"k": "Alice 4711"})])
def test_a_sender_may_drop_what_cannot_be_masked_or_send_it(network, on_error, arrives):
    ny, ln, sender = link(network, False, gateway_event_substitution_filter=Masking(), substitution_on_error=on_error)
    ny.data["k"] = "Alice 4711"
    network.settle()
    assert dict(ln.data) == arrives and dict(ny.data) == {"k": "Alice 4711"} and sender.parked_count == 0
    assert sender.ledger()["withheld"] == 1 - len(arrives)


def test_a_substitute_that_cannot_be_encoded_is_a_failure_too(network):
    class Odd(GatewayEventSubstitutionFilter):
        def get_substitute_value(self, event):
            return object()

    ny, ln, sender = link(network, False, gateway_event_substitution_filter=Odd())
    ny.data["k"] = "v"
    network.settle()
    assert dict(ln.data) == {} and sender.parked_count == 1


def test_a_relayed_value_that_cannot_be_masked_keeps_its_version_and_the_sites_that_it_has_reached(network):
    ny, ln, tk = network.add("ny ln tk")
    network.connect([("ny", "ln")])
    tk.receive()
    masking = Masking()
    sender = ln.send_to(tk, parallel=True, gateway_event_substitution_filter=masking)
    ln.data.alter(gateway_sender_ids="tk")
    ny.data["k"] = "Alice 4711"
    network.settle()
    assert ln.data["k"] == "Alice 4711" and sender.parked_count == 1 and len(tk.data) == 0
    masking.fails = False
    sender.replay_parked()
    network.settle()
    assert tk.data["k"] == "Alice"
    assert core_of(tk.data).lookup("k")[1:3] == core_of(ny.data).lookup("k")[1:3]


def test_a_withheld_value_outlives_its_member(network, tmp_path):
    masking = Masking()

    def start():
        ny.send_to(
            ln,
            enable_persistence=True,
            disk_store_name="store",
            gateway_event_substitution_filter=masking,
        )
        ny.region(type="REPLICATE")

    ny, ln = network.add("ny ln")
    ln.receive()
    ln.region(type="REPLICATE")
    ny.cache.create_disk_store("store", directories=tmp_path)
    start()
    ny.data["k"] = "Alice 4711"
    ny.cache.close()
    ny.start_member().create_disk_store("store", directories=tmp_path)
    start()
    sender = ny.sender(ln)
    assert [event["value"] for event in sender.parked()] == ["Alice 4711"]
    masking.fails = False
    assert sender.replay_parked() == 1
    network.settle()
    assert dict(ln.data) == {"k": "Alice"}


def test_what_to_do_on_an_error_is_refused_without_a_substitution_filter(network):
    ny = network.site("ny")
    with pytest.raises(ConfigurationError, match="substitution_on_error 'drop' has no effect"):
        ny.send_to("ln", substitution_on_error="drop")
    with pytest.raises(ConfigurationError, match="park, drop, send"):
        ny.send_to("ln", substitution_on_error="raise", gateway_event_substitution_filter=Masking())


def test_a_substitute_of_none_is_a_value(network):
    class Nothing(GatewayEventSubstitutionFilter):
        def get_substitute_value(self, event):
            return None

    ny, ln, _sender = link(network, True, gateway_event_substitution_filter=Nothing())
    ny.data["k"] = "value"
    network.settle()
    assert "k" in ln.data and ln.data["k"] is None


def test_each_sender_has_its_own_filters(network):
    ny, ln, tk = network.add("ny ln tk")
    ln.receive(), tk.receive()
    ny.send_to(ln, gateway_event_filters=[Refuse(enqueue=["a"])])
    ny.send_to(tk, gateway_event_filters=[Refuse(transmit=["b"])], gateway_event_substitution_filter=Shout())
    for site in (ny, ln, tk):
        site.region(type="REPLICATE")
    for key in "abc":
        ny.data[key] = "v"
    network.settle()
    assert dict(ln.data) == {"b": "v", "c": "v"} and dict(tk.data) == {"a": "V", "c": "V"}


def test_a_filtered_event_is_still_stamped_with_its_recipients(network):
    """Loop control comes before filters: what NY's filter keeps from TK, LN does not carry there either."""
    ny, ln, tk = network.add("ny ln tk")
    for site in (ln, tk):
        site.receive()
    ny.send_to(ln), ny.send_to(tk, gateway_event_filters=[Refuse(enqueue=["k"])]), ln.send_to(tk)
    for site in (ny, ln, tk):
        site.region(type="REPLICATE")
    ny.data["k"] = 1
    network.settle()
    assert "k" in ln.data and "k" not in tk.data


def test_filters_meet_relayed_and_bulk_events_too(network):
    """At the middle of a chain, with columns and put_all."""
    ny, ln, tk = network.add("ny ln tk")
    network.connect([("ny", "ln")])
    tk.receive()
    recorder = Recorder()
    ln.send_to(tk, parallel=True, gateway_event_filters=[Refuse(enqueue=["b", b"b"]), recorder])
    ln.data.alter(gateway_sender_ids="tk")
    ny.data.put_all({"a": 1, "b": 2})
    ny.data.put_columns([b"a", b"b"], [b"1", b"2"])
    network.settle()
    assert sorted(map(str, tk.data)) == ["a", "b'a'"] and len(ln.data) == 4
    assert {event.origin_site for event in recorder.enqueued} == {ny.id}


def test_a_filter_may_write_to_another_region(network):
    """User's code under the callback lock of one region uses another one."""
    ny, ln = network.add("ny ln")
    ln.receive()
    audit = ny.region("audit", "LOCAL")

    class Audit(GatewayEventFilter):
        def before_enqueue(self, event):
            audit[event.key] = event.value
            return True

    ny.send_to(ln, gateway_event_filters=[Audit()])
    ny.region(type="REPLICATE", senders="ln"), ln.region(type="REPLICATE")
    threads = [threading.Thread(target=lambda: [ny.data.put(n, n) for n in range(200)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    network.settle()
    assert len(audit) == len(ln.data) == 200


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ("no_such_module:Filter", "no_such_module"),
        ("pywan:NoSuchFilter", "NoSuchFilter"),
        ("pywan", "package.module:Class"),
        ([object()], "before_enqueue"),
        ("pywan.testing.waiting:eventually", "eventually"),
    ],
)
def test_a_filter_that_cannot_be_had_is_named(network, filters, says):
    ny = network.site("ny")
    with pytest.raises(ConfigurationError, match=says):
        ny.send_to("ln", gateway_event_filters=filters)
    assert ny.cache.gateway_senders() == {}


class Misspelt(GatewayEventFilter):
    def before_enqeue(self, event):
        return False


class InGeodesWay(GatewayEventFilter):
    def beforeTransmit(self, event):
        return False


class Other(GatewayEventFilter):
    def is_wanted(self, event):
        return False


class MisspeltSubstitution(GatewayEventSubstitutionFilter):
    def get_substitute_values(self, event):
        return None


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"gateway_event_filters": [Misspelt()]}, "before_enqeue, which is never called; did you mean before_enqueue"),
        ({"gateway_event_filters": [Misspelt]}, "did you mean before_enqueue"),
        ({"gateway_event_filters": [InGeodesWay()]}, "beforeTransmit, .*did you mean before_transmit"),
        (
            {"gateway_event_filters": [Other()]},
            "Other has is_wanted, and none of the methods that are called: before_enqueue",
        ),
        ({"gateway_event_substitution_filter": MisspeltSubstitution()}, "did you mean get_substitute_value"),
    ],
)
def test_a_filter_that_nobody_would_call_is_refused(network, attributes, says):
    ny = network.site("ny")
    with pytest.raises(ConfigurationError, match=says):
        ny.send_to("ln", **attributes)
    assert ny.cache.gateway_senders() == {}


def test_a_misspelt_listener_or_resolver_is_refused(network):
    class Listener(CacheListener):
        def after_updated(self, event):
            pass

    class Resolver(GatewayConflictResolver):
        def onEvent(self, event, helper):
            pass

    ny = network.site("ny")
    region = ny.region("data")
    with pytest.raises(ConfigurationError, match="did you mean after_update"):
        ny.region("other", cache_listeners=[Listener()])
    with pytest.raises(ConfigurationError, match="did you mean after_update"):
        region.add_listener(Listener())
    with pytest.raises(ConfigurationError, match="did you mean on_event"):
        ny.cache.set_conflict_resolver(Resolver())


def test_a_filter_may_have_methods_of_its_own_and_need_not_derive_from_a_class(network):
    class Helped(GatewayEventFilter):
        def before_enqueue(self, event):
            return self.before_enqueues(event)

        def before_enqueues(self, event):
            return event.key != "a"

    class Plain:
        before_enqueue = after_acknowledgement = lambda self, event: True

        def __init__(self):
            self.before_transmit = lambda event: event.key != "b"

    ny, ln, _sender = link(network, False, gateway_event_filters=[Helped(), Plain()])
    ny.data.put_all(dict.fromkeys("abc", 1))
    network.settle()
    assert dict(ln.data) == {"c": 1}


# Listeners


def test_a_listener_is_told_what_took_effect(two_sites, network):
    ny, ln = two_sites
    here, there = ny.keep_history(), ln.keep_history()
    ny.data["k"] = 1
    ny.data["k"] = 2
    del ny.data["k"]
    with pytest.raises(KeyError):
        del ny.data["k"]
    network.settle()
    for history, is_remote in ((here, False), (there, True)):
        assert [(e.operation, e.old_value, e.new_value, e.is_origin_remote, e.origin_site) for e in history.events] == [
            ("create", None, 1, is_remote, 1),
            ("update", 1, 2, is_remote, 1),
            ("destroy", 2, None, is_remote, 1),
        ]


def test_a_listener_is_not_told_of_what_did_nothing(network):
    """A destroy of a key that is not there, and a change that lost against a later one."""
    ny, ln = network.mesh("ny ln")
    ny.data["k"] = 1
    network.settle()
    ln.data.local_destroy("k")
    history = ln.keep_history()
    del ny.data["k"]
    network.settle()
    assert history.events == []


def test_a_listener_that_raises_changes_nothing(two_sites, network, caplog):
    from pywan import CacheListener

    class Broken(CacheListener):
        def after_create(self, event):
            raise ValueError("broken listener")

    ny, ln = two_sites
    ln.data.add_listener(Broken())
    ny.data.add_listener(Broken())
    ny.data["k"] = 1
    network.settle()
    assert ln.data["k"] == 1 and ny.sender(ln).parked_count == 0 and "broken listener" in caplog.text


@pytest.mark.parametrize("doing", ["start", "stop", "pause", "resume", "alter", "destroy", "attach", "close"])
def test_a_callback_of_a_region_that_would_wait_for_itself_is_told_so(network, doing):
    """A stop waits for the region's callbacks, and this one would wait for the stop."""
    ny, ln, sender = link(network, False)
    errors = []
    what = {
        "alter": lambda: sender.alter(batch_size=7),
        "attach": lambda: ny.data.alter(gateway_sender_ids=[]),
        "close": ny.cache.close,
    }.get(doing) or getattr(sender, doing)

    class Careless(CacheListener):
        def after_create(self, event):
            try:
                what()
            except Exception as error:
                errors.append(error)

    ny.data.add_listener(Careless())
    ny.data["k"] = 1
    assert [type(error) for error in errors] == [IllegalStateError] and "callback of region 'data'" in str(errors[0])
    network.settle()
    assert ln.data["k"] == 1 and sender.is_running and not sender.is_paused and sender.attributes.batch_size != 7
    assert ny.data.gateway_sender_ids == (sender.id,) and not ny.cache.is_closed


def test_a_filter_may_pause_its_own_sender_and_is_told_when_the_sender_is_being_stopped(network, monkeypatch):
    monkeypatch.setattr(
        dispatchers, "JOIN_TIMEOUT_S", 2 * LIMIT_S
    )  # A stop that waited for a filter would take longer.
    entered, gate, outcomes = threading.Event(), threading.Event(), []

    class Pausing(GatewayEventFilter):
        def before_transmit(self, event):
            entered.set()
            gate.wait(LIMIT_S)
            try:
                sender.pause()
                outcomes.append("paused")
            except IllegalStateError as error:
                outcomes.append(str(error))
            return True

    ny, _ln, sender = link(
        network, False, dispatcher_threads=1, batch_size=1, batch_time_interval=-1, gateway_event_filters=[Pausing()]
    )
    gate.set()
    ny.data["first"] = 1
    eventually(lambda: outcomes == ["paused"])
    gate.clear()
    entered.clear()
    sender.resume()
    ny.data["second"] = 2
    assert entered.wait(LIMIT_S)
    stopping = threading.Thread(target=sender.stop)
    stopping.start()
    eventually(lambda: not sender.is_running)
    gate.set()
    stopping.join(LIMIT_S)
    assert not stopping.is_alive() and len(outcomes) == 2 and "is being stopped" in outcomes[1]


class Gate(GatewayEventFilter):
    """Lets one event through with each release, in the method of that name."""

    def __init__(self, method):
        self.released, self.asked = threading.Semaphore(0), []
        setattr(type(self), method, self._wait)

    def _wait(self, event):
        self.asked.append(event.key)
        assert self.released.acquire(timeout=LIMIT_S)
        return True


@pytest.mark.parametrize("method", ["before_transmit", "after_acknowledgement"])
def test_a_batch_whose_filter_takes_longer_than_a_sender_may_be_silent_keeps_its_connection(network, method):
    gate = type("Gate", (Gate,), {})(method)
    ny, ln = network.add("ny ln")
    ln.receive(maximum_time_between_pings=1000)
    sender = ny.send_to(
        ln, dispatcher_threads=1, batch_size=9, batch_time_interval=600_000, gateway_event_filters=[gate]
    )
    ny.region(), ln.region()
    began = time.monotonic()
    ny.data.put_all({n: n for n in range(9)})
    for n in range(9):
        eventually(lambda n=n: len(gate.asked) == n + 1)
        gate_opens = began + (n + 1) * 0.3
        eventually(lambda gate_opens=gate_opens: time.monotonic() > gate_opens)
        gate.released.release()
    network.settle()
    assert gate.asked == list(range(9)) and dict(ln.data) == dict(ny.data)
    assert sender.stats["batches_redistributed"] == 0 and ln.receiver.stats["batches_received"] == 1


def test_a_stop_waits_for_the_event_that_a_filter_looks_at_and_not_for_the_whole_batch(network, monkeypatch):
    monkeypatch.setattr(dispatchers, "JOIN_TIMEOUT_S", 2 * LIMIT_S)
    gate = type("Gate", (Gate,), {})("before_transmit")
    ny, ln, sender = link(
        network, False, dispatcher_threads=1, batch_size=100, batch_time_interval=600_000, gateway_event_filters=[gate]
    )
    ny.data.put_all({n: n for n in range(100)})
    eventually(lambda: gate.asked)
    stopping = threading.Thread(target=sender.stop)
    stopping.start()
    eventually(lambda: not sender.is_running)
    gate.released.release()
    stopping.join(LIMIT_S)
    assert not stopping.is_alive() and gate.asked == [0] and len(sender._core.queue) == 100
    gate.released.release(200)
    sender.start()
    network.settle()
    assert dict(ln.data) == dict(ny.data)


def test_lag_names_a_slow_filter_and_a_slow_receiver(network):
    """The cause of a backlog is told: the user's own filter here, what applies at the other side there."""
    gate = threading.Event()

    class Slow(GatewayEventFilter):
        def before_transmit(self, event):
            return gate.wait(0.02) or True

    class SlowListener(CacheListener):
        def after_create(self, event):
            gate.wait(0.02)

    ny, ln, tk = network.add("ny ln tk")
    filtered = ny.send_to(ln, parallel=False, dispatcher_threads=1, batch_size=10, gateway_event_filters=[Slow()])
    plain = ny.send_to(tk, parallel=False, dispatcher_threads=1, batch_size=10)
    for site in (ny, ln, tk):
        site.region("data", "REPLICATE")
    tk.data.add_listener(SlowListener())
    ln.receive(), tk.receive()
    eventually(lambda: filtered.is_connected and plain.is_connected)
    for n in range(3000):
        ny.data[n] = b"v"
    eventually(lambda: filtered.lag()["cause"] == "filter slow")
    eventually(lambda: plain.lag()["cause"] == "receiver slow")
    gate.set()
    network.settle()


def while_columns_are_put(ny, sender, act):
    """`ROWS` rows in one call, and `act` in the middle of it. Returns how many events were queued when `act` had
    returned.
    """
    sender.pause()
    outcome = []

    def put():
        try:
            outcome.append(ny.data.put_columns([b"%d" % n for n in range(ROWS)], [b"value"] * ROWS))
        except Exception as error:
            outcome.append(error)

    writer = threading.Thread(target=put)
    writer.start()
    while sender.ledger()["received"] < 64:
        assert writer.is_alive(), outcome
    act()
    queued = sender.ledger()["queued"]
    writer.join()
    assert outcome == [ROWS]
    return queued


class Nothing(GatewayEventFilter):
    def before_enqueue(self, event):
        return False


@pytest.mark.parametrize(
    "parallel", [pytest.param(False, id="serial"), pytest.param(True, id="parallel", marks=pytest.mark.nightly)]
)
def test_no_row_passes_a_filter_that_was_attached_while_a_bulk_call_ran(network, parallel):
    ny, _ln, sender = link(network, parallel)
    queued = while_columns_are_put(ny, sender, lambda: sender.alter(gateway_event_filters=[Nothing()]))
    ledger = sender.ledger()
    assert ledger["queued"] == queued and ledger["filtered_before_enqueue"] == ROWS - queued > 0 and ledger["balanced"]


def test_a_listener_that_is_added_while_a_bulk_call_runs_receives_every_row_that_is_not_stored_yet(network):
    ny, _ln, sender = link(network, False)
    received, stored = [], []

    class Listener(CacheListener):
        def after_create(self, event):
            received.append(event.key)

    def add():
        ny.data.add_listener(Listener())
        before = len(received)  # First: of those heard meanwhile some would be taken off that were not stored yet.
        stored.append(len(ny.data) - before)  # The one that is in the listener now may be counted here or there.

    while_columns_are_put(ny, sender, add)
    assert 0 < ROWS - len(received) <= stored[0] + 1


def test_a_bulk_call_goes_on_when_its_filter_is_detached(network):
    ny, _ln, sender = link(network, False, gateway_event_filters=[Nothing()])
    while_columns_are_put(ny, sender, lambda: sender.alter(gateway_event_filters=[]))
    ledger = sender.ledger()
    assert ledger["filtered_before_enqueue"] > 0 and ledger["queued"] > 0 and ledger["balanced"]
