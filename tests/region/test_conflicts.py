"""Two sites change one key: the later change wins everywhere, ties go to the higher site, a resolver may decide
otherwise.
"""

import shutil
import time

import pytest

from pywan import CacheListener, GatewayConflictResolver
from pywan.errors import ConfigurationError
from pywan.region.region import core_of
from pywan.testing.waiting import eventually
from support.sites import at_once

COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE of Linux, for which `time` has no name.

kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=1), id="serial"),
        pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=5), id="serial-5"),
        pytest.param(dict(type="PARTITION", parallel=True), id="parallel"),
    ],
)
slow = pytest.mark.parametrize("listeners", [False, True], ids=["compiled", "with-listeners"])


@pytest.fixture
def apart(network):
    """Makes NY and LN, each with its own changes not yet sent."""

    def make(listeners=False, **kind):
        ny, ln = network.mesh("ny ln", **kind)
        for site in (ny, ln):
            if listeners:
                site.keep_history()
        return ny, ln, Apart(network, ny, ln)

    return make


class Apart:
    """While it is entered, the sites do not hear of each other."""

    def __init__(self, network, *sites):
        self.network, self.sites = network, sites

    def __enter__(self):
        self.network.settle()
        for sender in self.network.senders():
            sender.pause()

    def __exit__(self, *exc):
        for sender in self.network.senders():
            sender.resume()
        self.network.settle()


def a_moment_later():
    """So that stamps of two sites differ by the clock, and not by how many there were in one millisecond.

    The core reads the system's coarse clock, which moves once in a timer tick.
    """

    def coarse_ms():
        return time.clock_gettime_ns(COARSE_CLOCK) // 1_000_000

    before = coarse_ms()
    eventually(lambda: coarse_ms() > before)


def put_at(site, key, value, ms):
    site.data.put_columns([key], [value], timestamps=[ms])


@kinds
@slow
def test_the_later_change_wins_in_both_sites(apart, network, kind, listeners):
    """C-124."""
    ny, ln, link_is_down = apart(listeners, **kind)
    with link_is_down:
        ny.data["a"], ny.data["b"] = "ny first", "ny first"
        a_moment_later()
        ln.data["a"] = "ln later"
        ln.data["b"] = "ln later"
        a_moment_later()
        ny.data["b"] = "ny last"
    assert ny.data["a"] == ln.data["a"] == "ln later" and ny.data["b"] == ln.data["b"] == "ny last"
    network.assert_equal()
    assert core_of(ny.data).lookup("a")[2] == ln.id and core_of(ln.data).lookup("b")[2] == ny.id
    assert ln.data.conflicts >= 1


@kinds
def test_a_tie_goes_to_the_higher_site(apart, network, kind):
    """C-124: stamps equal to the millisecond and the counter."""
    ny, ln, link_is_down = apart(**kind)
    with link_is_down:
        put_at(ny, "k", b"ny", 1_700_000_000_000)
        put_at(ln, "k", b"ln", 1_700_000_000_000)
    assert ny.data["k"] == ln.data["k"] == b"ln" and core_of(ny.data).lookup("k")[2] == 2
    network.assert_equal()


@kinds
@slow
def test_an_older_update_does_not_undo_a_destroy(apart, network, kind, listeners):
    ny, ln, link_is_down = apart(listeners, **kind)
    ny.data.update(a=0, b=0)
    with link_is_down:
        ny.data["a"] = 1
        del ny.data["b"]
        a_moment_later()
        del ln.data["a"]
        ln.data["b"] = 2
    assert "a" not in ny.data and "a" not in ln.data
    assert ny.data["b"] == ln.data["b"] == 2
    network.assert_equal()


@kinds
@slow
def test_an_older_create_does_not_bring_back_what_was_destroyed_where_it_never_was(apart, network, kind, listeners):
    """LN destroys a key that it had, later than NY's create of the same key."""
    ny, ln, link_is_down = apart(listeners, **kind)
    with link_is_down:
        put_at(ln, "k", b"ln", 1_700_000_000_000)
        ny.data["k"] = "ny"
        a_moment_later()
        del ln.data["k"]
    assert "k" not in ny.data and "k" not in ln.data


@kinds
def test_a_local_change_is_always_later_than_what_it_saw(apart, network, kind):
    """A change from a site whose clock is ahead is taken; the next local one wins all the same."""
    ny, ln, _link_is_down = apart(**kind)
    # NY's clock goes a minute ahead.
    ny.cache._core.state.clock.see((ny.cache._core.state.clock.take() >> 16) + 60_000 << 16)
    ny.data["k"] = "from the future"
    network.settle()
    ln.data["k"] = "later all the same"
    network.settle()
    assert ny.data["k"] == ln.data["k"] == "later all the same"
    del ln.data["k"]
    network.settle()
    assert "k" not in ny.data
    network.assert_equal()


def test_a_stamp_from_the_far_future_is_held_back_and_named(network):
    ny, ln = network.mesh("ny ln")
    ny.cache._core.state.clock.see((ny.cache._core.state.clock.take() >> 16) + 3_600_000 << 16)
    ny.data["k"] = 1
    network.settle()
    sender = ny.sender(ln)
    assert "k" not in ln.data and sender.parked_count == 1 and "future" in sender.parked()[0]["reason"]
    ln.data["other"] = 1
    assert ln.cache._core.state.clock.take() >> 16 < ny.cache._core.state.clock.take() >> 16


@slow
def test_a_storm_of_writes_to_few_keys_ends_equal(network, listeners):
    """C-125-like: values and stamps equal at the end."""
    sites = network.mesh("ny ln tk")
    for site in sites:
        if listeners:
            site.keep_history()

    def write(site):
        for n in range(300):
            site.data[n % 5] = f"{site}{n}"
            if n % 11 == 10:
                site.data.remove_all([0, 3])

    at_once(*(lambda site=site: write(site) for site in sites))
    network.settle()
    network.assert_equal()


# Resolvers


class Resolver(GatewayConflictResolver):
    def __init__(self, decide=lambda event, helper: None):
        self.decide, self.asked = decide, []

    def on_event(self, event, helper):
        self.asked.append(event)
        self.decide(event, helper)


def test_a_resolver_sees_both_versions_and_may_allow_the_older(apart, network):
    resolver = Resolver()
    ny, ln, link_is_down = apart(type="REPLICATE", parallel=False)
    ln.cache.set_conflict_resolver(resolver)
    with link_is_down:
        ny.data.put("k", "ny", callback_argument="why")
        a_moment_later()
        ln.data["k"] = "ln"
    (event,) = resolver.asked
    assert (event.operation, event.key, event.old_value, event.new_value, event.callback_argument) == (
        "update",
        "k",
        "ln",
        "ny",
        "why",
    )
    assert (event.old_distributed_system_id, event.new_distributed_system_id) == (
        2,
        1,
    ) and event.old_timestamp >= event.new_timestamp > 1_600_000_000_000
    assert ln.data["k"] == "ny"


def test_a_resolver_may_refuse_and_may_change(apart, network):
    def by_value(event, helper):
        """The greater value wins; equal in both sites."""
        if event.operation == "destroy" or event.new_value < event.old_value:
            helper.disallow_event()

    ny, ln, link_is_down = apart()
    for site in (ny, ln):
        site.cache.set_conflict_resolver(Resolver(by_value))
    ny.data["d"] = 1
    with link_is_down:
        ny.data["a"], ny.data["b"] = 9, 1
        ln.data["a"], ln.data["b"] = 1, 9
        del ny.data["d"]
        ln.data["d"] = 5
    assert ny.data["a"] == ln.data["a"] == 9 and ny.data["b"] == ln.data["b"] == 9 and ln.data["d"] == 5

    def merge(event, helper):
        helper.change_event_value(max(event.old_value, event.new_value) * 10)

    for site in (ny, ln):
        site.cache.set_conflict_resolver(Resolver(merge))
    with link_is_down:
        ny.data["c"] = 1
        ln.data["c"] = 2
    assert ny.data["c"] == ln.data["c"] == 20


def test_a_resolver_is_not_asked_where_there_is_no_conflict_of_sites(apart, network):
    """New keys, later changes of the same site, and local changes are nobody's conflict."""
    resolver = Resolver(lambda event, helper: helper.disallow_event())
    ny, ln, _ = apart()
    ln.cache.set_conflict_resolver(resolver)
    ny.data["k"] = 1
    ny.data["k"] = 2
    network.settle()
    ln.data["k"] = 3
    network.settle()
    assert resolver.asked == [] and ln.data["k"] == ny.data["k"] == 3
    ln.cache.set_conflict_resolver(None)
    ny.data["k"] = 4
    network.settle()
    assert ln.data["k"] == 4


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("type", ["REPLICATE_PERSISTENT", "PARTITION_PERSISTENT"])
def test_what_a_resolver_decided_is_there_after_a_restart(apart, network, tmp_path, type, end):
    """The earlier change was allowed: as it is, with another value, or as a destroy. Its log has the later one too."""

    def allow(event, helper):
        if event.key == "changed":
            helper.change_event_value("merged")

    ny, ln, link_is_down = apart(type=type.removesuffix("_PERSISTENT"), parallel=False)
    ln.cache.close()
    ln.start_member(dir=tmp_path / "ln", conflict_resolver=Resolver(allow))
    ln.receive()
    data = ln.region(type=type)
    ny.data["gone"] = 0
    with link_is_down:
        ny.data["allowed"], ny.data["changed"] = "ny", "ny"
        del ny.data["gone"]
        a_moment_later()
        data.update(allowed="ln", changed="ln", gone="ln")
    before = {key: core_of(data).lookup(key) for key in ("allowed", "changed", "gone")}
    assert [before[key][0] for key in before] == ["ny", "merged", None] and core_of(ny.data).lookup("allowed")[
        :3
    ] == before["allowed"][:3]
    folder = tmp_path / "ln"
    if end == "killed":
        folder = shutil.copytree(folder, tmp_path / "as a kill leaves it")
    ln.cache.close()
    ln.start_member(dir=folder)
    again = ln.region(type=type)
    assert {key: core_of(again).lookup(key) for key in before} == before and "gone" not in again


def test_a_resolver_that_raises_leaves_the_later_change(apart, network, caplog):
    def fail(event, helper):
        raise ValueError("undecided")

    ny, ln, link_is_down = apart()
    for site in (ny, ln):
        site.cache.set_conflict_resolver(Resolver(fail))
    with link_is_down:
        ny.data["k"] = "earlier"
        a_moment_later()
        ln.data["k"] = "later"
    assert ny.data["k"] == ln.data["k"] == "later" and "undecided" in caplog.text
    assert not any(sender.parked_count for sender in network.senders())


def test_what_a_resolver_changed_goes_on_to_the_next_site(network):
    ny, ln, tk = network.add("ny ln tk")
    network.connect([("ny", "ln"), ("ln", "tk")])
    ln.cache.set_conflict_resolver(Resolver(lambda event, helper: helper.change_event_value("merged")))
    ln.data["k"] = "ln"
    network.settle()
    ny.data["k"] = "ny"
    network.settle()
    assert ln.data["k"] == tk.data["k"] == "merged"


@pytest.mark.parametrize("wrong", [object(), "nowhere:Resolver", CacheListener])
def test_what_is_no_resolver_is_refused(network, wrong):
    ny = network.site("ny")
    with pytest.raises(ConfigurationError):
        ny.cache.set_conflict_resolver(wrong)
    eventually(lambda: not ny.cache.is_closed)


@slow
def test_conflicts_are_counted_by_the_region(apart, network, listeners):
    ny, ln, link_is_down = apart(listeners)
    with link_is_down:
        ny.data["k"] = "earlier"
        a_moment_later()
        ln.data["k"] = "later"
    assert (ln.data.conflicts, ny.data.conflicts, ln.data.applied, ny.data.applied) == (1, 0, 0, 1)
