"""Fuzzes what is not compiled: control messages of wrong types, sizes and names at a locator's and a member's port,
openings of data connections, and answers to whoever asks. Everything must end in a reply or a closed connection, never
in a traceback.

With `--tls` all connections are encrypted, and the ports ask for accounts. Some peers have a certificate and no
account, or no certificate that is believed, and some damage the bytes of the encryption (fuzz_tls.py).

    make fuzz-python FUZZ_SECONDS=600 ARGS="--seed 7 --tls"
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

import fuzz_tls
import pywan
from pywan import _core, errors
from pywan.client import DataConnection
from pywan.protocol import control as wire
from pywan.protocol.discovery import Timings
from pywan.site.membership import Membership, new_profile
from pywan.transport.control import ControlClient, ControlServer
from pywan.transport.links import LOCATOR_PORT, PLAIN, Gate

QUICK = Timings(ping_ms=200, retry_ms=50, retry_max_ms=200, change_delay_ms=5)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
NAMES = (
    "locator_f",
    "server_f",
    "data",
    "s",
    "x",
    "..",
    ".",
    "/",
    "a/b",
    "\x1b[2J\x07",
    "a\nb",
    "\x00",
    "-x",
    "",
    "\u202egnp",
    "N" * 300,
    "y" * 70_000,
    "data ",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32,
    2**53 - 1,
    2**62,
    2**62 - 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
FLOATS = (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e308)

LOOK_EVERY, ANEW_EVERY = 10, 50
HONEST_S = 10.0  # Within this time an honest client is served.
STRANGER_BYTES = 60_000  # So much of a request of a stranger is read, and refused in words.
NONCE = b"n" * 16
PROFILE = {
    "name": "m",
    "member_id": 7,
    "host": "127.0.0.1",
    "port": 1,
    "pid": 1,
    "load": 0,
    "receivers": [{"host": "127.0.0.1", "port": 5000, "load": 1}],
    "distributed_system_id": 1,
}
LOCATOR = {"distributed_system_id": 2, "host": "127.0.0.1", "port": 1, "name": "other"}
ENTRY = {"kind": "region", "name": "r", "attributes": {"type": "PARTITION"}, "revision": 1, "id": "1"}
ASKED_OF_LOCATOR = [
    {"op": "ping", "uid": "u"},
    {
        "op": "locator-join",
        "role": "remote",
        "uid": "u",
        "from": LOCATOR,
        "digest": "d",
        "digest_in_site": "d",
        "extra": [ENTRY],
    },
    {"op": "member-join", "profile": PROFILE, "nonce": NONCE},
    {
        "op": "member-heartbeat",
        "name": "m",
        "member_id": 7,
        "nonce": NONCE,
        "load": 1,
        "receivers": PROFILE["receivers"],
        "digest": "d",
    },
    {"op": "member-leave", "name": "m", "member_id": 7, "nonce": NONCE},
    {"op": "remote-locators", "distributed_system_id": 2},
    {"op": "receiver", "exclude": [1, 2]},
    {"op": "servers"},
    {"op": "members"},
    {"op": "known-sites"},
    {"op": "status"},
    {"op": "cluster-configuration"},
    {
        "op": "change-configuration",
        "action": "put",
        "kind": "region",
        "name": "r",
        "attributes": {"type": "PARTITION", "gateway_sender_ids": ["s"]},
    },
    {"op": "change-configuration", "action": "remove", "kind": "gateway-sender", "name": "s"},
    {"op": "change-configuration", "action": "replace", "things": [{"kind": "region", "name": "r", "attributes": {}}]},
]
SENDER = {
    "id": "s",
    "remote_distributed_system_id": 2,
    "parallel": False,
    "batch_size": 10,
    "dispatcher_threads": 1,
    "order_policy": "key",
    "manual_start": True,
}
ASKED_OF_MEMBER = [
    {"op": "ping"},
    {"op": "create region", "name": "r", "type": "PARTITION", "gateway_sender_ids": ["s"], "if_not_exists": True},
    {"op": "alter region", "name": "data", "gateway_sender_ids": ""},
    {"op": "destroy region", "name": "r", "if_exists": True},
    {"op": "list regions"},
    {"op": "describe region", "name": "data"},
    {"op": "query size", "region": "data"},
    {"op": "get", "region": "data", "key": "k"},
    {"op": "put", "region": "data", "key": "k", "value": 1, "if_not_exists": False},
    {"op": "remove", "region": "data", "key": "k", "all": False},
    {"op": "scan region", "region": "data", "cursor": 0, "limit": 10},
    {"op": "create gateway-sender", **SENDER},
    {"op": "alter gateway-sender", "id": "s", "batch_size": 5},
    {"op": "destroy gateway-sender", "id": "s", "if_exists": True},
    {"op": "start gateway-sender", "id": "s", "clean_queues": False},
    {"op": "stop gateway-sender", "id": "s"},
    {"op": "pause gateway-sender", "id": "s"},
    {"op": "resume gateway-sender", "id": "s"},
    {"op": "status gateway-sender", "id": "s"},
    {"op": "list parked-events", "id": "s", "limit": 5},
    {"op": "replay parked-events", "id": "s"},
    {"op": "drop parked-events", "id": "s"},
    {
        "op": "create gateway-receiver",
        "start_port": 0,
        "end_port": 0,
        "if_not_exists": True,
        "bind_address": "127.0.0.1",
    },
    {"op": "destroy gateway-receiver", "if_exists": True},
    {"op": "start gateway-receiver"},
    {"op": "stop gateway-receiver"},
    {"op": "status gateway-receiver"},
    {"op": "list gateways"},
    {"op": "status member"},
    {"op": "apply configuration", "things": [{"kind": "region", "name": "r", "attributes": {"type": "PARTITION"}}]},
]
HELLOS = [
    {
        "kind": "gateway",
        "site": 2,
        "remote_site": 1,
        "member": "m",
        "sender": "s",
        "dispatcher": 0,
        "numbering": 1,
        "mount": 1,
        "partitions": 1,
        "version": 1,
    },
    {"kind": "rows", "region": "data", "run_id": bytes(16), "task": 1, "version": 1},
]
# The answers of a locator and of a member, all in one map. The one that asks takes from it what it looks for.
ANSWER = {
    "distributed_system_id": 1,
    "cluster_configuration": [{"kind": "region", "name": "r", "attributes": {}}],
    "locator": "l",
    "digest": "d",
    "digest_in_site": "d",
    "sites": {"1": ["127.0.0.1[1]"], "2": ["127.0.0.1[2]"]},
    "known": True,
    "servers": [{key: PROFILE[key] for key in PROFILE if key != "receivers"}],
    "receiver": {"host": "127.0.0.1", "port": 1, "member": "m", "member_id": 7},
    "locators": ["127.0.0.1[2]"],
    "from": LOCATOR,
    "uid": "u",
    "extra": [ENTRY],
}


class Records(logging.Handler):
    """Notes each line of the log that has a traceback, or a character that a terminal obeys."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or OBEYED.search(record.getMessage()):
            self.bad.append(logging.Formatter().format(record))


class Grammar:
    """Messages that are nearly right."""

    def __init__(self, rng: random.Random) -> None:
        self.random = rng

    def value(self, depth: int = 0) -> Any:
        r = self.random
        kind = r.randrange(9 if depth < 3 else 7)
        if kind == 0:
            return r.choice((None, True, False))
        if kind == 1:
            return r.choice(NUMBERS)
        if kind == 2:
            return r.choice(FLOATS)
        if kind in (3, 4):
            return r.choice(NAMES)
        if kind == 5:
            return "".join(
                chr(r.choice((r.randrange(32, 127), r.randrange(0x20), r.randrange(0x80, 0xD7FF))))
                for _ in range(r.randrange(12))
            )
        if kind == 6:
            return r.randbytes(r.choice((0, 1, 8, 300)))
        if kind == 7:
            return [self.value(depth + 1) for _ in range(r.choice((0, 1, 2, 5, 40)))]
        return {str(r.choice(NAMES)): self.value(depth + 1) for _ in range(r.choice((0, 1, 3)))}

    def nearly(self, message: Any) -> Any:
        """`message` with some values changed, left out or added, at any depth."""
        r = self.random
        if r.random() < 0.15:
            return self.value()
        if isinstance(message, dict):
            made = {
                key: self.nearly(item) if r.random() < 0.3 else item
                for key, item in message.items()
                if r.random() > 0.04
            }
            if r.random() < 0.05:
                made[r.choice((*NAMES, "id", "name", "region", "port"))] = self.value()
            return made
        if isinstance(message, list):
            items = [self.nearly(item) if r.random() < 0.5 else item for item in message]
            return items * r.choice((0, 1, 1, 1, 2, 300)) if len(items) < 10 else items
        return self.value() if r.random() < 0.5 else message

    def request(self, templates: list[dict[str, Any]]) -> dict[str, Any]:
        template = self.random.choice(templates)
        made = self.nearly(template)
        if not isinstance(made, dict):
            made = {"field": made}
        if self.random.random() < 0.97:
            made["op"] = template["op"]
        if made.get("op") in ("stop", "stop member"):
            del made["op"]
        return made

    def damaged(self, frame: bytes) -> bytes:
        r, data = self.random, bytearray(frame)
        for _ in range(r.randrange(1, 4)):
            what = r.randrange(4)
            if what == 0 and data:
                data[r.randrange(len(data))] ^= 1 << r.randrange(8)
            elif what == 1 and data:
                del data[r.randrange(len(data)) :]
            elif what == 2:
                at = r.randrange(len(data) + 1)
                data[at:at] = r.randbytes(r.randrange(20))
            elif len(data) >= 16:  # Whole on the outside, anything inside.
                payload = r.randbytes(r.randrange(200))
                data[:] = wire.HEADER.pack(wire.MAGIC, len(payload), _core.crc32c(payload), 1) + payload
        return bytes(data)


class Failure(AssertionError):
    pass


class Fuzzer:
    """A locator and a member of one site, in this process, and what is done to them.

    Args:
        encryption: Of the site. None: its connections are plain, and nobody is asked.
    """

    def __init__(self, directory: str, seed: int, encryption: fuzz_tls.Encryption | None) -> None:
        self.seed, self.runs = seed, 0
        self.records = Records()
        self.directory = directory
        self.encryption = encryption
        self.links = PLAIN if encryption is None else encryption.links
        self.given: dict[str, Any] = {}  # How processes of the site are encrypted, and whom they let in.
        if encryption is not None:
            self.given = {"ssl": encryption.ssl, "security": encryption.security}
        self.locator = self.new_locator()
        self.cache = self.new_member()
        self.held: fuzz_tls.Held | None = None

    def new_locator(self) -> pywan.Locator:
        """It reads what an earlier one wrote."""
        return pywan.Locator(
            "locator_f", distributed_system_id=1, port=0, timings=QUICK, dir=self.directory, **self.given
        ).start()

    def new_member(self) -> pywan.Cache:
        self.cache = pywan.Cache(
            "server_f", locators=str(self.locator.address), dir=os.path.join(self.directory, "member"), **self.given
        )
        self.cache.create_region("data", type="REPLICATE")
        self.cache.create_region("honest", type="REPLICATE")  # No request names it.
        self.cache.create_gateway_receiver(start_port=0, end_port=0)
        return self.cache

    def close(self) -> None:
        self.cache.close()
        self.locator.stop()

    # One run each.

    def request(self, grammar: Grammar) -> None:
        port, templates = grammar.random.choice(
            ((self.locator.port, ASKED_OF_LOCATOR), (self.cache.port, ASKED_OF_MEMBER))
        )
        message = grammar.request(templates)
        try:
            frame = wire.encode(1, message)
        except errors.SerializationError:
            return
        peer = "member" if self.encryption is None else grammar.random.choice(fuzz_tls.PEERS)
        if peer != "member":
            self.refused(port, frame, peer)
            return
        reply = self.exchange(port, frame, whole=True)
        if reply is None:
            raise Failure(f"no reply to {message!r:.2000}")
        if reply.get("kind") == "InternalError":
            raise Failure(f"{reply['error']} in reply to {message!r:.2000}")
        if isinstance(reply.get("error"), str) and len(reply["error"]) > wire.MAX_ERROR_CHARACTERS + 100:
            raise Failure(f"an error of {len(reply['error'])} characters in reply to {message!r:.2000}")

    def refused(self, port: int, frame: bytes, peer: str) -> None:
        """Who has no account is told that, and nothing else. Who has no certificate is told nothing."""
        assert self.encryption is not None
        try:
            sock = self.encryption.connect(port, peer)
        except OSError:
            return
        with sock:
            decoder = wire.Decoder()
            with contextlib.suppress(OSError):
                sock.sendall(frame)
                while chunk := sock.recv(1 << 16):
                    if peer != "stranger":
                        raise Failure(f"{peer} is told {chunk!r:.200}")
                    for message in decoder.feed(chunk):
                        if message.body.get("kind") not in fuzz_tls.REFUSED:
                            raise Failure(f"a peer without an account is told {message.body!r:.500}")
                        return
        if peer == "stranger" and len(frame) <= STRANGER_BYTES:
            raise Failure(f"a peer without an account is not told why it is refused: {frame!r:.500}")

    def broken_encryption(self, grammar: Grammar) -> None:
        """Bytes at random inside and outside of the records of TLS."""
        receiver = self.cache.gateway_receiver
        ports = [self.locator.port, self.cache.port]
        if receiver is not None and receiver.is_running:
            ports.append(receiver.port)
        request = wire.encode(1, {"op": "ping"})
        assert self.encryption is not None
        self.encryption.damage(grammar.random, grammar.random.choice(ports), request)

    def damaged(self, grammar: Grammar) -> None:
        port, templates = grammar.random.choice(
            ((self.locator.port, ASKED_OF_LOCATOR), (self.cache.port, ASKED_OF_MEMBER))
        )
        with contextlib.suppress(errors.SerializationError):
            self.exchange(port, grammar.damaged(wire.encode(1, grammar.request(templates))), whole=False)

    def hello(self, grammar: Grammar) -> None:
        fields = grammar.nearly(grammar.random.choice(HELLOS))
        receiver = self.cache.gateway_receiver
        port = (
            receiver.port
            if receiver is not None and receiver.is_running and grammar.random.random() < 0.5
            else self.cache.port
        )
        with contextlib.suppress(OverflowError, ValueError):
            frame = _core.pack_frame(_core.FRAME_HELLO, msgpack.packb(fields))
            self.exchange(port, grammar.damaged(frame) if grammar.random.random() < 0.2 else frame, whole=False)

    def answers(self, grammar: Grammar) -> None:
        """A member and clients whose locator answers anything."""

        def answer(request: dict, peer: tuple) -> Any:
            made = grammar.nearly(ANSWER)
            return made if isinstance(made, dict) else {"field": made}

        links, encrypted = self.links, self.given.get("ssl")
        with ControlServer("127.0.0.1", 0, answer, name="liar", gate=Gate(links, LOCATOR_PORT)) as liar:
            address = f"127.0.0.1[{liar.port}]"
            with contextlib.suppress(pywan.PywanError):
                DataConnection.open(
                    address, region="data", run_id=bytes(16), task=1, timeout=0.5, ssl=encrypted
                ).close()
            member = Membership(
                address,
                new_profile("m", "127.0.0.1", 1),
                heartbeat_s=0.02,
                way=links.locator,
                remote_way=links.remote_locator,
            )
            try:
                with contextlib.suppress(pywan.PywanError):
                    member.join(0.3)
                for ask in (
                    lambda: member.servers(0.3),
                    lambda: member.find_receiver(2, timeout=0.3),
                    lambda: member.less_loaded_receiver(2, 1, 1, timeout=0.3),
                    lambda: member.remote_locators(9, 0.3),
                ):
                    with contextlib.suppress(pywan.PywanError):
                        ask()
            finally:
                member.leave()
            peer = pywan.Locator(
                "locator_g", distributed_system_id=1, port=0, timings=QUICK, locators=address, **self.given
            )
            with contextlib.suppress(pywan.PywanError):
                peer.start()
            peer.stop()
            self.ask_by_shell(address)

    def ask_by_shell(self, address: str) -> None:
        import io

        from pywan.cli.commands import COMMANDS
        from pywan.cli.output import Output
        from pywan.cli.session import Session

        said = io.StringIO()
        session = Session(COMMANDS, Output(out=said, err=said), address)
        session._ssl = self.given.get("ssl")
        for line in ("list members", "list gateways", "status member --name=m", "list regions"):
            session.run_line(line)
        if found := OBEYED.search(said.getvalue()):
            raise Failure(f"a terminal is given {found[0]!r}")

    def exchange(self, port: int, data: bytes, *, whole: bool) -> dict[str, Any] | None:
        """The reply to a whole request; for anything else the connection must end, once we send no more."""
        with self.connected(port) as sock:
            decoder = wire.Decoder()
            with contextlib.suppress(OSError):  # The connection may be ended while we still send.
                sock.sendall(data)
                if not whole:
                    socket.socket.shutdown(sock, socket.SHUT_WR)  # That of `ssl` would end the decryption, too.
                while chunk := sock.recv(1 << 16):
                    if whole:
                        for message in decoder.feed(chunk):
                            return message.body
        return None

    def connected(self, port: int) -> socket.socket:
        if self.encryption is not None:
            return self.encryption.connect(port)
        return socket.create_connection(("127.0.0.1", port), 30)

    def honest(self) -> None:
        """An operator and a client ask what they may."""
        with ControlClient(("127.0.0.1", self.locator.port), HONEST_S, way=self.links.locator) as client:
            if len(client.call("status")["peers"]) > 300:
                raise Failure("the locator keeps invented addresses")
        with ControlClient(("127.0.0.1", self.cache.port), HONEST_S, way=self.links.cluster) as client:
            client.call("put", region="honest", key="run", value=self.runs)
            if (found := client.call("get", region="honest", key="run")["value"]) != self.runs:
                raise Failure(f"an honest client put {self.runs} and gets {found}")

    def check(self) -> None:
        if self.records.bad:
            raise Failure(f"in the log: {self.records.bad[0]:.4000}")
        if self.runs % LOOK_EVERY:
            return
        fuzz_tls.served_within(HONEST_S, self.honest)
        if self.held is None:
            self.held = fuzz_tls.Held()
        if grown := self.held.grown():
            raise Failure(grown)
        if self.runs % ANEW_EVERY:
            return
        # The member starts anew: what was made of it must not pile up, and what was put into the cluster configuration
        # must let it start.
        self.cache.close()
        if self.runs % (10 * ANEW_EVERY) == 0:
            self.locator.stop()
            self.locator = self.new_locator()
        with ControlClient(("127.0.0.1", self.locator.port), 10, way=self.links.locator) as client:
            for each in client.call("members")["members"]:  # Somebody may have taken the name.
                client.call("member-leave", name=each["name"], member_id=each["member_id"], nonce=NONCE)
            client.call("change-configuration", action="replace", things=[])
        self.new_member()

    def check_end(self) -> None:
        """Nobody attacks any more."""
        fuzz_tls.served_within(HONEST_S, self.honest)
        if self.held is not None:
            self.cache.close()
            self.new_member()
            self.held.check_end()

    def run(self, seed: int) -> None:
        """One run; what it does depends on the seed alone, and what comes of it on the runs before."""
        grammar = Grammar(random.Random(seed))
        kinds, weights = [self.request, self.damaged, self.hello, self.answers], [70, 10, 15, 3]
        if self.encryption is not None:
            kinds, weights = [*kinds, self.broken_encryption], [*weights, 50]
        what = grammar.random.choices(kinds, weights)[0]
        what(grammar)
        self.runs += 1
        self.check()


def fuzz(seed: int, is_done: Callable[[int], bool], *, tls: bool = False) -> int:
    """Runs until `is_done(runs)`; gives how many. A Failure names the seed of its run and the seed with which all
    began. `tls`: all connections are encrypted.
    """
    level = logging.getLogger("pywan").level
    logging.getLogger("pywan").setLevel(logging.INFO)
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        inner = os.path.join(directory, "a", "b", "c")  # Paths that lead upwards end in our own folder.
        os.makedirs(inner)
        os.chdir(inner)
        fuzzer = Fuzzer(inner, seed, fuzz_tls.Encryption(Path(directory)) if tls else None)
        logging.getLogger("pywan").addHandler(fuzzer.records)
        try:
            while not is_done(fuzzer.runs):
                run_seed = seed * 1_000_000 + fuzzer.runs
                try:
                    fuzzer.run(run_seed)
                except Exception as error:
                    raise Failure(
                        f"run {fuzzer.runs} of seed {seed}: {type(error).__name__}: {error}\n"
                        f'repeat with: make fuzz-python ARGS="--seed {seed} --runs '
                        f'{fuzzer.runs + 1}{" --tls" * tls}"'
                    ) from error
            fuzzer.check_end()
            return fuzzer.runs
        finally:
            logging.getLogger("pywan").removeHandler(fuzzer.records)
            logging.getLogger("pywan").setLevel(level)
            fuzzer.close()
            os.chdir(here)


def program(what: str, about: str, fuzz: Callable[..., int]) -> int:
    """A fuzzer as a program. Returns its exit status. `what` names it in its lines, and `about` tells what it does."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--runs", type=int, default=None, help="so many instead of for a time")
    parser.add_argument("--tls", action="store_true", help="all connections are encrypted, and ports ask for accounts")
    options = parser.parse_args()
    logging.getLogger("pywan").propagate = False
    logging.getLogger("pywan").addHandler(logging.NullHandler())
    print(f"{what}: seed {options.seed}", flush=True)
    end = time.monotonic() + options.seconds
    try:
        runs = fuzz(
            options.seed,
            lambda runs: runs >= options.runs if options.runs is not None else time.monotonic() >= end,
            tls=options.tls,
        )
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"{what}: {runs} runs, seed {options.seed}, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(program("control messages", __doc__.splitlines()[0], fuzz))
