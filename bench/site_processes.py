"""Owns the processes of one site for benchmarks, of pywan or of Apache Geode: a locator, members, accessors. All
are asked by lines.

Both systems do the same: keys have 16 bytes and values 100; a PARTITION region has 113 buckets. Geode's jars
come from Maven Central, once, into build/bench/geode."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from measure import BUILD
from pywan.testing.processes import ChildProcess
from pywan.testing.site_processes import MemberProcess, SiteOfProcesses

HERE = Path(__file__).resolve().parent
GEODE = BUILD / "geode"
ANSWER_TIMEOUT_S = 120.0
GEODE_POM = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>geode</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-core</artifactId><version>1.15.1</version></dependency>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-log4j</artifactId><version>1.15.1</version></dependency>
    <dependency><groupId>org.apache.geode</groupId><artifactId>geode-wan</artifactId><version>1.15.1</version></dependency>
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


class PywanProcess(MemberProcess):
    timeout_s = ANSWER_TIMEOUT_S


class GeodeProcess(ChildProcess):
    """It is asked by words. An answer is an object; a JVM may print other lines."""

    timeout_s = ANSWER_TIMEOUT_S

    def question(self, *words: Any, **named: Any) -> str:
        return " ".join(map(str, words))

    def is_answer(self, line: bytes) -> bool:
        return line.startswith(b"{")

    def answer(self, line: bytes) -> Any:
        said = json.loads(line)
        return super().answer(line) if "error" in said else said


class PywanSite(SiteOfProcesses):
    """`ssl`: what is encrypted. `attributes`: those of the region that differ. `begin(name, site.accessor)` starts an
    accessor."""

    name = "pywan"
    program = HERE / "site_member.py"
    process_class = PywanProcess

    def __init__(
        self, folder: Path, *, goes_first: bool = False, ssl: Mapping[str, Any] | None = None, **attributes: Any
    ) -> None:
        region = {"name": "data", "type": "PARTITION", "redundant_copies": 1, "total_num_buckets": 113, **attributes}
        super().__init__(folder, regions=[region], goes_first=goes_first, ssl=ssl)
        self.accessor = [{**region, "local_max_memory": 0}]


class GeodeSite:
    """It is used as a PywanSite is."""

    name = "Geode"
    accessor = "accessor"
    # {role: (the class of bench/peers, the size of its heap)}
    roles: ClassVar = {
        "locator": ("GeodeMember", "256m"),
        "store": ("GeodeMember", "1500m"),
        "accessor": ("GeodeMember", "700m"),
        "queues": ("GeodeQueues", "1500m"),
        "gateways": ("GeodeGateways", "1g"),
    }

    def __init__(
        self, folder: Path, *, goes_first: bool = False, port: int = 0, settings: Mapping[str, object] | None = None
    ) -> None:
        """`port`: that of the locator; 0: any that is free. `settings`: properties of Geode, of each process."""
        self.folder, self._goes_first = folder, goes_first
        self.port = port or free_port()
        self._settings = [f"-Dgemfire.{name}={value}" for name, value in (settings or {}).items()]
        self.members: dict[str, GeodeProcess] = {}
        self.start("locator", "locator")

    def begin(self, name: str, role: str = "store") -> GeodeProcess:
        program, heap = self.roles[role]
        class_path = f"{GEODE / 'classes'}:{GEODE / 'lib'}/*"
        options = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC", *GEODE_OPENS, *self._settings, "-cp", class_path]
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        command = ["java", *options, program, role, name, str(self.port), folder]
        self.members[name] = GeodeProcess(name, command, folder=folder, cwd=folder, goes_first=self._goes_first)
        return self.members[name]

    def start(self, name: str, role: str = "store") -> GeodeProcess:
        process = self.begin(name, role)
        process.finish()
        return process

    def __enter__(self) -> GeodeSite:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.members.values():
            process.kill()


def build_geode() -> None:
    """Fetches the jars with Maven if they are not there, and compiles the members. Needs a JDK 17 and Maven."""
    missing = [name for name in ("java", "javac", "mvn") if not shutil.which(name)]
    if missing:
        sys.exit(f"{', '.join(missing)} not found; Debian: apt-get install openjdk-17-jdk-headless maven")
    GEODE.mkdir(parents=True, exist_ok=True)
    fetched = GEODE / "fetched"  # The form of `GEODE_POM` whose jars are there.
    if not fetched.exists() or fetched.read_text() != GEODE_POM:
        (GEODE / "pom.xml").write_text(GEODE_POM)
        where = f"-DoutputDirectory={GEODE / 'lib'}"
        command = ["mvn", "-q", "-f", str(GEODE / "pom.xml"), "dependency:copy-dependencies", where]
        subprocess.run([*command, "-DincludeScope=runtime"], check=True, timeout=600)
        fetched.write_text(GEODE_POM)
    sources, classes = sorted((HERE / "peers").glob("*.java")), GEODE / "classes"
    made = [classes / f"{source.stem}.class" for source in sources]
    newest = max(source.stat().st_mtime for source in sources)
    if not all(each.exists() and each.stat().st_mtime >= newest for each in made):
        command = ["javac", "-nowarn", "-d", str(classes), "-cp", f"{GEODE / 'lib'}/*", *map(str, sources)]
        subprocess.run(command, check=True, timeout=120)
