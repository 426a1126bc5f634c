"""Owns which locator coordinates a site, as one of its locators knows it.

A state machine without sockets, files or clock. The first locator that a site starts with coordinates; all others keep
its name.
"""

from __future__ import annotations

import enum
import logging
from typing import Any, NamedTuple

from pywan.base.names import check_name
from pywan.coordination.claims import CLAIM_FILE, JOURNAL_FILE, MAX_CHARACTERS
from pywan.errors import ProtocolError

log = logging.getLogger("pywan.coordinator")

RIVAL_US = 15_000_000  # A locator that was not heard for so long is no rival any more.


class Step(enum.Enum):
    """What a locator does after it has heard something."""

    LEAD = "lead"  # It coordinates from now on, and says so by `Choice.lead`.
    FOLLOW = "follow"  # Another one coordinates: it closes what it has.


class Named(NamedTuple):
    """Who coordinates, as somebody says."""

    name: str
    address: str  # Empty: it was not told.
    identity: str
    decided: bool  # It has decided something. Nobody gives way then.


class Choice:
    """Not thread-safe.

    Args:
        name: The locator's name.
        site: The site's id.
        recovers: This locator takes the place of one that is gone for good. What was decided comes from the members.
    """

    def __init__(self, name: str, site: int, *, recovers: bool) -> None:
        self.name, self.site, self.recovers = name, site, recovers
        self.coordinator = ""  # The name of the locator that coordinates. Empty: nobody knows yet.
        self.address = ""
        self.identity = ""
        self._conflict = ""  # Two locators claim to coordinate.
        # Another locator says that it coordinates too, and both have decided: its name, what is wrong, and when it
        # said so.
        self._rival_name, self.rival, self._rival_us = "", "", 0

    @property
    def leads(self) -> bool:
        """Whether this locator coordinates."""
        return self.coordinator == self.name

    @property
    def problem(self) -> str:
        return self.rival or self._conflict

    def lead(self, address: str) -> None:
        """The locator coordinates from now on."""
        self.coordinator, self.address = self.name, address

    def leads_among(self, undecided: list[str]) -> bool:
        """Whether this locator is to coordinate. `undecided`: the others that do not know who does."""
        return not self.coordinator and self.name < min(undecided, default=self.name + "\0")

    def claim(self, *, has_decided: bool) -> dict[str, Any]:
        """Returns who coordinates, as members and other locators are told (`pywan.coordination.claims`)."""
        return {
            "locator": self.name,
            "site": self.site,
            "coordinator": self.coordinator,
            "coordinator_address": self.address,
            "site_identity": self.identity,
            "decided": has_decided or (self.coordinator not in ("", self.name)),
            "recovers": self.recovers,
        }

    # --- what others say ---

    def take_claim(self, claim: dict[str, Any], *, has_decided: bool, now_us: int) -> Step | None:
        """Takes what another locator says (`claim`). ProtocolError: it cannot be used."""
        name, address = claim.get("coordinator"), claim.get("coordinator_address")
        identity, locator = claim.get("site_identity"), str(claim.get("locator"))
        if claim.get("site") != self.site or not name:
            return None
        check_name(name, "a coordinator", ProtocolError)
        is_text = isinstance(address, str) and isinstance(identity, str)
        if not is_text or len(str(address)) + len(str(identity)) > MAX_CHARACTERS:
            raise ProtocolError(f"what a locator says of the coordinator {name} cannot be used")
        named = Named(str(name), str(address), str(identity), claim.get("decided") is True)
        self._see_rival(locator, named, has_decided=has_decided, now_us=now_us)
        return self.hear(named, has_decided=has_decided, recovers=claim.get("recovers") is True and locator == name)

    def hear(self, told: Named, *, has_decided: bool, recovers: bool = False) -> Step | None:
        """Another locator, or a member, says who coordinates. `recovers`: that locator takes the place of another one.

        A locator that has decided nothing gives way. Nobody gives way who has: an operator has to say which one goes.
        """
        mine, name = self.coordinator, told.name
        if name == mine:
            self._conflict = ""
            known = (self.address, self.identity or told.identity)
            is_news = bool(told.address) and name != self.name and (told.address, told.identity) != known
            return self._follow(told) if is_news else None
        if not mine:
            return Step.LEAD if name == self.name else self._follow(told)
        gives_way = mine == self.name and not has_decided and not self.recovers
        if gives_way and (told.decided or name < self.name):
            return self._follow(told)
        if recovers and self.name not in (mine, name):
            return self._follow(told)  # An operator has said so.
        if self.recovers and not has_decided:
            self._conflict = ""  # Others still name the locator that is gone.
        elif told.decided and name not in (self.name, self._rival_name):
            self._note_conflict(told)
        return None

    def _follow(self, told: Named) -> Step:
        self.coordinator, self.address, self.identity = told.name, told.address, told.identity
        log.info("locator %s: locator %s coordinates site %d", self.name, told.name, self.site)
        return Step.FOLLOW

    def _note_conflict(self, told: Named) -> None:
        conflict = (
            f"locator {self.coordinator} coordinates site {self.site} as far as this locator knows, and locator"
            f" {told.name} ({told.address or 'address unknown'}) as others say; stop one of them, remove"
            f" {CLAIM_FILE} and {JOURNAL_FILE} from its folder, and start it again"
        )
        if conflict != self._conflict:
            self._conflict = conflict
            log.error("locator %s: %s", self.name, conflict)

    # --- a rival ---

    def _see_rival(self, locator: str, told: Named, *, has_decided: bool, now_us: int) -> None:
        is_rival = told.decided and told.name == locator and self.leads and has_decided
        if not is_rival or (told.name, told.identity) == (self.name, self.identity):
            if locator == self._rival_name:
                self._rival_name = self.rival = ""
            return
        rival = (
            f"locator {self.name} ({self.address}) coordinates site {self.site}, whose identity is"
            f" {self.identity}, and so does locator {told.name} ({told.address}), with the identity {told.identity};"
            f" stop one of them, remove {CLAIM_FILE} and {JOURNAL_FILE} from its folder, and start it again with the"
            " other one in its `locators`"
        )
        if rival != self.rival:
            log.error("locator %s takes no new members in: %s", self.name, rival)
        self._rival_name, self.rival, self._rival_us = told.name, rival, now_us

    def forget_old_rival(self, now_us: int) -> None:
        if now_us > self._rival_us + RIVAL_US:
            self._rival_name = self.rival = ""
