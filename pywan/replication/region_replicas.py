"""Owns a member's replicas of the buckets of one region.

A replica follows its primary, learns the content of the bucket, or takes over and leads. The cluster metadata give each
replica its role (docs/decisions/0056). The data lie in the region and its change log (docs/decisions/0057).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pywan import _core
from pywan.coordination.tables import NO_EPOCH, Bucket, BucketKey, Epoch, Incarnation, Learner
from pywan.errors import ProtocolError, PywanError

log = logging.getLogger("pywan.replication")

ENTRIES_BYTES_MAX = 1 << 20  # The limit of one answer to a question. A single longer entry is sent whole.
ASK_AGAIN_US = 100_000  # A replica without an answer for so long is asked again.


class Question(NamedTuple):
    """Asks a replica whether the replica follows `epoch`, the leader epoch of the asking primary, and asks for the
    changes after sequence `after`."""

    bucket: int
    epoch: Epoch
    after: int


class Answer(NamedTuple):
    """The replica follows the epoch. `log_end` is the replica's last sequence. `entries` are changes from `after` + 1
    on: at least one if `log_end` is beyond `after`, otherwise none. `before` is the epoch adopted before `epoch`.
    `led`: the replica was the primary of `before`, and accepted changes."""

    bucket: int
    epoch: Epoch
    after: int
    log_end: int
    entries: bytes
    before: Epoch
    led: bool


class MemberServices(Protocol):
    """The services of a member for the replicas of a region. All calls return at once."""

    def now_us(self) -> int: ...
    def repl_link(self, member: Incarnation) -> int:
        """Returns the number of the replication link to a member. The region's change log then knows the replication
        link."""
        ...

    def prepare(self, member: Incarnation) -> None:
        """Opens connections to a member of the view: this member may soon lead buckets with replicas at the given
        member."""
        ...

    def promised_us(self, to_all_but: Incarnation) -> int:
        """Returns the remaining time, in us, of the longest read lease given to a member other than `to_all_but`."""
        ...

    def deny(self, region: str, bucket: int, epoch: Epoch, to_all_but: Incarnation) -> None:
        """Tells earlier primaries of the bucket, before any later read lease, that this member knows a later epoch."""
        ...

    def ask(self, member: Incarnation, region: str, questions: list[Question]) -> None:
        """Asks a member. Answers come to `RegionReplicas.adopted`, or never."""
        ...

    def ready(self, keys: list[BucketKey]) -> None: ...
    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None: ...


@dataclass
class _Replica:
    timeline: int
    epoch: Epoch = NO_EPOCH
    before: Epoch = NO_EPOCH  # The epoch adopted before the present one.
    transfer: int = 0  # The number of the snapshot that a learner receives. 0: the replica is complete.
    led: Epoch = NO_EPOCH  # The last epoch under which this member was the primary and accepted changes.

    def adopt(self, epoch: Epoch) -> bool:
        """Returns whether the epoch is later than the adopted one."""
        is_later = epoch > self.epoch
        if is_later:
            self.before, self.epoch = self.epoch, epoch
        return is_later


@dataclass
class _Lead:
    """A primary's knowledge of the other replicas. The primary is active after all replicas have answered, and then
    accepts changes."""

    epoch: Epoch
    wait_until_us: int  # Until then an earlier primary may answer reads.
    before: Epoch  # The newest earlier epoch of this replica and all answering replicas.
    led: Epoch = NO_EPOCH  # The newest earlier epoch whose active primary has answered.
    is_active: bool = False
    adopted: dict[Incarnation, int] = field(default_factory=dict)  # By replica: its last sequence when answering.
    asked_us: dict[Incarnation, int] = field(default_factory=dict)
    caught_up: set[Learner] = field(default_factory=set)  # Learners for which the primary waits already.

    @property
    def has_followed(self) -> bool:
        """Whether the primary of the earlier epoch is a replica now. The earlier primary answers no reads any more, so
        its read leases need not expire. The property is valid after all replicas have answered."""
        return self.led == self.before != NO_EPOCH


class RegionReplicas:
    """The caller holds the lock of the member's replicas for every call."""

    def __init__(
        self,
        name: str,
        core: Any,
        changelog: _core.Changelog,
        me: Incarnation,
        services: MemberServices,
        *,
        content: Mapping[int, Bucket],
    ) -> None:
        """`content`: the buckets' metadata records from the time when this member alone had the region. The region's
        data are the content of these buckets."""
        self.name, self.changelog = name, changelog
        self._core, self._me, self._services = core, me, services
        self._decisions: dict[int, Bucket] = dict(content)
        self._replicas = {number: _Replica(bucket.timeline, bucket.epoch) for number, bucket in content.items()}
        self._leads: dict[int, _Lead] = {}
        self._inactive: set[int] = set()  # The buckets in `_leads` without an active lead.
        self._kept_events = 0  # Queued events of lost buckets that the member sends, not logged yet.

    # Metadata records

    def take(self, number: int, bucket: Bucket | None) -> None:
        """Adopts a metadata record of a bucket. None: the bucket does not exist any more."""
        known, replica, me = self._decisions.get(number), self._replicas.get(number), self._me
        if bucket is None or me not in (*bucket.holders, *bucket.leaving):
            if replica is not None and bucket is not None and not bucket.isr:
                self._keep_events(number)  # No member has the bucket any more.
            self._forget(number, bucket)
            return
        if known is not None and (bucket.epoch, bucket.version) < (known.epoch, known.version):
            return
        self._decisions[number] = bucket
        self._set_holders(number, bucket)
        transfer = bucket.transfer_of(me) or 0
        # The primary waits for leaving replicas too, and one of them may have to lead again.
        has_content = me in (*bucket.isr, *bucket.leaving)
        if replica is not None and has_content and bucket.goes_on_with(replica.timeline):
            replica.timeline = bucket.timeline
        restarts = (
            transfer != 0 and replica is not None and (replica.transfer != transfer or bucket.epoch > replica.epoch)
        )
        if replica is None or replica.timeline != bucket.timeline or restarts:
            if replica is not None and replica.timeline < bucket.timeline and not bucket.goes_on_with(replica.timeline):
                self._keep_events(number)
            self._drop_lead(number)
            self.changelog.set_role(number, _core.REPLICA_ABSENT, bucket.timeline, bucket.epoch.word)
            self._core.drop_bucket(number)
            replica = self._replicas[number] = _Replica(bucket.timeline)
        is_later = replica.adopt(bucket.epoch)
        replica.transfer = transfer
        for other in bucket.holders:
            self._services.prepare(other)
        if transfer:
            self._set_role(number, _core.REPLICA_LEARNER)
        elif bucket.primary == me:
            self._lead(number, bucket)
            return
        else:
            self._drop_lead(number)
            self._set_role(number, _core.REPLICA_IN_SYNC)
        if is_later and bucket.primary is not None:
            self._services.deny(self.name, number, bucket.epoch, bucket.primary)

    def _forget(self, number: int, bucket: Bucket | None) -> None:
        self._drop_lead(number)
        if self._replicas.pop(number, None) is not None:
            epoch = bucket.epoch if bucket is not None else self._decisions[number].epoch
            timeline = bucket.timeline if bucket is not None else self._decisions[number].timeline
            self.changelog.set_role(number, _core.REPLICA_ABSENT, timeline, epoch.word)
            self._core.drop_bucket(number)
        self._set_holders(number, bucket)
        if bucket is None:
            self._decisions.pop(number, None)
        else:
            self._decisions[number] = bucket

    def _set_holders(self, number: int, bucket: Bucket | None) -> None:
        """Only in-sync replicas and leaving replicas can announce removed events of the bucket."""
        holders = () if bucket is None else (*bucket.isr, *bucket.leaving)
        self.changelog.set_holders(number, [each.member_id for each in holders])

    def _keep_events(self, number: int) -> None:
        """The timeline of the replica has ended, and all entries of the timeline are lost. This member sends the queued
        events of the timeline. A removed primary drops the queued events: some of its changes may not be replicated."""
        if number in self._leads:
            return
        kept, lost = self.changelog.keep_events(number)
        self._kept_events += kept
        if lost:
            log.error("bucket %d of region %s was lost: no memory for %d of its queued events", number, self.name, lost)

    def _set_role(self, number: int, role: int) -> None:
        replica, primary = self._replicas[number], self._decisions[number].primary
        leader = 0 if primary is None else primary.member_id
        queue_only = self._me in self._decisions[number].queue_only
        self.changelog.set_role(
            number, role, replica.timeline, replica.epoch.word, replica.transfer, leader, queue_only
        )

    # Takeover

    def _lead(self, number: int, bucket: Bucket) -> None:
        lead = self._leads.get(number)
        if lead is not None and lead.epoch == bucket.epoch:
            if lead.is_active:
                self._set_replicas(number)
            return
        # The member's own read leases to earlier primaries delay the takeover too.
        wait_us = self._services.promised_us(self._me)
        before = self._replicas[number].before
        self._leads[number] = _Lead(bucket.epoch, self._services.now_us() + wait_us, before)
        self._inactive.add(number)
        self._set_role(number, _core.REPLICA_TAKING_OVER)
        self._services.deny(self.name, number, bucket.epoch, self._me)

    def _drop_lead(self, number: int) -> None:
        self._leads.pop(number, None)
        self._inactive.discard(number)

    def _others(self, number: int) -> set[Incarnation]:
        """Returns the members on which the primary waits with every change."""
        bucket, lead = self._decisions[number], self._leads[number]
        learning = {each.member for each in lead.caught_up & set(bucket.learners)}
        return {*bucket.isr, *bucket.leaving, *learning} - {self._me}

    def work(self) -> bool:
        """Continues all takeovers. Returns whether some takeovers are incomplete: the caller then calls again soon."""
        if self._kept_events:
            kept, self._kept_events = self._kept_events, 0
            log.warning("region %s: buckets were lost; this member sends %d of their queued events", self.name, kept)
        if not self._inactive:
            return False
        now = self._services.now_us()
        questions: dict[Incarnation, list[Question]] = {}
        ready: list[BucketKey] = []
        for number in sorted(self._inactive):
            lead, bucket = self._leads[number], self._decisions[number]
            last = self.changelog.log_end(number)
            others = self._others(number)
            missing = [each for each in others if lead.adopted.get(each, last + 1) > last]
            for other in missing:
                if now - lead.asked_us.get(other, -ASK_AGAIN_US) >= ASK_AGAIN_US:
                    lead.asked_us[other] = now
                    questions.setdefault(other, []).append(Question(number, bucket.epoch, last))
            if not missing and (lead.has_followed or now >= lead.wait_until_us):
                lead.is_active = True
                self._replicas[number].led = lead.epoch
                self._set_replicas(number)
                self._set_role(number, _core.REPLICA_PRIMARY)
                ready.append(BucketKey(self.name, number))
        if ready:  # The report comes first: if a later step fails, no later call reports the buckets.
            self._services.ready(ready)
        self._inactive -= {key.number for key in ready}
        for member, asked in sorted(questions.items()):
            self._services.ask(member, self.name, asked)
        return bool(self._inactive)

    def adopted(self, member: Incarnation, answers: Iterable[Answer], promised_us: int) -> None:
        """Takes the answers of a replica. `promised_us`: the upper limit, from now, of the replica's read leases to
        earlier primaries. Takes all valid answers, and then raises the error of the first invalid one."""
        until_us = self._services.now_us() + promised_us  # The replica's lease includes a margin for clock drift.
        failed: PywanError | None = None
        for answer in answers:
            lead = self._leads.get(answer.bucket)
            if lead is None or lead.is_active or lead.epoch != answer.epoch:
                continue
            if answer.before >= answer.epoch or answer.after > self.changelog.log_end(answer.bucket):
                failed = failed or ProtocolError(f"region {self.name!r}: {answer} is no answer to what was asked")
                continue
            if answer.entries:
                replica = self._replicas[answer.bucket]
                epoch = replica.epoch.word
                try:
                    self._core.extend(answer.bucket, replica.timeline, epoch, answer.after + 1, answer.entries)
                except PywanError as error:
                    failed = failed or error
                    continue
            lead.adopted[member] = answer.log_end
            lead.asked_us.pop(member, None)  # The replica is asked at once for entries beyond these.
            lead.wait_until_us = max(lead.wait_until_us, until_us)
            lead.before = max(lead.before, answer.before)
            if answer.led:
                lead.led = max(lead.led, answer.before)
        if failed is not None:
            raise failed

    def knows(self, questions: Iterable[Question]) -> bool:
        """Whether the member's metadata have the records of the questions, or later records."""
        return all(
            each.bucket in self._decisions and self._decisions[each.bucket].epoch >= each.epoch for each in questions
        )

    def answer(self, asker: Incarnation, questions: Iterable[Question]) -> list[Answer]:
        """Answers a new primary. A question that cannot be answered now has no answer, and the new primary asks again.

        The call changes nothing: a member follows its own metadata only (docs/decisions/0082).
        """
        answers: list[Answer] = []
        for number, epoch, after in questions:
            replica, known = self._replicas.get(number), self._decisions.get(number)
            if replica is None or known is None or known.epoch != epoch or known.primary != asker or replica.transfer:
                continue
            if self._me == asker or self._me not in (*known.isr, *known.leaving):
                continue
            last = self.changelog.log_end(number)
            try:
                entries = some_entries(self.changelog.fetch(number, after)) if last > after else b""
            except ValueError:  # A late question. The primary has the changes, which are replicated by now.
                continue
            led = replica.led == replica.before != NO_EPOCH
            answers.append(Answer(number, epoch, after, last, entries, replica.before, led))
        return answers

    # Leading

    def _set_replicas(self, number: int) -> None:
        """Sets the receivers of the primary's changes in the change log, and the replicas on which the primary
        waits."""
        bucket, lead = self._decisions[number], self._leads[number]
        waited = self._others(number)
        transfers = {each.member: each.transfer for each in bucket.learners}
        kinds = dict.fromkeys(bucket.queue_only, _core.REPLICA_QUEUE_ONLY)
        replicas = [
            (
                self._services.repl_link(each),
                _core.REPLICA_WAITED + kinds.get(each, 0),
                transfers.get(each, 0),
                lead.adopted.get(each, 0),
            )
            for each in sorted(waited)
        ]
        replicas += [
            (
                self._services.repl_link(each.member),
                _core.REPLICA_LEARNING + kinds.get(each.member, 0),
                each.transfer,
                0,
            )
            for each in bucket.learners
            if each.member not in waited
        ]
        self.changelog.set_replicas(number, replicas)

    def learned(self, number: int, member: Incarnation, transfer: int) -> None:
        """A learner has its snapshot and all replicated changes. The primary waits for the learner already."""
        lead, bucket = self._leads.get(number), self._decisions.get(number)
        learner = Learner(member, transfer)
        if lead is None or bucket is None or not lead.is_active or learner not in bucket.learners:
            return
        lead.caught_up.add(learner)
        self._set_replicas(number)
        self._services.caught_up(BucketKey(self.name, number), lead.epoch, learner)

    @property
    def led_count(self) -> int:
        """The number of buckets that this member leads, or takes over."""
        return len(self._leads)

    def forget_callers(self, is_gone: Callable[[int], bool]) -> None:
        """Removes the clients of departed incarnations from the deduplication tables of the member's primary
        buckets."""
        for number, lead in self._leads.items():
            if not lead.is_active:
                continue
            for caller in self.changelog.callers(number):
                if is_gone(caller):
                    self.changelog.forget(number, caller)  # No free bytes now: a later call tries again.

    def refused(self, number: int, epoch: int) -> None:
        """A replica knows a later epoch than this primary. The primary accepts no change until the metadata name the
        new primary."""
        lead = self._leads.get(number)
        if lead is not None and lead.epoch.word < epoch:
            lead.is_active = False
            lead.adopted.clear()
            self._inactive.add(number)
            self._set_role(number, _core.REPLICA_TAKING_OVER)

    def led_with(self, member: Incarnation) -> dict[BucketKey, Epoch]:
        """Returns the member's primary buckets with a replica or a learner at `member`."""
        return {
            BucketKey(self.name, number): lead.epoch
            for number, lead in self._leads.items()
            if member not in self._decisions[number].leaving
            and (member in self._others(number) or member in self._decisions[number].learning)
        }

    def repl_links_to(self) -> set[Incarnation]:
        """Returns the receivers of this member's changes of the region."""
        return {each for number in self._leads for each in (*self._others(number), *self._decisions[number].learning)}

    # State

    def followed(self) -> dict[BucketKey, Bucket]:
        """Returns the metadata records of the replicas."""
        return {BucketKey(self.name, number): self._decisions[number] for number in self._replicas}

    def counts(self) -> dict[str, int]:
        """Returns the number of buckets by role: primary, taking over, in sync, learner and queue-only."""
        active = sum(lead.is_active for lead in self._leads.values())
        learning = {number for number, replica in self._replicas.items() if replica.transfer}
        queues = sum(self._me in self._decisions[number].queue_only for number in self._replicas.keys() - learning)
        return {
            "primary": active,
            "taking_over": len(self._leads) - active,
            "copies": len(self._replicas) - len(self._leads) - len(learning) - queues,
            "learning": len(learning),
            "queues": queues,
        }


def some_entries(entries: bytes) -> bytes:
    """Returns the first entries of a change log, up to ENTRIES_BYTES_MAX bytes, and at least one."""
    if len(entries) <= ENTRIES_BYTES_MAX:
        return entries
    at = 0
    while True:
        (length,) = struct.unpack_from("<I", entries, at)
        if at and at + length > ENTRIES_BYTES_MAX:
            return entries[:at]
        at += length
        if at >= ENTRIES_BYTES_MAX:
            return entries[:at]
