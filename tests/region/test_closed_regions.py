"""A region that was closed says so to every call, also to one that has nothing to do; what only describes it answers
on.
"""

from __future__ import annotations

import numpy
import pytest

import pywan
from pywan.errors import RegionNotFoundError
from pywan.region.region import Region, core_of

CALLS = {
    "__contains__": lambda r: "k" in r,
    "__delitem__": lambda r: r.__delitem__("k"),
    "__getitem__": lambda r: r["k"],
    "__ior__": lambda r: r.__ior__({}),
    "__iter__": lambda r: list(r),
    "__len__": len,
    "__setitem__": lambda r: r.__setitem__("k", 1),
    "add_listener": lambda r: r.add_listener(pywan.CacheListener()),
    "alter": lambda r: r.alter(gateway_sender_ids=()),
    "clear": lambda r: r.clear(),
    "destroy": lambda r: r.destroy("k"),
    "get": lambda r: r.get("k"),
    "get_all": lambda r: r.get_all(["k"]),
    "invalidate": lambda r: r.invalidate("k"),
    "items": lambda r: list(r.items()),
    "keys": lambda r: list(r.keys()),
    "local_destroy": lambda r: r.local_destroy("k"),
    "pop": lambda r: r.pop("k", None),
    "popitem": lambda r: r.popitem(),
    "put": lambda r: r.put("k", 1),
    "put_all": lambda r: r.put_all({}),
    "put_columns": lambda r: r.put_columns(numpy.array([], dtype="S1"), numpy.array([], dtype="S1")),
    "put_if_absent": lambda r: r.put_if_absent("k", 1),
    "remove": lambda r: r.remove("k", 1),
    "remove_all": lambda r: r.remove_all([]),
    "replace": lambda r: r.replace("k", 1),
    "scan": lambda r: list(core_of(r).scan()),
    "scan_keys": lambda r: list(core_of(r).scan_keys()),
    "setdefault": lambda r: r.setdefault("k"),
    "show": lambda r: core_of(r).show("k"),
    "update": lambda r: r.update({}),
    "values": lambda r: list(r.values()),
    "wait_durable": lambda r: r.wait_durable(),
}
DESCRIBE = {
    "name",
    "type",
    "attributes",
    "gateway_sender_ids",
    "async_event_queue_ids",
    "is_closed",
    "is_inherited",
    "applied",
    "conflicts",
    "memory_bytes",
    "tombstones",
    "tombstone_state",
    "persistent",
    "log_state",
    "close",
    "queues",
}
# For the cache, the receiver and tests of the core.
INNER = {
    "apply_record",
    "attach",
    "attach_senders",
    "bucket",
    "bucket_count",
    "bucket_digest",
    "bucket_of",
    "copy_bucket",
    "drop_bucket",
    "scan_bucket",
    "change",
    "change_if",
    "commit_loop",
    "commit_once",
    "copy_into",
    "expire_tombstones",
    "has_callback_path",
    "decide",
    "keep_tombstones",
    "log_trouble",
    "lookup",
    "make_persistent",
    "next_event_id",
    "open_log",
    "release_entries",
    "remake",
    "restamp",
    "say_unwritten",
    "set_resolver",
    "set_callback_path",
    "fix_stamps",
    "stop_log",
    "unasked",
    "watch_tombstones",
}


def test_every_public_name_of_a_region_is_looked_at_here():
    public = {name for name in dir(Region) if not name.startswith("_")}
    assert public - CALLS.keys() - DESCRIBE - INNER == set()


@pytest.mark.parametrize("end", ["close", "destroy"])
@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_closed_region_refuses(site_of_one, name, end):
    region = site_of_one.region("closing")
    region["k"] = 1
    if end == "close":
        site_of_one.cache.close()
    else:
        site_of_one.cache.destroy_region("closing")
    with pytest.raises(
        (RegionNotFoundError, pywan.IllegalStateError) if name == "alter" else RegionNotFoundError,
        match=r"closed|destroyed|not found",
    ):
        CALLS[name](region)
    assert region.is_closed and region.name == "closing" and region.memory_bytes == 0


@pytest.fixture
def site_of_one(network):
    return network.add("ny")[0]


def test_what_is_no_pair_is_refused_by_its_row_and_what_came_before_is_stored(site_of_one):
    region = site_of_one.region("data")
    with pytest.raises(
        pywan.ConfigurationError,
        match=r"entry 1 is no pair of a key and a value: 'three' \(the entries before it were stored\)",
    ):
        region.put_all([("k", 1), "three"])
    for nothing in (None, 5):
        with pytest.raises(pywan.ConfigurationError, match=f"{nothing} is neither a mapping nor pairs"):
            region.update(nothing)
    region.update([("a", 1)], b=2)
    region |= {"c": 3}
    assert dict(region) == {"k": 1, "a": 1, "b": 2, "c": 3}


def test_a_put_all_that_stops_names_what_was_refused_before(site_of_one):
    region = site_of_one.region("data")

    def entries():
        yield "good", 1
        yield "k" * 100_000, 2  # No key is so long.
        site_of_one.cache.close()
        yield "late", 3

    with pytest.raises(
        RegionNotFoundError,
        match=r"put_all stopped at entry 2: .*were stored, but for 1 that were refused; first: entry 1: ",
    ):
        region.put_all(entries())
