"""A conflict resolver decides what two sites keep that changed one key at the same time. It decides alike in both."""

import pywan
from pywan.testing import two_sites


class TheHigherBidStays(pywan.GatewayConflictResolver):
    def on_event(self, event, helper):
        if event.old_value is not None and event.new_value["bid"] < event.old_value["bid"]:
            helper.disallow_event()


with two_sites("auction") as sites:
    for site in sites:
        site.cache.set_conflict_resolver(TheHigherBidStays())
        site.sender.pause()
    sites.ny.region("auction")["vase"] = {"bid": 500, "by": "New York"}
    sites.ln.region("auction")["vase"] = {"bid": 300, "by": "London"}  # Later, and lower.
    for site in sites:
        site.sender.resume()
    sites.settle()
    print(sites.ny.region("auction")["vase"])  # prints: {'bid': 500, 'by': 'New York'}
    print(sites.ln.region("auction")["vase"])  # prints: {'bid': 500, 'by': 'New York'}
