"""Two rounds of the campaign against three sites that send to each other; `make crash-wan` runs many. Its checks are
checked, too: they see a lost put and sites that differ."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wan_crash.campaign import Counts, World, run


@pytest.mark.whole
@pytest.mark.long
def test_every_acknowledged_put_arrives_at_all_sites_whoever_is_killed():
    counts = run(11, 2, tell=lambda text: None)
    assert counts.what["kills"] == 2 and counts.what["puts"] > 100 and counts.resumed_s


class Site:
    """A site whose members are as they are told."""

    def __init__(self, content):
        answers = {"halt": {}, "pending": 0, "content": content, "balanced": True, "parked": 0, "twice": []}
        self._member = SimpleNamespace(name="m", ask=lambda what, *arguments: answers[what])

    def living(self):
        return {"m": self._member}


@pytest.mark.parametrize(
    ("third", "words"),
    [
        ({"ny0.1 1": 1}, "1 of 2 acknowledged puts of ny0.1 are lost"),
        ({"ny0.1 1": 1, "ny0.1 2": 2, "hot 1": "other"}, "site tk differs from ny in 1 keys"),
        ({"ny0.1 1": 1, "ny0.1 2": 2, "hot 1": "one"}, ""),
    ],
)
def test_a_lost_put_and_a_site_that_differs_are_seen(tmp_path, third, words):
    world = World(1, 0, tmp_path, Counts())
    whole = {"ny0.1 1": 1, "ny0.1 2": 2, "hot 1": "one"}
    world.sites = {"ny": Site(whole), "ln": Site(whole), "tk": Site(third)}
    written = tmp_path / "written"
    written.write_text("? ny0.1 1\n= 1\n? ny0.1 2\n= 2\n? ny0.1 3\n")
    world.written = [("ny0.1", written)]
    if words:
        with pytest.raises(AssertionError, match=words):
            world.end()
    else:
        world.end()
        assert world.counts.what["puts"] == 2
