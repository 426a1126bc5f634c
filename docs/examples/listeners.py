"""A listener hears each change of a region in its own process, those of other sites too."""

import pywan
from pywan.testing import two_sites


class Ticker(pywan.CacheListener):
    def after_create(self, event):
        print("new", event.key, event.new_value, "from site", event.origin_site)

    def after_update(self, event):
        print("now", event.key, event.new_value, "instead of", event.old_value)


with two_sites("prices") as sites:
    sites.ln.region("prices").add_listener(Ticker())
    prices = sites.ny.region("prices")
    prices["ACME"] = 101.5
    prices["ACME"] = 102.0
    sites.settle()
# prints: new ACME 101.5 from site 1
# prints: now ACME 102.0 instead of 101.5
