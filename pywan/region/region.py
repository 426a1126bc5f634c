"""Owns what users see of a region: a mutable mapping."""

from __future__ import annotations

import itertools
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from pywan import _core
from pywan.base.faces import Face
from pywan.config.attributes import RegionAttributes, RegionChanges
from pywan.config.table import takes_changes
from pywan.errors import (
    BatchError,
    ConfigurationError,
    DiskError,
    IllegalStateError,
    QueueFullError,
    RegionNotFoundError,
)

if TYPE_CHECKING:
    from pywan.callbacks import CacheListener
    from pywan.region.member_region import MemberRegion

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_MISSING: Any = object()


def core_of(region: Region[Any, Any]) -> MemberRegion:
    """What the member works with."""
    return cast("MemberRegion", _core.core_of_face(region))


class Region(_core.RegionFace, Face, MutableMapping[K, V]):
    """Entries of this member, kept consistent with other sites through the attached gateway senders.

    Creates, updates and destroys travel; gets, invalidates, local destroys and `clear` (a region operation) do not.
    `Region[str, int]` says what keys and values are, for type checkers.
    """

    __slots__ = ("__weakref__",)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """A region is itself, not its contents."""
        return self is other

    if TYPE_CHECKING:  # They are compiled: see pywan._core.

        def put(self, key: K, value: V, callback_argument: Any = None) -> None: ...
        @overload  # type: ignore[override]  # They take `default` by its name too.
        def get(self, key: K) -> V | None: ...
        @overload
        def get(self, key: K, default: V | D) -> V | D: ...
        def get(self, key: K, default: Any = None) -> Any: ...
        def destroy(self, key: K, callback_argument: Any = None) -> None: ...
        def local_destroy(self, key: K) -> None: ...
        def invalidate(self, key: K) -> None: ...

    # What it is

    @property
    def attributes(self) -> RegionAttributes:
        return core_of(self).attributes

    @property
    def type(self) -> str:
        return core_of(self).attributes.type

    @property
    def gateway_sender_ids(self) -> tuple[str, ...]:
        return core_of(self).gateway_sender_ids

    @takes_changes(RegionChanges)
    def alter(self, attributes: dict[str, Any]) -> None:
        """Change `gateway_sender_ids`. Refused as a whole if the new set cannot be (see the errors of
        create_region)."""
        core_of(self).alter(attributes)

    def add_listener(self, listener: CacheListener) -> None:
        """It is told of each change from now on."""
        core_of(self).add_listener(listener)

    def __repr__(self) -> str:
        core = core_of(self)
        if core.is_inherited:
            state = "of the parent process"
        else:
            state = "closed" if core.is_closed else f"with {len(self)} entries"
        return f"<Region {self.name} {self.type} {state}>"

    # The mapping

    def __getitem__(self, key: K) -> V:
        value = self.get(key, _MISSING)
        if value is _MISSING:
            if key in self:
                return None  # type: ignore[return-value]  # Invalidated: the key is there, its value is not.
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.destroy(key)

    def __iter__(self) -> Iterator[K]:
        return core_of(self).scan_keys()

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def __bool__(self) -> bool:
        return True

    # Many at once

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]], callback_argument: Any = None) -> None:
        """Puts every entry, in order, one event each. BatchError lists the entries that were refused; the others are
        stored."""
        core = core_of(self)
        core.check_usable()
        failures: list[tuple[int, str]] = []
        put, row = self.put, -1
        with core.one_wait():  # A synchronous region's disk is waited for once.
            for row, (key, value) in enumerate(self._pairs(entries)):
                try:
                    put(key, value, callback_argument)
                except (QueueFullError, DiskError, RegionNotFoundError) as error:
                    others = ""
                    if failures:
                        others = (
                            f", but for {len(failures)} that were refused; first: entry {failures[0][0]}:"
                            f" {failures[0][1]}"
                        )
                    raise type(error)(
                        f"put_all stopped at entry {row}: {error} (the entries before it were stored{others})"
                    ) from error
                except (TypeError, ValueError) as error:  # A key or value that cannot be carried.
                    reason = str(error).removesuffix(" (nothing was stored)").removesuffix("; nothing was stored")
                    failures.append((row, reason))
        if failures:
            raise BatchError(
                f"region {self.name!r}: {len(failures)} of {row + 1} entries were refused, the others were"
                f" stored; first: entry {failures[0][0]}: {failures[0][1]}",
                failures,
            )

    def _pairs(self, entries: Any) -> Iterator[tuple[Any, Any]]:
        """ConfigurationError at the first entry that is no pair."""
        try:
            given = iter(entries.items() if isinstance(entries, Mapping) else entries)
        except TypeError:
            raise ConfigurationError(
                f"region {self.name!r}: {entries!r:.80} is neither a mapping nor pairs of keys and"
                " values; nothing was stored"
            ) from None
        for row, pair in enumerate(given):
            try:
                key, value = pair
            except (TypeError, ValueError):
                raise ConfigurationError(
                    f"region {self.name!r}: entry {row} is no pair of a key and a value:"
                    f" {pair!r:.80} (the entries before it were stored)"
                ) from None
            yield key, value

    def update(self, entries: Any = (), /, **more: Any) -> None:
        if more:
            named: Iterable[tuple[Any, Any]] = more.items()
            entries = itertools.chain(self._pairs(entries), named)
        self.put_all(entries)

    def __ior__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> Region[K, V]:
        self.put_all(entries)
        return self

    def remove_all(self, keys: Iterable[K], callback_argument: Any = None) -> int:
        """Destroys every key that is there, one event each, in order. Returns how many were."""
        core = core_of(self)
        core.check_usable()
        removed = 0
        with core.one_wait():
            for key in keys:
                try:
                    self.destroy(key, callback_argument)
                    removed += 1
                except KeyError:
                    pass
                except (QueueFullError, DiskError, RegionNotFoundError) as error:
                    raise type(error)(
                        f"remove_all stopped at key {key!r}: {error} ({removed} were destroyed before)"
                    ) from error
        return removed

    def clear(self, local: bool = False) -> int:  # type: ignore[override]  # It says how many there were.
        """Removes every entry of this site's region, and returns how many. Nothing is sent, so on a region that feeds
        gateway senders it is refused unless `local` says that other sites are to keep theirs."""
        core = core_of(self)
        core.check_usable()
        if not local and core.attributes.feeds_gateways and self.gateway_sender_ids:
            raise IllegalStateError(
                f"region {self.name!r} feeds gateway senders ({', '.join(self.gateway_sender_ids)}), and clear() sends"
                " nothing was removed. Use clear(local=True) to empty this site's region alone, or"
                " remove_all(list(region)) to destroy the entries everywhere"
            )
        return core.clear()

    # Conditional changes: what is there is looked at and changed as one step, for all who change the key. They travel
    # as
    # create, update, destroy.

    def put_if_absent(self, key: K, value: V, callback_argument: Any = None) -> V | None:
        """Stores `value` unless the key has one. Returns the value that is there already; None: `value` was stored."""
        current: V | None = core_of(self).change_if("absent", _core.UPDATE, key, value, None, callback_argument)[2]
        return current

    def setdefault(self, key: K, default: Any = None) -> Any:
        """The value of the key, which is `default` from now on if it had none."""
        is_stored, _, current = core_of(self).change_if("absent", _core.UPDATE, key, default)
        return default if is_stored else current

    @overload
    def replace(self, key: K, value: V, /) -> V | None: ...
    @overload
    def replace(self, key: K, old: V, new: V, /) -> bool: ...

    def replace(self, key: K, *values: V) -> V | bool | None:
        """`replace(key, value)`: stores `value` if the key has one, which is returned; None: it has none.
        `replace(key, old, new)`: stores `new` if the key has the value `old`, and returns whether it did. Values are
        equal that are in the same bytes once encoded."""
        if len(values) == 2:
            return core_of(self).change_if("equal", _core.UPDATE, key, values[1], values[0])[0]
        if len(values) != 1:
            raise TypeError(
                f"replace(key, value) or replace(key, old, new), not {1 + len(values)} arguments; nothing was changed"
            )
        current: V | None = core_of(self).change_if("value", _core.UPDATE, key, values[0])[2]
        return current

    def remove(self, key: K, value: V, callback_argument: Any = None) -> bool:
        """Destroys the key everywhere if it has this value, equal as for `replace`. Returns whether it did."""
        return core_of(self).change_if("equal", _core.DESTROY, key, None, value, callback_argument)[0]

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, default: V | D, /) -> V | D: ...

    def pop(self, key: K, default: Any = _MISSING, /) -> Any:
        """Destroys the key everywhere and returns the value that it had; None if it was invalidated. `default`, or
        KeyError, if it is not there."""
        is_done, _, current = core_of(self).change_if("there", _core.DESTROY, key)
        if is_done:
            return current
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[K, V]:
        """Destroys some key everywhere and returns it with its value. KeyError if there is none."""
        for key in self:
            value = self.pop(key, _MISSING)
            if value is not _MISSING:
                return key, value
        raise KeyError(f"region {self.name!r} is empty")


class _Items(ItemsView[K, V]):
    """Every entry, in one pass: one that is destroyed meanwhile is left out, and what is no object in this process is
    shown as Undecodable."""

    def __init__(self, region: Region[K, V]) -> None:
        super().__init__(region)
        self._region = region

    def __iter__(self) -> Iterator[tuple[K, V]]:
        region, show = self._region, core_of(self._region).show
        for key in region:
            value = show(key, _MISSING)
            if value is not _MISSING:
                yield key, value
            elif key in region:
                yield key, None  # type: ignore[misc]  # Invalidated.


class _Values(ValuesView[V]):
    def __init__(self, region: Region[Any, V]) -> None:
        super().__init__(region)
        self._region = region

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in _Items(self._region))
