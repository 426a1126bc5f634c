"""The coordinator's knowledge of the liveness of members: leases, last contacts, probes, and which members are suspect,
expired or dead.

Nothing of this state is stored. A coordinator that starts again gives each known member one lease to make contact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pywan.coordination.decisions import Decisions
from pywan.coordination.outbox import Outbox
from pywan.coordination.tables import DRIFT_DIVISOR, Incarnation, Reach


class Liveness:
    """A part of the coordinator. The coordinator passes all events to this class. The class decides nothing about
    buckets.

    A member is *there* (alive) while it has a lease and no probe of the member has failed. A member is *down* (suspect)
    when a probe has failed, though the lease may still run. A member is *expired* when its lease is over, and an ISR
    may still name the member. A member is *gone* (dead) when its end is proved: then the member acknowledges nothing
    any more.
    """

    def __init__(self, site: Decisions, outbox: Outbox, *, member_timeout_us: int, machine: str, now_us: int) -> None:
        """`machine`: names the machine of the coordinator, as profiles name the machines of members."""
        self._site, self._outbox, self._machine = site, outbox, machine
        self.member_timeout_us = member_timeout_us
        self.wait_us = member_timeout_us + member_timeout_us // DRIFT_DIVISOR  # The lease as the coordinator counts it.
        self._lease_until = dict.fromkeys(site.members, now_us + self.wait_us)
        self._received_us = dict.fromkeys(site.members, now_us)  # The last contact of each member.
        self._probing: dict[Incarnation, int] = {}  # Members with a probe under way, and the start of the probe.
        # The result of the last probe, if the member was not in contact since.
        self._found: dict[Incarnation, Reach] = {}
        self._down: set[Incarnation] = set()
        self._expired: dict[Incarnation, int] = {}  # Expired members, and the time of the next probe.
        # Profiles of later incarnations keep the proof that earlier incarnations have ended.
        self._gone = {
            each
            for each in site.members
            for later in site.members.values()
            if later.incarnation.name == each.name and each.member_id in later.before
        }
        # By member: the members that it reaches over its connections, as its last poll said.
        self._reaches: dict[Incarnation, frozenset[Incarnation]] = {}
        self._newcomer_us = -1  # The last time at which any member asked for admission.

    # --- questions ---

    def knows(self, member: Incarnation) -> bool:
        """Whether the coordinator processes requests of the member."""
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
        """Whether the member has to begin anew. A member whose lease was over goes on while an ISR names the member.
        The reason: the bucket may have no replicas except the group of members that was unreachable together."""
        if member not in self._site.members:
            return True
        if member not in self._expired:
            return False
        return not any(member in (*each.isr, *each.leaving) for _, each in self._site.naming(member))

    @property
    def expired(self) -> frozenset[Incarnation]:
        return frozenset(self._expired)

    @property
    def not_there(self) -> list[Incarnation]:
        """The members that are down or expired."""
        return sorted(self._down | self._expired.keys())

    def by_name(self) -> dict[str, Incarnation]:
        """Returns the members whose leases are not over, by their names."""
        return {each.name: each for each in self._site.members if each not in self._expired}

    def lease_until_us(self, member: Incarnation) -> int | None:
        """Returns the end of the member's lease. None: the member has no lease."""
        return self._lease_until.get(member)

    def since_poll_us(self, member: Incarnation, now_us: int) -> int:
        """The time since the last contact of the member."""
        return now_us - self._received_us.get(member, now_us)

    def has_received_from_others(self, member: Incarnation, since_us: int) -> bool:
        """Whether a contact since `since_us` shows that this coordinator is not cut off itself. The contact has to be
        of a member of another machine, if any exists beside `member`."""
        others = [each for each in self._site.members if each != member and each not in self._gone]
        elsewhere = [each for each in others if self._site.members[each].machine not in ("", self._machine)]
        if not elsewhere and self._newcomer_us >= since_us:
            return True
        return any(self._received_us.get(each, -1) >= since_us for each in elsewhere or others)

    # --- events ---

    def receive(self, member: Incarnation, now_us: int) -> None:
        """The member gets a lease."""
        self._lease_until[member] = now_us + self.wait_us
        self._received_us[member] = now_us
        self._found.pop(member, None)

    def receive_reached(self, member: Incarnation, reaches: Iterable[Incarnation]) -> None:
        self._reaches[member] = frozenset(reaches)

    def receive_newcomer(self, now_us: int) -> None:
        """A member asks for admission."""
        self._newcomer_us = now_us

    def take_in(self, member: Incarnation) -> None:
        """The member is no longer expired."""
        self._expired.pop(member, None)

    def rise(self, member: Incarnation) -> None:
        """The member is no longer down."""
        self._down.discard(member)

    def go_down(self, member: Incarnation) -> None:
        self._down.add(member)

    def end(self, member: Incarnation) -> None:
        """The end of the member is proved."""
        self._gone.add(member)

    def give_up(self, member: Incarnation, now_us: int) -> None:
        """The lease of the member is over."""
        self._lease_until.pop(member, None)
        self._reaches.pop(member, None)
        self._down.discard(member)
        self._expired[member] = now_us + self.member_timeout_us

    def forget(self, member: Incarnation) -> None:
        self._gone.discard(member)
        for record in (self._probing, self._received_us, self._expired, self._found):
            record.pop(member, None)

    # --- probes ---

    def suspect(self, member: Incarnation, now_us: int) -> None:
        """Probes the member, unless a probe is under way, or is known to be of no use."""
        if member in self._site.members and member not in self._down and member not in self._probing:
            self._probing[member] = now_us
            self._outbox.probe(self._site.members[member])

    def look_anew(self, member: Incarnation, now_us: int) -> None:
        """As `suspect`, also for a member that is down. The result of an earlier probe is dropped."""
        self._found.pop(member, None)
        if member in self._site.members and member not in self._probing:
            self._probing[member] = now_us
            self._outbox.probe(self._site.members[member])

    def end_probe(self, member: Incarnation) -> int | None:
        """Returns when the probe began. None: no probe was under way."""
        return self._probing.pop(member, None)

    def receive_probe_result(self, member: Incarnation, reach: Reach) -> None:
        """Stores the result of a probe."""
        if member in self._site.members:
            self._found[member] = reach

    def found(self, member: Incarnation) -> Reach | None:
        """The result of the last probe of the member. None: the member was in contact since, or no probe has ended
        yet."""
        return self._found.get(member)

    def probe_later(self, member: Incarnation, now_us: int) -> None:
        """Plans the next probe of an expired member."""
        self._expired[member] = now_us + self.member_timeout_us

    # --- time ---

    def wait_anew(self, now_us: int) -> None:
        """The coordinator was stopped for a while, and has missed messages of members. No member is given up before the
        member had time for a contact."""
        for member, until in self._lease_until.items():
            self._lease_until[member] = max(until, now_us + self.wait_us)

    def end_leases(self, now_us: int) -> Iterator[Incarnation]:
        """Yields each member whose lease is over. The caller gives the member up before the next one is examined.

        A lease goes on for a moment if other members reach the member, or if this coordinator itself is cut off. A
        lease from an earlier controller epoch is over in any case: no member was in contact in this controller epoch.
        """
        soon_us = self.member_timeout_us // 4
        for member, until in list(self._lease_until.items()):
            if until > now_us:
                continue
            if self._is_reached(member, now_us) or not self.has_received_from_others(member, now_us - soon_us):
                self._lease_until[member] = now_us + soon_us
            else:
                yield member

    def _is_reached(self, member: Incarnation, now_us: int) -> bool:
        return any(
            member in reached and self._received_us.get(each, -1) >= now_us - self.member_timeout_us
            for each, reached in self._reaches.items()
        )

    def due_again(self, now_us: int) -> Iterator[Incarnation]:
        """Yields each expired member that is due for another probe."""
        for member, due in list(self._expired.items()):
            if due <= now_us:
                self.probe_later(member, now_us)
                yield member

    def times_us(self) -> Iterator[int]:
        """The times at which work is due."""
        yield from self._lease_until.values()
        yield from self._expired.values()
