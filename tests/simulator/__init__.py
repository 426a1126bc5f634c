"""Senders and receivers over a bad network, disk and clock, in simulated time: the very sessions and logs that run over
sockets and files, and every run repeated by its seed. `python -m tests.simulator --help` says how."""

from .link import Failure
from .restarts import MachinesWorld
from .tombstones import TombstonesWorld
from .world import World

__all__ = ["Failure", "World", "WORLDS", "run"]

WORLDS: dict[str, type[World]] = {world.kind: world for world in (World, MachinesWorld, TombstonesWorld)}


def run(seed: int, steps: int = 300, world: str = "network") -> World:
    """One simulation; Failure if anything was not as it must be."""
    made = WORLDS[world](seed)
    made.run(steps)
    return made
