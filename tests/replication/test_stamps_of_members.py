"""Two members of a site, one of which has a wrong clock or is not what it says: the other one keeps its time, goes on
taking changes, and goes on telling its listeners. All bytes come through the port of the member."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator

import pytest

import pywan
from fuzz_core.repl_link import ENTRY, SNAPSHOT, bucket_of, changes, entry, piece, region_frame, section
from pywan import _core
from pywan.base.clocks import DRIFT_MS
from pywan.base.lines import LINES_AT_ONCE, LINES_PERIOD_S
from pywan.coordination.tables import Bucket
from pywan.protocol import between_members as wire
from pywan.replication.peer import Peer
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.data import receive_exactly
from support.member_pair import ATTRIBUTES, BUCKETS, REGION, Pair, now_ms

HOUR_MS = 3_600_000
YEAR_MS = 366 * 24 * HOUR_MS


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def wrong() -> Iterator[Pair]:
    made = Pair(2 * HOUR_MS)
    yield made
    made.close()


def clock_of(cache: pywan.Cache) -> _core.Clock:
    return cache._core.state.clock


class ReplLink:
    """A replication link to the second member, as the first one opens it."""

    def __init__(self, pair: Pair) -> None:
        agent = pair.two._core.agent
        self.sock = socket.create_connection(("127.0.0.1", pair.two.port), timeout=LIMIT_S)
        one, openings = pair.one._core.agent.me, pair.one._core.sharing._openings
        word = openings.begin(wire.REPLICATION, one, agent.me)
        self.sock.sendall(wire.encode_opening(wire.REPLICATION, wire.Opening(one, agent.me, agent.site_identity, word)))
        head = receive_exactly(self.sock, wire.HEAD_BYTES)
        wire.check_answer(receive_exactly(self.sock, wire.length_of_body(wire.REPLICATION, head)), "the member")
        openings.end(word)

    def ends_after(self, frame: bytes) -> bool:
        """Sends the frame. Returns whether the member closes the replication link."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(region_frame(1, REGION, BUCKETS) + frame)
            while self.sock.recv(65536):
                pass
        self.sock.close()
        return True


def led_by_one(pair: Pair) -> tuple[int, Bucket, bytes]:
    """A bucket that the first member leads, and a key of it."""
    number = pair.one._core.sharing.led(REGION)[0]
    return number, pair.bucket(number), next(key for key in (b"k%d" % n for n in range(99)) if bucket_of(key) == number)


def frame_of(pair: Pair, made: bytes, **more: int) -> bytes:
    """A frame with one entry that is next at the second member's replica."""
    number, bucket, _ = led_by_one(pair)
    first = pair.two._core.sharing._regions[REGION].changelog.log_end(number) + 1
    fields = {"bucket": number, "timeline": bucket.timeline, "epoch": bucket.epoch.word, **more}
    return changes([section([made], fields.pop("first", first), **fields)], 1)


def with_bytes(made: bytes, at: int, value: int, size: int = 1) -> bytes:
    return made[:at] + value.to_bytes(size, "little") + made[at + size :]


def wrong_frames(pair: Pair) -> dict[str, tuple[bytes, str]]:
    """Frames with one field out of its range, and what the log says of each."""
    number, bucket, key = led_by_one(pair)
    good, far = entry(key, b"value", stamp=now_ms() << 16), 2**64 - 1
    record = ENTRY.size
    verdict = bytes(8) + bytes(4) + b"\x06\x00\x00\x00"
    judged = with_bytes(good, 4, 16, 4)
    judged = with_bytes(judged, 0, len(good) + 16, 4) + verdict
    snapshot = {"bucket": number, "timeline": bucket.timeline, "epoch": bucket.epoch.word}
    return {
        "outcome 5": (frame_of(pair, with_bytes(good, 12, 5)), "the outcome 5"),
        "outcome 3": (frame_of(pair, with_bytes(good, 12, 3)), "the outcome 3"),
        "outcome 255": (frame_of(pair, with_bytes(good, 12, 255)), "the outcome 255"),
        "form": (frame_of(pair, with_bytes(good, 13, 200)), "the form 200"),
        "flags": (frame_of(pair, with_bytes(good, 14, 255)), "the flags 255"),
        "kind": (frame_of(pair, with_bytes(good, 15, 9)), "is not whole"),
        "length": (frame_of(pair, with_bytes(good, 0, 8, 4)), "is not whole"),
        "found": (frame_of(pair, with_bytes(good, 8, 1 << 30, 4)), "do not make up its length"),
        "verdict length": (frame_of(pair, with_bytes(good, 4, 1 << 31, 4)), "do not make up its length"),
        "verdict": (frame_of(pair, judged), "has the verdict 6"),
        "value length": (frame_of(pair, with_bytes(good, record, far % 2**32, 4)), "value of 4294967295 bytes"),
        "told through": (frame_of(pair, good, notified=far, high_watermark=far - 1), "that listeners were notified"),
        "sequence": (frame_of(pair, good, first=2**63), "begins with sequence"),
        "gap": (frame_of(pair, good, first=2**40), "a gap in bucket"),
        "stamp": (frame_of(pair, entry(key, b"value", stamp=far)), "no clock is so wrong"),
        "a year": (frame_of(pair, entry(key, b"value", stamp=now_ms() + 2 * YEAR_MS << 16)), "no clock is so wrong"),
        "image": (
            _core.pack_frame(SNAPSHOT, piece([entry(key, b"v", outcome=4)], 0, **snapshot), 1),
            "the outcome 4",
        ),
    }


@contextlib.contextmanager
def without_own_repl_links(pair: Pair) -> Iterator[None]:
    """The first member opens no replication link meanwhile: it would take the place of one that is opened in its
    name."""
    may_open, open_one = threading.Event(), Peer._run_connection

    def wait_and_open(peer: Peer) -> None:
        if peer._me == pair.one._core.agent.me:
            may_open.wait(LIMIT_S)
        open_one(peer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "_run_connection", wait_and_open)
        try:
            yield
        finally:
            may_open.set()


def test_a_replication_link_with_a_field_out_of_its_range_is_closed_in_one_line_and_the_site_goes_on(pair, caplog):
    caplog.set_level("INFO")
    frames = wrong_frames(pair)
    with without_own_repl_links(pair):
        for name, (frame, words) in frames.items():
            caplog.clear()
            assert ReplLink(pair).ends_after(frame), name
            eventually(lambda words=words: words in caplog.text, what=f"a line for {name}")
            lines = [each for each in caplog.records if "the replication link from member" in each.getMessage()]
            assert len(lines) == 1 and not lines[0].exc_info, (name, caplog.text)
        caplog.clear()
        began = time.monotonic()
        for _ in range(10):
            for frame, _words in frames.values():
                assert ReplLink(pair).ends_after(frame)
        periods = 2 + (time.monotonic() - began) / LINES_PERIOD_S
    assert (
        sum("the replication link from member" in each.getMessage() for each in caplog.records)
        <= periods * LINES_AT_ONCE
    )
    assert not any(each.exc_info for each in caplog.records)
    for n in range(50):
        pair.first.put(f"later{n}", n)
    eventually(lambda: len(pair.received.keys) == 50, what="the listener was notified of all")
    assert clock_of(pair.two).ahead_ms < DRIFT_MS


def test_changes_of_a_member_whose_clock_is_wrong_are_taken_and_move_no_other_clock(wrong, caplog):
    key = next(wrong.keys_led_by(wrong.one))
    wrong.first.put(key, "value")
    assert wrong.stamp_ms(wrong.two, key) > now_ms() + 2 * HOUR_MS - 60_000
    assert wrong.second.get(key) == "value"
    assert clock_of(wrong.two).ahead_ms == 0
    own = next(wrong.keys_led_by(wrong.two))
    wrong.second.put(own, 1)
    assert abs(wrong.stamp_ms(wrong.one, own) - now_ms()) < 60_000
    eventually(lambda: "stamps of member one" in caplog.text, what="a line about the clock")
    (line,) = [each.getMessage() for each in caplog.records if "stamps of member one" in each.getMessage()]
    assert 7_000 < int(line.split("are ")[1].split(" s ahead")[0]) <= 7_200, line
    assert "stamps of member two" not in caplog.text
    assert 7_000 < wrong.two._core.status()["clocks_ahead"]["one"] <= 7_200
    assert wrong.one._core.status()["clocks_ahead"] == {}


def test_a_put_wins_over_an_entry_that_is_ahead_and_leaves_the_clock_where_it_is(wrong):
    keys = list(itertools.islice(wrong.keys_led_by(wrong.one), 3))
    for key in keys:
        wrong.first.put(key, "old")
    wrong.one.close()
    eventually(lambda: len(wrong.two._core.sharing.led(REGION)) == BUCKETS, what="the second member leads")
    ahead = wrong.stamp_ms(wrong.two, keys[0])
    assert ahead > now_ms() + HOUR_MS
    wrong.second.put(keys[0], "new")
    wrong.second.destroy(keys[1])
    assert wrong.second.get(keys[0]) == "new" and keys[1] not in wrong.second and wrong.second.get(keys[2]) == "old"
    assert clock_of(wrong.two).ahead_ms == 0


def test_a_snapshot_with_stamps_that_are_ahead_moves_no_clock(wrong):
    keys = list(itertools.islice(wrong.keys_led_by(wrong.one), 3))
    for key in keys:
        wrong.first.put(key, "old")
    wrong.two.close()
    wrong.first.destroy(keys[1])
    wrong.two = pywan.Cache("two", locators=str(wrong.locator.address))
    wrong.second = wrong.two.create_region(REGION, **ATTRIBUTES)
    eventually(lambda: wrong.is_whole, what="two replicas of each bucket")
    assert wrong.stamp_ms(wrong.two, keys[0]) > now_ms() + HOUR_MS
    assert clock_of(wrong.two).ahead_ms == 0
