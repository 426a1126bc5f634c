"""The limit of a member's memory: near it, changes that need memory are refused in words, and all others go. The member
goes on when there is memory again, and so do those that wait for it: a primary, the senders of other sites.
"""

from __future__ import annotations

import gc
import logging
import random

import pyarrow
import pytest

from pywan import _core
from pywan.base.machine_memory import process_bytes
from pywan.client import DataConnection
from pywan.errors import ConfigurationError, LowMemoryError, QueueFullError
from pywan.member import staging
from pywan.testing.waiting import eventually

MIB = 1 << 20
ROOM = 64 * MIB


def limit_for(room: int = ROOM, percent: float = 95) -> int:
    """The maximum-memory in MB with which a member that starts now is above its limit after `room` bytes more. What
    earlier tests have left goes first: it would be room, too."""
    gc.collect()
    _core.trim_memory(0)
    return int((process_bytes() + room) / MIB * 100 / percent) + 1


@pytest.fixture
def limited(network, tmp_path):
    """(site, region) of a member whose process may take ROOM bytes more than it has."""
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path, maximum_memory=limit_for())
    return ny, ny.region(senders=[])


def fill(site, value) -> tuple[int, LowMemoryError]:
    """Puts new keys until one is refused, also after a look at what the process really has. Returns how many there are,
    and the refusal."""
    data, n = site.data, len(site.data)
    while True:
        try:
            data[n] = value
            n += 1
        except LowMemoryError as error:
            site.cache._core.memory.look()
            if site.cache.status()["memory"]["is_above_critical"]:
                return n, error


def small_region() -> tuple[_core.RegionCore, _core.MemoryLimit]:
    """A region alone, and its limit: the test says what the process takes."""
    region, limit = (
        _core.RegionCore("data", _core.Clock(), site=1, member=1),
        _core.MemoryLimit("server", 100 * MIB, 90 * MIB, 80 * MIB),
    )
    region.limit_memory(limit)
    return region, limit


def goes(change) -> bool:
    try:
        change()
    except LowMemoryError:
        return False
    return True


@pytest.mark.parametrize("length", [40, 900, 50_000])
def test_puts_of_new_keys_are_refused_near_the_limit_and_go_on_after_destroys(limited, length):
    ny, data = limited
    value = b"v" * length
    count, refusal = fill(ny, value)
    status = ny.cache.status()["memory"]
    assert isinstance(refusal, QueueFullError)
    for words in (
        f"memory of member {ny.cache.name} is at its limit: the process has ",
        f"(maximum-memory is {status['maximum'] // MIB} MB); destroy entries, start another member, or raise",
        "nothing was stored or sent",
    ):
        assert words in str(refusal)
    assert status["is_above_critical"] and status["refused"] >= 1
    assert status["critical"] * 0.97 <= process_bytes() <= status["maximum"] * 1.01
    assert len(data) == count and data[0] == data[count - 1] == value and len(list(data)) == count
    data[1] = b"w" * length
    data[2] = b"short"
    with pytest.raises(LowMemoryError):
        data[3] = b"x" * (4 * length + 2_000_000)
    assert data[1] == b"w" * length and data[2] == b"short" and data[3] == value
    data.invalidate(4)
    keys = list(range(count))
    random.Random(1).shuffle(keys)
    for key in keys[: count // 2]:
        del data[key]
    for key in keys[: count // 8]:
        eventually(lambda key=key: goes(lambda: data.put(key, value)), what="room for values of the same size")
        assert data[key] == value
    now = ny.cache.status()["memory"]  # The list of keys above is no memory of the region.
    assert now["regions_and_queues"] <= status["regions_and_queues"] * 1.02 + 2 * MIB


def test_a_clear_makes_all_of_the_room_usable_again(limited):
    ny, data = limited
    count, _ = fill(ny, b"v" * 900)
    data.clear()
    eventually(lambda: not ny.cache.status()["memory"]["is_above_critical"], what="memory after a clear")
    again, _ = fill(ny, b"w" * 5_000)
    assert again * 5_000 >= count * 900 // 2


def test_bulk_calls_stop_at_the_entry_for_which_there_is_no_memory(limited):
    ny, data = limited
    count, _ = fill(ny, b"v" * 50_000)
    with pytest.raises(LowMemoryError, match="is at its limit"):
        data.put_all({f"row {n}": b"v" * 50_000 for n in range(100)})
    keys, values = pyarrow.array([f"column {n}" for n in range(100)]), pyarrow.array([b"v" * 50_000] * 100)
    with pytest.raises(LowMemoryError, match=r"put_columns from row \d+ of 100 on"):
        data.put_columns(keys, values)
    assert len(data) < count + 200
    data.remove_all(list(data))
    eventually(lambda: goes(lambda: data.put_columns(keys, values)), what="memory")
    assert len(data) == 100


def test_rows_of_a_task_wait_at_the_member_until_there_is_memory():
    region, limit = small_region()
    limit.note(100 * MIB, 0)
    sender, stage = _core.RowSender(), _core.RowStage(None, run_id=b"0123456789abcdef", task=1)
    stage.connected(1)
    sender.put_columns([f"row {n}" for n in range(100)], [b"v" * 2000] * 100, ["update"] * 100)
    sender.commit()
    while data := sender.data_to_send():
        stage.receive_data(data)
    assert not stage.apply(region)
    assert isinstance(stage.refusal, LowMemoryError) and stage.applied == 0
    limit.note(0, 0)
    assert stage.apply(region) and stage.applied == len(region) == 100


def test_rows_of_a_client_are_refused_in_words_and_those_that_are_kept_go_in_later(limited, monkeypatch):
    """The task's rows that fit are applied. The others stay at the member, and none is lost or applied twice."""
    monkeypatch.setattr(staging, "FULL_WAIT_S", 0.3)
    ny, data = limited
    value = b"v" * 50_000
    rows = [(n, value) for n in range(3 * ROOM // 2 // 50_000)]

    def commit(task: int, rows: list) -> dict:
        place = str(ny.locator.address)
        with DataConnection.open(place, region="data", run_id=b"0123456789abcdef", task=task) as there:
            there.put_pairs(rows)
            return there.commit()

    with pytest.raises(
        LowMemoryError, match=r"(?s)at its limit.*\d+ of the task's \d+ rows are applied. The rest is kept"
    ):
        commit(1, rows)
    first = set(data)
    assert 0 < len(first) < len(rows)
    with pytest.raises(LowMemoryError, match="none of the task's 10 rows is applied"):
        commit(2, [(f"other {n}", value) for n in range(10)])
    data.clear()
    done: list[dict] = []  # The task is tried again until there is memory: what is freed goes back once a second.
    eventually(lambda: goes(lambda: done.append(commit(1, rows))), what="memory after a clear")
    assert done[0]["rows"] == len(rows) and not done[0]["missing"]
    assert not first & set(data) and first | set(data) == {key for key, _ in rows}


def test_a_destroy_an_invalidation_and_a_repeat_need_no_memory():
    region, limit = small_region()
    for n in range(10):
        region.put(n, b"v" * 2000)
    limit.note(100 * MIB, 0)
    assert limit.is_short
    with pytest.raises(LowMemoryError, match="the process has 10"):
        region.put("new", b"v" * 2000)
    region.put(1, b"w" * 2000)
    region.change(2, 2, None)
    region.invalidate(3)
    with pytest.raises(LowMemoryError):
        region.put(2, b"v" * 2000)
    limit.note(0, 0)
    assert not limit.is_short
    region.put(2, b"v" * 2000)
    assert limit.refused == 2 and limit.shorts == 1


def test_what_a_region_and_a_queue_take_is_counted_and_given_back():
    limit = _core.MemoryLimit("server", 1 << 40, 1 << 40, 1 << 40)
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.limit_memory(limit)
    queue = _core.EventQueue("ln", remote_site=2, memory_limit=1 << 31)
    queue.limit_memory(limit)
    queue.running = True
    region.attach([queue])
    sizes = [10, 500, 3000, 200_000]
    for n in range(4000):
        region.put(n, b"v" * sizes[n % 4])
    stored = sum(sizes) * 1000
    assert 2 * stored <= limit.counted <= 2.4 * stored + 16 * MIB
    queue.peek(0, 4000)
    queue.remove(0, 4000)
    for n in range(4000):
        region.change(2, n, None)
    queue.peek(0, 4000)
    queue.remove(0, 4000)
    assert limit.counted <= 24 * MIB
    region.attach([])
    del region, queue
    assert limit.counted == 0


def test_free_room_of_a_fragmented_table_counts_as_room():
    region, limit = small_region()
    for n in range(50_000):
        region.put(n, b"v" * 400)
    before = limit.counted
    for n in range(0, 50_000, 2):
        region.local_destroy(n)
    assert limit.counted > before * 0.9 and region.free_bytes > before * 0.35
    limit.note(95 * MIB - limit.counted, region.free_bytes)
    assert not limit.is_short
    limit.note(101 * MIB - limit.counted, region.free_bytes)
    assert limit.is_short
    for n in range(0, 40_000, 2):  # They find room in the table, so the process does not become larger.
        region.put(n, b"w" * 400)
    assert limit.counted == before
    with pytest.raises(LowMemoryError):
        region.put("large", b"v" * 5000)


def test_a_machine_that_is_nearly_full_refuses_too():
    region, limit = small_region()
    limit.note(MIB, 0, 12 * MIB)
    with pytest.raises(LowMemoryError, match="machine of member server, or its cgroup, has only 12 MB of memory left"):
        region.put("new", b"v" * 2000)
    limit.note(MIB, 0)
    region.put("new", b"v" * 2000)


# Queues.


def test_a_queue_whose_member_is_above_its_limit_goes_on_in_files(network, tmp_path):
    """The region stores nothing, so only its queue grows. Its own limit is far away."""
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path, maximum_memory=limit_for())
    sender = ny.send_to("ln", maximum_queue_memory=10_000)
    data = ny.region(type="REPLICATE_PROXY")
    value = b"v" * 10_000
    most = 0
    for n in range(20_000):
        data[n] = value
        if n % 500 == 0:
            most = max(most, process_bytes())
    status = ny.cache.status()["memory"]
    assert most <= status["maximum"] * 1.01 and status["refused"] == 0
    assert sender.queue_size == 20_000


# What is given and said.


def test_without_a_critical_percentage_nothing_is_refused(network, tmp_path):
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(dir=tmp_path, maximum_memory=limit_for(), critical_heap_percentage=0)
    data = ny.region(senders=[])
    for n in range(3000):
        data[n] = b"v" * 50_000
    status = ny.cache.status()["memory"]
    assert status["critical"] is None and not status["is_above_critical"] and status["used"] > status["maximum"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"maximum_memory": 1}, "maximum_memory"),
        ({"critical_heap_percentage": 101}, "critical_heap_percentage 101 is not a percentage"),
        ({"critical_heap_percentage": "much"}, "is not a percentage"),
        ({"critical_heap_percentage": 50, "eviction_heap_percentage": 60}, "is above critical_heap_percentage"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_in_words(network, given, words):
    ny = network.site("ny")
    ny.cache.close()
    with pytest.raises(ConfigurationError, match=words):
        ny.start_member(**given)
    ny.start_member()


def test_a_cache_xml_gives_the_percentages_of_geode(network, tmp_path):
    file = tmp_path / "cache.xml"
    file.write_text('<cache><resource-manager critical-heap-percentage="60.5" eviction-heap-percentage="40"/></cache>')
    ny = network.site("ny")
    ny.cache.close()
    ny.start_member(cache_xml_file=file, maximum_memory=10_000)
    status = ny.cache.status()["memory"]
    assert status["maximum"] == 10_000 * MIB and status["critical"] == int(10_000 * MIB * 0.605)


def test_the_log_warns_before_the_limit_at_it_and_when_there_is_memory_again(limited, caplog):
    ny, data = limited
    with caplog.at_level(logging.INFO, "pywan.cache"):
        fill(ny, b"v" * 50_000)
        eventually(lambda: "is above its limit of memory" in caplog.text, what="a warning")
        data.clear()
        eventually(lambda: "has memory again" in caplog.text, what="the end of it")
        fill(ny, b"v" * 50_000)
        data.clear()
    assert caplog.text.count("is above its limit of memory") == 1
    assert all(record.levelno == logging.WARNING for record in caplog.records if "of memory" in record.getMessage())


# From another site.


@pytest.mark.parametrize("where", ["here", "there"])
def test_events_wait_at_the_sender_while_the_receivers_member_has_no_memory(network, tmp_path, where):
    """Nothing is lost or parked. Destroys in the batch of the puts that do not fit make room for them, and so do
    destroys at the receiving site."""
    ny, ln = network.site("ny"), network.site("ln")
    ln.cache.close()
    ln.start_member(dir=tmp_path, maximum_memory=limit_for(2 * ROOM))
    ln.receive()
    sender = ny.send_to(ln, batch_size=10_000)
    there, here = ln.region(senders=[]), ny.region()
    value = b"v" * 50_000
    count = 0

    def is_above() -> bool:
        return ln.cache.status()["memory"]["is_above_critical"]

    while not is_above() or sender.queue_size == 0:
        # So few events wait, of 2 MB, that one batch has them and the destroys behind them.
        eventually(lambda: sender.queue_size < 40 or is_above(), what="an event that the receiver took")
        here[count] = value
        count += 1
        assert count < 10_000
    if where == "here":
        sender.pause()
        for key in range(count - 10):
            del here[key]
        here["last"] = value
        sender.resume()
    else:
        assert len(there) < count and sender.queue_size > 0
        for key in range(count // 2):
            there.local_destroy(key)
    eventually(lambda: sender.queue_size == 0, what="an empty queue")
    assert sender.parked_count == 0
    if where == "here":
        assert dict(there) == dict(here) and len(there) == 11
    else:
        assert there[count - 1] == value
    network.check_ledgers()
