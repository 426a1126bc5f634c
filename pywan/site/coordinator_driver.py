"""Owns the coordinator inside a locator, with its file, clock, probes, and the mailboxes of members.

Each metadata record is on the disk before any member receives the record.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pywan.base.clocks import boot_us
from pywan.base.files import make_folder
from pywan.base.lines import Lines
from pywan.base.processes import this_machine
from pywan.base.threads import start_essential
from pywan.coordination.actions import Lost, Probe, Store, Tell
from pywan.coordination.choice import Choice
from pywan.coordination.claims import JOURNAL_FILE
from pywan.coordination.coordinator import Coordinator
from pywan.coordination.journal import Journal
from pywan.coordination.messages import MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.tables import CONTROLLER_EPOCH_STEP_MAX, Incarnation, MemberProfile, Reach
from pywan.errors import DiskAccessError, IllegalStateError
from pywan.site.probes import Prober
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.coordinator")

NEVER_US = 1 << 62  # Later than every time.
POLL_GAP_US = 300_000  # A member without a poll for so long is probed.
LOOK_AGAIN_US = 500_000  # The interval of further probes until the next poll.
TICK_US = 250_000  # The longest interval between two checks for due work, if the view has members.
REOPEN_S = 1.0  # The retry interval after a failed write of the file.
MAX_MAIL = 8  # Refusals that wait for a member. Older ones are dropped: the member repeats its request.
STOP_TIMEOUT_S = 5.0

Mail = Refused | MayLeave | StillNeeded


@dataclass
class Mailbox:
    """The pending messages for one member."""

    arrived: threading.Condition  # The member's poll waits here: news of a member wakes up no other poll.
    turn: int = 0  # Counts the member's polls. Only the newest poll gets news.
    has_news: bool = False
    mail: deque[Mail] = field(default_factory=lambda: deque(maxlen=MAX_MAIL))

    def take_mail(self) -> list[Mail]:
        mail = list(self.mail)
        self.mail.clear()
        return mail


class CoordinatorDriver:
    """The lock of `changed` guards the driver and the choice. Callers hold the lock, except for `start` and `stop`.

    `changed` is notified when the choice has changed, or the locator ends. Each mailbox has its own condition for new
    messages.
    """

    def __init__(
        self, choice: Choice, *, folder: Path | None, member_timeout_us: int, way: Way = PLAIN.cluster
    ) -> None:
        """`folder`: the locator's folder. None: the file is in a temporary folder, which is deleted when the locator
        stops. `way`: connects to members."""
        self._way = way
        self._lock = threading.RLock()
        self.changed, self._is_due = threading.Condition(self._lock), threading.Condition(self._lock)
        # Notified when the standby has stored records, or a record was written.
        self.stored = threading.Condition(self._lock)
        self._wakes_us = 0  # The time at which the thread wakes up for due work.
        self.choice, self.member_timeout_us = choice, member_timeout_us
        self.core: Coordinator | None = None
        self.running = False
        self.problem = ""  # The reason why the coordinator can write no record now.
        self._folder = folder
        self.before_open: Callable[[], object] = lambda: None  # Closes the mirror's file.
        self._temporary: Path | None = None
        self._journal: Journal | None = None
        self._may_adopt_identity = False  # The site's identity is new and random, since the file was empty.
        self._made_up_identity = ""  # The random identity before a member named the site's identity.
        self._mailboxes: dict[Incarnation, Mailbox] = {}
        self._next_poll_us: dict[Incarnation, int] = {}  # When a member without a poll is probed.
        self._lost = Lines(log)  # A lying member could create and lose many regions.
        self._failures = Lines(log)  # Own failures: the cause may be in the file.
        self._prober: Prober | None = None
        self._thread: threading.Thread | None = None

    # --- life cycle ---

    def start(self) -> None:
        name = self.choice.name
        self._prober = Prober(name, self._end_probe, self._way)
        self._thread = start_essential(f"locator {name} cannot coordinate", f"locator {name}-coordinator", self._run)

    def end_waiting(self) -> None:
        """Ends all waiting polls. The coordinator writes no record any more."""
        with self.changed:
            self.running = False
            self._wake_all()

    def stop(self) -> None:
        """Ends the thread and closes the file. May be called twice."""
        self.end_waiting()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
        if self._prober is not None:
            self._prober.stop()
        with self.changed:
            self.close()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    # --- the file ---

    def open(self) -> None:
        """Reads the file, and continues after its last record."""
        folder, choice = self._folder, self.choice
        self.before_open()
        if folder is None:
            folder = self._temporary = self._temporary or Path(tempfile.mkdtemp(prefix="pywan-coordinator-"))
            log.info(
                "locator %s has no folder: the metadata of site %d are lost when the locator stops; give the locator a"
                " folder (dir) to keep the metadata",
                choice.name,
                choice.site,
            )
        make_folder(folder)
        journal = Journal(folder / JOURNAL_FILE)
        try:
            stored = journal.read()
            choice.term = max(choice.term, *(each.term for each in stored), 0)
            self._may_adopt_identity = not stored
            self.core = Coordinator(
                choice.name,
                stored,
                draw_step=lambda: 1 + secrets.randbelow(CONTROLLER_EPOCH_STEP_MAX),
                now_us=boot_us(),
                site_identity=secrets.token_hex(8),
                member_timeout_us=self.member_timeout_us,
                machine=this_machine(),
            )
        except BaseException:
            journal.close()
            raise
        self.core.site.term = choice.term
        self._journal, self.problem = journal, ""
        choice.identity = self.core.site.identity
        self._next_poll_us.clear()
        self._is_due.notify()

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self.core = self._journal = None
        self._wake_all()
        self._mailboxes.clear()

    def _wake_all(self) -> None:
        self.changed.notify_all()
        self._is_due.notify_all()
        self.stored.notify_all()
        for mailbox in self._mailboxes.values():
            mailbox.arrived.notify_all()

    def fail(self, error: Exception) -> None:
        """The file cannot be written. No member has received the unwritten records, so all of these are taken back."""
        self.close()
        if str(error) != self.problem:
            log.error("locator %s decides nothing now: %s", self.choice.name, error)
        self.problem = str(error)

    @property
    def has_decided(self) -> bool:
        return self.core is not None and self.core.site.number > 0

    # --- the site's identity ---

    def is_made_up(self, identity: str) -> bool:
        """Whether this controller epoch created the identity, and a member has named a different identity since."""
        return bool(identity) and identity == self._made_up_identity

    def receive_identity(self, told: str, claimed: object) -> None:
        """A member names the site's identity, and the coordinator (`claimed`). The member's word is better if this
        coordinator has lost its file."""
        core, choice = self.core, self.choice
        assert core is not None
        is_of_this = claimed == choice.name or choice.recovers
        if self._may_adopt_identity and is_of_this and told not in ("", core.site.identity):
            self._made_up_identity = core.site.identity
            core.site.identity = choice.identity = told
        self._may_adopt_identity = self._may_adopt_identity and not told

    # --- polls of members ---

    def expect(self, me: Incarnation) -> None:
        """Expects a poll of the member soon. Otherwise the member is probed."""
        self._next_poll_us[me] = boot_us() + POLL_GAP_US
        self.look()

    def look(self) -> None:
        """Wakes up the thread if work is due sooner than the thread expects."""
        due_us = self._due_us()
        if due_us is not None and due_us < self._wakes_us:
            self._is_due.notify()

    def mailbox(self, me: Incarnation) -> Mailbox:
        mailbox = self._mailboxes.get(me)
        if mailbox is None:
            mailbox = self._mailboxes[me] = Mailbox(threading.Condition(self._lock))
        return mailbox

    def begin_turn(self, me: Incarnation) -> Mailbox:
        """Begins a poll of the member. An earlier poll of the member gets no news any more."""
        self._next_poll_us.pop(me, None)
        mailbox = self.mailbox(me)
        mailbox.turn += 1
        mailbox.arrived.notify_all()
        return mailbox

    def drop_mailbox(self, me: Incarnation) -> None:
        self._mailboxes.pop(me, None)

    # --- actions ---

    def act(self, asker: Incarnation | None = None) -> list[Mail]:
        """Does the pending actions of the coordinator. Returns the messages for the asker.

        The method sends no metadata: the answer to a poll has all records that the member is missing.
        """
        assert self.core is not None and self._journal is not None
        told: list[Mail] = []
        try:
            for action in self.core.take_actions():
                match action:
                    case Store():
                        self._journal.append(action)
                    case Tell(to, message):
                        if to == asker and not isinstance(message, Tables):
                            told.append(message)
                        else:
                            self._tell(to, message)
                    case Probe(profile):
                        if self._prober is None or not self._prober.begin(profile):
                            self.core.not_probed(profile.incarnation)
                    case Lost(region, buckets):
                        self._lost.warning(
                            "locator %s: region %s: %d buckets have lost their last replicas; they begin anew, empty",
                            self.choice.name,
                            region,
                            buckets,
                        )
        except DiskAccessError as error:
            self.fail(error)
            raise
        # Followers wait for new records, and answers wait until the standby has stored the records.
        self.stored.notify_all()
        return told

    def _tell(self, to: Incarnation, message: Tables | Mail) -> None:
        mailbox = self._mailboxes.get(to)
        if mailbox is None:
            return
        if not isinstance(message, Tables):
            mailbox.mail.append(message)
        elif message.newest.number > message.since:
            mailbox.has_news = True
        else:
            return
        mailbox.arrived.notify_all()

    # --- time ---

    def _run(self) -> None:
        """Does the due work: expired leases, members without polls, a file that could not be written."""
        with self.changed:
            while self.running:
                try:
                    wait_s = self._work()
                except DiskAccessError:
                    wait_s = REOPEN_S
                except Exception as error:
                    self._failures.exception("locator %s: the coordinator failed", self.choice.name)
                    self.fail(error)
                    wait_s = REOPEN_S
                self._wakes_us = NEVER_US if wait_s is None else boot_us() + round(wait_s * 1e6)
                self._is_due.wait(wait_s)

    def _work(self) -> float | None:
        """Returns the seconds until work is due; None: no work is due before a request."""
        if not self.choice.leads:
            return None
        if self.core is None:
            try:
                self.open()
            except (DiskAccessError, IllegalStateError) as error:
                self.fail(error)
                return REOPEN_S
        core, now = self.core, boot_us()
        assert core is not None
        core.tick(now)
        for me in [each for each in self._mailboxes if each not in core.site.members]:
            del self._mailboxes[me]
        for me, due in list(self._next_poll_us.items()):
            if me not in core.site.members:
                del self._next_poll_us[me]
            elif due <= now:
                self._next_poll_us[me] = now + LOOK_AGAIN_US
                core.suspect(me, me, now)
        self.act()
        due_us = self._due_us()
        return None if due_us is None else max(due_us - boot_us(), 1000) / 1e6

    def _due_us(self) -> int | None:
        """Returns the time of the next due work; None: no work is due before a request."""
        if self.core is None:
            return None
        due_us = [*self._next_poll_us.values()]
        next_us = self.core.next_us()
        if next_us is not None:
            due_us.append(next_us)
        if self.core.site.members:
            due_us.append(boot_us() + TICK_US)
        return min(due_us, default=None)

    def _end_probe(self, profile: MemberProfile, reach: Reach, has_gone: bool) -> bool:
        """Called in a thread of the prober. Returns whether the coordinator used the result."""
        with self.changed:
            core = self.core
            if core is None or not self.running:
                return False
            try:
                core.probed(profile.incarnation, reach, boot_us())
                if has_gone:
                    core.left(profile.incarnation, boot_us())
                self.act()
            except DiskAccessError:
                return False
            self.look()
            return True
