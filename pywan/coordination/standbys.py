"""Owns which other locator may take over from a coordinator, and what the coordinator may do while one may.

A site has one *standby*: a locator that stores each decision before anybody hears of it. So a standby that takes over
knows all that anybody knows. What the coordinator decides after that is never told.

The coordinator can do without its standby only if that cannot take over any more. A standby takes over when all members
of its records have promised to ask the earlier coordinator nothing. So it is out as soon as one of them has stored that
it is: that member promises nothing. It is also out when it has stored that itself. Until then nothing else is decided.

For example, n1 coordinates, n2 is the standby, and a and b are members. n2 is cut off. 2 s later n1 decides that n2 is
out. n1 tells that to a. When a says that it has stored the decision, n1 goes on. If neither a nor b is heard, n1 waits:
both may have promised, and n2 may have taken over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pywan.coordination.decisions import Decisions
from pywan.coordination.tables import DecisionId, Standby

BEHIND_US = 2_000_000  # A standby that has not stored a decision for so long is out.
FRESH_US = 1_500_000  # A locator that was heard so long ago, and has all, may become the standby.


@dataclass(frozen=True, slots=True)
class Follower:
    """What a locator says that keeps the records of the coordinator too."""

    name: str
    address: str
    stored: DecisionId  # NO_DECISION: nothing.
    term: int  # Of the coordinator that made these records.
    is_standby: bool = False  # They say that it may take over.


class Standbys:
    """A part of the coordinator. Nothing of this is stored but `Decisions.standby`."""

    def __init__(self, site: Decisions, name: str, *, member_timeout_us: int, now_us: int) -> None:
        """`name`: of the locator that coordinates."""
        self._site, self._name, self._member_timeout_us = site, name, member_timeout_us
        standby = site.standby
        # Who may take over. Empty: nobody. The records of a standby that took over name it itself.
        self._bound = "" if standby is None or standby.name == name else standby.name
        self._is_heard = not self._bound  # This run knows from the standby that its own records are the newest.
        self._knows = bool(self._bound)  # The standby has stored that it is the standby.
        self._stored = 0  # The standby has stored all decisions up to this one.
        self._heard_us = now_us  # When it was heard last.
        self._owed: tuple[int, int] | None = None  # A decision that it has yet to store, and since when.
        self._out_at: int | None = None  # The decision by which it is out, as long as that is not in effect.
        self._followers: dict[str, tuple[Follower, int]] = {}  # By name: what each said last, and when.

    # --- questions ---

    @property
    def may_decide(self) -> bool:
        return self._is_heard and self._out_at is None

    @property
    def is_ending(self) -> bool:
        """Whether it is decided that the standby is out, and that is not in effect yet. Members are told."""
        return self._out_at is not None

    def may_tell(self, number: int) -> bool:
        """Whether decisions up to this one may be told to anybody."""
        return not self._bound or (self._is_heard and self._stored >= number)

    def may_tell_member(self, number: int) -> bool:
        """Whether they may be told to a member that was told earlier ones."""
        return self.may_tell(number) or (self._out_at is not None and number <= self._out_at)

    @property
    def problem(self) -> str:
        """Why nothing is decided now; empty: it is."""
        if self.may_decide:
            return ""
        what = (
            "is not heard, and no member has stored yet that it is out"
            if self._out_at is not None
            else "was not heard since this locator has started"
        )
        return (
            f"locator {self._name} decides nothing, as its standby {self._bound} may have taken over: that {what}; it"
            f" goes on by itself when they are heard; if locator {self._bound} is gone for good, restart this locator"
            " with `start locator --recover-from-members`"
        )

    @property
    def has_followers(self) -> bool:
        """Whether another locator keeps the records too."""
        return bool(self._followers)

    def caught_up(self, now_us: int) -> list[Follower]:
        """The locators that have stored all, and are heard; if there is a standby, no other one."""
        found = [
            told
            for told, heard_us in self._followers.values()
            if heard_us > now_us - FRESH_US and told.term == self._site.term and told.stored == self._site.newest
        ]
        fit = [each for each in found if self._bound in ("", each.name)]
        return sorted(fit, key=lambda each: each.name) if self.may_decide else []

    def names_unknown(self, told: Follower) -> bool:
        """Whether the locator has stored a decision of this coordinator that this run does not know: it has an older
        file."""
        return told.term == self._site.term and not self._site.made(told.stored)

    def status(self) -> dict[str, Any]:
        standby = self._site.standby
        is_named = standby is not None and not standby.is_out and standby.name == self._bound
        return {
            # One that has not stored that it is the standby would not take over yet.
            "standby": self._bound if is_named and self._knows else "",
            "standby_stored": self._stored if self._bound else 0,
        }

    # --- what happens ---

    def hear(self, told: Follower, now_us: int) -> None:
        self._followers[told.name] = told, now_us
        if told.is_standby and self.names_unknown(told):
            self.hear_of(Standby(told.name, told.address))
        if told.name == self._bound:
            self._is_heard, self._heard_us = True, now_us
            is_known = told.term == self._site.term and self._site.made(told.stored)
            self._knows = self._knows or (is_known and told.is_standby)
            self._stored = told.stored.number if is_known else 0
            if self._owed is not None and self._stored >= self._owed[0]:
                self._owed = None
            if self._out_at is not None and self._stored >= self._out_at:
                self._end()
        self.tick(now_us)

    def hear_of(self, standby: Standby) -> None:
        """The file of this run is older than that standby, which may have taken over. Nothing is decided before the
        standby is heard, or is out."""
        if not self._bound and not standby.is_out and standby.name != self._name:
            self._bound, self._is_heard, self._knows = standby.name, False, True
            self._site.set_standby(standby)

    def forget(self) -> None:
        """An operator says that the standby is gone for good."""
        if self._bound:
            self._is_heard = True
            self._end()

    def hear_member(self, number: int, now_us: int) -> None:
        """A member of the view has stored all decisions up to this one."""
        if self._out_at is not None and number >= self._out_at:
            self._end()
            self.tick(now_us)

    def tick(self, now_us: int) -> None:
        for name, (_, heard_us) in list(self._followers.items()):
            if heard_us <= now_us - self._member_timeout_us:
                del self._followers[name]
        if self._out_at is not None or not self._is_heard:
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
        if is_late or now_us - self._heard_us > self._member_timeout_us or not self._site.members or standby.is_out:
            # Without members, nobody could say that it is out. So it is out before they have gone, or with the last.
            self._site.set_standby(replace(standby, is_out=True))
            self._out_at = self._site.number
        elif told is not None and told[0].address != standby.address:
            self._site.set_standby(Standby(self._bound, told[0].address))

    def _name_standby(self, fit: Follower, now_us: int) -> None:
        self._stored, self._knows = self._site.number, False
        self._bound, self._heard_us, self._owed = fit.name, now_us, None
        self._site.set_standby(Standby(fit.name, fit.address))

    def _end(self) -> None:
        """The standby cannot take over any more."""
        self._bound, self._out_at = "", None
        self._site.set_standby(None)

    def next_us(self) -> int | None:
        """When `tick` is to be called; None: nothing is due."""
        if not self._bound or self._out_at is not None or not self._is_heard:
            return None
        due_us = self._heard_us + self._member_timeout_us
        return due_us + 1 if self._owed is None else min(due_us, self._owed[1] + BEHIND_US) + 1
