"""Owns the requests to a running member from outside: the operations behind the command line.

Requests arrive on the member's control port. A request's `op` is the command's name in gfsh ("create gateway-sender").
The remaining fields are the command's options in snake_case. `apply_configuration` makes the objects that the site's
cluster configuration demands of members.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pywan.base.amounts import size_text
from pywan.base.names import check_name, printable, quoted
from pywan.config import values
from pywan.config.attributes import (
    DiskStoreAttributes,
    ReceiverAttributes,
    RegionAttributes,
    RegionChanges,
    SenderAttributes,
    SenderChanges,
    check_callbacks_allowed,
    check_from_outside,
    near_queue,
    order_of,
    queue_words,
    rows_of,
)
from pywan.config.cluster import make_attributes
from pywan.config.options import Answer, Option, Shown, attribute_options, command, name_of
from pywan.config.table import to_plain
from pywan.errors import (
    ConfigurationError,
    GatewayReceiverError,
    IllegalStateError,
    NotFoundError,
    PywanError,
    RegionNotFoundError,
)
from pywan.gateway.floors import format_stamp
from pywan.gateway.status import receiver_status
from pywan.member.answers import (
    GATEWAYS,
    IF_EXISTS,
    IF_NOT_EXISTS,
    SENDER_ID,
    lag_text,
    ledger_fault,
    ledger_of,
    plain_map,
    receivers_text,
    sender_of,
    to_plain_value,
)
from pywan.member.handover import LostReplicas, lost_replicas_text, still_needed_text
from pywan.member.queue_commands import QueueCommands
from pywan.security.operations import means_all
from pywan.transport.control import Reply

if TYPE_CHECKING:
    from pywan.member.core import MemberCore

log = logging.getLogger("pywan.management")

MAX_SCAN_ENTRIES = 100_000
MAX_SCAN_BYTES = 12 * 1024 * 1024  # Limit of one reply. A control message holds 16 MiB.
PROGRESS_S = 1.0
REPAIR_TIMEOUT_S = 60.0

# Fields of a request that are not options of its command.
_ENVELOPE = ("op",)

# Options that name an object.
_NAMING = frozenset({"id", "name", "region", "async_event_queue_id"})

STORES, REGIONS, SITE = "Disk stores", "Regions", "The site"


def _named(what: str) -> Option:
    return Option("name", f"the {what}'s name", required=True)


def _directories(answer: Answer) -> list[Answer]:
    """Returns a row for each directory of each store."""
    stores = answer.get("disk_stores", [answer])
    return [{"store": store["name"], **each} for store in stores for each in store["directories"]]


_DIRECTORIES: dict[str, str | Callable[[Answer], Any]] = {
    "Name": "store",
    "Member": "member",
    "Directory": "directory",
    "Size": lambda row: size_text(row["bytes"]),
    "Limit": lambda row: size_text(row["max_size"] << 20) if row["max_size"] else "none",
    "Logs": "logs",
}


class ManagementService(QueueCommands):
    """Answers requests about one member. Any thread may call `handle`. The member's own parts do the locking."""

    def __init__(self, member: MemberCore) -> None:
        self._member = member
        self._operations: dict[str, Callable[..., dict[str, Any]]] = {
            name_of(name): getattr(self, name) for name in dir(type(self)) if name.startswith("on_")
        }

    @property
    def operations(self) -> tuple[str, ...]:
        return tuple(sorted(self._operations))

    def handle(
        self, request: Mapping[str, Any], peer: Any = None
    ) -> dict[str, Any] | Generator[dict[str, Any], None, dict[str, Any]]:
        """Executes a request, and returns the reply's fields. Raises a PywanError with the reason of a failure.

        For a long operation, returns a generator of progress reports, and the generator returns the reply. `peer` is
        the address of the other side, and is not used.
        """
        op = request.get("op")
        operation = self._operations.get(op) if isinstance(op, str) else None
        if operation is None or not isinstance(op, str):
            raise NotFoundError(
                f"member {self._member.name} has no operation {quoted(op)}; it has {', '.join(self.operations)}"
            )
        options = {key: value for key, value in request.items() if key not in _ENVELOPE}
        wanted, required, takes_all = _parameters(operation)
        for name in options:
            if name not in wanted and not takes_all:
                raise ConfigurationError(f"{op}: no option {quoted(name)}; there are {', '.join(wanted) or 'none'}")
        for name in required:
            if name not in options:
                raise ConfigurationError(f"{op}: the option {name!r} is required")
        for name in _NAMING & options.keys():
            check_name(options[name].lstrip("/") if isinstance(options[name], str) else options[name], f"{op}: {name}")
        self._check_from_outside(options, op)
        reply = operation(**options)
        if isinstance(reply, Generator):
            return self._steps(reply)
        reply.setdefault("member", self._member.name)
        return reply

    def _steps(self, replies: Generator[dict[str, Any], None, None]) -> Generator[dict[str, Any], None, dict[str, Any]]:
        """Yields the reports of a long operation, one each second. The last report is the reply."""
        reported_at = time.monotonic()
        with contextlib.closing(replies):
            for reply in replies:
                reply.setdefault("member", self._member.name)
                if time.monotonic() - reported_at >= PROGRESS_S:
                    reported_at = time.monotonic()
                    yield reply
        return reply

    def _check_from_outside(self, attributes: Mapping[str, Any], what: str) -> None:
        """Raises ConfigurationError if attributes name classes, secrets or folders that may not come over the
        network."""
        check_callbacks_allowed(attributes, self._member.allowed_callbacks, what)
        check_from_outside(attributes, self._member.folders, what)

    # --- the cluster configuration ---

    def apply_configuration(self, things: Iterable[Any]) -> list[str]:
        """Makes the missing objects, and changes no existing object.

        An object of the member's own cache.xml stays as the file says. An object that cannot be made is logged, and the
        remaining objects are made nevertheless. Returns the problems.
        """
        problems = []
        for thing in things:
            what = _title(thing)
            try:
                problem = self._make(thing, what)
            except PywanError as error:
                problem = f"{what} was not made: {error}"
            except Exception as error:
                log.exception("member %s: %s of the cluster configuration could not be made", self._member.name, what)
                problem = f"{what} was not made, by an error of pywan's own: {type(error).__name__}: {error}"
            if problem is not None:
                log.error("member %s: cluster configuration: %s", self._member.name, problem)
                problems.append(problem)
        return problems

    def _make(self, thing: Any, what: str) -> str | None:
        """Makes the object. If the object exists already, returns its differences from the wanted attributes; None: no
        difference."""
        if (
            not isinstance(thing, dict)
            or not isinstance(thing.get("name"), str)
            or not isinstance(thing.get("attributes"), dict)
        ):
            raise ConfigurationError(
                "it is no thing with a kind, a name and attributes; is the locator of the same version?"
            )
        member, kind, name, given = self._member, str(thing.get("kind")), thing["name"], thing["attributes"]
        self._check_from_outside(given, what)
        wanted = make_attributes(kind, name, given)
        looks: dict[str, Callable[[], Any]] = {
            "disk-store": lambda: member.stores.all().get(name),
            "gateway-sender": lambda: member.senders.by_id().get(name),
            "async-event-queue": lambda: member.senders.queues_by_id().get(name),
            "region": lambda: member.regions.find(name),
            "gateway-receiver": lambda: member.receiving.receiver,
        }
        there = looks[kind]()
        if there is not None:
            has, wants = to_plain(there.attributes), to_plain(wanted)
            different = [f"{key} {has[key]!r} and not {wants[key]!r}" for key in given if has[key] != wants[key]]
            return (
                f"{what} is there as the member's own configuration says, with {', '.join(different)}"
                if different
                else None
            )
        make: Callable[[Any], Any] = getattr(member, f"create_{kind.replace('-', '_')}")
        make(wanted)
        return None

    def on_apply_configuration(self, things: Any) -> Answer:
        """Applies the cluster configuration to a running member, as a joining member does."""
        if not isinstance(things, list):
            raise ConfigurationError("apply configuration: things is a list")
        problems = self.apply_configuration(things)
        if problems:
            raise ConfigurationError("; ".join(problems))
        return {"status": f'{len(things)} things of the cluster configuration are there on "{self._member.name}"'}

    # --- disk stores ---

    @command(
        STORES,
        "create folders for queues and regions on the disk",
        attribute_options("disk-store"),
        IF_NOT_EXISTS,
        keeps="put",
        more="`--dir=a#100,b` gives `a` a limit of 100 MB, and `b` none",
    )
    def on_create_disk_store(self, name: str, if_not_exists: Any = False, **attributes: Any) -> Answer:
        if name in self._member.stores.all():
            if values.to_bool(if_not_exists, "if-not-exists"):
                return {"status": f'Disk store "{name}" exists already; skipped', "changed": False}
            raise IllegalStateError(
                f"disk store {name!r} exists already on member {self._member.name}; use it, or --if-not-exists"
            )
        self._member.create_disk_store(DiskStoreAttributes.make(name, **attributes))
        return {"status": f'Disk store "{name}" created on "{self._member.name}"', "changed": True}

    @command(STORES, "remove a disk store that holds no log any more", _named("disk store"), IF_EXISTS, keeps="remove")
    def on_destroy_disk_store(self, name: str, if_exists: Any = False) -> Answer:
        if name not in self._member.stores.all() and values.to_bool(if_exists, "if-exists"):
            return {"status": f'Disk store "{name}" is not there; skipped', "changed": False}
        self._member.stores.destroy(name)
        return {"status": f'Disk store "{name}" destroyed on "{self._member.name}"', "changed": True}

    @command(
        STORES,
        "list directories, sizes and logs of disk stores",
        shown=Shown(_DIRECTORIES, items=_directories, none="No Disk Stores Found"),
    )
    def on_list_disk_stores(self) -> Answer:
        return {
            "disk_stores": [
                {"name": name, "directories": store.contents()}
                for name, store in sorted(self._member.stores.all().items())
            ]
        }

    @command(STORES, "show one disk store", _named("disk store"), shown=Shown(_DIRECTORIES, items=_directories))
    def on_describe_disk_store(self, name: str) -> Answer:
        store = self._member.stores.all().get(name)
        if store is None:
            raise NotFoundError(
                f"disk store {name!r} is not on member {self._member.name}; there are"
                f" {', '.join(sorted(self._member.stores.all())) or 'none'}"
            )
        return {"name": name, "time_interval": store.attributes.time_interval, "directories": store.contents()}

    # --- regions ---

    @command(REGIONS, "create a region on every member", attribute_options("region"), IF_NOT_EXISTS, keeps="put")
    def on_create_region(self, name: str, if_not_exists: Any = False, **attributes: Any) -> Answer:
        name = _region_name(name)
        if name in self._member.regions.faces():
            if values.to_bool(if_not_exists, "if-not-exists"):
                return {"status": f'Region "/{name}" exists already; skipped', "changed": False}
            raise IllegalStateError(
                f"region {name!r} exists already on member {self._member.name}; alter it, or use --if-not-exists"
            )
        self._member.create_region(RegionAttributes.make(name, **attributes))
        return {
            "status": f'Region "/{name}" created on "{self._member.name}"{self._missing_queues(name)}',
            "changed": True,
        }

    @command(
        REGIONS,
        "attach and detach senders and asynchronous event queues",
        attribute_options("region", RegionChanges),
        keeps="alter",
        more='`--gateway-sender-id=""` detaches all senders, `--async-event-queue-id=""` all queues',
    )
    def on_alter_region(self, name: str, **attributes: Any) -> Answer:
        region = self._region(name)
        altered = region.attributes.altered(RegionChanges, **attributes)
        region.alter(**{name: getattr(altered, name) for name in attributes})
        return {
            "status": f'Region "/{region.name}" altered on "{self._member.name}"{self._missing_queues(region.name)}',
            "changed": True,
        }

    def _missing_queues(self, region: str) -> str:
        """Returns a note about senders and queues that a region names and the member does not have."""
        named, has = self._region(region).attributes.queue_ids, {core.id for core in self._member.senders.cores()}
        missing = [id for id in named if id not in has]
        near = [f"{queue_words(id)}{near_queue(id, has)}" for id in missing]
        return (
            f"; note: it has no {', no '.join(near)}; nothing is queued for what is not there until it is created"
            if missing
            else ""
        )

    @command(REGIONS, "remove a region with all its entries", _named("region"), IF_EXISTS, keeps="remove")
    def on_destroy_region(self, name: str, if_exists: Any = False) -> Answer:
        name = _region_name(name)
        if name not in self._member.regions.faces() and values.to_bool(if_exists, "if-exists"):
            return {"status": f'Region "/{name}" is not there; skipped', "changed": False}
        self._region(name)
        self._member.regions.destroy(name)
        return {"status": f'Region "/{name}" destroyed on "{self._member.name}"', "changed": True}

    @command(
        REGIONS,
        "list names, types and sizes of regions",
        shown=Shown(
            {
                "Region": "name",
                "Member": "member",
                "Type": "type",
                "Size": "size",
                "Gateway Senders": "gateway_sender_ids",
                "Event Queues": "async_event_queue_ids",
            },
            items="regions",
            none="No Regions Found",
        ),
    )
    def on_list_regions(self) -> Answer:
        return {"regions": [_region_view(region) for _, region in sorted(self._member.regions.faces().items())]}

    def on_describe_region(self, name: str) -> Answer:
        region = self._region(name)
        core = self._member.regions.get(region.name)
        state: dict[str, Any] = dict(core.tombstone_state)
        for name, value in core.listening_state().items():
            state[f"listeners_{name}"] = value
        unnotified = self._member.sharing.unnotified(region.name) if self._member.sharing is not None else None
        if unnotified is not None:
            state["listeners_unheard_buckets"] = unnotified
        state["forgotten_through"] = format_stamp(state["forgotten_through"]) if state["forgotten_through"] else ""
        attributes = to_plain(region.attributes)
        given = {
            row.geode_name: attributes[row.name]
            for row in rows_of("region")
            if row.name != "name" and attributes[row.name] not in (row.default, [])
        }
        lacks = self._member.regions.lacks(core)
        return {
            **_region_view(region),
            **({"lacks": lacks} if lacks else {}),
            "attributes": given,
            "stats": {**state, "tombstones_held_by": self._member.tombstones.held_by()},
        }

    def on_query_size(self, region: str) -> Answer:
        target = self._region(region)
        return {"region": target.name, "size": len(target)}

    def on_get(self, region: str, key: Any) -> Answer:
        missing = object()
        value = self._region(region).get(key, missing)
        if value is missing:
            return {"found": False, "value": None, "value_type": None}
        return {"found": True, "value": to_plain_value(value), "value_type": type(value).__name__}

    def on_put(self, region: str, key: Any, value: Any, if_not_exists: Any = False) -> Answer:
        target = self._region(region)
        if not values.to_bool(if_not_exists, "if-not-exists"):
            target.put(key, value)
        elif not self._member.regions.get(target.name).change_if("absent", 1, key, value)[0]:
            return {"done": False, "status": "the key is there already"}
        return {"done": True}

    def on_remove(self, region: str, key: Any = None, all: Any = False) -> Answer:
        target = self._region(region)
        values.to_bool(all, "all")  # Refuses by name a value that is neither yes nor no.
        if means_all({"all": all}):
            if key is not None:
                raise ConfigurationError(
                    f"remove: key {quoted(key)} and --all are both given; --all removes all entries: leave one out"
                )
            return {"done": True, "count": target.remove_all(list(target))}
        try:
            target.destroy(key)
        except KeyError:
            return {"done": False, "count": 0, "status": "the key is not there"}
        return {"done": True, "count": 1}

    def on_scan_region(self, region: str, cursor: int = 0, limit: int = 10_000) -> Answer:
        """Returns a run of entries, as `Region.scan` gives entries, and the cursor for the next run (None at the
        end)."""
        target = self._member.regions.get(self._region(region).name)
        cursor = values.to_int(cursor, "scan region: cursor", 0)
        limit = values.to_int(limit, "scan region: limit", 1, MAX_SCAN_ENTRIES)
        while True:
            following, run = target.scan(cursor, limit)
            if len(run) <= MAX_SCAN_BYTES:
                return {"next": following, "entries": bytes(run)}
            if limit == 1:
                raise IllegalStateError(
                    f"region {target.name!r}: one entry of {len(run)} bytes does not fit into an answer"
                )
            # The keys are long here, so fewer entries are read at once.
            limit = max(1, limit * MAX_SCAN_BYTES // (2 * len(run)))

    # --- senders ---

    @command(
        GATEWAYS, "create a sender to another site", attribute_options("gateway-sender"), IF_NOT_EXISTS, keeps="put"
    )
    def on_create_gateway_sender(self, id: str, if_not_exists: Any = False, **attributes: Any) -> Answer:
        if id in self._member.senders.by_id():
            if values.to_bool(if_not_exists, "if-not-exists"):
                return {"status": f'GatewaySender "{id}" exists already; skipped', "changed": False}
            raise IllegalStateError(
                f"a gateway sender with id {id!r} is already defined in member {self._member.name}; destroy it"
                " first, or choose another id"
            )
        self._member.create_gateway_sender(SenderAttributes.make(id, **attributes))
        return {"status": f'GatewaySender "{id}" created on "{self._member.name}"', "changed": True}

    @command(
        GATEWAYS,
        "change a sender, also while it runs",
        attribute_options("gateway-sender", SenderChanges),
        keeps="alter",
    )
    def on_alter_gateway_sender(self, id: str, **attributes: Any) -> Answer:
        sender = sender_of(self._member, id)
        altered = sender.attributes.altered(**attributes)
        sender.alter(**{name: getattr(altered, name) for name in attributes})
        return {"status": f'GatewaySender "{id}" altered on "{self._member.name}"', "changed": True}

    @command(GATEWAYS, "remove a sender (detach it from regions first)", SENDER_ID, IF_EXISTS, keeps="remove")
    def on_destroy_gateway_sender(self, id: str, if_exists: Any = False) -> Answer:
        if id not in self._member.senders.by_id() and values.to_bool(if_exists, "if-exists"):
            return {"status": f'GatewaySender "{id}" is not there; skipped', "changed": False}
        sender_of(self._member, id).destroy()
        return {"status": f'GatewaySender "{id}" destroyed on "{self._member.name}"', "changed": True}

    def on_start_gateway_sender(self, id: str, clean_queues: Any = False) -> Answer:
        sender, clean = sender_of(self._member, id), values.to_bool(clean_queues, "clean-queues")
        if sender.is_running and not clean:
            return {"status": f"GatewaySender {id} is already started on member {self._member.name}"}
        sender.start(clean_queues=clean)
        return {"status": f"GatewaySender {id} is started on member {self._member.name}"}

    def on_clean_gateway_sender(self, id: str) -> Answer:
        """Executes the first half of `start gateway-sender --clean-queues`. All members must have done this half before
        one of them starts."""
        sender_of(self._member, id)
        dropped = self._member.senders.clean(id)
        return {"status": f"GatewaySender {id} dropped {dropped} events on member {self._member.name}"}

    @command(GATEWAYS, "end queueing and sending", SENDER_ID, more="It is no error if the sender does not run")
    def on_stop_gateway_sender(self, id: str) -> Answer:
        sender = sender_of(self._member, id)
        if not sender.is_running:
            return {"status": f"GatewaySender {id} is not running on member {self._member.name}"}
        sender.stop()
        return {"status": f"GatewaySender {id} is stopped on member {self._member.name}"}

    @command(GATEWAYS, "queue, but do not send", SENDER_ID, more="It is an error if the sender does not run")
    def on_pause_gateway_sender(self, id: str) -> Answer:
        sender = self._running_sender(id)
        if sender.is_paused:
            return {"status": f"GatewaySender {id} is already paused on member {self._member.name}"}
        sender.pause()
        return {"status": f"GatewaySender {id} is paused on member {self._member.name}"}

    @command(GATEWAYS, "send again", SENDER_ID, more="It is an error if the sender does not run")
    def on_resume_gateway_sender(self, id: str) -> Answer:
        sender = self._running_sender(id)
        if not sender.is_paused:
            return {"status": f"GatewaySender {id} is not paused on member {self._member.name}"}
        sender.resume()
        return {"status": f"GatewaySender {id} is resumed on member {self._member.name}"}

    @command(
        GATEWAYS,
        "spread a sender's connections evenly over the receivers",
        SENDER_ID,
        more="A connection moves when all that it sent is acknowledged. It is an error if the sender does not run",
    )
    def on_load_balance_gateway_sender(self, id: str) -> Answer:
        done = self._running_sender(id).load_balance()
        busy = f"; {done['busy']} should move, and were not done with what was on its way" if done["busy"] else ""
        return {
            **done,
            "status": f"GatewaySender {id} is rebalanced on member {self._member.name}: {done['moved']} of"
            f" {done['connections']} connections moved{busy}",
        }

    @command(
        GATEWAYS,
        "show the state of a sender",
        SENDER_ID,
        more="`--json` has the ledger, the lag, statistics and attributes",
        shown=Shown(
            {
                "Member": "member",
                "Type": "type",
                "Runtime Policy": lambda answer: "Primary" if answer["primary"] else "Secondary",
                "Status": "status",
                "Queued Events": "queue_size",
                "Parked": "parked_count",
                "Lag": lag_text,
                "Receiver Location": "receiver_location",
                "Dispatchers At": receivers_text,
            },
            fault=ledger_fault,
        ),
    )
    def on_status_gateway_sender(self, id: str) -> Answer:
        sender = sender_of(self._member, id)
        return {**_sender_view(sender), "attributes": to_plain(sender.attributes), "stats": plain_map(sender.stats)}

    # --- the receiver ---

    @command(
        GATEWAYS,
        "create a receiver for other sites' events",
        attribute_options("gateway-receiver"),
        IF_NOT_EXISTS,
        keeps="put",
    )
    def on_create_gateway_receiver(self, if_not_exists: Any = False, **attributes: Any) -> Answer:
        if self._member.receiving.receiver is not None:
            if values.to_bool(if_not_exists, "if-not-exists"):
                return {
                    "status": f'GatewayReceiver exists already on member "{self._member.name}"; skipped',
                    "changed": False,
                }
            raise IllegalStateError(
                f"member {self._member.name} has a gateway receiver already, and can have one; destroy it first, or"
                " use --if-not-exists"
            )
        receiver = self._member.create_gateway_receiver(ReceiverAttributes.make(**attributes))
        where = (
            f" and will listen on the port {receiver.port}"
            if receiver.is_running
            else " and is not started (manual-start)"
        )
        return {
            "status": f'GatewayReceiver created on member "{self._member.name}"{where}',
            "port": receiver.port,
            "changed": True,
        }

    @command(GATEWAYS, "remove the receiver", IF_EXISTS, keeps="remove", more="It is stopped first")
    def on_destroy_gateway_receiver(self, if_exists: Any = False) -> Answer:
        receiver = self._member.receiving.receiver
        if receiver is None and values.to_bool(if_exists, "if-exists"):
            return {
                "status": f'GatewayReceiver is not there on member "{self._member.name}"; skipped',
                "changed": False,
            }
        receiver = self._receiver()
        if receiver.is_running:
            receiver.stop()
        self._member.receiving.destroy()
        return {"status": f'GatewayReceiver destroyed on member "{self._member.name}"', "changed": True}

    @command(GATEWAYS, "begin to listen")
    def on_start_gateway_receiver(self) -> Answer:
        receiver = self._receiver()
        if receiver.is_running:
            return {
                "status": f"GatewayReceiver is already started on member {self._member.name}",
                "port": receiver.port,
            }
        receiver.start()
        return {"status": f"GatewayReceiver is started on member {self._member.name}", "port": receiver.port}

    @command(GATEWAYS, "close its port and its connections")
    def on_stop_gateway_receiver(self) -> Answer:
        receiver = self._receiver()
        if not receiver.is_running:
            raise GatewayReceiverError(f"the gateway receiver is not running on member {self._member.name}")
        receiver.stop()
        return {"status": f"GatewayReceiver is stopped on member {self._member.name}"}

    @command(
        GATEWAYS,
        "show the state of the receiver",
        shown=Shown(
            {
                "Member": "member",
                "Status": "status",
                "Host": "host",
                "Port": "port",
                "Sender Count": "sender_count",
                "Senders Connected": "connected_senders",
            }
        ),
    )
    def on_status_gateway_receiver(self) -> Answer:
        receiver = self._receiver()
        return {
            **_receiver_view(receiver),
            "attributes": to_plain(receiver.attributes),
            "stats": plain_map(receiver.stats),
        }

    def on_list_gateways(self) -> Answer:
        receiver = self._member.receiving.receiver
        return {
            "senders": [_sender_view(sender) for _, sender in sorted(self._member.senders.by_id().items())],
            "receivers": [_receiver_view(receiver)] if receiver is not None else [],
        }

    # --- sites that have ended ---

    @command(
        GATEWAYS,
        "stop waiting for events of a site that is gone",
        Option("distributed-system-id", "the id of the site that is gone", required=True),
        more="Destroyed keys are no longer remembered for it",
        shown=Shown(line=lambda answer: f"{', '.join(answer['forgotten']) or 'what others forward of it'} forgotten"),
    )
    def on_forget_site(self, distributed_system_id: Any) -> Answer:
        return {
            "forgotten": self._member.tombstones.sources.forget(
                values.to_int(distributed_system_id, "distributed-system-id", 0, 255)
            )
        }

    # --- a clock that was ahead ---

    def on_repair_clock(self, regions: Any = None, dry_run: Any = False) -> Any:
        given = regions.split(",") if isinstance(regions, str) else regions
        names = values.to_names(given and [_region_name(name) for name in given], "repair clock: region")
        steps = self._member.repairs.steps(
            [self._region(name).name for name in names],
            dry_run=values.to_bool(dry_run, "dry-run"),
            timeout=REPAIR_TIMEOUT_S,
        )
        return (report.to_dict() for report in steps)

    # --- the member ---

    def on_status_member(self) -> Answer:
        return {"pid": os.getpid(), **plain_map(self._member.status())}

    def on_reload_certificates(self) -> Answer:
        """Reads the files of the member's certificates again."""
        return {"files": self._member.links.reload()}

    def on_stop_member(
        self,
        maximum_shutdown_wait_time: Any = None,
        handover_time: Any = None,
        only_in_order: Any = False,
    ) -> Answer | Generator[dict[str, Any], None, None]:
        """Asks the program of the cache to close the cache. A second request ends the waiting for members and queues.

        The reply goes out first, and names the events that would be lost without waiting for the queues.
        `only_in_order`: other members take over first. If they do not in time, the member goes on, and the reply names
        the entries that would be lost.
        """
        wait = self._member.maximum_shutdown_wait_time
        if maximum_shutdown_wait_time is not None:
            wait = maximum_shutdown_wait_time
            values.to_wait_time(wait, "stop member: maximum_shutdown_wait_time")
        handover_s = None
        if handover_time is not None:
            handover_s = values.to_wait_time(handover_time, "stop member: handover_time")

        def stops(lost: LostReplicas) -> Reply:
            return Reply(
                pid=os.getpid(),
                volatile_events=self._member.senders.volatile_events(),
                maximum_shutdown_wait_time=wait,
                handover_time=self._member.handover_time if handover_time is None else handover_time,
                lost_copies=lost_replicas_text(lost.regions),
                is_refused=lost.is_late,
                after=None if lost.is_late else lambda: self._member.request_shutdown(wait, handover_time),
            )

        def in_order() -> Generator[dict[str, Any], None, None]:
            for state in self._member.hand_over(handover_s):
                if isinstance(state, LostReplicas):
                    yield stops(state)
                else:
                    yield {"waits": still_needed_text(state)}

        return in_order() if values.to_bool(only_in_order, "stop member: only_in_order") else stops(LostReplicas())

    # --- look-up ---

    def _region(self, name: Any) -> Any:
        name = _region_name(name)
        region = self._member.regions.faces().get(name)
        if region is None:
            there = ", ".join(sorted(self._member.regions.faces())) or "none"
            raise RegionNotFoundError(f"region {name!r} is not on member {self._member.name}; regions there: {there}")
        return region

    def _running_sender(self, id: Any) -> Any:
        sender = sender_of(self._member, id)
        if not sender.is_running:
            raise IllegalStateError(f"GatewaySender {id} is not running on member {self._member.name}; start it first")
        return sender

    def _receiver(self) -> Any:
        receiver = self._member.receiving.receiver
        if receiver is None:
            raise NotFoundError(f"GatewayReceiver is not available on member {self._member.name}; create one first")
        return receiver


def _region_view(region: Any) -> dict[str, Any]:
    """Returns the fields of an answer about a region."""
    return {
        "name": region.name,
        "type": region.type,
        "size": len(region),
        "gateway_sender_ids": list(region.gateway_sender_ids),
        "async_event_queue_ids": list(region.async_event_queue_ids),
    }


def _sender_view(sender: Any) -> dict[str, Any]:
    """Returns the fields of an answer about a sender."""
    return {
        "id": sender.id,
        "remote_distributed_system_id": sender.attributes.remote_distributed_system_id,
        "type": "Parallel" if sender.attributes.parallel else "Serial",
        "policy": order_of(sender.attributes),
        "running": bool(sender.is_running),
        "paused": bool(sender.is_paused),
        "connected": bool(sender.is_connected),
        "primary": bool(sender.is_primary),
        "queue_size": sender.local_queue_size if sender.is_running or sender.attributes.parallel else 0,
        "secondary_queue_size": sender.secondary_queue_size,
        "parked_count": sender.parked_count,
        "receiver_location": sender.receiver_location,
        "receivers": sender.receivers,
        "ledger": plain_map(ledger_of(sender)),
        "lag": plain_map(sender.lag()),
        "status": sender.status,
    }


def _receiver_view(receiver: Any) -> dict[str, Any]:
    """Returns the fields of an answer about a receiver."""
    senders = [str(name) for name in receiver.connected_senders]
    return {
        "running": bool(receiver.is_running),
        "host": receiver.host,
        "port": receiver.port,
        "sender_count": len(senders),
        "connected_senders": senders,
        "status": receiver_status(receiver.is_running),
    }


def _region_name(name: Any) -> str:
    return name.lstrip("/") if isinstance(name, str) else name


def _title(thing: Any) -> str:
    """Returns the words for an object of the cluster configuration in a message."""
    if not isinstance(thing, dict):
        return quoted(thing)
    return printable(
        " ".join(f"{part:.255}" for part in (thing.get("kind"), thing.get("name")) if isinstance(part, str) and part)
    )


def _parameters(operation: Any) -> tuple[list[str], list[str], bool]:
    """Returns the options of an operation, its required options, and whether the operation takes any further options
    (attributes, checked by config)."""
    code = operation.__func__.__code__
    names = list(code.co_varnames[1 : code.co_argcount])
    needed = names[: len(names) - len(operation.__func__.__defaults__ or ())]
    return names, needed, bool(code.co_flags & 0x08)
