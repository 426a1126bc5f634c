"""Owns the rules which regions and senders go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pywan.config.attributes import QueueAttributes, RegionAttributes
from pywan.errors import IllegalStateError


def validate_attachment(region: RegionAttributes, sender: QueueAttributes) -> None:
    """Raises a ConfigurationError if events of `region` cannot go to `sender`.

    It is called when either is created, and when the region is altered.
    """
    if sender.parallel and not region.is_partitioned:
        raise sender.error(
            f"{sender.what} is parallel and cannot be used with region {region.name!r} of type"
            f" {region.type}; use a serial one (parallel=false) or a partitioned region"
        )
    if sender.parallel and region.is_persistent and not sender.enable_persistence:
        raise sender.error(
            f"{sender.what} is not persistent and cannot be used with the persistent region"
            f" {region.name!r}; create it with {sender.persistence_word}=true"
        )


def validate_colocation(
    region: RegionAttributes,
    others: Iterable[RegionAttributes],
    senders: Mapping[str, QueueAttributes],
) -> None:
    """Raises IllegalStateError if a region cannot be colocated, or cannot share a sender, with the other regions.

    A region is colocated with a partitioned region that has as many buckets. A parallel sender is shared only by
    colocated regions, because it has one partition for each of their buckets.
    """
    shared = {id for id in region.queue_ids if id in senders and senders[id].parallel}
    if region.colocated_with is None and not shared:
        return  # A region fits beside any number of others.
    others = [other for other in others if other.name != region.name]
    table = {other.name: other.colocated_with for other in others} | {region.name: region.colocated_with}
    if region.colocated_with is not None and region.colocated_with not in table:
        raise IllegalStateError(
            f"region {region.name!r}: there is no region {region.colocated_with!r} to be colocated"
            " with; create that one first"
        )
    parent = next((other for other in others if other.name == region.colocated_with), None)
    if parent is not None and not parent.is_partitioned:
        raise IllegalStateError(
            f"region {region.name!r}: it cannot be colocated with {parent.name!r}, which is of type {parent.type} and"
            " has no buckets; name a partitioned region"
        )
    if parent is not None and parent.total_num_buckets != region.total_num_buckets:
        raise IllegalStateError(
            f"region {region.name!r}: its total_num_buckets {region.total_num_buckets} differ from"
            f" {parent.total_num_buckets} of {parent.name!r}, with which it is to be colocated; give both the same"
        )
    for other in others:
        for sender_id in shared.intersection(other.queue_ids):
            if _leader(region.name, table) != _leader(other.name, table):
                raise IllegalStateError(
                    f"regions {other.name!r} and {region.name!r} cannot share the parallel {senders[sender_id].what},"
                    " as they are not colocated; use another one, or colocated_with"
                )


def _leader(name: str, colocated_with: Mapping[str, str | None]) -> str:
    seen = {name}
    while (parent := colocated_with.get(name)) is not None and parent not in seen:
        seen.add(parent)
        name = parent
    return name
