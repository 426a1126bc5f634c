"""Owns the memory of what a member has applied of every queue and stream of other sites. By it the member recognises
events that are sent again."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from pywan import _core
from pywan.base.lines import Lines
from pywan.errors import ProtocolError
from pywan.protocol import gateway

log = logging.getLogger("pywan.receiver")


class _Source:
    """The memory of one queue, and the number of connections that each of its dispatchers has now. All are of one
    mount."""

    def __init__(self, partitions: int, streams: _core.StreamMemory, name: str) -> None:
        self.mount = 0
        self.known: list[gateway.Known] = []  # What was known of other mounts when this mount first connected.
        self.memory = _core.SourceMemory(partitions, streams, name)
        self.newest: dict[int, Any] = {}  # The session of each dispatcher's newest connection.
        self.connections: collections.Counter[int] = collections.Counter()


class AppliedMemory:
    """What this member has applied of every queue of every other site, and of the streams of every sender there. The
    members of a site send the same streams, each from its own queue, so the queues of a sender share that memory.

    It outlives the receiver's stops and starts, so that events that are sent again are recognised. It is bounded: the
    queues without a connection that were not heard of for longest are forgotten first. Nothing is lost by that. A
    sender that comes back begins with the events that have no acknowledgement, and events that failed then fail again.
    """

    LIMIT = 10_000  # The number of queues.
    PARTITIONS_LIMIT = 4_000_000  # The number of their partitions. Each takes 56 bytes.
    # The number of failed events. With more, queues without a connection that have failed events are forgotten.
    # Connected queues may have twice as many.
    FAILURES_LIMIT = 2_000_000
    # The number of streams. With more, those that no connection has named are forgotten, of senders without a
    # connection. Connected senders may have twice as many. Each takes 64 bytes.
    STREAMS_LIMIT = 2_000_000
    # The connections of one dispatcher: the newest, and older ones that still apply what they brought.
    WAITING_LIMIT = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[tuple[int, str, int], _Source] = {}  # The one that was heard of last comes last.
        self._partitions = 0
        self._new = Lines(log)  # Each opening may name another queue.
        # By site and sender. A memory stays as long as one of the sender's queues is remembered.
        self._streams: weakref.WeakValueDictionary[tuple[int, str], _core.StreamMemory] = weakref.WeakValueDictionary()

    @contextlib.contextmanager
    def connected(self, hello: gateway.SenderHello) -> Iterator[tuple[Any, list[gateway.Known]]]:
        """Gives the memory of a queue that opens a connection, for as long as the connection lasts, with what is known
        of other mounts.

        A new numbering is logged. ProtocolError if there is no room for the queue, or if another mount of it is
        connected.
        """
        source = self._enter(hello)
        try:
            yield source.memory, source.known
        finally:
            with self._lock:
                source.connections[hello.dispatcher] -= 1
                source.connections += collections.Counter()  # This drops the counts that are 0.
                if not source.connections[hello.dispatcher]:
                    source.newest.pop(hello.dispatcher, None)

    def take_over(self, hello: gateway.SenderHello, session: Any) -> None:
        """Makes a session the newest one of its dispatcher. The older one ends after the event that it is applying.

        The sender sends again what the older connection has not acknowledged.
        """
        with self._lock:
            newest = self._sources[hello.site, hello.sender, hello.numbering].newest
            older, newest[hello.dispatcher] = newest.get(hello.dispatcher), session
        if older is not None:
            older.stop()

    def _enter(self, hello: gateway.SenderHello) -> _Source:
        """Counts a new connection in, and returns the memory of its queue."""
        key = hello.site, hello.sender, hello.numbering
        with self._lock:
            self._forget_failures(key)
            self._forget_streams(key)
            source = self._sources.get(key)
            if source is None:
                self._make_room(hello)
                sender = f"{hello.site}/{hello.sender}"
                streams = self._streams.get(key[:2]) or _core.StreamMemory(sender)
                self._streams[key[:2]] = streams
                source = _Source(hello.partitions, streams, f"{sender}/queue/{hello.numbering:x}/{hello.partitions}")
                self._partitions += hello.partitions
                self._new.info(
                    "gateway sender %s of %s at site %d: new queue %x with %d partitions",
                    hello.sender,
                    hello.member,
                    hello.site,
                    hello.numbering,
                    hello.partitions,
                )
            elif source.memory.partitions != hello.partitions:
                raise ProtocolError(
                    f"sender {hello.sender!r} has {hello.partitions} partitions, and had"
                    f" {source.memory.partitions} before"
                )
            elif source.connections and source.mount != hello.mount:
                for session in source.newest.values():
                    session.contest()
                raise ProtocolError(
                    f"sender {hello.sender!r} of {hello.member!r}: its queue {hello.numbering:x} is connected from"
                    " another opening of its disk store; if the store was copied, stop one of the two members."
                    " Otherwise the old connection ends within seconds"
                )
            elif source.connections[hello.dispatcher] >= self.WAITING_LIMIT:
                raise ProtocolError(
                    f"dispatcher {hello.dispatcher} of sender {hello.sender!r}: {self.WAITING_LIMIT} connections of it"
                    " are not done with what they brought; a callback of a region here may hang, or take longer than"
                    " the sender waits (socket-read-timeout)"
                )
            else:
                del self._sources[key]
            self._sources[key] = source
            if source.mount != hello.mount:
                source.memory.forget_passed_over()
                # No session applies events of this queue now.
                source.known = [gateway.Known(*each) for each in source.memory.known(hello.mount)]
                source.mount = hello.mount
            source.known = [each for each in source.known if source.memory.mount_of(each.partition) != hello.mount]
            source.connections[hello.dispatcher] += 1
            return source

    def _forget_failures(self, but: tuple[int, str, int]) -> None:
        """Forgets failed events when there are too many, but not those of the queue `but`.

        A session that finds no room to note a failed event closes its connection. Its sender connects again, which
        leads here.
        """
        for key in list(self._sources):
            if _core.remembered_failures() < self.FAILURES_LIMIT:
                return
            source = self._sources[key]
            if key == but or source.connections:
                continue
            if key[:2] != but[:2] and source.memory.streams.failures:
                source.memory.streams.forget()
            if source.memory.failures:
                self._partitions -= self._sources.pop(key).memory.partitions

    def _forget_streams(self, but: tuple[int, str, int]) -> None:
        """Forgets streams when there are too many, but not those of the sender of the queue `but`.

        A session that finds no room for streams that are named to it closes its connection. Its sender connects again,
        which leads here.
        """
        for key, source in self._sources.items():
            if _core.remembered_streams() < self.STREAMS_LIMIT:
                return
            if key[:2] != but[:2] and not source.connections:
                source.memory.streams.forget()

    def _make_room(self, hello: gateway.SenderHello) -> None:
        """Forgets queues without a connection until there is room for one more. ProtocolError if there is none."""

        def is_full() -> bool:
            return len(self._sources) >= self.LIMIT or self._partitions + hello.partitions > self.PARTITIONS_LIMIT

        if not is_full():
            return
        for key in [key for key, source in self._sources.items() if not source.connections]:
            self._partitions -= self._sources.pop(key).memory.partitions
            if not is_full():
                return
        raise ProtocolError(
            f"sender {hello.sender!r} with {hello.partitions} partitions: {len(self._sources)} queues with"
            f" {self._partitions} partitions are connected already, and at most {self.LIMIT} with"
            f" {self.PARTITIONS_LIMIT} can be; use fewer senders, dispatcher threads or buckets"
        )
