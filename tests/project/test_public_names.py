"""`dir` shows of the objects that programs hold what docs/api-names.md names, and nothing else."""

from __future__ import annotations

import re
from typing import get_args

import pytest

import pywan
from pywan.callbacks import GatewayConflictHelper
from pywan.events import EventSequenceID, GatewayQueueEvent
from support.tree import ROOT

DOCUMENT = (ROOT / "docs" / "api-names.md").read_text()


def documented(name: str) -> set[str]:
    """The names in the first column of the table under that heading."""
    section = DOCUMENT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return {found for cell in cells for found in re.findall(r"`(\w+)", cell)}


@pytest.fixture
def held(two_sites, tmp_path):
    ny, ln = two_sites
    store = ny.cache.create_disk_store("kept", directories=[(str(tmp_path), None)])
    event = GatewayQueueEvent(
        "data",
        "create",
        "k",
        1,
        None,
        creation_timestamp=0,
        origin_site=1,
        possible_duplicate=False,
        event_id=EventSequenceID(1, 1, 1),
    )
    sender = ny.cache.create_gateway_sender("spare", remote_distributed_system_id=ln.id)
    batches = []
    queue = ny.cache.create_async_event_queue("audit", lambda events: batches.append(events) or True)
    ny.cache.create_region("audited", type="REPLICATE", async_event_queue_ids=["audit"])["k"] = 1
    assert queue.wait_until_flushed()
    batch = batches[0]
    return {
        "Cache": ny.cache,
        "Region": ny.data,
        "GatewaySender": sender,
        "AsyncEventQueue": queue,
        "GatewayReceiver": ln.receiver,
        "DiskStore": store,
        "Locator": ny.locator,
        "GatewayQueueEvent": event,
        "AsyncEvent": batch[0],
        "EventBatch": batch,
        "GatewayConflictHelper": GatewayConflictHelper(),
    }


def test_every_class_of_the_document_is_looked_at(held):
    assert set(re.findall(r"^## (\w+)$", DOCUMENT, re.MULTILINE)) == set(held)


def test_an_object_shows_what_the_document_names(held):
    for name, thing in held.items():
        shown = {shown for shown in dir(thing) if not (shown.startswith("__") and shown.endswith("__"))}
        assert shown == documented(name), name


def test_what_is_shown_is_there(held):
    for thing in held.values():
        for name in dir(thing):
            if not name.startswith("_"):
                getattr(thing, name)


def test_a_region_says_to_type_checkers_what_is_in_it(two_sites):
    ny, _ = two_sites
    prices: pywan.Region[str, int] = ny.data
    prices["a"] = 1
    assert get_args(pywan.Region[str, int]) == (str, int) and isinstance(prices, pywan.Region)


def test_a_thing_has_one_face(held):
    cache = held["Cache"]
    assert cache.disk_stores()["kept"] is held["DiskStore"] and cache.region("data") is cache.regions()["data"]
    assert cache.gateway_sender("spare") is cache.gateway_senders()["spare"] is held["GatewaySender"]


def test_the_package_shows_what_a_program_imports():
    assert {"Cache", "Region", "Locator", "GatewaySender", "GatewayReceiver"} <= set(dir(pywan))
    assert all(hasattr(pywan, name) for name in dir(pywan))
