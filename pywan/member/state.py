"""Owns the state that all parts of a member share: name, folder, membership in the site, clock, and whether the member
is open."""

from __future__ import annotations

import errno
import shutil
import tempfile
import threading
from os import PathLike
from pathlib import Path

from pywan import _core
from pywan.base.files import make_folder
from pywan.base.names import check_name
from pywan.errors import DiskAccessError, IllegalStateError
from pywan.region.callback_lock import LifeCycleLock
from pywan.security.guard import OPEN, Guard
from pywan.site.membership import Membership
from pywan.transport.links import PLAIN, Links


class MemberFolder:
    """The folder for a member's working files: `given`, or a temporary folder that is removed in the end."""

    def __init__(self, given: str | PathLike[str] | None, name: str) -> None:
        self.is_temporary = given is None
        self.path = Path(given) if given is not None else Path(tempfile.mkdtemp(prefix="pywan-"))
        self.overflow = self.path / f"overflow-{name}"
        try:
            make_folder(self.path)
            self.overflow.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            self.clean()
            remedy = "; give the member a shorter name" if error.errno == errno.ENAMETOOLONG else ""
            raise DiskAccessError(
                f"member {name}: its folder {self.overflow} cannot be made: {error.strerror}{remedy}"
            ) from None

    def clean(self) -> None:
        """Removes the files that do not outlive the member."""
        shutil.rmtree(self.overflow, ignore_errors=True)
        if self.is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)


class MemberState:
    """The state that all parts of one member use."""

    def __init__(self, name: str, links: Links = PLAIN, guard: Guard = OPEN) -> None:
        self.links, self.guard = links, guard  # TLS contexts, and admission of clients.
        self.name = check_name(name, "cache")
        # Guards changes of the member's regions, senders, receiver and stores. Readers of the dicts do not need the
        # lock.
        self.lock = LifeCycleLock(f"cache {name!r}")
        self.closed = threading.Event()
        self.clock = _core.Clock()
        self.bell = _core.Bell()  # Wakes the housekeeper.
        self.memory: _core.MemoryLimit | None = (
            None  # Memory limit of regions, queues and replication links. None: no limit.
        )
        self._membership: Membership | None = None

    @property
    def has_membership(self) -> bool:
        """Whether the member has begun to join its site."""
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
        """The site's id, as the locators gave the id. -1: the site has none."""
        return self.membership.distributed_system_id

    @property
    def site(self) -> int:
        """The site's id in events. A site without an id has 0, and cannot be the remote site of another site."""
        return max(0, self.distributed_system_id)

    def check_open(self) -> None:
        """Raises IllegalStateError if the cache was closed."""
        if self.closed.is_set():
            raise IllegalStateError(f"cache {self.name!r} is closed")
