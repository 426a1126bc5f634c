"""Several receivers of a site, each in a process of its own: how the dispatchers of a sender are spread over them, keep
theirs, leave one that is gone, and come back into balance."""

from __future__ import annotations

import io
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pywan
from pywan import _core
from pywan.base.addresses import Address
from pywan.cli.commands import COMMANDS
from pywan.cli.output import Output
from pywan.cli.session import Session
from pywan.config import attributes as config
from pywan.errors import GatewaySenderConfigurationError, GatewaySenderError, ProtocolError
from pywan.gateway.remote import RemoteReceivers
from pywan.gateway.remote_site import RemoteSite
from pywan.protocol.gateway import SenderHello, Welcome, decode, encode
from pywan.testing.fault_proxy import TO_CLIENT, FaultProxy
from pywan.testing.waiting import LIMIT_S, eventually
from support.receiving_member import ReceivingMember
from support.sites import QUICK, keep_doing

KINDS = pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
KEYS = 40
SLOW_S = 0.003  # For each event. So something is on its way on each connection, at the pace at which events come.


class Alternating(FaultProxy):
    """A balancer: one host and port, behind which receivers take turns. Each of them listens on the same port, at an
    address of its own. `turns` are their numbers.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 1), "127.0.3.1")
        self.turns: Iterator[int] = iter(())

    @staticmethod
    def address_of(number: int) -> str:
        return f"127.0.3.{number + 2}"

    def next_target(self) -> Address:
        return Address(self.address_of(next(self.turns)), self.port)


class Sites:
    """NY with one member in this process, which sends to LN, whose members are processes with receivers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: dict[str, ReceivingMember] = {}
        self.proxy: Alternating | None = None
        self._pause = threading.Event()  # Nobody sets it.
        self.ln = pywan.Locator("locator_ln", distributed_system_id=2, port=0, timings=QUICK).start()
        self.ny = pywan.Locator(
            "locator_ny", distributed_system_id=1, port=0, timings=QUICK, remote_locators=str(self.ln.address)
        ).start()
        eventually(lambda: set(self.ny.known_sites()) == {1, 2})
        self.cache = pywan.Cache("server_ny", locators=str(self.ny.address))

    def start(self, name: str, **receiver: Any) -> ReceivingMember:
        member = self.members[name] = ReceivingMember(name, self.ln.address, self.folder, **receiver)
        eventually(lambda: self.is_known(name), what=f"that the locator knows {name}")
        return member

    def is_known(self, name: str) -> bool:
        return any(member["name"] == name and member["receivers"] for member in self.ln.members())

    def start_behind_proxy(self, *names: str, **receiver: Any) -> list[ReceivingMember]:
        """Members whose receivers are behind one host and port, at which they take turns."""
        proxy = self.proxy = Alternating()
        proxy.start()
        self.take_turns(itertools.cycle(range(len(names))))
        shared = {"start_port": proxy.port, "end_port": proxy.port, "hostname_for_senders": proxy.listen_host}
        return [
            self.start(name, bind_address=proxy.address_of(number), **shared, **receiver)
            for number, name in enumerate(names)
        ]

    def take_turns(self, turns: Iterator[int]) -> None:
        self.proxy.turns = turns

    def send(self, id: str = "ln", **attributes: Any) -> Any:
        """A sender to LN, with the region "data"."""
        wanted = {"batch_time_interval": 5, "retry_interval_ms": 50, **attributes}
        sender = self.cache.create_gateway_sender(id, remote_distributed_system_id=2, **wanted)
        if "data" not in self.cache.regions():
            self.data = self.cache.create_region("data", type="PARTITION", gateway_sender_ids=[id])
        return sender

    def put(self, n: int) -> None:
        """Puts one of a row of events that come at a pace which leaves the machine time for other things."""
        self.data[n % KEYS] = n
        self._pause.wait(0.001)

    def settle(self, sender: Any) -> None:
        eventually(lambda: len(sender._core.queue) == 0, what="an empty queue")
        sender.ledger()

    def histories(self) -> list[tuple[int, Any, Any]]:
        """The events of all members that run, in the order in which they were applied."""
        return sorted(event for member in self.members.values() if member.is_running for event in member.history)

    def command(self, locator: pywan.Locator, line: str) -> dict[str, Any]:
        out = io.StringIO()
        assert Session(COMMANDS, Output(True, out, out), str(locator.address)).run_line(line), out.getvalue()
        return json.loads(out.getvalue().splitlines()[-1])["data"]

    def close(self) -> None:
        self.cache.close()
        if self.proxy is not None:
            self.proxy.stop()
        for member in self.members.values():
            member.kill()
        self.ny.stop()
        self.ln.stop()


@pytest.fixture
def sites(tmp_path):
    made = Sites(tmp_path)
    try:
        yield made
    finally:
        made.close()


def at(sender: Any) -> dict[str, int]:
    """How many dispatchers are at each member, as the sender says. All are connected."""
    members = [each["member"] for each in sender.receivers]
    return {} if None in members else dict(Counter(members))


def loads(sites: Sites) -> dict[str, int]:
    """The loads of the receivers, as the locator knows them."""
    return {each["member"]: each["load"] for each in sites.command(sites.ln, "list gateways")["receivers"]}


# Spread, and left


@KINDS
def test_dispatchers_are_spread_evenly_and_leave_a_receiver_that_dies_and_come_back(sites, parallel):
    """5 dispatchers over 2 receivers; one is killed while events flow, starts again, and gets its share when it is
    asked for."""
    for name in ("one", "two"):
        sites.start(name)
    sender = sites.send(parallel=parallel, dispatcher_threads=5)
    eventually(lambda: sorted(at(sender).values()) == [2, 3], what="3 dispatchers here and 2 there")
    assert {name: member.connections for name, member in sites.members.items()} == at(sender)
    with keep_doing(sites.put) as done:
        eventually(lambda: len(done) > 200)
        sites.members["one"].kill()
        died = time.monotonic()
        eventually(lambda: at(sender) == {"two": 5}, what="that all dispatchers are at the receiver that lives")
        print(f"all at the other one {time.monotonic() - died:.2f} s after the kill")
        sites.start("one")
        count = len(done)
        eventually(lambda: len(done) > count + 200)
        assert at(sender) == {"two": 5}  # A dispatcher keeps its receiver.
        assert sender.load_balance() == {"connections": 5, "moved": 2, "busy": 0}
        assert sorted(at(sender).items()) == [("one", 2), ("two", 3)]
        assert sender.load_balance() == {"connections": 5, "moved": 0, "busy": 0}
    sites.settle(sender)
    newest: dict[Any, Any] = {}
    for _, key, value in sites.histories():
        newest[key] = max(value, newest.get(key, -1))
    assert newest == dict(sites.data)


@KINDS
def test_connections_leave_a_receiver_that_is_stopped_long_before_its_receive_timeout_is_over(sites, parallel):
    """SIGSTOP: its kernel goes on to take bytes and connections."""
    for name in ("one", "two"):
        sites.start(name)
    sender = sites.send(parallel=parallel, dispatcher_threads=4, socket_read_timeout=20 * 60_000)
    eventually(lambda: sorted(at(sender).values()) == [2, 2], what="2 dispatchers here and 2 there")
    sites.members["one"].stop()
    with keep_doing(sites.put):
        stopped = time.monotonic()
        eventually(lambda: at(sender) == {"two": 4}, what="that all dispatchers are at the receiver that works")
        print(f"all at the other one {time.monotonic() - stopped:.2f} s after the stop")
        other = sites.send("late", parallel=parallel, dispatcher_threads=2)
        eventually(lambda: at(other) == {"two": 2}, what="that a sender that starts now is there too")
    sites.settle(sender)


@pytest.mark.parametrize("names", [("one",), ("one", "two")], ids=["alone", "beside another one"])
def test_a_receiver_stays_that_works_long_on_an_event_or_is_the_only_one(sites, names):
    """It is asked over a connection of its own, and answers; or nobody else does."""
    for name in names:
        sites.start(name, takes_s=5.0)
    sender = sites.send()
    eventually(lambda: at(sender))
    before = at(sender)
    if len(names) == 1:
        sites.members["one"].stop()
    asked: list[bool] = []
    why_silent = sender._core.dispatchers.ends.why_silent

    def note(*arguments: Any) -> str | None:
        reason = why_silent(*arguments)
        asked.append(reason is None)
        return reason

    sender._core.dispatchers.ends.why_silent = note
    sites.put(0)
    eventually(lambda: len(asked) >= 2, what="that the receiver was asked twice")
    assert asked == [len(names) == 2] * len(asked)
    assert at(sender) == before and sender.stats["batches_redistributed"] == 0
    if len(names) == 1:
        sites.members["one"].go_on()
    sites.settle(sender)


@KINDS
@pytest.mark.nightly
def test_nothing_is_lost_repeated_or_overtaken_while_connections_move(sites, parallel):
    """Two more receivers come, one after the other, while events flow. There are always some on their way."""
    sites.start("one", takes_s=SLOW_S)
    sender = sites.send(parallel=parallel, dispatcher_threads=6, batch_size=20)
    eventually(lambda: at(sender) == {"one": 6})
    with keep_doing(sites.put) as done:
        eventually(lambda: len(done) > 200)
        sites.start("two", takes_s=SLOW_S)
        assert sender.load_balance()["moved"] == 3 and at(sender) == {"one": 3, "two": 3}
        sites.start("three", takes_s=SLOW_S)
        assert sender.load_balance()["moved"] == 2 and sorted(at(sender).values()) == [2, 2, 2]
        count = len(done)
        eventually(lambda: len(done) > count + 200)
    sites.settle(sender)
    of_key: dict[Any, list[Any]] = {}
    for _, key, value in sites.histories():
        of_key.setdefault(key, []).append(value)
    assert of_key == {key: list(range(key, len(done), KEYS)) for key in range(KEYS)}
    assert sender.stats["batches_redistributed"] == 0


def test_a_receiver_that_stops_is_left_at_once_and_one_that_starts_is_known_at_once(sites):
    one, two = sites.start("one"), sites.start("two")
    sender = sites.send(dispatcher_threads=4)
    eventually(lambda: at(sender) == {"one": 2, "two": 2})
    one.ask("stop_receiver")
    eventually(lambda: at(sender) == {"two": 4}, timeout=LIMIT_S)
    eventually(lambda: loads(sites).get("one") is None and two.connections == 4)
    one.ask("start_receiver")
    eventually(lambda: loads(sites) == {"one": 0, "two": 4})
    assert sender.load_balance()["moved"] == 2 and at(sender) == {"one": 2, "two": 2}


def test_a_dispatcher_whose_connection_breaks_comes_back_to_its_receiver(sites):
    """The receiver is the more loaded one."""
    with FaultProxy(("127.0.0.1", 1), "127.0.3.9") as proxy:
        proxy.target = Address("127.0.0.1", proxy.port)
        sites.start("one", start_port=proxy.port, end_port=proxy.port, hostname_for_senders=proxy.listen_host)
        sender = sites.send(dispatcher_threads=3)
        eventually(lambda: at(sender) == {"one": 3})
        sites.start("two")
        accepted = proxy.statistics()["accepted"]
        proxy.cut_after_bytes(TO_CLIENT, 0)
        sites.data.put_all((n, n) for n in range(100))
        eventually(lambda: proxy.statistics()["accepted"] > accepted)
        sites.settle(sender)
        eventually(lambda: at(sender) == {"one": 3})


def test_two_senders_count_for_each_other(sites):
    """Only as many connections move as even the receivers out, whosever they are."""
    sites.start("one")
    first, second = sites.send("first", dispatcher_threads=5), sites.send("second", dispatcher_threads=3)
    eventually(lambda: at(first) == {"one": 5} and at(second) == {"one": 3})
    sites.start("two")
    assert first.load_balance()["moved"] == 4 and at(first) == {"one": 1, "two": 4}
    assert second.load_balance()["moved"] == 0 and at(second) == {"one": 3}


def test_a_connection_whose_receiver_does_not_acknowledge_stays_where_it_is(sites, monkeypatch):
    monkeypatch.setattr("pywan.gateway.balance.LEAVE_S", 0.3)
    one = sites.start("one")
    sender = sites.send(dispatcher_threads=2)
    eventually(lambda: at(sender) == {"one": 2})
    sites.start("two")
    one.stop()
    for n in range(KEYS):
        sites.data[n] = n
    eventually(lambda: all(flow["batches_in_flight"] for flow in sender._core.flows()))
    assert sender.load_balance() == {"connections": 2, "moved": 0, "busy": 1}
    one.go_on()
    sites.settle(sender)
    assert at(sender) == {"one": 2} and len(sites.histories()) == KEYS
    # The locator expects the connection for some seconds more.
    eventually(lambda: sender.load_balance()["moved"] == 1)
    assert at(sender) == {"one": 1, "two": 1}
    sites.data["after"] = 1
    sites.settle(sender)


def test_balancing_needs_a_sender_that_runs_and_a_locator_that_answers(sites):
    sites.start("one")
    sender = sites.send(dispatcher_threads=2)
    eventually(lambda: at(sender) == {"one": 2})
    sites.ln.stop()
    with pytest.raises(pywan.NoLocatorError, match="no locator of site 2 answers"):
        sender.load_balance()
    assert at(sender) == {"one": 2}
    sender.stop()
    with pytest.raises(GatewaySenderError, match="does not run"):
        sender.load_balance()


def test_the_commands_tell_where_each_dispatcher_is_and_balance(sites):
    sites.start("one")
    sender = sites.send(dispatcher_threads=2)
    eventually(lambda: at(sender) == {"one": 2})
    sites.start("two")
    replies = sites.command(sites.ny, "load-balance gateway-sender --id=ln")["members"]
    assert [reply["status"] for reply in replies] == [
        "GatewaySender ln is rebalanced on member server_ny: 1 of 2 connections moved"
    ]
    [status] = sites.command(sites.ny, "status gateway-sender --id=ln")["members"]
    assert sorted(each["member"] for each in status["receivers"]) == ["one", "two"]
    ports = {name: f"127.0.0.1:{member.port}" for name, member in sites.members.items()}
    assert all(each["receiver"] == ports[each["member"]] for each in status["receivers"])
    assert loads(sites) == {"one": 1, "two": 1}


# Behind one host and port


@pytest.fixture
def quick_to_give_up(monkeypatch):
    monkeypatch.setattr(config, "MIN_SOCKET_READ_TIMEOUT_MS", 300)


@pytest.mark.nightly
def test_behind_one_port_each_dispatcher_may_be_at_another_receiver_which_lives_by_itself(sites, quick_to_give_up):
    """Each of them hears pings often enough. One that hangs is left, and the connections to the other one stay."""
    one, two = sites.start_behind_proxy("one", "two", maximum_time_between_pings=600)
    sender = sites.send(dispatcher_threads=4, socket_read_timeout=1000)
    eventually(lambda: at(sender) == {"one": 2, "two": 2})
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 3 * 0.6)  # Several times as long as a silence may be.
    kept = [each for each in sender._core.dispatchers if each.end_open.place.name == "two"]
    before = [each.end_open for each in kept]
    assert sites.proxy.statistics()["accepted"] == 4
    one.stop()
    eventually(lambda: at(sender) == {"two": 4}, what="that all are at the receiver that lives")
    assert [each.end_open for each in kept] == before and two.connections == 4


@pytest.mark.parametrize("threads", [2, 5])
def test_all_dispatchers_meet_one_receiver_where_that_is_enforced(sites, threads):
    """Three receivers take turns behind one port. The one where all are is killed: all go to another one together."""
    sites.start_behind_proxy("one", "two", "three")
    sender = sites.send(dispatcher_threads=threads, enforce_threads_connect_same_receiver=True)
    eventually(lambda: list(at(sender).values()) == [threads])
    [first] = at(sender)
    assert {name: member.connections for name, member in sites.members.items() if member.connections} == {
        first: threads
    }
    # The others were met, and only said who they are: nothing waits for events of the sender there.
    assert sites.proxy.statistics()["accepted"] > threads
    assert [name for name, member in sites.members.items() if member.ask("sources")] == [first]
    for n in range(KEYS):
        sites.data[n] = n
    sites.settle(sender)
    assert len(sites.members[first].history) == KEYS
    sites.members[first].kill()
    left = [n for n, name in enumerate(sites.members) if name != first]
    sites.take_turns(itertools.cycle(left))
    eventually(lambda: list(at(sender).values()) == [threads] and first not in at(sender))
    for n in range(KEYS):
        sites.data[n] = -n
    sites.settle(sender)
    assert len(sites.histories()) == KEYS


def test_the_second_attempt_is_enough_if_it_meets_the_right_receiver(sites):
    sites.start_behind_proxy("one", "two")
    sites.take_turns(iter([0, 1, 0]))
    sender = sites.send(dispatcher_threads=2, enforce_threads_connect_same_receiver=True)
    eventually(lambda: at(sender) == {"one": 2})
    assert sites.proxy.statistics()["accepted"] == 3


@pytest.mark.nightly
def test_a_dispatcher_that_never_meets_the_right_receiver_says_so_after_ten_attempts(sites, caplog):
    """It tries again later, and the events of the others flow."""
    sites.start_behind_proxy("one", "two")
    sites.take_turns(itertools.chain([0], itertools.repeat(1)))
    sender = sites.send(dispatcher_threads=2, enforce_threads_connect_same_receiver=True, retry_interval_ms=1000)
    words = (
        "has to be at the receiver of one, as the others are, and did not meet it in 10 attempts at"
        f" 127.0.3.1:{sites.proxy.port}: there it met two (enforce-threads-connect-same-receiver)"
    )
    eventually(lambda: words in caplog.text)
    assert sorted(str(each["member"]) for each in sender.receivers) == ["None", "one"]
    for n in range(KEYS):
        sites.data[n] = n
    eventually(lambda: sender.lag()["cause"].startswith("link down: dispatcher "))
    sites.take_turns(itertools.repeat(0))
    eventually(lambda: at(sender) == {"one": 2})
    sites.settle(sender)
    assert len(sites.histories()) == KEYS


def test_bound_dispatchers_move_together_or_not_at_all(sites):
    sites.start("one", takes_s=SLOW_S)
    first = sites.send("first", dispatcher_threads=4, enforce_threads_connect_same_receiver=True)
    second = sites.send("second", dispatcher_threads=2, enforce_threads_connect_same_receiver=True)
    eventually(lambda: at(first) == {"one": 4} and at(second) == {"one": 2})
    sites.start("two")
    with keep_doing(sites.put) as done:
        eventually(lambda: len(done) > 100)
        assert first.load_balance()["moved"] == 4 and at(first) == {"two": 4}
        assert second.load_balance()["moved"] == 0 and at(second) == {"one": 2}  # With it there would be six.
    sites.settle(first)
    assert first.stats["batches_redistributed"] == 0


class Told:
    """What the locators tell of the other site."""

    def __init__(self, *receivers: dict[str, Any]) -> None:
        self.receivers = receivers

    def find_receiver(self, site: int, exclude: Any = (), **more: Any) -> dict[str, Any] | None:
        return next((each for each in self.receivers if each["member_id"] not in exclude), None)

    def unreachable_locators(self, site: int) -> dict[Address, str]:
        return {}

    def remote_locators(self, site: int) -> list[Address]:
        return []


def test_nobody_is_avoided_because_another_one_behind_the_same_port_is_unresponsive():
    """Where nobody answers, it is not known who that was; unless somebody is known to be there alone."""
    told = Told(
        *({"host": "h", "port": 5000, "member": name, "member_id": id} for id, name in enumerate(("one", "two"))),
        {"host": "h", "port": 5001, "member": "three", "member_id": 2},
    )
    receivers = RemoteReceivers(RemoteSite(told, 2))
    first = receivers.find(0)
    met = receivers.met(0, first, 1, "two")
    assert (first.name, met.name, str(met)) == ("one", "two", "h:5000")
    receivers.avoid_unmet(first, "nobody")
    assert receivers.find(1).name == "one"
    receivers.avoid(met)  # It was met, and then fell silent.
    told.receivers = told.receivers[1:]
    third = receivers.find(1)
    assert third.name == "three"
    receivers.avoid_unmet(third, "nobody")
    told.receivers += ({"host": "h", "port": 5002, "member": "four", "member_id": 3},)
    assert receivers.find(1).name == "four"


def test_binding_a_parallel_sender_is_refused():
    with pytest.raises(GatewaySenderConfigurationError, match="for serial senders only"):
        config.SenderAttributes.make(
            "ln", remote_distributed_system_id=2, parallel=True, enforce_threads_connect_same_receiver=True
        )


# What comes from another process


@pytest.mark.parametrize("wanted", [-1, 2**32, "one", 1.0, True])
def test_the_wanted_member_of_an_opening_is_checked(wanted):
    hello = SenderHello(1, 2, "m", "s", 0, 7, 9, 1, wanted)
    with pytest.raises(ProtocolError, match="wanted_member"):
        decode(encode(hello, _core.FRAME_HELLO), SenderHello)


@pytest.mark.parametrize("member_id", [-1, 2**32, "one"])
def test_the_member_of_a_welcome_is_checked(member_id):
    welcome = Welcome(1, "m", 1, 1, member_id=member_id)
    with pytest.raises(ProtocolError, match="member_id"):
        decode(encode(welcome, _core.FRAME_WELCOME), Welcome)
