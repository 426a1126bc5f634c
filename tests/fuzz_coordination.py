"""Fuzzes the coordination of a site over real ports: what strangers and members that lie tell a coordinator, and what a
coordinator that lies tells a member. Forms are right; numbers, names, counts and some types are not.

What must hold, whatever comes: the honest members stay in the view with the incarnations that they have; each bucket
keeps as many replicas on them as it is to have; what they ask is answered; each message is answered or its connection
is closed; the log gets no traceback and few lines; memory is bounded; the coordinator starts again from its file.

With `--tls` all connections are encrypted, and the locator asks for accounts. Some peers have a certificate and no
account, or no certificate that is believed, and some damage the bytes of the encryption (fuzz_tls.py).

    make fuzz-coordination FUZZ_SECONDS=600 ARGS="--seed 7 --tls"
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import socket
import ssl
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

import fuzz_tls
import pywan
from fuzz_control import FLOATS, NAMES, NUMBERS, Failure, Grammar, Records, program
from pywan import _core
from pywan.base.versions import VERSION
from pywan.coordination import encoding, plain
from pywan.coordination.agent_session import AgentSession, Remembered
from pywan.coordination.messages import Tables
from pywan.coordination.tables import (
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Incarnation,
    Kind,
    Learner,
    MemberProfile,
    RegionAttributes,
)
from pywan.errors import PywanError
from pywan.protocol import control as wire
from pywan.testing.waiting import eventually
from pywan.transport.control import ControlServer
from pywan.transport.links import LOCATOR_PORT, PLAIN, Gate
from support.ports import free_port
from support.small_members import ATTRIBUTES, SmallMember

HONEST = ("a", "b", "c")
OTHER = RegionAttributes(Kind.PARTITION, total_num_buckets=7, redundant_copies=1)  # Of the members that lie.
NUMBERS_NEAR = (3, 4, 5, 112, 113, 2**16, 2**20, 2**24 - 1, 2**31 - 2, 2**31, 2**32 - 1)
BOMBS = [b"\0", b"\x90", b"\xdd\0\0\0\0"]  # A bomb is one of these values, repeated.
TIMEOUT_S = 20.0
LIES_S = 0.3  # For so long a member listens to a coordinator that lies.
LINES_A_RUN = 3.0  # On the average. A connection that is closed has one line, and a member that comes and goes some.
RESTART_EVERY, LOOK_EVERY = 400, 20


@functools.cache
def bomb(repeated: bytes) -> bytes:
    return zlib.compress(repeated * (1 << 24), 9)


class Counted(Records):
    """Counts the lines of the log, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += record.levelno >= logging.WARNING
        super().emit(record)


class Words(Grammar):
    """Messages of coordination. Most are right but for one value."""

    def value(self, depth: int = 0) -> Any:
        r = self.random
        if r.random() < 0.6:
            return r.choice((*NUMBERS, *NUMBERS_NEAR)) if r.random() < 0.8 else r.choice(FLOATS)
        return super().value(depth)

    def one_changed(self, message: Any) -> Any:
        """`message` with one value changed, left out, or repeated, at any depth."""
        r = self.random
        if isinstance(message, dict) and message and r.random() < 0.95:
            key = r.choice(sorted(message))
            return {**message, key: self.one_changed(message[key])}
        if isinstance(message, list) and message and r.random() < 0.95:
            at, what = r.randrange(len(message)), r.random()
            if what < 0.06:
                return message[:at] + message[at + 1 :]
            if what < 0.12:
                return message[:at] + [message[at]] * r.choice((2, 3, 300)) + message[at + 1 :]
            return [*message[:at], self.one_changed(message[at]), *message[at + 1 :]]
        return self.value()

    def changed(self, message: Any) -> Any:
        return self.one_changed(message) if self.random.random() < 0.8 else self.nearly(message)

    def changed_map(self, fields: dict[str, Any]) -> dict[str, Any]:
        made = self.changed(fields)
        return made if isinstance(made, dict) else {"field": made}

    def packed(self, parts: list[Any]) -> Any:
        """Tables or holdings, packed, and perhaps not whole; or a little that unpacks to very much."""
        r = self.random
        if r.random() < 0.03:
            return bomb(r.choice(BOMBS))
        if r.random() < 0.03:
            return zlib.compress(struct.pack(">BI", 0xDD, 1 << 30) + b"\x90" * 100)
        try:
            data = plain.pack(self.one_changed(parts) if r.random() < 0.9 else parts)
        except (OverflowError, ValueError, RecursionError, TypeError):
            return b""
        return self.damaged(data) if r.random() < 0.05 else data


def drawn_bucket(r: random.Random, members: list[Incarnation]) -> Bucket:
    chosen = r.sample(members, min(len(members), 3))
    epoch = Epoch(r.choice((1, 5, 70_000)), r.randrange(1, 50))
    learners = tuple(Learner(each, r.randrange(9)) for each in chosen[2:])
    return Bucket(epoch, epoch.word, 0, r.randrange(9), chosen[0], tuple(chosen[:2]), (), learners)


class Liar:
    """A member that lies, or somebody who pretends to be one. It speaks through a session of the product."""

    def __init__(self, r: random.Random, site: Fuzzer) -> None:
        self.me = Incarnation(f"evil{r.randrange(8)}", r.randrange(1, 2**32))
        self.session = AgentSession(
            self.me,
            host="127.0.0.1",
            port=site.members[0].server.port,
            site=1,
            version=pywan.__version__,
            process="",
            remembered=Remembered("L", site.identity),
            has_ended=lambda process: False,
            draw_id=lambda: r.randrange(1, 2**32),
            draw_nonce=lambda: r.randbytes(16),
        )


class Fuzzer:
    """A locator and three honest members in this process, and what is done to them.

    Args:
        encryption: Of the site. None: its connections are plain, and nobody is asked.
    """

    def __init__(self, directory: str, seed: int, encryption: fuzz_tls.Encryption | None) -> None:
        self.encryption = encryption
        self.links = PLAIN if encryption is None else encryption.links
        self.seed, self.runs, self.records = seed, 0, Counted()
        self.directory = Path(directory)
        self.port = free_port()
        self.locator = self._start_locator()
        self.members = [
            SmallMember(name, str(self.locator.address), file=self._file(name), links=self.links) for name in HONEST
        ]
        for member in self.members:
            assert member.agent.wait_joined(TIMEOUT_S)
            assert member.host()
        eventually(self._is_whole)
        self.me = [member.agent.me for member in self.members]
        self.identity = self.members[0].agent.site_identity
        self._held: fuzz_tls.Held | None = None
        self._hosted = 0
        self.kind = ""  # Of the last run.

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _start_locator(self) -> pywan.Locator:
        given: dict[str, Any] = {}
        if self.encryption is not None:
            given = {"ssl": self.encryption.ssl, "security": self.encryption.security}
        return pywan.Locator(
            "L", distributed_system_id=1, port=self.port, dir=self.directory / "locator", **given
        ).start()

    def _is_whole(self) -> bool:
        return all(len(replicas) >= 2 for replicas in self._replicas().values()) and len(self._replicas()) == 4

    def _replicas(self) -> dict[BucketKey, frozenset[Incarnation]]:
        """The in-sync replicas of "data" on honest members, as the first member knows them."""
        found = dict(self.members[0].agent.tables.buckets)
        me = {member.agent.me for member in self.members}
        return {key: frozenset(each.isr) & me for key, each in found.items() if key.region == "data"}

    def close(self) -> None:
        for member in self.members:
            member.end()
        self.locator.stop()

    # --- what is done ---

    def exchange(self, message: dict[str, Any], peer: str = "member") -> dict[str, Any] | None:
        """Sends a request. Returns the reply; None: the connection was closed, as may be. `peer`: whose certificate is
        shown."""
        try:
            payload = msgpack.packb(message)
        except (OverflowError, ValueError, TypeError):
            return None
        frame = wire.HEADER.pack(wire.MAGIC, len(payload), _core.crc32c(payload), 1) + payload
        began = time.monotonic()
        try:
            connected = self.connected(peer)
        except OSError:
            if peer in fuzz_tls.REFUSED_IN_HANDSHAKES:
                return None
            raise
        with connected as sock:
            sock.settimeout(TIMEOUT_S)
            decoder = wire.Decoder()
            # TLS tells who is refused by an alert, and that is an error here.
            refused = (ssl.SSLError,) if peer in fuzz_tls.REFUSED_IN_HANDSHAKES else ()
            with contextlib.suppress(ConnectionError, *refused):
                sock.sendall(frame)
                while chunk := sock.recv(1 << 16):
                    for reply in decoder.feed(chunk):
                        if reply.body.get("kind") == "InternalError":
                            raise Failure(f"{reply.body['error']} in reply to {message!r:.2000}")
                        if (took := time.monotonic() - began) > 5:
                            raise Failure(f"an answer took {took:.1f} s: {message!r:.2000}")
                        return reply.body
        return None

    def connected(self, peer: str) -> socket.socket:
        if self.encryption is not None:
            return self.encryption.connect(self.port, peer)
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)

    def has_no_account(self, words: Words) -> None:
        """All is right but the certificate."""
        r, liar = words.random, Liar(words.random, self)
        peer = r.choice(("stranger", *fuzz_tls.REFUSED_IN_HANDSHAKES))
        question = liar.session.question(0)
        op, fields = r.choice(
            (
                (question.op, question.fields),
                ("coordination-who", {"locator": "M", "coordinator": "M", "site": 1, "decided": True}),
                ("coordination-show", {}),
                ("coordination-ask", {"me": encoding.plain_incarnation(self.me[0]), "requests": [["left"]]}),
            )
        )
        reply = self.exchange({"op": op, "version": VERSION, **fields}, peer)
        told = None if reply is None else reply.get("kind")
        if told not in (fuzz_tls.REFUSED if peer == "stranger" else (None,)):
            raise Failure(f"{peer} asks {op}, and is told {reply!r:.500}")

    def broken_encryption(self, words: Words) -> None:
        """Bytes at random inside and outside of the records of TLS, at the locator and at a member."""
        assert self.encryption is not None
        port = words.random.choice((self.port, self.members[0].server.port))
        self.encryption.damage(words.random, port, wire.encode(1, {"op": "coordination-show"}))

    def stranger_joins(self, words: Words) -> None:
        r, liar = words.random, Liar(words.random, self)
        fields = liar.session.question(0).fields
        others = [*self.me, liar.me]
        if r.random() < 0.6:
            names = [f"o{n}" for n in range(r.choice((1, 2, 5)))]
            fields["regions"] = {name: encoding.plain_attributes(OTHER) for name in names}
            fields["profile"] = [*fields["profile"]]
            fields["profile"][7] = [[name, 100] for name in names]
            holdings = {
                BucketKey(name, n): Holding(drawn_bucket(r, others), r.random() < 0.5) for name in names for n in (0, 3)
            }
            fields["holdings"] = words.packed(encoding.plain_holdings(holdings))
        if r.random() < 0.2:
            fields["ended"] = encoding.plain_incarnation(r.choice(others))
        if r.random() < 0.2:
            fields["coordinator"] = r.choice(("M", *NAMES))
        self.exchange({"op": "coordination-join", **words.changed_map({"version": VERSION, **fields})})

    def member_lies(self, words: Words) -> None:
        """Somebody joins as it should be, and then asks what it should not."""
        r, liar = words.random, Liar(words.random, self)
        question = liar.session.question(0)
        reply = self.exchange({"op": question.op, "version": VERSION, **question.fields})
        if reply is None or not reply.get("decides") or reply.get("refused"):
            return
        tables = encoding.tables_of(plain.unpack(reply["tables"]))
        liar.session.take_news(question, reply, tables, 0)
        key, bucket = BucketKey("data", r.randrange(4)), drawn_bucket(r, [*self.me, liar.me])
        liar.session.host("other", OTHER, 100)
        liar.session.unreachable({key: bucket.epoch}, r.choice(self.me))
        liar.session.caught_up(key, bucket.epoch, Learner(liar.me, 1))
        liar.session.ready([key, BucketKey("other", 3)])
        liar.session.suspect(r.choice(self.me))
        liar.session.unhost("another")
        for _ in range(3):
            batch = liar.session.take_due(10**9)
            fields = liar.session.encoded_requests(batch)
            fields["requests"] = [words.changed(each) for each in fields["requests"] if r.random() < 0.7]
            fields["requests"] = [each for each in fields["requests"] if not _is_right_destroy(each)]
            self.exchange(
                {
                    "op": "coordination-ask",
                    "version": VERSION,
                    **(words.changed_map(fields) if r.random() < 0.3 else fields),
                }
            )
            poll = liar.session.question(0)
            self.exchange(
                {
                    "op": poll.op,
                    "version": VERSION,
                    **(words.changed_map(poll.fields) if r.random() < 0.5 else poll.fields),
                }
            )
        if r.random() < 0.5:
            liar.session.say_goodbye()
            batch = liar.session.take_due(2 * 10**9)
            self.exchange({"op": "coordination-ask", "version": VERSION, **liar.session.encoded_requests(batch)})

    def speak_for_others(self, words: Words) -> None:
        """Somebody names an honest member, and cannot prove to be it."""
        r, me = words.random, words.random.choice(self.me)
        named = encoding.plain_incarnation(me)
        requests = [["left"], ["leave"], ["unhost", "data"], ["destroy-region", "data"], ["stay"]]
        made: list[dict[str, Any]] = [
            {"op": "coordination-ask", "me": named, "requests": r.sample(requests, 2)},
            {"op": "coordination-poll", "me": named, "stored": [0, 0], "reaches": []},
        ]
        for message in made:
            for nonce in (None, b"", b"n" * 16, "n", r.choice(NUMBERS)):
                self.exchange({"version": VERSION, **message, **({} if nonce is None else {"nonce": nonce})})
        liar = Liar(r, self)
        liar.session.me = Incarnation(me.name, r.choice((me.member_id, r.randrange(1, 2**32))))
        fields = liar.session.question(0).fields
        self.exchange({"op": "coordination-join", "version": VERSION, **fields, "ended": named})

    def claim(self, words: Words) -> None:
        r = words.random
        name = r.choice(("L", "M", f"m{r.randrange(10**6)}"))
        claim = {
            "locator": name,
            "coordinator": name,
            "site": 1,
            "site_identity": r.choice((self.identity, "another", "")),
            "address": f"127.0.0.1[{r.choice((1, self.port, self.members[0].server.port))}]",
            "decided": r.random() < 0.7,
        }
        self.exchange({"op": "coordination-who", **(claim if r.random() < 0.5 else words.changed_map(claim))})

    def coordinator_lies(self, words: Words) -> None:
        """A member joins at somebody who says to be the coordinator, and lies."""
        r = words.random

        def tables_for(me: Incarnation) -> Any:
            members = [Incarnation("x", 5), me, *self.me]
            profiles = tuple(
                MemberProfile(each, "127.0.0.1", 1 + n, 1, "liars", hosting=(("data", 100),))
                for n, each in enumerate(members)
            )
            buckets = tuple((BucketKey("data", n), drawn_bucket(r, members)) for n in range(4))
            newest = DecisionId(r.choice((1, 5, 2**31 - 1)), r.randrange(1, 100))
            return encoding.plain_tables(
                Tables(0, newest, "liar", "liars", 5_000_000, profiles, (("data", ATTRIBUTES),), buckets, ())
            )

        def answer(request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
            reply: dict[str, Any] = {
                "version": VERSION,
                "decides": True,
                "coordinator": "liar",
                "site_identity": "liars",
                "lease_us": 5_000_000,
                "refused": [],
                "decision": r.randrange(100),
                "refused_requests": [],
            }
            told = request.get("profile", [None])[0] or request.get("me")
            me = Incarnation(*told) if told else Incarnation("victim", 1)
            if r.random() < 0.6:
                reply["tables"] = words.packed(tables_for(me))
            if r.random() < 0.2:
                reply["refused"] = [["no", r.choice(NUMBERS), r.random() < 0.3, r.random() < 0.3, None]]
            if r.random() < 0.2:
                reply["may_leave"] = [["data", 1]]
                reply["still_needed"] = ["", [["data", 1, "x"]]]
            if r.random() < 0.1:
                reply |= {"decides": False, "address": f"127.0.0.1[{r.choice((1, 70_000))}]"}
            reply = words.changed_map(reply) if r.random() < 0.7 else reply
            try:
                wire.encode(1, reply)
            except PywanError:
                return {}
            return reply

        with ControlServer("127.0.0.1", 0, answer, name="liar", gate=Gate(self.links, LOCATOR_PORT)) as liar:
            victim = SmallMember("victim", f"127.0.0.1[{liar.port}]", member_id=r.randrange(1, 2**32), links=self.links)
            try:
                with contextlib.suppress(PywanError):
                    victim.agent.wait_joined(LIES_S / 2)
                with contextlib.suppress(PywanError):
                    victim.agent.host("data", ATTRIBUTES, 100, timeout=LIES_S / 2)
                alive = [thread for thread in victim.agent._threads if thread.is_alive()]
                if len(alive) != len(victim.agent._threads):
                    raise Failure("a thread of a member has ended, because a coordinator lies")
                victim.agent.status()
            finally:
                began = time.monotonic()
                victim.end()
            if time.monotonic() - began > 5:
                raise Failure("a member does not end, because a coordinator lies")

    # --- what must hold ---

    def check(self) -> None:
        if self.records.bad:
            raise Failure(f"in the log: {self.records.bad[0]:.4000}")
        for member, me in zip(self.members, self.me, strict=True):
            if member.given_up or member.agent.me != me:
                raise Failure(f"member {me} was given up")
        # Replicas move among the members. There are never fewer: no honest member has gone, or was silent.
        if not self._is_whole():
            raise Failure(f"too few replicas are on honest members: {self._replicas()}")
        if self.runs % LOOK_EVERY == 0:
            self.look()
        if self.runs % RESTART_EVERY == 0:
            self.restart()

    def look(self) -> None:
        """Asks as an operator and as an honest member would."""
        status = self.exchange({"op": "coordination-show"})
        assert status is not None
        told = status["coordination"]
        if not told["decides"] or told["coordinator"] != "L" or told["problem"]:
            raise Failure(f"the locator does not coordinate any more: {told['problem']}")
        names = {each["name"]: each["state"] for each in told["members"]}
        if any(names.get(name) != "alive" for name in HONEST):
            raise Failure(f"honest members are not alive: {names}")
        if told["lost_buckets"] and "data" in told["waiting_regions"]:
            raise Failure("buckets of honest members were lost")
        self._hosted += 1
        member, region = self.members[self._hosted % 3], f"r{self._hosted % 5}"
        if not member.host(region):
            raise Failure(f"an honest member cannot host a region: {member.agent.status()}")
        member.agent.unhost(region)
        if self.records.lines > LINES_A_RUN * (self.runs + LOOK_EVERY):
            raise Failure(f"{self.records.lines} lines of log in {self.runs} runs")
        if self._held is None:
            self._held = fuzz_tls.Held()
        if grown := self._held.grown():
            raise Failure(grown)

    def check_end(self) -> None:
        """Nobody attacks any more."""
        self.look()
        assert self._held is not None
        self._held.check_end()

    def restart(self) -> None:
        """The coordinator reads what it wrote."""
        self.locator.stop()
        self.locator = self._start_locator()
        for member in self.members:
            eventually(lambda member=member: member.agent.is_joined and not member.agent.status()["problem"])

    def run(self, seed: int) -> None:
        """One run. What it does depends on the seed alone, and what comes of it on the runs before."""
        words = Words(random.Random(seed))
        kinds: dict[Callable[[Words], None], int] = {
            self.stranger_joins: 40,
            self.member_lies: 25,
            self.speak_for_others: 10,
            self.claim: 20,
            self.coordinator_lies: 5,
        }
        if self.encryption is not None:
            kinds |= {self.has_no_account: 20, self.broken_encryption: 40}
        kind = words.random.choices(list(kinds), list(kinds.values()))[0]
        self.kind = kind.__name__
        kind(words)
        self.runs += 1
        self.check()


def _is_right_destroy(request: Any) -> bool:
    """A member may do that."""
    return isinstance(request, list) and request[:1] in (["destroy-region"], ["left"])


def fuzz(seed: int, is_done: Callable[[int], bool], *, tls: bool = False) -> int:
    """Runs until `is_done(runs)`; returns how many. A Failure names the seed with which all began. `tls`: all
    connections are encrypted.
    """
    level = logging.getLogger("pywan").level
    logging.getLogger("pywan").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as directory:
        fuzzer = Fuzzer(directory, seed, fuzz_tls.Encryption(Path(directory)) if tls else None)
        logging.getLogger("pywan").addHandler(fuzzer.records)
        try:
            while not is_done(fuzzer.runs):
                try:
                    fuzzer.run(seed * 1_000_000 + fuzzer.runs)
                except Exception as error:
                    raise Failure(
                        f"run {fuzzer.runs} of seed {seed} ({fuzzer.kind}): {type(error).__name__}: {error}\n"
                        f'repeat with: make fuzz-coordination ARGS="--seed {seed} --runs {fuzzer.runs + 1}'
                        f'{" --tls" * tls}"'
                    ) from error
            fuzzer.check_end()
            return fuzzer.runs
        finally:
            logging.getLogger("pywan").removeHandler(fuzzer.records)
            logging.getLogger("pywan").setLevel(level)
            fuzzer.close()


if __name__ == "__main__":
    sys.exit(program("coordination", __doc__.splitlines()[0], fuzz))
