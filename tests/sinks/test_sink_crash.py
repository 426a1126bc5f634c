"""A few rounds of kill -9 of a member and its database; `make crash-sink ARGS="--rounds 200"` runs many. And that the
campaign notices what it is there for.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from sink_crash.campaign import CampaignFailure, World, make_tables, run
from support.databases import SqliteFile, why_no_postgres


@pytest.mark.long
@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_a_table_behind_a_queue_equals_the_region_and_no_row_is_applied_twice_over_kill_9(database):
    if database == "postgresql" and (missing := why_no_postgres()):
        pytest.skip(missing)
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print(f"seed {seed}")
    counts = run(seed, rounds=6, database=database, rounds_of_a_world=2)
    assert counts["worlds"] == 3 <= counts["checks at rest"]


def test_a_failure_is_told_with_its_seed_and_leaves_no_process(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pids = []

    def fail(world):
        pids.append(world.member.pid)
        raise AssertionError("something is lost")

    monkeypatch.setattr(World, "rest", fail)
    with pytest.raises(
        CampaignFailure, match=r"(?s)something is lost.*kept in .*--database sqlite --seed 5 --world 1 --rounds 1"
    ):
        run(5, rounds=1, database="sqlite", first_world=1)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.fixture
def world(tmp_path):
    """Writers that have put two keys, twice each; the last put is in doubt, and all came to the table."""
    database = SqliteFile(tmp_path)
    make_tables(database)
    puts = [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
    lines = [f"{state} put {version} {key}" for key, version in puts for state in ("begin", "done")][:-1]
    (tmp_path / "writer-0").write_text("".join(f"{line}\n" for line in lines))
    for key, version in puts:
        put(database, key, version)
    return SimpleNamespace(
        database=database, counts=Counter(), lines=lambda: World.lines(SimpleNamespace(folder=tmp_path))
    )


def put(database, key, version):
    database.run(
        f"INSERT INTO orders VALUES ('{key}', '{version}') ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    )


NOW = {"a": "3", "b": "4"}


def test_what_is_right_passes(world):
    World.check(world, NOW)


def test_a_version_that_comes_twice_is_noticed(world):
    put(world.database, "a", 3)
    with pytest.raises(AssertionError, match=r"applied more than once: .*'a', '3'"):
        World.check(world, NOW)


def test_a_version_that_is_lost_is_noticed(world):
    world.database.run("DELETE FROM applied WHERE version = '1'")
    with pytest.raises(AssertionError, match=r"lost: .*'a', '1'"):
        World.check(world, NOW)


def test_a_version_that_nobody_put_is_noticed(world):
    put(world.database, "a", 99)
    with pytest.raises(AssertionError, match=r"never put: .*'a', '99'"):
        World.check(world, NOW)


def test_versions_out_of_order_are_noticed(world):
    world.database.run("UPDATE journal SET version = '5' WHERE place = 1")
    with pytest.raises(AssertionError, match="a: 3 came after 5"):
        World.check(world, NOW)


def test_a_table_that_differs_from_the_region_is_noticed(world):
    with pytest.raises(AssertionError, match="table and region differ"):
        World.check(world, {"a": "3"})
