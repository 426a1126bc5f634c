"""Owns the regions that a member shares with others of its site: it tells the coordinator of them, and gives each one
its tail, its copies and its route as the tables say (docs/decisions/0057, 0060)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pywan import _core
from pywan.calls.pool import CallPool
from pywan.calls.route import Route
from pywan.calls.server import CallServer
from pywan.calls.table import BucketTable
from pywan.config.attributes import RegionAttributes
from pywan.coordination.messages import Tables
from pywan.coordination.tables import MEMBER_TIMEOUT_US, OWNED, Bucket, BucketKey, Holding, Incarnation
from pywan.copies.member_copies import MemberCopies
from pywan.errors import IllegalStateError
from pywan.member.hosting import is_of_site, site_attributes, weight_of
from pywan.region.member_region import MemberRegion
from pywan.site.agent import Agent
from pywan.transport.openings import Connection

log = logging.getLogger("pywan.sharing")


class _Shared:
    """A region that the site knows of. The owner's lock guards it."""

    def __init__(self, region: MemberRegion) -> None:
        self.region = region
        self.owned: Bucket | None = None  # The decision about the whole region, while it has an owner.
        self.buckets: dict[int, Bucket] = {}
        self.tail: _core.Tail | None = None  # None: this member alone has the region, as far as it knows.
        self.table: BucketTable | None = None


class SharedRegions:
    """Any thread may call it. `start` is called once the member has joined its site, `stop` when it ends."""

    def __init__(self, agent: Agent, find: Callable[[str], Any]) -> None:
        self._agent, self._find = agent, find
        self._lock = threading.RLock()  # Guards the regions. Nobody waits for another process under it.
        self._regions: dict[str, _Shared] = {}
        self._addresses: dict[Incarnation, tuple[str, int]] = {}
        self._begin(agent.me)

    def _begin(self, me: Incarnation) -> None:
        """Makes everything that names this incarnation of the member."""
        self._me = me
        self._copies = MemberCopies(self._agent, member_timeout_us=MEMBER_TIMEOUT_US)
        self._calls: CallServer | None = None
        self._pool: CallPool | None = None

    def _connections(self) -> tuple[CallServer, CallPool]:
        """Returns what serves and makes calls. The site's identity is known now."""
        with self._lock:
            if self._calls is None or self._pool is None:
                identity = self._agent.site_identity
                self._copies.start(self._me, identity)
                self._calls = CallServer(self._me, identity, self._find)
                self._pool = CallPool(self._me, identity)
            return self._calls, self._pool

    # Regions come and go

    def hosting(self, made: RegionAttributes) -> None:
        """A region is about to be created. IllegalStateError: the site does not allow it, and says why.

        It waits for the coordinator up to a limit. A member without a coordinator creates its regions alone.
        """
        if is_of_site(made):
            self._agent.host(made.name, site_attributes(made), weight_of(made))
            if made.min_in_sync_copies > 1 and not self._agent.is_joined:
                self._agent.unhost(made.name)
                raise IllegalStateError(
                    f"region {made.name!r}: min-in-sync-copies {made.min_in_sync_copies} needs other members, and this"
                    " one is in no view of its site; start the locator that coordinates (`show coordinator`), or lower"
                    " min-in-sync-copies"
                )

    def hosted(self, region: MemberRegion) -> None:
        """The region was created. If others have it too, it is shared when this returns."""
        if not is_of_site(region.attributes):
            return
        with self._lock:
            shared = self._regions[region.name] = _Shared(region)
            for key, bucket in list(self._agent.tables.buckets.items()):
                if key.region == region.name:
                    self._note(shared, key, bucket)
            self._see(shared, set(shared.buckets))
            if shared.tail is None and region.attributes.min_in_sync_copies > 1:
                # One copy is too few. The tail refuses changes until the site has decided about the buckets.
                tail = shared.tail = self._new_tail(region)
                for number in range(region.bucket_count):
                    tail.set_role(number, _core.TAIL_PRIMARY, 0, 0)
                self._share(shared, tail, has_content=True)
            self._say_missing_copies(region)

    def _say_missing_copies(self, region: MemberRegion) -> None:
        wanted = region.attributes.redundant_copies or 0
        others = sum(
            name == region.name and weight > 0
            for each in self._agent.tables.members.values()
            if each.incarnation != self._me
            for name, weight in each.hosting
        )
        if wanted > others:
            log.warning(
                "region %s: %d copies of each bucket beside the primary are wanted, and %s: more are made as others"
                " create it",
                region.name,
                wanted,
                f"{others} other members store the region" if others else "no other member has the region yet",
            )

    def unhosted(self, made: RegionAttributes) -> None:
        """The region is gone from this member, or was not created. A region that is shared goes from all members."""
        if not is_of_site(made):
            return
        is_shared = False
        with self._lock:
            shared = self._regions.pop(made.name, None)
            if shared is not None and shared.tail is not None:
                self._copies.drop(made.name)
                is_shared = True
        if is_shared and made.name in self._agent.tables.regions:
            self._agent.destroy_region(made.name)
        else:
            self._agent.unhost(made.name)

    # What the coordinator says

    def take(self, tables: Tables) -> list[str]:
        """Takes new tables. Returns the regions that were destroyed everywhere, and that this member still has."""
        with self._lock:
            if tables.members is not None:
                self._addresses = {each.incarnation: (each.host, each.port) for each in tables.members}
                if self._regions:
                    self._copies.take_view(tables.members)
                if self._pool is not None:
                    self._pool.keep_only(self._addresses)
            changed: dict[str, set[int]] = {}
            for key, bucket in tables.buckets:
                shared = self._regions.get(key.region)
                if shared is not None:
                    self._note(shared, key, bucket)
                    changed.setdefault(key.region, set()).add(key.number)
            if tables.members is not None:
                changed.update((name, set(shared.buckets)) for name, shared in self._regions.items())
            for name, numbers in changed.items():
                self._see(self._regions[name], numbers)
            gone = {name for name, attributes in tables.regions if attributes is None}
            return sorted(gone & self._regions.keys())

    def take_lease(self, until_us: int) -> None:
        """Takes until when the coordinator's lease runs."""
        with self._lock:
            for shared in self._regions.values():
                if shared.tail is not None:
                    shared.tail.set_lease(until_us)

    def take_new_incarnation(self, me: Incarnation) -> None:
        """The coordinator has given this incarnation up: its copies are worthless. It begins again as `me`."""
        with self._lock:
            copies, calls, pool = self._copies, self._calls, self._pool
            for shared in self._regions.values():
                if shared.tail is not None:
                    copies.drop(shared.region.name)
                    for number in range(shared.region.bucket_count):
                        shared.tail.set_role(number, _core.TAIL_ABSENT, 0, 0)
                        shared.region.drop_bucket(number)
                shared.owned = None
                shared.buckets.clear()
            self._begin(me)
        copies.stop()
        if calls is not None:
            calls.stop()
        if pool is not None:
            pool.close()
        with self._lock:
            for shared in self._regions.values():
                if shared.tail is not None:
                    self._share(shared, shared.tail, has_content=False)

    @staticmethod
    def _note(shared: _Shared, key: BucketKey, bucket: Bucket | None) -> None:
        if key.number == OWNED:
            shared.owned = bucket
        elif bucket is None:
            shared.buckets.pop(key.number, None)
        else:
            shared.buckets[key.number] = bucket

    def _see(self, shared: _Shared, numbers: set[int]) -> None:
        """Does what the tables say about a region. `numbers`: its buckets whose decisions changed."""
        owner = shared.owned.primary if shared.owned is not None else None
        if not shared.buckets and (owner == self._me or (owner is None and not self._is_undecided(shared.region.name))):
            return  # Nobody else has it.
        if shared.tail is None:
            region = shared.region
            shared.tail = self._new_tail(region)
            self._share(shared, shared.tail, has_content=owner == self._me)
            numbers = set(shared.buckets)
        assert shared.table is not None
        for number in sorted(numbers):
            if number != OWNED:
                self._copies.take(BucketKey(shared.region.name, number), shared.buckets.get(number))
        places = {number: shared.buckets[number] for number in numbers if number in shared.buckets}
        shared.table.update(places, self._addresses)
        if shared.owned is not None and owner == self._me and shared.buckets:
            self._agent.shared(shared.region.name, shared.owned.epoch)

    def _is_undecided(self, region: str) -> bool:
        """Whether others have the region, and the coordinator does not know yet who leads its buckets."""
        return any(key.region == region for key in list(self._agent.tables.undecided))

    @staticmethod
    def _new_tail(region: MemberRegion) -> _core.Tail:
        return _core.Tail(region.bucket_count, region.shards, region.attributes.min_in_sync_copies)

    def _share(self, shared: _Shared, tail: _core.Tail, *, has_content: bool) -> None:
        region = shared.region
        _, pool = self._connections()
        tail.set_lease(self._agent.lease_until_us)
        shared.table = BucketTable(region.name, region.bucket_count)
        route = Route(region, shared.table, pool, self._me)
        region.share(tail, route, not region.attributes.is_partitioned)
        self._copies.take_view(tuple(self._agent.tables.members.values()))
        self._copies.share(region.name, region, tail, has_content=has_content)
        log.info("member %s shares region %s with others of its site", self._me.name, region.name)

    # Connections of others

    def serve_lane(self, connection: Connection, first: bytes) -> None:
        self._connections()
        self._copies.serve_lane(connection, first)

    def serve_calls(self, connection: Connection, first: bytes) -> None:
        self._connections()[0].serve(connection, first)

    def adopt(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers the questions of a new primary."""
        return self._copies.adopt(request)

    def holdings(self) -> Mapping[BucketKey, Holding]:
        """Returns what this member has of its buckets, for the coordinator."""
        return self._copies.holdings()

    # Status and end

    def describe(self, name: str) -> dict[str, int]:
        """Returns how many buckets of a region this member leads, takes over, follows and learns. Empty: it is the only
        member that has the region."""
        return self._copies.counts(name)

    def stop(self) -> None:
        self._copies.stop()
        if self._calls is not None:
            self._calls.stop()
        if self._pool is not None:
            self._pool.close()
