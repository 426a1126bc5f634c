"""Owns a member with a persistent sender, on a folder that stays."""

from __future__ import annotations


class Member:
    """The only member of ny, on a folder that stays, with a persistent sender to ln and the region `data`."""

    def __init__(self, site, folder, parallel, type, **attributes):
        self.site, self.folder, self.type = site, folder, type
        self.attributes = {"parallel": parallel, "enable_persistence": True, **attributes}
        site.cache.close()
        self.begin()

    def begin(self, *, region_first=False, **more):
        self.site.start_member(dir=self.folder)
        if region_first:
            self.make_region()
        self.sender = self.site.send_to("ln", **{**self.attributes, **more})
        if not region_first:
            self.make_region()

    def make_region(self):
        self.data = self.site.region(type=self.type, senders=["ln"])

    def restart(self, **more):
        self.site.cache.close()
        self.begin(**more)


def receive(ln, **attributes):
    if "data" not in ln.cache.regions():
        ln.region(type="REPLICATE")
    return ln.receive(**attributes)


def contents(region):
    return {key: region.get(key) for key in region}
