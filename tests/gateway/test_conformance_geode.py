"""Rows of docs/conformance/geode-wan.md that no other test shows."""

from __future__ import annotations

import contextlib
import threading

import pytest

import pywan
from pywan.config import cache_xml
from pywan.errors import CacheXmlError
from pywan.testing.waiting import eventually
from support.commands import CommandedSite, CommandFailed


def test_a_sender_finds_the_receiver_through_the_second_locator():
    """C-011: the remote site has two locators and the first dies. Then its receiver moves to another port."""
    with (
        pywan.Locator("first_ln", distributed_system_id=2, port=0) as first,
        pywan.Locator("second_ln", distributed_system_id=2, port=0, locators=str(first.address)) as second,
        pywan.Locator(
            "ny", distributed_system_id=1, port=0, remote_locators=f"{first.address},{second.address}"
        ) as locator_ny,
        pywan.Cache("server_ny", locators=str(locator_ny.address)) as ny,
        pywan.Cache("server_ln", locators=f"{first.address},{second.address}") as ln,
    ):
        ln.create_gateway_receiver(start_port=0, end_port=0)
        there = ln.create_region("data", type="REPLICATE")
        sender = ny.create_gateway_sender("ln", remote_distributed_system_id=2, retry_interval_ms=100)
        here = ny.create_region("data", type="REPLICATE", gateway_sender_ids=["ln"])
        here["before"] = 1
        assert sender.wait_until_flushed() and there["before"] == 1
        eventually(lambda: [member["name"] for member in second.members()] == ["server_ln"])

        first.stop()
        ln.gateway_receiver.stop()
        here["between"] = 2
        ln.destroy_gateway_receiver()
        ln.create_gateway_receiver(start_port=0, end_port=0)
        assert sender.wait_until_flushed() and dict(there) == {"before": 1, "between": 2}
        sender.stop()


def test_a_locator_that_stops_leaves_no_thread():
    """C-140: also with a remote site that it has spoken with and one that is not there."""
    before = set(threading.enumerate())
    with pywan.Locator("ln", distributed_system_id=2, port=0) as other:
        locator = pywan.Locator("ny", distributed_system_id=1, port=0, remote_locators=f"{other.address},127.0.0.1[1]")
        locator.start()
        eventually(lambda: set(locator.known_sites()) == {1, 2})
        locator.stop()
    eventually(lambda: not set(threading.enumerate()) - before, what="the end of every thread")


@pytest.mark.parametrize(
    "element",
    [
        '<gateway-sender id="s" remote-distributed-system-id="2">\n<gateway-transport-filter/></gateway-sender>',
        '\n<async-event-queue id="q" forward-expiration-destroy="true"/>',
    ],
)
def test_what_has_no_effect_here_is_refused_with_its_line(element):
    """C-151: transport filters of a cache.xml, and what its asynchronous event queues cannot do here."""
    with pytest.raises(CacheXmlError, match=":2:"):
        cache_xml.parse_bytes(f"<cache>{element}</cache>".encode())


def test_status_commands_say_the_state_at_each_member(tmp_path):
    """C-172: a sender of two members, in each state; a receiver that runs, is stopped, and is not there."""
    with contextlib.closing(CommandedSite(tmp_path)) as site, contextlib.ExitStack() as ends:
        site.start()
        ends.enter_context(pywan.Cache("other", locators=str(site.locator.address)))

        def states(what: str) -> dict[str, str]:
            return {each["member"]: each["status"] for each in site.do(f"status {what}")["members"]}

        with pytest.raises(CommandFailed, match="GatewaySender ln is not available"):
            site.do("status gateway-sender --id=ln")
        site.do("create gateway-sender --id=ln --remote-distributed-system-id=2 --parallel=true --manual-start=true")
        assert states("gateway-sender --id=ln") == {"server": "Not running", "other": "Not running"}
        site.do("start gateway-sender --id=ln")
        assert states("gateway-sender --id=ln") == dict.fromkeys(("server", "other"), "Running, not Connected")
        site.do("pause gateway-sender --id=ln --member=other")
        assert states("gateway-sender --id=ln") == {"server": "Running, not Connected", "other": "Paused"}

        locator = ends.enter_context(
            pywan.Locator("ln", distributed_system_id=2, port=0, remote_locators=str(site.locator.address))
        )
        remote = ends.enter_context(pywan.Cache("server_ln", locators=str(locator.address)))
        remote.create_gateway_receiver(start_port=0, end_port=0)
        connected = {"server": "Running and Connected", "other": "Paused"}
        eventually(lambda: states("gateway-sender --id=ln") == connected, what="a connected sender")
        site.do("stop gateway-sender --id=ln --member=server")
        assert states("gateway-sender --id=ln") == {"server": "Not running", "other": "Paused"}

        site.do("create gateway-receiver --start-port=0 --end-port=0 --member=server")
        with pytest.raises(CommandFailed, match="GatewayReceiver is not available on member other"):
            site.do("status gateway-receiver")
        site.do("create gateway-receiver --start-port=0 --end-port=0 --member=other")
        assert states("gateway-receiver") == {"server": "Running", "other": "Running"}
        site.do("stop gateway-receiver --member=other")
        assert states("gateway-receiver") == {"server": "Running", "other": "Not running"}


def test_a_filter_that_closes_the_cache_during_a_bulk_call_ends_it_with_an_error():
    """C-196: the caller gets an error and does not hang, and the cache is closed in the end."""

    class Closing(pywan.GatewayEventFilter):
        def before_enqueue(self, event: object) -> bool:
            threading.Thread(target=cache.close).start()  # As another thread of the program does it.
            eventually(lambda: region.is_closed)
            return True

    with pywan.Locator("ny", distributed_system_id=1, port=0) as locator:
        cache = pywan.Cache("server_ny", locators=str(locator.address))
        cache.create_gateway_sender("ln", remote_distributed_system_id=2, gateway_event_filters=[Closing()])
        region = cache.create_region("data", type="REPLICATE", gateway_sender_ids=[])
        region.put_all((n, n) for n in range(100))
        region.alter(gateway_sender_ids=["ln"])
        with pytest.raises(pywan.RegionNotFoundError, match=r"remove_all stopped at key 0.*its cache closed"):
            region.remove_all(range(100))
        cache.close()
        assert cache.is_closed
