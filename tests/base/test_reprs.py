"""How the objects that users hold show themselves: in one line for a debugger, and as a table for a notebook."""

import os
import re
import threading

import pytest

from pywan import Cache
from pywan.base.faces import Described, counted, html_table
from pywan.stats import Ledger
from pywan.testing import two_sites
from pywan.testing.waiting import LIMIT_S


@pytest.fixture
def sites(tmp_path):
    with two_sites("orders", dir=tmp_path) as sites:
        sites.ny.cache.create_disk_store("store", directories=[(tmp_path / "small", 100)])
        sites.ny.region("orders")["key"] = "value"
        sites.settle()
        yield sites


def objects_of(site):
    cache = site.cache
    store = cache.disk_stores()["store"]
    return [cache, site.region("orders"), site.sender, cache.gateway_receiver, site.locator, store]


def text_of(table):
    """The cells of a table, by the name of their row."""
    return dict(re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", table))


def test_a_repr_tells_name_state_and_sizes_in_one_line(sites):
    cache, region, sender, receiver, locator, store = map(repr, objects_of(sites.ny))
    assert re.fullmatch(r"<Cache server_ny of site 1 on 127.0.0.1\[\d+\], 1 region, 1 gateway sender>", cache)
    assert region == "<Region orders PARTITION with 1 entry>"
    assert sender == "<GatewaySender ln to site 2, Running and Connected, 0 queued, 0 parked>"
    assert re.fullmatch(
        r"<GatewayReceiver of member server_ny, running on 127.0.0.1\[\d+\], \d+ connections?>", receiver
    )
    assert re.fullmatch(r"<Locator locator_ny of site 1, running on 127.0.0.1\[\d+\], 1 member>", locator)
    assert store == "<DiskStore store, open, 0 logs being written>"


def test_a_table_for_a_notebook_tells_the_same_and_more(sites):
    cache, region, sender, receiver, locator, store = (text_of(each._repr_html_()) for each in objects_of(sites.ny))
    assert (cache["regions"], cache["gateway senders"]) == ("orders", "ln: Running and Connected")
    assert (region["entries"], region["gateway senders"], region["disk store"]) == ("1", "ln", "none")
    assert (sender["queued events"], sender["parallel"], sender["remote site"]) == ("0", "no", "2")
    assert receiver["state"] == "running" and receiver["events received"] == "0"
    assert (locator["members"], locator["problem of the cluster configuration"]) == ("1", "none")
    assert "0 B of 100 MiB" in store.values()


def test_what_is_closed_shows_that_it_is(tmp_path):
    with two_sites("orders", dir=tmp_path) as sites:
        sites.ny.cache.create_disk_store("store", directories=[(tmp_path / "small", 100)])
        objects = objects_of(sites.ny)
    words = ["closed", "closed", "Not running", "stopped", "stopped", "closed"]
    for each, word in zip(objects, words, strict=True):
        assert word in repr(each) and word in each._repr_html_()
        assert "\n" not in repr(each)


def test_a_repr_waits_for_no_lock(sites):
    """A debugger may stop the program while some thread holds them."""
    cache, _, sender, receiver, locator, store = objects = objects_of(sites.ny)
    taken, done = threading.Event(), threading.Event()

    def hold():
        core = cache._core
        with core.state.lock, sender._core._lock, receiver._lock, locator._lock, locator._life, store._core._guard:
            taken.set()
            done.wait(LIMIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(LIMIT_S)
        shown = []
        reader = threading.Thread(target=lambda: shown.extend((repr(each), each._repr_html_()) for each in objects))
        reader.start()
        reader.join(LIMIT_S)
        assert len(shown) == len(objects)
    finally:
        done.set()
        thread.join()


def test_a_forked_child_shows_whose_the_objects_are(sites):
    objects = objects_of(sites.ny)
    child = os.fork()
    if child == 0:
        is_told = all("of the parent process" in repr(each) + each._repr_html_() for each in objects)
        os._exit(0 if is_told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_object_that_was_not_made_completely_shows_itself_all_the_same():
    cache = Cache.__new__(Cache)
    assert repr(cache) == "<Cache, not usable>"
    assert text_of(cache._repr_html_()) == {"state": "not usable"}


def test_what_a_table_shows_is_escaped():
    class Odd(Described):
        def _line(self):
            return "odd"

        def _facts(self):
            return {"<name>": "<script>alert('x')</script>", "list": ["a&b", 2]}

    table = Odd()._repr_html_()
    assert "<script>" not in table and "<name>" not in table
    assert text_of(table)["list"] == "a&amp;b, 2"
    assert "<caption>&lt;title&gt;</caption>" in html_table("<title>", {})


def test_a_ledger_prints_as_one_line_and_is_a_plain_map(sites):
    ledger = sites.ny.sender.ledger()
    assert isinstance(ledger, Ledger) and ledger == dict(ledger)
    assert repr(ledger) == "<Ledger balanced: received 1, queued 1, distributed 1>"
    assert str(ledger) == repr(ledger)
    assert text_of(ledger._repr_html_())["distributed"] == "1"


@pytest.mark.parametrize(
    "count, thing, words", [(1, "entry", "1 entry"), (0, "entry", "0 entries"), (1234, "event", "1,234 events")]
)
def test_counted_things(count, thing, words):
    assert counted(count, thing) == words
