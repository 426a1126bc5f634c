"""Owns the rows that clients send in bulk until they are applied, and the memory of which tasks have been applied."""
from __future__ import annotations

import logging
import socket
import threading
import time
from collections import OrderedDict
from typing import Any, Callable

from pywan import _core
from pywan.errors import ConnectivityError, ProtocolError, PywanError, QueueFullError, RegionNotFoundError
from pywan.protocol import gateway
from pywan.transport import data

log = logging.getLogger("pywan.staging")

HANDSHAKE_TIMEOUT_S = 10.0
SILENCE_MS = 600_000            # A task may compute for long between two batches of rows.
TASKS_REMEMBERED = 200_000      # (run, task) pairs; the oldest are forgotten first.
FULL_WAIT_S = 30.0              # Less than clients wait for an answer. How long a commit waits for room in the senders' queues before it reports.


class _Task:
    """One (run, task) whose rows are being applied, or have been."""

    def __init__(self) -> None:
        self.lock = threading.Lock()        # Held by the attempt that applies.
        self.stage: Any = None              # Rows of the first attempt that committed, until all are applied.
        self.rows: int | None = None        # Set when they are.


class RowStages:
    """Serves clients' row connections. Rows are applied at commit, as a whole, once for each (run, task)."""

    def __init__(self, *, site: int, member_name: str, directory: str, find_region: Callable[[str], Any]) -> None:
        self._site, self._member_name, self._directory = site, member_name, directory
        self._find_region = find_region
        self._lock = threading.Lock()
        self._tasks: OrderedDict[tuple[bytes, int], _Task] = OrderedDict()
        self._open: set[Any] = set()
        self._stopping = threading.Event()
        self.rows_applied = 0

    def stop(self) -> None:
        """Ends every connection; what was not committed is dropped, which the client hears as a failed task."""
        self._stopping.set()
        with self._lock:
            for stage in self._open:
                stage.stop()

    def serve(self, sock: socket.socket, peer: tuple, first: bytes) -> None:
        """One client's connection, to its end."""
        try:
            self._serve(sock, first)
        except ConnectivityError as error:
            log.info("client %s:%d went away: %s", peer[0], peer[1], error)
        except (PywanError, MemoryError) as error:
            log.warning("client %s:%d refused: %s", peer[0], peer[1], error)
            data.refuse(sock, error)
        except OSError as error:
            log.info("client %s:%d: %s", peer[0], peer[1], error)

    def _serve(self, sock: socket.socket, first: bytes) -> None:
        sock.settimeout(HANDSHAKE_TIMEOUT_S)
        hello = data.receive_message(sock, gateway.ClientHello, first=first)
        region = self._find_region(hello.region)
        if region is None:
            raise RegionNotFoundError(f"region {hello.region!r} is not on member {self._member_name}; create it there first")
        if len(hello.run_id) != 16:
            raise ProtocolError(f"a run id has 16 bytes, not {len(hello.run_id)}")
        stage = _core.RowStage(self._directory)
        with self._lock:
            if self._stopping.is_set():
                raise ProtocolError(f"member {self._member_name} is stopping; send the rows to another one, or again later")
            self._open.add(stage)
        try:
            sock.sendall(gateway.encode(gateway.Welcome(self._site, self._member_name, 0, 0), _core.FRAME_WELCOME))
            sock.settimeout(None)
            outcome = stage.receive(sock.fileno(), SILENCE_MS)
            if outcome == "closed":
                return      # Without commit: the task failed, or runs again elsewhere.
            if outcome != "commit":
                raise ProtocolError(f"rows of task {hello.task} refused: {outcome}")
            committed = self._commit(hello, region, stage)
            sock.settimeout(HANDSHAKE_TIMEOUT_S)
            sock.sendall(gateway.encode(committed, _core.FRAME_COMMITTED))
        finally:
            with self._lock:
                self._open.discard(stage)

    def _task(self, hello: gateway.ClientHello) -> _Task:
        with self._lock:
            key = hello.run_id, hello.task
            task = self._tasks.get(key)
            if task is None:
                task = self._tasks[key] = _Task()
                while len(self._tasks) > TASKS_REMEMBERED:
                    oldest = next(iter(self._tasks))
                    if self._tasks[oldest].stage is not None:       # Half applied: it is what makes the next attempt right.
                        self._tasks.move_to_end(oldest)
                        break
                    del self._tasks[oldest]
            return task

    def _commit(self, hello: gateway.ClientHello, region: Any, stage: Any) -> gateway.Committed:
        task = self._task(hello)
        with task.lock:
            if task.rows is not None:
                return gateway.Committed(rows=stage.rows, applied=0, missing=0, duplicate=True)
            # Rows of an attempt that stopped half-way come first, and instead: this attempt's are the same, perhaps in another order.
            is_first = task.stage is None
            if is_first:
                task.stage = stage
            self._apply(task.stage, region, hello)
            task.rows, applied, missing = task.stage.rows, task.stage.applied, task.stage.missing
            task.stage = None
            self.rows_applied += applied
            return gateway.Committed(rows=stage.rows, applied=applied if is_first else 0, missing=missing, duplicate=not is_first)

    def _apply(self, stage: Any, region: Any, hello: gateway.ClientHello) -> None:
        deadline = time.monotonic() + FULL_WAIT_S
        while not stage.apply(region):
            if time.monotonic() >= deadline or self._stopping.wait(0.05):
                raise QueueFullError(
                    f"region {region.name!r}: the gateway senders' queues had no room for {FULL_WAIT_S:.0f} s after {stage.applied + stage.missing} of"
                    f" {stage.rows} rows, which are applied; the rest is kept at member {self._member_name} and goes in when the same task is"
                    " tried again there - free disk space")
