"""A member's side of discovery, against real locators."""

import threading
import time

import pytest

from pywan.errors import ConfigurationError, IllegalStateError, IncompatibleSystemError, NoLocatorError, ProtocolError
from pywan.protocol.discovery import Timings
from pywan.protocol.members import check_receivers
from pywan.site.locator import Locator
from pywan.site.membership import Membership, new_profile
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlServer, call_once
from support.ports import free_port

QUICK = Timings(ping_ms=200, retry_ms=50, retry_max_ms=200, change_delay_ms=5)
pytestmark = pytest.mark.usefixtures("no_thread_left")


def locator(name, site, *remotes, port=0, locators=""):
    return Locator(
        name,
        distributed_system_id=site,
        port=port,
        timings=QUICK,
        locators=locators,
        remote_locators=",".join(str(r.address) for r in remotes),
    )


def member(name, *locators, **more):
    return Membership(
        ",".join(str(locator.address) for locator in locators),
        new_profile(name, "127.0.0.1", 0),
        heartbeat_s=0.1,
        **more,
    )


@pytest.fixture
def sites():
    with locator("ny", 1) as ny, locator("ln", 2, ny) as ln:
        eventually(lambda: set(ny.known_sites()) == set(ln.known_sites()) == {1, 2})
        yield ny, ln


def test_a_sender_finds_the_least_loaded_receiver_of_another_site(sites):
    ny, ln = sites
    with member("server_ny", ny) as asker, member("ln1", ln) as one, member("ln2", ln) as two:
        assert asker.distributed_system_id == 1
        assert asker.find_receiver(2) is None  # No receiver there yet ...
        assert asker.remote_locators(3) == [] and asker.find_receiver(3) is None  # ... and no such site.
        assert one.update(receivers=[{"host": "127.0.0.1", "port": 5000}], load=5, timeout=LIMIT_S)
        assert two.update(receivers=[{"host": "127.0.0.1", "port": 5000}], load=0, timeout=LIMIT_S)
        assert asker.remote_locators(2) == [ln.address]
        assert asker.find_receiver(2)["member"] == "ln2"
        assert asker.find_receiver(2, exclude=[two.member_id]) == {
            "host": "127.0.0.1",
            "port": 5000,
            "member": "ln1",
            "member_id": one.member_id,
        }
        assert one.update(receivers=[], timeout=LIMIT_S)
        assert asker.find_receiver(2, exclude=[two.member_id]) is None
        assert sorted(s["name"] for s in one.servers()) == ["ln1", "ln2"]
    assert ny.members() == ln.members() == []


def test_a_sender_is_told_where_connections_are_to_move(sites):
    ny, ln = sites
    with member("server_ny", ny) as asker, member("ln1", ln) as one, member("ln2", ln) as two:
        assert one.update(receivers=[{"host": "127.0.0.1", "port": 5000}], load=3, timeout=LIMIT_S)
        assert two.update(receivers=[{"host": "127.0.0.1", "port": 5000}], load=0, timeout=LIMIT_S)
        assert asker.find_receiver(2, keep=one.member_id)["member"] == "ln1"  # Four are there, with this one.
        moves = [asker.less_loaded_receiver(2, one.member_id, 1) for _ in range(3)]
        assert [move and move["member_id"] for move in moves] == [two.member_id, two.member_id, None]
        assert asker.less_loaded_receiver(2, one.member_id, 1, exclude=[two.member_id]) is None
        told = check_receivers(call_once(ln.address, "receivers"))
        assert [(each["member"], each["load"]) for each in told] == [("ln1", 2), ("ln2", 2)]
        with pytest.raises(ConfigurationError, match="connections is a number from 1"):
            call_once(ln.address, "receiver", instead_of=one.member_id, connections=0)
        ln.stop()
        with pytest.raises(NoLocatorError, match="no locator of site 2 answers"):
            asker.less_loaded_receiver(2, one.member_id, 1)


@pytest.mark.parametrize(
    "receivers",
    [None, {}, [1], [{}], [{"host": "h", "port": 1, "member": "m", "member_id": 1, "load": -1}]],
)
def test_a_list_of_receivers_is_checked(receivers):
    with pytest.raises(ProtocolError):
        check_receivers({"receivers": receivers})


def test_a_locator_that_comes_back_has_its_members_back(sites):
    ny, _ = sites
    back = threading.Event()
    with member("server_ny", ny, on_reconnect=lambda address: back.set()) as server:
        server.update(receivers=[{"host": "127.0.0.1", "port": 5001}], timeout=LIMIT_S)
        ny.stop()
        eventually(lambda: not server.is_connected)
        with locator("ny", 1, port=ny.port) as again:
            assert back.wait(LIMIT_S)
            assert [m["receivers"] for m in again.members()] == [[{"host": "127.0.0.1", "port": 5001}]]


def test_remote_receivers_are_found_while_the_own_locator_is_away(sites):
    ny, ln = sites
    with member("server_ny", ny) as asker, member("server_ln", ln) as server:
        server.update(receivers=[{"host": "127.0.0.1", "port": 5001}], timeout=LIMIT_S)
        eventually(lambda: asker.remote_locators(2) == [ln.address])
        ny.stop()
        assert asker.find_receiver(2)["port"] == 5001
        ln.stop()
        assert asker.find_receiver(2, timeout=LIMIT_S) is None


def test_a_site_that_is_missing_is_asked_for_with_a_heartbeat_at_once_and_its_locators_are_told_of():
    """The next heartbeat would come in minutes: a quarter of the lease."""
    learnt: list[int] = []
    with Locator("ny", distributed_system_id=1, port=0, timings=QUICK, member_timeout_ms=600_000) as ny:
        asker = Membership(str(ny.address), new_profile("server_ny", "127.0.0.1", 0), heartbeat_s=600.0)
        asker.on_locators_learnt = learnt.extend
        with asker:
            learnt.clear()
            assert asker.remote_locators(2) == []
            with locator("ln", 2, ny) as ln:
                eventually(lambda: set(ny.known_sites()) == {1, 2})
                assert asker.remote_locators(2, max_age_s=600.0) == []  # The answer of a moment ago is good enough.
                assert asker.remote_locators(2) == [ln.address]
                eventually(lambda: learnt == [2])


def test_it_registers_with_every_locator_of_the_site():
    with locator("a", 1) as a, locator("b", 1, locators=str(a.address)) as b:
        eventually(lambda: len(a.known_sites()[1]) == len(b.known_sites()[1]) == 2)
        with member("server", a) as server:
            eventually(lambda: [m["name"] for m in b.members()] == ["server"])
            a.stop()
            assert [s["name"] for s in server.servers()] == ["server"]


def test_configuration_is_given_to_those_who_join_later(sites):
    ny, _ = sites
    with member("one", ny) as one:
        assert one.cluster_configuration == []
        call_once(
            ny.address,
            "change-configuration",
            action="put",
            kind="region",
            name="data",
            attributes={"type": "replicate"},
        )
        with member("two", ny) as two:
            assert two.cluster_configuration == [
                {"kind": "region", "name": "data", "attributes": {"type": "REPLICATE"}}
            ]


def test_no_locator_is_told_with_every_address_and_reason():
    port = free_port()
    membership = Membership(
        f"127.0.0.1[{port}],no-such-host.invalid[1]", new_profile("m", "127.0.0.1", 0), heartbeat_s=0.1
    )
    with pytest.raises(NoLocatorError) as error:
        membership.join(timeout=1.0)
    for text in (f"127.0.0.1[{port}]", "refused", "no-such-host.invalid[1]"):
        assert text in str(error.value)
    with pytest.raises(NoLocatorError, match="no locators are given"):
        Membership("", new_profile("m", "127.0.0.1", 0))
    with pytest.raises(ConfigurationError):
        Membership("host", new_profile("m", "127.0.0.1", 0))


def test_what_is_no_locator_is_told_at_once():
    with (
        ControlServer("127.0.0.1", 0, lambda request, peer: {}, name="server") as server,
        pytest.raises(NoLocatorError, match="no locator"),
    ):
        Membership(f"127.0.0.1[{server.port}]", new_profile("m", "127.0.0.1", 0)).join(timeout=30)


def test_a_locator_that_starts_late_is_waited_for():
    port = free_port()
    membership = Membership(f"127.0.0.1[{port}]", new_profile("m", "127.0.0.1", 0), heartbeat_s=0.1)
    thread = threading.Thread(target=lambda: membership.join(timeout=10))
    thread.start()
    with locator("late", 5, port=port):
        thread.join(LIMIT_S)
        assert membership.distributed_system_id == 5
        membership.leave()


def test_locators_of_two_sites_cannot_be_one_members(sites):
    with pytest.raises(IncompatibleSystemError, match=r"must all be of (its own|one) site"):
        member("m", *sites).join(LIMIT_S)
    eventually(lambda: sites[0].members() == sites[1].members() == [])


def test_a_name_that_is_taken_is_refused(sites):
    with ControlServer("127.0.0.1", 0, lambda request, peer: {}, name="m") as port:
        first = Membership(str(sites[0].address), new_profile("m", "127.0.0.1", port.port))
        with first, pytest.raises(IllegalStateError, match="named m is alive"):
            member("m", sites[0]).join(LIMIT_S)
    with pytest.raises(IllegalStateError):
        first.join()


def test_a_locator_that_hangs_blocks_nobody_longer_than_asked(sites):
    ny, ln = sites
    with FaultProxy(ny.address) as link, FaultProxy(ln.address) as far:
        membership = Membership(f"{link.address}", new_profile("m", "127.0.0.1", 0), heartbeat_s=0.1)
        with membership:
            link.hang()
            far.hang()
            with membership._lock:
                membership._sites[9] = [far.address]
            for ask in (
                lambda: membership.find_receiver(9, timeout=0.3),
                lambda: membership.find_receiver(8, timeout=0.3),
                lambda: membership.remote_locators(8, timeout=0.3),
            ):
                began = time.monotonic()
                assert not ask()
                assert time.monotonic() - began < 3.0
            assert [s["name"] for s in membership.servers(timeout=2)] == ["m"]
            began = time.monotonic()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("lease_ms", [0, -1, 99, 600_000_001, "soon", 2.5, None, True])
def test_a_lease_that_no_member_can_keep_is_refused_by_name(lease_ms):
    with pytest.raises(ConfigurationError, match=r"member_timeout_ms: .* from 100 to 600000000"):
        Locator("l", distributed_system_id=1, port=0, member_timeout_ms=lease_ms)


def test_a_member_keeps_a_lease_that_is_shorter_than_its_heartbeat():
    with (
        Locator("l", distributed_system_id=1, port=0, member_timeout_ms=200) as locator,
        Membership(str(locator.address), new_profile("m", "127.0.0.1", 0)),
    ):
        seen: list[int] = []
        deadline = time.monotonic() + 1.5  # Seven leases, and one heartbeat as it is without that.
        eventually(lambda: seen.append(len(locator.members())) or time.monotonic() > deadline, what="the time")
        assert set(seen) == {1}


def test_a_site_that_one_locator_knows_stays_known_when_another_one_does_not_know_it(sites):
    """A locator sends its list only when it changes."""
    ny, ln = sites
    with locator("other", 1) as other, member("server", ny) as server:
        assert server.remote_locators(2) == [ln.address]
        with server._changed:
            server._add_link(other.address)
        eventually(lambda: [each["name"] for each in other.members()] == ["server"])
        assert server.remote_locators(2) == [ln.address]
