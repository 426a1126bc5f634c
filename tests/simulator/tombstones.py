"""Owns a simulated world of sites that all send to each other, destroy much and remember little: links are down for
long, tombstones are dropped by floors, shrunk and forgotten. No destroyed key comes back at some sites only."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pywan import _core
from pywan.gateway.floors import Floor, QueueFloors, SourceFloors, encode_floors

from .link import DESTROY, KEYS, REGION, UPDATE, Link, Receiver, must
from .world import World

FIRST_MS = 1_000_000_000_000  # When the simulation begins.
FORGOTTEN = 6  # Reason of a parked event that is older than what its region has forgotten.
TOMBSTONE_BYTES = (0, 40, 200, 1 << 20)


class Site(Receiver):
    """A member that sends and receives, with what it knows of the others' floors."""

    def __init__(self, rng: random.Random, site: int):
        super().__init__(site, watched=False)
        self.clock = _core.Clock()
        self.core = _core.RegionCore(REGION, self.clock, site=site, member=site)
        self.sources = SourceFloors(site, None)
        self.tombstone_bytes = rng.choice(TOMBSTONE_BYTES)
        self.out: list[MeshLink] = []


class MeshLink(Link):
    """A queue that tells floors."""

    receiver: Site

    def __init__(self, rng: random.Random, sender: Site, receiver: Site):
        super().__init__(rng, sender.site, receiver)
        self.sender = sender
        # Then its first events may be older than what nobody waited for it with.
        self.is_down = self.was_unknown = rng.random() < 0.15
        self.floors = QueueFloors(sender.site, sender.clock.raise_low())
        # Key, version of what an operator sent again although nobody can say whether it was destroyed.
        self.forced: list[tuple[str, tuple[int, int]]] = []
        if not self.was_unknown:
            self.introduce()
        sender.out.append(self)

    def introduce(self) -> None:
        self.receiver.sources.opened(self.sender.site, str(self.sender.site), self.name, 1)

    def _filter(self, records: list[bytes]) -> list[bool]:
        return [True] * len(records)

    def on_floors(self, data: bytes) -> None:
        self.receiver.sources.receive(self.sender.site, str(self.sender.site), self.name, data)

    def tell(self, low: int, reached: frozenset[int]) -> None:
        """As a sender's housekeeper does."""
        coming = {**self.sender.sources.forwarded(self.receiver.site, reached), self.sender.site: Floor(low, reached)}
        positions = self.queue.positions()
        parked = self.parked.lowest_copied(until_empty=True)
        told = self.floors.look(positions, parked, self.queue.lowest_copied(), coming)
        for session in self.sessions:
            session.tell_floors(encode_floors(told))

    @property
    def forgotten(self) -> list[tuple[str, tuple[int, int]]]:
        """Key, version of the parked events for whose keys the other site cannot say whether they were
        destroyed later.
        """
        found = [
            _core.record_fields(record) for reason, _, record in self.parked.records(1 << 30) if reason == FORGOTTEN
        ]
        return [(fields["key"][1].decode(), (fields["stamp"], fields["stamp_site"])) for fields in found]

    @property
    def forgotten_keys(self) -> set[str]:
        return {key for key, _ in self.forgotten}

    def force_parked(self) -> int | str:
        self.forced += self.forgotten
        return self.replay_parked(force=True)


class TombstonesWorld(World):
    """Every site sends to every other one, or to its neighbours in a line, which pass on what they get."""

    kind = "tombstones"
    value_bytes = (0, 10)
    links: list[MeshLink]
    receivers: list[Site]

    def make(self, watched: bool) -> None:
        rng = self.rng
        # An operator sends again, by force, events that were parked because a site has forgotten.
        self.has_operator = rng.random() < 0.4
        self.destroyed: dict[str, tuple[int, int]] = {}  # The newest version that destroyed a key.
        self.receivers = sites = [Site(rng, site) for site in range(1, rng.choice((3, 4, 5)))]
        is_line = rng.random() < 0.4  # The sites are a line. Otherwise every site sends to every other one.
        for site in sites:
            site.clock.set_time(self.now_ms)
            for other in sites:
                if other is not site and (not is_line or abs(other.site - site.site) == 1):
                    self.links.append(MeshLink(rng, site, other))
            site.core.attach([link.queue for link in site.out])
            self.sites[site.site] = site.core

    @property
    def now_ms(self) -> int:
        return FIRST_MS + self.now_us // 1000

    def doings(self) -> list[tuple[int, Callable[[], object]]]:
        return [
            (40, self.change),
            (60, self.pump),
            (20, self.advance),
            (6, self.cut),
            (2, self.restart_receiver),
            (4, self.reconfigure),
            (3, self.replay_parked),
            (2, self.pause),
            (40, self.keep_tombstones),
            (4, self.begin_or_end_outage),
            *([(2, self.force_parked)] if self.has_operator else []),
        ]

    def change(self) -> str:
        number, count = self.rng.choice(list(self.sites)), self.rng.choice(self.change_counts)
        site = self.receivers[number - 1]
        site.clock.set_time(self.now_ms)
        for _ in range(count):
            key = self.rng.choice(KEYS)
            before = [link.queue.positions() for link in site.out]
            operation = DESTROY if key in site.core and self.rng.random() < 0.6 else UPDATE
            value = (
                None if operation == DESTROY else f"{number}:{self.steps}:" + "x" * self.rng.choice(self.value_bytes)
            )
            site.core.change(operation, key, value, None, (), origin_=self.local_origin(number))
            if operation == DESTROY:
                self.destroyed[key] = max(site.core.lookup(key)[1:3], self.destroyed.get(key, (0, 0)))
            for link, positions in zip(site.out, before, strict=True):
                link.note_change(key, operation, positions)
        return f"{count} at site {number}"

    def force_parked(self) -> str:
        link = self.rng.choice(self.links)
        return f"{link.name}: {link.force_parked()}"

    def begin_or_end_outage(self) -> str:
        link = self.rng.choice(self.links)
        link.is_down = not link.is_down and self.rng.random() < 0.7
        for n in range(link.dispatchers if link.is_down else 0):
            self.give_up(link, n)
        return f"{link.name} is {'down' if link.is_down else 'up'}"

    def pump_one(self, link: MeshLink, n: int) -> None:
        if not link.is_down:
            link.introduce()  # As every member that opens a connection does.
            super().pump_one(link, n)

    def keep_tombstones(self) -> None:
        """As a member's housekeeper does. Tombstones are kept for no age here."""
        for site in self.receivers:
            site.clock.set_time(self.now_ms)
            low = site.clock.raise_low()
            site.core.fix_stamps()
            site.sources.begin_look()
            reached = frozenset(link.receiver.site for link in site.out)
            for link in site.out:
                link.tell(low, reached)
            site.core.keep_tombstones(min(low, site.sources.lowest()[0]), 1 << 60, site.tombstone_bytes)

    # The end

    def end(self) -> None:
        for link in self.links:
            link.is_down = False
            for session in link.sessions:
                session.pause(False)
                session.configure(1000, -1)
        for round_ in range(2000):
            self.do(self.advance)
            self.do(self.pump)
            if round_ in (50, 100):
                for link in self.links:
                    link.replay_parked()
            if round_ == 150 and self.has_operator:
                for link in self.links:
                    link.force_parked()
            if (
                round_ > (200 if self.has_operator else 100)
                and not self.late
                and not any(len(link.queue) or any(s.in_flight for s in link.sessions) for link in self.links)
            ):
                break
        else:
            must(
                False,
                "the end was never reached: "
                + ", ".join(f"{link.name} holds {len(link.queue)}" for link in self.links),
            )
        self.check_convergence()

    def check_convergence(self) -> None:
        """All sites hold the same of a key, or an event of it is parked, since nobody can say whether the key was
        destroyed later; or an operator sent it again by force, and then it was applied where it was sent to."""
        forgotten = {key for link in self.links for key in link.forgotten_keys}
        must(not forgotten or not self.has_operator, f"{forgotten} are parked although they were sent by force")
        for link in self.links:
            for key, version in link.forced:
                found = link.receiver.core.lookup(key)
                must(
                    (found is not None and found[1:3] >= version) or self.destroyed.get(key, (0, 0)) >= version,
                    f"site {link.receiver.site} holds {found} of {key}, and was sent {version} by force",
                )
                forgotten.add(key)
        self.statistics["events sent by force"] += sum(len(link.forced) for link in self.links)
        for link in self.links:
            if not any(other.was_unknown for other in self.links) and link.receiver.tombstone_bytes == max(
                TOMBSTONE_BYTES
            ):
                must(
                    not link.forgotten_keys,
                    (
                        f"{link.name} parks {link.forgotten_keys}, and its receiver has waited for every sender and "
                        "has room for all tombstones"
                    ),
                )
        for key in KEYS:
            held = {site: _live(core.lookup(key)) for site, core in self.sites.items()}
            must(
                key in forgotten or len(set(held.values())) == 1,
                f"sites differ in {key}, and nothing of it is parked: {held}",
            )
        self.statistics["keys parked at the end"] += len(forgotten)


def _live(found: Any) -> Any:
    return found[:3] if found and found[3] else None
