"""Owns a TCP proxy that makes a link slow, narrow, silent, broken or wrong, on command and while connections
are open."""

from __future__ import annotations

import asyncio
import collections
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pywan.base.addresses import Address, parse_address, resolve
from pywan.errors import ConfigurationError, IllegalStateError
from pywan.forks import of_one_process
from pywan.transport import sockets

log = logging.getLogger("pywan.fault_proxy")

TO_TARGET, TO_CLIENT = "to_target", "to_client"
CHUNK_BYTES = 256 * 1024
# So many bytes of one direction of one connection wait for their delay. After that, no more are read.
IN_FLIGHT_BYTES = 64 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 1024
SLICE_S = 0.01  # With a narrow bandwidth, no piece takes longer than this.


@dataclass
class _Faults:
    """The faults of one direction, over all connections."""

    bandwidth: float = 0.0  # In bytes a second. 0: no limit.
    free_at: float = 0.0  # The time when a line of that width has carried all that it was given.
    corrupt: int = 0  # The number of chunks that are still to be damaged.
    cut_after: int | None = None  # After so many bytes, the connection that carries more is cut. None: it is not.
    carried: int = 0  # The bytes so far.


@of_one_process(lambda proxy: "a fault proxy", nothing_in_child=("stop",))
class FaultProxy:
    """Forwards `listen_host`[`port`] to `target`, with faults on command.

    Every command may be given at any time, from any thread. It has taken effect when it returns. The directions are
    "to_target" (bytes that clients send) and "to_client". Latency holds for each chunk. All connections of a direction
    share its bandwidth.
    """

    def __init__(
        self, target: Address | tuple[str, int] | str, listen_host: str = "127.0.0.1", listen_port: int = 0
    ) -> None:
        self.target = parse_address(target) if isinstance(target, str) else Address(*target)
        self.listen_host = listen_host
        self._wanted_port = listen_port
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port = listen_port
        # Only the loop's thread uses the fields below.
        self._faults = {TO_TARGET: _Faults(), TO_CLIENT: _Faults()}
        self._latency_s = 0.0
        self._links: set[_Connection] = set()
        self._acceptor: asyncio.Task[None] | None = None
        self._running = asyncio.Event()  # It is clear while the link hangs.
        self._accepted = 0

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> Address:
        return Address(self.listen_host, self._port)

    def next_target(self) -> Address:
        """Returns where a new connection goes. A subclass that balances has several targets."""
        return self.target

    def start(self) -> FaultProxy:
        """Listens. PortInUseError if it cannot."""
        if self._thread is not None:
            raise IllegalStateError("the fault proxy was started already")
        self._listen()
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name=f"fault-proxy-{self._port}", daemon=True)
        self._thread.start()
        self._do(self._open())
        return self

    def stop(self) -> None:
        """Breaks all connections and ends the thread. It is no error to stop it again."""
        if self._thread is None or not self._thread.is_alive():
            return
        self._do(self._shut())
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(COMMAND_TIMEOUT_S)

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --- commands ---

    def cut(self) -> None:
        """Resets every connection and refuses new ones until `restore`."""
        self._do(self._shut())

    def hang(self) -> None:
        """Becomes a black hole: connections stay open, new ones are accepted, and no byte gets through until
        `restore`."""
        self._do(self._call(self._running_clear))

    def restore(self) -> None:
        """Undoes `cut` and `hang`: it listens again on the same port, and bytes that waited go on. Latency and
        bandwidth stay."""
        self._do(self._open())

    def set_latency_ms(self, one_way: float) -> None:
        """Makes every chunk arrive so many milliseconds later, in each direction. 0: no delay."""
        if one_way < 0:
            raise ConfigurationError(f"latency {one_way} ms is negative")
        self._do(self._call(lambda: setattr(self, "_latency_s", one_way / 1000)))

    def set_bandwidth(self, bytes_per_s: float) -> None:
        """Sets the width of the link in each direction. 0: no limit."""
        if bytes_per_s < 0:
            raise ConfigurationError(f"bandwidth {bytes_per_s} bytes/s is negative")

        def change() -> None:
            for faults in self._faults.values():
                faults.bandwidth, faults.free_at = bytes_per_s, 0.0

        self._do(self._call(change))

    def corrupt_next(self, direction: str = TO_TARGET) -> None:
        """Flips one bit in the middle of the next chunk that passes in this direction."""
        faults = self._direction(direction)
        self._do(self._call(lambda: setattr(faults, "corrupt", faults.corrupt + 1)))

    def cut_after_bytes(self, direction: str, n: int) -> None:
        """Lets exactly `n` more bytes pass in this direction. Then it resets the connection that carries more. This
        happens once."""
        faults = self._direction(direction)
        if n < 0:
            raise ConfigurationError(f"cut_after_bytes: {n} is negative")
        self._do(self._call(lambda: setattr(faults, "cut_after", n)))

    def statistics(self) -> dict[str, int]:
        """Returns the open connections, the connections accepted so far, and the bytes carried in each direction."""
        counts: dict[str, int] = self._do(
            self._call(
                lambda: {
                    "open": len(self._links),
                    "accepted": self._accepted,
                    TO_TARGET: self._faults[TO_TARGET].carried,
                    TO_CLIENT: self._faults[TO_CLIENT].carried,
                }
            )
        )
        return counts

    def _direction(self, direction: str) -> _Faults:
        try:
            return self._faults[direction]
        except KeyError:
            raise ConfigurationError(f"direction {direction!r} is neither {TO_TARGET!r} nor {TO_CLIENT!r}") from None

    # --- the loop's thread ---

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._thread is None or not self._thread.is_alive():
            work.close()
            raise IllegalStateError("the fault proxy does not run; start it first")
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(COMMAND_TIMEOUT_S)

    @staticmethod
    async def _call(change: Callable[[], Any]) -> Any:
        return change()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _running_clear(self) -> None:
        self._running.clear()

    def _listen(self) -> socket.socket:
        listener = self._listener = sockets.listen(self.listen_host, self._port, what="fault proxy")
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        return listener

    async def _open(self) -> None:
        listener = self._listener or self._listen()
        if self._acceptor is None:
            self._acceptor = asyncio.create_task(self._accept(listener))
        self._running.set()

    async def _shut(self) -> None:
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.cancel()
            await asyncio.gather(acceptor, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await asyncio.gather(*(link.reset() for link in list(self._links)))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("fault proxy %s: could not accept: %s", self.address, error)
                await asyncio.sleep(0.05)
                continue
            if len(self._links) >= MAX_CONNECTIONS:
                client.close()
                continue
            self._accepted += 1
            link = _Connection(self, client)
            self._links.add(link)
            link.task = asyncio.create_task(link.run())


class _CutShort(ConnectionAbortedError):
    """The wanted number of bytes has passed to `sink`. A reset there could throw the last of them away."""

    def __init__(self, sink: socket.socket) -> None:
        super().__init__("cut after the wanted number of bytes")
        self.sink = sink


class _Connection:
    """One client, its connection to the target, and a reader and a writer for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._target: socket.socket | None = None
        self.task: asyncio.Task[None] | None = None
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def reset(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def run(self) -> None:
        gentle: set[socket.socket] = set()  # These are closed with an end and not with a reset.
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._proxy._running.wait()
            target = await self._connect()
            pipes = (
                _Pipe(self._proxy, TO_TARGET, self._client, target),
                _Pipe(self._proxy, TO_CLIENT, target, self._client),
            )
            tasks = [asyncio.create_task(work()) for pipe in pipes for work in (pipe.read, pipe.write)]
            await asyncio.gather(*tasks)
            gentle = {self._client, target}
        except _CutShort as cut:
            gentle = {cut.sink}
        except OSError as error:
            log.debug("fault proxy %s: connection ended: %s", self._proxy.address, error)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.gather(*tasks, return_exceptions=True)
            for sock in (self._client, self._target):
                if sock is not None:
                    if sock not in gentle:
                        # With no time to linger, closing is a reset: the peer sees a break and not an end.
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.close()
            self._proxy._links.discard(self)

    async def _connect(self) -> socket.socket:
        to = self._proxy.next_target()
        ip = resolve(to.host, CONNECT_TIMEOUT_S)
        sock = self._target = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):  # TimeoutError is an OSError.
            await asyncio.get_running_loop().sock_connect(sock, (ip, to.port))
        return sock


class _Pipe:
    """One direction of one connection. Bytes that were read wait for their time. Then they are written."""

    def __init__(self, proxy: FaultProxy, direction: str, source: socket.socket, sink: socket.socket) -> None:
        self._proxy = proxy
        self._faults = proxy._faults[direction]
        self._source = source
        self._sink = sink
        # (time to write, bytes; b"" is the end)
        self._waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self._bytes = 0
        self._moved = asyncio.Event()  # Set when something was put in or taken out.

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            faults = self._faults
            size = CHUNK_BYTES
            if faults.bandwidth:
                size = max(1, min(CHUNK_BYTES, int(faults.bandwidth * SLICE_S)))
            data = await loop.sock_recv(self._source, size)
            now = time.monotonic()
            at = now
            if faults.bandwidth and data:
                at = faults.free_at = max(now, faults.free_at) + len(data) / faults.bandwidth
            self._waiting.append((at + self._proxy._latency_s, data))
            self._bytes += len(data)
            self._moved.set()
            if not data:
                return
            # A narrow line holds what fits into its delay and a little more. A larger buffer would be unlike a real
            # link.
            limit = IN_FLIGHT_BYTES
            if faults.bandwidth:
                limit = min(limit, int(faults.bandwidth * (self._proxy._latency_s + 5 * SLICE_S)) + 1)
            while self._bytes > limit:
                self._moved.clear()
                await self._moved.wait()

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                self._moved.clear()
                await self._moved.wait()
            at, data = self._waiting[0]
            wait = at - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            await self._proxy._running.wait()
            if not data:
                self._sink.shutdown(socket.SHUT_WR)
                return
            await self._forward(loop, data)
            self._waiting.popleft()
            self._bytes -= len(data)
            self._moved.set()

    async def _forward(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        faults = self._faults
        if faults.corrupt:
            faults.corrupt -= 1
            changed = bytearray(data)
            changed[len(changed) // 2] ^= 0x01
            data = bytes(changed)
        left = faults.cut_after
        if left is None:
            await loop.sock_sendall(self._sink, data)
            faults.carried += len(data)
            return
        if len(data) > left:
            faults.cut_after = None
            await loop.sock_sendall(self._sink, data[:left])
            faults.carried += left
            raise _CutShort(self._sink)
        faults.cut_after = left - len(data)
        await loop.sock_sendall(self._sink, data)
        faults.carried += len(data)
