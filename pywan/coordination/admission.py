"""The admission of members to the view of a site, and the reasons of refusals."""

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

ASKED_MAX = 1_000  # Remembered pairs of a member and an earlier incarnation. The oldest are forgotten first.
POLL_PERIODS_A_TIMEOUT = 5  # A live member asks for news at least twice in this part of `member-timeout`.
AGAIN_US = 50_000  # Pause of a member that waits for the end of a probe.


def _is_within(named: DecisionId, most: DecisionId) -> bool:
    return named.controller_epoch <= most.controller_epoch and named.number <= most.number


def _decision_of(timeline: int) -> DecisionId:
    return DecisionId(*Epoch.of(timeline))


class Admission:
    """A part of the coordinator. The coordinator asks this class before it admits a member."""

    def __init__(self, site: Decisions, liveness: Liveness, reports: Reports) -> None:
        self._site, self._liveness, self._reports = site, liveness, reports
        # Members that were asked for the end of an earlier incarnation, and members that have confirmed the end, in the
        # order of the events. At most ASKED_MAX pairs in either table: any process can use any name.
        self._asked_about: dict[tuple[Incarnation, Incarnation], None] = {}
        self._said_ended: dict[tuple[Incarnation, Incarnation], None] = {}

    def refusal_of(self, profile: MemberProfile, stored: DecisionId, now_us: int) -> Refused | None:
        """Returns why the member cannot join now, or at all. None: the member can join."""
        me = profile.incarnation
        if me not in self._site.members:
            self._liveness.receive_newcomer(now_us)
        refusal = self._of_another_site(profile)
        if refusal is not None:
            return refusal
        if me not in self._site.members:
            # Incarnations of the same name, and members without a lease, are not counted: buckets may wait for them
            # until the member joins.
            others = len(self._liveness.by_name().keys() - {me.name})
            if others >= MEMBERS_MAX or len(self._site.members) >= PROFILES_MAX:
                return Refused(
                    f"the site has {others} members, and {len(self._site.members)} incarnations of members;"
                    f" {MEMBERS_MAX} and {PROFILES_MAX} are the most that it can have; stop a member before member"
                    f" {me.name} is started, or revoke one that never comes back",
                    self._liveness.member_timeout_us,
                )
        if (
            self._liveness.is_given_up(me)
            and stored.controller_epoch >= self._site.recovery_epoch
            and self._site.made(stored)
        ):
            return Refused(f"member {me} did not renew its lease in time", join_again=True)
        for earlier in self.earlier_incarnations(me):
            if earlier.member_id not in profile.before:
                refusal = self._beside(earlier, me, now_us)
                if refusal is not None:
                    return refusal
        return None

    def unbelieved(
        self, me: Incarnation, unknown: Iterable[DecisionId], holdings: dict[BucketKey, Holding]
    ) -> Refused | None:
        """Returns why a member with knowledge of these metadata records and buckets cannot join. None: the member can
        join."""
        believed = self._site.believed
        # Neighbours share one object, and the object is checked once.
        for key, bucket in {id(each.bucket): (key, each.bucket) for key, each in holdings.items()}.values():
            if not bucket.inherits <= bucket.timeline <= bucket.epoch.word:
                return Refused(
                    f"member {me.name} says of bucket {key} that epoch {bucket.epoch} is of timeline"
                    f" {bucket.timeline}, which"
                    f" goes on with timeline {bucket.inherits}: that contradicts itself; start the member in an empty"
                    " folder"
                )
            number = max(bucket.epoch.number, bucket.version, *(each.transfer for each in bucket.learners), 0)
            for named in (
                DecisionId(bucket.epoch.controller_epoch, number),
                *map(_decision_of, (bucket.timeline, bucket.inherits)),
            ):
                if not _is_within(named, believed):
                    return self._not_believed(me, named)
        for named in unknown:
            if not _is_within(named, believed) or not self._site.has_room_above(named):
                return self._not_believed(me, named)
        return None

    def _not_believed(self, me: Incarnation, named: DecisionId) -> Refused:
        return Refused(
            f"member {me.name} names metadata record {named}, and this coordinator, at {self._site.newest}, believes"
            f" in none above {self._site.believed}: if the member is of this site, put a newer copy of {JOURNAL_FILE}"
            " back, or start the locator in an empty folder with --recover-from-members; if the member is of another"
            " site, start the member in an empty folder"
        )

    def unknown_witness(self, me: Incarnation, named: DecisionId) -> Refused:
        """Refuses a member that names a lost record, and was no member when the present controller epoch began."""
        return Refused(
            f"member {me.name} names metadata record {named}, which this coordinator, at {self._site.newest}, has never"
            " made, and was no member when it started: if the member is of this site, put a newer copy of"
            f" {JOURNAL_FILE} back, or start the locator again while the member asks; if the member is of another site,"
            " start the member in an empty folder",
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
        """The member says, without a proof, that the earlier incarnation has ended. Returns why the member has to wait.
        None: the coordinator's own findings since then are enough for `has_ended`.

        A mere claim would end a live member, and lose its buckets.
        """
        found = self._liveness.found(earlier)
        if self.has_ended(earlier, now_us):
            return None
        if (me, earlier) not in self._said_ended:
            _note(self._said_ended, (me, earlier))
            if found is not Reach.REFUSED:
                self._liveness.look_anew(earlier, now_us)
        elif found is None:
            # The earlier one was in contact since, or the driver could not carry the probe out.
            self._liveness.look_anew(earlier, now_us)
        elif found is not Reach.REFUSED:
            del self._said_ended[me, earlier]
            return None
        return Refused(f"the coordinator looks whether member {earlier} has ended", AGAIN_US)

    def has_ended(self, earlier: Incarnation, now_us: int) -> bool:
        """Whether the coordinator itself has a reason to believe that the member has ended.

        One reason: no process of the id listens, and the member does not poll. (A firewall may refuse probes of a live
        member, but a live member goes on polling.) Another reason is a proof. The last reason is that the member is
        unknown: the member did not come back to a coordinator without its old file.
        """
        liveness = self._liveness
        if earlier not in self._site.members or liveness.is_gone(earlier):
            return True
        has_missed_polls = (
            liveness.since_poll_us(earlier, now_us) >= liveness.member_timeout_us // POLL_PERIODS_A_TIMEOUT
        )
        return has_missed_polls and liveness.found(earlier) is Reach.REFUSED

    def adopt_identity(self, profile: MemberProfile) -> None:
        """Notes that the member is admitted. A coordinator that has lost everything adopts the member's identity of the
        site."""
        if not self._site.number and not self._site.members and profile.site_identity:
            self._site.identity = profile.site_identity

    def _of_another_site(self, profile: MemberProfile) -> Refused | None:
        if profile.site_identity in ("", self._site.identity):
            return None
        if not self._site.number and not self._site.members:
            return None  # This coordinator has lost everything: the members know better (`adopt_identity`).
        return Refused(
            f"member {profile.incarnation.name} belongs to the site {profile.site_identity}, and this is"
            f" {self._site.identity}: start it in an empty folder, or with the locators of its own site"
        )

    def _beside(self, earlier: Incarnation, me: Incarnation, now_us: int) -> Refused | None:
        """Returns why the member cannot join beside an earlier incarnation of its name."""
        other = self._site.members.get(earlier)
        is_expired = self._liveness.is_expired(earlier) and not self._liveness.is_gone(earlier)
        if is_expired and (me, earlier) not in self._asked_about:
            # The member may see the end of the process where this coordinator cannot.
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
