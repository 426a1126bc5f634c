"""Owns a member's replicas of the buckets of all shared regions, and the replication links from and to the members.

The session has no thread, no socket and no clock (docs/decisions/0054). The driver passes the time and the events, and
fetches the resulting work: the members to connect to (`take_peers`), the questions for a member (`PeerSession`), and
the reports for the coordinator (`take_reports`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pywan import _core
from pywan.coordination.tables import Bucket, BucketKey, Epoch, Incarnation, Learner, MemberProfile
from pywan.errors import IllegalStateError, ProtocolError
from pywan.protocol.between_members import Opening, refusal_of, stranger
from pywan.replication.peer_session import Asked, PeerSession, answers_of, plain_answers
from pywan.replication.region_replicas import Question, RegionReplicas
from pywan.replication.wrong_clocks import WrongClocks

UNREACHABLE_US = 400_000  # A replica is reported after so long without a connection of its replication link.
REPORT_AGAIN_US = 500_000
# A client of a member outside the view may have joined a moment ago. The member has departed if so many renewals of the
# lease, each with the newer metadata records, did not bring the member into the view.
STRANGER_RENEWALS = 3
SEARCHED_BUCKETS = 256  # Each renewal of the lease searches about so many buckets for departed clients.


class Reports(Protocol):
    """The member's reports to the coordinator. Each call returns at once, and is repeated until the metadata show the
    effect."""

    def ready(self, keys: list[BucketKey]) -> None: ...
    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None: ...
    def unreachable(self, epochs: dict[BucketKey, Epoch], replica: Incarnation) -> None: ...
    def suspect(self, suspected: Incarnation) -> None: ...


Report = Callable[[Reports], None]


class ReplicasSession:
    """Not thread-safe, but for `find`. `now_us` is always a time of the lease clock."""

    def __init__(self, *, member_timeout_us: int, memory: _core.MemoryLimit | None = None) -> None:
        """`memory`: the limit of this member's memory, whose state the replication links report. None: no limit."""
        self._memory = memory
        self.me = Incarnation("", 0)
        self.site_identity = ""
        self.is_stopping = False
        self.peers: dict[Incarnation, PeerSession] = {}
        self.receivers: dict[_core.ReplReceiver, Incarnation] = {}
        self._member_timeout_us = member_timeout_us
        self._now_us = 0
        self.wrong_clocks = WrongClocks()
        self._view: set[Incarnation] = set()
        self._callers: dict[int, int] = {}  # By member outside the view: renewals without the member.
        # Regions whose deduplication tables the next `work` searches for departed clients.
        self._to_search: dict[str, None] = {}
        # By region: the members outside the view whose clients the last search found. Each renewal searches these
        # regions again.
        self._outsiders: dict[str, set[int]] = {}
        self._turn: list[str] = []  # Regions still to be searched in turn. The last is next.
        self._profiles: dict[
            Incarnation, MemberProfile
        ] = {}  # Profiles of the view, and of members with a replication link.
        self._regions: dict[str, RegionReplicas] = {}
        # Regions whose `work` is due: they have a new record, a refusal, or a takeover under way.
        self._to_work: dict[str, None] = {}
        self._cores: dict[str, Any] = {}
        self._read_lease_until_us: dict[Incarnation, int] = {}  # Read leases given over ended connections.
        self._unreachable_us: dict[Incarnation, int] = {}  # The time of the last report, by member.
        self._reports: list[Report] = []
        self._news: deque[tuple[Incarnation, tuple[Any, ...]]] = deque()  # Pending notifications of replication links.
        self._came: list[PeerSession] = []
        self._gone: list[PeerSession] = []

    # Regions and cluster metadata

    def share(self, name: str, core: Any, changelog: _core.Changelog, *, content: Mapping[int, Bucket]) -> None:
        """Begins to work for a region. The change log is attached to the region already. `content`: as for
        `RegionReplicas`."""
        if self.is_stopping:
            raise IllegalStateError("the member ends")
        self._cores[name] = core
        services = _ServicesForRegion(self, name, changelog)
        self._regions[name] = RegionReplicas(name, core, changelog, self.me, services, content=content)
        self._to_search[name] = None

    def drop(self, name: str) -> None:
        """Ends the work for a region. Afterwards the change log of the region may be closed."""
        region = self._regions.pop(name, None)
        self._cores.pop(name, None)
        self._outsiders.pop(name, None)
        if region is None:
            return
        for peer in self.peers.values():
            peer.remove_region(name)
            region.changelog.remove_repl_link(peer.number)

    def take_view(self, profiles: tuple[MemberProfile, ...]) -> None:
        """Adopts the view: the members that are alive."""
        view = {profile.incarnation for profile in profiles}
        departed = self._view - view
        self._callers.update((each.member_id, STRANGER_RENEWALS) for each in departed)
        if departed:
            self._to_search.update(dict.fromkeys(self._regions))
        self._view = view
        self.wrong_clocks.keep_only(view)
        for receiver, member in self.receivers.items():
            if member not in view:
                receiver.stop()
        self._profiles.update((profile.incarnation, profile) for profile in profiles)

    def lease_renewed(self, member_timeout_us: int) -> None:
        """The coordinator has answered a poll, and the metadata have all earlier records. The answer had
        `member-timeout`."""
        if member_timeout_us != self._member_timeout_us:
            self._member_timeout_us = member_timeout_us
            for peer in self.peers.values():
                peer.repl_link.configure(member_timeout_us // 1000)
            for receiver in self.receivers:
                receiver.configure(member_timeout_us // 1000)
        self._callers = {member: renewals + 1 for member, renewals in self._callers.items()}
        self._to_search.update(dict.fromkeys(self._outsiders))
        self._search_in_turn()

    def _search_in_turn(self) -> None:
        """Chooses further regions for the next search: some buckets with each renewal of the lease. So a region is
        searched in the end although nothing has named the region, and a renewal costs the same with many regions."""
        self._turn = self._turn or list(reversed(self._regions))
        buckets = 0
        while self._turn and buckets < SEARCHED_BUCKETS:
            name = self._turn.pop()
            if name in self._regions:
                self._to_search[name] = None
                buckets += self._regions[name].led_count

    def take(self, name: str, buckets: Mapping[int, Bucket | None], now_us: int) -> None:
        """Adopts metadata records of a region's buckets."""
        self._now_us = now_us
        region = self._regions.get(name)
        if region is not None:
            self._to_work[name] = None
            for number, bucket in buckets.items():
                region.take(number, bucket)

    def find(self, name: str) -> Any:
        """Returns the region for the changes of replication links. None: this member does not share the region, or not
        yet."""
        return self._cores.get(name)

    def followed(self) -> dict[BucketKey, Bucket]:
        """Returns the metadata records of the member's replicas. The member sends these in a replica report when
        joining again."""
        followed: dict[BucketKey, Bucket] = {}
        for region in self._regions.values():
            followed.update(region.followed())
        return followed

    def reached(self, now_us: int) -> list[Incarnation]:
        """Returns the members that exchanged an answer with this one a moment ago, in either direction."""
        answered = {each for each, peer in self.peers.items() if peer.repl_link.read_lease_until_us > now_us}
        asked = {each for receiver, each in self.receivers.items() if receiver.read_lease.left_us(now_us)}
        return sorted(answered | asked)

    def counts(self, name: str) -> dict[str, int]:
        """Returns the number of the region's buckets by role, as `RegionReplicas.counts`. Empty: this member does not
        share the region."""
        region = self._regions.get(name)
        return region.counts() if region is not None else {}

    # Questions and replication links of other members

    def knows(self, asked: Asked) -> bool:
        """Whether the questions of a new primary can be answered before further metadata records arrive."""
        region = self._regions.get(asked.region)
        return not asked.questions or (
            asked.asker in self._view and region is not None and region.knows(asked.questions)
        )

    def answer(self, asked: Asked, now_us: int) -> dict[str, Any]:
        """Answers the questions of a new primary. A question that the metadata at this member do not explain has no
        answer: the new primary asks again."""
        self._now_us = now_us
        if asked.to != self.me:
            raise IllegalStateError(f"this is member {self.me}, and member {asked.to} is meant: it has ended")
        region = self._regions.get(asked.region)
        if region is None or self.is_stopping or asked.asker not in self._view:
            return {"answers": [], "promised_us": 0}
        answers = region.answer(asked.asker, asked.questions)
        # The earlier primaries were denied when the metadata arrived. So the remaining read leases bound the time of
        # their reads.
        return {"answers": plain_answers(answers), "promised_us": self.promised_us(asked.asker)}

    def is_in_view(self, member: Incarnation) -> bool:
        return member in self._view

    def refusal_of_repl_link(self, opening: Opening) -> str:
        """Returns the reason to refuse a replication link. Empty: the link is served."""
        refusal = refusal_of(opening, self.me, self.site_identity)
        if not refusal and self.is_stopping:
            return f"member {self.me} ends"
        return refusal or ("" if self.is_in_view(opening.from_) else stranger(opening, self.me))

    def repl_link_opened(self, member: Incarnation) -> _core.ReplReceiver:
        """A member has opened a replication link in place of an earlier link, which the member has given up. Returns
        the receiver of the link's bytes."""
        for receiver, of in self.receivers.items():
            if of == member:
                receiver.stop()
        receiver = _core.ReplReceiver(self.find, self._member_timeout_us // 1000, member.member_id, self._memory)
        self.receivers[receiver] = member
        if self.is_stopping:
            receiver.stop()
        return receiver

    def repl_link_closed(self, receiver: _core.ReplReceiver, now_us: int) -> None:
        """The connection of a replication link has ended. Read leases given over the connection stay valid."""
        member = self.receivers.pop(receiver)
        self.wrong_clocks.note(member, receiver.take_ahead_ms(), now_us)
        until_us = now_us + receiver.read_lease.left_us(now_us)
        self._read_lease_until_us[member] = max(until_us, self._read_lease_until_us.get(member, 0))

    def promised_us(self, to_all_but: Incarnation) -> int:
        """Returns the remaining time, in us, of the longest read lease given to a member other than `to_all_but`."""
        now = self._now_us
        for member in [each for each, until in self._read_lease_until_us.items() if until <= now]:
            del self._read_lease_until_us[member]
        ended = [until - now for each, until in self._read_lease_until_us.items() if each != to_all_but]
        open_ = [each.read_lease.left_us(now) for each, member in self.receivers.items() if member != to_all_but]
        return max([*ended, *open_], default=0)

    # Due work

    def work(self, now_us: int) -> bool:
        """Does the due work. Returns whether a takeover is under way: the caller then calls again soon."""
        self._now_us = now_us
        for member, peer in self.peers.items():
            self._news.extend((member, news) for news in peer.repl_link.news())
        while self._news:  # After a failure, the next call takes the rest.
            self._take_news(*self._news.popleft())
        for receiver, member in self.receivers.items():
            self.wrong_clocks.note(member, receiver.take_ahead_ms(), now_us)
        is_busy = False
        for name in list(self._to_work):
            region = self._regions.get(name)
            if region is not None and region.work():
                is_busy = True
            else:
                del self._to_work[name]
        self._end_repl_links()
        self._forget_callers()
        for member, peer in self.peers.items():
            if peer.down_us(now_us) > UNREACHABLE_US:
                self._unreachable(member)
            else:
                self._unreachable_us.pop(member, None)
        return is_busy

    def take_reports(self) -> list[Report]:
        """Returns the reports for the coordinator since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def keep_reports(self, reports: list[Report]) -> None:
        """Keeps reports that a failure prevented. The next `take_reports` returns these first."""
        self._reports[:0] = reports

    def take_peers(self) -> tuple[list[PeerSession], list[PeerSession]]:
        """Returns the members to connect to from now on, and the members to disconnect from, since the last call."""
        came, gone, self._came, self._gone = self._came, self._gone, [], []
        return came, gone

    def suspect(self, member: Incarnation) -> None:
        """A connection to the member was refused, or broke."""
        if not self.is_stopping and member in self._view:
            self._reports.append(lambda reports: reports.suspect(member))

    def answered(self, member: Incarnation, name: str, reply: dict[str, Any], now_us: int) -> None:
        """Takes the reply to questions about a region. Raises the reason why a reply cannot be used."""
        self._now_us = now_us
        try:
            answers, promised_us = answers_of(reply)
        except ProtocolError:
            self._unreachable(member)  # Equivalent to a replica that does not answer.
            raise
        region = self._regions.get(name)
        if region is not None:
            region.adopted(member, answers, promised_us)

    def _forget_callers(self) -> None:
        """Removes the clients of departed members from the deduplication tables of the buckets that this member
        leads."""
        if not self._to_search:
            return
        names, self._to_search = self._to_search, {}
        in_view = {each.member_id for each in self._view} | {self.me.member_id}
        found: set[int] = set()

        def is_gone(caller: int) -> bool:
            member = _core.member_of_caller(caller)
            if member in in_view:
                return False
            found.add(member)
            return self._callers.get(member, 0) >= STRANGER_RENEWALS

        for name in names:
            self._outsiders.pop(name, None)
            if name in self._regions:
                self._regions[name].forget_callers(is_gone)
            if found:
                self._outsiders[name], found = found, set()
        outside = set[int]().union(*self._outsiders.values())
        self._callers = {member: self._callers.get(member, 0) for member in outside}

    def _take_news(self, member: Incarnation, news: tuple[Any, ...]) -> None:
        if news[0] == "slow":
            self._unreachable(member)
            return
        what, name, number, value = news
        region = self._regions.get(name)
        if region is not None and what == "learned":
            region.learned(number, member, value)
        elif region is not None and what == "refused":
            self._to_work[name] = None
            region.refused(number, value)

    def _unreachable(self, member: Incarnation) -> None:
        """Reports a replica that does not answer, but not more often than every REPORT_AGAIN_US."""
        if self._now_us - self._unreachable_us.get(member, -REPORT_AGAIN_US) < REPORT_AGAIN_US:
            return
        self._unreachable_us[member] = self._now_us
        epochs: dict[BucketKey, Epoch] = {}
        for region in self._regions.values():
            epochs.update(region.led_with(member))
        if epochs:
            self._reports.append(lambda reports: reports.unreachable(epochs, member))

    # Replication links to members

    def members_of_repl_links(self) -> dict[int, Incarnation]:
        """Returns the member at the end of each replication link, by the link's number in the change logs."""
        return {peer.number: member for member, peer in self.peers.items()}

    def _peer(self, name: str, changelog: _core.Changelog, member: Incarnation) -> PeerSession:
        """Returns the session of a member. The replication link of the session carries the region from now on."""
        peer = self.peers.get(member)
        if peer is None:
            used = {each.number for each in self.peers.values()}
            number = next(each for each in range(_core.REPL_LINKS_MAX) if each not in used)
            peer = self.peers[member] = PeerSession(
                self.me,
                self._profiles[member],
                number,
                member_timeout_us=self._member_timeout_us,
                now_us=self._now_us,
            )
            self._came.append(peer)
        changelog.add_repl_link(peer.number, peer.repl_link)
        peer.add_region(name, self._cores[name])
        return peer

    def _end_repl_links(self) -> None:
        """Ends the replication links to members outside the view, unless this member still sends changes to the
        departed member."""
        for member in self._profiles.keys() - self._view - self.peers.keys():
            del self._profiles[member]
        gone = self.peers.keys() - self._view
        if not gone:
            return
        used = set[Incarnation]().union(*(region.repl_links_to() for region in self._regions.values()))
        for member in sorted(gone - used):
            peer = self.peers.pop(member)
            peer.repl_link.stop()
            peer.remove_regions()
            for region in self._regions.values():
                region.changelog.remove_repl_link(peer.number)
            self._unreachable_us.pop(member, None)
            self._gone.append(peer)


class _ServicesForRegion:
    """The services of a member for the replicas of one region (`MemberServices`)."""

    def __init__(self, owner: ReplicasSession, name: str, changelog: _core.Changelog) -> None:
        self._owner, self._name, self._changelog = owner, name, changelog

    def now_us(self) -> int:
        return self._owner._now_us

    def repl_link(self, member: Incarnation) -> int:
        return self._owner._peer(self._name, self._changelog, member).number

    def prepare(self, member: Incarnation) -> None:
        if member != self._owner.me and member in self._owner._view:
            self._owner._peer(self._name, self._changelog, member)

    def promised_us(self, to_all_but: Incarnation) -> int:
        return self._owner.promised_us(to_all_but)

    def deny(self, region: str, bucket: int, epoch: Epoch, to_all_but: Incarnation) -> None:
        for receiver, member in self._owner.receivers.items():
            if member != to_all_but:
                receiver.deny(region, bucket, epoch.word)

    def ask(self, member: Incarnation, region: str, questions: list[Question]) -> None:
        self._owner._peer(region, self._changelog, member).ask(region, questions)

    def ready(self, keys: list[BucketKey]) -> None:
        self._owner._to_search[self._name] = None  # Clients may have departed before this member led the buckets.
        self._owner._reports.append(lambda reports: reports.ready(keys))

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        self._owner._reports.append(lambda reports: reports.caught_up(key, epoch, learner))
