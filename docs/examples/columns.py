"""Columns go into a region as they are: a million rows in a fraction of a second."""

import numpy

from pywan.testing import two_sites

with two_sites("ticks") as sites:
    ticks = sites.ny.region("ticks")
    ticks.put_columns(numpy.arange(1_000_000), numpy.linspace(0.0, 1.0, 1_000_000))
    sites.settle(timeout=60)
    there = sites.ln.region("ticks")
    print(len(there), there[0], there[999_999])  # prints: 1000000 0.0 1.0
