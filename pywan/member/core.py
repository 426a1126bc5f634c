"""Owns a member from start to end. Assembles the parts of the member by the arguments, the cache.xml and the cluster
configuration."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pywan
from pywan.async_queue.async_event_queue import AsyncEventQueue
from pywan.base.addresses import WILDCARDS, check_told_host, parse_locators
from pywan.base.threads import restarts, start_thread
from pywan.config.attributes import (
    AsyncEventQueueAttributes,
    DiskStoreAttributes,
    ReceiverAttributes,
    RegionAttributes,
    SenderAttributes,
)
from pywan.config.member_attributes import MemberAttributes
from pywan.config.security_attributes import security_of
from pywan.config.values import to_call_timeout, to_int, to_wait_time
from pywan.disk.disk_store import DiskStore
from pywan.errors import CacheXmlError, IllegalStateError, PywanError
from pywan.gateway.receiver import GatewayReceiver
from pywan.gateway.remote_site import RemoteSites
from pywan.gateway.sender import GatewaySender
from pywan.gateway.sender_core import SenderCore
from pywan.member.handover import LostReplicas, lost_replicas_text, still_needed_text
from pywan.member.housekeeper import Housekeeper
from pywan.member.management import ManagementService
from pywan.member.memory import MemoryWatch
from pywan.member.older_events import OLDER_EVENTS
from pywan.member.parked_events import PARKED_EVENTS, ParkedRounds
from pywan.member.receiving import Receiving
from pywan.member.regions import Regions
from pywan.member.repairs import ClockRepairs
from pywan.member.sender_roles import FLUSH_MS, FLUSH_QUEUE, HAS_DECISION
from pywan.member.senders import Senders
from pywan.member.staging import RowStages
from pywan.member.state import MemberFolder, MemberState
from pywan.member.stores import DiskStores
from pywan.member.tombstones import Tombstones
from pywan.region.callback_lock import check_no_callback
from pywan.region.region import Region
from pywan.security.configured import gateway_identity_of, guard_of, identity_of, secret_of
from pywan.security.operations import needed_at_member
from pywan.site.membership import Membership, new_profile
from pywan.stats import volatile_text
from pywan.transport.control import ControlServer
from pywan.transport.links import MEMBER_PORT, Gate, Links
from pywan.transport.sockets import reachable_address

if TYPE_CHECKING:
    from pywan.coordination.messages import StillNeeded, Tables
    from pywan.coordination.tables import Bucket, BucketKey, Incarnation
    from pywan.member.sharing import SharedRegions
    from pywan.region.member_region import MemberRegion
    from pywan.site.agent import Agent, Handover

log = logging.getLogger("pywan.cache")

HANDOVER_LOOK_S = 1.0  # Interval of the progress reports of `hand_over`.
DRAIN_LOOK_S = 0.01  # Interval of the checks whether queues are empty.


class MemberCore:
    """A member at work: the core of a `Cache`, from `start` to `close`. The cache calls `close` also if `start`
    fails."""

    def __init__(self, attributes: MemberAttributes) -> None:
        name = attributes.name
        given = security_of(attributes.security)
        self.links = Links(
            attributes.ssl,
            listener=f"cache {name!r}",
            identity=identity_of(given),
            gateway_identity=gateway_identity_of(given),
            secret=secret_of(given),
        )
        self.guard = guard_of(given, f"member {name}")
        self.state = MemberState(name, self.links, self.guard)
        self.name = name
        self._attributes = attributes
        self.allowed_callbacks: tuple[str, ...] = attributes.allow_callbacks
        self.configuration_problems: list[str] = []
        self._shutdown_wait_s = attributes.maximum_shutdown_wait_time
        self._handover_s = attributes.handover_time
        self._call_timeout_s = attributes.call_timeout  # None: derived from the site's `member-timeout`.
        self.memory = self._limit_memory({})
        self.shutdown_requested = threading.Event()
        self._waits_no_longer = threading.Event()  # Set by a second request to end the member.
        self._close_lock = threading.Lock()  # One `close` runs at a time. A second `close` waits for the first.
        self._closing_thread: int | None = None
        self._is_ended = False  # True after `close`, disk stores included.
        self._is_ready = False
        self._started_at = time.time()
        self.folder = MemberFolder(attributes.folder, name)
        self.stores = DiskStores(self.state, self.folder)
        senders: dict[str, SenderCore] = {}
        self.regions = Regions(
            self.state,
            self.stores,
            senders,
            resolver=attributes.conflict_resolver,
            tombstone_bytes=attributes.maximum_tombstone_memory << 20,
        )
        self.senders = Senders(self.state, self.folder, self.stores, self.regions, senders)
        self.receiving = Receiving(self.state, self.regions, attributes.bind_address)
        self.management = ManagementService(self)
        # `start` sets the following fields.
        self.stages: RowStages | None = None
        self._server: ControlServer | None = None
        self.agent: Agent | None = None
        self.sharing: SharedRegions | None = None
        self.parked: ParkedRounds | None = None
        self.housekeeper: Housekeeper | None = None

    # Start

    def start(self) -> None:
        """Returns when the member has joined the site and has created the objects of the cache.xml and the site's
        configuration."""
        configuration = None
        if self._attributes.cache_xml_file is not None:
            from pywan.config.cache_xml import parse

            # A wrong file is reported before the member opens a port.
            configuration = parse(self._attributes.cache_xml_file)
            self.memory = self._limit_memory(configuration.member)
        self.memory.start(self.state.closed, self.regions.all, self.give_up)
        self._join(self._attributes)
        state, folder = self.state, self.folder
        file = None if folder.is_temporary else folder.path / f"gateway-sources-{self.name}.json"
        self.tombstones = Tombstones(state, self.regions, self.senders, file)
        self.repairs = ClockRepairs(state, self.regions, self.senders, self.tombstones)
        self.stages = RowStages(
            site=state.site,
            member_name=self.name,
            directory=str(folder.overflow),
            find_region=self.regions.find,
            memory=self.memory.limit,
            guard=self.guard,
        )
        if configuration is not None:
            self._apply_xml(configuration)
        # The receiver comes last, because other sites send at once, and an event of a missing region would be parked.
        things = state.membership.cluster_configuration
        is_receiver = [isinstance(thing, dict) and thing.get("kind") == "gateway-receiver" for thing in things]
        apply = self.management.apply_configuration
        self.configuration_problems += apply(
            thing for thing, is_last in zip(things, is_receiver, strict=True) if not is_last
        )
        if configuration is not None and configuration.receiver is not None:
            self._make_from_xml(
                configuration,
                "gateway-receiver",
                "",
                functools.partial(self.create_gateway_receiver, configuration.receiver),
            )
        self.configuration_problems += apply(
            thing for thing, is_last in zip(things, is_receiver, strict=True) if is_last
        )
        assert self.sharing is not None, "the member has joined its site"
        self.housekeeper = Housekeeper(
            state, self.regions, self.senders, self.tombstones, self.stages, self.sharing.say_other_senders
        )
        self.housekeeper.start(self.give_up)
        self._is_ready = True

    def _limit_memory(self, of_cache_xml: Mapping[str, Any]) -> MemoryWatch:
        """Makes the limit of the member's memory. A value of the cache.xml is used if the argument is missing."""
        given = self._attributes.filled(of_cache_xml)
        memory = MemoryWatch(
            self.name, given.maximum_memory, given.critical_heap_percentage, given.eviction_heap_percentage
        )
        self.state.memory = memory.limit
        return memory

    def _join(self, given: MemberAttributes) -> None:
        """Opens the member's port, and joins the site."""
        # A member without a site does not load the modules for shared regions.
        from pywan.member.sender_roles import SenderRoles
        from pywan.member.sharing import SharedRegions
        from pywan.protocol import between_members
        from pywan.site.agent import Agent

        server = self._server = ControlServer(
            given.bind_address,
            given.port,
            self._handle,
            name=f"member {self.name}",
            gate=Gate(self.links, MEMBER_PORT),
            guard=self.guard,
            needed=needed_at_member,
            other_protocols={
                b"PWD1": self._serve_rows,
                between_members.REPLICATION: self._serve_repl_link,
                between_members.CALLS: self._serve_calls,
            },
        )
        announced = check_told_host(given.hostname_for_clients, f"cache {self.name!r}: hostname_for_clients")
        self.host: str = announced or reachable_address(given.bind_address, parse_locators(given.locators))
        self.port: int = server.port
        if not given.hostname_for_clients and given.bind_address in WILDCARDS:
            log.info(
                "member %s listens on every interface, and is known to others as %s; another name can be given by"
                " hostname-for-clients",
                self.name,
                self.host,
            )
        membership = self.state.membership = Membership(
            given.locators,
            new_profile(self.name, self.host, self.port),
            way=self.links.locator,
            remote_way=self.links.remote_locator,
        )
        remote_sites = self.senders.remote_sites = RemoteSites(membership)
        membership.on_locators_learnt = remote_sites.wake
        server.start()
        membership.join(given.join_timeout)
        log.info(
            "member %s of site %d listens on %s[%d], and is known as %s[%d]: pywan %s, process %d, locators %s",
            self.name,
            membership.distributed_system_id,
            given.bind_address,
            self.port,
            self.host,
            self.port,
            pywan.__version__,
            os.getpid(),
            ", ".join(map(str, membership.locators())),
        )
        self.agent = Agent(
            self.name,
            membership.member_id,
            host=self.host,
            port=self.port,
            site=membership.distributed_system_id,
            locators=membership.locators,
            claims=membership.claims,
            file=None if self.folder.is_temporary else self.folder.path / f"site-{self.name}.json",
            version=pywan.__version__,
            way=self.links.locator,
            on_change=self._take_tables,
            on_lease=self._take_lease,
            on_given_up=self._take_new_incarnation,
            reached=self._reached,
            followed=self._followed,
            gives_up=self.give_up,
        )
        self.sharing = SharedRegions(
            self.agent,
            self.regions.find,
            self._call_timeout_s,
            given.maximum_backlog_memory << 20,
            memory=self.memory.limit,
            way=self.links.cluster,
            why_only_once=self.regions.why_only_once,
            gives_up=self.give_up,
        )
        self.sharing.sender_changed = self.senders.changed
        self.agent.start()
        self.agent.wait_joined(given.join_timeout)
        self.regions.hosting = self.sharing
        self.parked = ParkedRounds(self.agent, self.sharing, self.senders.cores, self.links.cluster)
        self.sharing.decided = self.parked.sharing.decided
        self.senders.parked = self.parked
        self.senders.roles = SenderRoles(self.agent, self.sharing, self.regions.make_role, self.links.cluster)

    @staticmethod
    def _make_from_xml(configuration: Any, kind: str, name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except PywanError as error:
            raise CacheXmlError(f"{configuration.where(kind, name)}: {error}") from error

    def _apply_xml(self, configuration: Any) -> None:
        """Creates all objects of the cache.xml except the receiver."""
        making = functools.partial(self._make_from_xml, configuration)
        if configuration.conflict_resolver is not None:
            making("conflict-resolver", "", lambda: self.regions.set_resolver(configuration.conflict_resolver))
        for store in configuration.disk_stores:
            making("disk-store", store.name, functools.partial(self.create_disk_store, store))
        for sender in configuration.senders:
            making("gateway-sender", sender.id, functools.partial(self.create_gateway_sender, sender))
        for queue in configuration.queues:
            making("async-event-queue", queue.id, functools.partial(self.create_async_event_queue, queue))
        for region in configuration.regions:
            making("region", region.name, functools.partial(self.create_region, region))

    # Regions, senders, receiver, disk stores

    def create_region(self, attributes: RegionAttributes) -> Region[Any, Any]:
        return self.regions.create(attributes).face

    def create_gateway_sender(self, attributes: SenderAttributes) -> GatewaySender:
        return self.senders.create(attributes)

    def create_async_event_queue(self, attributes: AsyncEventQueueAttributes) -> AsyncEventQueue:
        return self.senders.create_queue(attributes)

    def create_gateway_receiver(self, attributes: ReceiverAttributes) -> GatewayReceiver:
        return self.receiving.create(self.tombstones.sources, attributes)

    def create_disk_store(self, attributes: DiskStoreAttributes) -> DiskStore:
        return self.stores.create(attributes)

    @property
    def folders(self) -> list[Path]:
        """The folders in which requests over the network may have files: the member's folder, and the folders with the
        member's disk stores."""
        stores = (each.parent for store in self.stores.all().values() for each in store.directories)
        return list(dict.fromkeys((Path(os.path.abspath(self.folder.path)), *stores)))

    def status(self) -> dict[str, Any]:
        """Returns name, address, site and sizes as plain values."""
        receiver = self.receiving.receiver
        return {
            "name": self.name,
            "distributed_system_id": self.state.distributed_system_id,
            "host": self.host,
            "port": self.port,
            "pid": os.getpid(),
            "directory": str(self.folder.path),
            "uptime_seconds": round(time.time() - self._started_at, 1),
            "locator_connected": self.state.has_membership and self.state.membership.is_connected,
            "regions": {region.name: 0 if region.is_closed else region.entries_here for region in self.regions.all()},
            "gateway_senders": {sender.id: sender.status.text for sender in self.senders.sender_cores()},
            "async_event_queues": {queue.attributes.id: queue.status.text for queue in self.senders.queue_cores()},
            "gateway_receiver_port": receiver.port if receiver else None,
            "maximum_shutdown_wait_time": self.maximum_shutdown_wait_time,
            "handover_time": self.handover_time,
            "call_timeout": self.call_timeout,
            "volatile_events": self.senders.volatile_events(),
            "volatile_entries": self._volatile_entries(),
            "cluster_configuration_problems": list(self.configuration_problems),
            "backlog": self.sharing.backlog() if self.sharing is not None else None,
            "memory": self.memory.status(),
            "clocks_ahead": self.sharing.clocks_ahead_s() if self.sharing is not None else {},
            "restarted_threads": {name: f"{times} times; {reason}" for name, (times, reason) in restarts().items()},
            "ssl": self.links.status(),
            "security": self.guard.status(),
            "coordination": self.agent.status() if self.agent is not None else None,
        }

    def _volatile_entries(self) -> dict[str, int]:
        """Returns the number of entries in this member of every region without persistence. In shared regions, only
        entries of led buckets are counted. Empty regions are left out."""
        counts = {
            region.name: region.entries_here if region.route is None else self._led_entries(region)
            for region in self.regions.all()
            if not region.is_closed and not region.attributes.is_persistent
        }
        return {name: count for name, count in counts.items() if count}

    def _led_entries(self, region: MemberRegion) -> int:
        assert self.sharing is not None
        return sum(region.bucket(number)["entries"] for number in self.sharing.led(region.name))

    # Requests

    def _handle(self, request: dict[str, Any], peer: tuple[Any, ...]) -> Any:
        """Answers a request to the member's port."""
        if request.get("op") == "adopt-buckets" and self.sharing is not None:
            return self.sharing.answer(request)
        if request.get("op") == "owns-opening" and self.sharing is not None:
            return self.sharing.answer_opening(request)
        if request.get("op") == "ping":
            member_id = self.state.membership.member_id
            incarnation = self.agent.me.member_id if self.agent is not None else member_id
            return {"name": self.name, "member_id": member_id, "incarnation": incarnation, "kind": "member"}
        if request.get("op") in (OLDER_EVENTS, PARKED_EVENTS) and self.sharing is not None:
            return self._answer_about_events(self.sharing, request)
        if request.get("op") == "queue-size":
            return {"local_queue_size": self.senders.local_queue_size(request.get("id"))}
        if request.get("op") == HAS_DECISION and self.sharing is not None:
            return self.sharing.answer_has_decision(request)
        if request.get("op") == FLUSH_QUEUE:
            seconds = to_int(request.get("ms"), "ms", 0, FLUSH_MS) / 1000
            return {"local_queue_size": self.senders.flush_for(request.get("id"), seconds)}
        if not self._is_ready:
            raise IllegalStateError(f"member {self.name} is starting; ask again in a moment")
        return self.management.handle(request, peer)

    def _answer_about_events(self, sharing: SharedRegions, request: dict[str, Any]) -> dict[str, Any]:
        """Answers a member with a gap in a queue, or a member that compares parked events."""
        if request["op"] == OLDER_EVENTS:
            return sharing.answer_older(request, self.senders.queue_of)
        return {} if self.parked is None else self.parked.sharing.answer(request)

    def _take_tables(self, tables: Tables) -> None:
        """Adopts new cluster metadata. Regions destroyed by the site are destroyed here too."""
        if self.sharing is None:
            return
        for region in self.sharing.take(tables):
            start_thread(f"region {region.name} is destroyed", f"destroy {region.name}", self._destroy_here, region)

    def _take_lease(self, until_us: int, received_us: int) -> None:
        if self.sharing is not None:
            self.sharing.take_lease(until_us, received_us)

    def _reached(self) -> list[Incarnation]:
        return self.sharing.reached() if self.sharing is not None else []

    def _followed(self) -> Mapping[BucketKey, Bucket]:
        return self.sharing.followed() if self.sharing is not None else {}

    def _take_new_incarnation(self, me: Incarnation) -> None:
        if self.sharing is not None:
            self.sharing.take_new_incarnation(me)

    def _destroy_here(self, region: MemberRegion) -> None:
        with contextlib.suppress(PywanError), self.state.lock:  # The region is removed already, or the member ends.
            if self.regions.find(region.name) is region:  # A new region may have the name now.
                self.regions.destroy(region.name)

    def _serve_repl_link(self, connection: Any, first: bytes) -> None:
        if self.sharing is not None:
            self.sharing.serve_repl_link(connection, first)

    def _serve_calls(self, connection: Any, first: bytes) -> None:
        if self.sharing is not None:
            self.sharing.serve_calls(connection, first)

    def _serve_rows(self, connection: Any, first: bytes) -> None:
        if self.stages is not None:
            self.stages.serve(connection, first)

    # End

    @property
    def maximum_shutdown_wait_time(self) -> float:
        return -1 if self._shutdown_wait_s == math.inf else self._shutdown_wait_s

    @property
    def handover_time(self) -> float:
        return -1 if self._handover_s == math.inf else self._handover_s

    @property
    def call_timeout(self) -> float | None:
        """The timeout in seconds of a call about a region of several members. None: the member has not joined its site,
        and has no `call-timeout` of its own."""
        return self._call_timeout_s if self.sharing is None else self.sharing.call_timeout_s

    def set_call_timeout(self, call_timeout: float | None) -> None:
        """Sets the timeout of calls under way and of later calls. None: as `member-timeout` says."""
        self._call_timeout_s = to_call_timeout(call_timeout, f"cache {self.name!r}: call_timeout")
        if self.sharing is not None:
            self.sharing.set_call_timeout(self._call_timeout_s)

    def request_shutdown(self, maximum_shutdown_wait_time: float | None, handover_time: float | None = None) -> None:
        """Sets `shutdown_requested`. The second request ends the waiting of `close`."""
        if handover_time is not None:
            self._handover_s = to_wait_time(handover_time, "handover_time")
        if maximum_shutdown_wait_time is not None:
            self._shutdown_wait_s = to_wait_time(maximum_shutdown_wait_time, "maximum_shutdown_wait_time")
        if self.shutdown_requested.is_set():
            self._wait_no_longer()
        self.shutdown_requested.set()

    def give_up(self, why: str) -> None:
        """Ends the member because one part cannot go on. Other members take over its last replicas. The method returns
        at once."""
        log.critical("member %s ends: %s; start it again, and report that", self.name, why)
        start_thread(f"member {self.name} does not end", f"{self.name}-end", self.close, None)

    def _wait_no_longer(self) -> None:
        """Ends the waiting of `close` for other members, and for queues."""
        self._waits_no_longer.set()
        if self.agent is not None:
            self.agent.hurry()

    def hand_over(self, wait_s: float | None) -> Iterator[StillNeeded | LostReplicas]:
        """Hands over to other members the buckets that still need this member, for at most `wait_s` seconds (None: the
        member's handover-time), as a stop does. The member works as before.

        Yields the remaining handover work about once a second, and finally the entries that the end of the member would
        lose now. If entries would be lost because the time was too short (`LostReplicas.is_late`), the member stays.
        """
        limit_s = self._handover_s if wait_s is None else wait_s
        deadline = time.monotonic() + limit_s
        if self.agent is None or self.sharing is None:
            yield LostReplicas()
            return
        may_end = False
        try:
            while True:
                left = deadline - time.monotonic()
                handover = self.agent.hand_over(min(max(left, 0.0), HANDOVER_LOOK_S))
                if handover.is_done or left <= HANDOVER_LOOK_S or self.shutdown_requested.is_set():
                    break
                yield self.agent.still_needed
            self._hand_over_parked(deadline)
            lost = self.sharing.last_replicas(handover.lost)
            may_end = handover.is_done or not lost or self.shutdown_requested.is_set()
            yield LostReplicas(lost, is_late=not may_end)
        finally:
            if not may_end:
                self.agent.stay()

    def _hand_over_parked(self, deadline: float) -> None:
        """Gives parked events to the new leaders of the buckets."""
        if self.parked is not None:
            self.parked.hand_over(deadline)

    def close(self, maximum_shutdown_wait_time: float | None) -> None:
        """Ends the member. See `Cache.close`."""
        wait_s = self._shutdown_wait_s
        if maximum_shutdown_wait_time is not None:
            wait_s = to_wait_time(maximum_shutdown_wait_time, f"cache {self.name!r}: maximum_shutdown_wait_time")
        check_no_callback(f"cache {self.name!r}")
        if self.state.closed.is_set():
            self._wait_no_longer()
        if self._closing_thread == threading.get_ident():  # A signal handler of the closing thread calls again.
            return
        with self._close_lock:
            if self._is_ended:
                return
            self._closing_thread = threading.get_ident()
            try:
                if self.state.closed.is_set():
                    self._close_stores()
                else:
                    self._close_all(wait_s)
            finally:
                self._closing_thread = None

    def _close_all(self, wait_s: float) -> None:
        """Ends the member for the first time. See `Cache.close` for the order."""
        with self.state.lock:  # A region or sender in creation is complete then, and is closed with the rest.
            self.state.closed.set()
        self.state.bell.ring()
        self.shutdown_requested.set()
        try:
            self.receiving.stop()
            if self.stages is not None:
                self.stages.stop()
            regions = self.regions.all()
            for region in regions:  # A shared region serves until another member takes over the buckets.
                if region.route is None:
                    region.close()
            if self.agent is not None:
                self._leave_site(self.agent)
            for region in regions:
                region.close()
            self._drain(wait_s)
        finally:
            self._end()

    def _leave_site(self, agent: Agent) -> None:
        """Leaves the site when other members have taken over, or when the time for the handover is over. Losses are
        logged."""
        limit_s = 0.0 if self._waits_no_longer.is_set() else self._handover_s
        deadline = time.monotonic() + limit_s

        def handed_over(handover: Handover) -> None:
            self._hand_over_parked(deadline)
            self._say_lost(handover, limit_s)

        agent.leave(
            limit_s,
            lambda needed: log.info("cache %s %s", self.name, still_needed_text(needed)),
            handed_over,
        )

    def _say_lost(self, handover: Handover, limit_s: float) -> None:
        lost = {} if self.sharing is None else self.sharing.last_replicas(handover.lost)
        if not lost:
            return
        if handover.is_done:
            why = "no other member can store what ends with it"
        elif self._waits_no_longer.is_set():
            why = "it does not wait until others have taken over, and what they lack is lost"
        else:
            why = f"others have not taken over in {limit_s:g} s (handover-time), and what they lack is lost"
        log.warning("cache %s: %s: %s", self.name, why, lost_replicas_text(lost))

    def _drain(self, wait_s: float) -> None:
        """Returns when no sender or queue has an event left that can leave, or after `wait_s` seconds."""
        senders = [sender for sender in self.senders.cores() if sender.is_draining]
        if not senders or not wait_s:
            return
        log.info(
            "cache %s waits for %s to empty its queue before it closes: %d events",
            self.name,
            ", ".join(sorted(sender.label for sender in senders)),
            sum(len(sender.queue) for sender in senders),
        )
        deadline = time.monotonic() + wait_s
        with contextlib.ExitStack() as flushing:
            for sender in senders:
                flushing.enter_context(sender.flushing())
            while any(sender.is_draining for sender in senders):
                left = deadline - time.monotonic()
                if left <= 0 or self._waits_no_longer.wait(min(left, DRAIN_LOOK_S)):
                    return

    def _end(self) -> None:
        """Leaves the site, and ends regions, senders, housekeeper and disk stores."""
        if self.agent is not None:
            self.agent.stop()
        if self.parked is not None:
            self.parked.stop()
        if self.sharing is not None:
            self.sharing.stop()
        if self.state.has_membership:
            self.state.membership.leave()
        if self._server is not None:
            self._server.stop()
        self.guard.stop()
        # The regions are closed already, unless an earlier step raised. Regions are closed before the senders, because
        # every accepted change is also queued.
        for region in self.regions.all():
            region.close()
        for sender in self.senders.cores():
            try:
                sender.close()
            except PywanError as error:
                log.error("%s", error)  # The remaining parts are ended nevertheless.
        self.senders.join()
        self._warn_of_loss()
        if self.housekeeper is not None:
            self.housekeeper.join(10.0)
        self.memory.join(10.0)
        self._close_stores()

    def _warn_of_loss(self) -> None:
        lost = self.senders.volatile_events()
        if lost:
            log.warning(
                "cache %s: events are lost as it closes, since their queues have no persistence: %s. To keep such"
                " events, give senders enable-persistence, and asynchronous event queues persistent; to let them leave"
                " first, give maximum-shutdown-wait-time",
                self.name,
                volatile_text(lost),
            )

    def _close_stores(self) -> None:
        self.stores.close()
        self._is_ended = True
        for sender in self.senders.cores():
            sender.say_unwritten()
        for region in self.regions.all():
            region.say_unwritten()
        self.folder.clean()
