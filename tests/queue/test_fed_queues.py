"""A region on several members feeds the queues of senders: each member that has a bucket queues the same events under
the same sequences, nothing is ready before its change counts, and the member that leads a bucket's stream sends it."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from pywan import _core
from pywan.errors import IllegalStateError, PywanError
from pywan.testing.waiting import LIMIT_S, eventually
from support.fed_queues import BUCKETS, FedPair, balanced, first_of, lead, peek, queue_to, queued
from support.records import UPDATE, read_record
from support.repl_pair import BUCKETS as REPL_LINK_BUCKETS, EPOCH, TIMELINE, TRANSFER
from support.shared_site import Call, SharedSite

KEYS = [f"k{n}" for n in range(20)]


def feed(site, *names, **options):
    """A queue of each of these senders at each member: by member, by sender."""
    queues = [[queue_to(2 + n, name, **options) for n, name in enumerate(names)] for _ in site.members]
    for member, own in zip(site.members, queues, strict=True):
        member.core.attach(own)
    return queues


def ready(queue):
    return [event for n in range(len(queue.positions())) for event in queue.peek(n, 1000)]


def test_each_replica_queues_the_events_of_its_buckets_under_their_sequences():
    with SharedSite(3) as site:
        site.keep_carrying()
        queues = [own[0] for own in feed(site, "ln")]
        for n, key in enumerate(KEYS * 3):
            site.members[n % 3].core.put(key, str(n))
        site.stop_carrying()
        site.carry()
        first = queued(queues[0])
        assert len(first) == 60 and all(queued(queue) == first for queue in queues)
        for bucket, sequence, _, _ in first:
            assert sequence <= site.members[0].changelog.log_end(bucket)
        assert all(balanced(queue) for queue in queues)


@pytest.mark.parametrize("who", [0, 1])
def test_an_event_is_ready_when_its_change_is_replicated_and_only_at_the_member_that_leads(who):
    with SharedSite(2, buckets=1) as site:
        queues = [own[0] for own in feed(site, "ln", buckets=1)]
        lead(queues[who])
        call = Call(site.members[0].core.put, "k", "v")
        eventually(lambda: len(queues[0]) == 1)
        assert ready(queues[0]) == [] and not call.is_done
        site.carry()
        call.result()
        assert len(queues[1 - who]) == 1 and ready(queues[1 - who]) == []
        assert peek(queues[who], 0) == [1]


def test_what_a_lone_member_changes_is_ready_at_once():
    with SharedSite(1, buckets=1) as site:
        ((queue,),) = feed(site, "ln", buckets=1)
        lead(queue)
        site.members[0].core.put("k", "v")
        assert peek(queue, 0) == [1]


def test_a_member_that_begins_to_lead_sends_what_is_in_its_queue():
    with SharedSite(2, buckets=1) as site:
        site.keep_carrying()
        (_,), (there,) = feed(site, "ln", buckets=1)
        for n in range(5):
            site.members[0].core.put("k", str(n))
        site.stop_carrying()
        site.carry()
        assert ready(there) == []
        lead(there)
        assert peek(there, 0) == [1, 2, 3, 4, 5]


def test_a_member_that_ends_to_lead_sends_nothing_more_and_removes_what_is_acknowledged():
    with SharedSite(1, buckets=1) as site:
        ((queue,),) = feed(site, "ln", buckets=1)
        lead(queue)
        for n in range(5):
            site.members[0].core.put("k", str(n))
        assert peek(queue, 0, 2) == [1, 2]
        lead(queue, leads=False)
        assert peek(queue, 0) == []
        first = first_of(queue)
        assert queue.remove(first, 1) == 1
        queue.rewind(first)  # The connection breaks.
        assert peek(queue, 0) == [] and len(queue) == 4
        lead(queue)
        assert peek(queue, 0) == [2, 3, 4, 5] and balanced(queue)


def test_several_regions_of_any_number_of_buckets_feed_one_queue_of_either_kind():
    for queue in (queue_to(buckets=3), _core.EventQueue("serial", remote_site=2, partitions=2, dispatchers=2)):
        queue.running = True
        sites = [SharedSite(1, buckets=count, name=f"several {queue.name} {count}") for count in (1, 5)]
        for site in sites:
            site.members[0].core.attach([queue])
        alone = _core.RegionCore("alone", _core.Clock(), site=1, buckets=4)
        alone.attach([queue])
        for n, key in enumerate(KEYS):
            for core in (sites[0].members[0].core, sites[1].members[0].core, alone):
                core.put(key, str(n))
        assert [count for _, _, count in queue.runs()] == [1, 5]
        own = [number for number, _, _ in queue.records(1000) if number < queue.partitions]
        assert len(own) == len(KEYS)
        for site in sites:
            core = site.members[0].core
            found = queued(queue, core.name)
            assert sorted(value for *_, value in found) == sorted(str(n).encode() for n in range(len(KEYS)))
            for bucket in range(site.buckets):  # Its numbering is the bucket's.
                sequences = [sequence for at, sequence, *_ in found if at == bucket]
                assert sequences == list(range(1, site.members[0].changelog.log_end(bucket) + 1))
            lead(queue, region=core.name)
        assert len(ready(queue)) == 3 * len(KEYS) and balanced(queue)
        for site in sites:
            site.__exit__(None, None, None)


def test_a_change_that_enters_no_queue_leaves_a_hole():
    with SharedSite(2, buckets=1) as site:
        site.keep_carrying()
        (here,), (there,) = feed(site, "ln", buckets=1)
        core = site.members[0].core
        core.put("k", "1")
        here.running = False
        core.put("k", "2")
        here.running = True
        core.put("k", "3")
        assert [event[1] for event in queued(here)] == [1, 3] and queued(there) == queued(here)
        assert here.counts()["dropped_stopped"] == 1 and there.counts()["dropped_stopped"] == 0


def test_replicas_enter_the_queues_that_the_primary_decided_on_whatever_their_own_senders_say():
    with SharedSite(2, buckets=1) as site:
        site.keep_carrying()
        names = ("to two", "to three", "to four", "to five")
        here = [queue_to(2 + n, name, 1) for n, name in enumerate(names)]
        there = [queue_to(2 + n, names[n], 1) for n in (3, 1, 0, 2)]  # They are locked in another order.
        site.members[0].core.attach(here, lambda *change: "asked", here[:3])
        site.members[1].core.attach(there)
        here[3].running = there[0].running = False
        decisions = {here[0]: None, here[1]: False, here[2]: _core.encode_object("for four")}
        assert site.members[0].core.change(UPDATE, "k", "v", decisions=decisions) == "created"
        by_name = {queue.name: queue for queue in there}
        for queue in here:
            assert queued(queue) == queued(by_name[queue.name])
        assert [len(queue) for queue in here] == [1, 0, 1, 0]
        assert read_record(here[2].records()[0][2]).value == _core.encode_object("for four")[1]


def test_a_full_queue_that_drops_what_is_new_has_it_dropped_at_the_replicas():
    with SharedSite(2, buckets=1) as site:
        site.keep_carrying()
        full, roomy = queue_to(buckets=1, memory_limit=0), queue_to(buckets=1, memory_limit=64 << 20)
        full.set_full_policy("drop-newest")
        site.members[0].core.attach([full])
        site.members[1].core.attach([roomy])
        for n in range(200):
            site.members[0].core.put(n, bytes(100_000))
        assert full.counts()["dropped_newest"] > 0
        assert queued(full) == queued(roomy) and roomy.counts()["dropped_newest"] == 0


def test_a_full_queue_that_drops_what_is_oldest_drops_it_where_it_leads():
    with SharedSite(1, buckets=2) as site:
        core, queue = site.members[0].core, queue_to(buckets=1, memory_limit=0)
        queue.set_full_policy("drop-oldest")
        core.attach([queue])
        lead(queue)
        for n in range(200):
            core.put(n, b"%d" % n + bytes(100_000))
        dropped = queue.counts()["dropped_oldest"]
        assert dropped > 0 and len(queue) == 200 - dropped and balanced(queue)
        assert max(int(value[:3].rstrip(b"\0")) for *_, value in queued(queue)) == 199


def test_a_replica_that_has_not_the_sender_takes_the_change_and_later_the_events_that_come_then():
    with SharedSite(2, buckets=1) as site:
        site.keep_carrying()
        here, there = queue_to(buckets=1), queue_to(buckets=1)
        site.members[0].core.attach([here])
        site.members[0].core.put("k", "1")
        assert site.members[1].core.entries_here == 1
        site.members[1].core.attach([there])
        site.members[0].core.put("k", "2")
        assert [sequence for _, sequence, *_ in queued(here)] == [1, 2]
        assert [sequence for _, sequence, *_ in queued(there)] == [2]
        assert there.positions()[first_of(there)] == (1, 1, 2) and balanced(there)


def test_a_persistent_queue_is_refused(tmp_path):
    with SharedSite(1) as site:
        core = site.members[0].core
        queue = queue_to(log_directory=tmp_path, log_id=7)
        with pytest.raises(IllegalStateError, match="is persistent"):
            core.attach([queue])
        core.put("k", "v")
        assert len(queue) == 0


def test_a_queue_has_no_more_partitions_than_a_frame_can_name():
    queue = queue_to(buckets=1)
    assert queue.add_run("many one", 40_000) == 1
    with pytest.raises(PywanError, match="up to 65535 partitions"):
        queue.add_run("many two", 40_000)
    assert queue.add_run("many three", 25_534) == 40_001


def test_a_queue_that_is_taken_away_sends_what_it_has_when_that_is_replicated():
    with SharedSite(2, buckets=1) as site:
        (here,), _ = feed(site, "ln", buckets=1)
        core = site.members[0].core
        lead(here)
        call = Call(core.put, "k", "v")
        eventually(lambda: len(here) == 1)
        core.attach([])
        assert not core.end_feeds() and peek(here, 0) == []
        site.carry()
        call.result()
        assert core.end_feeds() and peek(here, 0) == [1] and here.run_of(core.name) is None


def test_a_queue_that_is_taken_away_at_once_forgets_what_is_not_replicated():
    """Another member may give the sequence to another change, and the remote site would skip that one."""
    with SharedSite(2, buckets=1) as site:
        (here,), _ = feed(site, "ln", buckets=1)
        core = site.members[0].core
        lead(here)
        first, second = Call(core.put, "k", "v"), None
        site.carry()
        first.result()
        second = Call(core.put, "k", "w")
        eventually(lambda: len(here) == 2)
        core.attach([])
        assert core.end_feeds(now=True)
        assert [sequence for _, sequence, *_ in queued(here)] == peek(here, 0) == [1] and balanced(here)
        site.carry()
        second.result()


def test_a_queue_that_gets_its_region_again_before_its_events_are_replicated_begins_again():
    with SharedSite(2, buckets=1) as site:
        (here,), _ = feed(site, "ln", buckets=1)
        core = site.members[0].core
        call = Call(core.put, "k", "v")
        eventually(lambda: len(here) == 1)
        core.attach([])
        core.attach([here])
        assert len(here) == 0 and here.lacking(here.run_of(core.name), 1) == [1]  # The other member has it.
        site.carry()
        call.result()


def test_a_stream_goes_on_in_its_place_when_the_region_feeds_the_queue_again():
    """If its later events lay elsewhere they could leave first, and the remote site would skip the earlier ones."""
    with SharedSite(1, buckets=1) as site:
        core, queue = site.members[0].core, queue_to(buckets=1)
        core.attach([queue])
        core.put("k", "1")
        core.attach([])
        core.put("k", "2")
        core.attach([queue])
        core.put("k", "3")
        (run,) = queue.runs()
        assert [sequence for _, sequence, *_ in queued(queue)] == [1, 3]
        assert queue.run_of(run[0]) == run[1] and balanced(queue)


def test_a_stream_of_a_later_timeline_has_another_place_until_the_earlier_one_is_empty():
    with SharedSite(1, buckets=1) as site:
        member, queue = site.members[0], queue_to(buckets=1)
        member.core.attach([queue])
        member.core.put("k", "1")
        member.core.attach([])
        timeline = member.changelog.state(0)["timeline"]
        member.changelog.set_role(0, _core.REPLICA_PRIMARY, timeline + 1, 1)
        member.core.attach([queue])
        first, second = (first for _, first, _ in queue.runs())
        assert queue.run_of(member.core.name) == second > first and len(queue) == 1
        member.core.attach([])
        queue.lead([first], True)
        queue.remove(first, queue.peek_with_positions(first, 10)[-1][0])
        member.core.attach([queue])
        assert len(queue.runs()) == 2


@pytest.mark.parametrize("seed", range(6))
def test_the_queues_of_three_replicas_are_equal_through_takeovers_and_full_of_holes(seed):
    chance = random.Random(seed)
    with SharedSite(3) as site:
        site.keep_carrying()
        queues = feed(site, "ln", "tk")
        done = threading.Event()

        def work(who):
            own = random.Random(f"{seed} {who}")
            while not done.is_set():
                key = own.choice(KEYS)
                if own.random() < 0.8:
                    site.members[who].core.put(key, own.randbytes(own.randrange(200)))
                else:
                    with contextlib.suppress(KeyError):
                        site.members[who].core.destroy(key)

        calls = [Call(work, who) for who in range(3)]
        for _ in range(60):
            what = chance.randrange(3)
            if what == 0:
                site.lead(chance.randrange(BUCKETS), chance.randrange(3))
            elif what == 1:
                queue = chance.choice(chance.choice(queues))
                queue.running = not queue.running
            else:
                done.wait(0.005)
        done.set()
        for call in calls:
            call.result()
        site.stop_carrying()
        site.carry()
        for sender in range(2):
            own = [queued(queue[sender]) for queue in queues]
            assert own[0] and own[0] == own[1] == own[2]
            assert all(balanced(queue[sender]) for queue in queues)


class FedSites:
    """Three members with two regions, of which each feeds the queues of two senders, beside a model: by (region,
    sender, bucket), the value of each sequence; what each member has peeked and removed; what the remote site has."""

    MEMBERS, SENDERS = 3, 2

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.sites = [SharedSite(self.MEMBERS, buckets=count, name=f"fed {count}") for count in (1, 3)]
        self.queues = [[queue_to(2, "parallel", 5), self.serial()] for _ in range(self.MEMBERS)]
        for site in self.sites:
            site.keep_carrying()
            for member, own in zip(site.members, self.queues, strict=True):
                member.core.attach(own)
        self.streams = [
            (r, q, bucket)
            for r, site in enumerate(self.sites)
            for q in range(self.SENDERS)
            for bucket in range(site.buckets)
        ]
        self.events = {stream: {} for stream in self.streams}
        self.leads = {(stream, m): False for stream in self.streams for m in range(self.MEMBERS)}
        self.removed = {(stream, m): 0 for stream in self.streams for m in range(self.MEMBERS)}
        self.peeked = dict(self.removed)
        self.remote = {stream: set() for stream in self.streams}
        self.puts = 0

    @staticmethod
    def serial():
        queue = _core.EventQueue("serial", remote_site=3, partitions=2, dispatchers=2)
        queue.running = True
        return queue

    def place(self, stream, m):
        r, q, bucket = stream
        queue = self.queues[m][q]
        return queue, first_of(queue, self.sites[r].members[m].core.name) + bucket

    def put(self):
        r, who = self.chance.randrange(len(self.sites)), self.chance.randrange(self.MEMBERS)
        site, key = self.sites[r], self.chance.choice(KEYS)
        bucket = site.bucket_of(key)
        site.members[who].core.put(key, str(self.puts))
        leader = site.leaders[bucket]
        sequence = site.members[leader].changelog.log_end(bucket)
        for q in range(self.SENDERS):
            if self.queues[leader][q].running:
                self.events[r, q, bucket][sequence] = b"%d" % self.puts
        self.puts += 1

    def lead_bucket(self):
        site = self.chance.choice(self.sites)
        site.lead(self.chance.randrange(site.buckets), self.chance.randrange(self.MEMBERS))

    def stop_or_start(self):
        queue = self.chance.choice(self.chance.choice(self.queues))
        queue.running = not queue.running

    def say_who_sends(self):
        stream, m = self.chance.choice(self.streams), self.chance.randrange(self.MEMBERS)
        queue, number = self.place(stream, m)
        self.leads[stream, m] = self.chance.random() < 0.6
        queue.lead([number], self.leads[stream, m], self.chance.random() < 0.5)

    def peek(self, stream=None, m=None, count=4):
        stream = stream or self.chance.choice(self.streams)
        m = self.chance.randrange(self.MEMBERS) if m is None else m
        queue, number = self.place(stream, m)
        taken = [(at, read_record(record).value) for at, record in queue.peek_with_positions(number, count)]
        waits = [each for each in sorted(self.events[stream].items()) if each[0] > self.peeked[stream, m]]
        assert taken == (waits[:count] if self.leads[stream, m] else [])
        if taken:
            self.peeked[stream, m] = taken[-1][0]
        self.remote[stream] |= {value for _, value in taken}

    def acknowledge(self):
        stream, m = self.chance.choice(self.streams), self.chance.randrange(self.MEMBERS)
        queue, number = self.place(stream, m)
        if self.peeked[stream, m] > self.removed[stream, m]:
            queue.remove(number, self.peeked[stream, m])
            self.removed[stream, m] = self.peeked[stream, m]

    def break_off(self):
        stream, m = self.chance.choice(self.streams), self.chance.randrange(self.MEMBERS)
        queue, number = self.place(stream, m)
        queue.rewind(number)
        self.peeked[stream, m] = self.removed[stream, m]

    def wait_until_all_is_stable(self):
        for site in self.sites:
            for bucket in range(site.buckets):
                last = site.members[site.leaders[bucket]].changelog.log_end(bucket)
                eventually(lambda: {m.changelog.state(bucket)["high_watermark"] for m in site.members} == {last})  # noqa: B023

    def check(self):
        for stream in self.streams:
            r, q, bucket = stream
            for m in range(self.MEMBERS):
                name = self.sites[r].members[m].core.name
                found = {at: value for b, at, _, value in queued(self.queues[m][q], name) if b == bucket}
                left = {at: value for at, value in self.events[stream].items() if at > self.removed[stream, m]}
                assert found == left
        assert all(balanced(queue) for own in self.queues for queue in own)


@pytest.mark.parametrize("seed", range(8))
def test_streams_of_several_regions_and_senders_do_what_a_plain_model_says(seed):
    model = FedSites(seed)
    with contextlib.ExitStack() as stack:
        for site in model.sites:
            stack.enter_context(site)
        steps = [
            *[model.put] * 8,
            *[model.peek] * 4,
            model.acknowledge,
            model.break_off,
            model.say_who_sends,
            model.lead_bucket,
            model.stop_or_start,
        ]
        for _ in range(150):
            step = model.chance.choice(steps)
            if step == model.peek:
                model.wait_until_all_is_stable()
            step()
        model.wait_until_all_is_stable()
        model.check()
        for stream in model.streams:  # One member sends all that is not removed there: the remote site has everything.
            m = model.chance.randrange(model.MEMBERS)
            queue, number = model.place(stream, m)
            queue.lead([number], True)
            model.leads[stream, m] = True
            queue.rewind(number)
            model.peeked[stream, m] = model.removed[stream, m]
            model.peek(stream, m, 10_000)
            assert model.remote[stream] == set(model.events[stream].values())


# Snapshots, over real replication links


@pytest.fixture
def fed():
    pair = FedPair()
    yield pair
    pair.close()


def test_a_learner_gets_the_events_that_are_queued_and_what_left_before_is_gone_there_too(fed):
    here, there = fed.queues
    fed.put_many(3000)
    first = first_of(here, fed.name)
    lead(here, region=fed.name)
    for bucket in range(REPL_LINK_BUCKETS):
        here.remove(first + bucket, peek(here, bucket, 100, fed.name)[-1])
    fed.learn()
    fed.connect()
    eventually(fed.has_learned)
    assert queued(there, fed.name) == queued(here, fed.name) and len(here) == 2700
    assert [removed for removed, _, _ in there.positions()[first_of(there, fed.name) :]] == [100] * REPL_LINK_BUCKETS
    assert balanced(here) and balanced(there)
    for bucket in range(REPL_LINK_BUCKETS):
        fed.there.changelog.set_role(bucket, _core.REPLICA_IN_SYNC, TIMELINE, EPOCH)
    lead(there, region=fed.name)
    for bucket in range(REPL_LINK_BUCKETS):  # The replica sends them.
        eventually(lambda: fed.there.changelog.state(0)["high_watermark"] == 1000)
        assert len(peek(there, bucket, region=fed.name)) == 900


def test_events_and_their_snapshot_stay_in_order_while_puts_go_on_and_the_snapshot_begins_again(fed):
    here, there = fed.queues
    fed.put_many(2000)
    stop = threading.Event()

    def work():
        n = 2000
        while not stop.is_set():
            fed.put_many(1, n)
            n += 1

    writer = threading.Thread(target=work)
    writer.start()
    fed.learn()
    fed.connect()
    eventually(lambda: fed.there.changelog.log_end(0) > 0)
    fed.cut()
    fed.connect()
    eventually(lambda: fed.news.extend(fed.sender.news()) or len(fed.news) == REPL_LINK_BUCKETS)
    stop.set()
    writer.join(LIMIT_S)
    assert not writer.is_alive()
    eventually(fed.is_even)
    assert queued(there, fed.name) == queued(here, fed.name)
    sequences = [(bucket, sequence) for bucket, sequence, _, _ in queued(there, fed.name)]
    assert sequences == sorted(sequences)
    assert balanced(there)


def test_a_replica_that_learns_anew_drops_the_events_of_the_history_before(fed):
    here, there = fed.queues
    fed.put_many(30)
    fed.learn()
    fed.connect()
    eventually(fed.has_learned)
    assert len(there) == 30
    fed.cut()
    fed.learn(TRANSFER + 1)
    assert len(there) == 0 and balanced(there)
    fed.put_many(30, 30)
    fed.news = []
    fed.connect()
    eventually(fed.has_learned)
    assert queued(there, fed.name) == queued(here, fed.name) and len(here) == 60 and balanced(there)


def test_a_snapshot_whose_events_replace_each_other_is_counted_as_a_whole(fed):
    here, there = (queue_to(buckets=REPL_LINK_BUCKETS, conflate=True) for _ in range(2))
    fed.here.core.attach([here])
    fed.there.core.attach([there])
    fed.put_many(REPL_LINK_BUCKETS * 10)
    lead(here, region=fed.name)
    for bucket in range(REPL_LINK_BUCKETS):  # What is on its way is not replaced here. It is at the learner.
        assert len(peek(here, bucket, region=fed.name)) == 10
    fed.put_many(REPL_LINK_BUCKETS * 10)
    fed.learn()
    fed.connect()
    eventually(fed.has_learned)
    assert (len(here), len(there), there.counts()["conflated"]) == (45, 30, 15)
    assert balanced(there) and balanced(here)


def test_a_snapshot_leaves_out_the_events_of_a_sender_that_is_not_here(fed):
    fed.put_many(3)
    fed.there.core.attach([])
    fed.learn()
    fed.connect()
    eventually(fed.has_learned)
    assert len(fed.queues[0]) == 3 and len(fed.queues[1]) == 0 and not fed.ends
