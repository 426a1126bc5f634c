"""Owns a second way into a site for tests: a locator that knows the site's receivers and none of its locators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pywan.site.locator import Locator
from pywan.site.membership import Membership, new_profile


@contextlib.contextmanager
def door_to(site: Locator, **locator: Any) -> Iterator[str]:
    """The address of a locator that tells of the receivers which the site has now.

    It tells nothing else. So a second site with the number of a first one, which finds its way through such a door,
    does not hear of the first one's locators, nor do they hear of it.
    """
    with Locator("locator_door", distributed_system_id=site.distributed_system_id, port=0, **locator) as door:
        members = [
            Membership(
                str(door.address),
                {**new_profile(each["name"], each["host"], each["port"]), "receivers": each["receivers"]},
                way=door._links.locator,
            )
            for each in site.members()
            if each["receivers"]
        ]
        try:
            for member in members:
                member.join()
            yield str(door.address)
        finally:
            for member in members:
                member.leave()
