"""Owns what a stranger does to a site in `site_attack.py`: values out of range, invented members, claims and openings.

It speaks to the ports as anybody could who reaches them, and knows no more than what the locator shows to everybody.
Of an encrypted site he has no certificate. Half of his connections are plain then, and half speak TLS without one. Who
the members are he is told, as he could have heard elsewhere. Each attack runs in a thread of its own, a few times a
second. The process is asked by lines."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from pywan import _core
from pywan.base.versions import VERSION
from pywan.protocol import control as wire
from pywan.testing.processes import serve

EVERY_S = 0.05  # So often each attack is made.
TIMEOUT_S = 3.0
VIEW_S = 0.5  # So old is what is known of the members at most.
IDLE_LANES, IDLE_S = 100, 0.5  # So many connections are kept open that say nothing, and for how long.
FAR_RUNS = (2**24 - 1, 2**30, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1)
LANE, CALLS = b"PWL1", b"PWK1"
HANDSHAKES = 40  # So many connections are held in the middle of a handshake: less than an address has places.
ONLY_TLS = b"this port speaks TLS only"  # An encrypted port tells nothing else to who speaks plainly.
ALERT = b"\x15"  # The first byte of what TLS itself says to refuse.
TOLD_BYTES = 200  # So much is kept of what was told.
CHANGES, REGIONS = 16, 15  # Frames of a lane.


class Target:
    """A site, as a stranger sees it.

    Args:
        port: That of the locator.
        encrypted: What the locator of an encrypted site would show. Empty: the site is not encrypted.
    """

    def __init__(self, port: int, encrypted: dict[str, Any]) -> None:
        self.port = port
        self.told: list[str] = []  # What an encrypted site has told, and should not.
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

    def hear_out(self, sock: socket.socket) -> None:
        """Until the other end closes the connection. An encrypted site says nothing but that it is encrypted."""
        heard = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while chunk := sock.recv(1 << 16):
                heard += chunk[: TOLD_BYTES - len(heard)]
        if self._encrypted and heard and ONLY_TLS not in heard and heard[:1] != ALERT:
            self.told.append(repr(heard))

    def ask(self, port: int, op: str, **fields: Any) -> dict[str, Any]:
        """Returns the reply; {}: the connection was closed."""
        with self.connected(port) as sock:
            sock.sendall(_frame({"op": op, **fields}))
            if self._encrypted:
                self.hear_out(sock)
                return {}
            decoder = wire.Decoder()
            while chunk := sock.recv(1 << 16):
                for message in decoder.feed(chunk):
                    return dict(message.body)
        return {}

    @property
    def view(self) -> dict[str, Any]:
        """What the locator shows to everybody who asks it."""
        if self._encrypted:
            return self._encrypted
        with self._lock:
            if time.monotonic() - self._seen_at > VIEW_S:
                told = self.ask(self.port, "coordination-show").get("coordination")
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


NONCE = b"n" * 16
ATTRIBUTES = ["PARTITION", 113, 1, "", 1, -1, 0, -1, "", False]


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


def join(target: Target, me: list[Any], **fields: Any) -> None:
    request: dict[str, Any] = {"version": VERSION, "stored": [0, 0], "regions": {}, "nonce": NONCE}
    told = {key: fields.pop(key) for key in ("stored", "regions", "holdings", "ended", "coordinator") if key in fields}
    member = next(iter(target.view.get("members", [])), {})
    known = {"pywan": member.get("version", "0"), "identity": target.view.get("site_identity", "")}
    target.ask(target.port, "coordination-join", **{**request, **told}, profile=profile(me, **{**known, **fields}))


# --- what is told to a coordinator ---


def join_with_impossible_numbers(target: Target) -> None:
    far = [target.random.choice(FAR_RUNS), target.random.choice((1, 2**32 - 1, 2**63 - 1))]
    join(target, target.invented(), **{target.random.choice(("stored", "seen")): far})


def join_with_regions_that_cannot_be(target: Target) -> None:
    me, pick = target.invented(), target.random.choice
    buckets = pick((10**9, -5, 0, 2**63 - 1, True, 1.5, float("inf")))
    regions = {
        "twice": ({"r": ATTRIBUTES}, [["r", 1], ["r", 2]]),
        "undescribed": ({}, [["nobody-knows", 1]]),
        "buckets": ({"r": ["PARTITION", buckets, *ATTRIBUTES[2:]]}, [["r", 1]]),
        "name": ({"../r\n": ATTRIBUTES}, [["../r\n", 1]]),
        "circle": ({"r": [*ATTRIBUTES[:3], "r", *ATTRIBUTES[4:]]}, [["r", 1]]),
        "weight": ({"r": ATTRIBUTES}, [["r", pick((-1, 2**63 - 1, True, "1"))]]),
    }
    described, hosting = regions[pick(sorted(regions))]
    join(target, me, regions=described, hosting=hosting)


def join_with_a_bomb(target: Target) -> None:
    """A few KB that unpack to very many values."""
    me = target.invented()
    bucket = [[1, 1], 1, 0, 1, me, [me], [], [], []]
    kind = target.random.choice(("zeros", "runs", "lists"))
    if kind == "zeros":
        data = zlib.compress(b"\x00" * (64 << 20), 9)
    elif kind == "runs":
        data = zlib.compress(msgpack.packb([["data", 0, 1 << 20, [bucket, True]]] * 4), 9)
    else:
        data = zlib.compress(b"\xdd\x01\x00\x00\x00" + b"\x90" * (1 << 24), 9)
    join(target, me, regions={"data": ATTRIBUTES}, hosting=[["data", 1]], holdings=data)


def join_with_long_texts(target: Target) -> None:
    field = target.random.choice(("host", "process", "pywan", "identity"))
    join(target, target.invented(), **{field: "h" * (14 << 20)})


def tell_the_end_of_others(target: Target) -> None:
    """Says, under the name of a living member, that its earlier incarnation has ended."""
    me, port = target.random.choice(target.members)
    twin = [me[0], target.random.randrange(1, 2**32)]
    join(target, twin, port=port, ended=me, before=[me[1]])


def speak_for_members(target: Target) -> None:
    """Polls and asks in the name of a member that is in the view."""
    me, _ = target.random.choice(target.members)
    other, _ = target.random.choice(target.members)
    infinity = float("inf")
    requests = [
        ["left"],
        ["leave"],
        ["unhost", "data"],
        ["destroy-region", "data"],
        ["unreachable", other, [["data", 1], [1, 1]]],
        ["suspect", other],
        [["left"]],
        [{"a": 1}],
        [infinity],
        ["host", "data", ATTRIBUTES, infinity],
        ["caught-up", ["data", 2**63 - 1], [2**64 - 1, -1], me, 1],
        ["ready", *[["data", n] for n in range(5000)]],
        [],
        None,
    ]
    told = {"version": VERSION, "me": me, "nonce": target.random.choice((b"n" * 16, b"", "guess", None))}
    target.ask(target.port, "coordination-ask", **told, requests=[target.random.choice(requests)])
    stored = target.random.choice(([0, 0], [1, 2**32 - 1], [2**63 - 1, 1], [infinity, 0], None))
    target.ask(
        target.port, "coordination-poll", **told, stored=stored, reaches=[other] * target.random.choice((1, 10_000))
    )


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
    target.ask(target.port, "coordination-who", **claim)
    join(target, target.invented(), coordinator=name, identity="invented")


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
    """Openings of lanes and calls with fields that cannot be."""
    pick = target.random.choice
    to, port = pick(target.members)
    odd = pick((float("inf"), -1, 2**64 - 1, True, "12", None, [1], b"\x00" * 3000))
    field = pick(("from", "to", "site", "version", "word", "depth", "line"))
    fields = {"from": pick((target.invented(), ["..", 1], [to[0], odd])), "to": to, field: odd}
    with opened(target, port, pick((LANE, CALLS)), **fields) as sock:
        target.hear_out(sock)


def send_odd_frames(target: Target) -> None:
    """A lane or calls of an invented member, and frames with outcomes, stamps and numbers that cannot be."""
    pick = target.random.choice
    to, port = pick(target.members)
    entry = struct.pack("<IIIBBBB", 40, 0, 0, pick((5, 255)), 0, 255, 9) + os.urandom(24)
    epoch = pick((1, 2**40, 2**64 - 1))
    section = struct.pack("<IIQQQQQQII", 1, 5, epoch, epoch, 0, 1, 2**63, 2**63, 1, len(entry)) + entry
    regions = _core.pack_frame(REGIONS, struct.pack("<IIII", 1, 113, 4, 0) + b"data\0\0\0\0")
    changes = _core.pack_frame(CHANGES, struct.pack("<II", 1, 0) + section, 1)
    with opened(target, port, pick((LANE, CALLS)), **{"from": target.invented(), "to": to}) as sock:
        sock.sendall(regions + changes + os.urandom(100))
        target.hear_out(sock)


def _put_over_a_lane(target: Target, bucket: int, key: bytes) -> bytes:
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


def speak_over_lanes_of_members(target: Target) -> None:
    """Lanes and calls in the names of honest members, right in all but the word, and well-formed frames behind."""
    pick = target.random.choice
    (me, _), (to, port) = target.random.sample(target.members, 2)
    word, key = pick((1, 5, 2**63 - 1, target.random.randrange(1, 2**63))), b"%016d" % target.random.randrange(10_000)
    bucket = ((_core.key_hash(key) >> 32) * 113) >> 32
    regions = _core.pack_frame(REGIONS, struct.pack("<IIII", 1, 113, 4, 0) + b"data\0\0\0\0")
    with opened(target, port, pick((LANE, CALLS)), **{"from": me, "to": to, "word": word}) as sock:
        sock.sendall(regions + _put_over_a_lane(target, bucket, key))
        target.hear_out(sock)


def keep_lanes_open(target: Target) -> None:
    """Lanes and calls that send nothing after their openings."""
    to, port = target.random.choice(target.members)
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_LANES):
            protocol = target.random.choice((LANE, CALLS))
            stack.enter_context(opened(target, port, protocol, **{"from": target.invented(), "to": to}))
        time.sleep(IDLE_S)  # They say nothing, and are there.


def take_buckets_over(target: Target) -> None:
    """Questions of a takeover, under epochs that nobody has given."""
    pick = target.random.choice
    (to, port), (of, _) = pick(target.members), pick((*target.members, (target.invented(), 0)))
    epoch = pick(([2**8, 0], [2**31 - 1, 2**32 - 1], [2**63 - 1, 1], [-1, float("inf")], [1, 1]))
    decision = [epoch, 1, 0, 1, of, [of, to], [], [], []]
    after = pick((0, 1, 2**62, 2**64 - 1, -1, float("inf")))
    questions = [[pick((0, 5, 112, 113, 2**31)), decision, after] for _ in range(pick((1, 3)))]
    target.ask(port, "adopt-buckets", region=pick(("data", "", "nobody")), of=of, to=to, questions=questions)


def send_anything(target: Target) -> None:
    ports = [target.port, *(port for _, port in target.members)]
    with target.connected(target.random.choice(ports)) as sock:
        first = target.random.choice((b"", LANE, CALLS, b"PWC1", b"PWD1", b"GET / HTTP/1.1\r\n"))
        sock.sendall(first + os.urandom(target.random.randrange(2000)))
        socket.socket.shutdown(sock, socket.SHUT_WR)  # That of `ssl` would end the decryption, too.
        target.hear_out(sock)


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
        speak_over_lanes_of_members,
        keep_lanes_open,
        take_buckets_over,
        send_anything,
        stall_handshakes,
    )
}


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
            while not self._stop.wait(EVERY_S):
                with contextlib.suppress(OSError):  # A closed connection is what is to come of it.
                    ATTACKS[name](target)
                self._made[name] += 1

        self._threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names or ATTACKS]
        for thread in self._threads:
            thread.start()

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
