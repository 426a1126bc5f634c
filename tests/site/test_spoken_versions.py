"""Which versions of the protocol of a site go together, and how two that differ by one work in one site."""

from pathlib import Path

import pytest

from pywan.base import versions
from pywan.errors import IncompatibleSystemError, ProtocolError
from pywan.testing.processes import ProcessFailed
from pywan.testing.site_processes import MemberProcess, SiteOfProcesses
from pywan.testing.waiting import eventually
from support.tree import TESTS

REGION = {"name": "data", "type": "PARTITION", "redundant_copies": 1, "total_num_buckets": 7}


class VersionedSite(SiteOfProcesses):
    """A site whose processes speak the versions that `speaks` has when they start."""

    program = TESTS / "support" / "versioned_member.py"

    def __init__(self, folder: Path, speaks: dict[str, int]) -> None:
        self.speaks = speaks
        super().__init__(folder, regions=[REGION])

    def _process(self, name: str) -> MemberProcess:
        process = super()._process(name)
        process.ask("speak", self.speaks[name])
        return process

    def is_whole(self) -> bool:
        """Whether each bucket has a primary and a replica, and nobody learns."""
        counts = list(self.counts("data").values())
        primaries, replicas, learning = (sum(each.get(what, 0) for each in counts) for what in COUNTED)
        return (primaries, replicas, learning) == (7, 7, 0)


COUNTED = ("primary", "copies", "learning")


@pytest.mark.parametrize(("mine", "theirs", "both"), [(1, 1, 1), (5, 4, 4), (5, 5, 5), (5, 6, 5)])
def test_both_ends_speak_the_lower_of_two_versions_that_differ_by_one(monkeypatch, mine, theirs, both):
    monkeypatch.setattr(versions, "VERSION", mine)
    assert versions.agreed(theirs, "member x", "member y") == both


@pytest.mark.parametrize(("mine", "theirs"), [(1, 3), (5, 3), (5, 7), (1, 2**16 - 1)])
def test_versions_that_are_further_apart_are_refused_by_name(monkeypatch, mine, theirs):
    monkeypatch.setattr(versions, "VERSION", mine)
    with pytest.raises(IncompatibleSystemError, match=f"member x speaks version {theirs} .* member y version {mine}"):
        versions.agreed(theirs, "member x", "member y")


@pytest.mark.parametrize("theirs", [None, 0, -1, True, 1.0, "1", 2**16, float("inf"), [1]])
def test_what_is_no_version_is_refused(theirs):
    with pytest.raises(ProtocolError, match="member x says that it speaks version"):
        versions.agreed(theirs, "member x", "member y")


def test_a_site_is_upgraded_a_process_at_a_time_while_it_works(tmp_path):
    """From version 5 to 6: the locator first, then each member; and each of them is asked between all steps."""
    speaks = {"locator": 5, "a": 5, "b": 5}
    with VersionedSite(tmp_path, speaks) as site:
        for name in ("a", "b"):
            site.start(name)
        expected = {}

        def check(step: str) -> None:
            eventually(site.is_whole, what=step)
            for name, member in site.members.items():
                member.do("data", "put", f"{step} by {name}", name)
                expected[f"{step} by {name}"] = name
            for member in site.members.values():
                assert {key: member.do("data", "get", key) for key in expected} == expected, step

        check("all speak 5")
        speaks["locator"] = 6
        site.locator.end()
        site.restart_locator()
        check("the locator speaks 6")
        for name in ("a", "b"):
            speaks[name] = 6
            site.members[name].end()
            site.start(name)
            check(f"{name} speaks 6")


def test_a_member_whose_version_is_further_from_the_locators_is_refused_by_name(tmp_path):
    with VersionedSite(tmp_path, {"locator": 5, "old": 3, "new": 7, "a": 4}) as site:
        site.start("a")
        for name, version in (("old", 3), ("new", 7)):
            with pytest.raises(
                ProcessFailed, match=f"IllegalStateError.*version {version} .* version 5: versions that"
            ):
                site.start(name)
            del site.members[name]


def test_members_whose_versions_are_too_far_from_each_other_share_nothing_and_say_why(tmp_path):
    """Each goes with the locator. What they share waits, and the log of both names the versions."""
    with VersionedSite(tmp_path, {"locator": 5, "a": 4, "b": 6}) as site:
        site.start("a").do("data", "put", "key", "value")
        site.start("b")
        words = "speaks version 6 of the protocol of a site, and this member version 4"
        eventually(lambda: words in (tmp_path / "a.log").read_text() or words in (tmp_path / "b.log").read_text())
        assert site.members["a"].do("data", "get", "key") == "value"
        assert site.counts("data")["b"].get("primary", 0) == 0
