"""Owns a region's Python face: a mutable mapping over the compiled table, and the way of changes through user code."""
from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from typing import Any, Callable, overload

from pywan import _core, forks
from pywan._core import Encoded
from pywan.region.callback_lock import CallbackLock
from pywan.callbacks import CacheListener, GatewayConflictHelper, GatewayConflictResolver
from pywan.config.attributes import RegionAttributes, RegionChanges
from pywan.config.classes import let_through
from pywan.config.table import takes_changes
from pywan.errors import BatchError, ConfigurationError, DiskError, IllegalStateError, QueueFullError, RegionNotFoundError
from pywan.events import OPERATIONS, EntryEvent, EventSequenceID, GatewayQueueEvent, TimestampedEntryEvent
from pywan.base.lines import Lines
from pywan.base.threads import start_thread

log = logging.getLogger("pywan.region")

_DONE = ("created", "updated", "destroyed")
_FAILED_NOT_FOUND, _FAILED_NO_MEMORY, _FAILED_OTHER, _FAILED_FORGOTTEN = 1, 3, 5, 6
_LOST = -2               # What the core is told of a remote change that lost against a later version.
_MISSING = object()


class _Items(ItemsView):
    """Every entry, in one pass: one that is destroyed meanwhile is left out, and what is no object in this process is shown as Undecodable."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        region = self._mapping
        for key in region:
            value = region.show(key, _MISSING)
            if value is not _MISSING:
                yield key, value
            elif key in region:
                yield key, None         # Invalidated.


class _Values(ValuesView):
    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in _Items(self._mapping))


class Region(_core.RegionCore, MutableMapping):
    """Entries of this member, kept consistent with other sites through the attached gateway senders.

    `put`, `get`, `destroy`, `put_columns`, `local_destroy` and `invalidate` are compiled (see _core/__init__.pyi).
    Creates, updates and destroys travel; gets, invalidates, local destroys and `clear` (a region operation) do not.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__      # A region is itself, not its contents.

    def __init__(
        self, name: str, clock: _core.Clock, *, site: int, member: int, stores: bool, forwards: bool, buckets: int,
        attributes: RegionAttributes, listeners: Iterable[CacheListener] = (), resolver: GatewayConflictResolver | None = None,
        alter: Callable[["Region", dict[str, Any]], None] | None = None,
    ) -> None:
        self.attributes = attributes
        self._site = site
        self._listeners = tuple(listeners)
        self._resolver = resolver
        self._alter = alter
        self._lines = Lines(log)                    # About callbacks and events that fail.
        self._senders: dict[Any, Any] = {}          # Attached EventQueue -> SenderCore.
        # Changes that meet user code go one at a time, so that a filter, resolver or listener sees them in the order of the queue.
        self._callback_lock = CallbackLock(name)
        self._committer: threading.Thread | None = None
        self.set_slow(self._path())

    def make_persistent(
        self, directory: str, *, log_id: int, synchronous: bool, flush_ms: int, start_writer: Callable[[str, Callable[[], None]], None] | None = None, **room: Any,
    ) -> None:
        """Recovers what the log in `directory` holds and logs every change from now on, within the `room` of its disk store, which runs its writer
        in a thread (by name) with `start_writer`, and waits for it. None: the region does. Before the region is used."""
        found = self.open_log(directory, log_id=log_id, synchronous=synchronous, flush_ms=flush_ms, **room)
        if found["cut_bytes"]:
            log.warning("region %s: the log ended in the middle of a write, which was not acknowledged; %d bytes were cut", self.name, found["cut_bytes"])
        if found["records"]:
            log.info("region %s: %d entries recovered from %d records", self.name, found["entries"], found["records"])
        if start_writer is not None:
            start_writer(f"region-{self.name}-log", self.commit_loop)
            return
        self._committer = start_thread(f"region {self.name!r}: nobody writes its log", f"region-{self.name}-log", self.commit_loop)

    def close(self) -> None:
        """Every operation is refused from now on, and the log of a persistent region ends with what was changed: who runs its writer waits for
        that. In a child that was forked: nothing."""
        if self.is_inherited:
            return
        super().close()
        self.stop_log()
        if self._committer is not None:
            self._committer.join()
            self._committer = None
            self.say_unwritten()
        self.release_entries()

    def log_trouble(self) -> str | None:
        """Why its log is not written now; None: it is."""
        return self.log_state().get("failing")

    def say_unwritten(self) -> None:
        """After its log has ended: why some of it could not be written."""
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

    @takes_changes(RegionChanges)
    def alter(self, attributes: dict[str, Any]) -> None:
        """Change `gateway_sender_ids`. Refused as a whole if the new set cannot be (see the errors of create_region)."""
        assert self._alter is not None
        self._check_process()
        self._alter(self, attributes)

    def _check_process(self) -> None:
        """Before a lock is taken: in a forked child it may be held by a thread of the parent."""
        if self.is_inherited:
            raise forks.error(f"region {self.name!r}")

    def _check_open(self) -> None:
        """Before what changes, reads or waits: with nothing to do it would answer as if the region were there. What describes it answers always."""
        self._check_process()
        if self.is_closed:
            raise RegionNotFoundError(f"region {self.name!r} was destroyed, or its cache closed; nothing was changed")

    def attach_senders(self, senders: Iterable[Any]) -> None:
        """The cache says which senders (with `queue`, `filters`) take this region's events."""
        senders = list(senders)
        with self._callback_lock:
            self._senders = {sender.queue: sender for sender in senders}
            self.attach([sender.queue for sender in senders], self._path())

    def add_listener(self, listener: CacheListener) -> None:
        self._check_open()
        with self._callback_lock:
            self._listeners += (listener,)
            self.set_slow(self._path())

    def set_resolver(self, resolver: GatewayConflictResolver | None) -> None:
        self._check_process()
        with self._callback_lock:
            self._resolver = resolver
            self.set_slow(self._path())

    def _path(self) -> Callable[..., str] | None:
        """How changes go from now on: through the user's callbacks, where there are any."""
        has_filters = any(sender.filters.decides_enqueue for sender in self._senders.values())
        return self._change_locally if has_filters or self._listeners or self._resolver is not None else None

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

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = "of the parent process" if self.is_inherited else "closed" if self.is_closed else f"with {len(self)} entries"
        return f"<Region {self.name} {self.type} {state}>"

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]], callback_argument: Any = None) -> None:
        """Puts every entry, in order, one event each. BatchError lists the entries that were refused; the others are stored."""
        self._check_open()
        put, failures, rows = self.put, [], 0
        with _core.OneWait(self):       # A synchronous region's disk is waited for once.
            for key, value in self._pairs(entries):
                try:
                    put(key, value, callback_argument)
                except (QueueFullError, DiskError, RegionNotFoundError) as error:
                    others = f", but for {len(failures)} that were refused; first: entry {failures[0][0]}: {failures[0][1]}" if failures else ""
                    raise type(error)(f"put_all stopped at entry {rows}: {error} (the entries before it were stored{others})") from error
                except (TypeError, ValueError) as error:    # A key or value that cannot be carried.
                    failures.append((rows, str(error).removesuffix(" (nothing was stored)").removesuffix("; nothing was stored")))
                rows += 1
        if failures:
            raise BatchError(f"region {self.name!r}: {len(failures)} of {rows} entries were refused, the others were stored; first: "
                             f"entry {failures[0][0]}: {failures[0][1]}", failures)

    def _pairs(self, entries: Any) -> Iterator[tuple[Any, Any]]:
        """ConfigurationError at the first entry that is no pair."""
        try:
            given = iter(entries.items() if isinstance(entries, Mapping) else entries)
        except TypeError:
            raise ConfigurationError(f"region {self.name!r}: {entries!r:.80} is neither a mapping nor pairs of keys and values; nothing was stored") from None
        for row, pair in enumerate(given):
            try:
                key, value = pair
            except (TypeError, ValueError):
                raise ConfigurationError(f"region {self.name!r}: entry {row} is no pair of a key and a value: {pair!r:.80} (the entries before it were stored)") from None
            yield key, value

    def update(self, entries: Any = (), /, **more: Any) -> None:
        self.put_all(itertools.chain(self._pairs(entries), more.items()) if more else entries)

    def __ior__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> "Region":
        self.put_all(entries)
        return self

    # Conditional changes: what is there is looked at and changed as one step, for all who change the key. They travel as create, update, destroy.

    def put_if_absent(self, key: Any, value: Any, callback_argument: Any = None) -> Any:
        """Stores `value` unless the key has one. Returns the value that is there already; None: `value` was stored."""
        return self.change_if("absent", 1, key, value, None, callback_argument)[2]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of the key, which is `default` from now on if it had none."""
        is_stored, _, found = self.change_if("absent", 1, key, default)
        return default if is_stored else found

    @overload
    def replace(self, key: Any, value: Any, /) -> Any: ...
    @overload
    def replace(self, key: Any, old: Any, new: Any, /) -> bool: ...

    def replace(self, key: Any, *values: Any) -> Any:
        """`replace(key, value)`: stores `value` if the key has one, which is returned; None: it has none. `replace(key, old, new)`: stores `new`
        if the key has the value `old`, and returns whether it did. Values are equal that are in the same bytes once encoded."""
        if len(values) == 2:
            return self.change_if("equal", 1, key, values[1], values[0])[0]
        if len(values) != 1:
            raise TypeError(f"replace(key, value) or replace(key, old, new), not {1 + len(values)} arguments; nothing was changed")
        return self.change_if("value", 1, key, values[0])[2]

    def remove(self, key: Any, value: Any, callback_argument: Any = None) -> bool:
        """Destroys the key everywhere if it has this value, equal as for `replace`. Returns whether it did."""
        return self.change_if("equal", 2, key, None, value, callback_argument)[0]

    def pop(self, key: Any, default: Any = _MISSING, /) -> Any:
        """Destroys the key everywhere and returns the value that it had; None if it was invalidated. `default`, or KeyError, if it is not there."""
        is_done, _, found = self.change_if("there", 2, key)
        if is_done:
            return found
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Any, Any]:
        """Destroys some key everywhere and returns it with its value. KeyError if there is none."""
        for key in self:
            value = self.pop(key, _MISSING)
            if value is not _MISSING:
                return key, value
        raise KeyError(f"region {self.name!r} is empty")

    def clear(self, local: bool = False) -> int:
        """Removes every entry of this site's region, and returns how many. Nothing is sent, so on a region that feeds gateway senders it is
        refused unless `local` says that other sites are to keep theirs."""
        self._check_open()
        if not local and self.attributes.feeds_gateways and self.gateway_sender_ids:
            raise IllegalStateError(
                f"region {self.name!r} feeds gateway senders ({', '.join(self.gateway_sender_ids)}), and clear() sends nothing: nothing was removed. Use"
                " clear(local=True) to empty this site's region alone, or remove_all(list(region)) to destroy the entries everywhere")
        return super().clear()

    def remove_all(self, keys: Iterable[Any], callback_argument: Any = None) -> int:
        """Destroys every key that is there, one event each, in order. Returns how many were."""
        self._check_open()
        removed = 0
        with _core.OneWait(self):
            for key in keys:
                try:
                    self.destroy(key, callback_argument)
                    removed += 1
                except KeyError:
                    pass
                except (QueueFullError, DiskError, RegionNotFoundError) as error:
                    raise type(error)(f"remove_all stopped at key {key!r}: {error} ({removed} were destroyed before)") from error
        return removed

    # Through user code

    # Keys, values and callback arguments go through here as Encoded: in the bytes in which they came, whatever user code makes of their objects.

    def _change_locally(
        self, operation: int, key: Any, value: Any, callback_argument: Any, timestamp_ms: int = 0, condition: _core.Condition | None = None,
    ) -> str:
        key, value, argument = _core.encoded_key(key), _core.encoded_value(value), _core.encoded_value(callback_argument)
        with self._callback_lock:
            return self._change_with_callbacks(operation, key, value, argument, None, None, timestamp_ms, condition)

    def apply_record(self, record: bytes) -> int:
        """A remote change, from the receiver. 0: done; -2: a later version stands; a reason of failure.
        QueueFullError, DiskError: one of our queues or logs does not take it now."""
        fields = _core.record_fields(record)
        key, value, argument = Encoded(*fields["key"]), Encoded(*fields["value"]), Encoded(*fields["callback"])
        version = (fields["stamp"], fields["stamp_site"])
        origin = (fields["origin_site"], fields["recipients"], fields["event_id"], fields["possible_duplicate"], _core.record_flags(record))
        try:
            with self._callback_lock:
                outcome = self._change_with_callbacks(fields["operation"], key, value, argument, version, origin)
            return {"lost": _LOST, "forgotten": _FAILED_FORGOTTEN}.get(outcome, 0)
        except (QueueFullError, DiskError):
            raise
        except MemoryError:
            return _FAILED_NO_MEMORY        # The receiver says it.
        except RegionNotFoundError:
            return _FAILED_NOT_FOUND
        except Exception:
            self._lines.exception("region %s: a remote %s of key %r failed", self.name, OPERATIONS[fields["operation"]], key)
            return _FAILED_OTHER

    def _change_with_callbacks(
        self, operation: int, key: Encoded, value: Encoded, argument: Encoded, version: tuple[Any, ...] | None, origin: tuple[Any, ...] | None, timestamp_ms: int = 0,
        condition: _core.Condition | None = None,
    ) -> str:
        old = self.lookup(key) if self._listeners or self._resolver is not None else None
        ask = 1 if self._resolver is not None and version is not None else 0
        flags = origin[4] if origin is not None and len(origin) > 4 else 0
        outcome = self.judge(operation, key, version, ask, value if version is not None else None, condition, flags)
        if outcome == "ask":
            helper = self._resolve(operation, key, value, argument, old, version)
            if helper is not None:
                if helper.is_disallowed:
                    return "lost"
                if helper.is_changed:
                    value = _core.encoded_value(helper.value)
            ask = 2 if helper is not None else 0        # Decided, so applied; without a decision the later version wins.
            outcome = "destroyed" if operation == 2 else "updated"
            if ask == 0:
                outcome = self.judge(operation, key, version, 0, value, flags=flags)
        else:
            ask = 0
        if outcome in ("missing", "unmet", "forgotten"):
            return outcome
        made = origin if origin is not None else (self._site, b"", self.next_event_id())     # By one id at every place where it is seen.
        if outcome == "lost":
            return self.change(operation, key, value, argument, (), version, made)
        # "same": it was applied before and may have to be forwarded again.
        name = {"created": "create", "updated": "update", "destroyed": "destroy", "same": OPERATIONS[operation]}[outcome]
        decisions = self._decide(name, key, value, argument, made)
        outcome = self.change(operation, key, value, argument, decisions, version, made, ask, timestamp_ms, condition)
        if outcome in _DONE and self._listeners and (name != "destroy" or (old is not None and old[3])):
            self._tell_listeners(name, key, old, value, argument, origin)
        return outcome

    def _decide(self, operation: str, key: Encoded, value: Encoded, argument: Encoded, made: tuple[Any, ...]) -> Sequence[Any]:
        if not any(sender.filters.decides_enqueue for sender in self._senders.values()):
            return ()
        decisions: list[Any] = []
        site, recipients, ids = made[:3]
        event = None
        for queue in self.queues:
            sender = self._senders[queue]
            remote = sender.attributes.remote_distributed_system_id
            decision = None
            is_wanted = queue.running and remote not in recipients and (remote != site or site == self._site)
            if is_wanted and sender.filters.decides_enqueue:
                if event is None:
                    event = GatewayQueueEvent(
                        self.name, operation, key, None if operation == "destroy" else value, argument, creation_timestamp=_core_now_ms(),
                        origin_site=site, possible_duplicate=False, event_id=EventSequenceID(*ids))
                decision = sender.filters.decide_enqueue(event)
            decisions.append(decision)
        return decisions

    # Repair of the clock

    def restamp(self, repair: _core.ClockRepair, key: Encoded) -> bool:
        """The entry, or tombstone, of a key is changed to what it is, with a stamp of now. Filters are asked; listeners are not told, since nothing changes for
        them. False: there is none."""
        with self._callback_lock:
            old = self.lookup(key)
            if old is None:
                return False
            made = (self._site, b"", self.next_event_id())
            decisions = self._decide("update" if old[3] else "destroy", key, _core.encoded_value(old[0]), _core.encoded_value(None), made)
            return repair.restamp_key(self, key, decisions)

    def remake(self, repair: _core.ClockRepair, record: bytes) -> bool:
        """An event is queued whose stamp is ahead, and of its key there is an older version: that of a repair that was killed, or another site's which came after a
        restart without entries. What the event says is made again; what is there, if it is this site's. False: it was changed meanwhile."""
        fields = _core.record_fields(record)
        key = Encoded(*fields["key"])
        found = self.lookup(key)
        if found is None or found[1] >= repair.began:
            return False
        is_destroy = fields["operation"] == 2
        if found[2] == self._site or (is_destroy and not found[3]):
            return self.restamp(repair, key)
        if not is_destroy:
            self.put(key, Encoded(*fields["value"]), Encoded(*fields["callback"]))
            return True
        try:
            self.destroy(key)
        except KeyError:
            return False
        return True

    def _resolve(
        self, operation: int, key: Encoded, value: Encoded, argument: Encoded, old: tuple[Any, ...] | None, version: tuple[Any, ...],
    ) -> GatewayConflictHelper | None:
        helper = GatewayConflictHelper()
        old_value, old_stamp, old_site, _ = old if old is not None else (None, 0, 0, False)
        name = "destroy" if operation == 2 else "update"     # There is an entry, whatever the change was where it comes from.
        event = TimestampedEntryEvent(
            self, name, key.plain, old_value, value.plain, old_stamp >> 16, version[0] >> 16, old_site, version[1], argument.plain)
        try:
            self._resolver.on_event(event, helper)
        except BaseException as error:
            let_through(error)
            self._lines.exception("region %s: the conflict resolver failed for key %r; the later version wins", self.name, key)
            return None
        return helper

    def _tell_listeners(self, operation: str, key: Encoded, old: tuple[Any, ...] | None, value: Encoded, argument: Encoded, origin: tuple[Any, ...] | None) -> None:
        is_remote = origin is not None
        event = EntryEvent(self, operation, key.plain, old[0] if old else None, None if operation == "destroy" else value.plain, argument.plain,
                           is_remote, origin[0] if origin is not None else self._site)
        for listener in self._listeners:
            try:
                getattr(listener, f"after_{operation}")(event)
            except BaseException as error:
                let_through(error)
                self._lines.exception("region %s: the listener %r failed after a %s of key %r", self.name, listener, operation, key)


def _core_now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000
