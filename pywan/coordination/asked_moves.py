"""The requested reassignments of buckets: a replica moves to a new member, or a replica becomes primary.

Requested reassignments take the same steps as automatic reassignments. An operator repeats a request until the answer
is final, so nothing of this state is stored: a coordinator that starts again finds the progress of a reassignment in
the tables (docs/decisions/0067).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pywan.config.attributes import MAX_BUCKETS
from pywan.coordination.candidates import Candidates
from pywan.coordination.decisions import Decisions
from pywan.coordination.handovers import Handovers
from pywan.coordination.placement import choose_to_drop
from pywan.coordination.plain import Name, Range
from pywan.coordination.recovery import Recovery
from pywan.coordination.succession import Succession
from pywan.coordination.tables import BucketKey, Incarnation, Learner, RegionName, is_role

ASKED_AT_ONCE = 64  # The most requested reassignments under way. A changed bucket causes a step of its reassignment.
ASKED_REPEATED_US = 10_000_000  # A reassignment whose request was not repeated for this time is given up.


class MoveOf(enum.Enum):
    REPLICA = "copy"
    PRIMARY = "primary"


class MoveRequest(NamedTuple):
    """A request of an operator. The buckets that are colocated with the named bucket move with the named bucket."""

    region: RegionName
    number: Annotated[int, Range(0, MAX_BUCKETS - 1)]
    what: MoveOf
    to: Annotated[str, Name()]  # The member that is to get the replica, or to lead.
    # The member that loses its replica. Empty: the member with the most replicas.
    source: Annotated[str, Name(or_none=True)] = ""


class MoveAnswer(NamedTuple):
    """The progress of a reassignment. A reassignment has ended if `is_done`, or if `problem` gives the reason of a
    failure."""

    is_done: bool = False
    problem: str = ""


UNDER_WAY = MoveAnswer()


@dataclass
class _Move:
    request: MoveRequest
    to: Incarnation
    source: Incarnation | None  # None: the primary moves.
    asked_us: int
    answer: MoveAnswer = UNDER_WAY


class AskedMoves:
    """A part of the coordinator. Other parts leave a bucket alone while a requested reassignment of the bucket is under
    way."""

    def __init__(
        self,
        site: Decisions,
        candidates: Candidates,
        recovery: Recovery,
        succession: Succession,
        handovers: Handovers,
    ) -> None:
        self._site, self._candidates, self._recovery = site, candidates, recovery
        self._succession, self._handovers = succession, handovers
        # By the root of the colocated buckets that move together. An ended reassignment stays until the operator gets
        # the answer.
        self._moves: dict[BucketKey, _Move] = {}

    def __contains__(self, key: BucketKey) -> bool:
        """Whether a requested reassignment of the bucket is under way."""
        if not self._moves:
            return False
        move = self._moves.get(self._root_of(key))
        return move is not None and move.answer == UNDER_WAY

    def times_us(self) -> Iterator[int]:
        """The times at which work is due."""
        for move in self._moves.values():
            yield move.asked_us + ASKED_REPEATED_US

    # --- events ---

    def ask(self, request: MoveRequest, now_us: int) -> MoveAnswer:
        """An operator requests a reassignment, or repeats a request. Returns the progress.

        The final answer is given once. A later repeat with source and target gets the answer "done" at once.
        """
        problem = self._problem_of(request)
        if problem:
            return MoveAnswer(problem=problem)
        root = self._root_of(BucketKey(request.region, request.number))
        move = self._moves.get(root)
        if move is not None and move.request != request:
            if move.answer == UNDER_WAY:
                return MoveAnswer(problem=f"bucket {root} is on its way to member {move.to.name}")
            move = None  # The operator of that request has not fetched its end.
        if move is None:
            made = self._begin(root, request, now_us)
            if isinstance(made, MoveAnswer):
                return made
            move = self._moves[root] = made
        move.asked_us = now_us
        self._step(root, move, now_us)
        if move.answer != UNDER_WAY:
            del self._moves[root]
        return move.answer

    def go_on(self, changed: Collection[BucketKey], now_us: int) -> None:
        """Takes the next steps of the reassignments whose buckets have changed."""
        for root in [each for each, move in self._moves.items() if move.asked_us + ASKED_REPEATED_US <= now_us]:
            del self._moves[root]
        if not self._moves:
            return
        for root in {self._root_of(each) for each in changed} & self._moves.keys():
            self._step(root, self._moves[root], now_us)

    # --- steps ---

    def _problem_of(self, request: MoveRequest) -> str:
        attributes = self._site.regions.get(request.region)
        if attributes is None or is_role(request.region):
            return f"no member of the site has a region {request.region}"
        if request.number >= attributes.total_num_buckets:
            return f"region {request.region} has {attributes.total_num_buckets} buckets: there is no {request.number}"
        return ""

    def _begin(self, root: BucketKey, request: MoveRequest, now_us: int) -> _Move | MoveAnswer:
        """Returns the reassignment, or its end if the reassignment is done already or impossible."""
        if len(self._moves) >= ASKED_AT_ONCE:
            return MoveAnswer(problem=f"{ASKED_AT_ONCE} buckets are being moved already")
        bucket, storing = self._site.buckets.get(root), self._candidates.storing(root.region)
        to = next((each for each in storing if each.name == request.to), None)
        if bucket is None or bucket.primary is None:
            return MoveAnswer(problem=f"bucket {root} has no primary now")
        if to is None:
            return MoveAnswer(problem=f"no member {request.to} can take a replica of region {root.region}")
        if request.what is MoveOf.PRIMARY:
            return _Move(request, to, None, now_us)
        if request.source:
            source = next((each for each in bucket.replicas if each.name == request.source), None)
        else:
            spare = [each for each in bucket.replicas if each not in (bucket.primary, to)] or [bucket.primary]
            source = choose_to_drop(self._site.loads[root.region], spare, Counter())
        if source is None and to in bucket.replicas:
            return MoveAnswer(is_done=True)
        if source is None:
            return MoveAnswer(problem=f"member {request.source} has no whole replica of bucket {root}")
        if to in bucket.replicas:
            return MoveAnswer(problem=f"member {to.name} has a replica of bucket {root} already")
        return _Move(request, to, source, now_us)

    def _step(self, root: BucketKey, move: _Move, now_us: int) -> None:
        """Takes the steps that are possible now, and notes whether the reassignment has ended."""
        if move.answer != UNDER_WAY:
            return
        keys = self._together(root)
        lacking = next((key for key in keys if move.to not in self._candidates.storing(key.region)), None)
        if lacking is not None or not keys:
            words = f"member {move.to.name} does not store region {(lacking or root).region}, or is not alive any more"
            move.answer = MoveAnswer(problem=words)
        elif move.source is None:
            self._move_primary(keys, move, now_us)
        elif all(move.to in self._site.buckets[key].replicas for key in keys):
            self._take_out(keys, move, move.source, now_us)
        else:
            for key in keys:
                self._begin_replica(key, move.to)

    def _move_primary(self, keys: list[BucketKey], move: _Move, now_us: int) -> None:
        for key in keys:
            bucket = self._site.buckets[key]
            if move.to not in bucket.replicas_to_be:
                move.answer = MoveAnswer(problem=f"member {move.to.name} has no replica of bucket {key}")
                return
        self._lead(keys, move.to, now_us)
        if all(self._site.buckets[key].primary == move.to and key not in self._handovers for key in keys):
            move.answer = MoveAnswer(is_done=True)

    def _begin_replica(self, key: BucketKey, to: Incarnation) -> None:
        bucket = self._site.buckets[key]
        if to in bucket.replicas_to_be or not self._handovers.is_at_rest(key):
            return
        if self._recovery.snapshots_left(key.region, to) > 0:
            self._site.set_bucket(key, bucket.with_learner(Learner(to, self._site.number + 1)))

    def _take_out(self, keys: list[BucketKey], move: _Move, source: Incarnation, now_us: int) -> None:
        """Removes the old replicas, after the new replicas have everything. Primaries among the old replicas are handed
        over first."""
        self._lead([key for key in keys if self._site.buckets[key].primary == source], move.to, now_us)
        for key in keys:
            bucket = self._site.buckets[key]
            if source in bucket.replicas and bucket.primary != source and self._handovers.is_at_rest(key):
                self._succession.lose_copies(key, (source,), now_us)
        if all(source not in self._site.buckets[key].content and key not in self._handovers for key in keys):
            move.answer = MoveAnswer(is_done=True)

    def _lead(self, keys: list[BucketKey], to: Incarnation, now_us: int) -> None:
        """Hands the buckets over as soon as no other work on the buckets is under way. A learner that may lead waits
        until then."""
        for key in keys:
            bucket = self._site.buckets[key]
            if bucket.primary != to and to in bucket.replicas and self._handovers.is_at_rest(key):
                self._handovers.begin(key, bucket, [to], now_us)

    # --- which buckets move together ---

    def _root_of(self, key: BucketKey) -> BucketKey:
        region = key.region
        for _ in range(len(self._site.regions)):  # Regions are never colocated in a circle.
            attributes = self._site.regions.get(region)
            if attributes is None or attributes.colocated_with not in self._site.regions:
                break
            region = attributes.colocated_with
        return BucketKey(region, key.number)

    def _together(self, root: BucketKey) -> list[BucketKey]:
        """The existing buckets among the root and the buckets colocated with the root. A bucket comes after the bucket
        that it follows."""
        keys = [BucketKey(region, root.number) for region in self._site.with_children(root.region)]
        return [key for key in keys if key in self._site.buckets]
