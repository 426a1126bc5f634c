"""Owns a locator's coordinator discovery: the locator asks its peers for the coordinator, and keeps the answer in a
file."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pywan.base.addresses import Address
from pywan.base.clocks import boot_us
from pywan.base.files import FileError, parse_json, read_regular, write_whole
from pywan.base.names import check_name, is_name, quoted
from pywan.base.nonces import draw_nonce, fits, mark_of
from pywan.base.threads import start_essential
from pywan.coordination import encoding
from pywan.coordination.choice import Choice, Step
from pywan.coordination.claims import CLAIM_FILE
from pywan.coordination.tables import TERM_MAX
from pywan.errors import ConfigurationError, DiskAccessError, ProtocolError, PywanError
from pywan.site.coordinator_driver import CoordinatorDriver
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way

log = logging.getLogger("pywan.coordinator")

MAX_CLAIM_BYTES = 64 * 1024
PEERS_TIMEOUT_S = 1.0  # The limit for a question to a peer.
PEERS_INTERVAL_S = 5.0
UNDECIDED_S = 0.2  # The interval of questions while no locator coordinates.
HINT_GAP_S = 1.0  # The shortest interval of questions after hints (requests with a different claim).
STOP_TIMEOUT_S = 5.0
RECOVERY_TERMS = 1000  # An operator's decision outranks takeovers unknown to this locator.
MARKS_MAX = 256  # More than the locators of a site.


class Round(NamedTuple):
    """The result of one round of questions to all peers."""

    undecided: list[str]  # The names of locators without a coordinator.
    named: str  # In words: a named coordinator without an answer of its own. Empty: none.


class LocatorClaims:
    """A locator believes a peer's answers to its own questions, sent to the peer's address, and no statement in a
    request. The addresses come from the configuration, and from earlier answers of locators (docs/decisions/0020).

    The driver's lock guards the choice. Changes of the choice open and close the driver's coordinator.

    Args:
        folder: The locator's folder. None: the locator asks the peers again after every start.
        peers: Returns the addresses of the site's other locators.
        address: Returns this locator's address.
        way: Connects to locators.
    """

    def __init__(
        self,
        choice: Choice,
        driver: CoordinatorDriver,
        *,
        folder: Path | None,
        peers: Callable[[], list[Address]],
        address: Callable[[], Address],
        way: Way = PLAIN.locator,
    ) -> None:
        self._choice, self._driver = choice, driver
        self._file = None if folder is None else folder / CLAIM_FILE
        self._peers, self._address, self._way = peers, address, way
        self._thread: threading.Thread | None = None
        self._nonce = draw_nonce()  # Proves this locator to peers when asking for records.
        # By answering locator of this site, name and address: the digest of the locator's nonce.
        self._answered: dict[tuple[str, str], bytes] = {}
        self._has_asked = False  # All peers were asked once, unreachable peers included.
        self._is_hinted = False  # A request had a claim different from the own one.
        self._asked_us = 0  # The time of the last questions.

    def begin(self) -> None:
        """Reads the coordinator's name from the file. If the name is this locator's, the coordinator begins. Raises
        ConfigurationError if the file cannot be used. The caller holds the lock."""
        if self._file is not None and self._file.exists():
            self._read(self._file)
        choice = self._choice
        if choice.recovers:
            choice.term = min(choice.term + RECOVERY_TERMS, TERM_MAX)
            log.warning(
                "locator %s coordinates site %d from now on, in place of %s: the metadata come from the members",
                choice.name,
                choice.site,
                choice.coordinator or "any other locator",
            )
            self._lead()
            assert self._driver.core is not None
            self._driver.core.standbys.forget()
        elif choice.leads:
            self._driver.open()

    def start(self) -> None:
        name = self._choice.name
        self._thread = start_essential(f"locator {name} cannot coordinate", f"locator {name}-coordinators", self._run)

    def stop(self) -> None:
        """Waits for the end of the thread. The driver has stopped, or will stop now."""
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    # --- received claims ---

    def claim(self) -> dict[str, Any]:
        """Returns the locator's claim for members and peers."""
        address = str(self._address())
        with self._driver.changed:
            told = self._choice.claim(has_decided=self._driver.has_decided)
        return {**told, "address": address, "mark": mark_of(self._nonce).hex()}

    @property
    def nonce(self) -> bytes:
        """Proves a request to peers: the claim has the digest of this nonce."""
        return self._nonce

    def has_answered(self, locator: str, address: str, nonce: bytes | None) -> bool:
        """Whether the locator has answered at the address, and has asked with the nonce of its claim. If not, the
        locators are asked soon. The caller holds the lock."""
        if fits(self._answered.get((locator, address), b""), nonce):
            return True
        self.hint()
        return False

    def hint(self) -> None:
        """A process knows of a later term. The caller holds the lock."""
        if not self._is_hinted:
            self._is_hinted = True
            self._driver.changed.notify_all()

    def take_over(self, term: int) -> None:
        """Makes this locator the coordinator. The new term is on the disk before the first metadata record.
        DiskAccessError: the file cannot be written, and the locator does not coordinate. The caller holds the lock."""
        choice, before = self._choice, (self._choice.coordinator, self._choice.address, self._choice.term)
        choice.lead(str(self._address()), term)
        try:
            self._write(is_needed=True)
        except DiskAccessError:
            choice.coordinator, choice.address, choice.term = before
            raise
        self._lead()

    def give_lead(self, name: str, address: str) -> None:
        """Makes a peer the coordinator. This locator never coordinates again in its present term. The caller holds the
        lock."""
        choice, before = self._choice, (self._choice.coordinator, self._choice.address, self._choice.term)
        choice.give_lead(name, address)
        try:
            self._write(is_needed=True)
        except DiskAccessError:
            choice.coordinator, choice.address, choice.term = before
            raise
        self._driver.close()

    def receive_request(self, request: dict[str, Any]) -> None:
        """A process asks for the coordinator, and names one itself. The name is a hint only: the peers are asked
        sooner."""
        told = request.get("coordinator"), request.get("site_identity")
        with self._driver.changed:
            if told[0] and told != (self._choice.coordinator, self._choice.identity):
                self.hint()

    def receive_from_member(self, coordinator: str) -> str:
        """A joining member names the coordinator of its site. Returns the reason to refuse the member; empty: no
        reason.

        This locator has written no metadata record, and the named coordinator perhaps has. The locator does not give
        way to the word of a member: any process could claim to be a member. The caller holds the lock.
        """
        choice = self._choice
        if not choice.coordinator and coordinator == choice.name and self._has_asked:
            self._lead()  # The locator's folder was lost, and no peer knows better.
        if self._driver.has_decided or choice.recovers or coordinator == choice.coordinator:
            return ""
        return (
            f"the member names {coordinator} as the coordinator of its site, and locator {choice.name} has decided"
            f" nothing yet: start locator {coordinator}, or make locator {choice.name} its successor (`start locator"
            " --recover-from-members`)"
        )

    def _do(self, step: Step | None) -> None:
        if step is Step.LEAD:
            self._lead()
        elif step is Step.FOLLOW:
            self._driver.close()
            self._write()

    def _lead(self) -> None:
        choice = self._choice
        choice.lead(str(self._address()))
        self._driver.open()
        self._write()
        self._driver.changed.notify_all()
        log.info("locator %s coordinates site %d", choice.name, choice.site)

    def _run(self) -> None:
        """Asks the peers for the coordinator: often until a locator coordinates, and every PEERS_INTERVAL_S
        afterwards."""
        choice, driver = self._choice, self._driver
        while True:
            asked = self._ask_peers()
            with driver.changed:
                if not driver.running:
                    return
                self._has_asked = True
                choice.forget_old_rival(boot_us())
                if choice.leads_among(asked.undecided, asked.named):
                    try:
                        self._lead()
                    except DiskAccessError as error:
                        driver.fail(error)
                wait_s = PEERS_INTERVAL_S if choice.coordinator else UNDECIDED_S
                driver.changed.wait_for(lambda: not driver.running or self._is_hinted, wait_s)
                gap_s = HINT_GAP_S - (boot_us() - self._asked_us) / 1e6
                if self._is_hinted and gap_s > 0:
                    driver.changed.wait_for(lambda: not driver.running, gap_s)
                if not driver.running:
                    return

    def _ask_peers(self) -> Round:
        with self._driver.changed:
            self._is_hinted, self._asked_us = False, boot_us()
        answers: list[tuple[Address, dict[str, Any]]] = []
        for address in self._peers():
            try:
                answer = call_once(address, "coordination-who", timeout=PEERS_TIMEOUT_S, way=self._way)
                answers.append((address, answer))
            except PywanError as error:
                log.debug("locator %s: %s does not say who coordinates: %s", self._choice.name, address, error)
        with self._driver.changed:
            term = self._choice.term
            for address, answer in _at_one_address_each(answers):
                has_decided = self._driver.has_decided
                self._note_mark(answer)
                try:
                    self._do(self._choice.take_answer(answer, str(address), has_decided=has_decided, now_us=boot_us()))
                except ProtocolError as error:
                    log.debug("locator %s: %s does not say who coordinates: %s", self._choice.name, address, error)
                except DiskAccessError as error:
                    self._driver.fail(error)
            if self._choice.term != term:
                self._write()
        ours = [answer for _, answer in answers if answer.get("site") == self._choice.site]
        return Round([str(each.get("locator")) for each in ours if not each.get("coordinator")], self._named_in(ours))

    def _note_mark(self, answer: dict[str, Any]) -> None:
        """Notes the claim of a locator of this site. The answer came from the asked address, so the locator's
        statements about itself are believed."""
        locator, address, mark = answer.get("locator"), answer.get("address"), answer.get("mark")
        if answer.get("site") != self._choice.site or not is_name(locator) or not isinstance(address, str):
            return
        with contextlib.suppress(ValueError, TypeError):
            if len(self._answered) >= MARKS_MAX:
                self._answered.clear()
            self._answered[locator, address] = bytes.fromhex(mark)  # type: ignore[arg-type]

    def _named_in(self, answers: list[dict[str, Any]]) -> str:
        """Returns in words a coordinator named in the answers, without an answer of its own."""
        received = {str(each.get("locator")) for each in answers if each.get("coordinator") == each.get("locator")}
        for each in answers:
            name = each.get("coordinator")
            if is_name(name) and name not in (*received, self._choice.name):
                return (
                    f"locator {quoted(each.get('locator'))} names {name} as the coordinator of site"
                    f" {self._choice.site}, and that has not answered locator {self._choice.name}"
                )
        return ""

    # --- the file ---

    def _read(self, file: Path) -> None:
        choice = self._choice
        try:
            value = parse_json(read_regular(file, MAX_CLAIM_BYTES, follow=False).data.decode())
            choice.coordinator = check_name(value["coordinator"], "a locator")
            choice.address = str(value.get("address", ""))
            choice.identity = str(value.get("site_identity", ""))
            choice.term = encoding.term_of(value.get("term", 0))
        except (FileError, OSError, ValueError, KeyError, TypeError, AttributeError, PywanError) as error:
            raise ConfigurationError(
                f"locator {choice.name}: {file} cannot be used: {error}; repair it, or move it away: the locator then"
                " asks the other locators of the site"
            ) from None

    def _write(self, *, is_needed: bool = False) -> None:
        """Keeps the coordinator's name over restarts. `is_needed`: a failure raises DiskAccessError."""
        choice = self._choice
        if self._file is None:
            return
        told = {
            "coordinator": choice.coordinator,
            "address": choice.address,
            "site_identity": choice.identity,
            "term": choice.term,
        }
        try:
            write_whole(self._file, json.dumps(told).encode())
        except OSError as error:
            if is_needed:
                raise DiskAccessError(f"{self._file} cannot be written: {error.strerror}") from None
            self._driver.problem = f"{self._file} cannot be written: {error.strerror}"
            log.error("locator %s: %s; a restart forgets the coordinator", choice.name, self._driver.problem)


def _at_one_address_each(answers: list[tuple[Address, dict[str, Any]]]) -> list[tuple[Address, dict[str, Any]]]:
    """Returns each answer once. A locator may be configured by one address and claim a second address. If both were
    asked, the answer from the claimed address wins, so that the result is stable."""
    found: dict[tuple[str, str, str], tuple[Address, dict[str, Any]]] = {}
    for address, answer in answers:
        key = str(answer.get("locator")), str(answer.get("coordinator")), str(answer.get("site_identity"))
        if key not in found or str(address) == answer.get("coordinator_address"):
            found[key] = address, answer
    return list(found.values())
