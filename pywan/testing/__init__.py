"""Tools for tests: two sites in one process, a network that fails on command, and waiting for a condition."""

from pywan.testing.sites import TestSite, TwoSites, two_sites
from pywan.testing.waiting import eventually

__all__ = ["TestSite", "TwoSites", "eventually", "two_sites"]
