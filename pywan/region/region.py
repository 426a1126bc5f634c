"""Owns the users' side of a region: a mutable mapping."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from pywan import _core
from pywan.base.amounts import size_text
from pywan.base.faces import Described, counted
from pywan.config.attributes import DEFAULT_STORE, RegionAttributes, RegionChanges, queue_words
from pywan.config.table import takes_changes
from pywan.errors import (
    IllegalStateError,
)

if TYPE_CHECKING:
    from pywan.callbacks import CacheListener
    from pywan.region.member_region import MemberRegion

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_MISSING: Any = object()


def core_of(region: Region[Any, Any]) -> MemberRegion:
    """Returns the member's side of a region."""
    return cast("MemberRegion", _core.core_of_face(region))


class Region(_core.RegionFace, Described, MutableMapping[K, V]):
    """A mapping of keys to values on this member, which gateway senders keep consistent with other sites.

    Creates, updates and destroys are sent to remote sites. Reads, `invalidate`, `local_destroy` and `clear` are not. A
    region is made by `Cache.create_region`. For type checkers, `Region[str, int]` gives the types of keys and values.

    Every method that changes the region raises these errors:

    Raises:
        QueueFullError: A sender's queue or a log had no room in time. Nothing was stored, and nothing will be sent.
        EventTooLargeError: A key, value or callback argument is over its limit. Nothing was stored.
        SerializationError: A key or value cannot be turned into bytes. Nothing was stored.
        DiskError: The log of a persistent region or sender cannot be written.
        RegionNotFoundError: The region was destroyed, or its cache was closed.
    """

    __slots__ = ("__weakref__",)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Compares with a mapping as a dict does, and reads the whole region for the comparison.

        Two regions are equal if they are the same region, whatever they hold: so `region in regions` finds a region.
        Compare `dict(one) == dict(other)` for the contents.
        """
        if self is other:
            return True
        if isinstance(other, Region):
            return False
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(self) == len(other) and dict(self.items()) == dict(other.items())

    if TYPE_CHECKING:  # Compiled: see pywan._core.

        @property
        def name(self) -> str:
            """The region's name."""

        @property
        def is_closed(self) -> bool:
            """Whether the region was destroyed, or its cache was closed."""

        @property
        def applied(self) -> int:
            """The number of remote changes that took effect."""

        @property
        def conflicts(self) -> int:
            """The number of remote changes that lost against a later version."""

        @property
        def memory_bytes(self) -> int:
            """The bytes that are allocated for entries and for slots of the table."""

        @property
        def tombstones(self) -> int:
            """The number of tombstones: destroyed keys that are remembered."""

        def put(self, key: K, value: V, callback_argument: Any = None) -> None:
            """Stores `value` under `key`, and gives the event to the region's senders.

            Args:
                key: The key.
                value: The value.
                callback_argument: An object that travels with the event to filters and listeners.
            """

        @overload  # type: ignore[override]  # `default` may be given by name too.
        def get(self, key: K) -> V | None: ...
        @overload
        def get(self, key: K, default: V | D) -> V | D: ...
        def get(self, key: K, default: Any = None) -> Any:
            """Returns the value under `key`, or `default` if the key is absent or has no value.

            Raises:
                SerializationError: The value is of a class that the process cannot make.
            """

        def destroy(self, key: K, callback_argument: Any = None) -> None:
            """Removes `key` at every site.

            Raises:
                KeyError: The key is absent.
            """

        def local_destroy(self, key: K) -> None:
            """Removes `key` on this member only; nothing is sent.

            Raises:
                KeyError: The key is absent.
            """

        def invalidate(self, key: K) -> None:
            """Drops the value on this member, and keeps the key with its version; nothing is sent.

            Raises:
                KeyError: The key is absent.
            """

        def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]], callback_argument: Any = None) -> None:
            """Puts every entry in order, as an event of its own.

            Args:
                entries: A mapping, or pairs of a key and a value.
                callback_argument: An object that travels with each event to filters and listeners.

            Raises:
                BatchError: Some entries were refused, because the key or value cannot be stored. The rest was stored.
                ConfigurationError: `entries` is neither a mapping nor pairs.
                QueueFullError: The call stopped at an entry without room. The entries before were stored.
            """

        def update(self, entries: Any = (), /, **more: Any) -> None:
            """Puts every entry of a mapping or of pairs, and the keyword arguments, as `put_all` does."""

        def remove_all(self, keys: Iterable[K], callback_argument: Any = None) -> int:
            """Destroys every given key that is present, in order, as an event of its own.

            Returns:
                The number of keys that were destroyed.
            """

        def get_all(self, keys: Iterable[K]) -> dict[K, V | None]:
            """Reads every given key, as `get` does, in one call.

            Returns:
                The values by key, in the order of the keys. None: the key is absent or has no value.

            Raises:
                SerializationError: A value is of a class that the process cannot make.
            """

        def put_columns(
            self, keys: Any, values: Any | None, *, operations: Any | None = None, timestamps: Any | None = None
        ) -> int:
            """Changes the region row by row from columns, in one call without the GIL.

            A column is an Arrow array, a fixed-width numpy array, a pair of offsets and data, or a list of bytes or
            str.

            Args:
                keys: The column of keys.
                values: The column of values. None: all rows are destroys, as `operations` must say too.
                operations: The column of operations: create, update or destroy. None: all rows are updates.
                timestamps: The column of times in milliseconds since 1970. None: the present time.

            Returns:
                The number of rows that took effect. A destroy of an absent key has no effect.

            Raises:
                BatchError: Some rows were refused. The rest was done.
            """

        def wait_durable(self) -> None:
            """Waits until all changes and events so far are on the disk, synced.

            The method does not wait if `disk_synchronous` is false, or if the region has no disk store.
            """

    # State

    @property
    def attributes(self) -> RegionAttributes:
        """The present attributes of the region."""
        return core_of(self).attributes

    @property
    def type(self) -> str:
        """The region's type, such as "REPLICATE" or "PARTITION_PERSISTENT"."""
        return core_of(self).attributes.type

    @property
    def gateway_sender_ids(self) -> tuple[str, ...]:
        """The ids of the senders that the region is attached to, in the order given. A sender with the id
        need not exist yet."""
        return core_of(self).gateway_sender_ids

    @property
    def async_event_queue_ids(self) -> tuple[str, ...]:
        """The ids of the asynchronous event queues that the region is attached to, in the order given. A queue
        with the id need not exist yet."""
        return tuple(core_of(self).attributes.async_event_queue_ids)

    @takes_changes(RegionChanges)
    def alter(self, attributes: dict[str, Any]) -> None:
        """Changes attributes of the region. Either all changes are made or none.

        Keyword Args:
            gateway_sender_ids (Collection[str]): The ids of the senders that get the region's events from now on.
            async_event_queue_ids (Collection[str]): The ids of the asynchronous event queues that get the events.

        Raises:
            ConfigurationError: An attribute cannot be used.
            GatewaySenderConfigurationError: The region does not fit one of the senders (see `Cache.create_region`).
            IllegalStateError: The region would share a parallel sender with a region that is not colocated with it.
            RegionNotFoundError: The region was destroyed.
        """
        core_of(self).alter(attributes)

    def add_listener(self, listener: CacheListener) -> None:
        """Adds a listener, notified of every change from now on.

        Args:
            listener: An object with the methods of `CacheListener`.

        Raises:
            ConfigurationError: The listener lacks a method, or has only methods that are never called (misspelt).
        """
        core_of(self).add_listener(listener)

    # Text forms

    def _line(self) -> str:
        core = core_of(self)
        if core.is_inherited:
            state = "of the parent process"
        else:
            state = "closed" if core.is_closed else f"with {counted(len(self), 'entry')}"
        return f"{core.name} {core.attributes.type} {state}"

    def _facts(self) -> dict[str, object]:
        core = core_of(self)
        facts: dict[str, object] = {"name": core.name, "type": core.attributes.type}
        if core.is_inherited:
            return {**facts, "state": "of the parent process"}
        if core.is_closed:
            return {**facts, "state": "closed"}
        return {
            **facts,
            "state": "open",
            "entries": len(self),
            "tombstones": self.tombstones,
            "memory": size_text(self.memory_bytes),
            "gateway senders": core.gateway_sender_ids,
            "asynchronous event queues": tuple(core.attributes.async_event_queue_ids),
            "disk store": (core.attributes.disk_store_name or DEFAULT_STORE)
            if core.attributes.is_persistent
            else "none",
        }

    # The mapping

    def __getitem__(self, key: K) -> V:
        value = self.get(key, _MISSING)
        if value is _MISSING:
            if key in self:
                return None  # type: ignore[return-value]  # Invalidated: a key without a value.
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.destroy(key)

    def __iter__(self) -> Iterator[K]:
        return core_of(self).scan_keys()

    def items(self) -> ItemsView[K, V]:
        """Returns a view of all entries. Entries that are destroyed during an iteration may be left out."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Returns a view of all values."""
        return _Values(self)

    def __bool__(self) -> bool:
        return True

    # Many at once

    def __ior__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> Region[K, V]:
        self.put_all(entries)
        return self

    def clear(self, local: bool = False) -> int:  # type: ignore[override]  # Returns the number of entries.
        """Removes every entry of this site's region. Nothing is sent.

        Args:
            local: Must be true if the region feeds gateway senders or asynchronous event queues. True
                confirms that senders and queues get nothing, and that other sites keep their entries.

        Returns:
            The number of entries that were removed.

        Raises:
            IllegalStateError: The region feeds gateway senders or asynchronous event queues, and `local` is false.
                Nothing was removed.
        """
        core = core_of(self)
        core.check_usable()
        if not local and core.attributes.feeds_gateways and core.attributes.queue_ids:
            fed = ", ".join(queue_words(id) for id in core.attributes.queue_ids)
            raise IllegalStateError(
                f"region {self.name!r} feeds {fed}, and clear() sends them nothing;"
                " nothing was removed. Use clear(local=True) to empty this site's region alone, or"
                " remove_all(list(region)) to destroy the entries everywhere"
            )
        return core.clear()

    # Conditional changes. Each method reads and changes the entry in one step: no change of the key comes
    # between. The changes travel as create, update and destroy.

    def put_if_absent(self, key: K, value: V, callback_argument: Any = None) -> V | None:
        """Stores `value` unless the key has a value.

        Returns:
            The present value of the key. None: `value` was stored.
        """
        current: V | None = core_of(self).change_if("absent", _core.UPDATE, key, value, None, callback_argument)[2]
        return current

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Returns the value of the key. If the key has no value, `default` is stored and returned."""
        is_stored, _, current = core_of(self).change_if("absent", _core.UPDATE, key, default)
        return default if is_stored else current

    @overload
    def replace(self, key: K, value: V, /) -> V | None: ...
    @overload
    def replace(self, key: K, old: V, new: V, /) -> bool: ...

    def replace(self, key: K, *values: V) -> V | bool | None:
        """Replaces a value, on one of two conditions. Two values are equal if their encoded bytes are equal.

        `replace(key, value)` stores `value` if the key has any value. `replace(key, old, new)` stores `new` if the key
        has the value `old`.

        Returns:
            Two arguments: the replaced value, or None if the key had no value. Three arguments: whether `new` was
                stored.
        """
        if len(values) == 2:
            return core_of(self).change_if("equal", _core.UPDATE, key, values[1], values[0])[0]
        if len(values) != 1:
            raise TypeError(
                f"replace(key, value) or replace(key, old, new), not {1 + len(values)} arguments; nothing was changed"
            )
        current: V | None = core_of(self).change_if("value", _core.UPDATE, key, values[0])[2]
        return current

    def remove(self, key: K, value: V, callback_argument: Any = None) -> bool:
        """Destroys the key at every site if the key has the value `value`. Values are equal as for `replace`.

        Returns:
            Whether the key was destroyed.
        """
        return core_of(self).change_if("equal", _core.DESTROY, key, None, value, callback_argument)[0]

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, default: V | D, /) -> V | D: ...

    def pop(self, key: K, default: Any = _MISSING, /) -> Any:
        """Destroys the key at every site.

        Returns:
            The value that the key had (None if it was invalidated), or `default` if the key is absent.

        Raises:
            KeyError: The key is absent, and no default is given.
        """
        is_done, _, current = core_of(self).change_if("there", _core.DESTROY, key)
        if is_done:
            return current
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[K, V]:
        """Destroys some key at every site, and returns the key with its value.

        Raises:
            KeyError: The region is empty.
        """
        with core_of(self).one_deadline():
            for key in self:
                value = self.pop(key, _MISSING)
                if value is not _MISSING:
                    return key, value
        raise KeyError(f"region {self.name!r} is empty")


class _Items(ItemsView[K, V]):
    """All entries of a region, read in one pass.

    An entry that is destroyed during the pass is left out. A value that the process cannot decode is shown as
    `Undecodable`.
    """

    def __init__(self, region: Region[K, V]) -> None:
        super().__init__(region)
        self._region = region

    def __iter__(self) -> Iterator[tuple[K, V]]:
        region, core = self._region, core_of(self._region)
        if core.route is not None:
            yield from core.route.items()
            return
        show = core.show
        for key in region:
            value = show(key, _MISSING)
            if value is not _MISSING:
                yield key, value
            elif key in region:
                yield key, None  # type: ignore[misc]  # Invalidated.


class _Values(ValuesView[V]):
    """All values of a region, read in one pass as in `_Items`."""

    def __init__(self, region: Region[Any, V]) -> None:
        super().__init__(region)
        self._region = region

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in _Items(self._region))
