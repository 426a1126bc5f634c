"""Defines the plain form of a coordinator's records, for propagation to followers.

Members never load this module; members load coordination/encoding only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, NamedTuple

from pywan.coordination import encoding, plain
from pywan.coordination.actions import Store
from pywan.coordination.plain import Name, Range, Text
from pywan.coordination.standbys import Follower
from pywan.coordination.tables import (
    ADDRESS_MAX,
    BUCKETS_MAX,
    PROFILES_MAX,
    Bucket,
    BucketKey,
    ControllerEpoch,
    DecisionId,
    Identity,
    Incarnation,
    MemberProfile,
    Number,
    Standby,
    Term,
)
from pywan.errors import ProtocolError

CONTROLLER_EPOCHS_MAX = 1 << 20  # Controller epochs under which records were made.

_name_of = plain.reader(Annotated[str, Name()], "a locator")
_address_of = plain.reader(Annotated[str, Text(ADDRESS_MAX)], "the address of a locator")


def follower_of(request: Mapping[str, Any]) -> Follower:
    """Reads a follower's report. A follower is a locator that also keeps the records."""
    return Follower(
        _name_of(request.get("locator")),
        _address_of(request.get("address")),
        encoding.decision_id_of(request.get("stored")),
        encoding.term_of(request.get("records_term")),
        request.get("is_standby") is True,
    )


class _HeadOfRecords(NamedTuple):
    """The first part of records."""

    newest: DecisionId
    recovery_epoch: ControllerEpoch
    site_identity: Identity
    standby: Standby | None
    term: Term
    controller_epochs: Annotated[int, Range(0, CONTROLLER_EPOCHS_MAX)]
    members: Annotated[int, Range(0, PROFILES_MAX + encoding.GONE_MAX)]
    regions: Annotated[int, Range(0, encoding.GONE_MAX)]
    buckets: Annotated[int, Range(0, encoding.GONE_MAX + BUCKETS_MAX)]


_head_of_records = plain.record(_HeadOfRecords)
_controller_epoch_and_last = plain.reader(tuple[ControllerEpoch, Number], "a controller epoch")
_member_of_records = plain.reader(tuple[Incarnation, MemberProfile | None], "a member of records")


def plain_records(store: Store) -> list[Any]:
    """Returns the parts of a coordinator's records for a follower."""
    buckets = [
        encoding.plain_run(key, count, bucket and encoding.plain_bucket(bucket))
        for key, count, bucket in encoding.runs(store.buckets)
    ]
    head = [
        encoding.plain_decision_id(store.newest),
        store.recovery_epoch,
        store.site_identity,
        encoding.plain_standby(store.standby),
        store.term,
        len(store.controller_epochs),
        len(store.members),
        len(store.regions),
        len(buckets),
    ]
    return [
        head,
        *([*each] for each in store.controller_epochs),
        *(
            [encoding.plain_incarnation(member), profile and encoding.plain_profile(profile)]
            for member, profile in store.members
        ),
        *([region, attributes and encoding.plain_attributes(attributes)] for region, attributes in store.regions),
        *buckets,
    ]


def records_of(parts: Iterable[Any]) -> Store:
    """Reads a coordinator's records from their parts. ProtocolError also if parts are missing from the number in the
    first part."""
    rest = iter(parts)
    head = _head_of_records(next(rest, None))
    told_controller_epochs = tuple(map(_controller_epoch_and_last, islice(rest, head.controller_epochs)))
    members = tuple(map(_member_of_records, islice(rest, head.members)))
    regions = tuple(map(encoding.region_and_attributes_of, islice(rest, head.regions)))
    buckets: list[tuple[BucketKey, Bucket | None]] = []
    read_runs = 0
    for first, count, told in encoding.Runs().read(islice(rest, head.buckets)):
        bucket = None if told is None else encoding.bucket_of(told, first)
        buckets += [(key, bucket) for key in encoding.keys_of(first, count)]
        read_runs += 1
    if (len(told_controller_epochs), len(members), len(regions), read_runs) != head[5:]:
        raise ProtocolError("records are cut: the first part says that there are more")
    return Store(
        head.newest,
        head.recovery_epoch,
        told_controller_epochs,
        head.site_identity,
        members,
        regions,
        tuple(buckets),
        head.standby,
        head.term,
    )
