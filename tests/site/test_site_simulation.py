"""A site of several members keeps its promises, whatever happens to members, links and coordinator. The product itself
runs in simulated time. Each part of its protocol is needed: without it the same runs fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from pywan import _core
from pywan.replication.region_replicas import RegionReplicas
from site_simulation.broken import Broken
from site_simulation.kinds import EACH, KINDS, OWN_KINDS, kind_of, make_world, what_did_not_happen
from site_simulation.world import SiteWorld
from support.tree import TESTS

SEEDS = int(os.environ.get("SITE_SEEDS", "8"))
FIRST = int(os.environ.get("SITE_FIRST", "1"))
SEEDS_OF_A_KIND = 3  # At most: one world is enough in which happens what the kind is for.
SEARCH = 400  # Seeds within which a missing part of the protocol is to be found out.


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_every_history_has_an_order_and_the_site_heals(seed):
    SiteWorld(seed).run()


@pytest.mark.parametrize("kind", [each.kind for each in OWN_KINDS])
def test_worlds_of_a_kind_keep_its_promises_and_repeat_by_their_seed(kind):
    statistics, seed = run_twice(kind), FIRST
    while KINDS[kind].must_happen[0] in what_did_not_happen(kind, statistics):
        seed += 1  # `make simulate-site` runs more seeds, and wants all of it.
        assert seed < FIRST + SEEDS_OF_A_KIND
        world = make_world(seed, kind)
        world.run()
        statistics.update(world.statistics)


def test_most_seeds_have_a_world_of_faults_and_each_kind_has_some():
    kinds = Counter(kind_of(seed) for seed in range(1, 1 + EACH * len(OWN_KINDS)))
    assert kinds == {SiteWorld.kind: (EACH - 1) * len(OWN_KINDS), **{each.kind: 1 for each in OWN_KINDS}}


def run_twice(kind: str) -> Counter[str]:
    """Two runs of the first seed are the same. Returns what happened in one of them."""
    before = _core.monotonic_us()
    first, second = make_world(FIRST, kind), make_world(FIRST, kind)
    first.run()
    assert before <= _core.monotonic_us() < before + 3_600_000_000
    second.run()
    assert first.trace == second.trace and first.history == second.history
    assert first.statistics["answered"] > 50
    return Counter(first.statistics)


@pytest.mark.parametrize("kind", ["", *(each for each in KINDS if KINDS[each] not in OWN_KINDS)])
def test_a_run_repeats_by_its_seed_and_leaves_the_clock_of_the_process_as_the_systems(kind):
    run_twice(kind)


def test_a_run_is_the_same_in_a_process_with_other_hashes():
    program = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from site_simulation.kinds import make_world
world = make_world(1, "operators")
world.run()
print(*world.trace, sep="\\n")
"""
    environments = [{**os.environ, "PYTHONHASHSEED": str(number)} for number in (0, 1)]
    runs = [
        subprocess.run([sys.executable, "-c", program], env=each, capture_output=True, text=True, check=True)
        for each in environments
    ]
    assert runs[0].stdout == runs[1].stdout
    assert "sender late is attached" in runs[0].stdout


def without_fetching_what_other_replicas_have(monkeypatch):
    adopted = RegionReplicas.adopted

    def empty(self, member, answers, promised_us):
        last = {each.bucket: self.changelog.log_end(each.bucket) for each in answers}
        adopted(self, member, [each._replace(log_end=last[each.bucket], entries=b"") for each in answers], promised_us)

    monkeypatch.setattr(RegionReplicas, "adopted", empty)


# Each with the seed at which the search begins. tests/mutations has many more of them, as patches.
TAKEN_OUT = {
    without_fetching_what_other_replicas_have: 316,
}


@pytest.mark.whole
@pytest.mark.parametrize("take_out", TAKEN_OUT, ids=lambda each: each.__name__)
def test_the_checks_find_a_protocol(take_out, monkeypatch):
    for seed in range(TAKEN_OUT[take_out], TAKEN_OUT[take_out] + SEARCH):
        with monkeypatch.context() as patched:
            take_out(patched)
            try:
                SiteWorld(seed).run()
                continue
            except Broken:
                pass
        SiteWorld(seed).run()  # The whole protocol has to keep what this run asks: otherwise it shows nothing.
        return
    pytest.fail(f"{SEARCH} runs did not notice that the protocol goes on {take_out.__name__}")
