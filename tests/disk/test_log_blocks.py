"""Blocks of every size in a queue's log: what one commit wrote is there again, however large it was."""

import threading

import pytest

from pywan import _core
from support.durable import DurableQueue

ROW = b"v" * 1000


def opened(directory):
    return _core.EventQueue(
        "ln",
        remote_site=2,
        partitions=2,
        memory_limit=256 << 20,
        directory=str(directory),
        log_directory=str(directory / "log"),
        log_id=5,
        synchronous=True,
    )


def commit(queue):
    """Writes all that is staged as one commit."""
    committer = threading.Thread(target=queue.commit_loop)
    committer.start()
    queue.wait_durable()
    queue.stop_log()
    committer.join()


@pytest.mark.parametrize("rows", [[10, 20_000], [10, 20_000, 10], [20_000, 20_000], [10, 9_000, 9_000, 10]])
def test_a_commit_larger_than_a_segment_is_recovered(tmp_path, rows):
    (tmp_path / "log").mkdir()
    total = 0
    for count in rows:
        queue = opened(tmp_path)
        queue.running = True
        assert len(queue) == total
        region = _core.RegionCore("data", _core.Clock(), site=1, member=7, stores=False)
        region.attach([queue])
        keys = [b"%06d" % n for n in range(total, total + count)]
        committer = threading.Thread(target=commit, args=(queue,))
        staged = threading.Thread(target=region.put_columns, args=(keys, [ROW] * count))
        staged.start()
        while queue.log_state()["pending"] < count:
            pass
        committer.start()
        staged.join()
        committer.join()
        total += count
        region.attach([])
        del queue, region
    assert len(opened(tmp_path)) == total


def segment_sizes(folder):
    return [file.stat().st_size for file in sorted((folder / "log").glob("*.seg"))]


def test_a_large_commit_is_written_in_segments_of_the_usual_size_that_go_one_by_one(tmp_path):
    queue = DurableQueue(tmp_path, stores=False)
    queue.region.put_columns([b"%06d" % n for n in range(40_000)], [ROW] * 40_000)
    queue.commit()
    assert len(segment_sizes(tmp_path)) >= 5 and max(segment_sizes(tmp_path)) == 8 << 20
    before = len(segment_sizes(tmp_path))
    queue.send(20_000)
    queue.commit()
    assert len(segment_sizes(tmp_path)) <= before - 2
    queue.crash()
    assert queue.sequences() == list(range(20_001, 40_001))
    queue.check_ledger()


@pytest.mark.parametrize("conflate", [False, True])
def test_a_commit_that_breaks_off_between_its_blocks_leaves_the_first_of_its_events_or_goes_on(tmp_path, conflate):
    """Each of many commits finds room for another part of its blocks; then the process is killed, or room is made."""
    parts_seen = set()
    for room in (15, 30):
        for way in ("crash", "room"):
            queue = DurableQueue(tmp_path / f"{room}-{way}", conflate=conflate, store_bytes=8 << 20)
            filled = 0
            while queue.queue.commit_once():
                queue.region.put(f"filler{filled}", ROW * 20)
                filled += 1
            queue.send(room)  # Some fillers are sent, so that some segments go.
            assert queue.queue.commit_once()
            for n in range(800):
                queue.region.put(f"key{n % 50}", b"%d" % n + ROW)
            is_done = queue.queue.commit_once()
            if way == "room" and not is_done:
                queue.send(100)
                is_done = queue.queue.commit_once()
                assert is_done
            sent = queue.queue.positions()[0][0]
            queue.crash()
            queue.check_ledger()
            assert [sequence for sequence in queue.sequences() if sequence <= filled] == list(
                range(sent + 1, filled + 1)
            )
            found = [sequence for sequence in queue.sequences() if sequence > filled]
            if is_done:
                assert found[-50:] == list(range(filled + 751, filled + 801))
                assert {key: value for key, value in queue.latest().items() if key.startswith("key")} == {
                    f"key{n % 50}": b"%d" % n + ROW for n in range(750, 800)
                }
            else:  # Nobody was told of them, so each may be there or not; in their order.
                assert found == list(range(filled + 1, filled + 1 + len(found)))
                parts_seen.add(len(found))
            queue.close()
    assert any(0 < part < 800 for part in parts_seen), parts_seen
