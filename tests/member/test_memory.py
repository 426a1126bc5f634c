"""Memory goes back to the system: of logs that wrote much, of regions that were destroyed, of tables that were emptied.
Each in a process of its own.
"""

import itertools
import subprocess
import sys
import textwrap

from support.tree import ROOT

BEGIN = """
    import numpy
    from pywan.testing.waiting import eventually
    import sys
    sys.path.insert(0, "tests")
    from support.sites import Network

    MIB = 1 << 20

    def resident():
        return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) << 10

    def columns(rows, length, seed=0):
        # Without an object for each row: what Python or Arrow keep of those is not meant here.
        keys = numpy.arange(10_000_000, 10_000_000 + rows).astype("S8")
        return keys, numpy.full(rows, b"%d" % seed * length, dtype=f"S{length}")

    network = Network()
    ny = network.site("ny")
"""


def run(script: str, *arguments: str) -> None:
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN) + textwrap.dedent(script) + "\nnetwork.close()\n", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_logs_give_back_what_they_staged(tmp_path):
    run(
        """
    import sys
    ny.cache.close()
    ny.start_member(dir=sys.argv[1])
    regions = [ny.region(f"r{n}", "REPLICATE_PERSISTENT", disk_synchronous=False) for n in range(3)]
    for region in regions:
        region.put_columns(*columns(1000, 10))
    begin = resident()
    for seed in range(5):
        for region in regions:
            region.put_columns(*columns(20_000, 1000, seed))
    kept = sum(region.memory_bytes for region in regions)
    assert resident() > begin + kept + 60 * MIB
    eventually(lambda: resident() < begin + kept + 40 * MIB)
    """,
        str(tmp_path),
    )


def test_a_destroyed_region_is_gone_though_a_connection_knows_it():
    run("""
    ln = network.site("ln")
    network.connect([("ny", "ln")])
    ny.data.put_columns(*columns(100_000, 1000))
    network.settle()
    known = ln.data
    held, before = known.memory_bytes, resident()
    assert held > 100 * MIB
    ln.cache.destroy_region("data")
    eventually(lambda: resident() < before - held + 30 * MIB)
    assert ny.sender(ln).is_connected and known.is_closed
    """)


def test_a_table_that_was_emptied_is_gone():
    run("""
    data = ny.region()
    begin = resident()
    arrays = columns(500_000, 100)
    data.put_columns(*arrays)
    assert data.memory_bytes > 70 * MIB
    data.clear(local=True)
    assert data.memory_bytes == 0
    del arrays
    eventually(lambda: resident() < begin + 40 * MIB, what=f"{resident() - begin} bytes more than before")
    data.put_columns(*columns(1000, 10))        # And it goes on.
    assert len(data) == 1000
    """)


def test_a_table_shrinks_with_what_it_holds():
    from pywan import _core

    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    keys = [b"%d" % n for n in range(100_000)]
    region.put_columns(keys, [b"v"] * len(keys))
    sizes = [region.memory_bytes]
    for begin in range(0, len(keys), 10_000):
        for key in keys[begin : begin + 10_000]:
            region.local_destroy(key)
        sizes.append(region.memory_bytes)
    assert len(region) == 0 and sizes[-1] == 0
    assert sizes[9] < sizes[0] / 5 and all(later <= earlier for earlier, later in itertools.pairwise(sizes))
    region.put_columns(keys, [b"v"] * len(keys))
    for key in keys:
        region.destroy(key)
    assert region.expire_tombstones(1 << 60)[1] == 0 and region.memory_bytes == 0
    assert region.get(keys[0]) is None and len(region) == 0
