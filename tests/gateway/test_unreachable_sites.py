"""What senders cost whose remote site cannot be reached, and how soon they notice that it can."""

import threading
import time

import pytest

import pywan
from pywan.errors import IllegalStateError
from pywan.gateway import remote_site
from pywan.gateway.remote_site import RemoteSite, RemoteSites
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlServer

SENDERS = 20
RETRY_S = 0.25
AT_REST = {"retry_interval_ms": int(RETRY_S * 1000), "dispatcher_threads": 5}


def threads_by_name() -> list[str]:
    return [each.name for each in threading.enumerate()]


@pytest.fixture
def patient(monkeypatch):
    """No prober asks by itself: something has to wake it."""
    monkeypatch.setattr(remote_site, "FIRST_PROBE_S", 600.0)
    monkeypatch.setattr(remote_site, "LONGEST_PROBE_S", 600.0)


def test_one_question_at_a_time_is_asked_for_all_senders_of_a_site(network):
    ny, ln = network.add("ny ln")
    port = ln.locator.port
    ln.locator.stop()
    asked: list[float] = []

    def answer(request, peer):
        if request["op"] in ("receiver", "receivers"):
            asked.append(time.monotonic())
        return {"receiver": None, "receivers": []}

    stand_in = ControlServer("127.0.0.1", port, answer, name="stand-in").start()
    try:
        senders = [ny.send_to(ln, f"s{n}", **AT_REST) for n in range(SENDERS)]
        # After a start the pauses grow, up to the retry interval.
        eventually(lambda: len(asked) > 2 and asked[-1] - asked[-2] > 0.9 * RETRY_S * (1 - remote_site.JITTER))
        first = len(asked)
        eventually(lambda: len(asked) >= first + 8)
        assert asked[first + 7] - asked[first - 1] > 7 * RETRY_S * (1 - remote_site.JITTER)
        for sender in senders:
            assert sender.is_running and not sender.is_connected
        ny.region(type="REPLICATE")["k"] = 1
        cause = f"link down: no receiver of site 2 is known to its locators 127.0.0.1[{port}]"
        assert {sender.lag()["cause"] for sender in senders} == {cause}
    finally:
        stand_in.stop()


@pytest.mark.parametrize("sites", [1, SENDERS])
def test_a_sender_at_rest_has_two_threads_at_most(network, sites):
    """Twenty senders of five dispatchers, to one site or to twenty, none of which is there."""
    ny = network.site("ny")
    ny.send_to("tk")  # The first sender of a member begins threads that all of them share.
    eventually(lambda: "remote site 3" in threads_by_name())
    before = len(threads_by_name())
    for n in range(SENDERS):
        ny.send_to("tk", f"s{n}", **AT_REST, remote_distributed_system_id=100 + n % sites)
    eventually(
        lambda: len(threads_by_name()) - before <= SENDERS + sites <= 2 * SENDERS,
        what=f"one thread a sender, and one a site: {threads_by_name()}",
    )
    assert sum(name.startswith("remote site 1") for name in threads_by_name()) == sites


def test_the_locators_of_the_own_site_are_not_asked_by_each_sender(network):
    """Heartbeats, which go over a connection that stays, bring the list of sites."""
    ny = network.site("ny")
    with FaultProxy(ny.locator.address) as proxy:
        cache = pywan.Cache("second", locators=str(proxy.address))
        connections = proxy.statistics()["accepted"]
        senders = [
            cache.create_gateway_sender(f"s{n}", remote_distributed_system_id=100 + n, **AT_REST)
            for n in range(SENDERS)
        ]
        cache.create_region("data", type="REPLICATE", gateway_sender_ids=[each.id for each in senders])["k"] = 1
        eventually(lambda: all("is not known to this site's locators" in each.lag()["cause"] for each in senders))
        enough = time.monotonic() + 4 * RETRY_S
        eventually(lambda: time.monotonic() > enough, what="the time in which each sender tries four times")
        assert proxy.statistics()["accepted"] - connections < SENDERS
        cache.close()


@pytest.mark.parametrize("how", ["another sender starts", "it is stopped and started", "it is altered", "a command"])
def test_an_answer_that_is_needed_now_is_asked_for_at_once(network, patient, how):
    ny, ln = network.add("ny ln")
    sender = ny.send_to(ln, retry_interval_ms=600_000, dispatcher_threads=3)
    ny.region()["k"] = 1
    eventually(lambda: "no receiver of site 2" in sender.lag()["cause"])
    ln.receive()
    eventually(lambda: any(each["receivers"] for each in ln.locator.members()), what="that the locator knows it")
    if how == "another sender starts":
        ny.send_to(ln, "other")
    elif how == "it is stopped and started":
        sender.stop()
        sender.start()
    elif how == "it is altered":
        sender.alter(batch_size=7)
    else:
        sender.load_balance()
    eventually(lambda: None not in [each["member"] for each in sender.receivers], what="all three dispatchers there")


def test_all_dispatchers_of_all_senders_come_back_with_their_site(network):
    ny, ln = network.add("ny ln")
    senders = [
        ny.send_to(ln, f"s{n}", parallel=bool(n % 2), retry_interval_ms=600_000, dispatcher_threads=3) for n in range(4)
    ]
    region, history = ny.region(), ln.region()
    for n in range(30):
        region[n] = n
    eventually(lambda: all(each.lag()["cause"].startswith("link down: no receiver") for each in senders))
    ln.receive()
    eventually(lambda: all(None not in [at["member"] for at in each.receivers] for each in senders))
    network.settle()
    assert len(history) == 30


class Reached:
    """A site whose locators know receivers, and what was asked."""

    def __init__(self, *ports: int) -> None:
        self.told = [{"host": "h", "port": port, "member": f"m{n}", "member_id": n} for n, port in enumerate(ports)]
        self.asked = 0

    def receivers(self, site, **_):
        self.asked += 1
        return self.told

    def remote_locators(self, site, **_):
        return []

    def unreachable_locators(self, site):
        return {}


class Sender:
    """A sender that waits for a site. `silent`: the ports where nobody answers."""

    def __init__(self, site: RemoteSite, *silent: int, retry_s: float = 0.01) -> None:
        self.silent, self.longest_retry_s = silent, retry_s
        self.told: list[str] = []
        self.asked: list[int] = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=site.wait, args=(self, self.stopping, self.told.append))
        self.thread.start()

    def why_silent(self, place, index, limit_s):
        self.asked.append(place.port)
        return f"nobody at {place}" if place.port in self.silent else None


def refused(site: RemoteSite, *ports: int) -> None:
    for port in ports:
        site.note_refused(remote_site.ReceiverPlace("h", port, port, str(port)), f"refused {port}")


@pytest.mark.usefixtures("no_thread_left")
def test_receivers_where_nobody_answered_are_asked_once_for_all_senders():
    other_sites = Reached(1, 2)
    site = RemoteSites(other_sites).site(2)
    refused(site, 1, 2)
    senders = [Sender(site, 1, 2) for _ in range(3)]
    eventually(lambda: all(each.told[-1:] == ["nobody at h:1"] for each in senders))
    assert all(each.told[0] in ("refused 2", "nobody at h:1") for each in senders)
    asked = sum(len(each.asked) for each in senders)
    assert asked <= 2 * other_sites.asked
    for each in senders:
        each.silent = (1,)
    for each in senders:
        each.thread.join(LIMIT_S)
        assert not each.thread.is_alive()
    assert site.reason is None
    site.join(LIMIT_S)


@pytest.mark.usefixtures("no_thread_left")
def test_a_receiver_that_nobody_tried_makes_a_site_reachable():
    site = RemoteSite(Reached(1, 2), 2)
    refused(site, 1)
    sender = Sender(site, 1, 2)
    sender.thread.join(LIMIT_S)
    assert site.reason is None and sender.asked == []
    site.join(LIMIT_S)


@pytest.mark.usefixtures("no_thread_left")
def test_an_address_with_several_receivers_behind_it_is_left_to_the_dispatchers():
    """One of the receivers answers nothing. A probe would take the turn of the other one, again and again."""
    site = RemoteSite(Reached(1, 1), 2)
    refused(site, 1)
    sender = Sender(site, 1)
    sender.thread.join(LIMIT_S)
    assert site.reason is None and sender.asked == []
    refused(site, 1)
    assert site.reason is None
    site.join(LIMIT_S)


@pytest.mark.usefixtures("no_thread_left")
def test_a_prober_ends_with_the_last_sender_and_a_site_whose_locators_are_learnt_is_asked_at_once(patient):
    other_sites = Reached()
    sites = RemoteSites(other_sites)
    site = sites.site(2)
    site.note_unreachable("away")
    senders = [Sender(site, retry_s=600.0), Sender(site, retry_s=600.0)]
    eventually(lambda: all(each.told == ["away"] for each in senders))
    assert other_sites.asked == 0
    sites.wake([2])
    eventually(lambda: other_sites.asked >= 1)
    for each in senders:
        each.stopping.set()
        site.shut()
        each.thread.join(LIMIT_S)
        assert not each.thread.is_alive()
    site.join(LIMIT_S)


@pytest.mark.usefixtures("no_thread_left")
def test_a_sender_that_is_refused_for_itself_holds_no_other_one_back():
    """The probes are made as one waiting sender after the other."""
    site = RemoteSite(Reached(1), 2)
    refused(site, 1)
    first = Sender(site, 1)
    eventually(lambda: first.asked)
    second = Sender(site)
    for each in (first, second):
        each.thread.join(LIMIT_S)
        assert not each.thread.is_alive()
    assert len(second.asked) == 1 and site.reason is None
    site.join(LIMIT_S)


@pytest.mark.usefixtures("no_thread_left")
def test_a_short_retry_interval_brings_no_flood_of_questions():
    other_sites = Reached()
    site = RemoteSite(other_sites, 2)
    site.note_unreachable("away")
    began = time.monotonic()
    sender = Sender(site, retry_s=0.001)
    eventually(lambda: other_sites.asked >= 6)
    assert time.monotonic() - began >= 5 * remote_site.APART_S
    sender.stopping.set()
    site.shut()
    sender.thread.join(LIMIT_S)
    site.join(LIMIT_S)


def test_a_sender_without_a_thread_for_its_prober_tries_again_after_pauses(network, monkeypatch):
    asked: list[float] = []

    def no_thread(what, name, run, *given):
        asked.append(time.monotonic())
        raise IllegalStateError(f"{what}: the system has no thread now")

    monkeypatch.setattr(remote_site, "start_essential", no_thread)
    ny = network.site("ny")
    sender = ny.send_to("ln", retry_interval_ms=100, dispatcher_threads=1)
    eventually(lambda: len(asked) >= 8)
    assert asked[7] - asked[3] >= 4 * 0.09
    assert "has no thread" in sender.lag()["cause"] or sender.is_running
    monkeypatch.undo()
    eventually(lambda: any(name == "remote site 2" for name in threads_by_name()))
