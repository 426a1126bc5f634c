"""Owns the words in which tests give commands to a site in this process: a locator and a member, each with a folder,
started again at will.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pywan
from pywan.cli.commands import COMMANDS
from pywan.cli.output import Output
from pywan.cli.session import Session
from pywan.transport.control import call_once
from support.ports import free_port


class CommandFailed(AssertionError):
    """The words of a command that failed."""


class CommandedSite:
    """A locator and a server that commands are given to. `xml` is the server's cache.xml, read at its next start."""

    def __init__(self, folder: Path, **server: Any) -> None:
        self.folder, self.server, self.xml, self.notes = folder, server, "", []
        self.locator: pywan.Locator | None = None
        self.cache: pywan.Cache | None = None
        self.restart_locator()

    def restart_locator(self) -> None:
        """On the port that it had, so that the server finds it again."""
        if self.locator is None:
            port = free_port()
        else:
            port = self.locator.port
            self.locator.stop()
        self.locator = pywan.Locator("locator", distributed_system_id=1, port=port, dir=self.folder).start()

    def start(self) -> pywan.Cache:
        more = dict(self.server)
        if self.xml:
            file = self.folder / "cache.xml"
            file.write_text(f"<cache>{self.xml}</cache>")
            more["cache_xml_file"] = file
        self.cache = pywan.Cache("server", locators=str(self.locator.address), dir=self.folder / "server", **more)
        return self.cache

    def stop(self) -> None:
        if self.cache is not None:
            self.cache.close()
            self.cache = None

    def restart(self) -> pywan.Cache:
        self.stop()
        return self.start()

    def do(self, line: str) -> dict[str, Any]:
        """The command's data; its notes are kept. CommandFailed with its errors."""
        out = io.StringIO()
        done = Session(COMMANDS, Output(True, out, out), str(self.locator.address)).run_line(line)
        shown = json.loads(out.getvalue().splitlines()[-1])
        self.notes = shown.get("notes", [])
        if not done:
            raise CommandFailed(f"{line}: {'; '.join(shown['errors'])}")
        return shown["data"]

    def change(self, **change: Any) -> None:
        """The cluster configuration, without a member."""
        call_once(self.locator.address, "change-configuration", **change)

    @property
    def file(self) -> Path:
        """In which the locator keeps it."""
        return self.folder / "locator" / "cluster_config.json"

    @property
    def problems(self) -> list[str]:
        return self.cache.status()["cluster_configuration_problems"]

    def things(self) -> list[str]:
        return [f"{thing['kind']} {thing['name']}".strip() for thing in self.locator.cluster_configuration()]

    def close(self) -> None:
        self.stop()
        self.locator.stop()
