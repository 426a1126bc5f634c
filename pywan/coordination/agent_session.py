"""The member's cluster metadata, and the member's requests to the coordinator.

A state machine without sockets, threads or clock (docs/decisions/0054). The driver sends the questions that the session
returns, passes replies and the time to the session, and carries out the outcomes: `Changed`, `Extended`, `GivenUp`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pywan.base.nonces import mark_of
from pywan.coordination import encoding, plain
from pywan.coordination.asked import Asked, Request, RequestKey
from pywan.coordination.claims import Claim, in_words, pairs_of_two_sites
from pywan.coordination.messages import REASON_MAX, MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.promise import REPEAT_US, Promise, round_of
from pywan.coordination.proofs import plain_nonces
from pywan.coordination.tables import (
    DRIFT_DIVISOR,
    INCARNATIONS_KEPT,
    MEMBER_TIMEOUT_US,
    NO_DECISION,
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Incarnation,
    Learner,
    MemberProfile,
    RegionAttributes,
    Standby,
)
from pywan.errors import ProtocolError

log = logging.getLogger("pywan.agent")

RETRY_US = 200_000  # First pause before all locators are asked again, if none coordinated. The pause grows.
RETRY_MAX_US = 2_000_000
LEASE_STEPS = 64  # The driver learns of a longer lease so many times in a `member-timeout` at most.
QUIET_US = 100_000  # A temporary refusal shorter than this gets no warning.
AGAIN_MIN_US = 10_000  # Shortest pause before a retry after a temporary refusal.
# As many as a site has locators. Limits the log lines about a locator with changing identities.
FOREIGN_TOLD_MAX = 64
LEAVE, STAY = ("leave",), ("stay",)  # Keys of requests.
ENDS = ("unhost", "destroy-region")  # The first words of the keys of requests that end a region.


class SiteTables:
    """The cluster metadata as the member knows them. The agent's thread changes the metadata; any thread may read."""

    def __init__(self) -> None:
        self.newest = NO_DECISION
        self.coordinator = ""
        self.standby: Standby | None = None  # The locator that may take over.
        self.members: dict[Incarnation, MemberProfile] = {}
        self.regions: dict[str, RegionAttributes] = {}
        self.buckets: dict[BucketKey, Bucket] = {}
        # Buckets whose records the coordinator has lost, and has not decided again.
        self.undecided: set[BucketKey] = set()

    def take(self, tables: Tables) -> Tables | None:
        """Adopts newer metadata. Returns the changes, or None if nothing has changed.

        Tables that begin at 0 are whole, so a missing entry has been removed: the result names the entry with None. The
        known record of an undecided bucket stays.
        """
        if tables.newest <= self.newest or tables.since > self.newest.number:
            return None
        if tables.since == 0:
            self.undecided = set(tables.undecided)
            regions = {name for name, _ in tables.regions}
            buckets = {*tables.undecided, *(key for key, _ in tables.buckets)}
            tables = replace(
                tables,
                regions=(*tables.regions, *((name, None) for name in self.regions if name not in regions)),
                buckets=(*tables.buckets, *((key, None) for key in self.buckets if key not in buckets)),
            )
        self.newest, self.coordinator, self.standby = tables.newest, tables.coordinator, tables.standby
        if tables.members is not None:
            self.members = {each.incarnation: each for each in tables.members}
        for name, attributes in tables.regions:
            self.regions.pop(name, None)
            if attributes is not None:
                self.regions[name] = attributes
        for key, bucket in tables.buckets:
            self.undecided.discard(key)
            self.buckets.pop(key, None)
            if bucket is not None:
                self.buckets[key] = bucket
        return tables

    def has_buckets(self, region: str) -> bool:
        """Whether every bucket of the region has a primary by a metadata record."""
        attributes = self.regions.get(region)
        return attributes is not None and all(
            (bucket := self.buckets.get(key)) is not None and bucket.primary is not None and key not in self.undecided
            for key in (BucketKey(region, number) for number in range(attributes.total_num_buckets))
        )


@dataclass
class _Hosted:
    attributes: RegionAttributes
    weight: int
    # The tables have shown the region. A coordinator that has forgotten the member is told of the region.
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class Remembered:
    """State that outlives the process of a member."""

    coordinator: str = ""  # The name of the coordinating locator. Empty: the member never knew one.
    site_identity: str = ""
    seen: DecisionId = NO_DECISION  # The newest metadata record that any incarnation of the member has received.
    incarnations: tuple[int, ...] = ()  # Member ids of the incarnations that have used the folder, the newest last.
    # The nonces of these incarnations, by member id. A nonce proves that the next incarnation is of the same folder.
    nonces: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)
    # How often another locator has taken the coordination over. A coordinator of an earlier term is ignored.
    term: int = 0
    # The locator that may take over. A coordinator with an older file learns of the standby from the member.
    standby: Standby | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the coordinator: a join, or a poll for newer metadata records."""

    op: str
    fields: dict[str, Any] = field(repr=False)  # The nonce is among them.
    sent_us: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The tables have changed, and contain the change already. `remembered` has changed with them."""

    tables: Tables


@dataclass(frozen=True, slots=True)
class Extended:
    """The lease runs until `until_us`, by the driver's clock. The coordinator gave the lease after `received_us`."""

    until_us: int
    received_us: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The coordinator has given this incarnation up, and `me` is the new one. All replicas are worthless now."""

    me: Incarnation


Outcome = Changed | Extended | GivenUp


def tables_in(reply: Mapping[str, Any]) -> Tables | None:
    """Reads the tables in a reply to a `Question`. ProtocolError: the tables cannot be read. The tables of a whole site
    may be large, so the driver reads the tables before it takes a lock."""
    packed = reply.get("tables")
    return None if packed is None else encoding.tables_of(plain.unpack(packed))


@dataclass(frozen=True, slots=True)
class _News:
    """The content of a reply to a `Question`, apart from the tables."""

    coordinator: str
    site_identity: str
    lease_us: int
    refused: tuple[Refused, ...]
    leaving: list[MayLeave | StillNeeded]
    term: int

    @classmethod
    def of(cls, reply: Mapping[str, Any], known: Remembered) -> _News:
        """Reads a reply. ProtocolError: the reply cannot be used. A field that is missing in the reply keeps its known
        value."""
        return cls(
            encoding.locator_of(reply.get("coordinator", known.coordinator)),
            encoding.identity_of(reply.get("site_identity", known.site_identity)),
            encoding.lease_of(reply.get("lease_us", 0)),
            encoding.refusals_of(reply),
            encoding.leaving_of(reply),
            encoding.term_of(reply.get("term", 0)),
        )


class AgentSession:
    """Not thread-safe. `now_us` comes from the clock by which leases count.

    Args:
        me: The incarnation with which the member starts.
        host: The host at which other members connect to the member.
        port: The port at which other members connect to the member.
        site: The site's id.
        version: The version of pywan.
        process: Names the member's process (pywan.base.processes).
        remembered: The state kept by earlier incarnations.
        has_ended: Returns whether the end of a process is proved.
        draw_id: Draws the member id of a new incarnation.
        draw_nonce: Draws the nonce of an incarnation (pywan.base.nonces).
        reached: Returns the members whose answers reached this member a moment ago.
        followed: Returns the metadata records that the member's replicas follow. Another member may have sent a
            replica a newer record than the coordinator has sent this member.
    """

    def __init__(
        self,
        me: Incarnation,
        *,
        host: str,
        port: int,
        site: int,
        version: str,
        process: str,
        remembered: Remembered,
        has_ended: Callable[[str], bool],
        draw_id: Callable[[], int],
        draw_nonce: Callable[[], bytes],
        reached: Callable[[], Iterable[Incarnation]] = tuple,
        followed: Callable[[], Mapping[BucketKey, Bucket]] = dict,
    ) -> None:
        self.me = me
        self.tables = SiteTables()
        self.remembered = remembered
        # The coordinator has admitted the member, and has not given the member up as far as is known.
        self.is_joined = False
        self.has_tried = False  # Every locator was asked once.
        self.refusal = ""  # Why the coordinator does not admit the member.
        self._warned = ""  # The refusal that is already in the log.
        self.problem = ""  # Why nobody coordinates.
        self.away_since_us: int | None = None  # Since when nobody coordinates. None: the site has a coordinator.
        self.member_timeout_us = MEMBER_TIMEOUT_US  # The coordinator's last value.
        self.lease_until_us = 0
        self._extended_until_us = 0  # The end of the lease in the last `Extended`.
        self.received_us = 0  # The coordinator was in contact after this moment.
        self.may_leave: MayLeave | None = None  # The coordinator's answer to `leave`.
        self.still_needed = StillNeeded()  # The coordinator's answer to `leave` while the site needs the member.
        self.is_leaving = False  # The coordinator knows that this incarnation ends.
        self.retries = False  # A temporary refusal is retried.
        self.foreign: frozenset[str] = frozenset()  # Addresses of locators of foreign sites.
        # Address and identity of each foreign locator that is in the log already. At most FOREIGN_TOLD_MAX in the life
        # of the member.
        self._told_foreign: set[tuple[str, str]] = set()
        self.promise = Promise()
        self.news_due_us = 0  # When the next question for news is to be sent.
        self.asked = Asked()
        self._host, self._port, self._site, self._version, self._process = host, port, site, version, process
        self._has_ended, self._draw_id, self._reached = has_ended, draw_id, reached
        self._draw_nonce, self._nonce = draw_nonce, draw_nonce()
        # Nonces of earlier incarnations, by member id. At most INCARNATIONS_KEPT.
        self._nonces = dict(remembered.nonces)
        self._followed = followed
        self._reports = False  # The next join has a replica report.
        self._ended: Incarnation | None = None  # An earlier incarnation whose end is proved.
        self._hosted: dict[str, _Hosted] = {}
        self._pause_us = RETRY_US

    @property
    def away_problem(self) -> str:
        """Why nobody coordinates, with the standby's explanation. Empty: the site has a coordinator."""
        told = self.promise.problem
        return f"{self.problem}; {told}" if self.problem and told else self.problem

    @property
    def hosted(self) -> list[str]:
        """The regions that the member has announced to the site, by name."""
        return sorted(self._hosted)

    # --- requests ---

    def host(self, region: str, attributes: RegionAttributes, weight: int) -> Request:
        """Tells the site that this member has the region. `weight`: local-max-memory in MB; 0: the member is an
        accessor.

        The request is done when the tables show the region at this member, and a primary for each bucket. The site
        first receives the end of an earlier region of the same name.
        """
        self._hosted[region] = _Hosted(attributes, weight)
        return self._ask_to_host(region)

    def give_up_hosting(self, region: str) -> None:
        """The coordinator has refused the region."""
        self._hosted.pop(region, None)

    def _ask_to_host(self, region: str) -> Request:
        hosted = self._hosted[region]

        def is_done() -> bool:
            profile = self.tables.members.get(self.me)
            if profile is None or (region, hosted.weight) not in profile.hosting:
                return False
            hosted.is_known = True
            return not hosted.weight or self.tables.has_buckets(region)

        fields = ["host", region, encoding.plain_attributes(hosted.attributes), hosted.weight]
        request = self._ask(("host", region), fields, is_done, (region,), needs_answer=True)
        self._hold_host(region)
        return request

    def unhost(self, region: str) -> None:
        """Tells the site that the member has closed the region. The member's replicas are lost."""
        self._end("unhost", region)

    def destroy_region(self, region: str) -> None:
        """Tells the site that the region is destroyed at all members."""
        self._end("destroy-region", region)

    def _end(self, what: str, region: str) -> None:
        """Repeats the request until the coordinator has answered, and the tables no longer list the region at this
        member."""
        self._hosted.pop(region, None)
        self.asked.drop(("host", region))

        def is_done() -> bool:
            profile = self.tables.members.get(self.me)
            return profile is None or all(name != region for name, _ in profile.hosting)

        self._ask((what, region), [what, region], is_done, (region,), needs_answer=True)

    def _hold_host(self, region: str) -> None:
        """Holds `host` back until the end of an earlier region of the same name is done, since the end is repeated
        too."""
        is_ending = ("unhost", region) in self.asked or ("destroy-region", region) in self.asked
        self.asked.hold(("host", region), is_held=is_ending)

    @property
    def has_ending_regions(self) -> bool:
        """Whether the coordinator has yet to remove regions that the member has closed or destroyed."""
        return any(key[0] in ENDS for key in self.asked.requests)

    def caught_up(self, key: BucketKey, epoch: Epoch, learner: Learner) -> None:
        """The member, primary of the bucket under `epoch`, waits for the learner with every change from now on."""

        def is_done() -> bool:
            bucket = self.tables.buckets.get(key)
            return bucket is None or bucket.epoch != epoch or learner not in bucket.learners

        fields = [
            "caught-up",
            encoding.plain_key(key),
            encoding.plain_epoch(epoch),
            encoding.plain_incarnation(learner.member),
            learner.transfer,
        ]
        self._ask(("caught-up", key, learner), fields, is_done, (key,))

    def unreachable(self, epochs: Mapping[BucketKey, Epoch], replica: Incarnation) -> None:
        """The member, primary of these buckets, asks the coordinator to remove an unresponsive replica."""

        def is_done(key: BucketKey, epoch: Epoch) -> bool:
            bucket = self.tables.buckets.get(key)
            return bucket is None or bucket.epoch != epoch or replica not in bucket.holders

        for key, epoch in epochs.items():
            self._ask(
                ("unreachable", key, replica),
                [
                    "unreachable",
                    encoding.plain_incarnation(replica),
                    [encoding.plain_key(key), encoding.plain_epoch(epoch)],
                ],
                lambda key=key, epoch=epoch: is_done(key, epoch),  # type: ignore[misc]
                (key,),
            )

    def ready(self, keys: Iterable[BucketKey]) -> None:
        """The member, new primary of these buckets, has contacted all replicas, and accepts changes."""
        for key in keys:
            self._ask(("ready", key), ["ready", encoding.plain_key(key)], None)

    def suspect(self, member: Incarnation) -> None:
        """A connection to the suspected member was refused or reset: the coordinator is to probe the member at once."""
        self._ask(("suspect", member), ["suspect", encoding.plain_incarnation(member)], None)

    def leave(self) -> Request:
        """Asks whether the member may end, and repeats the question until the member may. The member's primaries move
        first."""
        if LEAVE not in self.asked:
            self.may_leave, self.still_needed = None, StillNeeded()
        self.asked.drop(STAY)
        return self._ask(LEAVE, ["leave"], lambda: self.may_leave is not None)

    @property
    def wants_to_leave(self) -> bool:
        """Whether the member is draining, or has drained, because the member ends."""
        return self.is_leaving or self.may_leave is not None or LEAVE in self.asked

    def stay(self) -> None:
        """The member cancels its draining."""
        self.may_leave, self.still_needed = None, StillNeeded()
        self.asked.drop(LEAVE)
        self._ask(STAY, ["stay"], None)

    @property
    def last_replicas(self) -> dict[str, int]:
        """Counts, by region that several members may have, the buckets whose last whole replica is at this member, as
        far as the tables say."""
        counts: Counter[str] = Counter()
        for key, bucket in list(self.tables.buckets.items()):
            attributes = self.tables.regions.get(key.region)
            if bucket.replicas == (self.me,) and attributes is not None and attributes.shared:
                counts[key.region] += 1
        return dict(counts)

    def say_goodbye(self) -> Request:
        """The member announces its own end: the lease is over at once."""
        self.asked.clear()
        self.is_leaving = True
        return self._ask(("left",), ["left"], None)

    def _ask(
        self,
        key: RequestKey,
        fields: list[Any],
        is_done: Callable[[], bool] | None,
        shown_by: Collection[BucketKey | str] = (),
        *,
        needs_answer: bool = False,
    ) -> Request:
        """Adds a request. The request replaces an earlier one with the same key."""
        return self.asked.ask(
            key, fields, is_done, shown_by, needs_answer=needs_answer, known=self.tables.newest.number
        )

    def settle(self) -> None:
        """Drops the requests whose effect the tables show. The driver calls this method after carrying out
        `Changed`."""
        for key in self.asked.settle(self.tables.newest.number):
            if key[0] in ENDS:
                self._hold_host(key[1])

    def next_request_us(self) -> int | None:
        """When the next request is to be sent. None: no request waits."""
        return self.asked.next_us() if self.is_joined and not self.promise.round else None

    def take_due(self, now_us: int) -> list[tuple[RequestKey, Request]]:
        """Returns the requests that are due, for one message (`encoded_requests`)."""
        return self.asked.take_due(now_us) if self.is_joined else []

    def encoded_requests(self, batch: list[tuple[RequestKey, Request]]) -> dict[str, Any]:
        """The fields of the message `coordination-ask`."""
        requests = [each.fields for _, each in batch]
        return {
            "me": encoding.plain_incarnation(self.me),
            "nonce": self._nonce,
            "term": self.remembered.term,
            "requests": requests,
        }

    def take_answers(self, batch: list[tuple[RequestKey, Request]], reply: Mapping[str, Any]) -> None:
        """Adopts the coordinator's reply to these requests."""
        if reply.get("decides") is not True:
            return
        refused = encoding.refused_requests_of(reply, len(batch))
        decision, leaving = encoding.decision_of(reply.get("decision")), encoding.leaving_of(reply)
        for index, refusal in refused.items():
            batch[index][1].refused = refusal.reason
        self._take_leaving(leaving)
        self.asked.answered(batch, decision, is_heeded=reply.get("unheeded") is not True)
        self.settle()

    def _take_leaving(self, told: Iterable[MayLeave | StillNeeded]) -> None:
        if LEAVE not in self.asked:
            return  # The member has cancelled its draining.
        for message in told:
            if isinstance(message, StillNeeded):
                self.still_needed = message
            else:
                self.may_leave = message
                self.asked.look_at(LEAVE)

    # --- locators ---

    def receive_claims(self, claims: Collection[Claim], now_us: int) -> bool:
        """Adopts the claims of all locators. Returns whether a question for news may be sent.

        A member without knowledge of a coordinator must not join the first coordinator that answers. If the member's
        locators belong to two sites, an operator has to choose the site. A member that knows its site stays in the
        site.
        """
        mine = self.remembered.site_identity
        if not mine:
            self.foreign = frozenset()
            pair = next(pairs_of_two_sites(claims), None)
            if pair is None:
                return True
            reason = f"member {self.me.name}: its locators belong to two sites: {in_words(*pair)}"
            if reason != self.refusal:
                log.error("%s", reason)
            # A coordinator that has decided nothing may still give way.
            self.refusal, self.retries = reason, not all(each.decided for each in pair)
            self.has_tried, self.news_due_us = True, now_us + RETRY_US
            return False
        ours = [each for each in claims if each.site_identity == mine]
        foreign = [
            each
            for each in claims
            if each.site_identity not in ("", mine)
            and (each.coordinator != self.remembered.coordinator or any(map(each.is_of_another_site_than, ours)))
        ]
        self.foreign = frozenset(each.address for each in foreign)
        for each in foreign:
            told = each.address, each.site_identity
            if told not in self._told_foreign and len(self._told_foreign) < FOREIGN_TOLD_MAX:
                self._told_foreign.add(told)
                log.error(
                    "member %s stays in the site %s, which locator %s coordinates; %s, which is another site: take"
                    " that locator out of `locators`, or make it a locator of this site: stop it, remove its folder,"
                    " and start it with a locator of this site in its `locators`",
                    self.me.name,
                    mine,
                    self.remembered.coordinator,
                    each,
                )
        return True

    # --- news ---

    def question(self, now_us: int) -> Question:
        """Returns the next question for news. At most one question is under way."""
        if self.is_joined:
            fields = {
                "me": encoding.plain_incarnation(self.me),
                "nonce": self._nonce,
                "stored": encoding.plain_decision_id(self.tables.newest),
                "term": self.remembered.term,
                "reaches": [encoding.plain_incarnation(each) for each in self._reached()],
            }
            return Question("coordination-poll", fields, now_us)
        return Question("coordination-join", self._fields_of_join(), now_us)

    def _fields_of_join(self) -> dict[str, Any]:
        me, remembered = self.me, self.remembered
        known = {name: each for name, each in self._hosted.items() if each.is_known}
        profile = MemberProfile(
            me,
            self._host,
            self._port,
            self._site,
            remembered.site_identity,
            remembered.seen,
            self._version,
            tuple((name, each.weight) for name, each in sorted(known.items())),
            self._process,
            tuple(each for each in remembered.incarnations if each != me.member_id),
            mark_of(self._nonce),
        )
        regions = {name: self._known_of(name) for name in known}
        fields: dict[str, Any] = {
            "profile": encoding.plain_profile(profile),
            "nonce": self._nonce,
            "nonces_before": plain_nonces(self._nonces.items()),
            "stored": encoding.plain_decision_id(self.tables.newest),
            "coordinator": remembered.coordinator,
            "term": remembered.term,
            "standby": encoding.plain_standby(remembered.standby),
            "ended": self._ended and encoding.plain_incarnation(self._ended),
        }
        if self._reports and self.tables.buckets:
            followed = self._followed()
            newest = {
                key: max(bucket, followed.get(key, bucket), key=lambda each: (each.timeline, each.epoch, each.version))
                for key, bucket in self.tables.buckets.items()
                if key.region in regions or key.region in self.tables.regions  # Other regions no longer exist.
            }
            holdings = {key: Holding(bucket, me in (*bucket.isr, *bucket.leaving)) for key, bucket in newest.items()}
            # A report of a bucket describes the bucket's region too, even a region that this member does not have.
            regions |= {key.region: self.tables.regions[key.region] for key in holdings if key.region not in regions}
            fields["holdings"] = plain.pack(encoding.plain_holdings(holdings))
        fields["regions"] = {name: encoding.plain_attributes(each) for name, each in regions.items()}
        return fields

    def _known_of(self, region: str) -> RegionAttributes:
        """Returns the attributes to report for a region. The region counts as shared unless the tables say
        otherwise."""
        known = self.tables.regions.get(region)
        return replace(self._hosted[region].attributes, shared=known is None or known.shared)

    def take_news(
        self, question: Question, reply: Mapping[str, Any], tables: Tables | None, now_us: int
    ) -> list[Outcome]:
        """Adopts the coordinator's reply, and the tables that `tables_in` has read from the reply. Returns the
        outcomes, to be carried out in this order and before `settle`. ProtocolError: the reply cannot be used, and
        nothing of it was adopted."""
        told = _News.of(reply, self.remembered)
        if told.term < self.remembered.term:
            raise ProtocolError(f"coordinator {told.coordinator} is of term {told.term}, which is over")
        self.remembered = replace(self.remembered, term=told.term)
        self.promise.end()
        self._pause_us, self.news_due_us = RETRY_US, now_us
        take = self._take_join if question.op == "coordination-join" else self._take_poll
        outcomes = take(told, now_us)
        if outcomes is not None:
            return outcomes
        self.problem, self.away_since_us = "", None
        # Metadata records take effect before the lease is extended: a replica that was removed from the ISR must not go
        # on under the new lease.
        changes = self._take_tables(tables) if tables is not None else []
        return [*changes, *self._extend(question.sent_us, told.lease_us)]

    # --- the standby ---

    def word_to_standby(self, now_us: int) -> tuple[str, dict[str, Any]] | None:
        """Returns the standby's address and the message to the standby, after a whole lease without contact to the
        coordinator. None: no message is due."""
        address, due_us = self._standby_address, self._word_due_us()
        if not address or due_us is None or now_us < due_us:
            return None
        self.promise.due_us = now_us + REPEAT_US
        return address, self._fields_to_standby(leaves=False)

    def receive_standby(self, address: str, at: Any) -> None:
        """Adopts the claim of a locator to be the standby. The claim says how new the locator's records are, and the
        records name this member. The member may not have received the record of that standby, nor of its own admission.
        ProtocolError: the claim cannot be used.

        A member that knows a newer record ignores the claim: the newer record may say that the standby is out.
        """
        told = encoding.decision_id_of(at)
        if not self.promise.round and told >= max(self.tables.newest, self.remembered.seen, self.promise.standby_at):
            self.promise.address, self.promise.standby_at = address, told

    @property
    def _standby_address(self) -> str:
        """The standby's address. Empty: no standby is known."""
        standby = self.tables.standby
        if self.promise.address:
            return self.promise.address
        return "" if standby is None or standby.is_out or self.me not in self.tables.members else standby.address

    def next_news_us(self) -> int:
        """When the next question for news, or the next message to the standby, is due."""
        word_due_us = self._word_due_us()
        if word_due_us is None or self.promise.round:
            return self.news_due_us if word_due_us is None else word_due_us
        return min(self.news_due_us, word_due_us)

    def _word_due_us(self) -> int | None:
        """When the standby is next notified of the unreachable coordinator. None: the coordinator is in contact."""
        if not self._standby_address:
            return None
        if self.promise.round:
            return self.promise.due_us
        limit_us = self.member_timeout_us + self.member_timeout_us // DRIFT_DIVISOR
        return max(self.promise.due_us, self.received_us + limit_us) if self.problem else None

    def goodbye_to_standby(self) -> tuple[str, dict[str, Any]] | None:
        """Returns the standby's address and the last message, after the member has ended. The member asks nothing
        afterwards."""
        address = self._standby_address
        return (address, self._fields_to_standby(leaves=True)) if address else None

    def _fields_to_standby(self, *, leaves: bool) -> dict[str, Any]:
        return {
            "me": encoding.plain_incarnation(self.me),
            "nonce": self._nonce,
            "stored": encoding.plain_decision_id(max(self.tables.newest, self.remembered.seen)),
            "promised": self.promise.round,
            "term": self.remembered.term,
            "leaves": leaves,
        }

    def take_word_of_standby(self, reply: Mapping[str, Any], now_us: int) -> None:
        """Adopts the standby's answer. ProtocolError: the answer cannot be used."""
        leads, asked = reply.get("leads") is True, round_of(reply.get("round"))
        problem = str(reply.get("problem", ""))[:REASON_MAX]
        if leads:  # Records that the earlier coordinator still sends are ignored.
            term = max(self.remembered.term, encoding.term_of(reply.get("term")))
            self.remembered = replace(self.remembered, term=term)
        had, self.promise.round = self.promise.round, 0 if leads else asked
        self.promise.problem = problem
        if leads or (had and not asked):
            self.news_due_us = now_us  # Poll for news again.
        if asked and asked != had:
            self.promise.due_us = now_us  # The promise is sent at once.

    def news_failed(self, problem: str, now_us: int, *, is_refused: bool = False) -> bool:
        """Notes that no coordinator is usable, and why. Returns whether the reason is new.

        `is_refused`: a coordinator exists, and the member cannot speak with the coordinator.
        """
        self.has_tried = True
        if is_refused and not self.is_joined:
            self.refusal, self.retries = problem, False
        self.news_due_us = now_us + self._pause_us
        self._pause_us = min(self._pause_us * 2, RETRY_MAX_US)
        is_new, self.problem = not self.problem, problem
        if self.away_since_us is None:
            self.away_since_us = now_us
        return is_new

    def _take_join(self, told: _News, now_us: int) -> list[Outcome] | None:
        self.has_tried = True
        identity = told.site_identity
        for refusal in told.refused:
            self.problem = ""
            if refusal.join_again:  # The site's identity may have changed.
                self.remembered = replace(self.remembered, site_identity=identity)
            return self._take_refusal(refusal, now_us)
        self._ended, self.refusal, self._warned, self.retries = None, "", "", False
        self.is_joined, self._reports = True, False
        self.remembered = replace(self.remembered, coordinator=told.coordinator, site_identity=identity)
        for name, each in self._hosted.items():
            if not each.is_known:
                self._ask_to_host(name)
        return None

    def _take_poll(self, told: _News, now_us: int) -> list[Outcome] | None:
        self._take_leaving(told.leaving)
        for refusal in told.refused:
            if refusal.join_again or refusal.report:
                return self._take_refusal(refusal, now_us)
            log.warning(
                "member %s: coordinator %s refuses: %s", self.me.name, self.remembered.coordinator, refusal.reason
            )
        return None

    def _take_refusal(self, refusal: Refused, now_us: int) -> list[Outcome]:
        if refusal.join_again:
            if self.is_leaving:
                self.news_due_us = now_us + RETRY_US
                return []
            return self._begin_again(refusal.reason)
        if refusal.report:
            self.is_joined, self._reports = False, True
            return []
        self.is_joined = False
        earlier = refusal.earlier
        if earlier is not None and self._ended != earlier.incarnation and self._has_ended(earlier.process):
            # The next question has the missing part, and the member is admitted at once: no warning is needed.
            self._ended = earlier.incarnation
        elif refusal.reason != self._warned and (earlier is not None or not 0 < refusal.retry_after_us <= QUIET_US):
            self._warned = refusal.reason
            log.warning(
                "member %s is not admitted by coordinator %s: %s",
                self.me.name,
                self.remembered.coordinator,
                refusal.reason,
            )
        self.refusal, self.retries = refusal.reason, refusal.retry_after_us > 0
        wait_us = min(max(refusal.retry_after_us, AGAIN_MIN_US), RETRY_US) if self.retries else RETRY_MAX_US
        self.news_due_us = now_us + wait_us
        return []

    def _begin_again(self, why: str) -> list[Outcome]:
        """The coordinator has given the incarnation up: the member begins a new incarnation."""
        earlier, self.me = self.me, Incarnation(self.me.name, self._draw_id())
        self._nonces[earlier.member_id], self._nonce = self._nonce, self._draw_nonce()
        if len(self._nonces) > INCARNATIONS_KEPT:
            del self._nonces[next(iter(self._nonces))]
        log.error(
            "member %s was given up by coordinator %s (%s); it drops what it has of shared regions, and begins anew as"
            " %s",
            earlier,
            self.remembered.coordinator,
            why,
            self.me,
        )
        self.is_joined, self._reports, self.lease_until_us, self._extended_until_us = False, False, 0, 0
        self._ended = earlier
        self.tables = SiteTables()
        self.promise.end()
        self.asked.clear()
        for each in self._hosted.values():
            each.is_known = False
        return [GivenUp(self.me)]

    def _hosting(self) -> set[tuple[str, int]]:
        """The member's regions with their weights, as the tables say."""
        profile = self.tables.members.get(self.me)
        return set() if profile is None else set(profile.hosting)

    def _take_tables(self, tables: Tables) -> list[Outcome]:
        hosting = self._hosting()
        changes = self.tables.take(tables)
        if changes is None:
            return []
        for entry, _ in (*changes.regions, *changes.buckets):
            self.asked.entry_changed(entry)
        for region in {region for region, _ in hosting ^ self._hosting()} | {key.region for key, _ in changes.buckets}:
            self.asked.entry_changed(region)
        others = tuple(each for each in self.remembered.incarnations if each != self.me.member_id)
        incarnations = (*others, self.me.member_id)[-INCARNATIONS_KEPT:]
        known = {**self._nonces, self.me.member_id: self._nonce}
        nonces = tuple((each, known[each]) for each in incarnations if each in known)
        term = self.remembered.term
        self.remembered = Remembered(
            tables.coordinator, tables.site_identity, tables.newest, incarnations, nonces, term, tables.standby
        )
        return [Changed(changes)]

    def _extend(self, sent_us: int, lease_us: int) -> list[Outcome]:
        """Extends the lease to `member-timeout` after the sending of the question.

        The driver learns only of steps of the lease. A member with a shorter lease than the coordinator gave is safe,
        and a step costs the member some work for each region, while many records may come within a second.
        """
        has_changed = lease_us not in (0, self.member_timeout_us)
        self.member_timeout_us = lease_us or self.member_timeout_us
        until_us = sent_us + self.member_timeout_us
        if until_us <= self.lease_until_us:
            return []
        self.lease_until_us, self.received_us = until_us, sent_us
        if not has_changed and until_us - self._extended_until_us < self.member_timeout_us // LEASE_STEPS:
            return []
        self._extended_until_us = until_us
        return [Extended(until_us, sent_us)]
