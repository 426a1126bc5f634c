"""Owns what each member has been told, and what it has stored of that: so a decision is known to be in effect."""

from __future__ import annotations

from pywan.coordination.decisions import Decisions
from pywan.coordination.messages import Tables
from pywan.coordination.outbox import Outbox
from pywan.coordination.reports import Reports
from pywan.coordination.tables import BucketKey, Incarnation


class Telling:
    """A part of the coordinator, which tells it of all that happens."""

    def __init__(self, site: Decisions, reports: Reports, outbox: Outbox, coordinator: str) -> None:
        self._site, self._reports, self._outbox, self._coordinator = site, reports, outbox, coordinator
        self._stored_by: dict[Incarnation, int] = {}  # Newest decision that the member has stored.
        self._told: dict[Incarnation, int] = {}  # Newest decision that was sent to it.

    # --- what happens ---

    def hear_stored(self, member: Incarnation, number: int) -> None:
        """The member has stored everything up to that decision, and nothing behind it."""
        self._told[member] = self._stored_by[member] = number

    def begin(self) -> None:
        """A generation begins. A member hears of it when it has reported what it knows."""
        self._told.clear()
        self._stored_by.clear()

    def give_up(self, member: Incarnation) -> None:
        """The member is told nothing any more. What it has stored still counts."""
        self._told.pop(member, None)

    def forget(self, member: Incarnation) -> None:
        self._stored_by.pop(member, None)

    def tell(self, member: Incarnation, lease_us: int) -> None:
        """Sends what the member has not been sent, and the lease. Nothing at all is not sent."""
        told = self._told[member]
        if told >= self._site.number and not lease_us:
            return
        self._told[member] = self._site.number
        self._outbox.tell(member, self.tables(told, lease_us))

    def tell_all(self) -> None:
        for member in self._site.members:
            if member in self._told:
                self.tell(member, 0)

    # --- questions ---

    def may_hear(self, member: Incarnation) -> bool:
        return member in self._told

    def tables(self, since: int, lease_us: int) -> Tables:
        return self._site.tables(since, self._coordinator, lease_us, self._reports.undecided)

    def stored_by(self, member: Incarnation) -> int:
        """The newest decision that the member has stored; 0: none is known."""
        return self._stored_by.get(member, 0)

    def has_stored(self, member: Incarnation, key: BucketKey | str) -> bool:
        """Whether the member has stored the last decision about a bucket, or about a region as a whole."""
        return self.stored_by(member) >= self._site.decided_at(key)

    def is_aware(self, region: str, member: Incarnation) -> bool:
        """Whether the member knows that others may have the region. Before that it works as if it were alone, and
        needs no lease. Others have it only if all who had it were aware."""
        attributes = self._site.regions.get(region)
        if attributes is None or not attributes.shared:
            return False
        return self.has_stored(member, region) or bool(self._site.hosts(region).keys() - {member})
