"""Owns how a locator finds out who coordinates its site: it asks the others, and keeps the answer in a file."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pywan.base.addresses import Address
from pywan.base.clocks import boot_us
from pywan.base.files import FileError, read_regular, write_whole
from pywan.base.names import check_name
from pywan.base.threads import start_essential
from pywan.coordination.choice import Choice, Named, Step
from pywan.coordination.claims import CLAIM_FILE
from pywan.errors import ConfigurationError, DiskAccessError, PywanError
from pywan.site.coordinator_driver import CoordinatorDriver
from pywan.transport.control import call_once

log = logging.getLogger("pywan.coordinator")

MAX_CLAIM_BYTES = 64 * 1024
PEERS_TIMEOUT_S = 1.0  # The limit for asking another locator who coordinates.
PEERS_INTERVAL_S = 5.0
UNDECIDED_S = 0.2  # So soon others are asked again while nobody coordinates.
STOP_TIMEOUT_S = 5.0


class LocatorClaims:
    """The driver's lock guards the choice. It opens and closes the driver's coordinator as the choice falls.

    Args:
        folder: The locator's folder. None: the locator asks the others again after each start.
        peers: Returns the addresses of the site's other locators.
        address: Returns this locator's address.
    """

    def __init__(
        self,
        choice: Choice,
        driver: CoordinatorDriver,
        *,
        folder: Path | None,
        peers: Callable[[], list[Address]],
        address: Callable[[], Address],
    ) -> None:
        self._choice, self._driver = choice, driver
        self._file = None if folder is None else folder / CLAIM_FILE
        self._peers, self._address = peers, address
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Reads who coordinates. If it is this locator, the coordinator begins. ConfigurationError if the file cannot
        be used. The caller holds the lock."""
        if self._file is not None and self._file.exists():
            self._read(self._file)
        choice = self._choice
        if choice.recovers:
            log.warning(
                "locator %s coordinates site %d from now on, in place of %s: the members tell what was decided",
                choice.name,
                choice.site,
                choice.coordinator or "any other locator",
            )
            self._lead()
        elif choice.leads:
            self._driver.open()

    def start(self) -> None:
        name = self._choice.name
        self._thread = start_essential(f"locator {name} cannot coordinate", f"locator {name}-coordinators", self._run)

    def stop(self) -> None:
        """Waits for the end of the thread. The driver has stopped, or is about to."""
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    # --- what is heard ---

    def claim(self) -> dict[str, Any]:
        """Returns what this locator tells others."""
        with self._driver.changed:
            return self._choice.claim(has_decided=self._driver.has_decided)

    def take_claim(self, claim: dict[str, Any]) -> None:
        """Takes what another locator says."""
        with self._driver.changed:
            has_decided = self._driver.has_decided
            self._do(self._choice.take_claim(claim, has_decided=has_decided, now_us=boot_us()))

    def hear_member(self, coordinator: str, site_identity: str) -> None:
        """A member knows who coordinates. The caller holds the lock."""
        if not self._driver.has_decided and coordinator != self._choice.coordinator:
            self._do(self._choice.hear(Named(coordinator, "", site_identity, decided=True), has_decided=False))

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
        """Asks the other locators who coordinates: at the start until somebody does, and later now and then."""
        choice, driver = self._choice, self._driver
        while True:
            undecided = self._ask_peers()
            with driver.changed:
                if not driver.running:
                    return
                choice.forget_old_rival(boot_us())
                if choice.leads_among(undecided):
                    try:
                        self._lead()
                    except DiskAccessError as error:
                        driver.fail(error)
                wait_s = PEERS_INTERVAL_S if choice.coordinator else UNDECIDED_S
                driver.changed.wait_for(lambda: not driver.running, wait_s)
                if not driver.running:
                    return

    def _ask_peers(self) -> list[str]:
        """Returns the names of those that do not know who coordinates."""
        undecided = []
        for address in self._peers():
            try:
                reply = call_once(address, "coordination-who", timeout=PEERS_TIMEOUT_S, **self.claim())
                self.take_claim(reply)
                if not reply.get("coordinator") and reply.get("site") == self._choice.site:
                    undecided.append(str(reply.get("locator")))
            except PywanError as error:
                log.debug("locator %s: %s does not say who coordinates: %s", self._choice.name, address, error)
        return undecided

    # --- the file ---

    def _read(self, file: Path) -> None:
        choice = self._choice
        try:
            value = json.loads(read_regular(file, MAX_CLAIM_BYTES, follow=False).data.decode())
            choice.coordinator = check_name(value["coordinator"], "a locator")
            choice.address = str(value.get("address", ""))
            choice.identity = str(value.get("site_identity", ""))
        except (FileError, OSError, ValueError, KeyError, TypeError, AttributeError, PywanError) as error:
            raise ConfigurationError(
                f"locator {choice.name}: {file} cannot be used: {error}; repair it, or move it away: the locator then"
                " asks the other locators of the site"
            ) from None

    def _write(self) -> None:
        """Keeps the coordinator's name over restarts."""
        choice = self._choice
        if self._file is None:
            return
        told = {"coordinator": choice.coordinator, "address": choice.address, "site_identity": choice.identity}
        try:
            write_whole(self._file, json.dumps(told).encode())
        except OSError as error:
            self._driver.problem = f"{self._file} cannot be written: {error.strerror}"
            log.error("locator %s: %s; it does not remember who coordinates", choice.name, self._driver.problem)
