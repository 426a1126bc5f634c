"""Owns worlds in which an operator creates, attaches, alters, detaches and destroys a sender on all members, one after
the other, while clients change what the regions hold."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pywan.config.attributes import RegionAttributes, SenderAttributes
from pywan.coordination.asked import Request
from pywan.coordination.encoding import plain_attributes
from pywan.member.hosting import site_attributes, weight_of
from pywan.member.sender_roles import SenderRoles, ids_of

from .remote import RemoteSite
from .senders import RECEIVE_TIMEOUT_MS, MemberSenders
from .simulation import MS
from .worlds_of_gateways import Gateways

if TYPE_CHECKING:
    from .member import Member, SimulatedRegion

LATE, LATE_SITE = "late", 4
LOOK_US = 20 * MS  # The operator looks so often whether all members have what is wanted.
LOSING_US = 1000 * MS  # A region keeps a sender so long whose queue lacks what others have (`losing_senders`), and an
# ended queue waits so long until its events are replicated (`_end_feeds`).


class Operators(Gateways):
    """Whatever is changed while a sender is attached on all members comes to its site, in order. Other senders notice
    nothing of it."""

    kind = "operators"
    keeps_decisions = True  # An alteration may be lost with its members, and this operator does not look.
    must_happen = (
        "senders attached",
        "senders detached",
        "senders altered",
        "senders destroyed",
        "changes since a sender was attached that came",
        "events dropped with a destroyed sender",
    )

    def _form(self, rng: random.Random) -> None:
        super()._form(rng)
        chance = random.Random(f"{self.seed} operators")
        late = SenderAttributes(
            LATE,
            remote_distributed_system_id=LATE_SITE,
            dispatcher_threads=chance.choice([1, 2]),
            order_policy=chance.choice(["key", "partition"]),
            batch_size=chance.choice([1, 100]),
            batch_time_interval=chance.choice([0, 50]),
            socket_read_timeout=RECEIVE_TIMEOUT_MS,
        )
        self.late, self.is_wanted, self.is_attached = late, False, False
        self._asked: dict[tuple[Member, str], Request] = {}
        self._loses_since_us: dict[tuple[Member, str], int] = {}
        self._ends_since_us: dict[tuple[Member, str], int] = {}
        self.events.made = [*self.events.made, late]
        self.roles = [*self.roles, SenderRoles._region_attributes(LATE)]
        site = RemoteSite(self.events, LATE_SITE, {each.name: 3 for each in self.regions}, chance.choice([1, 2]))
        self.events.sites[LATE_SITE] = self.network.nodes[site.name] = site

    # The senders that the operator wants, and those that members have

    def senders_of(self, member: Member) -> list[SenderAttributes]:
        return [each for each in self.events.made if each is not self.late or self.is_wanted]

    def _want_attached(self, is_attached: bool) -> None:
        """All regions are to have the sender, or not."""
        self.is_attached = is_attached
        for n, region in enumerate(self.regions):
            ids = [each for each in region.gateway_sender_ids if each != LATE]
            self.regions[n] = copy.copy(region)
            self.regions[n].gateway_sender_ids = (*ids, *[LATE] * is_attached)

    def _there(self) -> list[tuple[Member, MemberSenders]]:
        now_us = self.simulation.now_us
        return [
            (member, senders)
            for member, senders in self.events.senders.values()
            if not member.is_dead and not member.is_leaving and member.paused_until <= now_us
        ]

    def _do(self, what: Callable[[Member, MemberSenders], bool]) -> bool:
        """Has each member do something, one after the other. Returns whether there was nothing to do anywhere."""
        is_done = len(self._there()) == len(self.members)
        for member, senders in self._there():
            is_done &= what(member, senders)
        return is_done

    def _create(self, member: Member, senders: MemberSenders) -> bool:
        if LATE not in senders.by_id:
            member.do(lambda: senders.create(self.late, self.keys.buckets, self.events))
        return LATE in senders.by_id

    def _destroy(self, member: Member, senders: MemberSenders) -> bool:
        if LATE in senders.by_id:
            self.statistics["events dropped with a destroyed sender"] += len(senders.by_id[LATE].queue)
            member.do(lambda: senders.destroy(LATE))
        return LATE not in senders.by_id

    def _alter_sender(self, member: Member, senders: MemberSenders) -> bool:
        if LATE in senders.by_id:
            size, interval = self.simulation.rng.choice([1, 3, 100]), self.simulation.rng.choice([0, 5, 50])
            changes: dict[str, Any] = {"batch_size": size, "batch_time_interval": interval}
            member.do(lambda: senders.by_id[LATE].alter(**changes))
            self.statistics["senders altered"] += 1
        return True

    def _fit_regions(self, member: Member, senders: MemberSenders) -> bool:
        """Alters those regions of a member that have other senders than are wanted."""
        is_done = len(member.regions) == len(self.regions)
        for wanted in self.regions:
            region = member.regions.get(wanted.name)
            if region is not None and self._has(member, region, wanted):
                is_done &= self._has_ended_feeds(member, region)
            elif region is not None:
                is_done = False
                if not self._loses_too_early(member, wanted.name):
                    member.do(lambda region=region, wanted=wanted: self._alter_region(member, senders, region, wanted))
        return is_done

    @staticmethod
    def _has(member: Member, region: SimulatedRegion, wanted: RegionAttributes) -> bool:
        """Returns whether a region has these senders, both here and in the site's tables. Where members differ, the
        product says so, and asks for the same alteration on every member."""
        told, shown = member.agent.session._hosted.get(wanted.name), member.agent.tables.regions.get(wanted.name)
        ids = ids_of(wanted)
        is_told = told is not None and told.attributes.senders == ids and shown is not None and shown.senders == ids
        return is_told and region.attributes.gateway_sender_ids == wanted.gateway_sender_ids

    def _loses_too_early(self, member: Member, region: str) -> bool:
        """As `SharedRegions.losing_senders`, which waits."""
        sharing, now_us = member.sharing, self.simulation.now_us
        lacks = [(older, sharing._lacking(older)) for (name, _), older in sharing._fetching.items() if name == region]
        if self.is_attached or all(older.are_at_others(member.me, each) for older, each in lacks):
            self._loses_since_us.pop((member, region), None)
            return False
        return now_us - self._loses_since_us.setdefault((member, region), now_us) < LOSING_US

    def _has_ended_feeds(self, member: Member, region: SimulatedRegion) -> bool:
        """As `Regions._end_feeds`, which waits."""
        if region.end_feeds():
            self._ends_since_us.pop((member, region.name), None)
        elif (
            self.simulation.now_us - self._ends_since_us.setdefault((member, region.name), self.simulation.now_us)
            >= LOSING_US
        ):
            self.statistics["regions that ended a queue with changes that were not replicated"] += 1
            region.end_feeds(now=True)
        return (member, region.name) not in self._ends_since_us

    def _alter_region(
        self, member: Member, senders: MemberSenders, region: SimulatedRegion, wanted: RegionAttributes
    ) -> None:
        """As `Regions._alter`: the site is told, and then the region gets its senders."""
        place, told = (member, wanted.name), site_attributes(wanted, senders=ids_of(wanted))
        request = self._asked.get(place)
        session = member.agent.session
        is_asked = request is not None and any(each is request for each in session.asked.requests.values())
        if request is None or request.fields[2] != plain_attributes(told) or not (is_asked or request.done):
            request = self._asked[place] = session.host(wanted.name, told, weight_of(wanted))
        if request.refused:
            self.note(f"{member.me} may not alter {wanted.name}: {request.refused}")
            del self._asked[place]
        elif request.done and member.regions.get(wanted.name) is region:
            del self._asked[place]
            region.attributes = wanted
            senders.attach(region)

    # A run

    def _live(self, steps: int) -> None:
        self.simulation.after(600 * MS, self._operate)
        super()._live(steps)

    def _operate(self) -> None:
        """The next thing that an operator does."""
        rng = self.simulation.rng
        if self.is_healing:
            return
        if not self.is_wanted:
            self.is_wanted = True
            self._work(self._create, "created", lambda: self._attach())
        elif self.is_attached and rng.random() < 0.5:
            self._do(self._alter_sender)
            self._later()
        elif self.is_attached:
            self._want_attached(False)
            self.events.since_us.pop(LATE, None)
            self._work(self._fit_regions, "detached", self._detached)
        else:
            self._attach()

    def _later(self) -> None:
        self.simulation.after(self.simulation.rng.randrange(100, 1500) * MS, self._operate)

    def _attach(self) -> None:
        self._want_attached(True)
        self._work(self._fit_regions, "attached", self._attached)

    def _attached(self) -> None:
        self.events.since_us[LATE] = self.simulation.now_us
        self._later()

    def _detached(self) -> None:
        if self.simulation.rng.random() < 0.5:
            self.is_wanted = False
            self._work(self._destroy, "destroyed", self._later)
        else:
            self._later()

    def _work(self, what: Callable[[Member, MemberSenders], bool], name: str, then: Callable[[], object]) -> None:
        """Goes on until all members have done it, or everything heals."""
        if self.is_healing:
            return
        if self._do(what):
            self.note(f"sender {LATE} is {name}")
            self.statistics[f"senders {name}"] += 1
            then()
        else:
            self.simulation.after(LOOK_US, lambda: self._work(what, name, then))

    def end_well(self) -> None:
        """In the end all members have the sender, and all regions."""
        self.is_healing = self.is_wanted = True
        if LATE not in self.events.since_us:
            self._want_attached(True)
        self._keep_attached()
        super().end_well()

    def _keep_attached(self) -> None:
        is_done = self._do(self._create) & self._do(self._fit_regions)
        if is_done and LATE not in self.events.since_us:
            self.events.since_us[LATE] = self.simulation.now_us
        self.simulation.after(LOOK_US, self._keep_attached)

    def unrest(self) -> str:
        if LATE not in self.events.since_us:
            return f"not all members and regions have sender {LATE}"
        return super().unrest()
