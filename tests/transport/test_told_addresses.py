"""The addresses that members and locators tell others, if they listen on every interface."""

from __future__ import annotations

import socket

import pytest

import pywan
from pywan.errors import ConfigurationError
from pywan.testing.waiting import eventually
from pywan.transport.sockets import is_own_address, reachable_address
from support.ports import free_port
from support.sites import IDS, QUICK, SENDER

NOT_TOLD = ("", "0.0.0.0", "::")


def connects(host: str, port: int) -> bool:
    with socket.create_connection((host, port), 5.0):
        return True


@pytest.mark.parametrize("bind", ["0.0.0.0", ""])
def test_two_sites_that_listen_on_every_interface_find_each_other(bind, no_thread_left):
    with pywan.Locator("l1", distributed_system_id=1, port=0, bind_address=bind, timings=QUICK) as ny:
        assert ny.host not in NOT_TOLD and connects(ny.host, ny.port)
        with (
            pywan.Locator(
                "l2", distributed_system_id=2, port=0, bind_address=bind, remote_locators=str(ny.address), timings=QUICK
            ) as ln,
            pywan.Cache("s1", locators=f"127.0.0.1[{ny.port}]", bind_address=bind) as source,
            pywan.Cache("s2", locators=f"127.0.0.1[{ln.port}]", bind_address=bind) as target,
        ):
            receiver = target.create_gateway_receiver(start_port=0, end_port=0)
            target.create_region("data", type="REPLICATE")
            source.create_gateway_sender("ln", remote_distributed_system_id=IDS["ln"], **SENDER)
            source.create_region("data", type="REPLICATE", gateway_sender_ids="ln").put("k", b"v")
            eventually(lambda: target.region("data").get("k") == b"v", what="the event")
            for locator in (ny, ln):
                for member in locator.members():
                    assert member["host"] not in NOT_TOLD and connects(member["host"], member["port"])
                    assert all(r["host"] not in NOT_TOLD for r in member["receivers"])
                assert not [a for found in locator.known_sites().values() for a in found if a.host in NOT_TOLD]
            assert receiver.host not in NOT_TOLD and connects(receiver.host, receiver.port)


def test_an_address_of_its_own_is_told_as_it_is():
    assert reachable_address("127.0.0.7", [("127.0.0.1", 1)]) == "127.0.0.7"


def test_the_interface_towards_a_peer_is_told():
    """An outer one if there is any: who listens everywhere wants to be reached from outside."""
    told = reachable_address("0.0.0.0", [("127.0.0.1", 10334)])
    assert is_own_address(told)
    outer = reachable_address("0.0.0.0")
    assert told == outer


def test_a_name_that_nobody_can_connect_to_is_refused_with_the_remedy(two_sites):
    ny, _ = two_sites
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ConfigurationError, match=r"hostname_for_clients: .* every interface .* name the address"):
            pywan.Cache("other", locators=str(ny.locator.address), hostname_for_clients=host)
        with pytest.raises(ConfigurationError, match=r"hostname_for_clients: .* every interface"):
            pywan.Locator("other", distributed_system_id=1, hostname_for_clients=host)
        with pytest.raises(ConfigurationError, match=r"hostname_for_senders: .* every interface"):
            ny.cache.create_gateway_receiver(hostname_for_senders=host)


def test_names_that_are_given_are_told(network):
    (ny,) = network.add("ny")
    with pywan.Cache(
        "named", locators=str(ny.locator.address), bind_address="0.0.0.0", hostname_for_clients="127.0.0.9"
    ) as cache:
        assert cache.host == "127.0.0.9"
        assert (
            cache.create_gateway_receiver(start_port=0, end_port=0, hostname_for_senders="127.0.0.8").host
            == "127.0.0.8"
        )


def test_a_locator_that_listens_everywhere_knows_its_own_name_in_the_list():
    port = free_port()
    with pywan.Locator(
        "l", distributed_system_id=1, port=port, bind_address="0.0.0.0", locators=f"127.0.0.1[{port}]", timings=QUICK
    ) as locator:
        assert locator.status()["peers"] == []
