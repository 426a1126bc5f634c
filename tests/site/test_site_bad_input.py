"""What goes wrong in a site of several members: words that are clear, waits that end, and nothing that was acknowledged
is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pywan.testing.processes import ProcessFailed
from pywan.testing.site_processes import MemberProcess
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import call_once
from site_crash.world import Site
from support.private_network import PrivateNetwork, why_not

BUCKETS = 7
DATA = {"name": "data", "type": "PARTITION", "total_num_buckets": BUCKETS, "redundant_copies": 1, "recovery_delay": 0}
TIMEOUT_MS = 2000
LONGEST_S = 5.0  # Half of what a call may take before it fails.

pytestmark = pytest.mark.whole


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, regions=[DATA], member_timeout_ms=TIMEOUT_MS) as site:
        yield site


def replicas(site: Site, name: str) -> int:
    """Returns how many buckets a member has whole replicas of. It leads some of them."""
    counts = site.counts("data")[name]
    return sum(counts.get(what, 0) for what in ("primary", "taking_over", "copies"))


def leads(site: Site, name: str) -> int:
    return site.counts("data")[name].get("primary", 0)


def has_two_whole_replicas(site: Site) -> bool:
    """Whether each bucket has its two replicas, and none is being made."""
    counts = list(site.counts("data").values())
    whole = sum(each.get("primary", 0) + each.get("copies", 0) for each in counts)
    return whole == 2 * BUCKETS and not any(each.get("learning", 0) for each in counts)


def names_of_members(site: Site) -> set[str]:
    """The members that the coordinator knows."""
    told = call_once(("127.0.0.1", site.port), "coordination-show", timeout=LIMIT_S)["coordination"]
    return {each["name"] for each in told.get("members", ())}


def pair_of(site: Site) -> tuple[MemberProcess, MemberProcess]:
    one, two = site.start("one"), site.start("two")
    eventually(lambda: replicas(site, "two") == BUCKETS, what="replicas at the second member")
    return one, two


class Writer:
    """Writes numbers one after the other. It knows which were acknowledged, and how long a call took at most."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.longest_s = 0.0

    def write(self, member: MemberProcess, count: int) -> None:
        for _ in range(count):
            key, began = f"w{len(self.acknowledged)}", time.monotonic()
            member.do("data", "put", key, len(self.acknowledged))
            self.acknowledged[key] = len(self.acknowledged)
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def check(self, *members: MemberProcess) -> None:
        for member in members:
            content = member.ask("content", "data")
            lost = {key: value for key, value in self.acknowledged.items() if content.get(key) != value}
            assert not lost, f"{member.name} lacks {len(lost)} of {len(self.acknowledged)} acknowledged changes"


def answers(member: MemberProcess, key: str = "probe") -> Callable[[], bool]:
    def put() -> bool:
        try:
            member.do("data", "put", key, 1)
        except ProcessFailed as error:
            assert "ConnectivityError" in str(error), error
            return False
        return True

    return put


OTHER_ATTRIBUTES = [
    (
        {"type": "REPLICATE", "total_num_buckets": None, "redundant_copies": None, "recovery_delay": None},
        "type is REPLICATE here and PARTITION at the other members",
    ),
    ({"recovery_delay": 1000}, "recovery-delay is 1000 here and 0 at the other members"),
    ({"startup_recovery_delay": -1}, "startup-recovery-delay is -1 here"),
    ({"total_num_buckets": 8}, "total-num-buckets is 8 here and 7 at the other members"),
    ({"min_in_sync_replicas": 2}, "min-in-sync-replicas is 2 here and 1 at the other members"),
]


def test_a_region_with_another_attribute_is_refused_with_the_names_that_users_type(site):
    one = site.start("one")
    one.do("data", "put", "k", 1)
    for number, (other, words) in enumerate(OTHER_ATTRIBUTES):
        wanted = {name: value for name, value in {**DATA, **other}.items() if value is not None}
        with pytest.raises(ProcessFailed, match=words):
            site.start(f"other{number}", [wanted])
        site.members[f"other{number}"].kill()
    assert one.do("data", "get", "k") == 1


def test_a_region_that_is_colocated_with_another_one_there_is_refused(site):
    site.start("one", [DATA, {**DATA, "name": "orders"}])
    with pytest.raises(ProcessFailed, match="colocated-with is data here and none at the other members"):
        site.start("two", [DATA, {**DATA, "name": "orders", "colocated_with": "data"}])


def test_more_replicas_than_members_work_and_say_so(tmp_path):
    with Site(tmp_path, regions=[{**DATA, "redundant_copies": 3}], member_timeout_ms=TIMEOUT_MS) as site:
        one, two = pair_of(site)
        writer = Writer()
        writer.write(two, 30)
        two.kill()
        eventually(answers(one), what="a put without the second member")
        writer.check(one)
        for name in ("one", "two"):
            assert "3 replicas of each bucket beside the primary are wanted" in (tmp_path / f"{name}.log").read_text()


@pytest.mark.parametrize("what", ["lost", "old"])
def test_members_go_on_with_a_coordinator_whose_file_is(what, site, tmp_path):
    one, _two = pair_of(site)
    writer = Writer()
    writer.write(one, 20)
    locator, saved = tmp_path / "locator", tmp_path / "saved"
    site.kill_locator()
    shutil.copytree(locator, saved)
    site.restart_locator()
    three = site.start("three")
    writer.write(three, 20)
    one.kill()
    eventually(answers(three), what="a put without the first member")
    writer.write(three, 20)
    eventually(lambda: leads(site, "two") + leads(site, "three") == BUCKETS, what="new primaries")
    eventually(lambda: has_two_whole_replicas(site), what="two replicas of each bucket again")
    site.kill_locator()
    writer.write(three, 20)  # Nobody needs the coordinator for that.
    shutil.rmtree(locator)
    if what == "old":
        shutil.copytree(saved, locator)
    site.restart_locator()
    writer.write(three, 20)
    # A member that comes before the coordinator has heard of any other one would begin a site of its own.
    eventually(lambda: "three" in names_of_members(site), what="a coordinator that knows the third member")
    four = site.start("four")
    writer.write(four, 20)
    # The second member may have had the only in-sync replicas: the coordinator was away while others were made.
    eventually(lambda: has_two_whole_replicas(site), what="two whole replicas of each bucket")
    site.members["two"].kill()
    eventually(lambda: replicas(site, "four") == BUCKETS, what="replicas at a member that comes later")
    writer.write(four, 20)
    writer.check(three, four)
    assert writer.longest_s < LONGEST_S


def test_a_member_that_is_unresponsive_again_and_again_for_less_than_its_lease_costs_nothing_but_time(site):
    one, two = pair_of(site)
    writer = Writer()
    for _ in range(5):
        two.stop()
        one.begin("do", "data", "put", f"w{len(writer.acknowledged)}", len(writer.acknowledged))
        time.sleep(TIMEOUT_MS / 1000 / 4)  # The silence itself is what is tested.
        two.go_on()
        assert one.finish() is None
        writer.acknowledged[f"w{len(writer.acknowledged)}"] = len(writer.acknowledged)
        writer.write(two, 10)
    writer.check(one, two)


def test_calls_go_on_while_their_member_begins_anew(site, tmp_path):
    """No call fails because the site has given its member up. At most it is in doubt: an attempt was under way."""
    _one, two = pair_of(site)
    two.ask("run", "data", path=str(tmp_path / "calls"), first=0, threads=4, keys=8, seed=1)
    for _ in range(2):
        two.stop()
        eventually(lambda: "two" not in names_of_members(site), what="a site without the member")
        two.go_on()
        eventually(lambda: replicas(site, "two") == BUCKETS, what="replicas at the member that begins anew")
    told = two.ask("halt")
    assert told["done"] and not told["alive"]
    assert set(told["failures"]) <= {"ConnectivityError, in doubt"}, told
    assert sum(told["failures"].values()) <= 2 * 4, "each thread had one call under way, each time"


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[tuple[Site, PrivateNetwork]]:
    if why_not():
        pytest.skip(f"links are cut in network namespaces: {why_not()}")
    with (
        PrivateNetwork() as network,
        Site(tmp_path, regions=[DATA], network=network, member_timeout_ms=TIMEOUT_MS) as site,
    ):
        yield site, network


def primary_of(site: Site) -> tuple[MemberProcess, MemberProcess]:
    """(who leads most buckets, the other one)."""
    one, two = pair_of(site)
    return (one, two) if leads(site, "one") > BUCKETS // 2 else (two, one)


def is_known(site: Site, member: MemberProcess) -> bool:
    """Whether the coordinator hears the incarnation that the member has."""
    me = member.ask("status")["coordination"]["incarnation"]
    told = site.locator.ask("coordination")["members"]
    return any(each["incarnation"] == me and each["state"] == "alive" for each in told)


@pytest.mark.parametrize("way", ["both", "out", "in"])
@pytest.mark.parametrize("side", ["primary", "copy"])
def test_a_member_that_is_cut_off_from_all_others_loses_nothing_and_comes_back(parted, side, way):
    site, network = parted
    primary, replica = primary_of(site)
    away, there = (primary, replica) if side == "primary" else (replica, primary)
    writer = Writer()
    writer.write(replica, 20)
    rest = ["locator", there.name]
    if way in ("both", "out"):
        network.cut([away.name], rest)
    if way in ("both", "in"):
        network.cut(rest, [away.name])
    eventually(answers(there), what="a put at the side with the coordinator")
    writer.write(there, 20)
    network.heal()
    # A call on its way while the site has given its member up may end in doubt. So the site knows it again first.
    eventually(lambda: is_known(site, away), what="the member that was away in the site")
    eventually(answers(away), what="a put at the member that was away")
    eventually(lambda: replicas(site, away.name) == BUCKETS, what="both members with all replicas")
    writer.write(away, 20)
    writer.check(primary, replica)


def test_members_that_do_not_reach_the_coordinator_go_on_together(parted):
    site, network = parted
    one, two = primary_of(site)
    writer = Writer()
    writer.write(two, 20)
    network.part(["locator"], [one.name, two.name])
    until = time.monotonic() + 2 * TIMEOUT_MS / 1000
    while time.monotonic() < until:
        writer.write(one, 5)
        writer.write(two, 5)
    assert writer.longest_s < LONGEST_S  # Two replicas acknowledge without a lease.
    network.heal()
    eventually(
        lambda: all(each.ask("status")["coordination"]["coordinator"] for each in (one, two)), 20, "a coordinator"
    )
    writer.write(two, 20)
    three = site.start("three")
    writer.write(three, 20)
    writer.check(one, two, three)


def test_a_region_without_redundant_copies_goes_on_empty_when_its_members_are_killed(tmp_path: Path) -> None:
    alone = {"name": "alone", "type": "PARTITION", "total_num_buckets": BUCKETS, "startup_recovery_delay": -1}
    with Site(tmp_path, regions=[alone], member_timeout_ms=TIMEOUT_MS) as site:  # No replica is moved.
        one, two = site.start("one"), site.start("two")
        two.do("alone", "put", "k", "before")
        one.kill()  # It had all buckets.
        if "began anew" in str(tried(two, "alone", "put", "k", "after")):  # `one` may have made it before it ended.
            two.do("alone", "put", "k", "after")
        assert two.do("alone", "get", "k") == "after"
        assert f"region alone: {BUCKETS} buckets have lost their last replicas" in site.locator.last_words()
        two.kill()
        one, two = site.start("one"), site.start("two")
        for member in (one, two):  # Nobody has anything, and both can use the region.
            assert member.do("alone", "get", "k") is None
            member.do("alone", "put", member.name, 1)
        site.kill_locator()
        one.kill()
        two.kill()
        site.restart_locator()
        one, two = site.start("one"), site.start("two")
        one.do("alone", "put", "k", "again")
        assert two.do("alone", "get", "k") == "again"


def test_what_a_member_alone_has_is_nobody_elses_until_it_is_revoked(tmp_path: Path) -> None:
    alone = {"name": "alone", "type": "PARTITION", "total_num_buckets": BUCKETS}
    kept = {**alone, "name": "kept", "type": "PARTITION_PERSISTENT"}
    with Site(tmp_path, regions=[alone, kept], member_timeout_ms=TIMEOUT_MS) as site:
        one = site.start("one")
        for region in ("alone", "kept"):
            one.do(region, "put", "k", "before")
        one.stop()
        two = site.begin("two")
        eventually(lambda: state_of(site, "one") == "lost", what="the end of its lease")
        told = call_once(("127.0.0.1", site.port), "coordination-show", timeout=LIMIT_S)["coordination"]
        assert {each["name"]: each["regions"] for each in told["members"]} == {"one": ["alone", "kept"], "two": []}
        call_once(("127.0.0.1", site.port), "coordination-revoke", name="one", timeout=LIMIT_S)
        two.finish()
        for region in ("alone", "kept"):
            assert two.do(region, "get", "k") is None
            two.do(region, "put", "k", "after")
        one.go_on()
        eventually(lambda: tried(one, "alone", "get", "k") == "after", what="the region of both")
        with pytest.raises(ProcessFailed, match="closed"):
            one.do("kept", "get", "k")
        assert "region kept: member two has the region now" in one.last_words()


def state_of(site: Site, name: str) -> str:
    """What the coordinator sees of a member."""
    told = call_once(("127.0.0.1", site.port), "coordination-show", timeout=LIMIT_S)["coordination"]
    return next(each["state"] for each in told["members"] if each["name"] == name)


def tried(member: MemberProcess, region: str, method: str, *arguments: object) -> object:
    """The answer, or the words of the error."""
    try:
        return member.do(region, method, *arguments)
    except ProcessFailed as error:
        return str(error)
