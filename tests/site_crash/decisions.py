"""Owns what the coordinator decided of each bucket, and when: its process writes that, the campaign reads it.

A line of the file is written when a decision is on the coordinator's disk, and before anybody hears of it.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from pywan.coordination.actions import Action, Store
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.journal import Journal
from pywan.coordination.tables import BucketKey
from pywan.site import coordinator_driver

_LOST = b'"the file is lost"\n'

# In the locator's process


def note_decisions(path: Path) -> None:
    """From now on the coordinator of this process notes its decisions."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    undecided: set[BucketKey] = set()

    def note(store: Store) -> None:
        buckets = [
            [*key, bucket.timeline, bucket.inherits, [str(each) for each in (*bucket.isr, *bucket.leaving)]]
            for key, bucket in store.buckets
            if bucket is not None and bucket.primary is not None and key not in undecided
        ]
        processes = {str(each): profile.process for each, profile in store.members if profile is not None}
        if buckets or processes:
            line = {
                "at": time.monotonic(),
                "generation": store.recovery_epoch,
                "processes": processes,
                "buckets": buckets,
            }
            os.write(file, (json.dumps(line) + "\n").encode())

    class NotingCoordinator(Coordinator):
        def take_actions(self) -> list[Action]:
            actions = super().take_actions()
            undecided.clear()
            undecided.update(self.reports.undecided)  # Of these, members that know later decisions may yet report them.
            return actions

    class NotingJournal(Journal):
        def append(self, store: Store) -> None:
            super().append(store)
            note(store)

        def read(self) -> list[Store]:
            stores = super().read()
            undecided.clear()
            for store in stores:  # A coordinator that was killed may not have noted the last one.
                note(store)
            return stores

    vars(coordinator_driver).update(Coordinator=NotingCoordinator, Journal=NotingJournal)


# In the campaign


def note_lost_file(path: Path) -> None:
    """The coordinator's process has ended, and its file is removed."""
    with open(path, "ab") as file:
        file.write(_LOST)


class BucketOf(NamedTuple):
    region: str
    number: int


class Reset(NamedTuple):
    """A bucket began a new and empty timeline at some moment in between."""

    since: float
    until: float


class Timelines:
    """The lives of all buckets of a site.

    Attributes:
        resets: By bucket: where it began a new and empty timeline.
        left_out: The buckets of which acknowledged changes may be gone, or come back, since the coordinator's file was
            lost: decisions were made anew in place of lost ones, as nobody who was there knew of those; or a timeline
            went on with what replicas had that may have lacked the end. Each with what was seen.
        unproved: New timelines though a process that held the bucket had not been ended, in words.
        files: How often the file was lost.
    """

    def __init__(self, path: Path, ended_at: Callable[[str], float]) -> None:
        """Reads the file of notes.

        Args:
            path: The file.
            ended_at: Returns when a process, as `MemberProfile.process` names it, was killed or asked to end;
                math.inf: never.
        """
        self.resets: defaultdict[BucketOf, list[Reset]] = defaultdict(list)
        self.left_out: dict[BucketOf, str] = {}
        self.unproved: list[str] = []
        self.files = 0
        self._ended_at = ended_at
        self._timelines: dict[BucketOf, tuple[int, float]] = {}  # Each bucket's timeline, and since when.
        self._holders: dict[BucketOf, tuple[str, ...]] = {}
        # By incarnation. An incarnation may be named as a holder first when the next process of its name runs.
        self._processes: dict[str, str] = {}
        self._recovery_epochs: dict[BucketOf, int] = {}  # That of the last decision of each bucket.
        self._forgotten: dict[BucketOf, int] = {}  # Buckets whose decisions were lost, with their generation.
        for line in path.read_bytes().splitlines(keepends=True):
            if line == _LOST:
                self.files += 1
                self._forgotten.update(self._recovery_epochs)
            elif line.endswith(b"\n"):  # The last line of a process that was killed may be cut.
                decision = json.loads(line)
                self._processes.update(decision["processes"])
                for region, number, *bucket in decision["buckets"]:
                    self._take(BucketOf(region, number), decision["at"], decision["generation"], *bucket)

    @property
    def count(self) -> int:
        """How many new and empty lives there were."""
        return sum(map(len, self.resets.values()))

    def _take(
        self, key: BucketOf, at: float, recovery_epoch: int, timeline: int, inherits: int, holders: Collection[str]
    ) -> None:
        if self._forgotten.get(key) == recovery_epoch:
            self.left_out.setdefault(key, "decisions in place of lost ones")
        known, since = self._timelines.get(key, (timeline, at))
        if timeline != known:
            self._begin_timeline(key, timeline, inherits, known, since, at, {*holders})
            since = at
        self._timelines[key] = timeline, since
        self._recovery_epochs[key] = recovery_epoch
        self._holders[key] = tuple(holders)

    def _begin_timeline(
        self, key: BucketOf, timeline: int, inherits: int, known: int, since: float, at: float, holders: set[str]
    ) -> None:
        if 0 < inherits <= known < timeline:
            if not {*self._holders[key]} <= holders:
                self.left_out.setdefault(key, "a timeline that may lack the end of the one before")
            return
        if (inherits or timeline) < known:
            self.left_out.setdefault(key, "an earlier timeline came back")
            return
        ends = {each: self._ended_at(self._processes[each]) for each in self._holders[key]}
        alive = sorted(each for each, ended in ends.items() if ended > at)
        if not alive:
            # Before the last holder was killed or asked to end, nothing was lost.
            since = max(since, *ends.values()) if ends else since
        elif not self.files:
            self.unproved.append(f"{key.region}[{key.number}] begins anew, and {', '.join(alive)} had not been ended")
        self.resets[key].append(Reset(since, at))
