"""Owns the interest policy of a partitioned region: whether a member that is to hear of all its changes does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pywan.base.lines import Lines
from pywan.config.attributes import MAX_COPIES, RegionAttributes
from pywan.coordination.tables import Bucket, Incarnation, MemberProfile
from pywan.errors import IllegalStateError

log = logging.getLogger("pywan.region")


def storing(members: Iterable[MemberProfile], name: str, but: Incarnation) -> int:
    """Returns how many members store the region, beside `but`."""
    return sum(
        region == name and weight > 0 for each in members if each.incarnation != but for region, weight in each.hosting
    )


def hears_all(made: RegionAttributes) -> bool:
    """Whether a member with these attributes is to hear of buckets of a partitioned region that others lead."""
    return made.is_partitioned and made.interest_policy == "all"


def check_interest(made: RegionAttributes, others: int) -> None:
    """IllegalStateError: the member could not hear of all buckets, as `others` store the region beside it."""
    if hears_all(made) and others + 1 > _copies(made):
        raise IllegalStateError(
            f"region {made.name!r}: with interest_policy 'all' a member hears of the buckets of which it has a copy,"
            f" and {others + 1} members would store {_copies(made)} copies of each; {_remedy(others + 1)}"
        )


def _copies(made: RegionAttributes) -> int:
    return 1 + (made.redundant_copies or 0)


def _remedy(members: int) -> str:
    if members > MAX_COPIES:
        return "take type REPLICATE, or interest_policy 'cache-content'"
    return f"take redundant_copies {members - 1} at all members, type REPLICATE, or interest_policy 'cache-content'"


class Interest:
    """What a member with interest policy ALL hears of one region. Its owner calls it under a lock.

    The listeners are told of a bucket while the member has a copy in sync. A member that has just come hears of more
    and more buckets. So the log says only what does not pass by itself: there are fewer copies than members, or a
    member that heard of all buckets does not any more.
    """

    def __init__(self, made: RegionAttributes) -> None:
        self._made = made
        self._others = 0  # How many members store the region beside this one.
        self._unheard: set[int] = set()  # Buckets that have a primary, and no copy in sync here.
        self._heard: set[int] = set()  # Buckets with a copy in sync here.
        self._was_whole = self._is_told = False  # It heard of all buckets once; the log says that it does not.
        self._lines = Lines(log)

    @property
    def unheard(self) -> int:
        """The buckets of whose changes the listeners are not told."""
        return len(self._unheard)

    def see_members(self, others: int) -> None:
        self._others = others

    def see_buckets(self, me: Incarnation, buckets: Mapping[int, Bucket | None]) -> None:
        """`buckets` are those whose decisions changed."""
        for number, bucket in buckets.items():
            hears = bucket is not None and me in bucket.copies
            misses = bucket is not None and bucket.primary is not None and not hears
            (self._heard.add if hears else self._heard.discard)(number)
            (self._unheard.add if misses else self._unheard.discard)(number)

    def forget(self) -> None:
        """The member has begun anew: it has no copies, and learns them again."""
        self._heard.clear()
        self._unheard.clear()
        self._was_whole = False

    def say(self) -> None:
        """Logs what has changed. A member that ends gives its copies away, and says nothing of it."""
        is_crowded = self._others + 1 > _copies(self._made)
        self._was_whole = self._was_whole or bool(self._heard and not self._unheard)
        if not self._is_told and (is_crowded or (self._was_whole and self._unheard)):
            self._is_told = True
            what = f"{self.unheard} of its buckets" if self._unheard else "buckets that move to other members"
            self._lines.warning(
                "region %s: its interest policy is all, and its listeners here are not told of %s: %d members store"
                " %d copies of each; %s",
                self._made.name,
                what,
                self._others + 1,
                _copies(self._made),
                _remedy(self._others + 1) if is_crowded else "it is told of them again when it has copies",
            )
        elif self._is_told and not is_crowded and not self._unheard:
            self._is_told = False
            log.info("region %s: its listeners here are told of all its buckets again", self._made.name)
