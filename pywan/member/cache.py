"""Owns a member: the process's regions, senders and receiver, put together from what the caller, the cache.xml and the
cluster configuration say."""
from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Iterator

from pywan import _core
from pywan.base.addresses import WILDCARDS, check_told_host, parse_locators
from pywan.region.callback_lock import LifeCycleLock, check_no_callback
from pywan.region.clock_repair import ClockRepair, ClockRepairReport
from pywan.base.clocks import clock_trouble
from pywan.config.attributes import (
    CALLBACK_METHODS, DEFAULT_STORE, MAX_WAIT_S, DiskStoreAttributes, RegionAttributes, SenderAttributes, make_disk_store_attributes, make_instance,
    make_receiver_attributes, make_region_attributes, make_sender_attributes, to_callback_patterns, to_int, to_wait_time, validate_attachment, validate_colocation,
)
from pywan.errors import (
    CacheXmlError, ConfigurationError, DiskError, GatewayReceiverError, GatewaySenderConfigurationError, GatewaySenderError, IllegalStateError, NotFoundError,
    PywanError, RegionNotFoundError,
)
from pywan.disk.store import DiskStore, holds_log
from pywan.gateway.floors import Floor, SourceFloors, format_stamp
from pywan.forks import is_inherited, of_one_process
from pywan.member.management import ManagementService
from pywan.site.membership import Membership, new_profile
from pywan.base.names import check_name
from pywan.gateway.receiver import AppliedMemory, GatewayReceiver
from pywan.region.region import Region
from pywan.gateway.sender import FLUSH_LIMIT_MS, GatewaySender
from pywan.member.staging import RowStages
from pywan.stats import volatile_text
from pywan.base.threads import start_thread
from pywan.transport.control import ControlServer
from pywan.transport.sockets import reachable_address

log = logging.getLogger("pywan.cache")

TOMBSTONE_AGE_MS = 60_000           # A destroyed key is remembered for so long whatever floors say: stamps that callers give are in none of them.
TOMBSTONE_MEMORY_MB = 64            # For the tombstones of a region, unless the user says otherwise.
HOUSEKEEPING_S = 5.0
DISK_LOOK_S = 0.2                   # Until a look at tombstones that wait for a disk.
TROUBLE_S = 60.0        # How often a log that cannot be written is told again.
DRAIN_LOOK_S = 0.01                 # Between two looks at queues that are to become empty.
FLOORS_SAVED_S = 60.0
MAX_SENDERS = 128
TRIM_BYTES = 16 << 20               # When so much was freed by regions and logs the process gives it back to the system.

_open: "weakref.WeakSet[Cache]" = weakref.WeakSet()     # Those that the end of the interpreter closes.


@of_one_process(lambda cache: f"cache {cache.name!r}", nothing_in_child=("close",))
class Cache:
    """A member of a site. Joins its locators on construction; a context manager that closes on the way out.

    `dir`: where working files go (overflow files); default: a temporary folder that is removed at close.
    `maximum_shutdown_wait_time`: how many seconds `close` waits for its senders' queues to empty; 0: not at all, -1: until they are. A cache that is
    open when the interpreter ends is closed then.
    `allow_callbacks`: the classes that may be named over the network, as filters and listeners (`package.*`,
    `package.module`, `package.module:Class`; several in a list or with commas): none, if not given. What this program
    and its cache.xml name is not asked for.
    """

    def __init__(
        self, name: str, *, locators: str, bind_address: str = "127.0.0.1", port: int = 0, cache_xml_file: str | os.PathLike | None = None,
        dir: str | os.PathLike | None = None, disk_dir: str | os.PathLike | None = None, hostname_for_clients: str | None = None,
        join_timeout: float = 10.0, conflict_resolver: Any = None, maximum_shutdown_wait_time: float = 0, allow_callbacks: Any = (),
        maximum_tombstone_memory: int = TOMBSTONE_MEMORY_MB,
    ) -> None:
        self.name = check_name(name, "cache")
        self.allowed_callbacks = to_callback_patterns(allow_callbacks, f"cache {name!r}: allow_callbacks")
        self.configuration_problems: list[str] = []         # What of the site's cluster configuration is not as it should be here, and why.
        self.shutdown_requested = threading.Event()
        if isinstance(join_timeout, bool) or not isinstance(join_timeout, (int, float)) or not 0 < join_timeout <= MAX_WAIT_S:
            raise ConfigurationError(f"cache {name!r}: join_timeout {join_timeout!r} is not a number of seconds above 0, and at most {MAX_WAIT_S}")
        self._shutdown_wait_s = to_wait_time(maximum_shutdown_wait_time, f"cache {name!r}: maximum_shutdown_wait_time")
        self._waits_no_longer = threading.Event()           # Set when it is asked to end a second time.
        self._bind_address = bind_address
        self._lock = LifeCycleLock(f"cache {name!r}")        # Guards changes of the composition, below; a dict is read as it is.
        self._regions: dict[str, Region] = {}
        self._senders: dict[str, GatewaySender] = {}
        self._receiver: GatewayReceiver | None = None
        self._stores: dict[str, DiskStore] = {}             # Open ones; "DEFAULT" is made when it is first needed.
        self._clock = _core.Clock()
        self._bell = _core.Bell()                           # Calls the housekeeper.
        self._tombstone_bytes = to_int(maximum_tombstone_memory, "maximum_tombstone_memory", 1, 1 << 20) << 20
        self._applied = AppliedMemory()
        self._resolver = conflict_resolver
        self._closed = threading.Event()
        self._close_lock = threading.Lock()                 # One close at a time; who comes second waits for the first.
        self._closing_thread: int | None = None
        self._repair_lock = threading.Lock()                # One repair of the clock at a time.
        self._floors_lock = threading.Lock()                # Guards `_floor_kept`, while floors are found and told.
        self._floor_kept: int | None = None                 # While the clock is repaired: the stamp that our own floor does not rise above.
        self._troubles: dict[str, tuple[str, float]] = {}   # The housekeeper's: why a log is not written, and when that was said.
        self._is_ended = False                              # `close` is done, disk stores and all.
        self._ready = False
        self._floors_saved_at = time.monotonic()
        self._started_at = time.time()
        given = dir if dir is not None else disk_dir
        self._own_directory = given is None
        self.directory = Path(given) if given is not None else Path(tempfile.mkdtemp(prefix="pywan-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._overflow = self.directory / f"overflow-{name}"
        self._overflow.mkdir(mode=0o700, exist_ok=True)
        self._management = ManagementService(self)
        self._stages: RowStages | None = None
        self._server: ControlServer | None = None
        self._membership: Membership | None = None
        self._housekeeper: threading.Thread | None = None
        _open.add(self)
        try:
            self._start(locators, port, hostname_for_clients, cache_xml_file, join_timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, locators: str, port: int, hostname: str | None, cache_xml_file: Any, join_timeout: float) -> None:
        configuration = None
        if cache_xml_file is not None:
            from pywan.config.cache_xml import parse

            configuration = parse(cache_xml_file)       # Before anything is listened on: a wrong file is the first thing to say.
        self._server = ControlServer(self._bind_address, port, self._handle, name=f"member {self.name}", other_protocols={b"PWD1": self._serve_rows})
        host = check_told_host(hostname, f"cache {self.name!r}: hostname_for_clients") or reachable_address(self._bind_address, parse_locators(locators))
        if not hostname and self._bind_address in WILDCARDS:
            log.info("member %s listens on every interface, and is known to others as %s; another name can be given by hostname-for-clients", self.name, host)
        profile = new_profile(self.name, host, self._server.port)
        self._profile = profile
        self._membership = Membership(locators, profile)
        self._server.start()
        self._membership.join(join_timeout)
        others = [member["name"] for member in self._membership.servers() if member["name"] != self.name]
        if others:
            log.warning("member %s: the site has %s already. Members of one site do not share their regions and senders in this version: each holds"
                        " its own part of the data", self.name, ", ".join(others))
        self._floors = SourceFloors(self._site, None if self._own_directory else self.directory / f"gateway-sources-{self.name}.json", lambda: self._clock.now_ms)
        self._stages = RowStages(site=self._site, member_name=self.name, directory=str(self._overflow), find_region=self._find_region)
        if configuration is not None:
            self._apply_xml(configuration)
        # The receiver last: other sites send at once, and would have to park what is for a region that is not there yet.
        things = self._membership.cluster_configuration
        is_receiver = [isinstance(thing, dict) and thing.get("kind") == "gateway-receiver" for thing in things]
        apply = self._management.apply_configuration
        self.configuration_problems += apply(thing for thing, is_last in zip(things, is_receiver) if not is_last)
        if configuration is not None and configuration.receiver is not None:
            self._make_from_xml(configuration, "gateway-receiver", "", lambda: self.create_gateway_receiver(**vars(configuration.receiver)))
        self.configuration_problems += apply(thing for thing, is_last in zip(things, is_receiver) if is_last)
        self._housekeeper = start_thread(f"member {self.name} cannot start", f"{self.name}-housekeeping", self._keep_house)
        self._ready = True

    # What it is

    @property
    def distributed_system_id(self) -> int:
        """The site's id, as its locators say."""
        assert self._membership is not None
        return self._membership.distributed_system_id

    @property
    def _site(self) -> int:
        return max(0, self.distributed_system_id)   # -1 (none given): this site cannot be another one's remote.

    @property
    def member_id(self) -> int:
        return int(self._profile["member_id"])

    @property
    def host(self) -> str:
        return str(self._profile["host"])

    @property
    def port(self) -> int:
        """Of control and of clients' data."""
        return int(self._profile["port"])

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def regions(self) -> dict[str, Region]:
        return dict(self._regions)

    def region(self, name: str) -> Region:
        found = self._find_region(name.lstrip("/")) if isinstance(name, str) else None
        if found is None:
            raise RegionNotFoundError(f"member {self.name!r} has no region {name!r}; it has {', '.join(sorted(self._regions)) or 'none'}")
        return found

    def _find_region(self, name: str) -> Region | None:
        return self._regions.get(name)

    def gateway_senders(self) -> dict[str, GatewaySender]:
        return dict(self._senders)

    def gateway_sender(self, id: str) -> GatewaySender:
        try:
            return self._senders[id]
        except (KeyError, TypeError):       # A list, say, is no key.
            raise NotFoundError(f"member {self.name!r} has no gateway sender {id!r}; it has {', '.join(sorted(self._senders)) or 'none'}") from None

    @property
    def gateway_receiver(self) -> GatewayReceiver | None:
        return self._receiver

    def status(self) -> dict[str, Any]:
        """Name, place, site and sizes, as plain values."""
        return {
            "name": self.name, "distributed_system_id": self.distributed_system_id, "host": self.host, "port": self.port, "pid": os.getpid(),
            "directory": str(self.directory), "uptime_seconds": round(time.time() - self._started_at, 1),
            "locator_connected": self._membership.is_connected if self._membership else False,
            "regions": {name: 0 if region.is_closed else len(region) for name, region in self.regions().items()},
            "gateway_senders": {id: sender.status for id, sender in self.gateway_senders().items()},
            "gateway_receiver_port": self._receiver.port if self._receiver else None,
            "maximum_shutdown_wait_time": self.maximum_shutdown_wait_time, "volatile_events": self.volatile_events(),
            "cluster_configuration_problems": list(self.configuration_problems),
        }

    @property
    def maximum_shutdown_wait_time(self) -> float:
        """How many seconds `close` waits for the senders' queues to empty; -1: until they are."""
        return -1 if self._shutdown_wait_s == math.inf else self._shutdown_wait_s

    def volatile_events(self) -> dict[str, dict[str, int]]:
        """What would be lost if the member ended now: events "queued" and "parked" of senders without persistence, by the sender's id."""
        found = {id: sender.volatile_events() for id, sender in self.gateway_senders().items()}
        return {id: counts for id, counts in found.items() if counts}

    def __repr__(self) -> str:
        return f"<Cache {self.name}>"

    # Regions

    def create_region(self, name: str, type: str = "PARTITION", gateway_sender_ids: Any = (), **attributes: Any) -> Region:
        """A new region. ConfigurationError, IllegalStateError or GatewaySenderConfigurationError (a parallel sender on a
        replicated region, one shared by regions that are not colocated) if it cannot be; then nothing was made."""
        made = make_region_attributes(name, type=type, gateway_sender_ids=gateway_sender_ids, **attributes)
        with self._lock:
            self._check_open()
            if made.name in self._regions:
                raise IllegalStateError(f"region {made.name!r} exists already on member {self.name!r}; alter it, or destroy it first")
            self._validate_region(made)
            if made.redundant_copies:
                log.warning("region %s: redundant_copies %d has no effect in this version: the members of a site keep no copies of each other's entries",
                            made.name, made.redundant_copies)
            listeners = [make_instance(listener, f"region {made.name!r}: cache_listener", CALLBACK_METHODS["cache_listeners"])
                         for listener in made.cache_listeners]
            region = Region(
                made.name, self._clock, site=self._site, member=self.member_id, stores="PROXY" not in made.type, forwards=made.feeds_gateways,
                buckets=made.total_num_buckets if made.is_partitioned else 0, attributes=made, listeners=listeners,
                resolver=self._resolver, alter=self._alter_region)
            if made.is_persistent:
                self._make_persistent(region, made)
            else:
                self._warn_of_log(f"region {made.name}", f"region-{made.name}")
            region.watch_tombstones(self._tombstone_bytes, self._bell)
            self._attach(region)
            self._regions[made.name] = region
            self._note_missing_senders(region)
            return region

    def _note_missing_senders(self, region: Region) -> None:
        missing = [id for id in region.gateway_sender_ids if id not in self._senders]
        if missing:
            log.info("region %s names gateway sender %s, which member %s does not have; events are not queued for it until it is created", region.name, ", ".join(missing), self.name)

    def _make_persistent(self, region: Region, attributes: RegionAttributes) -> None:
        store = self._store(attributes.disk_store_name)
        place = store.log_place(f"region-{attributes.name}", {"kind": "region", "region": attributes.name, "site": self._site})
        region.make_persistent(place.folder, log_id=secrets.randbits(63) | 1, synchronous=attributes.disk_synchronous,
                               flush_ms=min(store.attributes.time_interval, FLUSH_LIMIT_MS), log_budget=place.budget, log_known=place.known,
                               start_writer=functools.partial(store.start_writer, f"region-{attributes.name}"))

    def _warn_of_log(self, what: str, owner: str) -> None:
        """The owner is not persistent now, but a disk store has its old log. We keep the log and do not use it."""
        folders = [folder for store in self._stores.values() for folder in store.directories]
        if DEFAULT_STORE not in self._stores:
            folders.append(self.directory / f"disk-store-{DEFAULT_STORE}")
        for folder in folders:
            if holds_log(folder / owner):
                log.warning("%s is not persistent now, and %s holds what it had when it was: that is not used, and comes back as it is, however old, when"
                            " it is persistent again; move the folder away if that is not wanted", what, folder / owner)

    def _validate_region(self, attributes: RegionAttributes) -> None:
        for id in attributes.gateway_sender_ids:
            sender = self._senders.get(id)
            if sender is not None:
                validate_attachment(attributes, sender.attributes)
        validate_colocation(attributes, [r.attributes for r in self._regions.values()], {id: s.attributes for id, s in self._senders.items()})

    def _alter_region(self, region: Region, changes: dict[str, Any]) -> None:
        with self._lock:
            self._check_open()
            if self._regions.get(region.name) is not region:
                raise RegionNotFoundError(f"region {region.name!r} was destroyed")
            if not changes:
                raise ConfigurationError(f"region {region.name!r}: nothing to alter; give gateway_sender_ids (an empty one detaches all)")
            unknown = set(changes) - {"gateway_sender_ids"}
            if unknown:
                raise ConfigurationError(f"region {region.name!r}: {', '.join(sorted(unknown))} cannot be altered; only gateway_sender_ids can")
            a = region.attributes
            altered = make_region_attributes(
                a.name, type=a.type, gateway_sender_ids=changes["gateway_sender_ids"],
                total_num_buckets=a.total_num_buckets, redundant_copies=a.redundant_copies, colocated_with=a.colocated_with,
                disk_store_name=a.disk_store_name, disk_synchronous=a.disk_synchronous)
            altered.cache_listeners = a.cache_listeners
            self._validate_region(altered)
            region.attributes = altered
            self._attach(region)
            self._note_missing_senders(region)

    def _attach(self, region: Region) -> None:
        region.attach_senders([self._senders[id] for id in region.attributes.gateway_sender_ids if id in self._senders])

    def destroy_region(self, name: str) -> None:
        """Drops the region of this member; a region operation, so nothing is sent."""
        with self._lock:
            region = self.region(name)
            children = sorted(other.name for other in self._regions.values() if other.attributes.colocated_with == region.name)
            if children:
                raise IllegalStateError(f"region {region.name!r} cannot be destroyed while others are colocated with it; destroy"
                                        f" {', '.join(children)} first")
            region.close()
            region.attach_senders([])
            del self._regions[region.name]
            if region.attributes.is_persistent:
                self._store(region.attributes.disk_store_name).forget(f"region-{region.name}")

    # Senders

    def create_gateway_sender(self, id: str, *, remote_distributed_system_id: int, **attributes: Any) -> GatewaySender:
        """A new sender, started unless `manual_start`. GatewaySenderConfigurationError says what cannot be."""
        check_name(id, "gateway sender", GatewaySenderConfigurationError)
        with self._lock:
            self._check_open()
            if id in self._senders:
                raise IllegalStateError(f"a gateway sender with id {id!r} is already defined in this cache (member {self.name!r}); destroy it first, or choose another id")
            if len(self._senders) >= MAX_SENDERS:
                raise IllegalStateError(f"gateway sender {id!r}: member {self.name!r} has {MAX_SENDERS} senders, the most there can be")
            made = make_sender_attributes(
                id, remote_distributed_system_id=remote_distributed_system_id, own_distributed_system_id=self.distributed_system_id, **attributes)
            self._validate_sender(made)
            store = self._store(made.disk_store_name) if made.enable_persistence else None
            if store is None:
                self._warn_of_log(f"gateway sender {id}", f"queue-{id}")
            sender = GatewaySender(
                made, membership=self._membership, member_name=self.name, site=self._site, directory=str(self._overflow), store=store, clock=self._clock,
                on_state=self._sender_changed, on_destroy=self._forget_sender)
            self._senders[id] = sender
            self._sender_changed(sender)
        if not made.manual_start:
            sender.start()
        return sender

    def _validate_sender(self, attributes: SenderAttributes) -> None:
        what = f"gateway sender {attributes.id!r}"
        if attributes.disk_store_name not in (None, DEFAULT_STORE) and attributes.disk_store_name not in self._stores:
            raise IllegalStateError(f"{what}: Disk store {attributes.disk_store_name!r} not found; create it first (there are {', '.join(sorted(self._stores)) or 'none'})")
        for region in self._regions.values():
            if attributes.id in region.gateway_sender_ids:
                validate_attachment(region.attributes, attributes)
        others = [region.attributes for region in self._regions.values()]
        for region in others:
            if attributes.id in region.gateway_sender_ids:
                validate_colocation(region, others, {attributes.id: attributes})

    def _sender_changed(self, sender: GatewaySender) -> None:
        """Whom events reach depends on which senders run: the regions have to know at once."""
        for region in list(self._regions.values()):
            if sender.id in region.gateway_sender_ids:
                self._attach(region)

    def _forget_sender(self, sender: GatewaySender) -> None:
        with self._lock:
            attached = sorted(r.name for r in self._regions.values() if sender.id in r.gateway_sender_ids)
            if attached:
                raise GatewaySenderError(f"gateway sender {sender.id!r} is attached to region {', '.join(attached)}; detach it there first (alter region)")
            self._senders.pop(sender.id, None)

    # The receiver

    def create_gateway_receiver(self, **attributes: Any) -> GatewayReceiver:
        """The member's receiver (it can have one), started unless `manual_start`."""
        made = make_receiver_attributes(**attributes)
        with self._lock:
            self._check_open()
            if self._receiver is not None:
                raise IllegalStateError(f"member {self.name!r} has a gateway receiver already, and can have one; destroy it first")
            receiver = GatewayReceiver(
                made, site=self._site, member_name=self.name, bind_address=self._bind_address, memory=self._applied, floors=self._floors,
                find_region=self._find_region, peers=self._membership.peers, on_change=self._receiver_changed)
            if not made.manual_start:
                receiver.start()
            self._receiver = receiver
            self._receiver_changed(receiver)
            return receiver

    def destroy_gateway_receiver(self) -> None:
        """GatewayReceiverError while it runs."""
        with self._lock:
            if self._receiver is None:
                raise NotFoundError(f"member {self.name!r} has no gateway receiver")
            if self._receiver.is_running:
                raise GatewayReceiverError("gateway receiver: it runs; stop it before it is destroyed")
            self._receiver = None

    def _receiver_changed(self, receiver: GatewayReceiver) -> None:
        if self._membership is None or self._closed.is_set():
            return
        receivers = [{"host": receiver.host, "port": receiver.port}] if receiver.is_running else []
        self._membership.update(receivers=receivers, load=receiver.connection_count)

    # What is not there yet

    def create_async_event_queue(self, id: str, **attributes: Any) -> Any:
        raise ConfigurationError(f"async event queue {id!r}: asynchronous event queues are not in this version")

    # Disk stores

    def create_disk_store(self, name: str, **attributes: Any) -> DiskStore:
        """A disk store, opened. `directories`: (path, size in MB or None) pairs, default the member's folder."""
        check_name(name, "disk store")
        with self._lock:
            self._check_open()
            if name in self._stores:
                raise IllegalStateError(f"disk store {name!r} exists already on member {self.name!r}")
            made = make_disk_store_attributes(name, **attributes)
            if not made.directories and self._own_directory:
                raise ConfigurationError(f"disk store {name!r}: member {self.name!r} has no folder that stays: give the store directories, or the cache dir")
            store = self._stores[name] = DiskStore(made, self.directory)
            return store

    def destroy_disk_store(self, name: str) -> None:
        """Gives up a store that holds no log any more, and removes its folders. IllegalStateError while it does; NotFoundError if it is not there."""
        with self._lock:
            self._check_open()
            if name not in self._stores:
                raise NotFoundError(f"disk store {name!r} is not on member {self.name!r}; there are {', '.join(sorted(self._stores)) or 'none'}")
            self._stores[name].destroy()
            del self._stores[name]

    def disk_stores(self) -> dict[str, DiskStore]:
        return dict(self._stores)

    def _store(self, name: str | None) -> DiskStore:
        if name is None:
            name = DEFAULT_STORE
        if name not in self._stores and name != DEFAULT_STORE:
            raise IllegalStateError(f"Disk store {name!r} not found on member {self.name!r}; create it first (there are {', '.join(sorted(self._stores)) or 'none'})")
        if name not in self._stores:
            if self._own_directory:
                raise ConfigurationError(f"member {self.name!r}: persistence needs a folder that stays: give dir, or create a disk store with directories")
            self._stores[name] = DiskStore(DiskStoreAttributes(name), self.directory)
        return self._stores[name]

    # Life

    def set_conflict_resolver(self, resolver: Any) -> None:
        """Asked when another site's event meets an entry of a different site; None: the later version wins."""
        with self._lock:
            self._resolver = make_instance(resolver, "gateway_conflict_resolver", CALLBACK_METHODS["gateway_conflict_resolver"]) if resolver is not None else None
            for region in self._regions.values():
                region.set_resolver(self._resolver)

    @staticmethod
    def _make_from_xml(configuration: Any, kind: str, name: str, call: Any) -> None:
        try:
            call()
        except PywanError as error:
            raise CacheXmlError(f"{configuration.where(kind, name)}: {error}") from error

    def _apply_xml(self, configuration: Any) -> None:
        """All but the receiver."""
        making = functools.partial(self._make_from_xml, configuration)
        if configuration.conflict_resolver is not None:
            making("conflict-resolver", "", lambda: self.set_conflict_resolver(configuration.conflict_resolver))
        for store in configuration.disk_stores:
            making("disk-store", store.name, lambda store=store: self.create_disk_store(**vars(store)))
        for sender in configuration.senders:
            making("gateway-sender", sender.id, lambda sender=sender: self.create_gateway_sender(**vars(sender)))
        for region in configuration.regions:
            making("region", region.name, lambda region=region: self.create_region(**vars(region)))

    def _handle(self, request: dict, peer: tuple) -> Any:
        if request.get("op") == "ping":
            return {"name": self.name, "member_id": self.member_id, "kind": "member"}
        if not self._ready:
            raise IllegalStateError(f"member {self.name} is starting; ask again in a moment")
        return self._management.handle(request, peer)

    def _serve_rows(self, connection: Any, first: bytes) -> None:
        if self._stages is not None:
            self._stages.serve(connection, first)

    def _keep_house(self) -> None:
        is_waiting = False          # Tombstones go as soon as the disk knows that they may be gone.
        while True:
            was_called = self._bell.wait(min(HOUSEKEEPING_S, DISK_LOOK_S) if is_waiting else HOUSEKEEPING_S)
            if self._closed.is_set():
                return
            # A bell tells what was destroyed, not what came back since: counted anew, that may still be within the limit.
            if was_called and not any([region.watch_tombstones(self._tombstone_bytes, self._bell) for region in list(self._regions.values())]):
                continue
            try:
                is_waiting = self._keep_tombstones()
            except (PywanError, MemoryError) as error:
                log.error("member %s: tombstones were not looked at, and stay: %s", self.name, error)
            for sender in list(self._senders.values()):
                self._watch_log(f"gateway sender {sender.id}", sender.log_trouble())
            for region in list(self._regions.values()):
                self._watch_log(f"region {region.name}", region.log_trouble())
            self._watch_clock()
            _core.trim_memory(TRIM_BYTES)

    def _keep_tombstones(self) -> bool:
        """Tells the remote sites below which stamps nothing comes from here any more, and drops the tombstones that what they told makes needless. Whether
        some more go as soon as a disk has taken something."""
        with self._floors_lock:
            return self._tell_floors()

    def _tell_floors(self) -> bool:
        low = self._clock.raise_low() if self._floor_kept is None else self._floor_kept
        regions = list(self._regions.values())
        for region in regions:
            region.settle_stamps()
        self._floors.begin_look()
        for sender in list(self._senders.values()):
            remote = sender.attributes.remote_distributed_system_id
            reached = self._reached_with(sender)
            sender.tell_floors({**self._floors.forwarded(remote, reached), self._site: Floor(low, reached)})
        below = min(low, self._floors.lowest()[0])
        is_waiting = [region.keep_tombstones(below, int(time.time() * 1000) - TOMBSTONE_AGE_MS, self._tombstone_bytes) for region in regions]
        if time.monotonic() - self._floors_saved_at >= FLOORS_SAVED_S:
            self._floors_saved_at = time.monotonic()
            self._floors.save()
        return any(is_waiting)

    def _reached_with(self, sender: GatewaySender) -> frozenset[int]:
        """The remote sites that every event of this sender is stamped as reaching, whatever its region."""
        reached = None
        for region in list(self._regions.values()):
            if sender.id in region.gateway_sender_ids and region.attributes.feeds_gateways:
                others = [self._senders.get(id) for id in region.gateway_sender_ids]
                sites = frozenset(o.attributes.remote_distributed_system_id for o in others if o is not None and o.queue.running and o.queue.reachable)
                reached = sites if reached is None else reached & sites
        return (reached or frozenset()) | {sender.attributes.remote_distributed_system_id}

    def forget_site(self, distributed_system_id: int) -> list[str]:
        """A site that is gone for good is not waited for any more: what it may still send can bring destroyed keys back. Returns the senders that
        were forgotten. NotFoundError if nothing of it has been heard of."""
        return self._floors.forget(distributed_system_id)

    def repair_clock(self, regions: Any = (), *, dry_run: bool = False, timeout: float = 60.0) -> dict[str, Any]:
        """Stamps what is more than 300 s ahead of this member's clock with the time, in `regions` (not given: in all) and in the queues of all senders, parked
        events too, and sends it again; to be called when a clock that was ahead has been put right. Returns how many of each. With `dry_run` they are only counted.

        Events that are on their way are waited for: as long as other things go on, and `timeout` seconds more. What is left then is in "left". Changes go on
        meanwhile. It may be repeated; after a crash it has to be. IllegalStateError: another one runs, or the clock is one that this member does not follow.
        """
        for report in self.repair_clock_steps(regions, dry_run=dry_run, timeout=timeout):
            pass
        return report.to_dict()

    def repair_clock_steps(self, regions: Any = (), *, dry_run: bool = False, timeout: float = 60.0) -> Iterator[ClockRepairReport]:
        """The same, step by step: gives its report again and again, the last time when all is done."""
        self._check_open()
        names = [regions] if isinstance(regions, str) else list(regions)
        wanted = [self.region(name) for name in names] or list(self._regions.values())
        others = [region for region in self._regions.values() if region not in wanted]
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= MAX_WAIT_S:
            raise ConfigurationError(f"cache {self.name!r}: repair_clock: timeout {timeout!r} is not a number of seconds from 0 to {MAX_WAIT_S}")
        return self._repair_clock(wanted, others, dry_run, timeout)

    def _repair_clock(self, regions: list[Region], others: list[Region], dry_run: bool, timeout: float) -> Iterator[ClockRepairReport]:
        if not self._repair_lock.acquire(blocking=False):
            raise IllegalStateError(f"the clock of member {self.name!r} is being repaired already; nothing was changed. Wait until that is done")
        try:
            held_ms = self._clock.held_ms
            if held_ms and not dry_run:
                raise IllegalStateError(f"the clock of member {self.name!r} jumped ahead, and is {held_ms // 1000} s ahead of the time that has passed; nothing was changed. Put "
                                        "it right first; if it is right by now, restart the member")
            repair = ClockRepair(self._clock, regions, list(self._senders.values()), site=self._site, others=others, dry_run=dry_run, timeout=timeout,
                                 begin=self._begin_clock_repair, pause=self._closed.wait, floors_lock=self._floors_lock)
            if not dry_run:
                log.warning("member %s: its stamps are %d s ahead of its clock; what is ahead is stamped anew", self.name, repair.report.ahead_ms // 1000)
            yield from repair.run()
            if not dry_run:
                log.warning("member %s: its clock is repaired: %s", self.name, repair.report.to_dict())
        finally:
            with self._floors_lock:
                self._floor_kept = None
            self._repair_lock.release()

    def _begin_clock_repair(self, core: _core.ClockRepair) -> bool:
        """Whether the clock was ahead. What was promised while it was is taken back first: what comes now has earlier stamps."""
        with self._floors_lock:
            was_ahead = core.begin()
            self._floor_kept = core.began
            self._tell_floors()
        return was_ahead

    def tombstones_held_by(self) -> str:
        """What keeps destroyed keys remembered: the sender that may still send the oldest event; "" if nobody feeds this member."""
        stamp, who = self._floors.lowest()
        return who and f"{who}, which may send events from {format_stamp(stamp)} on"

    def _watch_log(self, what: str, reason: str | None) -> None:
        """Says why a log takes nothing, when that changes and once a minute while it lasts."""
        said, at = self._troubles.get(what, (None, 0.0))
        if reason is None:
            if self._troubles.pop(what, None) is not None:
                log.info("%s: its log is written again", what)
        elif reason != said or time.monotonic() - at > TROUBLE_S:
            self._troubles[what] = reason, time.monotonic()
            log.error("%s: its log is not written: %s; what is staged waits in memory, and new changes are refused until the disk takes it", what, reason)

    def _watch_clock(self) -> None:
        """Says what is wrong with the clock, when that changes and once a minute while it lasts."""
        for stamp in self._floors.clocks():
            self._clock.hear(stamp)
        trouble = clock_trouble(self._clock)
        said, at = self._troubles.get("clock", (None, 0.0))
        if trouble is None:
            if self._troubles.pop("clock", None) is not None:
                log.info("the clock of member %s is followed, and its stamps are not ahead of it any more", self.name)
        elif trouble.kind != said or time.monotonic() - at > TROUBLE_S:
            self._troubles["clock"] = trouble.kind, time.monotonic()
            log.error("the clock of member %s: %s", self.name, trouble.text)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise IllegalStateError(f"cache {self.name!r} is closed")

    def request_shutdown(self, maximum_shutdown_wait_time: float | None = None) -> None:
        """Tells whoever runs the member to close it: sets `shutdown_requested`. Asked again, a `close` that waits for queues waits no longer."""
        if maximum_shutdown_wait_time is not None:
            self._shutdown_wait_s = to_wait_time(maximum_shutdown_wait_time, "maximum_shutdown_wait_time")
        if self.shutdown_requested.is_set():
            self._waits_no_longer.set()
        self.shutdown_requested.set()

    def close(self, maximum_shutdown_wait_time: float | None = None) -> None:
        """Ends everything this member does, in an order that loses no acknowledged event.

        Takes no change any more, then waits for the senders that run to empty their queues: `maximum_shutdown_wait_time` seconds (not given: what
        the cache was made with), 0: not at all, -1: until they are empty. A second call meanwhile ends the waiting. What is queued or parked after that in senders without persistence is lost; the
        log says how many events, by sender. Closing again is no error; in a child that was forked nothing happens, since the member is its parent's.

        Nothing is written when it returns. DiskError names disk stores whose logs did not end in time: they stay locked until they have. Closing again
        waits for them again.
        """
        wait_s = self._shutdown_wait_s if maximum_shutdown_wait_time is None else to_wait_time(maximum_shutdown_wait_time, f"cache {self.name!r}: maximum_shutdown_wait_time")
        check_no_callback(f"cache {self.name!r}")
        if self._closed.is_set():
            self._waits_no_longer.set()
        if self._closing_thread == threading.get_ident():       # A handler of a signal that came meanwhile.
            return
        with self._close_lock:
            if self._is_ended:
                return
            self._closing_thread = threading.get_ident()
            try:
                if self._closed.is_set():
                    self._close_stores()
                else:
                    self._close_all(wait_s)
            finally:
                self._closing_thread = None

    def _close_all(self, wait_s: float) -> None:
        with self._lock:        # What is being made is there, and ends with the rest.
            self._closed.set()
        self._bell.ring()
        self.shutdown_requested.set()
        try:
            if self._receiver is not None and self._receiver.is_running:
                self._receiver.stop()
            if self._stages is not None:
                self._stages.stop()
            for region in list(self._regions.values()):
                region.close()
            self._drain(wait_s)
        finally:
            self._end()

    def _drain(self, wait_s: float) -> None:
        """Returns when no sender has anything left that it can send, or after `wait_s` seconds."""
        senders = [sender for sender in self._senders.values() if sender.is_draining]
        if not senders or not wait_s:
            return
        log.info("cache %s waits for %s to empty its queue before it closes: %d events", self.name, ", ".join(sorted(sender.id for sender in senders)),
                 sum(len(sender.queue) for sender in senders))
        deadline = time.monotonic() + wait_s
        with contextlib.ExitStack() as flushing:
            for sender in senders:
                flushing.enter_context(sender.flushing())
            while any(sender.is_draining for sender in senders):
                left = deadline - time.monotonic()
                if left <= 0 or self._waits_no_longer.wait(min(left, DRAIN_LOOK_S)):
                    return

    def _warn_of_loss(self) -> None:
        lost = self.volatile_events()
        if lost:
            log.warning("cache %s: events are lost as it closes, since their senders have no persistence: %s. To keep them give the senders enable-persistence; to wait for "
                        "them give maximum-shutdown-wait-time", self.name, volatile_text(lost))

    def _end(self) -> None:
        if self._membership is not None:
            self._membership.leave()
        if self._server is not None:
            self._server.stop()
        # They are closed already, unless something above raised. Before the senders: a change that is taken is queued.
        for region in list(self._regions.values()):
            region.close()
        for sender in list(self._senders.values()):
            try:
                sender.close()
            except PywanError as error:
                log.error("%s", error)      # What else there is ends all the same.
        self._warn_of_loss()
        if self._housekeeper is not None:
            self._housekeeper.join(10.0)
            self._floors.save()
        self._close_stores()

    def _close_stores(self) -> None:
        failures = []
        for name, store in list(self._stores.items()):
            try:
                store.close()
                del self._stores[name]
            except DiskError as error:
                log.error("%s", error)
                failures.append(str(error))
        if failures:
            raise DiskError(f"cache {self.name!r}: {'; '.join(failures)}")
        self._is_ended = True
        for each in (*self._senders.values(), *self._regions.values()):
            each.say_unwritten()
        shutil.rmtree(self._overflow, ignore_errors=True)
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> "Cache":
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
