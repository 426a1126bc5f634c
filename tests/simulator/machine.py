"""Owns a machine of the simulation: one process on one disk with a clock of its own; the logs in it are written when
somebody says so, by one committer each, and what was reported durable is remembered."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from typing import Any

from pywan import _core
from pywan.errors import DiskError, PywanError

from .disk import Disk
from .link import KEYS, POISON_KEYS, REGION, SECRET_KEYS, must

STORE_BYTES = (1 << 20, 2 << 20, 4 << 20, 16 << 20)  # The smallest has room for sixteen segments, of all its logs.
ALL_KEYS = KEYS + SECRET_KEYS + POISON_KEYS
Version = tuple[int, int]  # Stamp, site.


@dataclasses.dataclass
class Copy:
    """A copy of a machine's disk, and what was known of that disk then."""

    files: dict[str, bytes]
    versions: dict[str, Version]  # The versions in the region.
    durable_versions: dict[str, Version]
    invalidated: dict[str, Version]
    links: list[dict[str, Any]]  # The state of each queue, as `LoggedLink.state` has it.
    loses: bool  # A sync had failed, so the copy may lack what was written and not synced.


class LoggedQueue(_core.EventQueue):
    """A persistent queue. Its committer runs when the simulation says so, also for a caller that waits for the disk."""

    machine: Machine

    def wait_durable(self, timeout: float = 60.0) -> None:
        self.machine.wait(self, for_disk=True)

    def wait_written(self, timeout: float = 60.0) -> None:
        self.machine.wait(self)

    def wait_records(self, given: int) -> None:
        self.machine.wait(self)


class Machine:
    """A machine whose disk outlives its process. The disk has the queues of its links, and the region's entries if the
    region is persistent.
    """

    def __init__(
        self,
        rng: random.Random,
        site: int,
        *,
        region_is_persistent: bool,
        synchronous: bool | str,
        watched: bool = False,
    ):
        self.rng, self.site = rng, site
        self.number = site  # Machines of one site that run on copies of one disk have different ones.
        self.region_is_persistent, self.synchronous = region_is_persistent, synchronous
        self.watched = watched  # The events that it receives go through Python, and are recorded one by one.
        self.store_bytes = rng.choice(STORE_BYTES)
        # A relay answers for what it drops.
        self.full_policy = "refuse" if watched else rng.choice(("refuse", "drop-newest"))
        self.disk = Disk(rng)
        self.clock_offset_ms = 0
        self.out: list[Any] = []  # Links whose queues are here.
        self.busy: set[int] = set()  # Logs whose committer is in the middle of a sync.
        self.durable_versions: dict[str, Version] = {}  # The versions of the region that are certainly on the disk.
        self.invalidated: dict[str, Version] = {}  # Which version of a key lost its value, as was acknowledged.
        # Newest of each key that a sender was told to forget.
        self.acknowledged: dict[str, Version] = defaultdict(lambda: (0, 0))
        self.has_lost = False  # Perhaps of these, with its power: what was written and not synced.
        self.open_region()

    # Opening

    def open_region(self) -> None:
        self.clock = _core.Clock()
        # The budget of the machine's disk store. All its logs share it.
        self.budget = _core.LogBudget(self.store_bytes)
        self.core = core = _core.RegionCore(REGION, self.clock, site=self.site, member=self.site)
        if self.region_is_persistent:
            self.core.open_log(
                f"/{self.site}/region",
                log_id=self.site,
                synchronous=self.synchronous,
                log_budget=self.budget,
                environment=self.disk.environment,
                wait=lambda: self.wait(core),
            )
        if self.watched:
            self.core.set_callback_path(lambda *change: None)

    def open_queue(self, name: str, *, parked: bool = False, **options: Any) -> LoggedQueue:
        queue = LoggedQueue(
            name,
            log_directory=f"/{self.site}/{name}",
            log_id=self.site,
            synchronous=self.synchronous,
            log_budget=self.budget,
            log_may_use_reserve=parked,
            environment=self.disk.environment,
            **options,
        )
        queue.machine = self
        queue.set_full_policy(self.full_policy, slow_disk_ms=0)
        return queue

    def open(self) -> None:
        """All of it, as a process that starts. DiskError or QueueFullError: the disk did not let it, and it may be
        tried again.
        """
        self.busy.clear()
        self.open_region()
        for link in self.out:
            link.open()
        self.core.attach([link.queue for link in self.out])

    # Committing

    @property
    def logs(self) -> list[Any]:
        return [log for link in self.out for log in (link.queue, link.parked)] + [self.core] * self.region_is_persistent

    def commit(self, log: Any, checkpoint: bool = True) -> bool:
        """One round of a log's committer."""
        if id(log) in self.busy or self.disk.is_off:
            return False
        versions = self.versions() if log is self.core else {}
        removed = [position[0] for position in log.positions()] if log is not self.core and checkpoint else []
        self.busy.add(id(log))
        try:
            done = log.commit_once() if log is self.core else log.commit_once(checkpoint)
        finally:
            self.busy.discard(id(log))
        self.disk.raise_error()
        if done:
            self.durable_versions.update(versions)
            for link in self.out:
                if link.queue is log:
                    link.note_durable(removed)
        return done

    def wait(self, log: Any, for_disk: bool = False) -> None:
        """Waits for the disk as a caller does. The committer runs meanwhile, and may not be done when the caller gives
        up. If it is enough that the log is written, and one write does it, the caller writes it."""

        def waits() -> bool:
            state = log.log_state()
            return state["pending"] > 0 or (for_disk and state["unsynced"] > 0)

        if self.synchronous == "written" and not for_disk and not self.disk.is_off and self.rng.random() < 0.9:
            log.write_once()
            self.disk.raise_error()
        for _ in range(3):
            if not waits():
                return
            if not self.commit(log, self.rng.random() < 0.2):
                break
        if waits():
            raise DiskError("the simulated disk did not take it in time")

    @property
    def may_lack(self) -> bool:
        """A power cut takes what was written and not synced, though it was acknowledged."""
        return self.region_is_persistent and self.has_lost

    def versions(self) -> dict[str, Version]:
        return {key: found[1:3] for key in ALL_KEYS if (found := self.core.lookup(key))}

    @property
    def holds_bytes(self) -> int:
        """The bytes that its store has to hold: of living entries, events not acknowledged, and parked ones."""
        entries = (
            sum(len(found[0] or "") for key in ALL_KEYS if (found := self.core.lookup(key)))
            if self.region_is_persistent
            else 0
        )
        return entries + sum(link.queue.bytes + link.parked.bytes for link in self.out)

    def stop(self) -> bool:
        """As a process that is stopped: everything is written, if the disk takes it."""
        return all(self.commit(log) and log.log_state()["pending"] == 0 for log in self.logs)

    # After a restart

    def restart(self, power: bool) -> str:
        """The process ends here, whatever it was about to do, and starts again on what its disk kept."""
        before = self.versions()
        loses = self.synchronous == "written" and (power or self.disk.has_failed_syncs)
        happened = self.disk.crash(power)
        attempts = self._start(before, loses)
        if self.region_is_persistent and not self.has_lost:
            self._check_sent()
        return f"{happened}, starts {attempts} times"

    def _check_sent(self) -> None:
        """What another site has of this one's changes, this one has too. Events that a queue recovered are excused: its
        log may have what the region's log lost (docs/decisions/0015)."""
        after = self.versions()
        for link in self.out:
            for (partition, sequence), (key, version) in link.ever_applied if not link.is_copied else ():
                must(
                    version[1] != self.site
                    or sequence <= link.ever_recovered.get(partition, 0)
                    or after.get(key, (0, 0)) >= version,
                    f"site {link.receiver.site} has {key} of {version}, site {self.site} recovered {after.get(key)}",
                )

    def _start(self, before: dict[str, Version], loses: bool = False) -> int:
        """Starts on what is on the disk. `before`: what its region can hold at most. `loses`: what was not synced may
        be gone, though it was acknowledged. Returns how many attempts that took."""
        attempts = 1
        while not self._opens():
            attempts += 1
            if attempts > 3:
                self.disk.heal()
            must(attempts < 6, f"machine {self.site} does not start on a healthy disk")
        self._check_region(before, loses)
        for link in self.out:
            link.check_recovered(loses)
        return attempts

    # Copies

    def copy(self) -> Copy:
        return Copy(
            self.disk.copy(),
            self.versions(),
            dict(self.durable_versions),
            dict(self.invalidated),
            [link.state() for link in self.out],
            self.synchronous == "written" and self.disk.has_failed_syncs,
        )

    def put_back(self, copy: Copy) -> int:
        """The process ends, and starts on a copy of the disk that was taken earlier."""
        self.disk.put_back(copy.files)
        self.durable_versions, self.invalidated = dict(copy.durable_versions), dict(copy.invalidated)
        for link, state in zip(self.out, copy.links, strict=True):
            link.put_back(state)
        return self._start(copy.versions, copy.loses)

    def _opens(self) -> bool:
        try:
            self.open()
        except (PywanError, MemoryError) as error:
            self.disk.raise_error()
            must(
                self.disk.error_rate > 0 or self.disk.capacity is not None,
                f"machine {self.site} does not start: {error}",
            )
            return False
        self.disk.raise_error()
        return True

    def _check_region(self, before: dict[str, Version], loses: bool) -> None:
        after = self.versions()
        for key, version in after.items():
            must(
                version <= before.get(key, (0, 0)),
                f"site {self.site} recovered version {version} of {key}, and had {before.get(key)}",
            )
        if not self.region_is_persistent:
            return
        for key, version in self.durable_versions.items():
            must(
                after.get(key, (0, 0)) >= version,
                f"site {self.site} had {key} of {version} on the disk, and recovered {after.get(key)}",
            )
        if loses:
            self.has_lost = True
            self.invalidated = {
                key: version
                for key, version in self.invalidated.items()
                if (found := self.core.lookup(key)) is not None and found[1:3] == version and found[0] is None
            }
        # An acknowledgement waits for the log, whatever callers at this site wait for.
        for key, version in self.acknowledged.items() if not self.has_lost else ():
            must(
                after.get(key, (0, 0)) >= version,
                f"site {self.site} acknowledged {key} of {version}, and recovered {after.get(key)}",
            )
        if self.synchronous:
            for key, version in self.invalidated.items():
                value, *found = self.core.lookup(key)[:3]
                must(
                    tuple(found) != version or value is None,
                    f"site {self.site} invalidated {key} of {version}, and recovered its value",
                )
