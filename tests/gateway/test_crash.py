"""A few rounds of kill -9 in each world; `python -m tests.crash --rounds 1000` runs many. And that the campaign notices
what it is there for.
"""

from __future__ import annotations

import os
import random

import pytest

from crash import CampaignFailure, load, run
from crash.campaign import WORLDS, World
from crash.history import Applications, Written, check_journal
from crash.processes import Nursery
from crash.region_log import Applied


@pytest.mark.long
def test_nothing_acknowledged_is_lost_and_nothing_applied_twice_over_kill_9():
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print(f"seed {seed}")
    counts = run(seed, rounds=2 * len(WORLDS), rounds_of_a_world=2)
    assert counts["worlds"] == len(WORLDS) <= counts["checks at rest"]


def test_a_failure_is_told_with_its_seed_and_leaves_no_process(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pids = []

    def fail(world):
        pids.extend(member.pid for member in world.members)
        raise AssertionError("something is lost")

    monkeypatch.setattr(World, "_check_at_rest", fail)
    with pytest.raises(
        CampaignFailure,
        match=r"(?s)something is lost.*kept in .*repeat: python -m tests.crash --seed 5 --world 1 --rounds 1",
    ):
        run(5, rounds=1, first_world=1)
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_nursery_leaves_no_process():
    with Nursery() as nursery:
        pid = nursery.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# Losses and repetitions that the campaign notices

WRITER = 0


def applied(*numbers):
    """All of one key; a destroy is None. Stamps go up."""
    return [
        Applied("0/0", stamp, 1, None if number is None else load.value(WRITER, number))
        for stamp, number in enumerate(numbers, 1)
    ]


def compared(written, *numbers, conflated=False):
    applications = Applications()
    assert applications.note(applied(*numbers)) == []
    return applications.compare(written, conflated)


@pytest.fixture
def written():
    """Three puts, a destroy and a put of one key; the second put in doubt."""
    made = Written()
    for number in (0, 8, 16, 24, 32):
        made.note(WRITER, number, in_doubt=number == 8)
    assert [load.destroys(WRITER, number) for number in (0, 8, 16, 24, 32)] == [False, False, False, True, False]
    return made


def test_what_was_in_doubt_may_be_there_or_not(written):
    assert compared(written, 0, 8, 16, None, 32) == compared(written, 0, 16, None, 32) == []


@pytest.mark.parametrize(
    "there",
    [(8, 16, None, 32), (0, None, 32), (0, 16, 32), (0, 16, None), (), (0, 16, None, 32, 40), (0, 16, 8, None, 32)],
)
def test_a_change_that_is_missing_or_too_much_or_out_of_order_is_noticed(written, there):
    assert compared(written, *there)


def test_a_conflated_update_may_be_missing_and_a_destroy_may_not(written):
    assert compared(written, 16, None, 32, conflated=True) == []
    assert compared(written, 16, 32, conflated=True)


def test_a_change_on_the_disk_twice_is_noticed():
    once, again = applied(0, 16)
    assert "applied twice" in Applications().note([once, once])[0]
    assert "after a later change" in Applications().note([again, once])[0]
    assert Applications().note([once, again]) == []


def test_contents_are_the_newest_acknowledged_or_what_was_in_doubt_behind_it(written):
    assert written.check_contents({"0/0": 32}) == []
    for wrong in ({}, {"0/0": 16}, {"0/0": 40}, {"0/0": 32, "0/1": 1}):
        assert written.check_contents(wrong)
    written.note(WRITER, 40, in_doubt=True)
    assert written.check_contents({"0/0": 32}) == written.check_contents({"0/0": 40}) == []


def test_of_a_store_that_a_copy_replaced_only_what_the_copy_has_must_be_there(written):
    written.mark()
    for number in (40, 48, 56):
        written.note(WRITER, number, in_doubt=False)
    assert load.destroys(WRITER, 56) and compared(written, 0, 16, None, 32)
    written.doubt_since_mark()
    written.note(WRITER, 64, in_doubt=False)
    assert compared(written, 0, 16, None, 32, 64) == compared(written, 0, 16, None, 32, 40, None, 64) == []
    assert compared(written, 0, 16, None, 64) and compared(written, 0, 16, None, 32, 40)
    assert [written.was_put_back("0/0", number) for number in (32, 48, None, 64)] == [False, True, True, False]


def test_a_listener_may_receive_a_change_again_only_in_the_next_life(tmp_path):
    journal = tmp_path / "journal"
    journal.write_text("\nlife\n0/0 0\n0/0 8\n\nlife\n0/0 8\n0/0 -1\n0/0 32\n")
    assert check_journal(journal) == []
    journal.write_text("\nlife\n0/0 0\n0/0 8\n0/0 8\n")
    assert len(check_journal(journal)) == 1
    # Kills in the middle of a write.
    journal.write_text("\nlife\n0/0 0\n0/0 8\n0/0 1\nlife\n0/0 8\n\nli\nlife\n0/0 0\n")
    assert check_journal(journal) == []


def test_a_value_that_nobody_wrote_is_noticed():
    assert load.number_of(load.value(3, 17)) == 17
    with pytest.raises(ValueError, match="nobody wrote"):
        load.number_of(load.value(3, 17)[:-1] + b"!")
