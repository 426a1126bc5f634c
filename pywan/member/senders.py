"""Owns the gateway senders of a member."""

from __future__ import annotations

from pywan.config.attributes import RegionAttributes, SenderAttributes
from pywan.errors import GatewaySenderError, IllegalStateError, NotFoundError
from pywan.gateway.sender import GatewaySender
from pywan.gateway.sender_core import SenderCore
from pywan.member.regions import Regions
from pywan.member.state import MemberFolder, MemberState
from pywan.member.stores import DiskStores

MAX_SENDERS = 128


class Senders:
    """The senders by id. They change under the member's lock.

    `cores` holds the cores of the senders by id. Regions read it.
    """

    def __init__(
        self,
        state: MemberState,
        folder: MemberFolder,
        stores: DiskStores,
        regions: Regions,
        cores: dict[str, SenderCore],
    ) -> None:
        self._state, self._folder, self._stores, self._regions = state, folder, stores, regions
        self._cores = cores
        regions.fit_sender = self.fit
        self._faces: dict[str, GatewaySender] = {}

    def cores(self) -> list[SenderCore]:
        return list(self._cores.values())

    def by_id(self) -> dict[str, GatewaySender]:
        """Returns what users hold of the senders, by id."""
        return dict(self._faces)

    def get(self, id: str) -> GatewaySender:
        """Returns what users hold of the sender of that id. NotFoundError if there is none."""
        try:
            return self._faces[id]
        except (KeyError, TypeError):  # The id may be of a type that is no key, such as a list.
            raise NotFoundError(
                f"member {self._state.name!r} has no gateway sender {id!r}; it has"
                f" {', '.join(sorted(self._faces)) or 'none'}"
            ) from None

    def create(self, made: SenderAttributes) -> GatewaySender:
        """Creates a sender, and starts it unless `manual_start` is true. See `Cache.create_gateway_sender` for the
        errors."""
        id, state = made.id, self._state
        with state.lock:
            state.check_open()
            if id in self._cores:
                raise IllegalStateError(
                    f"a gateway sender with id {id!r} is already defined in this cache (member"
                    f" {state.name!r}); destroy it first, or choose another id"
                )
            if len(self._cores) >= MAX_SENDERS:
                raise IllegalStateError(
                    f"gateway sender {id!r}: member {state.name!r} has {MAX_SENDERS} senders, the most there can be"
                )
            made.check_site(state.distributed_system_id)
            core = self._make(made)
            region = self._regions.with_other_buckets(core)
            if region is not None:  # The log of the sender has another number of partitions, or none yet.
                buckets = region.attributes.total_num_buckets
                core.retire(f"region {region.name!r} has {buckets} buckets")
                core = self._make(made, buckets)
            self._cores[id], self._faces[id] = core, GatewaySender(core)
            self._changed(core)
            face = self._faces[id]
        if not made.manual_start:
            core.start()
        return face

    def fit(self, core: SenderCore, region: RegionAttributes) -> None:
        """Gives a parallel sender, which no region feeds yet, a queue with a partition for each bucket of this region.

        IllegalStateError if the sender holds events. Then nothing was changed.
        """
        was_running, was_paused = core.is_running, core.status.is_paused
        core.retire(f"region {region.name!r}: total_num_buckets {region.total_num_buckets}")
        with self._state.lock:
            fresh = self._make(core.attributes, region.total_num_buckets)
            self._cores[core.id] = fresh
            self._faces[core.id]._take_place(fresh)
        if was_running:
            fresh.start()
            fresh.pause(was_paused)

    def volatile_events(self) -> dict[str, dict[str, int]]:
        """Counts the events that would be lost with the process, for each sender that has some."""
        by_id = {core.id: core.volatile_events() for core in self.cores()}
        return {id: counts for id, counts in by_id.items() if counts}

    def _make(self, attributes: SenderAttributes, buckets: int | None = None) -> SenderCore:
        """Makes the core of a sender, which does not run yet."""
        a, state = attributes, self._state
        self._stores.check_there(a.disk_store_name, f"gateway sender {a.id!r}")
        self._regions.validate_sender(a)
        store = self._stores.needed(a.disk_store_name) if a.enable_persistence else None
        if store is None:
            self._stores.warn_of_log(f"gateway sender {a.id}", f"queue-{a.id}")
        return SenderCore(
            a,
            other_sites=state.membership,
            member_name=state.name,
            site=state.site,
            directory=str(self._folder.overflow),
            buckets=buckets,
            store=store,
            clock=state.clock,
            on_state=self._changed,
            on_destroy=self._forget,
        )

    def _changed(self, core: SenderCore) -> None:
        """Tells the regions of a sender that it was started or stopped: they stamp events with the sites that will be
        reached."""
        for region in self._regions.of_sender(core.id):
            self._regions.attach(region)

    def _forget(self, core: SenderCore) -> None:
        """Removes a sender that is destroyed. GatewaySenderError while a region is attached to it."""
        with self._state.lock:
            attached = sorted(region.name for region in self._regions.of_sender(core.id))
            if attached:
                raise GatewaySenderError(
                    f"gateway sender {core.id!r} is attached to region {', '.join(attached)};"
                    " detach it there first (alter region)"
                )
            self._cores.pop(core.id, None)
            self._faces.pop(core.id, None)
