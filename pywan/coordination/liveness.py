"""Owns what a coordinator knows of the life of members: leases, when each was heard, probes, who is down, given up, or
proved to be gone.

Nothing of this is stored. A coordinator that starts again gives each member that it knows one lease to speak in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pywan.coordination.decisions import Decisions
from pywan.coordination.outbox import Outbox
from pywan.coordination.tables import DRIFT_DIVISOR, Incarnation, Reach


class Liveness:
    """A part of the coordinator, which tells it of all that happens. It decides nothing about buckets.

    A member is *there* while it has a lease and no probe of it has failed. It is *down* when a probe has failed, though
    its lease may still run. It is *expired* when its lease is over, and a set of copies may still name it. It is *gone*
    when its end is proved: then nothing is acknowledged there any more.
    """

    def __init__(self, site: Decisions, outbox: Outbox, *, member_timeout_us: int, machine: str, now_us: int) -> None:
        """`machine`: names the machine of the coordinator, as profiles name those of members."""
        self._site, self._outbox, self._machine = site, outbox, machine
        self.member_timeout_us = member_timeout_us
        self.wait_us = member_timeout_us + member_timeout_us // DRIFT_DIVISOR  # The lease as the coordinator counts it.
        self._lease_until = dict.fromkeys(site.members, now_us + self.wait_us)
        self._heard_us = dict.fromkeys(site.members, now_us)  # When the member was heard last.
        self._probing: dict[Incarnation, int] = {}  # Who is probed, and since when.
        self._found: dict[Incarnation, Reach] = {}  # What the last probe found, if the member was not heard since.
        self._down: set[Incarnation] = set()
        self._expired: dict[Incarnation, int] = {}  # And when to probe them again.
        # Profiles of later incarnations keep the proof that earlier ones are gone.
        self._gone = {
            each
            for each in site.members
            for later in site.members.values()
            if later.incarnation.name == each.name and each.member_id in later.before
        }
        # By member: which others it reaches over its connections, as it said last.
        self._reaches: dict[Incarnation, frozenset[Incarnation]] = {}
        self._newcomer_us = -1  # When anybody asked last to be taken in.

    # --- questions ---

    def knows(self, member: Incarnation) -> bool:
        """Whether requests of the member count."""
        return member in self._site.members and member not in self._expired

    def is_there(self, member: Incarnation) -> bool:
        return self.knows(member) and member not in self._down

    def is_down(self, member: Incarnation) -> bool:
        return member in self._down

    def is_expired(self, member: Incarnation) -> bool:
        return member in self._expired

    def is_gone(self, member: Incarnation) -> bool:
        return member in self._gone

    def is_given_up(self, member: Incarnation) -> bool:
        """Whether the member has to begin anew. One whose lease was over goes on while a set of copies names it: the
        bucket may have no other copies than those that were silent together."""
        if member not in self._site.members:
            return True
        if member not in self._expired:
            return False
        return not any(member in (*each.in_sync, *each.leaving) for _, each in self._site.naming(member))

    @property
    def expired(self) -> frozenset[Incarnation]:
        return frozenset(self._expired)

    @property
    def not_there(self) -> list[Incarnation]:
        """Those that are down or expired."""
        return sorted(self._down | self._expired.keys())

    def by_name(self) -> dict[str, Incarnation]:
        """Returns the members whose leases are not over, by their names."""
        return {each.name: each for each in self._site.members if each not in self._expired}

    def lease_until_us(self, member: Incarnation) -> int | None:
        """None: it has no lease."""
        return self._lease_until.get(member)

    def silent_us(self, member: Incarnation, now_us: int) -> int:
        """For how long the member was not heard."""
        return now_us - self._heard_us.get(member, now_us)

    def has_heard_others(self, member: Incarnation, since_us: int) -> bool:
        """Whether a member was heard since then that shows that this coordinator is not cut off itself: one of another
        machine, if there are any beside `member`."""
        others = [each for each in self._site.members if each != member and each not in self._gone]
        elsewhere = [each for each in others if self._site.members[each].machine not in ("", self._machine)]
        if not elsewhere and self._newcomer_us >= since_us:
            return True
        return any(self._heard_us.get(each, -1) >= since_us for each in elsewhere or others)

    # --- what happens ---

    def hear(self, member: Incarnation, now_us: int) -> None:
        """The member gets a lease."""
        self._lease_until[member] = now_us + self.wait_us
        self._heard_us[member] = now_us
        self._found.pop(member, None)

    def hear_reached(self, member: Incarnation, reaches: Iterable[Incarnation]) -> None:
        self._reaches[member] = frozenset(reaches)

    def hear_newcomer(self, now_us: int) -> None:
        """Somebody asks to be taken in."""
        self._newcomer_us = now_us

    def take_in(self, member: Incarnation) -> None:
        """It is not expired any more."""
        self._expired.pop(member, None)

    def rise(self, member: Incarnation) -> None:
        """It is not down any more."""
        self._down.discard(member)

    def go_down(self, member: Incarnation) -> None:
        self._down.add(member)

    def end(self, member: Incarnation) -> None:
        """It is proved that the member is gone."""
        self._gone.add(member)

    def give_up(self, member: Incarnation, now_us: int) -> None:
        """Its lease is over."""
        self._lease_until.pop(member, None)
        self._reaches.pop(member, None)
        self._down.discard(member)
        self._expired[member] = now_us + self.member_timeout_us

    def forget(self, member: Incarnation) -> None:
        self._gone.discard(member)
        for record in (self._probing, self._heard_us, self._expired, self._found):
            record.pop(member, None)

    # --- probes ---

    def suspect(self, member: Incarnation, now_us: int) -> None:
        """Has the member probed, unless that is under way, or is known to be of no use."""
        if member in self._site.members and member not in self._down and member not in self._probing:
            self._probing[member] = now_us
            self._outbox.probe(self._site.members[member])

    def look_anew(self, member: Incarnation, now_us: int) -> None:
        """As `suspect`, whatever is known. What an earlier probe found counts no more."""
        self._found.pop(member, None)
        if member in self._site.members and member not in self._probing:
            self._probing[member] = now_us
            self._outbox.probe(self._site.members[member])

    def end_probe(self, member: Incarnation) -> int | None:
        """Returns when the probe began. None: none was under way."""
        return self._probing.pop(member, None)

    def hear_found(self, member: Incarnation, reach: Reach) -> None:
        """A probe has found that."""
        if member in self._site.members:
            self._found[member] = reach

    def found(self, member: Incarnation) -> Reach | None:
        """What the last probe of the member found. None: it was heard since, or is being probed for the first time."""
        return self._found.get(member)

    def probe_later(self, member: Incarnation, now_us: int) -> None:
        """An expired member was probed."""
        self._expired[member] = now_us + self.member_timeout_us

    # --- time ---

    def wait_anew(self, now_us: int) -> None:
        """The coordinator was stopped for a while, and has not heard what members said meanwhile. None of them is given
        up before it had time to speak."""
        for member, until in self._lease_until.items():
            self._lease_until[member] = max(until, now_us + self.wait_us)

    def end_leases(self, now_us: int) -> Iterator[Incarnation]:
        """Yields each member whose lease is over, to be given up before the next one is looked at.

        A lease goes on for a moment if others reach the member, or if it is this coordinator that is cut off. A lease
        that an earlier run gave is over in any case: nobody was heard by this run.
        """
        soon_us = self.member_timeout_us // 4
        for member, until in list(self._lease_until.items()):
            if until > now_us:
                continue
            if self._is_reached(member, now_us) or not self.has_heard_others(member, now_us - soon_us):
                self._lease_until[member] = now_us + soon_us
            else:
                yield member

    def _is_reached(self, member: Incarnation, now_us: int) -> bool:
        return any(
            member in reached and self._heard_us.get(each, -1) >= now_us - self.member_timeout_us
            for each, reached in self._reaches.items()
        )

    def due_again(self, now_us: int) -> Iterator[Incarnation]:
        """Yields each expired member that is to be looked at again."""
        for member, due in list(self._expired.items()):
            if due <= now_us:
                self.probe_later(member, now_us)
                yield member

    def times_us(self) -> Iterator[int]:
        """When something is due."""
        yield from self._lease_until.values()
        yield from self._expired.values()
