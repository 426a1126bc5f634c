"""A region that nobody answers for: shell and errors of calls say whether it is nowhere, or for whom it waits."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pywan
from pywan.cli.commands import COMMANDS
from pywan.cli.output import Output
from pywan.cli.session import Session
from pywan.testing.waiting import eventually
from site_crash.world import Site

CART = {"name": "cart", "type": "PARTITION", "total_num_buckets": 113}
MINE = {"name": "mine", "type": "PARTITION", "total_num_buckets": 7}
LIMIT = 15
Fails = Callable[[str], str]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, regions=[CART], member_timeout_ms=1000) as site:
        yield site


@pytest.fixture
def fails(site: Site) -> Fails:
    """A function that gives a command to the site, and returns the words with which it failed."""

    def fails(line: str) -> str:
        out = io.StringIO()
        assert not Session(COMMANDS, Output(True, out, out), f"127.0.0.1[{site.port}]").run_line(line)
        return "; ".join(json.loads(out.getvalue().splitlines()[-1])["errors"])

    return fails


def test_a_region_whose_members_are_unreachable_is_told_apart_from_one_that_is_nowhere(
    site: Site, fails: Fails
) -> None:
    two = site.start("two")
    two.do("cart", "put", "k", 1)
    site.start("other", [MINE])  # A coordinator that hears nobody would give nobody up.
    assert "region 'card' is on no member of the site" in fails("get --region=card --key=k")
    two.stop()
    eventually(
        lambda: site.locator.ask("coordination")["waiting_regions"].get("cart", {}).get("buckets") == 113,
        LIMIT,
        "it is given up",
    )
    words = fails("get --region=cart --key=k")
    assert re.search(
        r"region 'cart': no member that has it answers: two \(lost\); 113 of its buckets wait for two:"
        r" start them again .* revoke member --name=NAME",
        words,
    ), words
    two.go_on()
    eventually(lambda: two.do("cart", "get", "k") == 1)


def test_a_call_to_a_bucket_that_waits_says_for_which_member(site: Site) -> None:
    two = site.start("two")
    with pywan.Cache("here", locators=f"127.0.0.1[{site.port}]", call_timeout=3) as here:
        cart = here.create_region(**CART)
        two.do("cart", "put", "k", 1)
        two.stop()
        words = r"member two at .* did not answer within 3 s: .* `show coordinator` says who"
        with pytest.raises(pywan.ConnectivityError, match=words):
            for _ in range(1000):  # The first ones may be answered before the process stands still.
                cart.get("k")
        two.go_on()


def test_the_shell_says_that_the_coordinator_is_away_and_not_that_a_region_is_nowhere(site: Site, fails: Fails) -> None:
    site.start("two")
    assert "'card' is on no member of the site" in fails("get --region=card --key=k")
    site.kill_locator()
    assert "is on no member" not in fails("get --region=cart --key=k")
