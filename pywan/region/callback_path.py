"""Owns the path of a region's changes through user code: filters of its senders, the conflict resolver, listeners."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pywan import _core
from pywan._core import Encoded
from pywan.base.lines import Lines
from pywan.callbacks import CacheListener, GatewayConflictHelper, GatewayConflictResolver
from pywan.config.classes import let_through, overrides
from pywan.errors import DiskError, PywanError, QueueFullError, RegionNotFoundError
from pywan.events import OPERATIONS, EntryEvent, EventSequenceID, GatewayQueueEvent, TimestampedEntryEvent

if TYPE_CHECKING:
    from pywan.region.member_region import MemberRegion

log = logging.getLogger("pywan.region")

_DONE = ("created", "updated", "destroyed")
# The result of an event for the receiver; all other outcomes mean "applied".
_APPLIED = {
    "lost": _core.APPLY_LOST,
    "forgotten": _core.FAILED_FORGOTTEN,
    "not primary": _core.APPLY_NOT_PRIMARY,
}

Entry = tuple[Any, int, int, bool]  # The entry of a key: value, stamp, site, whether it is live.
Verdicts = dict[_core.EventQueue, Any]  # The verdicts of the asked filters, by the attached queue.

# The call that asks for a change: client id, slot, number; the row if the call has many; the epoch since which the call
# is a repeat (`CallRoute.change`), 0 if the call is no repeat.
Call = tuple[int, int, int, int | None, int]


class Origin(NamedTuple):
    """The origin site of an event, and the sites that the event has reached. An argument of `RegionCore.change`."""

    site: int
    recipients: bytes
    event_id: tuple[int, int, int]
    possible_duplicate: bool = False
    flags: int = 0
    call: Call | None = None
    place: bytes | None = None  # The event's place in the stream of arrival. Queues recognise events by place.


class Change(NamedTuple):
    """One change, in the bytes of its arrival. The bytes stay the same whatever user code does with its objects."""

    operation: int
    key: Encoded
    value: Encoded
    argument: Encoded
    origin: Origin  # The event has the same identity everywhere.
    version: tuple[int, int] | None = None  # The (stamp, site) of a remote change. None: the change is made here.
    timestamp_ms: int = 0
    condition: _core.Condition | None = None

    @property
    def made_ms(self) -> int:
        """The time of the change in milliseconds since 1970, by the clock of the site that made the change."""
        if self.version is not None:
            return self.version[0] >> 16
        now_ms = time.time_ns() // 1_000_000
        return min(self.timestamp_ms, now_ms) if self.timestamp_ms > 0 else now_ms


def _change_of(record: bytes, position: tuple[int, int, bool, bytes | None]) -> Change:
    """Returns the change that an event of a remote site makes. `position` as for `CallbackPath.apply_record`."""
    fields = _core.record_fields(record)
    origin = Origin(
        fields["origin_site"],
        fields["recipients"],
        fields["event_id"],
        position[2],
        fields["flags"],
        place=position[3],
    )
    return Change(
        fields["operation"],
        Encoded(*fields["key"]),
        Encoded(*fields["value"]),
        Encoded(*fields["callback"]),
        origin,
        (fields["stamp"], fields["stamp_site"]),
    )


class _IsShared(Exception):
    """Members share the region since the change took the lock. The change was not made."""


class CallbackPath(_core.RegionCallbacks):
    """The changes of one region that meet user code. They go one at a time, under `lock`.

    The compiled half calls the listeners, and makes the changes that meet nothing else. The changes that meet filters,
    or a conflict that the resolver decides, are made here.

    So a filter, resolver or listener sees the changes in the order of the queue. From the moment when several members
    share the region, its changes take the fast path, and a thread notifies its listeners (`notify_listeners`): no lock
    is held while a change waits for replicas.
    """

    if TYPE_CHECKING:  # Compiled: see pywan._core.

        @property
        def region(self) -> MemberRegion: ...

    def __init__(
        self,
        region: MemberRegion,
        site: int,
        listeners: Iterable[CacheListener],
        resolver: GatewayConflictResolver | None,
    ) -> None:
        self._senders: dict[_core.EventQueue, Any] = {}  # The SenderCore of each attached queue. `lock` guards it.
        self._lines = Lines(log)  # Limits the log lines about callbacks and events that fail.
        self.set_listeners(tuple(listeners), overrides)
        self.resolver = resolver

    # The callbacks. The caller of each method holds the lock, and then asks `is_needed`.

    def set_senders(self, senders: dict[_core.EventQueue, Any]) -> None:
        self._senders = senders

    def set_resolver(self, resolver: GatewayConflictResolver | None) -> None:
        self.resolver = resolver

    def add_listener(self, listener: CacheListener) -> None:
        self.set_listeners((*self.listeners, listener), overrides)

    def wait_until_shared(self) -> None:
        """Returns when the last change with callbacks is through. The region is shared already."""
        with self.lock:
            pass

    @property
    def is_needed(self) -> bool:
        """Whether changes must go through this path, because the region has callbacks."""
        if any(sender.filters.decides_enqueue for sender in self._senders.values()):
            return True
        return not self.region.is_shared and (bool(self.listeners) or self.resolver is not None)

    @property
    def path(self) -> Callable[..., str] | _core.FilterPath:
        """The path of changes: compiled code, if filters are the only callbacks and no other member has the region."""
        if self.listeners or self.resolver is not None or self.region.is_shared:
            return self.change_locally
        filters = {queue: sender.filters for queue, sender in self._senders.items()}
        return _core.FilterPath(self.change_locally, self.lock, filters, self._park)

    # Changes

    def change_locally(
        self,
        operation: int,
        key: Any,
        value: Any,
        callback_argument: Any,
        timestamp_ms: int = 0,
        condition: _core.Condition | None = None,
        *,
        event_id: tuple[int, int, int] | None = None,
        call: Call | None = None,
    ) -> str:
        """Makes a change of this site. Returns the outcome, in the words of `RegionCore.change`.

        `event_id` is given for an event that has an identity already, and `call` for the change of a member's call.
        """
        change = Change(
            operation,
            _core.encoded_key(key),
            _core.encoded_value(value),
            _core.encoded_value(callback_argument),
            self._made_here(event_id, call),
            timestamp_ms=timestamp_ms,
            condition=condition,
        )
        return self._make(change)

    def apply_record(self, record: bytes, position: tuple[int, int, bool, bytes | None]) -> int:
        """Applies a remote change, which the receiver got.

        `position` is (partition, sequence at its sender, whether the event may have been applied before, its place in
        its stream or None). Returns APPLY_DONE, APPLY_LOST (a later version stays), APPLY_NOT_PRIMARY (the bucket's
        primary is another member), or a reason of failure. QueueFullError or DiskError if a queue or log of the member
        cannot take the change now.
        """
        try:
            was_applied = self.region.apply_filtered(record, position[2], position[3])
            if was_applied is not None:
                return _core.APPLY_DONE if was_applied else _core.APPLY_LOST
            outcome = self._make(_change_of(record, position))
            return _APPLIED.get(outcome, _core.APPLY_DONE)
        except (QueueFullError, DiskError):
            raise
        except MemoryError:
            return _core.FAILED_NO_MEMORY  # The receiver logs the failure.
        except RegionNotFoundError:
            return _core.FAILED_REGION_NOT_FOUND
        except Exception:
            event = _core.event_of_record(record)
            self._lines.exception(
                "region %s: a remote %s of key %r failed", self.region.name, event.operation, event.key
            )
            return _core.FAILED_OTHER

    def _made_here(self, event_id: tuple[int, int, int] | None = None, call: Call | None = None) -> Origin:
        return Origin(self.site, b"", event_id or self.region.next_event_id(), call=call)

    def _make(self, change: Change) -> str:
        """Makes a change, together with the callbacks. Returns the outcome."""
        if not self.region.is_shared:
            try:
                with self.lock:
                    return self._make_alone(change)
            except _IsShared:
                pass
        return self._make_shared(change)

    def _make_shared(self, change: Change) -> str:
        """Makes a change of a region that several members hold. The primary of the bucket asks the filters, and holds
        no lock meanwhile: the filters may see two changes of a key in a different order from the changes themselves."""
        region, verdicts = self.region, Verdicts()
        while True:
            try:
                outcome = region.change(
                    change.operation,
                    change.key,
                    change.value,
                    change.argument,
                    verdicts,
                    change.version,
                    change.origin,
                    _core.ASK_NOBODY,
                    change.timestamp_ms,
                    change.condition,
                )
            except PywanError as error:
                if error.in_doubt:
                    self._park_withheld(OPERATIONS[change.operation], change, change.value, verdicts)
                raise
            if outcome != "callbacks":
                break
            name = OPERATIONS[change.operation]
            if change.operation != _core.DESTROY:
                there = region.lookup(change.key)
                name = "update" if there is not None and there[3] else "create"
            self._ask(name, change, change.value, verdicts)
        # A change in doubt may be replicated. The filters are not asked again then, so an event that is not parked here
        # would be lost.
        if outcome in _DONE or outcome in ("same", "in doubt"):
            self._park_withheld(OPERATIONS[change.operation], change, change.value, verdicts)
        return outcome

    def _make_alone(self, change: Change) -> str:
        """Asks the callbacks, makes the change, and notifies the listeners. Returns the outcome. The caller holds the
        lock. _IsShared: nothing was done."""
        region, operation, key, version = self.region, change.operation, change.key, change.version
        old = region.lookup(key) if self.listeners or self.resolver is not None else None
        is_remote = version is not None
        origin, flags = change.origin, change.origin.flags
        value, ask = change.value, _core.ASK_NOBODY
        may_ask = _core.ASK_RESOLVER if self.resolver is not None and is_remote else _core.ASK_NOBODY
        outcome = region.decide(operation, key, version, may_ask, value if is_remote else None, change.condition, flags)
        if outcome == "ask":
            helper = self._resolve(change, old)
            if helper is None:  # The resolver failed, so the later version wins.
                outcome = region.decide(operation, key, version, _core.ASK_NOBODY, value, flags=flags)
            else:
                if helper.is_disallowed:
                    return "lost"
                if helper.is_changed:
                    value = _core.encoded_value(helper.value)
                ask = _core.ASK_DECIDED  # The resolver has decided that the change is applied.
                outcome = "destroyed" if operation == _core.DESTROY else "updated"
        if outcome in ("missing", "unmet", "forgotten"):
            return outcome
        if outcome == "lost":
            return region.change(operation, key, value, change.argument, (), version, origin)
        # "same": the change was applied before, and may have to be forwarded again.
        name = {"created": "create", "updated": "update", "destroyed": "destroy", "same": OPERATIONS[operation]}[
            outcome
        ]
        verdicts: Verdicts = {}
        outcome = "callbacks"
        while outcome == "callbacks":
            if region.is_shared:
                raise _IsShared
            # A sender may start meanwhile. Its filters are asked too: the event does not enter before they have
            # answered.
            self._ask(name, change, value, verdicts)
            outcome = region.change(
                operation,
                key,
                value,
                change.argument,
                verdicts,
                version,
                origin,
                ask,
                change.timestamp_ms,
                change.condition,
                alone=True,
            )
        if outcome in _DONE or outcome == "same":
            self._park_withheld(name, change, value, verdicts)
        if outcome in _DONE and self.listeners and (name != "destroy" or (old is not None and old[3])):
            self._tell_listeners(name, change, value, old)
        return outcome

    def _ask(self, operation: str, change: Change, value: Encoded, verdicts: Verdicts) -> None:
        """Asks the filters of each queue that the event would enter, if they were not asked yet. The core names the
        queues."""
        event = None
        for queue in self.region.unasked(change.origin, verdicts):
            if event is None:
                event = GatewayQueueEvent(
                    self.region.name,
                    operation,
                    change.key,
                    None if operation == "destroy" else value,
                    change.argument,
                    creation_timestamp=change.made_ms,
                    origin_site=change.origin.site,
                    possible_duplicate=change.origin.possible_duplicate,
                    event_id=EventSequenceID(*change.origin.event_id),
                )
            verdicts[queue] = self._senders[queue].filters.decide_enqueue(event)

    def _park(
        self,
        operation: str,
        key: Encoded,
        value: Encoded,
        argument: Encoded,
        origin: tuple[Any, ...],
        version: tuple[int, int] | None,
        timestamp_ms: int,
        queues: list[_core.EventQueue],
    ) -> None:
        """As `_park_withheld`, for a change on the compiled path: these queues withhold its event."""
        change = Change(
            OPERATIONS.index(operation), key, value, argument, Origin(*origin), version, timestamp_ms=timestamp_ms
        )
        self._park_withheld(operation, change, value, dict.fromkeys(queues, _core.WITHHELD))

    def _park_withheld(self, operation: str, change: Change, value: Encoded, verdicts: Verdicts) -> None:
        """Parks the event of a made change, at the senders whose substitution filters failed. The caller holds the
        lock."""
        withheld = [self._senders[queue] for queue, verdict in verdicts.items() if verdict is _core.WITHHELD]
        for sender in withheld:
            if not sender.filters.parks_withheld:
                continue
            origin, version = change.origin, change.version
            if version is None:
                entry = self.region.lookup(change.key)  # A member without entries cannot tell the stamp.
                version = (change.made_ms << 16, self.site) if entry is None else (entry[1], entry[2])
            reached = {
                site
                for queue, other in self._senders.items()
                if queue.running and queue.reachable
                for site in other.attributes.reaches
            }
            record = _core.make_record(
                self.region.name,
                OPERATIONS.index(operation),
                (change.key.form, change.key.data),
                (value.form, value.data),
                (change.argument.form, change.argument.data),
                version,
                origin.site,
                bytes(sorted(reached | {*origin.recipients})),
                origin.event_id,
                origin.flags,
            )
            sender.parked.withhold(record)

    def _resolve(self, change: Change, old: Entry | None) -> GatewayConflictHelper | None:
        """Returns the resolver's decision. None: the resolver failed."""
        assert change.version is not None and self.resolver is not None
        helper = GatewayConflictHelper()
        old_value, old_stamp, old_site, _ = old if old is not None else (None, 0, 0, False)
        stamp, site = change.version
        # The key has an entry, so for the resolver the event is an update or a destroy, whatever the operation was at
        # the site of the event.
        name = "destroy" if change.operation == _core.DESTROY else "update"
        event = TimestampedEntryEvent(
            self.region.face,
            name,
            change.key.plain,
            old_value,
            change.value.plain,
            old_stamp >> 16,
            stamp >> 16,
            old_site,
            site,
            change.argument.plain,
            EventSequenceID(*change.origin.event_id),
        )
        try:
            self.resolver.on_event(event, helper)
        except BaseException as error:
            let_through(error)
            self._lines.exception(
                "region %s: the conflict resolver failed for key %r; the later version wins",
                self.region.name,
                change.key,
            )
            return None
        return helper

    def _tell_listeners(self, operation: str, change: Change, value: Encoded, old: Entry | None) -> None:
        """Notifies the listeners of a made change. The caller holds the lock."""
        origin = change.origin
        self.tell_event(
            EntryEvent(
                self.region.face,
                operation,
                change.key,
                old[0] if old else None,
                None if operation == "destroy" else value,
                change.argument,
                origin.site != self.site,
                origin.site,
                origin.event_id,
                origin.possible_duplicate,
            )
        )

    def log_listener_failure(self, error: BaseException, listener: Any, event: EntryEvent, argument: Any) -> None:
        """A listener raised `error`, for an event or a list of events that begins with the event."""
        let_through(error)
        self._lines.exception(
            "region %s: the listener %r failed %s a %s of key %r",
            self.region.name,
            listener,
            "after" if argument is event else f"for a list of {len(argument)} events, the first of them",
            event.operation,
            event.key,
        )

    # Repair of the clock

    def restamp(self, repair: _core.ClockRepair, key: Encoded) -> bool:
        """Gives the entry or tombstone of a key the present stamp, and changes nothing else. Returns False if the key
        has neither.

        Filters are asked. Listeners are not notified, since nothing changes for listeners.
        """
        region = self.region
        with self.lock:
            old = region.lookup(key)
            if old is None:
                return False
            change = Change(
                _core.UPDATE if old[3] else _core.DESTROY,
                key,
                _core.encoded_value(old[0]),
                _core.encoded_value(None),
                self._made_here(),
            )
            verdicts: Verdicts = {}
            done: bool | None = None
            while done is None:
                self._ask(OPERATIONS[change.operation], change, change.value, verdicts)
                done = repair.restamp_key(region, key, verdicts, change.origin)
            if done:
                self._park_withheld(OPERATIONS[change.operation], change, change.value, verdicts)
            return done

    def remake(self, repair: _core.ClockRepair, record: bytes) -> bool:
        """Makes a change again from a queued event whose stamp is ahead. Returns False if the key was changed
        meanwhile.

        The entry of the event's key has an older version than the event. Either a repair was killed, or the entry came
        from a remote site after a restart without entries. An entry of this site only gets a new stamp.
        """
        region, fields = self.region, _core.record_fields(record)
        key = Encoded(*fields["key"])
        entry = region.lookup(key)
        if entry is None or entry[1] >= repair.began:
            return False
        is_destroy = fields["operation"] == _core.DESTROY
        if entry[2] == self.site or (is_destroy and not entry[3]):
            return self.restamp(repair, key)
        if not is_destroy:
            region.put(key, Encoded(*fields["value"]), Encoded(*fields["callback"]))
            return True
        try:
            region.destroy(key)
        except KeyError:
            return False
        return True
