"""Owns the words in which a coordinator decides: incarnations, epochs, regions, buckets. Immutable values.

docs/decisions/0056 says why they are as they are. Members and the coordinator tell each other these values, so each
field says what it may hold (pywan.coordination.plain): nothing else is taken from a message or from a file.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from pywan.config.attributes import INT_MAX, MAX_BUCKETS, MAX_COPIES, MAX_DISTRIBUTED_SYSTEM_ID
from pywan.coordination.plain import Host, Mark, Most, Name, Range, Text

DRIFT_DIVISOR = 20  # Who waits for the end of a time that another one has waits a twentieth longer: clocks drift.
RUN_MAX = (1 << 31) - 1  # About 65,000 starts of a coordinator that each decide something.
RUN_STEP_MAX = 1 << 16  # A run is above the runs that it knows by a random number from 1 to this.
# A new generation is also above so many steps more: above runs that were forgotten, and that nobody names.
FORGOTTEN_RUNS = 16
DECISION_MAX = (1 << 32) - 1
# What a member says of decisions that this coordinator does not know is believed so far above those that it knows:
# 4,096 starts of a coordinator on average, and more decisions than a site makes in years. It is never believed above a
# quarter of the numbers. A coordinator that has decided nothing believes up to half (docs/decisions/0081).
BELIEVED_RUNS = 1 << 27
BELIEVED_DECISIONS = 1 << 28
MEMBERS_MAX = 250  # Of a site. A member has lanes to 256 others (WAN_TAIL_LANES_MAX); some may be of members that went.
# In the tables of a site: those that live, and earlier incarnations for which buckets wait. After a power cut there are
# two of each name until the last member has come.
PROFILES_MAX = 4 * MEMBERS_MAX
REGIONS_MAX = 4_096  # Of a site.
# Of all regions of a site together: a little more than 1,000 regions of 113 buckets. The coordinator and a member take
# 1.1 kB of memory for each together, and one message that creates as many takes the coordinator 2 s.
BUCKETS_MAX = 1 << 17
# The bytes that the regions of members take in the tables: 250 members may have 1,000 of 30 characters each. Every
# member keeps them all, and reads them again when one of them changes. A member without a lease counts for the second
# limit alone.
HOSTING_BYTES_MAX = 16 << 20
HOSTING_BYTES_EVER = 40 << 20
ONLY_ONCE_MAX = 100
SENDERS_TEXT_MAX = 700
ROLE_PREFIX = "__sender."  # Of the regions that stand for senders (pywan.member.sender_roles).
HOSTED_BYTES = 32  # Of one region of one member, beside its name.
# The bytes that buckets, and the regions of members, take in the tables together, as if no neighbours were alike. A
# member reads tables of 64 MiB (plain.PACKED_MAX_BYTES). The rest is for 1,000 profiles of 2 kB, and for 4,096 regions
# of 1 kB. What members report is taken up to the second limit: so there is room for what the site decides afterwards.
TABLES_BYTES_MAX = 56 << 20
REPORTED_BYTES_MAX = 52 << 20
BUCKET_BYTES = 60  # At most, of one bucket beside all names.
NAMED_BYTES = 8  # At most, of one member that a bucket names, beside its name.
LEARNER_BYTES = 6  # At most, of one learner, beside the member.
# The coordinator keeps an index of the buckets of each incarnation that one of them names. Members of a site name those
# that live, and earlier ones for which buckets wait.
NAMED_MAX = 16_000
MARK_BYTES = 32
ADDRESS_MAX = 300  # Characters of the address of a locator.
INCARNATIONS_KEPT = 16  # A set of copies may name one that was not the last.
# The longest time that a coordinator tells. `member-timeout` is at most 600,000 s, and a lease lasts a little longer.
DELAY_MAX_US = 700_000_000_000
UNTIMED = 0  # A time: the next tick is to come at once. It was never due at another time, so it is not late.
MEMBER_TIMEOUT_US = 5_000_000  # The default of `member-timeout`: a member that is silent for so long is lost.

TERM_MAX = (1 << 31) - 1

Term = Annotated[int, Range(0, TERM_MAX)]  # How often another locator has taken the coordination over.
Run = Annotated[int, Range(0, RUN_MAX)]
Number = Annotated[int, Range(0, DECISION_MAX)]
Word = Annotated[int, Range(0, RUN_MAX << 32 | DECISION_MAX)]  # An epoch as one number.
MemberId = Annotated[int, Range(0, (1 << 32) - 1)]
RegionName = Annotated[str, Name()]
Identity = Annotated[str, Name(or_none=True)]  # Of a site.
Delay = Annotated[int, Range(-1, INT_MAX)]  # In milliseconds.
Weight = Annotated[int, Range(0, INT_MAX)]  # local-max-memory in MB; 0: an accessor.


class Incarnation(NamedTuple):
    """One process of a member. A member that restarts is another incarnation: its memory is empty."""

    name: Annotated[str, Name()]
    member_id: MemberId  # Drawn at random when the member starts.

    def __str__(self) -> str:
        return f"{self.name}#{self.member_id:x}"


class Epoch(NamedTuple):
    """Orders the primaries of a bucket. A member refuses what comes under an older epoch than it knows.

    No two runs of a coordinator give the same epoch, whatever each of them has forgotten (docs/decisions/0070).
    """

    run: Run  # The run of the coordinator that gave it.
    number: Number  # At most that of the decision which gave it.

    def __str__(self) -> str:
        return f"{self.run}.{self.number}"

    @property
    def word(self) -> int:
        """The epoch as one number, which is how the core compares epochs. It fits a signed number of 64 bits."""
        return self.run << 32 | self.number

    @classmethod
    def of(cls, word: int) -> Epoch:
        """The epoch that has this word."""
        return cls(word >> 32, word & DECISION_MAX)


NO_EPOCH = Epoch(0, 0)


class DecisionId(NamedTuple):
    """Names a decision. Runs and numbers count up; `run` tells an older file of the coordinator that was put back."""

    run: Run
    number: Number

    def __str__(self) -> str:
        return f"{self.run}.{self.number}"


NO_DECISION = DecisionId(0, 0)  # The first run has a number above 0.


@dataclass(frozen=True, slots=True)
class Standby:
    """The locator that keeps the coordinator's records as well, and may take over from it (docs/decisions/0107)."""

    name: Annotated[str, Name()]
    address: Annotated[str, Text(ADDRESS_MAX)]  # Where it answers.
    is_out: bool = False  # It may take over no more, as soon as it or a member has stored that.


class Kind(enum.Enum):
    REPLICATE = "REPLICATE"  # A copy of each bucket on every member that stores the region.
    PARTITION = "PARTITION"  # 1 + redundant_copies copies of each bucket.


@dataclass(frozen=True, slots=True)
class RegionAttributes:
    """What all members of the site must say alike of a region."""

    kind: Kind
    total_num_buckets: Annotated[int, Range(1, MAX_BUCKETS)] = 113
    redundant_copies: Annotated[int, Range(0, MAX_COPIES - 1)] = 0
    colocated_with: Annotated[str, Name(or_none=True)] = ""
    min_in_sync_copies: Annotated[int, Range(1, MAX_COPIES)] = 1
    recovery_delay_ms: Delay = -1  # After a member was lost; -1: lost copies are not made again.
    startup_recovery_delay_ms: Delay = 0  # After a member has come; -1: it gets no copies.
    # So long after its last copies were heard a bucket begins anew, empty; -1: when they are proved to be gone.
    silence_limit_ms: Delay = -1
    only_once: Annotated[str, Text(ONLY_ONCE_MAX)] = ""  # Why only one member can have it. Empty: several can.
    # The ids of the senders that take its events, in words. A member that creates it names the same ones; one that
    # alters them later tells the new ones. Of a region that stands for a sender: what that sender is (sender_roles).
    senders: Annotated[str, Text(SENDERS_TEXT_MAX)] = ""
    # The coordinator decides this: other members may have the region, or ask for it. Members that create it say False.
    shared: bool = False

    def is_like(self, other: RegionAttributes) -> bool:
        """Whether members say the same of the region."""
        return replace(self, shared=False) == replace(other, shared=False)

    def copies_wanted(self, storing_members: int) -> int:
        return storing_members if self.kind is Kind.REPLICATE else min(1 + self.redundant_copies, storing_members)


def is_role(region: str) -> bool:
    """Whether a region stands for a sender. Users do not see it."""
    return region.startswith(ROLE_PREFIX)


def is_serial(words: str) -> bool:
    """Whether a sender is serial, as its words say (pywan.member.sender_roles)."""
    return "parallel=false" in words.split("; ")


class Reach(enum.Enum):
    """What came of connecting to a member."""

    ANSWERED = "answered"
    REFUSED = "refused"  # Nobody listens there, says its machine.
    SILENT = "silent"


class BucketKey(NamedTuple):
    region: RegionName
    number: Annotated[int, Range(0, MAX_BUCKETS - 1)]

    def __str__(self) -> str:
        return f"{self.region}[{self.number}]"


class RunOfBuckets(NamedTuple):
    """Neighbours of one region, for which the same was decided."""

    region: RegionName
    first: Annotated[int, Range(0, MAX_BUCKETS - 1)]
    length: Annotated[int, Range(1, MAX_BUCKETS)]

    def problem(self) -> str:
        end = self.first + self.length
        return f"bucket {end - 1} of region {self.region} is above {MAX_BUCKETS - 1}" if end > MAX_BUCKETS else ""


class Learner(NamedTuple):
    """A copy that is being made. `transfer` tells its image from an earlier one that was broken off."""

    member: Incarnation
    transfer: Number  # The decision that began it.


Members = Annotated[tuple[Incarnation, ...], Most(MEMBERS_MAX, each_once=True)]


@dataclass(frozen=True, slots=True)
class Bucket:
    """One decision about a bucket. `number` (of the decision) counts up over the whole site.

    Invariants: the primary is in `in_sync`. No learner is in `in_sync`. The primary waits for everybody in `in_sync`
    and in `leaving`, and for a learner from the moment at which it reports it as caught up.
    """

    epoch: Epoch = NO_EPOCH
    # Sequences start over in a new life: the bucket may have lost its end, or all of it. It is the word of the epoch
    # under which the life began: no epoch of the life is below that, and every epoch of an earlier life is.
    life: Word = 0
    # The oldest of the lives whose content this one goes on with: some copies may not have heard of the later ones.
    # 0: it began empty.
    inherits: Word = 0
    version: Number = 0  # Counts the changes of the three sets: `in_sync`, `leaving`, `unfenced`.
    primary: Incarnation | None = None  # None: nobody can be primary now; the bucket waits.
    in_sync: Members = ()
    leaving: Members = ()  # Out of `in_sync`, but not everybody who stays in it has stored that.
    learners: Annotated[tuple[Learner, ...], Most(MEMBERS_MAX)] = ()
    unfenced: Members = ()  # An earlier set of several, none of whom has stored a later decision yet.
    # Those of all these that have no entries of the bucket, only its queued events (docs/decisions/0095). They are
    # waited for like copies, and never lead.
    queue_only: Members = ()

    def problem(self) -> str:
        """What contradicts the invariants, in words; "": nothing does."""
        if self.primary is not None and self.primary not in self.in_sync:
            return f"its primary, member {self.primary}, is not among the copies in sync"
        if self.primary in self.queue_only:
            return f"its primary, member {self.primary}, has only its queued events"
        learning = set(self.learning)
        if len(learning) < len(self.learners):
            return "a member is there twice among those that learn"
        for member in self.in_sync:
            if member in learning:
                return f"member {member} is among the copies in sync and among those that learn"
        return ""

    @property
    def table_bytes(self) -> int:
        """The most that it takes in the tables, beside the name of its region."""
        named = (*self.in_sync, *self.leaving, *self.learning, *self.unfenced, *self.queue_only)
        if self.primary is not None:
            named = (*named, self.primary)
        names = sum([len(name) for name, _ in named])
        return BUCKET_BYTES + NAMED_BYTES * len(named) + names + LEARNER_BYTES * len(self.learners)

    @property
    def holders(self) -> tuple[Incarnation, ...]:
        return self.in_sync + self.learning

    @property
    def copies(self) -> tuple[Incarnation, ...]:
        """Those in sync that have the entries: each of them can lead."""
        return self.with_entries(self.in_sync)

    @property
    def copies_to_be(self) -> tuple[Incarnation, ...]:
        """The copies, and those that learn the entries."""
        return self.with_entries(self.holders)

    @property
    def content(self) -> frozenset[Incarnation]:
        """Everybody who may hold its newest entries."""
        return frozenset(self.with_entries((*self.in_sync, *self.leaving, *self.unfenced)))

    def with_entries(self, members: tuple[Incarnation, ...]) -> tuple[Incarnation, ...]:
        """Those of these members that have the entries, or get them."""
        return tuple(each for each in members if each not in self.queue_only) if self.queue_only else members

    def with_learner(self, learner: Learner) -> Bucket:
        """The bucket with a member that begins to learn it. One that has only the queued events begins with these
        again, and is not waited for until it has all: nobody counts on it for the entries. It had none in an earlier
        set either: a decision that it has stored keeps no copy of that set from leading again."""
        member = learner.member
        in_sync = tuple(each for each in self.in_sync if each != member)
        unfenced = tuple(each for each in self.unfenced if each != member or member not in self.queue_only)
        return replace(
            self,
            version=self.version + ((in_sync, unfenced) != (self.in_sync, self.unfenced)),
            in_sync=in_sync,
            unfenced=unfenced,
            learners=(*(each for each in self.learners if each.member != member), learner),
            queue_only=tuple(each for each in self.queue_only if each != member),
        )

    @property
    def named(self) -> frozenset[Incarnation]:
        """Everybody on whom something of the bucket may depend."""
        return frozenset((*self.in_sync, *self.leaving, *self.learning, *self.unfenced))

    def goes_on_with(self, life: int) -> bool:
        """Whether a copy in sync of that earlier life has the content of this one."""
        return 0 < self.inherits <= life < self.life

    def is_only_of(self, member: Incarnation) -> bool:
        """Whether the member leads the bucket, and nobody else has, had or gets a copy, as the decision says."""
        return self.in_sync == (member,) == (self.primary,) and not (self.leaving or self.learners or self.unfenced)

    @property
    def learning(self) -> tuple[Incarnation, ...]:
        return tuple(each.member for each in self.learners)

    def transfer_of(self, member: Incarnation) -> int | None:
        return next((each.transfer for each in self.learners if each.member == member), None)


@dataclass(frozen=True, slots=True)
class MemberProfile:
    """What a member says of itself when it joins."""

    incarnation: Incarnation
    host: Annotated[str, Host()]
    port: Annotated[int, Range(1, 65535)]  # Of its lane: other members connect there.
    distributed_system_id: Annotated[int, Range(-1, MAX_DISTRIBUTED_SYSTEM_ID)]  # -1: it has no WAN.
    site_identity: Identity = ""  # As its folder says; empty: it was never a member of a site.
    seen: DecisionId = NO_DECISION  # The newest decision that any of its incarnations heard of, as its folder says.
    version: Annotated[str, Text(64)] = ""  # Of pywan.
    hosting: Annotated[
        tuple[tuple[RegionName, Weight], ...], Most(REGIONS_MAX)
    ] = ()  # Its regions, each with local-max-memory in MB; 0: it is an accessor.
    process: Annotated[str, Text(200)] = ""  # Its machine, its pid, and when that process began (pywan.base.processes).
    # The member ids of the incarnations that its folder names. It has locked the folder.
    before: Annotated[tuple[MemberId, ...], Most(INCARNATIONS_KEPT, each_once=True)] = ()
    # The SHA-256 of the incarnation's nonce (pywan.base.nonces). Empty: nobody can speak for it.
    mark: Annotated[bytes, Mark(MARK_BYTES)] = b""

    def problem(self) -> str:
        """What contradicts itself, in words; "": nothing does."""
        if len({region for region, _ in self.hosting}) < len(self.hosting):
            return f"member {self.incarnation} names a region of its own twice"
        if self.incarnation.member_id in self.before:
            return f"member {self.incarnation} names itself as an earlier one"
        return ""

    @property
    def hosting_bytes(self) -> int:
        """What its regions take in the tables."""
        return sum(HOSTED_BYTES + len(region) for region, _ in self.hosting)

    @property
    def machine(self) -> str:
        """Names the machine on which it runs. Empty: it is not known."""
        return self.process.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member reports of one bucket when it joins: the newest decision that it knows, and whether it has a copy
    that had everything under that decision."""

    bucket: Bucket
    has_all: bool
