"""What a further region costs a site that has many: the processor time of each member and of the locator, for the
region at the tenth, the hundredth and the thousandth place.

A member alone creates up to 1,000 regions, and then two members create up to 300, with one redundant copy. All regions
have 113 buckets. Members and locator are processes. A figure is the mean of the ten regions that end at its place, when
all replicas are in sync. Then: what the members take at rest, in a second, with the first regions and with all of
them. `--quick`: up to 100 regions."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure import Options, arguments, report
from pywan.testing.site_processes import MemberProcess, SiteOfProcesses
from regions_member import BUCKETS, name_of
from site_processes import HERE, PywanProcess, wait_until

WHOLE_S = 120.0
Spent = dict[str, float]  # Processor time by process, in ms.


class RegionSite(SiteOfProcesses):
    program = HERE / "regions_member.py"
    process_class = PywanProcess

    def __init__(self, folder: Path, members: Iterable[str]) -> None:
        super().__init__(folder, regions=[])
        for name in members:
            self.start(name)

    def create(self, first: int, end: int) -> None:
        """All members create the regions at the same time. Returns when each bucket has its replicas."""
        copies = len(self.members) - 1
        for each in self.members.values():
            each.begin("create", first, end, copies)
        for each in self.members.values():
            each.finish()
        if copies:
            for number in range(first, end):
                wait_until(lambda number=number: self._is_whole(name_of(number), copies), WHOLE_S, "all replicas")

    def _is_whole(self, region: str, copies: int) -> bool:
        counts = list(self.counts(region).values())
        return (
            sum(each.get("primary", 0) for each in counts) == BUCKETS
            and sum(each.get("copies", 0) for each in counts) == BUCKETS * copies
        )

    def spent_ms(self) -> Spent:
        return {name: _spent_ms(each) for name, each in (*self.members.items(), ("locator", self.locator))}


def _spent_ms(process: MemberProcess) -> float:
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e6


def difference(now: Spent, before: Spent, by: float) -> Spent:
    return {name: (now[name] - before[name]) / by for name in now}


def rest_ms(site: RegionSite, seconds: float) -> float:
    """Returns the processor time of a second in which a member is at rest."""
    time.sleep(seconds / 2)
    before = site.spent_ms()
    time.sleep(seconds)
    spent = difference(site.spent_ms(), before, seconds)
    return sum(spent[each] for each in site.members) / len(site.members)


def grow(what: str, names: tuple[str, ...], places: list[int], options: Options) -> None:
    window = options.size(10, 10, 2)
    with tempfile.TemporaryDirectory() as folder, RegionSite(Path(folder), names) as site:
        print(f"{what}: ms of processor time for a region\n| at place | {' | '.join(site.spent_ms())} |")
        print(f"|---{'|---' * (len(names) + 1)}|")
        sums: list[float] = []
        at, first_rest_ms = 0, 0.0
        for place in places:
            site.create(at, place - window)
            before: Any = site.spent_ms()
            site.create(place - window, place)
            spent, at = difference(site.spent_ms(), before, window), place
            print(f"| {place} | {' | '.join(f'{each:.0f}' for each in spent.values())} |", flush=True)
            sums.append(sum(spent.values()))
            first_rest_ms = first_rest_ms or rest_ms(site, options.size(10.0, 5.0, 0.5))
        report(f"{what}: the region at {at}", sums[-1], sums[0], f"at {places[0]}", "less than 300%", "ms")
        last_rest_ms = rest_ms(site, options.size(10.0, 5.0, 0.5))
        report(f"{what}: a second at rest", last_rest_ms, first_rest_ms, f"with {places[0]} regions", "", "ms")


def main() -> None:
    options = arguments(__doc__)
    grow("a member alone", ("a",), options.size([10, 100, 300, 1000], [10, 100], [2, 4]), options)
    grow("two members", ("a", "b"), options.size([10, 100, 300], [10, 50], [2, 4]), options)


if __name__ == "__main__":
    main()
