"""Owns a simulated world: sites that change their regions, links that carry the changes over a bad network, and that in
the end every site holds the same."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.errors import ProtocolError

from .link import (
    CREATE,
    DESTROY,
    KEYS,
    POISON_KEYS,
    REGION,
    SECRET_KEYS,
    UPDATE,
    Connection,
    Failure,
    Link,
    Receiver,
    must,
)

TRACE = 40


class World:
    """All of it, from one seed."""

    kind = "network"
    change_counts = (1, 1, 5, 30)  # Changes at once.
    value_bytes = (0, 10, 300, 3000)

    def __init__(self, seed: int):
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.now_us = 1_000_000
        self.receivers: list[Receiver] = []
        self.sites: dict[int, Any] = {}
        self.links: list[Link] = []
        self.make(rng.random() < 0.8)
        self.late: list[Connection] = []  # Given up by the dispatcher; the receiver may still take what arrives.
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.told = hashlib.sha256()  # All that was ever in `trace`.
        self.steps = self.events_made = 0
        self.statistics: dict[str, int] = defaultdict(int)

    def make(self, watched: bool) -> None:
        """The sites and what connects them."""
        rng = self.rng
        self.receivers = [Receiver(site, watched) for site in (8, 9)[: rng.choice((1, 1, 2))]]
        for site in range(1, rng.choice((2, 3, 4))):
            core = _core.RegionCore(REGION, _core.Clock(), site=site, member=site)
            links = [Link(rng, site, receiver) for receiver in self.receivers]
            core.attach([link.queue for link in links])
            self.sites[site] = core
            self.links += links

    def run(self, steps: int) -> None:
        """Random steps, then a quiet end in which everything must arrive. Failure says what was wrong, where, and
        before.
        """
        try:
            for _ in range(steps):
                self.step()
            self.end()
        except Failure:
            raise
        except AssertionError as error:
            past = "\n  ".join(self.trace)
            raise Failure(
                f"seed {self.seed}, step {self.steps}: {error}\nbefore that:\n  {past}\n"
                f"repeat: python -m tests.simulator --world {self.kind} --seed {self.seed}"
            ) from error

    def doings(self) -> list[tuple[int, Callable[[], object]]]:
        """The steps that may happen, and how often each does."""
        return [
            (40, self.change),
            (60, self.pump),
            (20, self.advance),
            (6, self.cut),
            (3, self.damage),
            (2, self.restart_receiver),
            (4, self.reconfigure),
            (2, self.replay_parked),
            (2, self.pause),
            (2, self.flush),
        ]

    def step(self) -> None:
        self.steps += 1
        doings = self.doings()
        self.do(self.rng.choices([doing for _, doing in doings], [weight for weight, _ in doings])[0])

    def do(self, doing: Callable[[], object]) -> None:
        said = doing()
        self.statistics[doing.__name__] += 1
        self.tell(f"{self.steps} at {self.now_us} us: {doing.__name__} {said if said is not None else ''}")
        self.check()

    def tell(self, line: str) -> None:
        self.trace.append(line)
        self.told.update(line.encode())

    @property
    def digest(self) -> str:
        """Stands for the run: what happened, what was drawn, how far every queue came and what every region holds. Not
        for identities, which are the system's random numbers."""
        found = self.told.copy()
        found.update(
            repr(
                (
                    self.rng.getstate(),
                    [(link.name, link.queue.positions(), sorted(link.queue.counts().items())) for link in self.links],
                    [
                        core.lookup(key)
                        for core in [*self.sites.values(), *(each.core for each in self.receivers)]
                        for key in KEYS + SECRET_KEYS + POISON_KEYS
                    ],
                )
            ).encode()
        )
        return found.hexdigest()

    def check(self) -> None:
        for link in self.links:
            link.check()

    # Steps that may happen

    def change(self) -> str:
        site = self.rng.choice(list(self.sites))
        before = [link.queue.positions() for link in self.links]
        count = self.rng.choice(self.change_counts)
        for _ in range(count):
            key = self.rng.choice(KEYS * 4 + SECRET_KEYS + POISON_KEYS)
            core = self.sites[site]
            operation = DESTROY if self.rng.random() < 0.15 else UPDATE if key in core else CREATE
            value = None if operation == DESTROY else f"{site}:{self.steps}:" + "x" * self.rng.choice(self.value_bytes)
            self.put(site, core, operation, key, value)
            before = [
                link.note_change(key, operation, positions) for link, positions in zip(self.links, before, strict=True)
            ]
        return f"{count} at site {site}"

    def put(self, site: int, core: Any, operation: int, key: str, value: str | None) -> None:
        core.change(
            DESTROY if value is None else UPDATE,
            key,
            value,
            origin_=self.local_origin(site),
            timestamp_ms=self.now_us // 1000,
        )

    def local_origin(self, site: int) -> tuple[int, bytes, tuple[int, int, int]]:
        """Its event id counts what this world made: that of the thread would say how many worlds there were before."""
        self.events_made += 1
        return site, b"", (site, 1, self.events_made)

    def pump(self) -> None:
        for link in self.links:
            for n in range(link.dispatchers):
                self.pump_one(link, n)
        for connection in list(self.late):
            connection.pump_receiver(self.now_us)
            if not connection.receiver_open or not len(connection.out):
                self.late.remove(connection)

    def pump_one(self, link: Link, n: int) -> None:
        connection = link.connections[n]
        if connection is None:
            link.connections[n] = connection = Connection(self.rng, link, n, self.now_us)
        try:
            connection.pump(self.now_us)
        except ProtocolError:
            self.give_up(link, n)

    def give_up(self, link: Link, n: int) -> None:
        connection = link.connections[n]
        if connection is None:
            return
        link.sessions[n].disconnected()
        link.connections[n] = None
        connection.out.truncate()
        if (
            connection.receiver_open
            and connection.known is link.remembered.get(link.queue.numbering)
            and self.rng.random() < 0.7
        ):
            self.late.append(connection)

    def advance(self) -> None:
        self.now_us += self.rng.choice((100, 5_000, 60_000))

    def cut(self) -> str:
        link = self.rng.choice(self.links)
        n = self.rng.randrange(link.dispatchers)
        self.give_up(link, n)
        return f"{link.name} dispatcher {n}"

    def damage(self) -> bool:
        link = self.rng.choice(self.links)
        connection = self.rng.choice(link.connections)
        return connection is not None and self.rng.choice((connection.out, connection.back)).damage()

    def restart_receiver(self) -> str:
        receiver, lost = self.rng.choice(self.receivers), self.rng.random() < 0.5
        for link in self.links:
            if link.receiver is receiver:
                self.close_receiver(link)
                if lost:
                    link.forget()
        return f"site {receiver.site}{', memory lost' if lost else ''}"

    def close_receiver(self, link: Link) -> None:
        self.late = [connection for connection in self.late if connection.link is not link]
        for connection in link.connections:
            if connection is not None:
                connection.receiver_open = False  # The dispatcher finds out when it has read what was sent.
                connection.back.truncate()

    def reconfigure(self) -> None:
        link = self.rng.choice(self.links)
        link.configure(self.rng.randrange(link.dispatchers))

    def replay_parked(self) -> int | str:
        link = self.rng.choice(self.links)
        return link.replay_parked()

    def pause(self) -> None:
        self.rng.choice(self.rng.choice(self.links).sessions).pause(self.rng.random() < 0.3)

    def flush(self) -> None:
        self.rng.choice(self.rng.choice(self.links).sessions).flush(self.rng.random() < 0.5)

    # The end

    def end(self) -> None:
        for receiver in self.receivers:
            receiver.poisoned = False
        for link in self.links:
            for session in link.sessions:
                session.pause(False)
                session.configure(1000, -1)
        for round_ in range(2000):
            self.do(self.advance)
            self.do(self.pump)
            self.settle()
            if round_ % 10 == 0:
                for link in self.links:
                    link.replay_parked()
            if not self.late and all(
                not len(link.queue) and not len(link.parked) and not any(s.in_flight for s in link.sessions)
                for link in self.links
            ):
                break
        else:
            must(
                False,
                "the end was never reached: "
                + ", ".join(
                    f"{link.name} holds {len(link.queue)}, parked {len(link.parked)}, in flight "
                    f"{[s.in_flight for s in link.sessions]}"
                    for link in self.links
                ),
            )
        self.check_convergence()

    def settle(self) -> None:
        """Steps that happen in every round of the end as well."""

    def check_convergence(self) -> None:
        """Every receiver holds, of every key, the latest version that any site made."""
        for receiver in self.receivers:
            for key in KEYS + POISON_KEYS:
                versions = [found for core in self.sites.values() if (found := core.lookup(key))]
                if not versions:
                    continue
                latest = max(versions, key=lambda found: found[1:3])
                held = receiver.core.lookup(key)
                must(
                    held == latest,
                    f"site {receiver.site} holds {_short(held)} of {key}, and the latest is {_short(latest)}",
                )
            for link in self.links:
                if (
                    link.receiver is receiver
                    and link.filters
                    and all(other.filters for other in self.links if other.receiver is receiver)
                ):
                    for key in SECRET_KEYS:
                        must(receiver.core.lookup(key) is None, f"site {receiver.site} got the filtered key {key}")


def _short(found: Any) -> str:
    return repr(found)[:80]
