"""Owns regions of one member, with their queues, that become regions of several."""

from __future__ import annotations

import itertools

from pywan import _core
from support.repl_pair import EPOCH, TIMELINE, Route

BUCKETS = 3
name_numbers = itertools.count()


def region(*queues, buckets=BUCKETS):
    core = _core.RegionCore(f"moved {next(name_numbers)}", _core.Clock(), site=1, buckets=buckets)
    core.attach(queues)
    return core


def share(core, buckets=BUCKETS):
    """Has other members hold the region too; this one leads all buckets, as it had all content."""
    changelog = _core.Changelog(buckets, core.shards)
    core.share(changelog, Route(), False, True)
    for bucket in range(buckets):
        for role in (_core.REPLICA_TAKING_OVER, _core.REPLICA_PRIMARY):
            changelog.set_role(bucket, role, TIMELINE, EPOCH)
    return changelog


def serial(partitions, **options):
    queue = _core.EventQueue("serial", remote_site=2, partitions=partitions, dispatchers=partitions, **options)
    queue.running = True
    return queue
