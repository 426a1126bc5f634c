"""Coordinator discovery: a locator's knowledge of the coordinator of its site.

A state machine without sockets, files or clock. The first locator of a new site coordinates; all later locators keep
the coordinator's name.
"""

from __future__ import annotations

import enum
import logging
from typing import Any, NamedTuple

from pywan.base.lines import Lines
from pywan.base.names import check_name
from pywan.coordination import encoding
from pywan.coordination.claims import CLAIM_FILE, JOURNAL_FILE, MAX_CHARACTERS
from pywan.errors import ProtocolError

log = logging.getLogger("pywan.coordinator")

RIVAL_US = 15_000_000  # A locator without contact for this time is a rival no longer.


class Step(enum.Enum):
    """The action of a locator after a message."""

    LEAD = "lead"  # Coordinate from now on, and confirm by `Choice.lead`.
    FOLLOW = "follow"  # Another locator coordinates: close the own coordinator.


class Named(NamedTuple):
    """The coordinator, as a locator names itself, or names the locator that has asked."""

    name: str
    address: str  # The address of the answer. Empty: this locator itself.
    identity: str
    decided: bool  # The coordinator has decided something. Then it gives way only to a coordinator of a later term.
    term: int = 0


class Choice:
    """Not thread-safe.

    Args:
        name: The locator's name.
        site: The site's id.
        recovers: This locator replaces a permanently lost locator. The metadata come from the members.
    """

    def __init__(self, name: str, site: int, *, recovers: bool) -> None:
        self.name, self.site, self.recovers = name, site, recovers
        self.coordinator = ""  # The name of the coordinating locator. Empty: not known yet.
        self.address = ""
        self.identity = ""
        # How often the coordination was taken over, as far as this locator knows. The locator of the latest term
        # coordinates.
        self.term = 0
        self._conflict = ""  # Two locators claim to coordinate.
        # A coordinator is named by locators, and has not answered this locator yet.
        self._unanswered = ""
        self._lines = Lines(log)
        # A rival claims to coordinate too, and both locators have decided something: the rival's name, the problem, and
        # the time of the claim.
        self._rival_name, self.rival, self._rival_us = "", "", 0

    @property
    def leads(self) -> bool:
        """Whether this locator coordinates."""
        return self.coordinator == self.name

    @property
    def problem(self) -> str:
        return self.rival or self._conflict or self._unanswered

    def lead(self, address: str, term: int | None = None) -> None:
        """Notes that this locator coordinates from now on. `term`: the locator's own term, after a takeover."""
        self.coordinator, self.address = self.name, address
        self.term = self.term if term is None else term
        self._rival_name = self.rival = self._conflict = ""

    def give_lead(self, name: str, address: str) -> None:
        """Notes that the locator `name` coordinates from now on. This locator has coordinated, and hands over."""
        self.coordinator, self.address, self.term = name, address, self.term + 1

    def leads_among(self, undecided: list[str], named: str) -> bool:
        """Whether this locator is to coordinate.

        Args:
            undecided: The locators that know no coordinator.
            named: In words: a second locator names a third as coordinator. Empty: no such claim. The claim may be
                right, so no locator begins a second site beside the third, even if the third is unreachable.
        """
        self._unanswered = "" if self.coordinator else named
        return not self.coordinator and not named and self.name < min(undecided, default=self.name + "\0")

    def claim(self, *, has_decided: bool) -> dict[str, Any]:
        """Returns the claim for members and other locators (`pywan.coordination.claims`)."""
        return {
            "locator": self.name,
            "site": self.site,
            "coordinator": self.coordinator,
            "coordinator_address": self.address,
            "site_identity": self.identity,
            "term": self.term,
            "decided": has_decided or (self.coordinator not in ("", self.name)),
            "recovers": self.recovers,
        }

    # --- claims of locators ---

    def take_answer(self, answer: dict[str, Any], asked_at: str, *, has_decided: bool, now_us: int) -> Step | None:
        """Takes the answer of a locator to a question of this locator. ProtocolError: the answer cannot be used.

        The answer is believed about its sender: the sender coordinates, and is reached at the asked address. The answer
        is also used if the named coordinator is this locator, which perhaps has lost its folder. A claim about a third
        locator has to come from the third locator itself.

        Args:
            answer: The claim (`pywan.coordination.claims`).
            asked_at: The address at which the locator was asked.
            has_decided: Whether the coordinator of this locator has decided something.
            now_us: The time.
        """
        name, identity = answer.get("coordinator"), answer.get("site_identity")
        if answer.get("site") != self.site or not name:
            return None
        name = check_name(name, "a coordinator", ProtocolError)
        locator = check_name(answer.get("locator"), "a locator", ProtocolError)
        if not isinstance(identity, str) or len(identity) > MAX_CHARACTERS:
            raise ProtocolError(f"what locator {locator} says of the coordinator {name} cannot be used")
        term = encoding.term_of(answer.get("term", 0))
        told = Named(name, asked_at if name == locator else "", identity, answer.get("decided") is True, term)
        if term > self.term and name == self.name and locator == self.coordinator and identity == self.identity:
            self.term = term  # The coordinator has handed over, and this locator has not received the answer.
            return Step.LEAD
        self._see_rival(locator, told, has_decided=has_decided, now_us=now_us)
        if name not in (locator, self.name):
            return None
        recovers = answer.get("recovers") is True and locator == name
        return self._receive(told, has_decided=has_decided, recovers=recovers, now_us=now_us)

    def _receive(self, told: Named, *, has_decided: bool, recovers: bool, now_us: int) -> Step | None:
        """`recovers`: the sender replaces a lost locator.

        A locator without metadata records gives way. A locator with metadata records never gives way: an operator has
        to choose.
        """
        mine, name = self.coordinator, told.name
        if told.term > self.term and self.identity in ("", told.identity):
            if name == self.name:  # This locator has coordinated, and has lost its file.
                self.term = told.term
            elif mine == self.name and self.recovers:
                self.term = told.term + 1  # An operator has said so.
                return None
            elif told.decided:
                return self._follow(told, now_us)
        elif told.term < self.term and told.identity == self.identity:
            return None  # The sender does not know of the takeover yet.
        if name == mine:
            self._conflict = ""
            known = (self.address, self.identity or told.identity)
            is_news = name != self.name and (told.address, told.identity) != known
            return self._follow(told, now_us) if is_news else None
        if not mine:
            return Step.LEAD if name == self.name else self._follow(told, now_us)
        gives_way = mine == self.name and not has_decided and not self.recovers
        if gives_way and (told.decided or name < self.name):
            return self._follow(told, now_us)
        if recovers and self.name not in (mine, name):
            return self._follow(told, now_us)  # An operator has said so.
        if self.recovers and not has_decided:
            self._conflict = ""  # Other locators still name the lost locator.
        elif told.decided and name not in (self.name, self._rival_name):
            self._note_conflict(told, now_us)
        return None

    def _follow(self, told: Named, now_us: int) -> Step:
        self.coordinator, self.address, self.identity = told.name, told.address, told.identity
        self.term = max(told.term, self.term)
        self._rival_name = self.rival = self._conflict = ""
        self._lines.info(
            "locator %s: locator %s coordinates site %d",
            self.name,
            told.name,
            self.site,
            once=(told.name, "coordinates"),
            now_us=now_us,
        )
        return Step.FOLLOW

    def _note_conflict(self, told: Named, now_us: int) -> None:
        conflict = (
            f"locator {self.coordinator} coordinates site {self.site} as far as this locator knows, and locator"
            f" {told.name} ({told.address}) as it says itself; stop one of them, remove"
            f" {CLAIM_FILE} and {JOURNAL_FILE} from its folder, and start it again"
        )
        self._conflict = conflict
        self._lines.error("locator %s: %s", self.name, conflict, once=(told.name, "conflict"), now_us=now_us)

    # --- a rival ---

    def _see_rival(self, locator: str, told: Named, *, has_decided: bool, now_us: int) -> None:
        is_rival = told.decided and told.name == locator and self.leads and has_decided
        is_rival = is_rival and (told.term == self.term or told.identity != self.identity)
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
            once = (told.name, "rival")
            self._lines.error("locator %s admits no new members: %s", self.name, rival, once=once, now_us=now_us)
        self._rival_name, self.rival, self._rival_us = told.name, rival, now_us

    def forget_old_rival(self, now_us: int) -> None:
        if now_us > self._rival_us + RIVAL_US:
            self._rival_name = self.rival = ""
