"""Owns the coordinator of a site inside a locator: which locator it is, its file, its clock, and the members' requests.

Members ask and wait; the locator opens connections to members only to see whether they still listen. What the
coordinator decides is on the disk before any member hears of it.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pywan.base.addresses import Address
from pywan.base.clocks import boot_us
from pywan.base.files import FileError, read_regular, write_whole
from pywan.base.names import check_name, quoted
from pywan.base.processes import has_ended, this_machine
from pywan.base.threads import Workers, start_thread
from pywan.coordination import encoding
from pywan.coordination.actions import Lost, Probe, Store, Tell
from pywan.coordination.claims import CLAIM_FILE, JOURNAL_FILE
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.journal import Journal
from pywan.coordination.messages import MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.requests import take_request
from pywan.coordination.tables import RUN_STEP_MAX, Incarnation, MemberProfile, Reach
from pywan.errors import (
    ConfigurationError,
    ConnectivityError,
    DiskAccessError,
    IllegalStateError,
    ProtocolError,
    PywanError,
)
from pywan.transport.control import call_once

log = logging.getLogger("pywan.coordinator")

MAX_CLAIM_BYTES = 64 * 1024
POLL_S = 0.5  # A member's question for news is answered after so long, if there are none.
POLL_GAP_US = 300_000  # A member that asks no further question for so long is looked at.
LOOK_AGAIN_US = 500_000  # And looked at again, as long as it asks nothing.
PROBE_TIMEOUT_S = 1.0
PROBES_AT_ONCE = 8  # More probes wait for their turn.
PEERS_TIMEOUT_S = 1.0  # The limit for asking another locator who coordinates.
PEERS_INTERVAL_S = 5.0
RIVAL_US = 15_000_000  # A locator that was not heard for so long is no rival any more.
UNDECIDED_S = 0.2  # So soon others are asked again while nobody coordinates.
UNDECIDED_WAIT_S = 1.0  # A member that joins is answered after so long at the latest, though nobody coordinates yet.
REOPEN_S = 1.0  # So soon the file is tried again that could not be written.
MAX_MAIL = 8  # Refusals that wait for a member. Older ones go: the member repeats what it asked.
MAX_REQUESTS = 10_000  # In one message of a member.


@dataclass
class _Mailbox:
    """What waits for one member."""

    turn: int = 0  # Counts its questions for news. Only the newest is answered with news.
    has_news: bool = False
    mail: deque[Refused | MayLeave | StillNeeded] = field(default_factory=lambda: deque(maxlen=MAX_MAIL))


class CoordinationHost:
    """The coordinator's driver in a locator. Any thread may use it.

    One locator of a site coordinates: the first that the site starts with. All locators and members keep its name. The
    other locators refuse to decide, and name it.

    Args:
        name: The locator's name.
        site: The site's id.
        folder: The locator's folder. None: the coordinator's file is in a temporary one, and goes with the locator.
        peers: Returns the addresses of the site's other locators.
        address: Returns this locator's address.
        recovers: This locator takes the place of one that is gone for good. What was decided comes from the members.
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
        version: str,
        recovers: bool = False,
    ) -> None:
        self.name = name
        self._site, self._folder, self._peers, self._address = site, folder, peers, address
        self._member_timeout_us = member_timeout_ms * 1000
        self._poll_s = min(POLL_S, member_timeout_ms / 10_000)
        self._version = version
        self._recovers = recovers
        self._temporary: Path | None = None
        # `_changed` guards everything below.
        self._changed = threading.Condition()
        self._coordinator = ""  # The name of the locator that coordinates. Empty: nobody knows yet.
        self._coordinator_address = ""
        self._coordinator_identity = ""
        self._conflict = ""  # Two locators claim to coordinate.
        # Another locator says that it coordinates too, and both have decided: its name, what is wrong, and when it
        # said so.
        self._rival_name, self._rival, self._rival_us = "", "", 0
        self._problem = ""  # Why nothing can be decided now.
        self._core: Coordinator | None = None
        self._journal: Journal | None = None
        self._may_adopt_identity = False  # This run made the site's identity up, since its file was empty.
        self._made_up_identity = ""  # The one that it made up, before a member told what the site is called.
        self._mailboxes: dict[Incarnation, _Mailbox] = {}
        self._next_poll_us: dict[Incarnation, int] = {}  # When a member is looked at that asks nothing.
        self._connections: dict[tuple[Any, ...], Incarnation] = {}
        self._running = False
        self._threads: list[threading.Thread] = []
        self._pool: Workers | None = None

    # --- life cycle ---

    def start(self) -> None:
        """Reads who coordinates, and starts the threads. ConfigurationError if the file cannot be used."""
        if self._folder is not None:
            self._read_claim()
        with self._changed:
            self._running = True
            if self._recovers:
                log.warning(
                    "locator %s coordinates site %d from now on, in place of %s: the members tell what was decided",
                    self.name,
                    self._site,
                    self._coordinator or "any other locator",
                )
                self._claim()
            elif self._coordinator == self.name:
                self._open()
        self._pool = Workers(PROBES_AT_ONCE, name=f"locator {self.name}-probe")
        what = f"locator {self.name} cannot coordinate"
        self._threads.append(start_thread(what, f"locator {self.name}-coordinator", self._run))
        self._threads.append(start_thread(what, f"locator {self.name}-coordinators", self._run_claims))

    def stop(self) -> None:
        """Ends the threads and closes the file. It may be called twice."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(5.0)
        if self._pool is not None:
            self._pool.stop(wait=False)
        with self._changed:
            self._close()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def handlers(self) -> dict[str, Callable[[dict[str, Any], tuple[Any, ...]], dict[str, Any]]]:
        return {
            "coordination-who": self._on_who,
            "coordination-join": self._on_join,
            "coordination-poll": self._on_poll,
            "coordination-ask": self._on_ask,
            "coordination-show": lambda request, peer: {"coordination": self.status()},
            "coordination-revoke": self._on_revoke,
            "coordination-end-site": self._on_end_site,
        }

    def ended(self, peer: tuple[Any, ...]) -> None:
        """A connection has ended. If it was a member's, the member is looked at."""
        with self._changed:
            me = self._connections.pop(peer, None)
            if me is not None and self._core is not None:
                self._core.suspect(me, me, boot_us())
                self._act()

    # --- who coordinates ---

    @property
    def coordinator(self) -> str:
        """The name of the locator that coordinates. Empty: it is not known yet."""
        with self._changed:
            return self._coordinator

    def _read_claim(self) -> None:
        assert self._folder is not None
        file = self._folder / CLAIM_FILE
        if not file.exists():
            return
        try:
            value = json.loads(read_regular(file, MAX_CLAIM_BYTES, follow=False).data.decode())
            self._coordinator = check_name(value["coordinator"], "a locator")
            self._coordinator_address = str(value.get("address", ""))
            self._coordinator_identity = str(value.get("site_identity", ""))
        except (FileError, OSError, ValueError, KeyError, TypeError, AttributeError, PywanError) as error:
            raise ConfigurationError(
                f"locator {self.name}: {file} cannot be used: {error}; repair it, or move it away: the locator then"
                " asks the other locators of the site"
            ) from None

    def _write_claim(self) -> None:
        """Keeps the coordinator's name over restarts. A locator without a folder asks the others again."""
        if self._folder is None:
            return
        text = json.dumps(
            {
                "coordinator": self._coordinator,
                "address": self._coordinator_address,
                "site_identity": self._coordinator_identity,
            }
        )
        try:
            write_whole(self._folder / CLAIM_FILE, text.encode())
        except OSError as error:
            self._problem = f"{self._folder / CLAIM_FILE} cannot be written: {error.strerror}"
            log.error("locator %s: %s; it does not remember who coordinates", self.name, self._problem)

    def _claim(self) -> None:
        """Makes this locator coordinate from now on. The caller holds the lock."""
        self._coordinator, self._coordinator_address = self.name, str(self._address())
        self._open()
        self._write_claim()
        self._changed.notify_all()
        log.info("locator %s coordinates site %d", self.name, self._site)

    def _follow(self, name: str, address: str, identity: str) -> None:
        """Another locator coordinates. The caller holds the lock."""
        self._close()
        self._coordinator, self._coordinator_address, self._coordinator_identity = name, address, identity
        self._write_claim()
        self._changed.notify_all()
        log.info("locator %s: locator %s coordinates site %d", self.name, name, self._site)

    @property
    def _has_decided(self) -> bool:
        return self._core is not None and self._core.site.number > 0

    def _see_rival(self, locator: str, name: str, address: str, identity: str, decided: bool) -> None:
        """Takes what another locator says of the coordinator. The caller holds the lock."""
        mine = (self.name, self._coordinator_identity)
        is_rival = decided and name == locator and self._coordinator == self.name and self._has_decided
        if not is_rival or (name, identity) == mine:
            if locator == self._rival_name:
                self._rival_name = self._rival = ""
            return
        rival = (
            f"locator {self.name} ({self._coordinator_address}) coordinates site {self._site}, whose identity is"
            f" {self._coordinator_identity}, and so does locator {name} ({address}), with the identity {identity}; stop"
            f" one of them, remove {CLAIM_FILE} and {JOURNAL_FILE} from its folder, and start it again with the other"
            " one in its `locators`"
        )
        if rival != self._rival:
            log.error("locator %s takes no new members in: %s", self.name, rival)
        self._rival_name, self._rival, self._rival_us = name, rival, boot_us()

    def _hear_claim(self, name: str, address: str, identity: str, decided: bool, *, recovers: bool = False) -> None:
        """Another locator, or a member, says who coordinates. The caller holds the lock.

        A locator that has decided nothing gives way. Nobody gives way who has: an operator has to say which one goes.
        """
        mine = self._coordinator
        if name == mine:
            if (
                address
                and name != self.name
                and (address, identity)
                != (
                    self._coordinator_address,
                    self._coordinator_identity or identity,
                )
            ):
                self._follow(name, address, identity)
            self._conflict = ""
        elif not mine:
            if name == self.name:
                self._claim()
            else:
                self._follow(name, address, identity)
        elif mine == self.name and not self._has_decided and not self._recovers and (decided or name < self.name):
            self._follow(name, address, identity)
        elif recovers and self.name not in (mine, name):
            self._follow(name, address, identity)  # An operator has said so.
        elif self._recovers and not self._has_decided:
            self._conflict = ""  # Others still name the locator that is gone.
        elif decided and name not in (self.name, self._rival_name):
            conflict = (
                f"locator {mine} coordinates site {self._site} as far as this locator knows, and locator {name}"
                f" ({address or 'address unknown'}) as others say; stop one of them, remove {CLAIM_FILE} and"
                f" {JOURNAL_FILE} from its folder, and start it again"
            )
            if conflict != self._conflict:
                self._conflict = conflict
                log.error("locator %s: %s", self.name, conflict)

    def claim(self) -> dict[str, Any]:
        """Returns who coordinates, as members and other locators are told (`pywan.coordination.claims`)."""
        with self._changed:
            return {
                "locator": self.name,
                "site": self._site,
                "coordinator": self._coordinator,
                "coordinator_address": self._coordinator_address,
                "site_identity": self._coordinator_identity,
                "decided": self._has_decided or (self._coordinator not in ("", self.name)),
                "recovers": self._recovers,
            }

    def _take_claim(self, claim: dict[str, Any]) -> None:
        name, address = claim.get("coordinator"), claim.get("coordinator_address")
        identity = claim.get("site_identity")
        if claim.get("site") != self._site or not name:
            return
        check_name(name, "a coordinator", ProtocolError)
        if not isinstance(address, str) or not isinstance(identity, str) or len(address) + len(identity) > 1000:
            raise ProtocolError(f"what a locator says of the coordinator {name} cannot be used")
        with self._changed:
            recovers = claim.get("recovers") is True and claim.get("locator") == name
            decided = claim.get("decided") is True
            self._see_rival(str(claim.get("locator")), str(name), address, identity, decided)
            self._hear_claim(str(name), address, identity, decided, recovers=recovers)

    def _on_who(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Another locator says what it knows of the coordinator, and hears what this one knows."""
        self._take_claim(request)
        return self.claim()

    def _run_claims(self) -> None:
        """Asks the other locators who coordinates: at the start until somebody does, and later now and then."""
        while True:
            undecided = []
            for address in self._peers():
                try:
                    reply = call_once(address, "coordination-who", timeout=PEERS_TIMEOUT_S, **self.claim())
                    self._take_claim(reply)
                    if not reply.get("coordinator") and reply.get("site") == self._site:
                        undecided.append(str(reply.get("locator")))
                except PywanError as error:
                    log.debug("locator %s: %s does not say who coordinates: %s", self.name, address, error)
            with self._changed:
                if not self._running:
                    return
                if boot_us() > self._rival_us + RIVAL_US:
                    self._rival_name = self._rival = ""
                if not self._coordinator and self.name < min(undecided, default=self.name + "\0"):
                    try:
                        self._claim()
                    except DiskAccessError as error:
                        self._fail(error)
                wait_s = PEERS_INTERVAL_S if self._coordinator else UNDECIDED_S
                self._changed.wait_for(lambda: not self._running, wait_s)
                if not self._running:
                    return

    # --- the coordinator ---

    def _open(self) -> None:
        """Reads the file, and goes on where it ends. The caller holds the lock."""
        folder = self._folder
        if folder is None:
            folder = self._temporary = self._temporary or Path(tempfile.mkdtemp(prefix="pywan-coordinator-"))
            log.info(
                "locator %s has no folder: what it decides for the members of site %d goes when it stops; give it a"
                " folder (dir) to keep that",
                self.name,
                self._site,
            )
        folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(folder / JOURNAL_FILE)
        try:
            stored = journal.read()
            self._may_adopt_identity = not stored
            self._core = Coordinator(
                self.name,
                stored,
                draw_step=lambda: 1 + secrets.randbelow(RUN_STEP_MAX),
                now_us=boot_us(),
                site_identity=secrets.token_hex(8),
                member_timeout_us=self._member_timeout_us,
                machine=this_machine(),
            )
        except BaseException:
            journal.close()
            raise
        self._journal, self._problem = journal, ""
        self._coordinator_identity = self._core.site.identity
        self._next_poll_us.clear()

    def _close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self._core = self._journal = None
        self._mailboxes.clear()
        self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        """The file cannot be written. Nobody has heard of what was decided, so all of it is taken back."""
        self._close()
        if str(error) != self._problem:
            log.error("locator %s decides nothing now: %s", self.name, error)
        self._problem = str(error)

    def _act(self, asker: Incarnation | None = None) -> list[Refused | MayLeave | StillNeeded]:
        """Does what the coordinator wants done. Returns what it tells the asker. The caller holds the lock.

        Tables are not sent from here: a member's question is answered with all that it does not have.
        """
        assert self._core is not None and self._journal is not None
        told: list[Refused | MayLeave | StillNeeded] = []
        try:
            for action in self._core.take_actions():
                match action:
                    case Store():
                        self._journal.append(action)
                    case Tell(to, message) if isinstance(message, Tables):
                        mailbox = self._mailboxes.get(to)
                        if mailbox is not None and message.newest.number > message.since:
                            mailbox.has_news = True
                            self._changed.notify_all()
                    case Tell(to, message):
                        assert not isinstance(message, Tables)
                        if to == asker:
                            told.append(message)
                        elif to in self._mailboxes:
                            self._mailboxes[to].mail.append(message)
                            self._changed.notify_all()
                    case Probe(profile):
                        self._begin_probe(profile)
                    case Lost(region, buckets):
                        log.warning(
                            "locator %s: region %s: %d buckets have lost their last copies; they begin anew, empty",
                            self.name,
                            region,
                            buckets,
                        )
        except DiskAccessError as error:
            self._fail(error)
            raise
        return told

    def _run(self) -> None:
        """Does what is due: leases that are over, members that ask nothing, a file that could not be written."""
        with self._changed:
            while self._running:
                try:
                    wait_s = self._work()
                except DiskAccessError:
                    wait_s = REOPEN_S
                except Exception as error:
                    log.exception("locator %s: the coordinator failed", self.name)
                    self._fail(error)
                    wait_s = REOPEN_S
                self._changed.wait(wait_s)

    def _work(self) -> float | None:
        """Returns for how many seconds nothing is due; None: until somebody asks."""
        if self._coordinator != self.name:
            return None
        if self._core is None:
            try:
                self._open()
            except (DiskAccessError, IllegalStateError) as error:
                self._fail(error)
                return REOPEN_S
        core, now = self._core, boot_us()
        assert core is not None
        core.tick(now)
        for me, due in list(self._next_poll_us.items()):
            if me not in core.site.members:
                del self._next_poll_us[me]
                self._mailboxes.pop(me, None)
            elif due <= now:
                self._next_poll_us[me] = now + LOOK_AGAIN_US
                core.suspect(me, me, now)
        self._act()
        due_us = [*self._next_poll_us.values()]
        next_us = core.next_us()
        if next_us is not None:
            due_us.append(next_us)
        return max(min(due_us) - boot_us(), 1000) / 1e6 if due_us else None

    # --- probes ---

    def _begin_probe(self, profile: MemberProfile) -> None:
        assert self._pool is not None
        try:
            self._pool.submit(self._probe, profile)
        except (RuntimeError, MemoryError) as error:  # The locator is being stopped, or there is no thread now.
            log.warning("locator %s: member %s is not probed: %s", self.name, profile.incarnation, error)
            if self._core is not None:
                self._core.not_probed(profile.incarnation)

    def _probe(self, profile: MemberProfile) -> None:
        """Sees whether a member still listens. A process of this machine is asked for itself: its end is proof."""
        me = profile.incarnation
        has_gone = has_ended(profile.process)
        reach = Reach.REFUSED if has_gone else reach_of(profile)
        has_gone = has_gone or (reach is Reach.REFUSED and has_ended(profile.process))
        with self._changed:
            core = self._core
            if core is None or not self._running:
                return
            try:
                core.probed(me, reach, boot_us())
                if has_gone:
                    core.left(me, boot_us())
                self._act()
            except DiskAccessError:
                return
            self._changed.notify_all()
        if reach is not Reach.ANSWERED:
            log.warning(
                "locator %s: member %s at %s[%d] %s",
                self.name,
                me,
                profile.host,
                profile.port,
                "has ended" if has_gone else "does not listen any more" if reach is Reach.REFUSED else "is silent",
            )

    # --- requests of members ---

    def _not_here(self) -> dict[str, Any] | None:
        """Returns the answer of a locator that does not coordinate, or that cannot now. The caller holds the lock."""
        if self._coordinator == self.name and self._core is not None:
            return None
        return {
            "decides": False,
            "coordinator": self._coordinator,
            "address": "" if self._coordinator == self.name else self._coordinator_address,
            "problem": self._problem if self._coordinator == self.name else "",
        }

    def _on_join(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        profile = encoding.profile_of(request.get("profile"))
        check_name(profile.incarnation.name, "a member's name", ProtocolError)
        stored = encoding.decision_id_of(request.get("stored"))
        regions = {name: encoding.attributes_of(value) for name, value in _map(request, "regions").items()}
        holdings = encoding.holdings_of(encoding.unpack(request["holdings"])) if "holdings" in request else {}
        claimed = request.get("coordinator")
        me = profile.incarnation
        with self._changed:
            # A locator that has just started asks the others first.
            self._changed.wait_for(lambda: self._coordinator or not self._running, UNDECIDED_WAIT_S)
            if claimed:
                check_name(claimed, "a coordinator", ProtocolError)
                if not self._has_decided and claimed != self._coordinator:
                    self._hear_claim(str(claimed), "", profile.site_identity, decided=True)
            away = self._not_here()
            if away is not None:
                return away
            core = self._core
            assert core is not None
            if profile.site_identity and profile.site_identity == self._made_up_identity:
                # It came first, and took the name that was made up. What it did alone meanwhile is not the site's.
                again = Refused(f"the site is called {core.site.identity}, as its other members say", join_again=True)
                return self._reply(refused=[again], site_identity=core.site.identity)
            refusal = self._other_version_or_site(profile)
            if refusal is not None:
                return self._reply(refused=[refusal])
            if self._rival and not profile.site_identity:
                return self._reply(refused=[Refused(f"member {me.name} is of no site yet: {self._rival}")])
            ended = request.get("ended")
            if ended is not None:  # The member has seen that its earlier incarnation is gone: both are on one machine.
                earlier = encoding.incarnation_of(ended)
                if earlier.name == me.name and earlier != me:
                    core.left(earlier, boot_us())
            told_another = profile.site_identity not in ("", core.site.identity)
            if self._may_adopt_identity and (claimed == self.name or self._recovers) and told_another:
                # This coordinator has lost its file, and the member knows what the site is called.
                self._made_up_identity = core.site.identity
                core.site.identity = self._coordinator_identity = profile.site_identity
            self._may_adopt_identity = self._may_adopt_identity and not profile.site_identity
            core.join(profile, regions, holdings, stored, boot_us())
            told = self._act(me)
            if any(isinstance(each, Refused) for each in told):
                return self._reply(refused=[each for each in told if isinstance(each, Refused)])
            self._connections[peer] = me
            self._mailboxes.setdefault(me, _Mailbox())
            self._next_poll_us[me] = boot_us() + POLL_GAP_US
            self._changed.notify_all()
            log.info("locator %s: member %s is in the site's view", self.name, me)
            tables = core.tables(0, core.member_timeout_us)
        return self._reply(site_identity=tables.site_identity, tables=encoding.pack(encoding.plain_tables(tables)))

    def _other_version_or_site(self, profile: MemberProfile) -> Refused | None:
        name = profile.incarnation.name
        if profile.distributed_system_id != self._site:
            return Refused(
                f"member {name} belongs to distributed-system-id {profile.distributed_system_id}, and locator"
                f" {self.name} coordinates {self._site}; give it the locators of its own site"
            )
        if profile.version != self._version:
            return Refused(
                f"member {name} runs pywan {profile.version}, and locator {self.name}, which coordinates the site, runs"
                f" {self._version}; install the same version on both"
            )
        return None

    def _on_poll(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Renews the member's lease, and waits a little for news."""
        me, stored = encoding.incarnation_of(request.get("me")), encoding.decision_id_of(request.get("stored"))
        told = request.get("reaches", [])
        if not isinstance(told, list) or len(told) > MAX_REQUESTS:
            raise ProtocolError(f"coordination-poll: reaches is a list of at most {MAX_REQUESTS}")
        reaches = [encoding.incarnation_of(each) for each in told]
        deadline = time.monotonic() + self._poll_s
        with self._changed:
            away = self._not_here()
            if away is not None:
                return away
            core = self._core
            assert core is not None
            self._next_poll_us.pop(me, None)
            mailbox = self._mailboxes.setdefault(me, _Mailbox())
            mailbox.turn += 1
            mailbox.has_news = stored != core.site.newest
            turn = mailbox.turn
            core.renew(me, stored, boot_us(), reaches)
            refused = [each for each in self._act(me) if isinstance(each, Refused)]
            if refused:
                self._mailboxes.pop(me, None)
                return self._reply(refused=refused)
            self._changed.wait_for(
                lambda: (
                    mailbox.has_news
                    or mailbox.mail
                    or mailbox.turn != turn
                    or self._core is not core
                    or not self._running
                ),
                deadline - time.monotonic(),
            )
            away = self._not_here()
            if away is not None:
                return away
            mail = list(mailbox.mail)
            mailbox.mail.clear()
            tables = None
            if mailbox.turn == turn:
                mailbox.has_news = False
                self._next_poll_us[me] = boot_us() + POLL_GAP_US
                self._changed.notify_all()
                # In a new generation a member hears nothing before it has reported what it knows.
                if core.may_hear(me):
                    tables = core.tables(stored.number, core.member_timeout_us)
        return {
            "decides": True,
            "coordinator": self.name,
            "lease_us": self._member_timeout_us,
            "tables": None if tables is None else encoding.pack(encoding.plain_tables(tables)),
            "refused": [encoding.plain_refused(each) for each in mail if isinstance(each, Refused)],
            **encoding.plain_leaving(mail),
        }

    def _on_ask(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Takes requests of a member in their order. The reply says of each that was refused why."""
        me = encoding.incarnation_of(request.get("me"))
        requests = request.get("requests")
        if not isinstance(requests, list) or len(requests) > MAX_REQUESTS:
            raise ProtocolError(f"coordination-ask: requests is a list of at most {MAX_REQUESTS}")
        refused: list[Any] = []
        leaving: list[Refused | MayLeave | StillNeeded] = []
        with self._changed:
            away = self._not_here()
            if away is not None:
                return away
            core = self._core
            assert core is not None
            if me in core.site.members:
                self._connections[peer] = me
            for index, each in enumerate(requests):
                take_request(core, me, each, boot_us())
                for message in self._act(me):
                    if isinstance(message, Refused):
                        refused.append([index, encoding.plain_refused(message)])
                    else:
                        leaving.append(message)
            decision = core.site.number
            self._changed.notify_all()
        return {
            "decides": True,
            "coordinator": self.name,
            "decision": decision,
            "refused_requests": refused,
            **encoding.plain_leaving(leaving),
        }

    def _reply(self, *, refused: list[Refused] | None = None, **fields: Any) -> dict[str, Any]:
        return {
            "decides": True,
            "coordinator": self.name,
            "lease_us": self._member_timeout_us,
            "refused": [encoding.plain_refused(each) for each in refused or []],
            **fields,
        }

    # --- requests of operators ---

    def _on_revoke(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """An operator says that a member, for which buckets wait, never comes back."""
        name = check_name(request.get("name"), "a member's name", ConfigurationError)
        with self._changed:
            away = self._not_here()
            if away is not None:
                return away
            core = self._core
            assert core is not None
            revoked = core.awaited_incarnations(name)
            for each in revoked:
                core.revoke(each, boot_us())
            self._act()
            self._changed.notify_all()
            alive = sorted(str(each) for each in core.site.members if each.name == name and each not in revoked)
            return {
                "decides": True,
                "coordinator": self.name,
                "revoked": [str(each) for each in revoked],
                "alive": alive,
            }

    def _on_end_site(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """An operator ends all members of the site: nobody takes over, and all end together."""
        with self._changed:
            away = self._not_here()
            if away is not None:
                return away
            assert self._core is not None
            self._core.end_site(boot_us())
            log.info("locator %s: all members of site %d are ended by an operator", self.name, self._site)
            self._changed.notify_all()
            return {"decides": True, "coordinator": self.name}

    def status(self) -> dict[str, Any]:
        """Returns who coordinates, and the tables of the site in numbers, as plain values."""
        with self._changed:
            told: dict[str, Any] = {
                "locator": self.name,
                "coordinator": self._coordinator,
                "address": self._coordinator_address,
                "site_identity": self._coordinator_identity,
                "decides": self._coordinator == self.name and self._core is not None,
                "problem": self._problem or self._rival or self._conflict,
                "folder": str(self._folder) if self._folder is not None else "",
                "member_timeout_ms": self._member_timeout_us // 1000,
            }
            return {**told, **self._core.status(boot_us())} if self._core is not None else told


def reach_of(profile: MemberProfile) -> Reach:
    """Connects to a member's port, and asks who is there.

    A process that is stopped still takes connections. A process that ends may take one more, which is reset.
    """
    address = (profile.host, profile.port)
    for is_last in (False, True):
        try:
            socket.create_connection(address, PROBE_TIMEOUT_S).close()
        except ConnectionRefusedError:
            return Reach.REFUSED
        except OSError:
            return Reach.SILENT
        try:
            reply = call_once(address, "ping", timeout=PROBE_TIMEOUT_S)
        except ConnectivityError:
            if not is_last:
                time.sleep(0.02)  # The process may be ending: its port is closed a moment later.
            continue
        except PywanError:
            return Reach.ANSWERED
        there = reply.get("incarnation", profile.incarnation.member_id)
        return Reach.ANSWERED if there == profile.incarnation.member_id else Reach.REFUSED
    return Reach.ANSWERED


def _map(request: dict[str, Any], key: str) -> dict[str, Any]:
    value = request.get(key, {})
    if not isinstance(value, dict):
        raise ProtocolError(f"{key} is a map, not {quoted(value)}")
    return value


__all__ = ["CoordinationHost"]
