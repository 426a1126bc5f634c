"""Owns floors. The floor of a gateway sender is the stamp below which it has no event left. This module computes the
sender's floors, remembers those that other sites told, and so knows which tombstones are not needed any more.

Floors do not cover stamps that callers give themselves. Time, positions and bytes come in as arguments.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pywan.base.files import FileError, read_regular, write_whole
from pywan.base.lines import Lines
from pywan.errors import ConfigurationError, NotFoundError, ProtocolError

log = logging.getLogger("pywan.floors")

FLOOR = struct.Struct("<QB7x32s")  # The layout of wan_floor in csrc/record/wan_frame.h.
NONE_COMES = (1 << 64) - 1  # Stands for a stamp: no event of that site comes this way.
# The limit for one queue. With more checkpoints, the one between its nearest neighbours is dropped. The floor rises in
# larger steps then.
CHECKPOINTS_MAX = 32
SOURCES_MAX = 10_000  # The senders that a member remembers. The connection of one more is refused.
FILE_BYTES_MAX = 512 << 20  # The largest file that is read. SOURCES_MAX senders with floors of all sites take less.


class Floor(NamedTuple):
    """A promise about one site of origin: no event with a lower stamp comes any more.

    Attributes:
        stamp: The stamp.
        reached: The sites that these events reach without being forwarded by the site that gets them.
    """

    stamp: int
    reached: frozenset[int]


Floors = dict[int, Floor]  # The floors by site of origin.


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
    """Lowers `floors` so that they hold for the events of both."""
    for origin, floor in other.items():
        mine = floors.get(origin, floor)
        floors[origin] = Floor(min(mine.stamp, floor.stamp), mine.reached & floor.reached)


# The floors of a queue from which no event of any site comes any more.
GOODBYE = encode_floors({origin: Floor(NONE_COMES, frozenset()) for origin in range(256)})


class QueueFloors:
    """Computes the floors that one sender can promise. It is used by one caller at a time.

    It does not look at the events. Events that enter the queue after a checkpoint are not below the stamps that could
    still come at that time. So when all events from before the checkpoint have left, those stamps are the floor.
    """

    def __init__(self, own_site: int, opened: int) -> None:
        """`opened` is a stamp. No event that was queued here since the queue was opened is below it, except
        replicas."""
        self._own_site, self._opened = own_site, opened
        # (the last sequence of each partition, the floors of what can come behind them), the oldest first.
        self._checkpoints: list[tuple[list[int], Floors]] = []

    def look(
        self,
        positions: list[tuple[int, int, int]],
        parked: Mapping[int, int],
        copied: Mapping[int, int],
        still_coming: Floors,
    ) -> Floors:
        """Returns the floors of the queue now.

        `positions` are those of the queue. `still_coming` are the floors of what can still be queued from now on; the
        caller found them before it read `positions`. For events of other sites they cover what came since the look
        before this one.

        `parked` and `copied` are the lowest stamps of parked events, and of events that were copied into the queue
        since the last look. The caller read them after `positions`, and in this order. So an event that moves between
        the two is seen in one of them.
        """
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
            # A partition of a stream may have been made since, or have begun anew, so that all from before is gone.
            removed >= last or appended < last
            for (removed, _, appended), last in zip(positions, self._checkpoints[1][0], strict=False)
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

    def __init__(self, site: int, member: str, sender: str, numbering: int) -> None:
        self.site, self.member, self.sender, self.numbering = site, member, sender, numbering
        self.floors: Floors = {site: Floor(0, frozenset())}  # Until it tells more, any event may come.
        self.before: Floors = {}  # Its floors at the last look. Events that came since are not below them.
        self.latest: Floors = {}  # Its floors at this look.
        self.clock = 0  # The newest stamp that it told for its own site.

    @property
    def key(self) -> tuple[int, str, str]:
        return self.site, self.member, self.sender

    def lowest(self, own_site: int) -> int:
        return min((floor.stamp for origin, floor in self.floors.items() if origin != own_site), default=NONE_COMES)

    def __str__(self) -> str:
        return f"sender {self.sender} of {self.member} (site {self.site})"


class SourceFloors:
    """The senders that feed this member, also those that are away, and their floors.

    They are kept in `file` over restarts, if there is one. `now_ms()` is this member's time. A floor counts as not
    above the time when it was heard, because the clock that made it may be ahead, and may be put right later.
    """

    def __init__(self, own_site: int, file: Path | None, now_ms: Callable[[], int] | None = None) -> None:
        self._own_site = own_site
        self._file = file
        self._now_ms = now_ms
        self._ends = Lines(log)
        self._lock = threading.Lock()
        self._sources: dict[tuple[int, str, str], _Source] = {}
        self._load()

    def opened(self, site: int, member: str, sender: str, numbering: int) -> None:
        """Notes that a sender opens a connection. From now on its floors count, over restarts too."""
        key = site, member, sender
        with self._lock:
            source = self._sources.get(key)
            if source is not None and source.numbering == numbering:
                return
            moved = next(
                (other for other in self._sources.values() if other.site == site and other.numbering == numbering),
                None,
            )
            # The same numbering under another name: another member has opened the queue from the disk.
            if source is None and moved is not None:
                del self._sources[moved.key]
            elif source is None and len(self._sources) >= SOURCES_MAX:
                raise ProtocolError(
                    f"sender {sender!r}: {SOURCES_MAX} senders are remembered already; those that are gone for good"
                    " can be forgotten (`forget site`)"
                )
            fresh = _Source(site, member, sender, numbering)
            before = source or moved
            if before is not None:
                fresh.floors = before.floors
            self._sources[key] = fresh
            self._save()

    def receive(self, site: int, member: str, sender: str, data: bytes) -> None:
        """Takes the floors that a sender tells now.

        For sites that it does not name, its last floors stay: it may have restarted, and may not have heard of them
        yet. A sender that tells that nothing at all comes any more was destroyed, and is forgotten.
        """
        floors = decode_floors(data)
        with self._lock:
            source = self._sources.get((site, member, sender))
            if source is None:
                return  # It was forgotten meanwhile. Its next connection brings it back.
            known = set(source.floors)
            if floors.get(site, Floor(NONE_COMES, frozenset())).stamp != NONE_COMES:
                source.clock = floors[site].stamp
            source.floors.update(self._believed(floors))
            for origin in [origin for origin, floor in source.floors.items() if floor.stamp == NONE_COMES]:
                del source.floors[origin]
            if not source.floors:
                del self._sources[source.key]
                self._ends.info(
                    "%s tells that no more events come from it: destroyed keys are no longer kept for it", source
                )
            if set(source.floors) != known:
                self._save()

    def _believed(self, floors: Floors) -> Floors:
        """Returns the floors, none of them above this member's time."""
        if self._now_ms is None:
            return floors
        most = (self._now_ms() << 16) | 0xFFFF
        return {
            origin: floor._replace(stamp=most) if most < floor.stamp != NONE_COMES else floor
            for origin, floor in floors.items()
        }

    def lowest(self) -> tuple[int, str]:
        """Returns the stamp below which no event comes from any source, and the name of the source that holds it there.

        NONE_COMES: there is no source.
        """
        with self._lock:
            return min(
                ((source.lowest(self._own_site), str(source)) for source in self._sources.values()),
                default=(NONE_COMES, ""),
            )

    def clocks(self) -> list[int]:
        """Returns, for each source that told one, the newest stamp of its member's clock. With an empty queue it is
        seconds old."""
        with self._lock:
            return [source.clock for source in self._sources.values() if source.clock]

    def begin_look(self) -> None:
        """Begins a look at all queues. From here on, `forwarded` covers what came since the call before this one, and
        what will come."""
        with self._lock:
            for source in self._sources.values():
                source.before, source.latest = source.latest, dict(source.floors)

    def forwarded(self, to_site: int, reached: frozenset[int]) -> Floors:
        """Returns the floors of the events that may have come from the sources since the last look, or may still come,
        and that go on to `to_site`. `reached` are the sites that this member's own events reach."""
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
        """Forgets a site that is gone for good, and what others forward of it. Returns the senders that were forgotten.

        NotFoundError if nothing was heard of that site.
        """
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
        """Returns the sources and their floors as plain values."""
        with self._lock:
            return [
                {"site": s.site, "member": s.member, "sender": s.sender, "floor": s.lowest(self._own_site)}
                for s in self._sources.values()
            ]

    def save(self) -> None:
        """Writes the floors as they are now. After a restart, no tombstone below them is needed."""
        with self._lock:
            self._save()

    # The file

    def _load(self) -> None:
        """Reads the file, if there is one. ConfigurationError if it cannot be used."""
        if self._file is None or not os.path.lexists(self._file):
            return
        try:
            for each in json.loads(read_regular(self._file, FILE_BYTES_MAX, follow=False).data)["sources"]:
                source = _Source(int(each["site"]), str(each["member"]), str(each["sender"]), int(each["numbering"]))
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
        """Replaces the file. If that fails, it is logged."""
        if self._file is None:
            return
        sources = [
            {
                "site": s.site,
                "member": s.member,
                "sender": s.sender,
                "numbering": s.numbering,
                "floors": encode_floors(s.floors).hex(),
            }
            for s in self._sources.values()
        ]
        try:
            write_whole(self._file, json.dumps({"sources": sources}).encode())
        except OSError as error:
            log.error(
                "%s cannot be written: %s; after a restart, keys that were destroyed may not be remembered for a"
                " sender that was away",
                self._file,
                error,
            )


def format_stamp(stamp: int) -> str:
    """Returns a stamp as people read it: a time, or "any time" for a sender that has not told anything yet."""
    if stamp >> 16 == 0:
        return "any time"
    moment = (
        datetime.datetime.fromtimestamp((stamp >> 16) / 1000, datetime.UTC) if stamp >> 16 < 253402300800000 else None
    )
    return moment.isoformat(timespec="milliseconds") if moment else f"{stamp >> 16} ms"
