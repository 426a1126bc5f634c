"""Owns receivers that are slow, or behind a network that fails, and what must have become of events there."""

import threading

from pywan import CacheListener
from pywan.testing.waiting import LIMIT_S, eventually


def through_a_proxy(network, type="PARTITION", receiver=None, **sender):
    ny, ln = network.add("ny ln")
    ln.receive(through_proxy=True, **(receiver or {}))
    made = ny.send_to(ln, **sender)
    ny.region(type=type), ln.region(type=type)
    eventually(lambda: made.is_connected)
    return ny, ln, made


def with_a_listener(network, listener, **more):
    """NY sends to a region that has a listener."""
    ny, ln = network.add("ny ln")
    network.connect([("ny", "ln")], parallel=False, dispatcher_threads=1, **more)
    ln.data.add_listener(listener)
    sender = ny.sender(ln)
    eventually(lambda: sender.is_connected)
    return ny, ln, sender


def applied_once(ln, count):
    """Every one of `count` events took effect at LN, and none did twice."""
    assert (ln.receiver.stats["events_received"], ln.data.applied, ln.data.conflicts) == (count, count, 0)


class Slow(CacheListener):
    """Lets changes through one at a time, when told."""

    def __init__(self):
        self.gate = threading.Semaphore(0)

    def after_create(self, event):
        self.gate.acquire(timeout=LIMIT_S)

    after_update = after_create
