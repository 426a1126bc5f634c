"""What comes over the network names no secret of a member's machine, and no folder outside of the member's own."""

from __future__ import annotations

import pytest

from pywan.config.attributes import THINGS
from pywan.config.table import table
from pywan.errors import ConfigurationError
from pywan.testing.waiting import eventually
from pywan.transport.control import call_once
from support.commands import CommandedSite, CommandFailed

SECRET = {"security_username": "spy", "security_password_file": "/etc/shadow"}
REMEDY = r"is not taken over the network; set security-username .* in the member's own properties file"
OUTSIDE = r"is in no folder of the member's own, .* in the member's own cache.xml"


@pytest.fixture
def site(tmp_path):
    (tmp_path / "outside").mkdir()
    site = CommandedSite(tmp_path, allow_callbacks="support.listeners")
    yield site
    site.close()


def ask(site, op, **fields):
    return call_once((site.cache.host, site.cache.port), op, **fields)


def sender(**more):
    return {"remote_distributed_system_id": 2, "manual_start": True, **more}


def test_no_way_over_the_network_sets_the_secret_of_a_sender(site):
    site.start()
    site.do("create gateway-sender --id=ln --remote-distributed-system-id=2")
    thing = {"kind": "gateway-sender", "name": "tk", "attributes": sender(**SECRET)}
    for name, value in SECRET.items():
        option = f"--{name.replace('_', '-')}={value}"
        for line in (f"create gateway-sender --id=tk --remote-distributed-system-id=2 {option}",
                     f"alter gateway-sender --id=ln {option}"):  # fmt: skip
            with pytest.raises(CommandFailed, match=f"{name} names a secret .* {REMEDY}"):
                site.do(line)
        with pytest.raises(ConfigurationError, match=REMEDY):
            ask(site, "alter gateway-sender", id="ln", **{name: value})
    with pytest.raises(ConfigurationError, match=REMEDY):
        ask(site, "create gateway-sender", id="tk", **sender(**SECRET))
    with pytest.raises(ConfigurationError, match=REMEDY):
        ask(site, "apply configuration", things=[thing])
    xml = site.folder / "site.xml"
    xml.write_text(
        '<cache><gateway-sender id="tk" remote-distributed-system-id="2" security-username="spy"'
        ' security-password-file="/etc/shadow"/></cache>'
    )
    with pytest.raises(CommandFailed, match=REMEDY):
        site.do(f"import cluster-configuration --xml-file={xml} --action=STAGE")
    for change in (
        {"action": "put", "kind": "gateway-sender", "name": "tk", "attributes": sender(**SECRET)},
        {"action": "alter", "kind": "gateway-sender", "name": "ln", "attributes": SECRET},
    ):
        with pytest.raises(ConfigurationError, match=REMEDY):
            call_once(site.locator.address, "change-configuration", **change)
    assert site.things() == ["gateway-sender ln"] and list(site.cache.gateway_senders()) == ["ln"]
    assert site.cache.gateway_senders()["ln"].attributes.security_username is None


def test_a_secret_in_the_configuration_of_an_older_locator_is_not_taken(site):
    from pywan.config.cluster import ClusterConfiguration

    older = ClusterConfiguration()
    older.merge([{"kind": "gateway-sender", "name": "tk", "attributes": sender(**SECRET), "revision": 1, "id": "a"}])
    site.locator._configuration = older
    site.start()
    assert site.cache.gateway_senders() == {} and "properties file" in site.problems[0]


def test_the_members_own_configuration_has_both(site):
    secret = site.folder / "secret"
    secret.write_text("password")
    secret.chmod(0o600)
    site.xml = (
        '<gateway-sender id="ln" remote-distributed-system-id="2" manual-start="true" security-username="ny"'
        f' security-password-file="{secret}"/>'
        f'<disk-store name="far"><disk-dirs><disk-dir>{site.folder / "outside"}</disk-dir></disk-dirs></disk-store>'
    )
    cache = site.start()
    assert cache.gateway_senders()["ln"].attributes.security_password_file == str(secret)
    ask(site, "alter gateway-sender", id="ln", security_username="", security_password_file="")
    assert cache.gateway_senders()["ln"].attributes.security_username is None
    # That folder is one of the member's from now on.
    site.do(f"create disk-store --name=near --dir={site.folder / 'outside' / 'near'}")
    assert (site.folder / "outside" / "near" / "disk-store-near").is_dir()


@pytest.mark.parametrize("place", ["{0}/outside", "{0}/server/../outside", "{0}/server-2", "/", "../outside", "{0}"])
def test_a_folder_that_is_not_the_members_is_refused(site, place):
    site.start()
    path = place.format(site.folder)
    (site.folder / "server-2").mkdir()
    things = [
        {"kind": "disk-store", "name": "d", "attributes": {"directories": [[path, None]]}},
        {"kind": "gateway-sender", "name": "tk", "attributes": sender(overflow_directory=path)},
    ]
    for line in (
        f"create disk-store --name=d --dir={path}",
        f"create disk-store --name=d --dir={site.folder / 'server' / 'd'}#10,{path}#10",
        f"create gateway-sender --id=tk --remote-distributed-system-id=2 --overflow-directory={path}",
        f"create async-event-queue --id=q --listener=support.listeners:RecordingListener --overflow-directory={path}",
    ):
        with pytest.raises(CommandFailed, match=OUTSIDE):
            site.do(line)
    for thing in things:
        with pytest.raises(ConfigurationError, match=OUTSIDE):
            ask(site, "apply configuration", things=[thing])
    assert site.things() == [] and not list(site.folder.rglob("disk-store-d"))
    assert site.cache.gateway_senders() == {} and site.cache.disk_stores() == {}


def test_a_link_in_the_members_folder_leads_elsewhere(site):
    site.start()
    folder = site.folder / "server"
    (folder / "link").symlink_to(site.folder / "outside")
    site.do(f"create disk-store --name=d --dir={folder / 'link'}")
    site.do(f"create gateway-sender --id=tk --remote-distributed-system-id=2 --overflow-directory={folder / 'link'}")
    eventually(lambda: site.cache.gateway_senders()["tk"].is_running)
    assert (site.folder / "outside" / "disk-store-d").is_dir()


def test_every_attribute_that_names_a_file_or_folder_is_known_as_one():
    named = {
        (kind, row.name)
        for kind, cls in THINGS.items()
        for row in table(cls)
        if any(word in row.name for word in ("file", "dir", "path", "folder", "password", "certificate", "key"))
    }
    marked = {
        (kind, row.name)
        for kind, cls in THINGS.items()
        for row in table(cls)
        if row.attribute.is_local or row.attribute.is_folder
    }
    assert named <= marked and marked - named == {("gateway-sender", "security_username")}
