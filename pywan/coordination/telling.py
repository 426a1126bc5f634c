"""Owns what each member has been told, and what it has stored of that: so a decision is known to be in effect."""

from __future__ import annotations

from pywan.coordination.decisions import Decisions
from pywan.coordination.messages import Tables
from pywan.coordination.outbox import Outbox
from pywan.coordination.reports import Reports
from pywan.coordination.tables import NO_DECISION, BucketKey, DecisionId, Incarnation

MADE_MAX = 16  # Tables that are kept for members that lack the same decisions.


class Telling:
    """A part of the coordinator, which tells it of all that happens."""

    def __init__(self, site: Decisions, reports: Reports, outbox: Outbox, coordinator: str) -> None:
        self._site, self._reports, self._outbox, self._coordinator = site, reports, outbox, coordinator
        self._stored_by: dict[Incarnation, int] = {}  # Newest decision that the member has stored.
        self._told: dict[Incarnation, int] = {}  # Newest decision that was sent to it.
        self._behind: set[Incarnation] = set()  # Members that may lack decisions through number `_told_all`.
        self._told_all = 0  # Everybody else of `_told` was sent everything up to there.
        # What was made for a member that lacks as much as another one, by `since` and lease. It ends at `_made_for`.
        self._made: dict[tuple[int, int], Tables] = {}
        self._made_for: tuple[DecisionId, str] = (NO_DECISION, "")
        self._answers: dict[tuple[int, int], Tables] = {}  # The same for answers, which may end a little earlier.

    # --- what happens ---

    def hear_stored(self, member: Incarnation, number: int) -> None:
        """The member has stored everything up to that decision, and nothing behind it."""
        self._told[member] = self._stored_by[member] = number
        self._behind.add(member)

    def begin(self) -> None:
        """A generation begins. A member hears of it when it has reported what it knows."""
        self._told.clear()
        self._stored_by.clear()
        self._behind.clear()
        self._answers.clear()

    def give_up(self, member: Incarnation) -> None:
        """The member is told nothing any more. What it has stored still counts."""
        self._told.pop(member, None)
        self._behind.discard(member)

    def forget(self, member: Incarnation) -> None:
        self._stored_by.pop(member, None)

    def tell(self, member: Incarnation, lease_us: int) -> None:
        """Sends what the member has not been sent, and the lease. Nothing at all is not sent."""
        told = self._told[member]
        if told >= self._site.number and not lease_us:
            return
        self._told[member] = self._site.number
        self._behind.discard(member)
        self._outbox.tell(member, self.tables(told, lease_us))

    def tell_all(self) -> None:
        """Sends everybody what he has not been sent."""
        if self._told_all == self._site.number and not self._behind:
            return
        self._told_all = self._site.number
        for member in self._site.members:
            if member in self._told:
                self.tell(member, 0)
        self._behind.clear()

    # --- questions ---

    def may_hear(self, member: Incarnation) -> bool:
        return member in self._told

    def tables(self, since: int, lease_us: int) -> Tables:
        """Members that lack the same decisions get the same object."""
        site = self._site
        if self._made_for != (site.newest, site.identity):
            self._made.clear()
            self._made_for = site.newest, site.identity
        tables = self._made.get((since, lease_us))
        if tables is None:
            if len(self._made) >= MADE_MAX:
                self._made.clear()
            tables = site.tables(since, self._coordinator, lease_us, self._reports.undecided)
            self._made[since, lease_us] = tables
        return tables

    def answer(self, since: int, lease_us: int) -> Tables:
        """As `tables`, for a question for news. The answer may end before the newest decision, as if it had been longer
        on its way: the member asks again at once.

        After the death of a member all others lack the same thousand decisions. While they ask, each of those that have
        stored them brings about a few more. The thousand are laid out once all the same: an answer is given again as
        long as fewer decisions were made since than it has.
        """
        answer = self._answers.get((since, lease_us))
        if answer is not None and answer.site_identity == self._site.identity:
            lacks = self._site.number - answer.newest.number
            if since and lacks < len(answer.buckets):
                return answer
        if len(self._answers) >= MADE_MAX:
            del self._answers[next(iter(self._answers))]
        answer = self._answers[since, lease_us] = self.tables(since, lease_us)
        return answer

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
