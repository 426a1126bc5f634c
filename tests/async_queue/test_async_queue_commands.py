"""Commands about asynchronous event queues, on a site in this process: what they make, show and keep, and which classes
they may name.
"""

from __future__ import annotations

import pytest

import pywan
from pywan.config import cache_xml
from pywan.errors import CacheXmlError, ConfigurationError
from pywan.testing.waiting import LIMIT_S, eventually
from pywan.transport.control import call_once
from support.commands import CommandedSite, CommandFailed
from support.listeners import Failing, RecordingListener

CREATE = "create async-event-queue --id=audit --listener=support.listeners:RecordingListener"


@pytest.fixture
def start(tmp_path):
    made = []
    RecordingListener.made.clear()

    def start(allow="support.listeners", **more):
        site = CommandedSite(tmp_path, allow_callbacks=allow, **more)
        made.append(site)
        site.start()
        return site

    yield start
    for site in made:
        site.close()


@pytest.fixture
def site(start):
    return start()


def only(data):
    (member,) = data["members"]
    return member


def attributes_of(site):
    return site.cache.async_event_queue("audit").attributes


def test_a_queue_is_made_altered_paused_resumed_and_destroyed(site):
    done = only(
        site.do(
            f"{CREATE} --batch-size=50 --batch-time-interval=7 --max-queue-memory=3 --dispatcher-threads=2"
            " --order-policy=partition --enable-batch-conflation --listener-param=url#sqlite:a#b.db,user#me"
        )
    )
    assert done["status"] == 'AsyncEventQueue "audit" created on "server"' and done["changed"]
    (listener,) = RecordingListener.made
    assert listener.parameters == {"url": "sqlite:a#b.db", "user": "me"}
    made = attributes_of(site)
    assert (made.batch_size, made.batch_time_interval, made.maximum_queue_memory) == (50, 7, 3)
    assert (made.dispatcher_threads, made.order_policy, made.enable_batch_conflation) == (2, "partition", True)
    site.do("create region --name=data --type=REPLICATE --async-event-queue-id=audit")
    site.cache.region("data")["k"] = 1
    eventually(lambda: listener.received == [("data", "create", "k", 1)])
    site.do("alter async-event-queue --id=audit --batch-size=60 --batch-time-interval=9 --park-after-tries=4")
    assert (attributes_of(site).batch_size, attributes_of(site).park_after_tries) == (60, 4)
    assert "is paused" in only(site.do("pause async-event-queue --id=audit"))["status"]
    assert "already paused" in only(site.do("pause async-event-queue --id=audit"))["status"]
    site.cache.region("data")["k"] = 2
    assert site.cache.async_event_queue("audit").queue_size == 1
    assert "is resumed" in only(site.do("resume async-event-queue-dispatcher --id=audit"))["status"]
    assert "is not paused" in only(site.do("resume async-event-queue-dispatcher --id=audit"))["status"]
    eventually(lambda: len(listener.received) == 2)
    with pytest.raises(CommandFailed, match="async event queue 'audit' is attached to region data; detach it"):
        site.do("destroy async-event-queue --id=audit")
    site.do("alter region --name=data --async-event-queue-id=''")
    site.do("destroy async-event-queue --id=audit")
    assert site.cache.async_event_queues() == {} and listener.closed == 1 and site.things() == ["region data"]


def test_a_queue_that_is_there_or_not_there_is_said_or_skipped(site):
    site.do(CREATE)
    with pytest.raises(CommandFailed, match="async event queue with id 'audit' is already defined"):
        site.do(CREATE)
    assert not only(site.do(f"{CREATE} --if-not-exists"))["changed"] and len(RecordingListener.made) == 1
    for command in (
        "destroy async-event-queue",
        "alter async-event-queue --batch-size=5",
        "pause async-event-queue",
        "resume async-event-queue-dispatcher",
        "describe async-event-queue",
    ):
        with pytest.raises(
            CommandFailed, match="AsyncEventQueue nope is not available on member server; queues there: "
        ):
            site.do(f"{command} --id=nope")
    assert not only(site.do("destroy async-event-queue --id=nope --if-exists"))["changed"]
    site.cache.async_event_queue("audit").stop()
    for command in ("pause async-event-queue", "resume async-event-queue-dispatcher"):
        with pytest.raises(CommandFailed, match="AsyncEventQueue audit is not running"):
            site.do(f"{command} --id=audit")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("create async-event-queue --id=q", "--listener"),
        ("create async-event-queue --listener=support.listeners:RecordingListener", "--id"),
        ("create async-event-queue --id=q --listener=support.listeners:NoListener", "has no method process_events"),
        ("create async-event-queue --id=q --listener=support.listeners:Nobody", "has no class"),
        ("create async-event-queue --id=q --listener=support.listeners", "write package.module:Class"),
        (f"{CREATE} --parallel --order-policy=thread", "thread does not go with parallel"),
        (f"{CREATE} --dispatcher-threads=0", "dispatcher_threads"),
        (f"{CREATE} --batch-size=0", "batch_size"),
        (f"{CREATE} --forward-expiration-destroy=true", "entries do not expire"),
        (f"{CREATE} --disk-store=kept", "no effect without persistent"),
        (f"{CREATE} --persistent --disk-store=kept", "Disk store 'kept' not found"),
        (f"{CREATE} --listener-param=no_value", "no name#value"),
    ],
)
def test_what_cannot_be_made_is_said_and_not_kept(site, line, words):
    with pytest.raises(CommandFailed, match=words):
        site.do(line)
    assert site.cache.async_event_queues() == {} and site.things() == []


def test_an_alteration_that_cannot_be_made_changes_nothing(site):
    site.do(CREATE)
    for line in ("", "--batch-size=0", "--batch-size=-1", "--dispatcher-threads=3", "--park-after-tries=-1"):
        with pytest.raises(CommandFailed):
            site.do(f"alter async-event-queue --id=audit {line}")
    (thing,) = site.locator.cluster_configuration()
    assert thing["attributes"] == {"async_event_listener": "support.listeners:RecordingListener"}
    assert attributes_of(site).batch_size == 100


# What is shown


def test_queues_are_listed_with_geodes_columns(site, tmp_path):
    assert site.do("list async-event-queues")["async_event_queues"] == []
    site.do(f"create disk-store --name=kept --dir={tmp_path}/server/kept")
    site.do(f"{CREATE} --persistent --disk-store=kept --pause-event-processing --listener-param=password#secret")
    site.do("create async-event-queue --id=more --listener=support.listeners:Failing --batch-size=7")
    first, second = site.do("list async-event-queues")["async_event_queues"]
    assert (first["id"], first["persistent"], first["disk_store_name"]) == ("audit", True, "kept")
    assert (first["pause_event_processing"], first["paused"], first["status"]) == (True, True, "Paused")
    assert (second["id"], second["batch_size"], second["maximum_queue_memory"]) == ("more", 7, 100)
    assert second["listener"] == "support.listeners:Failing" and second["member"] == "server"


def test_one_queue_is_described_with_its_lag_ledger_and_statistics(site):
    site.do("create async-event-queue --id=audit --listener=support.listeners:Failing --dispatcher-threads=1")
    site.do("create region --name=data --type=REPLICATE --async-event-queue-id=audit,nobody")
    site.cache.region("data")["k"] = 1
    eventually(lambda: site.cache.async_event_queue("audit").status == "Running, listener fails")
    described = only(site.do("describe async-event-queue --id=audit"))
    assert described["status"] == "Running, listener fails"
    assert described["queue_size"] == 1 and described["lag"]["cause"] == "listener fails: ConnectionError: no database"
    assert described["ledger"]["balanced"] and described["stats"]["events_queued"] == 1
    assert described["attributes"]["async_event_listener"] == "support.listeners:Failing"
    (region,) = only(site.do("list regions"))["regions"]
    assert region["async_event_queue_ids"] == ["audit", "nobody"]
    assert only(site.do("describe region --name=data"))["async_event_queue_ids"] == ["audit", "nobody"]
    member = only(site.do("status member"))
    assert member["async_event_queues"] == {"audit": "Running, listener fails"} and member["gateway_senders"] == {}
    assert site.do("list gateways")["senders"] == []


def test_parked_events_of_a_queue_are_listed_replayed_and_dropped(site, monkeypatch):
    site.do(
        "create async-event-queue --id=audit --listener=support.listeners:Failing --park-after-tries=1"
        " --dispatcher-threads=1"
    )
    site.do("create region --name=data --type=REPLICATE --async-event-queue-id=audit")
    site.cache.region("data").put_all({"a": 1, "b": 2})
    queue = site.cache.async_event_queue("audit")
    eventually(lambda: queue.parked_count == 2)
    listed = only(site.do("list parked-events --async-event-queue-id=audit --limit=1"))
    assert listed["parked_count"] == 2 and listed["events"][0]["key"] == "a"
    assert listed["events"][0]["reason"] == "ConnectionError: no database"
    monkeypatch.setattr(Failing, "fails", False)
    assert only(site.do("replay parked-events --async-event-queue-id=audit"))["replayed"] == 2
    assert queue.wait_until_flushed(LIMIT_S) and queue.parked_count == 0
    assert sorted(Failing.made[0].received) == [("data", "create", "a", 1), ("data", "create", "b", 2)]
    monkeypatch.setattr(Failing, "fails", True)
    site.cache.region("data")["c"] = 3
    eventually(lambda: queue.parked_count == 1)
    assert only(site.do("drop parked-events --async-event-queue-id=audit"))["dropped"] == 1 and queue.parked_count == 0
    for verb in ("list", "replay", "drop"):
        for given in ("", "--id=audit --async-event-queue-id=audit"):
            with pytest.raises(CommandFailed, match="give either --id, of a sender, or --async-event-queue-id"):
                site.do(f"{verb} parked-events {given}")
        with pytest.raises(CommandFailed, match="queues there: audit"):
            site.do(f"{verb} parked-events --async-event-queue-id=nope")


def test_a_queue_that_a_region_names_and_nobody_made_is_noted(site):
    site.do("create gateway-sender --id=ln --remote-distributed-system-id=2")
    created = only(
        site.do("create region --name=data --type=REPLICATE --gateway-sender-id=ln,tk --async-event-queue-id=audit")
    )
    assert "note: it has no gateway sender tk, no async event queue audit; nothing is queued" in created["status"]
    site.do(CREATE)
    altered = only(site.do("alter region --name=data --gateway-sender-id=ln --async-event-queue-id=audit"))
    assert "note" not in altered["status"]
    site.cache.region("data")["k"] = 1
    eventually(lambda: RecordingListener.made[0].received == [("data", "create", "k", 1)])


# What is kept


def test_a_created_queue_is_kept_and_made_by_members_that_start(site):
    site.do(f"{CREATE} --listener-param=url#db --batch-size=5")
    site.do("alter async-event-queue --id=audit --batch-size=6")
    site.do("create region --name=data --type=REPLICATE --async-event-queue-id=audit")
    site.restart_locator()
    site.restart()
    assert site.problems == [] and attributes_of(site).batch_size == 6
    assert RecordingListener.made[-1].parameters == {"url": "db"}
    site.cache.region("data")["k"] = 1
    eventually(lambda: RecordingListener.made[-1].received == [("data", "create", "k", 1)])
    with pywan.Cache(
        "second", locators=str(site.locator.address), allow_callbacks="support.listeners"
    ) as second:  # Its region is on one member only.
        assert second.async_event_queue("audit").attributes.batch_size == 6
    site.do("alter region --name=data --async-event-queue-id=''")
    site.do("destroy async-event-queue --id=audit")
    site.restart()
    assert site.cache.async_event_queues() == {}


def test_a_change_for_one_member_is_not_kept(site):
    site.do(f"{CREATE} --member=server")
    assert "not kept in the cluster configuration" in site.notes[0] and site.things() == []
    site.do("alter async-event-queue --id=audit --batch-size=6")
    assert "async-event-queue audit is not in the cluster configuration" in site.notes[0]


def test_the_configuration_goes_into_a_cache_xml_and_back(site, tmp_path):
    file = tmp_path / "site.xml"
    site.do(f"create disk-store --name=kept --dir={tmp_path}/server/kept")
    site.do(f"{CREATE} --listener-param=url#a<b&c --persistent --disk-store=kept --max-queue-memory=7 --batch-size=-1")
    site.do("create region --name=data --type=PARTITION --async-event-queue-id=audit")
    wanted = site.locator.cluster_configuration()
    site.do(f"export cluster-configuration --xml-file={file}")
    text = file.read_text()
    assert '<async-event-queue id="audit"' in text and 'batch-size="-1"' in text and 'persistent="true"' in text
    assert "<async-event-listener>" in text and 'async-event-queue-ids="audit"' in text
    with pytest.raises(CommandFailed, match="has regions, senders, queues or a receiver already"):
        site.do(f"import cluster-configuration --xml-file={file}")
    site.do("alter region --name=data --async-event-queue-id=''")
    site.do("destroy region --name=data")
    with pytest.raises(CommandFailed, match="has regions, senders, queues or a receiver already"):
        site.do(f"import cluster-configuration --xml-file={file}")
    site.do("destroy async-event-queue --id=audit")
    site.do("destroy disk-store --name=kept")
    site.do(f"import cluster-configuration --xml-file={file}")
    assert site.locator.cluster_configuration() == wanted
    assert RecordingListener.made[-1].parameters == {"url": "a<b&c"} and attributes_of(site).maximum_queue_memory == 7
    assert site.cache.region("data").async_event_queue_ids == ("audit",)


QUEUE_XML = """
<async-event-queue id="audit" batch-size="7" persistent="false" parallel="true" maximum-queue-memory="9"
    pause-event-processing="true" disk-synchronous="true" order-policy="key" dispatcher-threads="3">
  <gateway-event-filter><class-name>support.listeners:Filter</class-name></gateway-event-filter>
  <async-event-listener>
    <class-name>support.listeners:RecordingListener</class-name>
    <parameter name="url"><string>db</string></parameter>
  </async-event-listener>
</async-event-queue>
<region name="data" refid="PARTITION">
  <region-attributes async-event-queue-ids="audit"/>
</region>
"""


def test_a_cache_xml_makes_queues_before_regions_and_needs_no_permission(start):
    site = start(allow="")
    site.xml = QUEUE_XML
    site.restart()
    made = attributes_of(site)
    assert (made.batch_size, made.parallel, made.maximum_queue_memory, made.dispatcher_threads) == (7, True, 9, 3)
    assert site.cache.async_event_queue("audit").is_paused and RecordingListener.made[-1].parameters == {"url": "db"}
    site.cache.region("data")["k"] = 1
    site.do("resume async-event-queue-dispatcher --id=audit")
    eventually(lambda: RecordingListener.made[-1].received == [("data", "create", "k", 1)])


@pytest.mark.parametrize(
    ("xml", "words"),
    [
        ('<async-event-queue id="q"/>', "async_event_listener is required"),
        ("<async-event-queue/>", "needs the attribute 'id'"),
        (QUEUE_XML + '<async-event-queue id="audit"/>', "async_event_listener is required"),
        (QUEUE_XML.replace("RecordingListener", "Nobody"), "has no class"),
        (QUEUE_XML.replace("PARTITION", "REPLICATE"), "async event queue 'audit' is parallel"),
        (QUEUE_XML.replace('batch-size="7"', 'batch-size="seven"'), "batch_size"),
        (QUEUE_XML.replace("batch-size", "batch-sise"), "'batch-sise' of <async-event-queue> is not known"),
        (QUEUE_XML.replace(" id", ' forward-expiration-destroy="true" id'), "entries do not expire"),
        (QUEUE_XML.replace("</async-event-listener>", "</async-event-listener><async-event-listener><class-name>"
         "support.listeners:RecordingListener</class-name></async-event-listener>"), "a second <async-event-listener>"),
        (QUEUE_XML.replace('persistent="false"', 'persistent="true" disk-store-name="kept"'), "'kept' not found"),
    ],
)  # fmt: skip
def test_a_cache_xml_that_is_wrong_is_refused_with_its_line(xml, words):
    with pytest.raises(CacheXmlError, match=rf"^cache.xml:\d+: .*{words}"):
        cache_xml.parse_bytes(f"<cache>{xml}</cache>".encode())


# Which classes may be named


REQUESTS = [
    {"op": "create async-event-queue", "id": "audit", "async_event_listener": "support.listeners:RecordingListener"},
    {
        "op": "create async-event-queue",
        "id": "audit",
        "async_event_listener": {"class": "support.listeners:RecordingListener", "parameters": {"url": "x"}},
    },
    {
        "op": "apply configuration",
        "things": [
            {
                "kind": "async-event-queue",
                "name": "audit",
                "attributes": {"async_event_listener": "support.listeners:RecordingListener"},
            }
        ],
    },
]


@pytest.mark.parametrize("request_", REQUESTS, ids=["class", "class with parameters", "configuration"])
@pytest.mark.parametrize("allow", ["", "queue,support.listeners:Other"], ids=["none", "others"])
def test_a_listener_that_the_member_does_not_allow_is_not_made(start, request_, allow):
    site = start(allow)
    before = len(RecordingListener.made)
    with pytest.raises(
        ConfigurationError, match=r"support.listeners:RecordingListener.*--allow-callbacks=support.listeners"
    ):
        call_once((site.cache.host, site.cache.port), **request_)
    assert site.cache.async_event_queues() == {} and len(RecordingListener.made) == before


def test_what_a_locator_tells_is_not_believed_either(start):
    site = start("")
    site.change(
        action="put",
        kind="async-event-queue",
        name="audit",
        attributes={"async_event_listener": "support.listeners:RecordingListener"},
    )
    site.restart()
    (problem,) = site.problems
    assert "async-event-queue audit was not made" in problem and "--allow-callbacks=support.listeners" in problem
    assert site.cache.async_event_queues() == {} and RecordingListener.made == []


def test_what_a_member_has_otherwise_than_the_configuration_is_told(site):
    site.do(f"{CREATE} --batch-size=5")
    site.xml = QUEUE_XML
    site.restart()
    (problem,) = site.problems
    assert "async-event-queue audit" in problem and "batch_size 7 and not 5" in problem
