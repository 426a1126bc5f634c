"""What members, coordinators and files of people who wish harm say about the coordination: values out of range, names
twice, numbers that nobody can have reached. Each is refused in one line, and the site goes on.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import sqlite3
import threading
import time
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import msgpack
import pytest

import pywan
from pywan.base.nonces import NONCE_BYTES, mark_of
from pywan.base.processes import has_ended, this_machine
from pywan.base.versions import VERSION
from pywan.config.attributes import MAX_BUCKETS
from pywan.coordination import encoding, plain, reports
from pywan.coordination.claims import JOURNAL_FILE
from pywan.coordination.messages import Refused, Tables
from pywan.coordination.tables import (
    BUCKETS_MAX,
    CONTROLLER_EPOCH_MAX,
    DECISION_MAX,
    NAMED_MAX,
    REGIONS_MAX,
    REPORTED_BYTES_MAX,
    Bucket,
    BucketKey,
    DecisionId,
    Epoch,
    Holding,
    Incarnation,
    Kind,
    Learner,
    MemberProfile,
    RegionAttributes,
)
from pywan.errors import DiskAccessError, ProtocolError, PywanError
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import ControlServer, call_once
from support.ports import free_port
from support.shown import coordination
from support.small_members import ATTRIBUTES, SmallMember, locator, small_members

EVIL = Incarnation("evil", 666)
NONCE = bytes(NONCE_BYTES)  # What it says is its own word: it is refused for what it says.
DATA = RegionAttributes(Kind.PARTITION, total_num_buckets=4)
TIMEOUT_MS = 2500
INF = float("inf")


def profile(**fields) -> MemberProfile:
    told = {
        "host": "127.0.0.1",
        "port": 1,
        "distributed_system_id": 1,
        "version": pywan.__version__,
        "process": "m/1/1",
        "mark": mark_of(NONCE),
    }
    return MemberProfile(EVIL, **{**told, **fields})


def join(*, holdings=None, regions=None, stored=(0, 0), **fields) -> dict:
    """A join of good form. Its values are as they are given."""
    request = {
        "profile": encoding.plain_profile(profile(**fields)),
        "stored": list(stored),
        "regions": {name: encoding.plain_attributes(each) for name, each in (regions or {}).items()},
        "coordinator": "",
        "ended": None,
        "nonce": NONCE,
        "version": VERSION,
    }
    if holdings is not None:
        request["holdings"] = plain.pack(encoding.plain_holdings(holdings))
    return request


def held(**fields) -> dict:
    bucket = Bucket(**{"epoch": Epoch(1, 1), "primary": EVIL, "isr": (EVIL,), **fields})
    return {
        "holdings": {BucketKey("data", 0): Holding(bucket, has_all=True)},
        "regions": {"data": DATA},
        "hosting": (("data", 1),),
    }


def with_profile(index: int, value: object) -> dict:
    request = join()
    request["profile"][index] = value
    return request


def with_attribute(index: int, value: object) -> dict:
    request = join(regions={"data": DATA}, hosting=(("data", 1),))
    request["regions"]["data"][index] = value
    return request


def with_run(first: int, length: int, bucket: Bucket = Bucket(), again: bool = False) -> dict:  # noqa: B008 - A value.
    request = join(regions={"data": DATA}, hosting=(("data", 1),))
    run = ["data", first, length, [encoding.plain_bucket(bucket), True]]
    request["holdings"] = plain.pack([run, run] if again else [run])
    return request


WORD = CONTROLLER_EPOCH_MAX << 32 | DECISION_MAX
JOINS = {
    "stored near the last": join(stored=(CONTROLLER_EPOCH_MAX // 2 + 1, 1)),
    "stored the last": join(stored=(CONTROLLER_EPOCH_MAX, DECISION_MAX)),
    "stored above all": join(stored=(2**63 - 1, 1)),
    "stored of infinity": join(stored=(INF, 1)),
    "stored of nan": join(stored=(1, float("nan"))),
    "stored of a bool": join(stored=(True, 1)),
    "stored of bytes": join(stored=(b"1", 1)),
    "stored near the last decision": join(stored=(1 << 25, DECISION_MAX // 2 + 1)),
    "seen near the last": with_profile(5, [CONTROLLER_EPOCH_MAX - 2**21, 1]),
    "seen near the last decision": with_profile(5, [1 << 25, DECISION_MAX - 1]),
    "epoch near the last": join(**held(epoch=Epoch(CONTROLLER_EPOCH_MAX - 2**21, 1))),
    "epoch of an old run near the last decision": join(**held(epoch=Epoch(1, DECISION_MAX - 1))),
    "timeline near the last": join(**held(epoch=Epoch(1, 2), timeline=WORD)),
    "timeline of a future": join(**held(epoch=Epoch(1, 2), timeline=Epoch(1, 3).word)),
    "inherits of a future": join(**held(epoch=Epoch(1, 2), timeline=Epoch(1, 1).word, inherits=WORD)),
    "version near the last": join(**held(version=DECISION_MAX)),
    "transfer near the last": join(**held(learners=(Learner(Incarnation("x", 1), DECISION_MAX),))),
    "a region twice": join(regions={"data": DATA}, hosting=(("data", 1), ("data", 2))),
    "a region that nobody described": join(hosting=(("data", 1),)),
    "a region that it does not have": join(regions={"data": DATA}),
    "a region of a bad name": join(regions={"../x": DATA}, hosting=(("data", 1),)),
    "a region with 10^9 buckets": with_attribute(1, 10**9),
    "a region with -5 buckets": with_attribute(1, -5),
    "a region with one bucket too many": with_attribute(1, MAX_BUCKETS + 1),
    "a region with 99 replicas": with_attribute(2, 99),
    "a region colocated with a bad name": with_attribute(3, "a b"),
    "a region with no in-sync replicas": with_attribute(4, 0),
    "a region with a delay of infinity": with_attribute(5, INF),
    "a region with a long delay": with_attribute(6, 2**31),
    "a region with a silence below -1": with_attribute(7, -2),
    "a region with a long reason": with_attribute(8, "x" * 10_000),
    "a region that is shared a little": with_attribute(9, 1),
    "a region colocated with itself": join(regions={"own": replace(DATA, colocated_with="own")}, hosting=(("own", 1),)),
    "regions colocated in a circle": join(
        regions={"one": replace(DATA, colocated_with="two"), "two": replace(DATA, colocated_with="one")},
        hosting=(("one", 1), ("two", 1)),
    ),
    "regions of more buckets than a site has": join(
        regions={f"r{n}": replace(DATA, total_num_buckets=MAX_BUCKETS) for n in range(BUCKETS_MAX // MAX_BUCKETS + 1)},
        hosting=tuple((f"r{n}", 1) for n in range(BUCKETS_MAX // MAX_BUCKETS + 1)),
    ),
    "more regions than a site has": join(
        regions={f"r{n}": DATA for n in range(5000)}, hosting=tuple((f"r{n}", 1) for n in range(5000))
    ),
    "a name that is none": with_profile(0, ["../evil", 1]),
    "a member id of 2^40": with_profile(0, ["evil", 2**40]),
    "a host of a megabyte": with_profile(1, "h" * (1 << 20)),
    "a host that is none": with_profile(1, "a b"),
    "port 0": with_profile(2, 0),
    "port 65536": with_profile(2, 65536),
    "a site of 2^40": with_profile(3, 2**40),
    "an identity of escapes": with_profile(4, "\x1b[2J"),
    "a version of a megabyte": with_profile(6, "v" * (1 << 20)),
    "a weight of a float": with_profile(7, [["data", 1.5]]),
    "a weight below 0": with_profile(7, [["data", -1]]),
    "a process of a megabyte": with_profile(8, "p" * (1 << 20)),
    "1,000 earlier ones": with_profile(9, list(range(1000))),
    "an earlier one twice": with_profile(9, [1, 1]),
    "itself as an earlier one": with_profile(9, [EVIL.member_id]),
    "no profile": {"stored": [0, 0]},
    "a profile of nine parts": {**join(), "profile": join()["profile"][:9]},
    "regions that are a list": {**join(), "regions": []},
    "an ended one that is none": {**join(), "ended": [["evil"], 1]},
    "a coordinator that is no name": {**join(), "coordinator": {"a": 1}},
    "holdings that are no bytes": {**join(), "holdings": [1]},
    "holdings that are cut": {**join(), "holdings": zlib.compress(b"\x92\x01")},
    "holdings of buckets above the region's": with_run(0, 5),
    "holdings of 2^40 buckets": with_run(0, 2**40),
    "holdings of a bucket twice": with_run(0, 1, again=True),
    "holdings of a region that is not described": join(
        holdings={BucketKey("data", 0): Holding(Bucket(), has_all=True)}
    ),
    "holdings whose primary has no replica": with_run(0, 1, Bucket(primary=EVIL)),
    "holdings with a member twice": with_run(0, 1, Bucket(isr=(EVIL, EVIL))),
    "holdings with 1,000 members": with_run(0, 1, Bucket(isr=tuple(Incarnation("m", n) for n in range(1000)))),
    "holdings with a learner twice": with_run(0, 1, Bucket(learners=(Learner(EVIL, 1), Learner(EVIL, 2)))),
    "holdings that name 16,000 others": join(
        regions={"data": replace(DATA, total_num_buckets=100)},
        hosting=(("data", 1),),
        holdings={
            BucketKey("data", n): Holding(
                Bucket(Epoch(1, 1), unfenced=tuple(Incarnation("m", 250 * n + m) for m in range(250))), has_all=False
            )
            for n in range(NAMED_MAX // 250 + 1)
        },
    ),
    "a bomb": {**join(), "holdings": zlib.compress(b"\xdd\x03\x00\x00\x00" + b"\x90" * (48 << 20), 1)},
    "many small parts": {**join(), "holdings": zlib.compress(b"\x90" * (48 << 20), 1)},
}


def is_refused(address, op: str, request: dict) -> bool:
    """Whether the locator refuses the request: by an error, or in the reply."""
    try:
        reply = call_once(address, op, **request)
    except ProtocolError:
        return True
    return bool(reply.get("refused") or reply.get("refused_requests"))


def lines_of(caplog) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def no_traceback(caplog) -> bool:
    return not any(each.exc_info for each in caplog.records)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A locator with its file, and a member that has a region."""
    folder = tmp_path_factory.mktemp("hostile")
    with locator(dir=folder) as started, small_members(str(started.address), "honest") as (honest,):
        assert honest.host()
        yield started, honest


@pytest.mark.parametrize("what", JOINS)
def test_a_join_that_says_what_cannot_be_is_refused_and_nothing_of_it_is_taken(site, caplog, what):
    started, _ = site
    before = coordination(started)
    assert is_refused(started.address, "coordination-join", copy.deepcopy(JOINS[what]))
    after = coordination(started)
    assert after["decision"] == before["decision"] and after["generation"] == before["generation"]
    assert no_traceback(caplog) and len(lines_of(caplog)) <= 1
    assert all(len(line) < 1000 for line in lines_of(caplog))


def test_the_same_join_with_values_in_range_is_taken(tmp_path):
    with locator(dir=tmp_path) as started:
        reply = call_once(started.address, "coordination-join", **join(**held()))
        assert not reply["refused"] and coordination(started)["generation"] > 1


@pytest.mark.parametrize("with_file", [True, False], ids=["with a file", "without"])
def test_a_site_decides_on_and_starts_again_after_all_of_them(tmp_path, with_file):
    port, folder = free_port(), {"dir": tmp_path} if with_file else {}
    with locator(port=port, member_timeout_ms=TIMEOUT_MS, **folder) as started:
        for request in JOINS.values():
            assert is_refused(started.address, "coordination-join", copy.deepcopy(request))
        with small_members(str(started.address), "honest") as (honest,):
            assert honest.host()
    with (
        locator(port=port, member_timeout_ms=TIMEOUT_MS, **folder) as started,
        small_members(str(started.address), "second") as (second,),
    ):
        assert second.host("later")
        assert coordination(started)["decides"]


HOST: list[Any] = ["host", "r", encoding.plain_attributes(DATA), 100]
ME = ["evil", 666]
ASKED: dict[str, Any] = {
    "nothing": [],
    "no list": "host",
    "an unhashable name": [["host"]],
    "a map as name": [{}],
    "a name of bytes": [b"leave"],
    "no fields": ["host"],
    "a field too many": [*HOST, 1],
    "a leave with a field": ["leave", 1],
    "a region that is no name": ["unhost", ["r"]],
    "10^9 buckets": ["host", "r", [*HOST[2][:1], 10**9, *HOST[2][2:]], 100],
    "-5 buckets": ["host", "r", [*HOST[2][:1], -5, *HOST[2][2:]], 100],
    "a kind that is none": ["host", "r", ["LOCAL", *HOST[2][1:]], 100],
    "an unhashable kind": ["host", "r", [["PARTITION"], *HOST[2][1:]], 100],
    "a weight of infinity": [*HOST[:3], INF],
    "colocated with itself": ["host", "r", encoding.plain_attributes(replace(DATA, colocated_with="r")), 1],
    "colocated with other buckets": [
        "host", "r", encoding.plain_attributes(replace(DATA, total_num_buckets=9, colocated_with="data")), 1,
    ],
    "a bucket of 2^40": ["caught-up", ["data", 2**40], [1, 1], ME, 1],
    "an epoch of a float": ["caught-up", ["data", 0], [1.0, 1], ME, 1],
    "a transfer of nan": ["caught-up", ["data", 0], [1, 1], ME, float("nan")],
    "an unreachable without a replica": ["unreachable"],
    "5,000 unreachable buckets": ["unreachable", ME, *([["data", 0], [1, 1]] for _ in range(5000))],
    "an unreachable pair of one": ["unreachable", ME, [["data", 0]]],
    "a suspect of nothing": ["suspect"],
    "a suspect that is a map": ["suspect", {"a": 1}],
    "a ready bucket below 0": ["ready", ["data", -1]],
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_a_request_that_says_what_cannot_be_is_refused_and_none_of_its_message_is_taken(site, caplog, what):
    started, honest = site
    before = coordination(started)["decision"]
    colocated = what.startswith("colocated")  # It is of good form: those before it are taken.
    requests = [ASKED[what]] if colocated else [["host", "early", HOST[2], 1], ASKED[what]]
    assert is_refused(started.address, "coordination-ask", {**honest.speaks, "requests": requests})
    assert coordination(started)["decision"] == before
    assert no_traceback(caplog) and len(lines_of(caplog)) <= 1


@pytest.mark.parametrize(
    "fields",
    [
        {"me": None},
        {"me": ["evil"]},
        {"me": [["evil"], 1]},
        {"stored": [1]},
        {"stored": [INF, 1]},
        {"reaches": {}},
        {"reaches": [["a", 1]] * 251},
        {"reaches": [["a", INF]]},
    ],
    ids=str,
)
def test_a_poll_that_says_what_cannot_be_is_refused(site, caplog, fields):
    started, honest = site
    good = {**honest.speaks, "stored": [0, 0], "reaches": []}
    assert is_refused(started.address, "coordination-poll", {**good, **fields})
    assert no_traceback(caplog) and len(lines_of(caplog)) <= 1


def test_10_000_requests_in_a_message_take_a_bounded_time_and_others_are_answered(site):
    started, honest = site
    requests = [["host", "r", encoding.plain_attributes(replace(DATA, total_num_buckets=1 + n % 2)), n % 3]
                for n in range(10_000)]  # fmt: skip
    began = time.monotonic()
    call_once(
        started.address,
        "coordination-ask",
        timeout=30,
        **honest.speaks,
        requests=requests,
    )
    assert time.monotonic() - began < 10
    assert honest.host("after") and not honest.given_up


def test_a_message_that_asks_the_same_again_and_again_costs_what_it_costs_once(tmp_path):
    """A member with many buckets asks 2,000 times whether it may leave, and closes 2,000 regions that are not there."""
    with locator(dir=tmp_path) as started, small_members(str(started.address), "a", "b") as (a, b):
        large = encoding.plain_attributes(replace(DATA, total_num_buckets=MAX_BUCKETS))
        ask = functools.partial(call_once, started.address, "coordination-ask", timeout=30, **a.speaks)
        ask(requests=[["host", f"r{n}", large, 1] for n in range(8)])
        a.see_all("r7", MAX_BUCKETS)
        began = time.monotonic()
        ask(requests=[[word] for word in ("leave", "stay") * 1000])
        ask(requests=[["unhost", f"none{n}"] for n in range(2000)])
        assert time.monotonic() - began < 10
        reply = ask(requests=[["leave"], ["stay"], ["leave"]])
        assert len(reply["may_leave"]) == 8  # By region: nobody else has it.
        assert b.host() and not a.given_up and not b.given_up


@pytest.mark.long
def test_a_member_creates_all_regions_of_a_site_in_one_message(tmp_path):
    with locator(dir=tmp_path) as started, small_members(str(started.address), "a", "b") as (a, b):
        small = encoding.plain_attributes(replace(DATA, total_num_buckets=1))
        requests = [["host", f"r{n}", small, 1] for n in range(REGIONS_MAX - 1)]
        began = time.monotonic()
        reply = call_once(started.address, "coordination-ask", timeout=60, **a.speaks, requests=requests)
        assert time.monotonic() - began < 50 and not reply["refused_requests"]
        assert b.host() and not a.given_up and not b.given_up


def test_regions_that_have_gone_leave_nothing_behind_at_the_coordinator(tmp_path):
    with locator(dir=tmp_path) as started, small_members(str(started.address), "a") as (a,):
        assert a.host()
        core = started._coordination._driver.core
        known = [len(index) for index in indexes_of(core.site)]
        told = encoding.plain_attributes(replace(DATA, colocated_with="other"))
        for word in ("unhost", "destroy-region"):
            for requests in ([["host", f"r{n}", told, 1] for n in range(100)], [[word, f"r{n}"] for n in range(100)]):
                call_once(started.address, "coordination-ask", timeout=LIMIT_S, **a.speaks, requests=requests)
        for n in range(100):
            call_once(
                started.address, "coordination-ask", timeout=LIMIT_S, **a.speaks, requests=[["unhost", f"none{n}"]]
            )
        left = [["destroy-region", f"r{n}"] for n in range(100)]
        call_once(started.address, "coordination-ask", timeout=LIMIT_S, **a.speaks, requests=left)
        assert [len(index) for index in indexes_of(core.site)] == known


def indexes_of(site: Any) -> list[dict]:
    return [site._hosts, site.of_region, site.loads, site.children]


@pytest.mark.long
def test_members_with_many_regions_of_long_names_do_not_make_tables_that_nobody_can_read(tmp_path):
    names = [f"r{n:04}".ljust(255, "x") for n in range(REGIONS_MAX - 1)]
    regions = {name: encoding.plain_attributes(replace(DATA, total_num_buckets=1)) for name in names}
    reasons: list[str] = []
    with (
        locator(dir=tmp_path, member_timeout_ms=60_000) as started,  # So none of them is given up meanwhile.
        small_members(str(started.address), "a") as (a,),
    ):
        assert a.host()
        for number in range(64):
            request = join(hosting=[(name, 0) for name in names])
            request["profile"][0] = [f"evil{number}", 1]
            reply = call_once(started.address, "coordination-join", timeout=30, **{**request, "regions": regions})
            reasons = [encoding.refused_of(each).reason for each in reply["refused"]]
            if reasons:
                break
        assert "take more than 16 MiB in the cluster metadata" in reasons[0]
        with small_members(str(started.address), "b") as (b,):
            assert b.agent.tables.members and not a.given_up


def large_join(number: int, names: list[str], regions: int, buckets: int = MAX_BUCKETS) -> dict:
    """A join of the first of `names`, with so many regions of its own, whose buckets are all different. Each of them
    names the others too, without waiting for what they report."""
    me, *others = (Incarnation(each, 1) for each in names)
    names_of_regions = [f"orders-of-{number:02}-{n:02}" for n in range(regions)]
    request = join(
        regions={name: replace(DATA, total_num_buckets=buckets) for name in names_of_regions},
        hosting=tuple((name, 100) for name in names_of_regions),
        holdings={
            BucketKey(name, n): Holding(
                Bucket(Epoch(1, n + 1), n + 1, n, n + 1, me, (me,), unfenced=tuple(others)), has_all=True
            )
            for name in names_of_regions
            for n in range(buckets)
        },
    )
    request["profile"][0] = [names[0], 1]
    return request


def refusals_of_join(started, request: dict) -> list[str]:
    reply = call_once(started.address, "coordination-join", timeout=60, **request)
    return [encoding.refused_of(each).reason for each in reply["refused"]]


@pytest.mark.nightly
def test_members_that_report_buckets_of_long_names_do_not_make_tables_that_nobody_can_read(tmp_path):
    port, reasons = free_port(), []
    with locator(port=port, dir=tmp_path, member_timeout_ms=TIMEOUT_MS) as started:
        for number in range(5):
            names = [f"evil{which}-{number}".ljust(255, "x") for which in range(4)]
            reasons += refusals_of_join(started, large_join(number, names, regions=4))
        assert len(reasons) == 3 and all(f"{REPORTED_BYTES_MAX} are the most" in each for each in reasons)
        with small_members(str(started.address), "honest") as (honest,):
            assert honest.host()
            honest.see_all()
    with (
        locator(port=port, dir=tmp_path, member_timeout_ms=TIMEOUT_MS) as started,
        small_members(str(started.address), "second") as (second,),
    ):
        assert second.host("later")
        second.see_all("later")


@pytest.mark.long
def test_what_the_largest_honest_site_reports_is_taken_and_can_be_read(tmp_path):
    names = [f"server-000{n}" for n in range(4)]
    with locator(dir=tmp_path) as started:
        assert not refusals_of_join(started, large_join(0, names, regions=BUCKETS_MAX // MAX_BUCKETS))
        driver = started._coordination._driver
        with driver.changed:
            site = driver.core.site
            tables, takes = site.tables(0, "L", 1, ()), site.table_bytes
        laid_out = plain.pack(encoding.plain_tables(tables))
        assert len(encoding.tables_of(plain.unpack(laid_out)).buckets) == BUCKETS_MAX
        assert takes < REPORTED_BYTES_MAX // 2


def test_replicas_that_members_report_while_nothing_can_be_decided_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "REPORTED_MAX", 6)
    ghost = Incarnation("ghost", 1)
    with locator(dir=tmp_path) as started:
        request = held(isr=(EVIL, ghost))
        request["holdings"] = {BucketKey("data", n): next(iter(request["holdings"].values())) for n in range(4)}
        said = join(**request)
        assert not refusals_of_join(started, said)
        said["profile"][0] = ["other", 1]
        assert "have reported 4 replicas" in refusals_of_join(started, said)[0]


def test_a_bucket_takes_no_more_in_the_tables_than_it_is_weighed():
    last = Incarnation("m" * 255, (1 << 32) - 1)
    many = tuple(Incarnation(f"m{n}", (1 << 32) - 1 - n) for n in range(250))
    learners = tuple(Learner(each, DECISION_MAX) for each in many)
    for bucket in (
        Bucket(),
        Bucket(Epoch(CONTROLLER_EPOCH_MAX, DECISION_MAX), WORD, WORD, DECISION_MAX, last, (last,)),
        Bucket(Epoch(CONTROLLER_EPOCH_MAX, DECISION_MAX), WORD, WORD, DECISION_MAX, None, many, many, learners, many),
    ):
        key = BucketKey("r" * 255, MAX_BUCKETS - 1)
        laid_out = msgpack.packb(encoding.plain_run(key, 1, encoding.plain_bucket(bucket)))
        assert len(laid_out) <= len(key.region) + bucket.table_bytes <= 1.1 * len(laid_out) + 60


def test_many_short_messages_at_the_same_time_do_not_become_large(tmp_path):
    bomb = zlib.compress(bytes(plain.PACKED_MAX_BYTES - 1), 9)
    with locator(dir=tmp_path) as started:
        request = {**join(), "holdings": bomb}
        tracemalloc.start()
        senders = [
            threading.Thread(target=is_refused, args=(started.address, "coordination-join", request)) for _ in range(30)
        ]
        for each in senders:
            each.start()
        for each in senders:
            each.join()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < plain.PACKED_MAX_BYTES


def test_a_member_cannot_take_more_buckets_than_a_site_has(tmp_path):
    with locator(dir=tmp_path) as started, small_members(str(started.address), "a") as (a,):
        large = encoding.plain_attributes(replace(DATA, total_num_buckets=MAX_BUCKETS))
        requests = [["host", f"r{n}", large, 0] for n in range(BUCKETS_MAX // MAX_BUCKETS + 2)]
        reply = call_once(started.address, "coordination-ask", timeout=30, **a.speaks, requests=requests)
        told = [refused[0] for _, refused in reply["refused_requests"]]
        assert len(told) == 2 and f"{BUCKETS_MAX} are the most" in told[0]


def test_regions_that_a_member_has_created_and_closed_do_not_fill_a_site(tmp_path):
    with locator(dir=tmp_path) as started, small_members(str(started.address), "a", "honest") as (a, honest):
        small = encoding.plain_attributes(replace(DATA, total_num_buckets=1))
        names = [f"r{n}" for n in range(REGIONS_MAX)]
        requests = [each for name in names for each in (["host", name, small, 0], ["unhost", name])]
        began = time.monotonic()
        for _ in range(2):
            reply = call_once(started.address, "coordination-ask", timeout=30, **a.speaks, requests=requests)
            assert reply["refused_requests"] == []
            requests = [[op, f"{name}-again", *rest] for op, name, *rest in requests]
        assert time.monotonic() - began < 20
        assert honest.host("orders") and not honest.given_up


def test_a_flood_of_bad_requests_writes_a_limited_number_of_lines(tmp_path, caplog):
    with locator(dir=tmp_path) as started:
        for _ in range(60):
            with pytest.raises(ProtocolError):
                call_once(started.address, "coordination-join", version=VERSION, profile="x" * 1000)
        assert 0 < len(lines_of(caplog)) <= 21 and no_traceback(caplog)


# --- a coordinator that lies ---

GOOD = Tables(0, DecisionId(1, 1), "L", "site", 5_000_000, (), (), ())


def packed(tables: Tables = GOOD, **head) -> bytes:
    parts = encoding.plain_tables(tables)
    names = ["since", "newest", "coordinator", "site_identity", "lease_us", "members", "regions", "runs"]
    for name, value in head.items():
        parts[0][names.index(name)] = value
    return plain.pack(parts)


def refused(**fields) -> list:
    names = ["reason", "retry_after_us", "join_again", "report", "earlier"]
    plain_refusal = encoding.plain_refused(Refused("no"))
    return [fields.get(name, value) for name, value in zip(names, plain_refusal, strict=True)]


REPLIES = {
    "tables that are no bytes": {"tables": 1},
    "tables of a bomb": {"tables": zlib.compress(bytes(100 << 20), 1)},
    "tables without a part": {"tables": plain.pack([])},
    "since of infinity": {"tables": packed(since=INF)},
    "newest above all": {"tables": packed(newest=[2**40, 1])},
    "a coordinator that is no name": {"coordinator": ["L"]},
    "a coordinator of escapes": {"coordinator": "\x1b"},
    "an identity that is none": {"site_identity": 7},
    "a lease of infinity": {"lease_us": INF},
    "a lease below 0": {"lease_us": -1},
    "a lease of 2^62": {"lease_us": 2**62},
    "refusals that are a map": {"refused": {}},
    "a refusal of a number": {"refused": [1]},
    "a refusal for 2^62": {"refused": [refused(retry_after_us=2**62)]},
    "a refusal for a float": {"refused": [refused(retry_after_us=1.5)]},
    "a refusal of a megabyte": {"refused": [refused(reason="x" * (1 << 20))]},
    "a refusal that names one without a profile": {"refused": [refused(earlier=[1])]},
    "may_leave of a number": {"may_leave": 3},
    "still_needed without buckets": {"still_needed": ["m"]},
    "1,000 members": {"tables": packed(members=1000)},
    "10^9 buckets": {
        "tables": plain.pack(
            [[0, [1, 1], "L", "s", 1, None, 0, 1], ["data", 0, 10**9, encoding.plain_bucket(Bucket())]]
        )
    },
}


class LyingCoordinator:
    """A locator of no real site: it answers every question with what it is told to."""

    def __init__(self, reply: dict) -> None:
        self.asked = 0
        self._reply = reply
        self.server = ControlServer("127.0.0.1", 0, self._answer, name="liar").start()
        self.address = f"127.0.0.1[{self.server.port}]"

    def _answer(self, request: dict, peer: tuple) -> dict:
        if request["op"] == "coordination-who":
            return {"locator": "L", "site": 1, "coordinator": "L", "coordinator_address": self.address,
                    "site_identity": "site", "decided": True}  # fmt: skip
        self.asked += 1
        good = {"version": VERSION, "decides": True, "coordinator": "L", "site_identity": "site",
                "lease_us": 5_000_000, "refused": [], "tables": packed()}  # fmt: skip
        return {**good, **self._reply}


@pytest.mark.parametrize("what", REPLIES)
def test_what_a_lying_coordinator_answers_is_refused_in_one_line_and_the_member_asks_on(caplog, what):
    liar = LyingCoordinator(REPLIES[what])
    member = SmallMember("m", liar.address)
    try:
        eventually(lambda: liar.asked >= 2)
        assert not member.agent.is_joined and not member.changes and no_traceback(caplog)
        assert 0 < len([line for line in lines_of(caplog) if "is away" in line]) <= 2
    finally:
        member.end()
        liar.server.stop()


@pytest.mark.parametrize(
    "said",
    [
        {"problem": "\x1b[2J" + "x" * (1 << 20)},
        {"coordinator": "\x1b[2J" + "x" * (1 << 20)},
        {"coordinator": ["x"] * 1000},
        {"address": "a b"},
        {"address": "h[1]," * 1000},
    ],
    ids=["a problem", "a coordinator", "a list", "an address", "addresses"],
)
def test_a_locator_that_says_what_cannot_be_of_the_coordinator_does_not_keep_a_member_from_the_next_one(caplog, said):
    liar = LyingCoordinator({"decides": False, **said})
    with locator() as site:
        member = SmallMember("m", f"{liar.address},{site.address}")
        try:
            assert member.agent.wait_joined(10)
            site.stop()
            eventually(lambda: member.agent.status()["problem"])
            assert no_traceback(caplog) and all(len(line) < 4_000 and "\x1b" not in line for line in lines_of(caplog))
        finally:
            member.end()
            liar.server.stop()


@pytest.mark.parametrize(
    "answer",
    [
        {"refused_requests": [[5, refused()]]},
        {"refused_requests": [[-1, refused()]]},
        {"refused_requests": 7},
        {"refused_requests": [[0, 1]]},
        {"decision": INF},
        {"decision": None},
    ],
    ids=str,
)
def test_a_wrong_answer_to_requests_ends_no_thread_of_the_member(caplog, answer):
    liar = LyingCoordinator(answer)
    member = SmallMember("m", liar.address)
    try:
        assert member.agent.wait_joined(10)
        member.agent.suspect(Incarnation("other", 1))
        eventually(lambda: any("cannot be used" in line for line in lines_of(caplog)))
        threads = {each.name for each in threading.enumerate() if each.name.startswith("member m")}
        asked = liar.asked
        member.agent.suspect(Incarnation("another", 1))
        eventually(lambda: liar.asked > asked + 1)
        assert threads <= {each.name for each in threading.enumerate()} and no_traceback(caplog)
    finally:
        member.end()
        liar.server.stop()


# --- a file that cannot be ---


def pack(value: object) -> bytes:
    return msgpack.packb(value)


def honest_file(tmp_path) -> None:
    with locator(dir=tmp_path) as started, small_members(str(started.address), "a") as (a,):
        assert a.host("data", ATTRIBUTES)


DAMAGE = {
    "a run above all": ("INSERT INTO runs VALUES (?, 1)", (2**40,)),
    "a last decision above all": ("UPDATE runs SET last = ?", (2**62,)),
    "a decision that is not the newest": ("UPDATE site SET newest = ?", (pack([1, 0]),)),
    "a generation that is no run": ("UPDATE site SET generation = ?", (CONTROLLER_EPOCH_MAX,)),
    "an identity that is no name": ("UPDATE site SET identity = ?", ("a b",)),
    "a member that is another one": ("UPDATE members SET key = ?", (pack(["x", 1]),)),
    "a member of half a profile": ("UPDATE members SET value = ?", (pack([1, 2]),)),
    "a member of no bytes": ("UPDATE members SET value = ?", ("text",)),
    "a member of cut bytes": ("UPDATE members SET value = ?", (b"\x9a\x01",)),
    "a region that nobody described": ("DELETE FROM regions", ()),
    "a region of -5 buckets": (
        "UPDATE regions SET value = ?", (pack(["PARTITION", -5, *encoding.plain_attributes(DATA)[2:]]),),
    ),
    "a bucket of a region that is not there": ("UPDATE buckets SET region = 'other'", ()),
    "a bucket above the region's": ("UPDATE buckets SET first = first + 4", ()),
    "10^9 buckets": ("UPDATE buckets SET count = 1000000000", ()),
    "-1 buckets": ("UPDATE buckets SET count = -1", ()),
    "a bucket of a text": ("UPDATE buckets SET value = 'bucket'", ()),
    "nothing": (),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_cannot_be_is_refused_by_name_with_the_way_out(tmp_path, caplog, what):
    honest_file(tmp_path)
    file = tmp_path / "L" / JOURNAL_FILE
    if what == "nothing":
        os.truncate(file, 0)
    else:
        database = sqlite3.connect(file)
        with database:
            database.execute(*DAMAGE[what])
        database.close()
    with pytest.raises(PywanError, match="start locator --recover-from-members") as failed, locator(dir=tmp_path):
        pass
    assert JOURNAL_FILE in str(failed.value) and isinstance(failed.value, DiskAccessError)
    assert no_traceback(caplog)
    for each in file.parent.glob(f"{JOURNAL_FILE}*"):  # The way out.
        each.unlink()
    with locator(dir=tmp_path, recover_from_members=True) as started:
        eventually(lambda: coordination(started)["decides"])


def test_a_member_that_names_what_nobody_reached_is_told_what_to_do(tmp_path):
    with locator(dir=tmp_path) as started:
        reply = call_once(started.address, "coordination-join", **join(stored=(CONTROLLER_EPOCH_MAX - 1, 1)))
        reason = reply["refused"][0][0]
        assert "start the member in an empty folder" in reason and "--recover-from-members" in reason


def test_a_process_whose_pid_is_none_has_not_ended():
    assert not has_ended(f"{this_machine()}/\u00b2/1")
