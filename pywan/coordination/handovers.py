"""Owns which buckets have a new primary that is waited for, after the earlier one was replaced in order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.reports import Reports
from pywan.coordination.succession import Succession
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation

HANDOVER_US = 2_000_000  # A new primary that has not said for so long that it is ready is waited for no longer.


class Handovers:
    """A part of the coordinator, which hands primaries over for whoever moves them. Nothing of this is stored."""

    def __init__(self, site: Decisions, liveness: Liveness, reports: Reports, succession: Succession) -> None:
        self._site, self._liveness, self._reports, self._succession = site, liveness, reports, succession
        # Under which epoch, and until when the new primary is waited for. The oldest is first.
        self._under_way: dict[BucketKey, tuple[Epoch, int]] = {}
        self._counts: Counter[str] = Counter()  # How many of these each region has.

    def __contains__(self, key: BucketKey) -> bool:
        return key in self._under_way

    def count_of(self, region: str) -> int:
        return self._counts[region]

    def next_us(self) -> int | None:
        """When the oldest is waited for no longer; None: there is none."""
        return next((until_us for _, until_us in itertools.islice(self._under_way.values(), 1)), None)

    def is_at_rest(self, key: BucketKey) -> bool:
        """Whether nothing happens to the bucket now, and all its copies are there."""
        bucket = self._site.buckets[key]
        return (
            bucket.primary is not None
            and not bucket.learners
            and key not in self._site.unfinished
            and key not in self._under_way
            and key not in self._reports.undecided
            and all(self._liveness.is_there(each) for each in bucket.in_sync)
        )

    def begin(self, key: BucketKey, bucket: Bucket, candidates: list[Incarnation], now_us: int) -> None:
        """Makes one of `candidates`, other copies in sync, the primary. The earlier one stays in sync."""
        self._succession.promote(key, bucket, candidates, bucket.in_sync)
        self.end(key)
        self._under_way[key] = self._site.buckets[key].epoch, now_us + HANDOVER_US
        self._counts[key.region] += 1

    def end(self, key: BucketKey) -> bool:
        """The new primary is waited for no longer. Returns whether it was."""
        if self._under_way.pop(key, None) is None:
            return False
        self._counts[key.region] -= 1
        return True

    def end_old(self, touched: Iterable[BucketKey], now_us: int) -> list[BucketKey]:
        """Waits no longer for new primaries that have been silent for long, or that are primary no more. Returns their
        buckets. `touched`: the buckets about which something was decided since the last call."""
        ended = []
        for key in touched:
            bucket, handover = self._site.buckets.get(key), self._under_way.get(key)
            if handover is not None and (bucket is None or bucket.epoch != handover[0]):
                ended.append(key)
        for key, (_, until_us) in self._under_way.items():
            if until_us > now_us:
                break
            ended.append(key)
        return [key for key in ended if self.end(key)]
