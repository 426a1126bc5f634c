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
    """Changed under the member's lock. `cores` are those of the senders, by id: regions look at them."""

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
        return dict(self._faces)

    def get(self, id: str) -> GatewaySender:
        try:
            return self._faces[id]
        except (KeyError, TypeError):  # A list, say, is no key.
            raise NotFoundError(
                f"member {self._state.name!r} has no gateway sender {id!r}; it has"
                f" {', '.join(sorted(self._faces)) or 'none'}"
            ) from None

    def create(self, made: SenderAttributes) -> GatewaySender:
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
            if region is not None:  # Its log has another number, or none yet.
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
        """A parallel sender that no region feeds yet gets a queue with a partition for each bucket of this one.
        IllegalStateError while it holds events: nothing was changed."""
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
        by_id = {core.id: core.volatile_events() for core in self.cores()}
        return {id: counts for id, counts in by_id.items() if counts}

    def _make(self, attributes: SenderAttributes, buckets: int | None = None) -> SenderCore:
        a, state = attributes, self._state
        self._stores.check_there(a.disk_store_name, f"gateway sender {a.id!r}")
        self._regions.validate_sender(a)
        store = self._stores.needed(a.disk_store_name) if a.enable_persistence else None
        if store is None:
            self._stores.warn_of_log(f"gateway sender {a.id}", f"queue-{a.id}")
        return SenderCore(
            a,
            membership=state.membership,
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
        """Whom events reach depends on which senders run: the regions have to know at once."""
        for region in self._regions.of_sender(core.id):
            self._regions.attach(region)

    def _forget(self, core: SenderCore) -> None:
        with self._state.lock:
            attached = sorted(region.name for region in self._regions.of_sender(core.id))
            if attached:
                raise GatewaySenderError(
                    f"gateway sender {core.id!r} is attached to region {', '.join(attached)};"
                    " detach it there first (alter region)"
                )
            self._cores.pop(core.id, None)
            self._faces.pop(core.id, None)
