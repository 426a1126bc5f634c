"""A disk fails under a real process. Each error has its own name: for the caller, in the log (once), in the lag and at
the other site.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time

import pytest

from pywan.client import DataConnection
from pywan.errors import DiskAccessError
from pywan.testing.waiting import LIMIT_S, SOON_S, eventually
from support.faulty_disk import FaultyDisk

MEMBER = """
import json, logging, sys
import pywan, pywan.member.cache
from pywan.region.region import core_of
pywan.member.housekeeper.HOUSEKEEPING_S = 0.2
locators, folder, has_queue = sys.argv[1:]
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", filename=folder + ".log")

def answer(**said):
    print(json.dumps(said), flush=True)

try:
    cache = pywan.Cache("faulty", locators=locators, dir=folder)
    sender = None
    if has_queue == "True":
        sender = cache.create_gateway_sender(
            "tk", remote_distributed_system_id=3, enable_persistence=True, disk_synchronous=False
        )
    senders = [sender.id] if sender else []
    data = cache.create_region("data", "REPLICATE_PERSISTENT", gateway_sender_ids=senders, disk_synchronous=False)
    if sender is None:
        cache.create_gateway_receiver(start_port=0, end_port=0)
    answer(ready=True)
except pywan.PywanError as error:
    answer(ready=False, error=str(error), kind=type(error).__name__)
for line in sys.stdin:
    try:
        found = eval(line)
        answer(found=found)
    except pywan.PywanError as error:
        answer(error=str(error), kind=type(error).__name__)
"""


class Member:
    """A process with a region `data`, and a queue to tk or a receiver."""

    def __init__(self, disk: FaultyDisk, site, *, has_queue: bool = True) -> None:
        self.folder, self.locators = disk.folder / "member", str(site.locator.address)
        self._process = disk.start(MEMBER, site.locator.address, self.folder, has_queue)
        self.said = self._answer()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        assert line, self._process.wait()
        return json.loads(line)

    def do(self, expression: str) -> dict:
        self._process.stdin.write(expression + "\n")
        return self._answer()

    def lines(self, of: str) -> list[str]:
        return [line for line in self.folder.with_suffix(".log").read_text().splitlines() if of in line]

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        assert self._process.wait(LIMIT_S) == 0


@pytest.fixture
def disk(tmp_path):
    made = FaultyDisk(tmp_path)
    yield made
    made.let_go()


@pytest.fixture
def member(disk, network):
    member = Member(disk, network.add("ny")[0])
    yield member
    disk.let_go()
    member.end()


FULL = {errno.ENOSPC, errno.EDQUOT}


@pytest.mark.parametrize(
    "call, error",
    [
        ("fdatasync", errno.EIO),
        ("pwrite", errno.EROFS),
        ("posix_fallocate", errno.EIO),
        ("posix_fallocate", errno.ENOSPC),
        ("pwrite", errno.EDQUOT),
    ],
)
def test_what_a_disk_fails_with_is_said_by_its_own_name(disk, member, call, error):
    disk.fail(**{call: error})
    big = call == "posix_fallocate"  # Room is reserved for several segments at a time.
    refused = {}

    def is_refused():
        refused.update(member.do(f"data.put('k', b'v' * {4_000_000 if big else 10})"))
        return "error" in refused

    eventually(is_refused)
    reason = os.strerror(error)
    assert refused["kind"] == ("QueueFullError" if error in FULL else "DiskAccessError")
    assert (
        reason in refused["error"]
        and str(member.folder) in refused["error"]
        and "nothing was stored or sent" in refused["error"]
    )
    assert ("free disk space" in refused["error"]) == (error in FULL) and (
        "repeat it when the disk takes writes again" in refused["error"]
    ) == (error not in FULL)
    assert member.do("sender.lag()['cause']")["found"].startswith("disk: cannot ") and member.do(
        "sender.lag()['cause']"
    )["found"].endswith(reason)
    eventually(lambda: member.lines("its log is not written"))
    assert reason in member.do("data.put('again', 1)")["error"]
    said = member.lines("its log is not written")
    assert len(said) == len({line.partition(":")[0] for line in said}) <= 2 and all(reason in line for line in said)
    assert not member.lines("Traceback") and not member.lines("internal")
    disk.let_go()
    eventually(lambda: "error" not in member.do("data.put('after', 1)"))
    assert member.do("data.wait_durable()") == {"found": None} and member.do("data['after']")["found"] == 1
    eventually(lambda: len(member.lines("its log is written again")) == len(said))


def test_a_change_of_a_region_without_senders_is_refused_at_once_while_its_disk_fails(disk, network):
    """As with a queue that refuses: nothing says that it should wait."""
    member = Member(disk, network.add("ny")[0], has_queue=False)
    try:
        assert member.do("data.put('there', 1)") == {"found": None}
        disk.fail(pwrite=errno.EIO)
        eventually(lambda: "error" in member.do("data.put('k', 1)"))
        began = time.monotonic()
        for call in (
            "put('k', 1)",
            "put_all({'k': 1})",
            "destroy('there')",
            "invalidate('there')",
            "local_destroy('there')",
        ):
            refused = member.do(f"data.{call}")
            assert refused.get("kind") == "DiskAccessError" and os.strerror(errno.EIO) in refused["error"], (
                call,
                refused,
            )
        assert time.monotonic() - began < SOON_S  # None of them waits for ten seconds, as for a slow disk.
        disk.let_go()
        eventually(lambda: "error" not in member.do("data.put('after', 1)"))
        assert {"after", "there"} <= set(member.do("list(data)")["found"])
    finally:
        disk.let_go()
        member.end()


def test_a_receiver_whose_disk_fails_says_so_to_the_sender_and_no_log_is_filled(disk, network, caplog):
    ny, ln = network.add("ny ln")
    member = Member(disk, ln, has_queue=False)
    assert member.said == {"ready": True}
    try:
        ny.send_to("ln")
        sender, data = ny.sender("ln"), ny.region()
        data["first"] = 1
        network.settle()
        disk.fail(fdatasync=errno.EIO)
        count = 1

        def is_told():
            nonlocal count
            count += 1
            data[count] = "v"
            cause = sender.lag()["cause"]
            return (
                cause.startswith("link down: ")
                and "the receiver says: the log is not written now: cannot sync" in cause
                and cause.endswith(os.strerror(errno.EIO))
            )

        eventually(is_told)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 2)  # It is tried again and again meanwhile.
        assert (
            len(
                [
                    record
                    for record in caplog.records
                    if "the receiver says: the log is not written now" in record.getMessage()
                ]
            )
            <= 2
        )
        assert len(member.lines("given up")) <= 2 and not member.lines("Traceback")
        assert all("cannot sync" in line for line in member.lines("given up"))
        disk.let_go()
        network.settle()
        assert member.do("len(data)")["found"] == count
    finally:
        disk.let_go()
        member.end()


def test_a_task_whose_rows_a_failing_disk_does_not_take_is_told_so(disk, member, network):
    network.sites["ny"].cache.close()  # Its rows go to the other member.
    member.do("setattr(__import__('pywan.member.staging').member.staging, 'FULL_WAIT_S', 0.2)")
    with DataConnection.open(member.locators, region="data", run_id=b"1" * 16, task=1) as rows:
        rows.put_pairs([("k", "v")])
        disk.fail(pwrite=errno.EIO)
        member.do("data.put('before', 1)")
        eventually(lambda: member.do("core_of(data).log_state()['failing']")["found"])
        with pytest.raises(
            DiskAccessError,
            match=(
                "member at .*nothing more was taken for 0 s: the log is not written now: "
                f".*{os.strerror(errno.EIO)}; none of the task's 1 rows is applied"
            ),
        ):
            rows.commit()


def test_a_member_that_cannot_read_its_log_says_why(disk, network):
    ny = network.add("ny")[0]
    member = Member(disk, ny)
    member.do("[data.put(n, 'v' * 1000) for n in range(100)]")
    member.do("cache.close()")
    member.end()
    disk.fail(pread=errno.EIO, madvise=errno.EIO)
    again = Member(disk, ny)
    disk.let_go()
    again.end()
    assert (
        again.said["kind"] == "DiskError"
        and "cannot read" in again.said["error"]
        and os.strerror(errno.EIO) in again.said["error"]
    )
    assert "damaged" not in again.said["error"]
    once_more = Member(disk, ny)
    assert once_more.do("len(data)")["found"] == 100
    once_more.end()
