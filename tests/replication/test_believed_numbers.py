"""What another member says over a replication link is checked against what this member knows: the end of the bucket's
stream, and who holds the bucket and runs the sender, as the coordinator's tables say."""

from __future__ import annotations

import struct

import pytest

from fuzz_core.repl_link import SENDER, SNAPSHOT, changes, enters, entry, piece, region_frame, removal_frame, section
from pywan import _core
from pywan.errors import ProtocolError
from support.fed_queues import balanced
from support.holders import Holders
from support.records import PING, make_record
from support.repl_pair import BUCKETS, TIMELINE, TRANSFER, key_of

FAR = 1 << 40
ONE, OTHER = 7, 8  # The numbers of two members.
KEPT_BYTES = 1 << 20


class Receiving:
    """The queue of a replica with ten events of each bucket, and a replication link on which member ONE speaks."""

    def __init__(self, *, learns: bool = False) -> None:
        self.pair = Holders(learns=learns)
        self.now, self.asked = 1_000_000, 0
        self.pair.open(self.now)
        if learns:
            self.pair.there.set_roles(_core.REPLICA_LEARNER, transfer=TRANSFER)
        else:
            self.pair.change_all(10 * BUCKETS)
            self.pair.pump()
        self.queue = self.pair.queues[1]
        self.changelog = self.pair.there.changelog
        find = {self.pair.name: self.pair.there.core}.get
        self.session = _core.ReplReceiver(find, 60_000, ONE).open_session()
        self.take(region_frame(1, self.pair.name))

    def take(self, data: bytes) -> None:
        self.session.receive_data(data, self.now)

    def tell_removed(self, through: int, **more: int) -> None:
        self.take(removal_frame([{"sender": SENDER, "through": through, **more}]))

    def ask(self) -> None:
        """The session looks at each turn whether the tables have changed."""
        self.asked += 1
        self.take(_core.pack_frame(PING, b"", self.asked))
        self.session.data_to_send(self.now)

    def snapshot(self, sequence: int, through: int, *, bucket: int = 0) -> None:
        record = make_record(key_of(bucket), b"v")
        event = struct.pack("<QQII", SENDER, sequence, len(record), 0) + record
        self.asked += 1
        self.take(_core.pack_frame(SNAPSHOT, piece([event], through, bucket=bucket, part=3), self.asked))

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
def received():
    made = Receiving()
    yield made
    made.close()


@pytest.fixture
def learning():
    made = Receiving(learns=True)
    yield made
    made.close()


def test_a_member_that_does_not_hold_the_bucket_is_not_believed_that_its_events_have_left(received):
    for holders in ([], [OTHER]):
        received.changelog.set_holders(0, holders)
        received.tell_removed(6)
        received.ask()
        assert received.size == 30
    received.changelog.set_holders(1, [ONE])
    received.tell_removed(4, bucket=1)
    assert received.size == 26


def test_what_came_before_the_tables_that_explain_it_is_believed_when_they_come(received):
    received.tell_removed(6)
    received.tell_removed(8, explained=7, leads=1)
    received.changelog.set_holders(0, [OTHER])
    received.ask()
    assert received.size == 30
    received.changelog.set_holders(0, [OTHER, ONE])
    assert received.size == 30
    received.ask()
    assert received.size == 22
    received.tell_removed(9)
    assert received.size == 21


def test_a_member_on_which_the_sender_does_not_run_is_not_believed_until_it_does(received):
    received.changelog.set_holders(0, [ONE])
    received.queue.set_runners([OTHER])
    received.tell_removed(6)
    received.ask()
    assert received.size == 30
    received.queue.set_runners([OTHER, ONE])
    received.ask()
    assert received.size == 24


def test_what_is_told_of_a_timeline_that_is_not_known_yet_waits_for_it(received):
    received.changelog.set_holders(0, [ONE])
    received.tell_removed(6, timeline=TIMELINE + 1)
    received.ask()
    received.tell_removed(3, timeline=TIMELINE - 1)
    assert received.size == 30
    received.changelog.set_role(0, _core.REPLICA_IN_SYNC, TIMELINE + 1, 6, leader=OTHER)
    received.changelog.set_holders(0, [ONE])
    received.ask()
    assert received.size == 24


def test_what_waits_for_tables_is_bounded_and_more_of_it_is_told_again(received):
    item = {"sender": SENDER, "through": 6}
    for _ in range(KEPT_BYTES // 56 // 1000 + 2):
        received.take(removal_frame([item] * 1000))
    assert received.size == 30
    received.ask()  # The tables are the same.
    received.changelog.set_holders(0, [ONE])
    with pytest.raises(ProtocolError, match="the cluster metadata have changed"):
        received.ask()


def test_the_first_number_of_a_learner_costs_nothing_and_its_snapshot_brings_what_is_older(learning):
    learning.change(FAR)
    learning.snapshot(FAR - 1, FAR)
    learning.snapshot(9, FAR)
    learning.change(FAR + 1)
    first = learning.pair.firsts[1]
    assert learning.queue.positions()[first] == (0, 0, FAR + 1) and learning.size == 4
    learning.changelog.set_role(0, _core.REPLICA_IN_SYNC, TIMELINE, 5)
    learning.changelog.set_role(0, _core.REPLICA_PRIMARY, TIMELINE, 6)
    learning.queue.lead([first], True)
    sent = [sequence for sequence, *_ in learning.queue.peek_with_positions(first, 9)]
    assert sent == [9, FAR - 1, FAR, FAR + 1]
    learning.queue.remove(first, FAR + 1)
    assert learning.size == 0


@pytest.mark.parametrize("sequence", [8, 65_540, FAR, (1 << 62)])
def test_nothing_in_a_snapshot_is_newer_than_the_snapshot(learning, sequence):
    learning.snapshot(7, 7)
    with pytest.raises(ProtocolError, match="a queued event of a snapshot has sequence"):
        learning.snapshot(sequence, 7)
    assert learning.size == 1


@pytest.mark.parametrize(("sequence", "rows", "applied"), [(8, 0, 1), (7, 0, 2), (7, 3, 4), (1 << 63, 0, 1)])
def test_a_call_that_a_snapshot_remembers_is_no_newer_than_the_snapshot(learning, sequence, rows, applied):
    learning.snapshot(7, 7)
    item = struct.pack("<QQQIIIBBBB", 9 << 32, 1, sequence, rows, applied, 0, 0, 0, 0, 1)
    with pytest.raises(ProtocolError, match="a remembered call of a snapshot"):
        learning.take(_core.pack_frame(SNAPSHOT, piece([item], 7, part=2), 2))


def test_what_a_learner_was_told_beyond_what_it_has_removes_nothing_that_comes_later(learning):
    learning.changelog.set_holders(0, [ONE])
    learning.change(1)
    learning.tell_removed(FAR)
    assert learning.size == 0
    learning.changelog.set_role(0, _core.REPLICA_IN_SYNC, TIMELINE, 5)
    learning.asked += 1
    learning.take(changes([section([entry(key_of(0), b"v", decided=enters(SENDER))], 2)], learning.asked))
    assert learning.size == 1
