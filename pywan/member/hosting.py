"""Owns what a member tells its site of its regions: which ones it has, and what all members must say alike of each."""

from __future__ import annotations

from pywan.config.attributes import RegionAttributes
from pywan.coordination import tables
from pywan.region.member_region import MemberRegion
from pywan.site.agent import Agent

EQUAL_WEIGHT_MB = 1024  # What a member without local-max-memory counts for, beside others.


class Hosting:
    """Tells the agent of the member's regions. `Regions` calls it; a region that is local to the member is not told."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def hosting(self, made: RegionAttributes) -> None:
        """A region is about to be created. IllegalStateError names the reason if the site does not allow it.

        It waits for the coordinator up to a limit. A member without a coordinator creates its regions alone.
        """
        if is_of_site(made):
            self._agent.host(made.name, site_attributes(made), weight_of(made))

    def hosted(self, region: MemberRegion) -> None:
        """The region was created."""

    def unhosted(self, made: RegionAttributes) -> None:
        """The region is gone from this member, or was not created."""
        if is_of_site(made):
            self._agent.unhost(made.name)


def is_of_site(made: RegionAttributes) -> bool:
    return made.is_partitioned or made.is_replicated


def weight_of(made: RegionAttributes) -> int:
    if not made.stores_entries:
        return 0
    return EQUAL_WEIGHT_MB if made.local_max_memory is None else made.local_max_memory


def site_attributes(made: RegionAttributes) -> tables.RegionAttributes:
    """Returns what all members of the site must say alike of the region."""
    return tables.RegionAttributes(
        tables.Kind.PARTITION if made.is_partitioned else tables.Kind.REPLICATE,
        total_num_buckets=made.total_num_buckets,
        redundant_copies=made.redundant_copies or 0,
        colocated_with=made.colocated_with or "",
        min_in_sync_copies=made.min_in_sync_copies,
        recovery_delay_ms=made.recovery_delay,
        startup_recovery_delay_ms=made.startup_recovery_delay,
        only_once="it is persistent" if made.is_persistent else "it has senders" if made.gateway_sender_ids else "",
    )
