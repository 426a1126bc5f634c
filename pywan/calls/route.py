"""Owns the targets and retries of a region's calls. The content of a call is compiled (_core/calls/call_route)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from pywan import _core
from pywan.calls.pool import CallPool
from pywan.calls.table import BucketTable, KnownPrimary
from pywan.coordination.tables import Incarnation
from pywan.errors import (
    BatchError,
    ConnectivityError,
    IncompatibleSystemError,
    PywanError,
    RegionNotFoundError,
    RemoteError,
)
from pywan.protocol.calls import decode_primary, encode_primary, error_of

CALL_TIMEOUT_S = 10.0  # The shortest time limit of a call, if the member's `call-timeout` says nothing.
# A call without a `call-timeout` is tried for at least so many times the site's `member-timeout`. After 1.05 times
# `member-timeout` the coordinator gives up a silent primary, and another member takes over. The rest is for the
# takeover, and for a second silent primary.
MEMBER_TIMEOUTS_A_CALL = 2
# The time for which a call waits for a newer table before the call goes to the same member again. The member may be
# about to become primary, or the table may be behind. A handover takes a few milliseconds, a takeover after a death
# 400. So a call waits a quarter of the time since its start, within the two limits.
NEWER_LEAST_S = 0.001
NEWER_S = 0.02
CONNECT_PAUSE_S = 0.25  # The longest pause between two attempts to connect. The pause begins at NEWER_S and doubles.
QUICK_S = 1.0  # A call to many members first leaves out a member that takes longer to connect.
BUCKETS_TOGETHER = 32  # So many buckets are scanned at the same time.

# The event of the last attempt, the epoch word of the attempt, words, and the primary that the answer names.
Trouble = tuple[str, int, str, bytes]


def least_call_timeout_s(member_timeout_us: int) -> float:
    """Returns the time that a call needs at least to outlive a primary that falls silent."""
    return MEMBER_TIMEOUTS_A_CALL * member_timeout_us / 1e6


def call_timeout_s(member_timeout_us: int) -> float:
    """Returns the time limit of a call in a site with the given `member-timeout`, if the member's `call-timeout` says
    nothing."""
    return max(CALL_TIMEOUT_S, least_call_timeout_s(member_timeout_us))


class Aim:
    """The target of an attempt, and the wait before the attempt. An Aim knows no clock and no connection.

    If `wait_s` is above 0, the caller waits so long, or until the table has a primary of an epoch above `newer_than`.
    Then the caller passes the table's primary to `take`, and the attempt goes to `primary`. If the attempt is
    impossible, the caller passes the reason to `miss`, and goes on with the next wait.

    `trouble`: the result of the attempt before; None: the first attempt. `so_far_s`: the time since the start of the
    call.
    """

    def __init__(self, table: BucketTable, bucket: int, trouble: Trouble | None, so_far_s: float) -> None:
        self.primary = table.primary(bucket)
        self.trouble = trouble
        self.wait_s = 0.0
        self.newer_than = 0
        self._pause_s = NEWER_S
        if trouble is None:
            return
        told = told_primary(trouble)
        if told is not None and told.epoch > self.primary.epoch:
            self.primary = told
        elif self.primary.epoch <= trouble[1]:
            self.wait_s, self.newer_than = min(max(so_far_s / 4, NEWER_LEAST_S), NEWER_S), trouble[1]

    def take(self, primary: KnownPrimary) -> None:
        """Ends the wait with the primary in the table."""
        self.primary, self.wait_s = primary, 0.0

    def miss(self, trouble: Trouble | None) -> None:
        """Notes that the attempt was impossible."""
        if trouble is not None:
            self.trouble, self.newer_than = trouble, trouble[1]
        self.wait_s, self._pause_s = self._pause_s, min(2 * self._pause_s, CONNECT_PAUSE_S)


def told_primary(trouble: Trouble) -> KnownPrimary | None:
    """Returns the primary that the last asked member named, if the name is news.

    The table does not adopt the primary: only the coordinator's metadata records fill the table. Calls go to the named
    primary until the table changes.
    """
    found = decode_primary(trouble[3])
    if found is None or found[4] <= trouble[1]:
        return None
    name, member_id, host, port, epoch = found
    return KnownPrimary(Incarnation(name, member_id), host, port, epoch)


def _became(in_doubt: bool) -> str:
    return "it may have been changed all the same" if in_doubt else "nothing was changed"


def seconds_to(until_us: int) -> float:
    """Returns the number of seconds until `until_us`; 0 if the time has passed."""
    return max(0, until_us - _core.monotonic_us()) / 1e6


class Route(_core.CallRoute):
    """The calls of a region. `RegionCore.share` gets the route."""

    def __init__(
        self,
        core: _core.RegionCore,
        table: BucketTable,
        pool: CallPool,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        why_nobody: Callable[[], str] = lambda: "",
        why_full: Callable[[], str] = lambda: "the member's memory for changes that wait is full",
    ) -> None:
        """`why_nobody` says why no member is known to be primary. Empty: no reason is known. `why_full` describes what
        fills the member's budget, the cause of the wait, and a remedy."""
        self._why_nobody, self._why_full = why_nobody, why_full
        self._name, self._table, self._pool = core.name, table, pool
        self.slots = pool.slots
        table.on_change(self._forget)

    def _forget(self, buckets: Iterable[int]) -> None:
        for bucket in buckets:
            self.targets[bucket] = None

    # The region as a whole. The primaries of all buckets are asked at once.

    def count(self) -> int:
        """Returns the number of entries of the region."""
        return sum(self.ask("count", [(bucket, 0) for bucket in range(self.bucket_count)]))

    def clear(self) -> int:
        """Removes all entries, and returns the number of removed entries. Each bucket is cleared as a single change."""
        answers = self.clear_buckets()
        failed = [(bucket, error) for bucket, error in enumerate(answers) if isinstance(error, Exception)]
        cleared: int = sum(answer for answer in answers if not isinstance(answer, Exception))
        if not failed:
            return cleared
        doubtful = sum(getattr(error, "in_doubt", False) for _, error in failed)
        (bucket, first), count = failed[0], len(answers)
        doubt = f" {doubtful} of the others may be cleared all the same, now or later;" if doubtful else ""
        text = (
            f"region {self._name!r}: {count - len(failed)} of {count} buckets were cleared, of {cleared} entries;"
            f"{doubt} bucket {bucket}: {first}"
        )
        error = type(first)(text) if isinstance(first, PywanError) else RemoteError(text)
        error.in_doubt = doubtful > 0
        raise error from first

    def scan_keys(self) -> Iterator[Any]:
        """Yields all keys. A change during the scan may be seen or not."""
        for payload in self._scan("keys"):
            for key, *_ in _core.unpack_items(payload):
                yield key

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yields all keys with their values, None for an invalidated value. A value that is no object in this process
        is shown as Undecodable."""
        for payload in self._scan("items"):
            for key, has_value, form, data in _core.unpack_items(payload):
                if has_value and form is None:  # The answer had no room for the value.
                    found = self.read(key)
                    if found is None or not found[0]:
                        continue
                    _, form, data = found
                yield key, None if data is None or form is None else _core.show_object(form, data)

    def _scan(self, what: str) -> Iterator[bytes]:
        for first in range(0, self.bucket_count, BUCKETS_TOGETHER):
            places = [(bucket, 0) for bucket in range(first, min(first + BUCKETS_TOGETHER, self.bucket_count))]
            while places:
                answers = self.ask(what, places)
                yield from (payload for _, payload in answers)
                places = [
                    (bucket, following)
                    for (bucket, _), (following, _) in zip(places, answers, strict=True)
                    if following is not None
                ]

    def put_columns(self, keys: Any, values: Any, operations: Any = None, timestamps: Any = None, row: int = 0) -> int:
        """As `RegionCalls.put_columns`, for the rows of Columns from `row` on."""
        rows = _core.RowCalls(self)
        rows.add_columns(keys, values, operations, timestamps, row)
        return self._finish(rows, len(keys))

    def put_all(
        self,
        entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        callback_argument: Any = None,
        more: Mapping[Any, Any] | None = None,
    ) -> None:
        """As `Region.put_all`, for `entries` and then for `more`."""
        rows = _core.RowCalls(self)
        rows.add_pairs(entries, callback_argument)
        if more:
            rows.add_pairs(more, callback_argument)
        self._finish(rows, rows.row)

    def remove_all(self, keys: Iterable[Any], callback_argument: Any = None) -> int:
        """As `Region.remove_all`."""
        rows = _core.RowCalls(self)
        rows.add_keys(keys, callback_argument)
        return self._finish(rows, rows.row)

    def _finish(self, rows: _core.RowCalls, count: int) -> int:
        """Sends the last rows. Returns the number of effective rows, or raises an error that names the refused rows."""
        rows.send()
        failures = sorted([*rows.failures, *rows.refused])
        failed = rows.failed + len(rows.refused)
        if failed:
            in_doubt = rows.error is not None and rows.error.in_doubt
            error = BatchError(
                f"region {self._name!r}: {failed} of {count} rows were refused"
                f"{', or may have been made all the same' if in_doubt else ''}; the others were made; first: row"
                f" {failures[0][0]}: {failures[0][1]}",
                failures,
                rows.applied,
            )
            error.in_doubt = in_doubt
            raise error from rows.error
        return rows.applied

    # Where a call goes

    def aim(
        self, bucket: int, began_us: int, trouble: Trouble | None, in_doubt: bool, key: Any
    ) -> tuple[_core.CallLine, int] | None:
        """As `CallRoute.aim`. Waits in short steps, so that Ctrl-C ends the wait."""
        until_us = self.deadline(began_us)
        aim = Aim(self._table, bucket, trouble, (_core.monotonic_us() - began_us) / 1e6)
        while True:
            if aim.wait_s:
                wait_s = min(aim.wait_s, seconds_to(until_us))
                aim.take(self._table.wait_newer(bucket, aim.newer_than, wait_s))
            if self._pool.is_closed:
                raise self._ended(bucket, key, in_doubt)
            if self.is_gone:
                raise self._gone(bucket, key, in_doubt)
            if _core.monotonic_us() >= until_us:
                raise self._too_late(bucket, key, aim.primary, aim.trouble, in_doubt, until_us - began_us)
            primary = aim.primary
            if primary.member == self._pool.me:
                return None
            if primary.member is None:
                aim.miss(("nobody", primary.epoch, "no member is known to be its primary", b""))
                continue
            try:
                return self._line(bucket, primary, time.monotonic() + seconds_to(until_us))
            except (ConnectivityError, IncompatibleSystemError) as error:
                # An attempt that the deadline cuts off says less than the attempt before.
                is_late = aim.trouble is not None and _core.monotonic_us() >= until_us
                aim.miss(aim.trouble if is_late else ("broken", primary.epoch, str(error), b""))

    def tell_primary(self, bucket: int, epoch: int) -> bytes:
        """As `CallRoute.tell_primary`."""
        primary = self._table.primary(bucket)
        if primary.member is None or primary.epoch <= epoch:
            return b""
        return encode_primary((*primary.member, primary.host, primary.port, primary.epoch))

    def aim_now(
        self, bucket: int, until_us: int, slow: set[Incarnation]
    ) -> tuple[_core.CallLine, int] | Literal[False] | None:
        """As `CallRoute.aim_now`."""
        primary = self._table.primary(bucket)
        if primary.member is None or primary.member in slow:
            return False
        if primary.member == self._pool.me:
            return None
        try:
            return self._line(bucket, primary, time.monotonic() + min(QUICK_S, seconds_to(until_us)))
        except (ConnectivityError, IncompatibleSystemError):
            slow.add(primary.member)
            return False

    def failure(self, words: bytes, in_doubt: bool) -> Exception:
        """As `CallRoute.failure`."""
        error = error_of(words)
        if not words.strip(b"\0"):
            error = ConnectivityError(
                f"region {self._name!r}: the asked member is not primary any more, or its replicas did not answer in"
                " time; `show coordinator` says who is there"
            )
        error.in_doubt = in_doubt
        return error

    def why_full(self) -> str:
        """As `CallRoute.why_full`."""
        return self._why_full()

    def too_few(self, bucket: int, made: int, wanted: int, key: Any) -> Exception:
        """As `CallRoute.too_few`."""
        what = f"key {key!r:.80}" if key is not None else f"bucket {bucket}"
        error = ConnectivityError(
            f"region {self._name!r}: {what}: the change was made with {made} of {wanted} replicas that"
            " min-in-sync-replicas asks for; a replica was lost while it waited. Others may read it, and it is lost"
            " with those that have it. Start the members that are missing (`show coordinator` says who is there), then"
            " make the change again if so many replicas must have it"
        )
        error.in_doubt = True
        return error

    def _line(self, bucket: int, primary: KnownPrimary, deadline: float) -> tuple[_core.CallLine, int]:
        """Returns the connection to the primary of a bucket, and the primary's epoch."""
        assert primary.member is not None
        depth = _core.call_depth()
        line = self._pool.line(primary.member, (primary.host, primary.port), depth, deadline)
        if depth == 0:
            self.targets[bucket] = line, primary.epoch
            if self._table.primary(bucket).epoch > primary.epoch:  # The table changed in between.
                self.targets[bucket] = None
        return line, primary.epoch

    def _ended(self, bucket: int, key: Any, in_doubt: bool) -> ConnectivityError:
        what = f"key {key!r:.80}" if key is not None else f"bucket {bucket}"
        error = ConnectivityError(f"region {self._name!r}: {what}: member {self._pool.me} ends; {_became(in_doubt)}")
        error.in_doubt = in_doubt
        return error

    def _gone(self, bucket: int, key: Any, in_doubt: bool) -> RegionNotFoundError:
        what = f"key {key!r:.80}" if key is not None else f"bucket {bucket}"
        error = RegionNotFoundError(
            f"region {self._name!r} was destroyed, or its cache closed: {what}: {_became(in_doubt)}"
        )
        error.in_doubt = in_doubt
        return error

    def _too_late(
        self, bucket: int, key: Any, primary: KnownPrimary, trouble: Trouble | None, in_doubt: bool, waited_us: int
    ) -> ConnectivityError:
        what = f"key {key!r:.80}" if key is not None else f"bucket {bucket}"
        where = (
            f"member {primary.member.name} at {primary.host}[{primary.port}]"
            if primary.member is not None
            else "its primary"
        )
        words = trouble[2] if trouble is not None else "no time was left"
        why = self._why_nobody() if trouble is not None and trouble[0] == "nobody" else ""
        error = ConnectivityError(
            f"region {self._name!r}: {what}: {where} did not answer within {waited_us / 1e6:.3g} s:"
            f" {words}{f', since {why}' if why else ''}; {_became(in_doubt)}. Try again when the members of the"
            " site reach each other; `show coordinator` says who is there"
        )
        error.in_doubt = in_doubt
        return error
