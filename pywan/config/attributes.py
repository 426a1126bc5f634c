"""Owns what can be configured: the attributes of senders, receivers, regions and disk stores, with Geode's names (in
snake_case), units, defaults and rules.

`make_*` build attributes from what a user wrote in Python, XML or on the command line; `validate_*` say what cannot be.
"""
from __future__ import annotations

import dataclasses
import importlib
import logging
import math
import os
import re
import threading
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, TypeVar

from pywan.errors import ConfigurationError, GatewayReceiverError, GatewaySenderConfigurationError, IllegalStateError
from pywan.base.names import check_name, is_host, quoted

log = logging.getLogger("pywan.config")

MIN_SOCKET_READ_TIMEOUT_MS = 30_000   # Geode raises what is set below to this.
MAX_DISTRIBUTED_SYSTEM_ID = 255
MAX_DISPATCHER_THREADS = 1024
MAX_BUCKETS = 65_535
MAX_WAIT_S = 2**31 - 1
MIN_SEND_BUFFER_BYTES = 1_000       # The system makes less than 4,608 to that; 0 is its own choice.
MIN_RECEIVE_BUFFER_BYTES = 16_384   # With less a loopback's packets do not fit, and 5,000 events take 20 s.
MIN_TIME_BETWEEN_PINGS_MS = 100     # A sender pings three times in it.
ORDER_POLICIES = ("key", "thread", "partition")
COMPRESSIONS = ("lz4",)
FULL_POLICIES = ("block", "refuse", "drop-oldest", "drop-newest")
RESERVED_SENDER_PREFIX = "AsyncEventQueue_"
DEFAULT_STORE = "DEFAULT"         # The disk store that is there without being made.

_CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class ClassReference(str):
    """`package.module:Class` as written in a file, with the parameters given to its constructor."""

    parameters: dict[str, str]

    def __new__(cls, name: str, parameters: Mapping[str, str] | None = None) -> "ClassReference":
        self = super().__new__(cls, name)
        self.parameters = dict(parameters or {})
        return self


@dataclass
class SenderAttributes:
    """What a gateway sender is told. Units: sizes in bytes, `maximum_queue_memory` in MB, times in milliseconds."""

    id: str
    remote_distributed_system_id: int
    parallel: bool = False
    manual_start: bool = False
    socket_buffer_size: int = 524288
    socket_read_timeout: int = 0                    # Without progress by the receiver for so long the connection is given up; 0: 30 s.
    enable_batch_conflation: bool = False
    batch_size: int = 100                           # Events; -1: only the time interval closes a batch.
    batch_time_interval: int = 1000                 # -1: never wait for more events.
    enable_persistence: bool = False
    disk_store_name: str | None = None
    disk_synchronous: bool = True
    maximum_queue_memory: int = 100                 # Beyond it, new events go to overflow files.
    alert_threshold: int = 0                        # Age of an event that is worth a warning; 0: none.
    dispatcher_threads: int = 5
    order_policy: str | None = None                 # None means "key".
    gateway_event_filters: tuple[Any, ...] = ()     # Class references, classes or instances; the order is kept.
    gateway_event_substitution_filter: Any = None
    group_transaction_events: bool = False
    retry_interval_ms: int = 1000                   # Between attempts to connect, at most: the first come sooner.
    compression: str | None = None                  # "lz4" or none.
    overflow_directory: str | None = None           # None: under the member's folder.
    full_policy: str = "block"                      # What an enqueue does that finds no room: block, refuse, drop-oldest, drop-newest.
    full_timeout_ms: int = 1000                     # With block: for so long, then it is refused.


@dataclass
class ReceiverAttributes:
    """What a gateway receiver is told. The port is taken from [start_port, end_port], both inclusive."""

    start_port: int = 5000
    end_port: int = 5500
    bind_address: str = ""                          # "": the member's own bind address.
    hostname_for_senders: str = ""                  # "": the address it is bound to.
    socket_buffer_size: int = 524288
    maximum_time_between_pings: int = 60000         # ms; a sender that is silent for longer is disconnected.
    manual_start: bool = False


@dataclass
class RegionAttributes:
    """What a region is told. `type` is one of Geode's region shortcuts, or NORMAL."""

    name: str
    type: str = "PARTITION"
    gateway_sender_ids: tuple[str, ...] = ()
    async_event_queue_ids: tuple[str, ...] = ()
    total_num_buckets: int = 113
    redundant_copies: int = 0                       # PARTITION_REDUNDANT* means 1 unless said otherwise.
    colocated_with: str | None = None
    disk_store_name: str | None = None
    disk_synchronous: bool = True
    cache_listeners: tuple[Any, ...] = ()           # As gateway_event_filters.

    @property
    def is_partitioned(self) -> bool:
        return self.type.startswith("PARTITION")

    @property
    def is_replicated(self) -> bool:
        return self.type.startswith("REPLICATE")

    @property
    def is_persistent(self) -> bool:
        return "PERSISTENT" in self.type

    @property
    def feeds_gateways(self) -> bool:
        """Whether events of this region are queued for senders; of others they are counted as received, not queued."""
        return self.is_partitioned or self.is_replicated


@dataclass
class DiskStoreAttributes:
    """A disk store: where files of queues and regions lie. Sizes in MB unless named otherwise, times in ms."""

    name: str
    directories: tuple[tuple[str, int | None], ...] = ()   # (path, size in MB or None for no limit); (): the member's folder.
    time_interval: int = 1000


REGION_TYPES = (
    "PARTITION", "PARTITION_PERSISTENT", "PARTITION_PROXY", "PARTITION_REDUNDANT", "PARTITION_REDUNDANT_PERSISTENT", "PARTITION_PROXY_REDUNDANT",
    "REPLICATE", "REPLICATE_PERSISTENT", "REPLICATE_PROXY", "LOCAL", "LOCAL_PERSISTENT", "NORMAL",
)

# Geode's, without an effect here: refused by name, since a setting that does nothing is believed to do something.
_SHORTENED = "logs are shortened by themselves, as soon as they are mostly history"
REFUSED_ATTRIBUTES: dict[type, dict[str, str]] = {
    DiskStoreAttributes: {
        "auto_compact": _SHORTENED, "compaction_threshold": _SHORTENED, "allow_force_compaction": _SHORTENED,
        "max_oplog_size": "the size of a log's files follows from dir-size", "queue_size": "a write waits for time, not for a number of others",
        "write_buffer_size": "what waits for the disk is written as one block", "segments": "each queue and region has a log of its own",
        "disk_usage_warning_percentage": "a full disk is told when it refuses", "disk_usage_critical_percentage": "a full disk refuses changes, and goes on when it has room",
    },
}

# Attributes that name user code, and the methods that their classes need.
CALLBACK_METHODS: dict[str, tuple[str, ...]] = {
    "gateway_event_filters": ("before_enqueue", "before_transmit", "after_acknowledgement"),
    "gateway_event_substitution_filter": ("get_substitute_value",),
    "cache_listeners": ("after_create", "after_update", "after_destroy"),
    "gateway_conflict_resolver": ("on_event",),
}

# Attributes that a running sender can be given (Geode's alter gateway-sender), and what they may be.
ALTERABLE_SENDER_ATTRIBUTES = (
    "alert_threshold", "batch_size", "batch_time_interval", "gateway_event_filters", "group_transaction_events",
)

A = TypeVar("A", SenderAttributes, ReceiverAttributes, RegionAttributes, DiskStoreAttributes)


# Words into values.

def to_bool(value: Any, what: str) -> bool:
    """`true` or `false`, as a bool or in any case of letters."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in ("true", "false"):
        raise ConfigurationError(f"{what}: {value!r} is not one of true, false")
    return word == "true"


def to_int(value: Any, what: str, lowest: int | None = None, highest: int | None = None) -> int:
    """A whole number within the range."""
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", value):
        number = int(value)
    if number is None:
        raise ConfigurationError(f"{what}: {value!r} is not a whole number{_range(lowest, highest)}")
    if (lowest is not None and number < lowest) or (highest is not None and number > highest):
        raise ConfigurationError(f"{what}: {number} is out of range; allowed is a number{_range(lowest, highest)}")
    return number


def _range(lowest: int | None, highest: int | None) -> str:
    if lowest is not None and highest is not None:
        return f" from {lowest} to {highest}"
    return f" of at least {lowest}" if lowest is not None else ""


def to_wait_time(value: Any, what: str) -> float:
    """Seconds to wait: a number of at least 0, or -1 (given back as infinity): until it is done."""
    number: Any = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not (number == -1 or 0 <= number <= MAX_WAIT_S):
        raise ConfigurationError(f"{what}: {value!r} is not a number of seconds from 0 to {MAX_WAIT_S}, nor -1 (without limit)")
    return math.inf if number == -1 else float(number)


def to_word(value: Any, what: str, words: Iterable[str], *, upper: bool = False) -> str:
    """One of `words`, in any case of letters."""
    word = value.strip() if isinstance(value, str) else ""
    word = word.upper() if upper else word.lower()
    if word not in words:
        raise ConfigurationError(f"{what}: {value!r} is not one of {', '.join(words)}")
    return word


def to_region_type(value: Any, what: str) -> str:
    """One of Geode's region shortcuts; of those that are not in this version the error says what to take."""
    word = value.strip().upper() if isinstance(value, str) else ""
    for suffix in ("_OVERFLOW", "_HEAP_LRU"):
        kept = word.removesuffix(suffix)
        if kept != word and kept in REGION_TYPES:
            raise ConfigurationError(f"{what}: {word} is not in this version: entries stay in memory and are not evicted; take {kept}")
    return to_word(value, what, REGION_TYPES, upper=True)


def to_names(value: Any, what: str) -> tuple[str, ...]:
    """Ids from a comma-separated string or an iterable; each once, the order kept."""
    return tuple(check_name(word, what) for word in _to_words(value, what))


def _to_words(value: Any, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, Iterable):
        raise ConfigurationError(f"{what}: {quoted(value)} is no list of names")
    parts = value.split(",") if isinstance(value, str) else list(value)
    names = []
    for part in parts:
        if not isinstance(part, str):
            raise ConfigurationError(f"{what}: {quoted(part)} is not a name")
        if not part.strip():
            continue
        name = part.strip()
        if name in names:
            raise ConfigurationError(f"{what}: {quoted(name)} is there twice; name each once")
        names.append(name)
    return tuple(names)


def to_class_references(value: Any, what: str) -> tuple[Any, ...]:
    """Classes, instances or `package.module:Class` names, from an iterable or a comma-separated string."""
    if value is None:
        return ()
    if isinstance(value, ClassReference):
        parts: list[Any] = [value]
    elif isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        parts = [value]
    return tuple(_to_class_reference(part, what) for part in parts)


def _to_class_reference(value: Any, what: str) -> Any:
    """Also of its plain form, `{"class": "package.module:Class", "parameters": {"name": "value"}}` (see `to_plain`)."""
    if value is None:
        raise ConfigurationError(f"{what}: None is not a class, an instance or a name package.module:Class")
    if isinstance(value, dict):
        parameters = value.get("parameters", {})
        if not (set(value) <= {"class", "parameters"} and isinstance(value.get("class"), str) and isinstance(parameters, dict)
                and all(isinstance(word, str) for pair in parameters.items() for word in pair)):
            raise ConfigurationError(f"{what}: {value!r:.120} names no class; write"
                                     " {'class': 'package.module:Class', 'parameters': {'name': 'value'}}")
        value = ClassReference(value["class"], parameters)
    if isinstance(value, str) and not _CLASS_NAME.fullmatch(value):
        raise ConfigurationError(f"{what}: {value!r} does not name a class; write package.module:Class")
    return ClassReference(value) if isinstance(value, str) and not isinstance(value, ClassReference) else value


def import_class(name: str, what: str = "class") -> type:
    """The class called `package.module:Class`. ConfigurationError says which half of the name is wrong, and why."""
    if not isinstance(name, str) or not _CLASS_NAME.fullmatch(name):
        raise ConfigurationError(f"{what}: {name!r} does not name a class; write package.module:Class")
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:   # The module's own code runs here: whatever it raises is the user's to see.
        let_through(error)
        raise ConfigurationError(
            f"{what}: {name!r} cannot be imported: {type(error).__name__}: {error} (is the directory of {module_name!r} in --classpath or PYTHONPATH?)"
        ) from error
    found: Any = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
        if not isinstance(found, type):     # At each step: a name does not lead through the modules that this one imports.
            raise ConfigurationError(f"{what}: module {module_name!r} has no class {class_name!r}")
    return found


def make_instance(value: Any, what: str, methods: Iterable[str] = ()) -> Any:
    """The object behind a class reference, a class or an instance; it must have `methods`. A class is asked for them before
    it is called: calling a class that is none of ours may do anything."""
    cls = import_class(value, what) if isinstance(value, str) else value
    parameters = value.parameters if isinstance(value, ClassReference) else {}
    _check_methods(cls, what, methods)
    if not isinstance(cls, type):
        return cls
    try:
        made = cls(**parameters)
    except BaseException as error:
        let_through(error)
        raise ConfigurationError(f"{what}: {cls.__module__}:{cls.__qualname__} cannot be created: {type(error).__name__}: {error}") from error
    _check_methods(made, what, methods)
    return made


def _check_methods(value: Any, what: str, methods: Iterable[str]) -> None:
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing:
        cls = value if isinstance(value, type) else type(value)
        raise ConfigurationError(f"{what}: {cls.__module__}:{cls.__qualname__} has no method {', '.join(missing)}")


def let_through(error: BaseException) -> None:
    """Of what user code raised, raises again what was not its own: Ctrl-C, which reaches the main thread. A SystemExit is
    an error like any other."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


# Which classes may be named from outside.

_CALLBACK_PATTERN = re.compile(r"\*|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\.\*|:[A-Za-z_][\w.]*)?")


def to_callback_patterns(value: Any, what: str) -> tuple[str, ...]:
    """`package.module:Class` (that class), `package.module` (its classes), `package.*` (those of the package and of all below it) or
    `*` (any), from an iterable or a comma-separated string."""
    patterns = _to_words(value, what)
    for pattern in patterns:
        if not _CALLBACK_PATTERN.fullmatch(pattern):
            raise ConfigurationError(f"{what}: {quoted(pattern)} names no classes; write package.module:Class, package.module, package.* or *")
    return patterns


def _is_allowed(name: str, pattern: str) -> bool:
    module, _, _ = name.partition(":")
    if pattern.endswith(".*"):
        return f"{module}.".startswith(pattern[:-1])
    return pattern in ("*", module, name)


def check_callbacks_allowed(attributes: Mapping[str, Any], allowed: tuple[str, ...], what: str) -> None:
    """ConfigurationError if `attributes`, which came over the network, name a class that `allowed` does not, or hold no name where one
    should be: before anything is imported."""
    for attribute in CALLBACK_METHODS:
        value = attributes.get(attribute)
        if value is None or _removes_all(value):
            continue
        for reference in to_class_references(value, f"{what}: {attribute}"):
            if not isinstance(reference, ClassReference):
                raise ConfigurationError(f"{what}: {attribute} holds {reference!r:.80}, which names no class; write package.module:Class")
            if not any(_is_allowed(reference, pattern) for pattern in allowed):
                raise ConfigurationError(
                    f"{what}: {attribute} names {reference}, and what comes over the network may name only classes that this member"
                    f" allows ({', '.join(allowed) or 'none'}); start it with --allow-callbacks={reference.partition(':')[0]} (or the"
                    " property allow-callbacks, or Cache(allow_callbacks=...)), or name the class in its cache.xml")


def _removes_all(value: Any) -> bool:
    """gfsh's marker for "no filters"."""
    return isinstance(value, str) and value.strip() in ("", "CLEAR")


# Attributes from what the user wrote.

_INT_RANGES: dict[tuple[type, str], tuple[int | None, int | None]] = {
    (SenderAttributes, "remote_distributed_system_id"): (0, MAX_DISTRIBUTED_SYSTEM_ID),
    (SenderAttributes, "socket_buffer_size"): (MIN_SEND_BUFFER_BYTES, 2**31 - 1),
    (SenderAttributes, "socket_read_timeout"): (0, 2**31 - 1),
    (SenderAttributes, "batch_size"): (-1, 2**31 - 1),
    (SenderAttributes, "batch_time_interval"): (-1, 2**31 - 1),
    (SenderAttributes, "maximum_queue_memory"): (1, 2**31 - 1),
    (SenderAttributes, "alert_threshold"): (0, 2**31 - 1),
    (SenderAttributes, "dispatcher_threads"): (1, MAX_DISPATCHER_THREADS),
    (SenderAttributes, "retry_interval_ms"): (1, 2**31 - 1),
    (SenderAttributes, "full_timeout_ms"): (0, 2**31 - 1),
    (ReceiverAttributes, "start_port"): (0, 65535),
    (ReceiverAttributes, "end_port"): (0, 65535),
    (ReceiverAttributes, "socket_buffer_size"): (MIN_RECEIVE_BUFFER_BYTES, 2**31 - 1),
    (ReceiverAttributes, "maximum_time_between_pings"): (MIN_TIME_BETWEEN_PINGS_MS, 2**31 - 1),
    (RegionAttributes, "total_num_buckets"): (1, MAX_BUCKETS),
    (RegionAttributes, "redundant_copies"): (0, 3),
    (DiskStoreAttributes, "time_interval"): (0, 2**31 - 1),
}


def _coerce(cls: type, name: str, value: Any, what: str) -> Any:
    """`value` in the type of the attribute `name`, from a string too."""
    kind = next(f.type for f in dataclasses.fields(cls) if f.name == name)
    if kind == "bool":
        return to_bool(value, what)
    if kind == "int":
        if name == "socket_buffer_size" and to_int(value, what, 0) == 0:
            return 0            # The system's own choice.
        return to_int(value, what, *_INT_RANGES.get((cls, name), (None, None)))
    if name in ("id", "name"):
        return check_name(value.lstrip("/") if cls is RegionAttributes and isinstance(value, str) else value, what)
    if name == "type":
        return to_region_type(value, what)
    if name == "order_policy":
        return None if value in (None, "") else to_word(value, what, ORDER_POLICIES)
    if name == "full_policy":
        return to_word(value, what, FULL_POLICIES)
    if name == "compression":
        return None if value in (None, "", "none") else to_word(value, what, COMPRESSIONS)
    if name in ("gateway_event_filters", "cache_listeners"):
        return to_class_references(value, what)
    if name == "gateway_event_substitution_filter":
        found = () if value is None or _removes_all(value) else to_class_references(value, what)
        if len(found) > 1:
            raise ConfigurationError(f"{what}: {len(found)} classes are named; there can be one")
        return found[0] if found else None
    if name in ("gateway_sender_ids", "async_event_queue_ids"):
        return to_names(value, what)
    if name == "directories":
        return _to_directories(value, what)
    if value is None and "None" in kind:
        return None
    if not isinstance(value, str):
        raise ConfigurationError(f"{what}: {value!r} is not text")
    if name in ("bind_address", "hostname_for_senders") and value and not is_host(value):
        raise ConfigurationError(f"{what}: {value!r} is not a host name or address")
    if name == "colocated_with":
        return check_name(value.lstrip("/"), what)
    return value or (None if "None" in kind else "")


_DIRECTORY_MB = 1, 2**31 - 1


def _to_directories(value: Any, what: str) -> tuple[tuple[str, int | None], ...]:
    if isinstance(value, os.PathLike):
        return (_to_directory(value, what),)
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Iterable) else [value]
    return tuple(_to_directory(part, what) for part in parts)


def _to_directory(part: Any, what: str) -> tuple[str, int | None]:
    if isinstance(part, str):           # gfsh: path#size
        path, separator, size = part.partition("#")
        part = path, size if separator else None
    elif isinstance(part, os.PathLike):
        part = part, None
    try:
        path, size = part
        path = os.fspath(path)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{what}: {part!r} is not a directory; write a path, or a pair of a path and its size in MB (None: no limit)") from None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigurationError(f"{what}: {path!r} is not the name of a directory")
    return path, None if size is None else to_int(size, what, *_DIRECTORY_MB)


def attribute_names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


def _check_attributes(cls: type, what: str, values: Iterable[str]) -> None:
    """ConfigurationError if one of them is none that a `cls` has."""
    known, refused = attribute_names(cls), REFUSED_ATTRIBUTES.get(cls, {})
    for name in values:
        if name in refused:
            raise ConfigurationError(f"{what}: {name} has no effect in this version ({refused[name]}); leave it out")
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ConfigurationError(f"{what}: no attribute {quoted(unknown[0])}; there are {', '.join(known)}")


def _make(cls: type[A], what: str, values: Mapping[str, Any]) -> A:
    _check_attributes(cls, what, values)
    required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    for name in required:
        if values.get(name) is None:
            raise ConfigurationError(f"{what}: the attribute {name} is required")
    return cls(**{name: _coerce(cls, name, value, f"{what}: {name}") for name, value in values.items()})


def make_sender_attributes(id: str, *, own_distributed_system_id: int | None = None, **attributes: Any) -> SenderAttributes:
    """A sender's attributes, values as typed or as text; checked. GatewaySenderConfigurationError otherwise."""
    try:
        made = _make(SenderAttributes, f"gateway sender {id!r}", {"id": id, **attributes})
    except ConfigurationError as error:
        raise GatewaySenderConfigurationError(str(error)) from error.__cause__
    validate_sender(made, own_distributed_system_id)
    return made


def make_receiver_attributes(**attributes: Any) -> ReceiverAttributes:
    """A receiver's attributes, values as typed or as text; checked."""
    made = _make(ReceiverAttributes, "gateway receiver", attributes)
    validate_receiver(made)
    return made


def make_region_attributes(name: str, *, type: str = "PARTITION", **attributes: Any) -> RegionAttributes:
    """A region's attributes, values as typed or as text; checked."""
    redundant_is_given = attributes.get("redundant_copies") is not None
    _check_attributes(RegionAttributes, f"region {name!r}", attributes)
    values = {key: value for key, value in attributes.items() if value is not None}
    made = _make(RegionAttributes, f"region {name!r}", {"name": name, "type": type, **values})
    if "REDUNDANT" in made.type and not redundant_is_given:
        made.redundant_copies = 1
    validate_region(made)
    return made


def make_disk_store_attributes(name: str, **attributes: Any) -> DiskStoreAttributes:
    return _make(DiskStoreAttributes, f"disk store {name!r}", {"name": name, **attributes})


def altered_sender_attributes(attributes: SenderAttributes, **changes: Any) -> SenderAttributes:
    """A copy of `attributes` with `changes`, as `alter gateway-sender` allows them; checked."""
    what = f"gateway sender {attributes.id!r}"
    if not changes:
        raise GatewaySenderConfigurationError(f"{what}: nothing to alter; name one of {', '.join(ALTERABLE_SENDER_ATTRIBUTES)}")
    for name in changes:
        if name not in ALTERABLE_SENDER_ATTRIBUTES:
            raise GatewaySenderConfigurationError(
                f"{what}: {name} cannot be altered; only {', '.join(ALTERABLE_SENDER_ATTRIBUTES)} can: destroy the sender and create it again"
            )
    if _removes_all(changes.get("gateway_event_filters")):
        changes = {**changes, "gateway_event_filters": ()}
    try:
        coerced = {name: _coerce(SenderAttributes, name, value, f"{what}: {name}") for name, value in changes.items()}
        if coerced.get("batch_size") is not None:
            to_int(coerced["batch_size"], f"{what}: batch_size", 1)
    except ConfigurationError as error:
        raise GatewaySenderConfigurationError(str(error)) from error.__cause__
    altered = dataclasses.replace(attributes, **coerced)
    validate_sender(altered, None)
    return altered


# What cannot be.

def validate_sender(attributes: SenderAttributes, own_distributed_system_id: int | None) -> None:
    """Raises GatewaySenderConfigurationError where attributes contradict each other or the site; fills in `order_policy`
    and raises a too short read timeout, as Geode does."""
    what = f"gateway sender {attributes.id!r}"
    if attributes.id.startswith(RESERVED_SENDER_PREFIX):
        raise GatewaySenderConfigurationError(f"{what}: ids that begin with {RESERVED_SENDER_PREFIX} belong to asynchronous event queues; take another id")
    if own_distributed_system_id is not None and attributes.remote_distributed_system_id == own_distributed_system_id:
        raise GatewaySenderConfigurationError(
            f"{what}: remote_distributed_system_id {attributes.remote_distributed_system_id} is this site's own id; name the other site's"
        )
    if attributes.batch_size == 0:
        raise GatewaySenderConfigurationError(f"{what}: batch_size 0 is out of range; allowed is -1 (only the time interval closes a batch) or a number of at least 1")
    if attributes.parallel and attributes.order_policy == "thread":
        raise GatewaySenderConfigurationError(
            f"{what}: order_policy thread does not go with parallel=true; use key or partition, or a serial sender"
        )
    if attributes.group_transaction_events:
        raise GatewaySenderConfigurationError(f"{what}: group_transaction_events has no effect in this version (it has no transactions); set it to false, or leave it out")
    if attributes.disk_store_name is not None and not attributes.enable_persistence:
        raise GatewaySenderConfigurationError(
            f"{what}: disk_store_name {attributes.disk_store_name!r} has no effect without enable_persistence; set that to true, or"
            " name overflow_directory for what is beyond the memory of a queue that is not persistent")
    if attributes.order_policy is None:
        attributes.order_policy = "key"
    if 0 < attributes.socket_read_timeout < MIN_SOCKET_READ_TIMEOUT_MS:
        log.warning("%s: socket_read_timeout %d ms is below the least allowed; %d is used", what, attributes.socket_read_timeout, MIN_SOCKET_READ_TIMEOUT_MS)
        attributes.socket_read_timeout = MIN_SOCKET_READ_TIMEOUT_MS


def validate_receiver(attributes: ReceiverAttributes) -> None:
    if attributes.start_port > attributes.end_port:
        raise ConfigurationError(
            f"gateway receiver: start_port {attributes.start_port} is above end_port {attributes.end_port}; the range is from start to end, both included"
        )
    if attributes.start_port == 0 and attributes.end_port != 0:
        raise ConfigurationError(
            f"gateway receiver: start_port 0 means any free port, and goes with end_port 0 only, not {attributes.end_port}; begin the range with 1 or more"
        )


def validate_region(attributes: RegionAttributes) -> None:
    if not attributes.is_partitioned:
        for name, default in (("redundant_copies", 0), ("total_num_buckets", 113), ("colocated_with", None)):
            if getattr(attributes, name) != default:
                raise ConfigurationError(
                    f"region {attributes.name!r}: {name} {getattr(attributes, name)!r} is for partitioned regions only, and its type is {attributes.type}"
                )
    if attributes.disk_store_name is not None and not attributes.is_persistent:
        raise ConfigurationError(
            f"region {attributes.name!r}: disk_store_name {attributes.disk_store_name!r} has no effect with type {attributes.type};"
            " take a type that is persistent, or leave it out")
    if attributes.async_event_queue_ids:
        raise ConfigurationError(f"region {attributes.name!r}: asynchronous event queues are not in this version; leave async_event_queue_ids empty")
    if attributes.colocated_with == attributes.name:
        raise ConfigurationError(f"region {attributes.name!r}: it cannot be colocated with itself")


def validate_attachment(region: RegionAttributes, sender: SenderAttributes) -> None:
    """Whether events of `region` may go to `sender` (checked when either is created, and when the region is altered)."""
    if sender.parallel and not region.is_partitioned:
        raise GatewaySenderConfigurationError(
            f"gateway sender {sender.id!r} is parallel and cannot be used with region {region.name!r} of type {region.type};"
            " use a serial sender (parallel=false) or a partitioned region"
        )
    if sender.parallel and region.is_persistent and not sender.enable_persistence:
        raise GatewaySenderConfigurationError(
            f"gateway sender {sender.id!r} is not persistent and cannot be used with the persistent region {region.name!r};"
            " create it with enable_persistence=true"
        )


def validate_colocation(region: RegionAttributes, others: Iterable[RegionAttributes], senders: Mapping[str, SenderAttributes]) -> None:
    """A region is colocated with a partitioned region of as many buckets. A parallel sender is shared only by regions that are
    colocated: its buckets are theirs."""
    others = [other for other in others if other.name != region.name]
    table = {other.name: other.colocated_with for other in others} | {region.name: region.colocated_with}
    if region.colocated_with is not None and region.colocated_with not in table:
        raise IllegalStateError(f"region {region.name!r}: there is no region {region.colocated_with!r} to be colocated with; create that one first")
    parent = next((other for other in others if other.name == region.colocated_with), None)
    if parent is not None and not parent.is_partitioned:
        raise IllegalStateError(f"region {region.name!r}: it cannot be colocated with {parent.name!r}, which is of type {parent.type}"
                                " and has no buckets; name a partitioned region")
    if parent is not None and parent.total_num_buckets != region.total_num_buckets:
        raise IllegalStateError(
            f"region {region.name!r}: its total_num_buckets {region.total_num_buckets} differ from {parent.total_num_buckets} of"
            f" {parent.name!r}, with which it is to be colocated; give both the same")
    for other in others:
        for sender_id in region.gateway_sender_ids:
            shared = sender_id in other.gateway_sender_ids and sender_id in senders and senders[sender_id].parallel
            if shared and _leader(region.name, table) != _leader(other.name, table):
                raise IllegalStateError(
                    f"regions {other.name!r} and {region.name!r} cannot share the parallel gateway sender {sender_id!r}, as they are not colocated;"
                    " use another sender, or colocated_with"
                )


def _leader(name: str, colocated_with: Mapping[str, str | None]) -> str:
    seen = {name}
    while (parent := colocated_with.get(name)) is not None and parent not in seen:
        seen.add(parent)
        name = parent
    return name


# Attributes as they are shown.

def to_plain(attributes: Any) -> dict[str, Any]:
    """Attributes as a map of plain values (for messages, tables and JSON); classes and instances by their name."""
    return {f.name: _plain(getattr(attributes, f.name)) for f in dataclasses.fields(attributes)}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, ClassReference) and value.parameters:
        return {"class": str(value), "parameters": dict(value.parameters)}
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    cls = value if isinstance(value, type) else type(value)
    return f"{cls.__module__}:{cls.__qualname__}"


def port_range_error(attributes: ReceiverAttributes, host: str, reason: str) -> GatewayReceiverError:
    """What a receiver raises when no port of its range can be used."""
    return GatewayReceiverError(
        f"gateway receiver: no port from {attributes.start_port} to {attributes.end_port} can be used on {host or 'any address'}: {reason};"
        " choose another start_port and end_port, or another bind_address"
    )
