"""Owns what a member does with its copies of the buckets of one region.

A copy follows its primary, learns all that the bucket has, or takes over and leads. The coordinator's tables say which
(docs/decisions/0056). The data itself lies in the region and its tail (docs/decisions/0057).
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

log = logging.getLogger("pywan.copies")

ENTRIES_BYTES_MAX = 1 << 20  # Bytes of one answer to a question, but for a single entry that is longer.
ASK_AGAIN_US = 100_000  # A copy that has not answered for so long is asked again.


class Question(NamedTuple):
    """Asks a copy whether it follows the epoch, under which the asker leads the bucket, and for the changes behind
    sequence `after`."""

    bucket: int
    epoch: Epoch
    after: int


class Answer(NamedTuple):
    """The copy follows the epoch. `last` is its last sequence. `entries` are changes from `after` + 1 on: at least one
    if `last` is beyond `after`, otherwise none. `before` is an earlier epoch, which it had adopted before. `led`: it
    was its primary, and accepted changes."""

    bucket: int
    epoch: Epoch
    after: int
    last: int
    entries: bytes
    before: Epoch
    led: bool


class MemberServices(Protocol):
    """What the copies of a region need of their member. All calls return at once."""

    def now_us(self) -> int: ...
    def lane(self, member: Incarnation) -> int:
        """Returns the number of the lane to a member. The region's tail knows the lane then."""
        ...

    def prepare(self, member: Incarnation) -> None:
        """Opens connections to a member, if it is in the view: this one may soon lead buckets with it."""
        ...

    def promised_us(self, to_all_but: Incarnation) -> int:
        """Returns for how many us this member has promised some other member to adopt no later epoch silently."""
        ...

    def deny(self, region: str, bucket: int, epoch: Epoch, to_all_but: Incarnation) -> None:
        """Tells earlier primaries of the bucket, before any later promise, that this member knows a later epoch."""
        ...

    def ask(self, member: Incarnation, region: str, questions: list[Question]) -> None:
        """Asks a member. Its answers come to `RegionCopies.adopted`, or they never come."""
        ...

    def ready(self, keys: list[BucketKey]) -> None: ...
    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None: ...


@dataclass
class _Copy:
    life: int
    epoch: Epoch = NO_EPOCH
    before: Epoch = NO_EPOCH  # The epoch that it had adopted before this one.
    transfer: int = 0  # It learns, and this names its image. 0: it has everything.
    led: Epoch = NO_EPOCH  # The last epoch under which this member was the primary and accepted changes.

    def adopt(self, epoch: Epoch) -> bool:
        """Returns whether the epoch is later than the one that the copy has adopted."""
        is_later = epoch > self.epoch
        if is_later:
            self.before, self.epoch = self.epoch, epoch
        return is_later


@dataclass
class _Lead:
    """What a primary knows of the other copies. It is active when it has reached all of them and accepts changes."""

    epoch: Epoch
    wait_until_us: int  # Until then an earlier primary may answer reads.
    before: Epoch  # The newest epoch that this copy, or one that has answered, had adopted before.
    led: Epoch = NO_EPOCH  # The newest of these whose primary has answered, and had accepted changes.
    is_active: bool = False
    adopted: dict[Incarnation, int] = field(default_factory=dict)  # The last sequence of each copy when it answered.
    asked_us: dict[Incarnation, int] = field(default_factory=dict)
    caught_up: set[Learner] = field(default_factory=set)  # The primary waits for them already.

    @property
    def has_followed(self) -> bool:
        """Whether the primary of the epoch before is a copy now. It answers no reads any more, so promises to it need
        not end. It counts when all copies have answered."""
        return self.led == self.before != NO_EPOCH


class RegionCopies:
    """The caller holds the lock of the member's copies for every call."""

    def __init__(
        self,
        name: str,
        core: Any,
        tail: _core.Tail,
        me: Incarnation,
        services: MemberServices,
        *,
        content: Mapping[int, Bucket],
    ) -> None:
        """`content`: decisions under which the region was this member's alone, so that what it holds is the content of
        these buckets."""
        self.name, self.tail = name, tail
        self._core, self._me, self._services = core, me, services
        self._decisions: dict[int, Bucket] = dict(content)
        self._copies = {number: _Copy(bucket.life, bucket.epoch) for number, bucket in content.items()}
        self._leads: dict[int, _Lead] = {}
        self._inactive: set[int] = set()  # The buckets in `_leads` that are not active.
        self._kept_events = 0  # Queued events of lost buckets that are sent from here, of which the log does not say.

    # What the coordinator decided

    def take(self, number: int, bucket: Bucket | None) -> None:
        """Takes a decision about a bucket. None: the bucket is no more."""
        known, copy, me = self._decisions.get(number), self._copies.get(number), self._me
        if bucket is None or me not in (*bucket.holders, *bucket.leaving):
            if copy is not None and bucket is not None and not bucket.in_sync:
                self._keep_events(number)  # Nobody has the bucket any more.
            self._forget(number, bucket)
            return
        if known is not None and (bucket.epoch, bucket.version) < (known.epoch, known.version):
            return
        self._decisions[number] = bucket
        self._set_holders(number, bucket)
        transfer = bucket.transfer_of(me) or 0
        if copy is not None and me in bucket.in_sync and bucket.goes_on_with(copy.life):
            copy.life = bucket.life
        restarts = transfer != 0 and copy is not None and (copy.transfer != transfer or bucket.epoch > copy.epoch)
        if copy is None or copy.life != bucket.life or restarts:
            if copy is not None and copy.life < bucket.life and not bucket.goes_on_with(copy.life):
                self._keep_events(number)
            self._drop_lead(number)
            self.tail.set_role(number, _core.TAIL_ABSENT, bucket.life, bucket.epoch.word)
            self._core.drop_bucket(number)
            copy = self._copies[number] = _Copy(bucket.life)
        is_later = copy.adopt(bucket.epoch)
        copy.transfer = transfer
        for other in bucket.holders:
            self._services.prepare(other)
        if transfer:
            self._set_role(number, _core.TAIL_LEARNER)
        elif bucket.primary == me:
            self._lead(number, bucket)
            return
        else:
            self._drop_lead(number)
            self._set_role(number, _core.TAIL_COPY)
        if is_later and bucket.primary is not None:
            self._services.deny(self.name, number, bucket.epoch, bucket.primary)

    def _forget(self, number: int, bucket: Bucket | None) -> None:
        self._drop_lead(number)
        if self._copies.pop(number, None) is not None:
            epoch = bucket.epoch if bucket is not None else self._decisions[number].epoch
            life = bucket.life if bucket is not None else self._decisions[number].life
            self.tail.set_role(number, _core.TAIL_ABSENT, life, epoch.word)
            self._core.drop_bucket(number)
        self._set_holders(number, bucket)
        if bucket is None:
            self._decisions.pop(number, None)
        else:
            self._decisions[number] = bucket

    def _set_holders(self, number: int, bucket: Bucket | None) -> None:
        """Only those who hold the bucket in sync, or are about to leave, can say that its queued events have left."""
        holders = () if bucket is None else (*bucket.in_sync, *bucket.leaving)
        self.tail.set_holders(number, [each.member_id for each in holders])

    def _keep_events(self, number: int) -> None:
        """The life that the copy has is over, and all its entries are lost. What is queued of it is sent from here. A
        primary that was given up drops it: some of its changes may count nowhere."""
        if number in self._leads:
            return
        kept, lost = self.tail.keep_events(number)
        self._kept_events += kept
        if lost:
            log.error("bucket %d of region %s was lost: no memory for %d of its queued events", number, self.name, lost)

    def _set_role(self, number: int, role: int) -> None:
        copy, primary = self._copies[number], self._decisions[number].primary
        leader = 0 if primary is None else primary.member_id
        queue_only = self._me in self._decisions[number].queue_only
        self.tail.set_role(number, role, copy.life, copy.epoch.word, copy.transfer, leader, queue_only)

    # Taking over

    def _lead(self, number: int, bucket: Bucket) -> None:
        lead = self._leads.get(number)
        if lead is not None and lead.epoch == bucket.epoch:
            if lead.is_active:
                self._set_copies(number)
            return
        # The member's own promise to an earlier primary counts too.
        wait_us = self._services.promised_us(self._me)
        before = self._copies[number].before
        self._leads[number] = _Lead(bucket.epoch, self._services.now_us() + wait_us, before)
        self._inactive.add(number)
        self._set_role(number, _core.TAIL_TAKING_OVER)
        self._services.deny(self.name, number, bucket.epoch, self._me)

    def _drop_lead(self, number: int) -> None:
        self._leads.pop(number, None)
        self._inactive.discard(number)

    def _others(self, number: int) -> set[Incarnation]:
        """Returns the members that the primary waits for with every change."""
        bucket, lead = self._decisions[number], self._leads[number]
        learning = {each.member for each in lead.caught_up & set(bucket.learners)}
        return {*bucket.in_sync, *bucket.leaving, *learning} - {self._me}

    def work(self) -> bool:
        """Goes on with all takeovers. Returns whether some are not done: then the caller comes again soon."""
        if self._kept_events:
            kept, self._kept_events = self._kept_events, 0
            log.warning("region %s: buckets were lost; %d queued events of them are sent from here", self.name, kept)
        if not self._inactive:
            return False
        now = self._services.now_us()
        questions: dict[Incarnation, list[Question]] = {}
        ready: list[BucketKey] = []
        for number in sorted(self._inactive):
            lead, bucket = self._leads[number], self._decisions[number]
            last = self.tail.last(number)
            others = self._others(number)
            missing = [each for each in others if lead.adopted.get(each, last + 1) > last]
            for other in missing:
                if now - lead.asked_us.get(other, -ASK_AGAIN_US) >= ASK_AGAIN_US:
                    lead.asked_us[other] = now
                    questions.setdefault(other, []).append(Question(number, bucket.epoch, last))
            if not missing and (lead.has_followed or now >= lead.wait_until_us):
                lead.is_active = True
                self._copies[number].led = lead.epoch
                self._set_copies(number)
                self._set_role(number, _core.TAIL_PRIMARY)
                ready.append(BucketKey(self.name, number))
        if ready:  # First of all: if the rest fails, they are not looked at again.
            self._services.ready(ready)
        self._inactive -= {key.number for key in ready}
        for member, asked in sorted(questions.items()):
            self._services.ask(member, self.name, asked)
        return bool(self._inactive)

    def adopted(self, member: Incarnation, answers: Iterable[Answer], promised_us: int) -> None:
        """Takes the answers of a copy. `promised_us`: for so long, from now at most, it has promised an earlier primary
        something. Raises the error of the first answer that cannot be taken, when all others are."""
        until_us = self._services.now_us() + promised_us  # The copy has kept its promise longer, as clocks drift.
        failed: PywanError | None = None
        for answer in answers:
            lead = self._leads.get(answer.bucket)
            if lead is None or lead.is_active or lead.epoch != answer.epoch:
                continue
            if answer.before >= answer.epoch or answer.after > self.tail.last(answer.bucket):
                failed = failed or ProtocolError(f"region {self.name!r}: {answer} is no answer to what was asked")
                continue
            if answer.entries:
                copy = self._copies[answer.bucket]
                epoch = copy.epoch.word
                try:
                    self._core.extend(answer.bucket, copy.life, epoch, answer.after + 1, answer.entries)
                except PywanError as error:
                    failed = failed or error
                    continue
            lead.adopted[member] = answer.last
            lead.asked_us.pop(member, None)  # It is asked again at once for what it has beyond these entries.
            lead.wait_until_us = max(lead.wait_until_us, until_us)
            lead.before = max(lead.before, answer.before)
            if answer.led:
                lead.led = max(lead.led, answer.before)
        if failed is not None:
            raise failed

    def knows(self, questions: Iterable[Question]) -> bool:
        """Whether the tables here have the decisions that the questions are about, or later ones."""
        return all(
            each.bucket in self._decisions and self._decisions[each.bucket].epoch >= each.epoch for each in questions
        )

    def answer(self, asker: Incarnation, questions: Iterable[Question]) -> list[Answer]:
        """Answers a new primary. A question that cannot be answered now has no answer, and is asked again.

        It changes nothing: what this member follows is said by its tables alone (docs/decisions/0082).
        """
        answers: list[Answer] = []
        for number, epoch, after in questions:
            copy, known = self._copies.get(number), self._decisions.get(number)
            if copy is None or known is None or known.epoch != epoch or known.primary != asker or copy.transfer:
                continue
            if self._me == asker or self._me not in (*known.in_sync, *known.leaving):
                continue
            last = self.tail.last(number)
            try:
                entries = some_entries(self.tail.fetch(number, after)) if last > after else b""
            except ValueError:  # The question is late. Its primary has the changes, which count since, and has gone on.
                continue
            led = copy.led == copy.before != NO_EPOCH
            answers.append(Answer(number, epoch, after, last, entries, copy.before, led))
        return answers

    # Leading

    def _set_copies(self, number: int) -> None:
        """Tells the tail whom the primary sends to, and whom it waits for."""
        bucket, lead = self._decisions[number], self._leads[number]
        waited = self._others(number)
        transfers = {each.member: each.transfer for each in bucket.learners}
        kinds = dict.fromkeys(bucket.queue_only, _core.COPY_QUEUE_ONLY)
        copies = [
            (
                self._services.lane(each),
                _core.COPY_WAITED + kinds.get(each, 0),
                transfers.get(each, 0),
                lead.adopted.get(each, 0),
            )
            for each in sorted(waited)
        ]
        copies += [
            (self._services.lane(each.member), _core.COPY_LEARNING + kinds.get(each.member, 0), each.transfer, 0)
            for each in bucket.learners
            if each.member not in waited
        ]
        self.tail.set_copies(number, copies)

    def learned(self, number: int, member: Incarnation, transfer: int) -> None:
        """A learner has its image, and all that counts. The primary waits for it already."""
        lead, bucket = self._leads.get(number), self._decisions.get(number)
        learner = Learner(member, transfer)
        if lead is None or bucket is None or not lead.is_active or learner not in bucket.learners:
            return
        lead.caught_up.add(learner)
        self._set_copies(number)
        self._services.caught_up(BucketKey(self.name, number), lead.epoch, learner)

    def forget_callers(self, is_gone: Callable[[int], bool]) -> None:
        """Forgets, in the buckets that this member leads, the callers whose incarnations are gone."""
        for number, lead in self._leads.items():
            if not lead.is_active:
                continue
            for caller in self.tail.callers(number):
                if is_gone(caller):
                    self.tail.forget(number, caller)  # If it has no room now, the caller is found the next time.

    def refused(self, number: int, epoch: int) -> None:
        """A copy knows a later epoch than this primary. The primary accepts no change until it hears who leads."""
        lead = self._leads.get(number)
        if lead is not None and lead.epoch.word < epoch:
            lead.is_active = False
            lead.adopted.clear()
            self._inactive.add(number)
            self._set_role(number, _core.TAIL_TAKING_OVER)

    def led_with(self, member: Incarnation) -> dict[BucketKey, Epoch]:
        """Returns the buckets that this member leads, and of which `member` has a copy or learns one."""
        return {
            BucketKey(self.name, number): lead.epoch
            for number, lead in self._leads.items()
            if member not in self._decisions[number].leaving
            and (member in self._others(number) or member in self._decisions[number].learning)
        }

    def lanes_to(self) -> set[Incarnation]:
        """Returns the members to which this one sends changes of the region."""
        return {each for number in self._leads for each in (*self._others(number), *self._decisions[number].learning)}

    # What is there

    def followed(self) -> dict[BucketKey, Bucket]:
        """Returns the decisions that the copies follow."""
        return {BucketKey(self.name, number): self._decisions[number] for number in self._copies}

    def counts(self) -> dict[str, int]:
        """Returns how many buckets the member leads, takes over, has a copy of, and learns, and of how many it holds
        the queued events alone."""
        active = sum(lead.is_active for lead in self._leads.values())
        learning = {number for number, copy in self._copies.items() if copy.transfer}
        queues = sum(self._me in self._decisions[number].queue_only for number in self._copies.keys() - learning)
        return {
            "primary": active,
            "taking_over": len(self._leads) - active,
            "copies": len(self._copies) - len(self._leads) - len(learning) - queues,
            "learning": len(learning),
            "queues": queues,
        }


def some_entries(entries: bytes) -> bytes:
    """Returns the first entries of a tail, up to ENTRIES_BYTES_MAX bytes, and at least one."""
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
