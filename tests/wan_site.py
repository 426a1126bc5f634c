"""Owns sites of processes whose members have gateway senders and receivers; and the child's end."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pywan
from pywan.testing.site_processes import MemberProcess, SiteOfProcesses, SiteProcess, serve_site
from pywan.testing.waiting import eventually


class WanMember(MemberProcess):
    """A member of a site with gateways, as its driver sees it."""

    def sender(self, id: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Returns the answer of a sender's method, or the value of its attribute."""
        return self.ask("sender", id, method, *arguments, **named)


class WanSite(SiteOfProcesses):
    """A locator and members. `start_gateways` gives a member senders and a receiver before its regions."""

    program = Path(__file__)
    process_class = WanMember

    def __init__(self, folder: Path, id: int, *, remotes: Sequence[WanSite] = (), **more: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.id = id
        known = ",".join(f"127.0.0.1[{each.port}]" for each in remotes)
        super().__init__(folder, distributed_system_id=id, remote_locators=known, **more)

    def start_member(
        self,
        name: str,
        *,
        senders: Sequence[Mapping[str, Any]] = (),
        receiver: Mapping[str, Any] | None = None,
        regions: Sequence[Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> WanMember:
        """Starts a member with these senders, and then its regions, and then its receiver."""
        process = self.start(name, [], **more)
        assert isinstance(process, WanMember)
        for attributes in senders:
            process.ask("create", "gateway_sender", **attributes)
        for attributes in self.regions if regions is None else regions:
            process.ask("create", "region", **attributes)
        if receiver is not None:
            process.ask("create", "gateway_receiver", **receiver)
        return process

    def living(self) -> dict[str, WanMember]:
        return {name: each for name, each in self.members.items() if each.is_running and isinstance(each, WanMember)}

    def sum_of(self, id: str, what: str) -> int:
        """Returns the sum of one statistic of a sender over the members that live."""
        return sum(each.ask("statistics", id)[what] for each in self.living().values())

    def wait_shared(self, region: str, buckets: int, copies: int) -> None:
        """Returns when each bucket has so many whole copies at the members that live."""

        def is_whole() -> bool:
            counts = [each.ask("sharing", region) for each in self.living().values()]
            led, follows = (sum(each.get(what, 0) for each in counts) for what in ("primary", "copies"))
            return led == buckets and follows == buckets * (copies - 1)

        eventually(is_whole, what=f"{copies} copies of each bucket of {region}")


# In the child


class EvenKeys(pywan.GatewayEventFilter):
    """Lets events of even numbers through."""

    asked = 0

    def before_enqueue(self, event: Any) -> bool:
        type(self).asked += 1
        return int(event.key.split()[-1]) % 2 == 0


class HeardAcknowledgements(pywan.GatewayEventFilter):
    """Counts the events that it is told were acknowledged."""

    count = 0

    def after_acknowledgement(self, event: Any) -> None:
        type(self).count += 1


class WanProcess(SiteProcess):
    def locate(self, name: str, port: int, dir: str, **more: Any) -> int:
        self._locator = pywan.Locator(name, port=port, dir=dir, **more).start()
        return self._locator.port

    def create(self, kind: str, **attributes: Any) -> None:
        getattr(self.cache, f"create_{kind}")(**attributes)

    def sender(self, id: str, method: str, *arguments: Any, **named: Any) -> Any:
        found = getattr(self.cache.gateway_sender(id), method)
        return found(*arguments, **named) if callable(found) else found

    def statistics(self, id: str) -> dict[str, Any]:
        return dict(self.cache.gateway_sender(id).stats)

    def ledger(self, id: str) -> dict[str, Any]:
        """Returns the ledger, which balances."""
        return dict(self.cache.gateway_sender(id).ledger())

    def put_many(self, region: str, first: int, count: int, text: str = "value") -> None:
        self.cache.region(region).put_all({f"key {n}": f"{text} {n}" for n in range(first, first + count)})

    def columns(self, region: str, count: int, round: int) -> None:
        keys = [f"{round} key {n:09}" for n in range(count)]
        self.cache.region(region).put_columns(keys, [key * 5 for key in keys])

    def put_each(self, region: str, first: int, count: int, text: str = "value") -> None:
        target = self.cache.region(region)
        for n in range(first, first + count):
            target[f"key {n}"] = f"{text} {n}"

    def begin_putting(self, region: str) -> None:
        """Puts 0, 1, 2 ... under keys with the member's name, until `stop_putting`."""
        target, name = self.cache.region(region), self.cache.name
        self._stops = threading.Event()

        def put() -> int:
            for n in itertools.count():
                if self._stops.wait(0.001):
                    return n
                target[f"{name} {n}"] = n
            raise AssertionError("a count has no end")

        self._putting = ThreadPoolExecutor(1).submit(put)

    def stop_putting(self) -> int:
        """Returns how many puts there were. All of them have returned."""
        self._stops.set()
        return self._putting.result()

    def received(self) -> int:
        """Returns how many events the receiver took."""
        receiver = self.cache.gateway_receiver
        return receiver.stats["events_received"] if receiver is not None else 0

    def load_and_stop(self, region: str, id: str, count: int) -> None:
        """Puts in one thread and reads sizes in another, and stops the sender meanwhile."""
        sender, ends = self.cache.gateway_sender(id), threading.Event()

        def read() -> None:
            while not ends.is_set():
                _ = sender.queue_size, sender.stats

        threads = [threading.Thread(target=read), threading.Thread(target=self.put_each, args=(region, 0, count))]
        for thread in threads:
            thread.start()
        try:
            sender.stop()
            threads[1].join()
        finally:
            ends.set()
            threads[0].join()

    def clean(self, id: str) -> int:
        return self.cache._core.senders.clean(id)

    def asked(self) -> int:
        """Returns how often `EvenKeys` was asked in this process."""
        return EvenKeys.asked

    def acknowledged(self) -> int:
        """Returns how often `HeardAcknowledgements` was called in this process."""
        return HeardAcknowledgements.count

    def size(self, region: str) -> int:
        return len(self.cache.region(region))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.modules["wan_site"] = sys.modules["__main__"]
    serve_site(WanProcess())
