"""Owns the rows that clients send in bulk, until the rows are applied, and the memory of applied tasks."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from pywan import _core
from pywan.base.lines import Lines
from pywan.base.threads import told_error
from pywan.errors import (
    AuthenticationError,
    ConnectivityError,
    IllegalStateError,
    NotAuthorizedError,
    OutOfMemoryError,
    ProtocolError,
    PywanError,
    RegionNotFoundError,
)
from pywan.forks import of_one_process
from pywan.limitations import Limitation
from pywan.protocol import gateway
from pywan.security.guard import OPEN, Guard, admit, credentials_of
from pywan.security.operations import rows_into
from pywan.transport import data
from pywan.transport.openings import Connection

log = logging.getLogger("pywan.staging")
_lines = Lines(log)
_ends = Lines(log)

REPLY_TIMEOUT_S = 10.0  # Time for a client to accept a reply.
STOP_TIMEOUT_S = 10.0
# A task may compute for long between two batches of rows, and sends no data meanwhile. The client's kernel proves that
# the machine is alive (`keep_alive`). A hanging process loses its connection and its rows after a day.
RECEIVE_TIMEOUT_MS = 86_400_000
MAX_CLIENTS = 896  # The port allows more connections: the rest is for control requests.
STAGED_ROWS_BYTES_MAX = 16 << 30  # Limit of the rows of all tasks at a member, in memory and overflow files.
STAGED_ROWS_MEMORY_MAX = 256 << 20  # Limit of the rows in memory.
TASKS_REMEMBERED = 200_000  # Limit of remembered (run, task) pairs. The oldest are forgotten first.
PROGRESS_S = 1.0  # Shortest time between two progress messages to a client.
# Rows of a partly applied task are kept this long, for the next attempt.
KEPT_S = 3_600.0
# A commit waits this long for free space in the senders' queues before the commit fails. Clients wait longer for a
# reply.
FULL_WAIT_S = 30.0


class _Task:
    """One (run, task) with rows that are being applied, or were applied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # The attempt that applies rows holds the lock.
        # The rows of the first partly applied attempt, until all rows are applied, or no attempt came for the rest.
        self.stage: Any = None
        self.kept_until = math.inf  # In time.monotonic(). Then an idle stage is dropped.
        self.is_dropped = False  # Some rows were applied, and the rest dropped.
        self.rows: int | None = None  # The number of rows, after all rows were applied.


class _Progress:
    """Tells a client that its task makes progress, so that the client waits however long the task takes."""

    def __init__(self, sock: Any, stage: _core.RowStage) -> None:
        self._sock, self._stage = sock, stage  # Both belong to the client's own connection.
        self._steps, self._told_at = 0, time.monotonic()

    def tell(self, steps: int) -> None:
        """Sends the client a progress message, at most once a second. `steps` counts the finished rows."""
        now = time.monotonic()
        if steps > self._steps and now - self._told_at >= PROGRESS_S:
            self._steps, self._told_at = steps, now
            # If the client has disconnected, its committed rows are applied nevertheless.
            with contextlib.suppress(OSError):
                self._stage.tell_progress(steps)
                self._sock.sendall(self._stage.data_to_send())


@of_one_process(lambda stages: f"the row connections of member {stages._member_name!r}", nothing_in_child=("stop",))
class RowStages:
    """Serves the connections of clients that send rows. A commit applies the rows of a task, once for each (run,
    task)."""

    def __init__(
        self,
        *,
        site: int,
        member_name: str,
        directory: str,
        find_region: Callable[[str], Any],
        memory: _core.MemoryLimit | None = None,
        guard: Guard = OPEN,
    ) -> None:
        """`memory`: the limit of the member's memory, including staged rows. `guard` admits clients."""
        self._guard = guard
        self._site, self._member_name, self._directory = site, member_name, directory
        self._find_region = find_region
        self._lock = threading.Lock()
        self._stage_left = threading.Condition(self._lock)  # Notified when a connection is done with its stage.
        # By principal, region, run and task. So rows of one principal or region are never mistaken for rows of another.
        self._tasks: OrderedDict[tuple[Hashable, str, bytes, int], _Task] = OrderedDict()
        self._open: set[Any] = set()
        self._stopping = threading.Event()
        self._budget = _core.StageBudget(STAGED_ROWS_BYTES_MAX, STAGED_ROWS_MEMORY_MAX, memory)

    def stop(self) -> None:
        """Ends every connection. Uncommitted rows are dropped, and their clients see a failed task.

        Returns when commits under way are done, after STOP_TIMEOUT_S at the latest.
        """
        self._stopping.set()
        with self._stage_left:
            for stage in self._open:
                stage.stop()
            self._stage_left.wait_for(lambda: not self._open, STOP_TIMEOUT_S)

    def drop_expired(self, now: float) -> None:
        """Drops rows of partly applied tasks without an attempt for KEPT_S. A timer calls the method. `now`: a value of
        time.monotonic()."""
        with self._lock:
            late = [each for each in self._tasks.items() if each[1].kept_until <= now]
        for (_, _, _, number), task in late:
            if task.lock.acquire(blocking=False):
                try:
                    if task.stage is not None and task.kept_until <= now:
                        done = task.stage.applied + task.stage.missing
                        log.warning(
                            "rows of task %d are dropped: %d of %d were applied, and no attempt came for the others"
                            " within %.0f s",
                            number,
                            done,
                            task.stage.rows,
                            KEPT_S,
                        )
                        task.stage, task.kept_until, task.is_dropped = None, math.inf, True
                finally:
                    task.lock.release()

    def serve(self, connection: Connection, first: bytes) -> None:
        """Serves one client's connection until its end."""
        try:
            self._serve(connection, first)
        except ConnectivityError as error:
            _ends.info("client %s went away: %s", connection.place, error)
            data.refuse(connection.sock, error)
        except (AuthenticationError, NotAuthorizedError) as error:  # The guard has logged the reason.
            data.refuse(connection.sock, error)
        except (PywanError, MemoryError) as error:
            connection.warning("client %s refused: %s", connection.place, str(error))  # Its frames hold the rows.
            data.refuse(connection.sock, error)
        except OSError as error:
            _ends.info("client %s: %s", connection.place, error)

    def _serve(self, connection: Connection, first: bytes) -> None:
        """Receives the rows of one task, and applies the rows when the client commits."""
        sock = connection.sock
        sock.settimeout(connection.time_left())
        hello = data.receive_message(sock, gateway.ClientHello, first=first)
        permission = rows_into(hello.region)
        principal = admit(
            self._guard,
            credentials_of(hello.user, hello.password, sock.other_name),
            connection.address,
            connection.place,
            permission,
            "a client",
            connection.time_left(),
        )
        region = self._find_region(hello.region)
        if region is None:
            raise RegionNotFoundError(
                f"region {hello.region!r} is not on member {self._member_name}; create it there first"
            )
        check_takes_rows(region)
        if len(hello.run_id) != 16:
            raise ProtocolError(f"a run id has 16 bytes, not {len(hello.run_id)}")
        stage = _core.RowStage(self._directory, self._budget, run_id=hello.run_id, task=hello.task)
        with self._lock:
            if self._stopping.is_set():
                raise ProtocolError(
                    f"member {self._member_name} is stopping; send the rows to another one, or again later"
                )
            if len(self._open) >= MAX_CLIENTS:
                raise IllegalStateError(
                    f"member {self._member_name} takes rows of {MAX_CLIENTS} tasks already, the most at once; send them"
                    " to another one, or again later"
                )
            self._open.add(stage)
        try:
            connection.opened(stage.stop)
            sock.settimeout(REPLY_TIMEOUT_S)
            sock.sendall(gateway.encode(gateway.Welcome(self._site, self._member_name, 0, 0), _core.FRAME_WELCOME))
            sock.settimeout(None)
            data.keep_alive(sock)
            what = f"the rows of {connection.place}"
            with self._guard.watching(principal, permission, connection.end, what):
                outcome = stage.run(sock, RECEIVE_TIMEOUT_MS)
            if outcome == "closed":
                return  # The client left without a commit: the task failed, or runs again at another client.
            if outcome == "stopped":
                raise ProtocolError(f"rows of task {hello.task} refused: member {self._member_name} is stopping")
            if outcome != "done":
                connection.warning("client %s: rows of task %d refused: %s", connection.place, hello.task, outcome)
                return  # The stage told the client the reason.
            sock.settimeout(REPLY_TIMEOUT_S)
            committed = self._commit(principal, hello, region, stage, _Progress(sock, stage))
            sock.sendall(gateway.encode(committed, _core.FRAME_COMMITTED))
        finally:
            with self._stage_left:
                self._open.discard(stage)
                self._stage_left.notify_all()

    def _task(self, principal: Hashable | None, region: str, hello: gateway.ClientHello) -> _Task:
        """Returns the entry of a principal's (run, task) for a region. May forget the oldest entry."""
        with self._lock:
            key = principal, region, hello.run_id, hello.task
            task = self._tasks.get(key)
            if task is None:
                task = self._tasks[key] = _Task()
                while len(self._tasks) > TASKS_REMEMBERED:
                    oldest = next(iter(self._tasks))
                    # The rows are partly applied: the next attempt needs this entry.
                    if self._tasks[oldest].stage is not None:
                        self._tasks.move_to_end(oldest)
                        break
                    del self._tasks[oldest]
            return task

    def _commit(
        self, principal: Hashable | None, hello: gateway.ClientHello, region: Any, stage: Any, progress: _Progress
    ) -> gateway.Committed:
        """Applies the rows of a task, unless another attempt has applied the rows."""
        task = self._task(principal, region.name, hello)
        while not task.lock.acquire(timeout=PROGRESS_S):
            other = task.stage
            if other is not None:
                progress.tell(other.applied + other.missing)
        try:
            if task.rows is not None:
                return gateway.Committed(rows=stage.rows, applied=0, missing=0, duplicate=True)
            if task.is_dropped:
                raise IllegalStateError(
                    f"task {hello.task} was applied in part, and the rest of its rows was dropped at member"
                    f" {self._member_name} when no attempt came within {KEPT_S:.0f} s; run the job anew"
                )
            # An attempt that stopped half-way has left its rows. They are applied in place of this attempt's rows. Both
            # have the same rows, perhaps in another order.
            is_first = task.stage is None
            if is_first:
                task.stage = stage
            try:
                self._apply(task.stage, region, progress)
            except BaseException:
                # If no row is applied, the next attempt brings all rows again: no row is kept.
                if not task.stage.applied + task.stage.missing:
                    task.stage = None
                task.kept_until = math.inf if task.stage is None else time.monotonic() + KEPT_S
                raise
            task.rows, applied, missing = task.stage.rows, task.stage.applied, task.stage.missing
            task.stage, task.kept_until = None, math.inf
            return gateway.Committed(
                rows=stage.rows, applied=applied if is_first else 0, missing=missing, duplicate=not is_first
            )
        finally:
            task.lock.release()

    def _apply(self, stage: Any, region: Any, progress: _Progress) -> None:
        """Applies all rows. Raises the reason of the refusal if no row could be applied for FULL_WAIT_S."""
        done, deadline = 0, time.monotonic() + FULL_WAIT_S
        while not self._apply_some(stage, region):
            if stage.applied + stage.missing > done:
                done, deadline = stage.applied + stage.missing, time.monotonic() + FULL_WAIT_S
                progress.tell(done)
            elif time.monotonic() >= deadline or self._stopping.wait(0.05):
                raise type(stage.refusal)(
                    f"region {region.name!r}: nothing more was taken for {FULL_WAIT_S:.0f} s: {stage.refusal};"
                    f" {self._what_is_kept(stage)}"
                )

    def _apply_some(self, stage: Any, region: Any) -> bool:
        """Applies rows for about a second. Returns whether all rows are applied."""
        try:
            return bool(stage.apply(region, PROGRESS_S))
        except Exception as error:
            if not isinstance(error, (PywanError, MemoryError)):
                _lines.error("applying rows of a task to region %s failed: %s", region.name, told_error(error))
                log.debug("applying rows of a task to region %s failed", region.name, exc_info=True)
            what = str(error) if isinstance(error, PywanError) else told_error(error)
            text = f"{what}; {self._what_is_kept(stage)}"
            if isinstance(error, PywanError):
                raise type(error)(text) from error
            raise (OutOfMemoryError if isinstance(error, MemoryError) else IllegalStateError)(text) from error

    def _what_is_kept(self, stage: Any) -> str:
        """Says in words how many rows of a failed task were applied or kept."""
        done = stage.applied + stage.missing
        if not done:
            return f"none of the task's {stage.rows} rows is applied, and none is kept"
        return (
            f"{done} of the task's {stage.rows} rows are applied. The rest is kept at member {self._member_name} for"
            f" {KEPT_S / 60:.0f} minutes, and goes in when the same task is tried again there and it can be applied"
        )


def check_takes_rows(region: Any) -> None:
    """Raises IllegalStateError, before a row is sent, if several members have the region."""
    if region.route is not None:
        raise IllegalStateError(
            f"region {region.name!r} is on several members:"
            f" {Limitation.NO_ROWS_OF_CLIENTS.refusal(outcome='nothing was sent')}"
        )
