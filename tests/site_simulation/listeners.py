"""Owns a listener of a region at one member of a simulated site: how fast it is, what it is told, what it writes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

from pywan import _core
from pywan.coordination.tables import Incarnation

from .client import Client
from .member import Member, WatchedChangelog
from .simulation import MS

if TYPE_CHECKING:
    from .world import SiteWorld

LOOK_US = 10 * MS  # A listener that has heard everything looks so often.


class Told(NamedTuple):
    """A put of which listeners were told. Values are unique."""

    member: Incarnation
    region: str
    key: str
    value: int
    before: int | None
    stamp: int
    may_repeat: bool


class Listener:
    """Hears one change after the other, as the thread of `region/listening` does, and waits for each put that it makes.

    `heard` gets each change, and returns the region, the key and the value of a put that the listener makes then.
    """

    def __init__(
        self,
        world: SiteWorld,
        member: Member,
        region: str,
        changelog: WatchedChangelog,
        pace_us: int,
        received: Callable[[Told], tuple[str, str, int] | None],
        has_put: Callable[[str, str, int, str], object],
    ) -> None:
        self.member, self.region, self.changelog = member, region, changelog
        self._world, self._pace_us, self._received, self._has_put = world, pace_us, received, has_put
        self._stands_until_us = 0
        self.has_all = False  # There was nothing to hear when it looked last.
        self.values: dict[str, int] = {}  # Of each key: what it was told last.
        self.stamps: dict[str, int] = {}
        self._look_after(LOOK_US)

    def stand_still(self, for_us: int) -> None:
        """The listener takes so long for the change that it hears."""
        self._stands_until_us = self._world.simulation.now_us + for_us

    @property
    def is_still(self) -> bool:
        return self._stands_until_us > self._world.simulation.now_us

    def _look_after(self, pause_us: int) -> None:
        self._world.simulation.after(pause_us, lambda: self.member.do(self._look))

    def _look(self) -> None:
        if self.is_still:
            self._look_after(self._stands_until_us - self._world.simulation.now_us)
            return
        happened = self.changelog.next_notification(0)
        self.has_all = happened is None
        if happened is None:
            self._look_after(LOOK_US)
            return
        operation, old, record, may_repeat = happened
        fields = _core.record_fields(record)
        value = _number(fields["value"])
        if operation == "destroy" or value is None:
            self._go_on("")
            return
        key = str(_core.decode_object(*fields["key"]))
        told = Told(self.member.me, self.region, key, value, _number(old), fields["stamp"], may_repeat)
        put = self._received(told)
        if put is None:
            self._go_on("")
            return
        region, of, number = put

        def over(what: str, _: Hashable) -> None:
            self._has_put(region, of, number, what)
            self._go_on(what)

        Client(self.member, region, of, "put", (number,), (self.member.member_id, number, 1), over)

    def _go_on(self, _: str) -> None:
        self._look_after(self._world.simulation.rng.randrange(self._pace_us + 1))


class Waiting:
    """The changes that wait for the listeners of a region at one member. Changes that the member drops are named here,
    and no other change is excused."""

    def __init__(self, world: SiteWorld, member: Member, region: str, changelog: WatchedChangelog) -> None:
        self.member, self.region, self._world, self._changelog = member, region, world, changelog
        self.dropped: set[tuple[str, str, int]] = set()  # Puts: region, key and value.
        self._count = 0  # How many changes were dropped when it looked last.
        # By bucket and sequence: the changes that waited then; None: a change that is no put.
        self._waits: dict[int, dict[int, tuple[str, str, int] | None]] = {}

    def look(self) -> None:
        """The member has worked."""
        count = self._changelog.notifications_dropped
        gone = [change for number in range(self._world.keys.buckets) for change in self._gone(number)]
        if count != self._count:
            self._world.must(
                len(gone) >= count - self._count,
                f"{count - self._count} changes of {self.region} are dropped at {self.member.me}, and {len(gone)} left",
            )
            self.dropped.update(each for each in gone if each is not None)
        self._count = count

    def _gone(self, bucket: int) -> list[tuple[str, str, int] | None]:
        """Returns the changes of a bucket that waited, and do not wait any more: they were told here or elsewhere, or
        dropped. No bucket begins anew in these worlds."""
        before = self._waits.get(bucket, {})
        sequences, records = self._changelog.heard_waits(bucket, max(before, default=0))
        new = sequences[len(sequences) - len(records) :]
        self._waits[bucket] = {each: before[each] for each in sequences if each in before}
        self._waits[bucket].update({each: self._put_in(record) for each, record in zip(new, records, strict=True)})
        return [change for sequence, change in before.items() if sequence not in self._waits[bucket]]

    def _put_in(self, record: bytes) -> tuple[str, str, int] | None:
        fields = _core.record_fields(record)
        value = _number(fields["value"])
        return None if value is None else (self.region, str(_core.decode_object(*fields["key"])), value)


def _number(form_and_data: tuple[int, bytes] | None) -> int | None:
    if form_and_data is None:
        return None
    value = _core.decode_object(*form_and_data)
    return None if value is None else int(value)
