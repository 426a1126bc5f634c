"""Decides which locator may take over from a coordinator, and what the coordinator may do while a standby exists.

A site has one *standby*: a locator that stores each metadata record before any member receives the record. So a standby
knows every record that any member knows, and can take over. Records of the earlier coordinator after the takeover are
never propagated.

The coordinator can go on without its standby only if the standby cannot take over any more. A standby takes over when
all members of its records have promised to ask the earlier coordinator nothing. So the standby is out as soon as a
member has stored the record "the standby is out": the member then promises nothing. The standby is also out when the
standby has stored the record itself. Until then the coordinator makes no further record.

For example, n1 coordinates, n2 is the standby, and a and b are members. n2 is cut off. 2 s later n1 makes the record
"n2 is out", and sends the record to a. When a reports the record as stored, n1 goes on. If n1 reaches neither a nor b,
n1 waits: both may have promised, and n2 may have taken over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pywan.coordination.decisions import Decisions
from pywan.coordination.tables import DecisionId, Standby

BEHIND_US = 2_000_000  # A standby is out after so long without the newest record.
FRESH_US = 1_500_000  # A locator that has all records, and has reported so lately, may become the standby.


@dataclass(frozen=True, slots=True)
class Follower:
    """The report of a follower: a locator that also keeps the coordinator's records."""

    name: str
    address: str
    stored: DecisionId  # NO_DECISION: nothing.
    term: int  # The term in which the coordinator made the records.
    is_standby: bool = False  # The records name the follower as standby.


class Standbys:
    """A part of the coordinator. Only `Decisions.standby` is stored."""

    def __init__(self, site: Decisions, name: str, *, member_timeout_us: int, now_us: int) -> None:
        """`name`: the name of the coordinating locator."""
        self._site, self._name, self._member_timeout_us = site, name, member_timeout_us
        standby = site.standby
        # Name of the standby. Empty: no standby. After a takeover the records still name the present coordinator as
        # standby.
        self._bound = "" if standby is None or standby.name == name else standby.name
        self._has_answered = not self._bound  # The standby has confirmed that no later records exist.
        self._knows = bool(self._bound)  # The standby has stored the record of its naming.
        self._stored = 0  # The standby has stored all records up to this number.
        self._received_us = now_us  # Time of the standby's last report.
        self._owed: tuple[int, int] | None = None  # A record that the standby has yet to store, and since when.
        self._out_at: int | None = None  # The record "the standby is out", until the record is in effect.
        self._followers: dict[str, tuple[Follower, int]] = {}  # By name: last report of a follower, and its time.

    # --- questions ---

    @property
    def may_decide(self) -> bool:
        return self._has_answered and self._out_at is None

    @property
    def is_ending(self) -> bool:
        """Whether a record says that the standby is out, and is not in effect yet. Members get this record."""
        return self._out_at is not None

    def may_tell(self, number: int) -> bool:
        """Whether records up to this number may be propagated to any member."""
        return not self._bound or (self._has_answered and self._stored >= number)

    def may_tell_member(self, number: int) -> bool:
        """Whether records up to this number may be propagated to a member with earlier records."""
        return self.may_tell(number) or (self._out_at is not None and number <= self._out_at)

    @property
    def problem(self) -> str:
        """Returns why the coordinator makes no records now; empty: no problem."""
        if self.may_decide:
            return ""
        what = (
            "is unreachable, and no member has stored yet that the standby is out"
            if self._out_at is not None
            else "has not contacted this locator since the locator started"
        )
        return (
            f"locator {self._name} decides nothing, as its standby {self._bound} may have taken over: the standby"
            f" {what}; this locator goes on by itself after contact with the standby or a member; if locator"
            f" {self._bound} is gone for good, restart this locator with `start locator --recover-from-members`"
        )

    @property
    def has_followers(self) -> bool:
        """Whether any follower keeps the records too."""
        return bool(self._followers)

    def caught_up(self, now_us: int) -> list[Follower]:
        """Returns the locators in contact that have stored all records; if a standby exists, at most the standby."""
        found = [
            told
            for told, received_us in self._followers.values()
            if received_us > now_us - FRESH_US and told.term == self._site.term and told.stored == self._site.newest
        ]
        fit = [each for each in found if self._bound in ("", each.name)]
        return sorted(fit, key=lambda each: each.name) if self.may_decide else []

    def names_unknown(self, told: Follower) -> bool:
        """Whether the locator has stored a record of this coordinator that the coordinator does not know: the
        coordinator started from an older file."""
        return told.term == self._site.term and not self._site.made(told.stored)

    def status(self) -> dict[str, Any]:
        standby = self._site.standby
        is_named = standby is not None and not standby.is_out and standby.name == self._bound
        return {
            # The standby would not take over before the record of its naming is stored.
            "standby": self._bound if is_named and self._knows else "",
            "standby_stored": self._stored if self._bound else 0,
        }

    # --- events ---

    def receive(self, told: Follower, now_us: int) -> None:
        self._followers[told.name] = told, now_us
        if told.is_standby and self.names_unknown(told):
            self.note_unknown_standby(Standby(told.name, told.address))
        if told.name == self._bound:
            self._has_answered, self._received_us = True, now_us
            is_known = told.term == self._site.term and self._site.made(told.stored)
            self._knows = self._knows or (is_known and told.is_standby)
            self._stored = told.stored.number if is_known else 0
            if self._owed is not None and self._stored >= self._owed[0]:
                self._owed = None
            if self._out_at is not None and self._stored >= self._out_at:
                self._end()
        self.tick(now_us)

    def note_unknown_standby(self, standby: Standby) -> None:
        """The coordinator's file is older than the naming of this standby, and the standby may have taken over. The
        coordinator makes no records until the standby is in contact, or is out."""
        if not self._bound and not standby.is_out and standby.name != self._name:
            self._bound, self._has_answered, self._knows = standby.name, False, True
            self._site.set_standby(standby)

    def forget(self) -> None:
        """An operator declares that the standby is gone for good."""
        if self._bound:
            self._has_answered = True
            self._end()

    def receive_from_member(self, number: int, now_us: int) -> None:
        """A member of the view has stored all records up to this number."""
        if self._out_at is not None and number >= self._out_at:
            self._end()
            self.tick(now_us)

    def tick(self, now_us: int) -> None:
        for name, (_, received_us) in list(self._followers.items()):
            if received_us <= now_us - self._member_timeout_us:
                del self._followers[name]
        if self._out_at is not None or not self._has_answered:
            return
        if self._bound:
            self._see_standby(now_us)
            return
        fit = next(iter(self.caught_up(now_us)), None) if self._site.members else None
        if fit is not None:
            self._name_standby(fit, now_us)
        elif self._site.standby is not None:  # This locator was the standby itself.
            self._site.set_standby(None)

    def _see_standby(self, now_us: int) -> None:
        if self._owed is None and self._stored < self._site.number:
            self._owed = self._site.number, now_us
        is_late = self._owed is not None and now_us - self._owed[1] > BEHIND_US
        told = self._followers.get(self._bound)
        standby = self._site.standby
        assert standby is not None
        if is_late or now_us - self._received_us > self._member_timeout_us or not self._site.members or standby.is_out:
            # If no members are left, no member can store that the standby is out. So the standby is out before the last
            # member departs, or with the last member.
            self._site.set_standby(replace(standby, is_out=True))
            self._out_at = self._site.number
        elif told is not None and told[0].address != standby.address:
            self._site.set_standby(Standby(self._bound, told[0].address))

    def _name_standby(self, fit: Follower, now_us: int) -> None:
        self._stored, self._knows = self._site.number, False
        self._bound, self._received_us, self._owed = fit.name, now_us, None
        self._site.set_standby(Standby(fit.name, fit.address))

    def _end(self) -> None:
        """The standby cannot take over any more."""
        self._bound, self._out_at = "", None
        self._site.set_standby(None)

    def next_us(self) -> int | None:
        """The time of the next `tick`; None: nothing is due."""
        if not self._bound or self._out_at is not None or not self._has_answered:
            return None
        due_us = self._received_us + self._member_timeout_us
        return due_us + 1 if self._owed is None else min(due_us, self._owed[1] + BEHIND_US) + 1
