"""The shell's tables fit into a terminal of 80 columns. No word is cut, and amounts are shown as people say them."""

from __future__ import annotations

import io
import random
import re

import pytest

from pywan.base.amounts import duration_text, moment_text, size_text
from pywan.cli.commands import COMMANDS
from pywan.cli.commands.site import show_coordinator
from pywan.cli.layout import Sheet, Table, layout, wrapped
from pywan.cli.output import Output, readable
from pywan.cli.session import Session
from pywan.testing.waiting import eventually
from support.commands import CommandedSite

WIDTH = 80
WIDE = 5_000
PLACE = "server/long/directory/for/a/disk/store/of/all/the/orders/that/there/are"

# One line for each command that shows something of a site, in an order in which they work.
LINES = [
    "create disk-store --name=orders_store --dir=" + PLACE + "#100",
    "create gateway-sender --id=to_london --remote-distributed-system-id=2 --parallel --enable-persistence"
    " --disk-store-name=orders_store",
    "create gateway-sender --id=to_tokyo --remote-distributed-system-id=3 --manual-start",
    "create gateway-receiver",
    "create region --name=orders --type=PARTITION_PERSISTENT --gateway-sender-id=to_london,to_tokyo",
    "put --region=orders --key=a --value=1",
    "get --region=orders --key=a",
    "remove --region=orders --key=a",
    "query size --region=orders",
    "query --query='select count(*) from /orders'",
    "alter region --name=orders --gateway-sender-id=to_london",
    "alter gateway-sender --id=to_london --batch-size=50",
    "start gateway-sender --id=to_tokyo",
    "pause gateway-sender --id=to_tokyo",
    "resume gateway-sender --id=to_tokyo",
    "load-balance gateway-sender --id=to_tokyo",
    "status gateway-sender --id=to_london",
    "status gateway-sender --id=to_tokyo",
    "stop gateway-sender --id=to_tokyo",
    "list gateways",
    "list parked-events --id=to_london",
    "replay parked-events --id=to_london",
    "drop parked-events --id=to_london",
    "status gateway-receiver",
    "stop gateway-receiver",
    "start gateway-receiver",
    "repair clock --dry-run",
    "create async-event-queue --id=write_behind --listener=support.listeners:RecordingListener"
    " --listener-param=url#db:orders"
    " --pause-event-processing",
    "create async-event-queue --id=audit --listener=support.listeners:Failing --batch-size=1000 --parallel --persistent"
    " --disk-store=orders_store",
    "alter async-event-queue --id=audit --batch-size=500",
    "alter region --name=orders --async-event-queue-id=audit",
    "pause async-event-queue --id=audit",
    "resume async-event-queue-dispatcher --id=audit",
    "list async-event-queues",
    "describe async-event-queue --id=audit",
    "list parked-events --async-event-queue-id=audit",
    "list disk-stores",
    "describe disk-store --name=orders_store",
    "describe region --name=orders",
    "list regions",
    "list members",
    "describe member --name=server",
    "show coordinator",
    "revoke member --name=no_such_member",
    "status member",
    "reload certificates",
    "describe connection",
    "forget site --distributed-system-id=3",
    "status server --name=no_such_server",
    "status locator --name=no_such_locator",
    "alter region --name=orders --gateway-sender-id='' --async-event-queue-id=''",
    "destroy region --name=orders",
    "destroy gateway-sender --id=to_london",
    "destroy async-event-queue --id=audit",
    "destroy gateway-receiver",
    "destroy disk-store --name=orders_store",
    "import cluster-configuration --xml-file=empty.xml --action=STAGE",
    "connect --locator={locator}",
]
# They start or end something, show a file as it is, or are shown below.
OTHERS = {
    "start locator", "start server", "stop locator", "stop server", "shutdown", "salvage disk-store", "disconnect",
    "export cluster-configuration", "certificates make", "user add", "user list", "user passwd",
    "user remove", "run", "help", "version", "completion", "exit", "quit",
}  # fmt: skip


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.xml").write_text("<cache/>")
    site = CommandedSite(tmp_path, allow_callbacks="support.listeners")
    site.start()
    yield site
    site.close()


class Twice:
    """Shows a result at both widths."""

    def __init__(self, monkeypatch) -> None:
        self._monkeypatch = monkeypatch
        self.as_json = False
        self.width = WIDTH
        self.shown: list[str] = []

    def show(self, command, result) -> None:
        self.shown = []
        for width in (WIDTH, WIDE):
            self._monkeypatch.setenv("COLUMNS", str(width))
            out = io.StringIO()
            Output(False, out, io.StringIO()).show(command, result)
            self.shown.append(out.getvalue())

    def echo(self, text: str) -> None:
        pass

    note = echo


def words_of(text: str) -> set[str]:
    """The words without frames. A word that is too long for a line may be broken behind `/`."""
    return set(re.sub(r"[┃│┏┳┓┡╇┩└┴┘━─]", " ", text).replace("/", "/ ").split())


def test_every_table_fits_80_columns_and_no_word_is_cut(site, monkeypatch):
    output = Twice(monkeypatch)
    session = Session(COMMANDS, output, str(site.locator.address))
    short_names = set()
    for line in LINES:
        session.run_line(line.replace("{locator}", str(site.locator.address)))
        narrow, wide = output.shown
        long = [shown for shown in narrow.splitlines() if len(shown) > WIDTH and not shown.startswith("server: ")]
        assert not long, f"{line}\n{long}"
        missing = words_of(wide) - words_of(narrow)
        short_names |= missing
        assert not {word for word in missing if word not in SHORTENED}, f"{line}\n{narrow}"
    named = {line.split(" --")[0] for line in LINES}
    assert {command.name for command in COMMANDS} - named - OTHERS == set()


SHORTENED = {"GatewaySender", "Id", "Cluster", "Events", "Location"}  # Names of columns.


def test_help_fits_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for topic in ("", *(command.name for command in COMMANDS)):
        out = io.StringIO()
        assert Session(COMMANDS, Output(False, out, out)).run(["help", *topic.split()])
        assert [line for line in out.getvalue().splitlines() if len(line) > WIDTH] == []


def test_a_wide_table_becomes_a_sheet_for_each_row():
    row = ("server_ny", "x" * 60, "link down: " + "because of this " * 10)
    lines = layout(Table(("Member", "Where", "Why"), [row, row], "Two of them"), WIDTH)
    assert lines[:3] == ["Two of them", "", "  Member  server_ny"] and lines[3] == f"  Where   {'x' * 60}"
    assert max(map(len, lines)) <= WIDTH and lines.count("") == 2


@pytest.mark.parametrize("width", [20, 40, 79, 80, 200])
def test_no_table_is_wider_than_the_terminal_and_none_loses_a_character(width):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(50):
        columns = [f"c{n}" for n in range(chance.randint(1, 9))]
        rows = [
            [" ".join("w" * chance.randint(1, 30) for _ in range(chance.randint(0, 9))) for _ in columns]
            for _ in range(chance.randint(1, 5))
        ]
        lines = layout(Table(columns, rows), width)
        assert max(map(len, lines)) <= width, seed
        assert "".join(lines).count("w") == sum(cell.count("w") for row in rows for cell in row), seed


def test_characters_of_two_columns_count_as_two():
    lines = layout(Table(("K",), [("東" * 30,)]), 40)
    assert all(len(line) + line.count("東") <= 40 for line in lines)


def test_a_path_that_is_too_long_is_broken_behind_a_slash():
    assert wrapped("/one/two/three/four", 12) == ["/one/two/", "three/four"]


def test_a_narrow_sheet_has_its_values_below_their_names():
    assert layout(Sheet("", [("a very long name", "and a value")]), 24) == ["  a very long name", "    and a value"]


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (27.72, "27.7 s"),
        (59.99, "59.9 s"),
        (65, "1 min 5 s"),
        (7_380, "2 h 3 min"),
        (93_784, "1 d 2 h 3 min"),
        (86_400, "1 d"),
        (-5, "-5 s"),
        (float("inf"), "without limit"),
    ],
)
def test_a_duration_is_said_in_days_hours_and_minutes(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    "count, text", [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (1_048_575, "1 MiB"), (8 << 20, "8 MiB")]
)
def test_a_size_is_said_in_its_largest_unit(count, text):
    assert size_text(count) == text


def test_a_point_in_time_is_local_and_says_its_distance_to_utc(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert moment_text(1_795_376_108_047) == "2026-11-22T20:35:08.047+01:00"
        assert moment_text(10**19) == "10000000000000000000 ms"
        found = dict(readable([("forgotten_through", "2026-11-22T19:35:08.047+00:00"), ("let_go_through", 0)]))
        assert found == {"forgotten through": "2026-11-22T20:35:08.047+01:00", "let go through": "none"}
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_member_shows_durations_and_sizes_in_words():
    given = {
        "uptime_seconds": 93784.5,
        "uptime_ms": 65_000,
        "tombstone_bytes": 2048,
        "maximum_shutdown_wait_time": -1.0,
    }
    assert readable(given.items()) == [
        ("uptime", "1 d 2 h 3 min"),
        ("uptime", "1 min 5 s"),
        ("tombstone bytes", "2 KiB"),
        ("maximum shutdown wait time", "until the queues are empty"),
    ]


def test_an_error_of_a_member_is_said_once(site):
    err, out = io.StringIO(), io.StringIO()
    session = Session(COMMANDS, Output(False, out, err), str(site.locator.address))
    assert session.run_line("create region --name=data")
    out.truncate(0)
    assert not session.run_line("create region --name=data")
    assert (out.getvalue().strip("\0") + err.getvalue()).count("exists already") == 1


def test_a_locator_in_the_foreground_says_its_error_once(site, tmp_path):
    import subprocess
    import sys

    command = f"start locator --name=x --port={site.locator.port} --distributed-system-id=1 --foreground"
    done = subprocess.run(
        [sys.executable, "-m", "pywan", *command.split()], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 1 and (done.stdout + done.stderr).count("in use") == 1
    eventually(lambda: not (tmp_path / "x" / "x.pid").exists(), what="no pid file is left")


class Coordinating:
    """A session whose locator coordinates a site, and says this of it."""

    def __init__(self, **told: object) -> None:
        self._told = {"decides": True, "coordinator": "l", "address": "", "problem": "", "members": [], **told}

    def ask_locator(self, op: str) -> dict:
        return {"coordination": self._told}


def test_show_coordinator_tells_what_each_region_lacks_and_what_lost_buckets_are():
    lacks = {"cart": {"buckets_without_primary": 1, "missing_copies": 7, "images": 3}}
    result = show_coordinator(Coordinating(incomplete_regions=lacks, lost_buckets=2, missing_copies=7, images=3), {})
    sheet, table = result.tables
    assert isinstance(sheet, Sheet) and isinstance(table, Table)
    assert [*table.columns[2:]] == ["Missing replicas", "Snapshots on their way"] and table.rows == [("cart", 1, 7, 3)]
    assert any("lost_buckets counts the buckets that began anew, empty" in note for note in result.notes)
    whole = show_coordinator(Coordinating(incomplete_regions={}, lost_buckets=0), {})
    assert len(whole.tables) == 1 and not whole.notes
