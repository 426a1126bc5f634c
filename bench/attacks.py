"""Owns what a stranger does to a site in `site_attack.py`: values out of range, invented members, claims and openings.

It speaks to the ports as anybody could who reaches them, and knows no more than what the locator shows to everybody.
Of an encrypted site he has no certificate. Half of his connections are plain then, and half speak TLS without one. Who
the members are he is told, as he could have heard elsewhere. Each attack runs in a thread of its own, a few times a
second. Each
attack names the words by which the site is to refuse it. An attack that is refused for another reason, as its form is
not that of today, attacks nothing: it is told as a mistake. The process is asked by lines."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgpack

from pywan import _core
from pywan.base.versions import VERSION
from pywan.coordination import encoding
from pywan.coordination.tables import Kind, RegionAttributes
from pywan.protocol import control as wire
from pywan.testing.processes import serve

EVERY_S = 0.05  # So often each attack is made.
TIMEOUT_S = 3.0
VIEW_S = 0.5  # So old is what is known of the members at most.
IDLE_REPL_LINKS, IDLE_S = 100, 0.5  # So many connections are kept open that say nothing, and for how long.
FAR_CONTROLLER_EPOCHS = (2**24 - 1, 2**30, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1)
REPLICATION, CALLS = b"PWL1", b"PWK1"
HANDSHAKES = 40  # So many connections are held in the middle of a handshake: less than an address has places.
ONLY_TLS = b"this port speaks TLS only"  # An encrypted port tells nothing else to who speaks plainly.
ALERT = b"\x15"  # The first byte of what TLS itself says to refuse.
TOLD_BYTES = 200  # So much is kept of what was told.
CHANGES, REGIONS = 16, 15  # Frames of a replication link.

# What a site may say to an attack are patterns for its error or first refusal. This one is for a request that is
# carried out.
TAKEN = "^taken$"
ANYTHING = ""  # It fits all.
MISTAKES_KEPT = 20


class Target:
    """A site, as a stranger sees it.

    Args:
        port: That of the locator.
        encrypted: What the locator of an encrypted site would show. Empty: the site is not encrypted.
    """

    def __init__(self, port: int, encrypted: dict[str, Any]) -> None:
        self.port = port
        self.told: list[str] = []  # What an encrypted site has told, and should not.
        self.refused: Counter[str] = Counter()  # How often each attack was refused by the words that were meant.
        self.mistakes: list[str] = []  # What was refused for another reason.
        self._attack = threading.local()
        self._encrypted = encrypted
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self.random = random.Random(port)
        self._seen: dict[str, Any] = {}
        self._seen_at = 0.0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def connected(self, port: int) -> Iterator[socket.socket]:
        """A connection: plain, or by TLS to an encrypted site at every second time."""
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as sock:
            sock.settimeout(TIMEOUT_S)
            if self._encrypted and self.random.random() < 0.5:
                with self._context.wrap_socket(sock, server_hostname="localhost") as secured:
                    yield secured
            else:
                yield sock

    @property
    def attack(self) -> str:
        """The attack that this thread makes."""
        return getattr(self._attack, "name", "")

    @attack.setter
    def attack(self, name: str) -> None:
        self._attack.name = name

    def judge(self, said: str, meant: Sequence[str]) -> None:
        """Notes whether the site said what was meant. A connection that it closed says nothing of the reason: it may
        have been too busy."""
        if any(re.search(pattern, said, re.DOTALL) for pattern in meant):
            self.refused[self.attack] += 1
        elif said != "closed" and len(self.mistakes) < MISTAKES_KEPT:
            self.mistakes.append(f"{self.attack} was to hear {' or '.join(meant)}, and heard {said:.300}")

    def receive_all(self, sock: socket.socket, meant: Sequence[str]) -> None:
        """Until the other end closes the connection. An encrypted site says nothing but that it is encrypted."""
        received = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while chunk := sock.recv(1 << 16):
                received += chunk[: TOLD_BYTES - len(received)]
        if not self._encrypted:
            self.judge(received.decode(errors="replace") or "closed", meant)
        elif received and ONLY_TLS not in received and received[:1] != ALERT:
            self.told.append(repr(received))

    def ask(self, port: int, op: str, meant: Sequence[str], **fields: Any) -> dict[str, Any]:
        """Returns the reply; {}: the connection was closed. `meant`: what the site is to say."""
        with self.connected(port) as sock:
            sock.sendall(_frame({"op": op, **fields}))
            if self._encrypted:
                self.receive_all(sock, meant)
                return {}
            decoder = wire.Decoder()
            while chunk := sock.recv(1 << 16):
                for message in decoder.feed(chunk):
                    self.judge(_words_of(message.body), meant)
                    return dict(message.body)
        self.judge("closed", meant)
        return {}

    @property
    def view(self) -> dict[str, Any]:
        """What the locator shows to everybody who asks it."""
        if self._encrypted:
            return self._encrypted
        with self._lock:
            if time.monotonic() - self._seen_at > VIEW_S:
                told = self.ask(self.port, "coordination-show", [ANYTHING]).get("coordination")
                self._seen, self._seen_at = told or self._seen, time.monotonic()
            return self._seen

    @property
    def members(self) -> list[tuple[list[Any], int]]:
        """The honest members: each incarnation, as messages have it, and its port."""
        found = []
        for each in self.view.get("members", []):
            name, _, number = each["incarnation"].partition("#")
            if not name.startswith("evil"):
                found.append(([name, int(number, 16)], each["port"]))
        return found

    def invented(self) -> list[Any]:
        return [f"evil{self.random.randrange(10)}", self.random.randrange(1, 2**32)]


def _frame(message: dict[str, Any]) -> bytes:
    """A whole control message, whatever is in it: the product's own encoder refuses some of it."""
    payload = msgpack.packb(message)
    return wire.HEADER.pack(wire.MAGIC, len(payload), _core.crc32c(payload), 1) + payload


def _words_of(reply: dict[str, Any]) -> str:
    """What a reply says: an error, the first refusal, or "taken"."""
    refused = [*reply.get("refused", []), *(refusal for _, refusal in reply.get("refused_requests", []))]
    return str(reply.get("error") or (refused[0][0] if refused else "taken"))


NONCE = b"n" * 16
NOT_A_MEMBER = "member evil.* is not among the members that member"
NO_NONCE = "a member proves that it speaks by a nonce of 16 bytes"
NOT_THAT_ONE = "this is not member .*: the request has not the nonce of the member's join"
# The names of invented members are few, so another one may have joined by the same name.
NAME_IS_TAKEN = "another member of the name evil[0-9] .* may still be alive|another process has joined as member evil"
# A coordinator may have lost a decision of this run, of those here, unless the number is beyond its own. It believes
# that from who was a member when it started.
POSSIBLE_CONTROLLER_EPOCH = 2**24 - 1
NO_WITNESS = "which this coordinator, .* has never made, and was no member when it started"
FULL = "250 members"  # A site has no more, and invented ones stay for a while.


def attributes(**fields: Any) -> list[Any]:
    """A region's attributes in their plain form. `fields`: what differs, whether it can be or not."""
    named = dict(zip(RegionAttributes.__slots__, encoding.plain_attributes(PLAIN), strict=True))
    assert fields.keys() <= named.keys(), f"no attributes {fields.keys() - named.keys()}"
    return list({**named, **fields}.values())


PLAIN = RegionAttributes(Kind.PARTITION, redundant_copies=1)


def profile(me: list[Any], **fields: Any) -> list[Any]:
    """A member's profile in its plain form. `fields`: what differs."""
    plain = {
        "me": me,
        "host": "127.0.0.1",
        "port": 1,
        "site": 1,
        "identity": "",
        "seen": [0, 0],
        "version": fields.pop("pywan", "0"),
        "hosting": [],
        "process": "",
        "before": [],
        "mark": hashlib.sha256(NONCE).digest(),
    }
    return list({**plain, **fields}.values())


def join(target: Target, me: list[Any], meant: Sequence[str], **fields: Any) -> None:
    request: dict[str, Any] = {"version": VERSION, "stored": [0, 0], "regions": {}, "nonce": NONCE}
    told = {key: fields.pop(key) for key in ("stored", "regions", "holdings", "ended", "coordinator") if key in fields}
    member = next(iter(target.view.get("members", [])), {})
    known = {"pywan": member.get("version", "0"), "identity": target.view.get("site_identity", "")}
    target.ask(
        target.port, "coordination-join", meant, **{**request, **told}, profile=profile(me, **{**known, **fields})
    )


# --- what is told to a coordinator ---


def join_with_impossible_numbers(target: Target) -> None:
    far = [target.random.choice(FAR_CONTROLLER_EPOCHS), target.random.choice((1, 2**32 - 1, 2**63 - 1))]
    if not 0 <= far[0] < 2**31:
        meant = f"^controller_epoch of decision id is a whole number from 0 to 2147483647, and not {far[0]}"
    elif far[1] >= 2**32:
        meant = f"^number of decision id is a whole number from 0 to 4294967295, and not {far[1]}"
    elif far[0] > POSSIBLE_CONTROLLER_EPOCH or far[1] == 2**32 - 1:
        meant = rf"names metadata record {far[0]}\.{far[1]}, and this coordinator, .* believes in none above"
    else:
        meant = rf"names metadata record {far[0]}\.{far[1]}, {NO_WITNESS}"
    is_of_form = far[0] in range(2**31) and far[1] < 2**32
    join(
        target,
        target.invented(),
        [meant, NAME_IS_TAKEN, FULL] if is_of_form else [meant],
        **{target.random.choice(("stored", "seen")): far},
    )


def join_with_regions_that_cannot_be(target: Target) -> None:
    me, pick = target.invented(), target.random.choice
    buckets = pick((10**9, -5, 0, 2**63 - 1, True, 1.5, float("inf")))
    regions = {
        "names a region of its own twice": ({"r": attributes()}, [["r", 1], ["r", 2]]),
        "has region nobody-knows, not described": ({}, [["nobody-knows", 1]]),
        "total_num_buckets of region attributes is a whole number from 1 to 4096, and not": (
            {"r": attributes(total_num_buckets=buckets)},
            [["r", 1]],
        ),
        "one of the hosting of member profile is a name": ({"../r\n": attributes()}, [["../r\n", 1]]),
        "^region r: it would be colocated with itself": ({"r": attributes(colocated_with="r")}, [["r", 1]]),
        "one of the hosting of member profile is a whole number from 0 to 2147483647, and not": (
            {"r": attributes()},
            [["r", pick((-1, 2**63 - 1, True, "1"))]],
        ),
    }
    meant = pick(sorted(regions))
    described, hosting = regions[meant]
    join(target, me, [meant, NAME_IS_TAKEN] if "colocated" in meant else [meant], regions=described, hosting=hosting)


def join_with_a_bomb(target: Target) -> None:
    """A few KB that unpack to very many values."""
    me = target.invented()
    bucket = [[1, 1], 1, 0, 1, me, [me], [], [], [], []]
    run = msgpack.packb(["data", 0, 1 << 20, [bucket, True]])
    data, meant = target.random.choice(
        (
            (b"\x00" * (64 << 20), "^a run of buckets has 4 parts, and is not 0"),
            (run * 4, "^length of run of buckets is a whole number from 1 to 4096, and not 1048576"),
            (b"\xdd\x01\x00\x00\x00" + b"\x90" * (1 << 24), "^a part of packed values has more than 2097152 bytes"),
        )
    )
    packed = zlib.compress(data, 9)
    join(target, me, [meant], regions={"data": attributes()}, hosting=[["data", 1]], holdings=packed)


def join_with_long_texts(target: Target) -> None:
    fields = {
        "host": "^host of member profile is a host, and not 'hhh",
        "process": "^process of member profile is a text of at most 200 printable characters, and not 'hhh",
        "pywan": "^version of member profile is a text of at most 64 printable characters, and not 'hhh",
        "identity": "^site_identity of member profile is a name .*, and not 'hhh",
    }
    field = target.random.choice(sorted(fields))
    join(target, target.invented(), [fields[field]], **{field: "h" * (14 << 20)})


def tell_the_end_of_others(target: Target) -> None:
    """Says, under the name of a living member, that its earlier incarnation has ended."""
    me, port = target.random.choice(target.members)
    twin = [me[0], target.random.randrange(1, 2**32)]
    join(
        target,
        twin,
        [f"^the coordinator looks whether member {me[0]}#.* has ended", "may still be alive"],
        port=port,
        ended=me,
        before=[me[1]],
    )


def speak_for_members(target: Target) -> None:
    """Polls and asks in the name of a member that is in the view."""
    me, _ = target.random.choice(target.members)
    other, _ = target.random.choice(target.members)
    infinity = float("inf")
    no_request = "^coordination-ask: there is no request"
    requests: list[tuple[Any, str]] = [
        (["left"], ""),
        (["leave"], ""),
        (["unhost", "data"], ""),
        (["destroy-region", "data"], ""),
        (["unreachable", other, [["data", 1], [1, 1]]], ""),
        (["suspect", other], ""),
        ([["left"]], no_request),
        ([{"a": 1}], no_request),
        ([infinity], no_request),
        (["host", "data", attributes(), infinity], "^coordination-ask: host is a whole number from 0 to"),
        (["caught-up", ["data", 2**63 - 1], [2**64 - 1, -1], me, 1], "^coordination-ask: number of bucket key is"),
        (
            ["ready", *[["data", n] for n in range(5000)]],
            "^coordination-ask: buckets of ready is a list of at most 4096",
        ),
        ([], no_request),
        (None, no_request),
    ]
    nonce = target.random.choice((b"n" * 16, b"", "guess", None))
    told = {"version": VERSION, "me": me, "nonce": nonce}
    proof = NOT_THAT_ONE if nonce in (b"n" * 16, None) else NO_NONCE
    request, meant = target.random.choice(requests)
    target.ask(target.port, "coordination-ask", [meant or proof], **told, requests=[request])
    far = "^controller_epoch of decision id is a whole number"
    stored, meant = target.random.choice(
        (
            ([0, 0], ""),
            ([1, 2**32 - 1], ""),
            ([2**63 - 1, 1], far),
            ([infinity, 0], far),
            (None, "^a decision id has 2 parts, and is not None"),
        )
    )
    reaches = [other] * target.random.choice((1, 10_000))
    many = "^members is a list of at most 250, and not" if len(reaches) > 1 else ""
    target.ask(target.port, "coordination-poll", [meant or many or proof], **told, stored=stored, reaches=reaches)


def claim_to_coordinate(target: Target) -> None:
    name = f"evil-locator-{target.random.randrange(10**6)}"
    port = target.random.choice((1, target.port, target.random.randrange(1, 65536)))
    claim = {
        "locator": name,
        "coordinator": name,
        "site": 1,
        "site_identity": target.random.choice(("invented", target.view.get("site_identity", ""))),
        "address": f"127.0.0.1[{port}]",
        "decided": True,
    }
    target.ask(target.port, "coordination-who", [TAKEN], **claim)  # It is asked, and not believed.
    join(
        target,
        target.invented(),
        ["^member evil[0-9] belongs to the site invented, and this is"],
        coordinator=name,
        identity="invented",
    )


# --- what is told to members ---


def _opening(protocol: bytes, body: dict[str, Any]) -> bytes:
    packed = msgpack.packb(body)
    return protocol + struct.pack("<I", len(packed)) + packed


def _open(target: Target, port: int, protocol: bytes, **fields: Any) -> Iterator[socket.socket]:
    identity = target.view.get("site_identity", "")
    told = {"site": identity, "version": fields.pop("version", VERSION), "word": 1, "depth": 0, "line": 2**62}
    with target.connected(port) as sock:
        sock.sendall(_opening(protocol, {**told, **fields}))
        yield sock


opened = contextlib.contextmanager(_open)


def open_strangely(target: Target) -> None:
    """Openings of replication links and calls with fields that cannot be."""
    pick = target.random.choice
    to, port = pick(target.members)
    odd = pick((float("inf"), -1, 2**64 - 1, True, "12", None, [1], b"\x00" * 3000))
    field = pick(("from", "to", "site", "version", "word", "depth", "line"))
    value = pick((odd, ["..", 1], [to[0], odd])) if field in ("from", "to") else odd
    fields = {"from": target.invented(), "to": to, field: value}
    protocol = pick((REPLICATION, CALLS))
    is_unread = protocol == REPLICATION and field in ("depth", "line")  # Replication links have no such fields.
    meant = {
        "site": "the opening of a member: site is .*, and no identity of a site|belongs to the site '12', and this is",
        "version": "speaks version .* of the protocol of a site",
        "from": "the opening of a member: from is .*, and no incarnation of a member",
        "to": "the opening of a member: to is .*, and no incarnation of a member",
    }.get(field, f"the opening of a member: {field} is .*, and no number from")
    too_long = "its opening has [0-9]+ bytes, at most 4096 are possible"
    meants = [NOT_A_MEMBER] if is_unread else [meant, too_long]
    with opened(target, port, protocol, **fields) as sock:
        target.receive_all(sock, meants)


def send_odd_frames(target: Target) -> None:
    """A replication link or calls of an invented member, and frames with outcomes, stamps and numbers that cannot
    be."""
    pick = target.random.choice
    to, port = pick(target.members)
    entry = struct.pack("<IIIBBBB", 40, 0, 0, pick((5, 255)), 0, 255, 9) + os.urandom(24)
    epoch = pick((1, 2**40, 2**64 - 1))
    section = struct.pack("<IIQQQQQQII", 1, 5, epoch, epoch, 0, 1, 2**63, 2**63, 1, len(entry)) + entry
    regions = _core.pack_frame(REGIONS, struct.pack("<IIII", 1, 113, 4, 0) + b"data\0\0\0\0")
    changes = _core.pack_frame(CHANGES, struct.pack("<II", 1, 0) + section, 1)
    with opened(target, port, pick((REPLICATION, CALLS)), **{"from": target.invented(), "to": to}) as sock:
        sock.sendall(regions + changes + os.urandom(100))
        target.receive_all(sock, [NOT_A_MEMBER])


def _put_over_a_repl_link(target: Target, bucket: int, key: bytes) -> bytes:
    """What the primary of a bucket would send of one put, but for the epoch and the sequence, which are guessed."""
    pick, stamp = target.random.choice, time.time_ns() // 1_000_000 << 16
    stamp = pick((stamp, stamp + (7_200_000 << 16), 2**64 - 1))
    record = struct.pack("<IHHQQIIHBBBBBB", 8, len(key), 0, stamp, 1, 7, 1, 0, 0, 0, 1, 1, 1, 3 | 3 << 4)
    record += key + b"stranger"
    record += bytes(-len(record) % 8)
    entry = struct.pack("<IIIBBBB", 16 + len(record), 0, 0, pick((0, 1, 5)), 0, 0, 0) + record
    epoch, first = 1 << 32 | target.random.randrange(1, 500), target.random.randrange(1, 100)
    section = struct.pack("<IIQQQQQQII", 1, bucket, epoch, epoch, 0, first, 0, 0, 1, len(entry)) + entry
    return _core.pack_frame(CHANGES, struct.pack("<II", 1, 0) + section, 1)


def speak_over_repl_links_of_members(target: Target) -> None:
    """Replication links and calls in the names of honest members, right in all but the word, and well-formed frames
    behind."""
    pick = target.random.choice
    (me, _), (to, port) = target.random.sample(target.members, 2)
    word, key = pick((1, 5, 2**63 - 1, target.random.randrange(1, 2**63))), b"%016d" % target.random.randrange(10_000)
    bucket = ((_core.key_hash(key) >> 32) * 113) >> 32
    regions = _core.pack_frame(REGIONS, struct.pack("<IIII", 1, 113, 4, 0) + b"data\0\0\0\0")
    with opened(target, port, pick((REPLICATION, CALLS)), **{"from": me, "to": to, "word": word}) as sock:
        sock.sendall(regions + _put_over_a_repl_link(target, bucket, key))
        target.receive_all(sock, [f"member {me[0]}#.*, in whose name it was opened, says that it is not its own"])


def keep_repl_links_open(target: Target) -> None:
    """Replication links and calls that send nothing after their openings."""
    to, port = target.random.choice(target.members)
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_REPL_LINKS):
            protocol = target.random.choice((REPLICATION, CALLS))
            stack.enter_context(opened(target, port, protocol, **{"from": target.invented(), "to": to}))
        time.sleep(IDLE_S)  # They say nothing, and are there.


def take_buckets_over(target: Target) -> None:
    """Questions of a takeover, under epochs that nobody has given."""
    pick = target.random.choice
    (to, port), (of, _) = pick(target.members), pick((*target.members, (target.invented(), 0)))
    epoch = pick(([2**8, 0], [2**31 - 1, 2**32 - 1], [2**63 - 1, 1], [-1, float("inf")], [1, 1]))
    after = pick((0, 1, 2**62, 2**64 - 1, -1, float("inf")))
    questions = [[number, epoch, after] for number in target.random.sample((0, 5, 112, 113, 2**31), pick((1, 3)))]
    region = pick(("data", "", "nobody"))
    if not region:
        meant = "^questions about the replicas of region '', which is no name"
    elif not (0 <= epoch[0] < 2**31 and epoch[1] < 2**32):
        meant = "^(controller_epoch|number) of epoch is a whole number"
    elif not 0 <= after < 2**63:
        meant = "^a sequence of a bucket is a whole number"
    else:
        meant = TAKEN  # A question changes nothing, and this one has no answer.
    target.ask(port, "adopt-buckets", [meant], region=region, of=of, to=to, questions=questions)


def send_anything(target: Target) -> None:
    ports = [target.port, *(port for _, port in target.members)]
    with target.connected(target.random.choice(ports)) as sock:
        first = target.random.choice((b"", REPLICATION, CALLS, b"PWC1", b"PWD1", b"GET / HTTP/1.1\r\n"))
        sock.sendall(first + os.urandom(target.random.randrange(2000)))
        socket.socket.shutdown(sock, socket.SHUT_WR)  # That of `ssl` would end the decryption, too.
        target.receive_all(sock, [ANYTHING])


def client_hello() -> bytes:
    """What a client of TLS says first."""
    outgoing = ssl.MemoryBIO()
    shaking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


def stall_handshakes(target: Target) -> None:
    """Connections that say nothing, or half of what begins a handshake, or nothing after they have begun one."""
    hello = client_hello()
    ports = [target.port, *(port for _, port in target.members)]
    with contextlib.ExitStack() as stack:
        for n in range(HANDSHAKES):
            address = "127.0.0.1", target.random.choice(ports)
            sock = stack.enter_context(socket.create_connection(address, TIMEOUT_S))
            sock.sendall((b"", hello[:1], hello[: len(hello) // 2], hello)[n % 4])
        time.sleep(IDLE_S)


ATTACKS: dict[str, Callable[[Target], None]] = {
    each.__name__: each
    for each in (
        join_with_impossible_numbers,
        join_with_regions_that_cannot_be,
        join_with_a_bomb,
        join_with_long_texts,
        tell_the_end_of_others,
        speak_for_members,
        claim_to_coordinate,
        open_strangely,
        send_odd_frames,
        speak_over_repl_links_of_members,
        keep_repl_links_open,
        take_buckets_over,
        send_anything,
        stall_handshakes,
    )
}


# These end without a word from the site.
UNANSWERED = {"keep_repl_links_open", "stall_handshakes"}


class Attacker:
    """What the process can be asked."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._made: Counter[str] = Counter()

    def attack(self, port: int, encrypted: dict[str, Any], *names: str) -> None:
        """Begins these attacks on the site of that locator; none named: all. `encrypted`: as for `Target`."""
        target = self._target = Target(port, encrypted)

        def run(name: str) -> None:
            target.attack = name
            while not self._stop.wait(EVERY_S):
                with contextlib.suppress(OSError):  # A closed connection is what is to come of it.
                    ATTACKS[name](target)
                self._made[name] += 1

        self._threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names or ATTACKS]
        for thread in self._threads:
            thread.start()

    def mistakes(self) -> list[str]:
        """Returns which attacks were refused for another reason than they were meant to be: the first ones."""
        return self._target.mistakes

    def refused(self) -> dict[str, int]:
        """Returns how often each attack was refused as it was meant to be."""
        return self._target.refused

    def told(self) -> list[str]:
        """Returns what an encrypted site has told the stranger: the first words of it."""
        return self._target.told[:10]

    def rest(self) -> dict[str, int]:
        """Ends the attacks. Returns how often each of them was made."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self._made


if __name__ == "__main__":
    serve(Attacker())
