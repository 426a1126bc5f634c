"""A region names a sender that a member lacks: its events are queued nowhere, and that is said until it is mended."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator

import pytest

import pywan
from pywan.cli.commands import COMMANDS
from pywan.cli.output import Output
from pywan.cli.session import Session
from pywan.errors import IllegalStateError, PywanError
from pywan.member.sharing import FOLLOW_S
from pywan.testing import eventually

LACKS = (
    r"region orders: member b has no gateway sender ln and leads [1-9]\d* of its buckets: events of these are queued"
)


@pytest.fixture
def locator() -> Iterator[pywan.Locator]:
    with pywan.Locator("locator", distributed_system_id=1, port=0) as started:
        yield started


@pytest.fixture
def a(locator: pywan.Locator) -> Iterator[pywan.Cache]:
    with pywan.Cache("a", locators=str(locator.address)) as cache:
        yield cache


@pytest.fixture
def b(locator: pywan.Locator, a: pywan.Cache) -> Iterator[pywan.Cache]:
    with pywan.Cache("b", locators=str(locator.address)) as cache:
        yield cache


def told(locator: pywan.Locator, line: str) -> dict[str, dict]:
    """What the members answer to a line of the shell, by member."""
    out = io.StringIO()
    Session(COMMANDS, Output(True, out, out), str(locator.address)).run_line(line)
    return {reply["member"]: reply for reply in json.loads(out.getvalue())["data"]["members"]}


def warnings_of(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [each for each in found if re.search(words, each)]


@pytest.mark.parametrize("type", ["PARTITION", "REPLICATE"])
def test_a_member_that_lacks_a_sender_is_named_until_it_has_it(locator, a, b, caplog, type):
    sender = a.create_gateway_sender("ln", remote_distributed_system_id=2)
    a.create_region("orders", type, gateway_sender_ids=["ln"])
    b.create_region("orders", type, gateway_sender_ids=["ln"])
    assert len(warnings_of(caplog, "region orders names gateway sender ln, which member b does not have")) == 1

    eventually(lambda: re.search(LACKS, sender.lag()["cause"]), what="that the lag names the member")
    assert re.search(LACKS, told(locator, "status gateway-sender --id=ln")["a"]["lag"]["cause"])
    for answer in told(locator, "describe region --name=orders").values():
        assert len(answer["lacks"]) == 1 and re.match(LACKS, answer["lacks"][0])

    b.create_gateway_sender("ln", remote_distributed_system_id=2)
    eventually(lambda: "region orders" not in sender.lag()["cause"], what="that the lag is silent again")
    eventually(
        lambda: not any("lacks" in each for each in told(locator, "describe region --name=orders").values()),
        what="that both members know that b has it",
    )


def test_a_sender_that_all_members_have_is_lacked_nowhere(locator, a, b, caplog):
    for member in (a, b):
        member.create_gateway_sender("ln", remote_distributed_system_id=2)
        member.create_region("orders", gateway_sender_ids=["ln"])
    assert all("lacks" not in each for each in told(locator, "describe region --name=orders").values())
    assert not warnings_of(caplog, "does not have")


@pytest.mark.parametrize(
    ("attribute", "given", "words"),
    [
        ("gateway_sender_ids", "lm", r"names gateway sender lm, which member a does not have \(did you mean 'ln'\?\)"),
        ("gateway_sender_ids", "far", "names gateway sender far, which member a does not have: events"),
        ("async_event_queue_ids", "to-fles", r"async event queue to-fles, .* \(did you mean 'to-files'\?\)"),
        # An id of the other kind is not near.
        ("async_event_queue_ids", "lm", "names async event queue lm, which member a does not have: events"),
    ],
)
@pytest.mark.parametrize("way", ["create", "alter"])
def test_an_id_that_nothing_has_is_warned_of_with_the_near_one(a, caplog, attribute, given, words, way):
    a.create_gateway_sender("ln", remote_distributed_system_id=2)
    a.create_async_event_queue("to-files", lambda events: True)
    if way == "create":
        a.create_region("orders", **{attribute: [given]})
    else:
        a.create_region("orders").alter(**{attribute: [given]})
    assert len(warnings_of(caplog, words)) == 1


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda a: a.create_region("r", redundant_copy=1), "redundant_copies"),
        (lambda a: a.create_region("r", gateway_sender_id=["ln"]), "gateway_sender_ids"),
        (lambda a: a.create_gateway_sender("ln", remote_distributed_sytem_id=2), "remote_distributed_system_id"),
        (lambda a: a.create_gateway_receiver(startport=1), "start_port"),
        (lambda a: a.create_async_event_queue("q", lambda events: True, batchsize=5), "batch_size"),
        (lambda a: a.create_disk_store("d", directory=[]), "directories"),
        (lambda a: a.create_region("r").alter(gateway_sender_id=[]), "gateway_sender_ids"),
        (
            lambda a: a.create_gateway_sender("ln", remote_distributed_system_id=2).alter(batch_sise=5),
            "batch_size",
        ),
        (lambda a: a.create_async_event_queue("q", lambda events: True).alter(batch_sise=5), "batch_size"),
    ],
)
def test_a_misspelt_attribute_is_refused_with_the_near_one(a, call, near):
    with pytest.raises(PywanError, match=f"no attribute '.*'; did you mean '{near}'"):
        call(a)


def test_a_misspelt_disk_store_is_refused_with_the_near_one(locator, tmp_path):
    with pywan.Cache("keeps", locators=str(locator.address), dir=tmp_path) as cache:
        cache.create_disk_store("orders-store")
        with pytest.raises(IllegalStateError, match="'order-store' not found; did you mean 'orders-store'"):
            cache.create_region("r", "PARTITION_PERSISTENT", disk_store_name="order-store")


# Senders that one member names and another one does not


def looks(*members: pywan.Cache, after: float) -> None:
    """Each member looks now and so many seconds later whether others name other senders."""
    for seconds in (0.0, after, 2 * after):
        for member in members:
            member._core.sharing.say_other_senders(time.monotonic() + seconds)


def test_a_region_of_one_member_is_altered_without_a_warning(a, caplog):
    a.create_gateway_sender("ln", remote_distributed_system_id=2)
    region = a.create_region("orders", "REPLICATE")
    region.alter(gateway_sender_ids=["ln"])
    looks(a, after=FOLLOW_S)
    assert not warnings_of(caplog, "at another member")


def test_members_that_follow_one_that_altered_a_region_warn_of_nothing(a, b, caplog):
    for member in (a, b):
        member.create_gateway_sender("ln", remote_distributed_system_id=2)
        member.create_region("orders", "REPLICATE")
    a.region("orders").alter(gateway_sender_ids=["ln"])
    eventually(lambda: b._core.agent.tables.regions["orders"].senders == "ln")
    looks(a, b, after=FOLLOW_S / 4)
    b.region("orders").alter(gateway_sender_ids=["ln"])
    looks(a, b, after=FOLLOW_S)
    assert not warnings_of(caplog, "at another member")


def test_a_member_that_does_not_follow_warns_once(a, b, caplog):
    for member in (a, b):
        member.create_gateway_sender("ln", remote_distributed_system_id=2)
        member.create_region("orders", "REPLICATE")
    a.region("orders").alter(gateway_sender_ids=["ln"])
    words = "region orders: its senders are none here, and ln at another member"
    eventually(lambda: warnings_of(caplog, words), what="that the member says it by itself")
    looks(a, b, after=FOLLOW_S)
    assert len(warnings_of(caplog, "at another member")) == 1
