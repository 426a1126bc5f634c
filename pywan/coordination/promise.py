"""Holds a member's promise to the standby of the site while the coordinator is unreachable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pywan.coordination import plain
from pywan.coordination.plain import Range
from pywan.coordination.tables import NO_DECISION, DecisionId

REPEAT_US = 500_000  # Interval of the reports "coordinator unreachable" to the standby.
ROUND_MAX = (1 << 63) - 1

round_of = plain.reader(Annotated[int, Range(0, ROUND_MAX)], "a round")


@dataclass
class Promise:
    """A member that has promised a round asks the coordinator nothing. So later records of the coordinator have no
    effect if the standby takes over. Only the standby ends the promise."""

    round: int = 0  # The promised round; 0: none.
    due_us: int = 0  # When the next report to the standby is due.
    problem: str = ""  # The standby's last reason against a takeover.
    address: str = ""  # A locator that named itself as standby. Empty: the metadata name the standby.
    standby_at: DecisionId = NO_DECISION  # The newest record of this locator.

    def end(self) -> None:
        """A coordinator has answered."""
        self.round, self.due_us, self.problem = 0, 0, ""
        self.address, self.standby_at = "", NO_DECISION
