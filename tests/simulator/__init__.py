"""Senders and receivers over a network that drops, delays, splits, damages and repeats, in simulated time: the very
sessions that run over sockets, and every run repeated by its seed. `python -m tests.simulator --help` says how."""
from .world import Failure, World, run

__all__ = ["Failure", "World", "run"]
