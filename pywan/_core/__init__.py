"""The compiled core: records, queues, tables and both sessions.

Its units (*.pyx) and all C are one shared object. So locks, counters and names exist only once in a process. The rest
of the package imports this module.
"""

from pywan._core import _finder  # First: it finds the others.
from pywan._core.base.budget import MemoryBudget
from pywan._core.base.clock import Bell, Clock
from pywan._core.base.limit import MemoryLimit
from pywan._core.base.status import checks_stop_the_process, crc32c, crc32c_portable, forks, trim_memory
from pywan._core.base.tables import (
    ASK_DECIDED,
    ASK_NOBODY,
    ASK_RESOLVER,
    CREATE,
    DESTROY,
    FAILED_FORGOTTEN,
    FAILED_LISTENER,
    FAILED_NO_MEMORY,
    FAILED_OTHER,
    FAILED_REGION_NOT_FOUND,
    FAILED_WITHHELD,
    PARK_PARTITIONS,
    UPDATE,
    failure_rows,
    failure_text,
    parked_reason,
    queue_counter_rows,
    receiver_counter_rows,
    record_field_rows,
)
from pywan._core.calls.call_line import CallLine
from pywan._core.calls.call_route import (
    CALL_DEPTH_MAX,
    CallRoute,
    CallSteps,
    call_depth,
    call_for_listeners,
    unpack_items,
)
from pywan._core.calls.call_rows import RowCalls
from pywan._core.calls.call_session import CallSession
from pywan._core.clients.row_sender import RowSender
from pywan._core.clients.row_stage import RowStage, StageBudget
from pywan._core.gateway.applied_slot import remembered_failures
from pywan._core.gateway.dispatcher import DispatcherSession
from pywan._core.gateway.event_batch import AsyncEvent, EventBatch
from pywan._core.gateway.event_columns import EventColumns
from pywan._core.gateway.listener_stream import run_listener
from pywan._core.gateway.parked_index import PARKED_MARK_BYTES, ParkedIndex, of_region, place_in_order
from pywan._core.gateway.receiver import ReceiverSession
from pywan._core.gateway.receiver_apply import APPLY_DONE, APPLY_LOST, APPLY_NOT_PRIMARY
from pywan._core.gateway.source_memory import ReceiverCounts, SourceMemory
from pywan._core.gateway.stream_memory import StreamMemory, remembered_streams
from pywan._core.log.disk_log import LogBudget
from pywan._core.queue.event_queue import EventQueue
from pywan._core.region.call_slots import CallSlots, member_of_caller
from pywan._core.region.changelog import (
    REPL_LINKS_MAX,
    REPLICA_ABSENT,
    REPLICA_IN_SYNC,
    REPLICA_LEARNER,
    REPLICA_LEARNING,
    REPLICA_PRIMARY,
    REPLICA_QUEUE_ONLY,
    REPLICA_TAKING_OVER,
    REPLICA_WAITED,
    Changelog,
    ReplLinkState,
    monotonic_us,
    simulate_monotonic_us,
)
from pywan._core.region.clock_repair import ClockRepair
from pywan._core.region.enqueue import WITHHELD
from pywan._core.region.event_filters import EventFilters
from pywan._core.region.filtered_changes import FilterPath
from pywan._core.region.region import RegionCore, RegionFace, _Nothing, core_of_face
from pywan._core.region.region_callbacks import CallbackLock, EntryEvent, RegionCallbacks, region_of_callback
from pywan._core.region.region_changes import Condition, RegionCalls, ReplicaRead
from pywan._core.replication.repl_link import READ_LEASE_KEPT_US, ReplReceiver, ReplSender
from pywan._core.replication.repl_receiver import ReadLease, ReplReceiverSession
from pywan._core.replication.repl_sender import ReplSenderSession
from pywan._core.values.codec import (
    decode_object,
    encode_key_object,
    encode_object,
    encoded_key,
    encoded_value,
    key_hash,
    show_object,
)
from pywan._core.values.columns import Column, _column_rows, as_columns
from pywan._core.values.names import region_name
from pywan._core.values.operations import operation_codes
from pywan._core.values.queue_event import OPERATIONS, GatewayQueueEvent, event_of_record
from pywan._core.values.records import RECORD_FORMAT, make_record, record_fields
from pywan._core.values.row_maps import encode_rows
from pywan._core.values.tagged import Encoded, Undecodable, set_codec_hooks
from pywan._core.wire.lz4 import lz4_without_gil
from pywan._core.wire.message import measure_message
from pywan._core.wire.session import Session
from pywan._core.wire.stream import (
    FRAME_BATCH,
    FRAME_COMMIT,
    FRAME_COMMITTED,
    FRAME_ERROR,
    FRAME_HELLO,
    FRAME_KNOWN,
    FRAME_PING,
    FRAME_PROGRESS,
    FRAME_WELCOME,
    check_frame,
    check_frame_header,
    pack_frame,
)
