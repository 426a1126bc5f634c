"""A few rounds of the campaign against a site of several members; `make crash-site` runs many. Its checks are checked,
too: they see a lost change, a timeline without a reason, and replicas that differ."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from site_crash.campaign import run
from site_crash.decisions import BucketOf, Timelines, note_lost_file
from site_crash.faults import FAULTS
from site_crash.history import Call, KeyOf, bucket_of, violations
from site_crash.layouts import LAYOUTS
from site_crash.locators import run_locators
from site_crash.rest import why_no_rest

K = KeyOf("data", "k")
BUCKETS = {"data": 7}
BUCKET = bucket_of(K, BUCKETS)
OTHER = (BUCKET.number + 1) % 7


@pytest.mark.whole
@pytest.mark.long
def test_every_answer_fits_one_order_whatever_happens_to_the_processes():
    counts = run(7, 4, faults=("kill", "two", "rolling", "kill-replicas"), layouts=("copies-1",))
    assert counts["rounds"] == 4 and counts["operations"] > 100
    assert counts["keys linearizable"] and not counts["keys violation"]


@pytest.mark.whole
@pytest.mark.long
def test_two_locators_never_both_decide_whichever_is_killed():
    counts, _ = run_locators(7, 3)
    assert counts["rounds"] == 3 and counts["takeovers"] and counts["operations"] > 100
    assert not counts["keys violation"]


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.parametrize(
    "layout", [pytest.param(each, marks=[] if each == "copies-1" else [pytest.mark.nightly]) for each in LAYOUTS]
)
def test_every_answer_fits_one_order_in_a_site_that_has(layout):
    counts = run(7, 5, faults=FAULTS, layouts=(layout,))
    assert counts["rounds"] == 5 and counts["operations"] > 100
    assert not counts["keys violation"]


# What the checks see


def put(value: str, called: float, returned: float = math.inf) -> Call:
    return Call(int(called * 10), "put", (value,), None, called, returned, returned)


def get(value: str | None, called: float, returned: float) -> Call:
    return Call(int(called * 10), "get", (), value, called, returned, returned)


class Notes:
    """What a coordinator wrote, from which `Lives` are read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "decisions"
        self.ended: dict[str, float] = {}  # By incarnation, as each is a process of its own.
        self.path.touch()

    def decide(self, at: float, *, timeline: int, holder: str, inherits: int = 0, recovery_epoch: int = 1) -> None:
        buckets = [["data", number, timeline, inherits, [holder]] for number in (BUCKET.number, OTHER)]
        self._note({"at": at, "generation": recovery_epoch, "processes": {holder: holder}, "buckets": buckets})

    def join(self, at: float, member: str) -> None:
        self._note({"at": at, "generation": 1, "processes": {member: member}, "buckets": []})

    def _note(self, line: dict[str, object]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def timelines(self) -> Timelines:
        return Timelines(self.path, lambda process: self.ended.get(process, math.inf))


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    notes = Notes(tmp_path)
    notes.decide(0.0, timeline=1, holder="one#a")
    return notes


def found(notes: Notes, *calls: Call) -> list[KeyOf]:
    return violations({K: list(calls)}, notes.timelines(), BUCKETS).wrong


def test_an_acknowledged_change_that_is_gone_is_seen_where_no_timeline_began(notes):
    assert found(notes, put("a", 1, 2), get("a", 3, 4)) == []
    assert found(notes, put("a", 1, 2), get(None, 3, 4)) == [K]


def test_a_new_timeline_explains_that_everything_is_gone_once_and_not_before_the_last_holder_ended(notes):
    notes.ended["one#a"] = 10.0
    notes.decide(11.0, timeline=2, holder="two#b")
    timelines = notes.timelines()
    assert timelines.count == 2 and not timelines.unproved and not timelines.left_out
    assert found(notes, put("a", 1, 2), get(None, 12, 13)) == []
    assert found(notes, put("a", 1, 2), get(None, 3, 4)) == [K]
    assert found(notes, put("a", 1, 2), get(None, 12, 13), get("a", 14, 15)) == [K]


@pytest.mark.parametrize("change", [put("a", 9, 12), put("a", 9)], ids=["acknowledged", "in doubt"])
def test_a_change_that_was_under_way_when_its_bucket_was_lost_is_made_in_one_of_both_timelines(notes, change):
    notes.ended["one#a"] = 10.0
    notes.decide(11.0, timeline=2, holder="two#b")
    assert found(notes, change, get("a", 9.2, 9.5), get(None, 11.2, 11.5)) == []
    assert found(notes, change, get(None, 9.2, 9.5), get("a", 11.2, 11.5), get("a", 13, 14)) == []
    assert found(notes, change, get("a", 9.2, 9.5), get(None, 11.2, 11.5), get("a", 13, 14)) == [K]


def test_a_new_timeline_of_a_bucket_whose_holder_has_not_ended_is_seen(notes):
    notes.decide(11.0, timeline=2, holder="two#b")
    assert len(notes.timelines().unproved) == 2


def test_a_holder_that_is_named_first_when_its_process_has_ended_and_the_next_one_runs_has_ended(notes):
    notes.join(1.0, "two#b")
    notes.ended |= {"one#a": 10.0, "two#b": 10.0}
    notes.join(11.0, "two#c")
    notes.decide(12.0, timeline=1, holder="two#b")
    notes.decide(13.0, timeline=2, holder="two#c")
    assert notes.timelines().count == 2 and not notes.timelines().unproved


def test_only_buckets_that_were_decided_anew_in_place_of_lost_decisions_are_left_out_and_counted(notes):
    note_lost_file(notes.path)
    assert not notes.timelines().left_out
    notes.decide(11.0, timeline=1, holder="one#a", recovery_epoch=2)  # Members told what was lost.
    assert not notes.timelines().left_out
    note_lost_file(notes.path)
    notes.decide(12.0, timeline=1, holder="one#a", recovery_epoch=2)
    assert notes.timelines().left_out.keys() == {BUCKET, BucketOf("data", OTHER)}
    verdicts = violations({K: [put("a", 1, 2), get(None, 3, 4)]}, notes.timelines(), BUCKETS)
    assert not verdicts.wrong and verdicts.counts == {"keys left out: decisions in place of lost ones": 1}


def test_a_timeline_that_may_lack_its_end_is_left_out(notes):
    note_lost_file(notes.path)
    notes.decide(11.0, timeline=2, inherits=1, holder="one#a", recovery_epoch=2)  # All who had it go on.
    assert not notes.timelines().left_out and not notes.timelines().count
    notes.decide(12.0, timeline=3, inherits=2, holder="two#b", recovery_epoch=3)
    assert set(notes.timelines().left_out.values()) == {"a timeline that may lack the end of the one before"}
    assert not notes.timelines().count


class Told:
    """A process that gives ready answers."""

    def __init__(self, **answers: object) -> None:
        self._answers = answers

    def ask(self, what: str, *_: object) -> object:
        return self._answers[what]


class ToldSite:
    """A site of two members with one bucket, and what its processes say."""

    def __init__(self, **of_the_replica: object) -> None:
        has = {
            "timeline": 1,
            "epoch": 3,
            "log_end": 7,
            "high_watermark": 7,
            "waiters": 0,
            "entries": 2,
            "tombstones": 1,
            "digest": 9,
        }
        buckets = {"one": {**has, "role": "primary"}, "two": {**has, "role": "copy", **of_the_replica}}
        status = {"coordination": {"waiting": []}}
        self.members = {name: Told(status=status, buckets=[bucket]) for name, bucket in buckets.items()}
        members = [{"name": name, "incarnation": name, "state": "alive", "waited_for": 0} for name in self.members]
        coordination = {"decides": True, "problem": "", "waits_us": 0, "buckets_without_primary": 0, "members": members}
        self.locator = Told(coordination=coordination)


@pytest.mark.parametrize(
    ("of_the_replica", "words"),
    [
        ({}, ""),
        ({"digest": 8}, "differ"),
        ({"tombstones": 0}, "differ"),
        ({"timeline": 2}, "differ"),
        ({"log_end": 6}, "differ"),
        ({"waiters": 1}, "calls wait"),
        ({"role": "learner"}, "has not one primary and 1 replicas"),
        ({"role": "primary"}, "has not one primary and 1 replicas"),
    ],
)
def test_replicas_are_compared_one_by_one(of_the_replica, words):
    region = {"name": "data", "type": "PARTITION", "total_num_buckets": 1, "redundant_copies": 1}
    why = why_no_rest(ToldSite(**of_the_replica), [region])
    assert words in why and bool(words) == bool(why)
