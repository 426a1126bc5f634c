"""Owns two sites for benchmarks of gateways, of pywan or of Apache Geode. Each has a locator and one or several
members, all of them processes. Each member hosts the regions, with a sender to the other site and a receiver.

Both systems do the same: two PARTITION regions of 113 buckets with one redundant copy, one with a parallel sender and
one with a serial one. One member of the first site puts every key once a round, in bulk. The clock runs from the first
call until the other site has acknowledged the last event: until then each replica there has it. The content of all
members of the other site is compared after each round."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measure import processor_s
from pywan.testing.processes import ChildProcess
from pywan.testing.site_processes import SiteOfProcesses
from site_processes import HERE, GeodeSite, PywanProcess, free_port, wait_until

BUCKETS = 113
KINDS = ("parallel", "serial")
# Members of a site unless the caller says otherwise.
MEMBERS = {"Geode": 2, "pywan": 2}
# A parallel sender has as many dispatchers as Geode gives it. Dispatchers of a serial one would have queues each.
DISPATCHERS = {"parallel": 5, "serial": 1}
ROWS = {"all": 1000, "columns": 10_000}  # Of a call of put_all or putAll, and of put_columns beside putAll.
READY_S = 90.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # The system counts processor time in ticks, and a short round may take none.


@dataclass(frozen=True)
class Round:
    """What a round took.

    Attributes:
        rate: Events a second until the other site had acknowledged all.
        emptied_rate: Events a second until no member held any of them for another one that sends it, either.
        put_rate: Events a second of the calls alone.
        processor_us: Processor time of all processes of both sites, an event.
    """

    rate: float
    emptied_rate: float
    put_rate: float
    processor_us: float


class GatewaySites(ABC):
    """The two sites of a system. `sites[0]` sends and `sites[1]` receives. `start` begins their life."""

    name: str

    def __init__(self, members: int, events: int) -> None:
        self.sites: list[list[Any]] = []  # The members of each site.
        self.locators: list[Any] = []
        self.members, self.events = members, events
        self._rounds = 0

    @abstractmethod
    def make_regions_whole(self, kind: str) -> None:
        """Makes all buckets of both sites with their replicas, if members do not make them as they are needed."""

    @abstractmethod
    def is_whole(self, site: list[Any], kind: str) -> bool:
        """Whether every bucket of a site has all its replicas, and the members lead equally many."""

    @abstractmethod
    def check(self, kind: str, number: int) -> None:
        """Raises AssertionError if a replica at the other site lacks a value of the round."""

    @abstractmethod
    def at(self, answer: Any) -> int:
        """A time that a member answered."""

    @abstractmethod
    def span(self, answer: Any) -> tuple[int, int]:
        """When what a member did began and ended."""

    @abstractmethod
    def words_to_prepare(self, how: str, number: int) -> tuple[Any, ...]:
        """How a member is asked for what a round puts."""

    @property
    def sender(self) -> Any:
        """The member that puts."""
        return self.sites[0][0]

    @property
    def processes(self) -> list[ChildProcess]:
        return [*self.locators, *(member for site in self.sites for member in site)]

    def make(self) -> None:
        """Makes receivers, senders and regions, and all buckets, when the members have started."""
        members = [member for site in self.sites for member in site]
        for member in members:
            member.finish()
        for member in members:
            member.ask("receive")
        for kind in KINDS:
            for number, site in enumerate(self.sites):
                for member in site:
                    member.ask("flow", kind, 2 - number, DISPATCHERS[kind])
            self.make_regions_whole(kind)
        self.sender.ask("keys", self.events, 1)
        for kind in KINDS:
            self._round(kind, "columns")  # Makes the buckets that are not there.
            for site in self.sites:
                wait_until(functools.partial(self.is_whole, site, kind), READY_S, "every bucket has its replicas")
            self.check(kind, self._rounds)

    def all_at(self, members: list[Any], *words: Any) -> int:
        """The last time that any of the members answers."""
        for member in members:
            member.begin(*words)
        return max(self.at(member.finish()) for member in members)

    def measure(self, kind: str, how: str) -> Round:
        """Measures a round, and then compares the content of the members."""
        taken = self._round(kind, how)
        self.check(kind, self._rounds)
        return taken

    def _round(self, kind: str, how: str) -> Round:
        self._rounds += 1
        self.sender.ask(*self.words_to_prepare(how, self._rounds))
        before = sum(processor_s(process.pid) for process in self.processes)
        began, put = self.span(self.sender.ask("send", kind, how))
        ended = self.all_at(self.sites[0], "drained", kind)
        emptied = max(ended, self.all_at(self.sites[0], "emptied", kind))
        taken = max(sum(processor_s(process.pid) for process in self.processes) - before, TICK_S)
        rates = [self.events * 1e9 / (end - began) for end in (ended, emptied, put)]
        return Round(*rates, processor_us=taken / self.events * 1e6)


class PywanMembers(SiteOfProcesses):
    program = HERE / "gateway_member.py"
    process_class = PywanProcess


class PywanSites(GatewaySites):
    name = "pywan"

    def start(
        self,
        folder: Path,
        stack: contextlib.ExitStack,
        *,
        goes_first: bool,
        ssl: Mapping[str, Any] | None = None,
    ) -> None:
        ports = [free_port(), free_port()]
        for number in (0, 1):
            (folder / str(number)).mkdir()
            site = stack.enter_context(
                PywanMembers(
                    folder / str(number),
                    regions=[],
                    goes_first=goes_first,
                    port=ports[number],
                    distributed_system_id=number + 1,
                    remote_locators=f"127.0.0.1[{ports[1 - number]}]",
                    ssl=ssl,
                )
            )
            self.locators.append(site.locator)
            self.sites.append([site.begin(f"server_{number}_{member}") for member in range(self.members)])
        self.make()

    def make_regions_whole(self, kind: str) -> None:
        for member in self.sites[0]:
            member.ask("connected", kind)

    def is_whole(self, site: list[Any], kind: str) -> bool:
        found = [member.ask("primaries", kind) for member in site]
        led = [each["led"] for each in found]
        replicas = sum(len(member.ask("digests", kind)) for member in site)
        return (
            sum(led) == BUCKETS
            and max(led) - min(led) <= 1
            and replicas == BUCKETS * min(self.members, 2)
            and not any(each["learning"] for each in found)
        )

    def check(self, kind: str, number: int) -> None:
        """All replicas of both sites are equal, bucket by bucket: in keys, versions and values."""
        found: dict[int, list[int]] = {}
        for member in (member for site in self.sites for member in site):
            for bucket, digest in member.ask("digests", kind):
                found.setdefault(bucket, []).append(digest)
        replicas = len(self.sites) * min(self.members, 2)
        different = [bucket for bucket in range(BUCKETS) if len(found.get(bucket, ())) != replicas]
        assert not different, (
            f"round {number}: the buckets {different} of region {kind} do not have {replicas} replicas"
        )
        different = [bucket for bucket, digests in found.items() if len(set(digests)) > 1]
        assert not different, f"round {number}: replicas of the buckets {different} of region {kind} differ"

    def at(self, answer: Any) -> int:
        return int(answer)

    def span(self, answer: Any) -> tuple[int, int]:
        began, ended = answer
        return began, ended

    def words_to_prepare(self, how: str, number: int) -> tuple[Any, ...]:
        return "prepare", how, ROWS[how], number


class GeodeSites(GatewaySites):
    name = "Geode"

    def start(self, folder: Path, stack: contextlib.ExitStack, *, goes_first: bool) -> None:
        ports = [free_port(), free_port()]
        for number in (0, 1):
            settings = {
                "distributed-system-id": number + 1,
                "remote-locators": f"127.0.0.1[{ports[1 - number]}]",
            }
            (folder / str(number)).mkdir()
            site = stack.enter_context(
                GeodeSite(folder / str(number), goes_first=goes_first, port=ports[number], settings=settings)
            )
            self.locators.append(site.members["locator"])
            self.sites.append([site.begin(f"server_{number}_{member}", "gateways") for member in range(self.members)])
        self.make()

    def make_regions_whole(self, kind: str) -> None:
        for site in self.sites:
            site[0].ask("assign", kind)

    def is_whole(self, site: list[Any], kind: str) -> bool:
        found = [member.ask("primaries", kind) for member in site]
        led, replicas = [each["led"] for each in found], [each["copies"] for each in found]
        return sum(led) == BUCKETS and max(led) - min(led) <= 1 and sum(replicas) == BUCKETS * min(self.members, 2)

    def check(self, kind: str, number: int) -> None:
        held = [member.ask("holds", kind, self._stamp(number))["entries"] for member in self.sites[1]]
        expected = self.events * min(self.members, 2)
        assert sum(held) == expected, f"round {number}: the members hold {held} of {expected} entries of region {kind}"

    @staticmethod
    def _stamp(number: int) -> int:
        return number % 128

    def at(self, answer: Any) -> int:
        return int(answer["at"])

    def span(self, answer: Any) -> tuple[int, int]:
        return answer["began"], answer["ended"]

    def words_to_prepare(self, how: str, number: int) -> tuple[Any, ...]:
        return "prepare", ROWS[how], self._stamp(number)


@contextlib.contextmanager
def gateway_sites(
    system: type[PywanSites | GeodeSites],
    members: int,
    events: int,
    *,
    goes_first: bool = False,
    **attributes: Any,
) -> Iterator[GatewaySites]:
    """Starts two sites with so many members each. `attributes`: for the sites of pywan, `ssl`. Afterwards no process is
    left."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=f"{system.name}-")))
        began, sites = time.monotonic(), system(members, events)
        sites.start(folder, stack, goes_first=goes_first, **attributes)
        shown = f"{members} member{'s' * (members > 1)} a site"
        print(f"{sites.name}, {shown}: started in {time.monotonic() - began:.0f} s", flush=True)
        yield sites
