"""The compiled core: records, queues, tables and both sessions. Each docstring is the first sentence of the one at run time."""
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Self

# Whatever has a contiguous buffer of bytes: bytes, bytearray, memoryview, numpy uint8.
_Bytes = bytes | bytearray | memoryview
# (form, bytes): how an object is stored and travels.
_Form = tuple[int, bytes]
# A column of keys, values or operations: see Column.
_ColumnLike = Any
# (stamp, site), and (site of origin, recipients, (member, thread, sequence)) of a remote change.
_Version = tuple[int, int]
_Origin = tuple[int, bytes, tuple[int, int, int]]
_SlowChange = Callable[[int, Any, Any, Any], str]

FRAME_HELLO: int
FRAME_WELCOME: int
FRAME_BATCH: int
FRAME_PING: int
FRAME_ERROR: int
FRAME_COMMIT: int
FRAME_COMMITTED: int

# Keys and values

def set_codec_hooks(encode: Callable[[Any], _Form], decode: Callable[[int, bytes], Any]) -> None:
    """How to encode what is neither bytes, str, int, float nor None, and to decode forms 2 and 6."""

def encode_object(obj: Any) -> _Form:
    """(form, bytes) of a Python object, as it is stored and travels."""

def decode_object(form: int, data: bytes) -> Any:
    """The Python object behind a form and its bytes."""

def key_hash(key: Any) -> int:
    """The 64-bit hash that decides a key's bucket: part of the format."""

class Encoded:
    """A value already in its form and bytes."""

    def __init__(self, form: int, data: bytes) -> None: ...
    @property
    def form(self) -> int: ...
    @property
    def data(self) -> bytes: ...

# Columns

class Column:
    """A column of keys, values or operations as bytes per row."""

    def __init__(self, obj: _ColumnLike, name: str = "column") -> None: ...
    def __len__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def form(self) -> int:
        """The form of every row that is not null."""

def as_columns(obj: _ColumnLike, name: str = "column") -> list[Column]:
    """`obj` as a list of columns, one after the other: the chunks of a chunked one, which are not copied together."""

def encode_rows(names: Iterable[str], columns: Iterable[_ColumnLike]) -> Column:
    """One column of msgpack maps {name: value}, row by row, of several columns (anything that `Column` takes)."""

def operation_codes(obj: _ColumnLike | None, n: int) -> bytes:
    """One code per row for `n` rows: 0 create, 1 update, 2 destroy."""

def _column_rows(column: Column) -> list[_Form]:
    """Every row as (form, bytes)."""

# Queues

class LogBudget:
    """What several logs may take together: those in one directory of a disk store."""

    def __new__(cls, limit: int, used: int = 0) -> Self: ...
    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int:
        """Bytes of all logs, open or not."""
    def give(self, count: int) -> None:
        """Of a log that was removed as a whole."""

class EventQueue:
    """The events of one sender on this member, in `partitions` units of order served by `dispatchers`."""

    reachable: bool
    def set_full_policy(self, policy: str, timeout_ms: float = 0.0, slow_disk_ms: float = 10000.0) -> None:
        """What an enqueue does that finds no room: "block" (for `timeout_ms`, then it is refused), "refuse", "drop-oldest" or
        "drop-newest" (both counted)."""
    def __new__(
        cls, name: str, *, remote_site: int = 0, partitions: int = 1, dispatchers: int = 1, memory_limit: int = ...,
        directory: str | PathLike[str] | None = None, conflate: bool = False, by_thread: bool = False, by_bucket: bool = False,
        log_directory: str | PathLike[str] | None = None, log_id: int = 0, synchronous: bool = True, flush_ms: int = 10,
        log_budget: LogBudget | None = None, log_known: int = 0, log_may_take_kept: bool = False,
        salvage: bool = False, environment: Any = None,
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
    def partitions(self) -> int: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def synchronous(self) -> bool:
        """Whether an enqueue is done only when it is on the disk."""
    @property
    def log_id(self) -> int:
        """Of the log: the queue's incarnation over restarts."""
    def recovery(self) -> dict[str, Any]:
        """What opening found: records in the log, and bytes of a torn tail that were cut."""
    def log_state(self) -> dict[str, Any]:
        """Sizes of the log, why writing fails now (None: it does not), and per partition up to where events are on the disk."""
    def commit_loop(self) -> None:
        """Writes what is staged until `stop_log`; to be run in a thread of its own."""
    def commit_once(self, checkpoint: bool = True) -> bool:
        """One round of the committer, in the caller's thread, for where no `commit_loop` runs: what is staged gets onto the disk,
        and with `checkpoint` what was removed. False: the disk did not take it, and `log_state` says why."""
    def stop_log(self) -> None:
        """Makes `commit_loop` return once everything is on the disk (or cannot get there)."""
    def wait_durable(self, timeout: float = 60.0) -> None:
        """Returns when everything enqueued so far is on the disk."""
    def wait_removed(self, timeout: float = 60.0) -> None:
        """Returns when everything removed so far is removed on the disk too."""
    def counts(self) -> dict[str, int]:
        """The ledger's counters and the queue's size, taken at one moment."""
    def positions(self) -> list[tuple[int, int, int]]:
        """(removed, peeked, appended) of every partition."""
    def oldest_ms(self) -> int | None:
        """Milliseconds since 1970 at which the oldest queued event was made, or None for an empty queue."""
    def clear(self) -> int:
        """Drops everything, counted as `dropped_cleared`."""
    def wake(self) -> None:
        """Wakes every dispatcher, to look at what it was told."""
    def append_record(self, record: _Bytes, partition: int = 0) -> None:
        """Appends one record in wire form (checked first)."""
    def records(self, limit: int = 100) -> list[tuple[int, _Record]]:
        """Up to `limit` queued events as (partition, record bytes), oldest first within each partition."""
    def peek(self, partition: int, count: int) -> list[_Record]:
        """Takes up to `count` records of a partition as bytes, as a dispatcher would."""
    def remove(self, partition: int, through: int) -> int:
        """Drops every event up to and including `through`: the receiver has them."""
    def punch(self, partition: int, sequence: int) -> None:
        """Makes one event a hole (as a filter would), counted as filtered at transmit."""
    def rewind(self, partition: int) -> None:
        """What was peeked and not removed is to be sent again, as possible duplicates."""
    def replay_into(self, other: EventQueue) -> int:
        """Moves every event to the tail of another queue (of parked events: back to where they were queued)."""

_Record = bytes     # Outside the class, whose property `bytes` hides the type.

# Regions

class Clock:
    """The hybrid logical clock that all regions of a member share."""

    def take(self, now_ms: int | None = None) -> int:
        """The next stamp: milliseconds << 16 | counter."""
    def see(self, stamp: int) -> None:
        """Makes every later stamp of this clock greater than `stamp`."""
    def set_time(self, now_ms: int) -> None:
        """From now on it is `now_ms` for this clock, until that is set again; 0: the system's time. For simulations."""

class RegionCore:
    """The compiled half of a region: table, versions, and the way into the attached senders' queues."""

    def __new__(
        cls, name: str, clock: Clock, *args: Any, site: int = 0, member: int = 0, stores: bool = True, forwards: bool = True,
        **kwargs: Any,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def queues(self) -> tuple[EventQueue, ...]:
        """The attached queues, in the order in which `change` takes its decisions."""
    @property
    def is_slow(self) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def tombstones(self) -> int: ...
    @property
    def memory_bytes(self) -> int:
        """Bytes allocated for entries and slots."""
    @property
    def conflicts(self) -> int:
        """Remote changes that lost against a later version."""
    @property
    def applied(self) -> int:
        """Remote changes that took effect."""
    def attach(self, queues: Iterable[EventQueue]) -> None:
        """Replaces the attached senders by these EventQueues, and recomputes whom new events will reach: the remote sites of those that run."""
    def set_slow(self, change: _SlowChange | None) -> None:
        """`change(operation, key, value, callback_argument)`: how changes go while user's Python is on the way; None: not at all."""
    def close(self) -> None:
        """No change is taken any more; the receiver answers that the region is not there."""
    def wait_durable(self, is_queued: bool = True) -> None:
        """Returns when what has been changed and enqueued so far is on the disk, where that is synchronous."""
    def open_log(
        self, directory: str, *, log_id: int, synchronous: bool = True, flush_ms: int = 10,
        log_budget: LogBudget | None = None, log_known: int = 0, salvage: bool = False, environment: Any = None,
    ) -> dict[str, Any]:
        """Makes the region persistent: recovers what the log in `directory` holds, and logs every change from now on."""
    @property
    def persistent(self) -> bool: ...
    def commit_loop(self) -> None:
        """Writes what is staged until `stop_log`."""
    def commit_once(self) -> bool:
        """One round of the committer, in the caller's thread, for where no `commit_loop` runs. False: the disk did not take what is
        staged, and `log_state` says why."""
    def stop_log(self) -> None:
        """Makes `commit_loop` return once everything is on the disk (or cannot get there)."""
    def log_state(self) -> dict[str, Any]:
        """Sizes of the log, and why writing fails now (None: it does not)."""
    def put(self, key: Any, value: Any, callback_argument: Any = None) -> None:
        """Stores `value` under `key` and hands the event to the attached senders."""
    def destroy(self, key: Any, callback_argument: Any = None) -> None:
        """Removes `key` everywhere."""
    def change(
        self, operation: int, key: Any, value: Any = None, callback_argument: Any = None,
        decisions: Sequence[_Form | bool | None] | None = None, version: _Version | None = None, origin_: _Origin | None = None,
        ask: int = 0, timestamp_ms: int = 0,
    ) -> str:
        """One change with everything said: the slow path of regions with user's Python on the way."""
    def judge(self, operation: int, key: Any, version: _Version | None = None, ask: int = 0) -> str:
        """What `change` would do, changing nothing."""
    def lookup(self, key: Any) -> tuple[Any, int, int, bool] | None:
        """(value, stamp, site, is_live) of a key, or None; tombstones show with is_live False."""
    def get(self, key: Any, default: Any = None) -> Any:
        """The value under `key`, or `default`."""
    def local_destroy(self, key: Any) -> None:
        """Removes the entry on this member only; nothing is sent."""
    def invalidate(self, key: Any) -> None:
        """Drops the value and keeps the key with its version; not sent to other sites."""
    def clear(self) -> int:
        """Removes every entry of this member's region; a region operation, so nothing is sent."""
    def expire_tombstones(self, before_ms: int, limit: int = 18446744073709551615) -> tuple[int, int]:
        """Drops tombstones made before `before_ms`; with more than `limit` left, all of them."""
    def copy_into(self, to: RegionCore, cursor: int = 0) -> int | None:
        """Gives every entry from `cursor` on, tombstones and invalidated ones too, with its version to another region."""
    def scan_keys(self) -> Iterator[Any]:
        """Every live key, shard by shard; what changes meanwhile may or may not be seen."""
    def scan(self, cursor: int = 0, limit: int = 10000) -> tuple[int | None, bytes]:
        """(next cursor or None, entries): at least one shard's live entries, packed for comparison between sites."""
    def put_columns(
        self, keys: _ColumnLike, values: _ColumnLike | None, *, operations: _ColumnLike | None = None, timestamps: Any | None = None,
    ) -> int:
        """Changes row by row from two columns, in one call without the GIL."""

def region_name(number: int) -> str | None:
    """The name behind a region number of this process."""

def record_fields(record: bytes) -> dict[str, Any]:
    """A record's fields as a dict; key, value and callback decoded lazily by `events`."""

# Frames

def pack_frame(type: int, payload: _Bytes, id: int = 0, count: int = 0) -> bytes:
    """A whole frame as bytes: for handshakes and tests."""

def check_frame_header(head: _Bytes) -> tuple[int, int, int]:
    """(type, payload length with padding, payload length) of 32 bytes of header; ProtocolError if it is none."""

def check_frame(data: _Bytes) -> tuple[int, int, int, bytes]:
    """(type, id, count, payload bytes) of a whole frame; ProtocolError if anything about it is wrong."""

def check_batch(payload: _Bytes, count: int) -> None:
    """ProtocolError unless `payload` is a well-formed batch of `count` records."""

def crc32c(data: _Bytes, crc: int = 0) -> int:
    """CRC32C (Castagnoli) of a contiguous buffer, continued from `crc`."""

def crc32c_portable(data: _Bytes, crc: int = 0) -> int:
    """The table form of `crc32c`: its oracle in tests."""

def lz4_without_gil() -> bool:
    """Whether lz4's C functions were found in the package (else: one Python call per batch)."""

# Sessions

class DispatcherSession:
    """Dispatcher `index` of a queue, over one connection after another."""

    def __new__(
        cls, queue: EventQueue, index: int, parked: EventQueue, *, transmit_filter: Callable[[list[bytes]], Sequence[bool]] | None = None,
        acknowledged: Callable[[list[bytes]], None] | None = None, on_failure: Callable[[int, int, int], None] | None = None,
    ) -> Self: ...
    @property
    def index(self) -> int: ...
    @property
    def in_flight(self) -> int:
        """Batches sent and not acknowledged."""
    def configure(
        self, batch_size: int, batch_time_interval_ms: float, *, batch_conflation: bool = False, compress: bool = False,
        batch_bytes_max: int = 8388608, alert_threshold_ms: int = 0, silence_ms: int = 0,
    ) -> None:
        """Takes effect with the next batch."""
    def set_callbacks(
        self, transmit_filter: Callable[[list[bytes]], Sequence[bool]] | None, acknowledged: Callable[[list[bytes]], None] | None,
    ) -> None:
        """Replaces the user's callbacks; takes effect with the next batch."""
    def stop(self) -> None:
        """Makes `run` return soon."""
    def times(self) -> dict[str, int]:
        """Microseconds so far in the user's callbacks ("filter"), waiting for the link or the receiver with events to send
        ("blocked"), and in which the receiver worked on what it acknowledged ("receiver"): what lag is made of."""
    def flow(self) -> dict[str, int]:
        """What is on its way: `window_bytes` that may be, `bytes_in_flight`, `events_in_flight`; the shortest `round_trip_us` known, and without
        the receiver's work `link_us` (0: none), and for how long batches in flight have had no answer (`unanswered_us`)."""
    def pause(self, value: bool) -> None:
        """No new batch is built while paused; acknowledgements are still taken."""
    def flush(self, value: bool) -> None:
        """While set, a batch leaves as soon as there is an event for it."""
    def connected(self, credit_events: int, credit_bytes: int, now_us: int = 0, heartbeat_us: int = ...) -> None:
        """A new connection: batch ids start at 0, the receiver's credit is known, no region has been named on it."""
    def disconnected(self) -> None:
        """The connection is gone: everything in flight is to be sent again, marked possible duplicate."""
    def data_to_send(self, now_us: int) -> bytes:
        """Bytes that should leave now: one more batch if one is due and the window is open."""
    def receive_data(self, data: _Bytes, now_us: int = 0) -> None:
        """Bytes that arrived at `now_us` (0: as last told)."""
    def run(self, file: int) -> str:
        """Moves batches out and acknowledgements in over a connected socket until told to stop or the connection breaks."""

def remembered_failures() -> int:
    """Failed events that are remembered of all sources in this process, until their senders have heard of them."""

class SourceMemory:
    """What has been applied of one queue incarnation of one sender: the last contiguous sequence of each partition."""

    def __new__(cls, partitions: int) -> Self: ...
    @property
    def partitions(self) -> int: ...
    @property
    def failures(self) -> int:
        """Failed events that are remembered until the sender has heard of them."""

    def last(self) -> list[int]:
        """The last contiguous sequence applied, of every partition."""

class ReceiverCounts:
    """The counters of one receiver, over all its connections."""

    def counts(self) -> dict[str, int]: ...

class ReceiverSession:
    """One sender's connection."""

    def __new__(
        cls, memory: SourceMemory, counts: ReceiverCounts, find_region: Callable[[str], RegionCore | None],
        on_slow: Callable[[Any, bytes], int] | None, *, credit_bytes: int = ..., max_drift_ms: int = 300000,
    ) -> Self: ...
    def stop(self) -> None:
        """Makes `run` return soon: after the batch in work, which is acknowledged only if it was applied as a whole."""
    def receive_data(self, data: _Bytes) -> None:
        """Bytes that arrived."""
    def data_to_send(self) -> bytes:
        """Acknowledgements that should leave now."""
    def run(self, file: int, silence_ms: int) -> str:
        """Takes batches from a connected socket until it closes, breaks, is silent for `silence_ms` or is told to stop."""

class RowSender:
    """Lays rows out as records and sends them over a connected blocking socket, frame by frame, without the GIL."""

    def __new__(cls, file: int, *, compress: bool = False) -> Self: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def put_columns(self, keys: _ColumnLike, values: _ColumnLike | None, operations: _ColumnLike | None = None) -> None:
        """Adds one row per key."""
    def put_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Adds (key, value) pairs of Python objects."""
    def flush(self) -> None:
        """Sends what is laid out."""

class RowStage:
    """One task's rows at the member, until it is whole: kept in an own queue with overflow, then applied in order."""

    def __new__(cls, directory: str | PathLike[str] | None, memory_limit: int = ...) -> Self: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def missing(self) -> int: ...
    def stop(self) -> None: ...
    def receive(self, file: int, silence_ms: int) -> str:
        """Takes rows from a connected socket."""
    def apply(self, region: RegionCore) -> bool:
        """Applies staged rows in order as changes made at this member, from where it stopped before."""
    def apply_slow(self, region: RegionCore) -> bool: ...

class _Nothing:
    """Does nothing when called: what the benchmarks of single calls are measured against."""

    def put(self, key: Any, value: Any, callback_argument: Any = None) -> None: ...
