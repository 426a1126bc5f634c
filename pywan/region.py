"""Owns a region's Python face: a mutable mapping over the compiled table, and the way of changes through user code."""
from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Callable

from pywan import _core
from pywan.callback_lock import CallbackLock
from pywan.callbacks import CacheListener, GatewayConflictHelper, GatewayConflictResolver
from pywan.config import RegionAttributes
from pywan.errors import BatchError, DiskError, QueueFullError, RegionNotFoundError
from pywan.events import OPERATIONS, EntryEvent, EventSequenceID, GatewayQueueEvent, TimestampedEntryEvent

log = logging.getLogger("pywan.region")

_DONE = ("created", "updated", "destroyed")
_FAILED_NOT_FOUND, _FAILED_NO_MEMORY, _FAILED_OTHER = 1, 3, 5
_LOST = -2               # What the core is told of a remote change that lost against a later version.
_MISSING = object()


class Region(_core.RegionCore, MutableMapping):
    """Entries of this member, kept consistent with other sites through the attached gateway senders.

    `put`, `get`, `destroy`, `put_columns`, `local_destroy`, `invalidate` and `clear` are compiled (see _core.pyi).
    Creates, updates and destroys travel; gets, invalidates, local destroys and `clear` (a region operation) do not.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__      # A region is itself, not its contents.

    def __init__(
        self, name: str, clock: _core.Clock, *, site: int, member: int, stores: bool, forwards: bool, buckets: int,
        attributes: RegionAttributes, listeners: Iterable[CacheListener] = (), resolver: GatewayConflictResolver | None = None,
        alter: Callable[["Region", dict], None] | None = None,
    ) -> None:
        self.attributes = attributes
        self._site, self._member = site, member
        self._listeners = tuple(listeners)
        self._resolver = resolver
        self._alter = alter
        self._senders: dict[Any, Any] = {}          # Attached EventQueue -> GatewaySender.
        # Changes that meet user code go one at a time, so that a filter, resolver or listener sees them in the order of the queue.
        self._callback_lock = CallbackLock(name)
        self._committer: threading.Thread | None = None
        self._choose_path()

    def make_persistent(self, directory: str, *, log_id: int, synchronous: bool, flush_ms: int, **room: Any) -> None:
        """Recovers what the log in `directory` holds and logs every change from now on, within the `room` of its disk store. Before the region is used."""
        found = self.open_log(directory, log_id=log_id, synchronous=synchronous, flush_ms=flush_ms, **room)
        if found["cut_bytes"]:
            log.warning("region %s: the log ended in the middle of a write, which was not acknowledged; %d bytes were cut", self.name, found["cut_bytes"])
        if found["records"]:
            log.info("region %s: %d entries recovered from %d records", self.name, found["entries"], found["records"])
        self._committer = threading.Thread(target=self.commit_loop, name=f"region-{self.name}-log", daemon=True)
        self._committer.start()

    def close(self) -> None:
        """No change is taken any more; what was is on the disk, for a persistent region, or the log says why not."""
        super().close()
        if self._committer is not None:
            self.stop_log()
            self._committer.join(15.0)
            self._committer = None
            failing = self.log_state().get("failing")
            if failing:
                log.error("region %s: the newest changes could not be written: %s", self.name, failing)

    # What it is

    @property
    def type(self) -> str:
        return self.attributes.type

    @property
    def gateway_sender_ids(self) -> tuple[str, ...]:
        return self.attributes.gateway_sender_ids

    def alter(self, **attributes: Any) -> None:
        """Change `gateway_sender_ids`. Refused as a whole if the new set cannot be (see the errors of create_region)."""
        assert self._alter is not None
        self._alter(self, attributes)

    def attach_senders(self, senders: Iterable[Any]) -> None:
        """The cache says which senders (with `queue`, `enqueue_filters`, `substitution_filter`) take this region's events."""
        senders = list(senders)
        with self._callback_lock:
            self._senders = {sender.queue: sender for sender in senders}
            self.attach([sender.queue for sender in senders])
            self._choose_path()

    def add_listener(self, listener: CacheListener) -> None:
        with self._callback_lock:
            self._listeners += (listener,)
            self._choose_path()

    def set_resolver(self, resolver: GatewayConflictResolver | None) -> None:
        with self._callback_lock:
            self._resolver = resolver
            self._choose_path()

    def _choose_path(self) -> None:
        has_filters = any(s.enqueue_filters or s.substitution_filter is not None for s in self._senders.values())
        self.set_slow(self._change_locally if has_filters or self._listeners or self._resolver is not None else None)

    # The mapping

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, _MISSING)
        if value is _MISSING:
            if key in self:
                return None     # Invalidated: the key is there, its value is not.
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.destroy(key)

    def __iter__(self) -> Iterator[Any]:
        return self.scan_keys()

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Region {self.name} {self.type} with {len(self)} entries>"

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]], callback_argument: Any = None) -> None:
        """Puts every entry, in order, one event each. BatchError lists the entries that were refused; the others are stored."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        put, failures, rows = self.put, [], 0
        for key, value in pairs:
            try:
                put(key, value, callback_argument)
            except (QueueFullError, DiskError) as error:
                raise type(error)(f"put_all stopped at entry {rows}: {error} (the entries before it were stored)") from error
            except (TypeError, ValueError) as error:    # A key or value that cannot be carried.
                failures.append((rows, str(error).removesuffix(" (nothing was stored)").removesuffix("; nothing was stored")))
            rows += 1
        if failures:
            raise BatchError(f"region {self.name!r}: {len(failures)} of {rows} entries were refused, the others were stored; first: "
                             f"entry {failures[0][0]}: {failures[0][1]}", failures)

    def update(self, *args: Any, **more: Any) -> None:
        self.put_all(dict(*args, **more) if more or not args else args[0])

    def remove_all(self, keys: Iterable[Any], callback_argument: Any = None) -> int:
        """Destroys every key that is there, one event each, in order. Returns how many were."""
        removed = 0
        for key in keys:
            try:
                self.destroy(key, callback_argument)
                removed += 1
            except KeyError:
                pass
        return removed

    # Through user code

    def _change_locally(self, operation: int, key: Any, value: Any, callback_argument: Any, timestamp_ms: int = 0) -> str:
        with self._callback_lock:
            return self._change_with_callbacks(operation, key, value, callback_argument, None, None, timestamp_ms)

    def apply_record(self, record: bytes) -> int:
        """A remote change, from the receiver. 0: done; -2: a later version stands; a reason of failure; -1: one of our queues has no room."""
        fields = _core.record_fields(record)
        key = _core.decode_object(*fields["key"])
        value = _core.Encoded(*fields["value"])
        argument = _core.decode_object(*fields["callback"])
        version = (fields["stamp"], fields["stamp_site"])
        origin = (fields["origin_site"], fields["recipients"], fields["event_id"], fields["possible_duplicate"])
        try:
            with self._callback_lock:
                outcome = self._change_with_callbacks(fields["operation"], key, value, argument, version, origin)
            return _LOST if outcome == "lost" else 0
        except (QueueFullError, DiskError) as error:
            log.error("%s", error)
            return -1
        except MemoryError as error:
            log.error("%s", error)
            return _FAILED_NO_MEMORY
        except RegionNotFoundError:
            return _FAILED_NOT_FOUND
        except Exception:
            log.exception("region %s: a remote %s of key %r failed", self.name, OPERATIONS[fields["operation"]], key)
            return _FAILED_OTHER

    def _change_with_callbacks(
        self, operation: int, key: Any, value: Any, argument: Any, version: tuple | None, origin: tuple | None, timestamp_ms: int = 0,
    ) -> str:
        old = self.lookup(key) if self._listeners or self._resolver is not None else None
        ask = 1 if self._resolver is not None and version is not None else 0
        outcome = self.judge(operation, key, version, ask)
        if outcome == "ask":
            helper = self._resolve(operation, key, value, argument, old, version)
            if helper is not None:
                if helper.is_disallowed:
                    return "lost"
                if helper.is_changed:
                    value = helper.value
            ask = 2 if helper is not None else 0        # Decided, so applied; without a decision the later version wins.
            outcome = "destroyed" if operation == 2 else "updated"
            if ask == 0:
                outcome = self.judge(operation, key, version, 0)
        else:
            ask = 0
        if outcome == "missing":
            return outcome
        if outcome == "lost":
            return self.change(operation, key, value, argument, None, version, origin)
        # "same": it was applied before and may have to be forwarded again.
        name = {"created": "create", "updated": "update", "destroyed": "destroy", "same": OPERATIONS[operation]}[outcome]
        decisions = self._decide(name, key, value, argument, origin)
        outcome = self.change(operation, key, value, argument, decisions, version, origin, ask, timestamp_ms)
        if outcome in _DONE and self._listeners and (name != "destroy" or (old is not None and old[3])):
            self._tell_listeners(name, key, old, value, argument, origin)
        return outcome

    def _decide(self, operation: str, key: Any, value: Any, argument: Any, origin: tuple | None) -> list | None:
        if not any(s.enqueue_filters or s.substitution_filter is not None for s in self._senders.values()):
            return None
        decisions: list[Any] = []
        site, recipients, ids = origin[:3] if origin is not None else (self._site, b"", (self._member, threading.get_ident() & 0xFFFFFFFF, 0))
        event = None
        for queue in self.queues:
            sender = self._senders[queue]
            remote = sender.attributes.remote_distributed_system_id
            decision = None
            is_wanted = queue.running and remote not in recipients and (remote != site or site == self._site)
            if is_wanted and (sender.enqueue_filters or sender.substitution_filter is not None):
                if event is None:
                    event = GatewayQueueEvent(
                        self.name, operation, key, None if operation == "destroy" else value, argument, creation_timestamp=_core_now_ms(),
                        origin_site=site, possible_duplicate=False, event_id=EventSequenceID(*ids))
                decision = sender.decide_enqueue(event)
            decisions.append(decision)
        return decisions

    def _resolve(self, operation: int, key: Any, value: Any, argument: Any, old: tuple | None, version: tuple) -> GatewayConflictHelper | None:
        helper = GatewayConflictHelper()
        plain = _core.decode_object(value.form, value.data) if isinstance(value, _core.Encoded) else value
        old_value, old_stamp, old_site, _ = old if old is not None else (None, 0, 0, False)
        name = "destroy" if operation == 2 else "update"     # There is an entry, whatever the change was where it comes from.
        event = TimestampedEntryEvent(self, name, key, old_value, plain, old_stamp >> 16, version[0] >> 16, old_site, version[1], argument)
        try:
            self._resolver.on_event(event, helper)
        except Exception:
            log.exception("region %s: the conflict resolver failed for key %r; the later version wins", self.name, key)
            return None
        return helper

    def _tell_listeners(self, operation: str, key: Any, old: tuple | None, value: Any, argument: Any, origin: tuple | None) -> None:
        plain = _core.decode_object(value.form, value.data) if isinstance(value, _core.Encoded) else value
        is_remote = origin is not None
        event = EntryEvent(self, operation, key, old[0] if old else None, None if operation == "destroy" else plain, argument,
                           is_remote, origin[0] if origin is not None else self._site)
        for listener in self._listeners:
            try:
                getattr(listener, f"after_{operation}")(event)
            except Exception:
                log.exception("region %s: the listener %r failed after a %s of key %r", self.name, listener, operation, key)


def _core_now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000
