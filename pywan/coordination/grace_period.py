"""The startup grace period of a coordinator: the coordinator decides nothing about buckets while members may know newer
metadata records."""

from __future__ import annotations

from collections.abc import Iterable

from pywan.coordination.tables import Incarnation

_SOMEBODY = Incarnation("", 0)  # Stands for forgotten members.
METADATA_RECOVERIES_MAX = 16  # In one grace period: members that come back may know different controller epochs.


class GracePeriod:
    """The grace period lasts until every member of earlier controller epochs was in contact or is given up, and for one
    lease at most.

    In the grace period of a metadata recovery, more recoveries may begin: each member may name later records. Further
    recoveries do not lengthen the period: the leases of unknown members were given before this controller epoch. After
    the period, no recovery begins another period for as long as the period lasted. So the site decides half of the
    time, whichever records members name.

    For example, with a lease of 5 s: a member that knows lost records comes at 100 s, and a second member that knows
    later records comes at 102 s. The grace period is over at 105 s. A third member that comes at 107 s is admitted at
    110 s.
    """

    def __init__(self, members: Iterable[Incarnation], until_us: int) -> None:
        # Members of earlier controller epochs without contact in the present controller epoch.
        self._awaited = set(members)
        self._until_us = until_us
        self._recoveries = 0  # Recoveries since the last grace period of a recovery began.
        self._next_us = 0  # A recovery begins no new grace period before this time.

    def __contains__(self, member: Incarnation) -> bool:
        return member in self._awaited

    @property
    def is_on(self) -> bool:
        return bool(self._awaited)

    def end_for(self, member: Incarnation) -> None:
        """The member was in contact, or was given up."""
        self._awaited.discard(member)

    def begin(self, now_us: int, lease_us: int) -> None:
        """Metadata records were lost: an unknown member may still have a lease."""
        if _SOMEBODY not in self._awaited:
            self._awaited.add(_SOMEBODY)
            self._until_us, self._next_us, self._recoveries = now_us + lease_us, now_us + 2 * lease_us, 0
        self._recoveries += 1

    def wait_us(self, now_us: int) -> int:
        """How long a member has to wait before it may begin a metadata recovery; 0: not at all."""
        if self._recoveries == 0 or (_SOMEBODY in self._awaited and self._recoveries < METADATA_RECOVERIES_MAX):
            return 0
        return max(self._next_us - now_us, 0)

    def tick(self, now_us: int) -> None:
        if now_us >= self._until_us:
            self._awaited.clear()

    def next_us(self) -> int | None:
        """The latest end of the grace period. None: the period is over."""
        return self._until_us if self._awaited else None
