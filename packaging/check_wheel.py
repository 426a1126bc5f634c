"""Owns the trial of a wheel. It installs the wheel in a fresh environment, outside the source tree, and runs two sites
there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent.parent / "docs" / "examples" / "two_sites.py"
LIMIT_S = 600  # Of one step; pip may have to download.


def check(wheel: Path) -> None:
    """SystemExit says what is wrong."""
    if "manylinux" not in wheel.name:
        sys.exit(f"{wheel.name} has no manylinux tag, so no package index takes it")
    with tempfile.TemporaryDirectory(prefix="pywan-wheel-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = str(place / "venv" / "bin" / "python")
        run([python, "-m", "pip", "-q", "--disable-pip-version-check", "install", str(wheel.resolve())], place)
        where = run([python, "-c", "import pywan._core; print(pywan._core.__file__)"], place)
        if not Path(where.strip()).is_relative_to(place):
            sys.exit(f"pywan came from {where.strip()}, which is not the fresh environment")
        print(run([python, "-m", "pywan", "version"], place).strip())
        (place / "two_sites.py").write_text(EXAMPLE.read_text())
        print(run([python, "two_sites.py"], place), end="")
    print(f"{wheel} is good")


def run(command: list[str], folder: Path) -> str:
    """What the command writes; SystemExit if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    for name in sys.argv[1:]:
        check(Path(name))
