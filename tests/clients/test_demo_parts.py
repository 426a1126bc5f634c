"""The demo's parts that need neither processes nor Spark: topologies, comparison, the report."""

import json
import os
import struct
import sys
from typing import Any

import pytest
from rich.console import Console

from pywan.demo import compare, topology
from pywan.demo.report import Report, unexplained
from pywan.errors import ConfigurationError, ProtocolError


def entry(key: bytes, value_hash=1, stamp=10, site=1, length=4, form=2, key_form=1) -> bytes:
    return struct.pack("<HBBIQQB7x", len(key), key_form, form, length, value_hash, stamp, site) + key


def contents(*entries: bytes) -> dict:
    return compare.read_contents(lambda cursor: (None, b"".join(entries)))


def test_contents_are_read_run_by_run():
    runs = {0: (7, entry(b"a") + entry("ü".encode())), 7: (9, b""), 9: (None, entry(b"c"))}
    assert [key for _, key in compare.read_contents(runs.__getitem__)] == [b"a", "ü".encode(), b"c"]


@pytest.mark.parametrize("cut", [1, 31, 33])
def test_a_run_that_is_cut_short_is_refused(cut):
    with pytest.raises(ProtocolError, match="ends inside"):
        compare.read_contents(lambda cursor: (None, entry(b"key")[:cut]))


def test_equal_sites_have_no_difference():
    site = contents(entry(b"a"), entry(b"b"))
    assert not any(compare.compare({"ny": site, "ln": dict(site), "tk": dict(site)}))


def test_every_kind_of_difference_is_told_apart_and_named():
    ny = contents(entry(b"a"), entry(b"b"), entry(b"c"), entry(b"d"))
    ln = contents(entry(b"a"), entry(b"b", value_hash=2), entry(b"c", site=2), entry(b"x"))
    (difference,) = compare.compare({"ny": ny, "ln": ln})
    assert difference
    assert (difference.missing, difference.extra, difference.value, difference.stamp) == (1, 1, 1, 1)
    assert str(difference).startswith("ln: 1 missing, 1 extra, 1 value, 1 stamp (such as ")
    assert "missing d" in str(difference)


def test_stamps_do_not_count_against_contents_that_were_put_separately():
    assert not any(
        compare.compare({"feed": contents(entry(b"a", stamp=1)), "ny": contents(entry(b"a", stamp=2))}, stamps=False)
    )


def test_in_every_topology_an_event_of_any_site_finds_a_way_to_all():
    for name, senders in topology.TOPOLOGIES.items():
        for start in senders:
            reached, todo = {start}, [start]
            while todo:
                new = set(senders[todo.pop()]) - reached
                reached |= new
                todo += new
            assert reached == set(senders), name


def test_the_star_is_configured_as_geode_users_know_it():
    star = topology.build("star")
    xml = topology.cache_xml(star.sites["ny"], star.ids())
    assert '<gateway-sender id="ln" parallel="true" remote-distributed-system-id="2"/>' in xml
    assert '<gateway-sender id="tk" parallel="true" remote-distributed-system-id="3"/>' in xml
    assert '<region name="data" refid="PARTITION">' in xml and '<region-attributes gateway-sender-ids="ln,tk"/>' in xml
    assert star.remote_locators(star.sites["ny"]) == "ln_host[{0}],tk_host[{0}]".format(star.sites["ny"].locator_port)


def test_the_files_that_are_written_can_be_read(tmp_path):
    cache_xml = pytest.importorskip("pywan.config.cache_xml")
    for name in topology.TOPOLOGIES:
        built = topology.build(name)
        for site, file in topology.write_configuration(built, tmp_path).items():
            parsed = cache_xml.parse(file)
            assert [sender.id for sender in parsed.senders] == list(built.sites[site].senders)


def test_an_unknown_topology_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="--topology=triangle: choose one of star, chain, hub-and-spoke, ring"):
        topology.build("triangle")


LEDGER: dict[str, Any] = {
    "received": 10,
    "queued": 7,
    "not_queued": 2,
    "filtered_before_enqueue": 0,
    "withheld": 0,
    "dropped": {"stopped": 1},
    "distributed": 4,
    "conflated": 1,
    "filtered_before_transmit": 0,
    "parked": 1,
    "in_queue": 1,
}


def test_a_balanced_ledger_has_nothing_unexplained():
    assert unexplained(LEDGER) == []


@pytest.mark.parametrize(
    "name, problem", [("received", "received 11, explained 10"), ("queued", "queued 8, explained 7")]
)
def test_an_event_too_many_is_unexplained(name, problem):
    assert problem in unexplained({**LEDGER, name: LEDGER[name] + 1})


def test_the_report_fails_on_any_problem_and_says_so_in_both_forms():
    report = Report("star")
    report.sites["ny"] = dict(
        live_keys=3, events=5, received=0, conflicts_lost=0, fastest_events_per_second=9, contents="reference"
    )
    report.add_step("load", 2.0, 10)
    report.add_sender("ny", "ln", LEDGER)
    assert report.ok
    report.add_sender("ny", "tk", {**LEDGER, "distributed": 3})
    assert not report.ok
    assert json.loads(json.dumps(report.as_dict()))["senders"][1]["balanced"] is False
    with open(os.devnull, "w") as nothing:
        console = Console(record=True, width=160, file=nothing)
        report.print(console)
    text = console.export_text()
    assert "NY to TK" in text and "NO" in text and "explained 6" in text


@pytest.mark.parametrize("lacks", ["Spark", "Java"])
def test_a_demo_without_spark_or_java_says_what_to_install_and_leaves_no_folder(tmp_path, monkeypatch, capsys, lacks):
    from pywan import java
    from pywan.demo import main

    pytest.importorskip("rich")
    if lacks == "Spark":
        monkeypatch.setitem(sys.modules, "pyspark.java_gateway", None)
    else:
        pytest.importorskip("pyspark")
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setattr(java, "_packaged_java", lambda: None)
    assert main.run(main.Options(dir=str(tmp_path / "work"), quiet=True)) == 1
    assert "pip install" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
