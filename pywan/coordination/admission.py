"""Owns who is taken into the view of a site, and the reasons of those who are not."""

from __future__ import annotations

from collections.abc import Iterable

from pywan.coordination.claims import JOURNAL_FILE
from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.messages import Refused
from pywan.coordination.reports import Reports
from pywan.coordination.tables import (
    MEMBERS_MAX,
    PROFILES_MAX,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Incarnation,
    MemberProfile,
    Reach,
)

ASKED_MAX = 1_000  # Pairs of a member and an earlier incarnation that are remembered. The oldest are forgotten first.
SILENCES_A_TIMEOUT = 5  # A member that lives asks for news twice in such a part of `member-timeout`, at least.
AGAIN_US = 50_000  # So soon a member asks again that waits for the end of a probe.


def _is_within(named: DecisionId, most: DecisionId) -> bool:
    return named.run <= most.run and named.number <= most.number


def _decision_of(life: int) -> DecisionId:
    return DecisionId(*Epoch.of(life))


class Admission:
    """A part of the coordinator, which asks it before it takes a member in."""

    def __init__(self, site: Decisions, liveness: Liveness, reports: Reports) -> None:
        self._site, self._liveness, self._reports = site, liveness, reports
        # Members that were asked whether an earlier incarnation of theirs has ended, and those that have said so, each
        # in the order in which that happened. At most ASKED_MAX each: anybody can take a name.
        self._asked_about: dict[tuple[Incarnation, Incarnation], None] = {}
        self._said_ended: dict[tuple[Incarnation, Incarnation], None] = {}

    def refusal_of(self, profile: MemberProfile, stored: DecisionId, now_us: int) -> Refused | None:
        """Returns why the member cannot join now, or at all. None: it can."""
        me = profile.incarnation
        if me not in self._site.members:
            self._liveness.hear_newcomer(now_us)
        refusal = self._of_another_site(profile)
        if refusal is not None:
            return refusal
        if me not in self._site.members:
            # Others of its name, and those without a lease, do not count: buckets may wait for them until it comes.
            others = len(self._liveness.by_name().keys() - {me.name})
            if others >= MEMBERS_MAX or len(self._site.members) >= PROFILES_MAX:
                return Refused(
                    f"the site has {others} members, and {len(self._site.members)} incarnations of members;"
                    f" {MEMBERS_MAX} and {PROFILES_MAX} are the most that it can have; stop a member before member"
                    f" {me.name} is started, or revoke one that never comes back",
                    self._liveness.member_timeout_us,
                )
        if self._liveness.is_given_up(me) and stored.run >= self._site.generation and self._site.made(stored):
            return Refused(f"member {me} was not heard for its whole lease", join_again=True)
        for earlier in self.earlier_incarnations(me):
            if earlier.member_id not in profile.before:
                refusal = self._beside(earlier, me, now_us)
                if refusal is not None:
                    return refusal
        return None

    def unbelieved(
        self, me: Incarnation, unknown: Iterable[DecisionId], holdings: dict[BucketKey, Holding]
    ) -> Refused | None:
        """Returns why a member that names these decisions, and knows these buckets, cannot join. None: it can."""
        believed = self._site.believed
        # Neighbours share one object. It is looked at once.
        for key, bucket in {id(each.bucket): (key, each.bucket) for key, each in holdings.items()}.values():
            if not bucket.inherits <= bucket.life <= bucket.epoch.word:
                return Refused(
                    f"member {me.name} says of bucket {key} that epoch {bucket.epoch} is of life {bucket.life}, which"
                    f" goes on with life {bucket.inherits}: that contradicts itself; start it in an empty folder"
                )
            number = max(bucket.epoch.number, bucket.version, *(each.transfer for each in bucket.learners), 0)
            for named in (DecisionId(bucket.epoch.run, number), *map(_decision_of, (bucket.life, bucket.inherits))):
                if not _is_within(named, believed):
                    return self._not_believed(me, named)
        for named in unknown:
            if not _is_within(named, believed) or not self._site.has_room_above(named):
                return self._not_believed(me, named)
        return None

    def _not_believed(self, me: Incarnation, named: DecisionId) -> Refused:
        return Refused(
            f"member {me.name} names decision {named}, and this coordinator, at {self._site.newest}, believes in none"
            f" above {self._site.believed}: if the member is of this site, put a newer copy of {JOURNAL_FILE} back, or"
            " start the locator in an empty folder with --recover-from-members; if it is not, start it in an empty"
            " folder"
        )

    def unknown_witness(self, me: Incarnation, named: DecisionId) -> Refused:
        """Somebody names a lost decision who was no member when this run began."""
        return Refused(
            f"member {me.name} names decision {named}, which this coordinator, at {self._site.newest}, has never made,"
            f" and was no member when it started: if the member is of this site, put a newer copy of {JOURNAL_FILE}"
            " back, or start the locator again while the member asks; if it is not, start it in an empty folder",
            self._liveness.member_timeout_us,
        )

    def earlier_incarnations(self, me: Incarnation) -> list[Incarnation]:
        awaited = self._reports.waited_for.keys()
        return sorted(each for each in awaited | self._site.members.keys() if each.name == me.name and each != me)

    def forget(self, member: Incarnation) -> None:
        for asked in (self._asked_about, self._said_ended):
            for pair in [each for each in asked if member in each]:
                del asked[pair]

    def unproved_end_of(self, earlier: Incarnation, me: Incarnation, now_us: int) -> Refused | None:
        """The member says, without a proof, that the earlier one has ended. Returns why it has to wait. None: what this
        coordinator has found out itself since then is enough to say whether that is so (`has_ended`).

        A word alone would end a living member, and lose its buckets.
        """
        found = self._liveness.found(earlier)
        if self.has_ended(earlier, now_us):
            return None
        if (me, earlier) not in self._said_ended:
            _note(self._said_ended, (me, earlier))
            if found is not Reach.REFUSED:
                self._liveness.look_anew(earlier, now_us)
        elif found is None:
            # It was heard since, or the driver could not carry the probe out.
            self._liveness.look_anew(earlier, now_us)
        elif found is not Reach.REFUSED:
            del self._said_ended[me, earlier]
            return None
        return Refused(f"the coordinator looks whether member {earlier} has ended", AGAIN_US)

    def has_ended(self, earlier: Incarnation, now_us: int) -> bool:
        """Whether the coordinator itself has a reason to believe that the member has ended.

        Nobody of that id listens, and the member asks nothing: a firewall may refuse the probes of one that lives, but
        that one goes on asking. Or it is proved, or nothing is known of the member: then it did not come back to a
        coordinator that has lost its file.
        """
        liveness = self._liveness
        if earlier not in self._site.members or liveness.is_gone(earlier):
            return True
        is_silent = liveness.silent_us(earlier, now_us) >= liveness.member_timeout_us // SILENCES_A_TIMEOUT
        return is_silent and liveness.found(earlier) is Reach.REFUSED

    def adopt_identity(self, profile: MemberProfile) -> None:
        """The member is taken in. A coordinator that has lost all is called as the member says."""
        if not self._site.number and not self._site.members and profile.site_identity:
            self._site.identity = profile.site_identity

    def _of_another_site(self, profile: MemberProfile) -> Refused | None:
        if profile.site_identity in ("", self._site.identity):
            return None
        if not self._site.number and not self._site.members:
            return None  # This coordinator has lost all: the members know better (`adopt_identity`).
        return Refused(
            f"member {profile.incarnation.name} belongs to the site {profile.site_identity}, and this is"
            f" {self._site.identity}: start it in an empty folder, or with the locators of its own site"
        )

    def _beside(self, earlier: Incarnation, me: Incarnation, now_us: int) -> Refused | None:
        """Returns why the member cannot join beside an earlier incarnation of its name."""
        other = self._site.members.get(earlier)
        is_expired = self._liveness.is_expired(earlier) and not self._liveness.is_gone(earlier)
        if is_expired and (me, earlier) not in self._asked_about:
            # The member may see that the process is gone, where this coordinator does not.
            _note(self._asked_about, (me, earlier))
            return Refused(f"member {earlier} may still be alive", 1, earlier=other)
        lease_until_us = self._liveness.lease_until_us(earlier)
        if lease_until_us is None:
            return None
        self._liveness.suspect(earlier, now_us)
        return Refused(
            f"another member of the name {me.name} ({earlier}) may still be alive; stop it, or choose another name",
            max(lease_until_us - now_us, 1),
            earlier=other,
        )


def _note(pairs: dict[tuple[Incarnation, Incarnation], None], pair: tuple[Incarnation, Incarnation]) -> None:
    pairs[pair] = None
    if len(pairs) > ASKED_MAX:
        del pairs[next(iter(pairs))]
