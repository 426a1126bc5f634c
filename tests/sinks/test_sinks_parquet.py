"""Parquet files behind a queue: whole or absent, each event in one of them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pywan.errors import ConfigurationError, IllegalStateError
from pywan.sinks import parquet
from pywan.testing.local_site import LocalSite
from pywan.testing.processes import python_environment
from pywan.testing.waiting import LIMIT_S, eventually

arrow = pytest.importorskip("pyarrow")
dataset = pytest.importorskip("pyarrow.dataset")


@pytest.fixture
def cache():
    with contextlib.closing(LocalSite("ny", 1)) as site:
        yield site.start_member()


def batch(*puts, queue="to-files", life=0xABC, again=False):
    """Events as columns: (sequence, key, value), or with a partition behind them."""
    sequences, keys, values = ([each[n] for each in puts] for n in range(3))
    made = arrow.record_batch(
        {
            "key": keys,
            "value": values,
            "partition": arrow.array([each[3] if len(each) > 3 else 0 for each in puts], arrow.uint32()),
            "sequence": arrow.array(sequences, arrow.uint64()),
            "possible_duplicate": arrow.array([again] * len(puts), arrow.bool_()),
        }
    )
    return made.replace_schema_metadata({"pywan.queue": queue, "pywan.life": str(life)})


def puts(first, end):
    return [(n, f"k{n}", f"v{n}") for n in range(first, end)]


def files(folder):
    return sorted(path.name for path in Path(folder).glob("*.parquet"))


def rows(folder):
    """What a program finds that reads the folder."""
    if not files(folder):
        return []
    table = dataset.dataset(folder, format="parquet").to_table(columns=["sequence", "key", "value"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.fixture
def made(tmp_path):
    """Makes sinks of one folder. One that is let go of leaves the folder as its process would if it were killed."""
    sinks = []

    def make(**more):
        for sink in sinks:
            let_go(sink)
        sinks.append(parquet.ParquetSink(tmp_path, **{"max_seconds": 3600, **more}))
        return sinks[-1]

    yield make
    for sink in sinks:
        let_go(sink)


def let_go(sink):
    if not sink._is_closed:
        with sink._changed:
            sink._is_closed = True
            sink._open.clear()
            sink._changed.notify_all()
        os.close(sink._lock_file)


# Files


def test_the_files_have_every_event_of_the_region(cache, tmp_path):
    sink = parquet.ParquetSink(tmp_path, max_rows=100)
    queue = cache.create_async_event_queue("to-files", sink, batch_size=20, dispatcher_threads=3)
    orders = cache.create_region("orders", type="REPLICATE", async_event_queue_ids=["to-files"])
    for n in range(500):
        orders[f"k{n % 40}"] = f"v{n}"
    del orders["k7"]
    assert queue.wait_until_flushed(LIMIT_S)
    assert 1 <= len(files(tmp_path)) <= 6
    cache.close()
    table = dataset.dataset(tmp_path, format="parquet").to_table()
    values = [value for value in table["value"].to_pylist() if value is not None]
    assert sorted(values) == sorted(f"v{n}" for n in range(500))
    assert set(table["region"].to_pylist()) == {"orders"} and table["operation"].to_pylist().count("destroy") == 1
    places = list(zip(table["partition"].to_pylist(), table["sequence"].to_pylist(), strict=True))
    assert len(set(places)) == 501


@pytest.mark.parametrize(("limit", "expected"), [({"max_rows": 25}, [30]), ({"max_bytes": 1}, [10, 10, 10]), ({}, [])])
def test_a_file_is_finished_when_it_is_large_enough(made, tmp_path, limit, expected):
    sink = made(**limit)
    for first in (1, 11, 21):
        sink.process_arrow(batch(*puts(first, first + 10)))
    assert [arrow.parquet.read_metadata(tmp_path / name).num_rows for name in files(tmp_path)] == expected


def test_a_file_is_finished_when_it_is_old_enough_although_no_event_comes(made, tmp_path):
    made(max_seconds=0.05).process_arrow(batch(*puts(1, 3)))
    eventually(lambda: rows(tmp_path) == puts(1, 3))


def test_closing_finishes_the_files(made, tmp_path):
    sink = made()
    sink.process_arrow(batch(*puts(1, 3)))
    assert files(tmp_path) == []
    sink.close()
    assert files(tmp_path) == ["to-files-0000000000000abc-0-1.parquet"] and rows(tmp_path) == puts(1, 3)
    with pytest.raises(IllegalStateError, match="is closed"):
        sink.process_arrow(batch(*puts(3, 4)))


def test_queues_and_lives_have_files_of_their_own(made, tmp_path):
    sink = made()
    for number, more in enumerate(({}, {"life": 2**64 - 1}, {"queue": "a/b"})):
        sink.process_arrow(batch((1, "k", str(number)), **more))
    sink.close()
    assert files(tmp_path) == [
        "a_b-0000000000000abc-0-1.parquet",
        "to-files-0000000000000abc-0-1.parquet",
        "to-files-ffffffffffffffff-0-1.parquet",
    ]


# Each event once


def test_events_that_come_again_are_not_written_again(made, tmp_path):
    """In the same process, in a later one that finds parts, and in one that finds only files."""
    sink = made()
    sink.process_arrow(batch(*puts(1, 4)))
    sink.process_arrow(batch(*puts(1, 6), again=True))
    sink = made()
    assert rows(tmp_path) == puts(1, 6)
    sink.process_arrow(batch(*puts(3, 8), again=True))
    sink.close()
    sink = made()
    sink.process_arrow(batch(*puts(1, 9), again=True))
    sink.close()
    assert rows(tmp_path) == puts(1, 9)


def test_partitions_have_marks_of_their_own(made, tmp_path):
    sink = made()
    sink.process_arrow(batch((5, "a", "x", 0), (1, "b", "x", 1)))
    sink.process_arrow(batch((5, "a", "y", 0), (2, "b", "y", 1), (6, "a", "y", 0), again=True))
    sink.close()
    assert rows(tmp_path) == [(1, "b", "x"), (2, "b", "y"), (5, "a", "x"), (6, "a", "y")]


@pytest.mark.parametrize("moment", range(4))
def test_a_process_that_ends_while_it_finishes_a_file_leaves_each_event_once(made, tmp_path, monkeypatch, moment):
    """Before the whole file, before the marks, before the name of the file, and between its parts as they go."""
    sink = made()
    sink.process_arrow(batch(*puts(1, 4)))
    sink.process_arrow(batch(*puts(4, 6)))

    def die(*args, **options):
        if where[1] == "remove":
            next(args[0].folder.glob("*.parquet")).unlink()
        raise KeyboardInterrupt

    where = (
        (parquet.Parts, "write"),
        (parquet, "write_synced"),
        (parquet.os, "replace"),
        (parquet.Parts, "remove"),
    )[moment]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*where, die)  # A method, so it gets the parts.
        with sink._changed:
            sink._finish_what_is_due(all_of_them=True)
    assert rows(tmp_path) in ([], puts(1, 6))
    sink = made()
    assert rows(tmp_path) == puts(1, 6)
    sink.process_arrow(batch(*puts(1, 7), again=True))
    sink.close()
    assert rows(tmp_path) == puts(1, 7)
    assert sorted(path.name for path in (tmp_path / "_parts").iterdir()) == ["lock", "marks.json"]


def test_a_batch_that_was_not_written_comes_again(made, tmp_path, monkeypatch):
    sink = made()
    sink.process_arrow(batch(*puts(1, 3)))

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parquet.Parts, "add", full)
        with pytest.raises(OSError, match="No space"):
            sink.process_arrow(batch(*puts(3, 5)))
    sink.process_arrow(batch(*puts(3, 6), again=True))
    sink.close()
    assert rows(tmp_path) == puts(1, 6)


def test_a_file_that_cannot_be_finished_stays_in_parts_and_is_tried_again(made, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "RETRY_S", 0.01)
    sink = made(max_rows=2)

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parquet.Parts, "write", full)
        assert sink.process_arrow(batch(*puts(1, 4)))
        assert rows(tmp_path) == []
    eventually(lambda: rows(tmp_path) == puts(1, 4))


def test_a_refused_event_behind_which_the_queue_went_on_is_not_taken_for_done(made, tmp_path, monkeypatch):
    sink = made()
    add = parquet.Parts.add

    def refuse(parts, table, marks):
        if "bad" in table["value"].to_pylist():
            raise ValueError("bad")
        add(parts, table, marks)

    with monkeypatch.context() as patch:
        patch.setattr(parquet.Parts, "add", refuse)
        sink.process_arrow(batch((1, "a", "1")))
        with pytest.raises(ValueError, match="bad"):
            sink.process_arrow(batch((2, "b", "bad")))
        sink.process_arrow(batch((3, "c", "3")))
    again = batch((1, "a", "1"), (2, "b", "bad"), (3, "c", "3"), again=True)
    for _ in range(2):
        sink = made()
        sink.process_arrow(again)
    sink.close()
    assert rows(tmp_path) == [(1, "a", "1"), (2, "b", "bad"), (3, "c", "3")]


def test_new_events_with_sequences_of_the_past_are_refused(made):
    made().process_arrow(batch(*puts(1, 5)))
    with pytest.raises(IllegalStateError, match="restored from a copy"):
        made().process_arrow(batch(*puts(3, 4)))


PROGRAM = """
    import itertools
    import sys
    import pywan
    from pywan.sinks.parquet import ParquetSink

    what, locators, folder, files = sys.argv[1:]
    with pywan.Cache("server_ny", locators=locators, dir=folder) as cache:
        sink = ParquetSink(files, max_rows=40)
        queue = cache.create_async_event_queue("to-files", sink, persistent=True, batch_size=7)
        orders = cache.create_region("orders", type="REPLICATE_PERSISTENT", async_event_queue_ids=["to-files"])
        if what == "flush":
            assert queue.wait_until_flushed(60)
            sys.exit()
        for n in itertools.count(len(orders)):  # Until it is killed. At the latest it waits when the pipe is full.
            orders[n] = f"v{n}"
            print(n, flush=True)
"""


def test_over_kill_9_each_event_is_in_one_file(tmp_path):
    (tmp_path / "member").mkdir()
    with contextlib.closing(LocalSite("ny", 1)) as site:
        put = put_and_kill(str(site.locator.address), tmp_path)
    table = dataset.dataset(tmp_path / "files", format="parquet").to_table(columns=["key", "partition", "sequence"])
    places = list(zip(table["partition"].to_pylist(), table["sequence"].to_pylist(), strict=True))
    assert len(places) == len(set(places)), "an event is in two files"
    assert set(table["key"].to_pylist()) >= put


def put_and_kill(locators, folder):
    """The keys that were put, by three processes that were killed. A fourth one lets the queue run empty."""

    def begin(what):
        arguments = [what, locators, folder / "member", folder / "files"]
        program = [sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments]
        return subprocess.Popen(program, stdout=subprocess.PIPE, env=python_environment(), text=True)

    put = set()
    for _ in range(3):
        with begin("put") as process:
            put.update(int(line) for line in itertools.islice(process.stdout, 100))
            process.send_signal(signal.SIGKILL)
            put.update(int(line) for line in process.stdout)  # It went on until the signal was there.
        assert process.returncode == -signal.SIGKILL
    with begin("flush") as process:
        assert process.stdout.read() == ""
    assert process.returncode == 0 and len(put) >= 300
    return put


# Columns


def test_a_batch_of_several_kinds_has_a_field_for_each(cache, tmp_path):
    queue = cache.create_async_event_queue("to-files", parquet.ParquetSink(tmp_path), dispatcher_threads=1)
    orders = cache.create_region("orders", type="REPLICATE", async_event_queue_ids=["to-files"])
    queue.pause()
    orders["a"], orders[2], orders["c"] = 1, "two", b"three"
    del orders["a"]
    queue.resume()
    assert queue.wait_until_flushed(LIMIT_S)
    cache.close()
    table = dataset.dataset(tmp_path, format="parquet").to_table(columns=["key", "value"])
    found = [
        tuple({kind: each for kind, each in (row[name] or {}).items() if each is not None} for name in ("key", "value"))
        for row in table.to_pylist()
    ]
    assert found == [
        ({"text": "a"}, {"int": 1}),
        ({"int": 2}, {"text": "two"}),
        ({"text": "c"}, {"bytes": b"three"}),
        ({"text": "a"}, {}),
    ]


def test_batches_of_unlike_columns_go_to_unlike_files(made, tmp_path):
    sink = made()
    sink.process_arrow(batch((1, "a", None), (2, "b", None)))
    sink.process_arrow(batch((3, "a", "text")))
    sink.process_arrow(batch((4, "a", 17)))
    sink.process_arrow(batch((5, "a", "more")))
    sink.close()
    found = {name: arrow.parquet.read_table(tmp_path / name)["value"].to_pylist() for name in files(tmp_path)}
    assert sorted(found.values(), key=len) == [[17], [None, None, "text", "more"]]


def test_columns_can_be_named_or_made(made, tmp_path):
    made(columns=["key"]).process_arrow(batch(*puts(1, 3)))
    made(columns=lambda each: each.select(["value"]).rename_columns(["text"])).process_arrow(batch(*puts(3, 4)))
    made().close()
    assert [arrow.parquet.read_table(tmp_path / name).to_pydict() for name in files(tmp_path)] == [
        {"key": ["k1", "k2"]},
        {"text": ["v3"]},
    ]


# What cannot be used


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_rows": 0}, "max_rows has to be a number over 0, and is 0"),
        ({"max_seconds": "60"}, "max_seconds has to be a number"),
        ({"compression": "zip"}, "compression 'zip' is not known"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_at_once(tmp_path, arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        parquet.ParquetSink(tmp_path / "files", **arguments)


def test_a_folder_has_one_sink_at_a_time(made, tmp_path):
    sink = made()
    with pytest.raises(IllegalStateError, match="another sink writes to"):
        parquet.ParquetSink(tmp_path)
    sink.close()
    parquet.ParquetSink(tmp_path).close()


def test_columns_that_no_queue_made_are_refused(made):
    with pytest.raises(TypeError, match="does not say its queue"):
        made().process_arrow(batch(*puts(1, 2)).replace_schema_metadata(None))
