"""Moves a bucket's replica or its primary to another member, through a locator of the site."""

from __future__ import annotations

import time

from pywan.base.addresses import Address, parse_address
from pywan.errors import IllegalStateError
from pywan.transport.control import call_once
from pywan.transport.links import PLAIN, Way

MOVE_TIMEOUT_S = 60.0  # The snapshot of a large bucket takes long.
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
    """Moves a bucket and all buckets colocated with the bucket. Returns when the move is done.

    Args:
        locator: The address of any locator of the site.
        region: The name of the region.
        bucket: The number of the bucket.
        to: The name of the member that is to have the replica, or to lead.
        what: "replica": `to` gets a replica, and then the old replica is removed. "primary": `to`, which has a replica,
            leads.
        source: The name of the member whose replica is removed. Empty: the coordinator chooses a replica that does not
            lead.
        timeout_s: The time in seconds for the whole move.
        way: Connects to locators.

    Raises:
        IllegalStateError: The site does not move the bucket, or has not completed the move in time. The text has the
            reason. The coordinator gives up an incomplete move ten seconds later.
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
