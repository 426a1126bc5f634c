"""Owns the words of the openings that a member has under way to others, and says which openings are its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pywan.base.draws import drawn_number
from pywan.coordination.tables import Incarnation
from pywan.protocol.between_members import WORD_BITS, Claim, claim_of, claim_reply


class OwnOpenings:
    """Any thread may use it. Whoever opens a connection says `begin` before its first byte, and `end` when the opening
    was answered, or has ended without an answer.

    Args:
        draw: Returns a number below 2**WORD_BITS that nobody can guess.
    """

    def __init__(self, draw: Callable[[], int] = lambda: drawn_number(WORD_BITS)) -> None:
        self._draw = draw
        self._lock = threading.Lock()
        self._under_way: dict[int, Claim] = {}  # By the word. `_lock` guards it.

    def begin(self, protocol: bytes, from_: Incarnation, to: Incarnation) -> int:
        """Returns the word that the opening says."""
        with self._lock:
            word = 0
            while not word or word in self._under_way:
                word = self._draw()
            self._under_way[word] = Claim(protocol, word, from_, to)
            return word

    def end(self, word: int) -> None:
        """Forgets the word. Whoever has heard it cannot use it any more."""
        with self._lock:
            self._under_way.pop(word, None)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers the request OWNS_OPENING of a member. ProtocolError: it says what cannot be."""
        claim = claim_of(request)
        with self._lock:
            return claim_reply(self._under_way.get(claim.word) == claim)

    def __len__(self) -> int:
        """How many openings are under way."""
        with self._lock:
            return len(self._under_way)


__all__ = ["OwnOpenings"]
