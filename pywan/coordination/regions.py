"""Decides which members have which region: the first creation, the admission of further members, closing, and
destroying."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.messages import Refused
from pywan.coordination.outbox import Outbox
from pywan.coordination.recovery import Recovery
from pywan.coordination.reports import Reports
from pywan.coordination.succession import Succession
from pywan.coordination.tables import (
    BUCKETS_MAX,
    HOSTED_BYTES,
    HOSTING_BYTES_EVER,
    HOSTING_BYTES_MAX,
    REGIONS_MAX,
    REPORTED_BYTES_MAX,
    ROLE_PREFIX,
    TABLES_BYTES_MAX,
    Bucket,
    BucketKey,
    Holding,
    Incarnation,
    Kind,
    MemberProfile,
    RegionAttributes,
    is_role,
)
from pywan.coordination.telling import Telling
from pywan.coordination.unclean_recovery import UncleanRecovery
from pywan.limitations import Limitation

COLOCATED_MAX = 64  # The longest chain of regions, each colocated with the next region.


class Regions:
    """A part of the coordinator. The coordinator reports every event to this object.

    A second member is admitted when all members with the region know that the region is shared (`shared`): until then
    each member works as if alone.
    """

    def __init__(
        self,
        site: Decisions,
        liveness: Liveness,
        reports: Reports,
        telling: Telling,
        recovery: Recovery,
        unclean_recovery: UncleanRecovery,
        succession: Succession,
        outbox: Outbox,
    ) -> None:
        self._site, self._liveness, self._reports, self._telling = site, liveness, reports, telling
        self._recovery, self._unclean_recovery, self._succession, self._outbox = (
            recovery,
            unclean_recovery,
            succession,
            outbox,
        )
        # Members that wait to host a region until all members with the region know of the admission. By member and
        # region: the weight.
        self._to_let_in: dict[tuple[Incarnation, str], int] = {}

    # --- refusals ---

    def refusal_of(
        self, profile: MemberProfile, told: dict[str, RegionAttributes], holdings: dict[BucketKey, Holding]
    ) -> Refused | None:
        """Returns why a member cannot join with the given regions and buckets. None: no refusal. Existing regions stay
        as they are."""
        why = self._why_not({name: each for name, each in told.items() if name not in self._site.regions}, told)
        why = why or self._reports.why_not(holdings)
        why = why or self._why_not_all(profile.incarnation, profile.hosting_bytes, self._reports.bytes_of(holdings))
        return Refused(why) if why else None

    def _why_not_all(self, me: Incarnation, hosting_bytes: int, bucket_bytes: int = 0) -> str:
        """Returns why the member cannot have so many regions beside the regions of all other members, and bring so many
        bytes of buckets; "": no refusal."""
        site = self._site
        others = [each for each in site.members if each != me]
        living = [each for each in others if each.name != me.name and not self._liveness.is_expired(each)]
        took, takes = site.hosting_bytes([me]), hosting_bytes
        is_full = site.hosting_bytes(living) + takes > HOSTING_BYTES_MAX
        if takes > took and (is_full or site.hosting_bytes(others) + takes > HOSTING_BYTES_EVER):
            return (
                f"the regions of all members, with their names, take more than {HOSTING_BYTES_MAX >> 20} MiB in the"
                " cluster metadata: create fewer of them at each member, or give them shorter names"
            )
        grows = max(0, takes - took) + bucket_bytes
        most = REPORTED_BYTES_MAX if bucket_bytes else TABLES_BYTES_MAX
        if grows and site.table_bytes + grows > most:
            return (
                f"the buckets of the site, and the regions of its members, would take {site.table_bytes + grows} bytes"
                f" in the cluster metadata, and {most} are the most: destroy a region first, or start the member in an"
                " empty folder; fewer buckets (total-num-buckets), and shorter names of regions and members, take less"
            )
        return ""

    def _why_not(self, told: Mapping[str, RegionAttributes], kept: Collection[str]) -> str:
        """Returns the reason of a refusal in words, as for `refusal_of`; "": no refusal. The regions replace earlier
        regions of the same names. No region of `kept` may be forgotten for others."""
        site = self._site
        together = ChainMap(dict(told), site.regions)
        regions, buckets, _ = self._room_for(told, kept)
        if regions > REGIONS_MAX:
            return f"a site has at most {REGIONS_MAX} regions: destroy one of them first"
        if buckets > BUCKETS_MAX:
            return (
                f"the regions of the site would have {buckets} buckets, and {BUCKETS_MAX} are the most that it can"
                " have: give them fewer (total-num-buckets), or destroy a region first"
            )
        for name, each in told.items():
            problem = self._why_not_beside(name, each, together)
            if problem:
                return f"region {name}: {problem}"
        return ""

    def _room_for(self, told: Mapping[str, RegionAttributes], kept: Collection[str]) -> tuple[int, int, list[str]]:
        """Returns the number of regions and buckets that the site has with the given regions, and the regions that must
        be forgotten to make room.

        In a full site, regions without any member are forgotten, the longest unused first: otherwise a member could
        fill the site for ever. No data are lost, since a forgotten region would begin anew, and empty. A region stays
        if any member may still hold a bucket of the region.
        """
        site = self._site
        earlier = [site.regions[name].total_num_buckets for name in told if name in site.regions]
        regions = len(site.regions) + len(told) - len(earlier)
        buckets = site.bucket_total - sum(earlier) + sum(each.total_num_buckets for each in told.values())
        forgotten: list[str] = []
        if regions > REGIONS_MAX or buckets > BUCKETS_MAX:
            awaited = {region for _, region in self._to_let_in}
            for each in site.unhosted:
                if regions <= REGIONS_MAX and buckets <= BUCKETS_MAX:
                    break
                if each not in kept and each not in awaited and not self._having(each):
                    forgotten.append(each)
                    regions, buckets = regions - 1, buckets - site.regions[each].total_num_buckets
        return regions, buckets, forgotten

    def _make_room(self, told: Mapping[str, RegionAttributes], kept: Collection[str]) -> None:
        """Forgets regions, if necessary, for the given accepted regions."""
        for each in self._room_for(told, kept)[2]:
            self.destroy(each)

    def _why_not_beside(self, name: str, told: RegionAttributes, together: Mapping[str, RegionAttributes]) -> str:
        above, row = told.colocated_with, 1
        while above:
            if above == name:
                return "it would be colocated with itself; name another region"
            if row > COLOCATED_MAX:
                return f"more than {COLOCATED_MAX} regions in a row are colocated, each with the next one"
            parent = together.get(above)
            above, row = "" if parent is None else parent.colocated_with, row + 1
        beside = [told.colocated_with, *self._site.children.get(name, ())]
        for other in beside:
            there = together.get(other)
            if there is not None and there.total_num_buckets != told.total_num_buckets:
                return (
                    f"it has {told.total_num_buckets} buckets, and region {other}, with which it is colocated,"
                    f" {there.total_num_buckets}: give both the same"
                )
        return ""

    # --- joining ---

    def join(self, regions: dict[str, RegionAttributes]) -> None:
        """A member joins with existing `regions`, or with buckets of them. `shared` is the member's own knowledge."""
        self._make_room({name: each for name, each in regions.items() if name not in self._site.regions}, regions)
        for region, attributes in regions.items():
            there = self._site.regions.get(region)
            if there is None:
                self._site.set_region(region, attributes)
            elif attributes.shared and not there.shared:
                self._site.set_region(region, replace(there, shared=True))

    def joined(self, me: Incarnation) -> None:
        """The member is in the view, with its regions."""
        for region, _ in self._site.members[me].hosting:
            self._unclean_recovery.look_at(region)
            if self._having(region) - {me}:
                self._begin_sharing(region)

    def come_back(self, me: Incarnation, now_us: int) -> None:
        """A member with regions is in contact again, after absence or suspicion. The member gets replicas again."""
        for region, weight in self._site.members[me].hosting:
            self._site.look_at_queues(region)
            if weight:
                self._unclean_recovery.look_at(region)
                self._recovery.come_back(region, now_us)

    def host(self, me: Incarnation, region: str, attributes: RegionAttributes, weight: int, now_us: int) -> None:
        """The member creates the region. `weight`: local-max-memory in MB; 0: an accessor."""
        known, is_used = self._site.regions.get(region), self._is_used(region, me)
        if known is not None and known.senders != attributes.senders and me in self._site.hosts(region):
            # A member alters the senders first; then the rest of the members follow.
            known = replace(known, senders=attributes.senders)
            self._site.set_region(region, known)
        if known is not None and self._may_alter(region, me, known, attributes):
            known = replace(known, only_once=attributes.only_once)
            self._site.set_region(region, known)
        if known is not None and not known.is_like(attributes) and is_used:
            self._outbox.tell(me, Refused(_mismatch(region, known, attributes)))
            return
        is_new = known is None or not known.is_like(attributes)
        problem = self._why_not({region: attributes}, [region]) if is_new else ""
        if me not in self._site.hosts(region):
            took = self._site.hosting_bytes([me])
            problem = problem or self._why_not_all(me, took + HOSTED_BYTES + len(region))
        if problem:
            self._outbox.tell(me, Refused(problem))
            return
        if known is not None and not known.is_like(attributes):
            self._drop_buckets(region)
        there = self._site.hosts(region).keys() - {me} - self._liveness.expired
        if attributes.only_once and there:
            reason = (
                f"region {region}: member {min(there).name} has it already, and {attributes.only_once}:"
                f" {Limitation.ONE_MEMBER.refusal()}"
            )
            self._outbox.tell(me, Refused(reason))
            return
        if known is None or not known.is_like(attributes):
            self._make_room({region: attributes}, [region])
        # A new or unused region begins as the region of a single member, even after sharing.
        if known is None or not is_used:
            known = replace(attributes, shared=False)
            if self._site.regions.get(region) != known:
                self._site.set_region(region, known)
        if self._having(region) - {me}:
            self._begin_sharing(region)
        self._to_let_in[me, region] = weight
        self._let_in(me, region, now_us)

    def let_in(self, now_us: int) -> None:
        """Admits the members that wait to host a region, as soon as all members with the region know of the
        admission."""
        for me, region in list(self._to_let_in):
            self._let_in(me, region, now_us)

    def _let_in(self, me: Incarnation, region: str, now_us: int) -> None:
        attributes = self._site.regions.get(region)
        if attributes is not None and self._liveness.knows(me):
            if not all(self._telling.is_aware(region, each) for each in self._having(region) - {me}):
                return
            self._host(me, region, attributes, self._to_let_in[me, region], now_us)
        del self._to_let_in[me, region]

    def _host(self, me: Incarnation, region: str, attributes: RegionAttributes, weight: int, now_us: int) -> None:
        profile = self._site.members[me]
        if (region, weight) not in profile.hosting:
            others = tuple(each for each in profile.hosting if each[0] != region)
            self._site.set_member(me, replace(profile, hosting=(*others, (region, weight))))
            if weight:
                self._recovery.hosted(region, attributes, now_us)
        self._unclean_recovery.look_at(region)

    # --- leaving ---

    def unhost(self, me: Incarnation, region: str, now_us: int) -> None:
        """The member has closed the region. Its replicas are gone. If a replica was the last, the data are gone too."""
        self._to_let_in.pop((me, region), None)
        if me not in self._site.members or region not in self._site.regions:
            return
        self._end_hosting(me, region)
        for key in list(self._site.of_region[region]):
            bucket = self._site.buckets[key]
            if me not in bucket.holders and not (is_role(region) and me in bucket.leaving):
                continue
            if is_role(region):
                bucket = self._without(key, bucket, me)
            self._succession.lose_copies(key, (me,), now_us)
            after = self._site.buckets[key]
            if is_role(region):
                after = self._without(key, after, me)
            ends = after.content == {me} or (is_role(region) and after.primary == me)
            if ends and key not in self._reports.undecided:
                self._unclean_recovery.lose_bucket(key, after)
        self._unclean_recovery.look_at(region)

    def _without(self, key: BucketKey, bucket: Bucket, me: Incarnation) -> Bucket:
        """Returns the bucket of a role without a member that has left the ISR and has no replica any more: the member
        must not lead again if all other replicas are lost. A role has no content, so the removal takes effect at
        once."""
        if me not in (*bucket.leaving, *bucket.unfenced) or key in self._reports.undecided:
            return bucket
        leaving = tuple(each for each in bucket.leaving if each != me)
        unfenced = tuple(each for each in bucket.unfenced if each != me)
        bucket = replace(bucket, leaving=leaving, unfenced=unfenced, version=bucket.version + 1)
        self._site.set_bucket(key, bucket)
        return bucket

    def destroy(self, region: str) -> None:
        """Removes the region and its buckets from all members."""
        self._drop_buckets(region)
        self._unclean_recovery.forget(region)
        for member in list(self._site.hosts(region)):
            self._end_hosting(member, region)
        self._recovery.forget(region)
        self._site.set_region(region, None)

    def _end_hosting(self, member: Incarnation, region: str) -> None:
        profile = self._site.members[member]
        hosting = tuple(each for each in profile.hosting if each[0] != region)
        if hosting != profile.hosting:
            self._site.set_member(member, replace(profile, hosting=hosting))

    def _drop_buckets(self, region: str) -> None:
        for key in list(self._site.of_region[region]):
            self._reports.drop(key)
            self._site.set_bucket(key, None)

    # --- members of a region ---

    def _having(self, region: str) -> set[Incarnation]:
        """Returns the members that have the region, or may have something of the region."""
        if region not in self._site.regions:
            return set()
        named = {each for each, buckets in self._site.loads[region].named.items() if buckets}
        return named | (self._site.hosts(region).keys() - self._liveness.expired)

    def _is_used(self, region: str, me: Incarnation) -> bool:
        """Whether another member has the region, or any member still has a bucket of the region."""
        if region not in self._site.regions:
            return False
        others = self._site.hosts(region).keys() - {me} - self._liveness.expired
        return bool(others) or any(replicas and count for replicas, count in self._site.loads[region].whole.items())

    def _begin_sharing(self, region: str) -> None:
        """From now on several members may have the region. All members with the region will know of the change before a
        further member is admitted."""
        attributes = self._site.regions.get(region)
        if attributes is not None and not attributes.only_once and not attributes.shared:
            self._site.set_region(region, replace(attributes, shared=True))

    def _may_alter(self, region: str, me: Incarnation, known: RegionAttributes, told: RegionAttributes) -> bool:
        """Whether the member changes nothing but `only_once`. The member must be alone with the region, and the region
        must not be shared."""
        is_alone = not known.shared and self._having(region) <= {me}
        return is_alone and known.only_once != told.only_once and replace(known, only_once=told.only_once).is_like(told)


def _mismatch(region: str, known: RegionAttributes, told: RegionAttributes) -> str:
    if is_role(region):
        return _mismatch_of_sender(region.removeprefix(ROLE_PREFIX), known.senders, told.senders)
    differences = [
        f"{_said(field.name, getattr(told, field.name))} here and "
        f"{_said(field.name, getattr(known, field.name), named=False)} at the other members"
        for field in fields(RegionAttributes)
        if getattr(told, field.name) != getattr(known, field.name)
    ]
    return f"region {region}: {'; '.join(differences)}: all members of a site must create it alike"


def _mismatch_of_sender(id: str, known: str, told: str) -> str:
    there = set(known.split("; "))
    differences = sorted(set(told.split("; ")) - there)
    earlier = {name: value for name, _, value in (each.partition("=") for each in there)}
    words = [
        f"{name} is {value} here and {earlier.get(name, 'not said')} at the other members"
        for name, _, value in (each.partition("=") for each in differences)
    ]
    return f"gateway sender {id}: {'; '.join(words) or 'it differs'}: all members of a site must create it alike"


def _said(field: str, value: Any, *, named: bool = True) -> str:
    """Returns an attribute in words: the option's name, as users type the option, and the value; or the value alone."""
    if field == "only_once":
        return f"only one member can have it ({value})" if value else "several members can have it"
    shown = str(value.value) if isinstance(value, Kind) else str(value) or "none"
    option = {"kind": "type", "senders": "gateway-sender-id"}.get(field) or field.removesuffix("_ms").replace("_", "-")
    return f"{option} is {shown}" if named else shown
