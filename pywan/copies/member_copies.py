"""Owns the copies that a member has of the buckets of all shared regions, and its connections to the other members that
have copies.

One thread does what takes more than a moment: takeovers, reports to the coordinator, news of lanes. Everybody else
leaves the work to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from pywan import _core
from pywan.base.lines import Lines
from pywan.base.threads import start_thread
from pywan.coordination.encoding import incarnation_of
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Holding, Incarnation, Learner, MemberProfile
from pywan.copies.peer import Peer, plain_answers, questions_of
from pywan.copies.region_copies import Answer, Question, RegionCopies
from pywan.errors import IllegalStateError, PywanError
from pywan.protocol import between_members as wire
from pywan.transport.data import receive_exactly
from pywan.transport.openings import Connection

log = logging.getLogger("pywan.copies")

WORK_MS = 10  # The time between two looks while a takeover is under way.
REST_MS = 250  # The same while nothing is.
UNREACHABLE_S = 0.4  # A copy to which the lane has had no connection for so long is reported.
REPORT_AGAIN_S = 0.5


class Reports(Protocol):
    """What the member tells the coordinator. Each call returns at once, and is repeated until the tables show it."""

    def ready(self, keys: list[BucketKey]) -> None: ...
    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None: ...
    def unreachable(self, epochs: dict[BucketKey, Epoch], copy: Incarnation) -> None: ...
    def suspect(self, suspected: Incarnation) -> None: ...


class MemberCopies:
    """Any thread may call it. `start` is called once, when the member has joined. `stop` ends all threads and
    connections."""

    def __init__(self, reports: Reports, *, member_timeout_us: int) -> None:
        self._reports = reports
        self._member_timeout_us = member_timeout_us
        self._lock = threading.RLock()  # Guards everything below. Nobody waits for another process under it.
        self._me = Incarnation("", 0)
        self._site_identity = ""
        self._view: set[Incarnation] = set()
        self._profiles: dict[Incarnation, MemberProfile] = {}  # Of the view, and of members that a lane leads to.
        self._regions: dict[str, RegionCopies] = {}
        self._cores: dict[str, Any] = {}
        self._peers: dict[Incarnation, Peer] = {}
        self._numbers: dict[int, Incarnation] = {}  # The lanes in use.
        self._receivers: dict[Any, Incarnation] = {}
        self._promised_until_us: dict[Incarnation, int] = {}  # Promises over connections that have ended.
        self._to_report: list[Callable[[], None]] = []
        self._unreachable_at: dict[Incarnation, float] = {}  # When the member was last reported.
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._wake_file = -1
        self._lines = Lines(log)

    def start(self, me: Incarnation, site_identity: str) -> None:
        self._me, self._site_identity = me, site_identity

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            peers, thread = list(self._peers.values()), self._thread
            receivers = list(self._receivers)
        self._wake()
        for peer in peers:
            peer.stop()
        for receiver in receivers:
            receiver.stop()
        for peer in peers:
            peer.join(5.0)
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        with self._lock:
            if self._wake_file >= 0:
                os.close(self._wake_file)
                self._wake_file = -1

    # Regions and tables

    def share(self, name: str, core: Any, tail: _core.Tail, *, has_content: bool) -> None:
        """Begins to work for a region. Its tail is attached to it already."""
        with self._lock:
            if self._stopping:
                raise IllegalStateError("the member ends")
            self._cores[name] = core
            self._regions[name] = RegionCopies(
                name, core, tail, self._me, _ServicesForRegion(self, name, tail), has_content=has_content
            )
            if self._thread is None:
                self._wake_file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._thread = start_thread(f"member {self._me.name}: copies", "copies", self._run)

    def drop(self, name: str) -> None:
        """Ends the work for a region. Its tail may be closed afterwards."""
        with self._lock:
            region = self._regions.pop(name, None)
            self._cores.pop(name, None)
            if region is None:
                return
            for number, member in self._numbers.items():
                self._peers[member].remove_region(name)
                region.tail.remove_lane(number)

    def take_view(self, profiles: tuple[MemberProfile, ...]) -> None:
        """Takes the members that are there."""
        with self._lock:
            self._view = {profile.incarnation for profile in profiles}
            self._profiles.update((profile.incarnation, profile) for profile in profiles)
        self._wake()

    def take(self, key: BucketKey, bucket: Bucket | None) -> None:
        """Takes a decision about a bucket."""
        with self._lock:
            region = self._regions.get(key.region)
            if region is not None:
                region.take(key.number, bucket)
        self._wake()

    def find(self, name: str) -> Any:
        """Returns the region that takes changes over lanes. None: this member does not share it, or not yet."""
        return self._cores.get(name)

    def holdings(self) -> dict[BucketKey, Holding]:
        """Returns what the member says of its buckets when it joins again."""
        with self._lock:
            held: dict[BucketKey, Holding] = {}
            for region in self._regions.values():
                held.update(region.holdings())
            return held

    def counts(self, name: str) -> dict[str, int]:
        """Returns how many buckets of the region the member leads, follows and learns. Empty: it does not share it."""
        with self._lock:
            region = self._regions.get(name)
            return region.counts() if region is not None else {}

    # Questions and lanes of others

    def adopt(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers the questions of a new primary."""
        asker, to = incarnation_of(request.get("of")), incarnation_of(request.get("to"))
        questions: list[Question] = questions_of(request)
        with self._lock:
            region = self._regions.get(str(request.get("region")))
            if to != self._me:
                raise IllegalStateError(f"this is member {self._me}, and member {to} is meant: it has ended")
            if region is None or self._stopping:
                return {"answers": [], "promised_us": 0}
            answers = region.adopt(questions)
            # This is read after the earlier primaries were denied, so it bounds what they may still answer.
            return {"answers": plain_answers(answers), "promised_us": self.promised_us(asker)}

    def serve_lane(self, connection: Connection, first: bytes) -> None:
        """Serves a lane that another member has opened. `first` are the bytes that named the protocol."""
        sock = connection.sock
        sock.settimeout(connection.time_left())
        head = receive_exactly(sock, wire.HEAD_BYTES, first)
        opening = wire.decode_opening(receive_exactly(sock, wire.length_of_body(wire.LANE, head)))
        refusal = wire.refusal_of(opening, self._me, self._site_identity)
        if not refusal and self._stopping:
            refusal = f"member {self._me} ends"
        sock.sendall(wire.encode_answer(wire.LANE, refusal))
        if refusal:
            return
        receiver = _core.LaneReceiver(self.find)
        receiver.configure(self._member_timeout_us // 1000)
        connection.opened(receiver.stop)
        sock.settimeout(None)
        with self._lock:
            if self._stopping:
                return
            self._receivers[receiver] = opening.from_
        try:
            ended = receiver.run_over_socket(sock.fileno())
            log.info("the lane from member %s ended: %s", opening.from_, ended)
        finally:
            with self._lock:
                del self._receivers[receiver]
                until_us = _core.monotonic_us() + receiver.promise.left_us()
                before_us = self._promised_until_us.get(opening.from_, 0)
                self._promised_until_us[opening.from_] = max(until_us, before_us)

    def promised_us(self, to_all_but: Incarnation) -> int:
        """Returns for how many us this member has promised another member than `to_all_but` something."""
        now = _core.monotonic_us()
        with self._lock:
            for member in [each for each, until in self._promised_until_us.items() if until <= now]:
                del self._promised_until_us[member]
            ended = [until - now for each, until in self._promised_until_us.items() if each != to_all_but]
            open_ = [each.promise.left_us() for each, member in self._receivers.items() if member != to_all_but]
            return max([*ended, *open_], default=0)

    # The thread

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._wake_file >= 0:
                os.eventfd_write(self._wake_file, 1)

    def _run(self) -> None:
        while not self._stopping:
            try:
                is_busy = self._work()
            except Exception:
                log.exception("member %s: work for its copies failed; it is tried again", self._me)
                is_busy = False
            self._wait(WORK_MS if is_busy else REST_MS)

    def _wait(self, timeout_ms: int) -> None:
        poll = select.poll()
        with self._lock:
            if self._stopping:
                return
            files = [self._wake_file, *(peer.lane.news_file for peer in self._peers.values())]
            for file in files:
                poll.register(file, select.POLLIN)
        ready = poll.poll(timeout_ms)
        if any(file == self._wake_file for file, _ in ready):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_file)

    def _work(self) -> bool:
        """Does what is due. Returns whether a takeover goes on."""
        with self._lock:
            for member, peer in list(self._peers.items()):
                for news in peer.lane.news():
                    self._take_news(member, news)
            is_busy = False
            for region in self._regions.values():
                is_busy |= region.work()
            self._end_lanes()
            self._report_unreachable()
            reports, self._to_report = self._to_report, []
        for report in reports:
            report()
        return is_busy

    def _take_news(self, member: Incarnation, news: tuple[Any, ...]) -> None:
        if news[0] == "slow":
            self._unreachable(member)
            return
        what, name, number, value = news
        region = self._regions.get(name)
        if region is not None and what == "learned":
            region.learned(number, member, value)
        elif region is not None and what == "refused":
            region.refused(number, value)

    def _report_unreachable(self) -> None:
        for member, peer in self._peers.items():
            if peer.down_s > UNREACHABLE_S:
                self._unreachable(member)
            else:
                self._unreachable_at.pop(member, None)

    def _unreachable(self, member: Incarnation) -> None:
        """Reports a copy that does not answer, unless that was said a moment ago."""
        now = time.monotonic()
        if now - self._unreachable_at.get(member, float("-inf")) < REPORT_AGAIN_S:
            return
        self._unreachable_at[member] = now
        epochs: dict[BucketKey, Epoch] = {}
        for region in self._regions.values():
            epochs.update(region.led_with(member))
        if epochs:
            self._to_report.append(lambda: self._reports.unreachable(epochs, member))

    # Lanes to others

    def lane(self, name: str, tail: _core.Tail, member: Incarnation) -> int:
        """Returns the number of the lane to a member, which carries the region from now on."""
        peer = self._peers.get(member)
        if peer is None:
            number = next(each for each in range(_core.TAIL_LANES_MAX) if each not in self._numbers)
            peer = self._peers[member] = Peer(
                self._me,
                self._profiles[member],
                number,
                self._site_identity,
                member_timeout_us=self._member_timeout_us,
                suspect=self._suspect,
                answered=self._take_answers,
            )
            self._numbers[number] = member
            peer.start()
        number = next(each for each, other in self._numbers.items() if other == member)
        tail.add_lane(number, peer.lane)
        peer.add_region(name, self._cores[name])
        return number

    def _end_lanes(self) -> None:
        """Ends the lanes to members that have left the view, and that nothing is sent to any more."""
        for member in self._profiles.keys() - self._view - self._peers.keys():
            del self._profiles[member]
        gone = self._peers.keys() - self._view
        if not gone:
            return
        used = set[Incarnation]().union(*(region.lanes_to() for region in self._regions.values()))
        for member in gone - used:
            peer = self._peers.pop(member)
            number = next(each for each, other in self._numbers.items() if other == member)
            peer.stop()
            for region in self._regions.values():
                region.tail.remove_lane(number)
            del self._numbers[number]
            self._unreachable_at.pop(member, None)

    def ask(self, member: Incarnation, region: str, questions: list[Question]) -> None:
        peer = self._peers.get(member)
        if peer is None:
            self.lane(region, self._regions[region].tail, member)
            peer = self._peers[member]
        peer.ask(region, questions)

    def _take_answers(self, member: Incarnation, name: str, answers: list[Answer], promised_us: int) -> None:
        with self._lock:
            region = self._regions.get(name)
            if region is not None:
                try:
                    region.adopted(member, answers, promised_us)
                except PywanError as error:
                    self._lines.warning("region %s: what member %s had beyond this one: %s", name, member, error)
        self._wake()

    def _suspect(self, member: Incarnation) -> None:
        with self._lock:
            if self._stopping or member not in self._view:
                return
            self._to_report.append(lambda: self._reports.suspect(member))
        self._wake()

    def deny(self, region: str, bucket: int, epoch: int, to_all_but: Incarnation) -> None:
        for receiver, member in self._receivers.items():
            if member != to_all_but:
                receiver.deny(region, bucket, epoch)

    def report(self, report: Callable[[], None]) -> None:
        """Leaves a report to the thread."""
        self._to_report.append(report)
        self._wake()

    @property
    def reports(self) -> Reports:
        return self._reports


class _ServicesForRegion:
    """What the copies of one region need of their member (`MemberServices`)."""

    def __init__(self, owner: MemberCopies, name: str, tail: _core.Tail) -> None:
        self._owner, self._name, self._tail = owner, name, tail

    def now_us(self) -> int:
        return _core.monotonic_us()

    def lane(self, member: Incarnation) -> int:
        return self._owner.lane(self._name, self._tail, member)

    def promised_us(self, to_all_but: Incarnation) -> int:
        return self._owner.promised_us(to_all_but)

    def deny(self, region: str, bucket: int, epoch: Epoch, to_all_but: Incarnation) -> None:
        self._owner.deny(region, bucket, epoch.word, to_all_but)

    def ask(self, member: Incarnation, region: str, questions: list[Question]) -> None:
        self._owner.ask(member, region, questions)

    def ready(self, keys: list[BucketKey]) -> None:
        reports = self._owner.reports
        self._owner.report(lambda: reports.ready(keys))

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        reports = self._owner.reports
        self._owner.report(lambda: reports.caught_up(key, epoch, learner))
