"""The planned handovers under way: the buckets that wait for a new primary, after an orderly change of the primary."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.reports import Reports
from pywan.coordination.succession import Succession
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation

HANDOVER_US = 2_000_000  # The coordinator waits at most this long for a new primary to be ready.


class Handovers:
    """A part of the coordinator. Hands primaries over when a part of the coordinator asks. Nothing of this state is
    stored."""

    def __init__(self, site: Decisions, liveness: Liveness, reports: Reports, succession: Succession) -> None:
        self._site, self._liveness, self._reports, self._succession = site, liveness, reports, succession
        # By bucket: the epoch of the new primary, and the end of the wait. The oldest handover is first.
        self._under_way: dict[BucketKey, tuple[Epoch, int]] = {}
        self._counts: Counter[str] = Counter()  # The number of handovers of each region.

    def __contains__(self, key: BucketKey) -> bool:
        return key in self._under_way

    def count_of(self, region: str) -> int:
        return self._counts[region]

    def next_us(self) -> int | None:
        """When the wait for the oldest handover ends. None: no handover is under way."""
        return next((until_us for _, until_us in itertools.islice(self._under_way.values(), 1)), None)

    def is_at_rest(self, key: BucketKey) -> bool:
        """Whether no work on the bucket is under way, and all its in-sync replicas are alive."""
        bucket = self._site.buckets[key]
        return (
            bucket.primary is not None
            and not bucket.learners
            and key not in self._site.unfinished
            and key not in self._under_way
            and key not in self._reports.undecided
            and all(self._liveness.is_there(each) for each in bucket.isr)
        )

    def begin(self, key: BucketKey, bucket: Bucket, candidates: list[Incarnation], now_us: int) -> None:
        """Makes one of `candidates`, other in-sync replicas, the primary. The earlier primary stays in sync."""
        self._succession.promote(key, bucket, candidates, bucket.isr)
        self.end(key)
        self._under_way[key] = self._site.buckets[key].epoch, now_us + HANDOVER_US
        self._counts[key.region] += 1

    def end(self, key: BucketKey) -> bool:
        """Ends the wait for the new primary. Returns whether a handover was under way."""
        if self._under_way.pop(key, None) is None:
            return False
        self._counts[key.region] -= 1
        return True

    def end_old(self, touched: Iterable[BucketKey], now_us: int) -> list[BucketKey]:
        """Ends the wait for new primaries that have taken too long, or are no longer primary. Returns the buckets.
        `touched`: the buckets with a new metadata record since the last call."""
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
