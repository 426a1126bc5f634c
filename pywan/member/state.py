"""Owns what the parts of a member share: its name and place in a site, its clock, and whether it is open."""

from __future__ import annotations

import shutil
import tempfile
import threading
from os import PathLike
from pathlib import Path

from pywan import _core
from pywan.base.names import check_name
from pywan.errors import IllegalStateError
from pywan.region.callback_lock import LifeCycleLock
from pywan.site.membership import Membership


class MemberFolder:
    """Where a member's working files go: `given`, or a temporary folder that is removed at its end."""

    def __init__(self, given: str | PathLike[str] | None, name: str) -> None:
        self.is_temporary = given is None
        self.path = Path(given) if given is not None else Path(tempfile.mkdtemp(prefix="pywan-"))
        self.path.mkdir(parents=True, exist_ok=True)
        self.overflow = self.path / f"overflow-{name}"
        self.overflow.mkdir(mode=0o700, exist_ok=True)

    def clean(self) -> None:
        """Removes what does not outlive the member."""
        shutil.rmtree(self.overflow, ignore_errors=True)
        if self.is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)


class MemberState:
    def __init__(self, name: str) -> None:
        self.name = check_name(name, "cache")
        # Guards changes of what the member has; a dict is read as it is.
        self.lock = LifeCycleLock(f"cache {name!r}")
        self.closed = threading.Event()
        self.clock = _core.Clock()
        self.bell = _core.Bell()  # Calls the housekeeper.
        self._membership: Membership | None = None

    @property
    def has_membership(self) -> bool:
        return self._membership is not None

    @property
    def membership(self) -> Membership:
        assert self._membership is not None, "the member is not made yet"
        return self._membership

    @membership.setter
    def membership(self, membership: Membership) -> None:
        self._membership = membership

    @property
    def distributed_system_id(self) -> int:
        """The site's id, as its locators say; -1: they were given none."""
        return self.membership.distributed_system_id

    @property
    def site(self) -> int:
        """The same as events carry it: without an id this site cannot be another one's remote."""
        return max(0, self.distributed_system_id)

    def check_open(self) -> None:
        if self.closed.is_set():
            raise IllegalStateError(f"cache {self.name!r} is closed")
