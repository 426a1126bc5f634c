"""Collects the replica reports of members in a metadata recovery.

In a metadata recovery the coordinator makes no record of a bucket before all known in-sync replicas of the bucket have
reported (docs/decisions/0056). Reports are not stored: after a restart of the coordinator, members report again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, KeysView

from pywan.coordination.decisions import Decisions
from pywan.coordination.liveness import Liveness
from pywan.coordination.tables import NAMED_MAX, Bucket, BucketKey, Holding, Incarnation, Word

# Replicas of undecided buckets that members may report: as many as the cluster metadata can name in all.
REPORTED_MAX = 1 << 22


class Reports:
    """A part of the coordinator. The coordinator reports every event to this object."""

    def __init__(self, site: Decisions, liveness: Liveness) -> None:
        self._site, self._liveness = site, liveness
        self._waiting: dict[BucketKey, set[Incarnation]] = {}  # Undecided buckets: the members that have yet to report.
        # By bucket: the members that have everything, and in which timeline.
        self._reported: defaultdict[BucketKey, dict[Incarnation, Word]] = defaultdict(dict)
        self._reported_replicas = 0  # In all buckets together.
        self._have_reported: set[Incarnation] = set()  # Members that have reported in this metadata recovery.
        self._complete: dict[BucketKey, None] = {}  # Undecided buckets without any missing report.

    # --- checks before reports are accepted ---

    def bytes_of(self, holdings: dict[BucketKey, Holding]) -> int:
        """Returns the most bytes by which the cluster metadata would grow with the holdings. A bucket that would shrink
        does not compensate for the growth of other buckets.

        Decided buckets count as well: a metadata recovery may begin with the holdings.
        """
        grows, weighed, weight = 0, None, 0
        for key, holding in holdings.items():
            if not self._is_news(key, holding.bucket):
                continue
            if holding.bucket is not weighed:  # Neighbours share the same object.
                weighed, weight = holding.bucket, holding.bucket.table_bytes
            known = self._site.buckets.get(key)
            grows += len(key.region) + weight if known is None else max(0, weight - known.table_bytes)
        return grows

    def why_not(self, holdings: dict[BucketKey, Holding]) -> str:
        """Returns why the holdings cannot be accepted beside all earlier holdings; "": no refusal."""
        buckets = {id(each.bucket): each.bucket for each in holdings.values()}.values()
        known = self._site.named
        fresh = {each for bucket in buckets for each in bucket.named if each not in known}
        if fresh and len(known) + len(fresh) > NAMED_MAX:
            return (
                f"the buckets of the site would name {len(known) + len(fresh)} incarnations of members, and {NAMED_MAX}"
                " are the most: start the member in an empty folder"
            )
        replicas = sum(each.has_all and self._is_told(key) for key, each in holdings.items())
        if replicas and self._reported_replicas + replicas > REPORTED_MAX:
            return (
                f"members have reported {self._reported_replicas} replicas of buckets about which nothing can be"
                " decided"
                f" yet, and {REPORTED_MAX} are the most: start the members for which buckets wait, or revoke them"
            )
        return ""

    # --- events ---

    def begin(self) -> None:
        """A metadata recovery begins. Earlier reports no longer count: each member reports everything again."""
        self._have_reported.clear()
        self._reported.clear()
        self._reported_replicas = 0
        for key, bucket in self._site.buckets.items():
            if bucket.isr:
                self._waiting[key] = self._awaited(bucket)

    def take(self, me: Incarnation, holdings: dict[BucketKey, Holding]) -> None:
        """Adopts the newest reported record of each bucket. A member reports all buckets at once."""
        self._have_reported.add(me)
        for key, holding in holdings.items():
            if not self._is_told(key):
                continue
            theirs = holding.bucket
            if holding.has_all and me not in self._reported[key]:
                self._reported[key][me] = theirs.timeline
                self._reported_replicas += 1
            if self._is_news(key, theirs):
                self._site.number = max(self._site.number, theirs.epoch.number)  # New timelines begin above it.
                self._site.set_bucket(key, theirs)
                self._waiting[key] = self._awaited(theirs)
        for key in list(self._waiting):
            self._end_waiting(key, me)

    def never_comes(self, member: Incarnation) -> None:
        """The member will never report."""
        for key in [each for each, waiting in self._waiting.items() if member in waiting]:
            self._end_waiting(key, member)

    def drop(self, key: BucketKey) -> None:
        """The bucket no longer exists."""
        self._waiting.pop(key, None)
        self._take_reported(key)

    def take_complete(self) -> Iterator[tuple[BucketKey, dict[Incarnation, Word]]]:
        """Yields each bucket that is ready for a new record, with the members that reported everything of the bucket,
        and the timeline of each.

        To be called after the grace period: the replicas known before may belong to an earlier ISR, and the newest
        replica may be at a forgotten member.
        """
        keys, self._complete = self._complete, {}
        for key in keys:
            waiting = self._waiting.get(key)  # Meanwhile the region may be gone, or a report named a later record.
            if waiting is not None and not waiting:
                del self._waiting[key]
                yield key, self._take_reported(key)

    def _is_told(self, key: BucketKey) -> bool:
        """Whether reports of the bucket count: the bucket is unknown or undecided. A region may have fewer buckets than
        an earlier region of the same name."""
        if key in self._site.buckets and key not in self._waiting:
            return False
        region = self._site.regions.get(key.region)
        return region is None or key.number < region.total_num_buckets

    def _is_news(self, key: BucketKey, told: Bucket) -> bool:
        """Whether the reported record is newer than the known record."""
        known = self._site.buckets.get(key)
        return known is None or (told.timeline, told.epoch, told.version) > (known.timeline, known.epoch, known.version)

    def _take_reported(self, key: BucketKey) -> dict[Incarnation, Word]:
        reported = self._reported.pop(key, {})
        self._reported_replicas -= len(reported)
        return reported

    def _awaited(self, bucket: Bucket) -> set[Incarnation]:
        """Returns the members that have to report the bucket. A member is dead, and reports nothing, if its name has a
        later incarnation."""
        alive = self._liveness.by_name()
        return {
            each
            for each in (*bucket.isr, *bucket.leaving)
            if each not in self._have_reported
            and not self._liveness.is_gone(each)
            and alive.get(each.name, each) == each
        }

    def _end_waiting(self, key: BucketKey, member: Incarnation) -> None:
        waiting = self._waiting[key]
        waiting.discard(member)
        if not waiting:
            self._complete[key] = None

    # --- questions ---

    @property
    def undecided(self) -> KeysView[BucketKey]:
        """The buckets without a record from the present metadata recovery."""
        return self._waiting.keys()

    @property
    def waited_for(self) -> Counter[Incarnation]:
        """The members that have yet to report, and how many buckets."""
        return Counter(each for some in self._waiting.values() for each in some)
