"""Owns the moves of buckets that an operator has asked for: of a copy to another member, or of a primary to a copy.

They take the same steps as all other moves. An operator repeats a request until it is answered with the end, so nothing
of this is stored: a coordinator that starts again finds in the tables how far a move has come (docs/decisions/0067).
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

ASKED_AT_ONCE = 64  # Moves that were asked for, and have not ended. Each is looked at when its bucket changes.
ASKED_REPEATED_US = 10_000_000  # A move that nobody has asked for again for so long is given up.


class MoveOf(enum.Enum):
    COPY = "copy"
    PRIMARY = "primary"


class MoveRequest(NamedTuple):
    """What an operator asks for. The buckets that are colocated with this one move with it."""

    region: RegionName
    number: Annotated[int, Range(0, MAX_BUCKETS - 1)]
    what: MoveOf
    to: Annotated[str, Name()]  # The member that is to have the copy, or to lead.
    source: Annotated[str, Name(or_none=True)] = ""  # The member that loses its copy. Empty: the one with the most.


class MoveAnswer(NamedTuple):
    """How far a move has come. It has ended if it is done, or if `problem` says why it is not."""

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
    """A part of the coordinator. Others leave a bucket alone while such a move of it is under way."""

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
        # By the bucket with which all that move together are colocated. One that has ended stays until that is told.
        self._moves: dict[BucketKey, _Move] = {}

    def __contains__(self, key: BucketKey) -> bool:
        """Whether the bucket is being moved because somebody asked for it."""
        if not self._moves:
            return False
        move = self._moves.get(self._root_of(key))
        return move is not None and move.answer == UNDER_WAY

    def times_us(self) -> Iterator[int]:
        """When something is due."""
        for move in self._moves.values():
            yield move.asked_us + ASKED_REPEATED_US

    # --- what happens ---

    def ask(self, request: MoveRequest, now_us: int) -> MoveAnswer:
        """An operator asks for a move, for the first time or again. Returns how far it has come.

        The end is told once. A move that names all it wants is done at once if it is asked for again after that.
        """
        problem = self._problem_of(request)
        if problem:
            return MoveAnswer(problem=problem)
        root = self._root_of(BucketKey(request.region, request.number))
        move = self._moves.get(root)
        if move is not None and move.request != request:
            if move.answer == UNDER_WAY:
                return MoveAnswer(problem=f"bucket {root} is on its way to member {move.to.name}")
            move = None  # Whoever asked for that one has not come for its end.
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
        """Takes the next steps of the moves to whose buckets something has happened."""
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
        """Returns the move, or its end: it is done already, or cannot be."""
        if len(self._moves) >= ASKED_AT_ONCE:
            return MoveAnswer(problem=f"{ASKED_AT_ONCE} buckets are being moved already")
        bucket, storing = self._site.buckets.get(root), self._candidates.storing(root.region)
        to = next((each for each in storing if each.name == request.to), None)
        if bucket is None or bucket.primary is None:
            return MoveAnswer(problem=f"bucket {root} has no primary now")
        if to is None:
            return MoveAnswer(problem=f"no member {request.to} is there that stores region {root.region}")
        if request.what is MoveOf.PRIMARY:
            return _Move(request, to, None, now_us)
        if request.source:
            source = next((each for each in bucket.copies if each.name == request.source), None)
        else:
            spare = [each for each in bucket.copies if each not in (bucket.primary, to)] or [bucket.primary]
            source = choose_to_drop(self._site.loads[root.region], spare, Counter())
        if source is None and to in bucket.copies:
            return MoveAnswer(is_done=True)
        if source is None:
            return MoveAnswer(problem=f"member {request.source} has no whole copy of bucket {root}")
        if to in bucket.copies:
            return MoveAnswer(problem=f"member {to.name} has a copy of bucket {root} already")
        return _Move(request, to, source, now_us)

    def _step(self, root: BucketKey, move: _Move, now_us: int) -> None:
        """Takes the steps that are possible now, and notes whether the move has ended."""
        if move.answer != UNDER_WAY:
            return
        keys = self._together(root)
        lacking = next((key for key in keys if move.to not in self._candidates.storing(key.region)), None)
        if lacking is not None or not keys:
            words = f"member {move.to.name} does not store region {(lacking or root).region}, or is not there any more"
            move.answer = MoveAnswer(problem=words)
        elif move.source is None:
            self._move_primary(keys, move, now_us)
        elif all(move.to in self._site.buckets[key].copies for key in keys):
            self._take_out(keys, move, move.source, now_us)
        else:
            for key in keys:
                self._begin_copy(key, move.to)

    def _move_primary(self, keys: list[BucketKey], move: _Move, now_us: int) -> None:
        for key in keys:
            bucket = self._site.buckets[key]
            if move.to not in bucket.copies_to_be:
                move.answer = MoveAnswer(problem=f"member {move.to.name} has no copy of bucket {key}")
                return
        self._lead(keys, move.to, now_us)
        if all(self._site.buckets[key].primary == move.to and key not in self._handovers for key in keys):
            move.answer = MoveAnswer(is_done=True)

    def _begin_copy(self, key: BucketKey, to: Incarnation) -> None:
        bucket = self._site.buckets[key]
        if to in bucket.copies_to_be or not self._handovers.is_at_rest(key):
            return
        if self._recovery.images_left(key.region, to) > 0:
            self._site.set_bucket(key, bucket.with_learner(Learner(to, self._site.number + 1)))

    def _take_out(self, keys: list[BucketKey], move: _Move, source: Incarnation, now_us: int) -> None:
        """The new copies have all. What the old ones lead is handed over first."""
        self._lead([key for key in keys if self._site.buckets[key].primary == source], move.to, now_us)
        for key in keys:
            bucket = self._site.buckets[key]
            if source in bucket.copies and bucket.primary != source and self._handovers.is_at_rest(key):
                self._succession.lose_copies(key, (source,), now_us)
        if all(source not in self._site.buckets[key].content and key not in self._handovers for key in keys):
            move.answer = MoveAnswer(is_done=True)

    def _lead(self, keys: list[BucketKey], to: Incarnation, now_us: int) -> None:
        """Hands the buckets over as soon as nothing else happens to them. A learner that may lead then waits."""
        for key in keys:
            bucket = self._site.buckets[key]
            if bucket.primary != to and to in bucket.copies and self._handovers.is_at_rest(key):
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
        """The bucket, and all that are colocated with it and have begun, each after the one that it follows."""
        keys = [BucketKey(region, root.number) for region in self._site.with_children(root.region)]
        return [key for key in keys if key in self._site.buckets]
