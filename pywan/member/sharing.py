"""Owns the regions that a member shares with others of its site: it tells the coordinator of them, and gives each one
its tail, its copies and its route as the tables say (docs/decisions/0057, 0065)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pywan import _core
from pywan.base.addresses import Address
from pywan.base.lines import Outage
from pywan.base.threads import start_essential, start_thread
from pywan.calls.pool import CallPool
from pywan.calls.route import Route, call_timeout_s, least_call_timeout_s
from pywan.calls.server import CallServer
from pywan.calls.table import BucketTable
from pywan.config.attributes import RegionAttributes
from pywan.config.values import to_int
from pywan.coordination.encoding import decision_id_of
from pywan.coordination.messages import Tables
from pywan.coordination.tables import (
    DRIFT_DIVISOR,
    NO_DECISION,
    ROLE_PREFIX,
    Bucket,
    BucketKey,
    Incarnation,
    RegionAttributes as SharedAttributes,
    is_role,
)
from pywan.copies.member_copies import MemberCopies
from pywan.errors import ConnectivityError, IllegalStateError
from pywan.member.feeding import Feeding, Sender, members_without
from pywan.member.hosting import is_of_site, silence_limit_ms, site_attributes, weight_of
from pywan.member.interest import Interest, check_interest, hears_all, storing
from pywan.member.older_events import OLDER_EVENTS, Lack, OlderEvents, Wanted, answer as answer_older, fields_of
from pywan.member.sender_roles import HAS_DECISION_MS, ids_of, role_name
from pywan.region.member_region import MemberRegion
from pywan.site.agent import Agent
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.openings import Connection
from pywan.transport.own_openings import OwnOpenings

log = logging.getLogger("pywan.sharing")

BACKLOG_MEMORY_MB = 512  # The default limit of a member's budget.

FOLLOW_S = 5.0  # The time that members have to follow one that altered the senders of a region.
OLDER_AGAIN_S = 0.1  # A member that did not give all that a queue lacks is asked again.
OLDER_TIMEOUT_S = 10.0  # Of one answer, of a few MiB at most.

_NOTHING: Mapping[int, Bucket] = MappingProxyType({})


@dataclass
class _OtherSenders:
    """The site names other senders of a region than this member."""

    words: tuple[str, str]  # Its senders here, and at the member that said them last.
    since: float
    was_said: bool = False


class _Shared:
    """A region that the site knows of. The owner's lock guards it."""

    def __init__(self, region: MemberRegion) -> None:
        self.region = region
        self.buckets: dict[int, Bucket] = {}
        self.alone: dict[int, Bucket] = {}  # The newest decisions under which this member alone had all buckets.
        self.tail: _core.Tail | None = None  # None: this member alone has the region, by decision.
        self.table: BucketTable | None = None
        self.other_senders: _OtherSenders | None = None  # None: the site names the same ones.
        # None: its listeners are told of the buckets that this member leads, or it is replicated.
        self.interest = Interest(region.attributes) if hears_all(region.attributes) else None


def primary_until_us(made: RegionAttributes, heard_us: int) -> int | None:
    """Until when the member works as a primary of the region when the coordinator was heard last after `heard_us`: a
    margin less than the coordinator waits before the bucket begins anew, as their clocks may drift. None: for ever."""
    limit_us = silence_limit_ms(made) * 1000
    return None if limit_us < 0 else heard_us + limit_us - limit_us // DRIFT_DIVISOR


class SharedRegions:
    """Any thread may call it. `start` is called once the member has joined its site, `stop` when it ends."""

    def __init__(
        self,
        agent: Agent,
        find: Callable[[str], Any],
        call_timeout_s: float | None = None,
        backlog_bytes: int = BACKLOG_MEMORY_MB << 20,
        *,
        memory: _core.MemoryLimit | None = None,
        way: Way = PLAIN.cluster,
        why_only_once: Callable[[RegionAttributes], str] = lambda made: "",
        gives_up: Callable[[str], object] | None = None,
    ) -> None:
        """`call_timeout_s`: for how long a call is tried. None: as `member-timeout` says. `backlog_bytes`: the limit of
        the member's budget (docs/decisions/0078). `memory`: the limit of its memory (docs/decisions/0106). `way`:
        connects to other members. `why_only_once`: returns why only one member can have a region. `gives_up`: called
        with the reason if the copies' thread cannot go on."""
        self._agent, self._find, self._gives_up = agent, find, gives_up
        self._way, self._why_only_once = way, why_only_once
        self.budget, self._memory = _core.MemoryBudget(backlog_bytes), memory
        self._lock = threading.RLock()  # Guards the regions. Nobody waits for another process under it.
        self._regions: dict[str, _Shared] = {}
        self._call_timeout_s = call_timeout_s
        self._member_timeout_us = 0  # For which `call-timeout` was looked at last.
        self._feeding = Feeding(self.sender_primary, self._fetch_older)
        # What gets older events, by the region and the queue.
        self._fetching: dict[tuple[str, Any], OlderEvents] = {}
        self._ending = threading.Event()
        self._taken = NO_DECISION  # What is in effect here. `_took` is notified when it changes.
        self._took = threading.Condition(self._lock)
        self.decided: Callable[[], object] = lambda: None  # Called after new tables were taken; it returns at once.
        self.sender_changed: Callable[[Any], object] = lambda sender: None  # Called when a sender runs elsewhere.
        self._unanswered: set[str] = set()  # Regions that were created without an answer of the coordinator.
        self._addresses: dict[Incarnation, tuple[str, int]] = {}
        self._openings, self._questions = OwnOpenings(), OpeningQuestions(self._address_of, way)
        self._pool: CallPool | None = None  # It stays when the member begins anew: calls that wait go on over it.
        self._begin(agent.me)

    def _begin(self, me: Incarnation) -> None:
        """Makes everything that names this incarnation of the member."""
        self._me = me
        self._copies = self._make_copies()
        self._calls: CallServer | None = None

    # What has threads and sockets. A simulation makes these in its own way.

    def _make_copies(self) -> MemberCopies:
        return MemberCopies(
            self._agent,
            self._openings,
            self._questions,
            way=self._way,
            member_timeout_us=self._agent.member_timeout_us,
            memory=self._memory,
            gives_up=self._gives_up,
        )

    def _make_calls(self, site_identity: str) -> CallServer:
        return CallServer(self._me, site_identity, self._find, self._questions, self.budget)

    def _make_pool(self, site_identity: str) -> CallPool:
        return CallPool(self._me, site_identity, self._openings, self._way)

    def _tell_sender_changed(self, sender: Sender) -> None:
        """Has the regions of a sender stamp events with other sites from now on. That waits for callbacks, so a thread
        does it."""
        start_thread(f"regions of {sender.id}", f"attach {sender.id}", self.sender_changed, sender)

    def _run_older(self, older: OlderEvents) -> None:
        """Has a queue get the events that other members have, until it lacks none."""
        what = f"older events of region {older.region} for sender {older.sender}"
        start_essential(what, f"older {older.sender}", self._keep_fetching, older, Outage(log, what))

    def _keep_fetching(self, older: OlderEvents, outage: Outage) -> None:
        while not self.older_round(older, outage) and not self._ending.wait(OLDER_AGAIN_S):
            pass

    def _ask_older(self, member: Incarnation, wanted: Wanted, begin: int) -> Mapping[str, Any]:
        """Asks another member for events that a queue here lacks."""
        address = self._address_of(member)
        if address is None:
            raise ConnectivityError(f"member {member} is not in the view")
        return call_once(address, OLDER_EVENTS, timeout=OLDER_TIMEOUT_S, way=self._way, **fields_of(wanted, begin))

    def _connections(self) -> tuple[CallServer, CallPool]:
        """Returns what serves and makes calls. The site's identity is known now."""
        with self._lock:
            identity = self._agent.site_identity
            if self._pool is None:
                self._pool = self._make_pool(identity)
            if self._calls is None:
                self._copies.start(self._me, identity)
                self._copies.take_view(tuple(self._agent.tables.members.values()))
                self._calls = self._make_calls(identity)
                self._calls.keep_only(self._agent.tables.members)
            return self._calls, self._pool

    # Regions come and go

    def _told(self, made: RegionAttributes) -> SharedAttributes:
        """Returns what all members of the site must say alike of the region."""
        return site_attributes(made, only_once=self._why_only_once(made), senders=ids_of(made))

    def hosting(self, made: RegionAttributes) -> None:
        """A region is about to be created. IllegalStateError: the site does not allow it, and says why.

        It waits up to a limit until it is decided who has the region. A region that can be on one member only is not
        created without that decision.
        """
        if not is_of_site(made):
            return
        attributes = self._told(made)
        check_interest(made, self._storing_others(made.name))
        is_decided = self._agent.host(made.name, attributes, weight_of(made))
        with self._lock:
            (self._unanswered.discard if is_decided else self._unanswered.add)(made.name)
        if not is_decided and attributes.only_once:
            self._agent.unhost(made.name)
            raise IllegalStateError(
                f"region {made.name!r}: {attributes.only_once}, so only one member of the site can have it, and it is"
                f" not decided which one: {self._why_undecided(made.name)}; create the region again when that has"
                " changed (`show coordinator`)"
            )

    def altering(self, made: RegionAttributes, altered: RegionAttributes) -> None:
        """Attributes of a region are about to change. IllegalStateError: the site does not allow it, and says why."""
        if is_of_site(made):
            self._tell_anew(made, self._told(made), self._told(altered))

    def claim(self, made: RegionAttributes, only_once: str) -> None:
        """A region is about to become one that only one member can have. IllegalStateError: another member has it."""
        if is_of_site(made):
            told = site_attributes(made, only_once=only_once, senders=ids_of(made))
            self._tell_anew(made, self._told(made), told)

    def _tell_anew(self, made: RegionAttributes, before: SharedAttributes, told: SharedAttributes) -> None:
        if told == before:
            return
        why = self._why_undecided(made.name)
        try:
            if self._agent.host(made.name, told, weight_of(made)):
                return
        except IllegalStateError as error:
            why = str(error)
        self._agent.host(made.name, before, weight_of(made), timeout=0.0)
        raise IllegalStateError(
            f"region {made.name!r}: {told.only_once or 'others may have it then'}, and the site did not agree to that:"
            f" {why}; nothing was changed"
        )

    def hosted(self, region: MemberRegion) -> None:
        """The region was created. Unless this member alone has it by decision, it is shared when this returns, or it
        waits for the decision."""
        if not is_of_site(region.attributes):
            return
        with self._lock:
            shared = self._regions[region.name] = _Shared(region)
            is_decided = region.name not in self._unanswered
            self._note_known(shared, is_decided=is_decided)
            if shared.interest is not None:
                shared.interest.see_members(self._storing_others(region.name))
            self._see_feeding({region.name: self._see(shared, set(shared.buckets))})
            if shared.tail is not None and not shared.buckets:
                log.warning(
                    "region %s: its calls wait until the site has decided who has it: %s",
                    region.name,
                    self._why_undecided(region.name),
                )
            self._say_missing_copies(region)

    def _note_known(self, shared: _Shared, *, is_decided: bool = True) -> None:
        """Notes what the tables say of the region's buckets already. What names this member without an answer to it is
        about an earlier region of the name."""
        for key, bucket in list(self._agent.tables.buckets.items()):
            if key.region == shared.region.name and (is_decided or self._me not in bucket.named):
                self._note(shared, key, bucket)

    def _why_undecided(self, name: str) -> str:
        """Says for whom a region waits."""
        status, tables = self._agent.status(), self._agent.tables
        if status["problem"] or not status["joined"]:
            return (
                f"coordinator {status['coordinator'] or '(unknown)'} is away:"
                f" {status['problem'] or 'it has not answered yet'}"
            )
        attributes = tables.regions.get(name)
        is_shared = attributes is not None and attributes.shared
        buckets = [bucket for key, bucket in list(tables.buckets.items()) if key.region == name]
        holders = {each for bucket in buckets if not (is_shared and bucket.primary) for each in bucket.copies}
        if holders - {self._me}:
            who = ", ".join(sorted({each.name for each in holders - {self._me}}))
            if is_shared:
                waiting = sum(bucket.primary is None for bucket in buckets)
                return f"{waiting} of its buckets wait for member {who}: start it again, or `revoke member`"
            return f"member {who} has it, and has not said yet that others may"
        if attributes is not None and not any(
            weight > 0 for each in tables.members.values() for region, weight in each.hosting if region == name
        ):
            return "no member that stores it is there"
        return f"coordinator {status['coordinator']} waits for members that it has yet to hear"

    def _storing_others(self, name: str) -> int:
        return storing(list(self._agent.tables.members.values()), name, self._me)

    def _say_missing_copies(self, region: MemberRegion) -> None:
        wanted, others = region.attributes.redundant_copies or 0, self._storing_others(region.name)
        if wanted > others:
            log.warning(
                "region %s: %d copies of each bucket beside the primary are wanted, and %s: more are made as others"
                " create it",
                region.name,
                wanted,
                f"{others} other members store the region" if others else "no other member has the region yet",
            )

    def is_of_several(self, made: RegionAttributes) -> bool:
        """Whether another member has the region too, as far as this one knows."""
        if not is_of_site(made):
            return False
        members = list(self._agent.tables.members.values())
        others = (each.hosting for each in members if each.incarnation != self._me)
        return any(name == made.name for hosting in others for name, _ in hosting)

    def without_sender(self, made: RegionAttributes, id: str) -> dict[str, int]:
        """Returns the members that store the region and lack one of its senders, and how many of its buckets each one
        leads, as far as this member knows."""
        with self._lock:
            shared = self._regions.get(made.name)
            buckets = [] if shared is None else list(shared.buckets.values())
        return members_without(id, made.name, list(self._agent.tables.members.values()), buckets)

    def say_other_senders(self, now: float) -> None:
        """Logs once which regions have had other senders here than another member says, for longer than members take
        to follow one that was altered. It is called now and then. `now`: as time.monotonic() has it."""
        with self._lock:
            for shared in self._regions.values():
                self._say_other_senders(shared, now)

    def unhosted(self, made: RegionAttributes) -> None:
        """The region is gone from this member, or was not created. A region that is shared goes from all members."""
        if not is_of_site(made):
            return
        is_shared = False
        with self._lock:
            self._unanswered.discard(made.name)
            shared = self._regions.pop(made.name, None)
            self._feeding.forget(made.name)
            if shared is not None and shared.tail is not None:
                self._copies.drop(made.name)
                # Calls that wait for copies are told now. No copy will answer any more.
                for number in range(shared.region.bucket_count):
                    shared.tail.set_role(number, _core.TAIL_ABSENT, 0, 0)
                is_shared = True
        if is_shared and made.name in self._agent.tables.regions:
            self._agent.destroy_region(made.name)
        else:
            self._agent.unhost(made.name)

    # Senders

    def sender_primary(self, id: str) -> Incarnation | None:
        """Returns the primary of a serial sender. None: it runs nowhere, or that is not decided yet."""
        bucket = self._agent.tables.buckets.get(BucketKey(role_name(id), 0))
        return None if bucket is None else bucket.primary

    def fed(self, name: str, senders: Iterable[Sender]) -> None:
        """These senders take the events of a region of the member from now on."""
        with self._lock:
            senders = list(senders)
            self._feeding.fed(name, senders)
            self._say_elsewhere({each.id for each in senders})
            shared = self._regions.get(name)
            if shared is not None:
                self._see_feeding({name: shared.buckets})

    def _fetch_older(self, region: str, sender: Sender) -> None:
        """A queue lacks events that other members have. It gets them, unless it is getting them already."""
        if (region, sender.queue) in self._fetching or self._ending.is_set():
            return
        older = OlderEvents(region, sender.id, sender.queue, self._ask_older)
        self._fetching[region, sender.queue] = older
        try:
            self._run_older(older)
        except IllegalStateError as error:  # The system has no thread now.
            self._fetching.pop((region, sender.queue), None)
            log.error("region %s: %s; it is tried again with the next decision about a bucket", region, error)

    def losing_senders(self, name: str) -> None:
        """A region is about to lose senders. A queue that is fed no more forgets what it has of a bucket as long as it
        lacks what other members had queued: it must not send it, and the others may be about to do the same. So this
        returns when the queues lack nothing, or when another member has all. It waits for about 5 s at most."""
        until_us = _core.monotonic_us() + 5_000_000
        while _core.monotonic_us() < until_us:
            with self._lock:
                me = self._me
                lacks = [
                    (older, self._lacking(older)) for (region, _), older in self._fetching.items() if region == name
                ]
            if all(older.are_elsewhere(me, each) for older, each in lacks) or self._ending.wait(0.01):
                return
        log.warning(
            "region %s: it loses a sender that has not got yet what other members have queued for that: events of"
            " buckets that lack something are forgotten here, and leave only from members that have all",
            name,
        )

    def older_round(self, older: OlderEvents, outage: Outage) -> bool:
        """Asks other members for what a queue lacks. Returns whether it lacks nothing now, or feeds on nothing."""
        with self._lock:
            lacks, me = self._lacking(older), self._me
        why = older.round(me, lacks)
        if why:
            outage.failed(why)
        else:
            outage.over()
        with self._lock:  # The members that hold a bucket may be others meanwhile.
            ended = [each for each in self._lacking(older) if older.has_asked(me, each)]
            older.end(ended)
            shared = self._regions.get(older.region)
            if ended and shared is not None:
                self._see_feeding({older.region: [each.number for each in ended]})
            is_over = not self._lacking(older)
            if is_over:
                self._fetching.pop((older.region, older.queue), None)
        if is_over and ended:
            log.info("region %s: this member has all that was queued for sender %s before", older.region, older.sender)
        older.ask_what_is_settled(me, ended)
        return is_over

    def _lacking(self, older: OlderEvents) -> list[Lack]:
        return self._feeding.lacking(older.region, older.sender, older.queue, self._decided(older.region))

    def answer_older(self, request: Mapping[str, Any], queue_of: Callable[[str], Any]) -> dict[str, Any]:
        """Answers a member whose queue lacks events. What is settled of the bucket is told to all members again."""
        reply = answer_older(request, queue_of)
        with self._lock:
            shared = self._regions.get(request["region"])
            if reply and shared is not None and shared.tail is not None:
                shared.tail.tell_settled(int(request["bucket"]))
        return reply

    def take_part(self, region: MemberRegion, is_decided: bool) -> None:
        """The member has a copy of a role region from now on. `is_decided`: the tables show it."""
        with self._lock:
            (self._unanswered.discard if is_decided else self._unanswered.add)(region.name)
            shared = self._regions[region.name] = _Shared(region)
            if is_decided:
                self._note_known(shared)
            shared.tail = self._new_tail(region)
            self._share(shared, shared.tail)
            self._see_feeding({region.name: self._see(shared, set(shared.buckets))})

    def take_no_part(self, name: str) -> None:
        """The member has no copy of a role region any more."""
        with self._lock:
            self._unanswered.discard(name)
            shared = self._regions.pop(name, None)
            if shared is not None:
                shared.region.close()  # Links of other members look for the region of this name again.
                self._copies.drop(name)

    def kept_elsewhere(self, id: str) -> int:
        """Returns how many events of a sender's queue another member has too."""
        with self._lock:
            return self._feeding.kept_elsewhere(id, self._me, self._decided)

    def _decided(self, region: str) -> Mapping[int, Bucket]:
        shared = self._regions.get(region)
        return _NOTHING if shared is None or shared.tail is None else shared.buckets

    def _see_feeding(self, numbers: Mapping[str, Iterable[int]]) -> None:
        """Tells the queues of regions which of these buckets this member sends."""
        shared = {name: self._regions[name] for name in numbers}
        self._feeding.see(
            self._me,
            {
                name: {number: each.buckets.get(number) for number in numbers[name]}
                for name, each in shared.items()
                if each.tail is not None
            },
        )

    def _say_other_senders(self, shared: _Shared, now: float) -> None:
        mine, told = ids_of(shared.region.attributes), self._agent.tables.regions.get(shared.region.name)
        is_other = told is not None and told.senders != mine and self.is_of_several(shared.region.attributes)
        if told is None or not is_other or is_role(shared.region.name):
            shared.other_senders = None
            return
        if shared.other_senders is None or shared.other_senders.words != (mine, told.senders):
            shared.other_senders = _OtherSenders((mine, told.senders), now)
        elif now - shared.other_senders.since >= FOLLOW_S and not shared.other_senders.was_said:
            shared.other_senders.was_said = True
            log.warning(
                "region %s: its senders are %s here, and %s at another member: an event enters the queues of the"
                " senders that the member has which leads its bucket; alter the region alike on all members",
                shared.region.name,
                mine or "none",
                told.senders or "none",
            )

    def _say_elsewhere(self, ids: set[str]) -> None:
        """Tells serial senders of this member whether they run on another one."""
        for sender in self._feeding.note_elsewhere(ids, self._me):
            self._tell_sender_changed(sender)

    # What the coordinator says

    def take(self, tables: Tables) -> list[MemberRegion]:
        """Takes new tables. Returns the regions that were destroyed everywhere, and that this member still has."""
        with self._lock:
            if tables.members is not None:
                self._addresses = {each.incarnation: (each.host, each.port) for each in tables.members}
                if self._calls is not None:  # Before the buckets forget the calls of those who are gone.
                    self._calls.keep_only(self._addresses)
                    self._copies.take_view(tables.members)
                if self._pool is not None:
                    self._pool.keep_only(self._addresses)
            ids = {
                key.region.removeprefix(ROLE_PREFIX) for key, _ in tables.buckets if key.region.startswith(ROLE_PREFIX)
            }
            if tables.members is not None:
                moved = self._feeding.see_members(tables.members)
                ids |= moved
                self._say_elsewhere(moved)
            gone = {name for name, attributes in tables.regions if attributes is None} & self._regions.keys()
            changed: dict[str, set[int]] = {name: set() for name, _ in tables.regions if name in self._regions}
            for key, bucket in tables.buckets:
                shared = self._regions.get(key.region)
                if shared is not None:
                    self._note(shared, key, bucket)
                    changed.setdefault(key.region, set()).add(key.number)
            if tables.members is not None:
                for name, shared in self._regions.items():
                    changed.setdefault(name, set()).update(shared.buckets)
                    if shared.interest is not None:
                        shared.interest.see_members(storing(tables.members, name, self._me))
            decided = {
                name: self._see(self._regions[name], numbers) for name, numbers in changed.items() if name not in gone
            }
            for name in self._feeding.regions_of(ids) & self._regions.keys():
                decided[name] = set(self._regions[name].buckets)
            self._see_feeding(decided)
            self._taken = tables.newest
            self._took.notify_all()
            self.decided()
            return [self._regions[name].region for name in sorted(gone)]

    def answer_has_decision(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a member that asks whether a decision, or a later one, is in effect here: as soon as it is."""
        decision = decision_id_of(request.get("decision"))
        seconds = to_int(request.get("ms"), "ms", 0, HAS_DECISION_MS) / 1000
        with self._took:
            return {"has": self._took.wait_for(lambda: self._taken >= decision, seconds)}

    def wait_for_tables(self, is_so: Callable[[], bool], timeout: float) -> bool:
        """Waits until the tables show something. Returns whether they do."""
        with self._took:
            return self._took.wait_for(is_so, timeout)

    def take_lease(self, until_us: int, heard_us: int) -> None:
        """Takes until when the coordinator's lease runs, and a moment after which the coordinator was heard."""
        with self._lock:
            self._copies.lease_renewed(self._agent.member_timeout_us)
            if self._agent.member_timeout_us != self._member_timeout_us:
                self._set_limits()
            for shared in self._regions.values():
                if shared.tail is not None:
                    shared.tail.set_lease(until_us)
                    shared.tail.set_primary_until(primary_until_us(shared.region.attributes, heard_us))
                    shared.tail.set_heard_limit(self._agent.member_timeout_us)

    # For how long a call is tried

    def set_call_timeout(self, call_timeout_s: float | None) -> None:
        """Calls that are under way, and later ones, are tried for so many seconds. None: as `member-timeout` says."""
        with self._lock:
            self._call_timeout_s = call_timeout_s
            self._set_limits()

    @property
    def call_timeout_s(self) -> float:
        return self._call_timeout_s or call_timeout_s(self._agent.member_timeout_us)

    def _set_limits(self) -> None:
        """Tells the routes of all regions how long a call is tried. `member-timeout`, or `call-timeout`, is another
        one."""
        self._member_timeout_us = self._agent.member_timeout_us
        least_s = least_call_timeout_s(self._member_timeout_us)
        if self._call_timeout_s is not None and self._call_timeout_s < least_s:
            log.warning(
                "call-timeout is %g s, and the site's member-timeout %g s: calls to a member that falls silent end"
                " before another one takes over, which a call-timeout of %g s would outlive",
                self._call_timeout_s,
                self._member_timeout_us / 1e6,
                least_s,
            )
        for shared in self._regions.values():
            route = shared.region.route
            if route is not None:
                route.set_limit(self.call_timeout_s)

    def reached(self) -> list[Incarnation]:
        """Returns the members whose answers came to this one a moment ago."""
        return self._copies.reached()

    def take_new_incarnation(self, me: Incarnation) -> None:
        """The coordinator has given this incarnation up: its copies are worthless. It begins again as `me`.

        Calls that the member makes wait until the tables of the new incarnation say where the primaries are, and go
        there. None fails because of it, but for one that an earlier attempt may have made: it is in doubt if its bucket
        has forgotten the earlier incarnation."""
        with self._lock:
            copies, calls = self._copies, self._calls
            self._taken = NO_DECISION
            for shared in self._regions.values():
                if shared.tail is not None:
                    copies.drop(shared.region.name)
                    nothing = dict.fromkeys(range(shared.region.bucket_count))
                    self._feeding.see(self._me, {shared.region.name: nothing})
                    self._empty(shared, shared.tail)
                if shared.table is not None:
                    shared.table.forget()
                shared.buckets.clear()
                shared.alone.clear()
                if shared.interest is not None:
                    shared.interest.forget()
            self._begin(me)
            if self._pool is not None:
                self._pool.begin_anew(me, self._agent.site_identity)
        copies.stop()
        if calls is not None:
            calls.stop()
        with self._lock:
            for shared in self._regions.values():
                if shared.tail is not None:
                    self._have_copies(shared, shared.tail)
                elif weight_of(shared.region.attributes) and not self._told(shared.region.attributes).only_once:
                    tail = shared.tail = self._new_tail(shared.region)
                    self._share(shared, tail)
                    self._empty(shared, tail)

    @staticmethod
    def _empty(shared: _Shared, tail: _core.Tail) -> None:
        """Drops what the member has of the region."""
        for number in range(shared.region.bucket_count):
            tail.set_role(number, _core.TAIL_ABSENT, 0, 0)
            shared.region.drop_bucket(number)

    @staticmethod
    def _note(shared: _Shared, key: BucketKey, bucket: Bucket | None) -> None:
        if bucket is None:
            shared.buckets.pop(key.number, None)
        else:
            shared.buckets[key.number] = bucket

    def _see(self, shared: _Shared, numbers: set[int]) -> set[int]:
        """Does what the tables say about a region. `numbers`: its buckets whose decisions changed. Returns the buckets
        whose sender `_see_feeding` is to look at."""
        if shared.interest is not None:
            shared.interest.see_buckets(self._me, {number: shared.buckets.get(number) for number in numbers})
            if not self._agent.wants_to_leave:
                shared.interest.say()
        if shared.tail is None:
            if shared.region.is_closed:  # It is being destroyed: `unhosted` comes next.
                return set()
            if self._is_alone(shared):
                if numbers:
                    shared.alone = dict(shared.buckets)
                return set()
            if self._told(shared.region.attributes).only_once:
                self._give_away(shared)
                return set()
            shared.tail = self._new_tail(shared.region)
            self._share(shared, shared.tail, content=shared.alone)
            numbers = {*shared.buckets, *shared.alone}
            shared.alone = {}
        assert shared.table is not None
        for number in sorted(numbers):
            self._copies.take(BucketKey(shared.region.name, number), shared.buckets.get(number))
            shared.tail.tell_settled(number)  # A member that holds the bucket since this decision heeds it now.
        places = {number: shared.buckets[number] for number in numbers if number in shared.buckets}
        shared.table.update(places, self._addresses)
        if self._pool is not None:
            holders = {each for bucket in places.values() for each in bucket.holders} - {self._agent.me}
            self._pool.prepare({each: self._addresses[each] for each in sorted(holders & self._addresses.keys())})
        return numbers

    def _is_alone(self, shared: _Shared) -> bool:
        """Whether it is decided that this member has all of the region, and that no other member may have it.

        A region without a tail asks nobody, and needs no lease. So nothing less than that decision is enough.
        """
        region = shared.region
        decided = self._agent.tables.regions.get(region.name)
        if decided is None or decided.shared or region.attributes.min_in_sync_copies > 1:
            return False
        if weight_of(region.attributes) == 0:
            return region.name not in self._unanswered and not shared.buckets
        return len(shared.buckets) == region.bucket_count and all(
            bucket.is_only_of(self._me) for bucket in shared.buckets.values()
        )

    def _give_away(self, shared: _Shared) -> None:
        """Ends a region that can be on one member only, when it is decided that another one has it."""
        others = {each.name for bucket in shared.buckets.values() for each in bucket.in_sync} - {self._me.name}
        if not others or shared.region.is_closed:
            return
        region = shared.region
        log.error(
            "region %s: member %s has it now, and only one member of the site can: it is closed here; what is in its"
            " log stays there",
            region.name,
            ", ".join(sorted(others)),
        )
        start_thread(f"region {region.name} is not closed", f"close {region.name}", region.close)

    def _new_tail(self, region: MemberRegion) -> _core.Tail:
        return _core.Tail(region.bucket_count, region.shards, region.attributes.min_in_sync_copies, self.budget)

    def _share(self, shared: _Shared, tail: _core.Tail, content: Mapping[int, Bucket] = _NOTHING) -> None:
        """`content`: the decisions under which what the region holds is the content of its buckets."""
        region = shared.region
        _, pool = self._connections()
        shared.table = BucketTable(region.name, region.bucket_count)
        route = Route(
            region,
            shared.table,
            pool,
            timeout_s=self.call_timeout_s,
            why_nobody=lambda: self._why_undecided(region.name),
            why_full=self.why_full,
        )
        region.share(tail, route, not region.attributes.is_partitioned, bool(content))
        self._have_copies(shared, tail, content)

    def _have_copies(self, shared: _Shared, tail: _core.Tail, content: Mapping[int, Bucket] = _NOTHING) -> None:
        """Lets this incarnation have copies of the region. `content`: as for `_share`."""
        region = shared.region
        self._connections()
        tail.set_lease(self._agent.lease_until_us)
        tail.set_primary_until(primary_until_us(region.attributes, self._agent.heard_us))
        tail.set_heard_limit(self._agent.member_timeout_us)
        self._copies.share(region.name, region, tail, content=content)
        log.info("member %s shares region %s with others of its site", self._me.name, region.name)

    # Connections of others

    def serve_lane(self, connection: Connection, first: bytes) -> None:
        self._connections()
        self._copies.serve_lane(connection, first)

    def serve_calls(self, connection: Connection, first: bytes) -> None:
        self._connections()[0].serve(connection, first)

    def _address_of(self, member: Incarnation) -> Address | None:
        """Returns where a member is, as the tables say; None: it is not in the view."""
        profile = self._agent.tables.members.get(member)
        return None if profile is None else Address(profile.host, profile.port)

    def answer_opening(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers a member that asks whether an opening is of this one."""
        return self._openings.answer(request)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers the questions of a new primary."""
        return self._copies.answer(request)

    def followed(self) -> Mapping[BucketKey, Bucket]:
        """Returns the decisions that this member's copies follow, for the coordinator."""
        return self._copies.followed()

    # Status and end

    def backlog(self) -> dict[str, Any]:
        """Returns what the member's budget has in use and may have, in bytes, how often a caller had to wait for it,
        and how many bytes of changes the copies of each member have yet to acknowledge."""
        return {
            **self.budget.used(),
            "limit": self.budget.limit,
            "is_full": self.budget.is_full,
            "waits": self.budget.waits,
            "behind": {each.name: count for each, count in self._behind().items()},
        }

    def clocks_ahead_s(self) -> dict[str, int]:
        """Returns the members whose changes have stamps that are ahead of the time here, and by how many seconds."""
        with self._lock:
            copies = self._copies
        return {each.name: ahead_ms // 1000 for each, ahead_ms in sorted(copies.clocks_ahead_ms().items())}

    def _behind(self) -> dict[Incarnation, int]:
        """Returns how many bytes of changes each member has yet to acknowledge, the most first."""
        with self._lock:
            tails = [shared.tail for shared in self._regions.values() if shared.tail is not None]
            members = self._copies.members_of_lanes()
        found: dict[Incarnation, int] = {}
        for tail in tails:
            for lane, count in tail.behind().items():
                if lane in members:
                    found[members[lane]] = found.get(members[lane], 0) + count
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def why_full(self) -> str:
        """Says in words what fills the member's budget, what that waits for, and what helps."""
        used, behind = self.budget.used(), self._behind()
        parts = [
            f"{used['changes'] / 1e6:,.1f} MB of changes that copies have yet to acknowledge",
            f"{used['calls'] / 1e6:,.1f} MB of calls that wait for that",
            f"{used['heard'] / 1e6:,.1f} MB of changes that listeners are still to be told",
            f"{used['remembered'] / 1e6:,.1f} MB that is remembered of calls",
        ]
        slowest = next(iter(behind.items()), None)
        waits_for = (
            f"member {slowest[0].name}, whose copies are {slowest[1] / 1e6:,.1f} MB behind"
            if slowest is not None and used["changes"] >= used["heard"]
            else "the listeners of this member"
        )
        return (
            f"maximum-backlog-memory of member {self._me.name} ({self.budget.limit >> 20:,} MB) is full:"
            f" {', '.join(parts)}; it waits for {waits_for}. Repeat it when that has caught up (`status member` shows"
            " it), make fewer changes at the same time, or start the member with a higher --maximum-backlog-memory"
        )

    def last_copies(self, regions: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Returns for those of `regions` that are shared how many buckets with entries have their last whole copy here,
        as far as the tables say, and how many entries these have."""
        with self._lock:
            found = {}
            for name in regions:
                shared = self._regions.get(name)
                if shared is None or shared.tail is None:
                    continue
                sizes = [
                    shared.region.bucket(number)["entries"]
                    for number, bucket in shared.buckets.items()
                    if bucket.copies == (self._me,)
                ]
                if sum(sizes):
                    found[name] = sum(size > 0 for size in sizes), sum(sizes)
            return found

    def describe(self, name: str) -> dict[str, int]:
        """Returns how many buckets of a region this member leads, takes over, follows and learns. Empty: it is the only
        member that has the region."""
        return self._copies.counts(name)

    def unheard(self, name: str) -> int | None:
        """Returns of how many buckets of a region the listeners here are not told, though its interest policy is ALL.
        None: it is another policy, or the region is replicated."""
        with self._lock:
            shared = self._regions.get(name)
            return None if shared is None or shared.interest is None else shared.interest.unheard

    def led(self, name: str) -> list[int]:
        """Returns the buckets of a region that this member leads, as far as the tables say."""
        with self._lock:
            shared = self._regions.get(name)
            found = {} if shared is None else shared.buckets
            return [number for number, bucket in found.items() if bucket.primary == self._me]

    def stop(self) -> None:
        self._ending.set()
        self._copies.stop()
        if self._calls is not None:
            self._calls.stop()
        if self._pool is not None:
            self._pool.close()
