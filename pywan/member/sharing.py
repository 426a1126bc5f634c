"""Owns the regions that a member shares with other members of its site. The object announces the regions to the
coordinator, and gives every region a change log, replicas and a route as the cluster metadata say (docs/decisions/0057,
0065)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pywan import _core
from pywan.base.addresses import Address
from pywan.base.lines import Lines
from pywan.base.threads import start_essential, start_thread
from pywan.calls.pool import CallPool
from pywan.calls.route import Route, call_timeout_s, least_call_timeout_s
from pywan.calls.server import CallServer
from pywan.calls.table import BucketTable
from pywan.config.attributes import RegionAttributes
from pywan.config.member_attributes import BACKLOG_MEMORY_MB
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
    MemberProfile,
    RegionAttributes as SharedAttributes,
    is_role,
)
from pywan.errors import ConnectivityError, IllegalStateError
from pywan.member.feeding import Feeding, Sender, members_without
from pywan.member.hosting import is_of_site, site_attributes, unclean_recovery_timeout_ms, weight_of
from pywan.member.interest import Interest, check_interest, receives_all, storing, storing_by_region
from pywan.member.older_events import (
    OLDER_EVENTS,
    Lack,
    NotNow,
    OlderEvents,
    Wanted,
    answer as answer_older,
    begins_later,
    fields_of,
    others_of,
)
from pywan.member.sender_roles import HAS_DECISION_MS, ids_of, role_name
from pywan.region.member_region import MemberRegion
from pywan.replication.member_replicas import MemberReplicas
from pywan.site.agent import Agent
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way
from pywan.transport.opening_questions import OpeningQuestions
from pywan.transport.openings import Connection
from pywan.transport.own_openings import OwnOpenings

log = logging.getLogger("pywan.sharing")


FOLLOW_S = 5.0  # Time for members to follow a member that altered the senders of a region.
OLDER_AGAIN_S = 0.1  # Pause between two rounds of a backfill.
OLDER_TIMEOUT_S = 10.0  # Timeout of one reply, a few MiB at most.

_NOTHING: Mapping[int, Bucket] = MappingProxyType({})


@dataclass
class _OtherSenders:
    """The cluster metadata and this member name different senders of a region."""

    words: tuple[str, str]  # The senders here, and at the member with the newest report.
    since: float
    was_said: bool = False


class _Shared:
    """A region that the site knows. The owner's lock guards the object."""

    def __init__(self, region: MemberRegion) -> None:
        self.region = region
        self.buckets: dict[int, Bucket] = {}
        self.alone: dict[int, Bucket] = {}  # Newest metadata records that gave this member alone all buckets.
        self.changelog: _core.Changelog | None = None  # None: by metadata record, no second member has the region.
        self.table: BucketTable | None = None
        self.other_senders: _OtherSenders | None = None  # None: the site names the same senders.
        # None: listeners receive the changes of the buckets led by this member, or the region is a REPLICATE region.
        self.interest = Interest(region.attributes) if receives_all(region.attributes) else None


def changes_of(
    before: Mapping[Incarnation, MemberProfile], now: Mapping[Incarnation, MemberProfile]
) -> tuple[set[Incarnation], set[str]]:
    """Returns the differences between two views: the members that joined, departed, or moved to another address, and
    the regions that a member began or ended to have."""
    moved: set[Incarnation] = set()
    rehosted: set[str] = set()
    for each in () if before is now else before.keys() | now.keys():
        earlier, later = before.get(each), now.get(each)
        if earlier is None or later is None or (earlier.host, earlier.port) != (later.host, later.port):
            moved.add(each)
        hosted, hosting = earlier.hosting if earlier else (), later.hosting if later else ()
        if hosted != hosting:
            rehosted.update(region for region, _ in set(hosted) ^ set(hosting))
    return moved, rehosted


def _numbers_with(members: set[Incarnation], buckets: Mapping[int, Bucket]) -> list[int]:
    """Returns the buckets that name one of the members."""
    return [number for number, bucket in buckets.items() if not members.isdisjoint(bucket.named)]


def primary_until_us(made: RegionAttributes, received_us: int) -> int | None:
    """Returns the time until which the member works as a primary of the region, if the coordinator was last in contact
    after `received_us`. The time ends a margin before the coordinator begins a new timeline of the bucket, as the two
    clocks may drift. None: no limit."""
    limit_us = unclean_recovery_timeout_ms(made) * 1000
    return None if limit_us < 0 else received_us + limit_us - limit_us // DRIFT_DIVISOR


class SharedRegions:
    """Any thread may call the methods. `start` is called after the member joined the site, `stop` when the member
    ends."""

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
        """`call_timeout_s`: the timeout of a call. None: as `member-timeout` says. `backlog_bytes`: the limit of the
        member's budget (docs/decisions/0078). `memory`: the limit of the member's memory (docs/decisions/0106). `way`:
        connects to other members. `why_only_once`: returns the reason why only one member can have a region.
        `gives_up`: called with the reason if the replicas' thread cannot go on."""
        self._agent, self._find, self._gives_up = agent, find, gives_up
        self._way, self._why_only_once = way, why_only_once
        self._older_lines = Lines(log)
        self.budget, self._memory = _core.MemoryBudget(backlog_bytes), memory
        self._lock = threading.RLock()  # Guards the regions. No thread waits for another process under the lock.
        self._regions: dict[str, _Shared] = {}
        self._call_timeout_s = call_timeout_s
        self._member_timeout_us = 0  # The value for which `call-timeout` was checked last.
        self._feeding = Feeding(self.sender_primary, self._fetch_older)
        # The running backfills, by region and queue.
        self._fetching: dict[tuple[str, Any], OlderEvents] = {}
        self._ending = threading.Event()
        self._taken = NO_DECISION  # Newest record in effect here. `_took` is notified of changes.
        self._took = threading.Condition(self._lock)
        self.decided: Callable[[], object] = lambda: None  # Called after new metadata took effect; returns at once.
        self.sender_changed: Callable[[Any], object] = lambda sender: None  # Called when a sender's runners change.
        self._unanswered: set[str] = set()  # Regions that were created without a reply of the coordinator.
        self._members: dict[Incarnation, MemberProfile] = {}  # The view in the metadata taken last.
        self._addresses: dict[Incarnation, tuple[str, int]] = {}
        self._is_seen = False  # All regions were looked at under `_members`, and under the records of their buckets.
        self._openings, self._questions = OwnOpenings(), OpeningQuestions(self._address_of, way)
        self._pool: CallPool | None = None  # Outlives an incarnation: pending calls go on over the pool.
        self._begin(agent.me)

    def _begin(self, me: Incarnation) -> None:
        """Makes the objects that name this incarnation of the member."""
        self._me = me
        self._replicas = self._make_replicas()
        self._calls: CallServer | None = None

    # Objects with threads and sockets. A simulation makes these objects in its own way.

    def _make_replicas(self) -> MemberReplicas:
        return MemberReplicas(
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
        """Makes the regions of a sender stamp events with other sites from now on. The change waits for callbacks, so a
        thread makes the change."""
        start_thread(f"regions of {sender.id}", f"attach {sender.id}", self.sender_changed, sender)

    def _run_older(self, older: OlderEvents) -> None:
        """Runs the backfill of a queue from other members, until the queue has no gap."""
        what = f"older events of region {older.region} for sender {older.sender}"
        start_essential(what, f"older {older.sender}", self._keep_fetching, older)

    def _keep_fetching(self, older: OlderEvents) -> None:
        while not self.older_round(older) and not self._ending.wait(OLDER_AGAIN_S):
            pass

    def _ask_older(self, member: Incarnation, wanted: Wanted, begin: int) -> Mapping[str, Any]:
        """Asks another member for events missing in a queue here."""
        address = self._address_of(member)
        if address is None:
            raise ConnectivityError(f"member {member} is not in the view")
        return call_once(address, OLDER_EVENTS, timeout=OLDER_TIMEOUT_S, way=self._way, **fields_of(wanted, begin))

    def _connections(self) -> tuple[CallServer, CallPool]:
        """Returns the server of calls and the pool for calls. The site's identity is known now."""
        with self._lock:
            identity = self._agent.site_identity
            if self._pool is None:
                self._pool = self._make_pool(identity)
            if self._calls is None:
                self._replicas.start(self._me, identity)
                self._replicas.take_view(tuple(self._agent.tables.members.values()))
                self._calls = self._make_calls(identity)
                self._calls.keep_only(self._agent.tables.members)
            return self._calls, self._pool

    # Creation and removal of regions

    def _told(self, made: RegionAttributes) -> SharedAttributes:
        """Returns the attributes of the region that must be equal at all members of the site."""
        return site_attributes(made, only_once=self._why_only_once(made), senders=ids_of(made))

    def hosting(self, made: RegionAttributes) -> None:
        """Announces a region before its creation. IllegalStateError: the site refuses the region, and gives the reason.

        The method waits up to a limit for the metadata record about the region. A region that only one member can have
        is not created without the record.
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
        """Announces changed attributes of a region. IllegalStateError: the site refuses the change, and gives the
        reason."""
        if is_of_site(made):
            self._tell_anew(made, self._told(made), self._told(altered))

    def claim(self, made: RegionAttributes, only_once: str) -> None:
        """Announces a region for one member only. IllegalStateError: another member has the region."""
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
        """Adopts a region after its creation. Unless by metadata record this member alone has the region, the region is
        shared when the method returns, or waits for the record."""
        if not is_of_site(region.attributes):
            return
        with self._lock:
            shared = self._regions[region.name] = _Shared(region)
            is_decided = region.name not in self._unanswered
            self._note_known(shared, is_decided=is_decided)
            if shared.interest is not None:
                shared.interest.see_members(self._storing_others(region.name))
            self._see_feeding({region.name: self._see(shared, set(shared.buckets))})
            if shared.changelog is not None and not shared.buckets:
                log.warning(
                    "region %s: its calls wait until the site has decided who has it: %s",
                    region.name,
                    self._why_undecided(region.name),
                )
            self._say_missing_replicas(region)

    def _note_known(self, shared: _Shared, *, is_decided: bool = True) -> None:
        """Notes the records about the region's buckets in the present metadata. A record with the name of this member,
        but without an answer to this member, is about an earlier region of the same name."""
        region, buckets = shared.region, self._agent.tables.buckets
        for key in (BucketKey(region.name, number) for number in range(region.bucket_count)):
            bucket = buckets.get(key)
            if bucket is not None and (is_decided or self._me not in bucket.named):
                self._note(shared, key, bucket)

    def _why_undecided(self, name: str) -> str:
        """Names the member or coordinator for which a region waits."""
        status, tables = self._agent.status(), self._agent.tables
        if status["problem"] or not status["joined"]:
            return (
                f"coordinator {status['coordinator'] or '(unknown)'} is away:"
                f" {status['problem'] or 'it has not answered yet'}"
            )
        attributes = tables.regions.get(name)
        is_shared = attributes is not None and attributes.shared
        buckets = [bucket for key, bucket in list(tables.buckets.items()) if key.region == name]
        holders = {each for bucket in buckets if not (is_shared and bucket.primary) for each in bucket.replicas}
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
        return f"coordinator {status['coordinator']} waits for members that have not contacted it yet"

    def _storing_others(self, name: str) -> int:
        return storing(list(self._agent.tables.members.values()), name, self._me)

    def _say_missing_replicas(self, region: MemberRegion) -> None:
        wanted, others = region.attributes.redundant_copies or 0, self._storing_others(region.name)
        if wanted > others:
            log.warning(
                "region %s: %d replicas of each bucket beside the primary are wanted, and %s: more are made as others"
                " create it",
                region.name,
                wanted,
                f"{others} other members store the region" if others else "no other member has the region yet",
            )

    def is_of_several(self, made: RegionAttributes) -> bool:
        """Returns whether a second member has the region, as far as this member knows."""
        if not is_of_site(made):
            return False
        members = list(self._agent.tables.members.values())
        others = (each.hosting for each in members if each.incarnation != self._me)
        return any(name == made.name for hosting in others for name, _ in hosting)

    def without_sender(self, made: RegionAttributes, id: str) -> dict[str, int]:
        """Returns the members that store the region but not one of its senders, with the number of buckets led by the
        member, as far as this member knows."""
        with self._lock:
            shared = self._regions.get(made.name)
            buckets = [] if shared is None else list(shared.buckets.values())
        return members_without(id, made.name, list(self._agent.tables.members.values()), buckets)

    def say_other_senders(self, now: float) -> None:
        """Logs once the regions whose senders here differ from the report of another member for longer than members
        take to follow an alteration. A timer calls the method. `now`: a value of time.monotonic()."""
        with self._lock:
            for shared in self._regions.values():
                self._say_other_senders(shared, now)

    def unhosted(self, made: RegionAttributes) -> None:
        """Removes a region after its end at this member, or after a failed creation. A shared region is removed from
        all members."""
        if not is_of_site(made):
            return
        is_shared = False
        with self._lock:
            self._unanswered.discard(made.name)
            shared = self._regions.pop(made.name, None)
            self._feeding.forget(made.name)
            if shared is not None and shared.changelog is not None:
                self._replicas.drop(made.name)
                # Pending calls end now: no replica will acknowledge their changes any more.
                for number in range(shared.region.bucket_count):
                    shared.changelog.set_role(number, _core.REPLICA_ABSENT, 0, 0)
                is_shared = True
        if is_shared and made.name in self._agent.tables.regions:
            self._agent.destroy_region(made.name)
        else:
            self._agent.unhost(made.name)

    # Senders

    def sender_primary(self, id: str) -> Incarnation | None:
        """Returns the primary of a serial sender. None: no member runs the sender, or the record is not made yet."""
        bucket = self._agent.tables.buckets.get(BucketKey(role_name(id), 0))
        return None if bucket is None else bucket.primary

    def fed(self, name: str, senders: Iterable[Sender]) -> None:
        """The given senders receive the events of a region of the member from now on."""
        with self._lock:
            senders = list(senders)
            self._feeding.fed(name, senders)
            self._say_runs_on_others({each.id for each in senders})
            shared = self._regions.get(name)
            if shared is not None:
                self._see_feeding({name: shared.buckets})

    def _fetch_older(self, region: str, sender: Sender) -> None:
        """Starts a backfill for a queue with a gap, unless a backfill of the queue is running."""
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
        """Waits before a region loses senders. A queue that loses the region forgets its events of a bucket while the
        bucket has a gap: the queue must not send these events, and other members may be about to lose the sender as
        well. So the method returns when the queues have no gap, or when another member has all events. The wait is
        about 5 s at most."""
        until_us = _core.monotonic_us() + 5_000_000
        while _core.monotonic_us() < until_us:
            with self._lock:
                me = self._me
                lacks = [
                    (older, self._lacking(older)) for (region, _), older in self._fetching.items() if region == name
                ]
            if all(older.are_at_others(me, each) for older, each in lacks) or self._ending.wait(0.01):
                return
        log.warning(
            "region %s: a removed sender has not received yet all events that other members have queued for the"
            " sender: this member forgets the events of buckets with a gap, and only members with all events send them",
            name,
        )

    def older_round(self, older: OlderEvents) -> bool:
        """Asks other members for the gaps of a queue. Returns whether the queue has no gap now, or serves no region."""
        with self._lock:
            lacks, me = self._lacking(older), self._me
        why = older.round(me, lacks)
        what = f"older events of region {older.region} for sender {older.sender}"
        if why:
            self._older_lines.failed(what, why)
        else:
            self._older_lines.works(what)
        with self._lock:  # Other members may hold a bucket by now.
            ended = [each for each in self._lacking(older) if older.has_asked(me, each)]
            older.end(ended)
            shared = self._regions.get(older.region)
            if ended and shared is not None:
                self._see_feeding({older.region: [each.number for each in ended]})
            is_over = not self._lacking(older)
        if is_over and ended:
            log.info("region %s: this member has all that was queued for sender %s before", older.region, older.sender)
        if not older.ask_removed_through(me):
            return False
        with self._lock:
            is_over = not self._lacking(older)
            if is_over:
                self._fetching.pop((older.region, older.queue), None)
                self._older_lines.ended(what)
        return is_over

    def _lacking(self, older: OlderEvents) -> list[Lack]:
        return self._feeding.lacking(older.region, older.sender, older.queue, self._decided(older.region))

    def answer_older(self, request: Mapping[str, Any], queue_of: Callable[[str], Any]) -> dict[str, Any]:
        """Answers a member whose queue has a gap. This member announces removals of the bucket to all members again."""
        reply = answer_older(request, queue_of)
        with self._lock:
            shared = self._regions.get(request["region"])
            if reply and shared is not None and shared.changelog is not None:
                shared.changelog.announce_removals(int(request["bucket"]))
            number = int(request["bucket"])
            bucket = self._decided(request["region"]).get(number)
            if reply and not reply.get("again") and bucket is not None and not self._ending.is_set():
                try:
                    if begins_later(request, queue_of, others_of(bucket, self._me)):
                        self._see_feeding({request["region"]: [number]})
                except NotNow:
                    return {"again": True}
        return reply

    def take_part(self, region: MemberRegion, is_decided: bool) -> None:
        """The member has a replica of a role region from now on. `is_decided`: the cluster metadata name the
        replica."""
        with self._lock:
            (self._unanswered.discard if is_decided else self._unanswered.add)(region.name)
            shared = self._regions[region.name] = _Shared(region)
            if is_decided:
                self._note_known(shared)
            shared.changelog = self._new_changelog(region)
            self._share(shared, shared.changelog)
            self._see_feeding({region.name: self._see(shared, set(shared.buckets))})

    def take_no_part(self, name: str) -> None:
        """The member has no replica of a role region any more."""
        with self._lock:
            self._unanswered.discard(name)
            shared = self._regions.pop(name, None)
            if shared is not None:
                shared.region.close()  # Replication links of other members look up the region name again.
                self._replicas.drop(name)

    def kept_by_others(self, id: str) -> int:
        """Returns how many events of a sender's queue are at a second member too."""
        with self._lock:
            return self._feeding.kept_by_others(id, self._me, self._decided)

    def _decided(self, region: str) -> Mapping[int, Bucket]:
        shared = self._regions.get(region)
        return _NOTHING if shared is None or shared.changelog is None else shared.buckets

    def _see_feeding(self, numbers: Mapping[str, Iterable[int]]) -> None:
        """Tells the queues of regions whether this member dispatches the given buckets."""
        shared = {name: self._regions[name] for name in numbers}
        self._feeding.see(
            self._me,
            {
                name: {number: each.buckets.get(number) for number in numbers[name]}
                for name, each in shared.items()
                if each.changelog is not None
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
                "region %s: its senders are %s here, and %s at another member: an event enters only the queues of the"
                " senders at the primary of its bucket; alter the region alike on all members",
                shared.region.name,
                mine or "none",
                told.senders or "none",
            )

    def _say_runs_on_others(self, ids: set[str]) -> None:
        """Tells serial senders of this member whether another member runs the same sender."""
        for sender in self._feeding.note_runs_on_others(ids, self._me):
            self._tell_sender_changed(sender)

    # Cluster metadata from the coordinator

    def take(self, tables: Tables) -> list[MemberRegion]:
        """Adopts new metadata. Returns the regions of this member destroyed by the site.

        Looks at what is new: buckets and regions with new records, buckets that name a member with another address or
        another presence, and regions that a member begins or ends to have (docs/decisions/0118). The metadata of
        another coordinator are whole, so all buckets have new records. If an earlier call failed half-way, all regions
        are looked at.
        """
        with self._lock:
            before, is_seen, self._is_seen = self._members, self._is_seen, False
            if tables.members is not None:
                self._members = {each.incarnation: each for each in tables.members}
                self._addresses = {each.incarnation: (each.host, each.port) for each in tables.members}
                if self._calls is not None:  # Before the buckets forget the calls of departed members.
                    self._calls.keep_only(self._addresses)
                    self._replicas.take_view(tables.members)
                if self._pool is not None:
                    self._pool.keep_only(self._addresses)
            moved, rehosted = changes_of(before, self._members)
            ids = {
                key.region.removeprefix(ROLE_PREFIX) for key, _ in tables.buckets if key.region.startswith(ROLE_PREFIX)
            }
            if not is_seen or any(map(is_role, rehosted)):
                runs_moved = self._feeding.see_members(self._members.values())
                ids |= runs_moved if is_seen else self._feeding.ids
                self._say_runs_on_others(runs_moved if is_seen else self._feeding.ids)
            gone = {name for name, attributes in tables.regions if attributes is None} & self._regions.keys()
            changed: dict[str, set[int]] = {name: set() for name, _ in tables.regions if name in self._regions}
            for key, bucket in tables.buckets:
                shared = self._regions.get(key.region)
                if shared is not None:
                    self._note(shared, key, bucket)
                    changed.setdefault(key.region, set()).add(key.number)
            if moved or not is_seen:
                for name, shared in self._regions.items():
                    numbers = _numbers_with(moved, shared.buckets) if is_seen else shared.buckets
                    if numbers or not is_seen:
                        changed.setdefault(name, set()).update(numbers)
            self._see_interest(rehosted if is_seen else self._regions, changed)
            decided = {
                name: self._see(self._regions[name], numbers) for name, numbers in changed.items() if name not in gone
            }
            for name in self._feeding.regions_of(ids) & self._regions.keys() if ids else ():
                decided[name] = set(self._regions[name].buckets)
            self._see_feeding(decided)
            self._is_seen, self._taken = True, tables.newest
            self._took.notify_all()
            self.decided()
            return [self._regions[name].region for name in sorted(gone)]

    def _see_interest(self, names: Iterable[str], changed: dict[str, set[int]]) -> None:
        """Tells regions with interest policy ALL how many other members store them. The caller looks at `changed`."""
        found = [(name, each.interest) for name in names if (each := self._regions.get(name)) is not None]
        counts = storing_by_region(self._members.values(), self._me) if any(each for _, each in found) else {}
        for name, interest in found:
            if interest is not None:
                interest.see_members(counts.get(name, 0))
                changed.setdefault(name, set())

    def answer_has_decision(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers the question whether a metadata record, or a later record, is in effect here. The reply waits for the
        record."""
        decision = decision_id_of(request.get("decision"))
        seconds = to_int(request.get("ms"), "ms", 0, HAS_DECISION_MS) / 1000
        with self._took:
            return {"has": self._took.wait_for(lambda: self._taken >= decision, seconds)}

    def wait_for_tables(self, is_so: Callable[[], bool], timeout: float) -> bool:
        """Waits until the cluster metadata show something. Returns whether the metadata do."""
        with self._took:
            return self._took.wait_for(is_so, timeout)

    def take_lease(self, until_us: int, received_us: int) -> None:
        """Notes the end of the coordinator's lease, and a moment after which the coordinator was in contact."""
        with self._lock:
            self._replicas.lease_renewed(self._agent.member_timeout_us)
            if self._agent.member_timeout_us != self._member_timeout_us:
                self._set_limits()
            for shared in self._regions.values():
                if shared.changelog is not None:
                    shared.changelog.set_lease(until_us)
                    shared.changelog.set_primary_until(primary_until_us(shared.region.attributes, received_us))
                    shared.changelog.set_notification_limit(self._agent.member_timeout_us)

    # Timeout of calls

    def set_call_timeout(self, call_timeout_s: float | None) -> None:
        """Sets the timeout of calls under way and of later calls. None: as `member-timeout` says."""
        with self._lock:
            self._call_timeout_s = call_timeout_s
            self._set_limits()

    @property
    def call_timeout_s(self) -> float:
        return self._call_timeout_s or call_timeout_s(self._agent.member_timeout_us)

    def _set_limits(self) -> None:
        """Gives the routes of all regions the timeout of a call, after `member-timeout` or `call-timeout` changed."""
        self._member_timeout_us = self._agent.member_timeout_us
        least_s = least_call_timeout_s(self._member_timeout_us)
        if self._call_timeout_s is not None and self._call_timeout_s < least_s:
            log.warning(
                "call-timeout is %g s, and the site's member-timeout %g s: calls to an unreachable member end"
                " before another member takes over; a call-timeout of %g s would be long enough",
                self._call_timeout_s,
                self._member_timeout_us / 1e6,
                least_s,
            )
        for shared in self._regions.values():
            route = shared.region.route
            if route is not None:
                route.set_limit(self.call_timeout_s)

    def reached(self) -> list[Incarnation]:
        """Returns the members whose replies came to this member a moment ago."""
        return self._replicas.reached()

    def take_new_incarnation(self, me: Incarnation) -> None:
        """Begins again as `me`. The coordinator has given the earlier incarnation up, and its replicas are worthless.
        Calls of the member wait until the metadata of the new incarnation name the primaries, and then go to these
        primaries. No call fails for this reason, with one exception: a call is in doubt if an earlier attempt may have
        made the change and the bucket has forgotten the earlier incarnation."""
        with self._lock:
            replicas, calls = self._replicas, self._calls
            self._taken, self._is_seen = NO_DECISION, False
            for shared in self._regions.values():
                if shared.changelog is not None:
                    replicas.drop(shared.region.name)
                    nothing = dict.fromkeys(range(shared.region.bucket_count))
                    self._feeding.see(self._me, {shared.region.name: nothing})
                    self._empty(shared, shared.changelog)
                if shared.table is not None:
                    shared.table.forget()
                shared.buckets.clear()
                shared.alone.clear()
                if shared.interest is not None:
                    shared.interest.forget()
            self._begin(me)
            if self._pool is not None:
                self._pool.begin_anew(me, self._agent.site_identity)
        replicas.stop()
        if calls is not None:
            calls.stop()
        with self._lock:
            for shared in self._regions.values():
                if shared.changelog is not None:
                    self._have_replicas(shared, shared.changelog)
                elif weight_of(shared.region.attributes) and not self._told(shared.region.attributes).only_once:
                    changelog = shared.changelog = self._new_changelog(shared.region)
                    self._share(shared, changelog)
                    self._empty(shared, changelog)

    @staticmethod
    def _empty(shared: _Shared, changelog: _core.Changelog) -> None:
        """Drops the member's content of the region."""
        for number in range(shared.region.bucket_count):
            changelog.set_role(number, _core.REPLICA_ABSENT, 0, 0)
            shared.region.drop_bucket(number)

    @staticmethod
    def _note(shared: _Shared, key: BucketKey, bucket: Bucket | None) -> None:
        if bucket is None:
            shared.buckets.pop(key.number, None)
        else:
            shared.buckets[key.number] = bucket

    def _see(self, shared: _Shared, numbers: set[int]) -> set[int]:
        """Does as the cluster metadata say about a region. `numbers`: the buckets with changed records. Returns the
        buckets whose sender `_see_feeding` has to check."""
        if shared.interest is not None:
            shared.interest.see_buckets(self._me, {number: shared.buckets.get(number) for number in numbers})
            if not self._agent.wants_to_leave:
                shared.interest.say()
        if shared.changelog is None:
            if shared.region.is_closed:  # The region is being destroyed: `unhosted` comes next.
                return set()
            if self._is_alone(shared):
                if numbers:
                    shared.alone = dict(shared.buckets)
                return set()
            if self._told(shared.region.attributes).only_once:
                self._give_away(shared)
                return set()
            shared.changelog = self._new_changelog(shared.region)
            self._share(shared, shared.changelog, content=shared.alone)
            numbers = {*shared.buckets, *shared.alone}
            shared.alone = {}
        assert shared.table is not None
        self._replicas.take(shared.region.name, {number: shared.buckets.get(number) for number in sorted(numbers)})
        for number in numbers:
            shared.changelog.announce_removals(number)  # A new holder of the bucket heeds the announcement now.
        places = {number: shared.buckets[number] for number in numbers if number in shared.buckets}
        shared.table.update(places, self._addresses)
        if self._pool is not None:
            holders = {each for bucket in places.values() for each in bucket.holders} - {self._agent.me}
            self._pool.prepare({each: self._addresses[each] for each in sorted(holders & self._addresses.keys())})
        return numbers

    def _is_alone(self, shared: _Shared) -> bool:
        """Returns whether, by metadata record, this member has all of the region, and no other member may have a part.

        A region without a change log asks no other member, and needs no lease. So nothing less than the record is
        enough.
        """
        region = shared.region
        decided = self._agent.tables.regions.get(region.name)
        if decided is None or decided.shared or region.attributes.min_in_sync_replicas > 1:
            return False
        if weight_of(region.attributes) == 0:
            return region.name not in self._unanswered and not shared.buckets
        return len(shared.buckets) == region.bucket_count and all(
            bucket.is_only_of(self._me) for bucket in shared.buckets.values()
        )

    def _give_away(self, shared: _Shared) -> None:
        """Ends a region for one member only, after a metadata record gave the region to another member."""
        others = {each.name for bucket in shared.buckets.values() for each in bucket.isr} - {self._me.name}
        if not others or shared.region.is_closed:
            return
        region = shared.region
        log.error(
            "region %s: member %s has the region now, and only one member of the site can have it: this member closes"
            " the region, and keeps the log of the region",
            region.name,
            ", ".join(sorted(others)),
        )
        start_thread(f"region {region.name} is not closed", f"close {region.name}", region.close)

    def _new_changelog(self, region: MemberRegion) -> _core.Changelog:
        return _core.Changelog(region.bucket_count, region.shards, region.attributes.min_in_sync_replicas, self.budget)

    def _share(self, shared: _Shared, changelog: _core.Changelog, content: Mapping[int, Bucket] = _NOTHING) -> None:
        """`content`: the metadata records under which the region's entries are the content of its buckets."""
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
        region.share(changelog, route, not region.attributes.is_partitioned, bool(content))
        self._have_replicas(shared, changelog, content)

    def _have_replicas(
        self, shared: _Shared, changelog: _core.Changelog, content: Mapping[int, Bucket] = _NOTHING
    ) -> None:
        """Lets this incarnation have replicas of the region. `content`: as for `_share`."""
        region = shared.region
        self._connections()
        changelog.set_lease(self._agent.lease_until_us)
        changelog.set_primary_until(primary_until_us(region.attributes, self._agent.received_us))
        changelog.set_notification_limit(self._agent.member_timeout_us)
        self._replicas.share(region.name, region, changelog, content=content)
        log.info("member %s shares region %s with others of its site", self._me.name, region.name)

    # Connections from other members

    def serve_repl_link(self, connection: Connection, first: bytes) -> None:
        self._connections()
        self._replicas.serve_repl_link(connection, first)

    def serve_calls(self, connection: Connection, first: bytes) -> None:
        self._connections()[0].serve(connection, first)

    def _address_of(self, member: Incarnation) -> Address | None:
        """Returns the address of a member, as the cluster metadata say. None: the member is not in the view."""
        profile = self._agent.tables.members.get(member)
        return None if profile is None else Address(profile.host, profile.port)

    def answer_opening(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers the question whether this member made an opening."""
        return self._openings.answer(request)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers the questions of a new primary."""
        return self._replicas.answer(request)

    def followed(self) -> Mapping[BucketKey, Bucket]:
        """Returns for the coordinator the metadata records followed by the replicas here."""
        return self._replicas.followed()

    # Status and end

    def backlog(self) -> dict[str, Any]:
        """Returns the used bytes and the limit of the member's budget, how often a call had to wait for the budget, and
        how many bytes of changes the replicas of every member have yet to acknowledge."""
        return {
            **self.budget.used(),
            "limit": self.budget.limit,
            "is_full": self.budget.is_full,
            "waits": self.budget.waits,
            "behind": {each.name: count for each, count in self._behind().items()},
        }

    def clocks_ahead_s(self) -> dict[str, int]:
        """Returns the members with stamps ahead of the local time, and the seconds by which the stamps are ahead."""
        with self._lock:
            replicas = self._replicas
        return {each.name: ahead_ms // 1000 for each, ahead_ms in sorted(replicas.clocks_ahead_ms().items())}

    def _behind(self) -> dict[Incarnation, int]:
        """Returns by member how many bytes of changes the member has yet to acknowledge, largest first."""
        with self._lock:
            changelogs = [shared.changelog for shared in self._regions.values() if shared.changelog is not None]
            members = self._replicas.members_of_repl_links()
        found: dict[Incarnation, int] = {}
        for changelog in changelogs:
            for repl_link, count in changelog.behind().items():
                if repl_link in members:
                    found[members[repl_link]] = found.get(members[repl_link], 0) + count
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    def why_full(self) -> str:
        """Says in words the content of the member's full budget, the reason of the wait, and a remedy."""
        used, behind = self.budget.used(), self._behind()
        parts = [
            f"{used['changes'] / 1e6:,.1f} MB of changes that replicas have yet to acknowledge",
            f"{used['calls'] / 1e6:,.1f} MB of calls that wait for these replicas",
            f"{used['notifications'] / 1e6:,.1f} MB of changes that listeners have yet to receive",
            f"{used['remembered'] / 1e6:,.1f} MB of cached replies of calls",
        ]
        slowest = next(iter(behind.items()), None)
        waits_for = (
            f"member {slowest[0].name}, whose replicas are {slowest[1] / 1e6:,.1f} MB behind"
            if slowest is not None and used["changes"] >= used["notifications"]
            else "the listeners of this member"
        )
        return (
            f"maximum-backlog-memory of member {self._me.name} ({self.budget.limit >> 20:,} MB) is full:"
            f" {', '.join(parts)}; it waits for {waits_for}. Repeat it when that has caught up (`status member` shows"
            " it), make fewer changes at the same time, or start the member with a higher --maximum-backlog-memory"
        )

    def last_replicas(self, regions: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Returns for the shared regions among `regions` how many buckets with entries have their last whole replica in
        this member, as far as the metadata say, and the number of their entries."""
        with self._lock:
            found = {}
            for name in regions:
                shared = self._regions.get(name)
                if shared is None or shared.changelog is None:
                    continue
                sizes = [
                    shared.region.bucket(number)["entries"]
                    for number, bucket in shared.buckets.items()
                    if bucket.replicas == (self._me,)
                ]
                if sum(sizes):
                    found[name] = sum(size > 0 for size in sizes), sum(sizes)
            return found

    def describe(self, name: str) -> dict[str, int]:
        """Returns how many buckets of a region this member leads, takes over, follows and learns. Empty: no other
        member has the region."""
        return self._replicas.counts(name)

    def unnotified(self, name: str) -> int | None:
        """Returns the number of buckets without notification of the listeners here, though the interest policy is ALL.
        None: another policy, or a REPLICATE region."""
        with self._lock:
            shared = self._regions.get(name)
            return None if shared is None or shared.interest is None else shared.interest.unnotified

    def led(self, name: str) -> list[int]:
        """Returns the buckets of a region led by this member, as far as the cluster metadata say."""
        with self._lock:
            shared = self._regions.get(name)
            found = {} if shared is None else shared.buckets
            return [number for number, bucket in found.items() if bucket.primary == self._me]

    def stop(self) -> None:
        self._ending.set()
        self._replicas.stop()
        if self._calls is not None:
            self._calls.stop()
        if self._pool is not None:
            self._pool.close()
