"""Owns a member: the process's regions, senders and receiver, put together from what the caller, the cache.xml and the
cluster configuration say."""
from __future__ import annotations

import functools
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pywan import _core
from pywan.callback_lock import LifeCycleLock, check_no_callback
from pywan.config import (
    DiskStoreAttributes, RegionAttributes, SenderAttributes, make_disk_store_attributes, make_instance, make_receiver_attributes, make_region_attributes, make_sender_attributes, validate_attachment,
    validate_colocation,
)
from pywan.errors import (
    CacheXmlError, ConfigurationError, GatewayReceiverError, GatewaySenderConfigurationError, GatewaySenderError, IllegalStateError, NotFoundError,
    PywanError, RegionNotFoundError,
)
from pywan.disk_store import DiskStore, holds_log
from pywan.management import ManagementService
from pywan.membership import Membership, new_profile
from pywan.receiver import AppliedMemory, GatewayReceiver
from pywan.region import Region
from pywan.sender import FLUSH_LIMIT_MS, GatewaySender
from pywan.staging import RowStages
from pywan.transport.control import ControlServer

log = logging.getLogger("pywan.cache")

TOMBSTONE_TIMEOUT_MS = 600_000      # Within this, an older create that arrives late cannot bring a destroyed key back.
TOMBSTONE_LIMIT = 100_000           # Of a region; beyond it the timeout is cut to a tenth.
HOUSEKEEPING_S = 5.0
MAX_SENDERS = 128
DEFAULT_STORE = "DEFAULT"


class Cache:
    """A member of a site. Joins its locators on construction; a context manager that closes on the way out.

    `dir`: where working files go (overflow files); default: a temporary folder that is removed at close.
    """

    def __init__(
        self, name: str, *, locators: str, bind_address: str = "127.0.0.1", port: int = 0, cache_xml_file: str | os.PathLike | None = None,
        dir: str | os.PathLike | None = None, disk_dir: str | os.PathLike | None = None, hostname_for_clients: str | None = None,
        join_timeout: float = 10.0, conflict_resolver: Any = None,
    ) -> None:
        self.name = name
        self.shutdown_requested = threading.Event()
        self._bind_address = bind_address
        self._lock = LifeCycleLock(f"cache {name!r}")        # Guards changes of the composition, below; a dict is read as it is.
        self._regions: dict[str, Region] = {}
        self._senders: dict[str, GatewaySender] = {}
        self._receiver: GatewayReceiver | None = None
        self._stores: dict[str, DiskStore] = {}             # Open ones; "DEFAULT" is made when it is first needed.
        self._clock = _core.Clock()
        self._applied = AppliedMemory()
        self._resolver = conflict_resolver
        self._closed = threading.Event()
        self._ready = False
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
        try:
            self._start(locators, port, hostname_for_clients, cache_xml_file, join_timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, locators: str, port: int, hostname: str | None, cache_xml_file: Any, join_timeout: float) -> None:
        configuration = None
        if cache_xml_file is not None:
            from pywan.cache_xml import parse

            configuration = parse(cache_xml_file)       # Before anything is listened on: a wrong file is the first thing to say.
        self._server = ControlServer(self._bind_address, port, self._handle, name=f"member {self.name}", other_protocols={b"PWD1": self._serve_rows})
        profile = new_profile(self.name, hostname or self._bind_address or "127.0.0.1", self._server.port)
        self._profile = profile
        self._membership = Membership(locators, profile)
        self._server.start()
        self._membership.join(join_timeout)
        others = [member["name"] for member in self._membership.servers() if member["name"] != self.name]
        if others:
            log.warning("member %s: the site has %s already. Members of one site do not share their regions and senders in this version: each holds"
                        " its own part of the data", self.name, ", ".join(others))
        self._stages = RowStages(site=self._site, member_name=self.name, directory=str(self._overflow), find_region=self._find_region)
        if configuration is not None:
            self._apply_xml(configuration)
        # The receiver last: other sites send at once, and would have to park what is for a region that is not there yet.
        requests = self._membership.cluster_configuration
        of_receiver = [str(request.get("op")).endswith(" gateway-receiver") for request in requests]
        self._management.apply_configuration(request for request, is_last in zip(requests, of_receiver) if not is_last)
        if configuration is not None and configuration.receiver is not None:
            self._make_from_xml(configuration, "gateway-receiver", "", lambda: self.create_gateway_receiver(**vars(configuration.receiver)))
        self._management.apply_configuration(request for request, is_last in zip(requests, of_receiver) if is_last)
        self._housekeeper = threading.Thread(target=self._keep_house, name=f"{self.name}-housekeeping", daemon=True)
        self._housekeeper.start()
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
        found = self._find_region(name.lstrip("/"))
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
        except KeyError:
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
            "regions": {name: len(region) for name, region in self.regions().items()},
            "gateway_senders": {id: sender.status for id, sender in self.gateway_senders().items()},
            "gateway_receiver_port": self._receiver.port if self._receiver else None,
        }

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
            if made.async_event_queue_ids:
                raise ConfigurationError(f"region {made.name!r}: asynchronous event queues are not in this version; leave async_event_queue_ids empty")
            self._validate_region(made)
            if made.redundant_copies:
                log.warning("region %s: redundant_copies %d has no effect in this version: the members of a site keep no copies of each other's entries",
                            made.name, made.redundant_copies)
            listeners = [make_instance(listener, f"region {made.name!r}: cache_listener") for listener in made.cache_listeners]
            region = Region(
                made.name, self._clock, site=self._site, member=self.member_id, stores="PROXY" not in made.type, forwards=made.feeds_gateways,
                buckets=made.total_num_buckets if made.is_partitioned else 0, attributes=made, listeners=listeners,
                resolver=self._resolver, alter=self._alter_region)
            if made.is_persistent:
                self._make_persistent(region, made)
            else:
                self._warn_of_log(f"region {made.name}", f"region-{made.name}", made.disk_store_name)
            self._attach(region)
            self._regions[made.name] = region
            return region

    def _make_persistent(self, region: Region, attributes: RegionAttributes) -> None:
        store = self._store(attributes.disk_store_name)
        place = store.log_place(f"region-{attributes.name}", {"kind": "region", "region": attributes.name, "site": self._site})
        region.make_persistent(place.folder, log_id=secrets.randbits(63) | 1, synchronous=attributes.disk_synchronous,
                               flush_ms=min(store.attributes.time_interval, FLUSH_LIMIT_MS), log_budget=place.budget, log_known=place.known)

    def _warn_of_log(self, what: str, owner: str, store_name: str | None) -> None:
        """Of a log that an owner has which is not persistent any more: what is in it is not lost, and not there."""
        name = store_name or DEFAULT_STORE
        folders = self._stores[name].directories if name in self._stores else [self.directory / f"disk-store-{name}"]
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

    def _attach(self, region: Region) -> None:
        region.attach_senders([self._senders[id] for id in region.attributes.gateway_sender_ids if id in self._senders])

    def destroy_region(self, name: str) -> None:
        """Drops the region of this member; a region operation, so nothing is sent."""
        with self._lock:
            region = self.region(name)
            region.close()
            region.attach_senders([])
            del self._regions[region.name]
            if region.attributes.is_persistent:
                self._store(region.attributes.disk_store_name).forget(f"region-{region.name}")

    # Senders

    def create_gateway_sender(self, id: str, *, remote_distributed_system_id: int, **attributes: Any) -> GatewaySender:
        """A new sender, started unless `manual_start`. GatewaySenderConfigurationError says what cannot be."""
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
                self._warn_of_log(f"gateway sender {id}", f"queue-{id}", made.disk_store_name)
            sender = GatewaySender(
                made, membership=self._membership, member_name=self.name, site=self._site, directory=str(self._overflow), store=store,
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
        if attributes.group_transaction_events:
            raise GatewaySenderConfigurationError(f"{what}: group_transaction_events is not in this version; set it to false")
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
                made, site=self._site, member_name=self.name, bind_address=self._bind_address, memory=self._applied,
                find_region=self._find_region, on_change=self._receiver_changed)
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
        with self._lock:
            self._check_open()
            if name in self._stores:
                raise IllegalStateError(f"disk store {name!r} exists already on member {self.name!r}")
            made = make_disk_store_attributes(name, **attributes)
            if not made.directories and self._own_directory:
                raise ConfigurationError(f"disk store {name!r}: member {self.name!r} has no folder that stays: give the store directories, or the cache dir")
            store = self._stores[name] = DiskStore(made, self.directory)
            return store

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
            self._resolver = make_instance(resolver, "gateway_conflict_resolver", ("on_event",)) if resolver is not None else None
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

    def _serve_rows(self, sock: Any, peer: tuple, first: bytes) -> None:
        if self._stages is not None:
            self._stages.serve(sock, peer, first)

    def _keep_house(self) -> None:
        while not self._closed.wait(HOUSEKEEPING_S):
            now_ms = int(time.time() * 1000)
            for region in list(self._regions.values()):
                _, left = region.expire_tombstones(now_ms - TOMBSTONE_TIMEOUT_MS)
                if left > TOMBSTONE_LIMIT:
                    region.expire_tombstones(now_ms - TOMBSTONE_TIMEOUT_MS // 10)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise IllegalStateError(f"cache {self.name!r} is closed")

    def close(self) -> None:
        """Ends everything this member does, in an order that loses no acknowledged event. Closing again is no error."""
        if self._closed.is_set():
            return
        check_no_callback(f"cache {self.name!r}")
        self._closed.set()
        self.shutdown_requested.set()
        if self._receiver is not None and self._receiver.is_running:
            self._receiver.stop()
        if self._stages is not None:
            self._stages.stop()
        if self._membership is not None:
            self._membership.leave()
        if self._server is not None:
            self._server.stop()
        for sender in list(self._senders.values()):
            try:
                sender.close()
            except PywanError as error:
                log.error("%s", error)      # What else there is ends all the same.
        if self._housekeeper is not None:
            self._housekeeper.join(10.0)
        for region in list(self._regions.values()):
            region.close()
        for store in self._stores.values():
            store.close()
        shutil.rmtree(self._overflow, ignore_errors=True)
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


