"""Owns the gateway senders of a simulated member: the product's SenderCore, SenderRoles and sessions, and connections
over the simulated network in the place of threads and sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pywan import _core
from pywan.config.attributes import QueueAttributes, RegionAttributes, SenderAttributes
from pywan.gateway.dispatchers import Dispatcher, Dispatchers, Ends
from pywan.gateway.receiver_ends import ReceiverEnds
from pywan.gateway.sender_core import SenderCore
from pywan.gateway.unresponsive_receivers import ReceiverWatch
from pywan.member.feeding import running
from pywan.member.parked_events import PARKED_EVENTS, ParkedSharing, Steps
from pywan.member.sender_roles import SenderRoles
from pywan.protocol import gateway
from pywan.stats import ledger

from .member import Member, SimulatedRegion, Stream
from .remote import CREDIT_BYTES, CREDIT_EVENTS, HEARTBEAT_US, WAN
from .simulation import MS, End

if TYPE_CHECKING:
    from .events import Events

# The product's times, as much shorter as the simulated `member-timeout` is.
FIRST_RETRY_US, LONGEST_RETRY_US = 10 * MS, 200 * MS
RECEIVE_TIMEOUT_MS = 1000
TELL_US, TAKEN_AT_ONCE = 20 * MS, 50
COMPARE_US, COMPARE_SOON_US, ANSWER_US = 250 * MS, 5 * MS, 500 * MS


class Outgoing(Stream):
    """The connection of one dispatcher to a receiver of the other site."""

    def __init__(self, sender: SimulatedSender, session: Any, end: End, over: Callable[[], object]) -> None:
        self._sender = sender
        super().__init__(sender.member, session, end, over)

    def sending(self, data: bytes) -> None:
        self._sender.events.see_peeked(self._sender)
        self._sender.events.threads.sent(self._sender)

    def gave_up(self, why: str) -> None:
        self._sender.events.connection_given_up(self._sender, why)


class Dispatching:
    """One dispatcher: it connects, and connects again, as `Dispatchers` has a thread do it."""

    def __init__(self, sender: SimulatedSender, own: Dispatcher) -> None:
        self._sender, self._own, self._member = sender, own, sender.member
        self._stream: Outgoing | None = None
        self._is_over = False
        self._retry_us = FIRST_RETRY_US
        self._connect()

    def _connect(self) -> None:
        if self._is_over:
            return
        sender = self._sender
        hello = gateway.SenderHello(
            site=1,
            remote_site=sender.remote_site,
            member=self._member.name,
            sender=sender.id,
            dispatcher=self._own.index,
            numbering=sender.outgoing.numbering,
            mount=sender.outgoing.mount,
            partitions=sender.queue.partitions,
        )
        self._member.world.network.connect(
            self._member,
            f"site {sender.remote_site}",
            WAN,
            gateway.encode(hello, _core.FRAME_HELLO),
            self._opened,
            lambda why: self._again(),
        )

    def _opened(self, end: End) -> None:
        if self._is_over:
            end.close()
            return
        session = self._own.session
        session.connected(CREDIT_EVENTS, CREDIT_BYTES, self._member.now_us, HEARTBEAT_US)
        self._stream = Outgoing(self._sender, session, end, self._broke)

    def _broke(self) -> None:
        self._stream = None
        if self._own.session.has_progressed:
            self._retry_us = FIRST_RETRY_US
        self._own.session.disconnected()
        self._again()

    def _again(self) -> None:
        if not self._is_over:
            self._member.later(self._retry_us, self._connect)
            self._retry_us = min(2 * self._retry_us, LONGEST_RETRY_US)

    def end(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.close()


class SimulatedDispatchers(Dispatchers):
    """The product's dispatchers, whose connections are simulated."""

    def __init__(self, sender: SimulatedSender, ends: Ends) -> None:
        super().__init__(sender.attributes, sender.outgoing, sender.parked, ends)
        self._sender = sender
        self._at_work: list[Dispatching] = []

    def start(self) -> None:
        self._at_work = [Dispatching(self._sender, each) for each in self]
        self._tell_acknowledged()

    def _tell_acknowledged(self) -> None:
        """Tells the filters of events that other members sent, as `DispatchedByOthers` has a thread do it."""
        filters, queue = self._sender.filters, self._sender.queue
        if not self._at_work or not filters.wants_acknowledgements:
            return
        queue.keep_acknowledged(True)  # This also ends the wait of the next call.
        filters.tell_acknowledged(queue.take_acknowledged(TAKEN_AT_ONCE))
        self._sender.member.later(TELL_US, self._tell_acknowledged)

    def end(self) -> None:
        self._stopping.set()
        for each in self._at_work:
            each.end()
        self._at_work = []
        self._sender.queue.keep_acknowledged(False)


class SimulatedSender(SenderCore):
    """A sender of a simulated member."""

    def __init__(self, member: Member, made: SenderAttributes, events: Events, **more: Any) -> None:
        self.member, self.events, self.remote_site = member, events, made.remote_distributed_system_id
        super().__init__(
            made,
            make_ends=self._ends,
            site=1,
            directory=tempfile.gettempdir(),
            clock=member.clock_of_stamps,
            **more,
        )

    def _ends(self, core: SenderCore) -> Ends:
        receivers: Any = None  # The simulated network finds them.
        made = self.attributes
        assert isinstance(made, SenderAttributes)
        return ReceiverEnds(made, core.outgoing, receivers, watch=ReceiverWatch(), member_name=self.member.name, site=1)

    def _make_dispatchers(self, ends: Ends) -> Dispatchers:
        return SimulatedDispatchers(self, ends)

    def _note_running(self, **what: bool | None) -> bool:
        if self.queue.running:
            changes = super()._note_running(**what)
            if not self.queue.running:
                self.events.drops.begin(self)
            return changes
        self.events.drops.look(self)
        changes = super()._note_running(**what)
        if self.queue.running:
            self.events.drops.end(self)
        return changes

    @property
    def is_destroyed(self) -> bool:
        return self._is_destroyed

    def go_on(self) -> None:
        """Starts it again, unless it was destroyed meanwhile."""
        if not self._is_destroyed:
            self.start()

    @property
    def balances(self) -> bool:
        return bool(ledger(self.queue.counts())["balanced"])


class MemberSenders:
    """The senders of a member, as `Senders` and `Regions` have them."""

    def __init__(self, member: Member, made: Iterable[SenderAttributes], buckets: int, events: Events) -> None:
        """The member has joined its site. `buckets`: of each region that feeds the senders."""
        self._member = member
        self.roles = SenderRoles(member.agent, member.sharing, self._make_role)
        member.sharing.sender_changed = self._changed
        self._is_comparing = self._is_wanted = False
        self.parked = ParkedSharing(
            member.agent, member.sharing, lambda: list(self.by_id.values()), self._run_aside, self._compare_soon
        )
        member.sharing.decided = self.parked.decided
        member.every(COMPARE_US, self._compare)
        self.by_id: dict[str, SimulatedSender] = {}
        for each in made:
            self.create(each, buckets, events)

    def create(self, made: SenderAttributes, buckets: int, events: Events) -> None:
        """As `Senders.create`."""
        self.roles.tell(made)
        self.by_id[made.id] = self._make(made, buckets, events)
        self._changed(self.by_id[made.id])
        self.by_id[made.id].start()

    def destroy(self, id: str) -> None:
        """As `GatewaySender.destroy`. No region is attached to the sender."""
        self.by_id[id].events.drops.end(self.by_id[id])
        self.by_id[id].destroy()

    def _forget(self, core: SenderCore) -> None:
        attached = [
            each.name for each in self._member.regions.values() if core.id in each.attributes.gateway_sender_ids
        ]
        assert not attached, (core.id, attached)
        del self.by_id[core.id]
        self.roles.forget(core.attributes)

    # Parked events

    def run(self, steps: Steps[Any], done: Callable[[Any], object]) -> None:
        """Does steps to their end, whose questions go over the network. `done` gets what they return."""
        self._go_on(steps, None, done)

    def _run_aside(self, steps: Steps[Any]) -> Any:
        self.run(steps, lambda _: None)

    def _go_on(self, steps: Steps[Any], answer: Any, done: Callable[[Any], object]) -> None:
        try:
            to, question = steps.send(answer)
        except StopIteration as end:
            done(end.value)
            return
        if to is None:
            self._member.later(COMPARE_SOON_US, lambda: self._go_on(steps, None, done))
            return
        self._member.world.network.ask(
            self._member,
            to,
            {"op": PARKED_EVENTS, **question},
            lambda reply: self._go_on(steps, reply, done),
            lambda: self._go_on(steps, None, done),
            ANSWER_US,
        )

    def _compare_soon(self) -> None:
        self._is_wanted = True
        self._member.later(COMPARE_SOON_US, lambda: self._compare() if self._is_wanted else None)

    def _compare(self) -> None:
        if self._is_comparing:
            return
        self._is_comparing, self._is_wanted = True, False

        def done(_: Any) -> None:
            self._is_comparing = False
            if self._is_wanted:
                self._compare_soon()

        self.run(self.parked.round(), done)

    def replay_parked(self, id: str) -> None:
        """Has all members replay, until all have."""
        core, statistics = self.by_id[id], self._member.world.statistics

        def done(count: int) -> None:
            statistics["parked events replayed"] += count

        self.run(
            self.parked._count(core, {"what": "replay", "force": False}, core.replay_parked_here(force=False), ""), done
        )

    def _make(self, made: SenderAttributes, buckets: int, events: Events) -> SimulatedSender:
        sender = SimulatedSender(
            self._member,
            made,
            events,
            buckets=buckets if made.parallel else None,
            on_state=self._changed,
            on_running=self._runs,
            on_destroy=self._forget,
            is_primary=lambda: self.roles.is_primary(made),
            kept_by_others=lambda: self.roles.kept_by_others(made),
            parked_at_others=self.parked,
        )
        self.parked.add(sender)
        return sender

    def _make_role(self, made: RegionAttributes) -> Any:
        member = self._member
        return SimulatedRegion(
            made.name,
            member.clock_of_stamps,
            site=1,
            member=member.member_id,
            buckets=made.total_num_buckets,
            attributes=made,
        )

    def _runs(self, core: SenderCore) -> None:
        (self.roles.started if core.is_running else self.roles.stopped)(core.attributes)

    def _changed(self, core: SenderCore) -> None:
        """Regions stamp events with the sites of the senders that run."""
        self.roles.altered(core.attributes)
        for region in self._member.regions.values():
            if core.id in region.attributes.gateway_sender_ids:
                self.attach(region)

    def attach(self, region: SimulatedRegion) -> None:
        """Connects a region to those of its senders that the member has."""
        senders = [self.by_id[id] for id in region.attributes.gateway_sender_ids if id in self.by_id]
        region.attach([each.queue for each in senders])
        self._member.sharing.fed(region.name, senders)

    def runs_on_others(self, made: QueueAttributes) -> bool:
        """Whether the sender runs on another member, as this one's tables say."""
        runs = running(self._member.agent.tables.members.values())
        return bool(runs.get(made.core_id, set()) - {self._member.me})
