"""Owns where the calls of one region go, and when they go again. What they say is compiled (pywan._core.call_route)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pywan import _core
from pywan.calls.pool import CallPool
from pywan.calls.table import BucketTable, Place
from pywan.coordination.tables import Incarnation
from pywan.errors import ConnectivityError, IncompatibleSystemError
from pywan.protocol.calls import error_of

CALL_TIMEOUT_S = 10.0  # The default of call-timeout.
# How long a call waits for a newer table before it asks the same member again. The member may be about to become
# primary, or this table may be behind.
NEWER_S = 0.02
CONNECT_PAUSE_S = 0.25  # The longest pause between two attempts to connect. It begins at NEWER_S and doubles.

Trouble = tuple[str, int, str]  # What happened to the last attempt, the epoch word of that attempt, words.


class Route(_core.CallRoute):
    """The calls of one region. `RegionCore.share` gets it."""

    def __init__(
        self,
        core: _core.RegionCore,
        table: BucketTable,
        pool: CallPool,
        me: Incarnation,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._name, self._table, self._pool, self._me = core.name, table, pool, me
        table.on_change(self._forget)

    def _forget(self, buckets: Iterable[int]) -> None:
        for bucket in buckets:
            self.targets[bucket] = None

    def aim(
        self, bucket: int, began_us: int, trouble: Trouble | None, in_doubt: bool, key: Any
    ) -> tuple[_core.CallLine, int] | None:
        """As `CallRoute.aim`. It waits in short steps, so that Ctrl-C ends it."""
        deadline = (began_us + self.limit_us) / 1e6
        place = self._table.place(bucket)
        if trouble is not None and place.epoch <= trouble[1]:
            place = self._table.wait_newer(bucket, trouble[1], min(NEWER_S, deadline - time.monotonic()))
        pause = NEWER_S
        while True:
            if time.monotonic() >= deadline:
                raise self._too_late(bucket, key, place, trouble, in_doubt)
            if place.member is None:
                trouble = "nobody", place.epoch, "no member is known to be its primary"
            elif place.member == self._me:
                return None
            else:
                try:
                    depth = _core.call_depth()
                    line = self._pool.line(place.member, (place.host, place.port), depth, deadline)
                    if depth == 0:
                        self._remember(bucket, place, line)
                    return line, place.epoch
                except (ConnectivityError, IncompatibleSystemError) as error:
                    trouble = "broken", place.epoch, str(error)
            place = self._table.wait_newer(bucket, trouble[1], min(pause, deadline - time.monotonic()))
            pause = min(2 * pause, CONNECT_PAUSE_S)

    def failure(self, words: bytes, in_doubt: bool) -> Exception:
        """As `CallRoute.failure`."""
        error = error_of(words)
        error.in_doubt = in_doubt
        return error

    def _remember(self, bucket: int, place: Place, line: _core.CallLine) -> None:
        self.targets[bucket] = line, place.epoch
        if self._table.place(bucket) != place:  # It changed in between.
            self.targets[bucket] = None

    def _too_late(
        self, bucket: int, key: Any, place: Place, trouble: Trouble | None, in_doubt: bool
    ) -> ConnectivityError:
        what = f"key {key!r:.80}" if key is not None else f"bucket {bucket}"
        where = (
            f"member {place.member.name} at {place.host}[{place.port}]" if place.member is not None else "its primary"
        )
        became = "it may have been changed all the same" if in_doubt else "nothing was changed"
        error = ConnectivityError(
            f"region {self._name!r}: {what}: {where} did not answer within {self.limit_us / 1e6:g} s:"
            f" {trouble[2] if trouble is not None else 'no time was left'}; {became}. Try again when the members of the"
            " site reach each other, or raise call-timeout"
        )
        error.in_doubt = in_doubt
        return error
