"""A persistent queue over restarts and crashes: what is durable is kept, in order, once; what is not was never sent."""

import random
import threading

import pytest

from pywan.errors import EventTooLargeError, QueueFullError
from pywan.testing.waiting import eventually
from support.durable import DurableQueue
from support.records import CREATE


def test_a_queue_is_recovered_as_it_was(tmp_path):
    queue = DurableQueue(tmp_path, partitions=4)
    for n in range(1000):
        queue.region.put(f"key{n % 100}", b"v%d" % n)
    queue.commit()
    before, positions, counts = queue.events(), queue.queue.positions(), queue.queue.counts()
    queue.reopen()
    assert queue.events() == before
    assert queue.queue.positions() == positions
    assert queue.queue.counts()["queued"] == counts["queued"]
    queue.check_ledger()


def test_every_kind_of_event_comes_back_byte_for_byte(tmp_path):
    queue = DurableQueue(tmp_path)
    queue.region.put("text", "välue")
    queue.region.put(b"bytes", b"\0\xff" * 1000)
    queue.region.put(17, {"a": [1, None]})
    queue.region.put("empty", b"")
    queue.region.destroy("text")
    queue.commit()
    before = queue.queue.records()
    queue.crash()
    assert queue.queue.records() == before


def test_what_is_not_on_the_disk_is_not_sent(tmp_path):
    queue = DurableQueue(tmp_path)
    queue.region.put("a", b"1")
    assert queue.peek() == []
    queue.commit()
    assert [event.value for event in queue.peek()] == [b"1"]


def test_a_crash_takes_what_was_not_on_the_disk_and_its_numbers_with_it(tmp_path):
    queue = DurableQueue(tmp_path)
    queue.region.put("a", b"1")
    queue.commit()
    queue.region.put("b", b"2")
    queue.crash()
    assert queue.latest() == {"a": b"1"}
    queue.check_ledger()
    queue.region.put("c", b"3")
    assert queue.sequences() == [1, 2]  # The second 2 is the first that anybody can have seen.


def test_what_was_removed_stays_removed_and_numbers_go_on_behind_it(tmp_path):
    queue = DurableQueue(tmp_path)
    for n in range(10):
        queue.region.put(f"k{n}", b"v")
    queue.commit()
    queue.send(10)
    queue.commit()
    for restart in (queue.crash, queue.reopen):
        restart()
        assert len(queue.queue) == 0
        assert queue.queue.positions() == [(10, 10, 10)]
        queue.check_ledger()
    queue.region.put("next", b"v")
    assert queue.sequences() == [11]


def test_a_removal_that_was_not_checkpointed_is_sent_again_as_a_possible_duplicate(tmp_path):
    queue = DurableQueue(tmp_path)
    for n in range(10):
        queue.region.put(f"k{n}", b"v")
    queue.commit()
    queue.send(7)
    queue.crash()
    assert queue.sequences() == list(range(1, 11))
    assert queue.queue.counts()["distributed"] == 0
    queue.check_ledger()


def test_the_numbering_is_kept_over_restarts(tmp_path):
    queue = DurableQueue(tmp_path)
    queue.region.put("a", b"1")
    queue.commit()
    queue.close()
    queue.options["log_id"] = 99
    queue.open()
    assert queue.queue.log_id == 5


@pytest.mark.parametrize("conflate", [False, True])
@pytest.mark.parametrize("partitions", [1, 3])
def test_columns_of_a_proxy_are_logged_row_by_row(tmp_path, conflate, partitions):
    queue = DurableQueue(tmp_path, stores=False, partitions=partitions, conflate=conflate)
    keys = [b"k%d" % n for n in range(5000)]
    values = [b"v" * (n % 300) for n in range(5000)]
    queue.region.put_columns(keys, values)
    queue.region.put_columns(keys[:100] * 2, [b"new"] * 100 + [b"newer"] * 100)  # Twice each in one run.
    queue.commit()
    before = queue.queue.records(10_000)
    assert len(before) == (5000 if conflate else 5200)
    queue.crash()
    assert queue.queue.records(10_000) == before
    assert queue.latest() == {
        key.decode(): value for key, value in zip(keys, [b"newer"] * 100 + values[100:], strict=True)
    }
    queue.check_ledger()


# Conflation


def conflating(folder, *entries):
    """A queue that conflates, with these changes on its disk."""
    queue = DurableQueue(folder, conflate=True)
    for key, value in entries:
        queue.region.put(key, value)
    queue.commit()
    return queue


UPDATED = ("k", b"created"), ("k", b"older")


def test_an_update_stays_until_the_one_that_replaces_it_is_on_the_disk(tmp_path):
    queue = conflating(tmp_path, *UPDATED)
    queue.region.put("k", b"newer")
    assert [event.value for event in queue.peek()] == [b"created", b"older"]
    queue.queue.rewind(0)
    queue.commit()
    assert [event.value for event in queue.peek()] == [b"created", b"newer"]
    assert queue.queue.counts()["conflated"] == 1
    queue.check_ledger()


def test_a_batch_never_passes_over_an_update_whose_successor_a_crash_can_take(tmp_path):
    queue = conflating(tmp_path, *UPDATED, ("z", b"last"))
    queue.region.put("k", b"newer")
    sent = queue.send(3)  # Acknowledged: a receiver skips all up to here from now on.
    queue.crash()
    assert [event.value for event in sent if event.key == b"k"] == [b"created", b"older"]
    queue.check_ledger()


def test_updates_that_reach_the_disk_together_conflate_at_once(tmp_path):
    queue = DurableQueue(tmp_path, conflate=True)
    queue.region.put("k", b"0")
    for n in range(100):
        queue.region.put("k", b"%d" % n)
    assert len(queue.queue) == 2
    queue.commit()
    queue.crash()
    assert [event.value for event in queue.events()] == [b"0", b"99"]
    assert queue.queue.counts()["conflated"] == 99
    queue.check_ledger()


def test_a_recovered_queue_goes_on_conflating(tmp_path):
    queue = conflating(tmp_path, ("k", b"0"), ("k", b"1"))
    for n in range(2, 6):
        queue.crash()
        queue.region.put("k", b"x")  # A new process knows nothing of the key: it creates it.
        queue.region.put("k", b"%d" % n)
        queue.commit()
        assert queue.latest() == {"k": b"%d" % n}
        assert sum(event.operation != CREATE for event in queue.events()) == 1
        queue.check_ledger()


def test_names_and_positions_outlive_the_segments_that_told_them_also_over_a_restart(tmp_path):
    queue = DurableQueue(tmp_path, store_bytes=8 << 20)
    for _ in range(6):
        for n in range(100):
            queue.region.put(f"k{n}", b"v" * 5_000)  # The name of the region is in the first block alone.
        queue.commit()
        queue.send(100)
        queue.commit()
        queue.crash()  # Behind it new segments are made before there is a new checkpoint.
        queue.check_ledger()
        assert len(queue.queue) == 0
    queue.region.put("last", b"v")
    queue.commit()
    queue.crash()
    assert (queue.sequences(), queue.latest()) == ([601], {"last": b"v"})


@pytest.mark.parametrize("seed", range(12))
def test_over_any_crashes_nothing_durable_is_lost_and_the_ledger_balances(tmp_path, seed):
    source = random.Random(seed)
    queue = DurableQueue(tmp_path, conflate=seed % 2 == 0, partitions=1, store_bytes=(8 << 20) if seed % 3 else 0)
    durable: dict[str, bytes] = {}  # Newest value of each key that was on the disk and not sent yet.
    staged: dict[str, list[bytes]] = {}
    applied = 0  # The receiver has seen all up to here, and skips it.
    for step in range(400):
        choice = source.random()
        if choice < 0.6:
            key, value = f"k{source.randrange(20)}", b"%d/%d " % (seed, step) + b"." * source.randrange(0, 20_000)
            queue.region.put(key, value)
            staged.setdefault(key, []).append(value)
        elif choice < 0.75:
            queue.commit()
            durable.update({key: values[-1] for key, values in staged.items()})
            staged.clear()
        elif choice < 0.95:
            taken = queue.send(source.randrange(1, 15))
            for event in taken:
                if event.sequence > applied and durable.get(event.key.decode()) == event.value:
                    del durable[event.key.decode()]
            applied = max([applied, *(event.sequence for event in taken)])
        else:
            queue.crash()
            staged.clear()
            queue.check_ledger()
        queue.check_ledger()
        left = {event.key.decode(): event.value for event in queue.events() if event.sequence > applied}
        for key, value in durable.items():
            assert left.get(key) == value or left.get(key) in staged.get(key, []), f"seed {seed}, step {step}: {key}"
    queue.commit()
    assert queue.queue.positions()[0][2] >= applied


# The log is shortened


def test_removed_events_free_their_segments(tmp_path):
    queue = DurableQueue(tmp_path, store_bytes=64 << 20)
    for _ in range(8):
        for n in range(400):
            queue.region.put(f"k{n}", b"v" * 10_000)
        queue.commit()
        queue.send(400)
        queue.commit()
    assert queue.disk_bytes <= 40 << 20
    queue.crash()
    assert len(queue.queue) == 0
    queue.check_ledger()


def test_keys_updated_for_ever_stay_under_three_times_their_live_bytes_on_disk(tmp_path):
    queue = DurableQueue(tmp_path, conflate=True, background=True, partitions=4, store_bytes=400 << 20)
    keys = [b"%08d" % n for n in range(60_000)]
    most = 0
    for round_ in range(14):
        value = b"%04d" % round_ * 75
        for at in range(0, len(keys), 5000):
            queue.region.put_columns(keys[at : at + 5000], [value] * 5000)
        queue.commit()
        most = max(most, queue.queue.log_state()["bytes"] / queue.queue.bytes)
        eventually(lambda round_=round_: round_ < 3 or queue.queue.log_state()["bytes"] < 3 * queue.queue.bytes)
    assert len(queue.queue) <= 2 * len(keys) + 20  # Creates stay, of the updates one each.
    assert most < 6.0, f"{most:.2f} times the live bytes, while it was written as fast as can be"
    assert queue.disk_bytes < 3 * queue.queue.bytes
    newest = queue.latest()
    queue.crash()
    assert queue.latest() == newest
    queue.check_ledger()
    queue.close()


def fill(queue, value=b"v" * 5000, keys=10_000):
    """Puts until the log has reached its limit. Gives what the refusal said."""
    for n in range(1_000_000):
        try:
            queue.region.put(f"k{n % keys}", value)
        except QueueFullError as error:
            if queue.queue.log_state()["failing"]:
                return str(error)
            eventually(lambda: queue.queue.log_state()["failing"] or not queue.queue.log_state()["pending"])
    raise AssertionError("the log never came to its limit")


def test_a_log_at_its_limit_refuses_by_name_and_goes_on_when_events_have_left(tmp_path):
    queue = DurableQueue(tmp_path, background=True, store_bytes=4 << 20)
    assert "limit of 4194304 bytes" in fill(queue)
    queued = queue.queue.counts()["queued"]
    sent = 0
    while sent < queued:
        eventually(
            lambda: (
                queue.queue.log_state()["pending"] == 0 or queue.queue.positions()[0][1] < queue.queue.positions()[0][2]
            )
        )
        sent += len(queue.send(50))
    eventually(lambda: queue.queue.log_state()["failing"] is None)
    queue.region.put("next", b"v" * 5000)
    queue.commit()
    queue.crash()
    queue.check_ledger()
    assert "next" in queue.latest()
    queue.close()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("background", [False, True])
def test_the_oldest_events_make_room_in_a_full_log_if_they_may_be_dropped(tmp_path, background, partitions):
    queue = DurableQueue(
        tmp_path, background=background, partitions=partitions, store_bytes=4 << 20, full_policy="drop-oldest"
    )
    for n in range(4000):  # Twice the limit.
        queue.region.put(f"k{n:04}", b"v" * 2000)
        if not background and n % 50 == 0:
            assert queue.queue.commit_once()
    queue.commit()
    queue.check_ledger()
    left, counts = sorted(event.key for event in queue.events()), queue.queue.counts()
    assert counts["dropped_oldest"] == 4000 - len(left) and len(left) > 500
    assert {b"k%04d" % n for n in range(3900, 4000)} <= set(left)
    queue.crash()
    assert sorted(event.key for event in queue.events()) == left
    queue.check_ledger()
    queue.close()


def test_events_on_their_way_keep_a_full_log_full(tmp_path):
    queue = DurableQueue(tmp_path, store_bytes=4 << 20, full_policy="drop-oldest")
    queue.region.put("first", b"v" * 2000)
    queue.commit()
    queue.peek(1)
    queue.queue.make_hole(0, 1)  # A filter, say.
    queue.region.put("second", b"v" * 2000)
    queue.commit()
    queue.peek(1)
    written = 0
    while queue.queue.commit_once():
        queue.region.put("k", b"v" * 100_000)
        written += 1
    assert len(queue.queue) == written + 1 and queue.queue.counts()["dropped_oldest"] == 0
    queue.queue.rewind(0)
    assert queue.queue.commit_once() and queue.queue.counts()["dropped_oldest"] > 0
    queue.check_ledger()


def test_a_burst_that_the_disk_has_yet_to_take_is_held_up_and_not_dropped(tmp_path):
    queue = DurableQueue(tmp_path, store_bytes=16 << 20, full_policy="drop-newest")
    # Twice what may be staged.
    writer = threading.Thread(
        target=queue.region.put_columns, args=([b"k%d" % n for n in range(8)], [b"v" * 500_000] * 8)
    )
    writer.start()
    for _ in range(2):
        eventually(lambda: queue.queue.log_state()["pending"] == 4)
        queue.commit()
    writer.join()
    assert len(queue.queue) == 8 and queue.queue.counts()["dropped_newest"] == 0


@pytest.mark.parametrize("sent", [200, 400])
def test_a_crash_while_the_log_is_full_leaves_a_balanced_ledger(tmp_path, sent):
    queue = DurableQueue(tmp_path, background=True, store_bytes=4 << 20, conflate=True)
    fill(queue, keys=2000)
    taken = queue.send(sent)
    assert len(taken) == sent
    eventually(lambda: queue.queue.log_state()["failing"] is None)
    queue.crash()
    queue.check_ledger()
    assert queue.sequences()[-1] > taken[-1].sequence
    queue.close()


def test_an_event_that_no_log_of_this_size_can_take_is_refused(tmp_path):
    queue = DurableQueue(tmp_path, store_bytes=4 << 20)
    with pytest.raises(EventTooLargeError, match="give the disk store more room"):
        queue.region.put("k", b"v" * 270_000)
    queue.region.put("k", b"v" * 250_000)
    queue.commit()
    queue.check_ledger()
