"""The commands that a member answers, with a plain stand-in for the cache."""

from __future__ import annotations

import inspect
import io
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import pywan
from pywan.cli.commands import COMMANDS
from pywan.cli.output import Output
from pywan.cli.session import Session
from pywan.config.attributes import RegionAttributes, RegionChanges
from pywan.config.options import commands_of
from pywan.errors import (
    ConfigurationError,
    GatewaySenderConfigurationError,
    IllegalStateError,
    NotFoundError,
    RegionNotFoundError,
)
from pywan.gateway.receiver_ends import ReceiverEnds
from pywan.gateway.status import SenderStatus
from pywan.member.answers import PLAIN_DEPTH, shown_value, to_plain_value
from pywan.member.management import ManagementService
from pywan.testing.waiting import LIMIT_S
from pywan.transport.control import ControlClient, ControlServer


class PlainRegion(dict):
    def __init__(self, attributes):
        super().__init__()
        self.name, self.type, self.gateway_sender_ids, self.async_event_queue_ids, self.attributes = (
            attributes.name,
            attributes.type,
            attributes.gateway_sender_ids,
            attributes.async_event_queue_ids,
            attributes,
        )

    put, destroy = dict.__setitem__, dict.__delitem__

    def remove_all(self, keys):
        return sum(self.pop(key, self) is not self for key in keys)

    def change_if(self, kind, operation, key, value):
        assert (kind, operation) == ("absent", 1)
        return key not in self and self.setdefault(key, value) is value, False, None

    def alter(self, gateway_sender_ids):
        self.gateway_sender_ids = gateway_sender_ids
        self.attributes = self.attributes.altered(RegionChanges, gateway_sender_ids=gateway_sender_ids)

    def scan(self, cursor, limit):
        names = sorted(self)[cursor : cursor + limit]
        return (cursor + limit if cursor + limit < len(self) else None), b"".join(name.encode() for name in names)


class PlainSender:
    def __init__(self, cache, attributes):
        self._cache, self.attributes, self.id = cache, attributes, attributes.id
        self.is_running, self.is_paused, self.is_connected, self.is_primary = True, False, True, True
        self.secondary_queue_size = 0
        self.local_queue_size, self.parked_count, self.receiver_location, self.stats = (
            3,
            1,
            "127.0.0.2:5000",
            {"events_queued": 3},
        )
        self.receivers = [
            {"dispatcher": 0, "receiver": "127.0.0.2:5000", "member": "ln1"},
            {"dispatcher": 1, "receiver": None, "member": None},
        ]

    @property
    def status(self):
        return SenderStatus(self.is_running, self.is_paused, self.is_connected, ReceiverEnds.running_words).text

    def ledger(self):
        return {"received": 3, "queued": 3, "in_queue": 3}

    def lag(self):
        return {"events": 3, "bytes": 9, "seconds": 0.5, "cause": "link down"}

    def start(self):
        self.is_running = True

    def stop(self):
        self.is_running = self.is_connected = False

    def pause(self):
        self.is_paused = True

    def resume(self):
        self.is_paused = False

    def destroy(self):
        del self._cache.senders[self.id]

    def alter(self, **changes):
        self.attributes = self.attributes.altered(**changes)

    def parked(self, limit):
        return [{"key": b"k", "reason": "no region"}][:limit]

    # Each member is asked for what it has itself.

    @property
    def _core(self):
        return SimpleNamespace(
            parked=SimpleNamespace(shown=self.parked), replay_parked_here=self.replay, drop_parked_here=self.replay
        )

    def replay(self, force=False):
        return 1


class PlainReceiver:
    def __init__(self, attributes):
        self.attributes, self.host, self.port, self.is_running = (
            attributes,
            "127.0.0.1",
            attributes.start_port,
            not attributes.manual_start,
        )
        self.stats, self.connected_senders = {"events_received": 7}, ["server_ln"]

    def start(self):
        self.is_running = True

    def stop(self):
        self.is_running = False


class PlainRegions(dict):
    """By name."""

    find, destroy = dict.get, dict.__delitem__

    def faces(self):
        return self

    def lacks(self, region):
        return []


class PlainSenders(dict):
    """By id."""

    def by_id(self):
        return self

    def cores(self):
        return list(self.values())

    def queues_by_id(self):
        return {}

    def volatile_events(self):
        return {}


class PlainReceiving:
    receiver = None

    def destroy(self):
        self.receiver = None


class PlainMember:
    name, allowed_callbacks, maximum_shutdown_wait_time = "server_ny", ("a.b",), 0
    folders = (Path("/a-member"),)
    handover_time = 60.0
    state = SimpleNamespace(distributed_system_id=1)

    def __init__(self):
        self.regions, self.senders, self.receiving = PlainRegions(), PlainSenders(), PlainReceiving()
        self.shutdown_requested = threading.Event()

    def request_shutdown(self, wait=None, handover_time=None):
        self.shutdown_requested.set()

    def create_region(self, attributes):
        self.regions[attributes.name] = PlainRegion(attributes)

    def create_gateway_sender(self, attributes):
        attributes.check_site(1)
        self.senders[attributes.id] = PlainSender(self, attributes)

    def create_gateway_receiver(self, attributes):
        self.receiving.receiver = PlainReceiver(attributes)
        return self.receiving.receiver

    def status(self):
        return {"distributed_system_id": 1, "when": SimpleNamespace(a=1)}


@pytest.fixture
def cache():
    return PlainMember()


@pytest.fixture
def ask(cache):
    service = ManagementService(cache)
    return lambda op, **fields: service.handle({"op": op, **fields})


def test_a_sender_is_created_altered_and_destroyed(cache, ask):
    ask(
        "create gateway-sender",
        id="ln",
        remote_distributed_system_id="2",
        parallel="true",
        gateway_event_filters="a.b:C,a.b:D",
    )
    assert cache.senders["ln"].attributes.parallel is True
    assert cache.senders["ln"].attributes.gateway_event_filters == ("a.b:C", "a.b:D")
    ask("alter gateway-sender", id="ln", batch_size="7", gateway_event_filters="CLEAR")
    assert (cache.senders["ln"].attributes.batch_size, cache.senders["ln"].attributes.gateway_event_filters) == (7, ())
    with pytest.raises(IllegalStateError, match="'ln' is already defined in member server_ny"):
        ask("create gateway-sender", id="ln", remote_distributed_system_id=3)
    assert (
        "skipped"
        in ask("create gateway-sender", id="ln", remote_distributed_system_id=2, if_not_exists="true")["status"]
    )
    ask("destroy gateway-sender", id="ln")
    assert cache.senders == {}
    with pytest.raises(NotFoundError, match="senders there: none"):
        ask("destroy gateway-sender", id="ln")
    ask("destroy gateway-sender", id="ln", if_exists=True)


def test_a_wrong_sender_is_refused_before_the_cache_is_asked(cache, ask):
    for fields in (
        {"remote_distributed_system_id": 1},
        {"remote_distributed_system_id": "x"},
        {"remote_distributed_system_id": 2, "colour": "red"},
    ):
        with pytest.raises(GatewaySenderConfigurationError):
            ask("create gateway-sender", id="ln", **fields)
    assert cache.senders == {}


def test_a_senders_life(cache, ask):
    ask("create gateway-sender", id="ln", remote_distributed_system_id=2)
    assert "already started" in ask("start gateway-sender", id="ln")["status"]
    ask("pause gateway-sender", id="ln")
    assert ask("status gateway-sender", id="ln")["status"] == "Paused"
    assert "already paused" in ask("pause gateway-sender", id="ln")["status"]
    ask("resume gateway-sender", id="ln")
    found = ask("status gateway-sender", id="ln")
    assert (found["status"], found["queue_size"], found["lag"]["cause"]) == ("Running and Connected", 3, "link down")
    ask("stop gateway-sender", id="ln")
    with pytest.raises(IllegalStateError, match="not running"):
        ask("pause gateway-sender", id="ln")
    # Stopping twice is no error, as in Geode.
    assert "is not running on" in ask("stop gateway-sender", id="ln")["status"]
    assert ask("list parked-events", id="ln")["events"] == [{"key": b"k", "reason": "no region"}]
    assert ask("replay parked-events", id="ln")["replayed"] == ask("drop parked-events", id="ln")["dropped"] == 1


def test_a_receivers_life(cache, ask):
    with pytest.raises(NotFoundError, match="create one first"):
        ask("status gateway-receiver")
    assert ask("create gateway-receiver", start_port="6000", end_port="6001")["port"] == 6000
    with pytest.raises(IllegalStateError, match="has a gateway receiver already"):
        ask("create gateway-receiver")
    ask("create gateway-receiver", if_not_exists="true")
    ask("stop gateway-receiver")
    assert ask("status gateway-receiver")["status"] == "Not running"
    ask("start gateway-receiver")
    assert ask("list gateways")["receivers"][0]["connected_senders"] == ["server_ln"]
    ask("destroy gateway-receiver")
    assert cache.receiving.receiver is None


def test_regions_and_their_data(cache, ask):
    ask("create region", name="/data", type="replicate", gateway_sender_ids="ln,tk")
    assert ask("list regions")["regions"] == [
        {
            "name": "data",
            "type": "REPLICATE",
            "size": 0,
            "gateway_sender_ids": ["ln", "tk"],
            "async_event_queue_ids": [],
        }
    ]
    ask("alter region", name="data", gateway_sender_ids="")
    assert cache.regions["data"].gateway_sender_ids == ()
    with pytest.raises(ConfigurationError, match="nothing to alter"):
        ask("alter region", name="data")
    for name in "abc":
        assert ask("put", region="/data", key=name, value={"n": name})["done"]
    assert not ask("put", region="data", key="a", value=1, if_not_exists=True)["done"]
    assert ask("get", region="data", key="a") == {
        "member": "server_ny",
        "found": True,
        "value": {"n": "a"},
        "value_type": "dict",
    }
    assert ask("get", region="data", key="z")["found"] is False
    assert ask("query size", region="data")["size"] == 3
    assert ask("scan region", region="data", limit=2) == {"member": "server_ny", "next": 2, "entries": b"ab"}
    assert ask("scan region", region="data", cursor=2)["next"] is None
    assert ask("remove", region="data", key="a")["done"] and not ask("remove", region="data", key="a")["done"]
    assert ask("remove", region="data", all="true")["count"] == 2
    ask("destroy region", name="data")
    with pytest.raises(RegionNotFoundError, match="regions there: none"):
        ask("describe region", name="data")


def test_a_request_that_is_not_known_or_not_whole_says_so(ask):
    for request, words in (
        (("dance", {}), "it has alter async-event-queue, alter gateway-sender"),
        (("get", {"region": "data"}), "'key' is required"),
        (("get", {"region": "data", "key": 1, "colour": 2}), "no option 'colour'"),
        ((None, {}), "no operation None"),
    ):
        with pytest.raises((NotFoundError, ConfigurationError), match=words):
            ask(request[0], **request[1])
    with pytest.raises(ConfigurationError, match="own_distributed_system_id"):
        ask("create gateway-sender", id="ln", remote_distributed_system_id=2, own_distributed_system_id=7)


def test_a_member_that_joins_later_is_brought_up_to_date(cache):
    things = [
        {"kind": "gateway-sender", "name": "ln", "attributes": {"remote_distributed_system_id": 2}},
        {"kind": "region", "name": "data", "attributes": {"type": "PARTITION", "gateway_sender_ids": ["ln"]}},
        {"kind": "gateway-receiver", "name": "", "attributes": {"start_port": 6000, "end_port": 6001}},
    ]
    service = ManagementService(cache)
    # As at a second join: what is there stays.
    assert service.apply_configuration(things) == service.apply_configuration(things) == []
    assert cache.regions["data"].gateway_sender_ids == ("ln",) and cache.receiving.receiver.port == 6000


def test_what_cannot_be_made_is_told_by_name_and_the_rest_is_there(cache):
    cache.create_region(RegionAttributes.make("data", type="REPLICATE"))
    things = [
        {"kind": "gateway-sender", "name": "tk", "attributes": {"remote_distributed_system_id": 3, "batch_size": 0}},
        "nothing",
        {"kind": "region", "name": 5},
        {"kind": "region", "name": "data", "attributes": {"type": "PARTITION"}},
        {"kind": ["moon"], "name": "x", "attributes": {}},
        {"kind": "region", "name": "twice", "attributes": {"name": "other"}},
        {"kind": "region", "name": "more", "attributes": {"type": "LOCAL"}},
    ]
    problems = ManagementService(cache).apply_configuration(things)
    for problem, words in zip(
        problems,
        (
            ["gateway-sender tk was not made", "batch_size: 0"],
            ["nothing"],
            ["no thing"],
            ["region data", "type 'REPLICATE' and not 'PARTITION'"],
            ["moon"],
            ["region twice"],
        ),
        strict=True,
    ):
        assert all(word in problem for word in words), problem
    assert cache.regions["data"].type == "REPLICATE" and cache.regions["more"].type == "LOCAL"


def test_answers_are_plain_and_travel_over_a_control_connection(cache):
    service = ManagementService(cache)
    with (
        ControlServer("127.0.0.1", 0, service.handle, name="member") as server,
        ControlClient((server.host, server.port)) as client,
    ):
        assert client.call("status member")["when"] == "namespace(a=1)"
        client.call("create region", name="data", type="PARTITION")
        with pytest.raises(IllegalStateError, match="exists already"):
            client.call("create region", name="data", type="PARTITION")
        assert not cache.shutdown_requested.is_set()
        client.call("stop member")
        assert cache.shutdown_requested.wait(LIMIT_S)


def test_what_is_not_plain_becomes_text():
    assert to_plain_value({1: (1, 2**70, {"x": SimpleNamespace()})}) == {"1": [1, str(2**70), {"x": "namespace()"}]}
    deep = nested = []
    for _ in range(63):
        nested.append([])
        nested = nested[0]
    shown = to_plain_value(deep)
    for _ in range(PLAIN_DEPTH):
        shown = shown[0]
    assert shown == repr(eval("[" * (64 - PLAIN_DEPTH) + "]" * (64 - PLAIN_DEPTH)))


def test_a_list_of_many_shows_the_beginning_of_what_is_long():
    assert [shown_value(each) for each in ("k", b"k", None, 5, 1.5, (1, [2]))] == ["k", b"k", None, 5, 1.5, [1, [2]]]
    for long in ("x" * 10_000, b"x" * 10_000, ["x" * 10_000], 2**100_000):
        assert len(shown_value(long)) < 300


class NoWords:
    def __repr__(self):
        raise ValueError("no words")


def test_values_that_cannot_be_printed_are_shown_and_hide_no_other(two_sites, network):
    """An operator sees every parked event, whatever one of them is."""
    pywan.register_serializer(NoWords, lambda _: b"", lambda _: NoWords(), name="no words")
    ny, ln = two_sites
    ln.cache.destroy_region("data")
    values = {
        "odd": NoWords(),
        "inside": [NoWords()],
        "digits": 2**20_000,
        "deep": eval("[" * 64 + "]" * 64),
        "long": "x" * 20_000_000,
        "plain": 1,
    }
    ny.data.put_all(values)
    ny.data[2**8000] = 2
    network.settle()
    site = ny.locator.address
    events = did(site, "list parked-events --id=ln")["members"][0]["events"]
    assert {event["key"] for event in events} >= values.keys() and len(events) == 7
    for key in values.keys() - {"long"}:
        assert did(site, f"get --region=data --key={key}")["found"]
    assert did(site, "get --region=data --key=plain")["value"] == 1


def did(site, line):
    out = io.StringIO()
    assert Session(COMMANDS, Output(True, out, out), str(site)).run_line(line), out.getvalue()
    return json.loads(out.getvalue())["data"]


def test_a_senders_status_has_geodes_words():
    states = [
        SenderStatus(True, False, True, ReceiverEnds.running_words),
        SenderStatus(True, False, False, ReceiverEnds.running_words),
        SenderStatus(True, True, True, ReceiverEnds.running_words),
        SenderStatus(False, False, False, ReceiverEnds.running_words),
    ]
    assert [state.text for state in states] == [
        "Running and Connected",
        "Running, not Connected",
        "Paused",
        "Not running",
    ]


def test_a_gateway_sender_that_is_not_there_is_noted(ask):
    assert "no gateway sender nope" in ask("create region", name="data", gateway_sender_ids="nope")["status"]
    ask("create gateway-sender", id="ln", remote_distributed_system_id=2)
    assert (
        "no gateway sender nope, no gateway sender nor"
        in ask("alter region", name="data", gateway_sender_ids="ln,nope,nor")["status"]
    )
    assert "note" not in ask("alter region", name="data", gateway_sender_ids="ln")["status"]


@pytest.mark.parametrize(
    "name, about", commands_of(ManagementService).items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_options_of_a_command_are_what_its_method_takes(name, about):
    """A command that is added later too: its decorator and its method stand together."""
    method = getattr(ManagementService, "on_" + name.replace("-", "_").replace(" ", "_"))
    parameters = inspect.signature(method).parameters.values()
    taken = {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    takes_attributes = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    given = {option.key: option.required for option in about.options if not option.hidden}
    assert takes_attributes or set(given) == set(taken) - {"self"}
    assert {key for key, required in taken.items() if required} - {"self"} <= {
        key for key, required in given.items() if required
    }
    assert about.help and about.group in {command.group for command in COMMANDS}
