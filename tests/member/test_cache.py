"""A member's calls as a program makes them: what it is told when it may not, and what an alteration leaves alone."""

import pytest

import pywan
from pywan.errors import NotFoundError
from pywan.member.core import MemberCore
from pywan.region.region import core_of
from pywan.transport.control import call_once


@pytest.fixture
def cache():
    with (
        pywan.Locator("locator", distributed_system_id=1, port=0) as locator,
        pywan.Cache("server", locators=f"127.0.0.1[{locator.port}]") as cache,
    ):
        yield cache


def test_a_folder_that_cannot_be_made_is_refused_by_name_with_the_remedy(tmp_path):
    name = "n" * 255  # A name may be so long. The name of a folder with a prefix may not.
    with pytest.raises(pywan.DiskAccessError, match=f"member {name}: its folder .* give the member a shorter name"):
        pywan.Cache(name, locators="127.0.0.1[1]", dir=tmp_path / "member")
    (tmp_path / "file").touch()
    with pytest.raises(pywan.DiskAccessError, match=r"member m: its folder .* cannot be made: Not a directory"):
        pywan.Cache("m", locators="127.0.0.1[1]", dir=tmp_path / "file" / "m")


def test_a_cache_without_a_folder_refuses_a_disk_store_without_one(cache, tmp_path):
    with pytest.raises(pywan.ConfigurationError, match="no folder that stays"):
        cache.create_disk_store("store")
    assert cache.disk_stores() == {}
    assert cache.create_disk_store("store", directories=[str(tmp_path)]).directories == [tmp_path / "disk-store-store"]


def test_altered_senders_leave_a_regions_disk_store(cache, tmp_path):
    cache.create_disk_store("store", directories=[str(tmp_path)])
    region = cache.create_region("data", type="REPLICATE_PERSISTENT", disk_store_name="store", disk_synchronous=False)
    region.alter(gateway_sender_ids=["ln"])
    assert (region.attributes.disk_store_name, region.attributes.disk_synchronous) == ("store", False)
    cache.destroy_region("data")
    assert not list(tmp_path.rglob("*.seg"))


def test_what_a_batch_refused_does_not_claim_that_nothing_was_stored(cache):
    region = cache.create_region("data")
    with pytest.raises(pywan.BatchError, match="the others were stored") as caught:
        region.put_all({"a": object(), "b": 1})
    assert "nothing was stored" not in str(caught.value) and dict(region) == {"b": 1}


def test_a_busy_port_is_told_by_an_error_of_its_own(cache):
    with pytest.raises(pywan.PortInUseError, match=f"port {cache.port} is in use"):
        pywan.Locator("other", distributed_system_id=1, port=cache.port).start()


def test_a_region_says_that_its_replicas_wait_for_other_members(cache, caplog):
    cache.create_region("plain")
    assert "redundant_copies" not in caplog.text
    cache.create_region("copied", type="PARTITION_REDUNDANT")
    assert (
        "region copied: 1 replicas of each bucket beside the primary are wanted, and no other member has the region yet"
        in caplog.text
    )


@pytest.mark.parametrize("in_file", [False, True], ids=["cluster configuration", "cache.xml"])
def test_a_member_that_starts_takes_events_only_when_its_regions_are_there(network, tmp_path, monkeypatch, in_file):
    """Other sites have waited for its receiver, and send at once: what is for a region that is not there would be
    parked.
    """
    ny = network.site("ny")
    if not in_file:
        call_once(
            ny.locator.address,
            "change-configuration",
            action="put",
            kind="gateway-receiver",
            name="",
            attributes={"start_port": 0, "end_port": 0},
        )
    call_once(
        ny.locator.address,
        "change-configuration",
        action="put",
        kind="region",
        name="data",
        attributes={"type": "REPLICATE"},
    )
    file = tmp_path / "cache.xml"
    receiver = '<gateway-receiver start-port="0" end-port="0"/>' if in_file else ""
    file.write_text(f"<cache>{receiver}<region name='first'/></cache>")
    there = []
    create = MemberCore.create_gateway_receiver
    monkeypatch.setattr(
        MemberCore,
        "create_gateway_receiver",
        lambda member, made: (there.extend(member.regions.faces()), create(member, made))[1],
    )
    ny.cache.close()
    ny.start_member(cache_xml_file=file)
    assert there == ["first", "data"] and ny.receiver.is_running


READS = {
    "get": lambda region: region.get("k"),
    "[]": lambda region: region["k"],
    "in": lambda region: "k" in region,
    "len": len,
    "iteration": list,
    "items": lambda region: list(region.items()),
    "values": lambda region: list(region.values()),
    "scan": lambda region: core_of(region).scan(),
    "lookup": lambda region: core_of(region).lookup("k"),
    "get of another": lambda region: region.get("no", 1),
    "pop": lambda region: region.pop("no", 1),
}
CHANGES = {
    "put": lambda region: region.put("k", 1),
    "destroy": lambda region: region.destroy("k"),
    "invalidate": lambda region: region.invalidate("k"),
    "local_destroy": lambda region: region.local_destroy("k"),
    "put_all": lambda region: region.put_all({"k": 1}),
    "del": lambda region: region.__delitem__("k"),
    "put_columns": lambda region: region.put_columns([b"k"], [b"v"]),
    "remove_all": lambda region: region.remove_all(["k"]),
    "decide": lambda region: core_of(region).decide(1, "k"),
    "put_if_absent": lambda region: region.put_if_absent("k", 1),
    "setdefault": lambda region: region.setdefault("k", 1),
    "replace": lambda region: region.replace("k", 1),
    "replace a value": lambda region: region.replace("k", 0, 1),
    "remove a value": lambda region: region.remove("k", 0),
    "update": lambda region: region.update(k=1),
    "clear here": lambda region: region.clear(local=True),
}


@pytest.mark.parametrize("end", ["the region is destroyed", "the cache is closed"])
@pytest.mark.parametrize("with_listener", [False, True])
def test_every_operation_of_a_closed_region_raises_the_same_error(network, end, with_listener):
    (ny,) = network.add("ny")
    region = ny.region(type="REPLICATE")
    region.put_all({f"k{n}": n for n in range(5000)} | {"k": 0})
    if with_listener:
        region.add_listener(pywan.CacheListener())
    begun = iter(region)
    next(begun)
    if end == "the region is destroyed":
        ny.cache.destroy_region("data")
    else:
        ny.cache.close()
    for name, operation in {**READS, **CHANGES, "iteration that was begun": lambda region: next(begun)}.items():
        with pytest.raises(pywan.RegionNotFoundError, match="was destroyed, or its cache closed"):
            operation(region)
            pytest.fail(name)
    assert "closed" in repr(region)


def test_numbers_that_would_ruin_a_member_are_refused_by_name(network):
    (ny,) = network.add("ny")
    for timeout in (0, -1, None, "soon", float("inf"), True):
        with pytest.raises(pywan.ConfigurationError, match="join_timeout"):
            pywan.Cache("other", locators=str(ny.locator.address), join_timeout=timeout)
    with pytest.raises(pywan.ConfigurationError, match="nothing to alter"):
        ny.region(type="REPLICATE").alter()
    sender = ny.send_to("ln")
    with pytest.raises(pywan.ConfigurationError, match="parked: limit: -1 is out of range"):
        sender.parked(-1)
    with pytest.raises(TypeError, match="takes attributes by name"):
        sender.alter({"batch_size": 20})


@pytest.mark.parametrize("name", [[], {}, 5, None, b"data"])
def test_what_is_no_name_is_the_name_of_nothing(network, name):
    [ny] = network.add("ny")
    for find in (ny.cache.region, ny.cache.destroy_region, ny.cache.gateway_sender):
        with pytest.raises(NotFoundError, match="has no"):
            find(name)
