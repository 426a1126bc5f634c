"""The two sites that a program's own tests use: `pywan.testing.two_sites`."""

from __future__ import annotations

import pytest

from conftest import threads
from pywan.testing import eventually, two_sites


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


def test_a_region_that_is_not_there_is_a_key_error(sites):
    with pytest.raises(KeyError, match="nothing"):
        sites.ny.region("nothing")


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
