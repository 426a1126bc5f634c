"""The two sites that a program's own tests use: `pywan.testing.two_sites`."""

from __future__ import annotations

import gc
import re

import pytest

from pywan import Cache
from pywan.errors import ConfigurationError, RegionNotFoundError
from pywan.spark import enqueue
from pywan.testing import eventually, two_sites
from support.threads import threads


@pytest.fixture
def sites():
    before = threads()
    with two_sites("orders") as found:
        yield found
    eventually(lambda: not threads() - before, what="the end of every thread")


def test_a_change_of_either_site_is_at_the_other_one_once_they_settled(sites):
    sites.ny.region("orders")["from ny"] = 1
    sites.ln.region("orders")["from ln"] = {"price": 101.5}
    sites.settle()
    assert (
        dict(sites.ny.region("orders"))
        == dict(sites.ln.region("orders"))
        == {"from ny": 1, "from ln": {"price": 101.5}}
    )


def test_a_region_is_created_in_both_sites_with_its_attributes(sites):
    ny, ln = sites.create_region("trades", type="REPLICATE")
    assert ny.type == ln.type == "REPLICATE"
    ny["k"] = "v"
    sites.settle()
    assert ln["k"] == "v"


def test_a_region_that_is_not_there_is_named_with_those_that_are(sites):
    with pytest.raises(RegionNotFoundError, match="no region 'order'; it has orders"):
        sites.ny.region("order")


def test_settling_names_what_was_parked(sites):
    sites.ny.create_region("only_here")["k"] = 1
    with pytest.raises(AssertionError) as told:
        sites.settle()
    assert (
        "site 'ny', sender 'ln': the create of key 'k' of region 'only_here' is parked: the region does not exist at"
        " the remote site" in str(told.value)
    )
    sites.ny.sender.drop_parked()
    sites.settle()


def test_settling_names_what_a_stopped_sender_dropped_once(sites):
    orders = sites.ln.region("orders")
    orders["first"] = 1
    sites.settle()
    sites.ln.sender.stop()
    orders["second"] = 2
    with pytest.raises(AssertionError) as told:
        sites.settle()
    assert str(told.value).endswith(
        "site 'ln', sender 'ny': 1 events were dropped: sender not running; keys that differ: 'second' of region"
        " 'orders'"
    )
    sites.settle()


def test_a_region_compares_with_a_mapping_as_a_dict_does(sites):
    orders, other = sites.ny.region("orders"), sites.ln.region("orders")
    assert orders == {} and other != {"k": 1}
    orders["k"], orders["nothing"] = {"price": 1}, None
    sites.settle()
    assert orders == {"k": {"price": 1}, "nothing": None} == other
    assert orders != {"k": {"price": 2}, "nothing": None}
    assert orders != {"k": {"price": 1}}
    assert orders == orders  # noqa: PLR0124
    assert orders != other and orders in [other, orders] and orders != 5


def test_sites_that_cannot_settle_say_why(sites):
    sites.ny.sender.pause()
    sites.ny.region("orders")["k"] = 1
    with pytest.raises(TimeoutError, match=r"1 events of <site ny> still wait after 0.1 s.*paused"):
        sites.settle(timeout=0.1)


def test_senders_have_the_attributes_that_were_asked_for_and_disk_stores_are_below_the_folder(tmp_path):
    with two_sites(dir=tmp_path, maximum_queue_memory=7) as sites:
        assert [site.sender.attributes.maximum_queue_memory for site in sites] == [7, 7]
        for site in sites:
            site.cache.create_disk_store("d")
    assert {path.name for path in tmp_path.iterdir()} == {"server_ny", "server_ln"}


def test_a_locator_where_its_address_is_wanted_is_named_with_the_address(sites):
    locator = sites.ny.locator
    with pytest.raises(ConfigurationError, match=re.escape(f"write locators='{locator.address}'")):
        Cache("other", locators=locator)
    with pytest.raises(ConfigurationError, match=re.escape(f"write locators='{locator.address}'")):
        enqueue(None, locators=locator, region="orders")
    with pytest.raises(ConfigurationError, match="locators=10334 is no text"):
        Cache("other", locators=10334)


# Without a `with` block, as in a notebook


def test_sites_without_a_block_run_until_they_are_closed():
    before = threads()
    sites = two_sites("orders")
    orders = sites.ny.region("orders")
    orders["a"] = 1
    sites.settle()
    gc.collect()
    orders["b"] = 2
    sites.settle()
    assert dict(sites.ln.region("orders")) == {"a": 1, "b": 2}
    assert not sites.ny.cache.is_closed
    sites.close()
    assert sites.ny.cache.is_closed and sites.ln.cache.is_closed
    sites.close()
    eventually(lambda: not threads() - before, what="the end of every thread")


def test_sites_to_which_no_name_refers_run_on_and_are_warned_of():
    sites = two_sites("orders")
    ny, ln = sites
    ending = sites._ending
    with pytest.warns(ResourceWarning, match="never closed, and its sites still run"):
        del sites
        gc.collect()
    ny.region("orders")["a"] = 1
    eventually(lambda: ln.region("orders").get("a") == 1, what="that the change is at the other site")
    ending.close()


def test_entering_the_sites_by_hand_keeps_them():
    sites = two_sites("orders").__enter__()
    gc.collect()
    sites.ny.region("orders")["a"] = 1
    sites.settle()
    sites.close()


def test_sites_that_cannot_be_made_leave_nothing_behind():
    before = threads()
    with pytest.raises(ConfigurationError, match="batch_sise"):
        two_sites(batch_sise=5)
    eventually(lambda: not threads() - before, what="the end of every thread")
