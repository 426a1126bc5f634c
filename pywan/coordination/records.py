"""Owns the plain form of a coordinator's records, as it hands them to another locator, which keeps them too.

Members hear of none of this; they load coordination/encoding only.
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
    DecisionId,
    Identity,
    Incarnation,
    MemberProfile,
    Number,
    Run,
    Standby,
    Term,
)
from pywan.errors import ProtocolError

RUNS_MAX = 1 << 20  # Of a coordinator that decided something.

_name_of = plain.reader(Annotated[str, Name()], "a locator")
_address_of = plain.reader(Annotated[str, Text(ADDRESS_MAX)], "the address of a locator")


def follower_of(request: Mapping[str, Any]) -> Follower:
    """Reads what a locator says that keeps the records too."""
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
    generation: Run
    site_identity: Identity
    standby: Standby | None
    term: Term
    runs: Annotated[int, Range(0, RUNS_MAX)]
    members: Annotated[int, Range(0, PROFILES_MAX + encoding.GONE_MAX)]
    regions: Annotated[int, Range(0, encoding.GONE_MAX)]
    buckets: Annotated[int, Range(0, encoding.GONE_MAX + BUCKETS_MAX)]


_head_of_records = plain.record(_HeadOfRecords)
_run_and_last = plain.reader(tuple[Run, Number], "a run of the coordinator")
_member_of_records = plain.reader(tuple[Incarnation, MemberProfile | None], "a member of records")


def plain_records(store: Store) -> list[Any]:
    """The parts of a coordinator's records, as another locator keeps them too."""
    buckets = [
        encoding.plain_run(key, count, bucket and encoding.plain_bucket(bucket))
        for key, count, bucket in encoding.runs(store.buckets)
    ]
    head = [
        encoding.plain_decision_id(store.newest),
        store.generation,
        store.site_identity,
        encoding.plain_standby(store.standby),
        store.term,
        len(store.runs),
        len(store.members),
        len(store.regions),
        len(buckets),
    ]
    return [
        head,
        *([*each] for each in store.runs),
        *(
            [encoding.plain_incarnation(member), profile and encoding.plain_profile(profile)]
            for member, profile in store.members
        ),
        *([region, attributes and encoding.plain_attributes(attributes)] for region, attributes in store.regions),
        *buckets,
    ]


def records_of(parts: Iterable[Any]) -> Store:
    """Reads a coordinator's records from their parts. ProtocolError also if there are fewer than the first one says."""
    rest = iter(parts)
    head = _head_of_records(next(rest, None))
    told_runs = tuple(map(_run_and_last, islice(rest, head.runs)))
    members = tuple(map(_member_of_records, islice(rest, head.members)))
    regions = tuple(map(encoding.region_and_attributes_of, islice(rest, head.regions)))
    buckets: list[tuple[BucketKey, Bucket | None]] = []
    read_runs = 0
    for first, count, told in encoding.Runs().read(islice(rest, head.buckets)):
        bucket = None if told is None else encoding.bucket_of(told, first)
        buckets += [(key, bucket) for key in encoding.keys_of(first, count)]
        read_runs += 1
    if (len(told_runs), len(members), len(regions), read_runs) != head[5:]:
        raise ProtocolError("records are cut: the first part says that there are more")
    return Store(
        head.newest,
        head.generation,
        told_runs,
        head.site_identity,
        members,
        regions,
        tuple(buckets),
        head.standby,
        head.term,
    )
