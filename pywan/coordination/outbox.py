"""Keeps the coordinator's actions, in order, until the driver takes them."""

from __future__ import annotations

from pywan.coordination.actions import Action, Lost, Probe, Tell
from pywan.coordination.messages import MayLeave, Refused, StillNeeded, Tables
from pywan.coordination.tables import Incarnation, MemberProfile


class Outbox:
    """All parts of a coordinator add actions; only the coordinator takes actions."""

    def __init__(self) -> None:
        self._actions: list[Action] = []

    def tell(self, to: Incarnation, message: Tables | Refused | MayLeave | StillNeeded) -> None:
        self._actions.append(Tell(to, message))

    def probe(self, member: MemberProfile) -> None:
        self._actions.append(Probe(member))

    def say_lost(self, region: str, buckets: int) -> None:
        self._actions.append(Lost(region, buckets))

    def take_refusals(self, to: Incarnation) -> list[Refused]:
        """Removes and returns the refusals to a member. All other actions stay."""
        refusals: list[Refused] = []
        rest: list[Action] = []
        for action in self._actions:
            if isinstance(action, Tell) and action.to == to and isinstance(action.message, Refused):
                refusals.append(action.message)
            else:
                rest.append(action)
        self._actions = rest
        return refusals

    def take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
