"""Owns a remote site of the simulation: its regions, its receivers with what they remember, and all that came."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pywan import _core
from pywan.errors import ProtocolError
from pywan.gateway.applied import AppliedMemory
from pywan.protocol import gateway

from .shown import number_in
from .simulation import MS, End, Node

if TYPE_CHECKING:
    from .events import Events

WAN = b"WAN!"  # Connections of senders are told from others by it.
CREDIT_EVENTS, CREDIT_BYTES = 4_000_000, 64 << 20
HEARTBEAT_US = 300 * MS
RECEIVE_TIMEOUT_US = 1000 * MS  # A sender that is silent for so long is disconnected.
LOOK_US = 5 * MS

Version = tuple[int, int]  # Stamp, site.


class Incoming:
    """The connection of a dispatcher, at the receiver that took it."""

    def __init__(self, site: RemoteSite, receiver: AppliedMemory, hello: gateway.SenderHello, end: End) -> None:
        self._site, self.end = site, end
        self._memory = contextlib.ExitStack()
        memory, _ = self._memory.enter_context(receiver.connected(hello))
        self.session = _core.ReceiverSession(
            memory,
            site.counts,
            site.regions.get,
            lambda core, record, place: site.apply(receiver, core, record, place),
            mount=hello.mount,
        )
        self.session.connected(site.clock(), RECEIVE_TIMEOUT_US // MS)
        receiver.take_over(hello, self)
        end.receive, end.ended = self._receive, self._ended
        site.incoming.append(self)

    def _receive(self, data: bytes) -> None:
        try:
            goes_on = self.session.receive_data(data, self._site.clock())
        except ProtocolError as error:
            self._site.events.refused(self._site, str(error))
            goes_on = False
        self.move()
        if not goes_on:
            self.stop()

    def move(self) -> None:
        """Sends what the session has."""
        try:
            while self.end.is_open and (data := self.session.data_to_send(self._site.clock())):
                self.end.send(data)
        except ProtocolError as error:
            self._site.events.refused(self._site, str(error))
            self.stop()

    def stop(self) -> None:
        """Ends it: a later connection of the dispatcher has come, or the sender is silent."""
        if self.end.is_open:
            self.end.close()
            self._ended()

    def contest(self) -> None:
        """Another opening of the queue's disk store has come. Queues in memory have none."""

    def _ended(self) -> None:
        if self in self._site.incoming:
            self._site.incoming.remove(self)
            self.end.receive = self.end.ended = _nothing
            self._memory.close()


class RemoteSite(Node):
    """A site of one member. A connection meets one of its receivers by chance, as if each were on another member: each
    remembers only what it brought itself."""

    def __init__(self, events: Events, number: int, regions: dict[str, int], receivers: int) -> None:
        """`regions`: how many buckets each of its regions has."""
        super().__init__(events.world.simulation, f"site {number}")
        self.events, self.number = events, number
        self.is_shut = False  # Nobody listens.
        self.refused_key: str | None = None  # It refuses all events of this key.
        self.refused: defaultdict[tuple[str, str], set[Version]] = defaultdict(set)  # By region and key.
        self._stamps = _core.Clock()
        self.regions = {
            name: _core.RegionCore(name, self._stamps, site=number, member=number, buckets=buckets)
            for name, buckets in regions.items()
        }
        for core in self.regions.values():
            core.set_callback_path(_nothing)  # So that `apply` sees each event.
        self._receivers = [AppliedMemory() for _ in range(receivers)]
        self.counts = _core.ReceiverCounts()
        self.incoming: list[Incoming] = []
        self.values: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # That were brought, by region and key.
        # By receiver, region and key: the versions that it applied, in their order.
        self._versions: defaultdict[tuple[int, str, str], list[Version]] = defaultdict(list)
        self.every(LOOK_US, lambda: None)

    def pump(self) -> None:
        for each in list(self.incoming):
            each.move()

    def accept(self, protocol: bytes, opening: bytes, end: End, answer: Callable[[str], object]) -> None:
        receiver = self.simulation.rng.choice(self._receivers)
        if self.is_shut or not end.is_open:
            answer("nobody listens there" if self.is_shut else "it broke")
            return
        try:
            Incoming(self, receiver, gateway.decode(opening, gateway.SenderHello), end)
        except ProtocolError as error:
            answer(str(error))
            return
        answer("")

    def shut(self) -> None:
        """Ends all connections, and takes none until `open`."""
        self.is_shut = True
        for each in list(self.incoming):
            each.stop()

    def open(self) -> None:
        self.is_shut = False

    def apply(self, receiver: AppliedMemory, core: Any, record: bytes, place: tuple[int, int, bool]) -> int:
        """Applies an event, as a region with callbacks does."""
        fields = _core.record_fields(record)
        key, value = str(_core.decode_object(*fields["key"])), _core.decode_object(*fields["value"])
        version = fields["stamp"], fields["stamp_site"]
        if key == self.refused_key:
            self.refused[core.name, key].add(version)
            self.events.world.statistics["events that a site refused"] += 1
            return int(_core.FAILED_OTHER)
        number = number_in(value)
        if number is not None:
            self.values[core.name, key].add(number)
        known = self._versions[self._receivers.index(receiver), core.name, key]
        self.events.see_order(self, core.name, key, version, known, is_marked=place[2])
        known.append(version)
        outcome = core.change(
            fields["operation"],
            key,
            value,
            decisions=(),
            version=version,
            origin_=(fields["origin_site"], fields["recipients"], fields["event_id"], place[2]),
        )
        self.events.world.statistics["events applied"] += 1
        return _core.APPLY_LOST if outcome == "lost" else _core.APPLY_DONE


def _nothing(*_: object) -> None:
    pass
