"""Owns the interest policy of a PARTITION region: whether a member with policy ALL receives all changes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from pywan.base.lines import Lines
from pywan.config.attributes import MAX_REPLICAS, RegionAttributes
from pywan.coordination.tables import Bucket, Incarnation, MemberProfile
from pywan.errors import IllegalStateError

log = logging.getLogger("pywan.region")


def storing(members: Iterable[MemberProfile], name: str, but: Incarnation) -> int:
    """Returns how many members store the region, beside `but`."""
    return sum(
        region == name and weight > 0 for each in members if each.incarnation != but for region, weight in each.hosting
    )


def storing_by_region(members: Iterable[MemberProfile], but: Incarnation) -> Counter[str]:
    """As `storing`, for all regions."""
    return Counter(region for each in members if each.incarnation != but for region, weight in each.hosting if weight)


def receives_all(made: RegionAttributes) -> bool:
    """Returns whether a member with these attributes is to receive changes of a PARTITION region that other members
    lead."""
    return made.is_partitioned and made.interest_policy == "all"


def check_interest(made: RegionAttributes, others: int) -> None:
    """IllegalStateError: the member could not receive changes of all buckets, as `others` members store the region
    beside it."""
    if receives_all(made) and others + 1 > _replicas(made):
        raise IllegalStateError(
            f"region {made.name!r}: with interest_policy 'all' a member hears of the buckets of which it has a replica,"
            f" and {others + 1} members would store {_replicas(made)} replicas of each; {_remedy(others + 1)}"
        )


def _replicas(made: RegionAttributes) -> int:
    return 1 + (made.redundant_copies or 0)


def _remedy(members: int) -> str:
    if members > MAX_REPLICAS:
        return "take type REPLICATE, or interest_policy 'cache-content'"
    return f"take redundant_copies {members - 1} at all members, type REPLICATE, or interest_policy 'cache-content'"


class Interest:
    """The notification state of one region with interest policy ALL. The owner calls the methods under a lock.

    Listeners receive the changes of a bucket while the member has an in-sync replica. A joining member receives changes
    of more and more buckets. So the log only names conditions that do not end by themselves: fewer replicas than
    members, or a member that received changes of all buckets and does not any more.
    """

    def __init__(self, made: RegionAttributes) -> None:
        self._made = made
        self._others = 0  # How many other members store the region.
        self._unnotified: set[int] = set()  # Buckets with a primary, but without an in-sync replica here.
        self._notified: set[int] = set()  # Buckets with an in-sync replica here.
        self._was_whole = self._is_told = False  # All buckets were notified once; the log names the loss.
        self._lines = Lines(log)

    @property
    def unnotified(self) -> int:
        """The number of buckets whose changes the listeners do not receive."""
        return len(self._unnotified)

    def see_members(self, others: int) -> None:
        self._others = others

    def see_buckets(self, me: Incarnation, buckets: Mapping[int, Bucket | None]) -> None:
        """`buckets` have changed metadata records."""
        for number, bucket in buckets.items():
            is_notified = bucket is not None and me in bucket.replicas
            misses = bucket is not None and bucket.primary is not None and not is_notified
            (self._notified.add if is_notified else self._notified.discard)(number)
            (self._unnotified.add if misses else self._unnotified.discard)(number)

    def forget(self) -> None:
        """Forgets the buckets of a member that is a new incarnation: the member has no replicas, and learns them
        again."""
        self._notified.clear()
        self._unnotified.clear()
        self._was_whole = False

    def say(self) -> None:
        """Logs changes. The caller does not call for an ending member, since a handover removes replicas."""
        is_crowded = self._others + 1 > _replicas(self._made)
        self._was_whole = self._was_whole or bool(self._notified and not self._unnotified)
        if not self._is_told and (is_crowded or (self._was_whole and self._unnotified)):
            self._is_told = True
            what = f"{self.unnotified} of its buckets" if self._unnotified else "buckets that move to other members"
            self._lines.warning(
                "region %s: its interest policy is all, and its listeners here are not told of %s: %d members store"
                " %d replicas of each; %s",
                self._made.name,
                what,
                self._others + 1,
                _replicas(self._made),
                _remedy(self._others + 1) if is_crowded else "it is told of them again when it has replicas",
            )
        elif self._is_told and not is_crowded and not self._unnotified:
            self._is_told = False
            log.info("region %s: its listeners here are told of all its buckets again", self._made.name)
