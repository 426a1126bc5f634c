"""Owns the coordinator inside a locator, with its file, its clock, its probes, and what waits for members.

What the coordinator decides is on the disk before any member hears of it.
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
from pywan.coordination.tables import RUN_STEP_MAX, Incarnation, MemberProfile, Reach
from pywan.errors import DiskAccessError, IllegalStateError
from pywan.site.probes import Prober
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.coordinator")

NEVER_US = 1 << 62  # A time that does not come.
POLL_GAP_US = 300_000  # A member that asks no further question for so long is looked at.
LOOK_AGAIN_US = 500_000  # And looked at again, as long as it asks nothing.
TICK_US = 250_000  # The coordinator does what is due so often at least, as long as there are members.
REOPEN_S = 1.0  # So soon the file is tried again that could not be written.
MAX_MAIL = 8  # Refusals that wait for a member. Older ones go: the member repeats what it asked.
STOP_TIMEOUT_S = 5.0

Mail = Refused | MayLeave | StillNeeded


@dataclass
class Mailbox:
    """What waits for one member."""

    arrived: threading.Condition  # Its question for news waits here: news of one member wakes up no other one.
    turn: int = 0  # Counts its questions for news. Only the newest is answered with news.
    has_news: bool = False
    mail: deque[Mail] = field(default_factory=lambda: deque(maxlen=MAX_MAIL))

    def take_mail(self) -> list[Mail]:
        mail = list(self.mail)
        self.mail.clear()
        return mail


class CoordinatorDriver:
    """The lock of `changed` guards it, and the choice. The callers of its methods hold it, but for `start` and `stop`.

    `changed` says that the choice has changed, or that the locator ends. Each mailbox says for itself what has arrived.
    """

    def __init__(
        self, choice: Choice, *, folder: Path | None, member_timeout_us: int, way: Way = PLAIN.cluster
    ) -> None:
        """`folder`: the locator's. None: the file is in a temporary one, and goes with the locator. `way`: connects to
        members."""
        self._way = way
        self._lock = threading.RLock()
        self.changed, self._is_due = threading.Condition(self._lock), threading.Condition(self._lock)
        # Says that the standby has stored more, or that something was decided.
        self.stored = threading.Condition(self._lock)
        self._wakes_us = 0  # When the thread does the next work that is due.
        self.choice, self.member_timeout_us = choice, member_timeout_us
        self.core: Coordinator | None = None
        self.running = False
        self.problem = ""  # Why nothing can be decided now.
        self._folder = folder
        self.before_open: Callable[[], object] = lambda: None  # Whoever else has the file closes it.
        self._temporary: Path | None = None
        self._journal: Journal | None = None
        self._may_adopt_identity = False  # This run made the site's identity up, since its file was empty.
        self._made_up_identity = ""  # The one that it made up, before a member told what the site is called.
        self._mailboxes: dict[Incarnation, Mailbox] = {}
        self._next_poll_us: dict[Incarnation, int] = {}  # When a member is looked at that asks nothing.
        self._lost = Lines(log)  # Members that lie can have regions of their own, and lose them.
        self._failures = Lines(log)  # Of our own: what made the coordinator fail may be in its file.
        self._prober: Prober | None = None
        self._thread: threading.Thread | None = None

    # --- life cycle ---

    def start(self) -> None:
        name = self.choice.name
        self._prober = Prober(name, self._end_probe, self._way)
        self._thread = start_essential(f"locator {name} cannot coordinate", f"locator {name}-coordinator", self._run)

    def end_waiting(self) -> None:
        """Whoever waits for news goes on, and nothing is decided any more."""
        with self.changed:
            self.running = False
            self._wake_all()

    def stop(self) -> None:
        """Ends the thread and closes the file. It may be called twice."""
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
        """Reads the file, and goes on where it ends."""
        folder, choice = self._folder, self.choice
        self.before_open()
        if folder is None:
            folder = self._temporary = self._temporary or Path(tempfile.mkdtemp(prefix="pywan-coordinator-"))
            log.info(
                "locator %s has no folder: what it decides for the members of site %d goes when it stops; give it a"
                " folder (dir) to keep that",
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
                draw_step=lambda: 1 + secrets.randbelow(RUN_STEP_MAX),
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
        """The file cannot be written. Nobody has heard of what was decided, so all of it is taken back."""
        self.close()
        if str(error) != self.problem:
            log.error("locator %s decides nothing now: %s", self.choice.name, error)
        self.problem = str(error)

    @property
    def has_decided(self) -> bool:
        return self.core is not None and self.core.site.number > 0

    # --- the site's identity ---

    def is_made_up(self, identity: str) -> bool:
        """Whether this run made that identity up, and then heard what the site is called."""
        return bool(identity) and identity == self._made_up_identity

    def hear_identity(self, told: str, claimed: object) -> None:
        """A member says what the site is called, and `claimed`, who coordinates it. If this coordinator has lost its
        file, the member knows better."""
        core, choice = self.core, self.choice
        assert core is not None
        is_of_this = claimed == choice.name or choice.recovers
        if self._may_adopt_identity and is_of_this and told not in ("", core.site.identity):
            self._made_up_identity = core.site.identity
            core.site.identity = choice.identity = told
        self._may_adopt_identity = self._may_adopt_identity and not told

    # --- members that ask for news ---

    def expect(self, me: Incarnation) -> None:
        """The member is about to ask for news: it is looked at if it does not."""
        self._next_poll_us[me] = boot_us() + POLL_GAP_US
        self.look()

    def look(self) -> None:
        """Something may be due sooner than the thread knows."""
        due_us = self._due_us()
        if due_us is not None and due_us < self._wakes_us:
            self._is_due.notify()

    def mailbox(self, me: Incarnation) -> Mailbox:
        mailbox = self._mailboxes.get(me)
        if mailbox is None:
            mailbox = self._mailboxes[me] = Mailbox(threading.Condition(self._lock))
        return mailbox

    def begin_turn(self, me: Incarnation) -> Mailbox:
        """The member asks for news. An earlier question of it gets none any more."""
        self._next_poll_us.pop(me, None)
        mailbox = self.mailbox(me)
        mailbox.turn += 1
        mailbox.arrived.notify_all()
        return mailbox

    def drop_mailbox(self, me: Incarnation) -> None:
        self._mailboxes.pop(me, None)

    # --- actions ---

    def act(self, asker: Incarnation | None = None) -> list[Mail]:
        """Does what the coordinator wants done. Returns what it tells the asker.

        Tables are not sent from here: a member's question is answered with all that it does not have.
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
                            "locator %s: region %s: %d buckets have lost their last copies; they begin anew, empty",
                            self.choice.name,
                            region,
                            buckets,
                        )
        except DiskAccessError as error:
            self.fail(error)
            raise
        # A locator waits for what was decided, and answers wait until the standby has stored that.
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
        """Does what is due: leases that are over, members that ask nothing, a file that could not be written."""
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
        """Returns for how many seconds nothing is due; None: until somebody asks."""
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
        """When something is due; None: nothing is, until somebody asks."""
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
        """Called in a thread of the prober. Returns whether the coordinator took it."""
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
