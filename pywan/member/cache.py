"""Owns what users see of a member: the process's regions, senders and receiver."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from os import PathLike
from pathlib import Path
from typing import Any

from pywan.base.faces import Face
from pywan.config.attributes import DiskStoreAttributes, ReceiverAttributes, RegionAttributes, SenderAttributes
from pywan.config.table import takes
from pywan.disk.disk_store import DiskStore
from pywan.errors import ConfigurationError
from pywan.forks import is_inherited, of_one_process
from pywan.gateway.receiver import GatewayReceiver
from pywan.gateway.sender import GatewaySender
from pywan.member.core import MemberCore
from pywan.region.region import Region

log = logging.getLogger("pywan.cache")

TOMBSTONE_MEMORY_MB = 64  # For the tombstones of a region, unless the user says otherwise.

_open: weakref.WeakSet[Cache] = weakref.WeakSet()  # Those that the end of the interpreter closes.


@of_one_process(lambda cache: f"cache {cache._core.name!r}", nothing_in_child=("close",))
class Cache(Face):
    """A member of a site. Joins its locators on construction; a context manager that closes on the way out.

    `dir`: where working files go (overflow files); default: a temporary folder that is removed at close.
    `maximum_shutdown_wait_time`: how many seconds `close` waits for its senders' queues to empty; 0: not at all, -1:
    until they are. A cache that is open when the interpreter ends is closed then. `allow_callbacks`: the classes that
    may be named over the network, as filters and listeners (`package.*`, `package.module`, `package.module:Class`;
    several in a list or with commas): none, if not given. What this program and its cache.xml name is not asked for.
    """

    def __init__(
        self,
        name: str,
        *,
        locators: str,
        bind_address: str = "127.0.0.1",
        port: int = 0,
        cache_xml_file: str | PathLike[str] | None = None,
        dir: str | PathLike[str] | None = None,
        disk_dir: str | PathLike[str] | None = None,
        hostname_for_clients: str | None = None,
        join_timeout: float = 10.0,
        conflict_resolver: Any = None,
        maximum_shutdown_wait_time: float = 0,
        allow_callbacks: Any = (),
        maximum_tombstone_memory: int = TOMBSTONE_MEMORY_MB,
    ) -> None:
        self._core = MemberCore(
            name,
            bind_address=bind_address,
            dir=dir if dir is not None else disk_dir,
            join_timeout=join_timeout,
            conflict_resolver=conflict_resolver,
            maximum_shutdown_wait_time=maximum_shutdown_wait_time,
            allow_callbacks=allow_callbacks,
            maximum_tombstone_memory=maximum_tombstone_memory,
        )
        _open.add(self)
        try:
            self._core.start(
                locators=locators, port=port, hostname_for_clients=hostname_for_clients, cache_xml_file=cache_xml_file
            )
        except BaseException:
            self.close()
            raise

    # What it is

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def distributed_system_id(self) -> int:
        """The site's id, as its locators say."""
        return self._core.state.distributed_system_id

    @property
    def member_id(self) -> int:
        return int(self._core.state.membership.member_id)

    @property
    def host(self) -> str:
        return self._core.host

    @property
    def port(self) -> int:
        """Of control and of clients' data."""
        return self._core.port

    @property
    def directory(self) -> Path:
        """Where its working files are."""
        return self._core.folder.path

    @property
    def is_closed(self) -> bool:
        return self._core.state.closed.is_set()

    def status(self) -> dict[str, Any]:
        """Name, place, site and sizes, as plain values."""
        return self._core.status()

    @property
    def configuration_problems(self) -> list[str]:
        """What of the site's cluster configuration is not as it should be here, and why."""
        return self._core.configuration_problems

    @property
    def maximum_shutdown_wait_time(self) -> float:
        """How many seconds `close` waits for the senders' queues to empty; -1: until they are."""
        return self._core.maximum_shutdown_wait_time

    def volatile_events(self) -> dict[str, dict[str, int]]:
        """What would be lost if the member ended now: events "queued" and "parked" of senders without persistence, by
        the sender's id."""
        return self._core.senders.volatile_events()

    def __repr__(self) -> str:
        return f"<Cache {self._core.name}>"

    # Regions

    @takes(RegionAttributes)
    def create_region(self, attributes: RegionAttributes) -> Region[Any, Any]:
        """A new region. ConfigurationError, IllegalStateError or GatewaySenderConfigurationError (a parallel sender
        on a replicated region, one shared by regions that are not colocated) if it cannot be; then nothing was
        made."""
        return self._core.create_region(attributes)

    def destroy_region(self, name: str) -> None:
        """Drops the region of this member; a region operation, so nothing is sent."""
        self._core.regions.destroy(name)

    def regions(self) -> dict[str, Region[Any, Any]]:
        return self._core.regions.faces()

    def region(self, name: str) -> Region[Any, Any]:
        """RegionNotFoundError if there is none of that name."""
        return self._core.regions.get(name).face

    def set_conflict_resolver(self, resolver: Any) -> None:
        """Asked when another site's event meets an entry of a different site; None: the later version wins."""
        self._core.regions.set_resolver(resolver)

    # Senders and the receiver

    @takes(SenderAttributes)
    def create_gateway_sender(self, attributes: SenderAttributes) -> GatewaySender:
        """A new sender, started unless `manual_start`. GatewaySenderConfigurationError says what cannot be."""
        return self._core.create_gateway_sender(attributes)

    def gateway_senders(self) -> dict[str, GatewaySender]:
        return self._core.senders.by_id()

    def gateway_sender(self, id: str) -> GatewaySender:
        """NotFoundError if there is none of that id."""
        return self._core.senders.get(id)

    @takes(ReceiverAttributes)
    def create_gateway_receiver(self, attributes: ReceiverAttributes) -> GatewayReceiver:
        """The member's receiver (it can have one), started unless `manual_start`."""
        return self._core.create_gateway_receiver(attributes)

    def destroy_gateway_receiver(self) -> None:
        """GatewayReceiverError while it runs."""
        self._core.receiving.destroy()

    @property
    def gateway_receiver(self) -> GatewayReceiver | None:
        return self._core.receiving.receiver

    def create_async_event_queue(self, id: str, **attributes: Any) -> Any:
        raise ConfigurationError(f"async event queue {id!r}: asynchronous event queues are not in this version")

    # Disk stores

    @takes(DiskStoreAttributes)
    def create_disk_store(self, attributes: DiskStoreAttributes) -> DiskStore:
        """A disk store, opened. `directories`: (path, size in MB or None) pairs, default the member's folder."""
        return self._core.create_disk_store(attributes)

    def destroy_disk_store(self, name: str) -> None:
        """Gives up a store that holds no log any more, and removes its folders. IllegalStateError while it does;
        NotFoundError if it is not there."""
        self._core.stores.destroy(name)

    def disk_stores(self) -> dict[str, DiskStore]:
        return self._core.stores.faces()

    # Other sites, and time

    def forget_site(self, distributed_system_id: int) -> list[str]:
        """A site that is gone for good is not waited for any more: what it may still send can bring destroyed keys
        back. Returns the senders that were forgotten. NotFoundError if nothing of it has been heard of."""
        return self._core.tombstones.sources.forget(distributed_system_id)

    def repair_clock(self, regions: Any = (), *, dry_run: bool = False, timeout: float = 60.0) -> dict[str, Any]:
        """Stamps what is more than 300 s ahead of this member's clock with the time, in `regions` (not given: in all)
        and in the queues of all senders, parked events too, and sends it again; to be called when a clock that was
        ahead has been put right. Returns how many of each. With `dry_run` they are only counted.

        Events that are on their way are waited for: as long as other things go on, and `timeout` seconds more. What
        is left then is in "left". Changes go on meanwhile. It may be repeated; after a crash it has to be.
        IllegalStateError: another one runs, or the clock is one that this member does not follow.
        """
        for report in self._core.repairs.steps(regions, dry_run=dry_run, timeout=timeout):
            pass
        return report.to_dict()

    # The end

    @property
    def shutdown_requested(self) -> threading.Event:
        """Set when somebody asked the member to end: whoever runs it waits for that, and closes it."""
        return self._core.shutdown_requested

    def request_shutdown(self, maximum_shutdown_wait_time: float | None = None) -> None:
        """Tells whoever runs the member to close it: sets `shutdown_requested`. Asked again, a `close` that waits for
        queues waits no longer."""
        self._core.request_shutdown(maximum_shutdown_wait_time)

    def close(self, maximum_shutdown_wait_time: float | None = None) -> None:
        """Ends everything this member does, in an order that loses no acknowledged event.

        Takes no change any more, then waits for the senders that run to empty their queues:
        `maximum_shutdown_wait_time` seconds (not given: what the cache was made with), 0: not at all, -1: until they
        are empty. A second call meanwhile ends the waiting. What is queued or parked after that in senders without
        persistence is lost; the log says how many events, by sender. Closing again is no error; in a child that was
        forked nothing happens, since the member is its parent's.

        Nothing is written when it returns. DiskError names disk stores whose logs did not end in time: they stay
        locked until they have. Closing again waits for them again.
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
            log.exception("cache %s could not be closed as the interpreter ends", cache.name)
