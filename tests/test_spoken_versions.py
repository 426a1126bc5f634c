"""Which versions of the protocol of a site go together, and how two that differ by one work in one site."""

import pytest

from pywan.base import versions
from pywan.errors import IncompatibleSystemError, ProtocolError


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
