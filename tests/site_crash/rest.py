"""Owns the question whether a site is whole and at rest: its replicas are compared one by one, each in its own
member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pywan.testing.waiting import LIMIT_S, eventually

from .layouts import BUCKETS_OF_A_REPLICATE
from .world import Site

ROLES = ("primary", "copy")


def wait_until(why: Any, what: str, timeout: float = LIMIT_S) -> None:
    """Returns as soon as `why()` has no more words for why something is not there yet. The error has the last ones."""
    last = [""]

    def is_there() -> bool:
        last[0] = why()
        return not last[0]

    try:
        eventually(is_there, timeout)
    except AssertionError:
        raise AssertionError(f"{what}: not within {timeout:g} s: {last[0]}") from None


def why_not_whole(site: Site, regions: Sequence[Mapping[str, Any]]) -> str:
    """Why a bucket is without its primary, or has not as many replicas as its region wants; empty: all have.

    For a while a bucket may have one more: of a member that was not heard when another one got a replica instead.
    """
    for region in regions:
        counts = list(site.counts(region["name"]).values())
        buckets, replicas = _wanted(region, len(counts))
        leads = sum(each.get("primary", 0) for each in counts)
        follows = sum(each.get("copies", 0) for each in counts)
        learns = sum(each.get("learning", 0) for each in counts)
        if leads != buckets or follows != buckets * (replicas - 1) or learns:
            return f"{region['name']}: {leads} primaries, {follows} replicas, {learns} learners of {buckets} buckets"
    return ""


def why_no_rest(site: Site, regions: Sequence[Mapping[str, Any]]) -> str:
    """Why the site is not at rest, while nobody changes anything; empty: it is. The replicas of each bucket have the
    same stream and the same table then, and nobody else has anything of the bucket."""
    return _unrest_of_coordinator(site) or next(
        filter(None, (_unrest_of_region(site, region) for region in regions)), ""
    )


def _wanted(region: Mapping[str, Any], members: int) -> tuple[int, int]:
    """How many buckets a region has, and with how many copies each."""
    buckets = int(region.get("total_num_buckets", BUCKETS_OF_A_REPLICATE))
    redundant = int(region.get("redundant_copies", members if region["type"] == "REPLICATE" else 0))
    return buckets, min(members, 1 + redundant)


def _unrest_of_coordinator(site: Site) -> str:
    told = site.locator.ask("coordination")
    if not told["decides"] or told["problem"]:
        return f"the coordinator decides nothing: {told['problem']}"
    if told["waits_us"] or told["buckets_without_primary"]:
        return f"the coordinator waits {told['waits_us']} us; {told['buckets_without_primary']} buckets without primary"
    for member in told["members"]:
        if member["state"] != "alive" or member["waited_for"]:
            return f"{member['incarnation']} is {member['state']}, and {member['waited_for']} buckets wait for it"
    names = sorted(each["name"] for each in told["members"])
    if names != sorted(site.members):
        return f"the members are {', '.join(names)}"
    waiting = {name: process.ask("status")["coordination"]["waiting"] for name, process in site.members.items()}
    return f"members wait for decisions: {waiting}" if any(waiting.values()) else ""


def _unrest_of_region(site: Site, region: Mapping[str, Any]) -> str:
    name = region["name"]
    tables = {member: process.ask("buckets", name) for member, process in site.members.items()}
    count, replicas = _wanted(region, len(tables))
    for number in range(count):
        held = {member: table[number] for member, table in tables.items()}
        roles = {member: each.get("role", "nothing") for member, each in held.items()}
        of = f"{name}[{number}]"
        if [*roles.values()].count("primary") != 1 or [*roles.values()].count("copy") != replicas - 1:
            return f"{of} has not one primary and {replicas - 1} replicas: {roles}"
        if any(each.get("waiters") for each in held.values()):
            return f"calls wait for changes of {of} to count"
        whole = [each for member, each in held.items() if roles[member] in ROLES]
        same = {tuple(value for what, value in sorted(each.items()) if what != "role") for each in whole}
        if len(same) > 1:
            return f"the replicas of {of} differ: {held}"
        if whole[0]["log_end"] != whole[0]["high_watermark"]:
            return f"changes of {of} do not count yet: {held}"
        if any(each["entries"] for member, each in held.items() if roles[member] not in ROLES):
            return f"a member that is no replica of {of} has entries of it: {held}"
    return ""
