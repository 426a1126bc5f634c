"""Segment files of a log that somebody cuts off while a recovered queue has its events in them: mapped, where touching
them would end the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.tree import ROOT

PREPARE = """
import logging, os, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.records import BATCH, UPDATE, make_record, split_frames
from pywan import _core
from pywan.errors import DiskError

logging.basicConfig(stream=sys.stdout, format="%(message)s")
folder = Path(sys.argv[1])

def opened(**more):
    log = dict(directory=folder.parent, log_directory=folder, log_id=7)
    return _core.EventQueue("ln", remote_site=2, partitions=1, memory_limit=64 << 20, **log, **more)

queue = opened()
for n in range(2000):
    queue.append_record(make_record(b"key %d" % n, b"v" * 1000, operation=UPDATE, stamp=n + 1))
assert queue.commit_once()
del queue
queue = opened()
assert len(queue) == 2000
segment = next(file for file in sorted(folder.iterdir()) if file.name != "MANIFEST")
parked = _core.EventQueue("parked", partitions=8)
session = _core.DispatcherSession(queue, 0, parked)
session.configure(100, -1)
session.connected(1 << 20, 64 << 20, 1)

def sent(now_us):
    return sum(frame.count for frame in split_frames(session.data_to_send(now_us)) if frame.type == BATCH)

def check_balance():
    counts = queue.counts()
    assert counts["queued"] == counts["events"] == 2000, counts
"""


def run(folder: Path, program: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREPARE) + textwrap.dedent(program), str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


def test_what_lies_behind_the_cut_is_not_sent_and_the_process_lives_and_names_the_file(folder):
    out = run(
        folder,
        """
        assert sent(1) == 100
        os.truncate(segment, 4096 + 500_000 + 11)
        assert sent(2) == 0 and sent(3) == 0
        assert "was cut off" in session.unreadable_reason and str(segment) in session.unreadable_reason
        assert sent(5_000_000) == 0
        check_balance()
        assert queue.oldest_ms() is None
        try:
            queue.records(10)
        except DiskError as error:
            assert str(segment) in str(error)
        else:
            raise AssertionError("records of a file that was cut off")
    """,
    )
    assert out.count("was cut off") == 1


def test_a_file_that_is_whole_again_is_sent_on(folder):
    run(
        folder,
        """
        whole = segment.read_bytes()
        os.truncate(segment, 0)
        assert sent(1) == 0
        segment.write_bytes(whole)
        assert sent(2) == 0 and sent(2_000_000) == 100 and sent(2_000_001) == 100
        assert session.unreadable_reason is None
        check_balance()
    """,
    )


def test_events_of_a_cut_file_are_not_replayed_and_stay(folder):
    run(
        folder,
        """
        os.truncate(segment, 8192)
        to = _core.EventQueue("to", remote_site=2)
        try:
            queue.replay_into(to)
        except DiskError as error:
            assert "was cut off" in str(error)
        else:
            raise AssertionError("replayed")
        check_balance()
    """,
    )


def test_a_queue_that_conflates_compares_with_no_file(folder):
    run(
        folder,
        """
        del session
        queue = None
        queue = opened(conflate=True)
        os.truncate(segment, 4096)
        queue.append_record(make_record(b"key 1", b"new", operation=UPDATE, stamp=5000))
        session = _core.DispatcherSession(queue, 0, parked)
        session.configure(100, -1)
        session.connected(1 << 20, 64 << 20, 1)
        assert sent(1) == 100
    """,
    )


def test_a_file_that_is_cut_off_while_a_filter_looks_at_its_events_ends_no_process(folder):
    run(
        folder,
        """
        def cut(event):
            os.truncate(segment, 4096)
            return True

        session = _core.DispatcherSession(queue, 0, parked, filters=_core.EventFilters(before_transmit=[cut]))
        session.configure(100, -1)
        session.connected(1 << 20, 64 << 20, 1)
        frames = split_frames(session.data_to_send(1))
        assert sum(frame.count for frame in frames if frame.type == BATCH) == 100
        assert b"".join(frame.payload for frame in frames).count(b"v" * 1000) == 100  # The value that was there before.
        assert sent(2) == 0 and "was cut off" in session.unreadable_reason
    """,
    )


def test_a_file_that_shrinks_at_any_moment_of_the_sending_ends_no_process_and_is_sent_whole_or_not_at_all(folder):
    run(
        folder,
        """
        import threading

        def cut():
            for left in range(segment.stat().st_size, 4095, -1000):
                os.truncate(segment, left)

        thread = threading.Thread(target=cut)
        thread.start()
        for now_us in range(1, 1_000_000):
            for frame in split_frames(session.data_to_send(now_us)):
                if frame.type == BATCH:
                    assert frame.payload.count(b"v" * 1000) == frame.count == 100
            if session.unreadable_reason is not None:
                break
            session.disconnected()      # The same events again.
            session.connected(1 << 20, 64 << 20, now_us)
        else:
            raise AssertionError("never unreadable")
        thread.join()
    """,
    )
