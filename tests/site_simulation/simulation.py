"""Owns simulated time, and a network whose connections and requests are late, are held, break, and are cut one way or
both ways."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any

import msgpack

from pywan import _core

MS = 1000
RETRANSMITS_US = 60 * MS  # A packet that is lost is sent again after about so long.
LOOKS_AGAIN_US = 100 * MS  # Bytes that a cut holds back are tried again so often.
CONNECT_TIMEOUT_US = 300 * MS
HEAD_BYTES = 16  # Of whatever begins on a connection: no padding is among them.


# From one name to another; with a protocol: only of the connections that the first one has opened for it.
Way = tuple[str, str] | tuple[str, str, bytes]


class Simulation:
    """Runs functions at their times. All chance comes from one generator, so a seed repeats everything."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_us = 1_000_000
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def after(self, delay_us: int, what: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now_us + max(delay_us, 0), self._count, what))

    def run_until(self, end_us: int) -> None:
        while self._due and self._due[0][0] <= end_us:
            self.now_us, _, what = heapq.heappop(self._due)
            what()
        self.now_us = max(self.now_us, end_us)


class Node:
    """A process with a clock of its own. It may stop for a while, and then goes on as if nothing had been."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.is_dead = False
        self.paused_until = 0
        self.deaf_until = 0  # Until then nobody serves requests and new connections. Those that are there go on.
        self._drift = 1 + simulation.rng.uniform(-0.02, 0.02)
        self._offset = simulation.rng.randrange(10**12)
        self._waiting: list[Callable[[], object]] = []

    def clock(self) -> int:
        """The node's own time in us. It never goes back, and says nothing about the clocks of others."""
        return self._offset + int(self.simulation.now_us * self._drift)

    def until(self, at_us: int) -> int:
        """Returns how long it is, in simulated time, until the node's clock says so."""
        return int((at_us - self._offset) / self._drift) + 1 - self.simulation.now_us

    @property
    def is_deaf(self) -> bool:
        return self.deaf_until > self.simulation.now_us

    def pause(self, for_us: int) -> None:
        if self.paused_until <= self.simulation.now_us:
            self.paused_until = self.simulation.now_us + for_us
            self.simulation.after(for_us, self._go_on)

    def _go_on(self) -> None:
        if self.paused_until > self.simulation.now_us:
            return
        waiting, self._waiting = self._waiting, []
        for what in waiting:
            self.do(what)

    def do(self, what: Callable[[], object]) -> None:
        """Does it now, or when the node goes on; never if it is dead."""
        if self.is_dead:
            return
        if self.paused_until > self.simulation.now_us:
            self._waiting.append(what)
            return
        _core.simulate_monotonic_us(self.clock())  # The core knows the time of the node that runs, and no other.
        what()
        if not self.is_dead:
            self.pump()

    def pump(self) -> None:
        """Moves on what the last event has made possible."""

    def every(self, interval_us: int, what: Callable[[], object]) -> None:
        def again() -> None:
            if not self.is_dead:
                self.do(what)
                self.simulation.after(int(interval_us * self.simulation.rng.uniform(0.8, 1.2)), again)

        self.simulation.after(self.simulation.rng.randrange(interval_us), again)


class End:
    """One end of a connection. `receive` and `ended` are called in the node, in the order of what came."""

    def __init__(self, connection: Connection, node: Node, to: Node) -> None:
        self.connection, self.node, self.to = connection, node, to
        self.receive: Callable[[bytes], object] = lambda data: None
        self.ended: Callable[[], object] = lambda: None
        self.is_open = True
        self.other: End
        self._last_us = 0
        self._full_until_us = 0  # Until then a slow way has no room for more bytes from this end.
        self._held: deque[bytes | None] = deque()  # None: the other end closed the connection.

    def send(self, data: bytes) -> None:
        """Sends bytes to the other end, behind all that was sent before."""
        network, rate = self.connection.network, self._rate()
        if rate:
            self._full_until_us = network.simulation.now_us + len(data) * 1_000_000 // rate
        for piece in network.pieces(self.connection, data):
            self.other._expect(piece)

    def _rate(self) -> int | None:
        """The bytes a second of a slow way; None: it is not slow."""
        rates = self.connection.network.rates
        return next((rates[way] for way in self._ways() if way in rates), None)

    def _ways(self) -> list[Way]:
        """The ways that what this end sends goes along."""
        way = self.node.name, self.to.name
        return [way, (*way, self.connection.protocol)] if self is self.connection.ends[0] else [way]

    def full_us(self) -> int:
        """For how long the way has no room for more bytes from this end. What is sent all the same waits there."""
        return max(0, self._full_until_us - self.connection.network.simulation.now_us) if self._rate() else 0

    def close(self) -> None:
        """Closes this end. The other end gets what was sent, and then the news, as far as the network lets it."""
        if self.is_open:
            self.is_open = False
            self.other._expect(None)

    # What comes to this end.

    def _expect(self, data: bytes | None) -> None:
        network = self.connection.network
        at_us = network.simulation.now_us + network.delay()
        hold_us = max(network.held.get(way, 0) for way in self.other._ways())
        rate = self.other._rate()
        at_us = max(at_us, self._last_us, hold_us)
        if rate and data:
            at_us += len(data) * 1_000_000 // rate
        self._last_us = at_us
        network.simulation.after(at_us - network.simulation.now_us, lambda: self._arrive(data))

    def _arrive(self, data: bytes | None) -> None:
        if self._held or self.connection.network.is_cut(self.to.name, self.node.name):
            self._held.append(data)
            if len(self._held) == 1:
                self.connection.network.simulation.after(LOOKS_AGAIN_US, self._look_again)
            return
        self._take(data)

    def _look_again(self) -> None:
        network = self.connection.network
        if self.is_open and network.is_cut(self.to.name, self.node.name):
            network.simulation.after(LOOKS_AGAIN_US, self._look_again)
            return
        held, self._held = self._held, deque()
        for data in held:
            self._take(data)

    def _take(self, data: bytes | None) -> None:
        """Bytes still come when the connection has broken at the other end."""
        if not self.is_open:
            return
        if self.node.is_dead:  # Its machine answers that nobody is there.
            self.close()
            return
        self.node.do(lambda: self._hand_over(data))

    def _hand_over(self, data: bytes | None) -> None:
        if not self.is_open:
            return
        if data is None:
            self.is_open = False
            self.ended()
        else:
            self.receive(data)

    def reset(self) -> None:
        """The connection is broken at this end. Bytes that are on their way to the other end may still arrive."""
        if self.is_open:
            self.close()
            if not self.node.is_dead:
                self.node.do(self.ended)


class Connection:
    """Bytes in both directions, each in order."""

    def __init__(self, network: Network, protocol: bytes, one: Node, other: Node) -> None:
        self.network, self.protocol = network, protocol
        self.ends = End(self, one, other), End(self, other, one)
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]

    @property
    def is_over(self) -> bool:
        return not (self.ends[0].is_open or self.ends[1].is_open)


class Network:
    """Connections and requests between nodes."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.nodes: dict[Hashable, Any] = {}  # The coordinator by that name, and each member by its incarnation.
        self.cut: set[tuple[str, str]] = set()  # Ways from one name to another on which nothing passes.
        self.rejecting: set[str] = set()  # Whoever probes one of these over a way that is cut is refused at once.
        self.held: dict[Way, int] = {}  # Ways on which connections hold their bytes until then.
        self.rates: dict[Way, int] = {}  # Slow ways, in bytes a second.
        self.loss = 0.0
        self.slow_us = 0
        self.splits = 0.0  # So often what is sent at once comes in pieces.
        self.to_damage = 0  # So many of the next messages over connections are damaged.
        # What was damaged, each at a byte that every end looks at: the head of a frame or call.
        self.damaged: list[Connection] = []
        self.connections: list[Connection] = []

    def is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.cut

    def heal(self) -> None:
        self.cut.clear()
        self.rejecting.clear()
        self.rates.clear()
        self.held.clear()
        self.loss, self.slow_us, self.splits, self.to_damage = 0.0, 0, 0.0, 0

    def pieces(self, connection: Connection, data: bytes) -> list[bytes]:
        """What becomes of bytes on their way: they come as they are, or cut at any points, or damaged."""
        rng = self.simulation.rng
        if self.to_damage and rng.random() < 0.2:
            self.to_damage -= 1
            at = rng.choice([rng.randrange(min(len(data), HEAD_BYTES)), rng.randrange(len(data))])
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            if at < HEAD_BYTES:
                self.damaged.append(connection)
        if not self.splits or rng.random() >= self.splits:
            return [data]
        cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(rng.choice([1, 1, 2, 8])))})
        return [data[begin:end] for begin, end in pairwise(cuts)]

    def delay(self) -> int:
        rng = self.simulation.rng
        delay = int(rng.expovariate(1 / 300)) + 20
        if self.slow_us and rng.random() < 0.1:
            delay += rng.randrange(self.slow_us)
        while self.loss and rng.random() < self.loss:
            delay += int(RETRANSMITS_US * rng.uniform(0.8, 2))
        return delay

    # Requests: each is answered once, or fails.

    def ask(
        self,
        sender: Node,
        to: Hashable,
        request: dict[str, Any],
        answered: Callable[[dict[str, Any]], object],
        failed: Callable[[], object],
        timeout_us: int,
    ) -> None:
        """Sends a request. `failed` is called if nobody is there, or no answer comes in time: it may come too late."""
        packed, is_over = msgpack.packb(request), False

        def end(what: Callable[[], object]) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                sender.do(what)

        def arrive() -> None:
            node = self.nodes.get(to)
            if self.is_cut(sender.name, _name_of(to)) or (node is not None and node.is_deaf):
                return
            if node is None or node.is_dead:
                if not self.is_cut(_name_of(to), sender.name):
                    self.simulation.after(self.delay(), lambda: end(failed))
                return
            node.do(
                lambda: node.asked(msgpack.unpackb(packed, strict_map_key=False), lambda reply: reply_to(node, reply))
            )

        def reply_to(node: Node, reply: dict[str, Any] | None) -> None:
            told = None if reply is None else msgpack.packb(reply)

            def come() -> None:
                if not self.is_cut(node.name, sender.name):
                    end(failed if told is None else lambda: answered(msgpack.unpackb(told, strict_map_key=False)))

            self.simulation.after(self.delay(), come)

        self.simulation.after(self.delay(), arrive)
        self.simulation.after(timeout_us, lambda: end(failed))

    # Connections.

    def connect(
        self,
        sender: Node,
        to: Hashable,
        protocol: bytes,
        opening: bytes,
        opened: Callable[[End], object],
        failed: Callable[[str], object],
    ) -> None:
        """Opens a connection. `opened` gets this end when the other one has accepted it."""
        is_over = False

        def end(what: Callable[[], object]) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                sender.do(what)

        def arrive() -> None:
            node = self.nodes.get(to)
            away = self.is_cut(sender.name, _name_of(to)) or self.is_cut(_name_of(to), sender.name)
            if away or (node is not None and node.is_deaf):
                return
            if node is None or node.is_dead:
                self.simulation.after(self.delay(), lambda: end(lambda: failed("nobody listens there")))
                return
            connection = Connection(self, protocol, sender, node)
            here, there = connection.ends
            self.connections = [each for each in self.connections if not each.is_over] + [connection]
            node.do(lambda: accept(node, here, there))

        def accept(node: Any, here: End, there: End) -> None:
            node.accept(protocol, opening, there, lambda refusal: answer(refusal, here, there))

        def answer(refusal: str, here: End, there: End) -> None:
            def come() -> None:
                if is_over:
                    here.close()
                elif refusal:
                    end(lambda: failed(refusal))
                else:
                    end(lambda: opened(here) if here.is_open else failed("it broke at once"))

            if refusal:
                there.is_open = here.is_open = False
            self.simulation.after(self.delay(), come)

        self.simulation.after(self.delay(), arrive)
        self.simulation.after(CONNECT_TIMEOUT_US, lambda: end(lambda: failed("no answer in time")))

    def reset(self, node: Node, *, both_ends: bool = True) -> None:
        """Breaks all connections of a node. Otherwise only the other ends hear of it, and this one holds on."""
        for connection in list(self.connections):
            for each in connection.ends:
                if each.node is node:
                    each.other.reset()
                    if both_ends:
                        each.reset()

    def process_ended(self, node: Node) -> None:
        """The machine of a process that has ended closes its connections."""
        for connection in list(self.connections):
            for each in connection.ends:
                if each.node is node:
                    each.close()


def _name_of(to: Hashable) -> str:
    return to if isinstance(to, str) else to.name  # type: ignore[attr-defined]
