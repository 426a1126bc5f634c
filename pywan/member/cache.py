"""Owns the part of a member that users see: the process's regions, senders and receiver."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

from pywan.async_queue.async_event_queue import AsyncEventQueue
from pywan.base.faces import Described, counted
from pywan.config.attributes import (
    AsyncEventQueueAttributes,
    DiskStoreAttributes,
    ReceiverAttributes,
    RegionAttributes,
    SenderAttributes,
)
from pywan.config.member_attributes import MemberAttributes
from pywan.config.table import takes
from pywan.disk.disk_store import DiskStore
from pywan.forks import is_inherited, of_one_process
from pywan.gateway.receiver import GatewayReceiver
from pywan.gateway.sender import GatewaySender
from pywan.gateway.status import receiver_status
from pywan.member.core import MemberCore
from pywan.region.region import Region

log = logging.getLogger("pywan.cache")

_open: weakref.WeakSet[Cache] = weakref.WeakSet()  # Open caches. The end of the interpreter closes them.


@of_one_process(lambda cache: f"cache {cache._core.name!r}", nothing_in_child=("close",))
class Cache(Described):
    """A member of a site, with its regions, gateway senders, gateway receiver and disk stores.

    The constructor joins the site's locators and starts the member. A cache is a context manager: the end of the `with`
    block calls `close`. The end of the interpreter closes a cache that is still open.

    Keyword Args:
        name (str): The member's name, also allowed as the first positional argument.
        locators (str): The site's locators, as `host[port],host[port]`.
        **attributes (Any): The attributes of a member (docs/configuration.md lists them).

    Raises:
        ConfigurationError: An argument cannot be used.
        CacheXmlError: The cache.xml file cannot be used.
        NoLocatorError: No locator answered in time.
        IllegalStateError: Another member of this name is alive.
        IncompatibleSystemError: The locators belong to different sites.
        PortInUseError: Another process listens on the port.
    """

    @takes(MemberAttributes)
    def __init__(self, attributes: MemberAttributes) -> None:
        self._core = MemberCore(attributes)
        _open.add(self)
        try:
            self._core.start()
        except BaseException:
            self.close()
            raise

    # State

    @property
    def name(self) -> str:
        """The member's name."""
        return self._core.name

    @property
    def distributed_system_id(self) -> int:
        """The id of the member's site, as the locators gave the id. -1: the site has none."""
        return self._core.state.distributed_system_id

    @property
    def member_id(self) -> int:
        """The number of this incarnation of the member. No other incarnation has the same number."""
        return int(self._core.state.membership.member_id)

    @property
    def host(self) -> str:
        """The host name or address under which other processes find this member."""
        return self._core.host

    @property
    def port(self) -> int:
        """The port for control requests and for clients' data."""
        return self._core.port

    @property
    def directory(self) -> Path:
        """The folder of the member's working files."""
        return self._core.folder.path

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.state.closed.is_set()

    def status(self) -> dict[str, Any]:
        """Returns the member's name, address, site and sizes as plain values."""
        return self._core.status()

    def reload_certificates(self) -> list[str]:
        """Reads the files of `ssl` again. New connections use the new content. Changed files are also read again some
        seconds after the change, without a call.

        Returns:
            The files. None, if there is no encryption.

        Raises:
            ConfigurationError: A file cannot be used. No file was replaced.
        """
        return self._core.links.reload()

    @property
    def configuration_problems(self) -> list[str]:
        """One text for each part of the site's cluster configuration that this member could not adopt, with the
        reason."""
        return self._core.configuration_problems

    @property
    def call_timeout(self) -> float | None:
        """The timeout in seconds of a call about a region of several members. A new value is also valid for calls under
        way. None means 10, or twice the site's `member-timeout` if the latter is longer."""
        return self._core.call_timeout

    @call_timeout.setter
    def call_timeout(self, call_timeout: float | None) -> None:
        self._core.set_call_timeout(call_timeout)

    @property
    def maximum_shutdown_wait_time(self) -> float:
        """How many seconds `close` waits for the senders' queues to become empty. -1: no limit."""
        return self._core.maximum_shutdown_wait_time

    def volatile_events(self) -> dict[str, dict[str, int]]:
        """Counts the events that would be lost if the member ended now.

        Returns:
            The numbers of "queued" and "parked" events, for each sender or asynchronous event queue without persistence
                that holds events. Zeros are left out. The key of a sender is its id, and the key of a queue is
                "AsyncEventQueue_" and its id.
        """
        return self._core.senders.volatile_events()

    # Text representation

    def _line(self) -> str:
        core = self._core
        if is_inherited(self):
            return f"{core.name}, of the parent process"
        if core.state.closed.is_set():
            return f"{core.name}, closed"
        senders, queues = core.senders.sender_cores(), core.senders.queue_cores()
        things = f"{counted(len(core.regions.all()), 'region')}, {counted(len(senders), 'gateway sender')}"
        things += f", {counted(len(queues), 'async event queue')}" if queues else ""
        return f"{core.name} of site {core.state.distributed_system_id} on {core.host}[{core.port}], {things}"

    def _facts(self) -> dict[str, object]:
        core = self._core
        facts: dict[str, object] = {"name": core.name}
        if is_inherited(self):
            return {**facts, "state": "of the parent process"}
        receiver = core.receiving.receiver
        return {
            **facts,
            "state": "closed" if core.state.closed.is_set() else "open",
            "site": str(core.state.distributed_system_id),
            "address": f"{core.host}[{core.port}]",
            "directory": core.folder.path,
            "regions": sorted(region.name for region in core.regions.all()),
            "gateway senders": {sender.id: sender.status.text for sender in core.senders.sender_cores()},
            "async event queues": {queue.attributes.id: queue.status.text for queue in core.senders.queue_cores()},
            "gateway receiver": receiver_status(receiver.is_running) if receiver is not None else "none",
            "disk stores": sorted(core.stores.all()),
            "configuration problems": len(core.configuration_problems),
        }

    # Regions

    @takes(RegionAttributes)
    def create_region(self, attributes: RegionAttributes) -> Region[Any, Any]:
        """Creates a region.

        Keyword Args:
            name (str): The region's name, also allowed as the first positional argument.
            **attributes (Any): The attributes of a region (docs/configuration.md lists them).

        Raises:
            ConfigurationError: An attribute cannot be used.
            IllegalStateError: The region exists already, its disk store does not exist, the colocation is impossible,
                or the region shares a parallel sender with a region with other colocation.
            GatewaySenderConfigurationError: The region does not fit one of its senders. For example, a parallel sender
                does not go with a REPLICATE region.

        If an error is raised, nothing was created.
        """
        return self._core.create_region(attributes)

    def destroy_region(self, name: str) -> None:
        """Destroys a region of this member. This is a region operation: other sites keep their entries.

        Args:
            name: The region's name.

        Raises:
            RegionNotFoundError: The member has no such region.
        """
        self._core.regions.destroy(name)

    def regions(self) -> dict[str, Region[Any, Any]]:
        """Returns the member's regions by their names."""
        return self._core.regions.faces()

    def region(self, name: str) -> Region[Any, Any]:
        """Returns the region of that name.

        Raises:
            RegionNotFoundError: The member has no such region.
        """
        return self._core.regions.get(name).face

    def set_conflict_resolver(self, resolver: Any) -> None:
        """Sets the conflict resolver for all regions of this member.

        Args:
            resolver: A `GatewayConflictResolver`. The resolver decides about an event of another site if a different
                site changed the entry last. None: the later version wins.
        """
        self._core.regions.set_resolver(resolver)

    # Senders and the receiver

    @takes(SenderAttributes)
    def create_gateway_sender(self, attributes: SenderAttributes) -> GatewaySender:
        """Creates a gateway sender, and starts the sender unless `manual_start` is true.

        Keyword Args:
            id (str): The sender's id, also allowed as the first positional argument.
            **attributes (Any): The attributes of a gateway sender (docs/configuration.md lists them).
                `remote_distributed_system_id` is required.

        Raises:
            GatewaySenderConfigurationError: An attribute cannot be used.
            IllegalStateError: The member has a sender with this id already, or the disk store does not exist.
            DiskError: The sender's log cannot be opened.
        """
        return self._core.create_gateway_sender(attributes)

    def gateway_senders(self) -> dict[str, GatewaySender]:
        """Returns the member's gateway senders by their ids."""
        return self._core.senders.by_id()

    def gateway_sender(self, id: str) -> GatewaySender:
        """Returns the gateway sender of that id.

        Raises:
            NotFoundError: The member has no such sender.
        """
        return self._core.senders.get(id)

    @takes(ReceiverAttributes)
    def create_gateway_receiver(self, attributes: ReceiverAttributes) -> GatewayReceiver:
        """Creates the member's gateway receiver, and starts the receiver unless `manual_start` is true. A member has at
        most one receiver.

        Keyword Args:
            **attributes (Any): The attributes of a gateway receiver (docs/configuration.md lists them).

        Raises:
            ConfigurationError: An attribute cannot be used.
            IllegalStateError: The member has a receiver already.
            GatewayReceiverError: No port of the range can be used.
        """
        return self._core.create_gateway_receiver(attributes)

    def destroy_gateway_receiver(self) -> None:
        """Removes the member's gateway receiver. The receiver must be stopped before.

        Raises:
            GatewayReceiverError: The receiver runs.
            NotFoundError: The member has no receiver.
        """
        self._core.receiving.destroy()

    @property
    def gateway_receiver(self) -> GatewayReceiver | None:
        """The member's gateway receiver. None: the member has no receiver."""
        return self._core.receiving.receiver

    @takes(AsyncEventQueueAttributes)
    def create_async_event_queue(self, attributes: AsyncEventQueueAttributes) -> AsyncEventQueue:
        """Creates an asynchronous event queue, and starts the queue.

        Keyword Args:
            id (str): The queue's id, also allowed as the first positional argument.
            async_event_listener (Any): The listener: an object with `process_events(events)` or `process_arrow(batch)`,
                or a function of events. Also allowed as the second positional argument.
            **attributes (Any): The attributes of an asynchronous event queue (docs/configuration.md lists them).

        Raises:
            AsyncEventQueueConfigurationError: An attribute cannot be used, or the listener cannot be made.
            IllegalStateError: The member has a queue with this id already, or the disk store does not exist.
            DiskError: The queue's log cannot be opened.
        """
        return self._core.create_async_event_queue(attributes)

    def async_event_queues(self) -> dict[str, AsyncEventQueue]:
        """Returns the member's asynchronous event queues by their ids."""
        return self._core.senders.queues_by_id()

    def async_event_queue(self, id: str) -> AsyncEventQueue:
        """Returns the asynchronous event queue of that id.

        Raises:
            NotFoundError: The member has no such queue.
        """
        return self._core.senders.get_queue(id)

    # Disk stores

    @takes(DiskStoreAttributes)
    def create_disk_store(self, attributes: DiskStoreAttributes) -> DiskStore:
        """Creates a disk store, or opens a store that is on the disk already.

        Keyword Args:
            name (str): The store's name, also allowed as the first positional argument.
            directories (list[tuple[str, int | None]]): Pairs of a path and a limit in MB (None: no limit). By default
                the store is in the member's folder.

        Raises:
            ConfigurationError: An attribute cannot be used, or the member's folder is temporary.
            IllegalStateError: The member has a store with this name already.
            DiskError: A directory cannot be used, or another process uses the directory.
        """
        return self._core.create_disk_store(attributes)

    def destroy_disk_store(self, name: str) -> None:
        """Removes a disk store that holds no log any more, with its folders.

        Raises:
            IllegalStateError: The store still holds the log of a region or a sender.
            NotFoundError: The member has no such store.
        """
        self._core.stores.destroy(name)

    def disk_stores(self) -> dict[str, DiskStore]:
        """Returns the member's disk stores by their names."""
        return self._core.stores.faces()

    # Other sites, and time

    def forget_site(self, distributed_system_id: int) -> list[str]:
        """Stops waiting for a site that has ended for good, so that the member keeps no more tombstones for the site.

        If the site has not ended, an old event of the site can bring a destroyed key back later.

        Args:
            distributed_system_id: The id of the site.

        Returns:
            The forgotten senders of the site.

        Raises:
            NotFoundError: This member knows no sender of the site.
        """
        return self._core.tombstones.sources.forget(distributed_system_id)

    def repair_clock(self, regions: Any = (), *, dry_run: bool = False, timeout: float = 60.0) -> dict[str, Any]:
        """Repairs stamps made by a clock that was ahead. Call the method after the clock was corrected.

        Every stamp more than 300 s ahead of this member's clock is replaced by the present time, and the change is sent
        again. The repair includes entries of the regions, and events in the queues of all senders, also parked events.
        Other changes go on meanwhile. The repair may be repeated. After a crash the repair must be repeated.

        Args:
            regions: The names of the regions to repair. Empty: all regions.
            dry_run: Only count the entries and events to change.
            timeout: How many more seconds to wait for events in flight when all else is done.

        Returns:
            The numbers of entries and events with a new stamp. "left" counts the events that were still in flight in
                the end.

        Raises:
            IllegalStateError: Another repair runs, or the member does not use its own clock.
            RegionNotFoundError: The member has no region of a given name.
        """
        *_, report = self._core.repairs.steps(regions, dry_run=dry_run, timeout=timeout)
        return report.to_dict()

    # End

    @property
    def shutdown_requested(self) -> threading.Event:
        """An event, set by a request to end the member. The program of the member waits for the event, and then calls
        `close`."""
        return self._core.shutdown_requested

    def request_shutdown(self, maximum_shutdown_wait_time: float | None = None) -> None:
        """Asks the program of the member to close the member, by setting `shutdown_requested`.

        A second request ends the waiting of a `close` for other members, or for queues to become empty.

        Args:
            maximum_shutdown_wait_time: Replaces the value given to the constructor. None: the value stays.
        """
        self._core.request_shutdown(maximum_shutdown_wait_time)

    def close(self, maximum_shutdown_wait_time: float | None = None) -> None:
        """Ends the member in an order that loses no acknowledged event.

        First other members take over the buckets of shared regions whose only whole replica is in this member, for
        `handover_time` at most. If they did not, the log names the lost entries. Then the member accepts no change any
        more, and waits until its running senders have emptied their queues. Afterwards the member ends senders,
        receiver, regions and disk stores. Events that are still in queues without persistence are lost then; the log
        gives the number of lost events of each queue. When `close` returns, no thread writes to the disk any more. A
        repeated call is no error. In a forked child the call has no effect, because the member belongs to the parent
        process.

        Args:
            maximum_shutdown_wait_time: How many seconds to wait for the queues. 0: no wait. -1: wait until the queues
                are empty. None: the value given to the constructor. A second `close` or `request_shutdown` ends the
                waiting, for other members too.

        Raises:
            DiskError: The logs of some disk stores did not end in time. Those stores stay locked until their logs have
                ended. Another `close` waits again.
            ConfigurationError: The argument is no number of seconds.
        """
        self._core.close(maximum_shutdown_wait_time)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@atexit.register
def _close_what_is_open() -> None:
    for cache in list(_open):
        if is_inherited(cache) or cache.is_closed:
            continue
        try:
            cache.close()
        except Exception:
            log.exception("cache %s could not be closed at the end of the interpreter", cache.name)
