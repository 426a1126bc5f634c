"""Six rounds of the campaign against three sites that send to each other; `make crash-wan` runs many. Its checks are
checked, too: they see a lost put and sites that differ."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from wan_crash.campaign import Counts, World, run


@pytest.mark.whole
@pytest.mark.long
def test_every_acknowledged_put_arrives_at_all_sites_whoever_is_killed():
    counts = run(11, 6, tell=lambda text: None)
    assert counts.what["rounds"] == 6 and counts.what["rounds: kill"] and counts.what["puts"] > 100


class Site:
    """A site whose members are as they are told."""

    def __init__(self, content, **more):
        answers = {
            "halt": {},
            "pending": 0,
            "content": content,
            "balanced": True,
            "parked": 0,
            "twice": [],
            "turned": [],
        }
        answers |= {"first_told": [], "buckets_of": []} | more
        self._member = SimpleNamespace(name="m", ask=lambda what, *arguments: answers[what])

    def living(self):
        return {"m": self._member}


WHOLE = {"ny0.1 1": 1, "ny0.1 2": 2, "hot 1": "one"}
IN_TURN = {"ny": {"buckets_of": [3, 4, 3]}, "tk": {"first_told": [["ny0.1", 1], ["ny0.1", 3], ["ny0.1", 2]]}}


@pytest.mark.parametrize(
    ("third", "more", "words"),
    [
        ({"ny0.1 1": 1}, {}, "1 of 2 acknowledged puts of ny0.1 are lost"),
        ({**WHOLE, "hot 1": "other"}, {}, "site tk differs from ny in 1 keys"),
        (WHOLE, {"ln": {"turned": [["hot 1", "ny0.1 1"]]}}, "told of an older put to a key after a newer one"),
        (WHOLE, IN_TURN | {"ny": {"buckets_of": [3, 4, 4]}}, "ny0.1 2 of bucket 4 was applied at tk after 3"),
        (WHOLE, IN_TURN, ""),
    ],
)
def test_what_is_lost_differs_or_comes_out_of_order_is_seen(tmp_path, third, more, words):
    world = World(1, 0, tmp_path, Counts())
    world.sizes, world.one_dispatcher = dict.fromkeys(world.sizes, 1), True
    contents = {"ny": WHOLE, "ln": WHOLE, "tk": third}
    world.sites = {name: Site(content, **more.get(name, {})) for name, content in contents.items()}
    written = tmp_path / "written"
    written.write_text("? ny0.1 1\n= 1\n? ny0.1 2\n= 2\n? ny0.1 3\n")
    world.written = [("ny0.1", written)]
    if words:
        with pytest.raises(AssertionError, match=words):
            world.end()
    else:
        world.end()
        assert world.counts.what["puts"] == 2
