"""Owns the simulated network: what was sent and has not arrived, when each piece arrives, and what is done to it."""

from __future__ import annotations

import random
from collections import deque


class Pipe:
    """One direction of a connection: bytes arrive in order, in pieces, each at its time."""

    def __init__(self, rng: random.Random, latency_us: int):
        self._rng, self._latency_us = rng, latency_us
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._last_us = 0

    def __len__(self) -> int:
        return sum(len(piece) for _, piece in self._pieces)

    def send(self, data: bytes, now_us: int) -> None:
        cuts = sorted(int(self._rng.random() * len(data)) for _ in range(self._rng.choice((0, 0, 1, 3))))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < end:
                self._last_us = max(self._last_us, now_us + int(self._latency_us * (0.5 + self._rng.random())))
                self._pieces.append((self._last_us, data[start:end]))

    def arrivals(self, now_us: int) -> list[bytes]:
        """The pieces whose time has come."""
        found = []
        while self._pieces and self._pieces[0][0] <= now_us:
            found.append(self._pieces.popleft()[1])
        return found

    def truncate(self) -> None:
        """The connection breaks: the end of what is on its way never arrives, perhaps none of it."""
        keep, kept = int(len(self) * self._rng.choice((0, self._rng.random(), 1))), deque()
        for at_us, piece in self._pieces:
            if keep > 0:
                kept.append((at_us, piece[:keep]))
            keep -= len(piece)
        self._pieces = kept

    def damage(self) -> bool:
        """Changes one byte of what is on its way."""
        if not self._pieces:
            return False
        n = self._rng.randrange(len(self._pieces))
        at_us, piece = self._pieces[n]
        damaged = bytearray(piece)
        damaged[int(self._rng.random() * len(piece))] ^= self._rng.randrange(1, 256)
        self._pieces[n] = at_us, bytes(damaged)
        return True
