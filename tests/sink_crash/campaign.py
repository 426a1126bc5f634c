"""Owns the rounds of the campaign, and what must hold after them.

A put is acknowledged when the call returned. A trigger of the table notes every row that is written: `applied` has how
often each version of each key came (`n = n + 1`), and in which order. At rest:

1. No version was applied twice.
2. Every acknowledged version was applied, and nothing that was never put.
3. The versions of a key came in the order in which they were put.
4. The table equals the region.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pywan.site.locator import Locator
from pywan.testing.processes import ChildProcess
from pywan.testing.waiting import LIMIT_S, eventually
from support.databases import Postgres, SqliteFile

ROUNDS_OF_A_WORLD = 10
ROUNDS_BETWEEN_RESTS = 5
MEMBER = Path(__file__).with_name("member.py")
QUEUES: tuple[dict[str, Any], ...] = (
    {"type": "REPLICATE_PERSISTENT", "queue": {"dispatcher_threads": 2, "batch_size": 50}},
    {"type": "PARTITION_PERSISTENT", "queue": {"parallel": True, "dispatcher_threads": 3, "batch_size": 20}},
    {"type": "REPLICATE_PERSISTENT", "queue": {"dispatcher_threads": 1, "batch_size": 7, "batch_time_interval": 1}},
)
TABLES = (
    "CREATE TABLE orders (key VARCHAR(20) PRIMARY KEY, value VARCHAR(20))",
    "CREATE TABLE journal (place {serial}, key VARCHAR(20), version VARCHAR(20))",
    "CREATE TABLE applied (key VARCHAR(20), version VARCHAR(20), n INTEGER, PRIMARY KEY (key, version))",
)
NOTE = (
    "INSERT INTO journal (key, version) VALUES (new.key, new.value);"
    " INSERT INTO applied VALUES (new.key, new.value, 1) ON CONFLICT (key, version) DO UPDATE SET n = applied.n + 1;"
)


class CampaignFailure(Exception):
    """What did not hold, with the line that repeats it."""


def make_tables(database: Any) -> None:
    if isinstance(database, SqliteFile):
        database.run("PRAGMA journal_mode = WAL")
        serial = "INTEGER PRIMARY KEY AUTOINCREMENT"
        triggers = [
            f"CREATE TRIGGER on_{what} AFTER {what} ON orders BEGIN {NOTE} END" for what in ("INSERT", "UPDATE")
        ]
    else:
        database.forget()
        serial = "BIGSERIAL PRIMARY KEY"
        triggers = [
            f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {NOTE} RETURN NULL; END $$",
            "CREATE TRIGGER on_change AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note()",
        ]
    database.run(*(each.format(serial=serial) for each in TABLES), *triggers)


class World:
    """A member and a database over some rounds, on the same folders."""

    def __init__(
        self, folder: Path, database: Any, queue: dict[str, Any], dice: random.Random, counts: Counter
    ) -> None:
        self.folder, self.database, self.dice, self.counts = folder, database, dice, counts
        make_tables(database)
        self.locator = Locator("locator_ny", distributed_system_id=1, port=0).start()
        (folder / "member").mkdir()
        self.spec = {
            **queue,
            "locators": str(self.locator.address),
            "directory": str(folder / "member"),
            "dsn": database.dsn() if isinstance(database, Postgres) else None,
            "file": str(getattr(database, "file", "")),
        }
        self.start()

    def start(self) -> None:
        self.member = ChildProcess("member", [sys.executable, MEMBER, json.dumps(self.spec)], folder=self.folder)

    def wait_until_ready(self) -> None:
        assert self.member.finish() == "ready"

    def lines(self) -> list[list[str]]:
        """What the writers noted: begin or done, what, version, key."""
        return [
            line.split()
            for file in self.folder.glob("writer-*")
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("writer-*"))

    def round(self) -> None:
        """Kills one or both in the middle of the work, and starts them again."""
        goal = self.size() + self.dice.randrange(2000, 20_000)
        eventually(lambda: self.size() >= goal or not self.member.is_running, what="that the writers get on")
        kinds = ["member", "member", "member that starts"]
        if isinstance(self.database, Postgres):
            kinds += ["database", "database", "both"]
        kind = self.dice.choice(kinds)
        self.counts[f"{kind} killed"] += 1
        if kind in ("database", "both"):
            self.database.kill()
        if kind != "database":
            self.member.kill()
            self.start()
        if kind == "member that starts":
            time.sleep(self.dice.uniform(0.0, 1.0))  # The moment of the kill is anywhere in its start.
            self.member.kill()
            self.start()
        if kind in ("database", "both"):
            self.database.start()
        if kind != "database":
            self.wait_until_ready()

    def rest(self) -> None:
        """Checks what must hold."""
        contents = self.member.ask("rest", 2 * LIMIT_S, timeout=3 * LIMIT_S)
        self.check(contents)
        self.member.ask("go_on")

    def check(self, contents: dict[str, str]) -> None:
        applied = {(key, version): n for key, version, n in self.database.run("SELECT key, version, n FROM applied")}
        twice = {each: n for each, n in applied.items() if n != 1}
        assert not twice, f"applied more than once: {twice}"
        lines = [line for line in self.lines() if line[1] == "put"]
        done = {(key, version) for state, _, version, key in lines if state == "done"}
        begun = {(key, version) for state, _, version, key in lines if state == "begin"}
        assert done <= applied.keys(), f"lost: {sorted(done - applied.keys())[:10]}"
        assert applied.keys() <= begun, f"never put: {sorted(applied.keys() - begun)[:10]}"
        last: dict[str, int] = {}
        for key, version in self.database.run("SELECT key, version FROM journal ORDER BY place"):
            assert last.get(key, 0) < int(version), f"{key}: {version} came after {last[key]}"
            last[key] = int(version)
        table = dict(self.database.run("SELECT key, value FROM orders"))
        assert table == contents, f"table and region differ: {sorted(table.items() ^ contents.items())[:10]}"
        self.counts["checks at rest"] += 1
        self.counts["events applied"] += len(applied) - self.counts["of this world"]
        self.counts["of this world"] = len(applied)

    def close(self) -> None:
        try:
            self.member.kill()
        finally:
            self.locator.stop()
            self.counts["of this world"] = 0


def run(
    seed: int,
    rounds: int,
    *,
    database: str = "postgresql",
    first_world: int = 0,
    rounds_of_a_world: int = ROUNDS_OF_A_WORLD,
    tell: Callable[[str], None] = lambda text: None,
) -> Counter[str]:
    """Runs so many rounds, some in each world. Returns how often each thing was done."""
    counts: Counter[str] = Counter()
    world = first_world
    server = Postgres() if database == "postgresql" else None
    try:
        while counts["rounds"] < rounds:
            folder = Path(tempfile.mkdtemp(prefix="pywan-sink-crash-"))
            run_world(seed, world, folder, server or SqliteFile(folder), rounds, rounds_of_a_world, counts, tell)
            shutil.rmtree(folder)
            world += 1
            counts["worlds"] += 1
    finally:
        if server is not None:
            server.close()
    return counts


def run_world(
    seed: int,
    number: int,
    folder: Path,
    database: Any,
    rounds: int,
    rounds_of_a_world: int,
    counts: Counter[str],
    tell: Callable[[str], None],
) -> None:
    dice = random.Random(f"{seed}/{number}")
    started = counts["rounds"]
    try:
        world = World(folder, database, QUEUES[number % len(QUEUES)], dice, counts)
        try:
            world.wait_until_ready()
            while counts["rounds"] < min(rounds, started + rounds_of_a_world):
                counts["rounds"] += 1
                world.round()
                tell(f"{counts['rounds']} rounds, {counts['events applied']} events applied")
                if counts["rounds"] % ROUNDS_BETWEEN_RESTS == 0:
                    world.rest()
            world.rest()
        finally:
            world.close()
    except Exception as error:
        kind = "postgresql" if isinstance(database, Postgres) else "sqlite"
        raise CampaignFailure(
            f"seed {seed}, world {number}, round {counts['rounds'] - started}: {error}\nkept in {folder}; repeat:"
            f" python -m tests.sink_crash --database {kind} --seed {seed} --world {number} --rounds"
            f" {max(1, counts['rounds'] - started)}"
        ) from error
