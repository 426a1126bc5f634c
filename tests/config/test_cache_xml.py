"""A cache.xml makes regions, senders and receivers, or says why it cannot."""

from __future__ import annotations

import pytest

from pywan.config import cache_xml
from pywan.errors import CacheXmlError

NY = """<cache>
<gateway-sender id="ln" parallel="true" remote-distributed-system-id="2"/>
<gateway-sender id="tk" parallel="true" remote-distributed-system-id="3"/>
<gateway-receiver/>
<region name="data" refid="PARTITION">
  <region-attributes gateway-sender-ids="ln,tk"/>
</region>
</cache>
"""


def parse(text: str) -> cache_xml.CacheConfiguration:
    return cache_xml.parse_bytes(text.encode(), "ny.xml")


class Filter:
    def __init__(self, **parameters):
        self.parameters = parameters


def test_a_sites_file_as_in_geodes_examples(tmp_path):
    path = tmp_path / "ny.xml"
    path.write_text(NY)
    found = cache_xml.parse(path)
    assert [(s.id, s.parallel, s.remote_distributed_system_id) for s in found.senders] == [
        ("ln", True, 2),
        ("tk", True, 3),
    ]
    assert (found.receiver.start_port, found.receiver.end_port) == (5000, 5500)
    (region,) = found.regions
    assert (region.name, region.type, region.gateway_sender_ids) == ("data", "PARTITION", ("ln", "tk"))
    assert found.where("region", "data") == f"{path}:5"


def test_namespaces_of_geodes_schema_are_accepted():
    found = parse("""<?xml version="1.0" encoding="UTF-8"?>
<cache xmlns="http://geode.apache.org/schema/cache" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://geode.apache.org/schema/cache http://geode.apache.org/schema/cache/cache-1.0.xsd"
  version="1.0">
  <gateway-receiver start-port="1530" end-port="1551" hostname-for-senders="gw.example" manual-start="true"/>
</cache>""")
    assert (found.receiver.start_port, found.receiver.hostname_for_senders, found.receiver.manual_start) == (
        1530,
        "gw.example",
        True,
    )
    assert (
        parse('<g:cache xmlns:g="http://geode.apache.org/schema/cache"><g:gateway-receiver/></g:cache>').receiver
        is not None
    )


def test_every_attribute_and_class_of_a_sender():
    found = parse(f"""<cache>
  <disk-store name="disk" time-interval="64">
    <disk-dirs><disk-dir dir-size="20">/tmp/a</disk-dir><disk-dir>/tmp/b</disk-dir></disk-dirs>
  </disk-store>
  <gateway-sender id="ln" remote-distributed-system-id="2" parallel="false" manual-start="true"
    socket-buffer-size="1000" socket-read-timeout="40000" enable-batch-conflation="true" batch-size="5"
    batch-time-interval="7" enable-persistence="true" disk-store-name="disk" disk-synchronous="false"
    maximum-queue-memory="9" alert-threshold="11" dispatcher-threads="3"
    order-policy="THREAD" retry-interval-ms="50" compression="lz4">
    <gateway-event-filter>
      <class-name>{__name__}:Filter</class-name><parameter name="word"><string>x</string></parameter>
    </gateway-event-filter>
    <gateway-event-filter><class-name>{__name__}:Filter</class-name></gateway-event-filter>
    <gateway-event-substitution-filter><class-name>{__name__}:Filter</class-name></gateway-event-substitution-filter>
  </gateway-sender>
  <gateway-conflict-resolver><class-name>{__name__}:Filter</class-name></gateway-conflict-resolver>
</cache>""")
    (sender,) = found.senders
    assert (sender.batch_size, sender.order_policy, sender.disk_store_name, sender.compression) == (
        5,
        "thread",
        "disk",
        "lz4",
    )
    assert sender.disk_synchronous is False and sender.socket_read_timeout == 40000
    assert list(sender.gateway_event_filters) == [f"{__name__}:Filter"] * 2
    assert next(iter(sender.gateway_event_filters)).parameters == {"word": "x"}
    assert found.conflict_resolver == f"{__name__}:Filter" == sender.gateway_event_substitution_filter
    assert (
        found.disk_stores[0].directories == (("/tmp/a", 20), ("/tmp/b", None))
        and found.disk_stores[0].time_interval == 64
    )


@pytest.mark.parametrize(
    "region, type_",
    [
        ('<region name="r"/>', "NORMAL"),
        ('<region name="r" refid="replicate"/>', "REPLICATE"),
        ('<region name="r"><region-attributes refid="PARTITION_REDUNDANT"/></region>', "PARTITION_REDUNDANT"),
        ('<region name="r"><region-attributes data-policy="replicate" scope="distributed-ack"/></region>', "REPLICATE"),
        ('<region name="r"><region-attributes data-policy="persistent-partition"/></region>', "PARTITION_PERSISTENT"),
        ('<region name="r"><region-attributes scope="local"/></region>', "LOCAL"),
        (
            (
                '<region name="r"><region-attributes><partition-attributes redundant-copies="2"/>'
                "</region-attributes></region>"
            ),
            "PARTITION",
        ),
        ('<region name="r" refid="PARTITION"><region-attributes data-policy="partition"/></region>', "PARTITION"),
    ],
)
def test_refid_policy_and_scope_make_the_type(region, type_):
    assert parse(f"<cache>{region}</cache>").regions[0].type == type_


def test_the_interest_policy_is_read_and_written_in_geodes_element():
    inside = '<partition-attributes redundant-copies="1"/><subscription-attributes interest-policy="ALL"/>'
    read = parse(f'<cache><region name="r"><region-attributes>{inside}</region-attributes></region></cache>')
    (made,) = read.regions
    assert (made.type, made.redundant_copies, made.interest_policy) == ("PARTITION", 1, "all")
    written = cache_xml.to_xml(cache_xml.to_things(read))
    assert '<subscription-attributes interest-policy="all"/>' in written
    assert parse(written).regions == read.regions


@pytest.mark.parametrize(
    "text, line, words",
    [
        ('<gateway-sender id="ln" remote-distributed-system-id="2"/>', 1, ["<gateway-sender>", "<cache>"]),
        ("<client-cache/>", 1, ["<client-cache>"]),
        ("<cache>\n<gateway-sendr/></cache>", 2, ["<gateway-sendr>", "<gateway-sender>"]),
        ("<cache>\n<region name='r'>\n<gateway-receiver/></region></cache>", 3, ["inside <region>"]),
        ('<cache>\n<gateway-sender id="ln"/></cache>', 2, ["'remote-distributed-system-id'"]),
        (
            '<cache>\n<gateway-sender id="ln" remote-distributed-system-id="two"/></cache>',
            2,
            ["remote_distributed_system_id", "'two'"],
        ),
        (
            '<cache>\n<gateway-sender id="ln" remote-distributed-system-id="2" colour="red"/></cache>',
            2,
            ["'colour'", "batch-size"],
        ),
        ('<cache>\n\n<gateway-receiver start-port="x"/></cache>', 3, ["start_port", "'x'"]),
        ("<cache>\n<gateway-receiver/>\n<gateway-receiver/></cache>", 3, ["second <gateway-receiver>", "line 2"]),
        ('<cache>\n<region name="r"/>\n<region name="r"/></cache>', 3, ["second <region> 'r'", "line 2"]),
        ('<cache>\n<region name="r" refid="SHARD"/></cache>', 2, ["refid", "'SHARD'"]),
        (
            '<cache>\n<region name="r" refid="PARTITION"><region-attributes data-policy="replicate"/></region></cache>',
            2,
            ["contradicts"],
        ),
        ('<cache>\n<region name="r">text</region></cache>', 2, ["'text'"]),
        ("<cache>\n<gateway-receiver>\n</cache>", 3, ["not well-formed"]),
        ("", 1, ["not well-formed"]),
        (
            (
                '<cache>\n<gateway-sender id="s" remote-distributed-system-id="2" enable-persistence="true" '
                'disk-store-name="d"/></cache>'
            ),
            2,
            ["disk store 'd' not found"],
        ),
        (
            '<cache>\n<gateway-sender id="s" parallel="true" remote-distributed-system-id="2"/>\n'
            '<region name="r" refid="REPLICATE">'
            '<region-attributes gateway-sender-ids="s"/></region></cache>',
            3,
            ["parallel", "REPLICATE"],
        ),
        (
            '<cache>\n<gateway-sender id="s" remote-distributed-system-id="2">\n'
            "<gateway-event-filter><class-name>no.such:F</class-name></gateway-event-filter>"
            "</gateway-sender></cache>",
            3,
            ["'no.such:F'", "cannot be imported"],
        ),
        (
            (
                '<cache>\n<gateway-sender id="s" remote-distributed-system-id="2">\n'
                "<gateway-event-filter/></gateway-sender></cache>"
            ),
            3,
            ["<class-name>"],
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, line, words):
    with pytest.raises(CacheXmlError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith(f"ny.xml:{line}: "), message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "prolog, words",
    [
        ('<!DOCTYPE cache SYSTEM "http://example.com/cache.dtd">', ["DTD"]),
        ('<!DOCTYPE cache [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>', ["not allowed"]),
        ('<!DOCTYPE cache [<!ENTITY x SYSTEM "file:///etc/passwd">]>', ["not allowed"]),
    ],
)
def test_a_dtd_or_an_entity_is_refused(prolog, words):
    with pytest.raises(CacheXmlError) as caught:
        parse(f"<?xml version='1.0'?>\n{prolog}\n<cache/>")
    assert str(caught.value).startswith("ny.xml:2: ") and all(word in str(caught.value) for word in words)


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path):
    with pytest.raises(CacheXmlError, match="more than 1048576 bytes"):
        parse("<cache>" + " " * cache_xml.MAX_FILE_BYTES + "</cache>")
    with pytest.raises(CacheXmlError, match=r"nothing.xml:1: the file cannot be read"):
        cache_xml.parse(tmp_path / "nothing.xml")


def test_bytes_that_are_not_xml_are_refused():
    for data in (
        b"\x00\xff\xfe",
        b"\x1f\x8b\x08 gzip",
        b"<?xml version='1.0' encoding='no-such'?><cache/>",
        b"PK\x03\x04",
    ):
        with pytest.raises(CacheXmlError, match=r"^f.xml:1: "):
            cache_xml.parse_bytes(data, "f.xml")


def test_the_default_disk_store_needs_no_definition():
    found = parse("""<cache>
  <gateway-sender id="ln" remote-distributed-system-id="2" enable-persistence="true" disk-store-name="DEFAULT"/>
  <region name="r" refid="REPLICATE_PERSISTENT"><region-attributes disk-store-name="DEFAULT"/></region>
</cache>""")
    assert found.senders[0].disk_store_name == found.regions[0].disk_store_name == "DEFAULT"
