"""Owns the databases that tests write to: a file of SQLite, and real servers on the loopback network."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pywan.testing.processes import ProcessFailed
from pywan.testing.waiting import LIMIT_S, eventually
from support.ports import free_port


class SqliteFile:
    """A database in one file."""

    placeholder = "?"

    def __init__(self, folder: Path) -> None:
        self.file = folder / "orders.db"

    def connect(self) -> Any:
        return sqlite3.connect(self.file, timeout=LIMIT_S)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last statement."""
        return run(self.connect, statements)

    def count_changes(self, table: str = "orders") -> None:
        """From now on table `applied` counts how often a row of each key is written or removed."""
        once = "INSERT INTO applied VALUES ({}, 1) ON CONFLICT (key) DO UPDATE SET n = n + 1"
        self.run(
            "CREATE TABLE applied (key TEXT PRIMARY KEY, n INTEGER)",
            *(
                f"CREATE TRIGGER on_{what} AFTER {what} ON {table} BEGIN {once.format(which)}; END"
                for what, which in (("INSERT", "new.key"), ("UPDATE", "new.key"), ("DELETE", "old.key"))
            ),
        )

    def close(self) -> None:
        pass


def run(connect: Callable[[], Any], statements: tuple[str, ...]) -> list[tuple[Any, ...]]:
    with contextlib.closing(connect()) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        rows = [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]
        connection.commit()
        return rows


def postgres_program(name: str) -> str | None:
    """A program of Debian's packages, which are not on the PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else shutil.which(name)


def why_no_postgres() -> str | None:
    """None: PostgreSQL can run here. Otherwise what is missing."""
    if any(postgres_program(name) is None for name in ("initdb", "postgres")):
        return "PostgreSQL is not installed (Debian: apt install postgresql)"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
    return None


class Postgres:
    """A server in a folder of its own. It ends with this process at the latest, however that ends."""

    placeholder = "%s"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pywan-postgres-"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
        self._log = open(self.folder / "log", "ab")  # noqa: SIM115 (it lives as long as this object)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            done = subprocess.run(
                self._as_user("initdb", "-D", self.folder / "data", "-U", "pywan", "-A", "trust", "-N", "-E", "UTF8"),
                cwd="/",
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            if done.returncode:
                raise ProcessFailed(f"initdb: {done.stderr}")
            self.port = free_port()
            self.start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _as_user(program: str, *words: object) -> list[str]:
        as_user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", "--pdeathsig=KILL", *as_user, str(postgres_program(program)), *map(str, words)]

    def start(self) -> None:
        """Returns when it answers. Its page cache is the system's, so what it has written outlives its processes."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "8MB",
            "max_connections": 40,
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]

        def answers() -> bool:
            if self._process is None or self._process.poll() is not None:
                # After SIGKILL its processes hold the shared memory for a moment, and it ends at once.
                self._process = subprocess.Popen(
                    self._as_user("postgres", "-D", self.folder / "data", *words),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                )
            try:
                self.run("SELECT 1")
            except Exception:
                return False
            return True

        eventually(answers, what="an answer of PostgreSQL")

    def kill(self) -> None:
        """With SIGKILL. Its other processes end when they notice that."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=pywan dbname=postgres connect_timeout=5"

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.dsn())

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last statement."""
        return run(self.connect, statements)

    def count_changes(self, table: str = "orders") -> None:
        """From now on table `applied` counts how often a row of each key is written or removed."""
        self.run(
            "CREATE TABLE applied (key TEXT PRIMARY KEY, n INTEGER)",
            "CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO applied VALUES (CASE WHEN TG_OP = 'DELETE' THEN old.key ELSE new.key END, 1)"
            " ON CONFLICT (key) DO UPDATE SET n = applied.n + 1; RETURN NULL; END $$",
            f"CREATE TRIGGER on_change AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW"
            " EXECUTE FUNCTION count_it()",
        )

    def forget(self) -> None:
        """Removes all tables."""
        self.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # It ends at once, and leaves no shared memory behind.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LIMIT_S)
        self.kill()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MariaDb:
    """A server in a folder of its own, which knows no accounts. It ends with this process at the latest."""

    PROGRAM = shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pywan-mariadb-"))
        self.port = free_port()
        (self.folder / "data").mkdir()
        options = {
            "datadir": self.folder / "data",
            "bind-address": "127.0.0.1",
            "port": self.port,
            "socket": self.folder / "socket",
            "user": pwd.getpwuid(os.geteuid()).pw_name,
        }
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig=KILL", str(self.PROGRAM), "--no-defaults", "--skip-grant-tables"),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            eventually(self._answers, what="an answer of MariaDB")
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        try:
            self.run("CREATE DATABASE IF NOT EXISTS shop", database=None)
        except Exception:
            return False
        return True

    def connect(self, database: str | None = "shop") -> Any:
        import pymysql

        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", database=database)

    def run(self, *statements: str, database: str | None = "shop") -> list[tuple[Any, ...]]:
        """The rows of the last statement."""
        return run(lambda: self.connect(database), statements)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
