"""Owns one process of a site with many regions in benchmarks: a locator, or a member that creates regions. It is asked
through `pywan.testing.site_processes`."""

from __future__ import annotations

from pywan.testing.site_processes import SiteProcess, serve_site

BUCKETS = 113


class Member(SiteProcess):
    def create(self, first: int, end: int, redundant_copies: int) -> None:
        """Creates the regions of these numbers, and returns when their calls work."""
        for number in range(first, end):
            self.cache.create_region(
                name_of(number), type="PARTITION", redundant_copies=redundant_copies, total_num_buckets=BUCKETS
            ).put("key", number)


def name_of(number: int) -> str:
    return f"region_{number}"


if __name__ == "__main__":
    serve_site(Member())
