"""Keys whose hashes are all the same cost no more than others. A person who knows the hash function can make them."""

import subprocess
import sys

from pywan import _core
from support.colliding_keys import colliding
from support.tree import ROOT


def test_a_hundred_thousand_colliding_keys_are_stored_conflated_and_destroyed_in_time():
    """Each would else be compared with all before it: thousands of millions of comparisons under one lock."""
    script = """
import sys
sys.path.insert(0, "tests")
from support.colliding_keys import colliding
from pywan import _core
queue = _core.EventQueue("to 2", remote_site=2, conflate=True)
queue.running = True
region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
region.attach([queue])
keys = colliding(150_000)
for _ in range(3):
    region.put_columns(keys, [b"v"] * len(keys))
# The queue has each key's create and its newest update.
assert len(region) == len(keys) and len(queue) == 2 * len(keys), len(queue)
for key in keys[::2]:
    region.local_destroy(key)
assert all((key in region) == (n % 2 == 1) for n, key in enumerate(keys))
for key in keys[1::2]:
    region.destroy(key)
assert len(region) == 0 and region.tombstones == len(keys) // 2
assert region.expire_tombstones(1 << 60)[1] == 0 and region.memory_bytes == 0
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_they_collide_all_the_same_in_what_sites_agree_upon():
    """In one shard of the region: one lock is all that they share."""
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    keys = colliding(3000)
    region.put_columns(keys, [b"v"] * len(keys))
    following, packed = region.scan(0, 1)
    assert len(packed) == len(keys) * (32 + 16) and following == 1
