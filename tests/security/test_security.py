"""Who is let in at the ports of a site, and what they may do there."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest

import pywan
from pywan.client import DataConnection
from pywan.errors import (
    AuthenticationError,
    ConfigurationError,
    NoLocatorError,
    NotAuthorizedError,
    NotFoundError,
    PywanError,
)
from pywan.member.management import ManagementService
from pywan.protocol import control as wire
from pywan.security import guard as guards, operations
from pywan.security.identity import Identity
from pywan.security.passwords import fits, hash_of
from pywan.security.permissions import Permission
from pywan.security.tries import FREE_TRIES
from pywan.security.users import User, Users, read_users, write_users
from pywan.testing.waiting import eventually
from pywan.transport.control import call_once
from pywan.transport.links import Links

SENDER = {"batch_time_interval": 10, "retry_interval_ms": 100}
USERS = {
    "member": "member",
    "admin": "admin",
    "reader": "reader",
    "writer": "writer",
    "operator": "operator",
    "ny": "gateway",
    "site": "site",
}


@pytest.fixture(scope="module")
def hashes(cheap_passwords):
    """Of the passwords, which are the names."""
    return {name: hash_of(name) for name in USERS}


class People:
    """A file of users, whose passwords are their names at first."""

    def __init__(self, file, hashes):
        self.file = file
        users = Users.first()
        for name, role in USERS.items():
            users = users.with_user(name, User((role,), hashes[name]))
        write_users(file, users)

    def set_password(self, name, password):
        users = read_users(self.file)
        write_users(self.file, users.with_user(name, User(users.users[name].roles, hash_of(password))))

    def remove(self, name):
        write_users(self.file, read_users(self.file).without(name))

    def options(self, user="member", password=None, **more):
        return {
            "manager": "users-file",
            "users_file": self.file,
            "username": user,
            "password": password or user,
            "allow_plaintext": True,
            **more,
        }


@pytest.fixture
def people(tmp_path, hashes):
    return People(tmp_path / "users.json", hashes)


@pytest.fixture
def site(people):
    """A locator and a member with a region."""
    with (
        pywan.Locator("loc", distributed_system_id=1, port=0, security=people.options()) as locator,
        pywan.Cache("one", locators=str(locator.address), security=people.options()) as cache,
    ):
        cache.create_region("data")["k"] = 1
        yield locator, cache


def way(user=None, password=None, **more):
    return Links(identity=Identity(user, password or user, allow_plaintext=True, **more)).cluster


def ask(place, op, user=None, password=None, **fields):
    return call_once((place.host, place.port), op, way=way(user, password), **fields)


# The table


def test_each_operation_is_in_the_table():
    served = {*ManagementService.__dict__, *(name for each in ManagementService.__mro__ for name in vars(each))}
    commands = {pywan.config.options.name_of(name) for name in served if name.startswith("on_")}
    between_members = {
        "adopt-buckets",
        "flush-queue",
        "has-decision",
        "older-events",
        "owns-opening",
        "parked-events",
        "ping",
        "queue-size",
    }
    assert set(operations.MEMBER) == commands | between_members
    locator = pywan.Locator("loc", distributed_system_id=1, port=0)
    with pytest.raises(NotFoundError) as refused:
        locator._handler()({"op": "what is there?"}, ())
    assert set(operations.LOCATOR) == set(str(refused.value).partition("it has ")[2].split(", "))


@pytest.mark.parametrize(
    ("has", "wanted", "covers"),
    [
        ("DATA:WRITE:orders:k1", "DATA:WRITE:orders:k1", True),
        ("DATA:WRITE:orders", "DATA:WRITE:orders:k1", True),
        ("DATA:WRITE:/orders", "DATA:WRITE:orders", True),
        ("DATA:WRITE:orders", "DATA:WRITE", False),
        ("DATA:WRITE:orders:k1", "DATA:WRITE:orders", False),
        ("data:write", "DATA:WRITE:orders:k1", True),
        ("DATA", "DATA:READ:orders", True),
        ("DATA", "CLUSTER:READ", False),
        ("*:READ", "CLUSTER:READ", True),
        ("DATA:*:orders", "DATA:MANAGE:orders", True),
        ("DATA:READ:*:a:b", "DATA:READ:orders:a:b", True),
    ],
)
def test_what_a_permission_covers(has, wanted, covers):
    assert Permission.of(has, "x").covers(Permission.of(wanted, "x")) is covers
    assert Permission.of(str(Permission.of(has, "x")), "x") == Permission.of(has, "x")


@pytest.mark.parametrize("text", ["", "DATEN:READ", "DATA:EAT", None, 7, ":"])
def test_what_is_no_permission_is_refused_by_name(text):
    if text == ":":  # Empty parts stand for all.
        assert Permission.of(text, "x") == Permission.of("*", "x")
        return
    with pytest.raises(ConfigurationError, match="is no permission; write RESOURCE:OPERATION"):
        Permission.of(text, "role x")


# Each operation, and each role


@pytest.mark.parametrize("user", [name for name in USERS if name != "ny"])
def test_each_operation_of_a_member_for_each_role(site, people, user):
    """What is let in fails for another reason, as its options are wrong, or works. Nothing that changes is let through
    without its permission."""
    _, cache = site
    users = read_users(people.file)
    for op, needs in operations.MEMBER.items():
        fields = {"no_such_option": 1} if op not in ("ping", "queue-size") else {}
        wanted = needs.of({"op": op, **fields})
        try:
            ask(cache, op, user, **fields)
            refused = False
        except NotAuthorizedError as error:
            assert f"{user} lacks the permission {wanted}" in str(error)
            refused = True
        except pywan.PywanError as error:
            assert not isinstance(error, AuthenticationError)
            refused = False
        assert refused is not users.may(users.users[user], wanted), op


@pytest.mark.parametrize("user", ["reader", "site", "ny", "writer", "operator"])
def test_each_operation_of_a_locator_for_each_role(site, people, user):
    locator, _ = site
    users = read_users(people.file)
    for op in operations.LOCATOR:
        wanted = operations.needed_at_locator(1)({"op": op})
        if users.may(users.users[user], wanted) and op in ("stop", "coordination-end-site"):
            continue
        try:
            ask(locator, op, user)
            refused = False
        except NotAuthorizedError:
            refused = True
        except pywan.PywanError as error:
            assert not isinstance(error, AuthenticationError)
            refused = False
        assert refused is not users.may(users.users[user], wanted), op


@pytest.mark.parametrize("has, key", [("1", "1"), ("=1", 1), ("=1.0", 1.0), ("='=1'", "=1"), ("=True", True)])
def test_a_right_to_a_key_is_none_to_a_key_of_another_kind(site, people, has, key):
    _, cache = site
    users = read_users(people.file)
    roles = {**users.roles, "narrow": (Permission.of(f"DATA:READ:data:{has}", "x"),)}
    write_users(people.file, Users({**users.users, "n": User(("narrow",), hash_of("n"))}, roles))
    eventually(lambda: _works(lambda: ask(cache, "get", "n", region="data", key=key)))
    for other in ("1", 1, 1.0, "=1", True, "True", "1.0", b"1", "='=1'"):
        if (type(other), other) != (type(key), key):
            with pytest.raises(NotAuthorizedError, match="DATA:READ:data:"):
                ask(cache, "get", "n", region="data", key=other)


def test_permissions_are_of_a_region_and_a_key(site, people):
    _, cache = site
    users = read_users(people.file)
    roles = {**users.roles, "narrow": (Permission.of("DATA:READ:data:k", "x"),)}
    write_users(people.file, Users({**users.users, "n": User(("narrow",), hash_of("n"))}, roles))
    eventually(lambda: _works(lambda: ask(cache, "get", "n", region="/data", key="k")))
    for op, fields in (
        ("get", {"region": "data", "key": "other"}),
        ("get", {"region": "other", "key": "k"}),
        ("query size", {"region": "data"}),
        ("scan region", {"region": "data"}),
        ("put", {"region": "data", "key": "k", "value": 1}),
        ("get", {"region": 7, "key": "k"}),
        ("get", {}),
    ):
        with pytest.raises(NotAuthorizedError, match="n lacks the permission DATA"):
            ask(cache, op, "n", **fields)


def test_a_right_for_one_key_removes_one_key(site, people):
    """The check and the handler agree on what a request touches, whichever fields it has."""
    _, cache = site
    region = cache.region("data")
    region.put_all({n: n for n in range(100)})
    users = read_users(people.file)
    roles = {**users.roles, "narrow": (Permission.of("DATA:WRITE:data:k", "x"),)}
    write_users(people.file, Users({**users.users, "n": User(("narrow",), hash_of("n"))}, roles))
    eventually(lambda: _works(lambda: ask(cache, "put", "n", region="data", key="k", value=2)))
    for all_ in (True, "true", "TRUE ", 1, "yes", [True]):
        with pytest.raises(NotAuthorizedError, match="n lacks the permission DATA:WRITE:data,"):
            ask(cache, "remove", "n", region="data", key="k", all=all_)
    with pytest.raises(ConfigurationError, match="key 'k' and --all are both given"):
        ask(cache, "remove", "admin", region="data", key="k", all=True)
    assert len(region) == 101
    assert ask(cache, "remove", "n", region="data", key="k", all=False)["count"] == 1
    assert ask(cache, "remove", "admin", region="data", all=True)["count"] == 100 and not len(region)


def _works(call):
    try:
        call()
    except (AuthenticationError, NotAuthorizedError):
        return False
    return True


def test_a_locator_of_another_site_may_ask_and_one_of_the_own_site_needs_more():
    needed = operations.needed_at_locator(1)
    other = {"op": "locator-join", "from": {"distributed_system_id": 2}}
    assert str(needed(other)) == "CLUSTER:READ"
    for asker in ({"distributed_system_id": 1}, {"distributed_system_id": True}, {}, None, 2):
        assert str(needed({**other, "from": asker})) == "CLUSTER:MANAGE"


# Strangers


def test_a_stranger_gets_one_sentence(site):
    said = set()
    for place in site:
        for op in ("ping", "status", "get", "no such operation", "member-join", "owns-opening"):
            with pytest.raises(
                AuthenticationError, match=r"^refused: authentication is needed, .*; give security-username"
            ):
                ask(place, op)
        for user, password in (("admin", "wrong"), ("nobody", "wrong"), ("x" * 300, "y"), ("admin", "z" * 2000)):
            with pytest.raises(
                AuthenticationError, match=r"does not take .*: refused: .* check security-username"
            ) as told:
                ask(place, "ping", user, password)
            said.add(str(told.value).partition("': ")[2])
    assert len(said) == 1, "an unknown user can be told from a wrong password"


def test_a_stranger_sends_little(site):
    """The limit of a request holds for who has not shown who it is, and no longer."""
    _, cache = site
    body = wire.encode(1, {"op": "put", "region": "data", "key": "k", "value": "x" * 100_000})
    with socket.create_connection((cache.host, cache.port), 5) as sock:
        sock.sendall(body)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1000) == b""
    ask(cache, "put", "writer", region="data", key="k", value="x" * 100_000)
    assert ask(cache, "get", "reader", region="data", key="k")["value"] == "x" * 100_000


@pytest.mark.parametrize("said", [{}, {"user": 7, "password": "x"}, {"user": "a"}, {"password": "b"}, {"user": ["a"]}])
def test_credentials_of_a_wrong_form_are_refused(site, said):
    _, cache = site
    with socket.create_connection((cache.host, cache.port), 5) as sock:
        sock.sendall(wire.encode(1, {"op": "authenticate", **said}))
        reply = wire.Decoder().feed(sock.recv(10_000))[0].body
        assert reply["kind"] == "AuthenticationError" and reply["error"].startswith("refused")
        assert sock.recv(1) == b""


def test_nobody_is_asked_where_nothing_is_configured():
    with pywan.Locator("loc", distributed_system_id=1, port=0) as locator:
        assert call_once(locator.address, "ping", way=way("anybody", "x"))["ok"]
        assert locator.status()["security"] == {
            "asked": False,
            "members_secret": False,
            "failed_tries": 0,
            "slowed_tries": 0,
        }


def test_a_password_goes_over_no_plain_connection_unless_it_is_told_so(site):
    _, cache = site
    plain = Links(identity=Identity("reader", "reader")).cluster
    with pytest.raises(AuthenticationError, match=r"is not sent to .* over a connection without TLS; encrypt it"):
        call_once((cache.host, cache.port), "ping", way=plain)
    assert cache.status()["security"]["failed_tries"] == 0


def test_a_member_that_is_nobody_does_not_join(site, people):
    locator, _ = site
    with pytest.raises(AuthenticationError, match=r"member two: locator .*: refused: authentication is needed"):
        pywan.Cache("two", locators=str(locator.address), join_timeout=3)
    with pytest.raises(
        NotAuthorizedError, match=r"reader lacks the permission CLUSTER:MANAGE, which .* needs; give that user a role"
    ):
        pywan.Cache("two", locators=str(locator.address), join_timeout=3, security=people.options("reader"))
    assert [each["name"] for each in locator.members()] == ["one"]


def test_members_share_a_region(site, people):
    locator, cache = site
    with pywan.Cache("two", locators=str(locator.address), security=people.options()) as two:
        shared = [each.create_region("shared", type="PARTITION_REDUNDANT") for each in (cache, two)]
        for n in range(50):
            shared[n % 2][n] = n
        assert [dict(region.items()) for region in shared] == [{n: n for n in range(50)}] * 2


# Tries


def test_who_fails_again_and_again_is_slowed_and_nobody_else(site):
    _, cache = site
    ask(cache, "ping", "admin")
    deadline = time.monotonic() + 2.0
    tries = 0
    while time.monotonic() < deadline:
        with pytest.raises(AuthenticationError):
            ask(cache, "ping", "reader", f"guess {tries}")
        tries += 1
    told = cache.status()["security"]
    assert told["failed_tries"] <= 8 and told["slowed_tries"] == tries - told["failed_tries"] > 0
    ask(cache, "ping", "admin")
    ask(cache, "ping", "writer")


def test_many_users_from_one_address_are_slowed_together():
    now = [0.0]
    tries = guards.Tries(lambda: now[0])
    for n in range(20):
        assert tries.wait_s("1.2.3.4", f"user {n}") == 0.0
        tries.failed("1.2.3.4", f"user {n}")
    assert tries.wait_s("1.2.3.4", "user 20") == pytest.approx(0.5)
    assert tries.wait_s("1.2.3.5", "user 20") == 0.0
    now[0] += 0.5
    assert tries.wait_s("1.2.3.4", "user 20") == 0.0


def test_the_wait_grows_up_to_a_limit_and_ends_with_a_try_that_works():
    now = [0.0]
    tries = guards.Tries(lambda: now[0])
    waits = []
    for _ in range(12):
        waits.append(tries.wait_s("a", "ann"))
        now[0] += waits[-1]
        tries.failed("a", "ann")
    assert waits == [0, 0, 0, 0.25, 0.5, 1, 2, 4, 5, 5, 5, 5]
    tries.worked("a", "ann")
    assert tries.wait_s("a", "ann") == 0.0


def test_what_is_remembered_of_tries_is_bounded():
    tries = guards.Tries()
    for n in range(5000):
        tries.failed(f"address {n}", "x")
    assert len(tries._users) == len(tries._addresses) == 4096


def test_the_line_of_the_log_tells_what_the_other_end_does_not_receive(site, caplog):
    _, cache = site
    for n in range(3):
        with pytest.raises(AuthenticationError):
            ask(cache, "ping", "reader\n", f"secret {n}")
    lines = [record.getMessage() for record in caplog.records if record.name == "pywan.security"]
    assert any("there is no user" in line for line in lines)
    assert not any("secret" in line or "\n" in line for line in lines)


def test_two_are_looked_at_at_once():
    """A manager that hangs holds two places. The third one is refused when its time is over."""
    inside, go_on = threading.Semaphore(0), threading.Event()

    class Slow:
        def authenticate(self, credentials):
            inside.release()
            assert go_on.wait(20)
            return credentials.user

        def authorize(self, principal, permission):
            return True

    guard = guards.Guard(Slow())
    threads = [
        threading.Thread(target=guard.authenticate, args=(guards.Credentials(f"u{n}", "p"), "a", "a:1", 20))
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=10) and inside.acquire(timeout=10)
    with pytest.raises(AuthenticationError, match=r"^refused: these credentials"):
        guard.authenticate(guards.Credentials("u2", "p"), "a", "a:1", 0.1)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert guard.authenticate(guards.Credentials("u2", "p"), "a", "a:1", 0.1) == "u2"


def test_who_has_shown_right_credentials_has_places_of_its_own():
    inside, go_on, clock = threading.Semaphore(0), threading.Event(), [0.0]

    class Slow:
        def authenticate(self, credentials):
            if credentials.user != "member":
                inside.release()
                assert go_on.wait(20)
            return credentials.user

        def authorize(self, principal, permission):
            return True

    guard = guards.Guard(Slow(), clock=lambda: clock[0])
    member = guards.Credentials("member", "p")
    assert guard.authenticate(member, "a", "a:1") == "member"
    threads = [
        threading.Thread(target=guard.authenticate, args=(guards.Credentials(f"u{n}", "p"), "b", "b:1", 20))
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=10) and inside.acquire(timeout=10)
    clock[0] += guards.RIGHT_S + 1  # It is looked at again, and strangers hold all places for strangers.
    assert guard.authenticate(member, "a", "a:1", 0.1) == "member"
    with pytest.raises(AuthenticationError, match=r"^refused: these credentials"):
        guard.authenticate(guards.Credentials("u2", "p"), "c", "c:1", 0.1)
    go_on.set()
    for thread in threads:
        thread.join(10)


def test_a_try_that_waited_is_looked_at_only_if_it_may_be_tried_by_then():
    """All pass the look at earlier tries before the first of them fails."""
    inside, go_on, looked_at = threading.Semaphore(0), threading.Event(), []

    class Slow:
        def authenticate(self, credentials):
            looked_at.append(credentials.user)
            inside.release()
            assert go_on.wait(20)
            raise AuthenticationError("wrong")

    guard = guards.Guard(Slow(), clock=lambda: 0.0)
    wait_s, passed, refused = guard.tries.wait_s, set(), []

    def look(address, user):
        try:
            return wait_s(address, user)
        finally:
            passed.add(threading.get_ident())

    guard.tries.wait_s = look

    def guess(number):
        try:
            guard.authenticate(guards.Credentials("ann", f"guess {number}"), "a", "a:1", 20)
        except AuthenticationError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=guess, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(passed) == 12)
    for _ in range(guards.AT_ONCE):
        assert inside.acquire(timeout=20)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert refused == [guards.REFUSED] * 12
    assert FREE_TRIES <= len(looked_at) < FREE_TRIES + guards.AT_ONCE
    assert guard.status() == {
        "asked": True,
        "members_secret": False,
        "failed_tries": len(looked_at),
        "slowed_tries": 12 - len(looked_at),
    }


def test_only_the_same_credentials_are_remembered_and_only_for_a_while():
    now, looked_at = [0.0], []

    class Manager:
        def authenticate(self, credentials):
            looked_at.append(credentials)
            if credentials.password not in ("right", "") or credentials.certificate == "somebody":
                raise AuthenticationError("wrong")
            return "ann"

    guard = guards.Guard(Manager(), clock=lambda: now[0])

    def show(*shown):
        return guard.authenticate(guards.Credentials(*shown), "a", "a:1")

    assert [show("ann", "right"), show("ann", "right")] == ["ann", "ann"] and len(looked_at) == 1
    for wrong in [("ann", "wrong"), ("ann", "rightx"), ("ann", "right", "somebody"), ("", "", "somebody")]:
        with pytest.raises(AuthenticationError):
            show(*wrong)
        assert looked_at[-1] == guards.Credentials(*wrong)
    now[0] += guards.RIGHT_S / 2
    assert show("ann", "right") == "ann" and len(looked_at) == 5
    now[0] += guards.RIGHT_S / 2
    assert show("ann", "right") == "ann" and len(looked_at) == 6


def test_a_wrong_password_behind_a_right_one_is_refused_at_each_port(site):
    """Who has just shown the right one is remembered there."""
    for place in site:
        ask(place, "ping", "admin")
        with pytest.raises(AuthenticationError):
            ask(place, "ping", "admin", "wrong")
        with pytest.raises(AuthenticationError):
            ask(place, "ping", "admin", "reader")
        ask(place, "ping", "admin")


def test_tries_take_no_memory_of_each_thread():
    """Each costs 16 MiB while it is looked at, and only in two threads."""
    program = """
import threading
from pywan.security.passwords import fits
def peak():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
fits("x", None)
before, go_on, done = peak(), threading.Event(), threading.Barrier(17)
def work():
    fits("x", None)
    done.wait()
    go_on.wait()
for _ in range(16):
    threading.Thread(target=work, daemon=True).start()
done.wait()
print(peak() - before)
go_on.set()
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(grown.stdout) < 60


def test_a_forked_child_looks_at_passwords_too(hashes):
    child = os.fork()
    if not child:
        os._exit(0 if fits("admin", hashes["admin"]) and not fits("x", hashes["admin"]) else 1)
    assert os.waitpid(child, 0)[1] == 0


# Users that change


def test_a_user_who_is_removed_is_out_on_an_open_connection(site, people):
    from pywan.transport.control import ControlClient

    _, cache = site
    with ControlClient((cache.host, cache.port), way=way("reader")) as client:
        assert client.call("get", region="data", key="k")["value"] == 1
        people.remove("reader")
        eventually(lambda: not _works(lambda: client.call("get", region="data", key="k")), timeout=20)
    with pytest.raises(AuthenticationError):
        ask(cache, "ping", "reader")


def test_another_password_ends_what_the_old_one_began(site, people):
    from pywan.transport.control import ControlClient

    _, cache = site
    with ControlClient((cache.host, cache.port), way=way("reader")) as client:
        client.call("ping")
        people.set_password("reader", "new")
        eventually(lambda: not _works(lambda: client.call("ping")), timeout=20)
    assert not _works(lambda: ask(cache, "ping", "reader", "reader"))
    eventually(lambda: _works(lambda: ask(cache, "ping", "reader", "new")), timeout=20)


@pytest.mark.parametrize("text", ["{", '{"roles": ' + "[" * 100_000, "\udcff"], ids=["half", "deep", "no text"])
def test_a_file_that_cannot_be_used_changes_nothing(site, people, caplog, text):
    _, cache = site
    people.file.write_text(text, errors="surrogateescape")
    eventually(lambda: _works(lambda: ask(cache, "ping", "admin")) and "the users before stay" in caplog.text)
    people.file.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"can be read or written by others .*chmod 600"):
        read_users(people.file)


@pytest.mark.parametrize("reads", [read_users, lambda file: Identity("u", None, str(file)).shown_over(True, "x")])
def test_a_file_of_secrets_that_is_a_pipe_or_of_another_user_is_refused(tmp_path, reads):
    file = tmp_path / "secret"
    os.mkfifo(file, 0o600)
    with pytest.raises(PywanError, match=f"{file} is not a regular file"):
        reads(file)
    file.unlink()
    file.write_text("{}")
    file.chmod(0o600)
    if os.geteuid() == 0:  # Others cannot give a file away.
        os.chown(file, 65534, -1)
        with pytest.raises(PywanError, match=f"{file} belongs to user 65534.* chown 0 {file}"):
            reads(file)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([], "is no map with"),
        ({"roles": {}}, "is no map with"),
        ({"roles": {"r": "DATA"}, "users": {}}, "is no list of at most"),
        ({"roles": {"r": ["DATA", "secret"]}, "users": {}}, "role 1: permission 2 is no permission"),
        ({"roles": {}, "users": {"u": {"roles": ["secret"], "certificate": True}}}, "user 1: there is no role as"),
        ({"roles": {"secret": 7}, "users": {}}, "role 1 is no list"),
        ({"roles": {"secret\n": []}, "users": {}}, "role 1 has no name"),
        ({"roles": {}, "users": {"secret": {"roles": "secret", "certificate": True}}}, "user 1: `roles` is no list"),
        ({"roles": {}, "users": {"u": {"roles": [], "password": "plain"}}}, "is not what `user passwd` writes"),
        ({"roles": {}, "users": {"u": {"roles": []}}}, "is no map with `roles`"),
        ({"roles": {}, "users": {"u": {"roles": [], "certificate": False}}}, "can be true only"),
        ({"roles": {}, "users": {"secret\n": {"roles": [], "certificate": True}}}, "user 1 has no name of a user"),
    ],
)
def test_a_file_with_something_else_in_it_is_refused_by_name(tmp_path, told, words):
    import json

    file = tmp_path / "users.json"
    file.write_text(json.dumps(told))
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match=words) as refused:
        read_users(file)
    assert str(file) in str(refused.value) and "secret" not in str(refused.value)


# Options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"manager": "users-file"}, "needs security-users-file"),
        ({"users_file": "x"}, "has no effect without security-manager"),
        ({"username": "a"}, "needs security-password-file"),
        ({"password": "a"}, "need security-username"),
        ({"username": "a", "password": "b", "password_file": "c"}, "are both given"),
        ({"manager": "users-file", "users_file": "/no/such"}, "cannot be read: No such file.*`user add` makes"),
        ({"manager": "no_such_module:Class"}, "cannot be imported"),
        ({"manager": "pywan.errors:PywanError"}, "has no method authenticate, authorize"),
        ({"colour": "red"}, "no attribute 'colour'"),
        ({"username": "a", "password": 7}, "password is no text"),
        (7, "it is no map"),
    ],
)
def test_options_that_cannot_work_are_refused(given, words):
    with pytest.raises(ConfigurationError, match=words):
        pywan.Locator("loc", distributed_system_id=1, port=0, security=given)


def test_a_manager_of_ones_own(tmp_path):
    class Manager:
        def authenticate(self, credentials):
            if credentials.password != "open":
                raise AuthenticationError("not that")
            return [credentials.user]

        def authorize(self, principal, permission):
            if str(permission).startswith("DATA"):
                raise RuntimeError("a mistake")
            return True

    class Named(Manager):
        def authenticate(self, credentials):
            who = super().authenticate(credentials)
            return {"list": who, "none": None}.get(credentials.user, credentials.user)

    given = {"username": "m", "password": "open", "allow_plaintext": True}
    with (
        pywan.Locator("loc", distributed_system_id=1, port=0, security={"manager": Named(), **given}) as locator,
        pywan.Cache("one", locators=str(locator.address), security={"manager": Named, **given}) as cache,
    ):
        assert ask(cache, "ping", "x", "open")["name"] == "one"
        with pytest.raises(NotAuthorizedError, match="x lacks the permission DATA:READ:data:k"):
            ask(cache, "get", "x", "open", region="data", key="k")
        with pytest.raises(AuthenticationError):
            ask(cache, "ping", "x", "shut")
        for user in ("list", "none"):  # What the manager returns is nobody.
            with pytest.raises(AuthenticationError, match=r"refused: these credentials"):
                ask(cache, "ping", user, "open")


# Rows of clients


def rows(locator, user, region="data", run_id=None):
    security = {"username": user, "password": user, "allow_plaintext": True}
    with DataConnection.open(
        str(locator.address), region=region, run_id=run_id or uuid.uuid4().bytes, task=0, security=security
    ) as connection:
        connection.put_pairs([("row", 1)])
        return connection.commit()["applied"]


def test_a_task_is_that_of_its_user_and_its_region(site):
    """A run whose id somebody else knows is not taken for one that was applied already."""
    locator, cache = site
    cache.create_region("orders")
    run_id = b"nightly run of 1"
    assert [rows(locator, user, region, run_id) for user in ("writer", "admin") for region in ("data", "orders")] == [
        1,
        1,
        1,
        1,
    ]
    assert rows(locator, "writer", "orders", run_id) == 0  # The same one again.


def test_rows_of_a_client(site):
    locator, cache = site
    assert rows(locator, "writer") == 1
    with pytest.raises(NotAuthorizedError, match="reader lacks the permission DATA:WRITE:data"):
        rows(locator, "reader")
    with pytest.raises(NoLocatorError, match="authentication is needed"):
        DataConnection.open(str(locator.address), region="data", run_id=os.urandom(16), task=0)
    assert cache.region("data")["row"] == 1


def test_the_connection_of_a_client_ends_with_its_user(site, people, monkeypatch):
    monkeypatch.setattr(guards, "LOOK_S", 0.2)
    locator, cache = site
    security = {"username": "writer", "password": "writer", "allow_plaintext": True}
    with DataConnection.open(
        str(locator.address), region="data", run_id=os.urandom(16), task=0, security=security
    ) as connection:
        people.remove("writer")
        eventually(lambda: not cache._core.stages._open, timeout=30)
        with pytest.raises(pywan.PywanError):
            connection.put_pairs([("row", 1)])
            connection.commit()
    assert "row" not in cache.region("data")
