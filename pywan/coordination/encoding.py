"""The plain form of the messages of the coordination: lists, texts and numbers, as msgpack carries them.

A value travels as the list of its fields, in their order. The tables and holdings of a whole site have too many values
for one list. So `pack` puts their parts behind each other. Buckets travel as runs: neighbours of one region with equal
values, as [region, first number, count, value].

Functions `*_of` raise ProtocolError for input of a wrong form, or with a field out of range: the bytes come from a disk
or from another process.
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
    ControllerEpoch,
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
    RunOfBuckets,
    Standby,
    Term,
    Weight,
)
from pywan.errors import ProtocolError

Decided = TypeVar("Decided")

# The most removed buckets and regions in one message. The coordinator remembers fewer (GONE_KEPT), and adds the
# removals of one message of a member.
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
decision_of = plain.reader(Number, "the number of a metadata record")
controller_epoch_of = plain.reader(ControllerEpoch, "a controller epoch")
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
        bucket.timeline,
        bucket.inherits,
        bucket.version,
        None if bucket.primary is None else plain_incarnation(bucket.primary),
        [plain_incarnation(each) for each in bucket.isr],
        [plain_incarnation(each) for each in bucket.leaving],
        [[plain_incarnation(each.member), each.transfer] for each in bucket.learners],
        [plain_incarnation(each) for each in bucket.unfenced],
        [plain_incarnation(each) for each in bucket.queue_only],
    ]


def bucket_of(value: Any, key: BucketKey) -> Bucket:
    """Reads a metadata record about a bucket. `key` names the bucket in errors."""
    return _named(_bucket_of, value, key)


def _named(read: Callable[[Any], Decided], value: Any, key: BucketKey) -> Decided:
    try:
        return read(value)
    except ProtocolError as error:
        raise ProtocolError(f"bucket {key}: {str(error).removeprefix('a bucket: ')}") from None


def runs(buckets: Iterable[tuple[BucketKey, Decided]]) -> Iterator[tuple[BucketKey, int, Decided]]:
    """Yields each run of neighbours with equal records: its first key, the number of buckets, and the record."""
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
    """Reads [region, first number, count]: returns the first key, and the number of buckets."""
    region, first, count = _run_of_buckets(value)
    return BucketKey(region, first), count


class Runs:
    """Reads the runs of one message. The values stay in their plain form.

    A short message could name more buckets than the memory can hold, so the buckets of one message are counted.
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
    """The parts of tables. The first part says how many parts of every kind follow, in this order."""
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
    members: Annotated[int, Range(0, PROFILES_MAX)] | None  # None: the members are unchanged.
    regions: Annotated[int, Range(0, GONE_MAX)]
    runs: Annotated[int, Range(0, GONE_MAX + BUCKETS_MAX)]
    standby: Annotated[Standby | None, Since(1)] = None


_head_of = plain.record(_Head)


def tables_of(parts: Iterable[Any]) -> Tables:
    """Reads tables from their parts. ProtocolError also if a region, a member or a bucket occurs twice, or if fewer
    parts have come than the first part says."""
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
    """Reads the refusals of a question for news; (): the question was not refused."""
    return _refusals(reply.get("refused", []))  # type: ignore[no-any-return]


def refused_requests_of(reply: Mapping[str, Any], asked: int) -> dict[int, Refused]:
    """Reads the refused requests of a message `coordination-ask`, by their place in the message."""
    told = _refused_requests(reply.get("refused_requests", []))
    if any(index >= asked for index, _ in told):
        raise ProtocolError(f"a request that was refused is none of the {asked} that were asked")
    return dict(told)


def plain_leaving(messages: Iterable[Refused | MayLeave | StillNeeded]) -> dict[str, Any]:
    """The answer to a draining member, as fields of a reply."""
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
    """Reads the answer to a draining member."""
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
    """Reads holdings from their parts. The same message has described the holdings' `regions`, so the result has at
    most as many buckets as these regions have."""
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
