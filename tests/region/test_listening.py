"""The thread that tells the listeners of a shared region: where it begins, and what must not end it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pywan import CacheListener, _core
from pywan.config.attributes import RegionAttributes
from pywan.errors import IllegalStateError
from pywan.events import EntryEvent
from pywan.region.member_region import MemberRegion
from pywan.testing.waiting import LIMIT_S, eventually

BUCKETS = 3


class Ear(CacheListener):
    def __init__(self) -> None:
        self.received: list[Any] = []
        self.may_return = threading.Event()
        self.may_return.set()

    def after_create(self, event: EntryEvent) -> None:
        self.received.append(event.key)
        self.may_return.wait(LIMIT_S)


class Nameless(Ear):
    def __repr__(self) -> str:
        raise RuntimeError("this listener does not say what it is")


class Route:
    """What a shared region asks of other members. Here nobody else is there."""

    limit_us = 5_000_000

    def __init__(self, while_shared: Callable[[], None] = lambda: None) -> None:
        self._while_shared = while_shared

    @property
    def slots(self) -> _core.CallSlots:
        """The region asks for them in the step that shares it."""
        self._while_shared()
        return _core.CallSlots(1)


@contextmanager
def region_with(listener: Ear) -> Iterator[MemberRegion]:
    core = MemberRegion(
        "heard",
        _core.Clock(),
        site=1,
        member=7,
        stores=True,
        forwards=True,
        buckets=BUCKETS,
        attributes=RegionAttributes.make("heard", type="REPLICATE"),
        listeners=[listener],
    )
    try:
        yield core
    finally:
        listener.may_return.set()
        core.close()


def share(core: MemberRegion, route: Route) -> _core.Changelog:
    """The region is shared, and this member leads all its buckets."""
    changelog = _core.Changelog(BUCKETS, core.shards)
    core.share(changelog, route, True)
    for bucket in range(BUCKETS):
        changelog.set_role(bucket, _core.REPLICA_PRIMARY, 1, 1)
    return changelog


def in_another_thread(call: Callable[..., None], *arguments: Any) -> None:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_change_in_the_step_that_shares_the_region_is_told_once() -> None:
    with region_with(ear := Ear()) as core:
        core.put("alone", 0)
        share(core, Route(lambda: in_another_thread(core.put, "between", 1)))
        core.put("shared", 2)
        eventually(lambda: "shared" in ear.received)
        assert ear.received == ["alone", "between", "shared"]


def test_listeners_of_a_region_that_cannot_be_shared_are_told_of_its_changes() -> None:
    with region_with(ear := Ear()) as core:
        with pytest.raises(IllegalStateError):
            core.share(_core.Changelog(BUCKETS, 2 * core.shards), Route(), True)
        core.put("k", 1)
        assert ear.received == ["k"]


def test_a_listener_that_cannot_be_shown_is_told_on_after_changes_were_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with region_with(ear := Nameless()) as core, caplog.at_level(logging.WARNING):
        changelog = share(core, Route())
        changelog.set_notification_limit(1)
        ear.may_return.clear()
        for number in range(70):  # A MB each: more than 64 MiB wait.
            core.put(number, b"v" * 1_000_000)
        assert changelog.notifications_dropped > 0
        ear.may_return.set()
        eventually(lambda: changelog.notifications_state()["bytes"] == 0)
        core.put("later", 1)
        eventually(lambda: "later" in ear.received)
        eventually(lambda: "the listener test_listening.Nameless stood still" in caplog.text)
