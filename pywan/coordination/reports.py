"""Owns what members have reported since decisions were lost: who has yet to report which bucket.

In a new generation nothing is decided about a bucket before everybody has reported it who was in sync, as far as
anybody knows (docs/decisions/0056). Nothing of this is stored: a coordinator that starts again hears all reports again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, KeysView

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.tables import Bucket, BucketKey, Holding, Incarnation


class Reports:
    """A part of the coordinator, which tells it of all that happens."""

    def __init__(self, site: Decisions, liveness: Liveness) -> None:
        self._site, self._liveness = site, liveness
        self._waiting: dict[BucketKey, set[Incarnation]] = {}  # Undecided buckets: who has yet to report each.
        self._reported: defaultdict[BucketKey, set[Incarnation]] = defaultdict(set)  # Who has all of the bucket.
        self._heard: set[Incarnation] = set()  # Members that have reported in this generation.
        self._complete: list[BucketKey] = []  # Undecided buckets of which nobody is left to report.

    # --- what happens ---

    def begin(self) -> None:
        """A generation begins. What a member has told before does not count: it tells all again."""
        self._heard.clear()
        self._reported.clear()
        for key, bucket in self._site.buckets.items():
            if bucket.in_sync:
                self._waiting[key] = self._awaited(bucket)

    def take(self, me: Incarnation, holdings: dict[BucketKey, Holding]) -> None:
        """Takes the newest decision that anybody knows about each bucket. A member is heard once, about all of them."""
        self._heard.add(me)
        for key, holding in holdings.items():
            known, theirs = self._site.buckets.get(key), holding.bucket
            if known is not None and key not in self._waiting:
                continue
            region = self._site.regions.get(key.region)
            if region is not None and key.number >= region.total_num_buckets:
                continue  # Of an earlier region of that name, which had more.
            if holding.has_all:
                self._reported[key].add(me)
            if known is None or (theirs.life, theirs.epoch, theirs.version) > (known.life, known.epoch, known.version):
                self._site.number = max(self._site.number, theirs.epoch.number)  # A new life begins above it.
                self._site.set_bucket(key, theirs)
                self._waiting[key] = self._awaited(theirs)
        for key in list(self._waiting):
            self._end_waiting(key, me)

    def never_comes(self, member: Incarnation) -> None:
        """The member reports nothing any more."""
        for key in [each for each, waiting in self._waiting.items() if member in waiting]:
            self._end_waiting(key, member)

    def drop(self, key: BucketKey) -> None:
        """The bucket is no more."""
        self._waiting.pop(key, None)

    def take_complete(self) -> Iterator[tuple[BucketKey, set[Incarnation]]]:
        """Yields each bucket that is to be decided now, and who has reported that it has all of it.

        It is asked when the silence is over: the copies that this coordinator knows may be those of an earlier set, and
        the newest may be with a member that it has forgotten.
        """
        keys, self._complete = self._complete, []
        for key in keys:
            waiting = self._waiting.get(key)  # Meanwhile the region may be gone, or a later decision was reported.
            if waiting is not None and not waiting:
                del self._waiting[key]
                yield key, self._reported.pop(key, set())

    def _awaited(self, bucket: Bucket) -> set[Incarnation]:
        """Who has to report the bucket. A member whose name has a later incarnation is gone, and reports nothing."""
        alive = self._liveness.by_name()
        return {
            each
            for each in (*bucket.in_sync, *bucket.leaving)
            if each not in self._heard and not self._liveness.is_gone(each) and alive.get(each.name, each) == each
        }

    def _end_waiting(self, key: BucketKey, member: Incarnation) -> None:
        waiting = self._waiting[key]
        waiting.discard(member)
        if not waiting:
            self._complete.append(key)

    # --- questions ---

    @property
    def undecided(self) -> KeysView[BucketKey]:
        """The buckets about which this generation has not decided yet."""
        return self._waiting.keys()

    @property
    def waited_for(self) -> Counter[Incarnation]:
        """Those who have yet to report, each with the number of buckets."""
        return Counter(each for some in self._waiting.values() for each in some)
