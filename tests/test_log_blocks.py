"""Blocks of every size in a queue's log: what one commit wrote is there again, however large it was."""
import threading

import pytest

from pywan import _core

ROW = b"v" * 1000


def opened(directory):
    return _core.EventQueue("ln", remote_site=2, partitions=2, memory_limit=256 << 20, directory=str(directory),
                            log_directory=str(directory / "log"), log_id=5, synchronous=True)


def commit(queue):
    """Writes all that is staged as one block."""
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
        staged = threading.Thread(target=lambda: region.put_columns(keys, [ROW] * count))
        staged.start()
        while queue.log_state()["staged"] < count:
            pass
        committer.start()
        staged.join()
        committer.join()
        total += count
        region.attach([])
        del queue, region
    assert len(opened(tmp_path)) == total
