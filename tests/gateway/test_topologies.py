"""Star, chain, ring, hub and spoke: every event reaches every site once, and ends."""

import itertools

import pytest

from pywan.testing.waiting import eventually
from support.sites import at_once, keep_doing

BOTH = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(dict(type="REPLICATE", parallel=False, dispatcher_threads=1), id="serial"),
        pytest.param(dict(type="PARTITION", parallel=False, dispatcher_threads=5), id="serial-5"),
        pytest.param(dict(type="PARTITION", parallel=True, dispatcher_threads=5), id="parallel"),
    ],
)


def queued(network):
    return {
        (site.name, sender.id): sender.stats["events_queued"]
        for site in network.sites.values()
        for sender in site.cache.gateway_senders().values()
    }


@BOTH
def test_two_sites_send_to_each_other_and_nothing_returns(network, kind):
    """C-032."""
    ny, ln = network.mesh("ny ln", **kind)
    ny.data["from ny"] = 1
    ln.data["from ln"] = 2
    network.settle()
    assert dict(ny.data) == dict(ln.data) == {"from ny": 1, "from ln": 2}
    assert queued(network) == {("ny", "ln"): 1, ("ln", "ny"): 1}
    for site in (ny, ln):
        assert (site.receiver.stats["create_requests"], site.receiver.stats["update_requests"]) == (1, 0)
        assert [s.stats["events_not_queued_already_there"] for s in site.cache.gateway_senders().values()] == [1]


@BOTH
def test_a_full_mesh_with_a_put_in_every_site_queues_one_event_a_sender(network, kind):
    """C-034."""
    sites = network.mesh(**kind)
    for site in sites:
        site.data[site.name] = site.id
    network.settle()
    assert all(dict(site.data) == {"ny": 1, "ln": 2, "tk": 3} for site in sites)
    assert queued(network) == dict.fromkeys(itertools.permutations(["ny", "ln", "tk"], 2), 1)


@BOTH
def test_a_full_mesh_with_a_put_in_one_site_queues_it_only_there(network, kind):
    """C-035, C-037."""
    ny, ln, tk = network.mesh(**kind)
    ny.data["k"] = 1
    network.settle()
    assert ln.data["k"] == tk.data["k"] == 1
    assert queued(network) == {(a, b): int(a == "ny") for a, b in itertools.permutations(["ny", "ln", "tk"], 2)}


@BOTH
def test_a_ring_is_run_through_once(network, kind):
    """C-033, C-037: each site sends to the next one only."""
    ny, _ln, _tk = sites = network.ring(**kind)
    ny.data["k"] = 1
    network.settle()
    assert all(site.data["k"] == 1 for site in sites)
    assert queued(network) == {("ny", "ln"): 1, ("ln", "tk"): 1, ("tk", "ny"): 0}
    for site in sites:
        site.data[site.name] = site.id
    network.settle()
    network.assert_equal()
    assert queued(network) == {("ny", "ln"): 3, ("ln", "tk"): 3, ("tk", "ny"): 2}


@pytest.mark.parametrize("topology", ["mesh", "ring", "chain", "hub"])
@pytest.mark.parametrize("names", [pytest.param("ny ln tk", marks=pytest.mark.nightly), "ny ln tk hk"])
@BOTH
def test_every_event_of_every_site_reaches_every_other_site_once(network, topology, names, kind):
    sites = getattr(network, topology)(names, **kind)

    def write(site):
        for n in range(200):
            site.data[f"{site}{n}"] = n
        for n in range(0, 200, 2):
            site.data[f"{site}{n}"] = -n
        for n in range(0, 200, 4):
            del site.data[f"{site}{n}"]

    at_once(*(lambda site=site: write(site) for site in sites))
    network.settle()
    network.assert_equal()
    assert len(sites[0].data) == 150 * len(sites)
    for site in sites:
        assert site.receiver.stats["events_received"] == 350 * (len(sites) - 1)
        assert site.receiver.stats["conflicts_lost"] == site.receiver.stats["exceptions_occurred"] == 0


@pytest.mark.parametrize("parallel", [True, False])
def test_a_site_relays_for_a_stopped_sender(network, parallel):
    """C-038: links 1->2, 1->3, 2->3; once 1->3 is stopped its site is no longer stamped, so that 2 passes events on."""
    ny, ln, tk = network.add("ny ln tk")
    network.connect([("ny", "ln"), ("ny", "tk"), ("ln", "tk")], parallel=parallel)
    for n in range(200):
        ny.data[n] = n
    network.settle()
    assert len(ny.data) == len(ln.data) == len(tk.data) == 200
    assert ln.sender(tk).stats["events_queued"] == 0
    ny.sender(tk).stop()
    for n in range(1000):
        ny.data[n] = n
    network.settle()
    assert len(ny.data) == len(ln.data) == len(tk.data) == 1000
    assert ln.sender(tk).stats["events_queued"] == 1000
    network.assert_equal()
    assert ny.sender(tk).stats["events_dropped_due_to_primary_sender_not_running"] == 1000


def test_only_senders_attached_to_the_region_are_stamped(network):
    """A member's sender to TK that the region does not use must not keep LN from passing the region's events on
    to TK.
    """
    ny, ln, tk = network.add("ny ln tk")
    for site in (ln, tk):
        site.receive()
    ny.send_to(ln), ny.send_to(tk), ln.send_to(tk)
    ny.region(senders="ln", type="REPLICATE"), ln.region(senders="tk", type="REPLICATE"), tk.region(type="REPLICATE")
    ny.data["k"] = 1
    network.settle()
    assert tk.data["k"] == 1 and ny.sender(tk).stats["events_received"] == 0


@pytest.mark.parametrize("topology", ["mesh", "chain", "hub"])
def test_sites_written_at_once_on_the_same_keys_end_equal(network, topology):
    sites = getattr(network, topology)("ny ln tk")

    def write(site):
        for n in range(600):
            key = f"k{n % 50}"
            if n % 7 == 6:
                site.data.pop(key, None)
            else:
                site.data[key] = f"{site}{n}"

    at_once(*(lambda site=site: write(site) for site in sites))
    network.settle()
    network.assert_equal()


def test_a_site_that_joins_later_is_sent_to_from_then_on(network):
    ny, ln = network.mesh("ny ln")
    ny.data["before"] = 1
    network.settle()
    tk = network.site("tk")
    tk.receive()
    tk.region()
    for site in (ny, ln):
        site.send_to(tk, parallel=True)
        site.data.alter(gateway_sender_ids=tuple(site.cache.gateway_senders()))
    ny.data["after"] = 2
    network.settle()
    assert dict(tk.data) == {"after": 2}
    assert ln.sender(tk).stats["events_queued"] == 0


def test_a_chain_keeps_what_its_far_end_cannot_take_yet(network):
    """The middle acknowledges what it has queued itself, and delivers it when the end is there."""
    ny, ln, tk = network.chain()
    tk.receiver.stop()
    for n in range(500):
        ny.data[n] = n
    eventually(lambda: len(ln.data) == 500 and ny.sender(ln).queue_size == 0)
    assert ln.sender(tk).queue_size == 500 and len(tk.data) == 0
    tk.receiver.start()
    network.settle()
    network.assert_equal()


def test_puts_at_the_center_of_a_hub_while_a_spoke_is_away(network):
    hub, ln, tk = network.hub()
    eventually(lambda: hub.sender(tk).is_connected)
    with keep_doing(lambda n: hub.data.put(n % 1000, n)) as done:
        eventually(lambda: len(done) > 500)
        tk.receiver.stop()
        at = len(done)
        eventually(lambda: len(done) > at + 500 and len(ln.data) > 500)
        tk.receiver.start()
    network.settle()
    network.assert_equal()
    assert ln.receiver.stats["events_received"] == tk.receiver.stats["events_received"] == len(done)
