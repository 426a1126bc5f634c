"""Owns the requests of members and operators about the coordination of a site.

Members send requests and wait; the locator opens connections to members only for probes. The coordinator gives requests
their meaning, and the coordinator discovery chooses the coordinator. This module connects both with the network.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pywan.base import versions
from pywan.base.addresses import Address
from pywan.base.clocks import boot_us
from pywan.base.lines import Lines
from pywan.base.names import check_name, is_name
from pywan.base.nonces import nonce_of
from pywan.coordination import encoding, plain
from pywan.coordination.asked_moves import MoveRequest
from pywan.coordination.choice import Choice
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.joins import Join, join_of
from pywan.coordination.messages import Refused, Tables
from pywan.coordination.proofs import is_proved, with_proved
from pywan.coordination.requests import read_requests, take_requests
from pywan.coordination.tables import DecisionId, Incarnation, MemberProfile
from pywan.errors import ConfigurationError, IllegalStateError
from pywan.site.coordinator_driver import CoordinatorDriver, Mailbox
from pywan.site.locator_claims import LocatorClaims
from pywan.site.mirror import Mirror
from pywan.site.packed_tables import PackedTables
from pywan.site.standby_requests import StandbyRequests
from pywan.transport.links import PLAIN, Links

log = logging.getLogger("pywan.coordinator")

POLL_S = 0.5  # A poll without news is answered after so long.
POLLS_A_TIMEOUT = 10  # At least so many. A short `member-timeout` means earlier answers.
UNDECIDED_WAIT_S = 1.0  # The limit of a join's wait for a coordinator.
STORED_S = 2.5  # The limit of an answer's wait for the standby, which stores each record before members receive it.
REPORTS_AT_ONCE = 4  # Members whose replica reports are read at the same time.
TAKEN_RETRY_US = 1_000_000  # The retry time of a member whose incarnation another process has taken.

_move_request_of = plain.reader(MoveRequest)

Handle = Callable[[dict[str, Any], tuple[Any, ...]], dict[str, Any]]


class CoordinationHost:
    """The coordination in a locator. Any thread may use it.

    A single locator of a site coordinates: the first locator at the start of the site. All locators and members
    remember the coordinator's name. The remaining locators refuse requests, and name the coordinator.

    Args:
        name: The locator's name.
        site: The site's id.
        folder: The locator's folder. None: the coordinator's file is in a temporary folder, and is deleted when the
            locator stops.
        peers: Returns the addresses of the site's other locators.
        address: Returns this locator's address.
        recovers: This locator takes the place of a locator that is gone for good. The metadata come from the members.
        links: The TLS contexts and connectors of the locator.
    """

    def __init__(
        self,
        name: str,
        *,
        site: int,
        folder: Path | None,
        peers: Callable[[], list[Address]],
        address: Callable[[], Address],
        member_timeout_ms: int,
        recovers: bool = False,
        links: Links = PLAIN,
    ) -> None:
        self.name = name
        self._site, self._folder = site, folder
        self._member_timeout_us = member_timeout_ms * 1000
        self._poll_s = min(POLL_S, member_timeout_ms / 1000 / POLLS_A_TIMEOUT)
        self._choice = Choice(name, site, recovers=recovers)
        self._driver = CoordinatorDriver(
            self._choice, folder=folder, member_timeout_us=self._member_timeout_us, way=links.cluster
        )
        self._claims = LocatorClaims(
            self._choice, self._driver, folder=folder, peers=peers, address=address, way=links.locator
        )
        self._mirror = Mirror(
            self._choice, self._driver, self._claims, folder=folder, address=address, way=links.locator
        )
        self._driver.before_open = self._mirror.close
        self._standby = StandbyRequests(
            self._choice, self._driver, self._claims, self._mirror, site=site, poll_s=self._poll_s
        )
        self._arrivals = Lines(log)
        self._changed = self._driver.changed  # Guards all parts above, and the fields below.
        self._stored = self._driver.stored  # Notified when the standby has stored records, or a record was written.
        # By connection: the proved member at the remote end. An ended connection is removed (`ended`).
        self._connections: dict[tuple[Any, ...], Incarnation] = {}
        self._reading = threading.BoundedSemaphore(REPORTS_AT_ONCE)
        self._lines = Lines(log)
        self._packed = PackedTables()

    # --- life cycle ---

    def start(self) -> None:
        """Reads the coordinator's name, and starts the threads. Raises ConfigurationError if the file cannot be
        used."""
        with self._changed:
            self._driver.running = True
            self._claims.begin()
        self._driver.start()
        self._claims.start()
        self._mirror.start()

    def stop(self) -> None:
        """Hands over to another locator if a locator has all records. Ends the threads and closes the file. May be
        called twice."""
        self._mirror.end_asking()
        self._standby.hand_over()
        self._driver.end_waiting()
        self._mirror.stop()
        self._claims.stop()
        self._driver.stop()

    def handlers(self) -> dict[str, Handle]:
        return {
            "coordination-who": self._on_who,
            **{op: self._of_version(handle) for op, handle in self._standby.handlers().items()},
            "coordination-join": self._of_version(self._on_join),
            "coordination-poll": self._of_version(self._on_poll),
            "coordination-ask": self._of_version(self._on_ask),
            "coordination-show": lambda request, peer: {"coordination": self.status()},
            "coordination-revoke": self._on_revoke,
            "coordination-end-site": self._on_end_site,
            "coordination-move-bucket": self._on_move_bucket,
        }

    def _of_version(self, handle: Handle) -> Handle:
        """Checks the sender's protocol version before a request is read. Only compatible versions pass."""

        def checked(request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
            versions.agreed(request.get("version"), f"{_teller(request)} at {_place(peer)}", f"locator {self.name}")
            return {**handle(request, peer), "version": versions.VERSION}

        return checked

    def ended(self, peer: tuple[Any, ...]) -> None:
        """A connection has ended. If a member was at the remote end, the member is probed."""
        with self._changed:
            me = self._connections.pop(peer, None)
            if me is not None and self._driver.core is not None:
                self._driver.core.suspect(me, me, boot_us())
                self._driver.act()

    # --- coordinator discovery ---

    @property
    def coordinator(self) -> str:
        """The name of the coordinating locator. Empty: not known yet."""
        with self._changed:
            return self._choice.coordinator

    def claim(self) -> dict[str, Any]:
        """As `LocatorClaims.claim`."""
        return self._claims.claim()

    def _on_who(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Answers a locator that asks for the coordinator. A member asks too, before the member believes a locator that
        names this one."""
        self._claims.receive_request(request)
        return self._claims.claim()

    def _decider(self, request: Mapping[str, Any], *, is_poll: bool = False) -> Coordinator | dict[str, Any]:
        """Returns the coordinator, or the answer of a locator that does not coordinate, or cannot coordinate now. The
        caller holds the lock.

        A coordinator that waits for its standby, or for a member, writes no records. If the stored records of a member
        can end the wait, a poll is accepted nevertheless (`is_poll`).
        """
        choice, driver = self._choice, self._driver
        term = encoding.term_of(request.get("term", 0))
        if term > choice.term:
            self._claims.hint()
            problem = f"another locator has taken over from {choice.coordinator}; locator {self.name} asks for its name"
            return {"decides": False, "coordinator": "", "address": "", "problem": problem, "term": choice.term}
        if choice.leads and driver.core is not None:
            core = driver.core
            if is_poll and core.standbys.is_ending:
                return core
            self._stored.wait_for(
                lambda: core.standbys.may_decide or driver.core is not core or not driver.running, UNDECIDED_WAIT_S
            )
            if driver.core is core and core.standbys.may_decide:
                return core
            if driver.core is core:
                problem = core.standbys.problem
                return {"decides": False, "coordinator": self.name, "address": "", "problem": problem}
        return {
            "decides": False,
            "coordinator": choice.coordinator,
            "address": "" if choice.leads else choice.address,
            "problem": driver.problem if choice.leads else "" if choice.coordinator else choice.problem,
        }

    # --- requests of members ---

    def _on_join(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        # A replica report may have 100 MB of objects. So few reports are read at the same time.
        with contextlib.nullcontext() if request.get("holdings") is None else self._reading:
            return self._take_join(request, join_of(request), peer)

    def _take_join(self, request: dict[str, Any], join: Join, peer: tuple[Any, ...]) -> dict[str, Any]:
        profile, claimed = join.profile, join.coordinator
        me = profile.incarnation
        with self._changed:
            # A locator first asks its peers after a start.
            self._changed.wait_for(lambda: self._choice.coordinator or not self._driver.running, UNDECIDED_WAIT_S)
            elsewhere = self._claims.receive_from_member(claimed) if claimed else ""
            self._mirror.receive_join(join)
            self._receive_standby(join)
            core = self._decider(request)
            if isinstance(core, dict):
                return {**core, **self._mirror.receive_question(me, join.nonce, max(join.stored, profile.seen))}
            if elsewhere:
                return {"decides": False, "coordinator": claimed, "address": "", "problem": elsewhere}
            refusal = self._refusal_of(profile, core)
            if refusal is not None:
                named = {"site_identity": core.site.identity} if refusal.join_again else {}
                return self._reply(refused=[refusal], **named)
            refusal = self._unproved(core, profile, join.nonce, peer)
            earlier = join.ended  # The earlier incarnation whose removal the member has seen.
            if refusal is None and earlier is not None:
                of_folder = is_proved(core.site.members.get(earlier), join.nonces_before.get(earlier.member_id))
                refusal = core.ended(earlier, me, boot_us(), is_proved=of_folder)
            if refusal is not None:
                self._driver.act()
                return self._reply(refused=[refusal])
            self._driver.receive_identity(profile.site_identity, claimed)
            profile = with_proved(profile, join.nonces_before, core.site.members)
            core.join(profile, join.regions, join.holdings, join.stored, boot_us(), join.nonces)
            refused = [each for each in self._driver.act(me) if isinstance(each, Refused)]
            if refused:
                return self._reply(refused=refused)
            self._connections[peer] = me
            self._driver.mailbox(me)
            self._driver.expect(me)
            self._arrivals.info("locator %s: member %s is in the site's view", self.name, me)
            tables = core.tables(0, core.member_timeout_us)
            if not self._is_stored(core, tables.newest.number):
                return self._not_stored(core)
        return self._reply(site_identity=tables.site_identity, tables=self._packed.packed(tables))

    def _receive_standby(self, join: Join) -> None:
        """The caller holds the lock."""
        core = self._driver.core
        if core is not None and self._choice.leads:
            core.receive_standby(join)
            self._driver.act()

    def _refusal_of(self, profile: MemberProfile, core: Coordinator) -> Refused | None:
        """Returns the reason to refuse the member without asking the coordinator. None: the coordinator decides."""
        if self._driver.is_made_up(profile.site_identity):
            # The member came first, and adopted the random identity of the site. The member's changes in the meantime
            # do not belong to the site.
            return Refused(f"the site is called {core.site.identity}, as its other members say", join_again=True)
        refusal = self._other_site(profile)
        if refusal is None and self._choice.rival and not profile.site_identity:
            refusal = Refused(f"member {profile.incarnation.name} is of no site yet: {self._choice.rival}")
        return refusal

    def _unproved(
        self, core: Coordinator, profile: MemberProfile, nonce: bytes | None, peer: tuple[Any, ...]
    ) -> Refused | None:
        """Returns the reason to doubt that the join comes from the named member. None: the join is proved."""
        me = profile.incarnation
        if not is_proved(profile, nonce):
            self._say_unproved(me, peer)
            return Refused(f"the join of member {me} does not have the nonce that belongs to its digest")
        known = core.site.members.get(me)
        if known is None or is_proved(known, nonce):
            return None
        self._say_unproved(me, peer)
        return Refused(f"another process has joined as member {me} with another nonce", TAKEN_RETRY_US)

    def _check_speaker(self, core: Coordinator, me: Incarnation, nonce: bytes | None, peer: tuple[Any, ...]) -> bool:
        """Returns whether the remote end has proved to be a member of the view. False: the view has no such member.
        Raises IllegalStateError if the nonce is not the member's."""
        if me not in core.site.members:
            return False
        if not is_proved(core.site.members[me], nonce):
            self._say_unproved(me, peer)
            raise IllegalStateError(f"this is not member {me}: the request has not the nonce of the member's join")
        return True

    def _say_unproved(self, me: Incarnation, peer: tuple[Any, ...]) -> None:
        """The caller holds the lock."""
        self._lines.warning(
            "locator %s: refused a request from %s in the name of member %s: the request does not have the member's"
            " nonce (further requests from this address are logged once a minute)",
            self.name,
            _place(peer),
            me,
            once=(str(peer[0]), "unproved"),
        )

    def _other_site(self, profile: MemberProfile) -> Refused | None:
        name = profile.incarnation.name
        if profile.distributed_system_id != self._site:
            return Refused(
                f"member {name} belongs to distributed-system-id {profile.distributed_system_id}, and locator"
                f" {self.name} coordinates {self._site}; give it the locators of its own site"
            )
        return None

    def _on_poll(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Renews the member's lease, and waits a little for news."""
        me, stored = encoding.incarnation_of(request.get("me")), encoding.decision_id_of(request.get("stored"))
        reaches = encoding.members_of(request.get("reaches", []))
        nonce = nonce_of(request.get("nonce"))
        deadline = time.monotonic() + self._poll_s
        with self._changed:
            core = self._decider(request, is_poll=True)
            if isinstance(core, dict):
                return {**core, **self._mirror.receive_question(me, nonce, stored)}
            if not self._check_speaker(core, me, nonce, peer):
                core.renew(me, stored, boot_us(), reaches)
                return self._reply(refused=[each for each in self._driver.act(me) if isinstance(each, Refused)])
            mailbox = self._driver.begin_turn(me)
            mailbox.has_news = stored != core.site.newest
            turn = mailbox.turn
            core.renew(me, stored, boot_us(), reaches)
            refused = [each for each in self._driver.act(me) if isinstance(each, Refused)]
            if refused:
                self._driver.drop_mailbox(me)
                return self._reply(refused=refused)
            self._wait_for_news(core, mailbox, deadline)
            still = self._decider(request, is_poll=True)
            if isinstance(still, dict):
                return still
            tables = None
            if mailbox.turn == turn:
                mailbox.has_news = False
                self._driver.expect(me)
                # In a metadata recovery a member receives no records before the member's replica report.
                if core.may_be_told(me):
                    tables = self._stored_tables(core, stored)
                if self._driver.core is not core:
                    return self._not_stored(core)
            # The waiting messages for the member depend on all records so far.
            mail = mailbox.take_mail() if core.standbys.may_tell(core.site.number) else []
        return self._reply(
            refused=[each for each in mail if isinstance(each, Refused)],
            tables=None if tables is None else self._packed.packed(tables),
            **encoding.plain_leaving(mail),
        )

    def _stored_tables(self, core: Coordinator, stored: DecisionId) -> Tables | None:
        """Returns the metadata for a poll, as soon as the standby has stored the records in the answer. None: the
        standby did not store the records in time. The caller holds the lock."""
        deadline, standbys = time.monotonic() + STORED_S, core.standbys
        while True:
            tables = core.answer(stored.number, core.member_timeout_us)
            number = tables.newest.number
            if standbys.may_tell_member(number):
                return tables
            was_ending, left_s = standbys.is_ending, deadline - time.monotonic()
            self._stored.wait_for(
                lambda number=number, was=was_ending: (  # type: ignore[misc]
                    standbys.may_tell_member(number) or standbys.is_ending != was or self._driver.core is not core
                ),
                left_s,
            )
            if self._driver.core is not core or left_s <= 0:
                return None
            if standbys.may_tell_member(number):
                return tables

    def _is_stored(self, core: Coordinator, number: int) -> bool:
        """Waits a little until the standby has stored all records up to `number`: no member may receive records before
        the standby. Returns whether the standby has stored the records. The caller holds the lock."""
        self._stored.wait_for(
            lambda: core.standbys.may_tell(number) or self._driver.core is not core or not self._driver.running,
            STORED_S,
        )
        return self._driver.core is core and core.standbys.may_tell(number)

    def _not_stored(self, core: Coordinator) -> dict[str, Any]:
        problem = core.standbys.problem or "the standby has not stored the metadata records in time"
        return {"decides": False, "coordinator": self._choice.coordinator, "address": "", "problem": problem}

    def _wait_for_news(self, core: Coordinator, mailbox: Mailbox, deadline: float) -> None:
        """Waits until the member has news. A later poll of the same member ends the wait. The caller holds the lock."""
        turn = mailbox.turn

        def is_over() -> bool:
            has_any = mailbox.has_news or bool(mailbox.mail) or mailbox.turn != turn
            return has_any or self._driver.core is not core or not self._driver.running

        mailbox.arrived.wait_for(is_over, deadline - time.monotonic())

    def _on_ask(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Takes requests of a member in their order, and stores the resulting records once. The reply has the index and
        the reason of each refused request."""
        me = encoding.incarnation_of(request.get("me"))
        # Reads the requests before taking the lock: there may be half a million values.
        requests = read_requests(
            plain.list_of(request.get("requests"), encoding.REQUESTS_MAX, "coordination-ask: requests")
        )
        nonce = nonce_of(request.get("nonce"))
        with self._changed:
            core = self._decider(request)
            if isinstance(core, dict):
                return core
            if self._check_speaker(core, me, nonce, peer):
                self._connections[peer] = me
            refused: list[tuple[int, Refused]] = []
            heeds = core.heeds(me)
            try:
                refused = take_requests(core, me, requests, boot_us())
            finally:
                leaving = self._driver.act(me)
            decision = core.site.number
            self._driver.look()
            if not self._is_stored(core, decision):
                return self._not_stored(core)
        return {
            "decides": True,
            "coordinator": self.name,
            "decision": decision,
            "refused_requests": [[index, encoding.plain_refused(refusal)] for index, refusal in refused],
            **({} if heeds else {"unheeded": True}),
            **encoding.plain_leaving(leaving),
        }

    def _reply(self, *, refused: list[Refused] | None = None, **fields: Any) -> dict[str, Any]:
        return {
            "decides": True,
            "coordinator": self.name,
            "term": self._choice.term,
            "lease_us": self._member_timeout_us,
            "refused": [encoding.plain_refused(each) for each in refused or []],
            **fields,
        }

    # --- requests of operators ---

    def _on_revoke(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """An operator says that a member, for which buckets wait, never comes back."""
        name = check_name(request.get("name"), "a member's name", ConfigurationError)
        with self._changed:
            core = self._decider(request)
            if isinstance(core, dict):
                revoked = self._mirror.revoke(name)
                return (
                    core
                    if not revoked
                    else {
                        "decides": True,
                        "coordinator": core["coordinator"],
                        "revoked": [str(each) for each in revoked],
                        "alive": [],
                    }
                )
            revoked = core.awaited_incarnations(name)
            self._lines.warning(
                "locator %s: an operator at %s says that member %s never comes back; buckets waited for: %s",
                self.name,
                _place(peer),
                name,
                ", ".join(map(str, revoked)) or "no incarnation of the member",
                once=(str(peer[0]), f"revoke {name}"),
            )
            for each in revoked:
                core.revoke(each, boot_us())
            self._driver.act()
            self._driver.look()
            alive = sorted(str(each) for each in core.site.members if each.name == name and each not in revoked)
            if not self._is_stored(core, core.site.number):
                return self._not_stored(core)
            return {
                "decides": True,
                "coordinator": self.name,
                "revoked": [str(each) for each in revoked],
                "alive": alive,
            }

    def _on_end_site(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """An operator ends all members of the site. No member takes over buckets: all members end together."""
        with self._changed:
            core = self._decider(request)
            if isinstance(core, dict):
                return core
            core.end_site(boot_us())
            self._lines.warning(
                "locator %s: all members of site %d are ended by an operator at %s",
                self.name,
                self._site,
                _place(peer),
                once=(str(peer[0]), "end-site"),
            )
            self._driver.look()
            return {"decides": True, "coordinator": self.name}

    def _on_move_bucket(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """An operator moves a bucket's replica or its primary. The operator's tool repeats the request until the move
        is done or refused."""
        source = request.get("source", "")
        asked = _move_request_of([*(request.get(each) for each in ("region", "bucket", "what", "to")), source])
        with self._changed:
            core = self._decider(request)
            if isinstance(core, dict):
                return core
            answer = core.move_bucket(asked, boot_us())
            self._driver.act()
            self._driver.look()
            if not self._is_stored(core, core.site.number):
                return self._not_stored(core)
        return {"decides": True, "coordinator": self.name, "is_done": answer.is_done, "refusal": answer.problem}

    def having(self, region: Any) -> list[str]:
        """Returns the names of the members that have a region, if this locator coordinates. [] otherwise, and for a
        region that members do not share."""
        if not isinstance(region, str):
            return []
        with self._changed:
            core = self._driver.core
            return [] if core is None else sorted({member.name for member in core.site.hosts(region)})

    def status(self) -> dict[str, Any]:
        """Returns the coordinator's name, and the metadata of the site in numbers, as plain values."""
        with self._changed:
            choice, driver = self._choice, self._driver
            waits = driver.core.standbys.problem if driver.core is not None else ""
            told: dict[str, Any] = {
                "locator": self.name,
                "coordinator": choice.coordinator,
                "address": choice.address,
                "site_identity": choice.identity,
                "decides": choice.leads and driver.core is not None and driver.core.standbys.may_decide,
                "problem": driver.problem or choice.problem or waits,
                "term": choice.term,
                "folder": str(self._folder) if self._folder is not None else "",
                "member_timeout_ms": self._member_timeout_us // 1000,
            }
            more = self._mirror.status() if driver.core is None else driver.core.status(boot_us())
            return {**told, **more}


def _teller(request: dict[str, Any]) -> str:
    """Returns the sender's name from a request that is not read yet."""
    profile = request.get("profile")
    me = profile[0] if isinstance(profile, list) and profile else request.get("me")
    return f"member {me[0]}" if isinstance(me, list) and me and is_name(me[0]) else "a member"


def _place(peer: tuple[Any, ...]) -> str:
    return f"{peer[0]}[{peer[1]}]"
