"""Owns the plain form of the coordinator's words: lists, texts and numbers, as msgpack carries them.

A value travels as the list of its fields, in their order. Tables and holdings of a whole site are parts that `pack`
puts behind each other: they have too many values for a message. Buckets travel as runs: neighbours of one region for
which the same was decided, as [region, first number, how many, what].

`*_of` refuses with ProtocolError what is not of that form, or not in the range that its field says: the bytes come from
a disk or from another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar

from pywan.base.names import quoted
from pywan.coordination import plain
from pywan.coordination.messages import REASON_MAX, MayLeave, Refused, StillNeeded, Tables, Time
from pywan.coordination.plain import Most, Name, Range, Since
from pywan.coordination.tables import (
    BUCKETS_MAX,
    INCARNATIONS_KEPT,
    MEMBERS_MAX,
    PROFILES_MAX,
    REGIONS_MAX,
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Identity,
    Incarnation,
    MemberId,
    MemberProfile,
    Number,
    RegionAttributes,
    RegionName,
    Run,
    RunOfBuckets,
    Standby,
    Term,
    Weight,
)
from pywan.errors import ProtocolError

Decided = TypeVar("Decided")

# Buckets, and regions, that have gone, in one message. The coordinator remembers fewer (GONE_KEPT), and those of one
# message of a member beside them.
GONE_MAX = 1 << 20
REQUESTS_MAX = 10_000  # In one message of a member.
REFUSALS_MAX = 64  # In one reply to a question for news. The coordinator keeps fewer for a member.

incarnation_of = plain.record(Incarnation)
decision_id_of = plain.record(DecisionId)
attributes_of = plain.record(RegionAttributes)
profile_of = plain.record(MemberProfile)
epoch_of = plain.record(Epoch)
key_of = plain.record(BucketKey)
refused_of = plain.record(Refused)
still_needed_of = plain.record(StillNeeded)
decision_of = plain.reader(Number, "the number of a decision")
run_of = plain.reader(Run, "a run of the coordinator")
term_of = plain.reader(Term, "a term")
standby_of = plain.record(Standby)
weight_of = plain.reader(Weight, "local-max-memory")
lease_of = plain.field_reader(Tables, "lease_us")
locator_of = plain.field_reader(Tables, "coordinator")
region_of = plain.reader(RegionName, "a region")
identity_of = plain.reader(Identity, "the identity of a site")
members_of = plain.reader(Annotated[tuple[Incarnation, ...], Most(MEMBERS_MAX)], "members")
member_ids_of = plain.reader(Annotated[tuple[MemberId, ...], Most(INCARNATIONS_KEPT)], "incarnations")

_lost_of = plain.field_reader(MayLeave, "lost")
_bucket_of = plain.record(Bucket)
_run_of_buckets = plain.record(RunOfBuckets)
region_and_attributes_of = plain.reader(tuple[RegionName, RegionAttributes | None], "a region of tables")
_refused_requests = plain.reader(
    Annotated[tuple[tuple[Annotated[int, Range(0, REQUESTS_MAX - 1)], Refused], ...], Most(REQUESTS_MAX)],
    "refused requests",
)
_holding_of = plain.record(Holding)
_refusals = plain.reader(Annotated[tuple[Refused, ...], Most(REFUSALS_MAX)], "refusals")


def plain_incarnation(incarnation: Incarnation) -> list[Any]:
    return [incarnation.name, incarnation.member_id]


def plain_decision_id(decision: DecisionId) -> list[Any]:
    return [*decision]


def plain_attributes(attributes: RegionAttributes) -> list[Any]:
    return [attributes.kind.value, *astuple(attributes)[1:]]


def regions_of(value: Any) -> dict[str, RegionAttributes]:
    """Reads regions by their names."""
    told = plain.map_of(value, REGIONS_MAX, "regions")
    return {region_of(name): attributes_of(attributes) for name, attributes in told.items()}


def plain_profile(profile: MemberProfile) -> list[Any]:
    return [
        plain_incarnation(profile.incarnation),
        profile.host,
        profile.port,
        profile.distributed_system_id,
        profile.site_identity,
        plain_decision_id(profile.seen),
        profile.version,
        [[region, weight] for region, weight in profile.hosting],
        profile.process,
        list(profile.before),
        profile.mark,
    ]


def plain_bucket(bucket: Bucket) -> list[Any]:
    return [
        [*bucket.epoch],
        bucket.life,
        bucket.inherits,
        bucket.version,
        None if bucket.primary is None else plain_incarnation(bucket.primary),
        [plain_incarnation(each) for each in bucket.in_sync],
        [plain_incarnation(each) for each in bucket.leaving],
        [[plain_incarnation(each.member), each.transfer] for each in bucket.learners],
        [plain_incarnation(each) for each in bucket.unfenced],
        [plain_incarnation(each) for each in bucket.queue_only],
    ]


def bucket_of(value: Any, key: BucketKey) -> Bucket:
    """Reads a decision about a bucket. `key` names the bucket in errors."""
    return _named(_bucket_of, value, key)


def _named(read: Callable[[Any], Decided], value: Any, key: BucketKey) -> Decided:
    try:
        return read(value)
    except ProtocolError as error:
        raise ProtocolError(f"bucket {key}: {str(error).removeprefix('a bucket: ')}") from None


def runs(buckets: Iterable[tuple[BucketKey, Decided]]) -> Iterator[tuple[BucketKey, int, Decided]]:
    """Yields each run of neighbours with equal decisions: its first key, how many there are, and the decision."""
    first, count, decided = BucketKey("", 0), 0, None
    for key, each in buckets:
        is_next = count and key == (first.region, first.number + count)
        if is_next and (each is decided or each == decided):
            count += 1
            continue
        if count:
            yield first, count, decided  # type: ignore[misc]
        first, count, decided = key, 1, each
    if count:
        yield first, count, decided  # type: ignore[misc]


def keys_of(first: BucketKey, count: int) -> Iterator[BucketKey]:
    """The keys of a run."""
    return (BucketKey(first.region, number) for number in range(first.number, first.number + count))


def plain_run(first: BucketKey, count: int, decided: Any) -> list[Any]:
    return [first.region, first.number, count, decided]


def run_of_buckets(value: Any) -> tuple[BucketKey, int]:
    """Reads [region, first number, how many]: the first key, and how many buckets there are."""
    region, first, count = _run_of_buckets(value)
    return BucketKey(region, first), count


class Runs:
    """Reads the runs of one message. What was decided comes in its plain form.

    A short message could name more buckets than there is memory for, so those of one message are counted.
    """

    def __init__(self) -> None:
        self._told = self._gone = 0

    def read(self, parts: Iterable[Any]) -> Iterator[tuple[BucketKey, int, Any]]:
        for each in parts:
            if type(each) is not list or len(each) != 4:
                raise ProtocolError(f"a run of buckets has 4 parts, and is not {quoted(each)}")
            first, count = run_of_buckets(each[:3])
            decided = each[3]
            if decided is None:
                self._gone += count
            else:
                self._told += count
            if self._told > BUCKETS_MAX or self._gone > GONE_MAX:
                raise ProtocolError(
                    f"buckets of a site: more than {BUCKETS_MAX}, or more than {GONE_MAX} that are no more, cannot be"
                    " told in one message"
                )
            yield first, count, decided


def plain_tables(tables: Tables) -> list[Any]:
    """The parts of tables. The first one says how many there are of each kind behind it, in this order."""
    members = None if tables.members is None else [plain_profile(each) for each in tables.members]
    regions = [[region, attributes and plain_attributes(attributes)] for region, attributes in tables.regions]
    buckets = [plain_run(key, count, bucket and plain_bucket(bucket)) for key, count, bucket in runs(tables.buckets)]
    undecided = [plain_run(key, count, None) for key, count, _ in runs((key, None) for key in tables.undecided)]
    head = [
        tables.since,
        plain_decision_id(tables.newest),
        tables.coordinator,
        tables.site_identity,
        tables.lease_us,
        None if members is None else len(members),
        len(regions),
        len(buckets),
        plain_standby(tables.standby),
    ]
    return [head, *(members or []), *regions, *buckets, *undecided]


class _Head(NamedTuple):
    """The first part of tables."""

    since: Number
    newest: DecisionId
    coordinator: Annotated[str, Name()]
    site_identity: Identity
    lease_us: Time
    members: Annotated[int, Range(0, PROFILES_MAX)] | None  # None: they are as they were.
    regions: Annotated[int, Range(0, GONE_MAX)]
    runs: Annotated[int, Range(0, GONE_MAX + BUCKETS_MAX)]
    standby: Annotated[Standby | None, Since(1)] = None


_head_of = plain.record(_Head)


def tables_of(parts: Iterable[Any]) -> Tables:
    """Reads tables from their parts. ProtocolError also if a region, a member or a bucket is there twice, or if fewer
    parts have come than the first one says."""
    rest = iter(parts)
    head = _head_of(next(rest, None))
    members = None if head.members is None else tuple(map(profile_of, islice(rest, head.members)))
    regions = tuple(map(region_and_attributes_of, islice(rest, head.regions)))
    reading = Runs()
    buckets: list[tuple[BucketKey, Bucket | None]] = []
    read_runs = 0
    for first, count, told in reading.read(islice(rest, head.runs)):
        bucket = None if told is None else bucket_of(told, first)
        buckets += [(key, bucket) for key in keys_of(first, count)]
        read_runs += 1
    undecided = [key for first, count, _ in reading.read(rest) for key in keys_of(first, count)]
    if len(members or ()) < (head.members or 0) or len(regions) < head.regions or read_runs < head.runs:
        raise ProtocolError("tables are cut: the first part says that there are more")
    plain.check_each_once((each.incarnation for each in members or ()), "the members of tables")
    plain.check_each_once((name for name, _ in regions), "the regions of tables")
    plain.check_each_once((*(key for key, _ in buckets), *undecided), "the buckets of tables")
    return Tables(
        head.since,
        head.newest,
        head.coordinator,
        head.site_identity,
        head.lease_us,
        members,
        regions,
        tuple(buckets),
        tuple(undecided),
        head.standby,
    )


def plain_standby(standby: Standby | None) -> list[Any] | None:
    return None if standby is None else [standby.name, standby.address, standby.is_out]


def plain_refused(refused: Refused) -> list[Any]:
    earlier = refused.earlier and plain_profile(refused.earlier)
    return [refused.reason[:REASON_MAX], refused.retry_after_us, refused.join_again, refused.report, earlier]


def refusals_of(reply: Mapping[str, Any]) -> tuple[Refused, ...]:
    """Reads why a question for news was refused; (): it was not."""
    return _refusals(reply.get("refused", []))  # type: ignore[no-any-return]


def refused_requests_of(reply: Mapping[str, Any], asked: int) -> dict[int, Refused]:
    """Reads which of the requests of a message with `asked` were refused: each by its place."""
    told = _refused_requests(reply.get("refused_requests", []))
    if any(index >= asked for index, _ in told):
        raise ProtocolError(f"a request that was refused is none of the {asked} that were asked")
    return dict(told)


def plain_leaving(messages: Iterable[Refused | MayLeave | StillNeeded]) -> dict[str, Any]:
    """What a member is told that wants to leave, as fields of a reply."""
    told: dict[str, Any] = {}
    for message in messages:
        if isinstance(message, MayLeave):
            told["may_leave"] = plain_may_leave(message)
        elif isinstance(message, StillNeeded):
            told["still_needed"] = plain_still_needed(message)
    return told


def plain_may_leave(message: MayLeave) -> list[Any]:
    return [list(each) for each in message.lost]


def may_leave_of(value: Any) -> MayLeave:
    return MayLeave(_lost_of(value))


def leaving_of(reply: Mapping[str, Any]) -> list[MayLeave | StillNeeded]:
    """Reads what a member is told that wants to leave."""
    told: list[MayLeave | StillNeeded] = []
    if "still_needed" in reply:
        told.append(still_needed_of(reply["still_needed"]))
    if "may_leave" in reply:
        told.append(may_leave_of(reply["may_leave"]))
    return told


def plain_still_needed(message: StillNeeded) -> list[Any]:
    return [message.waits_for, [list(each) for each in message.buckets]]


def plain_holdings(holdings: dict[BucketKey, Holding]) -> list[Any]:
    """The parts of holdings: runs."""
    return [
        plain_run(key, count, [plain_bucket(each.bucket), each.has_all])
        for key, count, each in runs(sorted(holdings.items(), key=lambda held: held[0]))
    ]


def holdings_of(parts: Iterable[Any], regions: Mapping[str, RegionAttributes]) -> dict[BucketKey, Holding]:
    """Reads holdings from their parts. The same message has described their `regions`, so it makes at most as many
    buckets as these have."""
    found: dict[BucketKey, Holding] = {}
    told = 0
    for first, count, held in Runs().read(parts):
        region = regions.get(first.region)
        if region is None:
            raise ProtocolError(f"holdings name region {first.region}, which is not described")
        if first.number + count > region.total_num_buckets:
            raise ProtocolError(
                f"holdings name bucket {first.number + count - 1} of region {first.region}, which has"
                f" {region.total_num_buckets}"
            )
        holding = _named(_holding_of, held, first)
        found.update((key, holding) for key in keys_of(first, count))
        told += count
        if len(found) < told:
            raise ProtocolError(f"holdings name a bucket of region {first.region} twice")
    return found


def plain_epoch(epoch: Epoch) -> list[Any]:
    return [*epoch]


def plain_key(key: BucketKey) -> list[Any]:
    return [key.region, key.number]
