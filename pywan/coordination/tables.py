"""Defines the values of metadata records: incarnations, epochs, regions, buckets. All values are immutable.

docs/decisions/0056 gives the reasons. Members and the coordinator exchange these values, so the annotation of a field
says what the field may hold (pywan.coordination.plain): a message or a file with any other value is refused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from pywan.config.attributes import INT_MAX, MAX_BUCKETS, MAX_DISTRIBUTED_SYSTEM_ID, MAX_REPLICAS
from pywan.coordination.plain import Host, Mark, Most, Name, Range, Text

DRIFT_DIVISOR = 20  # A member that waits for the end of another member's time waits a twentieth longer: clocks drift.
CONTROLLER_EPOCH_MAX = (1 << 31) - 1  # About 65,000 starts of a coordinator that make records.
CONTROLLER_EPOCH_STEP_MAX = 1 << 16  # The largest random step from the highest known controller epoch to a new epoch.
# A metadata recovery raises the controller epoch by so many further steps: above forgotten controller epochs that no
# member names.
FORGOTTEN_CONTROLLER_EPOCHS = 16
DECISION_MAX = (1 << 32) - 1
# A member may name records that this coordinator does not know. The coordinator believes the numbers up to these
# distances above its own numbers: 4,096 starts of a coordinator on average, and more records than a site makes in
# years. Numbers above a quarter of the range are not believed; a coordinator without any record believes numbers up to
# half of the range (docs/decisions/0081).
BELIEVED_CONTROLLER_EPOCHS = 1 << 27
BELIEVED_DECISIONS = 1 << 28
# The largest number of members in a site. A member has replication links to 256 other members (WAN_REPL_LINKS_MAX), and
# some of these links may lead to members that have left.
MEMBERS_MAX = 250
# Profiles in the cluster metadata: the ones of living members, and of earlier incarnations for which buckets wait.
# After a power cut each name has two profiles until the last member has joined.
PROFILES_MAX = 4 * MEMBERS_MAX
REGIONS_MAX = 4_096  # In a site.
# Buckets of all regions of a site together: a little more than 1,000 regions of 113 buckets. A bucket takes 1.1 kB of
# memory, at the coordinator and a member together. A message that creates so many buckets takes the coordinator two
# seconds.
BUCKETS_MAX = 1 << 17
# The bytes that the regions of members take in the cluster metadata: each of 250 members may have 1,000 regions with
# names of 30 characters. Every member keeps the regions of all members, and reads all of them again when a single entry
# changes. A member without a lease counts for the second limit only.
HOSTING_BYTES_MAX = 16 << 20
HOSTING_BYTES_EVER = 40 << 20
ONLY_ONCE_MAX = 100
SENDERS_TEXT_MAX = 700
ROLE_PREFIX = "__sender."  # Prefix of the hidden regions that stand for senders (pywan.member.sender_roles).
HOSTED_BYTES = 32  # For a region of a member, without the region's name.
# The bytes that buckets, and the regions of members, take in the cluster metadata together, computed as if no
# neighbours were alike. A member reads metadata of up to 64 MiB (plain.PACKED_MAX_BYTES). The rest is for 1,000
# profiles of 2 kB, and for 4,096 regions of 1 kB. Reports of members are accepted up to the second limit only: the rest
# is room for the records that the site makes afterwards.
TABLES_BYTES_MAX = 56 << 20
REPORTED_BYTES_MAX = 52 << 20
BUCKET_BYTES = 60  # At most, for a bucket without all names.
NAMED_BYTES = 8  # At most, for a member in a bucket, without the member's name.
LEARNER_BYTES = 6  # At most, for a learner, without the member.
# The coordinator keeps an index: for each incarnation, the buckets that name the incarnation. Members of a site name
# living incarnations, and earlier incarnations for which buckets wait.
NAMED_MAX = 16_000
MARK_BYTES = 32
ADDRESS_MAX = 300  # Characters in the address of a locator.
INCARNATIONS_KEPT = 16  # A set of replicas may name an incarnation before the last.
# The longest time in a message of a coordinator. `member-timeout` is at most 600,000 s, and a lease lasts a little
# longer.
DELAY_MAX_US = 700_000_000_000
UNTIMED = 0  # As a time: the next tick is to come at once. No other time was due before, so the tick is not late.
MEMBER_TIMEOUT_US = 5_000_000  # Default of `member-timeout`: a member is lost after so long without contact.

TERM_MAX = (1 << 31) - 1

Term = Annotated[int, Range(0, TERM_MAX)]  # How often another locator has taken over the coordination.
ControllerEpoch = Annotated[int, Range(0, CONTROLLER_EPOCH_MAX)]
Number = Annotated[int, Range(0, DECISION_MAX)]
Word = Annotated[int, Range(0, CONTROLLER_EPOCH_MAX << 32 | DECISION_MAX)]  # An epoch as a single number.
MemberId = Annotated[int, Range(0, (1 << 32) - 1)]
RegionName = Annotated[str, Name()]
Identity = Annotated[str, Name(or_none=True)]  # Identity of a site.
Delay = Annotated[int, Range(-1, INT_MAX)]  # In milliseconds.
Weight = Annotated[int, Range(0, INT_MAX)]  # local-max-memory in MB; 0: an accessor.


class Incarnation(NamedTuple):
    """A process of a member. A member that restarts is a new incarnation: the memory is empty."""

    name: Annotated[str, Name()]
    member_id: MemberId  # Drawn at random when the member starts.

    def __str__(self) -> str:
        return f"{self.name}#{self.member_id:x}"


class Epoch(NamedTuple):
    """Leader epoch: orders the primaries of a bucket. A member refuses a message under an older epoch than the newest
    epoch that the member knows.

    No two starts of a coordinator give the same epoch, whatever records the coordinator has lost (docs/decisions/0070).
    """

    controller_epoch: ControllerEpoch  # Controller epoch of the record that gave this epoch.
    number: Number  # At most the number of that record.

    def __str__(self) -> str:
        return f"{self.controller_epoch}.{self.number}"

    @property
    def word(self) -> int:
        """The epoch as a single number, for comparisons in the core. The number fits 64 signed bits."""
        return self.controller_epoch << 32 | self.number

    @classmethod
    def of(cls, word: int) -> Epoch:
        """Returns the epoch of this word."""
        return cls(word >> 32, word & DECISION_MAX)


NO_EPOCH = Epoch(0, 0)


class DecisionId(NamedTuple):
    """Names a metadata record. Controller epochs and numbers count up; the controller epoch shows when an older file of
    the coordinator was put back."""

    controller_epoch: ControllerEpoch
    number: Number

    def __str__(self) -> str:
        return f"{self.controller_epoch}.{self.number}"


NO_DECISION = DecisionId(0, 0)  # The first controller epoch is above 0.


@dataclass(frozen=True, slots=True)
class Standby:
    """The locator that also keeps the coordinator's records, and may take over the coordination
    (docs/decisions/0107)."""

    name: Annotated[str, Name()]
    address: Annotated[str, Text(ADDRESS_MAX)]  # The locator listens at this address.
    is_out: bool = False  # The standby may take over no more, as soon as the standby or a member has stored this.


class Kind(enum.Enum):
    REPLICATE = "REPLICATE"  # Each member that stores the region has a replica of each bucket.
    PARTITION = "PARTITION"  # Each bucket has 1 + redundant_copies replicas.


@dataclass(frozen=True, slots=True)
class RegionAttributes:
    """The attributes of a region. All members of the site must give the same attributes."""

    kind: Kind
    total_num_buckets: Annotated[int, Range(1, MAX_BUCKETS)] = 113
    redundant_copies: Annotated[int, Range(0, MAX_REPLICAS - 1)] = 0
    colocated_with: Annotated[str, Name(or_none=True)] = ""
    min_in_sync_replicas: Annotated[int, Range(1, MAX_REPLICAS)] = 1
    recovery_delay_ms: Delay = -1  # Delay after the loss of a member; -1: lost replicas are not made again.
    startup_recovery_delay_ms: Delay = 0  # Delay after a member has joined; -1: a new member gets no replicas.
    # A bucket begins anew, empty, if its last replicas were out of contact for so long; -1: only when the end of the
    # replicas is proved.
    unclean_recovery_timeout_ms: Delay = -1
    only_once: Annotated[str, Text(ONLY_ONCE_MAX)] = ""  # Why only one member can have the region. Empty: several can.
    # The ids of the senders that take events of the region, as text. A member that creates the region names the same
    # senders; a member that alters the senders later tells the new ids. For a region that stands for a sender: the
    # attributes of the sender (sender_roles).
    senders: Annotated[str, Text(SENDERS_TEXT_MAX)] = ""
    # The coordinator sets this flag: further members may have the region, or ask for the region. Members always create
    # a region with False.
    shared: bool = False

    def is_like(self, other: RegionAttributes) -> bool:
        """Whether both members say the same of the region."""
        return replace(self, shared=False) == replace(other, shared=False)

    def replicas_wanted(self, storing_members: int) -> int:
        return storing_members if self.kind is Kind.REPLICATE else min(1 + self.redundant_copies, storing_members)


def is_role(region: str) -> bool:
    """Whether a region stands for a sender. Users do not see such a region."""
    return region.startswith(ROLE_PREFIX)


def is_serial(words: str) -> bool:
    """Whether a sender is serial, as the text of its attributes says (pywan.member.sender_roles)."""
    return "parallel=false" in words.split("; ")


class Reach(enum.Enum):
    """The result of a probe: an attempt to connect to a member."""

    ANSWERED = "answered"
    REFUSED = "refused"  # No process listens, according to the machine.
    SILENT = "silent"


class BucketKey(NamedTuple):
    region: RegionName
    number: Annotated[int, Range(0, MAX_BUCKETS - 1)]

    def __str__(self) -> str:
        return f"{self.region}[{self.number}]"


class RunOfBuckets(NamedTuple):
    """Neighbouring buckets of one region with equal records."""

    region: RegionName
    first: Annotated[int, Range(0, MAX_BUCKETS - 1)]
    length: Annotated[int, Range(1, MAX_BUCKETS)]

    def problem(self) -> str:
        end = self.first + self.length
        return f"bucket {end - 1} of region {self.region} is above {MAX_BUCKETS - 1}" if end > MAX_BUCKETS else ""


class Learner(NamedTuple):
    """A replica that is being made. `transfer` distinguishes the snapshot from an earlier, interrupted snapshot."""

    member: Incarnation
    transfer: Number  # Number of the record that began the transfer.


Members = Annotated[tuple[Incarnation, ...], Most(MEMBERS_MAX, each_once=True)]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The metadata record of one bucket. The `number` of a record counts up over the whole site.

    Invariants: the primary is in `isr`. No learner is in `isr`. The primary waits for all members in `isr` and in
    `leaving`, and for a learner from the moment at which the primary reports the learner as caught up.
    """

    epoch: Epoch = NO_EPOCH
    # Sequences start over in a new timeline: the bucket may have lost the end of its history, or all of it. The value
    # is the word of the epoch under which the timeline began. All epochs of the timeline are at or above the word; all
    # epochs of an earlier timeline are below.
    timeline: Word = 0
    # The oldest timeline whose content the present timeline goes on with: some replicas may not know the later
    # timelines. 0: the timeline began empty.
    inherits: Word = 0
    version: Number = 0  # Counts the changes of the three sets `isr`, `leaving`, `unfenced`.
    primary: Incarnation | None = None  # None: no member can be primary now; the bucket waits.
    isr: Members = ()
    leaving: Members = ()  # Out of `isr`, but not all remaining members have stored the removal.
    learners: Annotated[tuple[Learner, ...], Most(MEMBERS_MAX)] = ()
    unfenced: Members = ()  # An earlier ISR of several; none of its members has stored a later record.
    # The members, of all sets above, that have only the queued events of the bucket and no entries
    # (docs/decisions/0095). The primary waits for queue-only replicas as for full replicas. Queue-only replicas never
    # lead.
    queue_only: Members = ()

    def problem(self) -> str:
        """Returns the violation of an invariant, in words; "": none."""
        if self.primary is not None and self.primary not in self.isr:
            return f"its primary, member {self.primary}, is not among the in-sync replicas"
        if self.primary in self.queue_only:
            return f"its primary, member {self.primary}, has only its queued events"
        learning = set(self.learning)
        if len(learning) < len(self.learners):
            return "a member is there twice among those that learn"
        for member in self.isr:
            if member in learning:
                return f"member {member} is among the in-sync replicas and among those that learn"
        return ""

    @property
    def table_bytes(self) -> int:
        """The most bytes that the bucket takes in the cluster metadata, without the name of its region."""
        named = (*self.isr, *self.leaving, *self.learning, *self.unfenced, *self.queue_only)
        if self.primary is not None:
            named = (*named, self.primary)
        names = sum([len(name) for name, _ in named])
        return BUCKET_BYTES + NAMED_BYTES * len(named) + names + LEARNER_BYTES * len(self.learners)

    @property
    def holders(self) -> tuple[Incarnation, ...]:
        return self.isr + self.learning

    @property
    def replicas(self) -> tuple[Incarnation, ...]:
        """The in-sync replicas that have the entries: each can lead."""
        return self.with_entries(self.isr)

    @property
    def replicas_to_be(self) -> tuple[Incarnation, ...]:
        """The replicas, and the learners of the entries."""
        return self.with_entries(self.holders)

    @property
    def content(self) -> frozenset[Incarnation]:
        """All members that may hold the newest entries of the bucket."""
        return frozenset(self.with_entries((*self.isr, *self.leaving, *self.unfenced)))

    def with_entries(self, members: tuple[Incarnation, ...]) -> tuple[Incarnation, ...]:
        """Returns the given members without the queue-only replicas."""
        return tuple(each for each in members if each not in self.queue_only) if self.queue_only else members

    def with_learner(self, learner: Learner) -> Bucket:
        """Returns the bucket with a member that begins to learn the entries. A queue-only replica begins with the
        queued events again. The primary does not wait for the member until the member has everything: nobody relies on
        the member for the entries. The member had no entries in an earlier ISR either. So a record that the member has
        stored does not fence the replicas of the earlier ISR."""
        member = learner.member
        isr = tuple(each for each in self.isr if each != member)
        unfenced = tuple(each for each in self.unfenced if each != member or member not in self.queue_only)
        return replace(
            self,
            version=self.version + ((isr, unfenced) != (self.isr, self.unfenced)),
            isr=isr,
            unfenced=unfenced,
            learners=(*(each for each in self.learners if each.member != member), learner),
            queue_only=tuple(each for each in self.queue_only if each != member),
        )

    @property
    def named(self) -> frozenset[Incarnation]:
        """All members on which the bucket may depend in any way."""
        return frozenset((*self.isr, *self.leaving, *self.learning, *self.unfenced))

    def goes_on_with(self, timeline: int) -> bool:
        """Whether an in-sync or leaving replica of the given earlier timeline has the content of the present
        timeline."""
        return 0 < self.inherits <= timeline < self.timeline

    def is_only_of(self, member: Incarnation) -> bool:
        """Whether the member leads the bucket, and no other member has, had or gets a replica, according to the
        record."""
        return self.isr == (member,) == (self.primary,) and not (self.leaving or self.learners or self.unfenced)

    @property
    def learning(self) -> tuple[Incarnation, ...]:
        return tuple(each.member for each in self.learners)

    def transfer_of(self, member: Incarnation) -> int | None:
        return next((each.transfer for each in self.learners if each.member == member), None)


@dataclass(frozen=True, slots=True)
class MemberProfile:
    """A member's description of itself, sent when the member joins."""

    incarnation: Incarnation
    host: Annotated[str, Host()]
    port: Annotated[int, Range(1, 65535)]  # Port of the replication link, for connections of other members.
    distributed_system_id: Annotated[int, Range(-1, MAX_DISTRIBUTED_SYSTEM_ID)]  # -1: no WAN.
    site_identity: Identity = ""  # As stored in the member's folder; empty: never a member of a site.
    seen: DecisionId = NO_DECISION  # The newest record that any incarnation received, as the folder says.
    version: Annotated[str, Text(64)] = ""  # Version of pywan.
    hosting: Annotated[
        tuple[tuple[RegionName, Weight], ...], Most(REGIONS_MAX)
    ] = ()  # The member's regions, each with local-max-memory in MB; 0: an accessor.
    process: Annotated[str, Text(200)] = ""  # Machine, pid and start time of the process (pywan.base.processes).
    # The member ids of the incarnations that the member's folder names. The member has locked the folder.
    before: Annotated[tuple[MemberId, ...], Most(INCARNATIONS_KEPT, each_once=True)] = ()
    # The SHA-256 of the incarnation's nonce (pywan.base.nonces). Empty: no sender can prove to be this incarnation.
    mark: Annotated[bytes, Mark(MARK_BYTES)] = b""

    def problem(self) -> str:
        """Returns a contradiction in the profile, in words; "": none."""
        if len({region for region, _ in self.hosting}) < len(self.hosting):
            return f"member {self.incarnation} names a region of its own twice"
        if self.incarnation.member_id in self.before:
            return f"member {self.incarnation} names itself as an earlier one"
        return ""

    @property
    def hosting_bytes(self) -> int:
        """The bytes of the member's regions in the cluster metadata."""
        return sum(HOSTED_BYTES + len(region) for region, _ in self.hosting)

    @property
    def machine(self) -> str:
        """The name of the member's machine. Empty: unknown."""
        return self.process.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Holding:
    """A member's report of a bucket at joining: the newest record that the member knows, and whether the member has a
    replica with everything under this record."""

    bucket: Bucket
    has_all: bool
