"""A ledger that does not balance: an error with a name wherever somebody looks, and no reason to stop sending."""

from __future__ import annotations

import io
import json
import struct

import pytest

from pywan import _core
from pywan.cli.commands import COMMANDS
from pywan.cli.output import Output
from pywan.cli.session import Session
from pywan.errors import DataLossError
from pywan.testing.waiting import eventually
from support.forged_logs import place_of_state, with_checksum
from support.log_format import STATE
from support.persistent_member import Member, receive


def forget_received(log, events):
    """The queue's state in the manifest says that `events` fewer were received."""
    data = bytearray((log / "MANIFEST").read_bytes())
    at = place_of_state(data) + STATE.size
    number = next(number for number, field, *_ in _core.queue_counter_rows() if field == "received")
    while struct.unpack_from("<Q", data, at)[0] != number:  # Counters are pairs of number and value.
        at += 16
    struct.pack_into("<Q", data, at + 8, struct.unpack_from("<Q", data, at + 8)[0] - events)
    (log / "MANIFEST").write_bytes(with_checksum(data))


@pytest.fixture
def unbalanced(network, tmp_path):
    """A sender that sent 10 events and has 10 queued, whose disk store says that it received 17."""
    ny, ln = network.add("ny ln")
    member = Member(ny, tmp_path, False, "REPLICATE")
    receiver = receive(ln)
    for n in range(10):
        member.data.put(n, "v")
    network.settle()
    receiver.stop()
    for n in range(10, 20):
        member.data.put(n, "v")
    assert member.sender.ledger()["balanced"]
    ny.cache.close()
    forget_received(tmp_path / "disk-store-DEFAULT" / "queue-ln", 3)
    member.begin()
    yield ny, ln, member
    ny.cache.close()  # Its ledger is not checked with the others.


def test_an_unbalanced_ledger_is_an_error_that_has_every_entry(unbalanced):
    _, _, member = unbalanced
    with pytest.raises(
        DataLossError, match=r"'ln': 3 events are unaccounted for: .*'received': 17, 'queued': 20"
    ) as caught:
        member.sender.ledger()
    assert caught.value.ledger["unexplained"] == 3 and not caught.value.ledger["balanced"]


def test_the_status_shows_an_unbalanced_ledger_and_fails(unbalanced):
    ny, _, _ = unbalanced
    out = io.StringIO()
    assert not Session(COMMANDS, Output(True, out, out), str(ny.locator.address)).run_line(
        "status gateway-sender --id=ln"
    )
    told = json.loads(out.getvalue())
    (member,) = told["data"]["members"]
    assert (member["ledger"]["received"], member["ledger"]["unexplained"], member["ledger"]["balanced"]) == (
        17,
        3,
        False,
    )
    assert "3 events are unaccounted for" in str(told)


def test_events_are_sent_though_others_are_unaccounted_for(unbalanced, caplog):
    _, ln, member = unbalanced
    assert "after recovery: gateway sender 'ln': 3 events are unaccounted for" in str(
        [each.getMessage() for each in caplog.get_records("setup")]
    )
    ln.receiver.start()
    eventually(lambda: len(ln.data) == 20)
    with pytest.raises(DataLossError, match="3 events"):
        member.sender.ledger()
