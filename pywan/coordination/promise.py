"""Owns what a member has promised to the standby of its site, when it does not hear the coordinator any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pywan.coordination import plain
from pywan.coordination.plain import Range
from pywan.coordination.tables import NO_DECISION, DecisionId

REPEAT_US = 500_000  # So often the standby is told that the coordinator is not heard.
ROUND_MAX = (1 << 63) - 1

round_of = plain.reader(Annotated[int, Range(0, ROUND_MAX)], "a round")


@dataclass
class Promise:
    """A member that has promised a round asks the coordinator nothing. So what that decides meanwhile has no effect, if
    its standby takes over. The promise ends when the standby says so, and not before."""

    round: int = 0  # The round that is promised; 0: none.
    due_us: int = 0  # When the standby is told next.
    problem: str = ""  # Why the standby does not take over, as it said last.
    address: str = ""  # Of a locator that has said itself that it is the standby. Empty: the tables name it.
    standby_at: DecisionId = NO_DECISION  # The newest one that this locator has.

    def end(self) -> None:
        """A coordinator has answered."""
        self.round, self.due_us, self.problem = 0, 0, ""
        self.address, self.standby_at = "", NO_DECISION
