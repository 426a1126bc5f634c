"""Moves a bucket's copy or its primary to another member, through a locator of the site."""

from __future__ import annotations

import time

from pywan.base.addresses import Address, parse_address
from pywan.errors import IllegalStateError
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way

MOVE_TIMEOUT_S = 60.0  # The image of a large bucket takes long.
REPEAT_S = 0.02


def move_bucket(
    locator: Address,
    region: str,
    bucket: int,
    *,
    to: str,
    what: str,
    source: str = "",
    timeout_s: float = MOVE_TIMEOUT_S,
    way: Way = PLAIN.locator,
) -> None:
    """Moves a bucket, and those that are colocated with it. Returns when it is done.

    Args:
        locator: The address of any locator of the site.
        region: The name of the region.
        bucket: The number of the bucket.
        to: The name of the member that is to have the copy, or to lead.
        what: "copy": `to` gets a copy, and then the old copy goes. "primary": `to`, which has a copy, leads.
        source: The name of the member whose copy goes. Empty: the coordinator chooses one that does not lead.
        timeout_s: The time in seconds for all of it.
        way: Connects to locators.

    Raises:
        IllegalStateError: The site does not move the bucket, or has not done it in time. The words say why. What is
            not done in time is given up ten seconds later.
    """
    fields = {"region": region, "bucket": bucket, "what": what, "to": to, "source": source}
    deadline, reason = time.monotonic() + timeout_s, "it is under way"
    while time.monotonic() < deadline:
        answer = call_once(locator, "coordination-move-bucket", timeout=timeout_s, way=way, **fields)
        if not answer["decides"] and answer.get("address"):
            locator = parse_address(answer["address"])
        if answer["decides"] and answer["refusal"]:
            raise IllegalStateError(f"bucket {region}[{bucket}] is not moved to member {to}: {answer['refusal']}")
        if answer["decides"] and answer["is_done"]:
            return
        reason = answer.get("problem") or reason
        time.sleep(REPEAT_S)
    raise IllegalStateError(f"bucket {region}[{bucket}] was not moved to member {to} in {timeout_s:g} s: {reason}")
