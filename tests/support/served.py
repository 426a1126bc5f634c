"""Owns the primary of a region whose calls a test brings, and whose replica acknowledges when the test says so."""

from __future__ import annotations

from fuzz_core import calls
from pywan import _core

BUCKETS = 4
TIMELINE, EPOCH, REPL_LINK = 1, 1, 0
DONE, NOT_PRIMARY, FAILED, IN_DOUBT = range(4)
NEVER = 2**64 - 1
SECOND = 1_000_000


class Served:
    """A primary with one replica of each bucket that acknowledges when the test says so, and a caller's connection."""

    def __init__(self) -> None:
        self.region = _core.RegionCore("r", _core.Clock(), site=1, member=1, buckets=BUCKETS)
        self.changelog = self.new_changelog()
        self.repl_link = _core.ReplLinkState()
        self.repl_link.set_read_lease(NEVER)
        self.changelog.add_repl_link(REPL_LINK, self.repl_link)
        for bucket in range(BUCKETS):
            self.changelog.set_role(bucket, _core.REPLICA_PRIMARY, TIMELINE, EPOCH)
            self.changelog.set_replicas(bucket, [(REPL_LINK, _core.REPLICA_WAITED, 0, 0)])
            self.changelog.acknowledged(bucket, REPL_LINK, TIMELINE, EPOCH, 0)
        self.region.share(self.changelog, None)
        self.keys = [
            next(f"key{n}" for n in range(1000) if self.region.bucket_of(f"key{n}") == bucket)
            for bucket in range(BUCKETS)
        ]
        self.session = self.connect()
        self.next_id = 1

    def new_changelog(self) -> _core.Changelog:
        return _core.Changelog(BUCKETS, self.region.shards)

    def connect(self) -> _core.CallSession:
        session = _core.CallSession({"r": self.region}.get)
        session.receive_data(calls.call(calls.REGION, b"r"), 1)
        return session

    def put(self, bucket: int, value: bytes, epoch: int = EPOCH) -> int:
        """Sends a put of the bucket's key. Returns the call's id."""
        record = calls.record(self.keys[bucket].encode(), value, key_form=1, sequence=self.next_id)
        return self.send(calls.CHANGE, record, bucket, epoch=epoch)

    def get(self, bucket: int, epoch: int = EPOCH) -> int:
        return self.send(calls.GET, self.keys[bucket].encode(), bucket, form=1, epoch=epoch)

    def send(self, kind: int, payload: bytes, bucket: int, form: int = 0, epoch: int = EPOCH) -> int:
        id = self.next_id
        self.next_id += 1
        call = calls.call(kind, payload, id=id, bucket=bucket, epoch=epoch, form=form)
        self.session.receive_data(call)
        return id

    def acknowledge(self, bucket: int, sequence: int | None = None) -> None:
        """The replica of a bucket has everything through a sequence."""
        sequence = self.changelog.log_end(bucket) if sequence is None else sequence
        self.changelog.acknowledged(bucket, REPL_LINK, TIMELINE, EPOCH, sequence)

    def acknowledge_under(self, bucket: int, epoch: int) -> None:
        """The replica of a bucket has everything, under a later epoch."""
        self.changelog.acknowledged(bucket, REPL_LINK, TIMELINE, epoch, self.changelog.log_end(bucket))

    def becomes(self, bucket: int, role: int, epoch: int) -> None:
        """The member's part in a bucket changes."""
        self.changelog.set_role(bucket, role, TIMELINE, epoch)
        if role == _core.REPLICA_PRIMARY:
            self.changelog.set_replicas(bucket, [(REPL_LINK, _core.REPLICA_WAITED, 0, self.changelog.log_end(bucket))])
            self.changelog.acknowledged(bucket, REPL_LINK, TIMELINE, epoch, self.changelog.log_end(bucket))

    def answered(self, now_us: int = 0) -> dict[int, tuple[int, bytes]]:
        """Returns what was answered since the last question, by the calls' ids: the status, and the payload."""
        found = {}
        while data := self.session.data_to_send(now_us):
            found.update({id: (status, payload) for id, status, payload in calls.answers(data)})
        return found
