"""Processes ended with SIGKILL in the middle of traffic: the others go on, the killed one rejoins, what waited is
applied once.
"""

import pytest

from pywan.client import DataConnection
from pywan.demo.compare import read_contents
from pywan.errors import PywanError
from pywan.region.region import core_of
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import call_once
from support.machines import RECEIVER, Machine
from support.ports import free_port
from support.sites import keep_doing

SENDER = (
    '<cache>\n<gateway-sender id="ln" remote-distributed-system-id="2" parallel="{parallel}" '
    'batch-time-interval="10" dispatcher-threads="2"/>\n'
    '<region name="data" refid="{type}">\n<region-attributes gateway-sender-ids="ln"/>\n</region>\n</cache>\n'
)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.close()


kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=2), id="serial"),
        pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=2), id="parallel"),
    ],
)


@kinds
def test_a_killed_receiving_server_rejoins_and_gets_what_waited(network, machine, kind):
    """The third site has everything; the killed one has all that it had not acknowledged and all that came later,
    applied once.
    """
    kind = dict(kind)
    region_type = kind.pop("type")
    ny, ln, tk = network.add("ny ln tk")
    machine.server(ln, RECEIVER, type=region_type)
    tk.receive()
    tk.region(type=region_type)
    to_ln, _to_tk = ny.send_to(ln, **kind), ny.send_to(tk, **kind)
    ny.region(type=region_type)
    with keep_doing(lambda n: ny.data.put(n, n)) as done:
        eventually(lambda: to_ln.stats["events_distributed"] > 1000)
        machine.kill("process_ln")
        at = len(done)
        eventually(lambda: to_ln.queue_size > 500 and len(done) > at + 1000 and not to_ln.is_connected)
        acknowledged = to_ln.stats["events_distributed"]  # Also what it had answered, and the sender had not read yet.
        machine.start(
            "server", "process_ln", locators=str(ln.locator.address), cache_xml_file=str(machine.directory / "ln.xml")
        )
        at = len(done)
        eventually(lambda: len(done) > at + 500)
    network.settle()
    assert len(tk.data) == tk.receiver.stats["events_received"] == len(done)
    held, expected = machine.contents("process_ln"), read_contents(core_of(ny.data).scan)
    assert all(expected[key] == entry for key, entry in held.items())
    assert len(held) >= len(done) - acknowledged > 0
    status = machine.ask("process_ln", "query size", region="data")
    assert status["size"] == len(held)
    assert to_ln.ledger()["distributed"] == len(done) and to_ln.parked_count == 0
    assert ln.locator.members()[0]["name"] == "process_ln"


@kinds
def test_a_killed_sending_server_rejoins_and_sends_again(network, machine, kind):
    """Its memory is gone; what it had sent is there, and its new queue is not taken for the old one."""
    ny, ln = network.add("ny ln")
    ln.receive()
    ln.region(type=kind["type"])
    values = dict(type=kind["type"], parallel=str(kind["parallel"]).lower())
    machine.server(ny, SENDER, **values)

    def send(task, rows):
        with DataConnection.open(
            str(ny.locator.address), region="data", run_id=b"r" * 16, task=task, timeout=LIMIT_S
        ) as connection:
            connection.put_pairs(rows)
            return connection.commit()["rows"]

    tasks = []

    def write(n):
        try:
            send(n, [((n, k), k) for k in range(50)])
            tasks.append(n)
        except (PywanError, OSError):
            pass  # The server is away.

    with keep_doing(write):
        eventually(lambda: len(tasks) > 20 and len(ln.data) > 500)
        machine.kill("process_ny")
        sent = set(ln.data)
        ny.cache.close()
        machine.start(
            "server", "process_ny", locators=str(ny.locator.address), cache_xml_file=str(machine.directory / "ny.xml")
        )
        at = len(tasks)
        eventually(lambda: len(tasks) > at + 10)
    eventually(lambda: {(task, k) for task in tasks[at:] for k in range(50)} <= set(ln.data))
    assert sent <= set(ln.data)
    assert ln.receiver.stats["events_received"] == ln.data.applied and ln.data.conflicts == 0
    assert ln.receiver.stats["exceptions_occurred"] == 0
    assert machine.ask("process_ny", "query size", region="data")["size"] >= 50 * 10


def test_a_server_killed_again_and_again(network, machine):
    ny, ln = network.add("ny ln")
    machine.server(ln, RECEIVER, type="PARTITION")
    sender = ny.send_to(ln, parallel=True)
    ny.region()
    with keep_doing(lambda n: ny.data.put(n % 5000, n)) as done:
        for _ in range(2):
            at = len(done)
            eventually(lambda at=at: len(done) > at + 500 and sender.is_connected)
            machine.kill("process_ln")
            machine.start(
                "server",
                "process_ln",
                locators=str(ln.locator.address),
                cache_xml_file=str(machine.directory / "ln.xml"),
            )
    network.settle()
    held, expected = machine.contents("process_ln"), read_contents(core_of(ny.data).scan)
    assert held and all(expected[key] == entry for key, entry in held.items())
    assert sender.ledger()["distributed"] == len(done)


def test_a_killed_locator_stops_no_traffic_and_is_told_again_when_it_is_back(network, machine):
    ny, ln = network.add("ny ln")
    port = free_port()
    machine.start(
        "locator",
        "locator_tk",
        distributed_system_id=3,
        port=port,
        remote_locators=f"{ny.locator.address},{ln.locator.address}",
    )
    machine.start(
        "server",
        "server_tk",
        locators=f"127.0.0.1[{port}]",
        cache_xml_file=str(_file(machine, RECEIVER.format(type="PARTITION"))),
    )
    eventually(lambda: set(ny.locator.known_sites()) == {1, 2, 3})
    sender = ny.send_to("tk", parallel=True)
    ny.region()
    with keep_doing(lambda n: ny.data.put(n, n)) as done:
        eventually(lambda: sender.stats["events_distributed"] > 200)
        machine.kill("locator_tk")
        at = sender.stats["events_distributed"]
        eventually(lambda: sender.stats["events_distributed"] > at + 200)
        machine.start(
            "locator",
            "locator_tk",
            distributed_system_id=3,
            port=port,
            remote_locators=f"{ny.locator.address},{ln.locator.address}",
        )
        eventually(
            lambda: [m["name"] for m in call_once(("127.0.0.1", port), "servers")["servers"]] == ["server_tk"],
        )
        sender.stop()
        sender.start()
        eventually(lambda: sender.is_connected)
    network.settle()
    ledger = sender.ledger()
    assert ledger["distributed"] + ledger["dropped"]["sender not running"] == len(done)
    assert len(machine.contents("server_tk")) == ledger["distributed"]


def _file(machine, text):
    file = machine.directory / "server_tk.xml"
    file.write_text(text)
    return file
