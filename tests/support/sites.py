"""Owns the words in which tests speak of sites: sites with a locator and a member, links between them, settling."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from pywan.callbacks import CacheListener
from pywan.demo.compare import read_contents
from pywan.protocol.discovery import Timings
from pywan.region.region import core_of
from pywan.stats import check_ledger
from pywan.testing.fault_proxy import FaultProxy
from pywan.testing.local_site import LocalSite, wait_until_known
from pywan.testing.waiting import LIMIT_S, eventually
from support.ports import free_port

QUICK = Timings(ping_ms=200, retry_ms=20, retry_max_ms=100, change_delay_ms=5)
IDS = {"ny": 1, "ln": 2, "tk": 3, "hk": 4}
SENDER = {"batch_time_interval": 10, "retry_interval_ms": 30, "dispatcher_threads": 2}
_hosts = itertools.count(2)


class History(CacheListener):
    """A listener that keeps the events of a region in order: (operation, key, new value)."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def _note(self, event: Any) -> None:
        self.events.append(event)

    after_create = after_update = after_destroy = _note

    def of(self, key: Any) -> list[tuple[str, Any]]:
        return [(e.operation, e.new_value) for e in self.events if e.key == key]

    def keys_in_order(self) -> list[Any]:
        return [e.key for e in self.events]


class Site(LocalSite):
    """One site: a locator and one member. Senders are named after the site they send to."""

    def __init__(self, network: Network, name: str, remotes: Iterable[Site], **locator: Any) -> None:
        # A test may stop the locator and start another one at its port.
        super().__init__(name, IDS[name], remotes, **{"port": free_port(), "timings": QUICK, **locator})
        self.network = network
        self.proxy: FaultProxy | None = None
        self.start_member()

    def send_to(self, other: Site | str, id: str | None = None, **attributes: Any) -> Any:
        name = other if isinstance(other, str) else other.name
        return self.cache.create_gateway_sender(
            id or name, **{"remote_distributed_system_id": IDS[name], **SENDER, **attributes}
        )

    def receive(self, *, through_proxy: bool = False, **attributes: Any) -> Any:
        """A receiver on a free port; with `through_proxy`, senders reach it through `self.proxy`."""
        host = f"127.0.1.{next(_hosts) % 250 + 2}" if through_proxy else ""
        receiver = self.cache.create_gateway_receiver(
            **{"start_port": 0, "end_port": 0, "hostname_for_senders": host, **attributes}
        )
        if through_proxy:
            self.proxy = FaultProxy(("127.0.0.1", receiver.port), host, receiver.port).start()
        return receiver

    @property
    def receiver(self) -> Any:
        return self.cache.gateway_receiver

    def region(self, name: str = "data", type: str = "PARTITION", senders: Any = None, **attributes: Any) -> Any:
        """A region attached to every sender of the member, unless told otherwise."""
        ids = tuple(self.cache.gateway_senders()) if senders is None else senders
        return self.cache.create_region(name, type=type, gateway_sender_ids=ids, **attributes)

    @property
    def data(self) -> Any:
        return self.cache.region("data")

    def sender(self, other: Site | str) -> Any:
        return self.cache.gateway_sender(other if isinstance(other, str) else other.name)

    def keep_history(self, region: str = "data") -> History:
        history = History()
        self.cache.region(region).add_listener(history)
        return history

    def close(self) -> None:
        if self.proxy is not None:
            self.proxy.stop()
        super().close()

    def __repr__(self) -> str:
        return self.name


class Network:
    """The sites of one test."""

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}

    def site(self, name: str, **locator: Any) -> Site:
        self.sites[name] = Site(self, name, self.sites.values(), **locator)
        return self.sites[name]

    def add(self, names: str) -> list[Site]:
        found = [self.site(name) for name in names.split()]
        self.discover()
        return found

    def discover(self) -> None:
        """Every locator knows every site."""
        wait_until_known(self.sites.values())

    # Topologies

    def connect(
        self, links: Iterable[tuple[str, str]], *, type: str = "PARTITION", parallel: bool = True, **attributes: Any
    ) -> None:
        """Senders along `links`, a receiver in every site that is sent to, and the region `data` everywhere."""
        links = list(links)
        for target in {to for _, to in links}:
            if self.sites[target].receiver is None:
                self.sites[target].receive()
        for source, target in links:
            self.sites[source].send_to(target, parallel=parallel, **attributes)
        for site in self.sites.values():
            if "data" not in site.cache.regions():
                site.region(type=type)

    def mesh(self, names: str = "ny ln tk", **more: Any) -> list[Site]:
        found = self.add(names)
        self.connect(itertools.permutations(names.split(), 2), **more)
        return found

    def ring(self, names: str = "ny ln tk", **more: Any) -> list[Site]:
        found, all_names = self.add(names), names.split()
        self.connect(zip(all_names, all_names[1:] + all_names[:1], strict=True), **more)
        return found

    def chain(self, names: str = "ny ln tk", **more: Any) -> list[Site]:
        """Each site is linked, both ways, with the next."""
        found, all_names = self.add(names), names.split()
        pairs = list(itertools.pairwise(all_names))
        self.connect([*pairs, *((b, a) for a, b in pairs)], **more)
        return found

    def hub(self, names: str = "ny ln tk", **more: Any) -> list[Site]:
        """The first site is linked, both ways, with each of the others."""
        found, (center, *others) = self.add(names), names.split()
        self.connect([*((center, o) for o in others), *((o, center) for o in others)], **more)
        return found

    # Conditions that must become true

    def senders(self) -> list[Any]:
        return [
            sender
            for site in self.sites.values()
            if not site.cache.is_closed
            for sender in site.cache.gateway_senders().values()
        ]

    def settle(self, timeout: float = LIMIT_S) -> None:
        """Every queue of every site is empty and nothing is on its way, and every ledger balances."""

        def quiet() -> bool:
            before = [sender.stats["events_received"] for sender in self.senders()]
            empty = not any(len(sender._core.queue) for sender in self.senders())
            return empty and before == [sender.stats["events_received"] for sender in self.senders()]

        try:
            eventually(quiet, timeout, "settling")
        except AssertionError as error:
            raise AssertionError(f"{error}: {[(s.id, s.status, s.lag()) for s in self.senders()]}") from None
        self.check_ledgers()

    def check_ledgers(self) -> None:
        for sender in self.senders():
            check_ledger(f"gateway sender {sender.id!r}", sender.ledger())

    def assert_equal(self, region: str = "data") -> None:
        """Every site holds the same keys, values and stamps."""
        first, *others = self.sites.values()
        expected = read_contents(core_of(first.cache.region(region)).scan)
        for site in others:
            assert read_contents(core_of(site.cache.region(region)).scan) == expected, f"{site} and {first} differ"

    def close(self) -> None:
        for site in self.sites.values():
            site.close()


def at_once(*actions: Any) -> None:
    """Runs every action in a thread of its own, and raises what one of them raised."""
    raised: list[BaseException] = []

    def run(action: Any) -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads), "an action hangs"
    if raised:
        raise raised[0]


@contextlib.contextmanager
def keep_doing(action: Any) -> Iterator[list[int]]:
    """Calls `action(n)` for n = 0, 1, ... in a thread while the block runs; gives a list whose length says how
    often.
    """
    done: list[int] = []
    enough = threading.Event()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            while not enough.is_set():
                action(len(done))
                done.append(1)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        enough.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive(), "the action hangs"
    if raised:
        raise raised[0]
