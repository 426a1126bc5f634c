"""A few rounds of the campaign against a site of several members; `make crash-site` runs many."""

from __future__ import annotations

import pytest

from site_crash.campaign import run


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.parametrize("faults", [("kill",), ("pause",), ("end", "locator")], ids="-".join)
def test_every_answer_fits_one_order_whatever_happens_to_the_processes(faults):
    counts = run(7, 3, faults=faults)
    assert counts["rounds"] == 3 and counts["operations"] > 100
    assert not counts["keys violation"]
