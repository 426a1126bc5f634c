"""Owns what a member does with its copies of the buckets of all shared regions, and with the lanes from and to other
members.

It knows no thread, no socket and no clock (docs/decisions/0054). Its driver tells it the time and what happened, and
asks it for what is to be done: `take_peers` for the members to connect to, `PeerSession` for what to ask them, and
`take_reports` for what the coordinator is to hear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pywan import _core
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation, Learner, MemberProfile
from pywan.copies.peer_session import Asked, PeerSession, answers_of, plain_answers
from pywan.copies.region_copies import Question, RegionCopies
from pywan.copies.wrong_clocks import WrongClocks
from pywan.errors import IllegalStateError, ProtocolError
from pywan.protocol.between_members import Opening, refusal_of, stranger

UNREACHABLE_US = 400_000  # A copy to which the lane has had no connection for so long is reported.
REPORT_AGAIN_US = 500_000
# A caller that was never in the view may have come a moment ago. It is gone if so many renewals of the lease, each with
# what was new in the tables, did not bring it.
STRANGER_RENEWALS = 3


class Reports(Protocol):
    """What the member tells the coordinator. Each call returns at once, and is repeated until the tables show it."""

    def ready(self, keys: list[BucketKey]) -> None: ...
    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None: ...
    def unreachable(self, epochs: dict[BucketKey, Epoch], copy: Incarnation) -> None: ...
    def suspect(self, suspected: Incarnation) -> None: ...


Report = Callable[[Reports], None]


class CopiesSession:
    """Not thread-safe, but for `find`. `now_us` is always that of the clock by which leases count."""

    def __init__(self, *, member_timeout_us: int, memory: _core.MemoryLimit | None = None) -> None:
        """`memory`: the limit of this member's memory, whose state the lanes tell. None: it has none."""
        self._memory = memory
        self.me = Incarnation("", 0)
        self.site_identity = ""
        self.is_stopping = False
        self.peers: dict[Incarnation, PeerSession] = {}
        self.receivers: dict[_core.LaneReceiver, Incarnation] = {}
        self._member_timeout_us = member_timeout_us
        self._now_us = 0
        self.wrong_clocks = WrongClocks()
        self._view: set[Incarnation] = set()
        self._callers: dict[int, int] = {}  # Of members outside the view: how many renewals did not bring them.
        self._looks_for_callers = False  # The view has changed, or the lease was renewed.
        self._profiles: dict[Incarnation, MemberProfile] = {}  # Of the view, and of members that a lane leads to.
        self._regions: dict[str, RegionCopies] = {}
        self._cores: dict[str, Any] = {}
        self._promised_until_us: dict[Incarnation, int] = {}  # Promises over connections that have ended.
        self._unreachable_us: dict[Incarnation, int] = {}  # When the member was last reported.
        self._reports: list[Report] = []
        self._news: deque[tuple[Incarnation, tuple[Any, ...]]] = deque()  # Of lanes, and not acted on yet.
        self._came: list[PeerSession] = []
        self._gone: list[PeerSession] = []

    # Regions and tables

    def share(self, name: str, core: Any, tail: _core.Tail, *, content: Mapping[int, Bucket]) -> None:
        """Begins to work for a region. Its tail is attached to it already. `content`: as for `RegionCopies`."""
        if self.is_stopping:
            raise IllegalStateError("the member ends")
        self._cores[name] = core
        services = _ServicesForRegion(self, name, tail)
        self._regions[name] = RegionCopies(name, core, tail, self.me, services, content=content)

    def drop(self, name: str) -> None:
        """Ends the work for a region. Its tail may be closed afterwards."""
        region = self._regions.pop(name, None)
        self._cores.pop(name, None)
        if region is None:
            return
        for peer in self.peers.values():
            peer.remove_region(name)
            region.tail.remove_lane(peer.number)

    def take_view(self, profiles: tuple[MemberProfile, ...]) -> None:
        """Takes the members that are there."""
        view = {profile.incarnation for profile in profiles}
        self._callers.update((gone.member_id, STRANGER_RENEWALS) for gone in self._view - view)
        self._view = view
        self.wrong_clocks.keep_only(view)
        for receiver, member in self.receivers.items():
            if member not in view:
                receiver.stop()
        self._profiles.update((profile.incarnation, profile) for profile in profiles)
        self._looks_for_callers = True

    def lease_renewed(self, member_timeout_us: int) -> None:
        """The coordinator has answered, and the tables have what it decided before that. It told `member-timeout`."""
        if member_timeout_us != self._member_timeout_us:
            self._member_timeout_us = member_timeout_us
            for peer in self.peers.values():
                peer.lane.configure(member_timeout_us // 1000)
            for receiver in self.receivers:
                receiver.configure(member_timeout_us // 1000)
        self._callers = {member: renewals + 1 for member, renewals in self._callers.items()}
        self._looks_for_callers = True

    def take(self, key: BucketKey, bucket: Bucket | None, now_us: int) -> None:
        """Takes a decision about a bucket."""
        self._now_us = now_us
        region = self._regions.get(key.region)
        if region is not None:
            region.take(key.number, bucket)

    def find(self, name: str) -> Any:
        """Returns the region that takes changes over lanes. None: this member does not share it, or not yet."""
        return self._cores.get(name)

    def followed(self) -> dict[BucketKey, Bucket]:
        """Returns the decisions that the member's copies follow: it says so when it joins again."""
        followed: dict[BucketKey, Bucket] = {}
        for region in self._regions.values():
            followed.update(region.followed())
        return followed

    def reached(self, now_us: int) -> list[Incarnation]:
        """Returns the members that have answered this one a moment ago, or that it has answered."""
        answered = {each for each, peer in self.peers.items() if peer.lane.promised_until_us > now_us}
        asked = {each for receiver, each in self.receivers.items() if receiver.promise.left_us(now_us)}
        return sorted(answered | asked)

    def counts(self, name: str) -> dict[str, int]:
        """Returns how many buckets of the region the member leads, follows and learns. Empty: it does not share it."""
        region = self._regions.get(name)
        return region.counts() if region is not None else {}

    # Questions and lanes of others

    def knows(self, asked: Asked) -> bool:
        """Whether the questions of a new primary need not wait for this member's tables."""
        region = self._regions.get(asked.region)
        return not asked.questions or (
            asked.asker in self._view and region is not None and region.knows(asked.questions)
        )

    def answer(self, asked: Asked, now_us: int) -> dict[str, Any]:
        """Answers the questions of a new primary. Those that the tables here do not explain have no answer: it asks
        again."""
        self._now_us = now_us
        if asked.to != self.me:
            raise IllegalStateError(f"this is member {self.me}, and member {asked.to} is meant: it has ended")
        region = self._regions.get(asked.region)
        if region is None or self.is_stopping or asked.asker not in self._view:
            return {"answers": [], "promised_us": 0}
        answers = region.answer(asked.asker, asked.questions)
        # The earlier primaries were denied when the tables came. So this bounds what they may still answer.
        return {"answers": plain_answers(answers), "promised_us": self.promised_us(asked.asker)}

    def is_in_view(self, member: Incarnation) -> bool:
        return member in self._view

    def refusal_of_lane(self, opening: Opening) -> str:
        """Returns why a lane of another member is not served; empty: it is."""
        refusal = refusal_of(opening, self.me, self.site_identity)
        if not refusal and self.is_stopping:
            return f"member {self.me} ends"
        return refusal or ("" if self.is_in_view(opening.from_) else stranger(opening, self.me))

    def lane_came(self, member: Incarnation) -> _core.LaneReceiver:
        """A member has opened a lane, which takes the place of an earlier one: the opener has given that up. Returns
        what takes its bytes."""
        for receiver, of in self.receivers.items():
            if of == member:
                receiver.stop()
        receiver = _core.LaneReceiver(self.find, self._member_timeout_us // 1000, member.member_id, self._memory)
        self.receivers[receiver] = member
        if self.is_stopping:
            receiver.stop()
        return receiver

    def lane_went(self, receiver: _core.LaneReceiver, now_us: int) -> None:
        """The connection of a lane has ended. What was promised over it holds on."""
        member = self.receivers.pop(receiver)
        self.wrong_clocks.note(member, receiver.take_ahead_ms(), now_us)
        until_us = now_us + receiver.promise.left_us(now_us)
        self._promised_until_us[member] = max(until_us, self._promised_until_us.get(member, 0))

    def promised_us(self, to_all_but: Incarnation) -> int:
        """Returns for how many us this member has promised another member than `to_all_but` something."""
        now = self._now_us
        for member in [each for each, until in self._promised_until_us.items() if until <= now]:
            del self._promised_until_us[member]
        ended = [until - now for each, until in self._promised_until_us.items() if each != to_all_but]
        open_ = [each.promise.left_us(now) for each, member in self.receivers.items() if member != to_all_but]
        return max([*ended, *open_], default=0)

    # What is due

    def work(self, now_us: int) -> bool:
        """Does what is due. Returns whether a takeover goes on: then the caller comes again soon."""
        self._now_us = now_us
        for member, peer in self.peers.items():
            self._news.extend((member, news) for news in peer.lane.news())
        while self._news:  # If one fails, those behind it are taken the next time.
            self._take_news(*self._news.popleft())
        for receiver, member in self.receivers.items():
            self.wrong_clocks.note(member, receiver.take_ahead_ms(), now_us)
        is_busy = False
        for region in self._regions.values():
            is_busy |= region.work()
        self._end_lanes()
        self._forget_callers()
        for member, peer in self.peers.items():
            if peer.down_us(now_us) > UNREACHABLE_US:
                self._unreachable(member)
            else:
                self._unreachable_us.pop(member, None)
        return is_busy

    def take_reports(self) -> list[Report]:
        """Returns what the coordinator is to hear that it has not been told."""
        reports, self._reports = self._reports, []
        return reports

    def keep_reports(self, reports: list[Report]) -> None:
        """These reports were not made, as something failed. They come first the next time."""
        self._reports[:0] = reports

    def take_peers(self) -> tuple[list[PeerSession], list[PeerSession]]:
        """Returns the members to connect to from now on, and those to which connections are to end, since the last
        call."""
        came, gone, self._came, self._gone = self._came, self._gone, [], []
        return came, gone

    def suspect(self, member: Incarnation) -> None:
        """A connection to that member was refused, or broke."""
        if not self.is_stopping and member in self._view:
            self._reports.append(lambda reports: reports.suspect(member))

    def answered(self, member: Incarnation, name: str, reply: dict[str, Any], now_us: int) -> None:
        """Takes the reply to questions about a region. An error says why it cannot be used."""
        self._now_us = now_us
        try:
            answers, promised_us = answers_of(reply)
        except ProtocolError:
            self._unreachable(member)  # It is worth as much as a copy that does not answer.
            raise
        region = self._regions.get(name)
        if region is not None:
            region.adopted(member, answers, promised_us)

    def _forget_callers(self) -> None:
        """Has the buckets that this member leads forget the callers of members that are gone."""
        if not self._looks_for_callers:
            return
        self._looks_for_callers = False
        in_view = {each.member_id for each in self._view} | {self.me.member_id}
        found: dict[int, int] = {}

        def is_gone(caller: int) -> bool:
            member = _core.member_of_caller(caller)
            if member in in_view:
                return False
            found[member] = self._callers.get(member, 0)
            return found[member] >= STRANGER_RENEWALS

        for region in self._regions.values():
            region.forget_callers(is_gone)
        self._callers = found

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

    def _unreachable(self, member: Incarnation) -> None:
        """Reports a copy that does not answer, unless that was said a moment ago."""
        if self._now_us - self._unreachable_us.get(member, -REPORT_AGAIN_US) < REPORT_AGAIN_US:
            return
        self._unreachable_us[member] = self._now_us
        epochs: dict[BucketKey, Epoch] = {}
        for region in self._regions.values():
            epochs.update(region.led_with(member))
        if epochs:
            self._reports.append(lambda reports: reports.unreachable(epochs, member))

    # Lanes to others

    def members_of_lanes(self) -> dict[int, Incarnation]:
        """Returns the member at the end of each lane, by the lane's number in the tails."""
        return {peer.number: member for member, peer in self.peers.items()}

    def _peer(self, name: str, tail: _core.Tail, member: Incarnation) -> PeerSession:
        """Returns what is kept for a member. Its lane carries the region from now on."""
        peer = self.peers.get(member)
        if peer is None:
            used = {each.number for each in self.peers.values()}
            number = next(each for each in range(_core.TAIL_LANES_MAX) if each not in used)
            peer = self.peers[member] = PeerSession(
                self.me,
                self._profiles[member],
                number,
                member_timeout_us=self._member_timeout_us,
                now_us=self._now_us,
            )
            self._came.append(peer)
        tail.add_lane(peer.number, peer.lane)
        peer.add_region(name, self._cores[name])
        return peer

    def _end_lanes(self) -> None:
        """Ends the lanes to members that have left the view, and that nothing is sent to any more."""
        for member in self._profiles.keys() - self._view - self.peers.keys():
            del self._profiles[member]
        gone = self.peers.keys() - self._view
        if not gone:
            return
        used = set[Incarnation]().union(*(region.lanes_to() for region in self._regions.values()))
        for member in sorted(gone - used):
            peer = self.peers.pop(member)
            peer.lane.stop()
            peer.remove_regions()
            for region in self._regions.values():
                region.tail.remove_lane(peer.number)
            self._unreachable_us.pop(member, None)
            self._gone.append(peer)


class _ServicesForRegion:
    """What the copies of one region need of their member (`MemberServices`)."""

    def __init__(self, owner: CopiesSession, name: str, tail: _core.Tail) -> None:
        self._owner, self._name, self._tail = owner, name, tail

    def now_us(self) -> int:
        return self._owner._now_us

    def lane(self, member: Incarnation) -> int:
        return self._owner._peer(self._name, self._tail, member).number

    def prepare(self, member: Incarnation) -> None:
        if member != self._owner.me and member in self._owner._view:
            self._owner._peer(self._name, self._tail, member)

    def promised_us(self, to_all_but: Incarnation) -> int:
        return self._owner.promised_us(to_all_but)

    def deny(self, region: str, bucket: int, epoch: Epoch, to_all_but: Incarnation) -> None:
        for receiver, member in self._owner.receivers.items():
            if member != to_all_but:
                receiver.deny(region, bucket, epoch.word)

    def ask(self, member: Incarnation, region: str, questions: list[Question]) -> None:
        self._owner._peer(region, self._tail, member).ask(region, questions)

    def ready(self, keys: list[BucketKey]) -> None:
        self._owner._reports.append(lambda reports: reports.ready(keys))

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        self._owner._reports.append(lambda reports: reports.caught_up(key, epoch, learner))
