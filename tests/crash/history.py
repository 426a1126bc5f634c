"""Owns what must be true of the keys' histories: every acknowledged change was applied, once, in order; one that was in
doubt when its process was killed may be there or not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from . import load
from .region_log import Applied


class Change(NamedTuple):
    number: int  # The number of the operation.
    destroys: bool
    in_doubt: bool


class Application(NamedTuple):
    stamp: int
    number: int | None  # The number of the operation that wrote the value. None: a destroy.

    def __str__(self) -> str:
        return "a destroy" if self.number is None else f"operation {self.number}"


class Written:
    """Every key's changes in the order of its writer."""

    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = {}
        self._marked: dict[str, int] = {}
        self._put_back: dict[str, set[int | None]] = {}

    def mark(self) -> None:
        """A copy was made of the store that has all of this."""
        self._marked = {key: len(changes) for key, changes in self.changes.items()}

    def doubt_since_mark(self) -> None:
        """The copy took the store's place: what was done since is where it had been sent to, or nowhere."""
        for key, changes in self.changes.items():
            since = self._marked.get(key, 0)
            changes[since:] = [change._replace(in_doubt=True) for change in changes[since:]]
            self._put_back.setdefault(key, set()).update(
                None if change.destroys else change.number for change in changes[since:]
            )

    def was_put_back(self, key: str, number: int | None) -> bool:
        """Whether this change (None: a destroy) was in a store whose place a copy took. It may have reached only some
        sites, and nobody sends it again to the others.
        """
        return number in self._put_back.get(key, ())

    def note(self, writer: int, number: int, in_doubt: bool) -> None:
        change = Change(number, load.destroys(writer, number), in_doubt)
        for key in load.keys(writer, number):
            self.changes.setdefault(key, []).append(change)

    @property
    def acknowledged(self) -> int:
        return sum(not change.in_doubt for changes in self.changes.values() for change in changes)

    @property
    def in_doubt(self) -> int:
        return sum(change.in_doubt for changes in self.changes.values() for change in changes)

    def check_contents(self, contents: dict[str, int]) -> list[str]:
        """Says what is wrong at a site that has everything: each key must have its last acknowledged change, or a later
        one that was in doubt."""
        wrong = [
            f"{key}: {number} is there and was not written"
            for key, number in contents.items()
            if key not in self.changes
        ]
        for key, changes in self.changes.items():
            allowed: set[Any] = set()
            for change in reversed(changes):
                allowed.add(None if change.destroys else change.number)
                if not change.in_doubt:
                    break
            else:
                allowed.add(None)
            if contents.get(key) not in allowed:
                wrong.append(f"{key}: holds {contents.get(key)} and should hold {' or '.join(map(str, allowed))}")
        return wrong


class Applications:
    """Every key's changes as one site had them on its disk."""

    def __init__(self) -> None:
        self.of_key: dict[str, list[Application]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.of_key.values()))

    def note(self, applied: Iterable[Applied]) -> list[str]:
        """Notes changes that were applied, and says what is wrong: one came twice, or after a later one. Changes that a
        crash took from the disk, or kept from it, are in no log. So a change is applied twice if it is on the disk and
        is applied again."""
        wrong = []
        for change in applied:
            before = self.of_key.setdefault(change.key, [])
            application = Application(change.stamp, None if change.value is None else load.number_of(change.value))
            if before and change.stamp <= before[-1].stamp:
                how = (
                    "applied twice"
                    if any(change.stamp == other.stamp for other in before)
                    else "applied after a later change"
                )
                wrong.append(f"{change.key}: {application} was {how}")
            before.append(application)
        return wrong

    def compare(self, written: Written, conflated: bool) -> list[str]:
        """When nothing is on its way: what of the acknowledged changes is missing, or is there and was not made."""
        return [
            f"{key}: {wrong}"
            for key in sorted({*written.changes, *self.of_key})
            for wrong in _compare(written.changes.get(key, []), self.of_key.get(key, []), conflated)
        ]


def _compare(changes: list[Change], applications: list[Application], conflated: bool) -> list[str]:
    needed = [not (change.in_doubt or (conflated and not change.destroys)) for change in changes]
    # Where changes may be missing there can be several ways to read what was applied: all of them at once.
    places = {0}
    for application in applications:
        following = set()
        for place in places:
            for n in range(place, len(changes)):
                if _is(changes[n], application):
                    following.add(n + 1)
                if needed[n]:
                    break
        if not following:
            missing = [
                change.number
                for change, is_needed in zip(changes[max(places) :], needed[max(places) :], strict=True)
                if is_needed
            ][:5]
            return [f"{application} was applied where {missing or 'nothing'} was to come"]
        places = following
    if all(any(needed[place:]) for place in places):
        return [
            "never applied: "
            f"{[change.number for change, is_needed in zip(changes, needed, strict=True) if is_needed][-3:]}"
        ]
    return []


def _is(change: Change, application: Application) -> bool:
    return (
        change.destroys if application.number is None else not change.destroys and change.number == application.number
    )


def check_journal(path: Path) -> list[str]:
    """Checks what a listener heard. In one life of its member no change comes twice, nor before an earlier one. In the
    next life, changes may come again that were heard and not on the disk yet."""
    wrong: list[str] = []
    for life in path.read_text().split("\nlife\n") if path.exists() else []:
        newest: dict[str, int] = {}
        for line in filter(None, life.split("\n")[:-1]):  # A line that a kill cut off has no end.
            key, text = line.split()
            number = int(text)
            if number < 0:
                continue  # A destroy says nothing of its number.
            if number <= newest.get(key, -1):
                wrong.append(f"{key}: the listener heard of operation {number} behind {newest[key]}")
            newest[key] = number
    return wrong
