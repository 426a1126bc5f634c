"""What a member does with its replicas, by calls and time only: when it tells the coordinator of what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuzz_core import calls
from pywan import _core
from pywan.coordination.encoding import plain_epoch
from pywan.coordination.tables import NO_EPOCH, Bucket, BucketKey, Epoch, Incarnation, Learner, MemberProfile
from pywan.errors import ProtocolError
from pywan.replication import replicas_session
from pywan.replication.peer_session import Asked, asked_of, plain_answers
from pywan.replication.region_replicas import Answer, Question, RegionReplicas
from pywan.replication.replicas_session import STRANGER_RENEWALS, ReplicasSession

ME, OTHER = Incarnation("m1", 1), Incarnation("m2", 2)
KEY = BucketKey("r", 0)
TIMELINE, EPOCH, TRANSFER = 7, Epoch(1, 1), 9
WORD = EPOCH.word
SECOND = 1_000_000


class Heard:
    """What the coordinator was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def ready(self, keys: list[BucketKey]) -> None:
        self.told.append(("ready", keys))

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        self.told.append(("caught up", learner.member))

    def unreachable(self, epochs: dict[BucketKey, Epoch], replica: Incarnation) -> None:
        self.told.append(("unreachable", replica))

    def suspect(self, suspected: Incarnation) -> None:
        self.told.append(("suspect", suspected))


class Leading:
    """A member that is primary of a bucket, with a learner."""

    def __init__(self) -> None:
        self.core = _core.RegionCore("r", _core.Clock(), site=1, buckets=1)
        self.changelog = _core.Changelog(1, self.core.shards)
        self.changelog.set_lease(2**64 - 1)
        self.core.share(self.changelog, None)
        self.session = ReplicasSession(member_timeout_us=SECOND)
        self.session.me = ME
        self.session.take_view(tuple(MemberProfile(each, "h", 1, 1) for each in (ME, OTHER)))
        self.session.share("r", self.core, self.changelog, content={})
        self.now = SECOND
        learner = Learner(OTHER, TRANSFER)
        self.bucket = Bucket(EPOCH, TIMELINE, 0, 1, ME, (ME,), learners=(learner,))
        self.session.take(KEY.region, {KEY.number: self.bucket}, self.now)
        assert self.received() == [("ready", [KEY])]
        (peer,), _ = self.session.take_peers()
        self.repl_link = peer.number

    def received(self) -> list[tuple[str, object]]:
        """Lets the member work, and returns what it tells."""
        self.now += 10_000
        self.session.work(self.now)
        received = Heard()
        for report in self.session.take_reports():
            report(received)
        return received.told

    def learned(self) -> None:
        """The learner's replication link says that the snapshot is whole."""
        self.session._take_news(OTHER, ("learned", "r", 0, TRANSFER))


def test_the_coordinator_is_told_once_of_a_learner_that_has_all_that_is_replicated():
    leading = Leading()
    leading.learned()
    assert leading.changelog.state(0)["copies"][0]["waited"]
    assert leading.received() == [("caught up", OTHER)]
    assert leading.received() == []


def test_nobody_is_told_of_a_learner_that_is_none_any_more():
    leading = Leading()
    later = Bucket(EPOCH, TIMELINE, 0, 1, ME, (ME,), learners=(Learner(OTHER, TRANSFER + 1),))
    leading.session.take(KEY.region, {KEY.number: later}, leading.now)
    leading.learned()
    assert leading.received() == []


def test_a_replica_has_a_replication_link_to_each_other_member_that_holds_the_bucket():
    """It tells them what is settled, if it sends for them."""
    core = _core.RegionCore("r", _core.Clock(), site=1, buckets=1)
    changelog = _core.Changelog(1, core.shards)
    core.share(changelog, None)
    session = ReplicasSession(member_timeout_us=SECOND)
    session.me = ME
    third = Incarnation("third", 3)
    session.take_view(tuple(MemberProfile(each, "h", 1, 1) for each in (ME, OTHER, third)))
    session.share("r", core, changelog, content={})
    session.take(KEY.region, {KEY.number: Bucket(EPOCH, TIMELINE, 0, 1, OTHER, (OTHER, ME, third))}, SECOND)
    came, _ = session.take_peers()
    assert {peer.member for peer in came} == {OTHER, third}
    assert all("r" in peer._regions for peer in came)


def test_a_replica_without_a_connection_is_reported_again_and_again():
    leading = Leading()
    reported = [what for _ in range(150) for what in leading.received()]  # 1.5 seconds.
    assert set(reported) == {("unreachable", OTHER)} and len(reported) == 3
    leading.session.peers[OTHER].connected()
    assert leading.received() == []


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_replica_whose_replication_link_connects_and_brings_no_answer_is_reported(is_answered):
    leading = Leading()
    peer = leading.session.peers[OTHER]
    peer.connected()
    leading.now += SECOND
    if is_answered:
        peer.repl_link.set_read_lease(leading.now)
    assert leading.received() == []
    peer.broke(leading.now)
    assert leading.received() == ([] if is_answered else [("unreachable", OTHER)])


def test_the_pause_between_two_connections_grows_and_begins_again_after_one_that_was_made():
    leading = Leading()
    peer = leading.session.peers[OTHER]
    assert [peer.broke(leading.now) for _ in range(8)] == [10_000 * 2**n for n in range(6)] + [500_000] * 2
    peer.connected()
    assert peer.broke(leading.now) == 10_000


def test_a_replica_connects_to_the_others_before_it_leads_and_asks_nothing():
    core = _core.RegionCore("r", _core.Clock(), site=1, buckets=1)
    changelog = _core.Changelog(1, core.shards)
    core.share(changelog, None)
    replicas = ReplicasSession(member_timeout_us=SECOND)
    replicas.me = OTHER
    gone = Incarnation("gone", 9)
    replicas.take_view(tuple(MemberProfile(each, "h", 1, 1) for each in (ME, OTHER)))
    replicas.share("r", core, changelog, content={})
    replicas.take(KEY.region, {KEY.number: Bucket(EPOCH, TIMELINE, 0, 1, ME, (ME, OTHER, gone))}, SECOND)
    (peer,), _ = replicas.take_peers()
    assert peer.member == ME and peer.next_request() is None
    leading = Leading()
    assert leading.session.answer(asked_of(peer.empty_request()), SECOND) == {"answers": [], "promised_us": 0}


class Following:
    """A member that has a replica of the bucket of `Leading`."""

    def __init__(self, entries: bytes) -> None:
        self.core = _core.RegionCore("r", _core.Clock(), site=1, buckets=1)
        self.changelog = _core.Changelog(1, self.core.shards)
        self.core.share(self.changelog, None)
        self.session = ReplicasSession(member_timeout_us=SECOND)
        self.session.me = OTHER
        self.session.take_view(tuple(MemberProfile(each, "h", 1, 1) for each in (ME, OTHER)))
        self.session.share("r", self.core, self.changelog, content={})
        self.session.take(KEY.region, {KEY.number: Bucket(EPOCH, TIMELINE, 0, 1, ME, (ME, OTHER))}, SECOND)
        self.core.extend(0, TIMELINE, WORD, 1, entries)

    def ask(self, asker: Incarnation = ME, epoch: Epoch = EPOCH, after: int = 0) -> list[list[Any]]:
        request = {"region": "r", "of": list(asker), "to": list(OTHER), "questions": [[0, plain_epoch(epoch), after]]}
        return self.session.answer(asked_of(request), SECOND)["answers"]

    def knows(self, epoch: Epoch) -> bool:
        return self.session.knows(Asked(ME, OTHER, "r", [Question(0, epoch, 0)]))


@pytest.fixture
def following() -> Following:
    leading = Leading()
    leading.core.put("k", 1)
    return Following(leading.changelog.fetch(0, 0))


def test_a_question_that_comes_late_has_no_answer(following):
    (answer,) = following.ask()
    assert answer[3] == 1 and answer[4]
    following.changelog.told(0, TIMELINE, WORD, 1)  # It counts, so the replica needs it no more.
    assert following.ask() == []


def test_a_question_about_what_is_behind_the_change_log_has_an_answer_without_changes(following):
    """A new primary that had more than this replica asks it so: what the replica lacks comes over the replication
    link."""
    for after in (1, 2, 2**63 - 1):
        (answer,) = following.ask(after=after)
        assert answer[3] == 1 and answer[4] == b""


def test_a_question_has_an_answer_when_the_tables_say_so_and_changes_nothing_before(following):
    later = Epoch(1, 2)
    before = following.changelog.state(0)
    assert not following.knows(later) and following.ask(OTHER, later) == following.ask(ME, later) == []
    assert following.ask(OTHER) == following.ask(Incarnation("m3", 3)) == []  # They do not lead it.
    assert following.ask(ME, Epoch(2**31 - 1, 2**32 - 1)) == []
    assert following.changelog.state(0) == before and following.session.followed()[KEY].epoch == EPOCH
    following.session.take(KEY.region, {KEY.number: Bucket(later, TIMELINE, 0, 2, ME, (ME, OTHER))}, SECOND)
    assert following.knows(later) and following.ask(ME, later)
    assert following.knows(EPOCH) and following.ask() == []


GOOD = [0, [1, 9], 0, 0, b"", [1, 1], False]
ODD = (None, True, 1.0, float("inf"), "1", -1, 2**64, [])


@pytest.mark.parametrize("field", range(len(GOOD)))
def test_a_replica_whose_answers_cannot_be_counts_as_one_that_does_not_answer(field):
    leading = Leading()
    leading.session.take(KEY.region, {KEY.number: Bucket(EPOCH, TIMELINE, 0, 2, ME, (ME, OTHER))}, leading.now)
    leading.session.take(KEY.region, {KEY.number: Bucket(Epoch(1, 9), TIMELINE, 0, 3, ME, (ME, OTHER))}, leading.now)
    leading.received()
    more = {0: (2**32,), 3: (1, 2**63), 4: (b"x", 10**12), 5: ([2**31, 1],), 6: (0, 1)}
    odd = [each for each in ODD if not (field == 6 and each is True)]
    for value in (*odd, *more.get(field, ())):
        answer = [*GOOD[:field], value, *GOOD[field + 1 :]]
        leading.now += SECOND
        with pytest.raises(ProtocolError):
            leading.session.answered(OTHER, "r", {"answers": [answer], "promised_us": 0}, leading.now)
        assert leading.received() == [("unreachable", OTHER)]
    for promised_us in (*ODD, 10**6):
        with pytest.raises(ProtocolError):
            leading.session.answered(OTHER, "r", {"answers": [], "promised_us": promised_us}, leading.now)
    assert leading.changelog.state(0)["role"] == "taking over"


@pytest.mark.parametrize("odd", [[0, [1, 9], 5, 5, b"", [1, 1], False], [0, [1, 9], 0, 0, b"", [1, 9], True]])
def test_an_answer_that_does_not_fit_the_question_ends_no_takeover(odd):
    """It is about more than was asked for, or about an earlier primary of the same epoch."""
    leading = Leading()
    leading.session.take(KEY.region, {KEY.number: Bucket(EPOCH, TIMELINE, 0, 2, ME, (ME, OTHER))}, leading.now)
    leading.session.take(KEY.region, {KEY.number: Bucket(Epoch(1, 9), TIMELINE, 0, 3, ME, (ME, OTHER))}, leading.now)
    leading.received()
    with pytest.raises(ProtocolError, match="is no answer to what was asked"):
        leading.session.answered(OTHER, "r", {"answers": [odd], "promised_us": 0}, leading.now)
    leading.received()
    assert leading.changelog.state(0)["role"] == "taking over"


@pytest.mark.parametrize(
    "before, led, ends",
    [(EPOCH, True, True), (EPOCH, False, False), (NO_EPOCH, False, False), (Epoch(1, 5), False, False)],
    ids=["of the last epoch", "a copy of it", "of none", "a replica of one that this member does not know"],
)
@pytest.mark.parametrize("later", [Epoch(1, 9), Epoch(9, 2)], ids=["the same run", "a later run"])
def test_read_leases_need_not_end_if_the_primary_of_the_last_epoch_has_followed(before, led, ends, later):
    leading = Leading()
    leading.session.take(KEY.region, {KEY.number: Bucket(EPOCH, TIMELINE, 0, 2, ME, (ME, OTHER))}, leading.now)
    leading.session.take(KEY.region, {KEY.number: Bucket(later, TIMELINE, 0, 3, ME, (ME, OTHER))}, leading.now)
    assert leading.received() == [] and leading.changelog.state(0)["role"] == "taking over"
    last = leading.changelog.log_end(0)
    answers = plain_answers([Answer(0, later, last, last, b"", before, led)])
    leading.session.answered(OTHER, "r", {"answers": answers, "promised_us": 200_000}, leading.now)
    told = [leading.received() for _ in range(25)]
    assert [each for each in told if each] == [[("ready", [KEY])]]
    assert told.index([("ready", [KEY])]) in ((0,) if ends else (19, 20))


class CountedChangelog(_core.Changelog):
    """Counts the searches for clients."""

    searches = 0

    def callers(self, bucket: int) -> set[int]:
        CountedChangelog.searches += 1
        return super().callers(bucket)


def test_a_renewal_searches_some_buckets_for_departed_clients_and_all_in_turn(monkeypatch):
    monkeypatch.setattr(replicas_session, "SEARCHED_BUCKETS", 4)
    session = ReplicasSession(member_timeout_us=SECOND)
    session.me = ME
    session.take_view((MemberProfile(ME, "h", 1, 1),))
    cores = [_core.RegionCore(f"r{n}", _core.Clock(), site=1, member=ME.member_id, buckets=1) for n in range(12)]
    changelogs = [CountedChangelog(1, core.shards) for core in cores]
    for core, changelog in zip(cores, changelogs, strict=True):
        changelog.set_lease(2**64 - 1)
        core.share(changelog, None)
        session.share(core.name, core, changelog, content={})
        session.take(core.name, {0: Bucket(EPOCH, TIMELINE, 0, 1, ME, (ME,))}, SECOND)
    now = SECOND

    def searches_of_a_renewal() -> int:
        nonlocal now
        now += SECOND // 2
        before = CountedChangelog.searches
        session.lease_renewed(SECOND)
        session.work(now)
        return CountedChangelog.searches - before

    session.work(now)
    assert [searches_of_a_renewal() for _ in range(6)] == [4] * 6
    # A late call of a member that departed long ago: no view and no record names the region.
    served = _core.CallSession({"r9": cores[9]}.get)
    gone = 7 << 32 | 5
    served.receive_data(calls.call(calls.REGION, b"r9"), 1)
    served.receive_data(calls.call(calls.CHANGE, calls.record(b"k"), caller=gone), 1)
    assert changelogs[9].callers(0) == {gone}
    renewals = 0
    while changelogs[9].callers(0):
        assert searches_of_a_renewal() <= 4 + 1
        renewals += 1
        assert renewals <= len(cores) // 4 + STRANGER_RENEWALS


def test_work_looks_at_the_regions_with_news_alone(monkeypatch):
    leading, worked = Leading(), []
    work = RegionReplicas.work
    monkeypatch.setattr(RegionReplicas, "work", lambda region: (worked.append(region.name), work(region))[1])
    leading.received()
    assert worked == []
    leading.session.take(KEY.region, {KEY.number: replace(leading.bucket, version=2)}, leading.now)
    leading.received()
    assert worked == ["r"]
