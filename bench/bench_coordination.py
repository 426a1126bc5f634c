"""What the coordinator of a large site takes for the death of a member, and for a member that reports on many buckets.

The site has 200 members and 1,000 regions of 113 buckets with one redundant copy. Then a member of a small site leads
1,130 buckets, and says of all at once that a learner has caught up, that it is ready, and that a replica does not
answer. The coordination is that of a locator, with its file on the disk, and every reply is laid out as it is sent. All
times are processor time: of the coordinator without that of the members, which this program plays. `--quick`: a fifth
of the regions."""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from measure import Options, Rates, arguments, cpu_seconds, report
from pywan.base.addresses import Address
from pywan.base.clocks import boot_us
from pywan.base.nonces import mark_of
from pywan.base.versions import VERSION
from pywan.coordination import encoding
from pywan.coordination.actions import Store
from pywan.coordination.agent_session import AgentSession, Remembered, tables_in
from pywan.coordination.claims import JOURNAL_FILE
from pywan.coordination.journal import Journal
from pywan.coordination.tables import (
    NO_DECISION,
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Incarnation,
    Kind,
    Learner,
    MemberProfile,
    RegionAttributes,
)
from pywan.site import coordinator_driver
from pywan.site.coordination_host import CoordinationHost
from pywan.testing.waiting import eventually
from site_scale import BUCKETS, NONCE, Site

MEMBER_TIMEOUT_MS = 60_000  # Nobody is given up while this program plays the members.
WAIT_S = 120.0
FIRST = DecisionId(1, 5_000)  # What the small site has decided before.


class Locator:
    """The coordination of a locator, without its sockets, and without the probes that nobody would answer here."""

    def __init__(self, folder: Path) -> None:
        self.bytes = self.commits = 0  # Of its replies, and to its file.
        self._lock = threading.Lock()
        self._host = CoordinationHost(
            "locator",
            site=1,
            folder=folder,
            peers=list,
            address=lambda: Address("127.0.0.1", 1),
            member_timeout_ms=MEMBER_TIMEOUT_MS,
        )
        self._handlers = self._host.handlers()
        self._append = append = Journal.append
        self._poll_gap_us = coordinator_driver.POLL_GAP_US

        def counted(journal: Journal, store: Store) -> None:
            self.commits += 1
            append(journal, store)

        Journal.append = counted
        coordinator_driver.POLL_GAP_US = MEMBER_TIMEOUT_MS * 1000
        self._host.start()
        eventually(lambda: self._host.status()["decides"], WAIT_S, "a coordinator that decides")

    def ask(self, op: str, me: Incarnation, **fields: Any) -> dict[str, Any]:
        message = {"me": encoding.plain_incarnation(me), "nonce": NONCE, "version": VERSION, **fields}
        reply = self._handlers[op](message, (me.name, op))
        packed = msgpack.packb(reply)
        with self._lock:
            self.bytes += len(packed)
        return reply

    def news(self, me: Incarnation, stored: DecisionId) -> dict[str, Any]:
        return self.ask("coordination-poll", me, stored=encoding.plain_decision_id(stored), reaches=[])

    @property
    def newest(self) -> int:
        """The number of the newest decision."""
        number: int = self._host.status()["decision"]
        return number

    def stop(self) -> None:
        self._host.stop()
        Journal.append = self._append
        coordinator_driver.POLL_GAP_US = self._poll_gap_us


@contextlib.contextmanager
def locator_in(prepare: Callable[[Path], None]) -> Iterator[Locator]:
    """A locator that goes on from the coordinator's file that `prepare` makes."""
    folder = Path(tempfile.mkdtemp(prefix="pywan-bench-"))
    try:
        prepare(folder)
        locator = Locator(folder)
        try:
            yield locator
        finally:
            locator.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Members:
    """Members that ask for news one after the other, and have stored what they hear."""

    def __init__(self, locator: Locator, members: list[Incarnation], newest: DecisionId) -> None:
        self._locator = locator
        self.stored = dict.fromkeys(members, newest)
        self.own_s = 0.0  # The processor time that reading took, which is not the coordinator's.

    def receive(self, through: int) -> int:
        """All that have not stored that decision ask once. Returns the newest decision that anybody has heard of."""
        for me, stored in self.stored.items():
            if stored.number < through:
                packed = self._locator.news(me, stored)["tables"]
                began = time.thread_time()
                self.stored[me] = newest_in(packed)
                self.own_s += time.thread_time() - began
        return max(each.number for each in self.stored.values())


def newest_in(packed: bytes) -> DecisionId:
    """Reads the head alone. All of it would be objects for Python's garbage collector, which would then look through
    the tables of this process, the coordinator's, again and again."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(zlib.decompress(packed))
    unpacker.read_array_header()
    unpacker.skip()
    return encoding.decision_id_of(unpacker.unpack())


def deaths(options: Options, members: int, regions: int) -> None:
    made: list[tuple[list[Incarnation], DecisionId]] = []

    def prepare(folder: Path) -> None:
        site = Site(str(folder), members, regions)
        site.journal.close()
        made.append((site.members, site.core.site.newest))  # The tables themselves go: the locator has its own.
        for each in folder.glob("decisions*"):
            each.rename(folder / each.name.replace("decisions", JOURNAL_FILE))

    told, at_rest, commits, sent = [], [], [], []
    with locator_in(prepare) as locator:
        ((names, newest),) = made
        gc.collect()
        playing = Members(locator, names, newest)
        for each in names:  # Nobody is silent any more. To one member a decision is missing: so none waits for news.
            locator.news(each, DecisionId(newest.controller_epoch, newest.number - 1))
        # One of every few members: its replicas are made again beside others that are whole.
        for dead in names[1 :: max(members // options.rounds, 3)][: options.rounds]:
            locator.bytes = locator.commits = 0
            own_s, began = playing.own_s, time.process_time()
            del playing.stored[dead]
            decided = locator.ask("coordination-ask", dead, requests=[["left"]])["decision"]
            received = playing.receive(decided)
            told.append(time.process_time() - began - (playing.own_s - own_s))
            # Each one that has stored it ends removals, and learners are named: until there is nothing more.
            while (newest_now := locator.newest) > min(each.number for each in playing.stored.values()):
                received = playing.receive(max(received, newest_now))
            at_rest.append(time.process_time() - began - (playing.own_s - own_s))
            commits.append(locator.commits)
            sent.append(locator.bytes / members)
    size = f"{members} members, {regions:,} regions of {BUCKETS} buckets"
    goal = "1 s" if not options.smallest else ""
    print(f"A member dies: {size}. Commits: {commits}; kB to each member: {[round(each / 1e3) for each in sent]}")
    report("a death decided, stored, told", Rates(told), 1.0, "the limit", goal, "s")
    report("the same, all removals in effect", Rates(at_rest), 1.0, "a second", "", "s")


# --- reports of one member ---

A, B, C = (Incarnation(name, number) for number, name in enumerate("abc", 1))


def prepare_small(folder: Path, regions: int) -> dict[BucketKey, Bucket]:
    """The file of a site where A leads all buckets, C has replicas, and B learns them."""
    epoch, learner = Epoch(1, 1), Learner(B, 2)
    attributes = RegionAttributes(Kind.PARTITION, BUCKETS, redundant_copies=2, recovery_delay_ms=0, shared=True)
    names = [f"region_{n}" for n in range(regions)]
    hosting = tuple((name, 100) for name in names)
    profiles = [
        MemberProfile(each, "127.0.0.1", 1, 1, "site", hosting=hosting, mark=mark_of(NONCE)) for each in (A, B, C)
    ]
    bucket = Bucket(epoch, epoch.word, 0, 1, A, (A, C), (), (learner,))
    buckets = {BucketKey(name, n): bucket for name in names for n in range(BUCKETS)}
    journal = Journal(folder / JOURNAL_FILE)
    journal.append(
        Store(
            FIRST,
            1,
            ((FIRST.controller_epoch, FIRST.number),),
            "site",
            tuple((each.incarnation, each) for each in profiles),
            tuple((name, attributes) for name in names),
            tuple(sorted(buckets.items())),
        )
    )
    journal.close()
    return buckets


def reports(options: Options, regions: int) -> None:
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, figure in reports_once(regions).items():
            found.setdefault(name, []).append(figure)
    print(
        f"One member reports on {regions * BUCKETS:,} buckets: {', '.join(f'{int(found[n][0])} {n}' for n in COUNTS)}"
    )
    for name, figures in found.items():
        if name not in COUNTS and name != "reference":
            ms, reference = ([each * 1e3 for each in of] for of in (figures, found["reference"]))
            report(name, Rates(ms), Rates(reference), "the requests packed and unpacked twice", "", "ms")


COUNTS = ("messages", "commits", "messages of repeats", "commits of repeats")


def reports_once(regions: int) -> dict[str, float]:
    buckets: dict[BucketKey, Bucket] = {}
    with locator_in(lambda folder: buckets.update(prepare_small(folder, regions))) as locator:
        session = AgentSession(
            A,
            host="127.0.0.1",
            port=1,
            site=1,
            version="1",
            process="",
            remembered=Remembered(site_identity="site"),
            has_ended=lambda process: False,
            draw_id=lambda: 2,
            draw_nonce=lambda: NONCE,
        )
        session.is_joined = True
        for member in (B, C):
            locator.news(member, NO_DECISION)
        now_us = boot_us()

        def take_news() -> float:
            question = session.question(now_us)
            reply = locator.ask(question.op, A, **{k: v for k, v in question.fields.items() if k != "me"})

            def take() -> None:
                session.take_news(question, reply, tables_in(reply), now_us)
                session.settle()

            return cpu_seconds(take)

        take_news()
        spent = {"member": 0.0, "coordinator": 0.0}

        def send_all() -> tuple[float, float, int, list[Any]]:
            """Sends all that is due. Returns the times of member and coordinator, the messages, and their requests."""
            own_s = there_s = 0.0
            messages, requests = 0, []
            while True:
                began = time.thread_time()
                due_us = session.next_request_us()
                batch = [] if due_us is None or due_us > now_us else session.take_due(now_us)
                message = session.encoded_requests(batch)
                own_s += time.thread_time() - began
                if not batch:
                    return own_s, there_s, messages, requests
                messages += 1
                requests.append(message["requests"])
                began = time.process_time()
                reply = locator.ask("coordination-ask", A, requests=message["requests"])
                there_s += time.process_time() - began
                own_s += cpu_seconds(lambda batch=batch, reply=reply: session.take_answers(batch, reply))

        def say_all() -> None:
            for key, bucket in buckets.items():
                session.caught_up(key, bucket.epoch, bucket.learners[0])
            session.ready(buckets)
            session.unreachable({key: bucket.epoch for key, bucket in buckets.items()}, C)

        locator.commits = 0
        spent["asks"] = cpu_seconds(say_all)
        own_s, there_s, messages, requests = send_all()
        commits, locator.commits = locator.commits, 0
        now_us += 1_000_000  # The tables have not come: what they do not show is repeated.
        again_own_s, again_there_s, again, _ = send_all()
        commits_again = locator.commits
        settled_s = take_news()
        assert session.next_request_us() is None, f"the tables do not show {list(session.asked.requests)[:3]}"
        packed = [msgpack.packb(each) for each in requests]
        return {
            "member: says and sends": (spent["asks"] + own_s),
            "coordinator: takes and answers": there_s,
            "member: repeats": again_own_s,
            "coordinator: takes repeats": again_there_s,
            "member: takes the news": settled_s,
            "messages": messages,
            "commits": commits,
            "messages of repeats": again,
            "commits of repeats": commits_again,
            "reference": cpu_seconds(lambda: [msgpack.packb(msgpack.unpackb(each)) for each in packed * 2]),
        }


def main() -> None:
    options = arguments(__doc__)
    reports(options, options.size(10, 10, 1))
    deaths(options, options.size(200, 200, 12), options.size(1000, 200, 4))


if __name__ == "__main__":
    main()
