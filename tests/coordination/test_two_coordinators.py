"""Locators of one site that each have a coordinator of their own: nobody chooses between them without a word."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pywan
from pywan.base.clocks import boot_us
from pywan.coordination.claims import CLAIM_FILE, JOURNAL_FILE
from pywan.errors import IllegalStateError
from pywan.site.locator import Locator
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import call_once
from support.small_members import locator

WORDS_S = 2.0  # A member that may be taken in later waits for so long.


def coordination(site: Locator) -> dict:
    return call_once(site.address, "coordination-show", timeout=LIMIT_S)["coordination"]


def identity(site: Locator) -> str:
    return coordination(site)["site_identity"]


def member(name: str, *locators: Locator, **more: object) -> pywan.Cache:
    return pywan.Cache(name, locators=",".join(str(each.address) for each in locators), **more)


def names_all(text: str, *locators: Locator) -> bool:
    told = [word for each in locators for word in (each.name, str(each.address), identity(each))]
    return all(word in text for word in told)


@contextlib.contextmanager
def strangers(folder: Path) -> Iterator[tuple[Locator, Locator]]:
    """Two locators that do not know each other. Each has taken a member in."""
    with locator("one", dir=folder) as one, locator("two", dir=folder) as two:
        for each in (one, two):
            member(f"first of {each.name}".replace(" ", "-"), each).close()
        yield one, two


def test_a_new_member_refuses_locators_of_two_sites_and_names_them_and_the_remedy(tmp_path):
    with strangers(tmp_path) as (one, two):
        for order in ((one, two), (two, one)):
            with pytest.raises(IllegalStateError, match="give each locator the other one in its `locators`") as raised:
                member("new", *order)
            assert names_all(str(raised.value), one, two)
            assert "take one of them out of `locators`" in str(raised.value)
        assert not any(each["name"] == "new" for site in (one, two) for each in coordination(site)["members"])
        member("new", two).close()


def test_it_refuses_them_too_when_neither_has_decided_anything(tmp_path):
    with locator("one", dir=tmp_path) as one, locator("two", dir=tmp_path) as two:
        with pytest.raises(IllegalStateError, match="belong to two sites") as raised:
            member("new", one, two, join_timeout=WORDS_S)
        assert names_all(str(raised.value), one, two)
        assert not coordination(one)["members"] and not coordination(two)["members"]


def test_two_locators_of_one_name_are_two_sites_all_the_same(tmp_path):
    with locator("same", dir=tmp_path / "1") as one, locator("same", dir=tmp_path / "2") as two:
        with pytest.raises(IllegalStateError, match="belong to two sites") as raised:
            member("new", one, two, join_timeout=WORDS_S)
        assert names_all(str(raised.value), one, two)


def test_a_member_that_knows_its_site_stays_there_and_says_once_that_the_other_locator_is_not_of_it(tmp_path, caplog):
    with strangers(tmp_path) as (one, two):
        member("a", one, dir=tmp_path / "a").close()
        with (
            caplog.at_level(logging.ERROR, "pywan.agent"),
            member("a", two, one, dir=tmp_path / "a") as again,
        ):
            assert again.status()["coordination"]["coordinator"] == "one"
            assert [each["name"] for each in coordination(one)["members"]] == ["a"] and not coordination(two)["members"]
            until_us = boot_us() + 2_500_000  # The locators are heard every second.
            eventually(lambda: boot_us() > until_us)
        told = [each.getMessage() for each in caplog.records if "stays in the site" in each.getMessage()]
        assert len(told) == 1 and names_all(told[0], two) and identity(one) in told[0] and "`locators`" in told[0]


def lists_of_each_other(folder: Path, stack: contextlib.ExitStack) -> tuple[Locator, Locator]:
    """Both have coordinated alone. Now they start again, and each one lists the other."""
    with strangers(folder) as (one, two):
        member("a", one, dir=folder / "a").close()
        places = f"{one.address},{two.address}"
        ports = one.port, two.port
    names = zip(("one", "two"), ports, strict=True)
    first, second = (stack.enter_context(locator(name, port, dir=folder, locators=places)) for name, port in names)
    eventually(lambda: coordination(first)["problem"] and coordination(second)["problem"])
    return first, second


def test_locators_that_list_each_other_and_both_coordinate_take_no_new_member_in(tmp_path):
    with contextlib.ExitStack() as stack:
        one, two = lists_of_each_other(tmp_path, stack)
        for each in ((one,), (two,), (one, two)):
            with pytest.raises(IllegalStateError, match=re.escape(CLAIM_FILE)) as raised:
                member("new", *each)
            assert names_all(str(raised.value), one, two) and JOURNAL_FILE in str(raised.value)
        assert names_all(coordination(two)["problem"], one, two)
        with member("a", two, one, dir=tmp_path / "a") as known:
            assert known.status()["coordination"]["coordinator"] == "one"


def test_the_remedy_that_they_name_makes_them_one_site(tmp_path):
    with contextlib.ExitStack() as stack:
        one, two = lists_of_each_other(tmp_path, stack)
        two.stop()
        for name in (CLAIM_FILE, JOURNAL_FILE):
            (tmp_path / "two" / name).unlink()
        with locator("two", two.port, dir=tmp_path, locators=str(one.address)) as two:
            eventually(lambda: coordination(two)["coordinator"] == "one")
            eventually(lambda: not coordination(one)["problem"])
            with member("new", two, one) as new:
                assert new.status()["coordination"]["coordinator"] == "one"
