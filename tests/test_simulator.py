"""A few dozen simulations, always the same seeds; `python -m tests.simulator --seeds 1000` runs many."""
from __future__ import annotations

import pytest
from simulator import run
from simulator.world import Failure, Link


@pytest.mark.parametrize("first", range(1, 41, 5))
def test_nothing_is_lost_repeated_or_out_of_order_whatever_the_network_does(first):
    for seed in range(first, first + 5):
        run(seed, steps=250)


def test_a_simulation_is_repeated_by_its_seed():
    worlds = [run(7, steps=200) for _ in range(2)]
    assert worlds[0].statistics == worlds[1].statistics
    assert worlds[0].now_us == worlds[1].now_us
    assert [link.queue.positions() for link in worlds[0].links] == [link.queue.positions() for link in worlds[1].links]


def test_an_event_that_vanishes_at_the_receiver_is_noticed_with_its_seed(monkeypatch):
    """The simulator itself is tried out: a receiver that acknowledges and does not apply."""
    apply = Link.apply

    def forget_some(link, core, record):
        return 0 if b"k3" in record else apply(link, core, record)

    monkeypatch.setattr(Link, "apply", forget_some)
    with pytest.raises(Failure, match=r"(?s)seed 1, step .*of key k3 was acknowledged.*repeat: python -m tests.simulator --seed 1"):
        run(1)
