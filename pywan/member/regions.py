"""Owns the regions of a member, and the assignment of senders to regions."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from pywan.base.draws import drawn_number
from pywan.config.attributes import (
    CALLBACK_METHODS,
    QueueAttributes,
    RegionAttributes,
    RegionChanges,
    SenderAttributes,
    near_queue,
    queue_words,
)
from pywan.config.classes import make_instance
from pywan.config.rules import validate_attachment, validate_colocation
from pywan.errors import IllegalStateError, RegionNotFoundError
from pywan.gateway.logs import FLUSH_LIMIT_MS
from pywan.gateway.sender_core import SenderCore
from pywan.limitations import Limitation
from pywan.member.hosting import why_only_once
from pywan.member.state import MemberState
from pywan.member.stores import DiskStores
from pywan.region.member_region import MemberRegion
from pywan.region.region import Region

log = logging.getLogger("pywan.region")

END_FEEDS_S = 5.0  # An altered region waits so long at most for replicas of the queued events of a removed sender.


class RegionHosting(Protocol):
    """Announces the member's regions to the site."""

    def hosting(self, made: RegionAttributes) -> None: ...
    def altering(self, made: RegionAttributes, altered: RegionAttributes) -> None: ...
    def claim(self, made: RegionAttributes, only_once: str) -> None: ...
    def hosted(self, region: MemberRegion) -> None: ...
    def unhosted(self, made: RegionAttributes) -> None: ...
    def losing_senders(self, name: str) -> None: ...
    def is_of_several(self, made: RegionAttributes) -> bool: ...
    def without_sender(self, made: RegionAttributes, id: str) -> dict[str, int]: ...
    def fed(self, name: str, senders: Iterable[SenderCore]) -> None: ...


class Regions:
    """The regions by name. They change under the member's lock.

    `senders` are the cores of the member's senders by id; the owner adds and removes senders.
    """

    def __init__(
        self,
        state: MemberState,
        stores: DiskStores,
        senders: Mapping[str, SenderCore],
        *,
        resolver: Any,
        tombstone_bytes: int,
    ) -> None:
        self._state, self._stores, self._senders = state, stores, senders
        self._by_name: dict[str, MemberRegion] = {}
        self._resolver = resolver
        self._tombstone_bytes = tombstone_bytes
        self.hosting: RegionHosting | None = None  # Set after the member joined its site.
        self.fit_sender: Callable[[SenderCore, RegionAttributes], None]  # Set by `Senders`, made later.

    def all(self) -> list[MemberRegion]:
        return list(self._by_name.values())

    def faces(self) -> dict[str, Region[Any, Any]]:
        """Returns the facades of the regions, by name."""
        return {name: region.face for name, region in list(self._by_name.items())}

    def find(self, name: str) -> MemberRegion | None:
        """Returns the region with this name, or None."""
        return self._by_name.get(name)

    def get(self, name: str) -> MemberRegion:
        """Returns the region with this name, a "/" in front is allowed. RegionNotFoundError: no such region."""
        region = self.find(name.lstrip("/")) if isinstance(name, str) else None
        if region is None:
            raise RegionNotFoundError(
                f"member {self._state.name!r} has no region {name!r}; it has"
                f" {', '.join(sorted(self._by_name)) or 'none'}"
            )
        return region

    def create(self, made: RegionAttributes) -> MemberRegion:
        """Creates a region. See `Cache.create_region` for the errors."""
        self._fit_senders(made)
        if self.hosting is not None:
            self.hosting.hosting(made)
        elif made.min_in_sync_replicas > 1:
            raise IllegalStateError(
                f"region {made.name!r}: min-in-sync-replicas {made.min_in_sync_replicas} needs other members, and this"
                " cache has no locators; give it locators, or lower min-in-sync-replicas"
            )
        try:
            region = self._create(made)
        except BaseException:
            if self.hosting is not None and made.name not in self._by_name:
                self.hosting.unhosted(made)
            raise
        if self.hosting is not None:
            self.hosting.hosted(region)
        return region

    def _create(self, made: RegionAttributes) -> MemberRegion:
        with self._state.lock:
            self._state.check_open()
            self._check_new(made)
            self._validate(made)
            what, methods = f"region {made.name!r}: cache_listener", CALLBACK_METHODS["cache_listeners"]
            listeners = [make_instance(listener, what, methods) for listener in made.cache_listeners]
            region = MemberRegion(
                made.name,
                self._state.clock,
                site=self._state.site,
                member=self._state.membership.member_id,
                stores=made.stores_entries,
                forwards=made.feeds_gateways,
                buckets=made.total_num_buckets if made.is_partitioned else 0,
                attributes=made,
                listeners=listeners,
                resolver=self._resolver,
                alter=self._alter,
            )
            if self._state.memory is not None:
                region.limit_memory(self._state.memory)
            if made.is_persistent:
                self._make_persistent(region, made)
            else:
                self._stores.warn_of_log(f"region {made.name}", f"region-{made.name}")
            region.watch_tombstones(self._tombstone_bytes, self._state.bell)
            self.attach(region)
            self._by_name[made.name] = region
            self._note_missing_senders(region)
            return region

    def make_role(self, made: RegionAttributes) -> MemberRegion:
        """Makes the role region of a sender (sender_roles). Users do not see role regions."""
        return MemberRegion(
            made.name,
            self._state.clock,
            site=self._state.site,
            member=self._state.membership.member_id,
            stores=True,
            forwards=False,
            buckets=made.total_num_buckets,
            attributes=made,
        )

    def destroy(self, name: str) -> None:
        """Destroys a region of the member, with its log. IllegalStateError: a second region is colocated with the
        region."""
        with self._state.lock:
            region = self.get(name)
            children = sorted(other.name for other in self.all() if other.attributes.colocated_with == region.name)
            if children:
                raise IllegalStateError(
                    f"region {region.name!r} cannot be destroyed while others are colocated with"
                    f" it; destroy {', '.join(children)} first"
                )
            region.close()
            region.attach_senders([])
            region.end_feeds(now=True)  # Calls whose changes are not replicated end in doubt.
            del self._by_name[region.name]
            if self.hosting is not None:
                self.hosting.unhosted(region.attributes)
            if region.attributes.is_persistent:
                self._stores.needed(region.attributes.disk_store_name).forget(f"region-{region.name}")

    def set_resolver(self, resolver: Any) -> None:
        """Sets the conflict resolver of all regions. The resolver may be a class, an instance or the name of a class.
        None: no resolver.

        IllegalStateError: several members have one of the regions, or may have one, and changes of shared regions ask
        no resolver (`Limitation.ONE_MEMBER`). No region was changed.
        """
        if self.hosting is not None:
            for region in self.all():
                made = region.attributes
                self.hosting.claim(made, why_only_once(made, self.persistent_sender(made), resolver is not None))
        with self._state.lock:
            self._resolver = (
                None
                if resolver is None
                else make_instance(resolver, "gateway_conflict_resolver", CALLBACK_METHODS["gateway_conflict_resolver"])
            )
            for region in self.all():
                region.set_resolver(self._resolver)

    def watch_tombstones(self) -> bool:
        """Returns whether the tombstones of some region take more memory than the limit. The bell rings when a region
        exceeds the limit."""
        over_limit = [region.watch_tombstones(self._tombstone_bytes, self._state.bell) for region in self.all()]
        return any(over_limit)

    def keep_tombstones(self, below: int, before_ms: int) -> bool:
        """Drops tombstones that are not needed any more.

        Returns whether more tombstones can be dropped as soon as a disk has stored written data.
        """
        is_waiting = [region.keep_tombstones(below, before_ms, self._tombstone_bytes) for region in self.all()]
        return any(is_waiting)

    # Senders

    def of_sender(self, id: str) -> list[MemberRegion]:
        """Returns the regions with this sender or queue: `id` is unique among senders and queues."""
        return [region for region in self.all() if id in region.attributes.queue_ids]

    def attach(self, region: MemberRegion) -> None:
        """Connects the region to the region's senders in this member."""
        senders = [self._senders[id] for id in region.attributes.queue_ids if id in self._senders]
        region.attach_senders(senders)
        if self.hosting is not None and not region.is_closed:
            self.hosting.fed(region.name, senders)

    def persistent_sender(self, made: RegionAttributes) -> str | None:
        """Returns the id of a sender with a log that takes the events of a region. None: no such sender."""
        return next((each.id for each in self._named_by(made) if each.attributes.enable_persistence), None)

    def why_only_once(self, made: RegionAttributes) -> str:
        """Returns the reason why only one member can have a region; empty: several members can."""
        return why_only_once(made, self.persistent_sender(made), self._resolver is not None)

    def claim(self, made: SenderAttributes) -> None:
        """Prepares the creation of a sender. If the sender has a log, a region with this sender is the member's alone
        from now on. GatewaySenderConfigurationError: another member has the region, or may have the region."""
        if not made.enable_persistence or self.hosting is None:
            return
        for region in self.of_sender(made.core_id):
            try:
                self.hosting.claim(region.attributes, why_only_once(region.attributes, made.id, has_resolver=False))
            except IllegalStateError as error:
                raise made.error(f"{made.what} is persistent: {error}") from None

    def validate_sender(self, attributes: QueueAttributes) -> None:
        """Raises ConfigurationError if a sender with these attributes does not fit a region of the sender."""
        regions = self.of_sender(attributes.core_id)
        for region in regions:
            validate_attachment(region.attributes, attributes)
        others = [region.attributes for region in self.all()]
        for region in regions:
            validate_colocation(region.attributes, others, {attributes.core_id: attributes})

    def reached_with(self, sender: SenderCore) -> frozenset[int]:
        """Returns the remote sites in the stamp of every event of this sender, in any region."""
        reached: frozenset[int] | None = None
        for region in self.of_sender(sender.id):
            if region.attributes.feeds_gateways:
                others = [self._senders.get(id) for id in region.gateway_sender_ids]
                sites = frozenset(
                    site
                    for other in others
                    if other is not None and other.queue.running and other.queue.reachable
                    for site in other.attributes.reaches
                )
                reached = sites if reached is None else reached & sites
        return (reached or frozenset()) | sender.attributes.reaches

    def with_other_buckets(self, core: SenderCore) -> MemberRegion | None:
        """Returns a region of this parallel sender with a different number of buckets than the sender. None: no such
        region."""
        return next(
            (
                region
                for region in self.of_sender(core.id)
                if core.buckets not in (None, region.attributes.total_num_buckets)
            ),
            None,
        )

    def _fit_senders(self, attributes: RegionAttributes, altered: MemberRegion | None = None) -> None:
        """Gives parallel senders that get their first region as many buckets as the region.

        The caller must not hold the member's lock, because a running sender is stopped and started again.
        """
        with self._state.lock:
            self._state.check_open()
            if altered is None:
                self._check_new(attributes)
            elif self.find(attributes.name) is not altered:
                return  # The caller raises the error for this case, under the lock.
            self._validate(attributes)
            unfit = [
                core for core in self._named_by(attributes) if core.buckets not in (None, attributes.total_num_buckets)
            ]
        for core in unfit:
            self.fit_sender(core, attributes)

    def _check_new(self, attributes: RegionAttributes) -> None:
        if attributes.name in self._by_name:
            raise IllegalStateError(
                f"region {attributes.name!r} exists already on member {self._state.name!r}; alter"
                " it, or destroy it first"
            )

    def _named_by(self, attributes: RegionAttributes) -> list[SenderCore]:
        return [self._senders[id] for id in attributes.queue_ids if id in self._senders]

    def _validate(self, attributes: RegionAttributes) -> None:
        for id in attributes.queue_ids:
            sender = self._senders.get(id)
            if sender is not None:
                validate_attachment(attributes, sender.attributes)
        validate_colocation(
            attributes,
            (region.attributes for region in self._by_name.values()),
            {id: sender.attributes for id, sender in self._senders.items()},
        )

    def _alter(self, region: MemberRegion, changes: dict[str, Any]) -> None:
        """Changes attributes of a region. See `Region.alter`."""
        self._check_one_member(region, region.attributes.altered(RegionChanges, **changes))
        self._fit_senders(region.attributes.altered(RegionChanges, **changes), region)
        if self.hosting is not None:
            self.hosting.altering(region.attributes, region.attributes.altered(RegionChanges, **changes))
            if "gateway_sender_ids" in changes:
                self.hosting.losing_senders(region.name)
        with self._state.lock:
            self._state.check_open()
            if self.find(region.name) is not region:
                raise RegionNotFoundError(f"region {region.name!r} was destroyed")
            altered = region.attributes.altered(RegionChanges, **changes)
            self._check_one_member(region, altered)
            self._validate(altered)
            region.attributes = altered
            self.attach(region)
            self._note_missing_senders(region)
        self._end_feeds(region)

    def _end_feeds(self, region: MemberRegion) -> None:
        """Waits until the queues that lost the region have only replicated events. A new primary may give the sequence
        of an event that is not replicated to another change, and a receiver that had the event would skip the change.
        Clients of such changes have no answer yet. The wait is about 5 s at most."""
        until = time.monotonic() + END_FEEDS_S
        while not region.end_feeds():
            if time.monotonic() >= until:
                log.warning(
                    "region %s: a removed sender forgets events that are not replicated after %g s; no client has"
                    " got an answer for their changes",
                    region.name,
                    END_FEEDS_S,
                )
                region.end_feeds(now=True)
                return
            time.sleep(0.005)

    def _check_one_member(self, region: MemberRegion, altered: RegionAttributes) -> None:
        """Raises IllegalStateError if a region of several members would get a persistent sender or a queue. Both belong
        to one member."""
        is_of_several = region.route is not None or (self.hosting is not None and self.hosting.is_of_several(altered))
        persistent = self.persistent_sender(altered)
        named = [*altered.async_event_queue_ids, *([persistent] if persistent is not None else [])]
        if is_of_several and named:
            raise IllegalStateError(
                f"region {region.name!r} is on several members and cannot feed {', '.join(named)}:"
                f" {Limitation.NO_QUEUE_OF_A_MEMBER.refusal(outcome='nothing was changed')}"
            )

    def lacks(self, region: MemberRegion) -> list[str]:
        """Returns one text for each missing sender or queue of the region, with the member and the effect."""
        return [text for id in region.attributes.queue_ids for text in self._lacks(region, id)]

    def lacks_of(self, id: str) -> list[str]:
        """Returns the texts about a sender of the member that other members do not have."""
        return [text for region in self.of_sender(id) for text in self._lacks(region, id)]

    def _lacks(self, region: MemberRegion, id: str) -> list[str]:
        made, own, sender = region.attributes, self._state.name, self._senders.get(id)
        without: dict[str, int] = {}
        # A sender with a log, and a queue with a listener, belong to one member, and so do their regions.
        is_own = id not in made.gateway_sender_ids or (sender is not None and sender.attributes.enable_persistence)
        if self.hosting is not None and not is_own and self.hosting.is_of_several(made):
            without = self.hosting.without_sender(made, id)
        if sender is None:
            without.setdefault(own, 0)
        else:
            without.pop(own, None)  # Changes of this member are known here first.
        return [
            f"region {region.name}: member {member} has no {queue_words(id)}"
            f"{near_queue(id, self._senders) if member == own else ''}"
            f"{f' and leads {count:,} of its buckets' if count else ''}: events"
            f" {'of these' if count else 'that happen there'} are queued nowhere for it until it is created there"
            for member, count in without.items()
        ]

    def _note_missing_senders(self, region: MemberRegion) -> None:
        missing = [id for id in region.attributes.queue_ids if id not in self._senders]
        # A member without entries leads no bucket.
        say = log.warning if region.attributes.stores_entries else log.info
        for id in missing:
            say(
                "region %s names %s, which member %s does not have%s: events that happen there are queued nowhere for"
                " it until it is created there",
                region.name,
                queue_words(id),
                self._state.name,
                near_queue(id, self._senders),
            )

    def _make_persistent(self, region: MemberRegion, attributes: RegionAttributes) -> None:
        """Opens the log of a persistent region in the region's disk store."""
        store = self._stores.needed(attributes.disk_store_name)
        owner = f"region-{attributes.name}"
        place = store.log_place(owner, {"kind": "region", "region": attributes.name, "site": self._state.site})
        region.make_persistent(
            place.folder,
            log_id=drawn_number(63) | 1,
            synchronous=attributes.disk_synchronous,
            flush_ms=min(store.attributes.time_interval, FLUSH_LIMIT_MS),
            log_budget=place.budget,
            log_known=place.known,
            start_writer=functools.partial(store.start_writer, owner),
        )
