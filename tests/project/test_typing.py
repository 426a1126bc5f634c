"""A type checker knows the arguments of the methods that take the tables of attributes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.tree import ROOT

pytestmark = pytest.mark.lint

PROGRAM = """
import pywan

def use(cache: pywan.Cache) -> None:
    sender = cache.create_gateway_sender("ln", remote_distributed_system_id=2, gateway_event_filters=["a.b:C"])
    sender.alter(batch_size=6)
    cache.create_gateway_receiver(start_port=1, end_port=2)
    cache.create_disk_store("kept", directories=[("/a", 10), "/b"])
    region = cache.create_region("data", "REPLICATE", gateway_sender_ids=["ln"])
    cache.create_gateway_sender("ln")                                               # [call-arg]
    cache.create_gateway_sender("ln", remote_distributed_system_id="2")             # [arg-type]
    cache.create_gateway_sender("ln", remote_distributed_system_id=2, batch_sise=5) # [call-arg]
    cache.create_gateway_receiver(start_port="1")                                   # [arg-type]
    cache.create_region("data", total_num_buckets=1.5)                              # [arg-type]
    cache.create_disk_store("kept", auto_compact=True)                              # [call-arg]
    sender.alter(parallel=True)                                                     # [call-arg]
    region.alter(gateway_sender_ids=5)                                              # [arg-type]
    prices: pywan.Region[str, int] = region
    prices["a"] = prices.get("b", 1) + 1
    prices.put(1, 1)                                                                # [arg-type]
    prices["a"] = "one"                                                             # [assignment]
    name: str = prices["a"]                                                         # [assignment]
"""


def test_a_wrong_attribute_is_found_before_the_program_runs(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    root = ROOT
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--follow-imports=silent",
        f"--cache-dir={tmp_path}",
        str(tmp_path / "program.py"),
    ]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.splitlines()
    found = {(int(line.split(":")[1]), line.rpartition("  ")[2]) for line in told if ": error: " in line}
    lines = enumerate(PROGRAM.splitlines(), 1)
    expected = {(number, line.rpartition("# ")[2].rstrip()) for number, line in lines if "# [" in line}
    assert found == expected, told


def test_a_program_in_another_folder_finds_the_types(tmp_path):
    """The environment that `make build` makes has the package in a way that type checkers find."""
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(
        "import pywan\n\nreveal_type(pywan.Cache.status)\nname: str = pywan.Cache.port\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", "program.py"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "import-untyped" not in told and "import-not-found" not in told, told
    assert 'Revealed type is "def (self: pywan.member.cache.Cache)' in told and "[assignment]" in told, told
