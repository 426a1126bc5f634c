"""Owns the requests by which followers store the coordinator's records, and the standby takes over.

A coordinator answers with the records that a follower is missing, and hands over when stopped. A standby receives
messages from members for which the coordinator is unreachable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pywan.base.clocks import boot_us
from pywan.base.nonces import nonce_of
from pywan.coordination import encoding, plain
from pywan.coordination.choice import Choice
from pywan.coordination.promise import round_of
from pywan.coordination.records import follower_of, plain_records
from pywan.coordination.standbys import Follower
from pywan.coordination.tables import NO_DECISION
from pywan.errors import DiskAccessError
from pywan.site.coordinator_driver import CoordinatorDriver
from pywan.site.locator_claims import LocatorClaims
from pywan.site.mirror import MIRROR, Mirror

log = logging.getLogger("pywan.coordinator")

HAND_OVER_S = 1.0  # The limit of a stopping coordinator's wait for its successor.


class StandbyRequests:
    """Any thread may use the object: the driver's lock guards the state of the coordination.

    Args:
        site: The site's id.
        poll_s: A poll without news is answered after so long.
    """

    def __init__(
        self,
        choice: Choice,
        driver: CoordinatorDriver,
        claims: LocatorClaims,
        mirror: Mirror,
        *,
        site: int,
        poll_s: float,
    ) -> None:
        self._choice, self._driver, self._claims, self._mirror = choice, driver, claims, mirror
        self._site, self._poll_s = site, poll_s
        self._changed, self._stored = driver.changed, driver.stored
        self._given_to = ""  # The chosen successor, until the successor coordinates.

    def handlers(self) -> dict[str, Callable[[dict[str, Any], tuple[Any, ...]], dict[str, Any]]]:
        return {MIRROR: self._on_mirror, "coordination-standby": self._on_standby}

    def hand_over(self) -> None:
        """Hands over to the standby; if the site has no standby, to a locator that has all records. This locator never
        coordinates again in its present term, so no other process has to agree."""
        deadline = time.monotonic() + HAND_OVER_S
        with self._changed:
            core, driver, name = self._driver.core, self._driver, self._choice.name
            if core is None or not driver.running or not self._choice.leads:
                return

            def fit() -> Follower | None:
                return next(iter(core.standbys.caught_up(boot_us())), None)

            if core.standbys.has_followers:
                self._stored.wait_for(lambda: driver.core is not core or fit() is not None, deadline - time.monotonic())
            to = fit()
            if driver.core is not core or to is None:
                return
            try:
                self._claims.give_lead(to.name, to.address)
            except DiskAccessError as error:
                log.error("locator %s does not hand over to locator %s: %s", name, to.name, error)
                return
            self._given_to = to.name
            log.info("locator %s hands the coordination of site %d over to locator %s", name, self._site, to.name)
            self._stored.notify_all()
            self._stored.wait_for(lambda: not self._given_to, deadline - time.monotonic())

    def _on_mirror(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """Answers a follower's poll: the follower names the newest stored record, and gets the missing records. The
        answer waits a little for news."""
        told, nonce = follower_of(request), nonce_of(request.get("nonce"))
        deadline = time.monotonic() + self._poll_s
        with self._changed:
            choice, driver = self._choice, self._driver
            if self._given_to == told.name and request.get("leads") is True:
                self._given_to = ""
                self._stored.notify_all()
            if encoding.term_of(request.get("term")) > choice.term:
                self._claims.hint()
            elif choice.leads and driver.core is not None:
                if not self._claims.has_answered(told.name, told.address, nonce):
                    return {"decides": False, "term": choice.term}
                core = driver.core
                core.receive_from_locator(told, boot_us())
                driver.act()
                driver.look()
                self._stored.wait_for(
                    lambda: core.site.newest != told.stored or driver.core is not core or not driver.running,
                    deadline - time.monotonic(),
                )
                if driver.core is core:
                    records = None
                    is_whole = False
                    if core.site.newest != told.stored or told.term != core.site.term:
                        stored = told.stored if told.term == core.site.term else NO_DECISION
                        records, is_whole = core.site.records(stored)
                    return {
                        "decides": True,
                        "term": choice.term,
                        "site_identity": core.site.identity,
                        "records": None if records is None else plain.pack(plain_records(records)),
                        "whole": is_whole,
                    }
            if self._given_to == told.name:
                return {"decides": False, "term": choice.term, "lead": True}
            return {"decides": False, "term": choice.term}

    def _on_standby(self, request: dict[str, Any], peer: tuple[Any, ...]) -> dict[str, Any]:
        """A member says that the coordinator is unreachable."""
        me, stored = encoding.incarnation_of(request.get("me")), encoding.decision_id_of(request.get("stored"))
        promised, nonce = round_of(request.get("promised")), nonce_of(request.get("nonce"))
        with self._changed:
            if self._choice.leads:
                return {"leads": True, "round": 0, "problem": "", "term": self._choice.term}
            reply = self._mirror.receive_from_member(
                me, nonce, stored, promised, is_leaving=request.get("leaves") is True
            )
            leads = self._choice.leads
            return {"leads": leads, "round": reply.round, "problem": reply.problem, "term": self._choice.term}
