"""Owns the plain form of the coordinator's words: lists, texts and numbers, as msgpack carries them.

`*_of` refuses with ProtocolError what is not of that form: the bytes come from a disk or from another process.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

from pywan.base.names import quoted
from pywan.coordination.tables import (
    Bucket,
    BucketKey,
    Epoch,
    Incarnation,
    Kind,
    Learner,
    Mark,
    MemberProfile,
    RegionAttributes,
)
from pywan.errors import ProtocolError

NUMBER_MAX = 2**63 - 1


def plain_incarnation(incarnation: Incarnation) -> list[Any]:
    return [incarnation.name, incarnation.member_id]


def incarnation_of(value: Any) -> Incarnation:
    name, member_id = _items(value, 2, "an incarnation")
    return Incarnation(_text(name), _number(member_id))


def plain_mark(mark: Mark) -> list[Any]:
    return [*mark]


def mark_of(value: Any) -> Mark:
    generation, number, run = _items(value, 3, "a mark")
    return Mark(_number(generation), _number(number), _number(run))


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
        plain_mark(profile.seen),
        profile.version,
        [[region, weight] for region, weight in profile.hosting],
    ]


def profile_of(value: Any) -> MemberProfile:
    incarnation, host, port, site, identity, seen, version, hosting = _items(value, 8, "a member's profile")
    return MemberProfile(
        incarnation_of(incarnation),
        _text(host),
        _number(port),
        _number(site),
        _text(identity),
        mark_of(seen),
        _text(version),
        tuple((_text(region), _number(weight)) for region, weight in _pairs(hosting)),
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


def bucket_of(value: Any) -> Bucket:
    epoch, life, inherits, version, primary, in_sync, leaving, learners, unfenced = _items(value, 9, "a bucket")
    generation, number = _items(epoch, 2, "an epoch")
    bucket = Bucket(
        Epoch(_number(generation), _number(number)),
        _number(life),
        _number(inherits),
        _number(version),
        None if primary is None else incarnation_of(primary),
        tuple(map(incarnation_of, _list(in_sync))),
        tuple(map(incarnation_of, _list(leaving))),
        tuple(Learner(incarnation_of(member), _number(transfer)) for member, transfer in _pairs(learners)),
        tuple(map(incarnation_of, _list(unfenced))),
    )
    if bucket.primary is not None and bucket.primary not in bucket.in_sync:
        raise ProtocolError(f"the primary of a bucket, {bucket.primary}, is not in sync")
    if set(bucket.in_sync) & set(bucket.learning):
        raise ProtocolError("a copy of a bucket is in sync and learns")
    return bucket


def plain_key(key: BucketKey) -> list[Any]:
    return [key.region, key.number]


def key_of(value: Any) -> BucketKey:
    region, number = _items(value, 2, "a bucket's key")
    return BucketKey(_text(region), _number(number))


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


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ProtocolError(f"a number from 0 to {NUMBER_MAX} is not {quoted(value)}")
    return value
