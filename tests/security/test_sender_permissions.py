"""Senders whose users may write some regions of the receiving site: what is applied, and what becomes of the rest."""

from __future__ import annotations

import contextlib

import pytest

import pywan
from pywan.errors import AuthenticationError
from pywan.security import guard as guards
from pywan.security.passwords import hash_of
from pywan.security.permissions import Permission
from pywan.security.users import User, Users, read_users, write_users
from pywan.testing.waiting import eventually

REGIONS = ("orders", "stock", "prices")
WORDS = "the user of its sender may not write its region at the remote site"
OWN = {"username": "member", "password": "member", "allow_plaintext": True}
ALL = ["DATA:WRITE"]


@pytest.fixture(scope="module")
def hashes(cheap_passwords):
    return {name: hash_of(name) for name in ("member", "ny")}


@pytest.fixture
def file(tmp_path, hashes):
    write_users(tmp_path / "users.json", Users.first().with_user("member", User(("member",), hashes["member"])))
    return tmp_path / "users.json"


@pytest.fixture
def may(file, hashes):
    """Gives the user ny of the receiving site a role with these permissions."""

    def give(*permissions):
        users = read_users(file)
        roles = {**users.roles, "narrow": tuple(Permission.of(each, "narrow") for each in permissions)}
        write_users(file, Users({**users.users, "ny": User(("site", "narrow"), hashes["ny"])}, roles))

    return give


@contextlib.contextmanager
def two_sites(security, *, type="PARTITION", members=1, **sender):
    """The site ny sends three regions to ln, whose members have this security. Yields ny, and the first one of ln."""
    with contextlib.ExitStack() as stack:
        made = {"security": {**OWN, **security}}
        to = stack.enter_context(pywan.Locator("loc_ln", distributed_system_id=2, port=0, **made))
        there = [stack.enter_context(pywan.Cache(f"ln_{n}", locators=str(to.address), **made)) for n in range(members)]
        own = {"security": {**OWN, "gateway_username": "ny", "gateway_password": "ny"}}
        at = stack.enter_context(
            pywan.Locator("loc_ny", distributed_system_id=1, port=0, remote_locators=str(to.address), **own)
        )
        here = stack.enter_context(pywan.Cache("ny", locators=str(at.address), **own))
        for cache in there:
            for name in REGIONS:
                cache.create_region(name, type=type)
        there[0].create_gateway_receiver(start_port=0, end_port=0)
        given = {"remote_distributed_system_id": 2, "batch_time_interval": 10, "retry_interval_ms": 100, **sender}
        stack.callback(here.create_gateway_sender("ln", **given).stop)
        for name in REGIONS:
            together = {"colocated_with": REGIONS[0]} if sender.get("parallel") and name != REGIONS[0] else {}
            here.create_region(name, type="PARTITION", gateway_sender_ids=["ln"], **together)
        yield here, there[0]


def by_file(file):
    return {"manager": "users-file", "users_file": file}


def put(cache, keys, *names):
    for key in keys:
        for name in names:
            cache.region(name)[key] = f"{name} {key}"


def counts(cache):
    return {name: len(cache.region(name)) for name in REGIONS}


@pytest.mark.parametrize(
    "made",
    [{}, {"parallel": True}, {"dispatcher_threads": 3}, {"type": "PARTITION_REDUNDANT", "members": 2}],
    ids=["serial", "parallel", "dispatchers", "shared"],
)
def test_events_of_other_regions_are_parked_and_the_rest_goes_on(file, may, made):
    """In one batch, and in later ones."""
    may("DATA:WRITE:orders", "DATA:WRITE:/prices")
    with two_sites(by_file(file), **made) as (here, there):
        put(here, range(100), *REGIONS)
        eventually(lambda: counts(there) == {"orders": 100, "stock": 0, "prices": 100})
        put(here, range(100, 120), *REGIONS)
        eventually(lambda: counts(there) == {"orders": 120, "stock": 0, "prices": 120})
        sender = here.gateway_sender("ln")
        eventually(lambda: sender.parked_count == 120 and sender.lag()["events"] == 0)
        assert sender.is_connected
        assert {(each["region"], each["reason"]) for each in sender.parked(1000)} == {("stock", WORDS)}
        assert there.gateway_receiver.connection_count >= 1


def test_what_was_parked_arrives_by_a_replay_when_the_role_has_changed(file, may):
    may("DATA:WRITE:orders")
    with two_sites(by_file(file)) as (here, there):
        put(here, range(10), "orders", "stock")
        sender = here.gateway_sender("ln")
        eventually(lambda: counts(there)["orders"] == 10 and sender.parked_count == 10)
        may("DATA:WRITE:orders", "DATA:WRITE:stock")

        def arrives():
            sender.replay_parked()
            return counts(there)["stock"] == 10

        eventually(arrives, timeout=30)
        eventually(lambda: sender.parked_count == 0)


def test_a_region_that_is_taken_away_is_refused_on_an_open_connection(file, may, monkeypatch):
    monkeypatch.setattr(guards, "LOOK_S", 0.2)
    may("DATA:WRITE:orders", "DATA:WRITE:stock")
    with two_sites(by_file(file), dispatcher_threads=1) as (here, there):
        put(here, range(10), "orders", "stock")
        eventually(lambda: counts(there) == {"orders": 10, "stock": 10, "prices": 0})
        receiver, sender = there.gateway_receiver, here.gateway_sender("ln")
        connected = list(receiver._senders)
        may("DATA:WRITE:orders")
        keys = iter(range(10, 10**9))

        def is_refused():
            put(here, [next(keys)], "stock")
            return sender.parked_count > 0

        eventually(is_refused, timeout=30)
        before = counts(there)["stock"]
        put(here, range(10**9, 10**9 + 10), "orders", "stock")
        eventually(lambda: counts(there)["orders"] == 20 and sender.lag()["events"] == 0)
        assert counts(there)["stock"] == before
        assert list(receiver._senders) == connected  # The connection has gone on.


def test_an_all_regions_user_who_gets_fewer_goes_on_with_those(file, may, monkeypatch):
    monkeypatch.setattr(guards, "LOOK_S", 0.2)
    may(*ALL)
    with two_sites(by_file(file)) as (here, there):
        put(here, range(10), *REGIONS)
        eventually(lambda: set(counts(there).values()) == {10})
        may("DATA:WRITE:orders")
        sender, keys = here.gateway_sender("ln"), iter(range(10, 10**9))

        def is_refused():
            put(here, [next(keys)], "orders", "stock")
            return sender.parked_count > 0

        eventually(is_refused, timeout=30)
        eventually(lambda: sender.lag()["events"] == 0 and counts(there)["orders"] == next(keys))


@pytest.mark.parametrize("permission", ["DATA:READ:orders", "DATA:WRITE:orders:key 1", "CLUSTER"])
def test_who_may_write_no_region_is_refused_and_keeps_its_queue(file, may, permission):
    may(permission)
    with two_sites(by_file(file)) as (here, there):
        put(here, range(5), "orders")
        sender = here.gateway_sender("ln")
        words = "ny lacks the permission DATA:WRITE, which a sender of "
        eventually(lambda: words in str(sender.lag()) and "for one region at least" in str(sender.lag()), timeout=20)
        assert sender.lag()["events"] == 5 and sender.parked_count == 0 and not any(counts(there).values())
        may("DATA:WRITE:orders")
        eventually(lambda: counts(there)["orders"] == 5, timeout=30)


class Manager:
    """One of a user's own, which knows no `authorize_in_some_region`."""

    asked: list[str]

    def __init__(self, regions):
        self.regions, self.asked, self.is_ny_known, self.refused = regions, [], True, 0

    def authenticate(self, credentials):
        if credentials.user == "ny" and not self.is_ny_known:
            self.refused += 1
            raise AuthenticationError("ny was removed")
        return credentials.user

    def authorize(self, principal, permission):
        if principal == "ny" and permission.resource == "DATA":
            self.asked.append(str(permission))
            return self.is_ny_known and permission.region in self.regions
        return True


class Saying(Manager):
    def authorize_in_some_region(self, principal, permission):
        return principal != "ny" or bool(self.regions)


def test_a_manager_of_ones_own_is_asked_for_all_regions_and_then_for_each(monkeypatch):
    monkeypatch.setattr(guards, "LOOK_S", 0.2)
    monkeypatch.setattr(guards, "DECISION_S", 0.2)
    manager = Manager({"orders"})
    with two_sites({"manager": manager}) as (here, there):
        put(here, range(1000), "orders", "stock")
        sender = here.gateway_sender("ln")
        eventually(lambda: counts(there)["orders"] == 1000 and sender.parked_count == 1000)
        assert manager.asked[:2] == ["DATA:WRITE", "DATA:WRITE:orders"] and "DATA:WRITE:stock" in manager.asked
        assert len(manager.asked) < 200  # Not for each event.
        manager.is_ny_known = False  # The connection ends, and events stay in the queue.
        eventually(lambda: there.gateway_receiver.connection_count == 0, timeout=20)
        parked = sender.parked_count
        put(here, range(1000, 1010), "orders")
        refused = manager.refused
        eventually(lambda: manager.refused > refused, timeout=30)
        assert sender.lag()["events"] == 10 and sender.parked_count == parked


def test_a_manager_of_ones_own_may_refuse_who_may_write_nothing():
    with two_sites({"manager": Saying(set())}) as (here, there):
        put(here, range(5), "orders")
        sender = here.gateway_sender("ln")
        eventually(lambda: "for one region at least" in str(sender.lag()), timeout=20)
        assert sender.lag()["events"] == 5 and sender.parked_count == 0
    with two_sites({"manager": Manager(set())}) as (here, there):
        put(here, range(5), "orders")
        eventually(lambda: here.gateway_sender("ln").parked_count == 5)  # It cannot say so: each region is refused.
        assert not any(counts(there).values())


def test_the_reason_outlives_a_restart_of_the_sender(file, may, tmp_path):
    """Its parked events are on the disk."""
    may("DATA:WRITE:orders")

    def sender_on_disk(cache):
        cache.create_disk_store("disk", directories=[str(tmp_path / "disk")])
        given = {"remote_distributed_system_id": 2, "enable_persistence": True, "disk_store_name": "disk"}
        return cache.create_gateway_sender("kept", batch_time_interval=10, **given)

    with two_sites(by_file(file)) as (here, there):
        there.create_region("kept")
        sender = sender_on_disk(here)
        here.create_region("kept", type="PARTITION", gateway_sender_ids=["kept"])["k"] = 1
        eventually(lambda: sender.parked_count == 1 and sender.lag()["events"] == 0)
    with (
        pywan.Locator("loc_ny", distributed_system_id=1, port=0) as locator,
        pywan.Cache("ny", locators=str(locator.address)) as again,
    ):
        assert [(each["region"], each["reason"]) for each in sender_on_disk(again).parked(5)] == [("kept", WORDS)]
