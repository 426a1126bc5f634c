"""Owns sites of processes whose members have gateway senders and receivers; and the child's end."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pywan
from pywan.site.bucket_moves import move_bucket
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

    def move(self, region: str, bucket: int, what: str, to: str, source: str = "") -> None:
        """Moves a bucket's replica or its primary, and returns when that is done."""
        move_bucket(("127.0.0.1", self.port), region, bucket, what=what, to=to, source=source)

    def is_shared(self, region: str, buckets: int, replicas: int) -> bool:
        """Whether each bucket has so many whole replicas at the members that live."""
        counts = [each.ask("sharing", region) for each in self.living().values()]
        led, follows, learns = (sum(each.get(what, 0) for each in counts) for what in ("primary", "copies", "learning"))
        return led == buckets and follows == buckets * (replicas - 1) and not learns

    def wait_shared(self, region: str, buckets: int, replicas: int) -> None:
        """Returns when each bucket has so many whole replicas at the members that live."""
        eventually(
            lambda: self.is_shared(region, buckets, replicas), what=f"{replicas} replicas of each bucket of {region}"
        )


# In the child


class EvenKeys(pywan.GatewayEventFilter):
    """Lets events of even numbers through."""

    asked = 0

    def before_enqueue(self, event: Any) -> bool:
        type(self).asked += 1
        return int(event.key.split()[-1]) % 2 == 0


class ReceivedAcknowledgements(pywan.GatewayEventFilter):
    """Counts the events that it is told were acknowledged."""

    count = 0

    def after_acknowledgement(self, event: Any) -> None:
        type(self).count += 1


class EvenKeysLeave(pywan.GatewayEventFilter):
    """Sends events of even numbers alone, and notes the numbers of those that it is told were acknowledged."""

    acknowledged: ClassVar[set[int]] = set()

    def before_transmit(self, event: Any) -> bool:
        return int(event.key.split()[-1]) % 2 == 0

    def after_acknowledgement(self, event: Any) -> None:
        self.acknowledged.add(int(event.key.split()[-1]))


class FourOfFive(pywan.GatewayEventFilter):
    """Keeps every fifth event back, and counts what the remote site has acknowledged."""

    acknowledged = 0

    def before_enqueue(self, event: Any) -> bool:
        return int(event.key.split()[-1]) % 5 != 0

    def after_acknowledgement(self, event: Any) -> None:
        type(self).acknowledged += 1


class RefusesAtBothPlaces(pywan.GatewayEventFilter):
    """Keeps 100 of the first thousand keys back as they are queued, and 100 others as they are sent."""

    def before_enqueue(self, event: Any) -> bool:
        return not 500 <= int(event.key.split()[-1]) < 600

    def before_transmit(self, event: Any) -> bool:
        return not 700 <= int(event.key.split()[-1]) < 800


class Substitutes(pywan.GatewayEventSubstitutionFilter):
    """Sends another value."""

    def get_substitute_value(self, event: Any) -> Any:
        return "another value"


class Fails(pywan.GatewayEventSubstitutionFilter):
    """Has no value to send."""

    def get_substitute_value(self, event: Any) -> Any:
        raise ValueError("no value")


class Acknowledged(FourOfFive):
    """Lets all through."""

    acknowledged = 0

    def before_enqueue(self, event: Any) -> bool:
        return True


class Noting(pywan.CacheListener):
    """Notes the bucket, the key and the new value of each change. With `echo`, what it hears goes into that region, but
    for what came of an echo."""

    def __init__(self, notified: list[tuple[int, Any, Any]], bucket_of: Callable[[Any], int], echo: Any) -> None:
        self._notified, self._bucket_of, self._echo = notified, bucket_of, echo

    def _note(self, event: pywan.EntryEvent) -> None:
        self._notified.append((self._bucket_of(event.key), event.key, event.new_value))
        if self._echo is not None and not event.key.startswith("echo "):
            self._echo[f"echo {event.key}"] = event.new_value

    after_create = after_update = _note


class WanProcess(SiteProcess):
    def __init__(self) -> None:
        super().__init__()
        self._notified: dict[str, list[tuple[int, Any, Any]]] = {}

    def locate(self, name: str, port: int, dir: str, **more: Any) -> int:
        self._locator = pywan.Locator(name, port=port, dir=dir, **more).start()
        return self._locator.port

    def create(self, kind: str, **attributes: Any) -> None:
        getattr(self.cache, f"create_{kind}")(**attributes)

    def sender(self, id: str, method: str, *arguments: Any, **named: Any) -> Any:
        found = getattr(self.cache.gateway_sender(id), method)
        return found(*arguments, **named) if callable(found) else found

    def parked_kept(self, id: str) -> int:
        """Returns how many parked events the member keeps, for others too."""
        return len(self.cache.gateway_sender(id)._core.parked.queue)

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

    def put_shared(self, region: str, keys: int, count: int, own: str, threads: int = 1) -> None:
        """Puts so many values into the same few keys as others do, from each of some threads."""
        target = self.cache.region(region)

        def put(thread: int) -> None:
            for n in range(count):
                target[f"key {n % keys}"] = f"{own}{thread} {n}"

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(put, range(threads)))

    def put_counting(self, region: str, keys: int, count: int, own: str, threads: int, first: int = 0) -> None:
        """Puts ascending numbers under keys of its own, from each of some threads. Each waits for its answers."""
        target = self.cache.region(region)

        def put(thread: int) -> None:
            for n in range(first, first + count):
                target[f"{own}{thread} {n % keys}"] = n

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(put, range(threads)))

    def put_all_over(self, regions: Sequence[str], count: int, own: str, threads: int) -> None:
        """Puts keys of its own into all regions, from each of some threads."""
        targets = [self.cache.region(each) for each in regions]

        def put(thread: int) -> None:
            for n in range(count):
                for target in targets[:: 1 if thread % 2 else -1]:
                    target[f"{own} {thread} {n}"] = n

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(put, range(threads)))

    def listen(self, region: str, echo: str = "") -> None:
        """Notes from now on what is heard of a region."""
        notified: list[tuple[int, Any, Any]] = []
        self._notified[region] = notified
        bucket_of = self.cache._core.regions.get(region).bucket_of
        self.cache.region(region).add_listener(Noting(notified, bucket_of, self.cache.region(echo) if echo else None))

    def notified(self, region: str) -> list[tuple[int, Any, Any]]:
        return list(self._notified[region])

    def put_for(self, regions: Sequence[str], seconds: float, keys: int, own: str) -> int:
        """Puts into all regions for so long: each time some keys of its own, and one that others put too. Returns how
        many puts there were to each region."""
        targets, ends, n = [self.cache.region(each) for each in regions], time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            for target in targets:
                target[f"{own} {n % keys}"] = n
                if not n % 5:
                    target[f"everybody's {n % keys}"] = f"{own} {n}"
            n += 1
        return n

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

    def layout(self, region: str) -> list[tuple[str, list[str]]]:
        """Returns, in the locator, for each bucket of a region the member that leads it, and all that have a
        replica."""
        host = self._locator._coordination
        with host._changed:
            held = host._driver.core.site.buckets.items()
            buckets = sorted((key.number, each) for key, each in held if key.region == region)
            return [
                ("" if each.primary is None else each.primary.name, sorted(replica.name for replica in each.isr))
                for _, each in buckets
            ]

    def clean(self, id: str) -> int:
        return self.cache._core.senders.clean(id)

    def put_to_the_end(self, region: str) -> tuple[int, str, float]:
        """Puts keys of its own until the region is gone. Returns how many puts returned, the words of the error, and
        how many seconds the call took that ended with it."""
        target = self.cache.region(region)
        for n in itertools.count():
            began = time.monotonic()
            try:
                target[f"{self.cache.name} {n}"] = n
            except pywan.PywanError as error:
                return n, f"{type(error).__name__}: {error}", time.monotonic() - began
        raise AssertionError("a count has no end")

    def destroy_region(self, region: str) -> None:
        self.cache.destroy_region(region)

    def has(self, region: str) -> bool:
        return region in self.cache.regions()

    def asked(self) -> int:
        """Returns how often `EvenKeys` was asked in this process."""
        return EvenKeys.asked

    def acknowledged_numbers(self) -> list[int]:
        """Returns the numbers of the events that `EvenKeysLeave` was told were acknowledged, in their order."""
        return sorted(EvenKeysLeave.acknowledged)

    def acknowledged(self) -> int:
        """Returns how often filters of this process were told of an acknowledgement."""
        return ReceivedAcknowledgements.count + FourOfFive.acknowledged + Acknowledged.acknowledged

    def size(self, region: str) -> int:
        return len(self.cache.region(region))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    sys.modules["support.wan_site"] = sys.modules["__main__"]
    serve_site(WanProcess())
