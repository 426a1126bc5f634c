"""Owns the choice of the dispatching member for each bucket of shared regions, and tells the choice to the queues of
this member (docs/decisions/0087, 0092)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from pywan.coordination.tables import ROLE_PREFIX, Bucket, Incarnation, MemberProfile
from pywan.member.older_events import Lack


class Sender(Protocol):
    """The required parts of a SenderCore."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> Any: ...
    @property
    def attributes(self) -> Any: ...
    def note_runs_on_others(self, runs: bool) -> bool: ...


def running(members: Iterable[MemberProfile]) -> dict[str, set[Incarnation]]:
    """Returns the members that run a sender, by the sender's id."""
    found: dict[str, set[Incarnation]] = {}
    for member in members:
        for region, weight in member.hosting:
            if weight > 0 and region.startswith(ROLE_PREFIX):
                found.setdefault(region.removeprefix(ROLE_PREFIX), set()).add(member.incarnation)
    return found


def members_without(
    sender: str, region: str, members: Iterable[MemberProfile], buckets: Iterable[Bucket]
) -> dict[str, int]:
    """Returns the members that store a region without one of the region's senders, with the number of led buckets.
    Events of these buckets enter no queue of the sender."""
    without = {}
    for member in members:
        hosting = dict(member.hosting)
        if hosting.get(region) and f"{ROLE_PREFIX}{sender}" not in hosting:
            without[member.incarnation] = 0
    for bucket in buckets:
        if bucket.primary in without:
            without[bucket.primary] += 1
    return {member.name: count for member, count in sorted(without.items())}


def sender_of(bucket: Bucket, primary: Incarnation | None, runs: Collection[Incarnation]) -> Incarnation | None:
    """Returns the member that sends the events of a bucket for a serial sender. The result is the first in-sync member
    that runs the sender, in this order: primary of the sender, primary of the bucket, remaining members. None: no
    in-sync member runs the sender.

    Args:
        bucket: The bucket with its in-sync replicas.
        primary: The primary of the sender.
        runs: The members that run the sender.
    """
    first = (primary, bucket.primary)
    return next((each for each in (*first, *sorted(bucket.isr)) if each in runs and each in bucket.isr), None)


class Feeding:
    """The caller holds the lock of the member's shared regions for every call."""

    def __init__(
        self, primary: Callable[[str], Incarnation | None], lacks: Callable[[str, Sender], object] = lambda *_: None
    ) -> None:
        """`primary`: returns the primary of a serial sender, by id. `lacks`: called with a region and a sender of this
        member whose queue has a gap, if other members have the events; the function returns at once."""
        self._primary, self._lacks = primary, lacks
        self._senders: dict[str, dict[str, Sender]] = {}  # By region and id: the senders of the region.
        self._runs: dict[str, set[Incarnation]] = {}  # By id.

    def fed(self, region: str, senders: Iterable[Sender]) -> None:
        """The given senders receive the region's events from now on. The caller then calls `see` for all buckets of the
        region."""
        self._senders[region] = {each.id: each for each in senders}
        self._set_runners(self._senders[region])

    def forget(self, region: str) -> None:
        self._senders.pop(region, None)

    @property
    def ids(self) -> set[str]:
        """The ids of the regions' senders."""
        return {id for senders in self._senders.values() for id in senders}

    def see_members(self, members: Iterable[MemberProfile]) -> set[str]:
        """Adopts the members of the view. Returns the ids of the senders with other running members than before."""
        before, self._runs = self._runs, running(members)
        ids = before.keys() | self._runs.keys()
        moved = {id for id in ids if before.get(id) != self._runs.get(id)}
        for senders in self._senders.values():
            self._set_runners({id: each for id, each in senders.items() if id in moved})
        return moved

    def _set_runners(self, senders: Mapping[str, Sender]) -> None:
        """Tells each queue which members run the sender. Only these members can announce removals from the queue."""
        for id, sender in senders.items():
            sender.queue.set_runners([each.member_id for each in self._runs.get(id, ())])

    def note_runs_on_others(self, ids: Collection[str], me: Incarnation) -> list[Sender]:
        """Tells serial senders of this member whether another member runs the same sender. Returns the senders that now
        begin or stop to receive events."""
        found = {each.id: each for senders in self._senders.values() for each in senders.values() if each.id in ids}
        return [
            each
            for each in found.values()
            if not each.attributes.parallel and each.note_runs_on_others(bool(self._runs.get(each.id, set()) - {me}))
        ]

    def regions_of(self, ids: Collection[str]) -> set[str]:
        """Returns the regions with one or more of the given senders."""
        return {region for region, senders in self._senders.items() if senders.keys() & ids}

    def see(self, me: Incarnation, decided: Mapping[str, Mapping[int, Bucket | None]]) -> None:
        """Tells the queues of shared regions, by region, whether this member sends the events of the given buckets. A
        queue gets all buckets in one call, so that events put by one thread into several buckets begin to leave
        together."""
        queues: dict[str, Any] = {}
        leads: dict[tuple[str, bool], list[int]] = {}
        for region, buckets in decided.items():
            for id, sender in self._senders.get(region, {}).items():
                first = sender.queue.run_of(region)
                if first is None:  # The sender was attached a moment ago, and a call of `fed` follows.
                    continue
                queues[id] = sender.queue
                for number, bucket in buckets.items():
                    sends = bucket is not None and self._sends(sender, bucket, me)
                    leads.setdefault((id, sends), []).append(first + number)
        for (id, sends), partitions in leads.items():
            queues[id].lead(partitions, sends)  # Buckets with a gap do not lead.
        for region, buckets in decided.items():
            for id, sender in self._senders.get(region, {}).items():
                if id in queues and self.lacking(region, id, sender.queue, buckets):
                    self._lacks(region, sender)

    def _sends(self, sender: Sender, bucket: Bucket, me: Incarnation) -> bool:
        if sender.attributes.parallel:
            return bucket.primary == me
        return sender_of(bucket, self._primary(sender.id), self._runs.get(sender.id, set())) == me

    def lacking(self, region: str, id: str, queue: Any, decided: Mapping[int, Bucket | None]) -> list[Lack]:
        """Returns the gaps of a sender's queue in the given buckets. Empty: no gap, or the sender has another queue
        now."""
        sender = self._senders.get(region, {}).get(id)
        first = None if sender is None or sender.queue is not queue else queue.run_of(region)
        if sender is None or first is None or not decided:
            return []
        through = sender.queue.lacking(first, max(decided) + 1)
        return [
            Lack(number, bucket, through[number])
            for number, bucket in sorted(decided.items())
            if bucket is not None and through[number] != 0
        ]

    def kept_by_others(self, id: str, me: Incarnation, decided: Callable[[str], Mapping[int, Bucket]]) -> int:
        """Returns how many events of a sender's queue are at a second member too. `decided`: returns the metadata
        records of a region's buckets."""
        kept = 0
        for region, senders in self._senders.items():
            sender = senders.get(id)
            first = None if sender is None else sender.queue.run_of(region)
            buckets = decided(region)
            if sender is None or first is None or not buckets:
                continue
            counts = sender.queue.run_events(first, max(buckets) + 1)
            kept += sum(counts[number] for number, bucket in buckets.items() if set(bucket.isr) - {me})
        return kept
