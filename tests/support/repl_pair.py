"""Owns two members at the ends of a replication link, as two regions in one process."""

from __future__ import annotations

import itertools
import socket
import threading

from fuzz_core import calls
from fuzz_core.repl_link import bucket_of
from pywan import _core
from pywan.errors import ConnectivityError
from pywan.testing.waiting import LIMIT_S
from support.records import split_frames

BUCKETS = 3
TIMELINE, EPOCH, TRANSFER = 1, 5, 9
REPL_LINK = 7
SECOND = 1_000_000
name_numbers = itertools.count()


def key_of(bucket: int, number: int = 0) -> bytes:
    """A key of this bucket."""
    return next(
        itertools.islice((key for n in itertools.count() if bucket_of(key := b"k%d" % n) == bucket), number, None)
    )


def call_change(core: _core.RegionCore, key: bytes, value: bytes, operation: int, number: int) -> None:
    """Changes a key by a call of this number, whose answer nobody waits for."""
    session = _core.CallSession({core.name: core}.get)
    record = calls.record(key, value, operation=operation)
    session.receive_data(calls.call(calls.REGION, core.name.encode()), 1)
    session.receive_data(calls.call(calls.CHANGE, record, bucket=bucket_of(key), number=number), 1)


def types(data: bytes) -> list[int]:
    return [frame.type for frame in split_frames(data)]


class Route:
    """What a shared region asks of other members. Here nobody else is there."""

    limit_us = 5 * SECOND

    def __init__(self) -> None:
        self.slots = _core.CallSlots(1)

    def change(self, *change: object) -> None:
        raise ConnectivityError("no other member is there")


class Member:
    def __init__(self, name: str, *, is_shared: bool = True) -> None:
        self.core = _core.RegionCore(name, _core.Clock(), site=1, buckets=BUCKETS)
        self.changelog = _core.Changelog(BUCKETS, self.core.shards)
        if is_shared:
            self.core.share(self.changelog, Route(), True)

    def set_roles(self, role: int, epoch: int = EPOCH, transfer: int = 0) -> None:
        for bucket in range(BUCKETS):
            self.changelog.set_role(bucket, role, TIMELINE, epoch, transfer)


class Pair:
    """A primary of all buckets, and a member that has, or gets, the replicas."""

    def __init__(self, *, learns: bool = False, here: Member | None = None) -> None:
        self.name = here.core.name if here is not None else f"lane{next(name_numbers)}"
        self.here, self.there = here or Member(self.name), Member(self.name)
        self.sender = _core.ReplSender(REPL_LINK, "the replica", 5000)
        self.receiver = _core.ReplReceiver(self.find, 5000)
        self.is_there = True
        self.here.changelog.add_repl_link(REPL_LINK, self.sender)
        self.here.set_roles(_core.REPLICA_PRIMARY)
        if not learns:
            self.there.set_roles(_core.REPLICA_IN_SYNC)
            self.set_replicas(_core.REPLICA_WAITED)
        self.sender.add_region(1, self.name, self.here.core)
        self.threads: list[threading.Thread] = []
        self.ends: list[str] = []
        self.sockets: list[socket.socket] = []

    def find(self, name: str) -> _core.RegionCore | None:
        return self.there.core if name == self.name and self.is_there else None

    def set_replicas(self, state: int, transfer: int = 0) -> None:
        for bucket in range(BUCKETS):
            self.here.changelog.set_replicas(bucket, [(REPL_LINK, state, transfer, 0)])

    def learn(self, transfer: int = TRANSFER) -> None:
        """The other member begins to learn all buckets."""
        for bucket in range(BUCKETS):
            self.there.core.drop_bucket(bucket)
        self.there.set_roles(_core.REPLICA_LEARNER, transfer=transfer)
        self.set_replicas(_core.REPLICA_LEARNING, transfer)

    # By threads and sockets.

    def connect(self) -> None:
        pair = socket.socketpair()
        self.sockets += pair
        for end, file in ((self.sender, pair[0]), (self.receiver, pair[1])):
            thread = threading.Thread(target=self.run, args=(end, file))
            thread.start()
            self.threads.append(thread)

    def run(self, end: _core.ReplSender | _core.ReplReceiver, sock: socket.socket) -> None:
        self.ends.append(end.run_over_socket(sock))
        sock.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Breaks the connection, with what is on its way."""
        for sock in self.sockets:
            sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        for sock in self.sockets:
            sock.close()
        self.threads, self.sockets = [], []

    def close(self) -> None:
        self.sender.stop()
        self.receiver.stop()
        self.cut()

    # By bytes and time only.

    def open(self, now: int) -> None:
        self.now = now
        self.taking = self.receiver.open_session()
        self.sender.session.connected()

    def pump(self, *, back: bool = True) -> list[int]:
        """Moves all bytes, and the answers if `back`. Returns the types of the sender's frames."""
        kinds: list[int] = []
        while True:
            data = self.sender.session.data_to_send(self.now)
            if data:
                kinds += types(data)
                self.taking.receive_data(data, self.now)
            replies = self.taking.data_to_send(self.now) if back else b""
            if replies:
                self.sender.session.receive_data(replies, self.now)
            if not data and not replies:
                return kinds

    # What is asserted.

    def is_even(self) -> bool:
        """Whether the replicas have what the primary has, and know that it counts."""
        return all(
            self.here.changelog.log_end(bucket)
            == self.here.changelog.state(bucket)["high_watermark"]
            == self.there.changelog.state(bucket)["high_watermark"]
            == self.there.changelog.log_end(bucket)
            for bucket in range(BUCKETS)
        )

    def assert_same(self) -> None:
        for bucket in range(BUCKETS):
            assert self.here.core.bucket_digest(bucket) == self.there.core.bucket_digest(bucket), bucket
