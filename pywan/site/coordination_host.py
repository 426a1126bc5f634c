"""Owns the requests of members and operators about the coordination of a site.

Members ask and wait; the locator opens connections to members only to see whether they still listen. What the requests
mean is the coordinator's, and who coordinates is the choice's. This puts them together.
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
from pywan.base.lines import Lines, OncePerMinute
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

POLL_S = 0.5  # A member's question for news is answered after so long, if there are none.
POLLS_A_TIMEOUT = 10  # At least so many. With a short `member-timeout` a question is answered sooner.
UNDECIDED_WAIT_S = 1.0  # A member that joins is answered after so long at the latest, though nobody coordinates yet.
STORED_S = 2.5  # An answer waits so long for the standby, which stores first what is told.
REPORTS_AT_ONCE = 4  # Members that say what they hold, and are read at the same time.
TAKEN_RETRY_US = 1_000_000  # So soon a member asks again whose incarnation another process has taken.

_move_request_of = plain.reader(MoveRequest)

Handle = Callable[[dict[str, Any], tuple[Any, ...]], dict[str, Any]]


class CoordinationHost:
    """The coordination in a locator. Any thread may use it.

    One locator of a site coordinates: the first that the site starts with. All locators and members keep its name. The
    other locators refuse to decide, and name it.

    Args:
        name: The locator's name.
        site: The site's id.
        folder: The locator's folder. None: the coordinator's file is in a temporary one, and goes with the locator.
        peers: Returns the addresses of the site's other locators.
        address: Returns this locator's address.
        recovers: This locator takes the place of one that is gone for good. What was decided comes from the members.
        links: How the locator meets others.
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
        self._changed = self._driver.changed  # Guards all of them, and what is below.
        self._stored = self._driver.stored  # Says that the standby has stored more, or that something was decided.
        # By connection: the member that has proved to be at its other end. One that ends goes (`ended`).
        self._connections: dict[tuple[Any, ...], Incarnation] = {}
        self._reading = threading.BoundedSemaphore(REPORTS_AT_ONCE)
        self._lines = OncePerMinute()
        self._packed = PackedTables()

    # --- life cycle ---

    def start(self) -> None:
        """Reads who coordinates, and starts the threads. ConfigurationError if the file cannot be used."""
        with self._changed:
            self._driver.running = True
            self._claims.begin()
        self._driver.start()
        self._claims.start()
        self._mirror.start()

    def stop(self) -> None:
        """Hands over to another locator if one has all records. Ends the threads and closes the file. It may be called
        twice."""
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
        """Lets a request through whose sender speaks a version that goes with this one, before it is read."""

        def checked(request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
            versions.agreed(request.get("version"), f"{_teller(request)} at {_place(peer)}", f"locator {self.name}")
            return {**handle(request, peer), "version": versions.VERSION}

        return checked

    def ended(self, peer: tuple[Any, ...]) -> None:
        """A connection has ended. If it was a member's, the member is looked at."""
        with self._changed:
            me = self._connections.pop(peer, None)
            if me is not None and self._driver.core is not None:
                self._driver.core.suspect(me, me, boot_us())
                self._driver.act()

    # --- who coordinates ---

    @property
    def coordinator(self) -> str:
        """The name of the locator that coordinates. Empty: it is not known yet."""
        with self._changed:
            return self._choice.coordinator

    def claim(self) -> dict[str, Any]:
        """As `LocatorClaims.claim`."""
        return self._claims.claim()

    def _on_who(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Another locator asks what this one knows of the coordinator. A member asks it too, before it believes another
        locator that names this one."""
        self._claims.hear_request(request)
        return self._claims.claim()

    def _decider(self, request: Mapping[str, Any], *, is_poll: bool = False) -> Coordinator | dict[str, Any]:
        """Returns the coordinator, or the answer of a locator that does not coordinate, or that cannot now. The caller
        holds the lock.

        A coordinator that has to wait for its standby, or for a member, decides nothing. It takes what members have
        stored as soon as that can end the wait (`is_poll`).
        """
        choice, driver = self._choice, self._driver
        term = encoding.term_of(request.get("term", 0))
        if term > choice.term:
            self._claims.hint()
            problem = f"another locator has taken over from {choice.coordinator}, and this one has not heard it yet"
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
        # What members hold may be 100 MB of objects each. So few of those that report are read at the same time.
        with contextlib.nullcontext() if request.get("holdings") is None else self._reading:
            return self._take_join(request, join_of(request), peer)

    def _take_join(self, request: dict[str, Any], join: Join, peer: tuple[Any, ...]) -> dict[str, Any]:
        profile, claimed = join.profile, join.coordinator
        me = profile.incarnation
        with self._changed:
            # A locator that has just started asks the others first.
            self._changed.wait_for(lambda: self._choice.coordinator or not self._driver.running, UNDECIDED_WAIT_S)
            elsewhere = self._claims.hear_member(claimed) if claimed else ""
            self._mirror.hear_join(join)
            self._hear_of_standby(join)
            core = self._decider(request)
            if isinstance(core, dict):
                return {**core, **self._mirror.hear_question(me, join.nonce, max(join.stored, profile.seen))}
            if elsewhere:
                return {"decides": False, "coordinator": claimed, "address": "", "problem": elsewhere}
            refusal = self._refusal_of(profile, core)
            if refusal is not None:
                named = {"site_identity": core.site.identity} if refusal.join_again else {}
                return self._reply(refused=[refusal], **named)
            refusal = self._unproved(core, profile, join.nonce, peer)
            earlier = join.ended  # The member has seen that it is gone.
            if refusal is None and earlier is not None:
                of_folder = is_proved(core.site.members.get(earlier), join.nonces_before.get(earlier.member_id))
                refusal = core.ended(earlier, me, boot_us(), is_proved=of_folder)
            if refusal is not None:
                self._driver.act()
                return self._reply(refused=[refusal])
            self._driver.hear_identity(profile.site_identity, claimed)
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

    def _hear_of_standby(self, join: Join) -> None:
        """The caller holds the lock."""
        core = self._driver.core
        if core is not None and self._choice.leads:
            core.hear_of_standby(join)
            self._driver.act()

    def _refusal_of(self, profile: MemberProfile, core: Coordinator) -> Refused | None:
        """Returns why the member is not even brought before the coordinator. None: it is."""
        if self._driver.is_made_up(profile.site_identity):
            # It came first, and took the name that was made up. What it did alone meanwhile is not the site's.
            return Refused(f"the site is called {core.site.identity}, as its other members say", join_again=True)
        refusal = self._other_site(profile)
        if refusal is None and self._choice.rival and not profile.site_identity:
            refusal = Refused(f"member {profile.incarnation.name} is of no site yet: {self._choice.rival}")
        return refusal

    def _unproved(
        self, core: Coordinator, profile: MemberProfile, nonce: bytes | None, peer: tuple[Any, ...]
    ) -> Refused | None:
        """Returns why a join is not taken for that of this member. None: it is proved."""
        me = profile.incarnation
        if not is_proved(profile, nonce):
            self._say_unproved(me, peer)
            return Refused(f"member {me} tells a mark, and not the nonce that belongs to it")
        known = core.site.members.get(me)
        if known is None or is_proved(known, nonce):
            return None
        self._say_unproved(me, peer)
        return Refused(f"another process has joined as member {me}, and proves it by another nonce", TAKEN_RETRY_US)

    def _check_speaker(self, core: Coordinator, me: Incarnation, nonce: bytes | None, peer: tuple[Any, ...]) -> bool:
        """Returns whether the other end of the connection has proved to be a member of the view. False: there is no
        such member. IllegalStateError: it is not that member."""
        if me not in core.site.members:
            return False
        if not is_proved(core.site.members[me], nonce):
            self._say_unproved(me, peer)
            raise IllegalStateError(f"this is not member {me}: it has not the nonce with which that has joined")
        return True

    def _say_unproved(self, me: Incarnation, peer: tuple[Any, ...]) -> None:
        """The caller holds the lock."""
        if self._lines.is_due(str(peer[0]), "unproved", boot_us()):
            log.warning(
                "locator %s: what came from %s as the word of member %s is not taken: it has not the nonce of that"
                " member (more of this address are told once a minute)",
                self.name,
                _place(peer),
                me,
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
                return {**core, **self._mirror.hear_question(me, nonce, stored)}
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
                # In a new generation a member hears nothing before it has reported what it knows.
                if core.may_hear(me):
                    tables = self._stored_tables(core, stored)
                if self._driver.core is not core:
                    return self._not_stored(core)
            # What waits for the member follows from all that is decided.
            mail = mailbox.take_mail() if core.standbys.may_tell(core.site.number) else []
        return self._reply(
            refused=[each for each in mail if isinstance(each, Refused)],
            tables=None if tables is None else self._packed.packed(tables),
            **encoding.plain_leaving(mail),
        )

    def _stored_tables(self, core: Coordinator, stored: DecisionId) -> Tables | None:
        """The tables for a question for news, as soon as the standby has stored what is in them. None: it does not do
        so in time. The caller holds the lock."""
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
        """Returns whether the standby has stored all decisions up to this one: nobody may hear them before. It waits
        for that a little. The caller holds the lock."""
        self._stored.wait_for(
            lambda: core.standbys.may_tell(number) or self._driver.core is not core or not self._driver.running,
            STORED_S,
        )
        return self._driver.core is core and core.standbys.may_tell(number)

    def _not_stored(self, core: Coordinator) -> dict[str, Any]:
        problem = core.standbys.problem or "the standby has not stored in time what was decided"
        return {"decides": False, "coordinator": self._choice.coordinator, "address": "", "problem": problem}

    def _wait_for_news(self, core: Coordinator, mailbox: Mailbox, deadline: float) -> None:
        """The caller holds the lock. A later question of the same member ends this one."""
        turn = mailbox.turn

        def is_over() -> bool:
            has_any = mailbox.has_news or bool(mailbox.mail) or mailbox.turn != turn
            return has_any or self._driver.core is not core or not self._driver.running

        mailbox.arrived.wait_for(is_over, deadline - time.monotonic())

    def _on_ask(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Takes requests of a member in their order, and stores what they decide once. The reply says of each that was
        refused why."""
        me = encoding.incarnation_of(request.get("me"))
        # Read before the lock is taken: there may be half a million values.
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
            if self._lines.is_due(str(peer[0]), f"revoke {name}", boot_us()):
                log.warning(
                    "locator %s: an operator at %s says that member %s never comes back; it is waited for no more: %s",
                    self.name,
                    _place(peer),
                    name,
                    ", ".join(map(str, revoked)) or "nobody waited for it",
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
        """An operator ends all members of the site: nobody takes over, and all end together."""
        with self._changed:
            core = self._decider(request)
            if isinstance(core, dict):
                return core
            core.end_site(boot_us())
            if self._lines.is_due(str(peer[0]), "end-site", boot_us()):
                log.warning(
                    "locator %s: all members of site %d are ended by an operator at %s",
                    self.name,
                    self._site,
                    _place(peer),
                )
            self._driver.look()
            return {"decides": True, "coordinator": self.name}

    def _on_move_bucket(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """An operator moves a bucket's copy or its primary, and repeats that until it is done or refused."""
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
        """Returns the names of the members that have a region, if this locator coordinates. [] if it does not, and for
        a region that is its member's own."""
        if not isinstance(region, str):
            return []
        with self._changed:
            core = self._driver.core
            return [] if core is None else sorted({member.name for member in core.site.hosts(region)})

    def status(self) -> dict[str, Any]:
        """Returns who coordinates, and the tables of the site in numbers, as plain values."""
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
    """Names the member that sends a request, which is not read yet."""
    profile = request.get("profile")
    me = profile[0] if isinstance(profile, list) and profile else request.get("me")
    return f"member {me[0]}" if isinstance(me, list) and me and is_name(me[0]) else "a member"


def _place(peer: tuple[Any, ...]) -> str:
    return f"{peer[0]}[{peer[1]}]"
