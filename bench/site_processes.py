"""Owns the processes of one site for benchmarks, of pywan or of Apache Geode: a locator, members, accessors. All are
driven by lines of words, and answer with JSON.

Both systems do the same: keys have 16 bytes and values 100; a PARTITION region `data` has 113 buckets. Geode's jars
come from Maven Central, once, into build/bench/geode."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pywan
from measure import BUILD

HERE = Path(__file__).resolve().parent
GEODE = BUILD / "geode"
ANSWER_TIMEOUT_S = 120.0
SHOWN = 3000  # Bytes of a process's last words.
GEODE_POM = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>geode</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-core</artifactId><version>1.15.1</version></dependency>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-log4j</artifactId><version>1.15.1</version></dependency>
  </dependencies>
</project>
"""
# What Geode 1.15 needs of a Java 17, as its gfsh gives it.
GEODE_OPENS = [
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.io",
            "java.lang",
            "java.lang.annotation",
            "java.lang.invoke",
            "java.lang.module",
            "java.lang.reflect",
            "java.net",
            "java.nio",
            "java.nio.channels.spi",
            "java.text",
            "java.time",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "java.util.concurrent.locks",
            "sun.nio.ch",
        )
    ),
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.management/com.sun.jmx.remote.security=ALL-UNNAMED",
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Returns after how many seconds the condition held."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - started


class Process:
    """One process of a site. `goes_first` gives it the cores before others that use this machine (needs root)."""

    def __init__(self, name: str, command: list[str], folder: Path, *, goes_first: bool, **environment: str) -> None:
        self.name, self._folder = name, folder
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "errors", "wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._rest = b""
        if goes_first:
            go_first(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, *words: Any) -> None:
        """Asks for something. `finish` returns the answer."""
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()

    def finish(self, timeout: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                if line.startswith(b"{"):  # A JVM may print other lines.
                    answer = json.loads(line)
                    assert "error" not in answer, f"{self.name}: {answer['error']}\n{self.last_words()}"
                    return answer
                continue
            self._read(deadline)

    def _read(self, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        assert ready, f"{self.name} does not answer: {self.last_words()}"
        data = os.read(self._process.stdout.fileno(), 1 << 20)
        assert data, f"{self.name} ended early: {self.last_words()}"
        self._rest += data

    def ask(self, *words: Any, timeout: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        self.begin(*words)
        return self.finish(timeout)

    def last_words(self) -> str:
        return (self._folder / "errors").read_bytes()[-SHOWN:].decode(errors="replace")

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Ends with its standard input; is killed if it does not."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def go_first(pid: int) -> None:
    """Others get the cores only when this process leaves them: for a machine that others use too (needs root)."""
    os.setpriority(os.PRIO_PROCESS, pid, -20)
    with contextlib.suppress(FileNotFoundError):  # A kernel that groups processes by session weighs groups.
        Path(f"/proc/{pid}/autogroup").write_text("-20")


class Site:
    """Context manager: at its end no process is left."""

    name: ClassVar[str]  # Of the system.

    def __init__(self, folder: Path, *, goes_first: bool = False) -> None:
        self.folder, self._goes_first = folder, goes_first
        self.port = free_port()
        self.members: dict[str, Process] = {}
        self._lives = 0

    def command(self, role: str, name: str, more: tuple[str, ...]) -> list[str]:
        raise NotImplementedError

    def begin(self, role: str, name: str, *more: str) -> Process:
        """Starts a locator, a store or an accessor, and does not wait for it."""
        self._lives += 1
        folder = self.folder / name / (str(self._lives) if role == "locator" else "life")
        environment = {"PYTHONPATH": str(Path(pywan.__file__).parent.parent)}
        process = Process(name, self.command(role, name, more), folder, goes_first=self._goes_first, **environment)
        self.members[name] = process
        return process

    def start(self, role: str, name: str, *more: str) -> Process:
        process = self.begin(role, name, *more)
        process.finish()
        return process

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in reversed(self.members.values()):
            process.kill() if exc[0] else process.close()


class PywanSite(Site):
    """`more` of a member: attributes of its region, as name=value."""

    name = "pywan"

    def command(self, role: str, name: str, more: tuple[str, ...]) -> list[str]:
        return [
            sys.executable,
            str(HERE / "site_member.py"),
            role,
            name,
            str(self.port),
            str(self.folder / name),
            *more,
        ]


class GeodeSite(Site):
    name = "Geode"
    heap: ClassVar = {"locator": "256m", "store": "1500m", "accessor": "700m"}

    def command(self, role: str, name: str, more: tuple[str, ...]) -> list[str]:
        heap = self.heap[role]
        class_path = f"{GEODE / 'classes'}:{GEODE / 'lib'}/*"
        options = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", *GEODE_OPENS, "-cp", class_path]
        return ["java", *options, "GeodeMember", role, name, str(self.port), str(self.folder / name)]


def build_geode() -> None:
    """Fetches the jars with Maven if they are not there, and compiles the member. Needs a JDK 17 and Maven."""
    missing = [name for name in ("java", "javac", "mvn") if not shutil.which(name)]
    if missing:
        sys.exit(f"{', '.join(missing)} not found; Debian: apt-get install openjdk-17-jdk-headless maven")
    GEODE.mkdir(parents=True, exist_ok=True)
    if not (GEODE / "fetched").exists():
        (GEODE / "pom.xml").write_text(GEODE_POM)
        where = f"-DoutputDirectory={GEODE / 'lib'}"
        command = ["mvn", "-q", "-f", str(GEODE / "pom.xml"), "dependency:copy-dependencies", where]
        subprocess.run([*command, "-DincludeScope=runtime"], check=True, timeout=600)
        (GEODE / "fetched").touch()
    source, classes = HERE / "peers" / "GeodeMember.java", GEODE / "classes"
    made = classes / "GeodeMember.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        command = ["javac", "-nowarn", "-d", str(classes), "-cp", f"{GEODE / 'lib'}/*", str(source)]
        subprocess.run(command, check=True, timeout=120)
