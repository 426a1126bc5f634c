"""Owns floors: below which stamp a gateway sender has no event left, what a member has heard of that from other
sites, and so which tombstones nobody needs any more. Stamps that callers give are not spoken of. Time, positions and
bytes come in as arguments."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pywan.base.files import FileError, read_regular
from pywan.errors import ConfigurationError, NotFoundError, ProtocolError

log = logging.getLogger("pywan.floors")

FLOOR = struct.Struct("<QB7x32s")  # As wan_floor of csrc/record/wan_frame.h.
NONE_COMES = (1 << 64) - 1  # Instead of a stamp: no event of that site comes this way.
# Of a queue. With more, the one between its nearest neighbours goes: the floor rises in larger steps then.
CHECKPOINTS_MAX = 32
SOURCES_MAX = 10_000  # That a member remembers; one more is an error of its connection.
FILE_BYTES_MAX = 512 << 20  # Of what is read: all sources with floors of every site take less.


class Floor(NamedTuple):
    """No event of some site of origin with a lower stamp comes any more."""

    stamp: int
    reached: frozenset[int]  # Sites that these events reach without the help of whoever gets them.


Floors = dict[int, Floor]  # By site of origin.


def encode_floors(floors: Mapping[int, Floor]) -> bytes:
    def bits(sites: Iterable[int]) -> bytes:
        return sum(1 << site for site in sites).to_bytes(32, "little")

    return b"".join(FLOOR.pack(floor.stamp, origin, bits(floor.reached)) for origin, floor in sorted(floors.items()))


def decode_floors(data: bytes) -> Floors:
    if len(data) % FLOOR.size:
        raise ProtocolError(f"{len(data)} bytes of floors; each takes {FLOOR.size}")
    floors = {}
    for stamp, origin, bits in FLOOR.iter_unpack(data):
        number = int.from_bytes(bits, "little")
        floors[origin] = Floor(stamp, frozenset(site for site in range(256) if number >> site & 1))
    return floors


def _lower(floors: Floors, other: Mapping[int, Floor]) -> None:
    """Makes `floors` hold for the events of both."""
    for origin, floor in other.items():
        mine = floors.get(origin, floor)
        floors[origin] = Floor(min(mine.stamp, floor.stamp), mine.reached & floor.reached)


# Of a queue from which nothing comes any more, of whatever origin.
GOODBYE = encode_floors({origin: Floor(NONE_COMES, frozenset()) for origin in range(256)})


class QueueFloors:
    """What one sender can promise. Not by looking at its events: what is put into the queue after a checkpoint is not
    below the stamps that could still come then, so when all from before it has left, that is the floor. One caller at
    a time."""

    def __init__(self, own_site: int, opened: int) -> None:
        """`opened`: a stamp that nothing queued here since the queue was opened is below, but for copies."""
        self._own_site, self._opened = own_site, opened
        # (the last sequence of each partition, what can come behind), oldest first.
        self._checkpoints: list[tuple[list[int], Floors]] = []

    def look(
        self,
        positions: list[tuple[int, int, int]],
        parked: Mapping[int, int],
        copied: Mapping[int, int],
        still_coming: Floors,
    ) -> Floors:
        """`positions` of the queue; the lowest stamps of what is `parked`, and of what was `copied` into the queue
        since the last look, both read after that in this order: an event on its way between the two is then seen in
        one of them. `still_coming`: what else can be queued from now on, found before `positions` were read; of other
        sites since the look before this."""
        own = still_coming[self._own_site]
        if not self._checkpoints:
            self._checkpoints.append(
                ([0] * len(positions), {**still_coming, self._own_site: Floor(self._opened, own.reached)})
            )
        coming = dict(still_coming)
        _lower(coming, {origin: Floor(stamp, own.reached) for origin, stamp in copied.items()})
        for _, floors in self._checkpoints:
            _lower(floors, coming)
        self._checkpoints.append(([appended for _, _, appended in positions], dict(still_coming)))
        while len(self._checkpoints) > 1 and all(
            at[0] >= last for at, last in zip(positions, self._checkpoints[1][0], strict=True)
        ):
            del self._checkpoints[0]
        if len(self._checkpoints) > CHECKPOINTS_MAX:
            ends = [sum(last) for last, _ in self._checkpoints]
            del self._checkpoints[min(range(1, len(ends) - 1), key=lambda n: ends[n + 1] - ends[n - 1])]
        floors = dict(self._checkpoints[0][1])
        _lower(floors, {origin: Floor(stamp, own.reached) for origin, stamp in parked.items()})
        return floors


class _Source:
    """A sender of a member of another site, as this member knows it."""

    def __init__(self, site: int, member: str, sender: str, incarnation: int) -> None:
        self.site, self.member, self.sender, self.incarnation = site, member, sender, incarnation
        self.floors: Floors = {site: Floor(0, frozenset())}  # Until it says more, anything may come.
        self.before: Floors = {}  # As of the last look: what has come since is not below these.
        self.latest: Floors = {}  # As of this one.
        self.clock = 0  # The newest stamp that it told of its own site.

    @property
    def key(self) -> tuple[int, str, str]:
        return self.site, self.member, self.sender

    def lowest(self, own_site: int) -> int:
        return min((floor.stamp for origin, floor in self.floors.items() if origin != own_site), default=NONE_COMES)

    def __str__(self) -> str:
        return f"sender {self.sender} of {self.member} (site {self.site})"


class SourceFloors:
    """The senders that feed this member, also those that are away, and their floors. Kept in `file` over restarts, if
    there is one. `now_ms`: this member's time; no floor is believed to be above the time when it was heard, since the
    clock that it is of may be ahead, and put right later."""

    def __init__(self, own_site: int, file: Path | None, now_ms: Callable[[], int] | None = None) -> None:
        self._own_site = own_site
        self._file = file
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._sources: dict[tuple[int, str, str], _Source] = {}
        self._load()

    def opened(self, site: int, member: str, sender: str, incarnation: int) -> None:
        """A sender opens a connection: from now on it is waited for, over restarts too."""
        key = site, member, sender
        with self._lock:
            source = self._sources.get(key)
            if source is not None and source.incarnation == incarnation:
                return
            moved = next(
                (other for other in self._sources.values() if other.site == site and other.incarnation == incarnation),
                None,
            )
            # Its queue is on the disk, and another member has opened that.
            if source is None and moved is not None:
                del self._sources[moved.key]
            elif source is None and len(self._sources) >= SOURCES_MAX:
                raise ProtocolError(
                    f"sender {sender!r}: {SOURCES_MAX} senders are remembered already; those that are gone for good can be forgotten (`forget site`)"
                )
            fresh = _Source(site, member, sender, incarnation)
            before = source or moved
            if before is not None:
                fresh.floors = before.floors
            self._sources[key] = fresh
            self._save()

    def hear(self, site: int, member: str, sender: str, data: bytes) -> None:
        """What a sender says now. Of a site that it does not speak of the last word stands: it may have restarted,
        and not heard of it yet. One from which nothing at all comes any more was destroyed, and is not waited for."""
        floors = decode_floors(data)
        with self._lock:
            source = self._sources.get((site, member, sender))
            if source is None:
                return  # Forgotten meanwhile: it comes back with its next connection.
            known = set(source.floors)
            if floors.get(site, Floor(NONE_COMES, frozenset())).stamp != NONE_COMES:
                source.clock = floors[site].stamp
            source.floors.update(self._believed(floors))
            for origin in [origin for origin, floor in source.floors.items() if floor.stamp == NONE_COMES]:
                del source.floors[origin]
            if not source.floors:
                del self._sources[source.key]
                log.info("%s says that nothing more comes from it: destroyed keys are no longer kept for it", source)
            if set(source.floors) != known:
                self._save()

    def _believed(self, floors: Floors) -> Floors:
        if self._now_ms is None:
            return floors
        most = (self._now_ms() << 16) | 0xFFFF
        return {
            origin: floor._replace(stamp=most) if most < floor.stamp != NONE_COMES else floor
            for origin, floor in floors.items()
        }

    def lowest(self) -> tuple[int, str]:
        """(the stamp below which nothing comes from any of them, who holds it there). NONE_COMES: there are none."""
        with self._lock:
            return min(
                ((source.lowest(self._own_site), str(source)) for source in self._sources.values()),
                default=(NONE_COMES, ""),
            )

    def clocks(self) -> list[int]:
        """What the clocks of those senders' members said when they told their floors last, or a while before: with an
        empty queue it is seconds old."""
        with self._lock:
            return [source.clock for source in self._sources.values() if source.clock]

    def begin_look(self) -> None:
        """Queues are about to be looked at: from here on `forwarded` speaks of what came since this was called the
        last time, and of what will."""
        with self._lock:
            for source in self._sources.values():
                source.before, source.latest = source.latest, dict(source.floors)

    def forwarded(self, to_site: int, reached: frozenset[int]) -> Floors:
        """What can have come from them since the last look, or can still come, and go on to `to_site`. `reached`:
        whom this member's own events reach."""
        floors: Floors = {}
        with self._lock:
            for source in self._sources.values():
                for origin, floor in source.latest.items():
                    if source.site == to_site or origin in (to_site, self._own_site):
                        continue
                    before = source.before.get(origin, Floor(0, frozenset()))
                    both = floor.reached & before.reached
                    stamp = NONE_COMES if to_site in both else min(floor.stamp, before.stamp)
                    _lower(floors, {origin: Floor(stamp, both | reached)})
        return floors

    def forget(self, site: int) -> list[str]:
        """A site that is gone for good is not waited for any more, nor what others forward of it. Returns the senders
        that were forgotten."""
        with self._lock:
            gone = [source for source in self._sources.values() if source.site == site]
            for source in gone:
                del self._sources[source.key]
            passed_on = [source for source in self._sources.values() if source.floors.pop(site, None) is not None]
            if not gone and not passed_on:
                raise NotFoundError(
                    f"no sender of site {site} has been heard of here, nor events of it; nothing was forgotten"
                )
            self._save()
        for source in gone:
            log.warning("%s is forgotten: destroyed keys are no longer kept for what it may still send", source)
        return [str(source) for source in gone]

    def view(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"site": s.site, "member": s.member, "sender": s.sender, "floor": s.lowest(self._own_site)}
                for s in self._sources.values()
            ]

    def save(self) -> None:
        """The floors, as they are now: after a restart nothing has to be kept for what is below."""
        with self._lock:
            self._save()

    # The file

    def _load(self) -> None:
        if self._file is None or not os.path.lexists(self._file):
            return
        try:
            for each in json.loads(read_regular(self._file, FILE_BYTES_MAX, follow=False).data)["sources"]:
                source = _Source(int(each["site"]), str(each["member"]), str(each["sender"]), int(each["incarnation"]))
                source.floors = self._believed(decode_floors(bytes.fromhex(each["floors"])))
                self._sources[source.key] = source
        except (FileError, ValueError, KeyError, TypeError, RecursionError, OverflowError, ProtocolError) as error:
            reason = (
                f"{self._file} {error}"
                if isinstance(error, FileError)
                else f"{self._file} does not hold what this member wrote ({error!r})"
            )
            raise ConfigurationError(
                f"{reason}. It says for which senders destroyed keys are remembered: restore it,"
                " or remove it once every site has connected; nothing was changed"
            ) from error

    def _save(self) -> None:
        if self._file is None:
            return
        sources = [
            {
                "site": s.site,
                "member": s.member,
                "sender": s.sender,
                "incarnation": s.incarnation,
                "floors": encode_floors(s.floors).hex(),
            }
            for s in self._sources.values()
        ]
        fresh = self._file.with_name(self._file.name + ".new")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
            with os.fdopen(
                os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w"
            ) as file:
                json.dump({"sources": sources}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._file)
        except OSError as error:
            log.error(
                "%s cannot be written: %s; after a restart, keys that were destroyed may not be remembered for a sender that was away",
                self._file,
                error,
            )


def format_stamp(stamp: int) -> str:
    """A stamp as people read it; "any time" for a sender that has not said anything yet."""
    if stamp >> 16 == 0:
        return "any time"
    moment = (
        datetime.datetime.fromtimestamp((stamp >> 16) / 1000, datetime.UTC) if stamp >> 16 < 253402300800000 else None
    )
    return moment.isoformat(timespec="milliseconds") if moment else f"{stamp >> 16} ms"
