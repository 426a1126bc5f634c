"""Owns the threads of a simulated site that wait for one put before they make the next one, and the order in which a
sender with order-policy=thread lets these leave."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from pywan import _core
from pywan.config.attributes import order_of
from pywan.coordination.actions import Store
from pywan.coordination.tables import BucketKey, Incarnation

from .client import ANSWERED
from .shown import number_in
from .simulation import MS

if TYPE_CHECKING:
    from .member import Member
    from .senders import SimulatedSender
    from .world import SiteWorld

PUTS = 6  # Of one thread, one after the other.


class _Put(NamedTuple):
    thread: int
    place: int  # Among the puts of its thread.
    bucket: BucketKey
    called_us: int


class Threads:
    """An earlier put of a thread leaves a member before a later one, if the member was in sync with both buckets when
    the thread made them, and sends both (docs/decisions/0094)."""

    def __init__(self, world: SiteWorld) -> None:
        self._world = world
        self._begun = 0
        self._puts: dict[int, _Put] = {}  # By the value that was put.
        # Since when each member is among the in-sync replicas, or holds the queued events with them; and in which
        # timeline.
        self._since: defaultdict[BucketKey, dict[Incarnation, int]] = defaultdict(dict)
        self._timelines: dict[BucketKey, int] = {}
        self._shared_us: dict[tuple[Member, str], int] = {}  # When each member began to share each region.
        self._peeked: dict[tuple[Member, str, int], int] = {}  # By sender and partition: how far it was seen.

    def begin(self) -> None:
        """A thread of some member begins to put into keys of all buckets and regions."""
        world, rng = self._world, self._world.simulation.rng
        there = [each for each in world.members.values() if not each.is_dead and len(each.regions)]
        if not there:
            return
        member = rng.choice(there)
        self._begun += 1
        thread = self._begun
        world.statistics["threads of several puts"] += 1

        def put(place: int) -> None:
            region, of = rng.choice(world.regions).name, rng.choice(world.keys.names)
            if region not in member.regions or member.is_dead:
                return
            called_us = world.simulation.now_us

            def told(what: str) -> None:
                if what == ANSWERED and place < PUTS:
                    world.simulation.after(rng.randrange(2 * MS), lambda: put(place + 1))

            value = world.call(member, region, of, ("put",), told)
            self._puts[value] = _Put(thread, place, BucketKey(region, world.keys.bucket_of(of)), called_us)

        put(1)

    def decided(self, store: Store) -> None:
        """Decisions as they are stored."""
        now_us = self._world.simulation.now_us
        for key, bucket in store.buckets:
            if bucket is None or self._timelines.get(key) != bucket.timeline:
                self._since[key].clear()
            if bucket is not None:
                self._timelines[key] = bucket.timeline
                before = self._since[key]
                self._since[key] = {each: before.get(each, now_us) for each in bucket.isr}

    def shares(self, member: Member, region: str) -> None:
        """A member begins to share a region: what it had queued of it alone moves into the streams of its buckets, and
        comes in between there."""
        self._shared_us[member, region] = self._world.simulation.now_us

    def sent(self, sender: SimulatedSender) -> None:
        """A dispatcher has sent something."""
        if order_of(sender.attributes) != "thread" or sender.attributes.enable_batch_conflation:
            return
        positions = sender.queue.positions()
        left: dict[int, _Put] = {}  # Of each thread: the last one of its puts that leaves now.
        stays: dict[int, _Put] = {}  # The first one that does not leave yet.
        led = {partition: region for partition, region, _, _, leads, _ in sender.queue.streams() if leads}
        before = {each: self._seen(sender, each, positions[each]) for each in led}
        for partition, sequence, record in sender.queue.records(1 << 30):
            put = self._put_of(sender, record) if partition in led else None
            if put is None:
                continue
            if sequence > positions[partition][1]:
                known = stays.get(put.thread, put)
                stays[put.thread] = min(known, put)
            elif sequence > before[partition]:
                left[put.thread] = max(left.get(put.thread, put), put)
        for thread, last in left.items():
            first = stays.get(thread, last)
            self._world.must(
                first.place >= last.place,
                f"{sender.member.me} sends put {last.place} of a thread for {sender.id}, into {last.bucket}, and put"
                f" {first.place}, into {first.bucket}, stays in its queue: it leaves out of order",
            )
            self._world.statistics["puts of threads that left"] += 1
            self._world.statistics["puts of threads that wait behind earlier ones"] += first.place > last.place

    def _seen(self, sender: SimulatedSender, partition: int, position: tuple[int, int, int]) -> int:
        """How far a partition had left when it was looked at last. It goes back when a connection breaks."""
        removed, peeked, _ = position
        place = sender.member, sender.id, partition
        before, self._peeked[place] = self._peeked.get(place, 0), peeked
        return removed if before > peeked else max(before, removed)

    def _put_of(self, sender: SimulatedSender, record: bytes) -> _Put | None:
        """The put of a thread that made an event, if the member was in sync with its bucket then, and ever since."""
        value: Any = _core.record_fields(record)["value"]
        number = None if value is None else number_in(_core.decode_object(*value))
        put = None if number is None else self._puts.get(number)
        if put is None or put.bucket in self._world.watch.unchecked:
            return None
        shared_us = self._shared_us.get((sender.member, put.bucket.region))
        since_us = self._since[put.bucket].get(sender.member.me)
        is_live = shared_us is not None and since_us is not None and max(shared_us, since_us) < put.called_us
        return put if is_live else None
