"""What another member says over a lane is checked against what this member knows: the end of the bucket's stream, and
who holds the bucket and runs the sender, as the coordinator's tables say."""

from __future__ import annotations

import struct

import pytest

from fuzz_core.lane import IMAGE, SENDER, changes, enters, entry, piece, region_frame, section, settled_frame
from pywan import _core
from pywan.errors import ProtocolError
from records import PING, make_record
from test_fed_queues import balanced
from test_lane import BUCKETS, LIFE, TRANSFER, key_of
from test_settled import Holders

FAR = 1 << 40
ONE, OTHER = 7, 8  # The numbers of two members.
KEPT_BYTES = 1 << 20


class Heard:
    """The queue of a copy with ten events of each bucket, and a lane on which member ONE speaks."""

    def __init__(self, *, learns: bool = False) -> None:
        self.pair = Holders(learns=learns)
        self.now, self.asked = 1_000_000, 0
        self.pair.open(self.now)
        if learns:
            self.pair.there.set_roles(_core.TAIL_LEARNER, transfer=TRANSFER)
        else:
            self.pair.change_all(10 * BUCKETS)
            self.pair.pump()
        self.queue = self.pair.queues[1]
        self.tail = self.pair.there.tail
        find = {self.pair.name: self.pair.there.core}.get
        self.session = _core.LaneReceiver(find, 60_000, ONE).open_session()
        self.take(region_frame(1, self.pair.name))

    def take(self, data: bytes) -> None:
        self.session.receive_data(data, self.now)

    def settle(self, through: int, **more: int) -> None:
        self.take(settled_frame([{"sender": SENDER, "through": through, **more}]))

    def ask(self) -> None:
        """The session looks at each turn whether the tables have changed."""
        self.asked += 1
        self.take(_core.pack_frame(PING, b"", self.asked))
        self.session.data_to_send(self.now)

    def image(self, sequence: int, through: int, *, bucket: int = 0) -> None:
        record = make_record(key_of(bucket), b"v")
        event = struct.pack("<QQII", SENDER, sequence, len(record), 0) + record
        self.asked += 1
        self.take(_core.pack_frame(IMAGE, piece([event], through, bucket=bucket, part=3), self.asked))

    def change(self, sequence: int, *, bucket: int = 0) -> None:
        entries = [entry(key_of(bucket), b"v", decided=enters(SENDER))]
        self.asked += 1
        self.take(changes([section(entries, sequence, bucket=bucket, transfer=TRANSFER)], self.asked))

    @property
    def size(self) -> int:
        return len(self.queue)

    def close(self) -> None:
        assert balanced(self.queue)
        self.pair.close()


@pytest.fixture
def heard():
    made = Heard()
    yield made
    made.close()


@pytest.fixture
def learning():
    made = Heard(learns=True)
    yield made
    made.close()


def test_a_member_that_does_not_hold_the_bucket_is_not_believed_that_its_events_have_left(heard):
    for holders in ([], [OTHER]):
        heard.tail.set_holders(0, holders)
        heard.settle(6)
        heard.ask()
        assert heard.size == 30
    heard.tail.set_holders(1, [ONE])
    heard.settle(4, bucket=1)
    assert heard.size == 26


def test_what_came_before_the_tables_that_explain_it_is_believed_when_they_come(heard):
    heard.settle(6)
    heard.settle(8, explained=7, leads=1)
    heard.tail.set_holders(0, [OTHER])
    heard.ask()
    assert heard.size == 30
    heard.tail.set_holders(0, [OTHER, ONE])
    assert heard.size == 30
    heard.ask()
    assert heard.size == 22
    heard.settle(9)
    assert heard.size == 21


def test_a_member_on_which_the_sender_does_not_run_is_not_believed_until_it_does(heard):
    heard.tail.set_holders(0, [ONE])
    heard.queue.set_runners([OTHER])
    heard.settle(6)
    heard.ask()
    assert heard.size == 30
    heard.queue.set_runners([OTHER, ONE])
    heard.ask()
    assert heard.size == 24


def test_what_is_told_of_a_life_that_is_not_known_yet_waits_for_it(heard):
    heard.tail.set_holders(0, [ONE])
    heard.settle(6, life=LIFE + 1)
    heard.ask()
    heard.settle(3, life=LIFE - 1)
    assert heard.size == 30
    heard.tail.set_role(0, _core.TAIL_COPY, LIFE + 1, 6, leader=OTHER)
    heard.tail.set_holders(0, [ONE])
    heard.ask()
    assert heard.size == 24


def test_what_waits_for_tables_is_bounded_and_more_of_it_is_told_again(heard):
    item = {"sender": SENDER, "through": 6}
    for _ in range(KEPT_BYTES // 56 // 1000 + 2):
        heard.take(settled_frame([item] * 1000))
    assert heard.size == 30
    heard.ask()  # The tables are the same.
    heard.tail.set_holders(0, [ONE])
    with pytest.raises(ProtocolError, match="the tables have changed"):
        heard.ask()


def test_the_first_number_of_a_learner_costs_nothing_and_its_image_brings_what_is_older(learning):
    learning.change(FAR)
    learning.image(FAR - 1, FAR)
    learning.image(9, FAR)
    learning.change(FAR + 1)
    first = learning.pair.firsts[1]
    assert learning.queue.positions()[first] == (0, 0, FAR + 1) and learning.size == 4
    learning.tail.set_role(0, _core.TAIL_COPY, LIFE, 5)
    learning.tail.set_role(0, _core.TAIL_PRIMARY, LIFE, 6)
    learning.queue.lead([first], True)
    sent = [sequence for sequence, *_ in learning.queue.peek_with_positions(first, 9)]
    assert sent == [9, FAR - 1, FAR, FAR + 1]
    learning.queue.remove(first, FAR + 1)
    assert learning.size == 0


@pytest.mark.parametrize("sequence", [8, 65_540, FAR, (1 << 62)])
def test_nothing_in_an_image_is_newer_than_the_image(learning, sequence):
    learning.image(7, 7)
    with pytest.raises(ProtocolError, match="a queued event of an image has sequence"):
        learning.image(sequence, 7)
    assert learning.size == 1


@pytest.mark.parametrize(("sequence", "rows", "applied"), [(8, 0, 1), (7, 0, 2), (7, 3, 4), (1 << 63, 0, 1)])
def test_a_call_that_an_image_remembers_is_no_newer_than_the_image(learning, sequence, rows, applied):
    learning.image(7, 7)
    item = struct.pack("<QQQIIIBBBB", 9 << 32, 1, sequence, rows, applied, 0, 0, 0, 0, 1)
    with pytest.raises(ProtocolError, match="a remembered call of an image"):
        learning.take(_core.pack_frame(IMAGE, piece([item], 7, part=2), 2))


def test_what_a_learner_heard_beyond_what_it_has_removes_nothing_that_comes_later(learning):
    learning.tail.set_holders(0, [ONE])
    learning.change(1)
    learning.settle(FAR)
    assert learning.size == 0
    learning.tail.set_role(0, _core.TAIL_COPY, LIFE, 5)
    learning.asked += 1
    learning.take(changes([section([entry(key_of(0), b"v", decided=enters(SENDER))], 2)], learning.asked))
    assert learning.size == 1
