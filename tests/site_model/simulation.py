"""Owns simulated time, and a network that delays, loses and cuts."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

MS = 1000


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
    """Something with a clock of its own, which may stop for a while and then goes on as if nothing had been."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.is_dead = False
        self.paused_until = 0
        self._drift = 1 + simulation.rng.uniform(-0.02, 0.02)
        self._offset = simulation.rng.randrange(10**12)
        self._waiting: list[Callable[[], object]] = []

    def clock(self) -> int:
        """The node's own time in us. It never goes back, and says nothing about the clocks of others."""
        return self._offset + int(self.simulation.now_us * self._drift)

    def pause(self, for_us: int) -> None:
        if self.paused_until <= self.simulation.now_us:
            self.paused_until = self.simulation.now_us + for_us
            self.simulation.after(for_us, self._go_on)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for what in waiting:
            self.do(what)

    def do(self, what: Callable[[], object]) -> None:
        """Does it now, or when the node goes on; never if it is dead."""
        if self.is_dead:
            return
        if self.paused_until > self.simulation.now_us:
            self._waiting.append(what)
        else:
            what()

    def every(self, interval_us: int, what: Callable[[], object]) -> None:
        def again() -> None:
            if not self.is_dead:
                self.do(what)
                self.simulation.after(int(interval_us * self.simulation.rng.uniform(0.8, 1.2)), again)

        self.simulation.after(self.simulation.rng.randrange(interval_us), again)


class Network:
    """Messages between nodes. They may be lost, arrive late, twice, and out of order: the protocol has to bear that."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.nodes: dict[Any, Any] = {}  # The coordinator by that name, and each member by its incarnation.
        self.cut: set[tuple[str, str]] = set()  # Ways from one name to another on which nothing passes.
        self.loss = 0.0
        self.slow_us = 0
        self.sent: defaultdict[str, int] = defaultdict(int)

    def send(self, sender: Node, to: Any, what: Callable[[Any], object]) -> None:
        rng = self.simulation.rng
        for _ in range(2 if rng.random() < self.loss / 2 else 1):
            if rng.random() < self.loss:
                continue
            delay = int(rng.expovariate(1 / 300)) + (
                rng.randrange(self.slow_us) if self.slow_us and rng.random() < 0.1 else 0
            )
            self.simulation.after(delay, lambda: self._deliver(sender.name, to, what))

    def _deliver(self, sender: str, to: Any, what: Callable[[Any], object]) -> None:
        node = self.nodes.get(to)
        if node is not None and (sender, node.name) not in self.cut:
            node.do(lambda: what(node))
