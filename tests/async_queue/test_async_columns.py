"""The columns that a listener with `process_arrow` gets: the core lays them out, and each is equal to what the events
say.
"""

from __future__ import annotations

import decimal
import random
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import pywan
from pywan import _core
from pywan.async_queue import columns
from pywan.async_queue.columns import to_arrow
from pywan.testing.waiting import LIMIT_S, eventually

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


class Own:
    """An object of a serializer of the user's."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


pywan.register_serializer(Own, lambda own: own.text.encode(), lambda data: Own(data.decode()), name="columns.Own")


class Taken:
    """Takes columns, and keeps them."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.answer: Any = lambda batch: True

    def process_arrow(self, batch: Any) -> bool:
        answer = self.answer(batch)
        if answer:
            self.batches.append(batch)
        return answer

    def table(self) -> Any:
        return arrow.Table.from_batches(self.batches)


@pytest.fixture
def ny(network):
    return network.add("ny")[0]


def columns_of(ny: Any, changes: Any, regions: tuple[str, ...] = ("data",)) -> tuple[Any, Any]:
    """The events of a batch, and its columns. `changes(region, ...)` makes the changes."""
    received: list[Any] = []
    queue = ny.cache.create_async_event_queue(
        "audit", lambda events: received.append(events) or True, dispatcher_threads=1, pause_event_processing=True,
        batch_size=10_000,
    )  # fmt: skip
    changes(*(ny.cache.create_region(name, type="REPLICATE", async_event_queue_ids=["audit"]) for name in regions))
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    (events,) = received
    batch = to_arrow(events)
    batch.validate(full=True)
    return events, batch


def decoded(column: Any) -> list[Any]:
    """The values of a column; those of the tagged form are decoded, as a listener does it."""
    if isinstance(column, arrow.UnionArray):
        children = [decoded(column.field(n)) for n in range(column.type.num_fields)]
        names = [column.type.field(n).name for n in range(column.type.num_fields)]
        assert set(names) <= {"bytes", "text", "tagged", "int", "float", "null"}
        found = []
        for code, offset in zip(column.type_codes.to_pylist(), column.offsets.to_pylist(), strict=True):
            value = children[code][offset]
            found.append(pywan.decode_tagged(value) if names[code] == "tagged" else value)
        return found
    return column.to_pylist()


KINDS = {
    "bytes": (arrow.binary(), [b"", b"x", bytes(range(256))]),
    "text": (arrow.string(), ["", "a", "grüße", "x" * 3000]),
    "int": (arrow.int64(), [0, -1, 2**63 - 1, -(2**63)]),
    "float": (arrow.float64(), [0.0, -1.5, float("inf")]),
    "tagged": (arrow.binary(), [{"a": [1, None]}, (1, 2), True, decimal.Decimal("1.50"), 2**80]),
    "user": (arrow.binary(), [Own("a"), Own("b" * 300)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_one_kind_are_a_column_of_its_type(ny, kind):
    type, values = KINDS[kind]

    def change(data: Any) -> None:
        data.put_all(dict(enumerate(values)))

    events, batch = columns_of(ny, change)
    column = batch.column("value")
    assert column.type == type and column.null_count == 0 and batch.column("key").type == arrow.int64()
    found = column.to_pylist()
    if kind in ("tagged", "user"):
        found = [pywan.decode_tagged(value) for value in found]
    assert found == values == [event.value for event in events]


def test_destroys_and_none_are_nulls(ny):
    def change(data: Any) -> None:
        for n in range(20):
            data[n] = n if n % 3 else None
        data.remove_all(list(range(5)))

    events, batch = columns_of(ny, change)
    assert batch.column("value").type == arrow.int64() and batch.column("value").null_count == 12
    assert batch.column("value").to_pylist() == [event.value for event in events]
    assert batch.column("operation").to_pylist() == ["create"] * 20 + ["destroy"] * 5


def test_a_column_with_no_value_at_all_is_of_nulls(ny):
    _, batch = columns_of(ny, lambda data: data.put("k", None))
    assert batch.column("value").type == arrow.null() and batch.column("callback_argument").type == arrow.null()


def test_values_of_several_kinds_are_a_union_of_their_columns(ny):
    drawn = random.Random(1)
    values: list[Any] = [b"x", "text", 5, 1.5, None, {"a": 1}, Own("own"), (1, 2)] * 50
    drawn.shuffle(values)

    def change(data: Any) -> None:
        for n, value in enumerate(values):
            data.put(n if n % 2 else f"key {n}", value, callback_argument=[n] if n % 5 == 0 else None)
        data.remove_all([1, 3])

    events, batch = columns_of(ny, change)
    for name, attribute in (("key", "key"), ("value", "value")):
        assert isinstance(batch.column(name), arrow.UnionArray)
        assert decoded(batch.column(name)) == [getattr(event, attribute) for event in events]
    arguments = [None if each is None else pywan.decode_tagged(each) for each in batch.column(4).to_pylist()]
    assert arguments == [event.callback_argument for event in events]


def test_the_other_columns_say_what_the_events_say(ny):
    def change(first: Any, second: Any, third: Any) -> None:
        for n in range(30):
            (first, second, third)[n % 3].put(n % 4, n, callback_argument=f"why {n}")
        first.remove_all([0])

    events, batch = columns_of(ny, change, ("first", "second", "third"))
    assert batch.schema.names == [
        "region", "operation", "key", "value", "callback_argument", "timestamp", "stamp", "origin_site",
        "event_member", "event_thread", "event_sequence", "partition", "sequence", "possible_duplicate",
    ]  # fmt: skip
    rows = batch.to_pylist()
    assert [row["region"] for row in rows] == [event.region for event in events]
    assert batch.column("region").dictionary.to_pylist() == ["first", "second", "third"]
    assert [row["operation"] for row in rows] == [event.operation for event in events]
    assert [row["callback_argument"] for row in rows] == [event.callback_argument for event in events]
    assert [row["timestamp"] for row in rows] == [
        datetime.fromtimestamp(event.creation_timestamp / 1000, UTC) for event in events
    ]
    stamps: dict[Any, int] = {}
    for row in rows:
        assert row["stamp"] >> 16 == int(row["timestamp"].timestamp() * 1000 + 0.5)
        assert row["stamp"] > stamps.get((row["region"], row["key"]), 0)
        stamps[row["region"], row["key"]] = row["stamp"]
    assert [(row["event_member"], row["event_thread"], row["event_sequence"]) for row in rows] == [
        tuple(event.event_id) for event in events
    ]
    for name in ("origin_site", "partition", "sequence", "possible_duplicate"):
        assert [row[name] for row in rows] == [getattr(event, name) for event in events], name


def test_a_part_of_a_batch_is_a_part_of_its_columns(ny):
    def change(data: Any) -> None:
        for n in range(20):
            data[f"k{n}"] = n if n % 2 else str(n)

    events, batch = columns_of(ny, change)
    for first, end in ((2, 5), (0, 20), (0, 1), (19, 20), (7, 7)):
        part = to_arrow(events[first:end])
        part.validate(full=True)
        assert part.to_pylist() == batch.slice(first, end - first).to_pylist()
    part = to_arrow(events[4:12][1:3])
    assert part.column("key").to_pylist() == ["k5", "k6"] and decoded(part.column("value")) == [5, "6"]


def test_an_empty_batch_has_all_columns(ny):
    events, _ = columns_of(ny, lambda data: data.put("k", 1))
    batch = to_arrow(events[0:0])
    batch.validate(full=True)
    assert batch.num_rows == 0 and batch.num_columns == 14
    with pytest.raises(TypeError):
        _core.EventColumns(None)


@pytest.mark.parametrize("awaitable", [False, True], ids=["plain", "async"])
def test_a_listener_gets_columns_and_a_batch_on_which_it_fails_comes_again_marked(ny, awaitable):
    taken = Taken()
    failures = iter([False, None])
    taken.answer = lambda batch: next(failures, True)

    class Awaited:
        async def process_arrow(self, batch: Any) -> bool:
            return taken.process_arrow(batch)

    listener = Awaited() if awaitable else taken
    queue = ny.cache.create_async_event_queue("audit", listener, dispatcher_threads=1, pause_event_processing=True)
    data = ny.cache.create_region("data", type="REPLICATE", async_event_queue_ids=["audit"])
    data.put_columns([b"%d" % n for n in range(1000)], [b"value %d" % n for n in range(1000)])
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    table = taken.table()
    assert table.column("key").to_pylist() == [b"%d" % n for n in range(1000)]
    assert table.column("value").to_pylist() == [b"value %d" % n for n in range(1000)]
    repeated = table.column("possible_duplicate").to_pylist()
    assert repeated[:100] == [True] * 100 and not any(repeated[100:])


def test_columns_stay_as_they_are_when_the_queue_is_destroyed(ny):
    taken = Taken()
    queue = ny.cache.create_async_event_queue("audit", taken, dispatcher_threads=1)
    data = ny.cache.create_region("data", type="REPLICATE", async_event_queue_ids=["audit"])
    data.put_all({n: f"value {n}" * 100 for n in range(100)})
    assert queue.wait_until_flushed(LIMIT_S)
    data.alter(async_event_queue_ids=[])
    queue.destroy()
    data.clear()
    assert taken.table().column("value").to_pylist() == [f"value {n}" * 100 for n in range(100)]


def test_events_that_fail_alone_are_parked_out_of_columns_too(ny):
    taken = Taken()
    taken.answer = lambda batch: "bad" not in batch.column("key").to_pylist()
    queue = ny.cache.create_async_event_queue(
        "audit", taken, dispatcher_threads=1, park_after_tries=2, pause_event_processing=True
    )
    data = ny.cache.create_region("data", type="REPLICATE", async_event_queue_ids=["audit"])
    data.put_all({"a": 1, "bad": 2, "c": 3})
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    assert taken.table().column("key").to_pylist() == ["a", "c"]
    assert [event["key"] for event in queue.parked()] == ["bad"]


def test_a_parallel_queue_has_the_bucket_as_partition(ny):
    taken = Taken()
    queue = ny.cache.create_async_event_queue("audit", taken, parallel=True)
    data = ny.cache.create_region("data", type="PARTITION", total_num_buckets=7, async_event_queue_ids=["audit"])
    data.put_all({n: n for n in range(500)})
    assert queue.wait_until_flushed(LIMIT_S)
    assert set(taken.table().column("partition").to_pylist()) == set(range(7))


def test_a_listener_with_both_methods_gets_columns(ny):
    received = threading.Event()

    class Both(pywan.AsyncEventListener):
        def process_arrow(self, batch: Any) -> bool:
            received.set()
            return True

        def process_events(self, events: Any) -> bool:
            raise AssertionError("it got events")

    queue = ny.cache.create_async_event_queue("audit", Both())
    ny.cache.create_region("data", type="REPLICATE", async_event_queue_ids=["audit"])["k"] = 1
    eventually(received.is_set)
    assert queue.wait_until_flushed(LIMIT_S)


def test_without_pyarrow_a_listener_of_columns_is_refused_with_the_remedy(ny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    columns._pyarrow.cache_clear()
    with pytest.raises(pywan.ConfigurationError, match=r"process_arrow needs pyarrow.*pip install pywan\[arrow\]"):
        ny.cache.create_async_event_queue("audit", Taken())
    assert ny.cache.async_event_queues() == {}
