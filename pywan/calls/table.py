"""Owns a member's knowledge of the primaries of a region's buckets, for the routing of calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pywan.coordination.tables import Bucket, Incarnation


class KnownPrimary(NamedTuple):
    """The primary of a bucket and its address, as far as this member knows."""

    member: Incarnation | None  # None: no member is primary now.
    host: str
    port: int
    epoch: int  # As `Epoch.word`.


NO_PRIMARY = KnownPrimary(None, "", 0, 0)


class BucketTable:
    """The primaries of a region's buckets. All threads may use the table."""

    def __init__(self, region: str, buckets: int) -> None:
        self.region = region
        self._changed = threading.Condition()
        self._primaries = [NO_PRIMARY] * buckets  # `_changed` guards both fields. Reading an item needs no lock.
        self._listeners: list[Callable[[Iterable[int]], None]] = []

    def __len__(self) -> int:
        return len(self._primaries)

    def primary(self, bucket: int) -> KnownPrimary:
        return self._primaries[bucket]

    def on_change(self, listener: Callable[[Iterable[int]], None]) -> None:
        """Registers a listener: each change calls `listener(buckets)` under the table's lock."""
        with self._changed:
            self._listeners.append(listener)

    def update(self, buckets: Mapping[int, Bucket], addresses: Mapping[Incarnation, tuple[str, int]]) -> None:
        """Adopts metadata records about buckets, and the addresses of members. Older records than the known records are
        ignored."""
        self.set_primaries(
            {
                number: KnownPrimary(
                    bucket.primary if bucket.primary in addresses else None,
                    *addresses.get(bucket.primary, ("", 0)),  # type: ignore[arg-type]
                    bucket.epoch.word,
                )
                for number, bucket in buckets.items()
            }
        )

    def set_primaries(self, primaries: Mapping[int, KnownPrimary]) -> None:
        """As `update`, with primaries that were made from metadata records."""
        with self._changed:
            changed = [
                number
                for number, primary in primaries.items()
                if primary.epoch >= self._primaries[number].epoch and primary != self._primaries[number]
            ]
            for number in changed:
                self._primaries[number] = primaries[number]
            for listener in self._listeners:
                listener(changed)
            self._changed.notify_all()

    def forget(self) -> None:
        """Forgets all primaries: the old epochs mean nothing for later records. Waiting threads go on waiting."""
        with self._changed:
            self._primaries = [NO_PRIMARY] * len(self._primaries)
            for listener in self._listeners:
                listener(range(len(self._primaries)))

    def wait_newer(self, bucket: int, epoch: int, timeout: float) -> KnownPrimary:
        """Returns the primary of a bucket as soon as the table has a primary of a later epoch, or the known primary
        after `timeout` seconds."""

        def is_newer() -> bool:
            return self._primaries[bucket].epoch > epoch and self._primaries[bucket].member is not None

        with self._changed:
            self._changed.wait_for(is_newer, max(0.0, timeout))
            return self._primaries[bucket]
