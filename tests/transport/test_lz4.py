"""The ways to lz4: its C functions where they are found and do the same, else its public functions. Both carry the same
events.
"""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap

import pytest

from support.core_sites import TwoSites

WITHOUT_MODULE = """
    import lz4.block
    sys.modules["lz4.block._block"] = None
    del lz4.block._block
"""
WITHOUT_FILE = """
    import lz4.block
    del lz4.block._block.__file__
"""
WITHOUT_SYMBOLS = """
    import lz4.block, pywan._core
    lz4.block._block.__file__ = sys.executable
"""
WITH_ANOTHER_FORMAT = """
    import lz4.block
    pack, unpack = lz4.block.compress, lz4.block.decompress
    lz4.block.compress = lambda data, **options: pack(data, **options) + b"x"
    lz4.block.decompress = lambda data, **options: unpack(data[:-1], **options)
"""
CARRY = """
    import sys
    sys.path.insert(0, "tests")
    {change}
    from pywan import _core
    from support.core_sites import TwoSites
    print(_core.lz4_without_gil())
    sites = TwoSites(history=False)
    sites.dispatcher.configure(1000, -1, compress=True)
    remote = sites.fast_region()
    for n in range(3000):
        sites.region.put(n, b"v" * 100)
    sites.settle()
    counts = sites.queue.counts()
    print(len(remote), remote.get(2999) == b"v" * 100, counts["wire_bytes"] < 3000 * 100)
"""


@pytest.mark.parametrize(
    "change, is_direct",
    [
        ("", True),
        (WITHOUT_MODULE, False),
        (WITHOUT_FILE, False),
        (WITHOUT_SYMBOLS, False),
        (WITH_ANOTHER_FORMAT, False),
    ],
    ids=["as-it-is", "without-module", "without-file", "without-symbols", "with-another-format"],
)
def test_batches_are_packed_and_read_whatever_the_package_looks_like_inside(change, is_direct):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CARRY).format(change=textwrap.dedent(change))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "" and done.stdout.split() == [str(is_direct), "3000", "True", "True"]


def test_a_batch_that_is_packed_where_it_lies_unpacks_to_its_records():
    """Its head goes in front of the first literals of the block, of which there may be any number."""
    chance = random.Random(11)
    sites = TwoSites(history=False)
    sites.dispatcher.configure(50, -1, compress=True)
    remote, put = sites.fast_region(), {}
    for _ in range(1500):
        for number in range(chance.choice([1, 2, 30])):
            noise = chance.randbytes(chance.choice([0, 1, 14, 15, 100, 140, 180, 214, 215, 269, 270, 500, 3000]))
            key, value = f"{number} {noise[:9].hex()}", noise + b"again" * chance.choice([0, 3, 100])
            sites.region.put(key, value)
            put[key] = value
        sites.settle()
    assert {key: remote.get(key) for key in put} == put
