"""Owns the small members of a coordinated site: an agent, and a port that says who listens there. No data."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pywan
from pywan.base.addresses import Address, parse_locators
from pywan.base.versions import VERSION
from pywan.coordination.messages import Tables
from pywan.coordination.tables import Bucket, BucketKey, Incarnation, Kind, RegionAttributes
from pywan.site.agent import Agent
from pywan.site.locator import Locator
from pywan.testing.processes import ChildProcess, ProcessFailed, tell
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlServer
from pywan.transport.links import MEMBER_PORT, PLAIN, Gate, Links

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.ports import free_port

ATTRIBUTES = RegionAttributes(Kind.PARTITION, total_num_buckets=4, redundant_copies=1, recovery_delay_ms=0)


class SmallMember:
    """In this process. It says what it heard, and a new primary is ready at once."""

    def __init__(
        self,
        name: str,
        locators: str,
        *,
        file: Path | None = None,
        member_id: int = 0,
        site: int = 1,
        version: str = pywan.__version__,
        is_obliging: bool = True,
        links: Links = PLAIN,
    ) -> None:
        self.changes: list[Tables] = []
        self.leases: list[int] = []
        self.given_up: list[Incarnation] = []
        self.server = ControlServer(
            "127.0.0.1",
            0,
            lambda request, peer: self._answer(),
            name=f"member {name}",
            gate=Gate(links, MEMBER_PORT),
        ).start()
        self.agent = Agent(
            name,
            member_id or int.from_bytes(os.urandom(4), "little"),
            host="127.0.0.1",
            port=self.server.port,
            site=site,
            locators=lambda: parse_locators(locators),
            file=file,
            version=version,
            way=links.locator,
            on_change=self._take if is_obliging else self.changes.append,
            on_lease=lambda until_us, received_us: self.leases.append(until_us),
            on_given_up=self.given_up.append,
        )
        self.agent.start()

    def _answer(self) -> dict[str, object]:
        return {"name": self.agent.name, "incarnation": self.agent.me.member_id}

    def _take(self, tables: Tables) -> None:
        self.changes.append(tables)
        mine = [key for key, bucket in tables.buckets if bucket is not None and bucket.primary == self.agent.me]
        self.agent.ready(mine)
        for key in mine:
            for learner in self.buckets[key].learners:
                self.agent.caught_up(key, self.buckets[key].epoch, learner)

    @property
    def speaks(self) -> dict[str, Any]:
        """The fields of a message that is this member's own word."""
        with self.agent._changed:
            message = self.agent._session.encoded_requests([])
        return {"me": message["me"], "nonce": message["nonce"], "version": VERSION}

    @property
    def buckets(self) -> dict[BucketKey, Bucket]:
        return dict(self.agent.tables.buckets)

    def bucket(self, number: int = 0, region: str = "data") -> Bucket | None:
        return self.agent.tables.buckets.get(BucketKey(region, number))

    def host(self, region: str = "data", attributes: RegionAttributes = ATTRIBUTES, weight: int = 100) -> bool:
        return self.agent.host(region, attributes, weight, timeout=LIMIT_S)

    def see_all(self, region: str = "data", count: int = ATTRIBUTES.total_num_buckets) -> None:
        """Waits until the tables have all buckets of a region."""
        keys = [BucketKey(region, number) for number in range(count)]
        eventually(lambda: all(key in self.agent.tables.buckets for key in keys))

    def end(self) -> None:
        self.agent.stop()
        self.server.stop()


@contextlib.contextmanager
def locator(name: str = "L", port: int = 0, **attributes) -> Iterator[Locator]:
    """A test may stop it and start another one at its port, so the kernel must not give that to a client meanwhile."""
    with Locator(name, distributed_system_id=1, port=port or free_port(), **attributes) as started:
        yield started


@contextlib.contextmanager
def small_members(locators: str, *names: str, **fields) -> Iterator[list[SmallMember]]:
    members: list[SmallMember] = []
    try:
        for name in names:
            members.append(SmallMember(name, locators, **fields))
        for member in members:
            assert member.agent.wait_joined(LIMIT_S), member.agent.status()
        yield members
    finally:
        for member in members:
            member.end()


class OtherProcess(ChildProcess):
    """A small member in a process of its own, which hosts "data"."""

    def __init__(self, name: str, at: Address, folder: Path | None = None) -> None:
        file = "" if folder is None else folder / "site.json"
        super().__init__(name, [sys.executable, __file__, name, str(at), file])
        try:
            self.me = Incarnation(name, self.finish())
        except ProcessFailed:
            self.kill()
            raise


def _main(name: str, locators: str, file: str) -> None:
    member = SmallMember(name, locators, file=Path(file) if file else None)
    assert member.host(), member.agent.status()
    tell(member.agent.me.member_id)
    sys.stdin.read()
    member.end()


if __name__ == "__main__":
    _main(*sys.argv[1:])
