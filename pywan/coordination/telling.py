"""Tracks the records that were sent to each member, and the stored ones: so a record is known to be in effect."""

from __future__ import annotations

from pywan.coordination.decisions import Decisions
from pywan.coordination.messages import Tables
from pywan.coordination.outbox import Outbox
from pywan.coordination.reports import Reports
from pywan.coordination.tables import NO_DECISION, BucketKey, DecisionId, Incarnation

MADE_MAX = 16  # Cached `Tables` for members that lack the same records.


class Telling:
    """A part of the coordinator. The coordinator reports every event to this object."""

    def __init__(self, site: Decisions, reports: Reports, outbox: Outbox, coordinator: str) -> None:
        self._site, self._reports, self._outbox, self._coordinator = site, reports, outbox, coordinator
        self._stored_by: dict[Incarnation, int] = {}  # By member: the newest stored record.
        self._told: dict[Incarnation, int] = {}  # By member: the newest sent record.
        self._behind: set[Incarnation] = set()  # Members that may lack records through number `_told_all`.
        self._told_all = 0  # All members of `_told` outside `_behind` were sent everything through this number.
        # Cached messages, by `since` and lease: members that lack the same records get the same message. The messages
        # end at `_made_for`.
        self._made: dict[tuple[int, int], Tables] = {}
        self._made_for: tuple[DecisionId, str] = (NO_DECISION, "")
        self._answers: dict[tuple[int, int], Tables] = {}  # Likewise for answers, which may end a little earlier.

    # --- events ---

    def receive_stored(self, member: Incarnation, number: int) -> None:
        """The member has stored everything through this record, and nothing after this record."""
        self._told[member] = self._stored_by[member] = number
        self._behind.add(member)

    def begin(self) -> None:
        """A metadata recovery begins. A member receives records only after its report."""
        self._told.clear()
        self._stored_by.clear()
        self._behind.clear()
        self._answers.clear()

    def give_up(self, member: Incarnation) -> None:
        """The member is sent nothing any more. Records stored by the member still count."""
        self._told.pop(member, None)
        self._behind.discard(member)

    def forget(self, member: Incarnation) -> None:
        self._stored_by.pop(member, None)

    def tell(self, member: Incarnation, lease_us: int) -> None:
        """Sends all records that the member has not been sent, and the lease. An empty message is not sent."""
        told = self._told[member]
        if told >= self._site.number and not lease_us:
            return
        self._told[member] = self._site.number
        self._behind.discard(member)
        self._outbox.tell(member, self.tables(told, lease_us))

    def tell_all(self) -> None:
        """Sends missing records to all members."""
        if self._told_all == self._site.number and not self._behind:
            return
        self._told_all = self._site.number
        for member in self._site.members:
            if member in self._told:
                self.tell(member, 0)
        self._behind.clear()

    # --- questions ---

    def may_be_told(self, member: Incarnation) -> bool:
        return member in self._told

    def tables(self, since: int, lease_us: int) -> Tables:
        """Returns the same object for members that lack the same records."""
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
        """Returns `tables`, for the answer to a poll. The answer may end before the newest record, like a delayed
        message: the member polls again at once.

        After the death of a member all other members lack the same thousand records. While these members poll, the
        members that have stored the thousand records cause a few more records. Nevertheless the thousand records are
        encoded only once: a cached answer is used again as long as fewer records were made since than the answer has.
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
        """The newest record that the member has stored; 0: none is known."""
        return self._stored_by.get(member, 0)

    def has_stored(self, member: Incarnation, key: BucketKey | str) -> bool:
        """Whether the member has stored the last record about a bucket, or about a region as a whole."""
        return self.stored_by(member) >= self._site.decided_at(key)

    def is_aware(self, region: str, member: Incarnation) -> bool:
        """Whether the member knows that the region is shared. Before, the member works as if alone, and needs no lease.
        Further members have the region only if all earlier members knew."""
        attributes = self._site.regions.get(region)
        if attributes is None or not attributes.shared:
            return False
        return self.has_stored(member, region) or bool(self._site.hosts(region).keys() - {member})
