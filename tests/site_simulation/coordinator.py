"""Owns the coordinator of a simulated site: the product's decisions, driven without threads, disk or sockets."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pywan.coordination import encoding, plain
from pywan.coordination.actions import Probe, Store, Tell
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.joins import join_of
from pywan.coordination.messages import MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.proofs import is_proved, with_proved
from pywan.coordination.requests import read_requests, take_requests
from pywan.coordination.tables import CONTROLLER_EPOCH_STEP_MAX, Incarnation, MemberProfile, Reach

from .simulation import MS, Node

if TYPE_CHECKING:
    from .world import SiteWorld

MEMBER_TIMEOUT_US = 1000 * MS
POLL_US = 100 * MS  # A member's question for news is answered after so long, if there are none.
POLL_GAP_US = 300 * MS  # A member that asks no further question for so long is looked at.
PROBE_TIMEOUT_US = 200 * MS

Reply = Callable[[dict[str, Any] | None], object]


class CoordinatorNode(Node):
    """Takes the same messages as `CoordinationHost`, and answers them alike."""

    def __init__(self, world: SiteWorld, stored: list[Store]) -> None:
        super().__init__(world.simulation, "coordinator")
        self.world = world
        self.started_us = world.simulation.now_us
        rng = world.simulation.rng
        self.core = Coordinator(
            "locator",
            stored,
            draw_step=functools.partial(random.Random(rng.randrange(1 << 60)).randint, 1, CONTROLLER_EPOCH_STEP_MAX),
            now_us=self.clock(),
            site_identity=f"site-{rng.randrange(1 << 30)}",
            member_timeout_us=MEMBER_TIMEOUT_US,
        )
        self._may_adopt_identity = not stored
        self._polls: dict[Incarnation, tuple[int, int, Reply]] = {}  # Turn, newest decision that it has, the way back.
        self._turns = 0
        self._mail: dict[Incarnation, list[Refused | MayLeave | StillNeeded]] = {}
        self._next_poll_us: dict[Incarnation, int] = {}
        self.every(30 * MS, self._tick)

    def _tick(self) -> None:
        now = self.clock()
        self.core.tick(now)
        for me, due in list(self._next_poll_us.items()):
            if me not in self.core.site.members:
                del self._next_poll_us[me]
            elif due <= now:
                self._next_poll_us[me] = now + POLL_GAP_US
                self.core.suspect(me, me, now)
        self._act()
        self.core.next_us()  # So a tick after a pause is late, as the product's driver has it.

    def asked(self, request: dict[str, Any], reply: Reply) -> None:
        op = request.pop("op")
        {"coordination-join": self._join, "coordination-poll": self._poll, "coordination-ask": self._ask}[op](
            request, reply
        )

    def connection_ended(self, me: Incarnation) -> None:
        """The connection of a member has ended: the member is looked at."""
        self.core.suspect(me, me, self.clock())
        self._act()

    def _join(self, request: dict[str, Any], reply: Reply) -> None:
        core, now = self.core, self.clock()
        join = join_of(request)
        profile, earlier = join.profile, join.ended
        me = profile.incarnation
        self.world.proofs.received(me)
        known = core.site.members.get(me, profile)
        assert is_proved(profile, join.nonce) and is_proved(known, join.nonce), me
        if earlier is not None:
            of_folder = is_proved(core.site.members.get(earlier), join.nonces_before.get(earlier.member_id))
            refusal = core.ended(earlier, me, now, is_proved=of_folder)
            if refusal is not None:
                self._act()
                reply(self._reply(refused=[encoding.plain_refused(refusal)]))
                return
        if self._may_adopt_identity and join.coordinator and profile.site_identity:
            core.site.identity = profile.site_identity
        self._may_adopt_identity = self._may_adopt_identity and not profile.site_identity
        profile = with_proved(profile, join.nonces_before, core.site.members)
        core.join(profile, join.regions, join.holdings, join.stored, now, join.nonces)
        told = [each for each in self._act(me) if isinstance(each, Refused)]
        fields: dict[str, Any] = {}
        if not told:
            self._next_poll_us[me] = now + POLL_GAP_US
            tables = core.tables(0, core.member_timeout_us)
            fields = {"tables": plain.pack(encoding.plain_tables(tables))}
        reply(self._reply(refused=[encoding.plain_refused(each) for each in told], **fields))

    def _poll(self, request: dict[str, Any], reply: Reply) -> None:
        core = self.core
        me, stored = encoding.incarnation_of(request["me"]), encoding.decision_id_of(request["stored"])
        self._next_poll_us.pop(me, None)
        reaches = [encoding.incarnation_of(each) for each in request["reaches"]]
        self.world.proofs.received(me, reaches)
        self._check_nonce(me, request)
        core.renew(me, stored, self.clock(), reaches)
        refused = [each for each in self._act(me) if isinstance(each, Refused)]
        if refused:
            reply(self._reply(refused=[encoding.plain_refused(each) for each in refused]))
            return
        self._turns += 1
        turn = self._turns
        self._polls[me] = turn, stored.number, reply
        if stored != core.site.newest or self._mail.get(me):
            self._answer_poll(me, turn)
        else:
            self.simulation.after(POLL_US, lambda: self.do(lambda: self._answer_poll(me, turn)))

    def _check_nonce(self, me: Incarnation, request: dict[str, Any]) -> None:
        """No member of the simulation lies, so each one is believed."""
        profile = self.core.site.members.get(me)
        assert profile is None or is_proved(profile, request["nonce"]), me

    def _answer_poll(self, me: Incarnation, turn: int) -> None:
        waiting = self._polls.get(me)
        if waiting is None or waiting[0] != turn:
            return
        del self._polls[me]
        core, mail = self.core, self._mail.pop(me, [])
        self._next_poll_us[me] = self.clock() + POLL_GAP_US
        tables = core.answer(waiting[1], core.member_timeout_us) if core.may_be_told(me) else None
        waiting[2](
            self._reply(
                tables=None if tables is None else plain.pack(encoding.plain_tables(tables)),
                refused=[encoding.plain_refused(each) for each in mail if isinstance(each, Refused)],
                **encoding.plain_leaving(mail),
            )
        )

    def _ask(self, request: dict[str, Any], reply: Reply) -> None:
        me = encoding.incarnation_of(request["me"])
        self._check_nonce(me, request)
        for each in request["requests"]:
            if each[0] == "unreachable":
                self.world.proofs.asked_to_take_out(me, encoding.incarnation_of(each[1]))
        heeds = self.core.heeds(me)
        refused = [
            [index, encoding.plain_refused(refusal)]
            for index, refusal in take_requests(self.core, me, read_requests(request["requests"]), self.clock())
        ]
        leaving = self._act(me)
        unheeded = {} if heeds else {"unheeded": True}
        leaving_told = encoding.plain_leaving(leaving)
        reply(self._reply(decision=self.core.site.number, refused_requests=refused, **unheeded, **leaving_told))

    def _reply(self, **fields: Any) -> dict[str, Any]:
        return {
            "decides": True,
            "coordinator": self.core.name,
            "site_identity": self.core.site.identity,
            "lease_us": MEMBER_TIMEOUT_US,
            **fields,
        }

    def _act(self, asker: Incarnation | None = None) -> list[Refused | MayLeave | StillNeeded]:
        """Does what the coordinator wants done. Returns what it tells the asker."""
        told: list[Refused | MayLeave | StillNeeded] = []
        news: list[Incarnation] = []
        for action in self.core.take_actions():
            match action:
                case Store():
                    self.world.journal.append(action)
                    self.world.watch.decided(action)
                    self.world.decided(action)
                case Tell(to, Tables() as message):
                    if message.newest.number > message.since:
                        news.append(to)
                case Tell(to, message):
                    if to == asker:
                        told.append(message)
                    else:
                        self._mail.setdefault(to, []).append(message)
                        news.append(to)
                case Probe(profile):
                    self._probe(profile)
        for member in news:
            if member in self._polls and member != asker:
                self._answer_poll(member, self._polls[member][0])
        self.world.faults.of_coordination.told()
        return told

    def _probe(self, profile: MemberProfile) -> None:
        """Sees whether a member still listens. A process of the same machine is asked for itself: its end is proof."""
        world, member = self.world, profile.incarnation
        network = world.network
        node = network.nodes.get(member)
        has_ended = world.has_ended(profile.process) and world.is_one_machine
        away = network.is_cut(self.name, member.name) or network.is_cut(member.name, self.name)
        if has_ended or (away and member.name in network.rejecting):
            reach, after = Reach.REFUSED, MS
        elif away:
            reach, after = Reach.SILENT, PROBE_TIMEOUT_US
        elif node is None or node.is_dead:
            reach, after = Reach.REFUSED, MS
        elif node.paused_until > self.simulation.now_us + PROBE_TIMEOUT_US:
            reach, after = Reach.ANSWERED, PROBE_TIMEOUT_US  # Its kernel takes the connection, and that is enough.
        else:
            reach, after = Reach.ANSWERED, MS

        def tell() -> None:
            self.core.probed(member, reach, self.clock())
            if has_ended:
                self.core.left(member, self.clock())
            self._act()

        self.simulation.after(after, lambda: self.do(tell))
