"""What a member, a locator or a command keeps in small files is there after a power cut, from the moment at which it
has said so."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from pywan.testing.waiting import eventually
from support.power_cut import PowerCut

# Programs that write files below `disk`, each of them more than once, and the files.
PROGRAMS: dict[str, tuple[str, set[str]]] = {
    "the floors of senders": (
        """
from pywan.gateway.floors import Floor, SourceFloors, encode_floors
from pywan.member.state import MemberFolder
sources = SourceFloors(2, MemberFolder(disk / "members" / "one", "one").path / "sources.json")
for number in (1, 2):
    sources.opened(1, "server", "ln", number)
    sources.receive(1, "server", "ln", encode_floors({1: Floor(number, frozenset())}))
    sources.save()
""",
        {"members/one/sources.json"},
    ),
    "the coordinator's file": (
        """
from pywan.base.files import make_folder
from pywan.coordination.actions import Store
from pywan.coordination.decisions import DecisionId
from pywan.coordination.journal import Journal
make_folder(disk / "locators" / "loc")
journal = Journal(disk / "locators" / "loc" / "decisions")
for number in (1, 2):
    journal.append(Store(DecisionId(7, number), 1, ((7, number),), "site", (), (), ()))
""",
        {"locators/loc/decisions", "locators/loc/decisions-wal"},
    ),
    "a locator and a member": (
        """
import pywan
from pywan.transport.control import call_once
locator = pywan.Locator("loc", distributed_system_id=1, port=0, dir=disk / "locators").start()
cache = pywan.Cache("one", locators=str(locator.address), dir=disk / "members" / "one")
cache.create_disk_store("store")
region = cache.create_region("data", type="PARTITION_PERSISTENT", disk_store_name="store", total_num_buckets=3)
region["k"] = 1
for name in ("one", "two"):
    call_once(locator.address, "change-configuration", action="put", kind="region", name=name,
              attributes={"type": "REPLICATE"})
""",
        {
            "locators/loc/cluster_config.json",
            "locators/loc/coordination.db",
            "locators/loc/coordination.db-wal",
            "locators/loc/coordinator.json",
            "members/one/disk-store-store/region-data/MANIFEST",
            "members/one/disk-store-store/region-data/owner.json",
            "members/one/site-one.json",
        },
    ),
    "what was saved of a damaged store": (
        """
import pywan
from pywan.disk.salvage import salvage_store
with pywan.Locator("loc", distributed_system_id=1, port=0) as locator:
    with pywan.Cache("one", locators=str(locator.address), dir=disk / "one") as cache:
        cache.create_disk_store("store")
        cache.create_region("data", type="REPLICATE_PERSISTENT", disk_store_name="store")["k"] = 1
salvage_store(disk / "one" / "disk-store-store", disk / "saved")
""",
        {"saved/region-data/MANIFEST", "saved/region-data/owner.json"},
    ),
    "the file of users": (
        """
from pywan.security.users import User, Users, write_users
for users in (Users.first(), Users.first().with_user("ann", User((), None))):
    write_users(disk / "security" / "users.json", users)
""",
        {"security/users.json"},
    ),
    "Parquet files and their marks": (
        """
import pyarrow
from pywan.sinks.parquet import ParquetSink
sink = ParquetSink(disk / "lake" / "orders", max_rows=2)
for number in (1, 2, 3):
    columns = {"key": ["k"], "value": ["v"], "partition": pyarrow.array([0], pyarrow.uint32()),
               "sequence": pyarrow.array([number], pyarrow.uint64()), "possible_duplicate": [False]}
    sink.process_arrow(pyarrow.record_batch(columns).replace_schema_metadata({"pywan.queue": "q", "pywan.life": "1"}))
""",
        {"lake/orders/_parts/marks.json"},
    ),
    "certificates": (
        """
from pywan.cli.trial_certificates import make_certificates
make_certificates(disk / "certificates", ["ny"], ["localhost"])
""",
        {"certificates/ny.pem"},
    ),
}
WHOLE_S = 10.0
# Nobody needs these after a power cut: locks, files that have not got their names yet, and the segments of logs, which
# know how far they are whole.
NOT_NEEDED = ("LOCK", "lock", ".new", ".seg")


def needed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if not path.endswith(NOT_NEEDED) and "overflow-" not in path}


@pytest.mark.parametrize("what", PROGRAMS)
def test_what_was_stored_is_there_after_a_power_cut(what: str, tmp_path: Path) -> None:
    program, files = PROGRAMS[what]
    cut = PowerCut(tmp_path)
    with cut.start(program + "\nprint('done', flush=True)\nsys.stdin.read()\n") as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "done\n"
            # A locator goes on meanwhile, and what it stores is synced a moment later.
            with contextlib.suppress(AssertionError):
                eventually(lambda: needed(cut.left()) == needed(cut.there()), WHOLE_S)
            there, left = needed(cut.there()), needed(cut.left())
            assert {path for path, data in there.items() if left.get(path) != data} == set()
            assert files <= there.keys()
            assert cut.renamed_before_synced() == set()
        finally:
            process.kill()
