"""Owns the plain form of the coordinator's words: lists, texts and numbers, as msgpack carries them.

Tables and holdings of a whole site travel as packed bytes (`pack`): they have too many values for a message. Buckets
travel as runs: neighbours of one region for which the same was decided, as (region, first number, how many, what).

`*_of` refuses with ProtocolError what is not of that form: the bytes come from a disk or from another process.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple, fields
from typing import Any, TypeVar

import msgpack

from pywan.base.names import quoted
from pywan.coordination.messages import MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.tables import (
    DECISION_MAX,
    RUN_MAX,
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
from pywan.errors import ProtocolError

NUMBER_MAX = 2**63 - 1
MAX_RUN = 1 << 20  # Buckets in a run. A region has far fewer.
MAX_BUCKETS_TOLD = 4 << 20  # In one message: the runs of a short one could name more than there is memory for.
PACKED_MAX = 256 << 20  # The limit for tables, unpacked: about thirty times those of 1,000 regions of 113 buckets.


def pack(value: Any) -> bytes:
    return zlib.compress(msgpack.packb(value), 1)


def unpack(data: Any) -> Any:
    if not isinstance(data, bytes):
        raise ProtocolError(f"packed tables are bytes, not {quoted(data)}")
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(data, PACKED_MAX)
        if not inflate.eof:
            raise ProtocolError(f"packed tables are cut, or take more than {PACKED_MAX} bytes")
        return msgpack.unpackb(plain, strict_map_key=False)
    except ProtocolError:
        raise
    except Exception as error:  # msgpack raises half a dozen kinds. All mean the same here.
        raise ProtocolError(f"packed tables cannot be read: {error}") from None


def plain_incarnation(incarnation: Incarnation) -> list[Any]:
    return [incarnation.name, incarnation.member_id]


def incarnation_of(value: Any) -> Incarnation:
    name, member_id = _items(value, 2, "an incarnation")
    return Incarnation(_text(name), number_of(member_id))


def plain_decision_id(decision: DecisionId) -> list[Any]:
    return [*decision]


def decision_id_of(value: Any) -> DecisionId:
    run, number = _items(value, 2, "a decision")
    return DecisionId(run_of(run), _decision_of(number))


def plain_attributes(attributes: RegionAttributes) -> list[Any]:
    return [attributes.kind.value, *astuple(attributes)[1:]]


def attributes_of(value: Any) -> RegionAttributes:
    kind, *rest = _items(value, len(fields(RegionAttributes)), "the attributes of a region")
    if kind not in [each.value for each in Kind]:
        raise ProtocolError(f"{quoted(kind)} is no kind of region")
    for each, field in zip(rest, fields(RegionAttributes)[1:], strict=True):
        if type(each) is not type(field.default):
            raise ProtocolError(f"{field.name} of a region is not {quoted(each)}")
    return RegionAttributes(Kind(kind), *rest)


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
    ]


def profile_of(value: Any) -> MemberProfile:
    incarnation, host, port, site, identity, seen, version, hosting, process, before = _items(
        value, 10, "a member's profile"
    )
    return MemberProfile(
        incarnation_of(incarnation),
        _text(host),
        number_of(port),
        _whole(site),
        _text(identity),
        decision_id_of(seen),
        _text(version),
        tuple((_text(region), number_of(weight)) for region, weight in _pairs(hosting)),
        _text(process),
        numbers_of(before),
    )


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
    ]


def bucket_of(value: Any, key: BucketKey) -> Bucket:
    """Reads a decision about a bucket. `key` names the bucket in errors."""
    epoch, life, inherits, version, primary, in_sync, leaving, learners, unfenced = _items(value, 9, "a bucket")
    bucket = Bucket(
        epoch_of(epoch),
        number_of(life),
        number_of(inherits),
        number_of(version),
        None if primary is None else incarnation_of(primary),
        tuple(map(incarnation_of, _list(in_sync))),
        tuple(map(incarnation_of, _list(leaving))),
        tuple(Learner(incarnation_of(member), number_of(transfer)) for member, transfer in _pairs(learners)),
        tuple(map(incarnation_of, _list(unfenced))),
    )
    if bucket.primary is not None and bucket.primary not in bucket.in_sync:
        raise ProtocolError(f"bucket {key}: its primary, member {bucket.primary}, is not among the copies in sync")
    for member in bucket.learning:
        if member in bucket.in_sync:
            raise ProtocolError(f"bucket {key}: member {member} is among the copies in sync and among those that learn")
    return bucket


Decided = TypeVar("Decided")


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


def plain_run(first: BucketKey, count: int, plain: Any) -> list[Any]:
    return [first.region, first.number, count, plain]


def _runs_of(value: Any) -> Iterator[tuple[BucketKey, int, Any]]:
    """Reads runs. What was decided comes in its plain form."""
    told = 0
    for each in _list(value):
        region, first, count, plain = _items(each, 4, "a run of buckets")
        told += number_of(count)
        if not 0 < count <= MAX_RUN or told > MAX_BUCKETS_TOLD:
            raise ProtocolError(
                f"a run of {count} buckets of region {quoted(region)} is not one of 1 to {MAX_RUN}, with at most"
                f" {MAX_BUCKETS_TOLD} in a message"
            )
        yield BucketKey(_text(region), number_of(first)), count, plain


def plain_tables(tables: Tables) -> list[Any]:
    return [
        tables.since,
        plain_decision_id(tables.newest),
        tables.coordinator,
        tables.site_identity,
        tables.lease_us,
        None if tables.members is None else [plain_profile(each) for each in tables.members],
        [[region, attributes and plain_attributes(attributes)] for region, attributes in tables.regions],
        [plain_run(key, count, bucket and plain_bucket(bucket)) for key, count, bucket in runs(tables.buckets)],
        [plain_run(key, count, None) for key, count, _ in runs((key, None) for key in tables.undecided)],
    ]


def tables_of(value: Any) -> Tables:
    since, newest, coordinator, identity, lease_us, members, regions, buckets, undecided = _items(value, 9, "tables")
    return Tables(
        number_of(since),
        decision_id_of(newest),
        _text(coordinator),
        _text(identity),
        number_of(lease_us),
        None if members is None else tuple(map(profile_of, _list(members))),
        tuple((_text(name), None if each is None else attributes_of(each)) for name, each in _pairs(regions)),
        tuple(
            (key, bucket)
            for first, count, plain in _runs_of(buckets)
            for bucket in (None if plain is None else bucket_of(plain, first),)
            for key in keys_of(first, count)
        ),
        tuple(key for first, count, _ in _runs_of(undecided) for key in keys_of(first, count)),
    )


def plain_refused(refused: Refused) -> list[Any]:
    earlier = refused.earlier and plain_profile(refused.earlier)
    return [refused.reason, refused.retry_after_us, refused.join_again, refused.report, earlier]


def refused_of(value: Any) -> Refused:
    reason, retry_after_us, join_again, report, earlier = _items(value, 5, "a refusal")
    return Refused(
        _text(reason),
        number_of(retry_after_us),
        join_again is True,
        report is True,
        None if earlier is None else profile_of(earlier),
    )


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
    return MayLeave(tuple((_text(region), number_of(count)) for region, count in _pairs(value)))


def plain_still_needed(message: StillNeeded) -> list[Any]:
    return [message.waits_for, [list(each) for each in message.buckets]]


def still_needed_of(value: Any) -> StillNeeded:
    waits_for, buckets = _items(value, 2, "what a member is needed for")
    triples = [_items(each, 3, "buckets that a member is needed for") for each in _list(buckets)]
    return StillNeeded(
        _text(waits_for), tuple((_text(region), number_of(count), _text(to)) for region, count, to in triples)
    )


def plain_holdings(holdings: dict[BucketKey, Holding]) -> list[Any]:
    return [
        plain_run(key, count, [plain_bucket(each.bucket), each.has_all])
        for key, count, each in runs(sorted(holdings.items(), key=lambda held: held[0]))
    ]


def holdings_of(value: Any) -> dict[BucketKey, Holding]:
    found: dict[BucketKey, Holding] = {}
    for first, count, plain in _runs_of(value):
        bucket, has_all = _items(plain, 2, "a holding")
        holding = Holding(bucket_of(bucket, first), has_all is True)
        found.update((key, holding) for key in keys_of(first, count))
    return found


def plain_epoch(epoch: Epoch) -> list[Any]:
    return [*epoch]


def epoch_of(value: Any) -> Epoch:
    run, number = _items(value, 2, "an epoch")
    return Epoch(run_of(run), _decision_of(number))


def plain_key(key: BucketKey) -> list[Any]:
    return [key.region, key.number]


def key_of(value: Any) -> BucketKey:
    region, number = _items(value, 2, "a bucket's key")
    return BucketKey(_text(region), number_of(number))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ProtocolError(f"a list is not {quoted(value)}")
    return value


def _items(value: Any, count: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != count:
        raise ProtocolError(f"{what} has {count} parts and is not {quoted(value)}")
    return value


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return [(first, second) for first, second in (_items(each, 2, "a pair") for each in _list(value))]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ProtocolError(f"a text is not {quoted(value)}")
    return value


def number_of(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ProtocolError(f"a number from 0 to {NUMBER_MAX} is not {quoted(value)}")
    return value


def run_of(value: Any) -> int:
    return _at_most(value, RUN_MAX, "a run of the coordinator")


def _decision_of(value: Any) -> int:
    return _at_most(value, DECISION_MAX, "the number of a decision")


def _at_most(value: Any, limit: int, what: str) -> int:
    if number_of(value) > limit:
        raise ProtocolError(f"{what} is at most {limit} and not {value}")
    return number_of(value)


def numbers_of(value: Any) -> tuple[int, ...]:
    return tuple(number_of(each) for each in _list(value))


def _whole(value: Any) -> int:
    """A number that may be below 0: the site of a member without a WAN."""
    if value == -1 and type(value) is int:
        return -1
    return number_of(value)
