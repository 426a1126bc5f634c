"""Owns a follower's copy of the coordinator's records, and the thread that fetches new records.

A locator polls the coordinator for records, as members do, and stores the records in the file that the locator would
use as the coordinator. The standby takes over by the rules of pywan.coordination.takeover.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pywan.base import versions
from pywan.base.addresses import Address, parse_locators
from pywan.base.clocks import boot_us
from pywan.base.files import make_folder
from pywan.base.lines import Lines
from pywan.base.threads import start_essential, told_error
from pywan.coordination import encoding, plain
from pywan.coordination.actions import Store
from pywan.coordination.choice import Choice
from pywan.coordination.claims import JOURNAL_FILE
from pywan.coordination.joins import Join
from pywan.coordination.journal import Journal
from pywan.coordination.promise import ROUND_MAX
from pywan.coordination.proofs import is_proved
from pywan.coordination.records import records_of
from pywan.coordination.tables import DecisionId, Incarnation
from pywan.coordination.takeover import StandbyAnswer, Takeover
from pywan.errors import ConfigurationError, DiskAccessError, ProtocolError, PywanError
from pywan.site.coordinator_driver import CoordinatorDriver
from pywan.site.locator_claims import LocatorClaims
from pywan.transport.control import ControlClient
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.coordinator")

MIRROR = "coordination-mirror"
ANSWER_TIMEOUT_S = 3.0
AGAIN_S = 0.2  # The retry interval after a coordinator's failure to answer.
STOP_TIMEOUT_S = 5.0


class Mirror:
    """The driver's lock guards the mirror. Callers hold the lock, except for `start` and `stop`. A locator without a
    folder keeps no records: the records would be lost when the locator stops.

    Args:
        folder: The locator's folder.
        address: Returns this locator's address.
        way: Connects to locators.
    """

    def __init__(
        self,
        choice: Choice,
        driver: CoordinatorDriver,
        claims: LocatorClaims,
        *,
        folder: Path | None,
        address: Callable[[], Address],
        way: Way = PLAIN.locator,
    ) -> None:
        self._choice, self._driver, self._claims = choice, driver, claims
        self._folder, self._address, self._way = folder, address, way
        self._journal: Journal | None = None
        self._takeover: Takeover | None = None  # Set while the file is open.
        self._thread: threading.Thread | None = None
        self._client: ControlClient | None = None  # Used by the thread; closed by `stop`.
        self._asks = True  # Until the locator ends.
        self._lines, self._what = Lines(log), f"locator {choice.name} cannot keep the records of its coordinator"

    # --- life cycle ---

    def start(self) -> None:
        if self._folder is not None:
            name = self._choice.name
            self._thread = start_essential(f"locator {name} keeps no records", f"locator {name}-mirror", self._run)

    def end_asking(self) -> None:
        """Ends the polls of a stopping locator. A different coordinator would otherwise make the locator its standby,
        and then wait for the standby."""
        with self._driver.changed:
            self._asks = False

    def stop(self) -> None:
        """Ends the thread and closes the file, after the driver has stopped. May be called twice."""
        with self._driver.changed:
            client = self._client
        if client is not None:
            client.close()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
        with self._driver.changed:
            self.close()

    # --- messages of members and operators ---

    def receive_from_member(
        self, me: Incarnation, nonce: bytes | None, stored: DecisionId, promised: int, *, is_leaving: bool
    ) -> StandbyAnswer:
        """A member says that the coordinator is unreachable. `is_leaving`: the member has ended, and sends no poll any
        more."""
        takeover = self._takeover
        if takeover is None or not is_proved(takeover.members.get(me), nonce):
            return StandbyAnswer(0, f"locator {self._choice.name} does not know member {me}")
        if is_leaving:
            takeover.receive_goodbye(me, stored)
            reply = StandbyAnswer(0, "")
        else:
            reply = takeover.receive_from_member(me, stored, promised, boot_us())
        self._take_over_if_due()
        return reply

    def receive_join(self, join: Join) -> None:
        """A member asks to join, and perhaps proves the end of earlier incarnations."""
        if self._takeover is not None and is_proved(join.profile, join.nonce):
            self._takeover.receive_join(join.profile, join.nonces_before, join.stored)
            self._take_over_if_due()

    def receive_question(self, me: Incarnation, nonce: bytes | None, stored: DecisionId) -> dict[str, Any]:
        """A member polls or asks to join, and this locator does not coordinate. Returns the fields of the answer about
        a standby: the records name this locator as the standby, and have the member too. Otherwise {}."""
        takeover = self._takeover
        if takeover is None or not is_proved(takeover.members.get(me), nonce) or not takeover.receive_question(stored):
            return {}
        return {"standby_at": encoding.plain_decision_id(takeover.newest)}

    def revoke(self, name: str) -> list[Incarnation]:
        """An operator says that a member is gone for good. Returns the incarnations of the member for which a takeover
        waits."""
        takeover = self._takeover
        if takeover is None or not takeover.waits_for_members(boot_us()):
            return []
        found = takeover.revoke(name, boot_us())
        log.warning(
            "locator %s: an operator says that member %s never comes back; a takeover waited for: %s",
            self._choice.name,
            name,
            ", ".join(map(str, found)) or "no incarnation of the member",
        )
        self._take_over_if_due()
        return found

    def status(self) -> dict[str, Any]:
        takeover = self._takeover
        if takeover is None:
            return {"standby": "", "newest_record": "", "takeover_waits": ""}
        standby = takeover.standby
        return {
            "standby": "" if standby is None or standby.is_out else standby.name,
            "newest_record": str(takeover.newest),
            "takeover_waits": takeover.problem(boot_us()),
        }

    # --- takeover ---

    def _take_over_if_due(self) -> None:
        takeover, choice = self._takeover, self._choice
        if takeover is None or choice.leads or not self._driver.running or not takeover.is_due(boot_us()):
            return
        log.warning(
            "locator %s takes the coordination of site %d over from locator %s, which is unreachable for all members",
            choice.name,
            choice.site,
            choice.coordinator,
        )
        self._lead()

    def _lead(self) -> None:
        try:
            self._claims.take_over(self._choice.term + 1)
        except DiskAccessError as error:
            self._lines.failed(self._what, str(error))

    # --- the thread ---

    def _run(self) -> None:
        driver = self._driver
        while True:
            with driver.changed:
                if not driver.running:
                    return
                question = self._question()
                if question is None:
                    driver.changed.wait(AGAIN_S)
                    continue
                sent_us = boot_us()
            try:
                if not self._exchange(*question, sent_us):
                    self._pause()
                self._lines.works(self._what)
            except DiskAccessError as error:
                self._lines.failed(self._what, str(error))
                self._pause()
            except PywanError as error:
                log.debug("locator %s: the coordinator does not send its records: %s", self._choice.name, error)
                self._pause()
            except Exception as error:
                self._lines.failed(self._what, told_error(error))
                self._pause()

    def _pause(self) -> None:
        with self._driver.changed:
            self._take_over_if_due()
            if self._driver.running:
                self._driver.changed.wait(AGAIN_S)

    def _question(self) -> tuple[Address, dict[str, Any]] | None:
        """Returns the next poll and its address. None: this locator coordinates or ends, or does not know the
        coordinator. The caller holds the lock."""
        choice = self._choice
        if choice.leads or not choice.coordinator or not self._asks:
            self.close()
            return None
        try:
            takeover = self._open()
        except DiskAccessError as error:
            self._lines.failed(self._what, str(error))
            return None
        self._take_over_if_due()
        try:
            where = parse_locators(choice.address)[0]
        except (ConfigurationError, IndexError):
            return None
        return where, {
            "locator": choice.name,
            "address": str(self._address()),
            "nonce": self._claims.nonce,
            "term": choice.term,
            "stored": encoding.plain_decision_id(takeover.newest),
            "records_term": takeover.term,
            "is_standby": takeover.is_standby,
        }

    def _exchange(self, where: Address, fields: dict[str, Any], sent_us: int) -> bool:
        """Polls once. Returns whether the coordinator has answered."""
        reply = self._call(where, fields)
        data = reply.get("records")
        store = None if data is None else records_of(plain.unpack(data))
        choice, takeover = self._choice, self._takeover
        with self._driver.changed:
            if takeover is None or self._takeover is not takeover or choice.leads or not self._driver.running:
                return False
            term = encoding.term_of(reply.get("term"))
            if reply.get("lead") is True and reply.get("decides") is not True and term == choice.term + 1:
                log.info("locator %s takes over from locator %s, which ends", choice.name, choice.coordinator)
                self._lead()
                if not choice.leads:
                    return False
                thanks = {**fields, "term": choice.term, "leads": True}
            elif reply.get("decides") is not True or term < choice.term:
                return False
            else:
                self._take(reply, store, term, sent_us)
                return True
        self._call(where, thanks)
        return True

    def _take(self, reply: dict[str, Any], store: Store | None, term: int, sent_us: int) -> None:
        choice, takeover = self._choice, self._takeover
        assert takeover is not None and self._journal is not None
        choice.identity = encoding.identity_of(reply.get("site_identity", choice.identity))
        choice.term = term
        takeover.received(sent_us)
        if store is not None:
            if store.term != term:
                raise ProtocolError(f"records of term {store.term} come from a coordinator of term {term}")
            is_whole = reply.get("whole") is True
            self._journal.append(store, is_whole=is_whole)
            takeover.stored(store, is_whole=is_whole)

    def _call(self, where: Address, fields: dict[str, Any]) -> dict[str, Any]:
        with self._driver.changed:
            client = self._client
            if client is None or client.address != where:
                if client is not None:
                    client.close()
                client = self._client = ControlClient(where, ANSWER_TIMEOUT_S, what="locator", way=self._way)
        reply = client.call(MIRROR, version=versions.VERSION, **fields)
        versions.agreed(reply.get("version"), f"locator {where}", f"locator {self._choice.name}")
        return reply

    # --- the file ---

    def _open(self) -> Takeover:
        """Opens the file, and reads all records."""
        if self._takeover is not None:
            return self._takeover
        assert self._folder is not None
        make_folder(self._folder)
        takeover = Takeover(
            self._choice.name,
            member_timeout_us=self._driver.member_timeout_us,
            draw_round=lambda: 1 + secrets.randbelow(ROUND_MAX),
            now_us=boot_us(),
        )
        journal = Journal(self._folder / JOURNAL_FILE)
        try:
            for store in journal.read():
                takeover.stored(store, is_whole=True)
                self._choice.term = max(self._choice.term, store.term)
        except BaseException:
            journal.close()
            raise
        self._journal, self._takeover = journal, takeover
        return takeover

    def close(self) -> None:
        """Closes the file: the driver opens the file, or the locator ends."""
        if self._journal is not None:
            self._journal.close()
        self._journal = self._takeover = None
