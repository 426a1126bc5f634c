"""Says which kinds of worlds there are, and of which kind the world of a seed is."""

from __future__ import annotations

from .world import SiteWorld
from .worlds_of_gateways import Gateways
from .worlds_of_listeners import SlowListeners
from .worlds_of_locators import Locators
from .worlds_of_memory import ReplicasWithoutMemory
from .worlds_of_operators import Operators
from .worlds_of_slow_replicas import SlowReplicas
from .worlds_of_snapshots import SnapshotsUnderWrites

# Each tenth seed has a world of a kind of its own, in turn.
World = SiteWorld | Locators
OWN_KINDS: tuple[type[World], ...] = (
    SlowReplicas,
    SlowListeners,
    SnapshotsUnderWrites,
    Gateways,
    Locators,
    ReplicasWithoutMemory,
    Operators,
)
EACH = 10
KINDS: dict[str, type[World]] = {SiteWorld.kind: SiteWorld, **{each.kind: each for each in OWN_KINDS}}
ENOUGH_SEEDS = 40  # With so many seeds of a kind, all has happened that its worlds are to show.


def make_world(seed: int, kind: str = "") -> World:
    """Makes the world of a seed, of this kind; empty: of the seed's own kind."""
    return KINDS[kind or kind_of(seed)](seed)


def kind_of(seed: int) -> str:
    turn, rest = divmod(seed, EACH)
    return SiteWorld.kind if rest else OWN_KINDS[turn % len(OWN_KINDS)].kind


def what_did_not_happen(kind: str, statistics: dict[str, int]) -> list[str]:
    """Returns what worlds of a kind are to show, and did not."""
    return [each for each in KINDS[kind].must_happen if not statistics.get(each)]
