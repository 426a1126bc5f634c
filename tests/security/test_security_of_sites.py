"""Two sites whose gateways show who they are: wrong credentials, right ones later, and receivers that are asked."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

import pywan
from pywan import _core
from pywan.base.addresses import Address
from pywan.config.cluster import ClusterConfiguration
from pywan.errors import AuthenticationError, GatewaySenderConfigurationError, NotAuthorizedError, ProtocolError
from pywan.protocol import control, gateway
from pywan.security import guard as guards
from pywan.security.guard import Guard
from pywan.security.identity import Identity
from pywan.security.passwords import hash_of
from pywan.security.users import User, Users, read_users, write_users
from pywan.testing.waiting import eventually
from pywan.transport import data
from pywan.transport.control import ControlServer, call_once
from pywan.transport.links import Links
from support.made_certificates import Authority, options

SENDER = {"batch_time_interval": 10, "retry_interval_ms": 100}


@pytest.fixture(scope="module")
def hashes(cheap_passwords):
    return {name: hash_of(name) for name in ("member", "ny", "ln", "visitor")}


@pytest.fixture
def file(tmp_path, hashes):
    """Users of both sites, whose passwords are their names."""
    users = Users.first()
    roles = {"member": ("member",), "ny": ("gateway",), "ln": ("reader",), "visitor": ("site", "gateway")}
    for name, has in roles.items():
        users = users.with_user(name, User(has, hashes[name]))
    write_users(tmp_path / "users.json", users)
    return tmp_path / "users.json"


def password_file(file, password):
    file.write_text(f"{password}\n")
    file.chmod(0o600)
    return str(file)


def set_password(file, name, password):
    users = read_users(file)
    write_users(file, users.with_user(name, User(users.users[name].roles, hash_of(password))))


class TakesAll:
    """A security manager that keeps what it is shown."""

    def __init__(self, shown):
        self._shown = shown

    def authenticate(self, credentials):
        self._shown.append(credentials)
        return credentials.user

    def authorize(self, principal, permission):
        return True


class Site:
    """A locator and a member."""

    region: Any
    sender: Any
    receiver: Any

    def __init__(self, stack, name, id, security, remote="", ssl=None):
        self.locator = stack.enter_context(
            pywan.Locator(
                f"loc_{name}", distributed_system_id=id, port=0, remote_locators=remote, security=security, ssl=ssl
            )
        )
        self.cache = stack.enter_context(
            pywan.Cache(f"server_{name}", locators=str(self.locator.address), security=security, ssl=ssl)
        )


@contextlib.contextmanager
def one_way(file, *, ny=None, ln=None, ssl=(None, None), **sender):
    """The site ny sends to ln. `ny`, `ln`: more options of security."""
    own = {"username": "member", "password": "member", "allow_plaintext": True}
    visits = {"gateway_username": "visitor", "gateway_password": "visitor"}
    asks = {"manager": "users-file", "users_file": file}
    with contextlib.ExitStack() as stack:
        there = Site(stack, "ln", 2, {**asks, **own, **(ln or {})}, ssl=ssl[1])
        here = Site(stack, "ny", 1, {**own, **visits, **(ny or {})}, str(there.locator.address), ssl=ssl[0])
        there.region = there.cache.create_region("data", type="PARTITION")
        there.receiver = there.cache.create_gateway_receiver(start_port=0, end_port=0)
        here.sender = here.cache.create_gateway_sender("ln", remote_distributed_system_id=2, **{**SENDER, **sender})
        stack.callback(here.sender.stop)
        here.region = here.cache.create_region("data", type="PARTITION", gateway_sender_ids=["ln"])
        yield here, there


def trouble(site):
    return str(site.sender.lag())


def test_credentials_that_are_right_deliver(file, tmp_path):
    """The sender has a user of its own, and nothing else of it shows the password."""
    with one_way(file, security_username="ny", security_password_file=password_file(tmp_path / "ny", "ny")) as (
        here,
        there,
    ):
        here.region["k"] = 1
        eventually(lambda: there.region.get("k") == 1)
        assert here.sender.is_connected


def test_wrong_credentials_keep_the_queue(file, tmp_path):
    """C-145."""
    with one_way(file, security_username="ny", security_password_file=password_file(tmp_path / "ny", "wrong")) as (
        here,
        there,
    ):
        for n in range(20):
            here.region[n] = n
        eventually(lambda: "does not take user 'ny': refused" in trouble(here), timeout=20)
        assert here.sender.is_running and not here.sender.is_connected
        assert here.sender.lag()["events"] == 20 and not len(there.region)
        assert here.sender.status == "Running, not Connected"
        here.region["one more"] = 1
        assert here.sender.lag()["events"] == 21


def test_a_user_who_may_not_write_is_refused(file):
    """The locators let readers ask. The receiver needs more."""
    with one_way(file, ny={"gateway_username": "ln", "gateway_password": "ln"}) as (here, there):
        here.region["k"] = 1
        eventually(lambda: "ln lacks the permission DATA:WRITE" in trouble(here), timeout=20)
        assert not len(there.region)


def hello(receiver, **more):
    """What a receiver answers to a hello: the error."""
    said = {
        "site": 1,
        "remote_site": 2,
        "member": "m",
        "sender": "s",
        "dispatcher": 0,
        "numbering": 1,
        "mount": 1,
        "partitions": 1,
        **more,
    }
    with socket.create_connection((receiver.host, receiver.port), 5) as sock:
        sock.sendall(gateway.encode(gateway.SenderHello(**said), _core.FRAME_HELLO))
        return data.receive_message(sock, gateway.Welcome)


def test_a_stranger_is_not_told_what_is_wrong_with_its_hello(file):
    """Nothing else of a hello is looked at before its credentials."""
    with one_way(file) as (_, there):
        for more in ({}, {"site": 2}, {"remote_site": 7}, {"wanted_member": 99}):
            with pytest.raises(AuthenticationError, match=r"^refused: authentication is needed,"):
                hello(there.receiver, **more)
            for user, password in (("member", "wrong"), ("nobody", "x"), ("", ""), ("n" * 300, "x")):
                with pytest.raises(AuthenticationError, match=r"^refused: these credentials"):
                    hello(there.receiver, user=user, password=password, **more)
        with pytest.raises(NotAuthorizedError, match="ln lacks the permission DATA:WRITE"):
            hello(there.receiver, user="ln", password="ln")
        with pytest.raises(ProtocolError, match="wants site 7"):
            hello(there.receiver, user="ny", password="ny", remote_site=7)
        welcome = hello(there.receiver, user="ny", password="ny")
        assert (welcome.user, welcome.password) == (None, None)
        welcome = hello(there.receiver, user="ny", password="ny", asks=True)
        assert (welcome.user, welcome.password) == (None, None)  # Its member's own password is for its own site.
        assert not there.receiver.connected_senders or "server_ny" in str(there.receiver.connected_senders)


def test_wrong_then_right_credentials_deliver_all(file, tmp_path):
    """C-146."""
    secret = tmp_path / "ny"
    with one_way(file, security_username="ny", security_password_file=password_file(secret, "wrong")) as (here, there):
        for n in range(100):
            here.region[n] = n
        eventually(lambda: "refused" in trouble(here), timeout=20)
        password_file(secret, "ny")
        eventually(lambda: len(there.region) == 100, timeout=30)
        assert dict(there.region.items()) == {n: n for n in range(100)}


def test_right_wrong_right_loses_nothing(file, tmp_path, monkeypatch):
    """C-146. The user's password is changed at the receiving site while the sender writes on: its connection ends, and
    all arrives when the password is right again."""
    monkeypatch.setattr(guards, "LOOK_S", 0.2)
    secret, done = tmp_path / "ny", threading.Event()
    with one_way(file, security_username="ny", security_password_file=password_file(secret, "ny")) as (here, there):
        written = {}

        def write():
            while not done.wait(0.001):
                key = len(written)
                here.region[key] = written[key] = key * 2

        writer = threading.Thread(target=write)
        writer.start()
        try:
            eventually(lambda: len(there.region) > 50)
            set_password(file, "ny", "other")
            eventually(lambda: not here.sender.is_connected and "refused" in trouble(here), timeout=30)
            before = len(written)
            eventually(lambda: len(written) > before + 50)
            password_file(secret, "other")
            eventually(lambda: here.sender.is_connected, timeout=30)
            before = len(there.region)
            eventually(lambda: len(there.region) > before + 50)
        finally:
            done.set()
            writer.join()
        eventually(lambda: dict(there.region.items()) == written, timeout=30)
        assert here.sender.lag()["events"] == 0


def test_other_credentials_by_alter(file, tmp_path):
    """C-146."""
    with one_way(file) as (here, there):
        here.region["k"] = 1
        eventually(lambda: there.region.get("k") == 1)
        here.sender.alter(security_username="ny", security_password_file=password_file(tmp_path / "ny", "wrong"))
        here.sender.stop()
        here.sender.start()
        here.region["l"] = 2
        eventually(lambda: "does not take user 'ny'" in trouble(here), timeout=20)
        here.sender.alter(security_password_file=password_file(tmp_path / "right", "ny"))
        eventually(lambda: there.region.get("l") == 2, timeout=30)


def test_a_sender_whose_user_is_removed_is_out(file, tmp_path):
    secret = password_file(tmp_path / "ny", "ny")
    with one_way(file, security_username="ny", security_password_file=secret) as (here, there):
        here.region["k"] = 1
        eventually(lambda: there.region.get("k") == 1)
        write_users(file, read_users(file).without("ny"))
        eventually(lambda: there.receiver.connection_count == 0, timeout=30)
        here.region["l"] = 2
        eventually(lambda: "refused" in trouble(here), timeout=20)
        assert "l" not in there.region and here.sender.lag()["events"] == 1


def test_a_password_goes_over_no_plain_connection(file, tmp_path):
    with one_way(
        file,
        ny={
            "username": None,
            "password": None,
            "gateway_username": None,
            "gateway_password": None,
            "allow_plaintext": False,
        },
        ln={"manager": None, "users_file": None},
        security_username="ny",
        security_password_file=password_file(tmp_path / "ny", "ny"),
    ) as (here, _):
        here.region["k"] = 1
        eventually(lambda: "over a connection without TLS" in trouble(here), timeout=20)


def test_a_file_that_others_can_read_is_not_used(file, tmp_path):
    secret = tmp_path / "ny"
    password_file(secret, "ny")
    secret.chmod(0o640)
    with one_way(file, security_username="ny", security_password_file=str(secret)) as (here, there):
        here.region["k"] = 1
        eventually(lambda: f"chmod 600 {secret}" in trouble(here), timeout=20)
        secret.chmod(0o600)
        eventually(lambda: there.region.get("k") == 1, timeout=20)


def test_attributes_that_do_not_go_together(file):
    with one_way(file) as (here, _):
        for given in ({"security_username": "ny"}, {"security_password_file": "x"}):
            with pytest.raises(GatewaySenderConfigurationError, match="go together"):
                here.cache.create_gateway_sender("other", remote_distributed_system_id=2, **given)


# Receivers that are asked


@pytest.fixture
def encrypted(tmp_path):
    authority = Authority()
    return tuple(options(tmp_path, authority, authority.certificate(name), name) for name in ("ny", "ln"))


def test_certificates_are_users(file, encrypted):
    """No password at all: every process is its certificate."""
    users = read_users(file)
    for name in ("ny", "ln"):
        users = users.without(name).with_user(name, User(("member",), None))
    write_users(file, users)
    of_ny = Path(shutil.copy(file, file.with_name("of_ny.json")))
    none = {
        "username": None,
        "password": None,
        "gateway_username": None,
        "gateway_password": None,
        "manager": "certificates-file",
        "users_file": file,
    }
    ny = {**none, "users_file": of_ny}
    with one_way(file, ny=ny, ln=none, ssl=encrypted, authenticate_receiver=True) as (here, there):
        here.region["k"] = 1
        eventually(lambda: there.region.get("k") == 1)
        write_users(of_ny, read_users(of_ny).with_user("ln", User(("site",), None)))
        eventually(lambda: not here.sender.is_connected, timeout=30)  # An open connection ends.
        here.region["l"] = 2
        eventually(lambda: "is refused here: refused: ln lacks the permission DATA:READ" in trouble(here), timeout=30)
        assert "l" not in there.region


def test_passwords_over_encrypted_connections(file, encrypted, tmp_path):
    asks = {"manager": "users-file", "users_file": file, "allow_plaintext": False}
    with one_way(
        file,
        ny=asks,
        ln={"allow_plaintext": False, "gateway_username": "ln", "gateway_password": "ln"},
        ssl=encrypted,
        authenticate_receiver=True,
        security_username="ny",
        security_password_file=password_file(tmp_path / "ny", "ny"),
    ) as (here, there):
        here.region["k"] = 1
        eventually(lambda: there.region.get("k") == 1)
        # Certificates that no user has are no failed tries.
        assert there.cache.status()["security"]["failed_tries"] == 0
        assert there.locator.status()["security"]["failed_tries"] == 0


def test_a_receiver_shows_what_is_good_at_other_sites_only(file):
    with one_way(file, ln={"gateway_username": "ln", "gateway_password": "ln"}) as (_, there):
        welcome = hello(there.receiver, user="ny", password="ny", asks=True)
        assert (welcome.user, welcome.password) == ("ln", "ln")


def test_a_receiver_without_a_user_for_other_sites_is_refused_by_a_sender_that_asks(file):
    with one_way(file, ny={"manager": "users-file", "users_file": file}, authenticate_receiver=True) as (here, there):
        here.region["k"] = 1
        eventually(lambda: "gateway-username" in trouble(here), timeout=20)
        assert not len(there.region)


def test_who_may_only_look_is_shown_no_password_and_changes_no_configuration(file):
    """A user of another site names an address of its own, and answers there as a locator of the site that asks."""
    entries = ClusterConfiguration()
    entries.put("region", "planted", {}, "id")
    with contextlib.ExitStack() as stack:
        security = {"manager": "users-file", "users_file": file, "username": "member", "password": "member"}
        here = Site(stack, "ny", 1, {**security, "allow_plaintext": True})
        asked = []

        def answer(request, peer):
            asked.append(request)
            return {
                "from": {"name": "loc_ny_2", "host": "127.0.0.1", "port": server.port, "distributed_system_id": 1},
                "uid": "u",
                "sites": [],
                "digest": "",
                "digest_in_site": "",
                "extra": entries.entries(),
            }

        # It asks nobody who they are, so what it is shown comes to the guard that takes all.
        server = ControlServer("127.0.0.1", 0, answer, name="other", guard=Guard(TakesAll(shown := [])))
        stack.callback(server.stop)
        server.start()
        me = {"name": "other", "host": "127.0.0.1", "port": server.port, "distributed_system_id": 2}
        looks = Links(identity=Identity("visitor", "visitor", allow_plaintext=True)).locator
        fields = {"role": "remote", "uid": "v", "digest": "", "digest_in_site": "", "extra": None}
        call_once(here.locator.address, "locator-join", way=looks, **{"from": me}, **fields)
        peers = lambda: {each["address"]: each for each in here.locator.status()["peers"]}  # noqa: E731
        address = str(Address("127.0.0.1", server.port))
        eventually(lambda: peers()[address]["failures"] > 0)
        assert shown == [] and not any(each.get("extra") for each in asked)
        assert here.locator.cluster_configuration() == []
        assert list(here.locator.known_sites()) == [1] and len(here.locator.known_sites()[1]) == 1


def test_a_certificate_is_looked_at_before_a_long_request_is_taken(file, encrypted):
    """Only the head of the request is sent: nothing waits for the rest."""
    security = {"manager": "users-file", "users_file": file, "username": "member", "password": "member"}
    head = control.HEADER.pack(control.MAGIC, 1 << 20, 0, 1)
    with contextlib.ExitStack() as stack:
        here = Site(stack, "ny", 1, security, ssl=encrypted[0])
        of_ln = Links(encrypted[1]).locator
        with of_ln.connect(here.locator.address, 5) as sock:
            sock.sendall(head)
            assert b"these credentials are not accepted" in sock.recv(1000)
        write_users(file, read_users(file).without("ln").with_user("ln", User(("reader",), None)))

        def takes_a_long_one():
            try:
                return call_once(here.locator.address, "ping", way=of_ln, more="x" * 100_000)["ok"]
            except pywan.PywanError:
                return False

        eventually(takes_a_long_one, timeout=20)


def test_a_receiver_that_asks_nobody_tells_nobody_who_it_is(file):
    asks = {"manager": "users-file", "users_file": file}
    with one_way(file, ny=asks, ln={"manager": None, "users_file": None}, authenticate_receiver=True) as (here, there):
        here.region["k"] = 1
        eventually(lambda: "tells nobody who it is" in trouble(here), timeout=20)
        assert not len(there.region)


def test_who_cannot_ask_sends_nothing(file):
    with one_way(file, authenticate_receiver=True) as (here, there):
        here.region["k"] = 1
        eventually(lambda: "this member has no security-manager" in trouble(here), timeout=20)
        assert not len(there.region)
    assert issubclass(AuthenticationError, pywan.PywanError)
