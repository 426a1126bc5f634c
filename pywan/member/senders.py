"""Owns the gateway senders of a member, and its asynchronous event queues, which have the same parts."""

from __future__ import annotations

from typing import Any, TypeVar

from pywan.async_queue.async_event_queue import AsyncEventQueue
from pywan.async_queue.listener_ends import ListenerEnds
from pywan.config.attributes import (
    RESERVED_SENDER_PREFIX,
    AsyncEventQueueAttributes,
    QueueAttributes,
    RegionAttributes,
    SenderAttributes,
)
from pywan.errors import GatewaySenderError, IllegalStateError, NotFoundError
from pywan.gateway.queue_face import QueueFace
from pywan.gateway.receiver_ends import ReceiverEnds
from pywan.gateway.remote import RemoteReceivers
from pywan.gateway.remote_site import END_TIMEOUT_S, RemoteSites
from pywan.gateway.sender import GatewaySender
from pywan.gateway.sender_core import SenderCore
from pywan.gateway.unresponsive_receivers import ReceiverWatch
from pywan.member.parked_events import ParkedRounds
from pywan.member.regions import Regions
from pywan.member.sender_roles import SenderRoles, is_shared_sender
from pywan.member.state import MemberFolder, MemberState
from pywan.member.stores import DiskStores
from pywan.protocol.members import dispatcher_number

MAX_SENDERS = 128  # In a member, asynchronous event queues included.

Face = TypeVar("Face", bound=QueueFace)


def is_queue(core: SenderCore) -> bool:
    """Returns whether the core belongs to an asynchronous event queue."""
    return core.id.startswith(RESERVED_SENDER_PREFIX)


class Senders:
    """The senders by id. They change under the member's lock.

    `cores` holds the cores of the senders by id. Regions read `cores`.
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
        self.roles: SenderRoles | None = None  # Set after the member joined its site.
        self.parked: ParkedRounds | None = None  # Likewise.
        self.remote_sites: RemoteSites | None = None  # Likewise.
        self._watch = ReceiverWatch()
        self._faces: dict[str, GatewaySender] = {}  # By id.
        self._queues: dict[str, AsyncEventQueue] = {}  # By id.

    def cores(self) -> list[SenderCore]:
        """Returns the cores of senders and asynchronous event queues."""
        return list(self._cores.values())

    def sender_cores(self) -> list[SenderCore]:
        return [core for core in self.cores() if not is_queue(core)]

    def queue_cores(self) -> list[SenderCore]:
        return [core for core in self.cores() if is_queue(core)]

    def by_id(self) -> dict[str, GatewaySender]:
        """Returns the facades of the senders, by id."""
        return dict(self._faces)

    def queues_by_id(self) -> dict[str, AsyncEventQueue]:
        """Returns the facades of the asynchronous event queues, by id."""
        return dict(self._queues)

    def get(self, id: str) -> GatewaySender:
        """Returns the facade of the sender with this id. NotFoundError: no such sender."""
        return self._found(self._faces, id, "gateway sender")

    def get_queue(self, id: str) -> AsyncEventQueue:
        """Returns the facade of the asynchronous event queue with this id. NotFoundError: no such queue."""
        return self._found(self._queues, id, "async event queue")

    def _found(self, faces: dict[str, Face], id: str, what: str) -> Face:
        try:
            return faces[id]
        except (KeyError, TypeError):  # The id may have an unhashable type, for example a list.
            raise NotFoundError(
                f"member {self._state.name!r} has no {what} {id!r}; it has {', '.join(sorted(faces)) or 'none'}"
            ) from None

    def create(self, made: SenderAttributes) -> GatewaySender:
        """Creates a sender, and starts the sender unless `manual_start` is true. See `Cache.create_gateway_sender` for
        the errors."""
        made.check_site(self._state.distributed_system_id)
        self._check_new(made)
        if self.roles is not None:
            self.roles.tell(made)
        try:
            self._regions.claim(made)
            with self._state.lock:
                core = self._create(made)
                face = self._faces[made.id] = GatewaySender(core)
        except BaseException:
            if self.roles is not None:
                self.roles.forget(made)
            raise
        if not made.manual_start:
            core.start()
        return face

    def create_queue(self, made: AsyncEventQueueAttributes) -> AsyncEventQueue:
        """Creates an asynchronous event queue and starts the queue. See `Cache.create_async_event_queue` for the
        errors."""
        with self._state.lock:
            core = self._create(made)
            face = self._queues[made.id] = AsyncEventQueue(core)
        core.start(paused=made.pause_event_processing)
        return face

    def _create(self, made: QueueAttributes) -> SenderCore:
        """The caller holds the member's lock."""
        state = self._state
        state.check_open()
        self._check_new(made)
        if len(self._cores) >= MAX_SENDERS:
            raise IllegalStateError(
                f"{made.what}: member {state.name!r} has {MAX_SENDERS} senders and asynchronous event queues, the most"
                " there can be"
            )
        core = self._make(made)
        region = self._regions.with_other_buckets(core)
        if region is not None:  # The sender's log has another number of partitions, or none yet.
            buckets = region.attributes.total_num_buckets
            core.retire(f"region {region.name!r} has {buckets} buckets")
            core = self._make(made, buckets)
        self._cores[core.id] = core
        self.changed(core)
        return core

    def _check_new(self, made: QueueAttributes) -> None:
        if made.core_id in self._cores:
            raise IllegalStateError(
                f"a {made.title} with id {made.id!r} is already defined in this cache (member"
                f" {self._state.name!r}); destroy it first, or choose another id"
            )

    def fit(self, core: SenderCore, region: RegionAttributes) -> None:
        """Gives a parallel sender without regions a queue with one partition for each bucket of the region.
        IllegalStateError: the sender holds events. Then the sender was not changed."""
        was_running, was_paused = core.is_running, core.status.is_paused
        core.retire(f"region {region.name!r}: total_num_buckets {region.total_num_buckets}")
        with self._state.lock:
            fresh = self._make(core.attributes, region.total_num_buckets)
            self._cores[core.id] = fresh
            self._face(core)._take_place(fresh)
        if was_running:
            fresh.start(paused=was_paused)

    def clean(self, id: str) -> int:
        """Drops all queued events of a gateway sender that no member runs. Returns the number of dropped events."""
        return self._cores[id].clean()

    def local_queue_size(self, core_id: Any) -> int:
        """Returns how many queued events this member sends. Another member asks. 0: unknown sender."""
        core = self._cores.get(core_id) if isinstance(core_id, str) else None
        return 0 if core is None else core.local_queue_size

    def flush_for(self, core_id: Any, seconds: float) -> int:
        """Sends this member's events of a sender without waiting for full batches, because another member waits.
        Returns the number of remaining events. 0: unknown sender."""
        core = self._cores.get(core_id) if isinstance(core_id, str) else None
        return 0 if core is None else core.flush_for(seconds)

    def queue_of(self, core_id: str) -> Any:
        """Returns the queue of a sender, for a member with a gap. None: this member does not have the sender."""
        core = self._cores.get(core_id)
        return None if core is None else core.queue

    def volatile_events(self) -> dict[str, dict[str, int]]:
        """Counts the events that would end with the process, for each sender with volatile events."""
        by_id = {core.id: core.volatile_events() for core in self.cores()}
        return {id: counts for id, counts in by_id.items() if counts}

    def _face(self, core: SenderCore) -> GatewaySender | AsyncEventQueue:
        return self._queues[core.attributes.id] if is_queue(core) else self._faces[core.id]

    def _ends(self, core: SenderCore) -> ReceiverEnds | ListenerEnds:
        a, outgoing = core.attributes, core.outgoing
        if isinstance(a, AsyncEventQueueAttributes):
            return ListenerEnds(a, lambda: outgoing.numbering)
        state = self._state
        assert self.remote_sites is not None, "the member has joined its site"
        receivers = RemoteReceivers(
            self.remote_sites.site(a.remote_distributed_system_id),
            lambda index: dispatcher_number(state.site, state.name, a.id, index),
        )
        return ReceiverEnds(
            a,
            outgoing,
            receivers,
            watch=self._watch,
            member_name=state.name,
            site=state.site,
            way=state.links.gateway,
            guard=state.guard,
        )

    def _make(self, attributes: QueueAttributes, buckets: int | None = None) -> SenderCore:
        """Makes the core of a sender. The sender does not run yet."""
        a, state = attributes, self._state
        self._stores.check_there(a.disk_store_name, a.what)
        self._regions.validate_sender(a)
        store = self._stores.needed(a.disk_store_name) if a.enable_persistence else None
        if store is None:
            self._stores.warn_of_log(a.label, f"queue-{a.core_id}")
        parked = self.parked if is_shared_sender(a) else None
        core = SenderCore(
            a,
            make_ends=self._ends,
            site=state.site,
            directory=str(self._folder.overflow),
            buckets=buckets,
            store=store,
            clock=state.clock,
            memory=state.memory,
            on_state=self.changed,
            on_destroy=self._forget,
            on_running=self._runs,
            wait_known=lambda: None if self.roles is None else self.roles.wait_known(a),
            is_primary=lambda: self.roles is None or self.roles.is_primary(a),
            kept_by_others=lambda: 0 if self.roles is None else self.roles.kept_by_others(a),
            queued_at_others=lambda: 0 if self.roles is None else self.roles.queued_at_others(a),
            lacks=lambda: self._regions.lacks_of(a.core_id),
            flush_others=lambda seconds: self.roles is None or self.roles.flush_others(a, seconds),
            parked_at_others=None if parked is None else parked.sharing,
        )
        if parked is not None:
            parked.add(core)
        return core

    def join(self) -> None:
        """Waits for the end of the threads that the senders share. All senders have ended."""
        if self.remote_sites is not None:
            self.remote_sites.join()
        self._watch.join(END_TIMEOUT_S)

    def _runs(self, core: SenderCore) -> None:
        """Tells the site whether a sender runs here."""
        if self.roles is not None:
            (self.roles.started if core.is_running else self.roles.stopped)(core.attributes)

    def changed(self, core: SenderCore) -> None:
        """Tells the regions of a sender about a start, stop or alteration: regions stamp events with the sites that the
        events will reach."""
        if self.roles is not None:
            self.roles.altered(core.attributes)
        for region in self._regions.of_sender(core.id):
            self._regions.attach(region)

    def _forget(self, core: SenderCore) -> None:
        """Removes a destroyed sender. GatewaySenderError: a region is attached to the sender."""
        with self._state.lock:
            attached = sorted(region.name for region in self._regions.of_sender(core.id))
            if attached:
                raise GatewaySenderError(
                    f"{core.what} is attached to region {', '.join(attached)}; detach it there first (alter region)"
                )
            self._cores.pop(core.id, None)
            if is_queue(core):
                self._queues.pop(core.attributes.id, None)
            else:
                self._faces.pop(core.id, None)
        if self.roles is not None:
            self.roles.forget(core.attributes)
