"""After a restart a member has what the site wants it to have, with its entries and its queue."""

from __future__ import annotations

import re

import pytest

import pywan
from pywan.errors import ConfigurationError
from pywan.testing.waiting import eventually
from pywan.transport.control import call_once
from support.commands import CommandedSite, CommandFailed
from support.sites import QUICK

PERSISTENT = "--remote-distributed-system-id=2 --enable-persistence=true --disk-synchronous=false"


@pytest.fixture
def site(tmp_path):
    made = CommandedSite(tmp_path)
    made.start()
    yield made
    made.close()


def test_what_was_destroyed_and_created_again_keeps_its_entries_and_its_queue(site):
    for _ in range(2):
        site.do(f"create gateway-sender --id=ln {PERSISTENT}")
        site.do("create region --name=data --type=REPLICATE_PERSISTENT --gateway-sender-id=ln")
        site.cache.region("data")["old"] = 1
        if _ == 0:
            site.do("destroy region --name=data")
            site.do("destroy gateway-sender --id=ln")
    site.cache.region("data")["k"] = "v"
    site.restart()
    assert dict(site.cache.region("data")) == {"old": 1, "k": "v"}
    assert len(site.cache.gateway_sender("ln")._core.queue) == 2 and site.problems == []


def test_a_thing_has_one_entry_and_what_changes_nothing_adds_none(site):
    site.do("create region --name=data --type=REPLICATE")
    before = site.file.read_text()
    for line in (
        "create region --name=data --type=PARTITION --if-not-exists",
        "destroy region --name=none --if-exists",
        "destroy gateway-sender --id=none --if-exists",
        "destroy gateway-receiver --if-exists",
    ):
        site.do(line)
    assert site.file.read_text() == before
    site.do(f"create gateway-sender --id=ln {PERSISTENT}")
    for size in range(1, 20):
        site.do(f"alter gateway-sender --id=ln --batch-size={size}")
        site.do(f"alter region --name=data --gateway-sender-id={'ln' if size % 2 else ''}")
    assert site.things() == ["gateway-sender ln", "region data"]
    site.restart()
    assert site.cache.gateway_sender("ln").attributes.batch_size == 19 and site.cache.region(
        "data"
    ).gateway_sender_ids == ("ln",)


def test_a_member_starts_whatever_was_destroyed_or_changed_before(site):
    """Each of these kept a member from starting when it had to go through all commands again."""
    site.do(f"create gateway-sender --id=ln {PERSISTENT} --dispatcher-threads=2")
    site.do("destroy gateway-sender --id=ln")
    site.do(f"create gateway-sender --id=ln {PERSISTENT} --dispatcher-threads=3")
    site.do(f"create gateway-sender --id=tk {PERSISTENT}")
    site.do("destroy gateway-sender --id=tk")
    site.xml = (
        '<gateway-sender id="tk" remote-distributed-system-id="3" enable-persistence="true"/><region name="data"/>'
    )
    site.do("create gateway-receiver --start-port=0 --end-port=0")
    with pytest.raises(CommandFailed, match="already"):
        site.do("create gateway-receiver --start-port=1 --end-port=1")
    site.restart()
    assert (
        site.cache.gateway_sender("ln").attributes.dispatcher_threads == 3
        and site.cache.gateway_sender("tk").attributes.remote_distributed_system_id == 3
    )
    assert site.problems == [] and site.cache.gateway_receiver.is_running


def test_what_cannot_be_made_is_named_and_the_rest_starts(site):
    site.do("create gateway-sender --id=ln --remote-distributed-system-id=2")
    site.do("create gateway-receiver --start-port=0 --end-port=0")
    site.do("create region --name=data --type=REPLICATE --gateway-sender-id=ln")
    site.stop()
    site.change(action="put", kind="region", name="shop", attributes={"colocated_with": "orders"})
    site.change(
        action="put",
        kind="gateway-sender",
        name="lost",
        attributes={"remote_distributed_system_id": 3, "enable_persistence": True, "disk_store_name": "lost"},
    )
    site.start()
    assert set(site.cache.regions()) == {"data"} and site.cache.gateway_receiver.is_running
    first, second = site.problems
    assert "gateway-sender lost was not made" in first and "'lost' not found" in first
    assert "region shop was not made" in second and "no region 'orders'" in second
    shown = site.do("status member")["members"][0]["cluster_configuration_problems"]
    assert shown == [first, second]
    site.do("destroy region --name=shop")  # It is on no member, but wanted: so it can be destroyed.
    site.do("destroy gateway-sender --id=lost")
    with pytest.raises(CommandFailed, match="not on member"):
        site.do("destroy region --name=shop")
    site.restart()
    assert site.problems == []


def test_what_is_in_the_members_file_too_is_as_the_file_says_and_a_difference_is_told(site):
    site.do("create gateway-sender --id=ln --remote-distributed-system-id=2 --batch-size=5")
    site.do("create region --name=data --type=REPLICATE --gateway-sender-id=ln")
    site.do("create region --name=same --type=REPLICATE")
    site.xml = (
        '<gateway-sender id="ln" remote-distributed-system-id="2" batch-size="7"/><region name="data" '
        'refid="PARTITION"/>'
        '<region name="same" refid="REPLICATE"/>'
    )
    site.restart()
    assert site.cache.gateway_sender("ln").attributes.batch_size == 7 and site.cache.region("data").type == "PARTITION"
    sender, region = site.problems
    assert "gateway-sender ln" in sender and "batch_size 7 and not 5" in sender
    assert "region data" in region and "type 'PARTITION' and not 'REPLICATE'" in region


def test_a_change_of_what_the_members_file_defines_says_that_it_does_not_last(site):
    site.xml = '<region name="data" refid="REPLICATE"/>'
    site.restart()
    site.do("create gateway-sender --id=ln --remote-distributed-system-id=2")
    site.do("alter region --name=data --gateway-sender-id=ln")
    assert "region data is not in the cluster configuration" in site.notes[0] and "cache.xml" in site.notes[0]
    site.do("create region --name=mine --type=REPLICATE --member=server")
    assert "not kept in the cluster configuration" in site.notes[0]
    assert site.things() == ["gateway-sender ln"]


def test_a_log_that_the_configuration_does_not_name_is_left_alone(site, tmp_path):
    """A member that was away while its sender and region were destroyed still has their logs; joining does not remove
    them.
    """
    for line in (
        f"create gateway-sender --id=ln {PERSISTENT}",
        "create region --name=data --type=REPLICATE_PERSISTENT --gateway-sender-id=ln",
    ):
        site.do(line)
    site.cache.region("data")["k"] = "v"
    site.stop()
    site.change(action="replace", things=[])
    site.start()
    assert site.cache.regions() == site.cache.gateway_senders() == {}
    for line in (
        f"create gateway-sender --id=ln {PERSISTENT}",
        "create region --name=data --type=REPLICATE_PERSISTENT --gateway-sender-id=ln",
    ):
        site.do(line)
    assert dict(site.cache.region("data")) == {"k": "v"} and len(site.cache.gateway_sender("ln")._core.queue) == 1


def test_it_is_shown_as_a_file_of_geodes_kind_and_read_back(site, tmp_path):
    file = tmp_path / "site.xml"
    for line in (
        "create gateway-sender --id=ln --remote-distributed-system-id=2 --parallel=true --compression=lz4",
        "create gateway-receiver --start-port=0 --end-port=0",
        "create region --name=orders --type=PARTITION --gateway-sender-id=ln --total-num-buckets=7",
        "create region --name=free --type=NORMAL",
        (
            "create region --name=lines --type=PARTITION_REDUNDANT --redundant-copies=0 --colocated-with=orders "
            "--total-num-buckets=7"
        ),
    ):
        site.do(line)
    wanted = site.locator.cluster_configuration()
    assert site.do("export cluster-configuration")["xml"].startswith("<?xml")
    site.do(f"export cluster-configuration --xml-file={file}")
    with pytest.raises(
        CommandFailed,
        match=(
            "server server has regions, senders, queues or a receiver already, and nothing was changed; stop it, or "
            "give --action=STAGE"
        ),
    ):
        site.do(f"import cluster-configuration --xml-file={file}")
    site.do(f"import cluster-configuration --xml-file={file} --action=stage")
    assert site.locator.cluster_configuration() == wanted
    site.stop()
    site.change(action="replace", things=[])
    site.start()
    site.do(f"import cluster-configuration --xml-file={file}")
    assert (
        site.locator.cluster_configuration() == wanted
        and set(site.cache.regions()) == {"orders", "lines", "free"}
        and site.cache.gateway_receiver.is_running
    )
    site.restart()
    assert site.problems == [] and site.cache.region("orders").gateway_sender_ids == ("ln",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<cache>\n<gateway-sendr/></cache>", ":2:"),
        (
            "<cache>\n<gateway-conflict-resolver><class-name>a:B</class-name></gateway-conflict-resolver></cache>",
            "of each member",
        ),
        ("<!DOCTYPE cache><cache/>", "DTD"),
        ("", "not well-formed"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_its_line_and_changes_nothing(site, tmp_path, text, words):
    file = tmp_path / "site.xml"
    file.write_text(text)
    with pytest.raises(CommandFailed, match=words):
        site.do(f"import cluster-configuration --xml-file={file}")
    assert site.things() == []


def test_a_configuration_that_is_not_on_the_disk_is_told(site, tmp_path):
    folder = tmp_path / "locator"
    site.do("create region --name=data")
    (folder / "cluster_config.json").unlink()
    (folder / "cluster_config.json").mkdir()
    with pytest.raises(CommandFailed, match=r"done, but.*could not be written to .*cluster_config.json"):
        site.do("create region --name=more")
    assert set(site.cache.regions()) == {"data", "more"}
    (folder / "cluster_config.json").rmdir()
    site.do("create region --name=third")
    site.restart_locator()
    assert site.things() == ["region data", "region more", "region third"]


def test_a_configuration_file_that_cannot_be_read_is_named_with_the_remedy(site, tmp_path):
    file = tmp_path / "locator" / "cluster_config.json"
    for text, wrong in (
        ("{ half", "Expecting property name"),
        ('{"version": 1, "entries": []}', "its version is 1, this pywan reads 2;"),
        ('{"version": 2, "revision": 1}', "it has no 'entries';"),
    ):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        with pytest.raises(
            ConfigurationError,
            match=rf"locator: {re.escape(str(file))} is no file of a cluster configuration: {wrong}"
            r".*move it away.*import cluster-configuration",
        ):
            pywan.Locator("locator", distributed_system_id=1, port=0, dir=tmp_path).start()


@pytest.fixture
def other(site, tmp_path):
    """A second member of the site."""
    with pywan.Cache("other", locators=str(site.locator.address), dir=tmp_path / "other") as other:
        yield other


def test_what_one_member_did_is_wanted_though_another_could_not(site, other):
    other.create_gateway_sender("ln", remote_distributed_system_id=2)
    with pytest.raises(CommandFailed, match=r"create gateway-sender on other.*already defined"):
        site.do(f"create gateway-sender --id=ln {PERSISTENT}")
    other.create_region("data", type="LOCAL")
    with pytest.raises(CommandFailed, match=r"create region on other.*exists already"):
        site.do("create region --name=data --type=REPLICATE --gateway-sender-id=ln")
    site.cache.region("data")["k"] = 1
    site.restart()
    assert len(site.cache.gateway_sender("ln")._core.queue) == 1
    with pytest.raises(CommandFailed, match="nothing to alter"):
        site.do("alter gateway-sender --id=ln")
    other.destroy_region("data")
    with pytest.raises(CommandFailed, match="alter region on other"):
        site.do('alter region --name=data --gateway-sender-id=""')
    site.restart()
    assert site.cache.region("data").gateway_sender_ids == ()


def test_a_thing_is_wanted_until_no_member_has_it(site, other):
    site.do(f"create gateway-sender --id=ln {PERSISTENT}")
    other.create_region("own", type="REPLICATE", gateway_sender_ids=["ln"])
    with pytest.raises(CommandFailed, match=r"destroy gateway-sender on other.*attached to region own"):
        site.do("destroy gateway-sender --id=ln")
    assert "gateway-sender ln stays in the cluster configuration, since other may still have it" in site.notes[0]
    assert site.things() == ["gateway-sender ln"] and site.cache.gateway_senders() == {}
    other.region("own").alter(gateway_sender_ids=[])
    shown = site.do("destroy gateway-sender --id=ln")  # One of them has it no more, and that is no reason to keep it.
    assert [(row["member"], row["ok"]) for row in shown["members"]] == [("other", True), ("server", True)]
    assert site.things() == [] and other.gateway_senders() == {}


def test_a_neighbour_with_a_configuration_that_cannot_be_does_not_keep_locators_apart(tmp_path, caplog):
    """It takes the sites of what the other one says, and reports the rest once."""
    with (
        pywan.Locator("a", distributed_system_id=1, port=0, timings=QUICK) as a,
        pywan.Locator("b", distributed_system_id=1, port=0, timings=QUICK, locators=str(a.address)) as b,
    ):
        for locator, name in ((a, "one"), (b, "two")):
            call_once(locator.address, "change-configuration", action="put", kind="region", name=name, attributes={})
        eventually(
            lambda: len(a.cluster_configuration()) == len(b.cluster_configuration()) == 2, what="one configuration"
        )
        wrong = [{"kind": "region", "name": "far", "attributes": {}, "revision": 2**50, "id": "x"}]
        profile = {"distributed_system_id": 1, "host": "127.0.0.1", "port": 1, "name": "c", "stamp": 1}
        for _ in range(3):
            reply = call_once(
                a.address, "locator-join", role="local", uid="c", sites=[], extra=wrong, **{"from": profile}
            )
            assert len(reply["extra"]) == 2
            # In between comes one whose configuration is right.
            call_once(a.address, "locator-join", role="local", uid="c", sites=[], extra=[], **{"from": profile})
        assert len(a.cluster_configuration()) == 2
    assert len([record for record in caplog.records if "was not taken over" in record.getMessage()]) == 1


def test_a_disk_store_is_made_by_a_command_and_is_there_after_a_restart(site, tmp_path):
    first, second = site.folder / "server" / "first", site.folder / "server" / "second"
    site.do(f"create disk-store --name=big --dir={first}#64,{second} --time-interval=20")
    site.do("create region --name=data --type=REPLICATE_PERSISTENT --disk-store=big")
    site.do(f"create gateway-sender --id=ln {PERSISTENT} --disk-store-name=big")
    site.cache.region("data")["k"] = "v"
    assert site.things() == ["disk-store big", "gateway-sender ln", "region data"]
    exported = str(site.do("export cluster-configuration"))
    assert 'dir-size="64"' in exported and str(second) in exported and 'disk-store-name="big"' in exported
    site.restart()
    assert site.problems == [] and dict(site.cache.region("data")) == {"k": "v"}
    assert site.cache.disk_stores()["big"].attributes.time_interval == 20
    (listed,) = site.do("list disk-stores")["members"][0]["disk_stores"]
    assert [each["max_size"] for each in listed["directories"]] == [64, None] and listed["directories"][0][
        "directory"
    ].startswith(str(first))
    described = site.do("describe disk-store --name=big")["members"][0]
    assert sorted(log for each in described["directories"] for log in each["logs"]) == [
        "parked-ln",
        "queue-ln",
        "region-data",
    ]
    with pytest.raises(CommandFailed, match=r"holds .*region-data.*; destroy first what they belong to"):
        site.do("destroy disk-store --name=big")
    site.do("destroy region --name=data")
    site.do("destroy gateway-sender --id=ln")
    site.do("destroy disk-store --name=big")
    assert site.things() == [] and not list(first.iterdir()) and not list(second.iterdir())
    site.do("destroy disk-store --name=big --if-exists")
    site.restart()
    assert "big" not in site.cache.disk_stores()


def test_a_disk_store_command_refuses_by_name(site):
    folder = site.folder / "server"
    for option, words in (
        ("--auto-compact=true", "auto_compact has no effect in this version"),
        ("--max-oplog-size=5", "max_oplog_size has no effect"),
        ("--disk-usage-warning-percentage=90", "disk_usage_warning_percentage has no effect"),
        ("--time-interval=-1", "time_interval"),
    ):
        with pytest.raises(CommandFailed, match=words):
            site.do(f"create disk-store --name=s --dir={folder / 'place'} {option}")
    assert site.things() == [] and not (folder / "place").exists()
    site.do(f"create disk-store --name=s --dir={folder / 'place'}")
    with pytest.raises(CommandFailed, match="exists already"):
        site.do(f"create disk-store --name=s --dir={folder / 'other'}")
    site.do(f"create disk-store --name=s --dir={folder / 'other'} --if-not-exists")
    assert not (folder / "other").exists()
    with pytest.raises(CommandFailed, match="'none' is not on member"):
        site.do("describe disk-store --name=none")
