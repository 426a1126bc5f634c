"""Owns what a member knows of the primaries of a region's buckets, so that a call finds its way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pywan.coordination.tables import Bucket, Epoch, Incarnation


class Place(NamedTuple):
    """Where the primary of a bucket is, as far as is known."""

    member: Incarnation | None  # None: nobody is primary now.
    host: str
    port: int
    epoch: int  # In one word, which compares as epochs do.


NOWHERE = Place(None, "", 0, 0)


def epoch_word(epoch: Epoch) -> int:
    return epoch.generation << 40 | epoch.number


class BucketTable:
    """The primaries of one region's buckets. Any thread may use it."""

    def __init__(self, region: str, buckets: int) -> None:
        self.region = region
        self._changed = threading.Condition()
        self._places = [NOWHERE] * buckets  # `_changed` guards it, and the next. Reading one needs no lock.
        self._listeners: list[Callable[[Iterable[int]], None]] = []

    def __len__(self) -> int:
        return len(self._places)

    def place(self, bucket: int) -> Place:
        return self._places[bucket]

    def on_change(self, listener: Callable[[Iterable[int]], None]) -> None:
        """Makes `listener(buckets)` be called with each change, under the table's lock."""
        with self._changed:
            self._listeners.append(listener)

    def update(self, buckets: Mapping[int, Bucket], addresses: Mapping[Incarnation, tuple[str, int]]) -> None:
        """Takes decisions about buckets, and the addresses of members. What is older than what is known is left out."""
        self.set_places(
            {
                number: Place(
                    bucket.primary if bucket.primary in addresses else None,
                    *addresses.get(bucket.primary, ("", 0)),  # type: ignore[arg-type]
                    epoch_word(bucket.epoch),
                )
                for number, bucket in buckets.items()
            }
        )

    def set_places(self, places: Mapping[int, Place]) -> None:
        """As `update`, with what is made of decisions."""
        with self._changed:
            changed = [
                number
                for number, place in places.items()
                if place.epoch >= self._places[number].epoch and place != self._places[number]
            ]
            for number in changed:
                self._places[number] = places[number]
            for listener in self._listeners:
                listener(changed)
            self._changed.notify_all()

    def wait_newer(self, bucket: int, epoch: int, timeout: float) -> Place:
        """Returns the place of a bucket as soon as it has a later epoch and a primary, or what is known after
        `timeout` seconds."""

        def is_newer() -> bool:
            return self._places[bucket].epoch > epoch and self._places[bucket].member is not None

        with self._changed:
            self._changed.wait_for(is_newer, max(0.0, timeout))
            return self._places[bucket]
