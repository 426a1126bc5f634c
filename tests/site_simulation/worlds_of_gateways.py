"""Owns worlds whose site sends its events to other sites, while everything goes wrong."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from pywan.config.attributes import SenderAttributes, order_of
from pywan.coordination.actions import Store
from pywan.coordination.tables import BucketKey
from pywan.member.sender_roles import SenderRoles, role_name

from .events import Events, Watching
from .remote import RemoteSite
from .senders import RECEIVE_TIMEOUT_MS, MemberSenders, SimulatedSender
from .simulation import MS
from .world import SiteWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .member import Member, SimulatedRegion, WatchedChangelog

PARALLEL, SERIAL = "parallel", "serial"


class Gateways(SiteWorld):
    """What counts comes to remote sites, in order, and nothing else does; queues become equal, and then empty."""

    kind = "gateways"
    must_happen = (
        "events applied",
        "batches looked at",
        "keys compared",
        "answered changes that came",
        "queues compared",
        "serial senders stopped on one member",
        "senders stopped everywhere",
        "events dropped where no sender ran",
        "newest changes that were dropped",
        "remote sites cut off",
        "remote sites that paused",
        "events repeated",
        "senders started anew",
        "events that a filter refused",
        "acknowledgements that members were told of",
        "events that a site refused",
        "parked events compared",
        "parked events replayed",
        "puts of threads that left",
        "puts of threads that wait behind earlier ones",
    )

    def _form(self, rng: random.Random) -> None:
        super()._form(rng)
        chance = random.Random(f"{self.seed} gateways")
        self.value_bytes = chance.choice([0, 0, 0, 2_000])
        self.ahead_ms = {}  # A receiver refuses changes with stamps of a clock that is hours ahead.
        ids = (PARALLEL, SERIAL) if self.regions[0].is_partitioned else (SERIAL,)
        for each in self.regions:
            each.gateway_sender_ids = ids
        made = [
            SenderAttributes(
                id,
                remote_distributed_system_id=site,
                parallel=id == PARALLEL,
                dispatcher_threads=chance.choice([1, 2]),
                order_policy="key" if id == PARALLEL else chance.choice(["key", "partition", "thread", "thread"]),
                batch_size=chance.choice([1, 3, 100]),
                batch_time_interval=chance.choice([0, 5, 50]),
                enable_batch_conflation=chance.random() < 0.2,
                compression=chance.choice(["none", "lz4"]),
                socket_read_timeout=RECEIVE_TIMEOUT_MS,
            )
            for site, id in enumerate(ids, 2)
        ]
        self.roles = [SenderRoles._region_attributes(each.id) for each in made]
        self.events = Events(self, made)
        for sender in made:
            if order_of(sender) == "thread":  # Several dispatchers keep the order of threads, and not that of keys.
                sender.dispatcher_threads = 1
        hearing, refusing = random.Random(f"{self.seed} filters"), random.Random(f"{self.seed} refusing")
        for sender in made:
            if hearing.random() < 0.6:
                refused = hearing.choice([None, *self.keys.names])
                sender.gateway_event_filters = [Watching(self.events, sender, refused)]
            number, buckets = sender.remote_distributed_system_id, chance.choice([1, 3, 7])
            regions = {region.name: buckets for region in self.regions}
            site = RemoteSite(self.events, number, regions, chance.choice([1, 1, 2]))
            self.events.sites[number] = self.network.nodes[site.name] = site
            if refusing.random() < 0.6:
                site.refused_key = refusing.choice(self.keys.names)

    def decided(self, store: Store) -> None:
        self.events.threads.decided(store)

    def shares(self, member: Member, region: str, changelog: WatchedChangelog, each_tells: bool) -> None:
        self.events.threads.shares(member, region)

    # Members and their senders

    def _host(self, member: Member) -> None:
        if member.is_dead or member.is_leaving:
            return
        held, _ = self.events.senders.get(member.name, (None, None))
        if held is not member:
            if not member.agent.is_joined:
                member.later(20 * MS, lambda: self._host(member))
                return
            self.events.senders.pop(member.name, None)
            senders = MemberSenders(member, self.senders_of(member), self.keys.buckets, self.events)
            self.events.senders[member.name] = member, senders
        super()._host(member)

    def senders_of(self, member: Member) -> Sequence[SenderAttributes]:
        """The senders that a member has from its start."""
        return self.events.made

    def creates(self, member: Member, region: SimulatedRegion) -> None:
        _, senders = self.events.senders[member.name]
        senders.attach(region)

    def queue_of(self, member: Member, id: str) -> Any:
        held, senders = self.events.senders.get(member.name, (None, None))
        return senders.by_id[id].queue if senders is not None and held is member and id in senders.by_id else None

    def parked_answer(self, member: Member, request: dict[str, Any]) -> Any:
        held, senders = self.events.senders.get(member.name, (None, None))
        return senders.parked.answer(request) if senders is not None and held is member else None

    def end(self, member: Member) -> None:
        self.events.ended(member)
        super().end(member)

    def moved(self, member: Member) -> None:
        self.events.moved(member)

    # A run

    def _live(self, steps: int) -> None:
        rng = self.simulation.rng
        doings: list[Callable[[], object]] = [
            *[self._stop_on_one_member, self._pause_sender] * 2,
            *[self._stop_everywhere, self._cut_off, self._pause_site, self._reset_connections, self._shut],
        ]
        has_threads = any(order_of(each) == "thread" for each in self.events.made)
        self.simulation.run_until(self.simulation.now_us + 300 * MS)
        for _ in range(steps):
            self.clients_soon(10 if has_threads else 20, 300 * MS)
            for _ in range(rng.randrange(3) if has_threads else 0):
                self.simulation.after(rng.randrange(300 * MS), self.events.threads.begin)
            if rng.random() < 0.35:
                self.faults.happen()
            if rng.random() < 0.35:
                rng.choice(doings)()
            self.simulation.run_until(self.simulation.now_us + rng.randrange(10, 400) * MS)
            self.events.check_ledgers()

    def end_well(self) -> None:
        """In half of the worlds the remote sites are away at first, so that queues can be compared."""
        for each in self.events.sites.values():
            each.open()
        for member, senders in list(self.events.senders.values()):
            for each in senders.by_id.values():
                member.do(lambda each=each: (each.start(), each.pause(False)))
        is_away = self.simulation.rng.random() < 0.5
        if is_away:
            for each in self.events.sites.values():
                each.shut()
        super().end_well()
        if is_away:
            self.events.check_replicas()
            for each in self.events.sites.values():
                each.open()
            self._find_rest()
        self._start_anew()
        self.events.check_parked()
        self._replay()
        self.events.check_ledgers()
        self.events.check_sites()

    def _replay(self) -> None:
        """The remote sites take all now, and a member that may lead nothing is asked to replay."""
        for each in self.events.sites.values():
            each.refused_key = None
        for made in self.events.made:
            member, senders = self.simulation.rng.choice(list(self.events.senders.values()))
            member.do(lambda senders=senders, made=made: senders.replay_parked(made.id))
        self._find_rest()

    def _start_anew(self) -> None:
        """A sender is stopped on a member of a healthy site and started again: the member has its role again."""
        running = [each for each in self._senders() if each.is_running]
        if running:
            each = self.simulation.rng.choice(running)
            self.note(f"{each.id} is started anew on {each.member.me}")
            self.statistics["senders started anew"] += 1
            each.member.do(lambda: (each.stop(), each.start()))
            self._find_rest()

    def unrest(self) -> str:
        return self._unrest_of_roles() or self.events.unrest()

    def _unrest_of_roles(self) -> str:
        """Why a sender's role has no primary, or is still learned; empty: nothing."""
        site = self.coordinator.core.site
        for role in self.roles:
            key = BucketKey(role.name, 0)
            bucket = site.buckets.get(key)
            if key.region in site.regions and (bucket is None or bucket.primary is None or bucket.learners):
                return f"{key} has no primary, or is still learned: {bucket}"
        return ""

    # What goes wrong with senders and on the way to remote sites

    def _senders(self) -> list[SimulatedSender]:
        return [
            each
            for member, senders in self.events.senders.values()
            if not member.is_dead and not member.is_leaving and member.paused_until <= self.simulation.now_us
            for each in senders.by_id.values()
        ]

    def _stop_on_one_member(self) -> None:
        """A serial sender is stopped on a member while it runs on another one, and started again some time later."""
        core = self.coordinator.core
        running = [
            each
            for each in self._senders()
            if each.is_running
            and not each.attributes.parallel
            and self.events.senders[each.member.name][1].runs_on_others(each.attributes)
        ]
        if not running:
            return
        role = core.site.buckets.get(BucketKey(role_name(SERIAL), 0))
        primary = [each for each in running if role is not None and role.primary == each.member.me]
        each = self.simulation.rng.choice(primary or running)
        self.note(f"{each.id} is stopped on {each.member.me}")
        self.statistics["serial senders stopped on one member"] += 1
        each.member.do(each.stop)
        each.member.later(self.simulation.rng.choice([100, 500, 2000]) * MS, each.go_on)

    def _stop_everywhere(self) -> None:
        """A sender is stopped on all members, one soon after the other, and started again. What is queued stays, and
        changes that are made meanwhile are dropped."""
        rng = self.simulation.rng
        made, hold_us = rng.choice(self.events.made), rng.choice([50, 300, 1000]) * MS
        self.note(f"{made.id} is stopped everywhere for {hold_us} us")
        self.statistics["senders stopped everywhere"] += 1
        self.clients_soon(12, hold_us)
        for each in self._senders():
            if each.id == made.id:
                each.member.later(rng.randrange(20 * MS), each.stop)
                each.member.later(hold_us + rng.randrange(20 * MS), each.go_on)

    def _pause_sender(self) -> None:
        there = self._senders()
        if there:
            each = self.simulation.rng.choice(there)
            each.member.do(lambda: each.pause(True))
            each.member.later(
                self.simulation.rng.choice([100, 500]) * MS, lambda: each.is_destroyed or each.pause(False)
            )
            self.statistics["senders paused"] += 1

    def _cut_off(self) -> None:
        """Nothing passes between a remote site and a member, or all members, in one direction or both."""
        rng = self.simulation.rng
        site, members = rng.choice(list(self.events.sites.values())), list(self.members)
        some = members if rng.random() < 0.5 else [rng.choice(members)]
        there, back = {(each, site.name) for each in some}, {(site.name, each) for each in some}
        self.network.cut |= rng.choice([there, back, there | back])
        self.note(f"cut {sorted(self.network.cut)}")
        self.statistics["remote sites cut off"] += 1

    def _pause_site(self) -> None:
        rng = self.simulation.rng
        site = rng.choice(list(self.events.sites.values()))
        site.pause(rng.choice([50, 400, 1500]) * MS)
        self.statistics["remote sites that paused"] += 1

    def _shut(self) -> None:
        """A receiver is stopped, and started again."""
        rng = self.simulation.rng
        site = rng.choice(list(self.events.sites.values()))
        site.shut()
        self.statistics["receivers stopped"] += 1
        self.simulation.after(rng.choice([100, 1000]) * MS, lambda: self.is_healing or site.open())

    def _reset_connections(self) -> None:
        rng = self.simulation.rng
        self.network.reset(rng.choice(list(self.events.sites.values())), both_ends=rng.random() < 0.7)
        self.statistics["connections to remote sites reset"] += 1
