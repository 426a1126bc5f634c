"""Lays out an operator's view of a coordinator, as plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pywan.coordination.decisions import Decisions
from pywan.coordination.grace_period import GracePeriod
from pywan.coordination.leavers import Leavers
from pywan.coordination.liveness import Liveness
from pywan.coordination.reports import Reports
from pywan.coordination.tables import ROLE_PREFIX, BucketKey, Incarnation, Kind, is_role


def status_of_site(site: Decisions, grace_period: GracePeriod, now_us: int) -> dict[str, Any]:
    grace_period_us, incomplete = grace_period.next_us(), _incomplete_regions(site)
    return {
        "generation": site.recovery_epoch,
        "run": site.controller_epoch,
        "decision": site.number,
        "waits_us": 0 if grace_period_us is None else max(grace_period_us - now_us, 0),
        "regions": sum(not is_role(each) for each in site.regions),
        "buckets": sum(not is_role(key.region) for key in site.buckets),
        "buckets_without_primary": sum(each["buckets_without_primary"] for each in incomplete.values()),
        "missing_copies": sum(each["missing_copies"] for each in incomplete.values()),
        "images": sum(each["images"] for each in incomplete.values()),
        "incomplete_regions": incomplete,
        "senders": _senders(site),
    }


def _senders(site: Decisions) -> dict[str, dict[str, Any]]:
    """By id of a gateway sender: the members with a running sender, and the primary of the sender."""
    found = {}
    for region in sorted(filter(is_role, site.regions)):
        bucket = site.buckets.get(BucketKey(region, 0))
        primary = None if bucket is None else bucket.primary
        runs_on = sorted(each.name for each, weight in site.hosts(region).items() if weight)
        if runs_on:
            found[region.removeprefix(ROLE_PREFIX)] = {
                "runs_on": runs_on,
                "primary": "" if primary is None else primary.name,
            }
    return found


def waiting_regions(site: Decisions, liveness: Liveness) -> dict[str, dict[str, Any]]:
    """By region with waiting buckets: how many buckets wait, and for which members. A bucket waits if the bucket has no
    primary, or if the primary's lease has expired, even in a region without members. A bucket that waits for no member
    in particular needs any member that can store the bucket."""
    found: dict[str, dict[str, Any]] = {}
    for key, bucket in site.buckets.items():
        if is_role(key.region):
            continue
        if bucket.primary is None or liveness.is_expired(bucket.primary):
            told = found.setdefault(key.region, {"buckets": 0, "waits_for": set()})
            told["buckets"] += 1
            told["waits_for"].update(each.name for each in bucket.content)
    return {region: {**told, "waits_for": sorted(told["waits_for"])} for region, told in sorted(found.items())}


def _incomplete_regions(site: Decisions) -> dict[str, dict[str, int]]:
    """By incomplete region: its buckets without a primary, the in-sync replicas missing from the number in the
    attributes, and the snapshots on their way to learners."""
    found = {}
    for region, attributes in sorted(site.regions.items()):
        if is_role(region):
            continue
        hosts, load = site.hosts(region), site.loads[region]
        storing = sum(bool(weight) for weight in hosts.values())
        wanted = storing if attributes.kind is Kind.REPLICATE else 1 + attributes.redundant_copies
        counts = {
            "buckets_without_primary": len(site.of_region[region]) - load.led if hosts else 0,
            "missing_copies": load.missing(wanted) if storing else 0,
            "images": load.learners,
        }
        if any(counts.values()):
            found[region] = counts
    return found


def status_of_members(
    site: Decisions, grace_period: GracePeriod, liveness: Liveness, reports: Reports, leavers: Leavers, now_us: int
) -> list[dict[str, Any]]:
    waiting = reports.waited_for
    for member in liveness.expired:
        waiting[member] += len(site.naming(member))
    primaries: Counter[Incarnation] = Counter()
    for load in site.loads.values():
        primaries.update(load.primaries)

    def state_of(member: Incarnation) -> str:
        if liveness.is_expired(member):
            return "lost"
        if member in grace_period:
            return "not heard"
        return "leaving" if leavers.is_leaving(member) else "down" if liveness.is_down(member) else "alive"

    return [
        {
            "name": each.name,
            "incarnation": str(each),
            "host": profile.host,
            "port": profile.port,
            "version": profile.version,
            "state": state_of(each),
            "lease_us": max((liveness.lease_until_us(each) or 0) - now_us, 0),
            "regions": [region for region, _ in profile.hosting if not is_role(region)],
            "primaries": primaries[each],
            "copies": sum(each in bucket.replicas_to_be for _, bucket in site.held_by(each)),
            "waited_for": waiting[each],
        }
        for each, profile in sorted(site.members.items())
    ]
