"""Owns a site of processes: a locator, and members that are killed, stopped and started again; and the child's end.

The program of a process makes a `SiteProcess`, or one of a subclass that can be asked more, and hands it to
`serve_site`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from pywan.member.cache import Cache
from pywan.site.locator import Locator
from pywan.testing.processes import ChildProcess, serve

_LOCATOR = "locator"


class Network(Protocol):
    """A network in which each process has an address of its own, and links can be cut."""

    def address(self, name: str) -> str:
        """Returns the address of a process."""

    def prefix(self, name: str) -> list[str]:
        """Returns what stands before the command of a process."""


class MemberProcess(ChildProcess):
    """A process of a site, as its driver sees it. Its name is that of its locator or member."""

    def do(self, region: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Returns the answer of a region's method. An error of pywan is a ProcessFailed with its name."""
        return self.ask("do", region, method, *arguments, **named)


class SiteOfProcesses:
    """A locator and members. As a context manager: at its end no process is left. A subclass names the program.

    Attributes:
        folder: The folder of the logs, and of the folder of each member.
        regions: The regions of each member, unless `start` names others: their attributes, with `name`.
        locator: The process of the locator.
        members: The process of each member: the last one of that name.
        port: The port of the locator.
        program: The Python file that each process runs.
        process_class: What a process is for its driver.
    """

    program: ClassVar[Path]
    process_class: ClassVar[type[MemberProcess]] = MemberProcess

    def __init__(
        self,
        folder: Path,
        *,
        regions: Sequence[Mapping[str, Any]],
        network: Network | None = None,
        goes_first: bool = False,
        port: int = 0,
        ssl: Mapping[str, Any] | None = None,
        **locator: Any,
    ) -> None:
        """Starts the locator.

        Args:
            folder: The folder of the site.
            regions: The regions of its members.
            network: None: all processes are on loopback.
            goes_first: Whether the processes get the cores before others that use this machine (needs root).
            port: The port of the locator, which another site may have to know before. 0: any that is free.
            ssl: What all processes of the site encrypt, and with which files. None: nothing.
            **locator: Attributes of the locator.
        """
        self.folder, self.regions = folder, list(regions)
        self._network, self._goes_first, self._attributes = network, goes_first, locator
        self._ssl = ssl
        self.members: dict[str, MemberProcess] = {}
        self.port = port
        self.restart_locator()

    def _process(self, name: str) -> MemberProcess:
        command: list[str | Path] = [sys.executable, self.program]
        prefix = self._network.prefix(name) if self._network else []
        return self.process_class(name, command, folder=self.folder, prefix=prefix, goes_first=self._goes_first)

    def _address(self, name: str) -> str:
        return "127.0.0.1" if self._network is None else self._network.address(name)

    def kill_locator(self) -> None:
        """Sends SIGKILL to the locator."""
        self.locator.kill()

    def restart_locator(self, **more: Any) -> None:
        """Starts the locator again, at the same port and in the same folder. `more`: attributes of this life alone."""
        host = self._address(_LOCATOR)
        self.locator = self._process(_LOCATOR)
        folder = str(self.folder / _LOCATOR)
        try:
            self.port = self.locator.ask(
                "locate",
                _LOCATOR,
                self.port,
                folder,
                **{"bind_address": host, "ssl": self._ssl, **self._attributes, **more},
            )
        except AssertionError:
            self.locator.kill()
            raise

    def locators_of_members(self) -> str:
        """The addresses of the locators, as members are given them."""
        return f"{self._address(_LOCATOR)}[{self.port}]"

    def begin(self, name: str, regions: Sequence[Mapping[str, Any]] | None = None, **more: Any) -> MemberProcess:
        """Starts a member and does not wait for it. `finish` of the process does.

        Args:
            name: The name of the member.
            regions: The regions of this member, instead of the site's.
            **more: More attributes of the member.
        """
        host = self._address(name)
        process = self.members[name] = self._process(name)
        regions = self.regions if regions is None else regions
        given = {"bind_address": host, "ssl": self._ssl, **more}
        process.begin("join", name, self.locators_of_members(), str(self.folder / name), regions, **given)
        return process

    def start(self, name: str, regions: Sequence[Mapping[str, Any]] | None = None, **more: Any) -> MemberProcess:
        """Starts a member, and returns when it has its regions. It takes the arguments of `begin`."""
        process = self.begin(name, regions, **more)
        process.finish()
        return process

    def counts(self, region: str) -> dict[str, dict[str, int]]:
        """Returns for each member that runs how many buckets it leads, follows and learns."""
        return {name: process.ask("sharing", region) for name, process in self.members.items() if process.is_running}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in [*self.members.values(), self.locator]:
            process.kill()


# In the child


class SiteProcess:
    """A process of a site: a locator or a member, as it is asked. Its methods are what it can be asked."""

    def __init__(self) -> None:
        self._locator: Locator | None = None
        self._cache: Cache | None = None

    @property
    def cache(self) -> Cache:
        """The member."""
        assert self._cache is not None, "the process was not asked to join"
        return self._cache

    def locate(self, name: str, port: int, dir: str, *, distributed_system_id: int = 1, **more: Any) -> int:
        """Starts a locator, and returns its port."""
        self._locator = Locator(name, distributed_system_id=distributed_system_id, port=port, dir=dir, **more).start()
        return self._locator.port

    def join(self, name: str, locators: str, dir: str, regions: list[dict[str, Any]], **more: Any) -> None:
        """Starts a member and creates its regions."""
        self._cache = Cache(name, locators=locators, dir=dir, **more)
        for attributes in regions:
            self._cache.create_region(**attributes)

    def coordination(self) -> dict[str, Any]:
        """Returns what the locator sees of the site, as `show coordinator` has it."""
        assert self._locator is not None, "the process was not asked to locate"
        return self._locator._coordination.status()

    def do(self, region: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a region's method."""
        return getattr(self.cache.region(region), method)(*arguments, **named)

    def content(self, region: str) -> dict[Any, Any]:
        """Returns the entries of a region."""
        return dict(self.cache.region(region).items())

    def status(self) -> dict[str, Any]:
        """Returns the member's status."""
        return self.cache._core.status()

    def sharing(self, region: str) -> dict[str, int]:
        """Returns how many buckets the member leads, follows and learns."""
        shared = self.cache._core.sharing
        assert shared is not None, "a member of a site that has no coordinator shares nothing"
        return shared.describe(region)

    def end(self) -> None:
        """Ends the member and the locator."""
        if self._cache is not None:
            self._cache.close()
        if self._locator is not None:
            self._locator.stop()


def serve_site(process: SiteProcess) -> None:
    """Answers what the process is asked, until its standard input ends. Then the process ends."""
    serve(process)
    process.end()
