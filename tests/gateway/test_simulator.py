"""A few dozen simulations, always the same seeds; `python -m tests.simulator --seeds 1000` runs many of each world."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pywan.gateway.floors import NONE_COMES, SourceFloors
from simulator import WORLDS, run
from simulator.disk import Disk
from simulator.link import Failure, Link
from simulator.restarts import LoggedLink
from simulator.tombstones import MeshLink
from support.tree import ROOT


@pytest.mark.parametrize("first", range(1, 21, 5))
def test_nothing_is_lost_repeated_or_out_of_order_whatever_the_network_does(first):
    for seed in range(first, first + 5):
        run(seed, steps=250)


@pytest.mark.parametrize("first", range(1, 16, 3))
def test_nothing_durable_is_lost_whatever_disks_and_clocks_do_and_whenever_machines_stop(first):
    for seed in range(first, first + 3):
        run(seed, steps=250, world="machines")


@pytest.mark.parametrize("world", WORLDS)
def test_a_simulation_is_repeated_by_its_seed(world):
    worlds = [run(7, steps=200, world=world) for _ in range(2)]
    assert worlds[0].trace == worlds[1].trace
    assert worlds[0].statistics == worlds[1].statistics
    assert worlds[0].now_us == worlds[1].now_us
    assert [link.queue.positions() for link in worlds[0].links] == [link.queue.positions() for link in worlds[1].links]
    assert worlds[0].digest == worlds[1].digest


@pytest.mark.long
def test_a_simulation_is_repeated_by_its_seed_in_another_process():
    """Nothing depends on addresses, on a process's secrets, or on what ran before. Of these seeds of `machines` some
    once did.
    """
    command = [sys.executable, "-m", "tests.simulator", "--first", "66", "--seeds", "12", "--check-repeat"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0 and "36 of 36 were the same in another process" in ended.stdout, (
        ended.stdout + ended.stderr
    )


def test_an_event_that_vanishes_at_the_receiver_is_noticed_with_its_seed(monkeypatch):
    """The simulator itself is tried out: a receiver that acknowledges and does not apply."""
    apply = Link.apply

    def forget_some(link, core, fields, connection):
        return 0 if b"k3" in fields["key"][1] else apply(link, core, fields, connection)

    monkeypatch.setattr(Link, "apply", forget_some)
    with pytest.raises(
        Failure,
        match=(
            r"(?s)seed 1, step .*of key k3 was acknowledged.*repeat: python -m tests.simulator --world network "
            r"--seed 1"
        ),
    ):
        run(1)


def test_an_event_that_a_disk_loses_is_noticed_with_its_seed(monkeypatch):
    """The simulator itself is tried out: a disk whose syncs do nothing."""
    monkeypatch.setattr(Disk, "_sync", lambda disk, handle, path: 0)
    with pytest.raises(
        Failure,
        match=(
            r"(?s)seed \d+, step .*(on the disk|does not start|damaged).*repeat: python -m tests.simulator "
            r"--world machines --seed"
        ),
    ):
        for seed in range(1, 30):
            run(seed, world="machines")


def test_a_restored_store_that_keeps_its_identity_is_noticed(monkeypatch):
    """The simulator itself is tried out: senders that do not ask whether the past is their own."""
    monkeypatch.setattr(LoggedLink, "is_own_past", lambda link: True)
    with pytest.raises(
        Failure,
        match=(
            r"(?s)(does not know what it sent|is the latest|neither applied|arrived as).*repeat: python -m "
            r"tests.simulator --world machines --seed"
        ),
    ):
        for seed in range(1, 60):
            run(seed, world="machines")


@pytest.mark.parametrize("first", range(1, 11, 5))
def test_no_destroyed_key_comes_back_at_some_sites_only_however_little_they_remember(first):
    for seed in range(first, first + 5):
        run(seed, steps=250, world="tombstones")


def test_tombstones_that_go_too_early_are_noticed(monkeypatch):
    """The simulator itself is tried out: members that take nobody's floor into account."""
    monkeypatch.setattr(SourceFloors, "lowest", lambda sources: (NONE_COMES, ""))
    with pytest.raises(
        Failure,
        match=(
            r"(?s)(sites differ in|has waited for every sender).*repeat: python -m tests.simulator --world "
            r"tombstones --seed"
        ),
    ):
        for seed in range(1, 60):
            run(seed, world="tombstones")


def test_an_event_that_was_sent_by_force_and_is_parked_again_is_noticed(monkeypatch):
    """The simulator itself is tried out: an operator whose force is not used."""
    monkeypatch.setattr(MeshLink, "replay_parked", lambda link, force=False: Link.replay_parked(link))
    with pytest.raises(
        Failure,
        match=(
            r"(?s)are parked although they were sent by force.*repeat: python -m tests.simulator --world "
            r"tombstones --seed"
        ),
    ):
        for seed in range(1, 60):
            run(seed, world="tombstones")
