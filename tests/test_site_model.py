"""A site of several members keeps its promises, whatever happens to members, links and coordinator. Each part of the
protocol is needed for that: without it the same runs fail."""

from __future__ import annotations

import os

import pytest

from pywan.coordination.coordinator import Coordinator
from site_model import member as model
from site_model.world import Broken, SiteWorld

SEEDS = int(os.environ.get("SITE_SEEDS", "12"))
FIRST = int(os.environ.get("SITE_FIRST", "1"))
SEARCH = 100  # Seeds within which a missing part of the protocol is to be found out.


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_every_history_has_an_order_and_the_site_heals(seed):
    SiteWorld(seed).run()


def test_a_run_repeats_by_its_seed():
    first, second = SiteWorld(5), SiteWorld(5)
    first.run()
    second.run()
    assert first.trace == second.trace and first.history == second.history


def without_waiting_for_those_who_leave(monkeypatch):
    def others(self, key):
        return set(self.buckets[key].in_sync) - {self.me}

    monkeypatch.setattr(model.Member, "_others", others)


def without_waiting_for_promises_to_the_earlier_primary(monkeypatch):
    monkeypatch.setattr(model, "GRANT_US", 0)


def without_fetching_what_other_copies_have(monkeypatch):
    on_tail = model.Member.on_tail

    def empty(self, sender, key, epoch, from_, tail, remaining):
        on_tail(self, sender, key, epoch, from_, [], remaining)

    monkeypatch.setattr(model.Member, "on_tail", empty)


def without_refusing_earlier_epochs(monkeypatch):
    on_append = model.Member.on_append

    def whatever(self, sender, key, life, epoch, *rest):
        copy = self.copies.get(key)
        if copy is not None and epoch < copy.epoch:
            copy.epoch = epoch
        on_append(self, sender, key, life, epoch, *rest)

    monkeypatch.setattr(model.Member, "on_append", whatever)


def without_remembering_identities(monkeypatch):
    monkeypatch.setattr(model.Copy, "done", lambda self, identity: None)


def without_the_lease_of_a_sole_copy(monkeypatch):
    monkeypatch.setattr(model.Member, "lease_until", property(lambda self: 1 << 62, lambda self, value: None), False)


def without_waiting_for_the_first_member_to_know_of_a_second(monkeypatch):
    monkeypatch.setattr(Coordinator, "_is_aware", lambda self, region, member: True)


# Each with the seed at which the search begins: near the first that finds it today.
TAKEN_OUT = {
    without_waiting_for_those_who_leave: 170,
    without_waiting_for_promises_to_the_earlier_primary: 200,
    without_fetching_what_other_copies_have: 1,
    without_refusing_earlier_epochs: 25,
    without_remembering_identities: 1,
    without_the_lease_of_a_sole_copy: 1,
    without_waiting_for_the_first_member_to_know_of_a_second: 100,
}


@pytest.mark.whole
@pytest.mark.parametrize("take_out", TAKEN_OUT, ids=lambda each: each.__name__)
def test_the_checks_find_a_protocol(take_out, monkeypatch):
    take_out(monkeypatch)
    for seed in range(TAKEN_OUT[take_out], TAKEN_OUT[take_out] + SEARCH):
        try:
            SiteWorld(seed).run()
        except Broken:
            return
    pytest.fail(f"{SEARCH} runs did not notice that the protocol goes on {take_out.__name__}")
