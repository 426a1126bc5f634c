"""Owns what can be configured: the attributes of senders, receivers, regions and disk stores.

They have Geode's names (in snake_case), units, defaults and rules. Each class is a table with a row for each attribute.
A row holds all there is to say about it: keyword arguments, cache.xml, options of commands, their help and
docs/configuration.md are made from the rows (see docs/recipes.md).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pywan.base.names import check_name, near_name
from pywan.config.classes import check_allowed, removes_all, to_class_references
from pywan.config.table import Attribute, Attributes, Row, table
from pywan.config.values import DISK_LEVELS, DiskLevel, to_directories, to_disk_level, to_host, to_region_name, to_word
from pywan.errors import (
    AsyncEventQueueConfigurationError,
    ConfigurationError,
    GatewayReceiverError,
    GatewaySenderConfigurationError,
)
from pywan.limitations import Limitation

log = logging.getLogger("pywan.config")

MIN_SOCKET_READ_TIMEOUT_MS = 30_000  # A smaller value is raised to this, as in Geode.
MAX_DISTRIBUTED_SYSTEM_ID = 255
MAX_DISPATCHER_THREADS = 1024
MAX_REPLICAS = 4  # Of a bucket of a partitioned region, with its primary.
BUCKETS = 113  # The default number of buckets of a region.
MAX_BUCKETS = 4_096
MIN_SEND_BUFFER_BYTES = 1_000  # The system raises less than 4,608 to that. 0 leaves the choice to the system.
MIN_RECEIVE_BUFFER_BYTES = 16_384  # With less, packets of a loopback do not fit, and 5,000 events take 20 s.
MIN_TIME_BETWEEN_PINGS_MS = 100  # A sender pings three times in this time.
INT_MAX = 2**31 - 1
RESERVED_SENDER_PREFIX = "AsyncEventQueue_"
DEFAULT_STORE = "DEFAULT"  # The disk store that is created when it is first needed.
_SYSTEMS_CHOICE = {0: "the system's own choice"}

REGION_TYPES = (
    "PARTITION",
    "PARTITION_PERSISTENT",
    "PARTITION_PROXY",
    "PARTITION_REDUNDANT",
    "PARTITION_REDUNDANT_PERSISTENT",
    "PARTITION_PROXY_REDUNDANT",
    "REPLICATE",
    "REPLICATE_PERSISTENT",
    "REPLICATE_PROXY",
    "LOCAL",
    "LOCAL_PERSISTENT",
    "NORMAL",
)

Directory = str | os.PathLike[str] | tuple[str | os.PathLike[str], int | None]


def to_region_type(value: Any, what: str) -> str:
    """Reads one of Geode's region shortcuts. For shortcuts that are missing (`Limitation.OVERFLOW`), the error names
    the one to take instead."""
    word = value.strip().upper() if isinstance(value, str) else ""
    for suffix in ("_OVERFLOW", "_HEAP_LRU"):
        without_suffix = word.removesuffix(suffix)
        if without_suffix != word and without_suffix in REGION_TYPES:
            raise ConfigurationError(f"{what}: {Limitation.OVERFLOW.refusal(type=word, instead=without_suffix)}")
    return to_word(value, what, REGION_TYPES, upper=True)


# What gateway senders and asynchronous event queues have in common.
_BatchSize = Annotated[
    int,
    Attribute(
        "the most events in a batch",
        lowest=1,
        highest=INT_MAX,
        also={-1: "no limit, only the time interval closes a batch"},
        more="`alter` does not take -1",
    ),
]
_BatchTimeInterval = Annotated[
    int,
    Attribute(
        "the time after which a batch leaves that is not full",
        unit="ms",
        lowest=0,
        highest=INT_MAX,
        also={-1: "a batch never waits for more events"},
    ),
]
_GatewayEventFilters = Annotated[
    Collection[Any],
    Attribute(
        "filter classes package.module:Class, separated by commas; CLEAR: none",
        methods=("before_enqueue", "before_transmit", "after_acknowledgement"),
        element="gateway-event-filter",
        more="They are called in the given order",
    ),
]


_AcknowledgeOnce = Annotated[
    bool,
    Attribute(
        "call `after_acknowledgement` once a site, on the member that sent the event",
        more="Otherwise it is called on each member that holds the event, as in Geode",
    ),
]


def order_of(queue: SenderAttributes | AsyncEventQueueAttributes) -> str:
    """Returns the order policy that a queue has. One dispatcher can keep all events of a thread in order."""
    if queue.order_policy is not None:
        return queue.order_policy
    return "thread" if queue.dispatcher_threads == 1 and not queue.parallel else "key"


def check_queue(queue: SenderAttributes | AsyncEventQueueAttributes) -> None:
    """Raises ConfigurationError if attributes of a queue contradict each other."""
    what = queue.what
    if queue.parallel and queue.order_policy == "thread":
        raise ConfigurationError(
            f"{what}: order_policy thread does not go with parallel=true; use key or partition, or a serial one"
        )
    if queue.substitution_on_error != "park" and queue.gateway_event_substitution_filter is None:
        raise ConfigurationError(
            f"{what}: substitution_on_error {queue.substitution_on_error!r} has no effect without"
            " gateway_event_substitution_filter; name the filter, or leave it out"
        )
    if queue.disk_store_name is not None and not queue.enable_persistence:
        raise ConfigurationError(
            f"{what}: disk_store_name {queue.disk_store_name!r} has no effect without {queue.persistence_word}; set"
            " that to true, or name overflow_directory for what is beyond the memory of a queue that is not persistent"
        )


def check_batch_size(made: SenderAttributes | AsyncEventQueueAttributes, given: Mapping[str, Any]) -> None:
    """Raises an error if the size of batches was altered to one that only a new queue may have."""
    if "batch_size" in given and made.batch_size < 1:
        raise made.error(
            f"{made.what}: batch_size {made.batch_size} is no size that it can be altered to; give 1 or more"
        )


@dataclass(kw_only=True)
class SenderChanges:
    """The attributes of a sender that can be changed while it exists (Geode's alter gateway-sender)."""

    batch_size: _BatchSize = 100
    batch_time_interval: _BatchTimeInterval = 1000
    alert_threshold: Annotated[
        int,
        Attribute(
            "events that are older when acknowledged are counted",
            unit="ms",
            lowest=1,
            highest=INT_MAX,
            also={0: "none are counted"},
        ),
    ] = 0
    gateway_event_filters: _GatewayEventFilters = ()
    acknowledge_once: _AcknowledgeOnce = False
    group_transaction_events: Annotated[
        bool,
        Attribute(
            "keep the events of a transaction together",
            more=f"`true` is refused, also by `alter`: {Limitation.TRANSACTIONS.sentence()}",
        ),
    ] = False
    security_username: Annotated[
        str | None,
        Attribute(
            "the user that the sender is to receivers",
            unset="the `gateway-username` of its member",
            is_local=True,
            more="Only in Python and in the member's own cache.xml: no command and no cluster configuration has it."
            " `alter` takes it away again with an empty text",
        ),
    ] = None
    security_password_file: Annotated[
        str | None,
        Attribute(
            "the file with the password of that user in its first line, on the member's machine",
            is_local=True,
            more="Given where `security-username` is. Nobody else can read or write it (0600). It is read for each"
            " connection. The password itself is no attribute: answers of commands would show it",
        ),
    ] = None
    authenticate_receiver: Annotated[
        bool,
        Attribute(
            "send only to a receiver that shows who it is",
            more="The receiver shows its member's `gateway-username` or certificate, and the sender's member needs a"
            " `security-manager` that lets that user do DATA:READ",
        ),
    ] = False


_Parallel = Annotated[bool, Attribute("one queue for each bucket; for partitioned regions only")]
_DispatcherThreads = Annotated[
    int,
    Attribute(
        "queues with a thread each (serial), or threads that share the buckets (parallel)",
        lowest=1,
        highest=MAX_DISPATCHER_THREADS,
    ),
]
_OrderPolicy = Annotated[
    str | None,
    Attribute(
        "events of the same one of these stay in order",
        words=("key", "thread", "partition"),
        unset="thread, if it is serial with one dispatcher; otherwise key",
        more="`thread` is for a serial sender only",
    ),
]
_EnableBatchConflation = Annotated[
    bool,
    Attribute("send only the latest update of a key", more="It replaces older ones in the queue and in the batch"),
]
_maximum_queue_memory = Attribute(
    "the memory for events; further events go to overflow files", unit="MB", lowest=1, highest=INT_MAX
)
_OverflowDirectory = Annotated[
    str | None,
    Attribute(
        "the folder of overflow files",
        unset="the member's folder",
        is_folder=True,
        more="Over the network, only one in a folder of the member's own",
    ),
]
_disk_store_name = Attribute("the disk store of the queue", unset=DEFAULT_STORE, more="Only with `enable-persistence`")
_DiskSynchronous = Annotated[
    DiskLevel,
    Attribute(
        "an enqueue waits for the disk; `written`: it waits for the log, which is synced later",
        words=DISK_LEVELS,
        read=to_disk_level,
        more="With `written`, events survive the end of the process, and not a loss of power. Geode calls that"
        " synchronous, because it does not sync by default. With `false`, a kill loses the last milliseconds too",
    ),
]
_FullPolicy = Annotated[
    str,
    Attribute(
        "what happens to an event for which the queue has no room",
        words=("block", "refuse", "drop-oldest", "drop-newest"),
        more="`block` waits for `full-timeout-ms`, and then refuses the change. Dropped events are counted in the"
        " ledger. The oldest events are dropped only when the new one is queued: not if another sender's queue or"
        " the region refuses the change. Until then the queue takes up to a segment (2 MiB) of memory more than"
        " its limit. If the disk is only slow, each event waits for it up to 10 s, unless the policy is `refuse`",
    ),
]
_FullTimeoutMs = Annotated[int, Attribute("how long `block` waits", unit="ms", lowest=0, highest=INT_MAX)]
_GatewayEventSubstitutionFilter = Annotated[
    Any,
    Attribute(
        "the class package.module:Class that returns the value to send",
        methods=("get_substitute_value",),
        element="gateway-event-substitution-filter",
    ),
]
_SubstitutionOnError = Annotated[
    str,
    Attribute(
        "what happens to an event whose substitution filter raises",
        words=("park", "drop", "send"),
        more="`park` keeps it with the parked events; a replay asks the filter again. `send` sends the region's own"
        " value, as Geode does. The event is counted as withheld unless it is sent",
    ),
]


@dataclass
class SenderAttributes(Attributes, SenderChanges):
    """The attributes of a gateway sender."""

    kind, title, error = "gateway-sender", "gateway sender", GatewaySenderConfigurationError
    persistence_word: ClassVar[str] = "enable_persistence"

    id: Annotated[
        str,
        Attribute(
            "the sender's id",
            read=check_name,
            more="It has letters, digits, `_`, `.` and `-`, and is unique in the member. The prefix"
            " `AsyncEventQueue_` is reserved",
        ),
    ]
    _: KW_ONLY
    remote_distributed_system_id: Annotated[
        int,
        Attribute(
            "the other site's id", lowest=0, highest=MAX_DISTRIBUTED_SYSTEM_ID, more="It is not the site's own id"
        ),
    ]
    parallel: _Parallel = False
    manual_start: Annotated[bool, Attribute("do not start it before `start gateway-sender`")] = False
    dispatcher_threads: _DispatcherThreads = 5
    order_policy: _OrderPolicy = None
    enable_batch_conflation: _EnableBatchConflation = False
    maximum_queue_memory: Annotated[int, _maximum_queue_memory] = 100
    overflow_directory: _OverflowDirectory = None
    enable_persistence: Annotated[bool, Attribute("keep the queue and its parked events in a disk store")] = False
    disk_store_name: Annotated[str | None, _disk_store_name] = None
    disk_synchronous: _DiskSynchronous = True
    full_policy: _FullPolicy = "block"
    full_timeout_ms: _FullTimeoutMs = 1000
    socket_buffer_size: Annotated[
        int,
        Attribute(
            "the socket buffer of each connection",
            unit="bytes",
            lowest=MIN_SEND_BUFFER_BYTES,
            highest=INT_MAX,
            also=_SYSTEMS_CHOICE,
            more="A size that the system does not allow is logged as a warning",
        ),
    ] = 524288
    socket_read_timeout: Annotated[
        int,
        Attribute(
            "a connection without progress for so long is given up",
            unit="ms",
            lowest=1,
            highest=INT_MAX,
            also={0: "30 s"},
            more="Progress is an acknowledgement, or a message that the receiver applies events. Batches that were on"
            " their way are sent again, to another receiver if there is one. A value below 30000 is raised to it,"
            " with a warning. It must be longer than the slowest callback at the remote site. Geode waits for ever"
            " with 0",
        ),
    ] = 0
    retry_interval_ms: Annotated[
        int,
        Attribute(
            "the longest time between attempts to connect",
            unit="ms",
            lowest=1,
            highest=INT_MAX,
            more="The first wait is 50 ms. It doubles with each attempt, up to this. After a connection that worked,"
            " it is 50 ms again. A remote site that cannot be reached is looked for every 2 s, or more often",
        ),
    ] = 1000
    compression: Annotated[str | None, Attribute("compress batches", words=("lz4",))] = None
    enforce_threads_connect_same_receiver: Annotated[
        bool,
        Attribute(
            "connect all dispatchers to one receiver",
            more="It is for several receivers behind one host and port, and only for serial senders",
        ),
    ] = False
    gateway_event_substitution_filter: _GatewayEventSubstitutionFilter = None
    substitution_on_error: _SubstitutionOnError = "park"

    def check(self) -> None:
        """Raises ConfigurationError for contradictions, and raises a read timeout that is too short, as Geode does."""
        what = self.what
        if self.id.startswith(RESERVED_SENDER_PREFIX):
            raise ConfigurationError(
                f"{what}: ids that begin with {RESERVED_SENDER_PREFIX} belong to asynchronous event queues; take"
                " another id"
            )
        check_queue(self)
        if (self.security_username is None) != (self.security_password_file is None):
            raise ConfigurationError(
                f"{what}: security_username and security_password_file go together; give both, or none"
            )
        if self.group_transaction_events:
            raise ConfigurationError(f"{what}: {Limitation.GROUPED_TRANSACTIONS.refusal()}")
        if self.parallel and self.enforce_threads_connect_same_receiver:
            raise ConfigurationError(
                f"{what}: enforce_threads_connect_same_receiver is for serial senders only; leave it out, or set"
                " parallel to false"
            )
        if 0 < self.socket_read_timeout < MIN_SOCKET_READ_TIMEOUT_MS:
            log.warning(
                "%s: socket_read_timeout %d ms is below the least allowed; %d is used",
                what,
                self.socket_read_timeout,
                MIN_SOCKET_READ_TIMEOUT_MS,
            )
            self.socket_read_timeout = MIN_SOCKET_READ_TIMEOUT_MS

    def altered(self, changes: type = SenderChanges, /, **given: Any) -> SenderAttributes:
        made = super().altered(changes, **given)
        check_batch_size(made, given)
        return made

    @property
    def core_id(self) -> str:
        """The id among all queues of a member, asynchronous ones too."""
        return self.id

    @property
    def thread_name(self) -> str:
        """The beginning of its threads' names."""
        return f"sender-{self.id}"

    @property
    def reaches(self) -> frozenset[int]:
        """The remote sites that its events reach."""
        return frozenset((self.remote_distributed_system_id,))

    def check_site(self, own_distributed_system_id: int) -> None:
        """Raises GatewaySenderConfigurationError if the sender would send to its own site."""
        if self.remote_distributed_system_id == own_distributed_system_id:
            raise self.error(
                f"{self.what}: remote_distributed_system_id {self.remote_distributed_system_id} is this site's own"
                " id; name the other site's"
            )


@dataclass(kw_only=True)
class AsyncEventQueueChanges:
    """The attributes of an asynchronous event queue that can be changed while it exists."""

    batch_size: _BatchSize = 100
    batch_time_interval: _BatchTimeInterval = 5
    park_after_tries: Annotated[
        int,
        Attribute(
            "an event on which the listener failed so often is parked",
            lowest=1,
            highest=INT_MAX,
            also={0: "none is parked: the batch comes again for ever"},
            more="The events of a batch that failed so often come one by one, and those that fail again are parked."
            " Geode has no such attribute",
        ),
    ] = 0
    gateway_event_filters: _GatewayEventFilters = ()
    acknowledge_once: _AcknowledgeOnce = False


@dataclass
class AsyncEventQueueAttributes(Attributes, AsyncEventQueueChanges):
    """The attributes of an asynchronous event queue."""

    kind, title, error = "async-event-queue", "async event queue", AsyncEventQueueConfigurationError
    persistence_word: ClassVar[str] = "persistent"
    refused: ClassVar[Mapping[str, str]] = {
        "forward_expiration_destroy": "entries do not expire",
    }

    id: Annotated[
        str,
        Attribute(
            "the queue's id",
            read=check_name,
            more="It has letters, digits, `_`, `.` and `-`, and is unique in the member",
        ),
    ]
    async_event_listener: Annotated[
        Any,
        Attribute(
            "the listener: a class package.module:Class, or in Python an object or a function",
            option="listener",
            aliases=("async-event-listener",),
            methods=("process_events",),
            element="async-event-listener",
            more="It has `process_events(events)` or `process_arrow(batch)`, which may be `async`, or is a function of"
            " events",
        ),
    ]
    _: KW_ONLY
    parallel: _Parallel = False
    pause_event_processing: Annotated[
        bool, Attribute("begin paused: events are queued, and none is handed over before a resume")
    ] = False
    dispatcher_threads: _DispatcherThreads = 5
    order_policy: _OrderPolicy = None
    enable_batch_conflation: _EnableBatchConflation = False
    maximum_queue_memory: Annotated[
        int, replace(_maximum_queue_memory, option="max-queue-memory", aliases=("maximum-queue-memory",))
    ] = 100
    overflow_directory: _OverflowDirectory = None
    persistent: Annotated[bool, Attribute("keep the queue and its parked events in a disk store")] = False
    disk_store_name: Annotated[
        str | None,
        replace(_disk_store_name, option="disk-store", aliases=("disk-store-name",), more="Only with `persistent`"),
    ] = None
    disk_synchronous: _DiskSynchronous = True
    full_policy: _FullPolicy = "block"
    full_timeout_ms: _FullTimeoutMs = 1000
    gateway_event_substitution_filter: _GatewayEventSubstitutionFilter = None
    substitution_on_error: _SubstitutionOnError = "park"

    @property
    def enable_persistence(self) -> bool:
        """Whether the queue is persistent, as a sender's attributes say it."""
        return self.persistent

    @property
    def core_id(self) -> str:
        """The id among all queues of a member, senders' too. Geode has the same prefix."""
        return f"{RESERVED_SENDER_PREFIX}{self.id}"

    @property
    def reaches(self) -> frozenset[int]:
        """The remote sites that its events reach: none."""
        return frozenset()

    @property
    def thread_name(self) -> str:
        """The beginning of its threads' names."""
        return f"async-queue-{self.id}"

    def check(self) -> None:
        if self.async_event_listener is None:
            raise ConfigurationError(f"{self.what}: async_event_listener names no class; the attribute is required")
        check_queue(self)

    def altered(self, changes: type = AsyncEventQueueChanges, /, **given: Any) -> AsyncEventQueueAttributes:
        made = super().altered(changes, **given)
        check_batch_size(made, given)
        return made


QueueAttributes = SenderAttributes | AsyncEventQueueAttributes


def queue_words(core_id: str) -> str:
    """Returns the words for a sender or an asynchronous event queue of that `core_id`."""
    id = core_id.removeprefix(RESERVED_SENDER_PREFIX)
    return f"{AsyncEventQueueAttributes.title if id != core_id else SenderAttributes.title} {id}"


def near_queue(core_id: str, known: Iterable[str]) -> str:
    """Returns words in brackets that ask whether a sender or queue of `known` was meant. "": none is near."""
    is_queue = core_id.startswith(RESERVED_SENDER_PREFIX)
    same = [each for each in known if each.startswith(RESERVED_SENDER_PREFIX) == is_queue]
    ids = [each.removeprefix(RESERVED_SENDER_PREFIX) for each in same]
    return near_name(core_id.removeprefix(RESERVED_SENDER_PREFIX), ids, " (", ")")


@dataclass(kw_only=True)
class ReceiverAttributes(Attributes):
    """The attributes of a gateway receiver. A member can have one."""

    kind, title = "gateway-receiver", "gateway receiver"

    start_port: Annotated[
        int, Attribute("the first port of the range; the receiver takes a free port of it", lowest=0, highest=65535)
    ] = 5000
    end_port: Annotated[
        int,
        Attribute("the last port of the range", lowest=0, highest=65535, more="If both are 0, it takes any free port"),
    ] = 5500
    bind_address: Annotated[
        str, Attribute("the address on which it listens", read=to_host, unset="the member's own")
    ] = ""
    hostname_for_senders: Annotated[
        str,
        Attribute(
            "the host name that other sites are given",
            read=to_host,
            unset="the bind address",
            more="If that is every interface, they are given the address towards them",
        ),
    ] = ""
    socket_buffer_size: Annotated[
        int,
        Attribute(
            "the socket buffer of each connection",
            unit="bytes",
            lowest=MIN_RECEIVE_BUFFER_BYTES,
            highest=INT_MAX,
            also=_SYSTEMS_CHOICE,
        ),
    ] = 524288
    maximum_time_between_pings: Annotated[
        int,
        Attribute(
            "a sender that is silent for longer is disconnected",
            unit="ms",
            lowest=MIN_TIME_BETWEEN_PINGS_MS,
            highest=INT_MAX,
            aliases=("maximum-time-between-ping",),
        ),
    ] = 60000
    manual_start: Annotated[bool, Attribute("do not start it before `start gateway-receiver`")] = False

    def check(self) -> None:
        if self.start_port > self.end_port:
            raise ConfigurationError(
                f"gateway receiver: start_port {self.start_port} is above end_port {self.end_port}; the range is from"
                " start to end, both included"
            )
        if self.start_port == 0 and self.end_port != 0:
            raise ConfigurationError(
                "gateway receiver: start_port 0 means any free port, and goes with end_port 0 only, not"
                f" {self.end_port}; begin the range with 1 or more"
            )

    def port_range_error(self, host: str, reason: str) -> GatewayReceiverError:
        """Returns the error of a receiver that can use no port of its range."""
        return GatewayReceiverError(
            f"gateway receiver: no port from {self.start_port} to {self.end_port} can be used on"
            f" {host or 'any address'}: {reason}; choose another start_port and end_port, or another bind_address"
        )


@dataclass(kw_only=True)
class RegionChanges:
    """The attributes of a region that can be changed while it exists (Geode's alter region)."""

    gateway_sender_ids: Annotated[
        Collection[str],
        Attribute(
            'the ids of its senders, separated by commas; "": none',
            option="gateway-sender-id",
            aliases=("gateway-sender-ids",),
            more="An id whose sender does not exist yet is accepted; events skip it until it does",
        ),
    ] = ()
    async_event_queue_ids: Annotated[
        Collection[str],
        Attribute(
            "the ids of asynchronous event queues, separated by commas",
            option="async-event-queue-id",
            aliases=("async-event-queue-ids",),
            more="An id whose queue does not exist yet is accepted; events skip it until it does",
        ),
    ] = ()


@dataclass
class RegionAttributes(Attributes, RegionChanges):
    """The attributes of a region."""

    kind, title = "region", "region"

    name: Annotated[str, Attribute("the region's name", read=to_region_name)]
    type: Annotated[
        str,
        Attribute(
            "REPLICATE, PARTITION, PARTITION_REDUNDANT, LOCAL, their _PERSISTENT and _PROXY forms, or NORMAL",
            read=to_region_type,
            more="A cache.xml says it by `refid`, or by `data-policy` and `scope`. Geode's `*_OVERFLOW` and"
            " `*_HEAP_LRU` types,"
            ' `data-policy="preloaded"` and `scope="global"` are refused by name',
        ),
    ] = "PARTITION"
    _: KW_ONLY
    total_num_buckets: Annotated[
        int,
        Attribute(
            "the number of buckets of a partitioned region",
            lowest=1,
            highest=MAX_BUCKETS,
            element="partition-attributes",
        ),
    ] = BUCKETS
    redundant_copies: Annotated[
        int | None,
        Attribute(
            "the replicas of each bucket on other members",
            lowest=0,
            highest=3,
            element="partition-attributes",
            unset="1 for `PARTITION_REDUNDANT*`, otherwise 0",
            more=f"They are on members that have the region: {Limitation.ONE_MEMBER.sentence()}",
        ),
    ] = None
    recovery_delay: Annotated[
        int,
        Attribute(
            "the time after which copies of a lost member are made on others",
            unit="ms",
            lowest=0,
            highest=INT_MAX,
            also={-1: "they are not made again"},
            element="partition-attributes",
        ),
    ] = -1
    startup_recovery_delay: Annotated[
        int,
        Attribute(
            "the time after which a new member gets replicas that are missing",
            unit="ms",
            lowest=0,
            highest=INT_MAX,
            also={-1: "it gets none"},
            element="partition-attributes",
        ),
    ] = 0
    unclean_recovery_timeout: Annotated[
        int | None,
        Attribute(
            "the time after which a bucket begins anew, empty, if nobody hears its last replicas any more",
            unit="ms",
            lowest=0,
            highest=INT_MAX,
            also={-1: "it waits until they are back, or are proved to be gone"},
            element="partition-attributes",
            unset="60000 without redundant copies, otherwise -1",
            more="Such replicas stop to answer a little earlier. Geode has no such attribute",
        ),
    ] = None
    local_max_memory: Annotated[
        int | None,
        Attribute(
            "this member's share of the region, beside the shares of others",
            unit="MB",
            lowest=0,
            highest=INT_MAX,
            element="partition-attributes",
            unset="as much as other members",
            more="With 0 it stores no entries, as with `PARTITION_PROXY`. Memory is not limited by it",
        ),
    ] = None
    min_in_sync_replicas: Annotated[
        int,
        Attribute(
            "a change is refused if fewer replicas than this, the primary included, would have it",
            lowest=1,
            highest=MAX_REPLICAS,
            more="Geode has no such attribute",
        ),
    ] = 1
    colocated_with: Annotated[
        str | None,
        Attribute(
            "a partitioned region with the same buckets",
            read=to_region_name,
            element="partition-attributes",
            more="That region has as many buckets, and cannot be destroyed before this one",
        ),
    ] = None
    disk_store_name: Annotated[
        str | None,
        Attribute(
            "the disk store of a persistent region",
            option="disk-store",
            aliases=("disk-store-name",),
            unset=DEFAULT_STORE,
        ),
    ] = None
    disk_synchronous: Annotated[
        DiskLevel,
        Attribute(
            "a change waits for the disk; `written`: it waits for the log, which is synced later",
            words=DISK_LEVELS,
            read=to_disk_level,
            option="enable-synchronous-disk",
            aliases=("disk-synchronous",),
        ),
    ] = True
    cache_listeners: Annotated[
        Collection[Any],
        Attribute(
            "listener classes package.module:Class, separated by commas",
            methods=("after_create", "after_update", "after_destroy"),
            element="cache-listener",
        ),
    ] = ()
    interest_policy: Annotated[
        str,
        Attribute(
            "of which buckets its listeners are told: those that this member leads, or all its replicas",
            words=("cache-content", "all"),
            element="subscription-attributes",
            more="Members may differ. In a replicated region every listener is told of all changes with both. In a"
            " partitioned one `all` needs as many replicas as members that store it, and is refused on a member that"
            " stores nothing",
        ),
    ] = "cache-content"

    @property
    def is_partitioned(self) -> bool:
        return self.type.startswith("PARTITION")

    @property
    def is_replicated(self) -> bool:
        return self.type.startswith("REPLICATE")

    @property
    def stores_entries(self) -> bool:
        """Whether this member has entries of the region. Otherwise it is an accessor."""
        return "PROXY" not in self.type and self.local_max_memory != 0

    @property
    def is_persistent(self) -> bool:
        return "PERSISTENT" in self.type

    @property
    def queue_ids(self) -> tuple[str, ...]:
        """The ids of all queues that its events enter, among all queues of the member (`core_id`)."""
        return (
            *self.gateway_sender_ids,
            *(f"{RESERVED_SENDER_PREFIX}{each}" for each in self.async_event_queue_ids),
        )

    @property
    def feeds_gateways(self) -> bool:
        """Whether events of this region are queued for senders. Otherwise they are counted as received, and
        not queued."""
        return self.is_partitioned or self.is_replicated

    def check(self) -> None:
        what = self.what
        if self.redundant_copies is None:
            self.redundant_copies = 1 if "REDUNDANT" in self.type else 0
        if not self.is_partitioned:
            for name, default in (
                ("redundant_copies", 0),
                ("total_num_buckets", BUCKETS),
                ("colocated_with", None),
                ("recovery_delay", -1),
                ("startup_recovery_delay", 0),
                ("unclean_recovery_timeout", None),
                ("local_max_memory", None),
            ):
                if getattr(self, name) != default:
                    raise ConfigurationError(
                        f"{what}: {name} {getattr(self, name)!r} is for partitioned regions only, and its type is"
                        f" {self.type}"
                    )
        if self.is_partitioned and self.min_in_sync_replicas > 1 + self.redundant_copies:
            raise ConfigurationError(
                f"{what}: min_in_sync_replicas {self.min_in_sync_replicas} is more than its {1 + self.redundant_copies}"
                " replicas (1 and redundant_copies); no change would ever be taken"
            )
        self._check_interest()
        if self.local_max_memory == 0 and self.is_persistent:
            raise ConfigurationError(
                f"{what}: with local_max_memory 0 it stores no entries on this member, and its type is {self.type};"
                " take PARTITION_PROXY, or give it memory"
            )
        if self.disk_store_name is not None and not self.is_persistent:
            raise ConfigurationError(
                f"{what}: disk_store_name {self.disk_store_name!r} has no effect with type {self.type}; take a type"
                " that is persistent, or leave it out"
            )
        if self.colocated_with == self.name:
            raise ConfigurationError(f"{what}: it cannot be colocated with itself")

    def _check_interest(self) -> None:
        what = f"{self.what}: interest_policy {self.interest_policy!r}"
        if self.interest_policy == "cache-content":
            return
        if not self.feeds_gateways:
            raise ConfigurationError(
                f"{what} has no effect with type {self.type}, which no other member changes; leave it out"
            )
        if not self.stores_entries:
            raise ConfigurationError(
                f"{what} needs replicas on this member, which stores no entries of it; take a type that is no PROXY,"
                " with a local_max_memory other than 0, or leave it out"
            )
        if self.startup_recovery_delay == -1:
            raise ConfigurationError(
                f"{what} needs replicas, and with startup_recovery_delay -1 a member that comes gets none; take 0 or"
                " more"
            )


_SHORTENED = "logs are shortened automatically when they are mostly history"


@dataclass
class DiskStoreAttributes(Attributes):
    """The attributes of a disk store: where files of queues and regions are."""

    kind, title = "disk-store", "disk store"
    refused: ClassVar[Mapping[str, str]] = {
        "auto_compact": _SHORTENED,
        "compaction_threshold": _SHORTENED,
        "allow_force_compaction": _SHORTENED,
        "max_oplog_size": "the size of a log's files follows from dir-size",
        "queue_size": "a write waits for a time, not for a number of other writes",
        "write_buffer_size": "all changes that wait for the disk are written as one block",
        "segments": "each queue and region has a log of its own",
        "disk_usage_warning_percentage": "a full disk is reported when it refuses a write",
        "disk_usage_critical_percentage": "a full disk refuses changes, and goes on when it has room",
    }

    name: Annotated[str, Attribute("the disk store's name", read=check_name)]
    _: KW_ONLY
    directories: Annotated[
        str | os.PathLike[str] | Iterable[Directory],
        Attribute(
            "directories, separated by commas, each with #MB as its limit",
            read=to_directories,
            option="dir",
            element="disk-dirs",
            unset="the member's folder",
            is_folder=True,
            more="Over the network, only directories in a folder of the member's own."
            ' In a cache.xml `<disk-dir dir-size="MB">`. A size of 0, or beyond the disk, is refused',
        ),
    ] = ()
    time_interval: Annotated[
        int,
        Attribute(
            "how long a change may wait for its write without `disk-synchronous`",
            unit="ms",
            lowest=0,
            highest=INT_MAX,
            more="It is never more than 10, whatever is given",
        ),
    ] = 1000

    def places(self) -> list[tuple[Path, int | None]]:
        """Returns each directory with its limit in MB (None: no limit)."""
        return [(Path(path), size) for path, size in to_directories(self.directories, f"{self.what}: directories")]


# The kinds of things that a site's configuration can hold, in the order in which a member makes them. Each kind may
# need those before it.
THINGS: dict[str, type[Attributes]] = {
    cls.kind: cls
    for cls in (
        DiskStoreAttributes,
        SenderAttributes,
        AsyncEventQueueAttributes,
        RegionAttributes,
        ReceiverAttributes,
    )
}

# The attributes that name classes of the user's, and the methods that these classes need.
CALLBACK_METHODS: dict[str, tuple[str, ...]] = {
    row.name: row.attribute.methods for cls in THINGS.values() for row in table(cls) if row.attribute.methods
} | {"gateway_conflict_resolver": ("on_event",)}


def check_callbacks_allowed(attributes: Mapping[str, Any], allowed: tuple[str, ...], what: str) -> None:
    """Checks the classes that attributes name which came over the network, before anything is imported.

    ConfigurationError if one of them is not `allowed`, or if there is no name where one should be.
    """
    for attribute in CALLBACK_METHODS:
        value = attributes.get(attribute)
        if value is not None and not removes_all(value):
            check_allowed(to_class_references(value, f"{what}: {attribute}"), allowed, f"{what}: {attribute}")


_ROWS = [row for cls in THINGS.values() for row in table(cls)]
_LOCAL = frozenset(row.name for row in _ROWS if row.attribute.is_local)
_FOLDERS = {row.name: row for row in _ROWS if row.attribute.is_folder}


def check_not_local(attributes: Mapping[str, Any], what: str) -> None:
    """Raises ConfigurationError if attributes that came over the network name a secret of a member's machine.

    Otherwise a user who may create a sender could send the first line of any file of the member to another site.
    """
    for name in sorted(_LOCAL & attributes.keys()):
        if attributes[name] not in (None, ""):
            raise ConfigurationError(
                f"{what}: {name} names a secret of the member's machine, and is not taken over the network; set"
                " security-username and security-password-file in the member's own properties file, or give the sender"
                " both in the member's own cache.xml"
            )


def check_from_outside(attributes: Mapping[str, Any], folders: Iterable[Path], what: str) -> None:
    """Does the same, and also raises ConfigurationError if attributes name a folder that is in none of `folders`.

    Names are compared, and links are not followed: nobody makes a link in a member's folder over the network.
    """
    check_not_local(attributes, what)
    for name in sorted(_FOLDERS.keys() & attributes.keys()):
        read = _FOLDERS[name].read(attributes[name], f"{what}: {name}")
        for path in (each for each, _ in read) if isinstance(read, tuple) else (read,) if read else ():
            if ".." in Path(path).parts or not any(Path(path).absolute().is_relative_to(each) for each in folders):
                raise ConfigurationError(
                    f"{what}: {name} {path} is in no folder of the member's own, and is not taken over the network;"
                    f" name a folder below {' or '.join(map(str, folders))}, put a link there, or give the path in the"
                    " member's own cache.xml"
                )


def rows_of(kind: str) -> tuple[Row, ...]:
    """Returns the attributes of a kind of thing."""
    return table(THINGS[kind])
