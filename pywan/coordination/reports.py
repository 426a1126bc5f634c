"""Owns what members have reported since decisions were lost: who has yet to report which bucket.

In a new generation nothing is decided about a bucket before everybody has reported it who was in sync, as far as
anybody knows (docs/decisions/0056). Nothing of this is stored: a coordinator that starts again hears all reports again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, KeysView

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.tables import NAMED_MAX, Bucket, BucketKey, Holding, Incarnation, Word

# Copies of undecided buckets that members have reported: as many as the tables of a site can name in all.
REPORTED_MAX = 1 << 22


class Reports:
    """A part of the coordinator, which tells it of all that happens."""

    def __init__(self, site: Decisions, liveness: Liveness) -> None:
        self._site, self._liveness = site, liveness
        self._waiting: dict[BucketKey, set[Incarnation]] = {}  # Undecided buckets: who has yet to report each.
        # Who has all of the bucket, and in which life.
        self._reported: defaultdict[BucketKey, dict[Incarnation, Word]] = defaultdict(dict)
        self._reported_copies = 0  # Of all buckets together.
        self._heard: set[Incarnation] = set()  # Members that have reported in this generation.
        self._complete: dict[BucketKey, None] = {}  # Undecided buckets of which nobody is left to report.

    # --- what holdings would take ---

    def bytes_of(self, holdings: dict[BucketKey, Holding]) -> int:
        """What the tables would grow by at most, if the holdings were taken. A bucket that would shrink does not make
        up for others.

        Decided buckets count as well: a generation may begin with the holdings.
        """
        grows, weighed, weight = 0, None, 0
        for key, holding in holdings.items():
            if not self._is_news(key, holding.bucket):
                continue
            if holding.bucket is not weighed:  # Neighbours share one object.
                weighed, weight = holding.bucket, holding.bucket.table_bytes
            known = self._site.buckets.get(key)
            grows += len(key.region) + weight if known is None else max(0, weight - known.table_bytes)
        return grows

    def why_not(self, holdings: dict[BucketKey, Holding]) -> str:
        """Returns why the holdings cannot be taken beside the others; "": they can."""
        buckets = {id(each.bucket): each.bucket for each in holdings.values()}.values()
        known = self._site.named
        fresh = {each for bucket in buckets for each in bucket.named if each not in known}
        if fresh and len(known) + len(fresh) > NAMED_MAX:
            return (
                f"the buckets of the site would name {len(known) + len(fresh)} incarnations of members, and {NAMED_MAX}"
                " are the most: start the member in an empty folder"
            )
        copies = sum(each.has_all and self._is_told(key) for key, each in holdings.items())
        if copies and self._reported_copies + copies > REPORTED_MAX:
            return (
                f"members have reported {self._reported_copies} copies of buckets about which nothing can be decided"
                f" yet, and {REPORTED_MAX} are the most: start the members for which buckets wait, or revoke them"
            )
        return ""

    # --- what happens ---

    def begin(self) -> None:
        """A generation begins. What a member has told before does not count: it tells all again."""
        self._heard.clear()
        self._reported.clear()
        self._reported_copies = 0
        for key, bucket in self._site.buckets.items():
            if bucket.in_sync:
                self._waiting[key] = self._awaited(bucket)

    def take(self, me: Incarnation, holdings: dict[BucketKey, Holding]) -> None:
        """Takes the newest decision that anybody knows about each bucket. A member is heard once, about all of them."""
        self._heard.add(me)
        for key, holding in holdings.items():
            if not self._is_told(key):
                continue
            theirs = holding.bucket
            if holding.has_all and me not in self._reported[key]:
                self._reported[key][me] = theirs.life
                self._reported_copies += 1
            if self._is_news(key, theirs):
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
        self._take_reported(key)

    def take_complete(self) -> Iterator[tuple[BucketKey, dict[Incarnation, Word]]]:
        """Yields each bucket that is to be decided now, and who has reported that it has all of it, with the life.

        It is asked when the silence is over: the copies that this coordinator knows may be those of an earlier set, and
        the newest may be with a member that it has forgotten.
        """
        keys, self._complete = self._complete, {}
        for key in keys:
            waiting = self._waiting.get(key)  # Meanwhile the region may be gone, or a later decision was reported.
            if waiting is not None and not waiting:
                del self._waiting[key]
                yield key, self._take_reported(key)

    def _is_told(self, key: BucketKey) -> bool:
        """Whether it counts what is reported of the bucket: nothing is known of it, or it is undecided. The region may
        have fewer buckets than an earlier one of its name."""
        if key in self._site.buckets and key not in self._waiting:
            return False
        region = self._site.regions.get(key.region)
        return region is None or key.number < region.total_num_buckets

    def _is_news(self, key: BucketKey, told: Bucket) -> bool:
        """Whether the decision is newer than the one that is known."""
        known = self._site.buckets.get(key)
        return known is None or (told.life, told.epoch, told.version) > (known.life, known.epoch, known.version)

    def _take_reported(self, key: BucketKey) -> dict[Incarnation, Word]:
        reported = self._reported.pop(key, {})
        self._reported_copies -= len(reported)
        return reported

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
            self._complete[key] = None

    # --- questions ---

    @property
    def undecided(self) -> KeysView[BucketKey]:
        """The buckets about which this generation has not decided yet."""
        return self._waiting.keys()

    @property
    def waited_for(self) -> Counter[Incarnation]:
        """Those who have yet to report, each with the number of buckets."""
        return Counter(each for some in self._waiting.values() for each in some)
