"""When memory runs out, an operation fails with MemoryError and changes nothing, and the next one works."""

import contextlib
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pywan
from pywan.protocol import gateway
from pywan.testing.waiting import eventually
from support.machines import Machine


def run(script: str) -> str:
    """In a process of its own, which is killed if it hangs."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


REGION = """
    from pywan import _core
    import faulthandler
    faulthandler.dump_traceback_later(60, exit=True)
    queue = _core.EventQueue("to 2", remote_site=2, partitions=3, memory_limit=1 << 30)
    queue.running = True
    region = _core.RegionCore("data", _core.Clock(), site=1, member=1)
    region.attach([queue])
"""


def test_values_that_cannot_be_copied_leave_their_entries_usable():
    """The address space ends above what the process has: a value of 64 MiB is there and cannot be read."""
    out = run(
        REGION
        + """
    import resource

    region.put("large", bytes(60 << 20))
    for n in range(2000):
        region.put(n.to_bytes(2, "little") + bytes(60000), 0)
    kilobytes = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((kilobytes << 10) + (16 << 20), hard))
    refused = []
    for name, call in {
        "get": lambda: region.get("large"),
        "lookup": lambda: region.lookup("large"),
        "contains": lambda: "large" in region,
        "scan": lambda: region.scan(0, 10**9),
        "records": lambda: queue.records(10**9),
    }.items():
        try:
            call()
        except MemoryError:
            refused.append(name)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    print(*refused)
    region.put("large", "small")
    region.destroy("large")
    for n in range(2000):
        region.put(n.to_bytes(2, "little") + bytes(60000), 1)
    assert len(region) == 2000
    """
    )
    assert {"get", "lookup", "scan", "records"} <= set(out.split())


SWEEP = (
    REGION
    + """
    import _testcapi
    # pywan imports these when it needs them. They are imported here, as CPython does not bear a failure in an import.
    import numpy, pyarrow, pywan, pywan.errors
    import threading

    lock = _core.CallbackLock("data")

    def locked():
        with lock:
            pass

    def is_free():
        thread = threading.Thread(target=locked, daemon=True)  # The lock is re-entrant: another thread has to try.
        thread.start()
        thread.join(20)
        return not thread.is_alive()

    region.put("key", "value" * 100)
    keys, values = [b"a", b"b"], [b"1", b"2"]
    calls = {
        "put": lambda: region.put("key", "other" * 100),
        "get": lambda: region.get("key"),
        "lookup": lambda: region.lookup("key"),
        "contains": lambda: "key" in region,
        "len": lambda: len(region),
        "scan": lambda: region.scan(),
        "keys": lambda: list(region.scan_keys()),
        "change": lambda: region.change(1, "key", "x"),
        "decide": lambda: region.decide(1, "key"),
        "columns": lambda: region.put_columns(keys, values),
        "remote": lambda: region.change(1, "key", "y", version=(1 << 62, 3), origin_=(3, b"", (1, 1, 1)), decisions=()),
        "invalidate": lambda: region.invalidate("key"),
        "tombstones": lambda: region.expire_tombstones(0),
        "memory": lambda: region.memory_bytes,
        "counts": queue.counts,
        "positions": queue.positions,
        "records": queue.records,
        "oldest": queue.oldest_ms,
        "attach": lambda: region.attach([queue]),
        "log_state": queue.log_state,
        "locked": locked,
        "slow": lambda: (region.set_callback_path(lambda *change: None), region.set_callback_path(None)),
    }
    failed = 0
    for name, call in calls.items():
        call()
        for start in range(40):
            _testcapi.set_nomemory(start, start + 3)
            try:
                call()
            except MemoryError:
                failed += 1
            finally:
                _testcapi.remove_mem_hooks()
            assert is_free()
            region.put("key", "value")          # Hangs where the entry lock, or the queue's, is held still.
            assert region.get("key") == "value"
    region.put_columns([b"%d" % n for n in range(10000)], [b"value"] * 10000)      # And in every other shard.
    print(failed)
"""
)


def test_no_allocation_that_fails_leaves_a_lock_held():
    pytest.importorskip("_testcapi")
    assert int(run(SWEEP)) > 50


RECEIVING = (
    '<cache><gateway-receiver start-port="0" end-port="0"/>'
    '<region name="data" refid="{type}">{listener}</region></cache>'
)
LISTENER = (
    "<region-attributes><cache-listener><class-name>pywan:CacheListener</class-name></cache-listener>"
    "</region-attributes>"
)


def limit_memory(machine, above, limits=None):
    """Ends the address space of the receiving process so many bytes above what it has, or sets the `limits` again.
    Returns the limits before."""
    pid = machine.running["process_ln"][0]
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    if limits is None:
        status = Path(f"/proc/{pid}/status").read_text()
        kilobytes = int(next(line for line in status.splitlines() if line.startswith("VmSize")).split()[1])
        limits = (kilobytes << 10) + above, before[1]
    resource.prlimit(pid, resource.RLIMIT_AS, limits)
    return before


def is_without_memory(sender):
    """Whether the events wait because the receiver says that it has no memory for them."""
    cause = sender.lag()["cause"]
    return "the receiver says: out of memory for a frame" in cause or "is out of memory" in cause


def no_memory(*anything):
    raise MemoryError


@pytest.mark.parametrize("listens", [False, True], ids=["plain", "with a listener"])
def test_a_receiving_member_out_of_memory_says_so_and_has_all_when_there_is_memory_again(network, tmp_path, listens):
    """The member is a process of its own, whose address space ends 64 MiB above what it has.

    A part of the events may wait at the sender instead: that is so when the values leave no memory for a frame, or for
    another connection.
    """
    machine = Machine(tmp_path)
    with contextlib.closing(machine):
        ny, ln = network.add("ny ln")
        machine.server(ln, RECEIVING, type="PARTITION", listener=LISTENER if listens else "")
        sender = ny.send_to(ln)
        ny.region()
        ny.data["first"] = 1
        network.settle()
        limits = limit_memory(machine, 64 << 20)
        for n in range(2000):
            ny.data[n] = bytes(100_000)
        eventually(lambda: sender.parked_count > 50 or is_without_memory(sender))
        assert {event["reason"] for event in sender.parked(10)} <= {"the remote site is out of memory"}
        log = tmp_path / "process_ln" / "process_ln.log"
        eventually(lambda: "out of memory" in log.read_text())
        limit_memory(machine, None, limits)
        network.settle()
        sender.replay_parked()
        network.settle()
        assert sender.parked_count == 0 and machine.ask("process_ln", "query size", region="data")["size"] == 2001
        # Once a minute: of the events, of frames, and of connections that could not be opened.
        assert "Traceback" not in log.read_text() and log.read_text().count("out of memory") <= 2 * 3


def test_a_receiving_member_without_memory_for_a_frame_says_so_and_takes_it_when_there_is_some(network, tmp_path):
    machine = Machine(tmp_path)
    with contextlib.closing(machine):
        ny, ln = network.add("ny ln")
        machine.server(ln, RECEIVING, type="PARTITION", listener="")
        sender = ny.send_to(ln)
        ny.region()
        ny.data["first"] = 1
        network.settle()
        limits = limit_memory(machine, 16 << 20)
        ny.data["large"] = bytes(40 << 20)
        eventually(lambda: is_without_memory(sender))
        log = tmp_path / "process_ln" / "process_ln.log"
        eventually(lambda: "given up: out of memory for a frame" in log.read_text())
        limit_memory(machine, None, limits)
        network.settle()
        assert sender.parked_count == 0 and machine.ask("process_ln", "query size", region="data")["size"] == 2


def test_a_receiver_without_memory_for_a_connection_says_so_and_takes_it_when_there_is_some(
    network, monkeypatch, caplog
):
    ny, ln = network.add("ny ln")
    ln.receive()
    ln.region()
    with monkeypatch.context() as patched:
        patched.setattr(gateway, "encode", no_memory)  # The receiver makes its welcome by it.
        sender = ny.send_to(ln)
        ny.region()
        ny.data["key"] = "value"
        words = f"takes no connection: member {ln.cache.name} is out of memory"
        eventually(lambda: words in sender.lag()["cause"])
    network.settle()
    assert ln.data["key"] == "value"
    said = [record for record in caplog.records if "ended: out of memory" in record.getMessage()]
    assert len(said) == 1


def test_a_listener_that_fails_for_each_of_thousands_writes_few_lines(two_sites, network, caplog):
    class Broken(pywan.CacheListener):
        def after_create(self, event):
            raise ValueError("broken")

    ny, ln = two_sites
    ny.data.add_listener(Broken())
    ln.data.add_listener(Broken())
    ny.data.put_all({n: n for n in range(3000)})
    network.settle()
    said = [record for record in caplog.records if "the listener" in record.getMessage()]
    assert 2 <= len(said) <= 2 * 3 * 20 and said[0].exc_info
