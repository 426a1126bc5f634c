"""Owns the site of a test or a campaign: processes of `member.py`, and when each of them ended."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pywan.testing.site_processes import MemberProcess, SiteOfProcesses


class Member(MemberProcess):
    """A process that knows when it was killed or asked to end (math.inf: not yet)."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.ended_at = math.inf
        super().__init__(*given, **more)

    def kill(self) -> None:
        self.ended_at = min(self.ended_at, time.monotonic())
        super().kill()

    def end(self, *given: Any, **more: Any) -> None:
        self.ended_at = min(self.ended_at, time.monotonic())
        super().end(*given, **more)


class Site(SiteOfProcesses):
    program = Path(__file__).with_name("member.py")
    process_class = Member

    def __init__(self, *given: Any, **more: Any) -> None:
        self._past: list[MemberProcess] = []
        super().__init__(*given, **more)

    def begin(self, name: str, regions: Sequence[Mapping[str, Any]] | None = None, **more: Any) -> MemberProcess:
        process = super().begin(name, regions, **more)
        self._past.append(process)
        return process

    def ended_at(self, process: str) -> float:
        """When a process, as `MemberProfile.process` names it, was killed or asked to end; math.inf: not yet."""
        pid = int(process.split("/")[1])
        lives = [each for each in self._past if isinstance(each, Member) and each.pid == pid]
        return lives[-1].ended_at if lives else math.inf
