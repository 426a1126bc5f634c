"""The locators of a site keep what its members are to have: one entry for each thing, the same at all locators."""

from __future__ import annotations

import contextlib
import json
import random

import pytest

from pywan.config import cache_xml, cluster
from pywan.config.attributes import THINGS, rows_of
from pywan.config.cluster import MAX_REMOVED, MAX_REVISION, MAX_STEP, ClusterConfiguration
from pywan.errors import ConfigurationError, ProtocolError
from pywan.protocol.control import encode

SENDER = {"remote_distributed_system_id": "2", "batch_size": "50", "gateway_event_filters": "shop:A,shop:B"}


@pytest.fixture
def kept():
    made = ClusterConfiguration()
    made.put("gateway-sender", "ln", SENDER, "a")
    return made


def names(made: ClusterConfiguration) -> list[str]:
    return [thing["name"] for thing in made.things()]


def test_a_thing_has_one_entry_however_often_it_changes(kept):
    for size in range(100):
        assert kept.alter("gateway-sender", "ln", {"batch_size": str(size + 1)}, "b")
        kept.put("region", "/data", {"type": "replicate"}, "c")
        kept.remove("region", "data", "d")
    assert len(kept.entries()) == 2
    assert kept.things() == [
        {
            "kind": "gateway-sender",
            "name": "ln",
            "attributes": {
                "remote_distributed_system_id": 2,
                "batch_size": 100,
                "gateway_event_filters": ["shop:A", "shop:B"],
            },
        }
    ]


def test_what_changes_nothing_is_not_a_change(kept):
    before = kept.to_json(), kept.digest()
    assert not kept.put("gateway-sender", "ln", SENDER, "b")
    assert not kept.remove("region", "data", "c")
    assert not kept.alter("region", "data", {"gateway_sender_ids": "ln"}, "d")  # A member's own, of its cache.xml.
    assert not kept.alter("gateway-sender", "ln", {"batch_size": 50}, "e")
    assert (kept.to_json(), kept.digest()) == before


def test_things_are_told_in_the_order_in_which_they_can_be_made():
    made = ClusterConfiguration()
    for name, parent in (
        ("a", "b"),
        ("b", "c"),
        ("c", None),
        ("circle", "other"),
        ("other", "circle"),
        ("alone", "elsewhere"),
    ):
        made.put("region", name, {} if parent is None else {"colocated_with": parent}, "x")
    made.put("gateway-receiver", "", {}, "x")
    made.put("gateway-sender", "zz", {"remote_distributed_system_id": 2}, "x")
    made.put("disk-store", "zz", {"directories": "/a#10,/b"}, "x")
    kinds = [thing["kind"] for thing in made.things()]
    assert kinds == ["disk-store", "gateway-sender", *["region"] * 6, "gateway-receiver"]
    assert names(made).index("c") < names(made).index("b") < names(made).index("a")


@pytest.mark.parametrize(
    ("kind", "name", "attributes"),
    [
        ("moon", "m", {}),
        ("region", "..", {}),
        ("region", "data", {"type": "SHARD"}),
        ("region", "data", {"colour": "red"}),
        ("gateway-sender", "ln", {}),
        ("region", 5, {}),
        ("region", "data", []),
        (["region"], "data", {}),
        ("region", "data", {"type": "REPLICATE", "total_num_buckets": 7}),
        ("gateway-sender", "s", {**SENDER, "batch_size": 0}),
        ("region", "r", {"gateway_sender_ids": [f"sender-{n}" for n in range(10_000)]}),
        ("region", "r", {1: 2}),
    ],
)
def test_what_no_member_could_make_is_refused(kept, kind, name, attributes):
    before = kept.to_json()
    with pytest.raises(ConfigurationError):
        kept.put(kind, name, attributes, "b")
    assert kept.to_json() == before


def test_a_wrong_alteration_or_replacement_changes_nothing(kept):
    before = kept.to_json()
    for change in (
        lambda: kept.alter("gateway-sender", "ln", {"parallel": True}, "b"),
        lambda: kept.alter("gateway-sender", "ln", {"batch_size": 0}, "b"),
        lambda: kept.replace([{"kind": "region", "name": "data", "attributes": {}}, {"kind": "region"}], "b"),
        lambda: kept.replace("x", "b"),
    ):
        with pytest.raises(ConfigurationError):
            change()
    assert kept.to_json() == before


def test_it_is_replaced_as_a_whole(kept):
    kept.put("region", "data", {"type": "REPLICATE"}, "b")
    wanted = [
        {"kind": "region", "name": "data", "attributes": {"type": "REPLICATE"}},
        {"kind": "gateway-receiver", "name": "", "attributes": {"start_port": 1}},
    ]
    neighbour = ClusterConfiguration()
    neighbour.merge(kept.entries())
    assert kept.replace(wanted, "c") and kept.things() == wanted and not kept.replace(wanted, "d")
    assert neighbour.merge(kept.entries()) and neighbour.things() == wanted  # Removals travel.


@pytest.mark.parametrize("seed", range(20))
def test_locators_that_change_it_apart_agree_when_they_meet(seed):
    random_ = random.Random(seed)
    copies = [ClusterConfiguration() for _ in range(3)]
    for _step in range(200):
        one = random_.choice(copies)
        name, id = f"r{random_.randrange(5)}", f"{random_.randrange(2**32):x}"
        doing = random_.randrange(4)
        if doing == 0:
            one.put("region", name, {"type": random_.choice(["REPLICATE", "PARTITION"])}, id)
        elif doing == 1:
            one.remove("region", name, id)
        elif doing == 2:
            one.alter("region", name, {"gateway_sender_ids": random_.choice(["", "ln"])}, id)
        else:
            one.merge(json.loads(json.dumps(random_.choice(copies).entries())))
    for one in copies * 2:
        for other in copies:
            one.merge(other.entries())
    assert len({copy.digest() for copy in copies}) == 1, f"seed {seed}"
    assert copies[0].things() == copies[1].things() == copies[2].things(), f"seed {seed}"


def test_removed_things_are_remembered_within_a_bound_and_locators_agree_on_it(kept, monkeypatch):
    neighbour = ClusterConfiguration()
    for number in range(MAX_REMOVED + 50):
        kept.put("region", f"r{number}", {}, "b")
        if number == 10:
            neighbour.merge(kept.entries())
        kept.remove("region", f"r{number}", "c")
    assert len(kept.entries()) == 1 + MAX_REMOVED
    for _ in range(2):
        neighbour.merge(kept.entries())
        kept.merge(neighbour.entries())
    assert neighbour.digest() == kept.digest() and not neighbour.merge(kept.entries())


def test_it_is_bounded_by_the_number_of_things(monkeypatch, kept):
    monkeypatch.setattr(cluster, "MAX_THINGS", 3)
    kept.put("region", "a", {}, "b")
    kept.put("region", "b", {}, "b")
    with pytest.raises(ConfigurationError, match="no room for 4 things"):
        kept.put("region", "c", {}, "b")
    kept.put("region", "b", {"type": "REPLICATE"}, "b")
    kept.remove("region", "a", "b")
    kept.put("region", "c", {}, "b")
    monkeypatch.setattr(cluster, "MAX_BYTES", 500)
    with pytest.raises(ConfigurationError, match="the limits are 3 and 500"):
        kept.alter("region", "b", {"gateway_sender_ids": ["s" * 200, "t" * 200]}, "b")


def test_a_neighbours_entries_are_taken_all_or_none(monkeypatch, kept):
    monkeypatch.setattr(cluster, "MAX_THINGS", 2)
    before = kept.to_json()
    entries = [{"kind": "region", "name": f"r{n}", "attributes": {}, "revision": 5 + n, "id": "x"} for n in range(2)]
    with pytest.raises(ConfigurationError, match="no room for 3 things"):
        kept.merge(entries)
    assert kept.to_json() == before
    gone = {"kind": "gateway-sender", "name": "ln", "attributes": None, "revision": 4, "id": "x"}
    assert kept.merge([*entries, gone]) and names(kept) == ["r0", "r1"]


def entry(**change):
    return {"kind": "region", "name": "data", "attributes": {}, "revision": 1, "id": "x", **change}


@pytest.mark.parametrize(
    "entries",
    [
        None,
        [1],
        [entry(revision=MAX_REVISION)],
        [entry(revision=MAX_STEP + 5)],
        [entry(revision=0)],
        [entry(revision=True)],
        [entry(revision=2**53)],
        [entry(kind="moon")],
        [entry(kind=["region"])],
        [entry(name=5)],
        [entry(name="n" * 256)],
        [entry(id="")],
        [entry(attributes=[])],
        [entry(attributes={"a": [[[[1]]]]})],
        [entry(attributes={"a": b"x"})],
        [entry()] * (cluster.MAX_THINGS + MAX_REMOVED + 1),
    ],
)
def test_what_a_neighbour_cannot_have_is_refused_and_changes_nothing(kept, entries):
    before = kept.to_json()
    with pytest.raises(ProtocolError):
        kept.merge(entries)
    assert kept.to_json() == before


def test_revisions_are_not_used_up_by_one_message_and_the_file_stays_readable(kept):
    kept.merge([entry(revision=MAX_STEP)])
    kept.put("region", "more", {}, "b")
    assert ClusterConfiguration.from_json(kept.to_json()).things() == kept.things()
    last = json.loads(kept.to_json()) | {"revision": MAX_REVISION}
    full = ClusterConfiguration.from_json(json.dumps(last))
    with pytest.raises(ConfigurationError, match="used up its revisions; export it"):
        full.put("region", "one-more", {}, "b")
    assert ClusterConfiguration.from_json(full.to_json()).things() == kept.things()


def test_its_file_holds_all_of_it_and_a_file_of_another_kind_is_refused(kept):
    kept.put("disk-store", "d", {"directories": [["/a", 10], ["/b", None]]}, "b")
    kept.put("region", "gone", {}, "b")
    kept.remove("region", "gone", "b")
    again = ClusterConfiguration.from_json(kept.to_json())
    assert again.things() == kept.things() and again.digest() == kept.digest() and again.entries() == kept.entries()
    good = json.loads(kept.to_json())
    for bad in (
        "",
        "[]",
        "{",
        "[" * 100_000,
        json.dumps(good | {"version": 1}),
        json.dumps(good | {"entries": [{"id": 3}]}),
        json.dumps(good | {"revision": "x"}),
        json.dumps(good | {"entries": 5}),
    ):
        with pytest.raises(ConfigurationError):
            ClusterConfiguration.from_json(bad)


WRONG = [
    5,
    True,
    [5],
    [[1]],
    {"x": 1},
    {"class": 5},
    {"class": "a:B", "parameters": {"x": 1}},
    "",
    "\0",
    "..",
    "\x1b[2J",
    "\ud800",
    "x" * 100_000,
    float("nan"),
    b"x",
    [None],
    2**64,
    -1,
    ["a", "a"],
    [["a"]],
    [["a", {}]],
    [{"class": "a:B", "parameters": {"x": "\n"}}],
    "a#b",
    "#5",
    "a:B",
    {"class": "a:B", "parameters": {"x": "<&>"}},
    None,
]


NEEDED = {
    "gateway-sender": {"remote_distributed_system_id": 2},
    "async-event-queue": {"async_event_listener": "a.b:C"},
}


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [
        (kind, name)
        for kind in THINGS
        for name in (*(row.name for row in rows_of(kind)), "own_distributed_system_id", "colour")
    ],
)
def test_whatever_is_asked_of_it_is_refused_in_words_or_can_be_told_to_anybody(kind, attribute):
    for value in WRONG:
        made, neighbour = ClusterConfiguration(), ClusterConfiguration()
        try:
            made.put(
                kind,
                "n",
                {**NEEDED.get(kind, {}), attribute: value},
                "a",
            )
        except ConfigurationError:
            assert made.entries() == []
            continue
        encode(1, {"things": made.things()})
        assert ClusterConfiguration.from_json(made.to_json()).things() == made.things()
        assert neighbour.merge(made.entries()) and neighbour.things() == made.things()
        file = cache_xml.parse_bytes(cache_xml.to_xml(made.things()).encode(), for_this_member=False)
        neighbour.replace(cache_xml.to_things(file), "b")
        assert [thing["name"] for thing in neighbour.things()] == [thing["name"] for thing in made.things()]


@pytest.mark.parametrize("wrong", WRONG[:-1], ids=lambda value: f"{value!r:.20}")
def test_what_is_no_thing_is_refused_in_words(kept, wrong):
    before = kept.to_json()
    for kind, name, attributes in (
        (wrong, "n", {}),
        ("region", wrong, {}),
        ("region", "n", wrong),
        ("region", "n", {"x": wrong}),
    ):
        for change in (kept.put, kept.alter):
            with contextlib.suppress(ConfigurationError):
                change(kind, name, attributes, "b")
        with contextlib.suppress(ConfigurationError):
            kept.remove(kind, name, "b")
        with contextlib.suppress(ConfigurationError):
            kept.replace([{"kind": kind, "name": name, "attributes": attributes}, wrong], "b")
        with contextlib.suppress(ProtocolError):
            kept.merge([{"kind": kind, "name": name, "attributes": attributes, "revision": 9, "id": "d"}, wrong])
    assert len(kept.things()) == 1 and kept.to_json() == before
