"""What each identity can see, change, stop and learn at the ports of a site, tried over the wire: every operation of a
member and of a locator, senders, rows, and the openings of members. What is expected is in role_table.py."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import pytest

import pywan
from pywan import _core
from pywan.base.versions import VERSION
from pywan.coordination.tables import Incarnation
from pywan.errors import AuthenticationError, NotAuthorizedError, PywanError
from pywan.protocol import between_members, gateway
from pywan.security.identity import Identity
from pywan.security.members_secret import MembersSecret
from pywan.security.operations import LOCATOR, MEMBER
from pywan.security.passwords import hash_of
from pywan.security.permissions import Permission
from pywan.security.users import User, Users, write_users
from pywan.testing.waiting import eventually
from pywan.transport import data
from pywan.transport.control import call_once
from pywan.transport.links import Links
from support.made_certificates import Authority, options
from support.role_table import IDENTITIES, THINGS

# Each user and its role. The passwords are drawn for each run, so none is in an answer by chance.
ROLES = {
    "site": "site",
    "gateway": "gateway",
    "client": "client",
    "operator": "operator",
    "member": "member",
    "administrator": "admin",
}
PASSWORDS = {name: f"password-of-{name}-{secrets.token_hex(8)}" for name in ROLES}
ORDERS, STOCK = "value-of-orders-5ba2", "value-of-stock-91cc"  # In entries whose keys no request names.
LEDGER = "ledger-a71f"  # A region that no request names.
SENDER, QUEUE = "to-other", "audit"
OUTSIDE = f"content-of-a-file-outside-{secrets.token_hex(8)}"
NONCE = b"n" * 16


class Attempt(NamedTuple):
    """A request, or an opening of another protocol.

    Args:
        thing: What it is to do or see: a name of THINGS.
        what: The operation, or a name for the opening.
        make: Makes it as somebody. An error if it is refused.
    """

    thing: str
    what: str
    make: Callable[[Site, Caller], Any]


class Caller(NamedTuple):
    """`user`: None: it says no user. `way`: how it connects."""

    user: str | None
    way: Any


def request(place: str, thing: str, op: str, **fields: Any) -> Attempt:
    """Fields that are functions get the site."""

    def make(site: Site, caller: Caller) -> Any:
        at = site.locator if place == "locator" else site.cache
        told = {name: value(site) if callable(value) else value for name, value in fields.items()}
        return call_once((at.host, at.port), op, timeout=20, way=caller.way, **told)

    return Attempt(thing, op, make)


def member(thing: str, op: str, **fields: Any) -> Attempt:
    return request("member", thing, op, **fields)


def locator(thing: str, op: str, **fields: Any) -> Attempt:
    return request("locator", thing, op, **fields)


def opening(message: Callable[[str | None, str | None], Any], port: Callable[[Site], tuple[str, int]]) -> Any:
    """An opening with credentials, which is answered by a welcome."""

    def make(site: Site, caller: Caller) -> Any:
        password = PASSWORDS[caller.user] if caller.user else None
        with caller.way.connect(port(site), 5) as sock:
            sock.sendall(gateway.encode(message(caller.user, password), _core.FRAME_HELLO))
            return vars(data.receive_message(sock, gateway.Welcome))

    return make


def sender_hello(user: str | None, password: str | None) -> gateway.SenderHello:
    drawn = secrets.randbits(62) + 1
    return gateway.SenderHello(2, 1, "other", "s", 0, drawn, 1, 1, user=user, password=password)


def rows_into(region: str) -> Callable[[str | None, str | None], gateway.ClientHello]:
    return lambda user, password: gateway.ClientHello(region, os.urandom(16), 0, user=user, password=password)


def speak_as_a_member(protocol: bytes) -> Callable[[Site, Caller], Any]:
    """All of the opening is right but the word, which the member that it names has not drawn."""

    def make(site: Site, caller: Caller) -> Any:
        of, to = site.incarnation("second"), site.incarnation("server")
        opening = between_members.Opening(of, to, site.identity, secrets.randbits(62) + 1)
        with caller.way.connect((site.cache.host, site.cache.port), 5) as sock:
            sock.sendall(between_members.encode_opening(protocol, opening))
            try:
                answer = sock.recv(4096)
            except ConnectionError:
                answer = b""
        if not answer:
            raise NotAuthorizedError("closed")
        refusal = msgpack.unpackb(answer[8:])["refusal"]
        if refusal:
            raise NotAuthorizedError(refusal)
        return {}

    return make


def profile_of(site: Site) -> list[Any]:
    mark = hashlib.sha256(NONCE).digest()
    return [["invented", 77], "127.0.0.1", 1, 1, site.identity, [0, 0], site.version, [], "", [], mark]


MEMBER_PROFILE = {
    "name": "invented",
    "member_id": 77,
    "host": "127.0.0.1",
    "port": 1,
    "pid": 1,
    "load": 0,
    "distributed_system_id": 1,
    "receivers": [],
}
LOCATOR_FIELDS = {"uid": "v", "digest": "", "digest_in_site": "", "extra": None}


def locator_of(site_id: int, name: str) -> dict[str, Any]:
    return {"name": name, "host": "127.0.0.1", "port": 1, "distributed_system_id": site_id}


def its_member(site: Site) -> list[Any]:
    me = site.incarnation("server")
    return [me.name, me.member_id]


# What ends something is last.
ATTEMPTS = [
    member("look", "ping"),
    member("look", "status member"),
    member("look", "has-decision", decision=[0, 1], ms=0),
    member("look", "list regions"),
    member("look", "describe region", name="orders"),
    member("look", "list disk-stores"),
    member("look", "describe disk-store", name="disk"),
    member("look", "list gateways"),
    member("look", "status gateway-sender", id=SENDER),
    member("look", "status gateway-receiver"),
    member("look", "list async-event-queues"),
    member("look", "describe async-event-queue", id=QUEUE),
    member("read orders", "get", region="orders", key="k"),
    member("read orders", "get", region="/orders", key="asked"),
    member("read orders", "query size", region="orders"),
    member("read orders", "scan region", region="orders"),
    member("read stock", "get", region="stock", key="asked"),
    member("read stock", "query size", region="stock"),
    member("read stock", "scan region", region="stock"),
    member("read stock", "list parked-events", id=SENDER),
    member("read stock", "get", region=7, key="k"),
    member("write orders", "put", region="orders", key="new", value=1, if_not_exists=True),
    member("write orders", "put", region="orders", key="new", value=1),
    member("write orders", "remove", region="orders", key="new"),
    member("write stock", "put", region="stock", key="new", value=1),
    member("write stock", "put", region="nowhere", key="new", value=1),
    member("write stock", "remove", region="stock", key="new"),
    member("write stock", "remove", region="nowhere", all=True),
    Attempt("write orders", "rows", opening(rows_into("orders"), lambda site: (site.cache.host, site.cache.port))),
    Attempt("write stock", "rows", opening(rows_into("stock"), lambda site: (site.cache.host, site.cache.port))),
    # Its events are a matter of their regions: test_sender_permissions.py.
    Attempt("write orders", "sender", opening(sender_hello, lambda site: (site.receiver.host, site.receiver.port))),
    member("regions", "create region", name="made", type="PARTITION"),
    member("regions", "alter region", name="made", gateway_sender_ids=[SENDER]),
    member("regions", "destroy region", name="made"),
    member("manage", "create disk-store", name="other"),
    member("manage", "destroy disk-store", name="other"),
    member("manage", "create gateway-sender", id="made", remote_distributed_system_id=3),
    member("manage", "alter gateway-sender", id="made", batch_size=7),
    member("manage", "create async-event-queue", id="made2", async_event_listener="no.such:Class"),
    member("manage", "alter async-event-queue", id=QUEUE, batch_size=7),
    member("manage", "destroy gateway-sender", id="made"),
    member("manage", "destroy async-event-queue", id="made2"),
    member("manage", "replay parked-events", id=SENDER),
    member("manage", "drop parked-events", id=SENDER),
    member("manage", "forget site", distributed_system_id=9),
    member("manage", "load-balance gateway-sender", id=SENDER),
    member("manage", "apply configuration", things=[]),
    member("manage", "reload certificates"),
    member("manage", "repair clock", dry_run=True),
    member("manage", "create gateway-receiver", if_not_exists=True),
    member("stop", "pause gateway-sender", id=SENDER),
    member("manage", "resume gateway-sender", id=SENDER),
    member("stop", "pause async-event-queue", id=QUEUE),
    member("manage", "resume async-event-queue-dispatcher", id=QUEUE),
    member("join", "owns-opening", protocol="PWL1", word=1, **{"from": its_member, "to": its_member}),
    member("join", "adopt-buckets", region="orders", of=its_member, to=its_member, questions=[]),
    member(
        "join",
        "older-events",
        region="orders",
        sender=SENDER,
        bucket=0,
        life=1,
        after=0,
        through=1,
        begin=0,
    ),
    member("join", "parked-events", sender=SENDER, what="drop"),
    member("join", "flush-queue", id=SENDER, ms=1),
    member("join", "queue-size", id=SENDER),
    locator("look", "ping"),
    locator("look", "status"),
    locator("look", "members"),
    locator("look", "servers", region="orders"),
    locator("look", "receiver"),
    locator("look", "receivers"),
    locator("look", "known-sites"),
    locator("look", "remote-locators", distributed_system_id=1),
    locator("look", "cluster-configuration"),
    locator("look", "coordination-show"),
    locator("look", "coordination-who", locator="loc", coordinator="loc", site=1, site_identity="", decided=False),
    locator("meet", "locator-join", role="remote", **{"from": locator_of(2, "far")}, **LOCATOR_FIELDS),
    locator("join", "locator-join", role="own", **{"from": locator_of(1, "near")}, **LOCATOR_FIELDS),
    locator("join", "member-join", profile=MEMBER_PROFILE, nonce=NONCE),
    locator("join", "member-heartbeat", name="invented", member_id=77, nonce=NONCE),
    locator("join", "member-leave", name="invented", member_id=77, nonce=NONCE),
    locator(
        "join",
        "coordination-join",
        profile=profile_of,
        stored=[0, 0],
        regions={},
        nonce=NONCE,
        version=VERSION,
    ),
    locator(
        "join",
        "coordination-poll",
        me=["invented", 77],
        stored=[0, 0],
        reaches=[],
        nonce=NONCE,
        version=VERSION,
    ),
    locator(
        "join",
        "coordination-ask",
        me=["invented", 77],
        requests=[["leave"]],
        nonce=NONCE,
        version=VERSION,
    ),
    locator(
        "join",
        "coordination-mirror",
        locator="invented",
        address="127.0.0.1[1]",
        stored=[0, 0],
        records_term=0,
        term=0,
        nonce=NONCE,
        version=VERSION,
    ),
    locator(
        "join", "coordination-standby", me=["invented", 77], stored=[0, 0], promised=0, nonce=NONCE, version=VERSION
    ),
    locator("manage", "change-configuration", action="put", kind="region", name="planted", attributes={}),
    locator("manage", "coordination-move-bucket", region="orders", bucket=1, what="primary", to="server"),
    locator("manage", "coordination-revoke", name="nobody"),
    locator("manage", "reload-certificates"),
    Attempt("speak", "lane", speak_as_a_member(between_members.REPLICATION)),
    Attempt("speak", "calls", speak_as_a_member(between_members.CALLS)),
    member("stop", "stop gateway-sender", id=SENDER),
    member("manage", "clean gateway-sender", id=SENDER),
    member("manage", "start gateway-sender", id=SENDER),
    member("stop", "stop gateway-receiver"),
    member("manage", "start gateway-receiver"),
    member("manage", "destroy gateway-receiver"),
    member("stop", "stop member"),
    locator("stop", "coordination-end-site"),
    locator("stop", "stop"),
]


# What cannot work, whoever asks: a region, a queue or a site that is not there, a field that is no name, a class that
# the process does not allow, and openings in the name of another member.
MISTAKEN = {
    ("get", "ConfigurationError"),
    ("put", "RegionNotFoundError"),
    ("remove", "RegionNotFoundError"),
    ("create async-event-queue", "ConfigurationError"),
    ("destroy async-event-queue", "NotFoundError"),
    ("forget site", "NotFoundError"),
    ("lane", "refused"),
    ("calls", "refused"),
}


class Listener(pywan.AsyncEventListener):
    def process_events(self, events: Any) -> bool:
        return True


class Site:
    """A locator, and a member with regions, a sender, a queue and a receiver."""

    locator: pywan.Locator
    cache: pywan.Cache
    receiver: Any

    def __init__(self, stack: contextlib.ExitStack, folder: Any, **more: Any) -> None:
        security = {
            "manager": "users-file",
            "users_file": folder / "users.json",
            "username": "member",
            "password": PASSWORDS["member"],
            "gateway_username": "gateway",
            "gateway_password": PASSWORDS["gateway"],
            "allow_plaintext": True,
            **more.pop("security", {}),
        }
        self.locator = stack.enter_context(
            pywan.Locator("loc", distributed_system_id=1, port=0, security=security, **more)
        )
        self.cache = stack.enter_context(
            pywan.Cache("server", locators=str(self.locator.address), dir=folder / "server", security=security, **more)
        )
        self.cache.create_disk_store("disk", directories=[str(folder / "disk")])
        self.cache.create_gateway_sender(SENDER, remote_distributed_system_id=2)
        self.cache.create_async_event_queue(QUEUE, async_event_listener=Listener())
        self.receiver = self.cache.create_gateway_receiver(start_port=0, end_port=0)
        for name, value in (("orders", ORDERS), ("stock", STOCK), (LEDGER, STOCK)):
            self.cache.create_region(name, type="PARTITION")["asked" if name != LEDGER else "k"] = value
        stack.enter_context(pywan.Cache("second", locators=str(self.locator.address), security=security, **more))
        eventually(lambda: len(self.shown["members"]) == 2)
        self.identity, self.version = self.shown["site_identity"], self.shown["members"][0]["version"]

    def incarnation(self, member: str) -> Incarnation:
        told = next(each["incarnation"] for each in self.shown["members"] if each["incarnation"].startswith(member))
        name, _, number = told.partition("#")
        return Incarnation(name, int(number, 16))

    @property
    def shown(self) -> dict[str, Any]:
        """What the locator tells of the coordination, whoever asks."""
        reply = self.locator._handler()({"op": "coordination-show"}, ())
        assert isinstance(reply, dict)
        return dict(reply["coordination"])

    def state(self) -> Any:
        """All that somebody might have changed."""
        return {
            "entries": {name: dict(region.items()) for name, region in self.cache.regions().items()},
            "queues": sorted(self.cache.gateway_senders()) + sorted(self.cache.async_event_queues()),
            "stores": sorted(self.cache.disk_stores()),
            "running": [each.is_running for each in self.cache.gateway_senders().values()] + [self.receiver.is_running],
            "configuration": self.locator.cluster_configuration(),
            "members": [each["name"] for each in self.locator.members()],
            "view": [each["incarnation"] for each in self.shown["members"]],
            "sites": self.locator.known_sites(),
        }


@pytest.fixture(scope="module")
def hashes(cheap_passwords):
    return {name: hash_of(password) for name, password in PASSWORDS.items()}


@pytest.fixture
def folder(tmp_path, hashes):
    users = Users.first()
    client = tuple(Permission.of(text, "client") for text in ("DATA:READ:orders", "DATA:WRITE:orders"))
    users = Users({}, {**users.roles, "client": client})
    for name, role in ROLES.items():
        users = users.with_user(name, User((role,), hashes[name]))
    write_users(tmp_path / "users.json", users)
    secret = tmp_path / "members.secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    outside = tmp_path / "outside"
    outside.write_text(OUTSIDE)
    outside.chmod(0o600)
    return tmp_path


@pytest.fixture
def site(folder, request):
    """`request.param`: options of security beside."""
    with contextlib.ExitStack() as stack:
        yield Site(stack, folder, **getattr(request, "param", {}))


def caller_of(user: str) -> Caller:
    if user == "stranger":
        return Caller(None, Links().cluster)
    return Caller(user, Links(identity=Identity(user, PASSWORDS[user], allow_plaintext=True)).cluster)


def try_all(site: Site, caller: Caller) -> tuple[dict[str, set[bool]], str, list[str], set[tuple[str, str]]]:
    """Returns for each thing whether attempts at it were let in; all that was said; lines for people; and what failed,
    with the kind of the error."""
    let_in: dict[str, set[bool]] = {}
    said, told, failed = [], [], set()
    for attempt in ATTEMPTS:
        try:
            reply = attempt.make(site, caller)
            is_in = True
        except (AuthenticationError, NotAuthorizedError) as error:
            reply, is_in = f"refused: {error}", False
        except PywanError as error:  # It was let in, and something else is wrong.
            reply, is_in = f"{type(error).__name__}: {error}", True
        let_in.setdefault(attempt.thing, set()).add(is_in)
        said.append(repr(reply))
        if isinstance(reply, str):
            failed.add((attempt.what, reply.partition(": ")[0]))
        told.append(f"{attempt.thing}: {attempt.what}: {'let in' if is_in else 'refused'}: {reply!r:.200}")
    return let_in, "\n".join(said), told, failed


def learnt(said: str) -> set[str]:
    found = {"names": LEDGER in said, "entries of orders": ORDERS in said, "entries of stock": STOCK in said}
    return {name for name, is_there in found.items() if is_there}


def check_no_secret(said: str, folder: Any) -> None:
    users = json.loads((folder / "users.json").read_text())["users"]
    hashes = [part for user in users.values() for part in user["password"].split("$") if len(part) > 12]
    assert hashes
    secret = (folder / "members.secret").read_text()
    for text in (*PASSWORDS.values(), *hashes, secret, OUTSIDE):
        assert text not in said


def expected(identity: str, *, without: frozenset[str] = frozenset()) -> dict[str, set[bool]]:
    may = IDENTITIES[identity].may - without
    return {thing: {thing in may} for thing in THINGS}


def test_each_operation_is_tried():
    tried = {attempt.what for attempt in ATTEMPTS}
    assert {*MEMBER, *LOCATOR} <= tried
    assert {attempt.thing for attempt in ATTEMPTS} == set(THINGS)


@pytest.mark.parametrize("identity", [name for name in IDENTITIES if name != "certificate"])
def test_what_each_identity_may_do_and_learns(site, folder, identity):
    before = site.state()
    let_in, said, told, failed = try_all(site, caller_of(identity))
    assert let_in == expected(identity), "\n".join(told)
    if identity in ("member", "administrator"):  # All others are refused for what they are, and not for the request.
        assert failed == MISTAKEN, "\n".join(told)
    assert learnt(said) == IDENTITIES[identity].learns, "\n".join(told)
    check_no_secret(said, folder)
    if not {THINGS[thing][0] for thing in IDENTITIES[identity].may} & {"change", "stop"}:
        assert site.state() == before


def test_a_certificate_of_which_no_user_has_the_name_may_do_nothing(folder):
    """All is encrypted, and the certificate is of an authority that the site believes."""
    authority = Authority()
    ours, theirs = (options(folder, authority, authority.certificate(name), name) for name in ("ours", "theirs"))
    with contextlib.ExitStack() as stack:
        site = Site(stack, folder, ssl=ours)
        before = site.state()
        for name in ("cluster", "gateway"):  # Which name a client gives its way matters nothing to the port.
            caller = Caller(None, getattr(Links(theirs), name))
            let_in, said, told, _ = try_all(site, caller)
            assert let_in == expected("certificate"), "\n".join(told)
            assert learnt(said) == IDENTITIES["certificate"].learns, "\n".join(told)
            check_no_secret(said, folder)
        assert site.state() == before


@pytest.mark.parametrize("identity", ["site", "operator", "administrator"])
def test_where_members_prove_a_secret_nobody_else_joins(folder, identity):
    with contextlib.ExitStack() as stack:
        site = Site(stack, folder, security={"members_secret_file": str(folder / "members.secret")})
        let_in, said, told, _ = try_all(site, caller_of(identity))
        assert let_in == expected(identity, without=frozenset({"join"})), "\n".join(told)
        check_no_secret(said, folder)


def test_who_proves_the_secret_may_do_everything_that_requests_do(folder):
    """It says no user, so its openings of other protocols are a stranger's."""
    secret = str(folder / "members.secret")
    with contextlib.ExitStack() as stack:
        site = Site(stack, folder, security={"members_secret_file": secret})
        let_in, said, told, _ = try_all(site, Caller(None, Links(secret=MembersSecret(secret)).cluster))
        both = {"write orders", "write stock"}
        assert {thing: let_in[thing] for thing in both} == {thing: {True, False} for thing in both}, "\n".join(told)
        assert {thing for thing in THINGS if let_in[thing] == {True}} == set(THINGS) - both - {"speak"}
        check_no_secret(said, folder)


@pytest.mark.parametrize("identity", ["operator", "administrator"])
def test_no_command_reads_a_file_outside(site, folder, identity):
    """Wherever a command takes a path or a name, it is given that of a file with a secret."""
    outside = str(folder / "outside")
    caller, said = caller_of(identity), []
    requests = [
        ("create disk-store", {"name": "x", "directories": [outside]}),
        ("create disk-store", {"name": outside}),
        ("describe disk-store", {"name": outside}),
        (
            "create gateway-sender",
            {
                "id": "x",
                "remote_distributed_system_id": 2,
                "security_username": "x",
                "security_password_file": outside,
            },
        ),
        ("alter gateway-sender", {"id": SENDER, "security_username": "x", "security_password_file": outside}),
        ("create async-event-queue", {"id": "x", "async_event_listener": outside}),
        ("create gateway-receiver", {"hostname_for_senders": outside}),
        ("apply configuration", {"things": [{"kind": "region", "name": outside, "attributes": {}}]}),
        ("create region", {"name": "x", "disk_store_name": outside}),
        ("reload certificates", {}),
        ("status gateway-sender", {"id": SENDER}),
        ("list gateways", {}),
        ("status member", {}),
    ]
    for op, fields in requests:
        try:
            reply = call_once((site.cache.host, site.cache.port), op, timeout=20, way=caller.way, **fields)
        except PywanError as error:
            reply = str(error)
        said.append(repr(reply))
    for op in ("status", "cluster-configuration"):
        said.append(repr(call_once((site.locator.host, site.locator.port), op, timeout=20, way=caller.way)))
    check_no_secret("\n".join(said), folder)
    sender = site.cache.gateway_sender(SENDER)
    assert sender.attributes.security_password_file is None and set(site.cache.gateway_senders()) == {SENDER}
