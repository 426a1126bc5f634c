"""Owns which events the members of a simulated site did not queue, as the sender did not run: each change, by its key
and version."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pywan import _core
from pywan.coordination.tables import BucketKey

from .shown import number_in

if TYPE_CHECKING:
    from support.linearizability import Operation

    from .member import Member, SimulatedRegion
    from .remote import Version
    from .senders import SimulatedSender
    from .world import SiteWorld

# An entry of a change log (csrc/replication/wan_changelog.h), and what the primary decided for one sender.
ENTRY, VERDICT = struct.Struct("<IIIBBBB"), struct.Struct("<QIBBBB")
CALL_BYTES = 16
HAS_CALL, IS_ROW, FORGET, CLEAR = 1, 4, 1, 2
STOPPED = 3  # The verdict: the sender does not run.


class Change(NamedTuple):
    key: str
    version: Version
    value: int | None
    verdicts: dict[int, int]  # By the hash of a sender's id.


class _Seen:
    """What a member had when its sender was looked at last."""

    def __init__(self) -> None:
        self.dropped = 0
        self.ends: dict[BucketKey, tuple[int, int]] = {}  # Timeline and last sequence of each bucket.
        self.versions: dict[tuple[str, str], Version] = {}  # By region and key.


class Drops:
    """Looks at each member whose sender takes no events, whenever the member has worked."""

    def __init__(self, world: SiteWorld) -> None:
        self._world = world
        self._seen: dict[tuple[Member, str], _Seen] = {}  # Of the senders that take no events.
        # By sender, region and key: the versions that were dropped, and their values.
        self._dropped: defaultdict[tuple[str, str, str], dict[Version, int | None]] = defaultdict(dict)
        # By sender: when a member without other replicas dropped several changes of a key at once, and how many of
        # these are not known: it has the last one alone.
        self._overwritten: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)

    def take_overwritten(self, sender: str, operation: Operation) -> bool:
        """Whether this change was dropped, and another change of its key at the same moment. Each dropped change
        explains one."""
        known = self._overwritten[sender]
        for n, (at_us, count) in enumerate(known):
            if count and operation.called <= at_us <= operation.returned:
                known[n] = at_us, count - 1
                return True
        return False

    def of(self, sender: str, region: str, key: str) -> dict[Version, int | None]:
        return self._dropped.get((sender, region, key), {})

    def begin(self, sender: SimulatedSender) -> None:
        """The sender takes no events from now on."""
        seen = self._seen[sender.member, sender.id] = _Seen()
        self._take_stock(sender, seen)

    def end(self, sender: SimulatedSender) -> None:
        """The sender takes events from now on, or its member ends."""
        self.look(sender)
        self._seen.pop((sender.member, sender.id), None)

    def look(self, sender: SimulatedSender) -> int:
        """Notes what the member has dropped since the last look. Returns how many events that were."""
        seen = self._seen.get((sender.member, sender.id))
        if seen is None:
            return 0
        count = sender.queue.counts()["dropped_stopped"] - seen.dropped
        if count:
            unknown = int(count) - self._note(sender, seen)
            if unknown > 0:
                self._overwritten[sender.id].append((self._world.simulation.now_us, unknown))
        self._take_stock(sender, seen)
        return int(count)

    def _take_stock(self, sender: SimulatedSender, seen: _Seen) -> None:
        seen.dropped = sender.queue.counts()["dropped_stopped"]
        for region in self._feeding(sender):
            for key, changelog in _buckets(region):
                state = changelog.state(key.number)
                seen.ends[key] = state["timeline"], state["log_end"]
            for of in self._world.keys.names:
                found = region.lookup(of)
                if found is not None:
                    seen.versions[region.name, of] = found[1], found[2]

    def _feeding(self, sender: SimulatedSender) -> list[SimulatedRegion]:
        regions = sender.member.regions.values()
        return [each for each in regions if sender.id in each.attributes.gateway_sender_ids]

    def _note(self, sender: SimulatedSender, seen: _Seen) -> int:
        """Notes the changes that were dropped. Returns how many."""
        count, hash_ = 0, _core.key_hash(sender.id.encode())
        for region in self._feeding(sender):
            known: set[str] = set()  # Keys whose changes the change log has told of.
            for key, changelog in _buckets(region):
                state = changelog.state(key.number)
                timeline, last = seen.ends.get(key, (0, 0))
                try:
                    changes = list(
                        read_changes(changelog.fetch(key.number, last if timeline == state["timeline"] else 0))
                    )
                except ValueError:  # Nobody needs them: they count, and the change log has let go of them.
                    continue
                known.update(self._world.keys.of(key))
                for each in changes:
                    if each.verdicts.get(hash_) == STOPPED:
                        self._dropped[sender.id, region.name, each.key][each.version] = each.value
                        count += 1
            for of in self._world.keys.names:
                found = region.lookup(of)
                if of in known or found is None or seen.versions.get((region.name, of)) == (found[1], found[2]):
                    continue
                self._dropped[sender.id, region.name, of][found[1], found[2]] = number_in(found[0])
                count += 1
        return count


def _buckets(region: SimulatedRegion) -> Iterator[tuple[BucketKey, Any]]:
    for number in range(region.bucket_count if region.changelog is not None else 0):
        yield BucketKey(region.name, number), region.changelog


def read_changes(entries: bytes) -> Iterator[Change]:
    """Reads changes as replication links carry them."""
    at = 0
    while at < len(entries):
        length, verdict_length, found_length, _, _, flags, kind = ENTRY.unpack_from(entries, at)
        end = at + length
        if kind not in (FORGET, CLEAR):
            verdicts_end = end - (0 if flags & IS_ROW else found_length + -found_length % 8)
            verdicts_at = verdicts_end - verdict_length
            fields = _core.record_fields(
                entries[at + ENTRY.size + (CALL_BYTES if flags & HAS_CALL else 0) : verdicts_at]
            )
            value = None if fields["value"] is None else _core.decode_object(*fields["value"])
            yield Change(
                str(_core.decode_object(*fields["key"])),
                (fields["stamp"], fields["stamp_site"]),
                number_in(value),
                dict(_read_verdicts(entries[verdicts_at:verdicts_end])),
            )
        at = end


def _read_verdicts(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        sender, value_length, verdict, *_ = VERDICT.unpack_from(data, at)
        yield sender, verdict
        at += VERDICT.size + value_length + -value_length % 8
