"""Owns writers of a simulated site that put one value after the other, and what must be there of each at the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from .client import ANSWERED, AT_REPLICA, FAILED, Client
from .member import Member
from .simulation import MS

if TYPE_CHECKING:
    from .world import SiteWorld

Over = Callable[[str, Hashable], object]
AGAIN_US = 50 * MS  # A writer whose call was refused tries again after so long.


class Writer:
    """A thread of a member with keys of its own. Each put begins when the one before has ended, or up to `rest_us`
    later. What it reads at the end is what it put last, or what it was in doubt about since then."""

    def __init__(self, world: SiteWorld, at: str, region: str, keys: list[str], rest_us: int) -> None:
        self._world, self._at, self._region, self._keys, self._rest_us = world, at, region, keys, rest_us
        self._may_be: dict[str, set[Hashable]] = {each: {None} for each in keys}
        self._is_at_work = self._is_stopped = False
        self.answered_us: list[int] = []  # When each put was answered.
        self.put: list[tuple[str, int, str]] = []  # The key and the value of each put, and what became of it.

    @property
    def keys(self) -> list[str]:
        return self._keys

    def start(self) -> None:
        self._is_stopped = False
        if not self._is_at_work:
            self._put()

    def stop(self) -> None:
        self._is_stopped = True

    def _put(self) -> None:
        member = self._world.members[self._at]
        self._is_at_work = not self._is_stopped
        if self._is_stopped:
            return
        if member.is_dead or self._region not in member.regions:
            self._world.simulation.after(AGAIN_US, self._put)
            return
        rng = self._world.simulation.rng
        of, value = rng.choice(self._keys), self._world.new_thread()

        def over(what: str, _: Hashable) -> None:
            now_us = self._world.simulation.now_us
            self.put.append((of, value, what))
            if what == ANSWERED:
                self._may_be[of] = {value}
                self.answered_us.append(now_us)
            elif what != FAILED:
                self._may_be[of].add(value)
            pause_us = rng.randrange(1 + self._rest_us) if what == ANSWERED else AGAIN_US
            self._world.simulation.after(pause_us, self._put)

        self._begin(member, of, "put", (value,), value, over)

    def _begin(
        self,
        member: Member,
        of: str,
        name: str,
        arguments: tuple[Hashable, ...],
        thread: int,
        over: Over,
    ) -> None:
        member.do(lambda: Client(member, self._region, of, name, arguments, (member.member_id, thread, 1), over))

    def check(self) -> None:
        """Reads all keys, in a site that is well. Each has the value that was put last."""
        world, missing = self._world, set(self._keys)

        def read(of: str) -> None:
            def over(what: str, answer: Hashable) -> None:
                world.must(
                    what in (ANSWERED, AT_REPLICA) and answer in self._may_be[of],
                    f"{of} is read as {answer} ({what}), and its only writer has put {self._may_be[of]}",
                )
                missing.discard(of)

            self._begin(world.members[self._at], of, "get", (), world.new_thread(), over)

        for each in self._keys:
            read(each)
        world.simulation.run_until(world.simulation.now_us + 1000 * MS)
        world.must(not missing, f"reads of {', '.join(sorted(missing))} in a healthy site do not end")
