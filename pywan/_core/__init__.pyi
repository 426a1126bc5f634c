"""The compiled core: records, queues, tables and both sessions.

Each docstring is the first sentence of the one at run time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Literal, Self, final, overload

# An object with a contiguous buffer of bytes: bytes, bytearray, memoryview, numpy uint8.
_Bytes = bytes | bytearray | memoryview
# (form, bytes): how an object is stored and travels.
_Form = tuple[int, bytes]
# A column of keys, values or operations: see Column.
_ColumnLike = Any
# What a caller waits for: the disk (True), nothing (False), or that the log has its change ("written").
_Level = bool | Literal["written"]
# (stamp, site), and (site of origin, recipients, (member, thread, sequence)) of a remote change.
_Version = tuple[int, int]
_Origin = tuple[Any, ...]
# What the filters of attached queues said, for each queue that was asked; or the decision of another member.
_Decisions = Mapping["EventQueue", _Form | bool | None] | tuple[()] | bytes
_CallbackChange = Callable[..., str] | "FilterPath"

PARK_PARTITIONS: int
CREATE: int
UPDATE: int
DESTROY: int
# What happens when a change meets another site's version:
ASK_NOBODY: int  # The later version wins.
ASK_RESOLVER: int  # A resolver is to be asked.
ASK_DECIDED: int  # A resolver was asked, and let the change through.
# What a receiver is told about an event that went through the user's Python, or one of the FAILED_*:
APPLY_DONE: int  # The event was applied.
APPLY_LOST: int  # It lost against a later version.
APPLY_NOT_PRIMARY: int  # Another member leads its bucket; nothing was done.
FAILED_REGION_NOT_FOUND: int
# What a member is for a bucket, and a replica for its primary:
REPLICA_ABSENT: int
REPLICA_LEARNER: int
REPLICA_IN_SYNC: int
REPLICA_TAKING_OVER: int
REPLICA_PRIMARY: int
REPL_LINKS_MAX: int
REPLICA_LEARNING: int
REPLICA_WAITED: int
REPLICA_QUEUE_ONLY: int  # Added to these: it holds the queued events alone.
READ_LEASE_KEPT_US: int  # For so long a member keeps a promise that it gave to a primary.
FAILED_NO_MEMORY: int
FAILED_OTHER: int
FAILED_FORGOTTEN: int
FAILED_WITHHELD: int
FAILED_LISTENER: int
WITHHELD: str
# A call made while calls are served, one within the other, is refused beyond this depth.
CALL_DEPTH_MAX: int
RECORD_FORMAT: int
FRAME_HELLO: int
FRAME_WELCOME: int
FRAME_BATCH: int
FRAME_PING: int
FRAME_ERROR: int
FRAME_COMMIT: int
FRAME_COMMITTED: int
FRAME_KNOWN: int
FRAME_PROGRESS: int

def forks() -> int:
    """How often the process that loaded this module was forked until it became this one. 0: this is that process."""

# Keys and values

def set_codec_hooks(tag: Callable[[Any, bool], tuple[int | None, Any]], untag: Callable[[int, Any], Any]) -> None:
    """Sets the functions that write and read objects other than containers, texts, numbers and bytes."""

def encode_object(obj: Any) -> _Form:
    """(form, bytes) of a Python object as a value: as it is stored and sent."""

def encode_key_object(obj: Any) -> _Form:
    """(form, bytes) of a Python object as a key."""

def encoded_value(obj: Any) -> Encoded:
    """A value or callback argument as Encoded."""

def encoded_key(obj: Any) -> Encoded:
    """A key as Encoded."""

def decode_object(form: int, data: bytes) -> Any:
    """The Python object for a form and its bytes."""

def show_object(form: int, data: bytes) -> Any:
    """The Python object for a form and its bytes."""

def key_hash(key: Any) -> int:
    """The 64-bit hash that decides a key's bucket."""

class Undecodable:
    """Stands for a key or value, or a part of one, that is no Python object in this process."""

    def __init__(self, form: int, data: bytes, reason: str = "", cause: BaseException | None = None) -> None: ...
    @property
    def form(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def reason(self) -> str: ...
    @property
    def cause(self) -> BaseException | None: ...

class Encoded:
    """A key, value or callback argument that is encoded already."""

    def __init__(self, form: int, data: bytes) -> None: ...
    @property
    def form(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def plain(self) -> Any:
        """The object."""

# Columns

class Column:
    """A column of keys, values or operations as bytes for each row."""

    def __init__(self, obj: _ColumnLike, name: str = "column") -> None: ...
    def __len__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def form(self) -> int:
        """The form of every row that is not null."""

def as_columns(obj: _ColumnLike, name: str = "column") -> list[Column]:
    """`obj` as a list of columns that follow one another."""

def encode_rows(names: Iterable[str], columns: Iterable[_ColumnLike]) -> Column:
    """Makes one column of msgpack maps {name: value} from the rows of several columns (anything that `Column`
    takes)."""

def operation_codes(obj: _ColumnLike | None, n: int) -> bytes:
    """One code per row for `n` rows: 0 create, 1 update, 2 destroy."""

def _column_rows(column: Column) -> list[_Form]:
    """Every row as (form, bytes)."""

# Queues

class MemoryBudget:
    """The memory of one member that waits for other members and for listeners, at most `limit` bytes."""

    def __new__(cls, limit: int) -> Self: ...
    @property
    def limit(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def waits(self) -> int:
        """How often a caller, or a connection of callers, had to wait because it was full."""
    def used(self) -> dict[str, int]:
        """The bytes in use: of changes that copies have yet to acknowledge, of calls that wait, of changes that
        listeners are still to be told, and of what is remembered of calls."""

class MemoryLimit:
    """The memory of the process of member `name`, at most `limit` bytes. From `critical` bytes on, changes that need
    memory are refused, until there are less than `calm`."""

    def __new__(cls, name: str, limit: int, critical: int, calm: int) -> Self: ...
    def note(self, other: int, free: int, left: int | None = None) -> None:
        """Tells what was measured: how many bytes the process has beside the counted ones, how many of the counted ones
        are free for new entries, and how many the machine has left, if these are too few."""
    @property
    def is_short(self) -> bool:
        """Whether changes that need memory are refused."""
    @property
    def limit(self) -> int: ...
    @property
    def critical(self) -> int: ...
    @property
    def counted(self) -> int:
        """The bytes that regions and queues have from the system."""
    @property
    def used(self) -> int:
        """The bytes of the process: what was measured, and what was counted since."""
    @property
    def free(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def shorts(self) -> int:
        """How often the memory has become short."""

class LogBudget:
    """The bytes that several logs may take together: those in one directory of a disk store."""

    def __new__(cls, limit: int, used: int = 0) -> Self: ...
    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int:
        """Bytes of all logs, open or not."""
    def give(self, count: int) -> None:
        """Gives back the bytes of a log that was removed as a whole."""

class EventQueue:
    """The events of one sender on this member, in units of order served by `dispatchers`: `partitions` own ones, and
    runs of stream partitions, one for each bucket of a region that several members hold."""

    reachable: bool
    def limit_memory(self, memory: MemoryLimit) -> None:
        """Counts the queue's memory for this limit of its member."""
    def set_full_policy(self, policy: str, timeout_ms: float = 0.0, slow_disk_ms: float = 10000.0) -> None:
        """Says what an enqueue does if it finds no room: "block" (it waits for `timeout_ms`, then it is refused),
        "refuse", "drop-oldest" or "drop-newest" (both counted)."""
    def __new__(
        cls,
        name: str,
        *,
        remote_site: int | None = 0,
        partitions: int = 1,
        dispatchers: int = 1,
        memory_limit: int = ...,
        directory: str | PathLike[str] | None = None,
        conflate: bool = False,
        by_thread: bool = False,
        by_bucket: bool = False,
        log_directory: str | PathLike[str] | None = None,
        log_id: int = 0,
        synchronous: _Level = True,
        flush_ms: int = 10,
        log_budget: LogBudget | None = None,
        log_known: int = 0,
        log_may_use_reserve: bool = False,
        salvage: bool = False,
        environment: Any = None,
        mount: int = 0,
    ) -> Self: ...
    def __len__(self) -> int: ...
    running: bool
    """Whether the sender accepts events; what comes otherwise is counted as dropped."""
    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int:
        """Bytes of the events in the queue, as laid out."""
    @property
    def partitions(self) -> int:
        """How many own partitions there are. Those of streams follow them (`runs`)."""
    def add_run(self, region: str, buckets: int) -> int:
        """Makes stream partitions for the buckets of a region, or takes those that it had before if they are free."""
    def runs(self) -> list[tuple[str, int, int]]:
        """(region, first partition, number of buckets) of each run of stream partitions."""
    def lead(self, partitions: Iterable[int], leads: bool, in_order: bool = False) -> None:
        """Says whether this member sends the events of these stream partitions."""
    def set_runners(self, members: Iterable[int]) -> None:
        """Sets on which incarnations, by their numbers, the sender runs, as the tables say."""
    def run_of(self, region: str) -> int | None:
        """The first partition of the run that a region feeds now. None: it feeds none."""
    def lacking(self, first: int, count: int) -> list[int | None]:
        """For each of `count` partitions, from `first` on: through which sequence other members may have events that
        this queue has not, as it is fed since a later moment than theirs. 0: it lacks none. None: it is being
        attached."""
    def older_events(
        self, partition: int, timeline: int, after: int, through: int, most: int
    ) -> tuple[int, int | None, int, _Record] | None:
        """The events of a stream behind `after` through `through`, about `most` bytes of them and one at least, for a
        queue that lacks them: (through which sequence all have left this queue, through which sequence it lacks events
        itself, through which sequence these are all, the events). None: the stream has another timeline."""
    def take_older(self, partition: int, timeline: int, removed: int, events: _Record) -> bool:
        """Puts the answer of another queue's `older_events` into this one, which lacks them. False: something of the
        partition is on its way, or it has another timeline; nothing was changed."""
    def end_lacking(self, partition: int, timeline: int, through: int) -> None:
        """All members were asked for what the partition lacks, which was all through `through`."""
    def lack_events_behind(self, partition: int, timeline: int, after: int) -> bool:
        """Another queue has events of a stream behind `after`."""
    def run_events(self, first: int, count: int) -> list[int]:
        """How many events are queued in each of `count` partitions, from `first` on."""
    @property
    def led_events(self) -> int:
        """How many queued events this member sends."""
    def streams(self) -> list[tuple[int, str, int, int, bool, int]]:
        """What is known of each stream partition: (partition, region, bucket, timeline, whether this member leads it,
        through which sequence another member says that it is settled)."""
    @property
    def persistent(self) -> bool: ...
    @property
    def synchronous(self) -> _Level:
        """Whether an enqueue is done only when it is on the disk."""
    @property
    def log_id(self) -> int:
        """The id of the log, the same after a restart; 0 without persistence."""
    @property
    def numbering(self) -> int:
        """What receivers know the queue by, the same after a restart: the log's id, until `renew`."""
    @property
    def mount(self) -> int:
        """Identifies this opening of the log; 0 without persistence."""
    def is_past(self, mount: int, partition: int, last: int, acknowledged: int = 0) -> bool:
        """Whether this queue has or had the events that were sent in `mount`, up to `last`, under these sequences, and
        has settled those up to `settled` too."""
    def renew(self, old: int, numbering: int, timeout: float = 60.0) -> None:
        """Takes another numbering in place of `old`."""
    def recovery(self) -> dict[str, Any]:
        """What opening found: the number of records in the log, and the bytes of a torn end that were cut."""
    @property
    def broken(self) -> str | None:
        """Where a check of our own failed on this queue."""
    def log_state(self) -> dict[str, Any]:
        """Sizes of the log, why writing fails now (None: it does not), and how far each partition is on the disk."""
    def commit_loop(self) -> None:
        """Writes what is pending until `stop_log`."""
    def commit_once(self, checkpoint: bool = True) -> bool:
        """Runs one round of the committer in the caller's thread, for a queue without a `commit_loop`."""
    def write_once(self) -> bool:
        """Does what a waiting caller does if one write is enough."""
    def stop_log(self) -> None:
        """Makes the log take nothing more, and `commit_loop` return once everything is on the disk (or cannot get
        there)."""
    def wait_durable(self, timeout: float = 60.0) -> None:
        """Returns when everything enqueued so far is on the disk."""
    def wait_written(self, timeout: float = 60.0) -> None:
        """Returns when everything enqueued so far is as durable as `synchronous` says."""
    def wait_records(self, given: int) -> None:
        """Returns when the log has the first `given` records that it ever got, as durable as `synchronous` says."""

    def wait_removed(self, timeout: float = 60.0) -> None:
        """Returns when everything removed so far is removed on the disk too."""
    def counts(self) -> dict[str, int]:
        """The ledger's counters and the queue's size, taken at one moment."""
    def positions(self) -> list[tuple[int, int, int]]:
        """(removed, peeked, appended) of every partition, the own ones first."""
    def oldest_ms(self) -> int | None:
        """Milliseconds since 1970 at which the oldest queued event was made."""
    def clear(self) -> int:
        """Drops everything, counted as `dropped_cleared`, and returns how many."""
    def wake(self) -> None:
        """Wakes every dispatcher, so that it sees what it was told."""
    def append_record(self, record: _Bytes, partition: int = 0) -> None:
        """Appends one record in wire form, after a check."""
    def records(self, limit: int = 100) -> list[tuple[int, int, _Record]]:
        """Up to `limit` queued events as (partition, sequence, record bytes), oldest first within each partition."""
    def peek(self, partition: int, count: int) -> list[_Record]:
        """Takes up to `count` records of a partition as bytes, as a dispatcher would."""
    def peek_with_positions(self, partition: int, count: int) -> list[tuple[int, _Record]]:
        """The same, as (sequence, bytes) of each record."""
    def remove(self, partition: int, through: int) -> int:
        """Drops every event up to and including `through`: the receiver has them."""
    def make_hole(self, partition: int, sequence: int) -> None:
        """Makes one event a hole, as a filter would."""
    def rewind(self, partition: int) -> None:
        """Makes the dispatcher send again what was peeked and not removed, as possible duplicates."""
    def keep_acknowledged(self, keep: bool) -> None:
        """With `keep`, events that another member tells as settled stay until `take_acknowledged` takes them."""
    def take_acknowledged(self, count: int) -> list[tuple[_Record, _Position]]:
        """Waits until another member tells events as settled that this one keeps (`keep_acknowledged`), or until
        `keep_acknowledged` is called."""
    @property
    def parked_missed(self) -> int:
        """How many events that another member has parked were not put into `parked`: others have them."""
    def park_in(self, parked: EventQueue) -> None:
        """From now on `parked` takes replicas of the events that another member has parked and tells of."""
    def replay_into(self, other: EventQueue, force: bool = False, stays: int = -1) -> int:
        """Moves every event to the end of another queue."""
    def lowest_copied(self, until_empty: bool = False) -> dict[int, int]:
        """{site of origin: the lowest stamp} of the events that were put here as replicas (recovered, parked, replayed)
        since the last call."""

_Position = tuple[int, int, bool]  # (partition, sequence, whether it may have been applied before)
_Record = bytes  # Outside the class, whose property `bytes` hides the type.

# Regions

class ReplLinkState:
    """The state of the replication link to one remote member, shared by the change logs of all regions."""

    def __init__(self, *arguments: Any, **named: Any) -> None: ...
    def set_read_lease(self, until_us: int) -> None:
        """Sets the end of the read lease (`monotonic_us`): until then the remote member adopts no later epoch without
        telling this member."""
    def answered(self, at_us: int) -> None:
        """Notes an answer of the remote member, with its time (`monotonic_us`)."""

class Changelog:
    """The newest changes of each bucket of one region, from the first change that a replica may lack."""

    def __init__(self, buckets: int, shards: int, min_isr: int = 1, budget: MemoryBudget | None = None) -> None:
        """`min_isr`: a bucket with fewer in-sync replicas, the primary included, takes no change. `budget`: the
        member's, which counts what the change log holds."""
    def behind(self) -> dict[int, int]:
        """By replication link: how many bytes of changes the replica at the end of the link has yet to acknowledge."""
    def set_role(
        self,
        bucket: int,
        role: int,
        timeline: int,
        epoch: int,
        transfer: int = 0,
        leader: int = 0,
        queue_only: bool = False,
    ) -> None:
        """Sets the role of this member for a bucket (REPLICA_*). The member adopts the epoch: lower epochs are refused
        from now on. `leader`: the number of the primary's incarnation; only changes from the leader's replication link
        are taken; 0: the leader is unknown. `queue_only`: as a replica or learner the member holds the queued events
        alone."""
    def keep_events(self, bucket: int) -> tuple[int, int]:
        """Keeps the queued events of a lost bucket that this member does not lead: the events move to the queues' own
        partitions and leave from these partitions. `set_role` follows. Returns how many events are kept, and how many
        are lost for want of memory."""
    def set_replicas(self, bucket: int, replicas: Iterable[tuple[int, int, int, int]]) -> None:
        """Sets the replicas to which a primary sends: (replication link, REPLICA_*, transfer, acknowledged) for each
        replica. A queue-only replica has REPLICA_QUEUE_ONLY added. The known state of a remaining replica is kept."""
    def keep_notifications(self, by_primary: bool = False, says: bool = False) -> None:
        """From now on, changes that this member makes or follows are kept as pending notifications
        (`next_notification`)."""
    def set_notification_limit(self, limit_us: int) -> None:
        """Sets how long a listener may stand still before its pending notifications are dropped."""
    def next_notification(self, timeout_ms: int) -> tuple[str, tuple[int, bytes] | None, bytes, bool] | None:
        """Returns the next replicated change for the listeners: (operation, the value before, the record, whether a
        remote member may have notified listeners too)."""
    def notifications_state(self) -> dict[str, int]:
        """The state of the pending notifications."""
    def relieve(self) -> None:
        """Drops the oldest pending notifications of a listener that stands still, if callers wait for the memory."""
    @property
    def notifications_dropped(self) -> int:
        """The number of changes that were dropped because listeners stood still, at this member or a remote one."""
    def notified_through(self, bucket: int) -> int:
        """The sequence through which listeners were notified at this member, the primary of a bucket."""
    def heard_waits(self, bucket: int, after: int = 0) -> tuple[list[int], list[bytes]]:
        """Returns the pending notifications of a bucket: their sequences in order, and the records behind sequence
        `after`. For simulations that check each change."""
    def end_notifications(self) -> int:
        """Ends the notifications. Returns the number of pending notifications that this member should have
        delivered."""
    def log_end(self, bucket: int) -> int:
        """The sequence of the newest change of a bucket."""
    def fetch(self, bucket: int, after: int) -> bytes:
        """The changes of a bucket behind sequence `after`, as replication links carry them."""
    def state(self, bucket: int) -> dict[str, Any]:
        """The member's state of a bucket, with the state of the replicas if the member leads the bucket."""
    def callers(self, bucket: int) -> set[int]:
        """The clients (`client_id`) in the deduplication table of a bucket, as a set."""
    def forget(self, bucket: int, caller: int) -> bool:
        """Forgets the calls of a departed client, and refuses the client from now on, at this member and all
        replicas."""
    def states(self) -> dict[int, dict[str, Any]]:
        """The state of each bucket that this member has, by number."""
    def acknowledged(self, bucket: int, repl_link: int, timeline: int, epoch: int, sequence: int) -> bool:
        """The replica at the end of a replication link has all changes of the bucket through `sequence`."""
    def told(self, bucket: int, timeline: int, epoch: int, high_watermark: int, notified: int = 0) -> None:
        """Adopts the primary's high watermark of the bucket, and the sequence through which listeners are notified."""
    def set_holders(self, bucket: int, members: Iterable[int]) -> None:
        """Sets which incarnations, by their numbers, hold the bucket in sync, or are about to leave, as the cluster
        metadata say."""
    def announce_removals(self, bucket: int) -> None:
        """Announces once more, on all replication links, the events that have left the queues of the bucket, with the
        reasons."""
    def may_read(self, bucket: int) -> bool:
        """Whether this member, as primary of the bucket, may answer a read without asking the replicas."""
    def add_repl_link(self, number: int, repl_link: ReplLinkState) -> None:
        """Names a replication link."""
    def remove_repl_link(self, number: int) -> None:
        """Forgets a replication link that no bucket uses any more."""
    def set_lease(self, until_us: int) -> None:
        """Sets until when the coordinator's lease runs, by `monotonic_us`."""

    def set_primary_until(self, until_us: int | None) -> None:
        """Sets until when, by `monotonic_us`, the member takes changes, raises the high watermark and answers reads as
        a primary. If the time is not over, the high watermark now also covers changes that were held back. None: for
        ever."""

def monotonic_us() -> int:
    """Microseconds by the clock of leases and read leases."""

def simulate_monotonic_us(now_us: int) -> None:
    """Sets the result of `monotonic_us` in the whole process until the next call; 0: the system's time."""

class Bell:
    """Wakes a thread that sleeps, so that it looks earlier than it would."""

    def ring(self) -> None: ...
    def wait(self, seconds: float) -> bool:
        """Waits until the bell rings, or for so many seconds."""

class Clock:
    """The hybrid logical clock that all regions of a member share."""

    def take(self, now_ms: int | None = None) -> int:
        """The next stamp: milliseconds << 16 | counter."""
    def raise_low(self) -> int:
        """Raises the lowest stamp that a local change can get, and returns it."""
    def see(self, stamp: int) -> None:
        """Makes every later stamp of this clock greater than `stamp`."""
    def receive(self, stamp: int) -> None:
        """Takes a stamp that the clock of another site gave less than a minute ago."""
    def lower(self) -> bool:
        """Sets the clock back to the time if its stamps are so far ahead that other sites park the events."""
    now_ms: int
    """The time, as far as the wall clock is believed: milliseconds since 1970."""
    held_ms: int
    """By how much the wall clock is ahead of what is believed of it; 0: it is believed."""
    ahead_ms: int
    """By how much the highest stamp handed out or seen is ahead of the time; 0: it is not."""
    def set_time(self, now_ms: int, boot_ms: int = 0) -> None:
        """Sets this clock's time to `now_ms` until the next call; 0: the system's time."""

def trim_memory(least: int = 0) -> bool:
    """Gives free pages of the heap back to the system, if regions and logs have freed at least `least` bytes since the
    last time."""

class EntryEvent:
    """The event that a `CacheListener` gets after a change."""

    def __init__(
        self,
        region: Any,
        operation: str,
        key: Any,
        old_value: Any = None,
        new_value: Any = None,
        callback_argument: Any = None,
        is_origin_remote: bool = False,
        origin_site: int = 0,
        event_id: tuple[int, int, int] = (0, 0, 0),
        possible_duplicate: bool = False,
    ) -> None: ...
    @property
    def region(self) -> Any:
        """The `Region`."""
    @property
    def operation(self) -> str:
        """The operation: "create", "update" or "destroy"."""
    @property
    def key(self) -> Any:
        """The key."""
    @property
    def old_value(self) -> Any:
        """The value before the change. None: there was none."""
    @property
    def new_value(self) -> Any:
        """The value after the change. None for a destroy."""
    @property
    def callback_argument(self) -> Any:
        """The object that the caller gave with the change."""
    @property
    def is_origin_remote(self) -> bool:
        """Whether another site made the change."""
    @property
    def origin_site(self) -> int:
        """The id of the site that made the change."""
    @property
    def event_id(self) -> Any:
        """The event's identity, an `EventSequenceID`. Filters and listeners get the same one, at every site."""
    @property
    def possible_duplicate(self) -> bool:
        """Whether a listener may have been told of the change before, at this member or another one."""

class CallbackLock:
    """A region's callbacks run under the lock, so they handle one change at a time."""

    def __new__(cls, region: str) -> Self: ...
    @property
    def region(self) -> str: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

def region_of_callback() -> str | None:
    """The name of the region whose callbacks this thread runs, the innermost one."""

class RegionCallbacks:
    """The compiled half of the path that a region's changes take through user code."""

    resolver: Any
    def __new__(cls, region: Any, site: int, *args: Any) -> Self: ...
    @property
    def lock(self) -> CallbackLock: ...
    @property
    def region(self) -> Any: ...
    @property
    def site(self) -> int: ...
    @property
    def listeners(self) -> tuple[Any, ...]: ...
    @property
    def told(self) -> Any: ...
    def set_listeners(self, listeners: Iterable[Any], is_own: Callable[[Any, str], bool]) -> None:
        """Replaces the listeners, and looks up their methods."""
    def tell_event(self, event: EntryEvent) -> None:
        """Calls the listeners for an event."""
    def notify_listeners(self, changelog: Changelog, timeout_ms: int) -> int:
        """Notifies the listeners of replicated changes that this member made or followed, as long as changes are due,
        up to a limit."""

class Condition:
    """The condition of a conditional change, as in RegionCore.change_if, and afterwards the value that the table
    had."""

    def __new__(cls, kind: str, expected: Any = None) -> Self: ...

class RegionCalls:
    """The compiled calls of a region for users."""

    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def is_closed(self) -> bool:
        """Whether the region was destroyed, or its cache was closed."""
    @property
    def applied(self) -> int:
        """Remote changes that took effect."""
    @property
    def conflicts(self) -> int:
        """Remote changes that lost against a later version."""
    @property
    def memory_bytes(self) -> int:
        """Bytes allocated for entries and slots."""
    @property
    def tombstones(self) -> int:
        """Destroyed keys that are remembered."""
    def put(self, key: Any, value: Any, callback_argument: Any = None) -> None:
        """Stores `value` under `key` and hands the event to the attached senders."""
    def get(self, key: Any, default: Any = None) -> Any:
        """The value under `key`, or `default`."""
    def destroy(self, key: Any, callback_argument: Any = None) -> None:
        """Removes `key` everywhere."""
    def local_destroy(self, key: Any) -> None:
        """Removes the entry on this member only; nothing is sent."""
    def invalidate(self, key: Any) -> None:
        """Drops the value and keeps the key with its version."""
    def put_columns(
        self,
        keys: _ColumnLike,
        values: _ColumnLike | None,
        *,
        operations: _ColumnLike | None = None,
        timestamps: Any | None = None,
    ) -> int:
        """Changes row by row from two columns, in one call without the GIL."""
    def wait_durable(self) -> None:
        """Returns when all changes and events so far are on the disk, as far as their logs are synchronous."""

class RegionCore(RegionCalls):
    """The compiled half of a region: its table and versions."""

    def __new__(
        cls,
        name: str,
        clock: Clock,
        *args: Any,
        site: int = 0,
        member: int = 0,
        stores: bool = True,
        forwards: bool = True,
        **kwargs: Any,
    ) -> Self: ...
    def limit_memory(self, memory: MemoryLimit) -> None:
        """Counts the memory of the region for this limit of the member."""
    @property
    def free_bytes(self) -> int:
        """The bytes that the region has from the system, free for new entries."""
    def share(self, changelog: Changelog, route: Any, reads_replicas: bool = False, content: bool = False) -> None:
        """From now on several members hold the region: its changes go into `changelog`, and are replicated when all
        in-sync replicas have the changes."""
    @property
    def is_shared(self) -> bool:
        """Whether several members hold the region: the next change goes into a change log."""
    @property
    def route(self) -> Any:
        """The object that makes the calls about keys whose primary is another member."""
    @property
    def shards(self) -> int:
        """How many shards the region's table has."""
    def extend(self, bucket: int, timeline: int, epoch: int, first_sequence: int, entries: bytes) -> int:
        """Applies changes that a remote replica of the bucket has, as `Changelog.fetch` returned the changes."""
    @property
    def queues(self) -> tuple[EventQueue, ...]:
        """The attached queues."""
    @property
    def has_callback_path(self) -> bool:
        """Whether changes go through the user's Python."""
    @property
    def is_inherited(self) -> bool:
        """Whether another process made the region, and this process was forked from it."""
    def attach(
        self,
        queues: Iterable[EventQueue],
        callback_change: _CallbackChange | None = ...,
        asking: Collection[EventQueue] = (),
    ) -> None:
        """Replaces the attached senders by these EventQueues, and recomputes which sites new events will reach: the
        remote sites of the running senders."""
    def end_feeds(self, now: bool = False) -> bool:
        """Returns whether the queues that are attached no more have only replicated events of a shared region."""
    def set_callback_path(self, change: _CallbackChange | None) -> None:
        """From now on changes go through `change(operation, key, value, callback_argument)`, which calls the user's
        Python."""
    def close(self) -> None:
        """Refuses every operation from now on."""
    def open_log(
        self,
        directory: str,
        *,
        log_id: int,
        synchronous: _Level = True,
        flush_ms: int = 10,
        log_budget: LogBudget | None = None,
        log_known: int = 0,
        salvage: bool = False,
        environment: Any = None,
        wait: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Makes the region persistent: recovers what the log in `directory` holds, and logs every change from now
        on."""
    @property
    def persistent(self) -> bool: ...
    def commit_loop(self) -> None:
        """Writes pending records until `stop_log` is called."""
    def commit_once(self) -> bool:
        """Runs one round of the committer in the caller's thread, for logs without a `commit_loop`."""
    def write_once(self) -> bool:
        """Writes the pending records in the caller's thread, as a caller does that waits for a log which is synced
        later."""
    def stop_log(self) -> None:
        """Makes `commit_loop` return when everything is on the disk, or cannot get there."""
    def log_state(self) -> dict[str, Any]:
        """Sizes of the log, and the reason why writing fails now (None: writing does not fail)."""
    def unwritten(self, limit: int = 10) -> tuple[int, list[Any]]:
        """(how many changes are not on the disk, up to `limit` of their keys)."""
    def change(
        self,
        operation: int,
        key: Any,
        value: Any = None,
        callback_argument: Any = None,
        decisions: _Decisions | None = None,
        version: _Version | None = None,
        origin_: _Origin | None = None,
        ask: int = 0,
        timestamp_ms: int = 0,
        condition_: Condition | None = None,
        alone: bool = False,
    ) -> str:
        """Makes one change."""
    def unasked(self, origin_: _Origin, decisions: _Decisions) -> list[EventQueue]:
        """The queues that an event with this origin would enter, and whose filters have to be asked first."""
    def apply_filtered(self, record: _Record, possible_duplicate: bool, place: bytes | None) -> bool | None:
        """Applies an event of a remote site, if filters of senders are the region's only callbacks, and no other member
        has the region."""
    @property
    def entries_here(self) -> int:
        """How many entries this member holds."""
    def next_event_id(self) -> tuple[int, int, int]:
        """(member, thread, sequence) of an event that this thread makes now."""
    def decide(
        self,
        operation: int,
        key: Any,
        version: _Version | None = None,
        ask: int = 0,
        value: Any = None,
        condition_: Condition | None = None,
        flags: int = 0,
    ) -> str:
        """Returns what `change` would return, and changes nothing."""
    def change_if(
        self,
        kind: str,
        operation: int,
        key: Any,
        value: Any = None,
        expected: Any = None,
        callback_argument: Any = None,
    ) -> tuple[bool, bool, Any]:
        """Makes one local change if the key is as `kind` says."""
    def lookup(self, key: Any) -> tuple[Any, int, int, bool] | None:
        """(value, stamp, site, is_live) of a key, or None."""
    def show(self, key: Any, default: Any = None) -> Any:
        """As `get`, but a value that is no object in this process is shown as Undecodable."""
    def clear(self) -> int:
        """Removes every entry of the region on this member, and returns how many there were."""
    def release_entries(self) -> None:
        """Gives back the memory of a closed region's entries, because references to the region may live for a long time
        yet."""
    def expire_tombstones(self, before_ms: int, below: int = 18446744073709551615) -> tuple[int, int]:
        """Drops tombstones with stamps below `below`."""
    def watch_tombstones(self, limit: int, bell: Bell) -> bool:
        """From now on the bell rings when tombstones take more than `limit` bytes."""
    def keep_tombstones(self, below: int, before_ms: int, limit: int) -> bool:
        """Drops the tombstones that no event needs any more: no event with a stamp below `below` can come."""
    def fix_stamps(self) -> None:
        """Returns when every local change with a stamp below the clock's `raise_low` is in the queues."""
    @property
    def tombstone_state(self) -> dict[str, int]:
        """The region's memory of destroyed keys: the numbers of whole and of shrunk tombstones, their bytes, the stamp
        up to which further tombstones were forgotten (0: none were), and the stamp up to which some may be gone for any
        reason."""
    def copy_into(self, to: RegionCore, scan_position: int = 0) -> int | None:
        """Copies every entry from `scan_position` on with its version into a second region; tombstones and invalidated
        entries too."""
    @property
    def bucket_count(self) -> int: ...
    def bucket_of(self, key: object) -> int:
        """The number of the bucket of a key, whether the key is present or not."""
    def bucket(self, number: int) -> dict[str, Any]:
        """A bucket's role, its shards, its entries, its tombstones (whole and shrunk), and their bytes."""
    def bucket_digest(self, number: int) -> int:
        """A digest of a bucket, equal for two regions that hold the same keys, versions and contents in the bucket;
        tombstones have no part in the digest."""
    def scan_bucket(self, number: int) -> bytes:
        """The live entries of a bucket, packed as `scan` packs them."""
    def copy_bucket(self, number: int, to: RegionCore) -> None:
        """Copies a bucket's entries into the same bucket of a second region with as many buckets."""
    def drop_bucket(self, number: int) -> int:
        """Takes everything out of a bucket, tombstones too, and returns how many there were."""
    def scan_keys(self) -> Iterator[Any]:
        """Gives every live key, shard by shard."""
    def scan(self, scan_position: int = 0, limit: int = 10000) -> tuple[int | None, bytes]:
        """(next position or None, entries): the live entries of one shard or more, packed to compare sites."""
    def one_wait(self) -> AbstractContextManager[Any]:
        """A context for many changes: this thread's changes in the region are waited for once, at the end of the
        context."""
    def one_deadline(self) -> AbstractContextManager[Any]:
        """A context for a call that makes several calls in this thread: all of the inner calls end by the deadline of
        the outer call."""

class RegionFace(RegionCalls):
    """The facade of a region, which users hold: the compiled calls."""

    def __new__(cls, core: RegionCore) -> Self: ...
    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]], callback_argument: Any = None) -> None:
        """Puts every entry of a mapping or of pairs, in order, as an event of its own."""
    def get_all(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Returns a dict with the value of each given key, in order; None for a key without a value."""
    def update(self, entries: Any = (), /, **more: Any) -> None:
        """Puts every entry of a mapping or of pairs, and the keyword arguments, as `put_all` does."""
    def remove_all(self, keys: Iterable[Any], callback_argument: Any = None) -> int:
        """Destroys every given key that is present, in order, and returns the number of destroyed keys."""

def core_of_face(face: RegionFace) -> RegionCore:
    """The core behind a facade, for the member that holds the region."""

def region_name(number: int) -> str | None:
    """The name that has this number in this process."""

def record_fields(record: bytes) -> dict[str, Any]:
    """All fields of a record's head by their names, and the fields behind the head."""

def make_record(
    region: str,
    operation: int,
    key: tuple[int, bytes],
    value: tuple[int, bytes],
    callback: tuple[int, bytes],
    version: tuple[int, int],
    origin_site: int,
    recipients: bytes,
    event_id: tuple[int, int, int],
    flags: int = 0,
) -> bytes:
    """Returns the record of one event of that region in wire form: what `record_fields` reads."""

# Filters

OPERATIONS: tuple[str, str, str]

@final
class GatewayQueueEvent:
    """An event on its way through a gateway sender's queue. Filters get it."""

    def __init__(
        self,
        region: str,
        operation: str,
        key: Any,
        value: Any,
        callback_argument: Any,
        *,
        creation_timestamp: int,
        origin_site: int,
        possible_duplicate: bool = False,
        event_id: tuple[int, int, int] = (0, 0, 0),
    ) -> None: ...
    @property
    def region(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def callback_argument(self) -> Any: ...
    @property
    def creation_timestamp(self) -> int: ...
    @property
    def origin_site(self) -> int: ...
    @property
    def possible_duplicate(self) -> bool: ...
    @property
    def event_id(self) -> Any: ...

def event_of_record(record: bytes, possible_duplicate: bool = False) -> GatewayQueueEvent:
    """Returns the event that a record in wire form holds."""

class FilterPath:
    """The path of changes through the filters of a region's senders, if the region has no other callbacks: an argument
    of `RegionCore.set_callback_path`."""

    def __init__(
        self,
        change: Callable[..., str],
        lock: Any,
        filters: Mapping[EventQueue, EventFilters],
        park: Callable[[str, Encoded, Encoded, Encoded, _Origin, _Version | None, int, list[EventQueue]], None],
    ) -> None:
        """`change`: the path of changes that cannot be made here."""
    @property
    def __self__(self) -> Any:
        """The object whose method `change` is."""

class EventFilters:
    """Calls the methods of a sender's filters."""

    def __init__(
        self,
        *,
        before_enqueue: Iterable[Callable[[GatewayQueueEvent], Any]] = (),
        before_transmit: Iterable[Callable[[GatewayQueueEvent], Any]] = (),
        after_acknowledgement: Iterable[Callable[[GatewayQueueEvent], Any]] = (),
        substitute: Callable[[GatewayQueueEvent], Any] | None = None,
        withholds: bool = True,
    ) -> None:
        """`withholds`: an event whose substitution filter fails does not leave."""
    def failed(self, name: str, method: Any, event: GatewayQueueEvent, error: BaseException) -> None:
        """Called if the `method` of a filter raised `error` for `event`."""
    @property
    def decides_enqueue(self) -> bool:
        """Whether a filter must see an event before it is queued."""
    @property
    def decides_transmit(self) -> bool:
        """Whether a filter must see an event before it is sent."""
    @property
    def wants_acknowledgements(self) -> bool:
        """Whether a filter wants to hear of acknowledged events."""
    def substitute_for(self, event: GatewayQueueEvent) -> _Form | None:
        """Returns the (form, bytes) that the substitution filter gives."""
    def decide_enqueue(self, event: GatewayQueueEvent) -> Any:
        """Returns None (enqueue the event), False (it is filtered), (form, bytes) of a value to send instead of its
        own, or WITHHELD (it must not leave, since the substitution filter failed)."""
    def tell_acknowledged(self, records: Iterable[tuple[_Record, _Position]]) -> None:
        """Tells the filters that these events were acknowledged."""

# Frames

def pack_frame(type: int, payload: _Bytes, id: int = 0, count: int = 0) -> bytes:
    """Returns a whole frame as bytes, for handshakes and tests."""

def check_frame_header(head: _Bytes) -> tuple[int, int, int]:
    """(type, payload length with padding, payload length) of a 32-byte frame header."""

def check_frame(data: _Bytes) -> tuple[int, int, int, bytes]:
    """(type, id, count, payload bytes) of a whole frame."""

def crc32c(data: _Bytes, crc: int = 0) -> int:
    """CRC32C (Castagnoli) of a contiguous buffer, continued from `crc`."""

checks_stop_the_process: bool
"""Whether a failed check of our own ends the process, as in debug and sanitizer builds.

Otherwise the queue or log that it is about is broken.
"""

def crc32c_portable(data: _Bytes, crc: int = 0) -> int:
    """The table form of `crc32c`: its oracle in tests."""

def measure_message(payload: _Bytes, most: int, deepest: int) -> tuple[int, str | None]:
    """Returns (values in a msgpack message, None), or (values until then, why it is refused)."""

def queue_counter_rows() -> list[tuple[int, str, str, str, str, str]]:
    """(number, field, statistic, entry of the ledger, the entry that it is a part of, what it counts) for each counter
    of a queue."""

def receiver_counter_rows() -> list[tuple[int, str, str, str, str, str]]:
    """The same for each counter of a receiver."""

def failure_rows() -> list[tuple[int, str]]:
    """(number, words) for each reason why a receiver does not apply an event."""

def record_field_rows() -> list[tuple[int, str, str]]:
    """(bits, name, about) for each field of a record's head, in their order and without gaps."""

def failure_text(reason: int) -> str:
    """The words for a reason of failure."""

def parked_reason(partition: int) -> int:
    """The reason for which events are in a partition of a queue of parked events."""

def lz4_without_gil() -> bool:
    """Whether batches are packed by lz4's C functions."""

# Sessions

class Session:
    """One end of a connection."""

    def driven_by(self, clock: Callable[[], int], send: Callable[[bytes], Any] | None = None) -> None:
        """Gives the session what it asks of its driver in the middle of long work."""
    def receive_data(self, data: _Bytes, now_us: int = 0) -> bool:
        """Takes bytes that arrived at `now_us`, in microseconds of a clock that only runs forward (0: the time told
        last)."""
    def data_to_send(self, now_us: int = 0, unsent: int = 0) -> bytes:
        """Returns bytes that should leave now, at `now_us` (0: the time told last)."""
    def next_us(self, now_us: int = 0) -> int | None:
        """When to call `data_to_send` again, though no bytes come in and none wait to leave."""

class ReadLease:
    """The read lease for another member: until then this member adopts no later epoch without saying so."""

    def left_us(self, now_us: int = 0) -> int:
        """Returns the rest of the read lease at `now_us`; 0: now."""

class ReplSenderSession(Session):
    """The sending end of replication link `number`."""

    @property
    def runs_beside(self) -> int: ...
    def connected(self) -> None:
        """Resets the state for a new connection."""
    def run(self, sock: Any) -> str:
        """Sends over a connected socket until the connection breaks, or until `stop`."""
    def stop(self) -> None:
        """Makes `run` return soon, also a later call."""

class ReplReceiverSession(Session):
    """The receiving end of a replication link."""

    @property
    def read_lease(self) -> ReadLease: ...
    def run(self, sock: Any) -> str:
        """Receives over a connected socket, until the connection closes or breaks, or until `stop`."""
    def stop(self) -> None:
        """Makes `run` return soon."""

class ReplSender(ReplLinkState):
    """Sends the changes and snapshots of buckets to one other member."""

    def __new__(cls, number: int, about: str, member_timeout_ms: int, other: str = "") -> Self: ...
    @property
    def session(self) -> ReplSenderSession: ...
    @property
    def about(self) -> str: ...
    @property
    def read_lease_until_us(self) -> int:
        """The end of the read lease: until then the other member adopts no later epoch without saying so."""
    @property
    def is_connected(self) -> bool: ...
    @property
    def rests(self) -> bool:
        """Whether no question is on its way."""
    @property
    def news_file(self) -> int:
        """An eventfd, readable while news is waiting."""
    def configure(self, member_timeout_ms: int) -> None:
        """Sets how long a question may stay without an answer before news is sent about it. If no answer to any
        question arrives meanwhile, the connection is given up."""
    def add_region(self, number: int, name: str, core: RegionCore) -> None:
        """Sends the change log of a region to the other member."""
    def remove_region(self, name: str) -> None:
        """Stops sending a region."""
    def run_over_socket(self, sock: Any) -> str:
        """Sends over a connected socket until the connection breaks, or until `stop`."""
    def stop(self) -> None:
        """Makes `run_over_socket` return soon, also a later call."""
    def news(self) -> list[tuple[Any, ...]]:
        """Returns the news since the last call."""

class ReplReceiver:
    """Receives the changes and snapshots that one other member sends to the replicas of this member."""

    def __new__(
        cls,
        find_region: Callable[[str], RegionCore | None],
        member_timeout_ms: int,
        member: int = 0,
        memory: MemoryLimit | None = None,
    ) -> Self:
        """`member`: the number of the other member's incarnation; 0: unknown, and may lead any bucket.
        `memory`: the limit of this member; each answer carries its state."""
    @property
    def read_lease(self) -> ReadLease: ...
    @property
    def news_file(self) -> int:
        """An eventfd, readable while news is waiting."""
    def configure(self, member_timeout_ms: int) -> None:
        """Sets the time without a received frame after which a connection is given up, also for an open connection."""
    def open_session(self) -> ReplReceiverSession:
        """The session of a new connection."""
    def run_over_socket(self, sock: Any) -> str:
        """Receives over a connected socket until the connection closes or breaks, or until `stop`."""
    def stop(self) -> None:
        """Ends all present and later connections."""
    def take_ahead_ms(self) -> int:
        """Returns by how many milliseconds stamps of changes since the last call were ahead of the local time, at
        most."""
    def deny(self, region: str, bucket: int, epoch: int) -> None:
        """Tells the other member that this member has adopted a later epoch of a bucket."""
    def news(self) -> list[tuple[Any, ...]]:
        """Returns the news since the last call."""

class CallSession(Session):
    """The calls of a connection."""

    def __new__(
        cls,
        find_region: Callable[[str], RegionCore | None],
        depth: int = 0,
        budget: MemoryBudget | None = None,
        callers: Sequence[int] = (),
    ) -> Self: ...
    @property
    def depth(self) -> int: ...
    @property
    def served(self) -> int: ...
    @property
    def pending(self) -> int:
        """The number of pending calls."""
    @property
    def rounds(self) -> int: ...
    def run(self, sock: Any) -> str:
        """Serves a connected socket."""
    def stop(self) -> None:
        """Makes `run` return after the present call."""

class CallLine:
    """An open multiplexed connection, over which no call was sent yet."""

    def __new__(cls, sock: Any) -> Self: ...
    @property
    def sock(self) -> Any: ...
    @property
    def is_broken(self) -> bool:
        """Whether the connection accepts no more calls."""
    @property
    def reason(self) -> str:
        """Why the connection broke, in words."""
    @property
    def on_their_way(self) -> int:
        """Calls without an answer, or with an answer that the caller has not read yet."""
    def close(self) -> None:
        """Ends the connection."""
    def data_to_send(self) -> bytes:
        """Returns the bytes to send, for a connection without a socket."""
    def receive_data(self, data: _Bytes) -> None:
        """Adopts bytes that arrived for a connection without a socket."""

class CallSlots:
    """The slots for the calls of a member, in all regions."""

    def __new__(cls, member: int) -> Self: ...
    @property
    def member(self) -> int: ...
    @property
    def caller(self) -> int:
        """The client id that buckets keep: the member's number << 32, and a random half."""
    @property
    def count(self) -> int:
        """The highest number of calls that were ever under way at once."""

    def begin_anew(self, member: int) -> None:
        """The member goes on as a new incarnation, with the number `member`."""

def member_of_caller(caller: int) -> int:
    """The number of the incarnation in a client id."""

class CallRoute:
    """The calls of a region to other members."""

    def __new__(cls, core: RegionCore, *args: Any, timeout_s: float = 10.0, **kwargs: Any) -> Self: ...
    @property
    def limit_us(self) -> int: ...
    def set_limit(self, timeout_s: float) -> None:
        """Sets the time limit of calls in seconds, from now on, also of the calls under way."""
    def deadline(self, began_us: int) -> int:
        """The deadline of a call that began at `began_us` in the present thread, in microseconds of the monotonic
        clock."""
    @property
    def targets(self) -> list[tuple[CallLine, int] | None]: ...
    slots: CallSlots
    @property
    def is_gone(self) -> bool:
        """Whether the region was destroyed at this member, or the region's cache was closed."""
    @property
    def bucket_count(self) -> int: ...
    def why_full(self) -> str:
        """Describes what fills the member's budget, the cause of the wait, and a remedy."""
    def aim(
        self, bucket: int, began_us: int, trouble: tuple[str, int, str, bytes] | None, in_doubt: bool, key: Any
    ) -> tuple[CallLine, int] | None:
        """Returns (CallLine, epoch word) for a call about a bucket."""
    def tell_primary(self, bucket: int, epoch: int) -> bytes:
        """Returns the primary of a bucket, as bytes for a client that knows the epoch word `epoch`."""
    def aim_now(self, bucket: int, until_us: int, slow: set[Any]) -> tuple[CallLine, int] | Literal[False] | None:
        """As `aim` for a first attempt, without a long wait."""
    def failure(self, words: bytes, in_doubt: bool) -> Exception:
        """The error for a call that the primary answered with these words."""
    def read(self, key: Any, began_us: int = 0) -> tuple[bool, int, bytes | None] | None:
        """Returns (whether the key exists, form of the value, bytes of the value or None)."""
    def read_all(self, keys: list[Any]) -> list[tuple[bool, int, bytes | None]]:
        """Returns for each key what `read` returns; never None."""
    def change(
        self,
        operation: int,
        key: Any,
        value: Any,
        callback_argument: Any,
        event_id: tuple[int, int, int],
        condition_: Condition | None = None,
        timestamp_ms: int = 0,
        began_us: int = 0,
        since: int = 0,
        identity: tuple[int, int, int] | None = None,
    ) -> str | int | None:
        """Makes a change at the primary of the key."""
    def ask(self, what: str, places: list[tuple[int, int]], began_us: int = 0) -> list[Any]:
        """Asks the primaries of buckets, all at once, this member included."""
    def too_few(self, bucket: int, made: int, wanted: int, key: Any) -> Exception:
        """The error for a change that is replicated, but to only `made` in-sync replicas when `wanted` are required."""
    def clear_buckets(self) -> list[Any]:
        """Clears all buckets at their primaries, as a single call."""

class ReplicaRead:
    """A read of a key at this member's own replica, for drivers without threads. If the read has not `begun`, or ends
    without an answer, the primary is asked."""

    def __new__(cls, region: RegionCalls, key: Any) -> Self: ...
    @property
    def begun(self) -> bool: ...
    @property
    def sequence(self) -> int:
        """Of the newest change that it has seen."""
    @property
    def live(self) -> bool: ...
    @property
    def form(self) -> int: ...
    @property
    def data(self) -> bytes | None: ...
    def take(self) -> bool | None:
        """Checks the state of the read. True: `live`, `form` and `data` are the answer. False: the read ends without an
        answer. None: the changes behind the read are not replicated yet."""

class CallSteps:
    """A read (`operation` is None) or a change through a route, whose owner makes the attempts: for drivers without
    threads."""

    def __new__(
        cls,
        route: CallRoute,
        operation: int | None,
        key: Any,
        value: Any,
        event_id: tuple[int, int, int],
        began_us: int,
        condition_: Condition | None = None,
    ) -> Self: ...
    @property
    def route(self) -> CallRoute: ...
    @property
    def is_read(self) -> bool: ...
    @property
    def began_us(self) -> int: ...
    @property
    def until_us(self) -> int:
        """The deadline of the call."""
    @property
    def bucket(self) -> int: ...
    @property
    def in_doubt(self) -> bool:
        """Whether an attempt may have made the change."""
    @property
    def trouble(self) -> tuple[str, int, str, bytes] | None: ...
    @property
    def result(self) -> Any: ...
    @property
    def found(self) -> Any:
        """The value that a conditional change found, as an object."""
    def send(self, line: CallLine, epoch: int, left_us: int) -> bool:
        """Lays out the next attempt on a connection."""
    def take(self) -> bool | None:
        """Looks for the answer."""

class RowCalls:
    """The rows of a bulk call."""

    def __new__(cls, route: CallRoute) -> Self: ...
    @property
    def applied(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def failures(self) -> list[tuple[int, str]]: ...
    @property
    def error(self) -> Any: ...
    @property
    def row(self) -> int: ...
    @property
    def refused(self) -> list[tuple[int, str]]: ...
    def add_pairs(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]], callback_argument: Any = None) -> None:
        """Adds a put for each entry of a mapping, or of pairs."""
    def add_keys(self, keys: Iterable[Any], callback_argument: Any = None) -> None:
        """As `add_pairs`, with a destroy for each key."""
    def add_columns(
        self,
        keys: Column,
        values: Column | None,
        operations: Any = None,
        timestamps: Any = None,
        row: int = 0,
    ) -> None:
        """Adds the rows of columns from `row` on, and sends the rows."""
    def send(self) -> None:
        """Makes all waiting rows at the primaries of their buckets."""

class AsyncEvent:
    """An event that an asynchronous event queue hands to its listener."""

    @property
    def region(self) -> str | None: ...
    @property
    def operation(self) -> str: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def callback_argument(self) -> Any: ...
    @property
    def creation_timestamp(self) -> int: ...
    @property
    def origin_site(self) -> int: ...
    @property
    def possible_duplicate(self) -> bool: ...
    @property
    def event_id(self) -> Any: ...
    @property
    def partition(self) -> int: ...
    @property
    def sequence(self) -> int: ...

class EventBatch:
    """The events of one batch, the oldest first: a sequence of `AsyncEvent`."""

    @property
    def queue(self) -> str: ...
    @property
    def numbering(self) -> int: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, place: int) -> AsyncEvent: ...
    @overload
    def __getitem__(self, place: slice) -> EventBatch: ...
    def __iter__(self) -> Iterator[AsyncEvent]: ...
    def events(self) -> list[AsyncEvent]:
        """Returns the events as a new list."""
    def part(self, first: int, end: int) -> EventBatch:
        """Returns the events from `first` up to `end` as a batch."""
    def marks(self) -> dict[int, int]:
        """Returns the end of the batch: a map from each partition of the queue to the sequence of the partition's last
        event in the batch."""

class EventColumns:
    """The columns of a batch."""

    def __init__(self, batch: EventBatch) -> None: ...
    def part(self, name: str) -> tuple[Any, ...]:
        """Returns the column of "key", "value" or "callback"."""
    def regions(self) -> tuple[bytes, list[str | None]]:
        """Returns (the number of each event's region among `names`, 32 bits each; `names`)."""
    def numbers(self) -> dict[str, bytes]:
        """Returns the following columns by name: "operation" (8 bits: 0 create, 1 update, 2 destroy), "timestamp" (64
        bits, milliseconds since 1970), "stamp", "sequence", "event_sequence" (64 bits), "partition", "event_member",
        "event_thread" (32 bits), "origin_site" (8 bits), "possible_duplicate" (one bit)."""

PARKED_MARK_BYTES: int

def of_region(record: bytes, region: str) -> bytes:
    """Returns the record of another member with the local number of the region."""

def place_in_order(record: bytes) -> tuple[int, int, int, int]:
    """Returns the sort key of a record in the order of `ParkedIndex`: by version, and then by mark."""

class ParkedIndex:
    """An index of `parked`, the queue of the parked events of a sender."""

    def __init__(self, parked: EventQueue) -> None: ...
    @property
    def replayed(self) -> int:
        """The number of replayed events: queued again, and still parked until they have left the queue."""
    def refresh(self) -> None:
        """Adds the events parked since the last call."""
    def count(self, led: Iterable[tuple[str, bytes]]) -> int:
        """Returns the number of led parked events."""
    def shown(self, led: Iterable[tuple[str, bytes]], limit: int) -> list[tuple[int, bytes]]:
        """Returns up to `limit` led parked events, in order, as (reason, record)."""
    def sums(self, region: str, buckets: int) -> list[tuple[int, int, int]]:
        """Returns (bucket, count, sum of the marks) of each bucket with parked events."""
    def marks(self, region: str, buckets: bytes, part: int = 0, parts: int = 1) -> bytes:
        """Returns the marks of the chosen buckets of a region (one byte for each bucket), or one of `parts` parts of
        the marks."""
    def compare(self, region: str, buckets: bytes, part: int, parts: int, theirs: bytes) -> tuple[bytes, bytes, bytes]:
        """Compares with the `marks` of another member."""
    def lacking(self, marks: bytes) -> tuple[bytes, bytes]:
        """Returns two parts of the marks: events known as left, and events missing in the index."""
    def copy(self, marks: bytes, most: int) -> tuple[bytes, int]:
        """Returns the parked events with the given marks for `take`, about `most` bytes and one event at least, and the
        number of checked marks."""
    def take(self, region: str, events: bytes) -> int:
        """Parks the events from another member's `copy`, except events known or left."""
    def leave(self, marks: bytes) -> int:
        """Removes the replayed or dropped events with the given marks."""
    def forget(self, marks: bytes) -> None:
        """Removes the events with the given marks, because another member keeps the events."""
    def replace(self, record: bytes, reason: int) -> None:
        """Parks a record in place of the present record of the same event."""
    def drop(self, led: Iterable[tuple[str, bytes]]) -> bytes:
        """Removes all led parked events. Returns their marks."""
    def replay(self, to: EventQueue, led: Iterable[tuple[str, bytes]], force: bool = False, stays: int = -1) -> int:
        """Queues all led parked events again in `to`, in order, except the events of partition `stays`."""
    def finish(self, to: EventQueue) -> bytes:
        """Removes all replayed events that have left `to` and did not fail again."""

def run_listener(
    session: Session, deliver: Callable[[EventBatch], list[tuple[int, int]] | None], queue: str, numbering: int
) -> str:
    """Hands the batches of a dispatcher's session to `deliver(batch)`, until the session is told to stop or a batch is
    to be sent again."""

class DispatcherSession(Session):
    """The session of dispatcher `index` of a queue, over one connection after another."""

    def __new__(
        cls,
        queue: EventQueue,
        index: int,
        parked: EventQueue,
        *,
        filters: EventFilters | None = None,
        on_failure: Callable[[int, int, int, tuple[str, str, Encoded]], None] | None = None,
    ) -> Self: ...
    @property
    def index(self) -> int: ...
    @property
    def in_flight(self) -> int:
        """Batches sent and not acknowledged."""
    def configure(
        self,
        batch_size: int,
        batch_time_interval_ms: float,
        *,
        batch_conflation: bool = False,
        compress: bool = False,
        batch_bytes_max: int = 8388608,
        alert_threshold_ms: int = 0,
        receive_timeout_ms: int = 0,
    ) -> None:
        """Sets the options of the next batches. batch_size -1: only time closes a batch."""
    def set_filters(self, filters: EventFilters | None) -> None:
        """Replaces the user's filters, from the next batch on."""
    def tell_floors(self, floors: bytes) -> None:
        """Tells the receiver these tombstone watermarks (wan_floor): in a ping at once, and again on every later
        connection."""
    @property
    def floors_are_acked(self) -> bool:
        """Whether a receiver has answered the ping with the tombstone watermarks of the last `tell_floors`."""
    def stop(self) -> None:
        """Makes `run` return soon."""
    def times(self, now_us: int) -> dict[str, int]:
        """Returns the parts of lag in microseconds so far, at `now_us`."""
    def flow(self, now_us: int) -> dict[str, int]:
        """Returns the numbers about batches in flight at `now_us`."""
    @property
    def has_progressed(self) -> bool:
        """Whether the receiver has acknowledged, or told of its work, on this connection or the last one."""
    @property
    def unreadable_reason(self) -> str | None:
        """The reason why events in a file of the log are not sent; None: all events can be sent."""
    @property
    def is_given_up(self) -> bool:
        """Whether the last connection ended because the receiver showed no progress, or no sign of life."""
    @property
    def is_refused(self) -> bool:
        """Whether the receiver ended the last connection with a reason."""
    def pause(self, value: bool) -> None:
        """No new batch is built while paused."""
    def leave(self, value: bool) -> None:
        """While set, no new batch is built, and `run` returns "done" when all batches are acknowledged."""
    def flush(self, value: bool) -> None:
        """While set, a batch leaves as soon as there is an event."""
    def connected(self, credit_events: int, credit_bytes: int, now_us: int = 0, heartbeat_us: int = ...) -> None:
        """Begins a new connection: batch ids start at 0, the receiver's credit is known, and no region has been
        named."""
    def disconnected(self) -> None:
        """Ends the connection: all events in flight are to be sent again, marked as possible duplicates."""
    def run(self, sock: Any) -> str:
        """Moves batches out and acknowledgements in over a connected socket, until a stop or the end of the
        connection."""

def remembered_failures() -> int:
    """Returns the number of failed events remembered in this process, over all sources, until the senders know the
    failures."""

def remembered_streams() -> int:
    """Returns the number of streams that this process remembers, over all senders."""

class StreamMemory:
    """The applied events of the streams of one sender of a site, by region and bucket: the last contiguous sequence of
    the newest timeline. All members of the site send the same streams. `name`: identifies the site and the sender."""

    def __new__(cls, name: str = "") -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def streams(self) -> int: ...
    @property
    def failures(self) -> int:
        """The number of failed events of the streams that are remembered until the sender knows the failures."""

    def forget(self) -> None:
        """Forgets all streams that no connection has named."""
    def last(self, region: str, buckets: int) -> list[tuple[int, int]]:
        """Returns for each bucket of a region the newest timeline, and the timeline's last contiguous applied
        sequence."""

class SourceMemory:
    """The applied events of one queue numbering of one sender: the last contiguous sequence of each partition.
    `streams`: the applied events of the sender's streams, shared by the sender's queues at other members; None: own
    streams. `name`: identifies the numbering, over restarts; "": queues of this member do not recognise the events."""

    def __new__(cls, partitions: int, streams: StreamMemory | None = None, name: str = "") -> Self: ...
    @property
    def partitions(self) -> int: ...
    @property
    def streams(self) -> StreamMemory: ...
    @property
    def failures(self) -> int:
        """The number of failed events that are remembered until the sender knows the failures."""

    def last(self) -> list[int]:
        """Returns the last contiguous applied sequence of every partition."""
    def known(self, mount: int) -> list[tuple[int, int, int, int]]:
        """Returns the partitions with events from another mount than `mount`."""
    def forget_passed_over(self) -> list[int]:
        """Forgets the partitions with events passed over in this member, so that new events of the partitions are
        applied."""
    def mount_of(self, partition: int) -> int:
        """Returns the mount of the newest event of a partition."""

class ReceiverCounts:
    """The counters of one receiver, over all its connections."""

    def counts(self) -> dict[str, int]: ...

class ReceiverSession(Session):
    """One sender's connection."""

    def __new__(
        cls,
        memory: SourceMemory,
        counts: ReceiverCounts,
        find_region: Callable[[str], RegionCore | None],
        callback_apply: Callable[[Any, bytes, tuple[int, int, bool, bytes | None]], int] | None,
        *,
        credit_bytes: int = ...,
        max_drift_ms: int = 300000,
        mount: int = 0,
        on_floors: Callable[[bytes], None] | None = None,
        on_failure: Callable[[str, str, Encoded, int], None] | None = None,
        may_write: Callable[[str], bool] | None = None,
    ) -> Self: ...
    def stop(self) -> None:
        """Makes `run` return soon, after the event in work."""
    def look_again(self) -> None:
        """Asks `may_write` again before the next batch. Any thread may call."""
    def contest(self) -> None:
        """Notes that another process opened the sender's queue."""
    def connected(self, now_us: int, receive_timeout_ms: int = 0) -> None:
        """Begins the connection, which exists since `now_us`; 0: since the start of `run`."""
    def run(self, sock: Any, receive_timeout_ms: int) -> str:
        """Takes batches from a connected socket until the socket closes, breaks, is silent for `receive_timeout_ms`, or
        the session is told to stop."""

class RowSender(Session):
    """Lays rows out as records, frame by frame, without the GIL."""

    def __new__(cls, sock: Any = None, *, timeout_s: float = 60.0) -> Self: ...
    @property
    def answer(self) -> Any: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def put_columns(self, keys: _ColumnLike, values: _ColumnLike | None, operations: _ColumnLike | None = None) -> None:
        """Adds one row per key."""
    def put_rows(
        self,
        keys: _ColumnLike,
        names: Sequence[str],
        columns: Sequence[_ColumnLike],
        operations: _ColumnLike | None = None,
    ) -> None:
        """Adds one row per key, whose value is a dict of the columns under `names`."""
    def put_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Adds (key, value) pairs of Python objects."""
    def flush(self) -> None:
        """Sends what is laid out."""
    def commit(self) -> None:
        """Tells the member that the task is whole."""

class StageBudget:
    """Limits the rows of all tasks that are staged at a member: `memory` bytes of them in memory, the others in files,
    `limit` bytes in all. `member` counts those in memory. While it has more than half of its limit, new rows go to
    files."""

    def __new__(cls, limit: int, memory: int = ..., member: MemoryLimit | None = None) -> Self: ...
    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int:
        """Bytes of rows that are staged now."""

class RowStage(Session):
    """The rows of one task at the member."""

    def __new__(
        cls,
        directory: str | PathLike[str] | None,
        budget: StageBudget | None = None,
        *,
        run_id: bytes = b"",
        task: int = 0,
    ) -> Self: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def missing(self) -> int: ...
    @property
    def refusal(self) -> Exception | None: ...
    def stop(self) -> None: ...
    def connected(self, now_us: int, receive_timeout_ms: int = 0) -> None:
        """Begins the connection, which is there since `now_us`; 0: since `run` begins."""
    def run(self, sock: Any, receive_timeout_ms: int) -> str:
        """Takes rows from a connected socket."""
    def tell_progress(self, steps: int) -> None:
        """Lays out for the client how far its task is, if that is further than it was told."""
    def apply(self, region: RegionCore, within_s: float = ...) -> bool:
        """Applies staged rows in order, as changes made at this member, from where the last call stopped."""

class _Nothing:
    """Does nothing when called: the baseline for the benchmarks of single calls."""

    def put(self, key: Any, value: Any, callback_argument: Any = None) -> None: ...

class ClockRepair:
    """One repair of a member's stamps that were ahead of the time when the repair began."""

    def __new__(cls, clock: Clock, regions: Iterable[RegionCore], *, site: int = 0, others: bool = True) -> Self: ...
    @property
    def limit(self) -> int: ...
    @property
    def began(self) -> int: ...
    def begin(self) -> bool:
        """Sets the clock back if the clock is ahead, and returns whether it was."""
    def count_entries(self, region: RegionCore) -> tuple[int, int]:
        """(entries, tombstones) with stamps that are ahead."""
    def count_events(self, queue: EventQueue) -> int:
        """Counts the events of the queue with stamps that are ahead, and notes the stamps."""
    def give_stamps(self) -> None:
        """Gives a new stamp to all noted stamps without a new stamp."""
    def restamp_invalid(self, region: RegionCore) -> int:
        """Gives invalidated entries the new stamps that the events of their versions get."""
    def restamp_entries(self, region: RegionCore, shard: int = 0) -> tuple[int, int, int | None, bool]:
        """Gives new stamps to entries and tombstones that are ahead, from a shard on: each entry is changed to its
        present value."""
    def ahead_keys(self, region: RegionCore, shard: int) -> list[tuple[Encoded, bool]]:
        """The keys in a shard whose entries are ahead, and for each key whether the entry is a tombstone."""
    def restamp_key(
        self, region: RegionCore, key: object, decisions: _Decisions | None = None, origin_: _Origin | None = None
    ) -> bool | None:
        """Gives one entry or tombstone a new stamp, whatever the old stamp was: the entry is changed to its present
        value."""
    def finish_region(self, region: RegionCore) -> None:
        """Ends the repair of a region in which nothing is ahead any more."""
    def log_is_ahead(self, region: RegionCore) -> bool:
        """Whether the region's log held a stamp that is ahead when the log was opened, and so makes the clock run
        ahead."""
    def lower_newest(self, queue: EventQueue) -> bool:
        """Sets back the queue's newest stamp if the stamp is ahead, and returns whether it was ahead."""
    def restamp_events(
        self, source: EventQueue, to: EventQueue, fed: Iterable[RegionCore]
    ) -> tuple[int, list[tuple[RegionCore, bytes]]]:
        """Takes events that are ahead out of `source`, once the events that replace them are on the disk."""
    def is_fed(self, queue: EventQueue, region: RegionCore) -> bool:
        """Whether the region's changes get into the queue now."""
    def finish_queue(self, queue: EventQueue) -> None:
        """Ends the repair of a queue in which nothing is ahead any more."""

def call_for_listeners() -> None:
    """Marks the calls of the thread as calls of listeners from now on, as if the thread served a call."""

def call_depth() -> int:
    """The number of nested calls that the thread is serving."""

def unpack_items(payload: bytes) -> list[tuple[Any, bool, int | None, bytes | None]]:
    """The items in the answer to a scan: a list of (key, whether the key has a value, form, bytes of the value)."""
